// Shared by the tests of control-run: starts programs, and reads their processes from /proc.

import { chmodSync, copyFileSync, existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { clientAt, getInfo, makeFolder, platformIs, runProgram, start } from '../../helpers.ts';
import { lacks, NOBODY, ownCgroup, PYTHON as DEBIAN_PYTHON } from '../../needs.ts';
import { END_MS, until } from '../../wait.ts';
import type { WebApiClient } from '../../../../control.ts';
import type { Ended, Running } from '../../helpers.ts';
import type { TestContext } from 'node:test';

export const PYTHON: string = existsSync(DEBIAN_PYTHON) ? DEBIAN_PYTHON : 'python3';

export interface StartedRun {
  running: Running;
  port: number;
  /** Of the program, not of control-run. */
  pid: number;
  client: WebApiClient;
}

/** The first line that control-run prints, with the process id of the program and the port. */
export const BANNER: RegExp = /control-run: .+?\[(\d+)\] · web API at http:\/\/localhost:(\d+)(?:; paused.*)?\n/;

/** Starts a program under control, on a free port. The end of the test ends all its processes. */
export async function startRun(
  t: TestContext,
  options: string[],
  command: string[],
  env: NodeJS.ProcessEnv = {},
  way: Way = DEFAULT_WAY,
): Promise<StartedRun> {
  let running: Running | undefined;
  t.after(() => running && endRun(running)); // start() would kill it first
  const [file, ...args] = way.line(t);
  const started = running = start(t, file, [...args, '--port', '0', ...options, '--', ...command], env);
  await running.shows(BANNER);
  const [, pid, port] = BANNER.exec(started.output()) as unknown as [string, string, string];
  const client = clientAt(t, { host: '127.0.0.1', port: Number(port) });
  return { running, port: Number(port), pid: Number(pid), client };
}

/** Fails if control-run does not end all that it has started. */
export async function endRun(running: Running): Promise<void> {
  const { child } = running;
  child.kill('SIGCONT');
  child.kill('SIGTERM');
  try {
    await exitCodeOf(running);
    await isTidy(running);
  } finally {
    child.kill('SIGKILL');
    killAll(processesOf(running));
  }
}

export function killAll(pids: readonly number[]): void {
  for (const pid of pids) {
    try {
      process.kill(pid, 'SIGKILL');
    } catch {} // ended
  }
}

/** Runs a program under control until it ends. Returns stderr without the banner. */
export async function run(
  t: TestContext,
  options: string[],
  command: string[],
  input: string = '',
  env: NodeJS.ProcessEnv = {},
): Promise<Ended> {
  const { stderr, ...ended } = await runProgram(t, 'run', ['--port', '0', ...options, ...command], input, env);
  return { ...ended, stderr: stderr.replace(BANNER, '') };
}

/** Waits until control-run has ended. Background processes may still hold its output. */
export async function exitCodeOf({ child, output }: Running): Promise<number | null> {
  const hasExited = (): boolean => child.exitCode !== null || child.signalCode !== null;
  await until(hasExited, () => `control-run still runs: ${output()}`, END_MS);
  return child.exitCode;
}

/** Waits until no process of the program, no keeper and no cgroup is left. */
export async function isTidy(running: Running): Promise<void> {
  const left = (): string => {
    return [...processesOf(running), ...keepersOf(running), ...cgroupsOf(running)].join(' ');
  };
  await until(() => left() === '', () => `left: ${left()}`);
}

/** Lists the keepers, which end the processes of the program if control-run is killed. */
export function keepersOf({ child }: Running): number[] {
  const name = `\0keeper-${child.pid}\0`;
  return listPids().filter((pid) => tryRead(`/proc/${pid}/cmdline`).includes(name));
}

/** Waits until /api/info reports a detail with these values; on a busy machine, an older one may come first. */
export async function showsDetail(
  { port }: Pick<StartedRun, 'port'>,
  expected: Record<string, unknown>,
  fieldsOf: (detail: Record<string, unknown>) => unknown = (detail) => detail,
): Promise<Record<string, unknown>> {
  let shown: Record<string, unknown> = {};
  await until(async () => {
    shown = fieldsOf((await getInfo(port)).detail as typeof shown ?? {}) as typeof shown ?? {};
    return Object.entries(expected).every(([key, value]) => isDeepStrictEqual(shown[key], value));
  }, () => `no ${JSON.stringify(expected)} in ${JSON.stringify(shown)}`);
  return shown;
}

/** The same for what control-run adds to the detail. */
export async function showsRun(
  run: Pick<StartedRun, 'port'>,
  expected: Record<string, unknown>,
): Promise<Record<string, unknown>> {
  return await showsDetail(run, expected, (detail) => detail['run']);
}

// ───── Commands ──────────────────────────────────────────────────────────────────────────────────────────────────────

/** For shell commands of control-run: waits until the program has ended. */
export const WAIT_FOR_END = 'while kill -0 $CONTROL_PID; do sleep 0.05; done 2>/dev/null';

/** Waits forever; a trapped signal interrupts the wait, and it begins again. */
export const WAIT = 'while :; do sleep 98765 & wait; done';

export function shell(script: string, ...args: string[]): string[] {
  return ['sh', '-c', script, 'sh', ...args];
}

/** A shell that handles signals, prints `ready` and waits. */
export function handler(...traps: string[]): string[] {
  return shell(`${traps.join('; ')}; echo ready; ${WAIT}`);
}

/** The complete lines of a file that may not exist yet. */
export function readLines(path: string): string[] {
  return existsSync(path) ? readFileSync(path, 'utf8').split('\n').slice(0, -1) : [];
}

// ───── With a cgroup, and without ────────────────────────────────────────────────────────────────────────────────────

/** How control-run finds the processes of a program. */
export interface Way {
  name: string;
  skip: string | false;
  /** What starts control-run. */
  line(t: TestContext): [string, ...string[]];
}

const HAS_CGROUP = lacks('cgroup') === false;
export const DEFAULT_WAY: Way = {
  name: 'as it is', skip: false, line: () => [process.execPath, resolve('dist/bin/run.js')],
};

/** control-run searches /proc, and also uses a cgroup if it may create one. */
export const IN_CGROUP: Way = { ...DEFAULT_WAY, name: 'in a cgroup', skip: lacks('cgroup') };
export const IN_PROC: Way = { name: 'found in /proc', skip: HAS_CGROUP && lacks('nobody'), line: lineWithoutCgroup };
export const WAYS: readonly Way[] = [IN_CGROUP, IN_PROC];

function lineWithoutCgroup(t: TestContext): [string, ...string[]] {
  if (!HAS_CGROUP) return DEFAULT_WAY.line(t);
  const folder = makeFolder(t); // the user may not be able to reach the repository
  chmodSync(folder, 0o755);
  copyFileSync('dist/bin/run.js', join(folder, 'run.mjs'));
  const [file, ...args] = NOBODY;
  return [file, ...args, process.execPath, join(folder, 'run.mjs')];
}

/** Starts control-run as on another platform, without /proc and cgroups. Signals work as on this one. */
export function asOn(platform: 'darwin' | 'win32'): Way {
  const script = `
    const fs = require('node:fs');
    const { readFileSync } = fs;
    const hide = (path) => typeof path === 'string' ? path.replace(/^\\/proc\\//, '/nowhere/') : path;
    fs.readFileSync = (path, ...rest) => readFileSync(hide(path), ...rest);
    require('node:module').syncBuiltinESMExports();
    ${platformIs(platform)}`;
  return {
    name: `as on ${platform}`, skip: false,
    line: (t) => {
      const path = join(makeFolder(t), 'platform.cjs');
      writeFileSync(path, script);
      const [file, ...args] = DEFAULT_WAY.line(t);
      return [file, '--require', path, ...args];
    },
  };
}

/** Lists the cgroup of a control-run; empty if it has none or has ended. */
export function cgroupsOf({ child }: Running): string[] {
  const parent = ownCgroup() ?? '/nowhere';
  const names = tryList(parent).filter((name) => name.startsWith(`control-run-${child.pid}-`));
  return names.map((name) => join(parent, name));
}

// ───── /proc ─────────────────────────────────────────────────────────────────────────────────────────────────────────

export interface Task {
  pid: number;
  name: string;
  parent: number;
  group: number;
  session: number;
  /** One letter: `T` is stopped. */
  state: string;
  /** CPU time in clock ticks. */
  ticks: number;
}

/** All processes that run or are stopped. */
export function listTasks(): Task[] {
  return listPids().flatMap(readTask);
}

/** Returns nothing if the process has ended. */
export function readTask(pid: number): Task[] {
  const [, name = '', rest = ''] = /^\d+ \((.*)\) (.*)$/s.exec(tryRead(`/proc/${pid}/stat`)) ?? [];
  const [state = '', ...fields] = rest.split(' ');
  if (/^[ZX]?$/.test(state)) return [];
  const [parent, group, session] = fields.map(Number) as [number, number, number];
  return [{ pid, name, parent, group, session, state, ticks: Number(fields[10]) + Number(fields[11]) }];
}

/** `T` is stopped, `S` sleeps or runs; empty if the process has ended. */
export function stateOf(pid: number): string {
  return readTask(pid).map(({ state }) => (state === 'T' ? 'T' : 'S')).join();
}

/** A process and all its descendants. */
export function listTree(pid: number): number[] {
  const tasks = listTasks();
  const tree = [pid];
  for (const parent of tree) tree.push(...tasks.filter((one) => one.parent === parent).map((one) => one.pid));
  return tree;
}

/** The processes of the program that still inherit its environment, running or stopped. */
export function processesOf({ child }: Running): number[] {
  return listByVariable((text) => text.startsWith(`CONTROL_RUN=${child.pid}-`));
}

/** The processes whose environment has a certain `NAME=VALUE`. */
export function listByVariable(isWanted: (variable: string) => boolean): number[] {
  return listPids().filter((pid) => tryRead(`/proc/${pid}/environ`).split('\0').some(isWanted));
}

function listPids(): number[] {
  return tryList('/proc').filter((name) => /^\d/.test(name)).map(Number);
}

/** Returns an empty text if the process has ended. */
export function tryRead(path: string): string {
  try {
    return readFileSync(path, 'latin1');
  } catch {
    return '';
  }
}

function tryList(path: string): string[] {
  try {
    return readdirSync(path);
  } catch {
    return [];
  }
}
