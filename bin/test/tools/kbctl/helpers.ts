// Shared by the tests of control-kbctl: stand-ins for the interpreters of its helpers, terminals, and a slow system.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, writeFileSync, writeSync } from 'node:fs';
import { createServer } from 'node:http';
import { delimiter, dirname, join } from 'node:path';
import { parseBindings } from '../../../kbctl/keys.ts';
import { makePipe, start, startProgram, until } from '../../helpers.ts';
import type { Running } from '../../helpers.ts';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';

/** For each suite: a test that hangs fails. */
export const LIMIT = { timeout: 300_000 };

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
  act: () => Promise<Value>,
): Promise<Value> {
  const names = Object.keys(variables);
  const before = Object.fromEntries(names.map((name) => [name, process.env[name]]));
  const set = (values: NodeJS.ProcessEnv): void => {
    Object.assign(process.env, values);
    for (const name of names) if (values[name] === undefined) delete process.env[name];
  };
  set(variables);
  try {
    return await act();
  } finally {
    set(before);
  }
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
export const FIRST_STATUS: RegExp = /^(http|unix):(?!.*: no answer$).+$/m;

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

export interface InTerminal extends Helped {
  /** Types these keys. */
  write(keys: string): void;
  /** Types these keys, and resolves when the output since then matches. */
  type(keys: string, pattern: RegExp): Promise<void>;
  /** Whether the terminal shows what is typed. */
  isEchoing(): boolean;
  /** Sets the mode of the terminal, as another process does. */
  reset(): void;
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
export function startInTerminal(
  t: TestContext,
  port: number,
  script: string,
  { args = '--backend macos', ...options }: HelpedOptions & { args?: string } = {},
): InTerminal {
  const standIn = makeStandIn(t, options.script ?? 'echo "note $PPID"; exec cat "$KEYS"');
  const running = start(t, 'script', ['--quiet', '--return', '--command', 'exec sh -c "$SCRIPT"', '/dev/null'], {
    ...standIn.env,
    KBCTL: `${process.execPath} dist/bin/kbctl.js --port ${port} ${args}`,
    SCRIPT: `echo in $(tty) $(stty -g); ${script}`,
    ...options.env,
  });
  const find = (pattern: RegExp): string => pattern.exec(running.output())?.[1] ?? assert.fail(running.output());
  const path = (): string => find(/^in (\S+)/m);
  const write = (keys: string): void => void running.child.stdin?.write(keys);
  return {
    ...running,
    say: standIn.say,
    write,
    type(keys, pattern) {
      const seen = running.output().length;
      const text = (): string => running.output().slice(seen).replaceAll('\r\n', '\n');
      write(keys);
      return until(() => pattern.test(text()), () => `no ${pattern} in ${JSON.stringify(text())}`);
    },
    isEchoing() {
      const { stdout } = spawnSync('stty', ['-F', path(), '-a'], { encoding: 'utf8' });
      assert.match(stdout, / -?echo /);
      return / echo /.test(stdout);
    },
    reset: () => void spawnSync('stty', ['-F', path(), 'sane']),
    processId: () => Number(find(/^control-kbctl: (\d+)/m)),
    async checkEnd(code) {
      const { stdout } = await running.ended;
      assert.equal(find(/^code (\d+)/m), `${code}`);
      assert.equal(find(/^mode (\S+)/m), find(/^in \S+ (\S+)/m));
      return stdout;
    },
  };
}

// ───── A slow system ─────────────────────────────────────────────────────────────────────────────────────────────

export interface SlowServer {
  port: number;
  /** The methods of all requests received. */
  methods: string[];
  /** The commands received. */
  posted: string[];
  /** Sends no responses to these methods until release(). */
  hold(...methods: string[]): void;
  release(): void;
  /** Resolves when so many requests with the method are held. */
  holds(method: string, count: number): Promise<void>;
  /** Sends this instead of all other bodies. */
  respondWith(statusCode: number, body: object): void;
  /** Cuts all connections. */
  close(): void;
}

/** A web API that reports the status only, and whose commands take effect at once. */
export async function startSlowServer(t: TestContext): Promise<SlowServer> {
  const [methods, posted]: [string[], string[]] = [[], []];
  const held = new Map<() => void, string>(); // responses, and the methods of their requests
  let heldMethods: string[] = [];
  let fixed: [statusCode: number, body: object] | null = null;
  const server = createServer(({ method = '', url = '' }, response) => {
    const isPost = method === 'POST';
    methods.push(method);
    const status = posted.at(-1) === 'pause' ? 'paused' : 'active';
    if (isPost) posted.push(url.replace(/^\/api\/|\?.*/g, ''));
    const [statusCode, body] = fixed ?? [200, isPost ? { result: 'ok' } : { status }];
    const respond = (): void => void response.writeHead(statusCode).end(JSON.stringify(body));
    if (!heldMethods.includes(method)) return respond();
    held.set(respond, method);
    response.once('close', () => held.delete(respond));
  });
  const close = (): void => server.close().closeAllConnections();
  t.after(close);
  await once(server.listen(0, 'localhost'), 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    methods,
    posted,
    hold: (...methods) => (heldMethods = methods),
    release() {
      heldMethods = [];
      for (const respond of held.keys()) respond();
    },
    holds(method, count) {
      return until(() => [...held.values()].filter((one) => one === method).length === count);
    },
    respondWith: (...response) => (fixed = response),
    close,
  };
}
