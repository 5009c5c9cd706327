// The life of the program under control: its starts, its end, its status, and the commands that change these.
//
// It does not use launch(), which executes a step whenever no command waits. This program executes its own steps: it
// may end, report a status or declare commands at any time, and a pause may stop it in the middle of a step.

import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import {
  type CommandDeclaration, type CommandOutcome, type StatusCause, SystemStatus, WebApiServer, type WebApiServerOptions,
} from '../../control.ts';
import { baseUrlOf } from '../shared/client.ts';
import { describeAuthor, describeStatus } from '../shared/describe.ts';
import { excerpt, excerptOf, MAX_VALUE_LENGTH, printableJson, textOfJson } from '../shared/text.ts';
import { ask, Questions } from './channel.ts';
import { startKeeper } from './keeper.ts';
import { Operator } from './operator.ts';
import { Cgroup, labelOf, type Process } from './processes.ts';
import { type End, Program, type ProgramOptions } from './program.ts';
import { handleSignals, mayShow } from './signals.ts';
import { stackOf } from './stack.ts';
import type { Settings } from './options.ts';

const { ACTIVE, PAUSING, PAUSED, RESUMING, SHUTTING_DOWN } = SystemStatus;
const MIN_RESTART_MS = 1000; // doubles with each restart
const MAX_RESTART_MS = 60_000;
const HEALTHY_MS = 60_000; // restarts of a program that ran this long do not count
const LINGER_MS = 200; // lets clients see how the program ended
const CONNECT_MS = 10_000; // in which a program on CONTROL_FD usually writes its first line
// The detail has 4096 bytes: 3000 for what the program reports, and enough for these and some numbers.
const MAX_ERROR_LENGTH = 50;
const COMMAND_LENGTHS = [200, 100]; // 100 characters fit in any case
const MAX_COMMAND_BYTES = 405;
const MAX_LOGGED_BYTES = 15_000; // a line of the log has at most 16 KiB
const KILLED: CommandOutcome = { error: new Error('the limit of a shutdown has passed: the program was killed') };

export class Supervisor {
  readonly #settings: Settings;
  readonly #say: (message: string) => void;
  readonly #server: WebApiServer<string>;
  readonly #questions: Questions;
  readonly #programOptions: ProgramOptions;
  #program!: Program; // set before any command is taken, unless it cannot be started
  #operator!: Operator; // of this run
  #lastEnd: End | null = null;
  #loggedEnd: End | null = null;
  #baseUrl = '';
  #status: SystemStatus;
  #holds: readonly StatusCause[]; // of the pause, as they were kept last
  #pausedSince: string | undefined; // whoever holds the pause now
  #change: { reported: SystemStatus | null } | null = null; // during a pause or resume: what the program reports
  #detail: object = {}; // reported by the program
  #hasComplained = false; // about a field of it
  #restarts = 0; // in a row
  #restartTimer: NodeJS.Timeout | undefined;
  #isRestartDue = false; // once the status is active
  #isFreezing = false; // a pause waits no longer for the program
  #isKilled = false; // by the limit of a shutdown
  #isSignalled = false; // by a signal to end, or by the limit of a shutdown
  #isEnding = false; // from a shutdown on, unless it is cancelled; the program may report that status by itself
  #isWatched = false; // a client has asked for the status, and may wait for the end

