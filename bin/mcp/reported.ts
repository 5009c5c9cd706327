// What a model may see of a system: its status, reports and log, truncated, without control or invisible characters.
// Any program may have sent them.

import { createHash } from 'node:crypto';
import { UsageError } from '../shared/cli.ts';
import { questionsIn } from '../shared/declared.ts';
import { commandsOf, hasEnded } from '../shared/describe.ts';
import { type FollowedSystem, seen } from '../shared/system.ts';
import { type Body, excerpt, excerptOf, isRecord, textOfJson } from '../shared/text.ts';
import type { PrintableReply } from '../shared/client.ts';
import type { Line } from '../shared/log.ts';

/** Characters without a glyph: tags, variation selectors, bidirectional controls, zero-width; and lone surrogates. */
const INVISIBLE = /[\p{Cf}\p{Cs}\p{Default_Ignorable_Code_Point}]+/gu;

/** In characters: of a name, a sender or a reason. */
export const MAX_NAME = 200;
const MAX_TEXT = 1000; // of any other text
const MAX_DEPTH = 8;
const MAX_LATEST = 3; // commands in a short report
/** Characters of JSON. */
const ROOM = {
  brief: 500, value: 4096, detail: 4096, accepts: 8192, commands: 3072, holds: 2048, asks: 6144, field: 1000,
  log: 30_000,
} as const;

/** Removes invisible characters from a text, replaces control characters by spaces, and truncates it. */
export function cleanText(text: string, maxLength: number = MAX_TEXT): string {
  return excerpt(text.replaceAll(INVISIBLE, ''), maxLength);
}

/** Cleans all texts in a JSON value. What is too long becomes its JSON, truncated; `…` stands for what is too deep. */
export function clean(value: unknown, room: number = ROOM.value, depth: number = 0): unknown {
  if (typeof value === 'string') return cleanText(value, Math.min(MAX_TEXT, room / 2)); // escapes double it
  if (typeof value !== 'object' || value === null) return value;
  if (depth === MAX_DEPTH) return '…';
  const fields = Object.entries(value).map(([name, field]) => {
    return [cleanText(name, MAX_NAME), clean(field, room, depth + 1)] as const;
  });
  const cleaned = Array.isArray(value) ? fields.map(([, item]) => item) : Object.fromEntries(fields) as object;
  const json = JSON.stringify(cleaned);
  return json.length <= room ? cleaned : cleanText(json, room / 2);
}

/** Models have no clock. */
export function now(): string {
  return new Date().toISOString();
}

// ───── Reports ───────────────────────────────────────────────────────────────────────────────────────────────────────

/** Everything that `/api/info` reports. */
export function wholeReport(info: Body): object {
  const { accepts } = info;
  return {
    ...pick(info, 'name', 'pid', 'host', 'version', 'startedAt'), ...current(info, ROOM.holds, ROOM.asks, ROOM.detail),
    accepts: isRecord(accepts) ? clean(accepts, ROOM.accepts) : undefined,
    commands: fit(commandsOf(info).map((entry) => clean(entry, ROOM.commands)), ROOM.commands, (entries) => {
      return Math.max(0, entries.findIndex((entry) => (Object(entry) as Body)['state'] !== 'running'));
    }),
  };
}

/** The cause of the status, the questions, the detail, the last command that has ended, and the commands after it. */
export function currentReport(info: Body): object {
  const commands = commandsOf(info);
  const start = Math.max(0, commands.map(hasEnded).lastIndexOf(true));
  const latest = commands.slice(start, start + MAX_LATEST).map((entry) => clean(entry, ROOM.commands));
  return { ...current(info, ROOM.holds, ROOM.asks, ROOM.detail), commands: latest };
}

/** The cause of the status, the questions and a short detail, for a list of many systems. */
export function briefReport(info: Body, room: number): object {
  const brief = Math.min(ROOM.brief, room);
  return current(info, Math.min(ROOM.holds, room), brief, brief);
}

/** Since when, by whom and why; everybody who holds a pause; the open questions, the oldest first; the detail. */
function current(info: Body, holdsRoom: number, asksRoom: number, detailRoom: number): object {
  const { holds, detail } = info;
  const asks = fit(questionsIn(info).map(({ entry }) => clean(entry, asksRoom)), asksRoom, ({ length }) => length - 1);
  return {
    ...pick(info, 'since', 'by', 'reason'), holds: clean(holds, holdsRoom), asks: asks.length === 0 ? undefined : asks,
    detail: detail === null ? undefined : clean(detail, detailRoom),
  };
}

