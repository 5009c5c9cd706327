// One run of the program under control: its start, processes, socket and end.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { constants } from 'node:os';
import { Channel } from './channel.ts';
import { CHANNEL_FD, GATE_FD, stdioOf } from './descriptors.ts';
import { checkExecutable, shellAtGate } from './gate.ts';
import { STARTING } from './keeper.ts';
import { handles, labelOf, Processes, startOf } from './processes.ts';
import type { ChildProcess } from 'node:child_process';
import type { Socket } from 'node:net';
import type { Cgroup } from './cgroup.ts';
import type { ChannelListener } from './channel.ts';
import type { Keep } from './processes.ts';

const OBSTACLES: Record<string, string> = {
  ENOENT: 'not found', EACCES: 'permission denied', ENOTDIR: 'not a directory',
};

/** What all runs of a program have in common. */
export interface ProgramOptions {
  /** The command and its arguments. */
  line: readonly [string, ...string[]];
  /** The name in messages. */
  name: string;
  /** Whether the program stays in the session of the terminal and in the process group of control-run. */
  isOnTerminal: boolean;
  /** A variable with its value, `NAME=VALUE`, that identifies its processes. */
  mark: string;
  /** The path of the socket for `control-run ask`, if there is one. */
  askPath?: string | undefined;
  cgroup: Cgroup | null;
  keep: Keep;
}

/** How a program ended. */
export interface End {
  /** As in a shell: 128 + n for signal n. */
  exitCode: number;
  signal: NodeJS.Signals | null;
  /** `exit code 1`, `SIGKILL`. */
  text: string;
  /** Also false after a signal that people send. */
  isFailure: boolean;
}

export class Program {
  /** `train.py[4711]` */
  readonly name: string;
  readonly pid: number;
  readonly processes: Processes;
  readonly channel: Channel;
  readonly startedAt: Date = new Date();
  /** When its first instruction could run, by the steady clock. Without meaning while the program is held. */
  begunAt: number = performance.now();
  readonly ended: Promise<End>;
  readonly #child: ChildProcess;
  readonly #gate: Socket | null | undefined; // closes with exec()
  readonly #clean: NodeJS.Signals[] = ['SIGHUP', 'SIGINT', 'SIGTERM', 'SIGPIPE']; // as in systemd: ends as intended
  #end: End | null = null;

  private constructor(child: ChildProcess, options: ProgramOptions, listener: ChannelListener) {
    const { name, mark, cgroup, keep } = options;
    this.#child = child;
    child.on('error', () => {}); // a signal that must not be sent to another user
    this.pid = child.pid as number;
    this.name = `${name}[${this.pid}]`;
    const hasEnded = (): boolean => child.exitCode !== null || child.signalCode !== null;
    const main = { pid: this.pid, startedAt: startOf(this.pid), hasEnded };
    this.processes = new Processes(main, mark, cgroup, keep);
    this.channel = new Channel(child.stdio[CHANNEL_FD] as Socket, listener);
    this.#gate = child.stdio[GATE_FD] as Socket | null | undefined;
    this.#gate?.on('error', () => {}).resume().unref(); // `close` follows
    this.ended = new Promise((resolve) => {
      child.on('exit', (code, signal) => resolve(this.#end = endOf(code, signal, this.#clean)));
    });
  }

  /**
   * Starts a program.
   *
   * @param onSpawn Called with its name before it can write anything.
   * @param isPaused Whether the program starts paused: once the promise resolves, it is stopped before its first
   *   instruction.
   * @returns An end instead of a program if it cannot be started.
   */
  static async start(
    options: ProgramOptions,
    listener: ChannelListener,
    onSpawn: (name: string) => void,
    isPaused: boolean,
  ): Promise<Program | End> {
    const { line, isOnTerminal, mark, askPath, cgroup, keep } = options;
    const [name, value] = mark.split('=') as [string, string];
    const given = { ...process.env, CONTROL_FD: String(CHANNEL_FD), CONTROL_RUN_SOCKET: askPath, [name]: value };
    const start = (): ChildProcess => {
      const [[file, ...args], env] = isPaused ? shellAtGate(line, given) : [line, given];
      const child = spawn(file, args, { stdio: stdioOf(isPaused), detached: !isOnTerminal, env });
      if (child.pid !== undefined && !isPaused) onSpawn(`${options.name}[${child.pid}]`);
      return child;
    };
    keep([STARTING]);
    try {
      if (isPaused) checkExecutable(line[0]);
      const child = cgroup === null ? start() : cgroup.spawn(start);
      if (child.pid === undefined) throw (await once(child, 'error'))[0];
      const program = new Program(child, options, listener);
      if (!isPaused) return program;
      await program.processes.stop().catch((error: unknown) => { // the shell at the gate
        child.kill('SIGKILL');
        throw error;
      });
      onSpawn(program.name);
      return program;
    } catch (error) {
      keep([]);
      const { code = '', path = line[0], message } = error as NodeJS.ErrnoException;
      const text = `cannot start '${path}': ${OBSTACLES[code] ?? message}`;
      return { exitCode: code === 'ENOENT' ? 127 : 126, signal: null, text, isFailure: true }; // as in a shell
    }
  }

  /** Whether the program is stopped before its first instruction. */
  get isHeld(): boolean {
    return this.#gate?.destroyed === false && this.processes.stopped.length > 0;
  }

  /** Opens the gate and continues the stopped processes. */
  continue(): void {
    if (this.isHeld) {
      this.#gate?.write('go\n');
      this.begunAt = performance.now();
    }
    this.processes.continue();
  }

  /** How the program ended; null while it runs. */
  get end(): End | null {
    return this.#end;
  }

  /** Warns if the program has gone to the background, as a daemon does. */
  async nameDaemon(say: (message: string) => void): Promise<void> {
    const [left] = this.#end?.exitCode === 0 ? await this.processes.listReleased() : [];
    if (left === undefined) return;
    const what = `${this.name} has ended and left processes without control, such as ${labelOf(left)}`;
    say(`${what}: run a server in the foreground`);
  }

  /** @throws {Error} If the program has ended. */
  checkRunning(): void {
    if (this.#end !== null) throw new Error(`${this.name} has ended: ${this.#end.text}`);
  }

  /** Stops waiting for the end of a program that cannot be ended. */
  leave(): End {
    this.#child.unref();
    return { exitCode: 1, signal: null, text: 'still running', isFailure: true };
  }

  /** Sends a signal to the main process; a no-op before its first instruction, when it would only kill it. */
  send(name: NodeJS.Signals): void {
    if (!this.isHeld) this.#child.kill(name);
  }

  /** Sends a signal to the main process if that handles it, and may end by it. Returns false if it was not sent. */
  offer(name: NodeJS.Signals): boolean {
    if (this.#end !== null || !handles(this.pid, name)) return false;
    this.#clean.push(name);
    return this.#child.kill(name);
  }
}

/** Returns how a child ended, from the arguments of its `exit` event. An end by one of the `clean` is no failure. */
export function endOf(code: number | null, signal: NodeJS.Signals | null, clean: readonly NodeJS.Signals[] = []): End {
  const exitCode = code ?? 128 + constants.signals[signal as NodeJS.Signals];
  const isClean = clean.some((name) => exitCode === 128 + constants.signals[name]);
  return { exitCode, signal, text: signal ?? `exit code ${exitCode}`, isFailure: exitCode !== 0 && !isClean };
}
