// The two lanes, holds and commands that expire: what a chronicle cannot hit by chance. Hosts that sleep, each decision
// of a look, counters that go round, limits, clocks that are set.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../control.ts';
import { collectThreads, collectWarnings, launchSystem, startServer, takeAll } from '../helpers.ts';
import { runHost } from '../host.ts';
import { HOST, INFO, PAUSE, RESUME, SAVE, SHUTDOWN, STATUS, WAIT, ask, assertWaits, exchange, head } from '../http.ts';
import { LIMIT, until } from '../wait.ts';
import { preset } from './chronicle.ts';
import { runFirst } from './helpers.ts';
import type { StartedServer } from '../helpers.ts';
import type { CommandInfo, StatusCause, WebApiServerOptions } from '../../../control.ts';
import type { TestContext } from 'node:test';

const { ACTIVE, PAUSED } = SystemStatus;

const SAY = 'POST /api/say';
const SHUT_DOWN = '500 say failed: the program has shut down';
const EXPIRY_MS = 1200; // of commands with expires=1

/** A server with the own command say. */
function start(t: TestContext, options: Partial<WebApiServerOptions<'say'>> = {}): Promise<StartedServer<'say'>> {
  return startServer(t, { commands: { say: {} }, ...options });
}

function releaseOf(by: string): string { return `${RESUME}?mine=true&by=${encodeURIComponent(by)}`; }

async function listed(port: number): Promise<CommandInfo[]> { return (await ask(port, INFO)).body.commands; }

async function send(port: number, ...lines: string[]): Promise<void> {
  for (const line of lines) assert.equal((await ask(port, line)).summary, '200 ok', line);
}

// ───── Hosts ─────────────────────────────────────────────────────────────────────────────────────────────────────

const HOSTS: [name: string, source: string][] = ['nextCommand()', 'nextCommandSync()'].map((call, index) => [call, `
  const cause = [{ by: 'ana' }, { by: 'ben' }];
  const options = { autoReport: ${index === 0}, cause, commands: { say: {} } };
  const server = await serve({ systemStatus: () => PAUSED, ...options });
  wait();
  say(await server.${call});
  end();
  await server.close();
`]);

describe('A look', LIMIT, () => {
  it('completes a command that was taken before the thread had counted it', async (t) => {
    const host = runHost(t, `
      ${runFirst(`
        const { store } = Atomics;
        Atomics.store = (...args) => { // stops, whenever it has stored something
          store(...args);
          Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 200);
        };
      `)}
      let status = ACTIVE;
      const server = await serve({ systemStatus: () => status });
      server.hasCommands(); // finds the queue empty
      while (!server.hasWaiting()) await sleep(1);
      say(server.receiveCommand());
      server.hasCommands();
      status = PAUSED; // by the program itself
      server.hasCommands();
      say(server.holds.map(({ by }) => by));
      await server.close();
    `);
    const port = await host.hear<number>();
    const paused = ask(port, `${PAUSE}?by=ana`, WAIT);
    await host.ends('pause', ['itself']);
    assert.equal((await paused).body.state, 'done');
  });
});

describe('Commands that are never delivered', { ...LIMIT, concurrency: 3 }, () => {
  for (const [name, source] of [...HOSTS, ['launch()', `
    await launchHost({
      onPaused: () => wait(),
      saveState: () => { say('save-state'); end(); process.exit(); },
      commands: { say: { run: () => say('said') } },
    }, { startPaused: [{ by: 'ana' }, { by: 'ben' }] });
  `]] as const) {
    it(`neither wake nor end a program in ${name}, and their senders are told`, async (t) => {
      const host = runHost(t, `
        let began;
        const wait = () => {
          halt();
          began = process.cpuUsage();
        };
        const end = () => {
          const { user, system } = process.cpuUsage(began);
          say((user + system) / 1000 < 700); // milliseconds
        };
        ${source}
      `);
      const port = await host.hear<number>();
      const lines = [releaseOf('eve'), `${PAUSE}?expires=1`, `${SAY}?expires=1`, releaseOf('ana')];
      const answers = lines.map((line) => ask(port, line, WAIT));
      const waiting = async (): Promise<CommandInfo[]> => {
        return (await ask(port, INFO)).body.commands.filter(({ state }: CommandInfo) => state === 'waiting');
      };
      await until(async () => (await waiting()).length === lines.length);
      await sleep(EXPIRY_MS);
      host.release();
      const [vain, paused, said, released] = await Promise.all(answers);
      assert.deepEqual([vain?.body.value, released?.body.value], [{ released: false }, { released: true }]);
      assert.equal(paused?.summary, '500 pause failed: expired after 1 s');
      assert.equal(said?.summary, '500 say failed: expired after 1 s');
      const { body: { value } } = await ask(port, releaseOf('ana'), WAIT); // while it sleeps
      assert.deepEqual(value, { released: false });
      await sleep(1500); // a host that does not sleep would use as much CPU
      await send(port, SAVE);
      await host.ends('save-state', true);
    });
  }
});

