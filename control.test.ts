// The specification of control.ts: each promise of its documentation once. What needs more rows, more time or more
// violence than a reader wants to see is in bin/test/control.*.test.ts.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { getEventListeners, once } from 'node:events';
import { existsSync, lstatSync, readFileSync, readdirSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect, promisify } from 'node:util';
import type { Socket } from 'node:net';
import type { TestContext } from 'node:test';

import {
  CHUNKED, COMMANDS, GET, HOST, LIMIT, PAGE, POST, UPGRADE, WEBSOCKET, blockThread, collectWarnings, collectWorkers,
  exchange, getFreshStatus, head, open, outcomeOf, parseResponses, postAll, randomCommand, randomNumbers, readToEnd,
  runHost, send, sendAll, startImpostor, takeAll, withBody, within,
} from './bin/test/module/helpers.ts';
import {
  NO_TOKEN, TOKEN, clientAt, freePort, getInfo, lacksSockets, launchSystem, makeFolder, makeSocketPath,
  startServer as start, until,
} from './bin/test/helpers.ts';
import {
  DEFAULT_HOST, DEFAULT_MAX_QUEUE_SIZE, DEFAULT_PORT, EmptyError, SystemStatus, VERSION, WebApiClient, WebApiServer,
  launch,
} from './control.ts';
import type { ControlCommand, LaunchConfig, System, WebApiReply, WebApiServerOptions } from './control.ts';
import type { LaunchedSystem } from './bin/test/helpers.ts';

const { ACTIVE, PAUSING, PAUSED, RESUMING, SHUTTING_DOWN, OFFLINE } = SystemStatus;

const UNIX_ONLY = { skip: lacksSockets() };
const BEARER = `Authorization: Bearer ${TOKEN}`;
const QUEUE_FULL = 'Command queue is full, try again later';

// ───── Constants ─────────────────────────────────────────────────────────────────────────────────────────────────

