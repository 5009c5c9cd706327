// The systems whose Unix sockets are in a folder.

import { once } from 'node:events';
import { existsSync, readdirSync } from 'node:fs';
import { connect } from 'node:net';
import { join, resolve } from 'node:path';
import { createTargetClient } from './access.ts';
import { parseText, UsageError } from './options.ts';
import { labelled } from './targets.ts';
import type { TextOption } from './options.ts';
import type { Target } from './targets.ts';

/** The option that names the folder. */
export const DIR_OPTION: TextOption = {
  type: 'string', value: 'DIR', completion: 'files',
  help: 'folder of the Unix sockets of systems (default $XDG_RUNTIME_DIR/control/)',
};

const MAX_PATH_LENGTH = 94; // bytes; no server has a longer one

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
 * Returns the systems in a folder that accept connections, and removes nothing.
 *
 * @param known Targets to leave out.
 */
export async function findTargets(folder: string, timeoutMs: number, known?: ReadonlySet<string>): Promise<Target[]> {
  const paths = socketsIn(folder).filter((path) => known?.has(`unix:${path}`) !== true);
  const live = await Promise.all(paths.map(isLive));
  const names = paths.filter((_, index) => live[index]).map((path) => `unix:${path}`);
  return labelled(names.map((name) => [name, createTargetClient(name, timeoutMs)]));
}

async function isLive(path: string): Promise<boolean> {
  const socket = connect(path);
  try {
    await once(socket, 'connect');
    return true;
  } catch {
    return false;
  } finally {
    socket.destroy();
  }
}
