// Reading logs, where servers append a JSON object per line. Anybody may have written the files.

import { constants, readdirSync, statSync } from 'node:fs';
import { open, stat } from 'node:fs/promises';
import { hostname } from 'node:os';
import { basename, dirname, isAbsolute, join } from 'node:path';
import { stateFolder } from '../line/files.ts';
import { describeLog, parseEntry } from '../words/log.ts';
import { nameInPath } from './folder.ts';
import type { FileHandle } from 'node:fs/promises';
import type { Body } from '../words/text.ts';
import type { Line } from '../words/log.ts';

const MAX_LINE = 2 ** 16; // bytes; no server writes a longer one
const CHUNK = 2 ** 16; // bytes
const MAX_LATEST = 2 ** 20; // bytes that `latestLines()` reads, of two files: without a gap between them

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
export function nameOf(path: string): string {
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

/**
 * Opens a regular file for reading. Null if there is none.
 *
 * @throws {Error} If it is another file, or cannot be read.
 */
async function openLog(path: string): Promise<FileHandle | null> {
  try {
    const stats = await stat(path); // opening a device may have an effect
    if (!stats.isFile()) throw new Error('it is not a regular file');
    return await open(path, constants.O_RDONLY | (constants.O_NONBLOCK ?? 0)); // it may have become a FIFO
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw error;
  }
}

/** Splits bytes into entries. */
class EntrySplitter {
  readonly #noteBroken: (count: number) => void;
  #rest = Buffer.alloc(0); // of the last line

  /** @param noteBroken Takes the number of lines that are no entries: torn and foreign ones, and those above 64 KiB. */
  constructor(noteBroken: (count: number) => void) {
    this.#noteBroken = noteBroken;
  }

  /** Returns the entries that these bytes complete. */
  add(bytes: Buffer): Body[] {
    const all = Buffer.concat([this.#rest, bytes]);
    const end = all.lastIndexOf(10) + 1;
    this.#rest = all.subarray(end, end + MAX_LINE + 1); // one byte too long stands for any number
    return this.#parse(all.toString('utf8', 0, end));
  }

  /** Returns the entry of a last line without a newline. */
  end(): Body[] {
    const text = this.#rest.toString();
    this.#rest = Buffer.alloc(0);
    return this.#parse(text);
  }

  #parse(text: string): Body[] {
    const lines = text.split('\n').filter((line) => line.trim() !== '');
    const entries = lines.map((line) => Buffer.byteLength(line) > MAX_LINE ? null : parseEntry(line));
    const good = entries.filter((entry) => entry !== null);
    this.#noteBroken(lines.length - good.length);
    return good;
  }
}

/** Reads a file between two positions, or to its present end. */
async function* readChunks(file: FileHandle, start: number, end: number): AsyncGenerator<Buffer, void> {
  const buffer = Buffer.allocUnsafe(CHUNK);
  for (let position = start; position < end;) {
    const { bytesRead } = await file.read(buffer, 0, Math.min(CHUNK, end - position), position);
    if (bytesRead === 0) return; // it is truncated
    position += bytesRead;
    yield buffer.subarray(0, bytesRead);
  }
}

/** Reads a log from its oldest generation on, and what is added to it later, although it is renamed or truncated. */
export class LogReader {
  readonly path: string;
  /** How many lines are no entries. */
  broken: number = 0;
  #file: OpenFile | null = null;
  #renamed: OpenFile | null = null; // before: a server may still append a batch
  #hasBegun = false;

  constructor(path: string) {
    this.path = path;
  }

  /**
   * Yields the entries since the call before, in the order of the files.
   *
   * @throws {Error} If a file cannot be read.
   */
  async *read(): AsyncGenerator<Body[], void> {
    if (!this.#hasBegun) {
      this.#hasBegun = true;
      this.#file = await this.#open(this.path); // before the older ones: it may be renamed now
      for (const path of generationsOf(this.path)) {
        const older = await this.#open(path);
        if (older === null) continue;
        if (older.inode !== this.#file?.inode) yield* older.read();
        yield* older.close();
      }
    }
    if (this.#renamed !== null) {
      yield* this.#renamed.read();
      yield* this.#renamed.close();
      this.#renamed = null;
    }
    if (this.#file !== null) yield* this.#file.read();
    const inode = statSync(this.path, { throwIfNoEntry: false })?.ino;
    if (inode === undefined || inode === this.#file?.inode) return;
    if (this.#file !== null) yield* this.#file.read();
    const file = await this.#open(this.path); // fails, for example, until logrotate has given it to its owner
    [this.#renamed, this.#file] = [this.#file, file];
    if (this.#file !== null) yield* this.#file.read();
  }

  /** Closes the files. Yields the entry of a last line that is complete but for the newline. */
  async *close(): AsyncGenerator<Body[], void> {
    for (const file of [this.#renamed, this.#file]) if (file !== null) yield* file.close();
    [this.#renamed, this.#file] = [null, null];
  }

  async #open(path: string): Promise<OpenFile | null> {
    const handle = await openLog(path);
    return handle === null ? null : new OpenFile(handle, (await handle.stat()).ino, (count) => (this.broken += count));
  }
}

/** A file that is read once, and what is appended to it later. */
class OpenFile {
  readonly inode: number;
  readonly #handle: FileHandle;
  readonly #splitter: EntrySplitter;
  #position = 0;

  constructor(handle: FileHandle, inode: number, noteBroken: (count: number) => void) {
    [this.#handle, this.inode, this.#splitter] = [handle, inode, new EntrySplitter(noteBroken)];
  }

  async *read(): AsyncGenerator<Body[], void> {
    const { size } = await this.#handle.stat();
    if (size < this.#position) { // it has been truncated
      yield this.#splitter.end();
      this.#position = 0;
    }
    for await (const bytes of readChunks(this.#handle, this.#position, size)) {
      this.#position += bytes.length;
      yield this.#splitter.add(bytes);
    }
  }

  async *close(): AsyncGenerator<Body[], void> {
    await this.#handle.close();
    yield this.#splitter.end();
  }
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

/**
 * The latest lines of a running system, oldest first. None if its log is on another machine or cannot be read. The
 * server may name any file, so only what the system itself has logged is read, and no reason tells whether it exists.
 *
 * @param info The body of its /api/info.
 */
export async function latestLines(info: Body, count: number): Promise<Line[]> {
  const path = logPathIn(info);
  if (path === null) return [];
  const isOwn = (entry: Body): boolean => isOf(entry, info);
  const latest = await readEnd(path, MAX_LATEST);
  const older = await readEnd(`${path}.1`, MAX_LATEST - latest.size);
  return describeLog([...older.entries, ...latest.entries].filter(isOwn)).slice(-count);
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

/** The entries in the last part of a file, and its size in bytes. None if it cannot be read. */
async function readEnd(path: string, maxSize: number): Promise<{ entries: Body[]; size: number }> {
  const entries: Body[] = [];
  const file = maxSize > 0 ? await openLog(path).catch(() => null) : null;
  if (file === null) return { entries, size: 0 };
  try {
    const { size } = await file.stat();
    const splitter = new EntrySplitter(() => {});
    for await (const bytes of readChunks(file, Math.max(0, size - maxSize), size)) entries.push(...splitter.add(bytes));
    return { entries, size };
  } catch {
    return { entries, size: maxSize };
  } finally {
    await file.close();
  }
}
