/*! control.ts 0.30.0 – MIT – pause, resume, save, steer and shut down a long-running program over HTTP */
// SPDX-License-Identifier: MIT
/* istanbul ignore file @preserve */
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
//   GET  /                 200 {"endpoints":["GET /api/status", …],"page":"…"}: what a browser shows at the address
//   GET  /api/status       200 {"status":"active"}, or "pausing", "paused", "resuming", "shutting down"
//   GET  /api/info         the status, who caused it and why, the latest commands, and what the program is doing
//   GET  /api/stack        200 {"stack":["work (file:///app/train.mjs:41:7)", …]}: where it is, even in an endless loop
//   POST /api/pause        200 {"result":"ok"}: the command is on the queue; 503 {"error":"…"}: its lane is full
//        /api/resume, /api/shutdown, /api/save-state: the same; with `Prefer: wait=60`, the outcome of the command
//        /api/evaluate {"episodes":200}: the same for an own command, which the program declares; 400 {"error":"…"}
//        /api/answer?id=k3f-q2 {"approved":true}: answers a question of the program; 409 {"error":"…"}: it has ended
//        /api/withdraw?id=k3f-7: takes back a command that waits; 409 {"error":"…"}: the program has it
//
// The file imports Node's built-ins only, and importing it has no side effects. It runs on Node 20.19, 22.12 and newer,
// Deno and Bun, compiled for ES2015 or newer by tsc, or for ES2017 by other tools. The host is the controlled program.
// A wrong type or an unknown option throws a TypeError, and a value out of range a RangeError.

import { once } from 'node:events';
import { hostname } from 'node:os';
import { parse as parsePath, resolve as resolvePath } from 'node:path';
import { performance as clock } from 'node:perf_hooks';
import * as timers from 'node:timers';
import { inspect } from 'node:util';
import { isMainThread, Worker } from 'node:worker_threads';
import type { Stats } from 'node:fs';
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import type { Duplex } from 'node:stream';

/** The version of this file. */ export const VERSION: string = '0.30.0';
/** The default host name of servers and clients. */ export const DEFAULT_HOST = 'localhost';
/** The default port of servers and clients. */ export const DEFAULT_PORT = 8391;
/** The default capacity of the command queue. */ export const DEFAULT_MAX_QUEUE_SIZE = 16;

const { setTimeout: startTimer, setInterval: startInterval, clearTimeout: endTimer } = timers;
const { setTimeout: sleep, setImmediate: nextTurn } = timers.promises;
const readNow = clock.now.bind(clock); // kept at the import, as the timers are: tests replace the global ones
const { timeOrigin } = clock;
const readClock = (): number => timeOrigin + readNow(); // milliseconds, alike in both threads; it cannot be set
const SOMEBODY = 'somebody'; // holds the pause of a sender without a name
const WARNING = 'ControlWarning';
const BASE_OPTIONS = ['name', 'socketPath', 'token', 'allowedHosts', 'maxQueueSize', 'maxConnections', 'log'];
const SERVER_OPTIONS = [
  'systemStatus', 'describe', 'commands', 'host', 'port', 'autoReport', 'cause', 'onOverdue', 'readStack',
  ...BASE_OPTIONS,
];
const CLIENT_OPTIONS = ['wait', 'by', 'reason', 'expires', 'within', 'for', 'mine', 'arguments', 'id', 'tag', 'signal'];
const RANGES = { wait: [1, 300], expires: [1, 86_400], within: [0, 86_400], for: [1, 2_592_000] } as const; // seconds
const READABLE = ['status', 'info', 'stack']; // endpoints
const LAUNCH_OPTIONS = ['webApiAddress', 'startPaused', ...BASE_OPTIONS];
const interruptions: WeakSet<object> = new WeakSet(); // the errors by which commands interrupt steps
const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGBREAK', 'SIGUSR2'] as const; // launch() handles them

// ── Statuses and commands ──

/** The status of a system. The client reports `OFFLINE` if it cannot get it; servers never send that. */
export class SystemStatus {
  static readonly ACTIVE: SystemStatus = new SystemStatus('active'); // running normally
  static readonly PAUSING: SystemStatus = new SystemStatus('pausing');
  static readonly PAUSED: SystemStatus = new SystemStatus('paused'); // doing nothing until resumed
  static readonly RESUMING: SystemStatus = new SystemStatus('resuming');
  static readonly SHUTTING_DOWN: SystemStatus = new SystemStatus('shutting down');
  static readonly OFFLINE: SystemStatus = new SystemStatus('offline');
  /** The lowercase name, as sent by `GET /api/status`. */
  readonly statusName: 'active' | 'pausing' | 'paused' | 'resuming' | 'shutting down' | 'offline';
  private constructor(statusName: SystemStatus['statusName']) {
    this.statusName = statusName;
    Object.freeze(this);
  }
  /** Returns `statusName`. */ toString(): string { return this.statusName; }
}
Object.freeze(SystemStatus);

const { ACTIVE, PAUSING, PAUSED, RESUMING, SHUTTING_DOWN, OFFLINE } = SystemStatus;
const STATUSES: readonly SystemStatus[] = [ACTIVE, PAUSING, PAUSED, RESUMING, SHUTTING_DOWN]; // of a server
const STATUS_NAMES: readonly string[] = STATUSES.map((status) => status.statusName);
const COMMANDS = ['pause', 'resume', 'shutdown', 'save-state'] as const; // shared memory holds indexes
const COMMAND_NAME = /^[a-z][a-z0-9-]{0,31}$/;

/** A command to the host. One for the current status, such as `pause` while paused, should be a no-op. */
export type ControlCommand = typeof COMMANDS[number];

/** A parameter of an own command, in the words of JSON Schema. It is required unless it has a default. */
export interface Parameter {
  type: 'boolean' | 'integer' | 'number' | 'string';
  description?: string | undefined;
  default?: boolean | number | string | undefined;
  minimum?: number | undefined;
  maximum?: number | undefined;
  maxLength?: number | undefined; // characters
  enum?: readonly (boolean | number | string)[] | undefined;
}

/** An own command: one that the program declares. The JSON of its arguments has at most 4 KiB. */
export interface CommandDeclaration<Declared = Parameters> {
  description?: string | undefined;
  parameters?: Declared | undefined;
}
type Parameters = Readonly<Record<string, Parameter>>;
type Declarations<Name extends string> = Readonly<Record<Name, CommandDeclaration>>;

/**
 * A command, its arguments, who sent it (as the client claims, or `itself` for the program), and why. `id` is three
 * random letters or digits and the number of its acceptance: `k3f-7`, or `k3f-i8` for a command of the program itself.
 */
export interface CommandRequest<Name extends string = never> {
  command: ControlCommand | Name;
  id: string;
  arguments: Record<string, boolean | number | string>; // with the defaults; empty unless declared
  by?: string | undefined;
  reason?: string | undefined;
  within?: number | undefined; // see RequestOptions
  until?: string | undefined; // when a pause ends, in ISO 8601
}

/** Options of `ask()`. */ export interface AskOptions<Types = Record<string, keyof ValueTypes>> {
  /** What an answer consists of. Default: `{ approved: { type: 'boolean' } }`, a yes or no. */
  parameters?: ParametersOf<Types> | undefined;
  /** Milliseconds after which the question has expired. Default: none. */ timeout?: number | undefined;
  /** Withdraws the question: the promise rejects with its reason. */ signal?: AbortSignal | undefined;
  /** Names a decision in 1 to 200 characters: `LOG.answers` keeps the answer for all such questions. Requires `log`. */
  key?: string | undefined;
}

/** The answer to a question, who gave it (as the client claims), and why. */
export interface Answer<Types = Record<string, keyof ValueTypes>> extends Pick<CommandRequest, 'by' | 'reason'> {
  arguments: Values<Types>;
}
type ParametersOf<Types> = { readonly [Name in keyof Types]: Parameter & { readonly type: Types[Name] } };
type ValueTypes = { boolean: boolean; integer: number; number: number; string: string };
type Values<Types> = { [Name in keyof Types as Name]: ValueTypes[Types[Name] & keyof ValueTypes] };

/** What a command threw, or its value: JSON of up to 4 KiB, else omitted. A string is truncated to 1000 characters. */
export interface CommandOutcome {
  value?: unknown;
  error?: unknown;
}

// ── Cells and bells ──
//
// Whoever wants to hear of news waits for a bell, with Atomics.wait() or waitAsync(). `waiters` counts them by bell, so
// that ringing costs little while nobody waits.
//
// GET /api/status must report the present status, which only systemStatus() knows. The host reads SEQUENCE, samples and
// stores what it has read in ACKNOWLEDGED: the sample is newer than all that SEQUENCE had counted.

const CELL = { // by writers and readers
  SEQUENCE: 0, // thread to host: counts commands, answers and sample requests; a bell
  REQUESTED: 1, // thread to host: SEQUENCE at the latest sample request; a bell
  RESPONDED: 2, // thread to host: the number of the latest command that the host may return
  DETAIL: 3, // both: 1 while the thread requests a detail; the host resets it
  ACCEPTED: 4, // both: numbers commands and questions
  LOST: 5, // both: how many lines the log lacks
  CHANGES: 6, // both to thread: counts what changes in /api/info: its tag
  NEWS: 7, // host to thread: counts changes by the host, and its samples; a bell
  LOOKS: 8, // host to thread: counts twice each look at its stack; odd during one
  INSPECTED: 9, // host to thread: 1 while its inspector is open, which no look may join
  HEARD: 16, // host to thread: counts its looks and samples; in a cache line of their own
  ACKNOWLEDGED: 17, // host to thread: SEQUENCE before its latest sample
} as const;

/** Calls back once a bell differs from the value, or rings. */
function onRing({ memory, waiters }: ThreadData, bell: number, value: number, act: () => void): void {
  Atomics.add(waiters, bell, 1); // first: who changes the cell sees this, or the change is seen here
  const { async: isWaiting, value: rung } = (Atomics as any).waitAsync(memory, bell, value); // ES2024
  void (isWaiting ? rung : Promise.resolve()).then(() => {
    Atomics.sub(waiters, bell, 1);
    act();
  });
}
function ringBell({ memory, waiters }: ThreadData, bell: number): void {
  if (Atomics.load(waiters, bell) !== 0) Atomics.notify(memory, bell);
}

// ── The table ──
//
// All that the two threads tell each other is a record in a slot of one table in shared memory.
//
// - The slots of each kind are a ring. HEAD is where the next record is opened; commands wait from TAIL to HEAD. Ended
//   records stay readable until the ring comes round to their slots. HEAD passes the slot of an open question.
// - The word of a record is its number, modulo 2²⁸, and its state: open, taken, and done or failed; a question is open,
//   and done, expired or withdrawn. It is written after the record. Then only the word is exchanged: whoever does that
//   first has taken the command or ended the question. Readers compare it before and after, and read no text meanwhile.
// - The host claims what it announces or ends, because the thread withdraws only open commands.
// - One counter, ACCEPTED, numbers commands and questions in order. Reports (status, detail, declarations) are done at
//   once, and numbered by slot.
// - `logged` is the word that the log has. Whoever overwrites a slot adds to LOST what the log lacks of it. The thread
//   loses nothing: it writes the log, and responds to those who wait, before it opens a slot again.

type Kind = 'client' | 'own' | 'posted' | 'question' | 'status' | 'detail' | 'declarations';
type State = 'free' | 'open' | 'claimed' | 'taken' | 'done' | 'failed' | 'expired' | 'withdrawn' | 'writing';

/** Both threads share the clock, in milliseconds. `onChange` is called after each change: the host rings NEWS. */
function openTable(data: ThreadData, readClock: () => number, onChange: () => void) {
  const { memory, cells, table: shared } = data;
  const { idPrefix, rings, kinds, heads, tails, words, logged, numbers, codes, limits, sizes, times } = shared;
  const states: State[] = ['free', 'open', 'claimed', 'taken', 'done', 'failed', 'expired', 'withdrawn', 'writing'];
  const [open, taken, done, failed, withdrawn, writing] = [1, 3, 4, 5, 7, 8];
  const [acceptedAt, takenAt, openedAt, endedAt] = [0, 1, 2, 3]; // the latter two by readClock()
  const resultAt = 8192; // in the room of a slot
  const texts = Buffer.from(shared.texts);
  const table = {
    /** Returns where the texts of a slot begin: 16 KiB. Those of a status, the last kind, have 32 for 16 holds. */
    roomOf(slot: number): number { return 16_384 * (slot + Math.max(0, slot - rings.status.first)); },
    codeOf(slot: number): number { return Atomics.load(codes, slot); },
    numberOf(slot: number): number { return Atomics.load(numbers, slot); },
    stateOf(slot: number): State { return states[Atomics.load(words, slot) & 15] as State; },
    isPending(slot: number): boolean { return ['open', 'claimed', 'taken'].includes(table.stateOf(slot)); },
    idOf(slot: number, number: number = table.numberOf(slot)): string {
      const mark = kinds[slot] === 'question' ? 'q' : kinds[slot] === 'posted' ? 'i' : '';
      return `${idPrefix}-${mark}${number >>> 0}`;
    },
    openedAt(slot: number): number { return times[4 * slot + openedAt] as number; },
    /** Returns the milliseconds after which a record has expired, or 0 if it has not. */
    expiredAfter(slot: number): number {
      const limit = Atomics.load(limits, slot);
      return limit > 0 && readClock() - table.openedAt(slot) >= limit ? limit : 0;
    },
    /** Lifts its limit. */
    keep(slot: number): void { if (Atomics.load(limits, slot) > 0) Atomics.store(limits, slot, 0); },
    /** Ends the questions that have expired. */
    expireQuestions(): void {
      const { first, size } = rings.question;
      for (let slot = first; slot < first + size && table.openedAt(slot) !== 0; slot += 1) {
        const word = Atomics.load(words, slot); // before the clock
        if ((word & 15) === open && table.expiredAfter(slot) > 0) table.change(slot, 'expired', '', word);
      }
    },

    /** Returns, in order, those opened last, that taken last, and another. */
    recent(wanted: Kind[], count: number, other?: number): SlotRecord[] {
      const slots = wanted.flatMap((kind) => {
        const { at, first, size } = rings[kind];
        const [head, tail] = [Atomics.load(heads, at), Atomics.load(tails, at)];
        const places = [tail - 1, ...Array.from({ length: count }, (_, index) => head - 1 - index)];
        return places.map((place) => first + (place + 2 * size) % size);
      });
      const all = Array.from(new Set(slots.concat(other ?? [])));
      const records = all.map(table.read).filter(({ state }) => state !== 'free' && state !== 'writing');
      return records.sort((one, other) => (one.number - other.number) | 0);
    },
    questions(): SlotRecord[] { return table.recent(['question'], rings.question.size); },
    latest(kind: Kind): number {
      const { at, first, size } = rings[kind];
      return first + (Atomics.load(heads, at) + size - 1) % size;
    },
    /** Reads the record opened last: the present status, detail or declarations. */
    present(kind: Kind): SlotRecord {
      for (;;) {
        const slot = table.latest(kind);
        const record = table.read(slot);
        if (record.state !== 'writing' && table.latest(kind) === slot) return record; // else it has just gone
      }
    },
    /** Returns the slot of the next record of a kind, where open() overwrites another. */
    slotFor(kind: Kind): number {
      const { at, first, size } = rings[kind];
      let index = Atomics.load(heads, at);
      while (kind === 'question' && table.isPending(first + index)) index = (index + 1) % size;
      return first + index;
    },

    /** Opens a record in the slot for its kind. */
    open(slot: number, code: number, text: string, limit = 0, time = Date.now(), result = '', log?: () => void): void {
      const { at, first, size, isReport, events } = rings[kinds[slot] as Kind];
      const number = (isReport ? table.numberOf(slot) : Atomics.add(memory, cells.ACCEPTED, 1)) + 1;
      const word = Atomics.exchange(words, slot, writing);
      const known = Atomics.exchange(logged, slot, (number - 1) << 4); // it has nothing of the new record
      const isRecord = data.log !== undefined && (word & 15) % writing !== 0; // neither free nor left by a dying thread
      if (isRecord) Atomics.add(memory, cells.LOST, eventsSince(events, known, word).length);
      numbers[slot] = number;
      codes[slot] = code;
      limits[slot] = limit;
      sizes[2 * slot] = text === '' ? 0 : texts.write(text, table.roomOf(slot));
      sizes[2 * slot + 1] = result === '' ? 0 : texts.write(result, table.roomOf(slot) + resultAt);
      times[4 * slot + acceptedAt] = time;
      times[4 * slot + openedAt] = times[4 * slot + endedAt] = readClock();
      if (log !== undefined) Atomics.store(words, slot, number << 4); // not open yet: for the log alone
      log?.();
      Atomics.store(words, slot, (number << 4) | (isReport || result !== '' ? done : open));
      Atomics.store(heads, at, (slot - first + 1) % size);
      if (kinds[slot] !== 'detail') Atomics.add(memory, cells.CHANGES, 1);
      onChange();
    },

    /** Takes or ends a record, with the result as JSON, unless it has ended or has another word. */
    change(slot: number, state: State, result: string = '', word: number = Atomics.load(words, slot)): boolean {
      if (Atomics.load(words, slot) !== word || (word & 15) > taken) return false;
      if (result !== '') sizes[2 * slot + 1] = texts.write(result, table.roomOf(slot) + resultAt);
      if (state === 'taken') times[4 * slot + takenAt] = Date.now();
      else times[4 * slot + endedAt] = readClock();
      if (Atomics.compareExchange(words, slot, word, (word & ~15) | states.indexOf(state)) !== word) return false;
      if ((word & 15) < taken) table.pass(slot); // it was the next of its lane
      Atomics.add(memory, cells.CHANGES, 1);
      onChange();
      return true;
    },
    pass(slot: number): void { // its lane goes on behind it
      const { at, first, size } = rings[kinds[slot] as Kind];
      Atomics.store(tails, at, (slot - first + 1) % size);
    },
    /** Claims a command that waits, unless it is withdrawn. */
    claim(slot: number) { return table.exchange(slot, 'open', 'claimed') || table.stateOf(slot) === 'claimed'; },
    /** Exchanges a state, unless it has changed. */
    exchange(slot: number, from: State, to: State): boolean {
      const word = (Atomics.load(words, slot) & ~15) | states.indexOf(from);
      return Atomics.compareExchange(words, slot, word, (word & ~15) | states.indexOf(to)) === word;
    },
    /** Withdraws a command that is not claimed, and only then writes the result. */
    withdraw(slot: number, result: string): boolean {
      if (!table.exchange(slot, 'open', 'withdrawn')) return false;
      times[4 * slot + endedAt] = readClock();
      Atomics.store(sizes, 2 * slot + 1, texts.write(result, table.roomOf(slot) + resultAt));
      Atomics.add(memory, cells.CHANGES, 1);
      return true;
    },

    read(slot: number): SlotRecord {
      for (;;) {
        const word = Atomics.load(words, slot);
        const [number, code] = [Atomics.load(numbers, slot), Atomics.load(codes, slot)];
        // Not the result of an answer that came too late.
        const hasResult = (kinds[slot] === 'question' ? [done] : [done, failed, withdrawn]).includes(word & 15);
        const text = (word & 15) === writing ? '' : table.textOf(slot);
        const result = hasResult ? table.textOf(slot, 1) : '';
        const [at = 0, took = 0, opened = 0, ended = 0] = times.slice(4 * slot, 4 * slot + 4);
        if (Atomics.load(words, slot) !== word) continue; // it has just changed
        const [kind, state] = [kinds[slot] as Kind, states[word & 15] as State];
        return {
          slot, word, kind, state, number, code, at, takenAt: took, opened, ended,
          id: table.idOf(slot, number), given: JSON.parse(text || '{}'), result: JSON.parse(result || '{}'),
          seconds: (word & 15) < done ? undefined : Math.max(0, Math.round(ended - opened)) / 1000,
        };
      }
    },
    /** Returns the text (part 0) or the result (1). */
    textOf(slot: number, part: 0 | 1 = 0): string {
      const [start, size] = [table.roomOf(slot) + part * resultAt, Atomics.load(sizes, 2 * slot + part)];
      return size === 0 ? '' : texts.toString('utf8', start, start + size);
    },
  };
  return table;
}

/** Returns the events between two words of a slot: that of the log and the present one. */
function eventsSince(events: readonly string[], known: number, word: number): string[] {
  const isNew = (word ^ known) >> 4 !== 0;
  const hasEnded = (word & 15) >= 4 && (isNew || (known & 15) < 4); // 4: done
  return events.slice(isNew ? 0 : 1, hasEnded ? 2 : 1);
}

type Table = ReturnType<typeof openTable>;
type SlotRecord = {
  slot: number; word: number; kind: Kind; state: State; number: number; code: number; at: number; takenAt: number;
  opened: number; ended: number; id: string; given: Given; result: Result; seconds: number | undefined;
};
type Given = Partial<AskInfo & CommandRequest & SystemInfo & { mine: boolean | undefined; during: string }>;
type Result = Partial<CommandInfo>; // or an answer

