#!/usr/bin/env node
// control-client: sends one request and exits with a code, for scripts.

import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../control.ts';
import { commandsOf, describeAuthor, describeCommand, describeInfo, describeStatus } from './shared/describe.ts';
import { describeCurrent, follow } from './shared/follow.ts';
import {
  ADDRESS_OPTIONS, BY, createClient, describeUnknown, EXIT, parseOptions, parseSeconds, run, UNKNOWN, UsageError,
} from './shared/options.ts';
import { excerptOf, printableJson } from './shared/text.ts';
import type { ControlCommand, RequestOptions } from '../control.ts';
import type { FollowOptions } from './shared/follow.ts';
import type { PrintableClient, PrintableReply } from './shared/options.ts';

const HELP = `
Usage: control-client [options] status|info|watch
       control-client [options] pause|resume|save-state|shutdown
       control-client [options] wait STATUS

Tells what a running system is doing, sends it one command, or waits for a status: active, pausing, paused, resuming,
shutting-down or offline.

  status             the status; on a terminal also since when, by whom, and what waits for it
  info               everything that is known of the system, and its latest commands
  watch              a line for each new status and each command that is done, until interrupted

  --host HOST        host name or IP address of the system (default localhost)
  --port PORT        port of its web API (default 8391)
  --socket PATH      Unix socket of its web API; replaces --host and --port
  --wait             wait until the command is done, and print the status or what was saved
  --timeout SECONDS  time limit of --wait and wait (default 30), and of a request if below 5
  --reason TEXT      why the command is sent; the system shows it
  --by TEXT          who sends it (default: CONTROL_BY, or user@machine; '' for nobody)
  --json             print the outcome as one line of JSON; watch: a line for each change
  -h, --help         print this help
  --version          print the version

If the system requires a token, set the environment variable CONTROL_TOKEN.

Exit codes:
  0  success
  1  refused or failed: the queue is full, the token is wrong, the command failed, the status is unknown, …
  2  usage error
  3  offline: nothing responds at that address
  4  --wait, wait: not done or not reached in time, or no longer possible
`;

const OPTIONS = {
  ...ADDRESS_OPTIONS,
  wait: { type: 'boolean' },
  timeout: { type: 'string', default: '30' },
  reason: { type: 'string' },
  by: { type: 'string' },
  json: { type: 'boolean', default: false },
} as const;

const COMMANDS: readonly ControlCommand[] = ['pause', 'resume', 'save-state', 'shutdown'];
const QUESTIONS = ['status', 'info', 'watch', 'wait'] as const;
const REQUEST_TIMEOUT_MS = 5000;
const WATCH_WAIT_S = 1; // a program that neither polls nor yields reports no change unless asked
const WATCH_PAUSE_MS = 10; // between two requests
const WATCH_RETRY_MS = 250; // if the system is offline, or its server cannot wait

/** The JSON of `--json` as received, the text otherwise, and an error that is safe to print. */
type Executed = [exitCode: number, text: string, json: object | null, error?: string];

