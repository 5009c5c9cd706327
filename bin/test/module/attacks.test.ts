// Clients that are slow, silent, greedy or many: the server disconnects them in time, serves others
// meanwhile, and keeps the host's memory bounded.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { clientAt, startServer } from '../helpers.ts';
import { runHost } from '../host.ts';
import {
  CHUNKED, HOST, PAUSE, SAVE, STATUS, WAIT, Connection, ask, closing, connectTo, exchange, head, open, readToEnd, wait,
} from '../http.ts';
import { lacks } from '../needs.ts';
import { LIMIT, until } from '../wait.ts';
import type { Host } from '../host.ts';
import type { Socket } from 'node:net';
import type { TestContext } from 'node:test';

/** The limits of the server, shortest first. */
const LIMITS = ['at once', 'after 5 s', 'after 10 s', 'after 16 s'] as const;

const SLOW: [name: string, limit: typeof LIMITS[number], code: number | null, attack: (socket: Socket) => void][] = [
  ['the end of a silent connection', 'at once', null, (socket) => socket.end()],
  ['a body without end', 'at once', 413, (socket) => {
    drip(socket, head(PAUSE, HOST, CHUNKED), `2000\r\n${'x'.repeat(0x2000)}\r\n`, 10);
  }],
  ['silence', 'after 5 s', 408, () => {}],
  ['a head, byte by byte', 'after 5 s', 408, (socket) => drip(socket, `${STATUS} HTTP/1.1\r\n${HOST}\r\nX-Slow: `)],
  ['a body, byte by byte', 'after 10 s', 408, (socket) => drip(socket, head(PAUSE, HOST, 'Content-Length: 1000'))],
  ['a body of many chunks', 'at once', 413, (socket) => {
    socket.write(head(PAUSE, HOST, CHUNKED) + '1\r\nx\r\n'.repeat(101));
  }],
  ['an idle connection', 'after 16 s', 200, (socket) => socket.write(head(STATUS, HOST))],
];

const FIELDS = Array<string>(99).fill('a:b'); // with the Host, as many as the server accepts
const MANY_FIELDS = Array<string>(1550).fill('a:b');

/** The server closes the connection of each, if only for the garbage at the end. */
const FLOODS: [maxConnections: number, connections: number, texts: string[]][] = [
  [20, 20, [
    head(STATUS, HOST).repeat(500),
    head(PAUSE, HOST).repeat(500),
    head(STATUS, HOST, ...MANY_FIELDS).repeat(20),
    `${head(STATUS, HOST, ...FIELDS).repeat(120)}GARBAGE\r\n\r\n`,
    `${PAUSE} HTTP/1.1\r\n${HOST}\r\nX-Long: ${'x'.repeat(300_000)}`,
    `${head(PAUSE, HOST, CHUNKED)}${'1\r\nx\r\n'.repeat(5_000)}GARBAGE\r\n\r\n`,
  ]],
  [1000, 200, [head(STATUS, HOST, ...MANY_FIELDS).repeat(30), head(STATUS, HOST, ...FIELDS).repeat(31)]],
];

const HOST_UNDER_ATTACK = `
  let status = ACTIVE;
  const server = await serve({ systemStatus: () => status });
  setInterval(() => { while (server.hasCommands()) server.receiveCommand(); }, 5);
  obey({
    pause: () => (status = PAUSED),
    exit: () => process.exit(),
  });
`;

