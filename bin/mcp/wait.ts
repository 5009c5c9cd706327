// Waits until a system changes, asks a question, has a status, or reports a detail that meets a condition. All waits on
// a system share one connection.

import { EventEmitter, on } from 'node:events';
import { setImmediate } from 'node:timers/promises';
import { SystemStatus } from '../../control.ts';
import { listOf, UsageError } from '../shared/cli.ts';
import { isDenied, NO_ANSWER, type PrintableClient, type PrintableReply, statusNameOf } from '../shared/client.ts';
import { findStatus, STATUS_WORDS } from '../shared/commands.ts';
import { asksIn, describeLack } from '../shared/declared.ts';
import { type Condition, fieldOf, fieldsOf, isCondition, parseCondition } from '../shared/describe.ts';
import { elapsedSeconds, observe, withLimit } from '../shared/system.ts';
import { type Body, excerpt } from '../shared/text.ts';
import { CallError, isSettled, now, statusFields, tagOf } from './calls.ts';
import { clean, cleanText, currentReport } from './reported.ts';
import type { System } from './systems.ts';

type Goal =
  | { kind: 'change'; tag: string | undefined }
  | { kind: 'ask' }
  | { kind: 'status'; name: string }
  | { kind: 'detail'; condition: Condition };

const LAST_MS = 1000; // for a last query when the time is up

type Ended = 'reached' | 'changed' | 'offline';
type Reported = PrintableReply & { ok: true };

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

interface WaitOptions {
  feeds: Feeds;
  /** From `performance.now()`. */
  start: number;
  /** Counted from the start. */
  seconds: number;
  signal: AbortSignal;
}

/**
 * Waits for the goal, the time limit or the signal.
 *
 * @throws {CallError} If the system refuses access, or does not report what the goal needs.
 */
export async function wait(system: System, goal: Goal, options: WaitOptions): Promise<object> {
  const { feeds, start, seconds, signal } = options;
  const watcher = new Watcher(system, goal);
  const limitMs = Math.max(0, start + 1000 * seconds - performance.now());
  let ended = await withLimit(limitMs, signal, (limit) => watcher.watch(feeds, limit));
  const isOld = ended === null && watcher.reply?.ok === true; // its report dates from the last change
  if (isOld) ended = await withLimit(LAST_MS, signal, (limit) => watcher.watch(feeds, limit, true));
  const { reply, info, value } = watcher;
  const silence = { system: system.id, status: NO_ANSWER, error: `has not responded within ${seconds} s` };
  const current = reply === undefined ? silence : statusFields(system, reply);
  return {
    ...current, ended: ended ?? 'timeout', seconds: elapsedSeconds(start), now: now(), tag: tagOf(reply),
    value: clean(value), note: ended === null ? watcher.describeMissing() : undefined,
    reported: info && currentReport(info), reportedAt: reply?.ok === true ? undefined : watcher.infoAt,
  };
}

/** Follows a system, and decides when the wait ends. */
class Watcher {
  /** The latest response. */
  reply: PrintableReply | undefined;
  /** The latest report. */
  info: Body | undefined;
  infoAt: string | undefined;
  /** The latest value of the field in the condition. */
  value: unknown;
  readonly #system: System;
  readonly #goal: Goal;
  #known: string | undefined; // the tag: any other is a change
  #wasSeen: boolean; // a system that was never seen may still start

  constructor(system: System, goal: Goal) {
    this.#system = system;
    this.#goal = goal;
    this.#known = goal.kind === 'change' ? goal.tag : undefined;
    this.#wasSeen = system.socket !== undefined || this.#known !== undefined;
  }

