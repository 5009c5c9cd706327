// Clients that are slow, silent, greedy or many: they are disconnected in time, others are served meanwhile, and the
// host's memory stays bounded.

import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  CHUNKED, GET, HOST, LIMIT, MORTAL, POST, closing, connectTo, exchange, head, open, outcomeOf, readToEnd, runHost, send,
  sendAll, within,
} from './helpers.ts';
import { clientAt, lacksSockets, until } from '../helpers.ts';
import type { Host } from './helpers.ts';
import type { Socket } from 'node:net';
import type { TestContext } from 'node:test';

const SLOW: [name: string, fromMs: number, toMs: number, code: number | null, attack: (socket: Socket) => void][] = [
  ['silence', 4500, 10_000, 408, () => {}],
  ['a head, byte by byte', 4500, 10_000, 408, (socket) => drip(socket, `${GET} HTTP/1.1\r\n${HOST}\r\nX-Slow: `)],
  ['a body, byte by byte', 9500, 16_000, 408, (socket) => drip(socket, head(POST, HOST, 'Content-Length: 1000'))],
  ['a body without end', 0, 3000, 413, (socket) => {
    drip(socket, head(POST, HOST, CHUNKED), `2000\r\n${'x'.repeat(0x2000)}\r\n`, 50);
  }],
  ['an idle connection', 14_000, 20_000, 200, (socket) => socket.write(head(GET, HOST))],
  ['the end of a silent connection', 0, 3000, null, (socket) => socket.end()],
  ['the end within a head', 0, 3000, 400, (socket) => socket.end('GET /api')],
  ['the end within a body', 0, 3000, 400, (socket) => socket.end(`${head(POST, HOST, 'Content-Length: 1000')}x`)],
  ['the promise of a gigabyte', 0, 3000, 413, (socket) => {
    socket.write(head(POST, HOST, 'Content-Length: 1000000000'));
  }],
  ['a head of more than 8 KiB', 0, 3000, 431, (socket) => {
    socket.write(`${GET} HTTP/1.1\r\n${HOST}\r\nX-Long: ${'x'.repeat(8200)}`);
  }],
];

/** The server closes the connection of each, if only for the garbage at the end. */
const FLOODS = [
  head(GET, HOST).repeat(4000),
  head(POST, HOST).repeat(4000),
  ...Array<string>(3).fill(head(GET, HOST, ...Array<string>(1550).fill('a:b')).repeat(30)),
  `${head(GET, HOST, ...Array<string>(99).fill('a:b')).repeat(120)}GARBAGE\r\n\r\n`,
  `${POST} HTTP/1.1\r\n${HOST}\r\nX-Long: ${'x'.repeat(1_000_000)}`,
  `${head(POST, HOST, CHUNKED)}${'1\r\nx\r\n'.repeat(5_000)}GARBAGE\r\n\r\n`,
];

const MAX_GROWTH = 20e6; // bytes of the host's memory: what V8 may keep for the next attack

const HOST_UNDER_ATTACK = `
  ${MORTAL}
  const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0 });
  say((await server.runInBackground()).port);
  setInterval(() => { while (server.hasCommands()) server.receiveCommand(); }, 5);
  orders.memory = () => say(process.memoryUsage.rss());
  orders.threads = () => say(threads.length);
`;

