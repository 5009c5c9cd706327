// What a program declares in /api/info, its own commands and its questions: how they are typed, shown and completed.
// The server may be any program, so every field may have any type and text.

import { helpLine, UsageError, wrap } from './cli.ts';
import {
  ageOf, type Body, clockTime, describeDuration, excerpt, excerptOf, excerptOfJson, isRecord, MAX_VALUE_LENGTH,
  textOfJson, timeIn,
} from './text.ts';

/** What takes arguments. */
interface Taker {
  parameters: ReadonlyMap<string, Body>;
}

/** The commands by name. */
type Accepts = ReadonlyMap<string, Taker & { description: string }>;

/** The commands that every system takes. They have no arguments. */
export const CONTROL_COMMANDS: readonly string[] = ['pause', 'resume', 'shutdown', 'save-state'];

/** Names that no program can declare. */
export const RESERVED: readonly string[] = [...CONTROL_COMMANDS, 'status', 'info', 'stack', 'answer', 'withdraw'];
export const COMMAND: RegExp = /^[a-z][a-z0-9-]{0,31}$/;
const PARAMETER = /^[A-Za-z]\w{0,31}$/;
const ARGUMENT = /^([^:=]*)=(.*)$/s; // of any name: the server knows which exist. `unix:a=b` is a target
const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/; // of JSON
const PLAIN = /^[\w.+-]+$/; // a value that no shell expands

/** Time limit of a completion's request. During a step, /api/info takes 250 ms, because it waits for describe(). */
export const COMPLETION_MS = 500;

/** The own commands in the body of /api/info. */
export function acceptedBy(info: Body): Accepts {
  const entries = [...declaredIn(info['accepts'], COMMAND)].filter(([name]) => !RESERVED.includes(name));
  return new Map(entries.map(([name, { description, parameters }]) => {
    return [name, { description: excerptOf(description), parameters: declaredIn(parameters, PARAMETER) }];
  }));
}

/** The fields whose names have a form: commands, or parameters of a command or a question. */
function declaredIn(field: unknown, form: RegExp): ReadonlyMap<string, Body> {
  const entries = Object.entries(Object(field) as Body).filter(([name]) => form.test(name));
  return new Map(entries.map(([name, value]) => [name, Object(value) as Body]));
}

// ───── Own commands: typing ──────────────────────────────────────────────────────────────────────────────────────

/** Arguments as typed: the text of each, or one object with all of them. */
export type Typed = ReadonlyMap<string, string> | Body;

/** The words of a line. Quotes keep spaces, and a JSON object takes the rest of the line. */
export function splitWords(line: string): string[] {
  return [...line.matchAll(/\{.*|(?:[^\s"']|"[^"]*"|'[^']*'|["'])+/gs)].map(([word]) => {
    return word.startsWith('{') ? word : word.replaceAll(/"([^"]*)"|'([^']*)'/g, '$1$2');
  });
}

/** Whether a word is `name=value` or a JSON object. */
export function isArgument(word: string): boolean {
  return word.startsWith('{') || ARGUMENT.test(word);
}

/** @throws {UsageError} If the words are not arguments, or contradict each other. */
export function parseArguments(words: readonly string[]): Typed {
  const [first, second] = words;
  if (first?.startsWith('{') === true) {
    if (second !== undefined) {
      throw new UsageError(`one JSON object must hold all arguments, got '${first}' and '${second}'`);
    }
    try {
      return JSON.parse(first) as Body; // it begins with a brace
    } catch (error) {
      throw new UsageError(`the arguments must be a JSON object, got '${first}': ${(error as Error).message}`);
    }
  }
  const typed = new Map<string, string>();
  for (const word of words) {
    const [, name, text = ''] = ARGUMENT.exec(word) ?? [];
    if (name === undefined) throw new UsageError(`an argument must be name=value or one JSON object, got '${word}'`);
    const before = typed.get(name);
    if (before !== undefined) throw new UsageError(`${name} must be given only once, got '${before}' and '${text}'`);
    typed.set(name, text);
  }
  return typed;
}

/** Reads each text as the declared type. A text that cannot be read stays a text; the server refuses it. */
export function readArguments(typed: Typed, { parameters }: Taker): object {
  if (!(typed instanceof Map)) return typed;
  const entries = [...typed as ReadonlyMap<string, string>].map(([name, text]) => {
    return [name, readValue(text, parameters.get(name)?.['type'])];
  });
  return Object.fromEntries(entries) as object;
}

