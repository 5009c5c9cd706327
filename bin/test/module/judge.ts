// The judge of a chronicle: whether clients may see what they see, and the log may have what it has, given what the
// program reports.

import assert from 'node:assert/strict';
import { inspect } from 'node:util';
import type { AskInfo, CommandInfo, StatusCause, SystemInfo } from '../../../control.ts';
import type { HttpResponse } from '../http.ts';
import type { Line } from './log.ts';

/** The reason of a resume by which the server ends a hold. */
const ENDED = 'the hold has ended';
/** All times are those of `Date.now()`, which two processes may read in either order. */
const SLACK_MS = 3;

/** What the program reports: a kind, the times between which it happened, and more. */
export type Event = [kind: string, from: number, to: number, ...rest: any[]];

interface Status {
  name: string;
  by?: string;
  reason?: string;
  since: [from: number, to: number];
  holds: (Pick<Status, 'by' | 'reason' | 'since'> & { until?: string })[];
}

/** A POST whose reason is a name; the program reports it when it takes the command. */
export interface Post {
  readonly client: number;
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

/** What the judge knows of it. */
interface Fate extends Post {
  /** `refused` and `never` must not be accepted; `unknown` has no response. */
  outcome: 'sent' | 'ok' | 'refused' | 'unknown' | 'never';
  settledAt: number;
  /** Once the program has taken it. */
  id: string | null;
  /** Whether somebody has tried to withdraw it. */
  mayBeWithdrawn: boolean;
}

/** A request and its response, in milliseconds. */
export interface Exchange {
  sentAt: number;
  receivedAt: number;
  /** What the client prefers to wait, if the server grants it. */
  waitMs: number;
}

/** An answer that a client has sent. Without a reply, the connection has broken. */
export interface Attempt {
  id: string;
  message: string;
  by: string;
  reason: string;
  pick: number;
  reply: HttpResponse | null;
}

/** A withdrawal that a client has sent, and what it would make of the outcome. */
export interface Withdrawal {
  id: string;
  words: string;
  reply: HttpResponse | null;
}

/** What the program has got: an answer, or the error of its question. */
interface Got {
  values?: { pick: number };
  by?: string;
  reason?: string;
  name?: string;
  error?: string;
}

interface Outcome {
  value?: any;
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
  /** The end of a hold, of the resume by which the server ends it. */
  ended: string | undefined;
}

/** What is known of one server and its history. */
class Life {
  readonly prefix: string;
  closedAt = Infinity; // from then on, outcomes may be missing in the log
  readonly taken: Map<string, Taken> = new Map(); // by id
  readonly done: Map<string, Outcome & { from: number; to: number }> = new Map();
  readonly takenAt: Record<Lane, number[]> = { four: [], own: [] };
  /** What the tag covers, as the program reports it. */
  readonly changes: Record<'from' | 'published' | 'to', number[]> = { from: [], published: [], to: [] };
  readonly latest: Record<Lane | 'posted', number> = { four: 0, own: 0, posted: 0 };
  latestOfFour = ''; // the command
  readonly statuses: string[] = []; // until it is closed
  readonly released: { by: string; isSure: boolean }[] = [];
  readonly interruptions: number[] = []; // when a command had aborted the signal or a question: it no longer expires
  readonly contents: Map<number, Exchange & { content: Partial<SystemInfo> }> = new Map(); // by tag

  constructor(prefix: string) {
    this.prefix = prefix;
  }
}

export class Judge {
  readonly #first: number; // the number of commands before the first
  readonly #counts: Record<string, number> = {};
  readonly #posts: Map<string, Fate> = new Map(); // by name
  readonly #replies: [id: string | undefined, post: Fate | null, body: Record<string, unknown>][] = [];
  readonly #shown: Map<string, string> = new Map(); // what has ended, by id, as clients have seen it
  readonly #statuses: { from: number; to: number; status: Status }[] = [];
  readonly #lives: Life[] = [];
  readonly #deaths: { diedAt: number; restartedAt: number; servesAt: number }[] = []; // of threads
  readonly #closings: [from: number, to: number][] = []; // until the next server listens
  readonly #asked: Map<string, { from: number; to: number; hasKey: boolean; got?: Got; gotAt: number }> = new Map();
  readonly #attempts: Attempt[] = [];
  readonly #withdrawals: Map<string, Withdrawal[]> = new Map(); // by id
  readonly #holdEnds: Set<string> = new Set(); // the ids of resumes by which the server has ended holds
  #checks: [time: number, check: () => void][] = []; // once the program has reported what happened until then

  constructor(first: number) {
    this.#first = first;
  }

