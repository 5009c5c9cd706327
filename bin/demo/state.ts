// The state that control-demo continues from: a learner, and whether it was paused, by whom, why and since when.

import { parseCause } from '../shared/cause.ts';
import { UsageError } from '../shared/options.ts';
import { Learner } from './cartpole.ts';
import { latestIn, pathsIn, readCheckpoint } from './checkpoints.ts';
import type { StatusCause } from '../../control.ts';

/** What a checkpoint holds. */
export interface State {
  learner: Learner;
  /** Whether it was saved while paused, and the cause. */
  startPaused: boolean | StatusCause;
}

/**
 * Returns null if the latest checkpoint is requested and there is none.
 *
 * @throws {UsageError} If the checkpoint cannot be loaded.
 */
export function loadState(load: string, folder: string): State | null {
  const isLatest = load === 'latest';
  let path = isLatest ? null : load;
  try {
    path ??= latestIn(folder);
    return path === null ? null : restore(path);
  } catch (error) {
    const what = path === null ? `the latest checkpoint in '${folder}'` : `'${path}'`;
    const expected = isLatest && path !== null
      ? describeAlternative(folder)
      : '--load requires a checkpoint of control-demo, or latest for the newest one in --states-dir';
    throw new UsageError(`cannot load ${what}: ${(error as Error).message}; ${expected}`);
  }
}

/** What to do if the latest checkpoint in a folder cannot be loaded. */
function describeAlternative(folder: string): string {
  const path = pathsIn(folder).find(isGood);
  if (path === undefined) return `'${folder}' contains no good checkpoint: begin anew without --load`;
  return `continue with --load '${path}', the newest good checkpoint`;
}

/** @throws {Error} If the checkpoint is invalid. */
function restore(path: string): State {
  const snapshot = readCheckpoint(path);
  const learner = Learner.restore(snapshot);
  const fields = snapshot as Record<string, unknown>;
  const { paused = false, since } = fields; // older versions did not save them
  if (typeof paused !== 'boolean') throw new Error('its "paused" must be true or false');
  return { learner, startPaused: paused && since !== undefined ? parseCause(fields) : paused };
}

function isGood(path: string): boolean {
  try {
    restore(path);
    return true;
  } catch {
    return false;
  }
}