/** Allocates the table. Unused memory for texts costs nothing. */
function allocateTable(idPrefix: string, maxQueueSize: number) {
  const rings = {} as Record<Kind, { at: number; first: number; size: number; isReport: boolean; events: string[] }>;
  const kinds: Kind[] = []; // by slot, as the rest
  const laneSize = 2 * maxQueueSize + 32; // 16 taken and 16 spare ones: see enqueue()
  for (const [kind, size, ...events] of [
    ['client', laneSize, 'command', 'outcome'], // a lane of the queue: the four commands
    ['own', laneSize, 'command', 'outcome'], // the other one: own commands
    ['posted', maxQueueSize + 32, 'command', 'outcome'], // commands of the program itself, opened by the host
    ['question', 128, 'ask', 'answer'], // by the host; at most 16 are open, and the log takes the others in 250 ms
    ['detail', 4], ['declarations', 4], ['status', 128, 'status'], // by the host; the latest counts
  ] as [kind: Kind, size: number, ...events: string[]][]) {
    rings[kind] = { at: Object.keys(rings).length, first: kinds.length, size, isReport: events.length < 2, events };
    kinds.push(...Array<Kind>(size).fill(kind));
  }
  const integers = (count: number = kinds.length): Int32Array => new Int32Array(new SharedArrayBuffer(4 * count));
  return {
    idPrefix, kinds, rings, heads: integers(8), tails: integers(8), words: integers(), logged: integers(),
    numbers: integers(), codes: integers(), limits: integers(), sizes: integers(2 * kinds.length),
    times: new Float64Array(new SharedArrayBuffer(32 * kinds.length)),
    texts: new SharedArrayBuffer(16_384 * (kinds.length + rings.status.size)),
  };
}

// ── The queue ──
//
// The class WebApiServer says in which order commands are taken. The next one is that of either lane, and depends on
// the latest pause or shutdown that waits.

function openQueue(data: ThreadData, table: Table) {
  const { commandNames, maxQueueSize, table: { rings, kinds, heads, tails } } = data;
  const [pause, shutdown] = [commandNames.indexOf('pause'), commandNames.indexOf('shutdown')];
  const queue = {
    count(kind: Kind): number {
      const { at, size } = rings[kind];
      return (Atomics.load(heads, at) - Atomics.load(tails, at) + size) % size;
    },
    /** Whether a lane takes no more. Withdrawn commands take no place, up to a limit. */
    isFull(lane: 'client' | 'own'): boolean {
      const { first, size } = rings[lane];
      const [tail, count] = [queue.tail(lane) - first, queue.count(lane)];
      if (count < maxQueueSize || count >= 2 * maxQueueSize) return count >= maxQueueSize;
      const slots = Array.from({ length: count }, (_, index) => first + (tail + index) % size);
      return slots.filter((slot) => table.stateOf(slot) !== 'withdrawn').length >= maxQueueSize;
    },
    /** Returns the command of a kind that is taken next. */
    tail(kind: Kind): number { return rings[kind].first + Atomics.load(tails, rings[kind].at); },

    /** Returns the command that is taken next, or that would be if these were the tails. */
    next(from: Int32Array = tails, stop?: number): number | undefined {
      const { posted, client, own } = rings;
      const postedAt = Atomics.load(from, posted.at);
      if (postedAt !== Atomics.load(heads, posted.at)) return posted.first + postedAt;
      let [head, ownHead] = [0, 0];
      do {
        head = Atomics.load(heads, client.at);
        ownHead = Atomics.load(heads, own.at);
      } while (head !== Atomics.load(heads, client.at)); // both are of one moment
      const [tail, ownTail] = [Atomics.load(from, client.at), Atomics.load(from, own.at)];
      if (ownTail === ownHead) return tail === head ? undefined : client.first + tail;
      const [one, other] = [client.first + tail, own.first + ownTail];
      const isFirst = ((table.numberOf(one) - table.numberOf(other)) | 0) < 0 || queue.isAmong(stop, tail, head);
      return tail !== head && isFirst ? one : other;
    },
    /** Returns the last stop in the lane of the four that will be taken, or -1. */
    lastStop(): number {
      const { at, first, size } = rings.client;
      const tail = Atomics.load(tails, at);
      for (let place = Atomics.load(heads, at); place !== tail;) {
        place = (place + size - 1) % size;
        if (queue.isStop(first + place) && queue.isValid(first + place)) return first + place;
      }
      return -1;
    },
    /** Whether a command that waits has neither expired nor been withdrawn. */
    isValid(slot: number): boolean { return table.isPending(slot) && table.expiredAfter(slot) === 0; },
    isStop(slot: number): boolean { return table.codeOf(slot) === pause || table.codeOf(slot) === shutdown; },
    /** Whether a slot of the lane of the four lies from tail to head. */
    isAmong(slot: number = queue.lastStop(), tail: number, head: number): boolean {
      const { first, size } = rings.client;
      return slot >= 0 && (slot - first - tail + size) % size < (head - tail + size) % size;
    },

    find(isWanted: (slot: number) => boolean): number | undefined {
      const stop = queue.count('own') === 0 ? -1 : queue.lastStop();
      for (const from = tails.slice(); ;) {
        const slot = queue.next(from, stop);
        if (slot === undefined || isWanted(slot)) return slot;
        const { at, first, size } = rings[kinds[slot] as Kind];
        from[at] = (slot - first + 1) % size;
      }
    },
  };
  return queue;
}

// ── The thread's side ──
//
// The server thread runs THREAD_FUNCTIONS, which are sent to it as source text. It cannot load this file: in a bundle,
// that contains the host, which would run a second time. Hence:
// - They are declarations, and use only each other (bundlers rename a function and its uses alike), their arguments
//   and globals. They contain no coverage counters: hence the `istanbul` comment.
// - They avoid what bundlers and older targets turn into helpers: named functions and classes, whose place methods of
//   object literals take, async functions, object spread, class fields.

type ThreadData = ReturnType<typeof prepareThreadData>;

/** Removes control characters from a text that others will print, and truncates it. The result is well-formed. */
function tidy(text: string, maxLength: number = 200): string {
  const characters = Array.from(text.slice(0, 4 * maxLength).replace(/\p{Cc}/gu, ''));
  return Buffer.from(characters.slice(0, maxLength).join('')).toString();
}

/** What the thread can do to the host, and knows of it. */
function linkToHost(data: ThreadData, report: Report, readClock: () => number) {
  const { memory, cells, commandNames, statusNames, table: { kinds, rings, limits } } = data;
  const table = openTable(data, readClock, () => {}); // callers tell the host, by SEQUENCE
  const queue = openQueue(data, table);
  const host = followHost(data, table);
  const log = data.log === undefined ? null : createLog(data, table, readClock, report);
  const link = {
    report, table, host, log,
    /** Puts a command on the queue, and returns its slot, unless its lane is full. release() follows. */
    enqueue(code: number, text: string, limit: number): number | null {
      const lane = code < commandNames.length ? 'client' : 'own';
      if (queue.isFull(lane)) return null;
      const slot = table.slotFor(lane);
      if (slot % 8 === 0) host.checkWaits(); // a lane has 32 slots more than can wait: nobody misses an outcome
      if (log?.lacks(slot) === true) log.write();
      table.open(slot, code, text, limit, Date.now(), '', log?.write);
      if (limit === -1) link.enforce(); // before the host sees it
      else if (limit < 0) setTimeout(link.enforce, -1 - limit);
      Atomics.add(memory, cells.SEQUENCE, 1);
      return slot;
    },
    /** Follows the response, or the start of a wait, because a shutdown may end the host. Wakes one that sleeps. */
    release(slot: number): void {
      Atomics.store(memory, cells.RESPONDED, table.numberOf(slot));
      if (link.nameOf(slot) === 'shutdown') Atomics.notify(memory, cells.RESPONDED);
      host.wakeIfAwaited();
    },

    /** Sends the `resume` of each holder whose time has come, unless that waits or runs. */
    endHolds(): void {
      const { slot, code, given: { holds = [] } } = table.present('status');
      if (!/^paus/.test(statusNames[code] ?? '')) return;
      for (const { by, until } of holds.filter(({ until: end = '' }) => Date.parse(end) <= Date.now())) {
        const text = JSON.stringify({ by, reason: 'the hold has ended', mine: true, arguments: { until } });
        const isSent = kinds.some((kind, at) => kind === 'client' && table.isPending(at) && table.textOf(at) === text);
        if (isSent || table.latest('status') !== slot) continue; // the host publishes the end first, then its outcome
        const sent = link.enqueue(commandNames.indexOf('resume'), text, 0);
        if (sent !== null) link.release(sent);
      }
    },

    /** Returns who holds the pause or waits for it. */
    holders(): unknown[] {
      const slots = Array.from(kinds.keys()).filter((slot) => kinds[slot] === 'client' && table.isPending(slot));
      const pauses = slots.filter((slot) => link.nameOf(slot) === 'pause').map((slot) => table.read(slot).given);
      return Array.from(new Set([...table.present('status').given.holds ?? [], ...pauses].map(({ by }) => by)));
    },

    /** Kills the program if a shutdown has no outcome in time, or tells the supervisor. */
    enforce(): void {
      const { first, size } = rings.client;
      for (let slot = first; slot < first + size; slot += 1) {
        if (!link.isOverdue(slot)) continue;
        if (data.isSupervisor) {
          Atomics.store(limits, slot, 0); // it is told once
          report({ type: 'overdue', command: link.nameOf(slot) });
        } else if (table.stateOf(slot) === 'expired' || table.change(slot, 'expired')) {
          process.on('exit', link.kill); // after the removal of the socket, even if the host ends the thread first
          log?.write();
          host.checkWaits();
          setTimeout(link.exit, 10); // after the responses
        }
      }
    },
    /** Whether a command without an outcome has exceeded its `within`: a limit below 0. */
    isOverdue(slot: number): boolean {
      const limit = -1 - Atomics.load(limits, slot);
      const isOpen = table.isPending(slot) || table.stateOf(slot) === 'expired'; // a thread may have died at the kill
      return limit >= 0 && isOpen && readClock() - table.openedAt(slot) >= limit;
    },
    exit(): void { try { process.exit(); } finally { link.kill(); } }, // the removal may have failed
    kill(): void { process.kill(process.pid, 'SIGKILL'); },

    /** Returns the command that waits and is about to withdraw the questions: a posted one has done so. */
    waitingStop(): string | undefined {
      const stops = statusNames[link.statusIndex()] === 'active' ? ['pause', 'shutdown'] : ['shutdown']; // not a save
      const slot = queue.find((one) => stops.includes(link.nameOf(one)) && queue.isValid(one));
      return slot === undefined ? undefined : link.nameOf(slot);
    },

    /** Withdraws a command. Returns why not, nothing if it is withdrawn, or null if there is none. */
    withdraw(id: string, result: string): string | null {
      const slot = kinds.findIndex((kind, one) => rings[kind].events[1] === 'outcome' && table.idOf(one) === id);
      if (slot === -1 || table.stateOf(slot) === 'free') return null;
      if (kinds[slot] === 'posted') return `${id} is a command of the program itself`;
      if (table.withdraw(slot, result) || table.stateOf(slot) === 'withdrawn') return '';
      const words: Record<string, string> = { taken: 'is running', done: 'is done', failed: 'has failed' };
      return `${id} ${words[table.stateOf(slot)] ?? 'is being taken'}`;
    },

    nameOf(slot: number): string { return commandNames[table.codeOf(slot)] ?? ''; },
    accepts(): Declarations<string> { return table.present('declarations').given as Declarations<string>; },
    /** Returns an index into the statuses, or their number while systemStatus() fails. */
    statusIndex(): number { return table.codeOf(table.latest('status')); },
    /** To be read before info(): the tag may be older, but never newer. */
    infoTag(): string {
      const changes = Atomics.load(memory, cells.CHANGES) >>> 0;
      return `"${data.table.idPrefix}-${changes}${log?.error === undefined ? '' : '-lost'}"`;
    },
    info(): object {
      const asked = table.questions();
      const records = table.recent(['client', 'own', 'posted'], 16, queue.find(queue.isValid));
      const { code, at, given: { by, reason, holds } } = table.present('status'); // not older than the outcomes
      const ended = asked.filter(({ state }) => state !== 'open').sort((one, other) => one.ended - other.ended);
      for (const one of ended) records.splice(records.filter(({ opened }) => opened <= one.ended).length, 0, one);
      const waiting = records.find(({ state }) => state === 'open' || state === 'claimed');
      const blocking = [records.find(({ state }) => state === 'taken'), waiting];
      const listed = records.filter((one, index) => blocking.includes(one) || index >= records.length - 16);
      return Object.assign({}, data.about, {
        status: statusNames[code] ?? null, since: new Date(at).toISOString(), by, reason, holds,
        heardAt: new Date(Date.now() - performance.now() + host.heardAt()).toISOString(),
        detail: table.present('detail').given,
        accepts: link.accepts(),
        asks: asked.filter(({ state }) => state === 'open').map(({ id, given }) => Object.assign({ id }, given)),
        commands: listed.map((record) => commandOf(record, commandNames)),
        log: log === null ? undefined : { path: data.log, error: log.error },
      });
    },
  };
  return link;
}

/** The requests that wait for news or a sample, and the bells. */
function followHost(data: ThreadData, table: Table) {
  const { memory, waiters, hasDetail, cells: { SEQUENCE, REQUESTED, DETAIL, NEWS, HEARD, ACKNOWLEDGED } } = data;
  const sampleMs = 9; // how long the host has to sample its status; timers are up to 1 ms early or late
  const detailMs = 250; // the same for a detail, which may take longer
  const freshMs = 1; // a sample this young is reused
  const freshDetailMs = 100; // so is a detail
  let waiting: Connection[] = [];
  let isWatching = false; // the next change of NEWS leads to checkWaits()
  let isPlanned = false; // endTurn()
  let latest = { sequence: Atomics.load(memory, ACKNOWLEDGED), at: -Infinity, isSent: true }; // sample request
  let detailRequestedAt = -Infinity;
  let patienceMs = sampleMs; // for a host that may compute: 2 once it was late, then ever more
  let judged = 0; // ACKNOWLEDGED at that time
  let [heard, heardAt] = [Atomics.load(memory, HEARD), performance.now()]; // the host has just started this thread
  Atomics.store(waiters, NEWS, 0); // a dead thread does not wait
  const host = {
    /** Calls back when the connection is ready, or at its deadline: checked at each change and every 250 ms. */
    wait(connection: Connection, isReady: () => boolean, onEnd: () => void, deadline: number): void {
      waiting.push(Object.assign(connection, { isReady, onEnd, deadline }));
      if (!isWatching) host.checkWaits();
    },
    /** Ends waits that are ready or past their deadlines, and watches NEWS for the others. */
    checkWaits(): void {
      const news = Atomics.load(memory, NEWS); // before the checks: what they miss ends the watch at once
      const now = performance.now();
      host.heardAt();
      table.expireQuestions(); // the host may be busy
      const candidates = waiting;
      waiting = [];
      for (const connection of candidates) {
        if (connection.isReady() || now + 1 > connection.deadline) connection.onEnd();
        else waiting.push(connection);
      }
      if (isWatching || waiting.length === 0) return;
      isWatching = true;
      onRing(data, NEWS, news, () => {
        isWatching = false;
        host.checkWaits();
      });
    },

    /** Calls back once the host has sampled, or late. Callers share a request unless a command came after it. */
    whenSampled(connection: Connection, wantsDetail: boolean, onEnd: () => void): void {
      const now = performance.now();
      const isDetailDue = wantsDetail && hasDetail && now - detailRequestedAt >= freshDetailMs;
      if (isDetailDue) {
        detailRequestedAt = now;
        Atomics.store(memory, DETAIL, 1);
      }
      const isDetailPending = wantsDetail && Atomics.load(memory, DETAIL) !== 0;
      const limitMs = isDetailPending ? detailMs : Atomics.load(waiters, SEQUENCE) > 0 ? sampleMs : patienceMs;
      const isLate = latest.isSent && !host.isAcknowledged() && now - latest.at >= limitMs; // the host computes
      const isStale = isDetailDue || Atomics.load(memory, SEQUENCE) !== latest.sequence; // a command came later
      const isDue = isStale || (host.isAcknowledged() && now - latest.at >= freshMs);
      if (latest.isSent && isDue) {
        latest = { sequence: 0, at: isLate ? latest.at : now, isSent: false }; // late until it looks
        if (isStale) host.planTurn();
        else host.request();
      }
      if (isLate || host.isAcknowledged()) return onEnd();
      const own = latest;
      if (limitMs !== sampleMs) setTimeout(host.checkWaits, own.at + limitMs - now);
      host.wait(connection, () => host.isAcknowledged(own), onEnd, own.at + limitMs);
    },
    /** Whether a sample request is acknowledged. The sample may be as old as the request. */
    isAcknowledged({ sequence, isSent } = latest): boolean {
      return isSent && ((Atomics.load(memory, ACKNOWLEDGED) - sequence) | 0) >= 0;
    },
    request(): void {
      latest.isSent = true;
      latest.sequence = (Atomics.add(memory, SEQUENCE, 1) + 1) | 0;
      Atomics.store(memory, REQUESTED, latest.sequence);
      ringBell(data, SEQUENCE); // first: nextCommand() takes what waits before the sample
      ringBell(data, REQUESTED);
      setTimeout(host.judge, sampleMs + 1, latest);
    },
    /** Judges the host 10 ms after a request: one that computes is not waited for each time. */
    judge(request: typeof latest): void {
      const before = judged;
      judged = Atomics.load(memory, ACKNOWLEDGED);
      if (!host.isAcknowledged(request)) patienceMs = 2; // checkWaits() is up to 1 ms early
      else if (judged !== before) patienceMs = Math.min(patienceMs + 1, sampleMs); // once for each acknowledgement
      host.checkWaits();
    },

    /** Plans one wake-up at the end of this turn, for hosts that sleep and requests that wait. */
    wakeIfAwaited(): void { if (waiting.length > 0 || Atomics.load(waiters, SEQUENCE) > 0) host.planTurn(); },
    planTurn(): void {
      if (!isPlanned) setImmediate(host.endTurn);
      isPlanned = true;
    },
    endTurn(): void {
      isPlanned = false;
      if (latest.isSent) ringBell(data, SEQUENCE);
      else host.request();
      host.checkWaits();
    },
    wake(): void {
      Atomics.add(memory, SEQUENCE, 1);
      host.planTurn();
    },
    /** Returns when the host last looked for commands, by performance.now(), to a quarter of a second. */
    heardAt(): number {
      const count = Atomics.load(memory, HEARD);
      if (count !== heard) [heard, heardAt] = [count, performance.now()];
      return heardAt;
    },
  };
  return host;
}

/** Returns a command, or an ended question, as `/api/info` lists it. */
function commandOf(record: SlotRecord, commandNames: readonly string[]): CommandInfo {
  const { id, code, state, at, takenAt, given, result: { value, valueOmitted } } = record;
  const isQuestion = record.kind === 'question';
  const isKilled = state === 'expired' && !isQuestion; // by `within`
  const killed = `the program has not ended within ${given.within} s and is killed`;
  const error = isKilled ? killed : record.result.error ?? (/^(expired|withdrawn)$/.test(state) ? state : undefined);
  const { by, reason, arguments: values } = isQuestion ? record.result : given;
  const isShown = isQuestion || JSON.stringify(values ?? '').length <= 200;
  return {
    id, command: isQuestion ? 'answer' : commandNames[code] ?? String(given.name), message: given.message,
    arguments: isShown ? values : undefined, answeredAt: record.result.at,
    at: new Date(at).toISOString(), takenAt: state === 'taken' ? new Date(takenAt).toISOString() : undefined,
    state: state === 'taken' ? 'running' : state === 'done' ? 'done' : error === undefined ? 'waiting' : 'failed',
    value, valueOmitted, error, seconds: record.seconds, by, reason, within: given.within, until: given.until,
  };
}

// ── Log ──
//
// The log is a file with a JSON object per line. The thread appends batches: before the host can take a command, and
// every 250 ms. Each slot notes what the log has of it, so a new thread goes on where a dead one has stopped: it may
// repeat lines, but omits no command and no answer. When the server closes, the host appends the rest.