function readValue(text: string, type: unknown): boolean | number | string {
  if (type === 'boolean' && /^(true|false)$/.test(text)) return text === 'true';
  if ((type !== 'integer' && type !== 'number') || !NUMBER.test(text)) return text;
  const value = Number(text);
  const isExact = type === 'integer' ? Number.isSafeInteger(value) : Number.isFinite(value); // not 2⁵³ + 1, nor 1e999
  return isExact ? value : text;
}

// ───── Own commands: showing ─────────────────────────────────────────────────────────────────────────────────────

/** Lines for the help: each command, what it does, and its parameters. */
export function describeAccepts(accepts: Accepts): string {
  const lines = [...accepts].flatMap(([name, { description, parameters }]) => {
    return [wrap(helpLine(name, description)), ...[...parameters].map(describeParameter)];
  });
  return lines.map((line) => line.trimEnd()).join('\n');
}

/** `episodes  an integer from 1 to 1000 (default 100): how many`. */
export function describeParameter([name, parameter]: [string, Body]): string {
  const { default: initial, description } = parameter;
  const need = initial === undefined ? 'required' : `default ${excerptOfJson(initial) || "''"}`;
  const help = excerptOf(description);
  return wrap(helpLine(`  ${name}`, `${excerpt(formOf(parameter))} (${need})${help && `: ${help}`}`));
}

/** In the words of the server's error messages, except for booleans, which users type as true or false. */
export function formOf(parameter: Body): string {
  const { type, enum: choices } = parameter;
  if (Array.isArray(choices)) return `one of ${choices.map(textOfJson).join(', ')}`;
  if (type === 'boolean') return 'true or false';
  const article = type === 'integer' || type === 'object' ? 'an' : 'a';
  const limits = limitsOf(parameter);
  return `${article} ${excerptOf(type) || 'value'}${limits && (type === 'string' ? ` of ${limits}` : ` ${limits}`)}`;
}

/** `from 1 to 1000`, or of a string `at most 20 characters`. */
export function limitsOf({ type, minimum, maximum, minLength, maxLength }: Body): string {
  if (type === 'string') {
    const least = typeof minLength === 'number' ? `${minLength} to` : 'at most';
    return typeof maxLength === 'number' ? `${least} ${maxLength} characters` : '';
  }
  const from = typeof minimum === 'number' ? `from ${minimum}` : '';
  if (typeof maximum !== 'number') return from;
  return `${from === '' ? 'up' : from} to ${maximum}`;
}

// ───── Own commands: completing ──────────────────────────────────────────────────────────────────────────────────

/** The words of a line that is being typed. The last one is unfinished and may be empty. */
export function wordsBefore(line: string): string[] {
  return /\S$/.test(line) ? splitWords(line) : [...splitWords(line), ''];
}

/**
 * Returns what the last word may be: the name of a command, `parameter=`, or a value after that.
 *
 * @param words The name and the arguments, as far as they are typed.
 */
export function completionsOf(accepts: ReadonlyMap<string, Taker>, words: readonly string[]): string[] {
  const current = words.at(-1) ?? '';
  const [name = '', ...given] = words.slice(0, -1);
  const all = words.length < 2 ? [...accepts.keys()] : [...accepts.get(name)?.parameters ?? []].flatMap((entry) => {
    const [parameter, declared] = entry;
    const start = `${parameter}=`;
    if (given.some((word) => word.startsWith(start) || word.startsWith('{'))) return [];
    if (!current.startsWith(start)) return [start];
    return valuesOf(declared).filter((value) => PLAIN.test(value)).map((value) => start + value);
  });
  return all.filter((word) => word.startsWith(current));
}

/** All values that a parameter takes, if they are listed. */
function valuesOf({ type, enum: choices }: Body): string[] {
  if (type === 'boolean') return ['true', 'false'];
  return Array.isArray(choices) ? choices.map(textOfJson) : [];
}

// ───── Questions ─────────────────────────────────────────────────────────────────────────────────────────────────

/** An open question. Its texts are safe to print. */
export interface Question extends Taker {
  id: string;
  message: string;
  /** As received. Not safe to print. */
  entry: Body;
}

const MAX_QUESTIONS = 16; // of a server
const MAX_NAMED = 60; // characters of a message in an error
const MAX_CHOICES = 40; // characters of the values of a parameter
const SHORT: Readonly<Record<string, boolean>> = { yes: true, no: false };

