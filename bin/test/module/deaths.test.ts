// Server threads that die: the host continues, a new thread takes over, and every command is delivered exactly once.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import { describe, it } from 'node:test';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import {
  COMMANDS, GET, HOST, INFO, LIMIT, MORTAL, MORTAL_UNDER_LOAD, POST, SEED, WAIT, collectWarnings, collectThreads,
  exchange, head, randomCommand, randomNumbers, runHost, send, wait, waitAll,
} from './helpers.ts';
import {
  clientAt, freePort, getDetail, launchSystem, makeFolder, perform, startServer, until,
} from '../helpers.ts';
import { lacks } from '../needs.ts';
import { SystemStatus, WebApiServer } from '../../../control.ts';
import type { CommandOutcome, ControlCommand, SystemInfo } from '../../../control.ts';
import type { TestContext } from 'node:test';

const { ACTIVE, PAUSED } = SystemStatus;

const LOCAL = "host: '127.0.0.1', port: 0";

describe('A thread that dies', LIMIT, () => {
  // In a turn of its own: see MORTAL_UNDER_LOAD.
  const DEATHS: [name: string, statement: string, reason: RegExp][] = [
    ['calls process.exit()', 'setImmediate(() => process.exit(3))', /: its thread exited$/],
    ['throws', "setImmediate(() => { throw new Error('poison'); })", /: poison$/],
    ['runs out of memory', 'setImmediate(() => { for (const all = [];;) all.push(Array(1e6).fill(0)); })', /memory/],
  ];

  it('is replaced at the same address with the same queue and a warning, whatever the cause', async (t) => {
    const host = runHost(t, `
      import { Session } from 'node:inspector';
      ${MORTAL}
      // A debugger can run statements in the threads of its process.
      const session = new Session();
      session.connect();
      session.on('NodeWorker.attachedToWorker', ({ params }) => (session.thread = params.sessionId));
      session.post('NodeWorker.enable', { waitForDebuggerOnStart: false });
      const die = (expression) => session.post('NodeWorker.sendMessageToWorker', {
        sessionId: session.thread,
        message: JSON.stringify({ id: 1, method: 'Runtime.evaluate', params: { expression } }),
      });

      process.on('warning', ({ name, message }) => say(name + ': ' + message));
      const server = new WebApiServer({ systemStatus: () => ACTIVE, ${LOCAL} });
      say((await server.runInBackground()).port);
      const alive = setInterval(() => {}, 1000);
      obey({
        take() {
          const taken = [];
          while (server.hasCommands()) taken.push(server.receiveCommand());
          say(taken);
        },
        ${DEATHS.map(([name, statement]) => `${inspect(name)}: () => die(${JSON.stringify(statement)})`)},
        exit: () => process.exit(),
      });
    `);
    const port = await host.hear<number>();
    const client = clientAt(t, { host: '127.0.0.1', port });
    for (const [name, , reason] of DEATHS) {
      assert.equal(await client.pause(), 'ok');
      host.order(name);
      const warning = await host.hear<string>();
      const start = `ControlWarning: The web API at 127.0.0.1:${port} stopped and will be restarted: `;
      assert.ok(warning.startsWith(start) && reason.test(warning), warning);
      await client.waitFor(ACTIVE);
      assert.equal(await client.resume(), 'ok');
      host.order('take');
      assert.deepEqual(await host.hear(), ['pause', 'resume'], name);
    }
    host.order('exit');
    await host.ends();
  });

  it('leaves a host asleep in nextCommand(), which keeps the process alive until the next command', async (t) => {
    const host = runHost(t, `
      ${MORTAL}
      let status = ACTIVE;
      const server = new WebApiServer({ systemStatus: () => status, ${LOCAL} });
      say((await server.runInBackground()).port);
      setImmediate(async () => {
        await kill();
        status = PAUSED;
        say('killed');
      });
      say(await server.nextCommand());
      await server.close();
    `);
    const client = clientAt(t, { host: '127.0.0.1', port: await host.hear() });
    assert.equal(await host.hear(), 'killed');
    await client.waitFor(PAUSED);
    assert.equal(await client.saveState(), 'ok');
    await host.ends('save-state');
  });

  it('lets the process end while it is down and while it restarts', async (t) => {
    const host = runHost(t, `
      ${MORTAL}
      for (const state of ['restarts', 'is down']) {
        const server = new WebApiServer({ systemStatus: () => ACTIVE, ${LOCAL} });
        await server.runInBackground();
        await kill();
        if (state === 'restarts') await another();
      }
      say('end');
    `);
    await host.ends('end');
  });

  it('does not keep close() from resolving; its socket stays for the next one', { skip: lacks('Unix') }, async (t) => {
    const states = ['dies', 'is down', 'restarts', 'has just restarted'];
    const host = runHost(t, `
      import { readdirSync } from 'node:fs';
      ${MORTAL}
      const folder = ${JSON.stringify(makeFolder(t))};
      const socketPath = folder + '/control.sock';
      for (const state of ${JSON.stringify(states)}) {
        const place = state === 'restarts' ? { ${LOCAL} } : { socketPath };
        const server = new WebApiServer({ systemStatus: () => ACTIVE, ...place });
        await server.runInBackground();
        const killed = kill();
        if (state !== 'dies') await killed;
        if (state === 'restarts' || state === 'has just restarted') await another();
        if (state === 'has just restarted') await new WebApiClient(undefined, undefined, place).waitFor(ACTIVE);
        const next = server.nextCommand().catch((error) => error.name);
        const { length } = threads;
        await server.close();
        if (state === 'is down') await sleep(1200); // a restart that was due has come
        say([state, await next, threads.length - length]);
      }
      say(readdirSync(folder));
    `);
    await host.ends(...states.map((state) => [state, 'EmptyError', 0]), []);
  });

  it('is restarted every second while its port is taken, with one warning per reason', async (t) => {
    const warnings = collectWarnings(t);
    const workers = collectThreads(t);
    const { server, port, client } = await startServer(t, { host: '127.0.0.1' });
    const starts: number[] = [performance.now()];
    await workers[0]?.terminate();
    const impostor = createServer((socket) => socket.destroy()).listen(port, '127.0.0.1');
    t.after(() => impostor.close());
    await once(impostor, 'listening');
    await until(() => {
      if (workers.length > starts.length) starts.push(performance.now());
      return workers.length === 4;
    });
    const pauses = starts.slice(1).map((time, index) => time - Number(starts[index]));
    assert.ok(pauses.every((pause) => pause > 950), inspect(pauses));
    impostor.close();
    await client.waitFor(ACTIVE);
    assert.equal(await client.pause(), 'ok');
    assert.equal(server.receiveCommand(), 'pause');
    const start = `The web API at 127.0.0.1:${port} stopped and will be restarted: `;
    assert.equal(warnings.length, 2, inspect(warnings));
    assert.ok(warnings.every((warning) => warning.startsWith(start)), inspect(warnings));
    assert.match(String(warnings[1]), /EADDRINUSE/);
  });

  it('leaves a launched system paused, which resumes when the thread is back', async (t) => {
    collectWarnings(t);
    const workers = collectThreads(t);
    const log: string[] = [];
    const { address: { port }, client, finished } = await launchSystem(t, {
      onPaused: () => void log.push('paused'),
      onResumed: () => void log.push('resumed'),
      onShutdown: () => void log.push('shut down'),
    });
    assert.deepEqual(await perform(port, 'pause'), [200, undefined]);
    await workers[0]?.terminate();
    await client.waitFor(PAUSED);
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    await client.waitFor(ACTIVE);
    assert.deepEqual(await perform(port, 'shutdown'), [200, undefined]);
    await finished;
    assert.deepEqual(log, ['paused', 'resumed', 'shut down']);
  });

  it('leaves the history as it was: commands with their outcomes, status, cause and tag', async (t) => {
    collectWarnings(t);
    const workers = collectThreads(t);
    let status = ACTIVE;
    const { server, port } = await startServer(t, { systemStatus: () => status, describe: () => ({ step: 291_750 }) });
    const report = (outcome: CommandOutcome): void => {
      server.receiveCommand();
      server.report(outcome);
    };
    await send(port, 'POST /api/save-state?by=ana@laptop');
    report({ value: 'states/ä😀.json' });
    await send(port, 'POST /api/save-state?reason=%F0%9F%98%80');
    report({ error: new Error('ENOSPC') });
    await sleep(2); // commands of the same millisecond have no order
    server.post('save-state', { reason: 'SIGUSR2' });
    report({ value: -0.5 });
    await sleep(2);
    await send(port, 'POST /api/pause?by=ana@laptop&reason=GPU+needed');
    server.receiveCommand();
    status = PAUSED;
    server.report({});
    await send(port, 'POST /api/resume?by=ben');
    server.receiveCommand(); // running
    await sleep(2);
    server.post('shutdown', { reason: 'SIGTERM' });
    await sleep(2);
    await send(port, 'POST /api/pause?by=eve');
    const getHistory = async (): Promise<{ tag: unknown; history: SystemInfo }> => {
      const { headers: { etag }, body } = await send(port, INFO);
      return { tag: etag, history: { ...JSON.parse(body), heardAt: '' } };
    };
    await getDetail(port);
    const before = await getHistory();
    const { history: { by, reason, detail, commands } } = before;
    assert.deepEqual([by, reason, detail], ['ana@laptop', 'GPU needed', { step: 291_750 }]);
    assert.deepEqual(commands.map(({ by, state, value, error }) => [by, value ?? error ?? state]), [
      ['ana@laptop', 'states/ä😀.json'], [undefined, 'ENOSPC'], ['itself', -0.5], ['ana@laptop', 'done'],
      ['ben', 'running'], ['itself', 'waiting'], ['eve', 'waiting'],
    ]);
    for (let deaths = 0; deaths < 2; deaths += 1) {
      await workers.at(-1)?.terminate();
      await until(async () => (await exchange(port, [head(GET, HOST)], 1)) !== '');
      await getDetail(port);
      assert.deepEqual(await getHistory(), before);
    }
    await send(port, 'POST /api/save-state');
    const { tag, history } = await getHistory();
    assert.notEqual(tag, before.tag);
    const ids = history.commands.map(({ id }) => id.replace(/^\w+-/, ''));
    assert.deepEqual(ids, ['1', '2', 'i1', '3', '4', 'i2', '5', '6']);
  });

  it('does not block commands that the program sends itself', async (t) => {
    const warnings = collectWarnings(t);
    const workers = collectThreads(t);
    const server = new WebApiServer({ systemStatus: () => ACTIVE, port: 0 });
    t.after(() => server.close());
    const postAndTake = async (command: ControlCommand): Promise<void> => {
      const next = server.nextCommand();
      await nextTurn(); // it sleeps
      assert.equal(server.post(command), true);
      assert.equal(await next, command);
    };
    const started = server.runInBackground();
    await postAndTake('pause');
    await started;
    await postAndTake('resume');
    await workers[0]?.terminate();
    await postAndTake('save-state');
    assert.equal(warnings.length, 1);
  });

  it('breaks the waiting connections, and the next thread does not mistake an old command for a new one', async (t) => {
    collectWarnings(t);
    const workers = collectThreads(t);
    const { server, port } = await startServer(t);
    const waiting = await waitAll(t, port, [
      head('POST /api/save-state', HOST, WAIT), head(GET, HOST, 'If-None-Match: "active"', WAIT),
    ]);
    const { commands: [{ id: oldId }] } = JSON.parse((await send(port, INFO)).body);
    await workers[0]?.terminate();
    for (const { connection, response } of waiting) {
      await assert.rejects(response);
      assert.equal(connection.text, '');
    }
    await until(async () => (await exchange(port, [head(GET, HOST)], 1)) !== '');
    const { response } = await wait(t, port, head(POST, HOST, WAIT));
    for (const command of ['save-state', 'pause']) {
      assert.equal(server.receiveCommand(), command);
      server.report({ value: command });
    }
    const { id, value } = JSON.parse((await response).body);
    assert.equal(value, 'pause');
    assert.notEqual(id, oldId);
  });

  it('is replaced once the host yields, but not while it blocks in nextCommandSync()', async (t) => {
    const port = await freePort();
    const host = runHost(t, `
      ${MORTAL}
      const server = new WebApiServer({ systemStatus: () => PAUSED, host: '127.0.0.1', port });
      await server.runInBackground();
      await kill();
      say(server.nextCommandSync({ timeout: 1200 })); // a restart was due
      say(threads.length);
      await another();
      say(server.nextCommandSync());
      await server.close();
    `, port);
    const client = clientAt(t, { host: '127.0.0.1', port });
    assert.deepEqual([await host.hear(), await host.hear()], [null, 1]);
    await client.waitFor(PAUSED);
    assert.equal(await client.resume(), 'ok');
    await host.ends('resume');
  });
});

