// One system on the board: sends it commands, samples its numbers, and keeps the state that pages show.

import { BY, isCurrent, OFFLINE } from '../shared/client.ts';
import { stackIn } from '../shared/declared.ts';
import { commandsOf, hasEnded } from '../shared/describe.ts';
import { hasLog, readHistory } from '../shared/logs.ts';
import { describeDone, follow, FollowedSystem, type FollowOptions } from '../shared/system.ts';
import { type Body, excerpt, excerptOf, timeIn } from '../shared/text.ts';
import { type Field, fieldsIn, type View, viewOf } from '../shared/view.ts';
import {
  type Ask, type AskEnd, currentValues, type OwnCommand, ownCommandsOf, readAskEnds, readAsks, type Scalar,
} from './forms.ts';
import { type Sample, SeriesGroup } from './series.ts';
import type { Found } from '../shared/folder.ts';
import type { Fold } from '../shared/log.ts';

const COMMAND_WAIT_S = 300; // the time limit of a request that sends a command
const FOLLOW_MS = 3_600_000; // how long the board then follows the command
const MAX_ENTRIES = 50; // of the log
const REFUSALS: readonly number[] = [400, 404, 409, 413]; // of an answer; a page takes a 401 for its own key

/** What pages show: the system in words, and what the board knows besides. */
export interface State extends Omit<View, 'asks'> {
  /** As given. */
  target: string;
  /** The fields of the detail that have the name of a parameter. */
  current: [name: string, value: Scalar][];
  /** The open questions, the oldest first. */
  asks: Ask[];
  /** How the latest questions have ended. */
  askEnds: AskEnd[];
  /** Commands sent by the board: the pending ones and the latest. */
  sent: readonly SentCommand[];
  /** The id of the last command sent by the board. */
  sentCount: number;
  /** A command that has waited for 10 s, and can take effect in the middle of a step. */
  late: 'pause' | 'shutdown' | '';
  /** Whether the system logs what happens to a file. */
  hasLog: boolean;
}

export type Limits = Pick<FollowOptions, 'within' | 'for'>;

export interface SentCommand {
  /** Increases with each command. */
  id: number;
  command: string;
  state: 'sent' | 'done' | 'failed';
  /** The outcome. */
  text: string;
  /** The parameter whose argument was refused; empty if there is none. */
  parameter?: string;
  /** Whether the system reports the outcome, too. */
  isReported?: boolean;
}

/** The state in a response to a page, without the samples and own commands that the page has. */
export type Update = Omit<State, 'fields'> & {
  id: number;
  /** A page draws a gap between samples that are much further apart than `intervalMs`. */
  fields: (Field & { samples?: Sample[]; intervalMs?: number })[];
  accepts?: readonly OwnCommand[];
};

/** What a page shows of the log or the call stack of a system. */
export interface LogPart {
  /** Where the log is if it is not here, or what is wrong. Otherwise empty. */
  note: string;
  /** The oldest first; the functions of a call stack, which have no time, innermost first. */
  entries: ({ at?: number; text: string } & Partial<Fold>)[];
}

/** The part of the board that a system uses. */
interface Board {
  nextVersion(): number;
  onChange(): void;
}

export class BoardSystem extends FollowedSystem {
  /** The board's version at the latest change of the state. Samples compare by their times instead. */
  version = 0;
  #versionBefore = 0; // at the change before
  readonly id: number;
  /** Unique on the board, unlike the name. */
  readonly title: string;
  readonly #board: Board;
  readonly #series = new SeriesGroup();
  #state: State;
  #published = ''; // the state at `version`, as JSON
  #ownCommands: OwnCommand[] = [];
  #declaredAt = 0; // the board's version at their latest change
  #isWatched = false;
  #fields: Field[] = []; // as of the latest read, like the samples
  #sent: readonly SentCommand[] = [];
  #sentCount = 0;

