// A report, the body of /api/info, in words: status, cause, detail, commands, ends. Any field may be anything.

import { UsageError } from './cli.ts';
import { describeAnswer, isAnswer, questionsIn } from './declared.ts';
import {
  ageOf, agoOf, type Body, clockTime, describeDuration, excerpt, excerptOf, excerptOfJson, isRecord, MAX_TIME,
  MAX_VALUE_LENGTH, textOfJson, timeIn,
} from './text.ts';

const MAX_COMMANDS = 18; // in the list of a server: the latest 16, what runs, and what has waited longest
const UNSEEN_MS = 3000; // in which a person may not have seen that questions have changed
const MAX_HOLDS = 16; // of a pause
const MAX_NAMES = 3; // of waiting commands
const MAX_OF = 1e300; // of a progress: 100 times as much must be finite
const BAR_WIDTH = 10; // of a progress
const NOW: string = describeDuration(0);

/** The status, its cause and what goes on: `paused 3 min ago by ana@laptop: GPU needed until noon`. */
export function describeStatus(info: Body): string {
  const status = textOf(info, 'status') || 'unknown';
  const isActive = status === 'active';
  const ago = status === 'paused' ? agoOf(timeIn(info, 'since')) : '';
  const story = status + ago + (isActive ? '' : describeCause(info));
  const commands = commandsOf(info);
  const waiting = commands.filter(({ state }) => state === 'waiting').map(commandOf);
  const names = waiting.length <= MAX_NAMES ? waiting.join(', ') : `${waiting.length} commands`;
  const queue = waiting.length === 0 ? '' : `; ${names} ${waiting.length === 1 ? 'waits' : 'wait'}`;
  const isShown = isActive || status === 'paused'; // the other statuses imply what runs
  const running = isShown ? commands.find(({ state }) => state === 'running') : undefined;
  const time = running === undefined ? '' : ageOf(timeIn(running, 'takenAt')) || NOW;
  if (running !== undefined && queue) return `${story}${queue} for ${commandOf(running)}, which has run for ${time}`;
  const mark = isActive ? ',' : ';';
  if (running !== undefined && time !== NOW) return `${story}${mark} running ${commandOf(running)} for ${time}`;
  const silence = ageOf(timeIn(info, 'heardAt'));
  const step = silence === '' || silence === NOW ? '' : `${mark} ${describeStep(status, silence)}`;
  return story + step + queue + (queue && isActive ? ' for the step' : '');
}

/** `in a step for 3 s`, of a program that has not looked for commands for this long. */
export function describeStep(status: string, age: string): string {
  return status === 'active' ? `in a step for ${age}` : `the program has not responded for ${age}`;
}

/** When a command or a question ended, in milliseconds; null if unknown. */
export function endedAt(entry: Body): number | null {
  const { seconds } = entry; // from the acceptance to the outcome
  const end = (timeIn(entry, 'at') ?? NaN) + (typeof seconds === 'number' ? 1000 * Math.max(0, seconds) : 0);
  return end < MAX_TIME ? end : null;
}

/** A command and its outcome: `pause by ana@laptop done in 2.10 s`, where a time below `leastSeconds` is left out. */
export function describeCommand(entry: Body, leastSeconds: number = 0): string {
  if (isAnswer(entry)) return describeAnswer(entry);
  const ended = textOf(entry, 'by') === 'itself' && textOf(endIn(entry['value']) ?? {}, 'ended');
  if (ended && ended === textOf(entry, 'reason')) return `ended by itself: ${ended}`; // listed as a shutdown
  const state = textOf(entry, 'state');
  const given = commandOf(entry) === 'resume' ? '' : excerptOfJson(entry['arguments']); // the end of a hold
  const [by, reason] = [textOf(entry, 'by'), textOf(entry, 'reason')];
  const who = (by && ` by ${by}`) + describeUntil(entry) + (reason && ` (${reason})`);
  const { seconds } = entry;
  const isShort = typeof seconds === 'number' ? seconds < leastSeconds : leastSeconds > 0;
  const time = typeof seconds === 'number' ? `${seconds.toFixed(2)} s` : 'an unknown time';
  const [value, error] = [valueIn(entry), excerptOf(entry['error'], MAX_VALUE_LENGTH)];
  const [id, within] = [textOf(entry, 'id'), entry['within']];
  const kill = typeof within === 'number' ? `, killed after ${describeDuration(within)}` : '';
  const outcomes: Record<string, string> = {
    done: `${isShort ? '' : ` done in ${time}`}${value && `: ${value}`}`,
    failed: isWithdrawn(entry) ? ` ${error}` : ` failed${isShort ? '' : ` after ${time}`}: ${error}`,
    refused: ` refused: ${error}`,
    running: ` running for ${ageOf(timeIn(entry, 'takenAt')) || NOW}${kill}`,
    waiting: ` waiting for ${ageOf(timeIn(entry, 'at')) || NOW}${kill}${id && ` (${id})`}`,
  };
  const start = commandOf(entry) + (given && ` ${given}`) + who;
  return start + (Object.hasOwn(outcomes, state) ? outcomes[state] : ` ${state}`);
}

