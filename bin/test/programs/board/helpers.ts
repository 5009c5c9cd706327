// Shared by the tests of control-board: the program on a free port, and its web API.

import assert from 'node:assert/strict';
import { startProgram, until } from '../../helpers.ts';
import type { News } from '../../../board/board.ts';
import type { Update } from '../../../board/system.ts';
import type { Running } from '../../helpers.ts';
import type { TestContext } from 'node:test';

export interface StartedBoard {
  running: Running;
  /** That of the page, without the key. */
  url: string;
  port: number;
  key: string;
  /** Sends the key. */
  get(path: string, headers?: Record<string, string>): Promise<Response>;
  post(path: string, headers?: Record<string, string>): Promise<Response>;
}

/** The address that the program prints. */
export const BANNER: RegExp = /^(\d+) systems? · (http:\/\/\S+:(\d+)\/)#([\w-]+)/m;

/** Starts control-board on a free port of localhost, unless an option gives another address. */
export async function startBoard(
  t: TestContext,
  targets: readonly string[],
  options: readonly string[] = [],
  env: NodeJS.ProcessEnv = {},
): Promise<StartedBoard> {
  const listen = options.some((option) => option.startsWith('--listen')) ? [] : ['--listen', 'localhost:0'];
  const running = startProgram(t, 'board', [...listen, ...options, ...targets], env);
  await running.shows(/\/#.*\(open it; .*\)\n/);
  const [, , url = '', port, key = ''] = BANNER.exec(running.output()) ?? [];
  const request = (method: string) => (path: string, headers: Record<string, string> = {}): Promise<Response> => {
    return fetch(new URL(path, url), { method, headers: { Authorization: `Bearer ${key}`, ...headers } });
  };
  return { running, url, port: Number(port), key, get: request('GET'), post: request('POST') };
}

/** What a page is sent. */
export async function newsOf(board: StartedBoard, since: number = 0, waitS?: number): Promise<News> {
  const headers: Record<string, string> = waitS === undefined ? {} : { Prefer: `wait=${waitS}` };
  const response = await board.get(`/api/systems?since=${since}`, headers);
  assert.equal(response.status, 200);
  return await response.json() as News;
}

/** Waits until a page shows this of a system. */
export async function untilSystem(
  board: StartedBoard,
  isShown: (system: Update) => boolean,
  id: number = 0,
): Promise<Update> {
  let system: Update | undefined;
  const last = (): string => `${isShown}: ${JSON.stringify(system)} ${board.running.output()}`;
  await until(async () => {
    system = (await newsOf(board)).systems[id];
    return system !== undefined && isShown(system);
  }, last);
  return system as Update;
}
