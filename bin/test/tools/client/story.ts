// What the lines with & of log.txt can use: entries of the log of `train`, a process that runs, unless `of()` or `DEAD`
// says otherwise. Times are those of 2026-11-23 here, unless they have a date.

import { appendFileSync } from 'node:fs';
import type { Body } from '../../../shared/text.ts';

/** A process id above the largest one of Linux. */
export const DEAD: number = 2 ** 22 + 1;

const LIVE = 1;

export function entry(clock: string, event: string, fields: object = {}): Body {
  const time = new Date(clock.includes('-') ? clock : `2026-11-23T${clock}`);
  return { time: time.toISOString(), name: 'train', pid: LIVE, event, ...fields };
}

/** The entries of another system. */
export function of(name: string, pid: number, ...entries: readonly (Body | Body[])[]): Body[] {
  return entries.flat().map((one) => ({ ...one, name, pid }));
}

/** Entries of commands that say when they were accepted: from 0.18 on. */
export function at(...entries: readonly (Body | Body[])[]): Body[] {
  return entries.flat().map((one) => ({ at: one['time'], ...one }));
}

/** The start of a server. */
export function start(clock: string): Body {
  return entry(clock, 'start', { version: '0.17.0' });
}

/** The same, and its first status. */
export function startActive(clock: string): Body[] {
  return [start(clock), status(clock, 'active')];
}

/** The start of a program by control-run. */
export function run(clock: string, ...commandLine: readonly unknown[]): Body {
  return entry(clock, 'start', { commandLine });
}

/** The end of a server. */
export function end(clock: string): Body {
  return entry(clock, 'end');
}

/** The end of a program under control-run. */
export function exit(clock: string, ended: string, exitCode?: number): Body {
  return entry(clock, 'end', { ended, exitCode });
}

/** @param holders Those of `paused`, of whom the first caused it. */
export function status(clock: string, name: string, holders: readonly string[] = [], fields: object = {}): Body {
  return entry(clock, 'status', { status: name, by: holders[0], holds: holders.map((by) => ({ by })), ...fields });
}

/** A command, the statuses meanwhile, and its outcome. With the same time and sender, it is the same one. */
export function command(clock: string, name: string, by?: string, outcome: object = {}, ...statuses: Body[]): Body[] {
  const sent = { id: `${name} ${clock} ${by}`, command: name, by };
  const done = entry(clock, 'outcome', { ...sent, state: 'done', seconds: 0.012, ...outcome });
  return [entry(clock, 'command', { ...sent, reason: done['reason'] }), ...statuses, done];
}

/** A pause, as `launch()` logs it. */
export function pause(clock: string, by: string, reason?: string): Body[] {
  const paused = { status: 'paused', by, reason, holds: [{ by, reason }] };
  return command(clock, 'pause', by, { reason }, status(clock, 'pausing'), entry(clock, 'status', paused));
}

export function resume(clock: string, by: string, outcome: object = {}): Body[] {
  return command(clock, 'resume', by, outcome, status(clock, 'resuming', [by]), status(clock, 'active', [], { by }));
}

/** A save of an active system: it pauses meanwhile. */
export function save(clock: string, by: string, outcome: object = { value: 'a.json' }): Body[] {
  const statuses = ['pausing', 'paused', 'resuming'].map((name) => status(clock, name, [by], { during: 'save-state' }));
  return command(clock, 'save-state', by, outcome, ...statuses, status(clock, 'active', [], { during: 'save-state' }));
}

/** The end of a program under control-run that control-run has not been asked for. */
export function endItself(clock: string, reason: string, ended: string, exitCode: number): Body[] {
  const shuttingDown = status(clock, 'shutting down', [], { by: 'itself', reason });
  const shutdown = command(clock, 'shutdown', 'itself', { reason, value: { ended, exitCode } }, shuttingDown);
  return [...shutdown, end(clock), exit(clock, ended, exitCode)];
}

export function ask(clock: string, id: string, message: string): Body {
  return entry(clock, 'ask', { id, message, parameters: {} });
}

/** The end of a question. */
export function answer(clock: string, id: string, message: string, fields: object): Body {
  return entry(clock, 'answer', { id, command: 'answer', message, state: 'done', seconds: 30, ...fields });
}

/** The end of a question that nobody has answered. */
export function withdraw(clock: string, id: string, message: string, error: string = 'withdrawn'): Body {
  return answer(clock, id, message, { state: 'failed', error });
}

/** A command as `/api/info` lists it. */
export function pausedAt(at: string | undefined): object {
  return { command: 'pause', state: 'done', seconds: 0, at };
}

/** Adds a text without a newline. */
export function torn(text: string): (path: string) => void {
  return (path) => appendFileSync(path, text);
}

/** The text of an entry whose value is nested too deep for `JSON.stringify()`. */
export function nested(body: Body): string {
  return JSON.stringify(body).replace(/}$/, `,"value":${'['.repeat(20_000)}${']'.repeat(20_000)}}`);
}
