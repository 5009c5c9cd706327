// The systems that a tool follows: given ones, and those of folders as they come and go. Some that have ended stay.

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

/** What a fleet knows of a system. */
interface Place {
  end: AbortController; // of its requests
  isLasting: boolean; // it was given: it stays, and may come back at its address
  hasEnded: boolean;
}

export class Fleet<T extends FollowedSystem> {
  readonly #settings: Settings<T>;
  readonly #places: Map<T, Place> = new Map(); // the latest last

  constructor(settings: Settings<T>) {
    this.#settings = settings;
  }

  /** Those that were added last, or again, come last. */
  get all(): T[] {
    return [...this.#places.keys()];
  }

  /** Whether it has left its folder. A system that comes later at the same path is another one. */
  hasEnded(system: T): boolean {
    const { isLasting = false, hasEnded = true } = this.#places.get(system) ?? {};
    return !isLasting && (hasEnded || system.hasLeft);
  }

  /** Notes which systems have left their folders. Those that are followed need no such call. */
  noteEnds(): void {
    for (const [system, place] of this.#places) {
      if (system.target.socket?.exists === false) place.hasEnded = true;
    }
  }

  /**
   * Returns the system at an address. A new one replaces an ended one of its name, or else the oldest of too many.
   *
   * @param isLasting Whether it was given: then it stays, and may come back at its address.
   */
  add(target: Found, isLasting: boolean = false): T {
    const present = this.all.find((one) => one.client.key === target.client.key && !this.hasEnded(one));
    if (present !== undefined) {
      const place = this.#places.get(present) as Place;
      this.#places.delete(present); // it becomes the latest
      this.#places.set(present, place);
      present.target = target;
      return present;
    }
    const ended = [...this.#places].flatMap(([one, { isLasting, hasEnded }]) => {
      const { reply, target: { socket } } = one; // the socket of a system that ends is removed before that is noted
      const isAway = socket !== undefined && (!socket.exists || reply?.fault === 'offline');
      return !isLasting && (hasEnded || isAway) ? [one] : [];
    });
    const { socket, client: { machine } } = target;
    const predecessor = ended.find(({ target: { socket: before }, client }) => {
      return before?.name === socket?.name && client.machine.label === machine.label;
    });
    const { maxEnded, keepsNamesakes = false } = this.#settings;
    const isReplaced = predecessor !== undefined && !keepsNamesakes;
    for (const system of isReplaced ? [predecessor] : ended.slice(0, -maxEnded)) this.remove(system);
    const system = this.#settings.create(target);
    const place = { end: new AbortController(), isLasting, hasEnded: false };
    this.#places.set(system, place);
    void this.#follow(system, place);
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
    this.#places.get(system)?.end.abort();
    this.#places.delete(system);
  }

  /** Ends all requests. */
  close(): void {
    for (const { end } of this.#places.values()) end.abort();
  }

  async #follow(system: T, place: Place): Promise<void> {
    const { waitS, onReply } = this.#settings;
    const { signal } = place.end;
    if (waitS === undefined) return;
    for await (const reply of system.follow(signal, waitS)) {
      onReply?.(system, reply);
      if (reply.ok) continue;
      const isGone = reply.fault === 'offline' || system.client.machine.label !== ''; // a far end need not refuse
      place.hasEnded = isGone && this.hasEnded(system);
      if (place.hasEnded) return;
      await sleep(RETRY_MS, undefined, { signal }).catch(() => {});
    }
  }
}
