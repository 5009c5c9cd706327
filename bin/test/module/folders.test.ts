// A folder of Unix sockets: the names of the servers in it, and that they leave everything else in it alone.

import assert from 'node:assert/strict';
import { chmodSync, existsSync, lstatSync, mkdirSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { basename, dirname, join, parse, relative } from 'node:path';
import { describe, it } from 'node:test';
import { inspect } from 'node:util';
import {
  LIMIT, collectThreads, collectWarnings, makeFolder, startForeign, startServer, takeAll, until,
} from '../helpers.ts';
import { runHost } from '../host.ts';
import { HOST, PAUSE, STATUS, ask } from '../http.ts';
import { becomeNobody, contentsOf, leaveSocket } from './helpers.ts';
import { NAMESPACE, lacks } from '../needs.ts';
import { SystemStatus, WebApiClient, WebApiServer } from '../../../control.ts';

const { ACTIVE, PAUSED, OFFLINE } = SystemStatus;

const SUITE = { ...LIMIT, skip: lacks('Unix'), concurrency: 4 };
const { pid } = process;
const DEAD = 2_000_000_000; // no kernel assigns so high a process id

describe('The socket in a folder', SUITE, () => {
  it('is named after the program and its process', async (t) => {
    const folder = makeFolder(t);
    for (const [name, expected] of [
      [undefined, parse(process.argv[1] ?? '').name],
      ['Pole_2.v-1', 'Pole_2.v-1'],
      ['', ''],
      ['../a b/c', '.._a_b_c'],
      ['ü\n\0$(x)*?', '_____x___'],
      ['x'.repeat(32) + 'y', 'x'.repeat(32)],
    ] as const) {
      const { server, address, client } = await startServer(t, { socketPath: `${folder}/`, name });
      const socketPath = `${folder}/${expected}-${pid}.sock`;
      assert.deepEqual(address, { host: 'localhost', port: 0, socketPath });
      assert.deepEqual(readdirSync(folder), [basename(socketPath)]);
      assert.equal(lstatSync(socketPath).mode & 0o777, 0o600);
      assert.equal(await client.pause(), 'ok', inspect(name));
      assert.deepEqual(takeAll(server), ['pause']);
      await server.close();
      assert.deepEqual(readdirSync(folder), []);
    }
  });

  it('has an absolute path; creates a missing folder for its user only, but no parent', async (t) => {
    const parent = makeFolder(t);
    chmodSync(parent, 0o755);
    mkdirSync(join(parent, 'old'), 0o750);
    symlinkSync('old', join(parent, 'link'));
    for (const [socketPath, folder, mode] of [
      [`${parent}/new/`, 'new', '40700'],
      [`${relative(process.cwd(), parent)}/x/..//ü 'a' $(b)/`, "ü 'a' $(b)", '40700'],
      [`${parent}/old/`, 'old', '40750'],
      [`${parent}/link/`, 'link', '120777'],
    ] as const) {
      const { server, address, client } = await startServer(t, { socketPath, name: 'a' });
      const path = join(parent, folder);
      assert.equal(address.socketPath, join(path, `a-${pid}.sock`));
      assert.equal(await client.getStatus(), ACTIVE);
      assert.equal(lstatSync(path).mode.toString(8), mode, folder);
      await server.close();
      assert.deepEqual(readdirSync(path), [], 'the folder stays');
    }
    assert.equal(lstatSync(parent).mode, 0o40755);
  });

  it('is not created if the folder is impossible; nothing changes there', async (t) => {
    const parent = makeFolder(t);
    writeFileSync(join(parent, 'file'), 'precious');
    symlinkSync('nowhere', join(parent, 'dangling'));
    for (const [folder, code] of [
      ['nowhere/folder', /^ENOENT$/], ['dangling', /^(ENOENT|EEXIST)$/], ['file', /^(ENOTDIR|EEXIST)$/],
    ] as const) {
      const before = contentsOf(parent);
      const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath: join(parent, folder, '/'), name: 'a' });
      t.after(() => server.close());
      await assert.rejects(server.runInBackground(), (error: NodeJS.ErrnoException) => {
        const [, path] = /^Cannot serve at (.*): E[A-Z]+: [^\n]+$/.exec(error.message) ?? [];
        assert.equal(path, join(parent, folder, `a-${pid}.sock`), error.message);
        return code.test(String(error.code));
      });
      assert.deepEqual(contentsOf(parent), before);
    }
  });

  it('is not created without permission; nothing changes until there is permission', async (t) => {
    const folder = makeFolder(t);
    const host = runHost(t, `
      import { chmodSync, readdirSync, statSync } from 'node:fs';
      ${becomeNobody(folder)}
      process.umask(0);
      const folder = ${JSON.stringify(folder)};
      const inner = folder + '/made/';
      const create = (socketPath) => new WebApiServer({ systemStatus: () => ACTIVE, socketPath, name: 'a' });
      const fail = (socketPath) => create(socketPath).runInBackground().catch(({ code }) => code);
      const server = create(inner);
      await server.runInBackground();
      await server.close();
      chmodSync(inner, 0o500);
      say([await fail(inner), readdirSync(inner)]);
      chmodSync(folder, 0o500);
      say([await fail(folder + '/new/'), readdirSync(folder), statSync(inner).mode]);
      chmodSync(inner, 0o700);
      const last = create(inner);
      await last.runInBackground();
      await last.close();
      say(readdirSync(inner));
      chmodSync(folder, 0o700);
    `);
    await host.ends(['EACCES', []], ['EACCES', ['made'], 0o40500], []);
  });

  it('has a path of at most 94 bytes, with its name', async (t) => {
    const parent = makeFolder(t);
    const file = `/n-${pid}.sock`;
    const longest = `${parent}/ü`.padEnd(93 - file.length, 'x'); // 93 characters with the name, 94 bytes
    const { address: { socketPath = '' }, client } = await startServer(t, { socketPath: `${longest}/`, name: 'n' });
    assert.equal(Buffer.byteLength(socketPath), 94);
    assert.equal(await client.getStatus(), ACTIVE);
    for (const [folder, name] of [[`${longest}x`, 'n'], [longest, 'nn'], [`${parent}/\0`, 'n']] as const) {
      const got = inspect(`${folder}/${name}-${pid}.sock`);
      const message = `socketPath must be at most 94 bytes long, without NUL, got ${got}`;
      const make = (): unknown => new WebApiServer({ systemStatus: () => ACTIVE, socketPath: `${folder}/`, name });
      assert.throws(make, { name: 'RangeError', message });
    }
    assert.deepEqual(readdirSync(parent), [basename(longest)]);
  });

  it('is unique in a process: a second server of the same name is refused', async (t) => {
    const socketPath = `${makeFolder(t)}/`;
    const { server, client } = await startServer(t, { socketPath, name: 'a b' });
    const second = new WebApiServer({ systemStatus: () => PAUSED, socketPath, name: 'a_b' }); // of the same NAME
    t.after(() => second.close());
    await assert.rejects(second.runInBackground(), { code: 'EADDRINUSE' });
    const other = await startServer(t, { socketPath, name: 'a', systemStatus: () => PAUSED });
    assert.deepEqual([await client.getStatus(), await other.client.getStatus()], [ACTIVE, PAUSED]);
    await server.close();
    await second.runInBackground();
    assert.equal(await client.getStatus(), PAUSED);
    assert.deepEqual(readdirSync(socketPath).sort(), [`a-${pid}.sock`, `a_b-${pid}.sock`]);
  });
});

