// What systems report, as a model may read it. Any program may have sent it: a text can hold characters that nobody
// sees, and be as long as a book.

import { commandsOf } from '../shared/describe.ts';
import { isRecord } from '../shared/text.ts';
import type { Body } from '../shared/describe.ts';

/** Control characters and line breaks, which become spaces. */
const BREAKS = /[\p{Cc}\p{Zl}\p{Zp}]+/gu;
/** What no font shows, such as tags, variation selectors, reversals and zero-width characters, and half characters. */
const INVISIBLE = /[\p{Cf}\p{Cs}\p{Default_Ignorable_Code_Point}]+/gu;

const MAX_NAME = 200; // characters of a name, a sender or a reason
const MAX_TEXT = 1000; // of any other text
const MAX_DEPTH = 8;
/** Characters of JSON, about. */
const ROOM = { brief: 500, value: 4096, detail: 4096, accepts: 10_000, command: 1500 } as const;

/** A text without what cannot be seen, truncated. */
export function cleanText(text: string, maxLength: number = MAX_TEXT): string {
  const start = text.slice(0, 4 * maxLength); // a character may have two code units, and invisible ones around it
  const characters = [...start.replaceAll(BREAKS, ' ').replaceAll(INVISIBLE, '')];
  const isWhole = characters.length <= maxLength && start.length === text.length;
  return isWhole ? characters.join('') : `${characters.slice(0, maxLength).join('')}…`;
}

/** The same for all texts in a value of JSON, which ends with `…` where the room does. */
export function clean(value: unknown, room: number = ROOM.value): unknown {
  return new Cleaner(room).clean(value, 0);
}

class Cleaner {
  #left: number;

  constructor(room: number) {
    this.#left = room;
  }

  clean(value: unknown, depth: number): unknown {
    if (typeof value === 'string') return this.#text(value, MAX_TEXT);
    if (typeof value !== 'object' || value === null) {
      this.#left -= `${value as number}`.length;
      return value;
    }
    if (depth === MAX_DEPTH) return '…';
    return Array.isArray(value) ? this.#array(value, depth) : this.#object(value as Body, depth);
  }

  #text(text: string, maxLength: number): string {
    const cleaned = cleanText(text, Math.min(maxLength, Math.max(0, this.#left)));
    this.#left -= cleaned.length + 3; // quotes and a comma
    return cleaned;
  }

  #array(values: readonly unknown[], depth: number): unknown[] {
    const cleaned: unknown[] = [];
    for (const value of values) {
      cleaned.push(this.#left > 0 ? this.clean(value, depth + 1) : '…');
      if (this.#left <= 0) break;
    }
    return cleaned;
  }

  #object(value: Body, depth: number): object {
    const cleaned: [string, unknown][] = [];
    for (const [name, field] of Object.entries(value)) {
      if (this.#left <= 0) {
        cleaned.push(['…', '…']);
        break;
      }
      cleaned.push([this.#text(name, MAX_NAME), this.clean(field, depth + 1)]);
    }
    return Object.fromEntries(cleaned) as object;
  }
}

const NAMES = ['name', 'pid', 'host', 'version', 'startedAt', 'heardAt', 'status', 'since', 'by', 'reason'] as const;
const CAUSE = ['since', 'by', 'reason'] as const;

/** All that `/api/info` reports. `accepts` keeps its form, JSON Schema. */
export function wholeReport(info: Body): object {
  const accepts = isRecord(info['accepts']) ? clean(info['accepts'], ROOM.accepts) : undefined;
  const commands = commandsOf(info).map((entry) => clean(entry, ROOM.command));
  return { ...pick(info, NAMES), detail: clean(info['detail'], ROOM.detail), accepts, commands };
}

/** What has led to the status, what the program is doing, and its latest command. */
export function currentReport(info: Body): object {
  const [latest] = commandsOf(info).slice(-1).map((entry) => clean(entry, ROOM.command));
  return { ...pick(info, CAUSE), detail: clean(info['detail'], ROOM.detail), latestCommand: latest };
}

/** The same without the command, in a list of many systems. */
export function briefReport(info: Body): object {
  return { ...pick(info, CAUSE), detail: clean(info['detail'] ?? undefined, ROOM.brief) };
}

/** These fields, as far as they are texts or numbers. */
function pick(info: Body, names: readonly string[]): object {
  const fields = names.map((name) => [name, info[name]] as const).flatMap(([name, field]) => {
    if (typeof field === 'number') return [[name, field]];
    return typeof field === 'string' ? [[name, cleanText(field, MAX_NAME)]] : [];
  });
  return Object.fromEntries(fields) as object;
}
