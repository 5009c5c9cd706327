// The file of --state: whether the program is paused, by whom, why and since when, so that it starts like that again.
//
//   {"status":"paused","by":"ana@laptop","reason":"GPU needed until noon","since":"2026-11-23T06:00:00.000Z"}
//   {"status":"active"}

import { lstatSync, realpathSync } from 'node:fs';
import { SystemStatus } from '../../control.ts';
import { parseCause } from '../shared/cause.ts';
import { readJson, removeLeftovers, writeAtomically } from '../shared/files.ts';
import { UsageError } from '../shared/options.ts';
import { isRecord } from '../shared/text.ts';
import type { StatusCause } from '../../control.ts';

const MAX_BYTES = 65_536; // control-run writes less than 2,000
const MODE = 0o600; // reasons are nobody else's business

const ACTIVE = SystemStatus.ACTIVE.statusName;
const PAUSED = SystemStatus.PAUSED.statusName;

export class StateFile {
  readonly #path: string;
  #text = ''; // which this process has written last

  constructor(path: string) {
    this.#path = path;
  }

  /**
   * Returns the cause if the program was paused; null if it was active, or if there is no file. Writes the file, too,
   * because one that cannot be written must be known before the program starts.
   *
   * @throws {UsageError} If it holds anything else, or cannot be written.
   */
  read(): StatusCause | null {
    const cause = this.#parse();
    try {
      removeLeftovers(this.#target());
      this.write(cause);
    } catch (error) {
      const expected = '--state requires a file that can be replaced, in a writable folder';
      throw new UsageError(`cannot write to '${this.#path}': ${(error as Error).message}; ${expected}`);
    }
    return cause;
  }

  /**
   * Replaces the content: after a crash, it is the old or the new one. Does nothing if it has not changed.
   *
   * @param cause Of the pause; null if the program is active.
   * @throws {Error} If it cannot be written.
   */
  write(cause: StatusCause | null): void {
    const { by, reason, since } = cause ?? {};
    const text = `${JSON.stringify({ status: cause === null ? ACTIVE : PAUSED, by, reason, since })}\n`;
    if (text === this.#text) return;
    writeAtomically(this.#target(), text, MODE);
    this.#text = text;
  }

  #parse(): StatusCause | null {
    try {
      const state = readJson(this.#path, MAX_BYTES);
      if (state === undefined) return null;
      const fields = isRecord(state) ? state : {};
      if (fields['status'] === ACTIVE) return null;
      if (fields['status'] === PAUSED) return parseCause(fields);
      throw new Error(`its "status" must be "${ACTIVE}" or "${PAUSED}"`);
    } catch (error) {
      const expected = 'remove the file to start active, or give another path';
      throw new UsageError(`cannot read --state '${this.#path}': ${(error as Error).message}; ${expected}`);
    }
  }

  /** A symbolic link stays, and leads to the file that is replaced. */
  #target(): string {
    const isLink = lstatSync(this.#path, { throwIfNoEntry: false })?.isSymbolicLink() === true;
    return isLink ? realpathSync(this.#path) : this.#path;
  }
}
