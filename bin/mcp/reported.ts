// Makes the reports of systems safe for a model: texts without control and invisible characters, and truncated. Any
// program may have sent them.

import { questionsIn } from '../shared/declared.ts';
import { commandsOf, hasEnded } from '../shared/describe.ts';
import { type Body, excerpt, isRecord } from '../shared/text.ts';

/** Characters without a glyph: tags, variation selectors, bidirectional controls, zero-width; and lone surrogates. */
const INVISIBLE = /[\p{Cf}\p{Cs}\p{Default_Ignorable_Code_Point}]+/gu;

/** In characters: of a name, a sender or a reason. */
export const MAX_NAME = 200;
const MAX_TEXT = 1000; // of any other text
const MAX_DEPTH = 8;
const MAX_LATEST = 3; // commands in a short report
/** Characters of JSON. */
const ROOM = { brief: 500, value: 4096, detail: 4096, accepts: 8192, commands: 3072, holds: 2048, asks: 6144 } as const;

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

const NAMES = ['name', 'pid', 'host', 'version', 'startedAt'] as const;
const CAUSE = ['since', 'by', 'reason'] as const;

/** Everything that `/api/info` reports. */
export function wholeReport(info: Body): object {
  const accepts = isRecord(info['accepts']) ? clean(info['accepts'], ROOM.accepts) : undefined;
  const [asks, commands] = [openAsks(info), latestCommands(info)];
  return { ...pick(info, NAMES), ...causeOf(info), asks, detail: detailOf(info, ROOM.detail), accepts, commands };
}

/** The cause of the status, the questions, the detail, the last command that has ended, and the commands after it. */
export function currentReport(info: Body): object {
  const commands = commandsOf(info);
  const start = Math.max(0, commands.map(hasEnded).lastIndexOf(true));
  const latest = commands.slice(start, start + MAX_LATEST).map((entry) => clean(entry, ROOM.commands));
  return { ...causeOf(info), asks: openAsks(info), detail: detailOf(info, ROOM.detail), commands: latest };
}

/**
 * The cause of the status, the questions and a short detail, for a list of many systems.
 *
 * @param room Limits each of these further.
 */
export function briefReport(info: Body, room: number): object {
  const brief = Math.min(ROOM.brief, room);
  return { ...causeOf(info, room), asks: openAsks(info, brief), detail: detailOf(info, brief) };
}

/** Since when, by whom and why, and everybody who holds a pause. */
function causeOf(info: Body, room: number = ROOM.holds): object {
  return { ...pick(info, CAUSE), holds: clean(info['holds'], Math.min(ROOM.holds, room)) };
}

/** As many of the open questions as fit, the oldest first; undefined if there is none. */
function openAsks(info: Body, room: number = ROOM.asks): unknown[] | undefined {
  const cleaned = questionsIn(info).map(({ entry }) => clean(entry, room));
  while (JSON.stringify(cleaned).length > room && cleaned.length > 1) cleaned.pop();
  return cleaned.length === 0 ? undefined : cleaned;
}

/** As many of the latest commands as fit, and the one that runs: others may wait for it. */
function latestCommands(info: Body): unknown[] {
  const cleaned = commandsOf(info).map((entry) => clean(entry, ROOM.commands));
  while (JSON.stringify(cleaned).length > ROOM.commands && cleaned.length > 1) {
    cleaned.splice(Math.max(0, cleaned.findIndex((entry) => (Object(entry) as Body)['state'] !== 'running')), 1);
  }
  return cleaned;
}

function detailOf({ detail }: Body, room: number): unknown {
  return detail === null ? undefined : clean(detail, room);
}

/** Those of these fields that are texts or numbers. */
function pick(info: Body, names: readonly string[]): object {
  const fields = names.map((name) => [name, info[name]] as const).flatMap(([name, field]) => {
    if (typeof field === 'number') return [[name, field]];
    return typeof field === 'string' ? [[name, cleanText(field, MAX_NAME)]] : [];
  });
  return Object.fromEntries(fields) as object;
}
