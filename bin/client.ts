#!/usr/bin/env node
// control-client: sends one request and exits with a code, for scripts.

import { SystemStatus } from '../control.ts';
import { follow, TARGETS } from './shared/follow.ts';
import {
  ADDRESS_OPTIONS, createClient, EXIT, parseOptions, parseSeconds, run, STATUS_NAMES, UNKNOWN, UsageError,
} from './shared/options.ts';
import { excerpt, printableJson } from './shared/text.ts';
import type { ControlCommand } from '../control.ts';
import type { PrintableClient } from './shared/options.ts';

const HELP = `
Usage: control-client [options] status|pause|resume|save-state|shutdown

Prints the status of a running system, or sends it one command.

  --host HOST        host name or IP address of the system (default localhost)
  --port PORT        port of its web API (default 8391)
  --socket PATH      Unix socket of its web API; replaces --host and --port
  --wait             pause, resume, shutdown: wait until the system is paused, active, offline
  --timeout SECONDS  time limit of --wait (default 30), and of a request if below 5
  --json             print the outcome as one line of JSON
  -h, --help         print this help
  --version          print the version

If the system requires a token, set the environment variable CONTROL_TOKEN.

Exit codes:
  0  success
  1  refused: the queue is full, the token is wrong, or the system reports an error or an unknown status
  2  usage error
  3  offline: nothing responds at that address
  4  --wait: the status was not reached in time, or can no longer be reached
`;

const OPTIONS = {
  ...ADDRESS_OPTIONS,
  wait: { type: 'boolean', default: false },
  timeout: { type: 'string', default: '30' },
  json: { type: 'boolean', default: false },
} as const;

const ENDPOINTS = ['status', 'pause', 'resume', 'save-state', 'shutdown'] as const;
const REQUEST_TIMEOUT_MS = 5000;

type Endpoint = (typeof ENDPOINTS)[number];

/** The fields of the JSON that `--json` prints. */
interface Outcome {
  result?: string;
  status?: string;
  seconds?: number;
  error?: string;
}

async function main(): Promise<number> {
  const parsed = parseOptions(OPTIONS, HELP, 1);
  if (parsed === null) return EXIT.DONE;
  const { values, positionals } = parsed;
  const endpoint = parseEndpoint(positionals[0]);
  const timeoutMs = parseSeconds('--timeout', values.timeout) * 1000;
  const target = values.wait ? targetOf(endpoint) : null;
  const client = createClient(values, Math.min(timeoutMs, REQUEST_TIMEOUT_MS));

  const [exitCode, outcome, received] = await execute(client, endpoint, target, timeoutMs);
  const word = exitCode === EXIT.DONE || endpoint === 'status' ? (outcome.status ?? outcome.result) : undefined;
  if (values.json) console.log(printableJson({ ...outcome, ...received }));
  else if (word !== undefined) console.log(word);
  if (outcome.error !== undefined) console.error(`control-client: ${outcome.error}`);
  return exitCode;
}

/** Returns an outcome that is safe to print, and those of its texts that came from the server, as received. */
async function execute(
  client: PrintableClient,
  endpoint: Endpoint,
  target: SystemStatus | null,
  timeoutMs: number,
): Promise<[exitCode: number, outcome: Outcome, received: Outcome]> {
  const reply = await client.request(endpoint);
  if (!reply.ok) {
    const offline = endpoint === 'status' && !reply.answered ? { status: SystemStatus.OFFLINE.statusName } : {};
    const exitCode = reply.answered ? EXIT.REFUSED : EXIT.OFFLINE;
    return [exitCode, { ...offline, error: reply.error }, { error: reply.original }];
  }
  if (endpoint === 'status') {
    if (reply.value !== UNKNOWN) return [EXIT.DONE, { status: reply.value }, {}];
    const error = `the status must be one of ${STATUS_NAMES.join(', ')}, got '${excerpt(reply.original)}'`;
    return [EXIT.REFUSED, { status: UNKNOWN, error }, { status: reply.original }];
  }
  const received = { result: reply.original };
  if (target === null) return [EXIT.DONE, { result: reply.value }, received];

  const output = process.stderr.isTTY ? process.stderr : undefined;
  const { reached, status, seconds, summary } = await follow(client, target, { timeoutMs, output });
  const outcome: Outcome = { result: reply.value, seconds: Number(seconds.toFixed(3)) };
  if (status !== null) outcome.status = status.statusName;
  if (reached) return [EXIT.DONE, outcome, received];
  const exitCode = status === SystemStatus.OFFLINE ? EXIT.OFFLINE : EXIT.NOT_REACHED;
  return [exitCode, { ...outcome, error: summary }, received];
}

function parseEndpoint(word: string | undefined): Endpoint {
  const endpoint = ENDPOINTS.find((one) => one === word);
  if (endpoint !== undefined) return endpoint;
  const got = word === undefined ? 'nothing' : `'${word}'`;
  throw new UsageError(`the command must be one of ${ENDPOINTS.join(', ')}, got ${got}`);
}

function targetOf(endpoint: Endpoint): SystemStatus {
  const target = TARGETS[endpoint as ControlCommand];
  if (target !== undefined) return target;
  throw new UsageError(`--wait requires pause, resume or shutdown, got '${endpoint}'`);
}

void run('control-client', main);
