// What reaches a program in the middle of a step: a look at its call stack, and a shutdown with a limit.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { clientAt, freePort, HOSTILE, makeFolder, startServer, takeAll } from '../helpers.ts';
import { runHost, type Host } from '../host.ts';
import { INFO, PAUSE, RESUME, SAVE, SHUTDOWN, WAIT, ask, type HttpResponse } from '../http.ts';
import { lacks, NAMESPACE } from '../needs.ts';
import { LIMIT, until } from '../wait.ts';
import { readLog } from './log.ts';

const STACK = 'GET /api/stack';

const stackOf = async (port: number): Promise<string[]> => (await ask(port, STACK)).body.stack;

/** For hosts that compute for ever in `work()`. */
const SPIN = `
  const server = await serve({ name: 'spin' });
  const work = () => { for (let step = 0; ; step += 1) Math.sqrt(step); };
`;

/** Waits for a host that was killed. */
async function isKilled(host: Host): Promise<void> {
  await host.ended;
  assert.equal(host.process.signalCode, 'SIGKILL');
}

describe('GET /api/stack', { ...LIMIT, concurrency: 3 }, () => {
  for (const [what, source, frames] of [
    ['an endless loop', 'const outer = () => inner(); const inner = () => { for (;;); }; outer();', ['inner', 'outer']],
    ['a regular expression', `const find = () => /^(a+)+$/.test('a'.repeat(40) + 'b'); find();`, ['test', 'find']],
    ['a callback', 'const list = Array(9).fill(0); const turn = () => { for (;;); }; list.map(turn);', ['turn', 'map']],
    ['Atomics.wait()', 'const sleeps = () => block(2 ** 30); sleeps();', ['wait', 'block', 'sleeps']],
    ['a generator', 'function* all() { for (;;); } const read = () => [...all()]; read();', ['all', 'next', 'read']],
    ['asynchronous steps', `
      const parse = () => { for (;;); };
      const load = async () => { await null; parse(); };
      const step = async () => { await load(); };
      await step();
    `, ['parse', 'load', 'async step']],
    ['recursion', 'const dig = (depth) => { if (depth === 0) for (;;); dig(depth - 1); }; dig(500);', ['dig', 'dig']],
  ] as const) {
    it(`says where a program is in ${what}, innermost first`, async (t) => {
      const host = runHost(t, `await serve(); ${source}`);
      const port = await host.hear<number>();
      let stack: string[] = [];
      const isThere = (): boolean => frames.every((name, index) => {
        return new RegExp(`\\b${name}\\b`).test(stack[index] ?? '');
      });
      await until(async () => (stack = await stackOf(port)) !== undefined && isThere(), () => stack.join('\n'));
      assert.ok(stack.length <= 50, `${stack.length} frames`);
      for (const frame of stack) assert.doesNotMatch(frame, /runtime-control-0|onReach|writeStack/);
      assert.match(stack.at(what === 'a regular expression' ? 1 : 0) ?? '', /wait|\(?(file:.*|node:.*):\d+:\d+\)?$/);
    });
  }

  it('says where a program is that has not yielded since it started the server', async (t) => {
    const port = await freePort();
    const host = runHost(t, `
      const server = new WebApiServer({ systemStatus: () => ACTIVE, ...place, port: ${port} });
      void server.runInBackground();
      const begins = () => { say(0); for (;;); };
      begins();
    `);
    await host.hear();
    const client = clientAt(t, { host: '127.0.0.1', port });
    await until(async () => /^begins /.test(String((await client.request('stack')).body['stack'])));
  });

  it('is empty while no function runs, and says so if native code does not let the program respond', async (t) => {
    const host = runHost(t, `
      await serve();
      obey({ block: () => { say(0); process.getBuiltinModule('node:child_process').execSync('sleep 4'); say(1); } });
      setInterval(() => {}, 1000);
    `);
    const port = await host.hear<number>();
    await until(async () => (await stackOf(port)).length === 0);
    assert.equal((await ask(port, 'HEAD /api/stack')).statusCode, 200);
    const { statusCode, headers: { allow } } = await ask(port, 'POST /api/stack');
    assert.deepEqual([statusCode, allow], [405, 'GET, HEAD']);
    host.order('block');
    await host.hear();
    const error = 'The program has not responded within 1 s: it runs native code or is stopped';
    await until(async () => (await ask(port, STACK)).statusCode === 504);
    assert.deepEqual((await ask(port, STACK)).body, { error });
    assert.equal((await ask(port, 'GET /api/status')).statusCode, 200);
    assert.equal(await host.hear(), 1); // the look takes place at last, but is no answer to a later request
    await sleep(200);
    assert.deepEqual(await stackOf(port), []);
  });

  it('is shared by requests at the same time, and neither touches the queue nor is a sign of life', async (t) => {
    const host = runHost(t, `
      import { getBuiltinModule as get } from 'node:process';
      let looks = 0;
      const server = await serve();
      const exports = get('node:worker_threads');
      const [symbol] = Object.getOwnPropertySymbols(exports).filter((one) => one.description.startsWith('runtime-'));
      const reach = exports[symbol];
      Object.defineProperty(exports, symbol, { value: () => { looks += 1; reach(); }, configurable: true });
      say('');
      while (!server.hasWaiting(['save-state']));
      say(looks);
      say(server.hasCommands() && server.receiveCommand());
      await server.close();
      say(Object.getOwnPropertySymbols(exports).includes(symbol));
    `);
    const port = await host.hear<number>();
    await host.hear();
    const heardAt = Date.parse((await ask(port, INFO)).body.heardAt);
    const stacks = await Promise.all(Array.from({ length: 40 }, () => stackOf(port)));
    for (const [frame] of stacks) assert.ok(frame !== undefined);
    const age = Date.parse((await ask(port, INFO)).body.heardAt) - heardAt;
    assert.ok(Math.abs(age) < 20, `heard ${age} ms later`); // two clocks give it
    await ask(port, SAVE);
    const [looks] = [await host.hear<number>()];
    assert.ok(looks >= 1 && looks <= 20, `${looks} looks`);
    await host.ends('save-state', false);
  });

  it('changes nothing that the program can see', async (t) => {
    const host = runHost(t, `
      const server = await serve();
      Error.prepareStackTrace = () => say('prepareStackTrace');
      Error.stackTraceLimit = 3;
      Object.freeze(Error);
      globalThis.String = globalThis.Array = undefined;
      const faults = [];
      let [round, text] = [0, ''];
      while (!server.hasWaiting()) {
        round += 1;
        text = 'value ' + round;
        /(\\d+)/.exec(text);
        if (RegExp.$1 !== '' + round) faults.push('RegExp.$1');
        const buffer = Buffer.from(text);
        const copy = Buffer.allocUnsafe(8).fill(round % 256);
        if (buffer.toString() !== text || copy.some((byte) => byte !== round % 256)) faults.push('Buffer');
        if (JSON.parse(JSON.stringify({ text })).text !== text) faults.push('JSON');
      }
      if (Error.stackTraceLimit !== 3 || typeof Error.prepareStackTrace !== 'function') faults.push('Error');
      server.receiveCommand();
      await server.close();
      say(faults);
    `);
    const port = await host.hear<number>();
    const seen = new Set<string>();
    for (let looks = 0; looks < 15; looks += 1) {
      for (const frame of await stackOf(port)) seen.add(frame);
      await sleep(100); // so long, a stack is reused
    }
    assert.ok([...seen].some((frame) => frame.includes('[eval1]:')), [...seen].join('\n'));
    await ask(port, SAVE);
    await host.ends([]);
  });

  it('cuts and tidies names, and responds from the end of the call stack', async (t) => {
    const host = runHost(t, `
      const name = 'a\\u001b[31m\\nb' + 'x'.repeat(2 ** 20);
      const { [name]: work } = { [name]: (depth) => { if (depth > 0) return work(depth - 1); for (;;); } };
      await serve();
      work(200);
    `);
    const port = await host.hear<number>();
    let stack: string[] = [];
    await until(async () => (stack = await stackOf(port)).length === 50);
    for (const frame of stack) assert.match(frame, /^[ -~\u00a0-\uffff]{190,200}$/);
    const deep = runHost(t, `
      await serve();
      const dig = () => { try { dig(); } catch {} };
      for (;;) dig();
    `);
    const deepPort = await deep.hear<number>();
    await until(async () => (await ask(deepPort, STACK)).body.stack?.[0]?.includes('dig') === true);
  });

  it('is what readStack() of a supervisor returns; 504 and a warning if that fails', async (t) => {
    let lines = ['run (train.py:7)', HOSTILE, 'x'.repeat(300)];
    const { port } = await startServer(t, {
      onOverdue: () => {},
      readStack: async () => lines.length > 0 ? lines : Promise.reject(new Error('gone')),
    });
    const stack = await stackOf(port);
    assert.deepEqual([stack[0], stack[2]], ['run (train.py:7)', 'x'.repeat(200)]);
    assert.doesNotMatch(stack[1] as string, /\p{Cc}/u);
    lines = [];
    const warning = once(process, 'warning');
    await sleep(100); // a younger one would be reused
    assert.equal((await ask(port, STACK)).statusCode, 504);
    assert.equal((await warning)[0].message, 'readStack failed: gone');
  });

  it('is 501 where the inspector cannot see the program, and so said', async (t) => {
    const inWorker = runHost(t, `
      import { Worker } from 'node:worker_threads';
      new Worker(\`
        import(\${JSON.stringify(import.meta.resolve('./dist/control.js'))}).then(async ({ WebApiServer }) => {
          const server = new WebApiServer({ systemStatus: () => 'active', host: '127.0.0.1', port: 0 });
          console.log((await server.runInBackground()).port);
          setInterval(() => {}, 1000);
        });
      \`, { eval: true });
    `);
    const port = await inWorker.hear<number>();
    const { statusCode, body } = await ask(port, STACK);
    assert.deepEqual([statusCode, body], [501, { error: `Node's inspector is not available in a worker thread` }]);
    const killed = await ask(port, `${SHUTDOWN}?within=0`, WAIT);
    assert.equal(killed.statusCode, 500);
    await isKilled(inWorker);
    const isOld = !process.allowedNodeEnvironmentFlags.has('--permission');
    const permissions = [isOld ? '--experimental-permission' : '--permission', '--allow-fs-read=*', '--allow-worker'];
    const restricted = runHost(t, 'await serve(); setInterval(() => {}, 1000);', permissions);
    const { body: { error } } = await ask(await restricted.hear(), STACK);
    assert.equal(error, `Node's inspector is not available with --permission`);
  });
});