function createLog(data: ThreadData, table: Table, readClock: () => number, report: Report) {
  const { log: path = '', user, about: { name, pid, version }, death, memory, cells, commandNames, statusNames } = data;
  const { kinds, rings, words, logged } = data.table;
  const fs = process.getBuiltinModule('node:fs');
  const folder = process.getBuiltinModule('node:path').dirname(path);
  const maxSize = 2 ** 22; // bytes
  const log = {
    error: undefined as string | undefined, // of the latest batch
    start(): void {
      log.write(death === '' ? { event: 'start', version } : { event: 'thread', error: death });
      setInterval(log.write, 250);
    },
    fieldsOf(event: string, record: SlotRecord): object {
      const { id, code, given: { by, reason, within, until, name: own, arguments: values, holds, during } } = record;
      const command = commandNames[code] ?? own;
      if (event === 'ask') return Object.assign({ id }, record.given);
      if (event === 'command') return { id, command, arguments: values, by, reason, within, until };
      if (event !== 'status') return commandOf(record, commandNames);
      return { status: statusNames[code] ?? null, by, reason, during, holds };
    },

    lacks(slot: number): boolean { return words[slot] !== logged[slot]; },
    /** Reads a record for the log, or null while it is being written. */
    read(slot: number): { known: number; record: SlotRecord } | null {
      for (;;) {
        const known = Atomics.load(logged, slot); // the word that the log has
        const record = table.read(slot);
        if (Atomics.load(logged, slot) === known) return record.state === 'writing' ? null : { known, record };
      }
    },

    /** Appends what is not in the file yet, before it an event. */
    write(event?: object): void {
      const lost = Math.max(0, Atomics.load(memory, cells.LOST)); // first: later losses are not read
      const slots: number[] = [];
      for (let slot = 0; slot < kinds.length; slot += 1) if (log.lacks(slot)) slots.push(slot); // a few of thousands
      const changed = slots.flatMap((slot) => log.read(slot) ?? []);
      const batch = changed.flatMap(({ known, record }) => {
        return eventsSince(rings[record.kind].events, known, record.word).map((kind) => {
          const isEnd = kind === 'outcome' || kind === 'answer';
          const time = isEnd ? Math.max(record.opened, record.ended) : record.opened; // by two clocks
          return { time, fields: Object.assign({ event: kind }, log.fieldsOf(kind, record)) as object };
        });
      }).sort((one, other) => one.time - other.time);
      const [{ time } = { time: readClock() }] = batch;
      if (event !== undefined) batch.unshift({ time, fields: event });
      const error = log.error ?? 'not written in time';
      if (lost > 0) batch.unshift({ time, fields: { event: 'lost', lines: lost, error } });
      // How far Date is ahead: the largest value, because a delay between the two calls makes it less.
      const ahead = Math.max(...Array.from({ length: 9 }, () => Date.now() - readClock()));
      const lines = batch.map(({ time: at, fields }) => {
        return `${JSON.stringify(Object.assign({ time: new Date(ahead + at).toISOString(), name, pid }, fields))}\n`;
      });
      const before = log.error;
      let written = lines.length === 0 ? 0 : log.append(Buffer.from(lines.join('')));
      if (before === undefined && log.error !== undefined) report(`Cannot log: ${log.error}`);
      const left = lines.filter((line) => (written -= Buffer.byteLength(line)) < 0).length;
      Atomics.add(memory, cells.LOST, lost > 0 && left === lines.length ? left - 1 : left - lost);
      for (const { known, record: { slot, word, kind } } of changed) {
        if (Atomics.compareExchange(logged, slot, known, word) === known) continue;
        Atomics.sub(memory, cells.LOST, eventsSince(rings[kind].events, known, word).length); // overwritten, not lost
      }
    },

    /** Returns how many bytes are written. Without any, checks the file. */
    append(bytes: Buffer): number {
      let written = 0;
      try {
        if (bytes.length === 0 && user !== undefined) {
          checkTrusted(folder);
          const isSticky = (fs.statSync(folder).mode & 0o022) > 0; // that does not protect a missing file
          if (isSticky) throw new Error(`others can write to '${folder}': put the log into a folder of your own`);
        }
        const file = appendTo(path, user, bytes, false);
        ({ written } = file);
        if (written < bytes.length) throw new Error(`'${path}' has no room for more`);
        if (written > 0 && file.size > maxSize) underLock(path, user, file.ino, () => {
          const present = fs.statSync(path, { throwIfNoEntry: false }); // another process may have renamed it
          if (present?.ino === file.ino && present.size > maxSize) fs.renameSync(path, `${path}.1`);
        });
        log.error = undefined;
      } catch (error: any) {
        log.error = error.code === 'ELOOP' ? `'${path}' is a symbolic link` : error.message;
      }
      return written;
    },
  };
  return log;
}

/** Appends to a file of this user, from the start of a line. Returns its inode, how large it was, and what it took. */
function appendTo(path: string, user: number | undefined, bytes: Buffer, isSynced: boolean) {
  const fs = process.getBuiltinModule('node:fs');
  const { O_APPEND, O_CREAT, O_NOFOLLOW, O_NONBLOCK, O_RDWR } = fs.constants; // Windows lacks two of them
  const flags = O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK; // a link fails, and a FIFO does not block
  const file = fs.openSync(path, flags, 0o600);
  try {
    const stats = fs.fstatSync(file);
    if (!stats.isFile() || stats.uid !== (user ?? stats.uid)) throw new Error(`'${path}' is not a file of this user`);
    if (isSynced && user !== undefined && (stats.mode & 0o022) !== 0) throw new Error(`others can write to '${path}'`);
    const end = Buffer.from('\n');
    if (stats.size > 0) fs.readSync(file, end, 0, 1, stats.size - 1);
    if (end[0] !== 10) fs.writeSync(file, isSynced ? '-\n' : '\n'); // the last line is incomplete
    const written = fs.writeSync(file, bytes);
    if (isSynced) fs.fdatasyncSync(file);
    return { ino: stats.ino, size: stats.size, written };
  } finally {
    fs.closeSync(file);
  }
}

/** Returns the first answer to a question with a key. If there is none yet, it appends the given one. */
function findAnswer(data: ThreadData, question: Given, answer?: Result): Result | undefined {
  const earlier = answer && findAnswer(data, question);
  if (earlier !== undefined) return earlier;
  const { log, user, about: { name, pid } } = data;
  const { key, message, parameters = {} } = question;
  const path = `${log}.answers`;
  const own = JSON.stringify(Object.assign({ time: new Date().toISOString(), name, pid, key, message }, answer));
  const bytes = Buffer.from(answer === undefined ? '' : `${own}\n`);
  if (appendTo(path, user, bytes, true).written < bytes.length) throw new Error(`'${path}' has no room`);
  for (const line of process.getBuiltinModule('node:fs').readFileSync(path, 'utf8').split('\n')) {
    let found: any = {};
    try { if (line.includes(JSON.stringify(key))) found = Object(JSON.parse(line)); } catch {} // incomplete
    if (found.name !== name || found.key !== key) continue;
    const place = `'${key}' in '${path}'`;
    if (found.message !== message) throw new Error(`${place} is the key of another question: ${found.message}`);
    const values = validate(`the answer to ${place}: `, found.arguments, parameters);
    const result = { at: found.time, by: found.by, reason: found.reason, arguments: values };
    if (Buffer.byteLength(JSON.stringify(result)) > 8192) throw new Error(`${place} has too long an answer`);
    return line === own ? answer : result;
  }
  return undefined;
}

/**
 * Calls back under a lock for a file with an inode: otherwise, the second of two processes would rename or remove the
 * successor of the file. Does nothing while another process has the lock: an empty folder, which is removed as one.
 */
function underLock(path: string, user: number | undefined, ino: number, act: () => void): void {
  const { lstatSync, mkdirSync, rmdirSync } = process.getBuiltinModule('node:fs');
  const lock = `${path}.${ino}.lock`;
  const { uid = user, mtimeMs = Date.now() } = lstatSync(lock, { throwIfNoEntry: false }) ?? {};
  if (user !== undefined && uid !== user) throw new Error(`'${lock}' is in the way: it belongs to user ${uid}`);
  const age = Date.now() - mtimeMs; // below 0 if the clock was set back
  try {
    if (age > 1000 || age < -60_000) return rmdirSync(lock); // its process was killed
    mkdirSync(lock, 0o700);
    try { act(); } finally { rmdirSync(lock); } // it is gone if that took longer than 1 s
  } catch (error: any) {
    if (error.code !== 'EEXIST' && error.code !== 'ENOENT') throw error; // another one was faster
  }
}

// ── Policy: who may use the API ──
//
// Any web page in a browser on this machine can send requests to this server, and its author can point a domain name at
// 127.0.0.1 after the page has loaded (DNS rebinding). Such requests are recognized by the name in their Host field (an
// IP address cannot be rebound), or by Origin and Sec-Fetch-Site, which only browsers send.

/** Returns what the policy and the router need of a request. Node's headersDistinct is slow, and 20.19's may throw. */
function readHead({ url = '', rawHeaders }: IncomingMessage, known: Map<string, boolean>) {
  const fields = { host: undefined, origin: undefined } as Record<string, string | undefined>; // by lowercase name
  let hasDuplicate = false; // Node's `headers` has only the first of two Hosts
  for (let index = 0; index < rawHeaders.length; index += 2) {
    const raw = rawHeaders[index] as string;
    const name = raw === 'Host' ? 'host' : raw.toLowerCase();
    const isList = known.get(name);
    if (isList === undefined) continue;
    const earlier = fields[name];
    hasDuplicate ||= !isList && earlier !== undefined;
    fields[name] = earlier === undefined ? rawHeaders[index + 1] : `${earlier},${rawHeaders[index + 1]}`;
  }
  const { prefer, host } = fields;
  const wait = prefer && /(?:^|,)[ \t]*wait[ \t]*=[ \t]*([^,;]*)/i.exec(prefer)?.[1]; // the first (RFC 7240 §2)
  const waitSeconds = wait && /^\d+[ \t]*$/.test(wait) ? Math.min(Number(wait), 300) : 0;
  const absolute = url[0] === '/' ? null : /^https?:\/\/([^/?]*)(.*)$/i.exec(url);
  const [authority, target] = absolute === null ? [host, url] : [absolute[1], absolute[2] as string];
  const end = target.indexOf('?') === -1 ? target.length : target.indexOf('?');
  return { authority, path: target.slice(0, end), query: target.slice(end), fields, hasDuplicate, waitSeconds };
}

/**
 * Returns whether the Host field of a request names this machine: localhost, an IP address except 0.0.0.0/8 and `::`,
 * or one of the names, with any port. A name is `'box.lan'`, `'.lan'` for lan and its subdomains, or `'*'`.
 */
export function isAllowedHost(authority: string, names: readonly string[]): boolean {
  const { BlockList, isIPv4, isIPv6 } = process.getBuiltinModule('node:net');
  const unspecified = new BlockList(); // addresses that reach this machine although they do not name it
  unspecified.addSubnet('0.0.0.0', 8);
  unspecified.addAddress('::', 'ipv6');
  // Not `new URL()`, which turns `0x7f.1`, `127.1` and `evil@localhost` into local names.
  const [, ipv6, other = ''] = /^(?:\[([^\]%]+)(?:%[^\]]*)?\]|([\w.-]+))(?::\d*)?$/.exec(authority) ?? [];
  if (ipv6 !== undefined) return isIPv6(ipv6) && !unspecified.check(ipv6, 'ipv6');
  if (isIPv4(other)) return !unspecified.check(other);
  const host = other.toLowerCase(); // empty if malformed
  return host !== '' && ['localhost', ...names].some((entry) => {
    const name = entry.toLowerCase();
    return name === '*' || name === host || (name[0] === '.' && `.${host}`.endsWith(name));
  });
}

function createPolicy({ host, token, allowedHosts }: ThreadData) {
  const hostHint = 'use localhost, an IP address, or a name that the program allows';
  let allowedAuthority: string | undefined; // cached: most requests have the same
  /** Returns an error response to a malformed request (RFC 9112 §3.2), a web page's, or one without the token. */
  return ({ method, httpVersion }: IncomingMessage, head: RequestHead, isUnix: boolean): PreparedResponse | null => {
    const { authority, fields: { host: hostField, origin, 'sec-fetch-site': site, authorization = '' } } = head;
    if (head.hasDuplicate) return prepare(400, { error: 'Duplicate header field' });
    if (hostField === undefined && httpVersion !== '1.0') return prepare(400, { error: 'Missing Host header' });
    const isLocal = authority === undefined || authority === allowedAuthority || isUnix;
    const isForeign = !isLocal && !isAllowedHost(authority, [host, ...allowedHosts]);
    if (isForeign) return prepare(403, { error: `Host not allowed: ${hostHint}` });
    if (!isUnix) allowedAuthority = authority;
    const isTyped = site === 'none' && (method === 'GET' || method === 'HEAD'); // typed into the address bar
    const isWebPage = origin !== undefined || (site !== undefined && !isTyped);
    if (isWebPage) return prepare(403, { error: 'Requests from web pages are not allowed: use control-board' });
    if (token === undefined) return null;
    const { createHash, timingSafeEqual } = process.getBuiltinModule('node:crypto'); // slow to load
    const given = /^Bearer +(\S+)$/i.exec(authorization)?.[1]; // RFC 6750 §2.1
    // Comparing digests takes a time that reveals nothing about the token.
    const [one, other] = [given ?? '', token].map((text) => createHash('sha256').update(text).digest());
    if (timingSafeEqual(one as Buffer, other as Buffer)) return null;
    const error = `${given === undefined ? 'Missing' : 'Wrong'} token: set CONTROL_TOKEN_FILE or CONTROL_TOKEN`;
    return prepare(401, { error }, 'WWW-Authenticate', 'Bearer');
  };
}

// ── The stack ──
//
// Through Node's inspector, the thread has the host call #onReach() in the middle of whatever that does: no port opens.
// What runs there may interrupt Node's own code, which is not re-entrant, or a built-in function. So it uses nothing of
// Node, no regular expression (RegExp.$1 would change), no timer and no Buffer, whose pool is shared: Atomics, typed
// arrays, strings and objects. Connecting, posting and disconnecting at once lets the evaluation come first, and leaves
// no session open, which would delay an exit.

/** Sends the host's call stack. Requests share a look; if it is lost, another follows after 5 s. */
function followStack(data: ThreadData, link: Link, { send }: HttpServer) {
  const { memory, cells: { LOOKS, INSPECTED }, reach, stack } = data;
  const freshMs = 100; // a stack this young is reused
  const limitMs = 1000; // native code, which no look interrupts, may take longer
  const silent = prepare(504, { error: 'The program has not responded within 1 s: it runs native code or is stopped' });
  let [looks, lookedAt, sentAt] = [Atomics.load(memory, LOOKS), -Infinity, -Infinity];
  const stacks = {
    get(connection: Connection): void {
      const isInspected = Atomics.load(memory, INSPECTED) === 1;
      const error = isInspected ? 'A look beside an open inspector could crash the program' : data.obstacles.stack;
      if (error !== '') return send(connection, prepare(501, { error }));
      const now = performance.now();
      if (stacks.isKnown(now - freshMs)) return stacks.respond(connection, -Infinity);
      if (stacks.isKnown(sentAt) || now - sentAt >= 5 * limitMs) stacks.look(); // one may be lost
      const since = sentAt;
      link.host.wait(connection, () => stacks.isKnown(since), () => stacks.respond(connection, since), now + limitMs);
    },
    /** Sends the frames, innermost first, if there has been a look since then. */
    respond(connection: Connection, since: number): void {
      const frames = stacks.isKnown(since) ? stacks.frames() : null;
      send(connection, frames === null ? silent : prepare(200, { stack: frames }));
    },
    look(): void {
      sentAt = performance.now();
      if (data.hasReader) return link.report({ type: 'look' });
      const session = new (process.getBuiltinModule('node:inspector').Session)();
      session.connectToMainThread();
      session.post('Runtime.evaluate', { expression: reach }); // a constant: nothing that a client has sent
      session.disconnect();
    },
    isKnown(since: number): boolean {
      const count = Atomics.load(memory, LOOKS);
      if (count !== looks && count % 2 === 0) [looks, lookedAt] = [count, sentAt]; // no older: it may be found late
      return lookedAt >= since;
    },
    frames(): string[] | null {
      for (let tries = 0; tries < 100; tries += 1) {
        const count = Atomics.load(memory, LOOKS);
        const frames: string[] = [];
        for (let at = 0; at < stack.length && stack[at] !== 0; at += 1 + (stack[at] as number)) {
          frames.push(tidy(String.fromCharCode(...stack.slice(at + 1, at + 1 + (stack[at] as number)))));
        }
        if (count % 2 === 0 && Atomics.load(memory, LOOKS) === count) return frames; // else the host looks again
      }
      return null;
    },
  };
  return stacks;
}

// ── HTTP ──

type Link = ReturnType<typeof linkToHost>;
type HttpServer = ReturnType<typeof serve>;
type PreparedResponse = ReturnType<typeof prepare>;
type RequestHead = ReturnType<typeof readHead>;

/** Prepares a response with the common headers and others, whose names and values alternate. */
function prepare(statusCode: number, value: object | null, ...given: string[]) {
  const body = value === null ? '' : JSON.stringify(value);
  const size = Buffer.byteLength(body);
  const content = value === null ? [] : ['Content-Type', 'application/json', 'Content-Length', String(size)];
  const headers = [
    ...content, 'Cache-Control', 'no-store', 'Cross-Origin-Resource-Policy', 'same-origin', 'X-Content-Type-Options',
    'nosniff', ...given,
  ];
  return {
    statusCode, body,
    headers: { last: [...headers, 'Connection', 'close'], others: [...headers, 'Keep-Alive', 'timeout=15'] },
    encoding: size === body.length ? 'latin1' as const : 'utf8' as const, // ASCII costs less as Latin-1
  };
}

/** What the thread reports to the host: a text is a warning. */
type ThreadMessage = string | { type: 'listening'; port: number; isPublic: boolean } | ({ type: 'failed' } & Failure)
  | { type: 'look' } | { type: 'overdue'; command: string };
type Report = (message: ThreadMessage) => void;
type Failure = { message: string; code?: string | undefined }; // Node's, such as EADDRINUSE

/** A connection and its present request. */
interface Connection {
  readonly socket: Socket;
  readonly isUnix: boolean;
  isLast: boolean; // it takes no more requests
  idleSince: number; // the count of events then
  response: ServerResponse | null; // from the end or refusal of a request until it is sent
  head: RequestHead;
  isRefused: boolean; // the response may precede the end of the request
  body: Buffer; // cut after the first byte too many for arguments
  waits: boolean; // with Prefer
  isReady: () => boolean;
  onEnd: () => void;
  deadline: number; // performance.now()
}

/** The HTTP server. A request that comes before the previous response ends its connection after that. */
function serve(data: ThreadData, link: Link) {
  const { maxConnections } = data;
  const maxWaits = maxConnections - 16; // the others are for requests that do not wait
  const maxBodySize = 65_536; // bytes
  const maxChunks = 100; // of a body in chunked coding
  const knownFields = new Map([ // and whether they are lists, whose lines are one (RFC 9110 §5.3)
    ['host', false], ['origin', false], ['sec-fetch-site', false], ['authorization', false], ['content-length', false],
    ['transfer-encoding', false], ['prefer', true], ['if-none-match', true],
  ]);
  const noBody = Buffer.alloc(0);
  const refuse = createPolicy(data);
  const connections: Map<Socket, Connection> = new Map();
  let events = 0; // connections, requests and responses
  let isClosing = false;
  const server = {
    maxFields: 100, // of a header
    listeners: [] as Server[], // two for localhost, one for a Unix socket
    /** Ends all waits, closes idle connections at once and the others after their response, then ends the thread. */
    close(): void {
      isClosing = true;
      link.host.checkWaits();
      const closed = server.listeners.map((listener) => new Promise((resolve) => listener.close(resolve)));
      void Promise.all(closed).then(() => process.exit());
      setTimeout(process.exit, 1000);
      for (const connection of connections.values()) {
        if (connection.socket.bytesRead === 0) connection.socket.destroy(); // Node does not count it as idle
        server.endWait(connection);
      }
    },

    onConnection(socket: Socket, isUnix: boolean): void {
      const connection: Connection = { // with all fields, so that all connections have one shape
        socket, isUnix, isLast: false, idleSince: events += 1, response: null, head: {} as RequestHead,
        isRefused: false, body: noBody, waits: false, isReady: Boolean, onEnd: Boolean, deadline: 0,
      };
      connections.set(socket, connection);
      socket.on('end', () => connection.waits && server.endWait(connection));
      socket.on('close', () => connections.delete(socket) && server.endWait(connection));
      socket.on('error', () => {}); // after CONNECT, Node no longer handles errors
      if (connections.size <= maxConnections) return;
      // The longest idle connection makes room: the newest one, if all others wait for a response.
      const idle = [...connections.values()].filter(({ response }) => response === null);
      const longest = idle.reduce((one, other) => (other.idleSince < one.idleSince ? other : one));
      connections.delete(longest.socket); // the event 'close' comes later
      longest.socket.destroy();
    },

    /** Closes connections that have been idle since then. */
    closeIdle(before: number): void {
      for (const { socket, response, idleSince } of connections.values()) {
        if (idleSince <= before && response === null && socket.writableLength === 0) socket.destroy();
      }
      setTimeout(server.closeIdle, 16_000, events); // the responses say 15 s
    },

    /** Refuses a request at its head, or routes it once complete. */
    onRequest(request: IncomingMessage, response: ServerResponse): void {
      const { socket } = request;
      const connection = connections.get(socket);
      if (connection === undefined || connection.isLast) return;
      if (response.socket === null) return server.finish(socket); // the previous response is not sent
      if (request.httpVersionMajor !== 1) return server.finish(socket, 505); // Node accepts 0.9 and 2.0, too
      if (request.rawHeaders.length > 2 * server.maxFields) return server.finish(socket, 431); // RFC 6585 §5
      connection.idleSince = events += 1;
      const head = readHead(request, knownFields);
      const { 'content-length': length = '0', 'transfer-encoding': encoding } = head.fields;
      const size = encoding === undefined ? Number(length) : NaN;
      if (size > maxBodySize) return server.finish(socket, 413);
      const refusal = refuse(request, head, connection.isUnix);
      connection.head = head;
      connection.body = noBody;
      connection.isRefused = refusal !== null;
      if (size === 0 && refusal === null) return routes.route(connection, response);
      let [received, chunks] = [0, 0]; // the body may be ignored, but must be complete and well-formed
      request.on('data', (chunk: Buffer) => {
        received += encoding !== undefined && (chunks += 1) > maxChunks ? Infinity : chunk.length;
        if (received > maxBodySize) return server.finish(socket, 413);
        connection.body = Buffer.concat([connection.body, chunk]).subarray(0, routes.maxArguments + 1);
      });
      request.on('end', () => {
        connection.isRefused = false;
        const isWhole = request.complete && received <= maxBodySize && socket.writable;
        if (isWhole && refusal === null) routes.route(connection, response);
      });
      if (refusal !== null) server.send(Object.assign(connection, { response }), refusal);
    },

    /** Whether the client asks to wait, and a place is free. */
    mayWait({ head: { waitSeconds } }: Connection): boolean {
      return waitSeconds > 0 && !isClosing && [...connections.values()].filter(({ waits }) => waits).length < maxWaits;
    },
    /** Calls back when the connection is ready, its time is over, the client no longer waits, or the server closes. */
    wait(connection: Connection, isReady: () => boolean, onEnd: () => void): void {
      const { socket, isLast, response, head: { waitSeconds } } = connection;
      response?.setHeader('Preference-Applied', `wait=${waitSeconds}`); // RFC 7240 §3
      if (isReady() || isLast || !socket.readable) return onEnd();
      connection.waits = true;
      link.host.wait(connection, isReady, onEnd, performance.now() + waitSeconds * 1000);
    },
    endWait(connection: Connection): void {
      connection.deadline = 0;
      link.host.checkWaits();
    },

    /** Sends every response except those of finish(). */
    send(connection: Connection, { statusCode, headers, body, encoding }: PreparedResponse): void {
      const { socket, response } = connection;
      connection.response = null;
      connection.waits = false;
      connection.idleSince = events += 1;
      if (response === null || socket.destroyed) return; // the client is gone
      connection.isLast ||= isClosing;
      const isLast = connection.isLast || !response.shouldKeepAlive;
      response.writeHead(statusCode, isLast ? headers.last : headers.others);
      // A single chunk. end(body) would add an empty one, and two chunks need a slower system call.
      if (body !== '' && response.req.method !== 'HEAD') {
        response.cork();
        response.write(body, encoding);
        response.uncork();
      }
      response.end();
    },

    /**
     * Takes no more requests after an early, malformed, late or too large one. The present response is the last, or an
     * error response. Node still parses thousands of early requests: until these are freed, other connections pause.
     */
    finish(socket: Socket, statusCode?: number): void {
      const connection = connections.get(socket);
      if (connection === undefined || connection.isLast) return;
      connection.isLast = true;
      socket.pause();
      const hasResponse = connection.response !== null;
      server.endWait(connection);
      const paused = [...connections.keys()].filter((other) => statusCode === undefined && !other.isPaused());
      for (const other of paused) other.pause();
      setImmediate(() => { // the present request may become complete in this turn
        for (const other of paused) other.resume();
        if (hasResponse || connection.response !== null || !socket.writable) return;
        const isSilent = statusCode === undefined || connection.isRefused;
        socket.end(isSilent ? '' : renderRejection(statusCode), () => socket.destroy());
      });
    },
  };
  const routes = createRoutes(data, link, server);
  return server;
}

