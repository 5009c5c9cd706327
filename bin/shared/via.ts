// --via: other machines. The far end of a link is a program that a command starts over there. Standard input and output
// carry frames, each a line of text, because some commands hold back what is not a complete line (srun):
//
//   STREAM TYPE DATA     the data in base64
//
//   0 LIST FOLDER        asks for the live sockets; answered with all their paths, and :8391 if this user's server may
//                        listen there, and again when these change
//   0 PING               is answered with the same, in any stream
//   7 OPEN ADDRESS       connects; answered with the same without the address or, if that fails, with CLOSE. At most
//                        2,048 at a time: a board needs two for each of up to 1,000 systems
//   8 LOG REQUEST        tells logs, see logs.ts; answered with the same without the request, and then with DATA
//   7 DATA BYTES         either way
//   7 END                from the far end: there are no more bytes
//   7 CLOSE CODE TEXT    either way: the end, with the error if there is one; of stream 0, the end of the link

import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { once } from 'node:events';
import { basename, posix } from 'node:path';
import { Duplex, type Readable, type Writable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { brotliCompressSync } from 'node:zlib';
import { checkTrusted, DEFAULT_HOST, DEFAULT_PORT, socketFolders } from '../../control.ts';
import { listOf, type ListOption, suggest, UsageError, warn } from './cli.ts';
import { LINK_ENDED, type Machine, type Reach } from './client.ts';
import { Folder, type Found, LocalFolder, MAX_PATH_LENGTH, ownerOf, patternOf, pidsIn, Socket } from './folder.ts';
import { tellLogs } from './logs.ts';
import { excerpt } from './text.ts';
import type { Socket as Stream } from 'node:net';

/** The line that precedes the frames of the far end. */
const HELLO = 'control-dial 1';

/** A frame as a line. */
const FRAME: RegExp = /^(\d{1,9}) ([A-Z]{3,5})(?: ([\w+/]*={0,2}))?$/;
const MAX_FRAME_LENGTH: number = 2 ** 20;

/**
 * Speaks frames over standard input and output until the input ends. Runs as text, so it refers to nothing outside
 * itself: another machine needs only Node.
 */
export function dial(
  checkPath: typeof checkTrusted,
  usualFolders: typeof socketFolders,
  userAt: typeof ownerOf,
  tell: typeof tellLogs | null,
  [hello, frame, maxLength, port]: readonly [string, RegExp, number, number],
): void {
  const { lstatSync, readdirSync, realpathSync } = process.getBuiltinModule('node:fs');
  const { connect } = process.getBuiltinModule('node:net');
  const { resolve } = process.getBuiltinModule('node:path');
  const { stdin, stdout } = process;
  process.getBuiltinModule('node:v8').setFlagsFromString('--semi-space-growth-factor=1'); // it stays small
  const uid = process.geteuid?.();
  const streams = new Map<string, ReturnType<typeof connect>>();
  const logs = new Map<string, boolean>(); // by stream: whether it is open; it ends a little later
  const known = new Map<string, string>(); // live sockets: what tells one from its successor at the same path
  let folders = new Set<string>();
  let hasPort = false;
  let listed: string | undefined;
  let [rest, heardAt] = ['', performance.now()];

  function send(stream: string, type: string, data: string | Buffer = ''): boolean {
    return stdout.write(`${stream} ${type} ${Buffer.from(data).toString('base64')}\n`);
  }

  /** Input waits until everything has room for more. */
  function resume(): void {
    if (![stdout, ...streams.values()].some((output) => output.writableNeedDrain)) stdin.resume();
  }

  function textOf({ code = 'ERROR', message }: NodeJS.ErrnoException): string {
    return `${code} ${message}`;
  }

  function open(stream: string, address: string): void {
    if (streams.size >= 2048) return void send(stream, 'CLOSE', 'EMFILE too many connections');
    let socket: ReturnType<typeof connect>;
    let failure = '';
    const [, host = '', port] = /^([^/]*):(\d+)$/.exec(address) ?? [];
    try {
      if (port === undefined) checkPath(address);
      else if (!/^(localhost|127\.[\d.]+|::1)$/i.test(host)) throw new Error(`'${host}' is not localhost`);
      socket = port === undefined ? connect(address) : connect(Number(port), host);
    } catch (error) {
      return void send(stream, 'CLOSE', textOf(error as Error));
    }
    streams.set(stream, socket);
    const late = Object.assign(new Error('no connection within 4 s'), { code: 'ETIMEDOUT' });
    const limit = setTimeout(() => socket.destroy(late), 4000);
    socket.on('connect', () => {
      clearTimeout(limit);
      send(stream, 'OPEN');
    }).on('data', (chunk) => {
      if (send(stream, 'DATA', chunk)) return;
      socket.pause();
      stdout.once('drain', () => socket.resume());
    }).on('drain', resume).on('end', () => send(stream, 'END')).on('error', (error) => {
      failure = textOf(error);
      if (/^(ECONNREFUSED|ENOENT)$/.test((error as NodeJS.ErrnoException).code ?? '')) known.delete(address);
    }).on('close', () => {
      clearTimeout(limit);
      if (streams.delete(stream)) send(stream, 'CLOSE', failure);
      resume();
    });
  }

  async function log(stream: string, request: string): Promise<void> {
    if (tell === null) return void send(stream, 'CLOSE', 'EACCES dial --no-log tells no logs');
    if (logs.size >= 64) return void send(stream, 'CLOSE', 'EMFILE too many logs');
    logs.set(stream, true);
    send(stream, 'LOG');
    const failure = await tell(request, known, async (text) => {
      const bytes = Buffer.from(text);
      for (let start = 0; logs.get(stream) && start < bytes.length; start += 2 ** 17) {
        const hasRoom = send(stream, 'DATA', bytes.subarray(start, start + 2 ** 17));
        if (!hasRoom) await new Promise((done) => stdout.once('drain', done));
      }
      if (!logs.get(stream)) throw new Error('nobody hears');
    }).then(() => '', textOf);
    if (logs.get(stream)) send(stream, 'CLOSE', failure);
    logs.delete(stream);
  }

  function onFrame(stream: string, type: string, data: Buffer): void {
    const socket = streams.get(stream);
    if (type === 'PING') send(stream, type);
    if (type === 'LIST') list(String(data));
    if (type === 'OPEN' && socket === undefined) open(stream, String(data));
    if (type === 'LOG' && !logs.has(stream)) void log(stream, String(data));
    if (type === 'DATA' && socket?.write(data) === false) stdin.pause();
    if (type === 'CLOSE' && streams.delete(stream)) socket?.destroy();
    if (type === 'CLOSE' && logs.has(stream)) logs.set(stream, false);
  }

  /** Without a folder: the usual ones, and the port. */
  function list(folder: string): void {
    const isScanning = folders.size > 0;
    if (folder !== '') {
      try {
        readdirSync(folder);
        checkPath(folder);
      } catch (error) {
        return void send('0', 'CLOSE', textOf(error as Error));
      }
    }
    hasPort = folder === '' && !process.env['CONTROL_DIR'];
    folders = new Set(folder === '' ? usualFolders() : [resolve(folder)]);
    if (!isScanning) void scan();
  }

  /** Lists the live sockets of this user and root, and again a second later, in the folders of then. */
  async function scan(): Promise<void> {
    const found = new Map<string, string>();
    for (const folder of folders) {
      try {
        checkPath(folder);
        const real = realpathSync(folder); // two may be the same
        for (const name of readdirSync(real).filter((entry) => entry.endsWith('.sock'))) {
          const stats = lstatSync(`${real}/${name}`);
          const isOurs = stats.uid === uid || stats.uid === 0;
          if (stats.isSocket() && isOurs) found.set(`${real}/${name}`, `${stats.ino} ${stats.mtimeMs}`);
        }
      } catch {} // it is missing, or not trusted
    }
    for (const path of known.keys()) if (known.get(path) !== found.get(path)) known.delete(path);
    const tries = [...found].slice(0, 1000).filter(([path]) => !known.has(path)).map(([path, id]) => {
      return new Promise<void>((done) => {
        const socket = connect(path, () => socket.destroy()).on('error', ({ code }: NodeJS.ErrnoException) => {
          if (/^(ECONNREFUSED|ENOENT)$/.test(code ?? '')) found.delete(path); // others may listen, but are busy
        }).on('close', () => {
          if (found.has(path)) known.set(path, id);
          done();
        });
      });
    });
    await Promise.all(tries);
    const paths = [...known.keys()].sort();
    const pids = paths.map((path) => path.replace(/.*-|\.sock$/g, ''));
    const owner = hasPort ? userAt(port, pids) : { user: -1 };
    if (owner.pid === undefined && (owner.user === null || owner.user === uid)) paths.push(`:${port}`);
    if (`${paths}` !== listed) send('0', 'LIST', paths.join('\0'));
    listed = `${paths}`;
    setTimeout(scan, 1000);
  }

  stdin.on('data', (chunk) => {
    if (stdout.writableLength > maxLength) stdin.pause();
    heardAt = performance.now();
    const lines = (rest + chunk.toString('latin1')).split('\n');
    rest = lines.pop() ?? '';
    if (rest.length > maxLength) process.exit(1);
    for (const line of lines) {
      const [, stream, type, data = ''] = frame.exec(line) ?? [];
      if (stream !== undefined && type !== undefined) onFrame(stream, type, Buffer.from(data, 'base64'));
    }
  }).on('end', () => process.exit()).on('error', () => process.exit(1));
  (stdout as any)._handle?.setBlocking?.(false); // a pipe that nobody reads must not stop the clock
  stdout.on('error', () => process.exit(1)).on('drain', resume).setMaxListeners(0);
  setInterval(() => performance.now() - heardAt > 60_000 && process.exit(1), 1000); // not every command hangs up
  stdout.write(`\n${hello}\n`);
}

/** Runs the far end. @param mayLog Whether it tells logs. */
export function runDial(mayLog: boolean): void {
  dial(checkTrusted, socketFolders, ownerOf, mayLog ? tellLogs : null, [HELLO, FRAME, MAX_FRAME_LENGTH, DEFAULT_PORT]);
}

/** What follows the command: starts the far end, and means the same parsed by a shell never, once or twice. */
function farCommand(): string[] {
  const settings = `['${HELLO}',${FRAME},${MAX_FRAME_LENGTH},${DEFAULT_PORT}]`;
  const program = `(${dial})(${checkTrusted},${socketFolders},${ownerOf},${tellLogs},${settings})`;
  const packed = brotliCompressSync(program).toString('base64url'); // Windows takes lines of 8,191 characters
  const unpacked = `process.getBuiltinModule('zlib').brotliDecompressSync(Buffer.from('${packed}','base64url'))`;
  const encode = (character: string): string => `%${character.charCodeAt(0).toString(16)}`;
  const text = encodeURIComponent(`eval(String(${unpacked}))`).replaceAll(/[!'()*]/g, encode);
  return ['node', '--import', `data:text/javascript,${text}`, '-e', '0'];
}

// ───── The link ──────────────────────────────────────────────────────────────────────────────────────────────────
// The far end may send anything.

const START_MS = 30_000;
const START_ON_TERMINAL_MS = 120_000; // somebody may have to type a password
const HINT_MS = 5000;
const MIN_PAUSE_MS = 1000; // before another attempt
const MAX_PAUSE_MS = 30_000;
const WAIT_MS = 3000; // for the first one after a link has ended
const PING_MS = 10_000;
const MAX_SILENT_PINGS = 2; // counted, because a laptop may sleep
const STDERR_MS = 100; // to arrive after the exit; a master of ssh never closes it
const MAX_STDERR_LENGTH = 16_384; // Node also quotes the program, twice
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

const pause = (ms: number): Promise<void> => sleep(ms, undefined, { ref: false }); // does not keep the tool running

/** Why a machine cannot be reached. Says nothing about the systems there. */
class LinkError extends Error {
  /** The message without the machine. */
  readonly reason: string;

  constructor(machine: string, reason: string) {
    super(`${machine}: ${reason}`);
    this.reason = reason;
  }
}

type OnFrame = (stream: string, type: string, data: Buffer) => void;

const running = new Set<FarEnd>();

/** Ends all commands with the tool, also when a signal ends it: ssh that hangs does not notice the end of its input. */
function endWithTool(): void {
  if (process.listeners('exit').includes(endLinks)) return;
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
    for (const handle of [this.#child, stdin, stdout, stderr] as unknown as Stream[]) handle.unref();
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
    const isPlain = this.#program === 'ssh' && code === 255 && last !== ''; // ssh itself says why
    const start = isPlain ? 'cannot be reached' : how;
    const why = last === '' ? how : `${start}: ${excerpt(isPlain ? last.replace(/^ssh: /, '') : last)}`;
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
  isLog: boolean;
}

let onTerminal: Promise<unknown> | null = process.stderr.isTTY ? Promise.resolve() : null; // one attempt at a time

/** From now on, the terminal is the tool's. Resolves when no command asks a person any more. */
export async function keepTerminal(): Promise<void> {
  const asking = onTerminal;
  onTerminal = null;
  await asking;
}

/** One for each machine, while the tool runs: opened at the first use, and again whenever it ends. */
class Link implements Machine {
  readonly label: string;
  /** The paths of the live sockets over there, as last reported. */
  sockets: ReadonlySet<string> = new Set();
  /** Whether this user's server may listen at its localhost:8391. */
  hasPort = false;
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
    let attempt = this.#start();
    this.#opening = attempt;
    for (let pauseMs = 0;;) {
      const far = await attempt.catch((error: LinkError) => error);
      this.#opening = attempt;
      if (far instanceof Error && NEEDS_PERSON.test(far.reason)) return;
      const lost = far instanceof Error ? null : new LinkError(this.label, await far.ended);
      pauseMs = lost !== null ? MIN_PAUSE_MS : Math.min(MAX_PAUSE_MS, Math.max(MIN_PAUSE_MS, 2 * pauseMs));
      attempt = pause(pauseMs).then(() => this.#attempt());
      if (lost === null) continue;
      this.#opening = Promise.race([attempt, pause(WAIT_MS).then(() => Promise.reject(lost))]);
      this.#opening.catch(() => {}); // nobody may wait for it
    }
  }

  /** If the first attempt needs a person, makes another one that may ask on the terminal. */
  #start(): Promise<FarEnd> {
    const hint = setTimeout(() => onTerminal && warn(`waiting for ${this.label} …`), HINT_MS).unref();
    return this.#attempt().finally(() => clearTimeout(hint)).catch((error: LinkError) => {
      if (!NEEDS_PERSON.test(error.reason) || onTerminal === null) throw error;
      const second = onTerminal.then(() => this.#attempt(true));
      onTerminal = second.catch(() => {});
      return second;
    });
  }

  /**
   * Starts the command, and resolves when its far end is ready.
   *
   * @throws {LinkError} Why it is not.
   */
  async #attempt(mayAsk: boolean = false): Promise<FarEnd> {
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
      const listed = data.toString().split('\0');
      this.sockets = new Set(listed.filter(isPath).slice(0, MAX_SOCKETS));
      this.hasPort = listed.includes(`:${DEFAULT_PORT}`);
      this.#far = far;
      onReady(null);
    });
    const limit = setTimeout(() => far.end(`no answer within ${limitMs / 1000} s`), limitMs).unref();
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

  async log(request: string): Promise<Duplex> {
    await this.open().catch(({ reason }: LinkError) => Promise.reject(createFailure(reason)));
    return this.connect(request, 'LOG');
  }

  /** Opens a connection to `/PATH` or `HOST:PORT` over there. Holds back all bytes until it is confirmed. */
  connect(address: string, type: string = 'OPEN'): Duplex {
    const id = `${this.#lastId += 1}`;
    let confirm!: () => void;
    const confirmed = new Promise<void>((resolve) => (confirm = resolve));
    const open = (): void => void this.open().then(
      () => void (this.#send(id, type, address) ?? (type === 'LOG' && this.#send(id, 'PING'))), // older ones know PING
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
    this.#connections.set(id, { duplex, confirm, open, isLog: type === 'LOG' });
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
    const { duplex, confirm, isLog } = connection;
    if (type === 'DATA') duplex.push(data);
    if (type === 'CLOSE' && data.length > 0) return void duplex.destroy(refusalIn(data));
    if (type === 'CLOSE' || type === 'END') duplex.push(null);
    if (type === 'PING' && isLog && confirm) duplex.destroy(createFailure('its control-client is older than 0.29'));
    if (type !== 'OPEN' && type !== 'LOG') return;
    confirm?.();
    connection.confirm = undefined;
  }
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

// ───── The machines ──────────────────────────────────────────────────────────────────────────────────────────────

/** The option that names machines. */
export const VIA_OPTION: ListOption = {
  type: 'string', multiple: true, value: '[LABEL=]CMD', completion: 'hosts',
  help: "another machine: CMD is a host for ssh, or what runs commands there ('docker exec -i web'); may be repeated",
};

/** Which systems are meant by names: those of machines, in a folder. */
export interface Where {
  via?: readonly string[] | undefined;
  dir?: string | undefined;
}

/** For tools that show what they have found meanwhile, and completions. */
export const PATIENCE_MS = 5000;
const MAX_PATIENCE_MS = 600_000; // links give up earlier
const SCAN_MS = 1000; // between two searches for what is new
const MAX_NEW = 64; // systems that a machine may add at a search

/** Several hosts in one --via: in a command, a comma may mean anything. */
const HOSTS = /^[\w.@-]+(?: *, *[\w.@-]+)+$/;

const links = new Map<string, Link>(); // each is kept while the tool runs

/**
 * Returns the folders of the machines of `--via` or CONTROL_VIA or, without any, the one of this machine.
 *
 * @throws {UsageError} If an option is invalid.
 */
export function foldersOf({ via, dir }: Where): Folder[] {
  const [option, given] = via === undefined
    ? ['CONTROL_VIA', (process.env['CONTROL_VIA'] || undefined)?.split(',') ?? []]
    : ['--via', via.flatMap((text) => HOSTS.test(text) ? text.split(',') : [text])];
  const folders = new Map<string, Folder>();
  for (const text of given) {
    const [label, command] = parseVia(option, text.trim());
    if (folders.has(label)) throw new UsageError(`${option} has the label '${label}' twice: write LABEL=COMMAND`);
    const key = JSON.stringify([label, command, dir]);
    const link = command && (links.get(key) ?? new Link(label, command, dir ?? ''));
    if (link !== null) links.set(key, link);
    folders.set(label, link === null ? new LocalFolder(dir, { label }) : new FarFolder(link));
  }
  return folders.size === 0 ? [new LocalFolder(dir)] : [...folders.values()];
}

/** Returns the label and the words of the command; null for this machine. */
function parseVia(option: string, text: string): [label: string, command: string[] | null] {
  const [, given, line = text] = /^(\w[\w.-]*)=(.*)$/s.exec(text) ?? [];
  const words = splitShell(line);
  const [first = '', second] = words ?? [];
  if (words === null) throw new UsageError(`${option} must close its quotes, got '${text}'`);
  if (first === '' || first.startsWith('-')) {
    throw new UsageError(`${option} must be a host or a command, got '${text}'`);
  }
  const last = words.filter((word) => word !== '--').at(-1) ?? '';
  const label = given ?? last.replace(/^.*@/, '');
  if (!/^\w[\w.-]*$/.test(label)) {
    throw new UsageError(`${option} needs a label, so write LABEL=COMMAND: got '${text}'`);
  }
  if (second === undefined) return [label, first.toLowerCase() === DEFAULT_HOST ? null : ['ssh', '--', first]];
  return [label, words];
}

/** Splits a command as a shell does: quotes and backslashes, no expansion. Null if a quote is not closed. */
function splitShell(line: string): string[] | null {
  const word = /\s*((?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\s'"\\])+)\s*/gsy;
  const words = [...line.matchAll(word)];
  if (words.map(([text]) => text).join('') !== line) return null;
  return words.map(([, text = '']) => {
    return text.replaceAll(/\\(.)|'([^']*)'|"((?:\\.|[^"\\])*)"/gs, (_, one, plain, quoted?: string) => {
      return one ?? plain ?? quoted?.replaceAll(/\\(["\\$`])/g, '$1');
    });
  });
}

/** Returns the folders that a target may mean, and the target without its label. */
export function foldersFor(target: string, folders: readonly Folder[]): [target: string, folders: readonly Folder[]] {
  const [, label, rest = ''] = /^([\w*?][\w.*?-]*)\/(.*)$/s.exec(target) ?? [];
  const labels = folders.map(({ machine }) => machine.label);
  if (label === undefined || labels[0] === '') return [target, folders];
  const pattern = patternOf(label);
  const found = folders.filter(({ machine }) => machine.label === label || pattern?.test(machine.label) === true);
  if (found.length > 0) return [rest, found];
  throw new UsageError(`no --via has the label '${label}'${suggest(label, labels) || `, only ${listOf(labels)}`}`);
}

/** Returns the one folder whose machine an address may be of. */
export function folderOf(address: string, [folder, ...others]: readonly Folder[], hint: string = ''): Folder {
  if (folder !== undefined && others.length === 0) return folder;
  throw new UsageError(`'${address}' may be of several machines: write LABEL/TARGET${hint}`);
}

/** Why machines could not be reached at the latest search, by label. */
export const unreachable: Map<string, string> = new Map();

/** Returns what is found on all machines that can be reached in time. */
export async function findIn(
  folders: readonly Folder[],
  find: (folder: Folder) => Promise<Found[]>,
  patienceMs: number = MAX_PATIENCE_MS,
): Promise<Found[]> {
  const all = await Promise.all(folders.map(async (folder) => {
    const { label } = folder.machine;
    const late = pause(patienceMs).then(() => Promise.reject(new LinkError(label, 'no answer yet')));
    try {
      const found = await Promise.race([find(folder), late]);
      unreachable.delete(label);
      return found;
    } catch (error) {
      const isUnreachable = error instanceof LinkError;
      if (folders.length === 1 && !isUnreachable) throw error; // otherwise, the others must not suffer
      unreachable.set(label, `${isUnreachable ? '' : `${label}: `}${(error as Error).message}`);
      return [];
    }
  }));
  return all.flat();
}

/** Yields what is new in a folder and why it cannot be searched, once a second. */
export async function* discover(
  folder: Folder,
  known: () => ReadonlySet<string>,
  timeoutMs: number,
  signal?: AbortSignal,
): AsyncGenerator<{ found: Found[]; error: string }, void> {
  while (signal?.aborted !== true) {
    let error = '';
    const found = await findIn([folder], () => folder.systems({ timeoutMs }, known()), PATIENCE_MS).catch((reason) => {
      error = (reason as Error).message; // it may be unreadable for a while
      return [];
    });
    yield { found, error: error || (unreachable.get(folder.machine.label) ?? '') };
    await sleep(SCAN_MS, undefined, { signal, ref: signal !== undefined }).catch(() => {});
  }
}

/** A folder, or those of the user's session, on another machine. */
class FarFolder extends Folder {
  declare readonly machine: Link;
  #maxNew = Infinity; // systems; no limit at the first search
  protected readonly path = ''; // there are none in the root folder

  get place(): string {
    return `on ${this.machine.label}`;
  }

  /** For tools that search again and again, finds a few new systems at a time: a machine may invent them. */
  override async systems(reach: Reach, known?: ReadonlySet<string>): Promise<Found[]> {
    const found = await super.systems(reach, known);
    if (this.machine.hasPort) found.push(...await this.atPort(pidsIn(this.machine.sockets), reach, known));
    if (known === undefined) return found;
    const taken = found.slice(0, this.#maxNew);
    this.#maxNew = MAX_NEW;
    return taken;
  }

  protected get mayBeAtPort(): boolean {
    return this.machine.hasPort;
  }

  protected async live(mayBeMeant: (socket: Socket) => boolean): Promise<Socket[]> {
    await this.machine.open();
    return [...this.machine.sockets].map((path) => new Socket(path, this.machine)).filter(mayBeMeant);
  }
}