describe('hasCommands()', { ...LIMIT, concurrency: true }, () => {
  interface Case extends StartedServer<'say'> { set(status: SystemStatus): void }
  /** What receiveCommand() returns after hasCommands() was true; null if hasCommands() is false. */
  const CASES: [what: string, expected: string | null, act: (host: Case) => Promise<unknown>][] = [
    ['is right when what it has found expires', 'pause', async ({ server, port }) => {
      await send(port, `${PAUSE}?expires=1`);
      assert.ok(server.hasCommands());
      await sleep(EXPIRY_MS);
      server.publish();
      await ask(port, STATUS);
    }],
    ['is right when a status ends the hold of a release', 'resume', async ({ server, port, set }) => {
      set(PAUSED);
      await send(port, releaseOf('itself'));
      assert.ok(server.hasCommands());
      set(ACTIVE);
    }],
    ['is right when another pause begins', 'resume', async ({ server, port, set }) => {
      set(PAUSED);
      await send(port, releaseOf('itself'));
      assert.ok(server.hasCommands());
      for (const status of [ACTIVE, PAUSED]) set(status);
    }],
    ['is right when a pause makes a release partial', 'save-state', async ({ server, port, set }) => {
      set(PAUSED);
      await send(port, `${PAUSE}?by=ben`);
      server.receiveCommand();
      await send(port, releaseOf('itself'), SAVE);
      assert.ok(server.hasCommands());
    }],
    ['is right when a pause has not paused', 'resume', async ({ server, port }) => {
      await send(port, `${PAUSE}?by=ben`);
      server.receiveCommand();
      await send(port, releaseOf('ben'));
      assert.ok(server.hasCommands());
    }],
    ['is right when a shutdown ends own commands', 'save-state', async ({ server, port }) => {
      await send(port, SHUTDOWN);
      server.receiveCommand();
      await send(port, SAY, SAVE);
      assert.ok(server.hasCommands());
    }],
    ['is false for own commands while a shutdown runs', null, async ({ server, port }) => {
      await send(port, SHUTDOWN);
      server.receiveCommand();
      await send(port, SAY);
    }],
    ['is false for a release while a pause runs that would make it partial', null, async ({ server, port, set }) => {
      set(PAUSED);
      await send(port, `${PAUSE}?by=ben`);
      server.receiveCommand();
      await send(port, releaseOf('itself'));
    }],
  ];
  for (const [what, expected, act] of CASES) {
    it(what, async (t) => {
      let status = ACTIVE;
      const started = await start(t, { systemStatus: () => status, autoReport: false });
      const { server } = started;
      await act({ ...started, set: (next) => {
        status = next;
        server.publish();
      } });
      if (expected === null) assert.equal(server.hasCommands(), false);
      else assert.equal(server.receiveCommand(), expected);
    });
  }

  it('is true again for a release that is due because the pause has failed', async (t) => {
    const { server, port } = await start(t, { systemStatus: () => PAUSED, autoReport: false });
    await send(port, `${PAUSE}?by=ben`);
    server.receiveCommand();
    await send(port, releaseOf('itself'));
    assert.equal(server.hasCommands(), false);
    const next = server.nextCommand();
    server.report({ error: 'stuck' });
    assert.equal(server.hasCommands(), true);
    assert.equal(await next, 'resume', 'and a host that sleeps wakes');
  });
});

describe('A listener of signal that takes a command', LIMIT, () => {
  it('neither loses nor doubles one, whatever the look has settled before', async (t) => {
    const host = runHost(t, `
      const server = await serve({ systemStatus: () => PAUSED, cause: [{ by: 'ana' }, { by: 'ben' }] });
      server.signal.addEventListener('abort', () => say(server.receiveCommand()));
      const next = server.nextCommand();
      halt();
      say(await next);
      say(server.hasCommands());
      await server.close();
    `);
    const port = await host.hear<number>();
    await send(port, releaseOf('ana'), SHUTDOWN, SAVE);
    host.release();
    assert.deepEqual((await host.hearAll()).sort(), [false, 'save-state', 'shutdown']);
  });
});

