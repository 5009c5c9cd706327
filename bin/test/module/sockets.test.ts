// The file of a Unix socket: who can open it, in which folders it may be, what it replaces, and who removes it; folders
// of such files, and the one in which a server with a name is found.

import assert from 'node:assert/strict';
import fs, {
  chmodSync, chownSync, existsSync, lchownSync, linkSync, lstatSync, mkdirSync, readdirSync, renameSync, rmSync,
  symlinkSync, writeFileSync,
} from 'node:fs';
import { createConnection } from 'node:net';
import { basename, dirname, join, parse, relative } from 'node:path';
import { Duplex } from 'node:stream';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import {
  TOKEN, collectThreads, collectWarnings, launchSystem, makeFolder, makeSocketPath, startForeign, startServer, takeAll,
} from '../helpers.ts';
import { runHost } from '../host.ts';
import { PAUSE, ask, open } from '../http.ts';
import { LIMIT, until } from '../wait.ts';
import { NOBODY, becomeNobody, clientOn, contentsOf, leaveSocket, lockObstacles, refusalOf } from './helpers.ts';
import { lacks } from '../needs.ts';
import { SystemStatus, WebApiClient, WebApiServer, checkTrusted, launch, socketFolders } from '../../../control.ts';
import type { TestContext } from 'node:test';

const { ACTIVE, PAUSED, OFFLINE } = SystemStatus;

const SUITE = { ...LIMIT, skip: lacks('Unix'), concurrency: 4 };
const ROOT_ONLY = { skip: lacks('root') };
const IS_ROOT = ROOT_ONLY.skip === false;
const { pid } = process;
const DEAD = 2_000_000_000; // no kernel assigns so high a process id
const OWN = process.geteuid?.() ?? 0;
const BELONGS = `it belongs to user ${NOBODY}`;

