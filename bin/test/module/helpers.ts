// Shared by the tests of the module: servers that do not start, files of sockets and locks, random data.

import { once } from 'node:events';
import {
  chownSync, lstatSync, lutimesSync, mkdirSync, readFileSync, readdirSync, readlinkSync, renameSync, symlinkSync,
  utimesSync, writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { SystemStatus, WebApiClient, WebApiServer } from '../../../control.ts';
import { lacks } from '../needs.ts';
import { inTime } from '../wait.ts';
import type { WebApiServerOptions } from '../../../control.ts';

// ───── Servers and clients ───────────────────────────────────────────────────────────────────────────────────────

/** Starts a server and closes it. Returns why it does not start, or null if it does. */
export async function refusalOf(options: Partial<WebApiServerOptions>): Promise<NodeJS.ErrnoException | null> {
  const server = new WebApiServer({ systemStatus: () => SystemStatus.ACTIVE, ...options });
  const started = server.runInBackground().then(() => null, (error: NodeJS.ErrnoException) => error);
  return inTime(started, () => 'it neither starts nor fails').finally(() => server.close());
}

export function clientOn(socketPath: string, token?: string): WebApiClient {
  return new WebApiClient(undefined, undefined, { socketPath, token });
}

/** Resolves when a client sees the status, within seconds. */
export async function reaches(client: WebApiClient, status: SystemStatus): Promise<void> {
  const end = new AbortController();
  const seen = client.waitFor(status, { signal: end.signal });
  seen.catch(() => {});
  await inTime(seen, () => `${client.baseUrl} does not become ${status}`).finally(() => end.abort());
}

/** Statements of a host, whose server threads then run other statements first. */
export function runFirst(statements: string): string {
  return `
    import { syncBuiltinESMExports } from 'node:module';
    import workerThreads from 'node:worker_threads';
    const { Worker } = workerThreads;
    workerThreads.Worker = class extends Worker {
      constructor(source, options) { super(${JSON.stringify(statements)} + source, options); }
    };
    syncBuiltinESMExports();
  `;
}

// ───── Files of sockets ──────────────────────────────────────────────────────────────────────────────────────────

/** Leaves a socket behind as a killed server does: node would remove a socket on which it has listened. */
export async function leaveSocket(path: string): Promise<void> {
  const server = createServer().listen(`${path}-`);
  await once(server, 'listening');
  renameSync(`${path}-`, path);
  server.close();
  await once(server, 'close');
}

/** A user without rights. */
export const NOBODY = 65_534;

/** Statements that make a host the user nobody, who owns the folder: root can open every file. */
export function becomeNobody(folder: string): string {
  if (process.getuid?.() !== 0) return '';
  chownSync(folder, NOBODY, NOBODY);
  return `process.setgroups([]); process.setgid(${NOBODY}); process.setuid(${NOBODY});`;
}

/** What may be in the place of a lock, each with the reason why it stays there. */
export function lockObstacles(): [reason: string, make: (lock: string) => void][] {
  const makeFull = (lock: string): void => {
    mkdirSync(join(lock, 'd'), { recursive: true });
    utimesSync(lock, 0, 0);
  };
  const belongs = `is in the way: it belongs to user ${NOBODY}`;
  return [
    ['ENOTEMPTY', makeFull],
    ['ENOTDIR', (lock) => { // a link to a folder
      makeFull(`${lock}-target`);
      symlinkSync(`${lock}-target`, lock);
      lutimesSync(lock, 0, 0);
    }],
    ['ENOTDIR', (lock) => {
      writeFileSync(lock, '');
      utimesSync(lock, 0, 0);
    }],
    ...lacks('root') === false ? [
      [belongs, (lock) => { // a young one
        mkdirSync(lock);
        chownSync(lock, NOBODY, -1);
      }],
      [belongs, (lock) => {
        makeFull(lock);
        chownSync(lock, NOBODY, -1);
        utimesSync(lock, 0, 0);
      }],
    ] satisfies [string, (lock: string) => void][] : [],
  ];
}

/** For each entry: name, inode, mode, time of its last change and contents. */
export function contentsOf(folder: string): unknown[][] {
  return readdirSync(folder).sort().map((name) => {
    const path = join(folder, name);
    const entry = lstatSync(path);
    const target = entry.isSymbolicLink() ? readlinkSync(path) : null;
    return [name, entry.ino, entry.mode, entry.mtimeMs, target ?? (entry.isFile() && readFileSync(path, 'utf8'))];
  });
}

// ───── Random data ───────────────────────────────────────────────────────────────────────────────────────────────

/** Of the tests that are random, which print it. TEST_SEED sets it, but not how threads interleave. */
export const SEED: number = Number(process.env['TEST_SEED'] ?? Date.now() % 2 ** 31);

/** The same numbers from 0 to 1 in each run: mulberry32. */
export function randomNumbers(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export function oneOf<Value>(random: () => number, values: readonly Value[]): Value {
  return values[Math.floor(random() * values.length)] as Value;
}
