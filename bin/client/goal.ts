// The wait of control-client until a system has a status, or a field of its detail a value.

import { SystemStatus } from '../../control.ts';
import { EXIT, warn } from '../shared/cli.ts';
import { STATUS_ONLY } from '../shared/client.ts';
import { findStatus } from '../shared/commands.ts';
import { type Condition, describeEnd, fieldsOf } from '../shared/describe.ts';
import { describeCurrent, elapsedSeconds, FollowedSystem } from '../shared/system.ts';
import { excerpt, excerptOfJson } from '../shared/text.ts';
import { failure, type Outcome } from './verb.ts';
import type { Target } from '../shared/folder.ts';

/** In which a system that is offline may come back: its server thread is replaced, or a service manager restarts it. */
const RETURN_MS = 5000;
/** After which a system that has not responded yet is reported. */
const NOTICE_MS = 2000;

/**
 * Waits until the system has the status, or its detail meets the condition. A system that has ended makes that
 * impossible, unless the status is offline; one that has never responded may still start.
 *
 * @param timeoutMs May be Infinity.
 */
export async function waitFor(
  target: Target,
  goal: SystemStatus | Condition,
  timeoutMs: number,
): Promise<Outcome> {
  const start = performance.now();
  const limit = timeoutMs === Infinity ? new AbortController().signal : AbortSignal.timeout(Math.ceil(timeoutMs));
  const { socket, title } = target;
  const system = new FollowedSystem(target);
  const condition = 'field' in goal ? goal : null;
  let wasSeen = socket !== undefined;
  let lostAt: number | null = null;
  let isNoticed = false;
  let value: unknown;
  let [isReached, hasEnded] = [false, false];
  for await (const reply of system.follow(limit, undefined, condition === null ? 'info' : 'detail')) {
    if (reply.fault === 'denied') return failure(reply);
    if (condition !== null && reply.ok && !('detail' in system.info)) {
      return { exitCode: EXIT.REFUSED, json: { error: STATUS_ONLY }, error: STATUS_ONLY };
    }
    const now = performance.now();
    const isOffline = reply.fault === 'offline';
    wasSeen ||= reply.ok || reply.phase !== 'connect'; // also one that hangs
    lostAt = isOffline ? lostAt ?? now : null;
    hasEnded = lostAt !== null && wasSeen && (system.end !== null || now - lostAt >= RETURN_MS);
    if (condition !== null) value = fieldsOf(system.info['detail']).get(condition.field);
    isReached = condition !== null ? reply.ok && condition.isMetBy(value)
      : isOffline ? goal === SystemStatus.OFFLINE && (hasEnded || !wasSeen) : system.status === `${goal}`;
    if (isReached || hasEnded) break;
    if (wasSeen || isNoticed || now - start < NOTICE_MS) continue;
    isNoticed = true;
    warn(isOffline ? `${title} is offline: it may still start` : `${title}: ${system.error}`);
  }
  const { status } = system;
  const seconds = elapsedSeconds(start);
  if (isReached || (condition === null && status === `${goal}`)) { // offline, but not for RETURN_MS yet
    const text = condition === null ? status : excerptOfJson(value);
    return { exitCode: EXIT.DONE, text, json: { seconds, value, status } };
  }
  const error = `not ${condition?.text ?? goal} after ${seconds.toFixed(1)} s: ${describeLast(system, condition)}`;
  const json = { seconds, value, status: status || undefined, error };
  return { exitCode: hasEnded ? EXIT.ENDED : EXIT.NOT_REACHED, json, error };
}

/** What is known at the end. */
function describeLast(system: FollowedSystem, condition: Condition | null): string {
  const { reply, info: { detail }, infoAt, end, error } = system;
  const status = findStatus(system.status) ?? null;
  const why = status === null && infoAt > 0 ? error : ''; // of one that has never responded, a notice has said it
  const current = why || describeCurrent(status) + (end === null ? '' : `: ${describeEnd(end)}`);
  if (condition === null) return current;
  const { field } = condition;
  const value = fieldsOf(detail).get(field);
  const shown = typeof value === 'string' ? `'${excerpt(value)}'` : excerptOfJson(value);
  if (reply?.ok !== true) return value === undefined ? current : `${current}; ${field} was ${shown}`;
  if (value !== undefined) return `${field} is ${shown}`;
  const names = excerpt([...fieldsOf(detail).keys()].join(', '));
  return `the system reports ${names === '' ? 'no detail' : `${names}, but not ${field}`}`;
}
