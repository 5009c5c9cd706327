// A link to another machine: a command that starts the far end over there, and the streams over its standard input and
// output. The far end may send anything.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { basename } from 'node:path';
import { Duplex } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { farCommand, FRAME, HELLO, MAX_FRAME_LENGTH } from './far.ts';
import { excerpt } from '../words/text.ts';
import type { ChildProcessByStdio } from 'node:child_process';
import type { Socket } from 'node:net';
import type { Readable, Writable } from 'node:stream';
import type { Machine } from './replies.ts';

const START_MS = 30_000;
const START_ON_TERMINAL_MS = 120_000; // somebody may have to type a password
const MIN_PAUSE_MS = 1000; // before another attempt
const MAX_PAUSE_MS = 30_000;
const TICK_MS = 5000;
const PING_TICKS = 2;
const SILENT_TICKS = 4; // counted, because a laptop may sleep
const OPEN_MS = 8000; // longer than the far end waits
const STDERR_MS = 100; // to arrive after the exit; a master of ssh never closes it
const ENDING = ['SIGTERM', 'SIGCONT']; // it may be stopped
const MAX_STDERR_LENGTH = 4096;
const MAX_SOCKETS = 1000;
const MAX_PATH_LENGTH = 107;

const UNREF = { ref: false };
const NO_FRAME = 'it sent what is not a frame';
/** After these, another attempt would fail, too, or lock an account. */
const FINAL = /Permission denied|Host key verification failed/;
const NO_NODE = /node\b.*(not found|No such file)|bad option: --import|getBuiltinModule/i;
const NO_NODE_HINT = "; it needs Node 20.19 or newer there, in the PATH of such commands: --via 'LABEL=ssh HOST " +
  "PATH=/DIRECTORY/OF/NODE:$PATH'";
const TERMINAL_HINT = 'there is a terminal in between: remove the option -t';
/** What the far end may say of a connection: with the codes that tell whether a system is absent. */
const REFUSAL = /^(?:(ECONNREFUSED|ENOENT|EACCES|EAGAIN|EMFILE|ENFILE|ETIMEDOUT)|\w+) (.*)$/s;

/** Why a machine cannot be reached. Says nothing about the systems there. */
export class LinkError extends Error {
  /** Without the machine. */
  readonly reason: string;

  constructor(machine: string, reason: string) {
    super(`${machine}: ${reason}`);
    this.reason = reason;
  }
}

// ───── The process ───────────────────────────────────────────────────────────────────────────────────────────────

const running = new Set<FarEnd>();
let isWatching = false;

/** Ends all commands with the tool, also when a signal ends it for which it has no handler. */
function endWithTool(): void {
  if (isWatching) return;
  isWatching = true;
  const endAll = (): void => running.forEach((far) => far.end('the tool has ended'));
  process.on('exit', endAll);
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    process.once(signal, () => {
      if (process.listenerCount(signal) > 0) return; // the tool may still need them
      endAll();
      process.kill(process.pid, signal);
    });
  }
}

/** A command, and the frames of the far end that it starts. It does not keep the tool running. */
class FarEnd {
  /** Resolves with the reason when it has ended. */
  readonly ended: Promise<string>;
  onHello: () => void = () => {};
  onFrame: (stream: string, type: string, data: Buffer) => void = () => {};
  /** Whether it has listed its sockets. */
  isReady: boolean = false;
  readonly #child: ChildProcessByStdio<Writable, Readable, Readable>;
  readonly #program: string;
  readonly #hasGroup: boolean;
  #resolve!: (reason: string) => void;
  #stderr = '';
  #rest = ''; // of the latest line
  #ticker: NodeJS.Timeout | undefined; // since the hello
  #silentTicks = 0;

