// Access to the web API, row by row: requests that a web page can send are refused, those of other programs are not.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { TOKEN, makeSocketPath, startServer, takeAll } from '../helpers.ts';
import { BEARER, COMMANDS, HOST, INFO, PAGE, PAUSE, STATUS, Talk, ask, head } from '../http.ts';
import { lacks } from '../needs.ts';
import { LIMIT } from '../wait.ts';
import type { WebApiServerOptions } from '../../../control.ts';

// ───── Values of Host ────────────────────────────────────────────────────────────────────────────────────────────

/** Values of Host that every server accepts. */
const LOCAL_HOSTS: readonly string[] = [
  'localhost', 'LOCALHOST:1', 'LocalHost:', '127.0.0.1', '127.9.9.9:80', '[::1]:8391', '[::1]', '[fe80::1%eth0]',
  '192.168.1.7', '[0:0::1]:65535', '[::ffff:127.0.0.1]:', '[2001:DB8::1]', '1.0.0.0', '255.255.255.255:65536',
];

const UNSPECIFIED_ADDRESSES: readonly string[] = [ // browsers take them for this machine
  '0.0.0.0', '0.1.2.3', '0.255.255.255:80', '[::]', '[::]:80', '[0:0::0]', '[0:0:0:0:0:0:0:0]', '[::0.0.0.0]',
  '[::ffff:0.0.0.0]', '[::ffff:0:1]', '[::%eth0]',
];

/** Values of Host that no server accepts by default. */
const FOREIGN_HOSTS: readonly string[] = [
  ...UNSPECIFIED_ADDRESSES, 'localhost.', 'x.localhost', 'localhost.x', '0177.0.0.1', '127.1', '0x7f.1', '0x7f000001',
  '2130706433', '127.0.0.1.', '127.0.0.1.x', '1.2.3', '256.0.0.1', '1.2.3.4.5', '%6cocalhost', 'evil.example',
  'evil.example:8391', 'box.lan', '*', '.', '-', 'localhost@evil', 'evil@localhost', 'localhost:1@evil',
  'evil:localhost@127.0.0.1', '@localhost', 'localhost,localhost', 'localhost:http', 'localhost:80:80', 'localhost:-1',
  'localhost:0x50', ':80', '::1', '[::1', '[::1]x', '[::1]80', '[::1]:x', '[127.0.0.1]', '[localhost]', '[]', '[', ']',
  '[[::1]]', '[:::]', '[::g]', 'localhost evil.example', 'localhost\xa0', 'localhost/', 'localhost#', '',
];

/** A host to listen on, and other names that are allowed: each server then accepts the first list, not the second. */
const NAME = '0x7f.1';
const NAMES: readonly string[] = ['box.lan', '.example.org', '.test'];
const NAMED_HOSTS: readonly string[] = [
  '0x7F.1', '0X7f.1:80', 'box.lan', 'BOX.lan:8391', 'box.lan:', 'example.org:1', 'a.example.org',
  'a.B.Example.ORG', 'test', 'x.test', 'localhost', '127.0.0.1', '[::1]',
];
const UNNAMED_HOSTS: readonly string[] = [
  '0x7f.2', 'x.0x7f.1', '127.1', 'box.lan.', 'a.box.lan', 'box.la', 'ox.lan', 'lan', '.lan', 'boxxlan', 'xbox.lan',
  'xexample.org', 'example.org.', 'example.org.evil', 'org', 'xtest', 'test.evil', 'box.lan@evil', 'box.lan:x',
  'box.lan:80:80', 'box.lan,box.lan', '', '0.0.0.0', '[::]', 'x.localhost', 'localhost.',
];

// ───── Requests ──────────────────────────────────────────────────────────────────────────────────────────────────

const WEBSOCKET: readonly string[] = [
  'Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Version: 13', 'Sec-WebSocket-Key: dGhlIHNhbXBsZQ==',
];

const HTTP_1_0 = `${PAUSE} HTTP/1.0`;
const SECRET = 'a-Secret/that+is~long.enough_=';
const NO_HOST = '403 Host not allowed';
const NO_PAGE = '403 Requests from web pages';

const ORIGINS = [
  PAGE, 'null', '', 'http://localhost:8391', 'http://localhost', 'http://127.0.0.1', 'http://evil.example', '*',
  'app://tool', 'file://', 'localhost', `${PAGE}, ${PAGE}`,
];
const SITES = ['none', 'same-origin', 'same-site', 'cross-site', '', 'NONE', 'none,none', 'x'];

/** Whether a request may use the API: `ok`, or how the refusal begins. */
type Row = [outcome: string, line: string, ...fields: string[]];

interface PolicyTable {
  title: string;
  isUnix?: boolean;
  options?: Partial<WebApiServerOptions>;
  rows: Row[];
}

