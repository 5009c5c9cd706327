// Checkpoints on disk: each a JSON file that is whole or not there, named by the time of its making.

import {
  closeSync, fsyncSync, mkdirSync, openSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';

const MAX_BYTES = 1_000_000; // a checkpoint of the demo has about 7 000
const TEMPORARY = '.tmp'; // added to the name of a checkpoint that is being written

// ───── Writing ───────────────────────────────────────────────────────────────────────────────────────────────────

/**
 * The checkpoints in a folder, which is for one running program at a time. Nothing is ever deleted there but files that
 * are named like checkpoints.
 *
 * @param keep How many are kept: the newest.
 */
export class Checkpoints {
  readonly #folder: string;
  readonly #keep: number;

  constructor(folder: string, keep: number) {
    this.#folder = folder;
    this.#keep = keep;
  }

  /** Makes the folder, and makes sure that files can be written there. */
  prepare(): void {
    makeFolder(this.#folder);
    const probe = join(this.#folder, nameOf(Date.now()) + TEMPORARY);
    writeFileSync(probe, '');
    rmSync(probe);
  }

  /**
   * Writes a checkpoint, then deletes the oldest ones. A crash at any moment leaves the older checkpoints whole, and
   * the new one whole or under its temporary name; what lies there under such names is cleaned up first.
   *
   * @returns The path of the new checkpoint.
   */
  save(snapshot: object): string {
    makeFolder(this.#folder); // someone may have deleted it
    for (const name of namesIn(this.#folder, TEMPORARY)) this.#delete(name);
    const names = namesIn(this.#folder);
    const name = nextName(names.at(-1));
    const path = join(this.#folder, name);
    writeWhole(path, `${JSON.stringify(snapshot)}\n`);
    syncFolder(this.#folder);
    for (const old of [...names, name].slice(0, -this.#keep)) this.#delete(old);
    return path;
  }

  #delete(name: string): void {
    rmSync(join(this.#folder, name), { force: true }); // that it is gone already is fine
  }
}

/** As mkdir's `recursive` does it, but that tries for ever below a folder like /proc, where nothing can be made. */
function makeFolder(folder: string): void {
  if (statSync(folder, { throwIfNoEntry: false })?.isDirectory()) return;
  const parent = dirname(folder);
  if (parent !== folder) makeFolder(parent);
  mkdirSync(folder);
  syncFolder(parent);
}

/** Under a temporary name first: only when all of it is on the disk does it get its own. */
function writeWhole(path: string, text: string): void {
  const temporary = path + TEMPORARY;
  try {
    writeFileSync(temporary, text, { flush: true });
    renameSync(temporary, path);
  } catch (error) {
    rmSync(temporary, { force: true });
    throw error;
  }
}

/** A new name in a folder is on the disk for sure when the folder is. */
function syncFolder(folder: string): void {
  let descriptor: number | null = null;
  try {
    descriptor = openSync(folder, 'r');
    fsyncSync(descriptor);
  } catch {
    // Windows and some network file systems cannot do this, and have their own ways.
  } finally {
    if (descriptor !== null) closeSync(descriptor);
  }
}

// ───── Names ─────────────────────────────────────────────────────────────────────────────────────────────────────

/** ISO 8601 without the colons, which Windows forbids: `2026-11-20T10-22-33.123Z.json`. */
function nameOf(time: number): string {
  return `${new Date(time).toISOString().replaceAll(':', '-')}.json`;
}

/** The time of a checkpoint, or NaN if the file is not named like one. */
function timeOf(name: string): number {
  const [, day, hour, minute, second] = /^(\d{4}-\d\d-\d\d)T(\d\d)-(\d\d)-(\d\d\.\d{3})Z\.json$/.exec(name) ?? [];
  return Date.parse(`${day}T${hour}:${minute}:${second}Z`);
}

/** The name of now, but always behind the last one: two saves may share a millisecond, and a clock may be set back. */
function nextName(last: string | undefined): string {
  return nameOf(last === undefined ? Date.now() : Math.max(Date.now(), timeOf(last) + 1));
}

/** The files in a folder with the names of checkpoints and the extension, in the order of their times. */
function namesIn(folder: string, extension: string = ''): string[] {
  return readdirSync(folder, { withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith(extension))
    .map((entry) => entry.name)
    .filter((name) => !Number.isNaN(timeOf(name.slice(0, name.length - extension.length))))
    .sort();
}

// ───── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────

/**
 * The path of the newest checkpoint in a folder.
 *
 * @throws {Error} If there is none: what is wrong, in a sentence.
 */
export function latestIn(folder: string): string {
  const stats = statSync(folder, { throwIfNoEntry: false });
  if (stats === undefined) throw new Error('there is no such folder');
  if (!stats.isDirectory()) throw new Error('it is not a folder');
  const name = namesIn(folder).at(-1);
  if (name === undefined) throw new Error('there is no checkpoint in it');
  return join(folder, name);
}

/**
 * The content of a checkpoint.
 *
 * @throws {Error} If that is no JSON file: what is wrong, in a sentence.
 */
export function readCheckpoint(path: string): unknown {
  const stats = statSync(path, { throwIfNoEntry: false });
  if (stats === undefined) throw new Error('there is no such file');
  if (stats.isDirectory()) throw new Error('it is a folder');
  if (!stats.isFile()) throw new Error('it is not a regular file'); // the like of /dev/zero never ends
  if (stats.size > MAX_BYTES) throw new Error('it is too large for a checkpoint');
  const text = readFileSync(path, 'utf8');
  try {
    return JSON.parse(text);
  } catch {
    throw new Error('it is cut off or not JSON');
  }
}
