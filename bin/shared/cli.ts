// The command line of all tools: exit codes, messages, colors, options, their values and help; the word that was meant.

import { parseArgs, styleText } from 'node:util';
import { VERSION } from '../../control.ts';
import { spareTerminalAtExit } from './terminal.ts';
import { printable } from './text.ts';
import type { WriteStream } from 'node:tty';

// ───── Exit codes ────────────────────────────────────────────────────────────────────────────────────────────────

export const EXIT = { DONE: 0, REFUSED: 1, USAGE: 2, OFFLINE: 3, NOT_REACHED: 4, NO_ANSWER: 5, ENDED: 6 } as const;

/** A usage error. Its message is one line with the option, the expected value and the value received. */
export class UsageError extends Error {}

/**
 * Runs a tool. `main` returns the exit code, and the tool keeps running until then: Node would end it, with 0, as soon
 * as all that `main` waits for is a link to another machine or a timer that does not keep it running.
 *
 * @param failure The exit code if the process ends earlier.
 * @param ownsOutput False if a child shares standard output: Node would make a pipe non-blocking for both.
 */
export async function run(
  name: string,
  main: () => Promise<number>,
  failure: number = EXIT.REFUSED,
  ownsOutput: boolean = true,
): Promise<void> {
  tool = name;
  process.exitCode = failure;
  const alive = setInterval(() => {}, 2 ** 30);
  if (ownsOutput) {
    watchOutput();
    spareTerminalAtExit();
  }
  try {
    process.exitCode = await main();
  } catch (error) {
    process.exitCode = error instanceof UsageError ? EXIT.USAGE : EXIT.REFUSED;
    warn(error instanceof Error ? error.message : String(error));
  }
  clearInterval(alive);
}

function watchOutput(): void {
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') return; // `… | head -1` must not fail
    if (error.code === 'EIO' && process.stdout.isTTY) return; // nor a tool whose terminal was closed
    warn(`cannot write to standard output: ${error.message}`);
    process.exit(EXIT.REFUSED);
  });
}

let tool = '';

/** Prints the name of the tool and a message, which may quote anything. */
export function warn(message: string): void {
  console.error(paintError(`${tool}: ${printable(message)}`));
}

// ───── The command line ──────────────────────────────────────────────────────────────────────────────────────────

/** An option, as `parseArgs()` takes it, and its help. */
export interface Option {
  type: 'string' | 'boolean';
  short?: string;
  multiple?: boolean;
  default?: string | boolean;
  /** What its value means: `SECONDS`. A switch has none. */
  value?: string;
  /** Empty if the tool only refuses the option, and why. */
  help: string;
  /** Completes its value: with these words (also after a comma), file names or host names. */
  completion?: readonly string[] | 'files' | 'hosts';
  /** Reads its value, and names the option in the error; without it, the value is the text. */
  parse?: (option: string, text: string) => unknown;
}

/** An option with a value. */
export type TextOption = Option & { type: 'string'; multiple?: false };
/** The same, which may be repeated. */
export type ListOption = Option & { type: 'string'; multiple: true };

const COMMON_OPTIONS = {
  help: { type: 'boolean', short: 'h', help: 'print this help' },
  version: { type: 'boolean', short: 'V', help: 'print the version' },
} as const satisfies Record<string, Option>;

export type Options = Readonly<Record<string, Option>>;
export type NamedOption = [name: string, option: Option];

type Value<T extends Option> = T extends { parse: (option: string, text: string) => infer V } ? V
  : T extends { type: 'boolean' } ? boolean : string;
type Given<T extends Option> = T extends { multiple: true } ? Value<T>[] : Value<T>;
type WithDefault<T extends Options> = { [K in keyof T as T[K] extends { default: unknown } ? K : never]: Given<T[K]> };
/** The values of options, as their `parse` returns them. */
export type ValuesOf<T extends Options> = { -readonly [K in keyof T]?: Given<T[K]> | undefined } & WithDefault<T>;

/** The options of a tool, and those of all tools. */
export function withCommon(options: Options): NamedOption[] {
  return Object.entries({ ...options, ...COMMON_OPTIONS });
}

