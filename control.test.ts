// Tests of control.ts. A host that must block its thread, end, or be killed is a process of its own: see runHost().

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { getEventListeners, once } from 'node:events';
import { existsSync, rmSync } from 'node:fs';
import {
  chown, link, lstat, mkdir, mkdtemp, open as openFile, readFile, readdir, readlink, realpath, rename, rm, symlink,
  writeFile,
} from 'node:fs/promises';
import { Agent, STATUS_CODES, createServer as createHttpServer, request as httpRequest } from 'node:http';
import { connect, createServer } from 'node:net';
import { networkInterfaces, tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { createInterface } from 'node:readline';
import { describe, it } from 'node:test';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { inspect, promisify } from 'node:util';
import { build } from 'esbuild';
import type { BuildOptions } from 'esbuild';
import type { ChildProcess } from 'node:child_process';
import type { IncomingHttpHeaders, RequestListener } from 'node:http';
import type { AddressInfo, Server, Socket } from 'node:net';
import type { Readable } from 'node:stream';
import type { TestContext } from 'node:test';
import type { Worker } from 'node:worker_threads';

import {
  DEFAULT_HOST, DEFAULT_MAX_QUEUE_SIZE, DEFAULT_PORT, EmptyError, SystemStatus, VERSION, WebApiClient, WebApiServer,
  launch,
} from './control.ts';
import type { ControlCommand, LaunchConfig, System, WebApiAddress, WebApiServerOptions } from './control.ts';

const { ACTIVE, PAUSING, PAUSED, RESUMING, SHUTTING_DOWN, OFFLINE } = SystemStatus;

const PROJECT = process.cwd();
const LIMIT = { timeout: 120_000 }; // for each suite: what hangs is a failure, not an endless run
const POSIX_ONLY = process.platform === 'win32' ? { skip: 'Windows has no signals and no sockets in folders' } : {};
const CLEAN_END = { code: 0, signal: null, errors: '' }; // of a host

const COMMANDS: readonly ControlCommand[] = ['pause', 'resume', 'shutdown', 'save-state'];
const QUEUE_FULL = 'Command queue is full, try again later';
const INTERNAL_ERROR = '{"error":"Internal server error"}';
const INVALID_METHOD = '{"error":"Invalid API method"}';
const INVALID_ENDPOINT = '{"error":"Invalid API endpoint"}';

const TOKEN = 'a-Secret/that+is~long.enough_=';
const BEARER = `Authorization: Bearer ${TOKEN}`;

// For bytesOf(), which makes requests of them.
const GET = 'GET /api/status';
const POST = 'POST /api/pause';
const HOST = 'Host: localhost';
const CLOSE = 'Connection: close';
const CHUNKED = 'Transfer-Encoding: chunked';

// ───── Statuses and constants ────────────────────────────────────────────────────────────────────────────────────

describe('The constants', LIMIT, () => {
  it('SystemStatus has six frozen members with their names', () => {
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

  it('are the documented defaults', () => {
    assert.deepEqual([DEFAULT_HOST, DEFAULT_PORT, DEFAULT_MAX_QUEUE_SIZE], ['localhost', 8391, 16]);
  });

  it('VERSION is that of the package, of the first line of the file and of the latest change', async () => {
    const { version } = JSON.parse(await readFile(join(PROJECT, 'package.json'), 'utf8'));
    assert.equal(VERSION, version);
    assert.match(await readFile(join(PROJECT, 'control.ts'), 'utf8'), new RegExp(`^/\\*! control.ts ${version} `));
    const [, latest] = /^## (\S+)/m.exec(await readFile(join(PROJECT, 'CHANGELOG.md'), 'utf8')) ?? [];
    assert.equal(latest, version);
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
  const typeErrors = (...values: unknown[]): Values => values.map((value) => [value, TypeError]);
  const rangeErrors = (...values: unknown[]): Values => values.map((value) => [value, RangeError]);
  const notPorts = [
    ...typeErrors('8391', null, true, 8391n), ...rangeErrors(NaN, -1, 1.5, 70_000, Infinity),
  ];
  const notCounts = [
    ...typeErrors('16', null, [16], 64n), ...rangeErrors(NaN, 0, -1, 1.5, 65_537, Infinity),
  ];
  const notStrings = [...typeErrors(127, null, true, ['localhost'], {}), ...rangeErrors('')];
  const notTimeouts = [...typeErrors('1', null), ...rangeErrors(NaN, 0, -1, Infinity, 2 ** 31)];
  const notObjects = typeErrors(null, 'active', 5);
  const notFunctions = typeErrors(null, 'active', ACTIVE);
  const notArrays = typeErrors('box.lan', null, 5, {}, new Set(['*']));
  const notNames = [...typeErrors(5, null, ['box.lan']), ...rangeErrors(
    '', '.', '..lan', '.*', '*.lan', 'box.lan:80', 'http://box.lan', 'box.lan/', 'me@box.lan', 'box lan', ' box.lan',
    'box?', 'box#', '[::1]', '**', 'box.lan\n', 'böx.lan', 'box.lan.',
  )];
  const notOrigins = [...typeErrors(5, null, ['http://a']), ...rangeErrors(
    '', '*', 'null', 'box.lan', '//box.lan', 'http:box.lan', 'http://', 'http://box.lan/', 'http://box.lan?',
    'HTTP://box.lan', 'http://Box.lan', 'http://*.lan', 'http://me@box.lan', 'http://box.lan#x', 'http://box lan',
    'http://box.lan\n',
  )];

  // Options of access, which three take.
  const withAccess = {
    WebApiServer: (options: object) => server({ systemStatus, ...options }),
    WebApiClient: (options: object) => client(undefined, undefined, options),
    launch: (options: object, webApiAddress: unknown = ['localhost', 0]) =>
      run({ step }, { webApiAddress, webApiOptions: options }),
  };
  const EVERYWHERE = ['WebApiServer', 'WebApiClient', 'launch'] as const;
  const SERVERS = ['WebApiServer', 'launch'] as const;
  const access: [where: readonly (keyof typeof withAccess)[], name: string, (value: unknown) => object, Values][] = [
    [SERVERS, 'maxConnections must be an integer from 1 to 65536', (value) => ({ maxConnections: value }), notCounts],
    [SERVERS, 'allowedHosts must be an array', (value) => ({ allowedHosts: value }), notArrays],
    [SERVERS, "allowedHosts must hold strings such as 'box.lan', '.lan' or '*'",
      (value) => ({ allowedHosts: ['*', value] }), notNames],
    [SERVERS, 'allowedOrigins must be an array', (value) => ({ allowedOrigins: value }), notArrays],
    [SERVERS, "allowedOrigins must hold strings such as 'http://localhost:3000'",
      (value) => ({ allowedOrigins: ['http://a', value] }), notOrigins],
    [EVERYWHERE, 'socketPath must be a non-empty string', (value) => ({ socketPath: value }), notStrings],
    [['WebApiServer', 'WebApiClient'], 'socketPath must be at most 94 bytes long', (value) => ({ socketPath: value }),
      rangeErrors('/control\0.sock', '/'.padEnd(95, 'x'))],
  ];

  const cases: [where: string, name: string, call: (value: unknown) => () => unknown, values: Values][] = [
    ['WebApiServer', 'options', (value) => server(value), [...notObjects, ...typeErrors(undefined)]],
    ['WebApiServer', 'systemStatus', (value) => server({ systemStatus: value }), [
      ...notFunctions, ...typeErrors(undefined),
    ]],
    ['WebApiServer', 'host', (value) => server({ systemStatus, host: value }), notStrings],
    ['WebApiServer', 'port', (value) => server({ systemStatus, port: value }), notPorts],
    ['WebApiServer', 'maxQueueSize', (value) => server({ systemStatus, maxQueueSize: value }), notCounts],
    ['WebApiClient', 'host', (value) => client(value), notStrings],
    ['WebApiClient', 'port', (value) => client('localhost', value), [...notPorts, ...rangeErrors(0)]],
    ['WebApiClient', 'options', (value) => client('localhost', 8391, value), notObjects],
    ['WebApiClient', 'timeout', (value) => client('localhost', 8391, { timeout: value }), notTimeouts],
    ['waitFor', 'status', (value) => waitFor(value, { timeout: 50 }), typeErrors('paused', undefined)],
    ['waitFor', 'timeout', (value) => waitFor(PAUSED, { timeout: value }), notTimeouts],
    ['waitFor', 'onStatus', (value) => waitFor(PAUSED, { timeout: 50, onStatus: value }), typeErrors(5, null)],
    ['launch', 'system', (value) => run(value), [...notObjects, ...typeErrors(undefined)]],
    ['launch', 'step', (value) => run({ step: value }), [...notFunctions, ...typeErrors(undefined)]],
    ...['onListening', 'onPaused', 'onResumed', 'saveState', 'onShutdown'].map((hook): (typeof cases)[number] => {
      return ['launch', hook, (value) => run({ step, [hook]: value }), notFunctions];
    }),
    ['launch', 'options', (value) => run({ step }, value), notObjects],
    ['launch', 'webApiAddress', (value) => run({ step }, { webApiAddress: value }), [
      ...typeErrors('localhost:0', 0, {}, [], ['localhost'], ['localhost', 0, 0]),
    ]],
    ['launch', 'host of webApiAddress', (value) => run({ step }, { webApiAddress: [value, 0] }), notStrings],
    ['launch', 'port of webApiAddress', (value) => run({ step }, { webApiAddress: ['localhost', value] }), notPorts],
    ...[['localhost', 0], null].map((webApiAddress): (typeof cases)[number] => {
      return ['launch', 'webApiCommandQueueSize', (value) => run({ step }, {
        webApiAddress, webApiCommandQueueSize: value,
      }), notCounts];
    }),
    ['launch', 'options of webApiOptions', (value) => run({ step }, {
      webApiAddress: null, webApiOptions: value,
    }), notObjects],
    ...access.flatMap(([places, name, optionsOf, values]) => places.map((where): (typeof cases)[number] => {
      return [where, name, (value) => withAccess[where](optionsOf(value)), values];
    })),
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

  it('but never with the token in it', async () => {
    const values: [value: unknown, errorClass: ErrorConstructor, words: string][] = [
      [123_456_789, TypeError, 'a value of type number'],
      [null, TypeError, 'a value of type object'],
      [['secret-in-an-array'], TypeError, 'a value of type object'],
      [Buffer.from('secret-in-a-buffer'), TypeError, 'a value of type object'],
      [() => 'secret-of-a-function', TypeError, 'a value of type function'],
      ['', RangeError, '0'],
      ['secret-that-is-', RangeError, '15'],
      ['secret'.padEnd(1025, 'x'), RangeError, '1025'],
      ...[
        'secret with spaces', 'secret-at-the-end\n', 'secret\r\nX-Header: 1', 'secret-with-a-\0-in-it',
        'secret-with-a-\x7f-in-it', 'secret-with-an-ü-in-it', 's e c',
      ].map((value): [string, ErrorConstructor, string] => [value, RangeError, 'other characters']),
    ];
    for (const where of EVERYWHERE) {
      for (const [value, errorClass, words] of values) {
        const error = await failure(withAccess[where]({ token: value }));
        const message = `token must be a string of 16 to 1024 visible ASCII characters, got ${words}`;
        assert.deepEqual([error.constructor, error.message], [errorClass, message], where);
        const { stack, ...others } = error; // in its stack are the lines of this file
        assert.ok(!/secret|123456789|s e c/.test(inspect([others, error.cause, stack?.split('\n    at ')[0]])));
      }
    }
  });

  it('socketPath together with host or port', async () => {
    const socketPath = 'control.sock';
    for (const call of [
      server({ systemStatus, socketPath, host: '127.0.0.1' }),
      server({ systemStatus, socketPath, port: 0 }),
      server({ systemStatus, socketPath, host: 'localhost', port: 8392 }),
      client('127.0.0.1', undefined, { socketPath }),
      client(undefined, 80, { socketPath }),
      withAccess.launch({ socketPath }, ['localhost', 0]),
      withAccess.launch({ socketPath }, ['::1', 8391]),
    ]) {
      const error = await failure(call);
      assert.ok(error instanceof TypeError);
      assert.equal(error.message, 'socketPath stands in place of host and port: give it, or them');
    }
  });

  it('an option that there is not', async () => {
    const names = 'socketPath, token, allowedHosts, allowedOrigins, maxConnections';
    const expected: [call: () => unknown, owner: string, unknown: string, known: string][] = [
      [withAccess.WebApiServer({ prot: 1 }), 'WebApiServer', 'prot',
        `systemStatus, host, port, maxQueueSize, ${names}`],
      [withAccess.WebApiClient({ timeOut: 1 }), 'WebApiClient', 'timeOut', 'timeout, token, socketPath'],
      [withAccess.WebApiClient({ allowedHosts: [] }), 'WebApiClient', 'allowedHosts', 'timeout, token, socketPath'],
      [waitFor(PAUSED, { timeout: 50, timeOut: 1 }), 'waitFor', 'timeOut', 'timeout, signal, onStatus'],
      [run({ step }, { webApiAddress: null, webApiPort: 1 }), 'launch', 'webApiPort',
        'webApiAddress, webApiCommandQueueSize, webApiOptions'],
      ...['tokn', 'host', 'port', 'systemStatus', 'maxQueueSize'].map((name): (typeof expected)[number] => {
        return [withAccess.launch({ [name]: 1 }, null), 'webApiOptions', name, names];
      }),
    ];
    for (const [call, owner, unknown, known] of expected) {
      const error = await failure(call);
      assert.ok(error instanceof TypeError);
      assert.equal(error.message, `${owner} has no option ${unknown}; it has ${known}`);
    }
  });

  it('but these are fine, and undefined is as good as none', () => {
    const none = { socketPath: undefined, token: undefined };
    const names = ['host', 'port', 'maxQueueSize', 'allowedHosts', 'allowedOrigins', 'maxConnections'];
    const fine: Record<string, unknown>[] = [
      { ...none, ...Object.fromEntries(names.map((name) => [name, undefined])) },
      ...['x'.repeat(16), '~'.repeat(1024), '!"#$%&\'()*+,-./:;<=>?@[\\]^_`{|}~'].map((token) => ({ token })),
      { allowedHosts: [], allowedOrigins: [], maxConnections: 1 },
      { allowedHosts: ['box', 'Box.LAN', '.lan', '*', '10.0.0.1', 'a_b'], maxConnections: 65_536 },
      { allowedOrigins: ['http://localhost:3000', 'https://[::1]:8', 'chrome-extension://abc'] },
      { socketPath: 'control.sock', host: 'localhost', port: 8391 },
    ];
    for (const options of fine) withAccess.WebApiServer(options)();
    client(undefined, undefined, { timeout: undefined, ...none })();
    for (const { token, socketPath } of fine) client('localhost', 8391, { token, socketPath })();
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
const NOT_ENDPOINTS = [
  '/', '/api', '/api/', '/api/status/', '//api/status', '/api//status', '/api/%73tatus', '/API/STATUS', '/api/Status',
  '/api/status;x', '/api/status.json', '/api/status/x', '/x/../api/status', '/api/pause/', '/api/pause%20',
  '/api/save_state', '/api/statu', '/?/api/status', '*', 'http://localhost', 'http://localhost/api',
  'ftp://localhost/api/status', 'http://localhost//api/status', '/constructor',
];

// The ways to serve.
const WAYS = [
  ['on a port', start, {}], ['on a Unix socket', startOnSocket, POSIX_ONLY], ['mounted', mount, {}],
] as const;

for (const [way, startThere, suiteOptions] of WAYS) {
  describe(`Each endpoint, ${way},`, suiteOptions, () => {
    for (const { path, allowed, body, command } of ENDPOINTS) {
      it(`${path} answers ${allowed.join(' and ')} with 200, the other methods with 405`, async (t) => {
        const { server, where } = await startThere(t);
        for (const method of METHODS) {
          const isAllowed = allowed.includes(method);
          const reply = await ask(where, method, path);
          checkReply(reply, isAllowed ? 200 : 405, isAllowed ? body : INVALID_METHOD, method);
          assert.equal(reply.headers.allow, isAllowed ? undefined : allowed.join(', '));
          assert.deepEqual(takeAll(server), isAllowed && command !== null ? [command] : []);
          checkReply(await ask(where, method, '/api/'), 404, INVALID_ENDPOINT, method);
        }
      });
    }
  });
}

// ───── What comes over the wire, byte by byte ────────────────────────────────────────────────────────────────────

/**
 * What is sent, a character for each byte; the outcome of each answer to it, see outcomeOf(); and the commands that
 * are queued then, if they are others than a pause for each `ok`.
 */
type ByteRow = [name: string, bytes: string, outcomes: string | string[], queued?: ControlCommand[]];

interface ByteTable {
  title: string;
  options?: Partial<WebApiServerOptions>;
  isOnSocket?: boolean;
  /** Whether the client ends its side at once, and not only when it has all answers. */
  endsAtOnce?: boolean;
  rows: ByteRow[];
}

const NO_HOST = '403 allowedHosts';
const NO_ORIGIN = '403 allowedOrigins';

const FINE_HOSTS = [
  'localhost', 'LOCALHOST:1', 'LocalHost:', '127.0.0.1', '127.9.9.9:80', '[::1]:8391', '[::1]', '[fe80::1%eth0]',
  '192.168.1.7', '[0:0::1]:65535', '[::ffff:127.0.0.1]:', '[2001:DB8::1]', '1.0.0.0', '255.255.255.255:65536',
];
const FOREIGN_HOSTS = [
  '0.0.0.0', '0.1.2.3', '0.255.255.255:80', '[::]', '[::]:80', '[0:0::0]', '[0:0:0:0:0:0:0:0]', '[::0.0.0.0]',
  '[::ffff:0.0.0.0]', '[::ffff:0:1]', '[::%eth0]', // those that a browser takes for this machine
  'localhost.', 'x.localhost', 'localhost.x', '0177.0.0.1', '127.1', '0x7f.1', '0x7f000001', '2130706433', '127.0.0.1.',
  '127.0.0.1.x', '1.2.3', '256.0.0.1', '1.2.3.4.5', '%6cocalhost', 'evil.example', 'evil.example:8391', 'box.lan',
  '*', '.', '-', 'localhost@evil', 'evil@localhost', 'localhost:1@evil', 'evil:localhost@127.0.0.1', '@localhost',
  'localhost,localhost', 'localhost:http', 'localhost:80:80', 'localhost:-1', 'localhost:0x50', ':80', '::1', '[::1',
  '[::1]x', '[::1]80', '[::1]:x', '[127.0.0.1]', '[localhost]', '[]', '[', ']', '[[::1]]', '[:::]', '[::g]',
];

const OWN_ORIGIN = 'http://localhost:3000';
const ORIGINS = [OWN_ORIGIN, 'app://tool'];
const FOREIGN_ORIGINS = [
  'null', '', 'http://localhost:8391', 'http://localhost', 'http://127.0.0.1', 'http://evil.example', '*',
  'HTTP://localhost:3000', 'http://LOCALHOST:3000', 'http://localhost:3001', 'http://localhost:300',
  'http://localhost:30000', 'http://localhost:3000/', 'https://localhost:3000', 'http://localhost:3000 app://tool',
  'http://localhost:3000, app://tool', 'http://localhost:3000,', 'xhttp://localhost:3000', 'localhost:3000',
];
const SITES = ['none', 'same-origin', 'same-site', 'cross-site', '', 'NONE', 'none,none', 'x'];

const LONG = 'x'.repeat(17 * 1024);
const FULL = 'x'.repeat(65_536); // as long as a body may be
const MANY_FIELDS: string[] = Array(1100).fill('a:');
const MOST = 128; // requests that a connection may bring at once
const GARBAGE = 'GARBAGE\r\n\r\n';

// Requests without their end.
const CUT_SHORT: ByteRow[] = [
  ['in its method', 'POS', '400'],
  ['in its target', 'POST /api/pau', '400'],
  ['after its target', POST, '400'],
  ['in its version', `${POST} HTTP/1.`, '400'],
  ['after its request line', `${POST} HTTP/1.1\r\n`, '400'],
  ['in a field', `${POST} HTTP/1.1\r\nHost: local`, '400'],
  ['after its fields', `${POST} HTTP/1.1\r\nHost: localhost\r\n`, '400'],
  ['before its last byte', `${POST} HTTP/1.1\r\nHost: localhost\r\n\r`, '400'],
  ['before its body', bytesOf(POST, HOST, 'Content-Length: 10'), '400'],
  ['in its body', bytesOf(POST, HOST, 'Content-Length: 10') + '123456789', '400'],
  ['before its chunks', bytesOf(POST, HOST, CHUNKED), '400'],
  ['in the size of a chunk', bytesOf(POST, HOST, CHUNKED) + '1', '400'],
  ['in a chunk', bytesOf(POST, HOST, CHUNKED) + '5\r\nhell', '400'],
  ['after a chunk', bytesOf(POST, HOST, CHUNKED) + '5\r\nhello\r\n', '400'],
  ['in the last chunk', bytesOf(POST, HOST, CHUNKED) + '0\r\n', '400'],
  ['in a trailer', bytesOf(POST, HOST, CHUNKED) + '0\r\nX-', '400'],
  ['in its body, from a foreign Host', bytesOf(POST, 'Host: evil', 'Content-Length: 10') + 'abc', '400'],
];

const BYTE_TABLES: ByteTable[] = [
  {
    title: 'Each endpoint',
    rows: ENDPOINTS.flatMap(({ path, allowed: [method], command }): ByteRow[] => {
      const line = `${method} ${path}`;
      const requests = [
        ...['?x=1', '?', '?a=/api/pause?b=/'].map((query) => bytesOf(line + query, HOST)),
        ...['http://localhost', 'HTTP://127.0.0.1:1', 'https://[::1]'].map((start) => {
          return bytesOf(`${method} ${start}${path}?x=1`, HOST);
        }),
        bytesOf(`${line} HTTP/1.0`),
        bytesOf(line, HOST, 'Content-Length: 0'),
        bytesOf(line, HOST, 'Content-Length: 2') + '{}',
        bytesOf(line, HOST, CHUNKED) + '0\r\n\r\n',
      ];
      const outcome = command === null ? 'active' : 'ok';
      return requests.map((bytes) => [bytes, bytes, outcome, command === null ? [] : [command]]);
    }),
  },
  {
    title: 'A path that is no endpoint',
    rows: NOT_ENDPOINTS.flatMap((path) => METHODS.map((method): ByteRow => {
      return [`${method} ${path}`, bytesOf(`${method} ${path}`, HOST), '404'];
    })),
  },
  {
    title: 'Lines',
    rows: [
      ['bare LF', bytesOf(POST, HOST).replaceAll('\r', ''), '400'],
      ['bare CR', bytesOf(POST, HOST).replaceAll('\n', ''), '400'],
      ['bare LF after the request line', `${POST} HTTP/1.1\n${HOST}\r\n\r\n`, '400'],
      ['bare LF after a field', `${POST} HTTP/1.1\r\n${HOST}\nX: x\r\n\r\n`, '400'],
      ['bare LF at the end', `${POST} HTTP/1.1\r\n${HOST}\r\n\n`, '400'],
      ['bare CR after the request line', `${POST} HTTP/1.1\r${HOST}\r\n\r\n`, '400'],
      ['bare CR after a field', `${POST} HTTP/1.1\r\n${HOST}\rX: x\r\n\r\n`, '400'],
      ['bare CR in a value', bytesOf(POST, HOST, 'X: a\rb'), '400'],
      ['bare CR in a name', bytesOf(POST, HOST, 'a\rb: x'), '400'],
      ['bare CR in the path', bytesOf('POST /api/\rpause', HOST), '400'],
      ['CR CR LF', `${POST} HTTP/1.1\r\n${HOST}\r\r\n\r\n`, '400'],
      ['empty lines before the request', `\r\n\r\n${bytesOf(POST, HOST)}`, 'ok'],
      ['a folded Host', bytesOf(POST, 'Host: localhost\r\n .evil.example'), '400'],
      ['a Host in a folded line', bytesOf(POST, 'X: x\r\n Host: localhost'), '400'],
      ['an Origin in a folded line', bytesOf(POST, HOST, 'Origin:\r\n http://evil'), '400'],
      ['a space before the first field', `${POST} HTTP/1.1\r\n ${HOST}\r\n\r\n`, '400'],
      ['a space before the colon', bytesOf(POST, 'Host : localhost'), '400'],
      ['a tab before the colon', bytesOf(POST, 'Host\t: localhost'), '400'],
      ['a space in a name', bytesOf(POST, HOST, 'a b: c'), '400'],
      ['no name', bytesOf(POST, HOST, ': x'), '400'],
      ['no colon', bytesOf(POST, HOST, 'X'), '400'],
      ['NUL in a value', bytesOf(POST, HOST, 'X: a\0b'), '400'],
      ['NUL in Host', bytesOf(POST, 'Host: localhost\0'), '400'],
      ['NUL in a name', bytesOf(POST, HOST, 'a\0b: x'), '400'],
      ['NUL in the path', bytesOf('POST /api/pause\0', HOST), '400'],
      ['NUL in the query', bytesOf('POST /api/pause?\0', HOST), '400'],
      ['NUL in the method', bytesOf('PO\0ST /api/pause', HOST), '400'],
      ['a control character in a value', bytesOf(POST, HOST, 'X: \x01'), '400'],
      ['a byte above 127 in a value', bytesOf(POST, HOST, 'X: \xe4\xff'), 'ok'],
      ['a byte above 127 in a name', bytesOf(POST, HOST, '\xe4: x'), '400'],
      ['a tab in the request line', bytesOf('POST\t/api/pause', HOST), '400'],
      ['a space in the path', bytesOf('POST /api/pause x', HOST), '400'],
      ['a space after the version', `${POST} HTTP/1.1 \r\n${HOST}\r\n\r\n`, '400'],
      ['an unknown version', `${POST} HTTP/1.2\r\n${HOST}\r\n\r\n`, '400'],
      ['no Host in HTTP/2.0', bytesOf('POST /api/pause HTTP/2.0'), '400'],
      ['no Host in HTTP/0.9', bytesOf('POST /api/pause HTTP/0.9'), '400'],
      ['no Host and no version', 'POST /api/pause\r\n\r\n', '400'],
      ['a version in lower case', `${POST} http/1.1\r\n${HOST}\r\n\r\n`, '400'],
      ['a method in lower case', bytesOf('post /api/pause', HOST), '400'],
      ['an unknown method', bytesOf('PAUSE /api/pause', HOST), '400'],
      ['no path', bytesOf('POST', HOST), '400'],
      ['a path without slash', bytesOf('POST api/pause', HOST), '400'],
      ['the start of HTTP/2', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0', '400'],
      ['the start of TLS', '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03' + '\x00'.repeat(506), '400'],
      ['nothing but a line', 'hello\r\n', '400'],
    ],
  },
  {
    title: 'Bodies',
    rows: [
      ['no body in as many words', bytesOf(POST, HOST, 'Content-Length: 0'), 'ok'],
      ['a body', bytesOf(POST, HOST, 'Content-Length: 005') + 'hello', 'ok'],
      ['a body of a GET', bytesOf(GET, HOST, 'Content-Length: 5') + 'hello', 'active'],
      ['chunks', bytesOf(POST, HOST, CHUNKED) + '5;a=b\r\nhello\r\nA\r\n0123456789\r\n000\r\nX: x\r\n\r\n', 'ok'],
      ['chunks named in upper case', bytesOf(POST, HOST, 'TRANSFER-ENCODING: CHUNKED') + '0\r\n\r\n', 'ok'],
      ['a length and chunks', bytesOf(POST, HOST, 'Content-Length: 5', CHUNKED) + '0\r\n\r\n', '400'],
      ['chunks and a length', bytesOf(POST, HOST, CHUNKED, 'Content-Length: 5') + '0\r\n\r\n', '400'],
      ['two lengths', bytesOf(POST, HOST, 'Content-Length: 1', 'Content-Length: 2') + 'xx', '400'],
      ['the same length twice', bytesOf(POST, HOST, 'Content-Length: 1', 'Content-Length: 1') + 'x', '400'],
      ...['+5', '-1', '5, 5', '5,5', '0x5', '5x', '5 5', '5.0', '1e1', '', '5;', '"5"', '\xb2', '18446744073709551616',
        '99999999999999999999999', '-0'].map((length): ByteRow => {
        return [`Content-Length: ${length}`, bytesOf(POST, HOST, `Content-Length: ${length}`) + 'hello', '400'];
      }),
      ['Content-Length: 2^64 - 1', bytesOf(POST, HOST, 'Content-Length: 18446744073709551615'), '413'],
      ['Content-Length: 10^15', bytesOf(POST, HOST, 'Content-Length: 1000000000000000'), '413'],
      ['Content_Length, which is another field', bytesOf(POST, HOST, 'Content_Length: 5'), 'ok'],
      ...['identity', 'chunked, identity', 'xchunked', 'chunked, gzip', 'chunkedx'].map((coding): ByteRow => {
        const field = `Transfer-Encoding: ${coding}`;
        return [field, bytesOf(POST, HOST, field) + '0\r\n\r\n', '400'];
      }),
      ['chunks twice', bytesOf(POST, HOST, CHUNKED, CHUNKED) + '0\r\n\r\n', '400'],
      ...['zz', '-1', '0x1', '+1', '1 1', '', ' 1', '\n1', '10000000000000000', 'ffffffffffffffff0', '1\0', '1\n'].map(
        (size): ByteRow => {
          const bytes = bytesOf(POST, HOST, CHUNKED) + `${size}\r\nx\r\n0\r\n\r\n`;
          return [`a chunk of size ${JSON.stringify(size)}`, bytes, '400'];
        },
      ),
      ['a second chunk of size zz', bytesOf(POST, HOST, CHUNKED) + '1\r\nx\r\nzz\r\n0\r\n\r\n', '400'],
      ['a chunk that is longer than its size', bytesOf(POST, HOST, CHUNKED) + '1\r\nxx\r\n0\r\n\r\n', '400'],
      ['a chunk that is shorter than its size', bytesOf(POST, HOST, CHUNKED) + '3\r\nx\r\n0\r\n\r\n', '400'],
      ['bare LF after a size', bytesOf(POST, HOST, CHUNKED) + '1\nx\r\n0\r\n\r\n', '400'],
      ['bare LF after a chunk', bytesOf(POST, HOST, CHUNKED) + '1\r\nx\n0\r\n\r\n', '400'],
      ['bare LF at the end', bytesOf(POST, HOST, CHUNKED) + '0\r\n\n', '400'],
      ['a malformed trailer', bytesOf(POST, HOST, CHUNKED) + '0\r\na b: c\r\n\r\n', '400'],
      ['a Host and an Origin in the trailer',
        bytesOf(POST, HOST, CHUNKED) + '0\r\nHost: evil\r\nOrigin: null\r\n\r\n', 'ok'],
      ['a Host in the trailer alone', bytesOf(POST, CHUNKED) + '0\r\nHost: localhost\r\n\r\n', '400'],
    ],
  },
  {
    title: 'What is cut short',
    endsAtOnce: true,
    rows: [
      ...CUT_SHORT,
      ['behind another one', bytesOf(POST, HOST) + POST, ['ok', '400']],
      ['behind a question', bytesOf(GET, HOST) + bytesOf(POST, HOST, 'Content-Length: 10'), ['active', '400']],
      ['not at all', bytesOf(POST, HOST), 'ok'],
      ['not at all, and is a question', bytesOf(GET, HOST), 'active'],
      ['not at all, and has a body', bytesOf(POST, HOST, 'Content-Length: 2') + '{}', 'ok'],
      ['before it began', '', []],
      ['after an empty line', '\r\n', []],
      ['in a body announced after a thousand fields',
        bytesOf(POST, HOST, ...MANY_FIELDS, 'Content-Length: 10') + 'abc', '400'],
    ],
  },
  {
    title: 'Other protocols',
    rows: [
      ['a WebSocket', bytesOf(GET, HOST, 'Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Version: 13',
        'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=='), '501'],
      ['HTTP/2',
        bytesOf(POST, HOST, 'Connection: Upgrade, HTTP2-Settings', 'Upgrade: h2c', 'HTTP2-Settings: AAMAAABk'), '501'],
      ['an upgrade without Connection', bytesOf(POST, HOST, 'Upgrade: websocket'), '501'],
      ['an upgrade with a body',
        bytesOf(POST, HOST, 'Connection: Upgrade', 'Upgrade: x', 'Content-Length: 2') + '{}', '501'],
      ['CONNECT', bytesOf('CONNECT localhost:80', HOST), '501'],
      ['CONNECT in HTTP/1.0', bytesOf('CONNECT localhost:80 HTTP/1.0'), '501'],
      ['CONNECT to a path', bytesOf('CONNECT /api/pause', HOST), '501'],
      ['CONNECT to a foreign host', bytesOf('CONNECT evil.example:80', 'Host: evil.example:80'), '501'],
    ],
  },
  {
    title: 'Host',
    rows: [
      ...FINE_HOSTS.map((host): ByteRow => [`Host: ${host}`, bytesOf(POST, `Host: ${host}`), 'ok']),
      ...FOREIGN_HOSTS.map((host): ByteRow => [`Host: ${host}`, bytesOf(POST, `Host: ${host}`), NO_HOST]),
      ['Host:', bytesOf(POST, 'Host:'), NO_HOST],
      ['Host: localhost with spaces around it', bytesOf(POST, 'hOST: \t localhost \t '), 'ok'],
      ['Host: localhost evil.example', bytesOf(POST, 'Host: localhost evil.example'), NO_HOST],
      ['Host: localhost\\xa0', bytesOf(POST, 'Host: localhost\xa0'), NO_HOST],
      ['Host: localhost/', bytesOf(POST, 'Host: localhost/'), NO_HOST],
      ['Host: localhost#', bytesOf(POST, 'Host: localhost#'), NO_HOST],
      ['a foreign Host of a GET', bytesOf(GET, 'Host: evil.example'), NO_HOST],
      ['a foreign Host of a HEAD', bytesOf('HEAD /api/status', 'Host: evil.example'), '403'],
      ['a foreign Host of a path that is not there', bytesOf('GET /', 'Host: evil.example'), NO_HOST],
      ['a foreign Host of a method that is not allowed', bytesOf('PUT /api/pause', 'Host: evil.example'), NO_HOST],
      ['a foreign Host of OPTIONS *', bytesOf('OPTIONS *', 'Host: evil.example'), NO_HOST],
      ['a foreign Host before a body', bytesOf(POST, 'Host: evil.example', 'Content-Length: 2') + '{}', NO_HOST],
      ['a foreign Host and Sec-Fetch-Site: none', bytesOf(GET, 'Host: evil.example', 'Sec-Fetch-Site: none'), NO_HOST],
      ['X-Forwarded-Host, Forwarded', bytesOf(POST, 'Host: x', 'X-Forwarded-Host: localhost',
        'Forwarded: host=localhost'), NO_HOST],
      ['no Host', bytesOf(POST), '400'],
      ['no Host, but a target with a local one', bytesOf('POST http://localhost/api/pause'), '400'],
      ['no Host in HTTP/1.0', bytesOf('POST /api/pause HTTP/1.0'), 'ok'],
      ['a local Host in HTTP/1.0', bytesOf('POST /api/pause HTTP/1.0', HOST), 'ok'],
      ['a foreign Host in HTTP/1.0', bytesOf('POST /api/pause HTTP/1.0', 'Host: evil.example'), NO_HOST],
      ['no Host and a foreign target in HTTP/1.0', bytesOf('POST http://evil.example/api/pause HTTP/1.0'), NO_HOST],
      ['no Host and a local target in HTTP/1.0', bytesOf('POST http://localhost/api/pause HTTP/1.0'), 'ok'],
      ['no Host and an Origin in HTTP/1.0', bytesOf('POST /api/pause HTTP/1.0', 'Origin: null'), NO_ORIGIN],
    ],
  },
  {
    title: 'An absolute-form target',
    rows: [
      ...FINE_HOSTS.filter((host) => !host.includes('%')).map((host): ByteRow => {
        return [`http://${host}/`, bytesOf(`POST http://${host}/api/pause`, 'Host: evil.example'), 'ok'];
      }),
      ...['', ...FOREIGN_HOSTS].map((host): ByteRow => {
        return [`http://${host}/`, bytesOf(`POST http://${host}/api/pause`, HOST), NO_HOST];
      }),
      ['https://', bytesOf('POST HTTPS://localhost/api/pause?x', 'Host: evil.example'), 'ok'],
      ['a local one without path', bytesOf('GET http://localhost', 'Host: evil.example'), '404'],
      ['a foreign one without path', bytesOf('GET http://evil.example', HOST), NO_HOST],
      ['a foreign one with a query that looks like a path', bytesOf('POST http://evil?/api/pause', HOST), NO_HOST],
      ['a local one with a query that looks like a path', bytesOf('POST http://localhost?/api/pause', HOST), '404'],
      ['a fragment', bytesOf('POST http://evil#@localhost/api/pause', HOST), '400'],
      ['another scheme', bytesOf('POST ftp://localhost/api/pause', HOST), '404'],
      ['another scheme with a foreign Host', bytesOf('POST ftp://localhost/api/pause', 'Host: evil.example'), NO_HOST],
      ['a foreign one in a path', bytesOf('POST /http://evil/api/pause', HOST), '404'],
      ['two slashes', bytesOf('POST //evil.example/api/pause', HOST), '404'],
    ],
  },
  {
    title: 'Origin and Sec-Fetch-Site',
    rows: [
      ...[OWN_ORIGIN, ...FOREIGN_ORIGINS].flatMap((origin): ByteRow[] => [
        [`POST from Origin: ${origin}`, bytesOf(POST, 'Host: localhost:8391', `Origin: ${origin}`), NO_ORIGIN],
        [`GET from Origin: ${origin}`, bytesOf(GET, 'Host: localhost:8391', `Origin: ${origin}`), NO_ORIGIN],
      ]),
      ...SITES.flatMap((site): ByteRow[] => {
        const isTyped = site === 'none';
        const field = `Sec-Fetch-Site: ${site}`;
        return [
          [`GET with ${field}`, bytesOf(GET, HOST, field), isTyped ? 'active' : NO_ORIGIN],
          [`HEAD with ${field}`, bytesOf('HEAD /api/status', HOST, field), isTyped ? '200' : '403'],
          [`POST with ${field}`, bytesOf(POST, HOST, field), NO_ORIGIN],
          [`OPTIONS with ${field}`, bytesOf('OPTIONS /api/pause', HOST, field), NO_ORIGIN],
          [`GET with ${field} and an Origin`, bytesOf(GET, HOST, field, 'Origin: null'), NO_ORIGIN],
        ];
      }),
      ['a page of the server itself', bytesOf(GET, 'Host: localhost:8391', 'Sec-Fetch-Site: same-origin'), NO_ORIGIN],
      ['a preflight', bytesOf('OPTIONS /api/pause', HOST, `Origin: ${OWN_ORIGIN}`,
        'Access-Control-Request-Method: POST'), NO_ORIGIN],
      ['what pages send, and node too', bytesOf(POST, HOST, 'Sec-Fetch-Mode: cors', 'Sec-Fetch-Dest: empty',
        'Referer: http://evil.example/', 'User-Agent: Mozilla/5.0', 'Cookie: a=b', 'Content-Type: text/plain'), 'ok'],
    ],
  },
  {
    title: 'A field that came twice',
    options: { allowedHosts: ['box.lan'], allowedOrigins: ORIGINS },
    rows: [
      ...[
        ['Host', 'localhost', 'box.lan'], ['Host', 'localhost', 'evil.example'], ['Host', 'evil.example', 'localhost'],
        ['Host', 'localhost', ''], ['Host', '', 'localhost'],
        ['Origin', OWN_ORIGIN, 'app://tool'], ['Origin', OWN_ORIGIN, 'null'], ['Origin', '', OWN_ORIGIN],
        ['Sec-Fetch-Site', 'none', 'cross-site'], ['Sec-Fetch-Site', 'cross-site', 'none'],
        ['Authorization', BEARER, 'Basic x'],
      ].flatMap(([name = '', first, second]): ByteRow[] => {
        const others = name === 'Host' ? [] : [HOST];
        const pairs = [[name, first], [name, second], [name.toUpperCase(), second]].map((pair) => pair.join(': '));
        return pairs.map((again) => {
          const bytes = bytesOf(GET, ...others, `${name}: ${first}`, 'X: x', again);
          return [`${name}: ${first}, ${again}`, bytes, '400'];
        });
      }),
      ['Host, Host and a target', bytesOf('POST http://localhost/api/pause', HOST, HOST), '400'],
      ['Host, Host in HTTP/1.0', bytesOf('POST /api/pause HTTP/1.0', HOST, HOST), '400'],
      ['another field', bytesOf(POST, HOST, 'Cookie: a', 'Cookie: b', 'X: x', 'x: x', 'Accept: a', 'Accept: b'), 'ok'],
      // node drops what comes after a thousand fields unless it is told not to.
      ['Host, a thousand fields, Host', bytesOf(POST, HOST, ...MANY_FIELDS, HOST), '400'],
      ['a thousand fields, Origin', bytesOf(POST, HOST, ...MANY_FIELDS, 'Origin: null'), NO_ORIGIN],
      ['a thousand fields, Host', bytesOf(POST, ...MANY_FIELDS, 'Host: evil.example'), NO_HOST],
      ['a thousand fields, a body that is too long',
        bytesOf(POST, HOST, ...MANY_FIELDS, 'Content-Length: 65537') + `${FULL}x`, '413'],
    ],
  },
  {
    title: 'A name given as host, an entry of allowedHosts',
    options: { host: '0x7F.1', allowedHosts: ['box.lan', 'Upper.LAN', '.example.org', '.Test'] }, // it is 127.0.0.1
    rows: [
      ...[
        '0x7F.1', '0X7f.1:80', 'box.lan', 'BOX.lan:8391', 'box.lan:', 'upper.lan', 'UPPER.LAN', 'example.org:1',
        'a.example.org', 'a.B.Example.ORG', 'test', 'x.test', 'localhost', '127.0.0.1', '[::1]',
      ].map((host): ByteRow => [host, bytesOf(POST, `Host: ${host}`), 'ok']),
      ...[
        '0x7f.2', 'x.0x7f.1', '127.1', 'box.lan.', 'a.box.lan', 'box.la', 'ox.lan', 'lan', '.lan', 'boxxlan',
        'xbox.lan', 'upper', 'xexample.org', 'example.org.', 'example.org.evil', 'org', 'xtest', 'test.evil',
        'box.lan@evil', 'box.lan:x', 'box.lan:80:80', 'box.lan,box.lan', '', '0.0.0.0', '[::]', 'x.localhost',
        'localhost.',
      ].map((host): ByteRow => [`not ${host}`, bytesOf(POST, `Host: ${host}`), NO_HOST]),
      ['a target with such a name', bytesOf('POST http://A.Example.org:1/api/pause', 'Host: evil'), 'ok'],
      ['a target with another name', bytesOf('POST http://evil/api/pause', 'Host: box.lan'), NO_HOST],
      ['an Origin that is such a name', bytesOf(POST, 'Host: box.lan', 'Origin: http://box.lan'), NO_ORIGIN],
    ],
  },
  {
    title: "With allowedHosts: ['*']",
    options: { allowedHosts: ['*'] },
    rows: [
      ...['evil.example', 'X:80', 'localhost.', '127.1', '192.168.1.7', '[::1]'].map((host): ByteRow => {
        return [host, bytesOf(POST, `Host: ${host}`), 'ok'];
      }),
      ...['0.0.0.0', '0.1.2.3:80', '[::]', '[::ffff:0.0.0.0]', '', ':80', 'x:y', '[::1', '::1'].map((host): ByteRow => {
        return [`not ${host}`, bytesOf(POST, `Host: ${host}`), NO_HOST];
      }),
      ['no Host', bytesOf(POST), '400'],
      ['an Origin', bytesOf(POST, 'Host: evil.example', 'Origin: http://evil.example'), NO_ORIGIN],
      ['a page', bytesOf(POST, 'Host: evil.example', 'Sec-Fetch-Site: same-origin'), NO_ORIGIN],
    ],
  },
  {
    title: 'With allowedOrigins',
    options: { allowedOrigins: ORIGINS },
    rows: [
      ...ORIGINS.map((origin): ByteRow => [origin, bytesOf(POST, HOST, `Origin: ${origin}`), 'ok']),
      ...SITES.map((site): ByteRow => {
        const fields = [HOST, `Origin: ${OWN_ORIGIN}`, `Sec-Fetch-Site: ${site}`];
        return [`${OWN_ORIGIN} with Sec-Fetch-Site: ${site}`, bytesOf(POST, ...fields), 'ok'];
      }),
      ...FOREIGN_ORIGINS.map((origin): ByteRow => {
        return [`not ${origin}`, bytesOf(POST, 'Host: localhost:8391', `Origin: ${origin}`), NO_ORIGIN];
      }),
      ['a page of an allowed origin and a foreign Host', bytesOf(POST, 'Host: evil', `Origin: ${OWN_ORIGIN}`), NO_HOST],
      ['a page that does not tell its origin', bytesOf(POST, HOST, 'Sec-Fetch-Site: same-site'), NO_ORIGIN],
      ['a preflight of an allowed origin', bytesOf('OPTIONS /api/pause', HOST, `Origin: ${OWN_ORIGIN}`), '204'],
      ['a preflight of another origin', bytesOf('OPTIONS /api/pause', HOST, 'Origin: http://evil'), NO_ORIGIN],
      ['a preflight with a foreign Host', bytesOf('OPTIONS /', 'Host: evil', `Origin: ${OWN_ORIGIN}`), NO_HOST],
      ['OPTIONS without Origin', bytesOf('OPTIONS /api/pause', HOST), '405'],
    ],
  },
  {
    title: 'With a token',
    options: { token: TOKEN, allowedOrigins: ORIGINS },
    rows: [
      ...[
        BEARER, `authorization:Bearer ${TOKEN}`, `Authorization: bearer ${TOKEN}`, `Authorization: BEARER ${TOKEN}`,
        `Authorization: Bearer  ${TOKEN}`, `${BEARER} `, `${BEARER}\t`,
      ].map((field): ByteRow => [JSON.stringify(field), bytesOf(POST, HOST, field), 'ok']),
      ...[
        'X: x', 'Authorization:', 'Authorization: Bearer', `Authorization: ${TOKEN}`, `Authorization: Basic ${TOKEN}`,
        `Authorization: Bearer${TOKEN}`, `Authorization: Bearer\t${TOKEN}`, `Authorization: xBearer ${TOKEN}`,
        'Authorization: Bearer wrong-token-wrong-token', BEARER.slice(0, -1), `${BEARER}x`, `${BEARER} x`, `${BEARER},`,
        `${BEARER}, Bearer ${TOKEN}`, `Authorization: Bearer "${TOKEN}"`,
        `Authorization: Bearer ${TOKEN.toUpperCase()}`, `Authorization: Bearer ${TOKEN.slice(1)}`,
        `Authorization: Bearer ${encodeURIComponent(TOKEN)}`,
        `Authorization: Bearer ${btoa(TOKEN)}`, `Proxy-${BEARER}`, `Cookie: ${TOKEN}`, `X-${BEARER}`,
      ].map((field): ByteRow => [`not ${JSON.stringify(field)}`, bytesOf(POST, HOST, field), '401']),
      ['not in the query', bytesOf(`POST /api/pause?token=${TOKEN}&access_token=${TOKEN}`, HOST), '401'],
      ['not in the target', bytesOf(`POST http://${TOKEN.replace('/', '')}@localhost/api/pause`, HOST), NO_HOST],
      ['two of them', bytesOf(POST, HOST, BEARER, BEARER), '400'],
      ['a good and a bad one', bytesOf(POST, HOST, BEARER, 'Authorization: Bearer x'), '400'],
      ['a GET with it', bytesOf(GET, HOST, BEARER), 'active'],
      ['a GET without', bytesOf(GET, HOST), '401'],
      ['a HEAD with it', bytesOf('HEAD /api/status', HOST, BEARER), '200'],
      ['a HEAD without', bytesOf('HEAD /api/status', HOST), '401'],
      ['HTTP/1.0 with it', bytesOf('POST /api/pause HTTP/1.0', BEARER), 'ok'],
      ['HTTP/1.0 without', bytesOf('POST /api/pause HTTP/1.0'), '401'],
      ['a body without', bytesOf(POST, HOST, 'Content-Length: 2') + '{}', '401'],
      ['a path that is not there with it', bytesOf('GET /', HOST, BEARER), '404'],
      ['a path that is not there without', bytesOf('GET /', HOST), '401'],
      ['a method that is not allowed with it', bytesOf('GET /api/pause', HOST, BEARER), '405'],
      ['a method that is not allowed without', bytesOf('GET /api/pause', HOST), '401'],
      ['a foreign Host with it', bytesOf(POST, 'Host: evil', BEARER), NO_HOST],
      ['a foreign Host without', bytesOf(POST, 'Host: evil'), NO_HOST],
      ['a foreign Origin with it', bytesOf(POST, HOST, 'Origin: null', BEARER), NO_ORIGIN],
      ['a foreign Origin without', bytesOf(POST, HOST, 'Origin: null'), NO_ORIGIN],
      ['a page with it', bytesOf(POST, HOST, 'Sec-Fetch-Site: same-origin', BEARER), NO_ORIGIN],
      ['a page without', bytesOf(POST, HOST, 'Sec-Fetch-Site: same-origin'), NO_ORIGIN],
      ['an allowed Origin with it', bytesOf(POST, HOST, `Origin: ${OWN_ORIGIN}`, BEARER), 'ok'],
      ['an allowed Origin without', bytesOf(POST, HOST, `Origin: ${OWN_ORIGIN}`), '401'],
      ['a preflight, which has none', bytesOf('OPTIONS /api/pause', HOST, `Origin: ${OWN_ORIGIN}`), '204'],
      ['pipelined, the second without', bytesOf(POST, HOST, BEARER) + bytesOf(POST, HOST), ['ok', '401']],
      ['pipelined, the first without', bytesOf(POST, HOST) + bytesOf(POST, HOST, BEARER), ['401', 'ok']],
    ],
  },
  {
    title: 'On a Unix socket, to which no name leads,',
    options: { allowedOrigins: ORIGINS },
    isOnSocket: true,
    rows: [
      ...['localhost', 'evil.example', '0.0.0.0:80', '', '/run/control.sock'].map((host): ByteRow => {
        return [`Host: ${host}`, bytesOf(POST, `Host: ${host}`), 'ok'];
      }),
      ['a foreign target', bytesOf('POST http://evil.example/api/pause', HOST), 'ok'],
      ['no Host in HTTP/1.0', bytesOf('POST /api/pause HTTP/1.0'), 'ok'],
      ['no Host', bytesOf(POST), '400'],
      ['two Hosts', bytesOf(POST, HOST, HOST), '400'],
      ['two Origins', bytesOf(POST, HOST, `Origin: ${OWN_ORIGIN}`, `Origin: ${OWN_ORIGIN}`), '400'],
      ['an allowed Origin', bytesOf(POST, HOST, `Origin: ${OWN_ORIGIN}`), 'ok'],
      ...['Origin: http://localhost', 'Origin: null', 'Sec-Fetch-Site: cross-site', 'Sec-Fetch-Site: same-origin',
        'Sec-Fetch-Site: none'].map((field): ByteRow => [field, bytesOf(POST, HOST, field), NO_ORIGIN]),
      ['an upgrade', bytesOf(POST, HOST, 'Upgrade: websocket'), '501'],
      ['a body of 65537 bytes', bytesOf(POST, HOST, 'Content-Length: 65537'), '413'],
      ['a chunk of 65537 bytes', bytesOf(POST, HOST, CHUNKED) + `10001\r\n${FULL}x\r\n`, '413'],
      ['what is pipelined', bytesOf(POST, HOST) + bytesOf(GET, HOST) + bytesOf('POST /api/resume', HOST) + GARBAGE,
        ['ok', 'active', 'ok', '400'], ['pause', 'resume']],
    ],
  },
  {
    title: 'Sizes',
    rows: [
      ['a head just within the limit', headOf(8191), 'ok'],
      ['a head just above the limit', headOf(8192), '431'],
      ['one that is within the limit with its separators', headOf(8170), 'ok'],
      ['a long field', bytesOf(POST, HOST, `Cookie: ${LONG}`), '431'],
      ['a long name of a field', bytesOf(POST, HOST, `${LONG}: x`), '431'],
      ['many fields', bytesOf(POST, HOST, ...Array(900).fill('Cookie: abcd')), '431'],
      ['a long query', bytesOf(`POST /api/pause?${LONG}`, HOST), '431'],
      ['a long target', bytesOf(`POST http://localhost/${LONG}`, HOST), '431'],
      ['a long trailer', bytesOf(POST, HOST, CHUNKED) + `0\r\nX: ${LONG}\r\n\r\n`, '431'],
      ['a long extension of a chunk', bytesOf(POST, HOST, CHUNKED) + `1;${LONG}\r\nx\r\n0\r\n\r\n`, '413'],
      ['a body of 65536 bytes', bytesOf(POST, HOST, 'Content-Length: 65536') + FULL, 'ok'],
      ['a body of 65537 bytes', bytesOf(POST, HOST, 'Content-Length: 65537') + `${FULL}x`, '413'],
      ['a body of 65537 bytes that does not come', bytesOf(POST, HOST, 'Content-Length: 65537'), '413'],
      ['a body of 65537 bytes of a GET', bytesOf(GET, HOST, 'Content-Length: 65537') + `${FULL}x`, '413'],
      ['a chunk of 65536 bytes', bytesOf(POST, HOST, CHUNKED) + `10000\r\n${FULL}\r\n0\r\n\r\n`, 'ok'],
      ['a chunk of 65537 bytes', bytesOf(POST, HOST, CHUNKED) + `10001\r\n${FULL}x\r\n0\r\n\r\n`, '413'],
      ['chunks of 65536 bytes',
        bytesOf(POST, HOST, CHUNKED) + `100\r\n${FULL.slice(0, 256)}\r\n`.repeat(256) + '0\r\n\r\n', 'ok'],
      ['chunks of 65537 bytes', bytesOf(POST, HOST, CHUNKED) + `10000\r\n${FULL}\r\n1\r\nx\r\n0\r\n\r\n`, '413'],
      ['chunks of 65537 bytes without end', bytesOf(POST, HOST, CHUNKED) + `10000\r\n${FULL}\r\n1\r\nx`, '413'],
      ['Expect: 100-continue', bytesOf(POST, HOST, 'Expect: 100-continue', 'Content-Length: 2') + '{}', ['100', 'ok']],
      ['Expect: 100-continue without a body', bytesOf(POST, HOST, 'Expect: 100-continue'), ['100', 'ok']],
      ['Expect: 100-continue with 65537 bytes',
        bytesOf(POST, HOST, 'Expect: 100-continue', 'Content-Length: 65537') + `${FULL}x`, ['100', '413']],
      ['Expect: 100-continue from a foreign Host',
        bytesOf(POST, 'Host: evil', 'Expect: 100-continue', 'Content-Length: 2') + '{}', ['100', NO_HOST]],
      ['Expect: cookies', bytesOf(POST, HOST, 'Expect: cookies'), '417'],
      ['Expect: cookies with a body', bytesOf(POST, HOST, 'Expect: cookies', 'Content-Length: 2') + '{}', '417'],
    ],
  },
  {
    title: 'What is pipelined',
    rows: [
      ['two commands', bytesOf(POST, HOST) + bytesOf('POST /api/resume', HOST), ['ok', 'ok'], ['pause', 'resume']],
      ['a command and a question', bytesOf(POST, HOST) + bytesOf(GET, HOST), ['ok', 'active']],
      ['a question and a command', bytesOf(GET, HOST) + bytesOf(POST, HOST), ['active', 'ok']],
      ['a command, a question, a path that is not there, a command',
        bytesOf(POST, HOST) + bytesOf(GET, HOST) + bytesOf('GET /', HOST) + bytesOf('POST /api/resume', HOST),
        ['ok', 'active', '404', 'ok'], ['pause', 'resume']],
      ['all commands, with bodies or without', bytesOf(POST, HOST, 'Content-Length: 3') + 'abc' +
        bytesOf('POST /api/resume', HOST) + bytesOf('POST /api/save-state', HOST, CHUNKED) + '0\r\n\r\n' +
        bytesOf('POST /api/shutdown', HOST), ['ok', 'ok', 'ok', 'ok'], ['pause', 'resume', 'save-state', 'shutdown']],
      ['bodies', (bytesOf(POST, HOST, 'Content-Length: 2') + '{}').repeat(3), ['ok', 'ok', 'ok'],
        ['pause', 'pause', 'pause']],
      ['a foreign Host between two commands', bytesOf(POST, HOST) + bytesOf(POST, 'Host: evil') + bytesOf(POST, HOST),
        ['ok', NO_HOST, 'ok'], ['pause', 'pause']],
      ['a foreign Origin behind a question', bytesOf(GET, HOST) + bytesOf(POST, HOST, 'Origin: null'),
        ['active', NO_ORIGIN]],
      ['an expectation, then a command', bytesOf(POST, HOST, 'Expect: x') + bytesOf('POST /api/resume', HOST),
        ['417', 'ok'], ['resume']],
      ['a question, then an expectation', bytesOf(GET, HOST) + bytesOf(POST, HOST, 'Expect: x'), ['active', '417']],
      ['a command, then garbage', bytesOf(POST, HOST) + GARBAGE, ['ok', '400']],
      ['a command with a body, then garbage',
        bytesOf(POST, HOST, 'Content-Length: 2') + `{}${GARBAGE}`, ['ok', '400']],
      ['a command in chunks, then garbage', bytesOf(POST, HOST, CHUNKED) + `0\r\n\r\n${GARBAGE}`, ['ok', '400']],
      ['a command with a body, then one with 65537 bytes', bytesOf(POST, HOST, 'Content-Length: 2') + '{}' +
        bytesOf(POST, HOST, 'Content-Length: 65537') + `${FULL}x`, ['ok', '413']],
      ['a command, a question, a body of 65537 bytes', bytesOf(POST, HOST) + bytesOf(GET, HOST) +
        bytesOf(POST, HOST, 'Content-Length: 65537'), ['ok', 'active', '413']],
      ['a question, then a body of 65537 bytes', bytesOf(GET, HOST) + bytesOf(POST, HOST, 'Content-Length: 65537'),
        ['active', '413']],
      ['a question, then garbage', bytesOf(GET, HOST) + GARBAGE, ['active', '400']],
      ['a question, a command, garbage', bytesOf(GET, HOST) + bytesOf(POST, HOST) + GARBAGE, ['active', 'ok', '400']],
      ['garbage, then a command', GARBAGE + bytesOf(POST, HOST), '400'],
      ['a long head behind a question', bytesOf(GET, HOST) + headOf(8192), ['active', '431']],
      ['a bad chunk, then a command', bytesOf(POST, HOST, CHUNKED) + `zz\r\n${bytesOf(POST, HOST)}`, '400'],
      ['a missing Host behind a question', bytesOf(GET, HOST) + bytesOf(POST), ['active', '400']],
      ['the last one by its own word, then a command', bytesOf(GET, HOST, 'Connection: close') + bytesOf(POST, HOST),
        'active'],
      ['HTTP/1.0, then a command', bytesOf('GET /api/status HTTP/1.0') + bytesOf(POST, HOST), 'active'],
      ['as many as may be', bytesOf(GET, HOST).repeat(MOST - 1) + bytesOf(POST, HOST),
        [...Array<string>(MOST - 1).fill('active'), 'ok']],
      ['one more', bytesOf(POST, HOST, 'Content-Length: 2') + '{}' + bytesOf(POST, HOST).repeat(MOST), []],
      ['one more, all but the first with an expectation',
        bytesOf(POST, HOST, 'Content-Length: 2') + '{}' + bytesOf(POST, HOST, 'Expect: x').repeat(MOST), []],
      // An answer that ends the connection is the last one: nothing behind it may be queued.
      ['a body of 65537 bytes, then a command',
        bytesOf(POST, HOST, 'Content-Length: 65537') + `${FULL}x${bytesOf(POST, HOST)}`, '413'],
      ['a chunk of 65537 bytes, then a command',
        bytesOf(POST, HOST, CHUNKED) + `10001\r\n${FULL}x\r\n0\r\n\r\n${bytesOf(POST, HOST)}`, '413'],
      ['a question, an upgrade, a command',
        bytesOf(GET, HOST) + bytesOf(POST, HOST, 'Upgrade: websocket') + bytesOf(POST, HOST), ['active', '501']],
      ['an upgrade, then a command',
        bytesOf(POST, HOST, 'Connection: Upgrade', 'Upgrade: x') + bytesOf(POST, HOST), '501'],
      ['CONNECT behind a question', bytesOf(GET, HOST) + bytesOf('CONNECT localhost:80', HOST), ['active', '501']],
      ['CONNECT behind a command', bytesOf(POST, HOST) + bytesOf('CONNECT localhost:80', HOST), ['ok', '501']],
      ['CONNECT, then a command', bytesOf('CONNECT localhost:80', HOST) + bytesOf(POST, HOST), '501'],
      ['the start of HTTP/2 behind a question',
        `${bytesOf(GET, HOST)}PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n`, ['active', '400']],
    ],
  },
];

// Rows that node answers, or lets pass, by itself where the server is the host's.
const NODES_OWN: RegExp[] = [
  /CONNECT/,
  /garbage$/,
  /^What is cut short: behind a question$/,
  /^What is pipelined: (a long head|the start of HTTP\/2) behind a question$/,
  /^What is pipelined: (HTTP\/1\.0|the last one by its own word), then a command$/,
  /^What is pipelined: one more/,
];
const TOO_MANY_FIELDS = /thousand fields/; // node tells a mounted server a thousand of them

describe('Byte by byte:', { ...LIMIT, concurrency: true }, () => {
  for (const { title, options = {}, isOnSocket = false, endsAtOnce = false, rows } of BYTE_TABLES) {
    it(`${title} (${rows.length} requests)`, isOnSocket ? POSIX_ONLY : {}, async (t) => {
      const { server, where } = isOnSocket ? await startOnSocket(t, options) : await start(t, options);
      const good = bytesOf('POST /api/save-state', HOST, ...(options.token === undefined ? [] : [BEARER]));
      const results: string[] = [];
      const expected: string[] = [];
      for (const [name, bytes, given, queued] of rows) {
        const outcomes = [given].flat();
        const accepted = queued ?? outcomes.filter((outcome) => outcome === 'ok').map((): ControlCommand => 'pause');
        expected.push(`${name}: ${outcomes} / ok / ${[...accepted, 'save-state']}`);
        const text = await converse(where, [bytes], endsAtOnce ? 0 : outcomes.length);
        const next = await converse(where, [good], 1); // on a new connection
        assert.ok(!text.includes(options.token ?? '\0'), `no answer has the token: ${name}`);
        results.push(`${name}: ${outcomesIn(text)} / ${outcomesIn(next)} / ${takeAll(server)}`);
      }
      assert.deepEqual(results, expected);
      await converse(where, [good], 1);
      assert.deepEqual(takeAll(server), ['save-state'], 'nothing is queued late');
    });
  }

  for (const { title, options, isOnSocket = false, endsAtOnce = false, rows } of BYTE_TABLES) {
    if (isOnSocket) continue;
    it(`${title}, mounted`, async (t) => {
      const { server, where } = await mount(t, options);
      const results: string[] = [];
      const expected: string[] = [];
      for (const [row, bytes, wanted, queued] of rows) {
        const name = `${title}: ${row}`;
        const outcomes = TOO_MANY_FIELDS.test(name) ? ['431'] : [wanted].flat();
        const accepted = queued ?? outcomes.filter((outcome) => outcome === 'ok').map((): ControlCommand => 'pause');
        const text = await converse(where, [bytes], endsAtOnce ? 0 : outcomes.length);
        const codes = [...text.matchAll(/HTTP\/1\.1 (\d+) /g)].map(([, code]) => code);
        const taken = takeAll(server);
        assert.equal(text.split('{"result":"ok"}').length - 1, taken.length, `what is queued is answered: ${name}`);
        if (NODES_OWN.some((pattern) => pattern.test(name))) continue;
        expected.push(`${name}: ${outcomes.map((outcome) => /^\d+/.exec(outcome)?.[0] ?? '200')} / ${accepted}`);
        results.push(`${name}: ${codes} / ${taken}`);
      }
      assert.deepEqual(results, expected);
    });
  }

  it('What is cut short by a reset', async (t) => {
    const { server, port, client } = await start(t);
    for (const [, bytes] of CUT_SHORT) {
      const socket = await open(t, port);
      await new Promise((resolve) => socket.write(bytes, resolve));
      await sleep(5); // so that the server has read the beginning before it sees the end
      socket.resetAndDestroy();
    }
    for (let round = 0; round < 3; round += 1) await client.getStatus();
    assert.equal(await client.resume(), 'ok');
    assert.deepEqual(takeAll(server), ['resume']);
  });
});

describe('Pipelined requests', LIMIT, () => {
  for (const [way, startThere] of [['in a thread', start], ['mounted', mount]] as const) {
    it(`give a status from after the command before them, ${way}`, async (t) => {
      let status: SystemStatus = ACTIVE;
      const { server, port } = await startThere(t, { systemStatus: () => status });
      const posts = [bytesOf(POST, HOST, 'Content-Length: 2') + '{}', bytesOf(POST, HOST)];
      for (let round = 0; round < 20; round += 1) {
        for (const post of posts) {
          status = ACTIVE;
          const obeyed = server.nextCommand().then(() => (status = PAUSED));
          const replies = await talk(port, bytesOf(GET, HOST) + post + bytesOf(GET, HOST, CLOSE));
          await obeyed;
          assert.equal(replies.at(-1)?.body, '{"status":"paused"}', `round ${round}`);
        }
      }
    });
  }
});

// ───── Who may ask ───────────────────────────────────────────────────────────────────────────────────────────────

describe('A page of an allowed origin', LIMIT, () => {
  const answersTo = async (port: number, line: string, ...fields: string[]): Promise<Reply> => {
    const [reply, ...others] = parseReplies(await converse(port, [bytesOf(line, HOST, ...fields)], 1));
    assert.deepEqual(others, []);
    return reply as Reply;
  };

  it('may read all answers, errors too, and no other page may', async (t) => {
    collectWarnings(t);
    let isBroken = false;
    const systemStatus = (): SystemStatus => (isBroken ? assert.fail('broken') : ACTIVE);
    const { server, port } = await start(t, { systemStatus, token: TOKEN, allowedOrigins: ORIGINS, maxQueueSize: 1 });
    const rows: [line: string, field: string, outcome: string][] = [
      [GET, BEARER, 'active'],
      ['HEAD /api/status', BEARER, '200'],
      [POST, BEARER, 'ok'],
      [POST, BEARER, '503'],
      ['GET /api/pause', BEARER, '405'],
      ['GET /api', BEARER, '404'],
      [POST, 'X: x', '401'],
      [GET, BEARER, '500'],
    ];
    for (const origin of ORIGINS) {
      isBroken = false;
      for (const [line, field, outcome] of rows) {
        if (outcome === '500') {
          isBroken = true;
          server.hasCommands();
        }
        const reply = await answersTo(port, line, field, `Origin: ${origin}`);
        assert.equal(outcomeOf(reply), outcome, line);
        assert.equal(reply.headers['access-control-allow-origin'], origin, line);
        assert.equal(reply.headers.vary, 'Origin', line);
      }
      assert.deepEqual(takeAll(server), ['pause']);

      for (const other of [...FOREIGN_ORIGINS, undefined]) {
        const field = other === undefined ? 'X: x' : `Origin: ${other}`;
        for (const line of [GET, POST, 'OPTIONS /api/pause', 'GET /api']) {
          const { headers } = await answersTo(port, line, BEARER, field);
          assert.equal(headers['access-control-allow-origin'], undefined, `${line} ${field}`);
        }
        takeAll(server);
      }
    }
  });

  for (const [options, title] of [[{}, 'without'], [{ token: TOKEN }, 'with']] as const) {
    it(`may ask whether it may, ${title} a token`, async (t) => {
      const { server, port } = await start(t, { ...options, allowedOrigins: ORIGINS });
      const asked = ['Access-Control-Request-Method: POST', 'Access-Control-Request-Headers: authorization'];
      for (const path of ['/api/pause', '/api/status', '/api']) {
        for (const origin of ORIGINS) {
          const { statusCode, headers } = await answersTo(port, `OPTIONS ${path}`, `Origin: ${origin}`, ...asked);
          assert.equal(statusCode, 204);
          assert.equal(headers['access-control-allow-origin'], origin);
          assert.equal(headers.vary, 'Origin');
          assert.deepEqual(String(headers['access-control-allow-methods']).split(', ').sort(), ['GET', 'HEAD', 'POST']);
          assert.equal(headers['access-control-allow-headers'], 'Authorization, Content-Type');
        }
        for (const origin of FOREIGN_ORIGINS) {
          const { statusCode, headers } = await answersTo(port, `OPTIONS ${path}`, `Origin: ${origin}`, ...asked);
          assert.equal(statusCode, 403);
          const names = Object.keys(headers).filter((name) => name.startsWith('access-control-') || name === 'vary');
          assert.deepEqual(names, [], origin);
        }
      }
      assert.deepEqual(takeAll(server), []);
    });
  }

  it('is found in the list as it was at the start, whatever is done to that later', async (t) => {
    const [allowedHosts, allowedOrigins] = [['box.lan'], ['http://app.test']];
    const server = new WebApiServer({
      systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0, allowedHosts, allowedOrigins,
    });
    t.after(() => server.close());
    allowedHosts[0] = 'evil.example';
    allowedOrigins[0] = 'http://evil.example';
    const { port } = await server.runInBackground();
    const codeOf = async (headers: IncomingHttpHeaders): Promise<number> => {
      return (await ask(port, 'GET', '/api/status', headers)).statusCode;
    };
    assert.deepEqual([await codeOf({ host: 'box.lan' }), await codeOf({ host: 'evil.example' })], [200, 403]);
    assert.deepEqual([await codeOf({ origin: 'http://app.test' }), await codeOf({ origin: 'http://evil.example' })], [
      200, 403,
    ]);
  });
});

describe('A client that is a program needs no permission:', { ...LIMIT, concurrency: true }, () => {
  const run = promisify(execFile);
  const PYTHON = `if True:
    import sys
    from urllib.request import ProxyHandler, Request, build_opener
    ask = build_opener(ProxyHandler({})).open
    for data, path in (None, 'status'), (b'', 'pause'), (b'{}', 'pause'):
      sys.stdout.write(ask(Request(sys.argv[1] + path, data)).read().decode())
  `;
  const EXPECTED = '{"status":"active"}{"result":"ok"}{"result":"ok"}'; // a GET, and a POST with a body or without

  /** Gives the output of a program, or null if it is not on this machine. */
  const outputOf = async (command: string, ...args: string[]): Promise<string | null> => {
    try {
      return (await run(command, args, { timeout: 60_000 })).stdout;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
      throw error;
    }
  };

  const CLIENTS: [name: string, howToGet: string, talkTo: (url: string) => Promise<string | null>][] = [
    ['fetch()', '', async (url) => {
      const requests: [string, RequestInit?][] = [
        ['status'], ['pause', { method: 'POST' }], ['pause', { method: 'POST', body: '{}' }],
      ];
      let text = '';
      for (const [path, init] of requests) text += await (await fetch(url + path, init)).text();
      return text;
    }],
    ['curl', 'https://curl.se, or apt-get install curl', (url) => {
      const common = ['-sS', '--noproxy', '*'];
      const posts = [['-X', 'POST'], ['--data', '{}']].flatMap((args) => ['--next', ...common, ...args, `${url}pause`]);
      return outputOf('curl', '-q', ...common, `${url}status`, ...posts);
    }],
    ["Python's urllib", 'https://python.org, or apt-get install python3', (url) => {
      return outputOf('python3', '-c', PYTHON, url);
    }],
  ];
  for (const [name, howToGet, talkTo] of CLIENTS) {
    it(name, async (t) => {
      const { server, port } = await start(t, { host: 'localhost' });
      const output = await talkTo(`http://localhost:${port}/api/`);
      if (output === null) return t.skip(`it is not installed: ${howToGet}`);
      assert.equal(output, EXPECTED);
      assert.deepEqual(takeAll(server), ['pause', 'pause']);
    });
  }
});

// ───── However it arrives ────────────────────────────────────────────────────────────────────────────────────────

describe('A request in pieces', LIMIT, () => {
  const requests: [name: string, bytes: string, outcomes: string[]][] = [
    ['a question', bytesOf(GET, HOST), ['active']],
    ['a command', bytesOf(POST, HOST), ['ok']],
    ['a command with a body', bytesOf(POST, HOST, 'Content-Length: 5') + 'hello', ['ok']],
    ['a command in chunks', bytesOf(POST, HOST, CHUNKED) + '5;x\r\nhello\r\na\r\n0123456789\r\n0\r\nX: x\r\n\r\n',
      ['ok']],
    ['HTTP/1.0', bytesOf('POST /api/pause HTTP/1.0'), ['ok']],
    ['a target in absolute-form', bytesOf('POST http://[::1]:8391/api/pause?x', 'Host: evil'), ['ok']],
    ['two pipelined ones', bytesOf(GET, HOST) + bytesOf(POST, HOST), ['active', 'ok']],
    ['one from an allowed page', bytesOf(POST, HOST, `Origin: ${OWN_ORIGIN}`), ['ok']],
    ['one from a page', bytesOf(POST, 'Host: a.lan', 'Origin: null', 'Sec-Fetch-Site: cross-site'), [NO_HOST]],
    ['a command and garbage', bytesOf(POST, HOST) + GARBAGE, ['ok', '400']],
  ];
  const withoutTimes = (text: string): string => text.replace(/^(Date|Age): .*\r\n/gm, '');

  it('is answered as it is in one, wherever it is cut', async (t) => {
    const { server, port } = await start(t, { maxQueueSize: 4096, allowedOrigins: ORIGINS });
    for (const [name, bytes, outcomes] of requests) {
      const whole = withoutTimes(await converse(port, [bytes], outcomes.length));
      assert.deepEqual(parseReplies(whole.replaceAll('\r\n\r\n', '\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n'))
        .map(outcomeOf), outcomes, name);
      const places = Array.from({ length: bytes.length - 1 }, (_, index) => index + 1);
      const cuts = places.map((place) => [bytes.slice(0, place), bytes.slice(place)]);
      await inParallel([...cuts, [...bytes]], async (pieces) => { // at last each byte on its own
        const text = await converse(port, pieces, outcomes.length);
        assert.equal(withoutTimes(text), whole, `${name}, cut at ${pieces[0]?.length}`);
      });
      const accepted = outcomes.filter((outcome) => outcome === 'ok').length * (bytes.length + 1);
      assert.deepEqual(takeAll(server), Array(accepted).fill('pause'), name);
    }
  });
});

describe('10,000 requests that are damaged', LIMIT, () => {
  const FIRST_SEED = 0;
  const SPECIALS = ['\r\n', '\r\n\r\n', '\n', '\r', '\0', ' ', ':', '/', '%', `${HOST}\r\n`, '\xff', '0', ',', '\t'];

  it('are each answered in JSON, and queue what they are told is queued', async (t) => {
    const { server, port, client } = await start(t, { maxQueueSize: 64, allowedOrigins: ORIGINS });
    const accepted: ControlCommand[] = [];
    const taken: ControlCommand[] = [];
    const outcomes: Record<string, number> = {};
    await inParallel(Array.from({ length: 10_000 }, (_, index) => FIRST_SEED + index), async (seed) => {
      const random = randomNumbers(seed);
      const command = COMMANDS[seed % COMMANDS.length] as ControlCommand; // the only one that these bytes can become
      const bytes = damage(random, goodRequests(command), SPECIALS);
      try {
        const replies = parseReplies(await converse(port, [bytes], 0));
        assert.ok(replies.length > 0 || /^[\r\n]*$/.test(bytes), 'there is an answer');
        for (const outcome of replies.map(outcomeOf)) {
          outcomes[outcome] = (outcomes[outcome] ?? 0) + 1;
          if (outcome === 'ok') accepted.push(command);
        }
      } catch (error) {
        throw new Error(`seed ${seed}, ${JSON.stringify(bytes)}`, { cause: error });
      }
      taken.push(...takeAll(server));
    });
    assert.equal(await client.getStatus(), ACTIVE);
    taken.push(...takeAll(server));
    assert.deepEqual(countWords(taken), countWords(accepted), `seeds from ${FIRST_SEED}`);
    const seen = Object.keys(outcomes).filter((outcome) => (outcomes[outcome] as number) >= 10);
    for (const outcome of ['ok', 'active', '200', '400', '404', NO_HOST, NO_ORIGIN]) {
      assert.ok(seen.includes(outcome), `the damage is neither too small nor too great: ${JSON.stringify(outcomes)}`);
    }
  });

  function goodRequests(command: ControlCommand): string[] {
    const post = `POST /api/${command}`;
    return [
      bytesOf(post, HOST),
      bytesOf(`${post} HTTP/1.0`),
      bytesOf(`POST http://127.0.0.1:1/api/${command}`, 'Host: [::1]'),
      bytesOf(post, HOST, 'Content-Length: 5') + 'hello',
      bytesOf(post, HOST, CHUNKED) + '5;x=y\r\nhello\r\n0\r\nX: x\r\n\r\n',
      bytesOf(post, HOST, `Origin: ${OWN_ORIGIN}`, 'Sec-Fetch-Site: cross-site'),
      bytesOf(post, HOST, 'Expect: 100-continue', 'Content-Length: 2') + '{}',
      bytesOf(post, 'Host: LOCALHOST:80', 'Connection: keep-alive', 'User-Agent: x', 'Accept: */*'),
      bytesOf(GET, 'Host: [::1]:8391', 'Sec-Fetch-Site: none'),
      bytesOf('HEAD /api/status', HOST, 'Connection: close'),
      bytesOf('OPTIONS /api/status', HOST, `Origin: ${OWN_ORIGIN}`),
      bytesOf(GET, HOST) + bytesOf(post, HOST),
      bytesOf(post, HOST, 'Upgrade: x', 'Connection: Upgrade') + bytesOf(post, HOST),
    ];
  }
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

  it('throws EmptyError when no command is taken from it, started or not', async (t) => {
    const { server } = await start(t);
    for (const one of [server, new WebApiServer({ systemStatus: () => ACTIVE })]) {
      assert.equal(one.hasCommands(), false);
      assert.throws(() => one.receiveCommand(), (error: Error) => {
        return error instanceof EmptyError && error.name === 'EmptyError' && error.message !== '';
      });
    }
  });
});

// ───── Mounting and the start ────────────────────────────────────────────────────────────────────────────────────

describe('handler', { timeout: 30_000 }, () => {
  it('is one function, and starts no thread', async (t) => {
    const before = process.getActiveResourcesInfo().filter((name) => name === 'MessagePort').length;
    const { server, client } = await mount(t);
    assert.equal(server.handler, server.handler);
    assert.equal(await client.pause(), 'ok');
    assert.equal(await client.getStatus(), ACTIVE);
    assert.equal(server.receiveCommand(), 'pause');
    assert.equal(process.getActiveResourcesInfo().filter((name) => name === 'MessagePort').length, before);
  });

  it('stands in place of runInBackground()', async (t) => {
    const { server: mounted } = await mount(t);
    await assert.rejects(mounted.runInBackground(), { message: 'Cannot run the server: it is mounted' });
    const { server: running } = await start(t);
    assert.throws(() => running.handler, { message: 'Cannot mount the server: it runs already' });
    await running.close();
    assert.throws(() => running.handler, { message: 'Cannot mount the server: it was closed' });
  });

  it('wakes a host that sleeps', async (t) => {
    const { server, client } = await mount(t);
    for (const command of COMMANDS) {
      const taken = server.nextCommand();
      assert.equal((await client.request(command)).ok, true);
      assert.equal(await taken, command);
    }
  });

  it('answers 503 after close(), and what was accepted before stays', async (t) => {
    const { server, client, port } = await mount(t);
    assert.equal(await client.pause(), 'ok');
    const socket = await open(t, port);
    socket.write(bytesOf(POST, HOST, CLOSE, 'Content-Length: 2') + '{');
    await client.getStatus(); // by now the server has read that
    await server.close();
    for (const endpoint of ['status', ...COMMANDS] as const) {
      assert.deepEqual(await client.request(endpoint), { ok: false, error: 'The server is closed', answered: true });
    }
    socket.write('}');
    assert.deepEqual((await readReplies(socket)).map(outcomeOf), ['503']);
    assert.equal(await server.nextCommand(), 'pause');
    await assert.rejects(server.nextCommand(), EmptyError);
    assert.throws(() => server.receiveCommand(), EmptyError);
  });

  it('leaves the connections of the host alone when it is closed', async (t) => {
    const systemStatus = (): SystemStatus => {
      server?.close(); // in the middle of a request
      return ACTIVE;
    };
    let server: WebApiServer | undefined;
    const mounted = await mount(t, { systemStatus }, ({ handler }) => (request, response) => {
      if (request.url === '/own') response.end('own');
      else handler(request, response);
    });
    server = mounted.server;
    const socket = await open(t, mounted.port);
    socket.write(bytesOf(GET, HOST));
    const [answer] = await once(socket, 'data');
    assert.match(String(answer), /^Connection: keep-alive\r\n[^]*"active"/m);
    await sleep(100);
    socket.write(bytesOf('GET /own', HOST, CLOSE));
    assert.match(await readToEnd(socket), /own$/);
  });

  it('answers 500 while the provider fails', async (t) => {
    collectWarnings(t);
    let isBroken = true;
    const { client } = await mount(t, { systemStatus: () => (isBroken ? assert.fail('broken') : PAUSED) });
    assert.deepEqual(await client.request('status'), { ok: false, error: 'Internal server error', answered: true });
    isBroken = false;
    await client.waitFor(PAUSED);
  });

  it('gives a status of now, however long the host blocks meanwhile', async (t) => {
    let status: SystemStatus = ACTIVE;
    const { port } = await mount(t, { systemStatus: () => status }, ({ handler }) => (request, response) => {
      if (request.url !== '/slow') return handler(request, response);
      status = PAUSED;
      blockThread(30);
      response.end('{}');
    });
    for (let round = 0; round < 5; round += 1) {
      status = ACTIVE;
      const requests = bytesOf(GET, HOST) + bytesOf('GET /slow', HOST) + bytesOf(GET, HOST);
      const text = await converse(port, [requests], 3);
      assert.deepEqual(text.match(/"status":"\w+"/g), ['"status":"paused"', '"status":"paused"']);
    }
  });

  it('answers a HEAD where the host forbids bodies', async (t) => {
    const { handler } = new WebApiServer({ systemStatus: () => ACTIVE });
    const port = await listenAt(t, createHttpServer({ rejectNonStandardBodyWrites: true }, handler));
    checkReply(await ask(port, 'HEAD', '/api/status'), 200, '{"status":"active"}', 'HEAD');
    checkReply(await ask(port, 'HEAD', '/api/pause'), 405, INVALID_METHOD, 'HEAD');
  });

  it('takes a request whose body was read by the host, at once or late', async (t) => {
    const { server, port } = await mount(t, {}, ({ handler }) => async (request, response) => {
      for await (const _ of request);
      if (request.headers['x-late'] !== undefined) await sleep(50);
      handler(request, response);
    });
    for (const field of ['X: x', 'X-Late: x']) {
      const post = bytesOf(POST, HOST, field, 'Content-Length: 2') + '{}';
      assert.deepEqual(outcomesIn(await converse(port, [post], 1)), ['ok']);
      assert.deepEqual(takeAll(server), ['pause']);
    }
  });

  it('takes a request that the host has paused', async (t) => {
    const { server, port } = await mount(t, {}, ({ handler }) => async (request, response) => {
      request.pause();
      await sleep(10);
      handler(request, response);
    });
    const post = bytesOf(POST, HOST, 'Content-Length: 2') + '{}';
    assert.deepEqual(outcomesIn(await converse(port, [post], 1)), ['ok']);
    assert.deepEqual(takeAll(server), ['pause']);
  });

  it('answers what came before a request with too many fields', async (t) => {
    const { server, port } = await mount(t);
    const post = bytesOf(POST, HOST, 'Content-Length: 2') + '{}';
    const bytes = post + bytesOf(GET, HOST) + bytesOf(GET, HOST, ...MANY_FIELDS) + bytesOf(POST, HOST);
    assert.deepEqual(outcomesIn(await converse(port, [bytes], 3)), ['ok', 'active', '431']);
    assert.deepEqual(takeAll(server), ['pause']);
  });

  it('lets the host be faster with an answer', async (t) => {
    const host = await runHost(t, `
      import { createServer } from 'node:http';
      const server = new WebApiServer({ systemStatus: () => ACTIVE });
      const listener = createServer((request, response) => {
        const { 'x-early': early, 'x-late': late } = request.headers;
        if (early) response.writeHead(418).end();
        server.handler(request, response);
        if (late) response.writeHead(418).end();
      });
      listener.listen(0, '127.0.0.1', () => say(listener.address().port));
      setTimeout(() => {
        say(server.hasCommands());
        listener.close();
      }, 1000);
    `);
    const port = await host.hear<number>();
    for (const bytes of [
      bytesOf(GET, HOST, 'X-Early: x'), bytesOf(GET, HOST, 'X-Late: x'), bytesOf(POST, HOST, 'X-Early: x'),
      bytesOf(POST, HOST, 'X-Late: x', 'Content-Length: 2') + '{}',
      bytesOf(POST, HOST, 'X-Early: x', 'Content-Length: 65537') + `${FULL}x`,
    ]) {
      const text = await converse(port, [bytes + bytesOf(GET, HOST)], 2);
      assert.deepEqual(text.match(/HTTP\/1.1 \d+/g), ['HTTP/1.1 418', 'HTTP/1.1 200'], bytes.slice(0, 200));
    }
    await checkEnd(host, [false]);
  });

  it('forgets a request whose client is gone', async (t) => {
    let handled = 0;
    const { server, port } = await mount(t, {}, ({ handler }) => async (request, response) => {
      await closing(request.socket);
      handler(request, response);
      handled += 1;
    });
    const socket = await open(t, port);
    socket.write(bytesOf(POST, HOST));
    await sleep(20);
    socket.resetAndDestroy();
    await until(() => handled === 1);
    assert.deepEqual(takeAll(server), []);
  });

  it('leaves connections and their limits to the host, and Unix sockets', async (t) => {
    const socketPath = join(await makeFolder(t), 'unused.sock');
    const { server, port } = await mount(t, { maxConnections: 1, socketPath });
    const sockets = await Promise.all(Array.from({ length: 3 }, () => open(t, port)));
    for (const socket of sockets) {
      socket.write(bytesOf(POST, HOST));
      await once(socket, 'data');
    }
    assert.equal(takeAll(server).length, 3);
    assert.equal(outcomesIn(await converse(port, [bytesOf(GET, HOST).repeat(MOST + 1)], MOST + 1)).length, MOST + 1);
    assert.deepEqual(outcomesIn(await converse(port, [bytesOf(POST, 'Host: evil.example')], 1)), [NO_HOST]);
    assert.equal(existsSync(socketPath), false);
  });
});

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
    await checkEnd(host, ['EADDRINUSE']);
  });

  it('resolves before a process that awaits nothing else ends, and does not keep it alive', async (t) => {
    const host = await runHost(t, `
      const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0 });
      process.on('exit', () => say('exit'));
      const address = await server.runInBackground();
      say(address.port > 0);
    `);
    await checkEnd(host, [true, 'exit']);
  });

  it('warns of a server that is not on loopback alone, once, and of no other', async (t) => {
    const socketPath = join(await makeFolder(t), 'socket');
    const host = await runHost(t, `
      let warnings = [];
      process.on('warning', ({ name, message }) => warnings.push(name + ': ' + message));
      const hosts = ['localhost', '127.0.0.1', '::1', '127.0.0.2', '0.0.0.0'];
      for (const options of [
        { socketPath: ${JSON.stringify(socketPath)} },
        ...hosts.map((host) => ({ host, port: 0 })),
        { host: '0.0.0.0', port: 0, token: 'a-token-of-sixteen' },
      ]) {
        warnings = [];
        const server = new WebApiServer({ systemStatus: () => ACTIVE, ...options });
        const error = await server.runInBackground().then(() => null, (reason) => reason.code);
        await new Promise((done) => setTimeout(done, 20));
        await server.close();
        say({ place: options.socketPath === undefined ? options.host : 'socket', error, warnings });
      }
    `);
    const results = (await host.hearAll()) as { place: string; error: string | null; warnings: string[] }[];
    assert.equal(results.length, 7);
    for (const { place, error, warnings } of results) {
      if (error !== null && ['::1', '127.0.0.2', 'socket'].includes(place)) continue; // not every machine has these
      assert.equal(error, null, place);
      assert.equal(warnings.length, place === '0.0.0.0' ? 1 : 0, `${place}: ${warnings}`);
    }
    assert.match(results[5]?.warnings[0] ?? '', /^ControlWarning: .*0\.0\.0\.0:\d+.*whoever reaches it controls/);
    assert.match(results[6]?.warnings[0] ?? '', /whoever reaches it and knows the token controls/);
  });
});

// ───── The Unix socket ───────────────────────────────────────────────────────────────────────────────────────────

describe('A server on a Unix socket', { ...LIMIT, ...POSIX_ONLY, concurrency: 4 }, () => {
  it('leaves nothing when it is closed during its start', async (t) => {
    const folder = await makeFolder(t);
    const socketPath = join(folder, 'control.sock');
    for (const milliseconds of [null, 0, 5, 10, 15, 25]) {
      if (milliseconds === 0 || milliseconds === 15) await leaveSocket(socketPath);
      const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath });
      const started = server.runInBackground().catch((error) => assert.match(error.message, /it was closed/));
      if (milliseconds !== null) await sleep(milliseconds);
      await Promise.all([started, server.close()]);
      const left = await readdir(folder);
      assert.deepEqual(left.filter((name) => name !== 'control.sock'), [], `${milliseconds} ms`);
      await rm(socketPath, { force: true });
    }
  });

  it('has the name that a relative path meant when it was made', async (t) => {
    const folder = await realpath(await makeFolder(t));
    const host = await runHost(t, `
      import { mkdirSync, readdirSync } from 'node:fs';
      process.chdir(${JSON.stringify(folder)});
      mkdirSync('elsewhere');
      const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath: 'control.sock' });
      const client = new WebApiClient(undefined, undefined, { socketPath: './elsewhere/../control.sock' });
      process.chdir('elsewhere');
      say((await server.runInBackground()).socketPath);
      process.chdir('/');
      say([client.baseUrl, await client.pause()]);
      await server.close();
      say([readdirSync(${JSON.stringify(folder)}), (await client.getStatus()).statusName]);
    `);
    const path = join(folder, 'control.sock');
    await checkEnd(host, [path, [`unix:${path}`, 'ok'], [['elsewhere'], 'offline']]);
  });

  it('has a path of 94 bytes, and not of 95', async (t) => {
    const folder = await makeFolder(t);
    const longest = `${folder}/ü`.padEnd(93, 'x'); // 93 characters, 94 bytes
    assert.equal(Buffer.byteLength(longest), 94);
    const { client } = await startOnSocket(t, { socketPath: longest });
    assert.equal(await client.getStatus(), ACTIVE);
    const socketPath = `${longest}x`;
    const message = `socketPath must be at most 94 bytes long, without NUL, got ${inspect(socketPath)}`;
    const expected = { name: 'RangeError', message };
    assert.throws(() => new WebApiServer({ systemStatus: () => ACTIVE, socketPath }), expected);
    assert.throws(() => new WebApiClient(undefined, undefined, { socketPath }), expected);
    const long = relative(process.cwd(), socketPath); // the absolute path counts
    assert.throws(() => new WebApiServer({ systemStatus: () => ACTIVE, socketPath: long }), expected);
  });
});

describe('The file of a Unix socket', { ...LIMIT, ...POSIX_ONLY, concurrency: 4 }, () => {
  it('is for its user alone from its first moment, whatever the umask', async (t) => {
    const folder = await makeFolder(t);
    const host = await runHost(t, `
      import { lstatSync, readdirSync } from 'node:fs';
      import { setTimeout as sleep } from 'node:timers/promises';
      import { Worker } from 'node:worker_threads';
      ${await becomeNobody(folder)}
      const folder = ${JSON.stringify(folder)};
      const path = folder + '/control.sock';
      const seen = new Int32Array(new SharedArrayBuffer(12)); // looks, with a file there, with another mode
      new Worker(\`
        const { lstatSync } = require('node:fs');
        const { path, seen } = require('node:worker_threads').workerData;
        require('node:os').setPriority(19); // of this thread: the others are to have the time that they need
        for (;;) {
          const entry = lstatSync(path, { throwIfNoEntry: false });
          Atomics.add(seen, 0, 1);
          if (entry !== undefined) Atomics.add(seen, 1, 1);
          if (entry !== undefined && entry.mode !== 0o140600) Atomics.add(seen, 2, 1);
        }
      \`, { eval: true, workerData: { path, seen } }).unref();
      while (seen[0] === 0) await sleep(1);
      const outcomes = new Set();
      for (let round = 0; round < 8; round += 1) {
        process.umask([0, 0o777, 0o022, 0o177][round % 4]);
        const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath: path });
        const before = seen[1];
        try {
          await server.runInBackground();
          outcomes.add([lstatSync(path).mode.toString(8), ...readdirSync(folder)].join(' '));
          while (seen[1] === before) await sleep(1);
        } catch ({ message }) {
          outcomes.add(message.replaceAll(/sock\\.\\w{6}/g, 'sock.XXXXXX'));
        }
        await server.close();
        for (const name of readdirSync(folder)) outcomes.add('left: ' + name);
      }
      say([...outcomes]);
      say(seen[2]);
      process.exit();
    `);
    await checkEnd(host, [['140600 control.sock'], 0]);
  });

  it('is replaced when a killed process has left it', async (t) => {
    const folder = await makeFolder(t);
    const socketPath = join(folder, 'control.sock');
    const host = await runHost(t, `
      const server = new WebApiServer({ systemStatus: () => PAUSED, socketPath: ${JSON.stringify(socketPath)} });
      await server.runInBackground();
      say('listening');
      await server.nextCommand();
    `);
    assert.equal(await host.hear(), 'listening');
    const client = clientAt(t, { socketPath });
    assert.equal(await client.getStatus(), PAUSED);
    host.process.kill('SIGKILL');
    await host.end();
    assert.equal(await client.getStatus(), OFFLINE);
    assert.ok((await lstat(socketPath)).isSocket());

    await startOnSocket(t, { socketPath });
    assert.equal(await client.getStatus(), ACTIVE);
    assert.equal((await lstat(socketPath)).mode, 0o140600);
    assert.deepEqual(await readdir(folder), ['control.sock']);
  });

  it('is given to one of several servers that find a dead one at once', async (t) => {
    const folder = await makeFolder(t);
    const socketPath = join(folder, 'control.sock');
    for (let round = 0; round < 3; round += 1) {
      await leaveSocket(socketPath);
      const servers = [1, 2, 3].map(() => new WebApiServer({ systemStatus: () => ACTIVE, socketPath }));
      for (const server of servers) t.after(() => server.close());
      const started = await Promise.allSettled(servers.map((server) => server.runInBackground()));
      const errors = started.filter((one) => one.status === 'rejected').map(({ reason }) => reason.code);
      assert.deepEqual(errors, ['EADDRINUSE', 'EADDRINUSE'], `round ${round}`);
      const client = new WebApiClient(undefined, undefined, { socketPath });
      assert.equal(await client.pause(), 'ok');
      client.close();
      assert.deepEqual(servers.flatMap((server) => takeAll(server)), ['pause']);
      assert.deepEqual(await readdir(folder), ['control.sock']);
      await Promise.all(servers.map((server) => server.close()));
      assert.deepEqual(await readdir(folder), []);
    }
  });

  const NOT_A_SOCKET = 'there is a file that is not a socket';
  const obstacles: [name: string, code: string, message: string, make: (t: TestContext, path: string) => unknown][] = [
    ['a live server', 'EADDRINUSE', 'another server listens there', (t, path) => listen(t, () => {}, path)],
    ['a live server that is stopped', 'EADDRINUSE', 'another server listens there', async (t, path) => {
      const host = await runHost(t, `
        const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath: ${JSON.stringify(path)} });
        await server.runInBackground();
        say('listening');
        await server.nextCommand();
      `);
      await host.hear();
      host.process.kill('SIGSTOP');
    }],
    ['a regular file', 'EEXIST', NOT_A_SOCKET, (_t, path) => writeFile(path, 'precious')],
    ['a folder', 'EEXIST', NOT_A_SOCKET, (_t, path) => mkdir(path)],
    ['a dangling link', 'EEXIST', NOT_A_SOCKET, (_t, path) => symlink('nowhere', path)],
    ['a link to a file', 'EEXIST', NOT_A_SOCKET, async (_t, path) => {
      await writeFile(`${path}-target`, 'precious');
      await symlink(`${path}-target`, path);
    }],
    ['a link to the socket of a dead server', 'EEXIST', NOT_A_SOCKET, async (_t, path) => {
      await leaveSocket(`${path}-target`);
      await symlink(`${path}-target`, path);
    }],
    ['a link to the socket of a live server', 'EEXIST', NOT_A_SOCKET, async (t, path) => {
      await listen(t, () => {}, `${path}-target`);
      await symlink(`${path}-target`, path);
    }],
  ];
  for (const [name, code, message, make] of obstacles) {
    it(`is not made where there is ${name}, which stays as it was`, async (t) => {
      const folder = await makeFolder(t);
      const socketPath = join(folder, 'control.sock');
      await make(t, socketPath);
      const before = await contentsOf(folder);
      const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath });
      t.after(() => server.close());
      await assert.rejects(server.runInBackground(), { code, message: `Cannot serve at ${socketPath}: ${message}` });
      assert.deepEqual(await contentsOf(folder), before);
      await rm(socketPath, { recursive: true });
      await server.runInBackground();
      assert.equal((await ask(socketPath, 'POST', '/api/pause')).statusCode, 200);
      assert.deepEqual(takeAll(server), ['pause']);
      await server.close();
      assert.deepEqual(await contentsOf(folder), before.filter(([one]) => one !== 'control.sock'));
    });
  }

  it('is not taken from a live server, which goes on', async (t) => {
    const { server, client, path } = await startOnSocket(t, { maxConnections: 1 });
    assert.equal(await client.pause(), 'ok'); // its connection is the only one that there may be
    await assert.rejects(startOnSocket(t, { socketPath: path }), { code: 'EADDRINUSE' });
    assert.equal(await client.resume(), 'ok');
    assert.deepEqual(takeAll(server), ['pause', 'resume']);
    assert.ok((await lstat(path)).isSocket());
  });

  it('is not made in a folder that is not there, or is a file', async (t) => {
    const folder = await makeFolder(t);
    await writeFile(join(folder, 'file'), '');
    const before = await contentsOf(folder);
    for (const [name, code] of [['nowhere', 'ENOENT'], ['file', 'ENOTDIR']]) {
      const socketPath = join(folder, name as string, 'control.sock');
      await assert.rejects(startOnSocket(t, { socketPath }), (error: NodeJS.ErrnoException) => {
        return error.code === code && error.message.startsWith(`Cannot serve at ${socketPath}: ${code}`);
      });
      assert.deepEqual(await contentsOf(folder), before);
    }
  });

  it('is not made in a folder that is not open to its user', async (t) => {
    const folder = await makeFolder(t);
    const host = await runHost(t, `
      import { chmodSync, readdirSync } from 'node:fs';
      ${await becomeNobody(folder)}
      const folder = ${JSON.stringify(folder)};
      const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath: folder + '/control.sock' });
      for (const mode of [0o500, 0o600, 0]) {
        chmodSync(folder, mode);
        say(await server.runInBackground().then(() => 'listening', ({ code }) => code));
        chmodSync(folder, 0o700);
        say(readdirSync(folder));
      }
      await server.runInBackground();
      say(readdirSync(folder));
      await server.close();
      say(readdirSync(folder));
    `);
    await checkEnd(host, ['EACCES', [], 'EACCES', [], 'EACCES', [], ['control.sock'], []]);
  });

  it('may be gone by the time of close(), and its folder, too', async (t) => {
    for (const isFolder of [false, true]) {
      const { server, client, path } = await startOnSocket(t);
      assert.equal(await client.pause(), 'ok');
      await rm(isFolder ? join(path, '..') : path, { recursive: true });
      assert.equal(await client.resume(), 'ok', 'a connection that is open outlives the file');
      await server.close();
      assert.deepEqual(takeAll(server), ['pause', 'resume']);
      await assert.rejects(lstat(path), { code: 'ENOENT' });
    }
  });

  it('may be out of reach by the time of close(), which answers a request under way all the same', async (t) => {
    const folder = await makeFolder(t);
    const host = await runHost(t, `
      import { chmodSync } from 'node:fs';
      import { connect } from 'node:net';
      import { setTimeout as sleep } from 'node:timers/promises';
      ${await becomeNobody(folder)}
      const folder = ${JSON.stringify(folder)};
      const socketPath = folder + '/control.sock';
      for (const mode of [0o500, 0]) {
        const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath });
        await server.runInBackground();
        const socket = connect(socketPath).setEncoding('latin1').on('error', () => {});
        let text = '';
        socket.on('data', (chunk) => (text += chunk));
        const fields = ['Host: localhost', 'Expect: 100-continue', 'Content-Length: 2', '', ''];
        socket.write(['POST /api/pause HTTP/1.1', ...fields].join('\\r\\n'));
        while (text === '') await sleep(1);
        chmodSync(folder, mode);
        const closed = server.close();
        await sleep(50);
        socket.write('{}');
        await closed;
        await sleep(20);
        say([text.includes('HTTP/1.1 200 OK'), server.hasCommands() && server.receiveCommand()]);
        chmodSync(folder, 0o700);
      }
    `);
    await checkEnd(host, [[true, 'pause'], [true, 'pause']]);
  });

  it('is not removed by close() if by then it is another file', async (t) => {
    const { server, path } = await startOnSocket(t);
    await rm(path);
    await writeFile(path, 'precious');
    await server.close();
    assert.equal(await readFile(path, 'utf8'), 'precious');
  });

  it("is not removed by close() if by then it is another server's", async (t) => {
    const { server, client, path } = await startOnSocket(t);
    assert.equal(await client.getStatus(), ACTIVE);
    client.close();
    await rm(path);
    const { server: next } = await startOnSocket(t, { socketPath: path, systemStatus: () => PAUSED });
    await server.close();
    assert.equal(await client.getStatus(), PAUSED);
    await next.close();
    assert.deepEqual(await readdir(join(path, '..')), []);
  });

  it('is removed by close() where it was, under no other name', async (t) => {
    const { server, path } = await startOnSocket(t);
    await link(path, `${path}-link`);
    await rename(path, `${path}-moved`);
    await server.close();
    assert.deepEqual((await readdir(join(path, '..'))).sort(), ['control.sock-link', 'control.sock-moved']);
  });
});

describe('The thread of a server on a Unix socket', { ...LIMIT, ...POSIX_ONLY }, () => {
  it('does not take the path from a server that was faster', async (t) => {
    const workers: Worker[] = [];
    const onWorker = (worker: Worker): void => void workers.push(worker);
    process.on('worker', onWorker);
    t.after(() => process.off('worker', onWorker));
    const { server, path } = await startOnSocket(t);
    await workers[0]?.terminate();
    rmSync(path); // at once, and not when this thread gets to it: the other is started again after 0.1 s
    await listen(t, () => {}, path);
    const before = await contentsOf(join(path, '..'));
    const deadline = performance.now() + 10_000;
    while (workers.length < 3 && performance.now() < deadline) await sleep(10);
    assert.ok(workers.length >= 3, 'the thread is started again and again');
    assert.deepEqual(await contentsOf(join(path, '..')), before);
    await server.close();
    assert.deepEqual(await contentsOf(join(path, '..')), before);
  });
});

describe('WebApiClient on a Unix socket', { ...LIMIT, ...POSIX_ONLY, concurrency: 4 }, () => {
  for (const token of [undefined, TOKEN]) {
    it(`has all methods, ${token === undefined ? 'without a token' : 'with a token'}`, async (t) => {
      let status = ACTIVE;
      const { server, client } = await startOnSocket(t, { systemStatus: () => status, token });
      assert.deepEqual([await client.pause(), await client.resume()], ['ok', 'ok']);
      assert.deepEqual([await client.saveState(), await client.shutdown()], ['ok', 'ok']);
      assert.deepEqual(takeAll(server), ['pause', 'resume', 'save-state', 'shutdown']);
      assert.equal(await client.getStatus(), ACTIVE);
      assert.deepEqual(await client.request('status'), { ok: true, value: 'active' });
      const statuses: SystemStatus[] = [];
      setTimeout(() => (status = PAUSED), 20);
      await client.waitFor(PAUSED, { timeout: 10_000, onStatus: (one) => statuses.push(one) });
      assert.deepEqual(statuses, [ACTIVE, PAUSED]);
      const gone = client.waitFor(OFFLINE, { timeout: 10_000 });
      await server.close();
      await gone;
    });
  }

  it('has a base URL with the absolute path', async (t) => {
    const folder = await makeFolder(t);
    const path = join(folder, 'control.sock');
    for (const socketPath of [path, relative(process.cwd(), path), `${folder}/./x/../control.sock`]) {
      assert.equal(new WebApiClient(undefined, undefined, { socketPath }).baseUrl, `unix:${path}`);
      assert.equal(new WebApiClient('localhost', 8391, { socketPath }).baseUrl, `unix:${path}`);
    }
  });

  it('reports a socket that is not there, is dead, or is none as OFFLINE and null', async (t) => {
    const folder = await makeFolder(t);
    await leaveSocket(join(folder, 'dead'));
    await writeFile(join(folder, 'file'), '');
    for (const name of ['nothing', 'dead', 'file', 'file/x', '.']) {
      const socketPath = join(folder, name);
      const client = new WebApiClient(undefined, undefined, { socketPath, token: TOKEN });
      assert.equal(await client.getStatus(), OFFLINE);
      for (const method of ['pause', 'resume', 'saveState', 'shutdown'] as const) {
        assert.equal(await client[method](), null);
      }
      const reply = await client.request('status');
      assert.ok(!reply.ok && !reply.answered && !reply.error.includes(TOKEN), inspect(reply));
      assert.ok(reply.error.startsWith(`unix:${socketPath} does not answer: `), reply.error);
      await client.waitFor(OFFLINE, { timeout: 10_000 });
    }
  });

  it('gives up on a socket whose server says nothing', async (t) => {
    const folder = await makeFolder(t);
    const path = join(folder, 'control.sock');
    await listen(t, () => {}, path);
    const client = new WebApiClient(undefined, undefined, { socketPath: path, timeout: 100 });
    const error = `unix:${path} does not answer: nothing within 0.1 s`;
    assert.deepEqual(await client.request('pause'), { ok: false, error, answered: false });
  });

  it('tells a wrong token, which is a refusal, from silence, and shows it to nobody', async (t) => {
    const { server, path } = await startOnSocket(t, { token: TOKEN });
    for (const token of [undefined, `not-${TOKEN}`]) {
      const client = clientAt(t, { socketPath: path }, token);
      const error = 'Missing or wrong token: see the option token, or CONTROL_TOKEN for the programs';
      assert.deepEqual(await client.request('pause'), { ok: false, error, answered: true });
      assert.deepEqual(await client.request('status'), { ok: false, error, answered: true });
      assert.equal(await client.shutdown(), null);
      assert.ok(!`${inspect(client, { depth: 9, showHidden: true })}${JSON.stringify(client)}`.includes(TOKEN));
    }
    assert.deepEqual(takeAll(server), []);
    assert.ok(!inspect(server, { depth: 9, showHidden: true }).includes(TOKEN));
  });
});

// ───── A host that never yields ──────────────────────────────────────────────────────────────────────────────────

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
    await checkEnd(host, [...posted, 'shutdown']);
  });

  it('may close the server though it has never heard that it started', async (t) => {
    const port = await freePort();
    const host = await runHost(t, `${OBEDIENT_HOST}; await server.close(); say('closed');`, { port });
    const client = new WebApiClient('127.0.0.1', port);
    await client.waitFor(ACTIVE);
    assert.equal(await client.shutdown(), 'ok');
    await checkEnd(host, ['shutdown', 'closed']);
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
    const durationsMs: number[] = [];
    while (durationsMs.length < 100) {
      const began = performance.now();
      assert.equal(await client.getStatus(), PAUSED);
      durationsMs.push(performance.now() - began);
    }
    const quick = durationsMs.filter((duration) => duration < 8).length;
    assert.ok(quick >= 10, `the 10 ms are waited for once, and not by each request: ${durationsMs}`);

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
    const server = new WebApiServer({ systemStatus: () => (calls += 1, ACTIVE), host: '127.0.0.1', port: 0 });
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
        systemStatus: () => (calls += 1, ACTIVE),
      });
      const sockets = await Promise.all(Array.from({ length: 50 }, () => open(t, port)));
      const question = bytesOf(GET, HOST);
      const last = bytesOf(GET, HOST, CLOSE);
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
      systemStatus: () => (calls += 1, ACTIVE),
    });
    const socket = await open(t, port); // a client that takes far less than a millisecond for a request
    calls = 0;
    const began = performance.now();
    for (let round = 0; round < 300; round += 1) {
      socket.write(bytesOf(GET, HOST));
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
      systemStatus: () => (failureText === null ? PAUSED : assert.fail(failureText)),
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
      systemStatus: () => assert.fail(`failure ${calls += 1}`),
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

// ───── nextCommand() ─────────────────────────────────────────────────────────────────────────────────────────────

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
    await checkEnd(host, ['pause', 'AbortError']);
  });
});

