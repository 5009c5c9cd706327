// control-board without a browser: its command line and its web API.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { chmodSync, mkdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { connect, createServer, isIPv4 } from 'node:net';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { VERSION } from '../../../control.ts';
import { newsOf, startBoard, untilSystem } from './board/helpers.ts';
import { head, LIMIT } from '../module/helpers.ts';
import {
  assertHarmless, defer, freePort, getInfo, lacksSockets, launchSystem, makeFolder, makeSocketPath, runProgram,
  startProgram, startServer, startSystem, TOKEN, until,
} from '../helpers.ts';
import type { Update } from '../../board/system.ts';
import type { StartedBoard } from './board/helpers.ts';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';

const NOWHERE = '127.0.0.1:9'; // a target that does not respond
const KEY = 'a-key-of-22-characters';
const HAS_IPV6 = Object.values(networkInterfaces()).flat().some((address) => address?.address === '::1');

describe('The command line of control-board', { ...LIMIT, concurrency: 4 }, () => {
  const WRONG: [what: string, args: string[], line: string | RegExp, env?: NodeJS.ProcessEnv][] = [
    ['an unknown option', ['--liste'], /^unknown option '--liste'; see --help$/],
    ['no value', ['--listen'], '--listen requires a value; see --help'],
    ['an option given twice', ['--listen', 'a:1', '--listen', 'b:2'],
      "--listen must be given only once, got 'a:1' and 'b:2'"],
    ['a port alone', ['--listen', '9000'], "--listen must be HOST or HOST:PORT, such as localhost:9000, got '9000'"],
    ['no host', ['--listen', ':80'],
      "the host of --listen ':80' must be a host name or an IP address, got ''"],
    ['an empty address', ['--listen='], "the host of --listen '' must be a host name or an IP address, got ''"],
    ['half an address', ['--listen', '[::1'],
      "the host of --listen '[::1' must be a host name or an IP address, got '[::1'"],
    ['a URL', ['--listen', 'http://localhost:8390'], /^the (host|port) of --listen 'http:.* must be .*, got '/],
    ['a host with a space', ['--listen', 'a b:80'],
      "the host of --listen 'a b:80' must be a host name or an IP address, got 'a b'"],
    ...['', 'x', '-1', '65536', '0x50', '80.5', '1e3', '99999999999999999999'].map((port): typeof WRONG[number] => {
      const line = `the port of --listen 'localhost:${port}' must be an integer from 0 to 65535, got '${port}'`;
      return [`the port '${port}'`, ['--listen', `localhost:${port}`], line];
    }),
    ['a URL as a name', ['--allow-host', 'http://box'], /^--allow-host must be .*, got 'http:\/\/box'$/],
    ['an empty name', ['--allow-host='], /^--allow-host must be .*, got ''$/],
    ['an empty path of the key', ['--key-file='], '--key-file must not be empty'],
    ['an empty host', [':80'], "the host of the target ':80' must be a host name or an IP address, got ''"],
    ['port 0 of a target', ['box:0'],
      "the port of the target 'box:0' must be an integer from 1 to 65535, got '0'"],
    ['no path', ['unix:'], "the path of the target 'unix:' must be a non-empty string, got ''"],
    ['no such file', ['--targets', '/nowhere/targets'],
      /^cannot use the targets file '\/nowhere\/targets': ENOENT: no such file or directory, stat /],
    ['an empty folder', ['--dir='], '--dir must not be empty'],
    ['no such folder', ['--dir', '/nowhere', NOWHERE],
      /^--dir must be a folder that can be read, got '\/nowhere': ENOENT: /],
    ['no folder', [NOWHERE, '--dir', 'package.json'],
      /^--dir must be a folder that can be read, got 'package\.json': ENOTDIR: /],
    ['a folder as a target', ['unix:/nowhere/'],
      "the path of the target 'unix:/nowhere/' must be the path of a socket, not of a folder, got '/nowhere/'"],
    ['a folder in the environment', [],
      "CONTROL_SOCKET must be the path of a socket, not of a folder, got '/nowhere/'", { CONTROL_SOCKET: '/nowhere/' }],
    ['a bad port in the environment', [], "CONTROL_PORT must be an integer from 1 to 65535, got 'x'",
      { CONTROL_PORT: 'x' }],
    ['a short token', [NOWHERE], 'CONTROL_TOKEN must be a string of 16 to 1024 visible ASCII characters, got 5',
      { CONTROL_TOKEN: 'short' }],
    ['a terminal that would be cleared', ['--listen', '\x1b[2J:80'],
      "the host of --listen ' [2J:80' must be a host name or an IP address, got '\\x1B[2J:80'"],
  ];

  for (const [what, args, line, env] of WRONG) {
    it(`refuses ${what}`, async (t) => {
      const { code, stdout, stderr } = await runProgram(t, 'board', args, '', env);
      assert.deepEqual([code, stdout], [2, '']);
      const [, message = stderr] = /^control-board: (.*)\n$/.exec(stderr) ?? [];
      if (typeof line === 'string') assert.equal(message, line);
      else assert.match(message, line);
      assertHarmless(stderr);
    });
  }

  it('tells its options and its version', async (t) => {
    const help = await runProgram(t, 'board', ['--help']);
    assert.deepEqual([help.code, help.stderr], [0, '']);
    const words = ['--listen HOST:PORT', '--allow-host NAME', '--key-file PATH', '--targets FILE', '--dir DIR'];
    for (const word of words) assert.ok(help.stdout.includes(word), word);
    assert.ok(help.stdout.split('\n').every((text) => text.length <= 120));
    assert.equal((await runProgram(t, 'board', ['--version'])).stdout, `${VERSION}\n`);
  });

  it('prints one line: how many systems, the address, and a key of 128 random bits', async (t) => {
    const boards = [await startBoard(t, [NOWHERE]), await startBoard(t, [NOWHERE, '127.0.0.1:10', NOWHERE])];
    const expected = [/^1 system · /, /^2 systems · /];
    for (const [index, { running, url, port, key }] of boards.entries()) {
      const output = running.output();
      assert.equal(output.replace(/^\d systems? · /, ''), `${url}#${key}   (open it; the part behind # is the key)\n`);
      assert.match(output, expected[index] as RegExp);
      assert.equal(url, `http://localhost:${port}/`);
      assert.equal(Buffer.from(key, 'base64url').length, 16);
    }
    assert.notEqual(boards[0]?.key, boards[1]?.key);
  });

  it('listens on both addresses of localhost, with the same port, and on no other', async (t) => {
    const { port, key } = await startBoard(t, [NOWHERE], ['--listen', 'LOCALHOST:0']);
    for (const host of ['127.0.0.1', ...(HAS_IPV6 ? ['[::1]'] : [])]) {
      const headers = { Authorization: `Bearer ${key}` };
      const response = await fetch(`http://${host}:${port}/api/systems`, { headers });
      assert.equal(response.status, 200, host);
    }
    for (const address of ownAddresses()) {
      const [error] = await once(connect(port, address), 'error').catch((reason) => [reason]);
      assert.equal((error as NodeJS.ErrnoException).code, 'ECONNREFUSED', address);
    }
  });

  for (const address of ['127.0.0.1', ...(HAS_IPV6 ? ['::1'] : [])]) {
    it(`ends with exit code 1 and one line if another program listens on ${address}`, async (t) => {
      const server = createServer().listen(0, address);
      t.after(() => server.close());
      await once(server, 'listening');
      const { port } = server.address() as AddressInfo;
      const systemPort = await startSystem(t); // that the board follows
      const args = ['--listen', `localhost:${port}`, `127.0.0.1:${systemPort}`];
      const { code, stdout, stderr } = await runProgram(t, 'board', args);
      assert.deepEqual([code, stdout], [1, '']);
      assert.match(stderr, /^control-board: cannot listen on localhost:\d+: listen EADDRINUSE: .*\n$/);
    });
  }

  it('ends with exit code 1 and one line if the host is no address of this machine', async (t) => {
    const { code, stdout, stderr } = await runProgram(t, 'board', ['--listen', '192.0.2.1:0', NOWHERE]);
    assert.deepEqual([code, stdout], [1, '']);
    assert.match(stderr, /^control-board: cannot listen on 192\.0\.2\.1:0: listen EADDRNOTAVAIL.*\n$/);
  });

  it('warns that nothing is encrypted on 0.0.0.0, and prints the addresses of this machine', async (t) => {
    const { running, port, key } = await startBoard(t, [NOWHERE], ['--listen', '0.0.0.0:0']);
    const { child, ended } = running;
    const [first = '', ...urls] = running.output().match(/http:\/\/\S+/g) ?? [];
    assert.equal(first, `http://localhost:${port}/#${key}`);
    const own = ownAddresses().filter(isIPv4);
    assert.deepEqual(urls, own.map((address) => `http://${address}:${port}/#${key}`));
    for (const url of [first, ...urls]) assert.equal((await fetch(url)).status, 200, url);
    assert.equal((await fetch(`http://0.0.0.0:${port}/`)).status, 403, 'a page could use this name');
    child.kill();
    const { stdout, stderr } = await ended;
    assert.match(stderr, /^control-board: nothing is encrypted: others on the network can read the key .*\n$/);
    const columns = stdout.trimEnd().split('\n').map((line) => line.indexOf('http://'));
    assert.deepEqual(new Set(columns), new Set([columns[0]]), 'the addresses stand below each other');
  });

  it('listens on an IPv6 address', { skip: !HAS_IPV6 && 'needs IPv6' }, async (t) => {
    const { running, url, port, get } = await startBoard(t, [NOWHERE], ['--listen', '[::1]:0']);
    assert.equal(url, `http://[::1]:${port}/`);
    assert.equal((await get('/api/systems')).status, 200);
    assert.doesNotMatch(running.output(), /encrypted/);
    const { running: other } = await startBoard(t, [NOWHERE], ['--listen', '[::]:0']);
    assert.match(other.output(), /nothing is encrypted/);
    assert.match(other.output(), /http:\/\/localhost:/);
    assert.doesNotMatch(other.output(), /fe80|\[::\]/);
  });

  it('shows the system at the address in the environment, with the token there', async (t) => {
    const { port } = await startServer(t, { token: TOKEN });
    const env = { CONTROL_HOST: '127.0.0.1', CONTROL_PORT: String(port), CONTROL_TOKEN: TOKEN };
    const board = await startBoard(t, [], [], env);
    const { target } = await untilSystem(board, ({ status }) => status === 'active');
    assert.equal(target, `127.0.0.1:${port}`);
  });

  it('shows the system at a Unix socket in the environment', { skip: lacksSockets() }, async (t) => {
    const socketPath = makeSocketPath(t);
    await startServer(t, { socketPath });
    const board = await startBoard(t, [], [], { CONTROL_SOCKET: socketPath });
    const { target } = await untilSystem(board, ({ status }) => status === 'active');
    assert.equal(target, `unix:${socketPath}`);
  });

  it('reads targets from a file, each with its own token, and from standard input', async (t) => {
    const folder = makeFolder(t);
    const [open, own, common] = [await startServer(t), await startServer(t, { token: `${TOKEN}-own` }),
      await startServer(t, { token: TOKEN })];
    writeFileSync(join(folder, 'token'), `${TOKEN}-own\n`, { mode: 0o600 });
    const lines = [
      '# all', `127.0.0.1:${open.port}`, '', `127.0.0.1:${own.port} token-file=token`, `127.0.0.1:${common.port} # x`,
      `127.0.0.1:${own.port + 0} token-file=token`, `localhost:${own.port}`,
    ];
    const file = join(folder, 'targets');
    writeFileSync(file, `${lines.join('\n')}\n`, { mode: 0o644 });
    const board = await startBoard(t, [`127.0.0.1:${open.port}`], ['--targets', file], { CONTROL_TOKEN: TOKEN });
    await until(async () => {
      const { systems } = await newsOf(board);
      const statuses = systems.map(({ status }) => status);
      return statuses.join() === 'active,active,active,missing or wrong token';
    }, () => 'each target once, with its own token');
    assert.match(board.running.output(), /^4 systems · /);

    const running = startProgram(t, 'board', ['--listen', 'localhost:0', '--targets', '-']);
    running.child.stdin?.end(`127.0.0.1:${open.port}\n127.0.0.1:${own.port}\n`);
    await running.shows(/^2 systems · /);
  });

  it('refuses targets and tokens that others may have written', async (t) => {
    const folder = makeFolder(t);
    const file = join(folder, 'targets');
    const refused = async (message: RegExp): Promise<void> => {
      const { code, stdout, stderr } = await runProgram(t, 'board', ['--listen', 'localhost:0', '--targets', file]);
      assert.deepEqual([code, stdout], [2, '']);
      assert.match(stderr, message);
      assert.equal(stderr.split('\n').length, 2);
    };
    writeFileSync(file, `${NOWHERE}\n`);
    chmodSync(file, 0o666);
    await refused(/^control-board: cannot use the targets file '.*': others can write it; chmod go-w '.*'\n$/);
    chmodSync(file, 0o600);
    writeFileSync(file, '# none\n\n');
    await refused(/^control-board: .*targets names no target\n$/);
    writeFileSync(file, `${NOWHERE}\nbox:x\n`);
    await refused(/^control-board: line 2 of .*targets: the port of the target 'box:x' must be .*, got 'x'\n$/);
    writeFileSync(file, `${NOWHERE} token-file=token\n`);
    await refused(/^control-board: line 1 of .*: cannot use the token file '.*token': ENOENT.*\n$/);
  });
});

