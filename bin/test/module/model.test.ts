// A random program polls, waits, blocks, posts, reports, changes its status, loses its thread, closes its server and
// opens another, while clients send all kinds of requests. What they see must agree with a model. SOAK_SECONDS=600
// runs for that long.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { runHost } from '../host.ts';
import { COMMANDS, HOST, INFO, STATUS, Connection, head, withBody } from '../http.ts';
import { LIMIT, until } from '../wait.ts';
import { SEED, oneOf, randomNumbers } from './helpers.ts';
import { History, modelHost } from './model.ts';
import type { HttpResponse } from '../http.ts';
import type { Event, Exchange, Post } from './model.ts';
import type { TestContext } from 'node:test';

const SECONDS = Number(process.env['SOAK_SECONDS'] ?? 15);
const SIZES = [16, 1, 1000, 3]; // of the queues, in turn
const CLIENTS = 40; // of which all may wait
const CHARACTERS = ['a', '0', ' ', '"', '\\', '\n', '\x7f', 'é', 'ß', '€', '\u2028', '\ufeff', '中', '😀', '🇩🇪'];
const LEAST: Record<string, number> = { // what must happen how often
  servers: 3, deaths: 3, commands: 200, notes: 50, 'own commands': 50, outcomes: 50, failures: 10, 'equal tags': 10,
  overtaken: 5, expired: 3, 'in time': 20, releases: 1, 'releases in vain': 5, 'shut down': 5,
};
const MAX_EXTRA_MS = 600_000; // for that, on a busy machine
const RUN_SECONDS = SECONDS > 15 ? 60 : 5; // of a host, before its history is checked
const LIFE_MS = 1200; // of a server

describe('A program and its clients', { timeout: 3 * LIMIT.timeout + SECONDS * 1000 }, () => {
  it(`agree with a model: for ${SECONDS} s, with the seed ${SEED}`, async (t) => {
    const counts: Record<string, number> = {};
    const end = Date.now() + SECONDS * 1000;
    const missing = (): string[] => Object.keys(LEAST).filter((what) => (counts[what] ?? 0) < Number(LEAST[what]));
    const isDue = (): boolean => Date.now() < end + (missing().length === 0 ? 0 : MAX_EXTRA_MS);
    for (let seed = SEED; isDue(); seed += 1) {
      const wasAborted = await run(t, seed, counts);
      if (wasAborted) counts['aborted by Node'] = (counts['aborted by Node'] ?? 0) + 1;
    }
    console.log(JSON.stringify({ seed: SEED, ...counts }));
    assert.deepEqual(missing(), []);
  });

  /** Returns whether Node 20 has aborted the host, because a thread was terminated in the middle of the HTTP parser. */
  async function run(t: TestContext, seed: number, counts: Record<string, number>): Promise<boolean> {
    const history = new History();
    const host = runHost(t, modelHost(seed, SIZES, SECONDS > 15 ? 10_000 : LIFE_MS));
    let port = 0;
    let isOver = false;
    const heard = (async () => {
      for (;;) {
        const events = await host.hear<Event[]>();
        history.note('handle', events);
        for (const [kind, , , ...rest] of events) if (kind === 'open') [port] = rest;
      }
    })();
    heard.catch(() => (isOver = true)); // it has ended, or has said something that is no JSON
    await until(() => port > 0 || isOver);
    const end = setTimeout(() => (isOver = true), RUN_SECONDS * 1000);
    const clients = Array.from({ length: CLIENTS }, async (_, number) => {
      const client = new Client(history, () => port, seed + 10 + number, number);
      while (!isOver) await client.act();
      client.leave();
    });
    try {
      await Promise.all(clients);
      host.order('end');
      const { code, stderr } = await host.ended;
      const wasAborted = stderr.startsWith('FATAL ERROR: v8::ToLocalChecked Empty MaybeLocal');
      if (!wasAborted) {
        await assert.rejects(heard, /^Error: The host has ended/);
        history.check(counts);
        assert.deepEqual([code, stderr], [0, '']);
      }
      return wasAborted;
    } catch (error) {
      throw new Error(`seed ${seed}; its history is ${history.write(seed)}`, { cause: error });
    } finally {
      isOver = true;
      clearTimeout(end);
    }
  }
});

