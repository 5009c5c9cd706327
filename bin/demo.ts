#!/usr/bin/env node
// control-demo: a program to control. It learns to balance a pole on a cart, as fast as one core can.

import { randomInt } from 'node:crypto';
import { DEFAULT_HOST, DEFAULT_PORT, launch, SystemStatus, WebApiClient } from '../control.ts';
import { Learner } from './demo/cartpole.ts';
import { Checkpoints, ignoredIn, latestIn, readCheckpoint } from './demo/checkpoints.ts';
import {
  ADDRESS_OPTIONS, EXIT, parseAccess, parseInteger, parseOptions, parseText, run, UsageError,
} from './shared/options.ts';
import { printable } from './shared/text.ts';
import type { System, WebApiAddress } from '../control.ts';

const PROGRAM = 'control-demo';

const HELP = `
Usage: control-demo [options]

Learns to balance a pole on a cart (tabular Q-learning on CartPole) until it is shut down. Its web API pauses, resumes,
saves and shuts it down. Ctrl-C and SIGTERM also shut it down. It saves a checkpoint before it exits.

  --host HOST        host name or IP address for the web API (default ${DEFAULT_HOST})
  --port PORT        port of the web API; 0 picks a free one (default ${DEFAULT_PORT})
  --socket PATH      Unix socket for the web API; replaces --host and --port
  --no-web-api       run without a web API
  --seed N           seed of the random numbers, from 0 to 4294967295 (default: random)
  --load FILE        continue from this checkpoint
  --load latest      continue from the newest checkpoint in the folder of --states-dir
  --states-dir DIR   folder for checkpoints, created if it does not exist (default ./states)
  --keep N           number of checkpoints to keep there; the oldest are deleted (default 10)
  -h, --help         print this help
  --version          print the version

If the environment variable CONTROL_TOKEN is set, clients must know that token.

Exit codes: 0 shut down, 1 failed to run or to save the last checkpoint, 2 usage error.
`;

const OPTIONS = {
  ...ADDRESS_OPTIONS,
  'no-web-api': { type: 'boolean', default: false },
  seed: { type: 'string' },
  load: { type: 'string' },
  'states-dir': { type: 'string', default: './states' },
  keep: { type: 'string', default: '10' },
} as const;

const MAX_SEED = 2 ** 32 - 1;
const MAX_KEPT = 1_000_000;
const REDRAW_MS = 100; // interval between progress lines on a terminal
const PRINT_MS = 5000; // the same elsewhere
const SMOOTHING_MS = 1000; // time constant of the average of steps/s

async function main(): Promise<number> {
  const parsed = parseOptions(OPTIONS, HELP);
  if (parsed === null) return EXIT.DONE;
  const { seed, load, keep, 'states-dir': folder, 'no-web-api': noWebApi } = parsed.values;
  const { host, port, socketPath, token } = parseAccess(parsed.values, 0);
  const checkpoints = new Checkpoints(parseText('--states-dir', folder), parseInteger('--keep', keep, 1, MAX_KEPT));
  const learner = createLearner(seed, load, folder);
  prepare(checkpoints, folder);
  const ignored = ignoredIn(folder);
  if (ignored !== null) console.error(`${PROGRAM}: ignoring ${printable(ignored)}`);

  const demo = new Demo(learner, checkpoints);
  const end = launch(demo, { webApiAddress: noWebApi ? null : [host, port], webApiOptions: { socketPath, token } });
  if (noWebApi) demo.start(null); // after launch() has installed its signal handlers
  await end;
  return demo.isSaved ? EXIT.DONE : EXIT.REFUSED;
}

function createLearner(seed: string | undefined, load: string | undefined, folder: string): Learner {
  if (seed !== undefined && load !== undefined) {
    throw new UsageError('--seed and --load are mutually exclusive: a checkpoint contains its seed');
  }
  if (load !== undefined) return loadLearner(parseText('--load', load), folder);
  return new Learner(seed === undefined ? randomInt(MAX_SEED + 1) : parseInteger('--seed', seed, 0, MAX_SEED));
}

