// One system on the board: follows it, sends it commands, and keeps the state that pages show.

import { SystemStatus } from '../../control.ts';
import { BY } from '../shared/reach/access.ts';
import { commandsOf, progressOf, splitDetail } from '../shared/words/describe.ts';
import { isCrash, isEndError, savedBy, Shutdown } from '../shared/reach/end.ts';
import { describeDone, follow } from '../shared/reach/follow.ts';
import { observe } from '../shared/reach/observe.ts';
import { describeUnknown, entriesOf, isAbsent, isUnanswered, NO_ANSWER, UNKNOWN } from '../shared/reach/replies.ts';
import { excerpt, excerptOf, excerptOfJson, MAX_VALUE_LENGTH } from '../shared/words/text.ts';
import { Counter } from './counter.ts';
import { currentValues, ownCommandsOf } from './declarations.ts';
import { LIVE, SeriesGroup, steadyNow } from './series.ts';
import { isFinal, isRefusedSave, numbersIn, readCommand, readRows, readTime } from './state.ts';
import type { Body, Progress } from '../shared/words/describe.ts';
import type { Observation } from '../shared/reach/observe.ts';
import type { PrintableClient } from '../shared/reach/replies.ts';
import type { Target } from '../shared/reach/targets.ts';
import type { Counts } from './counter.ts';
import type { OwnCommand } from './declarations.ts';
import type { Period, Series } from './series.ts';
import type { SentCommand, State, Update } from './state.ts';

const WAIT_S = 30; // the time limit of a request that waits for a change
const COMMAND_WAIT_S = 300; // the time limit of a request that sends a command
const FOLLOW_MS = 3_600_000; // how long the board then follows the command
const SLOW_MS = 2000; // pages show that a system or a program has been silent for this long
const HEARD_MS = 500; // values of `heardAt` that differ by less count as equal
const MAX_COMMANDS = 5;

/** The part of the board that a system uses. */
export interface Listener {
  readonly period: Period;
  nextVersion(): number;
  onChange(): void;
}

export class BoardSystem {
  /** The board's version at the latest change of the state. Samples compare by their times instead. */
  version = 0;
  #versionBefore = 0; // at the change before
  readonly isFound: boolean;
  readonly id: number;
  /** Unique on the board, unlike the name. */
  readonly title: string;
  readonly target: Target;
  readonly #client: PrintableClient;
  readonly #listener: Listener;
  readonly #state: State;
  readonly #series: SeriesGroup;
  readonly #counter: Counter;
  #published = ''; // the state at `version`, as JSON
  #ownCommands: OwnCommand[] = [];
  #declaredAt = 0; // the board's version at their latest change
  #isWatched = false;
  readonly #end: AbortController = new AbortController();
  #reading: Promise<void> | null = null; // the pending read
  #readSince = 0; // by the steady clock
  #readError = ''; // why the latest read failed
  #heardAt = 0; // when the program last checked for commands, by the system's clock
  #heardAtSince = 0; // since when reads report that time, by the steady clock
  #activeSince = 0; // by the steady clock
  readonly #shutdown: Shutdown = new Shutdown();

