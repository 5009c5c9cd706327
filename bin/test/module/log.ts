// Reads the log of a server more strictly than its readers do.

import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';

export interface Line {
  time: string;
  name: string;
  pid: number;
  event: string;
  [field: string]: any;
}

export const FILLERS = 265; // lines that have more than 4 MiB

/** Makes a log grow above the size at which it is renamed. */
export const FILLER: string = JSON.stringify({
  time: new Date().toISOString(), name: 'filler', pid: 1, event: 'filler', text: 'x'.repeat(16_000),
}).concat('\n').repeat(FILLERS);

/** Returns the lines of files that may not exist, in order, and what is not a whole line. */
export function parseLog(...paths: readonly string[]): { lines: Line[]; torn: string[] } {
  const torn: string[] = [];
  const lines = paths.filter((path) => existsSync(path)).flatMap((path) => {
    const texts = readFileSync(path, 'utf8').split('\n');
    const last = texts.pop();
    if (last !== '') torn.push(String(last));
    return texts.flatMap((text) => {
      if (text === '') return [];
      let line: Line;
      try {
        line = JSON.parse(text);
      } catch {
        torn.push(text);
        return [];
      }
      assert.deepEqual(Object.keys(line).slice(0, 4), ['time', 'name', 'pid', 'event'], text);
      assert.equal(new Date(line.time).toISOString(), line.time);
      assert.ok(Buffer.byteLength(text) < 32_768, `a line has ${Buffer.byteLength(text)} bytes`);
      return [line];
    });
  });
  return { lines, torn };
}

/** Returns the lines of files that nobody writes to: each is whole. */
export function readLog(...paths: readonly string[]): Line[] {
  const { lines, torn } = parseLog(...paths);
  assert.deepEqual(torn, []);
  return lines;
}

/** Returns how many lines of these kinds there are. */
export function countEvents(lines: readonly Line[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const { event } of lines) counts[event] = (counts[event] ?? 0) + 1;
  return counts;
}

/** Returns events, each with those of these fields that it has: `status paused ana`. */
export function wordsOf(lines: readonly Line[], ...fields: string[]): string[] {
  return lines.map((line) => {
    return ['event', ...fields].map((field) => line[field]).filter((part) => part !== undefined).join(' ');
  });
}
