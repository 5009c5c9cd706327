// Shared by the tests of control-board: the tool on a free port, its web API, and systems for it.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { connect } from 'node:net';
import { networkInterfaces } from 'node:os';
import { after, type TestContext } from 'node:test';
import { type Running, startProgram } from '../../helpers.ts';
import { runHost } from '../../host.ts';
import { lacks } from '../../needs.ts';
import { until } from '../../wait.ts';
import type { Update } from '../../../board/system.ts';
import type { News } from '../../../board/systems.ts';

/** A target that does not respond. */
export const NOWHERE = '127.0.0.1:9';

/** Stands in for a test: whatever is started with it ends after the suite. */
export function forSuite(): TestContext {
  const ends: (() => unknown)[] = [];
  after(async () => {
    for (const end of ends) await end();
  });
  return { after: (end: () => unknown) => void ends.push(end) } as TestContext;
}

// ───── The program ───────────────────────────────────────────────────────────────────────────────────────────────

export interface StartedBoard {
  running: Running;
  /** The URL of the page, without the key. */
  url: string;
  port: number;
  key: string;
  /** Both methods send the key. */
  get(path: string, headers?: Record<string, string>): Promise<Response>;
  post(path: string, headers?: Record<string, string>, body?: string | Uint8Array): Promise<Response>;
}

/** The line with the address. */
const BANNER = /^(\d+) systems? · (http:\/\/\S+:(\d+)\/)#([\w-]+)/m;

