// Shared by the tests of the module: raw HTTP with every response checked, files of sockets, random data.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { chownSync, lstatSync, readFileSync, readdirSync, readlinkSync, renameSync } from 'node:fs';
import { STATUS_CODES } from 'node:http';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { connectTo, head } from '../http.ts';
import type { ControlCommand } from '../../../control.ts';
import type { Where } from '../http.ts';
import type { IncomingHttpHeaders } from 'node:http';
import type { AddressInfo, Server, Socket } from 'node:net';
import type { TestContext } from 'node:test';

export { LIMIT, collectThreads, collectWarnings, takeAll } from '../helpers.ts';
export { runHost, runHostInNamespace, spawnHost } from '../host.ts';
export { connectTo, head };
export type { Host } from '../host.ts';

export const COMMANDS: readonly ControlCommand[] = ['pause', 'resume', 'shutdown', 'save-state'];

/** The origin of a web page. */
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

/** A request with a body, which the server ignores. */
export function withBody(requestLine: string, ...fields: string[]): string {
  return `${head(requestLine, ...fields, 'Content-Length: 2')}{}`;
}

/** Sends one request on a new connection. The Host is localhost unless given. */
export async function send(where: Where, requestLine: string, ...fields: string[]): Promise<HttpResponse> {
  const hasHost = fields.some((field) => /^host:/i.test(field));
  const request = head(requestLine, ...(hasHost ? [] : [HOST]), ...fields);
  const [response, ...others] = parseResponses(await exchange(where, [request], 1));
  assert.ok(response !== undefined && others.length === 0, `${others.length} further responses`);
  return response;
}

/** Sends each request after the response to the one before, on one connection as long as the server keeps it. */
export async function sendInTurn(where: Where, requests: readonly string[]): Promise<HttpResponse[]> {
  const responses: HttpResponse[] = [];
  let connection: Connection | null = null;
  try {
    for (const request of requests) {
      connection ??= new Connection(where);
      const response = await connection.request(request);
      responses.push(response);
      if (response.headers.connection !== 'close') continue;
      connection.socket.destroy();
      connection = null;
    }
  } finally {
    connection?.socket.destroy();
  }
  return responses;
}

/** Posts commands, one after the other. Returns the status codes. */
export async function postAll(where: Where, commands: readonly ControlCommand[]): Promise<number[]> {
  const responses = await sendInTurn(where, commands.map((command) => head(`POST /api/${command}`, HOST)));
  return responses.map(({ statusCode }) => statusCode);
}

/** A connection with one request at a time. */
export class Connection {
  readonly socket: Socket;
  /** Resolves when the connection is closed, even by a reset. */
  readonly closed: Promise<void>;
  /** All that has arrived. */
  text = '';
  #end = 0; // of the latest response
  #onNews: () => void = () => {};

