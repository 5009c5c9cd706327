// Server threads that die: the host continues, and a new thread takes over. The model checks that every command is
// delivered exactly once meanwhile.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { describe, it } from 'node:test';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import {
  LIMIT, clientAt, collectThreads, collectWarnings, freePort, getDetail, makeFolder, startServer, until,
} from '../helpers.ts';
import { runHost } from '../host.ts';
import { HOST, INFO, PAUSE, STATUS, WAIT, ask, exchange, head, wait, waitAll } from '../http.ts';
import { lacks } from '../needs.ts';
import { SystemStatus, WebApiServer } from '../../../control.ts';
import type { CommandOutcome, ControlCommand, SystemInfo } from '../../../control.ts';

const { ACTIVE, PAUSED } = SystemStatus;

const LOCAL = "host: '127.0.0.1', port: 0";

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
  // In a turn of its own: on Node 20, a thread that ends within the HTTP parser may abort the process.
  const DEATHS: [name: string, statement: string, reason: RegExp][] = [
    ['calls process.exit()', 'setImmediate(() => process.exit(3))', /: its thread exited$/],
    ['throws', "setImmediate(() => { throw new Error('poison'); })", /: poison$/],
    ['runs out of memory', 'setImmediate(() => { for (const all = [];;) all.push(Array(1e6).fill(0)); })', /memory/],
  ];

  it('is replaced at the same address with the same queue and a warning, whatever the cause', async (t) => {
    const host = runHost(t, `
      import { Session } from 'node:inspector';
      ${MORTAL}
      // A debugger can run statements in the threads of its process.
      const session = new Session();
      session.connect();
      session.on('NodeWorker.attachedToWorker', ({ params }) => (session.thread = params.sessionId));
      session.post('NodeWorker.enable', { waitForDebuggerOnStart: false });
      const die = (expression) => session.post('NodeWorker.sendMessageToWorker', {
        sessionId: session.thread,
        message: JSON.stringify({ id: 1, method: 'Runtime.evaluate', params: { expression } }),
      });

      process.on('warning', ({ name, message }) => say(name + ': ' + message));
      const server = new WebApiServer({ systemStatus: () => ACTIVE, ${LOCAL} });
      say((await server.runInBackground()).port);
      const alive = setInterval(() => {}, 1000);
      obey({
        take() {
          const taken = [];
          while (server.hasCommands()) taken.push(server.receiveCommand());
          say(taken);
        },
        ${DEATHS.map(([name, statement]) => `${inspect(name)}: () => die(${JSON.stringify(statement)})`)},
        exit: () => process.exit(),
      });
    `);
    const port = await host.hear<number>();
    const client = clientAt(t, { host: '127.0.0.1', port });
    for (const [name, , reason] of DEATHS) {
      assert.equal(await client.pause(), 'ok');
      host.order(name);
      const warning = await host.hear<string>();
      const start = `ControlWarning: The web API at 127.0.0.1:${port} stopped and will be restarted: `;
      assert.ok(warning.startsWith(start) && reason.test(warning), warning);
      await client.waitFor(ACTIVE);
      assert.equal(await client.resume(), 'ok');
      host.order('take');
      assert.deepEqual(await host.hear(), ['pause', 'resume'], name);
    }
    host.order('exit');
    await host.ends();
  });

  it('leaves a host asleep in nextCommand(), which keeps the process alive until the next command', async (t) => {
    const host = runHost(t, `
      ${MORTAL}
      let status = ACTIVE;
      const server = new WebApiServer({ systemStatus: () => status, ${LOCAL} });
      say((await server.runInBackground()).port);
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
    await client.waitFor(PAUSED);
    assert.equal(await client.saveState(), 'ok');
    await host.ends('save-state');
  });

  it('lets the process end while it is down and while it restarts', async (t) => {
    const host = runHost(t, `
      ${MORTAL}
      for (const state of ['restarts', 'is down']) {
        const server = new WebApiServer({ systemStatus: () => ACTIVE, ${LOCAL} });
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
        const place = state === 'restarts' ? { ${LOCAL} } : { socketPath };
        const server = new WebApiServer({ systemStatus: () => ACTIVE, ...place });
        await server.runInBackground();
        const killed = kill();
        if (state !== 'dies') await killed;
        if (state === 'restarts' || state === 'has just restarted') await another();
        if (state === 'has just restarted') await new WebApiClient(undefined, undefined, place).waitFor(ACTIVE);
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

  it('is restarted every second while its port is taken, with one warning per reason', async (t) => {
    const warnings = collectWarnings(t);
    const workers = collectThreads(t);
    const { server, port, client } = await startServer(t, { host: '127.0.0.1' });
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
    await client.waitFor(ACTIVE);
    assert.equal(await client.pause(), 'ok');
    assert.equal(server.receiveCommand(), 'pause');
    const start = `The web API at 127.0.0.1:${port} stopped and will be restarted: `;
    assert.equal(warnings.length, 2, inspect(warnings));
    assert.ok(warnings.every((warning) => warning.startsWith(start)), inspect(warnings));
    assert.match(String(warnings[1]), /EADDRINUSE/);
  });

  it('leaves the history as it was: commands with their outcomes, status, cause and tag', async (t) => {
    collectWarnings(t);
    const workers = collectThreads(t);
    let status = ACTIVE;
    const { server, port } = await startServer(t, { systemStatus: () => status, describe: () => ({ step: 291_750 }) });
    const report = (outcome: CommandOutcome): void => {
      server.receiveCommand();
      server.report(outcome);
    };
    await ask(port, 'POST /api/save-state?by=ana@laptop');
    report({ value: 'states/ä😀.json' });
    await ask(port, 'POST /api/save-state?reason=%F0%9F%98%80');
    report({ error: new Error('ENOSPC') });
    await sleep(2); // commands of the same millisecond have no order
    server.post('save-state', { reason: 'SIGUSR2' });
    report({ value: -0.5 });
    await sleep(2);
    await ask(port, 'POST /api/pause?by=ana@laptop&reason=GPU+needed');
    server.receiveCommand();
    status = PAUSED;
    server.report({});
    await ask(port, 'POST /api/resume?by=ben');
    server.receiveCommand(); // running
    await sleep(2);
    server.post('shutdown', { reason: 'SIGTERM' });
    await sleep(2);
    await ask(port, 'POST /api/pause?by=eve');
    const getHistory = async (): Promise<{ tag: unknown; history: SystemInfo }> => {
      const { headers: { etag }, body } = await ask(port, INFO);
      return { tag: etag, history: { ...body, heardAt: '' } };
    };
    await getDetail(port);
    const before = await getHistory();
    const { history: { by, reason, detail, commands } } = before;
    assert.deepEqual([by, reason, detail], ['ana@laptop', 'GPU needed', { step: 291_750 }]);
    assert.deepEqual(commands.map(({ by, state, value, error }) => [by, value ?? error ?? state]), [
      ['ana@laptop', 'states/ä😀.json'], [undefined, 'ENOSPC'], ['itself', -0.5], ['ana@laptop', 'done'],
      ['ben', 'running'], ['itself', 'waiting'], ['eve', 'waiting'],
    ]);
    for (let deaths = 0; deaths < 2; deaths += 1) {
      await workers.at(-1)?.terminate();
      await until(async () => (await exchange(port, head(STATUS, HOST), 1)).length > 0);
      await getDetail(port);
      assert.deepEqual(await getHistory(), before);
    }
    await ask(port, 'POST /api/save-state');
    const { tag, history } = await getHistory();
    assert.notEqual(tag, before.tag);
    const ids = history.commands.map(({ id }) => id.replace(/^\w+-/, ''));
    assert.deepEqual(ids, ['1', '2', 'i1', '3', '4', 'i2', '5', '6']);
  });

  it('does not block commands that the program sends itself', async (t) => {
    const warnings = collectWarnings(t);
    const workers = collectThreads(t);
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
    assert.equal(warnings.length, 1);
  });

  it('breaks the waiting connections, and the next thread does not mistake an old command for a new one', async (t) => {
    collectWarnings(t);
    const workers = collectThreads(t);
    const { server, port } = await startServer(t);
    const waiting = await waitAll(t, port, [
      head('POST /api/save-state', HOST, WAIT), head(STATUS, HOST, 'If-None-Match: "active"', WAIT),
    ]);
    const { commands: [{ id: oldId }] } = (await ask(port, INFO)).body;
    await workers[0]?.terminate();
    for (const { connection, response } of waiting) {
      await assert.rejects(response);
      assert.equal(connection.text, '');
    }
    await until(async () => (await exchange(port, head(STATUS, HOST), 1)).length > 0);
    const { response } = await wait(t, port, head(PAUSE, HOST, WAIT));
    for (const command of ['save-state', 'pause']) {
      assert.equal(server.receiveCommand(), command);
      server.report({ value: command });
    }
    const { id, value } = (await response).body;
    assert.equal(value, 'pause');
    assert.notEqual(id, oldId);
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
    await client.waitFor(PAUSED);
    assert.equal(await client.resume(), 'ok');
    await host.ends('resume');
  });
});
