// Which systems there are: the Unix sockets in a folder; dead ones are removed. Labels; several systems at once.

import { once } from 'node:events';
import {
  existsSync, linkSync, lstatSync, mkdtempSync, readdirSync, rmSync, type Stats, statSync, unlinkSync,
} from 'node:fs';
import { connect, createServer } from 'node:net';
import { basename, join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { checkTrusted } from '../../control.ts';
import { parseText, type TextOption, UsageError } from './cli.ts';
import {
  createTargetClient, type Machine, type PrintableClient, type Reach, type ServerAccess, THIS_MACHINE,
} from './client.ts';
import { createFolder } from './files.ts';
import { printable } from './text.ts';

/** The option for a file with targets. */
export const TARGETS_FILE_OPTION: TextOption = {
  type: 'string', value: 'FILE', completion: 'files',
  help: 'targets, one per line, with # comments; TARGET token-file=PATH gives a target its own token',
};

/** The same, or standard input. */
export const TARGETS_OPTION: TextOption = { ...TARGETS_FILE_OPTION, help: `${TARGETS_FILE_OPTION.help}; - is stdin` };

/** For the help of each tool that takes targets. */
export const TARGET_HELP: string = `
TARGET is the NAME, NAME-PID or PID of a system in the folder --dir (default: that of this user's session), a pattern
of names ('train-*', 'job-?'), or an address: HOST:PORT, :PORT, http://HOST, an IP address, localhost, unix:PATH or a
path with a slash. With --via, it is on the machine whose LABEL (default: the host) precedes it: gpu1/train, gpu1/:8391,
or gpu1/ for all its systems; a name without LABEL means all machines.
`.trim();

const AT_ONCE = 32;
const SLOW_MS = 100; // a target that takes longer makes room for the next one

export interface Target {
  /** As given, or `unix:PATH` for a system of a folder; undefined for a system at the address in the options. */
  name: string | undefined;
  /** For people: as given, or `NAME-PID` for a system of a folder. */
  title: string;
  /** The title, padded, which begins each line about it. */
  label: string;
  client: PrintableClient;
  /** If it was found in a folder. */
  socket?: Socket;
}

export type Found = Omit<Target, 'label'>;

/** The target at the address in the options or the environment: lines about it have no label, unless with `--via`. */
export function onlyTarget(client: PrintableClient): Target {
  const { target, machine } = client;
  if (machine.label === '') return { name: undefined, title: target, label: '', client };
  return { name: target, title: target, label: `${target}  `, client };
}

/** Labels are equally wide. */
export function labelled(targets: Found[]): Target[] {
  const width = Math.max(...targets.map(({ title }) => title.length));
  return targets.map((target) => ({ ...target, label: `${printable(target.title).padEnd(width)}  ` }));
}

/** Runs `work` for all items: at most 32 at once, not counting those that take longer than 100 ms. */
export async function inParallel<T>(items: readonly T[], work: (item: T) => Promise<void>): Promise<void> {
  const starting = new Set<Promise<unknown>>();
  const all: Promise<void>[] = [];
  for (const item of items) {
    if (starting.size >= AT_ONCE) await Promise.race(starting);
    const done = work(item);
    const started = Promise.race([done, sleep(SLOW_MS, undefined, { ref: false })]);
    starting.add(started);
    void started.finally(() => starting.delete(started)).catch(() => {}); // `all` reports it
    all.push(done);
  }
  await Promise.all(all);
}

// ───── Sockets in a folder ───────────────────────────────────────────────────────────────────────────────────────

/** The option that names the folder. */
export const DIR_OPTION: TextOption = {
  type: 'string', value: 'DIR', completion: 'files',
  help: 'folder of the Unix sockets of systems (default: /run/user/UID/control/ and /tmp/control-UID/, or ' +
    '$XDG_RUNTIME_DIR/control/ if that is elsewhere)',
};

const IS_WINDOWS = process.platform === 'win32';

/** Of a name in the path of a socket: see `socketName` in control.ts. */
const MAX_NAME_LENGTH = 32;
export const MAX_PATH_LENGTH = 94; // bytes; no server has a longer one
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
    const entry = entryAt(this.path);
    return entry?.uid === 0 || (entry !== undefined && entry.uid === (process.geteuid?.() ?? entry.uid));
  }
}

