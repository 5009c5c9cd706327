// Shared by the tests of control-kbctl: stand-ins for the interpreters of its helpers, terminals, and a slow system.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync, writeSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { type Action, type ListenerEvents, parseBindings } from '../../../kbctl/keys.ts';
import { makePipe, type Running, startProgram } from '../../helpers.ts';
import { until } from '../../wait.ts';
import { startWeb, type Web } from '../client/systems.ts';
import { pseudoTerminal, type Terminal } from '../console/helpers.ts';
import type { TestContext } from 'node:test';

/** The names of the default combinations. */
const [pauseName = '', resumeName = ''] = parseBindings({}).map(({ combination }) => combination.name);
export const PAUSE: string = pauseName;
export const RESUME: string = resumeName;

/** Whether a process runs. One that has exited may remain a zombie: not every container has an init that reaps it. */
export function isRunning(processId: number): boolean {
  try {
    process.kill(processId, 0);
    return process.platform !== 'linux' || !/\) Z /.test(readFileSync(`/proc/${processId}/stat`, 'utf8'));
  } catch {
    return false;
  }
}

/** Changes variables of this process until a function is done; undefined removes one. */
export async function withEnvironment<Value>(
  variables: NodeJS.ProcessEnv,
  act: () => Value | Promise<Value>,
): Promise<Value> {
  const before = { ...process.env };
  const set = (values: NodeJS.ProcessEnv): void => {
    for (const name of Object.keys(variables)) {
      if (values[name] === undefined) delete process.env[name];
      else process.env[name] = values[name];
    }
  };
  set(variables);
  try {
    return await act();
  } finally {
    set(before);
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

/** A busy machine may first print `no answer`. */
export const FIRST_STATUS: RegExp = /^(?!control-|listening|.*: no answer$)(\S+: |nothing listens).+$/m;

/** The same, ready for key presses. */
export async function listening(...given: Parameters<typeof startHelped>): Promise<Helped> {
  const helped = startHelped(...given);
  helped.say(READY);
  await helped.shows(/^press Ctrl-C to quit/m);
  await helped.shows(FIRST_STATUS);
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
  const terminal = await pseudoTerminal(t, 'sh -c "$SCRIPT"', /^mode /m, {
    ...env,
    KBCTL: `${process.execPath} dist/bin/kbctl.js --port ${port} ${args}`,
    SCRIPT: `echo mode $(stty -g); ${script}`,
    ...options.env,
  });
  const findAll = (pattern: RegExp): string[] => {
    return [...terminal.output().matchAll(pattern)].map(([, found = '']) => found);
  };
  return {
    ...terminal,
    say,
    isEchoing() {
      const { stdout } = spawnSync('stty', ['-F', terminal.tty, '-a'], { encoding: 'utf8' });
      assert.match(stdout, / -?echo /);
      return / echo /.test(stdout);
    },
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

// ───── A slow system ─────────────────────────────────────────────────────────────────────────────────────────────

export interface SlowSystem extends Web {
  /** The commands received. */
  posted: string[];
  /** Sends no responses to these methods until release(). */
  hold(...methods: string[]): void;
  release(): void;
  /** Resolves when so many requests with the method are held. */
  holds(method: string, count: number): Promise<void>;
}

/** A web API that reports the status only, and whose commands take effect at once. */
export async function startSlowSystem(t: TestContext): Promise<SlowSystem> {
  const posted: string[] = [];
  const held = new Map<() => void, string>(); // the methods of the requests without a response
  let heldMethods: string[] = [];
  const web = await startWeb(t, async ({ method = '', url = '', socket }) => {
    const status = posted.at(-1) === 'pause' ? 'paused' : 'active';
    if (method === 'POST') posted.push(url.replace(/^\/api\/|\?.*/g, ''));
    if (heldMethods.includes(method)) {
      await new Promise<void>((resolve) => {
        held.set(resolve, method);
        socket.once('close', () => held.delete(resolve));
      });
    }
    return method === 'POST' ? { result: 'ok' } : { status };
  }, { host: 'localhost' });
  return {
    ...web,
    posted,
    hold: (...methods) => (heldMethods = methods),
    release() {
      heldMethods = [];
      for (const respond of held.keys()) respond();
      held.clear();
    },
    holds(method, count) {
      return until(() => [...held.values()].filter((one) => one === method).length === count);
    },
  };
}
