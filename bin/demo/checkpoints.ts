// Checkpoints on disk: JSON files, named after the time of the save and complete even after a crash.

import { accessSync, constants, readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { UsageError } from '../shared/cli.ts';
import { createFolders, writeAtomically } from '../shared/files.ts';
import { Learner } from './learner.ts';
import type { StatusCause } from '../../control.ts';

const FORMAT = { format: 'control-demo', version: 4 };

export interface Checkpoint {
  learner: Learner;
  holds: readonly StatusCause[]; // of its pause; none if it was active
}

/** Creates the folder, and checks that it is writable. */
export function openFolder(folder: string): void {
  createFolders(folder, 0o777);
  accessSync(`${folder}/`, constants.W_OK); // a file is refused
}

/** Loads a file, or `latest`: the newest checkpoint in the folder. Returns null if there is none. */
export function loadCheckpoint(file: string, folder: string): Checkpoint | null {
  const paths = file === 'latest' ? listPaths(folder) : [file];
  const path = paths.at(-1);
  if (path === undefined) return null;
  try {
    const { format, version, paused, by, reason, since, ...rest } = Object(JSON.parse(readFileSync(path, 'utf8')));
    const isKnown = format === FORMAT.format && [2, 3, FORMAT.version].includes(version);
    if (!isKnown) throw new Error('it is not a checkpoint of control-demo 0.12 or later');
    const { holds = paused ? [{ by, reason, since }] : [], ...state } = rest; // before version 4, there was one
    if (!Array.isArray(holds)) throw new Error('its "holds" must be a list');
    if (version === 2) state.random = state.random[0]; // one word of another generator
    return { learner: new Learner(state), holds };
  } catch (error) {
    const hint = paths.length > 1 ? `; the checkpoint before it is '${paths.at(-2)}'` : '';
    throw new UsageError(`cannot load '${path}': ${(error as Error).message}${hint}`);
  }
}

/** Saves a checkpoint, deletes the oldest except the newest `keep`, and returns the path. */
export function saveCheckpoint({ learner, holds }: Checkpoint, folder: string, keep: number): string {
  openFolder(folder); // it may have been deleted
  const paths = listPaths(folder);
  const path = join(folder, nameAfter(paths.at(-1)));
  writeAtomically(path, `${JSON.stringify({ ...FORMAT, ...learner.state, holds })}\n`);
  for (const excess of [...paths, path].slice(0, -keep)) rmSync(excess, { force: true });
  return path;
}

/** The oldest first. */
function listPaths(folder: string): string[] {
  const names = readdirSync(folder).filter((name) => /^\d{4}-\d\d-\d\dT[\d-.]+Z\.json$/.test(name));
  return names.sort().map((name) => join(folder, name));
}

/** Returns the name for a checkpoint of now: later than the last one, even if the clock was set back. */
function nameAfter(last: string = ''): string {
  const time = last.slice(-29, -5).replace(/-(\d\d)-(\d\d\.)/, ':$1:$2'); // a name cannot contain colons on Windows
  const next = new Date(Math.max(Date.now(), Date.parse(time) + 1 || 0));
  return `${next.toISOString().replaceAll(':', '-')}.json`;
}
