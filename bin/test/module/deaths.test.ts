// Server threads that die: the host continues, and a new thread takes over. The chronicle checks that every command is
// delivered exactly once meanwhile.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { inspect } from 'node:util';
import { SystemStatus } from '../../../control.ts';
import { clientAt, collectThreads, collectWarnings, freePort, getDetail, makeFolder, startServer } from '../helpers.ts';
import { runHost } from '../host.ts';
import { HOST, INFO, STATUS, Talk, ask, exchange, head } from '../http.ts';
import { lacks } from '../needs.ts';
import { LIMIT, until } from '../wait.ts';
import { reaches, runFirst } from './helpers.ts';
import { countEvents, readLog } from './log.ts';
import type { SystemInfo } from '../../../control.ts';

const { ACTIVE, PAUSED } = SystemStatus;

/** For hosts whose threads die: the latest is the server's. */
const MORTAL = `
  process.removeAllListeners('warning'); // node's printer: each thread that dies causes a warning
  const threads = [];
  process.on('worker', (thread) => threads.push(thread));
  const kill = () => threads.at(-1).terminate();
  const another = async () => { // the next thread
    const { length } = threads;
    while (threads.length === length) await sleep(1);
  };
`;

describe('A thread that dies', LIMIT, () => {
  it('leaves a host asleep in nextCommand(), which keeps the process alive until the next command', async (t) => {
    const host = runHost(t, `
      ${MORTAL}
      let status = ACTIVE;
      const server = await serve({ systemStatus: () => status });
      setImmediate(async () => {
        await kill();
        status = PAUSED;
        say('killed');
      });
      say(await server.nextCommand());
      await server.close();
    `);
    const client = clientAt(t, { host: '127.0.0.1', port: await host.hear() });
    assert.equal(await host.hear(), 'killed');
    await reaches(client, PAUSED);
    assert.equal(await client.saveState(), 'ok');
    await host.ends('save-state');
  });

  it('lets the process end while it is down and while it restarts', async (t) => {
    const host = runHost(t, `
      ${MORTAL}
      for (const state of ['restarts', 'is down']) {
        const server = new WebApiServer({ systemStatus: () => ACTIVE, ...place });
        await server.runInBackground();
        await kill();
        if (state === 'restarts') await another();
      }
      say('end');
    `);
    await host.ends('end');
  });

  it('does not keep close() from resolving; its socket stays for the next one', { skip: lacks('Unix') }, async (t) => {
    const states = ['dies', 'is down', 'restarts', 'has just restarted'];
    const host = runHost(t, `
      import { readdirSync } from 'node:fs';
      ${MORTAL}
      const folder = ${JSON.stringify(makeFolder(t))};
      const socketPath = folder + '/control.sock';
      for (const state of ${JSON.stringify(states)}) {
        const where = state === 'restarts' ? place : { socketPath };
        const server = new WebApiServer({ systemStatus: () => ACTIVE, ...where });
        await server.runInBackground();
        const killed = kill();
        if (state !== 'dies') await killed;
        if (state === 'restarts' || state === 'has just restarted') await another();
        if (state === 'has just restarted') {
          await new WebApiClient(undefined, undefined, where).waitFor(ACTIVE, { timeout: 60_000 });
        }
        const next = server.nextCommand().catch((error) => error.name);
        const { length } = threads;
        await server.close();
        if (state === 'is down') await sleep(1200); // a restart that was due has come
        say([state, await next, threads.length - length]);
      }
      say(readdirSync(folder));
    `);
    await host.ends(...states.map((state) => [state, 'EmptyError', 0]), []);
  });

  it('is restarted every second while its port is taken, with one warning per reason, and one line', async (t) => {
    const log = join(makeFolder(t), 'log.jsonl');
    const warnings = collectWarnings(t);
    const workers = collectThreads(t);
    const { server, port, client } = await startServer(t, { host: '127.0.0.1', log });
    const starts: number[] = [performance.now()];
    await workers[0]?.terminate();
    const impostor = createServer((socket) => socket.destroy()).listen(port, '127.0.0.1');
    t.after(() => impostor.close());
    await once(impostor, 'listening');
    await until(() => {
      if (workers.length > starts.length) starts.push(performance.now());
      return workers.length === 4;
    });
    const pauses = starts.slice(1).map((time, index) => time - Number(starts[index]));
    assert.ok(pauses.every((pause) => pause > 950), inspect(pauses));
    impostor.close();
    await reaches(client, ACTIVE);
    assert.equal(await client.pause(), 'ok');
    assert.equal(server.receiveCommand(), 'pause');
    const start = `The web API at 127.0.0.1:${port} stopped and will be restarted: `;
    assert.equal(warnings.length, 2, inspect(warnings));
    assert.ok(warnings.every((warning) => warning.startsWith(start)), inspect(warnings));
    assert.match(String(warnings[1]), /EADDRINUSE/);
    assert.equal(countEvents(readLog(log))['thread'], 1, 'not of the starts that failed');
  });

  it('has its last answer delivered, although it has not told the host of it', async (t) => {
    const host = runHost(t, `
      ${MORTAL}
      ${runFirst('Atomics.notify = () => 0;')}
      const server = await serve();
      obey({ kill });
      say((await server.ask('Which?')).by);
      await server.close();
    `);
    const port = await host.hear<number>();
    const { asks: [{ id }] } = (await ask(port, INFO)).body;
    const talk = new Talk(port);
    assert.equal((await talk.post(`answer?id=${id}&by=ana`, '{"approved":true}')).summary, '200 ok');
    host.order('kill');
    await host.ends('ana');
  });

  it('leaves the history as it was: commands with their outcomes, status, cause and tag', async (t) => {
    collectWarnings(t);
    const workers = collectThreads(t);
    let status = ACTIVE;
    const { server, port } = await startServer(t, { systemStatus: () => status, describe: () => ({ step: 291_750 }) });
    for (const [line, outcome] of [
      ['POST /api/save-state?by=ana@laptop', { value: 'states/ä😀.json' }],
      ['POST /api/save-state?reason=%F0%9F%98%80', { error: new Error('ENOSPC') }],
      ['POST /api/pause?by=ana@laptop&reason=GPU+needed', {}],
    ] as const) {
      await ask(port, line);
      if (server.receiveCommand() === 'pause') status = PAUSED;
      server.report(outcome);
    }
    await ask(port, 'POST /api/resume?by=ben');
    server.receiveCommand(); // running
    server.post('shutdown', { reason: 'SIGTERM' });
    await ask(port, 'POST /api/pause?by=eve');
    const getHistory = async (): Promise<{ tag: unknown; history: SystemInfo }> => {
      const { headers: { etag }, body } = await ask(port, INFO);
      return { tag: etag, history: { ...body, heardAt: '' } };
    };
    await getDetail(port);
    const before = await getHistory();
    for (let deaths = 0; deaths < 2; deaths += 1) {
      await workers.at(-1)?.terminate();
      await until(async () => (await exchange(port, head(STATUS, HOST), 1)).length > 0);
      await getDetail(port);
      assert.deepEqual(await getHistory(), before);
    }
    await ask(port, 'POST /api/save-state');
    const { tag, history } = await getHistory();
    assert.notEqual(tag, before.tag);
    assert.match(String(history.commands.at(-1)?.id), /-7$/);
  });

  it('is replaced once the host yields, but not while it blocks in nextCommandSync()', async (t) => {
    const port = await freePort();
    const host = runHost(t, `
      ${MORTAL}
      const server = new WebApiServer({ systemStatus: () => PAUSED, host: '127.0.0.1', port: ${port} });
      await server.runInBackground();
      await kill();
      say(server.nextCommandSync({ timeout: 1200 })); // a restart was due
      say(threads.length);
      await another();
      say(server.nextCommandSync());
      await server.close();
    `);
    const client = clientAt(t, { host: '127.0.0.1', port });
    assert.deepEqual([await host.hear(), await host.hear()], [null, 1]);
    await reaches(client, PAUSED);
    assert.equal(await client.resume(), 'ok');
    await host.ends('resume');
  });
});
