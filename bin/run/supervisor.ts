// The program under control: what the commands do to it, and what happens when it ends.

import { once } from 'node:events';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus, WebApiServer } from '../../control.ts';
import { baseUrlOf } from '../shared/access.ts';
import { excerpt, MAX_VALUE_LENGTH, textOfJson } from '../shared/text.ts';
import { Cgroup } from './cgroup.ts';
import { Keeper } from './keeper.ts';
import { Program, ShellCommand } from './program.ts';
import type { CommandDeclaration, CommandOutcome, CommandRequest, WebApiServerOptions } from '../../control.ts';
import type { Command, End } from './program.ts';

const { ACTIVE, PAUSING, PAUSED, RESUMING, SHUTTING_DOWN } = SystemStatus;
const MIN_RESTART_MS = 1000; // doubles with each restart
const MAX_RESTART_MS = 60_000;
const HEALTHY_MS = 60_000; // restarts of a program that ran this long do not count
const MAX_SUSPEND_MS = 2000; // until a program has restored the terminal
const POLL_MS = 10;
const URGENCY_MS = 50; // between two looks whether a command is urgent

export interface Settings {
  line: readonly [string, ...string[]];
  /** How to save; at most one of the two. */
  saveSignal: NodeJS.Signals | undefined;
  saveCommand: string | undefined;
  /** Time to save by a signal, and time to end after SIGTERM, each. */
  graceMs: number;
  /** When a program that takes commands itself is stopped if it has not paused. */
  forceStopMs: number | undefined;
  /** In a row. */
  maxRestarts: number;
  isOnTerminal: boolean;
}

export class Supervisor {
  readonly #settings: Settings;
  readonly #say: (message: string) => void;
  readonly #server: WebApiServer<string>;
  readonly #command: Command;
  readonly #keeper: Keeper;
  #program!: Program; // set before any command is taken
  #lastEnd: End | null = null;
  #baseUrl = '';
  #status: SystemStatus = ACTIVE;
  #detail: object = {}; // what the program tells of itself
  #restarts = 0; // in a row
  #restartTimer: NodeJS.Timeout | undefined;
  #isRestartDue = false; // once the status is active
  #isSignalled = false; // by a signal that asks for the end
  #isEnding = false; // by a shutdown; the program may also report that status itself
  #isSuspended = false; // from SIGTSTP to SIGCONT
  #isOver = false;

