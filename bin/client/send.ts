// How the verbs of control-client send a command: their options, and what comes of it.

import { EXIT, type Options, parseDuration, UsageError, type ValuesOf } from '../shared/cli.ts';
import {
  BY, type FailedReply, isCurrent, type PrintableClient, type PrintableReply, statusNameOf,
} from '../shared/client.ts';
import { commandsOf, describeCause, endLost, hasEnded } from '../shared/describe.ts';
import { describeDone, follow, type Followed, type FollowOptions, GOALS } from '../shared/system.ts';
import { type Body, printableJson, tidy } from '../shared/text.ts';
import { failure, type Outcome } from './verb.ts';
import type { Target } from '../shared/folder.ts';

const OUTCOME_TIMEOUT_MS = 30_000;
const MAX_EXPIRES_S = 86_400;

// ───── Options ───────────────────────────────────────────────────────────────────────────────────────────────────

export const SENDING = {
  wait: { type: 'boolean', help: 'wait until the command is done, and print the outcome' },
  timeout: {
    type: 'string', value: 'SECONDS', parse: (option: string, text: string): number => parseDuration(option, text),
    help: 'time limit of --wait (default 30); if given, the command then expires',
  },
  reason: { type: 'string', value: 'TEXT', help: 'why the command is sent; the system shows it' },
  by: {
    type: 'string', value: 'TEXT', help: "the sender, instead of CONTROL_BY ('' for nobody)",
    parse: (_: string, text: string): string => tidy(text), // as servers report it: a control character is no sender
  },
} as const;

export type Sending = ValuesOf<typeof SENDING>;
type Limits = Pick<FollowOptions, 'within' | 'for'>;

/** The same options and one that waits, too. */
export function withWaiting<const T extends Options>(own: T): typeof SENDING & T {
  const { timeout } = SENDING;
  const help = timeout.help.replace('--wait', `--wait and --${Object.keys(own)[0]}`);
  return { ...SENDING, timeout: { ...timeout, help }, ...own } as typeof SENDING & T;
}

/**
 * @param waits Whether another option than --wait waits.
 * @throws {UsageError} If there is a time limit although nothing waits.
 */
export function checkSending(verb: string, { timeout, wait }: Sending, waits: boolean = false): void {
  if (timeout === undefined || wait === true || waits) return;
  throw new UsageError(`--timeout requires --wait: ${verb} does not wait without it`);
}

/** @throws {UsageError} If nobody holds the pause that the option is about. */
export function checkSender(option: 'for' | 'until' | 'mine', { by = BY }: Sending): void {
  if (by === '') throw new UsageError(`--${option} requires a sender: --by and CONTROL_BY must not be empty`);
}

export function optionsOf(values: Sending & Limits, { label }: Target): FollowOptions {
  const { wait = false, timeout, by = BY, reason, within, for: duration } = values;
  const usualMs = Math.min(OUTCOME_TIMEOUT_MS + 1000 * (within ?? 0), 1000 * ((duration ?? Infinity) + 1));
  const isExpiring = wait && timeout !== undefined && within === undefined;
  const limit = isExpiring ? expireIn(timeout) : { timeoutMs: timeout ?? usualMs };
  const output = label === '' && process.stderr.isTTY ? process.stderr : undefined;
  return { ...limit, by, reason, output, within, for: duration };
}

/** The wait is a second longer, for the report that a command has expired. */
function expireIn(limitMs: number): Pick<FollowOptions, 'expires' | 'timeoutMs'> {
  const seconds = Math.ceil(limitMs / 1000);
  return { expires: Math.min(seconds, MAX_EXPIRES_S), timeoutMs: (seconds + 1) * 1000 };
}

// ───── Commands ──────────────────────────────────────────────────────────────────────────────────────────────────

/** Sends a command and, with `--wait`, waits until it is done. */
export async function send(
  target: Target, command: string, values: Sending & Limits, given?: object,
): Promise<Outcome> {
  const options = { ...optionsOf(values, target), arguments: given };
  if (values.wait === true) return finish(target.client, command, options);
  const { by, reason, within, for: duration } = options;
  const refused = limitOf(options) && refuseLimit(command, options, await target.client.request('info'));
  if (refused) return refused;
  const reply = await target.client.request(command, { arguments: given, by, reason, within, for: duration });
  return reply.ok ? { exitCode: EXIT.DONE, text: reply.value, json: { result: reply.original } } : failure(reply);
}

