// Requests that wait: what ends them, their limit, and that they leave nothing behind.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../control.ts';
import { collectWarnings, startServer, takeAll } from '../helpers.ts';
import { runHost } from '../host.ts';
import {
  HOST, INFO, PAUSE, SAVE, STATUS, WAIT, Connection, ask, exchange, head, open, serveOthers, wait, waitAll,
} from '../http.ts';
import { lacks } from '../needs.ts';
import { LIMIT, until } from '../wait.ts';
import type { HttpResponse, Where } from '../http.ts';

const { ACTIVE, PAUSED } = SystemStatus;

const WAITING_POST = head(PAUSE, HOST, WAIT);
const WAITING_GET = head(STATUS, HOST, 'If-None-Match: "active"', WAIT);
const WAITING_INFO = head(INFO, HOST, 'If-None-Match: *', WAIT); // whatever changes

/** Each with the response if nothing happens. */
const KINDS: [request: string, ended: string][] = [
  [WAITING_GET, '304 wait=60'], [WAITING_INFO, '304 wait=60'], [WAITING_POST, '202 waiting wait=60'],
];

/** In short: the response, and the wait that was granted. */
function shortOf({ summary, headers }: HttpResponse): string {
  return [summary, headers['preference-applied'] ?? []].flat().join(' ');
}

describe('A request that waits while others flood a queue of one', { ...LIMIT, skip: lacks('Unix') }, () => {
  it('gets the outcome of its own command, although the slot of that command is soon used again', async (t) => {
    const host = runHost(t, `
      const options = { systemStatus: () => ACTIVE, ...place, maxQueueSize: 1, maxConnections: 300 };
      const server = new WebApiServer(options);
      say((await server.runInBackground()).port);
      for (;;) {
        server.nextCommandSync();
        server.report({ value: server.request.reason });
      }
    `);
    const port = await host.hear<number>();
    const connections = Array.from({ length: 100 }, () => new Connection(port));
    await Promise.all(connections.map((one) => one.request(head(STATUS, HOST))));
    let done = 0;
    for (let round = 0; round < 5; round += 1) {
      host.process.kill('SIGSTOP'); // the thread then finds all requests at once
      const responses = connections.map((one, index) => {
        return one.request(head(`${SAVE}?reason=${round}.${index}`, HOST, WAIT));
      });
      await sleep(20);
      host.process.kill('SIGCONT');
      for (const [index, { statusCode, body }] of (await Promise.all(responses)).entries()) {
        if (statusCode === 503) continue; // the queue was full
        assert.equal(body.value, `${round}.${index}`);
        done += 1;
      }
    }
    assert.ok(done > 0);
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
    assert.equal(shortOf(await response), '500 Internal server error wait=60');
  });

  it('holds one of maxConnections - 16 places: 48; a further one gets its response at once', async (t) => {
    await checkNoPlace((await startServer(t, { maxConnections: 16 })).port);
    let status = ACTIVE;
    const { server, port } = await startServer(t, { systemStatus: () => status, maxQueueSize: 100 });
    const commands = await waitAll(t, port, Array(16).fill(WAITING_POST));
    const gets = await waitAll(t, port, Array(16).fill(WAITING_GET));
    const { headers: { etag } } = await ask(port, INFO);
    const infos = await waitAll(t, port, Array(16).fill(head(INFO, HOST, `If-None-Match: ${etag}`, WAIT)));
    await checkNoPlace(port); // sends a command, which is news
    for (const { response } of infos) assert.equal(shortOf(await response), '200 active wait=60');
    status = PAUSED;
    server.hasCommands();
    for (const { response } of gets) assert.equal(shortOf(await response), '200 paused wait=60');
    assert.equal(takeAll(server).length, 17); // and that of checkNoPlace()
    for (const { response } of commands) assert.equal(shortOf(await response), '200 done wait=60');
  });

  it('frees its place when its client goes away', async (t) => {
    const { port } = await startServer(t, { maxConnections: 17, maxQueueSize: 1000 });
    for (const [request, leave] of [
      [WAITING_POST, 'destroy'], [WAITING_GET, 'resetAndDestroy'], [WAITING_INFO, 'end'], [WAITING_POST, 'end'],
    ] as const) {
      const { connection } = await wait(t, port, request);
      await checkNoPlace(port);
      connection.socket[leave]();
      await until(() => hasPlace(port), () => `${request}, ${leave}`);
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

  it('ends when the client ends its side or the server is closed, and so does its connection', {
    timeout: 50_000, // less than the wait
  }, async (t) => {
    const { server, port } = await startServer(t);
    for (const who of ['client', 'server'] as const) {
      const waiting = await waitAll(t, port, KINDS.map(([request]) => request));
      if (who === 'client') for (const { connection } of waiting) connection.socket.end();
      else await server.close();
      const responses = await Promise.all(waiting.map(({ response }) => response));
      assert.deepEqual(responses.map(shortOf), KINDS.map(([, ended]) => ended), who);
      await Promise.all(waiting.map(({ connection }) => connection.closed));
    }
    assert.deepEqual(takeAll(server), ['pause', 'pause'], 'the commands stand');
  });

  async function checkNoPlace(where: Where): Promise<void> {
    const responses: string[] = [];
    for (const [request] of KINDS) responses.push(...(await exchange(where, request, 1)).map(shortOf));
    assert.deepEqual(responses, ['304', '304', '200 ok']);
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