  /** Returns null at the limit. `isSingle` asks once, and returns null if that does not end the wait. */
  async watch(feeds: Feeds, limit: AbortSignal, isSingle: boolean = false): Promise<Ended | null> {
    const query = this.#goal.kind === 'detail' ? 'detail' : 'info';
    for await (const reply of feeds.follow(this.#system.client, query, limit)) {
      const ended = this.#note(reply);
      if (ended !== null || isSingle) return ended;
    }
    return null;
  }

  /** If the detail lacks the field in the condition, names the fields it has. */
  describeMissing(): string | undefined {
    if (this.#goal.kind !== 'detail' || this.info === undefined || this.value !== undefined) return undefined;
    const { field } = this.#goal.condition;
    const names = [...fieldsOf(this.info['detail']).keys()].join(', ');
    return cleanText(`the detail has no field '${field}'${names && `, only ${excerpt(names)}`}`);
  }

  #note(reply: PrintableReply): Ended | null {
    this.reply = reply;
    if (isDenied(reply)) this.#fail(reply.error, reply);
    if (reply.ok) [this.info, this.infoAt] = [reply.body, now()];
    const goal = this.#goal;
    const status = statusNameOf(reply);
    if (goal.kind === 'status' && status === goal.name) return 'reached';
    if (goal.kind === 'change' && reply.ok && this.#isChanged(reply)) return 'changed';
    if (goal.kind === 'ask' && reply.ok && this.#isAsking(reply)) return 'reached';
    if (goal.kind === 'detail' && reply.ok && this.#isMet(reply, goal.condition)) return 'reached';
    const isOffline = status === SystemStatus.OFFLINE.statusName;
    if (isOffline && this.#wasSeen) return 'offline';
    this.#wasSeen ||= !isOffline;
    return null;
  }

  #isChanged(reply: Reported): boolean {
    const tag = tagOf(reply);
    this.#known ??= tag;
    return tag !== this.#known && isSettled(reply.body);
  }

  #isAsking(reply: Reported): boolean {
    const asks = asksIn(reply.body);
    if (asks === null) this.#fail(describeLack(reply.body), reply);
    return asks.length > 0;
  }

  #isMet(reply: Reported, { field, isMetBy }: Condition): boolean {
    if (!('detail' in reply.body)) this.#fail('the server reports only its status', reply); // PAMIQ-Core
    this.value = fieldOf(reply.body['detail'], field);
    if (field === 'status' && this.value === undefined) {
      const hint = 'to wait for a status of the system, write until: paused';
      this.#fail(`the detail has no field 'status'; ${hint}`, reply);
    }
    return isMetBy(this.value);
  }

  #fail(message: string, reply: PrintableReply): never {
    throw new CallError(message, statusFields(this.#system, reply));
  }
}

// ───── Feeds ─────────────────────────────────────────────────────────────────────────────────────────────────────

const REQUEST_S = 5; // per request: a program that neither polls nor yields reports changes only when queried

export class Feeds {
  readonly #feeds: Map<string, Feed> = new Map(); // by the key of the client

  /** Yields the current report and each new one, until aborted. With 'detail', queries once a second. */
  async *follow(client: PrintableClient, query: 'info' | 'detail', signal: AbortSignal): AsyncGenerator<PrintableReply> {
    const { key } = client;
    const feed = this.#feeds.get(key) ?? new Feed(client);
    this.#feeds.set(key, feed);
    feed.client = client; // its token may have changed
    try {
      const replies = on(feed.replies, query, { signal });
      feed.restart(); // a pending response may be older than this wait
      for await (const [reply] of replies) yield reply as PrintableReply;
    } catch (error) {
      if (!signal.aborted) throw error;
    } finally {
      if (!feed.restart()) this.#feeds.delete(key);
    }
  }
}

class Feed {
  client: PrintableClient;
  /** Emits each reply under the names of both queries. */
  readonly replies: EventEmitter = new EventEmitter().setMaxListeners(0);
  #round = new AbortController();

  constructor(client: PrintableClient) {
    this.client = client;
  }

  /** Requests what the listeners need now. Returns whether there are any. */
  restart(): boolean {
    this.#round.abort();
    this.#round = new AbortController();
    const isHeard = this.replies.eventNames().length > 0;
    if (isHeard) void this.#follow(this.#round.signal);
    return isHeard;
  }

  async #follow(signal: AbortSignal): Promise<void> {
    await setImmediate(); // waits that begin or end at the same time share the round
    const isOnDetail = this.replies.listenerCount('detail') > 0;
    const [query, waitS] = isOnDetail ? ['detail' as const] : ['info' as const, REQUEST_S];
    for await (const { reply, isNew } of observe(this.client, query, signal, waitS)) {
      if (!isNew) continue;
      this.replies.emit('info', reply);
      this.replies.emit('detail', reply);
    }
  }
}
