// Shared by the tests of control-board.

import { startProgram } from './helpers.ts';
import type { Running } from './helpers.ts';
import type { TestContext } from 'node:test';

const BANNER = /^\d+ systems? · http:\/\/localhost:(\d+)\/#(\S+)/m;

export interface StartedBoard {
  running: Running;
  /** The address of the page, without the key. */
  url: string;
  port: number;
  key: string;
  /** Sends a request with the key. */
  get(path: string, headers?: Record<string, string>): Promise<Response>;
  post(path: string, headers?: Record<string, string>): Promise<Response>;
}

/** Starts a board on a free port of localhost unless told otherwise. It ends with the test. */
export async function startBoard(
  t: TestContext,
  targets: readonly string[],
  options: readonly string[] = [],
  env: NodeJS.ProcessEnv = {},
): Promise<StartedBoard> {
  const listen = options.includes('--listen') ? [] : ['--listen', 'localhost:0'];
  const running = startProgram(t, 'board', [...listen, ...options, ...targets], env);
  await running.shows(BANNER);
  const [, port = '', key = ''] = BANNER.exec(running.output()) ?? [];
  const url = `http://localhost:${port}/`;
  const request = (method: string, path: string, headers: Record<string, string> = {}): Promise<Response> => {
    return fetch(new URL(path, url), { method, headers: { Authorization: `Bearer ${key}`, ...headers } });
  };
  return {
    running, url, port: Number(port), key,
    get: (path, headers) => request('GET', path, headers), post: (path, headers) => request('POST', path, headers),
  };
}