/** Starts control-board on a free port of localhost, unless an option gives another address. */
export async function startBoard(
  t: TestContext,
  targets: readonly string[],
  options: readonly string[] = [],
  env: NodeJS.ProcessEnv = {},
  program: string = 'board',
): Promise<StartedBoard> {
  const listen = options.some((option) => option.startsWith('--listen')) ? [] : ['--listen', 'localhost:0'];
  const running = startProgram(t, program, [...listen, ...options, ...targets], env);
  await running.shows(/\/#.*\(open it; .*\)\n/);
  const [, , url = '', port, key = ''] = BANNER.exec(running.output()) ?? [];
  const request = (method: string): StartedBoard['post'] => async (path, headers = {}, body) => {
    const own = { Authorization: `Bearer ${key}`, Connection: 'close' }; // an idle one may close as it is used again
    for (;;) {
      const response = await fetch(new URL(path, url), { method, headers: { ...own, ...headers }, body: body ?? null });
      if (response.status !== 408) return response; // on a busy machine, the board may read a request too late
    }
  };
  return { running, url, port: Number(port), key, get: request('GET'), post: request('POST') };
}

export type Refusal = readonly [args: readonly string[], message: string | RegExp];

/** Runs a tool with each command line, all in one process: it ends with exit code 2 and one line. */
export async function refuses(t: TestContext, tool: 'board' | 'mcp', refusals: readonly Refusal[]): Promise<void> {
  const host = runHost(t, `
    (await import('node:events')).default.defaultMaxListeners = 0; // each run adds some
    for (const [index, args] of ${JSON.stringify(refusals.map(([args]) => args))}.entries()) {
      let text = '';
      console.error = console.log = (line) => (text += line);
      process.argv.splice(1, Infinity, 'control-${tool}', ...args);
      await import('./dist/bin/${tool}.js?' + index);
      while (text === '') await sleep(1);
      say([process.exitCode, text]);
    }
    process.exit(0);
  `);
  for (const [args, message] of refusals) {
    const [code, text] = await host.hear<[number, string]>();
    const begin = `control-${tool}: `;
    assert.deepEqual([code, text.slice(0, begin.length)], [2, begin], `${args}: ${text}`);
    const said = text.slice(begin.length);
    if (typeof message === 'string') assert.equal(said, message);
    else assert.match(said, message);
    assert.match(said, /^[^\n\x1b]+$/, 'one line');
  }
  await host.ends();
}

/** The network addresses of this machine. */
export function ownAddresses(): string[] {
  return Object.values(networkInterfaces()).flat().flatMap((entry) => {
    return entry === undefined || entry.internal || entry.address.startsWith('fe80:') ? [] : [entry.address];
  });
}

// ───── Its web API ───────────────────────────────────────────────────────────────────────────────────────────────

/** `canPress` says whether the key permits commands. */
type Shown = News & { canPress: boolean };

/** The response to a page. */
export async function newsOf(board: StartedBoard, since: number = 0, waitS?: number): Promise<Shown> {
  const headers: Record<string, string> = waitS === undefined ? {} : { Prefer: `wait=${waitS}` };
  const response = await board.get(`/api/systems?since=${since}`, headers);
  assert.equal(response.status, 200);
  return await response.json() as Shown;
}

/** Waits until a page shows this of all systems. */
export async function untilSystems(
  board: StartedBoard,
  areShown: (systems: Update[]) => boolean,
): Promise<Update[]> {
  const known = new Map<number, Update>();
  let version = 0;
  let systems: Update[] = [];
  await until(async () => {
    const news = await newsOf(board, version, 5);
    ({ version } = news);
    for (const system of news.systems) known.set(system.id, system);
    systems = news.ids.map((id) => known.get(id) as Update);
    return areShown(systems);
  }, () => `${areShown}: ${JSON.stringify(systems)} ${board.running.output()}`);
  return systems;
}

/** Waits until a page shows this of a system. */
export async function untilSystem(
  board: StartedBoard,
  isShown: (system: Update) => boolean,
  id: number = 0,
): Promise<Update> {
  const isRight = (system: Update): boolean => system.id === id && isShown(system);
  return (await untilSystems(board, (all) => all.some(isRight))).find(isRight) as Update;
}

export interface RawResponse {
  status: number;
  headers: Record<string, string>;
  body: string;
  text: string;
}

/** Sends a raw request without a body: a request line without the version, and header fields. */
export async function exchange(port: number, line: string, ...fields: string[]): Promise<RawResponse> {
  const socket = connect(port, '127.0.0.1');
  const version = / HTTP\/\d\.\d$/.test(line) ? '' : ' HTTP/1.1';
  socket.write([line + version, ...fields, 'Connection: close', '', ''].join('\r\n'));
  let text = '';
  for await (const chunk of socket.setEncoding('utf8')) text += chunk;
  const [, status, rest = '', body = ''] = /^HTTP\/1\.1 (\d+) .*\r\n([^]*?)\r\n\r\n([^]*)$/.exec(text) ?? [];
  const headers = Object.fromEntries(rest.split('\r\n').map((field) => {
    const colon = field.indexOf(': ');
    return [field.slice(0, colon).toLowerCase(), field.slice(colon + 2)];
  }));
  return { status: Number(status), headers, body, text };
}

/** A line of metrics: name, labels and a number. */
const SAMPLE = /^((\w+)\{(?:,?\w+="(?:[^"\\]|\\["\\n])*")+\}) -?\d[\d.e+-]*$/;

/**
 * Checks Prometheus's text format: each line is a comment or a unique sample, and each metric begins with its comments.
 */
export function checkMetrics(text: string): void {
  const keys = new Set<string>();
  let metric = '';
  for (const line of text.trimEnd().split('\n')) {
    const [, name] = /^# HELP (\w+) \S.*$/.exec(line) ?? [];
    if (name !== undefined) metric = name;
    if (line.startsWith('#')) {
      assert.match(line, new RegExp(`^# (HELP ${metric} \\S|TYPE ${metric} (gauge|counter)$)`));
      continue;
    }
    const [, key = '', own] = SAMPLE.exec(line) ?? [];
    assert.equal(own, metric, line);
    assert.ok(!keys.has(key), `twice: ${line}`);
    keys.add(key);
  }
  assert.ok(keys.size > 0);
  if (lacks('promtool') !== false) return;
  const checked = spawnSync('promtool', ['check', 'metrics'], { input: `${text.trimEnd()}\n`, encoding: 'utf8' });
  assert.deepEqual([checked.status, checked.stdout + checked.stderr], [0, '']);
}

// ───── Systems ───────────────────────────────────────────────────────────────────────────────────────────────────

/** The response of a server to `GET /api/info`. */
export const INFO: Readonly<Record<string, unknown>> = {
  name: 'x', pid: 1, host: 'box', status: 'active', since: '2026-01-01T00:00:00Z', heardAt: '2026-01-01T00:00:00Z',
  detail: null, commands: [],
};