describe('--key-file', { ...LIMIT, concurrency: 3 }, () => {
  it('creates the file with a key for its user alone, and keeps the key', async (t) => {
    const path = join(makeFolder(t), 'key');
    const first = await startBoard(t, [NOWHERE], ['--key-file', path]);
    assert.equal(statSync(path).mode & 0o777, 0o600);
    assert.equal(readFileSync(path, 'utf8'), `${first.key}\n`);
    assert.equal(Buffer.from(first.key, 'base64url').length, 16);
    first.running.child.kill();
    const second = await startBoard(t, [NOWHERE], ['--key-file', path]);
    assert.equal(second.key, first.key);
    assert.equal((await second.get('/api/systems')).status, 200);
    assert.equal(readFileSync(path, 'utf8'), `${first.key}\n`);
  });

  it('takes a key that a person has written', async (t) => {
    const path = join(makeFolder(t), 'key');
    writeFileSync(path, `  ${KEY}\r\n\n`, { mode: 0o600 });
    const { key, get } = await startBoard(t, [NOWHERE], ['--key-file', path]);
    assert.equal(key, KEY);
    assert.equal((await get('/api/systems')).status, 200);
  });

  it('refuses a file that others can use', { skip: process.platform === 'win32' && 'no modes' }, async (t) => {
    const path = join(makeFolder(t), 'key');
    writeFileSync(path, KEY);
    for (const [mode, problem] of [
      [0o640, 'others can read it; chmod go-r'], [0o604, 'others can read it; chmod go-r'],
      [0o644, 'others can read it; chmod go-r'], [0o620, 'others can write it; chmod go-w'],
      [0o602, 'others can write it; chmod go-w'], [0o666, 'others can write it; chmod go-w'],
    ] as const) {
      chmodSync(path, mode);
      const line = `control-board: cannot use the key file '${path}': ${problem} '${path}'\n`;
      assert.deepEqual(await tryKey(t, path), { code: 2, stdout: '', stderr: line }, mode.toString(8));
    }
  });

  it('refuses what is no key', async (t) => {
    const path = join(makeFolder(t), 'key');
    for (const text of ['', '\n', KEY.slice(1), `${KEY}\n${KEY}`, `${KEY} x`, `${KEY}+`, 'ö'.repeat(30), `${KEY}\0`]) {
      writeFileSync(path, text, { mode: 0o600 });
      const line = `control-board: the key in '${path}' must be 22 or more letters, digits, - and _\n`;
      assert.deepEqual(await tryKey(t, path), { code: 2, stdout: '', stderr: line }, JSON.stringify(text));
      assert.equal(readFileSync(path, 'utf8'), text, 'the file is left alone');
    }
  });

  it('refuses what is no file', { skip: process.platform === 'win32' && 'no links' }, async (t) => {
    const folder = makeFolder(t);
    const links = ['nowhere', 'loop'].map((name) => join(folder, name));
    for (const link of links) symlinkSync(join(folder, link.endsWith('loop') ? 'loop' : 'none'), link);
    mkdirSync(join(folder, 'folder'), { mode: 0o700 });
    for (const [path, problem] of [
      [join(folder, 'folder'), 'cannot use the key file .*: it is not a file'],
      [join(folder, 'none', 'key'), 'cannot create the key file .*: ENOENT'],
      [links[0], 'cannot use the key file .*: ENOENT'], [links[1], 'cannot use the key file .*: ELOOP'],
    ] as [string, string][]) {
      const { code, stdout, stderr } = await tryKey(t, path);
      assert.deepEqual([code, stdout], [2, '']);
      assert.match(stderr, new RegExp(`^control-board: ${problem}.*\\n$`));
    }
  });
});

