// Requests byte by byte: whatever arrives, and however it arrives, every response is JSON, and the server queues
// exactly the commands that it acknowledges.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { inspect } from 'node:util';
import { startForeign, startServer, takeAll } from '../helpers.ts';
import {
  CHUNKED, COMMANDS, HOST, PAGE, PAUSE, STATUS, UPGRADE, WAIT, exchange, head, open, parse, serveOthers, wait, withBody,
} from '../http.ts';
import { LIMIT } from '../wait.ts';
import { oneOf, randomNumbers } from './helpers.ts';
import { SystemStatus, WebApiClient } from '../../../control.ts';
import type { HttpResponse } from '../http.ts';
import type { ControlCommand } from '../../../control.ts';

const { ACTIVE, PAUSED, OFFLINE } = SystemStatus;

/** In short: what a 200 or a 202 says, or the status code. */
const outcomeOf = ({ statusCode, summary }: HttpResponse): string => {
  return statusCode < 300 ? summary.replace('200 ', '') : `${statusCode}`;
};

/** What is sent, one character per byte, and the outcome of each response. A pause is queued for each `ok`. */
type Row = [name: string, bytes: string, outcomes: string | string[]];

const GARBAGE = 'GARBAGE\r\n\r\n';
const FULL = 'x'.repeat(65_536); // the longest body that the server reads
const BLANK = ' '.repeat(4096); // the longest one that a command may have
const TOO_LONG = head(PAUSE, HOST, 'Content-Length: 65537');
const LONG = 'x'.repeat(17 * 1024);
const MANY_FIELDS: string[] = Array(99).fill('a:'); // with the Host, as many as the server accepts

/** A head whose names, values and target have so many bytes together, which is what node counts. */
function headOf(counted: number): string {
  return head(PAUSE, HOST, `X: ${'x'.repeat(counted - '/api/pauseHostlocalhostX'.length)}`);
}

/** They end before the request does. */
const INCOMPLETE: Row[] = [
  ['in the target', 'POST /api/pau', '400'],
  ['before the last byte of the head', `${PAUSE} HTTP/1.1\r\nHost: localhost\r\n\r`, '400'],
  ['in the body', head(PAUSE, HOST, 'Content-Length: 10') + '123456789', '400'],
  ['after a chunk', head(PAUSE, HOST, CHUNKED) + '5\r\nhello\r\n', '400'],
  ['in a trailer', head(PAUSE, HOST, CHUNKED) + '0\r\nX-', '400'],
  ['in the body, from a foreign Host', head(PAUSE, 'Host: evil', 'Content-Length: 10') + 'abc', '403'],
];

