// `control-run ask`: a script asks whoever controls the program it is part of, and waits for the answer.

import { writeSync } from 'node:fs';
import { connect } from 'node:net';
import { describeOptions, type Options, parseDuration, parseOptions, UsageError } from '../shared/cli.ts';
import { describeAuthor } from '../shared/describe.ts';
import { excerpt, isRecord, MAX_VALUE_LENGTH, printableJson } from '../shared/text.ts';

const CODES = { YES: 0, NO: 1, EXPIRED: 4, WITHDRAWN: 5 } as const;
const SOON_MS = 200; // a refusal comes sooner

const OPTIONS = {
  timeout: {
    type: 'string', value: 'SECONDS', help: 'the question expires after this time (default: never)',
    parse: (option, text) => parseDuration(option, text) / 1000,
  },
  parameters: {
    type: 'string', value: 'JSON',
    help: `what the answer consists of, and is printed as: '{"file":{"type":"string"}}' (default: yes or no)`,
    parse: parseJson,
  },
  key: { type: 'string', value: 'KEY', help: 'names a decision: its answer, also a no, is for ever' },
} as const satisfies Options;

const HELP = `
Usage: control-run ask MESSAGE [options]

Asks whoever controls the program, and waits for the answer. For any process of a program under control-run.

  control-run ask 'Deploy build 4711?' --timeout 15m && deploy

${describeOptions(OPTIONS)}

SECONDS may have a unit: 90s, 30m, 2h.

A pause leaves the question open, and its time goes on. To withdraw it, end this process.

Exit codes: 0 yes, or the answer to --parameters; 1 no, 2 usage error or not under control-run, 4 expired, 5 withdrawn.
`;

/**
 * Asks. Returns the exit code.
 *
 * @param say Prints a line for people.
 * @throws {UsageError} If nobody can be asked, or the question is refused.
 */
export async function askFromShell(args: readonly string[], say: (message: string) => void): Promise<number> {
  const parsed = parseOptions(OPTIONS, HELP, 1, args);
  if (parsed === null) return 0;
  const { values: { timeout, parameters, key }, positionals: [message] } = parsed;
  if (message === undefined) throw new UsageError('MESSAGE is missing; see control-run ask --help');
  const question = JSON.stringify({ message, timeout, parameters, key });
  const path = process.env['CONTROL_RUN_SOCKET'];
  if (!path) throw new UsageError('nobody can answer: not under control-run, which sets CONTROL_RUN_SOCKET');
  const timer = setTimeout(() => say(`waits for an answer: ${excerpt(message, MAX_VALUE_LENGTH)}`), SOON_MS);
  const { error, arguments: values, ...author } = await exchange(path, question).finally(() => clearTimeout(timer));
  if (error === 'expired' || String(error).startsWith('withdrawn')) {
    say(String(error));
    return error === 'expired' ? CODES.EXPIRED : CODES.WITHDRAWN;
  }
  if (!isRecord(values)) throw new UsageError(String(error));
  const isYes = values['approved'] === true;
  say(`${parameters !== undefined ? 'answered' : isYes ? 'yes' : 'no'}${describeAuthor(author)}`);
  // A stream would make a pipe non-blocking, also for the other commands of a script.
  if (parameters !== undefined) writeSync(1, `${printableJson(values)}\n`);
  return isYes || parameters !== undefined ? CODES.YES : CODES.NO;
}

function parseJson(option: string, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new UsageError(`${option} must be JSON, got '${text}'`);
  }
}

/**
 * Sends the question, and returns the reply.
 *
 * @throws {UsageError} If control-run cannot be reached.
 */
async function exchange(path: string, question: string): Promise<Record<string, unknown>> {
  let [reply, error, isConnected] = ['', '', false];
  const socket = connect(path, () => (isConnected = true)).setEncoding('utf8');
  socket.on('data', (text) => (reply += text)).on('error', ({ message }) => (error = message));
  socket.write(`${question}\n`);
  await new Promise((resolve) => socket.on('close', resolve));
  if (!isConnected) throw new UsageError(`nobody can answer: cannot reach control-run: ${error}`);
  return reply === '' ? { error: 'withdrawn: control-run was killed' } : JSON.parse(reply) as Record<string, unknown>;
}
