// The client of all tools, and its replies in words for people. Any program may listen at the address.

import { resolve } from 'node:path';
import { SystemStatus, WebApiClient } from '../../../control.ts';
import { excerpt, printable } from '../words/text.ts';
import type { Duplex } from 'node:stream';
import type { RequestOptions, WebApiClientOptions, WebApiReply } from '../../../control.ts';

/** Shown as the status of a system that responds with none of the statuses below, or cannot be reached now. */
export const UNKNOWN = 'unknown';

/** Shown as the status of a system that accepts requests but does not respond: it hangs or is stopped. */
export const NO_ANSWER = 'no answer';

/** The error of a server that has no `/api/info`, like PAMIQ's. */
export const STATUS_ONLY = 'the server reports its status only';

/** Errors of connect() although the system may listen. */
const HINTS: ReadonlyMap<string | undefined, string> = new Map([
  ['EAGAIN', 'its queue of connections is full'], ['EMFILE', 'too many open files'], ['ENFILE', 'too many open files'],
  ['EACCES', 'nothing was sent'],
]);

/** The code of the error when the machine of a system cannot be reached. */
export const LINK_ENDED = 'ENOLINK';

/** Errors of connect() where nothing listens. */
const ABSENT_CODES: ReadonlySet<string | undefined> = new Set(['ECONNREFUSED', 'ENOENT']);

/** Errors of connect() that say nothing about the system. */
const UNKNOWN_CODES: ReadonlySet<string | undefined> = new Set(['EMFILE', 'ENFILE', 'EACCES']);

/** The statuses that servers send, in the order in which PAMIQ's server numbers them. */
const STATUS_NAMES: readonly string[] = Object.values(SystemStatus)
  .filter((status) => status !== SystemStatus.OFFLINE)
  .map(({ statusName }) => statusName);

/** `value` and `error` are safe to print; `original` is the complete text, and `body` all that was received. */
export type PrintableReply = WebApiReply & { readonly original: string };
export type FailedReply = Extract<PrintableReply, { ok: false }>;

/** A machine with systems: this one or, with `--via`, another one. */
export interface Machine {
  /** Empty without `--via`. */
  readonly label: string;
  /** Opens the link to another machine; before the first request, because that may take a password. */
  open?(): Promise<void>;
  /** Opens a connection to a path or HOST:PORT there. */
  connect?(address: string): Duplex;
}

export const THIS_MACHINE: Machine = { label: '' };

/** The client of all tools. Its replies are safe to print. */
export class PrintableClient extends WebApiClient {
  readonly machine: Machine;
  /** Absolute; undefined if it has a host and a port. */
  readonly socketPath: string | undefined;
  /** The error if it has no token, but the server requires one; empty for what the server says. */
  tokenHint: string = '';
  readonly #title: string | undefined;
  readonly #moved: WebApiClient | undefined; // where control.ts makes the socket again after a logout

  /** @param title What messages call it, instead of the address. */
  constructor(
    host?: string,
    port?: number,
    options: WebApiClientOptions = {},
    machine: Machine = THIS_MACHINE,
    title?: string,
  ) {
    super(host, port, options);
    this.machine = machine;
    this.socketPath = options.socketPath === undefined ? undefined : resolve(options.socketPath);
    this.#title = title;
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
    return this.#title ?? printable(this.baseUrl.replace(/^http:\/\//, ''));
  }

  /** The error without the address at its beginning or after a colon. */
  shorten(error: string): string {
    const url = printable(this.baseUrl);
    const starts = [`${url} does not respond: `, `${url} `, `${this.target} `];
    const found = starts.find((start) => error.startsWith(start) || error.includes(`: ${start}`)) ?? '';
    return error.replace(found, '');
  }

  /** Requests all that the system reports, or its status if its server has nothing else. */
  async ask(options?: Pick<RequestOptions, 'signal'>): Promise<PrintableReply> {
    const reply = await this.request('info', options);
    return lacksInfo(reply) ? this.request('status', options) : reply;
  }

