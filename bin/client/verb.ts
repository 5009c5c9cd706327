// What a verb of control-client is: its help, its options and what it does. main.ts runs it; also what verbs share.

import { EXIT, type Options, parseDuration, suggest, UsageError, type ValuesOf, warn } from '../shared/cli.ts';
import { EXIT_OF, type FailedReply } from '../shared/client.ts';
import { unreachable } from '../shared/via.ts';
import type { Command } from '../shared/commands.ts';
import type { Folder, Target } from '../shared/folder.ts';
import type { Sources } from '../shared/names.ts';

/** A command of control-client. Its options are parsed, and its targets found, before it runs. */
export interface Verb<Own extends Options = Options, Argument = unknown> extends Command {
  /** Its first argument: its name, its values unless only the system knows them, and what else it may be. */
  argument?: { name: string; values?: readonly string[]; other?: string };
  /** What follows `control-client` in the example of its help; by default, its name. */
  example?: string;
  /** The options that not all verbs have, with what they do here. */
  options?: Own;
  /** The options of all others that it does not have. */
  lacks?: readonly string[];
  /** It does not concern a system, so it has no targets. */
  isLocal?: true;
  /**
   * Takes its argument from the words after it; the targets remain.
   *
   * @throws {UsageError} If that is invalid, or options contradict each other.
   */
  take?(words: string[], values: Values<Own>): Argument;
  /** Which systems it means; without this, it finds them itself. */
  targets?(argument: Argument, values: Values<Own>): Meaning;
  /** May return an exit code. */
  run(task: Task<Own, Argument>): Promise<number | void> | number | void;
}

/** The values of its options, and of those that all verbs have. */
export type Values<Own extends Options> = ValuesOf<Own> & Sources & { json?: boolean | undefined };

/** The systems that a verb means. */
export interface Meaning {
  /** Without a target: all that run here, or one, so that several are a mistake. */
  several: 'all' | 'mistake';
  /** It waits for a system that may still start: without a target, with a time limit also for one that is named. */
  awaits?: { goal?: string; timeoutMs?: number | undefined };
  /** What a name without a live system means; by default, an error. */
  absence?: 'offline';
  /** What words may mean that are no targets. */
  hint?: string;
  /** It opens no links to machines first, and says itself which cannot be reached. */
  isQuick?: true;
  /** How the outcome without a system differs from that of one that is offline. */
  none?: Partial<Outcome>;
}

/** What a verb runs with. */
export interface Task<Own extends Options = Options, Argument = unknown> {
  argument: Argument;
  values: Values<Own>;
  /** The targets as written, and what they mean. */
  words: readonly string[];
  targets: readonly Target[];
  /** Where more systems may start that are meant. */
  folders: readonly Folder[];
  /** How long it has waited for a system to start. */
  waitedMs: number;
  /** The time limit of a request. */
  requestMs: number;
  /** Aborts when the output is closed. */
  end: AbortSignal;
  /** Does the work for all targets, or for these, and prints the outcomes; the exit code is the highest of all. */
  each(work: (target: Target) => Promise<Outcome | null>, targets?: readonly Target[]): Promise<void>;
}

/** The output for one target, and its exit code. */
export interface Outcome {
  exitCode: number;
  text?: string;
  /** What `--json` prints. */
  json?: object | undefined;
  /** Safe to print. */
  error?: string;
}

/** Types the values and the argument of a verb by its options and by what it takes. */
export function verb<const Own extends Options = {}, Argument = undefined>(of: Verb<Own, Argument>): Verb {
  return of as unknown as Verb;
}

/** What ends a verb from outside. SIGHUP: the terminal was closed. */
export const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

/** Of the verbs that make one request. */
export const TIMEOUT = {
  type: 'string', value: 'SECONDS', help: 'time limit, at most 5 (default)',
  parse: (option: string, text: string): number => parseDuration(option, text),
} as const;

export function failure(reply: FailedReply, status?: string): Outcome {
  const { error, fault, original, phase } = reply;
  const isForeign = fault === 'denied' && phase !== 'answered'; // by a web server that is no control server
  return { exitCode: isForeign ? EXIT.OFFLINE : EXIT_OF[fault], json: { status, error: original }, error };
}

/** Warns about machines that cannot be reached, and returns the exit code. */
export function warnUnreachable(): number {
  for (const message of unreachable.values()) warn(message);
  return unreachable.size > 0 ? EXIT.NO_ANSWER : EXIT.DONE;
}

/** @throws {UsageError} If the text is none of the values of an argument. */
export function parseChoice({ name, values = [], other }: NonNullable<Verb['argument']>, text?: string): string {
  if (text !== undefined && values.includes(text)) return text;
  const choices = `${values.join(', ')}${other === undefined ? '' : `, or ${other}`}`;
  const got = `${quote(text)}${suggest(text ?? '', values)}`;
  throw new UsageError(`the ${name.toLowerCase()} must be one of ${choices}, got ${got}`);
}

export function quote(text: string | undefined): string {
  return text === undefined ? 'nothing' : `'${text}'`;
}