const EXIT_CODES: Record<Followed['outcome'], number> = {
  done: EXIT.DONE, failed: EXIT.REFUSED, pending: EXIT.NOT_REACHED, offline: EXIT.OFFLINE, unanswered: EXIT.NO_ANSWER,
};

const MINORS: Readonly<Record<string, number>> = { '--within': 26, '--for or --until': 27 };

/** The outcome of a command with an option unless the server is a control.ts that knows it; null to send it. */
export function refuse(command: string, option: string, reply: PrintableReply): Outcome | null {
  const minor = MINORS[option] ?? 18;
  const isKnown = reply.ok ? isCurrent(reply.body, minor) : reply.fault !== 'lacking';
  if (isKnown) return reply.ok ? null : notSent(command, reply);
  const error = `${option} requires a server with control.ts 0.${minor} or later: leave it out`; // others ignore it
  return { exitCode: EXIT.USAGE, json: { error }, error };
}

/** The option for a time limit that a server may ignore; empty if there is none. */
function limitOf({ expires, within, for: duration }: FollowOptions): string {
  if (duration !== undefined) return '--for or --until';
  return within !== undefined ? '--within' : expires !== undefined ? '--timeout' : '';
}

/** The outcome of a command with such a limit; null to send it. */
function refuseLimit(command: string, options: FollowOptions, reply: PrintableReply): Outcome | null {
  const option = limitOf(options);
  const mayBeSent = reply.fault === 'offline' && options.for === undefined; // a server that starts just now may be old
  return option === '' || mayBeSent ? null : refuse(command, option, reply);
}

/** The outcome of a command that is not sent because the request that precedes it has failed. */
export function notSent(command: string, reply: FailedReply): Outcome {
  const [error = '', original = ''] = [reply.error, reply.original].map((text) => `${command} not sent: ${text}`);
  return failure({ ...reply, error, original });
}

/** Sends a command, and waits until it is done. */
export async function finish(client: PrintableClient, command: string, options: FollowOptions): Promise<Outcome> {
  const isEndless = command === 'pause' && options.for === undefined;
  const before = isEndless || limitOf(options) ? await client.request('info', { signal: options.signal }) : null;
  const refused = before === null ? null : refuseLimit(command, options, before);
  if (refused !== null) return refused;
  const followed = await follow(client, command, options);
  const { outcome, value, status, summary, received, seconds } = followed;
  const exitCode = followed.isInvalid ? EXIT.USAGE : EXIT_CODES[outcome];
  const json = { ...received, seconds: Number(seconds.toFixed(3)), status: status?.statusName };
  const error = received.error ?? summary;
  if (exitCode !== EXIT.DONE) return { exitCode, json: { ...json, error }, error: summary };
  if (summary !== '') return { exitCode, text: summary, json };
  const isShown = options.output !== undefined && process.stdout.isTTY; // follow() has shown it on the same terminal
  const isObject = Object(received.value) === received.value; // not truncated, because scripts parse it
  const isOmitted = received.valueOmitted !== undefined; // scripts must not take the reason for the value
  const given = isOmitted ? '' : value;
  const returned = isObject ? printableJson(received.value as object) : given || 'ok';
  const reached = command === 'shutdown' ? describeDone(command, given) : String(status); // what the last save returned
  const lost = isEndless && before?.ok === true ? endLost(before.body, options.by) : '';
  const text = GOALS.has(command) ? reached + lost : returned;
  if (isShown && lost === '') return { exitCode, text: '', json };
  return { exitCode, text, json, ...(isOmitted && { error: `${command} is done, its value is missing ${value}` }) };
}

/** Releases the pause of the sender, which resumes the system if nobody else has paused it. */
export async function resumeMine(target: Target, values: Sending): Promise<Outcome> {
  const { client } = target;
  const reply = await client.request('info');
  const refused = refuse('resume', '--mine', reply);
  if (refused !== null) return refused;
  const isPausing = commandsOf(reply.body).some((entry) => entry['command'] === 'pause' && !hasEnded(entry));
  const before = statusNameOf(reply);
  if (before === 'active' && !isPausing) return { exitCode: EXIT.DONE, text: before, json: { status: before } };
  const options = { ...optionsOf(values, target), mine: true, output: undefined };
  const resumed = await finish(client, 'resume', options);
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
