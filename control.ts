/*! control.ts 0.7.1 – MIT – pause, resume, save and shut down a long-running program over HTTP */
// SPDX-License-Identifier: MIT
//
// Copy this file into a program that runs for days. You can then pause, resume, save and shut down that program from
// outside. The HTTP server runs in its own thread and shares memory with the program, so it responds within
// milliseconds even while the program computes for minutes without yielding.
//
//   import { SystemStatus, WebApiServer } from './control.ts';
//
//   let status = SystemStatus.ACTIVE;
//   const server = new WebApiServer({ systemStatus: () => status });
//   await server.runInBackground();
//   while (status !== SystemStatus.SHUTTING_DOWN) {
//     if (server.hasCommands()) handle(server.receiveCommand()); // 'pause', 'resume', 'shutdown' or 'save-state'
//     else if (status === SystemStatus.PAUSED) handle(await server.nextCommand()); // sleeps until one comes
//     else work();
//   }
//   await server.close();
//
// Or let launch({ step: work, saveState: save }) provide the loop, the statuses and the signal handlers.
//
//   GET  /api/status       200 {"status":"active"}, or "pausing", "paused", "resuming", "shutting down"
//   GET  /api/info         who did what and why, what came of it, and what the program is doing
//   POST /api/pause        200 {"result":"ok"}: the command is on the queue; 503 {"error":"…"}: the queue is full
//        /api/resume, /api/shutdown, /api/save-state: likewise; with `Prefer: wait=60`, what came of the command
//
// Sections, in order: statuses and commands, shared memory, policy, server thread, WebApiServer (the host's side),
// WebApiClient, launch (a ready-made loop), checks. "Host" is the controlled program. The file imports Node's
// built-ins only, and importing it has no side effects. It runs on Node 20.19, 22.12 and newer, Deno and Bun.

import { once } from 'node:events';
import { lstatSync, statSync, unlinkSync } from 'node:fs';
import { hostname } from 'node:os';
import { parse as parsePath, resolve as resolvePath } from 'node:path';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import { Worker } from 'node:worker_threads';
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';

/** The version of this file. */
export const VERSION: string = '0.7.1';

/** The default host name of servers and clients. */
export const DEFAULT_HOST = 'localhost';

/** The default port of servers and clients. */
export const DEFAULT_PORT = 8391;

/** The default capacity of the command queue. */
export const DEFAULT_MAX_QUEUE_SIZE = 16;

const MAX_QUEUE_SIZE = 65_536;
const DEFAULT_MAX_CONNECTIONS = 64;
const MAX_SOCKET_PATH_LENGTH = 94; // bytes; macOS allows 103, and the temporary path is 8 longer
const HEAP_MB = 64; // limit of the server thread's heap, apart from its connections
const RESPONSE_MS = 200; // how long the host waits for the response to a shutdown; a busy machine may take long
const BLOCK_MS = 500; // nextCommandSync() looks after the server thread this often
const DEAD_MS = 3000; // and replaces it if its clock has stood still this long
const GRACE_MS = 1000; // for pending requests when the server closes
const HEALTHY_MS = 10_000; // a thread that has listened this long counts as healthy
const MAX_RESTART_DELAY_MS = 5000;
const WARNING = 'ControlWarning'; // the type of all warnings
const MAX_WARNINGS = 20; // about systemStatus() and describe()
const MAX_VALUE_LENGTH = 1000; // characters, also of `error`
const MAX_DETAIL_BYTES = 4096; // as JSON
const MAX_BODY_LENGTH = 65_536; // characters of a response that the client reads
const POLL_INTERVAL_MS = 50; // of waitFor()
const WAIT_S = 1; // waitFor() asks again after this: a program that does not poll may have changed
const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR2'] as const; // launch() handles them
const KILL_MS = 1000; // a second SIGINT this long after the first kills the program
const MAX_SLEEP_MS = 2 ** 31 - 1; // the limit of setTimeout()
const TURN_MS = 10; // launch() runs steps this long before it yields to timers and signals

// ───── Statuses and commands ─────────────────────────────────────────────────────────────────────────────────────

/** The status of a system. */
export class SystemStatus {
  /** Running normally: `'active'`. */
  static readonly ACTIVE: SystemStatus = new SystemStatus('active');
  /** Changing from active to paused: `'pausing'`. */
  static readonly PAUSING: SystemStatus = new SystemStatus('pausing');
  /** Doing nothing until resumed: `'paused'`. */
  static readonly PAUSED: SystemStatus = new SystemStatus('paused');
  /** Changing from paused to active: `'resuming'`. */
  static readonly RESUMING: SystemStatus = new SystemStatus('resuming');
  /** About to end: `'shutting down'`. */
  static readonly SHUTTING_DOWN: SystemStatus = new SystemStatus('shutting down');
  /** The client could not get the status: `'offline'`. Servers never send it. */
  static readonly OFFLINE: SystemStatus = new SystemStatus('offline');

  /** The lowercase name, as sent by `GET /api/status`. */
  readonly statusName: 'active' | 'pausing' | 'paused' | 'resuming' | 'shutting down' | 'offline';

  private constructor(statusName: SystemStatus['statusName']) {
    this.statusName = statusName;
    Object.freeze(this);
  }

  /** Returns `statusName`. */
  toString(): string {
    return this.statusName;
  }
}
Object.freeze(SystemStatus);

/** A command to the host. One for the current status, such as `pause` while paused, should be a no-op. */
export type ControlCommand = 'pause' | 'resume' | 'shutdown' | 'save-state';

// Shared memory holds indexes into these lists.
const { ACTIVE, PAUSING, PAUSED, RESUMING, SHUTTING_DOWN, OFFLINE } = SystemStatus;
const STATUSES: readonly SystemStatus[] = [ACTIVE, PAUSING, PAUSED, RESUMING, SHUTTING_DOWN]; // of a server
const STATUS_NAMES: readonly string[] = STATUSES.map((status) => status.statusName);
const COMMANDS: readonly ControlCommand[] = ['pause', 'resume', 'shutdown', 'save-state'];

/** What came of a command. */
export interface CommandOutcome {
  /** For the client, such as the path of a checkpoint: a finite number, or a string, cut at 1000 characters. */
  value?: string | number | undefined;
  /** If the command failed: what was thrown. */
  error?: unknown;
}

// ───── Shared memory ─────────────────────────────────────────────────────────────────────────────────────────────
//
//  clients ──HTTP──▶ server thread ──▶ [ command queue ] ──▶ host: hasCommands(), receiveCommand()
//                      ▲     ▲                                │
//                      │     └───────── [ status ] ◀──────────┤ systemStatus()
//                      └─────────────── messages ◀────────────┘ describe(), report(), post()
//
// The two threads share one Int32Array. While both run, each cell has one writer, except where noted. The two writers
// do not share a cache line of 64 bytes.
//
// The queue is a ring buffer. HEAD counts the commands put in, TAIL those taken out; command n is in slot n mod the
// number of slots.
//
//      slot 0    1    2    3              slot 0    1    2    3
//             TAIL        HEAD              HEAD        TAIL
//       ┌────┬──▼─┬────┬──▼─┐             ┌────┬──▼─┬────┬──▼─┐
//       │    │ c5 │ c6 │    │             │ c8 │    │    │ c7 │
//       └────┴────┴────┴────┘             └────┴────┴────┴────┘
//
// The queue is empty if HEAD = TAIL and full if HEAD − TAIL = maxQueueSize. Both counters only increase, modulo 2³².
// The number of slots is a power of two, so it divides 2³², and consecutive commands stay in consecutive slots.
//
// RESPONDED counts the commands whose response has been written. The host does not take `shutdown` before that: a
// program that exits at once would cut off the response. After 200 ms it takes the command all the same, because a
// thread that has died in between may have written the response.
//
// The status is sampled on demand, because `GET /api/status` must report the current status and only the host can call
// systemStatus(). SEQUENCE counts everything the thread passes to the host: commands and sample requests. The host
// reads SEQUENCE, samples its status, and then stores the SEQUENCE that it read in ACKNOWLEDGED. So the sample is newer
// than its sample request and all earlier commands.
//
// DONE counts the commands of clients that are over, in order. Texts come as messages, which need not arrive before the
// cells that are written after them: the thread relies on STATUS, RUNNING and DONE only once it has received as many
// messages as TOLD says. The host notifies NEWS of all that the thread may wait for.

const CELL = {
  // Written by the server thread:
  HEAD: 0,
  SEQUENCE: 1,
  REQUESTED: 2, // SEQUENCE of the latest sample request
  CLOCK: 3, // counts quarters of a second
  RESPONDED: 4,
  CHANGES: 5, // of what /api/info tells, for its tag
  // Written by both:
  NOTIFIED: 6, // 1 while a wake-up message is unread; the host resets it
  DETAIL: 7, // 1 while the thread requests a detail, 2 while describe() runs; the host resets it
  NUMBER: 8, // of the latest command: the host has commands of its own
  // Written by the host, from byte 64:
  TAIL: 16,
  STATUS: 17, // index in STATUSES, or STATUSES.length while systemStatus() fails; plus 8 × the number of its command
  SAMPLED: 18, // CLOCK at the latest sample
  ACKNOWLEDGED: 19,
  SLEEPERS: 20, // 1 while a command must wake the host
  RUNNING: 21, // number of the command taken last, or 0 once it is over
  TOLD: 22, // messages to the present thread
  NEWS: 23,
  DONE: 24,
  STATUS_AT: 28, // a double: when the status changed, in milliseconds
  DONE_AT: 30, // a double: when DONE did
  // The slots of the queue, written by the server thread: index in COMMANDS, plus 4 × the number of the command
  RING: 32,
} as const;

const MAX_NUMBER = 2 ** 29 - 1; // STATUS has 29 bits for the number of a command; then it begins with 1 again

// The server thread runs five functions: tidy(), linkToHost(), prepareResponse(), createPolicy() and serve(). They are
// sent to it as source text. The thread cannot load this file: in a bundle, it contains the host, which would run a
// second time. Hence three rules for these functions:
//
// - They use nothing but their arguments and globals.
// - They contain no named functions or classes, which bundlers wrap in helpers that the thread lacks. Methods of object
//   literals take their place.
// - They contain no syntax that older compile targets turn into helper calls: async functions, object spread, class
//   fields. Coverage counters would break them too, hence the `istanbul` comments.

/** What the thread receives from the host: checked options, lists and the shared memory. */
type ThreadData = ReturnType<typeof prepareThreadData>;

/** A command in the list of `/api/info`. */
interface ListedCommand extends Omit<CommandInfo, 'id' | 'at' | 'state' | 'seconds'> {
  number: number;
  at: number; // milliseconds
  endedAt?: number;
}

/** A status, since when it holds, and who and why. */
interface StatusRecord extends Pick<ListedCommand, 'by' | 'reason'> {
  cell: number; // STATUS
  since: number; // milliseconds
}

/** What the host tells the thread besides `close`: a detail, or news of a command. */
type HostMessage = { detail: string } | ({ number: number } & Partial<ListedCommand>);

/** Ends when it is ready or at its deadline. */
interface Waiter {
  isReady(): boolean;
  onEnd(): void;
  deadline: number; // performance.now()
}

/** Removes control characters from a text that others will print, and cuts it: `by`, `reason` and `name` at 200. */
/* istanbul ignore next @preserve */
function tidy(text: string, maxLength: number = 200): string {
  return Array.from(text.slice(0, 4 * maxLength).replace(/\p{Cc}/gu, '')).slice(0, maxLength).join('');
}

