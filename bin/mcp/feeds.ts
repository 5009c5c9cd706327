// Follows what systems report. All waits on a system share one connection.

import { setImmediate } from 'node:timers/promises';
import { observe } from '../shared/reach/observe.ts';
import type { PrintableClient, PrintableReply } from '../shared/reach/replies.ts';

const REQUEST_S = 5; // per request: a program that neither polls nor yields reports changes only when queried
const DETAIL_S = 1; // between queries of the detail: servers do not notify clients of its changes

export interface Listener {
  /** Whether it also needs the detail, once a second. */
  isOnDetail: boolean;
  note(reply: PrintableReply): void;
}

export class Feeds {
  readonly #feeds: Map<string, Feed> = new Map(); // by the key of the client

  /** Calls `note` with the current report and each new one. Returns a function that ends this. */
  subscribe(client: PrintableClient, listener: Listener): () => void {
    const { key } = client;
    const feed = this.#feeds.get(key) ?? new Feed(client);
    this.#feeds.set(key, feed);
    feed.add(client, listener);
    return () => {
      if (feed.remove(listener) === 0) this.#feeds.delete(key);
    };
  }
}

class Feed {
  readonly #listeners: Set<Listener> = new Set();
  #client: PrintableClient;
  #round = new AbortController();

  constructor(client: PrintableClient) {
    this.#client = client;
  }

  /** @param client Replaces the previous one: its token may have changed. */
  add(client: PrintableClient, listener: Listener): void {
    this.#listeners.add(listener);
    this.#client = client;
    this.#restart(); // a pending response may be older than the listener
  }

  /** Returns the number of listeners that remain. */
  remove(listener: Listener): number {
    this.#listeners.delete(listener);
    if (this.#listeners.size === 0) this.#round.abort();
    else if (listener.isOnDetail) this.#restart();
    return this.#listeners.size;
  }

  #restart(): void {
    this.#round.abort();
    this.#round = new AbortController();
    void this.#follow(this.#round.signal);
  }

  async #follow(signal: AbortSignal): Promise<void> {
    await setImmediate(); // listeners that join at the same time share the round
    const client = this.#client;
    const isOnDetail = [...this.#listeners].some((listener) => listener.isOnDetail);
    for await (const { reply, isNew } of observe(client, 'info', signal, isOnDetail ? DETAIL_S : REQUEST_S)) {
      if (!isNew && !isOnDetail) continue;
      const latest = isNew ? reply : await client.ask({ signal });
      if (signal.aborted) return;
      for (const listener of this.#listeners) listener.note(latest);
    }
  }
}
