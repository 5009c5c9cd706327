// Questions: answers that race each other and whatever ends a question, threads that die, hosts that are busy, wrong
// answers and wrong questions, counters that wrap around.

import assert from 'node:assert/strict';
import { getEventListeners } from 'node:events';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import {
  collectThreads, collectWarnings, launchSystem, makeFolder, startForeign, startServer, takeAll,
} from '../helpers.ts';
import { runHost } from '../host.ts';
import {
  HOST, INFO, PAUSE, SAVE, SHUTDOWN, STATUS, WAIT, Connection, ask, assertWaits, exchange, head,
} from '../http.ts';
import { lacks } from '../needs.ts';
import { LIMIT, until } from '../wait.ts';
import {
  answer, answerWith, asksOf, checkEnd, checkLog, checkStory, idOf, outcomeOf, overConnection, overCurl, overFetch,
  spin,
} from './asks.ts';
import { SEED, oneOf, randomNumbers } from './helpers.ts';
import { readLog } from './log.ts';
import { SystemStatus, WebApiServer } from '../../../control.ts';
import type { Attempt, Sender, Story } from './asks.ts';
import type { StartedServer } from '../helpers.ts';
import type { Host } from '../host.ts';
import type { Answer, Control, WebApiServerOptions } from '../../../control.ts';
import type { TestContext } from 'node:test';

const { ACTIVE, RESUMING } = SystemStatus;

const TIMES = Number(process.env['TEST_TIMES'] ?? 1); // more rounds, by hand
const CHOICE = { parameters: { pick: { type: 'integer' } } } as const;
const OK = { result: 'ok' };

interface Logged extends StartedServer {
  path: string;
  /** The id of the question that was asked last, if no command came after it. */
  latest(): string;
  /** Returns how many want to hear of the next command once they have heard of one. */
  followers(): Promise<number>;
  /** How many wait for each bell: the first is that of the host. */
  bells: Int32Array;
}

/** A server with a log, whose shared memory the test can read. Its counters begin where the test wants. */
async function start(t: TestContext, options: Partial<WebApiServerOptions> = {}, first: number = 0): Promise<Logged> {
  let starting: Promise<StartedServer> | undefined;
  t.after(async () => (await starting)?.server.close()); // before the folder is removed
  const path = join(makeFolder(t), 'log.jsonl');
  const [sequence, responded, accepted] = [0, 2, 5];
  const Original = SharedArrayBuffer;
  let [cells, waiters]: Int32Array[] = [];
  class Preset extends Original {
    constructor(size: number) {
      super(size);
      const words = new Int32Array(this);
      if (size === 64) waiters = words;
      if (size !== 128) return;
      cells = words;
      for (const at of [accepted, responded]) words[at] = first;
    }
  }
  globalThis.SharedArrayBuffer = Preset as SharedArrayBufferConstructor;
  try {
    starting = startServer(t, { log: path, ...options }); // the constructor runs at once
  } finally {
    globalThis.SharedArrayBuffer = Original;
  }
  const started = await starting;
  assert.ok(cells !== undefined && waiters !== undefined);
  const [shared, bells] = [cells, waiters];
  const { headers: { etag = '' } } = await ask(started.port, INFO);
  const latest = (): string => `${etag.slice(1, 4)}-q${Number(shared[accepted]) >>> 0}`;
  const followers = async (): Promise<number> => {
    Atomics.notify(shared, sequence);
    await sleep(5);
    return Number(bells[sequence]);
  };
  return { ...started, path, latest, followers, bells };
}

/** Lets a client answer, and notes what it got. */
async function attempt(send: Sender, id: string, by: string, values: object): Promise<Attempt> {
  const reason = `because ${by}`;
  return { by, reason, values, reply: await send(id, values, { by, reason }) };
}

/** Checks the ends of questions in `commands`, which has the latest 16 of all. */
async function checkListed(port: number, stories: readonly Story[]): Promise<void> {
  const { asks, commands } = (await ask(port, INFO)).body;
  for (const story of stories) {
    assert.equal(asks.some(({ id }: Story) => id === story.id), false);
    checkEnd(commands.find(({ id }: Story) => id === story.id), story);
  }
}

// ───── Races ─────────────────────────────────────────────────────────────────────────────────────────────────────

