// control-client as people see it: each .txt in this folder is a transcript.

import { execFileSync } from 'node:child_process';
import { chmodSync, mkdirSync, readdirSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { HOSTILE, MISSING_TOKEN, TOKEN } from '../../helpers.ts';
import { leaveSocket } from '../../module/helpers.ts';
import { transcript } from '../../transcript.ts';
import { call } from './helpers.ts';
import * as story from './story.ts';
import type { IncomingMessage } from 'node:http';

const FOLDER = 'bin/test/tools/client';

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

/** So many seconds before now. */
const ago = (seconds: number): string => new Date(Date.now() - seconds * 1000).toISOString();

const NAMES = { HOSTILE, TOKEN, MISSING_TOKEN, HOST: hostname(), refuse, echo, ago, ...PLACES, ...story };

for (const name of readdirSync(FOLDER).filter((one) => one.endsWith('.txt'))) {
  transcript(`${FOLDER}/${name}`, 'control-client', call, NAMES);
}
