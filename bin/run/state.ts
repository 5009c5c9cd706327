// The --state file: whether the program is paused, and who holds the pause. A paused program starts paused again.
//
//   {"status":"paused","holds":[{"by":"ana@laptop","reason":"night tariff","since":"2026-11-23T06:00:00.000Z"}]}
//   {"status":"active","holds":[]}
//
// Without `holds`, `by`, `reason`, `since` and `until` beside the status are those of the only hold.

import { lstatSync, realpathSync } from 'node:fs';
import { type StatusCause, SystemStatus } from '../../control.ts';
import { UsageError } from '../shared/cli.ts';
import { readJson, removeLeftovers, writeAtomically } from '../shared/files.ts';
import { excerpt, isRecord, tidy } from '../shared/text.ts';

const MAX_BYTES = 65_536; // control-run writes less than 9,000
const MODE = 0o600; // a reason may be confidential
const RETRY_MS = 2000; // of a failed write
const MAX_ERROR_LENGTH = 50; // the detail of `/api/info` must have room for it

const ACTIVE = SystemStatus.ACTIVE.statusName;
const PAUSED = SystemStatus.PAUSED.statusName;

export class StateFile {
  /** Why the file does not have the latest holds. Undefined if it has. */
  error: string | undefined;
  readonly #path: string;
  #text = ''; // last written by this process
  #retryTimer: NodeJS.Timeout | undefined; // during an error

  constructor(path: string) {
    this.#path = path;
  }

  /**
   * Returns the holds if the program was paused; none if it was active or there is no file. Also writes the file, to
   * find out before the program starts whether that works.
   *
   * @throws {UsageError} If the content is invalid, or the file cannot be written.
   */
  read(): readonly StatusCause[] {
    const holds = this.#parse();
    try {
      removeLeftovers(this.#target());
      this.#write(holds);
    } catch (error) {
      const expected = '--state requires a file that can be replaced, in a writable folder';
      throw new UsageError(`cannot write to '${this.#path}': ${(error as Error).message}; ${expected}`);
    }
    return holds;
  }

  /**
   * Writes the holds of a pause; none if the program is active. Retries a failed write until it succeeds, for example
   * once the disk has space again.
   */
  keep(holds: readonly StatusCause[]): void {
    clearTimeout(this.#retryTimer);
    try {
      this.#write(holds);
      this.error = undefined;
    } catch (error) {
      this.error = `not written: ${excerpt((error as Error).message, MAX_ERROR_LENGTH)}`;
      this.#retryTimer = setTimeout(() => this.keep(holds), RETRY_MS).unref();
    }
  }

  /** Replaces the content atomically: after a crash, it is the old or the new one. A no-op if nothing has changed. */
  #write(holds: readonly StatusCause[]): void {
    const text = `${JSON.stringify({ status: holds.length === 0 ? ACTIVE : PAUSED, holds })}\n`;
    if (text === this.#text) return;
    writeAtomically(this.#target(), text, MODE);
    this.#text = text;
  }

  #parse(): StatusCause[] {
    try {
      const state = readJson(this.#path, MAX_BYTES);
      if (state === undefined) return [];
      const fields = isRecord(state) ? state : {};
      if (fields['status'] === ACTIVE) return [];
      if (fields['status'] !== PAUSED) throw new Error(`its "status" must be "${ACTIVE}" or "${PAUSED}"`);
      const { holds = [fields] } = fields;
      const isList = Array.isArray(holds) && holds.length > 0 && holds.every(isRecord);
      if (!isList) throw new Error('its "holds" must be a list of objects, at least one');
      return holds.map(parseHold);
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
 * Checks the fields of a file that anybody may have edited. Without a time, or with one in the future, the hold
 * begins now.
 *
 * @throws {Error} If a field has the wrong type, or a time cannot be parsed.
 */
function parseHold({ by, reason, since, until }: Record<string, unknown>): StatusCause {
  const now = Date.now();
  const start = new Date(Math.min(parseTime('since', since) ?? now, now)).toISOString();
  const end = parseTime('until', until);
  return {
    ...parseText('by', by), ...parseText('reason', reason), since: start,
    ...end !== undefined && { until: new Date(end).toISOString() },
  };
}

function parseTime(name: string, value: unknown): number | undefined {
  if (value === undefined) return undefined;
  const time = Date.parse(typeof value === 'string' ? value : '');
  if (time >= 0) return time;
  throw new Error(`its "${name}" must be a time such as "${new Date().toISOString()}"`);
}

function parseText(name: string, value: unknown): Record<string, string> {
  if (value === undefined) return {};
  if (typeof value !== 'string') throw new Error(`its "${name}" must be a text`);
  return { [name]: tidy(value) };
}
