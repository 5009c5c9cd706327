// Shared by the tests of the module: files of sockets, random data.

import { once } from 'node:events';
import { chownSync, lstatSync, readFileSync, readdirSync, readlinkSync, renameSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';

// ───── Files of sockets ──────────────────────────────────────────────────────────────────────────────────────────

/** Leaves a socket behind as a killed server does: node would remove a socket on which it has listened. */
export async function leaveSocket(path: string): Promise<void> {
  const server = createServer().listen(`${path}-`);
  await once(server, 'listening');
  renameSync(`${path}-`, path);
  server.close();
  await once(server, 'close');
}

/** Statements that make a host the user nobody, who owns the folder: root can open every file. */
export function becomeNobody(folder: string): string {
  if (process.getuid?.() !== 0) return '';
  chownSync(folder, 65534, 65534);
  return 'process.setgroups([]); process.setgid(65534); process.setuid(65534);';
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
