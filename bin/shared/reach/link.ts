// A link to another machine: a command that starts the far end over there, and the connections over its standard input
// and output. The far end may send anything.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { basename, posix } from 'node:path';
import { Duplex } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { farCommand, FRAME, HELLO, MAX_FRAME_LENGTH } from './far.ts';
import { MAX_PATH_LENGTH } from './folder.ts';
import { LINK_ENDED } from './replies.ts';
import { warn } from '../line/options.ts';
import { excerpt } from '../words/text.ts';
import type { ChildProcessByStdio } from 'node:child_process';
import type { Socket } from 'node:net';
import type { Readable, Writable } from 'node:stream';
import type { Machine } from './replies.ts';

const START_MS = 30_000;
const START_ON_TERMINAL_MS = 120_000; // somebody may have to type a password
const HINT_MS = 5000;
const MIN_PAUSE_MS = 1000; // before another attempt
const MAX_PAUSE_MS = 30_000;
const WAIT_MS = 3000; // for the first one after a link has ended
const PING_MS = 10_000;
const MAX_SILENT_PINGS = 2; // counted, because a laptop may sleep
const STDERR_MS = 100; // to arrive after the exit; a master of ssh never closes it
const MAX_STDERR_LENGTH = 4096;
const MAX_SOCKETS = 1000;

/** Another attempt needs a person; without one, it could lock an account. */
const NEEDS_PERSON = /Permission denied|Host key verification failed|(password|terminal) is required/;
const NO_FRAME = 'it sent what is not a frame';
const NO_NODE = /node\b.*(not found|No such file)|bad option: --import|getBuiltinModule/i;
const NODE_HINT = '; it needs Node 20.19 or newer there, in the PATH of such commands';
const SSH_HINT = ": --via 'LABEL=ssh HOST PATH=/DIRECTORY/OF/NODE:$PATH'";
const TERMINAL_HINT = 'there is a terminal in between: remove the option -t';
const INPUT_HINT = '; it must pass standard input on: docker and kubectl need exec -i';
/** The error of a connection, with the codes that tell whether a system is absent. */
const REFUSAL = /^(?:(ECONNREFUSED|ENOENT|EACCES|EAGAIN|EMFILE|ENFILE|ETIMEDOUT)|\w+) (.*)$/s;

/** Why a machine cannot be reached. Says nothing about the systems there. */
export class LinkError extends Error {
  /** The message without the machine. */
  readonly reason: string;

  constructor(machine: string, reason: string) {
    super(`${machine}: ${reason}`);
    this.reason = reason;
  }
}

type OnFrame = (stream: string, type: string, data: Buffer) => void;

const running = new Set<FarEnd>();
let isWatching = false;

/** Ends all commands with the tool, also when a signal ends it: ssh that hangs does not notice the end of its input. */
function endWithTool(): void {
  if (isWatching) return;
  isWatching = true;
  process.on('exit', endLinks);
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    const end = (): void => {
      if (process.listenerCount(signal) > 1) return; // the tool handles it, and may still need them
      endLinks();
      process.off(signal, end).kill(process.pid, signal);
    };
    process.on(signal, end);
  }
}

/** Ends all links, for a tool that ends while one is being opened. */
export function endLinks(): void {
  for (const far of running) far.end('the tool has ended');
}

/** A command, and the frames of the far end that it starts. It does not keep the tool running. */
class FarEnd {
  /** Resolves with the reason when it has ended. */
  readonly ended: Promise<string>;
  readonly #child: ChildProcessByStdio<Writable, Readable, Readable>;
  readonly #program: string;
  readonly #hasGroup: boolean;
  readonly #folder: string;
  readonly #onFrame: OnFrame;
  #resolve!: (reason: string) => void;
  #stderr = '';
  #latest = ''; // line before the hello
  #rest = ''; // of the latest line
  #pinger: NodeJS.Timeout | undefined; // since the hello
  #silentPings = 0;
  #isReady = false; // it has listed its sockets

