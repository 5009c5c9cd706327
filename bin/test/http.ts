// HTTP written by hand, for requests that no library sends; of every response, all that each must have is checked.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { STATUS_CODES } from 'node:http';
import { connect } from 'node:net';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { TOKEN } from './helpers.ts';
import { inTime, limited } from './wait.ts';
import type { ControlCommand } from '../../control.ts';
import type { IncomingHttpHeaders } from 'node:http';
import type { Socket } from 'node:net';
import type { TestContext } from 'node:test';

export const COMMANDS: readonly ControlCommand[] = ['pause', 'resume', 'shutdown', 'save-state'];

export const STATUS = 'GET /api/status';
export const INFO = 'GET /api/info';
export const PAUSE = 'POST /api/pause';
export const RESUME = 'POST /api/resume';
export const SAVE = 'POST /api/save-state';
export const SHUTDOWN = 'POST /api/shutdown';
export const HOST = 'Host: localhost';
export const BEARER: string = `Authorization: Bearer ${TOKEN}`;
export const WAIT = 'Prefer: wait=60'; // longer than any test
export const CHUNKED = 'Transfer-Encoding: chunked';
export const UPGRADE: readonly string[] = [
  'Connection: Upgrade, HTTP2-Settings', 'Upgrade: h2c', 'HTTP2-Settings: AAMAAABk',
];

/** The origin of a web page. */
export const PAGE = 'http://localhost:3000';

/** A port of 127.0.0.1, or the path of a Unix socket. */
export type Where = number | string;

export interface HttpResponse {
  statusCode: number;
  headers: IncomingHttpHeaders;
  text: string; // the body
  body: any; // the body as JSON, or undefined
  summary: string; // the status code, and the error, status, state or result: '200 active'
}

// ───── Requests ──────────────────────────────────────────────────────────────────────────────────────────────────

/** The head of a request: HTTP/1.1, unless the line has a version. */
export function head(line: string, ...fields: string[]): string {
  const version = / HTTP\/\d\.\d$/.test(line) ? '' : ' HTTP/1.1';
  return `${[line + version, ...fields].join('\r\n')}\r\n\r\n`;
}

/** A request with a body, which the server ignores. */
export function withBody(line: string, ...fields: string[]): string {
  return `${head(line, ...fields, 'Content-Length: 2')}{}`;
}

/** Sends one request on a connection of its own. Its Host is localhost, unless the fields have another. */
export async function ask(where: Where, line: string, ...fields: string[]): Promise<HttpResponse> {
  const host = fields.some((field) => /^host:/i.test(field)) ? [] : [HOST];
  const socket = connectTo(where);
  socket.write(head(line, ...host, ...fields, 'Connection: close'), 'latin1');
  const [response, ...others] = parse(await inTime(readToEnd(socket), () => `${line} is not answered to its end`));
  if (response === undefined) throw new Error(`no response to ${line}`);
  assert.deepEqual(others, []);
  return response;
}

/**
 * Sends pieces, each in a write of its own, and ends its side of the connection after a number of responses. Returns
 * all that arrive until the server closes the connection.
 */
export async function exchange(where: Where, pieces: string | readonly string[], count = 0): Promise<HttpResponse[]> {
  const socket = connectTo(where).setNoDelay();
  let text = '';
  socket.on('data', (chunk) => {
    text += chunk;
    if (text.split(/HTTP\/1\.1 \d\d\d /).length > count) socket.end();
  });
  const received = readToEnd(socket);
  for (const [index, piece] of [pieces].flat().entries()) {
    if (index > 0) await nextTurn();
    socket.write(piece, 'latin1');
  }
  if (count === 0) socket.end();
  return parse(await inTime(received, () => `the connection stays open after ${JSON.stringify(text.slice(0, 200))}`));
}

// ───── Connections ───────────────────────────────────────────────────────────────────────────────────────────────

/** Whoever uses the socket sees an error as its end. */
export function connectTo(where: Where): Socket {
  const socket = connect(typeof where === 'string' ? { path: where } : { port: where, host: '127.0.0.1' });
  return socket.on('error', () => {});
}

/** Opens a connection that is closed at the end of the test. */
export async function open(t: TestContext, where: Where): Promise<Socket> {
  const socket = connectTo(where);
  t.after(() => socket.destroy());
  await once(socket, 'connect');
  return socket;
}

