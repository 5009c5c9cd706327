// A copy of this folder, to try edits in: it is built and tested there, and no process and no file of that is left.

import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { tryRead } from '../../run/processes.ts';
import { EXIT } from '../../shared/cli.ts';
import type { Readable } from 'node:stream';

const LEFT_OUT = ['.git', '.dev', '.test', 'dist', 'node_modules', 'states'];
const MARK = 'TRIAL_FOLDER'; // a variable, whose value is the path of the copy
const CLOSE_MS = 1000; // for the rest of the output of a process that has ended; one without the mark may keep it open
const FILES_AT_ONCE = 3;
const MAX_PASSES = 10;
const REPORTERS = [ // after that of bin/test/run.mjs
  '--test-reporter-destination=stdout', '--test-reporter=./bin/dev/trials/failures.mjs',
  '--test-reporter-destination=stdout',
];

export interface Result {
  output: string;
  /** The exit code; null if a signal ended it. */
  code: number | null;
  /** Whether it did not end in time. */
  isLate: boolean;
}

/** What the tests say of an error: one has failed, all have passed, or why neither is known. */
export type Verdict = { kind: 'killed'; by: string } | { kind: 'survived' } | { kind: 'unknown'; why: string };

type Child = ChildProcessByStdio<null, Readable, Readable>;

export class Copy {
  /** Below .dev/, because other users, as whom tests run programs, can reach that. */
  readonly folder: string;
  readonly #temporary: string;
  readonly #children: Set<Child> = new Set();

  constructor() {
    mkdirSync('.dev', { recursive: true });
    this.folder = mkdtempSync(resolve('.dev/trial-'));
    this.#temporary = mkdtempSync(join(tmpdir(), 'trial-')); // for what killed tests leave; sockets need short paths
    chmodSync(this.#temporary, 0o1777);
    process.on('exit', () => {
      this.#killAll();
      for (const folder of [this.folder, this.#temporary]) rmSync(folder, { recursive: true, maxRetries: 5 });
    });
    for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(name, () => process.exit(EXIT.REFUSED));
    for (const name of readdirSync('.').filter((one) => !LEFT_OUT.includes(one))) {
      cpSync(name, join(this.folder, name), { recursive: true });
    }
    symlinkSync(resolve('node_modules'), join(this.folder, 'node_modules'));
  }

  /** Checks the types; a second time, only those that may have changed. */
  check(limitMs: number): Promise<Result> {
    return this.#run(['node_modules/typescript/bin/tsc', '--incremental', '--tsBuildInfoFile', '.dev/types'], limitMs);
  }

  /** Builds dist/, which the tests need. */
  build(limitMs: number): Promise<Result> {
    return this.#run(['bin/dev/build.mjs'], limitMs);
  }

  /** Runs tests; `args` are those of bin/test/run.mjs. */
  test(args: readonly string[], limitMs: number): Promise<Result> {
    return this.#run(['bin/test/run.mjs', ...args], limitMs);
  }

  /** Runs test files, some at a time, until a test fails. */
  async testUntilFailure(paths: readonly string[], limitMs: number): Promise<Verdict> {
    const left = [...paths];
    let running = 0;
    let end: (verdict: Verdict) => void = () => {};
    const verdict = new Promise<Verdict>((resolve) => (end = resolve));
    const timer = setTimeout(end, limitMs, { kind: 'unknown', why: 'timed out' });
    const startNext = (): void => {
      const path = left.shift();
      if (path === undefined) return running === 0 ? end({ kind: 'survived' }) : undefined;
      running += 1;
      const child = this.#start(['bin/test/run.mjs', path, ...REPORTERS]);
      const output = outputOf(child, () => {
        const [, by] = /^FAILED (.*)\n/m.exec(output()) ?? [];
        if (by !== undefined) end({ kind: 'killed', by });
      });
      child.on('exit', (code) => {
        const fail = (): void => end({ kind: 'unknown', why: `${path}: ${output().slice(-1000)}` });
        if (code !== 0) return void setTimeout(fail, CLOSE_MS);
        running -= 1;
        startNext();
      });
    };
    for (let count = 0; count < FILES_AT_ONCE; count += 1) startNext();
    return verdict.finally(() => {
      clearTimeout(timer);
      left.length = 0;
      this.#killAll();
    });
  }

  /** Runs Node, and ends what it leaves running, as some bugs do. */
  async #run(args: readonly string[], limitMs: number): Promise<Result> {
    const child = this.#start(args);
    const output = outputOf(child);
    const closed = once(child, 'close');
    let isLate = false;
    const timer = setTimeout(() => {
      isLate = true;
      this.#killAll();
    }, limitMs);
    const [code] = await once(child, 'exit') as [number | null];
    clearTimeout(timer);
    this.#killAll();
    await Promise.race([closed, sleep(CLOSE_MS)]);
    return { output: output(), code, isLate };
  }

  #start(args: readonly string[]): Child {
    const env = { ...process.env, [MARK]: this.folder, TMPDIR: this.#temporary };
    const child = spawn(process.execPath, args, {
      cwd: this.folder, detached: true, stdio: ['ignore', 'pipe', 'pipe'], env,
    });
    this.#children.add(child);
    child.on('exit', () => hasGroup(child.pid) || this.#children.delete(child));
    return child;
  }

  /** Kills what has been started, with its process group, and on Linux all that has inherited the mark. */
  #killAll(): void {
    for (const child of this.#children) {
      child.kill('SIGKILL'); // on Windows, there are no groups
      if (child.pid !== undefined) kill(-child.pid);
    }
    this.#children.clear();
    for (let pass = 0; pass < MAX_PASSES; pass += 1) { // a process may start another one meanwhile
      const marked = this.#listMarked();
      if (marked.length === 0) return;
      marked.forEach(kill);
    }
  }

  #listMarked(): number[] {
    const names = process.platform === 'linux' ? readdirSync('/proc') : [];
    const pids = names.filter((name) => /^\d/.test(name)).map(Number);
    const mark = `${MARK}=${this.folder}`;
    return pids.filter((pid) => tryRead(`/proc/${pid}/environ`).split('\0').includes(mark));
  }
}

function hasGroup(pid: number = 0): boolean {
  try {
    return process.kill(-pid, 0);
  } catch {
    return false;
  }
}

/** Kills a process, or a process group if the number is negative. */
function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {} // it has ended
}

/** All that it has written. */
function outputOf(child: Child, onMore: () => void = () => {}): () => string {
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
      onMore();
    });
  }
  return () => output;
}