describe('An answer that races others', LIMIT, () => {
  it('wins alone: the program gets what the one with the 200 has sent, and the others are told who', async (t) => {
    const { server, port, path, latest, followers } = await start(t);
    const random = randomNumbers(SEED);
    const senders: [name: string, send: Sender][] = [
      ['fetch', overFetch(port)], ['another fetch', overFetch(port)],
      ['socket', overConnection(new Connection(port))], ['another socket', overConnection(new Connection(port))],
    ];
    const curl: typeof senders = lacks('curl') ? [] : [['curl', overCurl(port)]]; // slow to start
    const stories: Story[] = [];
    for (let round = 0; round < 200 * TIMES; round += 1) {
      const question = server.ask(`round ${round}`, CHOICE);
      const id = latest();
      const [clients, delayMs] = round % 20 > 0 ? [senders, 2] : [[...curl, ...senders], 16];
      const attempts = await Promise.all(clients.map(async ([by, send], pick) => {
        await sleep(by === 'curl' ? 0 : random() * delayMs);
        return attempt(send, id, by, { pick });
      }));
      const story = { id, attempts, got: await outcomeOf(question) };
      assert.ok(checkStory(story));
      await checkListed(port, [story]);
      stories.push(story);
    }
    assert.equal(await followers(), 0);
    await server.close();
    checkLog(path, stories.slice(-10_000));
  });

  interface Race extends Logged {
    control: AbortController;
    /** A connection of another client. */
    other: Connection;
  }
  /** What ends a question, whether the clients learn of it as of an expiry, and the name of what the program gets. */
  const ENDS: [what: string, name: string, end: (race: Race) => unknown][] = [
    ['an expiry', 'TimeoutError', () => {}],
    ['an AbortSignal', 'RangeError', ({ control }) => control.abort(new RangeError('enough'))],
    ['a pause', 'AbortError', ({ other }) => other.request(head(PAUSE, HOST))],
    ['a pause of the program', 'AbortError', ({ server }) => server.post('pause')],
    ['a save-state', 'AbortError', ({ other }) => other.request(head(SAVE, HOST))],
    ['a shutdown', 'AbortError', ({ other }) => other.request(head(SHUTDOWN, HOST))],
  ];
  for (const [what, name, end] of ENDS) {
    it(`and ${what} counts if its response is 200, and not if it is another`, async (t) => {
      const started = await start(t);
      const { server, port, path, latest, followers } = started;
      const [connection, other] = [new Connection(port), new Connection(port)];
      await Promise.all([connection, other].map((one) => one.request(head(STATUS, HOST))));
      const isExpiry = name === 'TimeoutError';
      const random = randomNumbers(SEED);
      const stories: Story[] = [];
      let lead = isExpiry ? 10 : 0; // of the answer, in milliseconds: the race becomes closer
      for (let round = 0; round < 60 * TIMES; round += 1) {
        const control = new AbortController();
        const timeout = isExpiry ? 1 + 19 * random() : undefined;
        const began = performance.now();
        const question = server.ask('Which?', { ...CHOICE, signal: control.signal, timeout });
        const id = latest();
        if (timeout !== undefined) await sleep(began + timeout - lead - performance.now());
        const act = (): unknown => end({ ...started, control, other });
        let ended = !isExpiry && lead < 0 ? act() : null; // first
        spin(isExpiry ? 0 : Math.max(0, -lead));
        const sent = attempt(overConnection(connection), id, 'ana', { pick: round });
        spin(isExpiry ? 0 : Math.max(0, lead));
        ended ??= act();
        const story = { id, attempts: [await sent], got: await outcomeOf(question) };
        const isAnswered = checkStory(story);
        if (!isAnswered) assert.equal((story.got as Error).name, name);
        lead += (isAnswered ? -1 : 1) * (isExpiry ? 0.5 : 0.02);
        await ended;
        await until(() => (takeAll(server), !server.hasCommands()));
        await checkListed(port, [story]);
        stories.push(story);
      }
      t.diagnostic(`${stories.filter(({ got }) => !(got instanceof Error)).length} of ${stories.length} answered`);
      assert.equal(await followers(), 0);
      await server.close();
      checkLog(path, stories);
    });
  }

  it('and close() counts if its response is 200', async (t) => {
    let [lead, answered] = [2, 0];
    for (let round = 0; round < 15 * TIMES; round += 1) {
      const { server, port, path, followers } = await start(t);
      const connection = new Connection(port);
      const question = server.ask('Which?', CHOICE);
      const id = await idOf(port, 'Which?');
      await connection.request(head(STATUS, HOST));
      const sent = attempt(overConnection(connection), id, 'ana', { pick: round });
      spin(Math.max(0, lead));
      const closed = server.close();
      const story = { id, attempts: [await sent], got: await outcomeOf(question) };
      const isAnswered = checkStory(story);
      if (!isAnswered) assert.match(String(story.got), /The server is closed$/);
      lead += isAnswered ? -0.4 : 0.4;
      answered += Number(isAnswered);
      await closed;
      assert.equal(await followers(), 0);
      checkLog(path, [story]);
    }
    t.diagnostic(`${answered} answered`);
  });

  for (const how of ['a step', 'an own command'] as const) {
    it(`and the end of ${how} counts if its response is 200, whatever the options of the question`, async (t) => {
      const random = randomNumbers(SEED);
      const options = [{}, { signal: new AbortController().signal }, { signal: undefined }, { timeout: 3e5 }];
      const stories: Story[] = [];
      const path = join(makeFolder(t), 'log.jsonl');
      let [lead, port, rounds] = [0, 0, 0];
      const outcomes: Promise<Story>[] = [];
      const others: Promise<Answer | Error>[] = []; // which nobody answers
      let connection: Connection | undefined;
      const turn = async (control: Control): Promise<void> => {
        if (rounds === 0) others.push(...options.map((one) => outcomeOf(control.ask('Other?', one))));
        const question = control.ask('Which?', CHOICE);
        const id = await idOf(port, 'Which?');
        const by = oneOf(random, ['ana', 'ben']);
        const sent = attempt(overConnection(connection as Connection), id, by, { pick: rounds += 1 });
        const got = outcomeOf(question);
        outcomes.push(sent.then(async (one) => ({ id, attempts: [one], got: await got })));
        spin(Math.max(0, lead));
      };
      const { address, client, finished } = await launchSystem(t, {
        async step(control) {
          await Promise.all(outcomes);
          if (how === 'a step' && outcomes.length < 50 * TIMES) await turn(control);
          else await sleep(1);
        },
        commands: { go: { run: (_values: object, _request: object, control: Control) => turn(control) } },
        onListening: (place: { port: number }) => { port = place.port; },
      }, { log: path });
      connection = new Connection(address.port);
      for (let round = 0; round < 50 * TIMES; round += 1) {
        if (how === 'an own command') assert.equal((await client.request('go', { wait: 60 })).ok, true);
        await until(() => outcomes.length > round);
        const story = await (outcomes[round] as Promise<Story>);
        const isAnswered = checkStory(story);
        if (!isAnswered) assert.equal((story.got as Error).name, 'AbortError');
        lead = Math.max(0, lead + (isAnswered ? -0.02 : 0.02));
        stories.push(story);
      }
      for (const other of await Promise.all(others)) assert.equal((other as Error).name, 'AbortError');
      await client.shutdown();
      await finished;
      checkLog(path, stories);
    });
  }
});

