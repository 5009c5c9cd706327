// Shared by the tests of control-kbctl: stand-ins for the interpreters of its helpers, terminals, and a system.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync, writeSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { makePipe, type Running, startProgram } from '../../helpers.ts';
import { type Puppet, startPuppet } from '../../puppet.ts';
import { lineOf, openTerminal, type Terminal } from '../../screen.ts';
import type { Action, ListenerEvents } from '../../../kbctl/keys.ts';
import type { TestContext } from 'node:test';

/** The names of the default combinations. */
const ALT = process.platform === 'darwin' ? 'Option' : 'Alt';
export const PAUSE: string = `${ALT}+Shift+P`;
export const RESUME: string = `${ALT}+Shift+R`;

/** Whether a process runs. One that has exited may remain a zombie: not every container has an init that reaps it. */
export function isRunning(processId: number): boolean {
  try {
    process.kill(processId, 0);
    return process.platform !== 'linux' || !/\) Z /.test(readFileSync(`/proc/${processId}/stat`, 'utf8'));
  } catch {
    return false;
  }
}

/** What a backend reports. */
export interface Reports {
  actions: Action[];
  notices: string[];
  /** Why it has failed. */
  failures: string[];
}

export function collectReports(): Reports & { events: ListenerEvents } {
  const [actions, notices, failures]: [Action[], string[], string[]] = [[], [], []];
  const events: ListenerEvents = {
    onPress: (action) => actions.push(action),
    onNotice: (text) => notices.push(text),
    onEnd: (reason) => failures.push(reason),
  };
  return { actions, notices, failures, events };
}

/** A system that is done with a command at once, but says so only to those who wait. */
export function startQuick(t: TestContext): Promise<Puppet> {
  const post: Puppet['state']['post'] = ({ headers }) => headers['prefer'] === undefined ? {} : { state: 'done' };
  return startPuppet(t, { post }, { host: 'localhost' });
}

// ───── Helpers: macOS and Windows ────────────────────────────────────────────────────────────────────────────────

/** Stands in for `osascript` and `powershell.exe`, the interpreters of the helpers. */
export interface StandIn {
  /** The variables with which tools find it. */
  env: NodeJS.ProcessEnv;
  /** Writes lines to $KEYS. */
  say(...lines: string[]): void;
}

/** What the helper of macOS says when it has all permissions. */
export const READY = 'ready 1 1 0';

/** @param script For sh. By default, the helper writes the lines of $KEYS, which is a FIFO, and nothing else. */
export function makeStandIn(t: TestContext, script: string = 'exec cat "$KEYS"'): StandIn {
  const { path, file } = makePipe(t);
  const folder = dirname(path);
  for (const name of ['osascript', 'powershell.exe']) {
    writeFileSync(join(folder, name), `#!/bin/sh\nKEYS='${path}'\n${script}\n`, { mode: 0o755 });
  }
  return {
    env: { PATH: `${folder}${delimiter}${process.env['PATH']}`, SystemRoot: undefined },
    say: (...lines) => void writeSync(file, `${lines.join('\n')}\n`),
  };
}

/** A script of a stand-in: says who runs it, and forwards the lines of $KEYS until `fail`. */
export const FORWARD: string =
  'echo "note $PPID"; while read -r line && [ "$line" != fail ]; do echo "$line"; done < "$KEYS"; exit 7';

export interface HelpedOptions {
  /** Of the stand-in. */
  script?: string;
  env?: NodeJS.ProcessEnv;
}

export interface Helped extends Running {
  /** Makes the helper write these lines. */
  say(...lines: string[]): void;
}

/** Starts control-kbctl with a stand-in for the helper of macOS, unless the arguments choose another backend. */
export function startHelped(t: TestContext, args: readonly string[], options: HelpedOptions = {}): Helped {
  const { env, say } = makeStandIn(t, options.script);
  const backend = args.includes('--backend') ? [] : ['--backend', 'macos'];
  return { ...startProgram(t, 'kbctl', [...args, ...backend], { ...env, ...options.env }), say };
}

/** The same, ready for key presses. */
export async function listening(...given: Parameters<typeof startHelped>): Promise<Helped> {
  const helped = startHelped(...given);
  helped.say(READY);
  await helped.shows(/^press Ctrl-C to quit/m);
  await helped.shows(/^(?!control-|listening|.*: no answer$)(\S+: |nothing listens).+$/m); // if busy, `no answer` first
  return helped;
}

/** The lines with outcomes, without their times. */
export function readOutcomes(output: string): string[] {
  const lines = output.split('\n').slice(0, -1).filter((line) => line.includes(' … '));
  return lines.map((line) => line.replace(/\d+\.\d+ s/, 'N s'));
}

// ───── Terminals ─────────────────────────────────────────────────────────────────────────────────────────────────

export interface InTerminal extends Terminal {
  /** Makes the helper write these lines. */
  say(...lines: string[]): void;
  /** Whether the terminal shows what is typed. */
  isEchoing(): boolean;
  /** The process ID of control-kbctl; its helper writes it. */
  processId(): number;
  /** Checks the exit code of control-kbctl, and that the terminal has its original mode again. Returns the output. */
  checkEnd(code: number): Promise<string>;
}

/** What a script does for checkEnd(). */
export const END = 'echo code $?; echo mode $(stty -g)';

/**
 * Runs a script for sh in a pseudo-terminal. In it, $KBCTL is control-kbctl with a stand-in for the helper of macOS,
 * unless `args` say otherwise.
 */
export async function startInTerminal(
  t: TestContext,
  port: number,
  script: string,
  { args = '--backend macos', ...options }: HelpedOptions & { args?: string } = {},
): Promise<InTerminal> {
  const { env, say } = makeStandIn(t, options.script ?? 'echo "note $PPID"; exec cat "$KEYS"');
  const KBCTL = `${lineOf('kbctl')} --port ${port} ${args}`;
  const SCRIPT = `echo mode $(stty -g); ${script}`;
  const variables = { ...env, KBCTL, SCRIPT, ...options.env };
  const terminal = await openTerminal(t, 'sh -c "$SCRIPT"', /^mode .*\n/m, { env: variables });
  const findAll = (pattern: RegExp): string[] => {
    return [...terminal.output().matchAll(pattern)].map(([, found = '']) => found);
  };
  return {
    ...terminal,
    say,
    isEchoing: () => / echo /.test(terminal.stty('-a')),
    processId: () => Number(findAll(/^control-kbctl: (\d+)/gm)[0]),
    async checkEnd(code) {
      const { stdout } = await terminal.ended;
      assert.deepEqual(findAll(/^code (\d+)/gm), [`${code}`]);
      const [before, ...after] = findAll(/^mode (\S+)/gm);
      assert.deepEqual(after, [before]);
      return stdout;
    },
  };
}