describe('SystemStatus', LIMIT, () => {
  it('has six frozen members', () => {
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

  it('members convert to their names as strings', () => {
    assert.equal(`${PAUSED}, ${String(SHUTTING_DOWN)}`, 'paused, shutting down');
    assert.deepEqual(Object.keys(PAUSED), ['statusName']);
  });
});

describe('The constants', LIMIT, () => {
  it('are the documented defaults', () => {
    assert.deepEqual([DEFAULT_HOST, DEFAULT_PORT, DEFAULT_MAX_QUEUE_SIZE], ['localhost', 8391, 16]);
  });

  it('VERSION is the version of the package, of the first line of control.ts and of the latest change', () => {
    const { version } = JSON.parse(readFileSync('package.json', 'utf8'));
    assert.equal(VERSION, version);
    assert.ok(readFileSync('control.ts', 'utf8').startsWith(`/*! control.ts ${version} `));
    assert.equal(/^## (\S+)/m.exec(readFileSync('CHANGELOG.md', 'utf8'))?.[1], version);
  });
});

// ───── The web API ───────────────────────────────────────────────────────────────────────────────────────────────

describe('GET /api/status', LIMIT, () => {
  it('responds with the name of each status; HEAD responds without the body', async (t) => {
    let status = ACTIVE;
    const { server, port } = await start(t, { systemStatus: () => status });
    for (status of [ACTIVE, PAUSING, PAUSED, RESUMING, SHUTTING_DOWN]) {
      server.hasCommands();
      const response = await send(port, GET);
      assert.equal(response.statusCode, 200);
      assert.equal(response.body, `{"status":"${status.statusName}"}`);
      const { statusCode, headers, body } = await send(port, 'HEAD /api/status');
      assert.deepEqual([statusCode, body], [200, '']);
      assert.equal(headers['content-length'], String(response.body.length));
    }
  });

  it('rejects other methods with 405', async (t) => {
    const { port } = await start(t);
    for (const method of ['POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS']) {
      const { statusCode, headers, body } = await send(port, `${method} /api/status`);
      assert.deepEqual([statusCode, headers.allow, body], [405, 'GET, HEAD', '{"error":"Invalid API method"}']);
    }
  });

  it('shows the effect of a command that the same client has sent before', async (t) => {
    let status = ACTIVE;
    const { server, client, port } = await start(t, { systemStatus: () => status });
    const runHostLoop = async (): Promise<void> => {
      for (;;) status = (await server.nextCommand()) === 'pause' ? PAUSED : ACTIVE;
    };
    const loop = assert.rejects(runHostLoop(), EmptyError);
    await checkFreshness(client);
    await until(async () => { // the status of a host that gets no CPU for 9 ms is the previous one
      await client.resume();
      await client.waitFor(ACTIVE);
      const began = performance.now();
      const responses = await sendAll(port, [head(GET, HOST), withBody(POST, HOST), head(GET, HOST)]);
      if (performance.now() - began >= 9) return false;
      assert.deepEqual(responses.slice(1).map(outcomeOf), ['ok', 'paused']);
      return true;
    });
    await server.close();
    await loop;
  });

  it('responds 500 while systemStatus throws, and warns once per message', async (t) => {
    const warnings = collectWarnings(t);
    let failure: string | null = null;
    const { server, port, client } = await start(t, {
      systemStatus: () => (failure === null ? PAUSED : assert.fail(failure)),
    });
    for (failure of ['lost', 'lost again', 'lost']) {
      for (let round = 0; round < 3; round += 1) {
        server.hasCommands();
        const { statusCode, body } = await send(port, GET);
        assert.deepEqual([statusCode, body], [500, '{"error":"Internal server error"}']);
      }
      assert.equal(await client.getStatus(), OFFLINE);
      assert.equal(await client.pause(), 'ok', 'commands are still accepted');
      assert.deepEqual(takeAll(server), ['pause']);
    }
    failure = null;
    server.hasCommands();
    assert.equal(outcomeOf(await send(port, GET)), 'paused');
    assert.deepEqual(warnings.map((text) => /^systemStatus failed: (.*)/.exec(text)?.[1]), ['lost', 'lost again']);
  });

  it('responds 500 while systemStatus returns no status of a running system, and warns', async (t) => {
    const warnings = collectWarnings(t);
    const values: unknown[] = [undefined, 'active', {}, Promise.resolve(ACTIVE), OFFLINE, { statusName: 0 }];
    let value: unknown;
    const { server, port } = await start(t, { systemStatus: () => value as SystemStatus });
    for (value of values) {
      server.hasCommands();
      assert.equal((await send(port, GET)).statusCode, 500, inspect(value));
      assert.ok(warnings.at(-1)?.includes(inspect(value)), warnings.at(-1));
    }
    assert.equal(warnings.length, values.length);
  });

  it('responds 500 while systemStatus is an async function that fails, which does not end the process', async (t) => {
    const warnings = collectWarnings(t);
    const systemStatus = async (): Promise<never> => assert.fail('this must not end the process');
    const { port } = await start(t, { systemStatus: systemStatus as unknown as () => SystemStatus });
    assert.equal((await send(port, GET)).statusCode, 500);
    assert.match(warnings.join(), /^systemStatus must return a SystemStatus other than OFFLINE, got Promise/);
  });
});

for (const command of COMMANDS) {
  describe(`POST /api/${command}`, LIMIT, () => {
    it('puts the command on the queue and responds ok', async (t) => {
      const { server, port } = await start(t);
      const { statusCode, body } = await send(port, `POST /api/${command}`);
      assert.deepEqual([statusCode, body], [200, '{"result":"ok"}']);
      assert.deepEqual(takeAll(server), [command]);
    });

    it('rejects other methods with 405', async (t) => {
      const { server, port } = await start(t);
      for (const method of ['GET', 'HEAD', 'PUT', 'PATCH', 'DELETE', 'OPTIONS']) {
        const { statusCode, headers, body } = await send(port, `${method} /api/${command}`);
        const error = method === 'HEAD' ? '' : '{"error":"Invalid API method"}';
        assert.deepEqual([statusCode, headers.allow, body], [405, 'POST', error]);
      }
      assert.deepEqual(takeAll(server), []);
    });
  });
}

describe('The web API', { ...LIMIT, concurrency: 4 }, () => {
  const ACCEPTED: [name: string, request: string, outcomes?: string[]][] = [
    ['a query string, which is ignored', head(`${POST}?x=/api/resume`, HOST)],
    ['an absolute-form target', head('POST http://localhost:1/api/pause?x', 'Host: evil.example')],
    ['HTTP/1.0 without Host', head(`${POST} HTTP/1.0`)],
    ['a body, which is ignored', withBody(POST, HOST)],
    ['a body in chunks', `${head(POST, HOST, CHUNKED)}2\r\n{}\r\n0\r\n\r\n`],
    ['a body of 65,536 bytes', head(POST, HOST, 'Content-Length: 65536') + 'x'.repeat(65_536)],
    ['a Host in capitals, with a port', head(POST, 'Host: LOCALHOST:1')],
    ['an IP address as Host', head(POST, 'Host: 192.168.1.7')],
    ['an IPv6 address as Host', head(POST, 'Host: [::1]:8391')],
    ['an address that a user has typed into a browser', head(GET, HOST, 'Sec-Fetch-Site: none'), ['active']],
    ['header fields that may be repeated', head(POST, HOST, 'Cookie: a', 'Cookie: b')],
    ['an Upgrade to HTTP/2, which is ignored', head(POST, HOST, ...UPGRADE)],
    ['an Upgrade with a body', withBody(POST, HOST, ...UPGRADE)],
    ['a WebSocket handshake, which is ignored', head(GET, HOST, ...WEBSOCKET), ['active']],
    ['an unknown Expect, which is ignored', head(POST, HOST, 'Expect: x')],
    ['an unknown Expect with a body', withBody(POST, HOST, 'Expect: x')],
    ['Expect: 100-continue', withBody(POST, HOST, 'Expect: 100-continue'), ['100', 'ok']],
  ];
  for (const [name, request, outcomes = ['ok']] of ACCEPTED) {
    it(`accepts ${name}`, async (t) => {
      const { server, port } = await start(t);
      const responses = parseResponses(await exchange(port, [request], outcomes.length));
      assert.deepEqual(responses.map(outcomeOf), outcomes);
      assert.deepEqual(takeAll(server), outcomes.includes('ok') ? ['pause'] : []);
    });
  }

  // One row per refusal: a null error is some text, such as the reason phrase.
  const NOT_HOST = 'Host not allowed: use localhost or an IP address, or set the option allowedHosts';
  const NOT_ORIGIN = 'Origin not allowed: set the option allowedOrigins';
  const NOT_PAGES = 'Requests from web pages are not allowed: set the option allowedOrigins';
  const REFUSED: [number, string | null, name: string, request: string, options?: Partial<WebApiServerOptions>][] = [
    [400, null, 'a malformed request', 'GARBAGE\r\n\r\n'],
    [400, null, 'an incomplete head', `${POST} HTTP/1.1\r\n${HOST}\r\n`],
    [400, null, 'an incomplete body', head(POST, HOST, 'Content-Length: 10') + '{}'],
    [400, 'Missing Host header', 'HTTP/1.1 without Host', head(POST)],
    [400, 'Duplicate header field', 'two Hosts', head(POST, HOST, HOST)],
    [400, 'Duplicate header field', 'two Origins', head(POST, HOST, `Origin: ${PAGE}`, `Origin: ${PAGE}`)],
    [400, 'Duplicate header field', 'two Sec-Fetch-Sites', head(GET, HOST, ...Array(2).fill('Sec-Fetch-Site: none'))],
    [400, 'Duplicate header field', 'two tokens', head(POST, HOST, BEARER, BEARER), { token: TOKEN }],
    [401, NO_TOKEN, 'no token', head(POST, HOST), { token: TOKEN }],
    [401, NO_TOKEN, 'a wrong token', head(POST, HOST, `${BEARER}x`), { token: TOKEN }],
    [401, NO_TOKEN, 'a token in the query', head(`${POST}?token=${TOKEN}`, HOST), { token: TOKEN }],
    [403, NOT_HOST, 'another name as Host', head(GET, 'Host: evil.example:8391')],
    [403, NOT_HOST, 'another name in an absolute-form target', head('GET http://evil.example/api/status', HOST)],
    [403, NOT_HOST, 'an address that browsers take for this machine', head(POST, 'Host: 0.0.0.0')],
    [403, NOT_HOST, 'a malformed Host', head(POST, 'Host: localhost@evil.example')],
    [403, NOT_HOST, 'an empty Host', head(POST, 'Host:')],
    [403, NOT_ORIGIN, 'an Origin', head(GET, HOST, `Origin: ${PAGE}`)],
    [403, NOT_ORIGIN, 'the Origin null', head(POST, HOST, 'Origin: null')],
    [403, NOT_ORIGIN, 'an Origin equal to Host', head(POST, 'Host: localhost:3000', `Origin: ${PAGE}`)],
    [403, NOT_ORIGIN, 'a preflight', head('OPTIONS /api/pause', HOST, `Origin: ${PAGE}`)],
    [403, NOT_ORIGIN, 'a WebSocket handshake from a page', head(GET, HOST, 'Origin: http://evil', ...WEBSOCKET)],
    [403, NOT_PAGES, 'Sec-Fetch-Site: cross-site', head(GET, HOST, 'Sec-Fetch-Site: cross-site')],
    [403, NOT_PAGES, 'Sec-Fetch-Site: same-origin', head(GET, HOST, 'Sec-Fetch-Site: same-origin')],
    [403, NOT_PAGES, 'a form that a page submits', head(POST, HOST, 'Sec-Fetch-Site: none')],
    [404, 'Invalid API endpoint', 'another path', head('GET /', HOST)],
    [404, 'Invalid API endpoint', 'a trailing slash', head(`${POST}/`, HOST)],
    [404, 'Invalid API endpoint', 'percent-encoding', head('POST /api/%70ause', HOST)],
    [405, 'Invalid API method', 'another method', head('PUT /api/pause', HOST)],
    [413, 'Content Too Large', 'a Content-Length above 65,536', head(POST, HOST, 'Content-Length: 65537')],
    [413, 'Content Too Large', 'chunks of more than 65,536 bytes',
      `${head(POST, HOST, CHUNKED)}10001\r\n${'x'.repeat(65_537)}\r\n`],
    [431, null, 'a head of more than 8 KiB', head(POST, HOST, `X: ${'x'.repeat(8192)}`)],
    [500, 'Internal server error', 'a request for an unknown status', head(GET, HOST), { systemStatus: () => OFFLINE }],
    [501, null, 'CONNECT', head('CONNECT localhost:80', HOST)],
    [503, QUEUE_FULL, 'one command more than the queue holds', head(POST, HOST).repeat(2), { maxQueueSize: 1 }],
  ];
  for (const [expectedCode, expectedError, name, request, options] of REFUSED) {
    it(`responds ${expectedCode} to ${name}, and queues nothing`, async (t) => {
      if (options?.systemStatus !== undefined) collectWarnings(t);
      const { server, port } = await start(t, options);
      const responses = parseResponses(await exchange(port, [request], 0));
      const { statusCode = 0, body = '' } = responses.at(-1) ?? {};
      assert.equal(statusCode, expectedCode);
      const { error } = JSON.parse(body);
      assert.equal(error, expectedError ?? error);
      assert.equal(takeAll(server).length, responses.filter((one) => one.statusCode === 200).length);
    });
  }

  it('keeps the connection open after an Upgrade, a WebSocket handshake and an Expect', async (t) => {
    const { server, port } = await start(t);
    const socket = await open(t, port);
    for (const fields of [UPGRADE, WEBSOCKET, ['Expect: x']]) {
      socket.write(head(POST, HOST, ...fields));
      const [chunk] = await once(socket, 'data');
      assert.match(String(chunk), /^HTTP\/1\.1 200 OK\r\n[^]*\{"result":"ok"\}$/);
    }
    assert.deepEqual(takeAll(server), ['pause', 'pause', 'pause']);
  });

  it('processes pipelined requests in order', async (t) => {
    const { server, port } = await start(t);
    const responses = await sendAll(port, [
      head(POST, HOST), head(GET, HOST), head('GET /', HOST), withBody('POST /api/resume', HOST),
      head(POST, 'Host: evil.example'), head('POST /api/shutdown', HOST),
    ]);
    assert.deepEqual(responses.map(outcomeOf), ['ok', 'active', '404', 'ok', '403 allowedHosts', 'ok']);
    assert.deepEqual(takeAll(server), ['pause', 'resume', 'shutdown']);
  });
});

describe('Programs', { ...LIMIT, concurrency: true }, () => {
  const run = promisify(execFile);
  const PYTHON = `if True:
    import sys
    from urllib.request import ProxyHandler, Request, build_opener
    send = build_opener(ProxyHandler({})).open
    for data, path in (None, 'status'), (b'', 'pause'), (b'{}', 'pause'):
      sys.stdout.write(send(Request(sys.argv[1] + path, data)).read().decode())
  `;
  const CURL = ['-q', '-sS', '--noproxy', '*', '--max-time', '20', '--http2'];

  /** Sends a GET, a POST without a body and a POST with a body. */
  const CLIENTS: [name: string, talkTo: (url: string) => Promise<string>][] = [
    ['fetch()', async (url) => {
      const status = await fetch(`${url}status`);
      const pause = await fetch(`${url}pause`, { method: 'POST' });
      const pauseWithBody = await fetch(`${url}pause`, { method: 'POST', body: '{}' });
      return await status.text() + await pause.text() + await pauseWithBody.text();
    }],
    ['curl, with Upgrade and Expect', async (url) => {
      const post = (...args: string[]): string[] => ['--next', ...CURL.slice(1), ...args, `${url}pause`];
      const body = ['-H', 'Expect: 100-continue', '--expect100-timeout', '10', '--data', 'x'.repeat(60_000)];
      return (await run('curl', [...CURL, `${url}status`, ...post('-X', 'POST'), ...post(...body)])).stdout;
    }],
    ["Python's urllib", async (url) => (await run('python3', ['-c', PYTHON, url])).stdout],
  ];
  for (const [name, talkTo] of CLIENTS) {
    it(`need no permission: ${name}`, async (t) => {
      const { server, port } = await start(t);
      let output = '';
      try {
        output = await talkTo(`http://localhost:${port}/api/`);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
        return t.skip('needs curl and python3: apt-get install curl python3');
      }
      assert.equal(output, '{"status":"active"}{"result":"ok"}{"result":"ok"}');
      assert.deepEqual(takeAll(server), ['pause', 'pause']);
    });
  }
});

describe('allowedOrigins', LIMIT, () => {
  it('lets pages of these origins read every response, errors too, and no others', async (t) => {
    collectWarnings(t);
    let status = ACTIVE;
    const { server, port } = await start(t, {
      systemStatus: () => status, token: TOKEN, allowedOrigins: [PAGE], maxQueueSize: 1,
    });
    const rows: [line: string, field: string, outcome: string][] = [
      [GET, BEARER, 'active'], [POST, BEARER, 'ok'], [POST, BEARER, '503'], ['GET /api/pause', BEARER, '405'],
      ['GET /api', BEARER, '404'], [POST, 'X: x', '401'], [GET, BEARER, '500'],
    ];
    for (const [line, field, outcome] of rows) {
      status = outcome === '500' ? OFFLINE : ACTIVE;
      server.hasCommands();
      const response = await send(port, line, field, `Origin: ${PAGE}`);
      assert.equal(outcomeOf(response), outcome, line);
      assert.equal(response.headers['access-control-allow-origin'], PAGE, line);
      assert.equal(response.headers.vary, 'Origin', line);
      for (const origin of ['Origin: http://evil.example', 'X: no origin']) {
        const { headers } = await send(port, line, field, origin);
        assert.equal(headers['access-control-allow-origin'], undefined, `${line} ${origin}`);
      }
    }
  });

  it('makes the server respond to their preflights, without a token', async (t) => {
    const { server, port } = await start(t, { token: TOKEN, allowedOrigins: [PAGE] });
    for (const path of ['/api/pause', '/api/status', '/api']) {
      const { statusCode, headers } = await send(port, `OPTIONS ${path}`, `Origin: ${PAGE}`);
      assert.equal(statusCode, 204);
      assert.equal(headers['access-control-allow-origin'], PAGE);
      assert.equal(headers['access-control-allow-methods'], 'GET, HEAD, POST');
      assert.equal(headers['access-control-allow-headers'], 'Authorization, Content-Type, Prefer, If-None-Match');
      assert.equal(headers.vary, 'Origin');
    }
    assert.deepEqual(takeAll(server), []);
  });
});

describe('allowedHosts', LIMIT, () => {
  it('adds names, domains or every name; the list is copied', async (t) => {
    const allowedHosts = ['Box.LAN', '.example.org'];
    const starting = start(t, { allowedHosts });
    allowedHosts[0] = 'evil.example';
    const { port } = await starting;
    const outcomes = async (where: number, ...hosts: string[]): Promise<string[]> => {
      const responses = hosts.map(async (host) => outcomeOf(await send(where, GET, `Host: ${host}`)));
      return Promise.all(responses);
    };
    const allowed = await outcomes(port, 'box.lan', 'BOX.lan:80', 'example.org', 'a.b.example.org', 'localhost');
    assert.deepEqual(new Set(allowed), new Set(['active']));
    const refused = await outcomes(port, 'evil.example', 'a.box.lan', 'xexample.org', '0.0.0.0', '');
    assert.deepEqual(new Set(refused), new Set(['403 allowedHosts']));
    const { port: open } = await start(t, { allowedHosts: ['*'] });
    assert.deepEqual(await outcomes(open, 'any.example', '0.0.0.0'), ['active', '403 allowedHosts']);
  });
});

describe('token', LIMIT, () => {
  it('is required for every path, and appears in no response, no error and no inspect()', async (t) => {
    const { server, port, client } = await start(t, { token: TOKEN });
    assert.equal(await client.pause(), 'ok');
    assert.equal(outcomeOf(await send(port, POST, `authorization: bearer ${TOKEN} `)), 'ok');
    assert.deepEqual(takeAll(server), ['pause', 'pause']);
    for (const line of [GET, POST, 'GET /', 'PUT /api/pause']) {
      const response = await send(port, line, `${BEARER}x`);
      assert.equal(response.statusCode, 401, line);
      assert.ok(!inspect(response).includes(TOKEN));
    }
    const stranger = new WebApiClient('127.0.0.1', port, { token: `${TOKEN}x` });
    assert.deepEqual(await stranger.request('pause'), refusal(401, NO_TOKEN));
    assert.deepEqual(takeAll(server), []);
    assert.ok(!inspect([server, client, stranger], { depth: 9, showHidden: true }).includes(TOKEN));
    assert.ok(!JSON.stringify([server, client, stranger]).includes(TOKEN));
  });
});

// ───── WebApiServer ──────────────────────────────────────────────────────────────────────────────────────────────

describe('An invalid argument', LIMIT, () => {
  const systemStatus = (): SystemStatus => ACTIVE;
  const step = (): void => assert.fail('a step ran');
  const server = (options: unknown): unknown => new WebApiServer(options as WebApiServerOptions);
  const client = (...values: unknown[]): unknown => {
    return new WebApiClient(...(values as ConstructorParameters<typeof WebApiClient>));
  };
  const waitFor = (...values: unknown[]): unknown => {
    return new WebApiClient('127.0.0.1', 1).waitFor(...(values as Parameters<WebApiClient['waitFor']>));
  };
  const run = (system: unknown, config: unknown = { webApiAddress: null }): unknown => {
    return launch(system as System, config as LaunchConfig);
  };
  const webApiOptions = (options: unknown, webApiAddress: unknown = ['localhost', 0]): unknown => {
    return run({ step }, { webApiAddress, webApiOptions: options });
  };

  const HOOKS = ['step', 'describe', 'onListening', 'onPaused', 'onResumed', 'saveState', 'onShutdown'];
  type Values = [typeErrors: unknown[], rangeErrors: unknown[]];
  const OBJECT: Values = [[null, 'active', 5], []];
  const FUNCTION: Values = [[null, 'active', ACTIVE], []];
  const HOSTS: Values = [[127, null, ['localhost']], ['', 'http://localhost:8395', 'localhost:9000', 'a b']];
  const PORT: Values = [['8391', null, 8391n], [NaN, -1, 1.5, 70_000]];
  const COUNT: Values = [['16', null, 64n], [NaN, 0, 1.5, 65_537]];
  const TEXT: Values = [[5, null, ['a']], []];
  const COMMAND: Values = [['stop', 'Pause', 'toString', '', undefined, null, 0, ['pause']], []];
  const TIMEOUT: Values = [['1', null], [NaN, 0, -1, Infinity, 2 ** 31]];
  const PATH: Values = [[5, null, {}], ['', '/control\0.sock', '/'.padEnd(95, 'x')]];
  const NAMES: Values = [[5, null], [
    '', '.', '..lan', '.*', '*.lan', 'box.lan:80', 'http://box.lan', 'box.lan/', 'me@box.lan', 'box lan', '[::1]', '**',
    'box.lan\n', 'böx.lan', 'box.lan.',
  ]];
  const ORIGINS: Values = [[5, null], [
    '', '*', 'null', 'box.lan', '//box.lan', 'http://', 'http://box.lan/', 'HTTP://box.lan', 'http://Box.lan',
    'http://*.lan', 'http://me@box.lan', 'http://box.lan#x', 'http://box.lan\n',
  ]];
  const ARRAY: Values = [['box.lan', null, {}], []];
  const ADDRESS: Values = [['localhost:0', {}, ['localhost'], ['localhost', 0, 0]], []];

  const cases: [call: string, name: string, (value: unknown) => unknown, Values][] = [
    ['new WebApiServer', 'options', server, OBJECT],
    ['new WebApiServer', 'systemStatus', (value) => server({ systemStatus: value }), FUNCTION],
    ['new WebApiServer', 'host', (value) => server({ systemStatus, host: value }), HOSTS],
    ['new WebApiServer', 'port', (value) => server({ systemStatus, port: value }), PORT],
    ['new WebApiServer', 'maxQueueSize', (value) => server({ systemStatus, maxQueueSize: value }), COUNT],
    ['new WebApiServer', 'maxConnections', (value) => server({ systemStatus, maxConnections: value }), COUNT],
    ['new WebApiServer', 'socketPath', (value) => server({ systemStatus, socketPath: value }), PATH],
    ['new WebApiServer', 'allowedHosts', (value) => server({ systemStatus, allowedHosts: value }), ARRAY],
    ['new WebApiServer', 'allowedHosts', (value) => server({ systemStatus, allowedHosts: ['*', value] }), NAMES],
    ['new WebApiServer', 'allowedOrigins', (value) => server({ systemStatus, allowedOrigins: value }), ARRAY],
    ['new WebApiServer', 'allowedOrigins', (value) => server({ systemStatus, allowedOrigins: [PAGE, value] }), ORIGINS],
    ['new WebApiServer', 'name', (value) => server({ systemStatus, name: value }), TEXT],
    ['new WebApiServer', 'describe', (value) => server({ systemStatus, describe: value }), FUNCTION],
    ['post', 'command', (value) => new WebApiServer({ systemStatus }).post(value as ControlCommand), COMMAND],
    ['nextCommandSync', 'timeout', (value) => {
      return new WebApiServer({ systemStatus }).nextCommandSync({ timeout: value as number });
    }, [['1', null], [NaN, -1]]],
    ['new WebApiClient', 'host', client, HOSTS],
    ['new WebApiClient', 'port', (value) => client('localhost', value), [PORT[0], [0, ...PORT[1]]]],
    ['new WebApiClient', 'options', (value) => client('localhost', 8391, value), OBJECT],
    ['new WebApiClient', 'timeout', (value) => client('localhost', 8391, { timeout: value }), TIMEOUT],
    ['new WebApiClient', 'socketPath', (value) => client(undefined, undefined, { socketPath: value }), PATH],
    ['waitFor', 'status', (value) => waitFor(value, { timeout: 50 }), [['paused', undefined, null], []]],
    ['waitFor', 'timeout', (value) => waitFor(PAUSED, { timeout: value }), TIMEOUT],
    ['waitFor', 'onStatus', (value) => waitFor(PAUSED, { timeout: 50, onStatus: value }), [[5, null], []]],
    ['launch', 'system', (value) => run(value), OBJECT],
    ...HOOKS.map((hook): typeof cases[number] => ['launch', hook, (value) => run({ step, [hook]: value }), FUNCTION]),
    ['launch', 'name', (value) => run({ step }, { webApiAddress: null, name: value }), TEXT],
    ['launch', 'options', (value) => run({ step }, value), OBJECT],
    ['launch', 'webApiAddress', (value) => run({ step }, { webApiAddress: value }), ADDRESS],
    ['launch', 'host', (value) => run({ step }, { webApiAddress: [value, 0] }), [[...HOSTS[0], undefined], HOSTS[1]]],
    ['launch', 'port', (value) => run({ step }, { webApiAddress: ['localhost', value] }), [
      [...PORT[0], undefined], PORT[1],
    ]],
    ['launch', 'webApiCommandQueueSize', (value) => run({ step }, {
      webApiAddress: null, webApiCommandQueueSize: value,
    }), COUNT],
    ['launch', 'webApiOptions', (value) => webApiOptions(value, null), OBJECT],
    ['launch', 'maxConnections', (value) => webApiOptions({ maxConnections: value }), COUNT],
  ];
  for (const [call, name, invoke, [typeErrors, rangeErrors]] of cases) {
    it(`${call}: throws an error with the name and the value: ${name}`, async () => {
      for (const [errorClass, values] of [[TypeError, typeErrors], [RangeError, rangeErrors]] as const) {
        for (const value of values) {
          const error = await failure(() => invoke(value));
          assert.ok(error instanceof errorClass, `${inspect(value)}: ${inspect(error)}`);
          assert.ok(error.message.includes(name) && error.message.includes(inspect(value)), error.message);
        }
      }
    });
  }

  it('new WebApiServer, new WebApiClient: throws if host is not a host name or an IP address', async () => {
    for (const host of ['http://localhost:8395', 'localhost:9000', 'a b']) {
      const expected = { name: 'RangeError', message: `host must be a host name or an IP address, got '${host}'` };
      assert.throws(() => server({ systemStatus, host }), expected);
      assert.throws(() => client(host), expected);
    }
    for (const host of ['localhost', 'box-1.lan', 'a_b', '127.0.0.1', '::1', 'fe80::1%eth0', '0x7f.1']) {
      server({ systemStatus, host });
      client(host);
    }
  });

  it('token: throws an error without the token', async () => {
    const calls = [
      (token: unknown) => server({ systemStatus, token }),
      (token: unknown) => client('localhost', 8391, { token }),
      (token: unknown) => webApiOptions({ token }),
    ];
    const values: [value: unknown, errorClass: ErrorConstructor, words: string][] = [
      [123_456_789, TypeError, 'a value of type number'], [['secret'], TypeError, 'a value of type object'],
      ['', RangeError, '0'], ['secret-of-15-ch', RangeError, '15'], ['secret'.padEnd(1025, 'x'), RangeError, '1025'],
      ...['secret with spaces', 'secret-at-the-end\n', 'secret-with-an-ü-in-it'].map((value) => {
        return [value, RangeError, 'other characters'] as [string, ErrorConstructor, string];
      }),
    ];
    for (const call of calls) {
      for (const [value, errorClass, words] of values) {
        const error = await failure(() => call(value));
        const message = `token must be a string of 16 to 1024 visible ASCII characters, got ${words}`;
        assert.deepEqual([error.constructor, error.message], [errorClass, message]);
        assert.ok(!/secret|123456789/.test(inspect({ ...error, cause: error.cause })));
      }
    }
  });

  it('socketPath together with host or port throws a TypeError', async () => {
    const socketPath = 'control.sock';
    for (const call of [
      () => server({ systemStatus, socketPath, host: '127.0.0.1' }),
      () => server({ systemStatus, socketPath, port: 0 }),
      () => client('127.0.0.1', undefined, { socketPath }),
      () => client(undefined, 80, { socketPath }),
      () => webApiOptions({ socketPath }),
    ]) {
      const { name, message } = await failure(call);
      assert.equal(`${name}: ${message}`, 'TypeError: socketPath replaces host and port: give one or the other');
    }
  });

  it('new WebApiClient: throws if socketPath is a folder', () => {
    for (const socketPath of ['/', './', 'sockets/', '/run/control//']) {
      const message = `socketPath must be the path of a socket, not of a folder, got '${socketPath}'`;
      assert.throws(() => client(undefined, undefined, { socketPath }), { name: 'RangeError', message });
    }
  });

  it('launch: throws a TypeError if startPaused is no boolean, or nobody could resume', async () => {
    for (const [startPaused, webApiAddress, text] of [
      ['yes', ['127.0.0.1', 0], "startPaused must be a boolean, got 'yes'"],
      [1, ['127.0.0.1', 0], 'startPaused must be a boolean, got 1'],
      [null, null, 'startPaused must be a boolean, got null'],
      [true, null, 'startPaused requires a web API'],
    ] as const) {
      const { name, message } = await failure(() => run({ step }, { startPaused, webApiAddress }));
      assert.equal(`${name}: ${message}`, `TypeError: ${text}`);
    }
  });

  it('an unknown option throws a TypeError that lists the known ones', async () => {
    const common = 'socketPath, token, allowedHosts, allowedOrigins, maxConnections';
    for (const [call, message] of [
      [() => server({ systemStatus, prot: 1 }), 'WebApiServer has no option prot; it has systemStatus, name, '],
      [() => client('a', 1, { timeOut: 1 }), 'WebApiClient has no option timeOut; it has timeout, token, socketPath'],
      [() => waitFor(PAUSED, { timeOut: 1 }), 'waitFor has no option timeOut; it has timeout, signal, onStatus'],
      [() => run({ step }, { webApiPort: 1 }), 'launch has no option webApiPort; it has webApiAddress, '],
      [() => new WebApiClient().request('pause', { wiat: 1 } as object), 'request has no option wiat; it has wait, '],
      [() => webApiOptions({ host: 'a' }), `webApiOptions has no option host; it has ${common}`],
    ] as const) {
      const error = await failure(call);
      assert.ok(error instanceof TypeError && error.message.startsWith(message), inspect(error));
    }
  });

  it('is none of these: undefined, and the extremes', () => {
    const names = ['host', 'port', 'maxQueueSize', 'socketPath', 'token', 'allowedHosts', 'allowedOrigins'];
    server({ systemStatus, ...Object.fromEntries([...names, 'maxConnections'].map((name) => [name, undefined])) });
    server({ systemStatus, maxQueueSize: 1, maxConnections: 1, token: '~'.repeat(16), port: 65_535 });
    server({ systemStatus, maxQueueSize: 65_536, maxConnections: 65_536, token: '!'.repeat(1024) });
    server({ systemStatus, allowedHosts: ['box', 'Box.LAN', '.lan', '*', '10.0.0.1', 'a_b'] });
    server({ systemStatus, allowedOrigins: [PAGE, 'https://[::1]:8', 'chrome-extension://abc'] });
    server({ systemStatus, socketPath: 'control.sock', host: 'localhost', port: 8391 });
    client(undefined, undefined, { timeout: undefined, token: undefined, socketPath: undefined });
  });

  async function failure(call: () => unknown): Promise<Error> {
    try {
      await call();
    } catch (error) {
      return error as Error;
    }
    return assert.fail('nothing was thrown');
  }
});

describe('runInBackground()', LIMIT, () => {
  it('resolves with the address, and serves localhost at 127.0.0.1 and ::1', async (t) => {
    const { address, port } = await start(t);
    assert.deepEqual(address, { host: 'localhost', port });
    assert.ok(port > 0);
    const addresses = Object.values(networkInterfaces()).flat().map((one) => one?.address);
    for (const host of ['127.0.0.1', '::1']) {
      if (addresses.includes(host)) assert.equal(await new WebApiClient(host, port).getStatus(), ACTIVE, host);
    }
  });

  it('rejects if the server is running or was closed', async () => {
    const server = new WebApiServer({ systemStatus: () => ACTIVE, port: 0 });
    const starting = server.runInBackground();
    const isRunning = { message: 'Cannot start the server: it is already running' };
    await assert.rejects(server.runInBackground(), isRunning);
    await starting;
    await assert.rejects(server.runInBackground(), isRunning);
    await server.close();
    const wasClosed = { message: 'Cannot start the server: it was closed' };
    await assert.rejects(server.runInBackground(), wasClosed);
    const unused = new WebApiServer({ systemStatus: () => ACTIVE, port: 0 });
    await unused.close();
    await assert.rejects(unused.runInBackground(), wasClosed);
  });

  it('rejects while the port is taken, and can be called again', async (t) => {
    const { impostor, port } = await startImpostor(t, () => {});
    for (const host of ['127.0.0.1', 'localhost']) { // localhost needs the port at all its addresses
      const server = new WebApiServer({ systemStatus: () => ACTIVE, host, port });
      await assert.rejects(server.runInBackground(), (error: NodeJS.ErrnoException) => {
        return error.code === 'EADDRINUSE' && error.message.startsWith(`Cannot serve at ${host}:${port}: `);
      });
    }
    const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port });
    t.after(() => server.close());
    await assert.rejects(server.runInBackground(), { code: 'EADDRINUSE' });
    await new Promise((resolve) => impostor.close(resolve));
    assert.deepEqual(await server.runInBackground(), { host: '127.0.0.1', port });
    const command = server.nextCommand();
    assert.equal(await new WebApiClient('127.0.0.1', port).pause(), 'ok');
    assert.equal(await command, 'pause');
  });

  it('rejects if the host cannot be resolved or is not an address of this machine', async () => {
    for (const host of ['nosuch.invalid', '192.0.2.1']) { // RFC 6761 §6.4, RFC 5737 §3
      const server = new WebApiServer({ systemStatus: () => ACTIVE, host, port: 0 });
      await assert.rejects(server.runInBackground(), (error: NodeJS.ErrnoException) => {
        return typeof error.code === 'string' && error.message.startsWith(`Cannot serve at ${host}:0: `);
      });
    }
  });

  it('does not keep the process alive, neither after a start nor after a failure', async (t) => {
    const { port } = await startImpostor(t, () => {});
    const host = runHost(t, `
      const taken = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port });
      await taken.runInBackground().catch(({ code }) => say(code));
      const server = new WebApiServer({ systemStatus: () => ACTIVE, port: 0 });
      say((await server.runInBackground()).host);
    `, port);
    await host.checkEnd('EADDRINUSE', 'localhost');
  });

  it('warns once if the server listens beyond loopback', async (t) => {
    const warnings = collectWarnings(t);
    const { address, port } = await start(t, { host: '0.0.0.0' });
    assert.equal(address.host, 'localhost', 'a host for clients');
    const { port: withToken } = await start(t, { host: '0.0.0.0', token: TOKEN });
    const accepts = 'accepts connections from other machines: anyone who can connect';
    assert.deepEqual(warnings, [
      `The web API at 0.0.0.0:${port} ${accepts} can control this program`,
      `The web API at 0.0.0.0:${withToken} ${accepts} and knows the token can control this program`,
    ]);
    await start(t, { host: '127.0.0.1' });
    await start(t);
    if (lacksSockets() === false) await start(t, { socketPath: makeSocketPath(t) });
    assert.equal(warnings.length, 2);
  });
});

describe('systemStatus()', LIMIT, () => {
  it('is called at the start, by hasCommands() and nextCommand(), and for each client that asks', async (t) => {
    let calls = 0;
    const { server, port } = await start(t, { systemStatus: () => (calls += 1, ACTIVE) });
    const callsDuring = async (action: () => unknown): Promise<number> => {
      calls = 0;
      await action();
      return calls;
    };
    const controller = new AbortController();
    assert.equal(calls, 1);
    assert.equal(await callsDuring(() => server.hasCommands()), 1);
    assert.equal(await callsDuring(() => send(port, POST)), 0);
    assert.equal(await callsDuring(() => server.hasCommands()), 1);
    assert.equal(await callsDuring(() => server.receiveCommand()), 0);
    assert.equal(await callsDuring(() => void server.nextCommand({ signal: controller.signal }).catch(() => {})), 1);
    assert.equal(await callsDuring(() => controller.abort()), 0);
    assert.equal(await callsDuring(() => send(port, GET)), 1);
    assert.equal(await callsDuring(() => send(port, 'GET /')), 0);
  });
});

describe('hasCommands() and receiveCommand()', { ...LIMIT, concurrency: 2 }, () => {
  for (const maxQueueSize of [1, 2, 3, 16, 100]) {
    it(`hold exactly maxQueueSize commands, in order: ${maxQueueSize}`, async (t) => {
      const { server, port } = await start(t, { maxQueueSize });
      const random = randomNumbers(maxQueueSize);
      for (let round = 0; round < 4; round += 1) { // the ring wraps around
        const posted = Array.from({ length: maxQueueSize + 2 }, () => randomCommand(random));
        assert.deepEqual(await postAll(port, posted), [...Array(maxQueueSize).fill(200), 503, 503]);
        assert.equal(server.hasCommands(), true);
        assert.equal(server.receiveCommand(), posted[0]);
        assert.deepEqual(await postAll(port, ['save-state', 'pause']), [200, 503]);
        assert.deepEqual(takeAll(server), [...posted.slice(1, maxQueueSize), 'save-state']);
      }
    });
  }

  it('report an empty queue by false and an EmptyError', async (t) => {
    const { server } = await start(t);
    for (const one of [server, new WebApiServer({ systemStatus: () => ACTIVE })]) {
      assert.equal(one.hasCommands(), false);
      assert.throws(() => one.receiveCommand(), EmptyError);
      assert.throws(() => one.receiveCommand(), { name: 'EmptyError', message: 'The command queue is empty' });
    }
  });
});

describe('nextCommand()', LIMIT, () => {
  it('resolves with a queued command, and with the next one that arrives', async (t) => {
    const { server, client } = await start(t);
    await client.pause();
    assert.equal(await server.nextCommand(), 'pause');
    const next = server.nextCommand();
    await sleep(20);
    await client.saveState();
    assert.equal(await next, 'save-state');
    assert.equal(server.hasCommands(), false);
  });

  it('serves several callers in order', async (t) => {
    const { server, port } = await start(t);
    const order: string[] = [];
    const calls = [1, 2, 3].map(async (caller) => order.push(`${caller} ${await server.nextCommand()}`));
    await postAll(port, ['pause', 'save-state', 'resume', 'shutdown']);
    await Promise.all(calls);
    assert.deepEqual(order, ['1 pause', '2 save-state', '3 resume']);
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
    assert.equal(getEventListeners(controller.signal, 'abort').length, 0);
    await assert.rejects(server.nextCommand({ signal: AbortSignal.abort(reason) }), reason);
    assert.equal(await server.nextCommand(), 'resume');
  });

  it('rejects with EmptyError once the server is closed and the queue is empty', async (t) => {
    const { server, client } = await start(t);
    await client.pause();
    await server.close();
    assert.equal(await server.nextCommand(), 'pause');
    await assert.rejects(server.nextCommand(), { name: 'EmptyError', message: 'The server is closed' });
  });

  it('rejects with EmptyError at once if the server was never started', async () => {
    const server = new WebApiServer({ systemStatus: () => ACTIVE });
    await assert.rejects(server.nextCommand(), { name: 'EmptyError', message: 'The server was not started' });
  });

  it('keeps the process alive while it waits', async (t) => {
    const host = runHost(t, `
      const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0 });
      say((await server.runInBackground()).port);
      say(await server.nextCommand());
      setTimeout(() => {}, 100); // the response may still be under way
    `);
    const client = new WebApiClient('127.0.0.1', await host.hear());
    await sleep(200);
    assert.equal(host.process.exitCode, null);
    assert.equal(await client.pause(), 'ok');
    await host.checkEnd('pause');
  });
});

describe('close()', { ...LIMIT, concurrency: 3 }, () => {
  it('frees the port and keeps the commands that were accepted', async (t) => {
    const { server, port, client } = await start(t, { host: '127.0.0.1' });
    await client.pause();
    await client.resume();
    await server.close();
    await assert.rejects(open(t, port), { code: 'ECONNREFUSED' });
    assert.equal(await client.getStatus(), OFFLINE);
    assert.deepEqual(takeAll(server), ['pause', 'resume']);
    await start(t, { host: '127.0.0.1', port, systemStatus: () => PAUSED });
    assert.equal(await client.getStatus(), PAUSED, 'the client finds the next server');
  });

  it('may be called twice, before the start and during the start', async (t) => {
    const { server } = await start(t);
    await Promise.all([server.close(), server.close()]);
    await server.close();
    const { port: taken } = await startImpostor(t, () => {});
    for (const port of [0, taken]) {
      const starting = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port });
      const started = starting.runInBackground();
      await starting.close();
      const address = await started; // the caller may not have awaited it: no rejection
      if (port === 0) await assert.rejects(open(t, address.port), { code: 'ECONNREFUSED' });
    }
  });

  it('lets the process end', async (t) => {
    const host = runHost(t, `
      const server = new WebApiServer({ systemStatus: () => ACTIVE, port: 0 });
      await server.runInBackground();
      const next = server.nextCommand().catch((error) => say(error.name));
      await server.close();
      await next;
      say('closed');
    `);
    await host.checkEnd('EmptyError', 'closed');
  });

  it('finishes a request in progress, delivers its command and closes the connection', async (t) => {
    const { server, port } = await start(t, { host: '127.0.0.1' });
    const socket = await open(t, port);
    socket.write(head(POST, HOST, 'Expect: 100-continue', 'Content-Length: 2'));
    await once(socket, 'data'); // 100 Continue
    const text = readToEnd(socket);
    const closed = server.close();
    const next = server.nextCommand();
    await until(() => open(t, port).then(() => false, () => true)); // it no longer listens
    socket.write('{}');
    await closed;
    const [response, ...others] = parseResponses(await text);
    assert.deepEqual([response?.body, response?.headers.connection, others], ['{"result":"ok"}', 'close', []]);
    assert.equal(await next, 'pause');
  });

  it('gives an incomplete request one second', async (t) => {
    const { server, port } = await start(t);
    const texts = ['GET /api', `${head(POST, HOST, 'Content-Length: 2')}{`];
    const sockets = await Promise.all(texts.map(() => open(t, port)));
    sockets.forEach((socket, index) => socket.write(texts[index] as string));
    await sleep(20);
    await send(port, GET); // the server has read the others by now
    const began = performance.now();
    const ends = sockets.map((socket) => readToEnd(socket).then(() => performance.now() - began));
    await server.close();
    for (const tookMs of await Promise.all(ends)) assert.ok(tookMs > 500 && tookMs < 3000, `closed after ${tookMs} ms`);
    assert.equal(server.hasCommands(), false);
  });

  it('responds to a client that has just connected, unless it is Node that disconnects it', async (t) => {
    const { server, port } = await start(t);
    await sleep(150); // the server looks for idle connections every 250 ms
    const socket = await open(t, port);
    const closed = server.close();
    await sleep(150);
    socket.write(head(POST, HOST));
    const response = await readToEnd(socket);
    await closed;
    const isServed = parseInt(process.versions.node) < 25; // newer ones count it as idle
    assert.match(response, isServed ? /^HTTP\/1\.1 200 / : /^$/);
    assert.deepEqual(takeAll(server), isServed ? ['pause'] : []);
  });

  it('waits neither for idle connections nor for clients that keep asking', async (t) => {
    const { server, port, client } = await start(t);
    const silent = readToEnd(await open(t, port));
    const half = await open(t, port);
    half.end('GET /api');
    assert.match(await readToEnd(half), /^HTTP\/1\.1 400 /);
    let isOver = false;
    const asking = (async () => {
      while (!isOver) await client.getStatus();
    })();
    await sleep(20);
    const began = performance.now();
    await server.close();
    const tookMs = performance.now() - began;
    isOver = true;
    await asking;
    assert.equal(await silent, '');
    assert.ok(tookMs < 900, `took ${tookMs} ms`);
  });
});

