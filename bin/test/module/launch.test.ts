// launch(): what hooks return and throw, what a step can do, last saves that fail, and signals.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { LIMIT, collectWarnings, runHost, spawnHost } from './helpers.ts';
import { defer, getDetail, getInfo, lacksSockets, launchSystem, makeFolder, perform, until } from '../helpers.ts';
import { SystemStatus, launch } from '../../../control.ts';
import type { Control, ControlCommand } from '../../../control.ts';

const { ACTIVE, PAUSED } = SystemStatus;

const UNIX_ONLY = { skip: lacksSockets() };
const SERVED = "webApiAddress: ['127.0.0.1', 0]";
const UNSERVED = 'webApiAddress: null';
const FULL = 'ENOSPC: no space left on device';

describe('A hook', LIMIT, () => {
  it('returns the value of its command', async (t) => {
    let saves = 0;
    const { address: { port }, finished } = await launchSystem(t, {
      onPaused: async () => 'released 2 GB',
      onResumed: () => 3.5,
      saveState: () => `states/${(saves += 1)}.json`,
    });
    for (const [command, value] of [
      ['save-state', 'states/1.json'], ['pause', 'released 2 GB'], ['pause', undefined],
      ['save-state', 'states/2.json'], ['resume', 3.5], ['resume', undefined], ['shutdown', 'states/3.json'],
    ] as const) {
      assert.deepEqual(await perform(port, command), [200, value], command);
    }
    await finished;
  });

  it('returns no value but a string or a finite number; onShutdown goes before saveState', async (t) => {
    const { address: { port }, finished } = await launchSystem(t, {
      onPaused: () => NaN, onResumed: () => true, saveState: () => ({ path: '' }), onShutdown: () => 'archived',
    });
    for (const command of ['pause', 'save-state', 'resume'] as const) {
      assert.deepEqual(await perform(port, command), [200, undefined], command);
    }
    assert.deepEqual(await perform(port, 'shutdown'), [200, 'archived']);
    await finished;
  });

  it('is not done before it ends, even if it asks whether further commands wait', async (t) => {
    collectWarnings(t);
    const control = defer<Control>();
    const { address: { port } } = await launchSystem(t, {
      step: (own) => {
        control.resolve(own);
        return sleep(1);
      },
      onPaused: async () => {
        assert.equal((await control.promise).hasCommands(), false);
        await sleep(20);
        throw new Error('GPU busy');
      },
    });
    assert.deepEqual(await perform(port, 'pause'), [500, 'pause failed: onPaused failed: GPU busy']);
  });

  it('fails the shutdown, which ends all the same: onShutdown', async (t) => {
    collectWarnings(t);
    const { address: { port }, finished } = await launchSystem(t, { onShutdown: () => assert.fail('no end') });
    assert.deepEqual(await perform(port, 'shutdown'), [500, 'shutdown failed: onShutdown failed: no end']);
    await finished;
  });

  for (const [command, hook, status, reason] of [
    ['pause', 'onPaused', ACTIVE, 'onPaused failed: GPU busy'],
    ['save-state', 'onPaused', ACTIVE, 'onPaused failed: GPU busy'],
    ['save-state', 'saveState', ACTIVE, 'GPU busy'],
    ['save-state', 'saveState', PAUSED, 'GPU busy'],
    ['resume', 'onResumed', PAUSED, 'onResumed failed: GPU busy'],
  ] as const) {
    it(`fails its command: ${hook} fails for ${command} while ${status}; the warning has the stack`, async (t) => {
      const warnings: { message: string; detail: string }[] = [];
      t.mock.method(process, 'emitWarning', (warning: string | Error, options: { detail?: string } = {}) => {
        const { message = String(warning), detail = options.detail ?? '' } = Object(warning);
        warnings.push({ message, detail });
      });
      let isBroken = false;
      const seizeGpu = (): void => {
        if (isBroken) throw new Error('GPU busy');
      };
      const { address: { port } } = await launchSystem(t, { [hook]: seizeGpu });
      if (status === PAUSED) assert.deepEqual(await perform(port, 'pause'), [200, undefined]);
      isBroken = true;
      assert.deepEqual(await perform(port, command), [500, `${command} failed: ${reason}`]);
      isBroken = false;
      const info = await getInfo(port);
      const { state, error } = info.commands.at(-1) ?? {};
      assert.deepEqual([info.status, state, error], [status.statusName, 'failed', reason]);
      assert.deepEqual(warnings.map(({ message }) => message), [`${hook} failed: GPU busy`]);
      assert.match(String(warnings[0]?.detail), /Error: GPU busy\n +at (Object\.)?seizeGpu /);
    });
  }
});

