// Tests of control.ts. A host that must block its thread, end, or be killed is a process of its own: see runHost().

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { getEventListeners, once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer as createHttpServer, request as httpRequest } from 'node:http';
import { connect, createServer } from 'node:net';
import { networkInterfaces, tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { describe, it } from 'node:test';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { inspect } from 'node:util';
import { build } from 'esbuild';
import type { BuildOptions } from 'esbuild';
import type { ChildProcess } from 'node:child_process';
import type { IncomingHttpHeaders } from 'node:http';
import type { AddressInfo, Server, Socket } from 'node:net';
import type { TestContext } from 'node:test';

import {
  DEFAULT_HOST, DEFAULT_MAX_QUEUE_SIZE, DEFAULT_PORT, EmptyError, SystemStatus, VERSION, WebApiClient, WebApiServer,
  launch,
} from './control.ts';
import type { ControlCommand, LaunchConfig, System, WebApiAddress, WebApiServerOptions } from './control.ts';

const { ACTIVE, PAUSING, PAUSED, RESUMING, SHUTTING_DOWN, OFFLINE } = SystemStatus;

const PROJECT = process.cwd();
const LIMIT = { timeout: 120_000 }; // for each suite: what hangs is a failure, not an endless run
const POSIX_ONLY = process.platform === 'win32' ? { skip: 'Windows has no signals' } : {};

const COMMANDS: readonly ControlCommand[] = ['pause', 'resume', 'shutdown', 'save-state'];
const QUEUE_FULL = 'Command queue is full, try again later';
const INTERNAL_ERROR = '{"error":"Internal server error"}';

// ───── Statuses and constants ────────────────────────────────────────────────────────────────────────────────────

describe('SystemStatus', LIMIT, () => {
  it('has six frozen members with their names', () => {
    assert.deepEqual(Object.entries(SystemStatus).map(([member, { statusName }]) => [member, statusName]), [
      ['ACTIVE', 'active'],
      ['PAUSING', 'pausing'],
      ['PAUSED', 'paused'],
      ['RESUMING', 'resuming'],
      ['SHUTTING_DOWN', 'shutting down'],
      ['OFFLINE', 'offline'],
    ]);
    assert.ok([SystemStatus, ...Object.values(SystemStatus)].every(Object.isFrozen));
  });
});

describe('The constants', LIMIT, () => {
  it('are the documented defaults', () => {
    assert.deepEqual([DEFAULT_HOST, DEFAULT_PORT, DEFAULT_MAX_QUEUE_SIZE], ['localhost', 8391, 16]);
  });

  it('VERSION is that of the package and of the first line of the file', async () => {
    const { version } = JSON.parse(await readFile(join(PROJECT, 'package.json'), 'utf8'));
    assert.equal(VERSION, version);
    assert.match(await readFile(join(PROJECT, 'control.ts'), 'utf8'), new RegExp(`^/\\*! control.ts ${version} `));
  });
});

// ───── Bad arguments ─────────────────────────────────────────────────────────────────────────────────────────────

describe('A bad argument is refused by name and value:', LIMIT, () => {
  const systemStatus = (): SystemStatus => ACTIVE;
  const step = (): void => assert.fail('a step ran');
  const server = (options: unknown) => (): unknown => new WebApiServer(options as WebApiServerOptions);
  const client = (...values: unknown[]) => (): unknown =>
    new WebApiClient(...(values as ConstructorParameters<typeof WebApiClient>));
  const waitFor = (...values: unknown[]) => (): unknown =>
    new WebApiClient('127.0.0.1', 1).waitFor(...(values as Parameters<WebApiClient['waitFor']>));
  const run = (system: unknown, config: unknown = { webApiAddress: null }) => (): unknown =>
    launch(system as System, config as LaunchConfig);

  type Values = [value: unknown, errorClass: ErrorConstructor][];
  const notPorts: Values = [
    ['8391', TypeError], [null, TypeError], [true, TypeError], [8391n, TypeError],
    [NaN, RangeError], [-1, RangeError], [1.5, RangeError], [70000, RangeError], [Infinity, RangeError],
  ];
  const notQueueSizes: Values = [
    ['16', TypeError], [null, TypeError], [[16], TypeError],
    [NaN, RangeError], [0, RangeError], [-1, RangeError], [1.5, RangeError], [65537, RangeError],
  ];
  const notHosts: Values = [
    [127, TypeError], [null, TypeError], [['localhost'], TypeError], ['', RangeError],
  ];
  const notTimeouts: Values = [
    ['1', TypeError], [null, TypeError],
    [NaN, RangeError], [0, RangeError], [-1, RangeError], [Infinity, RangeError], [2 ** 31, RangeError],
  ];
  const notObjects: Values = [[null, TypeError], ['active', TypeError], [5, TypeError]];
  const notFunctions: Values = [[null, TypeError], ['active', TypeError], [ACTIVE, TypeError]];

  const cases: [where: string, name: string, call: (value: unknown) => () => unknown, values: Values][] = [
    ['WebApiServer', 'options', (value) => server(value), [...notObjects, [undefined, TypeError]]],
    ['WebApiServer', 'systemStatus', (value) => server({ systemStatus: value }), [
      ...notFunctions, [undefined, TypeError],
    ]],
    ['WebApiServer', 'host', (value) => server({ systemStatus, host: value }), notHosts],
    ['WebApiServer', 'port', (value) => server({ systemStatus, port: value }), notPorts],
    ['WebApiServer', 'maxQueueSize', (value) => server({ systemStatus, maxQueueSize: value }), notQueueSizes],
    ['WebApiClient', 'host', (value) => client(value), notHosts],
    ['WebApiClient', 'port', (value) => client('localhost', value), [...notPorts, [0, RangeError]]],
    ['WebApiClient', 'options', (value) => client('localhost', 8391, value), notObjects],
    ['WebApiClient', 'timeout', (value) => client('localhost', 8391, { timeout: value }), notTimeouts],
    ['waitFor', 'status', (value) => waitFor(value, { timeout: 50 }), [['paused', TypeError], [undefined, TypeError]]],
    ['waitFor', 'timeout', (value) => waitFor(PAUSED, { timeout: value }), notTimeouts],
    ['waitFor', 'onStatus', (value) => waitFor(PAUSED, { timeout: 50, onStatus: value }), [[5, TypeError], [null, TypeError]]],
    ['launch', 'system', (value) => run(value), [...notObjects, [undefined, TypeError]]],
    ['launch', 'step', (value) => run({ step: value }), [...notFunctions, [undefined, TypeError]]],
    ['launch', 'onListening', (value) => run({ step, onListening: value }), notFunctions],
    ['launch', 'onPaused', (value) => run({ step, onPaused: value }), notFunctions],
    ['launch', 'onResumed', (value) => run({ step, onResumed: value }), notFunctions],
    ['launch', 'saveState', (value) => run({ step, saveState: value }), notFunctions],
    ['launch', 'onShutdown', (value) => run({ step, onShutdown: value }), notFunctions],
    ['launch', 'options', (value) => run({ step }, value), notObjects],
    ['launch', 'webApiAddress', (value) => run({ step }, { webApiAddress: value }), [
      ['localhost:0', TypeError], [0, TypeError], [{}, TypeError],
      [[], TypeError], [['localhost'], TypeError], [['localhost', 0, 0], TypeError],
    ]],
    ['launch', 'host of webApiAddress', (value) => run({ step }, { webApiAddress: [value, 0] }), notHosts],
    ['launch', 'port of webApiAddress', (value) => run({ step }, { webApiAddress: ['localhost', value] }), notPorts],
    ['launch', 'webApiCommandQueueSize', (value) => run({ step }, {
      webApiAddress: ['localhost', 0], webApiCommandQueueSize: value,
    }), notQueueSizes],
  ];
  for (const [where, name, call, values] of cases) {
    it(`${where}: ${name}`, async () => {
      for (const [value, errorClass] of values) {
        const error = await failure(call(value));
        assert.ok(error instanceof errorClass, `${inspect(value)}: ${inspect(error)}`);
        assert.ok(error.message.includes(name), `${name} is in: ${error.message}`);
        assert.ok(error.message.includes(inspect(value)), `${inspect(value)} is in: ${error.message}`);
      }
    });
  }

  const unknownOptions: [where: string, name: string, call: () => unknown][] = [
    ['WebApiServer', 'prot', server({ systemStatus, prot: 1 })],
    ['WebApiClient', 'timeOut', client('localhost', 8391, { timeOut: 1 })],
    ['waitFor', 'timeOut', waitFor(PAUSED, { timeout: 50, timeOut: 1 })],
    ['launch', 'webApiPort', run({ step }, { webApiAddress: null, webApiPort: 1 })],
  ];
  for (const [where, name, call] of unknownOptions) {
    it(`${where}: an unknown option`, async () => {
      const error = await failure(call);
      assert.ok(error instanceof TypeError && error.message.includes(name), inspect(error));
    });
  }

  it('launch: webApiCommandQueueSize without a web API', async () => {
    const error = await failure(run({ step }, { webApiAddress: null, webApiCommandQueueSize: 0 }));
    assert.ok(error instanceof RangeError, inspect(error));
  });

  it('but undefined is as good as none', () => {
    server({ systemStatus, host: undefined, port: undefined, maxQueueSize: undefined })();
    client(undefined, undefined, { timeout: undefined })();
  });
});

// ───── The HTTP face ─────────────────────────────────────────────────────────────────────────────────────────────

const ENDPOINTS: { path: string; allowed: string[]; body: string; command: ControlCommand | null }[] = [
  { path: '/api/status', allowed: ['GET', 'HEAD'], body: '{"status":"active"}', command: null },
  { path: '/api/pause', allowed: ['POST'], body: '{"result":"ok"}', command: 'pause' },
  { path: '/api/resume', allowed: ['POST'], body: '{"result":"ok"}', command: 'resume' },
  { path: '/api/shutdown', allowed: ['POST'], body: '{"result":"ok"}', command: 'shutdown' },
  { path: '/api/save-state', allowed: ['POST'], body: '{"result":"ok"}', command: 'save-state' },
];
const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'];
const INVALID_METHOD = '{"error":"Invalid API method"}';
const INVALID_ENDPOINT = '{"error":"Invalid API endpoint"}';

for (const { path, allowed, body, command } of ENDPOINTS) {
  describe(path, LIMIT, () => {
    for (const method of METHODS) {
      const isAllowed = allowed.includes(method);
      it(`answers ${method} with ${isAllowed ? 200 : 405}`, async (t) => {
        const { server, port } = await start(t);
        const reply = await ask(port, method, path);
        checkReply(reply, isAllowed ? 200 : 405, isAllowed ? body : INVALID_METHOD, method);
        assert.equal(reply.headers.allow, isAllowed ? undefined : allowed.join(', '));
        assert.deepEqual(takeAll(server), isAllowed && command !== null ? [command] : []);
      });
    }

    it('ignores a query and takes an absolute-form target', async (t) => {
      const { server, port } = await start(t);
      const targets = ['?x=1', '?', '?a=/api/pause?b=/'].map((query) => path + query);
      targets.push(`http://example.org${path}`, `HTTP://example.org:1${path}?x=1`, `https://[::1]${path}`);
      for (const target of targets) checkReply(await ask(port, allowed[0] as string, target), 200, body);
      assert.deepEqual(takeAll(server), command === null ? [] : targets.map(() => command));
    });

    it('does not mind a body', async (t) => {
      const { server, port } = await start(t);
      const bodies = [
        'Content-Length: 0\r\n\r\n',
        'Content-Length: 2\r\n\r\n{}',
        'Content-Length: 200000\r\n\r\n' + 'x'.repeat(200_000),
        'Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
        'Transfer-Encoding: chunked\r\n\r\n5;extension\r\nhello\r\n0\r\nTrailer: 1\r\n\r\n',
        'Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}',
      ];
      for (const bytes of bodies) {
        const text = `${allowed[0]} ${path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n${bytes}`;
        const replies = await talk(port, text);
        if (bytes.startsWith('Expect')) assert.equal(replies.shift()?.statusCode, 100);
        assert.equal(replies.length, 1, text.slice(0, 200));
        checkReply(replies[0] as Reply, 200, body);
      }
      assert.deepEqual(takeAll(server), command === null ? [] : bodies.map(() => command));
    });

    it('answers HTTP/1.0', async (t) => {
      const { port } = await start(t);
      const [reply] = await talk(port, `${allowed[0]} ${path} HTTP/1.0\r\n\r\n`);
      checkReply(reply as Reply, 200, body);
    });
  });
}

describe('A path that is no endpoint', LIMIT, () => {
  const paths = [
    '/', '/api', '/api/', '/api/status/', '//api/status', '/api//status', '/api/%73tatus', '/API/STATUS', '/api/Status',
    '/api/status;x', '/api/status.json', '/api/status/x', '/x/../api/status', '/api/pause/', '/api/pause%20',
    '/api/save_state', '/api/statu', '/?/api/status', '*', 'http://example.org', 'http://example.org/api',
    'ftp://example.org/api/status', 'http://example.org//api/status', 'http://?/api/status', '/constructor',
  ];
  for (const path of paths) {
    it(`${path} is answered with 404`, async (t) => {
      const { server, port } = await start(t);
      for (const method of METHODS) checkReply(await ask(port, method, path), 404, INVALID_ENDPOINT, method);
      assert.deepEqual(takeAll(server), []);
    });
  }
});

describe('What node refuses itself', LIMIT, () => {
  const head = 'POST /api/pause HTTP/1.1\r\nHost: x\r\n';
  const long = 'x'.repeat(17 * 1024);
  const refusals: [name: string, statusCode: number, text: string][] = [
    ['a malformed request line', 400, 'POST /api/pause\tHTTP/1.1\r\n\r\n'],
    ['no HTTP at all', 400, '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03'],
    ['an unknown method', 400, 'PAUSE /api/pause HTTP/1.1\r\nHost: x\r\n\r\n'],
    ['an unknown version', 400, 'POST /api/pause HTTP/3.7\r\nHost: x\r\n\r\n'],
    ['a missing Host', 400, 'POST /api/pause HTTP/1.1\r\nConnection: close\r\n\r\n'],
    ['a missing Host before a body', 400, 'POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx'],
    ['a space in a header name', 400, `${head}a b: c\r\n\r\n`],
    ['a malformed length', 400, `${head}Content-Length: 1x\r\n\r\nx`],
    ['two lengths', 400, `${head}Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx`],
    ['a length and chunks', 400, `${head}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`],
    ['a malformed chunk', 400, `${head}Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n`],
    ['a malformed second chunk', 400, `${head}Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\nzz\r\n0\r\n\r\n`],
    ['chunk extensions without end', 413, `${head}Transfer-Encoding: chunked\r\n\r\n1;${long}\r\nx\r\n0\r\n\r\n`],
    ['an expectation', 417, `${head}Expect: cookies\r\nConnection: close\r\n\r\n`],
    ['a long header', 431, `${head}Cookie: ${long}\r\n\r\n`],
    ['a long path', 431, `POST /api/pause?${long} HTTP/1.1\r\nHost: x\r\n\r\n`],
  ];
  for (const [name, statusCode, text] of refusals) {
    it(`${name} is answered with ${statusCode} in JSON and queues nothing`, async (t) => {
      const { server, port, client } = await start(t);
      const replies = await talk(port, text);
      assert.equal(replies.length, 1);
      const { error, ...others } = JSON.parse(replies[0]?.body as string);
      assert.ok(typeof error === 'string' && error !== '');
      assert.deepEqual(others, {});
      checkReply(replies[0] as Reply, statusCode, replies[0]?.body as string);
      assert.equal(replies[0]?.headers.connection, 'close');
      assert.equal(await client.resume(), 'ok');
      assert.deepEqual(takeAll(server), ['resume']);
    });
  }
});

describe('A request that does not arrive whole', LIMIT, () => {
  const head = 'POST /api/pause HTTP/1.1\r\nHost: x\r\n';
  const starts: [name: string, text: string][] = [
    ['in its header', 'POST /api/pause HTTP/1.1\r\nHost: x\r\nX-'],
    ['before its body', `${head}Content-Length: 10\r\n\r\n`],
    ['in its body', `${head}Content-Length: 10\r\n\r\nabc`],
    ['before its first chunk', `${head}Transfer-Encoding: chunked\r\n\r\n`],
    ['in a chunk', `${head}Transfer-Encoding: chunked\r\n\r\na\r\nabc`],
    ['before the last chunk', `${head}Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n`],
    ['in its trailer', `${head}Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-`],
  ];
  for (const [name, text] of starts) {
    it(`but is cut ${name} queues nothing`, async (t) => {
      const { server, port, client } = await start(t);

      const ended = await open(t, port);
      ended.end(text);
      ended.resume();
      await once(ended, 'close');

      const destroyed = await open(t, port);
      await new Promise((resolve) => destroyed.write(text, resolve));
      await sleep(5); // so that the server has read the beginning before it sees the end
      destroyed.destroy();

      for (let round = 0; round < 3; round += 1) await client.getStatus();
      assert.equal(await client.resume(), 'ok');
      assert.deepEqual(takeAll(server), ['resume']);
    });
  }
});

describe('A client that has ended its side of the connection', LIMIT, () => {
  for (const { path, allowed, body } of ENDPOINTS) {
    it(`is answered at ${path}`, async (t) => { // as `printf … | nc -N` does it
      const { port } = await start(t, { maxQueueSize: 100 });
      for (let round = 0; round < 20; round += 1) {
        const socket = await open(t, port);
        const replies = readReplies(socket);
        socket.end(`${allowed[0]} ${path} HTTP/1.1\r\nHost: x\r\n\r\n`);
        assert.deepEqual((await replies).map((reply) => reply.body), [body], `round ${round}`);
      }
    });
  }
});

describe('Pipelined requests', LIMIT, () => {
  it('are all answered, in their order', async (t) => {
    const { server, port } = await start(t);
    const replies = await talk(port, [
      'POST /api/pause HTTP/1.1\r\nHost: x\r\n\r\n',
      'GET /api/status HTTP/1.1\r\nHost: x\r\n\r\n',
      'GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n',
      'POST /api/resume HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n',
    ].join(''));
    assert.deepEqual(replies.map(({ body }) => body), [
      '{"result":"ok"}', '{"status":"active"}', INVALID_ENDPOINT, '{"result":"ok"}',
    ]);
    assert.deepEqual(takeAll(server), ['pause', 'resume']);
  });

  it('are queued in their order, with a body or without', async (t) => {
    const { server, port } = await start(t);
    await talk(port, [
      'POST /api/pause HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc',
      'POST /api/resume HTTP/1.1\r\nHost: x\r\n\r\n',
      'POST /api/save-state HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
      'POST /api/shutdown HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n',
    ].join(''));
    assert.deepEqual(takeAll(server), ['pause', 'resume', 'save-state', 'shutdown']);
  });

  for (const body of ['\r\n', 'Content-Length: 3\r\n\r\nabc']) {
    it(`queue what they answer with ok when garbage follows (${JSON.stringify(body)})`, async (t) => {
      const { server, port } = await start(t);
      const replies = await talk(port, `POST /api/pause HTTP/1.1\r\nHost: x\r\n${body}GARBAGE\r\n\r\n`);
      const accepted = replies.filter(({ statusCode }) => statusCode === 200).length;
      assert.equal(replies.at(-1)?.statusCode, 400);
      assert.equal(takeAll(server).length, accepted);
    });
  }

  it('give a status from after the command before them', async (t) => {
    let status: SystemStatus = ACTIVE;
    const { server, port } = await start(t, { systemStatus: () => status });
    const posts = ['Content-Length: 2\r\n\r\n{}', '\r\n'].map((rest) => `POST /api/pause HTTP/1.1\r\nHost: x\r\n${rest}`);
    const get = 'GET /api/status HTTP/1.1\r\nHost: x\r\n';
    for (let round = 0; round < 20; round += 1) {
      for (const post of posts) {
        status = ACTIVE;
        const obeyed = server.nextCommand().then(() => (status = PAUSED));
        const replies = await talk(port, `${get}\r\n${post}${get}Connection: close\r\n\r\n`);
        await obeyed;
        assert.equal(replies.at(-1)?.body, '{"status":"paused"}', `round ${round}`);
      }
    }
  });

  it('do no harm when garbage follows a question', async (t) => {
    const { server, port, client } = await start(t);
    for (let round = 0; round < 20; round += 1) {
      const replies = await talk(port, 'GET /api/status HTTP/1.1\r\nHost: x\r\n\r\nGARBAGE\r\n\r\n');
      assert.equal(replies.at(-1)?.statusCode, 400);
    }
    assert.equal(await client.getStatus(), ACTIVE);
    assert.deepEqual(takeAll(server), []);
  });
});

// ───── The queue ─────────────────────────────────────────────────────────────────────────────────────────────────

describe('The queue', LIMIT, () => {
  const counters: [count: number, meaning: string][] = [
    [0, 'zero'], [2 ** 31 - 3, 'just below 2³¹'], [-3, 'just below 2³²'],
  ];
  for (const [count, meaning] of counters) {
    it(`holds exactly maxQueueSize commands, in their order, counting from ${meaning}`, async (t) => {
      const random = randomNumbers(1);
      for (const maxQueueSize of [1, 2, 3, 5, 7, 16, 100, 1000]) {
        const { server, port, memory } = await startAt(t, { [CELL.HEAD]: count, [CELL.TAIL]: count }, { maxQueueSize });
        const rounds = maxQueueSize === 1000 ? 1 : 4; // enough for the smallest ring to pass the edge
        for (let round = 0; round < rounds; round += 1) {
          const posted = Array.from({ length: maxQueueSize + 2 }, () => randomCommand(random));
          const replies = await postAll(port, posted);
          replies.forEach((reply, place) => {
            if (place < maxQueueSize) checkReply(reply, 200, '{"result":"ok"}');
            else checkReply(reply, 503, `{"error":"${QUEUE_FULL}"}`);
          });

          assert.equal(server.hasCommands(), true);
          assert.equal(server.receiveCommand(), posted[0]);
          const more = await postAll(port, ['save-state', 'pause']);
          assert.deepEqual(more.map(({ statusCode }) => statusCode), [200, 503]);
          assert.deepEqual(takeAll(server), [...posted.slice(1, maxQueueSize), 'save-state']);
          assert.throws(() => server.receiveCommand(), EmptyError);
        }
        const end = (count + rounds * (maxQueueSize + 1)) | 0;
        assert.deepEqual([memory[CELL.HEAD], memory[CELL.TAIL]], [end, end], 'the counters have counted on');
        await server.close();
      }
    });
  }

  it('holds up to 65536 commands', async (t) => {
    const { server, port } = await startAt(t, { [CELL.HEAD]: 65_535 - 9, [CELL.TAIL]: -9 }, { maxQueueSize: 65_536 });
    const replies = await postAll(port, ['pause', 'resume']);
    assert.deepEqual(replies.map(({ statusCode }) => statusCode), [200, 503]);
    assert.equal(takeAll(server).length, 65_536);
  });

  it('delivers what was accepted from one client exactly once and in order', async (t) => {
    const { server, client } = await start(t, { maxQueueSize: 7 });
    const random = randomNumbers(2);
    const accepted: ControlCommand[] = [];
    let isOver = false;
    const host = takeAtRandom(server, () => isOver);
    while (accepted.length < 1000) {
      const command = randomCommand(random);
      const reply = await client.request(command);
      if (reply.ok) accepted.push(command);
      else assert.deepEqual(reply, { ok: false, error: QUEUE_FULL, answered: true });
    }
    isOver = true;
    assert.deepEqual((await host).taken, accepted);
  });

  it('delivers what was accepted from 16 clients exactly once', async (t) => {
    const { server, port } = await start(t, { maxQueueSize: 7 });
    const accepted: ControlCommand[] = [];
    let isOver = false;
    let refused = 0;
    const host = takeAtRandom(server, () => isOver);
    await Promise.all(Array.from({ length: 16 }, async (_, number) => {
      const random = randomNumbers(number);
      const client = new WebApiClient('127.0.0.1', port);
      t.after(() => client.close());
      for (let count = 0; count < 190;) {
        const command = randomCommand(random);
        const reply = await client.request(command);
        if (reply.ok) {
          accepted.push(command);
          count += 1;
        } else {
          assert.deepEqual(reply, { ok: false, error: QUEUE_FULL, answered: true });
          refused += 1;
        }
      }
    }));
    isOver = true;
    const { taken, aborted } = await host;
    assert.deepEqual(countWords(taken), countWords(accepted));
    assert.ok(refused > 0 && aborted > 0, 'the queue was full at times, and waits were aborted');
  });

  it('delivers what was accepted while the server was closed', async (t) => {
    for (let round = 0; round < 5; round += 1) {
      const { server, port } = await start(t, { maxQueueSize: 5000 });
      const accepted: ControlCommand[] = [];
      const posts = Promise.all(Array.from({ length: 8 }, async (_, number) => {
        const random = randomNumbers(number);
        const client = new WebApiClient('127.0.0.1', port);
        t.after(() => client.close());
        for (;;) {
          const command = randomCommand(random);
          const reply = await client.request(command);
          if (!reply.ok) return;
          accepted.push(command);
        }
      }));
      while (accepted.length < 100) await nextTurn();
      const taken = takeAll(server);
      await server.close();
      await posts;
      taken.push(...takeAll(server));
      assert.deepEqual(countWords(taken), countWords(accepted));
    }
  });
});

describe('receiveCommand()', LIMIT, () => {
  it('throws EmptyError when no command waits, started or not', async (t) => {
    const { server } = await start(t);
    for (const one of [server, new WebApiServer({ systemStatus: () => ACTIVE })]) {
      assert.equal(one.hasCommands(), false);
      assert.throws(() => one.receiveCommand(), (error: Error) => {
        return error instanceof EmptyError && error.name === 'EmptyError' && error.message !== '';
      });
    }
  });
});

// ───── The start ─────────────────────────────────────────────────────────────────────────────────────────────────

describe('runInBackground()', LIMIT, () => {
  it('resolves with the address that is bound', async (t) => {
    const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0 });
    t.after(() => server.close());
    const address = await server.runInBackground();
    assert.deepEqual(Object.keys(address), ['host', 'port']);
    assert.equal(address.host, '127.0.0.1');
    assert.ok(Number.isInteger(address.port) && address.port > 0, inspect(address.port));
    checkReply(await ask(address.port, 'GET', '/api/status'), 200, '{"status":"active"}');
  });

  it('serves localhost at 127.0.0.1 and ::1, on one port', async (t) => {
    const families = Object.values(networkInterfaces()).flat().map((one) => one?.address);
    const { port } = await start(t, { host: 'localhost' });
    for (const host of ['127.0.0.1', '::1']) {
      if (families.includes(host)) assert.equal(await new WebApiClient(host, port).getStatus(), ACTIVE, host);
    }
  });

  it('rejects when it runs already', async (t) => {
    const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0 });
    t.after(() => server.close());
    const first = server.runInBackground();
    await assert.rejects(server.runInBackground(), /runs already/);
    const { port } = await first;
    await assert.rejects(server.runInBackground(), /runs already/);
    assert.equal((await ask(port, 'GET', '/api/status')).statusCode, 200);
  });

  it('rejects when the server was closed', async (t) => {
    const { server } = await start(t);
    await server.close();
    await assert.rejects(server.runInBackground(), /closed/);
    const unused = new WebApiServer({ systemStatus: () => ACTIVE, port: 0 });
    await unused.close();
    await assert.rejects(unused.runInBackground(), /closed/);
  });

  it('rejects on a taken port, and can be tried again', async (t) => {
    const { squatter, port } = await listen(t, () => {});
    const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port });
    t.after(() => server.close());
    for (let attempt = 0; attempt < 2; attempt += 1) {
      await assert.rejects(server.runInBackground(), (error: NodeJS.ErrnoException) => {
        return error.code === 'EADDRINUSE' && error.message.includes(`127.0.0.1:${port}`);
      });
    }
    await new Promise((resolve) => squatter.close(resolve));
    assert.deepEqual(await server.runInBackground(), { host: '127.0.0.1', port });
    const client = new WebApiClient('127.0.0.1', port);
    const command = server.nextCommand();
    assert.equal(await client.pause(), 'ok');
    assert.equal(await command, 'pause');
    assert.equal(await client.getStatus(), ACTIVE);
  });

  it('rejects on a port of localhost that is taken at one of its addresses', async (t) => {
    const { port } = await listen(t, () => {});
    const server = new WebApiServer({ systemStatus: () => ACTIVE, host: 'localhost', port });
    await assert.rejects(server.runInBackground(), { code: 'EADDRINUSE' });
  });

  it('rejects on a host that does not resolve or is not here', async () => {
    for (const host of ['nosuch.invalid', '192.0.2.1']) { // RFC 6761 §6.4, RFC 5737 §3
      const server = new WebApiServer({ systemStatus: () => ACTIVE, host, port: 0 });
      await assert.rejects(server.runInBackground(), (error: NodeJS.ErrnoException) => {
        return typeof error.code === 'string' && error.message.includes(host);
      });
    }
  });

  it('does not keep a process alive when it fails', async (t) => {
    const { port } = await listen(t, () => {});
    const host = await runHost(t, `
      const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port });
      server.runInBackground().catch((error) => say(error.code));
    `, { port });
    assert.deepEqual(await host.hearAll(), ['EADDRINUSE']);
    assert.deepEqual(await host.end(), { code: 0, signal: null, errors: '' });
  });

  it('resolves before a process that awaits nothing else ends, and does not keep it alive', async (t) => {
    const host = await runHost(t, `
      const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0 });
      process.on('exit', () => say('exit'));
      const address = await server.runInBackground();
      say(address.port > 0);
    `);
    assert.deepEqual(await host.hearAll(), [true, 'exit']);
    assert.deepEqual(await host.end(), { code: 0, signal: null, errors: '' });
  });
});

