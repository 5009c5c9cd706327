// Requests that wait: what ends them, their limit, and that they leave nothing behind.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { LIMIT, collectWarnings, startServer, takeAll, until } from '../helpers.ts';
import { runHost } from '../host.ts';
import {
  HOST, INFO, PAUSE, STATUS, WAIT, Connection, ask, askInTurn, head, open, serveOthers, wait, waitAll,
} from '../http.ts';
import { shortOf } from './helpers.ts';
import { SystemStatus } from '../../../control.ts';
import type { Where } from '../http.ts';
import type { ControlCommand } from '../../../control.ts';

const { ACTIVE, PAUSED } = SystemStatus;

const WAITING_POST = head(PAUSE, HOST, WAIT);
const WAITING_GET = head(STATUS, HOST, 'If-None-Match: "active"', WAIT);
const WAITING_INFO = head(INFO, HOST, 'If-None-Match: *', WAIT); // whatever changes

/** Each with the response if nothing happens. */
const KINDS: [name: string, request: string, ended: string][] = [
  ['command', WAITING_POST, '202 waiting wait=60'],
  ['status', WAITING_GET, '304 wait=60'],
  ['info', WAITING_INFO, '304 wait=60'],
];

describe('A request that waits while others flood a queue of one', LIMIT, () => {
  it('gets the outcome of its own command, although the slot of that command is soon used again', async (t) => {
    const host = runHost(t, `
      import { connect } from 'node:net';
      import { once } from 'node:events';
      const options = { systemStatus: () => ACTIVE, ...place, maxQueueSize: 1, maxConnections: 100 };
      const server = new WebApiServer(options);
      const { port } = await server.runInBackground();
      const open = async () => {
        const socket = connect(port, '127.0.0.1');
        await once(socket, 'connect');
        socket.setEncoding('utf8').on('data', (text) => (socket.text += text));
        return socket;
      };
      const request = (line, field = '') => line + ' HTTP/1.1\\r\\nHost: localhost\\r\\n' + field + '\\r\\n';
      const sockets = await Promise.all(Array.from({ length: 80 }, open));
      let count = 0;
      for (let round = 0; round < 200 && count < 12; round += 1) {
        const keepsBusy = await open(); // the thread, so that it then finds all other requests at once
        keepsBusy.write(request('GET /api/info').repeat(300));
        for (const [index, socket] of sockets.entries()) {
          socket.text = '';
          socket.write(request('POST /api/save-state', index === 0 ? 'Prefer: wait=5\\r\\n' : ''));
        }
        for (const end = performance.now() + 150; performance.now() < end;) { // never yields
          if (!server.hasCommands()) continue;
          server.receiveCommand();
          server.report({ value: server.request.id });
        }
        await sleep(20);
        keepsBusy.destroy();
        const { id, value, error } = JSON.parse(sockets[0].text.split('\\r\\n\\r\\n')[1] || '{}');
        if (id === undefined) continue; // the queue was full
        count += 1;
        if (id !== value) say({ id, value, error });
      }
      say(count);
      process.exit();
    `);
    assert.deepEqual(await host.hearAll(), [12]);
  });
});

