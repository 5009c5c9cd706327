// A condition on one field of a system's detail: `loss < 0.1`, `run.processes = 1`.

import { splitDetail } from './describe.ts';
import { UsageError } from '../line/options.ts';
import { textOfJson } from './text.ts';

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
  return { text: text.trim(), field, isMetBy: (value) => compare(value, operator, operand, number) };
}

/** The fields of a detail by name. Names of those that control-run adds begin with `run.`. */
export function fieldsOf(detail: unknown): Map<string, unknown> {
  const { own, run } = splitDetail(detail);
  const added = Object.entries(run).map(([name, value]): [string, unknown] => [`run.${name}`, value]);
  return new Map([...Object.entries(own), ...added]);
}

/** The value of the field; undefined if the detail has none. */
export function fieldOf(detail: unknown, field: string): unknown {
  return fieldsOf(detail).get(field);
}

/** Only numbers are less or greater. A field that is missing meets no condition. */
function compare(value: unknown, operator: string, operand: string, number: number): boolean {
  if (value === undefined) return false;
  const own = typeof value === 'number' ? value : NaN;
  const isEqual = own === number || textOfJson(value) === operand;
  switch (operator) {
    case '<': return own < number;
    case '<=': return own <= number;
    case '>': return own > number;
    case '>=': return own >= number;
    case '!=': return !isEqual;
    default: return isEqual;
  }
}
