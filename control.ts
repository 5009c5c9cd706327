/*! control.ts 0.22.0 – MIT – pause, resume, save, steer and shut down a long-running program over HTTP */
// SPDX-License-Identifier: MIT
/* istanbul ignore file @preserve (in a bundle: the whole bundle) */
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
//   GET  /api/info         the status, who caused it and why, the latest commands, and what the program is doing
//   POST /api/pause        200 {"result":"ok"}: the command is on the queue; 503 {"error":"…"}: its lane is full
//        /api/resume, /api/shutdown, /api/save-state: the same; with `Prefer: wait=60`, the outcome of the command
//        /api/evaluate {"episodes":200}: the same for an own command, which the program declares; 400 {"error":"…"}
//        /api/answer?id=k3f-q2 {"approved":true}: answers a question of the program; 409 {"error":"…"}: it has ended
//
// The file imports Node's built-ins only, and importing it has no side effects. It runs on Node 20.19, 22.12 and newer,
// Deno and Bun, compiled for ES2015 or newer by tsc, or for ES2017 by other tools. The host is the controlled program.
// A wrong type or an unknown option throws a TypeError, and a value out of range a RangeError.

import { EventEmitter, once } from 'node:events';
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

/** The version of this file. */ export const VERSION: string = '0.22.0';
/** The default host name of servers and clients. */ export const DEFAULT_HOST = 'localhost';
/** The default port of servers and clients. */ export const DEFAULT_PORT = 8391;
/** The default capacity of the command queue. */ export const DEFAULT_MAX_QUEUE_SIZE = 16;

const { setTimeout: startTimer, setInterval: startInterval, clearTimeout: endTimer } = timers;
const { setTimeout: sleep, setImmediate: nextTurn } = timers.promises;
const readClock = clock.now.bind(clock); // kept at the import, as the timers are: tests replace the global ones
const SOMEBODY = 'somebody'; // holds the pause of a sender without a name
const RESPONSE_MS = 200; // how long the host waits for the response to a shutdown; a busy machine may take long
const WARNING = 'ControlWarning'; // the type of all warnings
const BASE_OPTIONS = ['name', 'socketPath', 'token', 'allowedHosts', 'maxQueueSize', 'maxConnections', 'log'];
const SERVER_OPTIONS = ['systemStatus', 'describe', 'commands', 'host', 'port', 'autoReport', 'cause', ...BASE_OPTIONS];
const LAUNCH_OPTIONS = ['webApiAddress', 'startPaused', ...BASE_OPTIONS];
const interruptions: WeakSet<object> = new WeakSet(); // the errors by which commands interrupt steps
const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGBREAK', 'SIGUSR2'] as const; // launch() handles them

// ───── Statuses and commands ─────────────────────────────────────────────────────────────────────────────────────

/** The status of a system. The client reports `OFFLINE` if it cannot get the status; servers never send it. */
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
}

