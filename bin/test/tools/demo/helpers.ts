// Shared by the tests of control-demo: the program, mostly paused, so that it stands still; and its checkpoints.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Learner } from '../../../demo/cartpole.ts';
import { readCheckpoint } from '../../../demo/checkpoints.ts';
import { clientAt, makeFolder, startProgram } from '../../helpers.ts';
import type { StatusCause, WebApiClient } from '../../../../control.ts';
import type { Snapshot } from '../../../demo/cartpole.ts';
import type { Running } from '../../helpers.ts';
import type { TestContext } from 'node:test';

/** For each suite: what hangs is a failure, not an endless run. */
export const LIMIT = { timeout: 300_000 };

/** The name of a checkpoint. */
export const NAME: RegExp = /^\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}Z\.json$/;

// ───── The program ───────────────────────────────────────────────────────────────────────────────────────────────

export interface DemoRun extends Running {
  folder: string;
  port: number;
  client: WebApiClient;
}

/** Starts the program, in a new folder unless the options name one, and waits until it learns or is paused. */
export function startDemo(t: TestContext, ...options: string[]): Promise<DemoRun> {
  const named = options.indexOf('--states-dir');
  const folder = named < 0 ? makeFolder(t) : options.splice(named, 2)[1] as string;
  return connect(t, folder, startProgram(t, 'demo', ['--port', '0', '--states-dir', folder, ...options]));
}

/** The same with a checkpoint that was saved while paused, so that it does not learn. */
export function startPaused(t: TestContext, ...options: string[]): Promise<DemoRun> {
  return startDemo(t, '--load', writePaused(t), ...options);
}

/** The checkpoint of `startPaused()`. Returns its path. */
export function writePaused(t: TestContext): string {
  const path = join(makeFolder(t), 'paused');
  writeFileSync(path, JSON.stringify(savedBy(snapshotOf(8, 12_345), CAUSE)));
  return path;
}

/** Waits until the program learns or is paused. */
export async function connect(t: TestContext, folder: string, running: Running): Promise<DemoRun> {
  await running.shows(/ (active|paused)\n|\x1b\[K/);
  const [, host = 'localhost', port] = /http:\/\/([\w.]+):(\d+)/.exec(running.output()) ?? [];
  return { ...running, folder, port: Number(port), client: clientAt(t, { host, port: Number(port) }) };
}

/** Sends a command and waits for its outcome: the value, or the error. */
export async function perform(
  { client }: DemoRun,
  command: string,
): Promise<{ value?: string; error?: string }> {
  const reply = await client.request(command, { wait: 300 });
  if (!reply.ok) return { error: reply.error };
  assert.equal(reply.body['state'], 'done');
  return { value: reply.body['value'] as string };
}

/** Saves and returns the checkpoint. */
export async function save(demo: DemoRun): Promise<Saved> {
  const { value = '', error } = await perform(demo, 'save-state');
  assert.equal(error, undefined);
  return readCheckpoint(value) as Saved;
}

/** Shuts down and returns the last checkpoint. */
export async function shutDown(demo: DemoRun): Promise<Saved> {
  const { value = '' } = await perform(demo, 'shutdown');
  assert.equal((await demo.ended).code, 0);
  return readCheckpoint(value) as Saved;
}

/** The paths that the program has printed. */
export function savedIn(demo: Running): string[] {
  return [...demo.output().matchAll(/^saved (.*)\n/gm)].map((one) => one[1] as string);
}

/** Makes every save fail, until the file is removed. */
export function blockSaves({ folder }: { folder: string }): void {
  rmSync(folder, { recursive: true });
  writeFileSync(folder, '');
}

/** All of stderr after that many failed saves. */
export function failedSaves(count: number): RegExp {
  return new RegExp(`^(control-demo: cannot save a checkpoint: EEXIST: .*\\n){${count}}$`);
}

// ───── Checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────

export type Saved = Snapshot & { paused: boolean } & StatusCause;

/** Of the checkpoint of `startPaused()`. */
export const CAUSE: StatusCause = {
  by: 'ana@laptop', reason: 'GPU needed until noon', since: '2026-01-23T06:00:00.000Z',
};

/** The state of a learner with that seed after that many steps. */
export function snapshotOf(seed: number, steps: number): Snapshot {
  const learner = new Learner(seed);
  while (learner.steps < steps) learner.step();
  return plain(learner);
}

/** The snapshot as read from a file: JSON has no −0. */
export function plain(learner: Learner): Snapshot {
  return JSON.parse(JSON.stringify(learner.snapshot()));
}

/** What the program writes: the snapshot, and whether it was paused, with the cause. */
export function savedBy(snapshot: Snapshot, cause: StatusCause | null = null): Saved {
  return { ...snapshot, paused: cause !== null, ...cause };
}

/** The files of a folder and their contents; null if the folder does not exist. */
export function contentsOf(folder: string): Map<string, string> | null {
  if (!statSync(folder, { throwIfNoEntry: false })?.isDirectory()) return null;
  return new Map(readdirSync(folder).map((name) => [name, readFileSync(join(folder, name), 'latin1')]));
}