// ───── What takes long: bounds, exactly once, the death of the thread, close(), the log ──────────────────────────

const LOCAL = "host: '127.0.0.1', port: 0";
const KILLS = 15; // of the thread under load

const SLOW_ATTACKS: [
  name: string, atLeastMs: number, atMostMs: number, statusCode: number | null, attack: (socket: Socket) => void,
][] = [
  ['silence', 4500, 10_000, 408, () => {}],
  ['a header, a byte at a time', 4500, 10_000, 408, (socket) => drip(socket, `${GET} HTTP/1.1\r\n${HOST}\r\nX-Slow: `)],
  ['a body, a byte at a time', 9500, 16_000, 408, (socket) => {
    drip(socket, bytesOf(POST, HOST, 'Content-Length: 1000'));
  }],
  ['a body without end', 0, 3000, 413, (socket) => {
    drip(socket, bytesOf(POST, HOST, CHUNKED), `2000\r\n${'x'.repeat(0x2000)}\r\n`, 5);
  }],
  ['an idle connection', 14_000, 20_000, 200, (socket) => socket.write(bytesOf(GET, HOST))],
  ['the end of a silent connection', 0, 3000, null, (socket) => socket.end()],
  ['the end within a header', 0, 3000, 400, (socket) => socket.end('GET /api')],
  ['the end within a body', 0, 3000, 400, (socket) => {
    socket.end(`${bytesOf(POST, HOST, 'Content-Length: 1000')}x`);
  }],
  ['the promise of a gigabyte', 0, 3000, 413, (socket) => {
    socket.write(bytesOf(POST, HOST, 'Content-Length: 1000000000'));
  }],
  ['a header of more than 8 KiB', 0, 3000, 431, (socket) => {
    socket.write(`${GET} HTTP/1.1\r\n${HOST}\r\nX-Long: ${'x'.repeat(8200)}`);
  }],
];