/** Options of `ask()`. */
export interface AskOptions<Types = Record<string, keyof ValueTypes>> {
  /** What an answer consists of. Default: `{ approved: { type: 'boolean' } }`, a yes or no. */
  parameters?: ParametersOf<Types> | undefined;
  /** Milliseconds after which the question has expired. Default: none. */ timeout?: number | undefined;
  /** Withdraws the question: the promise rejects with its reason. */ signal?: AbortSignal | undefined;
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

// ───── Journal ───────────────────────────────────────────────────────────────────────────────────────────────────
//
// The queue is a journal: a ring of records in shared memory. The server thread appends a command, the host takes it
// and adds the outcome to the same record. Records stay readable until the ring wraps around to them.
//
//  clients ──HTTP──▶ server thread ──append──▶ [ command, arguments, who │ state, time, outcome ] ──take──▶ host
//                          ▲                                         │         ▲                             │
//                          └──────────────── outcomes ◀──────────────┘         └──────────── complete ───────┘
//
//    record    n−3      n−2      n−1        n       n+1
//             done    failed   running   waiting  waiting
//                                          TAIL               HEAD
//
// HEAD counts the records appended, TAIL those taken, ENDED those completed, all modulo 2³². The number of slots is a
// power of two, so consecutive records stay in consecutive slots. Every field of a record has one writer at a time.
// HEAD is stored after the record, and the state after the outcome. A record is complete before the next is taken.
// There are seven journals: see prepareThreadData(). The thread appends to the lanes, and the host to the others.
//
// - One counter, ACCEPTED, numbers the commands of all journals: #waiting() orders them by it. There may be gaps.
// - receiveCommand() takes what is delivered, #complete() completes it, and #settle() does both to what never is.
// - A slot is reused 16 records later than the queue requires, and enqueue() settles the waits at every eighth one.
// - Questions are no ring: an open one keeps its slot. The thread completes it by an answer, the host by a withdrawal,
//   both by expiry: whoever exchanges its state first. The word of a state has the number of the question, so a late
//   answer does not reach the next question in the same slot.

/** @param readClock Returns the milliseconds by the host's clock, which cannot be set. */
function openJournal({ memory, slots, textBytes, resultBytes, idPrefix }: JournalMemory, readClock: () => number) {
  const [headAt, tailAt, endsAt, firstRecord] = [0, 16, 17, 32]; // words; each writer has its own cache line
  const [codeAt, stateAt, lengthAt, resultLengthAt, numberAt, expiresAt, loggedAt] = [0, 1, 2, 3, 4, 5, 14];
  const [atAt, takenAt, startAt, endAt, wordsPerRecord] = [3, 4, 5, 6, 16]; // of two words; two by the clock
  const states = ['none', 'open', 'value', 'error', 'valueOmitted', 'answer', 'expired', 'withdrawn'];
  const open = 1;
  const words = new Int32Array(memory);
  const times = new Float64Array(memory);
  const texts = Buffer.from(memory);
  const firstRoom = 4 * (firstRecord + slots * wordsPerRecord);
  const journal = {
    head(): number { return Atomics.load(words, headAt); },
    tail(): number { return Atomics.load(words, tailAt); },
    waiting(): number { return (Atomics.load(words, headAt) - Atomics.load(words, tailAt)) | 0; },
    ends(): number { return Atomics.load(words, endsAt); },
    /** Returns whether a record is still there, or is the next one. */
    has(index: number): boolean { return ((journal.head() - index) | 0) < slots; },
    codeOf(index: number): number { return words[journal.find(index) + codeAt] as number; },
    numberOf(index: number): number { return words[journal.find(index) + numberAt] as number; },
    /** Returns the milliseconds after which a record has expired, or 0 if it has not. */
    expiredAfter(index: number): number {
      const record = journal.find(index);
      const limit = words[record + expiresAt] as number;
      const age = readClock() - (times[record / 2 + startAt] as number);
      return limit > 0 && age >= limit ? limit : 0;
    },
    /** Lets a command that waits never expire. */
    keep(index: number): void { words[journal.find(index) + expiresAt] = 0; },
    isComplete(index: number): boolean { return (Atomics.load(words, journal.find(index) + stateAt) & 7) !== open; },
    find(index: number): number { return firstRecord + (index & (slots - 1)) * wordsPerRecord; },
    findRoom(index: number): number { return firstRoom + (index & (slots - 1)) * (textBytes + resultBytes); },

    /** Appends a record and returns its index. Only commands have a number, may expire, and are logged beforehand. */
    append(code: number, at: number, text: string, number: number = 0, expires: number = 0, log?: () => void): number {
      const index = journal.head();
      const record = journal.find(index);
      Atomics.store(words, record + stateAt, 0); // for all()
      words[record + codeAt] = code;
      words[record + resultLengthAt] = 0;
      words[record + lengthAt] = text === '' ? 0 : texts.write(text, journal.findRoom(index), textBytes);
      words[record + numberAt] = number;
      words[record + expiresAt] = expires;
      times[record / 2 + atAt] = at || 1; // 0: never used
      times[record / 2 + startAt] = readClock();
      Atomics.store(words, record + stateAt, (number << 3) | open);
      log?.();
      Atomics.store(words, headAt, (index + 1) | 0);
      return index;
    },

    /** Takes the next record and returns its index. There must be one. */
    take(): number {
      times[journal.find(journal.tail()) / 2 + takenAt] = Date.now();
      return Atomics.add(words, tailAt, 1);
    },

    /** Adds the outcome of a record: its text is JSON or nothing, or an error. Returns false if it has one already. */
    complete(index: number, outcome: Outcome, text: string, number: number = journal.numberOf(index)): boolean {
      const [record, room] = [journal.find(index), journal.findRoom(index) + textBytes];
      const present = (number << 3) | open;
      if (Atomics.load(words, record + stateAt) !== present) return false; // a question, or the next one in its slot
      if (text !== '') words[record + resultLengthAt] = texts.write(text, room, resultBytes);
      times[record / 2 + endAt] = readClock();
      const next = (number << 3) | states.indexOf(outcome);
      const isOpen = Atomics.compareExchange(words, record + stateAt, present, next) === present;
      if (isOpen) Atomics.add(words, endsAt, 1);
      return isOpen;
    },

    read(index: number) {
      const record = journal.find(index);
      const room = journal.findRoom(index);
      const word = Atomics.load(words, record + stateAt); // before the outcome
      const kind = states[word & 7] as string;
      const text = texts.toString('utf8', room, room + (words[record + lengthAt] as number));
      const end = room + textBytes + (words[record + resultLengthAt] as number);
      const result = kind === 'open' ? '' : texts.toString('utf8', room + textBytes, end);
      const [by, reason, name, json] = (kind === 'answer' ? result : text).split('\n');
      const number = words[record + numberAt] as number;
      const [started, ended] = [times[record / 2 + startAt] as number, times[record / 2 + endAt] as number];
      return {
        index, word, logged: words[record + loggedAt] as number,
        id: `${idPrefix}${number >>> 0}`,
        code: words[record + codeAt] as number,
        number,
        at: times[record / 2 + atAt] as number,
        started, ended, // by the clock that cannot be set
        seconds: kind === 'open' ? undefined : Math.max(0, Math.round(ended - started)) / 1000,
        isTaken: kind !== 'open' || ((journal.tail() - index) | 0) > 0,
        takenAt: times[record / 2 + takenAt] as number, // after isTaken
        isComplete: kind !== 'open',
        text, by: by || undefined, reason: reason || undefined, name, json, // the latter two: own commands, answers
        error: kind === 'error' ? result : kind === 'expired' || kind === 'withdrawn' ? kind : undefined,
        value: kind === 'value' && result !== '' ? result : undefined, // JSON
        valueOmitted: kind === 'valueOmitted' ? result : undefined,
      };
    },

    /** Passes over the slot of an open question. */
    skip(): void { Atomics.add(words, headAt, 1); },
    /** Notes what the log has of a record. */
    setLogged({ index, word }: { index: number; word: number }): void { words[journal.find(index) + loggedAt] = word; },
    wordOf(slot: number): number { return Atomics.load(words, journal.find(slot) + stateAt); },
    /** Returns the records of all slots, or of those whose present state is not in the log. */
    all(isForLog: boolean = false) {
      return Array.from({ length: slots }, (_, slot) => slot).filter((slot) => {
        return journal.wordOf(slot) !== (isForLog ? words[journal.find(slot) + loggedAt] : 0);
      }).map((slot) => {
        let record = journal.read(slot);
        while (record.word !== journal.wordOf(slot)) record = journal.read(slot);
        return record;
      }).filter(({ word }) => word !== 0); // 0: never used, or being written
    },
    /** Completes what is due. */
    expire(): void {
      for (let slot = 0; slot < slots; slot += 1) {
        const number = journal.numberOf(slot); // first
        if (!journal.isComplete(slot) && journal.expiredAfter(slot) > 0) journal.complete(slot, 'expired', '', number);
      }
    },

    /** Returns the latest records, oldest first. */
    latest(count: number) {
      for (;;) {
        const end = journal.head();
        const records = Array.from({ length: count }, (_, position) => journal.read((end - count + position) | 0));
        if (journal.has((end - count) | 0)) return records.filter(({ at }) => at > 0); // 0: never used
      }
    },
  };
  return journal;
}

type Outcome = 'value' | 'error' | 'valueOmitted' | 'answer' | 'expired' | 'withdrawn'; // the latter three: questions
type Journal = ReturnType<typeof openJournal>;
type JournalRecord = ReturnType<Journal['read']>;
type Question = JournalRecord & { ask: AskInfo };
type JournalMemory = ReturnType<typeof allocateJournal>;
type Journals = Record<keyof ThreadData['journals'], Journal>;

/** Allocates a journal. With 16 slots more than the queue needs, the latest 16 taken stay readable. */
function allocateJournal(leastSlots: number, idPrefix: string = '', textBytes: number = 8192) {
  const slots = 2 ** (32 - Math.clz32(leastSlots - 1));
  const resultBytes = 4096; // like textBytes, the room of each record, behind all records: unused ones cost no memory
  const memory = new SharedArrayBuffer(4 * 32 + slots * (4 * 16 + textBytes + resultBytes));
  return { memory, slots, textBytes, resultBytes, idPrefix };
}

function openJournals(memories: ThreadData['journals'], readClock: () => number): Journals {
  const journals = Object.entries(memories).map(([name, memory]) => [name, openJournal(memory, readClock)]);
  return Object.fromEntries(journals) as Journals;
}

// ───── Shared memory ─────────────────────────────────────────────────────────────────────────────────────────────
//
// Besides the journals, the two threads share one Int32Array.
//
// When HEAD counts a command, SEQUENCE wakes a host in nextCommandSync(), and a message wakes one that has SLEEPERS.
// The way back is NEWS: the host notifies it of each outcome, status and acknowledgement, and the thread then responds
// to the requests that waited for it. The host returns `shutdown` once RESPONDED counts it: an exit ends the thread.
//
// GET /api/status must report the present status, which only systemStatus() knows. SEQUENCE counts commands and sample
// requests. The host reads it, samples, and stores what it read in ACKNOWLEDGED: the sample is newer than all of these.

const CELL = {
  // Written by the server thread:
  SEQUENCE: 0,
  REQUESTED: 1, // SEQUENCE of the latest sample request
  CLOCK: 2, // counts quarters of a second
  RESPONDED: 3,
  // Written by both:
  NOTIFIED: 4, // 1 while a wake-up message is unread; the host resets it
  DETAIL: 5, // 1 while the thread requests a detail; the host resets it
  ACCEPTED: 6, // counts the commands of all journals
  LOST: 7, // how many lines the log lacks
  LOGGED: 8, // to 12: how many records of each source the log has
  LOGGED_STATUSES: 12, // 0 before it begins
  // Written by the host, from byte 64:
  SAMPLED: 16, // CLOCK at the latest sample
  ACKNOWLEDGED: 17,
  SLEEPERS: 18, // above 0 while a command must wake the host: a message costs as much as half a POST
  NEWS: 19,
} as const;

// The server thread runs THREAD_FUNCTIONS, which are sent to it as source text. It cannot load this file: in a bundle,
// that contains the host, which would run a second time. Hence three rules for these functions:
// - They are declarations, and use only each other (bundlers rename a function and its uses alike), their arguments
//   and globals. They contain no coverage counters: hence the `istanbul` comment.
// - Methods of object literals take the place of named functions and classes, which bundlers wrap in helpers.
// - They avoid what older targets compile to helpers, too: async functions, object spread, class fields.

/** What the thread receives from the host: checked options, lists and the shared memory. */
type ThreadData = ReturnType<typeof prepareThreadData>;

/** Removes control characters from a text that others will print, and truncates it. The result is well-formed. */
function tidy(text: string, maxLength: number = 200): string {
  const characters = Array.from(text.slice(0, 4 * maxLength).replace(/\p{Cc}/gu, ''));
  return Buffer.from(characters.slice(0, maxLength).join('')).toString();
}

/** Returns Date.now() when the clock was 0. The largest value: a delay between the two calls makes it less. */
function readClockOffset(readClock: () => number): number {
  return Math.max(...Array.from({ length: 9 }, () => Date.now() - readClock()));
}

/** The server thread's access to shared memory. `readClock` is that of openJournal(). */
function linkToHost(data: ThreadData, report: Report, readClock: () => number) {
  const { memory, cells, commandNames, statusNames, maxQueueSize, idPrefix, hasDetail } = data;
  const { waitAsync } = Atomics as any; // ES2024; many programs compile with an older `lib`
  const sampleMs = 9; // how long the host has to sample its status; timers are up to 1 ms early or late
  const detailMs = 250; // the same for a detail, which may take longer
  const freshMs = 1; // a sample this young is reused
  const freshDetailMs = 100; // a detail this young is reused
  const maxListed = 16;
  const journals = openJournals(data.journals, readClock);
  const { commands, own, posted, statuses, questions, details, declarations } = journals;
  const clockStart = performance.now() - 250 * Atomics.load(memory, cells.CLOCK); // continues that of a dead thread
  let waiting: Connection[] = [];
  let isWatching = false; // the next change of NEWS leads to settle()
  let sequence = Atomics.load(memory, cells.SEQUENCE); // the host writes it only once this thread has ended
  let requested = Atomics.load(memory, cells.REQUESTED);
  let requestedAt = -Infinity;
  let detailRequestedAt = -Infinity;
  const link = {
    report,
    log: null as ReturnType<typeof createLog> | null,
    accepts(): Declarations<string> { return JSON.parse(declarations.latest(1)[0]?.text as string); },
    /** Appends a command, unless its lane is full, and notes where. release() follows. */
    enqueue(connection: Connection, code: number, text: string, expires: number): boolean {
      const lane = code < commandNames.length ? commands : own;
      if (lane.waiting() >= maxQueueSize) return false;
      if (lane.head() % 8 === 0) link.settle(); // before a slot is reused
      const number = Atomics.add(memory, cells.ACCEPTED, 1) + 1;
      connection.lane = lane;
      connection.awaited = lane.append(code, Date.now(), text, number, expires, () => link.log?.write(undefined, lane));
      link.advanceSequence();
      return true;
    },

    /** Lets the host return a shutdown, and wakes it if it sleeps. */
    release(code: number): void {
      Atomics.store(memory, cells.RESPONDED, commands.head());
      if (commandNames[code] === 'shutdown') Atomics.notify(memory, cells.RESPONDED);
      if (Atomics.load(memory, cells.SLEEPERS) > 0) link.wakeHost();
    },

    /** Returns the questions that are still there, oldest first, or those whose present state is not in the log. */
    questions(isForLog: boolean = false): Question[] {
      return questions.all(isForLog).map((record) => {
        const ask: AskInfo = Object.assign({ id: record.id }, JSON.parse(record.text.split('\n').pop() as string));
        return Object.assign(record, { ask });
      }).sort((one, other) => (one.number - other.number) | 0);
    },
    /** Answers a question, unless it has ended. */
    answer(one: Question, text: string): boolean { return questions.complete(one.index, 'answer', text, one.number); },

    /** Returns the command that waits and is about to withdraw the questions: one of the host does so at once. */
    waitingStop(): string | undefined {
      const stops = statusNames[link.statusIndex()] === 'active' ? ['pause', 'shutdown'] : ['shutdown']; // not a save
      const waiting = commands.latest(commands.waiting()).filter(({ index }) => commands.expiredAfter(index) === 0);
      return waiting.map(({ code }) => commandNames[code] as string).find((command) => stops.includes(command));
    },

    isComplete({ lane, awaited }: Connection): boolean { return lane.isComplete(awaited); },
    outcome({ lane, awaited }: Connection): CommandInfo { return link.commandInfo(lane.read(awaited)); },

    /**
     * Calls back once the host has sampled its status, at most 9 ms after the sample request, or 250 for a detail.
     * Callers share a pending request, even one that has timed out, unless a command came after it.
     */
    whenSampled(connection: Connection, onEnd: (connection: Connection) => void, wantsDetail: boolean = false): void {
      const now = performance.now();
      const isDetailDue = wantsDetail && hasDetail && now - detailRequestedAt >= freshDetailMs;
      if (isDetailDue) {
        detailRequestedAt = now;
        Atomics.store(memory, cells.DETAIL, 1);
      }
      const limitMs = wantsDetail && Atomics.load(memory, cells.DETAIL) !== 0 ? detailMs : sampleMs;
      const isStale = isDetailDue || sequence !== requested; // the request precedes the latest command
      const age = now - requestedAt;
      const isSampled = link.isSampled({ awaited: requested });
      if (isStale || (isSampled && age >= freshMs)) link.requestSample(now);
      else if (isSampled || age >= limitMs) return onEnd(connection);
      connection.awaited = requested;
      link.wait(connection, link.isSampled, onEnd, requestedAt + limitMs);
      if (limitMs === detailMs) setTimeout(link.settle, requestedAt + detailMs - now);
    },

    /** Whether the awaited sample request is acknowledged. The sample may be as old as the request. */
    isSampled({ awaited }: Pick<Connection, 'awaited'>): boolean {
      return ((Atomics.load(memory, cells.ACKNOWLEDGED) - awaited) | 0) >= 0;
    },
    requestSample(now: number): void {
      link.advanceSequence();
      link.advanceClock();
      requestedAt = now;
      setTimeout(link.settle, sampleMs);
      requested = Atomics.store(memory, cells.REQUESTED, sequence);
      link.wakeHost();
    },
    advanceSequence(): void {
      sequence = (sequence + 1) | 0;
      Atomics.store(memory, cells.SEQUENCE, sequence);
      Atomics.notify(memory, cells.SEQUENCE); // for nextCommandSync()
    },
    /** Wakes the host, unless the previous message is unread: messages must not pile up while the host is busy. */
    wakeHost(): void { if (Atomics.exchange(memory, cells.NOTIFIED, 1) === 0) report(null); },

    /** Calls back when the connection is ready, or at its deadline: checked at each change and every 250 ms. */
    wait(connection: Connection, isReady: Connection['isReady'], onEnd: Connection['onEnd'], deadline: number): void {
      connection.isReady = isReady;
      connection.onEnd = onEnd;
      connection.deadline = deadline;
      waiting.push(connection);
      if (!isWatching) link.settle();
    },

    /** Ends the waits that are ready or past their deadlines, and watches NEWS for the others. */
    settle(): void {
      do {
        const news = Atomics.load(memory, cells.NEWS); // before the checks: what they miss ends the watch at once
        const now = performance.now();
        link.advanceClock();
        questions.expire(); // the host may be busy
        const candidates = waiting;
        waiting = [];
        for (const connection of candidates) {
          if (connection.isReady(connection) || now + 1 > connection.deadline) connection.onEnd(connection);
          else waiting.push(connection);
        }
        if (isWatching || waiting.length === 0) return;
        const watch = waitAsync(memory, cells.NEWS, news);
        isWatching = watch.async;
        if (isWatching) void (watch.value as Promise<string>).then(() => { isWatching = false; link.settle(); });
      } while (!isWatching);
    },
    /** Advances CLOCK by the time that has passed: the timers of a process that was stopped are late. */
    advanceClock(): number { return Atomics.store(memory, cells.CLOCK, (performance.now() - clockStart) / 250); },

    /** Returns an index into the list of statuses, or its length while systemStatus() fails. */
    statusIndex(): number { return statuses.codeOf(statuses.head() - 1); },
    /** Returns the age of the latest sample in quarters of a second. */
    age(): number { return (link.advanceClock() - Atomics.load(memory, cells.SAMPLED)) | 0; },
    /** To be read before info(): the host counts a change after it, so the tag may be older, but never newer. */
    infoTag(): string {
      const changes = [commands, own, posted, statuses, questions].reduce((sum, journal) => {
        return sum + journal.head() + journal.tail() + journal.ends();
      }, declarations.head()) >>> 0;
      return `"${idPrefix}-${changes}${link.log?.error === undefined ? '' : '-lost'}"`;
    },

    info(): object {
      const [status] = statuses.latest(1) as [JournalRecord];
      const asked = link.questions();
      const records: (JournalRecord | Question)[] = [commands, own, posted].flatMap((journal) => {
        return journal.latest(Math.max(maxListed, journal.waiting() + 1)); // from what runs on
      }).sort((one, other) => (one.number - other.number) | 0);
      const ended = asked.filter((one) => one.isComplete).sort((one, other) => one.ended - other.ended);
      for (const one of ended) records.splice(records.filter(({ started }) => started <= one.ended).length, 0, one);
      const blocking = [records.find((one) => one.isTaken && !one.isComplete), records.find((one) => !one.isTaken)];
      const listed = records.filter((one, index) => blocking.includes(one) || index >= records.length - maxListed);
      return Object.assign({}, data.about, {
        status: statusNames[status.code] ?? null,
        since: new Date(status.at).toISOString(), by: status.by, reason: status.reason,
        holds: JSON.parse(status.name as string), // the third line
        heardAt: new Date(Date.now() - 250 * link.age()).toISOString(),
        detail: JSON.parse(details.latest(1)[0]?.text ?? 'null'),
        accepts: link.accepts(),
        asks: asked.filter((one) => !one.isComplete).map(({ ask }) => ask),
        commands: listed.map(link.commandInfo),
        log: link.log === null ? undefined : { path: data.log, error: link.log.error },
      });
    },
    commandInfo(record: JournalRecord & { ask?: AskInfo }): CommandInfo {
      const { id, code, name = '', json, at, takenAt, seconds, isTaken, isComplete, error, value, ask } = record;
      const state = !isTaken ? 'waiting' : !isComplete ? 'running' : error === undefined ? 'done' : 'failed';
      return {
        id, command: commandNames[code] ?? name, message: ask?.message,
        arguments: json && (ask !== undefined || json.length <= 200) ? JSON.parse(json) : undefined,
        at: new Date(at).toISOString(), takenAt: state === 'running' ? new Date(takenAt).toISOString() : undefined,
        state, value: value && JSON.parse(value), valueOmitted: record.valueOmitted, error, seconds,
        by: record.by, reason: record.reason,
      };
    },
  };
  if (data.log !== undefined) link.log = createLog(data, journals, readClock, link);
  return link;
}

// ───── Log ───────────────────────────────────────────────────────────────────────────────────────────────────────
//
// The log is a file with a JSON object per line. The thread appends batches of lines: before the host can take a
// command, and every 250 ms. LOGGED counts what is in the file, so a new thread continues where a dead one has stopped:
// it may repeat lines, but omits no command and no answer. When the server closes, the host appends the rest.

function createLog(
  { log: path = '', about: { name, pid, version }, death, memory, cells, commandNames, statusNames }: ThreadData,
  { commands, own, posted, statuses, questions }: Journals, readClock: () => number,
  link: { report: Report; questions(isForLog: boolean): Question[]; commandInfo(record: JournalRecord): CommandInfo },
) {
  const fs = process.getBuiltinModule('node:fs');
  const folder = process.getBuiltinModule('node:path').dirname(path);
  const { O_APPEND, O_CREAT, O_NOFOLLOW, O_NONBLOCK, O_RDWR } = fs.constants; // Windows lacks two of them
  const flags = O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK; // a link fails, and a FIFO does not block
  const maxSize = 2 ** 22; // bytes
  const user = process.versions['deno'] === undefined ? process.geteuid?.() : undefined; // Deno would ask the user
  const log = {
    error: undefined as string | undefined, // of the latest batch
    start(): void {
      log.write(death === '' ? { event: 'start', version } : { event: 'thread', error: death });
      setInterval(log.write, 250);
    },

    fieldsOf(event: string, record: JournalRecord): object {
      if (event === 'outcome' || event === 'answer') return Object.assign({ event }, link.commandInfo(record));
      const { id, code, by, reason, name = '', json } = record;
      const command = commandNames[code] ?? name;
      if (event === 'command') return { event, id, command, arguments: json && JSON.parse(json), by, reason };
      const isLong = name.length > 4000; // the holds; a line has at most 16 KiB
      const holds = JSON.parse(name, (key, value) => (isLong && key === 'reason' ? undefined : value));
      return { event, status: statusNames[code] ?? null, by, reason, holds };
    },

    /** Appends what is not in the file yet, before it an event, and the command that the lane is about to append. */
    write(event?: object, lane?: Journal): void {
      const sources: [event: string, journal: Journal, end: number][] = [
        ['outcome', commands, commands.ends()], ['outcome', own, own.ends()], ['outcome', posted, posted.ends()],
        ['command', posted, posted.head()], ['status', statuses, statuses.head()], // as in LOGGED
      ];
      const news: [time: number, fields: object][] = [];
      let lost = Atomics.load(memory, cells.LOST);
      sources.forEach(([kind, journal, end], source) => {
        for (let index = Atomics.load(memory, cells.LOGGED + source); index !== end; index = (index + 1) | 0) {
          const record = journal.has(index) ? journal.read(index) : null;
          if (record === null || !journal.has(index)) lost += 1; // it is overwritten, perhaps while it was read
          else news.push([kind === 'outcome' ? record.ended : record.started, log.fieldsOf(kind, record)]);
        }
      });
      const asked = link.questions(true);
      for (const one of asked) {
        const ask = Object.assign({ event: 'ask' }, one.ask);
        if (one.logged === 0 || one.logged >> 3 !== one.word >> 3) news.push([one.started, ask]);
        if (one.isComplete) news.push([Math.max(one.started, one.ended), log.fieldsOf('answer', one)]); // two clocks
      }
      const command = lane?.read(lane.head());
      if (command !== undefined) news.push([command.started, log.fieldsOf('command', command)]);
      news.sort(([one], [other]) => one - other);
      const clock = readClockOffset(readClock); // one for the batch: it varies
      const [[time] = [Date.now() - clock]] = news;
      if (event !== undefined) news.unshift([time, event]);
      if (lost > 0) news.unshift([time, { event: 'lost', lines: lost, error: log.error ?? 'not written in time' }]);
      if (news.length === 0) return;
      const lines = news.map(([at, fields]) => {
        return `${JSON.stringify(Object.assign({ time: new Date(clock + at).toISOString(), name, pid }, fields))}\n`;
      });
      const before = log.error;
      let written = log.append(Buffer.from(lines.join('')));
      if (before === undefined && log.error !== undefined) link.report(`Cannot log: ${log.error}`);
      const left = lines.filter((line) => (written -= Buffer.byteLength(line)) < 0).length;
      Atomics.store(memory, cells.LOST, left === lines.length && lost > 0 ? lost + left - 1 : left);
      sources.forEach(([, , end], source) => Atomics.store(memory, cells.LOGGED + source, end));
      asked.forEach(questions.setLogged);
    },

    /** Returns how many bytes are written. Without any, checks the file. Its user may rename or truncate it. */
    append(bytes: Buffer): number {
      let written = 0;
      try {
        if (bytes.length === 0 && user !== undefined) {
          checkTrusted(folder);
          const isSticky = (fs.statSync(folder).mode & 0o022) > 0; // that does not protect a missing file
          if (isSticky) throw new Error(`others can write to '${folder}': put the log into a folder of your own`);
        }
        const file = fs.openSync(path, flags, 0o600);
        try {
          const stats = fs.fstatSync(file);
          const isOwn = user === undefined || stats.uid === user;
          if (!isOwn || !stats.isFile()) throw new Error(`'${path}' is not a file of this user`);
          const end = Buffer.from('\n');
          if (stats.size > 0) fs.readSync(file, end, 0, 1, stats.size - 1);
          if (end[0] !== 10) fs.writeSync(file, '\n'); // the last line is incomplete
          written = fs.writeSync(file, bytes);
          if (written < bytes.length) throw new Error(`'${path}' has no room for more`);
          if (bytes.length > 0 && stats.size > maxSize) underLock(path, stats.ino, user, () => {
            const present = fs.statSync(path, { throwIfNoEntry: false }); // another process may have renamed it
            if (present?.ino === stats.ino) fs.renameSync(path, `${path}.1`);
          });
        } finally {
          fs.closeSync(file);
        }
        log.error = undefined;
      } catch (error) {
        const { code, message } = error as NodeJS.ErrnoException;
        log.error = code === 'ELOOP' ? `'${path}' is a symbolic link` : message;
      }
      return written;
    },
  };
  return log;
}

/**
 * Calls back under a lock for a file with an inode: otherwise, the second of two processes would rename or remove the
 * successor of the file. Does nothing if another process holds the lock, or has left it behind. The lock is an empty
 * folder, and is removed as one, because others may put anything in its place.
 */
function underLock(path: string, ino: number, user: number | undefined, act: () => void): void {
  const { lstatSync, mkdirSync, rmdirSync } = process.getBuiltinModule('node:fs');
  const lock = `${path}.${ino}.lock`;
  const { uid = user, mtimeMs = Date.now() } = lstatSync(lock, { throwIfNoEntry: false }) ?? {};
  if (user !== undefined && uid !== user) throw new Error(`'${lock}' is in the way: it belongs to user ${uid}`);
  const age = Date.now() - mtimeMs; // below 0 if the clock was set back
  try {
    if (age > 1000 || age < -60_000) return rmdirSync(lock); // its process was killed
    mkdirSync(lock, 0o700);
    try { act(); } finally { rmdirSync(lock); } // it is gone if that took longer than 1 s
  } catch (error) {
    if (!/^(EEXIST|ENOENT)$/.test((error as NodeJS.ErrnoException).code ?? '')) throw error; // another one was faster
  }
}

type Link = ReturnType<typeof linkToHost>;
type PreparedResponse = ReturnType<typeof prepare>;
type RequestHead = ReturnType<typeof readHead>;

/** Prepares a response with the common headers and the given ones: alternating names and values. */
function prepare(statusCode: number, value: object | null, ...headers: string[]) {
  const body = value === null ? '' : JSON.stringify(value);
  const content = ['Content-Type', 'application/json', 'Content-Length', String(Buffer.byteLength(body))];
  const common = [
    'Cache-Control', 'no-store', 'Cross-Origin-Resource-Policy', 'same-origin', 'X-Content-Type-Options', 'nosniff',
  ];
  return { statusCode, headers: [...(value === null ? [] : content), ...common, ...headers], body };
}

// ───── Policy: who may use the API ───────────────────────────────────────────────────────────────────────────────
//
// Any web page in a browser on this machine can send requests to this server, and its author can point a domain name at
// 127.0.0.1 after the page has loaded (DNS rebinding). Such requests are recognized by the name in their Host field (an
// IP address cannot be rebound), or by Origin and Sec-Fetch-Site, which only browsers send.

/** Returns what the policy and the router need of a request. Node's headersDistinct is slow, and 20.19's may throw. */
function readHead({ url = '', rawHeaders }: IncomingMessage) {
  const fields: Record<string, string | undefined> = {}; // by lowercase name
  let hasDuplicate = false; // Node's `headers` has only the first of two Hosts
  for (let index = 0; index < rawHeaders.length; index += 2) {
    const name = (rawHeaders[index] as string).toLowerCase();
    const isList = /^(prefer|if-none-match)$/.test(name); // several lines are one (RFC 9110 §5.3)
    const isOne = /^(host|origin|sec-fetch-site|authorization|content-length|transfer-encoding)$/.test(name);
    if (!isList && !isOne) continue;
    const earlier = fields[name];
    hasDuplicate ||= isOne && earlier !== undefined;
    fields[name] = earlier === undefined ? rawHeaders[index + 1] : `${earlier},${rawHeaders[index + 1]}`;
  }
  const [, wait = ''] = /(?:^|,)[ \t]*wait[ \t]*=[ \t]*([^,;]*)/i.exec(fields['prefer'] ?? '') ?? [];
  const waitSeconds = /^\d+[ \t]*$/.test(wait) ? Math.min(Number(wait), 300) : 0; // the first (RFC 7240 §2)
  const [, authority = fields['host'], target = url] = /^https?:\/\/([^/?]*)(.*)$/i.exec(url) ?? []; // absolute
  const [, path = '', query = ''] = /^([^?]*)([^]*)$/.exec(target) ?? [];
  return { authority, path, query, fields, hasDuplicate, waitSeconds };
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
  const hostHint = 'use localhost or an IP address, or set the option allowedHosts';
  const tokenHint = 'set CONTROL_TOKEN_FILE or CONTROL_TOKEN, or the option token of WebApiClient';
  let allowedAuthority: string | undefined; // cached: most requests have the same
  /** Returns an error response if the request is malformed, could come from a web page, or lacks the token. */
  return ({ method, httpVersion }: IncomingMessage, head: RequestHead, isUnix: boolean): PreparedResponse | null => {
    const { authority, fields: { host: hostField, origin, 'sec-fetch-site': site, authorization = '' } } = head;
    if (head.hasDuplicate) return prepare(400, { error: 'Duplicate header field' });
    const needsHost = hostField === undefined && httpVersion !== '1.0'; // RFC 9112 §3.2
    if (needsHost) return prepare(400, { error: 'Missing Host header' });
    const isLocal = authority === undefined || authority === allowedAuthority || isUnix;
    const isForeign = !isLocal && !isAllowedHost(authority, [host, ...allowedHosts]);
    if (isForeign) return prepare(403, { error: `Host not allowed: ${hostHint}` });
    if (!isUnix) allowedAuthority = authority;
    const isTyped = site === 'none' && (method === 'GET' || method === 'HEAD'); // typed into the address bar
    const isWebPage = origin !== undefined || (site !== undefined && !isTyped);
    if (isWebPage) return prepare(403, { error: 'Requests from web pages are not allowed: use control-board' });
    if (token === undefined) return null;
    const { createHash, timingSafeEqual } = process.getBuiltinModule('node:crypto'); // slow to load, often not needed
    const given = /^Bearer +(\S+)$/i.exec(authorization)?.[1]; // RFC 6750 §2.1
    // The time that it takes to compare digests reveals nothing about the token.
    const [one, other] = [given ?? '', token].map((text) => createHash('sha256').update(text).digest());
    if (timingSafeEqual(one as Buffer, other as Buffer)) return null;
    const error = `${given === undefined ? 'Missing' : 'Wrong'} token: ${tokenHint}`;
    return prepare(401, { error }, 'WWW-Authenticate', 'Bearer');
  };
}

// ───── Arguments of own commands ─────────────────────────────────────────────────────────────────────────────────

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

// ───── Server thread ─────────────────────────────────────────────────────────────────────────────────────────────

/** What the thread reports to the host: a text is a warning, and `null` only wakes the host. */
type ThreadMessage =
  null | string | { type: 'listening'; port: number; isPublic: boolean } | ({ type: 'failed' } & Failure);
type Report = (message: ThreadMessage) => void;
type Failure = { message: string; code?: string | undefined }; // Node's, such as EADDRINUSE

/** A connection and its present request, which may have to wait until it is ready or until its deadline. */
interface Connection {
  readonly socket: Socket;
  readonly isUnix: boolean;
  isLast: boolean; // it takes no more requests
  idleSince: number; // in responses of the server
  response: ServerResponse | null; // from the end of a request until it is sent
  head: RequestHead;
  isRefused: boolean; // the response may precede the end of the request
  body: Buffer; // cut after the first byte that is too many for arguments
  waits: boolean; // with Prefer
  isInfo: boolean; // `/api/info` is requested, not the status
  awaited: number; // the index of a command in its lane, or SEQUENCE of a sample request
  lane: Journal;
  isReady: (connection: Connection) => boolean;
  onEnd: (connection: Connection) => void;
  deadline: number; // performance.now()
}

/**
 * The HTTP server. A connection has one request at a time: one that comes before the response to the previous one ends
 * the connection after that response (RFC 9112 §9.3.2: clients must expect it).
 */
function serve(data: ThreadData, link: Link) {
  const { commandNames, statusNames, maxConnections } = data;
  const { STATUS_CODES, createServer } = process.getBuiltinModule('node:http');
  const maxWaits = maxConnections - 16; // the others remain for requests that do not wait
  const graceMs = 1000; // for pending requests when the server closes
  const maxFields = 100; // of a header
  const maxBodySize = 65_536; // bytes
  const maxChunks = 100; // of a body in chunked coding
  const maxArguments = 4096; // bytes of JSON
  const clientErrors: Record<string, number> = {
    ERR_HTTP_REQUEST_TIMEOUT: 408, HPE_CHUNK_EXTENSIONS_OVERFLOW: 413, HPE_HEADER_OVERFLOW: 431,
  };
  const ok = prepare(200, { result: 'ok' });
  const statusTags = statusNames.map((status) => `"${status.replace(' ', '-')}"`);
  const statuses = statusNames.map((status, index) => prepare(200, { status }, 'ETag', statusTags[index] as string));
  const getOnly = prepare(405, { error: 'Invalid API method' }, 'Allow', 'GET, HEAD');
  const postOnly = prepare(405, { error: 'Invalid API method' }, 'Allow', 'POST');
  const internalError = prepare(500, { error: 'Internal server error' });
  const queueFull = prepare(503, { error: 'Command queue is full, try again later' });
  const refuse = createPolicy(data);
  const listeners: Server[] = []; // two for localhost, one for a Unix socket
  const connections: Map<Socket, Connection> = new Map();
  let responses = 0;
  let isClosing = false;
  const server = {
    createListener(isUnix: boolean): Server {
      const listener = createServer({
        maxHeaderSize: 8192, // bytes, including the request line
        headersTimeout: 5000, // milliseconds until the headers are complete
        requestTimeout: 10_000, // milliseconds until the request is complete
        connectionsCheckingInterval: 2000, // how often both limits are checked
        keepAliveTimeout: 15_000, // milliseconds until an idle connection closes
        requireHostHeader: false, // the policy checks it, responding in JSON
      }, server.onRequest);
      listener.maxHeadersCount = maxFields + 1; // Node drops most of the others, which could exhaust the heap
      Object.assign(listener, { httpAllowHalfOpen: true }); // clients like `nc -N` end their side before the response
      listener.on('connection', (socket) => server.onConnection(socket, isUnix));
      listener.on('checkExpectation', server.onRequest); // ignored, because Node's own 417 has no JSON body
      listener.on('connect', (_request, socket) => server.finish(socket as Socket, 501));
      listener.on('clientError', ({ code = '' }: NodeJS.ErrnoException, socket) => {
        server.finish(socket as Socket, clientErrors[code] ?? 400);
      });
      listeners.push(listener);
      return listener;
    },

    /** Ends all waits, closes idle connections at once and the others after their response, then ends the thread. */
    close(): void {
      isClosing = true;
      link.settle();
      const closed = listeners.map((listener) => new Promise((resolve) => listener.close(resolve)));
      void Promise.all(closed).then(() => process.exit());
      setTimeout(process.exit, graceMs);
      for (const connection of connections.values()) {
        if (connection.socket.bytesRead === 0) connection.socket.destroy(); // Node does not count it as idle
        server.endWait(connection);
      }
    },

    onConnection(socket: Socket, isUnix: boolean): void {
      const connection = { socket, isUnix, response: null, isLast: false, waits: false } as Connection;
      connection.idleSince = responses;
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

    /** Refuses a request at its head, or routes it once it is complete. */
    onRequest(request: IncomingMessage, response: ServerResponse): void {
      const { socket } = request;
      const connection = connections.get(socket);
      if (connection === undefined || connection.isLast) return;
      if (response.socket === null) return server.finish(socket); // the previous response is not sent
      if (request.httpVersionMajor !== 1) return server.finish(socket, 505); // Node accepts 0.9 and 2.0, too
      if (request.rawHeaders.length > 2 * maxFields) return server.finish(socket, 431); // RFC 6585 §5
      const head = readHead(request);
      const { 'content-length': length = '0', 'transfer-encoding': encoding } = head.fields;
      const size = encoding === undefined ? Number(length) : NaN;
      if (size > maxBodySize) return server.finish(socket, 413);
      const refusal = refuse(request, head, connection.isUnix);
      Object.assign(connection, { head, body: Buffer.alloc(0), isRefused: refusal !== null });
      if (size === 0 && refusal === null) return server.route(connection, response);
      let [received, chunks] = [0, 0]; // the body may be ignored, but must be complete and well-formed
      request.on('data', (chunk: Buffer) => {
        received += encoding !== undefined && (chunks += 1) > maxChunks ? Infinity : chunk.length;
        if (received > maxBodySize) return server.finish(socket, 413);
        connection.body = Buffer.concat([connection.body, chunk]).subarray(0, maxArguments + 1);
      });
      request.on('end', () => {
        connection.isRefused = false;
        const isWhole = request.complete && received <= maxBodySize && socket.writable;
        if (isWhole && refusal === null) server.route(connection, response);
      });
      if (refusal !== null) server.send(Object.assign(connection, { response }), refusal);
    },

    route(connection: Connection, response: ServerResponse): void {
      connection.response = response;
      const { req: { method } } = response;
      const { path } = connection.head;
      if (path === '/api/status' || path === '/api/info') {
        if (method !== 'GET' && method !== 'HEAD') return server.send(connection, getOnly);
        connection.isInfo = path === '/api/info';
        return link.whenSampled(connection, server.onSampled);
      }
      const name = path.startsWith('/api/') ? path.slice(5) : '';
      if (name === 'answer') return method === 'POST' ? server.answer(connection) : server.send(connection, postOnly);
      const code = commandNames.indexOf(name as ControlCommand);
      const declared = code === -1 ? new Map(Object.entries(link.accepts())) : null;
      const declaration = declared?.get(name);
      if (declared !== null && declaration === undefined) {
        const names = [...commandNames, ...declared.keys()].join(', ');
        const error = `Invalid API endpoint${declared.size === 0 ? '' : `: the commands are ${names}`}`;
        return server.send(connection, prepare(404, { error }));
      }
      if (method !== 'POST') return server.send(connection, postOnly);
      if (declaration === undefined) return server.enqueue(connection, code);
      const json = server.readArguments(connection, name, declaration.parameters ?? {}, maxArguments);
      if (typeof json !== 'string') server.send(connection, json);
      else server.enqueue(connection, commandNames.length, json === '{}' ? [name] : [name, json]);
    },

    /** Returns the arguments as JSON, with the defaults, or an error response. */
    readArguments({ body }: Connection, name: string, parameters: Parameters, most: number): string | PreparedResponse {
      const tooLarge = prepare(413, { error: `The arguments exceed ${most} bytes` });
      if (body.length > most) return tooLarge;
      try {
        const text = new TextDecoder('utf-8', { fatal: true }).decode(body) || '{}';
        const json = JSON.stringify(validate('', JSON.parse(text), parameters));
        return Buffer.byteLength(json) > most ? tooLarge : json;
      } catch (error) {
        const { message, parameter } = error as Error & { parameter?: string };
        return prepare(400, { error: `${name}: ${message}`, parameter });
      }
    },

    /** Answers a question. This does not use the queue: a program that waits for an answer takes no commands. */
    answer(connection: Connection): void {
      link.settle(); // a question may have expired
      const given = new URLSearchParams(connection.head.query);
      const [id = '', by = '', reason = ''] = ['id', 'by', 'reason'].map((name) => tidy(given.get(name) ?? ''));
      const asked = link.questions();
      const question = asked.find((one) => one.id === id);
      if (question === undefined) {
        const ids = asked.filter((one) => !one.isComplete).map((one) => one.id);
        const error = `There is no question ${id || 'without an id'}: open are ${ids.join(', ') || 'none'}`;
        return server.send(connection, prepare(404, { error }));
      }
      const stop = link.waitingStop();
      const end = question.error === 'expired' ? `${id} has expired` : question.error && `${id} was withdrawn`;
      const answered = question.isComplete ? `${question.by ?? 'somebody'} has answered ${id}` : undefined;
      const error = end ?? answered ?? (stop && `a ${stop} waits`);
      if (error !== undefined) return server.send(connection, prepare(409, { error }));
      const json = server.readArguments(connection, 'answer', question.ask.parameters, 2048);
      if (typeof json !== 'string') return server.send(connection, json);
      const isAnswered = link.answer(question, [by, reason, 'answer', json].join('\n'));
      if (!isAnswered) return server.answer(connection); // it has just ended
      link.log?.write();
      server.send(connection, ok);
      link.wakeHost(); // after the response: it may exit
    },

    enqueue(connection: Connection, code: number, declared: readonly string[] = []): void {
      let text = '';
      let expires = 0;
      const { query } = connection.head;
      if (query !== '' || declared.length > 0) { // most commands have neither, which saves a tenth of a POST
        const given = new URLSearchParams(query);
        const [by, reason, seconds = null, mine] = ['by', 'reason', 'expires', 'mine'].map((name) => given.get(name));
        expires = 1000 * Number(seconds ?? 0);
        const isInteger = seconds === null || (/^[1-9]\d{0,4}$/.test(seconds) && expires <= 86_400_000);
        if (!isInteger || !/^(true|false)$/.test(mine ?? 'false')) {
          const form = isInteger ? 'mine must be true or false' : 'expires must be an integer from 1 to 86400';
          const error = `${form}, got ${JSON.stringify(tidy((isInteger ? mine : seconds) ?? ''))}`;
          return server.send(connection, prepare(400, { error }));
        }
        const release = commandNames[code] === 'resume' && mine === 'true' ? ['mine'] : [];
        text = [tidy(by ?? ''), tidy(reason ?? ''), ...release, ...declared].join('\n');
      }
      if (!link.enqueue(connection, code, text, expires)) return server.send(connection, queueFull);
      if (server.mayWait(connection)) server.wait(connection, link.isComplete, server.sendOutcome);
      else server.send(connection, ok);
      link.release(code); // the response is in the kernel, unless a slow client holds it up
    },

    sendOutcome(connection: Connection): void {
      const { id, command, state, value, valueOmitted, error, seconds } = link.outcome(connection);
      if (state === 'failed') return server.send(connection, prepare(500, { error: `${command} failed: ${error}` }));
      const outcome = { result: 'ok', id, state, value, valueOmitted, seconds };
      server.send(connection, prepare(state === 'done' ? 200 : 202, outcome));
    },

    /** Sends the status or the information, or a 304 if the client knows the present tag. */
    onSampled(connection: Connection): void {
      const waits = !server.isNew(connection) && server.mayWait(connection);
      if (waits) server.wait(connection, server.isNew, server.sendIfNew);
      else server.sendIfNew(connection);
    },

    /** Returns whether If-None-Match, a list, does not name the present tag, which has quotes (RFC 9110 §13.1.2). */
    isNew(connection: Connection, tag: string | undefined = server.tagOf(connection)): boolean {
      const { 'if-none-match': known = '' } = connection.head.fields;
      return tag === undefined || !(known === '*' || known.includes(tag));
    },
    sendIfNew(connection: Connection): void {
      const tag = server.tagOf(connection);
      if (tag !== undefined && !server.isNew(connection, tag)) server.send(connection, prepare(304, null, 'ETag', tag));
      else if (connection.isInfo) link.whenSampled(connection, server.sendInfo, true);
      else server.sendStatus(connection);
    },
    tagOf({ isInfo }: Connection): string | undefined {
      return isInfo ? link.infoTag() : statusTags[link.statusIndex()];
    },

    sendStatus(connection: Connection): void {
      const status = statuses[link.statusIndex()];
      if (status === undefined) return server.send(connection, internalError); // systemStatus() fails
      const ageSeconds = Math.max(0, (link.age() - 1) >> 2); // the sample may be from the end of its quarter
      if (ageSeconds > 0) connection.response?.setHeader('Age', ageSeconds); // RFC 9111 §5.1
      server.send(connection, status);
    },
    sendInfo(connection: Connection): void {
      const tag = link.infoTag(); // first
      server.send(connection, prepare(200, link.info(), 'ETag', tag));
    },

    /** Returns whether the client asks to wait, and a place is free. */
    mayWait({ head: { waitSeconds } }: Connection): boolean {
      if (waitSeconds === 0 || isClosing) return false;
      return [...connections.values()].filter(({ waits }) => waits).length < maxWaits;
    },

    wait(connection: Connection, isReady: Connection['isReady'], onEnd: Connection['onEnd']): void {
      const { socket, isLast, response, head: { waitSeconds } } = connection;
      response?.setHeader('Preference-Applied', `wait=${waitSeconds}`); // RFC 7240 §3
      if (isReady(connection) || isLast || socket.readableEnded) return onEnd(connection);
      connection.waits = true;
      link.wait(connection, isReady, onEnd, performance.now() + waitSeconds * 1000);
    },
    endWait(connection: Connection): void {
      connection.deadline = 0;
      link.settle();
    },

    /** Sends every response except those of finish(). */
    send(connection: Connection, { statusCode, headers, body }: PreparedResponse): void {
      const { socket, response } = connection;
      connection.response = null;
      connection.waits = false;
      connection.idleSince = responses += 1;
      if (response === null || socket.destroyed) return; // the client is gone
      connection.isLast ||= isClosing;
      response.writeHead(statusCode, connection.isLast ? [...headers, 'Connection', 'close'] : headers);
      // A single chunk. end(body) would add an empty one, and two chunks need a slower system call.
      if (body !== '' && response.req.method !== 'HEAD') {
        response.cork();
        response.write(body);
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
        socket.end(isSilent ? '' : server.rejection(statusCode), () => socket.destroy());
      });
    },

    rejection(statusCode: number): string {
      const reason = STATUS_CODES[statusCode];
      const error = statusCode === 413 ? 'Content Too Large' : reason; // RFC 9110 §15.5.14; Node 20 has an older name
      const { headers, body } = prepare(statusCode, { error }, 'Date', new Date().toUTCString(), 'Connection', 'close');
      const lines = headers.map((text, index) => text + (index % 2 === 0 ? ': ' : '\r\n')).join('');
      return `HTTP/1.1 ${statusCode} ${reason}\r\n${lines}\r\n${body}`;
    },
  };
  return server;
}

/**
 * Throws if another user could replace a socket or its folder: everything on the path, links included, must
 * belong to this user or root, and nobody else may write to a folder, unless it has the sticky bit.
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

/** Listens at host and port, then at a Unix socket, as far as they are given. */
function listen(data: ThreadData, server: ReturnType<typeof serve>, { report, log }: Link) {
  const { host, port, socketPath = '', isInFolder } = data;
  const fs = process.getBuiltinModule('node:fs');
  const net = process.getBuiltinModule('node:net');
  const { dirname } = process.getBuiltinModule('node:path');
  // Node's listen('localhost') uses only the first address, but clients may try either.
  const addresses = host.toLowerCase() === 'localhost' ? ['127.0.0.1', '::1'] : [host];
  const listeners: Server[] = [];
  // The folder of a session goes at logout, and only root can make it again: the tools also look in the other one.
  const otherPath = socketPath.replace(/^\/run\/user\/(\d+)\/control\/(?=[^/]+$)/, '/tmp/control-$1/');
  let [path, privateFolder] = [socketPath, '']; // where the socket is, and where it is made
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
      const bound = listeners.map((one) => one.address() as AddressInfo); // none if Unix
      const isPublic = bound.some(({ address }) => !/^(::ffff:)?127\.|^::1$/.test(address));
      log?.start();
      data.about.port = bound[0]?.port;
      isListening = true;
      report({ type: 'listening', port: data.about.port ?? 0, isPublic });
    },