/**
 * Parses the command line. Handles `--help` and `--version` itself and then returns null.
 *
 * @param help What `--help` prints; may depend on the first positional argument.
 * @throws {UsageError} If an option is unknown, given twice or lacks its value, if there are more than `maxPositionals`
 *   positional arguments, or if a value is invalid.
 */
export function parseOptions<const T extends Options>(
  options: T,
  help: string | ((word: string | undefined) => string),
  maxPositionals: number = 0,
  args: readonly string[] = process.argv.slice(2),
): { values: ValuesOf<T>; positionals: string[] } | null {
  let parsed;
  try {
    const config = { ...options, ...COMMON_OPTIONS };
    parsed = parseArgs({ args, options: config, strict: true, allowPositionals: true, tokens: true });
  } catch (error) {
    throw new UsageError(`${describeParseError(error as NodeJS.ErrnoException, options)}; see --help`);
  }
  const { help: wantsHelp, version: wantsVersion } = parsed.values as { help?: boolean; version?: boolean };
  if (wantsHelp || wantsVersion) {
    const text = typeof help === 'string' ? help : help(parsed.positionals[0]);
    console.log(wantsHelp ? wrap(text.replaceAll(/^\n|\n$/g, '')) : VERSION);
    return null;
  }
  const given = new Map<string, string>();
  for (const token of parsed.tokens) {
    if (token.kind !== 'option' || token.value === undefined || options[token.name]?.multiple === true) continue;
    const first = given.get(token.name);
    if (first === undefined) given.set(token.name, token.value);
    else throw new UsageError(`--${token.name} must be given only once, got '${first}' and '${token.value}'`);
  }
  const extra = parsed.positionals[maxPositionals];
  if (extra !== undefined) throw new UsageError(`unexpected argument '${extra}'; see --help`);
  const values = Object.entries(parsed.values).map(([name, value]) => {
    const { parse = (_: string, text: string): unknown => text } = options[name] ?? {};
    const read = (text: unknown): unknown => typeof text === 'string' ? parse(`--${name}`, text) : text;
    return [name, Array.isArray(value) ? value.map(read) : read(value)];
  });
  return { values: Object.fromEntries(values) as ValuesOf<T>, positionals: parsed.positionals };
}

/** The first sentence of a parseArgs error, in the style of the other messages. */
function describeParseError(error: NodeJS.ErrnoException, options: Options): string {
  const option = /'(?:-\w, )?(--[^' ]*)/.exec(error.message)?.[1] ?? '';
  if (error.message.includes('ambiguous')) {
    return `${option} requires a value (write ${option}=VALUE if it starts with a dash)`;
  }
  if (error.message.includes('argument missing')) return `${option} requires a value`;
  const sentence = error.message.split(/[.\n]\s/)[0] as string;
  const isUnknown = error.code === 'ERR_PARSE_ARGS_UNKNOWN_OPTION';
  const names = withCommon(options).flatMap(([name, { help }]) => help === '' ? [] : [name]);
  const hint = isUnknown ? suggest(option.slice(2), names, '--') : '';
  return sentence.charAt(0).toLowerCase() + sentence.slice(1) + hint;
}

// ───── The help ──────────────────────────────────────────────────────────────────────────────────────────────────

const LABEL_WIDTH = 22;
/** A label and the space after it, the name of the tool in a usage, or only space. */
const START = /^(?:( +\S.*?) {2,}|(?:Usage:| {6}) \S+ | *)/;

/** The lines of all options in the help. */
export function describeOptions(options: Options): string {
  const lines = withCommon(options).map(([name, { short, value, help }]) => {
    const label = `--${name}${value === undefined ? '' : ` ${value}`}`;
    return helpLine(short === undefined ? label : `-${short}, ${label}`, help);
  });
  return lines.join('\n');
}

/** An indented label and what it means, to be wrapped. */
export function helpLine(label: string, help: string): string {
  return `${`  ${label}`.padEnd(LABEL_WIDTH - 2)}  ${help}`;
}

