// Shared by the tests of the tools that show the log of a system: its file, and what a system reports of it.

import { writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { HOSTILE, makeFolder } from '../helpers.ts';
import type { TestContext } from 'node:test';

/** What the tools say of a system without a log. */
export const NO_LOG = 'does not log: start it with --log FILE, or with the option log of launch()';

/** What a system with a log reports. */
export function infoOf(path: string, fields: object = {}): Record<string, unknown> {
  return { name: 'train', pid: 7, host: hostname(), status: 'active', commands: [], log: { path }, ...fields };
}

/** An entry of the system that `infoOf()` reports, so many minutes ago. */
export function entry(minutes: number, event: string, fields: object = {}): Record<string, unknown> {
  const time = new Date(Date.now() - minutes * 60_000).toISOString();
  return { time, name: 'train', pid: 7, event, ...fields };
}

/** The outcome of a command. */
export function outcome(minutes: number, id: string, fields: object = {}): Record<string, unknown> {
  return entry(minutes, 'outcome', { id, command: 'resume', state: 'done', seconds: 0.25, by: 'ana', ...fields });
}

/** Writes a log into a new folder: objects become lines of JSON, texts stay as they are. Returns the path. */
export function writeLog(t: TestContext, ...entries: readonly (object | string)[]): string {
  const path = join(makeFolder(t), 'train.jsonl');
  writeFileSync(path, linesOf(entries));
  return path;
}

/** The content of a log. */
export function linesOf(entries: readonly (object | string)[]): string {
  return entries.map((one) => `${typeof one === 'string' ? one : JSON.stringify(one)}\n`).join('');
}

export const HTML = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>';

/** Lines that anybody may have written: each field has every text and type, and some lines are no entries. */
export const HOSTILE_LINES: readonly (object | string)[] = hostileLines();

function hostileLines(): (object | string)[] {
  const texts = [HOSTILE, HTML, 'w'.repeat(1200), '"\\'.repeat(200), '\u202e\ud800', `a\u200b\u{e0041}\nb`];
  const objects: unknown[] = [[], [[{ a: [] }]], {}, { a: { b: null } }, { toString: 1 }, [HTML]];
  const values: unknown[] = [...texts, 7, -1e300, true, null, ...objects];
  const fields = [
    'id', 'command', 'arguments', 'state', 'value', 'valueOmitted', 'error', 'seconds', 'by', 'reason', 'status',
    'holds', 'version', 'commandLine', 'ended', 'exitCode', 'signal', 'lines', 'at',
  ];
  const events = ['start', 'command', 'outcome', 'status', 'thread', 'lost', 'end', 'strange'];
  const all = values.flatMap((value, index) => events.map((event) => {
    return entry(50, event, { ...Object.fromEntries(fields.map((field) => [field, value])), id: `h-${index}` });
  }));
  const nested = `${'['.repeat(9000)}${']'.repeat(9000)}`;
  const deep = ['value', 'arguments', 'commandLine', 'holds'].map((field) => {
    const event = { commandLine: 'start', holds: 'status' }[field] ?? 'outcome';
    return JSON.stringify(entry(50, event, { id: field })).replace('}', `,"${field}":${nested}}`);
  });
  return [
    ...all, '', 'null', '[]', '{', '{"time":', '\0', 'x'.repeat(70_000), '{}', '['.repeat(50_000),
    JSON.stringify(entry(50, 'status')).replace('}', `,"by":${'['.repeat(20_000)}${']'.repeat(20_000)}}`),
    ...deep,
    JSON.stringify(entry(50, 'status')).replace('}', ',"__proto__":{"a":1},"toJSON":1}'),
    { ...entry(50, 'status'), time: '9999-12-31T23:59:59Z' }, { ...entry(50, 'status'), time: '2026-13-45T99:99:99Z' },
    { ...entry(50, 'status'), time: 7 },
    { ...entry(50, 'status'), pid: '7' }, { ...entry(50, 'status'), name: ['train'] },
    { ...entry(50, 'status', { status: 'foreign' }), pid: 8 },
    { ...entry(50, 'status', { status: 'foreign' }), name: 'other' },
    { password: 'foreign' }, 'root:foreign:0:0:root:/root:/bin/bash',
  ];
}
