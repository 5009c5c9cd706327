// Shared by the tests of control.ts: raw HTTP, hosts in processes of their own, random data.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chownSync, lstatSync, readFileSync, readdirSync, readlinkSync, renameSync } from 'node:fs';
import { STATUS_CODES } from 'node:http';
import { connect, createServer } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { start } from '../helpers.ts';
import type { ControlCommand, SystemStatus, WebApiClient, WebApiServer } from '../../../control.ts';
import type { Where } from '../helpers.ts';
import type { ChildProcess } from 'node:child_process';
import type { IncomingHttpHeaders } from 'node:http';
import type { AddressInfo, Server, Socket } from 'node:net';
import type { Readable } from 'node:stream';
import type { TestContext } from 'node:test';
import type { Worker } from 'node:worker_threads';

/** For each suite: what hangs is a failure, not an endless run. A slow machine needs a fraction of it. */
export const LIMIT = { timeout: 300_000 };

export const COMMANDS: readonly ControlCommand[] = ['pause', 'resume', 'shutdown', 'save-state'];

/** An origin for `allowedOrigins`. */
export const PAGE = 'http://localhost:3000';

// ───── Values of Host ────────────────────────────────────────────────────────────────────────────────────────────

/** Values of Host that every server accepts. */
export const LOCAL_HOSTS: readonly string[] = [
  'localhost', 'LOCALHOST:1', 'LocalHost:', '127.0.0.1', '127.9.9.9:80', '[::1]:8391', '[::1]', '[fe80::1%eth0]',
  '192.168.1.7', '[0:0::1]:65535', '[::ffff:127.0.0.1]:', '[2001:DB8::1]', '1.0.0.0', '255.255.255.255:65536',
];

export const UNSPECIFIED_ADDRESSES: readonly string[] = [ // browsers take them for this machine
  '0.0.0.0', '0.1.2.3', '0.255.255.255:80', '[::]', '[::]:80', '[0:0::0]', '[0:0:0:0:0:0:0:0]', '[::0.0.0.0]',
  '[::ffff:0.0.0.0]', '[::ffff:0:1]', '[::%eth0]',
];

/** Values of Host that no server accepts by default. */
export const FOREIGN_HOSTS: readonly string[] = [
  ...UNSPECIFIED_ADDRESSES, 'localhost.', 'x.localhost', 'localhost.x', '0177.0.0.1', '127.1', '0x7f.1', '0x7f000001',
  '2130706433', '127.0.0.1.', '127.0.0.1.x', '1.2.3', '256.0.0.1', '1.2.3.4.5', '%6cocalhost', 'evil.example',
  'evil.example:8391', 'box.lan', '*', '.', '-', 'localhost@evil', 'evil@localhost', 'localhost:1@evil',
  'evil:localhost@127.0.0.1', '@localhost', 'localhost,localhost', 'localhost:http', 'localhost:80:80', 'localhost:-1',
  'localhost:0x50', ':80', '::1', '[::1', '[::1]x', '[::1]80', '[::1]:x', '[127.0.0.1]', '[localhost]', '[]', '[', ']',
  '[[::1]]', '[:::]', '[::g]', 'localhost evil.example', 'localhost\xa0', 'localhost/', 'localhost#', '',
];

/** A host to listen on, and other names that are allowed: each server then accepts the first list, not the second. */
export const NAME = '0x7f.1';
export const NAMES: readonly string[] = ['box.lan', '.example.org', '.test'];
export const NAMED_HOSTS: readonly string[] = [
  '0x7F.1', '0X7f.1:80', 'box.lan', 'BOX.lan:8391', 'box.lan:', 'example.org:1', 'a.example.org',
  'a.B.Example.ORG', 'test', 'x.test', 'localhost', '127.0.0.1', '[::1]',
];
export const UNNAMED_HOSTS: readonly string[] = [
  '0x7f.2', 'x.0x7f.1', '127.1', 'box.lan.', 'a.box.lan', 'box.la', 'ox.lan', 'lan', '.lan', 'boxxlan', 'xbox.lan',
  'xexample.org', 'example.org.', 'example.org.evil', 'org', 'xtest', 'test.evil', 'box.lan@evil', 'box.lan:x',
  'box.lan:80:80', 'box.lan,box.lan', '', '0.0.0.0', '[::]', 'x.localhost', 'localhost.',
];

// ───── Raw HTTP ──────────────────────────────────────────────────────────────────────────────────────────────────