const TABLES: { title: string; whoEnds?: 'client at once' | 'server'; rows: Row[] }[] = [
  {
    title: 'Endpoints',
    rows: ([ // a GET ignores its query and its body
      [STATUS, 'active', ['?x=1', '?', '?a=/api/pause?b=/'], 'hello', '0123456789'],
      [PAUSE, 'ok', ['?by=1', '?', '?by=/api/pause?b=/'], '{    ', '         }'],
    ] as const).flatMap(([line, outcome, queries, five, ten]) => [
      ...queries.map((query) => head(line + query, HOST)),
      ...['http://localhost', 'HTTP://127.0.0.1:1', 'https://[::1]'].map((origin) => {
        return head(line.replace(' ', ` ${origin}`) + queries[0], 'Host: evil.example');
      }),
      head(`${line} HTTP/1.0`),
      head(line, HOST, 'Content-Length: 0'),
      withBody(line, HOST),
      head(line, HOST, CHUNKED) + `5;a=b\r\n${five}\r\nA\r\n${ten}\r\n000\r\nX: x\r\n\r\n`,
    ].map((bytes): Row => [bytes, bytes, outcome])),
  },
  {
    title: 'Paths that are no endpoints, or that of the list',
    rows: [
      '/api', '/api/', '/api/status/', '//api/status', '/api/%73tatus', '/API/status', '/api/status;x', '/api/statu',
      '/x/../api/status', '/api/save_state', '/?/api/status', '*', 'http://localhost', 'ftp://localhost/api/status',
      'http://localhost//api/status', 'http://localhost?/api/pause', '/constructor',
    ].flatMap((path) => ['GET', 'HEAD', 'POST', 'PUT', 'OPTIONS'].map((method): Row => {
      const isRoot = path.startsWith('/?');
      const outcome = !isRoot ? '404' : ['GET', 'HEAD'].includes(method) ? '200' : '405';
      return [`${method} ${path}`, head(`${method} ${path}`, HOST), outcome];
    })),
  },
  {
    title: 'Malformed requests, of which one is for all that Node refuses',
    rows: [
      ['HTTP/2.0 with a body', withBody(`${PAUSE} HTTP/2.0`, HOST, 'Connection: keep-alive'), '505'],
      ['a length and chunks', head(PAUSE, HOST, 'Content-Length: 5', CHUNKED) + '0\r\n\r\n', '400'],
      ['CONNECT to a foreign host', head('CONNECT evil.example:80', 'Host: evil.example:80'), '501'],
      ['Host and Origin in the trailer, which do not count',
        head(PAUSE, HOST, CHUNKED) + '0\r\nHost: evil\r\nOrigin: null\r\n\r\n', 'ok'],
    ],
  },
  {
    title: 'Incomplete requests',
    whoEnds: 'client at once',
    rows: [
      ...INCOMPLETE,
      ['not at all', withBody(PAUSE, HOST), 'ok'],
      ['after an empty line', '\r\n', []],
    ],
  },
  {
    title: 'Sizes',
    rows: [
      ['the longest head', headOf(8191), 'ok'],
      ['a longer head', headOf(8192), '431'],
      ['a long target', head(`POST http://localhost/${LONG}`, HOST), '431'],
      ['a long trailer', head(PAUSE, HOST, CHUNKED) + `0\r\nX: ${LONG}\r\n\r\n`, '431'],
      ['the longest body', head(PAUSE, HOST, 'Content-Length: 4096') + BLANK, 'ok'],
      ['the longest body in chunks', head(PAUSE, HOST, CHUNKED) + `1000\r\n${BLANK}\r\n0\r\n\r\n`, 'ok'],
      ['a body that a command does not take', head(PAUSE, HOST, 'Content-Length: 65536') + FULL, '413'],
      ['chunks that a command does not take', head(PAUSE, HOST, CHUNKED) + `10000\r\n${FULL}\r\n0\r\n\r\n`, '413'],
      ['the longest ignored body', head(STATUS, HOST, 'Content-Length: 65536') + FULL, 'active'],
      ['a long chunk extension', head(PAUSE, HOST, CHUNKED) + `1;${LONG}\r\nx\r\n0\r\n\r\n`, '413'],
      ['a longer body', `${TOO_LONG}${FULL}x`, '413'],
      ['longer chunks', head(PAUSE, HOST, CHUNKED) + `10000\r\n${FULL}\r\n1\r\nx\r\n0\r\n\r\n`, '413'],
      ['a longer body after Expect: 100-continue',
        head(PAUSE, HOST, 'Expect: 100-continue', 'Content-Length: 65537') + `${FULL}x`, ['100', '413']],
      ['the most fields', head(PAUSE, HOST, ...MANY_FIELDS), 'ok'],
      ['more fields', head(PAUSE, HOST, ...MANY_FIELDS, 'a:'), '431'],
      ['a thousand more fields, then an Origin', head(PAUSE, HOST, ...Array(1100).fill('a:'), 'Origin: null'), '431'],
      ['more fields, and a longer body', head(PAUSE, HOST, ...MANY_FIELDS, 'Content-Length: 65537'), '431'],
    ],
  },
  {
    // The second comes before the response to the first and thereby ends the connection: requests after it get no
    // response and are not queued. Only an error after a response that has been sent gets its own response.
    title: 'Several requests at once',
    whoEnds: 'server',
    rows: [
      ['commands', head(PAUSE, HOST).repeat(3), 'ok'],
      ['a status request, then commands', head(STATUS, HOST) + head(PAUSE, HOST).repeat(2), 'active'],
      ['a foreign Host, then a command', head(PAUSE, 'Host: evil') + head(PAUSE, HOST), '403'],
      ['a command, then an Upgrade', withBody(PAUSE, HOST) + head(PAUSE, HOST, ...UPGRADE), 'ok'],
      ['Expect: 100-continue, then a command', withBody(PAUSE, HOST, 'Expect: 100-continue') + head(PAUSE, HOST),
        ['100', 'ok']],
      ['a longer body after a command', head(PAUSE, HOST) + TOO_LONG, 'ok'],
      ['a command, then garbage', head(PAUSE, HOST) + GARBAGE, ['ok', '400']],
      ['a foreign Host, then garbage', head(PAUSE, 'Host: evil') + GARBAGE, ['403', '400']],
      ['a command, then CONNECT', head(PAUSE, HOST) + head('CONNECT localhost:80', HOST), ['ok', '501']],
      ['a command with a body, then garbage', withBody(PAUSE, HOST) + GARBAGE, 'ok'],
      ['a body that a command does not take, then a command',
        head(PAUSE, HOST, 'Content-Length: 5') + 'hello' + head(PAUSE, HOST), '400'],
      ['a bad chunk, then a command', head(PAUSE, HOST, CHUNKED) + `zz\r\n${head(PAUSE, HOST)}`, '400'],
      ['a longer body, then a command', `${TOO_LONG}${FULL}x${head(PAUSE, HOST)}`, '413'],
      ['more fields, then a command', head(STATUS, HOST, ...MANY_FIELDS, 'a:') + head(PAUSE, HOST), '431'],
      ['CONNECT, then a command', head('CONNECT localhost:80', HOST) + head(PAUSE, HOST), '501'],
      ['HTTP/2.0, then a command', withBody(`${PAUSE} HTTP/2.0`, HOST) + head(PAUSE, HOST), '505'],
      ['Connection: close, then a command', head(STATUS, HOST, 'Connection: close') + head(PAUSE, HOST), 'active'],
      ['HTTP/1.0, then a command', head(`${STATUS} HTTP/1.0`) + head(PAUSE, HOST), 'active'],
    ],
  },
];

