// A program's side of the server: its own commands, waiting without yielding, what it reports and describes.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import { LIMIT, MORTAL, collectWarnings, collectWorkers, runHost, takeAll } from './helpers.ts';
import { clientAt, freePort, getDetail, getInfo, perform, startServer as start, until } from '../helpers.ts';
import { EmptyError, SystemStatus, WebApiServer } from '../../../control.ts';
import type { ControlCommand } from '../../../control.ts';

const { ACTIVE, PAUSED, OFFLINE } = SystemStatus;

const FULL = 'ENOSPC: no space left on device';

describe('post()', LIMIT, () => {
  it('puts a command ahead of those of clients, behind earlier ones of the program', async (t) => {
    const { server, client } = await start(t);
    assert.equal(await client.pause(), 'ok');
    assert.deepEqual([server.post('save-state'), server.post('resume')], [true, true]);
    assert.equal(await client.shutdown(), 'ok');
    assert.deepEqual(takeAll(server), ['save-state', 'resume', 'pause', 'shutdown']);
  });

  it("returns false while maxQueueSize of the program's commands wait, however many of clients do", async (t) => {
    const { server, client } = await start(t, { maxQueueSize: 2 });
    assert.deepEqual([await client.pause(), await client.pause()], ['ok', 'ok']);
    assert.deepEqual([server.post('save-state'), server.post('resume'), server.post('pause')], [true, true, false]);
    assert.equal(await client.pause(), null);
    assert.equal(server.receiveCommand(), 'save-state');
    assert.deepEqual([server.post('shutdown'), server.post('pause')], [true, false]);
    assert.deepEqual(takeAll(server), ['resume', 'shutdown', 'pause', 'pause']);
  });

  it('wakes nextCommand() while the thread starts, while it runs and while it is gone', async (t) => {
    const warnings = collectWarnings(t);
    const workers = collectWorkers(t);
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
    assert.equal(workers.length, 1);
    assert.equal(warnings.length, 1);
  });

  it('works before the start and after close(), for every way to take commands', async () => {
    const server = new WebApiServer({ systemStatus: () => ACTIVE });
    for (const round of ['never started', 'closed']) {
      assert.ok(server.post('pause') && server.post('resume') && server.post('save-state'), round);
      assert.equal(server.hasCommands(), true);
      assert.equal(server.receiveCommand(), 'pause');
      assert.equal(await server.nextCommand(), 'resume');
      assert.equal(server.nextCommandSync(), 'save-state');
      await assert.rejects(server.nextCommand(), EmptyError);
      assert.throws(() => server.nextCommandSync({ timeout: 5000 }), EmptyError);
      await server.close();
    }
  });

  it('is shown in /api/info as by the program itself, with its reason', async (t) => {
    let status = ACTIVE;
    const { server, client, port } = await start(t, { systemStatus: () => status });
    server.post('save-state', { reason: 'two\nlines\x1b[2J' });
    assert.equal(await client.resume(), 'ok');
    server.post('pause', { reason: 'x'.repeat(300) });
    const { commands } = await getInfo(port);
    const reason = 'x'.repeat(200);
    assert.deepEqual(commands.map(({ command, state, by, reason }) => [command, state, by, reason]), [
      ['save-state', 'waiting', 'itself', 'twolines[2J'], ['resume', 'waiting', undefined, undefined],
      ['pause', 'waiting', 'itself', reason],
    ]);
    const numbers = commands.map(({ id }) => Number(/^\w+-(\d+)$/.exec(id)?.[1]));
    assert.ok(numbers.every((number, index) => index === 0 || number > Number(numbers[index - 1])), `${numbers}`);

    assert.deepEqual([server.receiveCommand(), server.receiveCommand()], ['save-state', 'pause']);
    status = PAUSED;
    server.hasCommands();
    const info = await getInfo(port);
    assert.deepEqual([info.status, info.by, info.reason], ['paused', 'itself', reason]);
    assert.deepEqual(info.commands.map(({ state }) => state), ['done', 'waiting', 'done']);
  });

  it('is shown there even if it came before the start', async (t) => {
    let status = ACTIVE;
    const server = new WebApiServer({ systemStatus: () => status, host: '127.0.0.1', port: 0 });
    t.after(() => server.close());
    server.post('pause', { reason: 'begin paused' });
    const { port } = await server.runInBackground();
    assert.equal((await getInfo(port)).commands[0]?.state, 'waiting');
    assert.equal(server.receiveCommand(), 'pause');
    status = PAUSED;
    server.hasCommands();
    const { by, reason, commands } = await getInfo(port);
    assert.deepEqual([by, reason, commands[0]?.state], ['itself', 'begin paused', 'done']);
  });
});

