// Sends a command and waits until it is done.

import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../control.ts';
import { isAbsent, isUnanswered, statusNameOf } from './replies.ts';
import { excerptOf, MAX_VALUE_LENGTH } from './text.ts';
import type { ControlCommand, RequestOptions } from '../../control.ts';
import type { PrintableClient, PrintableReply } from './replies.ts';

/** The status to which each command leads; save-state leads to none. */
export const TARGETS: Partial<Record<ControlCommand, SystemStatus>> = {
  pause: SystemStatus.PAUSED,
  resume: SystemStatus.ACTIVE,
  shutdown: SystemStatus.OFFLINE,
};

const PARTICIPLES: Record<ControlCommand, string> = {
  pause: 'paused', resume: 'resumed', shutdown: 'shut down', 'save-state': 'saved',
};

const MAX_WAIT_S = 300; // of one request
const WATCH_AFTER_MS = 100; // most commands are done before: their status need not be watched
const GRACE_MS = 250; // for an outcome that is on its way when the system ends
const LOOK_UP_MS = 50; // between two requests for the outcome
const FULL_MS = 100; // between two tries while the queue is full
const LAST_MS = 250; // for the status when the time is up
const END_MS = 1000; // a system that is shutting down this long after its last save has not called it off

/** What came of a command. Its texts are safe to print. */
export interface Followed {
  /**
   * - `ended`: a shutdown of which a part failed, such as the last save; the system has ended.
   * - `refused`: it is not on the queue.
   * - `pending`: it was not done in time, or the wait was ended.
   * - `unconfirmed`: it was accepted, and the server does not tell more.
   * - `unanswered`: it was sent, and may still take effect.
   * - `offline`: nothing responds, or nothing responds any more.
   * - `absent`: a shutdown of a system that was already offline.
   */
  state: 'done' | 'failed' | 'ended' | 'refused' | 'pending' | 'unconfirmed' | 'unanswered' | 'offline' | 'absent';
  /** What the program told of it; empty if nothing. */
  value: string;
  /** The latest status; null if none is known. */
  status: SystemStatus | null;
  /** Duration of the wait. */
  seconds: number;
  /** Why it is not done. */
  error: string;
  /** The same in a line of its own: `not paused: ` and the error. */
  summary: string;
  /** What the server told, as received: `result`, `id`, `state`, `value`, `error`. */
  received: Told;
}

interface Told {
  result?: unknown;
  id?: unknown;
  state?: unknown;
  value?: unknown;
  error?: unknown;
}

export interface FollowOptions {
  timeoutMs: number;
  by?: string;
  reason?: string | undefined;
  /** The reply, if the caller has sent the command. */
  reply?: PrintableReply;
  /** Ends the wait. */
  signal?: AbortSignal;
  /** Receives the statuses that a long wait passes, and the result: `pausing … paused (0.1 s)`. */
  output?: { write(text: string): unknown } | undefined;
}

/**
 * Sends a command, unless the caller did, again while the queue is full, and waits for its outcome, of a shutdown also
 * for its effect. A server that tells no outcome (version 0.2 and older) is followed by its status. Stops early when the
 * system ends.
 */
export async function follow(
  client: PrintableClient,
  command: ControlCommand,
  { timeoutMs, by, reason, reply: ownReply, signal, output }: FollowOptions,
): Promise<Followed> {
  const start = performance.now();
  const target = TARGETS[command];
  const giveUp = new AbortController();
  const stop = (): void => giveUp.abort();
  const timer = setTimeout(stop, timeoutMs);
  signal?.addEventListener('abort', stop);
  if (signal?.aborted === true) stop();

  let status = null as SystemStatus | null;
  let endTimer: NodeJS.Timeout | undefined;
  let hasOutput = false;
  const show = (what: string): void => {
    output?.write(`${what} … `);
    hasOutput = true;
  };
  const onStatus = (current: SystemStatus): void => {
    if (target !== undefined && current !== target && current !== status) show(current.statusName);
    status = current;
    clearTimeout(endTimer);
    if (isEnd(current) && target !== SystemStatus.OFFLINE) endTimer = setTimeout(stop, GRACE_MS);
  };
  const reaches = (goal: SystemStatus, end: AbortSignal): Promise<boolean> => {
    return client.waitFor(goal, { timeout: timeoutMs, signal: end, onStatus }).then(
      () => true,
      (error: Error) => {
        if (error.name !== 'TimeoutError' && error.name !== 'AbortError') throw error;
        return false;
      },
    );
  };
  const watching = new AbortController();
  const watch = (): void => void reaches(target ?? SystemStatus.OFFLINE, watching.signal);
  const watchTimer = setTimeout(watch, WATCH_AFTER_MS);
  const stopWatching = (): void => {
    clearTimeout(watchTimer);
    watching.abort();
  };

  const wait = Math.min(MAX_WAIT_S, Math.max(1, Math.floor(timeoutMs / 1000)));
  const options = { wait, by, reason, signal: giveUp.signal };
  const reply = ownReply ?? await send(client, command, options, () => show('the queue is full'));
  let told = toldBy(reply, command);
  if (told.state === 'waiting' || told.state === 'running') {
    told = { ...told, ...await lookUp(client, told.id, giveUp.signal) };
  }

  const conclude = async (): Promise<[state: Followed['state'], error: string]> => {
    if (told.state === 'failed') {
      const hasEnded = command === 'shutdown' && await ends(client);
      return [hasEnded ? 'ended' : 'failed', excerptOf(told.error, MAX_VALUE_LENGTH)];
    }
    if (told.state === 'done' && command !== 'shutdown') return ['done', ''];
    if (!reply.ok && reply.answered) return ['refused', reply.error];
    if (!reply.ok && !isUnanswered(reply)) {
      const isDown = command === 'shutdown' && isAbsent(reply);
      return isDown ? ['absent', 'already offline'] : ['offline', reply.error];
    }
    stopWatching();
    const isReachable = reply.ok ? target !== undefined : target === SystemStatus.OFFLINE;
    if (isReachable && await reaches(target as SystemStatus, giveUp.signal)) return ['done', ''];
    let isSilent = false;
    if (!reply.ok || (status === null && signal?.aborted !== true)) {
      const limit = AbortSignal.timeout(LAST_MS);
      const last = await client.request('status', { signal: limit });
      isSilent = limit.aborted || isUnanswered(last);
      status = isSilent ? status : statusOf(last);
    }
    if (status === SystemStatus.OFFLINE) return ['offline', 'the system is offline'];
    if (!reply.ok && (isSilent || !giveUp.signal.aborted)) return ['unanswered', reply.error];
    if (!giveUp.signal.aborted) return ['unconfirmed', 'accepted, but the server does not tell when a command is done'];
    const pending = isEnd(status) || told.state === 'done' ? '' : '; the command is still pending';
    return ['pending', `${describeCurrent(status)}${pending}`];
  };
  const [state, error] = await conclude();
  stopWatching();
  clearTimeout(timer);
  clearTimeout(endTimer);
  signal?.removeEventListener('abort', stop);

  const seconds = (performance.now() - start) / 1000;
  const isDone = state === 'done';
  const value = isDone ? excerptOf(told.value, MAX_VALUE_LENGTH) : '';
  const duration = `(${seconds.toFixed(1)} s)`;
  if (isDone) output?.write(`${describeDone(target, value)} ${duration}\n`);
  else if (hasOutput) output?.write(`${duration}\n`);
  const isLate = state === 'pending' || isFull(reply) || (state === 'offline' && (reply.ok || isUnanswered(reply)));
  const after = isLate ? ` after ${seconds.toFixed(1)} s` : '';
  const not = isLate || state === 'failed' ? `not ${PARTICIPLES[command]}${after}: ` : '';
  const summary = `${state === 'ended' ? 'shut down, but: ' : not}${error}`;
  return { state, value, status: isDone ? target ?? status : status, seconds, error, summary, received: told };
}

