// All systems on the board, those of folders as they come, and the long polls of the pages that wait for news of them.

import { warn } from '../shared/cli.ts';
import { Fleet } from '../shared/fleet.ts';
import { type Folder, type Found, inParallel } from '../shared/folder.ts';
import { KEEP_MS, steadyNow } from './series.ts';
import { BoardSystem, type Limits, type Update } from './system.ts';

const READ_MS = 1000;
const CLOSED_MS = 15_000; // a page that sends no request for this long counts as closed
const GATHER_MS = 50; // changes within this time are sent together
const WAIT_S = 30; // the time limit of a request that waits for a change
const MAX_ENDED = 16; // systems of a folder that stay on the board
const ELSEWHERE = 'elsewhere:1'; // refused by the far end, so that its status is never `offline`

/** The response to a page. */
export interface News {
  /** Identifies the process: after a restart, the page and the ids may differ. */
  startedAt: number;
  /** Pass it to the next call to receive what has changed since. */
  version: number;
  /** How long samples are kept. */
  keepMs: number;
  /** The ids of all systems. */
  ids: number[];
  /** The systems that have changed. */
  systems: Update[];
}

export class Systems {
  readonly #fleet: Fleet<BoardSystem> = new Fleet({
    create: (target) => this.#create(target), maxEnded: MAX_ENDED, waitS: WAIT_S, onReply: (system) => system.onReply(),
  });
  readonly #startedAt: number = Date.now();
  readonly #waiters: Map<() => void, () => boolean> = new Map(); // how each ends, and whether it has news
  #version = 0;
  #gatherTimer: NodeJS.Timeout | undefined;
  #readTimer: NodeJS.Timeout | undefined; // while a page is open
  #askedAt = 0; // when a page last sent a request
  #nextId = 0;

  constructor(targets: readonly Found[]) {
    for (const target of targets) this.#fleet.add(target, true);
  }

  get all(): BoardSystem[] {
    return this.#fleet.all;
  }

  #create(target: Found): BoardSystem {
    const board = {
      nextVersion: () => this.#nextVersion(),
      onChange: () => void (this.#gatherTimer ??= setTimeout(() => this.#notify(), GATHER_MS)),
    };
    const system = new BoardSystem(this.#nextId, target, board);
    this.#nextId += 1;
    if (this.#readTimer !== undefined) system.setWatched(true);
    return system;
  }

  /** Adds the systems of a folder, also later ones. A machine that cannot be reached at first is shown until it can. */
  async addAll(folder: Folder, timeoutMs: number): Promise<void> {
    const { machine: { label } } = folder;
    const errors = this.#fleet.addAll(folder, timeoutMs);
    const { value: first } = await errors.next();
    if (first) warn(first);
    const shown = { ...folder.at(ELSEWHERE, { timeoutMs }), name: label, id: label, title: label };
    const absence = first ? this.#fleet.add(shown) : null;
    void (async () => {
      for await (const error of errors) if (error === '' && absence !== null) this.#fleet.remove(absence);
    })();
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
    const ids = this.all.map(({ id }) => id);
    return {
      startedAt: this.#startedAt, version: this.#nextVersion(), keepMs: KEEP_MS, ids, systems,
    };
  }

  /** Sends a standard command to all reachable systems that can do it. */
  sendToAll(command: string, reason: string, limits: Limits): void {
    for (const system of this.all) {
      if (system.isReachable && system.canDo(command)) system.send(command, reason, undefined, limits);
    }
  }

  /** Reads the detail of all systems. */
  async read(): Promise<void> {
    await inParallel(this.all, (system) => system.readDetail());
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
    for (const system of this.all) system.setWatched(true);
    this.#readTimer = setInterval(() => this.#readOrStop(), READ_MS);
    this.#readOrStop();
  }

  #readOrStop(): void {
    if (this.#waiters.size > 0 || performance.now() - this.#askedAt < CLOSED_MS) {
      return void this.read();
    }
    clearInterval(this.#readTimer);
    this.#readTimer = undefined;
    for (const system of this.all) system.setWatched(false);
  }
}
