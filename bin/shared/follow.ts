// Sends a command and waits until it is done.

import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../control.ts';
import { entriesOf, isAbsent, isInvalid, isUnanswered, statusNameOf } from './replies.ts';
import { excerptOf, excerptOfJson, MAX_VALUE_LENGTH } from './text.ts';
import type { PrintableClient, PrintableReply } from './replies.ts';

/** The status to which each command leads; save-state and those that a program declares lead to none. */
export const GOALS: ReadonlyMap<string, SystemStatus> = new Map([
  ['pause', SystemStatus.PAUSED],
  ['resume', SystemStatus.ACTIVE],
  ['shutdown', SystemStatus.OFFLINE],
]);

const PARTICIPLES: ReadonlyMap<string, string> = new Map([
  ['pause', 'paused'], ['resume', 'resumed'], ['shutdown', 'shut down'], ['save-state', 'saved'],
]);

const MAX_WAIT_S = 300; // of one request
const WATCH_AFTER_MS = 100; // most commands are done before: their status need not be watched
const GRACE_MS = 250; // for an outcome that is on its way when the system ends
const LOOK_UP_MS = 50; // between two requests for the outcome
const FULL_MS = 100; // between two tries while the queue is full
const LAST_MS = 1000; // for a response when the time is up: two round trips, also from another continent
const HURRY_MS = 250; // the same when the caller ends the wait
const END_MS = 1000; // a system that is shutting down this long after its last save has not cancelled it

/** The outcome of a command. Its texts are safe to print. */
export interface Followed {
  /**
   * - `ended`: a shutdown of which a part failed, such as the last save; the system has ended.
   * - `refused`: it is not on the queue.
   * - `pending`: it was not done in time, or the wait was ended.
   * - `unconfirmed`: it was accepted, and the server reports no outcome.
   * - `unanswered`: it was sent, and may still take effect.
   * - `offline`: nothing responds, or nothing responds any more.
   * - `absent`: a shutdown of a system that was already offline.
   */
  state: 'done' | 'failed' | 'ended' | 'refused' | 'pending' | 'unconfirmed' | 'unanswered' | 'offline' | 'absent';
  /** Whether it was refused because of its arguments. */
  isInvalid: boolean;
  /** What the program returned, as JSON if that is no text; empty if nothing. */
  value: string;
  /** The latest status; null if none is known. */
  status: SystemStatus | null;
  /** Duration of the wait. */
  seconds: number;
  /** Why it is not done. */
  error: string;
  /** The same in a line of its own, which names the command: `not paused: ` and the error. */
  summary: string;
  /** The latest report of the server, as received. */
  received: Report;
}

/** What a server reports of a command; any field may have any type. */
interface Report {
  result?: unknown;
  id?: unknown;
  state?: unknown;
  value?: unknown;
  error?: unknown;
}

export interface FollowOptions {
  timeoutMs: number;
  /** Of a command that the program declares. */
  arguments?: object | undefined;
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
 * for its effect. A server that reports no outcome (version 0.2 and older) is followed by its status. Stops early when
 * the system ends.
 */
export async function follow(
  client: PrintableClient,
  command: string,
  options: FollowOptions,
): Promise<Followed> {
  const start = performance.now();
  const follower = new Follower(client, command, options);
  const { state, error, reply, report } = await follower.run();
  const seconds = (performance.now() - start) / 1000;
  const isDone = state === 'done';
  const goal = GOALS.get(command);
  const value = isDone ? excerptOfJson(report.value) : '';
  follower.endOutput(isDone ? describeDone(command, value) : '', `(${seconds.toFixed(1)} s)`);
  const isLate = state === 'pending' || isFull(reply) || (state === 'offline' && (reply.ok || isUnanswered(reply)));
  const after = isLate ? ` after ${seconds.toFixed(1)} s` : '';
  const participle = PARTICIPLES.get(command);
  const isNotDone = participle === undefined ? `${command} ${isLate ? 'not done' : 'failed'}` : `not ${participle}`;
  const summary = summarize(command, state, error) ?? `${isNotDone}${after}: ${error}`;
  const status = isDone ? goal ?? follower.status : follower.status;
  return { state, isInvalid: isInvalid(reply), value, status, seconds, error, summary, received: report };
}

/** Null if the error needs the command and what has not happened in front of it. */
function summarize(command: string, state: Followed['state'], error: string): string | null {
  switch (state) {
    case 'done': case 'absent': case 'unanswered': return error;
    case 'ended': return `shut down, but: ${error}`;
    case 'unconfirmed': return `${command} ${error}`;
    case 'refused': return error.startsWith(`${command}: `) ? error : null; // that is how it refuses arguments
    default: return null;
  }
}

type Conclusion = [state: Followed['state'], error: string];

/** One command, from the request to its outcome. */
class Follower {
  /** The latest status; null if none is known. */
  status: SystemStatus | null = null;
  readonly #client: PrintableClient;
  readonly #command: string;
  readonly #options: FollowOptions;
  readonly #goal: SystemStatus | undefined;
  /** Aborted by the time limit, the caller, or the end of the system. */
  readonly #giveUp: AbortController = new AbortController();
  #endTimer: NodeJS.Timeout | undefined;
  #hasOutput = false;

