// A system as its responses show it, for the tools that draw it. Any program may have sent the responses, so every
// field may have any type and text.

import { SystemStatus } from '../../../control.ts';
import { commandsOf, hasEnded, progressOf } from '../words/describe.ts';
import { timeIn } from '../words/time.ts';
import { observe } from './observe.ts';
import { describeUnknown, isUnanswered, NO_ANSWER, statusNameOf, UNKNOWN } from './replies.ts';
import { excerptOf } from '../words/text.ts';
import type { Body } from '../words/text.ts';
import type { PrintableClient, PrintableReply } from './replies.ts';

const SENT_MS = 1000; // a shutdown that has been sent takes effect by then, unless the program is in a step
const SILENT_MS = 2000; // a system that ends closes its connections sooner
const PACE_MS = 60_000; // the time left is computed from the pace of the last minute
const { ACTIVE, OFFLINE, SHUTTING_DOWN } = SystemStatus;
/** The statuses of a system that cannot be reached. */
export const DOWN: readonly string[] = [OFFLINE.statusName, NO_ANSWER, UNKNOWN];

/** What a reply has changed. */
export interface Change {
  reply: PrintableReply;
  /** The status before, if it is another now; empty if there was none. */
  before?: string;
  /** The commands that have been completed since the list before. The first list has none. */
  completed: readonly Body[];
}

/** A followed system. */
export class FollowedSystem {
  readonly client: PrintableClient;
  /** The status in the latest reply, or `offline`, `no answer`, …; empty before the first one. */
  reported: string = '';
  /** Since when, in milliseconds; null if unknown. What the system reports is by its own clock. */
  since: number | null = null;
  /** The latest reply that was noted; null before the first one. */
  reply: PrintableReply | null = null;
  /** The latest response. */
  info: Body = {};
  /** When it arrived, in milliseconds. */
  infoAt: number = 0;
  /** The shutdown that ended it, as a status or a command; null if there was none, or if the system has not ended. */
  end: Body | null = null;
  /** Since when requests have had no response, in milliseconds; null if they have. */
  unansweredSince: number | null = null;
  #shutdown: { cause: Body | null; until: number } = { cause: null, until: 0 };
  #completed: ReadonlySet<unknown> | null = null; // the ids of the completed commands in the latest list
  #error = '';
  #readError = ''; // of the latest `read()`, if it could not be sent
  #reading: Promise<boolean> | null = null;
  #steps: { at: number; done: number }[] = []; // when the progress grew
  #done: number | null = null; // the latest progress

  constructor(client: PrintableClient) {
    this.client = client;
  }

  /** The status to show. */
  get status(): string {
    return this.unansweredSince === null || DOWN.includes(this.reported) ? this.reported : NO_ANSWER;
  }

  /** Whether `info` reports the status that is shown. */
  get isCurrent(): boolean {
    return this.info['status'] === this.status;
  }

  /** Why the status is not one that the system reports, or may be old; otherwise empty. */
  get error(): string {
    return this.#error || this.#readError;
  }

  /**
   * Yields each change until the signal. While nothing changes, it sends a request every `waitS` seconds.
   *
   * @param query As for `observe()`.
   */
  async *follow(
    signal: AbortSignal,
    waitS?: number,
    query: 'info' | 'detail' = 'info',
  ): AsyncGenerator<Change, void> {
    for await (const { status, reply, isNew } of observe(this.client, query, signal, waitS)) {
      if (status === NO_ANSWER) this.#noteSilence(Date.now());
      else this.unansweredSince = null;
      yield isNew ? this.note(status, reply) : { reply, completed: [] };
    }
  }

  /**
   * Queries what does not complete the requests of `follow()`: the detail, and whether the system responds at all. One
   * query at a time; resolves to whether it succeeded.
   *
   * @param onSilence Called when the response takes long.
   */
  read(onSilence: () => void, signal?: AbortSignal): Promise<boolean> {
    return this.#reading ??= this.#read(onSilence, signal).finally(() => (this.#reading = null));
  }

