// The --state file: whether the program is paused, by whom, why and since when. A paused program starts paused again.
//
//   {"status":"paused","by":"ana@laptop","reason":"GPU needed until noon","since":"2026-11-23T06:00:00.000Z"}
//   {"status":"active"}

import { lstatSync, realpathSync } from 'node:fs';
import { SystemStatus } from '../../control.ts';
import { readJson, removeLeftovers, writeAtomically } from '../shared/line/files.ts';
import { UsageError } from '../shared/line/options.ts';
import { excerpt, isRecord, tidy } from '../shared/words/text.ts';
import type { StatusCause } from '../../control.ts';

const MAX_BYTES = 65_536; // control-run writes less than 2,000
const MODE = 0o600; // a reason may be confidential
const RETRY_MS = 2000; // of a failed write
const MAX_ERROR_LENGTH = 50; // the detail of `/api/info` must have room for it

const ACTIVE = SystemStatus.ACTIVE.statusName;
const PAUSED = SystemStatus.PAUSED.statusName;

export class StateFile {
  readonly #path: string;
  #text = ''; // last written by this process
  #error: string | undefined; // while it cannot be written
  #retryTimer: NodeJS.Timeout | undefined; // during that

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
      this.#write(cause);
    } catch (error) {
      const expected = '--state requires a file that can be replaced, in a writable folder';
      throw new UsageError(`cannot write to '${this.#path}': ${(error as Error).message}; ${expected}`);
    }
    return cause;
  }

  /** Why the file does not have the latest cause. Undefined if it has. */
  get error(): string | undefined {
    return this.#error;
  }

  /**
   * Writes the cause of a pause; null if the program is active. Retries a failed write until it succeeds, for example
   * once the disk has space again.
   */
  keep(cause: StatusCause | null): void {
    clearTimeout(this.#retryTimer);
    try {
      this.#write(cause);
      this.#error = undefined;
    } catch (error) {
      this.#error = `not written: ${excerpt((error as Error).message, MAX_ERROR_LENGTH)}`;
      this.#retryTimer = setTimeout(() => this.keep(cause), RETRY_MS).unref();
    }
  }

  /** Replaces the content atomically: after a crash, it is the old or the new one. A no-op if nothing has changed. */
  #write(cause: StatusCause | null): void {
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

/**
 * Checks the fields of a file that anybody may have edited. Without a time, or with one in the future, the pause
 * begins now.
 *
 * @throws {Error} If a field has the wrong type, or the time cannot be parsed.
 */
function parseCause({ by, reason, since }: Record<string, unknown>): StatusCause {
  const now = Date.now();
  const time = since === undefined ? now : Date.parse(typeof since === 'string' ? since : '');
  if (!(time > 0)) throw new Error(`its "since" must be a time such as "${new Date(now).toISOString()}"`);
  return {
    ...parseText('by', by), ...parseText('reason', reason), since: new Date(Math.min(time, now)).toISOString(),
  };
}

function parseText(name: string, value: unknown): Record<string, string> {
  if (value === undefined) return {};
  if (typeof value !== 'string') throw new Error(`its "${name}" must be a text`);
  return { [name]: tidy(value) };
}
