// How the tools reach a system: its address, the token, and the sender of commands.

import { readFileSync, statSync } from 'node:fs';
import { isIPv6 } from 'node:net';
import { hostname, userInfo } from 'node:os';
import { DEFAULT_HOST, DEFAULT_PORT, SystemStatus, WebApiClient, WebApiServer } from '../../../control.ts';
import { parseInteger, UsageError, warn } from '../line/options.ts';
import { PrintableClient } from './replies.ts';
import { excerpt, tidy } from '../words/text.ts';
import type { WebApiAddress } from '../../../control.ts';
import type { Machine } from './replies.ts';
import type { ListOption, TextOption } from '../line/options.ts';

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

/** Options of the tools that serve a web API. */
export const SERVER_OPTIONS: Record<'host' | 'port' | 'socket' | 'name', TextOption> & { 'allow-host': ListOption } = {
  host: {
    type: 'string', value: 'HOST', help: `host name or IP address of the web API (default ${DEFAULT_HOST})`,
  },
  port: {
    type: 'string', value: 'PORT', help: `port of the web API; 0 picks a free one (default ${DEFAULT_PORT})`,
  },
  socket: {
    type: 'string', value: 'PATH',
    help: 'Unix socket of the web API; replaces --host and --port. A PATH that ends in / is a folder: the socket is ' +
      'NAME-PID.sock in it (default: beside the port, in $XDG_RUNTIME_DIR/control/, or else /tmp/control-UID/)',
  },
  'allow-host': {
    type: 'string', multiple: true, value: 'NAME',
    help: 'host name that clients may use for the web API: box.lan, .lan (all names in lan) or * (all names); may be ' +
      'repeated (default: only localhost, --host and IP addresses)',
  },
  name: {
    type: 'string', value: 'NAME',
    help: 'name of the system (default: CONTROL_NAME, or else the name of the script or program)',
  },
};

/** For the help of each server. */
export const SERVER_ENVIRONMENT_HELP: string = `
Environment variables (options take precedence):
  CONTROL_NAME                                 the name of the system
  CONTROL_TOKEN, CONTROL_TOKEN_FILE            the token that clients must send, or the path of a file with it
`.trim();

/** For the help of each client. */
export const ENVIRONMENT_HELP: string = `
Environment variables (options and targets take precedence):
  CONTROL_HOST, CONTROL_PORT, CONTROL_SOCKET   the address of the system
  CONTROL_VIA                                  other machines, separated by commas
  CONTROL_TOKEN, CONTROL_TOKEN_FILE            the token, or the path of a file with it, if the system requires one
  CONTROL_BY                                   the sender of commands, which the system shows (default: user@machine)
`.trim();

/** The options that make up an address. */
export const ADDRESS_PARTS = ['host', 'port', 'socket'] as const;

/** An address as given. */
export type Address = Partial<Record<typeof ADDRESS_PARTS[number], string | undefined>>;
/** What messages call the parts of an address, and the token. */
type Names = Record<keyof Address | 'token', string>;

const PORT_USER_MS = 3000; // in which the system that uses a port must respond with its name

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

/** How a client reaches its system. */
export interface Reach {
  timeoutMs?: number | undefined;
  machine?: Machine | undefined;
  /** What messages call the system, instead of the address. */
  title?: string | undefined;
  /** The file with the token, or null for none. By default, the environment has the token. */
  tokenFile?: string | null | undefined;
}

/**
 * Returns a client for the address in the options, or else in the environment.
 *
 * @throws {UsageError} If the address or the token is invalid.
 */
export function createClient(options: Address, reach: Reach = {}): PrintableClient {
  const address: Address = { ...options };
  const names = { ...OPTIONS };
  const isNetwork = (options.host ?? options.port) !== undefined;
  for (const part of ADDRESS_PARTS) {
    const isReplaced = part === 'socket' ? isNetwork : options.socket !== undefined;
    if (options[part] !== undefined || isReplaced) continue;
    address[part] = process.env[VARIABLES[part]] || undefined; // empty counts as unset
    names[part] = VARIABLES[part];
  }
  return clientFor(parseAccess(address, 1, names), reach);
}

/** Whether the environment has an address. */
export function hasEnvironmentAddress(): boolean {
  return ADDRESS_PARTS.some((part) => Boolean(process.env[VARIABLES[part]]));
}

/**
 * Returns a client for `HOST`, `HOST:PORT`, `:PORT`, the same after `http://`, `unix:PATH`, or a path with a slash. An
 * IPv6 address before a port is in brackets.
 *
 * @throws {UsageError} If the target or the token is invalid.
 */
export function createTargetClient(target: string, reach: Reach = {}): PrintableClient {
  const [, scheme] = /^([a-z][a-z0-9+.-]*):\/\//i.exec(target) ?? [];
  const isHttp = scheme?.toLowerCase() === 'http';
  if (scheme !== undefined && scheme !== 'unix' && !isHttp) {
    throw new UsageError(`the web API speaks HTTP without TLS: a target is http://HOST:PORT, got '${target}'`);
  }
  const [, path = !isHttp && target.includes('/') ? target : undefined] = /^unix:(.*)$/s.exec(target) ?? [];
  const authority = target.replace(/^http:\/\/(.*?)\/?$/is, '$1').replace(/^:(?!:)/, `${DEFAULT_HOST}:`);
  const address = path === undefined ? splitAuthority(authority) : { socket: path };
  const names = {
    host: `the host of the target '${target}'`,
    port: `the port of the target '${target}'`,
    socket: `the path of the target '${target}'`,
    token: OPTIONS.token,
  };
  return clientFor(parseAccess(address, 1, names, reach.tokenFile), reach);
}

