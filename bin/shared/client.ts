// One system: its address, token and client, and what a failed request means: offline, no answer, unknown, denied.

import { readFileSync, statSync } from 'node:fs';
import { isIPv6 } from 'node:net';
import { hostname, userInfo } from 'node:os';
import { resolve } from 'node:path';
import {
  DEFAULT_HOST, DEFAULT_PORT, type RequestOptions, SystemStatus, type WebApiAddress, WebApiClient,
  type WebApiClientOptions, type WebApiReply, WebApiServer,
} from '../../control.ts';
import { EXIT, type ListOption, parseInteger, type TextOption, UsageError, warn } from './cli.ts';
import { excerpt, excerptOf, printable, tidy } from './text.ts';
import type { Duplex } from 'node:stream';

/** Shown as the status of a system that responds with none of the statuses below, or cannot be reached now. */
export const UNKNOWN = 'unknown';

/** Shown as the status of a system that accepts requests but does not respond: it hangs or is stopped. */
export const NO_ANSWER = 'no answer';

/** The error of a server that has only the endpoints of the specification, like PAMIQ's. */
export const STATUS_ONLY = 'the server reports its status only';

/** Errors of connect() in words. */
const WORDS: ReadonlyMap<string | undefined, string> = new Map([
  ['EAGAIN', 'its queue of connections is full'], ['EMFILE', 'too many open files'], ['ENFILE', 'too many open files'],
  ['ENOTFOUND', 'there is no such host'], ['EAI_AGAIN', 'no name server responds'], ['ENOTDIR', 'it is in no folder'],
  ['EHOSTUNREACH', 'there is no route to it'], ['ENETUNREACH', 'there is no route to it'],
]);

const NOTHING = 'nothing listens';
const FOR_PROGRAMS = ', or the option token of WebApiClient'; // what servers before 0.30 say without the token
export const OFFLINE: string = SystemStatus.OFFLINE.statusName;

/** The code of the error when the machine of a system cannot be reached. */
export const LINK_ENDED = 'ENOLINK';

/** Errors of connect() after which the system need not run. */
const FAULTS: ReadonlyMap<string, Fault> = new Map([
  ['ECONNREFUSED', 'offline'], ['ENOENT', 'offline'],
  ['EMFILE', 'unknown'], ['ENFILE', 'unknown'], ['EACCES', 'unknown'],
]);

/** The statuses that servers send, in the order in which PAMIQ's server numbers them. */
const STATUS_NAMES: readonly string[] = Object.values(SystemStatus)
  .filter((status) => status !== SystemStatus.OFFLINE)
  .map(({ statusName }) => statusName);

/** What a failed request says about its system. */
export type Fault =
  | 'offline' // nothing listens at the address. Not for a mistyped host or a network that is down
  | 'foreign' // no control server listens
  | 'silent' // no response although it may run: only what is known to be absent is offline
  | 'unknown' // the request says nothing about it
  | 'denied' // no other request can succeed
  | 'invalid' // the arguments of a command are refused
  | 'lacking' // the server has no such endpoint, or no `/api/info` that counts
  | 'refused'; // anything else that the server refuses

/** What is shown as the status of a system with a fault, unless it is unknown. */
const STATUSES: Partial<Readonly<Record<Fault, string>>> = {
  offline: OFFLINE, foreign: OFFLINE, silent: NO_ANSWER, denied: 'access denied',
};

/** The exit code of a tool that fails because of it. */
export const EXIT_OF: Readonly<Record<Fault, number>> = {
  offline: EXIT.OFFLINE, foreign: EXIT.OFFLINE, silent: EXIT.NO_ANSWER, unknown: EXIT.OFFLINE, denied: EXIT.REFUSED,
  invalid: EXIT.USAGE, lacking: EXIT.REFUSED, refused: EXIT.REFUSED,
};

type Received = Extract<WebApiReply, { ok: true }> & { readonly original: string; readonly fault: null };
export type FailedReply = Extract<WebApiReply, { ok: false }> & { readonly original: string; readonly fault: Fault };
/** `value` and `error` are safe to print; `original` is the complete text, and `body` all that was received. */
export type PrintableReply = Received | FailedReply;

/** A machine with systems: this one or, with `--via`, another one. */
export interface Machine {
  /** Empty without `--via`. */
  readonly label: string;
  /** Opens the link to another machine; before the first request, because that may take a password. */
  open?(): Promise<void>;
  /** Opens a connection to a path or HOST:PORT there. */
  connect?(address: string): Duplex;
  /** Opens a stream that tells logs there. */
  log?(request: string): Promise<Duplex>;
}

