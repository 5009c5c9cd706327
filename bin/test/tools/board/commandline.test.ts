// The command line of control-board: what it refuses, where it listens, its targets and its keys.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { chmodSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer as createWebServer } from 'node:http';
import { type AddressInfo, connect, createServer, isIPv4 } from 'node:net';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { makeFolder, makeSocketPath, runProgram, startServer, startSystem, TOKEN } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { startWeb } from '../../puppet.ts';
import { END_MS, LIMIT, until } from '../../wait.ts';
import { exchange, NOWHERE, ownAddresses, refuses, startBoard, untilSystem, untilSystems } from './helpers.ts';
import type { Refusal } from './helpers.ts';

const KEY = 'a-key-of-22-characters';
const KEY_FORM = 'must be 22 or more letters, digits, - and _';

describe('The command line of control-board', LIMIT, () => {
  it('is refused with the option, the expected value and the given one', async (t) => {
    await refuses(t, 'board', [
      [['--listen', ':80'], "the host of --listen ':80' must be a host name or an IP address, got ''"],
      [['--listen', '9000'], "--listen must be HOST or HOST:PORT, such as localhost:9000, got '9000'"],
      [['--listen', 'http://localhost:8390'], /^the (host|port) of --listen 'http:.* must be .*, got '/],
      [['--listen', 'a b:80'], "the host of --listen 'a b:80' must be a host name or an IP address, got 'a b'"],
      [['--listen', '\x1b[2J:80'],
        "the host of --listen ' [2J:80' must be a host name or an IP address, got '\\x1B[2J:80'"],
      [['--listen', 'box:65536'], "the port of --listen 'box:65536' must be an integer from 0 to 65535, got '65536'"],
      [['--port', '9000'],
        '--port is no option: write --listen localhost:9000 for the page, or the target :9000 for a system'],
      [['--host', 'gpu1'],
        '--host is no option: write --listen gpu1:8390 for the page, or the target gpu1:8391 for a system'],
      [['--socket', '/run/x.sock'], '--socket is no option: write the target unix:/run/x.sock'],
      [['--prot', '9000'], "unknown option '--prot'; see --help"],
      [['--allow-host', 'http://box'], /^--allow-host must be .*, got 'http:\/\/box'$/],
      [['--allow-host='], /^--allow-host must be .*, got ''$/],
      [['--key-file='], '--key-file must not be empty'], [['--view-key-file='], '--view-key-file must not be empty'],
      [['80'], /^there is no system '80' in '[^']+'.*; an address has a port, such as gpu1:8391 or :9000$/],
      [['--targets', '/nowhere/targets'],
        /^cannot use the targets file '\/nowhere\/targets': ENOENT: no such file or directory, stat /],
      [['--dir='], '--dir must not be empty'],
      [['--dir', '/nowhere', NOWHERE], /^--dir must be a folder that can be read, got '\/nowhere': ENOENT: /],
      [[NOWHERE, '--dir', 'package.json'], /^--dir must be a folder that can be read, got 'package\.json': ENOTDIR: /],
    ]);
  });

  it('is refused if a key file is none, which stays as it is', { skip: lacks('Unix') }, async (t) => {
    const folder = makeFolder(t);
    const fileOf = (name: string, text: string, mode: number = 0o600): string => {
      writeFileSync(join(folder, name), text);
      chmodSync(join(folder, name), mode);
      return join(folder, name);
    };
    mkdirSync(join(folder, 'folder'));
    symlinkSync(join(folder, 'none'), join(folder, 'link'));
    const hand = fileOf('hand', `  ${KEY}\r\n\n`);
    const weak = ['', KEY.slice(1), `${KEY}\n${KEY}`, `${KEY}+`, 'ö'.repeat(30)];
    const open: [mode: number, problem: string][] = [
      [0o640, 'others can read it; chmod go-r'], [0o604, 'others can read it; chmod go-r'],
      [0o620, 'others can write to it; chmod go-w'],
    ];
    await refuses(t, 'board', [
      [['--key-file', hand, '--view-key-file', hand],
        `--view-key-file must hold another key than --key-file: '${hand}'`],
      ...open.map(([mode, problem]): Refusal => {
        const path = fileOf(`${mode}`, KEY, mode);
        return [['--key-file', path], `cannot use the key file '${path}': ${problem} '${path}'`];
      }),
      ...weak.map((text, index): Refusal => {
        const path = fileOf(`weak-${index}`, text);
        return [['--key-file', path], `the key in '${path}' ${KEY_FORM}`];
      }),
      [['--key-file', join(folder, 'link')], /^cannot use the key file .*: ENOENT/],
      [['--key-file', join(folder, 'folder')], /^cannot use the key file .*: it is not a file$/],
      [['--key-file', join(folder, 'none', 'key')], /^cannot create the key file .*: ENOENT/],
      [['--view-key-file', join(hand, 'key')], /^cannot create the key file .*: ENOTDIR/],
    ]);
    for (const [index, text] of weak.entries()) assert.equal(readFileSync(join(folder, `weak-${index}`), 'utf8'), text);
    assert.equal((await startBoard(t, [NOWHERE], ['--key-file', hand])).key, KEY, 'one that is written by hand');
  });
});

