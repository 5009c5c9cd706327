// Shared by the tests of control-demo: the program, and its checkpoints.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { advance, createSearch, evaluate, type Search } from '../../../demo/search.ts';
import { clientAt, makeFolder, startProgram } from '../../helpers.ts';
import type { StatusCause, WebApiClient } from '../../../../control.ts';
import type { Running } from '../../helpers.ts';
import type { TestContext } from 'node:test';

export const HOLD: StatusCause = {
  by: 'ana@laptop', reason: 'GPU needed until noon', since: '2026-01-23T06:00:00.000Z',
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

/** Starts it from a checkpoint that was saved while paused, so that it stands still. */
export function startPaused(t: TestContext, ...options: string[]): Promise<Demo> {
  const path = join(makeFolder(t), 'mine.json');
  writeFileSync(path, checkpointOf(searchAt(8, 12_345), [HOLD]));
  return startDemo(t, makeFolder(t), '--load', path, ...options);
}

/** Sends a command and waits for its outcome: the value or the error. */
export async function perform({ client }: Demo, command: string, values?: object): Promise<any> {
  const { by, reason } = HOLD;
  const reply = await client.request(command, { arguments: values, wait: 300, by, reason });
  return reply.ok ? reply.body['value'] : reply.error;
}

/** Saves and returns what the checkpoint holds. */
export async function save(demo: Demo): Promise<Search & { holds: StatusCause[] }> {
  return read(await perform(demo, 'save-state'));
}

export async function shutDown(demo: Demo): Promise<void> {
  await perform(demo, 'shutdown');
  assert.equal((await demo.ended).code, 0);
}

export function read(path: string): any {
  return JSON.parse(readFileSync(path, 'utf8'));
}

/** The paths of the files in a folder, the oldest checkpoint first. */
export function pathsIn(folder: string): string[] {
  return readdirSync(folder).sort().map((name) => join(folder, name));
}

/** The paths that the program has printed. */
export function savedBy(demo: Running): string[] {
  return [...demo.output().matchAll(/^saved (.*)\n/gm)].map((match) => match[1] as string);
}

/** A search with that seed after that many steps, or as soon as its loss is that small, as read from a file. */
export function searchAt(seed: number, steps: number, loss: number = -1, search: Search = createSearch(seed)): Search {
  while (search.step < steps && search.loss > loss) advance(search);
  return JSON.parse(JSON.stringify(search)); // which has no −0
}

/** The mean loss that `evaluate` reports of a search. */
export function meanLossOf(search: Search, points: number): number {
  return Number(evaluate(search, points).toPrecision(4));
}

/** The text of a checkpoint. */
export function checkpointOf(search: Search, holds: StatusCause[]): string {
  return JSON.stringify({ format: 'control-demo 5', ...search, holds });
}