describe('nextCommandSync()', { ...LIMIT, concurrency: 2 }, () => {
  it('takes a queued command at once, and returns null at its timeout', async (t) => {
    const { server, client } = await start(t);
    assert.equal(await client.pause(), 'ok');
    const began = performance.now();
    assert.equal(server.nextCommandSync({ timeout: 5000 }), 'pause');
    assert.ok(performance.now() - began < 1000);
    const timeoutSince = performance.now();
    assert.equal(server.nextCommandSync({ timeout: 100 }), null);
    const tookMs = performance.now() - timeoutSince;
    assert.ok(tookMs >= 99 && tookMs < 1000, `${tookMs} ms`);
  });

  it('takes commands while it blocks; status, detail and outcomes are told meanwhile, without CPU', async (t) => {
    const port = await freePort();
    const host = runHost(t, `
      let status = PAUSED;
      let asked = 0;
      const describe = () => ({ asked: (asked += 1) });
      const server = new WebApiServer({ systemStatus: () => status, describe, host: '127.0.0.1', port });
      server.runInBackground(); // the host never learns that it has started
      say(server.nextCommandSync());
      status = ACTIVE;
      server.report({ value: 'ready' });
      const before = process.cpuUsage();
      say(server.nextCommandSync({ timeout: 30_000 }));
      const { user, system } = process.cpuUsage(before);
      say((user + system) / 1000);
      await server.close();
    `, port);
    const client = clientAt(t, { host: '127.0.0.1', port });
    await client.waitFor(PAUSED);
    assert.deepEqual(await perform(port, 'resume'), [200, 'ready']);
    assert.equal(await host.hear(), 'resume');
    assert.equal(await client.getStatus(), ACTIVE);
    await sleep(2200);
    const { headers } = await fetch(`http://127.0.0.1:${port}/api/status`);
    assert.equal(headers.get('age'), null);
    assert.deepEqual(await getDetail(port), { asked: 1 });
    const { heardAt } = await getInfo(port);
    assert.ok(Date.now() - Date.parse(heardAt) < 1000, heardAt);
    assert.deepEqual(await perform(port, 'shutdown'), [200, undefined]);
    assert.equal(await host.hear(), 'shutdown');
    const usedMs = await host.hear<number>();
    assert.ok(usedMs < 100, `${usedMs} ms of CPU in 2200 ms`);
    await host.checkEnd();
  });

  for (const started of ['await server.runInBackground()', 'void server.runInBackground()']) {
    it(`starts a thread anew that has died meanwhile, and only once: ${started}`, async (t) => {
      const port = await freePort();
      const host = runHost(t, `
        ${MORTAL}
        epilogue += ';setTimeout(() => process.exit(3), 800);';
        const server = new WebApiServer({ systemStatus: () => PAUSED, host: '127.0.0.1', port });
        ${started};
        epilogue = '';
        say(server.nextCommandSync());
        await new Promise((done) => realSetTimeout(done, 300)); // the host hears of the death now
        say(threads.length);
        say(await server.nextCommand());
        await server.close();
      `, port);
      const client = clientAt(t, { host: '127.0.0.1', port });
      for (const status of [PAUSED, OFFLINE, PAUSED]) await client.waitFor(status, { timeout: 10_000 });
      assert.equal(await client.pause(), 'ok');
      assert.deepEqual([await host.hear(), await host.hear()], ['pause', 2]);
      assert.equal(await client.resume(), 'ok');
      await host.checkEnd('resume');
    });
  }

  it('starts no second thread beside one that was about to be restarted', async (t) => {
    const port = await freePort();
    const host = runHost(t, `
      ${MORTAL}
      const server = new WebApiServer({ systemStatus: () => PAUSED, host: '127.0.0.1', port });
      await server.runInBackground();
      const heard = gone();
      kill(null);
      await heard;
      say(server.nextCommandSync({ timeout: 4500 }));
      await new Promise((done) => realSetTimeout(done, 500)); // the time of the restart has come
      say(threads.length);
      await server.close();
    `, port);
    await host.checkEnd('gone', null, 2);
  });

  it('throws an EmptyError while the server closes: it could never hear that it is closed', async (t) => {
    const { server } = await start(t);
    const closed = server.close();
    assert.throws(() => server.nextCommandSync({ timeout: 1000 }), EmptyError);
    await closed;
  });
});