describe('A command that waits', { ...LIMIT, concurrency: true }, () => {
  it('withdraws a question at once, also one that is asked later, and no longer expires', async (t) => {
    const { server, port, followers } = await start(t);
    const control = new AbortController();
    const before = outcomeOf(server.ask('Before?', { signal: control.signal }));
    assert.equal(getEventListeners(control.signal, 'abort').length, 1);
    assert.equal((await ask(port, `${PAUSE}?expires=1`)).statusCode, 200);
    assert.equal(String(await before), 'AbortError: Interrupted by pause');
    const after = outcomeOf(server.ask('After?', { timeout: 3e5 }));
    assert.deepEqual(await Promise.race([after, nextTurn()]), await after, 'at once');
    assert.equal(String(await after), 'AbortError: Interrupted by pause');
    assert.deepEqual([getEventListeners(control.signal, 'abort').length, await followers()], [0, 0]);
    await sleep(1200);
    assert.deepEqual(takeAll(server), ['pause']);
    assert.deepEqual(await asksOf(port), []);
  });

  it('does not if it is a pause while the system is not active, which refuses no answer', async (t) => {
    let status = RESUMING;
    const { server, port } = await startServer(t, { systemStatus: () => status });
    const [one, two] = [outcomeOf(server.ask('One?')), outcomeOf(server.ask('Two?'))];
    assert.equal((await ask(port, PAUSE)).statusCode, 200);
    const [first, second] = await asksOf(port);
    assert.deepEqual((await answer(port, String(first?.id), { approved: true })).body, OK);
    assert.deepEqual((await one as Answer).arguments, { approved: true });
    status = ACTIVE;
    server.publish();
    const reply = await answer(port, String(second?.id), { approved: true });
    assert.equal(reply.summary, `409 ${second?.id} was withdrawn`);
    assert.equal(String(await two), 'AbortError: Interrupted by pause');
  });

  it('does not if it is an own command or a resume', async (t) => {
    const { server, port } = await startServer<'say'>(t, { commands: { say: {} } });
    const question = server.ask('Which?');
    for (const line of ['POST /api/say', 'POST /api/resume']) assert.equal((await ask(port, line)).statusCode, 200);
    assert.deepEqual(takeAll(server), ['say', 'resume']);
    assert.equal((await answer(port, await idOf(port, 'Which?'), { approved: false })).statusCode, 200);
    assert.deepEqual((await question).arguments, { approved: false });
  });
});

// ───── Slots ─────────────────────────────────────────────────────────────────────────────────────────────────────