it('A look beside an open inspector is refused', async (t) => {
  const error = 'A look beside an open inspector could crash the program';
  const early = runHost(t, 'await serve(); for (;;);', ['--inspect=127.0.0.1:0']);
  const { statusCode, body } = await ask(await early.hear(), STACK);
  assert.deepEqual([statusCode, body], [501, { error }]);
  const late = runHost(t, `
    import inspector from 'node:inspector';
    await serve();
    obey({ open: () => inspector.open(0, '127.0.0.1'), close: () => inspector.close() });
    setInterval(() => {}, 1000);
  `);
  const port = await late.hear<number>();
  const reaches = (code: number): Promise<void> => until(async () => {
    await ask(port, INFO); // the host looks
    return (await ask(port, STACK)).statusCode === code;
  });
  await reaches(200);
  late.order('open');
  await reaches(501);
  late.order('close');
  await reaches(200);
});

describe('A shutdown with a limit', { ...LIMIT, concurrency: 3 }, () => {
  for (const within of [0, 1]) {
    it(`kills a program that has not ended within ${within} s, says so, and leaves no socket`, async (t) => {
      const folder = makeFolder(t);
      const [log, socketPath] = [join(folder, 'log.jsonl'), join(folder, 's')];
      const options = JSON.stringify({ log, socketPath });
      const host = runHost(t, `await serve(${options}); for (;;);`);
      const port = await host.hear<number>();
      await ask(port, PAUSE);
      const response = ask(port, `${SHUTDOWN}?within=${within}&by=ana`, WAIT);
      const { statusCode, body } = await response;
      const error = `the program has not ended within ${within} s and is killed`;
      assert.deepEqual([statusCode, body.error], [500, `shutdown failed: ${error}`]);
      await isKilled(host);
      assert.equal(existsSync(socketPath), false);
      const told = readLog(log).filter(({ command }) => command === 'shutdown');
      assert.deepEqual(told.map((entry) => entry.event), ['command', 'outcome']);
      assert.deepEqual([told[0]?.['within'], told[1]?.['within'], told[1]?.['error']], [within, within, error]);
    });
  }

  it('kills nothing that has ended or failed in time, and tells the program its limit', async (t) => {
    const host = runHost(t, `
      const server = await serve();
      const timer = setInterval(async () => {
        if (!server.hasCommands()) return;
        const command = server.receiveCommand();
        say(server.request.within ?? command);
        if (command === 'shutdown') server.report({ error: new Error('disk full') });
        if (command !== 'save-state') return;
        clearInterval(timer);
        await server.close();
      }, 1);
    `);
    const port = await host.hear<number>();
    const failed = await ask(port, `${SHUTDOWN}?within=1`, WAIT);
    assert.deepEqual([failed.statusCode, failed.body.error], [500, 'shutdown failed: disk full']);
    await ask(port, RESUME);
    await sleep(1500); // nothing must happen
    await ask(port, SAVE);
    await host.ends(1, 'resume', 'save-state');
  });

  it('survives the thread that has accepted it', async (t) => {
    const host = runHost(t, `
      const threads = [];
      process.removeAllListeners('warning');
      process.on('worker', (thread) => threads.push(thread));
      await serve();
      obey({ kill: () => threads[0].terminate() });
      setInterval(() => {}, 1000);
    `);
    const port = await host.hear<number>();
    await ask(port, `${SHUTDOWN}?within=2`);
    assert.equal((await ask(port, INFO)).body.commands[0].within, 2);
    host.order('kill');
    await isKilled(host);
  });

  it('only calls onOverdue() of a supervisor, which goes on, as does a pause', async (t) => {
    const overdue: string[] = [];
    const { server, client, port } = await startServer(t, { onOverdue: (command) => { overdue.push(command); } });
    await ask(port, RESUME);
    const replies = [client.request('pause', { within: 1, wait: 60 })];
    await until(() => overdue.length === 1);
    replies.push(client.request('shutdown', { within: 0, wait: 60 }));
    await until(() => overdue.length === 2);
    assert.deepEqual(takeAll(server), ['resume', 'pause', 'shutdown']);
    for (const reply of replies) assert.equal((await reply).ok, true);
    assert.deepEqual(overdue, ['pause', 'shutdown']);
  });

  it('is refused in process 1, which Linux does not let kill itself', { skip: lacks('namespace') }, async (t) => {
    const host = runHost(t, 'await serve(); setInterval(() => {}, 1000);', [], NAMESPACE);
    const { statusCode, body } = await ask(await host.hear(), `${SHUTDOWN}?within=1`);
    const error = 'process 1 cannot be killed: start its container with an init';
    assert.deepEqual([statusCode, body], [501, { error }]);
  });

  it('is refused with other commands, with expires, and out of its range', async (t) => {
    const { port, server } = await startServer(t);
    const errorOf = async (line: string): Promise<[number, string]> => {
      const { statusCode, body }: HttpResponse = await ask(port, line);
      return [statusCode, body.error];
    };
    const form = 'within must be an integer from 0 to 86400, got';
    for (const [query, error] of [
      ['within=-1', `${form} "-1"`], ['within=1.5', `${form} "1.5"`], ['within=', `${form} ""`],
      ['within=86401', `${form} "86401"`], ['within=99999', `${form} "99999"`], ['within=07', `${form} "07"`],
      ['within=1&expires=1', 'expires and within exclude each other'],
      ['within=1&within=1', 'within is given twice: by, reason, expires, within'],
    ] as const) {
      assert.deepEqual(await errorOf(`${SHUTDOWN}?${query}`), [400, error]);
    }
    const error = 'unknown parameter within: by, reason, expires';
    assert.deepEqual(await errorOf(`${SAVE}?within=1`), [400, error]);
    const refusal = 'Only control-run can pause a program in the middle of a step';
    assert.deepEqual(await errorOf(`${PAUSE}?within=1`), [501, refusal]);
    assert.equal(server.hasCommands(), false);
  });
});

describe('The client', LIMIT, () => {
  it('reads the stack, and limits a shutdown', async (t) => {
    const host = runHost(t, `${SPIN} work();`);
    const client = clientAt(t, { host: '127.0.0.1', port: await host.hear() });
    await until(async () => /^work /.test(String((await client.request('stack')).body['stack'])));
    const reply = await client.request('stack');
    assert.deepEqual(reply.ok && reply.value.split('\n'), reply.ok && reply.body['stack']);
    await assert.rejects(client.shutdown({ within: 1.5 }), /within must be an integer from 0 to 86400, got 1.5/);
    assert.equal(await client.shutdown({ within: 0 }), 'ok');
    await isKilled(host);
    assert.equal((await client.request('stack')).ok, false);
  });
});