  constructor(where: Where) {
    this.socket = connectTo(where).setNoDelay().setEncoding('latin1');
    this.socket.on('error', () => {}); // the server may reset it
    this.socket.on('data', (chunk: string) => {
      this.text += chunk;
      this.#onNews();
    });
    this.closed = closing(this.socket);
    void this.closed.then(() => this.#onNews());
  }

  /** Sends a request. Resolves with its response; rejects if the connection is closed before. */
  async request(bytes: string): Promise<HttpResponse> {
    this.socket.write(bytes, 'latin1');
    for (;;) {
      const text = this.text.slice(this.#end);
      const headEnd = text.indexOf('\r\n\r\n') + 4;
      const [, length = 0] = /^Content-Length: (\d+)/im.exec(text.slice(0, headEnd)) ?? [];
      const end = headEnd + (bytes.startsWith('HEAD ') ? 0 : Number(length));
      if (headEnd > 3 && text.length >= end) {
        this.#end += end;
        return parseResponses(text.slice(0, end))[0] as HttpResponse;
      }
      if (this.socket.closed) throw new Error(`the connection was closed after ${JSON.stringify(text)}`);
      await new Promise<void>((resolve) => (this.#onNews = resolve));
    }
  }
}

/**
 * Sends pieces on a new connection, one per write, and half-closes it after a number of responses. Returns everything
 * that the server sends until it closes the connection.
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
  const limit = setTimeout(() => socket.destroy(), 60_000);
  for (const [index, piece] of pieces.entries()) {
    if (index > 0) await nextTurn();
    socket.write(piece, 'latin1');
  }
  if (responses === 0) socket.end();
  await closed;
  clearTimeout(limit);
  return text;
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

const KNOWN_FIELDS = [ // none of which lets a web page read the response
  'age', 'allow', 'cache-control', 'connection', 'content-length', 'content-type', 'cross-origin-resource-policy',
  'date', 'etag', 'keep-alive', 'preference-applied', 'www-authenticate', 'x-content-type-options',
];

/** Of a status, or of /api/info. */
const TAG = /^"(active|pausing|paused|resuming|shutting-down|[a-z\d]{3}-\d+)"$/;

/** The names in a body, in order. */
const FORMS: readonly [statusCode: number, names: RegExp][] = [
  [200, /^(status|result)$/],
  [200, /^result id state( value| valueOmitted)? seconds$/],
  [200, /^name pid host startedAt version status since( by)?( reason)? heardAt detail accepts commands$/],
  [202, /^result id state$/],
  [400, /^error( parameter)?$/],
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
  const isLast = [408, 431, 501, 505].includes(statusCode) || /Bad Request|Content Too Large/.test(body);
  if (isLast) assert.equal(headers.connection, 'close');
  assert.equal(headers['www-authenticate'], statusCode === 401 ? 'Bearer' : undefined);
  assert.equal(headers.allow !== undefined, statusCode === 405);
  if (headers.etag !== undefined) assert.match(headers.etag, TAG);
  const applied = headers['preference-applied'];
  if (applied !== undefined) assert.match(String(applied), /^wait=([1-9]\d?|[12]\d\d|300)$/);
  assert.ok(applied === undefined || [200, 202, 304, 500, 503].includes(statusCode), `${statusCode} ${applied}`);
  if (statusCode === 304) {
    assert.ok(headers.etag !== undefined);
    return assert.deepEqual([headers['content-type'], headers['content-length'], body], [undefined, undefined, '']);
  }
  assert.equal(headers['content-type'], 'application/json');
  if (body === '') return assert.match(String(headers['content-length']), /^[1-9]\d*$/); // HEAD
  assert.equal(headers['content-length'], String(Buffer.byteLength(body)));
  const value: Record<string, unknown> = JSON.parse(body);
  const names = Object.keys(value).join(' ');
  const isKnown = FORMS.some(([code, form]) => code === statusCode && form.test(names));
  const isError = statusCode >= 400 && (names === 'error' || (statusCode === 400 && names === 'error parameter'));
  assert.ok(isKnown || isError, `${statusCode} ${body}`);
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

/** In short: the status, result or state; or the status code, with the option or tool that its error names. */
export function outcomeOf({ statusCode, body }: HttpResponse): string {
  if (body === '') return String(statusCode);
  const { status, result, state, error } = JSON.parse(body);
  if (statusCode === 200) return state ?? status ?? result;
  const [named] = /\ballowed[A-Z]\w+|\bcontrol-board\b/.exec(error) ?? [];
  return [statusCode, state, named].filter((part) => part !== undefined).join(' ');
}

/** In short: the outcome, and the wait that was granted. */
export function shortOf(response: HttpResponse): string {
  return [outcomeOf(response), response.headers['preference-applied'] ?? []].flat().join(' ');
}

// ───── Requests that wait ────────────────────────────────────────────────────────────────────────────────────────

/** The id of a command. */
const ID = /^[a-z\d]{3}-[1-9]\d*$/;

export const INFO = 'GET /api/info';

/** A time that no test lasts. */
export const WAIT = 'Prefer: wait=60';

/** A request that waits. */
export interface Waiting {
  connection: Connection;
  /** Rejects if the connection is closed before the response is complete. */
  response: Promise<HttpResponse>;
}

/** Sends requests, each on a new connection, and checks that they get no response while others do. */
export async function waitAll(t: TestContext, where: Where, requests: readonly string[]): Promise<Waiting[]> {
  const all = requests.map((request): Waiting => {
    const connection = new Connection(where);
    t.after(() => connection.socket.destroy());
    const response = connection.request(request);
    response.catch(() => {}); // not every test needs it
    return { connection, response };
  });
  await Promise.all(all.map(({ connection: { socket } }) => socket.connecting && once(socket, 'connect')));
  await serveOthers(where);
  for (const [index, { connection }] of all.entries()) assert.equal(connection.text, '', `waits: ${requests[index]}`);
  return all;
}

/** Sends a request on a new connection, and checks that it gets no response while others do. */
export async function wait(t: TestContext, where: Where, request: string): Promise<Waiting> {
  const [waiting] = await waitAll(t, where, [request]);
  return waiting as Waiting;
}

/** Resolves when a later client is served: its requests take the longest way. */
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

// ───── Files of sockets ──────────────────────────────────────────────────────────────────────────────────────────

/** Leaves a socket behind as a killed server does: node would remove a socket on which it has listened. */
export async function leaveSocket(path: string): Promise<void> {
  const server = createServer().listen(`${path}-`);
  await once(server, 'listening');
  renameSync(`${path}-`, path);
  server.close();
  await once(server, 'close');
}

/** Statements that make a host the user nobody, who owns the folder: root can open every file. */
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

/** For hosts whose threads die: the latest is the server's. */
export const MORTAL = `
  process.removeAllListeners('warning'); // node's printer: each thread that dies causes a warning
  const threads = [];
  process.on('worker', (thread) => threads.push(thread));
  const kill = () => threads.at(-1).terminate();
  const another = async () => { // the next thread
    const { length } = threads;
    while (threads.length === length) await sleep(1);
  };
`;

// ───── Random data ───────────────────────────────────────────────────────────────────────────────────────────────

/** Of the tests that are random, which print it. TEST_SEED sets it, but not how threads interleave. */
export const SEED: number = Number(process.env['TEST_SEED'] ?? Date.now() % 2 ** 31);

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

export function oneOf<Value>(random: () => number, values: readonly Value[]): Value {
  return values[Math.floor(random() * values.length)] as Value;
}