describe('maxConnections', LIMIT, () => {
  it('limits the open connections: a further one replaces the longest idle one', async (t) => {
    const { port } = await start(t, { maxConnections: 3 });
    const request = async (socket: Socket): Promise<void> => {
      socket.write(head(GET, HOST));
      assert.match(String(await once(socket, 'data')), /^HTTP\/1\.1 200 /);
    };
    const [first, second, busy] = [await open(t, port), await open(t, port), await open(t, port)];
    await request(second);
    busy.write(head(POST, HOST, 'Expect: 100-continue', 'Content-Length: 2'));
    assert.match(String(await once(busy, 'data')), /^HTTP\/1\.1 100 /);
    await request(first);
    busy.write('{'); // incomplete
    for (const replaced of [busy, second, first]) {
      const further = await open(t, port);
      assert.equal(await within(3000, readToEnd(replaced)), '');
      await request(further);
    }
  });

  it('never cuts a connection whose request waits for its response', async (t) => {
    const host = runHost(t, `
      const place = { host: '127.0.0.1', port: 0, maxConnections: 2, maxQueueSize: 64 };
      say((await new WebApiServer({ systemStatus: () => ACTIVE, ...place }).runInBackground()).port);
      block(1e6);
    `);
    const port = await host.hear<number>();
    for (let round = 0; round < 10; round += 1) {
      const waiting = await open(t, port);
      waiting.write(head(POST, HOST) + head(GET, HOST)); // the status request waits for a sample that never comes
      await once(waiting, 'data');
      const response = once(waiting, 'data');
      const others = await Promise.all([open(t, port), open(t, port), open(t, port)]);
      assert.match(String(await response), /^HTTP\/1\.1 200 /);
      for (const socket of [waiting, ...others]) socket.destroy();
    }
  });
});