  /** How often what has happened. */
  get counts(): Readonly<Record<string, number>> { return this.#counts; }

  #count(what: string): void {
    this.#counts[what] = (this.#counts[what] ?? 0) + 1;
  }

  // ── What the program reports ──

  handle([kind, from, to, ...rest]: Event): void {
    const life = this.#lives.at(-1) as Life;
    if (['post', 'take', 'done', 'status', 'ask', 'got'].includes(kind)) {
      // These happen in their order, but a status may have been published ahead of the events before it.
      if (kind === 'status') life.changes.published.push(from);
      else if (kind !== 'got') life.changes.from.push(Math.max(from, life.changes.from.at(-1) ?? 0));
      life.changes.to.push(to);
    }
    switch (kind) {
      case 'fault': return assert.fail(rest[0] as string);
      case 'beat': return this.#runChecks(to);
      case 'create': {
        this.#count('servers');
        return void this.#lives.push(new Life(rest[0] as string));
      }
      case 'open': {
        const closing = this.#closings.at(-1);
        if (closing !== undefined) closing[1] = to;
        return;
      }
      case 'closing': {
        life.closedAt = from;
        return void this.#closings.push([from, Infinity]);
      }
      case 'death': {
        this.#count('deaths');
        return void this.#deaths.push({ diedAt: from, restartedAt: Infinity, servesAt: Infinity });
      }
      case 'restart': {
        const death = this.#deaths.at(-1);
        if (death?.restartedAt === Infinity) death.restartedAt = to;
        return;
      }
      case 'status': {
        this.#statuses.push({ from, to, status: rest[0] });
        if (life.closedAt === Infinity) life.statuses.push(rest[0].name);
        return;
      }
      case 'take': {
        const [id, ...taken] = rest;
        const [command, by, reason, text, decidedAt, ended] = taken.map((part) => part ?? undefined); // JSON has null
        return this.#take(life, id, { from, to, command, by, reason, text, ended }, decidedAt);
      }
      case 'interrupted': return void life.interruptions.push(to);
      case 'release': {
        const [by, isSure] = rest;
        return void life.released.push({ by, isSure: isSure && life.closedAt === Infinity });
      }
      case 'done': {
        const [id, outcome] = rest as [string, Outcome];
        const { reason = '' } = life.taken.get(id) as Taken;
        const isRelease = reason === ENDED || this.#posts.get(reason)?.isRelease === true;
        const isReleased = isRelease && outcome.error === undefined;
        return void life.done.set(id, { ...outcome, ...(isReleased && { value: { released: true } }), from, to });
      }
      case 'ask': return void this.#asked.set(rest[0], { from, to, hasKey: rest[1], gotAt: Infinity });
      case 'got': {
        const [message, got] = rest as [string, Got];
        this.#count(got.name ?? 'answered');
        if (/^Interrupted by/.test(got.error ?? '')) life.interruptions.push(Infinity); // some time before
        return void Object.assign(this.#asked.get(message) ?? assert.fail(message), { got, gotAt: to });
      }
      case 'asked again': return this.#count(kind);
      default: return;
    }
  }

  #take(life: Life, id: string, taken: Taken, decidedAt: number): void {
    const { from, to, command, by, reason, text, ended } = taken;
    const [, prefix, mark] = /^(\w+)-(i?)\d+$/.exec(id) ?? [];
    assert.equal(prefix, life.prefix);
    const lane = mark === 'i' ? 'posted' : laneOf(command);
    const number = this.#numberOf(id);
    assert.ok(number > life.latest[lane], `${id} is out of order`);
    life.latest[lane] = number;
    if (lane === 'four') life.latestOfFour = command;
    life.taken.set(id, taken);
    this.#count({ posted: 'posted commands', four: 'commands', own: 'notes' }[lane]);
    if (lane === 'posted') return assert.equal(by, 'itself');
    life.takenAt[lane].push(to);
    this.#checkLanes(life, lane, number, command, from);
    if (reason === undefined) return;
    if (reason === ENDED) return this.#checkHoldEnd(taken, decidedAt);
    assert.equal(ended, undefined);
    const post = this.#posts.get(reason);
    assert.deepEqual([post?.command, post?.by, post?.text, post?.id], [command, by, text, null], inspect(post));
    if (post === undefined) return;
    assert.ok(post.outcome !== 'refused' && post.outcome !== 'never', `${inspect(post)} was taken as ${id}`);
    const limit = post.settledAt + 1000 * post.expires + SLACK_MS;
    const isLate = post.expires > 0 && post.outcome === 'ok' && decidedAt > limit;
    const isStop = isUrgent(command) || command === 'save-state';
    const isKept = isStop && life.interruptions.some((time) => post.sentAt - SLACK_MS < time);
    assert.ok(!isLate || isKept, `${inspect(post)} was taken after a look at ${decidedAt}`);
    if (post.expires > 0) this.#count('in time');
    if (post.isRelease) this.#checkLast(post, decidedAt);
    post.id = id;
  }

