// The program's side of the server: when its callbacks run, what they may do, and values that throw when they are read.

import assert from 'node:assert/strict';
import { syncBuiltinESMExports } from 'node:module';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import threads from 'node:worker_threads';
import { SystemStatus } from '../../../control.ts';
import { collectWarnings, getDetail, getInfo, launchSystem, perform, startServer, takeAll } from '../helpers.ts';
import { runHost } from '../host.ts';
import { PAUSE, RESUME, STATUS, ask, serveOthers } from '../http.ts';
import { LIMIT, until } from '../wait.ts';
import type { WorkerOptions } from 'node:worker_threads';
import type { SystemInfo, WebApiServer } from '../../../control.ts';
import type { StartedServer } from '../helpers.ts';

const { ACTIVE, PAUSED } = SystemStatus;

/** Runs in the server thread, which then takes milliseconds to list commands. */
function listSlowly(): void {
  const { toISOString } = Date.prototype;
  Date.prototype.toISOString = function toSlow(): string {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    return toISOString.call(this);
  };
}

/** Runs in the server thread, which then takes a quarter of a second to read the records. */
function readSlowly(): void {
  const { parse } = JSON;
  JSON.parse = (text: string): unknown => {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    return parse(text);
  };
}

/** Starts a server whose thread first runs a function. */
async function startThreadWith(
  act: () => void,
  ...parameters: Parameters<typeof startServer>
): Promise<StartedServer<string>> {
  const { Worker } = threads;
  threads.Worker = class extends Worker {
    constructor(source: string, options: WorkerOptions) {
      super(`(${act})(); ${source}`, options);
    }
  };
  syncBuiltinESMExports();
  const starting = startServer(...parameters); // the thread is created at once
  threads.Worker = Worker;
  syncBuiltinESMExports();
  return starting;
}

describe('GET /api/info', { ...LIMIT, concurrency: true }, () => {
  it('has a tag that is never newer than the commands, so that no outcome is missed', async (t) => {
    const { server, client } = await startThreadWith(listSlowly, t);
    const poll = setInterval(() => {
      for (; server.hasCommands(); server.report({ value: 'states/1.json' })) server.receiveCommand();
    }, 1);
    t.after(() => clearInterval(poll));
    const seen = new Map<string, unknown>();
    const isOver = new AbortController();
    const { signal } = isOver;
    const follow = async (tag?: string): Promise<void> => {
      if (signal.aborted) return;
      const reply = await client.request('info', { tag, wait: tag === undefined ? undefined : 1, signal });
      const { commands = [] } = (reply.ok ? reply.body : {}) as Partial<SystemInfo>;
      for (const { id, value } of commands) seen.set(id, value);
      return follow(reply.ok ? reply.tag : undefined);
    };
    const others = [follow()];
    for (let count = 0; count < 20; count += 1) {
      const status = client.getStatus(); // samples that are fresh while the outcome is on its way
      const reply = await client.request('save-state', { wait: 60 });
      assert.ok(reply.ok);
      await until(() => seen.get(String(reply.body['id'])) === 'states/1.json', () => `${count} outcomes`);
      await status;
    }
    isOver.abort();
    await Promise.all(others);
  });

  it('never has an outcome whose status it lacks', async (t) => {
    let status = ACTIVE;
    const { server, port } = await startThreadWith(readSlowly, t, { systemStatus: () => status });
    for (let delay = 20; delay < 300; delay += 40) {
      await ask(port, status === ACTIVE ? PAUSE : RESUME);
      const reading = getInfo(port);
      await sleep(delay);
      status = server.receiveCommand() === 'pause' ? PAUSED : ACTIVE;
      server.hasCommands();
      const { commands, status: shown } = await reading;
      const { state, command } = commands.at(-1) ?? assert.fail();
      const isRight = (command === 'pause') === (shown === 'paused');
      assert.ok(state !== 'done' || isRight, `${command}: ${shown}, after ${delay} ms`);
    }
  });

  it('has the same since, by and reason after a save of an active system as before', async (t) => {
    const { address: { port }, client } = await launchSystem(t);
    const getCause = async (): Promise<Partial<SystemInfo>> => {
      const { status, since, by, reason } = await getInfo(port);
      return { status, since, by, reason };
    };
    for (const command of ['pause', 'resume']) await client.request(command, { by: 'ana', reason: 'noon', wait: 60 });
    const { since, ...cause } = await getCause();
    assert.deepEqual(cause, { status: 'active', by: 'ana', reason: 'noon' });
    await sleep(2); // so that times differ
    await client.request('save-state', { by: 'bob', wait: 60 });
    assert.deepEqual(await getCause(), { since, ...cause });
  });
});