const SINCE: Readonly<Record<string, number>> = { stack: 26, withdraw: 27 }; // control.ts 0.26, …
const QUERIES: readonly string[] = ['status', 'info', 'stack']; // all others are commands

export const THIS_MACHINE: Machine = { label: '' };

/** The client of all tools. Its replies are safe to print. */
export class PrintableClient extends WebApiClient {
  readonly machine: Machine;
  /** Absolute; undefined if it has a host and a port. */
  readonly socketPath: string | undefined;
  /** The error if it has no token, but the server requires one; empty for what the server says. */
  tokenHint: string = '';
  /** What messages call it, instead of the address. */
  title: string | undefined;
  /** Whether it still is the system that was found: otherwise, it is absent, and nothing is sent. */
  isStillMeant: () => boolean = () => true;
  /** If it may go to another system: the key of the only one that commands are for. */
  meant: string | undefined;
  readonly #moved: WebApiClient | undefined; // where control.ts makes the socket again after a logout

  constructor(host?: string, port?: number, options: WebApiClientOptions = {}, machine: Machine = THIS_MACHINE) {
    super(host, port, options);
    this.machine = machine;
    this.socketPath = options.socketPath === undefined ? undefined : resolve(options.socketPath);
    const moved = this.socketPath?.replace(/^\/run\/user\/(\d+)\/control\/(?=[^/]+$)/, '/tmp/control-$1/');
    const mayMove = moved !== this.socketPath && machine.connect === undefined;
    this.#moved = mayMove ? new WebApiClient(host, port, { ...options, socketPath: moved }) : undefined;
    const { baseUrl } = this;
    if (machine.label !== '') Object.assign(this, { baseUrl: `${machine.label}/${baseUrl.replace('http://', '')}` });
  }

  /** The same for all clients of an address. */
  get key(): string {
    return this.baseUrl;
  }

