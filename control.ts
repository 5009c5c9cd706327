/*! control.ts 0.1.0 – MIT – a remote control for long-running programs: pause, resume, save, shut down over HTTP */
// SPDX-License-Identifier: MIT
//
// Copy this file into a program that runs for days, and it can be controlled from outside, even while it computes
// for minutes without yielding: the HTTP server has a thread of its own and talks to the program in shared memory.
//
//   import { SystemStatus, WebApiServer } from './control.ts';
//
//   let status = SystemStatus.ACTIVE;
//   const server = new WebApiServer({ systemStatus: () => status });
//   await server.runInBackground();
//   while (status !== SystemStatus.SHUTTING_DOWN) {
//     while (server.hasCommands()) obey(server.receiveCommand()); // 'pause', 'resume', 'shutdown' or 'save-state'
//     if (status === SystemStatus.ACTIVE) work();
//     else if (status === SystemStatus.PAUSED) obey(await server.nextCommand());
//   }
//   await server.close();
//
// or leave the loop, the states and the signals to launch({ step: work, saveState: save }). A program that has an HTTP
// server already can mount the routes there, without a thread: createServer(server.handler).
//
//   GET  /api/status       200 {"status":"active"}, or "pausing", "paused", "resuming", "shutting down"
//   POST /api/pause        200 {"result":"ok"}: the command is on the queue; 503 {"error":"…"}: the queue is full
//   POST /api/resume       likewise
//   POST /api/shutdown     likewise
//   POST /api/save-state   likewise
//
// The file reads in the order in which a command travels: the shared memory, the server thread, WebApiServer (the
// host's side of both), WebApiClient (the far end), launch (a host loop). It imports node's built-ins alone and does
// nothing when it is imported. Node 20.19 and newer, Deno, Bun.

