// control-mcp as clients see it. tools.txt shows what its tools do, in the form that ../../transcript.ts describes;
// legacy.txt and modern.txt are transcripts of one process, in one era of the protocol. RECORD=1 writes what is seen.
//
//   > tools/list {"cursor":""}   a request with its parameters; in modern.txt, it has the _meta of that era
//   > - notifications/x {}       a notification
//   >> hello                     any other line
//   $ get_info {"system":"x"}    a call of a tool
//   < {"result":{}}              what arrives before the next ping is answered, with an id that is not that of the
//                                request; of tools, the names; of a call, its result, or its error after `! `

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { VERSION } from '../../../../control.ts';
import { makeFolder } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { type Tool, transcript } from '../../transcript.ts';
import { LIMIT } from '../../wait.ts';
import { entry, infoOf, outcome } from '../logs.ts';
import { failureOf, META, metaOf, startMcp, valueOf } from './helpers.ts';
import type { IncomingMessage } from 'node:http';
import type { TestContext } from 'node:test';
import type { Mcp, Message } from './helpers.ts';

const IS_RECORDING = process.env['RECORD'] === '1' && process.env['CI'] === undefined;
/** What differs from run to run or between versions of Node. */
const VARIABLE: readonly (readonly [pattern: RegExp, shown: string])[] = [
  [/\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z/g, 'TIME'], [/ at position \d+( \(line \d+ column \d+\))?/g, ''],
];
const MOST_TEXT = 60; // of the instructions

/** Plays the lines of a transcript, and returns them as they should have been. */
async function play(mcp: Mcp, era: string, lines: readonly string[]): Promise<string[]> {
  const seen: string[] = [];
  let id = 0;
  for (const line of lines.filter((one) => !/^[<!]/.test(one))) {
    seen.push(line);
    const before = mcp.messages.length;
    const [, sign, dash, method = '', source = '{}'] = /^([>$]) (- )?(\S+)(?: (.*))?$/.exec(line) ?? [];
    const given: unknown = sign === undefined ? {} : JSON.parse(source);
    const isObject = typeof given === 'object' && given !== null && !Array.isArray(given);
    const params = sign === '$' ? { name: method, arguments: given } : given;
    const meta = era === 'modern' && isObject ? { _meta: { ...metaOf(), ...Object(given)._meta as object } } : {};
    const message = {
      jsonrpc: '2.0', method: sign === '$' ? 'tools/call' : method,
      params: isObject ? { ...params as object, ...meta } : params,
    };
    if (line.startsWith('>> ')) mcp.send(`${line.slice(3)}\n`);
    else if (sign === undefined) continue;
    else mcp.send(dash === undefined ? { ...message, id: id += 1 } : message);
    if (message.method === 'tools/call') await mcp.responseTo(id);
    await mcp.settled();
    const ownId = sign === undefined ? undefined : id;
    seen.push(...mcp.messages.slice(before, -1).map((one) => show(one, sign === '$', ownId)));
  }
  return seen;
}

function show({ jsonrpc, id, ...message }: Message, isCall: boolean, ownId: unknown): string {
  const { result } = message;
  if (isCall && result?.isError === true) return `! ${JSON.stringify(failureOf(result))}`;
  if (isCall && result !== undefined) return `< ${JSON.stringify({ ...valueOf(result), now: undefined })}`;
  const shown = id === ownId ? message : { id, ...message };
  return `< ${JSON.stringify(shown, (name, value: unknown) => {
    if (name === 'tools' && Array.isArray(value)) return value.map((tool: { name: string }) => tool.name);
    if (name === 'instructions') return `${String(value).slice(0, MOST_TEXT)}…`;
    if (name === `${META}/serverInfo` || name === 'serverInfo') assert.equal(Object(value).version, VERSION);
    return name === 'serverInfo' || name === `${META}/serverInfo` ? 'SERVER' : value;
  })}`;
}

// ───── Tools ─────────────────────────────────────────────────────────────────────────────────────────────────────

/** What one server has told in a scene. */
interface Session {
  mcp: Mcp;
  /** The tag of the latest result. */
  tag: string;
}

/** The servers of a scene: the last one, by the address of the system that it serves. */
const sessions = new WeakMap<TestContext, Map<string, Session>>();

