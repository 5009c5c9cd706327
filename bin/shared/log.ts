// Reads logs, also while they grow and are renamed, and tells them in words. Anybody may have written them.

import { constants, readdirSync, statSync } from 'node:fs';
import { type FileHandle, open, stat } from 'node:fs/promises';
import { isIPv4 } from 'node:net';
import { hostname, networkInterfaces } from 'node:os';
import { basename, dirname, isAbsolute, join } from 'node:path';
import { messageIn } from './declared.ts';
import { describeCause, describeCommand, endIn, holdsOf, savedIn, valueIn } from './describe.ts';
import { stateFolder } from './files.ts';
import { nameInPath } from './folder.ts';
import { type Body, clockTime, excerptOf, excerptOfJson, isRecord, MAX_VALUE_LENGTH, timeIn } from './text.ts';
import type { PrintableClient } from './client.ts';

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
        if (!this.#known.has(id)) this.#pending.set(id, entry); // otherwise, it is repeated
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

// ───── The files ─────────────────────────────────────────────────────────────────────────────────────────────────

const MAX_LINE = 2 ** 16; // bytes; no server writes a longer one
const CHUNK = 2 ** 16; // bytes

/** The log of control-run and control-demo, unless an option names another one. */
export function logFileOf(name: string): string {
  return join(stateFolder(), `${nameInPath(name)}@${hostname()}.jsonl`);
}

/** The logs in the state folder, each without its older generations. None if there is no folder. */
export function logsOfUser(): string[] {
  const folder = stateFolder();
  const names = namesIn(folder).filter((name) => LOG.test(name));
  return [...new Set(names.map((name) => join(folder, newestOf(name))))].sort();
}

/** Whether a path may be that of a log: `train@gpu1.jsonl`, or an older generation, `train@gpu1.jsonl.1`. */
export function isLogPath(path: string): boolean {
  return path.includes('/') || LOG.test(path);
}

/** The path of the log of which this one is an older generation; otherwise the same. */
export function newestOf(path: string): string {
  return path.replace(GENERATION, '');
}

/** The name of the system in the path of a log, if it is named like a default one. */
export function nameInLogPath(path: string): string {
  return /^(.*)@[^@]*\.jsonl$/s.exec(basename(path))?.[1] ?? '';
}

/** The machine in the path of a log, if it is named like a default one. */
export function hostOf(path: string): string | undefined {
  return /@([^@]*)\.jsonl(\.\d+)?$/.exec(basename(path))?.[1];
}

/** The path of the log of a running system; null if it keeps none, or on another machine. It may be any path. */
export function logPathIn({ host, log }: Body): string | null {
  const path: unknown = Object(log).path;
  const isHere = host === hostname() && typeof path === 'string' && isAbsolute(path) && !path.includes('\0');
  return isHere ? path : null;
}

const LOG = /\.jsonl(\.\d+)?$/;
const GENERATION = /(?<=\.jsonl)\.\d+$/;

function namesIn(folder: string): string[] {
  return statSync(folder, { throwIfNoEntry: false }) === undefined ? [] : readdirSync(folder);
}

/** Reads a log from its oldest generation on, and what is added to it later, although it is renamed or truncated. */
export class LogReader {
  /** How many lines are no entries: torn and foreign ones, and those above 64 KiB. */
  broken: number = 0;
  readonly #path: string;
  #file: OpenFile | null | undefined; // undefined before the first read
  #renamed: OpenFile | null = null; // before: a server may still append a batch

  constructor(path: string) {
    this.#path = path;
  }

  /**
   * Yields the entries since the call before, in the order of the files.
   *
   * @throws {Error} If a file cannot be read.
   */
  async *read(): AsyncGenerator<Body[], void> {
    if (this.#file === undefined) {
      this.#file = await openFile(this.#path, this); // before the older ones: it may be renamed now
      for (const path of generationsOf(this.#path)) {
        const older = await openFile(path, this);
        if (older?.inode === this.#file?.inode) await older?.close();
        else yield* older?.read(true) ?? [];
      }
    }
    yield* this.#renamed?.read(true) ?? [];
    this.#renamed = null;
    const inode = statSync(this.#path, { throwIfNoEntry: false })?.ino; // first: all from before a renaming is read
    yield* this.#file?.read() ?? [];
    if (inode === undefined || inode === this.#file?.inode) return;
    const file = await openFile(this.#path, this); // fails, for example, until logrotate has given it to its owner
    [this.#renamed, this.#file] = [this.#file, file];
    yield* this.#file?.read() ?? [];
  }

  /** Reads the files for the last time: also the entry of a last line that is complete but for the newline. */
  async *close(): AsyncGenerator<Body[], void> {
    for (const file of [this.#renamed, this.#file]) yield* file?.read(true) ?? [];
    [this.#renamed, this.#file] = [null, null];
  }
}

type OpenFile = NonNullable<Awaited<ReturnType<typeof openFile>>>;

/**
 * Opens a regular file that is read once, and what is appended to it later. Null if there is none.
 *
 * @param lines Counts those that are no entries.
 * @param maxSize Of its last part, which alone is read.
 * @throws {Error} If it is another file, or cannot be read.
 */
async function openFile(path: string, lines: { broken: number }, maxSize: number = Infinity) {
  let file: FileHandle;
  try {
    const stats = await stat(path); // opening a device may have an effect
    if (!stats.isFile()) throw new Error('it is not a regular file');
    file = await open(path, constants.O_RDONLY | (constants.O_NONBLOCK ?? 0)); // it may have become a FIFO
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw error;
  }
  const { ino: inode, size } = await file.stat();
  let position = Math.max(0, size - maxSize);
  const limit = position + maxSize;
  let rest = Buffer.alloc(0); // of the last line
  const parse = (bytes: Buffer): Body[] => {
    const texts = bytes.toString().split('\n').filter((line) => line.trim() !== '');
    const entries = texts.map((line) => Buffer.byteLength(line) > MAX_LINE ? null : parseEntry(line));
    const good = entries.filter((entry) => entry !== null);
    lines.broken += entries.length - good.length;
    return good;
  };
  return {
    inode,
    size,
    close: (): Promise<void> => file.close(),
    /** @param isLast Whether a last line needs no newline. Then, this also closes the file. */
    async *read(isLast: boolean = false): AsyncGenerator<Body[], void> {
      try {
        const end = Math.min((await file.stat()).size, limit);
        if (end < position) { // it has been truncated
          yield parse(rest);
          [rest, position] = [Buffer.alloc(0), 0];
        }
        const buffer = Buffer.allocUnsafe(CHUNK);
        while (position < end) {
          const { bytesRead } = await file.read(buffer, 0, Math.min(CHUNK, end - position), position);
          if (bytesRead === 0) break; // it is truncated
          position += bytesRead;
          const all = Buffer.concat([rest, buffer.subarray(0, bytesRead)]);
          const start = all.lastIndexOf(10) + 1;
          rest = all.subarray(start, start + MAX_LINE + 1); // one byte too long stands for any number
          yield parse(all.subarray(0, start));
        }
        if (isLast) yield parse(rest);
      } finally {
        if (isLast) await file.close();
      }
    },
  };
}

/** The paths of the older generations of a log, the oldest first. None if the path is one of these. */
function generationsOf(path: string): string[] {
  const numberOf = (name: string): number => Number(name.slice(basename(path).length + 1));
  let names: string[] = [];
  try {
    names = namesIn(dirname(path));
  } catch {} // whoever can read the file need not be able to list its folder
  const older = names.filter((name) => newestOf(name) === basename(path) && name !== basename(path));
  return older.sort((one, other) => numberOf(other) - numberOf(one)).map((name) => join(dirname(path), name));
}

/** Whether an entry is of a system. */
export function isOf(entry: Body, { name, pid }: Body): boolean {
  return entry['name'] === name && entry['pid'] === pid;
}

/** Whether a process of this machine runs, which may be another one with the same number. */
export function isAlive(pid: number): boolean {
  if (pid <= 0) return false;
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

// ───── The latest lines of a system ──────────────────────────────────────────────────────────────────────────────
// The system may report any path and any host: only what it has logged itself is read, and no note says which files
// exist.

const MAX_LINES = 201; // one more than a tool shows
const MAX_LATEST = 2 ** 20; // bytes that are read, of two files: without a gap between them
const NO_LOG = 'does not log: start it with --log FILE, or with the option log of launch()';

interface History {
  /** Where the log is if it is not here, or what is wrong with it: `logs on gpu1 to /…`. Otherwise empty. */
  note: string;
  /** The oldest first. Safe to print. */
  lines: readonly Line[];
}

const reads: Map<string, Promise<History>> = new Map(); // in progress, by the key of the client

/**
 * Returns the latest 201 lines of the log of a system if its file is on this machine. There is one read per system at a
 * time, whatever it reports: calls during a read share the result.
 *
 * @param info The latest body of its /api/info; the system may have ended.
 */
export function readHistory(client: PrintableClient, info: Body): Promise<History> {
  const { key } = client;
  const read = reads.get(key) ?? readNow(client, info).finally(() => reads.delete(key));
  reads.set(key, read);
  return read;
}

async function readNow(client: PrintableClient, info: Body): Promise<History> {
  const { path, error } = Object(info['log']) as Body;
  const [place, host, fault] = [path, info['host'], error].map((field) => excerptOf(field));
  if (!hasLog(info)) return { note: NO_LOG, lines: [] };
  const file = logPathIn(info);
  if (file === null || !isOfThisMachine(client)) {
    return { note: `logs on ${host || 'an unknown machine'} to ${place}`, lines: [] };
  }
  const latest = await readEnd(file, MAX_LATEST);
  const older = await readEnd(`${file}.1`, MAX_LATEST - latest.size);
  const own = [...older.entries, ...latest.entries].filter((entry) => isOf(entry, info));
  const lines = describeLog(own).slice(-MAX_LINES);
  const absence = lines.length === 0 ? `no readable entries in ${place}` : '';
  return { note: fault ? `cannot write to ${place}: ${fault}` : absence, lines };
}

/** The entries in the last part of a file, and its size in bytes. None if it cannot be read. */
async function readEnd(path: string, maxSize: number): Promise<{ entries: Body[]; size: number }> {
  const entries: Body[] = [];
  const file = maxSize > 0 ? await openFile(path, { broken: 0 }, maxSize).catch(() => null) : null;
  try {
    for await (const some of file?.read(true) ?? []) entries.push(...some);
    return { entries, size: file?.size ?? 0 };
  } catch {
    return { entries, size: maxSize };
  }
}

/** Whether a system reports that it logs to a file. */
export function hasLog(info: Body): boolean {
  return excerptOf(Object(info['log']).path) !== '';
}

/** Whether the address is one of this machine. A system elsewhere may report the name and the files of this one. */
function isOfThisMachine({ machine, socketPath, baseUrl }: PrintableClient): boolean {
  if (machine.label !== '') return machine.connect === undefined;
  if (socketPath !== undefined) return true;
  const { hostname: host } = new URL(baseUrl);
  if (host === 'localhost' || (isIPv4(host) && host.startsWith('127.'))) return true;
  const addresses = Object.values(networkInterfaces()).flatMap((entries = []) => entries.map(({ address }) => address));
  const name = hostname().toLowerCase(); // as in a URL
  return [name, name.split('.')[0], '::1', ...addresses].includes(host.replace(/^\[(.*)\]$/, '$1'));
}
