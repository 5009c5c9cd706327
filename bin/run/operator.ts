// What the commands do to a running program: how it pauses and resumes, part by part, and how it saves.

import { setTimeout as sleep } from 'node:timers/promises';
import { ShellCommand } from './shell.ts';
import { textOfJson } from '../shared/text.ts';
import type { CommandOutcome, CommandRequest, WebApiServer } from '../../control.ts';
import type { Gpu } from './gpu.ts';
import type { Program } from './program.ts';
import type { Settings } from './supervisor.ts';

const URGENCY_MS = 50; // between two looks whether a command is urgent

/**
 * A part of a pause. Both methods throw if they have no effect. They return a value for the client, or the error of a
 * command that has failed although the part has taken effect.
 */
interface Part {
  do(): Promise<unknown>;
  undo(): Promise<unknown>;
}

/** What makes an outcome urgent, so that `--grace` begins: the next command that waits, or only a signal. */
type Urgency = 'command' | 'signal';

/** What the operator needs of the supervisor. */
export interface Situation {
  /** Returns the program under control; of several starts, the latest. */
  program(): Program;
  /** Returns whether a signal has asked for the end. */
  isSignalled(): boolean;
  /** Prints a line for people. */
  say(message: string): void;
}

export class Operator {
  readonly #settings: Settings;
  readonly #server: WebApiServer<string>;
  readonly #situation: Situation;
  readonly #inEffect: Set<Part> = new Set(); // of a pause
  #mustStop = false; // in a pause: the program does not take commands, or has not paused in time

  constructor(settings: Settings, server: WebApiServer<string>, situation: Situation) {
    this.#settings = settings;
    this.#server = server;
    this.#situation = situation;
  }