describe('A request that waits', { ...LIMIT, concurrency: true }, () => {
  it('gets a 500 as soon as systemStatus() fails', async (t) => {
    collectWarnings(t);
    let isLost = false;
    const { server, port } = await startServer(t, { systemStatus: () => (isLost ? assert.fail('lost') : ACTIVE) });
    const { response } = await wait(t, port, WAITING_GET);
    isLost = true;
    server.hasCommands();
    assert.equal(shortOf(await response), '500 wait=60');
  });

  it('holds one of maxConnections - 16 places; a further one gets its response at once', async (t) => {
    for (const [maxConnections, places] of [[16, 0], [20, 4]] as const) {
      const { port } = await startServer(t, { maxConnections });
      await waitAll(t, port, Array(places).fill(WAITING_GET));
      await checkNoPlace(port, `${maxConnections}`);
    }
  });

  it('does not block other requests: 48 wait by default', async (t) => {
    let status = ACTIVE;
    const { server, port } = await startServer(t, { systemStatus: () => status, maxQueueSize: 100 });
    const commands = await waitAll(t, port, Array(16).fill(WAITING_POST));
    const gets = await waitAll(t, port, Array(16).fill(WAITING_GET));
    const { headers: { etag } } = await ask(port, INFO);
    const infos = await waitAll(t, port, Array(16).fill(head(INFO, HOST, `If-None-Match: ${etag}`, WAIT)));
    await checkNoPlace(port, 'all 48'); // sends a command, which is news
    for (const { response } of infos) assert.equal(shortOf(await response), 'active wait=60');
    status = PAUSED;
    server.hasCommands();
    for (const { response } of gets) assert.equal(shortOf(await response), 'paused wait=60');
    assert.equal(takeAll(server).length, 17); // and that of checkNoPlace()
    for (const { response } of commands) assert.equal(shortOf(await response), 'done wait=60');
  });

  it('does not slow the others, however long its fields are: 48 of them', async (t) => {
    const { server, port } = await startServer(t);
    const host = setInterval(() => server.hasCommands(), 1);
    t.after(() => clearInterval(host));
    const medianMs = async (): Promise<number> => {
      const times: number[] = [];
      const connection = new Connection(port);
      for (let count = 0; count < 200; count += 1) {
        const began = performance.now();
        await connection.request(head(STATUS, HOST));
        times.push(performance.now() - began);
      }
      connection.socket.destroy();
      return times.sort((one, other) => one - other)[100] as number;
    };
    const before = await medianMs();
    const tags = `If-None-Match: ${'"a",'.repeat(1900)}"active"`;
    await waitAll(t, port, [
      ...Array(24).fill(head(STATUS, HOST, tags, WAIT)),
      ...Array(12).fill(head(STATUS, HOST, 'If-None-Match: "active"', `Prefer: ${'wait ,'.repeat(1300)}wait=60`)),
      ...Array(12).fill(head(PAUSE, HOST, `Prefer: ${'x,'.repeat(3900)}wait=60`)),
    ]);
    const after = await medianMs();
    assert.ok(after < 3 * before + 2, `${before} ms, then ${after} ms`);
  });

  it('gets the outcome even if the command is done before the wait begins: 2,000 commands', async (t) => {
    const host = runHost(t, `
      const server = await serve();
      for (let isOver = false, count = 0; !isOver;) {
        if (!server.hasCommands()) continue; // never yields
        isOver = server.receiveCommand() === 'shutdown';
        server.report({ value: count += 1 });
      }
      await server.close();
    `);
    const port = await host.hear<number>();
    const connection = new Connection(port);
    for (let count = 1; count <= 2000; count += 1) {
      const { statusCode, body: { state, value } } = await connection.request(WAITING_POST);
      assert.deepEqual([statusCode, state, value], [200, 'done', count]);
    }
    connection.socket.destroy();
    await ask(port, 'POST /api/shutdown');
    await host.ends();
  });

  it('frees its place when its client goes away', async (t) => {
    const { port } = await startServer(t, { maxConnections: 17, maxQueueSize: 1000 });
    for (const [[name, request], leave] of [
      [KINDS[0], 'destroy'], [KINDS[1], 'resetAndDestroy'], [KINDS[2], 'end'], [KINDS[0], 'end'],
    ] as [typeof KINDS[number], 'destroy' | 'resetAndDestroy' | 'end'][]) {
      const { connection } = await wait(t, port, request);
      await checkNoPlace(port, name);
      connection.socket[leave]();
      await until(() => hasPlace(port), () => `${name}, ${leave}`);
    }
  });

  it('is not broken to make room for others', async (t) => {
    const { server, port } = await startServer(t, { maxConnections: 18 });
    const waiting = await waitAll(t, port, [WAITING_POST, WAITING_GET]);
    for (let count = 0; count < 40; count += 1) await open(t, port);
    await serveOthers(port);
    await server.close();
    assert.deepEqual(await Promise.all(waiting.map(({ response }) => response.then(shortOf))), [
      '202 waiting wait=60', '304 wait=60',
    ]);
  });

  it('ends when the client ends its side or the server is closed, and so does its connection', async (t) => {
    const { server, port } = await startServer(t);
    for (const who of ['client', 'server'] as const) {
      const waiting = await waitAll(t, port, KINDS.map(([, request]) => request));
      if (who === 'client') for (const { connection } of waiting) connection.socket.end();
      else await server.close();
      const responses = await Promise.all(waiting.map(({ response }) => response));
      assert.deepEqual(responses.map(shortOf), KINDS.map(([, , ended]) => ended), who);
      await Promise.all(waiting.map(({ connection }) => connection.closed));
    }
    assert.deepEqual(takeAll(server), ['pause', 'pause'], 'the commands stand');
  });

  it('leaves nothing behind if its client breaks it: 400 of them', async (t) => {
    const { server, port } = await startServer(t, { maxQueueSize: 1000 });
    const taken: ControlCommand[] = [];
    for (let count = 0; count < 400; count += 40) {
      const requests = Array.from({ length: 40 }, (_, index) => KINDS[index % 3]?.[1] as string);
      const waiting = await waitAll(t, port, requests);
      for (const [index, { connection }] of waiting.entries()) {
        if (index % 2 === 0) connection.socket.destroy();
        else connection.socket.resetAndDestroy();
      }
      await serveOthers(port); // the server has noticed
      taken.push(...takeAll(server));
    }
    assert.equal(taken.length, 10 * 14);
    await waitAll(t, port, Array(48).fill(WAITING_GET));
    await checkNoPlace(port, 'after 400');
  });

  async function checkNoPlace(where: Where, name: string): Promise<void> {
    const responses = await askInTurn(where, [WAITING_GET, WAITING_INFO, WAITING_POST]);
    assert.deepEqual(responses.map(shortOf), ['304', '304', 'ok'], name);
  }

  /** Tries to wait, and leaves again. */
  async function hasPlace(where: Where): Promise<boolean> {
    const connection = new Connection(where);
    connection.request(WAITING_GET).catch(() => {});
    await serveOthers(where);
    const hasPlace = connection.text === '' && !connection.socket.closed;
    connection.socket.resetAndDestroy();
    await serveOthers(where); // the server has noticed
    return hasPlace;
  }
});
