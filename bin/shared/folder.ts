// Which systems there are: the Unix sockets in a folder; dead ones are removed. Labels; several systems at once.

import { once } from 'node:events';
import { existsSync, lstatSync, readdirSync, type Stats, statSync, unlinkSync } from 'node:fs';
import { connect } from 'node:net';
import { basename, join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { checkTrusted, DEFAULT_HOST, DEFAULT_PORT, socketFolders } from '../../control.ts';
import { parseText, type TextOption, UsageError } from './cli.ts';
import { createTargetClient, type Machine, type PrintableClient, type Reach, THIS_MACHINE } from './client.ts';
import { printable } from './text.ts';

/** The option for a file with targets. */
export const TARGETS_FILE_OPTION: TextOption = {
  type: 'string', value: 'FILE', completion: 'files',
  help: 'a target per line, and # comments; TARGET token-file=PATH has its own token',
};

/** The same, or standard input. */
export const TARGETS_OPTION: TextOption = {
  ...TARGETS_FILE_OPTION, help: `${TARGETS_FILE_OPTION.help}; - is standard input, without tokens`,
};

/** For the help of each tool that takes targets. */
export const TARGET_HELP: string = `
TARGET is the NAME, NAME-PID or PID of a system of this user that runs here, a pattern of names ('train-*', 'job-?'), or
an address: HOST:PORT, :PORT, http://HOST, an IP address, unix:PATH, or a PATH that begins with / or ./. With --via, the
LABEL of its machine (default: the host) precedes it: gpu1/train, gpu1/:8391, or gpu1/ for all its systems; a name
without LABEL means all machines.
`.trim();

/** The same for a tool that takes one. */
export const ONE_TARGET_HELP: string = `
TARGET is the NAME, NAME-PID or PID of a system, HOST:PORT, :PORT or unix:PATH; with --via gpu1, also gpu1/NAME. Without
TARGET, it is the only system that runs here, or the one at localhost:8391.
`.trim();

/** For tools that take several. */
export const ALL_OPTION = { type: 'boolean', help: 'everything that runs here, instead of targets' } as const;

const AT_ONCE = 32;
const SLOW_MS = 100; // a target that takes longer makes room for the next one

export interface Target {
  /** As given, or `unix:PATH` for a system of a folder; undefined for a system at the address in the options. */
  name: string | undefined;
  /** For people: as given, or for a system of a folder `NAME-PID`, which never means another one. */
  id: string;
  /** For a line: the same, or `NAME` if no other system that is meant has it. */
  title: string;
  /** The title, padded, which begins each line about it. */
  label: string;
  client: PrintableClient;
  /** If it was found in a folder. */
  socket?: Socket;
}

export type Found = Omit<Target, 'label'>;

/** Also sets what messages call the systems. Labels are equally wide. */
export function labelled(found: readonly Found[]): Target[] {
  const names = found.map(({ id, socket }) => socket === undefined ? id : id.replace(/-\d+$/, ''));
  const titles = found.map(({ id }, index) => {
    const name = names[index] as string;
    return names.indexOf(name) === names.lastIndexOf(name) ? name : id;
  });
  const width = Math.max(...titles.map(({ length }) => length));
  return found.map((one, index) => {
    const title = titles[index] as string;
    if (one.socket !== undefined) one.client.title = title;
    return { ...one, title, label: `${printable(title).padEnd(width)}  ` };
  });
}

/** Runs `work` for all items: at most 32 at once, not counting those that take longer than 100 ms. */
export async function inParallel<T, R>(items: readonly T[], work: (item: T) => Promise<R>): Promise<R[]> {
  const starting = new Set<Promise<unknown>>();
  const all: Promise<R>[] = [];
  for (const item of items) {
    if (starting.size >= AT_ONCE) await Promise.race(starting);
    const done = work(item);
    const started = Promise.race([done, sleep(SLOW_MS, undefined, { ref: false })]);
    starting.add(started);
    void started.finally(() => starting.delete(started)).catch(() => {}); // `all` reports it
    all.push(done);
  }
  return Promise.all(all);
}

// ───── Sockets in a folder ───────────────────────────────────────────────────────────────────────────────────────

/** The option that names the folder. */
export const DIR_OPTION: TextOption = {
  type: 'string', value: 'DIR', completion: 'files',
  help: 'the only folder of systems (default: those of this user)',
};

const IS_WINDOWS = process.platform === 'win32';
const NO_SOCKETS = 'on Windows, systems have neither sockets nor names: use HOST:PORT';
/** For messages: the address without any option. */
export const DEFAULT_TARGET: string = `${DEFAULT_HOST}:${DEFAULT_PORT}`;

/** Of a name in the path of a socket: see `socketName` in control.ts. */
const MAX_NAME_LENGTH = 32;
export const MAX_PATH_LENGTH = 94; // bytes; no server has a longer one
const PROBE_MS = 1000; // for what listens at the default port
const YOUNG_MS = 60_000; // a server other than control.ts may not listen yet on a new socket

/** What a link knows of the other machine: the paths of its live sockets. */
type Listing = { readonly sockets: ReadonlySet<string> };

/** The socket of a system in a folder: `NAME-PID.sock`, or `NAME.sock`. */
export class Socket {
  readonly path: string;
  readonly name: string;
  readonly pid: string | undefined;
  readonly #link: Listing | undefined;

  /** @param link To its machine, if that is another one. */
  constructor(path: string, link?: Listing) {
    [this.path, this.#link] = [path, link];
    const [, name = '', pid] = /^(.+?)(?:-(\d+))?\.sock$/s.exec(basename(path)) ?? [];
    [this.name, this.pid] = [name, pid];
  }

  /** On another machine: when that was last heard of. */
  get exists(): boolean {
    return this.#link?.sockets.has(this.path) ?? existsSync(this.path);
  }

  /** Clients send nothing to a socket of another user. */
  get isTrusted(): boolean {
    if (this.#link !== undefined) return true; // it lists no others
    const uid = entryAt(this.path)?.uid;
    return uid !== undefined && (uid === 0 || uid === (process.geteuid?.() ?? uid));
  }
}

/** Where the systems of a machine have their sockets. */
export abstract class Folder {
  readonly machine: Machine;
  /** For messages: `here`, `in 'DIR'`, or `on gpu1`. */
  abstract readonly place: string;
  /** What is not meant although one might think so, as of the latest search. */
  hints: readonly string[] = [];
  /** The process id of the system with a socket that is at localhost:8391, as of the latest search. */
  portPid: string | undefined;
  /** Whether another user has that port. */
  isForeign = false;
  /** The folder in the address of an absent system. */
  protected abstract readonly path: string;

  constructor(machine: Machine) {
    this.machine = machine;
  }

  /**
   * The sockets of live systems. One that hangs, or cannot be reached now, counts as live: a request reports why.
   *
   * @throws {LinkError} If the machine cannot be reached.
   */
  protected abstract live(mayBeMeant: (socket: Socket) => boolean): Promise<Socket[]>;

  /** Returns the live systems, except those of clients with known keys. */
  async systems(reach: Reach, known?: ReadonlySet<string>): Promise<Found[]> {
    const live = await this.live(({ path }) => known?.has(this.#nameOf(`unix:${path}`)) !== true);
    return live.map((socket) => this.#systemOf(socket, reach));
  }

  /** Returns the live systems that may be meant: those of this user or root or, if there are none, of other users. */
  async find(mayBeMeant: (socket: Socket) => boolean, reach: Reach): Promise<Found[]> {
    const live = await this.live(mayBeMeant);
    const trusted = live.filter(({ isTrusted }) => isTrusted);
    return (trusted.length > 0 ? trusted : live).map((socket) => this.#systemOf(socket, reach));
  }

  #systemOf(socket: Socket, reach: Reach): Found {
    const title = printable(this.#nameOf(basename(socket.path, '.sock')));
    return { ...this.at(`unix:${socket.path}`, { ...reach, title }), id: title, title, socket };
  }

  /** Whether localhost:8391 may be of a system without a socket that may be meant. */
  protected abstract get mayBeAtPort(): boolean;

  /** Returns the system at localhost:8391, unless that is known, has one of these process ids, or is none. */
  protected async atPort(pids: readonly string[], reach: Reach, known?: ReadonlySet<string>): Promise<Found[]> {
    const found = this.at(DEFAULT_TARGET, reach);
    if (known?.has(found.client.key) === true) return [];
    found.client.isStillMeant = () => this.mayBeAtPort; // later, the port may be anybody's
    const reply = await this.at(DEFAULT_TARGET, { ...reach, timeoutMs: PROBE_MS }).client.ask();
    const isWeb = !reply.ok && reply.statusCode !== undefined && reply.fault !== 'denied'; // any other server
    if (isWeb || reply.fault === 'offline') return [];
    this.portPid = pids.find((pid) => pid === String(reply.body['pid']));
    return this.portPid === undefined ? [found] : [];
  }

  /** The system at an address of the machine. */
  at(address: string, reach: Reach): Found {
    const name = this.#nameOf(address);
    const client = createTargetClient(address, { ...reach, machine: this.machine });
    return { name, id: name, title: name, client };
  }

  /** An offline system, with a name that no live one has. */
  absent(text: string, reach: Reach): Found {
    const name = this.#nameOf(text);
    return { ...this.at(`unix:${this.path}/${nameInPath(text)}.sock`, reach), name, id: name, title: name };
  }

  #nameOf(target: string): string {
    return this.machine.label === '' ? target : `${this.machine.label}/${target}`;
  }
}

/** A folder of this machine; or those in which the systems of this user may be, and localhost:8391. */
export class LocalFolder extends Folder {
  readonly place: string;
  override hints: readonly string[];
  protected readonly path: string;
  readonly #faults: readonly string[];
  readonly #usable: readonly string[];
  readonly #isOnly: boolean;

  /**
   * @param given Default: the folders of this user, which need not exist.
   * @throws {UsageError} If the given one cannot be read, or other users could put sockets into it.
   */
  constructor(given?: string, machine: Machine = THIS_MACHINE) {
    super(machine);
    const all = given === undefined ? socketFolders() : [resolve(parseText('--dir', given))];
    const faults = all.map((path) => faultOf(path, given));
    this.hints = this.#faults = IS_WINDOWS ? [NO_SOCKETS] : faults.filter((fault) => fault !== '');
    if (given !== undefined && this.hints[0] !== undefined) throw new UsageError(this.hints[0]);
    this.#usable = all.filter((_, index) => faults[index] === '');
    this.#isOnly = all.length === 1; // the given one, or CONTROL_DIR
    this.path = this.#usable[0] ?? '';
    this.place = this.#isOnly ? `in '${all[0]}'` : 'here';
  }

  override async systems(reach: Reach, known?: ReadonlySet<string>): Promise<Found[]> {
    // First: one that gets its socket now is found with that. After a logout, one that is known has none for a second.
    const before = this.#isOnly ? [] : [...this.#pids(), ...pidsIn(known ?? [])];
    const found = await super.systems(reach, known);
    if (this.#isOnly) return found;
    const { user, pid } = ownerOf(DEFAULT_PORT, before);
    this.isForeign = isOther(user);
    this.portPid = this.isForeign ? undefined : pid;
    const owner = user === 0 ? 'root' : `user ${user}`;
    const foreign = `${DEFAULT_TARGET} belongs to ${owner}: --port ${DEFAULT_PORT} means it`;
    this.hints = this.isForeign ? [...this.#faults, foreign] : this.#faults;
    if (this.isForeign || pid !== undefined || user === -1) return found;
    const pids = [...before, ...pidsIn(found.map(({ client }) => client.key))];
    return [...found, ...await this.atPort(pids, reach, known)];
  }

  protected get mayBeAtPort(): boolean {
    const { user, pid } = ownerOf(DEFAULT_PORT, this.#pids());
    return user !== -1 && pid === undefined && !isOther(user);
  }

  #pids(): string[] {
    return pidsIn(this.#usable.flatMap(socketsIn).map(({ path }) => path));
  }

  /** Also removes the sockets of this user's dead systems. */
  protected async live(mayBeMeant: (socket: Socket) => boolean): Promise<Socket[]> {
    const sockets = this.#usable.flatMap(socketsIn).filter(mayBeMeant);
    const areDead = await inParallel(sockets, isDead);
    return sockets.filter((_, index) => areDead[index] === false);
  }
}

/** Whether a server belongs to another user. */
function isOther(user: number | null): boolean {
  return user !== null && user !== -1 && user !== process.geteuid?.();
}

/** The process ids in the paths of sockets. */
export function pidsIn(paths: Iterable<string>): string[] {
  return [...paths].flatMap((path) => new Socket(path).pid ?? []);
}

/** Why systems cannot have their sockets in a folder; otherwise empty. */
function faultOf(path: string, given: string | undefined): string {
  try {
    checkTrusted(path);
    readdirSync(path);
    return '';
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' && given === undefined) return '';
    const what = given === undefined ? 'cannot use the folder' : '--dir must be a folder that can be read, got';
    return `${what} '${given ?? path}': ${message}`;
  }
}

/** A name as the path of a socket has it; see `socketName` in control.ts. */
export function nameInPath(name: string): string {
  return name.replaceAll(/[^\w.-]/g, '_').slice(0, MAX_NAME_LENGTH);
}

/** What a target with `*` (any characters) or `?` (any one) means: names as in paths; null for other targets. */
export function patternOf(text: string): RegExp | null {
  if (!/[*?]/.test(text)) return null;
  const source = text.replaceAll(/[^\w*?-]/g, '\\$&').replaceAll('*', '.*').replaceAll('?', '.');
  return new RegExp(`^${source}$`, 's');
}

/**
 * Returns the user whose server has a port of localhost, and which of these processes of this user it is. Of several
 * servers, a foreign one counts; -1 if there is none, null if nobody can tell. Also runs as text elsewhere.
 */
export function ownerOf(port: number, pids: readonly string[]): { user: number | null; pid?: string | undefined } {
  const { readdirSync, readFileSync, readlinkSync } = process.getBuiltinModule('node:fs');
  const attempt = <T>(act: () => T, otherwise: T): T => {
    try { return act(); } catch { return otherwise; }
  };
  const files = ['tcp', 'tcp6'].map((name) => attempt(() => readFileSync(`/proc/self/net/${name}`, 'latin1'), ''));
  if (files.join('') === '') return { user: null };
  const local = '0100007F|0{8}|0{32}|0{24}01000000|0{16}FFFF0000(?:0100007F|0{8})'; // what localhost may reach
  const end = port.toString(16).toUpperCase().padStart(4, '0');
  const listening = new RegExp(`: (?:${local}):${end} \\S+ 0A \\S+ \\S+ \\S+ +(\\d+) +\\d+ (\\d+)`, 'g');
  const all = [...files.join('').matchAll(listening)];
  const users = all.map(([, user]) => Number(user));
  const links = all.map(([, , inode]) => `socket:[${inode}]`);
  const isOneOf = (pid: string): boolean => {
    const names = attempt(() => readdirSync(`/proc/${pid}/fd`), []);
    return names.some((name) => links.includes(attempt(() => readlinkSync(`/proc/${pid}/fd/${name}`), '')));
  };
  const user = users.find((one) => one !== process.geteuid?.()) ?? users[0] ?? -1;
  return { user, pid: links.length > 0 ? pids.find(isOneOf) : undefined };
}

/** Returns the sockets in a folder, live or dead; none if there is no folder. */
function socketsIn(folder: string): Socket[] {
  if (statSync(folder, { throwIfNoEntry: false }) === undefined) return [];
  const entries = readdirSync(folder, { withFileTypes: true });
  const found = entries.filter((entry) => entry.isSocket() && entry.name.endsWith('.sock'));
  const paths = found.map(({ name }) => join(folder, name)).sort();
  return paths.filter((path) => Buffer.byteLength(path) <= MAX_PATH_LENGTH).map((path) => new Socket(path));
}

/** Returns whether nothing listens on a socket; if so, removes it. */
async function isDead({ path }: Socket): Promise<boolean> {
  const before = entryAt(path);
  const socket = connect(path);
  try {
    await once(socket, 'connect');
    return false;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException; // a server that hangs: EAGAIN; too many open files: EMFILE
    if (code === 'ECONNREFUSED') remove(path, before);
    return code === 'ECONNREFUSED' || code === 'ENOENT';
  } finally {
    socket.destroy();
  }
}

/** Removes a dead socket. Only on Linux: on macOS, a live server refuses connections while its queue is full. */
function remove(path: string, before: Stats | undefined): void {
  const present = entryAt(path);
  if (process.platform !== 'linux' || before === undefined || present?.isSocket() !== true) return;
  const { uid, ino, mtimeMs } = before;
  const isSame = present.ino === ino && present.mtimeMs === mtimeMs; // inodes are reused
  try {
    if (isSame && uid === process.geteuid?.() && Date.now() - mtimeMs > YOUNG_MS) unlinkSync(path);
  } catch {} // the folder is read-only, or another process was faster
}

function entryAt(path: string): Stats | undefined {
  try {
    return lstatSync(path);
  } catch {
    return undefined;
  }
}