// The server ends the connections of all of them, if only at the garbage.
const FLOODS = [
  bytesOf(GET, HOST).repeat(4000),
  bytesOf(POST, HOST).repeat(4000),
  bytesOf('GET /', ...Array<string>(1200).fill('a:b')).repeat(50) + GARBAGE,
  `${POST} HTTP/1.1\r\n${HOST}\r\nX-Long: ${'x'.repeat(1_000_000)}`,
  bytesOf(POST, HOST, CHUNKED) + '1\r\nx\r\n'.repeat(20_000) + GARBAGE,
];

const DEATHS: { name: string; options: string | null; death: string | null }[] = [
  { name: 'terminate()', options: LOCAL, death: null },
  { name: 'an error', options: "host: 'localhost', port: 0", death: "throw new Error('poison')" },
  { name: 'process.exit()', options: null, death: 'process.exit(3)' }, // null: at a socket
  { name: 'want of memory', options: LOCAL, death: 'const all = []; for (;;) all.push({})' },
];

// Some of these wait for ten seconds and more, so they all wait at the same time.
describe('Meanwhile:', { ...LIMIT, concurrency: true }, () => {
  describe('a server under attack', () => {
    it('ends who is slow, silent or endless, and meanwhile answers the others', async (t) => {
      const host = await runHost(t, HOST_UNDER_ATTACK);
      const port = await host.hear<number>();
      const before = await warmUp(t, host, port);
      let isOver = false;
      const others = useMeanwhile(t, port, () => isOver);
      others.catch(() => {}); // not before it is awaited
      await Promise.all(SLOW_ATTACKS.map(async ([name, atLeastMs, atMostMs, statusCode, attack]) => {
        const socket = await open(t, port);
        const began = performance.now();
        const ended = readToEnd(socket);
        attack(socket);
        const text = await within(atMostMs, ended);
        const tookMs = performance.now() - began;
        assert.ok(text !== undefined, `${name}: is still connected after ${atMostMs} ms`);
        assert.ok(tookMs >= atLeastMs, `${name}: was ended after ${tookMs} ms`);
        const codes = [...text.matchAll(/HTTP\/1\.1 (\d+)/g)].map(([, code]) => Number(code));
        assert.deepEqual(codes, statusCode === null ? [] : [statusCode], name);
      }).concat((async () => {
        const neverReads = await open(t, port);
        neverReads.pause();
        const closed = closing(neverReads);
        const sending = setInterval(() => neverReads.write(bytesOf(GET, HOST).repeat(24)), 3);
        t.after(() => clearInterval(sending));
        await within(24_000, closed); // its buffers have to fill first
        assert.ok(neverReads.closed, 'who never reads is still connected');
      })()));
      isOver = true;
      checkOthers(await others);
      await checkHost(host, before);
    });

    it('ends all connections but 64, however many come and whatever they send', async (t) => {
      const host = await runHost(t, HOST_UNDER_ATTACK);
      const port = await host.hear<number>();
      const before = await warmUp(t, host, port);
      let isOver = false;
      const others = useMeanwhile(t, port, () => isOver, 'kept');
      others.catch(() => {}); // not before it is awaited
      await sleep(50); // the kept connection is open

      const crowd = Array.from({ length: 500 }, () => connect(port, '127.0.0.1').on('error', () => {}));
      t.after(() => crowd.forEach((one) => one.destroy()));
      const isLeft = (one: Socket): boolean => !one.closed && !one.connecting;
      crowd.forEach((one) => one.resume());
      const deadline = performance.now() + 3000;
      while (crowd.filter((one) => !one.closed).length > 63 && performance.now() < deadline) await sleep(10);
      await sleep(200);
      assert.equal(crowd.filter(isLeft).length, 63, 'and the one before makes 64');
      crowd.forEach((one) => one.destroy());

      for (const text of FLOODS) {
        const sockets = await Promise.all(Array.from({ length: 62 }, () => openSoon(t, port)));
        await Promise.all(sockets.map(async (one) => {
          one.resume();
          one.write(text, 'latin1');
          await within(12_000, closing(one));
          assert.ok(one.closed, `a flood is cut: ${text.slice(0, 200)}`);
        }));
      }
      isOver = true;
      checkOthers(await others);
      const late = await openSoon(t, port);
      const replies = readReplies(late);
      late.write(bytesOf(GET, HOST, CLOSE));
      assert.deepEqual((await replies).map(({ statusCode }) => statusCode), [200]);
      await checkHost(host, before);
    });

    it('keeps as many connections as maxConnections says', async (t) => {
      const { port } = await start(t, { maxConnections: 3 });
      const kept = [await open(t, port), await open(t, port), await open(t, port)];
      const more = await open(t, port);
      more.resume();
      await within(3000, closing(more));
      assert.ok(more.closed);
      for (const socket of kept) {
        socket.write(bytesOf(GET, HOST));
        const [answer] = await once(socket, 'data');
        assert.match(String(answer), /^HTTP\/1.1 200 /);
      }
      kept[0]?.destroy();
      const next = await openSoon(t, port);
      next.write(bytesOf(GET, HOST));
      assert.match(String((await once(next, 'data'))[0]), /^HTTP\/1.1 200 /);
    });
  });

  describe('a thread that dies', { concurrency: 1 }, () => {
    for (const { name, options, death } of DEATHS) {
      const platform = options === null ? POSIX_ONLY : {};
      const bounds = { ...platform, timeout: 30_000 };
      it(`of ${name} comes back at the same address, and the host notices nothing`, bounds, async (t) => {
        const where = options ?? `socketPath: ${JSON.stringify(join(await makeFolder(t), 'socket'))}`;
        const host = await runHost(t, `
          ${MORTAL}
          let status = ACTIVE;
          const server = new WebApiServer({ systemStatus: () => status, ${where} });
          hold();
          say(await server.runInBackground());
          const alive = setInterval(() => {}, 1000);
          orders.kill = () => kill(${JSON.stringify(death)});
          orders.take = () => {
            const taken = [];
            while (server.hasCommands()) taken.push(server.receiveCommand());
            say(taken);
          };
          orders.become = () => {
            status = PAUSED;
            say('paused');
          };
          orders.sleep = async () => {
            clearInterval(alive); // nothing but the sleep keeps the process alive now
            say('sleeps');
            while (status !== SHUTTING_DOWN) {
              const command = await server.nextCommand();
              say(command);
              if (command === 'shutdown') status = SHUTTING_DOWN;
            }
            await server.close();
          };
        `);
        const address = await host.hear<WebApiAddress>();
        const client = clientAt(t, address);
        assert.equal(await client.pause(), 'ok');
        order(host, 'kill');
        assert.equal(await host.hear(), 'gone');
        await checkRefused(client);
        order(host, 'release');
        await client.waitFor(ACTIVE, { timeout: 10_000 });
        if (address.socketPath !== undefined) assert.equal((await lstat(address.socketPath)).mode, 0o140600);
        assert.equal(await client.resume(), 'ok');
        order(host, 'take');
        assert.deepEqual(await host.hear(), ['pause', 'resume']);

        order(host, 'sleep');
        assert.equal(await host.hear(), 'sleeps');
        order(host, 'kill');
        assert.equal(await host.hear(), 'gone');
        order(host, 'become');
        assert.equal(await host.hear(), 'paused');
        await checkRefused(client);
        order(host, 'release');
        await checkPresent(client, PAUSED);
        assert.equal(await client.saveState(), 'ok');
        assert.equal(await host.hear(), 'save-state');
        assert.equal(await client.shutdown(), 'ok');
        await checkEnd(host, ['shutdown']);
      });
    }

    for (const state of ['is down', 'is coming back']) {
      it(`lets the process end while it ${state}`, { timeout: 10_000 }, async (t) => {
        const host = await runHost(t, `
          ${FALLEN}
          ${state === 'is down' ? '' : 'release();'}
          say(threads.length);
        `);
        await checkEnd(host, ['gone', state === 'is down' ? 1 : 2]);
      });
    }

    for (const state of ['is down', 'is coming back', 'has just come back']) {
      it(`does not hold up close() while it ${state}`, { timeout: 10_000 }, async (t) => {
        const host = await runHost(t, `
          ${FALLEN}
          ${state === 'is down' ? '' : 'release();'}
          ${state === 'has just come back' ? 'await new Promise((done) => realSetTimeout(done, 60));' : ''}
          const sleeper = server.nextCommand().catch((error) => error.name);
          const began = Date.now();
          await server.close();
          say(Date.now() - began);
          say(await sleeper);
          await new Promise((done) => realSetTimeout(done, 200));
          say(threads.length);
        `);
        const [, tookMs, sleeper, threads] = await host.hearAll();
        assert.ok((tookMs as number) < 900, `took ${tookMs} ms`);
        assert.equal(sleeper, 'EmptyError');
        assert.equal(threads, state === 'is down' ? 1 : 2, 'no further thread is started');
        assert.deepEqual(await host.end(), CLEAN_END);
      });
    }

    it('rings for a command when it is back, though the ring before its death was never heard', async (t) => {
      const host = await runHost(t, `
        ${MORTAL}
        let memory = null;
        globalThis.SharedArrayBuffer = class extends SharedArrayBuffer {
          constructor(length) {
            super(length);
            memory ??= new Int32Array(this);
          }
        };
        const server = new WebApiServer({ systemStatus: () => ACTIVE, ${LOCAL} });
        hold();
        say((await server.runInBackground()).port);
        Atomics.store(memory, 4, 1); // the cell RUNG: the thread dies between that and the message
        kill(null);
        await gone();
        release();
        say(await server.nextCommand());
        setInterval(() => {}, 1000); // the answer may still be under way
      `);
      const client = clientAt(t, { host: '127.0.0.1', port: await host.hear() });
      assert.equal(await host.hear(), 'gone');
      await client.waitFor(ACTIVE, { timeout: 10_000 });
      assert.equal(await client.pause(), 'ok');
      assert.equal(await within(3000, host.hear()), 'pause');
    });

    const title = 'is tried again while its port is taken, less and less often, with one warning after a minute';
    it(title, { timeout: 30_000 }, async (t) => {
      const host = await runHost(t, `
        ${MORTAL}
        process.on('warning', ({ name, message }) => say({ name, message, seconds: now / 1000 }));
        const server = new WebApiServer({ systemStatus: () => ACTIVE, ${LOCAL} });
        hold();
        say((await server.runInBackground()).port);
        orders.kill = () => kill(null);
        orders.hurry = () => hurry(30, () => say(pauses));
        setInterval(() => { while (server.hasCommands()) say(server.receiveCommand()); }, 5);
      `);
      const port = await host.hear<number>();
      const client = clientAt(t, { host: '127.0.0.1', port });
      order(host, 'kill');
      assert.equal(await host.hear(), 'gone');
      const squatter = createServer((socket) => socket.destroy());
      t.after(() => squatter.close());
      squatter.listen(port, '127.0.0.1');
      await once(squatter, 'listening');
      order(host, 'hurry');
      const { name, message, seconds } = await host.hear<{ name: string; message: string; seconds: number }>();
      assert.equal(name, 'ControlWarning');
      assert.ok(message.includes(`127.0.0.1:${port}`), message);
      assert.match(message, /EADDRINUSE/);
      assert.ok(seconds > 50 && seconds < 75, `after ${seconds} s`);
      const pauses = await host.hear<number[]>(); // and no second warning
      assert.deepEqual(pauses, [...pauses].sort((a, b) => a - b));
      assert.ok((pauses[0] as number) <= 200, `${pauses}`);
      assert.ok((pauses.at(-1) as number) >= 2000 && (pauses.at(-1) as number) <= 10_000, `${pauses}`);
      squatter.close();
      await client.waitFor(ACTIVE, { timeout: 10_000 });
      assert.equal(await client.pause(), 'ok');
      assert.equal(await host.hear(), 'pause');
    });

    it('leaves a launched system paused, to be resumed when it is back', async (t) => {
      const host = await runHost(t, `
        ${MORTAL}
        orders.kill = () => kill(null);
        await launch({
          step: () => new Promise((done) => realSetTimeout(done, 1)),
          onListening: ({ port }) => say(port),
          onPaused: () => say('paused'),
          onResumed: () => say('resumed'),
          onShutdown: () => say('shut down'),
        }, { webApiAddress: ['127.0.0.1', 0] });
      `);
      const client = clientAt(t, { host: '127.0.0.1', port: await host.hear() });
      await client.pause();
      assert.equal(await host.hear(), 'paused');
      order(host, 'kill');
      assert.equal(await host.hear(), 'gone');
      await client.waitFor(PAUSED, { timeout: 10_000 });
      assert.equal(await client.resume(), 'ok');
      assert.equal(await host.hear(), 'resumed');
      await client.waitFor(ACTIVE, { timeout: 10_000 });
      assert.equal(await client.shutdown(), 'ok');
      await checkEnd(host, ['shut down']);
    });
  });

  describe('close()', { concurrency: 4 }, () => {
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

      const { port: taken } = await listen(t, () => {});
      for (const port of [0, taken]) { // a start that may succeed, and one that cannot
        const starting = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port });
        const started = starting.runInBackground();
        await starting.close();
        const address = await started; // nobody may have waited for it: no rejection
        if (port === 0) await assert.rejects(open(t, address.port), { code: 'ECONNREFUSED' });
      }
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
      await checkEnd(host, ['EmptyError', 'closed']);
    });

    it('answers a request under way, delivers its command, and ends its connection', async (t) => {
      const { server, port } = await start(t);
      const socket = await open(t, port);
      socket.write(bytesOf(POST, HOST, 'Expect: 100-continue', 'Content-Length: 2'));
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

    it('ends a silent connection at once', async (t) => {
      const { server, port } = await start(t);
      const silent = await open(t, port);
      const answered = await open(t, port);
      answered.write(bytesOf(GET, HOST)); // when it is answered, the connection before it has been taken in
      await once(answered, 'data');
      const ended = readToEnd(silent);
      const began = performance.now();
      await server.close();
      assert.equal(await ended, '');
      const tookMs = performance.now() - began;
      assert.ok(tookMs < 900, `took ${tookMs} ms`);
    });

    it('gives what is under way a second', async (t) => {
      const { server, port } = await start(t);
      const texts = ['GET /api', `${bytesOf(POST, HOST, 'Content-Length: 2')}{`];
      const sockets = await Promise.all(texts.map(() => open(t, port)));
      const answered = await open(t, port);
      sockets.forEach((socket, index) => socket.write(texts[index] as string));
      await sleep(20);
      answered.write(bytesOf(GET, HOST));
      await once(answered, 'data');
      const began = performance.now();
      const ends = sockets.map(async (socket) => {
        await readToEnd(socket);
        return performance.now() - began;
      });
      await server.close();
      for (const endedAfter of await Promise.all(ends)) {
        assert.ok(endedAfter > 500 && endedAfter < 3000, `ended after ${endedAfter} ms`);
      }
      assert.equal(server.hasCommands(), false);
    });

    it('is not held up by half a header and the end of it', async (t) => {
      const { server, port } = await start(t);
      const half = await open(t, port);
      const replies = readReplies(half);
      half.end('GET /api');
      assert.deepEqual((await replies).map(({ statusCode }) => statusCode), [400]);
      const began = performance.now();
      await server.close();
      const tookMs = performance.now() - began;
      assert.ok(tookMs < 900, `took ${tookMs} ms`);
    });

    it('answers a question that waits for the host, and ends its connection', async (t) => {
      for (let round = 0; ; round += 1) { // the host may be too slow once in a while
        const { server, port } = await start(t);
        const socket = await open(t, port);
        const answered = readToEnd(socket);
        socket.write(bytesOf(GET, HOST));
        blockThread(2 + (round % 8)); // the question comes meanwhile, and is open for 10 ms
        await server.close();
        const text = await answered;
        if (text !== '') assert.match(text, /^HTTP\/1\.1 200 [^]*\{"status":"active"\}$/); // or it came too late
        if (/\r\nConnection: close\r\n/.test(text)) break;
        assert.ok(round < 40, 'no answer of forty said Connection: close');
      }
    });

    it('does not wait for a look-up that gives nothing', { timeout: 20_000 }, async (t) => {
      const host = await runHost(t, `
        ${MORTAL}
        prologue = "process.getBuiltinModule('node:dns').lookup = () => {};";
        const server = new WebApiServer({ systemStatus: () => ACTIVE, host: 'slow-name', port: 0 });
        server.runInBackground().then(() => say('settled'));
        await new Promise((done) => realSetTimeout(done, 300));
        await server.close();
        say('closed');
      `);
      const values = await within(3000, Promise.all([host.hear<string>(), host.hear<string>()]));
      assert.deepEqual(values?.sort(), ['closed', 'settled']);
    });

    for (const { name, death } of DEATHS.slice(1)) {
      it(`resolves also when the thread dies of ${name} meanwhile`, async (t) => {
        const host = await runHost(t, `
          ${MORTAL}
          epilogue = ${JSON.stringify(`
            ;process.getBuiltinModule('node:worker_threads').parentPort.on('message', () => { ${death}; });
          `)};
          const server = new WebApiServer({ systemStatus: () => ACTIVE, ${LOCAL} });
          await server.runInBackground();
          await server.close();
          say('closed');
        `);
        await checkEnd(host, ['closed']);
      });
    }

    for (const state of ['serves', 'is down', 'is coming back']) {
      it(`removes the socket when the thread ${state}`, POSIX_ONLY, async (t) => {
        const socketPath = join(await makeFolder(t), 'socket');
        const host = await runHost(t, `
          ${MORTAL}
          const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath: ${JSON.stringify(socketPath)} });
          hold();
          await server.runInBackground();
          ${state === 'serves' ? "say('serves');" : 'kill(null); await gone();'}
          ${state === 'is coming back' ? 'release();' : ''}
          await server.close();
          say('closed');
        `);
        assert.deepEqual((await host.hearAll()).at(-1), 'closed');
        assert.equal(existsSync(socketPath), false);
      });
    }
  });

  describe('the queue delivers exactly once and in order', { concurrency: 1 }, () => {
    for (const [way, MOUNTED] of [['', ''], [' to a mounted server', 'yes']] as const) {
      it(`what 16 clients post at a time${way}`, async (t) => {
        const host = await runHost(t, HOST_AT_RANDOM, { env: { NODE_DEBUG: 'control', MOUNTED } });
        const port = await host.hear<number>();
        const peers = await postFromMany(port, 20_000);
        order(host, 'end');
        const { taken } = await host.hear<{ taken: string[] }>();
        checkDelivery(taken, peers, await host.log(), 0);
      });
    }

    it('what they post until the server is closed', async (t) => {
      const host = await runHost(t, HOST_AT_RANDOM, { env: { NODE_DEBUG: 'control', CLOSE_AFTER: '3000' } });
      const port = await host.hear<number>();
      let isOver = false;
      const heard = host.hear<{ taken: string[] }>().finally(() => (isOver = true));
      const peers = await postFromMany(port, 20_000, () => isOver);
      const { taken } = await heard;
      assert.ok(taken.length >= 3000 && peers.some(({ cuts }) => cuts > 0), 'the server was closed in the middle');
      checkDelivery(taken, peers, await host.log(), 0);
    });

    it('what they post while the thread is killed over and over', async (t) => {
      const host = await runHost(t, HOST_AT_RANDOM, { env: { NODE_DEBUG: 'control', KILLS: String(KILLS) } });
      const port = await host.hear<number>();
      const over = host.hear();
      const peers = await postFromMany(port, 20_000);
      assert.equal(await over, 'killed');
      const client = clientAt(t, { host: '127.0.0.1', port });
      await client.waitFor(ACTIVE, { timeout: 10_000 });
      order(host, 'end');
      const { taken } = await host.hear<{ taken: string[] }>();
      checkDelivery(taken, peers, await host.log(), KILLS);
      await checkPresent(client, PAUSED); // as it says now
      assert.equal(await client.pause(), 'ok');
      assert.equal(await host.hear(), 'pause');
    });
  });

  describe('NODE_DEBUG=control', { concurrency: 1 }, () => {
    /** Lets the thread of a server be abused, die, come back and close. Returns what the log is to say, and says. */
    const abuseAndClose = async (t: TestContext, NODE_DEBUG: string | undefined) => {
      const host = await runHost(t, HOST_WITH_TOKEN, { env: { NODE_DEBUG } });
      const port = await host.hear<number>();
      const asked = await abuse(t, port);
      order(host, 'kill');
      assert.equal(await host.hear(), 'gone');
      await clientAt(t, { host: '127.0.0.1', port }, TOKEN).waitFor(ACTIVE, { timeout: 10_000 });
      assert.equal((await ask(port, 'GET', '/api/status')).statusCode, 401, 'the token is still wanted');
      order(host, 'close');
      assert.deepEqual(await host.hearAll(), ['closed']);
      return { asked, start: `CONTROL ${host.process.pid}: `, port, log: await host.log() };
    };

    it('shows what happens and who asked for it, but no token', async (t) => {
      const { asked, start: begins, port, log } = await abuseAndClose(t, 'control');
      const texts = log.trimEnd().split('\n').map((line) => {
        assert.ok(line.startsWith(begins), line);
        return line.slice(begins.length);
      });
      for (const [address, text] of asked) {
        const found = texts.filter((one) => one.startsWith(`${address} `));
        assert.equal(found.length, 1, `${address} ${text}: ${found}`);
        assert.ok(found[0]?.includes(text), `${found} has ${text}`);
      }
      const events = texts.filter((one) => !/^127\.0\.0\.1:\d+ /.test(one)).map((one) => one.replace(/: .*/, ''));
      const listens = `listens at 127.0.0.1:${port}`;
      assert.deepEqual(events, [listens, 'the thread is started again in 100 ms', listens, 'closes']);
      assert.doesNotMatch(log, /secret/i);
    });

    for (const NODE_DEBUG of [undefined, 'http', 'controls']) {
      it(`is needed for that: NODE_DEBUG=${NODE_DEBUG ?? ''} shows nothing`, async (t) => {
        const { log } = await abuseAndClose(t, NODE_DEBUG);
        if (NODE_DEBUG === 'http') assert.doesNotMatch(log, /control|secret|\/api\//i);
        else assert.equal(log, '');
      });
    }

    it('shows it of a host that never yields', async (t) => {
      const port = await freePort();
      const host = await runHost(t, `
        const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port });
        server.runInBackground();
        while (!server.hasCommands());
        say(server.receiveCommand());
        for (;;);
      `, { port, env: { NODE_DEBUG: 'control' } });
      const client = clientAt(t, { host: '127.0.0.1', port });
      await client.waitFor(ACTIVE, { timeout: 10_000 });
      assert.equal(await client.pause(), 'ok');
      assert.equal(await host.hear(), 'pause');
      const log = await host.log();
      assert.match(log, new RegExp(`^CONTROL \\d+: listens at 127\\.0\\.0\\.1:${port}\n`));
      assert.match(log, /127\.0\.0\.1:\d+ POST "\/api\/pause" 200 \{"result":"ok"\}\n$/);
    });
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
    const client = clientAt(t, { host: '127.0.0.1', port: await listenAt(t, server) });
    for (let round = 0; round < 5; round += 1) assert.equal(await client.pause(), 'ok', `round ${round}`);
    assert.ok(connections > 1);
  });

  for (const place of ['a port', 'a Unix socket']) {
    const [token, bounds] = place === 'a port' ? [undefined, {}] : [TOKEN, POSIX_ONLY];
    it(`sends well-formed requests with no body to ${place}, and its token if it has one`, bounds, async (t) => {
      const requests: unknown[] = [];
      const server = createHttpServer((request, response) => {
        const { host, authorization, 'content-length': length, 'transfer-encoding': encoding } = request.headers;
        const body = encoding ?? (Number(length ?? 0) || 'no body');
        requests.push([request.method, request.url, host, authorization, body]);
        response.end('{"status":"active","result":"ok"}');
      });
      const socketPath = place === 'a port' ? undefined : join(await makeFolder(t), 'control.sock');
      const port = await listenAt(t, server, socketPath);
      const client = clientAt(t, { host: '127.0.0.1', port, socketPath }, token);
      await client.getStatus();
      for (const method of ['pause', 'resume', 'saveState', 'shutdown'] as const) await client[method]();
      const host = place === 'a port' ? `127.0.0.1:${port}` : 'localhost';
      assert.deepEqual(requests, [
        'GET /api/status', 'POST /api/pause', 'POST /api/resume', 'POST /api/save-state', 'POST /api/shutdown',
      ].map((line) => [...line.split(' '), host, token && `Bearer ${token}`, 'no body']));
    });

    it(`keeps its connection to ${place} for the next request`, bounds, async (t) => {
      let connections = 0;
      const server = createHttpServer((_request, response) => response.end('{"status":"active","result":"ok"}'));
      server.on('connection', () => (connections += 1));
      const socketPath = place === 'a port' ? undefined : join(await makeFolder(t), 'control.sock');
      const port = await listenAt(t, server, socketPath);
      const client = clientAt(t, { host: '127.0.0.1', port, socketPath });
      for (let round = 0; round < 5; round += 1) {
        assert.equal(await client.getStatus(), ACTIVE);
        assert.equal(await client.pause(), 'ok');
        await sleep(20);
      }
      assert.equal(connections, 1);
      client.close();
      assert.equal(await client.getStatus(), ACTIVE, 'a closed client can be used again');
      assert.equal(connections, 2);
    });
  }

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
    assert.deepEqual(await host.end(), CLEAN_END);
    assert.ok(performance.now() - began < 2500, 'neither the connection (4 s) nor the timer (5 s) is waited for');
  });
});

