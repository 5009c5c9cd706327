// What the promises of control.ts rest on, called directly: the policy, row by row, and counters that wrap around.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { transform } from 'esbuild';
import {
  FOREIGN_HOSTS, GET, HOST, LIMIT, LOCAL_HOSTS, MORTAL, NAME, NAMED_HOSTS, NAMES, PAGE, POST, UNNAMED_HOSTS,
  UNSPECIFIED_ADDRESSES, UPGRADE, WEBSOCKET, blockThread, collectWarnings, getFreshStatus, head, outcomeOf, postAll,
  randomCommand, randomNumbers, runHost, sendAll, takeAll, within,
} from './helpers.ts';
import { TOKEN, clientAt, makeFolder, startServer as start, until } from '../helpers.ts';
import { EmptyError, SystemStatus } from '../../../control.ts';
import type { StartedServer } from '../helpers.ts';
import type { WebApiServerOptions } from '../../../control.ts';
import type { IncomingMessage } from 'node:http';
import type { TestContext } from 'node:test';

const { ACTIVE, PAUSED } = SystemStatus;

// What control.ts does not export.
const { CELL, createPolicy, prepareResponse } = await importInternals();

type PolicyOptions = Pick<WebApiServerOptions, 'host' | 'socketPath' | 'token' | 'allowedHosts' | 'allowedOrigins'>;

interface Policy {
  readHead(request: IncomingMessage): object;
  refusal(request: IncomingMessage, head: object): { statusCode: number; body: string } | null;
  hasToken(authorization: string | undefined): boolean;
}

interface Internals {
  CELL: Record<string, number>;
  createPolicy(options: PolicyOptions, prepare: unknown): Policy;
  prepareResponse: unknown;
}

async function importInternals(): Promise<Internals> {
  const source = `${readFileSync('control.ts', 'utf8')}\nexport { CELL, createPolicy, prepareResponse };`;
  const { code } = await transform(source, { loader: 'ts', format: 'esm', target: 'node20' });
  return import(`data:text/javascript;base64,${Buffer.from(code).toString('base64')}`);
}

// ───── The policy ────────────────────────────────────────────────────────────────────────────────────────────────

const HTTP_1_0 = `${POST} HTTP/1.0`;
const NO_HOST = '403 allowedHosts';
const NO_ORIGIN = '403 allowedOrigins';
const APP = 'app://tool';

const FOREIGN_ORIGINS = [
  'null', '', 'http://localhost:8391', 'http://localhost', 'http://127.0.0.1', 'http://evil.example', '*',
  'HTTP://localhost:3000', 'http://LOCALHOST:3000', 'http://localhost:3001', 'http://localhost:300',
  'http://localhost:30000', 'http://localhost:3000/', 'https://localhost:3000', 'http://localhost:3000 app://tool',
  'http://localhost:3000, app://tool', 'http://localhost:3000,', 'xhttp://localhost:3000', 'localhost:3000',
];
const SITES = ['none', 'same-origin', 'same-site', 'cross-site', '', 'NONE', 'none,none', 'x'];

/** What the policy says to a request: `ok`, or a status code and the option that the error names. */
type Row = [outcome: string, line: string, ...fields: string[]];

interface PolicyTable {
  title: string;
  options?: PolicyOptions;
  rows: Row[];
}

