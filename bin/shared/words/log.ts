// The log of a system in words. Anybody may have written the file, so every field may have any type and text.

import { messageIn } from './asks.ts';
import { describeCause, describeCommand, endIn, holdsOf, savedIn, valueIn } from './describe.ts';
import { excerptOf, excerptOfJson, isRecord, MAX_VALUE_LENGTH } from './text.ts';
import { clockTime, timeIn } from './time.ts';
import type { Body } from './text.ts';

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
const NOBODY = 'somebody'; // what servers call a sender without a name
const NOISE_MS = 50; // between the times of an entry, which come from two clocks
const MAX_GIVEN = 200; // characters of arguments
const MAX_KNOWN = 1000; // outcomes and questions that may be repeated

/** Returns the entry in a line of a log; null if it is none. */
export function parseEntry(text: string): Body | null {
  let entry: unknown;
  try {
    entry = JSON.parse(text);
  } catch {
    return null; // it is torn
  }
  if (!isRecord(entry)) return null;
  const { time, name, pid, event } = entry;
  const isEntry = typeof time === 'string' && TIME.test(time) && !Number.isNaN(Date.parse(time)) &&
    typeof name === 'string' && Number.isSafeInteger(pid) && typeof event === 'string';
  return isEntry ? entry : null;
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
  #held: Body | null = null; // a status that may be part of a save, or of an end that control-run logs
  #mayRepeat = false; // after the death of a thread

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
    const lines: Line[] = [];
    if (this.#held !== null && this.#isSettled(entry)) lines.push(...this.#show(this.#held));
    switch (event) {
      case 'start': lines.push(...this.#start(entry, time)); break;
      case 'end': lines.push(...this.#end(entry, time)); break;
      case 'status': lines.push(...this.#noteStatus(entry, time)); break;
      case 'command': this.#noteCommand(entry); break;
      case 'ask': lines.push(...this.#noteAsk(entry, time)); break;
      case 'answer':
        if (entry['state'] === 'done') this.#folds.clear(); // each answer is a decision
        lines.push(...this.#noteOutcome(entry, time));
        break;
      case 'outcome': lines.push(...this.#noteOutcome(entry, time)); break;
      case 'thread':
        this.#mayRepeat = true;
        lines.push(this.#line(time, `the server thread died: ${textOf(entry, 'error')}`, entry));
        break;
      case 'lost': {
        const count = excerptOf(entry['lines']);
        const what = count === '1' ? '1 line is' : `${count} lines are`;
        lines.push(this.#line(time, `${what} lost: ${textOf(entry, 'error')}`, entry));
        lines.push(...this.#abandon(time, 'may have lost its outcome'));
      }
    }
    if (event !== 'start' && event !== 'end') this.#hasServer = true; // the start may be in an older file
    this.lastTime = Math.max(this.lastTime, time);
    return lines;
  }

  /**
   * The lines about a system that has ended although its log has no end.
   *
   * @param isHere Whether it ran on this machine; otherwise, it may run on another one.
   */
  cut(isHere: boolean = true): Line[] {
    const why = isHere ? 'killed, or the machine stopped' : 'killed, the machine stopped, or it runs on another one';
    const text = `the log ends here: ${why}`;
    const held = this.#held === null ? [] : this.#show(this.#held);
    const lines = [...held, ...this.#abandon(this.lastTime), this.#line(this.lastTime, text, { event: 'end' })];
    [this.#hasServer, this.#hasProgram] = [false, false];
    return lines;
  }

  /** What a live system does at the end of its log: it ends, or commands have no outcome yet. */
  describeUnfinished(): Line[] {
    const end = this.#held?.['status'] === 'shutting down' ? this.#show(this.#held) : [];
    const commands = [...this.#pending.values()].map((entry) => {
      return { time: timeOf(entry), text: describeCommand(toCommand(entry, 'has no outcome yet')), status: '', entry };
    });
    return [...end, ...commands];
  }

  /** The same for one that has ended, or has lost lines. */
  #abandon(time: number, state?: string): Line[] {
    const entries = [...this.#pending.values()];
    this.#pending.clear();
    return entries.map((entry) => {
      const end = state ?? `has no outcome since ${clockTime(new Date(timeOf(entry)), new Date(time))}`;
      return this.#line(time, describeCommand(toCommand(entry, end)), entry);
    });
  }

  #start(entry: Body, time: number): Line[] {
    const words = entry['commandLine'];
    const isProgram = Array.isArray(words);
    // Under control-run, the start of the program comes first.
    const isCut = isProgram ? this.#hasProgram : this.#hasServer && !this.#hasProgram;
    const lines = isCut ? this.cut() : [];
    if (!this.#hasServer) [this.status, this.#held, this.#shown, this.#startTime] = [null, null, 'active', time];
    if (isProgram) {
      const text = `started: ${excerptOf(words.map(excerptOfJson).join(' '), MAX_VALUE_LENGTH)}`;
      lines.push(this.#started = this.#line(time, text, entry));
      this.#hasProgram = true;
    } else {
      if (!this.#hasProgram) lines.push(this.#line(time, 'started', entry));
      this.#hasServer = true;
    }
    return lines;
  }

  #end(entry: Body, time: number): Line[] {
    const how = textOf(entry, 'ended');
    const isOfServer = how === '' || !Number.isInteger(entry['exitCode']); // without one, control-run itself is gone
    const lines = isOfServer ? this.#abandon(time) : [];
    const isRefused = this.#isFolded && this.#started !== null && /^cannot (start|serve) /i.test(how);
    if (isRefused) Object.assign(this.#started as Line, { text: how, entry });
    else if (how !== '' || !this.#hasProgram) lines.push(this.#line(time, how || 'ended', entry));
    if (isOfServer) this.#hasServer = false;
    if (how !== '') this.#hasProgram = false;
    return lines;
  }

  #noteCommand(entry: Body): void {
    const id = excerptOf(entry['id']);
    if (!this.#known.has(id)) this.#pending.set(id, entry); // otherwise, it is repeated
  }

  #noteAsk(entry: Body, time: number): Line[] {
    const id = excerptOf(entry['id']);
    const text = `asks: ${messageIn(entry)}`;
    const isRepeated = this.#known.has(id) || !this.#isNew(`ask ${id}`);
    return isRepeated ? [] : this.#fold(text, { time, text, status: '', entry });
  }

  /** Whether the latest status tells all about a pause: who, why, and that it is done. */
  #isTold(entry: Body): boolean {
    const isPause = entry['command'] === 'pause' && entry['state'] === 'done' && valueIn(entry) === '';
    if (!this.#isFolded || !isPause || this.status?.status !== 'paused') return false;
    const by = excerptOf(entry['by']) || NOBODY;
    const acceptedAt = timeIn(entry, 'at') ?? Infinity;
    return this.status.time >= acceptedAt - NOISE_MS && holdsOf(this.status.entry).some((hold) => hold['by'] === by);
  }

  #noteOutcome(entry: Body, time: number): Line[] {
    const id = excerptOf(entry['id']);
    this.#pending.delete(id);
    if (this.#isOwnEnd(entry)) {
      this.#held = null;
      return [];
    }
    if ((id !== '' && !this.#isNew(id)) || this.#isTold(entry)) return [];
    const text = describeCommand(entry);
    const texts = ['command', 'message', 'by', 'reason', 'state'].map((name) => excerptOf(entry[name]));
    return this.#fold([...texts, excerptOfJson(entry['arguments'])].join('\n'), { time, text, status: '', entry });
  }

  /** Remembers an id. Returns false if it is known already: a new thread repeats what may be lost. */
  #isNew(id: string): boolean {
    if (this.#known.has(id)) return false;
    this.#known.add(id);
    if (this.#known.size > MAX_KNOWN) this.#known.delete(this.#known.values().next().value as string);
    return true;
  }

  /** Returns the line unless it becomes part of an earlier one, which then changes. */
  #fold(key: string, line: Line): Line[] {
    const folded = this.#folds.get(key);
    if (folded === undefined) {
      if (this.#isFolded) this.#folds.set(key, line);
      return [line];
    }
    const { count, firstTime } = folded.fold ?? { count: 1, firstTime: folded.time };
    const { time, text, entry } = line;
    const since = clockTime(new Date(firstTime), new Date(time));
    const fold = { text, count: count + 1, firstTime };
    Object.assign(folded, { time, text: `${text} (${fold.count} times since ${since})`, entry, fold });
    return [];
  }

  #noteStatus(entry: Body, time: number): Line[] {
    const name = excerptOf(entry['status']);
    if (this.#mayRepeat && time <= (this.status?.time ?? 0)) return [];
    this.#mayRepeat = false;
    if (PASSING.includes(name)) return [];
    this.#held = null;
    const saver = this.#saver();
    const isOfSave = saver !== null && name === 'paused' && holdsOf(entry).every(({ by }) => by === saver);
    const mayBeEnd = this.#hasProgram && name === 'shutting down' && entry['by'] === 'itself';
    if (!isOfSave && !mayBeEnd) return this.#show(entry);
    this.#held = entry;
    return [];
  }

  /** Whether the status that is held is to be shown before this entry. A status replaces it. */
  #isSettled(entry: Body): boolean {
    const { event, command } = entry;
    if (event === 'status' || event === 'answer' || this.#isOwnEnd(entry)) return false;
    const isOfSave = this.#held?.['status'] === 'paused' && this.#saver() !== null;
    return !isOfSave || (event === 'outcome' && command === 'pause');
  }

  /** Whether an outcome only says that the program has ended, and how: that is what control-run logs. */
  #isOwnEnd({ event, command, value }: Body): boolean {
    const end = event === 'outcome' && command === 'shutdown' ? endIn(value) : null;
    return end !== null && end['ended'] === this.#held?.['reason'] && savedIn(end) === '';
  }

  /** Who has sent the save that runs or waits; null if there is none. */
  #saver(): string | null {
    const save = [...this.#pending.values()].find(({ command }) => command === 'save-state');
    return save === undefined ? null : excerptOf(save['by']) || NOBODY;
  }

  /** Notes a status, and returns its line unless a reader knows it already. */
  #show(entry: Body): Line[] {
    this.#held = null;
    const name = excerptOf(entry['status']) || 'unknown';
    const text = `${name}${describeCause(entry)}`;
    const key = name === 'paused' ? text : name; // for the others, it is the same whoever caused them
    const time = Math.max(timeOf(entry), this.#startTime);
    const isNews = key !== this.#shown;
    const line = { time, text, status: name, entry };
    if (isNews || this.status === null) this.status = line;
    this.#shown = key;
    if (isNews) this.#folds.clear();
    return isNews ? [line] : [];
  }

  #line(time: number, text: string, entry: Body): Line {
    this.#folds.clear();
    return { time, text, status: '', entry };
  }
}

/** A command as /api/info would list it; long arguments are left out, as there. */
function toCommand(entry: Body, state: string): Body {
  const given = excerptOfJson(entry['arguments']);
  return { ...entry, state, arguments: given.length > MAX_GIVEN ? undefined : entry['arguments'] };
}

function textOf(entry: Body, name: string): string {
  return excerptOf(entry[name], MAX_VALUE_LENGTH);
}