describe('A request', { ...LIMIT, concurrency: 3 }, () => {
  for (const { title, whoEnds, rows } of TABLES) {
    it(`gets its response, and queues its command: ${title} (${rows.length})`, async (t) => {
      const { server, port } = await startServer(t);
      for (const [name, bytes, given] of rows) {
        const outcomes = [given].flat();
        const count = whoEnds === 'server' ? Infinity : whoEnds === 'client at once' ? 0 : outcomes.length;
        const responses = await exchange(port, bytes, count);
        assert.deepEqual(responses.map(outcomeOf), outcomes, name);
        if (count > outcomes.length) await serveOthers(port);
        assert.deepEqual(takeAll(server), outcomes.filter((outcome) => outcome === 'ok').map(() => 'pause'), name);
      }
      await serveOthers(port);
      assert.deepEqual(takeAll(server), []);
    });
  }

  it('in any form, ends a wait on its connection, and the connection', async (t) => {
    const { server, port } = await startServer(t);
    for (const [first, outcome] of [
      [head(PAUSE, HOST, WAIT), '202 waiting'], [head(STATUS, HOST, 'If-None-Match: "active"', WAIT), '304'],
    ] as const) {
      const later = [head(PAUSE, HOST), withBody(PAUSE, HOST), head(PAUSE), TOO_LONG, head('CONNECT x:1'), GARBAGE];
      for (const next of later) {
        const { connection, response } = await wait(t, port, first);
        connection.socket.write(next + head(PAUSE, HOST));
        const { headers } = await response;
        await connection.closed;
        assert.deepEqual([headers.connection, parse(connection.text).map(outcomeOf)], ['close', [outcome]], next);
        await serveOthers(port);
        assert.equal(takeAll(server).length, outcome === '304' ? 0 : 1, next);
      }
    }
  });

  it('may begin, but not end, before the response to another one', async (t) => {
    let status = ACTIVE;
    const { server, port } = await startServer(t, { systemStatus: () => status });
    const { connection, response } = await wait(t, port, head(STATUS, HOST, 'If-None-Match: "active"', WAIT));
    const later = head('POST /api/resume', HOST);
    connection.socket.write(later.slice(0, 20));
    await serveOthers(port);
    status = PAUSED;
    server.hasCommands();
    assert.equal(outcomeOf(await response), 'paused');
    assert.equal(outcomeOf(await connection.request(later.slice(20))), 'ok');
    assert.deepEqual(takeAll(server), ['resume']);
  });

  it('queues nothing if a reset truncates it', async (t) => {
    const { server, port, client } = await startServer(t);
    for (const [, bytes] of INCOMPLETE) {
      const socket = await open(t, port);
      await new Promise((resolve) => socket.write(bytes, resolve));
      await serveOthers(port); // the server reads the beginning before it sees the reset
      socket.resetAndDestroy();
    }
    await serveOthers(port);
    assert.equal(await client.resume(), 'ok');
    assert.deepEqual(takeAll(server), ['resume']);
  });

  it('gets the same response wherever it is split', async (t) => {
    const { server, port } = await startServer(t, { maxQueueSize: 1000 });
    for (const [bytes, outcome] of [
      [head(PAUSE, HOST, CHUNKED) + '5;x\r\n{    \r\na\r\n         }\r\n0\r\nX: x\r\n\r\n', 'ok'],
      [head('POST http://[::1]:8391/api/pause?by', 'Host: evil'), 'ok'],
      [head(PAUSE, 'Host: a.lan', 'Origin: null', 'Sec-Fetch-Site: cross-site'), '403'],
    ] as const) {
      const cuts = Array.from(bytes, (_, index) => [bytes.slice(0, index), bytes.slice(index)]).slice(1);
      await inParallel([...cuts, [...bytes]], async (pieces) => { // the last one: each byte on its own
        assert.deepEqual((await exchange(port, pieces, 1)).map(outcomeOf), [outcome], JSON.stringify(pieces));
      });
      assert.deepEqual(takeAll(server), outcome === 'ok' ? Array(bytes.length).fill('pause') : [], bytes);
    }
  });
});