/** Where the systems of a machine have their sockets. */
export abstract class Folder {
  readonly machine: Machine;
  /** For messages: `in '/run/user/1000/control'`, or `on gpu1`. */
  abstract readonly place: string;
  /** Why it cannot be used; otherwise empty. */
  abstract readonly fault: string;
  /** The folder in the address of an absent system. */
  protected abstract readonly path: string;

  constructor(machine: Machine) {
    this.machine = machine;
  }

  /**
   * The sockets of live systems. One that hangs, or cannot be reached now, counts as live: a request reports why.
   *
   * @throws {UsageError} If the folder cannot be used.
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
    return { ...this.at(`unix:${socket.path}`, { ...reach, title }), title, socket };
  }

  /** The system at an address of the machine. */
  at(address: string, reach: Reach): Found {
    const name = this.#nameOf(address);
    return { name, title: name, client: createTargetClient(address, { ...reach, machine: this.machine }) };
  }

  /** An offline system, with a name that no live one has. */
  absent(text: string, reach: Reach): Found {
    if (this.fault !== '') throw new UsageError(this.fault);
    const name = this.#nameOf(text);
    return { ...this.at(`unix:${this.path}/${text}.sock`, reach), name, title: name };
  }

  #nameOf(target: string): string {
    return this.machine.label === '' ? target : `${this.machine.label}/${target}`;
  }
}

/** A folder of this machine, or those in which the systems of this user may be. */
export class LocalFolder extends Folder {
  readonly fault: string;
  protected readonly path: string;
  readonly #others: readonly string[];

  /**
   * @param given Default: the folder of this user's session, which need not exist.
   * @throws {UsageError} If the given one cannot be read, or other users could put sockets into it.
   */
  constructor(given?: string, machine: Machine = THIS_MACHINE) {
    super(machine);
    this.path = given === undefined ? sessionFolder() : resolve(parseText('--dir', given));
    this.fault = faultOf(this.path, given);
    const others = given === undefined ? otherFolders(this.path) : [];
    this.#others = others.filter((path) => existsSync(path) && faultOf(path, undefined) === '');
    if (given !== undefined && this.fault !== '') throw new UsageError(this.fault);
  }

  get place(): string {
    return `in '${[this.path, ...this.#others].join("' and '")}'`;
  }