describe('The file of a Unix socket', SUITE, () => {
  it('has mode 0600 from the first moment, in a folder that only its user can open', async (t) => {
    const folder = makeFolder(t);
    const host = runHost(t, `
      import { existsSync, lstatSync, readdirSync } from 'node:fs';
      ${becomeNobody(folder)}
      const folder = ${JSON.stringify(folder)};
      const path = folder + '/control.sock';
      const look = () => {
        for (const name of readdirSync(folder)) {
          const entry = lstatSync(folder + '/' + name, { throwIfNoEntry: false });
          if (entry?.mode & (entry?.isSocket() ? 0o177 : 0o77)) say([name, entry.mode]);
        }
      };
      const outcomes = new Set();
      for (let round = 0; round < 9; round += 1) {
        process.umask([0, 0o022, 0o077][round % 3]);
        const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath: path });
        const started = server.runInBackground();
        do look(); while (!existsSync(path)); // never yields
        look();
        await started;
        outcomes.add([lstatSync(path).mode.toString(8), ...readdirSync(folder)].join(' '));
        await server.close();
        outcomes.add(readdirSync(folder).join(' '));
      }
      say([...outcomes]);
    `);
    const mode = process.platform === 'linux' ? '141600' : '140600'; // sticky, for systemd-tmpfiles
    await host.ends([`${mode} control.sock`, '']);
  });

  const OBSTACLES: [name: string, code: string, make: (t: TestContext, path: string) => unknown][] = [
    ['a live server', 'EADDRINUSE', (t, path) => startForeign(t, () => {}, path)],
    ['a live server that is stopped', 'EADDRINUSE', async (t, path) => {
      const host = runHost(t, `await (await serve({ socketPath: ${JSON.stringify(path)} })).nextCommand();`);
      await host.hear();
      host.process.kill('SIGSTOP');
    }],
    ['a file', 'EEXIST', (_t, path) => writeFileSync(path, 'precious')],
    ['a folder', 'EEXIST', (_t, path) => mkdirSync(path)],
    ['a dangling link', 'EEXIST', (_t, path) => symlinkSync('nowhere', path)],
    ['a link to a file', 'EEXIST', (_t, path) => {
      writeFileSync(`${path}-target`, 'precious');
      symlinkSync(`${path}-target`, path);
    }],
    ['a link to the socket of a dead server', 'EEXIST', async (_t, path) => {
      await leaveSocket(`${path}-target`);
      symlinkSync(`${path}-target`, path);
    }],
  ];
  it('is not created in place of anything but the socket of a dead server', async (t) => {
    for (const [name, code, make] of OBSTACLES) {
      const socketPath = makeSocketPath(t);
      const folder = dirname(socketPath);
      await make(t, socketPath);
      const before = contentsOf(folder);
      const error = await refusalOf({ socketPath });
      assert.deepEqual([error?.code, error?.message.startsWith(`Cannot serve at ${socketPath}: `)], [code, true], name);
      assert.deepEqual(contentsOf(folder), before, name);
    }
  });

  it('has exactly one server after several programs have raced to replace that of a killed one', async (t) => {
    const socketPath = makeSocketPath(t);
    const folder = join(makeFolder(t), 'folder');
    const rounds = [{ socketPath }, { socketPath }, { socketPath: `${folder}/`, name: 'a' }];
    const hosts = Array.from({ length: 4 }, () => runHost(t, `
      for (const options of ${JSON.stringify(rounds)}) {
        const server = new WebApiServer({ systemStatus: () => PAUSED, ...options });
        say('ready');
        halt();
        say(await server.runInBackground().then(({ socketPath }) => socketPath, ({ code }) => code));
        const next = await server.nextCommand().catch(({ name }) => name);
        await server.close();
        say(next);
      }
    `));
    /** Lets all start at the same time. Returns the path of each, or its error. */
    const race = async (): Promise<string[]> => {
      for (const host of hosts) assert.equal(await host.hear(), 'ready');
      for (const host of hosts) host.release();
      return Promise.all(hosts.map((host) => host.hear<string>()));
    };
    for (const hasLock of [false, true]) {
      await leaveSocket(socketPath);
      if (hasLock) makeLock(socketPath, 10); // of another killed one
      const outcomes = await race();
      const survivor = outcomes.indexOf(socketPath);
      assert.deepEqual(outcomes.filter((_, index) => index !== survivor), Array(3).fill('EADDRINUSE'));
      assert.deepEqual(readdirSync(dirname(socketPath)), ['control.sock']);
      assert.equal(await clientOn(socketPath).pause(), 'ok');
      const next = await Promise.all(hosts.map((host) => host.hear()));
      assert.deepEqual(next, outcomes.map((_, index) => index === survivor ? 'pause' : 'EmptyError'));
      assert.deepEqual(readdirSync(dirname(socketPath)), []);
    }
    const paths = await race(); // in a folder that they create, where each has its own
    assert.deepEqual(readdirSync(folder).sort(), paths.map((path) => basename(path)).sort());
    for (const path of paths) assert.equal(await clientOn(path).pause(), 'ok', path);
    for (const host of hosts) await host.ends('pause');
    assert.deepEqual(readdirSync(folder), []);
  });

  it('is not removed while another server removes it; only a killed one has not done so after 1 s', async (t) => {
    const socketPath = makeSocketPath(t);
    const folder = dirname(socketPath);
    for (const ageS of [10, -3600]) {
      await leaveSocket(socketPath);
      makeLock(socketPath, ageS);
      assert.equal(await refusalOf({ socketPath }), null);
      assert.deepEqual(readdirSync(folder), []);
    }
    await leaveSocket(socketPath);
    const lock = makeLock(socketPath, -30);
    await startForeign(t, () => {}, `${socketPath}-`);
    const refused = refusalOf({ socketPath });
    await until(() => readdirSync(folder).some((name) => name.startsWith('.'))); // it finds the lock soon
    await sleep(300);
    renameSync(`${socketPath}-`, socketPath);
    assert.equal((await refused)?.code, 'EADDRINUSE');
    rmSync(lock, { recursive: true });
    await open(t, socketPath);
  });

  it('is not created while something of others, or more than an empty folder, is in place of the lock', async (t) => {
    const socketPath = makeSocketPath(t);
    const folder = dirname(socketPath);
    for (const [reason, make] of lockObstacles()) {
      await leaveSocket(socketPath);
      const lock = `${socketPath}.${lstatSync(socketPath).ino}.lock`;
      make(lock);
      const before = contentsOf(folder);
      const { message = '' } = await refusalOf({ socketPath }) ?? {};
      assert.ok(message.startsWith(`Cannot serve at ${socketPath}: `) && message.includes(lock), message);
      assert.ok(message.includes(reason), message);
      assert.deepEqual(contentsOf(folder), before, reason);
      rmSync(lock, { recursive: true });
      rmSync(socketPath);
    }
  });

  it('is made in a private folder, and nothing that others call so later is removed', async (t) => {
    const socketPath = makeSocketPath(t);
    const folder = dirname(socketPath);
    for (let name: string | undefined; name === undefined;) { // it may be gone before it is seen
      const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath });
      const started = server.runInBackground();
      do name = readdirSync(folder).find((entry) => entry.startsWith('.')); while (!name && !existsSync(socketPath));
      await started;
      if (name !== undefined) mkdirSync(join(folder, name, 'd'), { recursive: true });
      await server.close();
      if (name !== undefined) assert.deepEqual(readdirSync(join(folder, name)), ['d']);
    }
  });

  it('is made again if it was removed or moved, or with its folder, even while the program computes', async (t) => {
    const parent = makeFolder(t);
    const folder = join(parent, 'folder');
    const path = join(folder, 'a.sock');
    mkdirSync(folder, 0o700);
    const host = runHost(t, `
      await serve({ socketPath: ${JSON.stringify(path)}, systemStatus: () => PAUSED });
      await serve({ socketPath: ${JSON.stringify(`${parent}/own/`)}, name: 'b', systemStatus: () => PAUSED });
      for (;;) block(1000);
    `);
    const port = await host.hear<number>();
    await host.hear();
    const inFolder = join(parent, 'own', `b-${host.process.pid}.sock`);
    const serves = (socketPath: string) => async (): Promise<boolean> => {
      return existsSync(socketPath) && await clientOn(socketPath).pause() === 'ok';
    };
    for (const [act, undo] of [
      [() => rmSync(path)],
      [() => renameSync(path, `${path}-`)],
      [() => rmSync(folder, { recursive: true }), () => mkdirSync(folder, 0o700)],
      [() => { // a file is in the way
        writeFileSync(`${path}-file`, '');
        renameSync(`${path}-file`, path);
      }, () => rmSync(path)],
    ] satisfies [act: () => void, undo?: () => void][]) {
      act();
      if (undo !== undefined) await sleep(300);
      undo?.();
      await until(serves(path));
      assert.equal(await new WebApiClient('127.0.0.1', port).getStatus(), PAUSED);
      assert.equal(lstatSync(path).mode & 0o777, 0o600);
    }
    rmSync(dirname(inFolder), { recursive: true });
    await until(serves(inFolder));
    assert.equal(lstatSync(dirname(inFolder)).mode & 0o777, 0o700);
  });

  it('leaves nothing behind if the server is closed at any moment of its start', async (t) => {
    const folder = makeFolder(t);
    writeFileSync(join(folder, '0.sock'), 'precious');
    const start = async (index: number): Promise<void> => {
      const socketPath = join(folder, `${index}.sock`);
      const isDead = index % 4 === 1;
      if (isDead) await leaveSocket(socketPath);
      const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath });
      const started = server.runInBackground();
      if (index > 1) await sleep(index * 8);
      await server.close();
      await started;
      if (isDead) rmSync(socketPath, { force: true }); // it may have been closed before it replaced that one
    };
    for (let index = 0; index < 12; index += 2) await Promise.all([start(index), start(index + 1)]); // more are slow
    assert.deepEqual(readdirSync(folder), ['0.sock']);
  });

  it('is not created if the folder is missing or impossible; nothing changes there', async (t) => {
    const parent = makeFolder(t);
    writeFileSync(join(parent, 'file'), 'precious');
    symlinkSync('nowhere', join(parent, 'dangling'));
    const before = contentsOf(parent);
    for (const [path, code] of [
      ['nowhere/a.sock', /^ENOENT$/], ['file/a.sock', /^ENOTDIR$/], ['nowhere/folder/', /^ENOENT$/],
      ['dangling/', /^(ENOENT|EEXIST)$/], ['file/', /^(ENOTDIR|EEXIST)$/],
    ] as const) {
      const error = await refusalOf({ socketPath: join(parent, path), name: 'a' });
      const [, where] = /^Cannot serve at (.*): E[A-Z]+: [^\n]+$/.exec(`${error?.message}`) ?? [];
      assert.equal(where, join(parent, path, path.endsWith('/') ? `a-${pid}.sock` : ''), error?.message);
      assert.match(`${error?.code}`, code);
      assert.deepEqual(contentsOf(parent), before);
    }
  });

  const FOLDERS: [mode: number, owner: number, remedy: string | null][] = [
    ...[0o700, 0o755, 0o1777, 0o2700].map((mode): [number, number, null] => [mode, OWN, null]),
    ...[0o777, 0o770, 0o702, 0o2775].map((mode): [number, number, string] => {
      return [mode, OWN, "others can write to it; chmod go-w 'DIR'"];
    }),
    ...[0o700, 0o1777].map((mode): [number, number, string] => [mode, NOBODY, BELONGS]),
  ];
  it('is not created where another user could replace it; nothing changes there', async (t) => {
    for (const [index, [mode, owner, remedy]] of FOLDERS.entries()) {
      if (owner !== OWN && !IS_ROOT) continue;
      const folder = makeFolder(t);
      chownSync(folder, owner, -1);
      chmodSync(folder, mode);
      const path = `${folder}/${index % 2 === 0 ? `a-${pid}` : 'control'}.sock`;
      const error = await refusalOf({ socketPath: index % 2 === 0 ? `${folder}/` : path, name: 'a' });
      const reason = `'${folder}' is not trusted, because ${remedy?.replaceAll('DIR', folder)}`;
      const expected = remedy && ['EACCES', `Cannot serve at ${path}: ${reason}`];
      assert.deepEqual(error && [error.code, error.message], expected, mode.toString(8));
      assert.deepEqual([lstatSync(folder).mode & 0o7777, readdirSync(folder)], [mode, []]);
    }
  });

  it('is not created where another user controls the path, links included', ROOT_ONLY, async (t) => {
    const [foreign, own, shared] = [makeFolder(t), makeFolder(t), makeFolder(t)];
    chownSync(foreign, NOBODY, -1);
    chmodSync(shared, 0o1777);
    mkdirSync(join(foreign, 'inner'), 0o700);
    symlinkSync(own, join(shared, 'link'));
    lchownSync(join(shared, 'link'), NOBODY, NOBODY);
    symlinkSync(join(foreign, 'inner'), join(own, 'link')); // its own link leads there
    symlinkSync(own, join(foreign, 'link')); // and one of the other user leads back
    symlinkSync('../../' + join(basename(dirname(foreign)), basename(foreign), 'link'), join(own, 'loop'));
    for (const [folder, refused] of [
      [join(foreign, 'inner'), foreign], [join(shared, 'link'), join(shared, 'link')], [join(own, 'link'), foreign],
      [join(foreign, 'link'), foreign], [join(own, 'loop'), foreign],
    ] as const) {
      const message = `'${refused}' is not trusted, because ${BELONGS}`;
      assert.throws(() => checkTrusted(folder), { code: 'EACCES', message }, folder);
    }
    for (const socketPath of [`${foreign}/missing/`, `${foreign}/inner/`, `${own}/loop/control.sock`]) {
      const error = await refusalOf({ socketPath });
      assert.ok(error?.message.endsWith(`: '${foreign}' is not trusted, because ${BELONGS}`), socketPath);
    }
    assert.deepEqual([foreign, join(foreign, 'inner'), own].map((folder) => readdirSync(folder)), [
      ['inner', 'link'], [], ['link', 'loop'],
    ]);
  });

  it('of a user who is not root may be in a sticky folder of root, and needs one that is not denied', async (t) => {
    const [shared, own, other] = [makeFolder(t), makeFolder(t), makeFolder(t)];
    for (const folder of [shared, other]) chmodSync(folder, 0o1777);
    if (IS_ROOT) chownSync(other, 65_533, -1);
    const { address: { socketPath = '' } } = await startServer(t, { socketPath: makeSocketPath(t) });
    chmodSync(dirname(socketPath), 0o755);
    chmodSync(socketPath, 0o666);
    const host = runHost(t, `
      import { chmodSync, readdirSync } from 'node:fs';
      ${becomeNobody(own)}
      const own = ${JSON.stringify(own)};
      const pauseAt = (socketPath) => new WebApiClient(undefined, undefined, { socketPath }).pause();
      const serveAt = async (socketPath, act = () => pauseAt(socketPath)) => {
        const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath });
        say(await server.runInBackground().then(act, ({ code }) => code));
        await server.close();
      };
      for (const folder of ${JSON.stringify([shared, own, other])}) await serveAt(folder + '/control.sock');
      say(await pauseAt(${JSON.stringify(socketPath)})); // of root
      chmodSync(own, 0o500);
      for (const name of ['/a.sock', '/', '/new/']) await serveAt(own + name);
      chmodSync(own, 0o700);
      say(readdirSync(own));
      for (const mode of [0o500, 0]) { // close() needs no folder
        await serveAt(own + '/control.sock', () => (chmodSync(own, mode), 'denied'));
        chmodSync(own, 0o700);
      }
    `);
    const denied = ['EACCES', 'EACCES', 'EACCES', [], 'denied', 'denied'];
    await host.ends('ok', 'ok', IS_ROOT ? 'EACCES' : 'ok', 'ok', ...denied);
    assert.deepEqual([shared, other].flatMap((folder) => readdirSync(folder)), []);
  });

  it('is removed by close() only as long as it is the same file, under its own name', async (t) => {
    collectWarnings(t); // it may be missed before
    const socketPath = makeSocketPath(t);
    const folder = dirname(socketPath);
    for (const [act, ...left] of [
      [() => rmSync(socketPath)],
      [() => {
        rmSync(socketPath);
        writeFileSync(socketPath, 'precious');
      }, 'control.sock'],
      [() => {
        linkSync(socketPath, `${socketPath}-link`);
        renameSync(socketPath, `${socketPath}-moved`);
      }, 'control.sock-link', 'control.sock-moved'],
      [() => rmSync(folder, { recursive: true })],
    ] satisfies [act: () => void, ...left: string[]][]) {
      const { server, client } = await startServer(t, { socketPath });
      assert.equal(await client.pause(), 'ok');
      act();
      await server.close();
      assert.deepEqual(takeAll(server), ['pause']);
      assert.deepEqual(existsSync(folder) ? readdirSync(folder).sort() : [], left, String(act));
      rmSync(folder, { recursive: true, force: true });
      mkdirSync(folder);
    }
  });

  it('has an absolute path from the start: the program may change its directory', async (t) => {
    const folder = makeFolder(t);
    const host = runHost(t, `
      process.chdir(${JSON.stringify(folder)});
      const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath: 'control.sock' });
      const client = new WebApiClient(undefined, undefined, { socketPath: './x/../control.sock' });
      process.chdir('/');
      say((await server.runInBackground()).socketPath.endsWith('/control.sock'));
      say(await client.pause());
      await server.close();
    `);
    await host.ends(true, 'ok');
    assert.deepEqual(readdirSync(folder), []);
    const { baseUrl } = new WebApiClient(undefined, undefined, { socketPath: relative(process.cwd(), `${folder}/a`) });
    assert.equal(baseUrl, `unix:${folder}/a`);
  });

  it('has a path of at most 94 bytes, with its name in a folder', async (t) => {
    const folder = makeFolder(t);
    for (const name of ['/control.sock', `/n-${pid}.sock`]) {
      const longest = `${folder}/ü`.padEnd(93 - name.length, 'x'); // 93 characters with the name, 94 bytes
      mkdirSync(longest, { mode: 0o700, recursive: true });
      const ending = name === '/control.sock' ? name : '/';
      const { address, client } = await startServer(t, { socketPath: longest + ending, name: 'n' });
      assert.equal(Buffer.byteLength(String(address.socketPath)), 94);
      assert.equal(await client.getStatus(), ACTIVE);
      const message = `socketPath must be at most 94 bytes long, without NUL, got ${inspect(`${longest}x${name}`)}`;
      for (const path of [`${longest}x`, relative(process.cwd(), `${longest}x`)]) { // the absolute path counts
        const options = { systemStatus: () => ACTIVE, socketPath: path + ending, name: 'n' };
        assert.throws(() => new WebApiServer(options), { name: 'RangeError', message });
      }
    }
  });
});