  /** Checks a resume by which the server has ended the last hold. */
  #checkHoldEnd({ to, command, by, ended = '' }: Taken, decidedAt: number): void {
    assert.equal(command, 'resume');
    assert.ok(Date.parse(ended) <= to, `the hold of ${by} until ${ended} has ended at ${to}`);
    const { to: knownAt, status } = this.#statuses.at(-1) as { to: number; status: Status };
    const isLast = status.holds.every((hold) => hold.by === by && hold.until === ended);
    assert.ok(isLast || knownAt >= decidedAt - SLACK_MS, inspect({ by, ended, status }, { depth: 4 }));
  }

  /** Checks that a command was taken in the order of acceptance, except for a pause or a shutdown. */
  #checkLanes(life: Life, lane: Lane, number: number, command: string, time: number): void {
    const { four, own } = life.latest;
    if (lane === 'four') {
      if (number < own) assert.fail(`${command} ${number} was taken after ${own}`);
      return;
    }
    const urgent = [...this.#posts.values()].filter((post) => isUrgent(post.command) && post.id === null);
    const waits = urgent.find(({ outcome, expires, settledAt, sentAt, mayBeWithdrawn }) => {
      const mayEnd = expires > 0 || mayBeWithdrawn;
      const isSure = outcome === 'ok' && !mayEnd && sentAt > (this.#closings.at(-1)?.[1] ?? 0);
      return isSure && settledAt < time - SLACK_MS;
    });
    assert.equal(waits, undefined, `${number} was taken while this waited`);
    if (four < number) return;
    this.#count('overtaken');
    const hasWaited = urgent.some(({ expires, mayBeWithdrawn }) => expires > 0 || mayBeWithdrawn); // and has ended
    const isDue = isUrgent(life.latestOfFour) || hasWaited;
    assert.ok(isDue, `${life.latestOfFour} ${four} was taken ahead of the own command ${number}`);
  }

  /** Checks that a release was delivered because nobody else held the pause. */
  #checkLast(post: Fate, decidedAt: number): void {
    const { to, status } = this.#statuses.at(-1) as { to: number; status: Status };
    const isLast = status.holds.every(({ by }) => by === holderOf(post));
    assert.ok(isLast || to >= decidedAt - SLACK_MS, `${inspect(post)} was delivered: ${inspect(status, { depth: 4 })}`);
  }

  // ── What the clients report ──

  /** Before a POST is sent. */
  post(post: Post): void {
    this.#posts.set(post.name, { ...post, outcome: 'sent', settledAt: Infinity, id: null, mayBeWithdrawn: false });
  }

  settle(name: string, outcome: Exclude<Fate['outcome'], 'sent'>, time: number): void {
    const post = this.#posts.get(name) as Fate;
    [post.outcome, post.settledAt] = [outcome, time];
    this.#count(`posts ${outcome}`);
    if (outcome === 'never' || outcome === 'refused') assert.equal(post.id, null, `${inspect(post)} was taken`);
  }

