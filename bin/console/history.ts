// The history of the console: a file with one command per line, the newest last.

import { appendFileSync, chmodSync, readFileSync, renameSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { createFolders, stateFolder } from '../shared/line/files.ts';
import { warn } from '../shared/line/options.ts';
import { printable } from '../shared/words/text.ts';

export const MAX_LINES = 1000;

/** Consoles share the file: each appends its lines. An unusable file is reported once. */
export class History {
  #isKept: boolean;

  /** @param isKept Whether to read and write the file. */
  constructor(isKept: boolean) {
    this.#isKept = isKept;
  }

  /** Returns the latest lines without duplicates, the newest first. Shortens a long file. */
  load(): string[] {
    let latest: string[] = [];
    this.#try((path) => {
      createFolders(dirname(path), 0o700);
      // Opening a FIFO would block, and chmod through a link would make /dev/null private.
      if (statSync(path, { throwIfNoEntry: false })?.isFile() === false) throw new Error(`'${path}' is not a file`);
      appendFileSync(path, '', { mode: 0o600 });
      chmodSync(path, 0o600);
      const lines = readFileSync(path, 'utf8').split('\n').map(printable).filter((line) => line !== '');
      latest = [...new Set(lines.reverse())].slice(0, MAX_LINES);
      if (lines.length <= MAX_LINES) return;
      writeFileSync(`${path}.${process.pid}`, `${[...latest].reverse().join('\n')}\n`, { mode: 0o600 });
      renameSync(`${path}.${process.pid}`, path);
    });
    return latest;
  }

  add(line: string): void {
    this.#try((path) => appendFileSync(path, `${line}\n`, { mode: 0o600 }));
  }

  #try(use: (path: string) => void): void {
    if (!this.#isKept) return;
    try {
      use(join(stateFolder(), 'history'));
    } catch (error) {
      this.#isKept = false;
      warn(`cannot keep the history: ${(error as Error).message}; --no-history disables it`);
    }
  }
}
