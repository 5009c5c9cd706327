#!/usr/bin/env node
// control-client: one command and an exit code, for scripts.

import { SystemStatus } from '../control.ts';
import { follow, TARGETS } from './shared/follow.ts';
import { ADDRESS_OPTIONS, clientFor, EXIT, parseOptions, parseSeconds, run, UsageError } from './shared/options.ts';
import type { ControlCommand, WebApiClient } from '../control.ts';

const HELP = `
Usage: control-client [options] status|pause|resume|save-state|shutdown

Asks a running system for its status, or sends it one command.

  --host HOST        host name or address of the system (default localhost)
  --port PORT        port of its web API (default 8391)
  --socket PATH      Unix socket of its web API, in place of host and port
  --wait             pause, resume, shutdown: wait until the system is paused, active, gone
  --timeout SECONDS  how long to wait at most (default 30)
  --json             print the outcome as one line of JSON
  -h, --help         show this
  --version          show the version

If the system wants a token, CONTROL_TOKEN in the environment holds it.

Exit codes:
  0  done
  1  refused: the queue is full, or the system reports an error
  2  wrong usage
  3  offline: nothing answers at that address
  4  --wait: not reached in time, or not to be reached any more
`;

const ENDPOINTS = ['status', 'pause', 'resume', 'save-state', 'shutdown'] as const;
const REQUEST_TIMEOUT_MS = 5000;

/** What there is to print: all of it with `--json`, else the status or the result. */
interface Outcome {
  result?: string;
  status?: string;
  seconds?: number;
  error?: string;
}

void run('control-client', async () => {
  const options = {
    ...ADDRESS_OPTIONS,
    wait: { type: 'boolean', default: false },
    timeout: { type: 'string', default: '30' },
    json: { type: 'boolean', default: false },
  } as const;
  const parsed = parseOptions(options, HELP, 1);
  if (parsed === null) return EXIT.DONE;
  const { values, positionals } = parsed;
  const endpoint = parseEndpoint(positionals[0]);
  const timeoutMs = parseSeconds('--timeout', values.timeout) * 1000;
  const target = values.wait ? targetOf(endpoint) : null;
  const client = clientFor(values, Math.min(timeoutMs, REQUEST_TIMEOUT_MS));

  const [exitCode, outcome] = await execute(client, endpoint, target, timeoutMs);
  const word = exitCode === EXIT.DONE || endpoint === 'status' ? (outcome.status ?? outcome.result) : undefined;
  if (values.json) console.log(JSON.stringify(outcome));
  else if (word !== undefined) console.log(word);
  if (outcome.error !== undefined) console.error(`control-client: ${outcome.error}`);
  return exitCode;
});

async function execute(
  client: WebApiClient,
  endpoint: 'status' | ControlCommand,
  target: SystemStatus | null,
  timeoutMs: number,
): Promise<[exitCode: number, Outcome]> {
  const reply = await client.request(endpoint);
  if (!reply.ok) {
    const offline = endpoint === 'status' && !reply.answered ? { status: SystemStatus.OFFLINE.statusName } : {};
    return [reply.answered ? EXIT.REFUSED : EXIT.OFFLINE, { ...offline, error: reply.error }];
  }
  if (endpoint === 'status') return [EXIT.DONE, { status: reply.value }];
  if (target === null) return [EXIT.DONE, { result: reply.value }];

  const output = process.stderr.isTTY ? process.stderr : undefined;
  const { reached, status, seconds, summary } = await follow(client, target, { timeoutMs, output });
  const outcome: Outcome = { result: reply.value, seconds: Number(seconds.toFixed(3)) };
  if (status !== null) outcome.status = status.statusName;
  if (reached) return [EXIT.DONE, outcome];
  return [status === SystemStatus.OFFLINE ? EXIT.OFFLINE : EXIT.NOT_REACHED, { ...outcome, error: summary }];
}

function parseEndpoint(word: string | undefined): 'status' | ControlCommand {
  const endpoint = ENDPOINTS.find((one) => one === word);
  if (endpoint !== undefined) return endpoint;
  const got = word === undefined ? 'got none' : `got '${word}'`;
  throw new UsageError(`the command must be one of ${ENDPOINTS.join(', ')}; ${got}`);
}

function targetOf(endpoint: 'status' | ControlCommand): SystemStatus {
  const target = endpoint === 'status' ? undefined : TARGETS[endpoint];
  if (target !== undefined) return target;
  throw new UsageError(`--wait goes with pause, resume and shutdown; ${endpoint} leads to no state to wait for`);
}
