// The files of logs, where servers append a JSON object per line. Anybody may have written them.

import { constants, readdirSync, statSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { hostname } from 'node:os';
import { isAbsolute, join } from 'node:path';
import { stateFolder } from '../line/files.ts';
import { describeLog, parseEntry } from '../words/log.ts';
import { nameInPath } from './folder.ts';
import type { FileHandle } from 'node:fs/promises';
import type { Body } from '../words/describe.ts';
import type { Line } from '../words/log.ts';

const MAX_LINE = 2 ** 16; // bytes; no server writes a longer one
const CHUNK = 2 ** 16; // bytes
const MAX_LATEST = 2 ** 20; // bytes of each file that `latestLines()` reads

/** The log of control-run and control-demo, unless an option names another one. */
export function logFileOf(name: string): string {
  return join(stateFolder(), `${nameInPath(name)}@${hostname()}.jsonl`);
}

/** The logs in the state folder, without older generations. None if there is no folder. */
export function logsOfUser(): string[] {
  const folder = stateFolder();
  const names = statSync(folder, { throwIfNoEntry: false }) === undefined ? [] : readdirSync(folder);
  const bases = names.filter(isLogName).map((name) => name.replace(GENERATION, ''));
  return [...new Set(bases)].sort().map((name) => join(folder, name));
}

const GENERATION = /\.\d+$/;

/** Whether a path is that of a log or an older generation of one: `train@gpu1.jsonl.1`. */
export function isLogName(name: string): boolean {
  return name.replace(GENERATION, '').endsWith('.jsonl');
}

/**
 * Opens a file for reading: a regular one of this user or root. Null if there is none.
 *
 * @throws {Error} If it is another file, or cannot be read.
 */
export async function openLog(path: string): Promise<FileHandle | null> {
  let file: FileHandle;
  try {
    if (!statSync(path).isFile()) throw new Error('it is not a regular file'); // opening a device may have an effect
    file = await open(path, constants.O_RDONLY | (constants.O_NONBLOCK ?? 0)); // a FIFO does not block
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw error;
  }
  const stats = await file.stat();
  const isOwn = process.geteuid === undefined || stats.uid === 0 || stats.uid === process.geteuid();
  if (stats.isFile() && isOwn) return file;
  await file.close();
  throw new Error(stats.isFile() ? 'it belongs to another user' : 'it is not a regular file');
}

/** Splits bytes into entries. What is no entry is counted: torn and foreign lines, and those above 64 KiB. */
export class EntrySplitter {
  broken: number = 0;
  #rest: Buffer[] = [];
  #length = 0; // of the rest; longer than a line if that is too long

  /** Returns the entries that these bytes complete. */
  add(bytes: Buffer): Body[] {
    const entries: Body[] = [];
    let start = 0;
    for (let end = bytes.indexOf(10); end >= 0; end = bytes.indexOf(10, start)) {
      this.#keep(bytes.subarray(start, end));
      entries.push(...this.end());
      start = end + 1;
    }
    this.#keep(bytes.subarray(start));
    return entries;
  }

  /** Returns the entry of a last line without a newline. */
  end(): Body[] {
    const text = this.#length > MAX_LINE ? 'too long' : Buffer.concat(this.#rest).toString();
    [this.#rest, this.#length] = [[], 0];
    if (text.trim() === '') return [];
    const entry = parseEntry(text);
    if (entry === null) this.broken += 1;
    return entry === null ? [] : [entry];
  }

  #keep(bytes: Buffer): void {
    this.#length += bytes.length;
    if (this.#length > MAX_LINE) this.#rest = [];
    else if (bytes.length > 0) this.#rest.push(Buffer.from(bytes)); // the buffer is reused
  }
}

/** Reads a file between two positions, or to its present end. */
export async function* readChunks(file: FileHandle, start: number, end: number): AsyncGenerator<Buffer, void> {
  const buffer = Buffer.allocUnsafe(CHUNK);
  for (let position = start; position < end;) {
    const { bytesRead } = await file.read(buffer, 0, Math.min(CHUNK, end - position), position);
    if (bytesRead === 0) return; // it is truncated
    position += bytesRead;
    yield buffer.subarray(0, bytesRead);
  }
}

/**
 * The latest lines of a running system, oldest first. None if its log is on another machine or cannot be read. The
 * server may name any file, so only what the system itself has logged is read.
 *
 * @param info The body of its /api/info.
 */
export async function latestLines(info: Body, count: number): Promise<Line[]> {
  const { name, pid, host, log } = info;
  const path: unknown = Object(log).path;
  if (host !== hostname() || typeof path !== 'string' || !isAbsolute(path) || path.includes('\0')) return [];
  const isOwn = (entry: Body): boolean => entry['name'] === name && entry['pid'] === pid;
  const entries = (await readEnd(path)).filter(isOwn);
  const lines = describeLog(entries);
  if (lines.length >= count) return lines.slice(-count);
  const older = (await readEnd(`${path}.1`)).filter(isOwn);
  return (older.length === 0 ? lines : describeLog([...older, ...entries])).slice(-count);
}

/** The entries in the last part of a file; none if it cannot be read. */
async function readEnd(path: string): Promise<Body[]> {
  let file: FileHandle | null = null;
  try {
    file = await openLog(path);
    if (file === null) return [];
    const { size } = await file.stat();
    const start = Math.max(0, size - MAX_LATEST);
    const splitter = new EntrySplitter();
    const entries: Body[] = [];
    for await (const bytes of readChunks(file, start, size)) entries.push(...splitter.add(bytes));
    return entries;
  } catch {
    return [];
  } finally {
    await file?.close();
  }
}