const TABLES: PolicyTable[] = [
  {
    title: 'Host',
    rows: [
      ...LOCAL_HOSTS.map((host): Row => ['ok', POST, `Host: ${host}`]),
      ...FOREIGN_HOSTS.map((host): Row => [NO_HOST, POST, `Host: ${host}`]),
      ['ok', POST, 'hOST: localhost'],
      [NO_HOST, GET, 'Host: evil.example'],
      [NO_HOST, 'HEAD /api/status', 'Host: evil.example'],
      [NO_HOST, 'GET /', 'Host: evil.example'],
      [NO_HOST, 'PUT /api/pause', 'Host: evil.example'],
      [NO_HOST, 'OPTIONS *', 'Host: evil.example'],
      [NO_HOST, GET, 'Host: evil.example', 'Sec-Fetch-Site: none'],
      [NO_HOST, POST, 'Host: x', 'X-Forwarded-Host: localhost', 'Forwarded: host=localhost'],
      ['400', POST],
      ['400', 'POST http://localhost/api/pause'],
      ['ok', HTTP_1_0],
      ['ok', HTTP_1_0, HOST],
      [NO_HOST, HTTP_1_0, 'Host: evil.example'],
      [NO_HOST, 'POST http://evil.example/api/pause HTTP/1.0'],
      ['ok', 'POST http://localhost/api/pause HTTP/1.0'],
      [NO_ORIGIN, HTTP_1_0, 'Origin: null'],
    ],
  },
  {
    title: 'the authority of an absolute-form target, which replaces Host',
    rows: [
      ...LOCAL_HOSTS.map((host): Row => ['ok', `POST http://${host}/api/pause`, 'Host: evil.example']),
      ...FOREIGN_HOSTS.filter((host) => !/[ /#]/.test(host)).map((host): Row => {
        return [NO_HOST, `POST http://${host}/api/pause`, HOST];
      }),
      ['ok', 'POST HTTPS://localhost/api/pause?x', 'Host: evil.example'],
      ['ok', 'GET http://localhost', 'Host: evil.example'],
      [NO_HOST, 'GET http://evil.example', HOST],
      [NO_HOST, 'POST http://evil?/api/pause', HOST],
      [NO_HOST, 'POST ftp://localhost/api/pause', 'Host: evil.example'],
      ['ok', 'POST /http://evil/api/pause', HOST],
      ['ok', 'POST //evil.example/api/pause', HOST],
    ],
  },
  {
    title: 'Origin and Sec-Fetch-Site',
    rows: [
      ...[PAGE, APP, ...FOREIGN_ORIGINS].flatMap((origin): Row[] => [
        [NO_ORIGIN, POST, 'Host: localhost:8391', `Origin: ${origin}`],
        [NO_ORIGIN, GET, 'Host: localhost:8391', `Origin: ${origin}`],
      ]),
      ...SITES.flatMap((site): Row[] => {
        const typed = site === 'none' ? 'ok' : NO_ORIGIN; // a user has typed the address
        return [
          [typed, GET, HOST, `Sec-Fetch-Site: ${site}`],
          [typed, 'HEAD /api/status', HOST, `Sec-Fetch-Site: ${site}`],
          [NO_ORIGIN, POST, HOST, `Sec-Fetch-Site: ${site}`],
          [NO_ORIGIN, 'OPTIONS /api/pause', HOST, `Sec-Fetch-Site: ${site}`],
          [NO_ORIGIN, GET, HOST, `Sec-Fetch-Site: ${site}`, 'Origin: null'],
        ];
      }),
      [NO_ORIGIN, 'OPTIONS /api/pause', HOST, `Origin: ${PAGE}`, 'Access-Control-Request-Method: POST'],
      ['ok', POST, HOST, 'Sec-Fetch-Mode: cors', 'Sec-Fetch-Dest: empty', 'Referer: http://evil.example/',
        'User-Agent: Mozilla/5.0', 'Cookie: a=b', 'Content-Type: text/plain'],
      ['ok', POST, HOST, ...UPGRADE],
      ['ok', GET, HOST, ...WEBSOCKET],
      [NO_ORIGIN, GET, HOST, 'Origin: http://evil.example', ...WEBSOCKET],
    ],
  },
  {
    title: 'fields that must not be repeated',
    options: { allowedHosts: ['box.lan'], allowedOrigins: [PAGE, APP] },
    rows: [
      ...[
        ['Host', 'localhost', 'box.lan'], ['Host', 'localhost', 'evil.example'], ['Host', 'evil.example', 'localhost'],
        ['Host', 'localhost', ''], ['Host', '', 'localhost'], ['Origin', PAGE, APP], ['Origin', PAGE, 'null'],
        ['Origin', '', PAGE], ['Sec-Fetch-Site', 'none', 'cross-site'], ['Sec-Fetch-Site', 'cross-site', 'none'],
        ['Authorization', `Bearer ${TOKEN}`, 'Basic x'],
      ].flatMap(([name = '', first, second]): Row[] => {
        const others = name === 'Host' ? [] : [HOST];
        const again = [`${name}: ${first}`, `${name}: ${second}`, `${name.toUpperCase()}: ${second}`];
        return again.map((field) => ['400', GET, ...others, `${name}: ${first}`, 'X: x', field]);
      }),
      ['400', 'POST http://localhost/api/pause', HOST, HOST],
      ['400', HTTP_1_0, HOST, HOST],
      ['400', POST, HOST, ...Array<string>(1100).fill('a: b'), HOST],
      ['ok', POST, HOST, 'Cookie: a', 'Cookie: b', 'X: x', 'x: x', 'Accept: a', 'Accept: b'],
    ],
  },
  {
    title: 'the option host, and allowedHosts',
    options: { host: NAME, allowedHosts: [...NAMES] },
    rows: [
      ...NAMED_HOSTS.map((host): Row => ['ok', POST, `Host: ${host}`]),
      ...UNNAMED_HOSTS.map((host): Row => [NO_HOST, POST, `Host: ${host}`]),
      ['ok', 'POST http://A.Example.org:1/api/pause', 'Host: evil'],
      [NO_HOST, 'POST http://evil/api/pause', 'Host: box.lan'],
      [NO_ORIGIN, POST, 'Host: box.lan', 'Origin: http://box.lan'],
    ],
  },
  {
    title: "allowedHosts: ['*']",
    options: { allowedHosts: ['*'] },
    rows: [
      ...['evil.example', 'X:80', 'localhost.', '127.1', '[::1]'].map((host): Row => ['ok', POST, `Host: ${host}`]),
      ...[...UNSPECIFIED_ADDRESSES, '', ':80', 'x:y', '[::1', '::1'].map((host): Row => [NO_HOST, POST, `Host: ${host}`]),
      ['400', POST],
      [NO_ORIGIN, POST, 'Host: evil.example', 'Origin: http://evil.example'],
      [NO_ORIGIN, POST, 'Host: evil.example', 'Sec-Fetch-Site: same-origin'],
    ],
  },
  {
    title: 'allowedOrigins',
    options: { allowedOrigins: [PAGE, APP] },
    rows: [
      ...[PAGE, APP].flatMap((origin): Row[] => [
        ['ok', POST, HOST, `Origin: ${origin}`],
        ['ok', 'OPTIONS /api/pause', HOST, `Origin: ${origin}`],
        ...SITES.map((site): Row => ['ok', POST, HOST, `Origin: ${origin}`, `Sec-Fetch-Site: ${site}`]),
      ]),
      ...FOREIGN_ORIGINS.flatMap((origin): Row[] => [
        [NO_ORIGIN, POST, 'Host: localhost:8391', `Origin: ${origin}`],
        [NO_ORIGIN, 'OPTIONS /api/pause', 'Host: localhost:8391', `Origin: ${origin}`],
      ]),
      [NO_HOST, POST, 'Host: evil', `Origin: ${PAGE}`],
      [NO_HOST, 'OPTIONS /', 'Host: evil', `Origin: ${PAGE}`],
      [NO_ORIGIN, POST, HOST, 'Sec-Fetch-Site: same-site'],
    ],
  },
  {
    title: 'a Unix socket, to which no name leads',
    options: { socketPath: '/nowhere/control.sock', allowedOrigins: [PAGE] },
    rows: [
      ...['localhost', 'evil.example', '0.0.0.0:80', '', '/run/control.sock'].map((host): Row => {
        return ['ok', POST, `Host: ${host}`];
      }),
      ['ok', 'POST http://evil.example/api/pause', HOST],
      ['ok', HTTP_1_0],
      ['400', POST],
      ['400', POST, HOST, HOST],
      ['400', POST, HOST, `Origin: ${PAGE}`, `Origin: ${PAGE}`],
      ['ok', POST, HOST, `Origin: ${PAGE}`],
      ...['Origin: http://localhost', 'Origin: null', 'Sec-Fetch-Site: cross-site', 'Sec-Fetch-Site: same-origin',
        'Sec-Fetch-Site: none'].map((field): Row => [NO_ORIGIN, POST, HOST, field]),
    ],
  },
];

