// Shared by all tests: processes, servers and systems to control, files, waits.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, constants, existsSync, mkdtempSync, openSync, rmSync } from 'node:fs';
import { createServer as createHttpServer } from 'node:http';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import { SystemStatus, WebApiClient, WebApiServer, launch } from '../../control.ts';
import { END_MS, limited, until } from './wait.ts';
import type { Where } from './http.ts';
import type { ControlCommand, LaunchConfig, System, WebApiAddress, WebApiServerOptions } from '../../control.ts';
import type { ChildProcess } from 'node:child_process';
import type { AddressInfo, Socket } from 'node:net';
import type { TestContext } from 'node:test';
import type { Worker } from 'node:worker_threads';

export interface Ended {
  code: number | null;
  stdout: string;
  stderr: string;
}

/** A running program. */
export interface Running {
  child: ChildProcess;
  /** Everything written to stdout and stderr so far. */
  output(): string;
  /** Polls until the condition is true; rejects when the program has ended without that, or the time is over. */
  until(isTrue: () => boolean | Promise<boolean>, what?: () => string): Promise<void>;
  /** The same until the output matches. */
  shows(pattern: RegExp): Promise<void>;
  /** Whether it has ended, and all of its output has arrived. */
  hasEnded(): boolean;
  /** Each wait for it is limited in time. */
  ended: Promise<Ended>;
}

const SESSION = mkdtempSync(join(tmpdir(), 'control-')); // programs also serve and log there
process.env['CONTROL_DIR'] = join(SESSION, 'control'); // also those in the process of a test
process.on('exit', () => rmSync(SESSION, { recursive: true, force: true }));

/** Keeps the caller's environment out of the tests. */
const ENVIRONMENT = {
  XDG_RUNTIME_DIR: SESSION, XDG_STATE_HOME: join(SESSION, 'state'),
  HOME: SESSION, // bash takes the sockets of a child for a network, and then reads ~/.bashrc
  TMPDIR: SESSION, // a control-run that is killed with its keeper leaves a folder there
  NO_COLOR: '1', FORCE_COLOR: undefined, TERM: 'xterm', CI: undefined, // CI turns color off
  NODE_DEBUG: undefined, CONTROL_HOST: undefined, CONTROL_PORT: undefined, CONTROL_SOCKET: undefined,
  CONTROL_TOKEN: undefined, CONTROL_TOKEN_FILE: undefined, CONTROL_NAME: undefined, CONTROL_BY: undefined,
  CONTROL_VIA: undefined, CONTROL_RUN: undefined, CONTROL_DIR: join(SESSION, 'control'),
};

/** Starts a command, and kills it at the end of the test if it still runs. */
export function start(t: TestContext, command: string, args: readonly string[], env: NodeJS.ProcessEnv = {}): Running {
  const child = spawn(command, args, { stdio: 'pipe', env: { ...process.env, ...ENVIRONMENT, ...env } });
  t.after(() => child.kill('SIGKILL'));
  const line = [command, ...args].join(' ');
  let stdout = '';
  let stderr = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text));
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text));
  child.stdin.on('error', () => {}); // the program may end before it has read everything
  let isOver = false;
  const hasEnded = (): boolean => isOver;
  const ended = new Promise<Ended>((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code) => {
      isOver = true;
      resolve({ code, stdout, stderr });
    });
  });
  const output = (): string => stdout + stderr;
  const untilTrue: Running['until'] = async (isTrue, what = output) => {
    let isSeen = false;
    await until(async () => {
      const wasOver = isOver; // before it was looked at for the last time
      isSeen = await isTrue();
      return isSeen || wasOver;
    }, what);
    if (!isSeen) throw new Error(`${line} has ended: ${what()}`);
  };
  const shows = (pattern: RegExp): Promise<void> => {
    const isShown = (): boolean => output().search(pattern) >= 0; // test() of a global pattern has a memory
    return untilTrue(isShown, () => `no ${pattern} in: ${JSON.stringify(output())}`);
  };
  const what = (): string => `${line} does not end: ${JSON.stringify(output())}`;
  return { child, output, until: untilTrue, shows, hasEnded, ended: limited(ended, what, END_MS) };
}

