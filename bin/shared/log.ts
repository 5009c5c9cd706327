// Tells logs in words. Anybody may have written them.

import { messageIn } from './declared.ts';
import { describeCause, describeCommand, endIn, holdsOf, savedIn, valueIn } from './describe.ts';
import { type Body, clockTime, excerptOf, excerptOfJson, isRecord, MAX_VALUE_LENGTH, timeIn } from './text.ts';

/** What a person reads of a log. Safe to print. */
export interface Line {
  /** In milliseconds. */
  time: number;
  text: string;
  /** The status that it reports; otherwise empty. */
  status: string;
  /** What it is about. Not safe to print. */
  entry: Body;
  /** If it stands for several equal outcomes. */
  fold?: Fold;
}

/** The outcomes that one line stands for. */
export interface Fold {
  /** The latest one in words. */
  text: string;
  count: number;
  /** In milliseconds. */
  firstTime: number;
}

const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/;
const PASSING = ['pausing', 'resuming']; // statuses that lead to another one
const TOLD: ReadonlyMap<unknown, string> = new Map([['pause', 'paused'], ['resume', 'active']]); // by these statuses
const NOBODY = 'somebody'; // what servers call a sender without a name
const NOISE_MS = 50; // between the times of an entry, which come from two clocks
const MAX_GIVEN = 200; // characters of arguments
const MAX_KNOWN = 1000; // outcomes and questions that may be repeated

/** Returns the entry in a line of a log; null if it is none. */
export function parseEntry(text: string): Body | null {
  const entry = parseRecord(text);
  if (entry === null) return null; // it is torn
  const { time, name, pid, event } = entry;
  const isEntry = typeof time === 'string' && TIME.test(time) && !Number.isNaN(Date.parse(time)) &&
    typeof name === 'string' && Number.isSafeInteger(pid) && typeof event === 'string';
  return isEntry ? entry : null;
}

/** Null if the text is not the JSON of an object. */
export function parseRecord(text: string): Body | null {
  let value: unknown;
  try { value = JSON.parse(text); } catch {}
  return isRecord(value) ? value : null;
}

/** In milliseconds. `parseEntry()` has checked it. */
export function timeOf(entry: Body): number {
  return Date.parse(entry['time'] as string);
}

/** The lines about a running system, from its entries in the order of the file. */
export function describeLog(entries: Iterable<Body>): Line[] {
  const story = new Story(true);
  const lines = [...entries].flatMap((entry) => story.tell(entry));
  return [...lines, ...story.describeUnfinished()].sort(byTime);
}

/** For sorting: entries may be a quarter of a second late. */
export function byTime(one: Pick<Line, 'time'>, other: Pick<Line, 'time'>): number {
  return one.time - other.time;
}

/** Tells what happens to a system, from its entries in the order of the file. */
export class Story {
  /** The latest status that is told; null if there was none since the start. */
  status: Line | null = null;
  /** The time of the latest entry. */
  lastTime: number = 0;
  readonly #isFolded: boolean;
  readonly #pending: Map<string, Body> = new Map(); // commands without an outcome, by id
  readonly #known: Set<string> = new Set(); // the ids of the latest outcomes, and of questions after `ask `
  readonly #folds: Map<string, Line> = new Map(); // since the latest line that is neither an outcome nor a question
  #hasServer = false; // it has started, and not ended
  #hasProgram = false; // the same for a program under control-run
  #startTime = 0;
  #started: Line | null = null; // by control-run; if that has failed, the line is replaced
  #shown = '';
  #held: Body | null = null; // the latest status during a save, or an end that control-run logs
  #mayRepeat = false; // after the death of a thread
  readonly #lines: Line[] = []; // new ones

  /** @param isFolded Whether equal outcomes in a row become one line: the latest one, which changes. */
  constructor(isFolded: boolean) {
    this.#isFolded = isFolded;
  }

  /** Whether the log has no end of the system yet. */
  get isOpen(): boolean {
    return this.#hasServer || this.#hasProgram;
  }

  /** Begins a new line for the next outcome, although it may equal the latest one. */
  unfold(): void {
    this.#folds.clear();
  }