/** The open questions, the oldest first. */
export function questionsIn({ asks }: Body): Question[] {
  return (Array.isArray(asks) ? asks : []).slice(0, MAX_QUESTIONS).filter(isRecord).map((entry) => {
    const parameters = declaredIn(entry['parameters'], PARAMETER);
    return { id: excerptOf(entry['id']), message: messageIn(entry), parameters, entry };
  });
}

/** Whether an entry of `commands`, or of the log, is the end of a question. Own commands have no message. */
export function isAnswer({ command, message }: Body): boolean {
  return command === 'answer' && typeof message === 'string';
}

export function messageIn(entry: Body): string {
  const [at, answeredAt] = [timeIn(entry, 'at'), timeIn(entry, 'answeredAt')]; // if its key had an answer
  const answered = at && answeredAt && `, answered ${clockTime(new Date(answeredAt), new Date(at))}`;
  return excerptOf(entry['message'], MAX_VALUE_LENGTH) + (answered || '');
}

/** The parameter of a question that yes or no answers: its only one, and a boolean. Otherwise null. */
function yesOrNo({ parameters }: Question): string | null {
  const [[name, { type, enum: choices }] = ['', {} as Body], ...others] = parameters;
  return type === 'boolean' && choices === undefined && others.length === 0 ? name : null;
}

// ───── Questions: showing ────────────────────────────────────────────────────────────────────────────────────────

/** `Delete 3 branches? (answer yes or no)`, `Which file? (answer k3f-q2 file=… [note=…])`. */
export function describeQuestion(question: Question, needsId: boolean = false): string {
  const words = ['answer', needsId ? question.id : '', takenBy(question)].filter((word) => word !== '');
  return `${question.message} (${words.join(' ')})`;
}

/** `key deploy 4711, asked 3 min ago, expires in 12 min`; before it the id, if that is given. */
export function timesOf({ entry }: Question, id: string = ''): string {
  const [key, age, expiresAt] = [excerptOf(entry['key']), ageOf(timeIn(entry, 'at')), timeIn(entry, 'expiresAt')];
  const left = describeDuration(Math.max(0, (expiresAt ?? 0) - Date.now()) / 1000);
  const parts = [id, key && `key ${key}`, age && `asked ${age} ago`, expiresAt && `expires in ${left}`];
  return parts.filter(Boolean).join(', ');
}

/** What a question takes: `yes or no`, `file=… [note=…]`. Empty if an answer has no arguments. */
function takenBy(question: Question): string {
  if (yesOrNo(question) !== null) return 'yes or no';
  return excerpt([...question.parameters].map(([name, parameter]) => {
    const text = valuesOf(parameter).join('|');
    const form = `${name}=${text === '' || text.length > MAX_CHOICES ? '…' : text}`;
    return parameter['default'] === undefined ? form : `[${form}]`;
  }).join(' '));
}

/** The open questions on one line: `asks: Delete 3 branches?`, `asks 2 questions: Delete 3 branches?`. Or empty. */
export function summarizeAsks(info: Body): string {
  const questions = questionsIn(info);
  const count = questions.length < 2 ? '' : ` ${questions.length} questions`;
  return questions[0] === undefined ? '' : `asks${count}: ${questions[0].message}`;
}

/** For an error: `open are k3f-q2 (Delete 3 branches?), k3f-q3 (Which file?)`, or `none is open`. */
export function describeOpen(questions: readonly Pick<Question, 'id' | 'message'>[]): string {
  const texts = questions.map(({ id, message }) => `${id} (${excerpt(message, MAX_NAMED)})`);
  return texts.length === 0 ? 'none is open' : `open are ${texts.join(', ')}`;
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

// ───── Questions: typing ─────────────────────────────────────────────────────────────────────────────────────────

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
  return readArguments(parseArguments(words), question);
}

/** The form of an id in which control.ts numbers commands. */
export function isCommandId(word: string): boolean {
  return /^[a-z0-9]+-i?\d+$/.test(word);
}

/** The same for questions: a word that is no argument may be a target. */
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
  const declared = completionsOf(new Map([['answer', question]]), ['answer', ...typed]);
  return [...short.filter((word) => word.startsWith(current)), ...declared, ...found];
}

// ───── The stack ─────────────────────────────────────────────────────────────────────────────────────────────────

/** The functions in the body of /api/stack, a line each, or a line that says why there are none. */
export function stackIn({ stack }: Body): string[] {
  if (Array.isArray(stack) && stack.length > 0) return stack.map((frame) => excerptOf(frame, MAX_VALUE_LENGTH));
  return ['no function runs: it waits for an event or a promise, or is between two microtasks'];
}
