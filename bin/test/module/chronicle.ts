// A chronicle: a random program, which takes commands, asks and logs; its clients; and what happens to its threads, its
// process and its log. A judge decides whether all that was done, told and logged agrees. It ends once enough has
// happened, not after a time. TEST_SEED sets the seed, but not how threads interleave.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { makeFolder } from '../helpers.ts';
import { runHost } from '../host.ts';
import { COMMANDS, HOST, INFO, STATUS, Connection, head, withBody } from '../http.ts';
import { END_MS, inTime, until } from '../wait.ts';
import { SEED, oneOf, randomNumbers } from './helpers.ts';
import { Judge } from './judge.ts';
import { countEvents, parseLog } from './log.ts';
import type { AskInfo, CommandInfo } from '../../../control.ts';
import type { Host } from '../host.ts';
import type { HttpResponse } from '../http.ts';
import type { Event, Exchange, Post } from './judge.ts';
import type { TestContext } from 'node:test';

// ───── The program ───────────────────────────────────────────────────────────────────────────────────────────────

/**
 * In a host or a test: lets the counters of servers begin anywhere, until the returned function is called. This is the
 * only place in the tests that knows where control.ts keeps what it counts.
 */
export function preset(first: number): () => void {
  const Original = globalThis.SharedArrayBuffer;
  const [size, responded, accepted] = [128, 2, 4];
  globalThis.SharedArrayBuffer = class extends Original {
    constructor(bytes: number) {
      super(bytes);
      if (bytes === size) for (const at of [responded, accepted]) new Int32Array(this)[at] = first;
    }
  } as SharedArrayBufferConstructor;
  return () => {
    globalThis.SharedArrayBuffer = Original;
  };
}

/**
 * Runs a host that stands still at each of its accesses to shared memory in turn: standAtEach(operation, prepare) of
 * its source repeats the operation, with another access each time, and says its result, until there is none left. To
 * prepare, it may call `meet`, which waits for the test.
 *
 * @param act What the test does while the host stands still; it may release the host itself.
 * @param check Checks the result.
 * @param prepare What the test does in `meet`.
 */
export async function standAtEach(
  t: TestContext, source: string, act: (client: Connection, release: () => void) => Promise<void>,
  check: (result: unknown, access: string) => void, prepare: (client: Connection) => Promise<void> = async () => {},
): Promise<void> {
  const host = runHost(t, `
    let status = ACTIVE;
    const server = await serve({ systemStatus: () => status });
    const names = ['load', 'store', 'add', 'sub', 'exchange', 'compareExchange'];
    const accesses = names.map((name) => [name, Atomics[name]]);
    const meet = () => {
      say('prepares');
      halt();
    };
    const standAtEach = async (operation, prepare = () => {}) => {
      for (let [round, isOver] = [0, false]; !isOver; round += 1) {
        const prepared = prepare();
        let left = round;
        for (const [name, original] of accesses) Atomics[name] = (...args) => {
          left -= 1;
          if (left === -1) {
            say('stands still');
            halt();
          }
          return original(...args);
        };
        const result = operation(prepared);
        for (const [name, original] of accesses) Atomics[name] = original;
        isOver = left >= 0;
        if (isOver) result.catch(() => {}); // nobody answers
        else say(await result);
      }
      say('over');
    };
    ${source}
    await server.close();
  `);
  const port = await host.hear<number>();
  const connection = new Connection(port);
  const hear = async (): Promise<unknown> => {
    const word = await host.hear();
    if (word !== 'prepares') return word;
    await prepare(connection);
    host.release();
    return host.hear();
  };
  let rounds = 0;
  for (; await hear() === 'stands still'; rounds += 1) {
    let isReleased = false;
    const release = (): void => {
      if (!isReleased) host.release();
      isReleased = true;
    };
    await act(connection, release);
    release();
    check(await host.hear(), `access ${rounds}`);
  }
  connection.socket.destroy();
  t.diagnostic(`${rounds} accesses`);
  assert.ok(rounds > 10, `${rounds} accesses`);
  await host.ends();
}

const SIZES = [16, 1, 1000, 3]; // of the queues, in turn

