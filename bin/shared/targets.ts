// Several systems at once: who they are, and how they are asked in parallel.

import { dirname, resolve } from 'node:path';
import { text as readAll } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import { createTargetClient, readTrusted } from './access.ts';
import { UsageError } from './options.ts';
import { printable } from './text.ts';
import type { TextOption } from './options.ts';
import type { PrintableClient } from './replies.ts';

/** The option that names the file. */
export const TARGETS_OPTION: TextOption = {
  type: 'string', value: 'FILE', completion: 'files',
  help: 'targets, one per line, with # comments; TARGET token-file=PATH for one with its own token; - is stdin',
};

const AT_ONCE = 32;
const SLOW_MS = 100; // a target that takes longer makes room for the next one

export interface Target {
  /** As given; undefined for a system at the address in the options. */
  name: string | undefined;
  /** What each line about it begins with. */
  label: string;
  client: PrintableClient;
}

/**
 * Returns the targets of the command line and of the file, each once.
 *
 * @param file Its lines are `TARGET` or `TARGET token-file=PATH`, the path relative to the file. `-` is standard input.
 * @throws {UsageError} If a target or the file is invalid, or the file names none.
 */
export async function parseTargets(
  names: readonly string[],
  file: string | undefined,
  timeoutMs: number,
): Promise<Target[]> {
  const clients = new Map<string, [name: string, client: PrintableClient]>(); // by URL
  const add = (name: string, tokenFile?: string): void => {
    const client = createTargetClient(name, timeoutMs, tokenFile);
    if (tokenFile !== undefined || !clients.has(client.baseUrl)) clients.set(client.baseUrl, [name, client]);
  };
  for (const name of names) add(name);
  if (file !== undefined) await addLines(file, add);
  return labelled([...clients.values()]);
}

/** Labels are equally wide. */
export function labelled(clients: [name: string, client: PrintableClient][]): Target[] {
  const width = Math.max(...clients.map(([name]) => name.length));
  return clients.map(([name, client]) => ({ name, label: `${printable(name).padEnd(width)}  `, client }));
}

async function addLines(file: string, add: (name: string, tokenFile?: string) => void): Promise<void> {
  const isInput = file === '-';
  const called = isInput ? 'standard input' : file;
  const lines = (isInput ? await readAll(process.stdin) : readTrusted('targets', file, false)).split('\n');
  let isEmpty = true;
  for (const [index, line] of lines.entries()) {
    const [, name, tokenFile] = /^(.+?)(?:\s+token-file=(.*))?$/.exec(line.replace(/(^|\s)#.*/, '').trim()) ?? [];
    if (name === undefined) continue;
    isEmpty = false;
    try {
      add(name, tokenFile === undefined ? undefined : resolve(isInput ? '.' : dirname(file), tokenFile));
    } catch (error) {
      if (error instanceof UsageError) error.message = `line ${index + 1} of ${called}: ${error.message}`;
      throw error;
    }
  }
  if (isEmpty) throw new UsageError(`${called} names no target`);
}

/** Runs `work` for all items: at most 32 at once, not counting those that take longer than 100 ms. */
export async function inParallel<T>(items: readonly T[], work: (item: T) => Promise<void>): Promise<void> {
  const starting = new Set<Promise<unknown>>();
  const all: Promise<void>[] = [];
  for (const item of items) {
    if (starting.size >= AT_ONCE) await Promise.race(starting);
    const done = work(item);
    const started = Promise.race([done, sleep(SLOW_MS, undefined, { ref: false })]);
    starting.add(started);
    void started.finally(() => starting.delete(started)).catch(() => {}); // `all` reports it
    all.push(done);
  }
  await Promise.all(all);
}