  /** Returns new lines. Most entries add one line or none. */
  tell(entry: Body): Line[] {
    const time = Math.max(timeOf(entry), this.#startTime); // a server learns its first status before it starts
    const { event } = entry;
    const id = excerptOf(entry['id']);
    switch (event) {
      case 'start': this.#start(entry, time); break;
      case 'end': this.#end(entry, time); break;
      case 'status': this.#noteStatus(entry, time); break;
      case 'command':
        if (!this.#known.has(id) && this.#pending.size < MAX_KNOWN) this.#pending.set(id, entry); // else, it is repeated
        break;
      case 'ask':
        if (!this.#known.has(id) && this.#isNew(`ask ${id}`)) this.#fold(time, `asks: ${messageIn(entry)}`, entry);
        break;
      case 'answer':
      case 'outcome': this.#noteOutcome(id, entry, time); break;
      case 'thread':
        this.#mayRepeat = true;
        this.#add(time, `the server thread died: ${textOf(entry, 'error')}`, entry);
        break;
      case 'lost': {
        const count = excerptOf(entry['lines']);
        const what = count === '1' ? '1 line is' : `${count} lines are`;
        this.#add(time, `${what} lost: ${textOf(entry, 'error')}`, entry);
        this.#abandon(time, 'may have lost its outcome');
      }
    }
    if (event !== 'start' && event !== 'end') this.#hasServer = true; // the start may be in an older file
    this.lastTime = Math.max(this.lastTime, time);
    return this.#lines.splice(0);
  }

  /**
   * The lines about a system that has ended although its log has no end.
   *
   * @param isHere Whether it ran on this machine; otherwise, it may run on another one.
   */
  cut(isHere: boolean = true): Line[] {
    const why = isHere ? 'killed, or the machine stopped' : 'killed, the machine stopped, or it runs on another one';
    this.#showHeld();
    this.#abandon(this.lastTime);
    this.#add(this.lastTime, `the log ends here: ${why}`, { event: 'end' });
    [this.#hasServer, this.#hasProgram] = [false, false];
    return this.#lines.splice(0);
  }

  /** What a live system does at the end of its log: it ends, or commands have no outcome yet. */
  describeUnfinished(): Line[] {
    if (this.#isOwnEnd) this.#showHeld();
    for (const entry of this.#pending.values()) this.#addUnfinished(timeOf(entry), entry, 'has no outcome yet');
    return this.#lines.splice(0);
  }

  /** The same for one that has ended, or has lost lines. */
  #abandon(time: number, state?: string): void {
    for (const entry of this.#pending.values()) {
      const since = clockTime(new Date(timeOf(entry)), new Date(time));
      this.#addUnfinished(time, entry, state ?? `has no outcome since ${since}`);
    }
    this.#pending.clear();
  }

  /** A command as /api/info would list it: long arguments are left out. */
  #addUnfinished(time: number, entry: Body, state: string): void {
    const given = excerptOfJson(entry['arguments']).length > MAX_GIVEN ? undefined : entry['arguments'];
    this.#add(time, describeCommand({ ...entry, state, arguments: given }), entry);
  }

  #start(entry: Body, time: number): void {
    const words = entry['commandLine'];
    const isProgram = Array.isArray(words);
    // Under control-run, the start of the program comes first.
    const isCut = isProgram ? this.#hasProgram : this.#hasServer && !this.#hasProgram;
    if (isCut) this.#lines.push(...this.cut());
    if (!this.#hasServer) [this.status, this.#held, this.#shown, this.#startTime] = [null, null, 'active', time];
    if (isProgram) {
      const line = excerptOf(words.map(excerptOfJson).join(' '), MAX_VALUE_LENGTH);
      this.#started = this.#add(time, `started: ${line}`, entry);
      this.#hasProgram = true;
    } else {
      if (!this.#hasProgram) this.#add(time, 'started', entry);
      this.#hasServer = true;
    }
  }

  #end(entry: Body, time: number): void {
    const how = textOf(entry, 'ended');
    const isOfServer = how === '' || !Number.isInteger(entry['exitCode']); // without one, control-run itself is gone
    if (isOfServer) this.#abandon(time);
    const isRefused = this.#isFolded && this.#started !== null && /^cannot (start|serve) /i.test(how);
    if (isRefused) Object.assign(this.#started as Line, { text: how, entry });
    else if (how !== '' || !this.#hasProgram) this.#add(time, how || 'ended', entry);
    this.#held = null;
    if (isOfServer) this.#hasServer = false;
    if (how !== '') this.#hasProgram = false;
  }

  /** Whether the latest status tells all about a pause or a resume: who, why, and that it is done. */
  #isTold(entry: Body): boolean {
    const { command, state, value } = entry;
    const isRelease = command === 'resume' && Object(value).released === true; // with `mine`
    const isPlain = state === 'done' && (isRelease || valueIn(entry) === '');
    if (!this.#isFolded || !isPlain || this.status === null || this.status.status !== TOLD.get(command)) return false;
    const by = excerptOf(entry['by']) || NOBODY;
    const acceptedAt = timeIn(entry, 'at') ?? Infinity;
    const authors = command === 'pause' ? holdsOf(this.status.entry) : [this.status.entry];
    const isBy = authors.some((author) => (excerptOf(author['by']) || NOBODY) === by);
    return isBy && this.status.time >= acceptedAt - NOISE_MS;
  }

  #noteOutcome(id: string, entry: Body, time: number): void {
    const { command, event, state } = entry;
    if (event === 'answer' && state === 'done') this.#folds.clear(); // each answer is a decision
    this.#pending.delete(id);
    const end = (command === 'shutdown' && this.#isOwnEnd && endIn(entry['value'])) || {};
    const isMere = 'ended' in end && end['ended'] === this.#held?.['reason'] && savedIn(end) === '';
    if (isMere) this.#held = null;
    if (command === 'save-state' || command === 'shutdown') this.#showHeld();
    if (isMere || (id !== '' && !this.#isNew(id)) || this.#isTold(entry)) return;
    const texts = ['command', 'message', 'by', 'reason', 'state'].map((name) => excerptOf(entry[name]));
    if (command === 'resume') texts.push(valueIn(entry)); // it has released a hold, or held none
    this.#fold(time, describeCommand(entry), entry, [...texts, excerptOfJson(entry['arguments'])].join('\n'));
  }

  /** Remembers an id. Returns false if it is known already: a new thread repeats what may be lost. */
  #isNew(id: string): boolean {
    if (this.#known.has(id)) return false;
    this.#known.add(id);
    if (this.#known.size > MAX_KNOWN) this.#known.delete(this.#known.values().next().value as string);
    return true;
  }

  /** Adds a line unless it becomes part of an earlier one, which then changes. */
  #fold(time: number, text: string, entry: Body, key: string = text): void {
    const folded = this.#folds.get(key);
    if (folded === undefined) {
      const line = { time, text, status: '', entry };
      this.#lines.push(line);
      if (this.#isFolded) this.#folds.set(key, line);
      return;
    }
    const { count, firstTime } = folded.fold ?? { count: 1, firstTime: folded.time };
    const since = clockTime(new Date(firstTime), new Date(time));
    const fold = { text, count: count + 1, firstTime };
    Object.assign(folded, { time, text: `${text} (${fold.count} times since ${since})`, entry, fold });
  }

  #noteStatus(entry: Body, time: number): void {
    const name = excerptOf(entry['status']);
    if (this.#mayRepeat && time <= (this.status?.time ?? 0)) return;
    this.#mayRepeat = false;
    if (PASSING.includes(name)) return;
    this.#held = entry;
    if (entry['during'] !== 'save-state' && !this.#isOwnEnd) this.#showHeld();
  }

  /** Whether the program under control-run ends by itself, which control-run logs. */
  get #isOwnEnd(): boolean {
    const { status, by } = this.#held ?? {};
    return this.#hasProgram && status === 'shutting down' && by === 'itself';
  }

  /** Adds the line of the latest status unless a reader knows it already. */
  #showHeld(): void {
    const entry = this.#held;
    if (entry === null) return;
    this.#held = null;
    const status = excerptOf(entry['status']) || 'unknown';
    const text = `${status}${describeCause(entry)}`;
    const key = status === 'paused' ? text : status; // for the others, it is the same whoever caused them
    const line = { time: Math.max(timeOf(entry), this.#startTime), text, status, entry };
    const isNews = key !== this.#shown;
    if (isNews || this.status === null) this.status = line;
    if (!isNews) return;
    this.#shown = key;
    this.#folds.clear();
    this.#lines.push(line);
  }

  #add(time: number, text: string, entry: Body): Line {
    this.#folds.clear();
    const line = { time, text, status: '', entry };
    this.#lines.push(line);
    return line;
  }
}

function textOf(entry: Body, name: string): string {
  return excerptOf(entry[name], MAX_VALUE_LENGTH);
}
