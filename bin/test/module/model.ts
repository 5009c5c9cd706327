// A program that uses the server at random; a history of what it reports and its clients see; and a model, which checks
// whether the clients may see that, given what the program reports.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { randomNumbers } from './helpers.ts';
import type { CommandInfo, SystemInfo } from '../../../control.ts';

/** All times are those of `Date.now()`, which two processes may read in either order. */
const SLACK_MS = 3;

/** How long after its wait a response may come. */
const LATE_MS = 5000;

/** How long after a change a request that waits for it may end. */
const NEWS_MS = 2000;

/** How long the model remembers a server: longer than any request takes. */
const LIFE_KEPT_MS = 60_000;

// ───── The program ───────────────────────────────────────────────────────────────────────────────────────────────

/** What the program reports: a kind, the times between which it happened, and more. */
export type Event = [kind: string, from: number, to: number, ...rest: any[]];

interface Status {
  name: string;
  by?: string;
  reason?: string;
  since: [from: number, to: number];
}

/**
 * The source of the program. It notes every call that publishes a status or completes a command, so that it knows what
 * it has published and which command is running.
 *
 * @param lifeMs How long each of its servers lives at most.
 */
export function modelHost(seed: number, sizes: readonly number[], lifeMs: number): string {
  return `
    process.removeAllListeners('warning'); // Node's printer: each thread that dies causes a warning
    const threads = [];
    process.on('worker', (thread) => threads.push(thread));
    const random = (${randomNumbers})(${seed});
    const rarely = (${randomNumbers})(${seed} + 1); // in callbacks
    const below = (limit) => Math.floor(random() * limit);
    const oneOf = (values) => values[below(values.length)];
    const COMMANDS = ['pause', 'resume', 'shutdown', 'save-state'];
    const STATUSES = [ACTIVE, SystemStatus.PAUSING, PAUSED, SystemStatus.RESUMING, SHUTTING_DOWN];

    const events = [];
    const log = (kind, from, ...rest) => events.push([kind, from, Date.now(), ...rest]);
    const fault = (message) => log('fault', Date.now(), message);
    const flush = () => {
      if (changedAt === Infinity) log('beat', Date.now()); // all until now is known
      say(events.splice(0));
    };
    setInterval(flush, 25);

    let isOver = false;
    obey({ end: () => (isOver = true) });

    let server = null;
    let size = 0; // of its queue
    let isAutomatic = true;
    let status = ACTIVE;
    let changedAt = Infinity; // until it is known to be published
    let published = null;
    let before = null; // what was published when the running command was taken
    let running = null;
    let latestId = '';
    let posted = 0;
    const own = []; // that wait

    const notePublished = (from) => {
      if (published !== null && published.name === status.statusName) return void (changedAt = Infinity);
      const since = [Math.min(from, changedAt), Date.now()];
      const { by, reason } = published === null ? {} : running ?? { by: 'itself' };
      const isBack = running !== null && before.name === status.statusName;
      published = isBack ? before : { name: status.statusName, by, reason, since };
      log('status', since[0], published);
      changedAt = Infinity;
    };

    const noteCompleted = (from, outcome = {}) => {
      if (running === null) return;
      const { id, command, reason } = running;
      running = null;
      log('done', from, id, outcome);
      if (outcome.error !== undefined || published !== before) return;
      if (command !== 'pause' || published.name !== 'paused' || reason === undefined) return;
      published = { ...published, reason };
      log('status', from, published);
    };

    const look = (call = () => server.hasCommands()) => {
      const from = Date.now();
      try {
        return call();
      } finally {
        notePublished(from);
        if (isAutomatic) noteCompleted(from);
      }
    };

    const report = (outcome) => {
      const from = Date.now();
      server.report('error' in outcome ? { error: { message: outcome.error } } : outcome);
      notePublished(from);
      noteCompleted(from, outcome);
    };

    const change = (next) => {
      if (changedAt < Infinity) return; // at most one change is not published
      status = next;
      changedAt = Date.now();
    };

    const noteTaken = (from, command) => {
      noteCompleted(from);
      const { id, by, reason, command: requested, arguments: { text } } = server.request;
      if (command !== requested) fault(command + ' is requested as ' + requested);
      const isOwn = id.includes('-i');
      if (!isOwn && own.length > 0) fault(id + ' was taken ahead of ' + own[0]);
      if (isOwn && own.shift() !== command + ' ' + reason) fault(id + ' was taken out of order');
      log('take', from, id, command, by, reason, text);
      running = { id, command, by, reason };
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
      if (choice < 0.4) report({ value: text });
      else if (choice < 0.5) report({ value: below(1e6) / 8 });
      else if (choice < 0.7) report({ error: text });
    };

    const receive = () => {
      const from = Date.now();
      try {
        const command = server.receiveCommand();
        notePublished(from);
        noteTaken(from, command);
        act();
      } catch (error) {
        if (!(error instanceof EmptyError)) return fault(error.stack);
        notePublished(from);
        noteCompleted(from);
      }
    };

    const next = async (options) => {
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

    const post = () => {
      const from = Date.now();
      const [command, reason] = [oneOf(COMMANDS), 'own ' + (posted += 1)];
      const isAccepted = server.post(command, { reason });
      if (isAccepted !== own.length < size) fault('post() returns ' + isAccepted + ' while ' + own.length + ' wait');
      if (!isAccepted) return;
      own.push(command + ' ' + reason);
      log('post', from);
    };

    const checkSignal = () => {
      const from = Date.now();
      const { aborted, reason } = server.signal;
      notePublished(from);
      const isDue = (command) => /^shutdown/.test(command) || (/^pause/.test(command) && published.name === 'active');
      if (own.some(isDue) && !aborted) fault('no signal for ' + own);
      if (aborted && !/^Interrupted by (pause|shutdown)$/.test(reason.message)) fault(reason.message);
    };

    let killed = 0; // threads
    let nextKillAt = Date.now() + 300 + below(1000);
    const killThread = () => {
      if (Date.now() < nextKillAt || threads.length === killed) return;
      const limit = Date.now() + 20;
      if (random() < 0.5) while (!look() && Date.now() < limit); // between a command and its response
      if (random() < 0.2) block(below(20));
      killed = threads.length;
      nextKillAt = Date.now() + 300 + below(4000);
      log('death', Date.now());
      threads.at(-1).terminate(); // anywhere
    };

    const step = async () => {
      killThread();
      if (random() < 0.001) await sleep(1300); // longer than some wait
      const choice = random();
      if (choice < 0.40) for (let count = below(20); count >= 0 && look(); count -= 1) receive();
      else if (choice < 0.43) receive(); // perhaps in vain
      else if (choice < 0.46) look();
      else if (choice < 0.55) {
        const end = new AbortController();
        if (random() < 0.5) setImmediate(() => end.abort());
        else setTimeout(() => end.abort(), below(6));
        await next({ signal: end.signal });
      } else if (choice < 0.60) {
        let isAsleep = true;
        const timer = setTimeout(async () => { // a command must have woken it, unless there is none
          if (!look()) return post();
          for (let count = 0; isAsleep && count < 10; count += 1) await sleep(50);
          if (isAsleep) fault('asleep while a command waits');
        }, 700);
        await next({});
        isAsleep = false;
        clearTimeout(timer);
      } else if (choice < 0.65) nextSync();
      else if (choice < 0.68) block(1 + below(30));
      else if (choice < 0.74) for (let count = below(4); count >= 0; count -= 1) post();
      else if (choice < 0.80) {
        change(oneOf(STATUSES));
        if (random() < 0.5) await sleep(below(10)); // a client's request may publish it
        look();
      } else if (choice < 0.85) checkSignal();
      else await (random() < 0.7 ? new Promise(setImmediate) : sleep(below(5)));
      if (events.length > 1000) flush();
    };

    const prefixes = new Set(); // of ids; three letters are not unique
    let serverPort = 0;
    const live = async () => {
      const from = Date.now();
      isAutomatic = random() < 0.7;
      published = running = null;
      server = new WebApiServer({
        host: '127.0.0.1', port: serverPort, maxQueueSize: size, autoReport: isAutomatic,
        commands: { note: { parameters: { text: { type: 'string' } } } },
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
      log('create', from, prefix, size);
      log('post', from);
      notePublished(from);
      own.push('save-state own 0');
      noteTaken(from, 'save-state');
      ({ port: serverPort } = await server.runInBackground());
      notePublished(from);
      log('open', from, serverPort);
      const end = Date.now() + 300 + below(${lifeMs});
      while (!isOver && Date.now() < end) await step();
      const closedFrom = Date.now();
      log('closing', closedFrom);
      let isClosed = false;
      const closed = look(() => server.close()).then(() => (isClosed = true));
      noteCompleted(closedFrom);
      while (!isClosed) await step();
      await closed;
      while (look()) receive();
      report({});
      if (own.length > 0) fault('lost: ' + own);
      log('drained', closedFrom, prefix);
      await sleep(below(50));
    };
    for (const sizes = ${JSON.stringify(sizes)}; !isOver; sizes.push(size)) {
      size = sizes.shift();
      await live();
    }
    flush();
    process.exit();
  `;
}