describe('socketPath', { ...LIMIT, ...UNIX_ONLY }, () => {
  it('serves every endpoint on a Unix socket that only its user can open, and close() removes it', async (t) => {
    const socketPath = makeSocketPath(t);
    const { server, address, client } = await start(t, { socketPath, token: TOKEN });
    assert.deepEqual(address, { host: 'localhost', port: 0, socketPath });
    assert.equal(lstatSync(socketPath).mode, 0o140600);
    assert.equal(client.baseUrl, `unix:${socketPath}`);
    assert.deepEqual([await client.pause(), await client.resume()], ['ok', 'ok']);
    assert.deepEqual([await client.saveState(), await client.shutdown()], ['ok', 'ok']);
    assert.equal(await client.getStatus(), ACTIVE);
    assert.deepEqual(takeAll(server), ['pause', 'resume', 'save-state', 'shutdown']);
    await server.close();
    assert.equal(await client.getStatus(), OFFLINE);
    assert.equal(existsSync(socketPath), false);
  });

  it('may be a folder, where the socket is named after the program and those of dead ones are removed', async (t) => {
    const folder = join(makeFolder(t), 'sockets');
    const options = { socketPath: `${folder}/`, name: 'pole 1' };
    const { server, address, client } = await start(t, options);
    const socketPath = `${folder}/pole_1-${process.pid}.sock`;
    assert.deepEqual(address, { host: 'localhost', port: 0, socketPath });
    assert.deepEqual([lstatSync(folder).mode, lstatSync(socketPath).mode], [0o40700, 0o140600]);
    assert.equal(await client.pause(), 'ok');
    await assert.rejects(start(t, options), { code: 'EADDRINUSE' });
    await server.close();
    assert.deepEqual(readdirSync(folder), []);

    const host = runHost(t, `
      await new WebApiServer({ systemStatus: () => ACTIVE, ...${JSON.stringify(options)} }).runInBackground();
      process.kill(process.pid, 'SIGKILL');
    `);
    await host.ended;
    assert.equal(readdirSync(folder).length, 1);
    await start(t, options);
    await until(() => readdirSync(folder).join() === `pole_1-${process.pid}.sock`);
    await assert.rejects(start(t, { ...options, socketPath: `${folder}/a/b/` }), { code: 'ENOENT' });
  });
});

