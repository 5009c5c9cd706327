// Server threads that die: the host goes on, the thread is restarted, and every command is delivered exactly once.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, lstatSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import {
  COMMANDS, HOST, LIMIT, MORTAL, WAIT, head, randomCommand, randomNumbers, runHost,
} from './helpers.ts';
import { clientAt, lacksSockets, makeSocketPath, until } from '../helpers.ts';
import { SystemStatus } from '../../../control.ts';
import type { ControlCommand, WebApiAddress, WebApiClient } from '../../../control.ts';
import type { TestContext } from 'node:test';

const { ACTIVE, PAUSED, OFFLINE } = SystemStatus;

const LOCAL = "host: '127.0.0.1', port: 0";

const DEATHS: { name: string; death: string | null; isOnSocket?: boolean }[] = [
  { name: 'is terminated', death: null },
  { name: 'throws', death: "throw new Error('poison')" },
  { name: 'calls process.exit()', death: 'process.exit(3)', isOnSocket: true },
  { name: 'runs out of memory', death: 'const all = []; for (;;) all.push({})' },
];

describe('A thread that dies', { ...LIMIT, concurrency: 2 }, () => {
  for (const { name, death, isOnSocket = false } of DEATHS) {
    it(`comes back at the same address, and the host notices nothing: it ${name}`, {
      skip: isOnSocket && lacksSockets(),
    }, async (t) => {
      const place = isOnSocket ? `socketPath: ${JSON.stringify(makeSocketPath(t))}` : LOCAL;
      const host = runHost(t, `
        ${MORTAL}
        let status = ACTIVE;
        const server = new WebApiServer({ systemStatus: () => status, ${place} });
        hold();
        say(await server.runInBackground());
        const alive = setInterval(() => {}, 1000);
        orders.kill = () => kill(${JSON.stringify(death)});
        orders.take = () => {
          const taken = [];
          while (server.hasCommands()) taken.push(server.receiveCommand());
          say(taken);
        };
        orders.pause = () => {
          status = PAUSED;
          say('paused');
        };
        orders.sleep = async () => {
          clearInterval(alive); // only nextCommand() keeps the process alive now
          say('sleeps');
          while (status !== SHUTTING_DOWN) {
            const command = await server.nextCommand();
            say(command);
            if (command === 'shutdown') status = SHUTTING_DOWN;
          }
          await server.close();
        };
      `);
      const expectValue = async (order: string, value: unknown): Promise<void> => {
        host.tell(order);
        assert.deepEqual(await host.hear(), value);
      };
      const address = await host.hear<WebApiAddress>();
      const client = clientAt(t, address);
      assert.equal(await client.pause(), 'ok');
      await expectValue('kill', 'gone');
      await checkRefused(client);
      host.tell('release');
      await client.waitFor(ACTIVE, { timeout: 10_000 });
      if (address.socketPath !== undefined) assert.equal(lstatSync(address.socketPath).mode, 0o140600);
      assert.equal(await client.resume(), 'ok');
      await expectValue('take', ['pause', 'resume']);

      await expectValue('sleep', 'sleeps');
      await expectValue('kill', 'gone');
      await expectValue('pause', 'paused');
      await checkRefused(client);
      host.tell('release');
      await checkFirstStatus(client, PAUSED);
      assert.equal(await client.saveState(), 'ok');
      assert.equal(await host.hear(), 'save-state');
      assert.equal(await client.shutdown(), 'ok');
      await host.checkEnd('shutdown');
    });
  }

  /** Its thread is dead, and restarts on release(). */
  const FALLEN = `
    ${MORTAL}
    const server = new WebApiServer({ systemStatus: () => ACTIVE, ${LOCAL} });
    hold();
    await server.runInBackground();
    kill(null);
    await gone();
  `;

  for (const [state, statement, threads] of [['is down', '', 1], ['restarts', 'release();', 2]] as const) {
    it(`lets the process end while it ${state}`, async (t) => {
      await runHost(t, `${FALLEN}; ${statement}; say(threads.length);`).checkEnd('gone', threads);
    });
  }

  for (const [state, statement, threads] of [
    ['is down', '', 1],
    ['restarts', 'release();', 2],
    ['has just restarted', 'release(); await new Promise((done) => realSetTimeout(done, 60));', 2],
  ] as const) {
    it(`does not delay close() while it ${state}`, async (t) => {
      const host = runHost(t, `
        ${FALLEN}
        ${statement}
        const next = server.nextCommand().catch((error) => error.name);
        const began = Date.now();
        await server.close();
        say([Date.now() - began < 900, await next]);
        await new Promise((done) => realSetTimeout(done, 200));
        say(threads.length);
      `);
      await host.checkEnd('gone', [true, 'EmptyError'], threads);
    });
  }

  it('is restarted ever more slowly while its port is taken, with one warning per reason', async (t) => {
    const host = runHost(t, `
      ${MORTAL}
      const warnings = [];
      process.on('warning', ({ name, message }) => warnings.push(name + ': ' + message));
      const server = new WebApiServer({ systemStatus: () => ACTIVE, ${LOCAL} });
      hold();
      say((await server.runInBackground()).port);
      orders.kill = () => kill(null);
      orders.hurry = () => {
        onPause = () => {
          setImmediate(release);
          if (pauses.length === 12) say(pauses);
        };
        release();
      };
      orders.warnings = () => say(warnings);
      setInterval(() => { while (server.hasCommands()) say(server.receiveCommand()); }, 5);
    `);
    const port = await host.hear<number>();
    const client = clientAt(t, { host: '127.0.0.1', port });
    host.tell('kill');
    assert.equal(await host.hear(), 'gone');
    const impostor = createServer((socket) => socket.destroy());
    t.after(() => impostor.close());
    impostor.listen(port, '127.0.0.1');
    await once(impostor, 'listening');
    host.tell('hurry');
    const pauses = [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000, 5000, 5000, 5000];
    assert.deepEqual(await host.hear(), pauses);
    impostor.close();
    await client.waitFor(ACTIVE, { timeout: 10_000 });
    assert.equal(await client.pause(), 'ok');
    assert.equal(await host.hear(), 'pause');
    host.tell('warnings');
    const warnings = await host.hear<string[]>();
    const start = `ControlWarning: The web API at 127.0.0.1:${port} stopped and will be restarted: `;
    assert.ok(warnings.every((warning) => warning.startsWith(start)), inspect(warnings));
    assert.ok(warnings.length === 1 || warnings.length === 2, inspect(warnings)); // it died; its port is taken
  });

  it('is restarted quickly again if it had listened for ten seconds', async (t) => {
    const host = runHost(t, `
      ${MORTAL}
      const server = new WebApiServer({ systemStatus: () => ACTIVE, ${LOCAL} });
      hold();
      say((await server.runInBackground()).port);
      setInterval(() => {}, 1000);
      orders.kill = () => kill(null);
      orders.age = () => say(now += 10_000);
      orders.pauses = () => say(pauses);
    `);
    const client = clientAt(t, { host: '127.0.0.1', port: await host.hear() });
    for (const isOld of [false, false, false, true, false]) {
      await client.waitFor(ACTIVE, { timeout: 10_000 });
      await sleep(50); // the host hears that the thread listens
      if (isOld) {
        host.tell('age');
        await host.hear();
      }
      host.tell('kill');
      assert.equal(await host.hear(), 'gone');
      host.tell('release');
    }
    host.tell('pauses');
    assert.deepEqual(await host.hear(), [100, 200, 400, 100, 200]);
  });

  it('leaves a launched system paused, and it resumes when the thread is back', async (t) => {
    const host = runHost(t, `
      ${MORTAL}
      orders.kill = () => kill(null);
      await launch({
        step: () => new Promise((done) => realSetTimeout(done, 1)),
        onListening: ({ port }) => say(port),
        onPaused: () => say('paused'),
        onResumed: () => say('resumed'),
        onShutdown: () => say('shut down'),
      }, { webApiAddress: ['127.0.0.1', 0] });
    `);
    const client = clientAt(t, { host: '127.0.0.1', port: await host.hear() });
    await client.pause();
    assert.equal(await host.hear(), 'paused');
    host.tell('kill');
    assert.equal(await host.hear(), 'gone');
    await client.waitFor(PAUSED, { timeout: 10_000 });
    assert.equal(await client.resume(), 'ok');
    assert.equal(await host.hear(), 'resumed');
    await client.waitFor(ACTIVE, { timeout: 10_000 });
    assert.equal(await client.shutdown(), 'ok');
    await host.checkEnd('shut down');
  });

  for (const { name, death } of DEATHS.slice(1)) {
    it(`does not keep close() from resolving: it ${name} meanwhile`, async (t) => {
      const host = runHost(t, `
        ${MORTAL}
        epilogue = ${JSON.stringify(`
          ;process.getBuiltinModule('node:worker_threads').parentPort.on('message', () => { ${death}; });
        `)};
        const server = new WebApiServer({ systemStatus: () => ACTIVE, ${LOCAL} });
        await server.runInBackground();
        await server.close();
        say('closed');
      `);
      await host.checkEnd('closed');
    });
  }

  for (const [state, act] of [['is down', ''], ['restarts', 'release();']] as const) {
    it(`leaves no Unix socket if close() comes while it ${state}`, { skip: lacksSockets() }, async (t) => {
      const socketPath = makeSocketPath(t);
      const host = runHost(t, `
        ${FALLEN.replace(LOCAL, `socketPath: ${JSON.stringify(socketPath)}`)}
        ${act}
        await server.close();
      `);
      await host.checkEnd('gone');
      assert.equal(existsSync(socketPath), false);
    });
  }
});

