// A program that uses the server at random; a history of what it reports and its clients see; and a model, which checks
// whether the clients may see that, given what the program reports.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { randomNumbers } from './helpers.ts';
import type { CommandInfo, StatusCause, SystemInfo } from '../../../control.ts';

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
  holds: Pick<Status, 'by' | 'reason' | 'since'>[];
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
    let decidedAt = 0; // before the latest look that may have let a command expire
    let releasesNotedAt = 0;
    let posted = 0;
    const own = []; // that wait

    const publish = (from, { name, by, reason, since, holds: others }) => {
      const byItself = running === null ? 'itself' : 'somebody';
      const isFirst = name === 'paused' && others.length === 0;
      const holds = name === 'active' ? [] : isFirst ? [{ by: by ?? byItself, reason, since }] : others;
      published = { name, holds, ...(name === 'paused' ? holds[0] : { by, reason, since }) };
      log('status', from, published);
    };

    const notePublished = (from) => {
      if (published !== null && published.name === status.statusName) return void (changedAt = Infinity);
      const since = [Math.min(from, changedAt), Date.now()];
      const isCancelled = running?.command === 'shutdown' && status === PAUSED;
      const cause = isCancelled ? { by: 'itself', reason: 'shutdown cancelled' } : running ?? { by: 'itself' };
      const { by, reason } = published === null ? {} : cause;
      const isBack = running !== null && before.name === status.statusName;
      const holds = published === null ? [] : published.holds;
      publish(since[0], isBack ? before : { name: status.statusName, by, reason, since, holds });
      changedAt = Infinity;
    };

    const noteCompleted = (from, outcome = {}) => {
      if (running === null) return;
      const { id, command, by = 'somebody', reason } = running;
      running = null;
      log('done', from, id, outcome);
      if (outcome.error !== undefined || command !== 'pause' || published.name === 'active') return;
      const isOwn = (hold) => hold.by === by;
      const holds = published.holds.map((hold) => isOwn(hold) && reason !== undefined ? { ...hold, reason } : hold);
      if (!holds.some(isOwn)) holds.push({ by, reason, since: [from, Date.now()] });
      publish(from, { ...published, holds });
    };

    /** After a look: each hold that is gone was released, and at least one is left. */
    const noteReleases = (from) => {
      if (running !== null) return;
      const { holds } = published;
      const actual = server.holds;
      const left = holds.filter(({ by }) => actual.some((hold) => hold.by === by));
      const isSame = ({ by, reason, since: [from, to] }, index) => {
        const hold = actual[index];
        const time = Date.parse(hold.since);
        return hold.by === by && hold.reason === reason && from <= time && time <= to;
      };
      const isRight = left.length === actual.length && left.every(isSame) && (left.length > 0 || holds.length === 0);
      if (!isRight) fault('holds: ' + JSON.stringify(actual) + ' of ' + JSON.stringify(holds));
      const start = Math.min(from, releasesNotedAt);
      releasesNotedAt = Date.now();
      if (left.length === holds.length) return;
      for (const { by } of holds) if (!left.some((hold) => hold.by === by)) log('release', start, by);
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

    const noteTaken = (from, command) => {
      noteCompleted(from);
      noteReleases(from);
      const { id, by, reason, command: requested, arguments: { text } } = server.request;
      if (command !== requested) fault(command + ' is requested as ' + requested);
      const isOwn = id.includes('-i');
      if (!isOwn && own.length > 0) fault(id + ' was taken ahead of ' + own[0]);
      if (isOwn && own.shift() !== command + ' ' + reason) fault(id + ' was taken out of order');
      log('take', from, id, command, by, reason, text, decidedAt);
      decidedAt = from;
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
      const isCancelled = server.request.command === 'shutdown' && random() < 0.8; // else no own command is left
      if (isCancelled) report({ error: text });
      else if (choice < 0.4) report({ value: text });
      else if (choice < 0.5) report({ value: below(1e6) / 8 });
      else if (choice < 0.7) report({ error: text });
    };

    /** hasCommands() was true, unless this is perhaps in vain. */
    const receive = (isInVain = false) => {
      if (random() < 0.01) block(below(30));
      if (random() < 0.1) blockLong(); // what is announced may expire
      const from = Date.now();
      try {
        const command = server.receiveCommand();
        notePublished(from);
        noteTaken(from, command);
        act();
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
      const { signal } = server;
      const { aborted, reason } = signal;
      if (aborted) log('interrupted', from);
      else signal.onabort = () => log('interrupted', Date.now());
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

    let nextBlockAt = Date.now() + 500;
    const blockLong = () => {
      if (Date.now() < nextBlockAt) return;
      block(1000 + below(200)); // some commands expire
      nextBlockAt = Date.now() + 300 + below(${lifeMs});
    };

    const step = async () => {
      killThread();
      if (random() < 0.001) await sleep(1300); // longer than some wait
      blockLong();
      const choice = random();
      if (choice < 0.40) for (let count = below(20); count >= 0 && look(); count -= 1) receive();
      else if (choice < 0.43) receive(true);
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
      releasesNotedAt = from;
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
      do {
        while (look()) receive();
        report({});
      } while (look());
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
  /** Seconds, or 0. */
  readonly expires: number;
  /** It releases the hold of its sender. */
  readonly isRelease: boolean;
  readonly sentAt: number;
}

/** What the model knows of it. */
interface Fate extends Post {
  /** The latest of this client that was accepted before this one was sent. */
  readonly after: number;
  /** `never` must not be delivered; `unknown` has no response. */
  outcome: 'sent' | 'ok' | 'refused' | 'unknown' | 'never';
  settledAt: number;
  id: string | null;
  /** It was not delivered, and must not be. */
  isOver: boolean;
  /** How it ended without being delivered, as a client was told. */
  end: string | null;
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
  value?: unknown;
  error?: string | undefined;
}

/** Of the four commands, and of own commands. */
type Lane = 'four' | 'own';

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
  readonly takenAt: Record<Lane, number[]> = { four: [], own: [] };
  /** What the tag covers, as the host reports it. */
  readonly changes: Record<'from' | 'published' | 'to', number[]> = { from: [], published: [], to: [] };
  readonly latest: Record<Lane | 'posted', { number: number; command: string }> = {
    four: { number: 0, command: '' }, own: { number: 0, command: '' }, posted: { number: 0, command: '' },
  };
  readonly shutdowns: number[] = []; // when they had succeeded
  readonly interruptions: number[] = []; // when a command has aborted the signal: it no longer expires
  deaths = 0;
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
  #acceptedOf: Map<number, { latest: number; waiting: Set<Fate> }> = new Map(); // by client
  readonly #nameless: Record<Lane, number> = { four: 0, own: 0 }; // commands that may wait

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
        life.deaths += 1;
        return void this.#deaths.push([from, to]);
      }
      case 'status': {
        this.#count('statuses');
        this.#statuses.push({ from, to, status: rest[0] });
        return;
      }
      case 'take': {
        const [id, ...taken] = rest;
        const [command, by, reason, text, decidedAt] = taken.map((part) => part ?? undefined); // JSON has null
        return this.#take(life, id, { from, to, command, by, reason, text }, decidedAt);
      }
      case 'interrupted': return void life.interruptions.push(to);
      case 'release': {
        const isSent = [...this.#open.values()].some((post) => {
          return post.isRelease && holderOf(post) === rest[0] && post.id === null && post.outcome !== 'refused';
        });
        return assert.ok(isSent, `nobody has released the hold of ${rest[0]}`);
      }
      case 'done': {
        const [id, outcome] = rest as [string, Outcome];
        const { command, reason = '' } = life.taken.get(id) as Taken;
        const isReleased = this.#posts.get(reason)?.isRelease === true && outcome.error === undefined;
        life.done.set(id, { ...outcome, ...(isReleased && { value: { released: true } }), from, to });
        if (command === 'shutdown' && outcome.error === undefined) life.shutdowns.push(to);
        return;
      }
      case 'drained': {
        life.to = to;
        return this.#drain(life, to);
      }
      default: return;
    }
  }

  #take(life: Life, id: string, taken: Taken, decidedAt: number): void {
    const { from, to, command, by, reason, text } = taken;
    const [, prefix, mark] = /^(\w+)-(i?)\d+$/.exec(id) ?? [];
    assert.equal(prefix, life.prefix);
    const lane = mark === 'i' ? 'posted' : laneOf(command);
    const number = numberOf(id);
    assert.ok(number > life.latest[lane].number, `${id} is out of order`);
    life.latest[lane] = { number, command };
    life.taken.set(id, taken);
    this.#count({ posted: 'own commands', four: 'commands', own: 'notes' }[lane]);
    if (lane === 'posted') return assert.equal(by, 'itself');
    life.takenAt[lane].push(to);
    this.#checkLanes(life, lane, number, from);
    if (reason === undefined) return void (this.#nameless[lane] -= 1);
    const post = this.#open.get(reason);
    assert.ok(post !== undefined, `${reason} is delivered twice, or was not sent`);
    assert.deepEqual([post.command, post.by, post.text, post.id], [command, by, text, null], inspect(post));
    const isOpen = post.outcome !== 'refused' && post.outcome !== 'never' && !post.isOver;
    assert.ok(isOpen, `${inspect(post)} was taken as ${id}`);
    const limit = post.settledAt + 1000 * post.expires + SLACK_MS;
    const isLate = post.expires > 0 && post.outcome === 'ok' && decidedAt > limit;
    const isKept = (time: number): boolean => isUrgent(command) && post.sentAt - SLACK_MS < time && time < limit;
    assert.ok(!isLate || life.interruptions.some(isKept), `${inspect(post)} was taken after a look at ${decidedAt}`);
    if (isLate) this.#count('kept');
    if (post.expires > 0) this.#count('in time');
    if (post.isRelease) this.#checkLast(post, decidedAt);
    post.id = id;
    const accepted = this.#acceptedBy(post.client);
    accepted.waiting.delete(post);
    for (const one of accepted.waiting) {
      if (one.number > post.after || laneOf(one.command) !== lane) continue;
      assert.ok(this.#mayVanish(one, to), `${reason} was taken before ${inspect(one)}`);
      one.isOver = true;
      accepted.waiting.delete(one);
    }
    if (post.outcome === 'ok') this.#open.delete(reason);
  }

  /** Checks that a command was taken in the order of acceptance, except for a pause or a shutdown. */
  #checkLanes(life: Life, lane: Lane, number: number, time: number): void {
    const { four, own } = life.latest;
    if (lane === 'four') return assert.ok(number > own.number, `${number} was taken after ${own.number}`);
    const urgent = [...this.#open.values()].filter((post) => isUrgent(post.command) && post.id === null);
    const waits = urgent.find(({ outcome, expires, settledAt }) => {
      return outcome === 'ok' && expires === 0 && settledAt < time - SLACK_MS;
    });
    assert.equal(waits, undefined, `${number} was taken while this waited`);
    if (four.number < number) return;
    this.#count('overtaken');
    const isDue = isUrgent(four.command) || urgent.some(({ expires }) => expires > 0); // which has expired since
    assert.ok(isDue, `${four.command} ${four.number} was taken ahead of the own command ${number}`);
  }

  /** Checks that a release was delivered because nobody else held the pause. */
  #checkLast(post: Fate, decidedAt: number): void {
    const { to, status } = this.#statuses.at(-1) as { to: number; status: Status };
    const isLast = status.holds.every(({ by }) => by === holderOf(post));
    assert.ok(isLast || to >= decidedAt - SLACK_MS, `${inspect(post)} was delivered: ${inspect(status, { depth: 4 })}`);
  }

  /** Whether it may have ended so by a time: on any server, as a response may be read after the next server's start. */
  #mayVanish({ expires, isRelease, command, sentAt }: Post, time: number): boolean {
    const hasExpired = expires > 0 && time - sentAt >= 1000 * expires - SLACK_MS;
    const isShut = this.#lives.some(({ shutdowns }) => shutdowns.some((end) => end >= sentAt - SLACK_MS));
    return hasExpired || isRelease || (command === 'note' && isShut);
  }

  #drain(life: Life, time: number): void {
    const number = Math.max(...Object.values(life.latest).map((latest) => latest.number));
    const most = [...this.#open.values()].filter((post) => post.id === null && canVanish(post)).length + life.deaths;
    const missing = number - life.taken.size;
    const notes = life.shutdowns.length > 0 ? this.#nameless.own : 0;
    assert.ok(missing <= most + notes, `${missing} of ${number} were not delivered, but ${most} may be missing`);
    for (const post of this.#open.values()) {
      if (post.outcome === 'sent' || post.settledAt > time) continue;
      const isLost = post.outcome === 'ok' && post.id === null;
      assert.ok(!isLost || this.#mayVanish(post, time), `lost: ${inspect(post)}`);
      this.#acceptedBy(post.client).waiting.delete(post);
      this.#open.delete(post.name);
    }
    for (const list of [this.#statuses, this.#deaths, this.#closings]) list.splice(0, list.length - 20_000);
  }

  // ── What the clients report ──

  #acceptedBy(client: number): { latest: number; waiting: Set<Fate> } {
    const accepted = this.#acceptedOf.get(client) ?? { latest: -1, waiting: new Set<Fate>() };
    this.#acceptedOf.set(client, accepted);
    return accepted;
  }

  /** Before a POST is sent. */
  post(post: Post): void {
    const after = this.#acceptedBy(post.client).latest;
    const fate: Fate = {
      ...post, text: post.text, by: post.by, after, outcome: 'sent', settledAt: Infinity, id: null, isOver: false,
      end: null,
    };
    this.#posts.set(post.name, fate);
    this.#open.set(post.name, fate);
  }

  /** Before a POST without a name is sent, and when it was refused. */
  countNameless(lane: Lane, change: 1 | -1): void {
    this.#nameless[lane] += change;
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
    if (post.id === null) accepted.waiting.add(post);
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
  notePost(lane: Lane, name: string | null, isPatient: boolean, response: Response, exchange: Exchange): void {
    const { statusCode, wasGranted, body } = response;
    assert.ok([200, 202, 500, 503].includes(statusCode), inspect(response));
    if (name !== null) this.settle(name, statusCode === 503 ? 'refused' : 'ok', exchange.receivedAt);
    else if (statusCode === 503) this.countNameless(lane, -1);
    if (statusCode === 503) return this.#checkRefused(lane, exchange);
    if (!wasGranted) assert.deepEqual([statusCode, body], [200, { result: 'ok' }]);
    if (!isPatient) return;
    const post = name === null ? null : this.#posts.get(name) as Fate;
    this.#checkOutcome(exchange, post, body as Record<string, unknown>);
  }

  /** Checks that the queue was full of commands that had been sent, and not been taken. */
  #checkRefused(lane: Lane, exchange: Exchange): void {
    let waiting = this.#nameless[lane]; // at most
    for (const { id, command, outcome } of this.#open.values()) {
      if (id === null && laneOf(command) === lane && /sent|ok|unknown/.test(outcome)) waiting += 1;
    }
    this.#later(exchange, () => {
      const { sentAt, receivedAt } = exchange;
      const lives = this.#lives.filter(({ from, to }) => from <= receivedAt + SLACK_MS && to >= sentAt - SLACK_MS);
      for (const { takenAt: { [lane]: takenAt } } of lives) {
        waiting += takenAt.length - countUntil(takenAt, sentAt - SLACK_MS);
      }
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
      if (post === null && error === 'note failed: the program has shut down') return;
      if (post !== null && post.id === null && canVanish(post) && state !== 'waiting') {
        if (state === 'running') return; // for a moment
        const message = isFailed ? String(error).replace(`${post.command} failed: `, '') : undefined;
        return this.#checkVanished(post, { value, error: message }, exchange);
      }
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

  /** Checks how a command ended that was not delivered. */
  #checkVanished(post: Fate, { value, error }: Outcome, exchange: Exchange): void {
    const { receivedAt } = exchange;
    const what = `${inspect(post)}: ${inspect({ value, error })} at ${receivedAt}`;
    const end = JSON.stringify([value, error]);
    if (post.end !== null) return assert.equal(end, post.end, what);
    [post.end, post.isOver] = [end, true];
    if (error === undefined) {
      const { released } = value as { released: boolean };
      this.#count(released ? 'releases' : 'releases in vain');
      const statuses = this.#statusesAt({ ...exchange, sentAt: post.sentAt });
      const isPlausible = statuses.some(({ status: { holds } }) => {
        const holdsIt = holds.some(({ by }) => by === holderOf(post));
        return released ? holdsIt && holds.length > 1 : !holdsIt;
      });
      assert.ok(post.isRelease && isPlausible, `${what}; ${inspect(statuses, { depth: 5 })}`);
    } else if (error === 'the program has shut down') {
      this.#count('shut down');
      const isShut = this.#lives.some(({ shutdowns }) => shutdowns.some((time) => time >= post.sentAt - SLACK_MS));
      assert.ok(post.command === 'note' && isShut, what);
    } else {
      this.#count('expired');
      assert.equal(error, `expired after ${post.expires} s`, what);
      assert.ok(receivedAt - post.sentAt >= 1000 * post.expires - SLACK_MS, what);
    }
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
      const { changes: { to }, takenAt: { four, own } } = life;
      const least = [to, four, own].reduce((sum, times) => sum + countUntil(times, sentAt - SLACK_MS), 0);
      assert.ok(Number(number) >= least, `${tag} is older than ${least} changes at ${inspect(exchange)}`);
      if (info === null) {
        assert.equal(tag, known);
        if (exchange.waitMs > 0) this.#checkWaited(exchange, [...life.changes.from, ...life.changes.published]);
        return;
      }
      assert.notEqual(tag, known);
      const ids = info.commands.map(({ id }) => id);
      const numbers = ids.map(numberOf);
      assert.deepEqual(numbers, [...new Set(numbers)].sort((one, other) => one - other), `out of order: ${ids}`);
      assert.ok(ids.length <= 18 && ids.every((id) => id.startsWith(`${prefix}-`)), inspect(ids));
      const declarations = 1; // those of the constructor
      const [changes, statusChanges] = [life.changes.from, life.changes.published].map((times) => {
        return countUntil(times, receivedAt + SLACK_MS);
      }) as [number, number];
      const accepted = numbers.at(-1) ?? Infinity;
      const vanished = accepted - [...life.taken.keys()].filter((id) => numberOf(id) <= accepted).length;
      const most = declarations + changes + statusChanges + accepted + 3 * vanished; // taken, completed, and a status
      assert.ok(Number(number) <= most, `${tag} is newer than ${most} changes`);
      const statuses = this.#statusesAt(exchange);
      assert.ok(statuses.some(({ status }) => isSame(status, info)), inspect([info, statuses], { depth: 5 }));
      const [cause = info] = info.status === 'paused' ? info.holds as [StatusCause] : [];
      assert.deepEqual([cause.by, cause.reason, cause.since], [info.by, info.reason, info.since]);
      for (const command of info.commands) this.#checkCommand(life, command, exchange);
      this.#checkContent(life, Number(number), info, exchange);
    });
  }

  #checkCommand(life: Life, { id, command, state, value, error, by, reason }: CommandInfo, exchange: Exchange): void {
    const taken = life.taken.get(id);
    const post = this.#posts.get(reason ?? '');
    const isNameless = reason === undefined && command === 'note' && life.shutdowns.length > 0;
    if (taken === undefined && (isNameless || (post !== undefined && canVanish(post)))) {
      if (post !== undefined && /done|failed/.test(state)) this.#checkVanished(post, { value, error }, exchange);
      return;
    }
    this.#checkState(life, id, state, exchange);
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
    const { commands, status, since, by, reason, holds } = info;
    const content: Partial<SystemInfo> = { commands, status, since, by, reason, holds };
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
      if (taken === undefined || isRacing(taken) || (done && isRacing(done)) || !before.has(command.id)) continue;
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