// ───── The server thread ─────────────────────────────────────────────────────────────────────────────────────────

describe('A host that never yields', { ...LIMIT, concurrency: 3 }, () => {
  // It never even learns that its server has started.
  const OBEDIENT = `
    let status = ACTIVE;
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

  it('gets every command in order, and can close the server', async (t) => {
    const port = await freePort();
    const host = runHost(t, `${OBEDIENT}; await server.close(); say('closed');`, port);
    const client = new WebApiClient('127.0.0.1', port);
    await client.waitFor(ACTIVE);
    const random = randomNumbers(3);
    const posted: ControlCommand[] = [];
    while (posted.length < 100) {
      const command = randomCommand(random, ['pause', 'resume', 'save-state']);
      if ((await client.request(command)).ok) posted.push(command);
    }
    assert.equal(await client.shutdown(), 'ok');
    await host.checkEnd(...posted, 'shutdown', 'closed');
  });

  it('shows the effect of a command that the same client has sent before', async (t) => {
    const port = await freePort();
    runHost(t, OBEDIENT, port);
    await checkFreshness(new WebApiClient('127.0.0.1', port));
  });

  it('delays only one response when it does not poll, and its last status gets an Age', async (t) => {
    const port = await freePort();
    const host = runHost(t, `
      const server = new WebApiServer({ systemStatus: () => PAUSED, host: '127.0.0.1', port });
      server.runInBackground();
      readSync(0, Buffer.alloc(1)); // blocks
      for (;;) {
        server.hasCommands();
        block(1);
      }
    `, port);
    const client = new WebApiClient('127.0.0.1', port);
    await client.waitFor(PAUSED);
    const durationsMs: number[] = [];
    while (durationsMs.length < 100) {
      const began = performance.now();
      assert.equal(await client.getStatus(), PAUSED);
      durationsMs.push(performance.now() - began);
    }
    const fast = durationsMs.filter((duration) => duration < 8).length;
    assert.ok(fast >= 10, `the wait of 10 ms is shared: ${durationsMs}`);

    const getAge = async (): Promise<string | undefined> => {
      const { headers, body } = await send(port, GET);
      assert.equal(body, '{"status":"paused"}');
      return headers.age;
    };
    let age = await getAge();
    while (age === undefined) age = await getAge();
    assert.match(age, /^[1-9]\d*$/);
    host.process.stdin?.write('.');
    while (age !== undefined) age = await getAge();
    const pollsSince = performance.now();
    while (performance.now() - pollsSince < 1300) assert.equal(await getAge(), undefined);
  });
});

describe('The response to a shutdown', LIMIT, () => {
  for (const [kind, loop] of [
    ['spins', 'while (!server.hasCommands()); server.receiveCommand(); process.exit();'],
    ['polls', 'setInterval(() => { if (server.hasCommands()) process.exit(server.receiveCommand() && 0); }, 1);'],
    ['sleeps', 'await server.nextCommand(); process.exit();'],
  ] as const) {
    it(`is sent even if the program exits when it takes the command: a program that ${kind}`, async (t) => {
      for (let round = 0; round < 8; round += 1) {
        const host = runHost(t, `
          const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0 });
          say((await server.runInBackground()).port);
          ${loop}
        `);
        const client = new WebApiClient('127.0.0.1', await host.hear());
        assert.equal(await client.shutdown(), 'ok', `round ${round}`);
        await host.checkEnd();
      }
    });
  }

  it('delays the host much less than 20 ms', async (t) => {
    const host = runHost(t, `
      const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0, maxQueueSize: 64 });
      say((await server.runInBackground()).port);
      const durationsMs = [];
      while (durationsMs.length < 60) {
        if (!server.hasCommands()) continue;
        const began = performance.now();
        server.receiveCommand();
        durationsMs.push(performance.now() - began);
      }
      say(durationsMs.sort((one, other) => one - other)[30]);
      await server.close();
    `);
    const port = await host.hear<number>();
    const shutdown = 'POST /api/shutdown';
    for (let round = 0; round < 60; round += 1) assert.equal(outcomeOf(await send(port, shutdown)), 'ok');
    const medianMs = await host.hear<number>();
    assert.ok(medianMs < 10, `${medianMs} ms`);
  });

  it('comes when the command is already on the queue', async (t) => {
    const { server, client } = await start(t);
    for (let round = 0; round < 500; round += 1) {
      assert.equal(await client.shutdown(), 'ok');
      assert.ok(server.hasCommands(), `round ${round}`);
      server.receiveCommand();
    }
  });
});

describe('A server thread that dies', LIMIT, () => {
  it('is restarted at the same address with the same queue, and the server warns once per reason', async (t) => {
    const workers = collectWorkers(t);
    const warnings = collectWarnings(t);
    const { server, port, client } = await start(t);
    assert.equal(await client.pause(), 'ok');
    const next = (async () => [await server.nextCommand(), await server.nextCommand()])();
    for (const round of [1, 2]) {
      await workers.at(-1)?.terminate();
      await client.waitFor(OFFLINE);
      await client.waitFor(ACTIVE);
      assert.equal(workers.length, round + 1);
    }
    assert.equal(await client.resume(), 'ok');
    assert.deepEqual(await next, ['pause', 'resume']);
    assert.equal(warnings.length, 1, inspect(warnings));
    const [warning = ''] = warnings;
    assert.match(warning, new RegExp(`^The web API at localhost:${port} stopped and will be restarted: .`));
  });
});

// ───── WebApiClient ──────────────────────────────────────────────────────────────────────────────────────────────

describe('WebApiClient', { ...LIMIT, concurrency: 4 }, () => {
  it('reads the status and posts each command', async (t) => {
    let status = ACTIVE;
    const { server, client } = await start(t, { systemStatus: () => status });
    assert.deepEqual([await client.pause(), await client.resume()], ['ok', 'ok']);
    assert.deepEqual([await client.saveState(), await client.shutdown()], ['ok', 'ok']);
    assert.deepEqual(takeAll(server), ['pause', 'resume', 'save-state', 'shutdown']);
    for (status of [ACTIVE, PAUSING, PAUSED, RESUMING, SHUTTING_DOWN]) {
      await client.waitFor(status);
      assert.equal(await client.getStatus(), status);
    }
    const [statusReply, saved] = [await client.request('status'), await client.request('save-state')];
    const body = { status: 'shutting down' };
    assert.deepEqual(statusReply, { ok: true, value: 'shutting down', body, tag: '"shutting-down"' });
    assert.deepEqual(saved, { ok: true, value: 'ok', body: { result: 'ok' }, tag: undefined });
  });

  it('has the base URL of the system', () => {
    assert.equal(new WebApiClient().baseUrl, 'http://localhost:8391');
    assert.equal(new WebApiClient('::1', 80).baseUrl, 'http://[::1]:80');
  });

  it('reports a system that does not respond as OFFLINE and null', async () => {
    const port = await freePort();
    const client = new WebApiClient('127.0.0.1', port);
    assert.equal(await client.getStatus(), OFFLINE);
    assert.deepEqual([await client.pause(), await client.resume()], [null, null]);
    assert.deepEqual([await client.saveState(), await client.shutdown()], [null, null]);
    const error = `http://127.0.0.1:${port} does not respond: connect ECONNREFUSED 127.0.0.1:${port}`;
    assert.deepEqual(await client.request('pause'), silence(error, false));
    assert.equal(await new WebApiClient('nosuch.invalid', 1).getStatus(), OFFLINE);
  });

  it('reports a refusal with its error', async (t) => {
    const { client } = await start(t, { maxQueueSize: 1 });
    assert.deepEqual([await client.pause(), await client.pause()], ['ok', null]);
    assert.deepEqual(await client.request('pause'), refusal(503, QUEUE_FULL));
  });

  it('times out, and says that the request was sent: the command may still take effect', async (t) => {
    const { port } = await startImpostor(t, () => {});
    const client = new WebApiClient('127.0.0.1', port, { timeout: 100 });
    const error = `http://127.0.0.1:${port} does not respond: timeout after 0.1 s`;
    assert.deepEqual(await client.request('pause'), silence(error, true));
  });

  it('aborts a request on its signal, and sends nothing if that is aborted already', async (t) => {
    const { server, client } = await start(t);
    const unsent = await client.request('pause', { signal: AbortSignal.abort() });
    assert.ok(!unsent.ok && !unsent.answered && !unsent.sent);
    assert.deepEqual(takeAll(server), []);
    const controller = new AbortController();
    const { port } = await startImpostor(t, () => controller.abort());
    const aborted = await new WebApiClient('127.0.0.1', port).request('pause', { signal: controller.signal });
    assert.ok(!aborted.ok && !aborted.answered && aborted.sent);
    assert.equal(getEventListeners(controller.signal, 'abort').length, 0);
  });

  it('cancels pending requests on close(), and can still be used', async (t) => {
    const { port } = await startImpostor(t, (socket) => {
      if (pending.length > 1) return void socket.end('HTTP/1.1 200 OK\r\n\r\n{"result":"ok"}');
      client.close();
    });
    const client = new WebApiClient('127.0.0.1', port);
    const pending = [client.pause()];
    assert.equal(await pending[0], null);
    pending.push(client.pause());
    assert.equal(await pending[1], 'ok');
  });

  it('sends each request once, on a connection of its own, with its token and without a body', async (t) => {
    const requests: string[] = [];
    const { port } = await startImpostor(t, (socket, request) => {
      requests.push(request);
      socket.on('data', (chunk) => requests.push(`on the same connection: ${chunk}`));
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 33\r\n\r\n{"status":"active","result":"ok"}');
    });
    const client = clientAt(t, { host: '127.0.0.1', port }, TOKEN);
    await client.getStatus();
    const methods = ['pause', 'resume', 'saveState', 'shutdown'] as const;
    for (const method of methods) assert.equal(await client[method](), 'ok');
    assert.deepEqual(requests.map((request) => /^\S+ \S+ /.exec(request)?.[0].trim()), [
      GET, POST, 'POST /api/resume', 'POST /api/save-state', 'POST /api/shutdown',
    ]);
    for (const request of requests) {
      assert.ok(request.includes(`\r\nHost: 127.0.0.1:${port}\r\n`) && request.includes(`\r\n${BEARER}\r\n`), request);
      assert.match(request, /\r\n\r\n$/);
      assert.doesNotMatch(request, /^(Transfer-Encoding|Content-Length: [^0])/im);
    }
  });

  it('does not repeat a command if the server closes the connection without a response', async (t) => {
    const requests: string[] = [];
    const { port } = await startImpostor(t, (socket, request) => {
      requests.push(request);
      socket.end();
    });
    assert.equal(await clientAt(t, { host: '127.0.0.1', port }).pause(), null);
    await sleep(50);
    assert.equal(requests.length, 1);
  });

  it('lets the process end', async (t) => {
    const { port } = await start(t);
    const began = performance.now();
    const host = runHost(t, `
      const client = new WebApiClient('127.0.0.1', port);
      say([(await client.getStatus()).statusName, await client.pause()]);
    `, port);
    await host.checkEnd(['active', 'ok']);
    assert.ok(performance.now() - began < 3500, 'no timer or connection keeps it alive');
  });

  it('names the status code of a foreign server', async (t) => {
    const { port } = await startImpostor(t, (socket) => socket.end('HTTP/1.1 200 OK\r\n\r\n<!doctype html>'));
    const error = `http://127.0.0.1:${port} is not a control server: it responded with status code 200`;
    const reply = await new WebApiClient('127.0.0.1', port).request('status');
    assert.deepEqual(reply, { ok: false, error, answered: false, sent: true, statusCode: 200 });
  });
});

