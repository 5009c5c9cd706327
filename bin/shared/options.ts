// Shared by all programs: exit codes, error messages, command-line options, the client.

import { hostname, userInfo } from 'node:os';
import { parseArgs } from 'node:util';
import { DEFAULT_HOST, DEFAULT_PORT, SystemStatus, VERSION, WebApiClient } from '../../control.ts';
import { excerpt, printable } from './text.ts';
import type { ParseArgsConfig } from 'node:util';
import type { WebApiReply } from '../../control.ts';

// ───── Exit codes ────────────────────────────────────────────────────────────────────────────────────────────────

export const EXIT = { DONE: 0, REFUSED: 1, USAGE: 2, OFFLINE: 3, NOT_REACHED: 4 } as const;

/** A usage error: one line that names the option, the expected value and the value received. */
export class UsageError extends Error {}

/** Runs a program. `main` returns the exit code. */
export async function run(program: string, main: () => Promise<number>): Promise<void> {
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') return; // `… | head -1` must not fail
    if (error.code === 'EIO' && process.stdout.isTTY) return; // nor a program whose terminal was closed
    console.error(`${program}: cannot write to standard output: ${error.message}`);
    process.exit(EXIT.REFUSED);
  });
  try {
    process.exitCode = await main();
  } catch (error) {
    process.exitCode = error instanceof UsageError ? EXIT.USAGE : EXIT.REFUSED;
    const message = error instanceof Error ? error.message : String(error);
    console.error(`${program}: ${printable(message)}`); // values may contain line breaks
  }
}

// ───── The command line ──────────────────────────────────────────────────────────────────────────────────────────

type OptionsConfig = NonNullable<ParseArgsConfig['options']>;
type Parsed<T extends OptionsConfig> = ReturnType<
  typeof parseArgs<{ options: T; strict: true; allowPositionals: true }>
>;

/**
 * Parses the command line. Handles `--help` and `--version` itself and then returns null.
 *
 * @throws {UsageError} If an option is unknown or lacks its value, or if there are more than `maxPositionals`
 *   positional arguments.
 */
export function parseOptions<const T extends OptionsConfig>(
  options: T,
  help: string,
  maxPositionals: number = 0,
): Parsed<T> | null {
  const common = { help: { type: 'boolean', short: 'h' }, version: { type: 'boolean' } } as const;
  let parsed;
  try {
    parsed = parseArgs({ options: { ...options, ...common }, strict: true, allowPositionals: true });
  } catch (error) {
    throw new UsageError(`${describeParseError(error as NodeJS.ErrnoException)}; see --help`);
  }
  const { help: wantsHelp, version: wantsVersion } = parsed.values as { help?: boolean; version?: boolean };
  if (wantsHelp || wantsVersion) {
    console.log(wantsHelp ? help.trim() : VERSION);
    return null;
  }
  const extra = parsed.positionals[maxPositionals];
  if (extra !== undefined) throw new UsageError(`unexpected argument '${extra}'; see --help`);
  return parsed as unknown as Parsed<T>;
}

/** The first sentence of a parseArgs error, in the style of the other messages. */
function describeParseError(error: NodeJS.ErrnoException): string {
  const option = /'(?:-\w, )?(--[^' ]*)/.exec(error.message)?.[1] ?? '';
  if (error.message.includes('ambiguous')) {
    return `${option} requires a value (write ${option}=VALUE if it starts with a dash)`;
  }
  if (error.message.includes('argument missing')) return `${option} requires a value`;
  const sentence = error.message.split(/[.\n]\s/)[0] as string;
  return sentence.charAt(0).toLowerCase() + sentence.slice(1);
}

// ───── Access to the web API ─────────────────────────────────────────────────────────────────────────────────────

interface TextOption {
  type: 'string';
}

/** Options of every program: the address of the web API. */
export const ADDRESS_OPTIONS: { host: TextOption; port: TextOption; socket: TextOption } = {
  host: { type: 'string' },
  port: { type: 'string' },
  socket: { type: 'string' },
};

/**
 * The token. It comes from the environment variable CONTROL_TOKEN, because every user of the machine can read a command
 * line. The variable is deleted at once, so that no process that a program starts inherits it.
 */
export const TOKEN: string | undefined = process.env['CONTROL_TOKEN'] || undefined;
delete process.env['CONTROL_TOKEN'];

/** Who sends the commands, for the server's list: `ana@laptop`. An empty text tells nothing. */
export const BY: string = process.env['CONTROL_BY'] ?? `${userName()}@${hostname()}`;