describe('The systems of control-board', LIMIT, () => {
  it('receive the tokens of their lines, or else the one in the environment', async (t) => {
    const folder = makeFolder(t);
    const [own, common] = [await startServer(t, { token: `${TOKEN}-own` }), await startServer(t, { token: TOKEN })];
    writeFileSync(join(folder, 'token'), `${TOKEN}-own\n`, { mode: 0o600 });
    const lines = [`127.0.0.1:${own.port} token-file=token`, `127.0.0.1:${common.port}`, `localhost:${own.port}`];
    writeFileSync(join(folder, 'targets'), lines.join('\n'), { mode: 0o644 });
    const board = await startBoard(t, [], ['--targets', join(folder, 'targets')], { CONTROL_TOKEN: TOKEN });
    await untilSystems(board, (systems) => {
      return systems.map(({ status }) => status).join() === 'active,active,missing or wrong token';
    });
  });

  it('default to the one at the address in the environment', { skip: lacks('Unix') }, async (t) => {
    const socketPath = makeSocketPath(t);
    await startServer(t, { socketPath, token: TOKEN });
    const board = await startBoard(t, [], [], { CONTROL_SOCKET: socketPath, CONTROL_TOKEN: TOKEN });
    const { target } = await untilSystem(board, ({ status }) => status === 'active');
    assert.equal(target, `unix:${socketPath}`);
  });
});

describe('--listen of control-board', LIMIT, () => {
  it('listens on all addresses of localhost with the same port, and on no others', async (t) => {
    const { port, key } = await startBoard(t, [NOWHERE], ['--listen', 'LOCALHOST:0']);
    for (const host of ['127.0.0.1', ...(lacks('IPv6') === false ? ['[::1]'] : [])]) {
      const headers = { Authorization: `Bearer ${key}` };
      assert.equal((await fetch(`http://${host}:${port}/api/systems`, { headers })).status, 200, host);
    }
    for (const address of ownAddresses()) {
      const [error] = await once(connect(port, address), 'error').catch((reason) => [reason]);
      assert.equal((error as NodeJS.ErrnoException).code, 'ECONNREFUSED', address);
    }
  });

  it('fails if the port is in use, if only on ::1, and trusts nothing that listens there', async (t) => {
    let isEndless = false;
    const elsewhere = await startWeb(t);
    const server = createWebServer(({ url }, response) => {
      if (isEndless) response.write('<title>control-board</title>');
      else response.writeHead(302, { Location: `http://${elsewhere.target}${url}` }).end();
    });
    t.after(() => server.close().closeAllConnections());
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const run = async (host: string, port: number, target: string = NOWHERE): Promise<string> => {
      const { code, stdout, stderr } = await runProgram(t, 'board', [`--listen=${host}:${port}`, target]);
      assert.deepEqual([code, stdout], [1, '']);
      return stderr.replaceAll(String(port), 'PORT');
    };
    const { port } = server.address() as AddressInfo;
    const problem = 'control-board: cannot listen on 127.0.0.1:PORT: the port is in use';
    const advice = '; --listen 127.0.0.1:0 picks a free one\n';
    assert.equal(await run('127.0.0.1', port), problem + advice);
    isEndless = true;
    let said = '';
    const line = `${problem} by another control-board${advice}`; // on a busy machine, not the first time
    await until(async () => (said = await run('127.0.0.1', port)) === line, () => said, END_MS);
    assert.deepEqual(elsewhere.requests, []);
    if (lacks('IPv6') !== false) return;
    const other = createServer().listen(0, '::1');
    t.after(() => other.close());
    await once(other, 'listening');
    const target = `127.0.0.1:${await startSystem(t)}`; // which the board already follows
    assert.match(await run('localhost', (other.address() as AddressInfo).port, target), /: the port is in use; /);
  });

  it('warns that nothing is encrypted on 0.0.0.0, and prints the addresses of this machine', async (t) => {
    const { running, port, key } = await startBoard(t, [NOWHERE], ['--listen', '0.0.0.0:0']);
    const { child, ended } = running;
    const [first = '', ...urls] = running.output().match(/http:\/\/\S+/g) ?? [];
    assert.equal(first, `http://localhost:${port}/#${key}`);
    const own = ownAddresses().filter(isIPv4);
    assert.deepEqual(urls, own.map((address) => `http://${address}:${port}/#${key}`));
    for (const url of [first, ...urls]) assert.equal((await fetch(url)).status, 200, url);
    assert.equal((await exchange(port, 'GET /', 'Host: 0.0.0.0')).status, 403, 'a page could use this name');
    child.kill();
    const { stdout, stderr } = await ended;
    assert.match(stderr, /^control-board: nothing is encrypted: others on the network can read the key .*\n$/);
    const columns = stdout.trimEnd().split('\n').map((line) => line.indexOf('http://'));
    assert.deepEqual(new Set(columns), new Set([columns[0]]), 'the addresses stand below each other');
  });

  it('may be an IPv6 address', { skip: lacks('IPv6') }, async (t) => {
    const { running, url, port, get } = await startBoard(t, [NOWHERE], ['--listen', '[::1]:0']);
    assert.equal(url, `http://[::1]:${port}/`);
    assert.equal((await get('/api/systems')).status, 200);
    assert.doesNotMatch(running.output(), /encrypted/);
    const { running: other } = await startBoard(t, [NOWHERE], ['--listen', '[::]:0']);
    assert.match(other.output(), /nothing is encrypted/);
    assert.match(other.output(), /http:\/\/localhost:/);
    assert.doesNotMatch(other.output(), /fe80|\[::\]/);
  });
});