// ───── Counters ──────────────────────────────────────────────────────────────────────────────────────────────────

describe('The counters of commands', LIMIT, () => {
  for (const first of [2 ** 31 - 3, 2 ** 32 - 3]) {
    it(`keep order, ids and lists from ${first} on`, async (t) => {
      const restore = preset(first);
      const starting = start(t); // the constructor runs at once
      restore();
      const { server, port } = await starting;
      await send(port, SAY, SAVE, SAY, RESUME);
      assert.ok(server.post('save-state'));
      const ids = ['-', '-', '-', '-', '-i'].map((mark, index) => `${mark}${(first + 1 + index) % 2 ** 32}`);
      const taken: string[] = [];
      while (server.hasCommands()) {
        server.receiveCommand();
        taken.push(String(server.request?.id.slice(3)));
      }
      assert.deepEqual(taken, [ids[4], ...ids.slice(0, 4)]);
      assert.deepEqual((await listed(port)).map(({ id }) => id.slice(3)), ids);
    });
  }
});

// ───── Limits ────────────────────────────────────────────────────────────────────────────────────────────────────

describe('Holds', LIMIT, () => {
  const holds = async (port: number): Promise<StatusCause[]> => (await ask(port, INFO)).body.holds;

  for (const [what, characters] of [
    ['four bytes', ['😀']], ['bytes of all kinds', ['"', '\\', '\ud83d', 'x']],
  ] as const) {
    it(`of 17 senders with names and reasons of 200 characters of ${what} outlive the thread`, async (t) => {
      collectWarnings(t);
      const threads = collectThreads(t);
      let status = PAUSED;
      const cause = Array.from({ length: 17 }, (_, index) => {
        const character = characters[index % characters.length] ?? '';
        return { by: String(index).padEnd(200 * character.length, character), reason: character.repeat(200) };
      });
      const { server, port } = await start(t, { systemStatus: () => status, maxQueueSize: 32, cause: cause[0] });
      for (const { by, reason } of cause) await send(port, `${PAUSE}?${new URLSearchParams({ by, reason })}`);
      takeAll(server);
      const held = await holds(port);
      const senders = held.flatMap(({ by }) => by ?? []);
      assert.deepEqual(server.holds, held);
      assert.deepEqual([new Set(senders).size, held.at(-1)?.by], [held.length - 1, undefined]);
      assert.deepEqual([held.length, senders.length], [16, 15]);
      const since = String(held[0]?.since);
      for (const saved of [held, [{ by: 'somebody', since }, { since }]]) {
        assert.deepEqual((await start(t, { systemStatus: () => PAUSED, cause: saved })).server.holds, saved);
      }
      const reasons = held.slice(0, 15).map(({ reason }) => Array.from(reason ?? '').length);
      assert.deepEqual(reasons, Array(15).fill(200), 'none is cut');
      await threads[0]?.terminate();
      await until(async () => (await exchange(port, head(STATUS, HOST), 1)).length > 0);
      assert.deepEqual(await holds(port), held);
      for (const by of senders) {
        const released = ask(port, releaseOf(by), WAIT);
        await until(async () => (server.publish(), (await Promise.race([released, sleep(5)])) !== undefined));
        assert.deepEqual((await released).body.value, { released: true });
      }
      await send(port, releaseOf('somebody'));
      assert.deepEqual([takeAll(server), (await holds(port)).length], [[], 1]);
      await send(port, RESUME);
      assert.equal(server.receiveCommand(), 'resume');
      status = ACTIVE;
      server.publish();
      assert.deepEqual(await holds(port), []);
    });
  }
});

// ───── Expiry ────────────────────────────────────────────────────────────────────────────────────────────────────