function tryKey(t: TestContext, path: string): ReturnType<typeof runProgram> {
  return runProgram(t, 'board', ['--listen', 'localhost:0', '--key-file', path, NOWHERE]);
}

describe('The web API of control-board', { ...LIMIT, concurrency: 4 }, () => {
  it('has these responses', async (t) => {
    const { port } = await startServer(t);
    const board = await startBoard(t, [`127.0.0.1:${port}`]);
    const [none, wrong] = [{ Authorization: '' }, { Authorization: `Bearer ${board.key}x` }];
    const rows: [status: number, method: string, path: string, headers?: Record<string, string>][] = [
      [200, 'GET', '/', none], [200, 'HEAD', '/', none], [200, 'GET', '/?a=b', none], [405, 'POST', '/', none],
      [405, 'PUT', '/'], [405, 'DELETE', '/'], [405, 'OPTIONS', '/', none],
      [200, 'GET', '/api/systems'], [200, 'GET', '/api/systems?since=0'], [200, 'GET', '/api/systems?since=9&x=y'],
      [200, 'GET', '/api/systems?since=999999999999999'],
      ...['', '-1', '1.5', 'x', '1e3', '0x1', '9999999999999999', '%00'].map((since): typeof rows[number] => {
        return [400, 'GET', `/api/systems?since=${since}`];
      }),
      [405, 'POST', '/api/systems'], [405, 'PUT', '/api/systems'], [405, 'OPTIONS', '/api/systems'],
      [401, 'GET', '/api/systems', none], [401, 'GET', '/api/systems?since=x', wrong],
      [401, 'POST', '/api/systems', none],
      [401, 'OPTIONS', '/api/systems', none], [401, 'GET', '/nothing', none],
      [401, 'POST', '/api/systems/0/pause', wrong],
      [401, 'POST', '/api/systems/pause', none],
      [202, 'POST', '/api/systems/0/save-state'], [202, 'POST', '/api/systems/save-state'],
      [202, 'POST', '/api/systems/00/save-state'],
      [405, 'GET', '/api/systems/0/pause'], [405, 'PUT', '/api/systems/pause'], [405, 'HEAD', '/api/systems/pause'],
      ...[
        '/nothing', '/api', '/api/', '/api/systems/', '/api/systems/0', '/api/systems/1/pause', '/api/systems/-1/pause',
        '/api/systems/0/pause/', '/api/systems/0/stop', '/api/systems/0x0/pause', '/api/systems//pause', '//', '/%2e',
        '/api/systems/99999999999999999999/pause', '/api/systems/0/PAUSE', '/api/systems/0/__proto__', '/page.html',
        '/../package.json', '/api/pause', '/index.html', '/favicon.ico', '*', '/api/systems%00',
      ].flatMap((path): typeof rows => [[404, 'GET', path], [404, 'POST', path]]),
    ];
    for (const [status, method, path, headers] of rows) {
      const fields = { Host: 'localhost', Authorization: `Bearer ${board.key}`, ...headers };
      const response = await exchange(board.port, method, path, fields);
      assert.equal(response.status, status, `${method} ${path} ${JSON.stringify(headers)} ${response.body}`);
      checkResponse(response, method);
      if (status === 405) {
        const allow = path.startsWith('/api/systems/') ? 'POST' : path.startsWith('/api') ? 'GET' : 'GET, HEAD';
        assert.equal(response.headers['allow'], allow);
      }
      assert.ok(!response.text.includes(board.key), 'the key is nowhere');
    }
  });

  it('serves a page that holds no secret, and may do nothing but what its hashes permit', async (t) => {
    const { url, key } = await startBoard(t, [NOWHERE, 'box-with-a-secret-name:1']);
    const response = await fetch(url);
    const page = await response.text();
    assert.ok(!page.includes(key) && !page.includes('secret-name'));
    assert.equal(page, readFileSync('bin/board/page.html', 'utf8'));
    assert.ok(page.length < 40_000);
    assert.equal(response.headers.get('content-type'), 'text/html; charset=utf-8');
    const policy = new Map(response.headers.get('content-security-policy')?.split('; ').map((directive) => {
      const [name = '', ...values] = directive.split(' ');
      return [name, values.join(' ')];
    }));
    const hashOf = (element: string): string => {
      const all = page.match(new RegExp(`(?<=<${element}\\b[^>]*>)[^]*?(?=</${element}>)`, 'g')) ?? [];
      assert.equal(all.length, 1, `one ${element}`);
      return `'sha256-${createHash('sha256').update(all[0] as string).digest('base64')}'`;
    };
    assert.equal(policy.get('default-src'), "'none'");
    assert.equal(policy.get('script-src'), hashOf('script'));
    assert.equal(policy.get('style-src'), hashOf('style'));
    assert.equal(policy.get('connect-src'), "'self'");
    for (const name of ['frame-ancestors', 'base-uri', 'form-action']) assert.equal(policy.get(name), "'none'", name);
    assert.doesNotMatch([...policy.values()].join(' '), /unsafe|\*|http|blob/);
    assert.doesNotMatch(page, /<\w[^>]* (?:src|action|on\w+)=|@import|url\(|https?:(?!\/\/www\.w3\.org\/2000\/svg)/);
  });

  it('ignores bodies, also large ones', async (t) => {
    const { server, port } = await startServer(t);
    const board = await startBoard(t, [`127.0.0.1:${port}`]);
    const headers = { Authorization: `Bearer ${board.key}` };
    const body = 'x'.repeat(10_000_000);
    const response = await fetch(`${board.url}api/systems/0/pause`, { method: 'POST', headers, body });
    assert.equal(response.status, 202);
    assert.equal(await server.nextCommand(), 'pause');
  });

  it('responds with news at once, or when there are some, or after the wait', async (t) => {
    const { server, port } = await startServer(t);
    const board = await startBoard(t, [`127.0.0.1:${port}`, NOWHERE]);
    await untilSystem(board, ({ status }) => status === 'active');
    await untilSystem(board, ({ status }) => status === 'offline', 1);
    const all = await newsOf(board, 0, 30);
    assert.deepEqual(all.systems.map(({ id }) => id), [0, 1]);
    assert.ok(Number.isSafeInteger(all.version) && Math.abs(all.now - Date.now()) < 5000);
    const settled = await untilQuiet(board);

    const start = performance.now();
    const none = await newsOf(board, settled, 1);
    assert.deepEqual(none.systems, []);
    assert.ok(none.version > settled && performance.now() - start > 900);
    assert.deepEqual((await newsOf(board, none.version)).systems, [], 'without a wait');

    const waiting = newsOf(board, none.version, 30);
    await board.post('/api/systems/0/save-state');
    const { systems: [first, ...others] } = await waiting;
    assert.ok(performance.now() - start < 15_000);
    assert.equal(first?.id, 0);
    assert.deepEqual(others, [], 'only what has changed');
    assert.equal(first?.sent[0]?.command, 'save-state');
    assert.equal(await server.nextCommand(), 'save-state');
  });

  it('tells all to a page whose version is from the future', async (t) => {
    const { port } = await startServer(t);
    const board = await startBoard(t, [`127.0.0.1:${port}`]);
    const { systems } = await newsOf(board, 999_999_999_999_999, 30);
    assert.equal(systems.length, 1);
  });

  it('goes on with its versions after a restart', async (t) => {
    const { port } = await startServer(t);
    const options = ['--listen', `127.0.0.1:${await freePort()}`, '--key-file', join(makeFolder(t), 'key')];
    const first = await startBoard(t, [`127.0.0.1:${port}`], options);
    await untilSystem(first, ({ status }) => status === 'active');
    const earlier = await newsOf(first);
    first.running.child.kill('SIGKILL');
    await first.running.ended;
    const second = await startBoard(t, [`127.0.0.1:${port}`], options);
    const later = await newsOf(second, earlier.version, 20);
    assert.equal(later.systems.length, 1);
    assert.ok(later.version > earlier.version);
    assert.notEqual(later.startedAt, earlier.startedAt);
  });

  it('tells a change of the status within the wait, with who and why', async (t) => {
    const { address, client } = await launchSystem(t);
    const board = await startBoard(t, [`127.0.0.1:${address.port}`]);
    await untilSystem(board, ({ status }) => status === 'active');
    const start = performance.now();
    let { version } = await newsOf(board);
    await client.request('pause', { by: 'ana@laptop', reason: 'lunch' });
    let system: Update | undefined;
    while (system?.status !== 'paused' || system.by === '') {
      const news = await newsOf(board, version, 30);
      ({ version } = news);
      system = news.systems[0] ?? system;
      assert.ok(performance.now() - start < 10_000);
    }
    const { by, reason, since, commands, process: where } = system;
    assert.deepEqual([by, reason], ['ana@laptop', 'lunch']);
    assert.ok(Math.abs(Number(since) - Date.now()) < 10_000);
    assert.match(where, new RegExp(`^process ${process.pid} on `));
    assert.ok(commands.length <= 1);
  });

  it('sends a command with who and why, and tells what becomes of it', async (t) => {
    const saved = defer<string>();
    t.after(() => saved.resolve(''));
    let isBroken = true;
    const { address } = await launchSystem(t, {
      saveState: () => (isBroken ? saved.promise : 'late'),
      onPaused: () => isBroken && assert.fail('GPU busy'),
    });
    const board = await startBoard(t, [`127.0.0.1:${address.port}`], [], { CONTROL_BY: 'ana@phone' });
    await untilSystem(board, ({ status }) => status === 'active');
    const response = await board.post('/api/systems/0/pause?reason=why%20not%3F');
    assert.deepEqual([response.status, await response.json()], [202, { result: 'sent' }]);
    const failed = await untilSystem(board, ({ sent: [first] }) => first?.state === 'failed');
    assert.match(failed.sent[0]?.text ?? '', /^not paused: onPaused failed: GPU busy$/);
    const { commands } = await getInfo(address.port);
    assert.deepEqual([commands[0]?.by, commands[0]?.reason], ['ana@phone', 'why not?']);
    isBroken = false;
    await board.post('/api/systems/0/save-state');
    const done = await untilSystem(board, ({ sent: [first] }) => first?.state === 'done');
    assert.match(done.sent[0]?.text ?? '', /^saved late \(\d+\.\d s\)$/);
    assert.deepEqual(done.sent.length, 1, 'only the latest of those that are done');
    await untilSystem(board, (system) => {
      const [latest, earlier] = system.commands as { command: string; state: string; by: string; value: string }[];
      return latest?.command === 'save-state' && latest.value === 'late' && earlier?.state === 'failed';
    });
    await board.post('/api/systems/0/shutdown');
    const ended = await untilSystem(board, ({ status, sent: [first] }) => {
      return status === 'offline' && first?.state === 'done';
    });
    assert.match(ended.sent[0]?.text ?? '', /^offline/);
    await board.post('/api/systems/0/shutdown');
    await untilSystem(board, ({ sent: [first] }) => first?.state === 'done' && /already offline$/.test(first.text));
    await board.post('/api/systems/0/resume');
    await untilSystem(board, ({ sent: [first] }) => first?.state === 'failed' && /ECONNREFUSED/.test(first.text));
  });

  it('tells that a command is sent until it is done, and that it is refused', async (t) => {
    const { server, port } = await startServer(t);
    const secret = await startServer(t, { token: TOKEN });
    const board = await startBoard(t, [`127.0.0.1:${port}`, `127.0.0.1:${secret.port}`]);
    await untilSystem(board, ({ status }) => status === 'missing or wrong token', 1);
    await board.post('/api/systems/1/pause');
    const refused = await untilSystem(board, ({ sent: [first] }) => first?.state === 'failed', 1);
    assert.match(refused.sent[0]?.text ?? '', /Missing or wrong token/);
    await board.post('/api/systems/0/save-state');
    await server.nextCommand();
    const pending = await untilSystem(board, ({ sent: [first] }) => first?.state === 'sent');
    const shown = pending.sent.map(({ command, state, text }) => [command, state, text]);
    assert.deepEqual(shown, [['save-state', 'sent', '']]);
    server.report({ value: 'states/1.json' });
    const done = await untilSystem(board, ({ sent: [first] }) => first?.state === 'done');
    assert.match(done.sent[0]?.text ?? '', /^saved states\/1\.json \(\d+\.\d s\)$/);
  });

  it('takes any reason', async (t) => {
    const { server, port } = await startServer(t);
    const board = await startBoard(t, [`127.0.0.1:${port}`]);
    const lone = '%ED%A0%80%FF%00';
    for (const [query, reason] of [
      ['reason=a%26b%3Dc+d', 'a&b=c d'], ['reason=why?', 'why?'], ['reason=a?b=?', 'a?b=?'], ['reason=%', '%'],
      ['', undefined], ['reason=', undefined], [`reason=${'x'.repeat(5000)}`, 'x'.repeat(200)],
      ['reason=first&reason=second', 'first'], ['by=eve&reason=x', 'x'], [`reason=${lone}`, /^\ufffd+ ?$/],
      [`reason=${encodeURIComponent('<img src=x onerror=alert(1)>')}`, '<img src=x onerror=alert(1)>'],
    ] as [string, string | RegExp | undefined][]) {
      const response = await exchange(board.port, 'POST', `/api/systems/0/pause?${query}`, {
        Host: 'localhost', Authorization: `Bearer ${board.key}`,
      });
      assert.equal(response.status, 202, query);
      assert.equal(await server.nextCommand(), 'pause');
      const command = (await getInfo(port)).commands.at(-1);
      if (reason instanceof RegExp) assert.match(command?.reason ?? '', reason);
      else assert.equal(command?.reason, reason, query);
      assert.notEqual(command?.by, 'eve');
      server.report({});
    }
  });

  it('sends a command to all systems but those that are offline', async (t) => {
    const servers = [await startServer(t), await startServer(t), await startServer(t)];
    const board = await startBoard(t, [...servers.map(({ port }) => `127.0.0.1:${port}`), NOWHERE]);
    await untilSystem(board, ({ status }) => status === 'offline', 3);
    assert.equal((await board.post('/api/systems/pause?reason=lunch')).status, 202);
    for (const { server, port } of servers) {
      assert.equal(await server.nextCommand(), 'pause');
      assert.equal((await getInfo(port)).commands[0]?.reason, 'lunch');
    }
    await board.post('/api/systems/1/resume');
    assert.equal(await servers[1]?.server.nextCommand(), 'resume');
    assert.ok([0, 1, 2].every((index) => servers[index]?.server.hasCommands() === false));
    assert.deepEqual((await newsOf(board)).systems[3]?.sent, []);
  });

  it('delivers each of many commands once', async (t) => {
    const COUNT = 40; // a system accepts 64 connections
    const { server, port } = await startServer(t, { maxQueueSize: COUNT });
    const board = await startBoard(t, [`127.0.0.1:${port}`]);
    let taken = 0;
    let isOver = false;
    const taking = (async () => {
      for (; !isOver; await sleep(2)) {
        while (server.hasCommands()) {
          server.receiveCommand();
          server.report({});
          taken += 1;
        }
      }
    })();
    const responses = await Promise.all(Array.from({ length: COUNT }, (_, index) => {
      return board.post(`/api/systems/0/save-state?reason=${index}`);
    }));
    assert.deepEqual(new Set(responses.map(({ status }) => status)), new Set([202]));
    const { sent } = await untilSystem(board, (system) => system.sent.every(({ state }) => state !== 'sent'));
    assert.deepEqual(sent.filter(({ state }) => state !== 'done'), []);
    isOver = true;
    await taking;
    assert.equal(taken, COUNT);
  });
});

// ───── Requests ──────────────────────────────────────────────────────────────────────────────────────────────────

/** Waits until nothing has changed for a second. Returns the version. */
async function untilQuiet(board: StartedBoard): Promise<number> {
  let { version } = await newsOf(board);
  await until(async () => {
    const news = await newsOf(board, version, 1);
    ({ version } = news);
    return news.systems.length === 0;
  });
  return version;
}

interface RawResponse {
  status: number;
  headers: Record<string, string>;
  body: string;
  text: string;
}

/** Unlike fetch, sends the path and Host as they are. */
async function exchange(
  port: number,
  method: string,
  path: string,
  fields: Record<string, string>,
): Promise<RawResponse> {
  const socket = connect(port, '127.0.0.1');
  const lines = Object.entries({ ...fields, Connection: 'close' }).map(([name, value]) => `${name}: ${value}`);
  socket.write(head(`${method} ${path}`, ...lines));
  let text = '';
  for await (const chunk of socket.setEncoding('utf8')) text += chunk;
  const [, status, rest = '', body = ''] = /^HTTP\/1\.1 (\d+) .*\r\n([^]*?)\r\n\r\n([^]*)$/.exec(text) ?? [];
  const headers = Object.fromEntries(rest.split('\r\n').map((line) => {
    const colon = line.indexOf(': ');
    return [line.slice(0, colon).toLowerCase(), line.slice(colon + 2)];
  }));
  return { status: Number(status), headers, body, text };
}

/** What every response must have. */
function checkResponse({ status, headers, body }: RawResponse, method: string): void {
  assert.equal(headers['cache-control'], 'no-store');
  assert.equal(headers['cross-origin-resource-policy'], 'same-origin');
  assert.equal(headers['referrer-policy'], 'no-referrer');
  assert.equal(headers['x-content-type-options'], 'nosniff');
  assert.ok(Object.keys(headers).every((name) => !/^access-control|^set-cookie|^server|^x-powered/.test(name)));
  assert.equal(headers['www-authenticate'], status === 401 ? 'Bearer' : undefined);
  assert.equal(headers['allow'] !== undefined, status === 405);
  const length = Number(headers['content-length']);
  if (method === 'HEAD') return assert.ok(body === '' && length > 0);
  assert.equal(length, Buffer.byteLength(body));
  if (headers['content-type']?.startsWith('text/html') === true) return assert.ok(headers['content-security-policy']);
  assert.equal(headers['content-type'], 'application/json');
  const value = JSON.parse(body) as Record<string, unknown>;
  if (status >= 400) assert.deepEqual(Object.keys(value), ['error']);
}

function ownAddresses(): string[] {
  return Object.values(networkInterfaces()).flat().flatMap((entry) => {
    return entry === undefined || entry.internal || entry.address.startsWith('fe80:') ? [] : [entry.address];
  });
}