describe('A server under attack', { ...LIMIT, concurrency: 2 }, () => {
  it('disconnects clients that are slow, silent or endless, but none that waits, and serves the others', async (t) => {
    const host = runHost(t, HOST_UNDER_ATTACK);
    const port = await host.hear<number>();
    const waiting = await wait(t, port, head(STATUS, HOST, 'If-None-Match: "active"', WAIT));
    const order: number[] = [];
    await whileInUse(t, port, async () => {
      await Promise.all(SLOW.map(async ([name, limit, code, attack]) => {
        const socket = await open(t, port);
        const ended = readToEnd(socket);
        attack(socket);
        const codes = [...(await ended).matchAll(/HTTP\/1\.1 (\d+)/g)].map(([, digits]) => Number(digits));
        const isReset = code === 413 && codes.length === 0; // while it wrote, before it has read the response
        assert.deepEqual(codes, code === null || isReset ? [] : [code], name);
        order.push(LIMITS.indexOf(limit));
      }));
    });
    assert.deepEqual(order, [...order].sort(), 'in the order of their limits');
    host.order('pause');
    assert.equal((await waiting.response).summary, '200 paused');
    assert.equal((await waiting.connection.request(head(STATUS, HOST))).summary, '200 paused');
    await checkHost(host, port);
  });

  for (const [maxConnections, connections, texts] of FLOODS) {
    it(`survives floods on ${connections} connections of a program that never yields`, async (t) => {
      const host = runHost(t, `
        const server = await serve({ maxConnections: ${maxConnections} });
        for (;; block(1)) {
          while (server.hasCommands()) if (server.receiveCommand() === 'save-state') say(process.memoryUsage.rss());
        }
      `);
      const port = await host.hear<number>();
      const memory = async (): Promise<number> => {
        assert.equal((await ask(port, SAVE)).statusCode, 200);
        return host.hear();
      };
      const before = await memory();
      for (const text of texts) {
        await Promise.all(Array.from({ length: connections }, async () => {
          const socket = connectTo(port).resume();
          const closed = closing(socket);
          socket.write(text, 'latin1');
          await closed;
        }));
        await checkServed(port); // nobody would replace the thread
      }
      const grown = await memory() - before;
      assert.ok(grown < 200e6, `${Math.round(grown / 1e6)} MB`); // twice the limit of the thread's heap
    });
  }

  it('serves a client while 200 others keep connecting and send nothing', async (t) => {
    const host = runHost(t, HOST_UNDER_ATTACK);
    const port = await host.hear<number>();
    const crowd = new Set<Socket>();
    let isOver = false;
    const join = (): void => {
      const socket = connectTo(port);
      crowd.add(socket);
      socket.on('close', () => {
        crowd.delete(socket);
        if (!isOver) setImmediate(join);
      });
    };
    t.after(() => crowd.forEach((socket) => socket.destroy()));
    for (let count = 0; count < 200; count += 1) join();
    for (let round = 0; round < 5; round += 1) await checkServed(port);
    isOver = true;
    await until(() => crowd.size <= 64, () => `${crowd.size} open connections`);
    for (const socket of crowd) socket.destroy();
    await checkHost(host, port);
  });

  it('survives clients that reset their connections', async (t) => {
    const host = runHost(t, HOST_UNDER_ATTACK);
    const port = await host.hear<number>();
    for (let round = 0; round < 10; round += 1) {
      const connect = head('CONNECT localhost:80', HOST);
      for (const text of [connect, head(STATUS, HOST), head(PAUSE, HOST, CHUNKED), 'GARBAGE\r\n\r\n']) {
        const socket = await open(t, port);
        socket.write(text);
        await sleep(round % 3);
        socket.resetAndDestroy();
      }
    }
    await checkHost(host, port);
  });
});

describe('maxConnections', LIMIT, () => {
  it('limits the connections: a new one replaces the one idle for the longest time', async (t) => {
    const { port } = await startServer(t, { maxConnections: 2 });
    const request = async (socket: Socket): Promise<void> => {
      socket.write(head(STATUS, HOST));
      assert.match(String((await once(socket, 'data'))[0]), /^HTTP\/1\.1 200 /);
    };
    const [first, second] = [await open(t, port), await open(t, port)];
    for (const socket of [first, second, first]) await request(socket);
    for (const replaced of [second, first]) {
      const closed = closing(replaced);
      await request(await open(t, port));
      await closed;
      assert.equal(first.closed, replaced === first);
    }
  });
});

describe('A flood of commands', { ...LIMIT, skip: lacks('Unix') }, () => {
  it('does not hide a signal from launch()', async (t) => {
    const host = runHost(t, `
      let saves = 0;
      await launchHost({
        saveState() {
          block(20);
          saves += 1;
          if (saves === 5) say('flooded');
        },
      });
    `);
    const port = await host.hear<number>();
    const flood = [1, 2, 3].map(async () => {
      const client = clientAt(t, { host: '127.0.0.1', port });
      while (host.process.exitCode === null && host.process.signalCode === null) await client.saveState();
    });
    assert.equal(await host.hear(), 'flooded');
    host.process.kill('SIGTERM');
    await host.ends();
    await Promise.all(flood);
  });
});

/** Sends a beginning, then piece after piece until the connection ends. */
function drip(socket: Socket, beginning: string, piece = 'x', pauseMs = 100): void {
  socket.write(beginning);
  const timer = setInterval(() => socket.write(piece), pauseMs);
  socket.on('close', () => clearInterval(timer));
}

/** Checks that a kept connection and new ones are served while the attacks run. */
async function whileInUse(t: TestContext, port: number, attack: () => Promise<void>): Promise<void> {
  const kept = new Connection(port);
  t.after(() => kept.socket.destroy());
  let isOver = false;
  const use = async (): Promise<void> => {
    for (let round = 0; !isOver; round += 1) {
      assert.equal((await kept.request(head(round % 2 === 0 ? STATUS : PAUSE, HOST))).statusCode, 200);
      assert.equal((await ask(port, STATUS)).summary, '200 active');
      await sleep(100);
    }
  };
  await Promise.all([use(), attack().finally(() => (isOver = true))]);
}

/** A connection that the server has not served yet may have to make room for another: then the client retries. */
async function checkServed(port: number): Promise<void> {
  await until(async () => (await exchange(port, head(STATUS, HOST), 1))[0]?.statusCode === 200);
}

/** The server still runs, and no thread has died: the host would have warned. */
async function checkHost(host: Host, port: number): Promise<void> {
  await checkServed(port);
  host.order('exit');
  await host.ends();
}