describe('createPolicy()', LIMIT, () => {
  const policyOf = (options: PolicyOptions = {}): Policy => {
    return createPolicy({ host: 'localhost', allowedHosts: [], allowedOrigins: [], ...options }, prepareResponse);
  };

  for (const { title, options, rows } of TABLES) {
    it(`decides by ${title} (${rows.length} requests)`, () => {
      const policy = policyOf(options);
      const decide = ([, line, ...fields]: Row): string => {
        const [method = '', ...target] = line.replace(/ HTTP\/1\.0$/, '').split(' ');
        const rawHeaders = fields.flatMap((field) => {
          const colon = field.indexOf(':');
          return [field.slice(0, colon), field.slice(colon + 1).trimStart()];
        });
        const httpVersion = line.endsWith(' HTTP/1.0') ? '1.0' : '1.1';
        const request = { method, url: target.join(' '), httpVersion, rawHeaders } as IncomingMessage;
        const refusal = policy.refusal(request, policy.readHead(request));
        return refusal === null ? 'ok' : outcomeOf({ ...refusal, headers: {} });
      };
      const decisions = rows.map((row) => [decide(row), ...row.slice(1)]);
      assert.deepEqual(decisions, rows);
    });
  }

  it('hasToken() accepts the token as RFC 6750 writes it, and nothing else', () => {
    const token = 'a-Secret/that+is~long.enough_=';
    const policy = policyOf({ token });
    for (const value of [`Bearer ${token}`, `bearer ${token}`, `BEARER ${token}`, `Bearer  ${token}`]) {
      assert.equal(policy.hasToken(value), true, value);
    }
    for (const value of [
      undefined, '', 'Bearer', 'Bearer ', token, `Basic ${token}`, `Bearer${token}`, `Bearer\t${token}`,
      `xBearer ${token}`, 'Bearer wrong-token-wrong-token', `Bearer ${token.slice(0, -1)}`, `Bearer ${token}x`,
      `Bearer ${token} x`, `Bearer ${token},`, `Bearer ${token}, Bearer ${token}`, `Bearer "${token}"`,
      `Bearer ${token.toUpperCase()}`, `Bearer ${token.slice(1)}`, `Bearer ${encodeURIComponent(token)}`,
      `Bearer ${btoa(token)}`,
    ]) {
      assert.equal(policy.hasToken(value), false, value);
    }
  });

  it('hasToken() accepts everything if no token is set', () => {
    const policy = policyOf({});
    assert.deepEqual([undefined, '', 'Basic x'].map((value) => policy.hasToken(value)), [true, true, true]);
  });
});

