#!/usr/bin/env node
// control-demo: a program to control. It learns to balance a pole on a cart, as fast as one core can.

import { randomInt } from 'node:crypto';
import { DEFAULT_HOST, DEFAULT_PORT, launch, SystemStatus } from '../control.ts';
import { EPISODE_STEPS, Learner, MEAN_EPISODES } from './demo/cartpole.ts';
import { Checkpoints, ignoredIn, latestIn, pathsIn, readCheckpoint } from './demo/checkpoints.ts';
import { baseUrlOf, parseServerOptions, SERVER_OPTIONS, TOKEN_HELP } from './shared/access.ts';
import {
  describeOptions, EXIT, parseDuration, parseInteger, parseOptions, parseText, run, UsageError,
} from './shared/options.ts';
import { printable } from './shared/text.ts';
import type { Control, System, WebApiAddress } from '../control.ts';

const PROGRAM = 'control-demo';

const OPTIONS = {
  ...SERVER_OPTIONS,
  'no-web-api': { type: 'boolean', default: false, help: 'run without a web API' },
  until: {
    type: 'string', value: 'RETURN',
    help: `shut down once the mean return of ${MEAN_EPISODES} episodes reaches RETURN (1 to ${EPISODE_STEPS})`,
  },
  seed: { type: 'string', value: 'N', help: 'seed of the random numbers, from 0 to 4294967295 (default: random)' },
  load: {
    type: 'string', value: 'FILE',
    help: 'continue from this checkpoint; latest is the newest one in the folder of --states-dir, or a new beginning ' +
      'if it has none',
  },
  'save-every': {
    type: 'string', value: 'MINUTES',
    help: 'also save whenever the last save was MINUTES ago, while active (default: only on request and at the end)',
  },
  'states-dir': {
    type: 'string', value: 'DIR', default: './states',
    help: 'folder for checkpoints, created if it does not exist (default ./states)',
  },
  keep: {
    type: 'string', value: 'N', default: '10',
    help: 'number of checkpoints to keep there (default 10); the oldest are deleted first, but saves within a minute ' +
      'leave half of the places to older ones',
  },
} as const;

const HELP = `
Usage: control-demo [options]

Learns to balance a pole on a cart (tabular Q-learning on CartPole) until it is shut down. Its web API pauses, resumes,
saves and shuts it down. Ctrl-C, SIGTERM and SIGHUP also shut it down, SIGUSR2 saves. It saves a checkpoint before it
exits.

${describeOptions(OPTIONS)}

${TOKEN_HELP}

Exit codes: 0 shut down or RETURN reached, 1 failed to run or to save the last checkpoint, 2 usage error.
`;

const MAX_SEED = 2 ** 32 - 1;
const MAX_KEPT = 1_000_000;
const REDRAW_MS = 100; // interval between progress lines on a terminal
const PRINT_MS = 5000; // the same elsewhere
const SMOOTHING_MS = 1000; // time constant of the average of steps/s

