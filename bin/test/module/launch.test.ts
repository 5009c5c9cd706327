// launch(): commands and signals that coincide or come at the wrong time.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { LIMIT, TOKEN, collectWarnings, getInfo, launchSystem, perform, until } from '../helpers.ts';
import { runHost } from '../host.ts';
import { BEARER, PAUSE, RESUME, SAVE, SHUTDOWN, WAIT, ask } from '../http.ts';
import { lacks } from '../needs.ts';
import { SystemStatus } from '../../../control.ts';
import type { ControlCommand } from '../../../control.ts';

const { ACTIVE, PAUSED } = SystemStatus;

const UNIX_ONLY = { skip: lacks('Unix') };
const SERVED = "webApiAddress: ['127.0.0.1', 0]";
const UNSERVED = 'webApiAddress: null';
const FULL = 'ENOSPC: no space left on device';

describe('launch()', LIMIT, () => {
  it('keeps since, by and reason when a save returns to the status before it', async (t) => {
    const { address: { port }, client } = await launchSystem(t, { saveState: () => sleep(2) });
    for (const line of [PAUSE, RESUME]) {
      await ask(port, `${line}?by=ana&reason=lunch`, WAIT);
      const before = await client.info();
      for (let count = 0; count < 20; count += 1) await ask(port, `${SAVE}?by=cron&reason=hourly`, WAIT);
      const info = await client.info();
      assert.deepEqual([info?.since, info?.by, info?.reason], [before?.since, 'ana', 'lunch']);
    }
  });

  it('passes on its options, and describe() as a method', async (t) => {
    const codes: number[] = [];
    const onPaused = async (): Promise<void> => {
      for (const line of [RESUME, SHUTDOWN, RESUME]) codes.push((await ask(port, line, BEARER)).statusCode);
    };
    const { client, address: { port }, finished } = await launchSystem(t, {
      describe() { return typeof this.step; },
      onPaused,
    }, { name: 'pole', webApiCommandQueueSize: 2, token: TOKEN });
    assert.equal((await ask(port, 'GET /api/status')).statusCode, 401);
    const { name, detail } = await client.info() ?? {};
    assert.deepEqual([name, detail], ['pole', 'function']);
    await client.pause();
    await finished;
    assert.deepEqual(codes, [200, 200, 503]);
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

describe('A hook whose value has no JSON', LIMIT, () => {
  it('is omitted from the outcome of its command', async (t) => {
    const { address: { port }, client, finished } = await launchSystem(t, {
      onPaused: () => process, onResumed: () => 1n, saveState: () => ['x'.repeat(4096)],
    });
    for (const [line, status] of [[PAUSE, PAUSED], [RESUME, ACTIVE], [SAVE, ACTIVE]] as const) {
      const { body: { state, value, valueOmitted } } = await ask(port, line, WAIT);
      assert.deepEqual([state, value, typeof valueOmitted], ['done', undefined, 'string'], line);
      assert.equal(await client.getStatus(), status);
    }
    const { body } = await ask(port, SHUTDOWN, WAIT);
    assert.deepEqual([body.state, body.valueOmitted], ['done', 'the value must be JSON of at most 4096 bytes']);
    await finished;
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
      onPaused: () => {
        log.push('onPaused');
        return 'released 2 GB';
      },
      onResumed: () => void log.push('onResumed'),
      saveState: (status) => void log.push(`saveState of ${status}`),
    }, { startPaused: true, webApiCommandQueueSize: 3 });
    await finished;
    assert.deepEqual(log, [
      'onListening while pausing', 'pause running', 'save-state waiting', 'pause waiting', 'resume waiting',
      'onPaused', 'saveState of paused', 'onResumed', 'step', 'saveState of active',
    ]);
    assert.deepEqual(await Promise.all(outcomes), Array(3).fill([200, undefined]));
  });

  it('keeps who paused it, why and since when, for clients and hooks', async (t) => {
    const cause = { by: 'ana@laptop', reason: 'GPU needed until noon', since: '2026-11-21T14:03:07.120Z' };
    const requests: unknown[] = [];
    const { address: { port }, client } = await launchSystem(t, {
      onPaused: ({ by, reason }) => void requests.push([by, reason]),
    }, { startPaused: cause });
    const seen = async (): Promise<unknown> => {
      const { status, by, reason, since } = await getInfo(port);
      return { status, by, reason, since };
    };
    await client.waitFor(PAUSED);
    assert.deepEqual(await seen(), { status: 'paused', ...cause });
    assert.deepEqual(requests, [['ana@laptop', 'GPU needed until noon']]);
    await perform(port, 'save-state');
    assert.deepEqual(await seen(), { status: 'paused', ...cause });
    await ask(port, `${PAUSE}?reason=until+one`, WAIT);
    assert.deepEqual(await seen(), { status: 'paused', ...cause, reason: 'until one' });
    await ask(port, `${RESUME}?by=ben`, WAIT);
    const { by, since } = await getInfo(port);
    assert.equal(by, 'ben');
    assert.ok(Date.parse(since) > Date.parse(cause.since));
  });

  it('is active if it cannot pause', async (t) => {
    const warnings = collectWarnings(t);
    const onPaused = (): void => { throw new Error('GPU busy'); };
    const { address: { port }, client } = await launchSystem(t, { onPaused }, { startPaused: { by: 'ana' } });
    await client.waitFor(ACTIVE);
    assert.equal((await getInfo(port)).commands[0]?.error, 'onPaused failed: GPU busy');
    assert.deepEqual(warnings, ['onPaused failed: GPU busy']);
  });

  for (const hook of ['onListening', 'onPaused']) {
    it(`saves and ends without a step at a signal during ${hook}`, UNIX_ONLY, async (t) => {
      const host = runHost(t, `
        import { once } from 'node:events';
        const hook = (name) => async () => {
          say(name);
          if (name !== ${JSON.stringify(hook)}) return;
          const signalled = once(process, 'SIGTERM');
          process.kill(process.pid, 'SIGTERM');
          const alive = setInterval(() => {}, 1000);
          await signalled;
          clearInterval(alive);
        };
        await launch({
          step: () => say('step'),
          onListening: hook('onListening'),
          onPaused: hook('onPaused'),
          onResumed: hook('onResumed'),
          saveState: (status) => say('saveState of ' + status),
          onShutdown: hook('onShutdown'),
        }, { ${SERVED}, startPaused: true, webApiCommandQueueSize: 1 });
      `);
      await host.ends('onListening', 'onPaused', 'saveState of paused', 'onShutdown');
    });
  }
});

describe('The status passed to saveState', { ...LIMIT, concurrency: 2 }, () => {
  it('is the one before the command, also if a shutdown was cancelled', async (t) => {
    collectWarnings(t);
    const log: string[] = [];
    let isFull = false;
    const { address: { port }, finished } = await launchSystem(t, {
      saveState: (status) => {
        log.push(`${status}`);
        if (isFull) throw new Error(FULL);
      },
    });
    const check = async (command: ControlCommand, ...saved: string[]): Promise<void> => {
      await perform(port, command);
      assert.deepEqual(log.splice(0), saved, command);
    };
    await check('save-state', 'active');
    await check('pause');
    await check('save-state', 'paused');
    await check('save-state', 'paused');
    await check('resume');
    isFull = true;
    await check('save-state', 'active');
    await check('save-state', 'active');
    await check('shutdown', 'active');
    await check('save-state', 'paused'); // the system pauses when its shutdown is cancelled
    await check('resume');
    isFull = false;
    await check('shutdown', 'active');
    await finished;
  });

  it('is the one before its own requests and before signals', UNIX_ONLY, async (t) => {
    const host = runHost(t, `
      const signal = (name) => process.kill(process.pid, name);
      const run = async (...acts) => { // each ends with a save, which the next one awaits
        let saves = 0;
        let begun = 0;
        await launch({
          step(control) {
            if (begun > saves) return;
            begun += 1;
            acts[begun - 1](control);
          },
          onPaused: () => void (begun === acts.length && signal('SIGTERM')),
          saveState(status) {
            saves += 1;
            say([status === ACTIVE, status === PAUSED]);
          },
        }, { ${UNSERVED} });
      };
      const save = (control) => control.save();
      await run(save, () => signal('SIGUSR2'), (control) => control.shutdown());
      await run(() => signal('SIGUSR2'), save, () => signal('SIGHUP'));
      await run(save, (control) => control.pause());
    `);
    const active = [true, false];
    await host.ends(...Array(6).fill(active), active, [false, true]);
  });
});

describe('A signal', { ...LIMIT, ...UNIX_ONLY, concurrency: 3 }, () => {
  /** Each hook says its name; those that are held then wait for a line on stdin, and fail if it says so. */
  const launched = (address: string, held: string[] = [], step: string = ''): string => `
    import { once } from 'node:events';
    const hook = (name) => async () => {
      say(name);
      if (!${JSON.stringify(held)}.includes(name)) return;
      process.stdin.resume();
      const [line] = await once(process.stdin, 'data');
      process.stdin.pause();
      if (String(line) === 'fail\\n') throw new Error('${FULL}');
    };
    let steps = 0;
    await launch({
      step(control) { steps += 1; ${step} },
      onListening: ({ port }) => say(port),
      onPaused: hook('onPaused'),
      onResumed: hook('onResumed'),
      saveState: hook('saveState'),
      onShutdown: hook('onShutdown'),
    }, { ${address} });
    say('end');
  `;

  it('works without a web API, while active and while paused', async (t) => {
    const host = runHost(t, launched(UNSERVED, [], `
      if (steps === 1) process.kill(process.pid, 'SIGUSR2');
      if (steps === 1e4) control.pause();
    `));
    const heard = [await host.hear(), await host.hear(), await host.hear(), await host.hear()];
    assert.deepEqual(heard, ['onPaused', 'saveState', 'onResumed', 'onPaused']);
    host.process.kill('SIGTERM');
    await host.ends('saveState', 'onShutdown', 'end');
  });

  const SAY_SIGNAL = "process.on('SIGTERM', () => say('SIGTERM'));";

  it('takes effect after the running hook', async (t) => {
    const host = runHost(t, SAY_SIGNAL + launched(SERVED, ['onPaused']));
    const outcome = perform(await host.hear(), 'pause');
    assert.equal(await host.hear(), 'onPaused');
    host.process.kill('SIGTERM');
    assert.equal(await host.hear(), 'SIGTERM');
    host.order('go on');
    assert.deepEqual(await outcome, [200, undefined]);
    await host.ends('saveState', 'onShutdown', 'end');
  });

  it('does not kill during the last save, which runs once, and is the reason in /api/info', async (t) => {
    const host = runHost(t, launched(SERVED, ['saveState']));
    const port = await host.hear<number>();
    host.process.kill('SIGTERM');
    assert.equal(await host.hear(), 'saveState');
    const { status, by, reason } = await getInfo(port);
    assert.deepEqual([status, by, reason], ['shutting down', 'itself', 'SIGTERM']);
    for (const signal of ['SIGTERM', 'SIGTERM', 'SIGHUP', 'SIGUSR2', 'SIGINT'] as const) host.process.kill(signal);
    host.order('go on');
    await host.ends('onShutdown', 'end');
  });

  it('ends the system even if the last save of a shutdown by command fails meanwhile', async (t) => {
    const host = runHost(t, SAY_SIGNAL + launched(SERVED, ['saveState']));
    const outcome = perform(await host.hear(), 'shutdown');
    assert.equal(await host.hear(), 'saveState');
    host.process.kill('SIGTERM');
    assert.equal(await host.hear(), 'SIGTERM');
    host.order('fail');
    assert.deepEqual(await outcome, [500, `shutdown failed: ${FULL}`]);
    assert.deepEqual(await host.hearAll(), ['onShutdown']);
    assert.equal((await host.ended).code, 1);
  });
});
