// Whether a system has ended because of a shutdown, judged by its latest responses.

import { SystemStatus } from '../../../control.ts';
import { commandsOf, endIn, savedIn, splitDetail } from '../words/describe.ts';
import { excerptOf, excerptOfJson, MAX_VALUE_LENGTH } from '../words/text.ts';
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

/** Exit codes of an end that was requested: 0, and those of SIGHUP, SIGINT, SIGPIPE and SIGTERM. */
const REQUESTED: readonly unknown[] = [0, 129, 130, 141, 143];

/** Whether a failure of the program is the cause of a shutdown, which is a status or a command. */
export function isCrash(cause: Body): boolean {
  const latest = commandsOf(cause).at(-1) ?? {};
  const end = endIn(cause['value']) ?? endIn(splitDetail(cause['detail']).run) ?? endIn(latest['value']);
  return cause['by'] === 'itself' && end !== null && !REQUESTED.includes(end['exitCode']);
}

/** The value of the last save; empty if the value of a shutdown only reports how the program has ended. */
export function savedBy(shutdown: Body): string {
  const end = endIn(shutdown['value']);
  return end === null ? excerptOfJson(shutdown['value']) : savedIn(end);
}

/** Whether a shutdown failed after the last save. */
export function isEndError(error: unknown): boolean {
  return /^onShutdown failed: | cannot be ended$/.test(excerptOf(error, MAX_VALUE_LENGTH));
}