// ───── The shared memory ─────────────────────────────────────────────────────────────────────────────────────────

describe('The counters in shared memory', LIMIT, () => {
  for (const [count, edge] of [[2 ** 31 - 3, '2³¹'], [-3, '2³²']] as const) {
    it(`wrap around at ${edge}: the queue keeps its order and its size`, async (t) => {
      const random = randomNumbers(1);
      for (const maxQueueSize of [1, 2, 3, 5, 7, 16]) {
        const { server, port, memory } = await startAt(t, { HEAD: count, TAIL: count }, { maxQueueSize });
        for (let round = 0; round < 4; round += 1) {
          const posted = Array.from({ length: maxQueueSize + 2 }, () => randomCommand(random));
          assert.deepEqual(await postAll(port, posted), [...Array(maxQueueSize).fill(200), 503, 503]);
          assert.equal(server.receiveCommand(), posted[0]);
          assert.deepEqual(await postAll(port, ['save-state', 'pause']), [200, 503]);
          assert.deepEqual(takeAll(server), [...posted.slice(1, maxQueueSize), 'save-state']);
          assert.throws(() => server.receiveCommand(), EmptyError);
        }
        const end = (count + 4 * (maxQueueSize + 1)) | 0;
        assert.deepEqual([memory[CELL['HEAD'] as number], memory[CELL['TAIL'] as number]], [end, end]);
        await server.close();
      }
    });
  }

  it('hold a queue of 65,536 commands', async (t) => {
    const { server, port } = await startAt(t, { HEAD: 65_535 - 9, TAIL: -9 }, { maxQueueSize: 65_536 });
    assert.deepEqual(await postAll(port, ['pause', 'resume']), [200, 503]);
    assert.equal(takeAll(server).length, 65_536);
  });

  it('wrap around: the status stays newer than the commands before it', async (t) => {
    for (const edge of [2 ** 31, 2 ** 31, 2 ** 31, 0]) { // each has only one round that could be wrong
      let status = ACTIVE;
      const count = edge - 10;
      const cells = { SEQUENCE: count, REQUESTED: count, ACKNOWLEDGED: count };
      const { server, client, memory } = await startAt(t, cells, { systemStatus: () => status });
      for (let round = 0; round < 20; round += 1) {
        status = round % 2 === 0 ? PAUSED : ACTIVE;
        await client.pause(); // the next status must be newer
        server.receiveCommand();
        assert.equal(await getFreshStatus(client) ?? status, status, `round ${round}`);
      }
      const past = ((memory[CELL['SEQUENCE'] as number] as number) - edge) | 0;
      assert.ok(past > 0 && past < 1000, `${memory[CELL['SEQUENCE'] as number]} is past ${edge}`);
    }
  });

  it('wrap around: a shutdown whose response has been written does not wait for it', async (t) => {
    for (const edge of [2 ** 31, 0]) {
      const cells = { HEAD: edge - 5, RESPONDED: edge - 5, TAIL: edge - 5 };
      const { server, port, memory } = await startAt(t, cells, { maxQueueSize: 64 });
      await postAll(port, Array(10).fill('shutdown'));
      await until(() => memory[CELL['RESPONDED'] as number] === memory[CELL['HEAD'] as number]);
      const wait = t.mock.method(Atomics, 'wait');
      assert.equal(takeAll(server).length, 10);
      assert.equal(wait.mock.callCount(), 0);
      wait.mock.restore();
    }
  });

  it('deliver a shutdown whose thread died before it could respond, after 20 ms', async (t) => {
    const { server, client, memory } = await startAt(t, {}, {});
    const [head, responded] = [CELL['HEAD'] as number, CELL['RESPONDED'] as number];
    assert.equal(await client.shutdown(), 'ok');
    await until(() => memory[responded] === memory[head]);
    Atomics.store(memory, responded, memory[head] as number - 1); // as if it had not responded
    assert.ok(server.hasCommands());
    const began = performance.now();
    assert.equal(server.receiveCommand(), 'shutdown');
    const tookMs = performance.now() - began;
    assert.ok(tookMs >= 15 && tookMs < 500, `${tookMs} ms`);
    assert.equal(await client.resume(), 'ok');
    await until(() => memory[responded] === memory[head]);
    assert.equal(server.receiveCommand(), 'resume');
  });

  it('recover if a thread dies after it has set NOTIFIED and before it has notified the host', async (t) => {
    const host = runHost(t, `
      ${MORTAL}
      let memory = null;
      globalThis.SharedArrayBuffer = class extends SharedArrayBuffer {
        constructor(length) {
          super(length);
          memory ??= new Int32Array(this);
        }
      };
      const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0 });
      hold();
      say((await server.runInBackground()).port);
      Atomics.store(memory, ${CELL['NOTIFIED']}, 1);
      kill(null);
      await gone();
      release();
      say(await server.nextCommand());
      setInterval(() => {}, 1000); // the response may still be under way
    `);
    const client = clientAt(t, { host: '127.0.0.1', port: await host.hear() });
    assert.equal(await host.hear(), 'gone');
    await client.waitFor(ACTIVE, { timeout: 10_000 });
    assert.equal(await client.pause(), 'ok');
    assert.equal(await within(3000, host.hear()), 'pause');
  });
});