describe('The control of a step', { ...LIMIT, concurrency: 2 }, () => {
  it('pauses after the step', async (t) => {
    const log: unknown[] = [];
    const { client, address: { port } } = await launchSystem(t, {
      step: async (control) => {
        log.push('step');
        if (log.length === 3) log.push(control.pause('GPU needed'));
        await sleep(5);
        log.push('end');
      },
      onPaused: () => void log.push('onPaused'),
    });
    await client.waitFor(PAUSED);
    assert.deepEqual(log, ['step', 'end', 'step', true, 'end', 'onPaused']);
    const { by, reason, commands } = await getInfo(port);
    assert.deepEqual([by, reason, commands.at(-1)?.state], ['itself', 'GPU needed', 'done']);
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    await until(() => log.at(-1) === 'end');
  });

  it('saves and shuts down after the step, and returns false if the queue is full', async (t) => {
    const log: unknown[] = [];
    let steps = 0;
    const { address: { port }, finished } = await launchSystem(t, {
      step: (control) => {
        steps += 1;
        if (steps === 2) log.push(control.save('step 2'), control.save('again'));
        if (steps === 4) log.push(control.shutdown('step 4'));
        return sleep(1);
      },
      saveState: () => {
        log.push(`save after ${steps}`);
        return steps;
      },
      onShutdown: async () => {
        const { status, by, reason, commands } = await getInfo(port);
        const rows = commands.map((one) => [one.command, one.state, one.by, one.reason, one.value]);
        log.push([status, by, reason], ...rows);
      },
    }, { webApiCommandQueueSize: 1 });
    await finished;
    assert.deepEqual(log, [
      true, false, 'save after 2', true, 'save after 4', ['shutting down', 'itself', 'step 4'],
      ['save-state', 'done', 'itself', 'step 2', 2], ['shutdown', 'running', 'itself', 'step 4', undefined],
    ]);
  });

  it('works without a web API', async () => {
    const log: unknown[] = [];
    let steps = 0;
    await launch({
      step: (control) => {
        steps += 1;
        log.push(control.hasCommands(), control.signal.aborted);
        log.push(steps === 1 ? control.save() : control.shutdown());
        log.push(control.hasCommands(), control.signal.aborted);
      },
      onPaused: () => void log.push('onPaused'),
      saveState: () => void log.push('saveState'),
    }, { webApiAddress: null });
    const step = [false, false, true, true, true];
    assert.deepEqual(log, [...step, 'onPaused', 'saveState', ...step, 'saveState']);
  });

  it('tells a step that never yields that a command waits; the shutdown is answered before the exit', async (t) => {
    const host = runHost(t, `
      await launch({
        step(control) {
          say('step');
          while (!control.hasCommands());
        },
        onListening: ({ port }) => say(port),
        onPaused: () => say('onPaused'),
        saveState: () => 'states/1.json',
      }, { ${SERVED} });
      process.exit();
    `);
    const port = await host.hear<number>();
    assert.equal(await host.hear(), 'step');
    assert.deepEqual(await perform(port, 'pause'), [200, undefined]);
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    assert.deepEqual([await host.hear(), await host.hear()], ['onPaused', 'step']);
    assert.deepEqual(await perform(port, 'shutdown'), [200, 'states/1.json']);
    await host.checkEnd();
  });

  it('has a signal that aborts for a command and for a signal, and is new in the next step', UNIX_ONLY, async (t) => {
    const host = runHost(t, `
      const alive = setInterval(() => {}, 1000);
      await launch({
        async step({ signal }) {
          say(signal.aborted);
          await new Promise((resolve) => signal.addEventListener('abort', resolve));
        },
        onListening: ({ port }) => say(port),
        saveState: () => say('saveState'),
      }, { ${SERVED} });
      clearInterval(alive);
    `);
    const port = await host.hear<number>();
    assert.equal(await host.hear(), false);
    assert.deepEqual(await perform(port, 'save-state'), [200, undefined]);
    assert.deepEqual([await host.hear(), await host.hear()], ['saveState', false]);
    host.process.kill('SIGUSR2');
    assert.deepEqual([await host.hear(), await host.hear()], ['saveState', false]);
    host.process.kill('SIGTERM');
    await host.checkEnd('saveState');
  });
});

