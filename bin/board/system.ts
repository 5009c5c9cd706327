// One system on the board: follows it, sends it commands, and keeps the state that pages show.

import { SystemStatus } from '../../control.ts';
import { BY, LINK_ENDED, NO_ANSWER } from '../shared/client.ts';
import { commandsOf, hasEnded, isCrash, progressOf, savedBy } from '../shared/describe.ts';
import { hasLog, readHistory } from '../shared/log.ts';
import { describeDone, follow, FollowedSystem } from '../shared/system.ts';
import { type Body, excerpt, excerptOf, excerptOfJson, MAX_VALUE_LENGTH, timeIn } from '../shared/text.ts';
import { SeriesGroup, steadyNow } from './series.ts';
import {
  canSaveIn, currentValues, type DetailRow, isRefusedSave, type ListedCommand, type LogPart, numbersIn, type OwnCommand,
  ownCommandsOf, readAskEnds, readAsks, readCommand, readHolds, readRows, type SentCommand, type State, type Update,
} from './state.ts';
import type { Found } from '../shared/folder.ts';

const WAIT_S = 30; // the time limit of a request that waits for a change
const COMMAND_WAIT_S = 300; // the time limit of a request that sends a command
const FOLLOW_MS = 3_600_000; // how long the board then follows the command
const SLOW_MS = 2000; // pages show that a system or a program has been silent for this long
const HEARD_MS = 500; // values of `heardAt` that differ by less count as equal
const MAX_ENTRIES = 50; // of the log
const REFUSALS: readonly number[] = [400, 404, 409, 413]; // of an answer; a page takes a 401 for its own key
const MAX_COMMANDS = 5; // and what runs, for which others may wait

/** The part of the board that a system uses. */
interface Board {
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
  readonly target: Found;
  readonly #system: FollowedSystem;
  readonly #board: Board;
  readonly #series = new SeriesGroup();
  #state: State;
  #published = ''; // the state at `version`, as JSON
  #ownCommands: OwnCommand[] = [];
  #declaredAt = 0; // the board's version at their latest change
  #isWatched = false;
  #process = ''; // that the latest response names
  #saved: State['saved'] = null;
  #saveError = '';
  #rows: DetailRow[] = []; // as of the latest read, like the samples
  #sent: readonly SentCommand[] = [];
  #sentCount = 0;
  #unheardSince: number | null = null;
  #heard = { at: 0, since: 0 }; // when the program last checked for commands, and since when reads report that
  readonly #end: AbortController = new AbortController();

