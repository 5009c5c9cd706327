// What the engines have in common: the checks, running programs, and looking at the trainer from outside.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ChildProcess } from 'node:child_process';

/** What is tried with each engine, in this order. */
export const CHECKS = {
  outside: 'paused, saved and looked at from outside',
  confined: 'a user without privileges, who cannot get any',
  stop: 'a stop saves',
  limit: 'the end of its time saves',
  preemption: 'preemption saves',
  death: 'after kill -9, it continues from the latest checkpoint',
  requeue: 'requeued, it continues from the latest checkpoint',
  probes: 'paused, it survives the probes',
  paused: 'paused is kept over a restart',
  many: '64 tasks are paused by one command',
} as const;

/** How many those are. */
export const TASKS = 64;

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
  stdout: string;
  /** stdout and stderr. */
  output: string;
}

export interface RunOptions {
  cwd?: string;
  env?: NodeJS.ProcessEnv;
  /** In milliseconds. Default: two minutes. */
  timeout?: number;
}

const TIME_LIMIT_MS = 120_000;
const MANY_TIMEOUT_MS = 180_000; // two cores start 64 trainers that compute

/** Runs a program to its end. */
export async function execute(program: string, args: readonly string[], options: RunOptions = {}): Promise<Ended> {
  const { cwd = '/', env = {}, timeout = TIME_LIMIT_MS } = options;
  const stdio = ['ignore', 'pipe', 'pipe'] as ['ignore', 'pipe', 'pipe'];
  const child = spawn(program, args, { cwd, env: { ...process.env, ...env }, stdio, timeout });
  let stdout = '';
  let output = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    stdout += text;
    output += text;
  });
  child.stderr.setEncoding('utf8').on('data', (text: string) => (output += text));
  return new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code) => resolve({ code, stdout, output }));
  });
}

/** Like execute(), but returns stdout. Throws unless the exit code is 0. */
export async function succeed(program: string, args: readonly string[], options: RunOptions = {}): Promise<string> {
  const { code, stdout, output } = await execute(program, args, options);
  if (code === 0) return stdout.trim();
  throw new Error(`${[program, ...args].join(' ')} ended with exit code ${code}: ${output.trim().split('\n').at(-1)}`);
}

/** Starts a program that runs until it is stopped. */
export function startProgram(program: string, args: readonly string[], options: RunOptions = {}): ChildProcess {
  const { cwd = '/', env = {} } = options;
  return spawn(program, args, { cwd, env: { ...process.env, ...env }, stdio: 'ignore', detached: true });
}

/** Ends a program, unless it has ended, and waits until it is gone. */
export async function endProgram(program: ChildProcess, signal: NodeJS.Signals = 'SIGTERM'): Promise<void> {
  if (program.exitCode === null && program.signalCode === null && program.kill(signal)) await once(program, 'exit');
}

/** The signal that ends all waiting. */
export const interruption: { by: string | null } = { by: null };

export function throwIfInterrupted(): void {
  if (interruption.by !== null) throw new Error(`interrupted by ${interruption.by}`);
}

/** Waits until `look` returns something other than undefined, false or ''. Errors count as not yet. */
export async function until<T>(what: string, look: () => T | Promise<T>, timeoutMs = 60_000): Promise<NonNullable<T>> {
  let reason = '';
  for (const deadline = performance.now() + timeoutMs; performance.now() < deadline; await sleep(50)) {
    throwIfInterrupted();
    try {
      const seen = await look();
      if (seen !== undefined && seen !== false && seen !== '' && seen !== null) return seen;
    } catch (error) {
      reason = `: ${(error as Error).message}`;
    }
  }
  throw new Error(`not within ${timeoutMs / 1000} s: ${what}${reason}`);
}

/** Returns where something is mounted below a folder, the latest mount first. */
export async function mountsIn(folder: string): Promise<string[]> {
  const lines = (await readFile('/proc/self/mounts', 'utf8')).split('\n');
  return lines.map((line) => line.split(' ')[1] ?? '').filter((path) => path.startsWith(`${folder}/`)).reverse();
}

// ───── The trainer ───────────────────────────────────────────────────────────────────────────────────────────────

export interface Checkpoint {
  name: string;
  steps: number;
  /** Random, unless the trainer continued from another checkpoint. */
  seed: number;
  /** From its name: the time of the file lags behind by some milliseconds. */
  savedAtMs: number;
}

/** Returns the newest checkpoint in a folder; undefined if there is none. */
export function latestIn(folder: string): Checkpoint | undefined {
  const name = readdirSync(folder).filter((entry) => entry.endsWith('.json')).sort().at(-1);
  if (name === undefined) return undefined;
  const { steps, seed } = JSON.parse(readFileSync(join(folder, name), 'utf8'));
  const time = name.replace(/T(\d\d)-(\d\d)-/, 'T$1:$2:').replace('.json', '');
  return { name, steps, seed, savedAtMs: Date.parse(time) };
}

/** A trainer that an engine runs, seen from outside. */
export interface Trainer {
  /** Runs control-client for it, and returns the output. Throws unless the exit code is 0. */
  client(...args: string[]): Promise<string>;
  /** The folder of its checkpoints. */
  states: string;
}

export interface Info {
  pid: number;
  status: string;
  startedAt: string;
  /** null until the trainer has told it for the first time. */
  detail: { step: number };
}