  constructor(id: number, target: Found, board: Board) {
    super(target);
    this.id = id;
    this.title = excerpt(target.id);
    this.#board = board;
    this.#state = this.#draw();
  }

  /**
   * The state for a page, with the samples and own commands that the page lacks. Pages receive a system only when it
   * changes, so a page has no samples after the change before, even if its version is later.
   */
  updateSince(since: number): Update {
    const version = Math.min(since, this.#versionBefore);
    const fields = this.#state.fields.map((field) => {
      const series = typeof field.value === 'number' ? this.#series.get(field.name) : undefined;
      return series === undefined ? field : { ...field, samples: series.since(version), intervalMs: series.intervalMs };
    });
    const update = { id: this.id, ...this.#state, fields };
    return version <= this.#declaredAt ? { ...update, accepts: this.#ownCommands } : update;
  }

  get state(): Readonly<State> {
    return this.#state;
  }

  /** Whether the system can be reached, as far as is known. */
  get isReachable(): boolean {
    return this.reported !== OFFLINE && this.unansweredSince === null;
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
    this.publish();
  }

  /** Notes a reply to the requests that follow the system. */
  onReply(): void {
    const { reply, info } = this;
    if (reply?.ok === true && info['commands'] !== undefined) this.#takeOwnCommands(ownCommandsOf(info));
    this.publish();
  }

  /** Reads the detail, and takes a sample of its numbers if one is due. */
  async readDetail(): Promise<void> {
    if (this.unansweredSince !== null) this.publish(); // that grows while requests wait
    const isRead = await this.read(() => this.publish());
    if (isRead) this.#fields = fieldsIn(this.info['detail']);
    if (isRead && this.#isWatched && this.#series.isDue) {
      const time = this.#board.nextVersion(); // later than any version that a page has
      this.#series.add(time, numbersIn(this.#fields).filter(([name]) => !/^(run\.)?pid$/.test(name)));
    }
    this.publish();
  }

  /** Sends a command; an own command has arguments. Returns the id of its entry in `sent`. */
  send(command: string, reason: string, values?: object, limits?: Limits): number {
    const sent: SentCommand = { id: this.#sentCount += 1, command, state: 'sent', text: '' };
    this.#forgetSent(this.#placeOf(command));
    this.#sent = [...this.#sent, sent];
    this.publish();
    void this.#deliver(sent, reason, values, limits);
    return sent.id;
  }

  /**
   * Sends the answer to a question, or withdraws a command. It needs no queue, so the outcome is the response. Returns
   * the status code and the body for the page.
   */
  async settle(how: string, id: string, reason: string, values?: object): Promise<[statusCode: number, body: object]> {
    const { client } = this;
    const reply = await client.request(how, { id, arguments: values, by: BY, reason });
    if (reply.ok) return [200, { result: 'ok' }];
    const { statusCode = 0, error, body } = reply;
    const parameter = excerptOf(body['parameter']) || undefined;
    return [REFUSALS.includes(statusCode) ? statusCode : 502, { error: client.shorten(error), parameter }];
  }

  /** The latest entries of its log, if it can be read. */
  async readLog(): Promise<LogPart> {
    const { client, info } = this;
    const { note, lines } = await readHistory(client, info);
    const entries = lines.slice(-MAX_ENTRIES).map(({ time, text, fold }) => {
      return fold === undefined ? { at: time, text } : { at: time, ...fold };
    });
    return { note, entries };
  }

  /** The functions in which its program is, innermost first. */
  async readStack(): Promise<LogPart> {
    const { client } = this;
    const reply = await client.request('stack');
    if (!reply.ok) return { note: client.shorten(reply.error), entries: [] };
    return { note: '', entries: stackIn(reply.body).map((text) => ({ text })) };
  }

  /** Sends the command and follows it until it is completed. */
  async #deliver(sent: SentCommand, reason: string, values?: object, limits?: Limits): Promise<void> {
    const { command } = sent;
    const { client } = this;
    if (limits?.for !== undefined && isCurrent(this.info, 27) !== true) { // others would pause without an end
      Object.assign(sent, { state: 'failed', text: 'not paused: an end requires control.ts 0.27 or later' });
      return this.publish();
    }
    const start = performance.now();
    const options = { arguments: values, wait: COMMAND_WAIT_S, by: BY, reason, ...limits };
    const reply = await client.request(command, options); // no retry: a full queue is an error
    const followed = await follow(client, command, { timeoutMs: FOLLOW_MS, reply, ...limits });
    const { value, error, summary, received } = followed;
    const seconds = (performance.now() - start) / 1000;
    sent.state = error === '' ? 'done' : 'failed';
    sent.text = client.shorten(summary) || `${describeDone(command, value)} (${seconds.toFixed(1)} s)`;
    if (!reply.ok) sent.parameter = excerptOf(reply.body['parameter']);
    sent.isReported = hasEnded(received);
    if (command === 'shutdown' && sent.state === 'done') { // the program may end before it can report that
      this.noteSave({ command, state: 'done', value: received.value, at: new Date().toISOString(), by: BY });
      if (reply.fault !== 'offline') this.confirmShutdown({ by: BY, reason });
    }
    this.publish();
  }