function numberOf(id: string): number { return Number(/\d+$/.exec(id)?.[0]); }

function laneOf(command: string): Lane { return command === 'note' ? 'own' : 'four'; }

function isUrgent(command: string): boolean { return command === 'pause' || command === 'shutdown'; }

function holderOf({ by }: Post): string { return by ?? 'somebody'; }

/** Whether a command may end without being delivered, some time. */
function canVanish({ expires, isRelease, command }: Post): boolean {
  return expires > 0 || isRelease || command === 'note';
}

/** Some holds may have been released before the program looked. */
function isSame({ name, holds, ...cause }: Status, info: SystemInfo): boolean {
  const isOf = ({ by, reason, since: [from, to] }: Omit<Status, 'name' | 'holds'>, given: StatusCause): boolean => {
    const since = Date.parse(given.since as string);
    return by === given.by && reason === given.reason && from <= since && since <= to;
  };
  const given = info.holds as StatusCause[];
  const left = holds.filter(({ by }) => given.some((hold) => hold.by === by));
  const isHeld = left.length === given.length && left.every((hold, index) => isOf(hold, given[index] as StatusCause));
  return name === info.status && isHeld && (given.length > 0 ? name === 'paused' || isOf(cause, info)
    : holds.length === 0 && isOf(cause, info));
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
