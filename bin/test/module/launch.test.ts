// launch(): commands and signals that coincide or come at the wrong time.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { SystemStatus, WebApiClient } from '../../../control.ts';
import { TOKEN, collectWarnings, getInfo, launchSystem, makeFolder, perform } from '../helpers.ts';
import { runHost } from '../host.ts';
import { BEARER, RESUME, SHUTDOWN, STATUS, ask } from '../http.ts';
import { lacks } from '../needs.ts';
import { CTRL_C, openTerminal } from '../screen.ts';
import { LIMIT, until } from '../wait.ts';
import { reaches } from './helpers.ts';
import type { TestContext } from 'node:test';
import type { Terminal } from '../screen.ts';

const { ACTIVE } = SystemStatus;

const FULL = 'ENOSPC: no space left on device';

describe('launch()', LIMIT, () => {
  it('passes on its options, and describe() as a method', async (t) => {
    const codes: number[] = [];
    const { client, address: { port }, finished } = await launchSystem(t, {
      describe() { return typeof this.step; },
      onPaused: async () => {
        for (const line of [RESUME, SHUTDOWN, RESUME]) codes.push((await ask(port, line, BEARER)).statusCode);
      },
    }, { name: 'pole', maxQueueSize: 2, token: TOKEN });
    assert.equal((await ask(port, STATUS)).statusCode, 401);
    const { name, detail } = await client.getInfo() ?? {};
    assert.deepEqual([name, detail], ['pole', 'function']);
    await client.pause();
    await finished;
    assert.deepEqual(codes, [200, 200, 503]);
  });
});

describe('launch() on a terminal', { ...LIMIT, skip: lacks('script') }, () => {
  const run = (hooks: string, ready: RegExp, t: TestContext): Promise<Terminal> => {
    const path = join(makeFolder(t), 'host.mjs');
    writeFileSync(path, `
      import { launch } from '${pathToFileURL('dist/control.js')}';
      const step = () => new Promise((resolve) => process.stdin.once('data', resolve));
      await launch({ step${hooks} }, { name: 'pole', webApiAddress: ['localhost', 0] });
      console.log('end');
      process.stdin.unref();
    `);
    return openTerminal(t, `${process.execPath} '${path}'`, ready, { env: { CONTROL_DIR: makeFolder(t) } });
  };

  it('says where it listens, and that the first Ctrl-C waits for a long step', async (t) => {
    const terminal = await run('', /^pole listens at http:\/\/localhost:\d+\r?\n$/, t);
    await terminal.type(CTRL_C, /ending after this step \(again: at once\)\n$/);
    await terminal.type('\n', /^\n*end\n$/);
  });

  it('is killed by a second one; onListening prints the address itself', async (t) => {
    const terminal = await run(', onListening: ({ host }) => console.log(host)', /^localhost\r?\n$/, t);
    await terminal.type(CTRL_C, /ending/);
    terminal.write(CTRL_C);
    assert.equal((await terminal.ended).code, 130);
  });
});

describe('launch() on a terminal that has gone', LIMIT, () => {
  it('still saves at a SIGINT', async (t) => {
    const host = runHost(t, `
      process.stderr.isTTY = true;
      const step = () => Promise.all([sleep(2000), new Promise((resolve) => obey({ 'go on': resolve }))]);
      await launchHost({ step, saveState: () => say('saved') });
    `);
    await host.hear();
    host.process.stderr?.destroy();
    host.process.kill('SIGINT');
    await sleep(1500); // meanwhile, it says that it ends after the step
    host.order('go on');
    assert.equal(await host.hear(), 'saved');
    assert.equal((await host.ended).code, 0);
  });
});

describe('launch() in a worker thread', LIMIT, () => {
  it('warns that it receives no signals', async (t) => {
    const host = runHost(t, `
      import { Worker } from 'node:worker_threads';
      new Worker(\`
        import('./dist/control.js').then(({ launch }) => {
          process.on('warning', ({ message }) => console.log(JSON.stringify(message)));
          return launch({ step: (control) => control.shutdown() }, { webApiAddress: null });
        });
      \`, { eval: true });
    `);
    assert.deepEqual(await host.hearAll(), ['launch() receives no signals in a worker thread: send it shutdown']);
  });
});