/** The server thread's access to shared memory, and what it knows of the host. */
/* istanbul ignore next @preserve */
function linkToHost(data: ThreadData, wakeHost: () => void, tidyText: typeof tidy) {
  const { memory, times, cells, commands, statusNames, maxQueueSize, maxNumber, idPrefix, hasDetail } = data;
  const slots = memory.length - cells.RING;
  const { waitAsync } = Atomics as unknown as { // ES2024; many programs compile with an older `lib`
    waitAsync(memory: Int32Array, cell: number, value: number): { async: boolean; value: unknown };
  };
  const sampleMs = 9; // how long the host has to sample its status; timers are up to 1 ms early or late
  const detailMs = 250; // the same for a detail, which may take longer
  const freshMs = 1; // a sample this young is reused
  const freshDetailMs = 100; // a detail this young is reused
  const maxListed = 16;

  const waiters: Set<Waiter> = new Set();
  let isWatching = false; // the next change of NEWS leads to settle()
  let sequence = Atomics.load(memory, cells.SEQUENCE); // only this thread writes these two cells
  let requested = Atomics.load(memory, cells.REQUESTED);
  let requestedAt = -Infinity;
  let sampledAt = -Infinity;

  let received = 0; // messages
  let detail: unknown = null;
  let detailRequestedAt = -Infinity;
  let status: StatusRecord = { cell: Atomics.load(memory, cells.STATUS), since: times[cells.STATUS_AT / 2] as number };
  let formerStatus = status; // before the latest command that changed it; a save returns to it
  let running = Atomics.load(memory, cells.RUNNING);
  const pending: Map<number, ListedCommand> = new Map(); // by index in the queue: the commands of clients
  const list: Map<number, ListedCommand> = new Map(); // by number: the latest commands, and all that are not over
  Atomics.add(memory, cells.CHANGES, 1); // the list is empty

  const link = {
    /** Puts a command on the queue. release() follows. Returns null if the queue is full. */
    enqueue(command: ControlCommand, query: string): ListedCommand | null {
      const head = Atomics.load(memory, cells.HEAD);
      if (((head - Atomics.load(memory, cells.TAIL)) | 0) >= maxQueueSize) return null;
      const number = ((Atomics.add(memory, cells.NUMBER, 1) >>> 0) % maxNumber) + 1;
      memory[cells.RING + (head & (slots - 1))] = (number << 2) | commands.indexOf(command);
      Atomics.store(memory, cells.HEAD, (head + 1) | 0);
      link.advanceSequence();
      const listed = link.addToList({ number, command, at: Date.now() });
      pending.set(head, listed);
      if (query === '') return listed;
      const parameters = new URLSearchParams(query);
      listed.by = tidyText(parameters.get('by') ?? '') || undefined;
      listed.reason = tidyText(parameters.get('reason') ?? '') || undefined;
      return listed;
    },

    /** Lets the host take a shutdown, and wakes it if it sleeps. */
    release(): void {
      Atomics.store(memory, cells.RESPONDED, Atomics.load(memory, cells.HEAD));
      Atomics.notify(memory, cells.RESPONDED);
      if (Atomics.load(memory, cells.SLEEPERS) > 0) link.notify();
    },

    /**
     * Calls back once the host has sampled its status, or 9 ms after the sample request. Callers share a pending sample
     * request, even one that has timed out, unless a command came after it. `wantsDetail` also requests a detail, if
     * the latest is old enough, and waits for up to 250 ms.
     */
    whenSampled(onEnd: () => void, wantsDetail: boolean = false): void {
      const now = performance.now();
      const isSampled = link.noteSample(now);
      const isDetailOld = wantsDetail && hasDetail && now - detailRequestedAt >= freshDetailMs;
      const isDetailDue = isDetailOld && Atomics.compareExchange(memory, cells.DETAIL, 0, 1) === 0;
      if (isDetailDue) detailRequestedAt = now;
      const isDetailAwaited = wantsDetail && Atomics.load(memory, cells.DETAIL) !== 0;
      const limitMs = isDetailAwaited ? detailMs : sampleMs;
      const isStale = isDetailDue || sequence !== requested; // a sample from before the latest command is
      if (!isStale) {
        const isFresh = isSampled && now - sampledAt < freshMs;
        const hasTimedOut = !isSampled && now - requestedAt >= limitMs;
        if (isFresh || hasTimedOut) return onEnd();
      }
      if (isStale || isSampled) link.requestSample(now);
      const awaited = requested;
      link.addWaiter({
        isReady() {
          return ((Atomics.load(memory, cells.ACKNOWLEDGED) - awaited) | 0) >= 0 && link.isComplete();
        },
        onEnd,
        deadline: requestedAt + limitMs,
      });
      if (isDetailAwaited) setTimeout(link.settle, requestedAt + limitMs - now);
    },

    /** Advances CLOCK, every 250 ms. */
    tick(): void {
      Atomics.add(memory, cells.CLOCK, 1);
      link.settle();
    },

    requestSample(now: number): void {
      link.advanceSequence();
      requested = sequence;
      requestedAt = now;
      Atomics.store(memory, cells.REQUESTED, requested);
      link.notify();
      setTimeout(link.settle, sampleMs);
    },

    advanceSequence(): void {
      sequence = (sequence + 1) | 0;
      Atomics.store(memory, cells.SEQUENCE, sequence);
      Atomics.notify(memory, cells.SEQUENCE); // for nextCommandSync()
    },

    /** Wakes the host, unless the previous message is unread: messages must not pile up while the host is busy. */
    notify(): void {
      if (Atomics.exchange(memory, cells.NOTIFIED, 1) === 0) wakeHost();
    },

    /** Returns whether the latest sample request is acknowledged. A sample noticed too late does not count as fresh. */
    noteSample(now: number): boolean {
      if (((Atomics.load(memory, cells.ACKNOWLEDGED) - requested) | 0) < 0) return false;
      if (sampledAt < requestedAt && now - requestedAt < sampleMs) sampledAt = now;
      return true;
    },

    /** Adds a waiter that is not ready. Deadlines are checked at each change and every 250 ms. */
    addWaiter(waiter: Waiter): void {
      waiters.add(waiter);
      if (!isWatching) link.settle();
    },

    /** Ends the waiters that are ready or past their deadlines, and watches NEWS for the others. */
    settle(): void {
      for (;;) {
        const news = Atomics.load(memory, cells.NEWS);
        const now = performance.now();
        link.noteSample(now);
        link.update();
        for (const waiter of waiters) {
          if (!waiter.isReady() && now + 1 <= waiter.deadline) continue;
          waiters.delete(waiter);
          waiter.onEnd();
        }
        if (isWatching || waiters.size === 0) return;
        const watch = waitAsync(memory, cells.NEWS, news);
        isWatching = watch.async;
        if (!isWatching) continue;
        return void (watch.value as Promise<string>).then(() => {
          isWatching = false;
          link.settle();
        });
      }
    },

    receive(message: HostMessage): void {
      received += 1;
      if ('detail' in message) {
        detail = JSON.parse(message.detail);
      } else {
        const listed = list.get(message.number);
        if (listed !== undefined) Object.assign(listed, message);
        else if ('command' in message) link.addToList(message as ListedCommand); // one of the host itself
        Atomics.add(memory, cells.CHANGES, 1);
      }
      link.settle();
    },

    /** Returns whether no message is on its way. */
    isComplete(): boolean {
      return Atomics.load(memory, cells.TOLD) === received;
    },

    /** Notes the status, the command that is running and those that are over. */
    update(): void {
      const cell = Atomics.load(memory, cells.STATUS);
      const since = times[cells.STATUS_AT / 2] as number;
      const newRunning = Atomics.load(memory, cells.RUNNING);
      const done = Atomics.load(memory, cells.DONE);
      if (!link.isComplete()) return;
      const { size } = pending;
      for (const [index, listed] of pending) {
        if (((done - index) | 0) <= 0) break;
        listed.endedAt ??= times[cells.DONE_AT / 2] as number;
        pending.delete(index);
      }
      // STATUS_AT is written first. While it is ahead of STATUS, the number of a command tells that nothing has changed.
      const isSame = cell === status.cell && (since === status.since || cell >>> 3 !== 0);
      if (pending.size === size && isSame && newRunning === running) return;
      const isFormer = cell === formerStatus.cell && since === formerStatus.since;
      if (!isSame && isFormer) {
        [status, formerStatus] = [formerStatus, status];
      } else if (!isSame) {
        const number = cell >>> 3;
        const { by, reason } = number === 0 ? { by: 'itself', reason: undefined } : list.get(number) ?? {};
        if (number !== status.cell >>> 3) formerStatus = status;
        status = { cell, since, by, reason };
      }
      running = newRunning;
      Atomics.add(memory, cells.CHANGES, 1);
    },

    /** Adds a command to the list, and now and then removes old ones. */
    addToList(listed: ListedCommand): ListedCommand {
      list.set(listed.number, listed);
      Atomics.add(memory, cells.CHANGES, 1);
      if (list.size <= 4 * maxListed) return listed;
      link.update();
      link.updateReason();
      for (const [oldest, { endedAt }] of list) {
        if (list.size <= maxListed || endedAt === undefined) break;
        list.delete(oldest);
      }
      return listed;
    },

    /** A pause of a paused system is a no-op, except that its reason replaces the earlier one. */
    updateReason(): void {
      if (statusNames[status.cell & 7] !== 'paused') return;
      for (const { number, command, endedAt = 0, error, reason } of list.values()) {
        const isLater = number > status.cell >>> 3 && endedAt >= status.since;
        if (command === 'pause' && isLater && error === undefined) status.reason = reason ?? status.reason;
      }
    },

    describe({ number, command, at, endedAt, value, error, by, reason }: ListedCommand): CommandInfo {
      const unfinished = number === running ? 'running' : 'waiting';
      const state = endedAt === undefined ? unfinished : error === undefined ? 'done' : 'failed';
      const seconds = endedAt === undefined ? undefined : Math.max(0, endedAt - at) / 1000;
      const id = `${idPrefix}-${number}`;
      return { id, command, at: new Date(at).toISOString(), state, value, error, seconds, by, reason };
    },

    statusIndex(): number {
      return Atomics.load(memory, cells.STATUS) & 7;
    },

    /** Returns the age of the latest sample in quarters of a second. */
    age(): number {
      return Math.max(0, (Atomics.load(memory, cells.CLOCK) - Atomics.load(memory, cells.SAMPLED)) | 0);
    },

    infoTag(): string {
      link.update();
      return `"${idPrefix}-${Atomics.load(memory, cells.CHANGES) >>> 0}"`;
    },

    info(): object {
      link.update();
      link.updateReason();
      return Object.assign({}, data.about, {
        status: statusNames[status.cell & 7] ?? null,
        since: new Date(status.since).toISOString(),
        by: status.by,
        reason: status.reason,
        heardAt: new Date(Date.now() - 250 * link.age()).toISOString(),
        detail,
        commands: [...list.values()].slice(-maxListed).map(link.describe),
      });
    },
  };
  return link;
}

type PreparedResponse = ReturnType<typeof prepareResponse>;

/** Prepares a response with the common headers and the given ones: alternating names and values. */
/* istanbul ignore next @preserve */
function prepareResponse(statusCode: number, value: object | null, ...headers: string[]) {
  const body = value === null ? '' : JSON.stringify(value);
  const content = ['Content-Type', 'application/json', 'Content-Length', String(Buffer.byteLength(body))];
  const common = [
    'Cache-Control', 'no-store', 'Cross-Origin-Resource-Policy', 'same-origin', 'X-Content-Type-Options', 'nosniff',
  ];
  return { statusCode, headers: [...(value === null ? [] : content), ...common, ...headers], body };
}

// ───── Policy: who may use the API ───────────────────────────────────────────────────────────────────────────────
//
// Any web page in a browser on this machine can send requests to this server, and the page's author can point a domain
// name at 127.0.0.1 after the page has loaded (DNS rebinding). Such requests are recognized by the name in their Host
// field (an IP address cannot be rebound), or by the Origin and Sec-Fetch-Site fields that browsers add. Other programs
// send neither of these two.

/** The parts of a request that the policy and the router need. */
interface RequestHead {
  path: string; // without the query
  query: string;
  authority: string | undefined; // host and port that the request is for
  fields: Record<string, string | undefined>; // by lowercase name, only those in `fieldNames` and `listNames`
  hasDuplicate: boolean;
}