function createListener(server: HttpServer, isUnix: boolean): Server {
  const clientErrors: Record<string, number> = {
    ERR_HTTP_REQUEST_TIMEOUT: 408, HPE_CHUNK_EXTENSIONS_OVERFLOW: 413, HPE_HEADER_OVERFLOW: 431,
  };
  const listener = process.getBuiltinModule('node:http').createServer({
    maxHeaderSize: 8192, // bytes
    headersTimeout: 5000, // ms, like the others
    requestTimeout: 10_000,
    connectionsCheckingInterval: 2000,
    keepAliveTimeout: 0, // costs two timers per request
    requireHostHeader: false, // the policy checks it, responding in JSON
  }, server.onRequest);
  listener.maxHeadersCount = server.maxFields + 1; // Node drops most of the others, which could exhaust the heap
  Object.assign(listener, { httpAllowHalfOpen: true }); // clients like `nc -N` end their side before the response
  listener.on('connection', (socket) => server.onConnection(socket, isUnix));
  listener.on('checkExpectation', server.onRequest); // ignored, because Node's own 417 has no JSON body
  listener.on('connect', (_request, socket) => server.finish(socket as Socket, 501));
  listener.on('clientError', ({ code = '' }: NodeJS.ErrnoException, socket) => {
    server.finish(socket as Socket, clientErrors[code] ?? 400);
  });
  return listener;
}

function renderRejection(statusCode: number): string {
  const error = process.getBuiltinModule('node:http').STATUS_CODES[statusCode];
  const { headers, body } = prepare(statusCode, { error }, 'Date', new Date().toUTCString());
  const lines = headers.last.map((text, index) => text + (index % 2 === 0 ? ': ' : '\r\n')).join('');
  return `HTTP/1.1 ${statusCode} ${error}\r\n${lines}\r\n${body}`;
}

// ── Routes ──
//
// A further endpoint is a case of route(). It ends in one send(), at once or after a wait.

function createRoutes(data: ThreadData, link: Link, server: HttpServer) {
  const { commandNames, statusNames } = data;
  const { host, table } = link;
  const stacks = followStack(data, link, server);
  const direct = createDirect(data, link, server);
  const ok = prepare(200, { result: 'ok' });
  const wrongMethod = { error: 'Invalid API method' };
  const statusTags = statusNames.map((status) => `"${status.replace(' ', '-')}"`);
  const statuses = statusNames.map((status, index) => prepare(200, { status }, 'ETag', statusTags[index] as string));
  const queueFull = prepare(503, { error: 'Command queue is full, try again later' });
  const routes = {
    maxArguments: 4096, // bytes of JSON
    route(connection: Connection, response: ServerResponse): void {
      connection.response = response;
      response.req.read(); // otherwise Node drains an empty body after each response
      const { method } = response.req;
      const { path } = connection.head;
      if (path === '/api/status' || path === '/api/info' || path === '/api/stack' || path === '/') {
        if (method === 'GET' || method === 'HEAD') return routes.get(connection);
        return server.send(connection, prepare(405, wrongMethod, 'Allow', 'GET, HEAD'));
      }
      const name = path.startsWith('/api/') ? path.slice(5) : '';
      const code = commandNames.indexOf(name as ControlCommand);
      const isDirect = name === 'answer' || name === 'withdraw'; // past the queue
      const declared = code !== -1 || isDirect ? {} : link.accepts();
      const isOwn = Object.keys(declared).includes(name);
      if (code === -1 && !isDirect && !isOwn) {
        const names = Object.keys(declared);
        const list = names.length === 0 ? '' : `: the commands are ${[...commandNames, ...names].join(', ')}`;
        return server.send(connection, prepare(404, { error: `Invalid API endpoint${list}` }));
      }
      if (method !== 'POST') return server.send(connection, prepare(405, wrongMethod, 'Allow', 'POST'));
      if (isDirect) return direct(connection, name);
      if (!isOwn) return routes.enqueue(connection, code);
      const { parameters = {} } = declared[name] as CommandDeclaration;
      const values = readArguments(server, connection, name, parameters);
      if (values === null) return;
      const given = Object.keys(values).length === 0 ? { name } : { name, arguments: values };
      routes.enqueue(connection, commandNames.length, given);
    },

    /** Sends the status or information once fresh, or a 304 if the client knows it. */
    get(connection: Connection): void {
      if (connection.head.path === '/api/stack') return stacks.get(connection);
      if (connection.head.path === '/') return server.send(connection, prepare(200, routes.index()));
      host.whenSampled(connection, false, () => {
        if (routes.knownTag(connection) === null || !server.mayWait(connection)) return routes.sendIfNew(connection);
        server.wait(connection, () => routes.knownTag(connection) === null, () => routes.sendIfNew(connection));
      });
    },
    index(): object {
      const all = [...commandNames, 'answer', 'withdraw', ...Object.keys(link.accepts())];
      const endpoints = ['GET /api/status', 'GET /api/info', 'GET /api/stack', ...all.map((one) => `POST /api/${one}`)];
      return { endpoints, page: `README.md of runtime-control ${data.about.version}` };
    },
    /** Returns the present tag if If-None-Match, a list, names it, with its quotes (RFC 9110 §13.1.2). */
    knownTag({ head: { path, fields: { 'if-none-match': known } } }: Connection): string | null {
      if (known === undefined) return null;
      const tag = path === '/api/info' ? link.infoTag() : statusTags[link.statusIndex()];
      return tag !== undefined && (known === '*' || known.includes(tag)) ? tag : null;
    },
    sendIfNew(connection: Connection): void {
      const known = routes.knownTag(connection);
      if (known !== null) return server.send(connection, prepare(304, null, 'ETag', known));
      if (connection.head.path === '/api/info') return host.whenSampled(connection, true, () => { // with the detail
        const tag = link.infoTag(); // first
        server.send(connection, prepare(200, link.info(), 'ETag', tag));
      });
      const status = statuses[link.statusIndex()];
      if (status === undefined) return server.send(connection, prepare(500, { error: 'Internal server error' }));
      const ageSeconds = host.isAcknowledged() ? 0 : Math.floor((performance.now() - host.heardAt()) / 1000);
      if (ageSeconds > 0) connection.response?.setHeader('Age', ageSeconds); // RFC 9111 §5.1
      server.send(connection, status);
    },

    /** Queues a command, and responds at once or with its outcome. */
    enqueue(connection: Connection, code: number, declared: Given = {}): void {
      let [text, limit] = ['', 0];
      const { body, head: { query } } = connection;
      const command = commandNames[code];
      const refusal = command === undefined || body.length === 0 ? null : refuseBody(command, body);
      if (refusal !== null) return server.send(connection, refusal);
      if (query !== '' || declared.name !== undefined) { // most have neither, which saves a tenth of a POST
        const given = new URLSearchParams(query);
        const own = { pause: ['within', 'for'], resume: ['mine'], shutdown: ['within'] }[command as 'pause'] ?? [];
        const fault = faultIn(data, given, ['by', 'reason', 'expires', ...own]);
        if (fault !== '') return server.send(connection, prepare(400, { error: fault }));
        const obstacle = given.has('within') ? data.obstacles[command as 'pause'] : '';
        if (obstacle !== '') return server.send(connection, prepare(501, { error: obstacle }));
        const options = readOptions(given);
        const names = options.until === undefined ? [] : link.holders();
        const error = `${names.length} hold the pause already: that of ${options.by} would have no end`;
        if (names.length > 14 && !names.includes(options.by)) return server.send(connection, prepare(409, { error }));
        limit = limitIn(given);
        text = JSON.stringify(Object.assign(options, declared));
      }
      const slot = link.enqueue(code, text, limit);
      if (slot === null) return server.send(connection, queueFull);
      if (server.mayWait(connection)) {
        server.wait(connection, () => !table.isPending(slot), () => routes.sendOutcome(connection, slot));
      } else server.send(connection, ok);
      link.release(slot); // a response without a wait is in the kernel, unless a client is slow
    },
    sendOutcome(connection: Connection, slot: number): void {
      const { id, command, state, value, valueOmitted, error, seconds } = commandOf(table.read(slot), commandNames);
      if (state === 'failed') return server.send(connection, prepare(500, { error: `${command} failed: ${error}` }));
      const outcome = { result: 'ok', id, state, value, valueOmitted, seconds };
      server.send(connection, prepare(state === 'done' ? 200 : 202, outcome));
    },
  };
  return routes;
}

/** Answers and withdrawals, past the queue. */
function createDirect(data: ThreadData, link: Link, server: HttpServer) {
  const { host, table } = link;
  const ok = prepare(200, { result: 'ok' });
  const direct = {
    handle(connection: Connection, name: string): void {
      const query = new URLSearchParams(connection.head.query);
      const fault = faultIn(data, query, ['id', 'by', 'reason']);
      if (fault !== '') return server.send(connection, prepare(400, { error: fault }));
      direct[name as 'answer'](connection, tidy(query.get('id') ?? ''), readOptions(query));
    },
    answer(connection: Connection, id: string, { by, reason, key }: Given): void {
      host.checkWaits(); // a question may have expired
      const asked = table.questions();
      const question = asked.find((one) => one.id === id);
      if (question === undefined) {
        const ids = asked.filter((one) => one.state === 'open').map((one) => one.id);
        const error = `There is no question ${id || 'without an id'}: open are ${ids.join(', ') || 'none'}`;
        return server.send(connection, prepare(404, { error }));
      }
      const { slot, state, word, given, result } = question;
      const stop = link.waitingStop();
      const error = state === 'expired' ? `${id} has expired` : state === 'withdrawn' ? `${id} was withdrawn`
        : state === 'done' ? `${result.by ?? 'somebody'} has answered ${id}` : stop && `a ${stop} waits`;
      const kept = key === undefined ? '' : '; the answer is kept';
      if (error !== undefined) return server.send(connection, prepare(409, { error: error + kept }));
      const values = readArguments(server, connection, 'answer', given.parameters ?? {});
      if (values === null) return;
      const own = { by, reason, arguments: values };
      let answer: Result | undefined = own;
      try {
        if (given.key !== undefined) answer = findAnswer(data, given, own); // before the program sees it
      } catch ({ message }: any) {
        return server.send(connection, prepare(503, { error: `Cannot keep the answer, try again later: ${message}` }));
      }
      const isAnswered = table.change(slot, 'done', JSON.stringify(answer), word);
      if (isAnswered && answer === own) return direct.confirm(connection);
      // It has ended, and may be asked again, or another answer decides.
      const again = table.questions().find((one) => given.key && one.state === 'open' && one.given.key === given.key);
      direct.answer(connection, again?.id ?? id, { by, reason, key: answer === own ? given.key : undefined });
      host.wake();
    },
    /** Repeatable, because a response may be lost: the first name stays. */
    withdraw(connection: Connection, id: string, { by = '', reason = '' }: Given): void {
      const refusal = refuseBody('withdraw', connection.body);
      if (refusal !== null) return server.send(connection, refusal);
      const words = `withdrawn${by && ` by ${by}`}${reason && `: ${reason}`}`;
      const obstacle = link.withdraw(id, JSON.stringify({ error: words }));
      if (obstacle === '') return direct.confirm(connection);
      const error = obstacle ?? `There is no command ${id || 'without an id'}`;
      server.send(connection, prepare(obstacle === null ? 404 : 409, { error }));
    },
    confirm(connection: Connection): void {
      link.log?.write();
      server.send(connection, ok);
      host.wake(); // after the response: it may exit
    },
  };
  return direct.handle;
}

/** Refuses a body other than an empty object. */
function refuseBody(command: string, body: Buffer): PreparedResponse | null {
  const isLarge = body.length > 4096;
  if (!isLarge && /^(\{\s*\}|null|)$/.test(body.toString('latin1').trim())) return null;
  const error = `${command} takes no body: send by and reason in the query, ?by=ana&reason=lunch`;
  return prepare(isLarge ? 413 : 400, { error });
}

/** Returns the arguments in a body, or null after an error response. */
function readArguments(server: HttpServer, connection: Connection, name: string, parameters: Parameters) {
  const { body } = connection;
  const most = name === 'answer' ? 2048 : 4096; // bytes
  try {
    const text = body.length > most ? '{}' : new TextDecoder('utf-8', { fatal: true }).decode(body) || '{}';
    const values: Values<any> = body.length > most ? {} : validate('', JSON.parse(text), parameters);
    if (body.length <= most && Buffer.byteLength(JSON.stringify(values)) <= most) return values;
    server.send(connection, prepare(413, { error: `The arguments exceed ${most} bytes` }));
  } catch (error) {
    const { message, parameter } = error as Error & { parameter?: string };
    server.send(connection, prepare(400, { error: `${name}: ${message}`, parameter }));
  }
  return null;
}

/** Says what is wrong with a query, or ''. */
function faultIn({ ranges }: ThreadData, query: URLSearchParams, known: readonly string[]): string {
  const names = [...query.keys()];
  const wrong = names.find((name, index) => !known.includes(name) || names.indexOf(name) !== index);
  const fault = known.includes(wrong ?? '') ? `${wrong} is given twice` : `unknown parameter ${tidy(wrong ?? '', 100)}`;
  if (wrong !== undefined) return `${fault}: ${known.join(', ')}`;
  if (query.has('expires') && query.has('within')) return 'expires and within exclude each other';
  for (const [name, [least, most]] of Object.entries(ranges)) {
    const text = query.get(name) ?? String(least);
    const isValid = /^(0|[1-9]\d{0,6})$/.test(text) && Number(text) >= least && Number(text) <= most;
    if (!isValid) return `${name} must be an integer from ${least} to ${most}, got ${JSON.stringify(tidy(text))}`;
  }
  const mine = query.get('mine') ?? 'true';
  if (!/^(true|false)$/.test(mine)) return `mine must be true or false, got ${JSON.stringify(tidy(mine))}`;
  if (query.has('for') && tidy(query.get('by') ?? '') === '') return 'for requires by: who holds the pause';
  return Number(query.get('within')) >= Number(query.get('for') ?? NaN) ? 'within must be smaller than for' : '';
}

/** Returns what a query gives. */
function readOptions(query: URLSearchParams): Given {
  const [by, reason] = ['by', 'reason'].map((name) => tidy(query.get(name) ?? '') || undefined);
  const mine = query.get('mine') === 'true' || undefined;
  const within = query.has('within') ? Number(query.get('within')) : undefined;
  const endsAt = Date.now() + 1000 * Number(query.get('for'));
  return { by, reason, mine, within, until: query.has('for') ? new Date(endsAt).toISOString() : undefined };
}

/** Returns the milliseconds after which a command expires, or below 0 those of `within`, or 0. */
function limitIn(query: URLSearchParams): number {
  if (query.has('within')) return -1 - 1000 * Number(query.get('within'));
  const seconds = Math.min(...['expires', 'for'].map((name) => Number(query.get(name) ?? Infinity)));
  return seconds === Infinity ? 0 : Math.min(1000 * seconds, 2 ** 31 - 1);
}

/** Checks values, and returns them with the defaults, in the order of the parameters. Errors begin with the path. */
function validate(path: string, values: Record<string, unknown>, parameters: Parameters) {
  if (Object(values) !== values || Array.isArray(values)) throw new TypeError(`${path}a JSON object is required`);
  const known = Object.keys(parameters).join(', ');
  const unknown = Object.keys(values).find((name) => !Object.keys(parameters).includes(name));
  if (unknown !== undefined) throw new TypeError(`${path}${unknown.slice(0, 100)} is unknown, not one of [${known}]`);
  return Object.fromEntries(Object.entries(parameters).map(([name, parameter]) => {
    const { type, default: preset, minimum, maximum, maxLength, enum: choices } = parameter;
    const value = Object.keys(values).includes(name) ? values[name] : preset;
    const isNumber = type === 'integer' ? Number.isSafeInteger(value) : Number.isFinite(value); // JSON may have 1e999
    const isType = type === 'integer' || type === 'number' ? isNumber : typeof value === type;
    const isInRange = typeof value !== 'number' || !(value < Number(minimum) || value > Number(maximum));
    const isShort = typeof value !== 'string' || !(Array.from(value).length > Number(maxLength));
    if (isType && isInRange && isShort && choices?.includes(value as string) !== false) return [name, value];
    const from = minimum === undefined ? '' : ` from ${minimum}`;
    const to = maximum === undefined ? '' : `${from === '' ? ' up' : ''} to ${maximum}`;
    const limits = maxLength === undefined ? from + to : ` of at most ${maxLength} characters`;
    const form = choices ? `one of ${choices.join(', ')}` : `a${type === 'integer' ? 'n' : ''} ${type}${limits}`;
    const message = `${path}${name} must be ${form}, got ${JSON.stringify(value)?.slice(0, 100) ?? 'nothing'}`;
    throw Object.assign(new RangeError(message), { parameter: name });
  }));
}

// ── Sockets and the start ──

/**
 * Throws if another user could replace a socket or its folder: everything on the path, links included, must belong to
 * this user or root, and nobody else may write to a folder, unless it has the sticky bit.
 */
export function checkTrusted(path: string): void {
  const { lstatSync, readlinkSync, statSync } = process.getBuiltinModule('node:fs');
  const { resolve } = process.getBuiltinModule('node:path');
  statSync(path); // throws if it is missing, or if its links form a loop
  const absolute = path.startsWith('/') ? path : `${process.cwd()}/${path}`; // with `..`, which may follow a link
  let [real, names] = ['/', absolute.split('/')]; // the real path as far as it is checked, and what is left
  while (names.length > 0) {
    const part = resolve(real, names.shift() as string);
    const stats = lstatSync(part);
    const isOwn = stats.uid === 0 || stats.uid === process.geteuid?.();
    const isOpen = stats.isDirectory() && [0o002, 0o020, 0o022].includes(stats.mode & 0o1022);
    const fault = isOwn ? isOpen && `others can write to it; chmod go-w '${part}'` : `it belongs to user ${stats.uid}`;
    if (fault) throw Object.assign(new Error(`'${part}' is not trusted, because ${fault}`), { code: 'EACCES' });
    const target = stats.isSymbolicLink() ? readlinkSync(part) : null;
    real = target === null ? part : target.startsWith('/') ? '/' : real;
    names.unshift(...target?.split('/') ?? []);
  }
}

