// All systems on the board, those of folders as they come, and the long polls of the pages that wait for news of them.

import { warn } from '../shared/cli.ts';
import { BY } from '../shared/client.ts';
import { CONTROL_COMMANDS } from '../shared/declared.ts';
import { type Folder, type Found, inParallel } from '../shared/folder.ts';
import { discover, type Discovery } from '../shared/via.ts';
import { KEEP_MS, steadyNow } from './series.ts';
import { BoardSystem } from './system.ts';
import type { LogPart, Update } from './state.ts';

const READ_MS = 1000;
const CLOSED_MS = 15_000; // a page that sends no request for this long counts as closed
const GATHER_MS = 50; // changes within this time are sent together
const MAX_ENDED = 16; // offline systems of a folder that stay on the board

/** The response to a page. */
export interface News {
  /** Identifies the process: after a restart, the page and the ids may differ. */
  startedAt: number;
  /** Pass it to the next call to receive what has changed since. */
  version: number;
  /** The board's time in milliseconds: a phone's clock may differ. */
  now: number;
  /** The sender of the board's commands. */
  by: string;
  /** How long samples are kept. */
  keepMs: number;
  /** The ids of all systems. */
  ids: number[];
  /** The systems that have changed. */
  systems: Update[];
}

export class Systems {
  readonly #byId: Map<number, BoardSystem> = new Map(); // the newest last
  readonly #startedAt: number = Date.now();
  readonly #waiters: Map<() => void, () => boolean> = new Map(); // how each ends, and whether it has news
  #version = 0;
  #gatherTimer: NodeJS.Timeout | undefined;
  #readTimer: NodeJS.Timeout | undefined; // while a page is open
  #askedAt = 0; // when a page last sent a request
  #nextId = 0;

  constructor(targets: readonly Found[]) {
    for (const target of targets) this.add(target);
  }

  get size(): number {
    return this.#byId.size;
  }

  get all(): BoardSystem[] {
    return [...this.#byId.values()];
  }

  get keys(): Set<string> {
    return new Set(this.all.map(({ target }) => target.client.key));
  }

  /** Whether a system takes a command. Every system takes the four standard commands; own commands need an id. */
  takes(command: string, id?: number): boolean {
    const isControl = CONTROL_COMMANDS.includes(command);
    if (id === undefined) return isControl;
    const system = this.#byId.get(id);
    return system !== undefined && (isControl || system.declares(command));
  }

  /** Whether a system can do a command that it takes. */
  canDo(command: string, id: number): boolean {
    return this.#byId.get(id)?.canDo(command) === true;
  }

  /** The latest entries of the log of a system; undefined if there is no such system. */
  async readLog(id: number): Promise<LogPart | undefined> {
    return this.#byId.get(id)?.readLog();
  }

  /** Adds a system, and returns a function that removes it. */
  add(target: Found): () => void {
    const system = this.#add(target, false);
    return () => this.#remove(system);
  }

  /** Adds a system of a folder. It replaces an ended one of the same name, or else the oldest of too many. */
  addFound(target: Found): void {
    const ended = this.all.filter(({ isFound, isOffline, target: { socket } }) => {
      return isFound && (isOffline || socket?.exists === false);
    });
    const predecessor = ended.find(({ target: { socket, client: { machine } } }) => {
      return socket?.name === target.socket?.name && machine.label === target.client.machine.label;
    });
    const removed = predecessor === undefined ? ended.slice(0, -MAX_ENDED) : [predecessor];
    for (const system of removed) this.#remove(system);
    this.#add(target, true);
  }

  #remove(system: BoardSystem): void {
    system.close();
    this.#byId.delete(system.id);
  }