  /**
   * @param isFound Whether it was found in a folder.
   * @param counts The counts of the system that it replaces.
   */
  constructor(id: number, target: Target, listener: Listener, isFound: boolean = false, counts?: Counts) {
    const { name, title, client } = target;
    this.id = id;
    this.target = target;
    this.title = excerpt(title);
    this.isFound = isFound;
    this.#client = client;
    this.#listener = listener;
    this.#counter = new Counter(counts);
    this.#series = new SeriesGroup(listener.period);
    this.#state = {
      target: excerpt(name ?? client.target), name: this.title, process: '', status: '', since: null, by: '',
      reason: '', error: '', unansweredSince: null, unheardSince: null, ended: false, crashed: false, canSave: true,
      saved: null, saveError: '', detail: [], progress: null, current: [], commands: [], sent: [], sentCount: 0,
    };
    void this.#follow();
  }

  /**
   * The state for a page, with the samples and own commands that the page lacks. Pages receive a system only when it
   * changes, so a page has no samples after the change before, even if its version is later.
   */
  updateSince(since: number): Update {
    const version = Math.min(since, this.#versionBefore);
    const detail = this.#state.detail.map((row) => {
      const series = typeof row.value === 'number' ? this.#series.get(row.name) : undefined;
      return series === undefined ? row : { ...row, samples: series.since(version), intervalMs: series.intervalMs };
    });
    const update = { id: this.id, ...this.#state, detail };
    return version <= this.#declaredAt ? { ...update, accepts: this.#ownCommands } : update;
  }

  get state(): Readonly<State> {
    return this.#state;
  }

  get series(): Iterable<Series> {
    return this.#series.all;
  }

  /** The completed commands of all clients since the board follows the system. */
  get counts(): Counts {
    return this.#counter.counts;
  }

  get isOffline(): boolean {
    return this.#state.status === SystemStatus.OFFLINE.statusName;
  }

  /** Whether the system can be reached, as far as is known. */
  get isReachable(): boolean {
    return !this.isOffline && this.#state.unansweredSince === null;
  }

  /** Whether the program can do this command, as far as is known: some have no way to save. */
  canDo(command: string): boolean {
    return command !== 'save-state' || this.#state.canSave;
  }

  /** Whether the system declares this own command in its latest response. */
  declares(command: string): boolean {
    return this.#ownCommands.some(({ name }) => name === command);
  }

  /** Sets whether a page is open. */
  setWatched(isWatched: boolean): void {
    this.#isWatched = isWatched;
    if (!isWatched) Object.assign(this.#state, { unheardSince: null, canSave: true });
  }

  /** Reads the detail, whose changes do not complete the waiting request. There is one read at a time. */
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
    this.#takeReadError(isSilent || reply.ok || reply.phase === 'answered' ? '' : this.#client.shorten(reply.error));
    this.#publish();
  }

  /** Shows why the board could not send a read (too many open files, say), until it can. */
  #takeReadError(error: string): void {
    if (['', this.#readError].includes(this.#state.error)) this.#state.error = error;
    this.#readError = error;
  }

  /** Sends a command; an own command has arguments. Returns the id of its entry in `sent`. */
  send(command: string, reason: string, values?: object): number {
    const sent: SentCommand = { id: this.#state.sentCount += 1, command, state: 'sent', text: '' };
    this.#forgetSent(this.#placeOf(command));
    this.#state.sent.push(sent);
    this.#publish();
    void this.#deliver(sent, reason, values);
    return sent.id;
  }

  /** Sends the command and follows it until it is completed. */
  async #deliver(sent: SentCommand, reason: string, values: object | undefined): Promise<void> {
    const { command } = sent;
    const start = performance.now();
    const options = { arguments: values, wait: COMMAND_WAIT_S, by: BY, reason };
    const reply = await this.#client.request(command, options); // no retry: a full queue is an error
    const followed = await follow(this.#client, command, { timeoutMs: FOLLOW_MS, reply });
    const { value, error, summary, received } = followed;
    const seconds = (performance.now() - start) / 1000;
    sent.state = error === '' ? 'done' : 'failed';
    sent.text = this.#client.shorten(summary) || `${describeDone(command, value)} (${seconds.toFixed(1)} s)`;
    const parameter = excerptOf(reply.ok ? undefined : reply.body['parameter']);
    if (parameter !== '') sent.parameter = parameter;
    const at = new Date().toISOString();
    if (command === 'shutdown' && sent.state === 'done') {
      this.#takeSave({ command, state: 'done', value: received.value, at });
      if (!isAbsent(reply)) this.#takeOwnShutdown(reason);
    }
    this.#publish();
  }

  /** Notes a shutdown sent by the board, which the responses may not show: the program may end before the next one. */
  #takeOwnShutdown(reason: string): void {
    this.#shutdown.confirm({ by: BY, reason });
    if (this.isOffline && !this.#state.ended) this.#takeEnd();
  }

  /** Forgets outcomes in one place on the page, or all of them when the system is a new process. */
  #forgetSent(place?: string): void {
    this.#state.sent = this.#state.sent.filter(({ command, state }) => {
      return state === 'sent' || (place !== undefined && place !== this.#placeOf(command));
    });
  }

  /** Where a page shows the outcome of a command: in the row of an own command, or in the place for all others. */
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
    const isResponse = reply.ok || reply.phase === 'answered';
    if (status === NO_ANSWER) state.unansweredSince ??= Date.now();
    else state.unansweredSince = null;
    if (!isNew) return;
    if (reply.ok) this.#shutdown.note(reply.body, status);
    if (status !== state.status) {
      const isChange = state.status !== ''; // the first status may be old
      const since = isChange ? Date.now() : null;
      Object.assign(state, { status, since, by: '', reason: '', ended: false, crashed: false });
      if (state.progress !== null) state.progress = { ...state.progress, leftMs: null };
      if (this.isOffline) this.#takeEnd();
      if (status === SystemStatus.ACTIVE.statusName) this.#activeSince = steadyNow();
    }
    if (!isResponse) state.unheardSince = null;
    state.error = reply.ok || status === NO_ANSWER ? '' : this.#client.shorten(reply.error);
    if (status === UNKNOWN && reply.ok) state.error = describeUnknown(reply.original);
    if (reply.ok && reply.body['commands'] !== undefined) this.#takeInfo(reply.body);
  }

  /** Notes why the system is offline. The outcome of pending commands stays unknown. */
  #takeEnd(): void {
    const { cause } = this.#shutdown;
    if (cause !== null) {
      const [by, reason] = [excerptOf(cause['by']), excerptOf(cause['reason'])];
      const crashed = isCrash(cause);
      Object.assign(this.#state, { by, reason, crashed, ended: !crashed });
    }
    const [latest] = this.#state.commands;
    const isCounted = latest?.command === 'shutdown' && isFinal(latest.state);
    if (this.#state.ended && !isCounted) this.#counter.add('shutdown', 'done');
    const isPending = (state: string): boolean => state === 'waiting' || state === 'running';
    for (const entry of this.#state.commands) if (isPending(entry.state)) entry.state = 'outcome unknown';
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
    this.#counter.addNew(commandsOf(info));
    Object.assign(this.#state, {
      name: excerptOf(info['name']) || this.title,
      process,
      since: readTime(info['since']),
      by: excerptOf(info['by']),
      reason: excerptOf(info['reason']),
      commands: entriesOf(info['commands']).slice(-MAX_COMMANDS).reverse().map(readCommand),
    });
    this.#takeOwnCommands(ownCommandsOf(info));
  }

  /** A shutdown also saves, and fails if the save fails. */
  #takeSave(entry: Body): void {
    const { command, state, value, error, at, seconds } = entry;
    if ((command !== 'save-state' && command !== 'shutdown') || isRefusedSave(entry)) return;
    const saved = command === 'shutdown' ? savedBy(entry) : excerptOfJson(value);
    const isSaved = state === 'done' && (command === 'save-state' || saved !== '');
    if (!isSaved && (state !== 'failed' || (command === 'shutdown' && isEndError(error)))) return;
    this.#state.saveError = isSaved ? '' : excerptOf(error, MAX_VALUE_LENGTH);
    const start = readTime(at);
    const duration = typeof seconds === 'number' ? seconds * 1000 : 0;
    if (isSaved) this.#state.saved = { value: saved, at: start === null ? null : start + duration };
  }

  /** Pages receive the declarations only after a change: these are longer than the rest, which changes every second. */
  #takeOwnCommands(ownCommands: OwnCommand[]): void {
    if (JSON.stringify(ownCommands) === JSON.stringify(this.#ownCommands)) return;
    this.#ownCommands = ownCommands;
    this.#declaredAt = this.#listener.nextVersion();
    this.#published = '';
  }

  /** @param now By the steady clock. */
  #takeDetail({ detail, heardAt }: Body, now: number): void {
    const rows = readRows(detail);
    this.#state.detail = rows;
    this.#state.current = currentValues(detail, this.#ownCommands);
    this.#sample();
    this.#takeProgress(progressOf(detail));
    this.#state.canSave = !this.#isWatched || splitDetail(detail).run['canSave'] !== false;
    const heard = readTime(heardAt) ?? now;
    if (Math.abs(heard - this.#heardAt) > HEARD_MS) [this.#heardAt, this.#heardAtSince] = [heard, now];
    const isSlow = this.#isWatched && now - this.#heardAtSince >= SLOW_MS;
    this.#state.unheardSince = isSlow ? this.#heardAt : null;
  }

  /** Takes a sample of the numbers if one is due. */
  #sample(): void {
    const { period } = this.#listener;
    const isKept = this.#isWatched || period !== LIVE;
    if (!isKept || !this.#series.isDue) return;
    const time = this.#listener.nextVersion(); // later than any version that a page has
    this.#series.add(time, numbersIn(this.#state.detail).filter(([name]) => !/^(run\.)?pid$/.test(name)));
  }

  /** The time left is unknown while the program is paused. */
  #takeProgress(progress: Progress | null): void {
    if (progress === null) return void (this.#state.progress = null);
    const { done, of } = progress;
    const name = excerpt(progress.name);
    const isActive = this.#state.status === SystemStatus.ACTIVE.statusName;
    const pace = isActive ? this.#series.get(name)?.paceSince(this.#activeSince) ?? null : null;
    const leftMs = pace === null ? null : Math.round((of - done) / pace);
    this.#state.progress = { name, done, of, leftMs: Number.isFinite(leftMs) ? leftMs : null };
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
