// How a program under control-run has ended.

import { commandsOf, endIn, savedIn, splitDetail } from '../words/describe.ts';
import { excerptOfJson } from '../words/text.ts';
import type { Body } from '../words/text.ts';

/** Exit codes of an end that was requested: 0, and those of SIGHUP, SIGINT, SIGPIPE and SIGTERM. */
const REQUESTED: readonly unknown[] = [0, 129, 130, 141, 143];

/** Whether a failure of the program is the cause of a shutdown, which is a status or a command. */
export function isCrash(cause: Body): boolean {
  const latest = commandsOf(cause).filter(({ command }) => command === 'shutdown').at(-1) ?? {};
  const end = endIn(cause['value']) ?? endIn(splitDetail(cause['detail']).run) ?? endIn(latest['value']);
  return cause['by'] === 'itself' && end !== null && !REQUESTED.includes(end['exitCode']);
}

/** The value of the last save; empty if the value of a shutdown only reports how the program has ended. */
export function savedBy(shutdown: Body): string {
  const end = endIn(shutdown['value']);
  return end === null ? excerptOfJson(shutdown['value']) : savedIn(end);
}