describe('A socket besides host and port', { ...SUITE, concurrency: 1 }, () => {
  it('serves the same system, and a request through the port must name an allowed host', async (t) => {
    const folder = makeFolder(t);
    const options = { socketPath: `${folder}/`, name: 'a', port: 0 };
    const { server, address: { host, port, socketPath = '' } } = await startServer(t, options);
    assert.deepEqual([host, socketPath], ['localhost', join(folder, `a-${pid}.sock`)]);
    for (const where of [port, socketPath]) assert.equal((await ask(where, PAUSE, HOST)).statusCode, 200);
    assert.deepEqual(takeAll(server), ['pause', 'pause']);
    for (const [where, expected] of [[socketPath, 200], [port, 403]] as const) {
      assert.equal((await ask(where, PAUSE, 'Host: any.name')).statusCode, expected);
    }
    await server.close();
    assert.equal(await new WebApiClient(host, port).getStatus(), OFFLINE);
    assert.deepEqual(readdirSync(folder), []);
  });

  it('is not created if the port is in use', async (t) => {
    const { port } = await startServer(t);
    const folder = makeFolder(t);
    const options = { port, socketPath: `${folder}/`, name: 'second' };
    const second = new WebApiServer({ systemStatus: () => PAUSED, ...options });
    await assert.rejects(second.runInBackground(), { code: 'EADDRINUSE' });
    assert.deepEqual(readdirSync(folder), []);
  });

  it('and the port are back after the death of the thread', async (t) => {
    const workers = collectThreads(t);
    const folder = makeFolder(t);
    collectWarnings(t);
    const { address } = await startServer(t, { socketPath: `${folder}/`, port: 0 });
    await workers[0]?.terminate();
    for (const where of [address.port, address.socketPath ?? '']) {
      await until(async () => (await ask(where, STATUS, HOST).catch(() => null))?.statusCode === 200);
    }
    assert.deepEqual(readdirSync(folder), [basename(address.socketPath ?? '')]);
  });
});