/** As many entries as fit, at least one. @param next Which one to leave out. */
function fit(entries: unknown[], room: number, next: (entries: readonly unknown[]) => number): unknown[] {
  while (JSON.stringify(entries).length > room && entries.length > 1) entries.splice(next(entries), 1);
  return entries;
}

/** Those of these fields that are texts or numbers. */
function pick(info: Body, ...names: readonly string[]): object {
  const fields = names.map((name) => [name, info[name]] as const).flatMap(([name, field]) => {
    if (typeof field === 'number') return [[name, field]];
    return typeof field === 'string' ? [[name, cleanText(field, MAX_NAME)]] : [];
  });
  return Object.fromEntries(fields) as object;
}

// ───── Results ───────────────────────────────────────────────────────────────────────────────────────────────────────

/** Why a call has failed, with the fields that are known. */
export class CallError extends UsageError {
  readonly fields: object;

  constructor(message: string, fields: object) {
    super(message);
    this.fields = fields;
  }
}

/**
 * The status, and the reasons not to rely on it: silence or an error. A system that is merely offline has no error. Only
 * this reply counts: nobody follows the system between two calls.
 */
export function statusFields({ target }: FollowedSystem, reply: PrintableReply, maxError?: number): object {
  const { status, unheardSince, error } = seen(target, reply);
  return {
    system: target.id, status,
    silentSeconds: unheardSince === null ? undefined : Math.round((Date.now() - unheardSince) / 1000),
    error: error === '' || reply.fault === 'offline' ? undefined : cleanText(error, maxError),
  };
}

/**
 * A digest of what counts as a change: the process, the status, its cause, the open questions, the last command that
 * has ended and those before it that have not, and the own commands. The ETag of /api/info also changes when a command
 * arrives.
 */
export function tagOf(reply: PrintableReply | undefined): string | undefined {
  if (reply?.ok !== true) return undefined;
  const { host, pid, startedAt, status, since, by, reason, accepts } = reply.body;
  const commands = commandsOf(reply.body);
  const last = commands.map(hasEnded).lastIndexOf(true);
  const ids = commands.slice(0, last + 1).filter((entry, at) => at === last || !hasEnded(entry)).map(({ id }) => id);
  const asks = questionsIn(reply.body).map(({ id }) => id);
  const text = textOfJson([host, pid, startedAt, status, since, by, reason, accepts, ids, asks]);
  return createHash('sha256').update(text).digest('hex').slice(0, 12);
}

/** Whether no running command is about to change the status. A save pauses a system briefly. */
export function isSettled(info: Body): boolean {
  if (/^(pausing|resuming)$/.test(excerptOf(info['status']))) return false;
  return !commandsOf(info).some(({ state, command }) => {
    return state === 'running' && /^(pause|resume|save-state)$/.test(excerptOf(command));
  });
}

/** The fields of all events of a log, besides the time and the event. Name and process are those of the system. */
const LOGGED = [
  'version', 'commandLine', 'ended', 'exitCode', 'signal', 'status', 'id', 'command', 'message', 'parameters',
  'arguments', 'state', 'value', 'valueOmitted', 'error', 'lines', 'seconds', 'by', 'reason', 'holds', 'expiresAt',
  'key', 'answeredAt',
] as const;

/** The latest entries of a log, the oldest first, as many as there is room for. `isCut`: earlier ones are left out. */
export function logReport(lines: readonly Line[], sinceMs: number, limit: number): object {
  const found = lines.filter(({ time }) => time >= sinceMs);
  const entries: object[] = [];
  let room = ROOM.log;
  for (const { time, entry, fold } of found.slice(-limit).reverse()) {
    const all = LOGGED.map((name) => [name, clean(entry[name], ROOM.field)]);
    const fields = all.filter(([, value]) => value !== undefined);
    const shown = {
      time: new Date(time).toISOString(), event: entry['event'], ...Object.fromEntries(fields),
      ...fold && { times: fold.count, firstTime: new Date(fold.firstTime).toISOString() },
    };
    room -= JSON.stringify(shown).length;
    if (room < 0) break;
    entries.unshift(shown);
  }
  return { entries, isCut: entries.length < found.length || undefined };
}