// ───── The server thread ─────────────────────────────────────────────────────────────────────────────────────────

describe('The server thread', LIMIT, () => {
  it('has systemStatus called once for all requests that wait', async (t) => {
    for (const blockMs of [0, 30]) {
      let calls = 0;
      const { port } = await start(t, { systemStatus: () => (calls += 1, ACTIVE) });
      calls = 0;
      const began = performance.now();
      const requests = Array(8).fill(head(GET, HOST));
      const responses = Promise.all(Array.from({ length: 40 }, () => sendAll(port, requests)));
      blockThread(blockMs);
      assert.ok((await responses).flat().every(({ statusCode }) => statusCode === 200));
      const tookMs = performance.now() - began - blockMs;
      assert.ok(calls > 0 && calls <= tookMs + 2, `${calls} calls for 320 requests in ${tookMs} ms`); // one per ms
    }
  });

  it('runs no module that the host preloads', async (t) => {
    const folder = makeFolder(t);
    const [imported, required] = [join(folder, 'imported.mjs'), join(folder, 'required.cjs')];
    writeFileSync(imported, `console.log('"imported"');`);
    writeFileSync(required, `console.log('"required"');`);
    const host = runHost(t, `
      const server = new WebApiServer({ systemStatus: () => ACTIVE, port: 0 });
      await server.runInBackground();
      await server.close();
    `, 0, ['--import', pathToFileURL(imported).href, '--require', required]);
    await host.checkEnd('required', 'imported');
  });

  it('makes runInBackground() reject with the reason if it cannot start', async (t) => {
    const source = `
      const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0 });
      await server.runInBackground().catch(({ message, code }) => say([message, code]));
    `;
    const flag = process.allowedNodeEnvironmentFlags.has('--permission') ? '--permission' : '--experimental-permission';
    const denied = runHost(t, source, 0, [flag, '--allow-fs-read=*']);
    const [message, code] = await denied.hear<[string, string]>();
    assert.match(message, /^Cannot serve at 127\.0\.0\.1:0: .*Access to this API has been restricted/);
    assert.equal(code, 'ERR_ACCESS_DENIED');
    const broken = runHost(t, `Function.prototype.toString = () => '() => nonsense()';\n${source}`); // bytecode only
    const [reason] = await broken.hear<[string]>();
    assert.match(reason, /^Cannot serve at 127\.0\.0\.1:0: its thread failed: nonsense is not defined$/);
    assert.equal((await broken.ended).code, 0);
  });

  it('can make a failing systemStatus warn only so often', async (t) => {
    const warnings = collectWarnings(t);
    let calls = 0;
    const { server } = await start(t, { systemStatus: () => assert.fail(`failure ${calls += 1}`) });
    for (let round = 0; round < 1000; round += 1) server.hasCommands();
    assert.ok(warnings.length > 1 && warnings.length <= 100, `${warnings.length} warnings`);
  });
});

/** Starts a server whose counters stand at these values: its memory is caught when it is created. */
async function startAt(
  t: TestContext,
  cells: Record<string, number>,
  options: Partial<WebApiServerOptions>,
): Promise<StartedServer & { memory: Int32Array }> {
  let memory: Int32Array = new Int32Array();
  const original = SharedArrayBuffer;
  globalThis.SharedArrayBuffer = new Proxy(original, {
    construct(_target, [length]) {
      globalThis.SharedArrayBuffer = original;
      memory = new Int32Array(new original(length));
      for (const [name, value] of Object.entries(cells)) memory[CELL[name] as number] = value;
      return memory.buffer;
    },
  });
  const started = await start(t, options);
  return { ...started, memory };
}