describe('report()', LIMIT, () => {
  it('completes the command taken last at once, with a value or an error, and only once', async (t) => {
    const { server, port } = await start(t);
    server.report({ value: 'nothing was taken' });
    const long = 'x'.repeat(2000);
    for (const [outcome, expected] of [
      [{}, [200, undefined]],
      [{ value: 'states/1.json' }, [200, 'states/1.json']],
      [{ value: 497.1 }, [200, 497.1]],
      [{ value: `a\x1b[2J\nb${long}` }, [200, `a[2Jb${long}`.slice(0, 1000)]],
      [{ error: new Error(FULL) }, [500, `save-state failed: ${FULL}`]],
      [{ error: new Error(`a\x1b[2J\nb${long}`) }, [500, `save-state failed: ${`a[2Jb${long}`.slice(0, 1000)}`]],
    ] as const) {
      const outcomes = perform(port, 'save-state');
      assert.equal(await server.nextCommand(), 'save-state');
      server.report(outcome);
      server.report({ error: new Error('too late') });
      assert.deepEqual(await outcomes, expected);
    }
    const states = (await getInfo(port)).commands.map(({ state, error }) => error?.slice(0, 6) ?? state);
    assert.deepEqual(states, ['done', 'done', 'done', 'done', 'ENOSPC', 'a[2Jbx']);
  });

  for (const [name, ask] of [
    ['hasCommands()', (server) => server.hasCommands()],
    ['receiveCommand()', (server) => server.receiveCommand()],
    ['nextCommand()', (server) => server.nextCommand()],
    ['nextCommandSync()', (server) => server.nextCommandSync()],
  ] as [string, (server: WebApiServer) => unknown][]) {
    for (const waiting of name === 'hasCommands()' ? [0, 1] : [1]) {
      it(`is not needed before ${name} with ${waiting} waiting`, async (t) => {
        const { server, port } = await start(t);
        const outcome = perform(port, 'save-state');
        await server.nextCommand();
        if (waiting === 1) server.post('pause');
        assert.equal((await getInfo(port)).commands[0]?.state, 'running');
        await ask(server);
        assert.equal((await getInfo(port)).commands[0]?.state, 'done');
        assert.deepEqual(await outcome, [200, undefined]);
        server.report({ error: new Error('too late') });
        assert.equal((await getInfo(port)).commands[0]?.state, 'done');
      });
    }
  }

  it('is not needed before close(), which completes the command taken last', async (t) => {
    for (const failed of [false, true]) {
      const { server, port } = await start(t);
      const outcome = perform(port, 'shutdown');
      assert.equal(await server.nextCommand(), 'shutdown');
      if (failed) server.report({ error: new Error(FULL) });
      await server.close();
      assert.deepEqual(await outcome, failed ? [500, `shutdown failed: ${FULL}`] : [200, undefined]);
    }
  });
});

describe('server.signal', LIMIT, () => {
  it('aborts when a command waits; once the queue is empty there is a new one', async (t) => {
    const { server, client } = await start(t);
    const posts = [() => client.pause(), () => client.pause(), () => server.post('pause')];
    const signals = new Set<AbortSignal>();
    for (const post of posts) {
      const { signal } = server;
      assert.equal(signal.aborted, false);
      signals.add(signal);
      await post();
      await until(() => signal.aborted);
      assert.equal(server.signal.aborted, true, 'while the command waits');
      assert.deepEqual(takeAll(server), ['pause']);
    }
    assert.equal(signals.size, posts.length);
  });

  it('is aborted if it is first read while a command waits, without a thread, too', () => {
    const server = new WebApiServer({ systemStatus: () => ACTIVE });
    server.post('pause');
    assert.equal(server.signal.aborted, true);
    takeAll(server);
    const { signal } = server;
    assert.deepEqual([signal.aborted, server.signal === signal], [false, true]);
    server.post('pause');
    assert.equal(signal.aborted, true);
  });

  it('does not keep the process alive', async (t) => {
    const host = runHost(t, `
      const server = new WebApiServer({ systemStatus: () => ACTIVE, port: 0 });
      await server.runInBackground();
      server.signal.addEventListener('abort', () => say('aborted'));
      say('end');
    `);
    await host.checkEnd('end');
  });
});

describe('describe()', LIMIT, () => {
  it('never runs twice at once', async (t) => {
    let running = 0;
    let most = 0;
    const { server, port } = await start(t, {
      describe: () => {
        running += 1;
        most = Math.max(most, running);
        server.hasCommands();
        running -= 1;
        return { most };
      },
    });
    const polling = setInterval(() => server.hasCommands(), 1);
    t.after(() => clearInterval(polling));
    for (let round = 0; round < 4; round += 1) {
      assert.deepEqual(await getDetail(port), { most });
      await sleep(110); // it is asked at most ten times a second
    }
    assert.equal(most, 1);
  });

  for (const [fault, fail] of [
    ['throws', () => assert.fail('no detail')],
    ['returns a promise', async () => ({ step: 1 })],
    ['returns a promise that rejects', async () => assert.fail('this must not end the process')],
    ['returns more than 4 KiB', () => ({ text: 'x'.repeat(4100) })],
    ['returns what is not JSON', () => ({ step: 1n })],
  ] as const) {
    it(`causes one warning while it ${fault}, and the detail is null`, async (t) => {
      const warnings = collectWarnings(t);
      let isBroken = true;
      const { port } = await start(t, { describe: () => (isBroken ? fail() : { step: 2 }) });
      for (let round = 0; round < 3; round += 1) {
        assert.equal((await getInfo(port)).detail, null);
        await sleep(110);
      }
      assert.equal(warnings.length, 1, inspect(warnings));
      assert.match(String(warnings[0]), /^describe /);
      isBroken = false;
      assert.deepEqual(await getDetail(port), { step: 2 });
    });
  }
});
