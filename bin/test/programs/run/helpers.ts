// Shared by the tests of control-run: programs under its control, and what /proc tells of their processes.

import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { accessSync, chmodSync, constants, copyFileSync, existsSync, readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { clientAt, makeFolder, start, until } from '../../helpers.ts';
import type { WebApiClient } from '../../../../control.ts';
import type { Running } from '../../helpers.ts';
import type { TestContext } from 'node:test';

export interface StartedRun {
  running: Running;
  port: number;
  /** Of the program, not of control-run. */
  pid: number;
  client: WebApiClient;
}

/** The line that control-run prints at its start: the process id of the program, and the port. */
export const BANNER: RegExp = /control-run: .+?\[(\d+)\] · web API at http:\/\/localhost:(\d+)\n/;

const MAX_END_MS = 15_000;

/** Starts a command under control on a free port. Nothing of it is left at the end of the test. */
export async function startRun(
  t: TestContext,
  options: string[],
  command: string[],
  env: NodeJS.ProcessEnv = {},
  way: Way = DEFAULT_WAY,
): Promise<StartedRun> {
  let running: Running | undefined;
  t.after(() => running && end(running)); // start() would kill it first
  const [file, ...args] = way.line(t);
  const started = running = start(t, file, [...args, '--port', '0', ...options, '--', ...command], env);
  await running.shows(BANNER);
  const [, pid, port] = BANNER.exec(started.output()) as unknown as [string, string, string];
  const client = clientAt(t, { host: '127.0.0.1', port: Number(port) });
  return { running, port: Number(port), pid: Number(pid), client };
}

/** Fails if it does not end all that it has started. */
async function end(running: Running): Promise<void> {
  const { child } = running;
  if (child.exitCode === null && child.signalCode === null) {
    child.kill('SIGCONT');
    child.kill('SIGTERM');
    await Promise.race([once(child, 'exit'), sleep(MAX_END_MS, null, { ref: false })]);
    child.kill('SIGKILL');
  }
  try {
    await isTidy(running);
  } finally {
    killAll(processesOf(running));
  }
}

export function killAll(pids: readonly number[]): void {
  for (const pid of pids) {
    try {
      process.kill(pid, 'SIGKILL');
    } catch {} // it has ended
  }
}

/** Waits until control-run has ended. Processes that the program left may still hold its output. */
export async function exitCodeOf({ child, output }: Running): Promise<number | null> {
  const hasEnded = (): boolean => child.exitCode !== null || child.signalCode !== null;
  await until(hasEnded, () => `control-run still runs: ${output()}`);
  return child.exitCode;
}

/** Waits until neither the program nor the keeper nor the cgroup is left. */
export async function isTidy(running: Running): Promise<void> {
  const mark = `CONTROL_RUN=${running.child.pid}-`;
  const left = (): string => {
    const keepers = listPids().filter((pid) => tryRead(`/proc/${pid}/cmdline`).includes(`\0${mark}`));
    return [...processesOf(running), ...keepers, ...cgroupsOf(running)].join(' ');
  };
  await until(() => left() === '', () => `left: ${left()}`);
}

// ───── With a cgroup, and without ────────────────────────────────────────────────────────────────────────────────────

/** How control-run finds the processes of a program. */
export interface Way {
  name: string;
  skip: string | false;
  /** What starts control-run. */
  line(t: TestContext): [string, ...string[]];
}

const DEFAULT_WAY: Way = { name: 'as it is', skip: false, line: () => [process.execPath, resolve('dist/bin/run.js')] };
const AS_NOBODY = ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups'] as const;

/** In a cgroup if it may create one; as a user who may not, it searches /proc. */
export const WAYS: readonly Way[] = [
  { ...DEFAULT_WAY, name: 'in a cgroup', skip: lacksCgroup() },
  { name: 'found in /proc', skip: lacksCgroup() === false && lacksNobody(), line: lineWithoutCgroup },
];

function lineWithoutCgroup(t: TestContext): [string, ...string[]] {
  if (lacksCgroup() !== false) return DEFAULT_WAY.line(t);
  const folder = makeFolder(t); // the user may not be able to reach the repository
  chmodSync(folder, 0o755);
  copyFileSync('dist/bin/run.js', join(folder, 'run.mjs'));
  return [...AS_NOBODY, process.execPath, join(folder, 'run.mjs')];
}

/** The path of the cgroup of this process, if it may be written. */
function findCgroup(): string | null {
  const [, path = ''] = /^0::(.*)$/m.exec(tryRead('/proc/self/cgroup')) ?? [];
  const [, mount = ''] = /^\S+ (\S+) cgroup2 /m.exec(tryRead('/proc/self/mounts')) ?? [];
  try {
    accessSync(join(mount, path), constants.W_OK);
    return mount === '' ? null : join(mount, path);
  } catch {
    return null;
  }
}

export function lacksCgroup(): string | false {
  return findCgroup() === null && 'needs a cgroup (version 2) that may be written: run it as root';
}

function lacksNobody(): string | false {
  const [command, ...args] = [...AS_NOBODY, process.execPath, '--version'];
  const isPossible = spawnSync(command, args).status === 0;
  return !isPossible && 'needs root, setpriv (apt-get install util-linux), and a Node that everybody may execute';
}

/** Where control-run keeps the processes; empty if it has no cgroup, or has ended. */
export function cgroupsOf({ child }: Running): string[] {
  const parent = findCgroup() ?? '/nowhere';
  const names = tryList(parent).filter((name) => name.startsWith(`control-run-${child.pid}-`));
  return names.map((name) => join(parent, name));
}

/** The arguments of `unshare` for a command that is process 1. */
export const NAMESPACE: readonly string[] = ['--fork', '--pid', '--mount-proc', '--kill-child'];

export function lacksNamespace(): string | false {
  const isPossible = spawnSync('unshare', [...NAMESPACE, 'true']).status === 0;
  return !isPossible && 'needs root and unshare: apt-get install util-linux';
}

// ───── /proc ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/** Why tests of processes are skipped; false on Linux. */
export const lacksProc: string | false = !existsSync('/proc/self/environ') && 'needs /proc of Linux';

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

/** Returns nothing if it has ended. */
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