/** Splits `HOST` or `HOST:PORT`. */
export function splitAuthority(authority: string): { host: string; port: string | undefined } {
  const [, host = authority, port] = (isIPv6(authority) ? null : /^(\[.*\]|[^:[]*):(.*)$/s.exec(authority)) ?? [];
  return { host, port };
}

/**
 * Checks an address and the token.
 *
 * @param tokenFile Contains the token; without it, the environment does. Null for no token.
 * @param check Throws if a part is invalid.
 * @throws {UsageError} If one of them is invalid.
 */
function parseAccess(
  { host: givenHost, port, socket: socketPath }: Address,
  minPort: number,
  names: Names = OPTIONS,
  tokenFile?: string | null,
  check: (access: Omit<Access, 'port'>) => unknown = ({ host, ...rest }) => new WebApiClient(host, undefined, rest),
): Access {
  const host = givenHost?.replace(/^\[(.*)\]$/, '$1') ?? DEFAULT_HOST; // an IPv6 address may be written as in a URL
  if (socketPath !== undefined && (givenHost ?? port) !== undefined) {
    throw new UsageError(`${names.socket} replaces ${names.host} and ${names.port}: give one or the other`);
  }
  const file = tokenFile ?? (process.env[TOKEN_FILE] || undefined);
  const token = tokenFile === null ? undefined : tokenFile === undefined ? ownToken() : readToken(tokenFile);
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
 * Checks the options of a tool that serves a web API, and returns the options for its server.
 *
 * @param defaultName Its name, unless the user gives one.
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

/** Explains the error of a server whose port is in use: says by which system, if it is one, and what to do. */
export async function explainPort(error: unknown, host: string = '', port: number = 0): Promise<Error> {
  const { message, code } = error as NodeJS.ErrnoException;
  if (code !== 'EADDRINUSE' || port === 0) return error as Error;
  const isAny = host === '0.0.0.0' || host === '::'; // no name for a client
  const client = new WebApiClient(isAny ? undefined : host, port, { timeout: PORT_USER_MS });
  const { name, pid } = await client.getInfo() ?? {}; // asks without the token: it may be anyone
  const isKnown = typeof name === 'string' && typeof pid === 'number';
  const place = `${isIPv6(host) ? `[${host}]` : host}:${port}`;
  const reason = isKnown ? `Cannot serve at ${place}: it is in use by ${excerpt(name)} (process ${pid})` : message;
  return new Error(`${reason}; --port 0 picks a free one`);
}

/** The URL of a server, for people. */
export function baseUrlOf({ host, port, socketPath }: WebApiAddress): string {
  const client = port === 0 ? new WebApiClient(undefined, undefined, { socketPath }) : new WebApiClient(host, port);
  return client.baseUrl;
}

function clientFor({ host, port, socketPath, token }: Access, reach: Reach): PrintableClient {
  const { timeoutMs, machine, title, tokenFile } = reach;
  if (machine?.label && socketPath?.startsWith('/') === false) {
    throw new UsageError(`the path of a socket on ${machine.label} must be absolute, got '${socketPath}'`);
  }
  const connect = machine?.connect && (() => machine.connect!(socketPath ?? `${host}:${port}`));
  const client = new PrintableClient(host, port, { timeout: timeoutMs, socketPath, token, connect }, machine, title);
  const isWithheld = tokenFile === null && Boolean(TOKEN ?? process.env[TOKEN_FILE]); // a file that is not read
  if (isWithheld) client.tokenHint = `it needs a token, and a name without a label gets none: write ${client.target}`;
  return client;
}

// ───── The token and the name ────────────────────────────────────────────────────────────────────────────────────

/**
 * CONTROL_TOKEN. There is no option for it, because every user of the machine can read command lines. The variable is
 * deleted at once, so that child processes do not inherit it.
 */
const TOKEN: string | undefined = process.env['CONTROL_TOKEN'] || undefined;
delete process.env['CONTROL_TOKEN'];
/** CONTROL_NAME, also deleted: child processes have their own names. */
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
 * Reads a file with targets or a secret. Others must not be able to write to it.
 *
 * @param isSecret Warns if others can read it.
 * @throws {UsageError} If others can write to it, or it cannot be read.
 */
export function readTrusted(what: string, path: string, isSecret: boolean): string {
  try {
    const file = statSync(path);
    if (!file.isFile() && !file.isFIFO()) throw new Error('it is not a file');
    const { mode, uid } = file;
    const isOwn = uid === 0 || uid === process.geteuid?.();
    if (process.geteuid !== undefined && (!isOwn || (mode & 0o022) !== 0)) {
      throw new Error(isOwn ? `others can write to it; chmod go-w '${path}'` : 'it belongs to another user');
    }
    const text = new TextDecoder().decode(readFileSync(path)); // without the byte order mark of Windows
    if (isSecret && process.geteuid !== undefined && (mode & 0o044) !== 0) {
      warn(`others can read the ${what} file '${path}'; chmod go-r '${path}'`);
    }
    return text;
  } catch (error) {
    throw new UsageError(`cannot use the ${what} file '${path}': ${(error as Error).message}`);
  }
}

// ───── The sender ────────────────────────────────────────────────────────────────────────────────────────────────

/** The sender of commands, as servers list it: `ana@laptop`. Empty if it is not to be known. */
export const BY: string = tidy(process.env['CONTROL_BY'] ?? `${userName()}@${hostname()}`);

function userName(): string {
  try {
    return userInfo().username;
  } catch {
    return String(process.geteuid?.()); // in a container, the user may have a number only
  }
}
