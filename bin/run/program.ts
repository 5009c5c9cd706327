// One run of the program under control: its start, processes, socket and end; and shell commands beside it.

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { accessSync, constants as modes, statSync } from 'node:fs';
import { constants } from 'node:os';
import { delimiter } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Channel, type ChannelListener } from './channel.ts';
import { CHANNEL_FD, GATE_FD, stdioOf } from './descriptors.ts';
import { STARTING } from './keeper.ts';
import { type Cgroup, handles, type Keep, labelOf, Processes, startOf } from './processes.ts';
import type { Socket } from 'node:net';
import type { Settings } from './options.ts';

const OBSTACLES: Record<string, string> = {
  ENOENT: 'not found', EACCES: 'permission denied', ENOTDIR: 'not a directory',
};

/** What all runs of a program have in common. */
export interface ProgramOptions extends Pick<Settings, 'line' | 'name' | 'isOnTerminal'> {
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
  channel: Channel;
  readonly #listener: ChannelListener;
  readonly startedAt: Date = new Date();
  /** When its first instruction could run, by the steady clock. Without meaning while the program is held. */
  begunAt: number = performance.now();
  readonly ended: Promise<End>;
  /** How the program ended; null while it runs. */
  end: End | null = null;
  readonly #child: ChildProcess;
  readonly #gate: Socket | null | undefined; // closes with exec()
  readonly #clean: NodeJS.Signals[] = ['SIGHUP', 'SIGINT', 'SIGTERM', 'SIGPIPE']; // as in systemd: ends as intended