describe('The description and the name of a system', LIMIT, () => {
  it('are its describe(), called as a method, and the name in the configuration', async () => {
    class Learner {
      readonly #text: string = 'épisode 😀';
      step(): unknown { return sleep(1); }
      describe(): unknown { return { text: this.#text }; }
    }
    const listening = defer<number>();
    const onListening = (address: { port: number }): void => listening.resolve(address.port);
    const system = Object.assign(new Learner(), { onListening });
    const finished = launch(system, { webApiAddress: ['127.0.0.1', 0], name: 'pole' });
    const port = await listening.promise;
    assert.deepEqual(await getDetail(port), { text: 'épisode 😀' });
    assert.equal((await getInfo(port)).name, 'pole');
    assert.deepEqual(await perform(port, 'shutdown'), [200, undefined]);
    await finished;
  });

  it('is by default the base name of the script', async (t) => {
    const file = join(makeFolder(t), 'cart.pole.mjs');
    const module = pathToFileURL(resolve('dist/control.js')).href;
    writeFileSync(file, `
      import { SystemStatus, WebApiServer, launch } from ${JSON.stringify(module)};
      const sayName = async ({ port }) => {
        const response = await fetch('http://127.0.0.1:' + port + '/api/info');
        console.log(JSON.stringify((await response.json()).name));
      };
      await launch({ step: (control) => control.shutdown(), onListening: sayName }, { ${SERVED} });
      for (const options of [{}, { name: 'other' }]) {
        const place = { host: '127.0.0.1', port: 0 };
        const server = new WebApiServer({ systemStatus: () => SystemStatus.ACTIVE, ...place, ...options });
        await sayName(await server.runInBackground());
        await server.close();
      }
    `);
    await spawnHost(t, [file]).checkEnd('cart.pole', 'cart.pole', 'other');
  });
});

describe('A last save that fails', LIMIT, () => {
  for (const requester of ['a client', 'the program']) {
    it(`calls off the shutdown by ${requester}: the system is paused, can resume, and ends later`, async (t) => {
      collectWarnings(t);
      const log: string[] = [];
      let [isFull, endsItself] = [true, requester === 'the program'];
      const { address: { port }, client, finished } = await launchSystem(t, {
        step: (control) => {
          if (endsItself) control.shutdown('budget spent');
          endsItself = false;
          if (log.at(-1) !== 'step') log.push('step');
          return sleep(1);
        },
        onPaused: () => void log.push('onPaused'),
        saveState: () => {
          log.push('saveState');
          return isFull ? assert.fail(FULL) : 'states/1.json';
        },
        onShutdown: () => void log.push('onShutdown'),
      });
      const isByClient = requester === 'a client';
      if (isByClient) assert.deepEqual(await perform(port, 'shutdown'), [500, `shutdown failed: ${FULL}`]);
      await client.waitFor(PAUSED);
      const { by, reason, commands } = await getInfo(port);
      assert.deepEqual([by, reason], isByClient ? [undefined, undefined] : ['itself', 'budget spent']);
      const rows = commands.map(({ command, state, error }) => [command, state, error]);
      assert.deepEqual(rows, [['shutdown', 'failed', FULL]]);
      assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
      await until(() => log.length === 4);
      isFull = false;
      assert.deepEqual(await perform(port, 'shutdown'), [200, 'states/1.json']);
      await finished;
      assert.deepEqual(log, ['step', 'saveState', 'onPaused', 'step', 'saveState', 'onShutdown']);
    });
  }

  it('makes launch() reject after onShutdown when a second shutdown saves again', async (t) => {
    collectWarnings(t);
    const log: string[] = [];
    const error = new Error(FULL);
    const { address: { port }, finished } = await launchSystem(t, {
      saveState: () => {
        log.push('saveState');
        throw error;
      },
      onShutdown: () => void log.push('onShutdown'),
    });
    const rejected = assert.rejects(finished, error);
    for (let round = 0; round < 2; round += 1) {
      assert.deepEqual(await perform(port, 'shutdown'), [500, `shutdown failed: ${FULL}`]);
    }
    await rejected;
    assert.deepEqual(log, ['saveState', 'saveState', 'onShutdown']);
  });

  it('is the outcome of every shutdown that was accepted before it failed', async (t) => {
    collectWarnings(t);
    let saves = 0;
    const pausing = defer<void>();
    const saving = defer<void>();
    const { address: { port }, client } = await launchSystem(t, {
      onPaused: () => pausing.promise,
      saveState: () => {
        saves += 1;
        return saving.promise;
      },
    });
    await client.pause();
    const untilAccepted = (count: number): Promise<void> => {
      return until(async () => (await getInfo(port)).commands.length === count);
    };
    const shutdowns = [perform(port, 'shutdown'), perform(port, 'shutdown')]; // both on the queue
    await untilAccepted(3);
    pausing.resolve();
    await until(() => saves === 1);
    shutdowns.push(perform(port, 'shutdown'), perform(port, 'shutdown')); // during the save
    await untilAccepted(5);
    saving.reject(new Error(FULL));
    assert.deepEqual(await Promise.all(shutdowns), Array(4).fill([500, `shutdown failed: ${FULL}`]));
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    assert.deepEqual([saves, await client.getStatus()], [1, ACTIVE]);
  });

  it('makes launch() reject if the program shuts itself down without a web API', async (t) => {
    collectWarnings(t);
    const log: string[] = [];
    const error = new Error(FULL);
    await assert.rejects(launch({
      step: (control) => control.shutdown(),
      onPaused: () => void log.push('onPaused'),
      saveState: () => assert.fail(error),
      onShutdown: () => void log.push('onShutdown'),
    }, { webApiAddress: null }), error);
    assert.deepEqual(log, ['onShutdown']);
  });

  for (const address of [SERVED, UNSERVED]) {
    it(`makes launch() reject after onShutdown on a signal: ${address}`, UNIX_ONLY, async (t) => {
      const host = runHost(t, `
        await launch({
          step: () => process.kill(process.pid, 'SIGTERM'),
          onPaused: () => say('onPaused'),
          saveState() { throw new Error('${FULL}'); },
          onShutdown: () => say('onShutdown'),
        }, { ${address} });
        say('resolved');
      `);
      assert.deepEqual(await host.hearAll(), ['onShutdown']);
      const { code, stderr } = await host.ended;
      assert.equal(code, 1);
      assert.match(stderr, new RegExp(`^Error: ${FULL}`, 'm'));
    });
  }
});

describe('A system that starts paused', { ...LIMIT, concurrency: 2 }, () => {
  it('carries out the commands that came before it was paused after that, even if its queue is short', async (t) => {
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
      'onListening while pausing', 'pause waiting', 'save-state waiting', 'pause waiting', 'resume waiting',
      'onPaused', 'saveState of paused', 'onResumed', 'step', 'saveState of active',
    ]);
    assert.deepEqual(await Promise.all(outcomes), Array(3).fill([200, undefined]));
  });

  it('becomes active if onPaused fails', async (t) => {
    const warnings = collectWarnings(t);
    const stepped = defer();
    const { address: { port } } = await launchSystem(t, {
      step: () => {
        stepped.resolve();
        return sleep(1);
      },
      onPaused: () => assert.fail('GPU busy'),
    }, { startPaused: true });
    await stepped.promise;
    await until(async () => (await getInfo(port)).commands[0]?.state !== 'running');
    const { status, commands } = await getInfo(port);
    const rows = commands.map(({ command, state, by, reason, error }) => [command, state, by, reason, error]);
    assert.deepEqual([status, ...rows], [
      'active', ['pause', 'failed', 'itself', 'started paused', 'onPaused failed: GPU busy'],
    ]);
    assert.deepEqual(warnings, ['onPaused failed: GPU busy']);
  });

  it('saves and ends without a step: a shutdown by command', async (t) => {
    const log: string[] = [];
    const { address: { port }, client, finished } = await launchSystem(t, {
      step: () => assert.fail('a step ran'),
      onResumed: () => void log.push('onResumed'),
      saveState: (status) => {
        log.push(`saveState of ${status}`);
        return 'states/1.json';
      },
      onShutdown: () => void log.push('onShutdown'),
    }, { startPaused: true });
    await client.waitFor(PAUSED);
    assert.deepEqual(await perform(port, 'shutdown'), [200, 'states/1.json']);
    await finished;
    assert.deepEqual(log, ['saveState of paused', 'onShutdown']);
  });

  for (const hook of ['onListening', 'onPaused']) {
    it(`saves and ends without a step: a signal during ${hook}`, UNIX_ONLY, async (t) => {
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
      await host.checkEnd('onListening', 'onPaused', 'saveState of paused', 'onShutdown');
    });
  }
});

