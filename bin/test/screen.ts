// The one terminal: a program in a pseudo-terminal. Keys are typed, and what it prints is read as text since then, or
// as lines on a screen.

import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { makeFolder, start } from './helpers.ts';
import type { Running } from './helpers.ts';
import type { TestContext } from 'node:test';

export const CTRL_C = '\x03';
export const CTRL_D = '\x04';
export const CTRL_Z = '\x1a';
export const UP = '\x1b[A';
export const DOWN = '\x1b[B';
export const LEFT = '\x1b[D';

/** What no tool may print, whatever texts it gets: it sets a title or a color, clears, or changes the direction. */
export const HARMFUL: RegExp = /\x1b\]|\x1b\[2J|\x1b\[31m|[\x07\x80-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/;

const CURSOR = /\x1b\[\d*[CDGJK]/g;

/** A program in a pseudo-terminal. */
export interface Terminal extends Running {
  /** Types keys. `text()` is what is printed from then on. */
  write(keys: string | Uint8Array): void;
  /** The same, and resolves when the text matches. */
  type(keys: string | Uint8Array, pattern: RegExp): Promise<void>;
  /** The output since the latest keys, without movements of the cursor in its line. */
  text(): string;
  /** Resolves when the text matches; rejects soon if the program ends without that. */
  shows(pattern: RegExp): Promise<void>;
  /** The lines on the screen of a program that draws each as a whole, without colors and trailing spaces. */
  lines(): string[];
  /** Resolves when a line on the screen matches. */
  showsLine(pattern: RegExp): Promise<void>;
  /** The process of the command. */
  pid: number;
  /** Runs stty on the terminal, and returns what it prints. */
  stty(...args: string[]): string;
}

export interface TerminalOptions {
  env?: NodeJS.ProcessEnv | undefined;
  columns?: number;
  rows?: number;
}

/**
 * Runs a command in a pseudo-terminal, with a home that it may fill, until the end of the test.
 *
 * @param ready What it prints before the first key.
 */
export async function openTerminal(
  t: TestContext,
  command: string,
  ready: RegExp,
  { env, columns = 100, rows = 30 }: TerminalOptions = {},
): Promise<Terminal> {
  const home = makeFolder(t);
  const line = `stty cols ${columns} rows ${rows}; echo "$$ $(tty)"; exec ${command}`;
  const running = start(t, 'script', ['--quiet', '--return', '--command', line, '/dev/null'], {
    SHELL: '/bin/sh', HOME: home, XDG_STATE_HOME: join(home, 'state'), ...env,
  });
  const { child, output, until } = running;
  let seen = 0;
  const text = (): string => output().slice(seen).replaceAll(CURSOR, '').replaceAll(/\r+\n/g, '\n');
  const shows = (pattern: RegExp): Promise<void> => {
    return until(() => pattern.test(text()), () => `no ${pattern} in ${JSON.stringify(text())}`);
  };
  const write = (keys: string | Uint8Array): void => {
    seen = output().length;
    child.stdin?.write(keys);
  };
  const type = (keys: string | Uint8Array, pattern: RegExp): Promise<void> => {
    write(keys);
    return shows(pattern);
  };
  const lines = (): string[] => linesIn(output(), rows);
  const showsLine = (pattern: RegExp): Promise<void> => {
    return until(() => lines().some((one) => pattern.test(one)), () => `no ${pattern} in:\n${lines().join('\n')}`);
  };
  await shows(/^\d+ \S+\r?\n/);
  const [all = '', pid, tty = ''] = /^(\d+) (\S+)\r?\n/.exec(output()) ?? [];
  seen = all.length;
  await shows(ready);
  const stty = (...args: string[]): string => execFileSync('stty', ['-F', tty, ...args], { encoding: 'utf8' });
  return { ...running, write, type, text, shows, lines, showsLine, pid: Number(pid), stty };
}

/** A tool and its arguments as a line for a shell. */
export function lineOf(tool: string, args: readonly string[] = []): string {
  return [process.execPath, `dist/bin/${tool}.js`, ...args.map((arg) => `'${arg}'`)].join(' ');
}

/** What is on a screen: the last text of each line, as `ESC [ NUMBER H  ESC [ 2 K` begins it. */
function linesIn(output: string, rows: number): string[] {
  const lines: string[] = Array.from({ length: rows }, () => '');
  for (const [, number, text = ''] of output.matchAll(/\x1b\[(\d+)H\x1b\[2K((?:[^\x1b]|\x1b\[\d+m)*)/g)) {
    lines[Number(number) - 1] = text.replaceAll(/\x1b\[\d+m/g, '').trimEnd();
  }
  return lines;
}
