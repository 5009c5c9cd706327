// How the programs reach a system: its address, the token, and who sends the commands.

import { readFileSync, statSync } from 'node:fs';
import { isIPv6 } from 'node:net';
import { hostname, userInfo } from 'node:os';
import { DEFAULT_HOST, DEFAULT_PORT, SystemStatus, WebApiClient, WebApiServer } from '../../control.ts';
import { parseInteger, UsageError, warn } from './options.ts';
import { PrintableClient } from './replies.ts';
import { printable } from './text.ts';
import type { WebApiAddress } from '../../control.ts';
import type { ListOption, TextOption } from './options.ts';
import type { PrintableReply } from './replies.ts';

// ───── The address ───────────────────────────────────────────────────────────────────────────────────────────────

/** Options of the clients. */
export const ADDRESS_OPTIONS: { host: TextOption; port: TextOption; socket: TextOption } = {
  host: {
    type: 'string', value: 'HOST', help: `host name or IP address of the system (default ${DEFAULT_HOST})`,
    completion: 'hosts',
  },
  port: { type: 'string', value: 'PORT', help: `port of its web API (default ${DEFAULT_PORT})` },
  socket: {
    type: 'string', value: 'PATH', help: 'Unix socket of its web API; replaces --host and --port', completion: 'files',
  },
};

/** Options of the programs that serve a web API. */
export const SERVER_OPTIONS: Record<'host' | 'port' | 'socket' | 'name', TextOption> & { 'allow-host': ListOption } = {
  host: {
    type: 'string', value: 'HOST', help: `host name or IP address for the web API (default ${DEFAULT_HOST})`,
  },
  port: {
    type: 'string', value: 'PORT', help: `port of the web API; 0 picks a free one (default ${DEFAULT_PORT})`,
  },
  socket: {
    type: 'string', value: 'PATH',
    help: 'Unix socket for the web API; replaces --host and --port. A PATH that ends in / is a folder: the socket is ' +
      'NAME-PID.sock in it',
  },
  'allow-host': {
    type: 'string', multiple: true, value: 'NAME',
    help: 'host name that clients may use for the web API, such as box.lan, .lan for all names in lan, or * for all ' +
      'names; may be repeated (default: only localhost, --host and IP addresses)',
  },
  name: {
    type: 'string', value: 'NAME',
    help: 'name for lists, messages and sockets (default: CONTROL_NAME, or else that of the script or program)',
  },
};

/** What the help of each server says. */
export const TOKEN_HELP: string = `
If the environment variable CONTROL_TOKEN is set, or CONTROL_TOKEN_FILE names a file, clients must know that token.
`.trim();

/** What the help of each client says. */
export const ENVIRONMENT_HELP: string = `
Environment variables; options win:
  CONTROL_HOST, CONTROL_PORT, CONTROL_SOCKET   the address
  CONTROL_TOKEN, CONTROL_TOKEN_FILE            the token if the system requires one, or the path of a file with it
  CONTROL_BY                                   who sends the commands, for the system to show (default: user@machine)
`.trim();

/** The options that are an address. */
export const ADDRESS_PARTS = ['host', 'port', 'socket'] as const;

/** An address as given, and what messages call its parts. */
export type Address = Partial<Record<typeof ADDRESS_PARTS[number], string | undefined>>;
type Names = Record<keyof Address | 'token', string>;

const OPTIONS: Names = { host: '--host', port: '--port', socket: '--socket', token: 'CONTROL_TOKEN' };
const VARIABLES: Names = { ...OPTIONS, host: 'CONTROL_HOST', port: 'CONTROL_PORT', socket: 'CONTROL_SOCKET' };

/** The address of a web API, and its token. */
interface Access {
  host: string;
  port: number;
  socketPath: string | undefined;
  token: string | undefined;
}

export interface ServerAccess extends Access {
  allowedHosts: string[];
  name: string | undefined;
}

/**
 * Returns a client for the address in the options, or else in the environment.
 *
 * @throws {UsageError} If the address or the token is invalid.
 */
export function createClient(options: Address, timeoutMs?: number): PrintableClient {
  const address: Address = { ...options };
  const names = { ...OPTIONS };
  const isNetwork = (options.host ?? options.port) !== undefined;
  for (const part of ADDRESS_PARTS) {
    const isReplaced = part === 'socket' ? isNetwork : options.socket !== undefined;
    if (options[part] !== undefined || isReplaced) continue;
    address[part] = process.env[VARIABLES[part]] || undefined; // empty is as good as unset
    names[part] = VARIABLES[part];
  }
  return clientFor(parseAccess(address, 1, names), timeoutMs);
}