describe('WebApiClient before a server that is none of ours', { ...LIMIT, concurrency: 9 }, () => {
  const reply = (body: string, statusLine = '200 OK', length = body.length): string =>
    `HTTP/1.1 ${statusLine}\r\nContent-Type: application/json\r\nContent-Length: ${length}\r\n\r\n${body}`;
  const again = (socket: Socket, text: string, milliseconds: number): void => {
    const timer = setInterval(() => socket.write(text), milliseconds);
    socket.on('close', () => clearInterval(timer));
  };

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
});

// ───── waitFor() ─────────────────────────────────────────────────────────────────────────────────────────────────

describe('waitFor()', { ...LIMIT, concurrency: 4 }, () => {
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
      onStatus: () => assert.fail(error),
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
      step: () => sleep(1).then(() => (steps += 1)),
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
    const { client, log, port } = await startSystem(t, { onPaused: () => assert.fail('no brakes') });
    await postAll(port, ['pause', 'save-state', 'resume']);
    await until(() => warnings.length === 2);
    await client.waitFor(ACTIVE);
    assert.deepEqual(log, ['onPaused while pausing', 'onPaused while pausing']);
    assert.match(warnings[0] as string, /onPaused.*no brakes/);
  });

  it('stays paused when onResumed fails', async (t) => {
    const warnings = collectWarnings(t);
    const { client, log } = await startSystem(t, { onResumed: () => assert.fail('no start') });
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
      step: () => sleep(1).then(() => (steps += 1)),
      saveState: () => assert.fail('disk full'),
      onShutdown: () => assert.fail('no end'),
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
      onListening: () => assert.fail(error),
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
    const client = clientAt(t, { host: '127.0.0.1', port });
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
});

