// Shared by the tests of control-board: the program on a free port, and its web API.

import { startProgram } from './helpers.ts';
import type { Running } from './helpers.ts';
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