  private constructor(child: ChildProcess, options: ProgramOptions, listener: ChannelListener) {
    const { name, mark, cgroup, keep } = options;
    this.#child = child;
    child.on('error', () => {}); // a signal that must not be sent to another user
    this.pid = child.pid as number;
    this.name = `${name}[${this.pid}]`;
    const hasEnded = (): boolean => child.exitCode !== null || child.signalCode !== null;
    const main = { pid: this.pid, startedAt: startOf(this.pid), hasEnded };
    this.processes = new Processes(main, mark, cgroup, keep);
    this.#listener = listener;
    this.channel = new Channel(child.stdio[CHANNEL_FD] as Socket, listener);
    this.#gate = child.stdio[GATE_FD] as Socket | null | undefined;
    this.#gate?.on('error', () => {}).resume().unref(); // `close` follows
    this.ended = new Promise((resolve) => {
      child.on('exit', (code, signal) => resolve(this.end = endOf(code, signal, this.#clean)));
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

  /** Lets a process take the commands on a socket, in place of CONTROL_FD until that closes, or returns why not. */
  connect(socket: Socket, pid: number): string | null {
    const { channel } = this;
    if (this.end !== null) return `${this.name} has ended`;
    if (channel.state === 'open') return `${channel.process || this.name} takes the commands`;
    if (startOf(pid) > 0 && startOf(pid) < startOf(this.pid)) return 'the program has been started anew';
    channel.socket.pause(); // its lines wait
    this.channel = new Channel(socket, this.#listener, `process ${pid}`);
    socket.on('close', () => (this.channel = channel).socket.resume());
    return null;
  }

  /** Opens the gate and continues the stopped processes. */
  continue(): void {
    if (this.isHeld) {
      this.#gate?.write('go\n');
      this.begunAt = performance.now();
    }
    this.processes.continue();
  }

  /** Warns if the program has gone to the background, as a daemon does. */
  async nameDaemon(say: (message: string) => void): Promise<void> {
    const [left] = this.end?.exitCode === 0 ? await this.processes.listReleased() : [];
    if (left === undefined) return;
    const what = `${this.name} has ended and left processes without control, such as ${labelOf(left)}`;
    say(`${what}: run a server in the foreground`);
  }

  /** @throws {Error} If the program has ended. */
  checkRunning(): void {
    if (this.end !== null) throw new Error(`${this.name} has ended: ${this.end.text}`);
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
    if (this.end !== null || !handles(this.pid, constants.signals[name])) return false;
    this.#clean.push(name);
    return this.#child.kill(name);
  }
}

/** Returns how a child ended, from the arguments of its `exit` event. An end by one of the `clean` is no failure. */
function endOf(code: number | null, signal: NodeJS.Signals | null, clean: readonly NodeJS.Signals[] = []): End {
  const exitCode = code ?? 128 + constants.signals[signal as NodeJS.Signals];
  const isClean = clean.some((name) => exitCode === 128 + constants.signals[name]);
  return { exitCode, signal, text: signal ?? `exit code ${exitCode}`, isFailure: exitCode !== 0 && !isClean };
}

// ───── The gate ──────────────────────────────────────────────────────────────────────────────────────────────────
// A paused program starts at a gate: a shell waits at a socket, and is stopped there. The first resume opens the gate,
// and the shell becomes the program, with the same process id, session and files. A SIGCONT from elsewhere, such as
// `fg`, does not open the gate. If control-run is killed, the gate closes, and the shell exits.

const DEFAULT_PATH = '/usr/bin:/bin';

/**
 * Returns the command line and the environment of the shell. A shell may drop variables whose names it does not accept,
 * such as functions exported by bash. These pass it under other names; as arguments, every user could read them.
 */
function shellAtGate(
  line: readonly string[],
  variables: NodeJS.ProcessEnv,
): [line: [string, ...string[]], env: NodeJS.ProcessEnv] {
  if (Number.isNaN(GATE_FD)) throw new Error('it was paused, and the file descriptors from 3 to 9 are in use');
  const env = { ...variables };
  const aliases = Object.keys(env).filter((name) => !/^[A-Za-z_]\w*$/.test(name)).map((name, index) => {
    const alias = `CONTROL_RUN_${index}`;
    env[alias] = `${name}=${env[name]}`;
    delete env[name];
    return alias;
  });
  const names = aliases.map((alias) => `-u ${alias}`).join(' ');
  const values = aliases.map((alias) => `"$${alias}"`).join(' ');
  const restore = `env ${names} -- ${values} nice -n 0 `; // env alone would take `lr=0.1/train.sh` for a variable
  const script = `read -r line <&${GATE_FD} && exec ${aliases.length > 0 ? restore : ''}"$@" ${GATE_FD}<&-`;
  return [['/bin/sh', '-c', script, 'sh', ...line], env];
}

/** @throws {NodeJS.ErrnoException} As `spawn()` does, if a file cannot be executed. */
function checkExecutable(file: string): void {
  const folders = (process.env['PATH'] ?? DEFAULT_PATH).split(delimiter);
  const paths = file.includes('/') ? [file] : folders.map((folder) => `${folder || '.'}/${file}`);
  const codes = paths.map(obstacleAt);
  if (codes.includes(null)) return;
  const code = codes.includes('EACCES') ? 'EACCES' : codes.at(-1);
  throw Object.assign(new Error(`${code}`), { code, path: file });
}

/** Returns the error code if a path cannot be executed; otherwise null. */
function obstacleAt(path: string): string | null {
  try {
    accessSync(path, modes.X_OK);
    return statSync(path).isFile() ? null : 'EACCES';
  } catch (error) {
    return (error as NodeJS.ErrnoException).code as string;
  }
}

// ───── Shell commands ────────────────────────────────────────────────────────────────────────────────────────────
// A command that runs beside the program has its own session, so that Ctrl-C does not reach it.

const MAX_OUTPUT_LENGTH = 65_536;
const MAX_OUTPUT_MS = 100; // after its exit

export interface ShellCommand {
  ended: Promise<{ end: End; lastLine: string }>;
  kill(): void;
}

export function startShell(command: string, variables: Record<string, string>): ShellCommand {
  const env = { ...process.env, ...variables };
  const child = spawn(command, { shell: true, detached: true, stdio: ['ignore', 'pipe', 'inherit'], env });
  let output = '';
  const closed = new Promise((resolve) => child.on('close', resolve));
  child.stdout.setEncoding('utf8').on('data', (text: string) => (output = (output + text).slice(-MAX_OUTPUT_LENGTH)));
  const ended = once(child, 'exit').then(async ([code, signal]) => {
    (child.stdout as Socket).unref(); // background processes may keep the output open
    await Promise.race([closed, sleep(MAX_OUTPUT_MS)]);
    return { end: endOf(code, signal), lastLine: output.trimEnd().split('\n').slice(-1).join() };
  });
  const kill = (): void => {
    child.stdout.destroy(); // a process that has left the group may keep it open
    try {
      process.kill(-(child.pid as number), 'SIGKILL');
    } catch {} // the whole group has ended
  };
  return { ended, kill };
}