/** Fills paragraphs for the width of the terminal. What follows a label stays in a column; a long label is alone. */
export function wrap(text: string, columns: number = process.stdout.columns || 80): string {
  const width = Math.max(40, Math.min(columns, 120));
  const lines = text.replaceAll(/(?<=^\S.*)\n(?=\S)/gm, ' ').split('\n').flatMap((line) => {
    if (line.startsWith('Example: ')) return [line]; // to be copied
    const [start = '', label = ''] = START.exec(line) ?? [];
    const indent = ' '.repeat(label.length > LABEL_WIDTH - 2 ? LABEL_WIDTH : start.length);
    const rows = start.length > indent.length ? [start, indent] : [start];
    for (const word of line.slice(start.length).split(' ')) {
      const row = rows.pop() as string;
      const fits = row.length + word.length <= width || row.trim() === '';
      rows.push(...fits ? [`${row}${word} `] : [row, `${indent}${word} `]);
    }
    return rows.map((row) => row.trimEnd());
  });
  return lines.join('\n');
}

/** `pause, resume or shutdown`. */
export function listOf(words: readonly string[]): string {
  return words.join(', ').replace(/, (?=[^,]*$)/, ' or ');
}

// ───── Values ────────────────────────────────────────────────────────────────────────────────────────────────────

/** @throws {UsageError} If the text is not a decimal integer in the range. */
export function parseInteger(option: string, text: string, min: number, max: number): number {
  const value = Number(text);
  if (/^\d+$/.test(text) && value >= min && value <= max) return value;
  throw new UsageError(`${option} must be an integer from ${min} to ${max}, got '${text}'`);
}

const SECONDS = { s: 1, m: 60, h: 3600, d: 86_400 } as const;

const TIMER_DAYS = 24; // the longest that a timer of Node takes

/**
 * A duration in milliseconds, given with its unit (`90s`, `30m`, `2h`, `1.5d`) or without it.
 *
 * @throws {UsageError} If the text is not a duration, or longer than `maxDays`.
 */
export function parseDuration(
  option: string,
  text: string,
  unit: 'seconds' | 'minutes' = 'seconds',
  maxDays: number = TIMER_DAYS,
  least: 'from 0' | 'above 0 and' = 'above 0 and',
): number {
  const [, digits = 'none', suffix = unit.charAt(0)] = /^(\d+\.?\d*|\.\d+)([smhd])?$/.exec(text) ?? [];
  const seconds = Number(digits) * SECONDS[suffix as keyof typeof SECONDS];
  if ((least === 'from 0' ? seconds >= 0 : seconds > 0) && seconds <= maxDays * SECONDS.d) return seconds * 1000;
  const form = `a number of ${unit} or a duration (30m, 2h, 1.5d), ${least} up to ${maxDays}d`;
  throw new UsageError(`${option} must be ${form}, got '${text}'`);
}