  /** @param isDetached Whether it runs in a session of its own, without the terminal. */
  constructor(command: readonly string[], folder: string, isDetached: boolean, onFrame: OnFrame) {
    endWithTool();
    const [program = '', ...args] = [...command, ...farCommand()];
    this.#program = basename(program);
    this.#hasGroup = isDetached && process.platform !== 'win32';
    [this.#folder, this.#onFrame] = [folder, onFrame];
    this.ended = new Promise((resolve) => (this.#resolve = resolve));
    this.#child = spawn(program, args, { stdio: 'pipe', detached: this.#hasGroup, windowsHide: true });
    running.add(this);
    this.#child.on('error', ({ code, message }: NodeJS.ErrnoException) => {
      const missing = `there is no such command${program === 'ssh' ? '' : '; only a single word is a host'}`;
      this.end(`cannot start '${program}': ${code === 'ENOENT' ? missing : message}`);
    });
    const { stdin, stdout, stderr } = this.#child;
    if ((stdin as Writable | undefined) === undefined) return; // no free file descriptor; the error follows
    for (const handle of [this.#child, stdin, stdout, stderr] as unknown as Socket[]) handle.unref();
    this.#child.on('exit', async (code, signal) => {
      await Promise.race([once(stderr, 'close'), sleep(STDERR_MS)]);
      this.end(this.#describeEnd(code, signal));
    });
    stdin.on('error', () => {}); // it has ended
    stdout.setEncoding('latin1').on('data', (text: string) => this.#read(text));
    stderr.setEncoding('utf8').on('data', (text: string) => {
      this.#stderr = (this.#stderr + text).slice(-MAX_STDERR_LENGTH);
    });
  }

  send(stream: string, type: string, data: string | Buffer = ''): void {
    this.#child.stdin.write(`${stream} ${type} ${Buffer.from(data).toString('base64')}\n`);
  }

  end(reason: string): void {
    if (!running.delete(this)) return;
    clearInterval(this.#pinger);
    const { pid = 0, exitCode, signalCode, stdin, stdout, stderr } = this.#child;
    for (const pipe of [stdin, stdout, stderr]) pipe?.destroy();
    try {
      const isRunning = pid > 0 && (exitCode ?? signalCode) === null;
      for (const signal of isRunning ? ['SIGTERM', 'SIGCONT'] : []) process.kill(this.#hasGroup ? -pid : pid, signal);
    } catch {} // it belongs to another user, but loses its input
    this.#resolve(reason);
  }

  #read(text: string): void {
    this.#silentPings = 0;
    const [first = '', ...others] = text.split('\n');
    const lines = [this.#rest + first, ...others];
    this.#rest = lines.pop() ?? '';
    for (const line of lines) if (running.has(this)) this.#take(line);
    if (this.#rest.length <= MAX_FRAME_LENGTH) return;
    if (this.#pinger === undefined) this.#rest = '…'; // of what a shell prints at its start
    else this.end(NO_FRAME);
  }

  /** Skips everything before the hello. */
  #take(line: string): void {
    if (this.#pinger === undefined) {
      if (line === `${HELLO}\r`) this.end(TERMINAL_HINT);
      this.#latest = line === HELLO ? '' : line.trim().slice(-MAX_STDERR_LENGTH) || this.#latest;
      if (line !== HELLO) return;
      this.#pinger = setInterval(() => this.#ping(), PING_MS).unref();
      return this.send('0', 'LIST', this.#folder);
    }
    const [, stream, type, data = ''] = FRAME.exec(line) ?? [];
    if (stream === undefined || type === undefined) return this.end(NO_FRAME);
    if (type === 'LIST') this.#isReady = true;
    this.#onFrame(stream, type, Buffer.from(data, 'base64'));
  }

  #ping(): void {
    if (this.#silentPings === MAX_SILENT_PINGS) this.end(`no answer within ${MAX_SILENT_PINGS * PING_MS / 1000} s`);
    else this.send('0', 'PING');
    this.#silentPings += 1;
  }

  #describeEnd(code: number | null, signal: string | null): string {
    const how = `${this.#program} ${signal === null ? `ended with exit code ${code}` : `was killed by ${signal}`}`;
    const last = this.#stderr.trimEnd().split(/[\r\n]+/).at(-1) || this.#latest; // dockerd writes to standard output
    if (/not a tty/i.test(last)) return `${how}: ${TERMINAL_HINT}`;
    const why = last === '' ? how : `${how}: ${excerpt(last)}`;
    if (this.#isReady) return why;
    if (code === 0) return why + INPUT_HINT;
    if (!NO_NODE.test(this.#stderr + this.#latest)) return why;
    return why + NODE_HINT + (this.#program === 'ssh' ? SSH_HINT : '');
  }
}

interface Connection {
  duplex: Duplex;
  /** Undefined once it is confirmed. */
  confirm: (() => void) | undefined;
  /** Opens it as soon as there is a link. */
  open(): void;
}

let onTerminal: Promise<unknown> | null = process.stderr.isTTY ? Promise.resolve() : null; // one attempt at a time

/** From now on, the terminal is the tool's. Resolves when no command asks a person any more. */
export async function keepTerminal(): Promise<void> {
  const asking = onTerminal;
  onTerminal = null;
  await asking;
}

/** One for each machine, while the tool runs: opened at the first use, and again whenever it ends. */
export class Link implements Machine {
  readonly label: string;
  /** The paths of the live sockets over there, as last reported. */
  sockets: ReadonlySet<string> = new Set();
  readonly #command: readonly string[];
  readonly #folder: string;
  readonly #connections: Map<string, Connection> = new Map(); // by the id of the stream
  #opening: Promise<unknown> | undefined;
  #far: FarEnd | undefined; // while it is open
  #lastId = 0;

  /** @param folder Of the sockets, over there; empty for those of the user's session. */
  constructor(label: string, command: readonly string[], folder: string) {
    [this.label, this.#command, this.#folder] = [label, command, folder];
  }

  /**
   * Resolves when the link is open and `sockets` is known. Waits for the first attempt, and up to 3 s after the link
   * has ended; otherwise, a machine that cannot be reached fails at once.
   *
   * @throws {LinkError} Why it is not open.
   */
  async open(): Promise<void> {
    if (this.#opening === undefined) void this.#keepOpen();
    await this.#opening;
  }

  async #keepOpen(): Promise<void> {
    let [attempt, pauseMs] = [this.#start(), 0];
    const later = (): Promise<FarEnd> => pause(pauseMs).then(() => this.#attempt('later'));
    this.#opening = attempt;
    for (;;) {
      try {
        const far = await attempt;
        this.#opening = attempt;
        const lost = new LinkError(this.label, await far.ended);
        pauseMs = MIN_PAUSE_MS;
        attempt = later();
        this.#opening = Promise.race([attempt, pause(WAIT_MS).then(() => Promise.reject(lost))]);
        this.#opening.catch(() => {}); // nobody may wait for it
      } catch (error) {
        this.#opening = attempt;
        if (NEEDS_PERSON.test(`${error}`)) return;
        pauseMs = Math.min(MAX_PAUSE_MS, Math.max(MIN_PAUSE_MS, 2 * pauseMs));
        attempt = later();
      }
    }
  }

  /** If the first attempt needs a person, makes another one that may ask on the terminal. */
  #start(): Promise<FarEnd> {
    const hint = setTimeout(() => onTerminal && warn(`waiting for ${this.label} …`), HINT_MS).unref();
    return this.#attempt('first').finally(() => clearTimeout(hint)).catch((error: unknown) => {
      if (!NEEDS_PERSON.test(`${error}`) || onTerminal === null) throw error;
      const second = onTerminal.then(() => this.#attempt('asking'));
      onTerminal = second.catch(() => {});
      return second;
    });
  }

  /**
   * Starts the command, and resolves when its far end is ready.
   *
   * @throws {LinkError} Why it is not.
   */
  async #attempt(which: 'first' | 'asking' | 'later'): Promise<FarEnd> {
    const mayAsk = which === 'asking';
    const limitMs = mayAsk ? START_ON_TERMINAL_MS : START_MS;
    const [program = '', ...args] = this.#command;
    const plain = ['-T', '-o', 'RemoteCommand=none']; // whatever its configuration says
    const options = [...mayAsk ? [] : ['-o', 'BatchMode=yes'], ...plain];
    const command = [program, ...basename(program) === 'ssh' ? options : [], ...args];
    let onReady!: (reason: null) => void;
    const isReady = new Promise<null>((resolve) => (onReady = resolve));
    const far = new FarEnd(command, this.#folder, !mayAsk, (stream, type, data) => {
      if (stream !== '0') return this.#onFrame(stream, type, data);
      if (type === 'CLOSE') far.end(`cannot use the folder '${this.#folder}': ${refusalIn(data).message}`);
      if (type !== 'LIST') return;
      this.sockets = new Set(data.toString().split('\0').filter(isPath).slice(0, MAX_SOCKETS));
      this.#far = far;
      onReady(null);
    });
    const limit = setTimeout(() => far.end(`no answer within ${limitMs / 1000} s`), limitMs);
    if (which === 'later') limit.unref();
    void far.ended.then((reason) => {
      this.#far = undefined;
      for (const { duplex, confirm, open } of this.#connections.values()) {
        if (confirm === undefined) duplex.destroy(createFailure(reason));
        else setImmediate(open); // over the next link: nothing was sent
      }
    });
    const reason = await Promise.race([isReady, far.ended]);
    clearTimeout(limit);
    if (reason !== null) throw new LinkError(this.label, reason);
    return far;
  }

  /** Opens a connection to `/PATH` or `HOST:PORT` over there. Holds back all bytes until it is confirmed. */
  connect(address: string): Duplex {
    const id = `${this.#lastId += 1}`;
    let confirm!: () => void;
    const confirmed = new Promise<void>((resolve) => (confirm = resolve));
    const open = (): void => void this.open().then(
      () => this.#send(id, 'OPEN', address),
      ({ reason }: LinkError) => duplex.destroy(createFailure(reason)),
    );
    const duplex = new Duplex({
      read() {},
      write: (chunk: Buffer, _, callback) => void confirmed.then(() => callback(this.#send(id, 'DATA', chunk))),
      final: () => void duplex.destroy(), // an HTTP client ends it after the response; the far end might not
      destroy: (error, callback) => {
        this.#send(id, 'CLOSE');
        this.#connections.delete(id);
        callback(error);
      },
    });
    this.#connections.set(id, { duplex, confirm, open });
    open();
    return duplex.on('error', () => {}); // an HTTP client stops listening after a response
  }

  /** Sends a frame of a connection, unless that has been closed. An HTTP client ends a request with an empty write. */
  #send(id: string, type: string, data?: string | Buffer): null {
    if (this.#connections.has(id) && data?.length !== 0) this.#far?.send(id, type, data);
    return null;
  }

  #onFrame(id: string, type: string, data: Buffer): void {
    const connection = this.#connections.get(id);
    if (connection === undefined) return; // it is closed
    const { duplex, confirm } = connection;
    if (type === 'OPEN') {
      confirm?.();
      connection.confirm = undefined;
    } else if (type === 'DATA') {
      duplex.push(data);
    } else if (type === 'CLOSE' && data.length > 0) {
      duplex.destroy(refusalIn(data));
    } else if (type === 'CLOSE' || type === 'END') {
      duplex.push(null);
    }
  }
}

/** Does not keep the tool running. */
function pause(ms: number): Promise<void> {
  return sleep(ms, undefined, { ref: false });
}

/** Whether clients take the path of a socket, and as it is: it tells which systems are known. */
function isPath(text: string): boolean {
  return posix.resolve(text) === text && text.endsWith('.sock') && Buffer.byteLength(text) <= MAX_PATH_LENGTH;
}

/** @param code By default, none of those that tell whether a system is absent. */
function createFailure(message: string, code: string = LINK_ENDED): Error {
  return Object.assign(new Error(message), { code });
}

/** The error in a CLOSE. */
function refusalIn(data: Buffer): Error {
  const text = excerpt(data.toString());
  const [, code, message = text] = REFUSAL.exec(text) ?? [];
  return createFailure(message, code);
}