// ───── Exactly once ──────────────────────────────────────────────────────────────────────────────────────────────

/**
 * Takes commands in every way until the order to end, and reports what identifies each one: as a value or, for every
 * third, as a failure. Meanwhile it may kill its thread or close its server.
 */
const randomHost = (seed: number): string => `
  ${MORTAL_UNDER_LOAD}
  const random = (${randomNumbers})(${seed});
  const taken = [];
  const take = (command) => {
    const { id, by, reason } = server.request;
    const index = taken.push({ command, id, name: by + ' ' + reason }) - 1;
    if (index % 20 === 0) block(1);
    const message = id + ' of ' + by + ' ' + reason;
    server.report(reason % 3 === 0 ? { error: { message } } : { value: message });
  };
  let isOver = false;
  let closeAfter = Infinity;
  const server = new WebApiServer({ systemStatus: () => ACTIVE, ${LOCAL}, maxQueueSize: 7 });
  say((await server.runInBackground()).port);
  obey({ end: () => (isOver = true) });

  const killOften = async (kills) => {
    for (; kills > 0; kills -= 1) {
      const before = taken.length;
      const isPatient = random() < 0.8; // if not, the thread may not even have started
      while (isPatient && taken.length < before + 100) await sleep(1);
      await sleep(random() * 50);
      const limit = Date.now() + 100;
      const isAimed = random() < 0.5; // at the moment between the command and its response
      if (isAimed) while (!server.hasCommands() && Date.now() < limit);
      kill();
      await another();
    }
    const enough = Math.max(taken.length + 100, 400); // also if it was seldom patient
    while (taken.length < enough) await sleep(1);
    say('over');
  };

  const killAfterEach = async (commands) => {
    for (let kills = 1; !isOver; await sleep(2)) {
      if (taken.length < kills * commands) continue;
      kills += 1;
      kill();
    }
  };

  const run = async () => {
    for (let idle = 0; !isOver || server.hasCommands();) {
      const before = taken.length;
      const choice = random();
      if (choice < 0.5) {
        while (server.hasCommands()) take(server.receiveCommand());
      } else if (choice < 0.6) {
        if (server.hasCommands()) take(server.receiveCommand());
      } else {
        const end = new AbortController();
        if (random() < 0.5) setImmediate(() => end.abort());
        else setTimeout(() => end.abort(), random() * 5);
        await server.nextCommand({ signal: end.signal }).then(take, () => {});
      }
      idle = taken.length > before ? 0 : idle + 1;
      if (idle > 10 || random() < 0.05) await sleep(random() * 3);
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

/** A command as the host has taken it. */
interface Taken {
  command: ControlCommand;
  id: string;
  /** The client and a number: as `by` and `reason`. */
  name: string;
}

/** What a client knows about a command: `unknown` if the connection was closed without a response. */
interface Post {
  command: ControlCommand;
  name: string;
  outcome: 'ok' | 'refused' | 'unknown';
  /** The response, if the client waited. */
  reply?: { id?: string; value?: string; error?: string } | undefined;
}

describe(`Commands are delivered exactly once, with the seed ${SEED},`, LIMIT, () => {
  const ALPHABETS: ControlCommand[][] = [['pause', 'resume'], ['shutdown', 'save-state']];
  const HOSTS = [1, 2];
  const KILLS = 5;

  it('in the order of each of two clients, to a host that closes its server meanwhile', async (t) => {
    const { taken, posts } = await deliver(t, ALPHABETS, { statement: 'closeAfter = 1000;' });
    const isClosed = posts.flat().some(({ outcome }) => outcome === 'unknown');
    assert.ok(taken.length >= 1000 && isClosed, 'in the middle');
    checkDelivery(taken, posts);
  });

  it('in that order while the thread is killed repeatedly', async (t) => {
    const deliveries = HOSTS.map((host) => {
      return deliver(t, ALPHABETS, { seed: SEED + host, statement: `killOften(${KILLS});` });
    });
    for (const { taken, posts } of await Promise.all(deliveries)) checkDelivery(taken, posts);
  });

  it('to a host that 16 clients flood while the thread is killed repeatedly', async (t) => {
    const deliveries = HOSTS.map((host) => {
      return deliver(t, Array(16).fill(COMMANDS), { seed: SEED + host, statement: `killOften(${KILLS});` });
    });
    for (const { taken, posts } of await Promise.all(deliveries)) checkDelivery(taken, posts);
  });

  it('with its own outcome, to half of 16 clients, while the thread is killed repeatedly: 20,000 POSTs', async (t) => {
    const { taken, posts } = await deliver(t, Array(16).fill(COMMANDS), {
      posts: 20_000, statement: 'killAfterEach(2000);', waiting: 8,
    });
    assert.ok(posts.flat().some(({ outcome }) => outcome === 'refused'), 'the queue was full at times');
    checkDelivery(taken, posts);
    const replies = posts.flat().filter(({ reply }) => reply !== undefined);
    assert.ok(replies.length >= 300, `${replies.length} outcomes`);
    for (const { command, name, reply } of replies) {
      const outcome = `${reply?.id ?? /[a-z\d]{3}-\d+/.exec(reply?.error ?? '')} of ${name}`;
      const isFailed = Number(name.split(' ')[1]) % 3 === 0;
      const { value, error } = reply ?? {};
      assert.deepEqual({ value, error }, {
        value: isFailed ? undefined : outcome, error: isFailed ? `${command} failed: ${outcome}` : undefined,
      });
    }
  });

  /**
   * Each client posts commands from its alphabet, and some wait for the outcome: a given total, or until the host has
   * carried out a statement.
   */
  async function deliver(
    t: TestContext,
    alphabets: readonly (readonly ControlCommand[])[],
    { seed: hostSeed = SEED, posts: count = Infinity, statement = '', waiting = 0 },
  ): Promise<{ taken: Taken[]; posts: Post[][] }> {
    const host = runHost(t, `${randomHost(hostSeed)}; ${statement} await run();`);
    const port = await host.hear<number>();
    let left = count;
    const over = count === Infinity ? host.hear().finally(() => (left = 0)) : null;
    const takesTurn = (): boolean => (left -= 1) >= 0;
    const posts = await Promise.all(alphabets.map((alphabet, seed) => {
      return postMany(port, alphabet, seed, takesTurn, seed < waiting ? [WAIT] : []);
    }));
    await over;
    host.order('end');
    const taken = await host.hear<Taken[]>();
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
  for (let isOver = false; !isOver;) {
    const socket = connect(port, '127.0.0.1');
    try {
      await once(socket, 'connect');
      const chunks = socket[Symbol.asyncIterator]();
      while (!(isOver = !takesTurn())) {
        const [by, reason] = [`client${seed}`, posts.length];
        const post: Post = { command: randomCommand(random, alphabet), name: `${by} ${reason}`, outcome: 'unknown' };
        posts.push(post);
        socket.write(head(`POST /api/${post.command}?by=${by}&reason=${reason}`, HOST, ...fields));
        let text = '';
        while (!text.endsWith('}')) {
          const { value, done } = await chunks.next();
          if (done === true) throw new Error('the connection was closed');
          text += value;
        }
        assert.match(text, fields.length > 0 ? /^HTTP\/1\.1 (200|500|503) / : /^HTTP\/1\.1 (200|503) /);
        post.outcome = text.startsWith('HTTP/1.1 503 ') ? 'refused' : 'ok';
        if (fields.length > 0 && post.outcome === 'ok') post.reply = JSON.parse(text.slice(text.indexOf('{')));
      }
    } catch (error) {
      if (error instanceof assert.AssertionError) throw error;
      isOver = !takesTurn();
      await sleep(100);
    } finally {
      socket.destroy();
    }
  }
  return posts;
}

/**
 * Acknowledged commands were taken once and refused ones never, in the order of each client and of the ids. A command
 * of unknown fate was taken at its place, or not at all.
 */
function checkDelivery(taken: readonly Taken[], posts: readonly (readonly Post[])[]): void {
  const numbers = taken.map(({ id }) => Number(id.split('-')[1]));
  assert.ok(numbers.every((number, index) => index === 0 || number > Number(numbers[index - 1])), 'ids increase');
  const byName = new Map(taken.map(({ command, name }) => [name, command]));
  assert.equal(byName.size, taken.length, 'none was taken twice');
  for (const own of posts) {
    for (const { command, name, outcome } of own) {
      const isExpected = outcome === 'ok' || (outcome === 'unknown' && byName.has(name));
      assert.equal(byName.get(name), isExpected ? command : undefined, `${name}: ${outcome}`);
    }
    const names = new Set(own.map(({ name }) => name));
    const order = taken.flatMap(({ name }) => (names.has(name) ? [name] : []));
    assert.deepEqual(order, own.flatMap(({ name }) => (byName.has(name) ? [name] : [])));
  }
  const accepted = posts.flat().filter(({ outcome }) => outcome === 'ok');
  assert.ok(accepted.length >= 300, `${accepted.length} accepted commands`);
  assert.equal(posts.flat().filter(({ name }) => byName.has(name)).length, taken.length, 'all are of these clients');
}