  /** @param say Prints a line for people. */
  constructor(settings: Settings, options: Omit<WebApiServerOptions, 'systemStatus'>, say: (message: string) => void) {
    const { line, isOnTerminal, graceMs } = settings;
    this.#settings = settings;
    this.#say = say;
    this.#server = new WebApiServer<string>({
      ...options,
      systemStatus: () => this.#status,
      describe: () => this.#describe(),
      autoReport: false, // a command that looks for the next one is not done yet
    });
    this.#command = { line, isOnTerminal, mark: `CONTROL_RUN=${process.pid}-${Date.now()}`, cgroup: Cgroup.create() };
    this.#keeper = new Keeper(graceMs, this.#command.mark, this.#command.cgroup?.path ?? '');
  }

  /**
   * Runs the program, and again if it fails, until it has ended for good. Returns how it ended.
   *
   * @throws {Error} If the web API cannot listen. The program was not started.
   */
  async run(): Promise<End> {
    const server = this.#server;
    this.#baseUrl = baseUrlOf(await server.runInBackground());
    await this.#start();
    while (!this.#isOver) {
      const command = await server.nextCommand();
      server.report(await this.#execute(command).catch((error: unknown) => ({ error })));
    }
    await server.close();
    this.#command.cgroup?.remove();
    return this.#lastEnd as End;
  }

  // ───── The program ───────────────────────────────────────────────────────────────────────────────────────────────

  async #start(): Promise<void> {
    this.#isRestartDue = false;
    const program = await Program.start(this.#command, {
      onStatus: (status) => this.#takeStatus(status),
      onDetail: (detail) => (this.#detail = detail),
      onAccepts: (accepts) => this.#declare(accepts as Record<string, CommandDeclaration>),
      onNonsense: (what) => this.#say(`${this.#program.name} has written ${what} to CONTROL_FD`),
    }, (name) => {
      if (this.#lastEnd === null) this.#handleSignals(); // the first time
      this.#say(`${name} · web API at ${this.#baseUrl}`);
    });
    if (!(program instanceof Program)) {
      this.#say(program.text);
      return this.#finish(program);
    }
    this.#program = program;
    this.#detail = {};
    this.#guard();
    void program.ended.then((end) => this.#onEnd(program, end));
  }

  #onEnd(program: Program, end: End): void {
    program.channel.close();
    this.#continue(); // what it leaves behind runs on
    if (Date.now() - program.startedAt.getTime() >= HEALTHY_MS) this.#restarts = 0;
    const { maxRestarts } = this.#settings;
    if (!end.isFailure || this.#isEnding || this.#restarts >= maxRestarts) {
      if (end.isFailure && maxRestarts > 0) this.#say(`${program.name} ended with ${end.text}: no more restarts`);
      return this.#finish(end);
    }
    this.#lastEnd = end;
    if (this.#status !== PAUSED) this.#setStatus(ACTIVE); // it may have reported another one
    const delayMs = Math.min(MIN_RESTART_MS * 2 ** this.#restarts, MAX_RESTART_MS);
    this.#restarts += 1;
    this.#say(`${program.name} ended with ${end.text}: restart ${this.#restarts} in ${delayMs / 1000} s`);
    this.#restartTimer = setTimeout(() => {
      this.#isRestartDue = true;
      this.#setStatus(this.#status);
    }, delayMs);
  }

  /** The program has ended for good, or cannot be started. */
  #finish(end: End): void {
    this.#lastEnd = end;
    this.#server.post('shutdown', { reason: end.text });
  }

  /** Ignores what a program wrote before it was stopped, and what it says of its end. */
  #takeStatus(status: SystemStatus): void {
    if (!this.#isEnding && this.#program.processes.stopped.length === 0) this.#setStatus(status);
  }

  /** Keeps the earlier commands if these are wrong. */
  #declare(commands: Readonly<Record<string, CommandDeclaration>>): void {
    try {
      this.#server.commands = commands;
    } catch (error) {
      const message = excerpt((error as Error).message, MAX_VALUE_LENGTH);
      this.#say(`${this.#program.name} declares commands that are not accepted: ${message}`);
    }
  }

  #setStatus(status: SystemStatus): void {
    this.#status = status;
    if (status === ACTIVE && this.#isRestartDue) void this.#start();
  }

  /** What `/api/info` tells. */
  #describe(): object | null {
    const program = this.#program;
    if (program === undefined) return null;
    const processes = program.end === null ? program.processes.list() : [];
    const cpuSeconds = processes.reduce((sum, process) => sum + process.cpuSeconds, 0);
    const memory = processes.reduce((sum, process) => sum + process.measureMemory(), 0);
    return {
      ...this.#detail,
      pid: program.pid,
      command: excerpt(this.#command.line.join(' ')),
      started: program.startedAt.toISOString(),
      processes: processes.length,
      'CPU seconds': Number(cpuSeconds.toFixed(2)),
      'memory MiB': Math.round(memory / 1024),
      ...(this.#restarts > 0 && { restarts: this.#restarts, 'last end': this.#lastEnd?.text }),
    };
  }

  // ───── The commands ──────────────────────────────────────────────────────────────────────────────────────────────

  #execute(command: string): Promise<CommandOutcome> {
    switch (command) {
      case 'pause': return this.#pause();
      case 'resume': return this.#resume();
      case 'save-state': return this.#save();
      case 'shutdown': return this.#shutDown();
      default: return this.#passOn();
    }
  }

  async #pause(): Promise<CommandOutcome> {
    if (this.#status === PAUSED) return {};
    this.#setStatus(PAUSING);
    const outcome = this.#program.channel.isOpen ? await this.#askToPause() : await this.#stop();
    if (this.#status === PAUSING) this.#setStatus('error' in outcome ? ACTIVE : PAUSED);
    return outcome;
  }

  async #stop(): Promise<CommandOutcome> {
    const program = this.#program;
    if (program.end !== null) return {}; // it waits for its restart
    try {
      await program.processes.stop();
      this.#guard();
      program.checkRunning();
      return {};
    } catch (error) {
      return { error };
    }
  }

  /** Stops a program that does not pause itself in time. It finds the command when it continues. */
  async #askToPause(): Promise<CommandOutcome> {
    const { forceStopMs } = this.#settings;
    let stopping: Promise<void> | undefined;
    const stop = async (): Promise<void> => {
      const outcome = await this.#stop();
      this.#program.channel.settle('error' in outcome ? outcome : { value: 'stopped by SIGSTOP' });
    };
    const force = (): void => void (stopping ??= stop());
    const timer = forceStopMs === undefined ? undefined : setTimeout(force, forceStopMs);
    const outcome = await this.#ask(this.#isAwaited, force);
    clearTimeout(timer);
    await stopping; // it may have paused meanwhile, and a resume must find all that is stopped
    if ('error' in outcome) this.#continue(); // it may have failed while it was being stopped
    return outcome;
  }

  async #resume(): Promise<CommandOutcome> {
    if (this.#status === ACTIVE) return {};
    const { channel } = this.#program;
    this.#setStatus(RESUMING);
    this.#continue();
    const giveUp = (): void => {
      this.#setStatus(ACTIVE); // as far as control-run is concerned
      channel.settle({ error: this.#silence() });
    };
    const outcome = channel.isOpen ? await this.#ask(this.#isAwaited, giveUp) : {};
    if (this.#status === RESUMING) this.#setStatus('error' in outcome ? PAUSED : ACTIVE);
    return outcome;
  }

  /** A pause or a resume is urgent once another command waits for it. */
  readonly #isAwaited = (): boolean => this.#server.hasCommands();

  /** A save may take its time until a signal asks for the end. */
  readonly #mustEnd = (): boolean => this.#isSignalled;

  /** Passes the command to a program that takes commands itself, and waits for the outcome as #limit() does. */
  async #ask(isUrgent: () => boolean, onLate: () => void, values?: object): Promise<CommandOutcome> {
    const { channel } = this.#program;
    const { command, by, reason } = this.#server.request as CommandRequest;
    const send = (onOutcome: (outcome: CommandOutcome) => void): void => {
      channel.send({ command, arguments: values, by, reason }, onOutcome);
    };
    return await this.#limit(new Promise(send), isUrgent, onLate);
  }

  /** Passes on a command that may take its time. */
  #askPatiently(values?: object): Promise<CommandOutcome> {
    return this.#ask(this.#mustEnd, () => this.#program.channel.settle({ error: this.#silence() }), values);
  }

  /** Waits for an outcome. Calls `onLate` if it has not come `graceMs` after it has become urgent. */
  async #limit<T>(outcome: Promise<T>, isUrgent: () => boolean, onLate: () => void): Promise<T> {
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

  #continue(): void {
    this.#program.processes.continue();
    this.#guard();
  }

  /** Tells the keeper what to end if control-run is killed. */
  #guard(): void {
    const { end, pid, processes } = this.#program;
    const main = this.#command.isOnTerminal ? pid : -pid;
    this.#keeper.watch(end === null ? [main, ...processes.stopped] : []);
  }

  async #save(): Promise<CommandOutcome> {
    const { channel, name, processes } = this.#program;
    const { saveSignal, saveCommand } = this.#settings;
    this.#program.checkRunning();
    if (saveCommand !== undefined && !channel.isOpen) return await this.#runSaveCommand(saveCommand);
    if (saveSignal === undefined && !channel.isOpen) {
      throw new Error('no way to save: start control-run with --save-signal or --save-command');
    }
    if (processes.stopped.length > 0) throw new Error(`${name} is stopped and cannot save: resume it first`);
    if (saveSignal !== undefined && !channel.isOpen) return this.#sendSaveSignal(saveSignal);
    return await this.#askPatiently();
  }

  /** A command of the program's own. */
  async #passOn(): Promise<CommandOutcome> {
    const { command, arguments: values } = this.#server.request as CommandRequest;
    const { name, processes } = this.#program;
    this.#program.checkRunning();
    if (!Object.hasOwn(this.#server.commands, command)) throw new Error(`${name} no longer takes this command`);
    if (processes.stopped.length > 0) throw new Error(`${name} is stopped: resume it first`);
    return await this.#askPatiently(values);
  }

  async #runSaveCommand(command: string): Promise<CommandOutcome> {
    const saving = new ShellCommand(command, { CONTROL_PID: String(this.#program.pid) });
    const { end, lastLine } = await this.#limit(saving.ended, this.#mustEnd, () => saving.kill());
    if (end.exitCode === 0) return { value: lastLine };
    throw new Error(`the save command ended with ${end.text}${lastLine && `: ${lastLine}`}`);
  }

  #sendSaveSignal(name: NodeJS.Signals): CommandOutcome {
    const pid = this.#program.processes.findHandler(name);
    if (pid === null) throw new Error(`no process of ${this.#program.name} handles ${name}, which would end it`);
    this.#continue();
    process.kill(pid, name);
    return { value: `${name} sent to process ${pid}` };
  }

  /** Saves for the last time and ends the program, unless the save fails and a client can try again. */
  async #shutDown(): Promise<CommandOutcome> {
    const program = this.#program;
    const before = this.#status;
    this.#isEnding = true;
    this.#setStatus(SHUTTING_DOWN);
    clearTimeout(this.#restartTimer);
    let saved: CommandOutcome = {};
    if (program !== undefined && program.end === null) {
      saved = await this.#saveLast().catch((error: unknown) => ({ error }));
      if ('error' in saved && program.end === null && !this.#isSignalled) {
        this.#isEnding = false;
        this.#setStatus(before);
        return saved;
      }
      const { graceMs } = this.#settings;
      const killed = await program.processes.end(graceMs);
      if (killed > 0) this.#say(`${program.name} did not end within ${graceMs / 1000} s: killed`);
      this.#lastEnd = await program.ended;
    }
    this.#isOver = true;
    if ('error' in saved) return saved;
    const { value } = saved;
    return { value: value === undefined ? this.#lastEnd?.text : `${textOfJson(value)}; ${this.#lastEnd?.text}` };
  }

  async #saveLast(): Promise<CommandOutcome> {
    const { channel } = this.#program;
    const { saveSignal, saveCommand } = this.#settings;
    if (channel.isOpen) return await this.#askToEnd();
    if (saveCommand !== undefined) return await this.#save();
    if (saveSignal === undefined) return {};
    const outcome = this.#sendSaveSignal(saveSignal);
    this.#say(`${outcome.value}; SIGTERM follows within ${this.#settings.graceMs / 1000} s`);
    await this.#waitForEnd(); // there is no way to know when the save is done
    return outcome;
  }

  /** A program that takes commands itself also saves and ends itself. */
  async #askToEnd(): Promise<CommandOutcome> {
    const { channel } = this.#program;
    this.#continue();
    const outcome = await this.#ask(this.#mustEnd, () => channel.settle({}));
    if ('error' in outcome && channel.isOpen) return outcome;
    await this.#waitForEnd();
    return 'error' in outcome ? {} : outcome; // it has ended, and closed the socket first
  }

  async #waitForEnd(): Promise<void> {
    await Promise.race([this.#program.ended, sleep(this.#settings.graceMs, null, { ref: false })]);
  }

  // ───── Signals ───────────────────────────────────────────────────────────────────────────────────────────────────

  /** On a terminal, the program is in the same process group and gets the signals of the terminal itself. */
  #handleSignals(): void {
    const { isOnTerminal } = this.#settings;
    const end = (name: NodeJS.Signals): void => {
      this.#isSignalled = true;
      this.#server.post('shutdown', { reason: name });
    };
    const pass = (name: NodeJS.Signals): void => this.#program.send(name);
    for (const name of ['SIGTERM', 'SIGHUP'] as const) process.on(name, end);
    for (const name of ['SIGUSR1', 'SIGUSR2'] as const) process.on(name, pass);
    process.on('SIGCONT', () => this.#onContinue());
    if (isOnTerminal) {
      for (const name of ['SIGINT', 'SIGQUIT'] as const) {
        process.on(name, () => (this.#program.end === null ? this.#explainDelay(name) : end(name)));
      }
      process.on('SIGTSTP', () => this.#followProgram());
    } else {
      process.on('SIGINT', end).on('SIGWINCH', pass).on('SIGTSTP', () => this.#suspend());
    }
  }

  #explainDelay(name: NodeJS.Signals): void {
    const { name: program, processes } = this.#program;
    if (processes.stopped.length > 0) this.#say(`${program} is paused: it takes ${name} once it is resumed`);
  }

  /**
   * Ctrl-Z on the terminal of the program, which may restore the terminal before it stops, or ignore the signal. The
   * shell takes the terminal back as soon as this process stops.
   */
  async #followProgram(): Promise<void> {
    const { processes } = this.#program;
    const end = performance.now() + MAX_SUSPEND_MS;
    while (!processes.haveStopped('group') && performance.now() < end) await sleep(POLL_MS);
    if (processes.haveStopped('main')) process.kill(process.pid, 'SIGSTOP');
  }

  /** Ctrl-Z elsewhere: only this process gets it. */
  async #suspend(): Promise<void> {
    if (this.#isSuspended) return;
    this.#isSuspended = true;
    const wasRunning = this.#program.processes.stopped.length === 0;
    let hasContinued = false;
    const continued = once(process, 'SIGCONT').then(() => (hasContinued = true));
    await this.#stop();
    await nextTurn(); // SIGCONT may have arrived
    if (!hasContinued) process.kill(process.pid, 'SIGSTOP');
    await continued;
    this.#isSuspended = false;
    if (wasRunning) this.#continue();
  }

  /** `fg` continues all processes on the terminal. */
  #onContinue(): void {
    if (!this.#isSuspended && this.#program.processes.stopped.length > 0) void this.#stop();
  }
}