import { EventEmitter, once } from 'node:events';
import { lstatSync, unlinkSync } from 'node:fs';
import { resolve as resolvePath } from 'node:path';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { debuglog, inspect } from 'node:util';
import { Worker } from 'node:worker_threads';
import type { Agent, IncomingMessage, Server, ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { MessagePort } from 'node:worker_threads';

/** The version of this file, such as `'0.1.0'`. */
export const VERSION: string = '0.1.0';

/** The host where a server listens, and a client looks for it, unless told otherwise. */
export const DEFAULT_HOST = 'localhost';

/** The port where a server listens, and a client looks for it, unless told otherwise. */
export const DEFAULT_PORT = 8391;

/** How many commands may wait for the host unless told otherwise; a command more is refused (503). */
export const DEFAULT_MAX_QUEUE_SIZE = 16;

const MAX_QUEUE_SIZE = 65_536;
const DEFAULT_MAX_CONNECTIONS = 64;
const MAX_SOCKET_PATH_LENGTH = 94; // bytes; macOS takes 103, of which the server needs 9 for a while
const GRACE_MS = 1000; // for requests under way when the server is closed
const HEAP_LIMITS = { maxOldGenerationSizeMb: 32, maxYoungGenerationSizeMb: 16 }; // of the server thread
const QUESTION_MS = 9; // for a host to tell its status; timers add up to 1 ms
const STEADY_MS = 10_000; // a thread that has listened for so long had not just been started in vain
const MAX_PAUSE_MS = 5000; // before a thread is started again
const RESTARTS_A_MINUTE = 17; // 0.1 + 0.2 + … + 3.2 + 11 · 5 s
const MAX_WARNINGS = 20; // different ones about one status provider
const MAX_BODY_LENGTH = 65_536; // characters of an answer that the client reads
const POLL_MS = 50; // from one request of waitFor() to the next
const TURN_MS = 10; // for the steps of launch(), before timers and signals get their turn
const MAX_TIMEOUT_MS = 2 ** 31 - 1; // what setTimeout() can take

// ───── Statuses and commands ─────────────────────────────────────────────────────────────────────────────────────

/** What a system is doing. */
export interface SystemStatus {
  /** The lowercase form that `GET /api/status` sends. */
  readonly statusName: 'active' | 'pausing' | 'paused' | 'resuming' | 'shutting down' | 'offline';
}

/** The statuses there are. */
export const SystemStatus: {
  /** Running normally: `'active'`. */
  readonly ACTIVE: SystemStatus;
  /** On the way from active to paused: `'pausing'`. */
  readonly PAUSING: SystemStatus;
  /** Doing nothing until it is resumed: `'paused'`. */
  readonly PAUSED: SystemStatus;
  /** On the way from paused to active: `'resuming'`. */
  readonly RESUMING: SystemStatus;
  /** On the way to its end: `'shutting down'`. */
  readonly SHUTTING_DOWN: SystemStatus;
  /** The client's word for a system that does not answer: `'offline'`. No server sends it. */
  readonly OFFLINE: SystemStatus;
} = Object.freeze({
  ACTIVE: Object.freeze({ statusName: 'active' }),
  PAUSING: Object.freeze({ statusName: 'pausing' }),
  PAUSED: Object.freeze({ statusName: 'paused' }),
  RESUMING: Object.freeze({ statusName: 'resuming' }),
  SHUTTING_DOWN: Object.freeze({ statusName: 'shutting down' }),
  OFFLINE: Object.freeze({ statusName: 'offline' }),
});

/** What a host is asked to do. A command that asks for the state that there is should change nothing. */
export type ControlCommand = 'pause' | 'resume' | 'shutdown' | 'save-state';

// In shared memory a status and a command are their places in these lists.
const STATUSES: readonly SystemStatus[] = Object.values(SystemStatus).filter((one) => one !== SystemStatus.OFFLINE);
const STATUS_NAMES: readonly string[] = STATUSES.map((one) => one.statusName);
const COMMANDS: readonly ControlCommand[] = ['pause', 'resume', 'shutdown', 'save-state'];

// ───── The shared memory ─────────────────────────────────────────────────────────────────────────────────────────
//
//  clients ──HTTP──▶ server thread ──▶ [ ring of commands ] ──▶ host: hasCommands(), receiveCommand()
//                          ▲                                      │
//                          └───────────── [ status ] ◀────────────┘ systemStatus()
//
// One Int32Array holds all that the two threads share. Each cell has one writer (RUNG apart), and the cells of the
// two writers lie in different cache lines.
//
// The ring: HEAD counts the commands put in, TAIL those taken out; command number n lies in slot n mod slots.
//
//           TAIL        HEAD                    HEAD        TAIL
//    ┌────┬──▼─┬────┬────▼────┬────┐      ┌────┬──▼─┬────┬────▼────┬────┐
//    │    │ c5 │ c6 │    │    │    │      │ c8 │    │    │    │ c6 │ c7 │
//    └────┴────┴────┴────┴────┴────┘      └────┴────┴────┴────┴────┴────┘
//
// Empty is HEAD = TAIL, full is HEAD − TAIL = maxQueueSize. The counters only ever grow, and wrap around at 2³². The
// number of slots is the smallest power of two that holds them, so it divides 2³² and a slot survives the wrap.
//
// The question: `GET /api/status` wants a status of now, and only the host can tell. CALLS counts whatever the thread
// puts before the host: each command, each question. The host reads CALLS, then samples its status, then copies to
// ANSWER the CALLS it had read: an answer is never older than the question, nor than a command before the question.

const CELL = {
  // Written by the server thread:
  HEAD: 0,
  CALLS: 1,
  QUESTION: 2, // the value of CALLS when the latest question was asked
  CLOCK: 3, // quarters of a second that the thread has counted
  RUNG: 4, // 1 while a message is under way to the host, which sets it back
  // Written by the host, 64 bytes on:
  TAIL: 16,
  STATUS: 17, // place in STATUSES, or STATUSES.length while the provider fails
  SAMPLED: 18, // CLOCK when the status was sampled
  ANSWER: 19,
  SLEEPING: 20, // 1 while the host waits in nextCommand() and wants a message for each command
  RING: 32,
} as const;

/** Smallest power of two that is not smaller than `size`. */
function slotsFor(size: number): number {
  return 1 << (32 - Math.clz32(size - 1));
}

// ───── The server thread ─────────────────────────────────────────────────────────────────────────────────────────

/** What serve() is given. It can reach nothing else of this file. */
interface ThreadData {
  memory: Int32Array;
  cells: typeof CELL;
  statusNames: readonly string[];
  commands: readonly ControlCommand[];
  maxQueueSize: number;
  maxConnections: number;
  questionMs: number; // for the host to answer before it is reported what was known last
  host: string;
  port: number;
  socketPath: string | undefined;
  token: string | undefined;
  allowedHosts: readonly string[];
  allowedOrigins: readonly string[];
  isDebugging: boolean;
}

/** What serve() says to the host; `null` is the mere ring of the bell. */
type ThreadMessage =
  | null
  | { listening: Listening }
  | { failed: { message: string; code: string | undefined } }
  | { closed: true };

interface Listening {
  port: number;
  isPublic: boolean; // not on loopback alone
  socketId: string; // of the file: inodes alone are soon used again
}

/** The header fields that matter here. Each may come once. */
type FieldName =
  | 'host' | 'origin' | 'sec-fetch-site' | 'authorization' | 'expect' | 'upgrade' | 'content-length'
  | 'transfer-encoding';
type Fields = { [name in FieldName]?: string | undefined } & { isRepeated?: boolean };

/** What there is to know of an open connection. */
interface Connection {
  latest: ServerResponse | undefined; // to the last of the requests routed, unless it is already on its way
  turn: number; // of the thread's event loop, the latest in which it brought a request
  requests: number; // in that turn
  idleTicks: number; // since the latest request
  hears: 'all' | 'arrived' | 'none'; // of its requests: no more that arrive now, none since its last answer
}

/** An answer that is ready to be written; the headers are names and values in turn. */
interface Answer {
  statusCode: number;
  headers: string[];
  body: string;
  ends: boolean; // the connection
}

/** What serve() returns. */
interface Service {
  // For a thread:
  start(): void;
  fail(error: NodeJS.ErrnoException): void;
  close(): void;
  // For a host that mounts it:
  handle(request: IncomingMessage, response: ServerResponse): void;
  unmount(): void;
}

/** Atomics.waitAsync, which is newer (ES2024) than the `lib` that many programs compile with. */
interface AtomicsWaitAsync {
  waitAsync(
    memory: Int32Array,
    cell: number,
    value: number,
    milliseconds: number,
  ): { async: false } | { async: true; value: Promise<string> };
}

/**
 * All that runs in the server thread, or in the host's if the server is mounted. It gets to the thread as source text,
 * not as a file: in a bundle this file is the whole program, and a thread that started that would run the host a second
 * time. Hence three rules for what is in here: name nothing of the file outside; no named functions or classes
 * (bundlers wrap those in helpers of theirs), so the functions are methods of an object; no syntax that an old compile
 * target turns into helper calls (async functions, object spread, class fields). Code coverage would break the first
 * rule, if it did not heed the next line.
 */
/* istanbul ignore next @preserve */
function serve(data: ThreadData, parent: Pick<MessagePort, 'postMessage'>): Service {
  const http = process.getBuiltinModule('node:http');
  const net = process.getBuiltinModule('node:net');
  const fs = process.getBuiltinModule('node:fs');
  const { memory, cells, statusNames, commands, socketPath, token, allowedHosts, allowedOrigins } = data;
  const { questionMs, isDebugging } = data;
  const slots = memory.length - cells.RING;
  const { waitAsync } = Atomics as unknown as AtomicsWaitAsync;

  const freshMs = 1; // for which an answer serves later requests too
  const silentMs = 50; // for connections that have not said anything yet when the server is closed
  const headersMs = 5000; // for the headers of a request to arrive
  const requestMs = 10_000; // for all of it
  const checkMs = 2000; // from one look at these times to the next
  const maxIdleTicks = 60; // quarters of a second from one request to the next
  const maxHeaderSize = 8192; // bytes, the request line included
  const maxBodySize = 65_536; // bytes, though no request needs any
  const maxForeignFields = 1000; // the host's server silently drops those beyond
  const maxPipelined = 128; // requests that one connection may bring in one turn of the event loop

  const servers: Server[] = [];
  const connections: Map<Duplex, Connection> = new Map();
  const waiting: { response: ServerResponse; question: number; until: number }[] = [];
  let folder = ''; // where a socket is made
  let socketId = '';
  let turn = 0;
  let isTurnCounted = false;
  let isClosing = false;
  let isUnmounted = false;
  let isWatching = false; // a wait for ANSWER is under way
  let calls = Atomics.load(memory, cells.CALLS); // this thread is the only writer of these two
  let question = Atomics.load(memory, cells.QUESTION);
  let askedAt = -Infinity;
  let answeredAt = -Infinity;
  let allowedAuthority: string | undefined; // the latest: most requests ask for the same one

  const thread = {
    // ── Answers ──

    /** Makes an answer with the headers that all have, and some of its own. */
    answer(statusCode: number, value: object | null, ...headers: string[]): Answer {
      const body = value === null ? '' : JSON.stringify(value);
      const content = ['Content-Type', 'application/json', 'Content-Length', String(body.length)]; // all ASCII
      return {
        statusCode,
        body,
        ends: headers.includes('Connection'),
        headers: [
          ...(value === null ? [] : content),
          'Cache-Control', 'no-store',
          'Cross-Origin-Resource-Policy', 'same-origin',
          'X-Content-Type-Options', 'nosniff',
          ...headers,
        ],
      };
    },

    /** Writes every answer to a request that node could parse. */
    send(response: ServerResponse, { statusCode, headers, body, ends }: Answer): void {
      if (isDebugging) thread.logAnswer(response.req, statusCode, body);
      const connection = connections.get(response.req.socket);
      if (connection === undefined || response.headersSent) return; // the client is gone, the host was faster
      const isLast = isClosing && response === connection.latest;
      if (ends || isLast) connection.hears = 'none';
      response.writeHead(statusCode, isLast && !ends ? [...headers, 'Connection', 'close'] : headers);
      // All in one chunk. end(body) adds an empty one, and so would end() while write() still holds back its chunk:
      // two take a costlier system call.
      if (body !== '' && response.req.method !== 'HEAD') {
        response.cork();
        response.write(body, 'latin1');
        response.uncork();
      }
      response.end();
      // Whatever is kept until the next request grows old, and costs the garbage collector more.
      if (response === connection.latest && response.socket !== null) connection.latest = undefined;
    },

    /** Answers what node refuses to parse or has waited for too long, and ends the connection. */
    refuse(socket: Duplex, statusCode: number): void {
      const connection = connections.get(socket);
      if (connection?.hears !== 'all') return;
      connection.hears = 'arrived';
      socket.pause();
      setImmediate(() => { // the requests before it have their turn, and their answers, first (RFC 9112 §9.3.2)
        const { latest } = connection;
        if (latest?.writableFinished === false) latest.on('close', () => thread.writeRefusal(socket, statusCode));
        else thread.writeRefusal(socket, statusCode);
      });
    },

    writeRefusal(socket: Duplex, statusCode: number): void {
      if (!socket.writable) return;
      const reason = http.STATUS_CODES[statusCode];
      const date = new Date().toUTCString(); // RFC 9110 §6.6.1; node adds it to all other answers
      const { headers, body } = thread.answer(statusCode, { error: reason }, 'Date', date, 'Connection', 'close');
      const lines = headers.map((text, index) => text + (index % 2 === 0 ? ': ' : '\r\n')).join('');
      thread.log(`${thread.peer(socket as Socket)} ${statusCode} ${body}`);
      socket.end(`HTTP/1.1 ${statusCode} ${reason}\r\n${lines}\r\n${body}`, () => socket.destroy());
    },

    // ── Requests ──

    /** Takes a request from a server of its own. */
    accept(request: IncomingMessage, response: ServerResponse): void {
      const connection = connections.get(request.socket);
      if (connection?.hears !== 'all') return;
      if (thread.countRequest(connection) > maxPipelined) return thread.cut(request.socket);
      thread.receive(request, response, connection);
    },

    /** Takes a request from the host, whose connections it meets here, unless the host has answered it already. */
    handle(request: IncomingMessage, response: ServerResponse): void {
      const { socket, rawHeaders } = request;
      if (socket.destroyed || response.headersSent) return;
      const connection = connections.get(socket) ?? thread.meet(socket);
      if (connection.hears !== 'all') return;
      if (rawHeaders.length >= 2 * maxForeignFields) return thread.endWith(manyFields, response, connection);
      thread.receive(request, response, connection);
    },

    /** Routes a request when all of it is there, and after those that came before it on its connection. */
    receive(request: IncomingMessage, response: ServerResponse, connection: Connection): void {
      const fields = thread.readFields(request.rawHeaders);
      const size = fields['transfer-encoding'] === undefined ? Number(fields['content-length'] ?? 0) : NaN;
      if (size > maxBodySize) return thread.endWith(tooLarge, response, connection);
      const isFirst = response.socket !== null; // of the pipelined requests that have no answer yet
      const isRead = request.readableEnded; // by the host that has passed it on
      if (isRead || (isFirst && size === 0)) return thread.route(request, response, fields);
      // The body means nothing, but if it is cut short or malformed, so is the request.
      let received = 0;
      request.on('data', (chunk: Buffer) => {
        received += chunk.length;
        if (received > maxBodySize) thread.endWith(tooLarge, response, connection);
      });
      request.on('end', () => {
        const isWhole = request.complete && received <= maxBodySize;
        if (isWhole && request.socket.writable) thread.route(request, response, fields);
      });
      request.resume(); // the host may have paused it
    },

    /** Refuses a request that is too large, and with it whatever its connection brings after it. */
    endWith(answer: Answer, response: ServerResponse, connection: Connection): void {
      connection.hears = 'arrived';
      setImmediate(() => { // the requests before it have their turn first
        if (connection.hears !== 'none') thread.send(response, answer);
      });
    },

    /** Returns how many requests the connection has brought in this turn of the event loop. */
    countRequest(connection: Connection): number {
      if (!isTurnCounted) {
        isTurnCounted = true;
        setImmediate(() => {
          isTurnCounted = false;
          turn += 1;
        });
      }
      connection.requests = connection.turn === turn ? connection.requests + 1 : 1;
      connection.turn = turn;
      connection.idleTicks = 0;
      return connection.requests;
    },

    /**
     * Ends a connection that brings too many requests at once. What was read with them, thousands maybe, is parsed all
     * the same and takes memory until the socket is closed: the other connections wait for that, lest they do likewise.
     */
    cut(socket: Socket): void {
      if (socket.destroyed) return;
      thread.log(`${thread.peer(socket)} refused: more than ${maxPipelined} pipelined requests`);
      socket.destroy();
      const others = [...connections.keys()].filter((one) => !one.isPaused());
      for (const other of others) other.pause();
      setTimeout(() => others.forEach((other) => other.resume()));
    },

    /** node's own `headers` silently has the first of two Hosts. */
    readFields(rawHeaders: string[]): Fields {
      const fields: Fields = {};
      for (let index = 0; index < rawHeaders.length; index += 2) {
        const name = (rawHeaders[index] as string).toLowerCase() as FieldName;
        if (!fieldNames.has(name)) continue;
        if (fields[name] !== undefined) fields.isRepeated = true;
        fields[name] = rawHeaders[index + 1];
      }
      return fields;
    },

    // ── Who may ask ──
    //
    // A page in any browser of this machine can send requests here unasked, and a name that its author owns can be
    // made to point here after it was loaded (DNS rebinding). Such requests tell by the name they ask for (an address
    // cannot be rebound), or by what every browser says about the page. Programs say nothing about pages.

    /** What is wrong with a request, if anything is. */
    refusal(request: IncomingMessage, fields: Fields, authority: string | undefined): Answer | null {
      const { origin, 'sec-fetch-site': site } = fields;
      if (fields.isRepeated === true) return repeatedField;
      if (fields.host === undefined && request.httpVersion !== '1.0') return missingHost; // RFC 9112 §3.2
      if (fields.upgrade !== undefined) return notImplemented;
      if (fields.expect !== undefined && fields.expect.toLowerCase() !== '100-continue') return expectationFailed;
      if (authority !== undefined && authority !== allowedAuthority) {
        if (!thread.isAllowedHost(authority)) return forbiddenHost;
        allowedAuthority = authority;
      }
      if (origin !== undefined) return allowedOrigins.includes(origin) ? null : forbiddenOrigin;
      if (site === undefined) return null;
      const isTyped = site === 'none' && (request.method === 'GET' || request.method === 'HEAD'); // by a person
      return isTyped ? null : forbiddenSite;
    },

    /** Not by `new URL()`, which takes `0x7f.1`, `127.1` and `evil@localhost` for local names. */
    isAllowedHost(authority: string): boolean {
      if (socketPath !== undefined) return true; // no name leads there
      const [, ipv6, other = ''] = /^(?:\[([^\]%]+)(?:%[^\]]*)?\]|([\w.-]+))(?::\d*)?$/.exec(authority) ?? [];
      if (ipv6 !== undefined) return net.isIPv6(ipv6) && !nowhere.check(ipv6, 'ipv6');
      if (net.isIPv4(other)) return !nowhere.check(other);
      const name = other.toLowerCase();
      if (name === '') return false; // malformed
      if (name === 'localhost' || name === data.host.toLowerCase()) return true;
      return allowedHosts.some((entry) => {
        return entry === '*' || entry === name || (entry[0] === '.' && `.${name}`.endsWith(entry));
      });
    },

    /** Compares digests: the time that takes tells nothing about the token. */
    hasToken(authorization: string | undefined): boolean {
      if (token === undefined) return true;
      const crypto = process.getBuiltinModule('node:crypto'); // takes time to load, and few have a token
      const given = /^Bearer +(\S+)$/i.exec(authorization ?? '')?.[1] ?? ''; // RFC 6750 §2.1
      const [digest, expected] = [given, token].map((text) => crypto.createHash('sha256').update(text).digest());
      return crypto.timingSafeEqual(digest as Buffer, expected as Buffer);
    },

    // ── The router: a command is added with a case here, a word in COMMANDS and a method of WebApiClient ──

    route(request: IncomingMessage, response: ServerResponse, fields: Fields): void {
      const connection = connections.get(request.socket);
      if (connection === undefined || connection.hears === 'none' || response.headersSent) return;
      connection.latest = response;
      let path = request.url as string;
      let authority = fields.host;
      if (path[0] !== '/') { // absolute-form, RFC 9112 §3.2.2
        [, authority = authority, path = path] = /^https?:\/\/([^/?]*)(.*)$/i.exec(path) ?? [];
      }
      const refusal = thread.refusal(request, fields, authority);
      if (refusal !== null) return thread.send(response, refusal);
      if (fields.origin !== undefined) { // one of allowedOrigins
        response.setHeader('Access-Control-Allow-Origin', fields.origin).setHeader('Vary', 'Origin');
        if (request.method === 'OPTIONS') return thread.send(response, preflight);
      }
      if (!thread.hasToken(fields.authorization)) return thread.send(response, unauthorized);
      if (isUnmounted) return thread.send(response, closed);

      const query = path.indexOf('?');
      if (query !== -1) path = path.slice(0, query);
      switch (path) {
        case '/api/status': return thread.status(request, response);
        case '/api/pause': return thread.command(request, response, 'pause');
        case '/api/resume': return thread.command(request, response, 'resume');
        case '/api/shutdown': return thread.command(request, response, 'shutdown');
        case '/api/save-state': return thread.command(request, response, 'save-state');
        default: return thread.send(response, invalidEndpoint);
      }
    },

    // ── Commands ──

    command(request: IncomingMessage, response: ServerResponse, command: ControlCommand): void {
      if (request.method !== 'POST') return thread.send(response, postOnly);
      thread.send(response, thread.enqueue(command) ? ok : queueFull);
    },

    /** Puts a command on the ring, or returns false if that is full. */
    enqueue(command: ControlCommand): boolean {
      const head = Atomics.load(memory, cells.HEAD);
      if (((head - Atomics.load(memory, cells.TAIL)) | 0) >= data.maxQueueSize) return false;
      memory[cells.RING + (head & (slots - 1))] = commands.indexOf(command);
      Atomics.store(memory, cells.HEAD, (head + 1) | 0);
      calls = (calls + 1) | 0;
      Atomics.store(memory, cells.CALLS, calls);
      if (Atomics.load(memory, cells.SLEEPING) === 1) thread.ring();
      return true;
    },

    /** Sends the host a message, unless one is still unread: a host that never reads any must not pile them up. */
    ring(): void {
      if (Atomics.exchange(memory, cells.RUNG, 1) === 0) parent.postMessage(null satisfies ThreadMessage);
    },

    // ── The status ──

    status(request: IncomingMessage, response: ServerResponse): void {
      if (request.method !== 'GET' && request.method !== 'HEAD') return thread.send(response, getOnly);
      const now = performance.now();
      thread.noteAnswer(now);
      const answered = thread.isAnswered(question);
      const commandSince = calls !== question;
      if (!commandSince) {
        if (answered && now - answeredAt < freshMs) return thread.report(response);
        if (!answered && now - askedAt >= questionMs) return thread.report(response);
      }
      if (commandSince || answered) thread.ask(now);
      waiting.push({ response, question, until: askedAt + questionMs });
      if (!isWatching) thread.settle();
    },

    ask(now: number): void {
      calls = (calls + 1) | 0;
      question = calls;
      askedAt = now;
      Atomics.store(memory, cells.QUESTION, question);
      Atomics.store(memory, cells.CALLS, calls);
      thread.ring();
    },

    isAnswered(asked: number): boolean {
      return ((Atomics.load(memory, cells.ANSWER) - asked) | 0) >= 0;
    },

    /** An answer counts as given when it is first seen, unless by then nobody waits for it any more. */
    noteAnswer(now: number): void {
      const isNew = answeredAt < askedAt && now - askedAt < questionMs;
      if (isNew && thread.isAnswered(question)) answeredAt = now;
    },

    /** Reports to all whose question is answered or was open for too long, and comes back for the others. */
    settle(): void {
      for (;;) {
        const answer = Atomics.load(memory, cells.ANSWER);
        const now = performance.now();
        thread.noteAnswer(now);
        let next = waiting[0];
        while (next !== undefined && (thread.isAnswered(next.question) || now >= next.until)) {
          thread.report(next.response);
          waiting.shift();
          next = waiting[0];
        }
        isWatching = false;
        if (next === undefined) return;
        const wait = waitAsync(memory, cells.ANSWER, answer, next.until - now);
        if (wait.async) {
          isWatching = true;
          wait.value.then(thread.settle);
          return;
        }
      }
    },

    /** Sends the last status known, with its age if the host has not been heard for a second. */
    report(response: ServerResponse): void {
      const answer = statuses[Atomics.load(memory, cells.STATUS)];
      if (answer === undefined) return thread.send(response, internalError);
      const quarters = (Atomics.load(memory, cells.CLOCK) - Atomics.load(memory, cells.SAMPLED)) | 0;
      const seconds = (quarters - 1) >> 2; // that surely have passed
      if (seconds > 0) response.setHeader('Age', seconds); // RFC 9111 §5.1
      thread.send(response, answer);
    },

    // ── Start and end ──

    start(): void {
      if (socketPath !== undefined) return thread.listenOnSocket(socketPath);
      // node's listen('localhost') takes the first address alone, and a client may try the other.
      thread.listen(data.host.toLowerCase() === 'localhost' ? ['127.0.0.1', '::1'] : [data.host], data.port);
    },

    createServer(): Server {
      const server = http.createServer({
        requireHostHeader: false, // refusal() looks after it
        headersTimeout: headersMs,
        requestTimeout: requestMs,
        connectionsCheckingInterval: checkMs,
        keepAliveTimeout: 0, // tick() does it, without a timer that each request would set anew
        maxHeaderSize,
      }, thread.accept);
      server.maxHeadersCount = 0; // node would silently drop what comes after the thousandth
      Object.assign(server, { httpAllowHalfOpen: true }); // answer a client that has ended its side, as `nc -N` does
      server.on('connection', thread.admit);
      server.on('connect', (_request, socket) => thread.refuse(socket, 501));
      server.on('checkExpectation', thread.accept);
      server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
        const codes: Record<string, number> = {
          ERR_HTTP_REQUEST_TIMEOUT: 408,
          HPE_CHUNK_EXTENSIONS_OVERFLOW: 413,
          HPE_HEADER_OVERFLOW: 431,
        };
        thread.refuse(socket, codes[error.code ?? ''] ?? 400);
      });
      return server;
    },

    meet(socket: Socket): Connection {
      const connection: Connection = { latest: undefined, turn, requests: 0, idleTicks: 0, hears: 'all' };
      connections.set(socket, connection);
      socket.on('close', () => connections.delete(socket));
      return connection;
    },

    admit(socket: Socket): void {
      thread.meet(socket);
      socket.on('error', () => {}); // node does this, too, but forgets a socket that has asked to CONNECT
      if (connections.size <= data.maxConnections) return;
      thread.log(`${thread.peer(socket)} refused: ${data.maxConnections} connections are open`);
      socket.destroy();
    },

    /**
     * Counts the quarters of a second, and ends the connections without a request in too many of them. Those of clients
     * that read no answers are among them: node stops reading what they send.
     */
    tick(): void {
      Atomics.add(memory, cells.CLOCK, 1);
      for (const [socket, connection] of connections) {
        connection.idleTicks += 1;
        if (connection.idleTicks > maxIdleTicks) socket.destroy();
      }
    },

    /** Listens on one address after the other, all on the same port. */
    listen(addresses: string[], boundPort: number): void {
      const [address, ...others] = addresses;
      if (address === undefined) return thread.reportListening(boundPort);
      const server = thread.createServer();
      server.on('error', (error: NodeJS.ErrnoException) => {
        const lacksFamily = error.code === 'EADDRNOTAVAIL' || error.code === 'EAFNOSUPPORT';
        if (lacksFamily && others.length + servers.length > 0) return thread.listen(others, boundPort);
        if (data.port === 0 && servers.length > 0 && error.code === 'EADDRINUSE') {
          servers.pop()?.close(); // the port that was free at one address is taken at the other: try another port
          return thread.start();
        }
        thread.fail(error);
      });
      server.listen(boundPort, address, () => {
        servers.push(server);
        thread.listen(others, (server.address() as AddressInfo).port);
      });
    },

    /** Listens in a folder that is open to nobody else; the socket gets its place when it has its mode. */
    listenOnSocket(path: string): void {
      folder = fs.mkdtempSync(`${path}.`);
      fs.chmodSync(folder, 0o700); // whatever the umask
      const server = thread.createServer();
      server.on('error', thread.fail);
      server.listen(`${folder}/s`, () => {
        servers.push(server);
        if (isClosing) return;
        fs.chmodSync(`${folder}/s`, 0o600);
        socketId = thread.identify(`${folder}/s`);
        thread.claim(path);
      });
    },

    claim(path: string): void {
      try {
        fs.linkSync(`${folder}/s`, path); // never replaces anything
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
        return thread.challenge(path);
      }
      thread.removeFolder();
      thread.reportListening(0);
    },

    /** Takes away what a dead server has left, or gives up before a live one. */
    challenge(path: string): void {
      const entry = fs.lstatSync(path, { throwIfNoEntry: false });
      if (entry === undefined) return thread.claim(path);
      const id = thread.identify(path);
      if (!entry.isSocket()) return thread.fail({ code: 'EEXIST', message: 'there is a file that is not a socket' });
      const probe = net.connect(path, () => {
        probe.destroy();
        thread.fail({ code: 'EADDRINUSE', message: 'another server listens there' });
      });
      probe.on('error', (error: NodeJS.ErrnoException) => {
        if (error.code !== 'ECONNREFUSED' && error.code !== 'ENOENT') return thread.fail(error);
        if (isClosing) return;
        thread.takeAway(path, id);
        thread.claim(path);
      });
    },

    /** Looks at what it has got: by now that may be the socket of a server that was faster. */
    takeAway(path: string, id: string): void {
      const taken = `${folder}/taken`;
      try {
        fs.renameSync(path, taken);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code === 'ENOENT') return;
        throw error;
      }
      if (thread.identify(taken) !== id) fs.linkSync(taken, path);
      fs.unlinkSync(taken);
    },

    identify(path: string): string {
      const { ino, mtimeMs } = fs.lstatSync(path);
      return `${ino} ${mtimeMs}`;
    },

    removeFolder(): void {
      if (folder !== '') fs.rmSync(folder, { recursive: true, force: true });
      folder = '';
    },

    reportListening(port: number): void {
      const addresses = servers.map((server) => server.address() as AddressInfo | string);
      const isPublic = addresses.some((one) => typeof one !== 'string' && !/^(::ffff:)?127\.|^::1$/.test(one.address));
      setInterval(thread.tick, 250);
      thread.log(`listens at ${socketPath ?? thread.authorityOf(data.host, port)}`);
      parent.postMessage({ listening: { port, isPublic, socketId } } satisfies ThreadMessage);
    },

    /** Tells the host, which ends the thread. */
    fail({ code, message }: { code?: string | undefined; message: string }): void {
      for (const server of servers) server.close();
      for (const socket of connections.keys()) socket.destroy();
      thread.removeFolder();
      parent.postMessage({ failed: { message, code } } satisfies ThreadMessage);
    },

    /** Takes no more connections, ends those without a request now, the others with their answer or after the grace. */
    close(): void {
      isClosing = true;
      let open = servers.length;
      if (open === 0) parent.postMessage({ closed: true } satisfies ThreadMessage); // it still starts
      for (const server of servers) {
        server.close(() => {
          open -= 1;
          if (open === 0) parent.postMessage({ closed: true } satisfies ThreadMessage);
        });
        server.closeIdleConnections();
      }
      setTimeout(() => { // by now what was on its way is read
        for (const socket of connections.keys()) {
          if ((socket as Socket).bytesRead === 0) socket.destroy(); // node takes it for busy
        }
      }, silentMs);
      thread.removeFolder();
      thread.log('closes');
    },

    unmount(): void {
      isUnmounted = true;
    },

    // ── The log ──

    /** Not by way of process.stderr, which is the host's: it would have to yield first. */
    log(text: string): void {
      if (!isDebugging) return;
      try {
        fs.writeSync(2, `CONTROL ${process.pid}: ${text.replace(/[^ -~]/g, '?')}\n`);
      } catch {
        // Nobody reads it, or not fast enough (EPIPE, EAGAIN).
      }
    },

    /** Each command, and whatever is refused. Never the token, nor a query, which may hold one. */
    logAnswer({ method, url, headers, socket }: IncomingMessage, statusCode: number, body: string): void {
      if (statusCode < 400 && method !== 'POST') return;
      const { host, origin, 'sec-fetch-site': site } = headers;
      const said = statusCode === 403 ? ` ${JSON.stringify({ host, origin, 'sec-fetch-site': site })}` : '';
      const path = JSON.stringify(url?.replace(/\?.*/, ''));
      thread.log(`${thread.peer(socket)} ${method} ${path} ${statusCode} ${body}${said}`);
    },

    peer({ remoteAddress, remotePort }: Socket): string {
      return remoteAddress === undefined ? 'a local client' : thread.authorityOf(remoteAddress, remotePort as number);
    },

    authorityOf(host: string, port: number): string {
      return `${host.includes(':') ? `[${host}]` : host}:${port}`;
    },
  };

  const fieldNames: Set<FieldName> = new Set([
    'host', 'origin', 'sec-fetch-site', 'authorization', 'expect', 'upgrade', 'content-length', 'transfer-encoding',
  ]);
  const statuses = statusNames.map((status) => thread.answer(200, { status }));
  const ok = thread.answer(200, { result: 'ok' });
  const preflight = thread.answer(204, null, ...[
    'Access-Control-Allow-Methods', 'GET, HEAD, POST',
    'Access-Control-Allow-Headers', 'Authorization, Content-Type',
  ]);
  const missingHost = thread.answer(400, { error: 'Missing Host header' });
  const repeatedField = thread.answer(400, { error: 'A header field came twice that may come once' });
  const unauthorized = thread.answer(401, {
    error: 'Missing or wrong token: see the option token, or CONTROL_TOKEN for the programs',
  }, 'WWW-Authenticate', 'Bearer');
  const forbiddenHost = thread.answer(403, {
    error: 'Host is not allowed: ask for localhost or an address of this machine, or see the option allowedHosts',
  });
  const forbiddenOrigin = thread.answer(403, { error: 'Origin is not allowed: see the option allowedOrigins' });
  const forbiddenSite = thread.answer(403, { error: 'Web pages may not ask: see the option allowedOrigins' });
  const invalidEndpoint = thread.answer(404, { error: 'Invalid API endpoint' });
  const getOnly = thread.answer(405, { error: 'Invalid API method' }, 'Allow', 'GET, HEAD');
  const postOnly = thread.answer(405, { error: 'Invalid API method' }, 'Allow', 'POST');
  const tooLarge = thread.answer(413, { error: 'Content Too Large' }, 'Connection', 'close');
  const expectationFailed = thread.answer(417, { error: 'Expectation Failed' });
  const manyFields = thread.answer(431, { error: 'Request Header Fields Too Large' }, 'Connection', 'close');
  const internalError = thread.answer(500, { error: 'Internal server error' });
  const notImplemented = thread.answer(501, { error: 'Upgrade is not supported' }, 'Connection', 'close');
  const queueFull = thread.answer(503, { error: 'Command queue is full, try again later' });
  const closed = thread.answer(503, { error: 'The server is closed' });

  const nowhere = new net.BlockList(); // addresses that a browser takes for this machine without saying so
  nowhere.addSubnet('0.0.0.0', 8);
  nowhere.addAddress('::', 'ipv6');

  return thread;
}

