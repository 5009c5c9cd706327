// Follows what systems report. All waits on a system share one connection.

import { EventEmitter, on } from 'node:events';
import { setImmediate } from 'node:timers/promises';
import { observe } from '../shared/reach/observe.ts';
import type { PrintableClient, PrintableReply } from '../shared/reach/replies.ts';

const REQUEST_S = 5; // per request: a program that neither polls nor yields reports changes only when queried

export class Feeds {
  readonly #feeds: Map<string, Feed> = new Map(); // by the key of the client

  /** Yields the current report and each new one, until aborted. With 'detail', queries once a second. */
  async *follow(client: PrintableClient, query: 'info' | 'detail', signal: AbortSignal): AsyncGenerator<PrintableReply> {
    const { key } = client;
    const feed = this.#feeds.get(key) ?? new Feed(client);
    this.#feeds.set(key, feed);
    feed.client = client; // its token may have changed
    try {
      const replies = on(feed.replies, query, { signal });
      feed.restart(); // a pending response may be older than this wait
      for await (const [reply] of replies) yield reply as PrintableReply;
    } catch (error) {
      if (!signal.aborted) throw error;
    } finally {
      if (!feed.restart()) this.#feeds.delete(key);
    }
  }
}

class Feed {
  client: PrintableClient;
  /** Emits each reply under the names of both queries. */
  readonly replies: EventEmitter = new EventEmitter().setMaxListeners(0);
  #round = new AbortController();

  constructor(client: PrintableClient) {
    this.client = client;
  }

  /** Requests what the listeners need now. Returns whether there are any. */
  restart(): boolean {
    this.#round.abort();
    this.#round = new AbortController();
    const isHeard = this.replies.eventNames().length > 0;
    if (isHeard) void this.#follow(this.#round.signal);
    return isHeard;
  }

  async #follow(signal: AbortSignal): Promise<void> {
    await setImmediate(); // waits that begin or end at the same time share the round
    const isOnDetail = this.replies.listenerCount('detail') > 0;
    const [query, waitS] = isOnDetail ? ['detail' as const] : ['info' as const, REQUEST_S];
    for await (const { reply, isNew } of observe(this.client, query, signal, waitS)) {
      if (!isNew) continue;
      this.replies.emit('info', reply);
      this.replies.emit('detail', reply);
    }
  }
}