describe('1,000 damaged requests', LIMIT, () => {
  const SPECIALS = ['\r\n', '\r\n\r\n', '\n', '\r', '\0', ' ', ':', '/', '%', `${HOST}\r\n`, '\xff', '0', ',', '\t'];

  it('get responses in JSON, and queue exactly the acknowledged commands', async (t) => {
    const { server, port, client } = await startServer(t, { maxQueueSize: 64 });
    const accepted: ControlCommand[] = [];
    const taken: ControlCommand[] = [];
    const counts: Record<string, number> = {};
    await inParallel([...Array(1000).keys()], async (seed) => {
      const command = COMMANDS[seed % 4] as ControlCommand; // no damage makes another one of it
      const bytes = damage(randomNumbers(seed), goodRequests(command));
      try {
        const responses = await exchange(port, bytes);
        assert.ok(responses.length > 0 || /^[\r\n]*$/.test(bytes), 'no response');
        for (const outcome of responses.map(outcomeOf)) {
          counts[outcome] = (counts[outcome] ?? 0) + 1;
          if (outcome === 'ok') accepted.push(command);
        }
      } catch (error) {
        throw new Error(`seed ${seed}, ${JSON.stringify(bytes)}`, { cause: error });
      }
      taken.push(...takeAll(server));
    });
    assert.equal(await client.getStatus(), ACTIVE);
    taken.push(...takeAll(server));
    assert.deepEqual(taken.sort(), accepted.sort());
    const isVaried = ['ok', 'active', '200', '400', '404', '403'].every((outcome) => (counts[outcome] ?? 0) >= 5);
    assert.ok(isVaried, `the damage is too small or too great: ${JSON.stringify(counts)}`);
  });

  function goodRequests(command: ControlCommand): string[] {
    const line = `POST /api/${command}`;
    return [
      head(line, HOST),
      head(`POST http://127.0.0.1:1/api/${command}`, 'Host: [::1]'),
      withBody(line, HOST),
      head(`${line}?by=ana`, HOST, CHUNKED) + '5;x=y\r\n{   }\r\n0\r\nX: x\r\n\r\n',
      head(line, HOST, `Origin: ${PAGE}`, 'Sec-Fetch-Site: cross-site'),
      withBody(line, HOST, 'Expect: 100-continue'),
      head(STATUS, 'Host: [::1]:8391', 'Sec-Fetch-Site: none'),
      head('HEAD /api/status', HOST, 'Connection: close'),
      head(STATUS, HOST) + head(line, HOST),
      head(line, HOST, ...UPGRADE) + head(line, HOST),
    ];
  }

  /** Changes a few bytes of one of the requests, or inserts bytes of another. */
  function damage(random: () => number, requests: readonly string[]): string {
    const below = (limit: number): number => Math.floor(random() * limit);
    const sliceOf = (text: string): string => {
      const index = below(text.length);
      return text.slice(index, index + 1 + below(8) ** 2);
    };
    let bytes = oneOf(random, requests);
    for (let count = 1 + below(4); count > 0; count -= 1) {
      const index = below(bytes.length);
      const end = index + 1 + below(4);
      const replacements = [
        () => '',
        () => bytes.slice(index, end).repeat(2),
        () => String.fromCharCode(below(256)) + bytes.slice(index, end),
        () => oneOf(random, SPECIALS) + bytes.slice(index, end),
        () => sliceOf(oneOf(random, requests)) + bytes.slice(index, end),
      ];
      bytes = bytes.slice(0, index) + oneOf(random, replacements)() + bytes.slice(end);
    }
    return bytes;
  }
});

