// The systems with Unix sockets in a folder.

import { once } from 'node:events';
import { existsSync, linkSync, lstatSync, mkdtempSync, readdirSync, rmSync, statSync, unlinkSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { basename, join, resolve } from 'node:path';
import { checkTrusted } from '../../../control.ts';
import { createTargetClient } from './access.ts';
import { createFolder } from '../line/files.ts';
import { parseText, UsageError } from '../line/options.ts';
import { inParallel, labelled } from './targets.ts';
import { printable } from '../words/text.ts';
import type { Stats } from 'node:fs';
import type { ServerAccess } from './access.ts';
import type { TextOption } from '../line/options.ts';
import type { Found, Target } from './targets.ts';

/** The option that names the folder. */
export const DIR_OPTION: TextOption = {
  type: 'string', value: 'DIR', completion: 'files',
  help: 'folder of the Unix sockets of systems (default $XDG_RUNTIME_DIR/control/, or else /tmp/control-UID/)',
};

const IS_WINDOWS = process.platform === 'win32';

/** Of a name in the path of a socket: see `socketName` in control.ts. */
export const MAX_NAME_LENGTH = 32;
const MAX_PATH_LENGTH = 94; // bytes; no server has a longer one
const YOUNG_MS = 60_000; // a server other than control.ts may not listen yet on a new socket

/** The socket of a system in a folder: `NAME-PID.sock`, or `NAME.sock`. */
export class Socket {
  readonly path: string;
  readonly name: string;
  readonly pid: string | undefined;

  constructor(path: string) {
    this.path = path;
    const [, name = '', pid] = /^(.+?)(?:-(\d+))?\.sock$/s.exec(basename(path)) ?? [];
    [this.name, this.pid] = [name, pid];
  }

  get exists(): boolean {
    return existsSync(this.path);
  }
}

/** A folder where systems have their sockets. */
export class Folder {
  readonly path: string;

  /**
   * @param given Default: the folder of this user's session, which need not exist.
   * @throws {UsageError} On Windows, or if it cannot be read, or other users could put sockets into it.
   */
  constructor(given?: string) {
    if (IS_WINDOWS) throw new UsageError('on Windows, systems have neither sockets nor names: use HOST:PORT');
    this.path = given === undefined ? sessionFolder() : resolve(parseText('--dir', given));
    try {
      checkTrusted(this.path);
      readdirSync(this.path);
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      if (code === 'ENOENT' && given === undefined) return;
      const what = given === undefined ? 'cannot use the folder' : '--dir must be a folder that can be read, got';
      throw new UsageError(`${what} '${given ?? this.path}': ${message}`);
    }
  }

  /**
   * Returns the live systems, and removes the sockets of this user's dead ones. A system that hangs, or cannot be
   * reached now, counts as live: a request to it reports why.
   *
   * @param known The paths of sockets to leave out.
   */
  async systems(timeoutMs?: number, known?: ReadonlySet<string | undefined>): Promise<Target[]> {
    const live = await liveOf(socketsIn(this.path).filter(({ path }) => known?.has(path) !== true));
    return labelled(live.map((socket) => targetAt(socket, timeoutMs)));
  }

  /** Returns the live systems that may be meant: those of this user or root or, if there are none, of other users. */
  async find(mayBeMeant: (socket: Socket) => boolean, timeoutMs?: number, tokenFile?: string): Promise<Found[]> {
    const live = await liveOf(socketsIn(this.path).filter(mayBeMeant));
    const trusted = live.filter(({ path }) => isTrusted(entryAt(path)));
    return (trusted.length > 0 ? trusted : live).map((socket) => targetAt(socket, timeoutMs, tokenFile));
  }

  /** The path of the socket of a system with this name, without its process id. */
  pathOf(name: string): string {
    return `${this.path}/${nameInPath(name)}.sock`;
  }
}

/** A name as the path of a socket has it; see `socketName` in control.ts. */
export function nameInPath(name: string): string {
  return name.replaceAll(/[^\w.-]/g, '_').slice(0, MAX_NAME_LENGTH);
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

/** Clients send nothing to a socket of another user. */
function isTrusted(entry: Stats | undefined): boolean {
  return entry?.uid === 0 || entry !== undefined && (process.geteuid === undefined || entry.uid === process.geteuid());
}

/** Returns the sockets in a folder, live or dead; none if there is no folder. */
function socketsIn(folder: string): Socket[] {
  if (statSync(folder, { throwIfNoEntry: false }) === undefined) return [];
  const entries = readdirSync(folder, { withFileTypes: true });
  const found = entries.filter((entry) => entry.isSocket() && entry.name.endsWith('.sock'));
  const paths = found.map(({ name }) => join(folder, name)).sort();
  return paths.filter((path) => Buffer.byteLength(path) <= MAX_PATH_LENGTH).map((path) => new Socket(path));
}

/** The system that listens on a socket. */
function targetAt(socket: Socket, timeoutMs?: number, tokenFile?: string): Found {
  const title = printable(basename(socket.path, '.sock'));
  const name = `unix:${socket.path}`;
  return { name, title, client: createTargetClient(name, timeoutMs, tokenFile, title), socket };
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
