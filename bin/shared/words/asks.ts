// Questions of a program, as /api/info lists them: what they take, how old they are, and how they end. The server may
// be any program, so every field may have any type and text.

import { completionsOf, parametersIn, parseArguments, readArguments } from './accepts.ts';
import { excerpt, excerptOf, excerptOfJson, isRecord, MAX_VALUE_LENGTH, textOfJson } from './text.ts';
import { describeDuration, secondsSince, timeIn } from './time.ts';
import type { Body } from './time.ts';

/** An open question. Its texts are safe to print. */
export interface Question {
  id: string;
  message: string;
  /** As those of an own command. */
  parameters: ReadonlyMap<string, Body>;
  /** As received. Not safe to print. */
  entry: Body;
}

const MAX_QUESTIONS = 16; // of a server
const MAX_CHOICES = 40; // characters of the values of a parameter
const SHORT: Readonly<Record<string, boolean>> = { yes: true, no: false };

/** The open questions, the oldest first. Null if the server is older than 0.18 and has none. */
export function asksIn({ asks }: Body): Question[] | null {
  if (!Array.isArray(asks)) return null;
  return asks.slice(0, MAX_QUESTIONS).filter(isRecord).map((entry) => {
    const { id, parameters } = entry;
    return { id: excerptOf(id), message: messageIn(entry), parameters: parametersIn(parameters), entry };
  });
}

/** The same; empty if the server has none. */
export function questionsIn(info: Body): Question[] {
  return asksIn(info) ?? [];
}

/** Whether an entry of `commands`, or of the log, is the end of a question. Own commands have no message. */
export function isAnswer({ command, message }: Body): boolean {
  return command === 'answer' && typeof message === 'string';
}

export function messageIn({ message }: Body): string {
  return excerptOf(message, MAX_VALUE_LENGTH);
}

/** The parameter of a question that yes or no answers: its only one, and a boolean. Otherwise null. */
export function yesOrNo({ parameters }: Question): string | null {
  const [[name, { type, enum: choices }] = ['', {} as Body], ...others] = parameters;
  return type === 'boolean' && choices === undefined && others.length === 0 ? name : null;
}

// ───── Showing ───────────────────────────────────────────────────────────────────────────────────────────────────

/** `Delete 3 branches? (answer yes or no)`, `Which file? (answer file=… [note=…])`. */
export function describeQuestion(question: Question, ...more: string[]): string {
  return `${question.message} (${[`answer ${takenBy(question)}`.trimEnd(), ...more].join('; ')})`;
}

/** The same, and its age: `Delete 3 branches? (answer yes or no; asked 3 min ago, expires in 12 min)`. */
export function describeAsked(question: Question): string {
  const age = ageOf(question);
  const times = [age && `asked ${age} ago`, expiryOf(question)].filter((text) => text !== '');
  return describeQuestion(question, ...times.length === 0 ? [] : [times.join(', ')]);
}

/** What a question takes: `yes or no`, `file=… [note=…]`. Empty if an answer has no arguments. */
export function takenBy(question: Question): string {
  if (yesOrNo(question) !== null) return 'yes or no';
  return excerpt([...question.parameters].map(([name, { type, enum: choices, default: initial }]) => {
    const values = type === 'boolean' ? ['true', 'false'] : Array.isArray(choices) ? choices.map(textOfJson) : [];
    const text = values.join('|');
    const form = `${name}=${text === '' || text.length > MAX_CHOICES ? '…' : text}`;
    return initial === undefined ? form : `[${form}]`;
  }).join(' '));
}

/** How long it has been open: `3 min`. Empty if unknown. */
export function ageOf({ entry }: Question): string {
  const age = secondsSince(entry, 'at');
  return age === null ? '' : describeDuration(age);
}

/** `expires in 12 min`. Empty if it does not expire. */
export function expiryOf({ entry }: Question): string {
  const time = timeIn(entry, 'expiresAt');
  return time === null ? '' : `expires in ${describeDuration(Math.max(0, time - Date.now()) / 1000)}`;
}

/** The end of a question: `answer by ana@phone: approved=true (Delete 3 branches?)`, `Delete 3 branches? expired`. */
export function describeAnswer(entry: Body): string {
  const { state, error, by, reason, arguments: given } = entry;
  const message = messageIn(entry);
  if (state !== 'done') return `${message} ${excerptOf(error) || excerptOf(state)}`;
  const why = excerptOf(reason);
  const who = `answer by ${excerptOf(by) || 'somebody'}${why && ` (${why})`}`;
  const values = describeValues(given);
  return `${who}${values && `: ${values}`} (${message})`;
}

/** Arguments as they are typed: `approved=true, note=looks good`. */
export function describeValues(given: unknown): string {
  const texts = Object.entries(isRecord(given) ? given : {}).map(([name, value]) => `${name}=${excerptOfJson(value)}`);
  return excerpt(texts.join(', '), MAX_VALUE_LENGTH);
}

/** Why a system has no questions, if `asksIn()` is null. */
export function describeLack({ version }: Body): string {
  return `questions require a server of version 0.18 or later, got ${excerptOf(version) || 'an unknown one'}`;
}

// ───── Typing ────────────────────────────────────────────────────────────────────────────────────────────────────

/**
 * Reads an answer as typed: `yes` or `no` if the question takes that, or the arguments as those of an own command.
 *
 * @throws {UsageError} If the words are neither.
 */
export function readAnswer(question: Question, words: readonly string[]): object {
  const name = yesOrNo(question);
  const [word = '', ...others] = words;
  if (name !== null && others.length === 0 && Object.hasOwn(SHORT, word)) return { [name]: SHORT[word] };
  return readArguments(parseArguments(words), { description: '', parameters: question.parameters });
}

/** What the last word of an answer may be; the words before it are typed. */
export function answersTo(question: Question, words: readonly string[]): string[] {
  const { parameters } = question;
  const short = yesOrNo(question) !== null && words.length < 2 ? Object.keys(SHORT) : [];
  const declared = completionsOf(new Map([['answer', { description: '', parameters }]]), ['answer', ...words]);
  return [...short.filter((word) => word.startsWith(words.at(-1) ?? '')), ...declared];
}