    /** Listens on all addresses, on the same port, and then at the socket. */
    start([address, ...others]: string[] = port === null ? [] : addresses, boundPort: number = port ?? 0): void {
      if (address === undefined) return listening.makeSocket();
      const tcp = server.createListener(false);
      tcp.on('error', (error: NodeJS.ErrnoException) => {
        const lacksFamily = error.code === 'EADDRNOTAVAIL' || error.code === 'EAFNOSUPPORT'; // no IPv4 or no IPv6
        if (!lacksFamily || others.length + listeners.length === 0) listening.fail(error);
        else listening.start(others, boundPort);
      });
      tcp.listen(boundPort, address, () => {
        listeners.push(tcp);
        listening.start(others, (tcp.address() as AddressInfo).port);
      });
    },

    // A socket is made in a private folder, so that nobody can connect before chmod. Then it is linked to its path,
    // which fails if there is something: of servers that start at once, one succeeds.

    makeSocket(): void {
      if (socketPath === '') return listening.succeed();
      listening.attempt(() => {
        const folder = dirname(path);
        if (isInFolder) checkTrusted(dirname(folder)); // before anything is made there
        if (isInFolder) fs.mkdirSync(folder, { mode: 0o700, recursive: true }); // it may exist
        checkTrusted(folder);
        privateFolder = fs.mkdtempSync(`${folder}/.`);
        unix = server.createListener(true).on('error', listening.failSocket);
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

    /** Removes the socket of a dead server, but neither that of a live one nor any other file. */
    makeWay(): void {
      const found = fs.lstatSync(path, { throwIfNoEntry: false });
      const message = `'${path}' is not a socket; the path of a folder ends in /`;
      if (found?.isSocket() === false) return listening.failSocket({ code: 'EEXIST', message });
      const probe = net.connect(path, () => {
        probe.destroy();
        listening.failSocket({ code: 'EADDRINUSE', message: `another server listens at '${path}'` });
      });
      probe.on('error', (error: NodeJS.ErrnoException) => listening.attempt(() => {
        if (error.code === 'ECONNREFUSED' && found !== undefined) underLock(path, found.ino, process.geteuid?.(), () => {
          if (listening.isSame(path, found)) fs.rmSync(path, { force: true }); // a client may have been faster
        });
        else if (error.code !== 'ENOENT') throw error; // ENOENT: a faster server has removed it
        setTimeout(listening.linkSocket, 10); // another one may have the lock
      }));
    },

    /** Makes a socket again that somebody has removed: it has no other name that could be linked. */
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
    /** Ends a first start; later, the socket is made a second later, perhaps in the other folder. */
    failSocket({ message, code }: Failure): void {
      if (!isListening && data.death === '') return listening.fail({ message, code });
      report(`Cannot serve at '${path}': ${message}`);
      listening.removeSocket();
      path = path === socketPath ? otherPath : socketPath;
      setTimeout(listening.makeSocket, 1000);
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
  // On Deno and Bun, each thread has a clock of its own. The skew is wrong if Date is set while the thread starts.
  const { bun, deno } = process.versions as Record<string, string | undefined>;
  const skew = bun ?? deno ? readClockOffset(() => performance.now()) - workerData.clockOffset : 0;
  const link = linkToHost(workerData, (message) => parentPort?.postMessage(message), () => performance.now() + skew);
  const server = serve(workerData, link);
  const listening = listen(workerData, server, link);
  process.on('uncaughtException', listening.fail);
  process.on('exit', listening.removeSocket);
  parentPort?.on('message', server.close);
  setInterval(link.settle, 250);
  setInterval(listening.keepSocket, 250);
  try { listening.start(); } catch (error: any) { listening.fail(error); } // Deno throws past uncaughtException
}

const THREAD_FUNCTIONS = [
  openJournal, openJournals, tidy, readClockOffset, linkToHost, createLog, underLock, prepare, readHead, isAllowedHost,
  createPolicy, validate, serve, checkTrusted, listen,
];

// ───── WebApiServer: the host's side ─────────────────────────────────────────────────────────────────────────────

/** Options of `WebApiServer`. */
export interface WebApiServerOptions<Name extends string = never> {
  /**
   * Returns the status, synchronously and fast, on the host's thread: at the start, by `publish()`, at each look for
   * commands, after each change of `holds`, and when a client asks. While it fails, clients get a 500.
   */
  systemStatus: () => SystemStatus;
  /** Name of the system in `/api/info`, truncated to 200 characters. Default: the script's, without its extension. */
  name?: string | undefined;
  /**
   * Returns what the program is doing, for `/api/info`: a value whose JSON has at most 4 KiB. Called on the host's
   * thread when a client asks, at most ten times a second. If it fails, clients get null.
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
   * Path of a Unix socket to listen on, at most 94 bytes, which only this user can open; without `host` and `port`, on
   * nothing else. It replaces the socket of a dead server. A path that ends in `/` is a folder, made if its parent
   * exists, for NAME-PID.sock: NAME is `name`, truncated to 32 characters, `_` for all but ASCII letters, digits, `.-`.
   */
  socketPath?: string | undefined;
  /** Token that clients must send, unencrypted (RFC 6750 §2.1): 16 to 1024 visible ASCII characters. Default: none. */
  token?: string | undefined;
  /** Names, besides `host` and localhost, that clients may use for the server: see `isAllowedHost()`. */
  allowedHosts?: readonly string[] | undefined;
  /** Maximum number of connections, from 1 to 65536. An additional one replaces the longest idle one. Default: 64. */
  maxConnections?: number | undefined;
  /**
   * Path of a file that is created for this user only, for a JSON object per line: commands with their arguments,
   * outcomes, statuses, starts and ends. Above 4 MiB, it is renamed to `….1`. If it cannot be opened, or others could
   * replace it, the start fails; later errors are warnings. Default: none.
   */
  log?: string | undefined;
  /** The saved cause of the first status, or holds of the pause, oldest first. Default: none, and `since` is now. */
  cause?: StatusCause | readonly StatusCause[] | undefined;
}

/**
 * A command in the list of `/api/info`: `at` is when it was accepted, `seconds` the time from then to its outcome. A
 * question that has ended is the command `answer`: done, or failed with the error `expired` or `withdrawn`.
 */
export interface CommandInfo extends Omit<CommandRequest<string>, 'arguments'> {
  message?: string | undefined; // of a question
  arguments?: Record<string, unknown> | undefined; // of an answer, or if their JSON has at most 200 characters
  at: string;
  takenAt?: string | undefined; // while it runs
  state: 'waiting' | 'running' | 'done' | 'failed';
  value?: unknown;
  valueOmitted?: string | undefined; // why `value` is missing
  error?: string | undefined;
  seconds?: number | undefined;
}

/** An open question in `/api/info`, to be answered by `POST /api/answer` with its id. Times are in ISO 8601. */
export interface AskInfo {
  id: string;
  message: string;
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
  port?: number | undefined; // absent if the server listens only at a Unix socket; from version 0.20 on
  startedAt: string;
  version: string; // of control.ts
  status: string | null;
  since: string;
  heardAt: string; // when the program last looked for commands or had a turn, to a quarter of a second
  detail: unknown; // what `describe()` returned
  accepts?: Record<string, CommandDeclaration> | undefined; // own commands; from version 0.9 on
  asks?: AskInfo[] | undefined; // the open questions, oldest first; from version 0.18 on
  commands: CommandInfo[]; // the latest 16, oldest first; before them what runs, and what has waited longest
  holds?: StatusCause[] | undefined; // who wants the pause, oldest first; from version 0.16 on
  log?: { path: string; error?: string | undefined } | undefined; // from version 0.17 on
}

/** Who caused a status or holds a pause, why, and since when: what a program saves to continue as it was. */
export type StatusCause = Partial<Pick<SystemInfo, 'by' | 'reason' | 'since'>>;

/** Where a server listens: `localhost` and 0 if only at a Unix socket. The path of the socket is absolute. */
export interface WebApiAddress {
  host: string;
  port: number;
  socketPath?: string | undefined;
}

/** Thrown if the queue is empty; by `nextCommand()` and `nextCommandSync()` only if nothing can put commands on it. */
export class EmptyError extends Error { override readonly name = 'EmptyError'; }

/** Checks the options, applies the defaults and allocates the shared memory. */
function prepareThreadData(options: WebApiServerOptions<string>) {
  checkOptions('WebApiServer', options, SERVER_OPTIONS);
  const {
    systemStatus, describe, name = parsePath(process.argv[1] ?? process.execPath).name, host = DEFAULT_HOST,
    port = DEFAULT_PORT, maxQueueSize = DEFAULT_MAX_QUEUE_SIZE, autoReport = true, token, allowedHosts = [],
    maxConnections = 64, cause = [], log,
  } = options;
  check('systemStatus', systemStatus, 'function', 'a function');
  if (describe !== undefined) check('describe', describe, 'function', 'a function');
  check('name', name, 'string', 'a string');
  checkHost('host', host);
  checkInteger('port', port, 0, 65_535);
  checkInteger('maxQueueSize', maxQueueSize, 1, 1000);
  check('autoReport', autoReport, 'boolean', 'a boolean');
  checkInteger('maxConnections', maxConnections, 1, 65_536);
  checkToken(token);
  if (log !== undefined) check('log', log, 'string', 'the path of a file', /^[^\0]*[^\0/]$/.test(log));
  for (const one of [cause].flat()) checkOptions('cause', one, ['by', 'reason', 'since']);
  const causes = [cause].flat().map(checkCause);
  if (!Array.isArray(allowedHosts)) throw new TypeError(`allowedHosts must be an array, got ${inspect(allowedHosts)}`);
  const [form, isName] = ["like 'box.lan', '.lan' or '*'", /^(\*|\.?[\w-]+(\.[\w-]+)*)$/];
  for (const entry of allowedHosts) check('each of allowedHosts', entry, 'string', form, isName.test(entry));
  const idPrefix = (36 ** 3 + Math.floor(Math.random() * 36 ** 3)).toString(36).slice(1); // three letters or digits
  const isNetwork = options.socketPath === undefined || (options.host ?? options.port) !== undefined;
  const socketName = `${name.replace(/[^\w.-]/g, '_').slice(0, 32)}-${process.pid}.sock`;
  return {
    memory: new Int32Array(new SharedArrayBuffer(128)), cells: CELL, statusNames: STATUS_NAMES, commandNames: COMMANDS,
    idPrefix, journals: {
      commands: allocateJournal(maxQueueSize + 16, `${idPrefix}-`), // the lane of the four commands
      own: allocateJournal(maxQueueSize + 16, `${idPrefix}-`), // the lane of own commands
      posted: allocateJournal(maxQueueSize + 16, `${idPrefix}-i`), // commands of the host itself
      statuses: allocateJournal(128, '', 32_768), // they come in bursts, with 16 holds: at most 28 KiB
      questions: allocateJournal(128, `${idPrefix}-q`), // 16 are open; the log takes what has ended every 250 ms
      details: allocateJournal(16),
      declarations: allocateJournal(16), // of own commands
    },
    clockOffset: 0, // of the host, when the thread starts
    death: '', // of the previous thread
    log: log === undefined ? undefined : resolvePath(log),
    hasDetail: describe !== undefined,
    first: { ...causes[0] ?? checkCause({}), code: -1, holds: causes.reduce<readonly Hold[]>(addHold, []) },
    about: {
      name: tidy(name), pid: process.pid,
      host: process.versions['deno'] === undefined ? hostname() : '', // Deno would ask the user for permission
      port: undefined as number | undefined, // once the thread listens
      startedAt: new Date(performance.timeOrigin).toISOString(), version: VERSION,
    },
    host, port: isNetwork ? port : null, token, allowedHosts: [...allowedHosts], maxQueueSize, maxConnections,
    socketPath: resolveSocketPath(options.socketPath, socketName),
    isInFolder: options.socketPath?.endsWith('/') === true,
  };
}

/** A command in a journal. */
type Place = { journal: Journal; index: number };
/** One that a poll has found: first at `since`, by readClock(). */
type Found = Place & { since: number };
/** A status, its cause, and the holds of the pause. */
type Published = Hold & { code: number; holds: readonly Hold[] };
type Hold = StatusCause & { since: string };
/** A command that was taken, and what was published before. */
type Taken = Place & { before: Published };

/**
 * The web API of a running system. It runs in its own thread, so it responds and accepts commands whatever the host's
 * thread is doing. Every command whose response is `ok` is delivered exactly once, unless it expires or the program
 * ends, and in order: the four commands, and own commands, each in the order of their acceptance. So are both together,
 * except while a `pause` or a `shutdown` waits: then the four commands that wait go first.
 */
export class WebApiServer<Name extends string = never> {
  readonly #options: WebApiServerOptions<string>;
  readonly #data: ThreadData;
  readonly #memory: Int32Array;
  readonly #journals: Journals;
  readonly #asked: Set<(end?: Outcome, reason?: unknown) => void> = new Set(); // settle open questions
  #state: 'idle' | 'starting' | 'running' | 'closed' = 'idle';
  #worker: Worker | null = null;
  #closed: Promise<void> | null = null;
  #restartTimer: NodeJS.Timeout | undefined;
  #published: Published; // the latest record of the statuses; its code is -1 before there is one
  #taken: Taken | null = null; // the command taken last
  #running: Taken | null = null; // the same, until it is completed
  #isSampling = false; // systemStatus() or describe() runs
  #seen = 0; // SEQUENCE when the queue was last found empty
  #found: Found | null = null; // by the latest poll
  #interrupt: AbortController | null = null; // of `signal`
  readonly #events: EventEmitter = new EventEmitter().setMaxListeners(0); // 'command' wakes nextCommand()
  readonly #warned: Set<string> = new Set();

  constructor(options: WebApiServerOptions<Name>) {
    this.#data = prepareThreadData(options);
    this.#options = { ...options };
    this.#memory = this.#data.memory;
    this.#published = this.#data.first;
    this.#journals = openJournals(this.#data.journals, readClock);
    const { commands = {} } = options;
    this.#journals.declarations.append(0, Date.now(), checkCommands(commands));
  }

  /** A copy of the declarations. They can be replaced while the server runs; the queue keeps what it has accepted. */
  get commands(): Declarations<Name> { return JSON.parse(this.#journals.declarations.latest(1)[0]?.text as string); }
  set commands(commands: Declarations<Name>) {
    this.#journals.declarations.append(0, Date.now(), checkCommands(commands));
    this.#wakeThread();
  }

  /**
   * Starts the server, which does not keep the process alive, and returns the address for clients. Its thread starts at
   * once, even if the host does not yield. If it dies, a new one takes over with the same address, queue and history,
   * after a second and once the host yields. `close()` during the start resolves the promise.
   *
   * @throws {Error} If the server is running or was closed, or if it cannot listen (`code` is Node's: EADDRINUSE,
   *   EADDRNOTAVAIL, EACCES, ENOTFOUND, …) or open its log. In the latter cases it can be started again.
   */
  async runInBackground(): Promise<WebApiAddress> {
    if (this.#state === 'closed') throw new Error('Cannot start the server: it was closed');
    if (this.#state !== 'idle') throw new Error('Cannot start the server: it is already running');
    this.#state = 'starting';
    this.#publish();
    const { host: boundHost, socketPath } = this.#data;
    const host = boundHost === '0.0.0.0' || boundHost === '::' ? DEFAULT_HOST : boundHost;
    try {
      await this.#startThread();
    } catch (error) {
      const { code, message } = error as Failure;
      if (this.#state === 'starting') this.#state = 'idle';
      throw Object.assign(new Error(`Cannot serve at ${placeOf(this.#data)}: ${message}`), { code });
    }
    return { host, port: this.#data.port ?? 0, ...socketPath !== undefined && { socketPath } };
  }

  /** Shows clients the status at once, as each look for commands does: for a host that changes it and then blocks. */
  publish(): void {
    const sequence = Atomics.load(this.#memory, CELL.SEQUENCE); // before the sample
    this.#publish();
    // A client that has sent a command and then asks for the status must see its effect.
    if (!this.#isSampling && this.#look() === null) this.#acknowledge(sequence);
  }

  /** Who wants the pause, oldest first: each sender once; the 16th stands for all others. Empty while active. */
  get holds(): StatusCause[] { return JSON.parse(JSON.stringify(this.#published.holds)); }

  /** Returns whether the queue holds commands. Never waits, and is cheap enough for the tightest loop. */
  hasCommands(): boolean {
    if (this.#isSampling) return false;
    // A plain read, because Atomics.load() takes longer than all the rest. A later poll corrects a stale value.
    if (this.#memory[CELL.SEQUENCE] === this.#seen) {
      this.#publish();
      return false;
    }
    const sequence = Atomics.load(this.#memory, CELL.SEQUENCE); // before the sample
    this.#publish();
    if (this.#options.autoReport !== false) this.#complete({});
    const next = this.#poll();
    if (next === null) this.#seen = sequence; // first, because describe() may call post()
    // A host that finds a command is sampled once it has taken that, or left it waiting for a quarter of a second.
    if (next === null || readClock() - next.since > 250) this.#acknowledge(sequence);
    return next !== null;
  }

  /** Returns whether one of these commands waits to be delivered: by default, any but own commands. Never waits. */
  hasWaiting(commands: readonly ControlCommand[] = COMMANDS): boolean { return this.#find(commands) !== undefined; }

  /**
   * Takes the next command from the queue. Never waits, except until the response to a `shutdown` is written: usually
   * less than a millisecond, at most 200. The command is done when the host looks for the next one or calls `report()`.
   *
   * @throws {EmptyError} If the queue is empty.
   */
  receiveCommand(): ControlCommand | Name {
    this.#publish(); // while the previous command is known to be the cause of a new status
    this.#complete({});
    this.#interruptStep();
    const { journal } = this.#look() ?? {};
    if (journal === undefined) throw new EmptyError('The command queue is empty');
    this.#taken = this.#running = { journal, index: journal.take(), before: this.#published };
    this.#found = null;
    this.#seen = (this.#seen - 1) | 0; // so that the next look completes it, even if SEQUENCE does not count it yet
    this.#wakeThread();
    const { command } = this.request as CommandRequest<Name>;
    const responded = Atomics.load(this.#memory, CELL.RESPONDED);
    const isResponding = journal === this.#journals.commands && ((responded - journal.tail()) | 0) < 0;
    if (command === 'shutdown' && isResponding) Atomics.wait(this.#memory, CELL.RESPONDED, responded, RESPONSE_MS);
    return command;
  }

  /** The command taken last, its arguments, who sent it and why; null before the first. */
  get request(): CommandRequest<Name> | null {
    if (this.#taken === null) return null;
    const { id, code, name, json = '{}', by, reason } = this.#taken.journal.read(this.#taken.index);
    return { command: COMMANDS[code] ?? name as Name, id, arguments: JSON.parse(json), by, reason };
  }

  /**
   * Waits for the next command and takes it from the queue, for a host that sleeps while paused. Uses no CPU, and keeps
   * the process alive. The signal cancels the wait: the promise rejects with its reason, and no command is lost.
   *
   * @throws {EmptyError} If the queue is empty and the server is closed, or was never started and nothing was posted.
   */
  async nextCommand({ signal }: { signal?: AbortSignal | undefined } = {}): Promise<ControlCommand | Name> {
    for (;;) {
      signal?.throwIfAborted();
      if (this.#poll() !== null || this.hasCommands()) return this.receiveCommand();
      this.#checkOpen();
      const keepAlive = startInterval(() => {}, 2 ** 30);
      Atomics.add(this.#memory, CELL.SLEEPERS, 1); // before the check, so that any later command wakes the host
      if (this.#look() === null) await once(this.#events, 'command', { signal }).catch(() => {}); // cancelled
      Atomics.sub(this.#memory, CELL.SLEEPERS, 1);
      endTimer(keepAlive);
    }
  }

  /**
   * Like `nextCommand()`, but blocks the thread, for a host that never yields. Clients still get the status and the
   * detail, but no timer and no signal handler runs, and a server thread that has died is not replaced. Returns null if
   * no command comes within the timeout, in milliseconds. Default: without limit.
   *
   * @throws {EmptyError} As `nextCommand()`.
   */
  nextCommandSync(options: { timeout?: number | undefined } = {}): ControlCommand | Name | null {
    checkOptions('nextCommandSync', options, ['timeout']);
    const { timeout = Infinity } = options;
    check('timeout', timeout, 'number', 'a number of milliseconds from 0', timeout >= 0);
    const deadline = readClock() + timeout;
    for (let remaining = timeout; ;) {
      const sequence = Atomics.load(this.#memory, CELL.SEQUENCE);
      if (this.#poll() !== null || this.hasCommands()) return this.receiveCommand();
      this.#checkOpen(true);
      if (remaining <= 0) return null;
      const end = Atomics.wait(this.#memory, CELL.SEQUENCE, sequence, remaining);
      remaining = end === 'timed-out' ? 0 : deadline - readClock();
    }
  }

  /**
   * Aborts when a command waits that ends the present work: a `pause` while the status is active, or a `shutdown`. So a
   * long asynchronous step can end early. The reason is an AbortError that names the command. Once that command is
   * taken, a new signal takes its place. Does not keep the process alive.
   */
  get signal(): AbortSignal {
    this.#publish(); // the status may have changed since the latest poll
    if (this.#interrupt === null) Atomics.add(this.#memory, CELL.SLEEPERS, 1); // each command wakes the host
    if (this.#interrupt?.signal.aborted !== false) this.#interrupt = new AbortController();
    this.#interruptStep();
    return this.#interrupt.signal;
  }

  /**
   * Asks whoever controls the program; the first answer counts. Line breaks in the message become spaces. An open
   * question keeps the process alive. A rejection need not be handled: it is a TimeoutError if the question expires, or
   * an AbortError if a command ends the present work: what aborts `signal`, or a `save-state`. `close()` ends it, too.
   *
   * @throws {Error} If 16 questions are open, or the server is not running.
   */
  ask<const Types = { approved: 'boolean' }>(message: string, options: AskOptions<Types> = {}): Promise<Answer<Types>> {
    checkOptions('ask', options, ['parameters', 'timeout', 'signal']);
    const { parameters = { approved: { type: 'boolean' } }, timeout, signal } = options;
    const at = Date.now();
    const text = `\n\nanswer\n\n${checkQuestion(message, parameters, timeout, at)}`; // without arguments
    const isSignal = signal === undefined || 'addEventListener' in Object(signal);
    if (!isSignal) throw new TypeError(`signal must be an AbortSignal, got ${inspect(signal)}`);
    if (this.#state !== 'running') throw new Error('Cannot ask: the server is not running');
    const { questions } = this.#journals;
    while (!questions.isComplete(questions.head())) questions.skip();
    for (const settle of this.#asked) settle(); // then, because the question in this slot may just have ended
    if (this.#asked.size === 16) throw new Error('Cannot ask: 16 questions are open');
    const number = Atomics.add(this.#memory, CELL.ACCEPTED, 1) + 1;
    const index = questions.append(COMMANDS.length, at, text, number, timeout);
    const answer = new Promise<Answer<Types>>((resolve, reject) => {
      const settle = (end?: Outcome, reason?: unknown): void => {
        if (end !== undefined) questions.complete(index, end, '');
        if (!questions.isComplete(index)) return;
        const { json, by, reason: why, error } = questions.read(index);
        this.#asked.delete(settle);
        Atomics.sub(this.#memory, CELL.SLEEPERS, 1);
        endTimer(timer);
        signal?.removeEventListener('abort', abort);
        this.#wakeThread();
        if (error === undefined) resolve({ arguments: JSON.parse(json as string), by, reason: why });
        else if (error === 'expired') reject(new DOMException(`expired: ${message}`, 'TimeoutError'));
        else reject(reason ?? new DOMException('The question was withdrawn', 'AbortError'));
      };
      const abort = (): void => settle('withdrawn', signal?.reason);
      const timer = timeout === undefined ? startInterval(settle, 2 ** 30) : startTimer(settle, timeout, 'expired');
      signal?.addEventListener('abort', abort);
      this.#asked.add(settle);
      Atomics.add(this.#memory, CELL.SLEEPERS, 1);
      if (signal?.aborted === true) abort();
    });
    answer.catch(() => {});
    this.#wakeThread();
    this.#interruptStep(); // by a command that waits already
    return answer;
  }

  /** Withdraws all open questions, as at the end of a step. Default reason: an AbortError. */
  withdraw(reason?: unknown): void { for (const settle of this.#asked) settle('withdrawn', reason); }

  /** Completes the command taken last, and reports its outcome. A no-op if it is completed. */
  report(outcome: CommandOutcome = {}): void {
    checkOptions('report', outcome, ['value', 'error']);
    this.#publish(); // while the command is known to be the cause of a new status
    this.#complete(outcome);
  }

  /**
   * Puts a command of the program itself on the queue, ahead of those of clients, also without a server. By default,
   * `by` is `itself`; texts are truncated to 200 characters. Returns false if `maxQueueSize` such commands wait.
   */
  post(command: ControlCommand, options: Pick<CommandRequest, 'by' | 'reason'> = {}): boolean {
    const code = COMMANDS.indexOf(command);
    if (code === -1) throw new TypeError(`command must be one of ${COMMANDS.join(', ')}, got ${inspect(command)}`);
    checkOptions('post', options, ['by', 'reason']);
    const { by, reason } = checkCause({ by: options.by ?? 'itself', reason: options.reason });
    if (this.#journals.posted.waiting() >= this.#data.maxQueueSize) return false;
    const number = Atomics.add(this.#memory, CELL.ACCEPTED, 1) + 1;
    this.#journals.posted.append(code, Date.now(), [by, reason].join('\n'), number);
    this.#seen = (this.#seen - 1) | 0; // so that the next poll looks for commands
    this.#wakeThread();
    this.#onCommand();
    return true;
  }

  /**
   * Stops the server. It completes the command taken last, accepts no more connections, responds to pending requests,
   * and closes the remaining connections after one second. The promise resolves when the port is free and the thread
   * has ended. Commands on the queue can still be received. Further calls are no-ops.
   */
  close(): Promise<void> { return (this.#closed ??= this.#stopThread()); }

  #complete(outcome: CommandOutcome): void {
    if (this.#running === null) return;
    const { journal, index } = this.#running;
    this.#running = null; // first, because the value may call report()
    const isDone = !('error' in outcome);
    const command = COMMANDS[journal.codeOf(index)];
    if (command === 'pause' && isDone && STATUSES[this.#published.code] !== ACTIVE) {
      const { by = SOMEBODY, reason } = journal.read(index);
      const holds = addHold(this.#published.holds, { by, reason });
      if (holds !== this.#published.holds) this.#setHolds(holds); // a flood of pauses costs little
    }
    try {
      const isRelease = command === 'resume' && journal.read(index).name === 'mine';
      const value = isRelease ? { released: true } : outcome.value;
      if (isDone) journal.complete(index, 'value', encode(typeof value === 'string' ? tidy(value, 1000) : value));
      else journal.complete(index, 'error', tidy(describeError(outcome.error), 1000));
    } catch (failure) { // a command whose value cannot be sent is done nevertheless
      journal.complete(index, isDone ? 'valueOmitted' : 'error', tidy(describeError(failure)) || 'Error');
    }
    const { own } = this.#journals;
    while (command === 'shutdown' && isDone && own.waiting() > 0) {
      own.complete(own.take(), 'error', 'the program has shut down');
    }
    this.#seen = (this.#seen - 1) | 0; // the next look may settle what this one kept from being settled
    this.#events.emit('command');
    this.#wakeThread();
  }

  /** Yields the commands that wait, in the order in which they are taken: see the class. */
  *#waiting(): Generator<Place> {
    const { commands, own, posted } = this.#journals;
    for (let index = posted.tail(); index !== posted.head(); index = (index + 1) | 0) yield { journal: posted, index };
    let [index, end, ownIndex, ownEnd] = [commands.tail(), 0, own.tail(), 0];
    do [end, ownEnd] = [commands.head(), own.head()]; while (end !== commands.head()); // both of one moment
    const isStop = (at: number): boolean => /^(pause|shutdown)$/.test(COMMANDS[commands.codeOf(at)] ?? '');
    let urgent = ownIndex === ownEnd ? 0 : (end - index) | 0; // how many of the four go first: up to the last stop
    while (urgent > 0 && !(isStop(index + urgent - 1) && commands.expiredAfter(index + urgent - 1) === 0)) urgent -= 1;
    while (index !== end || ownIndex !== ownEnd) {
      const isFirst = urgent > 0 || ((commands.numberOf(index) - own.numberOf(ownIndex)) | 0) < 0;
      const [journal, next] = ownIndex === ownEnd || (index !== end && isFirst) ? [commands, index] : [own, ownIndex];
      yield { journal, index: next };
      if (journal === own) ownIndex = (ownIndex + 1) | 0;
      else [index, urgent] = [(index + 1) | 0, urgent - 1];
    }
  }

  /**
   * Returns whether a command that waits is to be delivered: unless it has expired, or releases a hold while others
   * hold the pause. While a command runs, this decides as if that had succeeded.
   */
  #isDue({ journal, index }: Place): boolean {
    if (journal === this.#found?.journal && index === this.#found?.index) return true;
    const running = this.#running === null ? null : this.request;
    if (journal.expiredAfter(index) > 0) return false;
    if (journal === this.#journals.own && running?.command === 'shutdown') return false;
    const { name, by = SOMEBODY } = COMMANDS[journal.codeOf(index)] === 'resume' ? journal.read(index) : {};
    const added = running?.command === 'pause' ? [{ by: running.by ?? SOMEBODY }] : [];
    const holders = running?.command === 'resume' ? [] : [...this.#published.holds, ...added];
    return name !== 'mine' || (holders.length > 0 && holders.every((hold) => hold.by === by));
  }

  /** The one look at the queue: returns what the host takes next, or null. While a command runs, it settles nothing. */
  #look(): Place | null {
    if (this.#isSampling) return null;
    for (let places = this.#waiting(); ;) {
      const place = places.next().value;
      if (place === undefined || this.#isDue(place)) return place ?? null;
      if (this.#running !== null) continue;
      this.#settle(place);
      places = this.#waiting(); // anew, because systemStatus(), which #setHolds() calls, may post a command
    }
  }

  /** Takes and completes a command that is never delivered. */
  #settle({ journal, index }: Place): void {
    journal.take();
    const expiredAfter = journal.expiredAfter(index);
    const { by = SOMEBODY } = journal.read(index);
    const { holds } = this.#published;
    const left = expiredAfter > 0 ? holds : holds.filter((hold) => hold.by !== by);
    if (left.length < holds.length) this.#setHolds(left);
    if (expiredAfter > 0) journal.complete(index, 'error', `expired after ${expiredAfter / 1000} s`);
    else journal.complete(index, 'value', JSON.stringify({ released: left.length < holds.length }));
    this.#wakeThread();
  }

  /** Looks anew. What this returns does not expire before the next poll or take. */
  #poll(): Found | null {
    const before = this.#found;
    this.#found = null;
    const next = this.#look();
    if (next === null) return null;
    const { journal, index } = next; // a spread of it takes 2 µs
    const isSame = journal === before?.journal && index === before.index;
    return (this.#found = { journal, index, since: isSame ? before.since : readClock() });
  }

  /** Finds the first of these commands that waits to be delivered. */
  #find(commands: readonly ControlCommand[]): Place | undefined {
    for (const place of this.#waiting()) {
      const command = COMMANDS[place.journal.codeOf(place.index)];
      if (command !== undefined && commands.includes(command) && this.#isDue(place)) return place;
    }
    return undefined;
  }

  /** Lets a waiting command that ends the present work abort `signal`, withdraw the questions, and never expire. */
  #interruptStep(): void {
    const isAborted = this.#interrupt?.signal.aborted !== false;
    if (isAborted && this.#asked.size === 0) return;
    const stops: ControlCommand[] = STATUSES[this.#published.code] === ACTIVE ? ['pause', 'shutdown'] : ['shutdown'];
    const place = this.#find(stops) ?? (this.#asked.size > 0 ? this.#find(['save-state']) : undefined);
    if (place === undefined) return;
    place.journal.keep(place.index);
    const command = COMMANDS[place.journal.codeOf(place.index)];
    const reason = new DOMException(`Interrupted by ${command}`, 'AbortError');
    interruptions.add(reason);
    this.withdraw(reason); // first: a listener of the signal may take long
    if (command !== 'save-state') this.#interrupt?.abort(reason);
  }

  #onCommand(): void {
    this.#events.emit('command');
    this.#interruptStep();
  }

  #checkOpen(isBlocking: boolean = false): void {
    const isIdle = this.#state === 'idle' && this.#journals.posted.head() === 0;
    if (isIdle) throw new EmptyError('The server was not started');
    const isClosed = this.#state === 'closed' && (isBlocking || this.#worker === null); // else it may still be closing
    if (isClosed) throw new EmptyError('The server is closed');
  }

  #publish(): void {
    if (this.#isSampling) return;
    const code = this.#sampleStatus();
    const published = this.#published;
    if (code !== published.code) {
      const running = this.#running;
      const { command, by, reason }: Partial<CommandRequest<string>> = running ? this.request ?? {} : { by: 'itself' };
      const isCancelled = command === 'shutdown' && STATUSES[code] === PAUSED;
      const cause = isCancelled ? { by: 'itself', reason: 'shutdown cancelled' } : { by, reason };
      if (code === running?.before.code) this.#appendStatus(running.before); // after a save, or a pause that failed
      else if (published.code === -1) this.#appendStatus({ ...published, code }); // the first has its own cause
      else this.#appendStatus({ ...cause, since: new Date().toISOString(), code, holds: published.holds });
      this.#interruptStep(); // a waiting pause interrupts only active work
    }
    this.#memory[CELL.SAMPLED] = this.#memory[CELL.CLOCK] as number;
  }

  /** Publishes a status. Everybody's hold ends once it is active; while it is paused, the oldest hold is the cause. */
  #appendStatus({ code, holds, ...cause }: Published): void {
    const status = STATUSES[code];
    const by = cause.by ?? (this.#running === null ? 'itself' : SOMEBODY);
    const held = status === ACTIVE ? [] : status === PAUSED && holds.length === 0 ? [{ ...cause, by }] : holds;
    const origin: Hold = (status === PAUSED && held[0]) || cause;
    this.#published = { ...origin, code, holds: held };
    const text = [origin.by, origin.reason, JSON.stringify(held)].join('\n');
    this.#journals.statuses.append(code, Date.parse(origin.since), text);
    this.#wakeThread();
  }

  #setHolds(holds: readonly Hold[]): void {
    this.#appendStatus({ ...this.#published, holds });
    this.#publish(); // systemStatus() can keep the holds before their senders get the outcome
  }

  /** Returns the index of the status, or STATUSES.length if there is none. */
  #sampleStatus(): number {
    return this.#sample('systemStatus', STATUSES.length, () => {
      const status: SystemStatus | null | undefined = this.#options.systemStatus();
      const statusName = status?.statusName ?? '';
      if (statusName === STATUS_NAMES[this.#published.code]) return this.#published.code;
      const index = STATUS_NAMES.indexOf(statusName); // by name: the status may come from another copy of this file
      if (index !== -1) return index;
      Promise.resolve(status).catch(() => {}); // a rejected promise must not end the host
      throw new TypeError(`it must return a SystemStatus other than OFFLINE, got ${inspect(status)}`);
    });
  }

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
    if (Atomics.load(this.#memory, CELL.ACKNOWLEDGED) === sequence) return;
    if (Atomics.load(this.#memory, CELL.DETAIL) === 1) {
      const detail = this.#sample('describe', 'null', () => encode(this.#options.describe?.() ?? null));
      this.#journals.details.append(0, Date.now(), detail);
      Atomics.store(this.#memory, CELL.DETAIL, 0);
    }
    Atomics.store(this.#memory, CELL.ACKNOWLEDGED, sequence);
    this.#wakeThread();
  }

  #wakeThread(): void {
    Atomics.add(this.#memory, CELL.NEWS, 1);
    Atomics.notify(this.#memory, CELL.NEWS);
  }

  #onWakeUp(): void {
    Atomics.store(this.#memory, CELL.NOTIFIED, 0); // first, so that anything later posts a new message
    // While a command runs, too: a sleeper may have taken it before SEQUENCE counted it.
    if (this.#running !== null || this.#look() !== null) this.#onCommand();
    for (const settle of this.#asked) settle();
    void nextTurn().then(() => { // after nextCommand() has taken a command
      const sequence = Atomics.load(this.#memory, CELL.SEQUENCE); // before the sample
      const requested = Atomics.load(this.#memory, CELL.REQUESTED);
      if (((Atomics.load(this.#memory, CELL.ACKNOWLEDGED) - requested) | 0) >= 0) return;
      this.#publish();
      this.#acknowledge(sequence);
    });
  }

  /** Resolves once the thread listens or the server is closed. Rejects with a Failure if the first start fails. */
  #startThread(): Promise<void> {
    return new Promise((resolve, reject) => {
      const worker = this.#worker = this.#createThread();
      let failure: Failure = { message: 'its thread exited' };
      worker.on('message', (message: ThreadMessage) => {
        if (message === null) return this.#onWakeUp();
        if (typeof message === 'string') return this.#warnOnce(message);
        if (message.type === 'failed') return void (failure = message);
        this.#onListening(message.port, message.isPublic);
        resolve();
      });
      worker.on('error', (error: NodeJS.ErrnoException) => {
        failure = { message: `its thread failed: ${describeError(error)}`, code: error.code };
      });
      worker.on('exit', () => {
        this.#worker = null;
        // The thread's last message may be lost, and its last command may be on the queue without a new SEQUENCE.
        Atomics.store(this.#memory, CELL.NOTIFIED, 0);
        Atomics.add(this.#memory, CELL.SEQUENCE, 1);
        this.#onCommand();
        for (const settle of this.#asked) settle();
        if (/is not defined$|find variable/.test(failure.message)) failure.message += '; compiled for an old target?';
        if (this.#state === 'closed') resolve();
        else if (this.#state === 'starting') reject(failure);
        else this.#restartLater(failure);
      });
      if (this.#state === 'running') worker.unref(); // after on('message'), which refs it
    });
  }

  #createThread(): Worker {
    this.#data.clockOffset = readClockOffset(readClock);
    const source = `(() => { ${THREAD_FUNCTIONS.join('\n')} (${runThread})(); })();`;
    return new Worker(source, {
      eval: true, workerData: this.#data, name: 'runtime-control',
      execArgv: [], env: {}, // not the host's --import and --require, nor its NODE_OPTIONS
      stdout: true, stderr: true, // opening the host's streams takes time, and the thread prints nothing
      // The heap: several times what floods need.
      resourceLimits: { maxOldGenerationSizeMb: 64 + this.#data.maxConnections / 16, maxYoungGenerationSizeMb: 16 },
    });
  }

  #onListening(port: number, isPublic: boolean): void {
    if (this.#data.port !== null) this.#data.port = port; // restarted threads use the same
    this.#data.death = '';
    if (this.#state !== 'starting') return;
    this.#state = 'running';
    this.#worker?.unref();
    if (!isPublic) return;
    const who = `anyone who can connect${this.#data.token === undefined ? '' : ' and knows the token'}`;
    const what = `The web API at ${placeOf(this.#data)} accepts connections from other machines`;
    process.emitWarning(`${what}: ${who} can control this program`, WARNING);
  }

  #restartLater({ message }: Failure): void {
    if (this.#state !== 'running') return;
    this.#warnOnce(`The web API at ${placeOf(this.#data)} stopped and will be restarted: ${message}`, Infinity);
    this.#data.death ||= message; // not why its successors could not start
    this.#restartTimer = startTimer(() => this.#startThread().catch((error) => this.#restartLater(error)), 1000).unref();
  }

  /** Shows each message once. The limit is for errors of systemStatus() and describe() whose text varies. */
  #warnOnce(message: string, limit: number = 20): void {
    if (this.#warned.has(message) || this.#warned.size >= limit) return;
    this.#warned.add(message);
    process.emitWarning(message, WARNING);
  }

  async #stopThread(): Promise<void> {
    this.report({});
    this.#state = 'closed';
    this.withdraw(new Error('The server is closed'));
    endTimer(this.#restartTimer);
    const worker = this.#worker;
    if (worker !== null) {
      worker.ref();
      worker.postMessage('close');
      const lastResort = startTimer(() => worker.terminate(), 10_000); // it hangs
      await new Promise((resolve) => worker.once('exit', resolve));
      endTimer(lastResort);
    }
    if (Atomics.load(this.#memory, CELL.LOGGED_STATUSES) !== 0) this.#endLog();
    this.#onCommand(); // for nextCommand(), if there is no thread
  }

  /** Logs what the thread has not, and the end. */
  #endLog(): void {
    const { log } = linkToHost(this.#data, (message) => this.#warnOnce(String(message)), readClock);
    log?.write();
    log?.write({ event: 'end' });
  }
}

// ───── WebApiClient ──────────────────────────────────────────────────────────────────────────────────────────────

/**
 * The outcome of a request. `value` is the status or the result of the command, or empty if nothing has changed since
 * the `tag`; `body` is the whole response. `phase` is how far a failed request got: `answered` by a control server;
 * `sent`, so a command may still take effect; or only `connect`. Without a response, `code` is Node's.
 */
export type WebApiReply =
  | Readonly<{ ok: true; value: string; body: Record<string, unknown>; tag: string | undefined }>
  | Readonly<{
    ok: false; error: string; body: Record<string, unknown>; phase: 'connect' | 'sent' | 'answered';
    statusCode: number | undefined; code: string | undefined;
  }>;

/** Options of `request()`. */
export interface RequestOptions {
  /** Arguments of an own command, or of an answer. */ arguments?: object | undefined;
  /** The id of the question, for `answer`. */ id?: string | undefined;
  /** 1 to 300 seconds: until the command is done, or something is newer than `tag`. */ wait?: number | undefined;
  /** Who sends the command: `ana@laptop`. Truncated to 200 characters. */ by?: string | undefined;
  /** Why. Truncated to 200 characters. */ reason?: string | undefined;
  /** 1 to 86,400 seconds, after which the command is no longer delivered. */ expires?: number | undefined;
  /** For `resume`: releases only the hold of the sender. */ mine?: boolean | undefined;
  /** The tag of an earlier reply, for `status` and `info`. */ tag?: string | undefined;
  /** Cancels the request, which then counts as failed. */ signal?: AbortSignal | undefined;
}

/** Options of `WebApiClient`. */
export interface WebApiClientOptions {
  /** Time limit of each request, in milliseconds. Default: 5000. */ timeout?: number | undefined;
  /** The token of the server. */ token?: string | undefined;
  /** Replaces host and port. Nothing is sent unless `checkTrusted()` passes. */ socketPath?: string | undefined;
  /** Opens the connection to that address by other means, such as ssh, which then decide whom to trust. */
  connect?: (() => Duplex) | undefined;
}

/** Options of `waitFor()`. */
export interface WaitOptions {
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
    host?: string; port?: number; socketPath?: string; agent?: false; createConnection?: () => Duplex; // or agent
  };
  readonly #headers: { Authorization?: string };
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
    this.#target = { ...socketPath === undefined ? { host, port } : { socketPath }, ...how };
    this.baseUrl = socketPath === undefined ? `http://${placeOf({ host, port, socketPath })}` : `unix:${socketPath}`;
    this.#headers = token === undefined ? {} : { Authorization: `Bearer ${token}` };
    this.#timeoutMs = timeout;
  }

  /** Requests the status. Resolves with `OFFLINE` if the request fails. The signal cancels the request. */
  async getStatus(signal?: AbortSignal): Promise<SystemStatus> {
    return statusOf(await this.request('status', { signal })) ?? OFFLINE;
  }

  /** Requests `/api/info`. Resolves with null if the request fails, as with servers of version 0.2. */
  async getInfo(signal?: AbortSignal): Promise<SystemInfo | null> {
    const reply = await this.request('info', { signal });
    return reply.ok === true ? reply.body as unknown as SystemInfo : null;
  }

  /** Sends `pause`. Resolves with the result, `'ok'`, or with `null` if the request fails. */
  pause(): Promise<string | null> { return this.#send('pause'); }
  /** Resolves as `pause()` does. */ resume(): Promise<string | null> { return this.#send('resume'); }
  /** Resolves as `pause()` does. */ saveState(): Promise<string | null> { return this.#send('save-state'); }
  /** Resolves as `pause()` does. */ shutdown(): Promise<string | null> { return this.#send('shutdown'); }

  async #send(command: ControlCommand): Promise<string | null> {
    const reply = await this.request(command);
    return reply.ok === true ? reply.value : null; // narrows without `strict`, too
  }

  /** Requests `status`, `info` or a command, and resolves with the outcome. `wait` extends the time limit. */
  async request(endpoint: string, options: RequestOptions = {}): Promise<WebApiReply> {
    check('endpoint', endpoint, 'string', 'status, info or the name of a command', COMMAND_NAME.test(endpoint));
    checkOptions('request', options, ['wait', 'by', 'reason', 'expires', 'mine', 'arguments', 'id', 'tag', 'signal']);
    const { wait, expires, mine, by = '', reason = '', id = '', signal } = options;
    for (const [name, text] of Object.entries({ by, reason, id })) check(name, text, 'string', 'a string');
    const json = JSON.stringify(options.arguments);
    if (json !== undefined) check('arguments', options.arguments, 'object', 'an object');
    if (wait !== undefined) checkInteger('wait', wait, 1, 300);
    if (expires !== undefined) checkInteger('expires', expires, 1, 86_400);
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
      const { result, status, error } = body;
      const given = endpoint === 'status' || endpoint === 'info' ? status : result;
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
   * Waits until the system reports the status; polls every 50 ms if the server does not support that. A command takes
   * effect when the host takes it from the queue, so the first status may predate a command sent just before. Error
   * responses do not end the wait. A system that accepts connections and does not respond is not `OFFLINE`.
   *
   * @throws {DOMException} `TimeoutError` if the system does not report the status in time.
   * @throws The reason of an aborted signal.
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
    const { wait, by = '', reason = '', expires = '', mine, id = '', tag } = options;
    signal.throwIfAborted();
    const { socketPath, createConnection } = this.#target;
    if (socketPath !== undefined && createConnection === undefined) checkTrusted(socketPath); // keeps the token safe
    const http = process.getBuiltinModule('node:http'); // slow to load, and hosts do not need it
    const method = endpoint === 'status' || endpoint === 'info' ? 'GET' : 'POST';
    const fields = { id, by: tidy(by), reason: tidy(reason), expires: `${expires}`, mine: mine === true ? 'true' : '' };
    const query = new URLSearchParams(Object.entries(fields).filter(([, text]) => text !== ''));
    const path = `/api/${endpoint}${query.size > 0 ? `?${query}` : ''}`;
    const headers: Record<string, string> = { ...this.#headers };
    if (wait !== undefined) headers['Prefer'] = `wait=${wait}`;
    if (tag !== undefined) headers['If-None-Match'] = tag;
    const request = http.request({ ...this.#target, method, path, headers, signal });
    request.on('finish', () => request.socket?.errored || onSent()); // also emitted if it could not connect
    request.on('error', () => {}); // once() reports it, or else reading the response does
    let interim = 0; // Node ignores 1xx responses, however many there are
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
    try { body = Object(JSON.parse(text)); } catch {} // it is not JSON
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

/** Where a server listens: at host and port, or only at a Unix socket. */
function placeOf({ host, port, socketPath = '' }: Pick<ThreadData, 'host' | 'port' | 'socketPath'>): string {
  return port === null ? socketPath : `${host.includes(':') ? `[${host}]` : host}:${port}`; // IPv6 goes in brackets
}

// ───── launch: a host loop ───────────────────────────────────────────────────────────────────────────────────────

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
  /** Called while the status is `pausing`. If it fails, the system stays active. */
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

/**
 * Runs a system until it is shut down by a command, SIGINT, SIGTERM or SIGHUP (its terminal was closed; nohup does not
 * prevent that, because Node undoes it). A second SIGINT, at least a second after the first, kills it. SIGUSR2 saves. A
 * paused system uses no CPU. Steps may be synchronous: commands are handled after each, timers and signals every 10 ms.
 *
 * If a hook fails, `process.emitWarning()` reports it and the system continues. If the last save fails, a shutdown by
 * command is cancelled, and the system pauses, so that it can be shut down again; after a signal, or without a web API,
 * the promise rejects with the error of the save. If a step fails, it rejects with that error, and no state is saved,
 * unless a command has interrupted the step: see `Control`.
 *
 * @throws {Error} If the web API cannot listen (see `WebApiServer.runInBackground()`). No step has run.
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
  const needsServer = cause.length > 0 || options.socketPath !== undefined || options.log !== undefined;
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
    host: webApiAddress?.[0],
    port: webApiAddress?.[1],
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
      const isFailed = 'error' in saved;
      if (isFailed && endSignal === null && isServed) {
        if (before === PAUSED) setStatus(PAUSED);
        else await commands.pause(request);
        return saved;
      }
      const ended = await callHook('onShutdown', () => system.onShutdown?.(request));
      isOver = true;
      if (!isFailed) return { ...saved, ...ended };
      server.report(saved);
      throw saved.error;
    },
  };
  const execute = async (name: string): Promise<void> => {
    const request = server.request as CommandRequest<never>;
    const run = (): unknown => declared[name]?.run(request.arguments, request, control);
    server.report(await (name in declared ? callHook(name, run) : commands[name as ControlCommand](request)));
  };
  let killsAfter = Infinity;
  const onSignal = (name: NodeJS.Signals): void => {
    if (name === 'SIGUSR2') return void server.post('save-state', { reason: name });
    if (name === 'SIGINT' && readClock() >= killsAfter) {
      removeHandlers();
      process.kill(process.pid, name);
    }
    if (name === 'SIGINT') killsAfter = Math.min(killsAfter, readClock() + 1000);
    if (endSignal === null) server.post('shutdown', { reason: name });
    endSignal ??= name;
  };
  const removeHandlers = (): void => SIGNALS.forEach((name) => process.off(name, onSignal));
  for (const name of SIGNALS) process.on(name, onSignal);
  try {
    if (cause.length > 0) {
      server.post('pause', { by: server.holds[0]?.by, reason: server.holds[0]?.reason });
      server.receiveCommand(); // while paused, so that it leads back to that status and its cause
      status = PAUSING;
    }
    const address = isServed ? await server.runInBackground() : null;
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
          if (isPromise(result)) await result;
        } catch (error: any) {
          const isInterruption = interruptions.has(error) || interruptions.has(error?.cause);
          if (!isInterruption || !server.hasWaiting()) throw error; // a former command's: the step has an old signal
        }
      }
      server.withdraw(); // what the step or the command has left open
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

// ───── Errors and checks ─────────────────────────────────────────────────────────────────────────────────────────

function isPromise(value: any): boolean { return typeof value?.then === 'function'; }

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
function encode(value: unknown): string {
  if (value === undefined) return '';
  const json = isPromise(value) ? void Promise.resolve(value).catch(() => {}) : JSON.stringify(value);
  if (json !== undefined && Buffer.byteLength(json) <= 4096) return json;
  throw new RangeError('the value must be JSON of at most 4096 bytes');
}

/** Checks who, why and since when, and returns them as they are published. */
function checkCause({ by = '', reason = '', since = new Date().toISOString() }: StatusCause): Hold {
  for (const text of [by, reason]) check('by and reason', text, 'string', 'strings');
  check('cause.since', since, 'string', 'a time in ISO 8601', Date.parse(since) >= 0);
  return { by: tidy(by) || undefined, reason: tidy(reason) || undefined, since: new Date(since).toISOString() };
}

/** Adds a hold, or replaces the reason of its sender's. The 16th has no name, and only a plain `resume` ends it. */
function addHold(holds: readonly Hold[], hold: StatusCause): readonly Hold[] {
  const { by = holds.some((one) => one.by === SOMEBODY) ? undefined : SOMEBODY, reason } = hold;
  const own = holds.find((one) => one.by === by);
  if (own !== undefined && (reason === undefined || reason === own.reason)) return holds;
  if (own !== undefined) return holds.map((one) => (one === own ? { ...one, reason } : one));
  const { since = new Date().toISOString() } = hold;
  if (holds.length < 15) return [...holds, { by, reason, since }];
  return holds.some((one) => one.by === undefined) ? holds : [...holds, { since }];
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

/** Checks declarations of commands, and returns their JSON. */
function checkCommands(commands: object, reserved: string[] = [...COMMANDS, 'status', 'info', 'answer']): string {
  check('commands', commands, 'object', 'an object');
  const json = JSON.stringify(commands); // leaves functions out
  const description: Parameter = { type: 'string', default: '' };
  const type: Parameter = { type: 'string', enum: ['boolean', 'integer', 'number', 'string'] };
  const minimum: Parameter = { type: 'number', default: 0 };
  const maxLength: Parameter = { type: 'integer', minimum: 0, default: 0 };
  for (const [name, declaration] of Object.entries<CommandDeclaration>(JSON.parse(json))) {
    const isFree = COMMAND_NAME.test(name) && !reserved.includes(name);
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

/** Checks a question, and returns its `AskInfo` as JSON, without the id. */
function checkQuestion(text: string, parameters: object, timeout: number | undefined, at: number): string {
  const message = typeof text === 'string' ? tidy(text.replace(/\s+/g, ' '), 1000).trim() : '';
  const isValid = message !== '' && Array.from(text).length <= 1000;
  check('message', text, 'string', 'a text of 1 to 1000 characters', isValid);
  check('parameters', parameters, 'object', 'an object', !Array.isArray(parameters));
  if (timeout !== undefined) checkTimeout(timeout);
  checkInteger('the size of the question as JSON', Buffer.byteLength(JSON.stringify({ message, parameters })), 0, 4096);
  checkCommands({ answer: { parameters } }, []);
  const expiresAt = timeout && new Date(at + timeout).toISOString();
  return JSON.stringify({ message, parameters, at: new Date(at).toISOString(), expiresAt });
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