// ───── WebApiServer: the host's side ─────────────────────────────────────────────────────────────────────────────

/** What a server is made of. */
export interface WebApiServerOptions {
  /**
   * Gives the status of the system. Called on the thread that made the server, never on another: when the server
   * starts, at each `hasCommands()`, when `nextCommand()` goes to sleep, and when a client asks. Keep it cheap. While
   * it throws, or returns what is not a status of a running system, clients get a 500.
   */
  systemStatus: () => SystemStatus;
  /** Host name or address to listen on, default `localhost`, which means 127.0.0.1 and ::1. */
  host?: string | undefined;
  /** Port from 0 to 65535, default 8391; 0 picks a free one. */
  port?: number | undefined;
  /** How many commands may wait, from 1 to 65536, default 16. */
  maxQueueSize?: number | undefined;
  /**
   * Path of a Unix socket to listen on in place of host and port, at most 94 bytes long. Only the user who runs the
   * program can open it (mode 0600). What a dead server has left there is replaced, and `close()` removes it. Not on
   * Windows.
   */
  socketPath?: string | undefined;
  /**
   * What a client must know: 16 to 1024 characters of visible ASCII. Clients send it as `Authorization: Bearer …`
   * (RFC 6750 §2.1), not encrypted.
   */
  token?: string | undefined;
  /**
   * Names other than `host` and localhost by which clients may ask for the server, without port: `'box.lan'`,
   * `'.lan'` for that name and all below it, `'*'` for all names. Addresses are fine, but for 0.0.0.0/8 and `::`.
   */
  allowedHosts?: readonly string[] | undefined;
  /** Origins whose web pages may use the API, as browsers write them: `'http://localhost:3000'`. Others may not. */
  allowedOrigins?: readonly string[] | undefined;
  /** How many connections may be open, from 1 to 65536, default 64; further ones are ended at once. */
  maxConnections?: number | undefined;
}

