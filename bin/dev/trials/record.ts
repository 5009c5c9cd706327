// The rows of bin/track-record.md, the tests that pages cite, and what an edit makes of a file.

import { readFileSync } from 'node:fs';
import type { Mend } from './table.ts';

/** A test or a suite, as pages cite it: *FILE: TITLE*. */
export interface Citation {
  /** The path of its source. */
  path: string;
  title: string;
}

/** A bug on the page. */
export interface Row {
  version: string;
  bug: string;
  test: Citation;
}

export const PAGE = 'bin/track-record.md';

/** Lines that are wrapped must be joined by blanks. */
export function citationsIn(text: string): Citation[] {
  return [...text.matchAll(/\*([a-z]+(?:\/[a-z]+)*): ([^*]+)\*/g)].map(([, file = '', title = '']) => {
    return { path: file === 'control' ? 'control.test.ts' : `bin/test/${file}.test.ts`, title };
  });
}

/** @throws {Error} If a line of the table is no row with one test. */
export function readRows(): Row[] {
  const lines = readFileSync(PAGE, 'utf8').split('\n').filter((line) => /^\| \d/.test(line));
  return lines.map((line) => {
    const [, version = '', bug = '', cell = ''] = /^\| (\S+) \| (.+) \| ([^|]+) \|$/.exec(line) ?? [];
    const [test, ...others] = citationsIn(cell);
    if (test === undefined || others.length > 0) throw new Error(`not a row with one test: ${line}`);
    return { version, bug, test };
  });
}

/** @throws {Error} If not exactly one row begins like that. */
export function rowOf({ bug }: Mend, rows: readonly Row[]): Row {
  const [row, ...others] = rows.filter((one) => one.bug.startsWith(bug));
  if (row === undefined || others.length > 0) throw new Error(`${1 + others.length} rows begin with '${bug}'`);
  return row;
}

/**
 * Returns the files as they were before the mend, by their paths.
 *
 * @throws {Error} If a text does not occur exactly once.
 */
export function revert({ edits }: Mend): Map<string, string> {
  const files = new Map<string, string>();
  for (const [path, present, earlier] of edits) {
    const [before = '', after, ...others] = (files.get(path) ?? readFileSync(path, 'utf8')).split(present);
    const count = after === undefined ? 0 : 1 + others.length;
    if (count !== 1) throw new Error(`${path} has this text ${count} times: ${present}`);
    files.set(path, before + earlier + after);
  }
  return files;
}