  /** @param isFound Whether it was found in a folder. */
  constructor(id: number, target: Found, board: Board, isFound: boolean = false) {
    this.id = id;
    this.target = target;
    this.title = excerpt(target.id);
    this.isFound = isFound;
    this.#system = new FollowedSystem(target);
    this.#board = board;
    this.#state = this.#draw();
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

  /** The status, or `no answer` if requests have no response. */
  get status(): string {
    return this.#system.status;
  }

  get state(): Readonly<State> {
    return this.#state;
  }

  get isOffline(): boolean {
    return this.#system.reported === SystemStatus.OFFLINE.statusName;
  }

  /** Whether the system can be reached, as far as is known. */
  get isReachable(): boolean {
    return !this.isOffline && this.#system.unansweredSince === null;
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
    this.#unheardSince = null;
    this.#publish();
  }

  /** Reads the detail, and takes a sample of its numbers if one is due. */
  async read(): Promise<void> {
    const now = steadyNow();
    const publish = (): void => this.#publish();
    if (!await this.#system.read(publish)) return publish();
    const { info } = this.#system;
    this.#rows = readRows(info['detail']);
    const at = timeIn(info, 'heardAt') ?? now;
    if (Math.abs(at - this.#heard.at) > HEARD_MS) this.#heard = { at, since: now };
    this.#unheardSince = this.#isWatched && now - this.#heard.since >= SLOW_MS ? this.#heard.at : null;
    if (this.#isWatched && this.#series.isDue) {
      const time = this.#board.nextVersion(); // later than any version that a page has
      this.#series.add(time, numbersIn(this.#rows).filter(([name]) => !/^(run\.)?pid$/.test(name)));
    }
    publish();
  }

  /** Sends a command; an own command has arguments. Returns the id of its entry in `sent`. */
  send(command: string, reason: string, values?: object): number {
    const sent: SentCommand = { id: this.#sentCount += 1, command, state: 'sent', text: '' };
    this.#forgetSent(this.#placeOf(command));
    this.#sent = [...this.#sent, sent];
    this.#publish();
    void this.#deliver(sent, reason, values);
    return sent.id;
  }

  /**
   * Sends the answer to a question. It needs no queue, so the outcome is the response. Returns the status code and the
   * body for the page.
   */
  async answer(id: string, reason: string, values: object): Promise<[statusCode: number, body: object]> {
    const { client } = this.#system;
    const reply = await client.request('answer', { id, arguments: values, by: BY, reason });
    if (reply.ok) return [200, { result: 'ok' }];
    const { statusCode = 0, error, body } = reply;
    const parameter = excerptOf(body['parameter']) || undefined;
    return [REFUSALS.includes(statusCode) ? statusCode : 502, { error: client.shorten(error), parameter }];
  }

  /** The latest entries of its log, if that is on this machine. */
  async readLog(): Promise<LogPart> {
    const { client, info } = this.#system;
    const { note, lines } = await readHistory(client, info);
    const entries = lines.slice(-MAX_ENTRIES).map(({ time, text, fold }) => {
      return fold === undefined ? { at: time, text } : { at: time, ...fold };
    });
    return { note, entries };
  }

  /** Sends the command and follows it until it is completed. */
  async #deliver(sent: SentCommand, reason: string, values: object | undefined): Promise<void> {
    const { command } = sent;
    const { client } = this.#system;
    const start = performance.now();
    const options = { arguments: values, wait: COMMAND_WAIT_S, by: BY, reason };
    const reply = await client.request(command, options); // no retry: a full queue is an error
    const followed = await follow(client, command, { timeoutMs: FOLLOW_MS, reply });
    const { value, error, summary, received } = followed;
    const seconds = (performance.now() - start) / 1000;
    sent.state = error === '' ? 'done' : 'failed';
    sent.text = client.shorten(summary) || `${describeDone(command, value)} (${seconds.toFixed(1)} s)`;
    const parameter = excerptOf(reply.ok ? undefined : reply.body['parameter']);
    if (parameter !== '') sent.parameter = parameter;
    if (command === 'shutdown' && sent.state === 'done') { // the program may end before it can report that
      this.#takeSave({ command, state: 'done', value: received.value, at: new Date().toISOString() });
      if (reply.fault !== 'offline') this.#system.confirmShutdown({ by: BY, reason });
    }
    this.#publish();
  }

  /** Forgets outcomes in one place on the page, or all of them when the system is a new process. */
  #forgetSent(place?: string): void {
    this.#sent = this.#sent.filter(({ command, state }) => {
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
    for await (const reply of this.#system.follow(this.#end.signal, WAIT_S)) {
      if (reply.ok && reply.body['commands'] !== undefined) this.#takeInfo(reply.body);
      this.#publish();
    }
  }

  #takeInfo(info: Body): void {
    const [pid, host] = [excerptOf(info['pid']), excerptOf(info['host'])];
    const process = (pid && `process ${pid}`) + (host && ` on ${host}`);
    if (this.#process !== '' && process !== this.#process) {
      this.#forgetSent();
      this.#saveError = '';
    }
    this.#process = process;
    for (const entry of commandsOf(info)) this.#takeSave(entry, info);
    this.#takeOwnCommands(ownCommandsOf(info));
  }

  /** A shutdown also saves. */
  #takeSave(entry: Body, info: Body = {}): void {
    const { command, state, value, error, seconds } = entry;
    const isShutdown = command === 'shutdown';
    if (!isShutdown && command !== 'save-state') return;
    const saved = isShutdown ? savedBy(entry) : excerptOfJson(value);
    const at = timeIn(entry, 'at');
    const duration = typeof seconds === 'number' ? seconds * 1000 : 0;
    if (state === 'done' && (!isShutdown || saved !== '')) {
      this.#saved = { value: saved, at: at === null ? null : at + duration };
      this.#saveError = '';
    } else if (state === 'failed' && !isShutdown) {
      this.#saveError = isRefusedSave(entry, info) ? '' : excerptOf(error, MAX_VALUE_LENGTH);
    }
  }

  /** Pages receive the declarations only after a change: these are longer than the rest, which changes every second. */
  #takeOwnCommands(ownCommands: OwnCommand[]): void {
    if (JSON.stringify(ownCommands) === JSON.stringify(this.#ownCommands)) return;
    this.#ownCommands = ownCommands;
    this.#declaredAt = this.#board.nextVersion();
    this.#published = '';
  }

  /** The state, from what the system reports and what the board has noted. */
  #draw(): State {
    const system = this.#system;
    const { reported, reply, info, end, secondsLeft } = system;
    const leftMs = secondsLeft && Math.round(1000 * secondsLeft);
    const { detail } = info;
    const progress = progressOf(detail);
    const crashed = end !== null && isCrash(end);
    const cause = end ?? (reply?.ok === true ? info : {});
    const listed = commandsOf(info);
    const shown = listed.filter(({ state }, index) => state === 'running' || index >= listed.length - MAX_COMMANDS);
    const commands = shown.reverse().map((entry): ListedCommand => {
      const isLost = this.isOffline && !hasEnded(entry);
      return { ...readCommand(entry, info), ...(isLost && { state: 'outcome unknown' }) };
    });
    const isUnlinked = reply?.ok === false && reply.code === LINK_ENDED; // its machine cannot be reached
    const isAnswered = reply?.ok === true || reply?.phase === 'answered';
    return {
      target: excerpt(this.target.name ?? system.client.target),
      name: this.#nameIn(info),
      process: this.#process,
      status: reported,
      since: system.since,
      by: excerptOf(cause['by']),
      reason: excerptOf(cause['reason']),
      holds: readHolds(cause),
      error: reported === NO_ANSWER && !isUnlinked ? '' : system.error,
      ended: end !== null && !crashed,
      crashed,
      canSave: !this.#isWatched || canSaveIn(info),
      saved: this.#saved,
      saveError: this.#saveError,
      unansweredSince: system.unansweredSince,
      unheardSince: isAnswered ? this.#unheardSince : null,
      detail: this.#rows,
      progress: progress && { ...progress, name: excerpt(progress.name), leftMs },
      current: currentValues(detail, this.#ownCommands),
      asks: reply?.ok === true || reported === NO_ANSWER ? readAsks(info) : [],
      askEnds: readAskEnds(info),
      commands,
      sent: this.#sent,
      sentCount: this.#sentCount,
      hasLog: hasLog(info),
    };
  }

  /** With the machine, if it is another one. */
  #nameIn(info: Body): string {
    const { label } = this.target.client.machine;
    const name = excerptOf(info['name']);
    return name !== '' && label !== '' ? `${label}/${name}` : name || this.title;
  }

  #publish(): void {
    this.#state = this.#draw();
    const text = JSON.stringify(this.#state);
    if (text === this.#published) return;
    this.#published = text;
    this.#versionBefore = this.version;
    this.version = this.#board.nextVersion();
    this.#board.onChange();
  }
}
