// Questions of a program, as /api/info lists them: what they take, how old they are, and how they end. The server may
// be any program, so every field may have any type and text.

import { UsageError } from '../line/options.ts';
import { completionsOf, isArgument, parametersIn, parseArguments, readArguments } from './accepts.ts';
import { excerpt, excerptOf, excerptOfJson, isRecord, MAX_VALUE_LENGTH, textOfJson } from './text.ts';
import { describeDuration, secondsSince, timeIn } from './time.ts';
import type { Body } from './text.ts';

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
const MAX_NAMED = 60; // characters of a message in an error
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
function yesOrNo({ parameters }: Question): string | null {
  const [[name, { type, enum: choices }] = ['', {} as Body], ...others] = parameters;
  return type === 'boolean' && choices === undefined && others.length === 0 ? name : null;
}

// ───── Showing ───────────────────────────────────────────────────────────────────────────────────────────────────

/** `Delete 3 branches? (answer yes or no)`, `Which file? (answer k3f-q2 file=… [note=…])`. */
export function describeQuestion(question: Question, needsId: boolean = false): string {
  const words = ['answer', needsId ? question.id : '', takenBy(question)].filter((word) => word !== '');
  return `${question.message} (${words.join(' ')})`;
}

/** `k3f-q2, asked 3 min ago, expires in 12 min`. */
export function describeTimes(question: Question): string {
  const [age, expiresAt] = [ageOf(question), timeIn(question.entry, 'expiresAt')];
  const left = describeDuration(Math.max(0, (expiresAt ?? 0) - Date.now()) / 1000);
  return [question.id, age && `asked ${age} ago`, expiresAt && `expires in ${left}`].filter(Boolean).join(', ');
}

/** What a question takes: `yes or no`, `file=… [note=…]`. Empty if an answer has no arguments. */
function takenBy(question: Question): string {
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

/** The open questions on one line: `asks: Delete 3 branches?`, `asks 2 questions: Delete 3 branches?`. Or empty. */
export function summarizeAsks(info: Body): string {
  const questions = questionsIn(info);
  const count = questions.length < 2 ? '' : ` ${questions.length} questions`;
  return questions[0] === undefined ? '' : `asks${count}: ${questions[0].message}`;
}

/** For an error: `open are k3f-q2 (Delete 3 branches?), k3f-q3 (Which file?)`. */
export function describeOpen(questions: readonly Pick<Question, 'id' | 'message'>[]): string {
  const texts = questions.map(({ id, message }) => `${id} (${excerpt(message, MAX_NAMED)})`);
  return `open are ${texts.join(', ') || 'none'}`;
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

/** What was answered: `approved=true (Delete 3 branches?)`. */
export function describeGiven({ message }: Pick<Question, 'message'>, given: object): string {
  return `${describeValues(given) || 'answered'} (${message})`;
}

/** Arguments almost as they are typed: `approved=true, note="looks good"`. No text looks like another argument. */
export function describeValues(given: unknown): string {
  const texts = Object.entries(isRecord(given) ? given : {}).map(([name, value]) => {
    const isPlain = typeof value !== 'string' || /^[^\s"',=]+$/.test(value);
    return `${name}=${excerptOfJson(isPlain ? value : JSON.stringify(value))}`;
  });
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
  const [word = '', other] = words;
  if (name !== null && other === undefined && Object.hasOwn(SHORT, word)) return { [name]: SHORT[word] };
  const wrong = words.find((text) => !isArgument(text));
  const taken = takenBy(question) || 'no arguments';
  if (wrong !== undefined) throw new UsageError(`${question.id} takes ${taken}, got ${wrong}`);
  return readArguments(parseArguments(words), { description: '', parameters: question.parameters });
}

/** The form of an id in which control.ts numbers questions: a word that is no argument may be a target. */
export function isQuestionId(word: string): boolean {
  return /^[a-z0-9]+-q\d+$/.test(word);
}

/**
 * Returns what the last word after `answer` may be: the id of a question, or what the question takes that is named
 * first, or else the only one.
 *
 * @param words As far as they are typed.
 * @param hasShort Whether `yes` and `no` may be typed.
 */
export function completeAnswer(questions: readonly Question[], words: readonly string[], hasShort: boolean): string[] {
  const current = words.at(-1) ?? '';
  const named = words.length < 2 ? undefined : questions.find(({ id }) => id === words[0]);
  const typed = named === undefined ? words : words.slice(1);
  const question = named ?? (questions.length === 1 ? questions[0] : undefined);
  const ids = words.length < 2 && (current !== '' || question === undefined) ? questions.map(({ id }) => id) : [];
  const found = ids.filter((id) => isQuestionId(id) && id.startsWith(current));
  if (question === undefined) return found;
  const short = hasShort && typed.length < 2 && yesOrNo(question) !== null ? Object.keys(SHORT) : [];
  if (short.length > 0 && current === '') return short;
  const declaration = { description: '', parameters: question.parameters };
  const declared = completionsOf(new Map([['answer', declaration]]), ['answer', ...typed]);
  return [...short.filter((word) => word.startsWith(current)), ...declared, ...found];
}