describe('waitFor()', { ...LIMIT, concurrency: 2 }, () => {
  it('resolves when the system reports the status, and calls onStatus on every change', async (t) => {
    let samples = 0;
    const { server, client } = await start(t, {
      systemStatus: () => {
        samples += 1;
        return samples < 4 ? ACTIVE : samples < 7 ? PAUSING : PAUSED;
      },
    });
    const seen: SystemStatus[] = [];
    const onStatus = (status: SystemStatus): void => void seen.push(status);
    await client.waitFor(PAUSED, { onStatus });
    assert.deepEqual(seen.splice(0), [ACTIVE, PAUSING, PAUSED]);
    await client.waitFor(PAUSED, { onStatus });
    const gone = client.waitFor(OFFLINE, { onStatus });
    await until(() => seen.length === 2);
    await server.close();
    await gone;
    assert.deepEqual(seen, [PAUSED, PAUSED, OFFLINE]);
  });

  it('rejects with a TimeoutError, even if the server does not respond', async (t) => {
    const { client } = await start(t);
    await assert.rejects(client.waitFor(PAUSED, { timeout: 500 }), {
      name: 'TimeoutError', message: "Timed out after 0.5 s waiting for the status 'paused'",
    });
    await assert.rejects(client.waitFor(PAUSED, { timeout: 60.5 }), { name: 'TimeoutError' });
    const { port } = await startImpostor(t, () => {});
    const silent = new WebApiClient('127.0.0.1', port, { timeout: 50_000 });
    const seen: SystemStatus[] = [];
    const wait = silent.waitFor(OFFLINE, { timeout: 100, onStatus: (status) => seen.push(status) });
    await assert.rejects(wait, { name: 'TimeoutError' });
    assert.deepEqual(seen, [], 'a request cut short says nothing about the system');
  });

  it('does not take a system that does not respond for OFFLINE', async (t) => {
    const { port } = await startImpostor(t, () => {});
    const client = new WebApiClient('127.0.0.1', port, { timeout: 50 });
    await assert.rejects(client.waitFor(OFFLINE, { timeout: 500 }), { name: 'TimeoutError' });
    assert.equal(await client.getStatus(), OFFLINE, 'as for every request that fails');
  });

  it('does not take a system that responds 500 for OFFLINE', async (t) => {
    collectWarnings(t);
    let isReady = false;
    const { client } = await start(t, { systemStatus: () => (isReady ? ACTIVE : assert.fail('not yet')) });
    await assert.rejects(client.waitFor(OFFLINE, { timeout: 200 }), { name: 'TimeoutError' });
    setTimeout(() => (isReady = true), 100);
    await client.waitFor(ACTIVE, { onStatus: (status) => assert.equal(status, ACTIVE) });
  });

  it('rejects with the reason of its signal, and with what onStatus throws', async (t) => {
    const { client } = await start(t);
    const reason = new Error('enough');
    const { port } = await startImpostor(t, () => controller.abort(reason));
    const controller = new AbortController();
    const silent = new WebApiClient('127.0.0.1', port, { timeout: 50_000 });
    await assert.rejects(silent.waitFor(PAUSED, { signal: controller.signal }), reason);
    assert.equal(getEventListeners(controller.signal, 'abort').length, 0);
    const onStatus = (): void => assert.fail('a request was sent');
    await assert.rejects(client.waitFor(ACTIVE, { signal: AbortSignal.abort(reason), onStatus }), reason);
    await assert.rejects(client.waitFor(PAUSED, { onStatus: () => assert.fail(reason) }), reason);
  });
});

