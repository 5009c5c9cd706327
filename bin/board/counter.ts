// Counts the completed commands of a system, by name and outcome.

import { COMMAND, CONTROL_COMMANDS } from '../shared/words/accepts.ts';
import { isAnswer } from '../shared/words/asks.ts';
import { excerptOf } from '../shared/words/text.ts';
import { isCrashEntry, isRefusedSave } from './state.ts';
import type { Body } from '../shared/words/text.ts';

const MAX_NAMES = 64;

/** How many commands of a name are done, and how many have failed. */
export type Counts = Map<string, { done: number; failed: number }>;

export class Counter {
  readonly counts: Counts;

  /** @param counts The counts to start from. */
  constructor(counts: Counts = new Map(CONTROL_COMMANDS.map((command) => [command, { done: 0, failed: 0 }]))) {
    this.counts = counts;
  }

  /**
   * Adds completed commands and answers, but neither crashes nor refused saves, which control-run lists, too, nor
   * questions that nobody has answered.
   */
  addAll(commands: readonly Body[], info: Body): void {
    for (const entry of commands) {
      const isUnanswered = isAnswer(entry) && entry['state'] === 'failed';
      const isCounted = !isCrashEntry(entry) && !isRefusedSave(entry, info) && !isUnanswered;
      if (isCounted) this.add(excerptOf(entry['command']), entry['state'] as 'done' | 'failed');
    }
  }

  add(command: string, state: 'done' | 'failed'): void {
    if (!COMMAND.test(command)) return;
    const count = this.counts.get(command) ?? { done: 0, failed: 0 };
    count[state] += 1;
    if (this.counts.has(command) || this.counts.size < MAX_NAMES) this.counts.set(command, count);
  }
}