// ───── The model ─────────────────────────────────────────────────────────────────────────────────────────────────

/** A POST whose reason is a name; the host reports it when it takes the command. */
export interface Post {
  readonly client: number;
  readonly number: number;
  readonly name: string;
  readonly command: string;
  /** The argument of a note. */
  readonly text: string | undefined;
  readonly by: string | undefined;
}

/** What the model knows of it. */
interface Fate extends Post {
  /** The latest of this client that was accepted before this one was sent. */
  readonly after: number;
  /** `never` must not be delivered; `unknown` has no response. */
  outcome: 'sent' | 'ok' | 'refused' | 'unknown' | 'never';
  settledAt: number;
  id: string | null;
}

/** What counts of a response. */
interface Response {
  statusCode: number;
  tag: string;
  wasGranted: boolean; // to wait
  body: unknown;
}

/** A request and its response, in milliseconds. */
export interface Exchange {
  sentAt: number;
  receivedAt: number;
  /** What the client prefers to wait, if the server grants it. */
  waitMs: number;
}

interface Outcome {
  value?: string | number;
  error?: string;
}

interface Taken {
  from: number;
  to: number;
  command: string;
  by: string | undefined;
  reason: string | undefined;
  text: string | undefined;
}

/** What is known of one server and its history. */
class Life {
  readonly prefix: string;
  readonly size: number;
  readonly from: number;
  to = Infinity; // once it has ended
  readonly taken: Map<string, Taken> = new Map(); // by id
  readonly done: Map<string, Outcome & { from: number; to: number }> = new Map();
  readonly takenAt: number[] = []; // those of clients, whose ids have no gaps
  /** What the tag covers, as the host reports it. */
  readonly changes: Record<'from' | 'published' | 'to', number[]> = { from: [], published: [], to: [] };
  number = 0; // in the latest id
  ownNumber = 0;
  readonly contents: Map<number, Exchange & { content: Partial<SystemInfo> }> = new Map(); // by tag