// ───── Exactly once ──────────────────────────────────────────────────────────────────────────────────────────────

/**
 * Takes commands in every way, and reports a value or a failure for each, until it is told to end; meanwhile it may kill
 * its thread or close its server.
 */
const RANDOM_HOST = `
  ${MORTAL}
  const taken = [];
  const take = (command) => {
    const index = taken.push(command) - 1;
    if (index % 20 === 0) block(1);
    server.report(index % 3 === 0 ? { error: { message: String(index) } } : { value: index });
  };
  const pause = (milliseconds) => new Promise((done) => realSetTimeout(done, milliseconds));
  let isOver = false;
  let closeAfter = Infinity;
  orders.end = () => (isOver = true);
  const server = new WebApiServer({ systemStatus: () => ACTIVE, ${LOCAL}, maxQueueSize: 7 });
  say((await server.runInBackground()).port);

  onPause = () => setImmediate(release);
  const realNow = performance.now.bind(performance);
  performance.now = () => realNow() * 1000; // every thread counts as healthy at once
  const killOften = async (kills) => {
    for (; kills > 0; kills -= 1) {
      await pause(Math.random() * 100);
      const before = taken.length;
      const isPatient = Math.random() < 0.8; // if not, the next thread may not even have started
      while (isPatient && taken.length < before + 100) await pause(2);
      const thread = threads.at(-1);
      const limit = Date.now() + 100;
      const isAimed = Math.random() < 0.5; // at the moment between the command and its response
      if (isAimed) while (!server.hasCommands() && Date.now() < limit);
      kill(null);
      if (kills === 1) while (threads.at(-1) === thread) await pause(2); // it takes a moment to die
    }
    say('over');
  };

  const killEach = async (commands) => {
    for (let kills = 1; !isOver; await pause(2)) {
      if (taken.length < kills * commands) continue;
      kills += 1;
      kill(null);
    }
  };

  const run = async () => {
    while (!isOver || server.hasCommands()) {
      const choice = Math.random();
      if (choice < 0.5) {
        while (server.hasCommands()) take(server.receiveCommand());
      } else if (choice < 0.6) {
        if (server.hasCommands()) take(server.receiveCommand());
      } else {
        const end = new AbortController();
        if (Math.random() < 0.5) setImmediate(() => end.abort());
        else realSetTimeout(() => end.abort(), Math.random() * 5);
        await server.nextCommand({ signal: end.signal }).then(take, () => {});
      }
      if (Math.random() < 0.05) await pause(Math.random() * 3);
      else await new Promise(setImmediate);
      if (taken.length >= closeAfter) {
        closeAfter = Infinity;
        server.close().then(() => say('over'));
      }
    }
    say(taken);
    await server.close();
  };
`;