describe('A server in a folder of sockets', SUITE, () => {
  it('leaves everything else as it is, also sockets of dead servers of its name', async (t) => {
    const folder = makeFolder(t);
    const dead = (more: number): string => join(folder, `a-${DEAD + more}.sock`);
    for (const more of [0, 1]) await leaveSocket(dead(more));
    writeFileSync(dead(2), 'precious');
    mkdirSync(dead(3));
    symlinkSync('nowhere', dead(4));
    symlinkSync(dead(0), dead(5));
    await startForeign(t, (socket) => socket.destroy(), dead(6)); // as of another PID namespace
    for (const name of [`a-${process.ppid}.sock`, `.a-${pid}.sock`, `a-${pid}.sock.old`]) {
      await leaveSocket(join(folder, name));
    }
    const before = contentsOf(folder);
    const { server, client } = await startServer(t, { socketPath: `${folder}/`, name: 'a' });
    assert.equal(await client.getStatus(), ACTIVE);
    await server.close();
    assert.deepEqual(contentsOf(folder), before);
  });

  it('replaces the socket of a dead server of its name and process id', async (t) => {
    const folder = makeFolder(t);
    await leaveSocket(join(folder, `a-${pid}.sock`));
    const { server, client } = await startServer(t, { socketPath: `${folder}/`, name: 'a' });
    assert.equal(await client.getStatus(), ACTIVE);
    await server.close();
    assert.deepEqual(readdirSync(folder), []);
  });
});

