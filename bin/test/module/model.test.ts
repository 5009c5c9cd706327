// A random program polls, waits, blocks, posts, reports, changes its status, loses its thread, closes its server and
// opens another, while clients send all kinds of requests. Now and then the program or all clients are stopped, for a
// second or, in a long run, up to 15. Everything they see must agree with a model, and nothing may be late by more than
// the stop. SOAK_SECONDS=600 runs for that long, and prints memory and counts every 30 seconds.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import { LIMIT, until } from '../helpers.ts';
import { runHost } from '../host.ts';
import { COMMANDS, HOST, INFO, STATUS, Connection, head, withBody } from '../http.ts';
import { SEED, oneOf, randomNumbers } from './helpers.ts';
import { lacks } from '../needs.ts';
import { Model, modelHost } from './model.ts';
import type { HttpResponse } from '../http.ts';
import type { Exchange, Post } from './model.ts';
import type { TestContext } from 'node:test';

const SECONDS = Number(process.env['SOAK_SECONDS'] ?? 15);
const SIZES = [16, 1, 1000, 3]; // of the queues, in turn
const CLIENTS = 40; // of which all may wait
const CHARACTERS = ['a', '0', ' ', '"', '\\', '\n', '\x7f', 'é', 'ß', '€', '\u2028', '\ufeff', '中', '😀', '🇩🇪'];
const STOPS = lacks('Unix') ? [] : ['stops of the program', 'stops of the clients'];
const EVENTS = [
  'servers', 'deaths', 'commands', 'notes', 'own commands', 'outcomes', 'failures', 'equal tags', 'waited in vain', ...STOPS,
];
const MAX_EXTRA_MS = 120_000; // until each of them has happened, on a busy machine
const LIFE_MS = 1200; // of a host
const STOP_MS: [least: number, most: number] = [1000, SECONDS > 15 ? 15_000 : 1500];
const RUN_MS: [least: number, most: number] = [300, SECONDS > 15 ? 10_000 : 1000]; // between two stops

describe('A program and its clients', { timeout: LIMIT.timeout + SECONDS * 1000 }, () => {
  it(`agree with a model: for ${SECONDS} s, with the seed ${SEED}`, async (t) => {
    const counts: Record<string, number> = {};
    const end = Date.now() + SECONDS * 1000;
    const missing = (events: readonly string[] = EVENTS): string[] => events.filter((what) => !(what in counts));
    const isDue = (events?: readonly string[]): boolean => { // on a busy machine, later than the end
      return Date.now() < end + (missing(events).length === 0 ? 0 : MAX_EXTRA_MS);
    };
    for (let seed = SEED; isDue(); seed += 1) {
      const wasAborted = await run(t, seed, isDue, counts);
      if (wasAborted) counts['aborted by Node'] = (counts['aborted by Node'] ?? 0) + 1;
    }
    console.log(JSON.stringify({ seed: SEED, ...counts }));
    assert.deepEqual(missing(), []);
  });

  /** Returns whether Node 20 has aborted the host, because a thread was terminated in the middle of the HTTP parser. */
  async function run(
    t: TestContext,
    seed: number,
    isDue: (events?: readonly string[]) => boolean,
    counts: Record<string, number>,
  ): Promise<boolean> {
    const model = new Model(counts);
    const host = runHost(t, modelHost(seed, SIZES, SECONDS > 15 ? 10_000 : LIFE_MS));
    let hasEnded = false;
    const heard = (async () => {
      for (;;) model.handle(await host.hear());
    })().catch(() => {}); // it has ended
    void host.ended.then(() => (hasEnded = true));
    await until(() => model.port > 0 || model.isOver || hasEnded);
    const clients = Array.from({ length: CLIENTS }, async (_, number) => {
      const client = new Client(model, seed + 10 + number, number);
      while (!model.isOver && !hasEnded && isDue()) await client.act();
      client.leave();
    });
    const stopped = stopAtRandom(model, host.process.pid, seed + 2, () => !model.isOver && !hasEnded && isDue(STOPS));
    const timer = setInterval(() => {
      const [rss, heap] = model.memory ?? [0, 0];
      console.log(JSON.stringify({ rss, heap, 'rss of the clients': process.memoryUsage.rss(), ...counts }));
      host.order('memory');
    }, 30_000);
    host.order('memory');
    await Promise.all([...clients, stopped]);
    clearInterval(timer);
    if (!hasEnded) host.order('end');
    const { code, stderr } = await host.ended;
    await heard;
    if (stderr.startsWith('FATAL ERROR: v8::ToLocalChecked Empty MaybeLocal')) return true;
    model.end();
    assert.deepEqual([code, stderr], [0, '']);
    return false;
  }

  /**
   * Stops the program and the clients in turn. The clients are this process, which `node --test` has started. A shell
   * continues what it stops, even if this process has ended.
   */
  async function stopAtRandom(model: Model, host: number = 0, seed: number, isDue: () => boolean): Promise<void> {
    const random = randomNumbers(seed);
    const between = (least: number, most: number): number => least + random() * (most - least);
    for (let isHost = random() < 0.5; STOPS.length > 0; isHost = !isHost) {
      await sleep(between(...RUN_MS));
      if (!isDue()) return;
      const pid = isHost ? host : process.pid;
      const seconds = between(...STOP_MS) / 1000;
      const goOn = model.stop(STOPS[isHost ? 0 : 1] as string);
      const script = `trap '' HUP INT QUIT TERM; kill -STOP ${pid}; sleep ${seconds}; kill -CONT ${pid}`;
      await once(spawn('sh', ['-c', script], { stdio: 'ignore' }), 'close');
      goOn();
    }
  }
});

