// Own commands of a program, as /api/info lists them: how they are typed, described and completed. The server may be
// any program, so everything but the names may have any type and text.

import { helpLine, UsageError } from '../line/options.ts';
import { excerpt, excerptOf, excerptOfJson, isRecord, textOfJson } from './text.ts';
import type { PrintableReply } from '../reach/replies.ts';
import type { Body } from './text.ts';

export interface Declaration {
  description: string;
  parameters: ReadonlyMap<string, Body>;
}

/** The commands by name. */
export type Accepts = ReadonlyMap<string, Declaration>;

/** The commands that every system takes. They have no arguments. */
export const CONTROL_COMMANDS: readonly string[] = ['pause', 'resume', 'shutdown', 'save-state'];

/** Names that no program can declare. */
export const RESERVED: readonly string[] = [...CONTROL_COMMANDS, 'status', 'info', 'answer'];
export const COMMAND: RegExp = /^[a-z][a-z0-9-]{0,31}$/;
const PARAMETER = /^[A-Za-z]\w{0,31}$/;
const ARGUMENT = /^([^:=]*)=(.*)$/s; // of any name: the server knows which exist. `unix:a=b` is a target
const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/; // of JSON
const PLAIN = /^[\w.+-]+$/; // a value that no shell expands

/** Time limit of a completion's request. During a step, /api/info takes 250 ms, because it waits for describe(). */
export const COMPLETION_MS = 500;

/** Returns null if the server does not list any. */
export function acceptedBy(info: Body): Accepts | null {
  if (!isRecord(info['accepts'])) return null;
  const entries = declaredIn(info['accepts'], COMMAND).filter(([name]) => !RESERVED.includes(name));
  return new Map(entries.map(([name, { description, parameters }]) => {
    return [name, { description: excerptOf(description), parameters: parametersIn(parameters) }];
  }));
}

/** The parameters of a command or a question by name. */
export function parametersIn(field: unknown): ReadonlyMap<string, Body> {
  return new Map(declaredIn(field, PARAMETER));
}

/** The same for a reply; empty if they are unknown. */
export function acceptedIn(info: PrintableReply | undefined): Accepts {
  return (info?.ok === true ? acceptedBy(info.body) : null) ?? new Map();
}

function declaredIn(field: unknown, form: RegExp): [name: string, value: Body][] {
  const entries = Object.entries(Object(field) as Body).filter(([name]) => form.test(name));
  return entries.map(([name, value]) => [name, Object(value) as Body]);
}

// ───── Typing ────────────────────────────────────────────────────────────────────────────────────────────────────

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
    if (second === undefined) return parseObject(first);
    throw new UsageError(`one JSON object must hold all arguments, got '${first}' and '${second}'`);
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

function parseObject(text: string): Body {
  try {
    return JSON.parse(text) as Body; // it begins with a brace
  } catch (error) {
    throw new UsageError(`the arguments must be a JSON object, got '${text}': ${(error as Error).message}`);
  }
}

/** Reads each text as the declared type. A text that cannot be read stays a text; the server refuses it. */
export function readArguments(typed: Typed, { parameters }: Declaration): object {
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

// ───── Showing ───────────────────────────────────────────────────────────────────────────────────────────────────

/** Lines for the help: each command, what it does, and its parameters. */
export function describeAccepts(accepts: Accepts): string {
  const lines = [...accepts].flatMap(([name, { description, parameters }]) => {
    return [helpLine(name, description), ...[...parameters].map(describeParameter)];
  });
  return lines.map((line) => line.trimEnd()).join('\n');
}

/** `episodes  an integer from 1 to 1000 (default 100): how many`. */
export function describeParameter([name, parameter]: [string, Body]): string {
  const { default: initial, description } = parameter;
  const need = initial === undefined ? 'required' : `default ${excerptOfJson(initial) || "''"}`;
  const help = excerptOf(description);
  return helpLine(`  ${name}`, `${excerpt(formOf(parameter))} (${need})${help && `: ${help}`}`);
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

// ───── Completing ────────────────────────────────────────────────────────────────────────────────────────────────

/** The words of a line that is being typed. The last one is unfinished and may be empty. */
export function wordsBefore(line: string): string[] {
  return /\S$/.test(line) ? splitWords(line) : [...splitWords(line), ''];
}

/**
 * Returns what the last word may be: the name of a command, `parameter=`, or a value after that.
 *
 * @param words The name and the arguments, as far as they are typed.
 */
export function completionsOf(accepts: Accepts, words: readonly string[]): string[] {
  const current = words.at(-1) ?? '';
  const [name = '', ...given] = words.slice(0, -1);
  const all = words.length < 2 ? [...accepts.keys()] : [...accepts.get(name)?.parameters ?? []].flatMap((entry) => {
    const [parameter, declared] = entry;
    const start = `${parameter}=`;
    if (given.some((word) => word.startsWith(start) || word.startsWith('{'))) return [];
    return current.startsWith(start) ? valuesOf(declared).map((value) => start + value) : [start];
  });
  return all.filter((word) => word.startsWith(current));
}

function valuesOf({ type, enum: choices }: Body): string[] {
  if (type === 'boolean') return ['true', 'false'];
  return Array.isArray(choices) ? choices.map(textOfJson).filter((value) => PLAIN.test(value)) : [];
}
