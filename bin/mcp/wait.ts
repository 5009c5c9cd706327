// The tool that waits: until a system changes, has a status, or reports a detail that meets a condition.

import { SystemStatus } from '../../control.ts';
import { STATUS_WORDS } from '../shared/commands.ts';
import { fieldOf, isCondition, parseCondition } from '../shared/condition.ts';
import { withLimit } from '../shared/limit.ts';
import { observe } from '../shared/observe.ts';
import { listOf, UsageError } from '../shared/options.ts';
import { isDenied } from '../shared/replies.ts';
import { clean, cleanText, currentReport } from './reported.ts';
import type { Condition } from '../shared/condition.ts';
import type { Observation } from '../shared/observe.ts';
import type { PrintableClient, PrintableReply } from '../shared/replies.ts';
import type { System } from './systems.ts';

const REQUEST_S = 5; // of each request: a program that neither polls nor yields reports no change unless asked
const DETAIL_S = 1; // between two looks at the detail, of which there are no news

/** A status, a condition, or null for any change. */
export type Goal = SystemStatus | Condition | null;

/** @throws {UsageError} If the text is none of these. */
export function parseGoal(text: string): Goal {
  if (text === 'change') return null;
  if (isCondition(text)) return parseCondition(text);
  const status = Object.values(SystemStatus)[STATUS_WORDS.indexOf(text.replace(' ', '-'))];
  if (status !== undefined) return status;
  const forms = `change, a status (${listOf(STATUS_WORDS)}) or a condition such as 'loss < 0.1'`;
  throw new UsageError(`until must be ${forms}, got '${text}'`);
}

export interface WaitOptions {
  goal: Goal;
  /** Of an earlier report: a change since then counts. */
  tag: string | undefined;
  seconds: number;
}

/**
 * Waits until the goal is reached, or the signal.
 *
 * @throws {UsageError} If the system refuses access.
 */
export async function wait(system: System, options: WaitOptions, signal: AbortSignal): Promise<object> {
  const { id, client } = system;
  const start = performance.now();
  const watcher = new Watcher(options);
  const ended = await withLimit(1000 * options.seconds, signal, (limit) => watcher.watch(client, limit));
  const { status, reply, info, value } = watcher;
  return {
    system: id, ended: ended ?? 'timeout', seconds: Number(((performance.now() - start) / 1000).toFixed(3)), status,
    tag: tagOf(reply), error: reply?.ok === false ? cleanText(client.shorten(reply.error)) : undefined,
    value: clean(value), reported: info && currentReport(info),
  };
}

type Ended = 'reached' | 'changed' | 'offline';

/** What was observed of a system, and whether the wait ends with it. */
class Watcher {
  status: string | undefined;
  /** The latest. */
  reply: PrintableReply | undefined;
  /** The latest that the system has reported. */
  info: Readonly<Record<string, unknown>> | undefined;
  /** Of the field of the condition. */
  value: unknown;
  readonly #goal: Goal;
  #known: string | undefined; // a tag, which changes with the status, or else the status
  #hasResponded = false;

  constructor({ goal, tag }: WaitOptions) {
    this.#goal = goal;
    this.#known = tag;
  }

  /** Returns null if the limit is reached first. */
  async watch(client: PrintableClient, limit: AbortSignal): Promise<Ended | null> {
    const isOnDetail = this.#goal !== null && 'field' in this.#goal;
    for await (const seen of observe(client, 'info', limit, isOnDetail ? DETAIL_S : REQUEST_S)) {
      const reply = isOnDetail && !seen.isNew ? await client.request('info', { signal: limit }) : seen.reply;
      if (limit.aborted) break;
      if (isDenied(reply)) throw new UsageError(reply.error);
      const ended = this.#note({ ...seen, reply, isNew: seen.isNew || isOnDetail });
      if (ended !== null) return ended;
    }
    return null;
  }

  #note({ status, reply, isNew }: Observation): Ended | null {
    [this.status, this.reply] = [status, reply];
    if (reply.ok && isNew) this.info = reply.body;
    if (this.#goal === null) return this.#noteChange(tagOf(reply) ?? status);
    const isReached = 'field' in this.#goal ? reply.ok && this.#isMet(this.#goal) : status === this.#goal.statusName;
    if (isReached) return 'reached';
    const isOffline = status === SystemStatus.OFFLINE.statusName;
    if (isOffline && this.#hasResponded) return 'offline';
    this.#hasResponded ||= !isOffline;
    return null;
  }

  #noteChange(state: string): Ended | null {
    this.#known ??= state;
    return state === this.#known ? null : 'changed';
  }

  #isMet({ field, isMetBy }: Condition): boolean {
    this.value = fieldOf(this.info?.['detail'], field);
    return this.value !== undefined && isMetBy(this.value);
  }
}

/** The ETag without its quotes. */
export function tagOf(reply: PrintableReply | undefined): string | undefined {
  return reply?.ok === true ? reply.tag?.replaceAll('"', '') : undefined;
}
