// A hold with an end, if something comes between: another pause, a full queue, a thread that dies, a clock that is set.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../control.ts';
import { clientAt, makeFolder, startServer } from '../helpers.ts';
import { runHost } from '../host.ts';
import { INFO, PAUSE, SAVE, ask } from '../http.ts';
import { LIMIT, until } from '../wait.ts';
import { reaches, runFirst } from './helpers.ts';
import type { TestContext } from 'node:test';
import type { CommandInfo, SystemInfo, WebApiServerOptions } from '../../../control.ts';
import type { StartedServer } from '../helpers.ts';

const { ACTIVE, PAUSED } = SystemStatus;

/** A host that pauses and resumes. */
const OBEDIENT = `
  let status = ACTIVE;
  const server = await serve({ systemStatus: () => status });
  const handle = (command) => {
    status = command === 'pause' ? PAUSED : ACTIVE;
    say([command, server.request.by, server.request.reason ?? null]);
  };
`;
const ENDED = ['resume', 'ana', 'the hold has ended'];

/** A server of a program that is paused, with a hold of `itself`. */
async function startPaused(t: TestContext, options: Partial<WebApiServerOptions> = {}): Promise<Paused> {
  const started = await startServer(t, { systemStatus: () => PAUSED, ...options });
  const infoOf = async (): Promise<SystemInfo> => (await ask(started.port, INFO)).body;
  return { ...started, infoOf, pause: async (query) => {
    assert.equal((await ask(started.port, `${PAUSE}?${query}`)).summary, '200 ok');
    while (started.server.hasCommands()) started.server.receiveCommand();
  } };
}

interface Paused extends StartedServer {
  infoOf(): Promise<SystemInfo>;
  /** Pauses; the program takes the command. */
  pause(query: string): Promise<void>;
}

describe('A hold with an end', { ...LIMIT, concurrency: true }, () => {
  it('is not released by the end that a pause has replaced, even if that was still waiting', async (t) => {
    const { server, port, pause, infoOf } = await startPaused(t);
    await pause('by=ana&for=1');
    await ask(port, `${PAUSE}?by=ana&for=60`);
    const ends = async (): Promise<CommandInfo[]> => {
      return (await infoOf()).commands.filter(({ command }) => command === 'resume');
    };
    await until(async () => (await ends()).length > 0);
    while (server.hasCommands()) assert.equal(server.receiveCommand(), 'pause');
    assert.deepEqual((await ends()).map(({ value }) => value), [{ released: false }]);
    const [, { by, until: end = '' } = {}] = server.holds;
    assert.ok(by === 'ana' && Date.parse(end) > Date.now() + 50_000, end);
    await sleep(600);
    assert.equal((await ends()).length, 1, 'nor again');
  });

  it('is refused if it would have no name', async (t) => {
    const { server, port, pause } = await startPaused(t);
    for (let count = 2; count < 15; count += 1) await pause(`by=s${count}`);
    await pause('by=s15&for=3600');
    const error = '15 hold the pause already: that of ana would have no end';
    assert.equal((await ask(port, `${PAUSE}?by=ana&for=60`)).summary, `409 ${error}`);
    await pause('by=s3&for=3600');
    await ask(port, `${PAUSE}?by=ana`); // waits
    const others = '409 16 hold the pause already: that of ben would have no end';
    assert.equal((await ask(port, `${PAUSE}?by=ben&for=60`)).summary, others);
    assert.equal(server.receiveCommand(), 'pause');
    server.report();
    const named = server.holds.map(({ by, until: end }) => [by, end !== undefined]);
    const shown = named.filter(([by, hasEnd]) => by === undefined || hasEnd);
    assert.deepEqual(shown, [['s3', true], ['s15', true], [undefined, false]]);
  });

  it('without a name has no end, so nothing is sent for it', async (t) => {
    const end = new Date().toISOString();
    const { server, infoOf } = await startPaused(t, { cause: [{ reason: 'a' }, { reason: 'b', until: end }] });
    await sleep(700);
    assert.deepEqual([server.hasCommands(), (await infoOf()).commands], [false, []]);
    assert.deepEqual(server.holds.map(({ by }) => by), ['somebody', undefined]);
    assert.ok(server.holds.every(({ until: own }) => own === undefined));
  });

  it('ends once the queue has room', async (t) => {
    const { server, port, pause, infoOf } = await startPaused(t, { maxQueueSize: 1 });
    await pause('by=ana&for=1');
    await ask(port, SAVE);
    await sleep(1600);
    assert.deepEqual((await infoOf()).commands.map(({ command }) => command), ['pause', 'save-state']);
    assert.equal(server.receiveCommand(), 'save-state');
    await until(() => !server.hasCommands() && server.holds.length === 1);
    assert.equal((await infoOf()).commands.at(-1)?.reason, 'the hold has ended');
  });

  it('may be that of the program itself', async (t) => {
    const { server } = await startPaused(t, { cause: { by: 'ben' } });
    const end = new Date(Date.now() + 100).toISOString();
    server.post('pause', { by: 'quota', until: end });
    assert.equal(server.receiveCommand(), 'pause');
    assert.equal(server.request?.until, end);
    server.report();
    assert.deepEqual(server.holds.map(({ by, until: own }) => [by, own]), [['ben', undefined], ['quota', end]]);
    await until(() => !server.hasCommands() && server.holds.length === 1);
    const wrong = /^RangeError: until must be a time in ISO 8601, got 'noon'$/;
    assert.throws(() => server.post('pause', { until: 'noon' }), wrong);
    assert.throws(() => server.post('resume', { until: end }), /^TypeError: post\('resume'\) has no option until; /);
  });

  for (const [name, source] of [
    ['that sleeps, whose thread has died', `
      process.removeAllListeners('warning');
      const threads = [];
      process.on('worker', (thread) => threads.push(thread));
      ${OBEDIENT}
      handle(await server.nextCommand());
      await threads[0].terminate();
      handle(await server.nextCommand());
    `],
    ['that never yields', `${OBEDIENT} for (let count = 0; count < 2; count += 1) handle(server.nextCommandSync());`],
  ] as const) {
    it(`ends in a program ${name}`, async (t) => {
      const host = runHost(t, `${source} await server.close();`);
      await ask(await host.hear(), `${PAUSE}?by=ana&for=1`).catch(() => {}); // the thread may die before it responds
      await host.ends(['pause', 'ana', null], ENDED);
    });
  }

  it('goes by the clock of the machine: one that is set back prolongs it by as much', async (t) => {
    const file = join(makeFolder(t), 'ahead');
    const set = (minutes: number): void => writeFileSync(file, `${minutes * 60_000}`);
    set(0);
    const host = runHost(t, `
      ${runFirst(`
        const { now } = Date;
        const { readFileSync } = process.getBuiltinModule('node:fs');
        Date.now = () => now() + Number(readFileSync(${JSON.stringify(file)}, 'utf8'));
      `)}
      ${OBEDIENT}
      for (let count = 0; count < 4; count += 1) handle(await server.nextCommand());
      await server.close();
    `);
    const client = clientAt(t, { host: '127.0.0.1', port: await host.hear() });
    await client.request('pause', { by: 'ana', for: 1800, wait: 60 });
    set(31);
    await reaches(client, ACTIVE);
    await client.request('pause', { by: 'ana', for: 1, wait: 60 });
    set(0);
    await sleep(2000);
    assert.equal(await client.getStatus(), PAUSED);
    set(32);
    await host.ends(['pause', 'ana', null], ENDED, ['pause', 'ana', null], ENDED);
  });
});