  async #read(onSilence: () => void, signal?: AbortSignal): Promise<boolean> {
    const [start, latest] = [Date.now(), this.reply];
    const timer = setTimeout(() => {
      this.#noteSilence(start);
      onSilence();
    }, SILENT_MS);
    const reply = await this.client.request('info', { signal });
    clearTimeout(timer);
    if (signal?.aborted === true) return false;
    const isSilent = isUnanswered(reply);
    if (!isSilent) this.unansweredSince = null;
    this.#readError = reply.ok || reply.phase === 'answered' || isSilent ? '' : this.client.shorten(reply.error);
    const isNews = this.reply !== latest || ![statusNameOf(reply), ''].includes(this.reported); // for `follow()`
    if (reply.ok && !isNews) this.#take(reply.body);
    return reply.ok;
  }

  #noteSilence(time: number): void {
    if (this.reported !== OFFLINE.statusName) this.unansweredSince ??= time;
  }

  /** Notes a reply to a request for `info`. */
  note(status: string, reply: PrintableReply): Change {
    const before = this.reported;
    this.reply = reply;
    if (reply.ok) this.#noteShutdown(reply.body, status);
    if (status !== before) {
      this.reported = status;
      this.since = before === '' ? null : Date.now(); // the first status may be old
      const isShutDown = status === OFFLINE.statusName && performance.now() < this.#shutdown.until;
      this.end = isShutDown ? this.#shutdown.cause : null;
    }
    this.#error = reply.ok ? '' : this.client.shorten(reply.error);
    if (reply.ok && status === UNKNOWN) this.#error = describeUnknown(reply.original);
    const completed = reply.ok ? this.#newlyCompleted(reply.body) : [];
    this.#take(reply.ok ? reply.body : this.info);
    return { reply, completed, ...(status === before ? {} : { before }) };
  }

  #newlyCompleted(info: Body): Body[] {
    if (info['commands'] === undefined) return [];
    const completed = commandsOf(info).filter((entry) => hasEnded(entry) && excerptOf(entry['id']) !== '');
    const known = this.#completed;
    this.#completed = new Set(completed.map(({ id }) => id));
    return completed.filter(({ id }) => known?.has(id) === false);
  }

  #noteShutdown(info: Body, status: string): void {
    const latest = commandsOf(info).filter(({ command }) => command === 'shutdown').at(-1);
    const isSent = latest !== undefined && latest['state'] !== 'failed';
    const hasBegun = status === SHUTTING_DOWN.statusName;
    const cause = hasBegun ? info : isSent ? latest : null; // the status `shutting down` may be too short to be seen
    this.#shutdown = { cause, until: hasBegun ? Infinity : performance.now() + SENT_MS };
  }

  /** Notes a shutdown that has taken effect, because the system may have ended before it could report that. */
  confirmShutdown(cause: Body): void {
    this.#shutdown = { cause, until: Infinity };
    if (this.reported === OFFLINE.statusName) this.end ??= cause;
  }

  #take(info: Body): void {
    if (info !== this.info) this.infoAt = Date.now();
    this.info = info;
    if (this.reply?.ok !== false) this.since = timeIn(info, 'since') ?? this.since;
    const progress = this.reported === ACTIVE.statusName ? progressOf(info['detail']) : null;
    const [steps, before] = [this.#steps, this.#done];
    this.#done = progress?.done ?? null;
    if (progress === null || before === null || progress.done < before) steps.length = 0;
    else if (progress.done > before) steps.push({ at: performance.now(), done: progress.done });
    if (steps.length > 2 && performance.now() - (steps[1]?.at ?? 0) > PACE_MS) steps.shift();
  }

  /** Until the progress is complete. Null until it has grown twice: the first growth may be the work of an hour. */
  get secondsLeft(): number | null {
    const [first, last] = [this.#steps[0], this.#steps.at(-1)];
    const progress = this.status === ACTIVE.statusName ? progressOf(this.info['detail']) : null;
    if (first === undefined || last === undefined || first === last || progress === null) return null;
    const leftMs = (progress.of - last.done) * (last.at - first.at) / (last.done - first.done);
    const seconds = Math.max(0, leftMs - (performance.now() - last.at)) / 1000;
    return Number.isFinite(seconds) ? seconds : null; // `of` may be huge
  }
}