async function main(): Promise<number> {
  const parsed = parseOptions(OPTIONS, HELP);
  if (parsed === null) return EXIT.DONE;
  const { values } = parsed;
  const { seed, load, keep, until, 'save-every': saveEvery, 'states-dir': folder, 'no-web-api': noWebApi } = values;
  const { host, port, socketPath, token, allowedHosts } = parseServerOptions(values);
  if (seed !== undefined && load !== undefined) {
    throw new UsageError('--seed and --load are mutually exclusive: a checkpoint contains its seed');
  }
  const goal = until === undefined ? Infinity : parseReturn('--until', until);
  const saveMs = saveEvery === undefined ? Infinity : parseDuration('--save-every', saveEvery, 'minutes') * 60_000;
  const checkpoints = new Checkpoints(parseText('--states-dir', folder), parseInteger('--keep', keep, 1, MAX_KEPT));
  const loaded = load === undefined ? null : loadState(parseText('--load', load), folder);
  const learner = loaded?.learner ?? createLearner(seed);
  const startPaused = loaded?.isPaused === true && !noWebApi; // nobody could resume it
  prepare(checkpoints, folder);
  if (load !== undefined && loaded === null) {
    console.error(`${PROGRAM}: ${printable(`'${folder}' contains no checkpoint: beginning anew`)}`);
  }
  const ignored = ignoredIn(folder);
  if (ignored !== null) console.error(`${PROGRAM}: ignoring ${printable(ignored)}`);

  const demo = new Demo(learner, checkpoints, { goal, saveMs, startPaused });
  process.removeAllListeners('warning').on('warning', (warning) => demo.warn(warning));
  const end = launch(demo, {
    webApiAddress: noWebApi ? null : [host, port],
    startPaused,
    webApiOptions: { socketPath, token, allowedHosts },
  });
  if (noWebApi) demo.start(null); // after launch() has installed its signal handlers
  await end.catch((error: unknown) => {
    if (error !== demo.saveError) throw error;
  });
  return demo.isSaved ? EXIT.DONE : EXIT.REFUSED;
}

function parseReturn(option: string, text: string): number {
  const value = Number(text);
  if (/^\d+(\.\d*)?$/.test(text) && value >= 1 && value <= EPISODE_STEPS) return value;
  throw new UsageError(`${option} must be a number from 1 to ${EPISODE_STEPS}, got '${text}'`);
}

function createLearner(seed: string | undefined): Learner {
  return new Learner(seed === undefined ? randomInt(MAX_SEED + 1) : parseInteger('--seed', seed, 0, MAX_SEED));
}

/** What a checkpoint holds. */
interface State {
  learner: Learner;
  /** Whether it was saved while paused. */
  isPaused: boolean;
}

/** Returns null if the latest checkpoint is requested and there is none. */
function loadState(load: string, folder: string): State | null {
  const isLatest = load === 'latest';
  let path = isLatest ? null : load;
  try {
    path ??= latestIn(folder);
    return path === null ? null : restore(path);
  } catch (error) {
    const what = path === null ? `the latest checkpoint in '${folder}'` : `'${path}'`;
    const expected = isLatest && path !== null
      ? describeAlternative(folder)
      : '--load requires a checkpoint of control-demo, or latest for the newest one in --states-dir';
    throw new UsageError(`cannot load ${what}: ${(error as Error).message}; ${expected}`);
  }
}

/** What to do if the latest checkpoint in a folder cannot be loaded. */
function describeAlternative(folder: string): string {
  const path = pathsIn(folder).find(isGood);
  if (path === undefined) return `'${folder}' contains no good checkpoint: begin anew without --load`;
  return `continue with --load '${path}', the newest good checkpoint`;
}

/** @throws {Error} If the checkpoint is invalid. */
function restore(path: string): State {
  const snapshot = readCheckpoint(path);
  const learner = Learner.restore(snapshot);
  const { paused = false } = snapshot as { paused?: unknown }; // older versions did not save it
  if (typeof paused !== 'boolean') throw new Error('its "paused" must be true or false');
  return { learner, isPaused: paused };
}

function isGood(path: string): boolean {
  try {
    restore(path);
    return true;
  } catch {
    return false;
  }
}

function prepare(checkpoints: Checkpoints, folder: string): void {
  try {
    checkpoints.prepare();
  } catch (error) {
    const expected = '--states-dir requires a writable folder, or a path where one can be created';
    throw new UsageError(`cannot write to '${folder}': ${(error as Error).message}; ${expected}`);
  }
}

// ───── The system under control ──────────────────────────────────────────────────────────────────────────────────

interface Settings {
  /** Shuts down when the mean return reaches it. */
  goal: number;
  /** Saves when the last save was this long ago. */
  saveMs: number;
  startPaused: boolean;
}