/** The environment in which Node runs a module before a tool. */
export function preload(source: string): NodeJS.ProcessEnv {
  return { NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(source)}` };
}

/** The source of a program that takes this platform for another one. */
export function platformIs(platform: NodeJS.Platform): string {
  return `Object.defineProperty(process, 'platform', { value: '${platform}' });`;
}

/** Starts one of the built tools, or that of another build by its path without `.js`. */
export function startProgram(
  t: TestContext,
  name: string,
  args: readonly string[],
  env: NodeJS.ProcessEnv = {},
): Running {
  return start(t, process.execPath, [resolve('dist/bin', `${name}.js`), ...args], env);
}

/** Runs one of the built tools until it ends. */
export function runProgram(
  t: TestContext,
  name: string,
  args: readonly string[],
  input: string = '',
  env: NodeJS.ProcessEnv = {},
): Promise<Ended> {
  const { child, ended } = startProgram(t, name, args, env);
  child.stdin?.end(input);
  return ended;
}

/** Launches a system on a free port, and shuts it down at the end of the test. Returns the port. */
export async function startSystem(t: TestContext, hooks: Partial<System> = {}): Promise<number> {
  return (await launchSystem(t, hooks, { webApiAddress: ['localhost', 0] })).address.port;
}

export interface LaunchedSystem {
  address: WebApiAddress;
  client: WebApiClient;
  /** What `launch()` returned. */
  finished: Promise<void>;
}

/** Launches a system, by default on a free port, and shuts it down at the end of the test. */
export async function launchSystem(
  t: TestContext,
  hooks: Partial<System> = {},
  config: LaunchConfig = {},
): Promise<LaunchedSystem> {
  let finished: Promise<void> = Promise.resolve();
  const address = await new Promise<WebApiAddress>((resolve, reject) => {
    const onListening: System['onListening'] = (address) => {
      resolve(address);
      return hooks.onListening?.(address);
    };
    const system = { step: () => sleep(1), ...hooks, onListening };
    finished = launch(system, { webApiAddress: ['127.0.0.1', 0], socketPath: null, ...config });
    finished.catch(reject);
  });
  const client = clientAt(t, address, config.token);
  t.after(async () => {
    const ended = finished.then(() => true, () => true);
    while (!(await Promise.race([ended, sleep(200, false)]))) await client.shutdown(); // it may be cancelled once
  });
  return { address, client, finished };
}

export interface StartedServer<Name extends string = never> {
  server: WebApiServer<Name>;
  address: WebApiAddress;
  port: number;
  where: Where;
  client: WebApiClient;
}

/** Starts a server, by default on a free port of localhost; the host is the test. Closes it afterwards. */
export async function startServer<Name extends string = never>(
  t: TestContext,
  options: Partial<WebApiServerOptions<Name>> = {},
): Promise<StartedServer<Name>> {
  const place = options.socketPath === undefined ? { port: 0, socketPath: null } : {}; // not by name
  const server = new WebApiServer<Name>({ systemStatus: () => SystemStatus.ACTIVE, ...place, ...options });
  t.after(() => server.close());
  const address = await server.runInBackground();
  const { port, socketPath } = address;
  const client = clientAt(t, { ...address, host: '127.0.0.1' }, options.token); // no name to look up
  return { server, address, port, where: socketPath ?? port, client };
}

/** Headers: otherwise, fetch() may use a connection that the server closes just now, because it was idle. */
export const ONCE = { Connection: 'close' };

/**
 * Sends a command and waits until it is done. Returns its value or error, or its state if it still waits. The end of a
 * program under control-run becomes a text: `saved 12; exit code 7`.
 */
export async function perform(port: number, command: ControlCommand): Promise<[statusCode: number, outcome: unknown]> {
  const init = { method: 'POST', headers: { Prefer: 'wait=30', ...ONCE } };
  const response = await fetch(`http://127.0.0.1:${port}/api/${command}`, init);
  const { state, value, error } = await response.json() as Record<string, unknown>;
  assert.equal(state, { 200: 'done', 202: state ?? '', 500: undefined }[response.status]);
  const { saved, ended } = Object(value) as { saved?: string; ended?: string };
  const result = ended === undefined ? value : [saved, ended].filter((text) => text !== undefined).join('; ');
  return [response.status, response.status === 200 ? result : error ?? state];
}

/** What tests need of the response to `GET /api/info`. */
export interface Info extends Cause {
  name: string;
  since: string;
  status: string | null;
  heardAt: string;
  detail: unknown;
  commands: (Cause & { id: string; command: string; state: string; value?: unknown; error?: string })[];
}

interface Cause {
  by?: string;
  reason?: string;
}

export async function getInfo(port: number): Promise<Info> {
  const response = await fetch(`http://127.0.0.1:${port}/api/info`, { headers: ONCE });
  assert.equal(response.status, 200);
  return await response.json() as Info;
}

