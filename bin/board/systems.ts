// All systems of the board, and the pages that wait for news of them.

import { existsSync } from 'node:fs';
import { CONTROL_COMMANDS } from '../shared/accepts.ts';
import { inParallel } from '../shared/targets.ts';
import { LIVE, limitSamples, RECORD, steadyNow } from './series.ts';
import { BoardSystem } from './system.ts';
import type { Target } from '../shared/targets.ts';
import type { Period } from './series.ts';
import type { Counts, Update } from './system.ts';

const READ_MS = 1000;
const LEFT_MS = 15_000; // a page that has not asked for this long is closed
const GATHER_MS = 50; // changes that come together are sent together
const MAX_ENDED = 16; // systems of a folder that are offline

/** What pages are sent. */
export interface News {
  /** Another one is another process, whose pages and systems may be others. */
  startedAt: number;
  /** To ask for what comes after. */
  version: number;
  /** Milliseconds: a phone's clock may differ. */
  now: number;
  /** For how long samples are kept. */
  keepMs: number;
  /** All systems that there are. */
  ids: number[];
  /** Those that have changed. */
  systems: Update[];
}

export class Board {
  readonly #systems: Map<number, BoardSystem> = new Map(); // by id, the latest last
  readonly #startedAt: number = Date.now();
  readonly #waiters: Set<() => void> = new Set();
  #version = 0;
  #gatherTimer: NodeJS.Timeout | undefined;
  #readTimer: NodeJS.Timeout | undefined; // while a page is open
  #askedAt = 0;
  #added = 0;
  readonly #period: Period;

  /** @param isRecording Whether samples are taken while no page is open. */
  constructor(targets: readonly Target[], isRecording: boolean = false) {
    this.#period = isRecording ? RECORD : LIVE;
    for (const target of targets) this.#add(target, false);
    if (!isRecording) return;
    setInterval(() => void this.read(), RECORD.intervalMs);
    void this.read();
  }

  get size(): number {
    return this.#systems.size;
  }

  get systems(): BoardSystem[] {
    return [...this.#systems.values()];
  }

  /** The URLs of all systems. */
  get urls(): Set<string> {
    return new Set(this.systems.map(({ url }) => url));
  }

  /** Whether a system takes a command: one of the four, or one that it declares. All together take the four alone. */
  takes(command: string, id?: number): boolean {
    const isControl = CONTROL_COMMANDS.includes(command);
    if (id === undefined) return isControl;
    const system = this.#systems.get(id);
    return system !== undefined && (isControl || system.declares(command));
  }

  /** Adds a system of a folder. It replaces one of the same name that has ended, and the first of too many others. */
  addFound(target: Target): void {
    const ended = this.systems.filter(({ isFound, isOffline, url }) => {
      return isFound && (isOffline || !existsSync(url.replace('unix:', '')));
    });
    const name = nameOf(target.client.baseUrl);
    const predecessor = ended.find(({ url }) => nameOf(url) === name);
    const removed = predecessor === undefined ? ended.slice(0, -MAX_ENDED) : [predecessor];
    for (const system of removed) {
      system.close();
      this.#systems.delete(system.id);
    }
    this.#add(target, true, predecessor?.counts);
  }

  #add(target: Target, isFound: boolean, counts?: Counts): void {
    const id = this.#added;
    this.#added += 1;
    const listener = {
      period: this.#period,
      nextVersion: () => this.#nextVersion(),
      onChange: () => void (this.#gatherTimer ??= setTimeout(() => this.#tell(), GATHER_MS)),
    };
    const system = new BoardSystem(id, target, listener, isFound, counts);
    this.#systems.set(id, system);
    if (this.#readTimer !== undefined) system.setWatched(true);
  }

  /** Responds to a page, at once if something has changed since a version, otherwise after `waitMs` at the latest. */
  async newsSince(version: number, waitMs: number, signal: AbortSignal): Promise<News> {
    this.#startReading();
    const known = version <= this.#version ? version : 0; // it is of another process, whose clock was ahead
    const isChanged = (system: BoardSystem): boolean => known === 0 || system.version > known;
    const changed = (): BoardSystem[] => this.systems.filter(isChanged);
    if (waitMs > 0 && known > 0 && changed().length === 0) await this.#change(waitMs, signal);
    this.#askedAt = performance.now();
    const systems = changed().map((system) => system.updateSince(known));
    const ids = [...this.#systems.keys()];
    const { keepMs } = this.#period;
    return { startedAt: this.#startedAt, version: this.#nextVersion(), now: Date.now(), keepMs, ids, systems };
  }

  /**
   * Sends a command to a system, with the arguments of one that it declares, or to all that are reachable. Returns the
   * number that the one system counts it by.
   */
  send(command: string, reason: string, id?: number, values?: object): number | undefined {
    if (id !== undefined) return this.#systems.get(id)?.send(command, reason, values);
    for (const system of this.#systems.values()) if (system.isReachable) system.send(command, reason);
    return undefined;
  }

  /** Reads the detail of all systems. */
  async read(): Promise<void> {
    const systems = this.systems;
    limitSamples(systems.flatMap(({ series }) => [...series]));
    await inParallel(systems, (system) => system.read());
  }

  /** The time, if nothing else happens in that millisecond: so samples need no version of their own. */
  #nextVersion(): number {
    this.#version = Math.max(this.#version + 1, steadyNow());
    return this.#version;
  }

  #change(waitMs: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const end = (): void => {
        clearTimeout(timer);
        this.#waiters.delete(end);
        resolve();
      };
      const timer = setTimeout(end, waitMs);
      this.#waiters.add(end);
      signal.addEventListener('abort', end);
    });
  }

  #tell(): void {
    this.#gatherTimer = undefined;
    for (const end of this.#waiters) end();
  }

  /** Systems are asked for their detail only while a page is open. */
  #startReading(): void {
    this.#askedAt = performance.now();
    if (this.#readTimer !== undefined) return;
    for (const system of this.#systems.values()) system.setWatched(true);
    this.#readTimer = setInterval(() => this.#readOrEnd(), READ_MS);
    this.#readOrEnd();
  }

  #readOrEnd(): void {
    if (this.#waiters.size > 0 || performance.now() - this.#askedAt < LEFT_MS) {
      return void this.read();
    }
    clearInterval(this.#readTimer);
    this.#readTimer = undefined;
    for (const system of this.#systems.values()) system.setWatched(false);
  }
}

/** The name of a socket without its process id: that of a program that was started again is another. */
function nameOf(url: string): string {
  return url.replace(/-\d+\.sock$/, '');
}
