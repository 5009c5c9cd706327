// The search: simulated annealing (S. Kirkpatrick, C. D. Gelatt, M. P. Vecchi: Optimization by simulated annealing.
// Science 220, 671–680, 1983) for the minimum of the Rastrigin function, which is 0 among many others; its checkpoints.

import { accessSync, constants, readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { UsageError } from '../shared/cli.ts';
import { createFolders, writeAtomically } from '../shared/files.ts';
import type { StatusCause } from '../../control.ts';

const DIMENSIONS = 10;
const RANGE = 5.12; // of each coordinate, on both sides of 0
const COOLING = 0.999992; // per step
const FORMAT = 'control-demo 5';

/** All that a search knows, as plain JSON: one with the same state does exactly the same. */
export interface Search {
  seed: number;
  random: number; // the state of the random numbers
  step: number;
  temperature: number; // the higher, the more often a greater loss is accepted
  point: number[];
  loss: number; // at the point
}

/** The seed, from 0 to 2³² − 1, determines everything that happens. */
export function createSearch(seed: number): Search {
  const search: Search = { seed, random: seed, step: 0, temperature: 10, point: [], loss: 0 };
  search.point = Array.from({ length: DIMENSIONS }, () => RANGE * (2 * random(search) - 1));
  search.loss = lossAt(search.point);
  return search;
}

/** Moves to a random neighbor unless its loss is too great for the temperature. */
export function advance(search: Search): void {
  const point = neighborOf(search);
  const loss = lossAt(point);
  if (random(search) < Math.exp((search.loss - loss) / search.temperature)) Object.assign(search, { point, loss });
  search.temperature *= COOLING;
  search.step += 1;
}

/** Returns the mean loss of random neighbors. Changes nothing. */
export function evaluate(search: Search, points: number): number {
  const copy = { ...search };
  return Array.from({ length: points }, () => lossAt(neighborOf(copy))).reduce((sum, loss) => sum + loss, 0) / points;
}

/** Differs in one coordinate, mostly by little. */
function neighborOf(search: Search): number[] {
  const changed = Math.floor(random(search) * DIMENSIONS);
  const change = 2 * (2 * random(search) - 1) ** 3;
  return search.point.map((x, index) => (index === changed ? Math.max(-RANGE, Math.min(RANGE, x + change)) : x));
}

function lossAt(point: readonly number[]): number {
  return point.reduce((sum, x) => sum + 10 + x * x - 10 * Math.cos(2 * Math.PI * x), 0);
}

/** Returns a number from 0 to 1 by mulberry32 (T. Ettinger), whose state can be saved, unlike Math.random()'s. */
function random(search: Search): number {
  search.random = (search.random + 0x6d2b79f5) | 0;
  const mixed = Math.imul(search.random ^ (search.random >>> 15), search.random | 1);
  const word = mixed ^ (mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61));
  return ((word ^ (word >>> 14)) >>> 0) / 2 ** 32;
}

/** The paths of the checkpoints, the oldest first. Creates the folder, and checks that it is writable. */
export function listCheckpoints(folder: string): string[] {
  createFolders(folder, 0o777);
  accessSync(`${folder}/`, constants.W_OK); // a file is refused
  const names = readdirSync(folder).filter((name) => /^\d{4}-\d\d-\d\dT[\d-.]+Z\.json$/.test(name));
  return names.sort().map((name) => join(folder, name));
}

/** Returns the search, and the holds of its pause; none if it was active. */
export function loadCheckpoint(path: string): { search: Search; holds: StatusCause[] } {
  try {
    const { format, holds, ...search } = Object(JSON.parse(readFileSync(path, 'utf8')));
    if (format !== FORMAT) throw new Error('it is no checkpoint of control-demo 0.24 or later');
    return { search, holds };
  } catch (error) {
    throw new UsageError(`cannot load '${path}': ${(error as Error).message}`);
  }
}

/** Writes a file that is complete even after a crash, deletes all but the newest ten, and returns its path. */
export function saveCheckpoint(search: Search, holds: readonly StatusCause[], folder: string): string {
  const paths = listCheckpoints(folder);
  const last = Date.parse(paths.at(-1)?.slice(-29, -5).replace(/-(\d\d)-(\d\d\.)/, ':$1:$2') ?? '');
  const time = new Date(Math.max(Date.now(), last + 1 || 0)); // later than the last one, even if the clock was set back
  const path = join(folder, `${time.toISOString().replaceAll(':', '-')}.json`); // Windows permits no colons
  writeAtomically(path, `${JSON.stringify({ format: FORMAT, ...search, holds })}\n`);
  for (const old of paths.slice(0, -9)) rmSync(old, { force: true });
  return path;
}