describe('launch() with webApiOptions', { ...LIMIT, concurrency: 4 }, () => {
  it('serves on a Unix socket', POSIX_ONLY, async (t) => {
    const folder = await makeFolder(t);
    const socketPath = join(folder, 'control.sock');
    for (const webApiAddress of [undefined, ['localhost', 8391]] as const) {
      const { address, client, finished } = await startSystem(t, {}, { webApiAddress, webApiOptions: { socketPath } });
      assert.deepEqual(address, { host: 'localhost', port: 0, socketPath });
      assert.equal((await lstat(socketPath)).mode, 0o140600);
      assert.equal(await client.saveState(), 'ok');
      assert.equal(await client.shutdown(), 'ok');
      await finished;
      assert.deepEqual(await readdir(folder), []);
    }
  });

  it('has them reach the server', async (t) => {
    const { port, finished } = await startSystem(t, {}, {
      webApiAddress: ['127.0.0.1', 0],
      webApiOptions: {
        token: TOKEN, allowedHosts: ['.lan'], allowedOrigins: ['http://app.test'], maxConnections: 3,
      },
    });
    const authorization = `Bearer ${TOKEN}`;
    const agent = new Agent({ keepAlive: true });
    t.after(() => agent.destroy());
    const askKept = (headers: IncomingHttpHeaders): Promise<Reply> => ask(port, 'GET', '/api/status', headers, agent);
    const codes = async (...asked: IncomingHttpHeaders[]): Promise<number[]> => {
      const replies: number[] = [];
      for (const headers of asked) replies.push((await askKept(headers)).statusCode);
      return replies;
    };
    assert.deepEqual(await codes({}, { authorization: `${authorization}x` }, { authorization }), [401, 401, 200]);
    const hosts = ['box.lan', 'box.lan.example'].map((host) => ({ host, authorization }));
    assert.deepEqual(await codes(...hosts), [200, 403]);
    const origins = ['http://app.test', 'http://app.test.example'].map((origin) => ({ origin, authorization }));
    assert.deepEqual(await codes(...origins), [200, 403]);
    const shared = await askKept({ origin: 'http://app.test', authorization });
    assert.equal(shared.headers['access-control-allow-origin'], 'http://app.test');

    const three = await Promise.all([1, 2, 3].map(() => askKept({ authorization }))); // the agent keeps them
    assert.deepEqual(three.map(({ statusCode }) => statusCode), [200, 200, 200]);
    const fourth = ask(port, 'GET', '/api/status', { authorization });
    await assert.rejects(fourth, { code: 'ECONNRESET' });
    assert.equal((await ask(port, 'POST', '/api/shutdown', { authorization }, agent)).statusCode, 200);
    await finished;
  });

  it('fails when another server has the socket, before any step', POSIX_ONLY, async (t) => {
    const { path, client } = await startOnSocket(t);
    const step = (): void => assert.fail('a step ran');
    const running = launch({ step }, { webApiOptions: { socketPath: path } });
    const message = `Cannot serve at ${path}: another server listens there`;
    await assert.rejects(running, { code: 'EADDRINUSE', message });
    assert.equal(await client.getStatus(), ACTIVE);
  });
});
describe('launch() in a process of its own', { ...LIMIT, concurrency: 3 }, () => {
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
    assert.deepEqual(await host.end(), CLEAN_END);
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
    assert.deepEqual(await host.end(), CLEAN_END);
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
      }, { webApiAddress: ${address}, webApiOptions: { token: '${TOKEN}', maxConnections: 1 } });
    `;
    const without = await runHost(t, watch('null'));
    await checkEnd(without, [{ threads: 0, sockets: [] }, 'onShutdown']);
    const control = await runHost(t, watch(`['127.0.0.1', 0]`));
    assert.deepEqual(await control.hearAll(), ['listening', { threads: 1, sockets: [] }, 'onShutdown']);
  });
});

describe('A signal to launch()', { ...LIMIT, ...POSIX_ONLY, concurrency: 3 }, () => {
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
        assert.deepEqual(await end(), CLEAN_END);
      });
    }
  }

  it('is noticed while commands come as fast as they are obeyed', async (t) => {
    const { process: child, hear, end } = await runHost(t, `
      const saveState = () => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20);
      const onListening = (address) => say(address.port);
      await launch({ step() {}, saveState, onListening }, { webApiAddress: ['127.0.0.1', 0] });
    `);
    const port = await hear() as number;
    const clients = [1, 2, 3].map(() => new WebApiClient('127.0.0.1', port));
    const flood = clients.map(async (client) => {
      while (child.exitCode === null && child.signalCode === null) await client.saveState();
      client.close();
    });
    await sleep(200);
    child.kill('SIGTERM');
    assert.deepEqual(await end(), CLEAN_END);
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
      assert.deepEqual(await end(), CLEAN_END);
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

describe('The module', { ...LIMIT, concurrency: 3 }, () => {
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
      await checkEnd(host, ['pause', 'shutdown']);
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
    await checkEnd(host, ['required', 'imported']);
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
    const host = await spawnHost(t, [file]);
    assert.deepEqual(await host.hearAll(), ['paused', 'pause']);
    assert.equal((await host.end()).code, 0); // node may warn that require() of ESM is experimental
  });

  it('explains all that it exports, and nothing else, in its types', async () => {
    const lines = (await readFile(join(PROJECT, 'dist', 'control.d.ts'), 'utf8')).split('\n');
    assert.match(lines[0] as string, /^\/\*! control\.ts .* MIT /);
    const isDeclaration = /^export (?!\{)|^ {4}(?:readonly |get )*(?!constructor)\w+\??[:(]/;
    const places = [...lines.keys()].filter((place) => isDeclaration.test(lines[place] as string));
    assert.ok(places.length > 60, `there are ${places.length} declarations`);
    assert.deepEqual(places.filter((place) => !lines[place - 1]?.endsWith('*/')).map((place) => lines[place]), []);
    const code = lines.filter((line) => !/^ *\/?\*/.test(line));
    assert.deepEqual(code.filter((line) => /^declare |\bany\b/.test(line)), [], 'what is private or untyped');
  });

  it('does not disturb another copy of itself in the same process', async (t) => {
    const copy: typeof import('./control.ts') = await import(pathToFileURL(join(PROJECT, 'dist', 'control.js')).href);
    assert.notEqual(copy.WebApiServer, WebApiServer);
    let status: SystemStatus = copy.SystemStatus.PAUSED; // which is as good as its own
    const { server, client } = await start(t, { systemStatus: () => status });
    const other = new copy.WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0 });
    t.after(() => other.close());
    const otherClient = new copy.WebApiClient('127.0.0.1', (await other.runInBackground()).port);
    t.after(() => otherClient.close());
    await client.waitFor(copy.SystemStatus.PAUSED);
    await otherClient.waitFor(ACTIVE);
    status = RESUMING;
    await client.waitFor(copy.SystemStatus.RESUMING);
    assert.equal(await client.pause(), 'ok');
    assert.equal(await otherClient.resume(), 'ok');
    assert.deepEqual([takeAll(server), takeAll(other)], [['pause'], ['resume']]);
    await server.close();
    assert.equal(await otherClient.getStatus(), copy.SystemStatus.ACTIVE);
  });

  it('ends with another copy of itself at one signal', POSIX_ONLY, async (t) => {
    const host = await runHost(t, `
      import { launch as launchOther } from './dist/control.js';
      let steps = 0;
      const step = async () => {
        if (++steps === 4) process.kill(process.pid, 'SIGINT');
        await new Promise(setImmediate);
      };
      const systemOf = (name) => ({ step, saveState: () => say(name) });
      await Promise.all([
        launch(systemOf('one'), { webApiAddress: null }), launchOther(systemOf('other'), { webApiAddress: null }),
      ]);
    `);
    assert.deepEqual((await host.hearAll()).sort(), ['one', 'other']);
    assert.deepEqual(await host.end(), CLEAN_END);
  });

  it('says what is missing where it cannot work: a Node that is not too old', async (t) => {
    const host = await runHost(t, `
      process.getBuiltinModule = undefined;
      for (const make of [() => new WebApiServer({ systemStatus: () => ACTIVE }), () => new WebApiClient()]) {
        try { make(); } catch ({ message }) { say(message); }
      }
    `);
    const what = `needs Node 20.19 or newer, or a recent Deno or Bun; this is ${process.version}`;
    await checkEnd(host, [`WebApiServer ${what}`, `WebApiClient ${what}`]);
  });

  const BRIEF_HOST = `
    const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0 });
    await server.runInBackground().catch(({ message, code }) => say([message, code]));
  `;

  it('says what is missing where it cannot work: leave to start a thread', async (t) => {
    const flag = process.allowedNodeEnvironmentFlags.has('--permission') ? '--permission' : '--experimental-permission';
    const host = await runHost(t, BRIEF_HOST, { nodeOptions: [flag, '--allow-fs-read=*'] });
    const [[message, code]] = (await host.hearAll()) as [string, string][] as [[string, string]];
    assert.match(message, /^Cannot serve at 127\.0\.0\.1:0: a thread needs --allow-worker: Access to this API has/);
    assert.equal(code, 'ERR_ACCESS_DENIED');
    assert.equal((await host.end()).code, 0);
  });

  it('says what is missing where it cannot work: any source text', async (t) => {
    const host = await runHost(t, `
      Function.prototype.toString = () => 'function serve() { [native code] }'; // as where there is bytecode alone
      ${BRIEF_HOST}
    `);
    const [[message]] = (await host.hearAll()) as [string][] as [[string]];
    assert.match(message, /^Cannot serve at 127\.0\.0\.1:0: its thread runs the source text of serve\(\), which was ch/);
    assert.equal((await host.end()).code, 0);
  });

  it('says what is missing where it cannot work: the source text of serve()', async (t) => {
    const count = async ({ path }: { path: string }): Promise<{ contents: string; loader: 'ts' }> => {
      const source = await readFile(path, 'utf8');
      return { contents: source.replace('\n  const net = ', '\n  counters.serve += 1;$&'), loader: 'ts' };
    };
    const host = await runHost(t, `globalThis.counters = { serve: 0 }; ${BRIEF_HOST}`, {}, {
      plugins: [{ name: 'counters', setup: ({ onLoad }) => onLoad({ filter: /control\.ts$/ }, count) }],
    });
    const reason = 'its thread runs the source text of serve(), which was changed: counters is not defined';
    await checkEnd(host, [[`Cannot serve at 127.0.0.1:0: ${reason}`, null]]);
  });

  it('does nothing when it is imported', async (t) => {
    const host = await runHost(t, `say([process.listenerCount('SIGINT'), process.listenerCount('SIGTERM')]);`);
    await checkEnd(host, [[0, 0]]);
  });
});

// ───── Servers and systems to test ───────────────────────────────────────────────────────────────────────────────

type Where = number | string; // a port on loopback, or the path of a Unix socket

interface Started {
  server: WebApiServer;
  address: WebApiAddress;
  port: number;
  where: Where;
  client: WebApiClient;
}

/** Runs a server on a free port, unless told otherwise, until the end of the test. */
async function start(t: TestContext, options: Partial<WebApiServerOptions> = {}): Promise<Started> {
  const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0, ...options });
  t.after(() => server.close());
  const address = await server.runInBackground();
  const { port, socketPath } = address;
  return { server, address, port, where: socketPath ?? port, client: clientAt(t, address, options.token) };
}

/** Runs a server on a Unix socket, in a folder of its own unless told otherwise, until the end of the test. */
async function startOnSocket(
  t: TestContext,
  options: Partial<WebApiServerOptions> = {},
): Promise<Started & { path: string }> {
  const path = options.socketPath ?? join(await makeFolder(t), 'control.sock');
  return { ...await start(t, { host: undefined, port: undefined, ...options, socketPath: path }), path };
}

/**
 * Mounts a server in an HTTP server of the test's, by its own handler unless told otherwise, until the end of the test.
 * What node looks after is set as in the thread.
 */
async function mount(
  t: TestContext,
  options: Partial<WebApiServerOptions> = {},
  listenerOf = ({ handler }: WebApiServer): RequestListener => handler,
): Promise<Started> {
  const server = new WebApiServer({ systemStatus: () => ACTIVE, ...options });
  const host = createHttpServer({ requireHostHeader: false, maxHeaderSize: 8192 }, listenerOf(server));
  Object.assign(host, { httpAllowHalfOpen: true });
  t.after(async () => {
    await server.close();
    host.closeAllConnections();
  });
  const port = await listenAt(t, host);
  const address = { host: '127.0.0.1', port };
  return { server, address, port, where: port, client: clientAt(t, address, options.token) };
}

/** A client until the end of the test. */
function clientAt(t: TestContext, address: Partial<WebApiAddress>, token?: string): WebApiClient {
  const { host, port, socketPath } = address.socketPath === undefined ? address : { socketPath: address.socketPath };
  const client = new WebApiClient(host, port, { token, socketPath });
  t.after(() => client.close());
  return client;
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
  address: WebApiAddress;
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
  const address = await new Promise<WebApiAddress>((resolve, reject) => {
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
  const client = clientAt(t, address, config.webApiOptions?.token);
  t.after(async () => {
    await client.shutdown();
    await finished.catch(() => {});
    client.close();
  });
  return { address, port: address.port, client, log, finished };
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
  /** What it has written to stderr so far. */
  log(): Promise<string>;
  end(): Promise<{ code: number | null; signal: NodeJS.Signals | null; errors: string }>;
}

const PRELUDE = `
  import { readSync, writeSync } from 'node:fs';
  import { EmptyError, SystemStatus, WebApiClient, WebApiServer, launch } from './control.ts';
  const { ACTIVE, PAUSED, SHUTTING_DOWN } = SystemStatus;
  const say = (value) => { writeSync(1, JSON.stringify(value) + '\\n'); };
  const port = Number(process.argv[2]);