// A host that does what it is told and never yields: it never learns that its server has started.
const OBEDIENT_HOST = `
  let status = SystemStatus.ACTIVE;
  const server = new WebApiServer({ systemStatus: () => status, host: '127.0.0.1', port, maxQueueSize: 100 });
  server.runInBackground();
  const next = { 'pause': PAUSED, 'resume': ACTIVE, 'shutdown': SHUTTING_DOWN };
  while (status !== SHUTTING_DOWN) {
    while (server.hasCommands()) {
      const command = server.receiveCommand();
      say(command);
      status = next[command] || status;
    }
  }
`;

describe('A host that never yields', LIMIT, () => {
  it('is served, and gets every command in order', async (t) => {
    const port = await freePort();
    const host = await runHost(t, OBEDIENT_HOST, { port });
    const client = new WebApiClient('127.0.0.1', port);
    await client.waitFor(ACTIVE);
    const random = randomNumbers(3);
    const posted: ControlCommand[] = [];
    while (posted.length < 200) {
      const command = randomCommand(random, ['pause', 'resume', 'save-state']);
      if ((await client.request(command)).ok) posted.push(command);
    }
    assert.equal(await client.shutdown(), 'ok');
    assert.deepEqual(await host.hearAll(), [...posted, 'shutdown']);
    assert.deepEqual(await host.end(), { code: 0, signal: null, errors: '' });
  });

  it('shows who posts and then asks what came of it', async (t) => {
    const port = await freePort();
    await runHost(t, OBEDIENT_HOST, { port });
    await postAndAsk(new WebApiClient('127.0.0.1', port));
  });

  it('is not waited for by each request when it does not poll, and its status gets an age', async (t) => {
    const port = await freePort();
    await runHost(t, `
      const block = (milliseconds) => {
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, milliseconds);
      };
      const server = new WebApiServer({ systemStatus: () => PAUSED, host: '127.0.0.1', port });
      server.runInBackground();
      block(2000);
      for (;;) {
        server.hasCommands();
        block(1);
      }
    `, { port });
    const client = new WebApiClient('127.0.0.1', port);
    await client.waitFor(PAUSED);
    const began = performance.now();
    for (let round = 0; round < 300; round += 1) assert.equal(await client.getStatus(), PAUSED);
    assert.ok(performance.now() - began < 1500, 'the 10 ms are not waited for 300 times');

    const askAge = async (): Promise<string | undefined> => {
      const reply = await ask(port, 'GET', '/api/status');
      checkReply(reply, 200, '{"status":"paused"}');
      return reply.headers.age;
    };
    let age = await askAge();
    while (age === undefined) age = await askAge();
    assert.match(age, /^[1-9]\d*$/);
    while (age !== undefined) age = await askAge(); // until it polls again
    const polledSince = performance.now();
    while (performance.now() - polledSince < 1300) assert.equal(await askAge(), undefined);
  });
});