/* istanbul ignore next @preserve */
function createPolicy(
  { host, socketPath, token, allowedHosts, allowedOrigins }: ThreadData,
  prepare: typeof prepareResponse,
) {
  const { BlockList, isIPv4, isIPv6 } = process.getBuiltinModule('node:net');
  const missingHost = prepare(400, { error: 'Missing Host header' });
  const duplicateField = prepare(400, { error: 'Duplicate header field' });
  const foreignHost = prepare(403, {
    error: 'Host not allowed: use localhost or an IP address, or set the option allowedHosts',
  });
  const foreignOrigin = prepare(403, { error: 'Origin not allowed: set the option allowedOrigins' });
  const webPage = prepare(403, { error: 'Requests from web pages are not allowed: set the option allowedOrigins' });

  const fieldNames = new Set([
    'host', 'origin', 'sec-fetch-site', 'authorization', 'content-length', 'transfer-encoding',
  ]);
  const listNames = new Set(['prefer', 'if-none-match']); // several lines are one list (RFC 9110 §5.3)
  const maxWait = 300; // seconds
  const unspecified = new BlockList(); // addresses that reach this machine although they do not name it
  unspecified.addSubnet('0.0.0.0', 8);
  unspecified.addAddress('::', 'ipv6');
  let allowedAuthority: string | undefined; // cached: BlockList is slow, and most requests have the same

  const policy = {
    /** Reads rawHeaders, because Node keeps only the first of duplicate Host fields. */
    readHead({ url = '', rawHeaders }: IncomingMessage): RequestHead {
      const head: RequestHead = { path: url, query: '', authority: undefined, fields: {}, hasDuplicate: false };
      for (let index = 0; index < rawHeaders.length; index += 2) {
        const name = (rawHeaders[index] as string).toLowerCase();
        const value = rawHeaders[index + 1];
        const earlier = head.fields[name];
        if (fieldNames.has(name)) {
          head.hasDuplicate ||= earlier !== undefined;
          head.fields[name] = value;
        } else if (listNames.has(name)) {
          head.fields[name] = earlier === undefined ? value : `${earlier},${value}`;
        }
      }
      head.authority = head.fields['host'];
      if (url[0] !== '/') { // absolute-form, RFC 9112 §3.2.2
        const match = /^https?:\/\/([^/?]*)(.*)$/i.exec(url);
        if (match !== null) [, head.authority, head.path = ''] = match;
      }
      const query = head.path.indexOf('?');
      if (query === -1) return head;
      head.query = head.path.slice(query);
      head.path = head.path.slice(0, query);
      return head;
    },

    /** Returns an error response if the request is malformed or could come from a foreign web page, otherwise null. */
    refusal({ method, httpVersion }: IncomingMessage, head: RequestHead): PreparedResponse | null {
      const { authority, fields: { host: hostField, origin, 'sec-fetch-site': site } } = head;
      if (head.hasDuplicate) return duplicateField;
      if (hostField === undefined && httpVersion !== '1.0') return missingHost; // RFC 9112 §3.2
      if (authority !== undefined && authority !== allowedAuthority) {
        if (!policy.isAllowedHost(authority)) return foreignHost;
        allowedAuthority = authority;
      }
      if (origin !== undefined) return allowedOrigins.includes(origin) ? null : foreignOrigin;
      const isTyped = site === 'none' && (method === 'GET' || method === 'HEAD'); // typed into the address bar
      return site === undefined || isTyped ? null : webPage;
    },

    /** Avoids `new URL()`, which turns `0x7f.1`, `127.1` and `evil@localhost` into local names. */
    isAllowedHost(authority: string): boolean {
      if (socketPath !== undefined) return true; // web pages cannot reach a Unix socket
      const [, ipv6, other = ''] = /^(?:\[([^\]%]+)(?:%[^\]]*)?\]|([\w.-]+))(?::\d*)?$/.exec(authority) ?? [];
      if (ipv6 !== undefined) return isIPv6(ipv6) && !unspecified.check(ipv6, 'ipv6');
      if (isIPv4(other)) return !unspecified.check(other);
      const name = other.toLowerCase();
      if (name === '') return false; // malformed
      if (name === 'localhost' || name === host.toLowerCase()) return true;
      return allowedHosts.some((entry) => {
        return entry === '*' || entry === name || (entry[0] === '.' && `.${name}`.endsWith(entry));
      });
    },

    /** Compares digests, so that the time taken reveals nothing about the token. */
    hasToken(authorization: string | undefined): boolean {
      if (token === undefined) return true;
      const { createHash, timingSafeEqual } = process.getBuiltinModule('node:crypto'); // slow to load, often not needed
      const given = /^Bearer +(\S+)$/i.exec(authorization ?? '')?.[1] ?? ''; // RFC 6750 §2.1
      const [digest, expected] = [given, token].map((text) => createHash('sha256').update(text).digest());
      return timingSafeEqual(digest as Buffer, expected as Buffer);
    },

    /** Returns the seconds of `Prefer: wait=N` (RFC 7240 §4.3), or 0. Of several, the first counts (§2). */
    secondsToWait({ fields: { prefer } }: RequestHead): number {
      if (prefer === undefined) return 0;
      const list = prefer.replace(/"(?:[^"\\]|\\.?)*("|$)/g, (quoted) => (/^"\d+"$/.test(quoted) ? quoted : '""'));
      const [, value = ''] = /(?:^|,)[ \t]*wait[ \t]*(?:=([^,;]*)|[,;]|$)/i.exec(list) ?? [];
      const [, seconds, quotedSeconds] = /^\s*(?:(\d+)|"(\d+)")\s*$/.exec(value) ?? [];
      return Math.min(Number(seconds ?? quotedSeconds ?? 0), maxWait);
    },

    /** Returns whether If-None-Match names the tag of the current response (RFC 9110 §13.1.2). */
    isKnown({ fields: { 'if-none-match': list } }: RequestHead, tag: string | undefined): boolean {
      if (list === undefined || tag === undefined) return false;
      return list.trim() === '*' || list.split(',').some((known) => known.trim().replace(/^W\//, '') === tag);
    },
  };
  return policy;
}

// ───── Server thread ─────────────────────────────────────────────────────────────────────────────────────────────

/** What the thread reports to the host; `null` only wakes the host. */
type ThreadMessage =
  | null
  | { type: 'listening'; port: number; isPublic: boolean; socketId: string }
  | ({ type: 'failed' } & Failure);

interface Failure {
  message: string;
  code?: string | undefined; // Node's, such as EADDRINUSE
}

interface Connection {
  latest?: ServerResponse | undefined; // to the request routed last, until it is sent
  pending: number; // requests without a response
  routed: number; // those of them that are complete; makeRoom() spares the connection meanwhile
  idleTicks: number; // quarters of a second since the latest request
  acceptsRequests: boolean; // false after reject() or cut()
  isFinished: boolean; // its last response has been sent
  wait?: Waiter | undefined; // for a request that waits with Prefer
}