  constructor(from: number, prefix: string, size: number) {
    this.from = from;
    this.prefix = prefix;
    this.size = size;
  }
}

/** The methods of the model that a line of the history calls. */
type Method = 'handle' | 'post' | 'countNameless' | 'settle' | 'noteLoss' | 'noteGet' | 'notePost';

/** What the program has reported and what its clients have done and seen, in this order, as lines of JSON. */
export class History {
  readonly #lines: string[] = [];

  note<Name extends Method>(name: Name, ...args: Parameters<Model[Name]>): void {
    this.#lines.push(JSON.stringify([name, ...args]));
  }

  /** Throws at the first line that contradicts the model, and counts what has happened. */
  check(counts: Record<string, number>): void {
    const model = new Model(counts) as unknown as Record<Method, (...args: unknown[]) => void>;
    for (const line of this.#lines) {
      const [name, ...args] = JSON.parse(line) as [Method, ...unknown[]];
      model[name](...args);
    }
  }

  /** Writes it to a file, whose path it returns. */
  write(seed: number): string {
    const path = join(tmpdir(), `control-model-${seed}.jsonl`);
    writeFileSync(path, this.#lines.join('\n'));
    return path;
  }
}

class Model {
  readonly #counts: Record<string, number>;
  readonly #posts: Map<string, Fate> = new Map(); // by name
  readonly #open: Map<string, Fate> = new Map(); // those that may still be delivered
  #statuses: { from: number; to: number; status: Status }[] = [];
  #lives: Life[] = [];
  #checks: [time: number, check: () => void][] = []; // once the host has reported what happened until then
  #deaths: [from: number, to: number][] = [];
  #closings: [from: number, to: number][] = []; // until the next server listens
  #acceptedOf: Map<number, { latest: number; waiting: Set<number> }> = new Map(); // by client
  #nameless = 0; // commands that may wait