describe('WebApiClient on a Unix socket', SUITE, () => {
  it('sends nothing if there is no socket, even if another user puts one there at once', ROOT_ONLY, async (t) => {
    const folder = makeFolder(t);
    chmodSync(folder, 0o1777);
    const socketPath = join(folder, 'control.sock');
    const { requests } = await startForeign(t, () => {}, `${socketPath}-`);
    chownSync(`${socketPath}-`, NOBODY, NOBODY);
    const { statSync } = fs;
    t.mock.method(fs, 'statSync', (path: string, ...options: []) => {
      try {
        return statSync(path, ...options);
      } finally {
        if (path === socketPath) renameSync(`${socketPath}-`, socketPath);
      }
    });
    const reply = await clientOn(socketPath, TOKEN).request('pause');
    assert.deepEqual([!reply.ok && reply.code, !reply.ok && reply.phase, requests], ['ENOENT', 'connect', []]);
  });

  it("sends nothing to another user's server, nor where others could replace it", ROOT_ONLY, async (t) => {
    const socketPath = makeSocketPath(t);
    const folder = dirname(socketPath);
    const { requests } = await startForeign(t, () => {}, socketPath);
    symlinkSync(socketPath, `${socketPath}-link`);
    for (const [owner, ownerOfFolder, mode, refused, problem] of [
      [NOBODY, 0, 0o700, socketPath, BELONGS], [0, NOBODY, 0o700, folder, BELONGS],
      [0, 0, 0o777, folder, `others can write to it; chmod go-w '${folder}'`],
    ] as const) {
      chownSync(socketPath, owner, -1);
      chownSync(folder, ownerOfFolder, -1);
      chmodSync(folder, mode);
      for (const path of [socketPath, `${socketPath}-link`]) {
        const error = `unix:${path} does not respond: '${refused}' is not trusted, because ${problem}`;
        const reply = { ok: false, error, phase: 'connect', body: {}, statusCode: undefined, code: 'EACCES' };
        assert.deepEqual(await clientOn(path, TOKEN).request('pause'), reply);
      }
    }
    assert.deepEqual(requests, []);
  });

  it('uses a connection that it is given, whatever the path; what could not be connected was not sent', async (t) => {
    const response = 'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"result":"ok"}';
    const { requests, port } = await startForeign(t, (socket) => void socket.end(response));
    const clientWith = (connect: () => Duplex): WebApiClient => {
      return new WebApiClient(undefined, undefined, { socketPath: '/elsewhere/t.sock', connect });
    };
    assert.equal(await clientWith(() => createConnection(port, '127.0.0.1')).pause(), 'ok');
    assert.equal(requests.length, 1);
    const broken = Object.assign(new Error('no route'), { code: 'EHOSTUNREACH' });
    const client = clientWith(() => new Duplex({ construct: (callback) => setImmediate(callback, broken) }));
    const error = 'unix:/elsewhere/t.sock does not respond: no route';
    const failed = { ok: false, error, phase: 'connect', body: {}, statusCode: undefined, code: broken.code };
    for (const values of [undefined, { text: 'x' }]) {
      assert.deepEqual(await client.request('say', { arguments: values }), failed);
    }
  });
});