describe('The model', LIMIT, () => {
  /** Client 1 sends two notes. The second is taken by another server than the one whose shutdown comes first. */
  function check(first: { sentAt: number; receivedAt: number; error?: string }, shutdown: { error?: string }): void {
    const history = new History();
    const rest = { text: undefined, by: undefined, expires: 0, isRelease: false };
    const post = (client: number, number: number, command: string, sentAt: number): void => {
      history.note('post', { client, number, name: `${client}.${number}`, command, sentAt, ...rest });
    };
    const respond = (name: string, sentAt: number, receivedAt: number, error?: string): void => {
      const response = error === undefined
        ? { statusCode: 200, tag: '', wasGranted: false, body: { result: 'ok' } }
        : { statusCode: 500, tag: '', wasGranted: true, body: { error: `note failed: ${error}` } };
      const exchange = { sentAt, receivedAt, waitMs: error === undefined ? 0 : 2000 };
      history.note('notePost', name === '2.1' ? 'four' : 'own', name, error !== undefined, response, exchange);
    };
    const isLate = first.sentAt > 100;
    history.note('handle', [['create', 10, 10, 'one', 16]]);
    if (!isLate) post(1, 1, 'note', first.sentAt);
    post(2, 1, 'shutdown', 50);
    respond('2.1', 50, 55);
    const id = isLate ? 'one-1' : 'one-2';
    const end: Event[] = [['done', 61, 61, id, shutdown], ['closing', 62, 62], ['drained', 62, 80, 'one']];
    history.note('handle', [['take', 60, 60, id, 'shutdown', null, '2.1', null, 60], ...end]);
    history.note('handle', [['create', 100, 100, 'two', 16]]);
    if (isLate) post(1, 1, 'note', first.sentAt);
    respond('1.1', first.sentAt, first.receivedAt, first.error);
    post(1, 2, 'note', 150);
    respond('1.2', 150, 151);
    history.note('handle', [['take', 160, 160, 'two-4', 'note', null, '1.2', null, 160], ['beat', 200, 200]]);
    history.check({});
  }
  const error = 'the program has shut down';

  it('hears a text with the line separators of Unicode as one value', async (t) => {
    const host = runHost(t, `say('\\u2028\\u2029');`);
    assert.equal(await host.hear(), '\u2028\u2029');
    await host.ends();
  });

  it('accepts that a shutdown has failed a note whose response is read after the start of the next server', () => {
    check({ sentAt: 20, receivedAt: 90, error }, {});
    check({ sentAt: 20, receivedAt: 120, error }, {});
  });

  it('finds a note that is taken before an earlier one of its client', () => {
    const isFound = /^AssertionError.*: 1\.2 was taken before/;
    assert.throws(() => check({ sentAt: 20, receivedAt: 90, error }, { error: 'cancelled' }), isFound);
    assert.throws(() => check({ sentAt: 110, receivedAt: 120 }, {}), isFound);
  });
});

/** A request, and what the client knows of it. */
interface Request {
  bytes: string;
  known: string | null; // the tag of a GET
  post: Post | null; // that has a name
}

function laneOf(bytes: string): 'four' | 'own' { return bytes.includes('/api/note') ? 'own' : 'four'; }

/** Sends one request after the other, most on a connection that is kept. */
class Client {
  readonly #history: History;
  readonly #getPort: () => number;
  readonly #number: number;
  readonly #random: () => number;
  #connection: Connection | null = null;
  #isConnected = false;
  #requests = 0; // on this connection
  #posts = 0;
  #status: string | null = null; // the latest, as a tag
  #tag: string | null = null; // of the latest information

  constructor(history: History, getPort: () => number, seed: number, number: number) {
    this.#history = history;
    this.#getPort = getPort;
    this.#number = number;
    this.#random = randomNumbers(seed);
  }

  async act(): Promise<void> {
    const random = this.#random;
    const choice = random();
    if (this.#requests > 100 || random() < 0.1) this.leave();
    if (choice < 0.2) await this.#send(this.#getRequest(STATUS));
    else if (choice < 0.24) await this.#send(this.#getRequest('HEAD /api/status'));
    else if (choice < 0.38) await this.#send(this.#getRequest(INFO));
    else if (choice < 0.85) await this.#send(this.#postRequest());
    else await this.#abort();
    if (random() < 0.5) await sleep(this.#below(4));
  }

  leave(): void {
    this.#connection?.socket.destroy();
    this.#connection = null;
  }

  #below(limit: number): number { return Math.floor(this.#random() * limit); }

  #connect(): Connection {
    if (this.#connection !== null) return this.#connection;
    this.#connection = new Connection(this.#getPort());
    this.#requests = 0;
    this.#isConnected = false;
    this.#connection.socket.on('connect', () => (this.#isConnected = true));
    return this.#connection;
  }

  /** Resolves with null if the connection is lost. */
  async #ask(bytes: string): Promise<[HttpResponse | null, Exchange]> {
    const connection = this.#connect();
    this.#requests += 1;
    const sentAt = Date.now();
    const response = await connection.request(bytes).catch((error: Error) => {
      if (!error.message.startsWith('the connection was closed after')) throw error;
      return null;
    });
    const [, seconds = 0] = /=(\d+)/.exec(String(response?.headers['preference-applied'])) ?? [];
    const exchange = { sentAt, receivedAt: Date.now(), waitMs: Number(seconds) * 1000 };
    if (response === null || response.headers.connection === 'close') this.leave();
    if (response !== null) return [response, exchange];
    this.#history.note('noteLoss', exchange, this.#isConnected);
    await sleep(50);
    return [null, exchange];
  }

  #settle({ post }: Request, outcome: 'unknown' | 'never'): void {
    if (post !== null) this.#history.note('settle', post.name, outcome, Date.now());
  }