// ───── The provider ──────────────────────────────────────────────────────────────────────────────────────────────

describe('systemStatus()', LIMIT, () => {
  it('is called at the start, at each hasCommands() and nextCommand(), and when a client asks', async (t) => {
    let calls = 0;
    const countCalls = async (action: () => unknown): Promise<number> => {
      calls = 0;
      await action();
      return calls;
    };
    const systemStatus = (): SystemStatus => {
      calls += 1;
      return ACTIVE;
    };
    const server = new WebApiServer({ systemStatus, host: '127.0.0.1', port: 0 });
    t.after(() => server.close());
    assert.equal(calls, 0);
    const { port } = await server.runInBackground();
    const controller = new AbortController();
    assert.equal(calls, 1);
    assert.equal(await countCalls(() => server.hasCommands()), 1);
    assert.equal(await countCalls(() => ask(port, 'POST', '/api/pause')), 0);
    assert.equal(await countCalls(() => server.hasCommands()), 1);
    assert.equal(await countCalls(() => server.receiveCommand()), 0);
    assert.equal(await countCalls(() => assert.throws(() => server.receiveCommand())), 0);
    assert.equal(await countCalls(() => void server.nextCommand({ signal: controller.signal }).catch(() => {})), 1);
    assert.equal(await countCalls(() => controller.abort()), 0);
    assert.equal(await countCalls(() => ask(port, 'GET', '/api/status')), 1);
    assert.equal(await countCalls(() => ask(port, 'GET', '/api/nowhere')), 0);
  });

  for (const blockMs of [0, 30]) {
    it(`is called once for all who ask at a time${blockMs > 0 ? ', also after a block' : ''}`, async (t) => {
      let calls = 0;
      const { port } = await start(t, {
        systemStatus: () => {
          calls += 1;
          return ACTIVE;
        },
      });
      const sockets = await Promise.all(Array.from({ length: 50 }, () => open(t, port)));
      const question = 'GET /api/status HTTP/1.1\r\nHost: x\r\n\r\n';
      const last = 'GET /api/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n';
      calls = 0;
      const began = performance.now();
      const replies = Promise.all(sockets.map(readReplies));
      for (const socket of sockets) socket.write(question.repeat(7) + last);
      blockThread(blockMs);
      assert.equal((await replies).flat().filter(({ statusCode }) => statusCode === 200).length, 400);
      const elapsedMs = performance.now() - began - blockMs;
      // A question is asked 1 ms after the answer to the one before at the soonest.
      assert.ok(calls > 0 && calls <= elapsedMs + 2, `${calls} calls in ${elapsedMs} ms for 400 requests`);
    });
  }

  it('is called once a millisecond at most for those who ask one after the other', async (t) => {
    let calls = 0;
    const { port } = await start(t, {
      systemStatus: () => {
        calls += 1;
        return ACTIVE;
      },
    });
    const socket = await open(t, port); // a client that takes far less than a millisecond for a request
    calls = 0;
    const began = performance.now();
    for (let round = 0; round < 300; round += 1) {
      socket.write('GET /api/status HTTP/1.1\r\nHost: x\r\n\r\n');
      await once(socket, 'data');
    }
    const elapsedMs = performance.now() - began;
    assert.ok(calls > 0 && calls <= elapsedMs + 2, `${calls} calls in ${elapsedMs} ms for 300 requests`);
  });

  it('is asked for across the edges of its counter', async (t) => {
    for (const edge of [2 ** 31, 2 ** 31, 2 ** 31, 0]) { // each has only one round that could be wrong
      let status: SystemStatus = ACTIVE;
      const count = edge - 10;
      const cells = { [CELL.CALLS]: count, [CELL.QUESTION]: count, [CELL.ANSWER]: count };
      const { server, client, memory } = await startAt(t, cells, { systemStatus: () => status });
      for (let round = 0; round < 20; round += 1) {
        status = round % 2 === 0 ? PAUSED : ACTIVE;
        await client.pause(); // so that the status is asked for
        server.receiveCommand();
        assert.equal(await askQuickly(client) ?? status, status, `round ${round}`);
      }
      const isPast = ((memory[CELL.CALLS] as number) - edge) | 0;
      assert.ok(isPast > 0 && isPast < 1000, `${memory[CELL.CALLS]} is past ${edge}`);
    }
  });

  it('is an internal error while it throws, and is warned of once per message', async (t) => {
    const warnings = collectWarnings(t);
    let failureText: string | null = null;
    const { server, port, client } = await start(t, {
      systemStatus: () => {
        if (failureText !== null) throw new Error(failureText);
        return PAUSED;
      },
    });
    for (const text of ['lost', 'lost again', 'lost']) {
      failureText = text;
      for (let round = 0; round < 3; round += 1) {
        server.hasCommands();
        checkReply(await ask(port, 'GET', '/api/status'), 500, INTERNAL_ERROR);
        checkReply(await ask(port, 'HEAD', '/api/status'), 500, INTERNAL_ERROR, 'HEAD');
      }
      assert.equal(await client.getStatus(), OFFLINE);
      assert.equal(await client.pause(), 'ok');
      assert.deepEqual(takeAll(server), ['pause']);
      failureText = null;
      checkReply(await ask(port, 'GET', '/api/status'), 200, '{"status":"paused"}');
    }
    assert.equal(warnings.length, 2, inspect(warnings));
    assert.match(warnings[0] as string, /systemStatus.*lost$/);
    assert.match(warnings[1] as string, /systemStatus.*lost again$/);
  });

  const notStatuses: unknown[] = [
    undefined, null, 'active', 5, {}, Promise.resolve(ACTIVE), OFFLINE, { statusName: 'sleeping' }, { statusName: 0 },
  ];
  for (const value of notStatuses) {
    it(`is an internal error when it returns ${inspect(value)}`, async (t) => {
      const warnings = collectWarnings(t);
      const { server, port } = await start(t, { systemStatus: () => value as SystemStatus });
      for (let round = 0; round < 3; round += 1) {
        checkReply(await ask(port, 'GET', '/api/status'), 500, INTERNAL_ERROR);
        server.hasCommands();
      }
      assert.equal(warnings.length, 1, inspect(warnings));
      assert.ok(warnings[0]?.includes('systemStatus') && warnings[0].includes(inspect(value)), warnings[0]);
    });
  }

  it('may return a status of another copy of the module', async (t) => {
    const { port } = await start(t, { systemStatus: () => ({ statusName: 'resuming' }) });
    checkReply(await ask(port, 'GET', '/api/status'), 200, '{"status":"resuming"}');
  });

  it('is not warned of without end', async (t) => {
    const warnings = collectWarnings(t);
    let calls = 0;
    const { server } = await start(t, {
      systemStatus: () => {
        throw new Error(`failure ${calls += 1}`);
      },
    });
    for (let round = 0; round < 1000; round += 1) server.hasCommands();
    assert.ok(warnings.length > 1 && warnings.length <= 100, String(warnings.length));
  });

  it('gives each status its name', async (t) => {
    let status: SystemStatus = ACTIVE;
    const { port } = await start(t, { systemStatus: () => status });
    for (status of [PAUSING, PAUSED, RESUMING, SHUTTING_DOWN, ACTIVE]) {
      checkReply(await ask(port, 'POST', '/api/save-state'), 200, '{"result":"ok"}'); // so that the status is asked for
      checkReply(await ask(port, 'GET', '/api/status'), 200, `{"status":"${status.statusName}"}`);
    }
  });
});

