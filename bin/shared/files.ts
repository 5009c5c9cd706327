// Folders, files that stay complete when the program crashes, and JSON from files that anybody may have edited.

import { randomBytes } from 'node:crypto';
import {
  closeSync, fsyncSync, mkdirSync, openSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync,
} from 'node:fs';
import { homedir } from 'node:os';
import { basename, dirname, isAbsolute, join } from 'node:path';
import { UsageError } from './cli.ts';

const LEFT_MS = 60_000; // another process may be about to rename a younger file

/**
 * `$XDG_STATE_HOME/control`, by default in `~/.local/state` (XDG Base Directory Specification).
 *
 * @throws {UsageError} If the user has no home folder.
 */
export function stateFolder(): string {
  const folder = process.env['XDG_STATE_HOME'] ?? '';
  if (isAbsolute(folder)) return join(folder, 'control');
  let home = '';
  try { home = homedir(); } catch {} // in a container, the user may have a number only
  if (!isAbsolute(home)) throw new UsageError('you have no home folder: set HOME or XDG_STATE_HOME');
  return join(home, '.local', 'state', 'control');
}

/**
 * Creates a folder and those above. `mkdirSync()` with `recursive` would never end if one of them cannot be created,
 * for example in /proc or by the automounter.
 */
export function createFolders(path: string, mode: number): void {
  if (statSync(path, { throwIfNoEntry: false }) !== undefined) return;
  createFolders(dirname(path), mode);
  try {
    mkdirSync(path, { mode });
  } catch (error) { // another process may have been faster
    if (!statSync(path, { throwIfNoEntry: false })?.isDirectory()) throw error;
  }
}

/** Writes under a temporary name, and renames the file only after its content is on disk. */
export function writeAtomically(path: string, text: string, mode: number = 0o666): void {
  const temporary = `${path}.${randomBytes(8).toString('hex')}.tmp`; // nobody can predict it
  try {
    writeFileSync(temporary, text, { flag: 'wx', flush: true, mode });
    renameSync(temporary, path);
  } catch (error) {
    rmSync(temporary, { force: true });
    throw error;
  }
  let folder: number | null = null;
  try { // only a flushed folder makes the new name permanent; Windows and some network file systems do not support that
    folder = openSync(dirname(path), 'r');
    fsyncSync(folder);
  } catch {} finally {
    if (folder !== null) closeSync(folder);
  }
}

/** Deletes the temporary files that `writeAtomically()` leaves behind in a crash. */
export function removeLeftovers(path: string): void {
  const folder = dirname(path);
  for (const name of readdirSync(folder)) {
    const [, original] = /^(.*)\.[0-9a-f]{16}\.tmp$/s.exec(name) ?? [];
    if (original !== basename(path)) continue;
    const { mtimeMs = Infinity } = statSync(join(folder, name), { throwIfNoEntry: false }) ?? {};
    if (Date.now() - mtimeMs > LEFT_MS) rmSync(join(folder, name), { force: true });
  }
}

/**
 * Returns the content of a file; undefined if there is no such file.
 *
 * @throws {Error} If it is not a JSON file, or larger than `maxBytes`.
 */
export function readJson(path: string, maxBytes: number): unknown {
  const stats = statSync(path, { throwIfNoEntry: false });
  if (stats === undefined) return undefined;
  if (stats.isDirectory()) throw new Error('it is a folder');
  if (!stats.isFile()) throw new Error('it is not a regular file'); // reading /dev/zero would never end
  if (stats.size > maxBytes) throw new Error('it is too large');
  const text = new TextDecoder().decode(readFileSync(path)); // without the byte order mark of Windows
  try {
    return JSON.parse(text);
  } catch {
    throw new Error('it is truncated or not JSON');
  }
}
