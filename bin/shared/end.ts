// How a system ends: whether somebody has asked for it, as far as its latest responses tell.

import { SystemStatus } from '../../control.ts';
import { commandsOf } from './describe.ts';
import { excerptOf, MAX_VALUE_LENGTH } from './text.ts';
import type { Body } from './describe.ts';

const SENT_MS = 1000; // a shutdown that has been sent takes effect by then, unless the program is in a step

/** What the latest responses say of the shutdown of a system. */
export class Shutdown {
  #cause: Body | null = null;
  #validUntil = 0;

  note(body: Body, status: string): void {
    const latest = commandsOf(body).at(-1);
    const isSent = latest?.['command'] === 'shutdown' && latest['state'] !== 'failed';
    const hasBegun = status === SystemStatus.SHUTTING_DOWN.statusName;
    this.#cause = hasBegun ? body : isSent ? latest : null; // that status may be too short to see
    this.#validUntil = hasBegun ? Infinity : performance.now() + SENT_MS;
  }

  /** Tells of one that was seen to take effect. */
  confirm(cause: Body): void {
    [this.#cause, this.#validUntil] = [cause, Infinity];
  }

  /** Who has sent it, and why; null if there is none, or it was without effect. */
  get cause(): Body | null {
    return performance.now() < this.#validUntil ? this.#cause : null;
  }
}

/** How control-run reports the end of its program, after what that has saved: `exit code 7`, `saved 12; SIGTERM`. */
const END = /(^|; )(exit code \d+|SIG[A-Z0-9]+|still running|cannot start .*)$/;

/** Ends that control-run counts as failures: other exit codes and signals than those of an end that was asked for. */
const CRASH = /^(exit code (?!(0|129|130|141|143)$)|SIG(?!(HUP|INT|PIPE|TERM)$)|cannot start )/;

/** Whether the cause of a shutdown is that the program has failed. */
export function isCrash({ by, reason }: Body): boolean {
  return by === 'itself' && CRASH.test(excerptOf(reason));
}

/** What the last save has returned; empty if the value of a shutdown tells only how the program has ended. */
export function savedBy(shutdownValue: string): string {
  return shutdownValue.replace(END, '');
}

/** Whether a shutdown has failed after the last save. */
export function isEndError(error: unknown): boolean {
  return /^onShutdown failed: | cannot be ended$/.test(excerptOf(error, MAX_VALUE_LENGTH));
}
