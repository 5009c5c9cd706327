// Shared by the engines: shell commands, daemons, and what a step expects of the trainer.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ChildProcess } from 'node:child_process';

/**
 * An engine and its table of steps. All commands run in bash, as root, in one folder, which is empty at first and
 * removed at the end. Their environment: RECIPES, the folder of the recipes; TRAINER, control-demo; TARBALL, the
 * package, which is also on the PATH; ROOT, a root file system, if needsRoot is set; PORT and PORT2, free ports.
 */
export interface Engine {
  /** Debian packages. */
  packages: string;
  /** The programs without which the engine counts as not installed. */
  programs: readonly string[];
  needsRoot?: boolean;
  /** Shell functions for the commands below: `begin` starts a trainer, `client` runs control-client for it. */
  functions: string;
  prepare: string;
  /** Run in the foreground, from the end of `prepare` until the end of `stop`. */
  daemons?: readonly string[];
  /** Waits for the daemons, and prepares the first step. */
  start?: string;
  /** The folder of the trainer's checkpoints. */
  states: string;
  steps: readonly Step[];
  /** Ends all that the engine runs. Also runs if `start` failed. */
  stop?: string;
}

/** One row of the table. */
export interface Step {
  name: string;
  /** How the trainer starts. Default: `begin`. */
  begin?: string;
  /** What happens to the trainer. */
  do?: string;
  expect: Expectation;
}

/** Runs the step. Returns a short description of the outcome; throws if it is not the expected one. */
export type Expectation = (trainer: Trainer, act: () => Promise<string>) => Promise<string>;

export interface Trainer {
  shell: Shell;
  states: string;
}

/** Runs a command, and returns its standard output. Throws unless the exit code is 0. */
export type Shell = (command: string) => Promise<string>;

export const TASKS = 64;
export const ROOT_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

const SHELL_TIMEOUT_MS = 200_000; // Slurm ends a job up to a minute late; two cores start 64 trainers
const END_TIMEOUT_MS = 100_000; // a system that shuts down stops its units

// ───── Recipes ───────────────────────────────────────────────────────────────────────────────────────────────────

export function readRecipe(name: string): string {
  return readFileSync(join('bin/recipes', name), 'utf8');
}

