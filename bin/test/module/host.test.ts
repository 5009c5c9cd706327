// The program's side of the server: values that throw when they are read, loops other than the documented one,
// and callbacks that call the server.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { inspect } from 'node:util';
import { LIMIT, clientAt, collectWarnings, getInfo, launchSystem, perform, startServer } from '../helpers.ts';
import { runHost } from '../host.ts';
import { ask } from '../http.ts';
import { outcomeOf } from './helpers.ts';
import { SystemStatus } from '../../../control.ts';

const { ACTIVE, PAUSED } = SystemStatus;

/** Values that throw when they are read, shown or turned into text. */
const JSON_VALUES: [name: string, value: unknown][] = [
  ['an Error whose stack throws', throwing(new Error('lost'), 'stack')],
  ['an Error whose message throws', throwing(new Error('lost'), 'message')],
  ['shown by a method that throws', { [inspect.custom]: () => assert.fail('inspect') }],
  ['an object with a symbol as its code', { message: '', code: Symbol('lost') }],
  ['an exception with a number as its code', new DOMException('', 'AbortError')],
  ['an object without a prototype', Object.create(null)],
];
const HOSTILE_VALUES: [name: string, value: unknown][] = [
  ...JSON_VALUES,
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
        assert.equal((await ask(port, 'GET /api/status')).statusCode, 500, name);
        await getInfo(port);
      }
    }
    result = () => ACTIVE;
    server.hasCommands();
    assert.equal(outcomeOf(await ask(port, 'GET /api/status')), 'active');
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

describe('receiveCommand()', LIMIT, () => {
  it('publishes the status that the previous command has caused, and its cause', async (t) => {
    let status = ACTIVE;
    const { server, port } = await startServer(t, { systemStatus: () => status });
    await ask(port, 'POST /api/pause?by=ana&reason=lunch');
    await ask(port, 'POST /api/save-state?by=ben');
    assert.equal(server.receiveCommand(), 'pause');
    status = PAUSED;
    assert.equal(server.receiveCommand(), 'save-state');
    const { status: name, by, reason } = await getInfo(port);
    assert.deepEqual([name, by, reason], ['paused', 'ana', 'lunch']);
  });

  it('shows no outcome before the resulting status, even if the host never looks for commands', async (t) => {
    const host = runHost(t, `
      let status = ACTIVE;
      const server = new WebApiServer({ systemStatus: () => status, ...place });
      say((await server.runInBackground()).port);
      for (let isOver = false; !isOver; ) {
        try {
          const command = server.receiveCommand();
          if (command === 'pause') status = PAUSED;
          if (command === 'resume') status = ACTIVE;
          isOver = command === 'shutdown';
          if (command === 'save-state') block(20);
        } catch (error) {
          if (!(error instanceof EmptyError)) throw error;
          block(1);
        }
      }
      await server.close();
    `);
    const port = await host.hear<number>();
    const client = clientAt(t, { host: '127.0.0.1', port });
    for (const [command, status] of [['pause', 'paused'], ['resume', 'active'], ['pause', 'paused']] as const) {
      const performed = client.request(command, { wait: 60 });
      const saved = client.request('save-state', { wait: 60 });
      assert.equal((await performed).ok, true);
      assert.equal((await client.getStatus()).statusName, status);
      await saved;
    }
    await client.shutdown();
    await host.ends();
  });
});

describe('post()', LIMIT, () => {
  for (const callback of ['systemStatus', 'describe'] as const) {
    it(`may be called in ${callback}(): hasCommands() returns true from then on`, async (t) => {
      const host = runHost(t, `
        let isDue = false;
        const run = (value) => () => {
          if (isDue && !server.hasCommands()) server.post('pause');
          return value;
        };
        const server = new WebApiServer({ systemStatus: () => ACTIVE, ...place, ${callback}: run(ACTIVE) });
        say((await server.runInBackground()).port);
        isDue = true;
        const end = performance.now() + 20_000;
        while (!server.hasCommands() && performance.now() < end); // never yields
        isDue = false;
        say([server.hasCommands(), server.receiveCommand()]);
        await server.close();
      `);
      await getInfo(await host.hear()).catch(() => {}); // the host may have ended
      await host.ends([true, 'pause']);
    });
  }
});

describe('close()', LIMIT, () => {
  it('resolves even if the thread runs out of memory meanwhile', async (t) => {
    const host = runHost(t, `
      import { Session } from 'node:inspector';
      const server = new WebApiServer({ systemStatus: () => ACTIVE, ...place });
      await server.runInBackground();
      const session = new Session(); // a debugger can run statements in the threads of its process
      session.connect();
      session.on('NodeWorker.attachedToWorker', ({ params: { sessionId } }) => {
        const expression = 'setImmediate(() => { for (const all = [];;) all.push(Array(1e6).fill(0)); })';
        const message = JSON.stringify({ id: 1, method: 'Runtime.evaluate', params: { expression } });
        session.post('NodeWorker.sendMessageToWorker', { sessionId, message });
      });
      session.post('NodeWorker.enable', { waitForDebuggerOnStart: false });
      await server.close();
      say('closed');
    `);
    await host.ends('closed');
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