/** The value of a command, or why it is missing: `states/….json`, `(omitted: the value must be JSON of …)`. */
export function valueIn(entry: Body): string {
  const reason = textOf(entry, 'valueOmitted');
  if (reason !== '') return `(omitted: ${reason})`;
  const { released } = Object(entry['value']); // the value of a resume with `mine`
  if (commandOf(entry) === 'resume' && typeof released === 'boolean') {
    return released ? 'released own hold' : 'held no pause';
  }
  const end = commandOf(entry) === 'shutdown' ? endIn(entry['value']) : null;
  return end === null ? excerptOfJson(entry['value']) : [savedIn(end), textOf(end, 'ended')].filter(Boolean).join('; ');
}

/** How the program under control-run has ended: the value of a shutdown, or part of `run`. Null if that is no end. */
export function endIn(value: unknown): Body | null {
  return isRecord(value) && typeof value['ended'] === 'string' && Number.isInteger(value['exitCode']) ? value : null;
}

/** What the last save of a program under control-run has returned. */
export function savedIn(end: Body): string {
  return excerptOf(end['saved'], MAX_VALUE_LENGTH);
}

/** Who and why, and when a hold ends: ` by ana@laptop until 14:00: GPU needed`, or an empty text. */
export function describeAuthor(info: Body): string {
  const by = textOf(info, 'by');
  const reason = textOf(info, 'reason');
  return (by && ` by ${by}`) + describeUntil(info) + (reason && `: ${reason}`);
}

function describeUntil(hold: Body): string {
  const time = timeIn(hold, 'until');
  return time === null ? '' : ` until ${clockTime(new Date(time)).replace(/(?<=:\d\d):00$/, '')}`;
}

/** Of a pause that is about to be renewed without an end: `, now without an end (was until 14:00)`. */
export function endLost(info: Body, by: string | undefined): string {
  const until = describeUntil(holdsOf(info).find((hold) => hold['by'] === (by || 'somebody')) ?? {});
  return until && `, now without an end (was${until})`;
}

/** The same for a status, and who else holds the pause: ` by ben@desk: B leaks memory; and by ana@laptop`. */
export function describeCause(info: Body): string {
  const [{ until } = {} as Body, ...others] = info['status'] === 'paused' ? holdsOf(info) : [];
  return [{ ...info, until }, ...others].map(describeAuthor).join('; and');
}

/** How a system that was shutting down has ended: `exit code 7`, or `shutdown by ana@laptop: GPU needed until noon`. */
export function describeEnd(info: Body): string {
  const reason = textOf(info, 'reason');
  return reason !== '' && textOf(info, 'by') === 'itself' ? reason : `shutdown${describeAuthor(info)}`;
}

/** Whether somebody has taken a command back, which is no failure of the program. */
export function isWithdrawn({ state, error }: Body): boolean {
  return state === 'failed' && /^withdrawn( by |: |$)/.test(excerptOf(error));
}

/** Whether a command in the list has its outcome. */
export function hasEnded({ state }: Body): boolean {
  return state === 'done' || state === 'failed';
}