class Demo implements System {
  readonly #learner: Learner;
  readonly #checkpoints: Checkpoints;
  readonly #settings: Settings;
  readonly #progress: Progress;
  readonly #firstStep: number;
  #saveAt = Infinity; // by performance.now()
  #checkedEpisodes = -1; // a loaded checkpoint may have reached the goal already
  #savedPath: string | null = null; // of the last save; null if it failed
  #saveError: unknown = null; // of the last save; null if it succeeded

  constructor(learner: Learner, checkpoints: Checkpoints, settings: Settings) {
    this.#learner = learner;
    this.#checkpoints = checkpoints;
    this.#settings = settings;
    this.#progress = new Progress(learner);
    this.#firstStep = learner.steps;
  }

  /** Whether the last save succeeded. */
  get isSaved(): boolean {
    return this.#savedPath !== null;
  }

  /** Why the last save failed; null if it succeeded. */
  get saveError(): unknown {
    return this.#saveError;
  }

  start(address: WebApiAddress | null): void {
    const where = this.#firstStep === 0 ? '' : `, from step ${format(this.#firstStep)}`;
    const { startPaused } = this.#settings;
    const how = where + (startPaused ? ', paused as it was saved' : '');
    this.#progress.print(`Q-learning on CartPole, seed ${this.#learner.seed}${how} · ${describeControl(address)}`);
    if (!startPaused) this.#progress.run();
    this.#planSave();
  }