// ───── nextCommand() and close() ─────────────────────────────────────────────────────────────────────────────────

describe('nextCommand()', LIMIT, () => {
  it('resolves with a command that waits, and with one that comes', async (t) => {
    const { server, client } = await start(t);
    await client.pause();
    assert.equal(await server.nextCommand(), 'pause');
    const next = server.nextCommand();
    await sleep(20);
    await client.saveState();
    assert.equal(await next, 'save-state');
    assert.equal(server.hasCommands(), false);
  });

  it('lets a host show who posts and then asks what came of it', async (t) => {
    let status: SystemStatus = ACTIVE;
    const { server, client } = await start(t, { systemStatus: () => status });
    const host = async (): Promise<void> => {
      for (;;) status = (await server.nextCommand()) === 'pause' ? PAUSED : ACTIVE;
    };
    const end = assert.rejects(host(), EmptyError);
    await postAndAsk(client);
    await server.close();
    await end;
  });

  it('serves those who wait in their order', async (t) => {
    const { server, port } = await start(t);
    const order: string[] = [];
    const wait = async (name: string): Promise<void> => {
      order.push(`${name} ${await server.nextCommand()}`);
    };
    const waits = ['first', 'second', 'third'].map(wait);
    await postAll(port, ['pause', 'save-state', 'resume', 'shutdown']);
    await Promise.all(waits);
    assert.deepEqual(order, ['first pause', 'second save-state', 'third resume']);
    assert.deepEqual(takeAll(server), ['shutdown']);
  });

  it('rejects with the reason of its signal, and loses no command', async (t) => {
    const { server, client } = await start(t);
    const controller = new AbortController();
    const reason = new Error('enough');
    const aborted = server.nextCommand({ signal: controller.signal });
    const other = server.nextCommand();
    controller.abort(reason);
    await assert.rejects(aborted, reason);
    await client.pause();
    await client.resume();
    assert.equal(await other, 'pause');
    assert.equal(await server.nextCommand(), 'resume');
  });

  it('rejects with EmptyError when a server that never ran is closed', async () => {
    const server = new WebApiServer({ systemStatus: () => ACTIVE, port: 0 });
    const next = assert.rejects(server.nextCommand(), EmptyError);
    await server.close();
    await next;
  });

  it('takes nothing with a signal that is aborted already', async (t) => {
    const { server, client } = await start(t);
    await client.pause();
    const reason = new Error('enough');
    await assert.rejects(server.nextCommand({ signal: AbortSignal.abort(reason) }), reason);
    assert.deepEqual(takeAll(server), ['pause']);
  });

  it('leaves no listener on its signal', async (t) => {
    const { server, client } = await start(t);
    const { signal } = new AbortController();
    for (let round = 0; round < 50; round += 1) {
      const next = server.nextCommand({ signal });
      await client.pause();
      assert.equal(await next, 'pause');
    }
    const last = server.nextCommand({ signal });
    assert.equal(getEventListeners(signal, 'abort').length, 1);
    await server.close();
    await assert.rejects(last, EmptyError);
    assert.equal(getEventListeners(signal, 'abort').length, 0);
  });

  it('rejects with EmptyError when the server is closed, unless a command waits', async (t) => {
    const { server, client } = await start(t);
    const waiting = [server.nextCommand(), server.nextCommand()].map((next) => assert.rejects(next, EmptyError));
    await server.close();
    await Promise.all(waiting);
    await assert.rejects(server.nextCommand(), EmptyError);
    client.close();

    const other = await start(t);
    await other.client.pause();
    await other.server.close();
    assert.equal(await other.server.nextCommand(), 'pause');
    await assert.rejects(other.server.nextCommand(), EmptyError);
  });

  it('keeps the process alive, and lets it end afterwards', async (t) => {
    const host = await runHost(t, `
      const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0 });
      say((await server.runInBackground()).port);
      say(await server.nextCommand());
      const controller = new AbortController();
      setTimeout(() => controller.abort(), 50);
      await server.nextCommand({ signal: controller.signal }).catch((error) => say(error.name));
    `);
    const client = new WebApiClient('127.0.0.1', await host.hear());
    await sleep(200);
    assert.equal(host.process.exitCode, null);
    assert.equal(await client.pause(), 'ok');
    assert.deepEqual(await host.hearAll(), ['pause', 'AbortError']);
    assert.deepEqual(await host.end(), { code: 0, signal: null, errors: '' });
  });
});

describe('close()', LIMIT, () => {
  it('frees the port and keeps the commands accepted before', async (t) => {
    const { server, port, client } = await start(t);
    await client.pause();
    await client.resume();
    await server.close();
    await assert.rejects(open(t, port), { code: 'ECONNREFUSED' });
    assert.equal(await client.getStatus(), OFFLINE);
    assert.deepEqual(takeAll(server), ['pause', 'resume']);
    const next = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port });
    t.after(() => next.close());
    assert.equal((await next.runInBackground()).port, port);
  });

  it('may be called again, before the start, and during the start', async (t) => {
    const { server } = await start(t);
    await Promise.all([server.close(), server.close()]);
    await server.close();

    const unused = new WebApiServer({ systemStatus: () => ACTIVE, port: 0 });
    await unused.close();

    const starting = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0 });
    const [started] = await Promise.allSettled([starting.runInBackground(), starting.close()]);
    if (started.status === 'fulfilled') {
      await assert.rejects(open(t, started.value.port), { code: 'ECONNREFUSED' });
    }

    const { port } = await listen(t, () => {});
    const failing = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port });
    const failed = assert.rejects(failing.runInBackground(), { code: 'EADDRINUSE' });
    await failing.close();
    await failed;
  });

  it('lets the process end', async (t) => {
    const host = await runHost(t, `
      const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0 });
      await server.runInBackground();
      const next = server.nextCommand().catch((error) => say(error.name));
      await server.close();
      await next;
      say('closed');
    `);
    assert.deepEqual(await host.hearAll(), ['EmptyError', 'closed']);
    assert.deepEqual(await host.end(), { code: 0, signal: null, errors: '' });
  });

  it('is not held up by an idle connection', async (t) => {
    const { server, port } = await start(t);
    const socket = await open(t, port);
    socket.write('GET /api/status HTTP/1.1\r\nHost: x\r\n\r\n');
    await once(socket, 'data');
    const began = performance.now();
    await server.close();
    assert.ok(performance.now() - began < 900, 'the grace of a second is for requests under way');
  });

  it('answers a request under way, delivers its command, and ends its connection', async (t) => {
    const { server, port } = await start(t);
    const socket = await open(t, port);
    socket.write('POST /api/pause HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n');
    await once(socket, 'data'); // 100 Continue: the request is under way
    const replies = readReplies(socket);
    const closed = server.close();
    const next = server.nextCommand();
    while (await open(t, port).then(() => true, () => false)) await sleep(2); // until the server knows
    socket.write('{}');
    await closed;
    const [reply, ...others] = await replies;
    checkReply(reply as Reply, 200, '{"result":"ok"}');
    assert.equal(reply?.headers.connection, 'close');
    assert.deepEqual(others, []);
    assert.equal(await next, 'pause');
  });

  it('is not held up by a client that keeps asking', async (t) => {
    const { server, client } = await start(t);
    let isOver = false;
    const asking = (async () => {
      while (!isOver) await client.getStatus();
    })();
    await sleep(20);
    const began = performance.now();
    await server.close();
    const took = performance.now() - began;
    isOver = true;
    await asking;
    assert.ok(took < 900, `the grace of a second is for requests under way, took ${took} ms`);
  });

  it('cuts a request that does not end', async (t) => {
    const { server, port } = await start(t);
    const socket = await open(t, port);
    socket.write('POST /api/pause HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n');
    await once(socket, 'data');
    const cut = once(socket, 'close');
    await server.close();
    await cut;
    assert.deepEqual(takeAll(server), []);
  });
});

