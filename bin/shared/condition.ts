// A condition on one field of a system's detail: `loss < 0.1`.

import { UsageError } from './options.ts';
import { isRecord, textOfJson } from './text.ts';

const FORM = /^\s*([^<>=!]*[^<>=!\s])\s*(<=|>=|!=|==?|<|>)\s*([^<>=!\s].*?)\s*$/s;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

export interface Condition {
  /** As typed. */
  text: string;
  field: string;
  isMetBy(value: unknown): boolean;
}

/** Whether a text is meant for a condition: no status has such a character. */
export function isCondition(text: string): boolean {
  return /[<>=!]/.test(text);
}

/** @throws {UsageError} If the text is not one comparison, or asks for the order of texts. */
export function parseCondition(text: string): Condition {
  const [, field, operator = '', typed = ''] = FORM.exec(text) ?? [];
  const operand = typed.replace(/^(["'])(.*)\1$/s, '$2');
  const number = NUMBER.test(operand) ? Number(operand) : NaN;
  if (field === undefined || (/[<>]/.test(operator) && Number.isNaN(number))) {
    const forms = "a field with a number, such as 'loss < 0.1', or for equality with a text, such as 'phase = test'";
    throw new UsageError(`a condition must compare ${forms}, got '${text}'`);
  }
  return { text: text.trim(), field, isMetBy: (value) => compare(value, operator, operand, number) };
}

/** The value of the field; undefined if the detail has none. */
export function fieldOf(detail: unknown, field: string): unknown {
  return isRecord(detail) && Object.hasOwn(detail, field) ? detail[field] : undefined;
}

/** A value that is no number is neither less nor greater. */
function compare(value: unknown, operator: string, operand: string, number: number): boolean {
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