  /** Forgets outcomes in one place on the page, or all of them when the system is a new process. */
  #forgetSent(place?: string): void {
    this.#sent = this.#sent.filter(({ command, state }) => {
      return state === 'sent' || (place !== undefined && place !== this.#placeOf(command));
    });
  }

  /** Where a page shows the outcome of a command: in the row of an own command, or in the place for all others. */
  #placeOf(command: string): string { return this.declares(command) ? command : ''; }

  protected override noteRestart(): void {
    super.noteRestart();
    this.#forgetSent();
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
    const { info, target } = this;
    const view = viewOf(this);
    const atButtons = this.#sent.filter((sent) => sent.state === 'failed' || this.declares(sent.command));
    const shown = atButtons.map((sent) => commandsOf(info).filter(({ command, by, state }) => {
      return command !== 'save-state' && command === sent.command && by === BY && state === sent.state;
    }).at(-1)?.['id']);
    return {
      ...view,
      commands: view.commands.filter(({ id }) => !shown.includes(id)),
      name: [view.machine, view.name].filter((text) => text !== '').join('/'), // an absent machine has no name in it
      target: excerpt(target.name ?? this.client.target),
      canSave: !this.#isWatched || view.canSave, // without an open page, reads are rare
      fields: this.isReachable ? this.#fields : view.fields, // the last report may be later than the last read
      current: currentValues(info['detail'], this.#ownCommands),
      asks: view.asks.length === 0 ? [] : readAsks(info),
      askEnds: readAskEnds(info),
      sent: this.#sent, sentCount: this.#sentCount,
      late: this.isReachable && isCurrent(info, 26) === true ? lateIn(info) : '',
      hasLog: hasLog(info),
    };
  }

  /** Tells the pages if the state has changed. */
  publish(): void {
    this.#state = this.#draw();
    const text = JSON.stringify(this.#state);
    if (text === this.#published) return;
    this.#published = text;
    this.#versionBefore = this.version;
    this.version = this.#board.nextVersion();
    this.#board.onChange();
  }
}

/** Only control-run, which reports `run`, can stop a program in the middle of a step. */
function lateIn(info: Body): State['late'] {
  const isLate = (entry: Body): boolean => Date.now() - (timeIn(entry, 'at') ?? Infinity) >= 10_000;
  const late = commandsOf(info).filter((entry) => !hasEnded(entry) && isLate(entry)).map(({ command }) => command);
  if (late.includes('shutdown')) return 'shutdown';
  return late.includes('pause') && Object(info['detail']).run !== undefined ? 'pause' : '';
}

export function numbersIn(fields: readonly Field[]): [name: string, value: number][] {
  return fields.flatMap(({ name, value }): [string, number][] => (typeof value === 'number' ? [[name, value]] : []));
}