async function main(): Promise<number> {
  const parsed = parseOptions(OPTIONS, HELP, 2);
  if (parsed === null) return EXIT.DONE;
  const { values, positionals: [word, goal] } = parsed;
  const question = QUESTIONS.find((one) => one === word);
  const command = COMMANDS.find((one) => one === word) as ControlCommand; // or else it is a question
  if (command === undefined && question === undefined) {
    const got = word === undefined ? 'nothing' : `'${word}'`;
    throw new UsageError(`the command must be one of ${[...QUESTIONS, ...COMMANDS].join(', ')}, got ${got}`);
  }
  if (goal !== undefined && question !== 'wait') throw new UsageError(`unexpected argument '${goal}'; see --help`);
  for (const option of ['wait', 'reason', 'by'] as const) {
    if (command !== undefined || values[option] === undefined) continue;
    throw new UsageError(`--${option} requires ${COMMANDS.join(', ').replace(/, (?=\w+$)/, ' or ')}, got '${word}'`);
  }
  const target = question === 'wait' ? parseStatus(goal) : null;
  const timeoutMs = parseSeconds('--timeout', values.timeout) * 1000;
  const client = createClient(values, Math.min(timeoutMs, REQUEST_TIMEOUT_MS));
  const { json, by = BY, reason } = values;
  const execute = async (): Promise<Executed> => {
    if (target !== null) return waitFor(client, target, timeoutMs);
    if (question === 'status') return getStatus(client, process.stdout.isTTY && !json);
    if (question === 'info') return getInfo(client);
    if (question === 'watch') return watch(client, json);
    if (values.wait !== true) return send(client, command, { by, reason });
    return finish(client, command, { timeoutMs, by, reason });
  };
  const [exitCode, text, outcome, error] = await execute();
  if (json && outcome !== null) console.log(printableJson(outcome));
  else if (text !== '') console.log(text);
  if (error !== undefined) console.error(`control-client: ${error}`);
  return exitCode;
}

function parseStatus(name: string | undefined): SystemStatus {
  const statuses = Object.values(SystemStatus);
  const status = statuses.find(({ statusName }) => statusName === name?.replace('-', ' '));
  if (status !== undefined) return status;
  const names = statuses.map(({ statusName }) => statusName.replace(' ', '-')).join(', ');
  throw new UsageError(`the status must be one of ${names}, got ${name === undefined ? 'nothing' : `'${name}'`}`);
}

// ───── Commands ──────────────────────────────────────────────────────────────────────────────────────────────────

async function send(client: PrintableClient, command: ControlCommand, options: RequestOptions): Promise<Executed> {
  const reply = await client.request(command, options);
  return reply.ok ? [EXIT.DONE, reply.value, { result: reply.original }] : fail(reply);
}

/** Sends a command, and waits until it is done. */
async function finish(client: PrintableClient, command: ControlCommand, options: FollowOptions): Promise<Executed> {
  const output = process.stderr.isTTY ? process.stderr : undefined;
  const followed = await follow(client, command, { ...options, output });
  const { state, value, status, summary, received } = followed;
  const seconds = Number(followed.seconds.toFixed(3));
  const outcome = { ...received, seconds, status: status?.statusName };
  if (state === 'done') return [EXIT.DONE, command === 'save-state' ? value || 'ok' : String(status), outcome];
  const isRefused = state === 'failed' || state === 'ended' || state === 'refused';
  const exitCode = isRefused ? EXIT.REFUSED : state === 'offline' ? EXIT.OFFLINE : EXIT.NOT_REACHED;
  return [exitCode, '', { ...outcome, error: received.error ?? summary }, summary];
}

// ───── Questions ─────────────────────────────────────────────────────────────────────────────────────────────────

/** Scripts compare the word on stdout, so people get more of it only where no script can read it. */
async function getStatus(client: PrintableClient, isForPeople: boolean): Promise<Executed> {
  const reply = await client.request('status');
  if (!reply.ok) return fail(reply, reply.answered ? '' : SystemStatus.OFFLINE.statusName);
  if (reply.value === UNKNOWN) {
    const error = describeUnknown(reply.original);
    return [EXIT.REFUSED, UNKNOWN, { status: reply.original, error }, error];
  }
  const known = isForPeople ? await client.request('info') : null;
  return [EXIT.DONE, known?.ok === true ? describeStatus(known.body) : reply.value, { status: reply.value }];
}

async function getInfo(client: PrintableClient): Promise<Executed> {
  const reply = await client.request('info');
  return reply.ok ? [EXIT.DONE, describeInfo(reply.body).join('\n'), reply.body] : fail(reply);
}