// ───── WebApiClient ──────────────────────────────────────────────────────────────────────────────────────────────

describe('WebApiClient', LIMIT, () => {
  it('asks for the status and posts each command', async (t) => {
    let status: SystemStatus = ACTIVE;
    const { server, client } = await start(t, { systemStatus: () => status });
    assert.equal(await client.pause(), 'ok');
    assert.equal(await client.resume(), 'ok');
    assert.equal(await client.saveState(), 'ok');
    assert.equal(await client.shutdown(), 'ok');
    assert.deepEqual(takeAll(server), ['pause', 'resume', 'save-state', 'shutdown']);
    for (status of [ACTIVE, PAUSING, PAUSED, RESUMING, SHUTTING_DOWN]) {
      await client.waitFor(status);
      assert.equal(await client.getStatus(), status);
    }
    assert.deepEqual(await client.request('status'), { ok: true, value: 'shutting down' });
    assert.deepEqual(await client.request('save-state'), { ok: true, value: 'ok' });
  });

  it('reports a system that is not there as OFFLINE and null', async () => {
    const port = await freePort();
    const client = new WebApiClient('127.0.0.1', port);
    assert.equal(await client.getStatus(), OFFLINE);
    for (const method of ['pause', 'resume', 'saveState', 'shutdown'] as const) {
      assert.equal(await client[method](), null);
    }
    const reply = await client.request('status');
    assert.ok(!reply.ok && !reply.answered && reply.error.includes(`127.0.0.1:${port}`), inspect(reply));
    assert.equal(await new WebApiClient('nosuch.invalid', 1).getStatus(), OFFLINE);
  });

  it('has the base URL of the system', () => {
    assert.equal(new WebApiClient().baseUrl, 'http://localhost:8391');
    assert.equal(new WebApiClient('::1', 80).baseUrl, 'http://[::1]:80');
  });

  it('tells a refusal from silence', async (t) => {
    const { client } = await start(t, { maxQueueSize: 1 });
    assert.equal(await client.pause(), 'ok');
    assert.equal(await client.pause(), null);
    assert.deepEqual(await client.request('pause'), { ok: false, error: QUEUE_FULL, answered: true });
  });

  it('sends nothing when its signal is aborted already, and cuts a request short', async (t) => {
    const { server, client } = await start(t);
    const reply = await client.request('pause', AbortSignal.abort());
    assert.ok(!reply.ok && !reply.answered);
    assert.deepEqual(takeAll(server), []);

    const controller = new AbortController();
    const { port } = await listen(t, () => controller.abort());
    const cut = await new WebApiClient('127.0.0.1', port).request('pause', controller.signal);
    assert.ok(!cut.ok && !cut.answered);
  });

  const reply = (body: string, statusLine = '200 OK', length = body.length): string =>
    `HTTP/1.1 ${statusLine}\r\nContent-Type: application/json\r\nContent-Length: ${length}\r\n\r\n${body}`;
  const again = (socket: Socket, text: string, milliseconds: number): void => {
    const timer = setInterval(() => socket.write(text), milliseconds);
    socket.on('close', () => clearInterval(timer));
  };
  it('replaces a kept connection that turns out to be dead', async (t) => {
    let connections = 0;
    const server = createServer((socket) => {
      connections += 1;
      socket.on('error', () => {});
      socket.once('data', () => {
        socket.write('HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"result":"ok"}');
        socket.once('data', () => socket.destroy());
      });
    });
    const client = new WebApiClient('127.0.0.1', await listenOnLoopback(t, server));
    t.after(() => client.close());
    for (let round = 0; round < 5; round += 1) assert.equal(await client.pause(), 'ok', `round ${round}`);
    assert.ok(connections > 1);
  });

  const nonsense: [name: string, answer: string | ((socket: Socket) => void)][] = [
    ['never answers', () => {}],
    ['closes at once', (socket) => socket.end()],
    ['resets at once', (socket) => socket.resetAndDestroy()],
    ['answers with garbage', '\x00\x01\x02garbage\r\n\r\n'.repeat(10)],
    ['stops in the header', 'HTTP/1.1 200 OK\r\nContent-'],
    ['stops in the body', reply('{"status":"active"', '200 OK', 40)],
    ['closes in the body', (socket) => socket.end(reply('{"status":"active"}', '200 OK', 40))],
    ['sends a malformed chunk', 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n'],
    ['sends 10 MB', reply(`{"status":"active","result":"ok","x":"${'x'.repeat(10 << 20)}"}`)],
    ['sends a body without end', (socket) => {
      socket.write('HTTP/1.1 200 OK\r\n\r\n');
      again(socket, ' '.repeat(10_000), 1);
    }],
    ['drips a body', (socket) => {
      socket.write('HTTP/1.1 200 OK\r\n\r\n{"status":"');
      again(socket, 'a', 20);
    }],
    ['sends a header without end', (socket) => {
      socket.write('HTTP/1.1 200 OK\r\nX: ');
      again(socket, 'x'.repeat(1000), 1);
    }],
    ['answers 102 for ever', (socket) => again(socket, 'HTTP/1.1 102 Processing\r\n\r\n', 5)],
    ['switches protocols', 'HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nhello'],
    ['redirects', 'HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/api/status\r\nContent-Length: 0\r\n\r\n'],
    ['redirects in JSON', reply('{"status":"active","result":"ok"}', '307 Temporary Redirect')],
    ['has no content', 'HTTP/1.1 204 No Content\r\n\r\n'],
    ['answers with an empty body', reply('')],
    ['answers with a page', reply('<!doctype html>')],
    ['answers 404 with a page', reply('<!doctype html>', '404 Not Found')],
    ['answers with null', reply('null')],
    ['answers with an array', reply('["active"]')],
    ['answers with a string', reply('"active"')],
    ['answers with a number', reply('5')],
    ['answers with another field', reply('{"state":"active"}')],
    ['answers with a number in the field', reply('{"status":0,"result":0}')],
    ['answers with null in the field', reply('{"status":null,"result":null}')],
    ['answers with an object in the field', reply('{"status":{"x":1},"result":["ok"]}')],
    ['answers 200 with an error', reply('{"error":"no"}')],
    ['answers 500 with an error that is no text', reply('{"error":{"x":1}}', '500 Internal Server Error')],
  ];
  for (const [name, answer] of nonsense) {
    it(`ends within its timeout when the server ${name}`, { timeout: 10_000 }, async (t) => {
      const { port } = await listen(t, typeof answer === 'string' ? (socket) => socket.write(answer) : answer);
      const client = new WebApiClient('127.0.0.1', port, { timeout: 300 });
      const [status, result, raw] = await Promise.all([client.getStatus(), client.pause(), client.request('status')]);
      assert.equal(status, OFFLINE);
      assert.equal(result, null);
      assert.ok(!raw.ok && !raw.answered && raw.error.includes(`127.0.0.1:${port}`), inspect(raw));
    });
  }

  for (const statusName of ['sleeping', 'offline', 'ACTIVE', '', 'constructor']) {
    it(`reports the status ${inspect(statusName)} as OFFLINE`, async (t) => {
      const { port } = await listen(t, (socket) => socket.write(reply(JSON.stringify({ status: statusName }))));
      assert.equal(await new WebApiClient('127.0.0.1', port).getStatus(), OFFLINE);
    });
  }

  it('reads other forms of a good answer', async (t) => {
    const body = '{"status":"active","result":"ok","more":[1]}';
    const forms = [
      reply(body, '200 Fine'),
      reply(body, '200 '),
      reply(`\n {"status" : "\\u0061ctive",\n "result" : "ok"}\n`),
      `HTTP/1.1 103 Early Hints\r\n\r\n${reply(body)}`,
      `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n${(body.length - 1).toString(16)}\r\n` +
        `${body.slice(1)}\r\n0\r\n\r\n`,
      `HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n${body}`,
    ];
    for (const form of forms) {
      const { port } = await listen(t, (socket) => {
        socket.write(form);
        if (form.includes('close')) socket.end();
      });
      const client = new WebApiClient('127.0.0.1', port);
      assert.equal(await client.getStatus(), ACTIVE, form);
      assert.equal(await new WebApiClient('127.0.0.1', port).pause(), 'ok', form);
      client.close();
    }
  });

  it('sends well-formed requests with no body', async (t) => {
    const requests: unknown[] = [];
    const server = createHttpServer((request, response) => {
      const { host, 'content-length': length, 'transfer-encoding': encoding } = request.headers;
      requests.push([request.method, request.url, host, encoding ?? (Number(length ?? 0) || 'no body')]);
      response.end('{"status":"active","result":"ok"}');
    });
    const port = await listenOnLoopback(t, server);
    const client = new WebApiClient('127.0.0.1', port);
    await client.getStatus();
    for (const method of ['pause', 'resume', 'saveState', 'shutdown'] as const) await client[method]();
    client.close();
    assert.deepEqual(requests, [
      ['GET', '/api/status'], ['POST', '/api/pause'], ['POST', '/api/resume'], ['POST', '/api/save-state'],
      ['POST', '/api/shutdown'],
    ].map(([method, path]) => [method, path, `127.0.0.1:${port}`, 'no body']));
  });

  it('keeps its connection for the next request', async (t) => {
    let connections = 0;
    const server = createHttpServer((_request, response) => response.end('{"status":"active","result":"ok"}'));
    server.on('connection', () => (connections += 1));
    const client = new WebApiClient('127.0.0.1', await listenOnLoopback(t, server));
    for (let round = 0; round < 5; round += 1) {
      assert.equal(await client.getStatus(), ACTIVE);
      assert.equal(await client.pause(), 'ok');
      await sleep(20);
    }
    assert.equal(connections, 1);
    client.close();
    assert.equal(await client.getStatus(), ACTIVE, 'a closed client can be used again');
    assert.equal(connections, 2);
    client.close();
  });

  it('finds a server that was started again', async (t) => {
    const { server, port, client } = await start(t);
    assert.equal(await client.getStatus(), ACTIVE);
    await server.close();
    await start(t, { port, systemStatus: () => PAUSED });
    assert.equal(await client.getStatus(), PAUSED);
  });

  it('lets the process end when it is idle', async (t) => {
    const { port } = await start(t);
    const host = await runHost(t, `
      const client = new WebApiClient('127.0.0.1', port);
      say((await client.getStatus()).statusName);
      say(await client.pause());
    `, { port });
    assert.equal(await host.hear(), 'active');
    assert.equal(await host.hear(), 'ok');
    const began = performance.now();
    assert.deepEqual(await host.end(), { code: 0, signal: null, errors: '' });
    assert.ok(performance.now() - began < 2500, 'neither the connection (4 s) nor the timer (5 s) is waited for');
  });
});

describe('waitFor()', LIMIT, () => {
  it('does not take a system that cannot tell its status for one that is gone', async (t) => {
    collectWarnings(t);
    let isReady = false;
    const { client } = await start(t, { systemStatus: () => (isReady ? ACTIVE : assert.fail('not yet')) });
    await assert.rejects(client.waitFor(OFFLINE, { timeout: 200 }), { name: 'TimeoutError' });
    setTimeout(() => (isReady = true), 100);
    const seen: SystemStatus[] = [];
    await client.waitFor(ACTIVE, { onStatus: (status) => seen.push(status) });
    assert.deepEqual(seen, [ACTIVE]);
  });

  it('resolves when the status is reached, and tells of changes only', async (t) => {
    let samples = 0;
    const { client } = await start(t, {
      systemStatus: () => {
        samples += 1;
        return samples < 4 ? ACTIVE : samples < 7 ? PAUSING : PAUSED;
      },
    });
    const seen: SystemStatus[] = [];
    await client.waitFor(PAUSED, { onStatus: (status) => seen.push(status) });
    assert.deepEqual(seen, [ACTIVE, PAUSING, PAUSED]);
    await client.waitFor(PAUSED, { onStatus: (status) => seen.push(status) });
    assert.deepEqual(seen.slice(3), [PAUSED]);
  });

  it('waits for OFFLINE', async (t) => {
    const { server, client } = await start(t);
    let isGone = false;
    const seen: SystemStatus[] = [];
    const gone = client.waitFor(OFFLINE, {
      onStatus: (status) => {
        seen.push(status);
        if (status === ACTIVE) void server.close().then(() => (isGone = true));
      },
    });
    await gone;
    await server.close();
    assert.ok(isGone);
    assert.deepEqual(seen, [ACTIVE, OFFLINE]);
  });

  it('rejects with TimeoutError, also when the server never answers', async (t) => {
    const { client } = await start(t);
    await assert.rejects(client.waitFor(PAUSED, { timeout: 100 }), { name: 'TimeoutError' });
    const { port } = await listen(t, () => {});
    const silent = new WebApiClient('127.0.0.1', port, { timeout: 50_000 });
    const statuses: SystemStatus[] = [];
    const wait = silent.waitFor(OFFLINE, { timeout: 100, onStatus: (status) => statuses.push(status) });
    await assert.rejects(wait, { name: 'TimeoutError' });
    assert.deepEqual(statuses, [], 'a request that is cut short tells nothing of the system');
  });

  it('takes a fraction of a millisecond', async (t) => {
    const { client } = await start(t);
    await assert.rejects(client.waitFor(PAUSED, { timeout: 60.5 }), { name: 'TimeoutError' });
  });

  it('rejects with the reason of its signal', async (t) => {
    const { client } = await start(t);
    const reason = new Error('enough');
    const options = { signal: AbortSignal.abort(reason), onStatus: () => assert.fail('it asked') };
    await assert.rejects(client.waitFor(ACTIVE, options), reason);

    const controller = new AbortController();
    const wait = client.waitFor(PAUSED, { signal: controller.signal, onStatus: () => controller.abort(reason) });
    await assert.rejects(wait, reason);

    const { port } = await listen(t, () => later.abort(reason));
    const later = new AbortController();
    const silent = new WebApiClient('127.0.0.1', port, { timeout: 50_000 });
    await assert.rejects(silent.waitFor(PAUSED, { signal: later.signal }), reason);
    assert.equal(getEventListeners(later.signal, 'abort').length, 0);
  });

  it('rejects with what onStatus throws', async (t) => {
    const { client } = await start(t);
    const error = new Error('no more');
    await assert.rejects(client.waitFor(PAUSED, {
      onStatus: () => {
        throw error;
      },
    }), error);
  });
});

// ───── launch() ──────────────────────────────────────────────────────────────────────────────────────────────────

describe('launch()', LIMIT, () => {
  it('pauses, resumes, saves and shuts down in the documented order', async (t) => {
    const { client, log, finished } = await startSystem(t);
    const expectLog = async (...entries: string[]): Promise<void> => {
      await until(() => log.length >= entries.length);
      assert.deepEqual(log.splice(0), entries);
    };
    assert.equal(await client.getStatus(), ACTIVE);

    await client.pause();
    await expectLog('onPaused while pausing');
    await client.waitFor(PAUSED);

    await client.saveState();
    await expectLog('saveState while paused');
    assert.equal(await client.getStatus(), PAUSED);

    await client.resume();
    await expectLog('onResumed while resuming');
    await client.waitFor(ACTIVE);

    await client.saveState();
    await expectLog('onPaused while pausing', 'saveState while paused', 'onResumed while resuming');
    await client.waitFor(ACTIVE);

    await client.shutdown();
    await expectLog('saveState while shutting down', 'onShutdown while shutting down');
    await finished;
    assert.equal(await client.getStatus(), OFFLINE);
  });

  it('shuts down while paused, and leaves the commands behind it', async (t) => {
    const { client, port, log, finished } = await startSystem(t);
    await client.pause();
    await client.waitFor(PAUSED);
    await postAll(port, ['shutdown', 'resume', 'save-state']);
    await finished;
    assert.deepEqual(log.slice(1), ['saveState while shutting down', 'onShutdown while shutting down']);
  });

  it('does nothing about a command that asks for what is so already', async (t) => {
    const { client, port, log, finished } = await startSystem(t);
    await postAll(port, ['resume', 'resume', 'pause', 'pause', 'pause']);
    await until(() => log.length > 0);
    await client.waitFor(PAUSED);
    await postAll(port, ['pause', 'resume', 'resume', 'shutdown']);
    await finished;
    assert.deepEqual(log, [
      'onPaused while pausing', 'onResumed while resuming',
      'saveState while shutting down', 'onShutdown while shutting down',
    ]);
  });

  it('steps while active and only then', async (t) => {
    let steps = 0;
    const { client } = await startSystem(t, {
      step: () => {
        steps += 1;
        return sleep(1);
      },
    });
    await until(() => steps > 3);
    await client.pause();
    await client.waitFor(PAUSED);
    const stepsThen = steps;
    await sleep(100);
    assert.equal(steps, stepsThen);
    await client.resume();
    await until(() => steps > stepsThen + 3);
  });

  for (const [kind, call] of [
    ['synchronous', (action: () => void) => action()],
    ['asynchronous', async (action: () => void) => sleep(5).then(action)],
  ] as const) {
    it(`takes ${kind} steps and hooks, one at a time`, async (t) => {
      const log: string[] = [];
      let running: string | null = null;
      const alone = (name: string) => (): unknown => {
        assert.equal(running, null);
        running = name;
        return call(() => {
          running = null;
          if (name !== 'step') log.push(name);
        });
      };
      const { port, finished } = await startSystem(t, { step: alone('step') }, {}, {
        onPaused: alone('onPaused'),
        onResumed: alone('onResumed'),
        saveState: alone('saveState'),
        onShutdown: alone('onShutdown'),
      });
      await postAll(port, ['pause', 'save-state', 'resume', 'save-state', 'shutdown']);
      await finished;
      assert.deepEqual(log, [
        'onPaused', 'saveState', 'onResumed', 'onPaused', 'saveState', 'onResumed', 'saveState', 'onShutdown',
      ]);
    });
  }

  it('awaits onListening before the first step', async (t) => {
    const log: string[] = [];
    const { finished, client } = await startSystem(t, {
      step: () => {
        log.push('step');
        return sleep(1);
      },
    }, {}, {
      onListening: async () => {
        await sleep(50);
        log.push('onListening');
      },
    });
    await until(() => log.length > 1);
    await client.shutdown();
    await finished;
    assert.deepEqual(log.slice(0, 2), ['onListening', 'step']);
  });

  it('stays active when onPaused fails, and saves nothing then', async (t) => {
    const warnings = collectWarnings(t);
    const { client, log, port } = await startSystem(t, { onPaused: fail('no brakes') });
    await postAll(port, ['pause', 'save-state', 'resume']);
    await until(() => warnings.length === 2);
    await client.waitFor(ACTIVE);
    assert.deepEqual(log, ['onPaused while pausing', 'onPaused while pausing']);
    assert.match(warnings[0] as string, /onPaused.*no brakes/);
  });

  it('stays paused when onResumed fails', async (t) => {
    const warnings = collectWarnings(t);
    const { client, log } = await startSystem(t, { onResumed: fail('no start') });
    await client.saveState();
    await until(() => warnings.length === 1);
    await client.waitFor(PAUSED);
    await client.resume();
    await until(() => warnings.length === 2);
    await client.waitFor(PAUSED);
    assert.deepEqual(log, [
      'onPaused while pausing', 'saveState while paused', 'onResumed while resuming', 'onResumed while resuming',
    ]);
    assert.match(warnings[0] as string, /onResumed.*no start/);
  });

  it('goes on when saveState fails, and ends when it fails at the end', async (t) => {
    const warnings = collectWarnings(t);
    let steps = 0;
    const { client, log, finished } = await startSystem(t, {
      step: () => {
        steps += 1;
        return sleep(1);
      },
      saveState: fail('disk full'),
      onShutdown: fail('no end'),
    });
    await client.saveState();
    await until(() => warnings.length === 1);
    await client.waitFor(ACTIVE);
    const stepsThen = steps;
    await until(() => steps > stepsThen);
    await client.shutdown();
    await finished;
    assert.deepEqual(log, [
      'onPaused while pausing', 'saveState while paused', 'onResumed while resuming',
      'saveState while shutting down', 'onShutdown while shutting down',
    ]);
    assert.equal(warnings.length, 3);
    assert.match(warnings[0] as string, /saveState.*disk full/);
    assert.equal(warnings[1], warnings[0]);
    assert.match(warnings[2] as string, /onShutdown.*no end/);
  });

  for (const kind of ['throws', 'rejects']) {
    it(`rejects with the error of a step that ${kind}, closes the server and saves nothing`, async (t) => {
      const error = new Error('out of memory');
      const handlers = countSignalHandlers();
      let isBroken = false;
      const { client, log, finished, port } = await startSystem(t, {
        step: () => {
          if (!isBroken) return sleep(1);
          if (kind === 'rejects') return sleep(1).then(() => Promise.reject(error));
          throw error;
        },
      });
      assert.equal(await client.getStatus(), ACTIVE); // leaves a connection that has to be closed
      isBroken = true;
      await assert.rejects(finished, error);
      await assert.rejects(open(t, port), { code: 'ECONNREFUSED' });
      assert.deepEqual(log, []);
      assert.equal(countSignalHandlers(), handlers);
    });
  }

  it('rejects with the error of onListening', async () => {
    const error = new Error('no log');
    const running = launch({
      step: () => assert.fail('a step ran'),
      onListening: () => {
        throw error;
      },
    }, { webApiAddress: ['127.0.0.1', 0] });
    await assert.rejects(running, error);
  });

  it('rejects when the web API cannot listen, before any step', async (t) => {
    const { port } = await listen(t, () => {});
    const handlers = countSignalHandlers();
    const step = (): void => assert.fail('a step ran');
    await assert.rejects(launch({ step }, { webApiAddress: ['127.0.0.1', port] }), { code: 'EADDRINUSE' });
    assert.equal(countSignalHandlers(), handlers);
  });

  it('serves a system that has nothing but steps', async (t) => {
    const port = await freePort();
    const deadline = performance.now() + 10_000;
    const finished = launch({
      step: () => {
        assert.ok(performance.now() < deadline, 'it should have been shut down');
        return sleep(1);
      },
    }, { webApiAddress: ['127.0.0.1', port] });
    finished.catch(() => {});
    const client = new WebApiClient('127.0.0.1', port);
    t.after(() => client.close());
    await client.waitFor(ACTIVE, { timeout: 9000 });
    await client.pause();
    await client.waitFor(PAUSED);
    await client.saveState();
    await client.resume();
    await client.waitFor(ACTIVE);
    await client.shutdown();
    await finished;
  });

  it('has signal handlers while it runs, and none before or after', async (t) => {
    const handlers = countSignalHandlers();
    const { client, finished } = await startSystem(t);
    assert.equal(countSignalHandlers(), handlers + 2);
    await client.shutdown();
    await finished;
    assert.equal(countSignalHandlers(), handlers);
    await assert.rejects(launch({ step: () => {} }, { webApiAddress: ['', 0] }), RangeError);
    assert.equal(countSignalHandlers(), handlers);
  });

  it('takes the size of the queue', async (t) => {
    const { port, client, finished } = await startSystem(t, {
      onPaused: async () => {
        const replies = await postAll(port, ['resume', 'shutdown', 'resume']);
        assert.deepEqual(replies.map(({ statusCode }) => statusCode), [200, 200, 503]);
      },
    }, { webApiCommandQueueSize: 2 });
    const warnings = collectWarnings(t);
    await client.pause();
    await finished;
    assert.deepEqual(warnings, []);
  });

  for (const [kind, step] of [
    ['never awaits', () => {}],
    ['never awaits and takes long', () => blockThread(20)],
    ['awaits nothing that takes time', async () => {}],
  ] as const) {
    it(`gives timers their turn when a step ${kind}`, async (t) => {
      const { client, finished } = await startSystem(t, { step });
      let ticks = 0;
      const timer = setInterval(() => {
        ticks += 1;
        if (ticks === 10) void client.shutdown();
      }, 1);
      t.after(() => clearInterval(timer));
      await finished;
    });
  }

  it('shows its status while a hook blocks the thread', async (t) => {
    const host = await runHost(t, `
      const block = (hook) => () => {
        say(hook);
        readSync(0, Buffer.alloc(1));
      };
      await launch({
        step() {},
        onListening: (address) => say(address.port),
        onPaused: block('onPaused'),
        onResumed: block('onResumed'),
        saveState: block('saveState'),
        onShutdown: block('onShutdown'),
      }, { webApiAddress: ['127.0.0.1', 0] });
    `);
    const client = new WebApiClient('127.0.0.1', await host.hear());
    const passHook = async (hook: string, status: SystemStatus): Promise<void> => {
      assert.equal(await host.hear(), hook);
      assert.equal(await client.getStatus(), status);
      host.process.stdin?.write('.');
    };
    await client.pause();
    await passHook('onPaused', PAUSING);
    await client.waitFor(PAUSED);
    await client.resume();
    await passHook('onResumed', RESUMING);
    await client.waitFor(ACTIVE);
    await client.saveState();
    await passHook('onPaused', PAUSING);
    await passHook('saveState', PAUSED);
    await passHook('onResumed', RESUMING);
    await client.shutdown();
    await passHook('saveState', SHUTTING_DOWN);
    await passHook('onShutdown', SHUTTING_DOWN);
    assert.deepEqual(await host.end(), { code: 0, signal: null, errors: '' });
  });

  it('stays alive while it is paused, and uses next to no CPU', async (t) => {
    const host = await runHost(t, `
      const measure = () => {
        const before = process.cpuUsage();
        setTimeout(() => {
          const { user, system } = process.cpuUsage(before);
          say((user + system) / 1000);
        }, 1500);
      };
      await launch({
        step() {},
        onListening: (address) => say(address.port),
        onPaused: () => void setTimeout(measure, 200),
      }, { webApiAddress: ['127.0.0.1', 0] });
    `);
    const client = new WebApiClient('127.0.0.1', await host.hear());
    await client.pause();
    await client.waitFor(PAUSED);
    client.close();
    const usedMs = await host.hear<number>();
    assert.ok(usedMs < 75, `${usedMs} ms of CPU in 1500 ms`);
    await sleep(200); // no timer of the host's is left to keep it alive
    assert.equal(host.process.exitCode, null);
    await client.resume();
    await client.waitFor(ACTIVE);
    await client.shutdown();
    assert.deepEqual(await host.end(), { code: 0, signal: null, errors: '' });
  });

  it('starts no thread and opens no socket when webApiAddress is null', async (t) => {
    const watch = (address: string): string => `
      let threads = 0;
      process.on('worker', () => threads++);
      let steps = 0;
      await launch({
        async step() {
          await new Promise((resolve) => setTimeout(resolve, 2));
          if (++steps !== 20) return;
          const sockets = process.getActiveResourcesInfo().filter((name) => /TCP|UDP|PipeServer/.test(name));
          say({ threads, sockets });
          process.kill(process.pid, 'SIGTERM');
        },
        onListening: () => say('listening'),
        onShutdown: () => say('onShutdown'),
      }, { webApiAddress: ${address} });
    `;
    const without = await runHost(t, watch('null'));
    assert.deepEqual(await without.hearAll(), [{ threads: 0, sockets: [] }, 'onShutdown']);
    assert.deepEqual(await without.end(), { code: 0, signal: null, errors: '' });
    const control = await runHost(t, watch(`['127.0.0.1', 0]`));
    assert.deepEqual(await control.hearAll(), ['listening', { threads: 1, sockets: [] }, 'onShutdown']);
  });
});

describe('A signal to launch()', { ...LIMIT, ...POSIX_ONLY }, () => {
  const host = `
    await launch({
      step() {},
      onListening: (address) => say(address.port),
      onPaused: () => say('onPaused'),
      saveState: () => say('saveState'),
      onShutdown: () => say('onShutdown'),
    }, { webApiAddress: ['127.0.0.1', 0] });
    say('end');
  `;
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    for (const state of ['active', 'paused']) {
      it(`${signal} is a shutdown while ${state}`, async (t) => {
        const { process: child, hear, hearAll, end } = await runHost(t, host);
        const client = new WebApiClient('127.0.0.1', await hear());
        if (state === 'paused') {
          await client.pause();
          assert.equal(await hear(), 'onPaused');
          await client.waitFor(PAUSED);
        }
        child.kill(signal);
        assert.deepEqual(await hearAll(), ['saveState', 'onShutdown', 'end']);
        assert.deepEqual(await end(), { code: 0, signal: null, errors: '' });
      });
    }
  }

  it('is noticed while commands come as fast as they are obeyed', async (t) => {
    const { process: child, hear, end } = await runHost(t, `
      const saveState = () => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20);
      await launch({ step() {}, saveState, onListening: (address) => say(address.port) }, { webApiAddress: ['127.0.0.1', 0] });
    `);
    const port = await hear() as number;
    const clients = [1, 2, 3].map(() => new WebApiClient('127.0.0.1', port));
    const flood = clients.map(async (client) => {
      while (child.exitCode === null && child.signalCode === null) await client.saveState();
      client.close();
    });
    await sleep(200);
    child.kill('SIGTERM');
    assert.deepEqual(await end(), { code: 0, signal: null, errors: '' });
    await Promise.all(flood);
  });

  for (const address of ["['127.0.0.1', 0]", 'null']) {
    it(`is noticed after the step in which it comes, even the first, with webApiAddress ${address}`, async (t) => {
      const { hearAll, end } = await runHost(t, `
        let steps = 0;
        const step = () => {
          steps += 1;
          if (steps === 1) process.kill(process.pid, 'SIGTERM');
          Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 50);
        };
        await launch({ step }, { webApiAddress: ${address} });
        say(steps);
      `);
      assert.deepEqual(await hearAll(), [1]);
      assert.deepEqual(await end(), { code: 0, signal: null, errors: '' });
    });
  }

  for (const [kind, hang] of [
    ['waits', 'new Promise((resolve) => setTimeout(resolve, 1e6))'],
    ['blocks', 'Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)'],
  ] as const) {
    it(`kills when it is the second, while saveState ${kind}`, async (t) => {
      const hanging = host.replace(`say('saveState')`, `(say('saving'), ${hang})`);
      const { process: child, hear, end } = await runHost(t, hanging);
      await hear();
      child.kill('SIGINT');
      assert.equal(await hear(), 'saving');
      child.kill('SIGTERM');
      assert.deepEqual(await end(), { code: null, signal: 'SIGTERM', errors: '' });
    });
  }
});

