// control-board under attack from other sites and users: without the key, nothing is visible or controllable.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { before, describe, it } from 'node:test';
import { preload, startServer } from '../../helpers.ts';
import { END_MS, LIMIT, until } from '../../wait.ts';
import { exchange, forSuite, newsOf, NOWHERE, startBoard, untilSystem } from './helpers.ts';
import type { Socket } from 'node:net';
import type { TestContext } from 'node:test';
import type { StartedServer } from '../../helpers.ts';
import type { StartedBoard } from './helpers.ts';

const PAGE = 'GET /';
const READ = 'GET /api/systems';
const PAUSE = 'POST /api/systems/pause';
const EVALUATE = 'POST /api/systems/0/evaluate';
const ANSWER = 'POST /api/systems/0/answer?id=x';
const LINES = [PAGE, READ, PAUSE, EVALUATE, ANSWER];
const HOST = 'Host: localhost';

/** Makes the time limits of a server ten times as short. Without them, those of Node would apply. */
const IMPATIENT = preload(`
  import http from 'node:http';
  import { syncBuiltinESMExports } from 'node:module';
  const { createServer } = http;
  http.createServer = (limits, ...rest) => {
    const shorter = Object.entries(limits).map(([name, ms]) => [name, ms > 30_000 ? ms : ms / 10]);
    return createServer(Object.fromEntries(shorter), ...rest);
  };
  syncBuiltinESMExports();
`);

/** `Host`, by the options of the board. `test/module/policy.test.ts` has more. */
const HOSTS: readonly [options: string[], status: number, hosts: string[]][] = [
  [[], 200, ['LOCALHOST:1', '[::1]:8391', '192.168.1.7']],
  [[], 403, [
    '0.0.0.0', '[::]:80', 'localhost.', 'x.localhost', '127.1', 'evil.example:8391', 'localhost@evil', '::1', '',
  ]],
  [['--listen', '0x7f.1:0', '--allow-host', 'box.lan', '--allow-host', '.example.org'], 200, [
    '0X7f.1:80', 'BOX.lan:8391', 'a.B.Example.ORG', 'localhost',
  ]],
  [['--listen', '0x7f.1:0', '--allow-host', 'box.lan', '--allow-host', '.example.org'], 403, [
    '0x7f.2', 'a.box.lan', 'example.org.evil', '0.0.0.0',
  ]],
  [['--allow-host', '*'], 200, ['evil.example', 'X:80', 'localhost.', '127.1', '[::1]']],
  [['--allow-host', '*'], 403, ['0.0.0.0', '[::]:80', '', 'x:y', '::1']],
];

