// What the programs share: exit codes, messages, options.

import { isIP } from 'node:net';
import { parseArgs } from 'node:util';
import { DEFAULT_HOST, DEFAULT_PORT, VERSION, WebApiClient } from '../../control.ts';
import type { ParseArgsConfig } from 'node:util';

// ───── Exit codes ────────────────────────────────────────────────────────────────────────────────────────────────

export const EXIT = { DONE: 0, REFUSED: 1, USAGE: 2, OFFLINE: 3, NOT_REACHED: 4 } as const;

/** Wrong use of a program: one line that names the input, what is wrong with it and what would be right. */
export class UsageError extends Error {}

/** Runs a program. What it returns is the exit code. */
export async function run(program: string, main: () => Promise<number>): Promise<void> {
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') return; // a reader that has seen enough (`… | head -1`) changes nothing
    console.error(`${program}: cannot write to standard output: ${error.message}`);
    process.exit(EXIT.REFUSED);
  });
  try {
    process.exitCode = await main();
  } catch (error) {
    process.exitCode = error instanceof UsageError ? EXIT.USAGE : EXIT.REFUSED;
    const message = error instanceof Error ? error.message : String(error);
    console.error(`${program}: ${message.replaceAll(/[\x00-\x1f\x7f]+/g, ' ')}`); // one line, whatever was given
  }
}

// ───── Options ───────────────────────────────────────────────────────────────────────────────────────────────────

type OptionsConfig = NonNullable<ParseArgsConfig['options']>;
type Parsed<T extends OptionsConfig> = ReturnType<
  typeof parseArgs<{ options: T; strict: true; allowPositionals: true }>
>;

interface TextOption {
  type: 'string';
}

/** Options of every program: where the web API is. */
export const ADDRESS_OPTIONS: { host: TextOption; port: TextOption; socket: TextOption } = {
  host: { type: 'string' },
  port: { type: 'string' },
  socket: { type: 'string' },
};

/**
 * Reads the command line. Answers `--help` and `--version` itself: then it returns null.
 *
 * @throws {UsageError} If an option is unknown, lacks its value, or there are more than `words` other words.
 */
export function parseOptions<const T extends OptionsConfig>(
  options: T,
  help: string,
  words: number = 0,
): Parsed<T> | null {
  const common = { help: { type: 'boolean', short: 'h' }, version: { type: 'boolean' } } as const;
  let parsed;
  try {
    parsed = parseArgs({ options: { ...options, ...common }, strict: true, allowPositionals: true });
  } catch (error) {
    throw new UsageError(`${explain(error as NodeJS.ErrnoException)}; --help lists the options`);
  }
  const { help: wantsHelp, version: wantsVersion } = parsed.values as { help?: boolean; version?: boolean };
  if (wantsHelp || wantsVersion) {
    console.log(wantsHelp ? help.trim() : VERSION);
    return null;
  }
  const extra = parsed.positionals[words];
  if (extra !== undefined) throw new UsageError(`unexpected argument '${extra}'; --help lists the options`);
  return parsed as unknown as Parsed<T>;
}

/** The first sentence of what parseArgs has to say, as part of a line. */
function explain(error: NodeJS.ErrnoException): string {
  const option = /'(?:-\w, )?(--[^' ]*)/.exec(error.message)?.[1] ?? '';
  if (error.message.includes('ambiguous')) return `${option} needs a value (one that starts with a dash goes after =)`;
  if (error.message.includes('argument missing')) return `${option} needs a value`;
  const sentence = error.message.split(/[.\n]\s/)[0] as string;
  return sentence.charAt(0).toLowerCase() + sentence.slice(1);
}

/** @throws {UsageError} If the text is not a decimal integer in that range. */
export function parseInteger(option: string, text: string, least: number, most: number): number {
  const value = Number(text);
  if (/^\d+$/.test(text) && value >= least && value <= most) return value;
  throw new UsageError(`${option} must be an integer from ${least} to ${most}, got '${text}'`);
}

/** @throws {UsageError} If the text is not a decimal number above 0, or is more than node's timers can take. */
export function parseSeconds(option: string, text: string): number {
  const value = Number(text);
  if (/^\d+(\.\d*)?$|^\.\d+$/.test(text) && value > 0 && value <= 2_147_483) return value;
  throw new UsageError(`${option} must be a number of seconds above 0, at most 2147483, got '${text}'`);
}

/**
 * A host name or an address, the latter also in the brackets of a URL.
 *
 * @throws {UsageError} If it is neither.
 */
export function parseHost(option: string, text: string): string {
  const host = text.replace(/^\[(.*)\]$/, '$1');
  if (isIP(host) !== 0 || /^[^\s/:?#@[\]]+$/.test(host)) return host;
  throw new UsageError(`${option} must be a host name or an IP address, got '${text}'`);
}

/** @throws {UsageError} If the text is empty. */
export function parseText(option: string, text: string): string {
  if (text === '') throw new UsageError(`${option} must not be empty`);
  return text;
}

/** Where the web API is, and what it wants to hear. */
export interface Access {
  host: string;
  port: number;
  socketPath: string | undefined;
  token: string | undefined;
}

/**
 * Reads `--host`, `--port` and `--socket`, and CONTROL_TOKEN from the environment: a command line is for all to see.
 *
 * @throws {UsageError} If one of them is wrong.
 */
export function parseAccess(values: Partial<Record<'host' | 'port' | 'socket', string>>, leastPort: number): Access {
  const { host, port, socket: socketPath } = values;
  const token = process.env['CONTROL_TOKEN'] || undefined;
  if (socketPath !== undefined && (host ?? port) !== undefined) {
    throw new UsageError('--socket stands in place of --host and --port: give it, or them');
  }
  try {
    new WebApiClient(undefined, undefined, { socketPath, token });
  } catch (error) {
    const { message } = error as Error;
    throw new UsageError(message.replace(/^socketPath/, '--socket').replace(/^token/, 'CONTROL_TOKEN'));
  }
  return {
    host: host === undefined ? DEFAULT_HOST : parseHost('--host', host),
    port: port === undefined ? DEFAULT_PORT : parseInteger('--port', port, leastPort, 65535),
    socketPath,
    token,
  };
}

/** The client for these options. */
export function clientFor(values: Parameters<typeof parseAccess>[0], timeoutMs?: number): WebApiClient {
  const { host, port, socketPath, token } = parseAccess(values, 1);
  return new WebApiClient(host, port, { timeout: timeoutMs, socketPath, token });
}