// ───── The module in other programs ──────────────────────────────────────────────────────────────────────────────

describe('The module', LIMIT, () => {
  const builds: [name: string, options: BuildOptions][] = [
    ['as it is', {}],
    ['with minify and keepNames', { minify: true, keepNames: true }],
    ['for es2017 with keepNames', { target: 'es2017', keepNames: true }],
  ];
  for (const [name, options] of builds) {
    it(`controls a host that it is bundled with ${name}`, async (t) => {
      const port = await freePort();
      const host = await runHost(t, OBEDIENT_HOST, { port }, options);
      const client = new WebApiClient('127.0.0.1', port);
      await client.waitFor(ACTIVE);
      assert.equal(await client.pause(), 'ok');
      await client.waitFor(PAUSED);
      assert.equal(await client.shutdown(), 'ok');
      assert.deepEqual(await host.hearAll(), ['pause', 'shutdown']);
      assert.deepEqual(await host.end(), { code: 0, signal: null, errors: '' });
    });
  }

  it('starts no preloaded module in its thread', async (t) => {
    const folder = await makeFolder(t);
    const [imported, required] = [join(folder, 'imported.mjs'), join(folder, 'required.cjs')];
    await writeFile(imported, `console.log('"imported"');`);
    await writeFile(required, `console.log('"required"');`);
    const host = await runHost(t, `
      const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0 });
      await server.runInBackground();
      await server.close();
    `, { nodeOptions: ['--import', pathToFileURL(imported).href, '--require', required] });
    assert.deepEqual(await host.hearAll(), ['required', 'imported']);
    assert.deepEqual(await host.end(), { code: 0, signal: null, errors: '' });
  });

  it('can be required by its package name from CommonJS, and its client used', async (t) => {
    const file = join(await makeFolder(t), 'host.cjs');
    await writeFile(file, `
      const { createRequire } = require('node:module');
      const { SystemStatus, WebApiClient, WebApiServer } =
        createRequire(${JSON.stringify(join(PROJECT, 'package.json'))})('runtime-control');
      const server = new WebApiServer({ systemStatus: () => SystemStatus.PAUSED, host: '127.0.0.1', port: 0 });
      server.runInBackground().then(async ({ port }) => {
        const client = new WebApiClient('127.0.0.1', port);
        console.log(JSON.stringify((await client.getStatus()).statusName));
        await client.pause();
        console.log(JSON.stringify(server.receiveCommand()));
        await server.close();
      });
    `);
    const host = spawnHost(t, [file]);
    assert.deepEqual(await host.hearAll(), ['paused', 'pause']);
    assert.equal((await host.end()).code, 0); // node may warn that require() of ESM is experimental
  });

  it('does nothing when it is imported', async (t) => {
    const host = await runHost(t, `say([process.listenerCount('SIGINT'), process.listenerCount('SIGTERM')]);`);
    assert.deepEqual(await host.hearAll(), [[0, 0]]);
    assert.deepEqual(await host.end(), { code: 0, signal: null, errors: '' });
  });
});