/** What a client knows of a command; unknown is one whose connection was closed without a response. */
interface Post {
  command: ControlCommand;
  outcome: 'ok' | 'refused' | 'unknown';
  /** Of one that waited: what the host reported. */
  report?: { value?: number; error?: string } | undefined;
}

describe('Commands are delivered exactly once', { ...LIMIT, concurrency: 1 }, () => {
  const KILLS = 15;
  const ALPHABETS: ControlCommand[][] = [['pause', 'resume'], ['shutdown', 'save-state']];

  it('to a host that 16 clients flood', async (t) => {
    const { taken, posts } = await deliver(t, Array(16).fill(COMMANDS), { posts: 10_000 });
    checkCounts(taken, posts.flat(), 0);
  });

  it('in the order of each of two clients', async (t) => {
    const { taken, posts } = await deliver(t, ALPHABETS, { posts: 5000 });
    checkCounts(taken, posts.flat(), 0);
    checkOrder(taken, posts);
  });

  it('to a host that closes its server meanwhile', async (t) => {
    const { taken, posts } = await deliver(t, ALPHABETS, { statement: 'closeAfter = 1500;' });
    assert.ok(taken.length >= 1500 && posts.flat().some(({ outcome }) => outcome === 'unknown'), 'closed in the middle');
    checkCounts(taken, posts.flat(), 0);
    checkOrder(taken, posts);
  });

  it('to a host that 16 clients flood while the thread is killed over and over', async (t) => {
    const { taken, posts } = await deliver(t, Array(16).fill(COMMANDS), { statement: `killOften(${KILLS});` });
    checkCounts(taken, posts.flat(), KILLS);
  });

  it('in the order of each of two clients while the thread is killed over and over', async (t) => {
    const { taken, posts } = await deliver(t, ALPHABETS, { statement: `killOften(${KILLS});` });
    checkCounts(taken, posts.flat(), KILLS);
    checkOrder(taken, posts);
  });

  it('with the outcome, to half of 16 clients, while the thread is killed now and then', async (t) => {
    const { taken, posts } = await deliver(t, Array(16).fill(COMMANDS), {
      posts: 23_000, statement: 'killEach(1000);', waiting: 8,
    });
    const kills = taken.length / 1000;
    assert.ok(posts.flat().length >= 20_000, `${posts.flat().length} POSTs`);
    checkCounts(taken, posts.flat(), 9 * kills); // of the clients that wait, each may have one on the queue
    checkReports(taken, posts);
  });

  /**
   * Each client posts commands of its alphabet, and some wait for the outcome: so many in all, or until the host has
   * carried out a statement.
   */
  async function deliver(
    t: TestContext,
    alphabets: readonly (readonly ControlCommand[])[],
    { posts: count = Infinity, statement = '', waiting = 0 },
  ): Promise<{ taken: ControlCommand[]; posts: Post[][] }> {
    const host = runHost(t, `${RANDOM_HOST}; ${statement} await run();`);
    const port = await host.hear<number>();
    let left = count;
    const over = count === Infinity ? host.hear().finally(() => (left = 0)) : null;
    const takesTurn = (): boolean => (left -= 1) >= 0;
    const posts = await Promise.all(alphabets.map((alphabet, seed) => {
      return postMany(port, alphabet, seed, takesTurn, seed < waiting ? [WAIT] : []);
    }));
    await over;
    host.tell('end');
    const taken = await host.hear<ControlCommand[]>();
    assert.ok(posts.flat().some(({ outcome }) => outcome === 'refused'), 'the queue was full at times');
    return { taken, posts };
  }
});

