// Shared by the tests of control-console: the tool in a pseudo-terminal, and patterns for what it shows there.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { lineOf, openTerminal, type Terminal } from '../../screen.ts';
import type { TestContext } from 'node:test';

/** A pattern for an active status. A program that gets no CPU time for a while counts as in a long step. */
export const ACTIVE = 'active(, in a step for \\d+ s)?(; saved \\d+ s ago)?';

export const READY: RegExp = /type help for a list of commands\n[^]*> $/;

/** The options for a port. */
export function at(port: number): string {
  return `--host 127.0.0.1 --port ${port}`;
}

/** The console in a pseudo-terminal, ready for input. */
export function terminal(t: TestContext, options: string, env?: NodeJS.ProcessEnv): Promise<Terminal> {
  return openTerminal(t, `${lineOf('console')} ${options}`, READY, { env });
}

/** Types keys, and then Tab until the console has completed them. */
export async function completes({ child, type, text, until }: Terminal, keys: string, to: RegExp): Promise<void> {
  await type(keys, new RegExp(`${keys}$`));
  const { length } = text();
  let pressedAt = -Infinity;
  await until(() => {
    const hasCompleted = to.test(text().slice(length));
    if (!hasCompleted && performance.now() - pressedAt > 500) { // a list takes two, a busy machine one more
      child.stdin?.write('\t');
      pressedAt = performance.now();
    }
    return hasCompleted;
  }, () => `no ${to} in ${JSON.stringify(text().slice(length))}`);
}

/** Waits until an answer without an id can mean the only open question: it has been shown for a second. */
export async function counts({ type, text }: Terminal): Promise<void> {
  do await type('answer maybe\r', / takes .*, got maybe\n|the id must be given/);
  while (!text().includes(' takes ') && (await sleep(100), true));
  assert.match(text(), / takes .*, got maybe\n/);
}

/** A pattern for a prompt, without an end anchor. */
export function prompt(status: string): string {
  return `\\S+ \\(${status}\\) > `;
}

/** Checks the output of a command between its echo and the next prompt. */
export function shown(lines: string, status: string = 'active'): RegExp {
  return new RegExp(`${lines}\n[^\n]*${prompt(status)}$`);
}
