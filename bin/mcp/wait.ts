// Waits until a system changes, asks a question, has a status, or reports a detail that meets a condition.

import { SystemStatus } from '../../control.ts';
import { listOf, UsageError } from '../shared/cli.ts';
import { NO_ANSWER, type PrintableReply, STATUS_ONLY, statusNameOf } from '../shared/client.ts';
import { findStatus, STATUS_WORDS } from '../shared/commands.ts';
import { questionsIn } from '../shared/declared.ts';
import { type Condition, fieldsOf, isCondition, parseCondition } from '../shared/describe.ts';
import { elapsedSeconds, type FollowedSystem, observe, withLimit } from '../shared/system.ts';
import { type Body, excerpt } from '../shared/text.ts';
import { CallError, clean, cleanText, currentReport, isSettled, now, statusFields, tagOf } from './reported.ts';

type Goal =
  | { kind: 'change'; tag: string | undefined }
  | { kind: 'ask' }
  | { kind: 'status'; name: string }
  | { kind: 'detail'; condition: Condition };

const LAST_MS = 1000; // for a last query when the time is up
const REQUEST_S = 5; // per request: a program that neither polls nor yields reports changes only when queried

/**
 * @param tag From an earlier result: changes since then count.
 * @throws {UsageError} If the text is not a goal, or there is a tag and the goal is not a change.
 */
export function parseGoal(text: string = 'change', tag?: string): Goal {
  const word = text.toLowerCase();
  if (word === 'change') return { kind: 'change', tag };
  if (tag !== undefined) throw new UsageError(`tag is for until: change, got '${cleanText(text)}'`);
  if (word === 'ask') return { kind: 'ask' };
  if (isCondition(text)) return { kind: 'detail', condition: parseCondition(text) };
  const status = findStatus(word);
  if (status !== undefined) return { kind: 'status', name: status.statusName };
  const forms = `change, ask, a status (${listOf(STATUS_WORDS)}) or a condition such as 'loss < 0.1'`;
  throw new UsageError(`until must be ${forms}, got '${cleanText(text)}'`);
}

/**
 * Waits for the goal, the time limit, counted from `start`, or the signal.
 *
 * @throws {CallError} If the system refuses access, or does not report what the goal needs.
 */
export async function wait(
  system: FollowedSystem,
  goal: Goal,
  { start, seconds, signal }: { start: number; seconds: number; signal: AbortSignal },
): Promise<object> {
  let reply: PrintableReply | undefined; // the latest one
  let [info, infoAt]: [Body?, string?] = []; // the latest report
  let value: unknown; // of the field in the condition
  let known = goal.kind === 'change' ? goal.tag : undefined; // any other tag is a change
  let wasSeen = system.target.socket !== undefined || known !== undefined; // otherwise, it may still start

  const isReached = (latest: PrintableReply & { ok: true }): boolean => {
    const { body } = latest;
    const fail = (message: string): never => {
      throw new CallError(message, statusFields(system, latest));
    };
    switch (goal.kind) {
      case 'status': return false;
      case 'ask': return questionsIn(body).length > 0;
      case 'change': {
        const tag = tagOf(latest);
        known ??= tag;
        return tag !== known && isSettled(body);
      }
      case 'detail': {
        const { field, isMetBy } = goal.condition;
        value = fieldsOf(body['detail']).get(field);
        const hint = 'to wait for a status of the system, write until: paused';
        if (field === 'status' && value === undefined) fail(`the detail has no field 'status'; ${hint}`);
        return isMetBy(value);
      }
    }
  };
  const endIn = (latest: PrintableReply): 'reached' | 'changed' | 'offline' | null => {
    reply = latest;
    const status = statusNameOf(latest);
    system.note(status, latest);
    if (latest.fault === 'denied') throw new CallError(latest.error, statusFields(system, latest));
    if (latest.ok) [info, infoAt] = [latest.body, now()];
    if (goal.kind === 'status' && status === goal.name) return 'reached';
    if (latest.ok && isReached(latest)) return goal.kind === 'change' ? 'changed' : 'reached';
    const isOffline = status === SystemStatus.OFFLINE.statusName;
    if (isOffline && wasSeen) return 'offline';
    wasSeen ||= !isOffline;
    return null;
  };
  const watch = (isSingle: boolean) => async (limit: AbortSignal): Promise<ReturnType<typeof endIn>> => {
    const [query, waitS] = goal.kind === 'detail' ? ['detail' as const] : ['info' as const, REQUEST_S];
    for await (const { reply: latest, endpoint, isNew } of observe(system.client, query, limit, waitS)) {
      if (!isNew) continue;
      const lacksReport = latest.ok && endpoint === 'status' && ['ask', 'detail'].includes(goal.kind);
      if (lacksReport) throw new CallError(STATUS_ONLY, statusFields(system, latest));
      const ended = endIn(latest);
      if (ended !== null || isSingle) return ended;
    }
    return null;
  };

  let ended = await withLimit(Math.max(0, start + 1000 * seconds - performance.now()), signal, watch(false));
  const last = reply as PrintableReply | undefined;
  if (ended === null && last?.ok === true) ended = await withLimit(LAST_MS, signal, watch(true)); // it may be old
  const silence = { system: system.target.id, status: NO_ANSWER, error: `has not responded within ${seconds} s` };
  const missing = (): string | undefined => {
    if (goal.kind !== 'detail' || info === undefined || value !== undefined) return undefined;
    const names = [...fieldsOf(info['detail']).keys()].join(', ');
    return cleanText(`the detail has no field '${goal.condition.field}'${names && `, only ${excerpt(names)}`}`);
  };
  return {
    ...(reply === undefined ? silence : statusFields(system, reply)), ended: ended ?? 'timeout',
    seconds: elapsedSeconds(start), now: now(), tag: tagOf(reply), value: clean(value),
    note: ended === null ? missing() : undefined, reported: info && currentReport(info),
    reportedAt: (reply as PrintableReply | undefined)?.ok === true ? undefined : infoAt,
  };
}
