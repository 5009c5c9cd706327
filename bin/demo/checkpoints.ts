// Checkpoints on disk: JSON files, written atomically and named after the time of the save.

import { readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { createFolder, readJson, syncFolder, temporaryPath, writeAtomically } from '../shared/files.ts';

const MAX_BYTES = 1_000_000; // a checkpoint of the demo has about 7,000
const TEMPORARY = /(\.[0-9a-f]{16})?\.tmp$/; // while a checkpoint is being written; older versions had no random part
const TOLERANCE_MS = 24 * 60 * 60 * 1000; // how much later than now the name of a checkpoint may be
const BURST_MS = 60 * 1000; // saves within this time leave half of the places to older checkpoints

// ───── Writing ───────────────────────────────────────────────────────────────────────────────────────────────────

/**
 * The checkpoints in a folder. Only one running program may use the folder. Files whose names are not those of
 * checkpoints are never deleted. All writes create new files, so that no symbolic link in the folder is followed.
 *
 * A name may be up to a day later than now: after the clock was set back, new names are still later than those before.
 * Checkpoints with even later names are ignored: they are neither the latest nor counted nor deleted. If the clock is
 * set back by more than a day, that applies to those saved before.
 *
 * @param keep How many checkpoints to keep; `excessOf()` chooses which.
 */
export class Checkpoints {
  readonly #folder: string;
  readonly #keep: number;

  constructor(folder: string, keep: number) {
    this.#folder = folder;
    this.#keep = keep;
  }

  /** Creates the folder if necessary and checks that it is writable. */
  prepare(): void {
    makeFolder(this.#folder);
    const probe = temporaryPath(join(this.#folder, nameOf(Date.now())));
    writeFileSync(probe, '', { flag: 'wx' });
    rmSync(probe);
  }

  /**
   * Writes a checkpoint, then deletes those in excess. After a crash at any point, all older checkpoints are complete,
   * and the new one is complete or has its temporary name. The next save deletes such leftovers.
   *
   * @returns The path of the new checkpoint.
   */
  save(snapshot: object): string {
    makeFolder(this.#folder); // it may have been deleted
    const { names, leftovers } = list(this.#folder);
    for (const leftover of leftovers) this.#delete(leftover);
    const name = nextName(names.at(-1));
    const path = join(this.#folder, name);
    writeAtomically(path, `${JSON.stringify(snapshot)}\n`);
    for (const excess of excessOf([...names, name], this.#keep)) this.#delete(excess);
    return path;
  }

  #delete(name: string): void {
    rmSync(join(this.#folder, name), { force: true }); // it may have been deleted already
  }
}

/**
 * Chooses which checkpoints to delete: the oldest, but not the newest `keep / 2` (rounded down) of those more than a
 * minute older than the last. A burst of saves thus deletes its own checkpoints before these.
 *
 * The age counts from the last name, not from now: after the clock was set back, all names may be later than now.
 */
function excessOf(names: string[], keep: number): string[] {
  const limit = timeOf(names.at(-1) as string) - BURST_MS;
  const olderCount = names.filter((name) => timeOf(name) < limit).length;
  const firstSpared = Math.max(0, olderCount - Math.floor(keep / 2));
  const candidates = [...names.slice(0, firstSpared), ...names.slice(olderCount)];
  return candidates.slice(0, Math.max(0, names.length - keep));
}

/** Replaces `mkdirSync` with `recursive`, which never returns below a folder like /proc. */
function makeFolder(folder: string): void {
  if (statSync(folder, { throwIfNoEntry: false })?.isDirectory()) return;
  const parent = dirname(folder);
  if (parent !== folder) makeFolder(parent);
  createFolder(folder);
  syncFolder(parent);
}

// ───── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────

/**
 * Returns the path of the newest checkpoint in a folder; null if the folder does not exist or has no checkpoint.
 *
 * @throws {Error} If all its checkpoints are ignored: to begin anew would leave them behind unnoticed.
 */
export function latestIn(folder: string): string | null {
  const stats = statSync(folder, { throwIfNoEntry: false });
  if (stats === undefined) return null;
  if (!stats.isDirectory()) throw new Error('it is not a folder');
  const { names, future } = list(folder);
  const name = names.at(-1);
  if (name !== undefined) return join(folder, name);
  if (future.length === 0) return null;
  throw new Error(`it contains no checkpoint other than ${describeFuture(folder, future)}`);
}

/** Returns the paths of the checkpoints in a folder, the newest first. */
export function pathsIn(folder: string): string[] {
  return list(folder).names.reverse().map((name) => join(folder, name));
}

/** Returns which checkpoints in a folder are ignored, and why; null if there are none. */
export function ignoredIn(folder: string): string | null {
  const { future } = list(folder);
  return future.length === 0 ? null : describeFuture(folder, future);
}

function describeFuture(folder: string, [first = '', ...others]: string[]): string {
  const files = `'${join(folder, first)}'${others.length === 0 ? '' : ` and ${others.length} more`}`;
  return `${files}: the time in the name of a checkpoint must be at most a day later than now`;
}

/**
 * Returns the content of a checkpoint.
 *
 * @throws {Error} If it is not a JSON file.
 */
export function readCheckpoint(path: string): unknown {
  const snapshot = readJson(path, MAX_BYTES);
  if (snapshot === undefined) throw new Error('no such file');
  return snapshot;
}

// ───── Names ─────────────────────────────────────────────────────────────────────────────────────────────────────

/** ISO 8601 without the colons, which Windows forbids: `2026-11-20T10-22-33.123Z.json`. */
function nameOf(time: number): string {
  return `${new Date(time).toISOString().replaceAll(':', '-')}.json`;
}

/** Returns the time of a checkpoint, or NaN if the name is not that of a checkpoint. */
function timeOf(name: string): number {
  const [, day, hour, minute, second] = /^(\d{4}-\d\d-\d\d)T(\d\d)-(\d\d)-(\d\d\.\d{3})Z\.json$/.exec(name) ?? [];
  return Date.parse(`${day}T${hour}:${minute}:${second}Z`);
}

/** Named after now, but always later than the last: saves may share a millisecond, and clocks may be set back. */
function nextName(last: string | undefined): string {
  return nameOf(last === undefined ? Date.now() : Math.max(Date.now(), timeOf(last) + 1));
}

interface Listing {
  /** The checkpoints, the oldest first. */
  names: string[];
  /** Those that are ignored, because their names are too late. */
  future: string[];
  /** Unfinished ones, from crashes. */
  leftovers: string[];
}

function list(folder: string): Listing {
  const entries = readdirSync(folder, { withFileTypes: true }).filter((entry) => entry.isFile());
  const files = entries.map(({ name }) => name).sort();
  const limit = Date.now() + TOLERANCE_MS;
  return {
    names: files.filter((name) => timeOf(name) <= limit),
    future: files.filter((name) => timeOf(name) > limit),
    leftovers: files.filter((name) => TEMPORARY.test(name) && !Number.isNaN(timeOf(name.replace(TEMPORARY, '')))),
  };
}