// ───── launch ────────────────────────────────────────────────────────────────────────────────────────────────────

describe('launch()', LIMIT, () => {
  it('pauses, resumes, saves and shuts down in the documented order', async (t) => {
    const { client, log, finished } = await launchLogged(t);
    const expectLog = async (...entries: string[]): Promise<void> => {
      await until(() => log.length >= entries.length);
      assert.deepEqual(log.splice(0), entries);
    };
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
    await finished;
    assert.deepEqual(log, ['saveState while shutting down', 'onShutdown while shutting down']);
    assert.equal(await client.getStatus(), OFFLINE);
  });

  it('treats a command for the current state as a no-op, and drops commands behind a shutdown', async (t) => {
    const { client, address, log, finished } = await launchLogged(t);
    await postAll(address.port, ['resume', 'resume', 'pause', 'pause', 'pause']);
    await until(() => log.length > 0);
    await client.waitFor(PAUSED);
    await postAll(address.port, ['pause', 'resume', 'resume', 'pause', 'shutdown', 'resume', 'save-state']);
    await finished;
    assert.deepEqual(log, [
      'onPaused while pausing', 'onResumed while resuming', 'onPaused while pausing', 'saveState while shutting down',
      'onShutdown while shutting down',
    ]);
  });

  it('steps while active and only then', async (t) => {
    let steps = 0;
    const { client } = await launchSystem(t, { step: () => sleep(1).then(() => (steps += 1)) });
    await until(() => steps > 3);
    await client.pause();
    await client.waitFor(PAUSED);
    const stepsThen = steps;
    await sleep(100);
    assert.equal(steps, stepsThen);
    await client.resume();
    await until(() => steps > stepsThen + 3);
  });

  it('starts paused with startPaused, and steps once it is resumed', async (t) => {
    const log: string[] = [];
    const { client, address: { port } } = await launchSystem(t, {
      step: () => {
        if (log.at(-1) !== 'step') log.push('step');
        return sleep(1);
      },
      onListening: async ({ port }) => void log.push(`onListening while ${(await getInfo(port)).status}`),
      onPaused: async () => void log.push(`onPaused while ${(await getInfo(port)).status}`),
      onResumed: () => void log.push('onResumed'),
    }, { startPaused: true });
    await client.waitFor(PAUSED);
    const { by, reason, commands } = await getInfo(port);
    assert.deepEqual([by, reason], ['itself', 'started paused']);
    assert.deepEqual(commands.map((one) => [one.command, one.state, one.by, one.reason]), [
      ['pause', 'done', 'itself', 'started paused'],
    ]);
    await client.resume();
    await until(() => log.at(-1) === 'step');
    assert.deepEqual(log, ['onListening while pausing', 'onPaused while pausing', 'onResumed', 'step']);
  });

  it('tells saveState whether the system was active or paused before the command', async (t) => {
    const saved: SystemStatus[] = [];
    const { client, finished } = await launchSystem(t, { saveState: (status) => void saved.push(status) });
    await client.saveState();
    await client.pause();
    await client.waitFor(PAUSED);
    await client.saveState();
    await client.shutdown();
    await finished;
    assert.deepEqual(saved, [ACTIVE, PAUSED, PAUSED]);
  });

  for (const kind of ['synchronous', 'asynchronous']) {
    it(`runs ${kind} steps and hooks one at a time, after onListening`, async (t) => {
      const log: string[] = [];
      let running: string | null = null;
      const alone = (name: string) => (): unknown => {
        assert.equal(running, null);
        running = name;
        const end = (): void => {
          running = null;
          if (log.at(-1) !== name) log.push(name);
        };
        return kind === 'synchronous' ? end() : sleep(5).then(end);
      };
      const { address, finished } = await launchSystem(t, {
        onListening: alone('onListening'), step: alone('step'), onPaused: alone('onPaused'),
        onResumed: alone('onResumed'), saveState: alone('saveState'), onShutdown: alone('onShutdown'),
      });
      await until(() => log.includes('step'));
      assert.deepEqual(log.splice(0), ['onListening', 'step']);
      await postAll(address.port, ['pause', 'save-state', 'resume', 'save-state', 'shutdown']);
      await finished;
      assert.deepEqual(log.filter((name) => name !== 'step'), [
        'onPaused', 'saveState', 'onResumed', 'onPaused', 'saveState', 'onResumed', 'saveState', 'onShutdown',
      ]);
    });
  }

  it('stays active if onPaused fails, and saves nothing then', async (t) => {
    const warnings = collectWarnings(t);
    const { client, log, address } = await launchLogged(t, { onPaused: () => assert.fail('no brakes') });
    await postAll(address.port, ['pause', 'save-state', 'resume']);
    await until(() => warnings.length === 2);
    await client.waitFor(ACTIVE);
    assert.deepEqual(log, ['onPaused while pausing', 'onPaused while pausing']);
    assert.deepEqual(warnings, Array(2).fill('onPaused failed: no brakes'));
  });

  it('stays paused if onResumed fails', async (t) => {
    const warnings = collectWarnings(t);
    const { client } = await launchSystem(t, { onResumed: () => assert.fail('no fuel') });
    for (const method of ['saveState', 'resume'] as const) {
      await client[method]();
      await until(() => warnings.length > 0);
      assert.deepEqual(warnings.splice(0), ['onResumed failed: no fuel']);
      await client.waitFor(PAUSED);
    }
  });

  it('goes on if saveState fails, and ends if onShutdown fails', async (t) => {
    const warnings = collectWarnings(t);
    let steps = 0;
    let isFull = true;
    const { client, finished } = await launchSystem(t, {
      step: () => sleep(1).then(() => (steps += 1)),
      saveState: () => (isFull ? assert.fail('disk full') : undefined),
      onShutdown: () => assert.fail('no end'),
    });
    await client.saveState();
    await until(() => warnings.length === 1);
    await client.waitFor(ACTIVE);
    const stepsThen = steps;
    await until(() => steps > stepsThen);
    isFull = false;
    await client.shutdown();
    await finished;
    assert.deepEqual(warnings, ['saveState failed: disk full', 'onShutdown failed: no end']);
  });

  for (const kind of ['throws', 'rejects']) {
    it(`rejects with the error of a step that ${kind}, closes the server and saves nothing`, async (t) => {
      const error = new Error('out of memory');
      const handlers = countSignalHandlers();
      let isBroken = false;
      const { address, log, finished } = await launchLogged(t, {
        step: () => {
          if (!isBroken) return sleep(1);
          if (kind === 'rejects') return sleep(1).then(() => Promise.reject(error));
          throw error;
        },
      });
      isBroken = true;
      await assert.rejects(finished, error);
      await assert.rejects(open(t, address.port), { code: 'ECONNREFUSED' });
      assert.deepEqual(log, []);
      assert.equal(countSignalHandlers(), handlers);
    });
  }

  it('rejects before any step if it cannot listen or onListening fails', async (t) => {
    const { port } = await startImpostor(t, () => {});
    const handlers = countSignalHandlers();
    const step = (): void => assert.fail('a step ran');
    const error = new Error('no log');
    await assert.rejects(launch({ step }, { webApiAddress: ['127.0.0.1', port] }), { code: 'EADDRINUSE' });
    const onListening = (): void => assert.fail(error);
    await assert.rejects(launch({ step, onListening }, { webApiAddress: ['127.0.0.1', 0] }), error);
    assert.equal(countSignalHandlers(), handlers);
  });

  it('handles signals only while it runs', async (t) => {
    const handlers = countSignalHandlers();
    const { client, finished } = await launchSystem(t);
    assert.equal(countSignalHandlers(), handlers + 4);
    await client.shutdown();
    await finished;
    assert.equal(countSignalHandlers(), handlers);
  });

  it('passes webApiCommandQueueSize and webApiOptions on', async (t) => {
    const { address: { port }, finished } = await launchSystem(t, {}, {
      webApiCommandQueueSize: 1,
      webApiOptions: { token: TOKEN, allowedHosts: ['.lan'], allowedOrigins: [PAGE], maxConnections: 3 },
    });
    const getOutcome = async (...fields: string[]): Promise<string> => outcomeOf(await send(port, GET, ...fields));
    assert.equal(await getOutcome(), '401');
    assert.equal(await getOutcome(BEARER, 'Host: box.lan'), 'active');
    assert.equal(await getOutcome(BEARER, 'Host: box.lan.example'), '403 allowedHosts');
    assert.equal(await getOutcome(BEARER, `Origin: ${PAGE}`), 'active');
    assert.equal(await getOutcome(BEARER, `Origin: ${PAGE}0`), '403 allowedOrigins');
    const silent = await open(t, port);
    const others = [await open(t, port), await open(t, port), await open(t, port)];
    assert.equal(await readToEnd(silent), '');
    for (const socket of others) socket.destroy();
    const shutdown = head('POST /api/shutdown', HOST, BEARER);
    const [first] = await sendAll(port, [shutdown, shutdown, shutdown]);
    assert.equal(first?.statusCode, 200);
    await finished;
  });

  it('limits the queue to webApiCommandQueueSize', async (t) => {
    let codes: number[] = [];
    const { client, address, finished } = await launchSystem(t, {
      onPaused: async () => void (codes = await postAll(address.port, ['resume', 'shutdown', 'resume'])),
    }, { webApiCommandQueueSize: 2 });
    await client.pause();
    await finished;
    assert.deepEqual(codes, [200, 200, 503]);
  });

  for (const [kind, step] of [
    ['never awaits', () => {}],
    ['never awaits and takes long', () => blockThread(20)],
    ['awaits only settled promises', async () => {}],
  ] as const) {
    it(`gives timers their turn if a step ${kind}`, async (t) => {
      const deadline = performance.now() + 20_000; // nothing but a step could end a loop that never yields
      const { client, finished } = await launchSystem(t, {
        step: () => {
          assert.ok(performance.now() < deadline);
          return step();
        },
      });
      let ticks = 0;
      const timer = setInterval(() => {
        ticks += 1;
        if (ticks === 10) void client.shutdown();
      }, 1);
      t.after(() => clearInterval(timer));
      await finished;
    });
  }

  function countSignalHandlers(): number {
    return ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR2'].reduce((count, name) => count + process.listenerCount(name), 0);
  }
});