describe('A server under attack', { ...LIMIT, concurrency: true }, () => {
  it('disconnects clients that are slow, silent or endless, and serves the others', async (t) => {
    const host = runHost(t, HOST_UNDER_ATTACK);
    const port = await host.hear<number>();
    const before = await warmUp(t, host, port);
    await whileInUse(t, port, true, async () => {
      const attacks = SLOW.map(async ([name, fromMs, toMs, code, attack]) => {
        const socket = await open(t, port);
        const began = performance.now();
        const ended = readToEnd(socket);
        attack(socket);
        const text = await within(toMs, ended);
        const tookMs = performance.now() - began;
        assert.ok(text !== undefined, `${name}: still connected after ${toMs} ms`);
        assert.ok(tookMs >= fromMs, `${name}: disconnected after ${tookMs} ms`);
        const codes = [...text.matchAll(/HTTP\/1\.1 (\d+)/g)].map(([, digits]) => Number(digits));
        const isReset = code === 413 && codes.length === 0; // while it wrote, before it has read the response
        assert.deepEqual(codes, code === null || isReset ? [] : [code], name);
      });
      await Promise.all([...attacks, checkDeafClient(t, port)]);
    });
    await checkHost(host, port, before);
  });

  it('survives floods on all connections', async (t) => {
    const host = runHost(t, HOST_UNDER_ATTACK);
    const port = await host.hear<number>();
    const before = await warmUp(t, host, port);
    await whileInUse(t, port, false, async () => {
      for (const text of FLOODS) {
        const sockets = await Promise.all(Array.from({ length: 62 }, () => openSoon(t, port)));
        await Promise.all(sockets.map(async (socket) => {
          socket.resume();
          socket.write(text, 'latin1');
          await within(24_000, closing(socket));
          assert.ok(socket.closed, `still connected after ${text.slice(0, 100)}`);
        }));
      }
    });
    await openSoon(t, port);
    assert.equal(outcomeOf(await send(port, GET)), 'active');
    await checkHost(host, port, before);
  });

  it('survives a flood on a thousand connections if maxConnections permits them', async (t) => {
    const host = runHost(t, HOST_UNDER_ATTACK.replace('port: 0', 'port: 0, maxConnections: 1000'));
    const port = await host.hear<number>();
    const request = head(GET, HOST, ...Array<string>(99).fill('a:b'));
    await Promise.all(Array.from({ length: 900 }, async (_, index) => {
      const socket = connectTo(port).on('error', () => {}).resume();
      const closed = closing(socket);
      socket.end(request.repeat(index % 2 === 0 ? 4 : 31));
      await within(20_000, closed);
      assert.ok(socket.closed, 'still connected');
    }));
    assert.equal(outcomeOf(await send(port, GET)), 'active');
    host.tell('threads');
    assert.equal(await host.hear(), 1);
  });

  it('serves a client within a second while 200 others keep connecting and send nothing', async (t) => {
    const host = runHost(t, HOST_UNDER_ATTACK);
    const port = await host.hear<number>();
    const before = await warmUp(t, host, port);
    const crowd = new Set<Socket>();
    let isOver = false;
    const join = (): void => {
      const socket = connect(port, '127.0.0.1').on('error', () => {});
      crowd.add(socket);
      socket.on('close', () => {
        crowd.delete(socket);
        if (!isOver) join();
      });
    };
    t.after(() => {
      isOver = true;
      for (const socket of crowd) socket.destroy();
    });
    for (let count = 0; count < 200; count += 1) join();
    for (let round = 0; round < 50; round += 1) {
      const limit = performance.now() + 1000;
      while ((await exchange(port, [head(POST, HOST)], 1)) === '') {
        assert.ok(performance.now() < limit, `round ${round}: not served within a second`);
      }
    }
    isOver = true;
    await until(() => crowd.size <= 64, () => `${crowd.size} open connections`);
    for (const socket of crowd) socket.destroy();
    await checkHost(host, port, before);
  });

  it('survives clients that reset their connections', async (t) => {
    const host = runHost(t, HOST_UNDER_ATTACK);
    const port = await host.hear<number>();
    for (let round = 0; round < 10; round += 1) {
      const connect = head('CONNECT localhost:80', HOST);
      for (const text of [connect, head(GET, HOST), head(POST, HOST, CHUNKED), 'GARBAGE\r\n\r\n']) {
        const socket = await open(t, port);
        socket.write(text);
        await sleep(round % 3);
        socket.resetAndDestroy();
      }
    }
    assert.equal(outcomeOf(await send(port, GET)), 'active');
    host.tell('threads');
    assert.equal(await host.hear(), 1);
  });
});

describe('A flood of commands', { ...LIMIT, skip: lacksSockets() }, () => {
  it('does not hide a signal from launch()', async (t) => {
    const host = runHost(t, `
      const onListening = ({ port }) => say(port);
      await launch({ step() {}, saveState: () => block(20), onListening }, { webApiAddress: ['127.0.0.1', 0] });
    `);
    const port = await host.hear<number>();
    const flood = [1, 2, 3].map(async () => {
      const client = clientAt(t, { host: '127.0.0.1', port });
      while (host.process.exitCode === null && host.process.signalCode === null) await client.saveState();
    });
    await sleep(200);
    host.process.kill('SIGTERM');
    await host.checkEnd();
    await Promise.all(flood);
  });
});

