// control-client wait: waits until a system has a status, or a field of its detail meets a condition.

import { SystemStatus } from '../../control.ts';
import { describeEnd } from '../shared/words/describe.ts';
import { findStatus } from '../shared/words/commands.ts';
import { fieldOf, fieldsOf } from '../shared/words/condition.ts';
import { describeCurrent } from '../shared/reach/follow.ts';
import { elapsedSeconds } from '../shared/reach/limit.ts';
import { EXIT, warn } from '../shared/line/options.ts';
import { isAbsent, isDenied, lacksInfo, STATUS_ONLY } from '../shared/reach/replies.ts';
import { FollowedSystem } from '../shared/reach/system.ts';
import { excerpt, excerptOfJson } from '../shared/words/text.ts';
import { failure } from './send.ts';
import type { Condition } from '../shared/words/condition.ts';
import type { Target } from '../shared/reach/targets.ts';
import type { Outcome } from './send.ts';

/** In which a system that is offline may come back: its server thread is replaced, or a service manager restarts it. */
const RETURN_MS = 5000;

/**
 * Waits until the system has the status, or its detail meets the condition. A system that has ended makes that
 * impossible; one at an address where nothing has responded yet may still start.
 *
 * @param timeoutMs May be Infinity.
 */
export async function waitFor(
  { client, socket, title }: Target,
  goal: SystemStatus | Condition,
  timeoutMs: number,
): Promise<Outcome> {
  const start = performance.now();
  const limit = timeoutMs === Infinity ? new AbortController().signal : AbortSignal.timeout(Math.ceil(timeoutMs));
  const system = new FollowedSystem(client);
  const condition = 'field' in goal ? goal : null;
  let wasSeen = socket !== undefined;
  let lostAt = Infinity;
  let exitCode: number = EXIT.NOT_REACHED;
  let value: unknown;
  for await (const { reply, before } of system.follow(limit, undefined, condition === null ? 'info' : 'detail')) {
    if (isDenied(reply)) return failure(reply);
    const { status } = system;
    if (condition !== null && (reply.ok ? !('detail' in system.info) : lacksInfo(reply))) {
      return { exitCode: EXIT.REFUSED, json: { error: STATUS_ONLY }, error: STATUS_ONLY };
    }
    if (condition !== null) value = fieldOf(system.info['detail'], condition.field);
    if (condition === null ? status === `${goal}` : reply.ok && condition.isMetBy(value)) {
      const json = { seconds: elapsedSeconds(start), value, status };
      return { exitCode: EXIT.DONE, text: condition === null ? status : excerptOfJson(value), json };
    }
    const isOffline = status === SystemStatus.OFFLINE.statusName;
    wasSeen ||= reply.ok || (reply.phase !== 'connect' && !isOffline); // also one that hangs
    if (!isOffline) lostAt = Infinity;
    else if (before !== undefined) lostAt = performance.now();
    if (before === '' && !wasSeen && process.stderr.isTTY) {
      warn(isAbsent(reply) ? `${title} is offline: it may still start` : `${title}: ${system.error}`);
    }
    if (!wasSeen || performance.now() - lostAt < (system.end === null ? RETURN_MS : 0)) continue;
    exitCode = EXIT.ENDED;
    break;
  }
  const seconds = elapsedSeconds(start);
  const error = `not ${condition?.text ?? goal} after ${seconds.toFixed(1)} s: ${describeLast(system, condition)}`;
  return { exitCode, json: { seconds, value, status: system.status || undefined, error }, error };
}

/** What is known at the end. */
function describeLast({ status, reply, info: { detail }, end }: FollowedSystem, condition: Condition | null): string {
  const current = describeCurrent(findStatus(status) ?? null) + (end === null ? '' : `: ${describeEnd(end)}`);
  if (condition === null) return current;
  const { field } = condition;
  const value = fieldOf(detail, field);
  const shown = typeof value === 'string' ? `'${excerpt(value)}'` : excerptOfJson(value);
  if (reply?.ok !== true) return value === undefined ? current : `${current}; ${field} was ${shown}`;
  if (value !== undefined) return `${field} is ${shown}`;
  const names = excerpt([...fieldsOf(detail).keys()].join(', '));
  return `the system reports ${names === '' ? 'no detail' : `${names}, but not ${field}`}`;
}