/** Returns the commands in the first comment of a recipe: its indented lines, without the comments behind them. */
export function commandsOf(name: string): string[] {
  const [comment = ''] = /^(#.*\n)+/.exec(readRecipe(name)) ?? [];
  const lines = comment.replaceAll(/\\\n# +/g, '').matchAll(/^# {2,}(\S.*?)(?: +# .*)?$/gm);
  return [...lines].map(([, command]) => command as string);
}

// ───── Programs ──────────────────────────────────────────────────────────────────────────────────────────────────

/** `by`: the signal that ends the run. `end()` ends the command that runs. */
export const interruption = { by: null as string | null, end(): void {} };

export function throwIfInterrupted(): void {
  if (interruption.by !== null) throw new Error(`interrupted by ${interruption.by}`);
}

export function shellIn(folder: string, env: NodeJS.ProcessEnv = {}, functions: string = ''): Shell {
  return async (command) => {
    const child = spawn('bash', ['-ec', `${functions}\n${command}`], {
      cwd: folder, env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'pipe'], detached: true,
    });
    interruption.end = () => { try { process.kill(-(child.pid as number)); } catch {} }; // all may have ended
    const timer = setTimeout(interruption.end, SHELL_TIMEOUT_MS);
    const [output, errors] = [[] as string[], [] as string[]];
    child.stdout.setEncoding('utf8').on('data', (text: string) => output.push(text));
    child.stderr.setEncoding('utf8').on('data', (text: string) => errors.push(text));
    const [code, signal] = await once(child, 'close') as [number | null, string | null];
    clearTimeout(timer);
    interruption.end = () => {};
    if (code === 0) return output.join('').trim();
    const last = (errors.join('').trim() || output.join('').trim()).split('\n').at(-1);
    throw new Error(`${command.trim().split('\n').join('; ')} ended with ${signal ?? code}: ${last}`);
  };
}

export function startDaemon(folder: string, env: NodeJS.ProcessEnv, functions: string, command: string): ChildProcess {
  const options = { cwd: folder, env: { ...process.env, ...env }, stdio: 'ignore', detached: true } as const;
  return spawn('bash', ['-ec', `${functions}\n${command}`], options);
}

export async function endDaemon(daemon: ChildProcess): Promise<void> {
  if (daemon.exitCode !== null || daemon.signalCode !== null) return;
  const ended = once(daemon, 'exit', { signal: AbortSignal.timeout(END_TIMEOUT_MS) });
  daemon.kill();
  await ended.catch(() => daemon.kill('SIGKILL'));
}

/** Waits until `look` returns a value other than undefined. While it throws, it is called again. */
export async function until<T>(
  what: string,
  look: () => Promise<T | undefined>,
  timeoutMs: number = 60_000,
): Promise<T> {
  let reason = '';
  for (const deadline = performance.now() + timeoutMs; performance.now() < deadline; await sleep(50)) {
    throwIfInterrupted();
    try {
      const seen = await look();
      if (seen !== undefined) return seen;
    } catch (error) {
      reason = `: ${(error as Error).message}`;
    }
  }
  throw new Error(`not within ${timeoutMs / 1000} s: ${what}${reason}`);
}

// ───── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────

interface Info {
  status: string;
  holds: { by: string }[];
  startedAt: string;
  detail: { step: number } | null; // null until the trainer has reported it
}

/** Waits until a trainer that started later than `after` responds, and returns its step and what it is doing. */
async function untilStarted({ shell }: Trainer, after: string = ''): Promise<Omit<Info, 'detail'> & { step: number }> {
  return until('the trainer responds', async () => {
    const { detail, ...info } = JSON.parse(await shell('client info --json')) as Info;
    return info.startedAt > after && detail !== null ? { ...info, step: detail.step } : undefined;
  });
}

/** Returns the latest checkpoint. Its seed is random, unless the trainer continued from another checkpoint. */
function latest({ states }: Trainer): { name: string; steps: number; seed: number; savedAtMs: number } {
  const name = readdirSync(states).filter((entry) => entry.endsWith('.json')).sort().at(-1);
  if (name === undefined) throw new Error('no checkpoint');
  const { step: steps, seed } = JSON.parse(readFileSync(join(states, name), 'utf8'));
  if (!Number.isInteger(steps)) throw new Error(`${name} has no step`);
  const time = name.replace(/T(\d\d)-(\d\d)-/, 'T$1:$2:').replace('.json', ''); // file times lag behind
  return { name, steps, seed, savedAtMs: Date.parse(time) };
}

function seconds(milliseconds: number): string {
  return `${(milliseconds / 1000).toFixed(1)} s`;
}

/** `do` prints this, its lines joined by commas. */
export function prints(pattern: RegExp): Expectation {
  return async (_, act) => {
    const output = (await act()).split('\n').join(', ');
    const [seen] = pattern.exec(output) ?? [];
    if (seen === undefined) throw new Error(`printed ${output}`);
    return seen;
  };
}

/** @param pause The command in the comment of the recipe. */
export function pauseStep(pause: string | undefined): Step {
  return { name: 'the pause command of the recipe', do: `ready; ${pause}`, expect: prints(/paused$/) };
}

/** A command pauses the trainer, saves it and resumes it. @param client Runs control-client. */
export function obeys(client: string = 'client'): Expectation {
  return async (trainer) => {
    await untilStarted(trainer);
    const status = await trainer.shell(`${client} pause --wait`);
    const { step } = await untilStarted(trainer);
    const path = await trainer.shell(`${client} save-state --wait`);
    const { name, steps } = latest(trainer);
    const seen = [status, basename(path), await trainer.shell(`${client} resume --wait`)].join(', ');
    if (seen !== `paused, ${name}, active` || steps !== step) throw new Error(`${seen}: ${steps} of ${step} steps`);
    return seen;
  };
}

/**
 * Tools reach the trainer and its log with `--via`, and leave no process over there. The engine has a function `far`,
 * which prints the processes there that run the far end.
 *
 * @param command What runs a command over there.
 * @param socket Of the trainer, over there.
 * @param limitMs For the end of the far end, once the tool has ended.
 */
export function reaches(command: string, socket: string, limitMs: number = 5000): Expectation {
  const over = `
    socket="${socket}"
    target=far/$(basename "$socket" .sock)
    there=(--via "far=${command}" --dir "$(dirname "$socket")")
    over() { timeout 60 control-client "$@" "\${there[@]}"; }`;
  return async (trainer) => {
    const { shell } = trainer;
    await untilStarted(trainer);
    const output = await shell(`${over}
      over list | grep --only-matching --fixed-strings "far/unix:$socket" >/dev/null
      over pause "$target" --wait; over status "$target"; over resume "$target" --mine --wait; over status "$target"`);
    const seen = output.split('\n').map((line) => line.split(/ +/).at(-1)).join(', ');
    if (seen !== 'paused, paused, active, active') throw new Error(output);
    await shell(`${over}
      over log "$target" --since 1h | grep --quiet ' paused by '`);
    const gone = async (): Promise<true | undefined> => await shell('far') === '' || undefined;
    await until('the far end ends', gone, limitMs);
    await shell(`${over}
      control-client watch "$target" "\${there[@]}" >/dev/null &
      until far | grep --quiet .; do sleep 0.1; done
      kill $!; wait $! || true`);
    const beganMs = Date.now();
    await until('the far end ends', gone, limitMs);
    return `${seen}, gone after ${seconds(Date.now() - beganMs)}`;
  };
}

/** What a user gets who runs a command over there in a wrong way: one line, and the exit code of no answer. */
export function failsWith(command: string, reason: string): Step {
  return {
    name: `wrong: ${command.replaceAll(/"?\$(PWD\/|\(cat )([\w.-]+)\)?"?/g, '$2')}`,
    do: `ready; timeout 60 control-client list --via "far=${command}" 2>&1 || echo $?`,
    expect: async (_, act) => {
      const output = await act();
      if (!output.startsWith(`control-client: far: ${reason}`) || !/^[^\n]+\n5$/.test(output)) throw new Error(output);
      return output.slice('control-client: far: '.length, -2);
    },
  };
}

/** `do` ends the trainer, which saves before. @param pattern What `do` prints. */
export function saves(pattern: RegExp = /^/): Expectation {
  return async (trainer, act) => {
    const { step } = await untilStarted(trainer);
    const beganMs = Date.now();
    const output = await prints(pattern)(trainer, act);
    const { steps, savedAtMs } = latest(trainer);
    if (savedAtMs < beganMs || steps < step) throw new Error(`the latest checkpoint has ${steps} of ${step} steps`);
    return `saved after ${seconds(savedAtMs - beganMs)}${output && `, ${output}`}`;
  };
}

/** `do` ends the trainer, which saves before; another one continues there. */
export function savesAndContinues(pattern?: RegExp): Expectation {
  return async (trainer, act) => {
    const { startedAt } = await untilStarted(trainer);
    const seen = await saves(pattern)(trainer, act);
    const { steps } = latest(trainer);
    const { step } = await untilStarted(trainer, startedAt);
    if (step < steps) throw new Error(`${seen}, but continued from step ${step} instead of ${steps}`);
    return `${seen}, continued`;
  };
}

/** `do` kills the trainer, which cannot save; another one continues from the latest checkpoint. */
export function continues(pattern: RegExp = /^/): Expectation {
  return async (trainer, act) => {
    const { startedAt } = await untilStarted(trainer);
    await trainer.shell('client save-state --wait');
    const before = latest(trainer);
    const beganMs = Date.now();
    await prints(pattern)(trainer, act);
    await untilStarted(trainer, startedAt);
    const tookMs = Date.now() - beganMs;
    await trainer.shell('client save-state --wait');
    const after = latest(trainer);
    if (after.seed !== before.seed || after.steps < before.steps) throw new Error('it began anew');
    return `continued after ${seconds(tookMs)}`;
  };
}

/** Two senders pause the trainer, and still hold the pause after `do`, which starts it again. */
export function staysPaused(): Expectation {
  return async (trainer, act) => {
    const { startedAt } = await untilStarted(trainer);
    for (const by of ['ana', 'ben']) await trainer.shell(`client pause --wait --by ${by}`);
    await act();
    const { status, holds, step } = await untilStarted(trainer, startedAt);
    const seen = [status, ...holds.map(({ by }) => by)].join(', ');
    if (seen !== 'paused, ana, ben') throw new Error(`it is ${seen}`);
    return `${seen}, at step ${step}`;
  };
}

/** `do` prints /proc/PID/status of the trainer: a user without privileges, who cannot get any. */
export function isConfined(): Expectation {
  return async (trainer, act) => {
    await untilStarted(trainer);
    const status = await act();
    const seen = status.match(/^(?:Uid|NoNewPrivs|CapEff):\t\S+/gm)?.join(', ').replaceAll('\t', ' ') ?? status;
    if (!/^Uid: [1-9]\d*, CapEff: 0+, NoNewPrivs: 1$/.test(seen)) throw new Error(seen);
    return seen;
  };
}

/** One command pauses TASKS trainers. @param client Runs control-client with `--dir`. */
export function pausesAll(client: string): Expectation {
  return async ({ shell }) => {
    const count = async (status: string): Promise<number> => {
      const lines = (await shell(`${client} list --json`)).split('\n');
      return lines.filter((line) => JSON.parse(line).status === status).length;
    };
    await until(`${TASKS} are active`, async () => await count('active') === TASKS || undefined, SHELL_TIMEOUT_MS);
    const beganMs = Date.now();
    await shell(`${client} pause --all --wait --timeout 60`);
    const tookMs = Date.now() - beganMs;
    const paused = await count('paused');
    if (paused !== TASKS) throw new Error(`${paused} of ${TASKS} are paused`);
    return `${paused} paused after ${seconds(tookMs)}`;
  };
}