`;

interface HostOptions {
  port?: number;
  nodeOptions?: string[];
  env?: Record<string, string | undefined>;
}

/** Bundles a program with control.ts and runs it until the end of the test. */
async function runHost(
  t: TestContext,
  source: string,
  { port, nodeOptions = [], env = {} }: HostOptions = {},
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
  return spawnHost(t, [...nodeOptions, outfile, String(port)], env);
}

async function spawnHost(t: TestContext, args: string[], env: HostOptions['env'] = {}): Promise<Host> {
  const logFile = join(await makeFolder(t), 'log'); // unlike a pipe, takes all at any time
  const logHandle = await openFile(logFile, 'a');
  const child = spawn(process.execPath, args, {
    env: { ...process.env, NODE_DEBUG: undefined, CONTROL_TOKEN: undefined, ...env },
    stdio: ['pipe', 'pipe', logHandle.fd],
  });
  t.after(() => child.kill('SIGKILL'));
  const closed = once(child, 'close');
  await logHandle.close();
  const lines = createInterface(child.stdout as Readable)[Symbol.asyncIterator]();
  const log = (): Promise<string> => readFile(logFile, 'utf8');
  return {
    process: child,
    log,
    async hear() {
      const { value, done } = await lines.next();
      if (done === true) throw new Error(`The host has ended: ${await log()}`);
      return JSON.parse(value);
    },
    async hearAll() {
      const values: unknown[] = [];
      for await (const line of lines) values.push(JSON.parse(line));
      return values;
    },
    async end() {
      const [code, signal] = await closed;
      return { code, signal, errors: await log() };
    },
  };
}

/** Checks what the host says from now on, and that it ends well. */
async function checkEnd(host: Host, said: unknown[]): Promise<void> {
  assert.deepEqual(await host.hearAll(), said);
  assert.deepEqual(await host.end(), CLEAN_END);
}

/** For a host that reads its orders with MORTAL. */
function order(host: Host, word: string): void {
  host.process.stdin?.write(`${word}\n`);
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

// ───── Hosts that are treated badly ──────────────────────────────────────────────────────────────────────────────

// Gets hold of the threads that control.ts starts, and of the time that it spends between them. Obeys orders: lines
// on stdin, which do not keep the process alive.
const MORTAL = `
  import workerThreads from 'node:worker_threads';
  import { syncBuiltinESMExports } from 'node:module';
  import { createInterface } from 'node:readline';

  const threads = [];
  let prologue = '';
  let epilogue = ';new BroadcastChannel("death").onmessage = ({ data }) => (0, eval)(data);';
  workerThreads.Worker = class extends workerThreads.Worker {
    constructor(source, options) {
      super(prologue + source + epilogue, options);
      threads.push(this);
    }
  };
  syncBuiltinESMExports();

  const kill = (death) => {
    if (death === null) return void threads.at(-1).terminate();
    const channel = new BroadcastChannel('death');
    channel.postMessage(death);
    channel.close();
  };

  const realSetTimeout = setTimeout;
  const pauses = []; // before threads are started again
  let now = 0;
  let isHeld = false;
  let onPause = () => say('gone');
  let release = () => {};
  globalThis.setTimeout = (step, pauseMs) => {
    if (pauseMs === 1000) return realSetTimeout(step, pauseMs); // the grace of close() is no pause
    pauses.push(pauseMs);
    now += pauseMs;
    const timer = realSetTimeout(step, isHeld ? 2 ** 30 : pauseMs);
    release = () => {
      clearTimeout(timer);
      step();
    };
    onPause();
    return timer;
  };

  // Time stands still until release(), and passes in pauses only.
  const hold = () => {
    isHeld = true;
    performance.now = () => now;
  };

  // No pause takes any time from now on.
  const hurry = (count, then) => {
    onPause = () => {
      setImmediate(release);
      if (pauses.length === count) then();
    };
    release();
  };

  // Keeps the process alive until the thread is gone.
  const gone = () => new Promise((resolve) => {
    const alive = setInterval(() => {}, 1000);
    onPause = () => {
      say('gone');
      clearInterval(alive);
      resolve();
    };
  });

  const orders = { release: () => release() };
  createInterface(process.stdin).on('line', (line) => orders[line]());
  process.stdin.unref();
