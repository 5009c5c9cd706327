// The systems whose Unix sockets are in a folder.

import { once } from 'node:events';
import { existsSync, lstatSync, readdirSync, unlinkSync } from 'node:fs';
import { connect } from 'node:net';
import { join, resolve } from 'node:path';
import { createTargetClient } from './access.ts';
import { parseText, UsageError } from './options.ts';
import { labelled } from './targets.ts';
import type { Stats } from 'node:fs';
import type { TextOption } from './options.ts';
import type { Target } from './targets.ts';

/** The option that names the folder. */
export const DIR_OPTION: TextOption = {
  type: 'string', value: 'DIR', completion: 'files',
  help: 'folder of the Unix sockets of systems (default $XDG_RUNTIME_DIR/control/)',
};

const MAX_PATH_LENGTH = 94; // bytes; no server has a longer one
const YOUNG_MS = 1000; // a program of another kind may not listen yet at a socket that it has just made

/**
 * Returns the folder that is given, or else the one of this user's session, which need not exist.
 *
 * @throws {UsageError} If there is none, or it cannot be read.
 */
export function socketFolder(given: string | undefined): string {
  const folder = given === undefined ? sessionFolder() : resolve(parseText('--dir', given));
  try {
    if (given !== undefined || existsSync(folder)) readdirSync(folder);
  } catch (error) {
    const reason = (error as Error).message;
    throw new UsageError(`--dir must be a folder that can be read, got '${given ?? folder}': ${reason}`);
  }
  return folder;
}

function sessionFolder(): string {
  const session = process.env['XDG_RUNTIME_DIR'] || undefined;
  if (session === undefined) throw new UsageError('--dir is required, because XDG_RUNTIME_DIR is not set');
  return join(session, 'control');
}

/** Returns the paths of the sockets in a folder, live or dead. */
function socketsIn(folder: string): string[] {
  if (!existsSync(folder)) return [];
  const entries = readdirSync(folder, { withFileTypes: true });
  const sockets = entries.filter((entry) => entry.isSocket() && entry.name.endsWith('.sock'));
  const paths = sockets.map(({ name }) => join(folder, name)).sort();
  return paths.filter((path) => Buffer.byteLength(path) <= MAX_PATH_LENGTH);
}

/**
 * Returns the systems in a folder that accept connections, and removes the sockets that dead systems of this user have
 * left there.
 *
 * @param known Targets to leave out.
 */
export async function findTargets(folder: string, timeoutMs: number, known?: ReadonlySet<string>): Promise<Target[]> {
  const paths = socketsIn(folder).filter((path) => known?.has(`unix:${path}`) !== true);
  const live = await Promise.all(paths.map(isLive));
  const names = paths.filter((_, index) => live[index]).map((path) => `unix:${path}`);
  return labelled(names.map((name) => [name, createTargetClient(name, timeoutMs)]));
}

/** Returns whether a socket accepts connections, and removes it if it is dead. */
async function isLive(path: string): Promise<boolean> {
  const before = entryAt(path);
  const socket = connect(path);
  try {
    await once(socket, 'connect');
    return true;
  } catch (error) {
    const isRefused = (error as NodeJS.ErrnoException).code === 'ECONNREFUSED'; // not EAGAIN, of a server that hangs
    if (isRefused && before !== undefined && isRemovable(before) && isSame(before, entryAt(path))) remove(path);
    return false;
  } finally {
    socket.destroy();
  }
}

/** Only on Linux: on macOS, a live server whose queue of connections is full refuses them, too. */
function isRemovable({ uid, mtimeMs }: Stats): boolean {
  return process.platform === 'linux' && uid === process.geteuid?.() && Date.now() - mtimeMs > YOUNG_MS;
}

/** Compares the time, too, because inodes are reused. */
function isSame(before: Stats, present: Stats | undefined): boolean {
  return present?.isSocket() === true && present.ino === before.ino && present.mtimeMs === before.mtimeMs;
}

function entryAt(path: string): Stats | undefined {
  try {
    return lstatSync(path);
  } catch {
    return undefined;
  }
}

function remove(path: string): void {
  try {
    unlinkSync(path);
  } catch {} // the folder may not be written, or another reader was faster
}