/** Waits for a detail: after 250 ms without the CPU, a host is reported with its previous detail. */
export async function getDetail(port: number): Promise<unknown> {
  let detail: unknown = null;
  await until(async () => (detail = (await getInfo(port)).detail) !== null);
  return detail;
}

/** A client that is closed at the end of the test. */
export function clientAt(t: TestContext, address: WebApiAddress, token?: string): WebApiClient {
  const { host, port, socketPath } = address;
  const client = socketPath === undefined
    ? new WebApiClient(host, port, { token })
    : new WebApiClient(undefined, undefined, { token, socketPath });
  t.after(() => client.close());
  return client;
}

/** A port of localhost on which nothing listens, for a server that starts later. No client gets a port below 32,768. */
export async function freePort(): Promise<number> {
  const port = 10_000 + Math.floor(Math.random() * 22_768);
  for (const host of ['127.0.0.1', '::1']) {
    const server = createServer();
    const error = await new Promise<NodeJS.ErrnoException | null>((resolve) => {
      server.on('error', resolve).listen(port, host, () => resolve(null));
    });
    if (error?.code === 'EADDRINUSE') return freePort();
    await new Promise((resolve) => server.close(resolve));
  }
  return port;
}

/**
 * A server with the endpoints of the specification alone: without Prefer and /api/info. Commands take 100 ms.
 *
 * @param isOriginal The server of PAMIQ-Core instead, which sends the number of the status.
 */
export async function startBasicServer(
  t: TestContext,
  isOriginal: boolean = false,
): Promise<{ port: number; posted: string[] }> {
  const numbers: Record<string, number> = { active: 1, paused: 3, 'shutting down': 5 };
  const posted: string[] = [];
  let status = 'active';
  const effects: Record<string, () => void> = {
    pause: () => (status = 'paused'),
    resume: () => (status = 'active'),
    shutdown: () => void server.close().closeAllConnections(),
    'save-state': () => {},
  };
  const server = createHttpServer(({ method, url = '' }, response) => {
    const { pathname } = new URL(url, 'http://localhost');
    const endpoint = pathname.replace('/api/', '');
    const effect = method === 'POST' ? effects[endpoint] : undefined;
    let body: object = { error: 'Invalid API endpoint' };
    if (effect !== undefined) {
      posted.push(endpoint);
      setTimeout(effect, 100);
      body = { result: 'ok' };
    }
    if (endpoint === 'status') body = { status: isOriginal ? numbers[status] : status };
    response.writeHead('error' in body ? 404 : 200, { 'Content-Type': 'application/json' }).end(JSON.stringify(body));
  });
  t.after(() => server.close().closeAllConnections());
  server.listen(0, 'localhost');
  await once(server, 'listening');
  return { port: (server.address() as AddressInfo).port, posted };
}

const [CONTROLS, BIDI] = ['\r\n\t\x00\x7f\x80\x9b', '\x9d\x9f\u061c\u200e\u200f\u202a\u202e\u2066\u2069'];

/** A text that sets the title and the clipboard of a terminal, clears it and reverses the text. It is also long. */
export const HOSTILE: string =
  `PW\x1b]0;title\x07\x1b]52;c;eA==\x07\x1b[2J${CONTROLS}31m${BIDI}NED${'😀'.repeat(300)}`;

/** How the tools print it. */
export const HARMLESS: string = `PW ]0;title ]52;c;eA== [2J 31m NED${'😀'.repeat(166)}…`;

/** Checks that a text has no control characters other than line feeds, and none that change its direction. */
export function assertHarmless(text: string): void {
  const found = /[^\n\x20-\x7e\xa0-\u061b\u061d-\u200d\u2010-\u2029\u202f-\u2065\u206a-\uffff]/.exec(text);
  assert.equal(found, null, JSON.stringify(text));
}

/** A new folder, removed at the end of the test. */
export function makeFolder(t: { after(end: () => void): void }): string {
  const folder = mkdtempSync(join(tmpdir(), 'control-'));
  t.after(() => removeFolder(folder));
  return folder;
}

/** Removes a folder in which processes may write while they end, and a server puts back its socket. */
async function removeFolder(folder: string): Promise<void> {
  for (let left = 9; existsSync(folder); left -= 1) {
    try {
      rmSync(folder, { recursive: true, force: true }); // its `maxRetries` would not remove what came meanwhile
    } catch (error) {
      if (left === 0) throw error;
      await sleep(20);
    }
  }
}