/** Whatever is no text in the arguments of a tool. */
const VALUES = ['arguments', 'limit', 'mine', 'seconds', 'within'];

/** Calls a tool of control-mcp; words before `--` start another server. Prints the result, or its error on stderr. */
const useTool: Tool = async (args, env, _, t) => {
  const place = args[0] === '--host' ? args.slice(0, 4) : [];
  const words = args.slice(place.length);
  const options = words.splice(0, words.indexOf('--') + 1).slice(0, -1);
  const ofScene = sessions.get(t) ?? new Map<string, Session>();
  sessions.set(t, ofScene);
  const [, host, , port] = place;
  const address = host === undefined ? {} : { CONTROL_HOST: host, CONTROL_PORT: port };
  let session = ofScene.get(place.join());
  if (session === undefined || args.includes('--')) {
    session = { mcp: startMcp(t, options, { ...env, ...address }), tag: '' };
    ofScene.set(place.join(), session);
  }
  const [tool, ...given] = words;
  if (tool === undefined) return { code: 0, stdout: '', stderr: '' };
  if (tool === 'tools/list') return { code: 0, stdout: await listTools(session.mcp), stderr: '' };
  const values = given.map((word) => {
    const [, name = '', text = ''] = /^(\w+)=(.*)$/s.exec(word) ?? assert.fail(word);
    return [name, VALUES.includes(name) && text !== 'x' ? JSON.parse(text) : text.replace('LAST', session.tag)];
  });
  const call = { name: tool, arguments: Object.fromEntries(values) };
  let { result, error } = await session.mcp.modern('tools/call', call);
  while (tool === 'list_systems' && JSON.stringify(result).includes('no connection within')) { // on a busy machine
    ({ result, error } = await session.mcp.modern('tools/call', call));
  }
  assert.equal(error, undefined);
  const { error: failure = '', now, tag, ...shown } = result.isError === true ? failureOf(result) : valueOf(result);
  if (tag !== undefined) session.tag = tag;
  const text = JSON.stringify(shown).replaceAll(/"silentSeconds":\d+/g, '"silentSeconds":N');
  const isFailed = result.isError === true;
  return { code: Number(isFailed), stdout: text === '{}' ? '' : `${text}\n`, stderr: isFailed ? `${failure}\n` : '' };
};

/** The names of the tools, and what their descriptions say of --allow. */
async function listTools(mcp: Mcp): Promise<string> {
  const { tools } = (await mcp.modern('tools/list')).result;
  const limits = tools.map(({ name, description }: { name: string; description: string }) => {
    return [name, / (You cannot resume|Only these are allowed).*$/.exec(description)?.[0] ?? ''].join(':');
  });
  return `${limits.join('\n').replaceAll(/:$/gm, '')}\n`;
}

const NAMES = {
  entry, infoOf, outcome,
  /** The response to a command that is done. */
  done: { id: 'k3f-1', state: 'done' },
  /** The same, with the arguments as its value. */
  echo: async (request: IncomingMessage): Promise<object> => {
    return { id: 'k3f-1', state: 'done', value: JSON.parse((await request.toArray()).join('') || '{}') };
  },
  refuse: (code: number, error: string): object => ({ code, error }),
  ago: (seconds: number): string => new Date(Date.now() - 1000 * seconds).toISOString(),
};

transcript('bin/test/tools/mcp/tools.txt', 'control-mcp', useTool, NAMES);

describe('control-mcp', { ...LIMIT, concurrency: 2, skip: lacks('Unix') }, () => {
  for (const era of ['legacy', 'modern']) {
    it(`speaks the protocol of the ${era} era as in ${era}.txt`, async (t) => {
      const path = `bin/test/tools/mcp/${era}.txt`;
      const lines = readFileSync(path, 'utf8').split('\n');
      const folder = makeFolder(t);
      const mcp = startMcp(t, ['--allow', 'all', '--dir', folder]);
      const seen = (await play(mcp, era, lines)).map((line) => VARIABLE.reduce((text, [pattern, name]) => {
        return text.replaceAll(pattern, name);
      }, line).replaceAll(folder, 'DIR'));
      if (IS_RECORDING) writeFileSync(path, seen.join('\n'));
      else assert.deepEqual(seen, lines);
    });
  }
});