export const GET = 'GET /api/status';
export const POST = 'POST /api/pause';
export const HOST = 'Host: localhost';
export const CHUNKED = 'Transfer-Encoding: chunked';
export const UPGRADE: readonly string[] = [
  'Connection: Upgrade, HTTP2-Settings', 'Upgrade: h2c', 'HTTP2-Settings: AAMAAABk',
];
export const WEBSOCKET: readonly string[] = [
  'Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Version: 13', 'Sec-WebSocket-Key: dGhlIHNhbXBsZQ==',
];

export interface HttpResponse {
  statusCode: number;
  headers: IncomingHttpHeaders;
  body: string;
}

/** The head of a request; the version is HTTP/1.1 unless the request line has one. */
export function head(requestLine: string, ...fields: string[]): string {
  const version = / HTTP\/\d\.\d$/.test(requestLine) ? '' : ' HTTP/1.1';
  return `${[requestLine + version, ...fields].join('\r\n')}\r\n\r\n`;
}

/** A request with a body, which the server ignores. */
export function withBody(requestLine: string, ...fields: string[]): string {
  return `${head(requestLine, ...fields, 'Content-Length: 2')}{}`;
}

/** Sends one request on a new connection. The Host is localhost unless given. */
export async function send(where: Where, requestLine: string, ...fields: string[]): Promise<HttpResponse> {
  const hasHost = fields.some((field) => /^host:/i.test(field));
  const [response, ...others] = await sendAll(where, [head(requestLine, ...(hasHost ? [] : [HOST]), ...fields)]);
  assert.deepEqual(others, []);
  return response as HttpResponse;
}

/** Pipelines requests on a new connection. */
export async function sendAll(where: Where, requests: readonly string[]): Promise<HttpResponse[]> {
  return parseResponses(await exchange(where, [requests.join('')], requests.length));
}

/** Posts commands, pipelined, thirty per connection. Returns the status codes. */
export async function postAll(where: Where, commands: readonly ControlCommand[]): Promise<number[]> {
  const codes: number[] = [];
  for (let first = 0; first < commands.length; first += 30) {
    const some = commands.slice(first, first + 30);
    const responses = await sendAll(where, some.map((command) => head(`POST /api/${command}`, HOST)));
    assert.equal(responses.length, some.length);
    codes.push(...responses.map(({ statusCode }) => statusCode));
  }
  return codes;
}

/**
 * Sends pieces on a new connection, one per write, and half-closes it after so many responses. Returns all that the
 * server sends until it closes the connection.
 */
export async function exchange(where: Where, pieces: readonly string[], responses: number): Promise<string> {
  const socket = connectTo(where).setNoDelay().setEncoding('latin1');
  let text = '';
  socket.on('data', (chunk: string) => {
    text += chunk;
    if (text.split(/HTTP\/1\.1 \d\d\d /).length > responses) socket.end();
  });
  socket.on('error', () => {}); // the server may reset a connection that it has refused
  const closed = closing(socket);
  const limit = setTimeout(() => socket.destroy(), 20_000);
  for (const [index, piece] of pieces.entries()) {
    if (index > 0) await nextTurn();
    socket.write(piece, 'latin1');
  }
  if (responses === 0) socket.end();
  await closed;
  clearTimeout(limit);
  return text;
}

export function connectTo(where: Where): Socket {
  return connect(typeof where === 'string' ? { path: where } : { port: where, host: '127.0.0.1' });
}

/** Opens a connection that is closed at the end of the test. */
export async function open(t: TestContext, where: Where): Promise<Socket> {
  const socket = connectTo(where);
  t.after(() => socket.destroy());
  await once(socket, 'connect');
  socket.on('error', () => {}); // its reader sees it anyway
  return socket;
}

/** All that arrives until the connection ends or is reset. */
export async function readToEnd(socket: Socket): Promise<string> {
  let text = '';
  try {
    for await (const chunk of socket.setEncoding('latin1')) text += chunk;
  } catch {
    // reset
  }
  return text;
}

/** Unlike `once(socket, 'close')`, resolves after a reset, too. */
export function closing(socket: Socket): Promise<void> {
  return new Promise((resolve) => socket.once('close', () => resolve()));
}

