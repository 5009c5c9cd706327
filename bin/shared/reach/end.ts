// Whether a system has ended because of a shutdown, judged by its latest responses.

import { SystemStatus } from '../../../control.ts';
import { commandsOf } from '../words/describe.ts';
import { excerptOf, MAX_VALUE_LENGTH } from '../words/text.ts';
import type { Body } from '../words/describe.ts';

const SENT_MS = 1000; // a shutdown that has been sent takes effect by then, unless the program is in a step

/** The shutdown of a system, according to its latest responses. */
export class Shutdown {
  #cause: Body | null = null;
  #validUntil = 0;

  note(body: Body, status: string): void {
    const latest = commandsOf(body).at(-1);
    const isSent = latest?.['command'] === 'shutdown' && latest['state'] !== 'failed';
    const hasBegun = status === SystemStatus.SHUTTING_DOWN.statusName;
    this.#cause = hasBegun ? body : isSent ? latest : null; // the status `shutting down` may be too short to be seen
    this.#validUntil = hasBegun ? Infinity : performance.now() + SENT_MS;
  }

  /** Notes a shutdown that has taken effect. */
  confirm(cause: Body): void {
    [this.#cause, this.#validUntil] = [cause, Infinity];
  }

  /** Who sent it, and why; null if there is none, or it had no effect. */
  get cause(): Body | null {
    return performance.now() < this.#validUntil ? this.#cause : null;
  }
}

/** How control-run reports the end of its program, after the value of its save: `exit code 7`, `saved 12; SIGTERM`. */
const END = /(^|; )(exit code \d+|SIG[A-Z0-9]+|still running|cannot start .*)$/;

/** Ends that control-run counts as failures: exit codes and signals that do not result from a requested end. */
const CRASH = /^(exit code (?!(0|129|130|141|143)$)|SIG(?!(HUP|INT|PIPE|TERM)$)|cannot start )/;

/** Whether a failure of the program is the cause of a shutdown. */
export function isCrash({ by, reason }: Body): boolean {
  return by === 'itself' && CRASH.test(excerptOf(reason));
}

/** The value of the last save; empty if the value of a shutdown only reports how the program has ended. */
export function savedBy(shutdownValue: string): string {
  return shutdownValue.replace(END, '');
}

/** Whether a shutdown failed after the last save. */
export function isEndError(error: unknown): boolean {
  return /^onShutdown failed: | cannot be ended$/.test(excerptOf(error, MAX_VALUE_LENGTH));
}