/**
 * Where tools find this user's servers by name: `$CONTROL_DIR`, or else `$XDG_RUNTIME_DIR/control`,
 * `/run/user/UID/control` and `/tmp/control-UID`. None on Windows and on Deno.
 */
export function socketFolders(): string[] {
  const { env, platform, versions } = process;
  if (platform === 'win32' || versions['deno'] !== undefined) return [];
  const { resolve } = process.getBuiltinModule('node:path');
  const { CONTROL_DIR: only, XDG_RUNTIME_DIR: session } = env;
  const uid = process.geteuid?.();
  const folders = [`/run/user/${uid}/control`, `/tmp/control-${uid}`];
  if (session) folders.unshift(resolve(session, 'control'));
  return only ? [resolve(only)] : [...new Set(folders)];
}

/** Listens at host and port, then at a Unix socket, as far as they are given. */
function listen(data: ThreadData, server: HttpServer, { report, log }: Link) {
  const { host, port, socketPath, socketPaths, isInFolder } = data;
  const fs = process.getBuiltinModule('node:fs');
  const net = process.getBuiltinModule('node:net');
  const { dirname } = process.getBuiltinModule('node:path');
  // Node's listen('localhost') uses only the first address, but clients may try either.
  const addresses = host.toLowerCase() === 'localhost' ? ['127.0.0.1', '::1'] : [host];
  let [path = '', privateFolder] = [socketPaths[0], '']; // where the socket is, and where it is made
  let [unix, own]: [Server | null, Stats | null] = [null, null]; // its listener, and its file
  let isListening = false;
  const listening = {
    fail({ message, code }: Failure): void {
      report({ type: 'failed', message, code });
      process.exit();
    },
    succeed(): void {
      if (isListening) return;
      if (data.death === '') log?.append(Buffer.alloc(0));
      if (log?.error !== undefined) return listening.fail({ message: `cannot log: ${log.error}` });
      const bound = server.listeners.map((one) => one.address() ?? '').filter((one) => typeof one === 'object');
      const isPublic = bound.some(({ address }) => !/^(::ffff:)?127\.|^::1$/.test(address));
      log?.start();
      data.about.port = bound[0]?.port;
      isListening = true;
      report({ type: 'listening', port: data.about.port ?? 0, isPublic });
    },

    /** Listens on all addresses, on the same port, and then at the socket. */
    start([address, ...others]: string[] = port === null ? [] : addresses, boundPort: number = port ?? 0): void {
      if (address === undefined) return listening.makeSocket();
      const tcp = createListener(server, false);
      tcp.on('error', (error: NodeJS.ErrnoException) => {
        const lacksFamily = error.code === 'EADDRNOTAVAIL' || error.code === 'EAFNOSUPPORT'; // no IPv4 or no IPv6
        if (!lacksFamily || others.length + server.listeners.length === 0) listening.fail(error);
        else listening.start(others, boundPort);
      });
      tcp.listen(boundPort, address, () => {
        server.listeners.push(tcp);
        listening.start(others, (tcp.address() as AddressInfo).port);
      });
    },

    // A socket is made in a private folder, so that nobody can connect before chmod. Then it is linked to its path,
    // which fails if there is something: of servers that start at once, one succeeds.
    makeSocket(): void {
      if (path === '') return listening.succeed();
      listening.attempt(() => {
        const folder = dirname(path);
        if (Buffer.byteLength(path) > 94) throw new Error('it is longer than 94 bytes');
        if (isInFolder) checkTrusted(dirname(folder)); // before anything is made there
        if (isInFolder) fs.mkdirSync(folder, { mode: 0o700, recursive: true }); // it may exist
        checkTrusted(folder);
        privateFolder = fs.mkdtempSync(`${folder}/.`);
        unix = createListener(server, true).on('error', listening.failSocket);
        server.listeners.push(unix);
        unix.listen(`${privateFolder}/s`, listening.linkSocket);
      });
    },
    linkSocket(): void {
      try {
        fs.chmodSync(`${privateFolder}/s`, process.platform === 'linux' ? 0o1600 : 0o600); // sticky: systemd spares it
        fs.linkSync(`${privateFolder}/s`, path);
      } catch (error: any) {
        return error.code === 'EEXIST' ? listening.makeWay() : listening.failSocket(error);
      }
      own = fs.lstatSync(path);
      listening.removeFolder();
      listening.succeed();
    },

    /** Removes only a dead socket. */
    makeWay(): void {
      const found = fs.lstatSync(path, { throwIfNoEntry: false });
      const message = `'${path}' is not a socket; the path of a folder ends in /`;
      if (found?.isSocket() === false) return listening.failSocket({ code: 'EEXIST', message });
      const probe = net.connect(path, () => {
        probe.destroy();
        listening.failSocket({ code: 'EADDRINUSE', message: `another server listens at '${path}'` });
      });
      probe.on('error', (error: NodeJS.ErrnoException) => listening.attempt(() => {
        if (error.code === 'ECONNREFUSED' && found !== undefined) underLock(path, data.user, found.ino, () => {
          if (listening.isSame(path, found)) fs.rmSync(path, { force: true }); // a client may have been faster
        });
        else if (error.code !== 'ENOENT') throw error; // ENOENT: a faster server has removed it
        setTimeout(listening.linkSocket, 10); // another one may have the lock
      }));
    },

    /** Makes a socket again that somebody has removed. */
    keepSocket(): void {
      if (own === null || listening.isSame(path, own)) return; // null: it is being made
      listening.removeSocket();
      listening.makeSocket();
    },
    removeSocket(): void {
      unix?.close();
      listening.removeFolder();
      if (own !== null && listening.isSame(path, own)) fs.rmSync(path, { force: true }); // a client may be faster
      own = null;
    },
    removeFolder(): void {
      const place = privateFolder;
      privateFolder = ''; // from now on, its name is anybody's
      if (place === '' || !fs.existsSync(place)) return;
      fs.rmSync(`${place}/s`, { force: true });
      fs.rmdirSync(place);
    },

    attempt(act: () => void): void { try { act(); } catch (error: any) { listening.failSocket(error); } },
    /** Tries the next path. After the last, a start fails if the socket is required; later, it tries all again. */
    failSocket({ message, code }: Failure): void {
      const isStart = !isListening && data.death === '';
      if (isStart && socketPath !== undefined) return listening.fail({ message, code });
      const next = code === 'EADDRINUSE' ? undefined : socketPaths[socketPaths.indexOf(path) + 1];
      const hint = code === 'EADDRINUSE' ? '; give one of them a socketPath' : '';
      const effect = isStart ? `; clients find this program by its port only${hint}` : '';
      if (next === undefined) report(`Cannot serve at '${path}': ${message}${effect}`);
      listening.removeSocket();
      path = next ?? socketPaths[0] ?? '';
      if (isStart && next !== undefined) return listening.makeSocket();
      if (!isStart) setTimeout(listening.makeSocket, 1000);
      listening.succeed(); // at the port
    },

    /** Compares the time, too, because inodes are reused. A path may be out of reach. */
    isSame(name: string, { ino, mtimeMs }: Partial<Stats> = {}): boolean {
      const present = fs.existsSync(name) ? fs.lstatSync(name, { throwIfNoEntry: false }) : undefined;
      return present !== undefined && present.ino === ino && present.mtimeMs === mtimeMs;
    },
  };
  return listening;
}

/** Runs in the server thread, which has the functions below. */
function runThread(): void {
  const { parentPort, workerData } = process.getBuiltinModule('node:worker_threads');
  // On Deno and Bun, each thread has a clock of its own, wrong if Date is set while it starts.
  const { bun, deno } = process.versions as Record<string, string | undefined>;
  const origin = bun ?? deno ? Date.now() - workerData.ahead - performance.now() : performance.timeOrigin;
  const link = linkToHost(workerData, (message) => parentPort?.postMessage(message), () => origin + performance.now());
  const server = serve(workerData, link);
  const listening = listen(workerData, server, link);
  process.on('uncaughtException', listening.fail);
  process.on('exit', listening.removeSocket);
  parentPort?.on('message', server.close);
  server.closeIdle(0);
  for (const act of [link.host.checkWaits, link.enforce, link.endHolds, listening.keepSocket]) setInterval(act, 250);
  try { listening.start(); } catch (error: any) { listening.fail(error); } // Deno throws past uncaughtException
}

const THREAD_FUNCTIONS = [
  openTable, openQueue, onRing, ringBell, tidy, linkToHost, followHost, commandOf, eventsSince, createLog, appendTo,
  findAnswer, underLock, followStack, prepare, readHead, isAllowedHost, createPolicy, serve, createListener,
  renderRejection, createRoutes, createDirect, refuseBody, readArguments, faultIn, readOptions, limitIn, validate,
  checkTrusted, listen,
];

// ── WebApiServer: the host's side ──

/** Options of `WebApiServer`. */ export interface WebApiServerOptions<Name extends string = never> {
  /**
   * Returns the status, synchronously and fast, on the host's thread: at the start, by `publish()`, at each look for
   * commands, after each change of `holds`, and when a client asks. While it fails, clients get a 500.
   */
  systemStatus: () => SystemStatus;
  /** Name of the system in `/api/info`, truncated to 200 characters. Default: the script's, without its extension. */
  name?: string | undefined;
  /**
   * Returns what the program is doing, for `/api/info`: a value whose JSON has at most 4 KiB. Called on the host's
   * thread when a client asks, at most every 100 ms. If it fails, clients get null.
   */
  describe?: (() => unknown) | undefined;
  /** Own commands by name (a–z, 0–9 and `-`): at most 32, whose JSON has at most 8 KiB. Default: none. */
  commands?: Declarations<Name> | undefined;
  /** Host name or IP address to listen on. Default: `localhost`, which means both 127.0.0.1 and ::1. */
  host?: string | undefined;
  /** Port to listen on, from 0 to 65535. 0 picks a free port. Default: 8391. */ port?: number | undefined;
  /** Capacity of each lane of the queue, from 1 to 1000. Default: 16. */ maxQueueSize?: number | undefined;
  /** If true (default), the next look for commands completes a command; if false, `report()` or the next one does. */
  autoReport?: boolean | undefined;
  /**
   * Path of a Unix socket to listen on, at most 94 bytes, for this user only; without `host` and `port`, on nothing
   * else. It replaces the socket of a dead server. A path that ends in `/` is a folder, made if its parent exists, for
   * NAME-PID.sock: NAME is `name`, truncated to 32 characters, `_` for all but ASCII letters, digits, `.-`. Default,
   * with a `name`: beside the port, in the first usable of `socketFolders()`; none under control-run. Null: none.
   */
  socketPath?: string | null | undefined;
  /** Token that clients must send, unencrypted (RFC 6750 §2.1): 16 to 1024 visible ASCII characters. Default: none. */
  token?: string | undefined;
  /** Names, besides `host` and localhost, that clients may use for the server: see `isAllowedHost()`. */
  allowedHosts?: readonly string[] | undefined;
  /** Maximum number of connections, from 1 to 65536. An additional one replaces the longest idle one. Default: 64. */
  maxConnections?: number | undefined;
  /**
   * Path of a file, created for this user only, with a JSON object per line: commands, outcomes, statuses, starts and
   * ends. Above 4 MiB, it is renamed to `….1`. If it cannot be opened, or others could replace it, the start fails;
   * later errors are warnings. Default: none.
   */
  log?: string | undefined;
  /** The saved cause of the first status, or holds of the pause, oldest first. Default: none, and `since` is now. */
  cause?: StatusCause | readonly StatusCause[] | undefined;
  /** For a supervisor: called with the command whose `within` has passed; nothing is killed. */
  onOverdue?: ((command: string) => void) | undefined;
  /** For a supervisor: resolves to the lines of `GET /api/stack`. */
  readStack?: (() => Promise<readonly string[]>) | undefined;
}

/**
 * A command in the list of `/api/info`: `at` is when it was accepted, `seconds` the time from then to its outcome. A
 * question that has ended is the command `answer`: done, or failed with the error `expired` or `withdrawn`.
 */
export interface CommandInfo extends Omit<CommandRequest<string>, 'arguments'> {
  message?: string | undefined; // of a question
  answeredAt?: string | undefined; // if its key had an answer
  arguments?: Record<string, unknown> | undefined; // of an answer, or if their JSON has at most 200 characters
  at: string;
  takenAt?: string | undefined; // while it runs
  state: 'waiting' | 'running' | 'done' | 'failed';
  value?: unknown;
  valueOmitted?: string | undefined; // why `value` is missing
  error?: string | undefined;
  seconds?: number | undefined;
}

/** An open question in `/api/info`, to be answered by `POST /api/answer` with its id. */
export interface AskInfo {
  id: string;
  message: string;
  key?: string | undefined;
  parameters: Parameters;
  at: string;
  expiresAt?: string | undefined;
}

/**
 * The response to `GET /api/info`. Times are in ISO 8601. `status` is null while `systemStatus()` fails. `since`, `by`
 * and `reason` are those of the command that led to the status, or of the oldest hold while paused. A command that
 * returns to the previous status, such as a save, does not change them.
 */
export interface SystemInfo extends Pick<CommandRequest, 'by' | 'reason'> {
  name: string;
  pid: number;
  host: string; // empty on Deno
  port?: number | undefined; // absent if the server listens only at a Unix socket
  startedAt: string;
  version: string; // of control.ts
  status: string | null;
  since: string;
  heardAt: string; // when the program last looked for commands or had a turn, to a quarter of a second
  detail: unknown; // what `describe()` returned
  accepts?: Record<string, CommandDeclaration> | undefined; // own commands
  asks?: AskInfo[] | undefined; // the open questions, oldest first
  commands: CommandInfo[]; // the latest 16, oldest first; before them what runs, and what has waited longest
  holds?: StatusCause[] | undefined; // who wants the pause, oldest first
  log?: { path: string; error?: string | undefined } | undefined;
}

/** Who caused a status or holds a pause, why, since and until when: what a program saves to continue as it was. */
export type StatusCause = Partial<Pick<SystemInfo, 'by' | 'reason' | 'since'> & Pick<CommandRequest, 'until'>>;

/** Where a server listens: `localhost` and 0 if only at a Unix socket. The path of the socket is absolute. */
export interface WebApiAddress {
  host: string;
  port: number;
  socketPath?: string | undefined;
}

/** Thrown if the queue is empty; by `nextCommand()` and `nextCommandSync()` only if nothing can fill it. */
export class EmptyError extends Error { override readonly name = 'EmptyError'; }

/** Checks the options, applies the defaults and allocates the shared memory. */
function prepareThreadData(options: WebApiServerOptions<string>) {
  checkOptions('WebApiServer', options, SERVER_OPTIONS);
  const {
    systemStatus, describe, name = parsePath(process.argv[1] ?? process.execPath).name, host = DEFAULT_HOST,
    port = DEFAULT_PORT, maxQueueSize = DEFAULT_MAX_QUEUE_SIZE, autoReport = true, token, allowedHosts = [],
    maxConnections = 64, cause = [], onOverdue, readStack, log,
  } = options;
  check('systemStatus', systemStatus, 'function', 'a function');
  for (const [hook, call] of Object.entries({ describe, onOverdue, readStack })) {
    if (call !== undefined) check(hook, call, 'function', 'a function');
  }
  check('name', name, 'string', 'a string');
  checkHost('host', host);
  checkInteger('port', port, 0, 65_535);
  checkInteger('maxQueueSize', maxQueueSize, 1, 1000);
  check('autoReport', autoReport, 'boolean', 'a boolean');
  checkInteger('maxConnections', maxConnections, 1, 65_536);
  checkToken(token);
  if (log !== undefined) check('log', log, 'string', 'the path of a file', /^[^\0]*[^\0/]$/.test(log));
  for (const one of [cause].flat()) checkOptions('cause', one, ['by', 'reason', 'since', 'until']);
  const causes = [cause].flat().map(checkCause);
  if (!Array.isArray(allowedHosts)) throw new TypeError(`allowedHosts must be an array, got ${inspect(allowedHosts)}`);
  const [form, isName] = ["like 'box.lan', '.lan' or '*'", /^(\*|\.?[\w-]+(\.[\w-]+)*)$/];
  for (const entry of allowedHosts) check('each of allowedHosts', entry, 'string', form, isName.test(entry));
  const idPrefix = (36 ** 3 + Math.floor(Math.random() * 36 ** 3)).toString(36).slice(1); // three letters or digits
  const hasPort = options.socketPath == null || (options.host ?? options.port) !== undefined;
  const folders = options.socketPath === undefined && options.name !== undefined ? socketFolders() : [];
  const isNamed = folders.length > 0 && !process.env['CONTROL_RUN'];
  const socketName = `${name.replace(/[^\w.-]/g, '_').slice(0, 32)}-${process.pid}.sock`;
  const socketPath = resolveSocketPath(options.socketPath ?? undefined, socketName);
  // A session's folder goes at logout; only root can make it: tools look in both.
  const other = socketPath?.replace(/^\/run\/user\/(\d+)\/control\/(?=[^/]+$)/, '/tmp/control-$1/');
  const given = socketPath === undefined ? [] : [socketPath, other as string];
  const place = `runtime-control-${readClock()}-${Math.random()}`; // where the thread finds #onReach()
  const isInit = process.pid === 1 && process.platform === 'linux';
  return {
    memory: new Int32Array(new SharedArrayBuffer(128)), waiters: new Int32Array(new SharedArrayBuffer(64)),
    cells: CELL, statusNames: STATUS_NAMES, commandNames: COMMANDS, ranges: RANGES,
    table: allocateTable(idPrefix, maxQueueSize),
    death: '', // of the previous thread
    ahead: 0, // of Date before the clock, when the thread starts
    log: log === undefined ? undefined : resolvePath(log),
    get user() { return process.versions['deno'] === undefined ? process.geteuid?.() : undefined; }, // Deno would ask
    hasDetail: describe !== undefined, isSupervisor: onOverdue !== undefined, hasReader: readStack !== undefined,
    obstacles: { // why something is not possible here; empty if it is
      stack: readStack === undefined ? findObstacle() : '',
      pause: onOverdue === undefined ? 'Only control-run can pause a program in the middle of a step' : '',
      shutdown: isInit && onOverdue === undefined ? 'process 1 cannot be killed: start its container with an init' : '',
    },
    place, reach: `process.getBuiltinModule('node:worker_threads')[Symbol.for('${place}')]?.()\n//# sourceURL=${place}`,
    stack: new Uint16Array(new SharedArrayBuffer(2 * (50 * 201 + 1))), // 50 frames: the size, and up to 200 characters
    first: { ...causes[0] ?? checkCause({}), code: -1, holds: causes.reduce<readonly Hold[]>(addHold, []) },
    about: {
      name: tidy(name), pid: process.pid,
      host: process.versions['deno'] === undefined ? hostname() : '', // Deno would ask the user
      port: undefined as number | undefined, // once the thread listens
      startedAt: new Date(timeOrigin).toISOString(), version: VERSION,
    },
    host, port: hasPort ? port : null, token, allowedHosts: [...allowedHosts], maxQueueSize, maxConnections, socketPath,
    socketPaths: isNamed ? folders.map((folder) => `${folder}/${socketName}`) : [...new Set(given)],
    isInFolder: isNamed || options.socketPath?.endsWith('/') === true,
  };
}

/** Returns why the thread cannot look at the host's stack; empty if it can. */
function findObstacle(): string {
  const { versions: { bun, deno }, features, permission } = process as any; // in part newer than the oldest Node
  const isPermitted = permission === undefined || permission.has('inspector') === true;
  const where = bun !== undefined ? 'on Bun' : deno !== undefined ? 'on Deno' : !isMainThread ? 'in a worker thread'
    : features.inspector !== true ? 'in this build of Node' : isPermitted ? '' : 'with --permission';
  return where && `Node's inspector is not available ${where}`;
}

/** Returns a function that reads the stack, by an Error of a realm of its own: no look touches the program's Error. */
function createTracer(): () => NodeJS.CallSite[] | string {
  const prepareStackTrace = (_: Error, sites: NodeJS.CallSite[]): unknown => sites;
  const vm = process.getBuiltinModule('node:vm');
  const context = vm.createContext({}); // kept: V8 asks its global object for `Error.prepareStackTrace`
  const Tracer = Object.assign(vm.runInContext('Error', context), { stackTraceLimit: 60, prepareStackTrace, context });
  return () => new Tracer().stack;
}

/** Writes the frames below the place: for each, its size and characters; then 0. V8 may return a trace as a text. */
function writeFrames({ memory, stack, place }: ThreadData, trace: readonly unknown[] | string): void {
  const begun = Atomics.load(memory, CELL.LOOKS) | 1; // odd already if a time limit of `vm` has ended a look
  Atomics.store(memory, CELL.LOOKS, begun);
  let end = 0;
  let isBelow = false;
  const sites = typeof trace === 'string' ? trace.split('\n    at ') : trace;
  for (let index = 0, left = 50; index < sites.length && left > 0; index += 1) {
    const text = `${sites[index]}`;
    if (isBelow) {
      const size = text.length < 200 ? text.length : 200;
      stack[end] = size;
      for (let at = 0; at < size; at += 1) stack[end + 1 + at] = text.charCodeAt(at);
      end += 1 + size;
      left -= 1;
    }
    isBelow ||= text.includes(place);
  }
  stack[end] = 0;
  Atomics.store(memory, CELL.LOOKS, (begun + 1) | 0);
}