const PAST_DAYS = 3650;
const CLOCK = /^([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?$/;
const DATE = /^(\d{4}-\d\d-\d\d)(?:[T ](([01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?))?$/;

/**
 * A time in the past, local unless it has a zone, in milliseconds: `2026-11-23T03:00`, `3:00` (the latest one), or how
 * long ago: `8h`.
 *
 * @throws {UsageError} If the text is neither.
 */
export function parsePast(option: string, text: string, now: Date = new Date()): number {
  if (/[\d.][smhd]$/.test(text)) return now.getTime() - parseDuration(option, text, 'seconds', PAST_DAYS);
  const today = parseTime(text, now);
  const time = CLOCK.test(text) && today > now ? parseTime(text, now, -1) : today;
  if (time <= now) return time.getTime();
  throw new UsageError(`${option} must be a past time (3:00, 2026-11-23T03:00) or a duration (30m, 8h), got '${text}'`);
}

/**
 * Parses the next time with a clock, `14:00`, or a time with a date, `2026-11-23T14:00`, in milliseconds.
 *
 * @throws {UsageError} If the text is neither, or more than these days away.
 */
export function parseFuture(option: string, text: string, days: number, now: Date = new Date()): number {
  const today = parseTime(text, now);
  const time = CLOCK.test(text) && today <= now ? parseTime(text, now, 1) : today;
  if (time > now && time.getTime() - now.getTime() <= 86_400_000 * days) return time.getTime();
  throw new UsageError(`${option} must be a time in the next ${days} days (14:00, 2026-11-23T14:00), got '${text}'`);
}

/** Parses a clock of today, or of so many days later, or a date; an invalid date otherwise. */
function parseTime(text: string, now: Date, days: number = 0): Date {
  const [, hours, minutes, seconds = 0] = CLOCK.exec(text) ?? [];
  const [, date = '', clock = '00:00'] = DATE.exec(text) ?? [];
  const day = [now.getFullYear(), now.getMonth(), now.getDate() + days] as const;
  if (hours !== undefined) return new Date(...day, Number(hours), Number(minutes), Number(seconds));
  const isDate = new Date(`${date}T00:00Z`).toJSON()?.startsWith(date) === true; // not 02-30
  return new Date(isDate ? `${date}T${clock}` : NaN);
}

/** @throws {UsageError} If the text is empty. */
export function parseText(option: string, text: string): string {
  if (text === '') throw new UsageError(`${option} must not be empty`);
  return text;
}

// ───── Did you mean ──────────────────────────────────────────────────────────────────────────────────────────────

const MAX_MISTAKES = 2;
const LETTERS_PER_MISTAKE = 3; // with fewer, any short word resembles any other
const MAX_WORDS = 3;

/**
 * Returns ` (did you mean pause?)`, for the end of a message; empty if no words are near, or too many.
 *
 * @param words May come from anywhere: the result is not safe to print.
 * @param prefix Precedes each of them, such as `--`.
 */
export function suggest(word: string, words: Iterable<string>, prefix: string = ''): string {
  const typed = word.toLowerCase();
  const all = [...new Set(words)];
  const most = Math.min(MAX_MISTAKES, Math.floor(typed.length / LETTERS_PER_MISTAKE));
  let near: string[] = [];
  for (let mistakes = 0; near.length === 0 && mistakes <= most; mistakes += 1) {
    near = all.filter((other) => differsBy(mistakes, typed, other.toLowerCase()));
  }
  if (near.length === 0 && typed !== '') near = all.filter((other) => other.toLowerCase().startsWith(typed));
  if (near.length === 0 || near.length > MAX_WORDS) return '';
  return ` (did you mean ${near.map((one) => prefix + one).join(' or ')}?)`;
}

/** Whether no more than `mistakes` characters are missing, added, wrong, or swapped with the next one. */
function differsBy(mistakes: number, one: string, other: string): boolean {
  if (one === other) return true;
  if (mistakes === 0 || Math.abs(one.length - other.length) > mistakes) return false;
  let start = 0;
  while (one[start] === other[start]) start += 1;
  const isRest = (skipped: number, skippedOther: number): boolean => {
    return differsBy(mistakes - 1, one.slice(start + skipped), other.slice(start + skippedOther));
  };
  const isSwapped = one[start] === other[start + 1] && one[start + 1] === other[start];
  return isRest(1, 0) || isRest(0, 1) || isRest(1, 1) || (isSwapped && isRest(2, 2));
}

// ───── Colors ────────────────────────────────────────────────────────────────────────────────────────────────────

type Color = Parameters<typeof styleText>[0];

/** The colors of statuses, and of a system that asks; all others are red. */
const STATUS_COLORS: Readonly<Record<string, Color>> = {
  active: 'green', pausing: 'yellow', paused: 'yellow', resuming: 'yellow', 'shutting down': 'yellow',
  asks: 'cyan',
};

/** Colors a text for a stream, if it is a terminal with colors. */
function paint(text: string, color: Color, stream: WriteStream = process.stdout): string {
  if (!stream.isTTY || !stream.hasColors()) return text;
  return styleText(color, text, { validateStream: false });
}

/** Colors a text by the status that it reports. */
export function paintStatus(text: string, status: string): string {
  return paint(text, STATUS_COLORS[status] ?? 'red');
}

/** Colors an error message for stderr. */
export function paintError(message: string): string {
  return paint(message, 'red', process.stderr);
}