  get #program(): Program {
    return this.#situation.program();
  }

  /**
   * To be called when the program has started, or runs on because it cannot be ended.
   *
   * @param isPaused Whether it was stopped before its first instruction.
   */
  onRun(isPaused: boolean): void {
    this.#inEffect.clear();
    if (isPaused) this.#inEffect.add(this.#stopping);
    this.#mustStop = isPaused;
  }

  /** To be called when it has ended: nothing of the pause can be taken back. */
  onEnd(): void {
    this.#inEffect.clear();
    this.#settings.gpu?.forget();
  }

  /** Whether a part of a pause is in effect. */
  get isPaused(): boolean {
    return this.#inEffect.size > 0;
  }

  // ───── Pausing ───────────────────────────────────────────────────────────────────────────────────────────────────

  /** If one part fails, takes back those before it. */
  async pause(): Promise<CommandOutcome> {
    if (this.#program.end !== null) return {}; // its restart waits for the resume
    return await this.#perform('do', this.#parts);
  }

  /** Takes the parts back, the last one first. If one fails, the program stays paused. */
  async resume(): Promise<CommandOutcome> {
    const parts = this.#parts.filter((part) => this.#inEffect.has(part) || part === this.#asking);
    return await this.#perform('undo', parts); // it may have paused by itself
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
    if (way === 'undo') this.#inEffect.delete(part);
    else if (this.#program.end === null) this.#inEffect.add(part);
    return value;
  }

  readonly #report = (error: unknown): void => this.#situation.say((error as Error).message);

  readonly #commanding: Part = {
    do: () => this.#runShellCommand('pause', 'command'),
    undo: () => this.#runShellCommand('resume', 'command'),
  };

  /** Asks a program that takes commands itself. */
  readonly #asking: Part = {
    do: () => this.#askToPause(),
    undo: async () => {
      const { channel } = this.#program;
      const giveUp = (): void => channel.settle({ value: this.#silence() }); // it runs, and may be in a long step
      return channel.isOpen ? await this.#ask('resume', 'command', giveUp) : undefined;
    },
  };

  /** A program that does not pause in time is stopped. It finds the command when it continues. */
  async #askToPause(): Promise<unknown> {
    const { forceStopMs } = this.#settings;
    const { channel } = this.#program;
    this.#mustStop = !channel.isOpen;
    if (this.#mustStop) return undefined;
    const force = (): void => {
      this.#mustStop = true;
      channel.settle({ value: 'stopped by SIGSTOP' });
    };
    const timer = forceStopMs === undefined ? undefined : setTimeout(force, forceStopMs);
    return await this.#ask('pause', 'command', force).finally(() => clearTimeout(timer));
  }

  readonly #releasing: Part = {
    do: () => this.#useGpu(async (gpu) => {
      const pids = this.#program.processes.list().map(({ pid }) => pid);
      return await gpu.release(pids).catch((error: unknown) => {
        if (gpu.isReleased) return error; // in part: a resume restores it
        throw error;
      });
    }),
    undo: () => this.#useGpu(async (gpu) => await gpu.restore()),
  };

  /** Only a signal interrupts it: the program may not survive that, and is about to end. */
  async #useGpu(use: (gpu: Gpu) => Promise<unknown>): Promise<unknown> {
    const { gpu } = this.#settings;
    return gpu && await this.#limit(use(gpu), 'signal', () => gpu.abandon());
  }

  readonly #stopping: Part = {
    do: async () => {
      const program = this.#program;
      if (!this.#mustStop) return;
      program.checkRunning(); // what it leaves behind runs on
      await program.processes.stop();
      program.checkRunning();
    },
    undo: async () => this.#program.continue(),
  };

  readonly #parts: readonly Part[] = [this.#commanding, this.#asking, this.#releasing, this.#stopping];

  // ───── Asking ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Passes on a command of the program's own. */
  async passOn(): Promise<CommandOutcome> {
    const { command, arguments: values } = this.#server.request as CommandRequest;
    const program = this.#program;
    program.checkRunning();
    if (!Object.hasOwn(this.#server.commands, command)) throw new Error(`${program.name} no longer takes this command`);
    this.#checkAwake('');
    return { value: await this.#askPatiently(command, values) };
  }

  /** @throws {Error} If a program that is to do something cannot. */
  #checkAwake(consequence: string): void {
    const { name, processes } = this.#program;
    const isReleased = this.#settings.gpu?.isReleased === true;
    if (processes.stopped.length > 0) throw new Error(`${name} is stopped${consequence}: resume it first`);
    if (isReleased) throw new Error(`${name} has released its GPU${consequence}: resume it first`);
  }

  /**
   * Passes a command to a program that takes commands itself. It need not be the one that came: a pause that fails ends
   * with a resume. Returns its value. Waits as #limit() does.
   */
  async #ask(command: string, urgency: Urgency, onLate: () => void, values?: object): Promise<unknown> {
    const { channel } = this.#program;
    const { by, reason } = this.#server.request as CommandRequest;
    const send = (onOutcome: (outcome: CommandOutcome) => void): void => {
      channel.send({ command, arguments: values, by, reason }, onOutcome);
    };
    const outcome = await this.#limit(new Promise(send), urgency, onLate);
    if ('error' in outcome) throw outcome.error;
    return outcome.value;
  }

  /** Passes on a command that may take its time. */
  #askPatiently(command: string, values?: object): Promise<unknown> {
    const { channel } = this.#program;
    return this.#ask(command, 'signal', () => channel.settle({ error: this.#silence() }), values);
  }

  /** Waits for an outcome. Calls `onLate` if it has not come `graceMs` after it has become urgent. */
  async #limit<T>(outcome: Promise<T>, urgency: Urgency, onLate: () => void): Promise<T> {
    const isUrgent = (): boolean => {
      return this.#situation.isSignalled() || (urgency === 'command' && this.#server.hasCommands());
    };
    let lateAt = Infinity;
    const timer = setInterval(() => {
      const now = performance.now();
      if (isUrgent()) lateAt = Math.min(lateAt, now + this.#settings.graceMs);
      if (now < lateAt) return;
      clearInterval(timer);
      onLate();
    }, URGENCY_MS);
    return await outcome.finally(() => clearInterval(timer));
  }

  #silence(): Error {
    return new Error(`${this.#program.name} has not responded within ${this.#settings.graceMs / 1000} s`);
  }

  // ───── Saving ────────────────────────────────────────────────────────────────────────────────────────────────────

  async save(): Promise<CommandOutcome> {
    const program = this.#program;
    const { saveSignal, saveCommand } = this.#settings;
    program.checkRunning();
    if (program.isHeld) throw new Error(`${program.name} has not started: there is nothing to save`);
    if (program.channel.isOpen) {
      this.#checkAwake(' and cannot save');
      return { value: await this.#askPatiently('save-state') };
    }
    if (saveCommand !== undefined) return { value: await this.#runShellCommand('save', 'signal') };
    if (saveSignal === undefined) {
      if (program.channel.wasOpen) throw new Error(`no way to save: ${program.name} has closed CONTROL_FD`);
      throw new Error('no way to save: start control-run with --save-signal or --save-command');
    }
    this.#checkAwake(' and cannot save');
    return { value: this.#sendSaveSignal(saveSignal) };
  }

  #sendSaveSignal(name: NodeJS.Signals): string {
    const { processes, name: program } = this.#program;
    const pid = processes.findHandler(name);
    if (pid === null) throw new Error(`no process of ${program} handles ${name}, which would end it`);
    process.kill(pid, name);
    return `${name} sent to process ${pid}`;
  }

  /** Saves before the end, and takes back what the pause has done. If one of them fails, the program is as before. */
  async saveLast(): Promise<CommandOutcome> {
    const program = this.#program;
    const { gpu, resumeCommand, saveCommand, saveSignal } = this.#settings;
    if (program.isHeld) return {}; // it has not started
    const saved = !program.channel.isOpen && saveCommand !== undefined ? await this.save() : {};
    // Unless it must do something, a stopped program does not run again before it gets SIGTERM.
    const mustWake = program.channel.isOpen || saveSignal !== undefined || resumeCommand !== undefined;
    const { isOpen } = program.channel; // then it saves and ends without a resume
    const parts = this.#parts.filter((part) => this.#inEffect.has(part) && !(part === this.#asking && isOpen));
    if (mustWake || gpu?.isReleased === true) await this.#perform('undo', parts);
    try {
      if (program.channel.isOpen) return await this.#askToEnd();
      if (saveSignal !== undefined) return await this.#saveBySignal(saveSignal);
      return saved;
    } catch (error) {
      if (program.end === null && !this.#situation.isSignalled()) await this.#perform('do', parts).catch(this.#report);
      throw error;
    }
  }

  /** A program that takes commands itself also saves and ends itself. */
  async #askToEnd(): Promise<CommandOutcome> {
    const { channel } = this.#program;
    try {
      const value = await this.#ask('shutdown', 'signal', () => channel.settle({}));
      await this.#waitForEnd();
      return { value };
    } catch (error) {
      if (channel.isOpen) throw error;
      await this.#waitForEnd(); // it ends, and has closed the socket first
      return {};
    }
  }

  async #saveBySignal(name: NodeJS.Signals): Promise<CommandOutcome> {
    const value = this.#sendSaveSignal(name);
    this.#situation.say(`${value}; SIGTERM follows within ${this.#settings.graceMs / 1000} s`);
    await this.#waitForEnd(); // there is no way to know when the save is done
    return { value };
  }

  async #waitForEnd(): Promise<void> {
    await Promise.race([this.#program.ended, sleep(this.#settings.graceMs, null, { ref: false })]);
  }

  // ───── Shell commands ────────────────────────────────────────────────────────────────────────────────────────────

  /** Returns the last line of its output. */
  async #runShellCommand(name: 'pause' | 'resume' | 'save', urgency: Urgency): Promise<string | undefined> {
    const line = this.#settings[`${name}Command`];
    if (line === undefined) return undefined;
    const { reason = '' } = this.#server.request as CommandRequest;
    const command = new ShellCommand(line, {
      CONTROL_PID: String(this.#program.pid), CONTROL_REASON: reason,
    });
    let isLate = false;
    const { end, lastLine } = await this.#limit(command.ended, urgency, () => {
      isLate = true;
      command.kill();
    });
    if (end.exitCode === 0) return lastLine;
    const how = isLate ? `was killed after ${this.#settings.graceMs / 1000} s of --grace` : `ended with ${end.text}`;
    throw new Error(`the ${name} command ${how}${lastLine && `: ${lastLine}`}`);
  }
}