const KNOWN_FIELDS = [
  'access-control-allow-headers', 'access-control-allow-methods', 'access-control-allow-origin',
  'access-control-expose-headers', 'age', 'allow', 'cache-control', 'connection', 'content-length', 'content-type',
  'cross-origin-resource-policy', 'date', 'etag', 'keep-alive', 'preference-applied', 'vary', 'www-authenticate',
  'x-content-type-options',
];

/** Of a status, or of /api/info. */
const TAG = /^"(active|pausing|paused|resuming|shutting-down|[a-z\d]{3}-\d+)"$/;

/** The names in a body, in order. */
const FORMS: readonly [statusCode: number, names: RegExp][] = [
  [200, /^(status|result)$/],
  [200, /^result id state( value)? seconds$/],
  [200, /^name pid host startedAt version status since( by)?( reason)? heardAt detail commands$/],
  [202, /^result id state$/],
];

/** Parses responses, and checks everything that every response must have. */
export function parseResponses(text: string): HttpResponse[] {
  const responses: HttpResponse[] = [];
  for (let rest = text; rest !== '';) {
    const form = /^HTTP\/1\.1 (\d+) (.+)\r\n((?:.+\r\n)*)\r\n/;
    const [all = '', statusCode = '', reason, lines = ''] = form.exec(rest) ?? [];
    assert.equal(reason, STATUS_CODES[statusCode], `the head of ${JSON.stringify(rest)}`);
    const headers: IncomingHttpHeaders = {};
    for (const line of lines.split('\r\n').slice(0, -1)) {
      const [, field = '', value] = /^([\w-]+): (.+)$/.exec(line) ?? [];
      const name = field.toLowerCase();
      assert.ok(KNOWN_FIELDS.includes(name) && !(name in headers), `known, and sent once: ${line}`);
      headers[name] = value;
    }
    rest = rest.slice(all.length);
    const length = rest.startsWith('{') ? Number(headers['content-length']) : 0; // HEAD: no body
    const body = Buffer.from(rest.slice(0, length), 'latin1').toString(); // the text has one character per byte
    const response = { statusCode: Number(statusCode), headers, body };
    rest = rest.slice(length);
    checkForm(response);
    responses.push(response);
  }
  return responses;
}

function checkForm({ statusCode, headers, body }: HttpResponse): void {
  if (statusCode === 100) return assert.deepEqual([headers, body], [{}, '']);
  assert.equal(headers['cache-control'], 'no-store');
  assert.equal(headers['cross-origin-resource-policy'], 'same-origin');
  assert.equal(headers['x-content-type-options'], 'nosniff');
  assert.match(String(headers.date), /^\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT$/);
  const isLast = [408, 413, 431, 501, 505].includes(statusCode) || body.includes('Bad Request');
  if (isLast) assert.equal(headers.connection, 'close');
  assert.equal(headers['www-authenticate'], statusCode === 401 ? 'Bearer' : undefined);
  assert.equal(headers.allow !== undefined, statusCode === 405);
  assert.equal(headers['access-control-allow-methods'] !== undefined, statusCode === 204);
  assert.notEqual(headers['access-control-allow-origin'], '*');
  const isExposed = headers['access-control-expose-headers'] !== undefined;
  assert.ok(!isExposed || headers['access-control-allow-origin'] !== undefined, 'exposed to an allowed origin only');
  if (headers.etag !== undefined) assert.match(headers.etag, TAG);
  const applied = headers['preference-applied'];
  if (applied !== undefined) assert.match(String(applied), /^wait=([1-9]\d?|[12]\d\d|300)$/);
  assert.ok(applied === undefined || [200, 202, 304, 500, 503].includes(statusCode), `${statusCode} ${applied}`);
  if (statusCode === 304) assert.ok(headers.etag !== undefined);
  if (statusCode === 204 || statusCode === 304) {
    return assert.deepEqual([headers['content-type'], headers['content-length'], body], [undefined, undefined, '']);
  }
  assert.equal(headers['content-type'], 'application/json');
  if (body === '') return assert.match(String(headers['content-length']), /^[1-9]\d*$/); // HEAD
  assert.equal(headers['content-length'], String(Buffer.byteLength(body)));
  const value: Record<string, unknown> = JSON.parse(body);
  const names = Object.keys(value).join(' ');
  const isKnown = FORMS.some(([code, form]) => code === statusCode && form.test(names));
  assert.ok(isKnown || (statusCode >= 400 && names === 'error'), `${statusCode} ${body}`);
  assert.equal(headers.etag !== undefined, statusCode === 200 && 'status' in value, body);
  if ('pid' in value) return; // the tests of /api/info check more
  assert.ok(Object.entries(value).every(([name, text]) => isOfType(name, text)), body);
  if ('state' in value) {
    assert.match(String(value['id']), ID);
    assert.ok(applied !== undefined && (statusCode === 200) === (value['state'] === 'done'), body);
  }
}

