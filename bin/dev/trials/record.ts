// The bugs in bugs.txt, how tests are cited, and what an edit makes of a file.

import { readFileSync } from 'node:fs';
import type { Mend } from './table.ts';

/** A test or a suite, as it is cited: *FILE: TITLE*. */
export interface Citation {
  /** The path of its source. */
  path: string;
  title: string;
}

/** A bug that was mended. */
export interface Row {
  version: string;
  bug: string;
  test: Citation;
}

export const BUGS = 'bin/dev/trials/bugs.txt';

/** Lines that are wrapped must be joined by blanks. */
export function citationsIn(text: string): Citation[] {
  return [...text.matchAll(/\*([a-z]+(?:\/[a-z]+)*): ([^*]+)\*/g)].map(([, file = '', title = '']) => {
    return { path: file === 'control' ? 'control.test.ts' : `bin/test/${file}.test.ts`, title };
  });
}

/** @throws {Error} If an entry has not one test. */
export function readRows(): Row[] {
  const [, ...entries] = readFileSync(BUGS, 'utf8').split(/\n+(?=\S)/);
  return entries.map((entry) => {
    const [, version = '', bug = '', cited = ''] = /^(\S+) {2}(.+)\n +(\*.*\*)\n?$/.exec(entry) ?? [];
    const [test, ...others] = citationsIn(cited);
    if (test === undefined || others.length > 0) throw new Error(`not a bug with one test: ${entry}`);
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