describe('A command that has expired', { ...LIMIT, concurrency: true }, () => {
  it('is skipped, leaves its place at the next look, and neither goes first nor aborts signal', async (t) => {
    const [long, full, calm] = [await start(t), await start(t, { maxQueueSize: 2 }), await start(t)];
    const [late, lines] = ['?expires=1&reason=late', [SAY, SAVE]];
    await send(long.port, SAY, SAY + late, SAVE, SAVE + late, SAVE + late, SAY, SAVE, RESUME + late);
    for (const line of lines) await send(full.port, line + late, line + late);
    await send(calm.port, SAY, SAVE, PAUSE + late);
    await sleep(EXPIRY_MS);
    assert.deepEqual(takeAll(long.server), ['say', 'save-state', 'say', 'save-state']);
    const commands = await listed(long.port);
    assert.ok(commands.every(({ state, reason }) => state === (reason === 'late' ? 'failed' : 'done')));
    for (const line of lines) assert.equal((await ask(full.port, line)).statusCode, 503);
    assert.equal(full.server.hasCommands(), false);
    await send(full.port, ...lines, ...lines);
    assert.deepEqual(takeAll(full.server), ['say', 'save-state', 'say', 'save-state']);
    assert.equal(calm.server.signal.aborted, false);
    assert.deepEqual(takeAll(calm.server), ['say', 'save-state']);
  });

  it('has expired by no clock that is set, which changes neither order nor durations', async (t) => {
    const { server, port } = await start(t);
    const now = Date.now();
    t.mock.timers.enable({ apis: ['Date'], now });
    for (const hours of [1, -1]) {
      t.mock.timers.setTime(now + hours * 3_600_000);
      const expired = ask(port, `${SAVE}?expires=1`, WAIT);
      await assertWaits(port, expired);
      await sleep(EXPIRY_MS);
      await send(port, SAY, `${SAVE}?expires=60`, SAY);
      server.post('resume');
      assert.deepEqual(takeAll(server), ['resume', 'say', 'save-state', 'say']);
      assert.equal((await expired).summary, '500 save-state failed: expired after 1 s');
      const commands = (await listed(port)).slice(-5);
      const names = commands.map(({ command }) => command);
      assert.deepEqual(names, ['save-state', 'say', 'save-state', 'say', 'resume']);
      assert.ok(commands.every(({ seconds = -1 }) => seconds >= 0 && seconds < 60));
      assert.ok(Number(commands[0]?.seconds) >= 1);
    }
  });

  it('has expired by no clock that is set while the thread starts', async (t) => {
    const { now } = Date;
    for (const hours of [1, -1]) {
      t.mock.method(Date, 'now', () => now() + hours * 3_600_000); // the thread has its own Date
      const started = start(t);
      t.mock.restoreAll();
      const { server, port } = await started;
      await send(port, `${SAVE}?expires=60`);
      assert.deepEqual(takeAll(server), ['save-state']);
      await send(port, `${SAVE}?expires=1`);
      await sleep(EXPIRY_MS);
      assert.deepEqual(takeAll(server), []);
    }
  });
});

// ───── Shutdown, and what interrupts own commands ────────────────────────────────────────────────────────────────

describe('Own commands that wait at a shutdown', { ...LIMIT, concurrency: true }, () => {
  for (const isFailed of [false, true]) {
    it(`${isFailed ? 'run if the last save of launch() fails' : 'fail when launch() has ended'}`, async (t) => {
      if (isFailed) collectWarnings(t);
      let end = (): void => {};
      let [saves, calls] = [0, 0];
      const { address: { port }, client } = await launchSystem(t, {
        saveState: () => { if (isFailed && (saves += 1) === 1) throw new Error('ENOSPC'); },
        commands: {
          slow: { run: () => new Promise<void>((resolve) => (end = resolve)) },
          say: { run: () => (calls += 1) },
        },
      });
      const slow = ask(port, 'POST /api/slow', WAIT);
      await until(async () => (await client.getInfo())?.commands[0]?.state === 'running');
      const said = ask(port, SAY, WAIT);
      await assertWaits(port, said);
      const shutDown = ask(port, SHUTDOWN, WAIT);
      await assertWaits(port, shutDown);
      end();
      assert.equal((await slow).summary, '200 done');
      const expected = isFailed ? [500, '200 done'] : [200, SHUT_DOWN];
      assert.deepEqual([(await shutDown).statusCode, (await said).summary], expected);
      assert.equal(calls, Number(isFailed));
    });
  }
});

describe('control.signal of an own command', { ...LIMIT, concurrency: true }, () => {
  for (const [line, name] of [[PAUSE, 'pause'], [SHUTDOWN, 'shutdown']] as const) {
    it(`aborts for a ${name} that waits behind it`, async (t) => {
      const { address: { port }, client } = await launchSystem(t, {
        commands: {
          slow: {
            async run(_values, { by }, { signal }) {
              if (!signal.aborted) await once(signal, 'abort');
              return `${by}: ${signal.reason.message}`;
            },
          },
        },
      });
      const slow = ask(port, 'POST /api/slow?by=ana', WAIT);
      await until(async () => (await client.getInfo())?.commands[0]?.state === 'running');
      await send(port, line);
      assert.equal((await slow).body.value, `ana: Interrupted by ${name}`);
    });
  }
});