function isOfType(name: string, value: unknown): boolean {
  if (name === 'seconds') return Number(value) >= 0;
  return typeof value === 'string' ? value !== '' : name === 'value' && typeof value === 'number';
}

/** In short: the status, result or state; or the status code, with the option that its error names. */
export function outcomeOf({ statusCode, body }: HttpResponse): string {
  if (body === '') return String(statusCode);
  const { status, result, state, error } = JSON.parse(body);
  if (statusCode === 200) return state ?? status ?? result;
  return [statusCode, ...(state === undefined ? [] : [state]), ...(/\ballowed[A-Z]\w+/.exec(error) ?? [])].join(' ');
}

/** In short: the outcome, and the wait that was granted. */
export function shortOf(response: HttpResponse): string {
  return [outcomeOf(response), response.headers['preference-applied'] ?? []].flat().join(' ');
}

// ───── Requests that wait ────────────────────────────────────────────────────────────────────────────────────────

/** The id of a command. */
export const ID: RegExp = /^[a-z\d]{3}-[1-9]\d*$/;

export const INFO = 'GET /api/info';

/** A time that no test lasts. */
export const WAIT = 'Prefer: wait=60';

/** A connection with requests that may wait. */
export interface Waiting {
  socket: Socket;
  /** What has arrived. */
  text(): string;
  /** Resolves with the first response; rejects if the connection is closed before. */
  response: Promise<HttpResponse>;
  /** Resolves with all responses when the connection is closed. */
  responses: Promise<HttpResponse[]>;
}

/** Sends requests on a new connection. */
export async function ask(t: TestContext, where: Where, requests: string): Promise<Waiting> {
  const socket = await open(t, where);
  let text = '';
  const closed = closing(socket);
  const response = new Promise<HttpResponse>((resolve, reject) => {
    socket.setEncoding('latin1').on('data', (chunk: string) => {
      text += chunk;
      const headEnd = text.indexOf('\r\n\r\n') + 4;
      const [, length = 0] = /^Content-Length: (\d+)/im.exec(text.slice(0, headEnd)) ?? [];
      const end = headEnd + (requests.startsWith('HEAD ') ? 0 : Number(length));
      if (headEnd > 3 && text.length >= end) resolve(parseResponses(text.slice(0, end))[0] as HttpResponse);
    });
    void closed.then(() => reject(new Error('the connection was closed')));
  });
  response.catch(() => {}); // not every test needs it
  socket.write(requests, 'latin1');
  return { socket, text: () => text, response, responses: closed.then(() => parseResponses(text)) };
}

/** Sends requests, each on a new connection, and checks that they get no response while others do. */
export async function waitAll(t: TestContext, where: Where, requests: readonly string[]): Promise<Waiting[]> {
  const all: Waiting[] = [];
  for (const request of requests) all.push(await ask(t, where, request));
  await serveOthers(where);
  for (const [index, { text }] of all.entries()) assert.equal(text(), '', `waits: ${requests[index]}`);
  return all;
}

/** Sends a request on a new connection, and checks that it gets no response while others do. */
export async function wait(t: TestContext, where: Where, request: string): Promise<Waiting> {
  const [waiting] = await waitAll(t, where, [request]);
  return waiting as Waiting;
}

/** Resolves when a client that came later is served: its requests take the longest way. */
export async function serveOthers(where: Where): Promise<void> {
  for (let round = 0; round < 3; round += 1) await send(where, GET);
}

// ───── Servers that misbehave ────────────────────────────────────────────────────────────────────────────────────

/** Starts a TCP server that calls `respond` with the first bytes of each connection. Returns it with its port. */
export async function startImpostor(
  t: TestContext,
  respond: (socket: Socket, request: string) => void,
  path?: string,
): Promise<{ impostor: Server; port: number }> {
  const impostor = createServer((socket) => {
    t.after(() => socket.destroy());
    socket.on('error', () => {}); // the client may be gone
    socket.once('data', (chunk) => respond(socket, String(chunk)));
  });
  t.after(() => impostor.close());
  if (path === undefined) impostor.listen(0, '127.0.0.1');
  else impostor.listen(path);
  await once(impostor, 'listening');
  return { impostor, port: (impostor.address() as AddressInfo).port };
}