/**
 * The source of the program. It notes every call that publishes a status or completes a command, so that it knows what
 * it has published and which command is running.
 */
function sourceOf(scenario: Scenario, seed: number, name: string, log: string): string {
  const { first = 0, deaths = 0, isBusy = false, isIdle = false, disturb } = scenario;
  return `
    import { readFileSync } from 'node:fs';
    process.removeAllListeners('warning'); // Node's printer: each thread that dies causes a warning
    const threads = [];
    process.on('worker', (thread) => {
      threads.push(thread);
      note('restart', Date.now());
    });
    (${preset})(${first});
    const random = (${randomNumbers})(${seed});
    const rarely = (${randomNumbers})(${seed} + 1); // in callbacks
    const below = (limit) => Math.floor(random() * limit);
    const oneOf = (values) => values[below(values.length)];
    const COMMANDS = ['pause', 'resume', 'shutdown', 'save-state'];
    const STATUSES = [ACTIVE, SystemStatus.PAUSING, PAUSED, SystemStatus.RESUMING, SHUTTING_DOWN];

    const events = [];
    const note = (kind, from, ...rest) => events.push([kind, from, Date.now(), ...rest]);
    const fault = (message) => note('fault', Date.now(), message);
    const flush = () => {
      if (changedAt === Infinity) note('beat', Date.now()); // all until now is known
      say(events.splice(0));
    };
    setInterval(flush, 25);

    let isOver = false;
    obey({ end: () => (isOver = true) });

    let server = null;
    let size = 0; // of its queue
    let isAutomatic = true;
    let isOpen = false;
    let status = ACTIVE;
    let changedAt = Infinity; // until it is known to be published
    let published = null;
    let before = null; // what was published when the running command was taken
    let running = null;
    let latestId = '';
    let decidedAt = 0; // before the latest look that may have let a command expire
    let releasesNotedAt = 0;
    let posted = 0;
    let taken = 0;
    let asked = 0;
    const own = []; // that wait
    const open = new Set(); // questions

    const publish = (from, { name, by, reason, since, until, holds: others }) => {
      const byItself = running === null ? 'itself' : 'somebody';
      const isFirst = name === 'paused' && others.length === 0;
      const holds = name === 'active' ? [] : isFirst ? [{ by: by ?? byItself, reason, since, until }] : others;
      published = { name, holds, ...(name === 'paused' ? holds[0] : { by, reason, since }) };
      note('status', from, published);
    };

    const notePublished = (from) => {
      if (published !== null && published.name === status.statusName) return void (changedAt = Infinity);
      const since = [Math.min(from, changedAt), Date.now()];
      const isCancelled = running?.command === 'shutdown' && status === PAUSED;
      const cause = isCancelled ? { by: 'itself', reason: 'shutdown cancelled' } : running ?? { by: 'itself' };
      const { by, reason, until } = published === null ? {} : cause;
      const isBack = running !== null && before.name === status.statusName;
      const holds = published === null ? [] : published.holds;
      const mayHaveReleased = running === null && status === ACTIVE; // just before, on its own
      if (mayHaveReleased) for (const { by } of holds) note('release', from, by, false);
      publish(since[0], isBack ? before : { name: status.statusName, by, reason, since, until, holds });
      changedAt = Infinity;
    };

    const noteCompleted = (from, outcome = {}) => {
      if (running === null) return;
      const { id, command, by = 'somebody', reason, until, ended } = running;
      running = null;
      note('done', from, id, outcome);
      if (published.name === 'active') return;
      const isOwn = (hold) => hold.by === by;
      if (ended !== undefined && published.holds.some((hold) => isOwn(hold) && hold.until === ended)) {
        const holds = published.holds.map((hold) => isOwn(hold) ? { ...hold, until: undefined } : hold);
        return publish(from, { ...published, holds });
      }
      if (outcome.error !== undefined || command !== 'pause') return;
      const renew = (hold) => ({ ...hold, reason: reason ?? hold.reason, until });
      const holds = published.holds.map((hold) => isOwn(hold) ? renew(hold) : hold);
      if (!holds.some(isOwn)) holds.push({ by, reason, since: [from, Date.now()], until });
      publish(from, { ...published, holds });
    };

    /** After a look: each hold that is gone was released, and at least one is left. */
    const noteReleases = (from) => {
      if (running !== null) return;
      const { holds } = published;
      const actual = server.holds;
      const left = holds.filter(({ by }) => actual.some((hold) => hold.by === by));
      const isSame = ({ by, reason, since: [from, to], until }, index) => {
        const hold = actual[index];
        const time = Date.parse(hold.since);
        return hold.by === by && hold.reason === reason && from <= time && time <= to && hold.until === until;
      };
      const isRight = left.length === actual.length && left.every(isSame) && (left.length > 0 || holds.length === 0);
      if (!isRight) fault('holds: ' + JSON.stringify(actual) + ' of ' + JSON.stringify(holds));
      const start = Math.min(from, releasesNotedAt);
      releasesNotedAt = Date.now();
      if (left.length === holds.length) return;
      for (const { by } of holds) if (!left.some((hold) => hold.by === by)) note('release', start, by, true);
      publish(start, { ...published, holds: left });
    };

    const hasCommands = () => {
      decidedAt = Date.now();
      return server.hasCommands();
    };

    const look = (call = hasCommands) => {
      const from = Date.now();
      try {
        return call();
      } finally {
        notePublished(from);
        if (isAutomatic) noteCompleted(from);
        noteReleases(from);
      }
    };

    const publishNow = () => {
      const from = Date.now();
      server.publish();
      notePublished(from);
      noteReleases(from);
    };

    const report = (outcome) => {
      const from = Date.now();
      server.report('error' in outcome ? { error: { message: outcome.error } } : outcome);
      notePublished(from);
      noteCompleted(from, outcome);
    };

    const change = (next) => {
      if (changedAt < Infinity) return; // at most one change is not published
      noteReleases(Date.now());
      status = next;
      changedAt = Date.now();
    };

    const isLogged = (id) => readFileSync(${JSON.stringify(log)}, 'utf8').includes('"command","id":"' + id + '"');

    const noteTaken = (from, command) => {
      taken += 1;
      noteCompleted(from);
      noteReleases(from);
      const { id, by, reason, until, command: requested, arguments: { text, until: ended } } = server.request;
      if (command !== requested) fault(command + ' is requested as ' + requested);
      const isOwn = id.includes('-i');
      if (!isOwn && own.length > 0) fault(id + ' was taken ahead of ' + own[0]);
      if (isOwn && own.shift() !== command + ' ' + reason) fault(id + ' was taken out of order');
      const isDue = ${disturb === undefined} && !isOwn && random() < 0.1;
      if (isDue && !isLogged(id)) fault(id + ' was taken before it was logged');
      note('take', from, id, command, by, reason, text, decidedAt, ended);
      decidedAt = from;
      running = { id, command, by, reason, until, ended };
      before = published;
      latestId = id;
    };

    /** Carries out the command taken last. */
    const act = () => {
      if (random() < 0.1) block(below(4));
      if (random() < 0.01) block(1 + below(30));
      if (random() < 0.3) change(oneOf(STATUSES));
      if (random() < 0.1 && !isAutomatic) {
        look();
        change(STATUSES.find(({ statusName }) => statusName === before.name)); // as after a save
      }
      if (server.request.id !== latestId) fault(latestId + ' is requested as ' + server.request.id);
      const choice = random();
      const text = latestId + ' ' + '😀ä'.repeat(random() < 0.05 ? below(490) : below(3));
      const isCancelled = server.request.command === 'shutdown' && random() < 0.8; // else no own command is left
      if (isCancelled) report({ error: text });
      else if (choice < 0.4) report({ value: text });
      else if (choice < 0.5) report({ value: below(1e6) / 8 });
      else if (choice < 0.7) report({ error: text });
    };

    /** hasCommands() was true, unless this is perhaps in vain. */
    const receive = (isInVain = false, carryOut = act) => {
      if (random() < 0.01) block(below(30));
      if (random() < 0.1) blockLong(); // what is announced may expire
      const from = Date.now();
      try {
        const command = server.receiveCommand();
        notePublished(from);
        noteTaken(from, command);
        carryOut();
      } catch (error) {
        if (!isInVain || !(error instanceof EmptyError)) return fault(error.stack);
        notePublished(from);
        noteCompleted(from);
        noteReleases(from);
      }
    };

    const next = async (options) => {
      publishNow(); // the first look of nextCommand() comes before it publishes
      const from = Date.now();
      try {
        const command = await look(() => server.nextCommand(options).catch(() => null));
        if (command === null) return; // cancelled, or closed
        noteTaken(from, command);
        act();
      } catch (error) {
        fault(error.stack);
      }
    };

    const nextSync = () => {
      publishNow();
      const from = Date.now();
      try {
        const command = look(() => server.nextCommandSync({ timeout: below(10) }));
        if (command === null) return;
        noteTaken(from, command);
        act();
      } catch (error) {
        if (!(error instanceof EmptyError)) fault(error.stack); // closed
      }
    };

    const post = (command = oneOf(COMMANDS), options = {}) => {
      const from = Date.now();
      const reason = 'own ' + (posted += 1);
      const isAccepted = server.post(command, { reason, ...options });
      if (isAccepted !== own.length < size) fault('post() returns ' + isAccepted + ' while ' + own.length + ' wait');
      if (!isAccepted) return;
      own.push(command + ' ' + reason);
      note('post', from);
    };

    const ask = () => {
      if (!isOpen || open.size > 12) return;
      const from = Date.now();
      const message = 'asks ' + (asked += 1);
      const [choice, control] = [random(), new AbortController()];
      if (choice > 0.8) setTimeout(() => control.abort(new RangeError('enough')), below(30));
      const timeout = choice < 0.3 ? 1 + below(40) : undefined;
      const key = choice < 0.5 ? message + ' of ' + process.pid + ' at ' + from : undefined;
      const lasting = { parameters: { pick: { type: 'integer' } }, key };
      const question = server.ask(message, { ...lasting, signal: control.signal, timeout });
      open.add(question);
      note('ask', from, message, key !== undefined);
      question.then((answer) => {
        const { arguments: values, by, reason } = answer;
        note('got', from, message, { values, by, reason });
        if (key === undefined || !isOpen) return;
        server.ask(message, lasting).then((again) => {
          if (JSON.stringify(again) !== JSON.stringify(answer)) fault(message + ' has two answers');
          note('asked again', from);
        });
      }, ({ name, message: error }) => note('got', from, message, { name, error })).then(() => open.delete(question));
    };

    const checkSignal = () => {
      const from = Date.now();
      const { signal } = server;
      const { aborted, reason } = signal;
      if (aborted) note('interrupted', from);
      else signal.onabort = () => note('interrupted', Date.now());
      notePublished(from);
      const isDue = (command) => /^shutdown/.test(command) || (/^pause/.test(command) && published.name === 'active');
      if (own.some(isDue) && !aborted) fault('no signal for ' + own);
      if (aborted && !/^Interrupted by (pause|shutdown)$/.test(reason.message)) fault(reason.message);
    };

    let deathsLeft = ${deaths};
    let killed = 0; // how many threads there were then
    let nextKillAt = 10;
    const killThread = () => {
      if (deathsLeft === 0 || taken < nextKillAt || threads.length === killed || !isOpen) return;
      const limit = Date.now() + 20;
      if (random() < 0.5) while (!look() && Date.now() < limit); // between a command and its response
      if (random() < 0.2) block(below(20));
      deathsLeft -= 1;
      killed = threads.length;
      nextKillAt = taken + below(30);
      note('death', Date.now());
      threads.at(-1).terminate(); // anywhere
    };

    let nextBlockAt = 10;
    const blockLong = () => {
      if (!${isBusy} || taken < nextBlockAt) return;
      block(1500 + below(500)); // some commands expire
      nextBlockAt = taken + 10 + below(60);
    };

    let nextRestAt = 10;
    const rest = async () => {
      if (!${isIdle} || taken < nextRestAt) return;
      while (own.length > 0 && look()) receive();
      change(PAUSED);
      look();
      post('pause', { until: new Date().toISOString() }); // the server ends it meanwhile, unless the queue is full
      if (look()) receive(false, () => report({}));
      await sleep(2500); // longer than some clients wait for news
      nextRestAt = taken + 30;
    };

    const step = async () => {
      killThread();
      blockLong();
      await rest();
      const choice = random();
      if (choice < 0.38) for (let count = below(20); count >= 0 && look(); count -= 1) receive();
      else if (choice < 0.40) receive(true);
      else if (choice < 0.43) look();
      else if (choice < 0.50) {
        const end = new AbortController();
        if (random() < 0.5) setImmediate(() => end.abort());
        else setTimeout(() => end.abort(), below(6));
        await next({ signal: end.signal });
      } else if (choice < 0.54) {
        let isAsleep = true;
        const timer = setTimeout(async () => { // a command wakes it, unless there is none
          if (!isAsleep || !look()) return isAsleep && post();
          await sleep(5000, null, { ref: false });
          if (isAsleep) fault('asleep while a command waits');
        }, 700);
        await next({});
        isAsleep = false;
        clearTimeout(timer);
      } else if (choice < 0.58) nextSync();
      else if (choice < 0.60) block(1 + below(30));
      else if (choice < 0.63) for (let count = below(4); count >= 0; count -= 1) post();
      else if (choice < 0.71) {
        change(oneOf(STATUSES));
        if (random() < 0.5) await sleep(below(10)); // a client's request may publish it
        look();
      } else if (choice < 0.76) checkSignal();
      else if (choice < 0.86) {
        for (let count = below(4); count >= 0; count -= 1) ask();
        await sleep(below(20)); // somebody may answer
      }
      else await (random() < 0.2 ? new Promise(setImmediate) : sleep(below(8)));
      if (events.length > 1000) flush();
    };

    const prefixes = new Set(); // of ids; three letters are not unique
    let serverPort = 0;
    const live = async () => {
      const from = Date.now();
      isAutomatic = random() < 0.7;
      published = running = null;
      releasesNotedAt = from;
      server = new WebApiServer({
        ...place, port: serverPort, maxQueueSize: size, autoReport: isAutomatic, name: ${JSON.stringify(name)},
        log: ${JSON.stringify(log)}, commands: { note: { parameters: { text: { type: 'string' } } } },
        systemStatus: () => {
          if (rarely() < 0.05) server.hasCommands();
          return status;
        },
        describe: () => {
          if (rarely() < 0.05) server.hasCommands();
          if (rarely() < 0.05) throw new Error('no detail');
          return rarely() < 0.05 ? 'ä'.repeat(2047) : { events: events.length };
        },
      });
      server.post('save-state', { reason: 'own 0' });
      server.receiveCommand();
      const [prefix] = server.request.id.split('-');
      if (prefixes.has(prefix)) return;
      prefixes.add(prefix);
      note('create', from, prefix);
      note('post', from);
      notePublished(from);
      own.push('save-state own 0');
      noteTaken(from, 'save-state');
      ({ port: serverPort } = await server.runInBackground());
      notePublished(from);
      note('open', from, serverPort);
      isOpen = true;
      const end = taken + 20 + below(40);
      while (!isOver && taken < end) await step();
      const closedFrom = Date.now();
      isOpen = false;
      note('closing', closedFrom);
      let isClosed = false;
      const closed = look(() => server.close()).then(() => (isClosed = true));
      noteCompleted(closedFrom);
      while (!isClosed) await step();
      await closed;
      do {
        while (look()) receive();
        report({});
      } while (look());
      while (open.size > 0) await sleep(1);
      if (own.length > 0) fault('lost: ' + own);
    };
    for (const sizes = ${JSON.stringify(SIZES)}; !isOver; sizes.push(size)) {
      size = sizes.shift();
      await live();
    }
    flush();
    process.exit();
  `;
}

