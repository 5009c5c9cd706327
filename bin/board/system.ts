// One system on the board: what is known of it, and what the board has sent to it.

import { SystemStatus } from '../../control.ts';
import { COMMAND, CONTROL_COMMANDS } from '../shared/accepts.ts';
import { BY } from '../shared/access.ts';
import { commandsOf, progressOf, splitDetail } from '../shared/describe.ts';
import { isCrash, isEndError, savedBy, Shutdown } from '../shared/end.ts';
import { describeDone, follow } from '../shared/follow.ts';
import { observe } from '../shared/observe.ts';
import { describeUnknown, entriesOf, isAbsent, isUnanswered, NO_ANSWER, UNKNOWN } from '../shared/replies.ts';
import { excerpt, excerptOf, excerptOfJson, isRecord, MAX_VALUE_LENGTH, textOfJson } from '../shared/text.ts';
import { declarationsOf, presentValues } from './declarations.ts';
import { LIVE, Series, steadyNow } from './series.ts';
import type { Progress } from '../shared/describe.ts';
import type { Observation } from '../shared/observe.ts';
import type { PrintableClient } from '../shared/replies.ts';
import type { Target } from '../shared/targets.ts';
import type { Declaration } from './declarations.ts';
import type { Period, Sample } from './series.ts';

const WAIT_S = 30; // for a change
const MAX_WAIT_S = 300; // for a command
const FOLLOW_MS = 3_600_000; // for a command after that
const SLOW_MS = 2000; // the page tells of a system or a program that has been silent for this long
const HEARD_MS = 500; // two values of `heardAt` that differ by less are the same
const MAX_COMMANDS = 5;
const MAX_ROWS = 64; // of the detail
const MAX_SERIES = 32;
const MAX_COUNTED = 64; // names of commands
const ENDED: readonly string[] = ['done', 'failed']; // states of a command
const DUE = 0.95; // of the interval: a timer may fire early

type Body = Readonly<Record<string, unknown>>;

/** What a page shows of a system. Times are in milliseconds; those that the system tells are by its clock. */
export interface State {
  target: string;
  name: string;
  /** `process 4711 on gpu3`, or empty. */
  process: string;
  /** Empty until the first response. */
  status: string;
  since: number | null;
  by: string;
  reason: string;
  /** Why the status is not known. */
  error: string;
  /** Whether it is offline because somebody asked for that or its work is done; otherwise it crashed or was cut off. */
  ended: boolean;
  /** The last save that has succeeded. */
  saved: { value: string; at: number | null } | null;
  /** Why the latest save has failed; empty if it has not. */
  saveError: string;
  /** Since when the system does not respond; null if it does. */
  unansweredSince: number | null;
  /** Since when the program has not looked for commands, because it is in a long step or hangs; null if it does. */
  unheardSince: number | null;
  detail: Row[];
  /** How far the program is; `leftMs` is null until two samples tell it. */
  progress: (Progress & { leftMs: number | null }) | null;
  /** Of the detail: the fields that have the name of a parameter. */
  present: ReturnType<typeof presentValues>;
  /** The latest first. */
  commands: ListedCommand[];
  /** The commands from the board: those that are not done, and the latest. */
  sent: SentCommand[];
  /** The number of the last one that the board has sent. */
  sentCount: number;
}

interface Row {
  name: string;
  value: string | number;
  /** Whether control-run has added it. */
  isRun?: true;
}

interface ListedCommand {
  command: string;
  arguments: string;
  state: string;
  by: string;
  reason: string;
  value: string;
  error: string;
  seconds: number | null;
  at: number | null;
}

interface SentCommand {
  /** A later command has a higher number. */
  id: number;
  command: string;
  state: 'sent' | 'done' | 'failed';
  /** What came of it. */
  text: string;
  /** The one whose argument was refused. */
  parameter?: string;
}

/** What a page is sent. It lacks those values of a number and declarations that the page has. */
export type Update = Omit<State, 'detail'> & {
  id: number;
  /** Samples that are further apart than `intervalMs` have a gap between them. */
  detail: (Row & { samples?: Sample[]; intervalMs?: number })[];
  accepts?: readonly Declaration[];
};