describe('A system that starts paused', { ...LIMIT, concurrency: 2 }, () => {
  it('carries out earlier commands once it is paused, even if its queue is short', async (t) => {
    const log: string[] = [];
    const outcomes: Promise<[number, unknown]>[] = [];
    const { finished } = await launchSystem(t, {
      step: async (control) => {
        log.push('step');
        control.shutdown();
      },
      onListening: async ({ port }) => {
        for (const [count, command] of (['save-state', 'pause', 'resume'] as const).entries()) {
          outcomes.push(perform(port, command));
          await until(async () => (await getInfo(port)).commands.length === count + 2); // after that of the start
        }
        const { status, commands } = await getInfo(port);
        log.push(`onListening while ${status}`, ...commands.map((one) => `${one.command} ${one.state}`));
      },
      onPaused: () => void log.push('onPaused'),
      onResumed: () => void log.push('onResumed'),
      saveState: (status) => void log.push(`saveState of ${status}`),
    }, { startPaused: true, maxQueueSize: 3 });
    await finished;
    assert.deepEqual(log, [
      'onListening while pausing', 'pause running', 'save-state waiting', 'pause waiting', 'resume waiting',
      'onPaused', 'saveState of paused', 'onResumed', 'step', 'saveState of active',
    ]);
    assert.deepEqual(await Promise.all(outcomes), Array(3).fill([200, undefined]));
  });

  it('is active if it cannot pause', async (t) => {
    const warnings = collectWarnings(t);
    const onPaused = (): void => { throw new Error('GPU busy'); };
    const { address: { port }, client } = await launchSystem(t, { onPaused }, { startPaused: { by: 'ana' } });
    await reaches(client, ACTIVE);
    assert.equal((await getInfo(port)).commands[0]?.error, 'onPaused failed: GPU busy');
    assert.deepEqual(warnings, ['onPaused failed: GPU busy']);
  });
});

