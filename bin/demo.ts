#!/usr/bin/env node
// control-demo: a program to control. It learns to balance a pole on a cart, at a pace at which one can watch it.

import { setTimeout as sleep } from 'node:timers/promises';
import { DEFAULT_HOST, DEFAULT_PORT, launch, SystemStatus } from '../control.ts';
import { Learner, MEAN_EPISODES } from './demo/cartpole.ts';
import { Checkpoints, ignoredIn } from './demo/checkpoints.ts';
import { parseCommandLine } from './demo/options.ts';
import { loadState } from './demo/state.ts';
import { baseUrlOf, explainPort } from './shared/access.ts';
import { choosePlace } from './shared/folder.ts';
import { EXIT, run, UsageError } from './shared/options.ts';
import { printable } from './shared/text.ts';
import type { CommandRequest, Control, Parameter, StatusCause, System, WebApiAddress } from '../control.ts';

const PROGRAM = 'control-demo';
const SLICE_STEPS = 200; // computed at once
const SLICE_MS = 10; // from one slice to the next; a command waits no longer
const REDRAW_MS = 100; // interval between progress lines on a terminal
const PRINT_MS = 5000; // the same elsewhere
const SMOOTHING_MS = 1000; // time constant of the average of steps/s

async function main(): Promise<number> {
  const commandLine = parseCommandLine();
  if (commandLine === null) return EXIT.DONE;
  const { access, noWebApi, seed, load, folder, keep, goal, saveMs } = commandLine;
  const checkpoints = new Checkpoints(folder, keep);
  const loaded = load === undefined ? null : loadState(load, folder);
  const learner = loaded?.learner ?? new Learner(seed);
  const startPaused = !noWebApi && (loaded?.startPaused ?? false); // nobody could resume it
  prepare(checkpoints, folder);
  if (load !== undefined && loaded === null) {
    console.error(`${PROGRAM}: ${printable(`'${folder}' contains no checkpoint: beginning anew`)}`);
  }
  const ignored = ignoredIn(folder);
  if (ignored !== null) console.error(`${PROGRAM}: ignoring ${printable(ignored)}`);

  const demo = new Demo(learner, checkpoints, { goal, saveMs, startPaused });
  process.removeAllListeners('warning').on('warning', (warning) => demo.warn(warning));
  const { host, port, ...options } = await choosePlace(access);
  const address = host === undefined || port === undefined ? undefined : [host, port] as const;
  const end = launch(demo, { webApiAddress: noWebApi ? null : address, startPaused, ...options });
  if (noWebApi) demo.start(null); // after launch() has installed its signal handlers
  await end.catch((error: unknown) => {
    if (error !== demo.saveError) throw explainPort(error);
  });
  return demo.isSaved ? EXIT.DONE : EXIT.REFUSED;
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
  startPaused: boolean | StatusCause;
}

class Demo implements System {
  readonly #learner: Learner;
  readonly #checkpoints: Checkpoints;
  readonly #settings: Settings;
  readonly #progress: Progress;
  readonly #firstStep: number;
  #cause: StatusCause | null; // while paused
  #sliceAt = 0; // when the next slice is due, by performance.now()
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
    this.#cause = settings.startPaused instanceof Object ? settings.startPaused : null;
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

  readonly commands = {
    evaluate: {
      description: 'Returns the mean return of episodes without learning and without random actions.',
      parameters: { episodes: { type: 'integer', minimum: 1, maximum: 1000, default: 100 } },
      run: ({ episodes }: { episodes: number }) => {
        return { meanReturn: Number(this.#learner.evaluate(episodes).toFixed(1)), episodes };
      },
    },
    set: {
      description: 'Sets both, until the next time.',
      parameters: {
        learningRate: share('how far a step moves the value of an action'),
        exploration: share('the share of random actions'),
      },
      run: ({ learningRate, exploration }: { learningRate: number; exploration: number }) => {
        Object.assign(this.#learner, { learningRate, exploration });
        return { learningRate, exploration };
      },
    },
    step: {
      description: 'Does a single step, also while paused.',
      run: () => {
        this.#learner.step();
        this.#progress.refresh();
        return { step: this.#learner.steps };
      },
    },
  } as const;

  /** Returns a promise after each slice. */
  step(control: Control): Promise<void> | undefined {
    this.#learner.step();
    if (this.#learner.episodes !== this.#checkedEpisodes) this.#check(control);
    return this.#learner.steps % SLICE_STEPS === 0 ? this.#waitForSlice() : undefined;
  }

  describe(): object {
    const { episodes, meanReturn, steps, learningRate, exploration } = this.#learner;
    return {
      episode: episodes,
      'mean return': Number(meanReturn.toFixed(1)),
      step: steps,
      'steps per second': threeDigits(this.#progress.measure()),
      learningRate,
      exploration,
    };
  }

  onListening(address: WebApiAddress): void {
    this.start(address);
  }

  /** Called at the start, too, if it starts paused: then the pause began earlier. */
  onPaused({ by, reason }: CommandRequest): void {
    this.#cause ??= { by, reason, since: new Date().toISOString() };
    this.#progress.freeze(SystemStatus.PAUSED);
  }

  onResumed(): void {
    this.#cause = null;
    this.#progress.run();
  }

  /** Returns the path of the checkpoint. It holds whether and why the system was paused, so that it starts paused. */
  saveState(status: SystemStatus): string {
    this.#planSave();
    this.#savedPath = null;
    this.#saveError = null;
    try {
      const paused = status === SystemStatus.PAUSED;
      this.#savedPath = this.#checkpoints.save({ ...this.#learner.snapshot(), paused, ...(paused && this.#cause) });
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

  #check(control: Control): void {
    this.#checkedEpisodes = this.#learner.episodes;
    if (this.#hasReachedGoal()) control.shutdown(`mean return ${this.#learner.meanReturn}`);
    else if (performance.now() >= this.#saveAt) control.save('--save-every');
  }

  async #waitForSlice(): Promise<void> {
    const now = performance.now();
    this.#sliceAt = Math.max(this.#sliceAt + SLICE_MS, now); // what it misses while paused or slow is not made up for
    await sleep(this.#sliceAt - now);
  }

  #planSave(): void {
    this.#saveAt = performance.now() + this.#settings.saveMs;
  }

  #hasReachedGoal(): boolean {
    const { episodes, meanReturn } = this.#learner;
    return episodes >= MEAN_EPISODES && meanReturn >= this.#settings.goal;
  }
}

/** The parameter of a share. */
function share(description: string): Parameter {
  return { type: 'number', description, minimum: 0, maximum: 1 };
}

function describeControl(address: WebApiAddress | null): string {
  if (address === null) return 'no web API; Ctrl-C or SIGTERM shuts it down';
  const { host, port, socketPath } = address;
  const network = (host === DEFAULT_HOST ? '' : ` --host ${host}`) + (port === DEFAULT_PORT ? '' : ` --port ${port}`);
  const options = port === 0 ? ` --socket ${socketPath}` : network;
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

  /** Redraws the progress line of a terminal. */
  refresh(): void {
    if (this.#isDrawn) this.#draw();
  }

  /** Prints a line above the progress line. */
  print(line: string, write: (line: string) => void = console.log): void {
    if (this.#isDrawn) process.stdout.write('\r\x1b[K'); // erase the progress line
    write(printable(line)); // it may quote a path
    this.refresh();
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
    const speed = `${format(threeDigits(this.#stepsPerSecond))} steps/s`;
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

function threeDigits(value: number): number {
  return Number(value.toPrecision(3));
}

function format(count: number): string {
  return count.toLocaleString('en-US');
}

await run(PROGRAM, main);