describe('Questions', LIMIT, () => {
  it('never get the answer to another one, while some stay open and the slots are used again and again', async (t) => {
    const { server, port, path, latest, followers } = await start(t);
    let connection = new Connection(port);
    const random = randomNumbers(SEED);
    const send: Sender = (...given) => overConnection(connection)(...given);
    const open = new Map<string, Promise<Answer | Error>>();
    const controls: AbortController[] = [];
    const add = (): void => {
      const control = new AbortController();
      controls.push(control);
      const question = outcomeOf(server.ask('stays open', { ...CHOICE, signal: control.signal }));
      open.set(latest(), question);
    };
    const stories: Story[] = [];
    for (let round = 0; round < 100 * TIMES; round += 1) {
      if (round % 50 === 49) { // it keeps all that has arrived
        connection.socket.destroy();
        connection = new Connection(port);
      }
      while (open.size < 15 && random() < 0.7) add();
      const question = server.ask('short', CHOICE);
      const id = latest();
      const ids = [...open.keys()];
      const listed = (await asksOf(port)).map((one) => one.id);
      assert.deepEqual(listed, [...ids, id]);
      const wrong = await connection.request(answerWith(id, { pick: 'no' }));
      assert.deepEqual([wrong.statusCode, wrong.body.parameter], [400, 'pick']);
      const attempts = [await attempt(send, id, 'ana', { pick: round }), await attempt(send, id, 'ben', { pick: -1 })];
      const story = { id, attempts, got: await outcomeOf(question) };
      assert.ok(checkStory(story));
      stories.push(story);
      const late = oneOf(random, stories);
      late.attempts.push(await attempt(send, late.id, 'late', { pick: -2 }));
      checkStory(late);
      if (random() < 0.3 && ids.length > 0) { // one of those that have been open for some time
        const old = oneOf(random, ids);
        const attempts = [await attempt(send, old, 'eve', { pick: round })];
        const ended = { id: old, attempts, got: await open.get(old) };
        open.delete(old);
        assert.ok(checkStory(ended as Story));
        stories.push(ended as Story);
      }
    }
    while (open.size < 16) add();
    assert.deepEqual((await asksOf(port)).map((one) => one.id), [...open.keys()]);
    const [[first, got] = assert.fail()] = [...open];
    stories.push({ id: first, attempts: [await attempt(send, first, 'ana', { pick: 17 })], got: await got });
    assert.ok(checkStory(stories.at(-1) as Story));
    open.delete(first);
    add();
    assert.throws(() => server.ask('one too many'), /^Error: Cannot ask: 16 questions are open$/);
    for (const control of controls) control.abort();
    for (const [id, left] of open) stories.push({ id, attempts: [], got: await left });
    assert.deepEqual(await asksOf(port), []);
    assert.equal(await followers(), 0);
    await server.close();
    checkLog(path, stories);
  });

  it('are there for each reader at every moment while others begin and end', async (t) => {
    const host = runHost(t, `
      const server = await serve();
      server.ask('stays open');
      const { store } = Atomics;
      const end = () => {
        const control = new AbortController();
        server.ask('short', { signal: control.signal });
        control.abort();
      };
      for (let count = 0; count < 30; count += 1) end();
      Atomics.store = (words, at, value) => { // a host that stands still whenever it has stored anything
        store(words, at, value);
        say('stored');
        halt();
        return value;
      };
      for (let count = 0; count < 3; count += 1) end();
      Atomics.store = store;
      say('end');
      halt();
      await server.close();
    `);
    const port = await host.hear<number>();
    while (await host.hear() === 'stored') {
      assert.equal((await asksOf(port))[0]?.message, 'stays open');
      host.release();
    }
    host.release();
    await host.ends();
  });

  it('get an answer that comes at any moment while the next one is asked', async (t) => {
    const host = runHost(t, `
      const server = await serve();
      const { load } = Atomics;
      for (let [round, isOver] = [0, false]; !isOver; round += 1) {
        const old = server.ask('old');
        for (let count = 0; count < 31; count += 1) { // then its slot is the next
          server.ask('short', { signal: AbortSignal.abort() });
        }
        isOver = true;
        let left = round;
        Atomics.load = (words, at) => { // stands still at another load in each round
          if (left === 0) {
            isOver = false;
            say('stands still');
            halt();
          }
          left -= 1;
          return load(words, at);
        };
        const next = server.ask('new');
        Atomics.load = load;
        if (!isOver) say([(await old).by, (await next).by]);
      }
      say('end');
      await server.close();
    `);
    const port = await host.hear<number>();
    let rounds = 0;
    for (; await host.hear() === 'stands still'; rounds += 1) {
      assert.equal((await answer(port, await idOf(port, 'old'), { approved: true }, { by: 'ana' })).statusCode, 200);
      host.release();
      await until(async () => (await asksOf(port))[0]?.message === 'new');
      await answer(port, await idOf(port, 'new'), { approved: false }, { by: 'ben' });
      assert.deepEqual(await host.hear(), ['ana', 'ben'], `round ${rounds}`);
    }
    assert.ok(rounds > 10, `${rounds} rounds`);
    await host.ends();
  });

  it('are asked before they are answered, also in the log and if the clocks of the threads differ', async (t) => {
    t.mock.timers.enable({ apis: ['Date'], now: Date.now() + 60_000 }); // the thread takes it for its own
    const { server, port, path, latest } = await start(t);
    t.mock.timers.reset();
    const question = outcomeOf(server.ask('Which?', CHOICE));
    const id = latest();
    const sent = attempt(overConnection(new Connection(port)), id, 'ana', { pick: 1 });
    const story = { id, attempts: [await sent], got: await question };
    assert.ok(checkStory(story));
    await server.close();
    checkLog(path, [story]);
  });

  for (const first of [2 ** 29 - 3, 2 ** 31 - 3, 2 ** 32 - 3]) {
    it(`keep ids, order, answers and lines of the log from ${first} on`, async (t) => {
      const { server, port, path, latest } = await start(t, {}, first);
      const connection = new Connection(port);
        const send = overConnection(connection);
      const stays = outcomeOf(server.ask('stays open', CHOICE));
      const open = latest();
      assert.ok(open.endsWith(`-q${first + 1}`));
      const stories: Story[] = [];
      for (let round = 0; round < 40; round += 1) {
        const control = new AbortController();
        const question = server.ask('short', { ...CHOICE, signal: control.signal });
        const id = latest();
        assert.ok(id.endsWith(`-q${(first + 2 + round) % 2 ** 32}`));
        assert.deepEqual((await asksOf(port)).map((one) => one.id), [open, id]);
        if (round % 5 === 1) control.abort();
        const attempts = [await attempt(send, id, 'ana', { pick: round })];
        const story = { id, attempts, got: await outcomeOf(question) };
        assert.equal(checkStory(story), round % 5 !== 1);
        stories.push(story);
        const { commands } = (await ask(port, INFO)).body;
        assert.deepEqual(commands.map((one: Story) => one.id), stories.slice(-16).map((one) => one.id));
        await checkListed(port, stories.slice(-16));
      }
      stories.push({ id: open, attempts: [await attempt(send, open, 'ben', { pick: 40 })], got: await stays });
      assert.ok(checkStory(stories.at(-1) as Story));
      await server.close();
      checkLog(path, stories);
    });
  }
});

// ───── Threads that die, hosts that are busy ─────────────────────────────────────────────────────────────────────

describe('Threads that die', LIMIT, () => {
  it('lose no answer that got a 200, and no open question', async (t) => {
    collectWarnings(t);
    const threads = collectThreads(t);
    const { server, port, path, latest, followers } = await start(t);
    const random = randomNumbers(SEED);
    const stays = outcomeOf(server.ask('stays open', CHOICE));
    const open = latest();
    const stories: Story[] = [];
    let [deaths, isOver] = [0, false];
    const killing = (async () => {
      for (; deaths < 3 * TIMES; deaths += 1) {
        await sleep(50 + 100 * random());
        await threads.at(-1)?.terminate();
        await until(async () => (await exchange(port, head(STATUS, HOST), 1)).length > 0);
      }
      isOver = true;
    })();
    while (!isOver) {
      const question = server.ask('Which?', CHOICE);
      const id = latest();
      const attempts: Attempt[] = [];
      while (attempts.at(-1)?.reply == null) { // the thread may be down
        const connections = [new Connection(port), new Connection(port)];
        attempts.push(...await Promise.all(connections.map((one, index) => {
          const pick = attempts.length + index;
          return attempt(overConnection(one), id, `client ${pick}`, { pick });
        })));
        for (const { socket } of connections) socket.destroy();
        if (attempts.at(-1)?.reply == null) await sleep(20);
      }
      const story = { id, attempts, got: await outcomeOf(question) };
      assert.ok(checkStory(story));
      stories.push(story);
    }
    await killing;
    t.diagnostic(`${stories.length} questions, ${stories.flatMap((one) => one.attempts).length} answers`);
    assert.deepEqual((await asksOf(port)).map((one) => one.id), [open]);
    const sent = attempt(overConnection(new Connection(port)), open, 'ana', { pick: 7 });
    stories.push({ id: open, attempts: [await sent], got: await stays });
    assert.ok(checkStory(stories.at(-1) as Story));
    assert.equal(await followers(), 0);
    await server.close();
    const answered = new Map(stories.map((one) => [one.id, one]));
    const lines = readLog(path).filter(({ event, id }) => event === 'answer' && answered.has(id));
    assert.deepEqual([...new Set(lines.map(({ id }) => id))].sort(), [...answered.keys()].sort(), 'perhaps repeated');
    for (const line of lines) checkEnd(line, answered.get(line['id']) as Story);
  });

  it('deliver an answer that the host has not been told of', async (t) => {
    collectWarnings(t);
    const threads = collectThreads(t);
    const { server, port, latest, bells } = await start(t);
    const question = outcomeOf(server.ask('Which?', CHOICE));
    assert.equal(Atomics.exchange(bells, 0, 0), 1); // it rings for nobody, as if it had died before that
    assert.equal((await answer(port, latest(), { pick: 1 }, { by: 'ana' })).statusCode, 200);
    assert.equal(await Promise.race([question, nextTurn('not told')]), 'not told');
    Atomics.store(bells, 0, 1);
    await threads[0]?.terminate();
    const got = await Promise.race([question, nextTurn('not told')]); // long before the next thread
    assert.deepEqual(got, { arguments: { pick: 1 }, by: 'ana', reason: undefined });
  });
});

