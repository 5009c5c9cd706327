// What control-client asks of systems: status, info, commands, answers, waits. Returns what is printed and exit codes.

import { setMaxListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { type RequestOptions, SystemStatus } from '../../control.ts';
import { EXIT, paintStatus, suggest, UsageError, warn } from '../shared/cli.ts';
import {
  describeUnknown, EXIT_OF, type FailedReply, isCurrent, type PrintableClient, type PrintableReply, STATUS_ONLY,
  statusNameOf, UNKNOWN,
} from '../shared/client.ts';
import { findStatus } from '../shared/commands.ts';
import {
  acceptedBy, describeAccepts, describeGiven, describeOpen, describeParameter, describeTimes, type Question,
  questionsIn, readAnswer, readArguments, type Typed,
} from '../shared/declared.ts';
import {
  commandsOf, type Condition, describeCause, describeEnd, fieldOf, fieldsOf, hasEnded, haveQuestionsChanged,
} from '../shared/describe.ts';
import { inParallel, type Target } from '../shared/folder.ts';
import {
  describeCurrent, describeDone, elapsedSeconds, follow, type Followed, FollowedSystem, type FollowOptions, GOALS, seen,
} from '../shared/system.ts';
import { type Body, excerpt, excerptOfJson, localTime, printable, printableJson } from '../shared/text.ts';
import { describeInfo, viewOf } from '../shared/view.ts';

// ───── Requests and commands ─────────────────────────────────────────────────────────────────────────────────────

/** The output for one target, and its exit code. */
export interface Outcome {
  exitCode: number;
  text?: string;
  /** What `--json` prints. */
  json?: object;
  /** Safe to print. */
  error?: string;
  /** False if the command was not sent, or has expired. */
  isSent?: false;
}

/** An own command of the program, as typed. */
export interface Invocation {
  name: string;
  typed: Typed;
}

export function failure(reply: FailedReply, status?: string): Outcome {
  const { error, fault, original } = reply;
  return { exitCode: EXIT_OF[fault], json: { status, error: original }, error };
}

/** Scripts compare the word on stdout, so the cause is printed only on a terminal. */
export async function getStatus(client: PrintableClient, isVerbose: boolean): Promise<Outcome> {
  const reply = await client.request('status');
  const name = statusNameOf(reply);
  if (!reply.ok && reply.phase === 'answered') return failure(reply);
  if (!reply.ok) return { ...failure(reply, name), text: paintStatus(name, name) };
  if (name === UNKNOWN) {
    const error = describeUnknown(reply.original);
    return { exitCode: EXIT.REFUSED, text: paintStatus(name, name), json: { status: reply.original, error }, error };
  }
  const known = isVerbose ? await client.request('info') : null;
  const text = known?.ok === true ? viewOf(seen({ client, id: client.target }, known)).summary : name;
  return { exitCode: EXIT.DONE, text: paintStatus(text, name), json: { status: name } };
}

export async function getInfo(client: PrintableClient): Promise<Outcome> {
  const reply = await client.request('info');
  if (!reply.ok) return failure(reply);
  return { exitCode: EXIT.DONE, text: describeInfo(seen({ client, id: client.target }, reply)).join('\n'), json: reply.body };
}

export async function send(client: PrintableClient, command: string, options: FollowOptions): Promise<Outcome> {
  const { arguments: values, by, reason } = options;
  const reply = await client.request(command, { arguments: values, by, reason });
  return reply.ok ? { exitCode: EXIT.DONE, text: reply.value, json: { result: reply.original } } : failure(reply);
}

const EXIT_CODES: Record<Followed['outcome'], number> = {
  done: EXIT.DONE, failed: EXIT.REFUSED, pending: EXIT.NOT_REACHED, offline: EXIT.OFFLINE, unanswered: EXIT.NO_ANSWER,
};

/** Refuses an option unless the server is a control.ts that knows it: others ignore it. Otherwise returns null. */
function refuseBasic(option: string, reply: PrintableReply): Outcome | null {
  if (reply.ok ? isCurrent(reply.body) : reply.fault !== 'lacking') return null;
  const error = `${option} requires a server with control.ts 0.18 or later: leave it out`;
  return { exitCode: EXIT.USAGE, json: { error }, error, isSent: false };
}

/** The outcome of a command that is not sent because the request that precedes it has failed. */
function notSent(command: string, reply: FailedReply): Outcome {
  const [error = '', original = ''] = [reply.error, reply.original].map((text) => `${command} not sent: ${text}`);
  return { ...failure({ ...reply, error, original }), isSent: false };
}

/** Sends a command, and waits until it is done. */
export async function finish(client: PrintableClient, command: string, options: FollowOptions): Promise<Outcome> {
  if (options.expires !== undefined) {
    const reply = await client.request('info', { signal: options.signal });
    const refused = refuseBasic('--timeout', reply);
    if (refused !== null) return refused;
    if (!reply.ok && reply.fault !== 'offline') return notSent(command, reply);
  }
  const followed = await follow(client, command, options);
  const { outcome, value, status, summary, received, seconds } = followed;
  const exitCode = followed.isInvalid ? EXIT.USAGE : EXIT_CODES[outcome];
  const json = { ...received, seconds: Number(seconds.toFixed(3)), status: status?.statusName };
  const hasExpired = outcome === 'pending' && received.state === 'failed';
  const failed = { exitCode, json: { ...json, error: received.error ?? summary }, error: summary };
  if (exitCode !== EXIT.DONE) return hasExpired ? { ...failed, isSent: false } : failed;
  if (summary !== '') return { exitCode, text: summary, json };
  const isShown = options.output !== undefined && process.stdout.isTTY; // follow() has shown it on the same terminal
  const isObject = Object(received.value) === received.value; // not truncated, because scripts parse it
  const isOmitted = received.valueOmitted !== undefined; // scripts must not take the reason for the value
  const given = isOmitted ? '' : value;
  const returned = isObject ? printableJson(received.value as object) : given || 'ok';
  const reached = command === 'shutdown' ? describeDone(command, given) : String(status); // what the last save returned
  const text = GOALS.has(command) ? reached : returned;
  if (isShown) return { exitCode, text: '', json };
  return { exitCode, text, json, ...(isOmitted && { error: `${command} is done, its value is missing ${value}` }) };
}

/** Sends an own command of the program, or lists them. */
export async function runDeclared(
  client: PrintableClient,
  invocation: Invocation | null,
  act: typeof send,
  options: FollowOptions,
): Promise<Outcome> {
  const reply = await client.request('info');
  if (reply.fault === 'lacking') {
    const error = 'the server takes only pause, resume, save-state and shutdown';
    return { exitCode: EXIT.REFUSED, json: { error }, error };
  }
  if (!reply.ok) {
    const before = invocation === null ? '' : `${invocation.name} not sent: `;
    return failure({ ...reply, error: before + reply.error, original: before + reply.original });
  }
  const accepts = acceptedBy(reply.body);
  const names = [...accepts.keys()].join(', ');
  const none = names === '' ? 'the program declares no commands' : '';
  if (invocation === null) {
    const json = { accepts: reply.body['accepts'] };
    return { exitCode: EXIT.DONE, text: describeAccepts(accepts), json, error: none };
  }
  const { name, typed } = invocation;
  const declaration = accepts.get(name);
  if (declaration === undefined) {
    const error = `${none || `the command must be one of ${names}`}, got '${name}'${suggest(name, accepts.keys())}`;
    return { exitCode: EXIT.USAGE, json: { error }, error };
  }
  return act(client, name, { ...options, arguments: readArguments(typed, declaration) });
}

// ───── Questions ─────────────────────────────────────────────────────────────────────────────────────────────────

/** An answer as typed. */
export interface Answering {
  /** Of the question; empty for the only one that is open. */
  id: string;
  /** The arguments, or `yes` or `no`. */
  words: readonly string[];
}

/** Lists the open questions with their times, and what they take. */
export async function listAsks(client: PrintableClient): Promise<Outcome> {
  const reply = await client.request('info');
  if (!reply.ok) return failure(reply);
  const lines = questionsIn(reply.body).flatMap((question) => {
    return [`${describeTimes(question)}: ${question.message}`, ...[...question.parameters].map(describeParameter)];
  });
  return { exitCode: EXIT.DONE, text: lines.join('\n'), json: { asks: reply.body['asks'] } };
}

/**
 * Answers one question of one of the systems. Returns what to print about which of them.
 *
 * @throws {UsageError} If the answer may be meant for several questions, or is none to this one.
 * @throws {Error} If there is no such question.
 */
export async function answer(
  targets: readonly Target[],
  { id, words }: Answering,
  options: Pick<RequestOptions, 'by' | 'reason'>,
): Promise<[Target, Outcome][]> {
  const replies = new Map<Target, PrintableReply>();
  await inParallel(targets, async (target) => {
    const reply = await target.client.request('info'); // has the program note the time, which the next one reports
    replies.set(target, reply.ok && id === '' ? await target.client.request('info') : reply);
  });
  const askers = targets.map((target) => ({ target, reply: replies.get(target) as PrintableReply }));
  const failed = askers.flatMap(({ target, reply }): [Target, Outcome][] => {
    return reply.ok ? [] : [[target, notSent('answer', reply)]];
  });
  if (failed.length === targets.length) return failed;
  const open = askers.flatMap(({ target, reply: { body } }) => {
    return questionsIn(body).map((question) => ({ target, question }));
  });
  const meant = open.filter(({ question }) => id === '' || question.id === id);
  const list = describeOpen(open.map(({ target: { title }, question }) => {
    return targets.length === 1 ? question : { ...question, id: `${question.id} of ${printable(title)}` };
  }));
  if (meant.length > 1) throw new UsageError(`${id === '' ? 'the id' : 'the target'} must be given: ${list}`);
  // A system that does not respond may have the question that is meant.
  const isSure = askers.every(({ reply }) => reply.ok || reply.fault === 'offline' || reply.fault === 'lacking');
  const [only] = meant;
  if (only !== undefined && id === '' && isSure && askers.some(({ reply: { body } }) => haveQuestionsChanged(body))) {
    throw new UsageError(`the id must be given, because the questions have just changed: ${list}`);
  }
  if (only !== undefined && (id !== '' || isSure)) {
    return [[only.target, await sendAnswer(only.target, only.question, readAnswer(only.question, words), options)]];
  }
  if (!isSure) return failed;
  const ended = askers.find(({ reply: { body } }) => commandsOf(body).some((entry) => entry['id'] === id));
  const target = targets.length === 1 ? targets[0] : ended?.target;
  if (id === '') throw new Error('no question is open');
  if (target === undefined) throw new Error(`there is no question ${id}: ${list}`);
  return [[target, await sendAnswer(target, { id, message: '' }, {}, options)]]; // the server says how it has ended
}

async function sendAnswer(
  { client }: Target,
  question: Pick<Question, 'id' | 'message'>,
  given: object,
  options: Pick<RequestOptions, 'by' | 'reason'>,
): Promise<Outcome> {
  const { id, message } = question;
  const reply = await client.request('answer', { ...options, id, arguments: given });
  if (!reply.ok) return failure(reply);
  const json = { result: reply.original, id, message, arguments: given };
  return { exitCode: EXIT.DONE, text: describeGiven(question, given), json };
}

// ───── Pauses of one sender ──────────────────────────────────────────────────────────────────────────────────────

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const; // SIGHUP: the terminal was closed
const CHECK_MS = 30_000; // timers stop while the machine is suspended, so the clock is read this often

/** Releases the pause of the sender, which resumes the system if nobody else has paused it. */
export async function resumeMine(client: PrintableClient, options: FollowOptions): Promise<Outcome> {
  const reply = await client.request('info');
  const refused = refuseBasic('--mine', reply);
  if (refused !== null) return refused;
  if (!reply.ok) return notSent('resume', reply);
  const isPausing = commandsOf(reply.body).some((entry) => entry['command'] === 'pause' && !hasEnded(entry));
  const isActive = reply.value === 'active' && !isPausing;
  if (isActive) return { exitCode: EXIT.DONE, text: reply.value, json: { status: reply.value } };
  const resumed = await finish(client, 'resume', { ...options, mine: true, output: undefined });
  if (resumed.exitCode !== EXIT.DONE) return resumed;
  const latest = await client.request('info');
  if (!latest.ok) return { ...failure(latest), json: { ...resumed.json, status: undefined, error: latest.original } };
  const { value: status, body } = latest;
  const json: Body = { ...resumed.json, status, holds: body['holds'] };
  if (status !== 'paused' && status !== 'pausing') return { exitCode: EXIT.DONE, text: status, json };
  const cause = `${status}${describeCause(body)}`;
  const { released } = Object(json['value']);
  if (released === true) return { exitCode: EXIT.DONE, text: `released; still ${cause}`, json };
  const error = `not resumed: ${options.by} holds no pause; ${cause}`;
  return { exitCode: EXIT.REFUSED, json: { ...json, error }, error };
}

/** Pauses a system if its server can release the pause of one sender; otherwise `resumeMine()` could not end it. */
export async function pauseMine(client: PrintableClient, options: FollowOptions): Promise<Outcome> {
  const reply = await client.request('info', { signal: options.signal });
  return refuseBasic('--for', reply) ?? (reply.ok ? finish(client, 'pause', options) : notSent('pause', reply));
}

interface Lease {
  durationMs: number;
  /** Also prints the outcome. */
  pause(target: Target, signal: AbortSignal): Promise<Outcome>;
  resume(target: Target): Promise<void>;
  /** The command line that resumes all targets, printed if a signal ends the lease. */
  resumeLine: string;
}

/** Pauses systems, and resumes them later. A signal that ends it leaves them paused. */
export async function pauseFor(targets: readonly Target[], lease: Lease): Promise<void> {
  const { durationMs, resumeLine } = lease;
  const end = new AbortController();
  setMaxListeners(0, end.signal); // a listener per target
  const interrupt = (name: NodeJS.Signals): void => end.abort(name);
  for (const name of SIGNALS) process.once(name, interrupt);
  const paused: Target[] = [];
  await inParallel(targets, async (target) => {
    if (end.signal.aborted) return;
    const { exitCode, isSent = true } = await lease.pause(target, end.signal);
    const isPending = exitCode === EXIT.NOT_REACHED || exitCode === EXIT.NO_ANSWER; // it may still be paused
    if (isSent && (exitCode === EXIT.DONE || isPending)) paused.push(target);
  });
  if (paused.length > 0) await sleepUntil(Date.now() + durationMs, end.signal);
  for (const name of SIGNALS) process.off(name, interrupt);
  if (end.signal.aborted) {
    const rest = `: paused systems stay paused; to resume them: ${resumeLine}`;
    warn(`interrupted${paused.length === 0 ? '' : rest}`);
    return void process.kill(process.pid, end.signal.reason as string); // so that a shell ends the loop around it, too
  }
  await inParallel(paused, lease.resume);
}

async function sleepUntil(time: number, signal: AbortSignal): Promise<void> {
  if (process.stderr.isTTY) console.error(`until ${localTime(new Date(time))}; Ctrl-C leaves it paused`);
  for (let left = time - Date.now(); left > 0 && !signal.aborted; left = time - Date.now()) {
    await sleep(Math.min(left, CHECK_MS), undefined, { signal }).catch(() => {});
  }
}

// ───── Waiting ───────────────────────────────────────────────────────────────────────────────────────────────────

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
  const system = new FollowedSystem({ client, id: title, ...socket && { socket } });
  const condition = 'field' in goal ? goal : null;
  let wasSeen = socket !== undefined;
  let lostAt: number | null = null;
  let isNoticed = false;
  let value: unknown;
  let [isReached, hasEnded] = [false, false];
  for await (const reply of system.follow(limit, undefined, condition === null ? 'info' : 'detail')) {
    if (reply.fault === 'denied') return failure(reply);
    if (condition !== null && reply.ok && !('detail' in system.info)) {
      return { exitCode: EXIT.REFUSED, json: { error: STATUS_ONLY }, error: STATUS_ONLY };
    }
    const now = performance.now();
    const isOffline = reply.fault === 'offline';
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