/** The HTTP server. A new command needs route(), ControlCommand, COMMANDS, WebApiClient and Launch. */
/* istanbul ignore next @preserve */
function serve(
  { statusNames, maxConnections, host, port, socketPath, isInFolder }: ThreadData,
  report: (message: ThreadMessage) => void,
  prepare: typeof prepareResponse,
  policy: ReturnType<typeof createPolicy>,
  link: ReturnType<typeof linkToHost>,
) {
  const { STATUS_CODES, createServer } = process.getBuiltinModule('node:http');
  const fs = process.getBuiltinModule('node:fs');
  const net = process.getBuiltinModule('node:net');

  const maxWaits = maxConnections - 16; // the others remain for requests that do not wait
  const tickMs = 250;
  const maxIdleTicks = 60; // 15 s without a request
  // Requests without a response, per connection: about 2048 on all connections, which need up to 16 KB of heap each
  const maxPending = Math.max(4, Math.min(32, 2048 / maxConnections));
  const maxFields = 100; // of a header
  const maxBodySize = 65_536; // bytes, although no request needs a body
  const lockPath = `${socketPath}.start`; // a folder in which one server at a time prepares its socket
  const lockMs = 10_000; // an older one is left from a process that ended meanwhile

  const ok = prepare(200, { result: 'ok' });
  const statusTags = statusNames.map((status) => `"${status.replace(' ', '-')}"`);
  const statuses = statusNames.map((status, index) => prepare(200, { status }, 'ETag', statusTags[index] as string));
  const preflight = prepare(204, null, ...[
    'Access-Control-Allow-Methods', 'GET, HEAD, POST',
    'Access-Control-Allow-Headers', 'Authorization, Content-Type, Prefer, If-None-Match',
  ]);
  const unauthorized = prepare(401, {
    error: 'Missing or wrong token: set the option token, or CONTROL_TOKEN for the programs',
  }, 'WWW-Authenticate', 'Bearer');
  const invalidEndpoint = prepare(404, { error: 'Invalid API endpoint' });
  const getOnly = prepare(405, { error: 'Invalid API method' }, 'Allow', 'GET, HEAD');
  const postOnly = prepare(405, { error: 'Invalid API method' }, 'Allow', 'POST');
  const internalError = prepare(500, { error: 'Internal server error' });
  const queueFull = prepare(503, { error: 'Command queue is full, try again later' });

  const listeners: Server[] = []; // two for localhost
  const connections: Map<Socket, Connection> = new Map(); // in the order of their latest responses
  let isClosing = false;

  const server = {
    start(): void {
      if (isInFolder) server.prepareFolder(socketPath as string);
      if (socketPath !== undefined) return server.listenOnSocket(socketPath);
      // Node's listen('localhost') uses only the first address, but clients may try either.
      server.listen(host.toLowerCase() === 'localhost' ? ['127.0.0.1', '::1'] : [host], port);
    },

    /** Ends all waits, closes idle connections at once and the others after their last response, then the thread. */
    close(): void {
      isClosing = true;
      link.settle();
      for (const connection of connections.values()) server.endWait(connection);
      let open = listeners.length;
      if (open === 0) process.exit(); // still starting
      for (const listener of listeners) {
        listener.close(() => {
          open -= 1;
          if (open === 0) process.exit();
        });
      }
    },

    fail({ message, code }: Failure): void {
      report({ type: 'failed', message, code });
      process.exit();
    },

    // ── Listening ──

    /** Listens on all addresses, on the same port. */
    listen(addresses: string[], boundPort: number): void {
      const [address, ...others] = addresses;
      if (address === undefined) return server.reportListening(boundPort, '');
      const listener = server.createListener();
      listener.on('error', (error: NodeJS.ErrnoException) => {
        const lacksFamily = error.code === 'EADDRNOTAVAIL' || error.code === 'EAFNOSUPPORT';
        if (lacksFamily && others.length + listeners.length > 0) server.listen(others, boundPort); // no IPv4 or no IPv6
        else server.fail(error);
      });
      listener.listen(boundPort, address, () => {
        listeners.push(listener);
        server.listen(others, (listener.address() as AddressInfo).port);
      });
    },

    /** Makes the folder if necessary, and removes the sockets there that dead processes of this name and user left. */
    prepareFolder(path: string): void {
      const [, folder = '', prefix = ''] = /^(.*\/)(.*-)/s.exec(path) ?? [];
      try {
        fs.mkdirSync(folder, 0o700);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
      }
      for (const name of fs.readdirSync(folder)) {
        const [, pid] = /^(\d+)\.sock$/.exec(name.startsWith(prefix) ? name.slice(prefix.length) : '') ?? [];
        if (pid === undefined || server.isRunning(Number(pid))) continue;
        const socket = folder + name;
        const entry = fs.lstatSync(socket, { throwIfNoEntry: false });
        if (entry?.isSocket() !== true || entry.uid !== process.geteuid?.()) continue;
        const probe = net.connect(socket, () => probe.destroy()); // it may be live in another container
        probe.on('error', ({ code }: NodeJS.ErrnoException) => {
          const isReplaced = fs.lstatSync(socket, { throwIfNoEntry: false })?.mtimeMs !== entry.mtimeMs; // or removed
          if (code === 'ECONNREFUSED' && !isReplaced) fs.rmSync(socket, { force: true });
        });
      }
    },

    isRunning(pid: number): boolean {
      try {
        return process.kill(pid, 0);
      } catch (error) {
        return (error as NodeJS.ErrnoException).code !== 'ESRCH'; // it may belong to another user
      }
    },

    /** Replaces the socket of a dead server, but neither that of a live one nor any other file. */
    listenOnSocket(path: string): void {
      const message = `another server is starting there (if not, remove ${lockPath})`;
      if (!server.lock()) return server.fail({ code: 'EADDRINUSE', message });
      const probe = net.connect(path, () => {
        probe.destroy();
        server.fail({ code: 'EADDRINUSE', message: 'another server is listening there' });
      });
      probe.on('error', (error: NodeJS.ErrnoException) => {
        const entry = fs.lstatSync(path, { throwIfNoEntry: false });
        if (entry?.isSocket() === false) {
          return server.fail({ code: 'EEXIST', message: 'it is not a socket; the path of a folder ends in /' });
        }
        if (entry !== undefined && error.code !== 'ECONNREFUSED') return server.fail(error);
        const listener = server.createListener();
        listener.on('error', server.fail);
        listener.listen(`${lockPath}/s`, () => {
          listeners.push(listener);
          fs.chmodSync(`${lockPath}/s`, 0o600);
          fs.renameSync(`${lockPath}/s`, path);
          server.unlock();
          const { ino, mtimeMs } = fs.lstatSync(path);
          server.reportListening(0, `${ino} ${mtimeMs}`);
        });
      });
    },

    /** Makes the folder, whose mode hides the socket until chmod. Returns false if another server has made it. */
    lock(): boolean {
      const left = fs.lstatSync(lockPath, { throwIfNoEntry: false });
      const isOwn = left?.isDirectory() === true && left.uid === process.geteuid?.();
      const isOld = isOwn && Date.now() - left.mtimeMs > lockMs;
      try {
        if (isOld) server.unlock();
        fs.mkdirSync(lockPath, 0o700);
      } catch (error) {
        if (isOld || (error as NodeJS.ErrnoException).code === 'EEXIST') return false;
        throw error;
      }
      process.on('exit', server.unlock); // if the start fails
      return true;
    },

    unlock(): void {
      process.off('exit', server.unlock);
      fs.rmSync(`${lockPath}/s`, { force: true });
      fs.rmdirSync(lockPath);
    },

    reportListening(boundPort: number, socketId: string): void {
      const isPublic = listeners.some((listener) => {
        const { address = '::1' } = listener.address() as Partial<AddressInfo>; // the default is for a Unix socket
        return !/^(::ffff:)?127\.|^::1$/.test(address);
      });
      setInterval(server.tick, tickMs);
      report({ type: 'listening', port: boundPort, isPublic, socketId });
    },

    createListener(): Server {
      const listener = createServer({
        maxHeaderSize: 8192, // bytes, including the request line
        headersTimeout: 5000, // milliseconds until the headers are complete
        requestTimeout: 10_000, // milliseconds until the request is complete
        connectionsCheckingInterval: 2000, // how often both limits are checked
        keepAliveTimeout: 0, // tick() cuts idle connections, with one timer for all
        requireHostHeader: false, // the policy checks it, responding in JSON
      }, server.onRequest);
      listener.maxHeadersCount = maxFields + 1; // Node need not keep more
      Object.assign(listener, { httpAllowHalfOpen: true }); // clients like `nc -N` end their side before the response
      listener.on('connection', server.onConnection);
      listener.on('checkExpectation', server.onRequest); // ignored, because Node's own 417 has no JSON body
      listener.on('connect', (_request, socket) => server.reject(socket as Socket, 501));
      listener.on('clientError', (error: NodeJS.ErrnoException, socket) => {
        const statusCodes: Record<string, number> = {
          ERR_HTTP_REQUEST_TIMEOUT: 408,
          HPE_CHUNK_EXTENSIONS_OVERFLOW: 413,
          HPE_HEADER_OVERFLOW: 431,
        };
        server.reject(socket as Socket, statusCodes[error.code ?? ''] ?? 400);
      });
      return listener;
    },

    // ── Connections ──

    onConnection(socket: Socket): void {
      const connection: Connection = { pending: 0, routed: 0, idleTicks: 0, acceptsRequests: true, isFinished: false };
      connections.set(socket, connection);
      socket.on('end', () => server.endWait(connection));
      socket.on('close', () => {
        connections.delete(socket);
        server.endWait(connection);
      });
      socket.on('error', () => {}); // after CONNECT, Node no longer handles errors
      if (connections.size > maxConnections) server.makeRoom();
    },

    /** Cuts the longest idle connection: the newest one, if all others wait for a response. */
    makeRoom(): void {
      for (const [socket, { routed }] of connections) {
        if (routed > 0) continue;
        connections.delete(socket); // the event 'close' comes later
        return void socket.destroy();
      }
    },

    /** Cuts idle connections. A client that does not read its responses counts as idle: Node stops reading from it. */
    tick(): void {
      link.tick();
      for (const [socket, connection] of connections) {
        connection.idleTicks = connection.wait === undefined ? connection.idleTicks + 1 : 0;
        const isSilent = socket.bytesRead === 0 && connection.idleTicks > 1; // Node does not count it as idle
        if (connection.idleTicks > maxIdleTicks || (isClosing && isSilent)) socket.destroy();
      }
    },

    // ── Requests ──

    /** Routes a request once it is complete, and after the earlier requests of its connection. */
    onRequest(request: IncomingMessage, response: ServerResponse): void {
      const connection = connections.get(request.socket);
      if (connection?.acceptsRequests !== true) return;
      connection.idleTicks = 0;
      connection.pending += 1;
      server.endWait(connection);
      if (connection.pending > maxPending) return server.cut(request.socket, connection);
      if (request.httpVersionMajor !== 1) return server.reject(request.socket, 505); // Node accepts 0.9 and 2.0, too
      if (request.rawHeaders.length > 2 * maxFields) return server.reject(request.socket, 431); // RFC 6585 §5
      const head = policy.readHead(request);
      const { 'content-length': length = '0', 'transfer-encoding': encoding } = head.fields;
      const size = encoding === undefined ? Number(length) : NaN;
      if (size > maxBodySize) return server.reject(request.socket, 413);
      const isFirst = response.socket !== null; // no earlier response is pending on this connection
      if (isFirst && size === 0) return server.route(request, response, head);
      let received = 0; // the body is ignored, but must be complete and well-formed
      request.on('data', (chunk: Buffer) => {
        received += chunk.length;
        if (received > maxBodySize) server.reject(request.socket, 413);
      });
      request.on('end', () => {
        const isComplete = request.complete && received <= maxBodySize;
        if (isComplete && request.socket.writable) server.route(request, response, head);
      });
    },

    route(request: IncomingMessage, response: ServerResponse, head: RequestHead): void {
      const connection = connections.get(request.socket);
      if (connection === undefined || connection.isFinished) return;
      connection.latest = response;
      connection.routed += 1;
      const refusal = policy.refusal(request, head);
      if (refusal !== null) return server.send(response, refusal);
      const { origin, authorization } = head.fields;
      if (origin !== undefined) { // an allowed origin
        response.setHeader('Access-Control-Allow-Origin', origin).setHeader('Vary', 'Origin');
        response.setHeader('Access-Control-Expose-Headers', 'ETag, Preference-Applied');
        if (request.method === 'OPTIONS') return server.send(response, preflight);
      }
      if (!policy.hasToken(authorization)) return server.send(response, unauthorized);
      switch (head.path) {
        case '/api/status': return server.sendStatus(response, head);
        case '/api/info': return server.sendInfo(response, head);
        case '/api/pause': return server.enqueue(response, head, 'pause');
        case '/api/resume': return server.enqueue(response, head, 'resume');
        case '/api/shutdown': return server.enqueue(response, head, 'shutdown');
        case '/api/save-state': return server.enqueue(response, head, 'save-state');
        default: return server.send(response, invalidEndpoint);
      }
    },

    enqueue(response: ServerResponse, head: RequestHead, command: ControlCommand): void {
      if (response.req.method !== 'POST') return server.send(response, postOnly);
      const listed = link.enqueue(command, head.query);
      if (listed === null) return server.send(response, queueFull);
      server.wait(response, head, () => listed.endedAt !== undefined, (hasWaited) => {
        if (hasWaited) server.sendOutcome(response, link.describe(listed));
        else server.send(response, ok);
      });
      link.release(); // the response is in the kernel, unless an earlier one or a slow client holds it up
    },

    sendOutcome(response: ServerResponse, { id, command, state, value, error, seconds }: CommandInfo): void {
      if (state === 'failed') return server.send(response, prepare(500, { error: `${command} failed: ${error}` }));
      server.send(response, prepare(state === 'done' ? 200 : 202, { result: 'ok', id, state, value, seconds }));
    },

    sendStatus(response: ServerResponse, head: RequestHead): void {
      server.sendNews(response, head, () => statusTags[link.statusIndex()], () => {
        const status = statuses[link.statusIndex()];
        if (status === undefined) return server.send(response, internalError); // systemStatus() fails
        const ageSeconds = Math.max(0, (link.age() - 1) >> 2); // the sample may be from the end of its quarter
        if (ageSeconds > 0) response.setHeader('Age', ageSeconds); // RFC 9111 §5.1
        server.send(response, status);
      });
    },

    sendInfo(response: ServerResponse, head: RequestHead): void {
      server.sendNews(response, head, link.infoTag, () => {
        link.whenSampled(() => {
          const tag = link.infoTag(); // before the update in info()
          server.send(response, prepare(200, link.info(), 'ETag', tag));
        }, true);
      });
    },

    /** Responds to a GET or HEAD once the status is sampled: with 304 if the client knows the current tag. */
    sendNews(response: ServerResponse, head: RequestHead, getTag: () => string | undefined, send: () => void) {
      const { method } = response.req;
      if (method !== 'GET' && method !== 'HEAD') return server.send(response, getOnly);
      link.whenSampled(() => {
        server.wait(response, head, () => !policy.isKnown(head, getTag()), () => {
          const tag = getTag();
          if (policy.isKnown(head, tag)) server.send(response, prepare(304, null, 'ETag', tag as string));
          else send();
        });
      });
    },

    // ── Waiting ──

    /** Calls back at once if the client does not ask to wait, or if no place is free. */
    wait(response: ServerResponse, head: RequestHead, isReady: () => boolean, onEnd: (hasWaited: boolean) => void) {
      const seconds = policy.secondsToWait(head);
      const connection = connections.get(response.req.socket);
      if (seconds === 0 || connection === undefined || isClosing || isReady()) return onEnd(false);
      if ([...connections.values()].filter(({ wait }) => wait !== undefined).length >= maxWaits) return onEnd(false);
      response.setHeader('Preference-Applied', `wait=${seconds}`); // RFC 7240 §3
      const isLatest = response === connection.latest && connection.pending === connection.routed;
      if (!isLatest || !connection.acceptsRequests || response.req.socket.readableEnded) return onEnd(true);
      connection.wait = {
        isReady,
        onEnd() {
          connection.wait = undefined;
          onEnd(true);
        },
        deadline: performance.now() + seconds * 1000,
      };
      link.addWaiter(connection.wait);
    },

    /** Ends the wait of a request, if there is one: it holds up the requests that come after it. */
    endWait({ wait }: Connection): void {
      if (wait === undefined) return;
      wait.deadline = 0;
      link.settle();
    },

    // ── Responses ──

    /** Sends every response except those of reject(). */
    send(response: ServerResponse, { statusCode, headers, body }: PreparedResponse): void {
      const connection = connections.get(response.req.socket);
      if (connection === undefined) return; // the client is gone
      connection.pending -= 1;
      connection.routed -= 1;
      connections.delete(response.req.socket);
      connections.set(response.req.socket, connection); // to the end
      const isLast = isClosing && response === connection.latest;
      connection.isFinished ||= isLast;
      response.writeHead(statusCode, isLast ? [...headers, 'Connection', 'close'] : headers);
      // A single chunk. end(body) would add an empty one, and two chunks need a slower system call.
      if (body !== '' && response.req.method !== 'HEAD') {
        response.cork();
        response.write(body);
        response.uncork();
      }
      response.end();
      // A reference kept until the next request would survive into the old generation.
      if (response === connection.latest && response.socket !== null) connection.latest = undefined;
    },

    // ── Rejections ──

    /**
     * Rejects CONNECT and any malformed, late or too large request, and closes the connection. Earlier requests get
     * their responses first (RFC 9112 §9.3.2).
     */
    reject(socket: Socket, statusCode: number): void {
      const connection = connections.get(socket);
      if (connection?.acceptsRequests !== true) return;
      connection.acceptsRequests = false;
      server.endWait(connection);
      socket.pause();
      setImmediate(() => {
        const { latest } = connection;
        if (latest?.writableFinished === false) latest.on('close', () => server.writeRejection(socket, statusCode));
        else server.writeRejection(socket, statusCode);
      });
    },

    writeRejection(socket: Socket, statusCode: number): void {
      if (!socket.writable) return;
      const reason = STATUS_CODES[statusCode];
      const date = new Date().toUTCString(); // RFC 9110 §6.6.1; Node adds it to all other responses
      const error = statusCode === 413 ? 'Content Too Large' : reason; // RFC 9110 §15.5.14; Node 20 has an older name
      const { headers, body } = prepare(statusCode, { error }, 'Date', date, 'Connection', 'close');
      const lines = headers.map((text, index) => text + (index % 2 === 0 ? ': ' : '\r\n')).join('');
      socket.end(`HTTP/1.1 ${statusCode} ${reason}\r\n${lines}\r\n${body}`, () => socket.destroy());
    },

    /**
     * Cuts a connection with too many pending requests. Node still parses what it has already read from it, perhaps
     * thousands of requests. The other connections pause for a turn, so that these requests are freed first.
     */
    cut(socket: Socket, connection: Connection): void {
      connection.acceptsRequests = false;
      socket.destroy();
      const others = [...connections.keys()].filter((one) => !one.isPaused());
      for (const other of others) other.pause();
      setTimeout(() => others.forEach((other) => other.resume()));
    },
  };
  return server;
}

// ───── WebApiServer: the host's side ─────────────────────────────────────────────────────────────────────────────

/** Options of `WebApiServer`. */
export interface WebApiServerOptions {
  /**
   * Returns the status of the system. It is synchronous and should be fast. It runs on the host's thread only: when the
   * server starts, in `hasCommands()` and `nextCommand()`, and when a client requests the status. While it throws, or
   * returns anything but one of the five statuses that servers report, clients get a 500.
   */
  systemStatus: () => SystemStatus;
  /** Name of the system in `/api/info`, cut at 200 characters. Default: that of the script, without its extension. */
  name?: string | undefined;
  /**
   * Returns what the program is doing, for `/api/info`: a value whose JSON has at most 4 KiB. It is called like
   * `systemStatus`, but only when a client asks, and at most ten times a second. If it fails, clients get null.
   */
  describe?: (() => unknown) | undefined;
  /** Host name or IP address to listen on. Default: `localhost`, which means both 127.0.0.1 and ::1. */
  host?: string | undefined;
  /** Port to listen on, from 0 to 65535. 0 picks a free port. Default: 8391. */
  port?: number | undefined;
  /** Capacity of the command queue, from 1 to 65536. Default: 16. */
  maxQueueSize?: number | undefined;
  /**
   * Path of a Unix socket to listen on instead of host and port, at most 94 bytes. Only the user who runs the program
   * can open it (mode 0600). The socket of a dead server is replaced. While a server starts, the folder PATH.start
   * keeps others from starting there. Not available on Windows.
   *
   * A path that ends in `/` is a folder, where the socket is called NAME-PID.sock. NAME is `name`, cut at 32
   * characters, with `_` for all but ASCII letters, digits, `.` and `-`. The server makes the folder if its parent
   * exists, and removes the sockets that dead processes of the same NAME and user have left there.
   */
  socketPath?: string | undefined;
  /**
   * Token that clients must send as `Authorization: Bearer …` (RFC 6750 §2.1): 16 to 1024 visible ASCII characters. It
   * is sent unencrypted.
   */
  token?: string | undefined;
  /**
   * Names, besides `host` and localhost, that clients may use for the server, without port: `'box.lan'`, `'.lan'` for
   * lan and its subdomains, `'*'` for all names. IP addresses are always allowed, except 0.0.0.0/8 and `::`.
   */
  allowedHosts?: readonly string[] | undefined;
  /** Origins whose web pages may use the API, as browsers send them: `'http://localhost:3000'`. Default: none. */
  allowedOrigins?: readonly string[] | undefined;
  /** Maximum number of connections, from 1 to 65536. A further one replaces the longest idle one. Default: 64. */
  maxConnections?: number | undefined;
}

// The options that launch() passes on.
const WEB_API_OPTIONS = ['socketPath', 'token', 'allowedHosts', 'allowedOrigins', 'maxConnections'] as const;

/**
 * A command, as `GET /api/info` lists it. `at` is when it was accepted, `seconds` the time from then until it was over.
 * `by` is who sent it, as the client claims, or `itself` for the program.
 */
export interface CommandInfo {
  id: string; // three random letters or digits of the process and the number of the command: `k3f-7`
  command: ControlCommand;
  at: string;
  state: 'waiting' | 'running' | 'done' | 'failed';
  value?: string | number | undefined;
  error?: string | undefined;
  seconds?: number | undefined;
  by?: string | undefined;
  reason?: string | undefined;
}