describe('A host that is busy', { ...LIMIT, concurrency: true }, () => {
  /** One that asks, says what becomes of its questions once it is no longer busy, and closes its server later. */
  const startBusy = async (t: TestContext, questions: string): Promise<{ host: Host; port: number; path: string }> => {
    const path = join(makeFolder(t), 'log.jsonl');
    const host = runHost(t, `
      const server = await serve({ log: ${JSON.stringify(path)} });
      const outcomes = (${questions}).map((question) => question.then((answer) => answer, (error) => error.message));
      await new Promise((resolve) => setImmediate(resolve)); // timers that are due come first afterwards
      say('busy');
      halt();
      for (const outcome of outcomes) say(await outcome);
      halt();
      await server.close();
    `);
    const port = await host.hear<number>();
    assert.equal(await host.hear(), 'busy');
    return { host, port, path };
  };

  it('has its questions listed and answered meanwhile, and gets the answers afterwards', async (t) => {
    const { host, port, path } = await startBusy(t, "[server.ask('One?'), server.ask('Two?', { timeout: 3e5 })]");
    const [one, two] = [await idOf(port, 'One?'), await idOf(port, 'Two?')];
    const reply = await answer(port, two, { approved: false }, { by: 'ana', reason: 'looked' });
    assert.deepEqual([reply.statusCode, reply.body], [200, OK]);
    const logged = readLog(path).filter(({ event, id }) => event === 'answer' && id === two);
    assert.deepEqual(logged.map(({ by }) => by), ['ana'], 'before the response');
    assert.equal((await answer(port, two, { approved: true })).summary, `409 ana has answered ${two}`);
    assert.deepEqual((await asksOf(port)).map(({ id }) => id), [one]);
    assert.deepEqual((await answer(port, one, { approved: true })).body, OK);
    host.release();
    assert.deepEqual(await host.hear(), { arguments: { approved: true } });
    assert.deepEqual(await host.hear(), { arguments: { approved: false }, by: 'ana', reason: 'looked' });
    host.release();
    await host.ends();
  });

  it('may ask again before it has yielded, as often as questions have been answered meanwhile', async (t) => {
    const host = runHost(t, `
      const server = await serve();
      const options = { parameters: { pick: { type: 'integer' } } };
      const questions = [];
      const asks = () => { for (let count = 0; count < 16; count += 1) questions.push(server.ask('Which?', options)); };
      for (let round = 0; round < 3; round += 1) {
        asks();
        say('busy');
        halt();
      }
      for (const question of questions) say((await question).arguments.pick);
      await server.close();
    `);
    const port = await host.hear<number>();
    const picks: number[] = [];
    for (let round = 0; round < 3; round += 1) {
      assert.equal(await host.hear(), 'busy');
      const asks = await asksOf(port);
      assert.equal(asks.length, 16);
      for (const { id } of asks) {
        assert.equal((await answer(port, id, { pick: picks.push(picks.length) })).statusCode, 200);
      }
      host.release();
    }
    await host.ends(...picks.map((_, index) => index + 1));
  });

  it('finds a question expired that nobody answered in time; an answer in time counts, and when it came', async (t) => {
    const questions = "[server.ask('One?', { timeout: 1500 }), server.ask('Two?', { timeout: 1500 })]";
    const { host, port, path } = await startBusy(t, questions);
    const { headers: { etag }, body: { asks: [one, two] } } = await ask(port, INFO);
    const reply = await answer(port, one.id, { approved: true }, { by: 'ana' });
    const { headers: { etag: answered = '' } } = await ask(port, INFO);
    assert.notEqual(answered, etag);
    const watched = ask(port, INFO, `If-None-Match: ${answered}`, WAIT);
    const { body: { asks } } = await watched; // it does not take a host that yields
    assert.deepEqual(asks, []);
    assert.equal((await answer(port, two.id, { approved: true })).summary, `409 ${two.id} has expired`);
    const before = (await ask(port, INFO)).body.commands;
    await sleep(50);
    host.release();
    const isInTime = reply.statusCode === 200; // unless this machine is very slow
    assert.deepEqual(await host.hear(), isInTime ? { arguments: { approved: true }, by: 'ana' } : 'expired: One?');
    assert.equal(await host.hear(), 'expired: Two?');
    const { commands } = (await ask(port, INFO)).body;
    assert.deepEqual(commands, before, 'the times too');
    host.release();
    await host.ends();
    const lines = readLog(path).filter(({ event }) => event === 'answer');
    const secondsOf = (entries: any[]): unknown[] => entries.map(({ id, seconds }) => [id, seconds]);
    assert.deepEqual(secondsOf(lines), secondsOf(commands));
  });

  it('that has accepted a pause meanwhile gets no answer but the pause', async (t) => {
    const { host, port } = await startBusy(t, "[server.ask('One?')]");
    const id = await idOf(port, 'One?');
    assert.equal((await ask(port, `${PAUSE}?expires=1`)).statusCode, 200);
    assert.equal((await answer(port, id, { approved: true })).summary, '409 a pause waits');
    await sleep(1200); // it has expired
    assert.equal((await answer(port, id, { approved: 'yes' })).statusCode, 400);
    for (const [line, name] of [[SAVE], [PAUSE, 'pause']] as const) {
      assert.equal((await ask(port, line)).statusCode, 200);
      const expected = name === undefined ? 400 : 409; // an answer may precede a save
      const reply = await answer(port, id, { approved: 'yes' });
      assert.equal(reply.statusCode, expected, reply.summary);
    }
    host.release();
    assert.equal(await host.hear(), 'Interrupted by pause');
    assert.equal((await answer(port, id, { approved: true })).summary, `409 ${id} was withdrawn`);
    host.release();
    await host.ends();
  });
});

