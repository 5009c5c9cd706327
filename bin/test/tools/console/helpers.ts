// Shared by the tests of control-console: the tool in a pseudo-terminal, and its output there.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { makeFolder, start } from '../../helpers.ts';
import type { Running } from '../../helpers.ts';
import type { TestContext } from 'node:test';

export const CTRL_C = '\x03';
export const CTRL_D = '\x04';
export const CTRL_Z = '\x1a';
export const UP = '\x1b[A';
export const LEFT = '\x1b[D';

/** A pattern for an active status. A program that gets no CPU time for a while counts as in a long step. */
export const ACTIVE = 'active(, in a step for \\d+ s)?(; saved \\d+ s ago)?';

/** The options for a port. */
export function at(port: number): string {
  return `--host 127.0.0.1 --port ${port}`;
}

export interface Terminal extends Running {
  /** Types keys. Resolves when the output since then matches. */
  type(keys: string, pattern: RegExp): Promise<void>;
  /** Types keys. `shows()` then checks the output since. */
  write(keys: string | Uint8Array): void;
  /** The process of the command. */
  pid: number;
  /** The path of the terminal. */
  tty: string;
}

/** Runs a command in a pseudo-terminal, without history unless the environment names a folder. */
export async function pseudoTerminal(
  t: TestContext,
  command: string,
  ready: RegExp,
  env: NodeJS.ProcessEnv = {},
): Promise<Terminal> {
  const folder = makeFolder(t);
  const line = `stty cols 100 rows 30; echo "$$ $(tty)"; exec ${command}`;
  const running = start(t, 'script', ['--quiet', '--return', '--command', line, '/dev/null'], {
    SHELL: '/bin/sh', HOME: folder, XDG_STATE_HOME: join(folder, 'state'), ...env,
  });
  const { child, output } = running;
  let seen = 0;
  const text = (): string => output().slice(seen).replaceAll(/\x1b\[\d*[CDGJK]/g, '').replaceAll(/\r+\n/g, '\n');
  const shows = (pattern: RegExp): Promise<void> => {
    return running.until(() => pattern.test(text()), () => `no ${pattern} in ${JSON.stringify(text())}`);
  };
  const write = (keys: string | Uint8Array): void => {
    seen = output().length;
    child.stdin?.write(keys);
  };
  const type = (keys: string, pattern: RegExp): Promise<void> => {
    write(keys);
    return shows(pattern);
  };
  await shows(ready);
  const [, pid, tty = ''] = /^(\d+) (\S+)/.exec(output()) ?? [];
  return { ...running, type, write, shows, pid: Number(pid), tty };
}

export const READY: RegExp = /type help for a list of commands\n[^]*> $/;

/** The console in a pseudo-terminal, ready for input. */
export function terminal(t: TestContext, options: string, env: NodeJS.ProcessEnv = {}): Promise<Terminal> {
  return pseudoTerminal(t, `${process.execPath} dist/bin/console.js ${options}`, READY, env);
}

/** Types keys, and then Tab until the console has completed them. */
export async function completes({ type, write, output }: Terminal, keys: string, pattern: RegExp): Promise<void> {
  await type(keys, new RegExp(`${keys}$`));
  const start = output().length;
  const hasCompleted = (): boolean => pattern.test(output().slice(start));
  for (let tries = 0; tries < 3 && !hasCompleted(); tries += 1) { // a list takes two, a busy machine one more
    write('\t');
    for (const end = performance.now() + 1500; performance.now() < end && !hasCompleted();) await sleep(20);
  }
  assert.match(output().slice(start), pattern);
}

/** A pattern for a prompt, without an end anchor. */
export function prompt(status: string): string {
  return `control-console \\S+ \\(${status}\\) > `;
}

/** Checks the output of a command between its echo and the next prompt. */
export function shown(lines: string, status: string = 'active'): RegExp {
  return new RegExp(`${lines}\n[^\n]*${prompt(status)}$`);
}