  override async request(...args: Parameters<WebApiClient['request']>): Promise<PrintableReply> {
    const start = performance.now();
    const first = await super.request(...args);
    const second = isAbsent(first) ? await this.#moved?.request(...args) : undefined;
    const reply = second === undefined || connectErrorOf(second) !== undefined ? first : second;
    const [endpoint] = args;
    const isCommand = endpoint !== 'status' && endpoint !== 'info';
    if (reply.ok) {
      const original = isCommand ? reply.value : nameIn(reply);
      const isUnknown = !isCommand && !STATUS_NAMES.includes(original);
      return { ...reply, value: isUnknown ? UNKNOWN : excerpt(original), original };
    }
    if (endpoint === 'info' && lacksInfo(reply)) {
      return { ...reply, phase: 'answered', error: STATUS_ONLY, original: STATUS_ONLY };
    }
    if (reply.statusCode === 401 && this.tokenHint !== '') {
      return { ...reply, error: this.tokenHint, original: this.tokenHint };
    }
    if (reply.phase === 'answered') return { ...reply, error: excerpt(reply.error), original: reply.error };
    if (reply.statusCode !== undefined) return { ...reply, error: printable(reply.error), original: reply.error };
    const seconds = Number(((performance.now() - start) / 1000).toFixed(1));
    const silence = `${this.baseUrl} does not respond: `;
    if (reply.phase === 'sent') {
      const reason = printable(reply.error.replace(/^.* does not respond: /, ''));
      const how = isCut(reply) ? `(${reason})` : `within ${seconds} s`;
      const error = isCommand
        ? `${endpoint} sent, but no response ${how}: it may still take effect`
        : `${this.target} has not responded ${how}`;
      return { ...reply, error, original: error };
    }
    const before = isCommand && isUnanswered(reply) ? `${endpoint} not sent: ` : '';
    const why = reply.code === 'ABORT_ERR' ? `${silence}no connection within ${seconds} s` : reply.error;
    const hint = HINTS.get(reply.code);
    const original = `${before}${why}${hint === undefined ? '' : `; ${hint}`}`;
    return { ...reply, error: printable(original), original };
  }
}

/** The name of the status. PAMIQ's server, written in Python, sends its number instead: 1 for active. */
function nameIn({ value, body: { status } }: Extract<WebApiReply, { ok: true }>): string {
  return typeof status === 'number' ? STATUS_NAMES[status - 1] ?? value : value;
}

/** Whether nothing responded although the system may run: only what is known to be absent is offline. */
export function isUnanswered(reply: WebApiReply): boolean {
  if (reply.ok || reply.phase === 'answered' || reply.statusCode !== undefined) return false;
  return reply.phase === 'sent' || !isAbsent(reply) && !UNKNOWN_CODES.has(reply.code);
}

/** Whether the connection broke before the response: the system may be ending. */
export function isCut(reply: WebApiReply): boolean {
  if (reply.ok || reply.phase !== 'sent' || reply.statusCode !== undefined) return false;
  return reply.code !== 'ETIMEDOUT' && reply.code !== 'ABORT_ERR';
}

/** Whether nothing listens at the address. False for a mistyped host or a network that is down. */
export function isAbsent(reply: WebApiReply): boolean {
  return ABSENT_CODES.has(connectErrorOf(reply));
}

/** The code of the error with which connecting failed. */
function connectErrorOf(reply: WebApiReply): string | undefined {
  return reply.ok || reply.phase !== 'connect' ? undefined : reply.code;
}

/** Whether access is denied: no other request can succeed. */
export function isDenied(reply: PrintableReply): reply is FailedReply & { readonly statusCode: 401 | 403 } {
  return !reply.ok && (reply.statusCode === 401 || reply.statusCode === 403);
}

/** Whether the server refused the arguments of a command. */
export function isInvalid(reply: WebApiReply): boolean {
  return !reply.ok && (reply.statusCode === 400 || reply.statusCode === 413);
}

/** Why sending a command after this reply is useless; null if it is not. */
export function obstacleIn(reply: PrintableReply): string | null {
  return !reply.ok && (reply.phase !== 'answered' || isDenied(reply)) ? reply.error : null;
}

/** Whether a server has no `/api/info`, like PAMIQ's. */
export function lacksInfo(reply: WebApiReply): boolean {
  return !reply.ok && reply.statusCode === 404;
}

/** The status in a reply, or what to show instead. */
export function statusNameOf(reply: PrintableReply): string {
  if (reply.ok) return reply.value;
  if (reply.statusCode === 401) return 'missing or wrong token';
  if (reply.statusCode === 403) return 'access denied';
  if (reply.phase === 'answered') return UNKNOWN;
  if (isUnanswered(reply)) return NO_ANSWER;
  return UNKNOWN_CODES.has(connectErrorOf(reply)) ? UNKNOWN : SystemStatus.OFFLINE.statusName;
}

/** Why `UNKNOWN` is shown. */
export function describeUnknown(status: string): string {
  return `the status must be one of ${STATUS_NAMES.join(', ')}, got '${excerpt(status)}'`;
}