// ───── launch() ──────────────────────────────────────────────────────────────────────────────────────────────────

describe('A step of launch()', { ...LIMIT, concurrency: 8 }, () => {
  type Step = (control: Control, silence: string) => unknown; // the URL of a server that never responds
  const never = (control: Control): Promise<Answer> => control.ask('Never?');
  /** Steps that do nothing but wait for a command, and which commands end them. */
  const STEPS: [what: string, step: Step, commands: readonly string[]][] = [
    ['a question', never, [PAUSE, SHUTDOWN, SAVE]],
    ['a question whose rejection is the cause of another', async (control) => {
      await never(control).catch((cause) => { throw new Error('the work has ended', { cause }); });
    }, [PAUSE, SHUTDOWN, SAVE]],
    ['fetch()', ({ signal }, silence) => fetch(silence, { signal }), [PAUSE, SHUTDOWN]],
    ['signal.throwIfAborted()', async ({ signal }) => {
      while (!signal.aborted) await sleep(5);
      signal.throwIfAborted();
    }, [PAUSE, SHUTDOWN]],
    ['timers/promises and AbortSignal.any()', async ({ signal }) => {
      await sleep(3e5, undefined, { signal: AbortSignal.any([signal, AbortSignal.timeout(3e5)]) });
    }, [PAUSE, SHUTDOWN]],
  ];
  for (const [what, step, lines] of STEPS) {
    for (const line of lines) {
      it(`that waits with ${what} ends at a ${line.slice(10)}, and the launch goes on`, async (t) => {
        const calls: string[] = [];
        const silence = `http://127.0.0.1:${(await startForeign(t, () => {})).port}/`;
        const { address: { port }, finished } = await launchSystem(t, {
          step: (control) => (calls.push('step'), step(control, silence)),
          onPaused: () => void calls.push('onPaused'),
          onResumed: () => void calls.push('onResumed'),
          saveState: () => void calls.push('saveState'),
        });
        await until(() => calls.length > 0);
        await assertWaits(port);
        assert.equal((await ask(port, line, WAIT)).summary, '200 done');
        const hooks = { [PAUSE]: 'onPaused', [SHUTDOWN]: 'saveState', [SAVE]: 'onPaused saveState onResumed' }[line];
        assert.equal(calls.slice(0, line === SAVE ? 4 : undefined).join(' '), `step ${hooks}`);
        if (line === SHUTDOWN) await finished;
        else assert.equal((await ask(port, SHUTDOWN, WAIT)).summary, '200 done');
        await finished;
      });
    }
  }

  it('that is synchronous may throw the reason', async (t) => {
    let isPaused = false;
    const { address: { port } } = await launchSystem(t, {
      step: (control) => {
        const { signal } = control;
        control.pause();
        signal.throwIfAborted();
        assert.fail('it has aborted');
      },
      onPaused: () => { isPaused = true; },
    });
    await until(() => isPaused);
    assert.equal((await ask(port, STATUS)).summary, '200 paused');
  });

  const OTHERS: [what: string, name: string, step: Step][] = [
    ['an AbortError whose cause is another', 'Error', () => {
      throw new Error('mine', { cause: new DOMException('mine', 'AbortError') });
    }],
    ['a question that its own signal withdraws', 'AbortError', (control) => {
      return control.ask('Mine?', { signal: AbortSignal.abort() });
    }],
    ['a question that expires', 'TimeoutError', (control) => control.ask('Late?', { timeout: 1 })],
    ['an AbortError that imitates', 'AbortError', () => {
      throw new DOMException('Interrupted by pause', 'AbortError');
    }],
  ];
  for (const [what, name, step] of OTHERS) {
    it(`that fails with ${what} ends the launch`, async (t) => {
      let isSecond = false;
      const { finished } = await launchSystem(t, {
        async step(control) {
          if (isSecond) return control.shutdown(); // the launch goes on
          isSecond = true;
          await sleep(20); // not before the test waits for the end
          return step(control, '');
        },
      });
      await assert.rejects(finished, { name });
    });
  }

  it('that fails with the reason of a former command ends the launch: its signal is an old one', async (t) => {
    let signal: AbortSignal | undefined;
    const { address: { port }, finished } = await launchSystem(t, {
      step: (control) => {
        signal ??= control.signal;
        return sleep(3e5, undefined, { signal });
      },
    });
    const failure = assert.rejects(finished, { name: 'AbortError' });
    await until(() => signal !== undefined);
    for (const line of [PAUSE, 'POST /api/resume']) assert.equal((await ask(port, line, WAIT)).statusCode, 200);
    await failure;
  });

  it('that asks is asked again by the next, with a new id, and an old answer is no answer', async (t) => {
    const approved: unknown[] = [];
    const { address: { port } } = await launchSystem(t, {
      async step(control) {
        approved.push((await control.ask('Delete?')).arguments.approved);
      },
    });
    await until(async () => (await asksOf(port)).length === 1);
    const first = await idOf(port, 'Delete?');
    assert.equal((await ask(port, SAVE, WAIT)).summary, '200 done');
    await until(async () => (await asksOf(port)).length === 1);
    const second = await idOf(port, 'Delete?');
    assert.notEqual(second, first);
    assert.equal((await answer(port, first, { approved: true })).summary, `409 ${first} was withdrawn`);
    assert.equal((await answer(port, second, { approved: false })).statusCode, 200);
    await until(() => approved.length === 1);
    assert.deepEqual(approved, [false]);
  });

  it('lives while a question is open, need not handle it, and leaves nothing that keeps a process alive', async (t) => {
    const path = join(makeFolder(t), 'log.jsonl');
    const host = runHost(t, `
      process.on('unhandledRejection', (error) => say('unhandled: ' + error));
      const server = await serve({ log: ${JSON.stringify(path)} });
      server.ask('Alive?').then(() => say('answered'));
    `);
    const port = await host.hear<number>();
    const id = await idOf(port, 'Alive?');
    await sleep(500); // a process that nothing keeps alive would have ended
    assert.equal((await answer(port, id, { approved: true })).statusCode, 200);
    await host.ends('answered');
    const other = runHost(t, `
      process.on('unhandledRejection', (error) => say('unhandled: ' + error));
      const server = await serve();
      server.ask('Withdrawn?', { signal: AbortSignal.abort() });
      server.ask('Expired?', { timeout: 5 });
      await launchHost({ step(control) { control.ask('Never handled?'); control.shutdown(); } });
      const control = new AbortController();
      server.ask('Aborted?', { signal: control.signal, timeout: 3e5 });
      control.abort();
      for (const signal of [{}, 5, control]) try { server.ask('Wrong?', { signal }).catch(() => {}); } catch {}
      say('end');
    `);
    await other.hear();
    await other.hear();
    await other.ends('end');
  });
});

