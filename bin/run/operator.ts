// Carries out commands on one run of the program: pauses and resumes it part by part, saves it, and passes commands on.

import { setTimeout as sleep } from 'node:timers/promises';
import { textOfJson } from '../shared/text.ts';
import { type Program, startShell } from './program.ts';
import type { CommandOutcome, CommandRequest, WebApiServer } from '../../control.ts';
import type { Settings } from './options.ts';

const URGENCY_MS = 50; // between two checks whether a command is urgent
const LOOK_MS = 250; // between two looks at a stopped program
const LOOK_SHARE = 0.02; // of the time that looks may take, unless the next one would be later than after a second

/**
 * A part of a pause. Both methods throw if they fail without effect. Otherwise they return a value for the client, or
 * an error if the command has failed although the part is in effect.
 */
interface Part {
  do(): Promise<unknown>;
  undo(): Promise<unknown>;
}

/**
 * What makes an outcome urgent, so that `--grace` begins: one of the four commands that waits or a signal, or only a
 * signal. Own commands do not: a pause goes before those that wait.
 */
type Urgency = 'command' | 'signal';

/** What the operator needs from the supervisor. */
export interface Situation {
  settings: Settings;
  server: WebApiServer<string>;
  /** Returns the command whose `within` has passed before it took effect. */
  overdue(): 'pause' | 'shutdown' | null;
  /** Returns whether control-run has received a signal to end. */
  isSignalled(): boolean;
  say(message: string): void;
}

export class Operator {
  readonly #program: Program;
  readonly #settings: Settings;
  readonly #server: WebApiServer<string>;
  readonly #situation: Situation;
  readonly #inEffect: Set<Part> = new Set(); // of a pause
  #mustStop = false; // the program takes no commands itself, or has not paused in time
  #isWatching = false; // whether it stays stopped

  /** @param isPaused Whether the program is stopped before its first instruction. */
  constructor(program: Program, isPaused: boolean, situation: Situation) {
    this.#program = program;
    this.#settings = situation.settings;
    this.#server = situation.server;
    this.#situation = situation;
    this.#mustStop = isPaused;
    if (!isPaused) return;
    this.#inEffect.add(this.#stopping);
    void this.#watch();
  }

  /** Whether a part of a pause is in effect. Once the program has ended, there is nothing left to undo. */
  get isPaused(): boolean {
    return this.#program.end === null && this.#inEffect.size > 0;
  }

  /** Whether the program is stopped although it takes commands itself. */
  get isFrozen(): boolean {
    return this.#inEffect.has(this.#stopping) && this.#mustStop && this.#program.channel.state === 'open';
  }

  // ───── Pausing ───────────────────────────────────────────────────────────────────────────────────────────────────

  /** If a part fails, the completed parts are undone. */
  async pause(): Promise<CommandOutcome> {
    if (this.#program.end !== null) return {}; // its restart waits for the resume
    return await this.#perform('do', this.#parts);
  }

  /** Undoes the parts in reverse order. If one fails, the program stays paused. */
  async resume(): Promise<CommandOutcome> {
    if (this.#program.end !== null) return {};
    // Asks even if it did not pause the program, which may have paused itself.
    const parts = this.#parts.filter((part) => this.#inEffect.has(part) || part === this.#asking);
    return await this.#perform('undo', parts);
  }

  async #perform(way: keyof Part, parts: readonly Part[]): Promise<CommandOutcome> {
    const opposite = way === 'do' ? 'undo' : 'do';
    const ordered = way === 'do' ? parts : [...parts].reverse();
    const values: unknown[] = [];
    for (const [index, part] of ordered.entries()) {
      try {
        values.push(await this.#put(way, part));
      } catch (error) {
        for (const done of ordered.slice(0, index).reverse()) await this.#put(opposite, done).catch(this.#report);
        throw error;
      }
    }
    const error = values.find((one) => one instanceof Error);
    if (error !== undefined) return { error };
    const [value, ...others] = values.filter((one) => one !== undefined && one !== '');
    return { value: others.length === 0 ? value : [value, ...others].map(textOfJson).join('; ') };
  }

  async #put(way: keyof Part, part: Part): Promise<unknown> {
    const value = await part[way]();
    if (way === 'do') this.#inEffect.add(part);
    else this.#inEffect.delete(part);
    return value;
  }

  readonly #report = (error: unknown): void => this.#situation.say((error as Error).message);

  readonly #commanding: Part = {
    do: () => this.#runShellCommand('pause'),
    undo: () => this.#runShellCommand('resume'),
  };

