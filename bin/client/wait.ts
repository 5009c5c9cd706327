// control-client wait: waits until a system has a status, or a field of its detail meets a condition.

import { SystemStatus } from '../../control.ts';
import { findStatus } from '../shared/words/commands.ts';
import { fieldOf, fieldsOf } from '../shared/words/condition.ts';
import { describeCurrent } from '../shared/reach/follow.ts';
import { observe } from '../shared/reach/observe.ts';
import { elapsedSeconds } from '../shared/reach/limit.ts';
import { EXIT } from '../shared/line/options.ts';
import { isDenied, lacksInfo, STATUS_ONLY, statusNameOf } from '../shared/reach/replies.ts';
import { excerpt, excerptOfJson } from '../shared/words/text.ts';
import { failure } from './send.ts';
import type { Condition } from '../shared/words/condition.ts';
import type { PrintableClient, PrintableReply } from '../shared/reach/replies.ts';
import type { Outcome } from './send.ts';

export async function waitFor(client: PrintableClient, target: SystemStatus, timeoutMs: number): Promise<Outcome> {
  const start = performance.now();
  let latest = null as SystemStatus | null;
  for await (const { status, reply } of observe(client, 'status', AbortSignal.timeout(Math.ceil(timeoutMs)))) {
    if (isDenied(reply)) return failure(reply);
    latest = findStatus(status) ?? latest;
    if (latest !== target) continue;
    return { exitCode: EXIT.DONE, text: status, json: { seconds: elapsedSeconds(start), status } };
  }
  const json = { seconds: elapsedSeconds(start), status: latest?.statusName };
  return notReached(target.statusName, json, describeCurrent(latest));
}

/** Waits even if the system is offline, or does not report the field yet. */
export async function waitUntil(client: PrintableClient, condition: Condition, timeoutMs: number): Promise<Outcome> {
  const { text, field, isMetBy } = condition;
  const start = performance.now();
  const limit = AbortSignal.timeout(Math.ceil(timeoutMs));
  let latest = null as PrintableReply | null;
  let detail: unknown;
  for await (const { reply, endpoint, isNew } of observe(client, 'detail', limit)) {
    if (isDenied(reply)) return failure(reply);
    if (!isNew) continue;
    latest = reply;
    if (endpoint === 'status' && (reply.ok || lacksInfo(reply))) {
      return { exitCode: EXIT.REFUSED, json: { error: STATUS_ONLY }, error: STATUS_ONLY };
    }
    if (reply.ok) detail = reply.body['detail'];
    const value = fieldOf(detail, field);
    if (reply.ok && value !== undefined && isMetBy(value)) {
      const json = { seconds: elapsedSeconds(start), value, status: statusNameOf(reply) };
      return { exitCode: EXIT.DONE, text: excerptOfJson(value), json };
    }
  }
  const status = latest === null ? undefined : statusNameOf(latest);
  const json = { seconds: elapsedSeconds(start), value: fieldOf(detail, field), status };
  return notReached(text, json, describeLast(latest, detail, field));
}

/** What is known at the timeout. */
function describeLast(latest: PrintableReply | null, detail: unknown, field: string): string {
  const value = fieldOf(detail, field);
  const shown = typeof value === 'string' ? `'${excerpt(value)}'` : excerptOfJson(value);
  if (latest?.ok !== true) {
    const isOffline = latest !== null && statusNameOf(latest) === SystemStatus.OFFLINE.statusName;
    const absence = describeCurrent(isOffline ? SystemStatus.OFFLINE : null);
    return value === undefined ? absence : `${absence}; ${field} was ${shown}`;
  }
  if (value !== undefined) return `${field} is ${shown}`;
  const names = excerpt([...fieldsOf(detail).keys()].join(', '));
  return `the system reports ${names === '' ? 'no detail' : `${names}, but not ${field}`}`;
}

function notReached(goal: string, json: { seconds: number; [name: string]: unknown }, why: string): Outcome {
  const error = `not ${goal} after ${json.seconds.toFixed(1)} s: ${why}`;
  return { exitCode: EXIT.NOT_REACHED, json: { ...json, error }, error };
}