// ───── Wrong answers, wrong questions ────────────────────────────────────────────────────────────────────────────

describe('A wrong answer', { ...LIMIT, concurrency: true }, () => {
  const parameters = {
    on: { type: 'boolean' }, count: { type: 'integer', maximum: 3 }, toString: { type: 'number', default: 0.5 },
    text: { type: 'string', maxLength: 3, default: '' }, file: { type: 'string', enum: ['a', 'b'], default: 'a' },
  } as const;
  const RIGHT = { on: true, count: 3 };
  const DEFAULTS = { toString: 0.5, text: '', file: 'a' };
  const WRONG: [values: unknown, error: string][] = [ // as of the arguments of a command, whose tests have more
    ['{', ''], ['null', 'a JSON object is required'], ['', 'on must be a boolean, got nothing'],
    [{ ...RIGHT, on: 'yes' }, 'on must be a boolean, got "yes"'],
    [{ ...RIGHT, count: 4 }, 'count must be an integer up to 3, got 4'],
    ['{"on":true,"count":3,"toString":1e999}', 'toString must be a number, got null'],
    [{ ...RIGHT, text: 'abcd' }, 'text must be a string of at most 3 characters, got "abcd"'],
    [{ ...RIGHT, file: 'constructor' }, 'file must be one of a, b, got "constructor"'],
    [{ ...RIGHT, constructor: 1 }, 'constructor is unknown, not one of [on, count, toString, text, file]'],
  ];
  const RIGHTS: [values: unknown, got: object][] = [
    [RIGHT, { ...RIGHT, ...DEFAULTS }], [{ ...RIGHT, text: '😀ä\u0000' }, { ...RIGHT, ...DEFAULTS, text: '😀ä\u0000' }],
    ['{"on":true,"count":3,"text":"\\ud800"}', { ...RIGHT, ...DEFAULTS, text: '\ud800' }],
    ['{"on":true,"on":false,"count":0,"file":"b"}', { on: false, count: 0, ...DEFAULTS, file: 'b' }],
  ];

  it('is refused with the reason, and the question stays open; a right one has the defaults', async (t) => {
    const { server, port } = await startServer(t);
    for (const [values, got] of RIGHTS) {
      const question = server.ask('Which?', { parameters });
      const id = await idOf(port, 'Which?');
      for (const [wrong, error] of WRONG) {
        const { summary, body: { parameter } } = await answer(port, id, wrong);
        assert.ok(summary.startsWith(`400 answer: ${error}`), summary);
        assert.equal(parameter, /^(\w+) must be/.exec(error)?.[1]);
      }
      assert.deepEqual((await answer(port, id, values)).body, OK);
      assert.deepEqual((await question).arguments, got);
      const { commands } = (await ask(port, INFO)).body;
      assert.deepEqual(commands.at(-1).arguments, JSON.parse(JSON.stringify(got)));
    }
  });

  it('of up to 2 KiB is accepted, and none that is larger, also by its defaults', async (t) => {
    const { server, port } = await startServer(t);
    const long = { text: { type: 'string' }, more: { type: 'string', default: 'x'.repeat(1000) } } as const;
    for (const [character, size] of [['x', 1], ['😀', 4], ['"', 2], ['\u0000', 6]] as const) {
      const question = server.ask('Text?', { parameters: long });
      const id = await idOf(port, 'Text?');
      const room = 2048 - JSON.stringify({ text: '', more: '' }).length;
      const [most, others] = [Math.floor(room / size), room % size];
      const text = character.repeat(most) + 'x'.repeat(others);
      assert.equal((await answer(port, id, { text: `${text}x`, more: '' })).statusCode, 413);
      assert.equal((await answer(port, id, { text: 'x'.repeat(room - 999) })).statusCode, 413);
      assert.equal((await answer(port, id, { text: 'x'.repeat(9000), more: '' })).statusCode, 413);
      const by = `${character}"`.repeat(110); // cut at 200 characters
      const reason = '\\😀'.repeat(110);
      const reply = await answer(port, id, { text, more: '' }, { by, reason });
      assert.equal(reply.statusCode, 200, reply.text);
      const got = await question;
      assert.deepEqual(got.arguments, { text, more: '' });
      const tidied = [by, reason].map((one) => Array.from(one.replace(/\p{Cc}/gu, '')).slice(0, 200).join(''));
      assert.deepEqual([got.by, got.reason], tidied);
      const { commands } = (await ask(port, INFO)).body;
      assert.deepEqual([commands.at(-1).arguments, commands.at(-1).by], [{ text, more: '' }, tidied[0]]);
    }
  });

  it('to no question is refused', async (t) => {
    const { server, port } = await startServer(t);
    assert.equal((await answer(port, '', {})).summary, '404 There is no question without an id: open are none');
    server.ask('One?').catch(() => {});
    server.ask('Two?').catch(() => {});
    const [one, two] = (await asksOf(port)).map(({ id }) => id);
    for (const [id, name] of [
      ['', 'without an id'], ['q1', 'q1'], [`${one}0`, `${one}0`], [`${one} `, `${one} `],
      ['constructor', 'constructor'],
      [String(one).toUpperCase(), String(one).toUpperCase()], ['a\u0007b', 'ab'], ['x'.repeat(300), 'x'.repeat(200)],
    ] as const) {
      const reply = await answer(port, id, { approved: true });
      assert.equal(reply.summary, `404 There is no question ${name}: open are ${one}, ${two}`);
    }
    assert.equal((await ask(port, 'POST /api/answer')).statusCode, 404);
    assert.deepEqual((await asksOf(port)).map(({ id }) => id), [one, two]);
  });
});