  /** Asks a program that takes commands itself, and has it stopped if it does not pause in time. */
  readonly #asking: Part = {
    do: async () => {
      const { channel } = this.#program;
      const { forceStopMs } = this.#settings;
      this.#mustStop = this.#situation.overdue() === 'pause' || channel.state !== 'open';
      if (this.#mustStop) return channel.state === 'open' ? 'stopped by SIGSTOP' : undefined;
      const force = (): void => {
        this.#mustStop = true;
        channel.settle({ value: 'stopped by SIGSTOP' }); // it reads the command when it continues
      };
      const timer = forceStopMs === undefined ? undefined : setTimeout(force, forceStopMs);
      return await this.#ask('pause', 'command', force).finally(() => clearTimeout(timer));
    },
    undo: async () => {
      const { channel } = this.#program;
      const giveUp = (): void => channel.settle({ value: this.#silence() }); // it runs, and may be in a long step
      return channel.state === 'open' ? await this.#ask('resume', 'command', giveUp) : undefined;
    },
  };

  readonly #stopping: Part = {
    do: async () => {
      const program = this.#program;
      if (!this.#mustStop) return;
      program.checkRunning(); // its background processes keep running
      await program.processes.stop();
      program.checkRunning();
      if (!this.#isWatching) void this.#watch();
    },
    undo: async () => this.#program.continue(),
  };

  readonly #parts: readonly Part[] = [this.#commanding, this.#asking, this.#stopping];

  /** Keeps the program stopped, whoever continues it, such as a debugger or another supervisor. */
  async #watch(): Promise<void> {
    const { processes } = this.#program;
    this.#isWatching = true;
    for (let [restMs, isLost] = [LOOK_MS, false]; !isLost;) {
      await sleep(restMs, null, { ref: false });
      if (!this.#inEffect.has(this.#stopping) || processes.stopped.length === 0) break; // resumed, or ended
      const start = performance.now();
      if (!processes.areStopped()) await this.stopAgain().catch(() => (isLost = true)); // a resume follows
      restMs = Math.min(Math.max(LOOK_MS, (performance.now() - start) / LOOK_SHARE), 3 * LOOK_MS);
    }
    this.#isWatching = false;
  }

  /**
   * Stops what somebody else has continued of a stopped program.
   *
   * @throws {Error} If that fails. A resume follows, so that the status says that the program runs.
   */
  async stopAgain(): Promise<CommandOutcome> {
    const { processes, name } = this.#program;
    try {
      if (processes.stopped.length > 0) await processes.stop();
      return {};
    } catch (error) {
      const reason = `continued by another process, and ${(error as Error).message}`;
      this.#situation.say(`${name} was ${reason}`);
      this.#server.post('resume', { reason });
      throw error;
    }
  }

  // ───── Asking ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Passes on an own command of the program. */
  async passOn(): Promise<CommandOutcome> {
    const { command, arguments: values } = this.#server.request as CommandRequest;
    const program = this.#program;
    program.checkRunning();
    if (!Object.hasOwn(this.#server.commands, command)) throw new Error(`${program.name} no longer takes this command`);
    this.#checkAwake('');
    return { value: await this.#ask(command, 'signal', this.#giveUp, values) };
  }

  /** @throws {Error} If the program cannot do anything. */
  #checkAwake(consequence: string): void {
    const { name, processes } = this.#program;
    if (processes.stopped.length > 0) throw new Error(`${name} is stopped${consequence}: resume it first`);
  }

  /**
   * Passes a command to a program that takes commands itself, and returns its value. The command may differ from the
   * request: a failed pause sends a resume. Waits as #limit() does.
   */
  async #ask(command: string, urgency: Urgency, onLate: () => void, values?: object): Promise<unknown> {
    const { channel } = this.#program;
    const { by, reason } = this.#server.request as CommandRequest;
    const outcome = await this.#limit(channel.send({ command, arguments: values, by, reason }), urgency, onLate);
    if ('error' in outcome) throw outcome.error;
    return outcome.value;
  }

  /** Waits for an outcome. Calls `onLate` if it is missing `graceMs` after it becomes urgent, or delays a freeze. */
  async #limit<T>(outcome: Promise<T>, urgency: Urgency, onLate: () => void): Promise<T> {
    const mayWait = (): boolean => urgency === 'signal' || !this.#server.hasWaiting();
    const isSave = /^(save-state|shutdown)$/.test((this.#server.request as CommandRequest).command);
    let lateAt = Infinity;
    const timer = setInterval(() => {
      const now = performance.now();
      if (this.#situation.isSignalled() || !mayWait()) lateAt = Math.min(lateAt, now + this.#settings.graceMs);
      if (now < lateAt && (isSave || this.#situation.overdue() !== 'pause')) return;
      clearInterval(timer);
      onLate();
    }, URGENCY_MS);
    return await outcome.finally(() => clearInterval(timer));
  }

  readonly #giveUp = (): void => this.#program.channel.settle({ error: this.#silence() });

  #silence(): Error {
    const overdue = this.#situation.overdue();
    const limit = overdue === null ? `${this.#settings.graceMs / 1000} s` : `the limit of a ${overdue}`;
    return new Error(`${this.#program.name} did not respond within ${limit}`);
  }

  // ───── Saving ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** How the program can be saved now: by itself, or as the options say. */
  get saveWay(): 'ask' | 'command' | 'signal' | null {
    const { saveSignal, saveCommand } = this.#settings;
    if (this.#program.channel.state === 'open') return 'ask';
    if (saveCommand !== undefined) return 'command';
    return saveSignal === undefined ? null : 'signal';
  }

  async save(): Promise<CommandOutcome> {
    const program = this.#program;
    program.checkRunning();
    if (program.isHeld) throw new Error(`${program.name} has not started: there is nothing to save`);
    const way = this.saveWay;
    if (way === 'command') return { value: await this.#runShellCommand('save') };
    if (way === null) {
      if (program.channel.state === 'closed') throw new Error(`no way to save: ${program.name} has closed CONTROL_FD`);
      throw new Error('no way to save: start control-run with --save-signal or --save-command');
    }
    this.#checkAwake(' and cannot save');
    return { value: way === 'ask' ? await this.#ask('save-state', 'signal', this.#giveUp) : this.#sendSaveSignal() };
  }

  #sendSaveSignal(): string {
    const { processes, name: program } = this.#program;
    const name = this.#settings.saveSignal as NodeJS.Signals;
    const pid = processes.findHandler(name);
    if (pid === null) throw new Error(`no process of ${program} handles ${name}: it would kill the program`);
    process.kill(pid, name);
    return `${name} sent to process ${pid}`;
  }

  /** Undoes the pause and saves before the end. If either fails, restores the previous state. */
  async saveLast(): Promise<CommandOutcome> {
    const program = this.#program;
    if (program.isHeld) return {}; // not started yet
    const way = this.saveWay;
    if (way === null && program.channel.state === 'closed' && !this.#situation.isSignalled()) {
      throw new Error(`no way to save: ${program.name} has closed CONTROL_FD; SIGTERM to control-run ends it anyway`);
    }
    const saved = way === 'command' ? await this.save() : {};
    const parts = this.#parts.filter((part) => this.#inEffect.has(part) && !(part === this.#asking && way === 'ask'));
    // A stopped program runs again before SIGTERM only if it has something to do.
    const mustWake = way === 'ask' || way === 'signal' || this.#settings.resumeCommand !== undefined;
    if (mustWake) await this.#perform('undo', parts);
    try {
      if (this.saveWay === 'ask') return await this.#askToEnd(); // even while it is paused
      return this.saveWay === 'signal' ? await this.#saveBySignal() : saved;
    } catch (error) {
      if (program.end === null && !this.#situation.isSignalled()) await this.#perform('do', parts).catch(this.#report);
      throw error;
    }
  }

  /** A program that takes commands itself saves and ends by itself. */
  async #askToEnd(): Promise<CommandOutcome> {
    const { channel } = this.#program;
    try {
      const value = await this.#ask('shutdown', 'signal', () => channel.settle({}));
      await this.#waitForEnd();
      return { value };
    } catch (error) {
      if (channel.state === 'open') throw error;
      await this.#waitForEnd(); // it may have closed the socket because it ends
      if (this.#program.end === null && this.saveWay === null && this.#program.channel !== channel) throw error;
      return this.#program.end === null ? await this.saveLast() : {};
    }
  }

  async #saveBySignal(): Promise<CommandOutcome> {
    const value = this.#sendSaveSignal();
    this.#situation.say(`${value}; SIGTERM follows within ${this.#settings.graceMs / 1000} s`);
    await this.#waitForEnd(); // there is no way to know when the save has finished
    return { value };
  }

  async #waitForEnd(): Promise<void> {
    await Promise.race([this.#program.ended, sleep(this.#settings.graceMs, null, { ref: false })]);
  }

  // ───── Shell commands ────────────────────────────────────────────────────────────────────────────────────────────

  /** Returns the last line of output. */
  async #runShellCommand(name: 'pause' | 'resume' | 'save'): Promise<string | undefined> {
    const line = this.#settings[`${name}Command`];
    if (line === undefined) return undefined;
    const { command: request, reason = '' } = this.#server.request as CommandRequest;
    const urgency = request === 'shutdown' ? 'signal' : 'command'; // a waiting command must not cancel a shutdown
    const command = startShell(line, { CONTROL_PID: String(this.#program.pid), CONTROL_REASON: reason });
    let how = '';
    const { end, lastLine } = await this.#limit(command.ended, urgency, () => {
      const why = this.#situation.isSignalled() ? 'control-run must end' : 'another command waits';
      const grace = ` after ${this.#settings.graceMs / 1000} s of --grace, because ${why}`;
      how = `was killed${this.#situation.overdue() === null ? grace : ''}`;
      command.kill();
    });
    if (end.exitCode === 0) return lastLine;
    const hint = name === 'save' && this.isPaused ? ' (the program is paused)' : '';
    const what = `the ${name} command ${how || `ended with ${end.text}`}${hint}${lastLine && `: ${lastLine}`}`;
    if (name === 'pause' && this.#situation.overdue() === 'pause') return what; // the program is stopped in any case
    throw new Error(what);
  }
}