// ───── Servers and systems to test ───────────────────────────────────────────────────────────────────────────────

interface Started {
  server: WebApiServer;
  port: number;
  client: WebApiClient;
}

/** Runs a server on a free port until the end of the test. */
async function start(t: TestContext, options: Partial<WebApiServerOptions> = {}): Promise<Started> {
  const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0, ...options });
  t.after(() => server.close());
  const { port } = await server.runInBackground();
  const client = new WebApiClient('127.0.0.1', port);
  t.after(() => client.close());
  return { server, port, client };
}

// Places in the shared memory, which is private.
const CELL = { HEAD: 0, CALLS: 1, QUESTION: 2, TAIL: 16, ANSWER: 19 } as const;

/** Runs a server that has counted so far already: its memory is caught as it is made. */
async function startAt(
  t: TestContext,
  cells: Record<number, number>,
  options: Partial<WebApiServerOptions>,
): Promise<Started & { memory: Int32Array }> {
  let memory: Int32Array = new Int32Array();
  globalThis.SharedArrayBuffer = new Proxy(SharedArrayBuffer, {
    construct(original, [length]) {
      globalThis.SharedArrayBuffer = original;
      memory = new Int32Array(new original(length));
      for (const [cell, value] of Object.entries(cells)) memory[Number(cell)] = value;
      return memory.buffer;
    },
  });
  const started = await start(t, options);
  return { ...started, memory };
}

