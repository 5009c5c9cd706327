// The --state file: whether the program is paused, by whom, why and since when. A paused program starts paused again.
//
//   {"status":"paused","by":"ana@laptop","reason":"GPU needed until noon","since":"2026-11-23T06:00:00.000Z"}
//   {"status":"active"}

import { lstatSync, realpathSync } from 'node:fs';
import { SystemStatus } from '../../control.ts';
import { readJson, removeLeftovers, writeAtomically } from '../shared/line/files.ts';
import { UsageError } from '../shared/line/options.ts';
import { isRecord } from '../shared/words/text.ts';
import { parseCause } from './cause.ts';
import type { StatusCause } from '../../control.ts';

const MAX_BYTES = 65_536; // control-run writes less than 2,000
const MODE = 0o600; // a reason may be confidential

const ACTIVE = SystemStatus.ACTIVE.statusName;
const PAUSED = SystemStatus.PAUSED.statusName;

export class StateFile {
  readonly #path: string;
  #text = ''; // last written by this process

  constructor(path: string) {
    this.#path = path;
  }

  /**
   * Returns the cause if the program was paused; null if it was active or there is no file. Also writes the file, to
   * find out before the program starts whether that works.
   *
   * @throws {UsageError} If the content is invalid, or the file cannot be written.
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
   * Replaces the content atomically: after a crash, it is the old or the new one. A no-op if nothing has changed.
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

  /** Replaces the target of a symbolic link, not the link. */
  #target(): string {
    const isLink = lstatSync(this.#path, { throwIfNoEntry: false })?.isSymbolicLink() === true;
    return isLink ? realpathSync(this.#path) : this.#path;
  }
}