  constructor(client: PrintableClient, command: string, options: FollowOptions) {
    this.#client = client;
    this.#command = command;
    this.#options = options;
    this.#goal = GOALS.get(command);
  }

  async run(): Promise<{ state: Followed['state']; error: string; reply: PrintableReply; report: Report }> {
    const { timeoutMs, signal, reply: ownReply } = this.#options;
    const timer = setTimeout(this.#stop, timeoutMs);
    signal?.addEventListener('abort', this.#stop);
    if (signal?.aborted === true) this.#stop();
    const watching = new AbortController();
    const watch = (): void => void this.#reaches(this.#goal ?? SystemStatus.OFFLINE, watching.signal);
    const watchTimer = setTimeout(watch, WATCH_AFTER_MS);

    const reply = ownReply ?? await this.#send();
    const report = await this.#learn(reply);
    clearTimeout(watchTimer);
    watching.abort();
    const [state, error] = await this.#conclude(reply, report);
    clearTimeout(timer);
    clearTimeout(this.#endTimer);
    signal?.removeEventListener('abort', this.#stop);
    return { state, error, reply, report };
  }

  /** Ends the line of the statuses, with the result if there is one. */
  endOutput(result: string, duration: string): void {
    if (result !== '' || this.#hasOutput) this.#options.output?.write(`${result} ${duration}`.trimStart() + '\n');
  }

  readonly #stop = (): void => this.#giveUp.abort();

  /** Sends the command, again while the queue is full. */
  async #send(): Promise<PrintableReply> {
    const { timeoutMs, arguments: values, by, reason } = this.#options;
    const { signal } = this.#giveUp;
    const wait = Math.min(MAX_WAIT_S, Math.max(1, Math.floor(timeoutMs / 1000)));
    const options = { arguments: values, wait, by, reason };
    let reply = await this.#client.request(this.#command, { ...options, signal });
    if (isFull(reply)) this.#show('the queue is full');
    const late = new AbortController(); // the response to the last try may hold the outcome
    signal.addEventListener('abort', () => setTimeout(() => late.abort(), LAST_MS).unref(), { once: true });
    while (isFull(reply)) {
      await sleep(FULL_MS, undefined, { signal }).catch(() => {});
      if (signal.aborted) break;
      reply = await this.#client.request(this.#command, { ...options, signal: late.signal });
    }
    return reply;
  }

  /** Returns the report in the response or, if that came before the outcome, a later one. */
  async #learn(reply: PrintableReply): Promise<Report> {
    const report = reportIn(reply, this.#command);
    if (report.state !== 'waiting' && report.state !== 'running') return report;
    return { ...report, ...await lookUp(this.#client, report.id, this.#giveUp.signal) };
  }

  async #conclude(reply: PrintableReply, report: Report): Promise<Conclusion> {
    const isShutdown = this.#command === 'shutdown';
    if (report.state === 'failed') {
      const hasEnded = isShutdown && await ends(this.#client);
      return [hasEnded ? 'ended' : 'failed', excerptOf(report.error, MAX_VALUE_LENGTH)];
    }
    if (report.state === 'done' && !isShutdown) return ['done', ''];
    if (!reply.ok && reply.answered) return ['refused', reply.error];
    if (isShutdown && isAbsent(reply)) {
      this.status = SystemStatus.OFFLINE;
      return ['absent', 'already offline'];
    }
    if (!reply.ok && !isUnanswered(reply)) return ['offline', reply.error];

    const { signal } = this.#giveUp;
    const awaited = reply.ok || isShutdown ? this.#goal : undefined;
    if (awaited !== undefined && await this.#reaches(awaited, signal)) return ['done', ''];
    const isStatusNeeded = this.status === null && this.#options.signal?.aborted !== true;
    const isSilent = (!reply.ok || isStatusNeeded) && await this.#isSilent();
    if (this.status === SystemStatus.OFFLINE) return ['offline', 'the system is offline'];
    if (!reply.ok && (isSilent || !signal.aborted)) return ['unanswered', reply.error];
    if (!signal.aborted) return ['unconfirmed', 'accepted, but the server does not report when a command is done'];
    const pending = isEnd(this.status) || report.state === 'done' ? '' : '; the command is still pending';
    return ['pending', `${describeCurrent(this.status)}${pending}`];
  }

  async #reaches(goal: SystemStatus, signal: AbortSignal): Promise<boolean> {
    const options = { timeout: this.#options.timeoutMs, signal, onStatus: this.#onStatus };
    return this.#client.waitFor(goal, options).then(() => true, (error: Error) => {
      if (error.name !== 'TimeoutError' && error.name !== 'AbortError') throw error;
      return false;
    });
  }

  readonly #onStatus = (status: SystemStatus): void => {
    if (this.#goal !== undefined && status !== this.#goal && status !== this.status) this.#show(status.statusName);
    this.status = status;
    clearTimeout(this.#endTimer);
    if (isEnd(status) && this.#goal !== SystemStatus.OFFLINE) this.#endTimer = setTimeout(this.#stop, GRACE_MS);
  };

  /** Asks for the status a last time. Returns whether there is no response. */
  async #isSilent(): Promise<boolean> {
    const signal = AbortSignal.timeout(this.#options.signal?.aborted === true ? HURRY_MS : LAST_MS);
    const reply = await this.#client.request('status', { signal });
    if (signal.aborted || isUnanswered(reply)) return true;
    this.status = statusOf(reply);
    return false;
  }

  #show(what: string): void {
    this.#options.output?.write(`${what} … `);
    this.#hasOutput = true;
  }
}

function isFull(reply: PrintableReply): boolean {
  return !reply.ok && reply.statusCode === 503;
}

/** Returns whether the system ends after a failed shutdown, instead of cancelling it. */
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

function reportIn(reply: PrintableReply, command: string): Report {
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
async function lookUp(client: PrintableClient, id: unknown, signal: AbortSignal): Promise<Report> {
  for (let tag: string | undefined; ;) {
    const reply = await client.request('info', { tag, wait: tag === undefined ? undefined : MAX_WAIT_S, signal });
    if (!reply.ok && (signal.aborted || !isUnanswered(reply))) return {};
    const commands = reply.ok ? reply.body['commands'] : undefined;
    if (commands !== undefined) { // otherwise it is a 304, or the response is lost
      const { state, value, error } = entriesOf(commands).find((entry) => entry['id'] === id) ?? {};
      if (state !== 'waiting' && state !== 'running') return { state, value, error };
    }
    tag = reply.ok ? reply.tag : undefined;
    await sleep(LOOK_UP_MS, undefined, { signal }).catch(() => {});
  }
}

/** A command that is done: `saved states/….json`, `paused`, or `evaluate: {"meanReturn":497.1}`. */
export function describeDone(command: string, value: string): string {
  if (command === 'save-state') return `saved ${value}`.trimEnd();
  const goal = GOALS.get(command);
  if (goal === undefined) return value === '' ? `${command} done` : `${command}: ${value}`;
  return value === '' ? goal.statusName : `${goal.statusName}: ${value}`;
}