/** Sends one request after the other, most on a connection that is kept. */
class Client {
  readonly #model: Model;
  readonly #number: number;
  readonly #random: () => number;
  #connection: Connection | null = null;
  #isConnected = false;
  #requests = 0; // on this connection
  #posts = 0;
  #status: string | null = null; // the latest, as a tag
  #tag: string | null = null; // of the latest information

  constructor(model: Model, seed: number, number: number) {
    this.#model = model;
    this.#number = number;
    this.#random = randomNumbers(seed);
  }

  async act(): Promise<void> {
    const random = this.#random;
    const choice = random();
    if (this.#requests > 100 || random() < 0.1) this.leave();
    if (choice < 0.2) await this.#get(STATUS);
    else if (choice < 0.24) await this.#get('HEAD /api/status');
    else if (choice < 0.38) await this.#get(INFO);
    else if (choice < 0.85) await this.#post();
    else if (choice < 0.91) await this.#abort();
    else if (choice < 0.95) await this.#pipeline();
    else if (choice < 0.98) await this.#hurry();
    else await this.#sendAsPage();
    if (random() < 0.5) await sleep(this.#below(4));
  }

  leave(): void {
    this.#connection?.socket.destroy();
    this.#connection = null;
  }

  #below(limit: number): number { return Math.floor(this.#random() * limit); }

  #connect(): Connection {
    if (this.#connection !== null) return this.#connection;
    this.#connection = new Connection(this.#model.port);
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
      if (!error.message.startsWith('the connection was closed after')) this.#model.guard(() => { throw error; });
      return null;
    });
    const [, seconds = 0] = /=(\d+)/.exec(String(response?.headers['preference-applied'])) ?? [];
    const exchange = { sentAt, receivedAt: Date.now(), waitMs: Number(seconds) * 1000 };
    if (response === null || response.headers.connection === 'close') this.leave();
    if (response !== null && response.statusCode !== 408) return [response, exchange]; // 408: stopped before it is read
    this.#model.checkLoss(exchange, this.#isConnected);
    await sleep(50);
    return [null, exchange];
  }

  #check(check: () => void): void { this.#model.guard(check); }

  // ── GET ──

  /** Half of the requests name what the client knows, and some of these wait. */
  #getRequest(line: string): { bytes: string; known: string | null } {
    const tag = line === INFO ? this.#tag : this.#status;
    const known = tag !== null && this.#random() < 0.5 ? tag : null;
    const fields = known === null ? [] : [`If-None-Match: "x", ${known}`];
    if (this.#random() < 0.5) fields.push('Prefer: wait=1');
    return { bytes: head(line, HOST, ...fields), known };
  }