/** Posts random commands one after the other, on one connection as long as it lasts. */
async function postMany(
  port: number,
  alphabet: readonly ControlCommand[],
  seed: number,
  takesTurn: () => boolean,
  fields: readonly string[],
): Promise<Post[]> {
  const random = randomNumbers(seed);
  const posts: Post[] = [];
  let lastResponseAt = performance.now();
  for (let isOver = false; !isOver;) {
    assert.ok(performance.now() - lastResponseAt < 10_000, 'no server for ten seconds');
    const socket = connect(port, '127.0.0.1');
    try {
      await once(socket, 'connect');
      const chunks = socket[Symbol.asyncIterator]();
      while (!(isOver = !takesTurn())) {
        const post: Post = { command: randomCommand(random, alphabet), outcome: 'unknown' };
        posts.push(post);
        socket.write(head(`POST /api/${post.command}`, HOST, ...fields));
        let text = '';
        while (!text.endsWith('}')) {
          const { value, done } = await chunks.next();
          if (done === true) throw new Error('the connection was closed');
          text += value;
        }
        lastResponseAt = performance.now();
        assert.match(text, fields.length > 0 ? /^HTTP\/1\.1 (200|500|503) / : /^HTTP\/1\.1 (200|503) /);
        post.outcome = text.startsWith('HTTP/1.1 503 ') ? 'refused' : 'ok';
        if (fields.length > 0 && post.outcome === 'ok') post.report = JSON.parse(text.slice(text.indexOf('{')));
      }
    } catch (error) {
      if (error instanceof assert.AssertionError) throw error;
      isOver = !takesTurn();
      await sleep(10);
    } finally {
      socket.destroy();
    }
  }
  return posts;
}