const TABLES: PolicyTable[] = [
  {
    title: 'Host',
    rows: [
      ...LOCAL_HOSTS.map((host): Row => ['ok', PAUSE, `Host: ${host}`]),
      ...FOREIGN_HOSTS.map((host): Row => [NO_HOST, PAUSE, `Host: ${host}`]),
      ['ok', PAUSE, 'hOST: localhost'],
      ['403', 'HEAD /api/status', 'Host: evil.example'],
      [NO_HOST, 'PUT /api/pause', 'Host: evil.example'],
      [NO_HOST, 'OPTIONS *', 'Host: evil.example'],
      [NO_HOST, PAUSE, 'Host: x', 'X-Forwarded-Host: localhost', 'Forwarded: host=localhost'],
      ['400', PAUSE],
      ['ok', HTTP_1_0],
      [NO_HOST, HTTP_1_0, 'Host: evil.example'],
      [NO_HOST, 'POST http://evil.example/api/pause HTTP/1.0'],
    ],
  },
  {
    title: 'the authority of an absolute-form target, which replaces Host',
    rows: [
      ...LOCAL_HOSTS.map((host): Row => ['ok', `POST http://${host}/api/pause`, 'Host: evil.example']),
      ...FOREIGN_HOSTS.filter((host) => !/[ /#\xa0]/.test(host)).map((host): Row => {
        return [NO_HOST, `POST http://${host}/api/pause`, HOST];
      }),
      ['ok', 'POST HTTPS://localhost/api/pause?by', 'Host: evil.example'],
      [NO_HOST, 'POST http://evil/api/pause?x', HOST],
      [NO_HOST, 'POST http://evil?/api/pause', HOST],
      [NO_HOST, 'POST ftp://localhost/api/pause', 'Host: evil.example'],
      ['ok', 'POST /http://evil/api/pause', HOST],
      ['ok', 'POST //evil.example/api/pause', HOST],
    ],
  },
  {
    title: 'Origin and Sec-Fetch-Site',
    rows: [
      ...ORIGINS.flatMap((origin) => [PAUSE, STATUS, 'OPTIONS /api/pause'].map((line): Row => {
        return [NO_PAGE, line, 'Host: localhost:8391', `Origin: ${origin}`];
      })),
      ...SITES.flatMap((site): Row[] => {
        const typed = site === 'none' ? 'ok' : NO_PAGE; // a user has typed the address
        return [
          [typed, STATUS, HOST, `Sec-Fetch-Site: ${site}`],
          [typed.slice(0, 3), 'HEAD /api/status', HOST, `Sec-Fetch-Site: ${site}`],
          [NO_PAGE, PAUSE, HOST, `Sec-Fetch-Site: ${site}`],
          [NO_PAGE, 'OPTIONS /api/pause', HOST, `Sec-Fetch-Site: ${site}`],
          [NO_PAGE, STATUS, HOST, `Sec-Fetch-Site: ${site}`, 'Origin: null'],
          [NO_PAGE, PAUSE, 'Host: localhost:8391', `Sec-Fetch-Site: ${site}`, 'Origin: http://localhost:8391'],
        ];
      }),
      [NO_PAGE, 'OPTIONS /api/pause', HOST, `Origin: ${PAGE}`, 'Access-Control-Request-Method: POST'],
      ['ok', 'OPTIONS /api/pause', HOST, 'Access-Control-Request-Method: POST'],
      ['ok', PAUSE, HOST, 'Sec-Fetch-Mode: cors', 'Sec-Fetch-Dest: empty', 'Referer: http://evil.example/',
        'User-Agent: Mozilla/5.0', 'Cookie: a=b', 'Content-Type: text/plain'],
      ['ok', STATUS, HOST, ...WEBSOCKET],
      [NO_PAGE, STATUS, HOST, 'Origin: http://evil.example', ...WEBSOCKET],
    ],
  },
  {
    title: 'fields that must not be repeated',
    options: { allowedHosts: ['box.lan'], token: TOKEN },
    rows: [
      ...[
        ['Host', 'localhost', 'box.lan'], ['Host', 'localhost', 'evil.example'], ['Host', 'evil.example', 'localhost'],
        ['Host', 'localhost', ''], ['Host', '', 'localhost'], ['Origin', PAGE, 'null'], ['Origin', '', PAGE],
        ['Sec-Fetch-Site', 'none', 'cross-site'], ['Sec-Fetch-Site', 'cross-site', 'none'],
        ['Authorization', `Bearer ${TOKEN}`, 'Basic x'], ['Authorization', 'Basic x', `Bearer ${TOKEN}`],
      ].flatMap(([name = '', first, second]): Row[] => {
        const others = name === 'Host' ? [] : [HOST];
        const again = [`${name}: ${first}`, `${name}: ${second}`, `${name.toUpperCase()}: ${second}`];
        return again.map((field) => ['400', STATUS, ...others, `${name}: ${first}`, 'X: x', field]);
      }),
      ['400', HTTP_1_0, HOST, HOST],
      ['ok', PAUSE, HOST, BEARER, 'Cookie: a', 'Cookie: b', 'X: x', 'x: x', 'Accept: a', 'Accept: b'],
    ],
  },
  {
    title: 'the option host, and allowedHosts',
    options: { host: NAME, allowedHosts: [...NAMES] },
    rows: [
      ...NAMED_HOSTS.map((host): Row => ['ok', PAUSE, `Host: ${host}`]),
      ...UNNAMED_HOSTS.map((host): Row => [NO_HOST, PAUSE, `Host: ${host}`]),
      ['ok', 'POST http://A.Example.org:1/api/pause', 'Host: evil'],
      [NO_HOST, 'POST http://evil/api/pause', 'Host: box.lan'],
      [NO_PAGE, PAUSE, 'Host: box.lan', 'Origin: http://box.lan'],
    ],
  },
  {
    title: "allowedHosts: ['*']",
    options: { allowedHosts: ['*'] },
    rows: [
      ...['evil.example', 'X:80', 'localhost.', '127.1', '[::1]'].map((host): Row => ['ok', PAUSE, `Host: ${host}`]),
      ...[...UNSPECIFIED_ADDRESSES, '', ':80', 'x:y', '[::1', '::1'].map((host): Row => {
        return [NO_HOST, PAUSE, `Host: ${host}`];
      }),
      [NO_PAGE, PAUSE, 'Host: evil.example', 'Sec-Fetch-Site: same-origin'],
    ],
  },
  {
    title: 'the token, as RFC 6750 writes it',
    options: { token: SECRET },
    rows: [
      ...[`Bearer ${SECRET}`, `bearer ${SECRET}`, `BEARER ${SECRET}`, `Bearer  ${SECRET}`].map((value): Row => {
        return ['ok', PAUSE, HOST, `Authorization: ${value}`];
      }),
      ...[
        '', 'Bearer', 'Bearer ', SECRET, `Basic ${SECRET}`, `Bearer${SECRET}`, `Bearer\t${SECRET}`, `xBearer ${SECRET}`,
        'Bearer wrong-token-wrong-token', `Bearer ${SECRET.slice(0, -1)}`, `Bearer ${SECRET.slice(1)}`,
        `Bearer ${SECRET}x`, `Bearer ${SECRET} x`, `Bearer ${SECRET},`, `Bearer ${SECRET}, Bearer ${SECRET}`,
        `Bearer "${SECRET}"`, `Bearer ${SECRET.toUpperCase()}`, `Bearer ${encodeURIComponent(SECRET)}`,
        `Bearer ${btoa(SECRET)}`,
      ].map((value): Row => ['401', PAUSE, HOST, `Authorization: ${value}`]),
    ],
  },
  {
    title: 'a Unix socket, to which no name leads',
    isUnix: true,
    rows: [
      ...['evil.example', '0.0.0.0:80', '', '/run/x.sock'].map((host): Row => ['ok', PAUSE, `Host: ${host}`]),
      ['ok', 'POST http://evil.example/api/pause', HOST],
      ['400', PAUSE],
      ['400', PAUSE, HOST, HOST],
      ...['Origin: null', 'Sec-Fetch-Site: same-origin'].map((field): Row => [NO_PAGE, PAUSE, HOST, field]),
    ],
  },
];