  #add(target: Found, isFound: boolean): BoardSystem {
    const id = this.#nextId;
    this.#nextId += 1;
    const board = {
      nextVersion: () => this.#nextVersion(),
      onChange: () => void (this.#gatherTimer ??= setTimeout(() => this.#notify(), GATHER_MS)),
    };
    const system = new BoardSystem(id, target, board, isFound);
    this.#byId.set(id, system);
    if (this.#readTimer !== undefined) system.setWatched(true);
    return system;
  }

  /** Responds to a page: as soon as something has changed since `version`, and after `waitMs` at the latest. */
  async newsSince(version: number, waitMs: number, signal: AbortSignal): Promise<News> {
    this.#startReading();
    const known = version <= this.#version ? version : 0; // from an earlier process whose clock was ahead
    const isChanged = (system: BoardSystem): boolean => known === 0 || system.version > known;
    const hasNews = (): boolean => this.all.some(isChanged);
    if (waitMs > 0 && known > 0 && !hasNews()) await this.#waitForNews(hasNews, waitMs, signal);
    this.#askedAt = performance.now();
    const systems = this.all.filter(isChanged).map((system) => system.updateSince(known));
    const ids = [...this.#byId.keys()];
    return {
      startedAt: this.#startedAt, version: this.#nextVersion(), now: Date.now(), by: BY, keepMs: KEEP_MS,
      ids, systems,
    };
  }

  /** Sends a command to one system, and returns its id there; without `id`, to all reachable systems that can do it. */
  send(command: string, reason: string, id?: number, values?: object): number | undefined {
    if (id !== undefined) return this.#byId.get(id)?.send(command, reason, values);
    for (const system of this.#byId.values()) {
      if (system.isReachable && system.canDo(command)) system.send(command, reason);
    }
    return undefined;
  }

  /** Sends the answer to a question of a system; undefined if there is no such system. */
  async answer(id: number, ...answer: Parameters<BoardSystem['answer']>): Promise<[number, object] | undefined> {
    return this.#byId.get(id)?.answer(...answer);
  }

  /** Reads the detail of all systems. */
  async read(): Promise<void> {
    await inParallel(this.all, (system) => system.read());
  }

  /** The current time unless that version is taken: sample times thus compare with versions. */
  #nextVersion(): number {
    this.#version = Math.max(this.#version + 1, steadyNow());
    return this.#version;
  }

  #waitForNews(hasNews: () => boolean, waitMs: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const end = (): void => {
        clearTimeout(timer);
        this.#waiters.delete(end);
        resolve();
      };
      const timer = setTimeout(end, waitMs);
      this.#waiters.set(end, hasNews);
      signal.addEventListener('abort', end);
    });
  }

  #notify(): void {
    this.#gatherTimer = undefined;
    for (const [end, hasNews] of this.#waiters) if (hasNews()) end();
  }

  /** Reads the details once a second until all pages are closed. */
  #startReading(): void {
    this.#askedAt = performance.now();
    if (this.#readTimer !== undefined) return;
    for (const system of this.#byId.values()) system.setWatched(true);
    this.#readTimer = setInterval(() => this.#readOrStop(), READ_MS);
    this.#readOrStop();
  }

  #readOrStop(): void {
    if (this.#waiters.size > 0 || performance.now() - this.#askedAt < CLOSED_MS) {
      return void this.read();
    }
    clearInterval(this.#readTimer);
    this.#readTimer = undefined;
    for (const system of this.#byId.values()) system.setWatched(false);
  }
}

// ───── Folders ───────────────────────────────────────────────────────────────────────────────────────────────────

const ELSEWHERE = 'elsewhere:1'; // refused by the far end, so that its status is never `offline`

/** Adds the systems of a folder. A machine that cannot be reached at the start is shown, and why, until it can. */
export async function followFolder(systems: Systems, folder: Folder, timeoutMs: number): Promise<void> {
  const { machine: { label } } = folder;
  const shown = { ...folder.at(ELSEWHERE, { timeoutMs }), name: label, id: label, title: label };
  let hide: (() => void) | undefined; // once there was a first search
  const searches = discover(folder, () => systems.keys, timeoutMs);
  const take = async (): Promise<void> => {
    const { value: { found, error } } = await searches.next() as IteratorYieldResult<Discovery>; // they never end
    for (const target of found) systems.addFound(target);
    if (hide === undefined && error !== '') warn(error);
    hide ??= error === '' ? () => {} : systems.add(shown);
    if (error === '') hide();
  };
  await take();
  void (async () => {
    for (;;) await take();
  })();
}
