// Counts the completed commands of a system, by name and outcome.

import { COMMAND, CONTROL_COMMANDS } from '../shared/words/accepts.ts';
import { excerptOf } from '../shared/words/text.ts';
import { isCrashEntry, isFinal, isRefusedSave } from './state.ts';
import type { Body } from '../shared/words/describe.ts';

const MAX_NAMES = 64;

/** How many commands of a name are done, and how many have failed. */
export type Counts = Map<string, { done: number; failed: number }>;

export class Counter {
  readonly counts: Counts;
  #known: Set<string> | null = null; // the ids of the completed commands in the latest list

  /** @param counts The counts to start from. */
  constructor(counts: Counts = new Map(CONTROL_COMMANDS.map((command) => [command, { done: 0, failed: 0 }]))) {
    this.counts = counts;
  }

  /** Counts the commands in a list that were not completed in the list before. The first list counts as known. */
  addNew(commands: readonly Body[]): void {
    const completed = commands.filter((entry) => {
      const isCounted = !isCrashEntry(entry) && !isRefusedSave(entry);
      return isCounted && excerptOf(entry['id']) !== '' && isFinal(entry['state']);
    });
    for (const { id, command, state } of completed) {
      if (this.#known?.has(excerptOf(id)) === false) this.add(excerptOf(command), state as 'done' | 'failed');
    }
    this.#known = new Set(completed.map(({ id }) => excerptOf(id)));
  }

  add(command: string, state: 'done' | 'failed'): void {
    if (!COMMAND.test(command)) return;
    const count = this.counts.get(command) ?? { done: 0, failed: 0 };
    count[state] += 1;
    if (this.counts.has(command) || this.counts.size < MAX_NAMES) this.counts.set(command, count);
  }
}
