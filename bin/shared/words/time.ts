// Times and durations in words. The server may be any program, so every field may have any type and text.

import { excerptOf } from './text.ts';
import type { Body } from './text.ts';

const MAX_TIME = 250e12; // milliseconds, until the year 9892: localTime() needs four digits

/** In milliseconds; null if the field holds no time. */
export function timeIn(body: Body, name: string): number | null {
  const time = Date.parse(excerptOf(body[name]));
  return Math.abs(time) < MAX_TIME ? time : null;
}

/** Null if the field holds no time. Never negative: the clocks of two machines may differ. */
export function secondsSince(body: Body, name: string): number | null {
  const time = timeIn(body, name);
  return time === null ? null : Math.max(0, (Date.now() - time) / 1000);
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

/** One unit: `3 min`. */
export function describeDuration(seconds: number): string {
  if (seconds < 100) return `${Math.floor(seconds)} s`;
  if (seconds < 100 * 60) return `${Math.floor(seconds / 60)} min`;
  return seconds < 48 * 3600 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86_400)} days`;
}
