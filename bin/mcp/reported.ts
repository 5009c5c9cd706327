// Makes the reports of systems safe for a model: texts without control and invisible characters, and truncated. Any
// program may have sent them.

import { commandsOf } from '../shared/words/describe.ts';
import { isRecord } from '../shared/words/text.ts';
import type { Body } from '../shared/words/describe.ts';

/** Control characters and line breaks, which become spaces. */
const BREAKS = /[\p{Cc}\p{Zl}\p{Zp}]+/gu;
/** Characters without a glyph: tags, variation selectors, bidirectional controls, zero-width; and lone surrogates. */
const INVISIBLE = /[\p{Cf}\p{Cs}\p{Default_Ignorable_Code_Point}]+/gu;

/** In characters: of a name, a sender or a reason. */
export const MAX_NAME = 200;
const MAX_TEXT = 1000; // of any other text
const MAX_DEPTH = 8;
const MAX_LATEST = 3; // commands in a short report
/** Characters of JSON. */
const ROOM = { brief: 500, value: 4096, detail: 4096, accepts: 8192, commands: 3072 } as const;

/** Removes control and invisible characters from a text, and truncates it. */
export function cleanText(text: string, maxLength: number = MAX_TEXT): string {
  const start = text.slice(0, 4 * maxLength); // a character may have two code units, and invisible ones around it
  const characters = [...start.replaceAll(BREAKS, ' ').replaceAll(INVISIBLE, '')];
  const isWhole = characters.length <= maxLength && start.length === text.length;
  return isWhole ? characters.join('') : `${characters.slice(0, maxLength).join('')}…`;
}

/** Cleans all texts in a JSON value. A `…` marks where it is truncated. */
export function clean(value: unknown, room: number = ROOM.value): unknown {
  return new Cleaner(room).clean(value);
}

class Cleaner {
  #left: number;

  constructor(room: number) {
    this.#left = room;
  }

  get isFull(): boolean {
    return this.#left <= 0;
  }

  clean(value: unknown, depth: number = 0): unknown {
    this.#left -= 3; // a comma, and brackets or quotes
    if (typeof value === 'string') return this.#text(value, MAX_TEXT);
    if (typeof value !== 'object' || value === null) {
      this.#left -= `${value as number}`.length;
      return value;
    }
    if (depth === MAX_DEPTH) return '…';
    return Array.isArray(value) ? this.#array(value, depth) : this.#object(value as Body, depth);
  }

  #text(text: string, maxLength: number): string {
    const room = Math.max(0, Math.min(maxLength, Math.floor(this.#left)));
    const whole = cleanText(text, room);
    const isRoomy = JSON.stringify(whole).length <= this.#left + 3;
    const cleaned = isRoomy ? whole : cleanText(text, Math.floor(room / 2)); // each character may need an escape
    this.#left -= JSON.stringify(cleaned).length;
    return cleaned;
  }

  #array(values: readonly unknown[], depth: number): unknown[] {
    const cleaned: unknown[] = [];
    for (const value of values) {
      cleaned.push(this.isFull ? '…' : this.clean(value, depth + 1));
      if (this.isFull) break;
    }
    return cleaned;
  }

  #object(value: Body, depth: number): object {
    const cleaned: [string, unknown][] = [];
    for (const [name, field] of Object.entries(value)) {
      if (this.isFull) {
        cleaned.push(['…', '…']);
        break;
      }
      cleaned.push([this.#text(name, MAX_NAME), this.clean(field, depth + 1)]);
    }
    return Object.fromEntries(cleaned) as object;
  }
}

const NAMES = ['name', 'pid', 'host', 'version', 'startedAt', 'since', 'by', 'reason'] as const;
const CAUSE = ['since', 'by', 'reason'] as const;

/** Everything that `/api/info` reports. `accepts` remains JSON Schema. */
export function wholeReport(info: Body): object {
  const accepts = isRecord(info['accepts']) ? clean(info['accepts'], ROOM.accepts) : undefined;
  return { ...pick(info, NAMES), detail: detailOf(info, ROOM.detail), accepts, commands: latestCommands(info) };
}

/** The cause of the status, the detail, the last command that has ended, and the commands after it. */
export function currentReport(info: Body): object {
  const commands = commandsOf(info);
  const hasEnded = commands.map(({ state }) => state === 'done' || state === 'failed');
  const latest = commands.slice(Math.max(0, hasEnded.lastIndexOf(true))).slice(0, MAX_LATEST);
  return { ...pick(info, CAUSE), detail: detailOf(info, ROOM.detail), commands: clean(latest) };
}

/**
 * The cause of the status and a short detail, for a list of many systems.
 *
 * @param room Limits the detail further.
 */
export function briefReport(info: Body, room: number): object {
  return { ...pick(info, CAUSE), detail: detailOf(info, Math.min(ROOM.brief, room)) };
}

/** As many of the latest commands as fit. */
function latestCommands(info: Body): unknown[] {
  const cleaner = new Cleaner(ROOM.commands);
  const latestFirst = commandsOf(info).reverse();
  return latestFirst.flatMap((entry) => cleaner.isFull ? [] : [cleaner.clean(entry)]).reverse();
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
