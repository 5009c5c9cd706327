// A copy of this folder, to try edits in: it is built and tested there, and nothing of that outlives the trial.

import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from 'node:fs';
import { resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { tryRead } from '../../run/processes.ts';
import { EXIT } from '../../shared/cli.ts';
import type { ChildProcess, ChildProcessByStdio } from 'node:child_process';
import type { Readable } from 'node:stream';

const LEFT_OUT = ['.git', '.dev', '.test', 'dist', 'node_modules', 'states'];
const MARK = 'CONTROL_TRIAL'; // a variable, whose value is the path of the copy
const FILES_AT_ONCE = 3;
const REPORTERS = [ // after that of bin/test/run.mjs
  '--test-reporter-destination=stdout', '--test-reporter=./bin/dev/trials/failures.mjs',
  '--test-reporter-destination=stdout',
];
const CLOSE_MS = 1000; // for output that a process without the mark keeps open

export interface Result {
  output: string;
  /** The exit code; null if a signal ended it. */
  code: number | null;
  /** Whether it did not end in time. */
  isLate: boolean;
}

/** Makes a copy, removed at the end: below .dev/, because other users, as whom tests run programs, can reach that. */
export function copyHere(): string {
  mkdirSync('.dev', { recursive: true });
  const folder = mkdtempSync(resolve('.dev/trial-'));
  process.on('exit', () => {
    killAll(folder);
    rmSync(folder, { recursive: true, maxRetries: 5 });
  });
  for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(name, () => process.exit(EXIT.REFUSED));
  for (const name of readdirSync('.').filter((one) => !LEFT_OUT.includes(one))) {
    cpSync(name, `${folder}/${name}`, { recursive: true });
  }
  symlinkSync(resolve('node_modules'), `${folder}/node_modules`);
  return folder;
}

/** Whether the types in the copy are right. */
export function isTyped(folder: string): boolean {
  const args = [resolve('node_modules/typescript/bin/tsc'), '--incremental', '--tsBuildInfoFile', '.dev/types'];
  try {
    execFileSync(process.execPath, args, { cwd: folder, stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
}

/** Builds the copy: its tests run the programs in dist/. */
export function build(folder: string, limitMs: number): Promise<Result> {
  return execute(['bin/dev/build.mjs'], folder, limitMs);
}

/** Runs tests of the copy; `args` are those of bin/test/run.mjs. */
export function test(args: readonly string[], folder: string, limitMs: number): Promise<Result> {
  return execute(['bin/test/run.mjs', ...args], folder, limitMs);
}

/**
 * Runs test files of the copy, three at a time, until a test fails. Returns its title and error; an empty text if none
 * fails, and null if they take longer than the limit.
 */
export async function testUntilFailure(
  paths: readonly string[],
  folder: string,
  limitMs: number,
): Promise<string | null> {
  const left = [...paths];
  const children = new Set<ChildProcess>();
  const failure = await new Promise<string | null>((resolve) => {
    const timer = setTimeout(resolve, limitMs, null);
    const startNext = (): void => {
      const path = left.shift();
      if (path === undefined && children.size === 0) {
        clearTimeout(timer);
        resolve('');
      }
      if (path === undefined) return;
      const child = start(['bin/test/run.mjs', path, ...REPORTERS], folder);
      children.add(child);
      let output = '';
      child.stdout.setEncoding('utf8').on('data', (text: string) => {
        output += text;
        const [, failed] = /^FAILED (.*)\n/m.exec(output) ?? [];
        if (failed !== undefined) resolve(failed);
      });
      child.on('exit', (code) => {
        children.delete(child);
        if (code !== 0) setTimeout(resolve, CLOSE_MS, `${path} ends with ${code}`); // unless the output says more
        else startNext();
      });
    };
    for (let count = 0; count < FILES_AT_ONCE; count += 1) startNext();
  });
  left.length = 0;
  for (const { pid } of children) killAll(folder, pid);
  killAll(folder);
  return failure;
}

function start(args: readonly string[], folder: string): ChildProcessByStdio<null, Readable, Readable> {
  const env = { ...process.env, [MARK]: folder };
  return spawn(process.execPath, args, { cwd: folder, detached: true, stdio: ['ignore', 'pipe', 'pipe'], env });
}

/** Runs Node in the copy, and ends what it leaves running, as some bugs do. */
async function execute(args: readonly string[], folder: string, limitMs: number): Promise<Result> {
  const child = start(args, folder);
  const result: Result = { output: '', code: null, isLate: false };
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => (result.output += text));
  }
  const closed = once(child, 'close');
  const timer = setTimeout(() => {
    result.isLate = true;
    killAll(folder, child.pid);
  }, limitMs);
  [result.code] = await once(child, 'exit');
  clearTimeout(timer);
  killAll(folder, child.pid);
  await Promise.race([closed, sleep(CLOSE_MS)]);
  return result;
}

/** Kills a process group, and on Linux also the processes that have inherited the mark. */
function killAll(folder: string, group?: number): void {
  const pids = process.platform === 'linux' ? readdirSync('/proc').filter((name) => /^\d/.test(name)).map(Number) : [];
  const marked = pids.filter((pid) => tryRead(`/proc/${pid}/environ`).split('\0').includes(`${MARK}=${folder}`));
  for (const pid of group === undefined ? marked : [-group, ...marked]) {
    try {
      process.kill(pid, 'SIGKILL');
    } catch {} // it has ended
  }
}