// ───── Its clients ───────────────────────────────────────────────────────────────────────────────────────────────

const CHARACTERS = ['a', '0', ' ', '"', '\\', '\n', '\x7f', 'é', 'ß', '€', '\u2028', '\ufeff', '中', '😀', '🇩🇪'];

/** A POST, and what the judge knows of it if it has a name. */
interface Request {
  bytes: string;
  post: Post | null;
}

/** Sends one request after the other, most on a connection that is kept. */
class Client {
  readonly #judge: Judge;
  readonly #getPort: () => number;
  readonly #number: number;
  readonly #random: () => number;
  #connection: Connection | null = null;
  #openedAt = 0; // the connection
  #usedAt = 0;
  #requests = 0; // on it
  #sent = 0;
  #tags: Record<'info' | 'status', string | null> = { info: null, status: null }; // the latest
  #asks: AskInfo[] = []; // questions that were open, some time
  #waiting: CommandInfo[] = []; // commands with names that waited, some time

  constructor(judge: Judge, getPort: () => number, seed: number, number: number) {
    this.#judge = judge;
    this.#getPort = getPort;
    this.#number = number;
    this.#random = randomNumbers(seed);
  }

  async act(): Promise<void> {
    const random = this.#random;
    const choice = random();
    const isIdle = Date.now() - this.#usedAt > 5000; // the server may close it
    if (isIdle || this.#requests > 100 || random() < 0.1) this.leave();
    if (choice < 0.15) await this.#get(STATUS);
    else if (choice < 0.18) await this.#get('HEAD /api/status');
    else if (choice < 0.3) await this.#get(INFO);
    else if (choice < 0.6) await this.#answer();
    else if (choice < 0.9) await this.#post();
    else if (choice < 0.95) await this.#withdraw();
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
    this.#openedAt = Date.now();
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
    this.#usedAt = exchange.receivedAt;
    if (response === null || response.headers.connection === 'close') this.leave();
    const isStarved = response?.statusCode === 408; // the thread has not had the CPU for five seconds
    if (response !== null && !isStarved) {
      this.#judge.noteResponse(exchange, this.#openedAt);
      return [response, exchange];
    }
    if (!isStarved) this.#judge.noteLoss(exchange, this.#openedAt);
    await sleep(50);
    return [null, exchange];
  }

  /** Half of these name what the client knows, and some of these wait. */
  async #get(line: string): Promise<void> {
    const kind = line === INFO ? 'info' : 'status';
    const known = this.#random() < 0.5 ? this.#tags[kind] : null;
    const fields = known === null ? [] : [`If-None-Match: "x", ${known}`];
    if (this.#random() < 0.5) fields.push('Prefer: wait=1');
    const [response, exchange] = await this.#ask(head(line, HOST, ...fields));
    if (response === null) return;
    this.#judge.noteGet(kind === 'info', known, response, exchange);
    this.#tags[kind] = response.headers.etag ?? null;
    if (response.body?.asks !== undefined) this.#asks = [...this.#asks.slice(-1), ...response.body.asks as AskInfo[]];
    const listed: CommandInfo[] = response.body?.commands ?? [];
    const waiting = listed.filter(({ state, reason }) => state === 'waiting' && reason !== undefined);
    if (kind === 'info') this.#waiting = [...this.#waiting.slice(-1), ...waiting];
  }

  /** Withdraws a command that waits, or did. */
  async #withdraw(): Promise<void> {
    await this.#get(INFO);
    if (this.#waiting.length === 0) return;
    const { id, reason = '' } = oneOf(this.#random, this.#waiting);
    const [by, why] = [`c${this.#number}`, `${this.#number}.${this.#sent += 1}`];
    this.#judge.withdraw(reason);
    const [reply] = await this.#ask(head(`POST /api/withdraw?id=${id}&by=${by}&reason=${why}`, HOST));
    this.#judge.noteWithdrawal({ id, words: `withdrawn by ${by}: ${why}`, reply });
  }

  /** Answers a question that is open, or was. */
  async #answer(): Promise<void> {
    await this.#get(INFO);
    if (this.#asks.length === 0) return;
    const { id, message } = oneOf(this.#random, this.#asks);
    const [by, reason] = [`c${this.#number}`, `${this.#number}.${this.#sent += 1}`];
    const pick = this.#below(1e9);
    if (this.#random() < 0.1) { // is refused, and ends nothing
      const [wrong] = await this.#ask(withJson(`POST /api/answer?id=${id}`, { pick: 'no' }));
      assert.ok(wrong === null || [400, 404, 409].includes(wrong.statusCode), wrong?.summary);
    }
    const [reply] = await this.#ask(withJson(`POST /api/answer?id=${id}&by=${by}&reason=${reason}`, { pick }));
    this.#judge.noteAnswer({ id, message, by, reason, pick, reply });
  }

  async #post(): Promise<void> {
    const { bytes, post } = this.#postRequest();
    const [response, exchange] = await this.#ask(bytes);
    if (response !== null) this.#judge.notePost(post?.name ?? null, response, exchange);
    else if (post !== null) this.#judge.settle(post.name, 'unknown', Date.now());
  }

  /** Most have a name, and a third wait. */
  #postRequest(): Request {
    const random = this.#random;
    const command = oneOf(random, [...COMMANDS, 'resume', 'resume', 'note', 'note', 'note', 'note', 'note', 'note']);
    const expires = random() < 0.4 ? 1 : 0;
    const text = command === 'note' ? this.#text(random() < 0.2 ? 3950 : 20) : undefined;
    const waits = random() < (expires > 0 ? 0.8 : 0.2); // longer than it takes to expire
    const fields = waits ? [`Prefer: wait=${1 + expires + this.#below(2)}`] : [];
    const write = (line: string): string => {
      if (text === undefined) return (random() < 0.5 ? withBody : head)(line, HOST, ...fields);
      return withJson(line, { text }, ...fields);
    };
    if (expires === 0 && random() < 0.1) return { bytes: write(`POST /api/${command}`), post: null };
    const by = oneOf(random, ['ana@läptop', 'ana@läptop', 'ben', undefined]);
    const isLease = command === 'pause' && expires > 0 && by !== undefined; // for implies expires
    const isRelease = command === 'resume' && random() < 0.6;
    const [client, name] = [this.#number, `${this.#number}.${this.#sent += 1}`];
    const post = { client, name, command, text, by, expires, isRelease, sentAt: Date.now() };
    this.#judge.post(post);
    const query = new URLSearchParams({ ...(by !== undefined && { by }), reason: name });
    if (expires > 0) query.set(isLease ? 'for' : 'expires', String(expires));
    if (isRelease) query.set('mine', 'true');
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

  /** Sends a request and goes away. */
  async #abort(): Promise<void> {
    const { bytes, post } = this.#postRequest();
    const { socket } = this.#connect();
    const isCut = this.#random() < 0.2;
    socket.write(isCut ? bytes.slice(0, this.#below(bytes.length)) : bytes, 'latin1');
    await sleep(this.#below(20));
    if (this.#random() < 0.5) socket.resetAndDestroy();
    this.leave();
    if (post !== null) this.#judge.settle(post.name, isCut ? 'never' : 'unknown', Date.now());
  }
}

function withJson(line: string, values: object, ...fields: string[]): string {
  const body = Buffer.from(JSON.stringify(values));
  return head(line, HOST, ...fields, `Content-Length: ${body.length}`) + body.toString('latin1');
}

// ───── What happens to it ────────────────────────────────────────────────────────────────────────────────────────

export interface Scenario {
  /** How many programs share the log. */
  programs?: number;
  /** How many server threads die in each. */
  deaths?: number;
  /** How many programs are killed, one after the other, while clients wait; the last one ends. */
  kills?: number;
  /** Does something to the log, again and again, until it returns false. */
  disturb?: (path: string) => boolean | Promise<boolean>;
  /** The log in the end, in order. */
  files?: (path: string) => string[];
  mayLoseLines?: boolean;
  /** The number of commands and questions before the first one. */
  first?: number;
  /** Whether the program blocks its thread for more than a second now and then. */
  isBusy?: boolean;
  /** Whether the program does nothing for seconds now and then. */
  isIdle?: boolean;
  /** What must happen how often in each program. */
  least?: Readonly<Record<string, number>>;
}

const CLIENTS = 10; // of each program
const LEAST: Readonly<Record<string, number>> = {
  servers: 2, commands: 25, notes: 20, 'posted commands': 10, answered: 5, AbortError: 5, information: 20,
  statuses: 10,
};
const KILLED_LEAST: Readonly<Record<string, number>> = { commands: 15, notes: 10, answered: 1 };
const MOST_COMMANDS = 500; // until all of that has happened

/** Programs that run at the same time. */
interface Stage {
  readonly judges: Judge[];
  /** What they wait for before they end, besides what must happen. */
  isDisturbed: boolean;
  isOver: boolean;
}

/** Plays a scenario, and judges it. */
export async function chronicle(t: TestContext, scenario: Scenario): Promise<void> {
  for (let seed = SEED; !(await play(t, scenario, seed)); seed += 1);
}

/** Returns false if Node 20 has aborted a program, because a thread was terminated in the middle of the HTTP parser. */
async function play(t: TestContext, scenario: Scenario, seed: number): Promise<boolean> {
  const { programs = 1, kills = 0, disturb, mayLoseLines = false, files = (one) => [one] } = scenario;
  const path = join(makeFolder(t), 'log.jsonl');
  const judges = new Map<string, Judge>(); // by the name of the program
  const killed = new Set<string>();
  t.diagnostic(`seed ${seed}`);
  for (let round = 0; round <= kills; round += 1) {
    const stage: Stage = { judges: [], isDisturbed: disturb === undefined, isOver: false };
    const names = Array.from({ length: programs }, (_, index) => `p${round}${index}`);
    const running = names.map((name, index) => {
      const judge = new Judge(scenario.first ?? 0);
      judges.set(name, judge);
      stage.judges.push(judge);
      if (round < kills) killed.add(name);
      const host = runHost(t, sourceOf(scenario, seed + 10 * round + index, name, path));
      return run(stage, scenario, judge, host, seed + 100 * (round + index), round < kills);
    });
    const disturbing = (async () => {
      while (disturb !== undefined && !stage.isOver && await disturb(path)) await sleep(10);
      stage.isDisturbed = true;
    })();
    const aborted = await Promise.all(running);
    await disturbing;
    if (aborted.includes(true)) return false;
  }
  const { lines, torn } = parseLog(...files(path));
  assert.ok(torn.length <= kills, JSON.stringify(torn));
  const { lost = 0 } = countEvents(lines);
  if (scenario.deaths === undefined) assert.equal(lost, 0);
  for (const [name, judge] of judges) {
    judge.finish(mayLoseLines ? null : lines.filter((line) => line.name === name), killed.has(name));
    t.diagnostic(JSON.stringify(judge.counts));
  }
  return true;
}

/** Lets clients act until enough has happened. Returns whether Node 20 has aborted the program. */
async function run(
  stage: Stage, { least = {} }: Scenario, judge: Judge, host: Host, seed: number, isKilled: boolean,
): Promise<boolean> {
  let port = 0;
  const heard = (async () => {
    for (;;) {
      for (const event of await host.hear<Event[]>()) {
        if (event[0] === 'open') [, , , port] = event;
        judge.handle(event);
      }
    }
  })();
  heard.catch(() => { // it has ended, or has done something wrong, and may never end
    stage.isOver = true;
    host.process.kill('SIGKILL');
  });
  await until(() => port > 0 || stage.isOver);
  const isEnough = ({ counts }: Judge): boolean => {
    const wanted = isKilled ? KILLED_LEAST : { ...LEAST, ...least };
    const missing = Object.entries(wanted).filter(([what, count]) => (counts[what] ?? 0) < count);
    assert.ok(Number(counts['commands'] ?? 0) < MOST_COMMANDS, `has not happened: ${missing.join(' ')}`);
    return missing.length === 0;
  };
  const clients = Array.from({ length: CLIENTS }, async (_, number) => {
    const client = new Client(judge, () => port, seed + 10 + number, number);
    while (!stage.isOver) {
      await client.act();
      if (stage.isDisturbed && stage.judges.every(isEnough)) stage.isOver = true; // others wait for their responses
      if (stage.isOver && isKilled) host.process.kill('SIGKILL');
    }
    client.leave();
  });
  try {
    await inTime(Promise.all(clients), () => `Too little happens: ${JSON.stringify(judge.counts)}`, END_MS);
  } finally {
    stage.isOver = true;
    host.order('end');
  }
  const { code, stderr } = await host.ended;
  if (stderr.startsWith('FATAL ERROR: v8::ToLocalChecked Empty MaybeLocal')) return true;
  await assert.rejects(heard, /^Error: The host has ended/);
  assert.deepEqual([code, stderr], [isKilled ? null : 0, '']);
  return false;
}