  async #get(line: string): Promise<void> {
    const { bytes, known } = this.#getRequest(line);
    const [response, exchange] = await this.#ask(bytes);
    if (response !== null) this.#noteGet(line, known, response, exchange);
  }

  #noteGet(line: string, known: string | null, response: HttpResponse, exchange: Exchange, endedEarly = false): void {
    const { statusCode, headers: { etag = '' }, body } = response;
    const waitMs = endedEarly ? 0 : exchange.waitMs;
    this.#check(() => {
      assert.ok(statusCode === 200 || (statusCode === 304 && known !== null), inspect(response));
      const isNew = statusCode === 200;
      if (line === INFO) {
        this.#model.checkInfo({ ...exchange, waitMs }, etag, isNew ? body : null, known);
        this.#tag = etag;
        return;
      }
      this.#model.checkStatus({ ...exchange, waitMs }, nameOf(etag), isNew, known === null ? null : nameOf(known));
      if (body !== undefined) assert.equal(body.status, nameOf(etag));
      this.#status = etag;
    });
  }

  // ── POST ──

  /** Most have a name, and a third wait. */
  #postRequest(): { bytes: string; post: Post | null } {
    const random = this.#random;
    const command = oneOf(random, [...COMMANDS, 'note']);
    const text = command === 'note' ? this.#text(random() < 0.2 ? 3950 : 20) : undefined;
    const fields = random() < 0.35 ? [HOST, `Prefer: wait=${1 + this.#below(2)}`] : [HOST];
    const write = (line: string): string => {
      if (text === undefined) return (random() < 0.5 ? withBody : head)(line, ...fields);
      const body = Buffer.from(JSON.stringify({ text }));
      return head(line, ...fields, `Content-Length: ${body.length}`) + body.toString('latin1');
    };
    if (random() < 0.1) return { bytes: write(`POST /api/${command}`), post: null };
    const by = random() < 0.7 ? 'ana@läptop' : undefined;
    const post = this.#model.post(this.#number, this.#posts += 1, command, text, by);
    const query = new URLSearchParams({ ...(by !== undefined && { by }), reason: post.name });
    return { bytes: write(`POST /api/${command}?${query}`), post };
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

  async #post(): Promise<void> {
    const { bytes, post } = this.#postRequest();
    if (post === null) this.#model.countNameless(1);
    const [response, exchange] = await this.#ask(bytes);
    if (response !== null) this.#notePost(bytes, post, response, exchange);
    else if (post !== null) this.#model.settle(post, 'unknown');
  }

  #notePost(bytes: string, post: Post | null, response: HttpResponse, exchange: Exchange, endedEarly = false): void {
    const { statusCode, headers, text, body } = response;
    this.#check(() => {
      assert.ok([200, 202, 500, 503].includes(statusCode), inspect(response));
      if (post !== null) this.#model.settle(post, statusCode === 503 ? 'refused' : 'ok');
      else if (statusCode === 503) this.#model.countNameless(-1);
      if (statusCode === 503) return this.#model.checkRefused(exchange);
      if (headers['preference-applied'] === undefined) assert.deepEqual([statusCode, text], [200, '{"result":"ok"}']);
      if (bytes.includes('Prefer:')) this.#model.checkOutcome(exchange, post, body, endedEarly);
    });
  }

  /** Sends a request and goes away. */
  async #abort(): Promise<void> {
    const { bytes, post } = this.#postRequest();
    if (post === null) this.#model.countNameless(1);
    const { socket } = this.#connect();
    const isCut = this.#random() < 0.2;
    socket.write(isCut ? bytes.slice(0, this.#below(bytes.length)) : bytes, 'latin1');
    await sleep(this.#below(20));
    if (this.#random() < 0.5) socket.resetAndDestroy();
    this.leave();
    if (post !== null) this.#model.settle(post, isCut ? 'never' : 'unknown');
  }

  // ── Requests at the wrong time ──

  /** Sends several requests at once: only the first is handled. */
  async #pipeline(): Promise<void> {
    const isPost = this.#random() < 0.5;
    const first = isPost ? this.#postRequest() : this.#getRequest(STATUS);
    const others = [this.#postRequest(), this.#postRequest()];
    for (const { post } of others) if (post !== null) this.#model.settle(post, 'never');
    if (isPost && 'post' in first && first.post === null) this.#model.countNameless(1);
    this.leave();
    const connection = this.#connect();
    const [response, exchange] = await this.#ask([first, ...others].map(({ bytes }) => bytes).join(''));
    if (response === null) {
      if ('post' in first && first.post !== null) this.#model.settle(first.post, 'unknown');
      return;
    }
    if ('post' in first) this.#notePost(first.bytes, first.post, response, exchange, true);
    else this.#noteGet(STATUS, first.known, response, exchange, true);
    await connection.closed;
    const responses = connection.text.match(/HTTP\/1\.1 /g)?.length;
    this.#check(() => assert.equal(responses, 1, `${responses} responses: ${connection.text}`));
    this.leave();
  }

  /** Sends a further request while the first one may wait, which ends the connection unless it came late enough. */
  async #hurry(): Promise<void> {
    const isPost = this.#random() < 0.5;
    const first = isPost ? this.#postRequest() : this.#getRequest(STATUS);
    if (isPost && 'post' in first && first.post === null) this.#model.countNameless(1);
    this.leave();
    const connection = this.#connect();
    const sending = this.#ask(first.bytes);
    await sleep(this.#below(30));
    const second = this.#postRequest();
    if (second.post === null) this.#model.countNameless(1);
    const secondSentAt = Date.now();
    connection.socket.write(second.bytes, 'latin1');
    const [response, exchange] = await sending;
    if (response === null) {
      for (const { post } of [first, second] as { post?: Post | null }[]) if (post) this.#model.settle(post, 'unknown');
      return;
    }
    if ('post' in first) this.#notePost(first.bytes, first.post, response, exchange, true);
    else this.#noteGet(STATUS, first.known, response, exchange, true);
    const isEarly = response.headers.connection === 'close';
    const next = isEarly ? null : await connection.request('').catch(() => null);
    if (next !== null) {
      const waitMs = exchange.waitMs + 2000;
      this.#notePost(second.bytes, second.post, next, { sentAt: secondSentAt, receivedAt: Date.now(), waitMs }, true);
    } else if (second.post !== null) this.#model.settle(second.post, isEarly ? 'never' : 'unknown');
    this.leave();
  }

  async #sendAsPage(): Promise<void> {
    const { bytes, post } = this.#postRequest();
    if (post !== null) this.#model.settle(post, 'never');
    const [response] = await this.#ask(bytes.replace('Host:', 'Origin: null\r\nHost:'));
    this.#check(() => assert.ok(response === null || response.statusCode === 403, inspect(response)));
  }
}

function nameOf(tag: string): string {
  return tag.slice(1, -1).replace('-', ' ');
}