  /** Before a request is sent that is not to be refused. */
  #expect({ bytes, post }: Request): void {
    if (bytes.startsWith('POST') && post === null) this.#history.note('countNameless', laneOf(bytes), 1);
  }

  #note(request: Request, response: HttpResponse | null, exchange: Exchange): void {
    const { bytes, known, post } = request;
    if (response === null) return this.#settle(request, 'unknown');
    const { statusCode, headers: { etag: tag = '', 'preference-applied': granted }, body } = response;
    const noted = { statusCode, tag, wasGranted: granted !== undefined, body };
    if (bytes.startsWith('POST')) {
      const isPatient = bytes.includes('Prefer:');
      return this.#history.note('notePost', laneOf(bytes), post?.name ?? null, isPatient, noted, exchange);
    }
    const isInfo = bytes.startsWith(INFO);
    this.#history.note('noteGet', isInfo, known, noted, exchange);
    if (isInfo) this.#tag = tag;
    else this.#status = tag;
  }

  async #send(request: Request): Promise<void> {
    this.#expect(request);
    this.#note(request, ...await this.#ask(request.bytes));
  }

  /** Half of these name what the client knows, and some of these wait. */
  #getRequest(line: string): Request {
    const tag = line === INFO ? this.#tag : this.#status;
    const known = tag !== null && this.#random() < 0.5 ? tag : null;
    const fields = known === null ? [] : [`If-None-Match: "x", ${known}`];
    if (this.#random() < 0.5) fields.push('Prefer: wait=1');
    return { bytes: head(line, HOST, ...fields), known, post: null };
  }

  /** Most have a name, and a third wait. */
  #postRequest(): Request {
    const random = this.#random;
    const command = oneOf(random, [...COMMANDS, 'note', 'note', 'note', 'note']);
    const expires = random() < 0.4 ? 1 : 0;
    const text = command === 'note' ? this.#text(random() < 0.2 ? 3950 : 20) : undefined;
    const waits = random() < (expires > 0 ? 0.8 : 0.2); // longer than it takes to expire
    const fields = waits ? [HOST, `Prefer: wait=${1 + expires + this.#below(2)}`] : [HOST];
    const write = (line: string): string => {
      if (text === undefined) return (random() < 0.5 ? withBody : head)(line, ...fields);
      const body = Buffer.from(JSON.stringify({ text }));
      return head(line, ...fields, `Content-Length: ${body.length}`) + body.toString('latin1');
    };
    if (expires === 0 && random() < 0.1) return { bytes: write(`POST /api/${command}`), known: null, post: null };
    const by = oneOf(random, ['ana@läptop', 'ana@läptop', 'ben', undefined]);
    const [client, number] = [this.#number, this.#posts += 1];
    const isRelease = command === 'resume' && random() < 0.6;
    const name = `${client}.${number}`;
    const post = { client, number, name, command, text, by, expires, isRelease, sentAt: Date.now() };
    this.#history.note('post', post);
    const query = new URLSearchParams({ ...(by !== undefined && { by }), reason: post.name });
    if (expires > 0) query.set('expires', String(expires));
    if (isRelease) query.set('mine', 'true');
    return { bytes: write(`POST /api/${command}?${query}`), known: null, post };
  }

  /** A text whose JSON has up to so many bytes. */
  #text(most: number): string {
    let text = '';
    for (let left = this.#below(most); left > 0;) {
      const character = oneOf(this.#random, CHARACTERS);
      left -= Buffer.byteLength(JSON.stringify(character)) - 2;
      if (left >= 0) text += character;
    }
    return text;
  }

  /** Sends a request and goes away. */
  async #abort(): Promise<void> {
    const request = this.#postRequest();
    const { bytes } = request;
    this.#expect(request);
    const { socket } = this.#connect();
    const isCut = this.#random() < 0.2;
    socket.write(isCut ? bytes.slice(0, this.#below(bytes.length)) : bytes, 'latin1');
    await sleep(this.#below(20));
    if (this.#random() < 0.5) socket.resetAndDestroy();
    this.leave();
    this.#settle(request, isCut ? 'never' : 'unknown');
  }
}
