#!/usr/bin/env node
// control-demo: a real runtime to control. It learns to balance a pole on a cart, as fast as one core can.

import { randomInt } from 'node:crypto';
import { DEFAULT_HOST, DEFAULT_PORT, launch, SystemStatus, WebApiClient } from '../control.ts';
import { ADDRESS_OPTIONS, EXIT, parseAccess, parseInteger, parseOptions, parseText, run, UsageError } from './shared/options.ts';
import { Learner } from './demo/cartpole.ts';
import { Checkpoints, latestIn, readCheckpoint } from './demo/checkpoints.ts';
import type { System, WebApiAddress } from '../control.ts';

const PROGRAM = 'control-demo';

const HELP = `
Usage: control-demo [options]

Learns to balance a pole on a cart (tabular Q-learning on CartPole) until it is shut down, and can be paused, resumed,
saved and shut down through its web API. Ctrl-C and SIGTERM shut it down, too: it saves a last checkpoint then.

Options:
  --host HOST        where the web API listens (default ${DEFAULT_HOST})
  --port PORT        its port; 0 picks a free one (default ${DEFAULT_PORT})
  --socket PATH      listen on a Unix socket, in place of host and port
  --no-web-api       run without a web API
  --seed N           seed of the random numbers, from 0 to 4294967295 (default: picked at random)
  --load FILE        go on exactly where this checkpoint was made
  --load latest      the same with the newest checkpoint in the folder of --states-dir
  --states-dir DIR   the folder for checkpoints, made if need be (default ./states)
  --keep N           how many checkpoints to keep there, the newest (default 10)
  -h, --help         show this
  --version          show the version

If CONTROL_TOKEN is in the environment, clients must know it, too.

Exit codes: 0 shut down, 1 it could not run or not save its last checkpoint, 2 wrong usage.
`;

const OPTIONS = {
  ...ADDRESS_OPTIONS,
  'no-web-api': { type: 'boolean', default: false },
  seed: { type: 'string' },
  load: { type: 'string' },
  'states-dir': { type: 'string', default: './states' },
  keep: { type: 'string', default: '10' },
} as const;

const MOST_SEED = 2 ** 32 - 1;
const MOST_KEPT = 1_000_000;
const REDRAW_MS = 100; // on a terminal
const LINE_MS = 5000; // elsewhere
const SMOOTHING_MS = 1000; // steps/s are an average over about this time

// ───── Start and end ─────────────────────────────────────────────────────────────────────────────────────────────

async function main(): Promise<number> {
  const parsed = parseOptions(OPTIONS, HELP);
  if (parsed === null) return EXIT.DONE;
  const { seed, load, keep, 'states-dir': folder, 'no-web-api': noWebApi } = parsed.values;
  const { host, port, socketPath, token } = parseAccess(parsed.values, 0);
  const checkpoints = new Checkpoints(parseText('--states-dir', folder), parseInteger('--keep', keep, 1, MOST_KEPT));
  const learner = begin(seed, load, folder);
  prepare(checkpoints, folder);

  const demo = new Demo(learner, checkpoints);
  const end = launch(demo, { webApiAddress: noWebApi ? null : [host, port], webApiOptions: { socketPath, token } });
  if (noWebApi) demo.start(null); // from here on signals are heard
  await end;
  return demo.isSaved ? EXIT.DONE : EXIT.REFUSED;
}

function begin(seed: string | undefined, load: string | undefined, folder: string): Learner {
  if (seed !== undefined && load !== undefined) {
    throw new UsageError('--seed and --load exclude each other: a checkpoint has its own seed');
  }
  if (load !== undefined) return restore(parseText('--load', load), folder);
  return new Learner(seed === undefined ? randomInt(MOST_SEED + 1) : parseInteger('--seed', seed, 0, MOST_SEED));
}

function restore(load: string, folder: string): Learner {
  let what = load === 'latest' ? `the latest checkpoint of '${folder}'` : `'${load}'`;
  try {
    const path = load === 'latest' ? latestIn(folder) : load;
    what = `'${path}'`;
    return Learner.restore(readCheckpoint(path));
  } catch (error) {
    const right = '--load takes a file that control-demo saved, or latest for the newest one of --states-dir';
    throw new UsageError(`cannot load ${what}: ${(error as Error).message}; ${right}`);
  }
}

function prepare(checkpoints: Checkpoints, folder: string): void {
  try {
    checkpoints.prepare();
  } catch (error) {
    const right = '--states-dir takes a folder that can be made and written';
    throw new UsageError(`cannot write to '${folder}': ${(error as Error).message}; ${right}`);
  }
}

// ───── The system under control ──────────────────────────────────────────────────────────────────────────────────

class Demo implements System {
  readonly #learner: Learner;
  readonly #checkpoints: Checkpoints;
  readonly #progress: Progress;
  #savedPath: string | null = null; // of the last save, unless that failed

  constructor(learner: Learner, checkpoints: Checkpoints) {
    this.#learner = learner;
    this.#checkpoints = checkpoints;
    this.#progress = new Progress(learner);
  }

  /** Whether the last save was a success. */
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

  /** A failure is for the person at the terminal, and no reason to stop. */
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
    const next = this.isSaved ? `; --load ${this.#savedPath} goes on from there` : '';
    this.#progress.end(`stopped at step ${format(this.#learner.steps)}${next}`);
  }
}

function describeControl(address: WebApiAddress | null): string {
  if (address === null) return 'no web API, Ctrl-C or SIGTERM ends it';
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

/** What goes to stdout: whole lines, and below them, on a terminal, the one line that is redrawn in its place. */
class Progress {
  readonly #learner: Learner;
  readonly #isTerminal: boolean = process.stdout.isTTY;
  #status: SystemStatus = SystemStatus.ACTIVE;
  #timer: NodeJS.Timeout | null = null;
  #stepsPerSecond = 0;
  #measuredAt = 0;
  #measuredSteps = 0;
  #isDrawn = false; // true while a terminal's cursor stands in the progress line

  constructor(learner: Learner) {
    this.#learner = learner;
  }

  /** Shows that the system is active, now and from time to time. */
  run(): void {
    this.#measuredAt = performance.now();
    this.#measuredSteps = this.#learner.steps;
    this.#status = SystemStatus.ACTIVE;
    this.#draw();
    this.#timer = setInterval(() => this.#update(), this.#isTerminal ? REDRAW_MS : LINE_MS);
  }

  /** Shows a status in which the learner does not move. */
  freeze(status: SystemStatus): void {
    if (this.#timer !== null) {
      clearInterval(this.#timer);
      this.#timer = null;
      this.#measure();
    }
    this.#status = status;
    this.#draw();
  }

  /** Writes a line of its own. */
  print(line: string, stream: NodeJS.WritableStream = process.stdout): void {
    if (this.#isDrawn) process.stdout.write('\r\x1b[K'); // erases the line
    stream.write(`${line}\n`);
    if (this.#isDrawn) this.#draw();
  }

  /** Leaves the progress line as it is, and writes the last line. */
  end(line: string): void {
    process.stdout.write(`${this.#isDrawn ? '\n' : ''}${line}\n`);
    this.#isDrawn = false;
  }

  #update(): void {
    this.#measure();
    this.#draw();
  }

  /** Takes the speed since the last call into the average. */
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
    const width = (process.stdout.columns || 80) - 1; // in the last column some terminals wrap
    process.stdout.write(`\r${line.slice(0, width)}\x1b[K`);
    this.#isDrawn = true;
  }
}

function format(count: number): string {
  return count.toLocaleString('en-US');
}

await run(PROGRAM, main);