describe('The server', LIMIT, () => {
  for (const { title, isUnix = false, options, rows } of TABLES) {
    it(`decides by ${title} (${rows.length} requests)`, { skip: isUnix && lacks('Unix') }, async (t) => {
      const place = isUnix ? { socketPath: makeSocketPath(t) } : {};
      const starting = startServer(t, { maxQueueSize: 1000, ...options, ...place });
      (options?.allowedHosts as string[] | undefined)?.splice(0, 1, 'evil.example'); // too late
      const { server, where } = await starting;
      const talk = new Talk(where);
      const wrong: string[] = [];
      let accepted = 0;
      for (const [expected, line, ...fields] of rows) {
        const { statusCode, summary } = await talk.send(head(line, ...fields));
        const decision = [400, 401, 403].includes(statusCode) ? summary : 'ok';
        if (!decision.startsWith(expected)) wrong.push(`${decision} instead of ${expected}: ${[line, ...fields]}`);
        if (summary === '200 ok') accepted += 1;
      }
      assert.deepEqual(wrong, []);
      assert.equal(takeAll(server).length, accepted, 'what was refused is not queued');
    });
  }

  it('requires the token at every endpoint: without it, no request has an effect', async (t) => {
    const { server, port } = await startServer(t, { token: TOKEN, commands: { evaluate: {} } });
    const question = server.ask('Delete?').then(() => 'answered', () => 'withdrawn');
    const { asks: [{ id }] } = (await ask(port, INFO, BEARER)).body;
    const names = [...COMMANDS, 'evaluate', `answer?id=${id}`, 'unknown'];
    for (const line of [STATUS, INFO, 'GET /', ...names.map((name) => `POST /api/${name}`)]) {
      for (const fields of [[], [`${BEARER}x`]]) {
        assert.equal((await ask(port, line, ...fields)).statusCode, 401, `${line} ${fields}`);
      }
    }
    assert.deepEqual(takeAll(server), []);
    server.withdrawQuestions();
    assert.equal(await question, 'withdrawn');
  });
});