`;

// Its thread is dead, and comes back when that is released.
const FALLEN = `
  ${MORTAL}
  const server = new WebApiServer({ systemStatus: () => ACTIVE, ${LOCAL} });
  hold();
  await server.runInBackground();
  kill(null);
  await gone();
`;

const HOST_UNDER_ATTACK = `
  ${MORTAL}
  const server = new WebApiServer({ systemStatus: () => ACTIVE, ${LOCAL} });
  say((await server.runInBackground()).port);
  setInterval(() => { while (server.hasCommands()) server.receiveCommand(); }, 5);
  orders.memory = () => say(process.memoryUsage.rss());
  orders.threads = () => say(threads.length);
`;

// Takes commands in all the ways there are, until it is told to end or, after some commands, closes the server.
const HOST_AT_RANDOM = `
  ${MORTAL}
  import { createServer } from 'node:http';
  const { CLOSE_AFTER = Infinity, KILLS = 0 } = process.env;
  const taken = [];
  const pause = (milliseconds) => new Promise((done) => realSetTimeout(done, milliseconds));
  let isOver = false;
  let kills = 0;
  let status = ACTIVE;
  orders.end = () => (isOver = true);
  const server = new WebApiServer({ systemStatus: () => status, ${LOCAL}, maxQueueSize: 7 });
  if (process.env.MOUNTED) {
    const listener = createServer(server.handler).listen(0, '127.0.0.1', () => say(listener.address().port));
  } else {
    say((await server.runInBackground()).port);
  }

  const progress = async () => {
    const before = taken.length;
    while (!isOver && taken.length < before + 100) await pause(2);
  };
  onPause = () => setImmediate(release);
  const realNow = performance.now.bind(performance);
  performance.now = () => realNow() * 1000; // every thread has listened for long enough to be started again soon
  (async () => {
    while (!isOver && kills < KILLS) {
      await pause(Math.random() * 100);
      if (Math.random() < 0.8) await progress(); // if not, the next thread may not even have started
      const thread = threads.at(-1);
      kill(null);
      kills += 1;
      if (kills >= KILLS) while (threads.at(-1) === thread) await pause(2); // it takes a moment to die
    }
    if (kills > 0) say('killed');
  })();

  const isClosing = () => taken.length >= CLOSE_AFTER;
  let closed = null;
  while (!isOver || server.hasCommands()) {
    const choice = Math.random();
    if (choice < 0.5) {
      while (server.hasCommands()) taken.push(server.receiveCommand());
    } else if (choice < 0.6) {
      if (server.hasCommands()) taken.push(server.receiveCommand());
    } else {
      const end = new AbortController();
      if (Math.random() < 0.5) setImmediate(() => end.abort());
      else realSetTimeout(() => end.abort(), Math.random() * 5);
      await server.nextCommand({ signal: end.signal }).then((command) => taken.push(command), () => {});
    }
    if (Math.random() < 0.05) await pause(Math.random() * 3);
    else await new Promise(setImmediate);
    if (isClosing()) closed ??= server.close().then(() => (isOver = true));
  }
  status = PAUSED;
  say({ taken });
  if (!isClosing()) say(await server.nextCommand());
  setInterval(() => {}, 1000); // the answer may still be under way
`;

const HOST_WITH_TOKEN = `
  ${MORTAL}
  const server = new WebApiServer({
    systemStatus: () => ACTIVE, ${LOCAL}, maxQueueSize: 2, maxConnections: 3, token: '${TOKEN}',
  });
  say((await server.runInBackground()).port);
  const alive = setInterval(() => {}, 1000);
  orders.kill = () => kill(null);
  orders.close = async () => {
    await server.close();
    say('closed');
    clearInterval(alive);
  };