export function commandsOf({ commands }: Body): Body[] {
  return Array.isArray(commands) ? commands.slice(-MAX_COMMANDS).map((entry) => Object(entry) as Body) : [];
}

/** Whether a question was asked or has ended a moment ago, by the clock of the system: that of the tool may differ. */
export function haveQuestionsChanged(info: Body): boolean {
  const entries = [...questionsIn(info).map(({ entry }) => entry), ...commandsOf(info).filter(isAnswer)];
  const times = entries.map((entry) => endedAt(entry) ?? NaN);
  const now = timeIn(info, 'heardAt') ?? NaN; // of the program's latest turn
  return times.some((time) => !(now - time >= UNSEEN_MS)); // an unknown time may be recent
}

/** Everybody who holds a pause, the oldest first. A hold without a name is that of `others`: there is no more room. */
export function holdsOf({ holds }: Body): Body[] {
  const held = Array.isArray(holds) ? holds.slice(0, MAX_HOLDS) : [];
  return held.map((hold) => ({ ...hold, by: excerptOf(hold?.by) || 'others' }));
}

function commandOf(entry: Body): string {
  return textOf(entry, 'command');
}

function textOf(body: Body, name: string): string {
  return excerptOf(body[name]);
}

/**
 * An object without braces and quotes, the progress first: `[####      ] 42 %, step 42 of 100, loss 0.31`. Omits what
 * control-run adds.
 *
 * @param secondsLeft Until the progress is complete, if known.
 */
export function describeDetail(detail: unknown, secondsLeft: number | null = null): string {
  if (detail === null || detail === undefined) return '';
  if (!isRecord(detail)) return excerpt(textOfJson(detail), MAX_VALUE_LENGTH);
  const progress = progressOf(detail);
  const fields = Object.entries(splitDetail(detail).own).flatMap(([name, value]) => {
    const isFraction = typeof value === 'number' && !Number.isInteger(value);
    const text = isFraction ? `${Number(value.toPrecision(6))}` : textOfJson(value);
    if (progress === null) return `${name} ${text}`;
    return name === 'of' ? [] : `${name} ${text}${name === progress.name ? ` of ${progress.of}` : ''}`;
  });
  if (progress !== null) {
    const bar = '#'.repeat(Math.floor(BAR_WIDTH * progress.done / progress.of)).padEnd(BAR_WIDTH);
    fields.unshift(`[${bar}] ${describeShare(progress, secondsLeft)}`);
  }
  return excerpt(fields.join(', '), MAX_VALUE_LENGTH);
}

/** `42 %, 3 min left`. Only a complete progress has 100 %, and a full bar. */
export function describeShare({ done, of }: Progress, secondsLeft: number | null): string {
  const left = secondsLeft === null ? '' : `, ${describeDuration(secondsLeft)} left`;
  return `${Math.floor(100 * done / of)} %${left}`;
}

// ───── The detail ────────────────────────────────────────────────────────────────────────────────────────────────

export interface Progress {
  /** What is counted: `step`. */
  name: string;
  done: number;
  of: number;
}

/** `{"step": 7, "of": 100}` means 7 steps of 100. Null if the program does not report its progress. */
export function progressOf(detail: unknown): Progress | null {
  const numbers = Object.entries(isRecord(detail) ? detail : {}).filter(([, value]) => typeof value === 'number');
  const index = numbers.findIndex(([name]) => name === 'of');
  const [name, done] = (numbers[index - 1] ?? []) as [string?, number?];
  const of = numbers[index]?.[1] as number | undefined;
  if (name === undefined || done === undefined || of === undefined) return null;
  return 0 <= done && done <= of && 0 < of && of <= MAX_OF ? { name, done, of } : null;
}

/** Separates what a program reports, which may be any other object `run`, from what control-run adds as `run`. */
export function splitDetail(detail: unknown): { own: Record<string, unknown>; run: Record<string, unknown> } {
  const all = isRecord(detail) ? detail : {};
  const added = all['run'];
  const isOfRun = isRecord(added) && Number.isSafeInteger(added['pid']) && typeof added['started'] === 'string';
  if (!isOfRun) return { own: all, run: {} };
  const { run, ...own } = all;
  return { own, run: added };
}