  /** Also removes the sockets of this user's dead systems. */
  protected async live(mayBeMeant: (socket: Socket) => boolean): Promise<Socket[]> {
    if (this.fault !== '') throw new UsageError(this.fault);
    return liveOf([this.path, ...this.#others].flatMap(socketsIn).filter(mayBeMeant));
  }
}

/** Why systems cannot have their sockets in a folder; otherwise empty. */
function faultOf(path: string, given: string | undefined): string {
  if (IS_WINDOWS) return 'on Windows, systems have neither sockets nor names: use HOST:PORT';
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

/** Prepares the folder of this user's session for a server. Throws an error if none can have a socket there. */
async function prepare(folder: string): Promise<void> {
  const longest = `${folder}/${'x'.repeat(MAX_NAME_LENGTH)}-${process.pid}.sock`;
  if (Buffer.byteLength(longest) > MAX_PATH_LENGTH) throw new Error('its path is too long');
  if (statSync(folder, { throwIfNoEntry: false }) === undefined) createFolder(folder, 0o700);
  checkTrusted(folder);
  const [taken] = await liveOf(socketsIn(folder).filter(({ pid }) => pid === String(process.pid)));
  if (taken !== undefined) throw new Error(`'${basename(taken.path)}' has the same process id, in another container`);
  await tryLink(folder);
}

/** Links a socket, as servers do: some file systems of containers and virtual machines refuse that. */
async function tryLink(folder: string): Promise<void> {
  const place = mkdtempSync(`${folder}/.`);
  const server = createServer();
  try {
    await once(server.listen(`${place}/s`), 'listening');
    linkSync(`${place}/s`, `${place}/t`);
  } finally {
    server.close();
    rmSync(place, { recursive: true, force: true });
  }
}

type Place = Partial<Pick<ServerAccess, 'host' | 'port'>> & Omit<ServerAccess, 'host' | 'port'>;

/**
 * Returns where a tool serves: on the given Unix socket, or else on host and port and in the folder of the session,
 * where clients find it by name.
 *
 * @param say Prints why clients will not find it there.
 */
export async function choosePlace(
  { host, port, ...others }: ServerAccess,
  say: (message: string) => void,
): Promise<Place> {
  if (others.socketPath !== undefined) return others;
  if (IS_WINDOWS) return { ...others, host, port };
  const folder = sessionFolder();
  try {
    await prepare(folder);
    return { ...others, host, port, socketPath: `${folder}/` };
  } catch (error) {
    say(`clients find this program by its port only: cannot use the folder '${folder}': ${(error as Error).message}`);
    return { ...others, host, port };
  }
}

function sessionFolder(): string {
  const session = process.env['XDG_RUNTIME_DIR'] || undefined;
  return session === undefined ? `/tmp/control-${process.geteuid?.()}` : resolve(session, 'control');
}

/**
 * Returns where else systems of this user may be: those of a session move to /tmp at its logout (see `otherPath` in
 * control.ts), and those of cron and services have none. An unusual folder of a session is for what runs in that.
 */
function otherFolders(session: string): string[] {
  const uid = process.geteuid?.();
  const usual = [`/run/user/${uid}/control`, `/tmp/control-${uid}`];
  return usual.includes(session) ? usual.filter((folder) => folder !== session) : [];
}

/** Returns the sockets in a folder, live or dead; none if there is no folder. */
function socketsIn(folder: string): Socket[] {
  if (statSync(folder, { throwIfNoEntry: false }) === undefined) return [];
  const entries = readdirSync(folder, { withFileTypes: true });
  const found = entries.filter((entry) => entry.isSocket() && entry.name.endsWith('.sock'));
  const paths = found.map(({ name }) => join(folder, name)).sort();
  return paths.filter((path) => Buffer.byteLength(path) <= MAX_PATH_LENGTH).map((path) => new Socket(path));
}

/** Returns the sockets of live systems, and removes those of dead ones. */
async function liveOf(sockets: readonly Socket[]): Promise<Socket[]> {
  const dead = new Set<Socket>();
  await inParallel(sockets, async (socket) => void (await isDead(socket.path) && dead.add(socket)));
  return sockets.filter((socket) => !dead.has(socket));
}

/** Returns whether nothing listens on a socket; if so, removes it. */
async function isDead(path: string): Promise<boolean> {
  const before = entryAt(path);
  const socket = connect(path);
  try {
    await once(socket, 'connect');
    return false;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException; // a server that hangs: EAGAIN; too many open files: EMFILE
    const isRefused = code === 'ECONNREFUSED';
    if (isRefused && before !== undefined && isRemovable(before) && isSame(before, entryAt(path))) remove(path);
    return isRefused || code === 'ENOENT';
  } finally {
    socket.destroy();
  }
}

/** Only on Linux: on macOS, a live server refuses connections while its queue is full. */
function isRemovable({ uid, mtimeMs }: Stats): boolean {
  return process.platform === 'linux' && uid === process.geteuid?.() && Date.now() - mtimeMs > YOUNG_MS;
}

/** Also compares the time, because inodes are reused. */
function isSame(before: Stats, present: Stats | undefined): boolean {
  return present?.isSocket() === true && present.ino === before.ino && present.mtimeMs === before.mtimeMs;
}

function entryAt(path: string): Stats | undefined {
  try {
    return lstatSync(path);
  } catch {
    return undefined;
  }
}

function remove(path: string): void {
  try {
    unlinkSync(path);
  } catch {} // the folder is read-only, or another process was faster
}