// Those that launch() passes on as they are.
const WEB_API_OPTIONS: readonly (keyof NonNullable<LaunchConfig['webApiOptions']>)[] = [
  'socketPath', 'token', 'allowedHosts', 'allowedOrigins', 'maxConnections',
];

/** Where a server listens. */
export interface WebApiAddress {
  /** `localhost` if it is a socket: what clients send as Host. */
  host: string;
  /** 0 if it is a socket. */
  port: number;
  /** The absolute path of the socket, if it is one. */
  socketPath?: string | undefined;
}

/** Thrown by `receiveCommand()` when no command waits, and by `nextCommand()` when none can come any more. */
export class EmptyError extends Error {
  override readonly name = 'EmptyError';
}

/**
 * The web API of a running system. Unless it is mounted (see `handler`), the server lives in a thread of its own: it
 * answers, and takes commands, whatever the thread that made it is doing.
 *
 * A command that was answered `ok` is delivered once and in order.
 *
 * @throws {TypeError} If an option has the wrong type or is unknown.
 * @throws {RangeError} If an option is out of range.
 */
export class WebApiServer {
  readonly #systemStatus: () => SystemStatus;
  readonly #slots: number;
  readonly #memory: Int32Array;
  readonly #data: ThreadData;

  #state: 'idle' | 'starting' | 'running' | 'mounted' | 'closed' = 'idle';
  #worker: Worker | null = null;
  #mounted: Service | null = null;
  #closed: Promise<void> | null = null;
  #restarts = 0; // since a thread was steady
  #restartTimer: NodeJS.Timeout | undefined;
  #socketId = '';