describe('describe()', { ...LIMIT, concurrency: true }, () => {
  it('runs only on request, up to ten times a second, and never twice at once', async (t) => {
    let calls = 0;
    let depth = 0;
    const host: { server?: WebApiServer } = {};
    const { server, port } = await startServer(t, {
      describe() {
        calls += 1;
        depth += 1;
        host.server?.hasCommands();
        depth -= 1;
        return { depth };
      },
    });
    host.server = server;
    const polls = setInterval(() => server.hasCommands(), 1);
    t.after(() => clearInterval(polls));
    for (const line of [PAUSE, RESUME]) await ask(port, line);
    takeAll(server);
    await serveOthers(port);
    assert.equal(calls, 0);
    const began = performance.now();
    while (calls < 4) assert.deepEqual(await getDetail(port), { depth: 0 });
    const tookMs = performance.now() - began;
    assert.ok(calls <= tookMs / 100 + 1, `${calls} calls in ${tookMs} ms`);
  });

  it('runs on request, as systemStatus() does, while a program that never yields lets a command wait', async (t) => {
    const host = runHost(t, `
      let [calls, status] = [0, ACTIVE];
      const server = await serve({ describe: () => (calls += 1), systemStatus: () => status });
      for (;; block(1)) if (server.hasCommands()) status = PAUSED; // by itself, before it takes the command
    `);
    const port = await host.hear<number>();
    await ask(port, 'POST /api/save-state');
    for (let round = 0, before = -1; round < 3; round += 1) {
      await until(async () => Number(await getDetail(port)) > before);
      before = Number(await getDetail(port));
    }
    await until(async () => (await ask(port, STATUS)).summary === '200 paused');
  });

  it('does not run at a second poll before a command is taken: who posts and then asks sees its effect', async (t) => {
    const host = runHost(t, `
      let status = ACTIVE;
      const server = await serve({ systemStatus: () => status, describe: () => status.statusName });
      for (;;) {
        while (!server.hasCommands()) block(1);
        block(20); // until the client has asked
        if (server.hasCommands()) status = server.receiveCommand() === 'pause' ? PAUSED : ACTIVE;
      }
    `);
    const port = await host.hear<number>();
    const seen: unknown[] = [];
    for (let round = 0; round < 10; round += 1) {
      await sleep(100); // a detail may be as old
      await ask(port, round % 2 === 0 ? PAUSE : RESUME);
      seen.push(await getDetail(port));
    }
    const right = seen.filter((detail, round) => detail === (round % 2 === 0 ? 'paused' : 'active'));
    assert.ok(right.length > 5, `${seen}`); // a busy machine may let some wait for too long
  });
});

describe('systemStatus()', LIMIT, () => {
  it('runs at the start, at each look for commands, and on request', async (t) => {
    let calls = 0;
    const { server, port } = await startServer(t, { systemStatus: () => (calls += 1, ACTIVE) });
    const counts = [calls];
    const controller = new AbortController();
    const sleeping = (): void => void server.nextCommand({ signal: controller.signal }).catch(() => {});
    for (const action of [
      () => server.hasCommands(), sleeping, () => controller.abort(), () => ask(port, PAUSE),
      () => server.receiveCommand(), () => ask(port, STATUS), () => ask(port, 'GET /'),
      () => sleep(2).then(() => ask(port, STATUS)), // within a millisecond, a sample serves several
    ]) {
      await action();
      counts.push(calls);
    }
    assert.deepEqual(counts, [1, 2, 3, 3, 3, 4, 5, 5, 6]);
  });
});