describe('A signal', { ...LIMIT, skip: lacks('Unix'), concurrency: 3 }, () => {
  /** Each hook says its name; the one that is held then waits for a line on stdin, and fails if it says so. */
  const launched = (held: string, config: string = '', step: string = ''): string => `
    import { once } from 'node:events';
    const hook = (name) => async () => {
      say(name);
      if (name !== '${held}') return;
      process.stdin.resume();
      const [line] = await once(process.stdin, 'data');
      process.stdin.pause();
      if (String(line) === 'fail\\n') throw new Error('${FULL}');
    };
    process.on('SIGTERM', () => say('SIGTERM'));
    let steps = 0;
    await launchHost({
      step(control) { steps += 1; ${step} },
      onListening: ({ port }) => (say(port), hook('onListening')()),
      ${['onPaused', 'onResumed', 'saveState', 'onShutdown'].map((name) => `${name}: hook('${name}')`)},
    }, { ${config} });
    say('end');
  `;

  it('works without a web API, while active and while paused', async (t) => {
    const host = runHost(t, launched('none', 'webApiAddress: null', `
      if (steps === 1) process.kill(process.pid, 'SIGUSR2');
      if (steps === 1e4) control.pause();
    `));
    const heard = [await host.hear(), await host.hear(), await host.hear(), await host.hear()];
    assert.deepEqual(heard, ['onPaused', 'saveState', 'onResumed', 'onPaused']);
    host.process.kill('SIGTERM');
    await host.ends('SIGTERM', 'saveState', 'onShutdown', 'end');
  });

  for (const [held, isPaused, ...skipped] of [
    ['onPaused', false, 'onListening'], ['onPaused', true, 'onListening'], ['onListening', true],
  ] as [string, boolean, ...string[]][]) {
    it(`takes effect after ${held}, before a step${isPaused ? ', if the system starts paused' : ''}`, async (t) => {
      const config = `startPaused: ${isPaused}, maxQueueSize: 1`;
      const host = runHost(t, launched(held, config, isPaused ? "say('step');" : ''));
      const port = await host.hear<number>();
      for (const name of skipped) assert.equal(await host.hear(), name);
      const outcome = isPaused ? null : perform(port, 'pause');
      assert.equal(await host.hear(), held);
      host.process.kill('SIGTERM');
      assert.equal(await host.hear(), 'SIGTERM');
      host.order('go on');
      if (outcome !== null) assert.deepEqual(await outcome, [200, undefined]);
      await host.ends(...(held === 'onPaused' ? [] : ['onPaused']), 'saveState', 'onShutdown', 'end');
    });
  }

  it('does not kill during the last save, which runs once, and is the reason in /api/info', async (t) => {
    const host = runHost(t, launched('saveState'));
    const port = await host.hear<number>();
    assert.equal(await host.hear(), 'onListening');
    host.process.kill('SIGTERM');
    assert.deepEqual([await host.hear(), await host.hear()], ['SIGTERM', 'saveState']);
    const { status, by, reason } = await getInfo(port);
    assert.deepEqual([status, by, reason], ['shutting down', 'itself', 'SIGTERM']);
    for (const signal of ['SIGHUP', 'SIGUSR2', 'SIGINT', 'SIGTERM'] as const) host.process.kill(signal);
    assert.equal(await host.hear(), 'SIGTERM');
    host.order('go on');
    await host.ends('onShutdown', 'end');
  });

  it('ends a system whose clocks and timers stand still, as in tests, however its steps end', async (t) => {
    const host = runHost(t, `
      const RealDate = Date;
      globalThis.Date = class extends RealDate {
        constructor(...values) { super(...values.length > 0 ? values : [0]); }
        static now() { return 0; }
      };
      performance.now = () => 0;
      globalThis.setTimeout = globalThis.setInterval = globalThis.setImmediate = () => ({ ref() {}, unref() {} });
      globalThis.clearTimeout = globalThis.clearInterval = globalThis.clearImmediate = () => {};
      const ends = [() => {}, () => block(5), () => Promise.resolve()]; // at once, slowly, in promises
      let saves = 0;
      ${launched('nothing', '', 'if (control.hasCommands()) saves += 1; return ends[saves % 3]();')}
    `);
    const port = await host.hear<number>();
    assert.equal(await host.hear(), 'onListening');
    for (let count = 0; count < 3; count += 1) assert.deepEqual(await perform(port, 'save-state'), [200, undefined]);
    assert.equal((await getInfo(port)).since, '1970-01-01T00:00:00.000Z');
    assert.deepEqual(await perform(port, 'pause'), [200, undefined]);
    await sleep(100); // by a timer of the test, nextCommand() would not keep the process alive
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    host.process.kill('SIGTERM');
    const said = await host.hearAll();
    assert.deepEqual(said.slice(-4), ['SIGTERM', 'saveState', 'onShutdown', 'end']);
  });

  it('changes neither time limits nor the log by a clock of a test', async (t) => {
    const log = join(makeFolder(t), 'log.jsonl');
    const host = runHost(t, `
      const server = await serve({ log: ${JSON.stringify(log)} });
      performance.now = () => 1e9;
      server.ask('ready?', { timeout: 100 }).catch(() => {});
      say(server.nextCommandSync());
      say(server.nextCommandSync({ timeout: 1000 }));
      server.post('resume');
      server.receiveCommand();
      await server.close();
    `);
    const port = await host.hear<number>();
    const client = new WebApiClient('127.0.0.1', port);
    await until(async () => (await client.getInfo())?.asks?.length === 0);
    assert.equal(await client.pause(), 'ok');
    assert.equal(await host.hear(), 'pause');
    const limit = host.hear();
    let hasPassed = false;
    void limit.then(() => (hasPassed = true));
    await until(async () => hasPassed || await getInfo(port).then(() => false, () => hasPassed)); // each wakes the host
    assert.equal(await limit, null);
    await host.ends();
    for (const line of readFileSync(log, 'utf8').trimEnd().split('\n')) {
      assert.ok(Math.abs(Date.now() - Date.parse(JSON.parse(line).time)) < 60_000, line);
    }
  });

  it('ends the system even if the last save of a shutdown by command fails meanwhile', async (t) => {
    const host = runHost(t, launched('saveState'));
    const outcome = perform(await host.hear(), 'shutdown');
    assert.deepEqual([await host.hear(), await host.hear()], ['onListening', 'saveState']);
    host.process.kill('SIGTERM');
    assert.equal(await host.hear(), 'SIGTERM');
    host.order('fail');
    assert.deepEqual(await outcome, [500, `shutdown failed: ${FULL}`]);
    assert.deepEqual(await host.hearAll(), ['onShutdown']);
    assert.equal((await host.ended).code, 1);
  });
});