  /** A response to POST, which has perhaps a name and prefers to wait. */
  notePost(name: string | null, response: HttpResponse, exchange: Exchange): void {
    const { statusCode, headers: { 'preference-applied': granted }, body } = response;
    assert.ok([200, 202, 500, 503].includes(statusCode), response.summary);
    if (name !== null) this.settle(name, statusCode === 503 ? 'refused' : 'ok', exchange.receivedAt);
    if (statusCode === 503) return;
    if (granted === undefined) return assert.deepEqual([statusCode, body], [200, { result: 'ok' }]);
    const { id, state } = body;
    this.#replies.push([id, name === null ? null : this.#posts.get(name) as Fate, body]);
    if (state !== 'waiting' && state !== 'running') return;
    const isOver = exchange.receivedAt - exchange.sentAt >= exchange.waitMs - 20;
    this.#later(exchange, () => {
      assert.ok(isOver || this.#isClosing(exchange), `${inspect(body)} after ${inspect(exchange)}`);
      this.#checkState(this.#lifeOf(id), id, state, exchange);
    });
  }

  noteAnswer(attempt: Attempt): void {
    if (attempt.reply !== null) assert.ok([200, 404, 409].includes(attempt.reply.statusCode), attempt.reply.summary);
    this.#attempts.push(attempt);
  }

  /** Before a withdrawal is sent. */
  withdraw(name: string): void {
    const post = this.#posts.get(name);
    if (post !== undefined) post.mayBeWithdrawn = true;
  }

  noteWithdrawal(attempt: Withdrawal): void {
    const { id, reply } = attempt;
    this.#withdrawals.set(id, [...this.#withdrawals.get(id) ?? [], attempt]);
    if (reply?.statusCode === 200) this.#count('withdrawn');
    if (reply === null || reply.statusCode === 200) return;
    const isGone = reply.statusCode === 404 && reply.body.error === `There is no command ${id}`;
    const [, why] = new RegExp(`^409 ${id} (.*)$`).exec(reply.summary) ?? [];
    const words = ['is being taken', 'is running', 'is done', 'has failed', 'is a command of the program itself'];
    assert.ok(isGone || words.includes(why ?? ''), reply.summary);
  }

  /** A response to GET, whose tag was known or not. */
  noteGet(isInfo: boolean, known: string | null, response: HttpResponse, exchange: Exchange): void {
    const { statusCode, headers: { etag: tag = '' }, body } = response;
    assert.ok(statusCode === 200 || (statusCode === 304 && known !== null), inspect(response));
    if (statusCode === 304) assert.equal(tag, known);
    else if (isInfo) assert.notEqual(tag, known);
    if (!isInfo && body !== undefined) assert.equal(body.status, nameOf(tag));
    this.#later(exchange, () => {
      if (statusCode === 304) this.#checkWaited(exchange, isInfo);
      const isOver = statusCode === 304 && exchange.waitMs > 0 && !this.#isClosing(exchange);
      const decidedAt = exchange.sentAt + (isOver ? exchange.waitMs - 20 : 0); // at least
      const seen = { ...exchange, sentAt: Math.min(decidedAt, exchange.receivedAt) }; // no news was missed until then
      if (isInfo) this.#checkInfo(seen, tag, statusCode === 200 ? body : null);
      else this.#checkStatus(seen, nameOf(tag), statusCode === 200 && tag === known);
    });
  }

  /** A response on a connection to a new thread: from now on, new connections are not lost because of the old one. */
  noteResponse(exchange: Exchange, openedAt: number): void {
    this.#later(exchange, () => {
      const death = this.#deaths.at(-1);
      if (death !== undefined && openedAt > death.restartedAt + SLACK_MS) {
        death.servesAt = Math.min(death.servesAt, exchange.receivedAt);
      }
    });
  }

  /** Checks that a connection was lost because its thread had died, or its server was closed. */
  noteLoss(exchange: Exchange, openedAt: number): void {
    this.#later(exchange, () => {
      const { receivedAt } = exchange;
      const isDown = this.#deaths.some(({ diedAt, servesAt }) => diedAt - 50 < receivedAt && openedAt <= servesAt);
      const isClosing = this.#isClosing({ ...exchange, sentAt: openedAt }, 500);
      assert.ok(isDown || isClosing, `lost a connection without a reason: ${inspect({ ...exchange, openedAt })}`);
    });
  }

  /** Checks a status: one that was published when the request was sent, or since. */
  #checkStatus(exchange: Exchange, name: string, isBack: boolean): void {
    this.#count('statuses');
    const statuses = this.#statusesAt(exchange);
    const isPlausible = statuses.some(({ status }) => status.name === name);
    assert.ok(isPlausible, `${name} is none of ${inspect(statuses, { depth: 3 })} at ${inspect(exchange)}`);
    if (isBack) assert.ok(statuses.length > 1, `${name} is known`); // it came back meanwhile
  }

  /** Checks the information: what it shows was so when the request was sent, or since; and so for its tag. */
  #checkInfo(exchange: Exchange, tag: string, info: SystemInfo | null): void {
    const life = this.#lifeOf(tag.slice(1));
    const number = Number(/\d+/.exec(tag.slice(4))?.[0]);
    const { sentAt, receivedAt } = exchange;
    const { changes: { to }, takenAt: { four, own } } = life;
    const least = [to, four, own].reduce((sum, times) => sum + countUntil(times, sentAt - SLACK_MS), 0);
    assert.ok(number >= least, `${tag} is older than ${least} changes at ${inspect(exchange)}`);
    if (info === null) return;
    this.#count('information');
    const { asks = [], commands } = info;
    const numbers = commands.filter(({ command }) => command !== 'answer').map(({ id }) => this.#numberOf(id));
    assert.deepEqual(numbers, [...new Set(numbers)].sort((one, other) => one - other), `out of order: ${numbers}`);
    assert.ok(commands.length <= 18 && commands.every(({ id }) => id.startsWith(`${life.prefix}-`)), inspect(commands));
    const declarations = 1; // those of the constructor
    const [changes, statusChanges] = [life.changes.from, life.changes.published].map((times) => {
      return countUntil(times, receivedAt + SLACK_MS);
    }) as [number, number];
    const accepted = Math.max(...[...commands, ...asks].map(({ id }) => this.#numberOf(id)));
    const untaken = accepted - [...life.taken.keys()].filter((id) => this.#numberOf(id) <= accepted).length;
    const most = declarations + changes + statusChanges + accepted + 3 * untaken; // taken, completed, and a status
    assert.ok(number <= most, `${tag} is newer than ${most} changes`);
    const statuses = this.#statusesAt(exchange);
    assert.ok(statuses.some(({ status }) => isSame(status, info)), inspect([info, statuses], { depth: 5 }));
    const [cause = info] = info.status === 'paused' ? info.holds as [StatusCause] : [];
    assert.deepEqual([cause.by, cause.reason, cause.since], [info.by, info.reason, info.since]);
    for (const one of asks) this.#checkOpen(one, exchange);
    for (const command of commands) this.#checkCommand(life, command, exchange);
    this.#checkContent(life, number, info, exchange);
  }

  #checkOpen({ message }: AskInfo, { sentAt }: Exchange): void {
    const { gotAt } = this.#asked.get(message) ?? assert.fail(`${message} was not asked`);
    assert.ok(gotAt >= sentAt - SLACK_MS, `${message} had ended`);
  }

  #checkCommand(life: Life, entry: CommandInfo, exchange: Exchange): void {
    const { id, command, state, by, reason } = entry;
    const taken = life.taken.get(id);
    if (taken !== undefined) {
      assert.deepEqual([command, by, reason], [taken.command, taken.by, taken.reason], id);
      this.#checkState(life, id, state, exchange);
    }
    if (reason === ENDED && !this.#holdEnds.has(id)) this.#count('holds ended');
    if (reason === ENDED) this.#holdEnds.add(id);
    if (state !== 'done' && state !== 'failed') return;
    const shown = endOf(entry);
    if (!this.#shown.has(id) && taken === undefined && command !== 'answer') this.#count('undelivered');
    assert.equal(this.#shown.get(id) ?? shown, shown, id);
    this.#shown.set(id, shown);
  }

  /** A command has at least the state that it had when the request was sent, and at most that of the response. */
  #checkState(life: Life, id: string, state: unknown, { sentAt, receivedAt }: Exchange): void {
    const [taken, done] = [life.taken.get(id), life.done.get(id)];
    if (taken === undefined) return; // it may have ended without being delivered
    const what = `${id} is ${state}: ${inspect({ taken, done, sentAt, receivedAt })}`;
    const isComplete = state === 'done' || state === 'failed';
    if (state === 'waiting') assert.ok(taken.to >= sentAt - SLACK_MS, what);
    else assert.ok(taken.from <= receivedAt + SLACK_MS, what);
    if (isComplete) assert.ok(done !== undefined && done.from <= receivedAt + SLACK_MS, what);
    else assert.ok(done === undefined || done.to >= sentAt - SLACK_MS, what);
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

  /** A 304 comes after the wait; that of a status comes earlier if it came back at once. */
  #checkWaited(exchange: Exchange, isInfo: boolean): void {
    const { sentAt, receivedAt, waitMs } = exchange;
    if (waitMs === 0 || this.#isClosing(exchange)) return;
    const mayEndEarly = !isInfo && this.#statusesAt(exchange).length > 1;
    assert.ok(mayEndEarly || receivedAt - sentAt >= waitMs - 20, `a 304 too early: ${inspect(exchange)}`);
    this.#count('waited in vain');
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

  #later({ receivedAt }: Exchange, check: () => void): void {
    this.#checks.push([receivedAt + SLACK_MS, check]);
  }

  #runChecks(reportedUntil: number): void {
    const count = this.#checks.findIndex(([time]) => time >= reportedUntil);
    for (const [, check] of this.#checks.splice(0, count === -1 ? this.#checks.length : count)) check();
  }

  #lifeOf(id: string): Life {
    return this.#lives.find(({ prefix }) => id.startsWith(`${prefix}-`)) ?? assert.fail(`${id} is of no server`);
  }

  /** The number of a command, from 1 on. */
  #numberOf(id: string): number { return (Number(/\d+$/.exec(id)?.[0]) - this.#first) >>> 0; }

  // ── In the end ──

  /**
   * Checks what all have got against each other and against the lines of this program.
   *
   * @param lines Null if some may be missing.
   * @param isKilled Whether the program was killed: its last outcomes are missing.
   */
  finish(lines: readonly Line[] | null, isKilled: boolean): void {
    if (!isKilled) this.#runChecks(Infinity);
    const book = new Book(lines ?? [], this.#deaths.length > 0);
    if (lines !== null) {
      this.#checkLines(book, isKilled);
      if (!isKilled) for (const life of this.#lives) this.#checkLife(life, book);
      if (!isKilled) for (const life of this.#lives) this.#checkReleases(life, book);
    }
    if (!isKilled) this.#checkReplies(book);
    this.#checkQuestions(book, lines !== null, isKilled);
  }

  /** Checks that the log has each command that was accepted, in order, and none that was refused. */
  #checkLines({ commands }: Book, isKilled: boolean): void {
    const named = new Map([...commands.values()].map((line) => [line['reason'] as string | undefined, line]));
    const latest: Record<number, number> = {}; // of each client: the number of what was accepted last
    const places = new Map(this.#lives.map(({ prefix }, index) => [prefix, index * 2 ** 32]));
    for (const { client, name, outcome, command, by, text } of this.#posts.values()) {
      const line = named.get(name);
      if (outcome === 'ok') assert.ok(line !== undefined, `${name} is not in the log`);
      if (outcome === 'refused' || outcome === 'never') assert.equal(line, undefined, `${name} was ${outcome}`);
      if (line === undefined) continue;
      assert.deepEqual([line['command'], line['by'], line['arguments']?.text], [command, by, text], name);
      const [prefix = ''] = line['id'].split('-');
      const number = Number(places.get(prefix)) + this.#numberOf(line['id']);
      assert.ok(isKilled || number > (latest[client] ?? 0), `${name} was accepted before an earlier one`);
      if (outcome === 'ok') latest[client] = number;
    }
  }

  /** Checks that nothing is missing: numbers, outcomes, statuses. */
  #checkLife(life: Life, { commands, outcomes, asks, all }: Book): void {
    const isOf = (id: string): boolean => id.startsWith(`${life.prefix}-`);
    const ids = [...commands.keys(), ...asks.keys()].filter(isOf);
    const numbers = ids.map((id) => this.#numberOf(id)).sort((one, other) => one - other);
    const isMortal = this.#deaths.length > 0;
    if (!isMortal) assert.deepEqual(numbers, numbers.map((_, index) => index + 1), 'each number is used once');
    for (const [id, { command, reason }] of commands) {
      if (!isOf(id)) continue;
      const [end, taken, done] = [outcomes.get(id), life.taken.get(id), life.done.get(id)];
      const isDue = done !== undefined && done.to < life.closedAt && !isMortal;
      assert.ok(end !== undefined || !isDue, `${id} has no outcome`);
      if (end !== undefined && taken === undefined) this.#checkUndelivered(life, end);
      this.#checkWithdrawals(id, taken !== undefined, end);
      const post = this.#posts.get(reason ?? '');
      const isRelease = reason === ENDED || post?.isRelease === true;
      const mayVanish = command === 'note' || isRelease || Number(post?.expires) > 0; // after close()
      assert.ok(end !== undefined || taken !== undefined || mayVanish || isMortal, `${id} is lost`);
      if (end !== undefined && done !== undefined) assert.deepEqual(outcomeOf(end), outcomeOf(done), id);
    }
    for (const [id, { command, by, reason, text }] of life.taken) {
      const line = commands.get(id);
      if (line === undefined) assert.ok(id.includes('-i'), `${id} is not in the log`); // posted to a closed server
      else assert.deepEqual(
        [line['command'], line['by'], line['reason'], line['arguments']?.text], [command, by, reason, text], id,
      );
    }
    if (isMortal) return;
    const from = all.findIndex(({ event, id }) => event === 'command' && isOf(id ?? ''));
    const start = all.slice(0, from + 1).map(({ event }) => event).lastIndexOf('start');
    const names = all.slice(start).filter(({ event }) => event === 'status').map(({ status }) => status as string);
    assert.deepEqual(distinct(names).slice(0, distinct(life.statuses).length), distinct(life.statuses));
  }

  /** Checks that a command was either taken or withdrawn, and that all who have tried were told which. */
  #checkWithdrawals(id: string, isTaken: boolean, end: Line | undefined): void {
    const isWithdrawn = /^withdrawn by /.test(end?.['error'] ?? '');
    for (const { reply } of this.#withdrawals.get(id) ?? []) {
      if (reply?.statusCode === 200) assert.ok(!isTaken && isWithdrawn, `${id} was withdrawn: ${inspect(end)}`);
      if (reply?.statusCode === 409) assert.ok(!isWithdrawn, `${reply.summary}: ${inspect(end)}`);
    }
  }

  /** Checks a command that has ended without being delivered. */
  #checkUndelivered(life: Life, { id, command, reason, value, error, seconds }: Line): void {
    const post = this.#posts.get(reason ?? '');
    const what = `${id}: ${inspect({ post, value, error, seconds })}`;
    if (error === undefined) {
      const isRelease = reason === ENDED || post?.isRelease === true;
      return assert.ok(isRelease && typeof value?.released === 'boolean', what);
    }
    if (error === 'the program has shut down') {
      const isShut = [...life.done].some(([one, { error: fault }]) => {
        return life.taken.get(one)?.command === 'shutdown' && fault === undefined;
      });
      return assert.ok(command === 'note' && isShut, what);
    }
    const isNoted = (this.#withdrawals.get(id) ?? []).some(({ words, reply }) => {
      return reply?.statusCode !== 409 && (words === error || (error === 'withdrawn' && this.#deaths.length > 0));
    });
    if (isNoted) return;
    assert.equal(error, `expired after ${post?.expires} s`, what);
    assert.ok(Number(post?.expires) > 0 && seconds >= Number(post?.expires), what);
  }

  /** Checks that whoever has released a hold was told so, and nobody else. */
  #checkReleases(life: Life, { outcomes }: Book): void {
    const told = new Map<string, number>();
    for (const [id, { by = 'somebody', value }] of outcomes) {
      const isOwn = id.startsWith(`${life.prefix}-`) && !life.taken.has(id);
      if (isOwn && value?.released === true) told.set(by, (told.get(by) ?? 0) + 1);
    }
    for (const by of new Set([...told.keys(), ...life.released.map((one) => one.by)])) {
      const own = life.released.filter((one) => one.by === by);
      const least = this.#deaths.length > 0 ? 0 : own.filter(({ isSure }) => isSure).length;
      const count = told.get(by) ?? 0;
      assert.ok(least <= count && count <= own.length, `${by} was told of ${count} releases: ${inspect(own)}`);
    }
  }

  /** Checks what clients were told of commands that had ended. */
  #checkReplies({ outcomes }: Book): void {
    const ends = new Map<string, Outcome>(outcomes);
    for (const { done } of this.#lives) for (const [id, outcome] of done) ends.set(id, outcome);
    const byName = new Map([...outcomes].map(([id, { reason }]) => [reason as string | undefined, id]));
    for (const [id, post, { state, value, error }] of this.#replies) {
      if (state === 'waiting' || state === 'running' || (state === undefined && error === undefined)) continue;
      const found = id ?? post?.id ?? byName.get(post?.name);
      const end = ends.get(found ?? '');
      if (end === undefined) continue; // it has no name, or ended while the server closed
      const told = error === undefined ? undefined : String(error).replace(`${post?.command} failed: `, '');
      if (post !== null) assert.deepEqual([value, told], [end.value, end.error], `${found} ${post.name}`);
    }
    for (const [id, shown] of this.#shown) {
      const line = outcomes.get(id);
      if (line !== undefined) assert.equal(shown, endOf(line), id);
    }
  }

  /** Checks that a question has at most one answer with 200, which the program gets, and all others are told. */
  #checkQuestions({ asks, answers }: Book, isWhole: boolean, isKilled: boolean): void {
    const byMessage = new Map<string, Attempt[]>();
    for (const one of this.#attempts) byMessage.set(one.message, [...byMessage.get(one.message) ?? [], one]);
    const first = [...asks.values()].filter(({ id }) => answers.get(id as string)?.['answeredAt'] === undefined);
    const ids = new Map(first.map((line) => [line['message'] as string, line['id'] as string]));
    for (const [message, { got, hasKey }] of this.#asked) {
      const attempts = byMessage.get(message) ?? [];
      const winners = attempts.filter(({ reply }) => reply?.statusCode === 200);
      assert.ok(winners.length <= 1, `${message} has ${winners.length} answers`);
      const id = attempts[0]?.id ?? ids.get(message);
      const line = answers.get(id ?? '');
      const [winner] = winners;
      if (isWhole && winner !== undefined) {
        const { by, reason, pick } = winner;
        assert.deepEqual([line?.['by'], line?.['reason'], line?.['arguments']], [by, reason, { pick }], message);
      }
      if (got === undefined) assert.ok(isKilled, `${message} has not ended`);
      else this.#checkEnd(id, got, attempts, line, hasKey);
    }
  }

  get #hasWithdrawnStop(): boolean {
    return [...this.#posts.values()].some(({ command, mayBeWithdrawn }) => isUrgent(command) && mayBeWithdrawn);
  }

  #checkEnd(id: string | undefined, got: Got, attempts: readonly Attempt[], line: Line | undefined, hasKey: boolean) {
    const { name, values, by, reason } = got;
    const [winner] = attempts.filter(({ reply }) => reply?.statusCode === 200);
    const sender = winner ?? attempts.find((one) => one.reply === null && one.by === by && one.reason === reason);
    const given = name === undefined ? { by: sender?.by, reason: sender?.reason, values: { pick: sender?.pick } } : {};
    assert.deepEqual({ by, reason, values }, { by: undefined, reason: undefined, values: undefined, ...given }, id);
    assert.ok(name === undefined || winner === undefined, `${id}: ${inspect([got, winner])}`);
    const how = name === undefined ? undefined : name === 'TimeoutError' ? 'expired' : 'withdrawn';
    if (line !== undefined) {
      const end = [line['state'], line['error'], line['by'], line['reason'], line['arguments']];
      assert.deepEqual(end, [how === undefined ? 'done' : 'failed', how, by, reason, values], id);
    }
    const told = name === undefined ? `${by} has answered ${id}`
      : how === 'expired' ? `${id} has expired` : `${id} was withdrawn`;
    for (const { reply } of attempts) {
      if (reply === null || reply.statusCode === 200) continue;
      const error = String(reply.body.error);
      const isOver = how !== undefined || this.#hasWithdrawnStop; // then another answer may count
      const isDue = /^a (pause|shutdown) waits$/.test(error) && isOver;
      const isGone = reply.statusCode === 404 && error.startsWith(`There is no question ${id}: open are `);
      const isKept = hasKey && how !== undefined && error === `${told}; the answer is kept`;
      assert.ok(isGone || error === told || isDue || isKept, `${error} instead of ${told}`);
    }
  }
}

/** The lines of a log by their ids: each event once, and in the right order. */
class Book {
  readonly all: readonly Line[];
  readonly commands: Map<string, Line> = new Map();
  readonly outcomes: Map<string, Line & Outcome> = new Map();
  readonly asks: Map<string, Line> = new Map();
  readonly answers: Map<string, Line> = new Map();

  /** @param mayRepeat Whether a thread has died: the next one may repeat lines. */
  constructor(lines: readonly Line[], mayRepeat: boolean) {
    this.all = lines;
    const { commands, outcomes, asks, answers } = this;
    const kinds: Record<string, [own: Map<string, Line>, earlier?: Map<string, Line>]> = {
      command: [commands], outcome: [outcomes, commands], ask: [asks], answer: [answers, asks],
    };
    for (const line of lines) {
      const id = line['id'] as string;
      const [own, earlier] = kinds[line.event] ?? [];
      if (own === undefined) continue;
      assert.ok(mayRepeat || !own.has(id), `${line.event} ${id} is there twice`);
      assert.ok(mayRepeat || earlier?.has(id) !== false, `${line.event} ${id} comes first`);
      own.set(id, line);
    }
  }
}

function nameOf(tag: string): string { return tag.slice(1, -1).replace('-', ' '); }

function laneOf(command: string): Lane { return command === 'note' ? 'own' : 'four'; }

function isUrgent(command: string): boolean { return command === 'pause' || command === 'shutdown'; }

function holderOf({ by }: Post): string { return by ?? 'somebody'; }

function outcomeOf({ value, error }: Outcome): Outcome { return { value, error }; }

/** What /api/info and the log have of a command that has ended. */
function endOf({ state, value, error, seconds, by, reason }: Line | CommandInfo): string {
  return JSON.stringify({ state, value, error, seconds, by, reason });
}

function distinct(names: readonly string[]): string[] {
  return names.filter((name, index) => name !== names[index - 1]);
}

/** Some holds may have been released before the program looked. */
function isSame({ name, holds, ...cause }: Status, info: SystemInfo): boolean {
  type Cause = Status['holds'][number];
  const isOf = ({ by, reason, since: [from, to], until }: Cause, given: StatusCause): boolean => {
    const since = Date.parse(given.since as string);
    return by === given.by && reason === given.reason && from <= since && since <= to && until === given.until;
  };
  const given = info.holds as StatusCause[];
  const left = holds.filter(({ by }) => given.some((hold) => hold.by === by));
  const isHeld = left.length === given.length && left.every((hold, index) => isOf(hold, given[index] as StatusCause));
  return name === info.status && isHeld && (given.length > 0 ? name === 'paused' || isOf(cause, info)
    : holds.length === 0 && isOf(cause, info)); // which has no end
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