`;
/** The thread has died, and is held back from coming again: nobody listens. */
async function checkRefused(client: WebApiClient): Promise<void> {
  const reply = await client.request('status');
  assert.ok(!reply.ok && !reply.answered, 'nobody answers');
  assert.match(reply.error, /ECONNREFUSED/);
}

/** Checks that the first answer to come is not one from before, unless the host may have been too slow for it. */
async function checkPresent(client: WebApiClient, wished: SystemStatus): Promise<void> {
  let status = OFFLINE;
  let tookMs = 0;
  for (const deadline = performance.now() + 10_000; status === OFFLINE && performance.now() < deadline;) {
    const asked = performance.now();
    status = await client.getStatus();
    tookMs = performance.now() - asked;
  }
  if (tookMs < 10) assert.equal(status, wished);
  await client.waitFor(wished, { timeout: 5000 });
}

// ───── Requests and replies ──────────────────────────────────────────────────────────────────────────────────────

interface Reply {
  statusCode: number;
  headers: IncomingHttpHeaders;
  body: string;
}

function connectTo(where: Where): Socket {
  return connect(typeof where === 'string' ? { path: where } : { port: where, host: '127.0.0.1' });
}

async function ask(
  where: Where,
  method: string,
  path: string,
  headers: IncomingHttpHeaders = {},
  agent: Agent | false = false,
): Promise<Reply> {
  const target = typeof where === 'string' ? { socketPath: where } : { host: '127.0.0.1', port: where };
  const request = httpRequest({ ...target, agent, method, path, headers }).end();
  const [response] = await once(request, 'response');
  let body = '';
  for await (const chunk of response.setEncoding('utf8')) body += chunk;
  return { statusCode: response.statusCode, headers: response.headers, body };
}

function checkReply(reply: Reply, expectedCode: number, expected: string, method = ''): void {
  assert.equal(reply.statusCode, expectedCode);
  assert.equal(reply.headers['content-length'], String(expected.length));
  assert.equal(reply.body, method === 'HEAD' ? '' : expected);
  checkForm(reply);
}

async function open(t: TestContext, where: Where): Promise<Socket> {
  const socket = connectTo(where);
  t.after(() => socket.destroy());
  await once(socket, 'connect');
  socket.on('error', () => {}); // who reads from it gets it all the same
  return socket;
}

/** Sends bytes that http.request() would not, and returns the replies up to the end of the connection. */
async function talk(where: Where, text: string): Promise<Reply[]> {
  const socket = connectTo(where);
  const replies = readReplies(socket);
  socket.write(text, 'latin1');
  return replies;
}

async function readReplies(socket: Socket): Promise<Reply[]> {
  return parseReplies(await readToEnd(socket));
}

/** What comes until the connection is ended, in whichever way. */
async function readToEnd(socket: Socket): Promise<string> {
  let text = '';
  try {
    for await (const chunk of socket.setEncoding('latin1')) text += chunk;
  } catch {
    // It was reset.
  }
  return text;
}

/** Unlike once(), takes a reset for an end. */
function closing(socket: Socket): Promise<void> {
  return new Promise((resolve) => socket.once('close', () => resolve()));
}

/** A request without body: its method, target and perhaps version, then its fields. */
function bytesOf(requestLine: string, ...fields: string[]): string {
  const version = / HTTP\/\d\.\d$/.test(requestLine) ? '' : ' HTTP/1.1';
  return `${[requestLine + version, ...fields].join('\r\n')}\r\n\r\n`;
}

/** A head whose names, values and target are so many bytes long together, which is what node counts. */
function headOf(counted: number): string {
  const others = '/api/pause'.length + 'Host'.length + 'localhost'.length + 'X'.length;
  return bytesOf(POST, HOST, `X: ${'x'.repeat(counted - others)}`);
}

/**
 * Sends pieces on a new connection, each in a write of its own. Ends its side when so many answers have come, and
 * returns all that has come until the other side has ended, too.
 */
async function converse(where: Where, pieces: readonly string[], awaited: number): Promise<string> {
  const socket = connectTo(where).setNoDelay();
  let text = '';
  const endIfAnswered = (): void => {
    if (text.split(/HTTP\/1\.1 \d\d\d /).length > awaited) socket.end();
  };
  socket.setEncoding('latin1').on('data', (chunk: string) => {
    text += chunk;
    endIfAnswered();
  });
  socket.on('error', () => {}); // a server that does not want more may cut the connection once it has answered
  const closed = new Promise((resolve) => socket.on('close', resolve));
  const limit = setTimeout(() => socket.destroy(new Error()), 20_000);
  for (const [index, piece] of pieces.entries()) {
    if (index > 0) await nextTurn();
    socket.write(piece, 'latin1');
  }
  if (awaited === 0) socket.end();
  await closed;
  clearTimeout(limit);
  return text;
}

const REPLY_FIELDS = [
  'access-control-allow-headers', 'access-control-allow-methods', 'access-control-allow-origin', 'age', 'allow',
  'cache-control', 'connection', 'content-length', 'content-type', 'cross-origin-resource-policy', 'date', 'keep-alive',
  'vary', 'www-authenticate', 'x-content-type-options',
];

/** Takes all answers apart, and finds everything in them that an answer must have. */
function parseReplies(text: string): Reply[] {
  const replies: Reply[] = [];
  for (let rest = text; rest !== '';) {
    const form = /^HTTP\/1\.1 (\d+) (.+)\r\n((?:.+\r\n)*)\r\n/;
    const [head = '', statusCode = '', reason, lines = ''] = form.exec(rest) ?? [];
    assert.equal(reason, STATUS_CODES[statusCode], `the head of ${JSON.stringify(rest)}`);
    const headers: IncomingHttpHeaders = {};
    for (const line of lines.split('\r\n').slice(0, -1)) {
      const [, name = '', value] = /^([\w-]+): (.+)$/.exec(line) ?? [];
      assert.ok(REPLY_FIELDS.includes(name.toLowerCase()), `a field that is known: ${line}`);
      assert.ok(!(name.toLowerCase() in headers), `a field that comes once: ${line}`);
      headers[name.toLowerCase()] = value;
    }
    rest = rest.slice(head.length);
    const length = rest.startsWith('{') ? Number(headers['content-length']) : 0; // a HEAD has no body
    const reply = { statusCode: Number(statusCode), headers, body: rest.slice(0, length) };
    rest = rest.slice(length);
    checkForm(reply);
    replies.push(reply);
  }
  return replies;
}

/** Checks what all answers have, each kind of them, and that there is no more in the body than there should be. */
function checkForm({ statusCode, headers, body }: Reply): void {
  if (statusCode === 100) return assert.deepEqual([headers, body], [{}, '']);
  assert.equal(headers['cache-control'], 'no-store');
  assert.equal(headers['cross-origin-resource-policy'], 'same-origin');
  assert.equal(headers['x-content-type-options'], 'nosniff');
  assert.match(String(headers.date), /^\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT$/);
  const isLast = [408, 413, 431, 501].includes(statusCode) || body.includes('Bad Request'); // what node could not read
  if (isLast) assert.equal(headers.connection, 'close');
  assert.equal(headers['www-authenticate'], statusCode === 401 ? 'Bearer' : undefined);
  assert.equal(headers.allow !== undefined, statusCode === 405);
  assert.equal(headers['access-control-allow-methods'] !== undefined, statusCode === 204);
  assert.notEqual(headers['access-control-allow-origin'], '*');
  if (statusCode === 204) {
    return assert.deepEqual([headers['content-type'], headers['content-length'], body], [undefined, undefined, '']);
  }
  assert.equal(headers['content-type'], 'application/json');
  if (body === '') return assert.match(String(headers['content-length']), /^[1-9]\d*$/); // of a HEAD
  assert.equal(headers['content-length'], String(body.length));
  const fields = Object.entries(JSON.parse(body));
  assert.equal(fields.length, 1, body);
  const [name, value] = fields[0] as [string, unknown];
  assert.ok(typeof value === 'string' && value !== '', body);
  assert.ok((statusCode === 200 ? ['status', 'result'] : ['error']).includes(name), `${statusCode} with ${body}`);
}

/** The status or result, or the status code of an error and the option that its text names. */
function outcomeOf({ statusCode, body }: Reply): string {
  if (body === '') return String(statusCode);
  const { status, result, error } = JSON.parse(body);
  if (statusCode === 200) return status ?? result;
  return [statusCode, ...(/\ballowed[A-Z]\w+/.exec(error) ?? [])].join(' ');
}

/** The outcomes of all answers, or what is wrong with the form of one. */
function outcomesIn(text: string): string[] {
  try {
    return parseReplies(text).map(outcomeOf);
  } catch (error) {
    return [String(error)];
  }
}

/** Posts commands down one connection, without waiting for the answers in between. */
async function postAll(port: number, commands: readonly ControlCommand[]): Promise<Reply[]> {
  const replies: Reply[] = [];
  for (let start = 0; start < commands.length; start += 100) { // pipelined
    const some = commands.slice(start, start + 100);
    const posts = some.map((one, place) => bytesOf(`POST /api/${one}`, HOST, place + 1 < some.length ? 'X: x' : CLOSE));
    replies.push(...await talk(port, posts.join('')));
  }
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
async function listen(
  t: TestContext,
  answer: (socket: Socket) => void,
  path?: string,
): Promise<{ squatter: Server; port: number }> {
  const squatter = createServer((socket) => {
    t.after(() => socket.destroy());
    socket.on('error', () => {}); // the client may have gone
    socket.once('data', () => answer(socket));
  });
  const port = await listenAt(t, squatter, path);
  return { squatter, port };
}

/** Returns the port, if it is not a path. */
async function listenAt(t: TestContext, server: Server, path?: string): Promise<number> {
  t.after(() => server.close());
  if (path === undefined) server.listen(0, '127.0.0.1');
  else server.listen(path);
  await once(server, 'listening');
  return (server.address() as AddressInfo).port;
}

// ───── Files ─────────────────────────────────────────────────────────────────────────────────────────────────────

/** Leaves a socket as a server does that is killed: node removes the name that it has listened at. */
async function leaveSocket(path: string): Promise<void> {
  const server = createServer().listen(`${path}-`);
  await once(server, 'listening');
  await rename(`${path}-`, path);
  server.close();
  await once(server, 'close');
}

/**
 * For a host that must not be root, to whom every file is open: gives nobody the folder. Returns the statements by
 * which the host becomes nobody.
 */
async function becomeNobody(folder: string): Promise<string> {
  if (process.getuid?.() !== 0) return '';
  await chown(folder, 65534, 65534);
  return 'process.setgroups([]); process.setgid(65534); process.setuid(65534);';
}

/** Of each entry: name, inode, mode, time of its last change, and what is in it. */
async function contentsOf(folder: string): Promise<unknown[][]> {
  const names = (await readdir(folder)).sort();
  return Promise.all(names.map(async (name) => {
    const path = join(folder, name);
    const entry = await lstat(path);
    const target = entry.isSymbolicLink() ? await readlink(path) : null;
    return [name, entry.ino, entry.mode, entry.mtimeMs, target ?? (entry.isFile() && await readFile(path, 'utf8'))];
  }));
}

// ───── Attacks ───────────────────────────────────────────────────────────────────────────────────────────────────

/** Sends the beginning, and then one piece after the other until the connection ends. */
function drip(socket: Socket, beginning: string, piece = 'x', pauseMs = 100): void {
  socket.write(beginning);
  const timer = setInterval(() => socket.write(piece), pauseMs);
  socket.on('close', () => clearInterval(timer));
}

/** Opens a connection that the server serves; it may have to notice first that others are gone. */
async function openSoon(t: TestContext, port: number): Promise<Socket> {
  for (const deadline = performance.now() + 5000; performance.now() < deadline; await sleep(10)) {
    const socket = await open(t, port);
    socket.write(bytesOf(GET, HOST));
    const isServed = await new Promise((resolve) => {
      socket.once('data', () => resolve(true)).once('close', () => resolve(false));
    });
    if (isServed === true) return socket;
  }
  return assert.fail('no new connection is served');
}

/** Asks and posts, down a kept connection and new ones, until it is over. Returns the time of each in milliseconds. */
async function useMeanwhile(t: TestContext, port: number, isOver: () => boolean, which = 'all'): Promise<number[]> {
  const kept = await openSoon(t, port);
  const answers = kept[Symbol.asyncIterator]();
  const times: number[] = [];
  for (let round = 0; !isOver(); round += 1) {
    const began = performance.now();
    kept.write(round % 2 === 0 ? bytesOf(GET, HOST) : bytesOf(POST, HOST));
    const { value } = await answers.next();
    assert.match(String(value), /^HTTP\/1\.1 (200|503) /, 'the kept connection is served');
    times.push(performance.now() - began);
    if (which === 'all') {
      const asked = performance.now();
      const [reply] = await talk(port, bytesOf(GET, HOST, CLOSE));
      assert.equal(reply?.statusCode, 200, 'a new connection is served');
      times.push(performance.now() - asked);
    }
    await sleep(20);
  }
  return times;
}

function checkOthers(times: number[]): void {
  const sorted = [...times].sort((a, b) => a - b);
  const usualMs = sorted[Math.floor(sorted.length / 2)] as number;
  const slowestMs = sorted.at(-1) as number;
  assert.ok(sorted.length >= 20, `${sorted.length} requests`);
  assert.ok(usualMs < 500 && slowestMs < 8000, `usually ${usualMs} ms, at most ${slowestMs} ms`);
}

/**
 * Makes ordinary requests, down as many connections as there may be, until the heap of the thread has been through its
 * growth. Returns the memory of the host, in bytes.
 */
async function warmUp(t: TestContext, host: Host, port: number): Promise<number> {
  await Promise.all(Array.from({ length: 64 }, async () => {
    const socket = await open(t, port);
    const chunks = socket[Symbol.asyncIterator]();
    for (let round = 0; round < 20; round += 1) {
      socket.write(bytesOf(round % 2 === 0 ? GET : POST, HOST).repeat(20));
      for (let answers = 0; answers < 20;) answers += String((await chunks.next()).value).split('}').length - 1;
    }
    const closed = closing(socket);
    socket.end();
    socket.resume();
    await closed;
  }));
  order(host, 'memory');
  return host.hear();
}

/** The first thread is alive, and has given back what memory it took; that may take V8 a while. */
async function checkHost(host: Host, before: number): Promise<void> {
  let grown = Infinity;
  for (const deadline = performance.now() + 20_000; grown > 10e6 && performance.now() < deadline; await sleep(100)) {
    order(host, 'memory');
    grown = (await host.hear<number>()) - before;
  }
  assert.ok(grown <= 10e6, `${Math.round(grown / 1e6)} MB are not given back`);
  order(host, 'threads');
  assert.equal(await host.hear(), 1);
}

// ───── Who has posted what ───────────────────────────────────────────────────────────────────────────────────────

/** All connections from one address, which may come up again: the commands answered with `ok`, and the rest. */
interface Peer {
  address: string;
  accepted: string[];
  refused: number;
  cuts: number;
}

/** Posts commands from 16 clients at a time until it is over or all are answered, or cut before that. */
async function postFromMany(port: number, count: number, isOver = (): boolean => false): Promise<Peer[]> {
  const peers = new Map<string, Peer>();
  let left = count;
  await Promise.all(Array.from({ length: 16 }, async (_, number) => {
    const random = randomNumbers(number);
    let heardAt = performance.now();
    while (left > 0 && !isOver()) {
      assert.ok(performance.now() - heardAt < 10_000, 'nobody has listened for ten seconds');
      const socket = connect(port, '127.0.0.1');
      let peer: Peer | undefined;
      try {
        await once(socket, 'connect');
        const address = `127.0.0.1:${socket.localPort}`;
        peer = peers.get(address) ?? { address, accepted: [], refused: 0, cuts: 0 };
        peers.set(address, peer);
        const chunks = socket[Symbol.asyncIterator]();
        while (left > 0) {
          left -= 1;
          const command = randomCommand(random);
          socket.write(bytesOf(`POST /api/${command}`, HOST));
          let answer = '';
          while (!answer.endsWith('}')) {
            const { value, done } = await chunks.next();
            if (done === true) throw new Error('the connection was ended');
            answer += value;
          }
          heardAt = performance.now();
          if (answer.startsWith('HTTP/1.1 200 ')) peer.accepted.push(command);
          else if (answer.startsWith('HTTP/1.1 503 ')) peer.refused += 1;
          else assert.fail(answer);
        }
      } catch (error) {
        if (error instanceof assert.AssertionError) throw error;
        if (peer !== undefined) peer.cuts += 1;
        await sleep(10);
      } finally {
        socket.destroy();
      }
    }
  }));
  return [...peers.values()];
}

/** Compares what the host has taken with what the clients know and what the server says it has accepted. */
function checkDelivery(taken: string[], peers: Peer[], log: string, kills: number): void {
  const logged: string[] = [];
  const loggedBy = new Map<string, string[]>(peers.map(({ address }) => [address, []]));
  for (const [, address, command] of log.matchAll(/^CONTROL \d+: (\S+) POST "\/api\/([a-z-]+)" 200 /gm)) {
    logged.push(command as string);
    loggedBy.get(address as string)?.push(command as string);
  }
  const accepted = peers.flatMap((peer) => peer.accepted);
  assert.ok(accepted.length >= 500, `${accepted.length} commands were accepted`);
  assert.ok(peers.some(({ refused }) => refused > 0), 'the queue was full at times');
  for (const peer of peers) {
    const lines = loggedBy.get(peer.address) as string[];
    if (kills === 0) assert.deepEqual(lines, peer.accepted, peer.address);
    assert.ok(isWithin(peer.accepted, lines), `${peer.address} was told ok for what is in the log, in that order`);
    assert.ok(lines.length - peer.accepted.length <= peer.cuts, `${peer.address} was told ok but where it was cut`);
  }
  if (kills === 0) {
    assert.deepEqual(taken, logged);
    assert.equal(taken.length, accepted.length);
    return;
  }
  // A thread may die between acceptance and log, or between log and answer; it accepts one command at a time.
  assert.ok(taken.length >= accepted.length, `${taken.length} of ${accepted.length} commands were delivered`);
  assert.ok(taken.length - accepted.length <= kills, `${taken.length - accepted.length} unanswered, ${kills} kills`);
  assert.ok(isWithin(logged, taken), 'all that is in the log was delivered, in that order');
}

/** Whether one list becomes the other when some entries are added. */
function isWithin(list: string[], other: string[]): boolean {
  let place = 0;
  for (const entry of other) {
    if (entry === list[place]) place += 1;
  }
  return place === list.length;
}

/** Makes all kinds of requests to HOST_WITH_TOKEN. Returns what the log must say about which client. */
async function abuse(t: TestContext, port: number): Promise<[address: string, text: string][]> {
  const wrong = `Authorization: Bearer ${TOKEN.toUpperCase()}`;
  const long = `X-Long: ${TOKEN.repeat(500)}`;
  const requests: [request: string, text: string][] = [
    [bytesOf(POST, HOST, CLOSE, BEARER), 'POST "/api/pause" 200 {"result":"ok"}'],
    [bytesOf(`${POST}?token=${TOKEN}`, HOST, CLOSE, BEARER), 'POST "/api/pause" 200 {"result":"ok"}'],
    [bytesOf('POST /api/resume', HOST, CLOSE, BEARER), 'POST "/api/resume" 503 '],
    [bytesOf(POST, HOST, CLOSE, wrong), 'POST "/api/pause" 401 '],
    [bytesOf(GET, HOST, CLOSE), 'GET "/api/status" 401 '],
    [bytesOf(POST, 'Host: evil.example', CLOSE, wrong), 'POST "/api/pause" 403 '],
    [bytesOf('GET /nowhere', HOST, CLOSE, BEARER), 'GET "/nowhere" 404 '],
    [bytesOf('GET /api/pause', HOST, CLOSE, BEARER), 'GET "/api/pause" 405 '],
    [bytesOf(POST, HOST, BEARER, 'Content-Length: 1000000'), 'POST "/api/pause" 413 '],
    [bytesOf(POST, HOST, BEARER, 'no header'), '400 '],
    [bytesOf(POST, HOST, BEARER, long), '431 '],
  ];
  const asked: [string, string][] = [];
  for (const [request, text] of requests) {
    const socket = await open(t, port);
    asked.push([`127.0.0.1:${socket.localPort}`, text]);
    socket.write(request);
    const [, statusCode] = /^HTTP\/1\.1 (\d+) /.exec(await readToEnd(socket)) ?? [];
    assert.ok(text.includes(`${statusCode} `), `${statusCode}: ${text}`);
  }
  const kept = [await open(t, port), await open(t, port), await open(t, port)];
  const more = await open(t, port);
  asked.push([`127.0.0.1:${more.localPort}`, 'refused: 3 connections are open']);
  assert.equal(await readToEnd(more), '');
  for (const socket of kept) socket.destroy();
  return asked;
}

// ───── Commands and waits ────────────────────────────────────────────────────────────────────────────────────────

/** What the promise gives, or undefined if that takes longer. The process is not kept alive for that. */
function within<Value>(milliseconds: number, promise: Promise<Value>): Promise<Value | undefined> {
  return Promise.race([promise, sleep(milliseconds, undefined, { ref: false })]);
}

function takeAll(server: WebApiServer): ControlCommand[] {
  const taken: ControlCommand[] = [];
  while (server.hasCommands()) taken.push(server.receiveCommand());
  return taken;
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

/** Takes one of some requests, and changes a few of its bytes, or puts in some of another. */
function damage(random: () => number, requests: readonly string[], specials: readonly string[]): string {
  const below = (limit: number): number => Math.floor(random() * limit);
  const oneOf = (texts: readonly string[]): string => texts[below(texts.length)] as string;
  const sliceOf = (text: string): string => {
    const place = below(text.length);
    return text.slice(place, place + 1 + below(8) ** 2);
  };
  let bytes = oneOf(requests);
  for (let count = 1 + below(4); count > 0; count -= 1) {
    const place = below(bytes.length);
    const end = place + 1 + below(4);
    const replacements = [
      () => String.fromCharCode(bytes.charCodeAt(place) ^ (1 << below(8))) + bytes.slice(place + 1, end), // a bit flips
      () => '', // some bytes are dropped
      () => bytes.slice(place, end).repeat(2), // come twice
      () => String.fromCharCode(below(256)) + bytes.slice(place, end), // are put in
      () => oneOf(specials) + bytes.slice(place, end),
      () => sliceOf(oneOf(requests)) + bytes.slice(place, end),
      () => sliceOf(bytes), // are replaced
    ];
    const replacement = replacements[below(replacements.length)] as () => string;
    bytes = bytes.slice(0, place) + replacement() + bytes.slice(end);
  }
  return bytes;
}

/** Deals with all of them, 24 at a time: fewer than a server takes. */
async function inParallel<Item>(items: readonly Item[], deal: (item: Item) => Promise<void>): Promise<void> {
  const rest = items.values();
  await Promise.all(Array.from({ length: 24 }, async () => {
    for (const item of rest) await deal(item);
  }));
}
