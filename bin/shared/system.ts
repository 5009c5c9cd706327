// Follows a system, through offline and silence, and a command until it is done; client.ts says what each reply means.

import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../control.ts';
import {
  describeUnknown, isCut, NO_ANSWER, type PrintableClient, type PrintableReply, statusNameOf, UNKNOWN,
} from './client.ts';
import { findStatus } from './commands.ts';
import { commandsOf, endedAt, isRefusedSave, isWithdrawn, progressOf, savedBy, valueIn } from './describe.ts';
import { type Body, excerptOf, excerptOfJson, MAX_VALUE_LENGTH, textOfJson, timeIn } from './text.ts';
import type { Found } from './folder.ts';

/**
 * Runs work with a signal that aborts after a time, or when the given signal does. Node 20 garbage-collects an
 * `AbortSignal.timeout()` to which only `AbortSignal.any()` refers, and it never aborts.
 */
export async function withLimit<T>(
  limitMs: number,
  signal: AbortSignal,
  work: (limit: AbortSignal) => Promise<T>,
): Promise<T> {
  const limit = new AbortController();
  const end = (): void => limit.abort();
  const timer = setTimeout(end, limitMs);
  signal.addEventListener('abort', end);
  if (signal.aborted) end();
  try {
    return await work(limit.signal);
  } finally {
    clearTimeout(timer);
    signal.removeEventListener('abort', end);
  }
}

/** @param start The value of `performance.now()` at the start. */
export function elapsedSeconds(start: number): number {
  return Number(((performance.now() - start) / 1000).toFixed(3));
}

// ───── Each response ─────────────────────────────────────────────────────────────────────────────────────────────

const WAIT_S = 1; // with `detail`, also the time between two queries of the detail
const PAUSE_MS = 10; // between two requests
const RETRY_MS = 250; // if the system is offline, or its server cannot wait
const LOOKUP_MS = 2000; // if its host is unknown: each attempt asks a name server

/** The result of a request. */
interface Observation {
  status: string; // or `offline`, `no answer`, …
  reply: PrintableReply;
  endpoint: 'status' | 'info'; // where the reply is from
  isNew: boolean; // the reply may differ from the one before
}

/**
 * Yields the result of each request: as soon as something changes, and after `waitS` while the system responds.
 * Ignores a single connection that breaks.
 *
 * @param query `info` also reports the cause and the commands, unless the server reports its status only. `detail` also
 *   queries the detail each second: servers do not notify clients of its changes.
 * @param waitS Time limit of each request: a program that neither polls nor yields reports changes only on request.
 */
export async function* observe(
  client: PrintableClient,
  query: 'status' | 'info' | 'detail',
  signal: AbortSignal,
  waitS: number = WAIT_S,
): AsyncGenerator<Observation, void> {
  const endpoint = query === 'status' ? 'status' : 'info';
  let current: Observation['endpoint'] = endpoint;
  let status = '';
  let wasCut = false;
  for (let tag: string | undefined; !signal.aborted;) {
    const start = performance.now();
    const reply = await client.request(current, { tag, wait: tag === undefined ? undefined : waitS, signal });
    if (signal.aborted) return;
    if (reply.fault === 'lacking' && current === 'info') {
      current = 'status';
      continue;
    }
    const isNew = !reply.ok || tag === undefined || reply.tag !== tag; // otherwise it has no body
    if (isNew) status = statusNameOf(reply);
    if (!isCut(reply) || wasCut) yield { status, reply, endpoint: current, isNew };
    wasCut = isCut(reply);
    const hasTag = reply.ok && reply.tag !== undefined;
    tag = hasTag && (isNew || query !== 'detail') ? reply.tag : undefined;
    if (!reply.ok) current = endpoint; // another server may take over
    const hasWaited = isNew || performance.now() - start > RETRY_MS; // unless the server has no place for that
    const retryMs = !reply.ok && ['ENOTFOUND', 'EAI_AGAIN'].includes(`${reply.code}`) ? LOOKUP_MS : RETRY_MS;
    await sleep(hasTag && hasWaited ? PAUSE_MS : retryMs, undefined, { signal }).catch(() => {});
  }
}