/**
 * The response to `GET /api/info`. All times are in ISO 8601. `status` is null while `systemStatus()` fails; `since` is
 * when it changed; `by` and `reason` are those of the command that led to it, if known. A command that returns to the
 * status before it, such as a save, changes none of them; a `pause` while paused changes the reason, if it has one.
 * `heardAt` is when the program last looked for commands or had a turn, to a quarter of a second. `commands` are the
 * latest 16, oldest first.
 */
export interface SystemInfo {
  name: string;
  pid: number;
  host: string; // empty on Deno
  startedAt: string;
  version: string; // of control.ts
  status: string | null;
  since: string;
  by?: string | undefined;
  reason?: string | undefined;
  heardAt: string;
  detail: unknown; // what `describe()` returned
  commands: CommandInfo[];
}

/** Where a server listens. */
export interface WebApiAddress {
  /** Host name or IP address; `localhost` for a Unix socket. */
  host: string;
  /** The port; 0 for a Unix socket. */
  port: number;
  /** The absolute path of the Unix socket. */
  socketPath?: string | undefined;
}

/**
 * Thrown by `receiveCommand()` if the queue is empty, and by `nextCommand()` and `nextCommandSync()` if nothing can put
 * commands on it, either.
 */
export class EmptyError extends Error {
  override readonly name = 'EmptyError';
}

/** What `launch()` uses of a server besides its public methods. */
interface Internals {
  readonly memory: Int32Array;
  readonly posted: readonly ListedCommand[];
  reportsItself: boolean; // hooks may call hasCommands()
}

const INTERNALS: WeakMap<WebApiServer, Internals> = new WeakMap();

/** Checks the options, applies the defaults and allocates the shared memory. */
function prepareThreadData(options: WebApiServerOptions) {
  const names = ['systemStatus', 'name', 'describe', 'host', 'port', 'maxQueueSize', ...WEB_API_OPTIONS];
  checkOptions('WebApiServer', options, names);
  const {
    systemStatus, describe, name = parsePath(process.argv[1] ?? process.execPath).name, host = DEFAULT_HOST,
    port = DEFAULT_PORT, maxQueueSize = DEFAULT_MAX_QUEUE_SIZE, token, allowedHosts = [], allowedOrigins = [],
    maxConnections = DEFAULT_MAX_CONNECTIONS,
  } = options;
  check('systemStatus', systemStatus, 'function', 'a function');
  check('name', name, 'string', 'a string');
  if (describe !== undefined) check('describe', describe, 'function', 'a function');
  checkHost('host', host);
  checkInteger('port', port, 0, 65_535);
  checkInteger('maxQueueSize', maxQueueSize, 1, MAX_QUEUE_SIZE);
  checkInteger('maxConnections', maxConnections, 1, 65_536);
  checkToken(token);
  checkEntries('allowedHosts', allowedHosts, /^(\*|\.?[\w-]+(\.[\w-]+)*)$/, "'box.lan', '.lan' or '*'");
  checkEntries('allowedOrigins', allowedOrigins, /^[a-z\d+.-]+:\/\/[a-z\d_.:[\]-]+$/, "'http://localhost:3000'");
  const socketName = `${name.replace(/[^\w.-]/g, '_').slice(0, 32)}-${process.pid}.sock`;
  const slots = 1 << (32 - Math.clz32(maxQueueSize - 1)); // the smallest power of two that is large enough
  const buffer = new SharedArrayBuffer((CELL.RING + slots) * Int32Array.BYTES_PER_ELEMENT);
  return {
    memory: new Int32Array(buffer),
    times: new Float64Array(buffer, 0, CELL.RING / 2),
    cells: CELL,
    maxNumber: MAX_NUMBER,
    statusNames: STATUS_NAMES,
    commands: COMMANDS,
    hasDetail: describe !== undefined,
    idPrefix: (36 ** 3 + Math.floor(Math.random() * 36 ** 3)).toString(36).slice(1), // three letters or digits
    about: {
      name: tidy(name),
      pid: process.pid,
      host: process.versions['deno'] === undefined ? hostname() : '', // Deno would ask the user for permission
      startedAt: new Date(performance.timeOrigin).toISOString(),
      version: VERSION,
    },
    host, port, token, maxQueueSize, maxConnections,
    socketPath: resolveSocketPath(options.socketPath, host, port, socketName),
    isInFolder: options.socketPath?.endsWith('/') === true,
    allowedHosts: allowedHosts.map((name) => name.toLowerCase()),
    allowedOrigins: [...allowedOrigins],
  };
}

/**
 * The web API of a running system. It runs in its own thread, so it responds and accepts commands whatever the host's
 * thread is doing. Every command whose response is `ok` is delivered exactly once and in order.
 *
 * @throws {TypeError} If an option has the wrong type or is unknown.
 * @throws {RangeError} If an option is out of range.
 */
export class WebApiServer {
  readonly #systemStatus: () => SystemStatus;
  readonly #describe: () => unknown;
  readonly #memory: Int32Array;
  readonly #data: ThreadData;

  #state: 'idle' | 'starting' | 'running' | 'closed' = 'idle';
  #worker: Worker | null = null;
  #closed: Promise<void> | null = null;
  #restarts = 0; // since a thread was last healthy
  #socketId = ''; // inode and time of the Unix socket, because inodes are reused
  #restartTimer: NodeJS.Timeout | undefined;

  #published = -1; // index of the status that STATUS holds
  #before = { status: -1, cell: 0, since: 0 }; // what was published when the latest command was taken
  #seen = 0; // SEQUENCE when the queue was last found empty
  #isOwn = false; // whether the command taken last is one of the host itself
  readonly #posted: ListedCommand[] = []; // on the queue ahead of those of clients
  #interrupt: AbortController | null = null; // of `signal`
  readonly #internals: Internals;
  readonly #warned: Set<string> = new Set();

