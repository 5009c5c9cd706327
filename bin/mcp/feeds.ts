// What systems report while somebody waits: one connection to a system serves all waits on it.

import { setImmediate } from 'node:timers/promises';
import { observe } from '../shared/observe.ts';
import type { PrintableClient, PrintableReply } from '../shared/replies.ts';

const REQUEST_S = 5; // of each request: a program that neither polls nor yields reports no change unless asked
const DETAIL_S = 1; // between two looks at the detail, of whose changes no server sends news

export interface Listener {
  /** Whether it also wants to know the detail, once a second. */
  isOnDetail: boolean;
  note(reply: PrintableReply): void;
}

export class Feeds {
  readonly #feeds: Map<string, Feed> = new Map(); // by URL

  /** Calls `note` with each reply that has news, the first to a request after this call. Returns what ends that. */
  subscribe(client: PrintableClient, listener: Listener): () => void {
    const { baseUrl } = client;
    const feed = this.#feeds.get(baseUrl) ?? new Feed(client);
    this.#feeds.set(baseUrl, feed);
    feed.add(client, listener);
    return () => {
      if (feed.remove(listener) === 0) this.#feeds.delete(baseUrl);
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

  /** @param client The latest one, because its token may be new. */
  add(client: PrintableClient, listener: Listener): void {
    this.#listeners.add(listener);
    this.#client = client;
    this.#restart(); // the reply of this round may be older than the listener
  }

  /** Returns how many are left. */
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
    await setImmediate(); // who joins at the same time shares the round
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