/** Collects the threads that start during the test, the server's among them. */
export function collectWorkers(t: TestContext): Worker[] {
  const workers: Worker[] = [];
  const onWorker = (worker: Worker): void => void workers.push(worker);
  process.on('worker', onWorker);
  t.after(() => process.off('worker', onWorker));
  return workers;
}

// ───── Files of sockets ──────────────────────────────────────────────────────────────────────────────────────────

export const ROOT_ONLY: { skip: string | false } = {
  skip: process.getuid?.() !== 0 && 'needs root, to make a file of another user',
};

/** Leaves a socket behind as a killed server does; node removes the name at which it has listened. */
export async function leaveSocket(path: string): Promise<void> {
  const server = createServer().listen(`${path}-`);
  await once(server, 'listening');
  renameSync(`${path}-`, path);
  server.close();
  await once(server, 'close');
}

/** Statements that make a host nobody, who owns the folder: to root every file is open. */
export function becomeNobody(folder: string): string {
  if (process.getuid?.() !== 0) return '';
  chownSync(folder, 65534, 65534);
  return 'process.setgroups([]); process.setgid(65534); process.setuid(65534);';
}

/** For each entry: name, inode, mode, time of its last change and contents. */
export function contentsOf(folder: string): unknown[][] {
  return readdirSync(folder).sort().map((name) => {
    const path = join(folder, name);
    const entry = lstatSync(path);
    const target = entry.isSymbolicLink() ? readlinkSync(path) : null;
    return [name, entry.ino, entry.mode, entry.mtimeMs, target ?? (entry.isFile() && readFileSync(path, 'utf8'))];
  });
}

// ───── Hosts in processes of their own ───────────────────────────────────────────────────────────────────────────

/** A host that must block its thread, end, or be killed. */
export interface Host {
  readonly process: ChildProcess;
  /** Sends a line to a host that has MORTAL. */
  tell(line: string): void;
  /** Resolves with the next value that the host says. */
  hear<Value>(): Promise<Value>;
  /** Resolves with all further values when the host ends. */
  hearAll(): Promise<unknown[]>;
  /** Checks all further values, and that the host ends by itself with exit code 0 and an empty stderr. */
  checkEnd(...said: unknown[]): Promise<void>;
  ended: Promise<{ code: number | null; stderr: string }>;
}

const PRELUDE = `
  import { readSync, writeSync } from 'node:fs';
  import { EmptyError, SystemStatus, WebApiClient, WebApiServer, launch } from './dist/control.js';
  const { ACTIVE, PAUSED, SHUTTING_DOWN } = SystemStatus;
  const say = (value) => { writeSync(1, JSON.stringify(value) + '\\n'); };
  const block = (milliseconds) => { Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, milliseconds); };
  const port = Number(process.argv[1]);
`;

/** Runs a program with the built control.js until it ends, or until the end of the test. */
export function runHost(t: TestContext, source: string, port: number = 0, nodeOptions: readonly string[] = []): Host {
  return spawnHost(t, [...nodeOptions, ...evaluate(source), String(port)]);
}

/** Runs such a program in a PID namespace of its own, as in a container. */
export function runHostInNamespace(t: TestContext, source: string): Host {
  return spawnHost(t, [...UNSHARE.slice(1), process.execPath, ...evaluate(source)], UNSHARE[0]);
}

/** Why tests in a PID namespace are skipped; false if this user can make one. */
export function lacksNamespaces(): string | false {
  const [command = '', ...args] = [...UNSHARE, 'true'];
  return spawnSync(command, args).status !== 0 && 'needs unshare of util-linux, and the right to make a PID namespace';
}

const UNSHARE = [
  'unshare', ...(process.getuid?.() === 0 ? [] : ['--map-root-user']), '--pid', '--fork', '--kill-child',
];

function evaluate(source: string): string[] {
  return ['--input-type=module', '--eval', PRELUDE + source];
}