/** Sends a beginning, then piece after piece until the connection ends. */
function drip(socket: Socket, beginning: string, piece = 'x', pauseMs = 100): void {
  socket.write(beginning);
  const timer = setInterval(() => socket.write(piece), pauseMs);
  socket.on('close', () => clearInterval(timer));
}

/** Sends requests without end, and reads no response. */
async function checkDeafClient(t: TestContext, port: number): Promise<void> {
  const socket = await open(t, port);
  socket.pause();
  const closed = closing(socket);
  const sending = setInterval(() => socket.write(head(GET, HOST).repeat(24)), 3);
  t.after(() => clearInterval(sending));
  await within(24_000, closed); // the buffers fill first
  assert.ok(socket.closed, 'a client that reads no response is still connected');
}

/** Opens a connection that the server serves; it may have to notice first that others are gone. */
async function openSoon(t: TestContext, port: number): Promise<Socket> {
  for (const deadline = performance.now() + 5000; performance.now() < deadline; await sleep(10)) {
    const socket = await open(t, port);
    socket.write(head(GET, HOST));
    const isServed = await new Promise((resolve) => {
      socket.once('data', () => resolve(true)).once('close', () => resolve(false));
    });
    if (isServed === true) return socket;
  }
  return assert.fail('no new connection is served');
}

/** Checks that a kept connection, and new ones if wanted, are served while the attacks run. */
async function whileInUse(t: TestContext, port: number, opensNew: boolean, attack: () => Promise<void>): Promise<void> {
  const kept = await openSoon(t, port);
  const chunks = kept[Symbol.asyncIterator]();
  const durationsMs: number[] = [];
  let isOver = false;
  const use = async (): Promise<void> => {
    for (let round = 0; !isOver; round += 1) {
      const began = performance.now();
      kept.write(round % 2 === 0 ? head(GET, HOST) : head(POST, HOST));
      assert.match(String((await chunks.next()).value), /^HTTP\/1\.1 (200|503) /, 'the kept connection is served');
      if (opensNew) assert.equal(outcomeOf(await send(port, GET)), 'active');
      durationsMs.push(performance.now() - began);
      await sleep(20);
    }
  };
  const uses = use();
  await Promise.all([uses, attack().finally(() => (isOver = true))]);
  const sorted = durationsMs.sort((one, other) => one - other);
  const medianMs = sorted[sorted.length >> 1] as number;
  const slowestMs = sorted.at(-1) as number;
  assert.ok(sorted.length >= 20, `${sorted.length} rounds`);
  assert.ok(medianMs < 500 && slowestMs < 16_000, `median ${medianMs} ms, slowest ${slowestMs} ms`);
}

/** Lets the heap of the thread grow to its usual size. Returns the memory of the host in bytes. */
async function warmUp(t: TestContext, host: Host, port: number): Promise<number> {
  await Promise.all(Array.from({ length: 64 }, async () => {
    const socket = await open(t, port);
    const chunks = socket[Symbol.asyncIterator]();
    for (let round = 0; round < 20; round += 1) {
      socket.write(head(round % 2 === 0 ? GET : POST, HOST).repeat(20));
      for (let bodies = 0; bodies < 20;) bodies += String((await chunks.next()).value).split('}').length - 1;
    }
    const closed = closing(socket);
    socket.end();
    socket.resume();
    await closed;
  }));
  host.tell('memory');
  return host.hear();
}

/** The first thread is alive, and its memory is given back once V8 has a reason to collect garbage. */
async function checkHost(host: Host, port: number, before: number): Promise<void> {
  let grown = Infinity;
  for (const deadline = performance.now() + 20_000; grown > MAX_GROWTH && performance.now() < deadline;) {
    await sendAll(port, Array<string>(30).fill(head(GET, HOST)));
    host.tell('memory');
    grown = (await host.hear<number>()) - before;
  }
  assert.ok(grown <= MAX_GROWTH, `${Math.round(grown / 1e6)} MB are not given back`);
  host.tell('threads');
  assert.equal(await host.hear(), 1);
}