  /**
   * @param say Prints a line for people.
   * @throws {UsageError} If the state cannot be read or written, or the log that was asked for.
   */
  constructor(settings: Settings, options: Omit<WebApiServerOptions, 'systemStatus'>, say: (message: string) => void) {
    const { graceMs, state, log } = settings;
    this.#settings = settings;
    this.#say = say;
    this.#holds = state?.read() ?? [];
    this.#pausedSince = this.#holds[0]?.since;
    this.#status = this.#holds.length === 0 ? ACTIVE : PAUSED;
    this.#server = new WebApiServer<string>({
      ...options,
      log: log.open(say),
      cause: this.#holds,
      systemStatus: () => {
        this.#keepHolds(); // they also change without the status: by a second pause, or a release of one of several
        return this.#status;
      },
      describe: () => this.#describe(),
      autoReport: false, // hasCommands() is called while a command still runs
      onOverdue: (command) => void this.#enforce(command),
      readStack: async () => this.#program?.end === null ? stackOf(this.#program.processes, this.#questions.look) : [],
    });
    this.#questions = new Questions(this.#server);
    const mark = `CONTROL_RUN=${process.pid}-${randomBytes(16).toString('hex')}`;
    const cgroup = Cgroup.create();
    const keep = startKeeper(graceMs, mark, cgroup?.path ?? '', this.#questions.folder, log);
    this.#programOptions = { ...settings, mark, cgroup, keep };
  }

  /**
   * Runs the program, restarts included, until it has ended for good. Returns how it ended.
   *
   * @throws {Error} If the web API cannot listen. The program is then not started.
   */
  async run(): Promise<End> {
    const server = this.#server;
    this.#logStart();
    this.#baseUrl = baseUrlOf(await server.runInBackground());
    this.#programOptions.askPath = await this.#questions.listen(this.#say);
    await this.#start();
    while (!this.#isEnding) {
      const command = await server.nextCommand();
      setImmediate(() => this.#questions.askAnew()); // once it is clear what that has withdrawn
      server.report(await this.#execute(command).catch((error: unknown) => ({ error })));
    }
    while (this.#isKilled && server.hasCommands()) { // sent before
      server.receiveCommand();
      server.report(KILLED);
    }
    this.#questions.close();
    if (this.#isWatched) await sleep(LINGER_MS);
    await server.close();
    this.#logEnd();
    this.#settings.state?.keep(this.#holds); // retries a write that has failed
    await this.#program?.nameDaemon(this.#say);
    this.#programOptions.cgroup?.remove();
    return this.#lastEnd as End;
  }

  // ───── The program ───────────────────────────────────────────────────────────────────────────────────────────────

  async #start(): Promise<void> {
    this.#isRestartDue = false;
    const isPaused = this.#status === PAUSED;
    const program = await Program.start(this.#programOptions, {
      onStatus: (status) => this.#takeStatus(status),
      onDetail: (detail) => this.#takeDetail(detail),
      onAccepts: (accepts) => this.#declare(accepts as Record<string, CommandDeclaration>),
      onAsk: (fields, signal) => ask(this.#server, fields, signal),
      onInvalidLine: (what) => this.#say(`${this.#program.name} wrote ${what} to CONTROL_FD`),
    }, (name) => {
      if (this.#lastEnd === null) this.#handleSignals(); // the first time
      const holds = this.#holds;
      const how = isPaused ? `; ${describeStatus({ ...holds[0], holds, status: PAUSED.statusName })}` : '';
      if (!this.#settings.isQuiet) this.#say(`${name} · web API at ${this.#baseUrl}${how}`);
    }, isPaused);
    if (!(program instanceof Program)) {
      this.#say(program.text);
      return this.#finish(program);
    }
    this.#program = program;
    this.#questions.connect = (socket, pid) => program.connect(socket, pid);
    this.#detail = {};
    this.#operate(isPaused);
    void program.ended.then((end) => this.#onEnd(program, end));
  }

  /** Lets a new operator begin with the program as it is: running, or stopped before its first instruction. */
  #operate(isPaused: boolean): void {
    this.#operator = new Operator(this.#program, isPaused, {
      settings: this.#settings, server: this.#server, say: this.#say,
      overdue: () => (this.#isKilled ? 'shutdown' : this.#isFreezing ? 'pause' : null),
      isSignalled: () => this.#isSignalled,
    });
  }

  #onEnd(program: Program, end: End): void {
    program.channel.close();
    this.#questions.withdraw(`${program.name} has ended`);
    if (!this.#isEnding) program.processes.release();
    if (performance.now() - program.begunAt >= HEALTHY_MS) this.#restarts = 0;
    const { maxRestarts } = this.#settings;
    if (!end.isFailure || this.#isEnding || this.#isSignalled || this.#restarts >= maxRestarts) {
      const wouldRestart = end.isFailure && maxRestarts > 0 && !this.#isSignalled;
      if (wouldRestart) this.#say(`${program.name} ended with ${end.text}: no more restarts`);
      return this.#finish(end);
    }
    this.#lastEnd = end;
    this.#logEnd();
    if (this.#status !== PAUSED && this.#change === null) this.#setStatus(ACTIVE); // it may have reported another one
    const delayMs = Math.min(MIN_RESTART_MS * 2 ** this.#restarts, MAX_RESTART_MS);
    this.#restarts += 1;
    this.#say(`${program.name} ended with ${end.text}: restart ${this.#restarts} in ${delayMs / 1000} s`);
    this.#restartTimer = setTimeout(() => {
      this.#isRestartDue = true;
      this.#setStatus(this.#status);
    }, delayMs);
  }

  #logStart(): void {
    const { line, log } = this.#settings;
    log.append('start', { commandLine: shorten(line) });
  }

  #logEnd(): void {
    const { text: ended, exitCode, signal } = this.#lastEnd as End;
    if (this.#lastEnd === this.#loggedEnd) return; // while it waited for a restart, nothing ran
    this.#loggedEnd = this.#lastEnd;
    this.#settings.log.append('end', { ended, exitCode, signal: signal ?? undefined });
  }

  /** Call it when the program has ended for good or cannot be started. */
  #finish(end: End): void {
    this.#lastEnd = end;
    if (!this.#isEnding && !this.#server.hasWaiting(['shutdown'])) this.#server.post('shutdown', { reason: end.text });
  }

  /** Ignores a status in the last lines before a stop, or during a shutdown. */
  #takeStatus(status: SystemStatus): void {
    if (this.#isEnding || this.#program.processes.stopped.length > 0) return;
    if (this.#change === null) this.#setStatus(status);
    else this.#change.reported = status;
  }

  #takeDetail(detail: object): void {
    this.#detail = detail;
    if (this.#hasComplained || !Object.hasOwn(detail, 'run')) return;
    this.#hasComplained = true;
    this.#say(`${this.#program.name} reports a field 'run', which is replaced: it is reserved for control-run`);
  }

  /** Keeps the previous declarations if these are invalid. */
  #declare(commands: Readonly<Record<string, CommandDeclaration>>): void {
    try {
      this.#server.commands = commands;
    } catch (error) {
      const message = excerpt((error as Error).message, MAX_VALUE_LENGTH);
      this.#say(`${this.#program.name} declares invalid commands: ${message}`);
    }
  }

  #setStatus(status: SystemStatus): void {
    this.#status = status;
    this.#server.publish();
    this.#questions.follow(status);
    this.#keepHolds();
    if (status !== ACTIVE || !this.#isRestartDue) return;
    this.#logStart();
    void this.#start();
  }

  /** Keeps the holds if they have changed, and prints the first and the last change on the terminal. */
  #keepHolds(): void {
    const { holds } = this.#server;
    if (isDeepStrictEqual(holds, this.#holds)) return;
    const { isQuiet, state } = this.#settings;
    const isChange = holds.length === 0 || this.#holds.length === 0;
    if (isChange) this.#pausedSince = holds[0]?.since;
    this.#holds = holds;
    state?.keep(holds);
    if (state?.error !== undefined) this.#say(`--state ${state.error}`);
    if (!isChange || isQuiet || !mayShow()) return;
    const author = holds[0] ?? (this.#change === null ? { by: 'itself' } : this.#server.request);
    this.#say(`${holds.length > 0 ? 'paused' : 'resumed'}${describeAuthor({ ...author })}`);
  }

  /** Returns the detail of `/api/info`: what the program reports, and what control-run adds as `run`. */
  #describe(): object | null {
    const program = this.#program;
    this.#isWatched = true;
    if (program === undefined) return null;
    const processes = program.end === null ? program.processes.list() : [];
    const run = {
      pid: program.pid,
      command: excerptOfCommand(this.#programOptions.line),
      started: program.startedAt.toISOString(),
      processes: processes.length,
      ...measure(processes),
      state: this.#settings.state?.error,
      ended: program.end?.text,
      exitCode: program.end?.exitCode,
      signal: program.end?.signal,
      ...(this.#restarts > 0 && {
        restarts: this.#restarts, 'last end': excerptOf(this.#lastEnd?.text, MAX_ERROR_LENGTH),
      }),
      canSave: this.#canSave(program),
      frozen: this.#operator.isFrozen || undefined,
    };
    return { ...this.#detail, run };
  }

  /** Whether there is a way to save. Undefined if the program may still open CONTROL_FD, or has closed it. */
  #canSave({ channel, isHeld, begunAt }: Program): boolean | undefined {
    if (this.#operator.saveWay !== null) return true;
    return channel.state === 'closed' || isHeld || performance.now() - begunAt < CONNECT_MS ? undefined : false;
  }

  // ───── The commands ──────────────────────────────────────────────────────────────────────────────────────────────

  async #execute(command: string): Promise<CommandOutcome> {
    switch (command) {
      case 'pause': return this.#carryOut('pause', [ACTIVE, PAUSING, PAUSED]).finally(() => (this.#isFreezing = false));
      case 'resume': return this.#carryOut('resume', [PAUSED, RESUMING, ACTIVE]);
      case 'save-state': return this.#operator.save();
      case 'shutdown': return this.#shutDown();
      default: return this.#operator.passOn();
    }
  }

  /** If the program reports a status meanwhile, that status wins, unless the program was stopped after it. */
  async #carryOut(
    way: 'pause' | 'resume',
    [before, during, after]: [before: SystemStatus, during: SystemStatus, after: SystemStatus],
  ): Promise<CommandOutcome> {
    if (this.#status === after) return way === 'pause' ? await this.#operator.stopAgain() : {};
    const change = this.#change = { reported: null };
    this.#setStatus(during);
    const [outcome, status]: [CommandOutcome, SystemStatus] = await this.#operator[way]()
      .then((done) => [done, after], (error: unknown) => [{ error }, this.#operator.isPaused ? PAUSED : before]);
    const isStopped = this.#program.processes.stopped.length > 0;
    this.#setStatus(isStopped ? status : change.reported ?? status);
    this.#change = null;
    return outcome;
  }

  /** Ends the program. Cancelled if the last save fails or the program cannot be ended, except after a signal. */
  async #shutDown(): Promise<CommandOutcome> {
    const program = this.#program;
    const before = this.#status;
    this.#isEnding = true;
    this.#setStatus(SHUTTING_DOWN);
    clearTimeout(this.#restartTimer);
    let outcome: CommandOutcome = {};
    const cancel = (status: SystemStatus): CommandOutcome => {
      this.#isEnding = false;
      this.#setStatus(status);
      return outcome;
    };
    if (program?.end === null) {
      const wasPaused = this.#operator.isPaused;
      const mayCancel = (): boolean => program.end === null && !this.#isSignalled;
      outcome = await this.#operator.saveLast().catch((error: unknown) => ({ error }));
      const isResumed = wasPaused && !this.#operator.isPaused; // pausing it again failed
      if ('error' in outcome && mayCancel()) return cancel(isResumed ? ACTIVE : before);
      if ('error' in outcome && program.end === null) this.#say((outcome.error as Error).message);
      const error = await this.#end(program);
      if (error !== null) outcome = { error };
      if (error !== null && mayCancel()) {
        this.#operate(false);
        return cancel(ACTIVE);
      }
      this.#lastEnd = program.end ?? program.leave();
    }
    if ('error' in outcome) return outcome;
    if (this.#isKilled) return KILLED;
    const { text: ended, exitCode, signal } = this.#lastEnd as End;
    const text = excerpt(textOfJson(outcome.value ?? ''), MAX_VALUE_LENGTH); // there is room for the rest
    const saved = Buffer.from(text).toString() || undefined; // well-formed
    return { value: { saved, ended, exitCode, signal } };
  }

  /** Lets a command whose `within` has passed stop the program, unless a save runs, or end it. */
  async #enforce(command: string): Promise<void> {
    this.#isFreezing = this.#status === PAUSING || this.#server.hasWaiting(['pause']);
    if (command === 'pause') return;
    this.#isSignalled = true; // nothing cancels the end
    this.#settings.graceMs = 0; // nor delays it, such as a save command
    this.#isKilled = this.#program?.end === null;
    if (this.#isKilled) await this.#end(this.#program, 0, 'the limit of the shutdown');
  }

  /** Returns an error if a process cannot be ended. */
  async #end(
    program: Program,
    graceMs: number = this.#settings.graceMs,
    limit: string = `${graceMs / 1000} s`,
  ): Promise<Error | null> {
    const { killed, left } = await program.processes.end(graceMs);
    if (killed > 0) this.#say(`${program.name} did not end within ${limit}: killed`);
    if (!left.some(({ pid }) => pid === program.pid)) await program.ended;
    if (left.length === 0) return null;
    const error = new Error(`${left.map(labelOf).join(', ')} cannot be ended`);
    if (this.#isSignalled || program.end !== null) this.#say(error.message);
    return error;
  }

  #handleSignals(): void {
    handleSignals(this.#settings.isOnTerminal, {
      program: () => this.#program,
      end: (name) => {
        this.#isSignalled = true;
        this.#server.post('shutdown', { reason: name });
      },
      pausedSince: () => this.#pausedSince,
      resume: (name) => void this.#server.post('resume', { reason: name }),
      say: this.#say,
    });
  }
}

function measure(processes: readonly Process[]): object {
  const cpuSeconds = processes.reduce((sum, one) => sum + one.cpuSeconds, 0);
  const memory = processes.reduce((sum, one) => sum + one.measureMemory(), 0);
  return { 'CPU seconds': Number(cpuSeconds.toFixed(2)), 'memory MiB': Math.round(memory / 1024) };
}

/** Shortens a command further if it has many characters outside ASCII. */
function excerptOfCommand(line: readonly string[]): string {
  const [long = '', short = ''] = COMMAND_LENGTHS.map((length) => excerpt(line.join(' '), length));
  return Buffer.byteLength(JSON.stringify(long)) <= MAX_COMMAND_BYTES ? long : short;
}

/** A command line for the log: one word if it is too long. */
function shorten(line: readonly string[]): readonly string[] {
  const isShort = Buffer.byteLength(printableJson(line)) <= MAX_LOGGED_BYTES;
  return isShort ? line : [excerpt(line.join(' '), MAX_VALUE_LENGTH)];
}