/** How many commands of a name have ended. */
export type Counts = Map<string, { done: number; failed: number }>;

/** What a system needs of the board. */
export interface Listener {
  readonly period: Period;
  nextVersion(): number;
  onChange(): void;
}

export class BoardSystem {
  /** The version of the board in which the state has changed. The samples count by their times instead. */
  version = 0;
  #versionBefore = 0; // of the change before
  readonly isFound: boolean;
  readonly id: number;
  /** For people: no other one has it, unlike its name. */
  readonly title: string;
  readonly #client: PrintableClient;
  readonly #listener: Listener;
  readonly #state: State;
  readonly #series: Map<string, Series> = new Map(); // by name, the latest last
  #published = ''; // the state in `version`, as JSON
  #declarations: Declaration[] = [];
  #declaredAt = 0; // the version of the board in which they came
  #isWatched = false;
  readonly #end: AbortController = new AbortController();
  #reading: Promise<void> | null = null; // the pending read
  #readSince = 0; // by the steady clock
  #readError = ''; // of the latest one
  #heardAt = 0; // when the program last looked for commands, by the clock of the system
  #heardAtSince = 0; // since when the reads tell that, by the steady clock
  #activeSince = 0; // by the steady clock
  #sampledAt = 0;
  readonly #shutdown: Shutdown = new Shutdown();
  /** By the name of the command. */
  readonly counts: Counts;
  #counted: Set<string> | null = null; // the ids of the ended commands in the latest list