// ───── A followed system ─────────────────────────────────────────────────────────────────────────────────────────

const HEARD_MS = 500; // values of `heardAt` that differ by less count as equal
const STEP_MS = 1000; // shorter steps are not shown
const SENT_MS = 1000; // a shutdown that has been sent takes effect by then, unless the program is in a step
const SILENT_MS = 2000; // a system that ends closes its connections sooner; a program that looks is heard of sooner
const PACE_MS = 60_000; // the time left is computed from the pace of the last minute
const { ACTIVE, OFFLINE, SHUTTING_DOWN } = SystemStatus;
/** The statuses of a system that cannot be reached. */
export const DOWN: readonly string[] = [OFFLINE.statusName, NO_ANSWER, UNKNOWN];

/** A successful save: its value, and when and by whom it was done. */
interface Save {
  value: string;
  at: number | null;
  by: string;
}

/** A followed system: what is known of it, and since when. Times are in milliseconds. */
export class FollowedSystem {
  /** As of the latest search, which may have found another token or title. */
  target: Pick<Found, 'id' | 'client' | 'socket'> & Partial<Pick<Found, 'name'>>;
  /** The status in the latest reply, or `offline`, `no answer`, …; empty before the first one. */
  reported: string = '';
  /** Since when; null if unknown. */
  since: number | null = null;
  /** The latest reply that was noted; null before the first one. */
  reply: PrintableReply | null = null;
  /** The latest response. */
  info: Body = {};
  /** When it arrived. */
  infoAt: number = 0;
  /** The shutdown that ended it, as a status or a command; null if there was none, or if the system has not ended. */
  end: Body | null = null;
  /** Since when requests have had no response; null if they have. */
  unansweredSince: number | null = null;
  /** The last save; null if none is known. A shutdown also saves. */
  saved: Save | null = null;
  /** A later save that failed, as a command; null if there is none. */
  failedSave: Body | null = null;
  #shutdown: { cause: Body | null; until: number } = { cause: null, until: 0 };
  #error = '';
  #readError = ''; // of the latest `read()`, if it could not be sent
  #reading: Promise<boolean> | null = null;
  #steps: { at: number; done: number }[] = []; // the progress at first, and whenever it grew
  #heard: { at: number; overdueAt: number } | null = null; // when the program last looked, and must look again

  constructor(target: FollowedSystem['target']) {
    this.target = target;
  }

  get client(): PrintableClient {
    return this.target.client;
  }

  /** Whether it has ended, and does not come back: it has no socket in its folder any more. */
  get hasLeft(): boolean {
    return this.reply?.ok === false && this.target.socket?.exists === false;
  }

  /** The status to show. */
  get status(): string {
    return this.unansweredSince === null || DOWN.includes(this.reported) ? this.reported : NO_ANSWER;
  }

  /** Whether `info` reports the status that is shown. */
  get isCurrent(): boolean {
    return this.info['status'] === this.status;
  }

  /**
   * Since when the program has not looked for commands: it is in a step, or hangs. Null if it looks, as far as reports
   * show that: the latest one ages, too.
   */
  get unheardSince(): number | null {
    const { at = null, overdueAt = Infinity } = this.#heard ?? {};
    return this.isCurrent && this.infoAt >= overdueAt ? at : null;
  }

  /** Why the status is not one that the system reports, or may be old; otherwise empty. */
  get error(): string {
    return this.#error || this.#readError;
  }

