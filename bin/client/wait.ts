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
/** After which a system that has not responded yet is reported. */
const NOTICE_MS = 2000;

/**
 * Waits until the system has the status, or its detail meets the condition. A system that has ended makes that
 * impossible, unless the status is offline; one that has never responded may still start.
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
  let lostAt: number | null = null;
  let isNoticed = false;
  let value: unknown;
  let [isReached, hasEnded] = [false, false];
  for await (const { reply } of system.follow(limit, undefined, condition === null ? 'info' : 'detail')) {
    if (isDenied(reply)) return failure(reply);
    if (condition !== null && (reply.ok ? !('detail' in system.info) : lacksInfo(reply))) {
      return { exitCode: EXIT.REFUSED, json: { error: STATUS_ONLY }, error: STATUS_ONLY };
    }
    const now = performance.now();
    const isOffline = isAbsent(reply);
    wasSeen ||= reply.ok || reply.phase !== 'connect'; // also one that hangs
    lostAt = isOffline ? lostAt ?? now : null;
    hasEnded = lostAt !== null && wasSeen && (system.end !== null || now - lostAt >= RETURN_MS);
    if (condition !== null) value = fieldOf(system.info['detail'], condition.field);
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
  const value = fieldOf(detail, field);
  const shown = typeof value === 'string' ? `'${excerpt(value)}'` : excerptOfJson(value);
  if (reply?.ok !== true) return value === undefined ? current : `${current}; ${field} was ${shown}`;
  if (value !== undefined) return `${field} is ${shown}`;
  const names = excerpt([...fieldsOf(detail).keys()].join(', '));
  return `the system reports ${names === '' ? 'no detail' : `${names}, but not ${field}`}`;
}