  /**
   * @param isFound Whether it comes from a folder.
   * @param counts Of the one that it replaces.
   */
  constructor(
    id: number,
    { name, title, client }: Target,
    listener: Listener,
    isFound: boolean = false,
    counts: Counts = new Map(CONTROL_COMMANDS.map((command) => [command, { done: 0, failed: 0 }])),
  ) {
    this.id = id;
    this.title = excerpt(title);
    this.isFound = isFound;
    this.counts = counts;
    this.#client = client;
    this.#listener = listener;
    this.#state = {
      target: excerpt(name ?? client.target), name: this.title, process: '', status: '', since: null, by: '',
      reason: '', error: '', unansweredSince: null, unheardSince: null, ended: false, saved: null, saveError: '',
      detail: [], progress: null, present: [], commands: [], sent: [], sentCount: 0,
    };
    void this.#follow();
  }

  /**
   * What a page is to show, with the samples and the declarations that it lacks. Only a change sends a system to the
   * pages: what a page has of this one ends at the change before, even if its version is later.
   */
  updateSince(since: number): Update {
    const version = Math.min(since, this.#versionBefore);
    const detail = this.#state.detail.map((row) => {
      const series = typeof row.value === 'number' ? this.#series.get(row.name) : undefined;
      return series === undefined ? row : { ...row, samples: series.since(version), intervalMs: series.intervalMs };
    });
    const update = { id: this.id, ...this.#state, detail };
    return version <= this.#declaredAt ? { ...update, accepts: this.#declarations } : update;
  }

  get url(): string {
    return this.#client.baseUrl;
  }

  get state(): Readonly<State> {
    return this.#state;
  }

  get series(): Iterable<Series> {
    return this.#series.values();
  }

  get isOffline(): boolean {
    return this.#state.status === SystemStatus.OFFLINE.statusName;
  }

  /** Whether it takes commands, as far as is known. */
  get isReachable(): boolean {
    return !this.isOffline && this.#state.unansweredSince === null;
  }

  /** Whether the system declares a command of its own, as far as is known. */
  declares(command: string): boolean {
    return this.#declarations.some(({ name }) => name === command);
  }

  /** Sets whether a page is open. If none is, the system is not asked for its detail. */
  setWatched(isWatched: boolean): void {
    this.#isWatched = isWatched;
    if (!isWatched) this.#state.unheardSince = null;
  }

  /** Reads the detail: the waiting request does not end when it changes. There is one read at a time. */
  read(): Promise<void> {
    const now = steadyNow();
    if (this.#reading === null) {
      this.#readSince = now;
      this.#reading = this.#readDetail(now);
    } else if (now - this.#readSince >= SLOW_MS && !this.isOffline) {
      this.#state.unansweredSince ??= Date.now() - (now - this.#readSince);
      this.#publish();
    }
    return this.#reading;
  }

  async #readDetail(start: number): Promise<void> {
    const reply = await this.#client.request('info');
    this.#reading = null;
    if (reply.ok) this.#takeDetail(reply.body, start);
    const isSilent = isUnanswered(reply);
    if (!isSilent) this.#state.unansweredSince = null;
    else if (!this.isOffline) this.#state.unansweredSince ??= Date.now() - (steadyNow() - start);
    this.#takeReadError(isSilent || reply.ok || reply.answered ? '' : this.#client.shorten(reply.error));
    this.#publish();
  }

  /** Shows why a read could not be sent, such as that the board has too many open files, until one can. */
  #takeReadError(error: string): void {
    if (['', this.#readError].includes(this.#state.error)) this.#state.error = error;
    this.#readError = error;
  }

  /** Sends a command, with arguments if the system declares it. Returns its number. */
  send(command: string, reason: string, values?: object): number {
    const sent: SentCommand = { id: this.#state.sentCount += 1, command, state: 'sent', text: '' };
    this.#forgetSent(this.#placeOf(command));
    this.#state.sent.push(sent);
    this.#publish();
    void this.#deliver(sent, reason, values);
    return sent.id;
  }

  /** Follows the command until it is done. */
  async #deliver(sent: SentCommand, reason: string, values: object | undefined): Promise<void> {
    const { command } = sent;
    const start = performance.now();
    const options = { arguments: values, wait: MAX_WAIT_S, by: BY, reason };
    const reply = await this.#client.request(command, options); // once: a full queue fails
    const followed = await follow(this.#client, command, { timeoutMs: FOLLOW_MS, reply });
    const { value, error, summary } = followed;
    const seconds = (performance.now() - start) / 1000;
    sent.state = error === '' ? 'done' : 'failed';
    sent.text = this.#client.shorten(summary) || `${describeDone(command, value)} (${seconds.toFixed(1)} s)`;
    const [, parameter] = /^[\w-]+: (\w+) must be /.exec(error) ?? [];
    if (followed.isInvalid && parameter !== undefined) sent.parameter = parameter;
    const at = new Date().toISOString();
    if (command === 'shutdown' && sent.state === 'done') {
      this.#takeSave({ command, state: 'done', value, at });
      if (!isAbsent(reply)) this.#takeOwnShutdown(reason);
    }
    this.#publish();
  }

  /** The responses may not have told of it: the end may be quick, or long after the last change. */
  #takeOwnShutdown(reason: string): void {
    this.#shutdown.confirm({ by: BY, reason });
    if (this.isOffline && !this.#state.ended) this.#takeEnd();
  }

  /** What came of commands is of interest until the next one in their place, or until the system is another process. */
  #forgetSent(place?: string): void {
    this.#state.sent = this.#state.sent.filter(({ command, state }) => {
      return state === 'sent' || (place !== undefined && place !== this.#placeOf(command));
    });
  }

  /** Where a page shows what came of a command: its row, or one place for all that have none. */
  #placeOf(command: string): string {
    return this.declares(command) ? command : '';
  }

  /** Stops following the system. */
  close(): void {
    this.#end.abort();
  }

  async #follow(): Promise<void> {
    for await (const observation of observe(this.#client, 'info', this.#end.signal, WAIT_S)) {
      this.#take(observation);
      this.#publish();
    }
  }

  #take({ status, reply, isNew }: Observation): void {
    const state = this.#state;
    const isResponse = reply.ok || reply.answered;
    if (status === NO_ANSWER) state.unansweredSince ??= Date.now();
    else state.unansweredSince = null;
    if (!isNew) return;
    if (reply.ok) this.#shutdown.note(reply.body, status);
    if (status !== state.status) {
      const hasBegun = state.status !== ''; // otherwise it may be old
      Object.assign(state, { status, since: hasBegun ? Date.now() : null, by: '', reason: '', ended: false });
      if (state.progress !== null) state.progress = { ...state.progress, leftMs: null };
      if (this.isOffline) this.#takeEnd();
      if (status === SystemStatus.ACTIVE.statusName) this.#activeSince = steadyNow();
    }
    if (!isResponse) state.unheardSince = null;
    state.error = reply.ok || status === NO_ANSWER ? '' : this.#client.shorten(reply.error);
    if (status === UNKNOWN && reply.ok) state.error = describeUnknown(reply.original);
    if (reply.ok && reply.body['commands'] !== undefined) this.#takeInfo(reply.body);
  }

  /** Nobody will tell what came of its last commands. */
  #takeEnd(): void {
    const { cause } = this.#shutdown;
    if (cause !== null) {
      const [by, reason] = [excerptOf(cause['by']), excerptOf(cause['reason'])];
      Object.assign(this.#state, { by, reason, ended: !isCrash(cause) });
    }
    const [latest] = this.#state.commands;
    const isCounted = latest?.command === 'shutdown' && ENDED.includes(latest.state);
    if (this.#state.ended && !isCounted) this.#countOne('shutdown', 'done');
    for (const entry of this.#state.commands) if (!ENDED.includes(entry.state)) entry.state = 'outcome unknown';
  }

  #takeInfo(info: Body): void {
    const pid = excerptOf(info['pid']);
    const host = excerptOf(info['host']);
    const process = (pid && `process ${pid}`) + (host && ` on ${host}`);
    if (this.#state.process !== '' && process !== this.#state.process) {
      this.#forgetSent();
      this.#state.saveError = '';
    }
    for (const entry of commandsOf(info)) this.#takeSave(entry);
    this.#count(commandsOf(info));
    Object.assign(this.#state, {
      name: excerptOf(info['name']) || this.title,
      process,
      since: timeOf(info['since']),
      by: excerptOf(info['by']),
      reason: excerptOf(info['reason']),
      commands: entriesOf(info['commands']).slice(-MAX_COMMANDS).reverse().map(tidyCommand),
    });
    this.#takeDeclarations(declarationsOf(info));
  }

  /** Counts the commands that have ended since the list before. */
  #count(commands: Body[]): void {
    const ended = commands.filter(({ id, state }) => excerptOf(id) !== '' && ENDED.includes(excerptOf(state)));
    for (const { id, command, state } of ended) {
      if (this.#counted?.has(excerptOf(id)) === false) this.#countOne(excerptOf(command), state as 'done' | 'failed');
    }
    this.#counted = new Set(ended.map(({ id }) => excerptOf(id)));
  }

  #countOne(command: string, state: 'done' | 'failed'): void {
    if (!COMMAND.test(command)) return;
    const counts = this.counts.get(command) ?? { done: 0, failed: 0 };
    counts[state] += 1;
    if (this.counts.has(command) || this.counts.size < MAX_COUNTED) this.counts.set(command, counts);
  }

  /** A shutdown saves, too, and fails if that fails. */
  #takeSave({ command, state, value, error, at, seconds }: Body): void {
    if (command !== 'save-state' && command !== 'shutdown') return;
    const text = excerptOfJson(value);
    const saved = command === 'shutdown' ? savedBy(text) : text;
    const isSaved = state === 'done' && (command === 'save-state' || saved !== '');
    if (!isSaved && (state !== 'failed' || (command === 'shutdown' && isEndError(error)))) return;
    this.#state.saveError = isSaved ? '' : excerptOf(error, MAX_VALUE_LENGTH);
    const start = timeOf(at);
    const duration = typeof seconds === 'number' ? seconds * 1000 : 0;
    if (isSaved) this.#state.saved = { value: saved, at: start === null ? null : start + duration };
  }

  /** Pages are sent them only when they change: they are longer than all the rest, which changes each second. */
  #takeDeclarations(declarations: Declaration[]): void {
    if (JSON.stringify(declarations) === JSON.stringify(this.#declarations)) return;
    this.#declarations = declarations;
    this.#declaredAt = this.#listener.nextVersion();
    this.#published = '';
  }

  /** @param now By the steady clock. */
  #takeDetail({ detail, heardAt }: Body, now: number): void {
    const rows = rowsOf(detail);
    this.#state.detail = rows;
    this.#state.present = presentValues(detail, this.#declarations);
    this.#sample();
    this.#takeProgress(progressOf(detail));
    const heard = timeOf(heardAt) ?? now;
    if (Math.abs(heard - this.#heardAt) > HEARD_MS) [this.#heardAt, this.#heardAtSince] = [heard, now];
    const isSlow = this.#isWatched && now - this.#heardAtSince >= SLOW_MS;
    this.#state.unheardSince = isSlow ? this.#heardAt : null;
  }

  /** Adds the numbers to their series, if the next sample is due: the board may read more often. */
  #sample(): void {
    const { period } = this.#listener;
    const isKept = this.#isWatched || period !== LIVE;
    if (!isKept || steadyNow() - this.#sampledAt < period.intervalMs * DUE) return;
    this.#sampledAt = steadyNow();
    const at = this.#listener.nextVersion(); // later: a page that has had news since asks for what follows
    const numbers = numbersIn(this.#state.detail).filter(([name]) => name !== 'pid').slice(0, MAX_SERIES);
    for (const [name, value] of numbers) this.#seriesOf(name).add(at, value);
  }

  /** While the program is paused, nobody knows when it goes on. */
  #takeProgress(progress: Progress | null): void {
    if (progress === null) return void (this.#state.progress = null);
    const { done, of } = progress;
    const name = excerpt(progress.name);
    const isActive = this.#state.status === SystemStatus.ACTIVE.statusName;
    const pace = isActive ? this.#series.get(name)?.paceSince(this.#activeSince) ?? null : null;
    const leftMs = pace === null ? null : Math.round((of - done) / pace);
    this.#state.progress = { name, done, of, leftMs: Number.isFinite(leftMs) ? leftMs : null };
  }

  /** The oldest series make room: a program may choose other names each time. */
  #seriesOf(name: string): Series {
    const series = this.#series.get(name) ?? new Series(this.#listener.period);
    this.#series.delete(name);
    this.#series.set(name, series);
    for (const oldest of this.#series.keys()) {
      if (this.#series.size <= MAX_SERIES) break;
      this.#series.delete(oldest);
    }
    return series;
  }

  #publish(): void {
    const text = JSON.stringify(this.#state);
    if (text === this.#published) return;
    this.#published = text;
    this.#versionBefore = this.version;
    this.version = this.#listener.nextVersion();
    this.#listener.onChange();
  }
}

// ───── What systems send ─────────────────────────────────────────────────────────────────────────────────────────
// Any program may have sent it, so every field may have any type and text.

function tidyCommand(entry: Body): ListedCommand {
  return {
    command: excerptOf(entry['command']),
    arguments: excerptOfJson(entry['arguments']),
    state: excerptOf(entry['state']),
    by: excerptOf(entry['by']),
    reason: excerptOf(entry['reason']),
    value: excerptOfJson(entry['value']),
    error: excerptOf(entry['error'], MAX_VALUE_LENGTH),
    seconds: typeof entry['seconds'] === 'number' ? entry['seconds'] : null,
    at: timeOf(entry['at']),
  };
}

/** The rows of a table, those of control-run last. Of names that are the same as excerpts, the first has a row. */
function rowsOf(detail: unknown): Row[] {
  if (detail === null || detail === undefined) return [];
  if (!isRecord(detail)) return [rowOf(['', detail])];
  const { own, run } = splitDetail(detail);
  const added = Object.entries(run).map((entry): Row => ({ ...rowOf(entry), isRun: true }));
  const rows = [...Object.entries(own).slice(0, MAX_ROWS - added.length).map(rowOf), ...added];
  return rows.filter(({ name }, index) => rows.findIndex((other) => other.name === name) === index);
}

function rowOf([name, value]: [name: string, value: unknown]): Row {
  const isNumber = typeof value === 'number' && Number.isFinite(value); // 1e999 is JSON, too
  return { name: excerpt(name), value: isNumber ? value : excerpt(textOfJson(value)) };
}

export function numbersIn(detail: readonly Row[]): [name: string, value: number][] {
  return detail.flatMap(({ name, value }): [string, number][] => (typeof value === 'number' ? [[name, value]] : []));
}

/** Null if it is no time. */
function timeOf(field: unknown): number | null {
  const time = Date.parse(excerptOf(field));
  return Number.isNaN(time) ? null : time;
}