export async function infoOf(trainer: Trainer): Promise<Info> {
  return JSON.parse(await trainer.client('info', '--json'));
}

/** Waits until the trainer responds, and returns its status. A trainer that began before `startedAt` does not count. */
export async function untilStarted(trainer: Trainer, startedAt = ''): Promise<Info> {
  return until('the trainer responds', async () => {
    const info = await infoOf(trainer);
    return info.startedAt > startedAt && info.detail !== null ? info : undefined;
  });
}

/** Checks that the trainer saves when `end` ends it. @param end Returns how it ended, once it is gone. */
export async function checkSave(trainer: Trainer, end: () => Promise<string>): Promise<string> {
  const { step } = (await untilStarted(trainer)).detail;
  const beganMs = Date.now();
  const ended = await end();
  const saved = latestIn(trainer.states);
  if (saved === undefined || saved.savedAtMs < beganMs) throw new Error(`nothing was saved; ${ended}`);
  if (saved.steps < step) throw new Error(`saved step ${saved.steps}, older than step ${step}; ${ended}`);
  return `saved after ${seconds(saved.savedAtMs - beganMs)}, ${ended}`;
}

/** Checks that a new process continues from the latest checkpoint after `end`. */
export async function checkContinuation(trainer: Trainer, end: () => Promise<unknown>): Promise<string> {
  const { startedAt } = await untilStarted(trainer);
  await trainer.client('save-state', '--wait');
  const before = latestIn(trainer.states) as Checkpoint;
  const beganMs = Date.now();
  await end();
  await untilStarted(trainer, startedAt);
  const tookMs = Date.now() - beganMs;
  await trainer.client('save-state', '--wait');
  const after = latestIn(trainer.states) as Checkpoint;
  if (after.seed !== before.seed || after.steps < before.steps) throw new Error('it began anew');
  return `active after ${seconds(tookMs)}, from step ${before.steps.toLocaleString('en-US')}`;
}

/** Checks that a system that is paused before `restart` is paused after it. */
export async function checkPausedKept(trainer: Trainer, restart: () => Promise<string>): Promise<string> {
  const { startedAt } = await untilStarted(trainer);
  await trainer.client('pause', '--wait');
  const how = await restart();
  const { status, detail } = await untilStarted(trainer, startedAt);
  if (status !== 'paused') throw new Error(`it is ${status} after ${how}`);
  return `still paused after ${how}, at step ${detail.step.toLocaleString('en-US')}`;
}

/** Checks that a client can pause, save and look. */
export async function checkOutside(trainer: Trainer): Promise<string> {
  await untilStarted(trainer);
  const status = await trainer.client('pause', '--wait');
  const { detail } = await infoOf(trainer);
  const path = await trainer.client('save-state', '--wait');
  const saved = latestIn(trainer.states);
  if (status !== 'paused' || saved === undefined || basename(path) !== saved.name || saved.steps !== detail.step) {
    throw new Error(`${status} at step ${detail.step}, saved ${path}, found ${saved?.name} of step ${saved?.steps}`);
  }
  const resumed = await trainer.client('resume', '--wait');
  if (resumed !== 'active') throw new Error(`${resumed} after resume`);
  return `paused, saved ${saved.name} and resumed`;
}

/** Checks the privileges of a trainer. @param status Its /proc/PID/status. */
export function checkConfined(status: string): string {
  const field = (name: string): string => new RegExp(`^${name}:\\t(\\S+)`, 'm').exec(status)?.[1] ?? '';
  const [user, isFinal, effective] = ['Uid', 'NoNewPrivs', 'CapEff'].map(field);
  if (user === '' || user === '0' || isFinal !== '1' || Number(`0x${effective}`) !== 0) {
    throw new Error(`user ${user}, no_new_privs ${isFinal}, capabilities ${effective}`);
  }
  return `user ${user}, no_new_privs, no capabilities`;
}

/** Checks that one command pauses all trainers of a folder. @param client Runs control-client with `--dir`. */
export async function checkMany(client: Trainer['client']): Promise<string> {
  const statuses = async (): Promise<string[]> => {
    return (await client('list', '--json')).split('\n').map((line) => JSON.parse(line).status);
  };
  await until(`${TASKS} trainers are active`, async () => {
    const found = await statuses();
    return found.length === TASKS && found.every((status) => status === 'active');
  }, MANY_TIMEOUT_MS);
  const beganMs = Date.now();
  await client('pause', '--all', '--wait', '--timeout', '60');
  const tookMs = Date.now() - beganMs;
  const paused = (await statuses()).filter((status) => status === 'paused');
  if (paused.length !== TASKS) throw new Error(`${paused.length} of ${TASKS} are paused`);
  return `${TASKS} paused after ${seconds(tookMs)}`;
}

export function seconds(milliseconds: number): string {
  return `${(milliseconds / 1000).toFixed(1)} s`;
}

/** Returns the commands in the first comment of a recipe: its lines that are indented. */
export function commandsIn(recipe: string): string[] {
  const comment = recipe.slice(0, recipe.search(/^(?!#)/m)).replaceAll(/\\\n# +/g, '');
  return [...comment.matchAll(/^# {2,}(.+)$/gm)].map(([, command]) => command as string);
}