describe('control-board keeps others out', LIMIT, () => {
  const suite = forSuite();
  let system: StartedServer<'evaluate'>;
  let board: StartedBoard;
  let key: string;

  before(async () => {
    system = await startServer(suite, { maxQueueSize: 1000, commands: { evaluate: {} } });
    board = await startBoard(suite, [`127.0.0.1:${system.port}`]);
    await untilSystem(board, ({ accepts = [] }) => accepts.length === 1); // until then, there is no such path
    key = `Authorization: Bearer ${board.key}`;
  });

  /** Checks that the system receives this command and none of the earlier ones. */
  const isFirst = async (line: string, ...fields: string[]): Promise<void> => {
    assert.equal(await statusOf(board, line.replace('pause', 'save-state'), ...fields), 202);
    assert.equal(await system.server.nextCommand(), 'save-state');
    system.server.report({});
  };

  it('by Host: the name it listens on, addresses and those of --allow-host are allowed', async (t) => {
    const boards = new Map([['', board]]);
    for (const [options, status, hosts] of HOSTS) {
      const one = boards.get(options.join()) ?? await startBoard(t, [NOWHERE], options);
      boards.set(options.join(), one);
      const lines = status === 200 ? [PAGE, READ] : one === board ? LINES : [READ];
      for (const [line, host] of lines.flatMap((line) => hosts.map((host) => [line, host] as const))) {
        const shown = `${line} ${host} ${options}`;
        assert.equal(await statusOf(one, line, `Host: ${host}`, `Authorization: Bearer ${one.key}`), status, shown);
      }
    }
    await isFirst(PAUSE, HOST, key);
  });

  it('by missing or repeated header fields', async () => {
    for (const [expected, line, ...fields] of [
      [400, PAUSE, key], [400, EVALUATE, key], [400, ANSWER, key], [400, PAGE],
      [400, READ, HOST, 'Host: evil', key], [400, READ, 'Host: evil', HOST, key],
      [400, READ, HOST, HOST, key], [400, PAUSE, HOST, 'Origin: http://localhost', 'Origin: http://evil', key],
      [400, PAUSE, HOST, key, 'Authorization: Bearer x'], [400, PAUSE, HOST, 'Authorization: Bearer x', key],
      [404, 'GET http://localhost/api/systems', HOST, key], [403, 'GET http://evil/api/systems', 'Host: evil', key],
      [200, `${READ} HTTP/1.0`, key],
    ] as [number, string, ...string[]][]) {
      assert.equal(await statusOf(board, line, ...fields), expected, `${line} ${fields}`);
    }
    assert.doesNotMatch((await exchange(board.port, 'CONNECT localhost:80', HOST)).text, /^HTTP\/1\.1 2/);
    await isFirst(PAUSE, HOST, key);
  });

  it('by Origin: others are refused, and its own grants nothing', async () => {
    const host = `localhost:${board.port}`;
    for (const origin of [
      'null', '', '*', `https://${host}`, 'http://localhost', `http://127.0.0.1:${board.port}`, `http://${host}/`,
      `http://${host}0`, 'http://evil.example', `http://x.${host}`, host, `http://${host} http://${host}`,
    ]) {
      for (const line of [...LINES, 'GET /api/logs/0', 'OPTIONS /api/systems/pause']) {
        assert.equal(await statusOf(board, line, `Host: ${host}`, `Origin: ${origin}`, key), 403, `${line} ${origin}`);
      }
      assert.equal(await statusOf(board, `${PAUSE} HTTP/1.0`, `Origin: ${origin}`, key), 403, `HTTP/1.0 ${origin}`);
    }
    const own = [`Host: ${host}`, `Origin: http://${host}`];
    assert.equal(await statusOf(board, PAUSE, ...own), 401);
    await isFirst(PAUSE, ...own, key);
  });

  it('by the key', async () => {
    const text = board.key;
    for (const field of [
      '', 'Bearer', text, `Basic ${text}`, `Bearer${text}`, `Bearer ${text.slice(0, -1)}`, `Bearer ${text}x`,
      `Bearer ${text} x`, `Bearer ${text.toUpperCase()}`, `Bearer "${text}"`, `Bearer ${text}, Bearer ${text}`,
      'Bearer undefined',
    ]) {
      for (const line of [READ, PAUSE, EVALUATE, ANSWER]) {
        assert.equal(await statusOf(board, line, HOST, `Authorization: ${field}`), 401, `${line} ${field}`);
      }
    }
    for (const [line, field] of [
      [`${PAUSE}?key=${text}`, 'X: x'], [PAUSE, `Cookie: key=${text}`], [PAUSE, `Proxy-Authorization: Bearer ${text}`],
    ] as const) {
      assert.equal(await statusOf(board, line, HOST, field), 401, line);
    }
    await isFirst(PAUSE, HOST, key);
    for (const field of [`Bearer ${text}`, `bearer ${text}`, `BEARER   ${text}`]) {
      assert.equal(await statusOf(board, READ, HOST, `Authorization: ${field}`), 200, field);
    }
  });
});

