// The systems that a tool follows: given ones, and those of folders as they come and go. The latest that have ended stay.

import { setTimeout as sleep } from 'node:timers/promises';
import { discover } from './via.ts';
import type { PrintableReply } from './client.ts';
import type { Folder, Found } from './folder.ts';
import type { FollowedSystem } from './system.ts';

const RETRY_MS = 1000; // between two requests to a system that is offline

interface Settings<T> {
  create(target: Found): T;
  /** How many systems stay that have left their folders: the latest ones. */
  maxEnded: number;
  /** Whether an ended system stays although a new one has its name. */
  keepsNamesakes?: boolean;
  /** Each request waits this long for a change; without it, systems are not followed. */
  waitS?: number;
  /** Called with each reply to a system that is followed. */
  onReply?(system: T, reply: PrintableReply): void;
}

export class Fleet<T extends FollowedSystem> {
  readonly #settings: Settings<T>;
  readonly #systems: Map<T, AbortController> = new Map(); // how to end its requests; the latest last
  readonly #ended: WeakSet<T> = new WeakSet();
  readonly #lasting: WeakSet<T> = new WeakSet();

  constructor(settings: Settings<T>) {
    this.#settings = settings;
  }

  /** Those that were added last, or again, come last. */
  get all(): T[] {
    return [...this.#systems.keys()];
  }

  /** Whether it has left its folder. A system that comes later at the same path is another one. */
  hasEnded(system: T): boolean {
    return !this.#lasting.has(system) && (this.#ended.has(system) || system.hasLeft);
  }

  /** Notes which systems have left their folders. Those that are followed need no such call. */
  noteEnds(): void {
    for (const system of this.all) {
      if (system.target.socket?.exists === false) this.#ended.add(system);
    }
  }

  /**
   * Returns the system at an address. A new one replaces an ended one of its name, or else the oldest of too many.
   *
   * @param isLasting It was given: it stays, and may come back at its address.
   */
  add(target: Found, isLasting: boolean = false): T {
    const present = this.all.find((one) => one.client.key === target.client.key && !this.hasEnded(one));
    if (present !== undefined) {
      const end = this.#systems.get(present) as AbortController;
      this.#systems.delete(present); // it becomes the latest
      this.#systems.set(present, end);
      present.target = target;
      return present;
    }
    const ended = this.all.filter((one) => { // the socket of a system that ends is removed before that is noted
      const { reply, target: { socket } } = one;
      if (this.#lasting.has(one)) return false;
      return this.hasEnded(one) || socket?.exists === false || (socket !== undefined && reply?.fault === 'offline');
    });
    const { socket, client: { machine } } = target;
    const predecessor = ended.find(({ target: { socket: before }, client }) => {
      return before?.name === socket?.name && client.machine.label === machine.label;
    });
    const { maxEnded, keepsNamesakes = false } = this.#settings;
    const isReplaced = predecessor !== undefined && !keepsNamesakes;
    for (const system of isReplaced ? [predecessor] : ended.slice(0, -maxEnded)) this.remove(system);
    const system = this.#settings.create(target);
    const end = new AbortController();
    this.#systems.set(system, end);
    if (isLasting) this.#lasting.add(system);
    void this.#follow(system, end.signal);
    return system;
  }

  /** Keeps adding the systems of a folder, and yields why it cannot be searched; empty if it can. */
  async *addAll(folder: Folder, timeoutMs: number, signal?: AbortSignal): AsyncGenerator<string, void> {
    const known = (): Set<string> => new Set(this.all.flatMap((one) => this.hasEnded(one) ? [] : [one.client.key]));
    for await (const { found, error } of discover(folder, known, timeoutMs, signal)) {
      for (const target of found) this.add(target);
      yield error;
    }
  }

  remove(system: T): void {
    this.#systems.get(system)?.abort();
    this.#systems.delete(system);
  }

  /** Ends all requests. */
  close(): void {
    for (const end of this.#systems.values()) end.abort();
  }

  async #follow(system: T, signal: AbortSignal): Promise<void> {
    const { waitS, onReply } = this.#settings;
    if (waitS === undefined) return;
    for await (const reply of system.follow(signal, waitS)) {
      onReply?.(system, reply);
      if (reply.ok) continue;
      const isGone = reply.fault === 'offline' || system.client.machine.label !== ''; // a far end need not refuse
      if (isGone && this.hasEnded(system)) return void this.#ended.add(system);
      await sleep(RETRY_MS, undefined, { signal }).catch(() => {});
    }
  }
}