/** A status, its cause, and the holds of the pause. */
type Published = Hold & { code: number; holds: readonly Hold[] };
type Hold = StatusCause & { since: string };

/**
 * The web API of a running system. It runs in its own thread, so it responds whatever the host's thread is doing. Every
 * command whose response is `ok` is delivered exactly once, unless it expires, is withdrawn or the program ends, and in
 * order: the four commands, and own commands, each in the order of their acceptance. So are both together, except while
 * a `pause` or a `shutdown` waits: then the four commands that wait go first.
 */
export class WebApiServer<Name extends string = never> {
  readonly #options: WebApiServerOptions<string>;
  readonly #data: ThreadData;
  readonly #memory: Int32Array;
  readonly #table: Table;
  readonly #queue: ReturnType<typeof openQueue>;
  readonly #asked: Set<(end?: State, reason?: unknown) => void> = new Set(); // settle open questions
  #state: 'idle' | 'starting' | 'running' | 'closed' = 'idle';
  #worker: Worker | null = null;
  #closed: Promise<void> | null = null;
  #restartTimer: NodeJS.Timeout | undefined;
  #published: Published; // the present status; its code is -1 before there is one
  #taken: number | undefined; // the slot of the command taken last
  #request: CommandRequest<string> | null = null; // that command, once asked for
  #running: number | undefined; // its slot, until it is completed
  #before: Published; // the status when it was taken
  #isSampling = false; // systemStatus() or describe() runs
  #seen = 0; // SEQUENCE when the queue was last found empty: if it differs, the next poll looks
  #found: number | undefined; // the slot that the latest poll has found
  #foundAt = 0; // by readClock()
  #interrupt: AbortController | null = null; // of `signal`
  #isFollowing = false; // each command wakes the host
  readonly #warned: Set<string> = new Set();
  // The thread finds #onReach() here: in Jest, `globalThis` is not that of the main context.
  readonly #exports: object = process.getBuiltinModule('node:worker_threads');
  readonly #inspector: { url(): string | undefined } | null; // null if no look is possible
  readonly #trace: ReturnType<typeof createTracer> | null;

  constructor(options: WebApiServerOptions<Name>) {
    this.#data = prepareThreadData(options);
    const isVisible = this.#data.obstacles.stack === '' && !this.#data.hasReader;
    this.#inspector = isVisible ? process.getBuiltinModule('node:inspector') : null;
    this.#trace = isVisible ? createTracer() : null;
    this.#options = { ...options };
    this.#memory = this.#data.memory;
    this.#published = this.#before = this.#data.first;
    this.#table = openTable(this.#data, readClock, () => this.#ringThread());
    this.#queue = openQueue(this.#data, this.#table);
    const { commands = {} } = options;
    this.#tell('declarations', checkCommands(commands));
    this.#tell('detail', 'null');
  }