/** Runs a command, node unless told otherwise, with these arguments; each line of stdout is a JSON value. */
export function spawnHost(t: TestContext, args: readonly string[], command: string = process.execPath): Host {
  const { child, ended } = start(t, command, args);
  const lines = createInterface(child.stdout as Readable)[Symbol.asyncIterator]();
  const host: Host = {
    process: child,
    ended,
    tell: (line) => void child.stdin?.write(`${line}\n`),
    async hear() {
      const { value, done } = await lines.next();
      if (done === true) throw new Error(`The host has ended: ${(await ended).stderr}`);
      return JSON.parse(value);
    },
    async hearAll() {
      const values: unknown[] = [];
      for await (const line of lines) values.push(JSON.parse(line));
      return values;
    },
    async checkEnd(...said) {
      const heard = await host.hearAll();
      const { code, stderr } = await ended;
      const end = { heard, code, signal: child.signalCode, stderr };
      assert.deepEqual(end, { heard: said, code: 0, signal: null, stderr: '' });
    },
  };
  return host;
}

/**
 * For hosts whose server thread is killed: gets hold of the threads and of the pauses between them, and obeys orders,
 * which are lines on stdin.
 */
export const MORTAL = `
  import workerThreads from 'node:worker_threads';
  import { syncBuiltinESMExports } from 'node:module';
  import { createInterface } from 'node:readline';

  process.removeAllListeners('warning'); // node's printer: each thread that dies causes a warning

  const threads = [];
  let epilogue = ';new BroadcastChannel("death").onmessage = ({ data }) => (0, eval)(data);';
  workerThreads.Worker = class extends workerThreads.Worker {
    constructor(source, options) {
      super(source + epilogue, options);
      threads.push(this);
    }
  };
  syncBuiltinESMExports();

  // With null, terminates the latest thread; otherwise runs the statements in it.
  const kill = (death) => {
    if (death === null) return void threads.at(-1).terminate();
    const channel = new BroadcastChannel('death');
    channel.postMessage(death);
    channel.close();
  };

  const realSetTimeout = setTimeout;
  const pauses = []; // before each restart
  let now = 0;
  let isHeld = false;
  let onPause = () => say('gone');
  let release = () => {};
  globalThis.setTimeout = (step, pauseMs) => {
    if (pauseMs === 1000) return realSetTimeout(step, pauseMs); // not a pause: close() waits
    pauses.push(pauseMs);
    now += pauseMs;
    const timer = realSetTimeout(step, isHeld ? 2 ** 30 : pauseMs);
    release = () => {
      clearTimeout(timer);
      step();
    };
    onPause();
    return timer;
  };

  // Stops the clock, which only pauses move on, and holds each restart until release().
  const hold = () => {
    isHeld = true;
    performance.now = () => now;
  };

  // Keeps the process alive until the thread is gone.
  const gone = () => new Promise((resolve) => {
    const alive = setInterval(() => {}, 1000);
    onPause = () => {
      say('gone');
      clearInterval(alive);
      resolve();
    };
  });

  const orders = { release: () => release() };
  createInterface(process.stdin).on('line', (line) => orders[line]());
  process.stdin.unref();
`;

// ───── Commands, statuses, waits ─────────────────────────────────────────────────────────────────────────────────

export function takeAll(server: WebApiServer): ControlCommand[] {
  const taken: ControlCommand[] = [];
  while (server.hasCommands()) taken.push(server.receiveCommand());
  return taken;
}

/**
 * A status that is surely up to date, or null: a host that has not had the CPU for 10 ms is reported with its previous
 * status.
 */
export async function getFreshStatus(client: WebApiClient): Promise<SystemStatus | null> {
  const began = performance.now();
  const status = await client.getStatus();
  return performance.now() - began < 10 ? status : null;
}

/** Resolves with the promise's value, or with undefined after so many milliseconds. */
export function within<Value>(milliseconds: number, promise: Promise<Value>): Promise<Value | undefined> {
  return Promise.race([promise, sleep(milliseconds, undefined, { ref: false })]);
}

/** Blocks this thread: no timer fires and no message arrives. */
export function blockThread(milliseconds: number): void {
  if (milliseconds > 0) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, milliseconds);
}

/** Collects the test's warnings from here on; node does not print them. */
export function collectWarnings(t: TestContext): string[] {
  const warnings: string[] = [];
  t.mock.method(process, 'emitWarning', (warning: string | Error) => warnings.push(String(warning)));
  return warnings;
}

/** The same numbers from 0 to 1 in each run: mulberry32. */
export function randomNumbers(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export function randomCommand(random: () => number, among: readonly ControlCommand[] = COMMANDS): ControlCommand {
  return among[Math.floor(random() * among.length)] as ControlCommand;
}
