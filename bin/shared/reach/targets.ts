// Several systems at once: their labels, and requests in parallel.

import { setTimeout as sleep } from 'node:timers/promises';
import { printable } from '../words/text.ts';
import type { TextOption } from '../line/options.ts';
import type { Socket } from './folder.ts';
import type { PrintableClient } from './replies.ts';

/** The option for a file with targets. */
export const TARGETS_FILE_OPTION: TextOption = {
  type: 'string', value: 'FILE', completion: 'files',
  help: 'targets, one per line, with # comments; TARGET token-file=PATH gives a target its own token',
};

/** The same, or standard input. */
export const TARGETS_OPTION: TextOption = { ...TARGETS_FILE_OPTION, help: `${TARGETS_FILE_OPTION.help}; - is stdin` };

/** For the help of each tool that takes targets. */
export const TARGET_HELP: string = `
TARGET is the NAME, NAME-PID or PID of a system in the folder --dir (default: that of this user's session), a pattern
of names ('train-*', 'job-?'), or an address: HOST:PORT, :PORT, http://HOST, an IP address, localhost, unix:PATH or a
path with a slash. With --via, it is on the machine whose LABEL (default: the host) precedes it: gpu1/train, gpu1/:8391,
or gpu1/ for all its systems; a name without LABEL means all machines.
`.trim();

const AT_ONCE = 32;
const SLOW_MS = 100; // a target that takes longer makes room for the next one

export interface Target {
  /** As given, or `unix:PATH` for a system of a folder; undefined for a system at the address in the options. */
  name: string | undefined;
  /** For people: as given, or `NAME-PID` for a system of a folder. */
  title: string;
  /** The title, padded, which begins each line about it. */
  label: string;
  client: PrintableClient;
  /** If it was found in a folder. */
  socket?: Socket;
}

export type Found = Omit<Target, 'label'>;

/** The target at the address in the options or the environment: lines about it have no label, unless with `--via`. */
export function onlyTarget(client: PrintableClient): Target {
  const { target, machine } = client;
  if (machine.label === '') return { name: undefined, title: target, label: '', client };
  return { name: target, title: target, label: `${target}  `, client };
}

/** Labels are equally wide. */
export function labelled(targets: Found[]): Target[] {
  const width = Math.max(...targets.map(({ title }) => title.length));
  return targets.map((target) => ({ ...target, label: `${printable(target.title).padEnd(width)}  ` }));
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