describe('Many servers in a folder', { ...SUITE, concurrency: 2 }, () => {
  it('start at once in several programs, in a folder they create; a killed one leaves its socket', async (t) => {
    const folder = join(makeFolder(t), 'folder');
    const hosts = Array.from({ length: 4 }, () => runHost(t, `
      const [socketPath, name] = ${JSON.stringify([`${folder}/`, 'a'])};
      const server = new WebApiServer({ systemStatus: () => PAUSED, socketPath, name });
      say('ready');
      halt();
      say((await server.runInBackground()).socketPath);
      say(await server.nextCommand());
      await server.close();
    `));
    for (const host of hosts) assert.equal(await host.hear(), 'ready');
    for (const host of hosts) host.release();
    const paths = await Promise.all(hosts.map((host) => host.hear<string>()));
    assert.deepEqual(readdirSync(folder).sort(), paths.map((path) => basename(path)).sort());
    hosts[0]?.process.kill('SIGKILL');
    await hosts[0]?.ended;
    for (const [index, socketPath] of paths.entries()) {
      const client = new WebApiClient(undefined, undefined, { socketPath });
      assert.equal(await client.getStatus(), index === 0 ? OFFLINE : PAUSED, socketPath);
      assert.equal(await client.pause(), index === 0 ? null : 'ok');
    }
    for (const host of hosts.slice(1)) await host.ends('pause');
    assert.deepEqual(readdirSync(folder), [basename(String(paths[0]))]);
  });

  it('may be in separate PID namespaces: live ones keep their sockets', {
    skip: lacks('namespace'),
  }, async (t) => {
    const folder = makeFolder(t);
    const source = `
      const [socketPath, name] = ${JSON.stringify([`${folder}/`, 'a'])};
      const server = new WebApiServer({ systemStatus: () => PAUSED, socketPath, name });
      const { socketPath: path = null, code } = await server.runInBackground().catch((error) => error);
      say([path ?? code, process.pid]);
      if (path !== null) await server.nextCommand();
      await server.close();
    `;
    const { address: { socketPath = '' }, client } = await startServer(t, { socketPath: `${folder}/`, name: 'a' });
    const inner = join(folder, 'a-1.sock');
    const first = runHost(t, source, [], NAMESPACE);
    assert.deepEqual(await first.hear(), [inner, 1]); // this process does not exist in there
    assert.deepEqual(readdirSync(folder).sort(), ['a-1.sock', basename(socketPath)].sort());
    assert.equal(await client.getStatus(), ACTIVE);

    const second = runHost(t, source, [], NAMESPACE); // PID 1, too
    assert.deepEqual(await second.hear(), ['EADDRINUSE', 1]);
    await second.ends();
    const firstClient = new WebApiClient(undefined, undefined, { socketPath: inner });
    assert.equal(await firstClient.getStatus(), PAUSED);
    first.process.kill('SIGKILL');
    await first.ended;
    assert.equal(await firstClient.getStatus(), OFFLINE);

    const third = runHost(t, source, [], NAMESPACE);
    assert.deepEqual(await third.hear(), [inner, 1]);
    assert.deepEqual(readdirSync(folder).sort(), ['a-1.sock', basename(socketPath)]);
    assert.equal(await firstClient.pause(), 'ok');
    await third.ends();
    assert.equal(await client.getStatus(), ACTIVE);
  });
});

describe('A server in a folder that is removed', { ...SUITE, concurrency: 1 }, () => {
  it('closes anyway; if its thread dies, it is restarted at the same path', async (t) => {
    const warnings = collectWarnings(t);
    const workers = collectThreads(t);
    const folder = join(makeFolder(t), 'folder');
    const options = { socketPath: `${folder}/`, name: 'a' };
    const { server, address: { socketPath = '' }, client } = await startServer(t, options);
    const isServed = async (): Promise<boolean> => (await client.pause()) === 'ok';
    for (const remove of [() => {}, () => rmSync(folder, { recursive: true })]) {
      const before = workers.length;
      remove();
      await workers.at(-1)?.terminate();
      await until(isServed);
      assert.equal(workers.length, before + 1);
      assert.deepEqual(readdirSync(folder), [basename(socketPath)]);
      assert.equal(lstatSync(folder).mode, 0o40700);
    }
    assert.equal(dirname(socketPath), folder);
    assert.deepEqual(takeAll(server), ['pause', 'pause']);
    const message = `The web API at ${socketPath} stopped and will be restarted: its thread exited`;
    assert.deepEqual(warnings, [message]);
    rmSync(folder, { recursive: true });
    assert.equal(await client.getStatus(), OFFLINE);
    await server.close();
    assert.equal(existsSync(folder), false);
  });

  it('is replaced at the same path by the next one, which the first leaves alone', async (t) => {
    const folder = join(makeFolder(t), 'folder');
    const { server } = await startServer(t, { socketPath: `${folder}/`, name: 'a' });
    rmSync(folder, { recursive: true });
    const { client } = await startServer(t, { socketPath: `${folder}/`, name: 'a', systemStatus: () => PAUSED });
    await server.close();
    assert.equal(await client.getStatus(), PAUSED);
    assert.deepEqual(readdirSync(folder), [`a-${pid}.sock`]);
  });
});