/** A path for a Unix socket, in a folder that is removed at the end of the test. */
export function makeSocketPath(t: TestContext): string {
  return join(makeFolder(t), 'control.sock');
}

/** A FIFO, open for writing even while nobody reads it. */
export function makePipe(t: TestContext): { path: string; file: number } {
  const path = join(makeFolder(t), 'pipe');
  execFileSync('mkfifo', [path]);
  const file = openSync(path, constants.O_RDWR);
  t.after(() => closeSync(file));
  return { path, file };
}

/** A promise that the test settles. */
export function defer<Value = void>(): {
  promise: Promise<Value>;
  resolve: (value: Value) => void;
  reject: (error: Error) => void;
} {
  let settle: [resolve: (value: Value) => void, reject: (error: Error) => void] | undefined;
  const promise = new Promise<Value>((...functions) => (settle = functions));
  const [resolve, reject] = settle ?? assert.fail();
  return { promise, resolve, reject };
}

/** A token, and the error of a request without it: in the tools, and as servers before 0.30 send it. */
export const TOKEN = 'a-token-for-tests-only';
export const NO_TOKEN = 'Missing token: set CONTROL_TOKEN_FILE or CONTROL_TOKEN';
export const MISSING_TOKEN: string = `${NO_TOKEN}, or the option token of WebApiClient`;

const NOWHERE = '/nowhere/control.sock'; // where no tool can do harm
const LONG_PATH = `/${'x'.repeat(94)}`;
const TOKEN_FORM = 'CONTROL_TOKEN must be a string of 16 to 1024 visible ASCII characters, got';

/** Arguments that every tool refuses with the same message; no message contains the token. */
export const WRONG_ACCESS: readonly [what: string, args: string[], token: string, line: string][] = [
  ['--socket and --host', ['--socket', NOWHERE, '--host', 'localhost'], '',
    '--socket replaces --host and --port: give one or the other'],
  ['--socket and --port', ['--port', '80', '--socket', NOWHERE], '',
    '--socket replaces --host and --port: give one or the other'],
  ['no path', ['--socket'], '', '--socket requires a value; see --help'],
  ['an empty path', ['--socket='], '', "--socket must be a non-empty string, got ''"],
  ['a long path', ['--socket', LONG_PATH], '',
    `--socket must be at most 94 bytes long, without NUL, got ${inspect(resolve(LONG_PATH))}`],
  ['a short token', ['--socket', NOWHERE], 'secret', `${TOKEN_FORM} 6`],
  ['a long token', ['--socket', NOWHERE], 'secret'.padEnd(1025, '.'), `${TOKEN_FORM} 1025`],
  ['a token with spaces', ['--socket', NOWHERE], 'secret in three words', `${TOKEN_FORM} other characters`],
  ['a token with a newline', ['--socket', NOWHERE], 'secret-of-a-file-with-a-\n', `${TOKEN_FORM} other characters`],
];

/** Takes all commands from the queue. */
export function takeAll<Name extends string = never>(server: WebApiServer<Name>): (ControlCommand | Name)[] {
  const taken: (ControlCommand | Name)[] = [];
  while (server.hasCommands()) taken.push(server.receiveCommand());
  return taken;
}

/** Collects the test's warnings from here on; Node does not print them. No other test may run at the same time. */
export function collectWarnings(t: TestContext): string[] {
  const warnings: string[] = [];
  t.mock.method(process, 'emitWarning', (warning: string | Error) => warnings.push(String(warning)));
  return warnings;
}

/** Collects the threads that start during the test. */
export function collectThreads(t: TestContext): Worker[] {
  const threads: Worker[] = [];
  const onWorker = (thread: Worker): void => void threads.push(thread);
  process.on('worker', onWorker);
  t.after(() => process.off('worker', onWorker));
  return threads;
}

/** A server other than control.ts, which calls `respond` for each request. Collects the requests. */
export async function startForeign(
  t: TestContext,
  respond: (socket: Socket) => void,
  where: Where = 0,
): Promise<{ port: number; requests: string[] }> {
  const requests: string[] = [];
  const foreign = createServer((socket) => {
    t.after(() => socket.destroy());
    socket.on('error', () => {}).once('data', (bytes) => {
      requests.push(String(bytes));
      respond(socket);
    });
  });
  t.after(() => foreign.close());
  foreign.listen(typeof where === 'string' ? { path: where } : { port: where, host: '127.0.0.1' });
  await once(foreign, 'listening');
  return { port: (foreign.address() as AddressInfo).port, requests };
}
