// The command line of control-board: what it refuses, where it listens, its targets and its keys.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { chmodSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer as createWebServer } from 'node:http';
import { type AddressInfo, connect, createServer, isIPv4 } from 'node:net';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { parseCommandLine, setUp, type Setup } from '../../../board/options.ts';
import { UsageError } from '../../../shared/cli.ts';
import { type Ended, makeFolder, makeSocketPath, runProgram, startServer, startSystem, TOKEN } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { startWeb } from '../client/systems.ts';
import { exchange, NOWHERE, ownAddresses, startBoard, untilSystem, untilSystems } from './helpers.ts';

const KEY = 'a-key-of-22-characters';

describe('The command line of control-board', LIMIT, () => {
  const WRONG: [message: string | RegExp, args: string[]][] = [
    ["the host of --listen ':80' must be a host name or an IP address, got ''", ['--listen', ':80']],
    [/^the (host|port) of --listen 'http:.* must be .*, got '/, ['--listen', 'http://localhost:8390']],
    ["the host of --listen 'a b:80' must be a host name or an IP address, got 'a b'", ['--listen', 'a b:80']],
    ["the port of --listen 'box:65536' must be an integer from 0 to 65535, got '65536'", ['--listen', 'box:65536']],
    ['--port is no option: write --listen localhost:9000 for the page, or the target :9000 for a system',
      ['--port', '9000']],
    ['--host is no option: write --listen gpu1:8390 for the page, or the target gpu1:8391 for a system',
      ['--host', 'gpu1']],
    ["unknown option '--prot'; see --help", ['--prot', '9000']],
    ['--socket is no option: write the target unix:/run/x.sock', ['--socket', '/run/x.sock']],
    [/^--allow-host must be .*, got 'http:\/\/box'$/, ['--allow-host', 'http://box']],
    [/^--allow-host must be .*, got ''$/, ['--allow-host=']],
    ['--key-file must not be empty', ['--key-file=']],
    [/^there is no system '80' in '[^']+'.*; an address has a port, such as gpu1:8391 or :9000$/, ['80']],
    ['--view-key-file must not be empty', ['--view-key-file=']],
    [/^cannot use the targets file '\/nowhere\/targets': ENOENT: no such file or directory, stat /,
      ['--targets', '/nowhere/targets']],
    ['--dir must not be empty', ['--dir=']],
    [/^--dir must be a folder that can be read, got '\/nowhere': ENOENT: /, ['--dir', '/nowhere', NOWHERE]],
    [/^--dir must be a folder that can be read, got 'package\.json': ENOTDIR: /, [NOWHERE, '--dir', 'package.json']],
  ];

  it('is refused with the option, the expected value and the given one', async () => {
    for (const [message, args] of WRONG) await refuses(args, message);
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

  it('fails if another program listens on ::1 only', { skip: lacks('IPv6') }, async (t) => {
    const server = createServer().listen(0, '::1');
    t.after(() => server.close());
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    const systemPort = await startSystem(t); // the board already follows it
    const args = ['--listen', `localhost:${port}`, `127.0.0.1:${systemPort}`];
    const { code, stdout, stderr } = await runProgram(t, 'board', args);
    assert.deepEqual([code, stdout], [1, '']);
    assert.match(stderr, /^control-board: cannot listen on localhost:\d+: the port is in use; --listen .*\n$/);
  });

  it('fails if the port is in use, and neither follows redirects nor reads long responses from there', async (t) => {
    let isEndless = false;
    const elsewhere = await startWeb(t);
    const server = createWebServer(({ url }, response) => {
      if (isEndless) response.write('<title>control-board</title>');
      else response.writeHead(302, { Location: `http://${elsewhere.target}${url}` }).end();
    });
    t.after(() => server.close().closeAllConnections());
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const { port } = server.address() as AddressInfo;
    const run = (): Promise<Ended> => runProgram(t, 'board', [`--listen=127.0.0.1:${port}`, NOWHERE]);
    assert.match((await run()).stderr, /: the port is in use; --listen 127\.0\.0\.1:0 picks a free one\n$/);
    isEndless = true;
    assert.match((await run()).stderr, /: the port is in use by another control-board; /);
    assert.deepEqual(elsewhere.requests, []);
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

describe('--key-file of control-board', { ...LIMIT, skip: lacks('Unix') }, () => {
  it('must differ from --view-key-file', async (t) => {
    const path = join(makeFolder(t), 'key');
    const message = `--view-key-file must hold another key than --key-file: '${path}'`;
    await refuses(['--key-file', path, '--view-key-file', path], message);
    await refuses(['--view-key-file', join(path, 'x')], /^cannot create the key file .*: ENOTDIR/);
    const { key, viewKey } = await setUpWith(['--view-key-file', path, NOWHERE]);
    assert.ok(viewKey === readFileSync(path, 'utf8').trim() && viewKey !== key);
  });

  it('may be written by hand, and is otherwise refused with the reason and left unchanged', async (t) => {
    const folder = makeFolder(t);
    const path = join(folder, 'key');
    const write = (text: string, mode = 0o600): void => {
      rmSync(path, { force: true, recursive: true });
      writeFileSync(path, text);
      chmodSync(path, mode);
    };
    write(`  ${KEY}\r\n\n`);
    assert.equal((await setUpWith(['--key-file', path, NOWHERE])).key, KEY);
    for (const [mode, problem] of [
      [0o640, 'others can read it; chmod go-r'], [0o604, 'others can read it; chmod go-r'],
      [0o620, 'others can write to it; chmod go-w'],
    ] as const) {
      write(KEY, mode);
      await refuses(['--key-file', path], `cannot use the key file '${path}': ${problem} '${path}'`);
    }
    for (const text of ['', KEY.slice(1), `${KEY}\n${KEY}`, `${KEY}+`, 'ö'.repeat(30)]) {
      write(text);
      await refuses(['--key-file', path], `the key in '${path}' must be 22 or more letters, digits, - and _`);
      assert.equal(readFileSync(path, 'utf8'), text);
    }
    rmSync(path);
    symlinkSync(join(folder, 'none'), path);
    await refuses(['--key-file', path], /^cannot use the key file .*: ENOENT/);
    await refuses(['--key-file', folder], /^cannot use the key file .*: it is not a file$/);
    await refuses(['--key-file', join(folder, 'none', 'key')], /^cannot create the key file .*: ENOENT/);
  });
});

async function setUpWith(args: string[]): Promise<Setup> {
  return setUp(parseCommandLine(args) ?? assert.fail(), 1000);
}

async function refuses(args: string[], message: string | RegExp): Promise<void> {
  await assert.rejects(setUpWith(args), (error) => {
    assert.ok(error instanceof UsageError, String(error));
    if (typeof message === 'string') assert.equal(error.message, message);
    else assert.match(error.message, message);
    return true;
  });
}
