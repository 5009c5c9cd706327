// Shared by the tests of control-run.

import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, copyFileSync, existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { WebApiClient } from '../../control.ts';
import { makeFolder, start, until } from './helpers.ts';
import type { Running } from './helpers.ts';
import type { TestContext } from 'node:test';

export interface StartedRun {
  running: Running;
  port: number;
  /** Of the program, not of control-run. */
  pid: number;
  client: WebApiClient;
}

const BANNER = /^control-run: .+\[(\d+)\] · web API at http:\/\/localhost:(\d+)$/m;
const MAX_END_MS = 15_000;

/** Starts a command under control on a free port. Nothing of it is left at the end of the test. */
export async function startRun(
  t: TestContext,
  options: string[],
  command: string[],
  env: NodeJS.ProcessEnv = {},
): Promise<StartedRun> {
  return await follow(t, [process.execPath, 'dist/bin/run.js', '--port', '0', ...options, '--', ...command], env);
}

/** The same as a user who cannot create a cgroup: the processes are searched for in /proc. */
export async function startRunAsNobody(t: TestContext, options: string[], command: string[]): Promise<StartedRun> {
  const folder = makeFolder(t);
  const program = join(folder, 'run.mjs'); // the user may not be able to reach the repository
  copyFileSync('dist/bin/run.js', program);
  chmodSync(folder, 0o755);
  const args = [...AS_NOBODY, process.execPath, program, '--port', '0', ...options, '--', ...command];
  return await follow(t, args, {});
}

const AS_NOBODY: readonly string[] = ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups'];

/** Why tests as another user are skipped; false if that is possible. */
export function lacksNobody(): string | false {
  const [command = '', ...args] = [...AS_NOBODY, process.execPath, '--version'];
  return spawnSync(command, args).status !== 0 && 'needs root and setpriv: apt-get install util-linux';
}

async function follow(t: TestContext, [command = '', ...args]: string[], env: NodeJS.ProcessEnv): Promise<StartedRun> {
  let running: Running | undefined;
  t.after(() => running && end(running)); // start() would kill it first
  const started = running = start(t, command, args, env);
  await running.shows(BANNER);
  const [, pid, port] = BANNER.exec(started.output()) as unknown as [string, string, string];
  const client = new WebApiClient('127.0.0.1', Number(port));
  t.after(() => client.close());
  return { running: started, port: Number(port), pid: Number(pid), client };
}

async function end(running: Running): Promise<void> {
  const { child, ended } = running;
  if (child.exitCode === null && child.signalCode === null) {
    child.kill('SIGCONT');
    child.kill('SIGTERM');
    await Promise.race([once(child, 'exit'), sleep(MAX_END_MS, null, { ref: false })]);
    child.kill('SIGKILL');
  }
  for (let left; (left = processesOf(running)).length > 0;) {
    for (const pid of left) tryKill(pid);
    await sleep(20);
  }
  await ended;
}

function tryKill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {} // it has ended
}

/** Waits until control-run has ended. Processes that the program left may still hold its output. */
export async function exitCodeOf({ child, output }: Running): Promise<number | null> {
  const hasEnded = (): boolean => child.exitCode !== null || child.signalCode !== null;
  await until(hasEnded, () => `control-run still runs: ${output()}`);
  return child.exitCode;
}

/** The processes of the program that still inherit its environment, running or stopped. */
export function processesOf({ child }: Running): number[] {
  const mark = `\0CONTROL_RUN=${child.pid}-`;
  return pidsOfAll().filter((pid) => `\0${tryRead(`/proc/${pid}/environ`)}`.includes(mark));
}

/** One letter: `T` is stopped, `Z` has ended; empty if there is no such process. */
export function stateOf(pid: number): string {
  const stat = tryRead(`/proc/${pid}/stat`);
  return stat.slice(stat.lastIndexOf(')') + 2).charAt(0);
}

/** Where control-run keeps the processes if it may create a cgroup. */
export function cgroupOf({ child }: Running): string {
  const [, path = ''] = /^0::(.*)$/m.exec(tryRead('/proc/self/cgroup')) ?? [];
  const [, mount = ''] = /^\S+ (\S+) cgroup2 /m.exec(tryRead('/proc/self/mounts')) ?? [];
  return join(mount, path, `control-run-${child.pid}`);
}

/** Waits until neither the program nor the keeper nor the cgroup is left. */
export async function isTidy(running: Running): Promise<void> {
  const folder = cgroupOf(running);
  const mark = `\0CONTROL_RUN=${running.child.pid}-`;
  const left = (): string => {
    const keepers = pidsOfAll().filter((pid) => tryRead(`/proc/${pid}/cmdline`).includes(mark));
    return [...processesOf(running), ...keepers, existsSync(folder) ? folder : ''].join(' ').trim();
  };
  await until(() => left() === '', () => `left: ${left()}`);
}

function pidsOfAll(): number[] {
  return readdirSync('/proc').filter((name) => /^\d/.test(name)).map(Number);
}

function tryRead(path: string): string {
  try {
    return readFileSync(path, 'latin1');
  } catch {
    return '';
  }
}
