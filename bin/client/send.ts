// Sends one request to a system, and returns what control-client prints.

import { acceptedBy, acceptedIn, describeAccepts, readArguments } from '../shared/words/accepts.ts';
import { paintStatus } from '../shared/line/color.ts';
import { describeInfo, describeStatusAndSave, oldVersionIn } from '../shared/words/describe.ts';
import { describeDone, follow, GOALS } from '../shared/reach/follow.ts';
import { EXIT } from '../shared/line/options.ts';
import {
  describeUnknown, isAbsent, isInvalid, isUnanswered, lacksInfo, statusNameOf, UNKNOWN,
} from '../shared/reach/replies.ts';
import { suggest } from '../shared/line/suggest.ts';
import { printableJson } from '../shared/words/text.ts';
import type { Typed } from '../shared/words/accepts.ts';
import type { Followed, FollowOptions } from '../shared/reach/follow.ts';
import type { FailedReply, PrintableClient, PrintableReply } from '../shared/reach/replies.ts';

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
  const { error, phase, original } = reply;
  const refused = isInvalid(reply) ? EXIT.USAGE : EXIT.REFUSED;
  const exitCode = phase === 'answered' ? refused : isUnanswered(reply) ? EXIT.NO_ANSWER : EXIT.OFFLINE;
  return { exitCode, json: { status, error: original }, error };
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
  const text = known?.ok === true ? describeStatusAndSave(known.body) : name;
  return { exitCode: EXIT.DONE, text: paintStatus(text, name), json: { status: name } };
}

export async function getInfo(client: PrintableClient): Promise<Outcome> {
  const reply = await client.request('info');
  if (!reply.ok) return failure(reply);
  return { exitCode: EXIT.DONE, text: describeInfo(reply.body).join('\n'), json: reply.body };
}

export async function send(client: PrintableClient, command: string, options: FollowOptions): Promise<Outcome> {
  const { arguments: values, by, reason } = options;
  const reply = await client.request(command, { arguments: values, by, reason });
  return reply.ok ? { exitCode: EXIT.DONE, text: reply.value, json: { result: reply.original } } : failure(reply);
}

const EXIT_CODES: Record<Followed['outcome'], number> = {
  done: EXIT.DONE, failed: EXIT.REFUSED, pending: EXIT.NOT_REACHED, offline: EXIT.OFFLINE, unanswered: EXIT.NO_ANSWER,
};

/** Refuses an option that servers before 0.16 ignore. Returns null if the server knows it or has not responded. */
export function refuseOld(option: string, reply: PrintableReply): Outcome | null {
  if (!reply.ok && !lacksInfo(reply)) return null;
  const version = oldVersionIn(reply.body);
  if (version === null) return null;
  const rule = `${option} requires a server of version 0.16 or later, got ${version || 'none'}`;
  const error = `${rule}: update the program's control.ts, or leave out ${option}`;
  return { exitCode: EXIT.USAGE, json: { error }, error, isSent: false };
}

/** The outcome of a command that is not sent because the request that precedes it has failed. */
export function notSent(command: string, reply: FailedReply): Outcome {
  const [error = '', original = ''] = [reply.error, reply.original].map((text) => `${command} not sent: ${text}`);
  return { ...failure({ ...reply, error, original }), isSent: false };
}

/** Sends a command, and waits until it is done. One that expires is sent only to a server that is known to do that. */
export async function finish(client: PrintableClient, command: string, options: FollowOptions): Promise<Outcome> {
  if (options.expires !== undefined) {
    const reply = await client.request('info', { signal: options.signal });
    const refused = refuseOld('--timeout', reply);
    if (refused !== null) return refused;
    if (!reply.ok && !isAbsent(reply)) return notSent(command, reply);
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
  if (lacksInfo(reply) || (reply.ok && acceptedBy(reply.body) === null)) {
    const error = 'the server takes only pause, resume, save-state and shutdown';
    return { exitCode: EXIT.REFUSED, json: { error }, error };
  }
  if (!reply.ok) {
    const before = invocation === null ? '' : `${invocation.name} not sent: `;
    return failure({ ...reply, error: before + reply.error, original: before + reply.original });
  }
  const accepts = acceptedIn(reply);
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