  /** A copy of the declarations. They can be replaced while the server runs; the queue keeps what it has accepted. */
  get commands(): Declarations<Name> { return this.#table.present('declarations').given as Declarations<Name>; }
  set commands(commands: Declarations<Name>) { this.#tell('declarations', checkCommands(commands)); }

  /**
   * Starts the server, which does not keep the process alive, and returns the address for clients. Its thread starts at
   * once, even if the host does not yield. If it dies, a new one takes over with the same address, queue and history,
   * after a second and once the host yields. `close()` during the start resolves the promise.
   *
   * @throws {Error} If the server is running or was closed, or if it cannot listen (`code` is Node's, such as
   *   EADDRINUSE) or open its log. In the latter cases it can be started again.
   */
  async runInBackground(): Promise<WebApiAddress> {
    if (this.#state === 'closed') throw new Error('Cannot start the server: it was closed');
    if (this.#state !== 'idle') throw new Error('Cannot start the server: it is already running');
    this.#state = 'starting';
    this.#publish();
    const { host: boundHost, socketPath } = this.#data;
    const host = boundHost === '0.0.0.0' || boundHost === '::' ? DEFAULT_HOST : boundHost;
    this.#noteInspector();
    const place = Symbol.for(this.#data.place);
    Object.defineProperty(this.#exports, place, { value: () => this.#onReach(), configurable: true });
    try {
      await this.#startThread();
    } catch (error) {
      const { code, message } = error as Failure;
      Reflect.deleteProperty(this.#exports, place);
      const { port } = this.#data;
      const client = code === 'EADDRINUSE' && port ? new WebApiClient(host, port, { timeout: 1000 }) : null;
      const user = await client?.getInfo(); // without the token: it may be anyone
      const isKnown = typeof user?.name === 'string' && typeof user.pid === 'number';
      const why = isKnown ? `it is in use by ${tidy(user.name)} (process ${user.pid})` : message;
      if (this.#state === 'starting') this.#state = 'idle';
      throw Object.assign(new Error(`Cannot serve at ${placeOf(this.#data)}: ${why}`), { code });
    }
    return { host, port: this.#data.port ?? 0, ...socketPath !== undefined && { socketPath } };
  }

  /** Shows clients the status at once, as each look for commands does: for a host that changes it and then blocks. */
  publish(): void {
    const sequence = this.#load(CELL.SEQUENCE); // before the sample
    this.#publish();
    // A client that has sent a command and then asks for the status must see its effect.
    if (!this.#isSampling && this.#look() === undefined) this.#acknowledge(sequence);
  }

  /** Who wants the pause, oldest first: each sender once; the 16th stands for all others. Empty while active. */
  get holds(): StatusCause[] { return JSON.parse(JSON.stringify(this.#published.holds)); }

  /** Returns whether a command waits. By default, completes the one taken last. Never waits; cheap in a tight loop. */
  hasCommands(): boolean {
    if (this.#isSampling) return false;
    // A plain read, because Atomics.load() takes longer than all the rest. A later poll corrects a stale value.
    if (this.#memory[CELL.SEQUENCE] === this.#seen) {
      this.#publish();
      return false;
    }
    const sequence = this.#load(CELL.SEQUENCE); // before the sample
    this.#publish();
    if (this.#options.autoReport !== false) this.#complete({});
    const hasNext = this.#poll();
    if (!hasNext) this.#seen = sequence; // first, because describe() may call post()
    // Not while a command that was found waits to be taken, for up to 250 ms: the status is about to change.
    if (!hasNext || readClock() - this.#foundAt > 250) this.#acknowledge(sequence);
    return hasNext;
  }

  /** Returns whether one of these commands waits to be delivered: by default, any but own commands. */
  hasWaiting(commands: readonly ControlCommand[] = COMMANDS): boolean { return this.#look(commands) !== undefined; }

  /**
   * Takes the next command from the queue. Never waits, except until the response to a `shutdown` is written: at
   * most 200 ms, usually less than one. The command is done when the host looks for the next one or calls `report()`.
   *
   * @throws {EmptyError} If the queue is empty.
   */
  receiveCommand(): ControlCommand | Name {
    this.#publish(); // while the previous command is known to be the cause of a new status
    this.#complete({});
    this.#interruptStep();
    let slot: number | undefined;
    do { // it may be withdrawn between the two
      slot = this.#isSampling ? undefined : this.#look();
      if (slot === undefined) throw new EmptyError('The command queue is empty');
    } while (!this.#table.change(slot, 'taken'));
    this.#release();
    this.#lookAnew(); // so that the next poll completes it, whatever SEQUENCE is
    this.#request = null;
    this.#running = this.#taken = slot;
    this.#before = this.#published;
    const command = this.#nameOf(slot) ?? this.#readRequest().command as Name;
    const isClients = this.#data.table.kinds[slot] === 'client';
    const responded = this.#load(CELL.RESPONDED);
    const isResponding = isClients && ((responded - this.#table.numberOf(slot)) | 0) < 0;
    if (command === 'shutdown' && isResponding) Atomics.wait(this.#memory, CELL.RESPONDED, responded, 200);
    return command;
  }

  /** The command taken last, its arguments, who sent it and why; null before the first. */
  get request(): CommandRequest<Name> | null {
    if (this.#taken === undefined) return null;
    const { arguments: values, ...request } = this.#readRequest();
    return { ...request, arguments: { ...values } } as CommandRequest<Name>;
  }

  /**
   * Waits for the next command and takes it from the queue, for a host that sleeps while paused. Uses no CPU, and keeps
   * the process alive. The signal cancels the wait: the promise rejects with its reason, and no command is lost.
   *
   * @throws {EmptyError} If the queue is empty and the server is closed, or was never started and nothing was posted.
   */
  async nextCommand({ signal }: { signal?: AbortSignal | undefined } = {}): Promise<ControlCommand | Name> {
    const keepAlive = startInterval(() => {}, 2 ** 30);
    const ring = (): void => this.#ring();
    signal?.addEventListener('abort', ring);
    try {
      for (;;) {
        signal?.throwIfAborted();
        const sequence = this.#load(CELL.SEQUENCE); // before the look, so that any later command counts
        if (this.#poll() || this.hasCommands()) return this.receiveCommand();
        this.#checkOpen();
        if ((signal?.aborted === true || this.#seen !== sequence) && !this.#isSampling) continue; // a callback did that
        await new Promise<void>((resolve) => onRing(this.#data, CELL.SEQUENCE, sequence, resolve));
      }
    } finally {
      endTimer(keepAlive);
      signal?.removeEventListener('abort', ring);
    }
  }

  /**
   * Like `nextCommand()`, but blocks the thread, for a host that never yields. Clients still get the status and the
   * detail, but no timer and no signal handler runs, and a server thread that has died is not replaced. Returns null if
   * no command comes within the timeout, in milliseconds. Default: without limit. Throws as `nextCommand()` does.
   */
  nextCommandSync(options: { timeout?: number | undefined } = {}): ControlCommand | Name | null {
    checkOptions('nextCommandSync', options, ['timeout']);
    const { timeout = Infinity } = options;
    check('timeout', timeout, 'number', 'a number of milliseconds from 0', timeout >= 0);
    const deadline = readClock() + timeout;
    for (;;) {
      const sequence = this.#load(CELL.SEQUENCE);
      if (this.#poll() || this.hasCommands()) return this.receiveCommand();
      this.#checkOpen(true);
      if (this.#seen !== sequence && !this.#isSampling) continue; // as above
      const remaining = deadline - readClock();
      if (remaining <= 0) return null;
      Atomics.add(this.#data.waiters, CELL.SEQUENCE, 1);
      Atomics.wait(this.#memory, CELL.SEQUENCE, sequence, Math.min(remaining, 1000)); // a thread may die first
      Atomics.sub(this.#data.waiters, CELL.SEQUENCE, 1);
    }
  }

  /**
   * Aborts when a command waits that ends the present work: a `pause` while the status is active, or a `shutdown`. So a
   * long asynchronous step can end early. The reason is an AbortError that names the command. Once that command is
   * taken, a new signal takes its place. Does not keep the process alive.
   */
  get signal(): AbortSignal {
    this.#publish(); // the status may have changed since the latest poll
    if (this.#interrupt?.signal.aborted !== false) this.#interrupt = new AbortController();
    this.#follow();
    return this.#interrupt.signal;
  }

  /**
   * Asks whoever controls the program; the first answer counts. An open question keeps the process alive. A rejection
   * need not be handled: it is a TimeoutError if the question expires, or an AbortError if a command ends the present
   * work: what aborts `signal`, or a `save-state`. `close()` ends it, too.
   *
   * @throws {Error} If 16 questions are open, the server is not running, or the key or its answer cannot be used.
   */
  ask<const Types = { approved: 'boolean' }>(message: string, options: AskOptions<Types> = {}): Promise<Answer<Types>> {
    checkOptions('ask', options, ['parameters', 'timeout', 'signal', 'key']);
    const { parameters = { approved: { type: 'boolean' } }, timeout, signal, key } = options;
    const asked = checkQuestion(message, parameters, timeout, key);
    const isSignal = signal === undefined || 'addEventListener' in Object(signal);
    if (!isSignal) throw new TypeError(`signal must be an AbortSignal, got ${inspect(signal)}`);
    if (key !== undefined && this.#data.log === undefined) throw new TypeError('key requires a log');
    if (this.#state !== 'running') throw new Error('Cannot ask: the server is not running');
    const table = this.#table;
    const slot = table.slotFor('question');
    for (const settle of this.#asked) settle(); // then, because the question in this slot may just have ended
    const isAsked = key && table.questions().some(({ state, given }) => state === 'open' && given.key === key);
    if (isAsked) throw new Error(`Cannot ask: '${key}' is asked already`);
    const decision = key === undefined ? undefined : findAnswer(this.#data, asked);
    if (this.#asked.size === 16 && !decision) throw new Error('Cannot ask: 16 questions are open');
    table.open(slot, 0, JSON.stringify(asked), timeout, Date.parse(asked.at), decision && JSON.stringify(decision));
    const answer = new Promise<Answer<Types>>((resolve, reject) => {
      const settle = (end?: State, reason?: unknown): void => {
        if (end !== undefined) table.change(slot, end);
        if (table.isPending(slot)) return;
        const { state, result: { by, reason: why, arguments: values } } = table.read(slot);
        this.#asked.delete(settle);
        endTimer(timer);
        signal?.removeEventListener('abort', abort);
        if (state === 'done') resolve({ arguments: values as Values<Types>, by, reason: why });
        else if (state === 'expired') reject(new DOMException(`expired: ${message}`, 'TimeoutError'));
        else reject(reason ?? new DOMException('The question was withdrawn', 'AbortError'));
      };
      const abort = (): void => settle('withdrawn', signal?.reason);
      const timer = timeout === undefined ? startInterval(settle, 2 ** 30) : startTimer(settle, timeout, 'expired');
      signal?.addEventListener('abort', abort);
      this.#asked.add(settle);
      settle(signal?.aborted === true ? 'withdrawn' : undefined, signal?.reason);
    });
    answer.catch(() => {});
    this.#follow(); // a command may wait already
    return answer;
  }

  /** Withdraws all open questions, as at the end of a step. Default reason: an AbortError. */
  withdrawQuestions(reason?: unknown): void { for (const settle of this.#asked) settle('withdrawn', reason); }
  /** Completes the command taken last, and reports its outcome. A no-op if it is completed. */
  report(outcome: CommandOutcome = {}): void {
    checkOptions('report', outcome, ['value', 'error']);
    this.#publish(); // while the command is known to be the cause of a new status
    this.#complete(outcome);
  }

  /**
   * Puts a command of the program itself on the queue, ahead of those of clients, also without a server. Default of
   * `by`: `itself`. Texts are truncated to 200 characters. Returns false if `maxQueueSize` such commands wait.
   */
  post(command: ControlCommand, options: Pick<CommandRequest, 'by' | 'reason' | 'until'> = {}): boolean {
    const code = COMMANDS.indexOf(command);
    if (code === -1) throw new TypeError(`command must be one of ${COMMANDS.join(', ')}, got ${inspect(command)}`);
    checkOptions(`post('${command}')`, options, ['by', 'reason', ...command === 'pause' ? ['until'] : []]);
    const { by, reason, until } = checkCause({ ...options, by: options.by ?? 'itself' });
    if (this.#queue.count('posted') >= this.#data.maxQueueSize) return false;
    this.#table.open(this.#table.slotFor('posted'), code, JSON.stringify({ by, reason, until }));
    this.#ring();
    this.#interruptStep();
    return true;
  }

  /**
   * Stops the server. It completes the command taken last, accepts no more connections, responds to pending requests,
   * and closes the remaining connections after one second. The promise resolves when the port is free and the thread
   * has ended. Commands on the queue can still be received.
   */
  close(): Promise<void> { return (this.#closed ??= this.#stopThread()); }

  #complete(outcome: CommandOutcome): void {
    const slot = this.#running;
    if (slot === undefined) return;
    this.#running = undefined; // first, because the value may call report()
    const command = this.#nameOf(slot);
    const isDone = !('error' in outcome);
    const isPaused = command === 'pause' && isDone && STATUSES[this.#published.code] !== ACTIVE;
    if (isPaused) this.#setHolds(this.#holdsAfterPause());
    const table = this.#table;
    const given = command === 'resume' ? table.read(slot).given : {};
    const isVain = given.arguments !== undefined && this.#published.holds.some((hold) => isReleasedBy(given, hold));
    if (isVain) this.#setHolds(addHold(this.#published.holds, { by: given.by })); // without an end
    try {
      const value = given.mine === true ? { released: true } : outcome.value;
      const json = isDone ? encode(typeof value === 'string' ? tidy(value, 1000) : value) : '';
      if (isDone) table.change(slot, 'done', json && `{"value":${json}}`);
      else this.#fail(slot, tidy(describeError(outcome.error), 1000));
    } catch (failure) { // a command whose value cannot be sent is done nevertheless
      const result = { [isDone ? 'valueOmitted' : 'error']: tidy(describeError(failure)) || 'Error' };
      table.change(slot, isDone ? 'done' : 'failed', JSON.stringify(result));
    }
    for (let left = command === 'shutdown' && isDone ? this.#queue.count('own') : 0; left > 0; left -= 1) {
      this.#dispose(this.#queue.tail('own'), 'the program has shut down');
    }
    this.#ring(); // the next look may dispose of others
  }
  #fail(slot: number, error: string): void { this.#table.change(slot, 'failed', JSON.stringify({ error })); }

  /** Whether a command that waits is to be delivered. While one runs, this decides as if that had succeeded. */
  #isDue(slot: number): boolean {
    const isFound = slot === this.#found && this.#table.isPending(slot);
    if (isFound || !this.#queue.isValid(slot)) return isFound;
    const command = this.#nameOf(slot);
    const running = this.#runningName;
    if (command === undefined) return running !== 'shutdown'; // an own command
    const given = command === 'resume' ? this.#table.read(slot).given : {};
    if (given.mine !== true) return true;
    const holds = running === 'resume' ? [] : running === 'pause' ? this.#holdsAfterPause() : this.#published.holds;
    return holds.length > 0 && holds.every((hold) => isReleasedBy(given, hold)); // else it only releases a hold
  }
  /** The holds once the pause that runs is done. */
  #holdsAfterPause(): readonly Hold[] {
    const { by = SOMEBODY, reason, until } = this.#readRequest();
    return addHold(this.#published.holds, { by, reason, until });
  }

  /** Returns the first command that is due, or of these. If none are given and none runs, disposes of those ahead. */
  #look(commands?: readonly ControlCommand[]): number | undefined {
    for (;;) { // anew after each, because systemStatus(), which #setHolds() calls, may post a command
      const first = this.#queue.next();
      if (first === undefined) return undefined;
      const isDue = this.#isDue(first);
      if (isDue && commands === undefined) return first;
      const isVain = !isDue && commands === undefined && this.#running === undefined && !this.#isSampling;
      if (isVain) this.#dispose(first);
      else return this.#queue.find((slot) => {
        const isWanted = commands === undefined || commands.includes(this.#nameOf(slot) as ControlCommand);
        return isWanted && this.#isDue(slot);
      });
    }
  }
  /** Returns the command taken last. */
  #readRequest(): CommandRequest<string> {
    if (this.#request !== null) return this.#request;
    const { id, code, given } = this.#table.read(this.#taken as number);
    const { by, reason, name = '', mine: _mine, arguments: values = {}, ...limits } = given;
    return (this.#request = { command: COMMANDS[code] ?? name, id, arguments: values, by, reason, ...limits });
  }
  #nameOf(slot: number): ControlCommand | undefined { return COMMANDS[this.#table.codeOf(slot)]; }
  get #runningName() { return this.#running === undefined ? undefined : this.#nameOf(this.#running); }

  /** Looks anew. What this finds neither expires nor can be withdrawn before the next poll or take. */
  #poll(): boolean {
    if (this.#isSampling) return false;
    const before = this.#found;
    let found: number | undefined;
    do {
      this.#release();
      found = this.#look();
      this.#release(); // what a callback found
    } while (found !== undefined && !this.#table.claim(found));
    if (found !== before) this.#foundAt = readClock();
    return (this.#found = found) !== undefined;
  }
  #release(): void {
    if (this.#found !== undefined) this.#table.exchange(this.#found, 'claimed', 'open');
    this.#found = undefined;
  }

  /** Ends the next command of a lane, which is never delivered. */
  #dispose(slot: number, error: string = ''): void {
    if (this.#taken !== undefined) this.#readRequest(); // before later commands can overwrite it
    const limitMs = this.#table.expiredAfter(slot);
    if (!this.#table.claim(slot)) return this.#table.pass(slot); // it is withdrawn
    if (error !== '' || limitMs > 0) return this.#fail(slot, error || `expired after ${limitMs / 1000} s`);
    this.#table.change(slot, 'taken'); // first, because systemStatus(), which #setHolds() calls, may look, too
    const { given } = this.#table.read(slot);
    const { holds } = this.#published;
    const left = holds.filter((hold) => !isReleasedBy(given, hold));
    if (left.length < holds.length) this.#setHolds(left);
    this.#table.change(slot, 'done', JSON.stringify({ value: { released: left.length < holds.length } }));
  }

  /** Lets a waiting command that ends the present work abort `signal`, withdraw the questions, and never expire. */
  #interruptStep(): void {
    const isAborted = this.#interrupt?.signal.aborted !== false;
    if (isAborted && this.#asked.size === 0) return;
    const stops: ControlCommand[] = STATUSES[this.#published.code] === ACTIVE ? ['pause', 'shutdown'] : ['shutdown'];
    const slot = this.#look(stops) ?? (this.#asked.size > 0 ? this.#look(['save-state']) : undefined);
    if (slot === undefined) return;
    this.#table.keep(slot);
    const command = this.#nameOf(slot);
    const reason = new DOMException(`Interrupted by ${command}`, 'AbortError');
    interruptions.add(reason);
    this.withdrawQuestions(reason); // first: a listener of the signal may take long
    if (command !== 'save-state') this.#interrupt?.abort(reason);
  }

  /** Acts now, and whenever a bell has rung and the host yields, as long as act() returns true. */
  #watch(cell: number, act: () => boolean): void {
    const value = this.#load(cell); // before the act, which may miss what comes later
    if (act()) onRing(this.#data, cell, value, () => this.#watch(cell, act));
  }

  /** Hears of each command and answer while a signal or a question needs that. */
  #follow(): void {
    if (this.#isFollowing) return this.#interruptStep();
    this.#isFollowing = true; // first, because a listener of the signal may come back here
    this.#watch(CELL.SEQUENCE, () => {
      this.#hear();
      const isWanted = this.#interrupt?.signal.aborted === false || this.#asked.size > 0;
      return (this.#isFollowing = isWanted && this.#state !== 'closed');
    });
  }
  #hear(): void {
    this.#look(); // disposes
    this.#interruptStep();
    for (const settle of this.#asked) settle();
  }
  #sampleIfRequested(): void {
    const sequence = this.#load(CELL.SEQUENCE); // before the sample
    if (((this.#load(CELL.ACKNOWLEDGED) - this.#load(CELL.REQUESTED)) | 0) >= 0) return;
    if (this.#load(CELL.REQUESTED) % 32 === 0) this.#noteInspector(); // it costs a tenth of a GET
    this.#publish();
    this.#acknowledge(sequence);
  }
  #noteInspector(): void { Atomics.store(this.#memory, CELL.INSPECTED, Number(this.#inspector?.url() !== undefined)); }

  #load(cell: number): number { return Atomics.load(this.#memory, cell); }
  #lookAnew(): void { this.#seen = (this.#load(CELL.SEQUENCE) - 1) | 0; }
  /** Lets the next poll look for commands, and wakes those who wait for one. */
  #ring(): void {
    this.#lookAnew();
    ringBell(this.#data, CELL.SEQUENCE);
  }
  #ringThread(): void {
    Atomics.add(this.#memory, CELL.NEWS, 1);
    ringBell(this.#data, CELL.NEWS);
  }
  /** The thread calls this in the middle of whatever the host does: see the section on the stack. */
  #onReach(): void {
    const reserve = (depth: number): number => (depth === 0 ? 0 : 1 + reserve(depth - 1));
    reserve(500); // throws near the end of the call stack, before anything has changed
    writeFrames(this.#data, this.#trace?.() ?? '');
    this.#ringThread();
  }
  #checkOpen(isBlocking: boolean = false): void {
    const isIdle = this.#state === 'idle' && this.#table.stateOf(this.#table.latest('posted')) === 'free';
    if (isIdle) throw new EmptyError('The server was not started');
    const isClosed = this.#state === 'closed' && (isBlocking || this.#worker === null); // else it may still be closing
    if (isClosed) throw new EmptyError('The server is closed');
  }

  #publish(): void {
    if (this.#isSampling) return;
    const code = this.#sample('systemStatus', STATUSES.length, this.#readStatus); // the length: there is none
    if (code !== this.#published.code) this.#onNewStatus(code); // apart, so that V8 inlines the rest into hasCommands()
    this.#memory[CELL.HEARD] = (this.#memory[CELL.HEARD] as number) + 1;
  }
  #onNewStatus(code: number): void {
    const published = this.#published;
    const itself: Partial<CommandRequest<string>> = { by: 'itself' };
    const { command, by, reason, until } = this.#running === undefined ? itself : this.#readRequest();
    const isCancelled = command === 'shutdown' && STATUSES[code] === PAUSED;
    const cause = isCancelled ? { by: 'itself', reason: 'shutdown cancelled' } : { by, reason, until };
    const isBack = this.#running !== undefined && code === this.#before.code; // after a save, or a pause that failed
    if (isBack) this.#appendStatus(this.#before);
    else if (published.code === -1) this.#appendStatus({ ...published, code }); // the first has its own cause
    else this.#appendStatus({ ...cause, since: new Date().toISOString(), code, holds: published.holds });
    this.#interruptStep(); // a waiting pause interrupts only active work
  }

  /** Publishes a status. Everybody's hold ends once it is active; while it is paused, the oldest hold is the cause. */
  #appendStatus({ code, holds, ...cause }: Published): void {
    const status = STATUSES[code];
    const by = cause.by ?? (this.#running === undefined ? 'itself' : SOMEBODY);
    const held = status === ACTIVE ? [] : status === PAUSED && holds.length === 0 ? [{ ...cause, by }] : holds;
    const origin: Hold = (status === PAUSED && held[0]) || cause;
    this.#published = { ...origin, code, holds: held };
    const during = ['save-state', 'shutdown'].find((name) => name === this.#runningName); // for the log
    const text = JSON.stringify({ by: origin.by, reason: origin.reason, holds: held, during });
    this.#tell('status', text, code, Date.parse(origin.since));
  }
  #setHolds(holds: readonly Hold[]): void {
    if (holds === this.#published.holds) return; // a flood of pauses costs little
    this.#appendStatus({ ...this.#published, holds });
    this.#publish(); // systemStatus() can save the holds before their senders get the outcome
  }
  #tell(kind: 'status' | 'detail' | 'declarations', text: string, code: number = 0, time: number = Date.now()): void {
    this.#table.open(this.#table.slotFor(kind), code, text, 0, time);
  }

  readonly #readStatus = (): number => {
    const status: SystemStatus | null | undefined = this.#options.systemStatus();
    const name = status?.statusName ?? ''; // by name: the status may come from another copy of this file
    const index = name === STATUS_NAMES[this.#published.code] ? this.#published.code : STATUS_NAMES.indexOf(name);
    if (index !== -1) return index;
    Promise.resolve(status).catch(() => {}); // a rejected promise must not end the host
    throw new TypeError(`it must return a SystemStatus other than OFFLINE, got ${inspect(status)}`);
  };

  /** Calls systemStatus() or describe(), during which no command is taken. */
  #sample<Value>(name: string, fallback: Value, read: () => Value): Value {
    this.#isSampling = true;
    try {
      return read();
    } catch (error) {
      this.#warnOnce(`${name} failed: ${describeError(error)}`);
      return fallback;
    } finally {
      this.#isSampling = false;
    }
  }

  #acknowledge(sequence: number): void {
    if (this.#load(CELL.ACKNOWLEDGED) === sequence) return;
    if (this.#load(CELL.DETAIL) === 1) {
      const detail = this.#sample('describe', 'null', () => encode(this.#options.describe?.() ?? null));
      this.#tell('detail', detail);
      Atomics.store(this.#memory, CELL.DETAIL, 0);
    }
    Atomics.store(this.#memory, CELL.ACKNOWLEDGED, sequence);
    this.#ringThread();
  }

  /** Resolves once the thread listens or the server is closed. Rejects with a Failure if the first start fails. */
  async #startThread(): Promise<void> { // async: new Worker() may throw
    const data = this.#data;
    data.ahead = Date.now() - readClock();
    const worker = this.#worker = new Worker(`(() => { ${THREAD_FUNCTIONS.join('\n')} (${runThread})(); })();`, {
      eval: true, workerData: data, name: 'runtime-control',
      execArgv: [], env: {}, // not the host's --import and --require, nor its NODE_OPTIONS
      stdout: true, stderr: true, // opening the host's streams takes time, and the thread prints nothing
      resourceLimits: { maxOldGenerationSizeMb: 64 + data.maxConnections / 16, maxYoungGenerationSizeMb: 16 },
    });
    return new Promise((resolve, reject) => {
      let failure: Failure = { message: 'its thread exited' };
      worker.on('message', (message: ThreadMessage) => {
        if (typeof message === 'string') return this.#warnOnce(message);
        if (message.type === 'failed') return void (failure = message);
        if (message.type === 'overdue') return this.#options.onOverdue?.(message.command);
        if (message.type === 'look') return void this.#options.readStack?.()
          .then((lines) => writeFrames(data, [data.place, ...lines])).then(() => this.#ringThread())
          .catch((error) => this.#warnOnce(`readStack failed: ${describeError(error)}`));
        if (data.port !== null) data.port = message.port; // restarted threads use the same
        data.death = '';
        if (this.#state === 'starting') {
          const how = data.token === undefined ? 'without' : 'with';
          if (message.isPublic) this.#warnOnce(`Other machines can control ${placeOf(data)} ${how} a token`);
          this.#state = 'running';
          worker.unref();
          this.#watch(CELL.REQUESTED, () => {
            this.#hear();
            void nextTurn().then(() => this.#sampleIfRequested()); // after nextCommand() has taken a command
            return this.#state === 'running';
          });
        }
        resolve();
      });
      worker.on('error', (error: NodeJS.ErrnoException) => {
        failure = { message: `its thread failed: ${describeError(error)}`, code: error.code };
      });
      worker.on('exit', () => {
        this.#worker = null;
        this.#ring(); // it may have died before it did so
        this.#hear();
        if (/is not defined$|find variable/.test(failure.message)) failure.message += '; compiled for an old target?';
        if (this.#state === 'closed') resolve();
        else if (this.#state === 'starting') reject(failure);
        else this.#restartLater(failure);
      });
      if (this.#state === 'running') worker.unref(); // after on('message'), which refs it
    });
  }

  #restartLater({ message }: Failure): void {
    if (this.#state !== 'running') return;
    this.#warnOnce(`The web API at ${placeOf(this.#data)} stopped and will be restarted: ${message}`, Infinity);
    this.#data.death ||= message; // not why its successors could not start
    const restart = (): Promise<void> => this.#startThread().catch((error) => this.#restartLater(error));
    this.#restartTimer = startTimer(restart, 1000).unref();
  }

  /** Shows each message once. The limit is for errors whose text varies. */
  #warnOnce(message: string, limit: number = 20): void {
    if (this.#warned.has(message) || this.#warned.size >= limit) return;
    this.#warned.add(message);
    process.emitWarning(message, WARNING);
  }

  async #stopThread(): Promise<void> {
    this.report({});
    this.#state = 'closed';
    this.withdrawQuestions(new Error('The server is closed'));
    Reflect.deleteProperty(this.#exports, Symbol.for(this.#data.place));
    endTimer(this.#restartTimer);
    const worker = this.#worker;
    if (worker !== null) {
      worker.ref();
      worker.postMessage('close');
      const lastResort = startTimer(() => worker.terminate(), 10_000);
      await new Promise((resolve) => worker.once('exit', resolve));
      endTimer(lastResort);
    }
    if (this.#data.table.logged.some((word) => (word & 15) !== 0)) { // it has begun
      const log = createLog(this.#data, this.#table, readClock, (message) => this.#warnOnce(String(message)));
      log.write(); // what the thread has not
      log.write({ event: 'end' });
    }
    this.#ring(); // for nextCommand(), if there is no thread
    ringBell(this.#data, CELL.REQUESTED);
  }
}

// ── WebApiClient ──

/**
 * The outcome of a request. `value` is the status, the lines of the stack or the result of the command, or empty if
 * nothing has changed since the `tag`; `body` is the whole response. `phase` is how far a failed request got: it was
 * `answered`; `sent`, so a command may still take effect; or only `connect`. Without a response, `code` is Node's.
 */
export type WebApiReply =
  | Readonly<{ ok: true; value: string; body: Record<string, unknown>; tag: string | undefined }>
  | Readonly<{
    ok: false; error: string; body: Record<string, unknown>; phase: 'connect' | 'sent' | 'answered';
    statusCode: number | undefined; code: string | undefined;
  }>;

/** Options of `request()`. */ export interface RequestOptions {
  /** Arguments of an own command, or of an answer. */ arguments?: object | undefined;
  /** The id of the question, for `answer`, or of the command, for `withdraw`. */ id?: string | undefined;
  /** 1 to 300 seconds: until the command is done, or something is newer than `tag`. */ wait?: number | undefined;
  /** Who sends the command: `ana@laptop`. Truncated to 200 characters. */ by?: string | undefined;
  /** Why. Truncated to 200 characters. */ reason?: string | undefined;
  /** 1 to 86,400 seconds, after which the command is no longer delivered. */ expires?: number | undefined;
  /** 0 to 86,400 seconds, after which a `shutdown` kills, or a `pause` stops what control-run runs. */
  within?: number | undefined;
  /** For `pause`: 1 to 2,592,000 seconds, after which it ends as by `mine`. Requires `by`. */
  for?: number | undefined;
  /** For `resume`: releases only the hold of the sender. */ mine?: boolean | undefined;
  /** The tag of an earlier reply, for `status` and `info`. */ tag?: string | undefined;
  /** Cancels the request, which then counts as failed. */ signal?: AbortSignal | undefined;
}
type Limited = Pick<RequestOptions, 'within'>;

/** Options of `WebApiClient`. */ export interface WebApiClientOptions {
  /** Time limit of each request, in milliseconds. Default: 5000. */ timeout?: number | undefined;
  /** The token of the server. */ token?: string | undefined;
  /** Replaces host and port. Nothing is sent unless `checkTrusted()` passes. */ socketPath?: string | undefined;
  /** Opens the connection to that address by other means, such as ssh, which then decide whom to trust. */
  connect?: (() => Duplex) | undefined;
}

/** Options of `waitFor()`. */ export interface WaitOptions {
  /** Time limit in milliseconds. Default: 30,000. */ timeout?: number | undefined;
  /** Cancels the wait: the promise rejects with the signal's reason. */ signal?: AbortSignal | undefined;
  /** Receives the first status and each new one. */ onStatus?: ((status: SystemStatus) => void) | undefined;
}

/**
 * Controls a system from outside. Failed requests do not throw: the status is then `OFFLINE`, the result of a command
 * `null`, and `request()` returns the reason. Each request opens its own connection and is never retried.
 */
export class WebApiClient {
  /** `http://localhost:8391`, or `unix:` and the path of the socket. */ readonly baseUrl: string;
  readonly #target: {
    host?: string; port?: number; socketPath?: string; headers: { Authorization?: string };
    agent?: false; createConnection?: () => Duplex; // one of them
  };
  readonly #timeoutMs: number;
  readonly #cancels: Set<() => void> = new Set(); // one for each pending request

  constructor(host: string = DEFAULT_HOST, port: number = DEFAULT_PORT, options: WebApiClientOptions = {}) {
    checkHost('host', host);
    checkInteger('port', port, 1, 65535);
    checkOptions('WebApiClient', options, ['timeout', 'token', 'socketPath', 'connect']);
    const { timeout = 5000, token, connect } = options;
    checkTimeout(timeout);
    checkToken(token);
    const isExclusive = options.socketPath === undefined || (host === DEFAULT_HOST && port === DEFAULT_PORT);
    if (!isExclusive) throw new TypeError('socketPath replaces host and port: give one or the other');
    const socketPath = resolveSocketPath(options.socketPath);
    if (connect !== undefined) check('connect', connect, 'function', 'a function');
    const how = connect === undefined ? { agent: false as const } : { createConnection: connect };
    const headers = token === undefined ? {} : { Authorization: `Bearer ${token}` };
    this.#target = { ...socketPath === undefined ? { host, port } : { socketPath }, ...how, headers };
    this.baseUrl = socketPath === undefined ? `http://${placeOf({ host, port, socketPath })}` : `unix:${socketPath}`;
    this.#timeoutMs = timeout;
  }

  /** Requests the status. Resolves with `OFFLINE` if the request fails. The signal cancels the request. */
  async getStatus(signal?: AbortSignal): Promise<SystemStatus> {
    return statusOf(await this.request('status', { signal })) ?? OFFLINE;
  }

  /** Requests `/api/info`. Resolves with null if the request fails. */
  async getInfo(signal?: AbortSignal): Promise<SystemInfo | null> {
    const { ok, body } = await this.request('info', { signal });
    return ok ? body as unknown as SystemInfo : null;
  }

  /** Sends `pause`. Resolves with the result, `'ok'`, or with `null` if the request fails. */
  pause(options: Limited = {}): Promise<string | null> { return this.#send('pause', options); }
  /** Resolves as `pause()` does. */ resume(): Promise<string | null> { return this.#send('resume'); }
  /** Resolves as `pause()` does. */ saveState(): Promise<string | null> { return this.#send('save-state'); }
  /** Resolves as `pause()` does. */
  shutdown(options: Limited = {}): Promise<string | null> { return this.#send('shutdown', options); }

  async #send(command: ControlCommand, options: Limited = {}): Promise<string | null> {
    const reply = await this.request(command, options);
    return reply.ok === true ? reply.value : null; // narrows without `strict`
  }

  /** Requests `status`, `info`, `stack` or a command, and resolves with the outcome. `wait` extends the time limit. */
  async request(endpoint: string, options: RequestOptions = {}): Promise<WebApiReply> {
    check('endpoint', endpoint, 'string', 'status, info, stack or the name of a command', COMMAND_NAME.test(endpoint));
    checkOptions('request', options, CLIENT_OPTIONS);
    const { wait, mine, by = '', reason = '', id = '', signal } = options;
    for (const [name, text] of Object.entries({ by, reason, id })) check(name, text, 'string', 'a string');
    const json = JSON.stringify(options.arguments);
    if (json !== undefined) check('arguments', options.arguments, 'object', 'an object');
    for (const [name, [from, to]] of Object.entries(RANGES)) checkInteger(name, options[name as 'wait'], from, to);
    if (mine !== undefined) check('mine', mine, 'boolean', 'a boolean');
    const timeoutMs = this.#timeoutMs + (wait ?? 0) * 1000;
    const end = new AbortController();
    const abort = (message: string, code: string): void => end.abort(Object.assign(new Error(message), { code }));
    const cancel = (): void => abort('the request was cancelled', 'ABORT_ERR');
    const timer = startTimer(abort, timeoutMs, `timeout after ${timeoutMs / 1000} s`, 'ETIMEDOUT');
    this.#cancels.add(cancel);
    let phase: 'connect' | 'sent' = 'connect';
    const onSent = (): void => void (phase = 'sent');
    try {
      signal?.addEventListener('abort', cancel, { once: true });
      if (signal?.aborted === true) cancel();
      const { statusCode, tag, body } = await this.#exchange(endpoint, options, json, end.signal, onSent);
      const { result, status, stack, error } = body;
      const frames = Array.isArray(stack) ? stack.join('\n') : undefined;
      const given = endpoint === 'stack' ? frames : READABLE.includes(endpoint) ? status : result;
      const isEmpty = statusCode === 304 || (given === null && endpoint === 'info'); // null while systemStatus() fails
      const value = isEmpty ? '' : given;
      const isText = typeof value === 'string' || typeof value === 'number';
      if (isText && [200, 202, 304].includes(statusCode)) return { ok: true, value: String(value), body, tag };
      const failure = { ok: false, body, statusCode, code: undefined } as const;
      if (statusCode >= 400 && typeof error === 'string') return { ...failure, error, phase: 'answered' };
      const mismatch = `${this.baseUrl} is not a control server: it responded with status code ${statusCode}`;
      return { ...failure, error: mismatch, phase: 'sent' };
    } catch (error) {
      const reason: NodeJS.ErrnoException = end.signal.aborted ? end.signal.reason : error;
      const { code } = (reason as { errors?: Failure[] }).errors?.at(-1) ?? reason; // of the last address
      const message = `${this.baseUrl} does not respond: ${describeError(reason)}`;
      return { ok: false, error: message, body: {}, phase, statusCode: undefined, code };
    } finally {
      endTimer(timer);
      this.#cancels.delete(cancel);
      signal?.removeEventListener('abort', cancel);
    }
  }

  /**
   * Waits until the system reports the status; polls old servers every 50 ms. A command takes effect when the host
   * takes it, so the first status may predate one that was sent just before. A system that accepts connections and
   * does not respond is not `OFFLINE`.
   *
   * @throws {DOMException} `TimeoutError` if the status does not come in time, or the reason of an aborted signal.
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
      const wait = tag === undefined ? undefined : 1; // short, because a program that does not poll may have changed
      const reply = await this.request('status', { signal: end, tag, wait });
      const current = statusOf(reply);
      signal?.throwIfAborted();
      if (limit.aborted) throw new DOMException(timedOut, 'TimeoutError');
      const hasChanged = current !== null && current !== last;
      if (hasChanged) onStatus?.(current);
      if (current === target) return;
      last = current ?? last;
      tag = reply.ok === true ? reply.tag : undefined;
      if (!hasChanged || tag === undefined) await sleep(50, undefined, { signal: end }).catch(() => {});
    }
  }

  /** Cancels all pending requests. The client can still be used. */
  close(): void { for (const cancel of this.#cancels) cancel(); }

  async #exchange(endpoint: string, options: RequestOptions, json: string, signal: AbortSignal, onSent: () => void) {
    const { wait, by = '', reason = '', mine, tag } = options;
    signal.throwIfAborted();
    const { socketPath, createConnection, headers: own } = this.#target;
    if (socketPath !== undefined && createConnection === undefined) checkTrusted(socketPath); // keeps the token safe
    const http = process.getBuiltinModule('node:http'); // slow to load
    const method = READABLE.includes(endpoint) ? 'GET' : 'POST';
    const given: Record<string, unknown> = { ...options, by: tidy(by), reason: tidy(reason), mine: mine || '' };
    const query = new URLSearchParams();
    for (const name of ['id', 'by', 'reason', 'expires', 'within', 'for', 'mine']) {
      if ((given[name] ?? '') !== '') query.set(name, `${given[name]}`);
    }
    const path = `/api/${endpoint}${query.size > 0 ? `?${query}` : ''}`;
    const headers = { ...own, ...wait && { Prefer: `wait=${wait}` }, ...tag && { 'If-None-Match': tag } };
    const request = http.request({ ...this.#target, method, path, headers, signal });
    request.on('finish', () => request.socket?.errored || onSent()); // also emitted if it could not connect
    request.on('error', () => {}); // once() reports it, or else reading the response does
    let interim = 0; // Node ignores 1xx responses
    request.on('information', () => (interim += 1) > 16 && request.destroy(new Error('too many 1xx responses')));
    request.end(json);
    const [response] = await once(request, 'response', { signal }) as [IncomingMessage];
    let text = '';
    for await (const chunk of response.setEncoding('utf8')) {
      text += chunk;
      if (text.length > 262_144) throw new Error('the response exceeds 262144 characters'); // above any /api/info
    }
    const { statusCode = 0, headers: { etag } } = response;
    let body: Record<string, unknown> = {};
    try { body = Object(JSON.parse(text)); } catch {}
    return { statusCode, tag: etag, body };
  }
}

/** Returns null if the reply has no known status. Only a missing listener is OFFLINE: systems and networks may hang. */
function statusOf(reply: WebApiReply): SystemStatus | null {
  if (reply.ok === true) return STATUSES[STATUS_NAMES.indexOf(reply.value)] ?? null;
  const isForeign = reply.phase === 'sent' && reply.statusCode !== undefined;
  const isRefused = reply.phase === 'connect' && /^(ECONNREFUSED|ENOENT)$/.test(reply.code ?? '');
  return isForeign || isRefused ? OFFLINE : null;
}

function placeOf({ host, port, socketPath = '' }: Omit<WebApiAddress, 'port'> & { port: number | null }): string {
  return port === null ? socketPath : `${host.includes(':') ? `[${host}]` : host}:${port}`;
}

// ── launch: a host loop ──

/** An own command: `run()` is called between two steps, also while paused, and can end early as a step can. */
export interface SystemCommand<Types> extends CommandDeclaration<ParametersOf<Types>> {
  run(values: Values<Types>, request: CommandRequest<string>, control: Control): unknown;
}

/**
 * The system that `launch()` runs. Every method except `describe` may be synchronous or return a promise. A client that
 * waits for a command receives what its hook returns (see `CommandOutcome`), or the error.
 */
export interface System<Commands = Record<string, Record<string, keyof ValueTypes>>> {
  /** Does one piece of the work. Called repeatedly while the system is active. */ step(control: Control): unknown;
  /** Called with the address of the web API before the first step. If it fails, so does the launch. */
  onListening?(address: WebApiAddress): unknown;
  /** Called while `pausing`, also before a save, but not for a shutdown. If it fails, the system stays active. */
  onPaused?(request: CommandRequest): unknown;
  /** Called while the status is `resuming`. If it fails, the system stays paused. */
  onResumed?(request: CommandRequest): unknown;
  /** Saves the state, for `save-state` and at shutdown. `status` is the one before the command: active or paused. */
  saveState?(status: SystemStatus, request: CommandRequest, control: Control): unknown;
  /** Called last, after the final `saveState()`. */ onShutdown?(request: CommandRequest): unknown;
  /** See `WebApiServerOptions.describe`. */ describe?(): unknown;
  /** Own commands by name: see `WebApiServerOptions.commands`. */
  readonly commands?: { readonly [Name in keyof Commands]: SystemCommand<Commands[Name]> } | undefined;
}

/**
 * Posts commands, which take effect after the step. A long step may end early if `hasCommands()`, or when `signal`
 * aborts, and fail with the signal's reason, or an error whose `cause` that is. It or a save ends its questions.
 */
export interface Control extends Pick<WebApiServer, 'hasCommands' | 'holds' | 'signal' | 'ask'> {
  pause(reason?: string): boolean;
  save(reason?: string): boolean;
  shutdown(reason?: string): boolean;
}

/** Configuration of `launch()`: its own options, and those of the server. */
export interface LaunchConfig extends Pick<WebApiServerOptions,
  'name' | 'socketPath' | 'token' | 'allowedHosts' | 'maxQueueSize' | 'maxConnections' | 'log'
> {
  /** Host and port, or null for no web API. Default: `['localhost', 8391]`, or none of them with a `socketPath`. */
  webApiAddress?: readonly [host: string, port: number] | null | undefined;
  /** Pauses before the first step, as saved: see `WebApiServerOptions.cause`. An empty list is false, the default. */
  startPaused?: boolean | StatusCause | readonly StatusCause[] | undefined;
}

const tell = (text: string): unknown => process.stderr.isTTY && console.error(text); // which may have gone

function sayWhere(address: WebApiAddress, name: string = 'the web API'): void {
  tell(`${name} listens at ${address.port === 0 ? address.socketPath : `http://${placeOf(address)}`}`);
}

/**
 * Runs a system until it is shut down by a command, SIGINT, SIGTERM or SIGHUP. A second SIGINT, at least a second after
 * the first, kills it. SIGUSR2 saves. A paused system uses no CPU. Steps may be synchronous: commands are handled after
 * each, timers and signals every 10 ms. Without `onListening`, a terminal shows on stderr where the web API listens.
 *
 * If a hook fails, `process.emitWarning()` reports it and the system continues. If the last save fails, a shutdown by
 * command is cancelled, and the system pauses; after a signal, or without a web API, the promise rejects with the error
 * of the save. If a step fails, it rejects with that error and saves nothing, unless a command has interrupted it.
 *
 * @throws {Error} If the web API cannot listen. No step has run.
 */
export async function launch<Commands>(system: System<Commands>, config: LaunchConfig = {}): Promise<void> {
  check('system', system, 'object', 'an object');
  for (const hook of ['step', 'onListening', 'onPaused', 'onResumed', 'saveState', 'onShutdown', 'describe'] as const) {
    if (hook === 'step' || system[hook] !== undefined) check(`system.${hook}`, system[hook], 'function', 'a function');
  }
  const declared: Readonly<Record<string, SystemCommand<any>>> = { ...system.commands };
  for (const name of Object.keys(declared)) check(`${name}.run`, declared[name]?.run, 'function', 'a function');
  checkOptions('launch', config, LAUNCH_OPTIONS);
  const { webApiAddress, startPaused = false, ...options } = config;
  const isAddress = !webApiAddress || (Array.isArray(webApiAddress) && webApiAddress.length === 2);
  if (!isAddress) throw new TypeError(`webApiAddress must be [host, port] or null, got ${inspect(webApiAddress)}`);
  if (Object(startPaused) !== startPaused) check('startPaused', startPaused, 'boolean', 'a boolean, a cause or causes');
  const cause = [startPaused === true ? { by: 'itself', reason: 'started paused' } : startPaused || []].flat();
  const isServed = webApiAddress !== null;
  const needsServer = cause.length > 0 || (options.socketPath ?? options.log) !== undefined;
  if (needsServer && !isServed) throw new TypeError('startPaused, socketPath and log need a server');
  if (!isMainThread) process.emitWarning('launch() receives no signals in a worker thread: send it shutdown', WARNING);

  let status = cause.length > 0 ? PAUSED : ACTIVE;
  let isOver = false;
  let endSignal: string | null = null; // the first signal that asked for a shutdown
  const server = new WebApiServer<string>({
    ...options,
    cause,
    systemStatus: () => status,
    describe: system.describe && (() => system.describe?.()),
    commands: declared,
    host: webApiAddress?.[0], port: webApiAddress?.[1],
    autoReport: false, // a hook may poll
  });
  const control: Control = {
    pause: (reason) => server.post('pause', { reason }),
    save: (reason) => server.post('save-state', { reason }),
    shutdown: (reason) => server.post('shutdown', { reason }),
    hasCommands: () => server.hasCommands(),
    get holds() { return server.holds; },
    get signal() { return server.signal; },
    ask: (message, options) => server.ask(message, options),
  };
  const setStatus = (next: SystemStatus): void => {
    status = next;
    server.publish(); // the next hook may block this thread
  };
  const callHook = async (name: string, call: () => unknown): Promise<CommandOutcome> => {
    try {
      const value = await call();
      return value === undefined ? {} : { value };
    } catch (error) {
      const message = `${name} failed: ${describeError(error)}`;
      process.emitWarning(message, { type: WARNING, detail: describeError(error, 'stack') });
      return { error: /^on[A-Z]/.test(name) ? new Error(message) : error };
    }
  };

  type Change = [before: SystemStatus, during: SystemStatus, after: SystemStatus];
  const change = async (hook: 'onPaused' | 'onResumed', request: CommandRequest, [before, during, after]: Change) => {
    if (status === after) return {};
    setStatus(during);
    const outcome = await callHook(hook, () => system[hook]?.(request));
    setStatus('error' in outcome ? before : after);
    return outcome;
  };

  const commands: Record<ControlCommand, (request: CommandRequest) => Promise<CommandOutcome>> = {
    'pause': (request) => change('onPaused', request, [ACTIVE, PAUSING, PAUSED]),
    'resume': (request) => change('onResumed', request, [PAUSED, RESUMING, ACTIVE]),

    async 'save-state'(request: CommandRequest): Promise<CommandOutcome> {
      const before = status;
      const paused = await commands.pause(request);
      if ('error' in paused) return paused;
      const outcome = await callHook('saveState', () => system.saveState?.(before, request, control));
      if (before === ACTIVE) await commands.resume(request);
      return outcome;
    },

    /** Saves for the last time and ends the launch, unless the save fails and a client can try again. */
    async 'shutdown'(request: CommandRequest): Promise<CommandOutcome> {
      const before = status;
      setStatus(SHUTTING_DOWN);
      const saved = await callHook('saveState', () => system.saveState?.(before, request, control));
      if ('error' in saved && endSignal === null && isServed) {
        if (before === PAUSED) setStatus(PAUSED);
        else await commands.pause(request);
        return saved;
      }
      const ended = await callHook('onShutdown', () => system.onShutdown?.(request));
      isOver = true;
      if (!('error' in saved)) return { ...saved, ...ended };
      server.report(saved);
      throw saved.error;
    },
  };
  const execute = async (name: string): Promise<void> => {
    const request = server.request as CommandRequest<never>;
    const run = (): unknown => declared[name]?.run(request.arguments, request, control);
    server.report(await (name in declared ? callHook(name, run) : commands[name as ControlCommand](request)));
  };
  const phase = (): string => status === SHUTTING_DOWN ? 'the last save' : 'this step';
  const sayEnding = (): unknown => isOver || tell(`ending after ${phase()} (again: at once)`);
  let killsAfter = Infinity;
  const onSignal = (name: NodeJS.Signals): void => {
    if (name === 'SIGUSR2') return void server.post('save-state', { reason: name });
    if (name === 'SIGINT' && readClock() >= killsAfter) {
      removeHandlers();
      process.kill(process.pid, name);
    }
    if (name === 'SIGINT') killsAfter = Math.min(killsAfter, readClock() + 1000);
    if (name === 'SIGINT' && endSignal === null) startTimer(sayEnding, 1000).unref(); // when a second one would kill
    if (endSignal === null) server.post('shutdown', { reason: name });
    endSignal ??= name;
  };
  const removeHandlers = (): void => SIGNALS.forEach((name) => process.off(name, onSignal));
  for (const name of SIGNALS) process.on(name, onSignal);
  try {
    if (cause.length > 0) {
      const [{ by, reason, until } = {}] = server.holds;
      server.post('pause', { by, reason, until });
      server.receiveCommand(); // while paused, so that it leads back to that status and its cause
      status = PAUSING;
    }
    const address = isServed ? await server.runInBackground() : null;
    if (address !== null && system.onListening === undefined) sayWhere(address, config.name);
    if (address !== null) await system.onListening?.(address);
    if (cause.length > 0) await execute('pause');
    let turnEndsAt = 0; // when to yield to the event loop
    while (!isOver) {
      if (server.hasCommands()) await execute(server.receiveCommand());
      else if (endSignal !== null) server.post('shutdown', { reason: endSignal }); // the queue was full before
      else if (status === PAUSED) await execute(await server.nextCommand());
      else {
        try {
          const result = system.step(control);
          if (typeof (result as any)?.then === 'function') await result;
        } catch (error: any) {
          // Each interruption excuses one step: its cause may be withdrawn. A later step has an old signal.
          if (!interruptions.delete(error) && !interruptions.delete(error?.cause)) throw error;
        }
      }
      server.withdrawQuestions(); // what the step or the command has left open
      if (readClock() < turnEndsAt) continue;
      await nextTurn(); // the rest of this turn, which may be past the check for signals
      await nextTurn(); // a complete turn
      turnEndsAt = readClock() + 10;
    }
  } finally {
    await server.close();
    removeHandlers();
  }
}

// ── Errors and checks ──

/** Node's connection errors may have a code but no message, and an object may throw when it is read. */
function describeError(error: unknown, field: 'message' | 'stack' = 'message'): string {
  try {
    const { [field]: text, code, name } = Object(error) as Partial<NodeJS.ErrnoException>; // instanceof fails in Jest
    return typeof text === 'string' ? String(text || code || name || 'Error') : inspect(error);
  } catch {
    return 'an error that cannot be described';
  }
}

/** Returns the JSON of a value, or an empty text for undefined. A rejected promise must not end the host. */
function encode(value: any): string {
  if (value === undefined) return '';
  const json = typeof value?.then === 'function' ? void Promise.resolve(value).catch(() => {}) : JSON.stringify(value);
  if (json !== undefined && Buffer.byteLength(json) <= 4096) return json;
  throw new RangeError('the value must be JSON of at most 4096 bytes');
}

/** Checks who, why, since and until when, and returns them as they are published. */
function checkCause({ by = '', reason = '', since = new Date().toISOString(), until }: StatusCause): Hold {
  for (const text of [by, reason]) check('by and reason', text, 'string', 'strings');
  const times = Object.entries({ since, until: until ?? since });
  for (const [name, time] of times) check(name, time, 'string', 'a time in ISO 8601', Date.parse(time) >= 0);
  const [from, end] = [since, until].map((time) => time && new Date(time).toISOString());
  return { by: tidy(by) || undefined, reason: tidy(reason) || undefined, since: from as string, until: end };
}

/** Adds a hold, or replaces reason and end of its sender's. Without a name, the 16th ends by a plain `resume` only. */
function addHold(holds: readonly Hold[], hold: StatusCause): readonly Hold[] {
  const { by = holds.some((one) => one.by === SOMEBODY) ? undefined : SOMEBODY } = hold;
  const own = holds.find((one) => one.by === by);
  const [reason, until] = [hold.reason ?? own?.reason, by && hold.until];
  if (own !== undefined && reason === own.reason && until === own.until) return holds;
  if (own !== undefined) return holds.map((one) => (one === own ? { ...one, reason, until } : one));
  const { since = new Date().toISOString() } = hold;
  if (holds.length < 15) return [...holds, { by, reason, since, until }];
  return holds.some((one) => one.by === undefined) ? holds : [...holds, { since }];
}

/** Whether a `resume` of a sender releases a hold: at the end of one, only if that has not been replaced since. */
function isReleasedBy({ by = SOMEBODY, arguments: values }: Given, hold: Hold): boolean {
  return hold.by === by && (values?.['until'] ?? hold.until) === hold.until;
}

/** Throws a TypeError if the type is wrong, or a RangeError if the value is. */
function check(name: string, value: unknown, type: string, form: string, isValid: boolean = true): void {
  const isType = typeof value === type && value !== null;
  if (isType && isValid) return;
  const message = `${name} must be ${form}, got ${inspect(value)}`;
  throw isType ? new RangeError(message) : new TypeError(message);
}

function checkInteger(name: string, value: number | undefined, least: number, most: number): void {
  if (value === undefined) return;
  const isValid = Number.isInteger(value) && value >= least && value <= most;
  check(name, value, 'number', `an integer from ${least} to ${most}`, isValid);
}

function checkTimeout(value: number): void {
  check('timeout', value, 'number', 'a number of milliseconds above 0 and below 2³¹', value > 0 && value < 2 ** 31);
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

function checkCommands(commands: object, taken: string[] = [...COMMANDS, ...READABLE, 'answer', 'withdraw']): string {
  check('commands', commands, 'object', 'an object');
  const json = JSON.stringify(commands);
  const description: Parameter = { type: 'string', default: '' };
  const type: Parameter = { type: 'string', enum: ['boolean', 'integer', 'number', 'string'] };
  const minimum: Parameter = { type: 'number', default: 0 };
  const maxLength: Parameter = { type: 'integer', minimum: 0, default: 0 };
  for (const [name, declaration] of Object.entries<CommandDeclaration>(JSON.parse(json))) {
    const isFree = COMMAND_NAME.test(name) && !taken.includes(name);
    check('the name of a command', name, 'string', 'a letter and up to 31 of a–z, 0–9 and -, not in use', isFree);
    checkOptions(name, declaration, ['description', 'parameters']);
    const { parameters = {}, ...words } = declaration;
    validate(`${name}.`, words, { description });
    check(`${name}.parameters`, parameters, 'object', 'an object');
    for (const [word, parameter] of Object.entries(parameters)) {
      const path = `${name}.${word}.`;
      const { default: preset, enum: choices = [], ...others } = Object(parameter) as Parameter;
      const maximum: Parameter = { ...minimum, minimum: others.minimum, default: others.minimum ?? 0 };
      const limits: object = others.type === 'string' ? { maxLength } : { minimum, maximum };
      const isName = /^[A-Za-z]\w{0,31}$/.test(word);
      check('the name of a parameter', word, 'string', 'a letter and up to 31 letters, digits and _', isName);
      validate(path, others, { type, description, ...limits });
      check(`${path}enum`, choices, 'object', 'a list', Array.isArray(choices) && parameter.enum?.length !== 0);
      for (const choice of choices) validate(path, { enum: choice }, { enum: others });
      if (preset !== undefined) validate(path, { default: preset }, { default: parameter });
    }
  }
  checkInteger('the number of commands', Object.keys(commands).length, 0, 32);
  checkInteger('the size of the commands as JSON', Buffer.byteLength(json), 0, 8192);
  return json;
}

/** Checks a question, and returns its `AskInfo` but the id. */
function checkQuestion(text: string, parameters: Parameters, timeout?: number, key?: string, at = Date.now()) {
  const message = typeof text === 'string' ? tidy(text.replace(/\s+/g, ' '), 1000).trim() : '';
  const isValid = message !== '' && Array.from(text).length <= 1000;
  check('message', text, 'string', 'a text of 1 to 1000 characters', isValid);
  check('parameters', parameters, 'object', 'an object', !Array.isArray(parameters));
  if (timeout !== undefined) checkTimeout(timeout);
  if (key !== undefined) check('key', key, 'string', '1 to 200 characters', key !== '' && tidy(`${key}`) === key);
  checkInteger('the size of the question as JSON', Buffer.byteLength(JSON.stringify({ message, parameters })), 0, 4096);
  checkCommands({ answer: { parameters } }, []);
  const expiresAt = timeout === undefined ? undefined : new Date(at + timeout).toISOString();
  return { message, key, parameters, at: new Date(at).toISOString(), expiresAt };
}

/** Rejects unknown options: a misspelt one would leave the default in force. */
function checkOptions(owner: string, options: object, known: readonly string[]): void {
  check(`the options of ${owner}`, options, 'object', 'an object');
  const unknown = Object.keys(options).find((name) => !known.includes(name));
  if (unknown !== undefined) throw new TypeError(`${owner} has no option ${unknown}; it has ${known.join(', ')}`);
}

/** Returns the absolute path, because the program may change its working directory. Only servers use a folder. */
function resolveSocketPath(socketPath: string | undefined, nameInFolder: string = '') {
  if (socketPath === undefined) return undefined;
  if (process.platform === 'win32') throw new TypeError('socketPath is not available on Windows: use host and port');
  check('socketPath', socketPath, 'string', 'a non-empty string', socketPath !== '');
  const isFolder = socketPath.endsWith('/');
  check('socketPath', socketPath, 'string', 'the path of a socket, not of a folder', !isFolder || nameInFolder !== '');
  const path = resolvePath(socketPath, isFolder ? nameInFolder : '');
  const isValid = Buffer.byteLength(path) <= 94 && !path.includes('\0'); // macOS allows 103; the private folder needs 9
  check('socketPath', path, 'string', 'at most 94 bytes long, without NUL', isValid);
  return path;
}

// ── MIT License ──
// Copyright (c) 2026 The runtime-control authors
// Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
// documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
// rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to
// permit persons to whom the Software is furnished to do so, subject to the following conditions:
// The above copyright notice and this permission notice shall be included in all copies or substantial portions of
// the Software.
// THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO
// THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
// AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT,
// TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
// SOFTWARE.
