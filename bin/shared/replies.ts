// The client of all programs, and its replies in words for people. Any program may listen at the address.

import { SystemStatus, WebApiClient } from '../../control.ts';
import { excerpt, printable } from './text.ts';
import type { WebApiReply } from '../../control.ts';

/** Shown as the status of a system that responds, but with none of the statuses below. */
export const UNKNOWN = 'unknown';

/** Shown as the status of a system that takes requests, and responds to none: it hangs or is stopped. */
export const NO_ANSWER = 'no answer';

/** The statuses that servers send, in the order in which PAMIQ's server numbers them. */
const STATUS_NAMES: readonly string[] = Object.values(SystemStatus)
  .filter((status) => status !== SystemStatus.OFFLINE)
  .map(({ statusName }) => statusName);

/** `value` and `error` are safe to print; `original` is the complete text, and `body` all that was received. */
export type PrintableReply = WebApiReply & { readonly original: string };
export type FailedReply = Extract<PrintableReply, { ok: false }>;

/** The client of all programs. Its replies are safe to print. */
export class PrintableClient extends WebApiClient {
  /** The address as a target: `localhost:8391`, `unix:/run/demo.sock`. */
  get target(): string {
    return printable(this.baseUrl.replace(/^http:\/\//, ''));
  }

  /** The error without the address, which stands before it or after a colon. */
  shorten(error: string): string {
    const url = printable(this.baseUrl);
    const starts = [`${url} does not respond: `, `${url} `, `${this.target} `];
    const found = starts.find((start) => error.startsWith(start) || error.includes(`: ${start}`)) ?? '';
    return error.replace(found, '');
  }

  override async request(...args: Parameters<WebApiClient['request']>): Promise<PrintableReply> {
    const start = performance.now();
    const reply = await super.request(...args);
    const [endpoint] = args;
    const isCommand = endpoint !== 'status' && endpoint !== 'info';
    if (reply.ok) {
      const original = isCommand ? reply.value : nameIn(reply);
      const isUnknown = !isCommand && !STATUS_NAMES.includes(original);
      return { ...reply, value: isUnknown ? UNKNOWN : excerpt(original), original };
    }
    if (endpoint === 'info' && isOld(reply)) {
      const error = 'the server is of version 0.2 or older, which reports its status only';
      return { ...reply, answered: true, error, original: error };
    }
    if (isUnanswered(reply)) {
      const [, reason = ''] = /does not respond: (.*)$/s.exec(reply.error) ?? [];
      const seconds = Number(((performance.now() - start) / 1000).toFixed(1));
      const how = /^timeout after|was cancelled$/.test(reason) ? `within ${seconds} s` : `(${printable(reason)})`;
      const error = isCommand
        ? `${endpoint} sent, but not answered ${how}: it may still take effect`
        : `${this.target} has not answered ${how}`;
      return { ...reply, error, original: error };
    }
    return { ...reply, error: reply.answered ? excerpt(reply.error) : printable(reply.error), original: reply.error };
  }
}

/** The name of the status. PAMIQ's server, written in Python, sends its number instead: 1 for active. */
function nameIn({ value, body: { status } }: Extract<WebApiReply, { ok: true }>): string {
  return typeof status === 'number' ? STATUS_NAMES[status - 1] ?? value : value;
}

/** Whether a request was sent to a system that did not respond: it is not offline, and may have taken a command. */
export function isUnanswered(reply: WebApiReply): boolean {
  return !reply.ok && !reply.answered && reply.sent && reply.statusCode === undefined;
}

/** Whether nothing listens at the address. A mistyped host or a network that is down is another matter. */
export function isAbsent(reply: WebApiReply): boolean {
  return !reply.ok && !reply.sent && / does not respond: (connect )?(ECONNREFUSED|ENOENT)\b/.test(reply.error);
}

/** Whether access is denied: no other request can succeed. */
export function isDenied(reply: PrintableReply): reply is FailedReply & { readonly statusCode: 401 | 403 } {
  return !reply.ok && (reply.statusCode === 401 || reply.statusCode === 403);
}

/** Whether the server does not take the arguments of a command. */
export function isInvalid(reply: WebApiReply): boolean {
  return !reply.ok && (reply.statusCode === 400 || reply.statusCode === 413);
}

/** Why it is no use to send a command after this reply; null if it is. */
export function obstacleIn(reply: PrintableReply): string | null {
  return !reply.ok && (!reply.answered || isDenied(reply)) ? reply.error : null;
}

/** Whether the server is of a version that does not know a request. */
export function isOld(reply: WebApiReply): boolean {
  return !reply.ok && reply.statusCode === 404;
}

/** The status that a reply tells, or what to show instead of one. */
export function statusNameOf(reply: PrintableReply): string {
  if (reply.ok) return reply.value;
  if (reply.statusCode === 401) return 'missing or wrong token';
  if (reply.statusCode === 403) return 'access denied';
  if (reply.answered) return UNKNOWN;
  return isUnanswered(reply) ? NO_ANSWER : SystemStatus.OFFLINE.statusName;
}

/** The commands that `/api/info` lists, of which nothing can be taken for granted. */
export function entriesOf(commands: unknown): Record<string, unknown>[] {
  return Array.isArray(commands) ? commands.map((entry) => Object(entry) as Record<string, unknown>) : [];
}

/** Why `UNKNOWN` is shown. */
export function describeUnknown(status: string): string {
  return `the status must be one of ${STATUS_NAMES.join(', ')}, got '${excerpt(status)}'`;
}