  #published = 0; // the value of STATUS
  #heard = 0; // CALLS up to here are dealt with: none of their commands waits, none of their questions is open
  #sleepers = 0; // calls of nextCommand() that wait
  readonly #alarm: EventEmitter = new EventEmitter().setMaxListeners(0); // one listener for each of them
  readonly #warned: Set<string> = new Set();

  constructor(options: WebApiServerOptions) {
    checkRuntime('WebApiServer');
    checkOptions('WebApiServer', options, ['systemStatus', 'host', 'port', 'maxQueueSize', ...WEB_API_OPTIONS]);
    const {
      systemStatus, host = DEFAULT_HOST, port = DEFAULT_PORT, maxQueueSize = DEFAULT_MAX_QUEUE_SIZE, token,
      allowedHosts = [], allowedOrigins = [], maxConnections = DEFAULT_MAX_CONNECTIONS,
    } = options;
    checkType('systemStatus', systemStatus, 'function');
    checkType('host', host, 'string');
    checkInteger('port', port, 0, 65535);
    checkInteger('maxQueueSize', maxQueueSize, 1, MAX_QUEUE_SIZE);
    checkInteger('maxConnections', maxConnections, 1, 65_536);
    checkToken(token);
    checkEntries('allowedHosts', allowedHosts, /^(\*|\.?[\w-]+(\.[\w-]+)*)$/, "'box.lan', '.lan' or '*'");
    checkEntries('allowedOrigins', allowedOrigins, /^[a-z\d+.-]+:\/\/[a-z\d_.:[\]-]+$/, "'http://localhost:3000'");
    this.#systemStatus = systemStatus;
    this.#slots = slotsFor(maxQueueSize);
    this.#memory = new Int32Array(new SharedArrayBuffer((CELL.RING + this.#slots) * Int32Array.BYTES_PER_ELEMENT));
    this.#data = {
      memory: this.#memory,
      cells: CELL,
      statusNames: STATUS_NAMES,
      commands: COMMANDS,
      maxQueueSize,
      maxConnections,
      questionMs: QUESTION_MS,
      host,
      port,
      socketPath: resolveSocketPath(options.socketPath, host, port),
      token,
      allowedHosts: allowedHosts.map((name) => name.toLowerCase()),
      allowedOrigins: [...allowedOrigins],
      isDebugging: debug.enabled,
    };
  }

  /**
   * Starts to serve. The thread starts at once: there is no need to await the promise, nor ever to yield again, but
   * who does not await it learns of a failure only as an unhandled rejection. The thread does not keep the process
   * alive once it listens. Should it die, it is started again when this thread next has a turn of its event loop: at
   * the same address, with the queue as it was.
   *
   * @returns The address that clients can use, with the port that was picked if `port` is 0. (A `close()` during the
   *   start resolves the promise, too.)
   * @throws {Error} If the server was started, mounted or closed before, or cannot listen (`code` is node's: EADDRINUSE,
   *   EADDRNOTAVAIL, EACCES, ENOTFOUND, …); in the latter case it may be tried again.
   */
  async runInBackground(): Promise<WebApiAddress> {
    this.#leaveIdle('starting');
    try {
      await this.#startThread();
    } catch (error) {
      if (this.#state === 'starting') this.#state = 'idle';
      throw error;
    }
    const { host: boundHost, port, socketPath } = this.#data;
    const host = boundHost === '0.0.0.0' || boundHost === '::' ? DEFAULT_HOST : boundHost; // one of all addresses
    return socketPath === undefined ? { host, port } : { host, port, socketPath };
  }

  /**
   * For a host that has an HTTP server already, in place of `runInBackground()`: a listener for node:http (HTTP/1.1),
   * and for the frameworks that are built on it. It has the same routes, checks and queue, but no thread: it answers
   * when this thread has a turn of its event loop. The routes are looked for in `request.url`; every other path gets a
   * 404. Connections and the limits on them are the host's (its `maxHeadersCount` must not be below node's default, or
   * a field may be dropped before it is checked). Of the options, `host` is but a name by which clients may ask, and
   * `port`, `socketPath` and `maxConnections` mean nothing. After `close()` it answers 503.
   *
   * @throws {Error} If the server runs in the background, or was closed before it was mounted.
   */
  get handler(): (request: IncomingMessage, response: ServerResponse) => void {
    this.#mounted ??= this.#mount();
    return this.#mounted.handle;
  }

  /** True if commands wait. Never blocks, and may be called in the tightest of loops. */
  hasCommands(): boolean {
    // A plain read, for Atomics.load() takes longer than all the rest: who polls and sees a call late polls again.
    if (this.#memory[CELL.CALLS] === this.#heard) {
      this.#publish();
      return false;
    }
    const calls = Atomics.load(this.#memory, CELL.CALLS); // before the sample: see "The question" above
    this.#publish();
    if (this.#holdsCommands()) return true; // the question stays open: what comes of the command answers it
    this.#answer(calls);
    this.#heard = calls;
    return false;
  }

  /**
   * Takes the next command off the queue. Never blocks.
   *
   * @throws {EmptyError} If no command waits.
   */
  receiveCommand(): ControlCommand {
    if (!this.#holdsCommands()) throw new EmptyError('No command waits');
    const tail = Atomics.load(this.#memory, CELL.TAIL);
    const command = COMMANDS[this.#memory[CELL.RING + (tail & (this.#slots - 1))] as number] as ControlCommand;
    Atomics.store(this.#memory, CELL.TAIL, (tail + 1) | 0);
    return command;
  }

  /**
   * Waits for the next command without using the CPU, and takes it off the queue; for a host that sleeps while it is
   * paused. Keeps the process alive meanwhile, unless the server is mounted.
   *
   * @param options.signal Ends the wait: the promise rejects with the signal's reason, and no command is lost.
   * @throws {EmptyError} If no command waits and the server is closed.
   */
  async nextCommand(options: { signal?: AbortSignal | undefined } = {}): Promise<ControlCommand> {
    const { signal } = options;
    for (;;) {
      signal?.throwIfAborted();
      // The second look is there because the plain read of the first may be late, and no ring may follow.
      if (this.hasCommands() || this.#holdsCommands()) return this.receiveCommand();
      if (this.#state === 'closed' && this.#worker === null) throw new EmptyError('The server is closed');
      await this.#sleep(signal);
    }
  }

  /**
   * Stops serving: no new connections, requests under way are answered, and what is still open after a second is cut.
   * Commands accepted before stay receivable. Calling it again is fine. A mounted server leaves connections alone, and
   * answers 503 from now on.
   *
   * @returns A promise that resolves when the port is free and the thread is gone, if there was one.
   */
  close(): Promise<void> {
    this.#closed ??= this.#stopThread();
    return this.#closed;
  }

  // ── The status ──

  /** Samples the status into its cell. */
  #publish(): void {
    const status = this.#sampleStatus();
    if (status !== this.#published) {
      this.#published = status;
      Atomics.store(this.#memory, CELL.STATUS, status);
    }
    this.#memory[CELL.SAMPLED] = this.#memory[CELL.CLOCK] as number;
  }

  /** Calls the provider. Returns the place in STATUSES, or the place behind the last one if the provider fails. */
  #sampleStatus(): number {
    try {
      const status: SystemStatus | null | undefined = this.#systemStatus();
      const statusName = status?.statusName;
      if (statusName !== undefined) {
        if (statusName === STATUS_NAMES[this.#published]) return this.#published;
        const place = STATUS_NAMES.indexOf(statusName);
        if (place !== -1) return place;
      }
      if (isPromise(status)) status.then(undefined, () => {}); // its failure must not end the host
      this.#warnOnce(`systemStatus must return SystemStatus.ACTIVE or another but OFFLINE, got ${inspect(status)}`);
    } catch (error) {
      this.#warnOnce(`systemStatus failed: ${describeError(error)}`);
    }
    return STATUSES.length;
  }

  #answer(calls: number): void {
    Atomics.store(this.#memory, CELL.ANSWER, calls);
    Atomics.notify(this.#memory, CELL.ANSWER);
  }

  /** A provider may fail millions of times an hour: each message is shown once, and only so many of them. */
  #warnOnce(message: string): void {
    if (this.#warned.has(message) || this.#warned.size >= MAX_WARNINGS) return;
    this.#warned.add(message);
    warn(message);
  }

  // ── The queue ──

  #holdsCommands(): boolean {
    return Atomics.load(this.#memory, CELL.HEAD) !== Atomics.load(this.#memory, CELL.TAIL);
  }

  /** Waits for the thread to ring, unless a command is there. */
  async #sleep(signal: AbortSignal | undefined): Promise<void> {
    this.#setSleepers(this.#sleepers + 1); // before the look at the queue: a command that comes after it rings
    try {
      if (!this.#holdsCommands()) await once(this.#alarm, 'ring', signal && { signal }).catch(() => {});
    } finally {
      this.#setSleepers(this.#sleepers - 1);
    }
  }

  /** Tells the thread whether to ring for a command. */
  #setSleepers(sleepers: number): void {
    this.#sleepers = sleepers;
    Atomics.store(this.#memory, CELL.SLEEPING, sleepers > 0 ? 1 : 0);
    this.#keepAlive();
  }

  /** Tells node whether to stay alive for the thread: while it is started for the first time, ends, or is slept for. */
  #keepAlive(): void {
    const isNeeded = this.#state !== 'running' || this.#sleepers > 0;
    for (const one of [this.#worker, this.#restartTimer]) {
      if (isNeeded) one?.ref();
      else one?.unref();
    }
  }

  /** The thread has rung: for a command, a question or both. */
  #onRing(): void {
    Atomics.store(this.#memory, CELL.RUNG, 0); // first: whatever comes from now on rings again
    this.#alarm.emit('ring');
    setImmediate(() => this.#answerQuestion()); // the sleepers come first: what they do belongs to the answer
  }

  #answerQuestion(): void {
    const calls = Atomics.load(this.#memory, CELL.CALLS); // before the sample
    const question = Atomics.load(this.#memory, CELL.QUESTION);
    if (((Atomics.load(this.#memory, CELL.ANSWER) - question) | 0) >= 0) return;
    this.#publish();
    this.#answer(calls);
  }

  // ── Serving ──

  /** @throws {Error} If the server was started, mounted or closed before. */
  #leaveIdle(state: 'starting' | 'mounted'): void {
    const reasons = { starting: 'runs already', running: 'runs already', mounted: 'is mounted', closed: 'was closed' };
    const verb = state === 'mounted' ? 'mount' : 'run';
    if (this.#state !== 'idle') throw new Error(`Cannot ${verb} the server: it ${reasons[this.#state]}`);
    this.#publish();
    this.#state = state;
  }

  #mount(): Service {
    this.#leaveIdle('mounted');
    // The host answers a question in the turn of the event loop that asks it: there is nothing to give up on.
    return serve({ ...this.#data, questionMs: Infinity, socketPath: undefined }, {
      postMessage: (message: ThreadMessage) => {
        if (message === null) this.#onRing();
      },
    });
  }

  /** Resolves when the thread listens; rejects with the reason when it is gone without that. */
  async #startThread(): Promise<void> {
    const worker = this.#createThread();
    this.#worker = worker;
    await new Promise<void>((resolve, reject) => {
      let listeningSince = Infinity;
      let reason: Error = new Error('The thread of the web API ended');
      worker.on('message', (message: ThreadMessage) => {
        if (message === null) return this.#onRing();
        if ('listening' in message) {
          listeningSince = performance.now();
          this.#onListening(message.listening);
          return resolve();
        }
        if ('failed' in message) {
          reason = this.#failure(message.failed.message, message.failed.code);
        }
        worker.terminate();
      });
      worker.on('error', (error: NodeJS.ErrnoException) => {
        const isChanged = error.name === 'ReferenceError' || error.name === 'SyntaxError';
        const hint = isChanged ? 'its thread runs the source text of serve(), which was changed' : 'its thread failed';
        reason = this.#failure(`${hint}: ${describeError(error)}`, error.code);
      });
      worker.on('exit', () => {
        this.#worker = null;
        // It may have rung in vain, or have put in a command and not counted the call.
        Atomics.store(this.#memory, CELL.RUNG, 0);
        Atomics.add(this.#memory, CELL.CALLS, 1);
        this.#alarm.emit('ring');
        if (this.#state === 'closed') resolve(); // what is not wanted any more has not failed
        else reject(reason);
        if (performance.now() - listeningSince >= STEADY_MS) this.#restarts = 0;
        if (listeningSince !== Infinity) this.#restartLater(reason);
      });
      this.#keepAlive(); // now: a listener for messages keeps the process alive
    });
  }

  /** @throws {Error} If there may be no threads. */
  #createThread(): Worker {
    const source = `
      const { parentPort, workerData } = process.getBuiltinModule('node:worker_threads');
      const service = (${serve})(workerData, parentPort);
      process.on('uncaughtException', service.fail);
      parentPort.on('message', service.close); // the host has nothing else to say
      service.start();
    `;
    try {
      return new Worker(source, {
        eval: true,
        workerData: this.#data,
        name: 'runtime-control',
        execArgv: [], // the host's own --import and --require are not for this thread
        env: {},
        stdout: true, // else node opens the host's own streams for it, which takes time;
        stderr: true, // but the thread prints nothing, and what node may warn it of is lost
        resourceLimits: HEAP_LIMITS,
      });
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      const hint = code === 'ERR_ACCESS_DENIED' ? 'a thread needs --allow-worker' : 'no thread can be started';
      throw this.#failure(`${hint}: ${describeError(error)}`, code);
    }
  }

  #failure(reason: string, code: string | undefined): Error {
    return Object.assign(new Error(`Cannot serve at ${this.#place()}: ${reason}`), { code });
  }

  #onListening({ port, isPublic, socketId }: Listening): void {
    this.#data.port = port; // for the threads that may have to take the place of this one
    this.#socketId = socketId;
    if (this.#state !== 'starting') return;
    this.#state = 'running';
    this.#keepAlive();
    if (!isPublic) return;
    const who = this.#data.token === undefined ? 'whoever reaches it' : 'whoever reaches it and knows the token';
    warn(`The web API listens at ${this.#place()}, not on loopback alone: ${who} controls this program`);
  }

  /** Starts the thread again after a pause, which grows until one thread has listened for a while. */
  #restartLater(reason: Error): void {
    if (this.#state !== 'running') return;
    if (this.#restarts === RESTARTS_A_MINUTE) {
      warn(`The web API at ${this.#place()} does not come back to stay, and is still tried again: ${reason.message}`);
    }
    const pauseMs = Math.min(100 * 2 ** this.#restarts, MAX_PAUSE_MS);
    this.#restarts += 1;
    debug('the thread is started again in %d ms: %s', pauseMs, reason.message);
    this.#restartTimer = setTimeout(() => this.#startThread().catch((error) => this.#restartLater(error)), pauseMs);
    this.#keepAlive();
  }

  #place(): string {
    const { host, port, socketPath } = this.#data;
    return socketPath ?? authorityOf(host, port);
  }

  async #stopThread(): Promise<void> {
    this.#state = 'closed';
    clearTimeout(this.#restartTimer);
    const worker = this.#worker;
    if (worker !== null) {
      worker.ref();
      worker.postMessage('close');
      const grace = setTimeout(() => worker.terminate(), GRACE_MS);
      await new Promise((resolve) => worker.once('exit', resolve));
      clearTimeout(grace);
    }
    this.#mounted?.unmount();
    this.#removeSocket();
    this.#alarm.emit('ring'); // for those who sleep though there never was a thread
  }

  /** Unless the file is another's by now. */
  #removeSocket(): void {
    const { socketPath } = this.#data;
    if (socketPath === undefined) return;
    try {
      const { ino, mtimeMs } = lstatSync(socketPath);
      if (`${ino} ${mtimeMs}` === this.#socketId) unlinkSync(socketPath);
    } catch {
      // It is gone, or out of reach: then it stays for the next server to take away.
    }
  }
}

// ───── WebApiClient ──────────────────────────────────────────────────────────────────────────────────────────────

/** What came of a request. */
export type WebApiReply =
  | {
    /** It was answered with 200. */
    readonly ok: true;
    /** The name of the status, or the result of a command. */
    readonly value: string;
  }
  | {
    /** It was refused, or not answered. */
    readonly ok: false;
    /** Why, in a line. */
    readonly error: string;
    /** Whether a control server has refused it; if not, there was none, or none in time. */
    readonly answered: boolean;
  };

/** How a client behaves. */
export interface WebApiClientOptions {
  /** How long one request may take in all, in milliseconds; default 5000. */
  timeout?: number | undefined;
  /** The server's token, if it has one. */
  token?: string | undefined;
  /** Path of the server's Unix socket, in place of host and port. */
  socketPath?: string | undefined;
}

/** How `waitFor()` waits. */
export interface WaitOptions {
  /** How long to wait in all, in milliseconds; default 30 000. */
  timeout?: number | undefined;
  /** Ends the wait: the promise rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
  /** Called with the first status read and with each that differs from the one before. */
  onStatus?: ((status: SystemStatus) => void) | undefined;
}

/**
 * Controls a system from outside. A request that fails is not an exception: the status is then `OFFLINE` and the
 * result of a command `null`; `request()` also tells why. Connections are kept for the next request, but do not keep
 * the process alive. The host is `localhost` and the port 8391 unless told otherwise.
 *
 * @throws {TypeError} If an argument has the wrong type or an option is unknown.
 * @throws {RangeError} If an argument is out of range.
 */
export class WebApiClient {
  /** The base URL of the web API, such as `http://localhost:8391`, or `unix:` and the path of the socket. */
  readonly baseUrl: string;
  readonly #target: { host: string; port: number } | { socketPath: string };
  readonly #headers: { Authorization?: string };
  readonly #timeoutMs: number;
  readonly #http: typeof import('node:http');
  readonly #agent: Agent;

  constructor(host: string = DEFAULT_HOST, port: number = DEFAULT_PORT, options: WebApiClientOptions = {}) {
    checkRuntime('WebApiClient');
    checkType('host', host, 'string');
    checkInteger('port', port, 1, 65535);
    checkOptions('WebApiClient', options, ['timeout', 'token', 'socketPath']);
    const { timeout = 5000, token } = options;
    checkTimeout(timeout);
    checkToken(token);
    const socketPath = resolveSocketPath(options.socketPath, host, port);
    this.#target = socketPath === undefined ? { host, port } : { socketPath };
    this.baseUrl = socketPath === undefined ? `http://${authorityOf(host, port)}` : `unix:${socketPath}`;
    this.#headers = token === undefined ? {} : { Authorization: `Bearer ${token}` };
    this.#timeoutMs = timeout;
    this.#http = process.getBuiltinModule('node:http'); // takes time to load, and mere hosts do not need it
    // An idle connection is dropped long before the server does it: a request should not meet a closing one.
    this.#agent = new this.#http.Agent({ keepAlive: true, timeout: 4000 });
  }

  /**
   * The status of the system; `OFFLINE` if the request failed.
   *
   * @param signal Cuts the request short: it then counts as failed.
   */
  async getStatus(signal?: AbortSignal): Promise<SystemStatus> {
    return (await this.#readStatus(signal)) ?? SystemStatus.OFFLINE;
  }

  /** Asks the system to pause. Resolves with the result, `'ok'`, or with `null` if the request failed. */
  pause(): Promise<string | null> {
    return this.#send('pause');
  }

  /** Asks the system to resume. Resolves with the result, `'ok'`, or with `null` if the request failed. */
  resume(): Promise<string | null> {
    return this.#send('resume');
  }

  /** Asks the system to save its state. Resolves with the result, `'ok'`, or with `null` if the request failed. */
  saveState(): Promise<string | null> {
    return this.#send('save-state');
  }

  /** Asks the system to shut down. Resolves with the result, `'ok'`, or with `null` if the request failed. */
  shutdown(): Promise<string | null> {
    return this.#send('shutdown');
  }

  /**
   * Makes one request, and tells all that came of it. Never rejects.
   *
   * @param signal Cuts the request short: it then counts as not answered.
   */
  async request(endpoint: 'status' | ControlCommand, signal?: AbortSignal): Promise<WebApiReply> {
    const [method, field] = endpoint === 'status' ? ['GET', 'status'] : ['POST', 'result'];
    const end = new AbortController();
    const abort = (): void => end.abort();
    const timer = setTimeout(abort, this.#timeoutMs);
    try {
      signal?.throwIfAborted();
      signal?.addEventListener('abort', abort, { once: true });
      const { statusCode, body } = await this.#exchange(method as string, `/api/${endpoint}`, end.signal);
      const { [field as string]: value, error } = body;
      if (statusCode === 200 && typeof value === 'string') return { ok: true, value };
      if (statusCode !== 200 && typeof error === 'string') return { ok: false, error, answered: true };
      const what = `${this.baseUrl} is not a control server: it answered ${statusCode}`;
      return { ok: false, error: what, answered: false };
    } catch (error) {
      const isTooLate = end.signal.aborted && signal?.aborted !== true;
      const why = isTooLate ? `nothing within ${this.#timeoutMs / 1000} s` : describeError(error);
      return { ok: false, error: `${this.baseUrl} does not answer: ${why}`, answered: false };
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener('abort', abort);
    }
  }

  /**
   * Resolves when the system reports the status, asking twenty times a second. A command takes effect when the host
   * takes it off the queue, so the first statuses read may be those from before. A system that is there but cannot
   * tell its status (500) is waited for.
   *
   * @throws {DOMException} `TimeoutError` if the system does not get there in time.
   * @throws The signal's reason if that is aborted.
   * @throws {TypeError} If an argument has the wrong type or an option is unknown.
   * @throws {RangeError} If the timeout is out of range.
   */
  async waitFor(status: SystemStatus, options: WaitOptions = {}): Promise<void> {
    const awaited = Object.values(SystemStatus).find((one) => one.statusName === status?.statusName);
    if (awaited === undefined) throw new TypeError(`status must be a SystemStatus, got ${inspect(status)}`);
    checkOptions('waitFor', options, ['timeout', 'signal', 'onStatus']);
    const { timeout = 30_000, signal, onStatus } = options;
    checkTimeout(timeout);
    if (onStatus !== undefined) checkType('onStatus', onStatus, 'function');
    const limit = AbortSignal.timeout(Math.ceil(timeout)); // it takes whole milliseconds only
    const end = signal === undefined ? limit : AbortSignal.any([limit, signal]);
    let last: SystemStatus | null = null;
    for (;;) {
      end.throwIfAborted();
      const current = await this.#readStatus(end);
      end.throwIfAborted(); // a request that is cut short reads as OFFLINE
      if (current !== null && current !== last) onStatus?.(current);
      if (current === awaited) return;
      last = current;
      await sleep(POLL_MS, undefined, { signal: end }).catch(() => {});
    }
  }

  /** Ends all connections, and so the requests under way. The client can be used again all the same. */
  close(): void {
    this.#agent.destroy();
  }

  /** Null if the system is there but gives no status that is known. */
  async #readStatus(signal?: AbortSignal): Promise<SystemStatus | null> {
    const reply = await this.request('status', signal);
    if (reply.ok) return STATUSES[STATUS_NAMES.indexOf(reply.value)] ?? null;
    return reply.answered ? null : SystemStatus.OFFLINE;
  }

  async #send(command: ControlCommand): Promise<string | null> {
    const reply = await this.request(command);
    return reply.ok ? reply.value : null;
  }

  async #exchange(
    method: string,
    path: string,
    signal: AbortSignal,
    agent: Agent | false = this.#agent,
  ): Promise<{ statusCode: number | undefined; body: Record<string, unknown> }> {
    const request = this.#http.request({ ...this.#target, agent, method, path, signal, headers: this.#headers });
    request.on('error', () => {}); // once() below reports it, or the response that is cut short
    request.end();
    let response: IncomingMessage;
    try {
      [response] = await once(request, 'response', { signal });
    } catch (error) {
      // The server had ended this kept connection, unseen by a client that was busy. A command may be repeated: what
      // asks for the same state changes nothing, and a second save is a second save.
      if (request.reusedSocket && !signal.aborted) return this.#exchange(method, path, signal, false);
      throw error;
    }
    response.setEncoding('utf8');
    let text = '';
    for await (const chunk of response) {
      text += chunk;
      if (text.length > MAX_BODY_LENGTH) throw new Error(`a body of more than ${MAX_BODY_LENGTH} characters`);
    }
    return { statusCode: response.statusCode, body: parseObject(text) };
  }
}

function authorityOf(host: string, port: number): string {
  return `${host.includes(':') ? `[${host}]` : host}:${port}`; // an IPv6 address, if it has one
}

/** What is no JSON object has no fields. */
function parseObject(text: string): Record<string, unknown> {
  try {
    return Object(JSON.parse(text));
  } catch {
    return {};
  }
}

// ───── launch: a host loop ───────────────────────────────────────────────────────────────────────────────────────
//
//             pause                        resume
//  active ───────────▶ pausing ──▶ paused ───────────▶ resuming ──▶ active
//  save-state is taken while paused: from active it goes pausing, paused, (save), resuming, active
//  shutdown from any state ──▶ shutting down ──▶ the end

/** What `launch()` runs. Every method may be synchronous or return a promise. */
export interface System {
  /** One piece of the work. Called over and over while the system is active. */
  step(): unknown;
  /** Called with the web API's address before the first step, if there is one. If it fails, the launch does. */
  onListening?(address: WebApiAddress): unknown;
  /** Called while the status is `pausing`. If it fails the system stays active. */
  onPaused?(): unknown;
  /** Called while the status is `resuming`. If it fails the system stays paused. */
  onResumed?(): unknown;
  /** Saves a checkpoint. Called on `save-state`, between two steps, and a last time at shutdown. */
  saveState?(): unknown;
  /** Called at the very end, after the last `saveState()`. */
  onShutdown?(): unknown;
}

/** How `launch()` serves the web API. */
export interface LaunchConfig {
  /** Host and port of the web API, default `['localhost', 8391]`; null for no web API at all. */
  webApiAddress?: readonly [host: string, port: number] | null | undefined;
  /** How many commands may wait, from 1 to 65536, default 16. */
  webApiCommandQueueSize?: number | undefined;
  /** Further options of the server. */
  webApiOptions?:
    | Pick<WebApiServerOptions, 'socketPath' | 'token' | 'allowedHosts' | 'allowedOrigins' | 'maxConnections'>
    | undefined;
}

/**
 * Runs a system until it is shut down, by command or by SIGINT or SIGTERM; once the first signal is noticed, the next
 * one kills as it would without `launch()`. While the system is paused it uses no CPU. Steps that never await are fine:
 * commands, timers and signals get their turn every 10 ms, or after each step that takes longer.
 *
 * A hook that fails is reported with `process.emitWarning()`, and the system goes on. A step that throws ends the
 * launch: the promise rejects with the error, and no state is saved.
 *
 * @throws {TypeError} If an argument has the wrong type or an option is unknown.
 * @throws {RangeError} If an option is out of range.
 * @throws {Error} If the web API cannot listen (see `WebApiServer.runInBackground()`); no step has run then.
 */
export async function launch(system: System, config: LaunchConfig = {}): Promise<void> {
  await new Launch(system, config).run();
}

class Launch {
  readonly #system: System;
  readonly #server: WebApiServer | null;
  readonly #end: AbortController = new AbortController();
  #status: SystemStatus = SystemStatus.ACTIVE;
  #turnEnds = 0; // when the event loop is due

  constructor(system: System, config: LaunchConfig) {
    checkSystem(system);
    checkOptions('launch', config, ['webApiAddress', 'webApiCommandQueueSize', 'webApiOptions']);
    const { webApiAddress = [DEFAULT_HOST, DEFAULT_PORT], webApiOptions = {} } = config;
    const { webApiCommandQueueSize = DEFAULT_MAX_QUEUE_SIZE } = config;
    checkAddress('webApiAddress', webApiAddress);
    checkInteger('webApiCommandQueueSize', webApiCommandQueueSize, 1, MAX_QUEUE_SIZE);
    checkOptions('webApiOptions', webApiOptions, WEB_API_OPTIONS);
    this.#system = system;
    this.#server = webApiAddress && new WebApiServer({
      ...webApiOptions,
      systemStatus: () => this.#status,
      host: webApiAddress[0],
      port: webApiAddress[1],
      maxQueueSize: webApiCommandQueueSize,
    });
  }

  async run(): Promise<void> {
    const onSignal = (): void => {
      removeHandlers(); // so that the next signal does what it does by default: it kills
      this.#end.abort();
    };
    const removeHandlers = (): void => void process.off('SIGINT', onSignal).off('SIGTERM', onSignal);
    process.on('SIGINT', onSignal).on('SIGTERM', onSignal);
    try {
      const address = await this.#server?.runInBackground();
      if (address !== undefined) await this.#system.onListening?.(address);
      await this.#work();
      this.#become(SystemStatus.SHUTTING_DOWN);
      await this.#call('saveState');
      await this.#call('onShutdown');
    } finally {
      await this.#server?.close();
      removeHandlers();
    }
  }

  async #work(): Promise<void> {
    const end = this.#end.signal;
    while (!end.aborted) {
      if (this.#status === SystemStatus.PAUSED) await this.#obeyNext(end);
      else await this.#advance();
      await this.#giveTurn();
      while (!end.aborted && this.#server?.hasCommands()) {
        await this.#obey(this.#server.receiveCommand());
        await this.#giveTurn(); // commands may come as fast as they are obeyed
      }
    }
  }

  /** Lets the event loop have its turn if that is due. */
  async #giveTurn(): Promise<void> {
    if (performance.now() < this.#turnEnds) return;
    await nextTurn(); // the rest of this turn: it may not look for signals any more
    await nextTurn(); // a whole one
    this.#turnEnds = performance.now() + TURN_MS;
  }

  /** Steps until a command waits, the event loop is due, or a step gives a promise, which it returns. */
  #advance(): unknown {
    const system = this.#system;
    const server = this.#server;
    const turnEnds = this.#turnEnds;
    do {
      const result = system.step();
      if (isPromise(result)) return result;
    } while (!server?.hasCommands() && performance.now() < turnEnds);
    return undefined;
  }

  async #obeyNext(signal: AbortSignal): Promise<void> {
    try {
      const command = await this.#server?.nextCommand({ signal });
      if (command !== undefined) await this.#obey(command);
    } catch (error) {
      if (!signal.aborted) throw error;
    }
  }

  async #obey(command: ControlCommand): Promise<void> {
    switch (command) {
      case 'pause': await this.#pause(); break;
      case 'resume': await this.#resume(); break;
      case 'save-state': await this.#save(); break;
      case 'shutdown': this.#end.abort(); break;
    }
  }

  /** Returns whether the system is paused now. */
  async #pause(): Promise<boolean> {
    if (this.#status === SystemStatus.PAUSED) return true;
    this.#become(SystemStatus.PAUSING);
    const paused = await this.#call('onPaused');
    this.#become(paused ? SystemStatus.PAUSED : SystemStatus.ACTIVE);
    return paused;
  }

  async #resume(): Promise<void> {
    if (this.#status === SystemStatus.ACTIVE) return;
    this.#become(SystemStatus.RESUMING);
    const resumed = await this.#call('onResumed');
    this.#become(resumed ? SystemStatus.ACTIVE : SystemStatus.PAUSED);
  }

  async #save(): Promise<void> {
    const wasActive = this.#status === SystemStatus.ACTIVE;
    if (!(await this.#pause())) return;
    await this.#call('saveState');
    if (wasActive) await this.#resume();
  }

  #become(status: SystemStatus): void {
    this.#status = status;
    this.#server?.hasCommands(); // publishes it: the hook that comes next may block this thread for long
  }

  /** Calls a hook. Returns whether it did its work; one that is not there has none. */
  async #call(hook: 'onPaused' | 'onResumed' | 'saveState' | 'onShutdown'): Promise<boolean> {
    try {
      await this.#system[hook]?.();
      return true;
    } catch (error) {
      warn(`${hook} failed: ${describeError(error)}`);
      return false;
    }
  }
}

function isPromise(value: unknown): value is PromiseLike<unknown> {
  return typeof value === 'object' && value !== null && 'then' in value && typeof value.then === 'function';
}

// ───── Helpers ───────────────────────────────────────────────────────────────────────────────────────────────────

// Shows what happens, on stderr, if the environment has NODE_DEBUG=control.
const debug = debuglog('control');

function warn(message: string): void {
  process.emitWarning(message, 'ControlWarning');
}

/** In a line: node's connection errors may have a code and no message. Under jest, not all are instances of Error. */
function describeError(error: unknown): string {
  const { message, code, name } = Object(error) as Partial<NodeJS.ErrnoException>;
  return typeof message === 'string' ? message || code || name || 'Error' : inspect(error);
}

/** Says what is missing in place of failing somewhere. */
function checkRuntime(owner: string): void {
  if (typeof process.getBuiltinModule === 'function') return;
  throw new Error(`${owner} needs Node 20.19 or newer, or a recent Deno or Bun; this is ${process.version}`);
}

function checkInteger(name: string, value: unknown, least: number, most: number): void {
  const message = `${name} must be an integer from ${least} to ${most}, got ${inspect(value)}`;
  if (typeof value !== 'number') throw new TypeError(message);
  if (!Number.isInteger(value) || value < least || value > most) throw new RangeError(message);
}

function checkTimeout(value: unknown): void {
  const message = `timeout must be a number of milliseconds above 0 and below 2³¹, got ${inspect(value)}`;
  if (typeof value !== 'number') throw new TypeError(message);
  if (!(value > 0 && value <= MAX_TIMEOUT_MS)) throw new RangeError(message);
}

function checkType(name: string, value: unknown, type: 'string' | 'function' | 'object'): void {
  if (typeof value === type && value !== null && value !== '') return;
  const article = type === 'object' ? 'an' : type === 'string' ? 'a non-empty' : 'a';
  const message = `${name} must be ${article} ${type}, got ${inspect(value)}`;
  throw value === '' ? new RangeError(message) : new TypeError(message);
}

/** Never shows it. */
function checkToken(token: unknown): void {
  if (token === undefined) return;
  const message = 'token must be a string of 16 to 1024 visible ASCII characters, got';
  if (typeof token !== 'string') throw new TypeError(`${message} a value of type ${typeof token}`);
  if (!/^[!-~]*$/.test(token)) throw new RangeError(`${message} other characters`);
  if (token.length < 16 || token.length > 1024) throw new RangeError(`${message} ${token.length}`);
}

function checkEntries(name: string, value: unknown, form: RegExp, examples: string): void {
  if (!Array.isArray(value)) throw new TypeError(`${name} must be an array, got ${inspect(value)}`);
  for (const entry of value) {
    const message = `${name} must hold strings such as ${examples}, got ${inspect(entry)}`;
    if (typeof entry !== 'string') throw new TypeError(message);
    if (!form.test(entry)) throw new RangeError(message);
  }
}

/** @returns The absolute path; the program may change its directory. */
function resolveSocketPath(socketPath: unknown, host: string, port: number): string | undefined {
  if (socketPath === undefined) return undefined;
  checkType('socketPath', socketPath, 'string');
  if (host !== DEFAULT_HOST || port !== DEFAULT_PORT) {
    throw new TypeError('socketPath stands in place of host and port: give it, or them');
  }
  const path = resolvePath(socketPath as string);
  const length = Buffer.byteLength(path);
  if (length <= MAX_SOCKET_PATH_LENGTH && !path.includes('\0')) return path;
  const form = `at most ${MAX_SOCKET_PATH_LENGTH} bytes long, without NUL`;
  throw new RangeError(`socketPath must be ${form}, got ${inspect(path)}`);
}

function checkAddress(name: string, value: unknown): void {
  if (value === null) return;
  if (!Array.isArray(value) || value.length !== 2) {
    throw new TypeError(`${name} must be [host, port] or null, got ${inspect(value)}`);
  }
  checkType(`the host of ${name}`, value[0], 'string');
  checkInteger(`the port of ${name}`, value[1], 0, 65535);
}

function checkSystem(system: System): void {
  checkType('system', system, 'object');
  checkType('system.step', system.step, 'function');
  for (const hook of ['onListening', 'onPaused', 'onResumed', 'saveState', 'onShutdown'] as const) {
    if (system[hook] !== undefined) checkType(`system.${hook}`, system[hook], 'function');
  }
}

/** A misspelt option would silently be the default. */
function checkOptions(owner: string, options: object, known: readonly string[]): void {
  checkType(`the options of ${owner}`, options, 'object');
  const unknown = Object.keys(options).find((name) => !known.includes(name));
  if (unknown !== undefined) throw new TypeError(`${owner} has no option ${unknown}; it has ${known.join(', ')}`);
}

// ───── Licence ───────────────────────────────────────────────────────────────────────────────────────────────────
//
// MIT License
//
// Copyright (c) 2026 The runtime-control authors
//
// Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
// documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
// rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to
// permit persons to whom the Software is furnished to do so, subject to the following conditions:
//
// The above copyright notice and this permission notice shall be included in all copies or substantial portions of
// the Software.
//
// THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO
// THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
// AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT,
// TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
// SOFTWARE.
