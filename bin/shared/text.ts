// Safe text, and times and durations in words. A server, a helper process or an argument may contain escape sequences,
// which clear a terminal or write its clipboard, and characters that reverse the text after them.

const CONTROLS = /[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]+/g; // C0, DEL, C1, lines, bidi
const MAX_LENGTH = 200; // characters of a text from a server: a status, result or error is shorter

/** A JSON object from elsewhere, such as the body of a response. */
export type Body = Readonly<Record<string, unknown>>;

/** Values and errors of commands may be this long, because they contain paths. */
export const MAX_VALUE_LENGTH = 1000;

/** Replaces control characters, including tabs and line breaks, by spaces. */
export function printable(text: string): string {
  return text.replaceAll(CONTROLS, ' ');
}

/** The same for a text from a server, which may have any length: truncates it. */
export function excerpt(text: string, maxLength: number = MAX_LENGTH): string {
  if (text.length <= maxLength) return printable(text);
  const characters = [...printable(text)]; // whole code points
  return characters.length <= maxLength ? characters.join('') : `${characters.slice(0, maxLength).join('')}…`;
}

/** The same for a field that may hold anything: empty if it holds neither a text nor a number. */
export function excerptOf(field: unknown, maxLength?: number): string {
  return typeof field === 'string' || typeof field === 'number' ? excerpt(String(field), maxLength) : '';
}

/** A sender or a reason as servers store it: without control characters, and truncated. */
export function tidy(text: string): string {
  return Array.from(text.replaceAll(/\p{Cc}/gu, '')).slice(0, MAX_LENGTH).join('');
}

/** Whether a value is a JSON object, not an array. */
export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** A JSON value as text; a string has no quotes. */
export function textOfJson(value: unknown): string {
  try {
    return typeof value === 'string' ? value : JSON.stringify(value);
  } catch {
    return '…'; // it is nested deeper than JSON.stringify() can go, but not JSON.parse()
  }
}

/** Returns JSON that is safe to print and keeps every text: JSON.stringify() escapes C0 only. */
export function printableJson(value: object): string {
  const escape = (character: string): string => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`;
  return textOfJson(value).replaceAll(CONTROLS, (characters) => Array.from(characters, escape).join(''));
}

/** An argument or a value of a command on one line: a text as it is, others as JSON. Empty if there is none. */
export function excerptOfJson(field: unknown): string {
  if (field === undefined) return '';
  const text = typeof field === 'object' && field !== null ? printableJson(field) : String(field);
  return excerpt(text, MAX_VALUE_LENGTH);
}

// ───── Times and durations ───────────────────────────────────────────────────────────────────────────────────────

/** Of a time that localTime() can print. */
export const MAX_TIME = 250e12; // milliseconds, until the year 9892: localTime() needs four digits

/** In milliseconds; null if the field holds no time. */
export function timeIn(body: Body, name: string): number | null {
  const time = Date.parse(excerptOf(body[name]));
  return Math.abs(time) < MAX_TIME ? time : null;
}

/** How long ago a time in milliseconds was: `3 min`. Empty if it is unknown. The clocks of two machines may differ. */
export function ageOf(time: number | null): string {
  return time === null ? '' : describeDuration(Math.max(0, Date.now() - time) / 1000);
}

/** ` 3 min ago`, or empty if the time is unknown. */
export function agoOf(time: number | null): string {
  return time === null ? '' : ` ${ageOf(time)} ago`;
}

/** `2026-11-23 13:18:06`, in the time zone of the machine. */
export function localTime(date: Date): string {
  const shifted = new Date(date.getTime() - date.getTimezoneOffset() * 60_000);
  return shifted.toISOString().slice(0, 19).replace('T', ' ');
}

/** `13:18:06`, with the date unless it is today, or that of `day`. */
export function clockTime(date: Date, day: Date = new Date()): string {
  const [text, other] = [localTime(date), localTime(day)];
  return text.slice(0, 10) === other.slice(0, 10) ? text.slice(11) : text;
}

/** One unit, of which there are at least two unless it is seconds: `119 s`, `2 min`. */
export function describeDuration(seconds: number): string {
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 120 * 60) return `${Math.floor(seconds / 60)} min`;
  return seconds < 48 * 3600 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86_400)} days`;
}
