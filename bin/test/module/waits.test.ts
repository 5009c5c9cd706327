// Requests that wait: what ends them, how many there may be, and that they leave nothing behind.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  GET, HOST, INFO, LIMIT, MORTAL, POST, WAIT, ask, closing, exchange, head, open, outcomeOf, runHost, send, sendAll,
  serveOthers, shortOf, takeAll, wait, waitAll, within,
} from './helpers.ts';
import { startServer as start, until } from '../helpers.ts';
import { SystemStatus } from '../../../control.ts';
import type { ControlCommand } from '../../../control.ts';
import type { TestContext } from 'node:test';

const { ACTIVE, PAUSED } = SystemStatus;

const WAITING_POST = head(POST, HOST, WAIT);
const WAITING_GET = head(GET, HOST, 'If-None-Match: "active"', WAIT);
const WAITING_INFO = head(INFO, HOST, 'If-None-Match: *', WAIT); // whatever changes
const CLOSE = 'Connection: close';

describe('A request that waits', { ...LIMIT, concurrency: 4 }, () => {
  const KINDS: [name: string, request: string, ended: string, endedAtOnce: RegExp][] = [
    ['command', WAITING_POST, '202 waiting wait=60', /^202 waiting wait=60$/],
    ['status', WAITING_GET, '304 wait=60', /^304( wait=60)?$/],
    ['info', WAITING_INFO, '304 wait=60', /^304( wait=60)?$/],
  ];
  const BEHIND: [name: string, bytes: string, outcomes: string[]][] = [
    ['another request', head('GET /', HOST, CLOSE), ['404']],
    ['a command', head('POST /api/resume', HOST, CLOSE), ['ok']],
    ['others that wait', head('POST /api/resume', HOST, WAIT) + WAITING_GET + head('HEAD /api/status', HOST, CLOSE),
      ['202 waiting wait=60', '304 wait=60', '200']],
    ['a malformed request', 'GARBAGE\r\n\r\n', ['400']],
    ['CONNECT', head('CONNECT localhost:80', HOST), ['501']],
    ['a request with too long a body', head(POST, HOST, 'Content-Length: 65537'), ['413']],
    ['the end of its side', '', []],
  ];
  for (const [name, request, ended, endedAtOnce] of KINDS) {
    it(`ends when another one is pipelined behind it, or its client ends its side: ${name}`, async (t) => {
      const { port } = await start(t, { maxQueueSize: 1000 });
      for (const [behind, bytes, outcomes] of BEHIND) {
        const later = await wait(t, port, request);
        const atOnce = await ask(t, port, request + bytes);
        if (bytes !== '') later.socket.write(bytes);
        else for (const { socket } of [later, atOnce]) socket.end();
        assert.deepEqual((await within(5000, later.responses))?.map(shortOf), [ended, ...outcomes], behind);
        const responses = await within(5000, atOnce.responses);
        const [first = 'none', ...others] = responses?.map(shortOf) ?? [];
        assert.deepEqual(others, outcomes, behind);
        assert.match(first, endedAtOnce, behind);
      }
    });
  }

  it('waits although another one before it is pending', async (t) => {
    const { server, port } = await start(t);
    const { response, text } = await ask(t, port, head(GET, HOST) + WAITING_POST);
    assert.equal(outcomeOf(await response), 'active');
    await serveOthers(port);
    assert.match(text(), /\{"status":"active"\}$/);
    assert.deepEqual(takeAll(server), ['pause']);
    await until(() => /"state":"done"/.test(text()));
  });

  it('holds one of maxConnections - 16 places; a further one gets its response at once', async (t) => {
    for (const [maxConnections, places] of [[1, 0], [16, 0], [17, 1], [20, 4]] as const) {
      const { port } = await start(t, { maxConnections });
      await waitAll(t, port, Array(places).fill(WAITING_GET));
      await checkNoPlace(port, `${maxConnections}`);
    }
  });

  it('does not keep others from being served: 48 wait by default', async (t) => {
    let status = ACTIVE;
    const { server, port } = await start(t, { systemStatus: () => status, maxQueueSize: 100 });
    const commands = await waitAll(t, port, Array(16).fill(WAITING_POST));
    const gets = await waitAll(t, port, Array(16).fill(WAITING_GET));
    const { headers: { etag } } = await send(port, INFO);
    const infos = await waitAll(t, port, Array(16).fill(head(INFO, HOST, `If-None-Match: ${etag}`, WAIT)));
    await checkNoPlace(port, 'all 48'); // sends a command, which is news
    for (const { response } of infos) assert.equal(shortOf(await response), 'active wait=60');
    status = PAUSED;
    server.hasCommands();
    for (const { response } of gets) assert.equal(shortOf(await response), 'paused wait=60');
    assert.equal(takeAll(server).length, 17); // and that of checkNoPlace()
    for (const { response } of commands) assert.equal(shortOf(await response), 'done wait=60');
  });

  it('frees its place at once when its client goes away', async (t) => {
    const { port } = await start(t, { maxConnections: 17, maxQueueSize: 1000 });
    for (const [name, request] of KINDS) {
      for (const leave of ['destroy', 'resetAndDestroy', 'end'] as const) {
        const { socket } = await wait(t, port, request);
        await checkNoPlace(port, name);
        socket[leave]();
        const began = performance.now();
        await until(() => hasPlace(t, port));
        assert.ok(performance.now() - began < 1000, `${name}, ${leave}`);
      }
    }
  });

  it('is not cut to make room for others', async (t) => {
    const { server, port } = await start(t, { maxConnections: 18 });
    const waiting = await waitAll(t, port, [WAITING_POST, WAITING_GET]);
    for (let count = 0; count < 40; count += 1) await open(t, port);
    await serveOthers(port);
    await server.close();
    assert.deepEqual(await Promise.all(waiting.map(({ response }) => response.then(shortOf))), [
      '202 waiting wait=60', '304 wait=60',
    ]);
  });

  it('is not cut for idleness, neither before nor right after its response', async (t) => {
    const host = runHost(t, `
      ${MORTAL}
      epilogue += ';{ const real = setInterval; globalThis.setInterval = (tick, ms) => real(tick, ms / 30); }';
      let status = ACTIVE;
      const server = new WebApiServer({ systemStatus: () => status, host: '127.0.0.1', port: 0 });
      say((await server.runInBackground()).port);
      setInterval(() => {}, 1000);
      orders.pause = () => server.hasCommands(status = PAUSED);
    `);
    const port = await host.hear<number>();
    const waiting = await wait(t, port, WAITING_GET);
    let text = '';
    waiting.socket.on('data', (chunk: string) => (text += chunk));
    const idle = await open(t, port);
    idle.resume().write(head(GET, HOST));
    await closing(idle); // after half a second
    await sleep(500);
    host.tell('pause');
    assert.equal(shortOf(await waiting.response), 'paused wait=60');
    await sleep(150);
    text = '';
    waiting.socket.write(head(GET, HOST, CLOSE));
    await closing(waiting.socket);
    assert.match(text, /\{"status":"paused"\}$/);
  });

  it('ends when the server is closed, and so does its connection', async (t) => {
    const { server, port } = await start(t);
    const waiting = await waitAll(t, port, KINDS.map(([, request]) => request));
    const began = performance.now();
    await server.close();
    assert.ok(performance.now() - began < 500, 'nobody is waited for');
    const responses = (await Promise.all(waiting.map((one) => one.responses))).flat();
    assert.deepEqual(responses.map(shortOf), KINDS.map(([, , ended]) => ended));
    assert.deepEqual(responses.map(({ headers }) => headers.connection), ['close', 'close', 'close']);
    assert.deepEqual(takeAll(server), ['pause']);
  });

  it('is told that the shutdown is done before the process ends', async (t) => {
    const host = runHost(t, `
      const server = new WebApiServer({ systemStatus: () => SHUTTING_DOWN, host: '127.0.0.1', port: 0 });
      say((await server.runInBackground()).port);
      say(await server.nextCommand());
      block(200); // the last save
      await server.close();
      process.exit();
    `);
    const port = await host.hear<number>();
    const first = send(port, 'POST /api/shutdown', WAIT);
    assert.equal(await host.hear(), 'shutdown');
    const responses = await Promise.all([first, send(port, POST, WAIT)]);
    assert.deepEqual(responses.map(shortOf), ['done wait=60', '202 waiting wait=60']);
    assert.equal(responses[1].headers.connection, 'close');
    await host.checkEnd();
  });

  it('breaks with the thread, and the next thread takes no old command for a new one', async (t) => {
    const host = runHost(t, `
      ${MORTAL}
      const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0 });
      hold();
      say((await server.runInBackground()).port);
      setInterval(() => {}, 1000);
      orders.kill = () => kill(null);
      orders.take = () => {
        const command = server.receiveCommand();
        server.report({ value: command });
        say(command);
      };
    `);
    const port = await host.hear<number>();
    await send(port, POST);
    const [before] = JSON.parse((await send(port, INFO)).body).commands;
    host.tell('take');
    assert.equal(await host.hear(), 'pause');
    const broken = await waitAll(t, port, [head('POST /api/save-state', HOST, WAIT), WAITING_GET]);
    host.tell('kill');
    assert.equal(await host.hear(), 'gone');
    for (const { responses } of broken) assert.deepEqual(await responses, []);
    host.tell('release');
    await until(async () => (await exchange(port, [head(GET, HOST)], 1)) !== '');
    assert.deepEqual(JSON.parse((await send(port, INFO)).body).commands, []);

    const { response } = await wait(t, port, head('POST /api/resume', HOST, WAIT));
    for (const command of ['save-state', 'resume']) {
      host.tell('take');
      assert.equal(await host.hear(), command);
    }
    const { id, value } = JSON.parse((await response).body);
    assert.equal(value, 'resume');
    const [prefix, number] = before.id.split('-');
    assert.equal(id, `${prefix}-${Number(number) + 2}`);
  });

  it('leaves nothing behind if it is broken off: 1,000 of them', async (t) => {
    const { server, port } = await start(t, { maxQueueSize: 1000 });
    const taken: ControlCommand[] = [];
    for (let count = 0; count < 1000; count += 40) {
      const requests = Array.from({ length: 40 }, (_, index) => KINDS[index % 3]?.[1] as string);
      const waiting = await waitAll(t, port, requests);
      for (const [index, { socket }] of waiting.entries()) {
        if (index % 2 === 0) socket.destroy();
        else socket.resetAndDestroy();
      }
      await serveOthers(port); // the server has noticed
      taken.push(...takeAll(server));
    }
    assert.equal(taken.length, 25 * 14);
    await waitAll(t, port, Array(48).fill(WAITING_GET));
    await checkNoPlace(port, 'after 1000');
  });

  async function checkNoPlace(port: number, name: string): Promise<void> {
    const shorts: string[] = [];
    for (const request of [WAITING_GET, WAITING_INFO, WAITING_POST]) {
      shorts.push(...(await sendAll(port, [request])).map(shortOf));
    }
    assert.deepEqual(shorts, ['304', '304', 'ok'], name);
  }

  /** Tries to wait, and leaves again. */
  async function hasPlace(t: TestContext, port: number): Promise<boolean> {
    const { socket, text } = await ask(t, port, WAITING_GET);
    await serveOthers(port);
    socket.resetAndDestroy();
    await serveOthers(port); // the server has noticed
    return text() === '';
  }
});
