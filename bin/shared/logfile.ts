// The log of a tool that serves a web API: which file, and the lines that the tool itself appends. The server appends
// the others, see its option `log`.

import { closeSync, constants, fstatSync, openSync, readSync, statSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import { checkTrusted } from '../../control.ts';
import { type Option, parseText, type TextOption, UsageError } from './cli.ts';
import { createFolders, stateFolder } from './files.ts';
import { logFileOf } from './logs.ts';
import { printableJson } from './text.ts';

export const LOG_OPTIONS: { log: TextOption; 'no-log': Option & { type: 'boolean'; multiple?: false } } = {
  log: {
    type: 'string', value: 'FILE',
    help: 'log commands, statuses, starts and ends to this file (default: NAME@HOST.jsonl in ' +
      '$XDG_STATE_HOME/control/ or ~/.local/state/control/)',
  },
  'no-log': { type: 'boolean', help: 'log nothing' },
};

/** What each line of a log has, except its time. */
export interface LogEntry {
  name: string;
  pid: number;
  event: string;
  [field: string]: unknown;
}

/** The log of this process. An unusable file is reported once. */
export class LogFile {
  readonly #given: string | undefined;
  readonly #isOff: boolean;
  readonly #name: string;
  /** While it is open. */ path: string | undefined;
  #say: (message: string) => void = () => {};

  /**
   * @param name The name of the system.
   * @throws {UsageError} If the options contradict each other.
   */
  constructor(options: { log?: string | undefined; 'no-log'?: boolean | undefined }, name: string) {
    const { log, 'no-log': isOff = false } = options;
    if (log !== undefined && isOff) throw new UsageError('--log and --no-log are mutually exclusive');
    this.#given = log === undefined ? undefined : parseText('--log', log);
    this.#isOff = isOff;
    this.#name = name;
  }

  /**
   * Returns the path for the server if the file can be opened; undefined if nothing is logged.
   *
   * @param say Prints why nothing is logged by default, and later why a line is not.
   * @throws {UsageError} If the file was given and cannot be opened.
   */
  open(say: (message: string) => void): string | undefined {
    this.#say = say;
    if (this.#isOff) return undefined;
    let path = this.#given;
    try {
      if (path === undefined) createFolders(stateFolder(), 0o700);
      path ??= logFileOf(this.#name);
      if (process.geteuid !== undefined) checkTrusted(dirname(path)); // as the server will
      const isOpen = process.geteuid !== undefined && (statSync(dirname(path)).mode & 0o022) > 0; // in spite of sticky
      if (isOpen) throw new Error('others can write to its folder');
      appendTo(path);
      return this.path = path;
    } catch (error) {
      if (this.#given === undefined) say(`${explain(error, path)}; --log FILE logs to another file, --no-log to none`);
      else throw new UsageError(`${explain(error, path)}; --log requires a file of this user, in a folder of its own`);
      return undefined;
    }
  }

  /** Appends a line. A no-op unless the log is open. */
  append(event: string, fields: object): void {
    if (this.path === undefined) return;
    try {
      appendTo(this.path, this.entry(event, fields));
    } catch (error) {
      this.#say(explain(error, this.path));
      this.#say = () => {}; // once
    }
  }

  /** A line of this process. */
  entry(event: string, fields: object): LogEntry {
    return { name: this.#name, pid: process.pid, event, ...fields };
  }
}

/**
 * Appends a line with the present time, by one write. Nothing stays open: anybody may rename or truncate the file.
 *
 * @param entry Without it, only checks that the file can be opened for that.
 * @throws {Error} If it is not a regular file of this user, or cannot be written.
 */
export function appendTo(path: string, entry?: LogEntry): void {
  const { O_APPEND, O_CREAT, O_NOFOLLOW, O_NONBLOCK, O_RDWR } = constants; // Windows lacks two of them
  const file = openSync(path, O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0o600);
  try {
    const stats = fstatSync(file);
    if (!stats.isFile()) throw new Error('it is not a regular file');
    if (process.geteuid !== undefined && stats.uid !== process.geteuid()) throw new Error('it belongs to another user');
    if (entry === undefined) return;
    const end = Buffer.from('\n');
    if (stats.size > 0) readSync(file, end, 0, 1, stats.size - 1);
    const start = end[0] === 10 ? '' : '\n'; // the last line is incomplete
    const line = Buffer.from(`${start}${printableJson({ time: new Date().toISOString(), ...entry })}\n`);
    if (writeSync(file, line) < line.length) throw new Error('there is no room for more');
  } finally {
    closeSync(file);
  }
}

function explain(error: unknown, path: string | undefined): string {
  const { code, message } = error as NodeJS.ErrnoException;
  const reason = code === 'ELOOP' ? 'it is a symbolic link' : message;
  return path === undefined ? `cannot log: ${reason}` : `cannot log to '${path}': ${reason}`;
}