  constructor(options: WebApiServerOptions) {
    this.#data = prepareThreadData(options);
    this.#memory = this.#data.memory;
    this.#systemStatus = options.systemStatus;
    this.#describe = options.describe ?? (() => null);
    this.#internals = { memory: this.#memory, posted: this.#posted, reportsItself: false };
    INTERNALS.set(this, this.#internals);
  }

  /**
   * Starts the server. Its thread starts at once, even if the host does not yield. A server that listens does not keep
   * the process alive. If its thread dies, a new one takes over with the same address and queue, after 0.1 to 5 s and
   * once the host yields. `close()` during the start resolves the promise.
   *
   * @returns The address for clients, with the actual port if `port` is 0.
   * @throws {Error} If the server is running or was closed, or if it cannot listen (`code` is Node's: EADDRINUSE,
   *   EADDRNOTAVAIL, EACCES, ENOTFOUND, …). In the latter case it can be started again.
   */
  async runInBackground(): Promise<WebApiAddress> {
    if (this.#state === 'closed') throw new Error('Cannot start the server: it was closed');
    if (this.#state !== 'idle') throw new Error('Cannot start the server: it is already running');
    this.#state = 'starting';
    this.#publish();
    try {
      await this.#startThread();
    } catch (error) {
      if (this.#state === 'starting') this.#state = 'idle';
      throw error;
    }
    const { host: boundHost, port, socketPath } = this.#data;
    const host = boundHost === '0.0.0.0' || boundHost === '::' ? DEFAULT_HOST : boundHost;
    return socketPath === undefined ? { host, port } : { host, port: 0, socketPath };
  }

  /** Returns whether the queue holds commands. Never waits, and is cheap enough for the tightest loop. */
  hasCommands(): boolean {
    // A plain read, because Atomics.load() takes longer than all the rest. A later poll corrects a stale value.
    if (this.#memory[CELL.SEQUENCE] === this.#seen) {
      this.#publish();
      return false;
    }
    const sequence = Atomics.load(this.#memory, CELL.SEQUENCE); // before the sample
    this.#publish();
    if (!this.#internals.reportsItself) this.#complete({});
    if (this.#holdsCommands()) return true; // acknowledged by a later call or wake-up
    this.#acknowledge(sequence);
    this.#seen = sequence;
    return false;
  }

  /**
   * Takes the next command from the queue. Never waits, except for the response to a `shutdown` to be written, because
   * the program may exit now: usually less than a millisecond, at most 200 ms. The command counts as done when the host
   * looks for the next one, unless it calls `report()` before.
   *
   * @throws {EmptyError} If the queue is empty.
   */
  receiveCommand(): ControlCommand {
    this.#complete({});
    this.#isOwn = this.#posted.length > 0;
    const { command, number } = this.#posted.shift() ?? this.#take();
    const { memory, times } = this.#data;
    this.#before = {
      status: this.#published, cell: memory[CELL.STATUS] as number, since: times[CELL.STATUS_AT / 2] as number,
    };
    Atomics.store(memory, CELL.RUNNING, number);
    return command;
  }

  /**
   * Waits for the next command and takes it from the queue, for a host that sleeps while paused. Uses no CPU, and keeps
   * the process alive.
   *
   * @param options.signal Cancels the wait: the promise rejects with the signal's reason. No command is lost.
   * @throws {EmptyError} If the queue is empty and the server is closed or was never started.
   */
  async nextCommand(options: { signal?: AbortSignal | undefined } = {}): Promise<ControlCommand> {
    const { signal } = options;
    for (;;) {
      signal?.throwIfAborted();
      // hasCommands() may miss a command because of its plain read, and no further wake-up may come.
      if (this.hasCommands() || this.#holdsCommands()) return this.receiveCommand();
      this.#checkOpen();
      const keepAlive = setInterval(() => {}, 2 ** 30);
      if (!this.signal.aborted) await once(this.signal, 'abort', signal && { signal }).catch(() => {});
      clearInterval(keepAlive);
    }
  }

  /**
   * Like `nextCommand()`, but blocks the thread, for a host that never yields. Clients still get the status and the
   * detail, but no timer and no signal handler runs. A server thread that has died is replaced after three seconds.
   *
   * @param options.timeout How long to wait, in milliseconds. Default: without limit.
   * @returns Null if no command came in time.
   * @throws {EmptyError} As `nextCommand()`.
   * @throws {TypeError} If the timeout is not a number, or an option is unknown; a RangeError if it is negative.
   */
  nextCommandSync(options: { timeout?: number | undefined } = {}): ControlCommand | null {
    checkOptions('nextCommandSync', options, ['timeout']);
    const { timeout = Infinity } = options;
    check('timeout', timeout, 'number', 'a number of milliseconds from 0', timeout >= 0);
    const deadline = performance.now() + timeout;
    for (let standstills = 0; ;) {
      const sequence = Atomics.load(this.#memory, CELL.SEQUENCE);
      const clock = Atomics.load(this.#memory, CELL.CLOCK);
      if (this.hasCommands() || this.#holdsCommands()) return this.receiveCommand();
      if (this.#state === 'closed') throw new EmptyError('The server is closed');
      this.#checkOpen();
      const remaining = deadline - performance.now();
      if (remaining <= 0) return null;
      const end = Atomics.wait(this.#memory, CELL.SEQUENCE, sequence, Math.min(remaining, BLOCK_MS));
      const stands = end === 'timed-out' && clock === Atomics.load(this.#memory, CELL.CLOCK);
      standstills = stands ? standstills + 1 : 0; // counted, because the whole process may have been stopped
      if (standstills * BLOCK_MS < DEAD_MS) continue;
      standstills = 0;
      void this.#worker?.terminate();
      this.#warnOnce(`The web API at ${this.#where()} was restarted: its thread did not respond`, Infinity);
      this.#startThread().catch(({ message }) => this.#restartLater(message));
    }
  }

  /**
   * Aborts when a command waits on the queue or the server is closed, so that a long asynchronous step can end early.
   * Once the queue is empty again, a new signal takes its place. Does not keep the process alive.
   */
  get signal(): AbortSignal {
    if (this.#interrupt === null || (this.#interrupt.signal.aborted && !this.#holdsCommands())) {
      this.#interrupt = new AbortController();
      Atomics.add(this.#memory, CELL.SLEEPERS, 1); // before the check, so that any later command wakes the host
      this.#interrupt.signal.addEventListener('abort', () => void Atomics.sub(this.#memory, CELL.SLEEPERS, 1));
      if (this.#holdsCommands()) this.#interrupt.abort();
    }
    return this.#interrupt.signal;
  }

  /** Completes the command taken last, and tells what came of it. A no-op if it is completed. */
  report(outcome: CommandOutcome): void {
    checkOptions('report', outcome, ['value', 'error']);
    this.#publish(); // while the command is known to be the cause of a new status
    this.#complete(outcome);
  }

  /**
   * Puts a command of the program itself on the queue, ahead of those of clients: from a signal handler, a timer or a
   * user interface. Works without a running server, too.
   *
   * @param options.reason For `/api/info`, cut at 200 characters.
   * @returns False if `maxQueueSize` such commands are waiting.
   * @throws {TypeError} If there is no such command or option, or the reason is not a string.
   */
  post(command: ControlCommand, options: { reason?: string | undefined } = {}): boolean {
    if (!COMMANDS.includes(command)) {
      throw new TypeError(`command must be one of ${COMMANDS.join(', ')}, got ${inspect(command)}`);
    }
    checkOptions('post', options, ['reason']);
    const { reason = '' } = options;
    check('reason', reason, 'string', 'a string');
    if (this.#posted.length >= this.#data.maxQueueSize) return false;
    const number = ((Atomics.add(this.#memory, CELL.NUMBER, 1) >>> 0) % MAX_NUMBER) + 1;
    const text = tidy(reason) || undefined;
    const posted: ListedCommand = { number, command, at: Date.now(), by: 'itself', reason: text };
    this.#posted.push(posted);
    this.#tell(posted);
    this.#notify();
    this.#seen = (this.#seen - 1) | 0; // so that the next poll looks for commands
    this.#interruptSteps();
    return true;
  }

  /**
   * Stops the server. It completes the command taken last, accepts no more connections, responds to pending requests,
   * and cuts the remaining connections after one second. Commands on the queue can still be received. Further calls are
   * no-ops.
   *
   * @returns A promise that resolves when the port is free and the thread has ended.
   */
  close(): Promise<void> {
    this.#closed ??= this.#stopThread();
    return this.#closed;
  }

  #complete(outcome: CommandOutcome): void {
    const number = Atomics.load(this.#memory, CELL.RUNNING);
    if (number === 0) return;
    const { value } = outcome;
    const endedAt = Date.now();
    const news: Partial<ListedCommand> = {};
    if (Number.isFinite(value)) news.value = value;
    if (typeof value === 'string') news.value = tidy(value, MAX_VALUE_LENGTH);
    if ('error' in outcome) news.error = tidy(describeError(outcome.error), MAX_VALUE_LENGTH);
    if (this.#isOwn || 'value' in news || 'error' in news) this.#tell({ number, endedAt, ...news });
    else this.#data.times[CELL.DONE_AT / 2] = endedAt; // a message would take longer
    Atomics.store(this.#memory, CELL.DONE, Atomics.load(this.#memory, CELL.TAIL));
    Atomics.store(this.#memory, CELL.RUNNING, 0);
    this.#notify();
  }

  /** Takes a command of a client from the queue. */
  #take(): Pick<ListedCommand, 'command' | 'number'> {
    if (!this.#holdsCommands()) throw new EmptyError('The command queue is empty');
    const tail = Atomics.load(this.#memory, CELL.TAIL);
    const slots = this.#memory.length - CELL.RING;
    const slot = this.#memory[CELL.RING + (tail & (slots - 1))] as number;
    const command = COMMANDS[slot & 3] as ControlCommand;
    const responded = Atomics.load(this.#memory, CELL.RESPONDED);
    const isWritten = ((responded - tail) | 0) > 0;
    if (command === 'shutdown' && !isWritten) Atomics.wait(this.#memory, CELL.RESPONDED, responded, RESPONSE_MS);
    Atomics.store(this.#memory, CELL.TAIL, (tail + 1) | 0);
    return { command, number: slot >>> 2 };
  }

  #publish(): void {
    const status = this.#sampleStatus();
    if (status !== this.#published) {
      const number = Atomics.load(this.#memory, CELL.RUNNING);
      const isBack = number !== 0 && status === this.#before.status; // after a save, or a pause that failed
      this.#published = status;
      this.#data.times[CELL.STATUS_AT / 2] = isBack ? this.#before.since : Date.now();
      Atomics.store(this.#memory, CELL.STATUS, isBack ? this.#before.cell : (number << 3) | status);
      this.#notify();
    }
    this.#memory[CELL.SAMPLED] = this.#memory[CELL.CLOCK] as number;
  }

  /** Returns the index of the status, or STATUSES.length if there is none. */
  #sampleStatus(): number {
    try {
      const status: SystemStatus | null | undefined = this.#systemStatus();
      const statusName = status?.statusName ?? '';
      if (statusName === STATUS_NAMES[this.#published]) return this.#published;
      const index = STATUS_NAMES.indexOf(statusName); // by name: the status may come from another copy of this file
      if (index !== -1) return index;
      Promise.resolve(status).catch(() => {}); // a rejected promise must not end the host
      this.#warnOnce(`systemStatus must return a SystemStatus other than OFFLINE, got ${inspect(status)}`);
    } catch (error) {
      this.#warnOnce(`systemStatus failed: ${describeError(error)}`);
    }
    return STATUSES.length;
  }

  #acknowledge(sequence: number): void {
    if (Atomics.compareExchange(this.#memory, CELL.DETAIL, 1, 2) === 1) {
      this.#tell({ detail: this.#sampleDetail() });
      Atomics.store(this.#memory, CELL.DETAIL, 0);
    }
    Atomics.store(this.#memory, CELL.ACKNOWLEDGED, sequence);
    this.#notify();
  }

  /** Returns JSON: `null` if there is no detail. */
  #sampleDetail(): string {
    try {
      const detail = this.#describe();
      const json = isPromise(detail) ? undefined : JSON.stringify(detail ?? null);
      Promise.resolve(detail).catch(() => {}); // as above
      if (json !== undefined && Buffer.byteLength(json) <= MAX_DETAIL_BYTES) return json;
      this.#warnOnce(`describe must return a value whose JSON has at most ${MAX_DETAIL_BYTES} bytes`);
    } catch (error) {
      this.#warnOnce(`describe failed: ${describeError(error)}`);
    }
    return 'null';
  }

  /** Wakes the thread if it waits. */
  #notify(): void {
    Atomics.add(this.#memory, CELL.NEWS, 1);
    Atomics.notify(this.#memory, CELL.NEWS);
  }

  #tell(message: HostMessage): void {
    if (this.#worker === null) return;
    this.#worker.postMessage(message);
    Atomics.add(this.#memory, CELL.TOLD, 1);
  }

  /** Shows each message once. The limit is for errors of systemStatus() whose text varies. */
  #warnOnce(message: string, limit: number = MAX_WARNINGS): void {
    if (this.#warned.has(message) || this.#warned.size >= limit) return;
    this.#warned.add(message);
    process.emitWarning(message, WARNING);
  }

  #checkOpen(): void {
    if (this.#state === 'idle') throw new EmptyError('The server was not started');
    if (this.#state === 'closed' && this.#worker === null) throw new EmptyError('The server is closed');
  }

  #holdsCommands(): boolean {
    return this.#posted.length > 0 || Atomics.load(this.#memory, CELL.HEAD) !== Atomics.load(this.#memory, CELL.TAIL);
  }

  /** Also wakes nextCommand(). */
  #interruptSteps(): void {
    if (this.#holdsCommands() || this.#state === 'closed') this.#interrupt?.abort();
  }

  /** Handles a wake-up message: for a command, a sample request or both. */
  #onWakeUp(): void {
    Atomics.store(this.#memory, CELL.NOTIFIED, 0); // first, so that anything later posts a new message
    this.#interruptSteps();
    setImmediate(() => this.#sampleIfRequested()); // after nextCommand() has taken a command
  }

  #sampleIfRequested(): void {
    const sequence = Atomics.load(this.#memory, CELL.SEQUENCE); // before the sample
    const requested = Atomics.load(this.#memory, CELL.REQUESTED);
    if (((Atomics.load(this.#memory, CELL.ACKNOWLEDGED) - requested) | 0) >= 0) return;
    this.#publish();
    this.#acknowledge(sequence);
  }

  /** Resolves once the thread listens or the server is closed. Rejects if the first start fails. */
  async #startThread(): Promise<void> {
    clearTimeout(this.#restartTimer); // nextCommandSync() may be first
    Atomics.store(this.#memory, CELL.TOLD, 0);
    const worker = this.#createThread();
    this.#worker = worker;
    for (const posted of this.#posted) this.#tell(posted);
    await new Promise<void>((resolve, reject) => {
      let listeningSince = Infinity;
      let failure: Failure = { message: 'its thread exited' };
      worker.on('message', (message: ThreadMessage) => {
        if (message === null) return this.#onWakeUp();
        if (message.type === 'listening') {
          listeningSince = performance.now();
          this.#socketId = message.socketId;
          this.#onListening(message.port, message.isPublic);
          return resolve();
        }
        failure = message;
      });
      worker.on('error', (error: NodeJS.ErrnoException) => {
        failure = { message: `its thread failed: ${describeError(error)}`, code: error.code };
      });
      worker.on('exit', () => {
        if (this.#worker !== worker) return resolve(); // it has been replaced
        this.#worker = null;
        // The thread's last message may be lost, and its last command may be on the queue without a new SEQUENCE.
        Atomics.store(this.#memory, CELL.NOTIFIED, 0);
        Atomics.add(this.#memory, CELL.SEQUENCE, 1);
        this.#interruptSteps();
        if (this.#state === 'closed') return resolve();
        if (this.#state === 'starting') return reject(this.#cannotServe(failure));
        if (performance.now() - listeningSince >= HEALTHY_MS) this.#restarts = 0;
        this.#restartLater(failure.message);
      });
      if (this.#state === 'running') worker.unref(); // after on('message'), which refs it
    });
  }

  #createThread(): Worker {
    const source = `
      const { parentPort, workerData } = process.getBuiltinModule('node:worker_threads');
      const report = (message) => parentPort.postMessage(message);
      const prepare = ${prepareResponse};
      const policy = (${createPolicy})(workerData, prepare);
      const link = (${linkToHost})(workerData, () => report(null), ${tidy});
      const server = (${serve})(workerData, report, prepare, policy, link);
      process.on('uncaughtException', server.fail);
      parentPort.on('message', (message) => message === 'close' ? server.close() : link.receive(message));
      try { server.start(); } catch (error) { server.fail(error); } // Deno throws past uncaughtException
    `;
    const { maxConnections, maxQueueSize } = this.#data;
    const maxOldGenerationSizeMb = HEAP_MB + maxConnections / 16 + maxQueueSize / 512; // several times what floods need
    try {
      return new Worker(source, {
        eval: true,
        workerData: this.#data,
        name: 'runtime-control',
        execArgv: [], // not the host's --import and --require
        env: {}, // nor its NODE_OPTIONS
        stdout: true, stderr: true, // opening the host's streams takes time, and the thread prints nothing
        resourceLimits: { maxOldGenerationSizeMb, maxYoungGenerationSizeMb: 16 },
      });
    } catch (error) {
      throw this.#cannotServe(error as NodeJS.ErrnoException);
    }
  }

  #cannotServe({ message, code }: Failure): Error {
    return Object.assign(new Error(`Cannot serve at ${this.#where()}: ${message}`), { code });
  }

  #onListening(port: number, isPublic: boolean): void {
    this.#data.port = port; // restarted threads use the same
    if (this.#state !== 'starting') return;
    this.#state = 'running';
    this.#worker?.unref();
    if (!isPublic) return;
    const who = `anyone who can connect${this.#data.token === undefined ? '' : ' and knows the token'}`;
    const what = `The web API at ${this.#where()} accepts connections from other machines`;
    process.emitWarning(`${what}: ${who} can control this program`, WARNING);
  }

  /** Restarts the thread after a delay, which grows until a thread is healthy. Warns of each reason once. */
  #restartLater(reason: string): void {
    if (this.#state !== 'running') return;
    this.#warnOnce(`The web API at ${this.#where()} stopped and will be restarted: ${reason}`, Infinity);
    const delayMs = Math.min(100 * 2 ** this.#restarts, MAX_RESTART_DELAY_MS);
    this.#restarts += 1;
    const restart = (): Promise<void> => this.#startThread().catch(({ message }) => this.#restartLater(message));
    this.#restartTimer = setTimeout(restart, delayMs).unref();
  }

  #where(): string {
    const { host, port, socketPath } = this.#data;
    return socketPath ?? authorityOf(host, port);
  }

  async #stopThread(): Promise<void> {
    this.#complete({});
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
    this.#removeSocket();
    this.#interruptSteps(); // for nextCommand(), if there is no thread
  }

  #removeSocket(): void {
    const { socketPath } = this.#data;
    if (socketPath === undefined) return;
    try {
      const { ino, mtimeMs } = lstatSync(socketPath);
      if (`${ino} ${mtimeMs}` === this.#socketId) unlinkSync(socketPath);
    } catch {
      // It is gone, or out of reach until the next server replaces it.
    }
  }
}

// ───── WebApiClient ──────────────────────────────────────────────────────────────────────────────────────────────

/**
 * The outcome of a request. `value` is the name of the status or the result of the command, or empty if nothing has
 * changed since the client's `tag`; `body` is the whole response. `answered` tells whether a control server responded,
 * and `sent` whether the request may have reached one: a command that was sent but not answered may still take effect.
 */
export type WebApiReply =
  | Readonly<{ ok: true; value: string; body: Record<string, unknown>; tag: string | undefined }>
  | Readonly<{ ok: false; error: string; answered: boolean; sent: boolean; statusCode: number | undefined }>;

/** Options of `request()`. */
export interface RequestOptions {
  /** Waits until the command is done, or until there is something newer than `tag`: 1 to 300 seconds. */
  wait?: number | undefined;
  /** Who sends the command: `ana@laptop`. */
  by?: string | undefined;
  /** Why. Both are cut at 200 characters. */
  reason?: string | undefined;
  /** The tag of an earlier reply, for `status` and `info`. */
  tag?: string | undefined;
  /** Cancels the request, which then counts as failed. */
  signal?: AbortSignal | undefined;
}

/** Options of `WebApiClient`. */
export interface WebApiClientOptions {
  /** Time limit of each request, in milliseconds. Default: 5000. */
  timeout?: number | undefined;
  /** The token of the server. */
  token?: string | undefined;
  /** Path of the server's Unix socket, instead of host and port. It must belong to the client's user or to root. */
  socketPath?: string | undefined;
}

/** Options of `waitFor()`. */
export interface WaitOptions {
  /** Time limit in milliseconds. Default: 30,000. */
  timeout?: number | undefined;
  /** Cancels the wait: the promise rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
  /** Called with the first status, and with each status that differs from the one before. */
  onStatus?: ((status: SystemStatus) => void) | undefined;
}

/**
 * Controls a system from outside. Failed requests do not throw: the status is then `OFFLINE`, the result of a command
 * `null`, and `request()` returns the reason. Each request opens its own connection and is never retried.
 *
 * @throws {TypeError} If an argument has the wrong type or an option is unknown.
 * @throws {RangeError} If an argument is out of range.
 */
export class WebApiClient {
  /** The base URL of the web API, such as `http://localhost:8391`, or `unix:` and the path of the socket. */
  readonly baseUrl: string;
  /** Host name or IP address; `localhost` for a Unix socket. */
  readonly host: string;
  /** The port; 0 for a Unix socket. */
  readonly port: number;
  readonly #target: { host: string; port: number } | { socketPath: string };
  readonly #headers: { Authorization?: string };
  readonly #timeoutMs: number;
  readonly #cancels: Set<() => void> = new Set(); // one for each pending request

  constructor(host: string = DEFAULT_HOST, port: number = DEFAULT_PORT, options: WebApiClientOptions = {}) {
    checkHost('host', host);
    checkInteger('port', port, 1, 65535);
    checkOptions('WebApiClient', options, ['timeout', 'token', 'socketPath']);
    const { timeout = 5000, token } = options;
    checkTimeout(timeout);
    checkToken(token);
    const socketPath = resolveSocketPath(options.socketPath, host, port);
    this.host = host;
    this.port = socketPath === undefined ? port : 0;
    this.#target = socketPath === undefined ? { host, port } : { socketPath };
    this.baseUrl = socketPath === undefined ? `http://${authorityOf(host, port)}` : `unix:${socketPath}`;
    this.#headers = token === undefined ? {} : { Authorization: `Bearer ${token}` };
    this.#timeoutMs = timeout;
  }

  /**
   * Requests the status of the system. Resolves with `OFFLINE` if the request fails.
   *
   * @param signal Cancels the request, which then counts as failed.
   */
  async getStatus(signal?: AbortSignal): Promise<SystemStatus> {
    return statusOf(await this.request('status', { signal })) ?? OFFLINE;
  }

  /** Sends `pause`. Resolves with the result, `'ok'`, or with `null` if the request fails. */
  pause(): Promise<string | null> { return this.#send('pause'); }

  /** Sends `resume`. Resolves with the result, `'ok'`, or with `null` if the request fails. */
  resume(): Promise<string | null> { return this.#send('resume'); }

  /** Sends `save-state`. Resolves with the result, `'ok'`, or with `null` if the request fails. */
  saveState(): Promise<string | null> { return this.#send('save-state'); }

  /** Sends `shutdown`. Resolves with the result, `'ok'`, or with `null` if the request fails. */
  shutdown(): Promise<string | null> { return this.#send('shutdown'); }

  /** Requests what is going on. Resolves with null if the request fails. Not in version 0.2. */
  async info(signal?: AbortSignal): Promise<SystemInfo | null> {
    const reply = await this.request('info', { signal });
    return reply.ok === true ? reply.body as unknown as SystemInfo : null;
  }

  /**
   * Sends one request, and resolves with its outcome. With `wait`, its time limit is that much longer.
   *
   * @throws {TypeError} If an option is unknown or has the wrong type.
   * @throws {RangeError} If `wait` is out of range.
   */
  async request(endpoint: 'status' | 'info' | ControlCommand, options: RequestOptions = {}): Promise<WebApiReply> {
    checkOptions('request', options, ['wait', 'by', 'reason', 'tag', 'signal']);
    const { wait, signal } = options;
    if (wait !== undefined) checkInteger('wait', wait, 1, 300);
    const timeoutMs = this.#timeoutMs + (wait ?? 0) * 1000;
    const end = new AbortController();
    const cancel = (): void => end.abort(new Error('the request was cancelled'));
    const expire = (): void => end.abort(new Error(`timeout after ${timeoutMs / 1000} s`));
    const timer = setTimeout(expire, timeoutMs);
    this.#cancels.add(cancel);
    let sent = false;
    try {
      signal?.addEventListener('abort', cancel, { once: true });
      if (signal?.aborted === true) cancel();
      const { statusCode, tag, body } = await this.#exchange(endpoint, options, end.signal, () => (sent = true));
      const isCommand = COMMANDS.includes(endpoint as ControlCommand);
      const value = statusCode === 304 ? '' : isCommand ? body['result'] : nameOf(body['status']);
      const { error } = body;
      if ([200, 202, 304].includes(statusCode) && typeof value === 'string') return { ok: true, value, body, tag };
      if (statusCode >= 400 && typeof error === 'string') return { ok: false, error, answered: true, sent, statusCode };
      const mismatch = `${this.baseUrl} is not a control server: it responded with status code ${statusCode}`;
      return { ok: false, error: mismatch, answered: false, sent, statusCode };
    } catch (error) {
      const reason = describeError(end.signal.aborted ? end.signal.reason : error);
      const message = `${this.baseUrl} does not respond: ${reason}`;
      return { ok: false, error: message, answered: false, sent, statusCode: undefined };
    } finally {
      clearTimeout(timer);
      this.#cancels.delete(cancel);
      signal?.removeEventListener('abort', cancel);
    }
  }

  /**
   * Waits until the system reports the status; polls every 50 ms if the server does not support that. A command takes
   * effect when the host takes it from the queue, so the first status may predate a command sent just before. Error
   * responses do not end the wait. A system that accepts connections and does not respond is not `OFFLINE`.
   *
   * @throws {DOMException} `TimeoutError` if the system does not report the status in time.
   * @throws The reason of an aborted signal.
   * @throws {TypeError} If an argument has the wrong type or an option is unknown.
   * @throws {RangeError} If the timeout is out of range.
   */
  async waitFor(status: SystemStatus, options: WaitOptions = {}): Promise<void> {
    const target = [...STATUSES, OFFLINE].find(({ statusName }) => statusName === status?.statusName);
    if (target === undefined) throw new TypeError(`status must be a SystemStatus, got ${inspect(status)}`);
    checkOptions('waitFor', options, ['timeout', 'signal', 'onStatus']);
    const { timeout = 30_000, signal, onStatus } = options;
    checkTimeout(timeout);
    if (onStatus !== undefined) check('onStatus', onStatus, 'function', 'a function');
    const limit = AbortSignal.timeout(Math.ceil(timeout)); // it takes integers only
    const end = signal === undefined ? limit : AbortSignal.any([limit, signal]);
    const timedOut = `Timed out after ${timeout / 1000} s waiting for the status '${target}'`;
    let last: SystemStatus | null = null;
    let tag: string | undefined; // of the last status
    for (;;) {
      const reply = await this.request('status', { signal: end, tag, wait: tag === undefined ? undefined : WAIT_S });
      const current = statusOf(reply);
      signal?.throwIfAborted();
      if (limit.aborted) throw new DOMException(timedOut, 'TimeoutError');
      const hasChanged = current !== null && current !== last;
      if (hasChanged) onStatus?.(current);
      if (current === target) return;
      last = current ?? last;
      tag = reply.ok === true ? reply.tag : undefined;
      if (!hasChanged || tag === undefined) await sleep(POLL_INTERVAL_MS, undefined, { signal: end }).catch(() => {});
    }
  }

  /** Cancels all pending requests. The client can still be used. */
  close(): void {
    for (const cancel of this.#cancels) cancel();
  }

  async #send(command: ControlCommand): Promise<string | null> {
    const reply = await this.request(command);
    return reply.ok === true ? reply.value : null; // narrows without `strict`, too
  }

  async #exchange(endpoint: string, options: RequestOptions, signal: AbortSignal, onSent: () => void) {
    const { wait, by, reason, tag } = options;
    signal.throwIfAborted();
    if ('socketPath' in this.#target) checkOwner(this.#target.socketPath);
    const http = process.getBuiltinModule('node:http'); // slow to load, and hosts do not need it
    const method = endpoint === 'status' || endpoint === 'info' ? 'GET' : 'POST';
    const query = new URLSearchParams();
    if (by) query.set('by', tidy(by));
    if (reason) query.set('reason', tidy(reason));
    const path = `/api/${endpoint}${query.size > 0 ? `?${query}` : ''}`;
    const headers: Record<string, string> = { ...this.#headers };
    if (wait !== undefined) headers['Prefer'] = `wait=${wait}`;
    if (tag !== undefined) headers['If-None-Match'] = tag;
    const request = http.request({ ...this.#target, agent: false, method, path, headers, signal });
    request.on('finish', onSent);
    request.on('error', () => {}); // once() reports it, or else reading the response does
    request.end();
    const [response] = await once(request, 'response', { signal }) as [IncomingMessage];
    let text = '';
    for await (const chunk of response.setEncoding('utf8')) {
      text += chunk;
      if (text.length > MAX_BODY_LENGTH) throw new Error(`the response exceeds ${MAX_BODY_LENGTH} characters`);
    }
    let body: Record<string, unknown> = {};
    try {
      body = Object(JSON.parse(text));
    } catch {
      // Not JSON: the caller finds no fields.
    }
    return { statusCode: response.statusCode ?? 0, tag: response.headers.etag, body };
  }
}

/** The original, written in Python, numbers the statuses from 1. */
function nameOf(status: unknown): unknown {
  if (status === null) return ''; // of `info`
  return typeof status === 'number' ? STATUS_NAMES[status - 1] ?? String(status) : status;
}

/** Returns null if the reply tells no known status. A system that took the request and did not respond may hang. */
function statusOf(reply: WebApiReply): SystemStatus | null {
  if (reply.ok === true) return STATUSES[STATUS_NAMES.indexOf(reply.value)] ?? null;
  return reply.answered || (reply.sent && reply.statusCode === undefined) ? null : OFFLINE;
}

/** While the server is down, another user may listen at its path, and receive the token. */
function checkOwner(socketPath: string): void {
  const { uid = 0 } = statSync(socketPath, { throwIfNoEntry: false }) ?? {};
  if (uid === 0 || uid === process.geteuid?.()) return;
  throw new Error(`no request was sent, because the socket belongs to user ${uid}`);
}

function authorityOf(host: string, port: number): string {
  return `${host.includes(':') ? `[${host}]` : host}:${port}`; // an IPv6 address goes in brackets
}

// ───── launch: a host loop ───────────────────────────────────────────────────────────────────────────────────────
//
//             pause                        resume
//  active ───────────▶ pausing ──▶ paused ───────────▶ resuming ──▶ active
//  save-state: pauses, saves and resumes if active; just saves if paused
//  shutdown from any status: shutting down ──▶ the last save ──▶ the end; paused, if the save fails

/**
 * The system that `launch()` runs. Every method except `describe` may be synchronous or return a promise. What a hook
 * returns is told to the client that waits for its command, if it is a string or a finite number; a failure is, too.
 */
export interface System {
  /** Does one piece of the work. Called repeatedly while the system is active. */
  step(control: Control): unknown;
  /** Called with the address of the web API before the first step. If it fails, so does the launch. */
  onListening?(address: WebApiAddress): unknown;
  /** Called while the status is `pausing`. If it fails, the system stays active. */
  onPaused?(): unknown;
  /** Called while the status is `resuming`. If it fails, the system stays paused. */
  onResumed?(): unknown;
  /** Saves the state, for `save-state` and at shutdown. `status` is the one before the command: active or paused. */
  saveState?(status: SystemStatus): unknown;
  /** Called last, after the final `saveState()`. */
  onShutdown?(): unknown;
  /** See `WebApiServerOptions.describe`. */
  describe?(): unknown;
}

/**
 * Posts commands, which take effect after the step. A long step may end early if `hasCommands()`, or when `signal`
 * aborts; it should catch what is thrown then, because a step that fails ends the launch.
 */
export interface Control extends Pick<WebApiServer, 'hasCommands' | 'signal'> {
  pause(reason?: string): boolean;
  save(reason?: string): boolean;
  shutdown(reason?: string): boolean;
}

/** Configuration of `launch()`. */
export interface LaunchConfig extends Pick<WebApiServerOptions, 'name'> {
  /** Host and port of the web API, or null for no web API. Default: `['localhost', 8391]`. */
  webApiAddress?: readonly [host: string, port: number] | null | undefined;
  /** Capacity of the command queue, from 1 to 65536. Default: 16. */
  webApiCommandQueueSize?: number | undefined;
  /** Pauses before the first step: for a state that was saved while paused. Requires a web API. Default: false. */
  startPaused?: boolean | undefined;
  /** Other options of the server. */
  webApiOptions?: Omit<WebApiServerOptions, LaunchOption> | undefined;
}

type Hook = 'onPaused' | 'onResumed' | 'saveState' | 'onShutdown';
type LaunchOption = 'systemStatus' | 'name' | 'describe' | 'host' | 'port' | 'maxQueueSize';

/**
 * Runs a system until it is shut down by a command, SIGINT, SIGTERM or SIGHUP (its terminal was closed; nohup does not
 * prevent that, because Node undoes it). A second SIGINT, at least a second after the first, kills it. SIGUSR2 saves. A
 * paused system uses no CPU. Steps may be synchronous: commands are handled after each step, timers and signals every
 * 10 ms or after a step that takes longer, and up to 250 ms later when steps have just become longer.
 *
 * If a hook fails, `process.emitWarning()` reports it and the system continues. If the last save fails, a shutdown by
 * command is called off and the system pauses, so that it can be shut down again. The promise rejects with the error of
 * the save the second time, after a signal, or without a web API. If a step fails, it rejects with that error, and no
 * state is saved.
 *
 * @throws {TypeError} If an argument has the wrong type or an option is unknown.
 * @throws {RangeError} If an option is out of range.
 * @throws {Error} If the web API cannot listen (see `WebApiServer.runInBackground()`). No step has run.
 */
export async function launch(system: System, config: LaunchConfig = {}): Promise<void> {
  await new Launch(system, config).run();
}

class Launch {
  readonly #system: System;
  readonly #server: WebApiServer;
  readonly #internals: Internals;
  readonly #control: Control;
  readonly #hasWebApi: boolean;
  #status: SystemStatus = ACTIVE;
  #isOver = false;
  #signal: string | null = null; // the first that asked for a shutdown
  #calledOff: { number: number; outcome: CommandOutcome } | null = null; // with the number of the latest command then
  #turnEndsAt = 0; // when to yield to the event loop
  #batch = 1; // steps that take about a millisecond

  constructor(system: System, config: LaunchConfig) {
    check('system', system, 'object', 'an object');
    check('system.step', system.step, 'function', 'a function');
    for (const hook of ['onListening', 'onPaused', 'onResumed', 'saveState', 'onShutdown', 'describe'] as const) {
      if (system[hook] !== undefined) check(`system.${hook}`, system[hook], 'function', 'a function');
    }
    checkOptions('launch', config, ['webApiAddress', 'webApiCommandQueueSize', 'name', 'startPaused', 'webApiOptions']);
    const {
      webApiAddress = [DEFAULT_HOST, DEFAULT_PORT], webApiCommandQueueSize = DEFAULT_MAX_QUEUE_SIZE, name,
      startPaused = false, webApiOptions = {},
    } = config;
    if (webApiAddress !== null && !(Array.isArray(webApiAddress) && webApiAddress.length === 2)) {
      throw new TypeError(`webApiAddress must be [host, port] or null, got ${inspect(webApiAddress)}`);
    }
    if (webApiAddress !== null) {
      checkHost('the host of webApiAddress', webApiAddress[0]);
      checkInteger('the port of webApiAddress', webApiAddress[1], 0, 65_535);
    }
    checkInteger('webApiCommandQueueSize', webApiCommandQueueSize, 1, MAX_QUEUE_SIZE);
    check('startPaused', startPaused, 'boolean', 'a boolean');
    if (startPaused && webApiAddress === null) throw new TypeError('startPaused requires a web API');
    checkOptions('webApiOptions', webApiOptions, WEB_API_OPTIONS);
    this.#system = system;
    this.#hasWebApi = webApiAddress !== null;
    const server = new WebApiServer({
      ...webApiOptions,
      systemStatus: () => this.#status,
      name,
      describe: system.describe && (() => system.describe?.()),
      host: webApiAddress?.[0],
      port: webApiAddress?.[1],
      maxQueueSize: webApiCommandQueueSize,
    });
    this.#server = server;
    this.#internals = INTERNALS.get(server) as Internals;
    this.#internals.reportsItself = true;
    if (startPaused) {
      this.#status = PAUSING;
      server.post('pause', { reason: 'started paused' });
    }
    this.#control = {
      pause: (reason) => server.post('pause', { reason }),
      save: (reason) => server.post('save-state', { reason }),
      shutdown: (reason) => server.post('shutdown', { reason }),
      hasCommands: () => server.hasCommands(),
      get signal() { return server.signal; },
    };
  }

  async run(): Promise<void> {
    let killsAfter = Infinity;
    const onSignal = (name: NodeJS.Signals): void => {
      if (name === 'SIGUSR2') return void this.#server.post('save-state', { reason: name });
      if (name === 'SIGINT' && performance.now() >= killsAfter) {
        removeHandlers();
        process.kill(process.pid, name);
      }
      if (name === 'SIGINT') killsAfter = Math.min(killsAfter, performance.now() + KILL_MS);
      if (this.#signal === null) this.#server.post('shutdown', { reason: name });
      this.#signal ??= name;
    };
    const removeHandlers = (): void => SIGNALS.forEach((name) => process.off(name, onSignal));
    for (const name of SIGNALS) process.on(name, onSignal);
    try {
      if (this.#hasWebApi) {
        const address = await this.#server.runInBackground();
        await this.#system.onListening?.(address);
      }
      await this.#work();
    } finally {
      await this.#server.close();
      removeHandlers();
    }
  }

  async #work(): Promise<void> {
    const server = this.#server;
    while (!this.#isOver) {
      const sequence = this.#internals.memory[CELL.SEQUENCE] as number; // before the poll, so that nothing is missed
      if (server.hasCommands()) server.report(await this.#execute(server.receiveCommand()));
      else if (this.#signal !== null) server.report(await this.#shutDown()); // the queue was too full for a command
      else if (this.#status === PAUSED) await sleep(MAX_SLEEP_MS, null, { signal: server.signal }).catch(() => {});
      else await this.#advance(sequence);
      if (performance.now() >= this.#turnEndsAt) await this.#yield(); // a stream of commands must not prevent it
    }
  }

  async #yield(): Promise<void> {
    await nextTurn(); // the rest of this turn, which may be past the check for signals
    await nextTurn(); // a complete turn
    this.#turnEndsAt = performance.now() + TURN_MS;
  }

  /**
   * Runs steps for about a millisecond, or until there is something new. CLOCK ends a batch that takes much longer. The
   * status does not change meanwhile, so that hasCommands() would do more than necessary.
   */
  async #advance(sequence: number): Promise<void> {
    const system = this.#system;
    const control = this.#control;
    const { memory, posted } = this.#internals;
    const clock = memory[CELL.CLOCK] as number;
    const start = performance.now();
    const batch = this.#batch;
    const turnEndsAt = this.#hasWebApi ? Infinity : this.#turnEndsAt; // without a thread, CLOCK stands still
    let steps = 0;
    let isLast: boolean;
    do {
      const result = system.step(control);
      if (isPromise(result)) await result;
      steps += 1;
      memory[CELL.SAMPLED] = clock;
      isLast = turnEndsAt === Infinity ? steps >= batch : performance.now() >= turnEndsAt;
    } while (!isLast && memory[CELL.SEQUENCE] === sequence && memory[CELL.CLOCK] === clock && posted.length === 0);
    this.#batch = Math.min(2 * steps, steps / (performance.now() - start));
  }

  #execute(command: ControlCommand): Promise<CommandOutcome> {
    switch (command) {
      case 'pause': return this.#pause();
      case 'resume': return this.#resume();
      case 'save-state': return this.#save();
      case 'shutdown': return this.#shutDown();
    }
  }

  async #pause(): Promise<CommandOutcome> {
    if (this.#status === PAUSED) return {};
    this.#setStatus(PAUSING);
    const outcome = await this.#call('onPaused');
    this.#setStatus('error' in outcome ? ACTIVE : PAUSED);
    return outcome;
  }

  async #resume(): Promise<CommandOutcome> {
    if (this.#status === ACTIVE) return {};
    this.#setStatus(RESUMING);
    const outcome = await this.#call('onResumed');
    this.#setStatus('error' in outcome ? PAUSED : ACTIVE);
    return outcome;
  }

  async #save(): Promise<CommandOutcome> {
    const status = this.#status;
    const paused = await this.#pause();
    if ('error' in paused) return paused;
    const outcome = await this.#call('saveState', status);
    if (status === ACTIVE) await this.#resume();
    return outcome;
  }

  /** Saves for the last time and ends the launch, unless the save fails and a client can try again. */
  async #shutDown(): Promise<CommandOutcome> {
    const { memory } = this.#internals;
    const calledOff = this.#calledOff;
    const number = Atomics.load(memory, CELL.RUNNING);
    if (calledOff !== null && this.#signal === null && number <= calledOff.number) return calledOff.outcome;
    const status = this.#status;
    this.#setStatus(SHUTTING_DOWN);
    const saved = await this.#call('saveState', status);
    const isSaved = !('error' in saved);
    if (!isSaved && this.#signal === null && this.#hasWebApi && calledOff === null) {
      this.#calledOff = { number: Atomics.load(memory, CELL.NUMBER), outcome: saved };
      if (status === PAUSED) this.#setStatus(PAUSED);
      else await this.#pause();
      return saved;
    }
    const ended = await this.#call('onShutdown');
    this.#isOver = true;
    if (isSaved) return { ...saved, ...ended };
    this.#server.report(saved);
    throw saved.error;
  }

  #setStatus(status: SystemStatus): void {
    this.#status = status;
    this.#server.hasCommands(); // publishes the status, because the next hook may block this thread
  }

  async #call(hook: Hook, ...args: SystemStatus[]): Promise<CommandOutcome> {
    try {
      const value = await this.#system[hook]?.(...args as [SystemStatus]);
      return typeof value === 'string' || typeof value === 'number' ? { value } : {};
    } catch (error) {
      const message = `${hook} failed: ${describeError(error)}`;
      process.emitWarning(message, { type: WARNING, detail: (error as Error | null)?.stack });
      return { error: hook === 'saveState' ? error : new Error(message) };
    }
  }
}

// ───── Errors and checks ─────────────────────────────────────────────────────────────────────────────────────────

function isPromise(value: unknown): boolean {
  return typeof (value as PromiseLike<unknown> | null | undefined)?.then === 'function';
}

/** Node's connection errors may have a code but no message. */
function describeError(error: unknown): string {
  const { message, code, name } = Object(error) as Partial<NodeJS.ErrnoException>; // instanceof fails in Jest
  return typeof message === 'string' ? message || code || name || 'Error' : inspect(error);
}

/** Throws a TypeError if the type is wrong, or a RangeError if the value is. */
function check(name: string, value: unknown, type: string, form: string, isValid: boolean = true): void {
  const isType = typeof value === type && value !== null;
  if (isType && isValid) return;
  const message = `${name} must be ${form}, got ${inspect(value)}`;
  throw isType ? new RangeError(message) : new TypeError(message);
}

function checkInteger(name: string, value: number, least: number, most: number): void {
  const isValid = Number.isInteger(value) && value >= least && value <= most;
  check(name, value, 'number', `an integer from ${least} to ${most}`, isValid);
}

function checkTimeout(value: number): void {
  const isValid = value > 0 && value <= MAX_SLEEP_MS;
  check('timeout', value, 'number', 'a number of milliseconds above 0 and below 2³¹', isValid);
}

/** Rejects URLs and `host:port`, which would fail only later, in a name lookup. */
function checkHost(name: string, value: string): void {
  const isValid = /^[^\s/:?#@[\]]+$/.test(value) || process.getBuiltinModule('node:net').isIPv6(value);
  check(name, value, 'string', 'a host name or an IP address', isValid);
}

/** The messages never contain the token. */
function checkToken(token: unknown): void {
  if (token === undefined) return;
  const message = 'token must be a string of 16 to 1024 visible ASCII characters, got';
  if (typeof token !== 'string') throw new TypeError(`${message} a value of type ${typeof token}`);
  if (!/^[!-~]*$/.test(token)) throw new RangeError(`${message} other characters`);
  if (token.length < 16 || token.length > 1024) throw new RangeError(`${message} ${token.length}`);
}

function checkEntries(name: string, value: unknown, form: RegExp, examples: string): void {
  if (!Array.isArray(value)) throw new TypeError(`${name} must be an array, got ${inspect(value)}`);
  for (const entry of value) check(`each of ${name}`, entry, 'string', `like ${examples}`, form.test(entry));
}

/** Rejects unknown options: a misspelt one would leave the default in force. */
function checkOptions(owner: string, options: object, known: readonly string[]): void {
  check(`the options of ${owner}`, options, 'object', 'an object');
  const unknown = Object.keys(options).find((name) => !known.includes(name));
  if (unknown !== undefined) throw new TypeError(`${owner} has no option ${unknown}; it has ${known.join(', ')}`);
}

/** Returns the absolute path, because the program may change its working directory. Only servers use a folder. */
function resolveSocketPath(socketPath: string | undefined, host: string, port: number, nameInFolder: string = '') {
  if (socketPath === undefined) return undefined;
  if (host !== DEFAULT_HOST || port !== DEFAULT_PORT) {
    throw new TypeError('socketPath replaces host and port: give one or the other');
  }
  check('socketPath', socketPath, 'string', 'a non-empty string', socketPath !== '');
  const isFolder = socketPath.endsWith('/');
  check('socketPath', socketPath, 'string', 'the path of a socket, not of a folder', !isFolder || nameInFolder !== '');
  const path = resolvePath(socketPath, isFolder ? nameInFolder : '');
  const isValid = Buffer.byteLength(path) <= MAX_SOCKET_PATH_LENGTH && !path.includes('\0');
  check('socketPath', path, 'string', `at most ${MAX_SOCKET_PATH_LENGTH} bytes long, without NUL`, isValid);
  return path;
}

// ───── MIT License ───────────────────────────────────────────────────────────────────────────────────────────────
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
