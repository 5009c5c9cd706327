// Sends a command and waits until it is done.

import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../control.ts';
import { findStatus } from '../words/commands.ts';
import { commandsOf, valueIn } from '../words/describe.ts';
import { observe } from './observe.ts';
import { isAbsent, isCut, isInvalid, isUnanswered } from './replies.ts';
import { excerptOf, MAX_VALUE_LENGTH } from '../words/text.ts';
import type { Body } from '../words/text.ts';
import type { PrintableClient, PrintableReply } from './replies.ts';

const { OFFLINE, SHUTTING_DOWN } = SystemStatus;

/** The status to which each command leads; save-state and own commands lead to none. */
export const GOALS: ReadonlyMap<string, SystemStatus> = new Map([
  ['pause', SystemStatus.PAUSED], ['resume', SystemStatus.ACTIVE], ['shutdown', OFFLINE],
]);

const PARTICIPLES: ReadonlyMap<string, string> = new Map([
  ['pause', 'paused'], ['resume', 'resumed'], ['shutdown', 'shut down'], ['save-state', 'saved'],
]);

const MAX_WAIT_S = 300; // of one request
const LEFT_S = 5; // for the response at the end of the wait, as for any request
const LAST_MS = 500; // for a response when the time is up; the longest --timeout plus this still fits a timer
const WATCH_AFTER_MS = 100; // most commands are done earlier and need only one request

/** The outcome of a command. Its texts are safe to print. */
export interface Followed {
  /**
   * - `failed`: or refused. A shutdown may have failed although the system has ended.
   * - `pending`: expired, not done in time or before the wait was ended, or the server reports no outcome.
   * - `offline`: nothing responds, or no longer.
   * - `unanswered`: the system does not respond. The command may still take effect, unless the error says `not sent`.
   */
  outcome: 'done' | 'failed' | 'pending' | 'offline' | 'unanswered';
  isInvalid: boolean; // refused because of its arguments
  value: string; // returned by the program, as JSON unless it is a text; empty if there is none
  status: SystemStatus | null; // the latest; null if none is known, as after a release of `mine`
  seconds: number; // duration of the wait
  error: string; // why it is not done; empty if nothing went wrong
  summary: string; // the same in a line that names the command; empty if it is simply done
  received: Report; // the latest report of the server
}

/** What a server reports about a command. */
type Report = { readonly [field in 'result' | 'id' | 'state' | 'value' | 'valueOmitted' | 'error']?: unknown };

export interface FollowOptions {
  timeoutMs: number;
  arguments?: object | undefined; // of an own command
  by?: string;
  reason?: string | undefined;
  mine?: boolean | undefined; // of `resume`
  expires?: number | undefined; // seconds; less than timeoutMs, which must leave time for the report
  reply?: PrintableReply; // if the caller has sent the command
  signal?: AbortSignal; // ends the wait
  output?: { write(text: string): unknown } | undefined; // for the statuses on the way, and the result
}

/**
 * Sends a command, unless the caller has sent it, and waits for its outcome and, for a shutdown, its effect. If the
 * server reports no outcome, waits for the status. Stops early when the system ends.
 */
export function follow(client: PrintableClient, command: string, options: FollowOptions): Promise<Followed> {
  return new Follower(client, command, options).run();
}

/** The outcome of a command, with a summary unless that is `not paused: ` and the error. */
type Conclusion = Pick<Followed, 'outcome' | 'error'> & { summary?: string | undefined };

/** When to conclude. `ending`: the system is observed to end for the second time. */
type Moment = 'responded' | 'observed' | 'ending' | 'over';

const DONE: Conclusion = { outcome: 'done', error: '' };

/** One command, from the request to its outcome. */
class Follower {
  readonly #client: PrintableClient;
  readonly #command: string;
  readonly #options: FollowOptions;
  readonly #goal: SystemStatus | undefined;
  readonly #deadline: number;
  readonly #end: AbortController = new AbortController();
  #report: Report = {};
  #status: SystemStatus | null = null; // the latest; null if none is known
  #hasOutput = false;

  constructor(client: PrintableClient, command: string, options: FollowOptions) {
    this.#client = client;
    this.#command = command;
    this.#options = options;
    this.#goal = GOALS.get(command);
    this.#deadline = performance.now() + options.timeoutMs;
  }