  /** @param isDetached Whether it runs in a session of its own, without the terminal. */
  constructor([program = '', ...args]: readonly string[], isDetached: boolean) {
    endWithTool();
    this.#program = basename(program);
    this.#hasGroup = isDetached && process.platform !== 'win32';
    this.ended = new Promise((resolve) => (this.#resolve = resolve));
    this.#child = spawn(program, args, { stdio: 'pipe', detached: this.#hasGroup, windowsHide: true });
    running.add(this);
    const { stdin, stdout, stderr } = this.#child;
    this.#child.unref();
    for (const pipe of [stdin, stdout, stderr] as unknown as Socket[]) pipe.unref();
    this.#child.on('error', ({ message }) => this.end(`cannot start '${program}': ${message}`));
    this.#child.on('exit', async (code, signal) => {
      await Promise.race([once(stderr, 'close'), sleep(STDERR_MS)]);
      this.end(this.#describeEnd(code, signal));
    });
    stdin.on('error', () => {}); // its end is reported
    stdout.setEncoding('latin1').on('data', (text: string) => this.#read(text));
    stderr.setEncoding('utf8').on('data', (text: string) => {
      this.#stderr = (this.#stderr + text).slice(-MAX_STDERR_LENGTH);
    });
  }

  readonly send = (stream: string, type: string, data: string | Buffer = ''): void => {
    this.#child.stdin.write(`${stream} ${type} ${Buffer.from(data).toString('base64')}\n`);
  };

  end(reason: string): void {
    if (!running.delete(this)) return;
    clearInterval(this.#ticker);
    const { pid, exitCode, signalCode, stdin, stdout, stderr } = this.#child;
    for (const pipe of [stdin, stdout, stderr]) pipe.destroy();
    try {
      if (pid !== undefined && (exitCode ?? signalCode) === null) {
        for (const signal of ENDING) process.kill(this.#hasGroup ? -pid : pid, signal);
      }
    } catch {} // it belongs to another user, but loses its input
    this.#resolve(reason);
  }

  #read(text: string): void {
    this.#silentTicks = 0;
    const isLine = text.includes('\n');
    const lines = isLine ? (this.#rest + text).split('\n') : [this.#rest + text];
    this.#rest = lines.pop() ?? '';
    for (const line of lines) {
      if (!running.has(this)) return;
      if (this.#ticker === undefined) this.#await(line);
      else this.#take(line);
    }
    if (this.#rest.length <= MAX_FRAME_LENGTH) return;
    if (this.#ticker === undefined) this.#rest = '…'; // of what a shell prints at its start
    else this.end(NO_FRAME);
  }

  /** Skips everything before the hello. */
  #await(line: string): void {
    if (line === `${HELLO}\r`) return this.end(TERMINAL_HINT);
    if (line !== HELLO) return;
    let ticks = 0;
    this.#ticker = setInterval(() => {
      ticks += 1;
      this.#silentTicks += 1;
      if (this.#silentTicks > SILENT_TICKS) this.end(`no answer within ${SILENT_TICKS * TICK_MS / 1000} s`);
      else if (ticks % PING_TICKS === 0) this.send('0', 'PING');
    }, TICK_MS).unref();
    this.onHello();
  }

  #take(line: string): void {
    const [, stream, type, data = ''] = FRAME.exec(line) ?? [];
    if (stream === undefined || type === undefined) return this.end(NO_FRAME);
    this.onFrame(stream, type, Buffer.from(data, 'base64'));
  }

  #describeEnd(code: number | null, signal: string | null): string {
    const how = `${this.#program} ${signal === null ? `ended with exit code ${code}` : `was killed by ${signal}`}`;
    if (/not a (tty|terminal)/i.test(this.#stderr)) return `${how}: ${TERMINAL_HINT}`;
    const last = this.#stderr.trimEnd().split(/[\r\n]+/).at(-1) ?? '';
    const why = last === '' ? how : `${how}: ${excerpt(last)}`;
    if (this.isReady) return why;
    if (code === 0) return `${why}; it must pass standard input on: docker and kubectl need exec -i`;
    return NO_NODE.test(this.#stderr) ? why + NO_NODE_HINT : why;
  }
}

// ───── The link ──────────────────────────────────────────────────────────────────────────────────────────────────

interface Stream {
  duplex: Duplex;
  /** Called when it is connected, or with the reason why not; undefined afterwards. */
  settle: ((error?: Error) => void) | undefined;
}

/** One for each machine, while the tool runs: opened at the first use, and again whenever it ends. */
export class Link implements Machine {
  /** The paths of the live sockets over there, as last reported. */
  sockets: readonly string[] = [];
  readonly label: string;
  readonly #command: readonly string[];
  readonly #folder: string;
  readonly #streams: Map<string, Stream> = new Map();
  #opening: Promise<unknown> | undefined;
  #far: FarEnd | undefined; // while it is open
  #lastId = 0;

  /** @param folder Of the sockets, over there; empty for those of the user's session. */
  constructor(label: string, command: readonly string[], folder: string) {
    [this.label, this.#command, this.#folder] = [label, command, folder];
  }

  get isOpen(): boolean {
    return this.#far !== undefined;
  }

  /**
   * Resolves when the link is open and `sockets` is known. Waits for the first attempt, and for the first one after the
   * link has ended; otherwise, a machine that cannot be reached fails at once.
   *
   * @throws {LinkError} Why it is not open.
   */
  async open(): Promise<void> {
    if (this.#opening === undefined) void this.#keepOpen();
    await this.#opening;
  }

  async #keepOpen(): Promise<void> {
    for (let [pauseMs, isAwaited] = [0, true]; ;) {
      const isFirst = pauseMs === 0;
      const attempt = isFirst ? this.#attempt(true) : sleep(pauseMs, false, UNREF).then(this.#attempt);
      if (isAwaited) this.#opening = attempt;
      try {
        const { ended } = await attempt;
        this.#opening = attempt;
        await ended;
        [pauseMs, isAwaited] = [MIN_PAUSE_MS, true];
      } catch (error) {
        this.#opening = attempt;
        if (FINAL.test(`${error}`)) return;
        [pauseMs, isAwaited] = [Math.min(MAX_PAUSE_MS, Math.max(MIN_PAUSE_MS, 2 * pauseMs)), false];
      }
    }
  }

  /**
   * Starts the command, and resolves when the far end is ready.
   *
   * @throws {LinkError} Why it is not.
   */
  readonly #attempt = async (isFirst: boolean): Promise<{ ended: Promise<void> }> => {
    const mayAsk = isFirst && process.stderr.isTTY;
    const limitMs = mayAsk ? START_ON_TERMINAL_MS : START_MS;
    const far = new FarEnd([...this.#command, ...farCommand()], !mayAsk);
    const limit = setTimeout(() => far.end(`no answer within ${limitMs / 1000} s`), limitMs);
    if (!isFirst) limit.unref();
    const isReady = new Promise<null>((resolve) => {
      far.onHello = () => far.send('0', 'LIST', this.#folder);
      far.onFrame = (stream, type, data) => {
        if (stream !== '0') return this.#onFrame(stream, type, data);
        if (type === 'CLOSE') far.end(`cannot use the folder '${this.#folder}': ${refusalIn(data).message}`);
        if (type !== 'LIST') return;
        this.sockets = [...new Set(data.toString().split('\0'))].filter(isPath).slice(0, MAX_SOCKETS);
        far.isReady = true;
        this.#far = far;
        resolve(null);
      };
    });
    const ended = far.ended.then((reason) => {
      clearTimeout(limit);
      if (this.#far === far) this.#far = undefined;
      for (const id of this.#streams.keys()) this.#fail(id, createFailure(reason));
      return reason;
    });
    const reason = await Promise.race([isReady, ended]);
    clearTimeout(limit);
    if (reason !== null) throw new LinkError(this.label, reason);
    return { ended: ended.then(() => {}) };
  };

  // ───── Streams ─────────────────────────────────────────────────────────────────────────────────────────────────

  /** Opens a connection to `/PATH` or `HOST:PORT` over there. Holds back all bytes until it is established. */
  connect(address: string): Duplex {
    const id = `${this.#lastId += 1}`;
    const duplex = new Duplex({
      construct: (callback) => void this.#connect(id, duplex, address, callback),
      read() {},
      write: (chunk: Buffer, _, callback) => callback(this.#send(id, 'DATA', chunk)),
      final: (callback) => callback(this.#send(id, 'END')),
      destroy: (error, callback) => {
        this.#send(id, 'CLOSE');
        this.#streams.delete(id);
        callback(error);
      },
    });
    return duplex.on('error', () => {}); // an HTTP client stops listening after a response
  }

  async #connect(id: string, duplex: Duplex, address: string, callback: (error?: Error) => void): Promise<void> {
    try {
      await this.open();
    } catch (error) {
      return callback(createFailure((error as LinkError).reason));
    }
    if (duplex.destroyed) return callback();
    const limit = setTimeout(() => this.#fail(id, createFailure('no connection', 'ETIMEDOUT')), OPEN_MS).unref();
    const settle = (error?: Error): void => {
      clearTimeout(limit);
      callback(error);
    };
    this.#streams.set(id, { duplex, settle });
    this.#send(id, 'OPEN', address);
  }

  #send(id: string, type: string, data?: string | Buffer): null {
    if (this.#streams.has(id)) this.#far?.send(id, type, data);
    return null;
  }

  #onFrame(id: string, type: string, data: Buffer): void {
    const stream = this.#streams.get(id);
    if (stream === undefined) return; // it is closed
    const { duplex, settle } = stream;
    if (type === 'CLOSE' && (settle !== undefined || data.length > 0)) return this.#fail(id, refusalIn(data));
    if (type === 'CLOSE') this.#streams.delete(id);
    if (settle !== undefined) {
      if (type !== 'OPEN') return;
      stream.settle = undefined;
      settle();
    } else if (type === 'DATA') {
      duplex.push(data);
    } else {
      duplex.push(null);
    }
  }

  #fail(id: string, error: Error): void {
    const stream = this.#streams.get(id);
    this.#send(id, 'CLOSE');
    this.#streams.delete(id);
    if (stream?.settle === undefined) stream?.duplex.destroy(error);
    else stream.settle(error);
  }
}

function isPath(text: string): boolean {
  return text.startsWith('/') && Buffer.byteLength(text) <= MAX_PATH_LENGTH;
}

/** @param code By default, none of those that tell whether a system is absent. */
function createFailure(reason: string, code: string = 'ENOLINK'): Error {
  return Object.assign(new Error(reason), { code });
}

/** The error in a CLOSE: its code, if it is one that a connection may fail with, and its message. */
function refusalIn(data: Buffer): Error {
  const text = excerpt(data.toString());
  const [, code, message = text] = REFUSAL.exec(text) ?? [];
  return createFailure(message, code);
}