// ───── Conditions on a field of the detail ───────────────────────────────────────────────────────────────────────

/** A word between a field and a number. */
export const OPERATOR: RegExp = /^(<=|>=|!=|==?|<|>)$/;
const FORM = /^\s*([^<>=!]*[^<>=!\s])\s*(<=|>=|!=|==?|<|>)\s*([^<>=!\s].*?)\s*$/s;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

export interface Condition {
  /** As typed. */
  text: string;
  field: string;
  isMetBy(value: unknown): boolean;
}

/** Whether a text is meant as a condition: no status contains such a character. */
export function isCondition(text: string): boolean {
  return /[<>=!]/.test(text);
}

/** @throws {UsageError} If the text is not a comparison, or compares the order of texts. */
export function parseCondition(text: string): Condition {
  const [, field, operator = '', typed = ''] = FORM.exec(text) ?? [];
  const operand = typed.replace(/^(["'])(.*)\1$/s, '$2');
  const number = NUMBER.test(operand) ? Number(operand) : NaN;
  if (field === undefined || (/[<>]/.test(operator) && Number.isNaN(number))) {
    const form = 'FIELD < NUMBER (or <=, >, >=, =, !=) or FIELD = TEXT (or !=)';
    throw new UsageError(`a condition must be ${form}, got '${text}'`);
  }
  if (operand === typed && /[<>=]/.test(typed)) { // `a = 1 and b < 2` would wait for this text for ever
    throw new UsageError(`a condition must be one comparison; a text with <, > or = needs quotes, got '${text}'`);
  }
  const isMetBy = (value: unknown): boolean => { // only numbers are less or greater; a missing field meets nothing
    const own = typeof value === 'number' ? value : NaN;
    const isEqual = own === number || textOfJson(value) === operand;
    switch (operator) {
      case '<': return own < number;
      case '<=': return own <= number;
      case '>': return own > number;
      case '>=': return own >= number;
      case '!=': return value !== undefined && !isEqual;
      default: return isEqual;
    }
  };
  return { text: text.trim(), field, isMetBy };
}

/** The fields of a detail by name. Names of those that control-run adds begin with `run.`. */
export function fieldsOf(detail: unknown): Map<string, unknown> {
  const { own, run } = splitDetail(detail);
  const added = Object.entries(run).map(([name, value]): [string, unknown] => [`run.${name}`, value]);
  return new Map([...Object.entries(own), ...added]);
}

// ───── How a program under control-run has ended ─────────────────────────────────────────────────────────────────

/** Exit codes of an end that was requested: 0, and those of SIGHUP, SIGINT, SIGPIPE and SIGTERM. */
const REQUESTED: readonly unknown[] = [0, 129, 130, 141, 143];

/** Whether a failure of the program is the cause of a shutdown, which is a status or a command. */
export function isCrash(cause: Body): boolean {
  const latest = commandsOf(cause).filter(({ command }) => command === 'shutdown').at(-1) ?? {};
  const end = endIn(cause['value']) ?? endIn(splitDetail(cause['detail']).run) ?? endIn(latest['value']);
  return cause['by'] === 'itself' && end !== null && !REQUESTED.includes(end['exitCode']);
}

/** The value of the last save; empty if the value of a shutdown only reports how the program has ended. */
export function savedBy(shutdown: Body): string {
  const end = endIn(shutdown['value']);
  return end === null ? excerptOfJson(shutdown['value']) : savedIn(end);
}

/** Whether the program has a way to save, as far as control-run knows. */
export function canSaveIn({ detail }: Body): boolean {
  return splitDetail(detail).run['canSave'] !== false;
}

/** Whether an entry is a save that control-run has refused: none has failed. For 10 s, `canSave` is unknown. */
export function isRefusedSave({ command, state, error }: Body, info: Body): boolean {
  if (command !== 'save-state' || state !== 'failed') return false;
  const isOfRun = splitDetail(info['detail']).run['pid'] !== undefined;
  return !canSaveIn(info) || (isOfRun && /^no way to save: start control-run /.test(excerptOf(error)));
}