interface LaunchedSystem {
  port: number;
  client: WebApiClient;
  /** The hooks that were called, and the status that a client saw then. */
  log: string[];
  finished: Promise<void>;
}

/** Launches a system that logs its hooks and then calls those given, until the end of the test. */
async function startSystem(
  t: TestContext,
  given: Partial<System> = {},
  config: LaunchConfig = {},
  unlogged: Partial<System> = {},
): Promise<LaunchedSystem> {
  // A loop that lets nothing else of this process run could not be ended by anything but a step.
  const deadline = performance.now() + 30_000;
  const log: string[] = [];
  const logged = (hook: 'onPaused' | 'onResumed' | 'saveState' | 'onShutdown') => async (): Promise<void> => {
    log.push(`${hook} while ${(await client.getStatus()).statusName}`);
    await given[hook]?.();
  };
  let finished: Promise<void> = Promise.resolve();
  const { port } = await new Promise<WebApiAddress>((resolve, reject) => {
    finished = launch({
      step: () => {
        assert.ok(performance.now() < deadline, 'the system should have been shut down by now');
        return given.step ? given.step() : sleep(1);
      },
      onPaused: logged('onPaused'),
      onResumed: logged('onResumed'),
      saveState: logged('saveState'),
      onShutdown: logged('onShutdown'),
      ...unlogged,
      onListening: (address) => {
        resolve(address);
        return unlogged.onListening?.(address);
      },
    }, { webApiAddress: ['127.0.0.1', 0], ...config });
    finished.catch(reject);
  });
  const client = new WebApiClient('127.0.0.1', port);
  t.after(async () => {
    await client.shutdown();
    await finished.catch(() => {});
    client.close();
  });
  return { port, client, log, finished };
}

function fail(message: string) {
  return (): never => {
    throw new Error(message);
  };
}

function countSignalHandlers(): number {
  return process.listenerCount('SIGINT') + process.listenerCount('SIGTERM');
}

// ───── Hosts in processes of their own ───────────────────────────────────────────────────────────────────────────

interface Host {
  readonly process: ChildProcess;
  /** Waits for the next value that the host says. */
  hear<Value>(): Promise<Value>;
  /** Waits for the end of the host, and returns what it has said until then. */
  hearAll(): Promise<unknown[]>;
  end(): Promise<{ code: number | null; signal: NodeJS.Signals | null; errors: string }>;
}

const PRELUDE = `
  import { readSync, writeSync } from 'node:fs';
  import { EmptyError, SystemStatus, WebApiClient, WebApiServer, launch } from './control.ts';
  const { ACTIVE, PAUSED, SHUTTING_DOWN } = SystemStatus;
  const say = (value) => { writeSync(1, JSON.stringify(value) + '\\n'); };
  const port = Number(process.argv[2]);
`;

/** Bundles a program with control.ts and runs it until the end of the test. */
async function runHost(
  t: TestContext,
  source: string,
  { port, nodeOptions = [] }: { port?: number; nodeOptions?: string[] } = {},
  options: BuildOptions = {},
): Promise<Host> {
  const outfile = join(await makeFolder(t), 'host.mjs');
  await build({
    stdin: { contents: PRELUDE + source, resolveDir: PROJECT },
    outfile,
    bundle: true,
    platform: 'node',
    format: 'esm',
    logLevel: 'error',
    ...options,
  });
  return spawnHost(t, [...nodeOptions, outfile, String(port)]);
}

function spawnHost(t: TestContext, args: string[]): Host {
  const child = spawn(process.execPath, args);
  t.after(() => child.kill('SIGKILL'));
  const closed = once(child, 'close');
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  let errors = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => (errors += text));
  return {
    process: child,
    async hear() {
      const { value, done } = await lines.next();
      if (done === true) throw new Error(`The host has ended: ${errors}`);
      return JSON.parse(value);
    },
    async hearAll() {
      const values: unknown[] = [];
      for await (const line of lines) values.push(JSON.parse(line));
      return values;
    },
    async end() {
      const [code, signal] = await closed;
      return { code, signal, errors };
    },
  };
}

async function makeFolder(t: TestContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'control-test-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

/** For a host that never yields, and so never learns which port was picked. Nobody else listens there by now. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

// ───── Requests and replies ──────────────────────────────────────────────────────────────────────────────────────

interface Reply {
  statusCode: number;
  headers: IncomingHttpHeaders;
  body: string;
}

function checkReply({ statusCode, headers, body }: Reply, expectedCode: number, expected: string, method = ''): void {
  assert.equal(statusCode, expectedCode);
  assert.equal(headers['content-type'], 'application/json');
  assert.equal(headers['content-length'], String(expected.length));
  assert.equal(headers['cache-control'], 'no-store');
  assert.equal(headers['x-content-type-options'], 'nosniff');
  assert.equal(body, method === 'HEAD' ? '' : expected);
}

async function ask(port: number, method: string, path: string): Promise<Reply> {
  const request = httpRequest({ host: '127.0.0.1', port, method, path }).end();
  const [response] = await once(request, 'response');
  let body = '';
  for await (const chunk of response.setEncoding('utf8')) body += chunk;
  return { statusCode: response.statusCode, headers: response.headers, body };
}

async function open(t: TestContext, port: number): Promise<Socket> {
  const socket = connect(port, '127.0.0.1');
  t.after(() => socket.destroy());
  await once(socket, 'connect');
  socket.on('error', () => {}); // who reads from it gets it all the same
  return socket;
}

/** Sends bytes that http.request() would not, and returns the replies up to the end of the connection. */
async function talk(port: number, text: string): Promise<Reply[]> {
  const socket = connect(port, '127.0.0.1');
  const replies = readReplies(socket);
  socket.write(text, 'latin1');
  return replies;
}

async function readReplies(socket: Socket): Promise<Reply[]> {
  socket.setEncoding('latin1');
  let text = '';
  for await (const chunk of socket) text += chunk;
  const replies: Reply[] = [];
  while (text !== '') {
    const headEnd = text.indexOf('\r\n\r\n');
    assert.notEqual(headEnd, -1, `the end of a header in ${text}`);
    const [statusLine, ...lines] = text.slice(0, headEnd).split('\r\n');
    const headers: IncomingHttpHeaders = {};
    for (const line of lines) {
      const colon = line.indexOf(': ');
      headers[line.slice(0, colon).toLowerCase()] = line.slice(colon + 2);
    }
    const bodyEnd = headEnd + 4 + Number(headers['content-length'] ?? 0);
    replies.push({ statusCode: Number(statusLine?.split(' ')[1]), headers, body: text.slice(headEnd + 4, bodyEnd) });
    text = text.slice(bodyEnd);
  }
  return replies;
}

/** Posts commands down one connection, without waiting for the answers in between. */
async function postAll(port: number, commands: readonly ControlCommand[]): Promise<Reply[]> {
  const posts = commands.map((command) => `POST /api/${command} HTTP/1.1\r\nHost: x\r\n`);
  const replies = await talk(port, `${posts.join('\r\n')}Connection: close\r\n\r\n`);
  assert.equal(replies.length, commands.length);
  return replies;
}

/** A host that has not had the CPU for 10 ms is reported as it was last seen: null if that may have happened. */
async function askQuickly(client: WebApiClient): Promise<SystemStatus | null> {
  const asked = performance.now();
  const status = await client.getStatus();
  return performance.now() - asked < 10 ? status : null;
}

/** Pauses and resumes in turn, and checks that each status read after that is not one from before. */
async function postAndAsk(client: WebApiClient): Promise<void> {
  await client.waitFor(ACTIVE);
  let checks = 0;
  for (let round = 0; round < 300; round += 1) {
    const isPause = round % 2 === 0;
    assert.equal(await (isPause ? client.pause() : client.resume()), 'ok');
    const wished = isPause ? PAUSED : ACTIVE;
    const status = await askQuickly(client);
    if (status === null) {
      await client.waitFor(wished);
    } else {
      assert.equal(status, wished, `round ${round}`);
      checks += 1;
    }
  }
  assert.ok(checks >= 30, `${checks} of 300 answers came within 10 ms`);
}

/** A server that is none of ours: calls `answer` when the first bytes of a request have come. */
async function listen(t: TestContext, answer: (socket: Socket) => void): Promise<{ squatter: Server; port: number }> {
  const squatter = createServer((socket) => {
    t.after(() => socket.destroy());
    socket.on('error', () => {}); // the client may have gone
    socket.once('data', () => answer(socket));
  });
  const port = await listenOnLoopback(t, squatter);
  return { squatter, port };
}

async function listenOnLoopback(t: TestContext, server: Server): Promise<number> {
  t.after(() => server.close());
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return (server.address() as AddressInfo).port;
}

// ───── Commands and waits ────────────────────────────────────────────────────────────────────────────────────────

function takeAll(server: WebApiServer): ControlCommand[] {
  const taken: ControlCommand[] = [];
  while (server.hasCommands()) taken.push(server.receiveCommand());
  return taken;
}

/** Takes commands in all the ways there are, in a random order, until it is over and none is left. */
async function takeAtRandom(
  server: WebApiServer,
  isOver: () => boolean,
): Promise<{ taken: ControlCommand[]; aborted: number }> {
  const random = randomNumbers(0);
  const taken: ControlCommand[] = [];
  let aborted = 0;
  while (!isOver() || server.hasCommands()) {
    const choice = random();
    if (choice < 0.3) {
      taken.push(...takeAll(server));
    } else if (choice < 0.5) {
      if (server.hasCommands()) taken.push(server.receiveCommand());
    } else {
      const controller = new AbortController();
      const reason = new Error('enough');
      if (random() < 0.5) setImmediate(() => controller.abort(reason));
      else setTimeout(() => controller.abort(reason), random() * 5);
      await server.nextCommand({ signal: controller.signal }).then(
        (command) => taken.push(command),
        (error) => {
          assert.equal(error, reason);
          aborted += 1;
        },
      );
    }
    if (random() < 0.1) await sleep(random() * 5);
    else await nextTurn();
  }
  return { taken, aborted };
}

/** The same numbers from 0 to 1 in each run (the generator mulberry32). */
function randomNumbers(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

function randomCommand(random: () => number, among: readonly ControlCommand[] = COMMANDS): ControlCommand {
  return among[Math.floor(random() * among.length)] as ControlCommand;
}

function countWords(commands: readonly ControlCommand[]): Record<string, number> {
  return Object.fromEntries(COMMANDS.map((word) => [word, commands.filter((one) => one === word).length]));
}

/** The warnings of the test from here on, which node would print. */
function collectWarnings(t: TestContext): string[] {
  const warnings: string[] = [];
  t.mock.method(process, 'emitWarning', (warning: string | Error) => warnings.push(String(warning)));
  return warnings;
}

async function failure(call: () => unknown): Promise<Error> {
  try {
    await call();
  } catch (error) {
    return error as Error;
  }
  return assert.fail('nothing was thrown');
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await sleep(2);
}

/** Nothing of this thread runs for so long, neither timers nor messages. */
function blockThread(milliseconds: number): void {
  if (milliseconds > 0) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, milliseconds);
}
