// What the engines have in common: the checks, running programs, and looking at the trainer from outside.

import { spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ChildProcess } from 'node:child_process';

/** What is tried with each engine, in this order. */
export const CHECKS = {
  outside: 'paused, saved and looked at from outside',
  stop: 'a stop saves',
  limit: 'the end of its time saves',
  preemption: 'preemption saves',
  death: 'after kill -9, it continues from the latest checkpoint',
  requeue: 'requeued, it continues from the latest checkpoint',
  probes: 'paused, it survives the probes',
  paused: 'paused is kept over a restart',
  many: '64 tasks are paused by one command',
} as const;

export type CheckName = keyof typeof CHECKS;

/** Returns what was seen, in a few words. Throws if it fails. */
export type Check = () => Promise<string>;

export interface Engine {
  name: string;
  /** Debian packages, and the programs of them without which the engine is skipped. */
  packages: string;
  programs: readonly string[];
  /** Starts the engine. Everything it writes is in its folder. */
  start(place: Place): Promise<RunningEngine>;
}

export interface RunningEngine {
  /** A text is why the engine cannot do that. */
  checks: Record<CheckName, Check | string>;
  /** Ends the engine and all that runs in it. */
  stop(): Promise<void>;
}

/** What an engine is given. */
export interface Place {
  /** An empty folder whose path is short. */
  folder: string;
  /** The folder of the recipes. */
  recipes: string;
  /** The program to control: control-demo, in one file. */
  trainer: string;
  /** The package, to be installed with npm; in `programs`, it is: a folder for the PATH. */
  tarball: string;
  programs: string;
  /** Returns a root file system with systemd, Node and the package. It is built once, and must be copied. */
  rootFileSystem(): Promise<string>;
  /** Shows what is being done. */
  progress(text: string): void;
}

// ───── Programs ──────────────────────────────────────────────────────────────────────────────────────────────────

export interface Ended {
  code: number | null;
  output: string;
}

export interface RunOptions {
  cwd?: string;
  env?: NodeJS.ProcessEnv;
  /** In milliseconds. Default: two minutes. */
  timeout?: number;
}

const TIME_LIMIT_MS = 120_000;

/** Runs a program to its end. `output` is stdout and stderr. */
export async function execute(program: string, args: readonly string[], options: RunOptions = {}): Promise<Ended> {
  const { cwd = '/', env = {}, timeout = TIME_LIMIT_MS } = options;
  const child = spawn(program, args, { cwd, env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'pipe'], timeout });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => (output += text));
  }
  return new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code) => resolve({ code, output }));
  });
}

/** Like execute(), but returns the output. Throws unless the exit code is 0. */
export async function succeed(program: string, args: readonly string[], options: RunOptions = {}): Promise<string> {
  const { code, output } = await execute(program, args, options);
  if (code === 0) return output.trim();
  throw new Error(`${[program, ...args].join(' ')} ended with exit code ${code}: ${output.trim().split('\n').at(-1)}`);
}

/** Starts a program that runs until it is stopped. */
export function startProgram(program: string, args: readonly string[], { cwd = '/', env = {} }: RunOptions = {}): ChildProcess {
  return spawn(program, args, { cwd, env: { ...process.env, ...env }, stdio: 'ignore', detached: true });
}

/** Waits until `look` returns something other than undefined, false or ''. Errors count as not yet. */
export async function until<T>(what: string, look: () => T | Promise<T>, timeoutMs = 60_000): Promise<NonNullable<T>> {
  let reason = '';
  for (const deadline = performance.now() + timeoutMs; performance.now() < deadline; await sleep(50)) {
    try {
      const seen = await look();
      if (seen !== undefined && seen !== false && seen !== '' && seen !== null) return seen;
    } catch (error) {
      reason = `: ${(error as Error).message}`;
    }
  }
  throw new Error(`not within ${timeoutMs / 1000} s: ${what}${reason}`);
}

// ───── The trainer ───────────────────────────────────────────────────────────────────────────────────────────────

export interface Checkpoint {
  name: string;
  steps: number;
}

/** Returns the newest checkpoint in a folder; undefined if there is none. */
export function latestIn(folder: string): Checkpoint | undefined {
  const name = readdirSync(folder).filter((entry) => entry.endsWith('.json')).sort().at(-1);
  if (name === undefined) return undefined;
  return { name, steps: JSON.parse(readFileSync(join(folder, name), 'utf8')).steps };
}