function userName(): string {
  try {
    return userInfo().username;
  } catch {
    return String(process.geteuid?.()); // in a container, the user may have a number only
  }
}

/** The address of the web API, and its token. */
export interface Access {
  host: string;
  port: number;
  socketPath: string | undefined;
  token: string | undefined;
}

/** @throws {UsageError} If an address option or CONTROL_TOKEN is invalid. */
export function createClient(values: Parameters<typeof parseAccess>[0], timeoutMs?: number): PrintableClient {
  const { host, port, socketPath, token } = parseAccess(values, 1);
  return new PrintableClient(host, port, { timeout: timeoutMs, socketPath, token });
}

/**
 * Parses `--host`, `--port` and `--socket`, and checks the token.
 *
 * @throws {UsageError} If one of them is invalid.
 */
export function parseAccess(values: Partial<Record<'host' | 'port' | 'socket', string>>, minPort: number): Access {
  const { port, socket: socketPath } = values;
  const host = values.host?.replace(/^\[(.*)\]$/, '$1') ?? DEFAULT_HOST; // an IPv6 address may be written as in a URL
  if (socketPath !== undefined && (values.host ?? port) !== undefined) {
    throw new UsageError('--socket replaces --host and --port: give one or the other');
  }
  try {
    new WebApiClient(host, undefined, { socketPath, token: TOKEN });
  } catch (error) {
    const names: Record<string, string> = { host: '--host', socketPath: '--socket', token: 'CONTROL_TOKEN' };
    throw new UsageError((error as Error).message.replace(/^\w+/, (name) => names[name] ?? name));
  }
  return {
    host,
    port: port === undefined ? DEFAULT_PORT : parseInteger('--port', port, minPort, 65535),
    socketPath,
    token: TOKEN,
  };
}

// ───── Replies ───────────────────────────────────────────────────────────────────────────────────────────────────

/** Shown as the status of a system that responds, but with none of the statuses below. */
export const UNKNOWN = 'unknown';

/** The statuses that servers send. */
export const STATUS_NAMES: readonly string[] = Object.values(SystemStatus)
  .filter((status) => status !== SystemStatus.OFFLINE)
  .map(({ statusName }) => statusName);

/** Why `UNKNOWN` is shown. */
export function describeUnknown(status: string): string {
  return `the status must be one of ${STATUS_NAMES.join(', ')}, got '${excerpt(status)}'`;
}

/** `value` and `error` are safe to print; `original` is the same text as received, and `body` all that was received. */
export type PrintableReply = WebApiReply & { readonly original: string };

/** The client of all programs. Its replies are safe to print, because any program may listen at the address. */
export class PrintableClient extends WebApiClient {
  override async request(...args: Parameters<WebApiClient['request']>): Promise<PrintableReply> {
    const reply = await super.request(...args);
    if (!reply.ok && args[0] === 'info' && reply.statusCode === 404) {
      const error = 'the server is of version 0.2 or older, which tells its status only';
      return { ...reply, answered: true, error, original: error };
    }
    if (!reply.ok) {
      const error = reply.answered ? excerpt(reply.error) : printable(reply.error);
      return { ...reply, error, original: reply.error };
    }
    const isUnknown = args[0] === 'status' && !STATUS_NAMES.includes(reply.value);
    return { ...reply, value: isUnknown ? UNKNOWN : excerpt(reply.value), original: reply.value };
  }
}

// ───── Values ────────────────────────────────────────────────────────────────────────────────────────────────────

/** @throws {UsageError} If the text is not a decimal integer in the range. */
export function parseInteger(option: string, text: string, min: number, max: number): number {
  const value = Number(text);
  if (/^\d+$/.test(text) && value >= min && value <= max) return value;
  throw new UsageError(`${option} must be an integer from ${min} to ${max}, got '${text}'`);
}

/** @throws {UsageError} If the text is not a decimal number in the range of Node's timers. */
export function parseSeconds(option: string, text: string): number {
  const value = Number(text);
  if (/^\d+(\.\d*)?$|^\.\d+$/.test(text) && value > 0 && value <= 2_147_483) return value;
  throw new UsageError(`${option} must be a number of seconds above 0 and at most 2147483, got '${text}'`);
}

/** @throws {UsageError} If the text is empty. */
export function parseText(option: string, text: string): string {
  if (text === '') throw new UsageError(`${option} must not be empty`);
  return text;
}