describe('The status that saveState gets', { ...LIMIT, concurrency: 2 }, () => {
  it('is that before the command, also if a shutdown was called off', async (t) => {
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
    await check('save-state', 'paused'); // the system pauses when its shutdown is called off
    await check('resume');
    isFull = false;
    await check('shutdown', 'active');
    await finished;
  });

  for (const address of [SERVED, UNSERVED]) {
    it(`is that before its own requests and before signals: ${address}`, UNIX_ONLY, async (t) => {
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
          }, { ${address} });
        };
        const save = (control) => control.save();
        await run(save, () => signal('SIGUSR2'), (control) => control.shutdown());
        await run(() => signal('SIGUSR2'), save, () => signal('SIGHUP'));
        await run(save, (control) => control.pause());
      `);
      const active = [true, false];
      await host.checkEnd(...Array(6).fill(active), active, [false, true]);
    });
  }
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

  it('saves if it is SIGUSR2, and shuts down if it is SIGHUP: while active and while paused', async (t) => {
    const host = runHost(t, launched(SERVED));
    const port = await host.hear<number>();
    host.process.kill('SIGUSR2');
    assert.deepEqual([await host.hear(), await host.hear(), await host.hear()], ['onPaused', 'saveState', 'onResumed']);
    assert.deepEqual(await perform(port, 'pause'), [200, undefined]);
    assert.equal(await host.hear(), 'onPaused');
    host.process.kill('SIGUSR2');
    assert.equal(await host.hear(), 'saveState');
    await until(async () => (await getInfo(port)).commands.at(-1)?.state === 'done');
    const { status, commands } = await getInfo(port);
    assert.equal(status, 'paused');
    assert.deepEqual(commands.map(({ command, by }) => `${command} by ${by}`), [
      'save-state by itself', 'pause by undefined', 'save-state by itself',
    ]);
    host.process.kill('SIGHUP');
    await host.checkEnd('saveState', 'onShutdown', 'end');
  });

  it('works without a web API, while active and while paused', async (t) => {
    const host = runHost(t, launched(UNSERVED, [], `
      if (steps === 1) process.kill(process.pid, 'SIGUSR2');
      if (steps === 1e4) control.pause();
    `));
    const heard = [await host.hear(), await host.hear(), await host.hear(), await host.hear()];
    assert.deepEqual(heard, ['onPaused', 'saveState', 'onResumed', 'onPaused']);
    await sleep(50); // nothing but launch() keeps it alive
    host.process.kill('SIGTERM');
    await host.checkEnd('saveState', 'onShutdown', 'end');
  });

  const SAY_SIGNAL = "process.on('SIGTERM', () => say('SIGTERM'));";

  it('takes effect after the hook that runs', async (t) => {
    const host = runHost(t, SAY_SIGNAL + launched(SERVED, ['onPaused']));
    const outcome = perform(await host.hear(), 'pause');
    assert.equal(await host.hear(), 'onPaused');
    host.process.kill('SIGTERM');
    assert.equal(await host.hear(), 'SIGTERM');
    host.tell('go on');
    assert.deepEqual(await outcome, [200, undefined]);
    await host.checkEnd('saveState', 'onShutdown', 'end');
  });

  it('does not kill during the last save, which runs once, and is the reason in /api/info', async (t) => {
    const host = runHost(t, launched(SERVED, ['saveState']));
    const port = await host.hear<number>();
    host.process.kill('SIGTERM');
    assert.equal(await host.hear(), 'saveState');
    const { status, by, reason } = await getInfo(port);
    assert.deepEqual([status, by, reason], ['shutting down', 'itself', 'SIGTERM']);
    for (const signal of ['SIGTERM', 'SIGTERM', 'SIGHUP', 'SIGUSR2', 'SIGINT'] as const) host.process.kill(signal);
    host.tell('go on');
    await host.checkEnd('onShutdown', 'end');
  });

  it('kills if it is a second SIGINT, but not within a second', async (t) => {
    const host = runHost(t, launched(SERVED, ['saveState']));
    const port = await host.hear<number>();
    host.process.kill('SIGINT');
    assert.equal(await host.hear(), 'saveState');
    host.process.kill('SIGINT');
    await sleep(1100);
    assert.equal((await getInfo(port)).status, 'shutting down');
    host.process.kill('SIGINT');
    assert.equal((await host.ended).code, null);
    assert.equal(host.process.signalCode, 'SIGINT');
  });

  it('ends the system even if the last save of a shutdown by command fails at that time', async (t) => {
    const host = runHost(t, SAY_SIGNAL + launched(SERVED, ['saveState']));
    const outcome = perform(await host.hear(), 'shutdown');
    assert.equal(await host.hear(), 'saveState');
    host.process.kill('SIGTERM');
    assert.equal(await host.hear(), 'SIGTERM');
    host.tell('fail');
    assert.deepEqual(await outcome, [500, `shutdown failed: ${FULL}`]);
    assert.deepEqual(await host.hearAll(), ['onShutdown']);
    assert.equal((await host.ended).code, 1);
  });
});