describe('launch() in a process of its own', { ...LIMIT, concurrency: 2 }, () => {
  it('reports the status while a hook blocks the thread', async (t) => {
    const host = runHost(t, `
      const wait = (hook) => () => {
        say(hook);
        readSync(0, Buffer.alloc(1));
      };
      await launch({
        step() {},
        onListening: ({ port }) => say(port),
        onPaused: wait('onPaused'),
        onResumed: wait('onResumed'),
        saveState: wait('saveState'),
        onShutdown: wait('onShutdown'),
      }, { webApiAddress: ['127.0.0.1', 0] });
    `);
    const client = new WebApiClient('127.0.0.1', await host.hear());
    const expectHook = async (hook: string, status: SystemStatus): Promise<void> => {
      assert.equal(await host.hear(), hook);
      assert.equal(await client.getStatus(), status);
      host.process.stdin?.write('.');
    };
    await client.saveState();
    await expectHook('onPaused', PAUSING);
    await expectHook('saveState', PAUSED);
    await expectHook('onResumed', RESUMING);
    await client.shutdown();
    await expectHook('saveState', SHUTTING_DOWN);
    await expectHook('onShutdown', SHUTTING_DOWN);
    await host.checkEnd();
  });

  it('stays alive while it is paused, and uses no CPU', async (t) => {
    const host = runHost(t, `
      const measure = () => {
        const before = process.cpuUsage();
        setTimeout(() => {
          const { user, system } = process.cpuUsage(before);
          say((user + system) / 1000);
        }, 1000);
      };
      await launch({
        step() {},
        onListening: ({ port }) => say(port),
        onPaused: () => void setTimeout(measure, 200),
      }, { webApiAddress: ['127.0.0.1', 0] });
    `);
    const client = new WebApiClient('127.0.0.1', await host.hear());
    await client.pause();
    const usedMs = await host.hear<number>();
    assert.ok(usedMs < 60, `${usedMs} ms of CPU in 1000 ms`);
    await sleep(100); // no timer of the host keeps it alive now
    assert.equal(await client.getStatus(), PAUSED);
    await client.shutdown();
    await host.checkEnd();
  });

  it('starts no thread and opens no socket if webApiAddress is null', async (t) => {
    const source = (address: string): string => `
      let threads = 0;
      process.on('worker', () => threads++);
      let steps = 0;
      await launch({
        async step() {
          await new Promise((resolve) => setTimeout(resolve, 2));
          if (++steps !== 20) return;
          say({ threads, sockets: process.getActiveResourcesInfo().filter((name) => /TCP|UDP|PipeServer/.test(name)) });
          process.kill(process.pid, 'SIGTERM');
        },
        onListening: () => say('onListening'),
        onShutdown: () => say('onShutdown'),
      }, { webApiAddress: ${address}, webApiOptions: { token: '${TOKEN}' } });
    `;
    await runHost(t, source('null')).checkEnd({ threads: 0, sockets: [] }, 'onShutdown');
    const served = runHost(t, source(`['127.0.0.1', 0]`));
    await served.checkEnd('onListening', { threads: 1, sockets: [] }, 'onShutdown');
  });
});

describe('A signal', { ...LIMIT, ...UNIX_ONLY, concurrency: 3 }, () => {
  const SOURCE = `
    await launch({
      step() {},
      onListening: ({ port }) => say(port),
      onPaused: () => say('onPaused'),
      saveState: () => say('saveState'),
      onShutdown: () => say('onShutdown'),
    }, { webApiAddress: ['127.0.0.1', 0] });
    say('end');
  `;

  for (const [signal, state] of [['SIGINT', 'active'], ['SIGTERM', 'paused'], ['SIGHUP', 'active']] as const) {
    it(`${signal} shuts the system down while it is ${state}`, async (t) => {
      const host = runHost(t, SOURCE);
      const client = new WebApiClient('127.0.0.1', await host.hear());
      if (state === 'paused') {
        await client.pause();
        assert.equal(await host.hear(), 'onPaused');
        await client.waitFor(PAUSED);
      }
      host.process.kill(signal);
      await host.checkEnd('saveState', 'onShutdown', 'end');
    });
  }

  for (const address of ["['127.0.0.1', 0]", 'null']) {
    it(`is noticed after the first step, with webApiAddress ${address}`, async (t) => {
      const host = runHost(t, `
        let steps = 0;
        const step = () => {
          steps += 1;
          if (steps === 1) process.kill(process.pid, 'SIGTERM');
          block(50);
        };
        await launch({ step }, { webApiAddress: ${address} });
        say(steps);
      `);
      await host.checkEnd(1);
    });
  }
});

// ───── Helpers ───────────────────────────────────────────────────────────────────────────────────────────────────

/** The reply to a request that the server refuses. */
function refusal(statusCode: number, error: string): WebApiReply {
  return { ok: false, error, answered: true, sent: true, statusCode };
}

/** The reply to a request that nobody answers. */
function silence(error: string, sent: boolean): WebApiReply {
  return { ok: false, error, answered: false, sent, statusCode: undefined };
}

/** Launches a system whose hooks log the status that a client sees, and then call the given hooks. */
async function launchLogged(t: TestContext, hooks: Partial<System> = {}): Promise<LaunchedSystem & { log: string[] }> {
  const log: string[] = [];
  type Hook = 'onPaused' | 'onResumed' | 'saveState' | 'onShutdown';
  const logged = (hook: Hook) => async (status: SystemStatus = PAUSED): Promise<void> => {
    log.push(`${hook} while ${(await launched.client.getStatus()).statusName}`);
    await hooks[hook]?.(status);
  };
  const launched = await launchSystem(t, {
    ...hooks,
    onPaused: logged('onPaused'),
    onResumed: logged('onResumed'),
    saveState: logged('saveState'),
    onShutdown: logged('onShutdown'),
  });
  return { ...launched, log };
}

/** Pauses and resumes in turn, and checks that each status read afterwards is a newer one. */
async function checkFreshness(client: WebApiClient): Promise<void> {
  await client.waitFor(ACTIVE);
  let checks = 0;
  for (let round = 0; round < 100; round += 1) {
    const isPause = round % 2 === 0;
    assert.equal(await (isPause ? client.pause() : client.resume()), 'ok');
    const expected = isPause ? PAUSED : ACTIVE;
    const status = await getFreshStatus(client);
    if (status === null) await client.waitFor(expected);
    else assert.equal(status, expected, `round ${round}`);
    checks += status === null ? 0 : 1;
  }
  assert.ok(checks >= 10, `${checks} of 100 responses came within 10 ms`);
}
