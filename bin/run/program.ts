// One run of the program under control: its start, its processes, its socket and its end.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { constants } from 'node:os';
import { Channel } from './channel.ts';
import { checkExecutable, GATE_FD, shellAtGate } from './gate.ts';
import { Processes } from './processes.ts';
import type { ChildProcess } from 'node:child_process';
import type { Socket } from 'node:net';
import type { Cgroup } from './cgroup.ts';
import type { ChannelListener } from './channel.ts';
import type { Keeper } from './keeper.ts';

const CHANNEL_FD = 3;
const OBSTACLES: Record<string, string> = {
  ENOENT: 'not found', EACCES: 'permission denied', ENOTDIR: 'not a directory',
};
const CLEAN_SIGNALS = ['SIGHUP', 'SIGINT', 'SIGTERM', 'SIGPIPE']; // as systemd sees it: somebody wanted the end

/** What all runs of a program have in common. */
export interface Command {
  /** The program and its arguments. */
  line: readonly [string, ...string[]];
  /** What messages call it. */
  name: string;
  /** Whether it stays in the session of the terminal and in the process group of control-run. */
  isOnTerminal: boolean;
  /** A variable with its value, `NAME=VALUE`, by which its processes are known. */
  mark: string;
  cgroup: Cgroup | null;
  keeper: Keeper;
}

/** How it ended. */
export interface End {
  /** As a shell tells it: 128 + n for signal n. */
  exitCode: number;
  /** `exit code 1`, `SIGKILL`. */
  text: string;
  /** False also if it was ended by a signal that people send. */
  isFailure: boolean;
}

export class Program {
  /** `train.py[4711]` */
  readonly name: string;
  readonly pid: number;
  readonly processes: Processes;
  readonly channel: Channel;
  readonly startedAt: Date = new Date();
  readonly ended: Promise<End>;
  readonly #child: ChildProcess;
  readonly #gate: Socket | undefined; // closes with exec()
  #end: End | null = null;

  private constructor(child: ChildProcess, command: Command, listener: ChannelListener) {
    const { name, mark, cgroup, keeper } = command;
    this.#child = child;
    this.pid = child.pid as number;
    this.name = `${name}[${this.pid}]`;
    this.processes = new Processes(this.pid, mark, cgroup, keeper);
    this.channel = new Channel(child.stdio[CHANNEL_FD] as Socket, listener);
    this.#gate = child.stdio[GATE_FD] as Socket | undefined;
    this.#gate?.on('error', () => {}).resume().unref(); // `close` follows
    this.ended = new Promise((resolve) => {
      child.on('exit', (code, signal) => resolve(this.#end = endOf(code, signal)));
    });
  }

  /**
   * Starts it.
   *
   * @param onSpawn Called with its name, before it can write anything.
   * @param isPaused Whether it is to be stopped before its first instruction. Then it is, once the promise resolves.
   * @returns How it ended, if it could not be started.
   */
  static async start(
    command: Command,
    listener: ChannelListener,
    onSpawn: (name: string) => void,
    isPaused: boolean,
  ): Promise<Program | End> {
    const { line, isOnTerminal, mark, cgroup, keeper } = command;
    const [name, value] = mark.split('=') as [string, string];
    const given = { ...process.env, CONTROL_FD: String(CHANNEL_FD), [name]: value };
    const [[file, ...args], env] = isPaused ? shellAtGate(line, given) : [line, given];
    const start = (): ChildProcess => {
      const child = spawn(file, args, {
        stdio: ['inherit', 'inherit', 'inherit', 'pipe', ...(isPaused ? ['pipe'] as const : [])],
        detached: !isOnTerminal,
        env,
      });
      if (child.pid !== undefined && !isPaused) onSpawn(`${command.name}[${child.pid}]`);
      return child;
    };
    keeper.expect();
    try {
      if (isPaused) checkExecutable(line[0]);
      const child = cgroup === null ? start() : cgroup.spawn(start);
      if (child.pid === undefined) throw (await once(child, 'error'))[0];
      const program = new Program(child, command, listener);
      if (!isPaused) return program;
      await program.#hold();
      onSpawn(program.name);
      return program;
    } catch (error) {
      keeper.forget();
      const { code = '', path = line[0], message } = error as NodeJS.ErrnoException;
      const text = `cannot start '${path}': ${OBSTACLES[code] ?? message}`;
      return { exitCode: code === 'ENOENT' ? 127 : 126, text, isFailure: true }; // as a shell does
    }
  }

  /** Stops the shell at the gate. */
  async #hold(): Promise<void> {
    try {
      await this.processes.stop();
    } catch (error) {
      this.#child.kill('SIGKILL');
      throw error;
    }
  }

  /** Whether it is stopped before its first instruction. */
  get isHeld(): boolean {
    return this.#gate?.destroyed === false && this.processes.stopped.length > 0;
  }

  /** Continues what is stopped, and opens the gate. */
  continue(): void {
    if (this.isHeld) this.#gate?.write('go\n');
    this.processes.continue();
  }

  /** How it ended; null while it runs. */
  get end(): End | null {
    return this.#end;
  }

  /** @throws {Error} If it has ended. */
  checkRunning(): void {
    if (this.#end !== null) throw new Error(`${this.name} has ended: ${this.#end.text}`);
  }

  /** Does not wait for its end any longer. */
  leave(): End {
    this.#child.unref();
    return { exitCode: 1, text: 'still running', isFailure: true };
  }

  /** Sends a signal to the main process, unless that has not started: it would end before it can handle any. */
  send(name: NodeJS.Signals): void {
    if (!this.isHeld) this.#child.kill(name);
  }
}

/** How a child has ended, from its event `exit`. */
export function endOf(code: number | null, signal: NodeJS.Signals | null): End {
  const exitCode = code ?? 128 + constants.signals[signal as NodeJS.Signals];
  const isClean = CLEAN_SIGNALS.some((name) => exitCode === 128 + constants.signals[name as NodeJS.Signals]);
  return { exitCode, text: signal ?? `exit code ${exitCode}`, isFailure: exitCode !== 0 && !isClean };
}
