// GET /api/info, row by row and under load: who and why, the outcomes and the detail.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { LIMIT, collectWarnings, getDetail, getInfo, startServer, takeAll, until } from '../helpers.ts';
import { runHost } from '../host.ts';
import { ask, postAll, serveOthers } from '../http.ts';
import { SystemStatus } from '../../../control.ts';
import type { SystemInfo, WebApiServer } from '../../../control.ts';

const { ACTIVE, PAUSED } = SystemStatus;

describe('GET /api/info', { ...LIMIT, concurrency: true }, () => {
  it('has the cause of the first status, until another status has another cause', async (t) => {
    let status = PAUSED;
    const since = '2026-11-21T14:03:07.120Z';
    const { server, port } = await startServer(t, {
      systemStatus: () => status, cause: { by: 'a\nna', reason: 'r'.repeat(300), since },
    });
    const first = await getInfo(port);
    assert.deepEqual([first.by, first.reason, first.since], ['ana', 'r'.repeat(200), since]);
    server.post('resume', { by: 'clock', reason: 'noon' });
    server.receiveCommand();
    status = ACTIVE;
    server.report();
    const second = await getInfo(port);
    assert.deepEqual([second.status, second.by, second.reason], ['active', 'clock', 'noon']);
    assert.notEqual(second.since, since);
  });

  it('has a tag that is never newer than the commands, so that no outcome is missed', async (t) => {
    const { server, client } = await startServer(t);
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
    for (let count = 0; count < 50; count += 1) {
      const status = client.getStatus(); // samples that are fresh while the outcome is on its way
      const reply = await client.request('save-state', { wait: 60 });
      assert.ok(reply.ok);
      await until(() => seen.get(String(reply.body['id'])) === 'states/1.json', () => `${count} outcomes`);
      await status;
    }
    isOver.abort();
    await Promise.all(others);
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
    await postAll(port, ['pause', 'resume']);
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
      for (;;) if (server.hasCommands()) status = PAUSED; // by itself, before it takes the command
    `);
    const port = await host.hear<number>();
    await ask(port, 'POST /api/save-state');
    for (let round = 0, before = -1; round < 3; round += 1) {
      await until(async () => Number(await getDetail(port)) > before);
      before = Number(await getDetail(port));
    }
    await until(async () => (await ask(port, 'GET /api/status')).summary === '200 paused');
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
    for (let round = 0; round < 20; round += 1) {
      await sleep(100); // a detail may be as old
      await ask(port, round % 2 === 0 ? 'POST /api/pause' : 'POST /api/resume');
      seen.push(await getDetail(port));
    }
    const right = seen.filter((detail, round) => detail === (round % 2 === 0 ? 'paused' : 'active'));
    assert.ok(right.length > 10, `${seen}`); // a busy machine may let some wait for too long
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
      () => server.hasCommands(), sleeping, () => controller.abort(), () => ask(port, 'POST /api/pause'),
      () => server.receiveCommand(), () => ask(port, 'GET /api/status'), () => ask(port, 'GET /'),
    ]) {
      await action();
      counts.push(calls);
    }
    assert.deepEqual(counts, [1, 2, 3, 3, 3, 4, 5, 5]);
  });

  it('causes a limited number of warnings, even if all texts differ', async (t) => {
    const warnings = collectWarnings(t);
    let calls = 0;
    const { server } = await startServer(t, { systemStatus: () => assert.fail(`failure ${calls += 1}`) });
    for (let round = 0; round < 1000; round += 1) server.hasCommands();
    assert.ok(warnings.length > 1 && warnings.length <= 100, `${warnings.length} warnings`);
  });
});