describe('Another kind of server', LIMIT, () => {
  const json = (body: string, statusLine = '200 OK'): string => {
    return `HTTP/1.1 ${statusLine}\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
  };
  const FOREIGN: [name: string, response: string][] = [
    ['sends garbage', '\x00\x01garbage\r\n\r\n'],
    ['stops in the body', 'HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{"status":"active"'],
    ['sends 10 MB', json(`{"status":"active","result":"ok","x":"${'x'.repeat(10 << 20)}"}`)],
    ['switches protocols', 'HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nhello'],
    ['redirects', 'HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/api/status\r\nContent-Length: 0\r\n\r\n'],
    ['sends null', json('null')],
    ['sends no strings', json('{"status":{"x":1},"result":["ok"],"error":5}')],
    ['sends 200 with an error', json('{"error":"no"}')],
    ['sends 500 with an error that is no string', json('{"error":{"x":1}}', '500 Internal Server Error')],
  ];
  it('is reported as OFFLINE', async (t) => {
    await Promise.all(FOREIGN.map(async ([name, response]) => {
      const { port } = await startForeign(t, (socket) => socket.write(response));
      const client = new WebApiClient('127.0.0.1', port, { timeout: 300 });
      const calls = [client.getStatus(), client.pause(), client.getInfo(), client.request('status')] as const;
      const [status, result, info, reply] = await Promise.all(calls);
      assert.deepEqual([status, result, info], [OFFLINE, null, null], name);
      assert.ok(!reply.ok && reply.phase !== 'answered', inspect(reply));
      assert.ok(reply.error.startsWith(`http://127.0.0.1:${port} `), reply.error);
    }));
  });

  it('does not make the client wait with endless 1xx responses', async (t) => {
    for (const interim of ['100 Continue', '102 Processing', '103 Early Hints']) {
      const { port } = await startForeign(t, (socket) => {
        const timer = setInterval(() => socket.write(`HTTP/1.1 ${interim}\r\n\r\n`), 1);
        socket.on('close', () => clearInterval(timer));
      });
      const reply = await new WebApiClient('127.0.0.1', port, { timeout: 60_000 }).request('status');
      assert.ok(!reply.ok && reply.error.endsWith(' does not respond: too many 1xx responses'), inspect(reply));
    }
  });
});

/** Processes the items 24 at a time: fewer than the server has connections. */
async function inParallel<Item>(items: readonly Item[], process: (item: Item) => Promise<void>): Promise<void> {
  const rest = items.values();
  await Promise.all(Array.from({ length: 24 }, async () => {
    for (const item of rest) await process(item);
  }));
}