/** What was acknowledged was taken; what was taken besides is unknown to its client, at most one command per kill. */
function checkCounts(taken: readonly ControlCommand[], posts: readonly Post[], kills: number): void {
  const accepted = posts.filter(({ outcome }) => outcome === 'ok');
  assert.ok(accepted.length >= 500, `${accepted.length} accepted commands`);
  for (const command of COMMANDS) {
    const count = taken.filter((one) => one === command).length;
    const known = accepted.filter((post) => post.command === command).length;
    const unknown = posts.filter((post) => post.command === command && post.outcome === 'unknown').length;
    assert.ok(count >= known && count <= known + unknown, `${command}: ${count} taken, ${known} ok, ${unknown} unknown`);
  }
  assert.ok(taken.length <= accepted.length + kills, `${taken.length} taken, ${accepted.length} ok, ${kills} kills`);
}

/** Of each client, what was acknowledged was taken in its order; what is unknown was taken in its place, or not. */
function checkOrder(taken: readonly ControlCommand[], posts: readonly (readonly Post[])[]): void {
  const letters = { pause: 'p', resume: 'r', shutdown: 'd', 'save-state': 's' };
  for (const own of posts) {
    const relevant = own.filter(({ outcome }) => outcome !== 'refused');
    const pattern = relevant.map(({ command, outcome }) => letters[command] + (outcome === 'ok' ? '' : '?')).join('');
    const commands = new Set(own.map(({ command }) => command));
    const text = taken.filter((command) => commands.has(command)).map((command) => letters[command]).join('');
    assert.ok(new RegExp(`^${pattern}$`).test(text), `${text} matches ${pattern}`);
  }
}

/** The host reported what the clients were told: of their command, to each client in its order, and to no other. */
function checkReports(taken: readonly ControlCommand[], posts: readonly (readonly Post[])[]): void {
  const told = new Set<number>();
  for (const own of posts) {
    let latest = -1;
    for (const { command, report } of own) {
      if (report === undefined) continue; // it did not wait, or was not told
      const index = report.value ?? Number(/\d+/.exec(report.error ?? '')?.[0]);
      const expected = index % 3 === 0 ? { error: `${command} failed: ${index}` } : { value: index };
      assert.deepEqual([taken[index], { ...report, ...expected }], [command, report], inspect(report));
      assert.ok(index > latest && !told.has(index), `command ${index} after ${latest}`);
      told.add(latest = index);
    }
  }
  assert.ok(told.size >= 1000, `${told.size} reports`);
}

/** The thread is dead, and does not restart yet: nobody listens. */
async function checkRefused(client: WebApiClient): Promise<void> {
  const reply = await client.request('status');
  assert.ok(!reply.ok && !reply.answered);
  assert.match(reply.error, /ECONNREFUSED/);
}

/** The first status of a new thread is up to date, unless the host may have been too slow for it. */
async function checkFirstStatus(client: WebApiClient, expected: SystemStatus): Promise<void> {
  let status = OFFLINE;
  let tookMs = 0;
  await until(async () => {
    const began = performance.now();
    status = await client.getStatus();
    tookMs = performance.now() - began;
    return status !== OFFLINE;
  });
  if (tookMs < 10) assert.equal(status, expected);
  await client.waitFor(expected, { timeout: 5000 });
}