function loadLearner(load: string, folder: string): Learner {
  let what = load === 'latest' ? `the latest checkpoint in '${folder}'` : `'${load}'`;
  try {
    const path = load === 'latest' ? latestIn(folder) : load;
    what = `'${path}'`;
    return Learner.restore(readCheckpoint(path));
  } catch (error) {
    const expected = '--load requires a checkpoint of control-demo, or latest for the newest one in --states-dir';
    throw new UsageError(`cannot load ${what}: ${(error as Error).message}; ${expected}`);
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

class Demo implements System {
  readonly #learner: Learner;
  readonly #checkpoints: Checkpoints;
  readonly #progress: Progress;
  #savedPath: string | null = null; // of the last save; null if it failed

  constructor(learner: Learner, checkpoints: Checkpoints) {
    this.#learner = learner;
    this.#checkpoints = checkpoints;
    this.#progress = new Progress(learner);
  }

  /** Whether the last save succeeded. */
  get isSaved(): boolean {
    return this.#savedPath !== null;
  }

  start(address: WebApiAddress | null): void {
    const { seed, steps } = this.#learner;
    const where = steps === 0 ? '' : `, from step ${format(steps)}`;
    this.#progress.print(`Q-learning on CartPole, seed ${seed}${where} · ${describeControl(address)}`);
    this.#progress.run();
  }

  step(): void {
    this.#learner.step();
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

  /** Prints a failure instead of throwing: a full disk must not stop the program. */
  saveState(): void {
    this.#savedPath = null;
    try {
      this.#savedPath = this.#checkpoints.save(this.#learner.snapshot());
      this.#progress.print(`saved ${this.#savedPath}`);
    } catch (error) {
      this.#progress.print(`${PROGRAM}: cannot save a checkpoint: ${(error as Error).message}`, process.stderr);
    }
  }

  onShutdown(): void {
    this.#progress.freeze(SystemStatus.SHUTTING_DOWN);
    const next = this.isSaved ? `; continue with --load ${this.#savedPath}` : '';
    this.#progress.end(`stopped at step ${format(this.#learner.steps)}${next}`);
  }
}

function describeControl(address: WebApiAddress | null): string {
  if (address === null) return 'no web API; Ctrl-C or SIGTERM shuts it down';
  const { host, port, socketPath } = address;
  const network = (host === DEFAULT_HOST ? '' : ` --host ${host}`) + (port === DEFAULT_PORT ? '' : ` --port ${port}`);
  const options = socketPath === undefined ? network : ` --socket ${socketPath}`;
  const isNpmStart = process.env['npm_lifecycle_event'] === 'start';
  const program = isNpmStart ? `npm run console${options && ' --'}` : 'control-console';
  const { baseUrl } = socketPath === undefined
    ? new WebApiClient(host, port)
    : new WebApiClient(undefined, undefined, { socketPath });
  return `web API at ${baseUrl} · control it from another terminal: ${program}${options}`;
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
      clearInterval(this.#timer);
      this.#timer = null;
      this.#measure();
    }
    this.#status = status;
    this.#draw();
  }

  /** Prints a line above the progress line. */
  print(line: string, stream: NodeJS.WritableStream = process.stdout): void {
    if (this.#isDrawn) process.stdout.write('\r\x1b[K'); // erase the progress line
    stream.write(`${printable(line)}\n`); // it may quote a path
    if (this.#isDrawn) this.#draw();
  }

  /** Prints the last line, below the progress line. */
  end(line: string): void {
    process.stdout.write(`${this.#isDrawn ? '\n' : ''}${printable(line)}\n`);
    this.#isDrawn = false;
  }

  #update(): void {
    this.#measure();
    this.#draw();
  }

  /** Updates the average speed. */
  #measure(): void {
    const now = performance.now();
    const { steps } = this.#learner;
    const elapsed = now - this.#measuredAt;
    if (elapsed === 0) return;
    const stepsPerSecond = ((steps - this.#measuredSteps) / elapsed) * 1000;
    const weight = this.#stepsPerSecond === 0 ? 1 : 1 - Math.exp(-elapsed / SMOOTHING_MS);
    this.#stepsPerSecond += weight * (stepsPerSecond - this.#stepsPerSecond);
    this.#measuredAt = now;
    this.#measuredSteps = steps;
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