  /** The address as a target: `localhost:8391`, `unix:/run/demo.sock`. */
  get target(): string {
    return this.title ?? printable(this.baseUrl.replace(/^http:\/\//, ''));
  }

  /** The error without the address at its beginning or after a colon. */
  shorten(error: string): string {
    const url = printable(this.baseUrl);
    const starts = [`${url} does not respond: `, ` at ${url.replace('http://', '')}`, `${url} `, `${this.target} `];
    const found = starts.find((start) => {
      return error.startsWith(start) || error.includes(`: ${start}`) || error === NOTHING + start;
    }) ?? '';
    return error.replace(found, '');
  }

  /** Requests all that the system reports, or its status if its server has nothing else. */
  async ask(options?: Pick<RequestOptions, 'signal'>): Promise<PrintableReply> {
    const reply = await this.request('info', options);
    return reply.fault === 'lacking' ? this.request('status', options) : reply;
  }

  /** The reply to a request that was not sent. */
  protected failure(error: string, code: string): PrintableReply {
    const failed = { ok: false, phase: 'connect', statusCode: undefined, code, body: {}, error } as const;
    return { ...failed, original: error, fault: faultIn(failed) };
  }

  override async request(...args: Parameters<WebApiClient['request']>): Promise<PrintableReply> {
    const start = performance.now();
    if (!this.isStillMeant()) return this.failure(`${NOTHING} at ${this.target}`, 'ECONNREFUSED');
    const reply = await this.#requestAnywhere(args);
    const [endpoint] = args;
    const isStatus = endpoint === 'status' || endpoint === 'info';
    if (endpoint === 'info' && (reply.ok ? isCurrent(reply.body) === false : reply.statusCode === 404)) {
      const failed = { ok: false, phase: 'answered', statusCode: 404, code: undefined, body: {} } as const;
      return { ...failed, error: STATUS_ONLY, original: STATUS_ONLY, fault: 'lacking' };
    }
    if (reply.ok) {
      const original = isStatus ? nameIn(reply) : reply.value;
      const isUnknown = isStatus && !STATUS_NAMES.includes(original);
      return { ...reply, value: isUnknown ? UNKNOWN : excerpt(original), original, fault: null };
    }
    const hint = reply.statusCode === 401 ? this.tokenHint : '';
    const seconds = Number(((performance.now() - start) / 1000).toFixed(1));
    const isOld = Object.hasOwn(SINCE, endpoint) && /^Invalid API endpoint/.test(reply.error);
    const rule = `${endpoint} requires a server with control.ts 0.${SINCE[endpoint]} or later`;
    const said = isOld ? rule : reply.error.replace(FOR_PROGRAMS, '');
    const original = hint || (reply.statusCode === undefined ? this.#explain(reply, endpoint, seconds) : said);
    const error = reply.phase === 'answered' && hint === '' ? excerpt(original) : printable(original);
    const body = QUERIES.includes(endpoint) ? {} : reply.body; // a failure reports nothing
    return { ...reply, body, error, original, fault: faultIn(reply) };
  }

  async #requestAnywhere(args: Parameters<WebApiClient['request']>): Promise<WebApiReply> {
    const first = await super.request(...args);
    const isAbsent = !first.ok && faultIn(first) === 'offline';
    const second = isAbsent ? await this.#moved?.request(...args) : undefined;
    return second === undefined || (!second.ok && second.phase === 'connect') ? first : second;
  }

  /** Why there was no response. */
  #explain(reply: Extract<WebApiReply, { ok: false }>, endpoint: string, seconds: number): string {
    const isCommand = !QUERIES.includes(endpoint);
    if (reply.phase === 'sent') {
      const how = isCut(reply) ? `(${reply.error.replace(/^.* does not respond: /, '')})` : `within ${seconds} s`;
      return isCommand ? `${endpoint} sent, but no response ${how}: it may still take effect`
        : `${this.target} has not responded ${how}`;
    }
    const fault = faultIn(reply);
    if (fault === 'offline') return `${NOTHING} at ${this.baseUrl.replace('http://', '')}`;
    const words = reply.code === 'ABORT_ERR' ? `no connection within ${seconds} s` : WORDS.get(reply.code);
    const why = words === undefined ? reply.error : `${this.baseUrl} does not respond: ${words}`;
    const before = isCommand && fault === 'silent' ? `${endpoint} not sent: ` : '';
    return `${before}${why}${reply.code === 'EACCES' ? '; nothing was sent' : ''}`;
  }
}

/** The name of the status. PAMIQ's server, written in Python, sends its number instead: 1 for active. */
function nameIn({ value, body: { status } }: Extract<WebApiReply, { ok: true }>): string {
  return typeof status === 'number' ? STATUS_NAMES[status - 1] ?? value : value;
}

function faultIn({ phase, statusCode = 0, code = '' }: Extract<WebApiReply, { ok: false }>): Fault {
  if (statusCode === 401 || statusCode === 403) return 'denied';
  if (statusCode === 404 && phase === 'answered') return 'lacking';
  if (phase === 'answered') return [400, 413].includes(statusCode) ? 'invalid' : 'refused';
  if (statusCode !== 0) return 'foreign';
  return phase === 'sent' ? 'silent' : FAULTS.get(code) ?? 'silent';
}

/** Whether the connection broke before the response: the system may be ending. */
export function isCut(reply: WebApiReply): boolean {
  if (reply.ok || reply.phase !== 'sent' || reply.statusCode !== undefined) return false;
  return reply.code !== 'ETIMEDOUT' && reply.code !== 'ABORT_ERR';
}

/** Why sending a command after this reply is useless; null if it is not. */
export function obstacleIn(reply: PrintableReply): string | null {
  return !reply.ok && (reply.phase !== 'answered' || reply.fault === 'denied') ? reply.error : null;
}

/** Whether a report is of a control.ts 0.18 (or 0.`minor`) or later; undefined if it has no version. */
export function isCurrent({ version }: Record<string, unknown>, minor: number = 18): boolean | undefined {
  const [, major, second] = /^(\d+)\.(\d+)\./.exec(excerptOf(version)) ?? [];
  return major === undefined ? undefined : Number(major) > 0 || Number(second) >= minor;
}

/** The status in a reply, or what to show instead. */
export function statusNameOf(reply: PrintableReply): string {
  if (reply.ok) return reply.value;
  return reply.statusCode === 401 ? 'missing or wrong token' : STATUSES[reply.fault] ?? UNKNOWN;
}

/** Why `UNKNOWN` is shown. */
export function describeUnknown(status: string): string {
  return `the status must be one of ${STATUS_NAMES.join(', ')}, got '${excerpt(status)}'`;
}

// ───── The address ───────────────────────────────────────────────────────────────────────────────────────────────

/** Options of the clients. */
export const ADDRESS_OPTIONS: { host: TextOption; port: TextOption; socket: TextOption } = {
  host: {
    type: 'string', value: 'HOST', completion: 'hosts',
    help: `host name or IP address (default with --port: ${DEFAULT_HOST})`,
  },
  port: { type: 'string', value: 'PORT', help: `port of its web API (default with --host: ${DEFAULT_PORT})` },
  socket: { type: 'string', value: 'PATH', help: 'Unix socket instead of --host and --port', completion: 'files' },
};

/** Options of the tools that serve a web API. */
export const SERVER_OPTIONS: Record<'host' | 'port' | 'socket' | 'name', TextOption> & { 'allow-host': ListOption } = {
  host: { type: 'string', value: 'HOST', help: `host name or IP address of the web API (default ${DEFAULT_HOST})` },
  port: { type: 'string', value: 'PORT', help: `port of the web API; 0 picks a free one (default ${DEFAULT_PORT})` },
  socket: {
    type: 'string', value: 'PATH',
    help: 'Unix socket instead of --host and --port; a PATH that ends in / is a folder for NAME-PID.sock (default: ' +
      'beside the port, in CONTROL_DIR, or else $XDG_RUNTIME_DIR/control/, /run/user/UID/control/ or ' +
      '/tmp/control-UID/)',
  },
  'allow-host': {
    type: 'string', multiple: true, value: 'NAME',
    help: 'host name by which clients may call it: box.lan, .lan (all names in lan) or * (all names); may be ' +
      'repeated (default: only localhost, --host and IP addresses)',
  },
  name: { type: 'string', value: 'NAME', help: 'name of the system (default: CONTROL_NAME, or the program)' },
};

/** For the help of each server. */
export const SERVER_ENVIRONMENT_HELP: string = `
Environment variables (options take precedence):
  CONTROL_NAME        the name of the system
  CONTROL_DIR         the only folder for its socket
  CONTROL_TOKEN       the token that clients must send
  CONTROL_TOKEN_FILE  or the path of a file with it
`.trim();

/** For the help of a client whose commands have a sender of their own. */
export const REACH_HELP: string = `
Environment variables (options and targets take precedence):
  CONTROL_HOST        the address of the system, with CONTROL_PORT
  CONTROL_SOCKET      or the path of its socket
  CONTROL_DIR         the only folder of systems
  CONTROL_VIA         other machines, separated by commas
  CONTROL_TOKEN       the token, if the system requires one
  CONTROL_TOKEN_FILE  or the path of a file with it
`.trim();

/** For the help of all others. */
export const ENVIRONMENT_HELP: string = `${REACH_HELP}
  CONTROL_BY          the sender of commands (default: user@machine)`;

/** The options that make up an address. */
export const ADDRESS_PARTS = ['host', 'port', 'socket'] as const;

/** An address as given. */
export type Address = Partial<Record<typeof ADDRESS_PARTS[number], string | undefined>>;
/** What messages call the parts of an address, and the token. */
type Names = Record<keyof Address | 'token', string>;

const OPTIONS: Names = { host: '--host', port: '--port', socket: '--socket', token: 'CONTROL_TOKEN' };
export const VARIABLES: Names = { ...OPTIONS, host: 'CONTROL_HOST', port: 'CONTROL_PORT', socket: 'CONTROL_SOCKET' };

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
  const its = (part: string): string => `the ${part} of the target '${target}'`;
  const names = { ...OPTIONS, host: its('host'), port: its('port'), socket: its('path') };
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
  const own = process.env[TOKEN_FILE] || undefined;
  const file = tokenFile === undefined ? own : tokenFile ?? undefined;
  if (tokenFile === undefined && own !== undefined && TOKEN !== undefined) {
    throw new UsageError(`CONTROL_TOKEN and ${TOKEN_FILE} are both set: set one or the other`);
  }
  const token = file !== undefined ? readToken(file) : tokenFile === undefined ? TOKEN : undefined;
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

/** What a tool serves at: the socket, or else host and port. */
export function placeOf({ host, port, ...others }: ServerAccess): Partial<Access> & Omit<ServerAccess, keyof Access> {
  return others.socketPath === undefined ? { ...others, host, port } : others;
}

/** Says what to do about the error of a server whose port is in use. */
export function explainPort(error: unknown, port: number = 0): Error {
  const { message, code } = error as NodeJS.ErrnoException;
  return code === 'EADDRINUSE' && port > 0 ? new Error(`${message}; --port 0 picks a free one`) : error as Error;
}

/** The URL of a server, for people. */
export function baseUrlOf({ host, port, socketPath }: WebApiAddress): string {
  const client = port === 0 ? new WebApiClient(undefined, undefined, { socketPath }) : new WebApiClient(host, port);
  return client.baseUrl;
}

function clientFor({ host, port, socketPath, token }: Access, reach: Reach): PrintableClient {
  const { timeoutMs, machine, tokenFile } = reach;
  if (machine?.label && socketPath?.startsWith('/') === false) {
    throw new UsageError(`the path of a socket on ${machine.label} must be absolute, got '${socketPath}'`);
  }
  const connect = machine?.connect && (() => machine.connect!(socketPath ?? `${host}:${port}`));
  const client = new PrintableClient(host, port, { timeout: timeoutMs, socketPath, token, connect }, machine);
  client.title = reach.title;
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