/** Values that throw when they are read, shown or turned into text. */
const HOSTILE_VALUES: [name: string, value: unknown][] = [
  ['an Error whose stack throws', throwing(new Error('lost'), 'stack')],
  ['an Error whose message throws', throwing(new Error('lost'), 'message')],
  ['shown by a method that throws', { [inspect.custom]: () => assert.fail('inspect') }],
  ['an object with a symbol as its code', { message: '', code: Symbol('lost') }],
  ['an exception with a number as its code', new DOMException('', 'AbortError')],
  ['an object without a prototype', Object.create(null)],
  ['a revoked Proxy', revoked({})],
  ['a revoked Proxy of a function', revoked(() => {})],
  ['an object whose getters throw', throwing({}, 'message', 'code', 'name', 'stack', 'then', 'toJSON', 'statusName')],
  ['a symbol', Symbol('lost')],
];

describe('A value that throws when it is read', LIMIT, () => {
  const raise = (value: unknown): never => {
    throw value;
  };

  it('does not end the program as the outcome of a command', async (t) => {
    const { server, port } = await startServer(t);
    for (const [name, value] of HOSTILE_VALUES) {
      const performed = [perform(port, 'save-state'), perform(port, 'save-state')];
      await server.nextCommand();
      server.report({ value: value as string });
      await server.nextCommand();
      server.report({ error: value });
      const outcomes = await Promise.all(performed);
      assert.match(outcomes.join(' '), /^200,.* 500,save-state failed: ./, name);
    }
  });

  it('does not end the program as a status or a detail, or thrown instead', async (t) => {
    const warnings = collectWarnings(t);
    let result = (): unknown => ACTIVE;
    const systemStatus = (): SystemStatus => result() as SystemStatus;
    const { server, port } = await startServer(t, { systemStatus, describe: () => result() });
    for (const [name, value] of HOSTILE_VALUES) {
      for (result of [() => value, () => raise(value)]) {
        assert.equal(server.hasCommands(), false);
        assert.equal((await ask(port, STATUS)).statusCode, 500, name);
        await getInfo(port);
      }
    }
    result = () => ACTIVE;
    server.hasCommands();
    assert.equal((await ask(port, STATUS)).summary, '200 active');
    assert.ok(warnings.every((warning) => /^(systemStatus|describe) /.test(warning)), inspect(warnings));
  });

  it('does not end launch() as the value of a hook, or thrown by it', async (t) => {
    collectWarnings(t);
    let act = (): unknown => 'saved';
    const { address: { port } } = await launchSystem(t, { onPaused: () => act(), saveState: () => act() });
    for (const [name, value] of HOSTILE_VALUES) {
      act = () => raise(value);
      for (const command of ['pause', 'save-state', 'shutdown'] as const) {
        const [statusCode, error] = await perform(port, command);
        assert.deepEqual([statusCode, String(error).startsWith(`${command} failed: `)], [500, true], name);
      }
      act = () => value;
      await perform(port, 'save-state'); // fails if it cannot be awaited
      act = () => 'saved';
      assert.deepEqual(await perform(port, 'save-state'), [200, 'saved'], name);
    }
  });
});

describe('post()', LIMIT, () => {
  it('may be called in systemStatus() or describe(): hasCommands() returns true from then on', async (t) => {
    const host = runHost(t, `
      let due = '';
      const run = (name, value) => () => {
        if (due === name && !server.hasCommands()) server.post('pause');
        return value;
      };
      const options = { systemStatus: run('systemStatus', ACTIVE), describe: run('describe', 7) };
      const server = new WebApiServer({ ...place, ...options });
      say((await server.runInBackground()).port);
      for (due of ['systemStatus', 'describe']) {
        while (!server.hasCommands()) block(1); // never yields
        say([due, server.hasCommands(), server.receiveCommand()]);
      }
      process.exit();
    `);
    const port = await host.hear<number>();
    assert.deepEqual(await host.hear(), ['systemStatus', true, 'pause']);
    await getInfo(port).catch(() => {}); // the host may have ended
    await host.ends(['describe', true, 'pause']);
  });
});

/** A Proxy that throws at everything but typeof. */
function revoked(target: object): unknown {
  const { proxy, revoke } = Proxy.revocable(target, {});
  revoke();
  return proxy;
}

function throwing<Target extends object>(target: Target, ...names: string[]): Target {
  for (const name of names) Object.defineProperty(target, name, { get: () => assert.fail(`${name} was read`) });
  return target;
}
