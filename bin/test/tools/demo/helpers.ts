// Shared by the tests of control-demo: the program, and its checkpoints.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { clientAt, makeFolder, startProgram } from '../../helpers.ts';
import type { StatusCause, WebApiClient } from '../../../../control.ts';
import type { Running } from '../../helpers.ts';
import type { Search } from '../../../demo/search.ts';
import type { TestContext } from 'node:test';

export const HOLD: StatusCause = {
  by: 'ana@laptop', reason: 'GPU needed until noon', since: '2026-01-23T06:00:00.000Z',
};

/** A checkpoint that was saved while paused. */
export const STATE: Search & { format: string; holds: StatusCause[] } = {
  format: 'control-demo 5', seed: 8, random: 8, step: 12_345, temperature: 0.5, point: Array(10).fill(0.5), loss: 202.5,
  holds: [HOLD],
};

export interface Demo extends Running {
  folder: string;
  port: number;
  client: WebApiClient;
}

/** Starts the program and waits until it is active or paused. */
export async function startDemo(t: TestContext, folder: string, ...options: string[]): Promise<Demo> {
  const running = startProgram(t, 'demo', ['--port', '0', '--states-dir', folder, ...options]);
  await running.shows(/ · (active|paused)\n/);
  const port = portOf(running);
  return { ...running, folder, port, client: clientAt(t, { host: 'localhost', port }) };
}

/** The port that the program has printed. */
export function portOf(demo: Running): number {
  return Number(/localhost:(\d+)/.exec(demo.output())?.[1]);
}

/** Writes a checkpoint of an active program. Returns its path. */
export function writeState(t: TestContext, changes: Partial<typeof STATE> = {}): string {
  const path = join(makeFolder(t), 'mine.json');
  writeFileSync(path, JSON.stringify({ ...STATE, holds: [], ...changes }));
  return path;
}

/** Starts it from a checkpoint that was saved while paused, so that it stands still. */
export function startPaused(t: TestContext): Promise<Demo> {
  return startDemo(t, makeFolder(t), '--load', writeState(t, STATE));
}

/** Sends a command and waits for its outcome: the value or the error. */
export async function perform({ client }: Demo, command: string, values?: object): Promise<any> {
  const { by, reason } = HOLD;
  const reply = await client.request(command, { arguments: values, wait: 300, by, reason });
  return reply.ok ? reply.body['value'] : reply.error;
}

/** Saves and returns what the checkpoint holds. */
export async function save(demo: Demo): Promise<typeof STATE> {
  return read(await perform(demo, 'save-state'));
}

export async function shutDown(demo: Demo): Promise<void> {
  await perform(demo, 'shutdown');
  assert.equal((await demo.ended).code, 0);
}

export function read(path: string): typeof STATE {
  return JSON.parse(readFileSync(path, 'utf8')) as typeof STATE;
}

/** The paths of the files in a folder, the oldest checkpoint first. */
export function pathsIn(folder: string): string[] {
  return readdirSync(folder).sort().map((name) => join(folder, name));
}

/** What the latest checkpoint of a folder holds. */
export function lastIn(folder: string): typeof STATE {
  return read(pathsIn(folder).at(-1) ?? '');
}

/** The paths that the program has printed. */
export function savedBy(demo: Running): string[] {
  return [...demo.output().matchAll(/^saved (.*)\n/gm)].map((match) => match[1] as string);
}