  constructor(counts: Record<string, number>) {
    this.#counts = counts;
  }

  #count(what: string): void {
    this.#counts[what] = (this.#counts[what] ?? 0) + 1;
  }

  // ── What the host reports ──

  handle(events: readonly Event[]): void {
    for (const event of events) this.#handleOne(event);
  }

  #handleOne([kind, from, to, ...rest]: Event): void {
    const life = this.#lives.at(-1) as Life;
    if (['post', 'take', 'done', 'status'].includes(kind)) {
      // These happen in their order, but a status may have been published ahead of the events before it.
      if (kind === 'status') life.changes.published.push(from);
      else life.changes.from.push(Math.max(from, life.changes.from.at(-1) ?? 0));
      life.changes.to.push(to);
    }
    switch (kind) {
      case 'fault': return assert.fail(rest[0] as string);
      case 'beat': return this.#runChecks(to);
      case 'create': {
        this.#count('servers');
        this.#lives = this.#lives.filter(({ to }) => to > from - LIFE_KEPT_MS);
        this.#lives.push(new Life(from, ...rest as [string, number]));
        return;
      }
      case 'open': {
        const closing = this.#closings.at(-1);
        if (closing !== undefined) closing[1] = to;
        return;
      }
      case 'closing': return void this.#closings.push([from, Infinity]);
      case 'death': {
        this.#count('deaths');
        return void this.#deaths.push([from, to]);
      }
      case 'status': {
        this.#count('statuses');
        this.#statuses.push({ from, to, status: rest[0] });
        return;
      }
      case 'take': {
        const [id, ...taken] = rest;
        const [command, by, reason, text] = taken.map((part) => part ?? undefined); // JSON has null
        return this.#take(life, id, { from, to, command, by, reason, text });
      }
      case 'done': {
        const [id, outcome] = rest as [string, Outcome];
        life.done.set(id, { ...outcome, from, to });
        return;
      }
      case 'drained': {
        life.to = to;
        return this.#drain(to);
      }
      default: return;
    }
  }

  #take(life: Life, id: string, taken: Taken): void {
    const { to, command, by, reason, text } = taken;
    const [, prefix, own, number] = /^(\w+)-(i?)(\d+)$/.exec(id) ?? [];
    assert.equal(prefix, life.prefix);
    assert.equal(Number(number), own === 'i' ? (life.ownNumber += 1) : (life.number += 1), `${id} is out of order`);
    life.taken.set(id, taken);
    this.#count(own === 'i' ? 'own commands' : 'commands');
    if (own === 'i') return assert.equal(by, 'itself');
    life.takenAt.push(to);
    if (text !== undefined) this.#count('notes');
    if (reason === undefined) return void (this.#nameless -= 1);
    const post = this.#open.get(reason);
    assert.ok(post !== undefined, `${reason} is delivered twice, or was not sent`);
    assert.deepEqual([post.command, post.by, post.text, post.id], [command, by, text, null], inspect(post));
    assert.ok(post.outcome !== 'refused' && post.outcome !== 'never', `${inspect(post)} was taken as ${id}`);
    post.id = id;
    const accepted = this.#acceptedBy(post.client);
    accepted.waiting.delete(post.number);
    const earlier = [...accepted.waiting].filter((one) => one <= post.after);
    assert.deepEqual(earlier, [], `${reason} was taken before these`);
    if (post.outcome === 'ok') this.#open.delete(reason);
  }

  #drain(time: number): void {
    for (const post of this.#open.values()) {
      if (post.outcome === 'sent' || post.settledAt > time) continue;
      assert.ok(post.outcome !== 'ok' || post.id !== null, `lost: ${inspect(post)}`);
      this.#open.delete(post.name);
    }
    for (const list of [this.#statuses, this.#deaths, this.#closings]) list.splice(0, list.length - 20_000);
  }

  // ── What the clients report ──

  #acceptedBy(client: number): { latest: number; waiting: Set<number> } {
    const accepted = this.#acceptedOf.get(client) ?? { latest: -1, waiting: new Set() };
    this.#acceptedOf.set(client, accepted);
    return accepted;
  }

  /** Before a POST is sent. */
  post(post: Post): void {
    const after = this.#acceptedBy(post.client).latest;
    const fate: Fate = { ...post, text: post.text, by: post.by, after, outcome: 'sent', settledAt: Infinity, id: null };
    this.#posts.set(post.name, fate);
    this.#open.set(post.name, fate);
  }

  /** Before a POST without a name is sent, and when it was refused. */
  countNameless(change: 1 | -1): void {
    this.#nameless += change;
  }

  settle(name: string, outcome: Exclude<Fate['outcome'], 'sent'>, time: number): void {
    const post = this.#posts.get(name) as Fate;
    this.#count(`posts ${outcome}`);
    post.outcome = outcome;
    post.settledAt = time;
    if (outcome === 'never' || outcome === 'refused') assert.equal(post.id, null, `${inspect(post)} was taken`);
    if (outcome !== 'ok') return;
    const accepted = this.#acceptedBy(post.client);
    accepted.latest = post.number;
    if (post.id === null) accepted.waiting.add(post.number);
    else this.#open.delete(post.name);
  }

  /** A response to GET, whose tag was known or not. */
  noteGet(isInfo: boolean, known: string | null, response: Response, exchange: Exchange): void {
    const { statusCode, tag, body } = response;
    assert.ok(statusCode === 200 || (statusCode === 304 && known !== null), inspect(response));
    const isNew = statusCode === 200;
    if (isInfo) return this.#checkInfo(exchange, tag, isNew ? body as SystemInfo : null, known);
    this.#checkStatus(exchange, nameOf(tag), isNew, known === null ? null : nameOf(known));
    if (body !== undefined) assert.equal((body as SystemInfo).status, nameOf(tag));
  }

  /** A response to POST, which has perhaps a name and prefers to wait. */
  notePost(name: string | null, isPatient: boolean, response: Response, exchange: Exchange): void {
    const { statusCode, wasGranted, body } = response;
    assert.ok([200, 202, 500, 503].includes(statusCode), inspect(response));
    if (name !== null) this.settle(name, statusCode === 503 ? 'refused' : 'ok', exchange.receivedAt);
    else if (statusCode === 503) this.countNameless(-1);
    if (statusCode === 503) return this.#checkRefused(exchange);
    if (!wasGranted) assert.deepEqual([statusCode, body], [200, { result: 'ok' }]);
    if (!isPatient) return;
    const post = name === null ? null : this.#posts.get(name) as Fate;
    this.#checkOutcome(exchange, post, body as Record<string, unknown>);
  }

  /** Checks that the queue was full of commands that had been sent, and not been taken. */
  #checkRefused(exchange: Exchange): void {
    let waiting = this.#nameless; // at most
    for (const { id, outcome } of this.#open.values()) if (id === null && /sent|ok|unknown/.test(outcome)) waiting += 1;
    this.#later(exchange, () => {
      const { sentAt, receivedAt } = exchange;
      const lives = this.#lives.filter(({ from, to }) => from <= receivedAt + SLACK_MS && to >= sentAt - SLACK_MS);
      for (const { takenAt } of lives) waiting += takenAt.length - countUntil(takenAt, sentAt - SLACK_MS);
      const least = Math.min(...lives.map(({ size }) => size));
      assert.ok(waiting >= least, `refused by a queue of ${least} with at most ${waiting}: ${inspect(exchange)}`);
    });
  }

  /** Checks that a connection was lost because the thread or the server ended. */
  noteLoss(exchange: Exchange, wasConnected: boolean): void {
    this.#later(exchange, () => {
      const { sentAt, receivedAt } = exchange;
      const downMs = wasConnected ? 1000 : 4000; // until a new thread listens
      const hasDied = this.#deaths.some(([from, to]) => from - 50 < receivedAt && sentAt - to < downMs);
      const what = inspect({ ...exchange, wasConnected });
      assert.ok(hasDied || this.#isClosing(exchange, 500), `lost a connection without a reason: ${what}`);
    });
  }

  /** Checks the outcome of a command that waited: of its own command, and complete unless the wait ended. */
  #checkOutcome(exchange: Exchange, post: Fate | null, body: Record<string, unknown>): void {
    this.#later(exchange, () => {
      const { id, state, value, error } = body;
      if (state === undefined && error === undefined) { // an ok at once
        return assert.ok(this.#isClosing(exchange), `no outcome of ${inspect(post)}`);
      }
      const isFailed = error !== undefined;
      const ownId = String(isFailed ? post?.id ?? /: (\w+-\d+) /.exec(String(error))?.[1] : id);
      if (post !== null && post.id !== null) assert.equal(ownId, post.id, inspect(body));
      const life = this.#lives.find(({ prefix }) => ownId.startsWith(`${prefix}-`));
      assert.ok(life !== undefined, `${ownId} is of no server`);
      if (state === 'waiting' || state === 'running') {
        const isOver = exchange.receivedAt - exchange.sentAt >= exchange.waitMs - 20;
        assert.ok(isOver || this.#isClosing(exchange), `${inspect(body)} after ${inspect(exchange)}`);
        return this.#checkState(life, ownId, state, exchange);
      }
      this.#count(isFailed ? 'failures' : 'outcomes');
      const { from, to, ...outcome } = life.done.get(ownId) ?? assert.fail(`${ownId} is not done: ${inspect(body)}`);
      const { command } = life.taken.get(ownId) as Taken;
      assert.ok(from <= exchange.receivedAt + SLACK_MS);
      assert.deepEqual({ ...(value !== undefined && { value }), ...(isFailed && { error }) }, {
        ...outcome, ...(outcome.error !== undefined && { error: `${command} failed: ${outcome.error}` }),
      });
    });
  }

  /** Checks a status: one that was published when the request was sent, or since. */
  #checkStatus(exchange: Exchange, name: string, isNew: boolean, known: string | null): void {
    this.#later(exchange, () => {
      this.#count(isNew ? 'status 200' : 'status 304');
      const statuses = this.#statusesAt(exchange);
      const isPlausible = statuses.some(({ status }) => status.name === name);
      assert.ok(isPlausible, `${name} is none of ${inspect(statuses, { depth: 3 })} at ${inspect(exchange)}`);
      if (isNew && name === known) assert.ok(statuses.length > 1, `${name} is known`); // it came back meanwhile
      if (!isNew) assert.equal(name, known);
      const hasFlickered = statuses.length > 1; // a status that comes back at once may end the wait
      if (isNew || exchange.waitMs === 0) return;
      this.#checkWaited(exchange, this.#changesOf(statuses, name, exchange.receivedAt), hasFlickered);
    });
  }

  /** Checks the information: what it shows was so when the request was sent, or since; and so for its tag. */
  #checkInfo(exchange: Exchange, tag: string, info: SystemInfo | null, known: string | null): void {
    this.#later(exchange, () => {
      this.#count(info === null ? 'info 304' : 'info 200');
      const [prefix, number] = tag.slice(1, -1).split('-') as [string, string];
      const life = this.#lives.find((one) => one.prefix === prefix) ?? assert.fail(`${tag} is of no server`);
      const { sentAt, receivedAt } = exchange;
      const least = countUntil(life.changes.to, sentAt - SLACK_MS) + countUntil(life.takenAt, sentAt - SLACK_MS);
      assert.ok(Number(number) >= least, `${tag} is older than ${least} changes at ${inspect(exchange)}`);
      if (info === null) {
        assert.equal(tag, known);
        if (exchange.waitMs > 0) this.#checkWaited(exchange, [...life.changes.from, ...life.changes.published]);
        return;
      }
      assert.notEqual(tag, known);
      const ids = info.commands.map(({ id }) => id);
      const clients = ids.filter((id) => !id.includes('-i')).map((id) => Number(id.slice(4)));
      const declarations = 1; // those of the constructor
      const [changes, statusChanges] = [life.changes.from, life.changes.published].map((times) => {
        return countUntil(times, receivedAt + SLACK_MS);
      }) as [number, number];
      const most = declarations + changes + statusChanges + (clients.at(-1) ?? Infinity);
      assert.ok(Number(number) <= most, `${tag} is newer than ${most} changes`);
      for (const numbers of [clients, ids.filter((id) => id.includes('-i')).map((id) => Number(id.slice(5)))]) {
        assert.deepEqual(numbers, numbers.map((_, index) => Number(numbers[0]) + index), `gaps: ${ids}`);
      }
      assert.ok(ids.length <= 16 && ids.every((id) => id.startsWith(`${prefix}-`)), inspect(ids));
      const statuses = this.#statusesAt(exchange);
      assert.ok(statuses.some(({ status }) => isSame(status, info)), inspect([info, statuses], { depth: 4 }));
      for (const command of info.commands) this.#checkCommand(life, command, exchange);
      this.#checkContent(life, Number(number), info, exchange);
    });
  }

  #checkCommand(life: Life, { id, command, state, value, error, by, reason }: CommandInfo, exchange: Exchange): void {
    this.#checkState(life, id, state, exchange);
    const taken = life.taken.get(id);
    if (taken !== undefined) assert.deepEqual([command, by, reason], [taken.command, taken.by, taken.reason], id);
    if (state !== 'done' && state !== 'failed') return;
    const outcome = life.done.get(id);
    assert.deepEqual([value, error], [outcome?.value, outcome?.error], id);
  }

  /** A command has at least the state that it had when the request was sent, and at most that of the response. */
  #checkState(life: Life, id: string, state: unknown, { sentAt, receivedAt }: Exchange): void {
    const [taken, done] = [life.taken.get(id), life.done.get(id)];
    const what = `${id} is ${state}: ${inspect({ taken, done, sentAt, receivedAt })}`;
    const isComplete = state === 'done' || state === 'failed';
    if (state !== 'waiting') assert.ok(taken !== undefined && taken.from <= receivedAt + SLACK_MS, what);
    else assert.ok(taken === undefined || taken.to >= sentAt - SLACK_MS, what);
    if (isComplete) assert.ok(done !== undefined && done.from <= receivedAt + SLACK_MS, what);
    else assert.ok(done === undefined || done.to >= sentAt - SLACK_MS, what);
    if (isComplete) assert.equal(state === 'failed', done?.error !== undefined, what);
  }

  /**
   * Two responses with the same tag have the same content. The server reads the tag before the content, so the content
   * may include what happened during the later request.
   */
  #checkContent(life: Life, tag: number, info: SystemInfo, exchange: Exchange): void {
    const { commands, status, since, by, reason } = info;
    const content: Partial<SystemInfo> = { commands, status, since, by, reason };
    const other = life.contents.get(tag);
    life.contents.set(tag, { ...exchange, content });
    if (life.contents.size > 1000) for (const old of [...life.contents.keys()].slice(0, 500)) life.contents.delete(old);
    if (other === undefined) return;
    this.#count('equal tags');
    const [earlier, later] = other.sentAt < exchange.sentAt ? [other, exchange] : [exchange, other];
    const { sentAt } = earlier.receivedAt < later.sentAt ? later : earlier;
    const isRacing = ({ from, to }: { from: number; to: number }): boolean => {
      return from <= Math.max(earlier.receivedAt, later.receivedAt) + SLACK_MS && to >= sentAt - SLACK_MS;
    };
    const before = new Map(other.content.commands?.map((command) => [command.id, command]));
    for (const command of commands) {
      const [taken, done] = [life.taken.get(command.id), life.done.get(command.id)];
      if ((taken && isRacing(taken)) || (done && isRacing(done)) || !before.has(command.id)) continue;
      assert.deepEqual(before.get(command.id), command, `"${tag}"`);
    }
    if (this.#statuses.some(isRacing)) return;
    assert.deepEqual({ ...content, commands: [] }, { ...other.content, commands: [] }, `"${tag}"`);
  }

  /** A 304 comes after the wait, and only if there was no news, except at its very end. */
  #checkWaited(exchange: Exchange, newsAt: readonly number[], mayEndEarly: boolean = false): void {
    if (this.#isClosing(exchange)) return;
    const { sentAt, receivedAt, waitMs } = exchange;
    assert.ok(mayEndEarly || receivedAt - sentAt >= waitMs - 20, `a 304 too early: ${inspect(exchange)}`);
    const missed = newsAt.filter((time) => time > sentAt + SLACK_MS && receivedAt - time > NEWS_MS);
    assert.deepEqual(missed, [], `missed by ${inspect(exchange)}`);
    this.#count('waited in vain');
  }

  /** When the status changed from the known one and stayed different for a while. */
  #changesOf(statuses: readonly { from: number; status: Status }[], known: string, end: number): number[] {
    return statuses.flatMap(({ from, status }, index) => {
      const until = statuses[index + 1]?.from ?? end;
      return status.name !== known && until - from > NEWS_MS ? [from] : [];
    });
  }

  /** All statuses published when a request was sent, or since. */
  #statusesAt({ sentAt, receivedAt }: Exchange): { from: number; to: number; status: Status }[] {
    let first = this.#statuses.length - 1;
    while (first > 0 && (this.#statuses[first] as { to: number }).to >= sentAt - SLACK_MS) first -= 1;
    return this.#statuses.slice(Math.max(0, first)).filter(({ from }) => from <= receivedAt + SLACK_MS);
  }

  #isClosing({ sentAt, receivedAt }: Exchange, slackMs: number = SLACK_MS): boolean {
    return this.#closings.some(([from, to]) => from - slackMs < receivedAt && sentAt - to < slackMs);
  }

  #later({ sentAt, receivedAt, waitMs }: Exchange, check: () => void): void {
    const tookMs = receivedAt - sentAt;
    assert.ok(tookMs < waitMs + LATE_MS, `${tookMs} ms, with a wait of ${waitMs}`);
    this.#checks.push([receivedAt + SLACK_MS, check]);
  }

  #runChecks(reportedUntil: number): void {
    const count = this.#checks.findIndex(([time]) => time >= reportedUntil);
    for (const [, check] of this.#checks.splice(0, count === -1 ? this.#checks.length : count)) check();
  }
}

function nameOf(tag: string): string {
  return tag.slice(1, -1).replace('-', ' ');
}

function isSame({ name, by, reason, since: [from, to] }: Status, info: SystemInfo): boolean {
  const since = Date.parse(info.since);
  return name === info.status && by === info.by && reason === info.reason && from <= since && since <= to;
}

/** The number of times, in order, until a time. */
function countUntil(times: readonly number[], time: number): number {
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((times[middle] as number) <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}
