// What the two threads share, at moments that no client can choose: in the middle of a change, in callbacks, while
// there is no thread.

import assert from 'node:assert/strict';
import { syncBuiltinESMExports } from 'node:module';
import { describe, it } from 'node:test';
import threads from 'node:worker_threads';
import { SystemStatus } from '../../../control.ts';
import { collectThreads, collectWarnings, getInfo, startServer } from '../helpers.ts';
import { HOST, INFO, PAUSE, RESUME, SAVE, SHUTDOWN, ask, head } from '../http.ts';
import { LIMIT, until } from '../wait.ts';
import { standAtEach } from './chronicle.ts';
import type { CommandDeclaration, CommandInfo } from '../../../control.ts';
import type { Connection } from '../http.ts';

const { ACTIVE, PAUSED } = SystemStatus;

describe('At each access of the program to shared memory', LIMIT, () => {
  it('/api/info is whole, while a status, a command and the declarations change', (t) => standAtEach(t, `
    await standAtEach(async () => {
      server.post(status === ACTIVE ? 'pause' : 'resume', { reason: 'r'.repeat(100) });
      status = server.receiveCommand() === 'pause' ? PAUSED : ACTIVE;
      server.report({ value: 'v'.repeat(100) });
      server.commands = { ['c' + status.statusName]: { description: 'd'.repeat(100) } };
      return 'done';
    });
  `, async (connection) => {
    const { status, by, reason, holds, accepts, commands } = (await connection.request(head(INFO, HOST))).body;
    assert.ok(['active', 'paused'].includes(status));
    assert.equal(holds.length, status === 'paused' ? 1 : 0);
    assert.deepEqual([by ?? 'itself', reason?.length ?? 100], ['itself', 100]);
    for (const { description } of Object.values<CommandDeclaration>(accepts)) assert.equal(description?.length, 100);
    for (const { command, by: sender, reason: why, state, value } of commands) {
      assert.match(command, /^(pause|resume)$/);
      assert.deepEqual([sender, why?.length, value?.length], ['itself', 100, state === 'done' ? 100 : undefined]);
    }
  }, (result) => assert.equal(result, 'done')));

  it('a command is either taken or withdrawn, and what is announced can be taken', async (t) => {
    let id: string;
    let isWithdrawn: boolean;
    const counts = { taken: 0, withdrawn: 0 };
    await standAtEach(t, `
      await standAtEach(async () => {
        server.publish();
        return server.hasCommands() && server.receiveCommand();
      }, meet);
    `, async (connection) => {
      const { statusCode, body: { error } } = await connection.request(head(`POST /api/withdraw?id=${id}`, HOST));
      isWithdrawn = statusCode === 200;
      if (!isWithdrawn) assert.match(`${statusCode} ${error}`, /^409 \S+ is (being taken|running)$/);
    }, (result, access) => {
      assert.equal(result, isWithdrawn ? false : 'save-state', access);
      counts[isWithdrawn ? 'withdrawn' : 'taken'] += 1;
    }, async (connection) => {
      assert.equal((await connection.request(head(SAVE, HOST))).statusCode, 200);
      ({ id } = (await connection.request(head(INFO, HOST))).body.commands.at(-1));
    });
    assert.ok(counts.taken > 5 && counts.withdrawn > 5, JSON.stringify(counts));
  });

  it('a command is either withdrawn or ended by a shutdown, and says by what; none is left', async (t) => {
    const ENDED = 'the program has shut down';
    let ids: string[] = [];
    let errors: string[] = [];
    const counts = { ended: 0, withdrawn: 0 };
    const checkLast = async (connection: Connection): Promise<void> => {
      const { commands } = (await connection.request(head(INFO, HOST))).body;
      const seen = commands.filter(({ id }: CommandInfo) => ids.includes(id)).map(({ error }: CommandInfo) => error);
      assert.deepEqual(seen, errors);
    };
    await standAtEach(t, `
      server.commands = { say: {} };
      await standAtEach(async () => {
        server.receiveCommand();
        server.report();
        return server.hasCommands();
      }, meet);
    `, async (connection) => {
      const { statusCode, body } = await connection.request(head(`POST /api/withdraw?id=${ids[0]}&reason=why`, HOST));
      if (statusCode !== 200) assert.match(body.error, /^\S+ (is being taken|has failed)$/);
      errors = [statusCode === 200 ? 'withdrawn: why' : ENDED, ENDED];
      counts[statusCode === 200 ? 'withdrawn' : 'ended'] += 1;
    }, (result) => assert.equal(result, false), async (connection) => {
      await checkLast(connection);
      for (const line of ['POST /api/say', 'POST /api/say', SHUTDOWN]) await connection.request(head(line, HOST));
      const { commands } = (await connection.request(head(INFO, HOST))).body;
      ids = commands.slice(-3, -1).map(({ id }: CommandInfo) => id);
      errors = [ENDED, ENDED];
    });
    assert.ok(counts.ended > 5 && counts.withdrawn > 5, JSON.stringify(counts));
  });
});

describe('nextCommand()', LIMIT, () => {
  it('takes what systemStatus() or describe() posts while it looks', async (t) => {
    let posts = 0;
    const post = (): void => {
      if (posts > 0) posts -= 1;
      if (posts === 1) assert.ok(server.post('save-state'));
    };
    const { server, port } = await startServer(t, {
      systemStatus: () => {
        post();
        return ACTIVE;
      },
      describe: post,
    });
    for (const count of [2, 3, 4, 5]) {
      posts = count;
      const next = server.nextCommand();
      const calls = setInterval(() => posts > 1 && void getInfo(port).catch(() => {}), 20); // which call both
      assert.equal(await next, 'save-state');
      clearInterval(calls);
    }
  });
});

describe('The request that the program has', LIMIT, () => {
  it('is a copy: what the program makes of it changes neither holds nor causes', async (t) => {
    let status = ACTIVE;
    const { server, port } = await startServer(t, { systemStatus: () => status });
    for (const [line, next] of [[PAUSE, PAUSED], [RESUME, ACTIVE]] as const) {
      assert.equal((await ask(port, `${line}?by=ana`)).statusCode, 200);
      server.receiveCommand();
      Object.assign(server.request as object, { by: 'mallory', command: 'shutdown' });
      status = next;
      server.hasCommands();
      assert.deepEqual([(await getInfo(port)).by, server.request?.by], ['ana', 'ana']);
      assert.deepEqual(server.holds.map(({ by }) => by), next === PAUSED ? ['ana'] : []);
    }
  });
});

describe('A thread that cannot be created', LIMIT, () => {
  it('is tried again a second later', async (t) => {
    const warnings = collectWarnings(t);
    const created = collectThreads(t);
    const { port } = await startServer(t);
    const { Worker } = threads;
    let attempts = 0;
    threads.Worker = function fail() {
      attempts += 1;
      threads.Worker = Worker;
      syncBuiltinESMExports();
      throw new Error('no more threads');
    } as unknown as typeof Worker;
    syncBuiltinESMExports();
    await created[0]?.terminate();
    await until(() => created.length > 1);
    assert.equal(attempts, 1);
    await until(async () => (await ask(port, PAUSE).catch(() => null))?.statusCode === 200);
    assert.ok(warnings.some((warning) => warning.includes('no more threads')), warnings.join());
  });
});
