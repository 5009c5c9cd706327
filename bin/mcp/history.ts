// The log of a system for a model: entries with the fields that servers write, whatever else is in the file.

import { textOfJson } from '../shared/words/text.ts';
import { clean } from './reported.ts';
import type { Body } from '../shared/words/text.ts';
import type { Line } from '../shared/words/log.ts';
import type { PrintableReply } from '../shared/reach/replies.ts';
import type { System } from './systems.ts';

const ROOM = { field: 1000, all: 30_000 } as const; // characters of JSON

/** The fields of all events, besides the time and the event. The name and the process are those of the system. */
const FIELDS = [
  'version', 'commandLine', 'ended', 'exitCode', 'signal', 'status', 'id', 'command', 'message', 'parameters',
  'arguments', 'state', 'value', 'valueOmitted', 'error', 'lines', 'seconds', 'by', 'reason', 'holds', 'expiresAt',
] as const;

const MAX_TRACE = 20_000; // characters of JSON: a path has up to 4096 bytes
const MAX_TRACES = 1000;

/** The latest entries, the oldest first: as many as there is room for. `isCut`: earlier ones are left out. */
export function entriesOf(
  lines: readonly Line[],
  sinceMs: number,
  limit: number,
): { entries: object[]; isCut: true | undefined } {
  const found = lines.filter(({ time }) => time >= sinceMs);
  const entries: object[] = [];
  let room = ROOM.all;
  for (const line of found.slice(-limit).reverse()) {
    const entry = entryOf(line);
    room -= JSON.stringify(entry).length;
    if (room < 0) break;
    entries.unshift(entry);
  }
  return { entries, isCut: entries.length < found.length || undefined };
}

function entryOf({ time, entry, fold }: Line): object {
  const fields = FIELDS.flatMap((name) => {
    const value = clean(entry[name], ROOM.field);
    return value === undefined ? [] : [[name, value] as const];
  });
  const times = fold && { times: fold.count, firstTime: new Date(fold.firstTime).toISOString() };
  return { time: new Date(time).toISOString(), event: entry['event'], ...Object.fromEntries(fields), ...times };
}

/** What the latest responses of systems say about their logs, which can still be read when the systems have ended. */
export class Traces {
  readonly #traces: Map<string, Body> = new Map(); // by the id of the system, the latest last

  /** Notes a response, and returns what is known of the system; undefined if it has never responded. */
  note({ id }: System, reply: PrintableReply): Body | undefined {
    if (reply.ok) {
      const { name, pid, host, log } = reply.body;
      const isShort = textOfJson([name, pid, host, log]).length <= MAX_TRACE;
      this.#traces.delete(id);
      this.#traces.set(id, isShort ? { name, pid, host, log } : {});
      for (const other of [...this.#traces.keys()].slice(0, -MAX_TRACES)) this.#traces.delete(other);
    }
    return this.#traces.get(id);
  }
}