  async run(): Promise<Followed> {
    const { timeoutMs, signal, reply: ownReply } = this.#options;
    const start = performance.now();
    signal?.addEventListener('abort', this.#stop);
    if (signal?.aborted === true) this.#stop();
    let limit = setTimeout(this.#stop, timeoutMs + LAST_MS);
    const reply = ownReply ?? await this.#send();
    clearTimeout(limit);
    limit = setTimeout(this.#stop, this.#deadline - performance.now());
    const conclusion = await this.#settle(reply);
    clearTimeout(limit);
    signal?.removeEventListener('abort', this.#stop);
    return this.#describe(conclusion, reply, (performance.now() - start) / 1000);
  }

  readonly #stop = (): void => this.#end.abort();

  #describe({ outcome, error, summary }: Conclusion, reply: PrintableReply, seconds: number): Followed {
    const isDone = outcome === 'done';
    const duration = `${seconds.toFixed(1)} s`;
    const value = isDone ? valueIn({ ...this.#report, command: this.#command }) : '';
    const result = isDone && summary === undefined ? describeDone(this.#command, value) : '';
    if (result !== '' || this.#hasOutput) this.#options.output?.write(`${result} (${duration})\n`.trimStart());
    const hasGone = outcome === 'offline' && (reply.ok || isUnanswered(reply));
    const isLate = outcome === 'pending' || hasGone;
    const participle = PARTICIPLES.get(this.#command);
    const verdict = participle ? `not ${participle}` : `${this.#command} ${isLate ? 'not done' : 'failed'}`;
    return {
      outcome, error, value, seconds,
      isInvalid: isInvalid(reply),
      status: isDone && this.#options.mine !== true ? this.#goal ?? this.#status : this.#status,
      summary: summary ?? (isDone ? '' : `${verdict}${isLate ? ` after ${duration}` : ''}: ${error}`),
      received: this.#report,
    };
  }

  async #send(): Promise<PrintableReply> {
    const responded = new AbortController();
    void this.#watch(responded.signal);
    const { arguments: values, by, reason, mine, expires, timeoutMs } = this.#options;
    const wait = Math.min(MAX_WAIT_S, Math.max(1, Math.floor(timeoutMs / 1000) - LEFT_S));
    const options = { arguments: values, by, reason, mine, expires, wait, signal: this.#end.signal };
    const reply = await this.#client.request(this.#command, options);
    responded.abort();
    return reply;
  }

  /** Watches the status until there is a response: a system that is ending may send none. */
  async #watch(signal: AbortSignal): Promise<void> {
    await sleep(WATCH_AFTER_MS, undefined, { signal }).catch(() => {});
    for await (const { isEnding } of this.#observe('status', signal)) {
      if (isEnding && (this.#goal !== OFFLINE || this.#status === OFFLINE)) this.#stop();
    }
  }

  /** Observes the system until the outcome is certain or cannot become any clearer. */
  async #settle(reply: PrintableReply): Promise<Conclusion> {
    this.#report = reportIn(reply, this.#command);
    const conclusion = this.#conclude(reply, 'responded');
    if (conclusion !== null) return conclusion;
    for await (const { body, isEnding } of this.#observe('info', this.#end.signal)) {
      this.#report = latest(this.#report, body);
      const clearer = this.#conclude(reply, isEnding ? 'ending' : 'observed');
      if (clearer !== null) return clearer;
    }
    return this.#conclude(reply, 'over') as Conclusion;
  }

  /** Concludes from the response, the report and the status; null, unless `over`, if observing may make it clearer. */
  #conclude(reply: PrintableReply, moment: Moment): Conclusion | null {
    const { state } = this.#report;
    const { expires, timeoutMs } = this.#options;
    const status = this.#status;
    const isShutdown = this.#goal === OFFLINE; // neither response nor report shows whether the system ends
    if (state === 'done' && !isShutdown) return DONE;
    if (state === 'failed') {
      const error = excerptOf(this.#report.error, MAX_VALUE_LENGTH);
      if (error === `expired after ${expires} s`) {
        return { outcome: 'pending', error, summary: `${this.#command} expired: never delivered` };
      }
      if (isShutdown && moment !== 'over') { // it is cancelled, unless the system ends anyway
        if (moment === 'responded') return null;
        const hasEnded = status === OFFLINE || moment === 'ending';
        if (hasEnded) return { outcome: 'failed', error, summary: `shut down, but: ${error}` };
        if (status === SHUTTING_DOWN || status === null) return null; // it closes its connections before it ends
      }
      return { outcome: 'failed', error };
    }
    if (reply.ok && this.#goal === undefined && !isUnfinished(this.#report)) {
      return { outcome: 'pending', error: '', summary: `${this.#command} accepted, but the server reports no outcome` };
    }
    if (!reply.ok) {
      const { error, phase, statusCode } = reply;
      if (phase === 'answered') { // an error about arguments names the command
        return { outcome: 'failed', error, summary: statusCode === 400 ? error : undefined };
      }
      if (isShutdown && isAbsent(reply)) return { ...DONE, summary: `already ${OFFLINE}` };
      if (!isUnanswered(reply)) return { outcome: 'offline', error };
    }
    const mayTakeEffect = reply.ok || (reply.phase === 'sent' && (isShutdown || isCut(reply)));
    if (mayTakeEffect && moment === 'responded') return null;
    if (status === OFFLINE) return isShutdown ? DONE : { outcome: 'offline', error: describeCurrent(status) };
    if (mayTakeEffect && moment !== 'over') {
      if (isShutdown) return null;
      if (reply.ok && status === this.#goal && !isUnfinished(this.#report)) return DONE;
      if (reply.ok && moment !== 'ending') return null;
    }
    if (!reply.ok && (status === null || isCut(reply))) {
      return { outcome: 'unanswered', error: reply.error, summary: reply.error };
    }
    if (expires !== undefined && (state === 'running' || (state === 'waiting' && status !== SHUTTING_DOWN))) {
      const late = `runs: not done after ${Math.round(timeoutMs / 1000) - 1} s`;
      const what = state === 'running' ? late : 'not taken yet: it expires when the program looks';
      return { outcome: 'pending', error: '', summary: `${this.#command} ${what}` };
    }
    const isPending = isUnfinished(this.#report) || !reply.ok; // unless the server reports no outcome
    const isSettled = status === SHUTTING_DOWN || !isPending;
    const more = isSettled ? '' : '; the command is still pending';
    return { outcome: 'pending', error: describeCurrent(status) + more };
  }

  /** Notes each status. `isEnding` is set from the second observation of an end: the response may be on its way. */
  async *#observe(endpoint: 'status' | 'info', signal: AbortSignal): AsyncGenerator<{ body: Body; isEnding: boolean }> {
    let wasEnd = false;
    for await (const { status: name, reply } of observe(this.#client, endpoint, signal)) {
      const status = findStatus(name) ?? null;
      const isPassed = this.#goal !== undefined && status !== this.#goal && status !== this.#status;
      if (isPassed && status !== null) this.#show(status.statusName);
      this.#status = status;
      const isEnd = status === SHUTTING_DOWN || status === OFFLINE;
      yield { body: reply.ok ? reply.body : {}, isEnding: isEnd && wasEnd };
      wasEnd = isEnd;
    }
  }

  #show(what: string): void {
    this.#options.output?.write(`${what} … `);
    this.#hasOutput = true;
  }
}

function reportIn(reply: PrintableReply, command: string): Report {
  if (reply.ok) {
    const { result, id, state, value, valueOmitted } = reply.body;
    return { result, id, state, value, valueOmitted };
  }
  if (reply.statusCode === 500) return { state: 'failed', error: reply.original.replace(`${command} failed: `, '') };
  return reply.phase === 'answered' ? { error: reply.original } : {};
}

function isUnfinished({ state }: Report): boolean {
  return state === 'waiting' || state === 'running';
}

/** Updates the report of an unfinished command from the list of the latest commands in `/api/info`. */
function latest(report: Report, info: Body): Report {
  if (info['commands'] === undefined || !isUnfinished(report)) return report;
  const { state, value, valueOmitted, error } = commandsOf(info).find(({ id }) => id === report.id) ?? {};
  return { ...report, state, value, valueOmitted, error };
}

export function describeCurrent(status: SystemStatus | null): string {
  return `the system ${status === null ? 'does not report its status' : `is ${status}`}`;
}

/** A command that is done: `saved states/….json`, `paused`, or `evaluate: {"meanReturn":497.1}`. */
export function describeDone(command: string, value: string): string {
  if (command === 'save-state') return `saved ${value}`.trimEnd();
  const goal = GOALS.get(command);
  if (goal === undefined) return value === '' ? `${command} done` : `${command}: ${value}`;
  return value === '' ? goal.statusName : `${goal.statusName}: ${value}`;
}
