// control-client as people see it: each .txt in this folder is a transcript.

import { execFileSync } from 'node:child_process';
import { chmodSync, mkdirSync, readdirSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { after, describe, mock } from 'node:test';
import { COMPLETE } from '../../../client/completion.ts';
import { HOSTILE, MISSING_TOKEN, TOKEN } from '../../helpers.ts';
import { leaveSocket } from '../../module/helpers.ts';
import { lacks, type Need } from '../../needs.ts';
import { lineOf, openTerminal } from '../../screen.ts';
import { type Tool, transcript } from '../../transcript.ts';
import { LIMIT } from '../../wait.ts';
import { call } from './helpers.ts';
import { callAt } from './place.ts';
import * as story from './story.ts';
import type { IncomingMessage } from 'node:http';

const FOLDER = 'bin/test/tools/client';
const BOOLEAN = { approved: { type: 'boolean' } };

/** The time some seconds ago. */
const ago = (seconds: number): string => new Date(Date.now() - 1000 * seconds).toISOString();

/** A question as a server lists it: by default, 200 s old, with one parameter. */
const question = (id: string, message: string, parameters: unknown = BOOLEAN, more: object = {}): object => {
  return { id, message, parameters, at: ago(200), ...more };
};

/** A response that refuses a command. */
const refuse = (code: number, error: string): object => ({ code, error });

/** A response with the body of the request. */
const echo = async (request: IncomingMessage): Promise<object> => {
  return { result: (await request.toArray()).join('') || 'no body' };
};

/** What is at the path of a line with `&`. */
const PLACES = {
  fifo: (path: string): void => void execFileSync('mkfifo', [path]),
  folder: (path: string): void => mkdirSync(path),
  link: (path: string): void => symlinkSync('nowhere', path),
  dead: async (path: string): Promise<void> => {
    await leaveSocket(path);
    utimesSync(path, 1, 1);
  },
  file: (text: string, mode: number = 0o600) => (path: string): void => {
    writeFileSync(path, text);
    chmodSync(path, mode);
  },
};

const SYSTEM = { HOSTILE, TOKEN, MISSING_TOKEN, HOST: hostname(), BOOLEAN, ago, question, refuse, echo };
const NAMES = { ...SYSTEM, ...PLACES, ...story };

/** control-client on a terminal. On a busy machine, the puppets may respond too late. */
const onTerminal: Tool = async (args, { COLUMNS, ...env }, _, t) => {
  for (let tries = 3; ; tries -= 1) {
    const columns = Number(COLUMNS ?? 80);
    const { ended, text } = await openTerminal(t, lineOf('client', args), /\n/, { columns, env });
    const { code } = await ended;
    if (tries === 0 || !text().includes('has not responded')) {
      return { code, stdout: text().replaceAll(/ +$/gm, ''), stderr: '' };
    }
  }
};

/** The completion of a line. A response that comes after 500 ms is too late. */
const complete: Tool = async (args, { AT = ':', ...env }) => {
  const address = AT === ':' ? {} : { CONTROL_HOST: '127.0.0.1', CONTROL_PORT: AT.slice(1) };
  for (let tries = 5; ; tries -= 1) {
    const start = performance.now();
    const line = args.join(' ');
    const ended = await call([COMPLETE, `control-client ${line}`], { ...env, ...address });
    const [kind = '', ...words] = ended.stdout.replaceAll(/\t.*/g, '').trim().split(/\s+/);
    const shown = { ...ended, stdout: `${[`${line}: ${kind}`, ...words.sort()].join(' ')}\n` };
    if (tries === 0 || performance.now() - start < 400) return shown;
  }
};

const here: Tool = (args, { AT = ':1', OWNER, CONTROL_DIR = '', ...env }) => {
  const owner = OWNER === undefined ? undefined : Number(OWNER);
  return callAt(CONTROL_DIR, { port: Number(AT.slice(1)), owner }, args, env);
};

/** How some transcripts run it, and what they need. */
const TOOLS: Readonly<Record<string, [tool: Tool, ...needs: Need[]]>> = {
  'completion.txt': [complete, 'Unix'],
  'here.txt': [here, 'Linux', 'root'], 'list.txt': [onTerminal, 'script'],
};

mock.method(process, 'exit', () => {}); // a completion ends the process after 500 ms
after(() => mock.restoreAll());

describe('control-client', { ...LIMIT, concurrency: 2 }, () => { // many scenes wait for seconds
  for (const name of readdirSync(FOLDER).filter((one) => one.endsWith('.txt'))) {
    const [tool, ...needs] = TOOLS[name] ?? [call, 'Unix' as const];
    transcript(`${FOLDER}/${name}`, 'control-client', tool, NAMES, lacks(...needs));
  }
});