describe('The socket in a folder', SUITE, () => {
  it('is named after the program and its process', async (t) => {
    const folder = makeFolder(t);
    for (const [name, expected] of [
      [undefined, parse(process.argv[1] ?? '').name],
      ['Pole_2.v-1', 'Pole_2.v-1'], ['', ''], ['../a b/c', '.._a_b_c'], ['ü\n\0$(x)*?', '_____x___'],
      ['x'.repeat(32) + 'y', 'x'.repeat(32)],
    ] as const) {
      const { address } = await startServer(t, { socketPath: `${folder}/`, name });
      assert.equal(address.socketPath, `${folder}/${expected}-${pid}.sock`);
    }
  });

  it('has an absolute path; creates a missing folder for its user only, but no parent', async (t) => {
    const parent = makeFolder(t);
    chmodSync(parent, 0o755);
    mkdirSync(join(parent, 'old'), 0o750);
    symlinkSync('old', join(parent, 'link'));
    mkdirSync(join(parent, 'x'.repeat(200)), 0o750); // too long for a socket, which a link makes shorter
    symlinkSync('x'.repeat(200), join(parent, 'short'));
    for (const [socketPath, folder, mode] of [
      [`${parent}/new/`, 'new', '40700'],
      [`${relative(process.cwd(), parent)}/x/..//ü 'a' $(b)/`, "ü 'a' $(b)", '40700'],
      [`${parent}/old/`, 'old', '40750'],
      [`${parent}/link/`, 'link', '120777'],
      [`${parent}/short/`, 'short', '120777'],
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

  it('leaves everything else in the folder as it is, also sockets of dead servers of its name', async (t) => {
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

  it('is not made if the port beside it is taken', async (t) => {
    const folder = makeFolder(t);
    const options = { socketPath: `${folder}/`, name: 'a', port: 0 };
    const { address: { port, socketPath = '' } } = await startServer(t, options);
    assert.equal((await refusalOf({ ...options, name: 'second', port }))?.code, 'EADDRINUSE');
    assert.deepEqual(readdirSync(folder), [basename(socketPath)]);
    for (const [where, expected] of [[socketPath, 200], [port, 403]] as const) {
      assert.equal((await ask(where, PAUSE, 'Host: any.name')).statusCode, expected, 'no name leads to a socket');
    }
  });
});

describe('A thread on a Unix socket', { ...SUITE, concurrency: 1 }, () => {
  it('moves to /tmp when a logout removes /run/user/UID, also with a thread that has died', ROOT_ONLY, async (t) => {
    const uid = 2_000_000_000 + Math.floor(Math.random() * 10 ** 8); // nobody's
    const [session, other] = [`/run/user/${uid}`, `/tmp/control-${uid}`];
    t.after(() => [session, other].forEach((folder) => rmSync(folder, { recursive: true, force: true })));
    mkdirSync(session, { recursive: true, mode: 0o700 });
    const threads = collectThreads(t);
    const warnings = collectWarnings(t);
    const { server, address } = await startServer(t, { socketPath: `${session}/control/`, name: 'a' });
    const name = `a-${pid}.sock`;
    assert.equal(address.socketPath, `${session}/control/${name}`);
    const moved = clientOn(`${other}/${name}`);
    rmSync(session, { recursive: true });
    await until(async () => await moved.getStatus() === ACTIVE);
    await threads[0]?.terminate();
    await until(async () => threads.length === 2 && await moved.getStatus() === ACTIVE);
    const lost = (): string[] => warnings.filter((message) => !/stopped and will be restarted/.test(message));
    assert.deepEqual(lost(), [], 'it has moved');
    chmodSync(other, 0o777);
    rmSync(`${other}/${name}`);
    await until(() => lost().length > 0);
    chmodSync(other, 0o700);
    await until(async () => await moved.getStatus() === ACTIVE);
    await server.close();
    assert.deepEqual(readdirSync(other), []);
    const reason = `'${other}' is not trusted, because others can write to it; chmod go-w '${other}'`;
    assert.deepEqual([...new Set(lost())], [`Cannot serve at '${other}/${name}': ${reason}`], 'the last folder');
    const error = await refusalOf({ socketPath: `/run/user/${uid + 1}/control/` });
    assert.equal(error?.code, 'ENOENT', 'a start is where it was told');
  });

  it('does not take the path back after a restart if another server has it', async (t) => {
    const warnings = collectWarnings(t);
    const workers = collectThreads(t);
    const socketPath = makeSocketPath(t);
    const { server } = await startServer(t, { socketPath });
    await workers[0]?.terminate();
    rmSync(socketPath);
    await startForeign(t, () => {}, socketPath);
    const before = contentsOf(dirname(socketPath)).filter(([name]) => name === basename(socketPath));
    await until(() => warnings.some((one) => one.includes(`another server listens at '${socketPath}'`)));
    assert.equal(workers.length, 2);
    await until(() => readdirSync(dirname(socketPath)).length === 1); // it tidies up after the warning
    await server.close();
    assert.deepEqual(contentsOf(dirname(socketPath)), before);
  });
});

describe('The socket of a server with a name', { ...SUITE, concurrency: 1 }, () => {
  const BY_NAME = { name: 'a', socketPath: undefined }; // the helpers prevent it by null

  /** Sets the folder in which servers with a name are found, until the end of the test. */
  const setFolder = (t: TestContext, folder: string): string => {
    const before = process.env['CONTROL_DIR'];
    t.after(() => {
      if (before === undefined) delete process.env['CONTROL_DIR'];
      else process.env['CONTROL_DIR'] = before;
    });
    process.env['CONTROL_DIR'] = folder;
    assert.deepEqual(socketFolders(), [folder]);
    return join(folder, `a-${pid}.sock`);
  };

  it('is beside the port, and so is that of a path, also after its thread has died with the folder', async (t) => {
    for (const isNamed of [true, false]) {
      const folder = join(makeFolder(t), 'folder');
      const socketPath = setFolder(t, folder);
      const warnings = collectWarnings(t);
      const threads = collectThreads(t);
      const options = isNamed ? BY_NAME : { name: 'a', socketPath: `${folder}/`, port: 0 };
      const { server, address, port } = await startServer(t, options);
      assert.deepEqual(address, { host: 'localhost', port, ...isNamed ? {} : { socketPath } });
      const client = new WebApiClient('127.0.0.1', port);
      const onSocket = clientOn(socketPath);
      for (const [round, remove] of [() => {}, () => rmSync(folder, { recursive: true })].entries()) {
        assert.deepEqual([await onSocket.pause(), await client.resume()], ['ok', 'ok']);
        await threads.at(-1)?.terminate();
        remove();
        await until(async () => await onSocket.saveState() === 'ok');
        assert.equal(await client.getStatus(), ACTIVE, 'at the same port');
        assert.equal(threads.length, round + 2);
        assert.deepEqual(readdirSync(folder), [basename(socketPath)]);
        assert.deepEqual([folder, socketPath].map((path) => lstatSync(path).mode & 0o777), [0o700, 0o600]);
        assert.deepEqual(takeAll(server), ['pause', 'resume', 'save-state']);
      }
      if (!isNamed) rmSync(folder, { recursive: true });
      await server.close();
      assert.deepEqual(existsSync(folder) && readdirSync(folder), isNamed && []);
      assert.deepEqual(warnings, [`The web API at localhost:${port} stopped and will be restarted: its thread exited`]);
      t.mock.restoreAll();
    }
  });

  it('is that of the first of two in a process: the other warns, and has its port and nothing else', async (t) => {
    const folder = join(makeFolder(t), 'folder');
    const socketPath = setFolder(t, folder);
    const warnings = collectWarnings(t);
    const first = await startServer(t, BY_NAME);
    assert.deepEqual(warnings, []);
    const second = await startServer(t, { ...BY_NAME, systemStatus: () => PAUSED });
    const reason = `another server listens at '${socketPath}'; clients find this program by its port only`;
    assert.deepEqual(warnings, [`Cannot serve at '${socketPath}': ${reason}; give one of them a socketPath`]);
    const named = clientOn(socketPath);
    assert.deepEqual([await named.getStatus(), await second.client.getStatus()], [ACTIVE, PAUSED]);
    assert.deepEqual([await named.pause(), await second.client.resume()], ['ok', 'ok']);
    assert.deepEqual([takeAll(first.server), takeAll(second.server)], [['pause'], ['resume']]);
    assert.deepEqual(readdirSync(folder), [basename(socketPath)]);
    await first.server.close();
    assert.deepEqual(readdirSync(folder), []);
    await sleep(600); // it looks after its socket four times a second
    assert.deepEqual([readdirSync(folder), await named.getStatus()], [[], OFFLINE]);
    assert.deepEqual([await second.client.getStatus(), await second.client.pause()], [PAUSED, 'ok']);
    const third = await startServer(t, BY_NAME);
    assert.equal(await named.getStatus(), ACTIVE, 'the path is free');
    await second.server.close();
    assert.deepEqual([await named.getStatus(), warnings.length], [ACTIVE, 1]);
    await third.server.close();
    assert.deepEqual(readdirSync(folder), []);
  });

  it('is missing, with a warning, if no folder can be used; without one with null', async (t) => {
    const parent = makeFolder(t);
    writeFileSync(join(parent, 'file'), 'precious');
    mkdirSync(join(parent, 'open'));
    chmodSync(join(parent, 'open'), 0o770);
    const warnings = collectWarnings(t);
    const long = 'x'.repeat(94 - `${parent}//a-${pid}.sock`.length);
    for (const [name, reason] of [
      ['none/folder', `ENOENT: no such file or directory, stat '${parent}/none'`],
      ['file', `EEXIST: file already exists, mkdir '${parent}/file'`],
      ['open', `'${parent}/open' is not trusted, because others can write to it; chmod go-w '${parent}/open'`],
      [`${long}x`, 'it is longer than 94 bytes'], [long, null],
    ] as const) {
      const socketPath = setFolder(t, join(parent, name));
      const { server, client } = await startServer(t, BY_NAME);
      const lost = `Cannot serve at '${socketPath}': ${reason}; clients find this program by its port only`;
      assert.deepEqual(warnings.splice(0), reason === null ? [] : [lost]);
      assert.equal(existsSync(socketPath), reason === null);
      assert.equal(await client.getStatus(), ACTIVE, name);
      await server.close();
    }
    assert.deepEqual(readdirSync(parent).sort(), ['file', 'open', long].sort());

    const folder = join(parent, 'folder');
    const socketPath = setFolder(t, folder);
    const { client: none } = await startServer(t, { ...BY_NAME, socketPath: null });
    const { client: alsoNone } = await launchSystem(t, {}, { ...BY_NAME, socketPath: null });
    await launch({ step: (control) => void control.shutdown() }, { ...BY_NAME, webApiAddress: null, socketPath: null });
    assert.deepEqual([await none.getStatus(), await alsoNone.getStatus(), existsSync(folder)], [ACTIVE, ACTIVE, false]);
    await launchSystem(t, {}, BY_NAME);
    assert.equal(await clientOn(socketPath).getStatus(), ACTIVE);
    assert.deepEqual(warnings, []);
  });
});

/** Locks a dead socket, as the server does that removes it. */
function makeLock(socketPath: string, ageS: number): string {
  const lock = `${socketPath}.${lstatSync(socketPath).ino}.lock`;
  mkdirSync(lock);
  const time = Date.now() / 1000 - ageS;
  fs.utimesSync(lock, time, time);
  return lock;
}