async function waitFor(client: PrintableClient, target: SystemStatus, timeoutMs: number): Promise<Executed> {
  const start = performance.now();
  const reply = await client.request('status');
  if (isDenied(reply)) return fail(reply);
  let status = null as SystemStatus | null;
  const timeout = Math.max(1, timeoutMs - (performance.now() - start));
  const options = { timeout, onStatus: (current: SystemStatus) => void (status = current) };
  const reached = await client.waitFor(target, options).then(() => true, (error: Error) => {
    if (error.name !== 'TimeoutError') throw error;
    return false;
  });
  const seconds = Number(((performance.now() - start) / 1000).toFixed(3));
  const outcome = { seconds, status: status?.statusName };
  if (reached) return [EXIT.DONE, target.statusName, outcome];
  const error = `not ${target} after ${seconds.toFixed(1)} s: ${describeCurrent(status)}`;
  return [EXIT.NOT_REACHED, '', { ...outcome, error }, error];
}

/** Prints a line for each new status and each command that is done. Ends when nobody reads them any more. */
async function watch(client: PrintableClient, json: boolean): Promise<Executed> {
  const closed = new AbortController();
  const { signal } = closed;
  process.stdout.once('error', () => closed.abort());
  const print = (text: string, change: object): void => {
    const time = new Date();
    const local = new Date(time.getTime() - time.getTimezoneOffset() * 60_000).toISOString();
    console.log(json ? printableJson({ time, ...change }) : `${local.slice(0, 19).replace('T', ' ')}  ${text}`);
  };
  let endpoint: 'info' | 'status' = 'info';
  let tag: string | undefined;
  let printed = ''; // the status printed last
  let known: Set<unknown> | null = null; // the finished commands of the latest list
  while (!signal.aborted) {
    const wait = tag === undefined ? undefined : WATCH_WAIT_S;
    const reply: PrintableReply = await client.request(endpoint, { tag, wait, signal });
    if (isDenied(reply)) return fail(reply);
    const isUnchanged = reply.ok && tag !== undefined && reply.tag === tag;
    if (!reply.ok && reply.statusCode === 404 && endpoint === 'info') {
      endpoint = 'status'; // a server of version 0.2 or older
      continue;
    }
    if (!isUnchanged && !signal.aborted) {
      const body = contentOf(reply, endpoint);
      const { status, by, reason, error, commands } = body;
      const name = excerptOf(status) || UNKNOWN;
      const why = reply.ok ? '' : `: ${reply.error}`;
      if (name !== printed) print(`${name}${describeAuthor(body)}${why}`, { status: name, by, reason, error });
      printed = name;
      if (commands !== undefined) {
        const finished = commandsOf(body).filter(({ state }) => state === 'done' || state === 'failed');
        const news = finished.filter(({ id }) => known?.has(id) === false);
        for (const entry of news) print(describeCommand(entry), entry);
        known = new Set(finished.map(({ id }) => id));
      }
    }
    tag = reply.ok ? reply.tag : undefined;
    if (!reply.ok) endpoint = 'info'; // whatever comes back
    await sleep(tag === undefined ? WATCH_RETRY_MS : WATCH_PAUSE_MS, undefined, { signal }).catch(() => {});
  }
  return [EXIT.DONE, '', null];
}

function contentOf(reply: PrintableReply, endpoint: 'info' | 'status'): Readonly<Record<string, unknown>> {
  if (reply.ok) return endpoint === 'info' ? reply.body : { status: reply.original };
  return { status: reply.answered ? UNKNOWN : SystemStatus.OFFLINE.statusName, error: reply.original };
}

// ───── Failures ──────────────────────────────────────────────────────────────────────────────────────────────────

function isDenied(reply: PrintableReply): boolean {
  return !reply.ok && (reply.statusCode === 401 || reply.statusCode === 403);
}

function fail(reply: PrintableReply, status: string = ''): Executed {
  const { error, answered } = reply as Extract<PrintableReply, { ok: false }>;
  const outcome = { status: status || undefined, error: reply.original };
  return [answered ? EXIT.REFUSED : EXIT.OFFLINE, status, outcome, error];
}

void run('control-client', main);