describe('A wrong question', { ...LIMIT, concurrency: true }, () => {
  it('throws at once, names what is wrong, and leaves nothing', async (t) => {
    const { server, port, followers } = await start(t);
    const question = (options: unknown): unknown => server.ask('Which?', options as object);
    const rows: [name: string, call: (value: any) => unknown, typeErrors: unknown[], rangeErrors?: unknown[]][] = [
      ['message must be', (value) => server.ask(value), [undefined, ['a'], { length: 1 }, Object('a')],
        ['\n\t', '\x85', '\x00\x1b', '😀'.repeat(1001)]],
      ['ask', question, [null, 5, 'x']],
      ['timeout must be', (timeout) => question({ timeout }), [null, '5', [5]], [-1, NaN, Infinity, 2 ** 31]],
      ['signal must be', (signal) => question({ signal }), [5, 'abort', null, new AbortController()]],
      ['parameters must be', (parameters) => question({ parameters }), [null, 5]],
      ['a', (more) => question({ parameters: { a: { type: 'integer', ...more } } }), [{ form: 1 }], [{ default: 1.5 }]],
    ];
    for (const [name, call, typeErrors, rangeErrors = []] of rows) {
      for (const [values, errorClass] of [[typeErrors, TypeError], [rangeErrors, RangeError]] as const) {
        for (const value of values) {
          const what = `${name} ${inspect(value).slice(0, 50)}`;
          assert.throws(() => call(value), (error: Error) => {
            assert.ok(error instanceof errorClass && error.message.includes(name), `${what}: ${error}`);
            return true;
          }, what);
        }
      }
    }
    assert.deepEqual([await asksOf(port), (await ask(port, INFO)).body.commands, await followers()], [[], [], 0]);
  });

  it('is none if it is just within the limits; the message is one line without control characters', async (t) => {
    const { server, port, path } = await start(t);
    const texts: [message: string, shown?: string][] = [
      ['x'.repeat(1000)], ['😀'.repeat(1000)], ['a'], [' a\r\n\r\nb\u2028c\t ', 'a b c'],
      ['\x1b]0;title\x07', ']0;title'],
      ['a\ud800b\udc00', 'a\ufffdb\ufffd'], ['\u202ea'], ['__proto__'], ['"\\'], ['null'],
    ];
    for (const [message, shown = message] of texts) {
      const control = new AbortController();
      const ended = outcomeOf(server.ask(message, { signal: control.signal }));
      const [one, ...others] = await asksOf(port);
      assert.deepEqual([one?.message, others], [shown, []]);
      control.abort();
      await ended;
    }
    const room = 4096 - Buffer.byteLength(JSON.stringify({
      message: 'Which?', parameters: { a: { type: 'string', description: '' } },
    }));
    const described = (size: number) => ({ a: { type: 'string', description: 'x'.repeat(size) } } as const);
    const parameters = described(room);
    const question = server.ask('Which?', { parameters });
    assert.throws(() => server.ask('Which?', { parameters: described(room + 1) }), RangeError);
    const [{ id, ...others } = assert.fail()] = await asksOf(port);
    assert.deepEqual({ ...others, at: '' }, { message: 'Which?', parameters, at: '' });
    assert.equal((await answer(port, id, { a: 'x'.repeat(2000) })).statusCode, 200);
    await question;
    await server.close();
    const lines = readLog(path);
    assert.deepEqual(lines.find((line) => line['id'] === id)?.['parameters'], parameters);
    const messages = lines.filter(({ event }) => event === 'ask').map(({ message }) => message);
    assert.deepEqual(messages, [...texts.map(([message, shown = message]) => shown), 'Which?']);
  });

  it('is one that is asked while the server does not run', async (t) => {
    const blocked = await startServer(t);
    const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: blocked.port });
    const notRunning = /^Error: Cannot ask: the server is not running$/;
    assert.throws(() => server.ask('Idle?'), notRunning);
    const failure = assert.rejects(server.runInBackground());
    assert.throws(() => server.ask('Starting?'), notRunning);
    await failure;
    assert.throws(() => server.ask('Idle?'), notRunning);
  });
});