/** Resolves when the connection is closed, even by a reset. */
export function closing(socket: Socket): Promise<void> {
  return new Promise((resolve) => socket.once('close', () => resolve()));
}

/** All that arrives until the connection is closed, even by a reset. */
export async function readToEnd(socket: Socket): Promise<string> {
  let bytes = '';
  socket.setEncoding('latin1').on('data', (chunk: string) => (bytes += chunk));
  if (!socket.closed) await closing(socket);
  return bytes;
}

/** A connection with one request at a time. */
export class Connection {
  readonly socket: Socket;
  readonly closed: Promise<void>;
  /** All that has arrived. */
  text = '';
  #end = 0; // of the latest response
  #onNews: () => void = () => {};

  constructor(where: Where) {
    this.socket = connectTo(where).setNoDelay().setEncoding('latin1');
    this.socket.on('data', (chunk: string) => {
      this.text += chunk;
      this.#onNews();
    });
    this.closed = closing(this.socket);
    void this.closed.then(() => this.#onNews());
  }

  /** Sends a request. Resolves with its response; rejects if the connection is closed before. */
  request(bytes: string): Promise<HttpResponse> {
    return limited(this.#request(bytes), () => `no response to ${JSON.stringify(bytes.slice(0, 200))}`);
  }

  async #request(bytes: string): Promise<HttpResponse> {
    this.socket.write(bytes, 'latin1');
    for (;;) {
      const text = this.text.slice(this.#end);
      const headEnd = text.indexOf('\r\n\r\n') + 4;
      const [, length = 0] = /^Content-Length: (\d+)/im.exec(text.slice(0, headEnd)) ?? [];
      const end = headEnd + (bytes.startsWith('HEAD ') ? 0 : Number(length));
      if (headEnd > 3 && text.length >= end) {
        this.#end += end;
        return parse(text.slice(0, end))[0] as HttpResponse;
      }
      if (this.socket.closed) throw new Error(`the connection was closed after ${JSON.stringify(text)}`);
      await new Promise<void>((resolve) => (this.#onNews = resolve));
    }
  }
}

/** Requests one after the other, on one connection as long as the server keeps it. */
export class Talk {
  readonly #where: Where;
  #connection: Connection | null = null;

  constructor(where: Where) {
    this.#where = where;
  }

  async send(bytes: string): Promise<HttpResponse> {
    if (this.#connection === null || this.#connection.socket.closed) this.#connection = new Connection(this.#where);
    const response = await this.#connection.request(bytes);
    if (response.headers.connection === 'close') this.#connection = null;
    return response;
  }

  ask(line: string, ...fields: string[]): Promise<HttpResponse> {
    return this.send(head(line, HOST, ...fields));
  }

  /** Sends a body, one byte for each character. */
  post(name: string, body: string, ...fields: string[]): Promise<HttpResponse> {
    return this.send(head(`POST /api/${name}`, HOST, `Content-Length: ${body.length}`, ...fields) + body);
  }

  end(): void {
    this.#connection?.socket.destroy();
  }
}

// ───── Requests that wait ────────────────────────────────────────────────────────────────────────────────────────

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

/** The same for one request. */
export async function wait(t: TestContext, where: Where, request: string): Promise<Waiting> {
  const [waiting] = await waitAll(t, where, [request]);
  return waiting as Waiting;
}

/** Checks that these requests have no response, although later ones have. */
export async function assertWaits(where: Where, ...requests: Promise<HttpResponse>[]): Promise<void> {
  await serveOthers(where);
  for (const request of requests) assert.equal(await Promise.race([request, nextTurn('waits')]), 'waits');
}

/** Resolves when a later client is served: its requests take the longest way. */
export async function serveOthers(where: Where): Promise<void> {
  for (let round = 0; round < 3; round += 1) await ask(where, STATUS);
}

// ───── Responses ─────────────────────────────────────────────────────────────────────────────────────────────────

const KNOWN_FIELDS = [ // none of which lets a web page read the response
  'age', 'allow', 'cache-control', 'connection', 'content-length', 'content-type', 'cross-origin-resource-policy',
  'date', 'etag', 'keep-alive', 'preference-applied', 'www-authenticate', 'x-content-type-options',
];

/** The id of a command; its number is 0 after 2³² others. */
const ID = /^[a-z\d]{3}-(0|[1-9]\d*)$/;

/** Of a status, or of /api/info. */
const TAG = /^"(active|pausing|paused|resuming|shutting-down|[a-z\d]{3}-\d+(-lost)?)"$/;

/** The names in a body, in order. */
const FORMS: readonly [statusCode: number, names: RegExp][] = [
  [200, /^(status|stack|result|endpoints page)$/],
  [200, /^result id state( value| valueOmitted)? seconds$/],
  [200, new RegExp('^name pid host( port)? startedAt version status since( by)?( reason)? holds heardAt detail accepts ' +
    'asks commands( log)?$')],
  [202, /^result id state$/],
  [400, /^error( parameter)?$/],
];

/** Parses responses, and checks everything that every response must have. */
export function parse(bytes: string): HttpResponse[] {
  const responses: HttpResponse[] = [];
  for (let rest = bytes; rest !== '';) {
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
    const text = Buffer.from(rest.slice(0, length), 'latin1').toString(); // one character is one byte
    const body = text === '' ? undefined : JSON.parse(text);
    const summary = `${statusCode} ${body?.error ?? body?.status ?? body?.state ?? body?.result ?? ''}`.trimEnd();
    const response = { statusCode: Number(statusCode), headers, text, body, summary };
    rest = rest.slice(length);
    checkForm(response);
    responses.push(response);
  }
  return responses;
}

function checkForm({ statusCode, headers, text, body }: HttpResponse): void {
  if (statusCode === 100) return assert.deepEqual([headers, text], [{}, '']);
  assert.equal(headers['cache-control'], 'no-store');
  assert.equal(headers['cross-origin-resource-policy'], 'same-origin');
  assert.equal(headers['x-content-type-options'], 'nosniff');
  assert.match(String(headers.date), /^\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT$/);
  const isProtocols = [408, 431, 501, 505].includes(statusCode) && !/inspector|process/.test(text);
  const isLast = isProtocols || /Bad Request|(Content|Payload) Too Large/.test(text);
  if (isLast) assert.equal(headers.connection, 'close');
  assert.equal(headers['www-authenticate'], statusCode === 401 ? 'Bearer' : undefined);
  assert.equal(headers.allow !== undefined, statusCode === 405);
  if (headers.etag !== undefined) assert.match(headers.etag, TAG);
  if (headers.age !== undefined) assert.match(headers.age, /^[1-9]\d*$/);
  const applied = headers['preference-applied'];
  if (applied !== undefined) assert.match(String(applied), /^wait=([1-9]\d?|[12]\d\d|300)$/);
  assert.ok(applied === undefined || [200, 202, 304, 500, 503].includes(statusCode), `${statusCode} ${applied}`);
  if (statusCode === 304) {
    assert.ok(headers.etag !== undefined);
    return assert.deepEqual([headers['content-type'], headers['content-length'], text], [undefined, undefined, '']);
  }
  assert.equal(headers['content-type'], 'application/json');
  if (text === '') return assert.match(String(headers['content-length']), /^[1-9]\d*$/); // HEAD
  assert.equal(headers['content-length'], String(Buffer.byteLength(text)));
  const names = Object.keys(body).join(' ');
  const isKnown = FORMS.some(([code, form]) => code === statusCode && form.test(names));
  assert.ok(isKnown || (statusCode >= 400 && names === 'error'), `${statusCode} ${text}`);
  assert.equal(headers.etag !== undefined, statusCode === 200 && 'status' in body, text);
  if ('pid' in body) return; // the tests of /api/info check more
  assert.ok(Object.entries(body).every(([name, value]) => isOfType(name, value)), text);
  if ('state' in body) {
    assert.match(body.id, ID);
    assert.ok(applied !== undefined && (statusCode === 200) === (body.state === 'done'), text);
  }
}

function isOfType(name: string, value: unknown): boolean {
  if (name === 'seconds') return Number(value) >= 0;
  if (name === 'stack' || name === 'endpoints') return (value as unknown[]).every((frame) => typeof frame === 'string');
  return name === 'value' || (typeof value === 'string' && value !== '');
}