  /**
   * Yields each reply until the signal. While nothing changes, it sends a request every `waitS` seconds.
   *
   * @param query As for `observe()`.
   */
  async *follow(
    signal: AbortSignal,
    waitS?: number,
    query: 'info' | 'detail' = 'info',
  ): AsyncGenerator<PrintableReply, void> {
    for await (const { status, reply, isNew } of observe(this.client, query, signal, waitS)) {
      if (status === NO_ANSWER) this.#noteSilence(Date.now());
      else this.unansweredSince = null;
      if (isNew) this.note(status, reply);
      yield reply;
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
    const isSilent = reply.fault === 'silent';
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
  note(status: string, reply: PrintableReply): void {
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
    this.#take(reply.ok ? reply.body : this.info);
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
    if (info !== this.info) {
      this.infoAt = Date.now();
      this.#noteHeard(timeIn(info, 'heardAt') ?? this.infoAt);
      const [process, earlier] = [info, this.info].map(({ host, pid }) => textOfJson([host, pid])); // may be anything
      if (process !== earlier && this.info['pid'] !== undefined) this.noteRestart();
      for (const entry of commandsOf(info)) this.noteSave(entry, info);
    }
    this.info = info;
    if (this.reply?.ok !== false) this.since = timeIn(info, 'since') ?? this.since;
    const progress = this.reported === ACTIVE.statusName ? progressOf(info['detail']) : null;
    const [steps, now] = [this.#steps, performance.now()];
    const before = steps.at(-1)?.done ?? Infinity;
    if (progress === null || progress.done < before) steps.length = 0;
    if (progress !== null && progress.done !== before) steps.push({ at: now, done: progress.done });
    if (steps.length > 3 && now - (steps[2]?.at ?? 0) > PACE_MS) steps.shift();
  }

  /** A new process has none of the failures of the one before. */
  protected noteRestart(): void {
    this.failedSave = null;
  }

  /** The clock of the system may differ from ours, so that only the first report is compared with it. */
  #noteHeard(at: number): void {
    const before = this.#heard;
    if (before === null) this.#heard = { at, overdueAt: at + STEP_MS };
    else if (Math.abs(at - before.at) > HEARD_MS) this.#heard = { at, overdueAt: this.infoAt + SILENT_MS };
  }

  /** Notes a command if it has saved, or failed to. A program without a way to save has not failed. */
  noteSave(entry: Body, info: Body = this.info): void {
    const { command, state, value } = entry;
    const isShutdown = command === 'shutdown';
    if (!isShutdown && command !== 'save-state') return;
    const saved = isShutdown ? savedBy(entry) : excerptOfJson(value);
    if (state === 'done' && (!isShutdown || saved !== '')) {
      this.saved = { value: saved, at: endedAt(entry), by: excerptOf(entry['by']) };
      this.failedSave = null;
    } else if (state === 'failed' && !isShutdown && !isRefusedSave(entry, info) && !isWithdrawn(entry)) {
      this.failedSave = entry;
    }
  }

  /** Until the progress is complete. Null until it has grown twice: the first growth may be the work of an hour. */
  get secondsLeft(): number | null {
    const [first, last] = [this.#steps[1], this.#steps.at(-1)];
    const progress = this.status === ACTIVE.statusName ? progressOf(this.info['detail']) : null;
    if (first === undefined || last === undefined || first === last || progress === null) return null;
    const leftMs = (progress.of - last.done) * (last.at - first.at) / (last.done - first.done);
    const seconds = Math.max(0, leftMs - (performance.now() - last.at)) / 1000;
    return Number.isFinite(seconds) ? seconds : null; // `of` may be huge
  }
}

/** What a single reply tells about a system. */
export function seen(target: FollowedSystem['target'], reply: PrintableReply): FollowedSystem {
  const system = new FollowedSystem(target);
  system.note(statusNameOf(reply), reply);
  return system;
}

// ───── A command, until it is done ───────────────────────────────────────────────────────────────────────────────

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
  within?: number | undefined; // of `pause` and `shutdown`, in seconds
  for?: number | undefined; // of `pause`, in seconds
  expires?: number | undefined; // seconds; less than timeoutMs, which must leave time for the report
  reply?: PrintableReply; // if the caller has sent the command
  signal?: AbortSignal; // ends the wait
  output?: { write(text: string): unknown } | undefined; // for the statuses on the way, and the result
}

/** The outcome of a command, with a summary unless that is `not paused: ` and the error. */
type Conclusion = Pick<Followed, 'outcome' | 'error'> & { summary?: string | undefined };

/** When to conclude. `ending`: the system is observed to end for the second time. */
type Moment = 'responded' | 'observed' | 'ending' | 'over';

const DONE: Conclusion = { outcome: 'done', error: '' };

/**
 * Sends a command, unless the caller has sent it, and waits for its outcome and, for a shutdown, its effect. If the
 * server reports no outcome, waits for the status. Stops early when the system ends.
 */
export async function follow(client: PrintableClient, command: string, options: FollowOptions): Promise<Followed> {
  const { timeoutMs, signal, output, reply: given, ...sent } = options;
  const start = performance.now();
  const goal = GOALS.get(command);
  const isShutdown = goal === OFFLINE; // neither response nor report shows whether the system ends
  const end = new AbortController();
  const stop = (): void => end.abort();
  let report: Report = {};
  let status: SystemStatus | null = null; // the latest; null if none is known
  let hasOutput = false;

  /** Notes each status. `isEnding` is set from the second observation of an end: the response may be on its way. */
  async function* observeStatus(endpoint: 'status' | 'info', until: AbortSignal): AsyncGenerator<[Body, boolean]> {
    let wasEnd = false;
    for await (const { status: name, reply, endpoint: source } of observe(client, endpoint, until)) {
      if (source !== endpoint) report = { ...report, state: undefined }; // the server reports no outcome
      const before = status;
      status = findStatus(name) ?? null;
      if (goal !== undefined && status !== null && status !== goal && status !== before) {
        const isOnTheWay = [SystemStatus.PAUSING, SystemStatus.RESUMING, SHUTTING_DOWN].includes(status);
        output?.write(`${isOnTheWay ? '' : 'still '}${status} … `);
        hasOutput = true;
      }
      const isEnd = status === SHUTTING_DOWN || status === OFFLINE;
      yield [reply.body, isEnd && wasEnd];
      wasEnd = isEnd;
    }
  }

  async function send(): Promise<PrintableReply> {
    const responded = new AbortController();
    void watch(responded.signal);
    const wait = Math.min(MAX_WAIT_S, Math.max(1, Math.floor(timeoutMs / 1000) - LEFT_S));
    const reply = await client.request(command, { ...sent, wait, signal: end.signal });
    responded.abort();
    return reply;
  }

  /** Watches the status until there is a response: a system that is ending may send none. */
  async function watch(until: AbortSignal): Promise<void> {
    await sleep(WATCH_AFTER_MS, undefined, { signal: until }).catch(() => {});
    for await (const [, isEnding] of observeStatus('status', until)) {
      if (isEnding && (!isShutdown || status === OFFLINE)) stop();
    }
  }

  /** Observes the system until the outcome is certain or cannot become any clearer. */
  async function settle(reply: PrintableReply): Promise<Conclusion> {
    report = reportIn(reply, command);
    const first = conclude(reply, 'responded');
    if (first !== null) return first;
    for await (const [body, isEnding] of observeStatus('info', end.signal)) {
      report = latest(report, body);
      const clearer = conclude(reply, isEnding ? 'ending' : 'observed');
      if (clearer !== null) return clearer;
    }
    return conclude(reply, 'over') as Conclusion;
  }

  /** Concludes from the response, the report and the status; null, unless `over`, if observing may make it clearer. */
  function conclude(reply: PrintableReply, moment: Moment): Conclusion | null {
    const { state } = report;
    if (state === 'done' && !isShutdown) return DONE;
    if (state === 'failed') {
      const error = excerptOf(report.error, MAX_VALUE_LENGTH);
      if ([sent.expires, sent.for].some((seconds) => error === `expired after ${seconds} s`)) {
        return { outcome: 'pending', error, summary: `${command} expired: never delivered` };
      }
      if (error === `the program has not ended within ${sent.within} s and is killed`) {
        const summary = `killed: the program had not ended within ${sent.within} s`;
        return status === OFFLINE || moment === 'over' ? { outcome: 'failed', error, summary } : null;
      }
      if (isShutdown && moment !== 'over') { // it is cancelled, unless the system ends anyway
        if (moment === 'responded') return null;
        const hasEnded = status === OFFLINE || moment === 'ending';
        if (hasEnded) return { outcome: 'failed', error, summary: `shut down, but: ${error}` };
        if (status === SHUTTING_DOWN || status === null) return null; // it closes its connections before it ends
      }
      return { outcome: 'failed', error };
    }
    if (reply.ok && goal === undefined && !isUnfinished(report)) {
      return { outcome: 'pending', error: '', summary: `${command} accepted, but the server reports no outcome` };
    }
    if (!reply.ok) {
      const { error, phase, statusCode } = reply;
      if (phase === 'answered') { // an error about arguments names the command
        return { outcome: 'failed', error, summary: statusCode === 400 ? error : undefined };
      }
      if (isShutdown && reply.fault === 'offline') return { ...DONE, summary: `already ${OFFLINE}` };
      if (reply.fault !== 'silent') return { outcome: 'offline', error };
    }
    const mayTakeEffect = reply.ok || (reply.phase === 'sent' && (isShutdown || isCut(reply)));
    if (mayTakeEffect && moment === 'responded') return null;
    if (status === OFFLINE) return isShutdown ? DONE : { outcome: 'offline', error: describeCurrent(status) };
    if (mayTakeEffect && moment !== 'over') {
      if (isShutdown) return null;
      if (reply.ok && status === goal && !isUnfinished(report)) return DONE;
      if (reply.ok && moment !== 'ending') return null;
    }
    if (!reply.ok && (status === null || isCut(reply))) {
      return { outcome: 'unanswered', error: reply.error, summary: reply.error };
    }
    const limitS = sent.expires ?? (sent.within === undefined ? sent.for : undefined) ?? Infinity;
    if (limitS * 1000 < timeoutMs && (state === 'running' || (state === 'waiting' && status !== SHUTTING_DOWN))) {
      const late = `runs: not done after ${Math.round(timeoutMs / 1000) - 1} s`;
      const what = state === 'running' ? late : 'not taken yet: it expires when the program looks';
      return { outcome: 'pending', error: '', summary: `${command} ${what}` };
    }
    const isPending = isUnfinished(report) || !reply.ok; // unless the server reports no outcome
    const more = status === SHUTTING_DOWN || !isPending ? '' : '; the command is still pending';
    return { outcome: 'pending', error: describeCurrent(status) + more };
  }

  signal?.addEventListener('abort', stop);
  if (signal?.aborted === true) stop();
  let limit = setTimeout(stop, timeoutMs + LAST_MS);
  const reply = given ?? await send();
  clearTimeout(limit);
  limit = setTimeout(stop, start + timeoutMs - performance.now());
  const { outcome, error, summary } = await settle(reply);
  clearTimeout(limit);
  signal?.removeEventListener('abort', stop);

  const seconds = (performance.now() - start) / 1000;
  const duration = `${seconds.toFixed(1)} s`;
  const isDone = outcome === 'done';
  const value = isDone ? valueIn({ ...report, command }) : '';
  const result = isDone && summary === undefined ? describeDone(command, value) : '';
  if (result !== '' || hasOutput) output?.write(`${result} (${duration})\n`.trimStart());
  const isLate = outcome === 'pending' || (outcome === 'offline' && (reply.ok || reply.fault === 'silent'));
  const participle = PARTICIPLES.get(command);
  const verdict = participle ? `not ${participle}` : `${command} ${isLate ? 'not done' : 'failed'}`;
  const isCancelled = isShutdown && report.state === 'failed' && status !== null && !isWithdrawn(report);
  const now = isCancelled ? `, now ${status}` : '';
  const retry = /ENOSPC|EDQUOT/.test(error) ? 'free space and retry' : 'retry';
  const advice = isCancelled ? `; ${retry}, or end it with SIGTERM (loses what is not saved)` : '';
  return {
    outcome, error, value, seconds, isInvalid: reply.fault === 'invalid', received: report,
    status: isDone && sent.mine !== true ? goal ?? status : status,
    summary: summary ?? (isDone ? '' : `${verdict}${isLate ? ` after ${duration}` : now}: ${error}${advice}`),
  };
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

/** A command that is done: `saved states/….json`, `paused`, or `evaluate: {"meanLoss":58.9}`. */
export function describeDone(command: string, value: string): string {
  if (command === 'save-state') return `saved ${value}`.trimEnd();
  const goal = GOALS.get(command);
  if (goal === undefined) return value === '' ? `${command} done` : `${command}: ${value}`;
  return value === '' ? goal.statusName : `${goal.statusName}: ${value}`;
}