/** Whether the environment has an address. */
export function hasEnvironmentAddress(): boolean {
  return ADDRESS_PARTS.some((part) => Boolean(process.env[VARIABLES[part]]));
}

/**
 * Returns a client for `HOST`, `HOST:PORT`, `:PORT`, `http://HOST:PORT`, `unix:PATH`, or a path with a slash. An IPv6
 * address before a port is in brackets.
 *
 * @throws {UsageError} If the target or the token is invalid.
 */
export function createTargetClient(
  target: string,
  timeoutMs?: number,
  tokenFile?: string,
  words?: Words,
): PrintableClient {
  if (target.startsWith('https://')) {
    throw new UsageError(`the web API speaks HTTP without TLS: a target is http://HOST:PORT, got '${target}'`);
  }
  const [, path = /^(?!http:\/\/).*\//s.test(target) ? target : undefined] = /^unix:(.*)$/s.exec(target) ?? [];
  const authority = target.replace(/^http:\/\/(.*:\d+)\/?$/, '$1').replace(/^:(?!:)/, `${DEFAULT_HOST}:`);
  const address = path === undefined ? splitAuthority(authority) : { socket: path };
  const names = {
    host: `the host of the target '${target}'`,
    port: `the port of the target '${target}'`,
    socket: `the path of the target '${target}'`,
    token: OPTIONS.token,
  };
  return clientFor(parseAccess(address, 1, names, tokenFile), timeoutMs, words);
}

/** Splits `HOST` or `HOST:PORT`. */
export function splitAuthority(authority: string): { host: string; port: string | undefined } {
  const [, host = authority, port] = (isIPv6(authority) ? null : /^(\[.*\]|[^:[]*):(.*)$/s.exec(authority)) ?? [];
  return { host, port };
}

/**
 * Checks an address and the token.
 *
 * @param tokenFile Where the token is, unless it is in the environment.
 * @param check Throws if a part is invalid.
 * @throws {UsageError} If one of them is invalid.
 */
export function parseAccess(
  { host: givenHost, port, socket: socketPath }: Address,
  minPort: number,
  names: Names = OPTIONS,
  tokenFile?: string,
  check: (access: Omit<Access, 'port'>) => unknown = checkForClient,
): Access {
  const host = givenHost?.replace(/^\[(.*)\]$/, '$1') ?? DEFAULT_HOST; // an IPv6 address may be written as in a URL
  if (socketPath !== undefined && (givenHost ?? port) !== undefined) {
    throw new UsageError(`${names.socket} replaces ${names.host} and ${names.port}: give one or the other`);
  }
  const file = tokenFile ?? (process.env[TOKEN_FILE] || undefined);
  const token = tokenFile === undefined ? ownToken() : readToken(tokenFile);
  try {
    check({ host, socketPath, token });
  } catch (error) {
    const tokenName = file === undefined ? names.token : `the token in '${file}'`;
    const called: Record<string, string> = {
      host: names.host, socketPath: names.socket, token: tokenName, 'each of allowedHosts': '--allow-host',
    };
    throw new UsageError((error as Error).message.replace(/^each of \w+|^\w+/, (name) => called[name] ?? name));
  }
  const portNumber = port === undefined ? DEFAULT_PORT : parseInteger(names.port, port, minPort, 65535);
  return { host, port: portNumber, socketPath, token };
}

/**
 * Checks the options of a program that serves a web API, and returns those of its server.
 *
 * @param defaultName Its name unless the user gives one.
 * @throws {UsageError} If one of them is invalid.
 */
export function parseServerOptions(
  values: Address & { 'allow-host'?: string[] | undefined; name?: string | undefined },
  names: Partial<Names> = {},
  defaultName?: string,
): ServerAccess {
  const { 'allow-host': allowedHosts = [], name: givenName = NAME } = values;
  if (givenName !== undefined && !/^\P{Cc}{1,200}$/u.test(givenName)) {
    const option = values.name === undefined ? 'CONTROL_NAME' : '--name';
    throw new UsageError(`${option} must be 1 to 200 characters, none of them a control character, got '${givenName}'`);
  }
  const name = givenName ?? defaultName;
  const systemStatus = (): SystemStatus => SystemStatus.ACTIVE;
  const access = parseAccess(values, 0, { ...OPTIONS, ...names }, undefined, (options) => {
    return new WebApiServer({ systemStatus, allowedHosts, name, ...options });
  });
  return { ...access, allowedHosts, name };
}

/** Adds to the error of a server whose port is in use what to type. */
export function explainPort(error: unknown): Error {
  const { message, code } = error as NodeJS.ErrnoException;
  if (code !== 'EADDRINUSE' || !/^Cannot serve at [^/]+:\d+: /.test(message)) return error as Error;
  return new Error(`${message}; --port 0 picks a free one`);
}

/** The URL of a server, for people. */
export function baseUrlOf({ host, port, socketPath }: WebApiAddress): string {
  const client = port === 0 ? new WebApiClient(undefined, undefined, { socketPath }) : new WebApiClient(host, port);
  return client.baseUrl;
}

/** The classes that take an address know the rules. */
function checkForClient({ host, socketPath, token }: Omit<Access, 'port'>): WebApiClient {
  return new WebApiClient(host, undefined, { socketPath, token });
}

function clientFor({ host, port, socketPath, token }: Access, timeoutMs?: number, words?: Words): PrintableClient {
  return new TargetClient(words, host, port, { timeout: timeoutMs, socketPath, token });
}

/** What messages say of a target. */
interface Words {
  /** Instead of the address. */
  title?: string;
  /** After the error of a host that does not exist. */
  hint?: () => Promise<string>;
}

class TargetClient extends PrintableClient {
  readonly #words: Words;

  constructor(words: Words = {}, ...args: ConstructorParameters<typeof WebApiClient>) {
    super(...args);
    this.#words = words;
  }

  override get target(): string {
    return this.#words.title ?? super.target;
  }

  override async request(...args: Parameters<PrintableClient['request']>): Promise<PrintableReply> {
    const reply = await super.request(...args);
    if (reply.ok || this.#words.hint === undefined || !/ (ENOTFOUND|EAI_AGAIN)\b/.test(reply.error)) return reply;
    const hint = await this.#words.hint();
    return { ...reply, error: reply.error + printable(hint), original: reply.original + hint };
  }
}

// ───── The token and the name ────────────────────────────────────────────────────────────────────────────────────

/**
 * CONTROL_TOKEN. It is a variable, because every user of the machine can read a command line, and deleted at once, so
 * that no process that a program starts inherits it.
 */
const TOKEN: string | undefined = process.env['CONTROL_TOKEN'] || undefined;
delete process.env['CONTROL_TOKEN'];
/** CONTROL_NAME, also deleted: what a program starts has a name of its own. */
const NAME: string | undefined = process.env['CONTROL_NAME'] || undefined;
delete process.env['CONTROL_NAME'];
const TOKEN_FILE = 'CONTROL_TOKEN_FILE';

/**
 * Returns the token in CONTROL_TOKEN, or in the file that CONTROL_TOKEN_FILE names.
 *
 * @throws {UsageError} If both are set, or the file cannot be trusted.
 */
export function ownToken(): string | undefined {
  const path = process.env[TOKEN_FILE] || undefined;
  if (path === undefined) return TOKEN;
  if (TOKEN !== undefined) throw new UsageError(`CONTROL_TOKEN and ${TOKEN_FILE} are both set: set one or the other`);
  return readToken(path);
}

const tokens = new Map<string, string>(); // by path

function readToken(path: string): string {
  const token = tokens.get(path) ?? readTrusted('token', path, true).replace(/\r?\n$/, '');
  tokens.set(path, token);
  return token;
}

/**
 * Reads a file that tells which systems to control, or how. It must not be writable for others.
 *
 * @param isSecret Warns if others can read it.
 * @throws {UsageError} If others can write it, or it cannot be read.
 */
export function readTrusted(what: string, path: string, isSecret: boolean): string {
  try {
    const file = statSync(path);
    if (!file.isFile() && !file.isFIFO()) throw new Error('it is not a file');
    const { mode, uid } = file;
    const isOwn = uid === 0 || uid === process.geteuid?.();
    if (process.geteuid !== undefined && (!isOwn || (mode & 0o022) !== 0)) {
      throw new Error(isOwn ? `others can write it; chmod go-w '${path}'` : 'it belongs to another user');
    }
    const text = readFileSync(path, 'utf8');
    if (isSecret && process.geteuid !== undefined && (mode & 0o044) !== 0) {
      warn(`others can read the ${what} file '${path}'; chmod go-r '${path}'`);
    }
    return text;
  } catch (error) {
    throw new UsageError(`cannot use the ${what} file '${path}': ${(error as Error).message}`);
  }
}

// ───── The sender ────────────────────────────────────────────────────────────────────────────────────────────────

/** Who sends the commands, for the server's list: `ana@laptop`. An empty text tells nothing. */
export const BY: string = process.env['CONTROL_BY'] ?? `${userName()}@${hostname()}`;

function userName(): string {
  try {
    return userInfo().username;
  } catch {
    return String(process.geteuid?.()); // in a container, the user may have a number only
  }
}
