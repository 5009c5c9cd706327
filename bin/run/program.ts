// One run of the program under control: its start, its processes, its socket and its end.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { constants } from 'node:os';
import { basename } from 'node:path';
import { Channel } from './channel.ts';
import { Processes } from './processes.ts';
import type { ChildProcess } from 'node:child_process';
import type { Socket } from 'node:net';
import type { Cgroup } from './cgroup.ts';
import type { ChannelListener } from './channel.ts';

const CHANNEL_FD = 3;
const MAX_OUTPUT_LENGTH = 65_536; // of a shell command
const OBSTACLES: Record<string, string> = {
  ENOENT: 'not found', EACCES: 'permission denied', ENOTDIR: 'not a directory',
};
const CLEAN_SIGNALS = ['SIGHUP', 'SIGINT', 'SIGTERM', 'SIGPIPE']; // as systemd sees it: somebody wanted the end

/** What all runs of a program have in common. */
export interface Command {
  /** The program and its arguments. */
  line: readonly [string, ...string[]];
  /** Whether it stays in the session of the terminal and in the process group of control-run. */
  isOnTerminal: boolean;
  /** A variable with its value, `NAME=VALUE`, by which its processes are known. */
  mark: string;
  cgroup: Cgroup | null;
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
  /** `python[4711]` */
  readonly name: string;
  readonly pid: number;
  readonly processes: Processes;
  readonly channel: Channel;
  readonly startedAt: Date = new Date();
  readonly ended: Promise<End>;
  readonly #child: ChildProcess;
  #end: End | null = null;

  private constructor(child: ChildProcess, command: Command, listener: ChannelListener) {
    const { line: [file], isOnTerminal, mark, cgroup } = command;
    this.#child = child;
    this.pid = child.pid as number;
    this.name = `${basename(file)}[${this.pid}]`;
    this.processes = new Processes(this.pid, !isOnTerminal, mark, cgroup);
    this.channel = new Channel(child.stdio[CHANNEL_FD] as Socket, listener);
    this.ended = new Promise((resolve) => {
      child.on('exit', (code, signal) => resolve(this.#end = endOf(code, signal)));
    });
  }

  /**
   * Starts it.
   *
   * @param onSpawn Called with its name, before it can write anything.
   * @returns How it ended, if it could not be started.
   */
  static async start(
    command: Command,
    listener: ChannelListener,
    onSpawn: (name: string) => void,
  ): Promise<Program | End> {
    const { line: [file, ...args], isOnTerminal, mark, cgroup } = command;
    const [name, value] = mark.split('=') as [string, string];
    const start = (): ChildProcess => {
      const child = spawn(file, args, {
        stdio: ['inherit', 'inherit', 'inherit', 'pipe'],
        detached: !isOnTerminal,
        env: { ...process.env, CONTROL_FD: String(CHANNEL_FD), [name]: value },
      });
      if (child.pid !== undefined) onSpawn(`${basename(file)}[${child.pid}]`);
      return child;
    };
    try {
      const child = cgroup === null ? start() : cgroup.spawn(start);
      if (child.pid !== undefined) return new Program(child, command, listener);
      throw (await once(child, 'error'))[0];
    } catch (error) {
      const { code = '', message } = error as NodeJS.ErrnoException;
      const text = `cannot start '${file}': ${OBSTACLES[code] ?? message}`;
      return { exitCode: code === 'ENOENT' ? 127 : 126, text, isFailure: true }; // as a shell does
    }
  }

  /** How it ended; null while it runs. */
  get end(): End | null {
    return this.#end;
  }

  /** @throws {Error} If it has ended. */
  checkRunning(): void {
    if (this.#end !== null) throw new Error(`${this.name} has ended: ${this.#end.text}`);
  }

  /** Sends a signal to the main process. */
  send(name: NodeJS.Signals): void {
    this.#child.kill(name);
  }
}

function endOf(code: number | null, signal: NodeJS.Signals | null): End {
  const exitCode = code ?? 128 + constants.signals[signal as NodeJS.Signals];
  const isClean = CLEAN_SIGNALS.some((name) => exitCode === 128 + constants.signals[name as NodeJS.Signals]);
  return { exitCode, text: signal ?? `exit code ${exitCode}`, isFailure: exitCode !== 0 && !isClean };
}

/** A command for the shell, with its last line of output. In a session of its own, Ctrl-C does not reach it. */
export class ShellCommand {
  readonly ended: Promise<{ end: End; lastLine: string }>;
  readonly #child: ChildProcess;

  constructor(command: string, variables: Record<string, string>) {
    const env = { ...process.env, ...variables };
    const child = spawn(command, { shell: true, detached: true, stdio: ['ignore', 'pipe', 'inherit'], env });
    this.#child = child;
    let output = '';
    child.stdout.setEncoding('utf8').on('data', (text: string) => (output = (output + text).slice(-MAX_OUTPUT_LENGTH)));
    this.ended = once(child, 'close').then(([code, signal]) => {
      return { end: endOf(code, signal), lastLine: output.trimEnd().split('\n').slice(-1).join() };
    });
  }

  kill(): void {
    this.#child.stdout?.destroy(); // a process that has left the group may hold it
    try {
      process.kill(-(this.#child.pid as number), 'SIGKILL');
    } catch {} // all of the group have ended
  }
}