/** Sends a command, again while the queue is full. */
async function send(
  client: PrintableClient,
  command: ControlCommand,
  options: RequestOptions & { signal: AbortSignal },
  onFull: () => void,
): Promise<PrintableReply> {
  for (let isFirst = true; ; isFirst = false) {
    const reply = await client.request(command, options);
    if (!isFull(reply)) return reply;
    if (isFirst) onFull();
    await sleep(FULL_MS, undefined, options).catch(() => {});
    if (options.signal.aborted) return reply;
  }
}

function isFull(reply: PrintableReply): boolean {
  return !reply.ok && reply.statusCode === 503;
}

/** Returns whether the system ends after a failed shutdown, instead of calling it off. */
async function ends(client: PrintableClient): Promise<boolean> {
  for (const deadline = performance.now() + END_MS; performance.now() < deadline;) {
    const status = statusOf(await client.request('status'));
    if (status !== SystemStatus.SHUTTING_DOWN) return status === SystemStatus.OFFLINE;
    await sleep(LOOK_UP_MS);
  }
  return true;
}

/** Null if the system reports no status. */
function statusOf(reply: PrintableReply): SystemStatus | null {
  const name = statusNameOf(reply);
  return Object.values(SystemStatus).find(({ statusName }) => statusName === name) ?? null;
}

export function describeCurrent(status: SystemStatus | null): string {
  return `the system ${status === null ? 'does not report its status' : `is ${status}`}`;
}

function isEnd(status: SystemStatus | null): boolean {
  return status === SystemStatus.SHUTTING_DOWN || status === SystemStatus.OFFLINE;
}

function toldBy(reply: PrintableReply, command: ControlCommand): Told {
  if (reply.ok) {
    const { result, id, state, value } = reply.body;
    return { result, id, state, value };
  }
  const prefix = `${command} failed: `;
  const isFailure = reply.statusCode === 500 && reply.original.startsWith(prefix);
  if (isFailure) return { state: 'failed', error: reply.original.slice(prefix.length) };
  return reply.answered ? { error: reply.original } : {};
}

/** Asks for the outcome of a command until there is one. Returns nothing if the server no longer knows the command. */
async function lookUp(client: PrintableClient, id: unknown, signal: AbortSignal): Promise<Told> {
  for (let tag: string | undefined; ;) {
    const reply = await client.request('info', { tag, wait: tag === undefined ? undefined : MAX_WAIT_S, signal });
    if (!reply.ok) return {};
    const { commands } = reply.body;
    if (commands !== undefined) { // otherwise it is a 304
      const { state, value, error } = entriesOf(commands).find((entry) => entry['id'] === id) ?? {};
      if (state !== 'waiting' && state !== 'running') return { state, value, error };
    }
    tag = reply.tag;
    await sleep(LOOK_UP_MS, undefined, { signal }).catch(() => {});
  }
}

/** The commands that `/api/info` lists, of which nothing can be taken for granted. */
export function entriesOf(commands: unknown): Record<string, unknown>[] {
  return Array.isArray(commands) ? commands.map((entry) => Object(entry) as Record<string, unknown>) : [];
}

function describeDone(target: SystemStatus | undefined, value: string): string {
  if (target === undefined) return `saved ${value}`.trimEnd();
  return value === '' ? target.statusName : `${target.statusName}: ${value}`;
}