describe('control-board keeps serving despite', LIMIT, () => {
  const suite = forSuite();
  let board: StartedBoard;
  let key: string;

  before(async () => {
    const { port } = await startServer(suite, { commands: { evaluate: {} } });
    board = await startBoard(suite, [`127.0.0.1:${port}`], [], IMPATIENT);
    await untilSystem(board, ({ accepts = [] }) => accepts.length === 1);
    key = `Authorization: Bearer ${board.key}`;
  });

  it('more silent connections than it accepts: they make room, and are closed', async (t) => {
    const sockets = Array.from({ length: 300 }, () => openTo(t, board.port));
    const open = (): number => sockets.filter(({ destroyed }) => !destroyed).length;
    await until(() => open() <= 256);
    assert.equal(await statusOf(board, READ, HOST, key), 200);
    await until(() => open() === 0, () => `${open()} are open`, END_MS);
  });

  it('connections without a key that come back: new requests with the key, open pages and idle ones', async (t) => {
    const one = await startBoard(t, [NOWHERE]);
    const ownKey = `Authorization: Bearer ${one.key}`;
    await untilSystem(one, ({ status }) => status === 'offline');
    let news = await newsOf(one);
    while (news.systems.length > 0) news = await newsOf(one, news.version, 1); // until a page would wait
    const pages = Promise.all(Array.from({ length: 10 }, () => {
      return statusOf(one, `${READ}?since=${news.version}`, HOST, ownKey, 'Prefer: wait=30');
    }));
    const idle = openTo(t, one.port).setEncoding('utf8').setMaxListeners(0);
    const readAgain = async (): Promise<void> => {
      assert.ok(!idle.destroyed, 'the idle connection was closed');
      idle.write(`${READ} HTTP/1.1\r\n${HOST}\r\n${ownKey}\r\n\r\n`);
      const [text] = await Promise.race([once(idle, 'data'), once(idle, 'close')]) as unknown[];
      assert.match(String(text), /^HTTP\/1\.1 200 /);
    };
    await readAgain();
    let closed = 0;
    let isOver = false;
    t.after(() => void (isOver = true));
    const attack = (): void => {
      if (isOver) return;
      openTo(t, one.port).on('close', () => {
        closed += 1;
        setTimeout(attack, 20);
      });
    };
    for (let count = 0; count < 256; count += 1) attack();
    await until(async () => {
      await readAgain();
      return closed > 512;
    }, () => `${closed}`, END_MS);
    assert.equal(await statusOf(one, READ, HOST, ownKey), 200);
    await one.post('/api/systems/0/pause'); // news for the pages
    assert.deepEqual(new Set(await pages), new Set([200]));
  });

  it('a request that never ends: in its header, its body, or an unexpected body', async (t) => {
    const fields = `${HOST}\r\n${key}\r\n`;
    const chunked = 'Transfer-Encoding: chunked\r\n\r\n';
    const endless: [start: string, more: string][] = [
      [`${PAUSE} HTTP/1.1\r\n${fields}`, 'X: x\r\n'], [`${READ} HTTP/1.1\r\n`, 'X'],
      [`${EVALUATE} HTTP/1.1\r\n${fields}${chunked}`, '1\r\nx\r\n'],
      [`${PAUSE} HTTP/1.1\r\n${fields}${chunked}`, '400\r\n'.padEnd(0x406, 'x') + '\r\n'],
      [`${PAGE} HTTP/1.1\r\n${HOST}\r\n${chunked}`, '1\r\nx\r\n'],
    ];
    await Promise.all(endless.map(async ([begin, more]) => {
      const socket = openTo(t, board.port);
      socket.write(begin);
      const timer = setInterval(() => socket.write(more), 50);
      t.after(() => clearInterval(timer));
      await until(() => socket.destroyed, () => `${begin} is not ended`, END_MS);
      clearInterval(timer);
    }));
    assert.equal(await statusOf(board, READ, HOST, key), 200);
  });
});

function openTo(t: TestContext, port: number): Socket {
  const socket = connect(port, '127.0.0.1').on('error', () => {}).resume();
  t.after(() => socket.destroy());
  return socket;
}

async function statusOf(board: StartedBoard, line: string, ...fields: string[]): Promise<number> {
  return (await exchange(board.port, line, ...fields)).status;
}