  step(control: Control): void {
    this.#learner.step();
    if (this.#learner.episodes === this.#checkedEpisodes) return; // the mean return is the same
    this.#checkedEpisodes = this.#learner.episodes;
    if (this.#hasReachedGoal()) control.shutdown(`mean return ${this.#learner.meanReturn}`);
    else if (performance.now() >= this.#saveAt) control.save('--save-every');
  }

  describe(): object {
    const { episodes, meanReturn, steps } = this.#learner;
    return {
      episode: episodes,
      'mean return': Number(meanReturn.toFixed(1)),
      step: steps,
      'steps per second': Number(this.#progress.measure().toPrecision(3)),
    };
  }

  onListening(address: WebApiAddress): void {
    this.start(address);
  }

  onPaused(): void {
    this.#progress.freeze(SystemStatus.PAUSED);
  }

  onResumed(): void {
    this.#progress.run();
  }

  /** Returns the path of the checkpoint. It tells whether the system was paused, so that it starts paused, too. */
  saveState(status: SystemStatus): string {
    this.#planSave();
    this.#savedPath = null;
    this.#saveError = null;
    try {
      this.#savedPath = this.#checkpoints.save({ ...this.#learner.snapshot(), paused: status === SystemStatus.PAUSED });
    } catch (error) {
      this.#saveError = error;
      this.#progress.print(`${PROGRAM}: cannot save a checkpoint: ${(error as Error).message}`, console.error);
      throw error;
    }
    this.#progress.print(`saved ${this.#savedPath}`);
    return this.#savedPath;
  }

  onShutdown(): void {
    this.#progress.freeze(SystemStatus.SHUTTING_DOWN);
    const reached = this.#hasReachedGoal() ? `, with a mean return of ${this.#learner.meanReturn}` : '';
    const next = this.isSaved ? `; continue with --load ${this.#savedPath}` : '';
    this.#progress.end(`stopped at step ${format(this.#learner.steps)}${reached}${next}`);
  }

  /** Prints a warning above the progress line, without the stack that Node adds. saveState() prints its own line. */
  warn({ message }: Error): void {
    if (!message.startsWith('saveState failed: ')) this.#progress.print(`${PROGRAM}: ${message}`, console.error);
  }

  #planSave(): void {
    this.#saveAt = performance.now() + this.#settings.saveMs;
  }

  #hasReachedGoal(): boolean {
    const { episodes, meanReturn } = this.#learner;
    return episodes >= MEAN_EPISODES && meanReturn >= this.#settings.goal;
  }
}

function describeControl(address: WebApiAddress | null): string {
  if (address === null) return 'no web API; Ctrl-C or SIGTERM shuts it down';
  const { host, port, socketPath } = address;
  const network = (host === DEFAULT_HOST ? '' : ` --host ${host}`) + (port === DEFAULT_PORT ? '' : ` --port ${port}`);
  const options = socketPath === undefined ? network : ` --socket ${socketPath}`;
  const isNpmStart = process.env['npm_lifecycle_event'] === 'start';
  const program = isNpmStart ? `npm run console${options && ' --'}` : 'control-console';
  return `web API at ${baseUrlOf(address)} · control it from another terminal: ${program}${options}`;
}

// ───── The progress line ─────────────────────────────────────────────────────────────────────────────────────────

/** Writes to stdout: lines, and on a terminal, below them, the progress line, which is redrawn in place. */
class Progress {
  readonly #learner: Learner;
  readonly #isTerminal: boolean = process.stdout.isTTY;
  #status: SystemStatus = SystemStatus.ACTIVE;
  #timer: NodeJS.Timeout | null = null;
  #stepsPerSecond = 0;
  #measuredAt = 0;
  #measuredSteps = 0;
  #isDrawn = false; // whether the terminal's cursor is in the progress line

  constructor(learner: Learner) {
    this.#learner = learner;
  }

  /** Shows the progress of an active system, now and at intervals. */
  run(): void {
    this.#measuredAt = performance.now();
    this.#measuredSteps = this.#learner.steps;
    this.#status = SystemStatus.ACTIVE;
    this.#draw();
    this.#timer = setInterval(() => this.#update(), this.#isTerminal ? REDRAW_MS : PRINT_MS);
  }

  /** Shows a status in which the learner stands still. */
  freeze(status: SystemStatus): void {
    if (this.#timer !== null) {
      this.measure();
      clearInterval(this.#timer);
      this.#timer = null;
    }
    this.#status = status;
    this.#draw();
  }

  /** Prints a line above the progress line. */
  print(line: string, write: (line: string) => void = console.log): void {
    if (this.#isDrawn) process.stdout.write('\r\x1b[K'); // erase the progress line
    write(printable(line)); // it may quote a path
    if (this.#isDrawn) this.#draw();
  }

  /** Prints the last line, below the progress line. */
  end(line: string): void {
    process.stdout.write(`${this.#isDrawn ? '\n' : ''}${printable(line)}\n`);
    this.#isDrawn = false;
  }

  /** Returns the average of steps/s, without the time in which the learner stands still. */
  measure(): number {
    const now = performance.now();
    const { steps } = this.#learner;
    const elapsed = now - this.#measuredAt;
    if (this.#timer === null || elapsed === 0) return this.#stepsPerSecond;
    const stepsPerSecond = ((steps - this.#measuredSteps) / elapsed) * 1000;
    const weight = this.#stepsPerSecond === 0 ? 1 : 1 - Math.exp(-elapsed / SMOOTHING_MS);
    this.#stepsPerSecond += weight * (stepsPerSecond - this.#stepsPerSecond);
    this.#measuredAt = now;
    this.#measuredSteps = steps;
    return this.#stepsPerSecond;
  }

  #update(): void {
    this.measure();
    this.#draw();
  }

  #draw(): void {
    const { episodes, meanReturn } = this.#learner;
    const speed = `${(this.#stepsPerSecond / 1e6).toPrecision(2)} M steps/s`;
    const success = `episode ${format(episodes)} · mean return ${meanReturn.toFixed(1)}`;
    const line = `${success} · ${speed} · ${this.#status.statusName}`;
    if (!this.#isTerminal) {
      process.stdout.write(`${line}\n`);
      return;
    }
    const width = (process.stdout.columns || 80) - 1; // some terminals wrap at the last column
    process.stdout.write(`\r${line.slice(0, width)}\x1b[K`);
    this.#isDrawn = true;
  }
}

function format(count: number): string {
  return count.toLocaleString('en-US');
}

await run(PROGRAM, main);
