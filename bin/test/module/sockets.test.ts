// The file of a Unix socket: who can open it, in which folders it may be, what it replaces, and who removes it.

import assert from 'node:assert/strict';
import fs, {
  chmodSync, chownSync, existsSync, lchownSync, linkSync, lstatSync, mkdirSync, readdirSync, renameSync, rmSync,
  symlinkSync, writeFileSync,
} from 'node:fs';
import { basename, dirname, join, relative } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import {
  LIMIT, TOKEN, collectThreads, collectWarnings, makeFolder, makeSocketPath, startForeign, startServer, takeAll, until,
} from '../helpers.ts';
import { runHost } from '../host.ts';
import { PAUSE, ask } from '../http.ts';
import { becomeNobody, contentsOf, leaveSocket } from './helpers.ts';
import { lacks } from '../needs.ts';
import { SystemStatus, WebApiClient, WebApiServer } from '../../../control.ts';
import type { TestContext } from 'node:test';

const { ACTIVE, PAUSED, OFFLINE } = SystemStatus;

const SUITE = { ...LIMIT, skip: lacks('Unix'), concurrency: 4 };
const ROOT_ONLY = { skip: lacks('root') };

describe('The file of a Unix socket', SUITE, () => {
  it('has mode 0600 from the first moment, in a folder that only its user can open', async (t) => {
    const folder = makeFolder(t);
    const host = runHost(t, `
      import { lstatSync, readdirSync } from 'node:fs';
      import { Worker } from 'node:worker_threads';
      ${becomeNobody(folder)}
      const folder = ${JSON.stringify(folder)};
      const path = folder + '/control.sock';
      const seen = new Int32Array(new SharedArrayBuffer(12)); // looks, with a socket, with a wrong mode
      new Worker(\`
        const { lstatSync, readdirSync } = require('node:fs');
        const { folder, seen } = require('node:worker_threads').workerData;
        require('node:os').setPriority(19); // of this thread only
        for (;;) {
          Atomics.add(seen, 0, 1);
          for (const name of readdirSync(folder)) {
            const entry = lstatSync(folder + '/' + name, { throwIfNoEntry: false });
            if (entry === undefined) continue;
            if (entry.isSocket()) Atomics.add(seen, 1, 1);
            const isPrivate = (entry.mode & (entry.isSocket() ? 0o177 : 0o77)) === 0;
            if (!isPrivate) Atomics.add(seen, 2, 1);
          }
        }
      \`, { eval: true, execArgv: [], workerData: { folder, seen } }).unref();
      while (seen[0] === 0) await sleep(1);
      const outcomes = new Set();
      for (const mask of [0, 0o022, 0o077]) {
        process.umask(mask);
        const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath: path });
        const before = seen[1];
        await server.runInBackground();
        outcomes.add([lstatSync(path).mode.toString(8), ...readdirSync(folder)].join(' '));
        while (seen[1] === before) await sleep(1);
        await server.close();
        for (const name of readdirSync(folder)) outcomes.add('left: ' + name);
      }
      say([[...outcomes], seen[2]]);
      process.exit();
    `);
    await host.ends([[`${process.platform === 'linux' ? '141600' : '140600'} control.sock`], 0]); // systemd-tmpfiles
  });

  it('may be out of reach of close(), which still responds to a pending request', async (t) => {
    const folder = makeFolder(t);
    const host = runHost(t, `
      import { chmodSync } from 'node:fs';
      import { connect } from 'node:net';
      ${becomeNobody(folder)}
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
        const ended = new Promise((end) => socket.on('close', end));
        const closed = server.close();
        socket.write('{}');
        await closed;
        await ended;
        say([text.includes('HTTP/1.1 200 OK'), server.hasCommands() && server.receiveCommand()]);
        chmodSync(folder, 0o700);
      }
    `);
    await host.ends([true, 'pause'], [true, 'pause']);
  });

  const OBSTACLES: [name: string, code: string, make: (t: TestContext, path: string) => unknown][] = [
    ['a live server', 'EADDRINUSE', (t, path) => startForeign(t, () => {}, path)],
    ['a live server that is stopped', 'EADDRINUSE', async (t, path) => {
      const host = startHostAt(t, path);
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
      const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath });
      await assert.rejects(server.runInBackground(), (error: NodeJS.ErrnoException) => {
        assert.deepEqual([error.code, error.message.startsWith(`Cannot serve at ${socketPath}: `)], [code, true], name);
        return true;
      });
      assert.deepEqual(contentsOf(folder), before, name);
      await server.close();
      assert.deepEqual(contentsOf(folder), before, name);
    }
  });

  it('is created once the obstacle is gone, by the same server', async (t) => {
    const socketPath = makeSocketPath(t);
    writeFileSync(socketPath, 'precious');
    const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath });
    t.after(() => server.close());
    await assert.rejects(server.runInBackground(), { code: 'EEXIST' });
    rmSync(socketPath);
    await leaveSocket(socketPath);
    await server.runInBackground();
    assert.equal((await ask(socketPath, PAUSE)).summary, '200 ok');
    assert.deepEqual(takeAll(server), ['pause']);
  });

  for (const count of [2, 8]) {
    it(`has exactly one server after ${count} programs have raced to replace that of a killed one`, async (t) => {
      const socketPath = makeSocketPath(t);
      const client = new WebApiClient(undefined, undefined, { socketPath });
      await leaveSocket(socketPath);
      const hosts = Array.from({ length: count }, () => runHost(t, `
        const server = new WebApiServer({ systemStatus: () => PAUSED, socketPath: ${JSON.stringify(socketPath)} });
        say('ready');
        halt();
        say(await server.runInBackground().then(() => 'listening', ({ code }) => code));
        say(await server.nextCommand().catch(({ name }) => name));
        await server.close();
      `));
      for (const host of hosts) assert.equal(await host.hear(), 'ready');
      for (const host of hosts) host.release();
      const outcomes = await Promise.all(hosts.map((host) => host.hear<string>()));
      const survivor = outcomes.indexOf('listening');
      assert.deepEqual(outcomes.filter((_, index) => index !== survivor), Array(count - 1).fill('EADDRINUSE'));
      assert.deepEqual(readdirSync(dirname(socketPath)), ['control.sock']);
      assert.equal(await client.getStatus(), PAUSED);
      assert.equal(await client.pause(), 'ok');
      await Promise.all(hosts.map((host, index) => host.ends(index === survivor ? 'pause' : 'EmptyError')));
      assert.deepEqual(readdirSync(dirname(socketPath)), []);
    });
  }

  it('leaves nothing behind if the server is closed during a slow start', async (t) => {
    const folder = makeFolder(t);
    writeFileSync(join(folder, '0.sock'), 'precious');
    await Promise.all(Array.from({ length: 24 }, async (_, index) => { // their threads take turns for a second or more
      const socketPath = join(folder, `${index}.sock`);
      if (index % 4 === 1) await leaveSocket(socketPath);
      const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath });
      const started = server.runInBackground();
      if (index > 8) await sleep(index * 50);
      await server.close();
      await started;
      if (index % 4 === 1) rmSync(socketPath, { force: true }); // it may have been closed before it replaced that one
    }));
    assert.deepEqual(readdirSync(folder), ['0.sock']);
  });

  it('is not created in a folder that does not exist or denies access', async (t) => {
    const folder = makeFolder(t);
    writeFileSync(join(folder, 'file'), '');
    const before = contentsOf(folder);
    for (const [name, code] of [['nowhere', 'ENOENT'], ['file', 'ENOTDIR']] as const) {
      await assert.rejects(startServer(t, { socketPath: join(folder, name, 'control.sock') }), { code });
      assert.deepEqual(contentsOf(folder), before);
    }
    const closed = makeFolder(t);
    const host = runHost(t, `
      import { chmodSync, readdirSync } from 'node:fs';
      ${becomeNobody(closed)}
      const folder = ${JSON.stringify(closed)};
      const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath: folder + '/control.sock' });
      chmodSync(folder, 0o500);
      say(await server.runInBackground().catch(({ code }) => code));
      chmodSync(folder, 0o700);
      say(readdirSync(folder));
    `);
    await host.ends('EACCES', []);
  });

  const [NOBODY, OWN] = [65_534, process.geteuid?.() ?? 0];
  const FOLDERS: [mode: number, owner: number, remedy: string | null][] = [
    ...[0o700, 0o755, 0o1777, 0o1770, 0o2700].map((mode): [number, number, null] => [mode, OWN, null]),
    ...[0o777, 0o770, 0o702, 0o2775].map((mode): [number, number, string] => {
      return [mode, OWN, "others can write to it; chmod go-w 'DIR'"];
    }),
    ...[0o700, 0o755, 0o1777].map((mode): [number, number, string] => [mode, NOBODY, 'it belongs to user 65534']),
  ];
  it('is not created where another user could replace it; nothing changes there', async (t) => {
    for (const [mode, owner, remedy] of FOLDERS) {
      if (owner !== OWN && ROOT_ONLY.skip !== false) continue;
      const folder = makeFolder(t);
      chownSync(folder, owner, -1);
      chmodSync(folder, mode);
      for (const socketPath of [`${folder}/control.sock`, `${folder}/`]) {
        const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath, name: 'a' });
        const message = await server.runInBackground().then(() => null, ({ code, message }) => `${code}, ${message}`);
        await server.close();
        const path = socketPath.endsWith('/') ? `${folder}/a-${process.pid}.sock` : socketPath;
        const reason = `'${folder}' is not trusted, because ${remedy?.replaceAll('DIR', folder)}`;
        assert.equal(message, remedy && `EACCES, Cannot serve at ${path}: ${reason}`, mode.toString(8));
        assert.deepEqual([lstatSync(folder).mode & 0o7777, readdirSync(folder)], [mode, []]);
      }
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
      [join(foreign, 'link'), foreign], [join(own, 'loop'), foreign], [join(foreign, 'missing'), foreign],
    ] as const) {
      for (const socketPath of [`${folder}/`, ...existsSync(folder) ? [`${folder}/control.sock`] : []]) {
        const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath });
        const reason = `'${refused}' is not trusted, because it belongs to user ${NOBODY}`;
        await assert.rejects(server.runInBackground(), ({ message }: Error) => message.endsWith(`: ${reason}`), folder);
        await server.close();
      }
    }
    assert.deepEqual([readdirSync(join(foreign, 'inner')), readdirSync(own)], [[], ['link', 'loop']]);
    assert.deepEqual(readdirSync(foreign), ['inner', 'link'], 'and no folder is made there');
  });

  it('may be in a folder to which a link of its own user leads, even one with a path too long for it', async (t) => {
    const [folder, other] = [join(makeFolder(t), 'x'.repeat(200)), makeFolder(t)];
    mkdirSync(folder);
    symlinkSync(folder, join(other, 'link'));
    const socketPath = join(other, 'link', 'control.sock');
    const { server, address, client } = await startServer(t, { socketPath });
    assert.deepEqual([address.socketPath, await client.pause()], [socketPath, 'ok']);
    assert.deepEqual(readdirSync(folder), ['control.sock']);
    await server.close();
    assert.deepEqual(readdirSync(folder), []);
  });

  it("may be in a folder of root with the sticky bit, or in its user's own, for a user who is not root", async (t) => {
    const [shared, own, other] = [makeFolder(t), makeFolder(t), makeFolder(t)];
    chmodSync(shared, 0o1777);
    chmodSync(other, 0o1777);
    if (ROOT_ONLY.skip === false) chownSync(other, 65_533, -1);
    const host = runHost(t, `
      ${becomeNobody(own)}
      for (const folder of ${JSON.stringify([shared, own, other])}) {
        const server = new WebApiServer({ systemStatus: () => ACTIVE, socketPath: folder + '/control.sock' });
        say(await server.runInBackground().then(() => 'listening', ({ code }) => code));
        await server.close();
      }
    `);
    await host.ends('listening', 'listening', ROOT_ONLY.skip === false ? 'EACCES' : 'listening');
    assert.deepEqual([shared, own, other].flatMap((folder) => readdirSync(folder)), []);
  });

  it('is removed by close() only as long as it is the same file, under its own name', async (t) => {
    const socketPath = makeSocketPath(t);
    const folder = dirname(socketPath);
    const rows: [name: string, act: () => unknown, left: string[]][] = [
      ['removed', () => rmSync(socketPath), []],
      ['replaced', () => {
        rmSync(socketPath);
        writeFileSync(socketPath, 'precious');
      }, ['control.sock']],
      ['moved', () => {
        linkSync(socketPath, `${socketPath}-link`);
        renameSync(socketPath, `${socketPath}-moved`);
      }, ['control.sock-link', 'control.sock-moved']],
      ['the folder removed', () => rmSync(folder, { recursive: true }), []],
    ];
    for (const [name, act, left] of rows) {
      const { server, client } = await startServer(t, { socketPath });
      assert.equal(await client.pause(), 'ok');
      act();
      await server.close();
      assert.deepEqual(takeAll(server), ['pause'], name);
      assert.deepEqual(existsSync(folder) ? readdirSync(folder).sort() : [], left, name);
      rmSync(folder, { recursive: true, force: true });
      mkdirSync(folder);
    }
  });

  it('has a path of at most 94 bytes', async (t) => {
    const longest = `${makeFolder(t)}/ü`.padEnd(93, 'x'); // 93 characters, 94 bytes
    assert.equal(Buffer.byteLength(longest), 94);
    const { client } = await startServer(t, { socketPath: longest });
    assert.equal(await client.getStatus(), ACTIVE);
    const socketPath = `${longest}x`;
    const message = `socketPath must be at most 94 bytes long, without NUL, got ${inspect(socketPath)}`;
    for (const path of [socketPath, relative(process.cwd(), socketPath)]) { // the absolute path counts
      const expected = { name: 'RangeError', message };
      assert.throws(() => new WebApiServer({ systemStatus: () => ACTIVE, socketPath: path }), expected);
      assert.throws(() => new WebApiClient(undefined, undefined, { socketPath: path }), expected);
    }
  });
});

describe('WebApiClient on a Unix socket', SUITE, () => {
  it("sends nothing to another user's server", ROOT_ONLY, async (t) => {
    const socketPath = makeSocketPath(t);
    const link = `${socketPath}-link`;
    const { requests } = await startForeign(t, () => {}, socketPath);
    chownSync(socketPath, 65534, 65534);
    symlinkSync(socketPath, link);
    for (const path of [socketPath, link]) {
      const client = new WebApiClient(undefined, undefined, { socketPath: path, token: TOKEN });
      const error = `unix:${path} does not respond: '${socketPath}' is not trusted, because it belongs to user 65534`;
      const reply = { ok: false, error, phase: 'connect', body: {}, statusCode: undefined, code: 'EACCES' };
      assert.deepEqual(await client.request('pause'), reply);
    }
    assert.deepEqual(requests, []);
  });

  it('sends nothing if there is no socket, even if another user puts one there at once', ROOT_ONLY, async (t) => {
    const folder = makeFolder(t);
    chmodSync(folder, 0o1777);
    const socketPath = join(folder, 'control.sock');
    const { requests } = await startForeign(t, () => {}, `${socketPath}-`);
    chownSync(`${socketPath}-`, 65534, 65534);
    const { statSync } = fs;
    t.mock.method(fs, 'statSync', (path: string, ...options: []) => {
      try {
        return statSync(path, ...options);
      } finally {
        if (path === socketPath) renameSync(`${socketPath}-`, socketPath);
      }
    });
    const client = new WebApiClient(undefined, undefined, { socketPath, token: TOKEN });
    const reply = await client.request('pause');
    assert.deepEqual([!reply.ok && reply.code, !reply.ok && reply.phase, requests], ['ENOENT', 'connect', []]);
  });

  it('sends nothing through a folder to which others can write, or that belongs to others', ROOT_ONLY, async (t) => {
    const socketPath = makeSocketPath(t);
    const { client } = await startServer(t, { socketPath });
    for (const [mode, owner, problem] of [
      [0o777, 0, `others can write to it; chmod go-w '${dirname(socketPath)}'`],
      [0o700, 65534, 'it belongs to user 65534'],
    ] as const) {
      chmodSync(dirname(socketPath), mode);
      chownSync(dirname(socketPath), owner, -1);
      const reply = await client.request('pause');
      assert.ok(!reply.ok && reply.error.endsWith(`'${dirname(socketPath)}' is not trusted, because ${problem}`));
    }
    chownSync(dirname(socketPath), 0, -1);
    assert.equal(await client.pause(), 'ok');
  });

  it('sends requests to the server of root, and to its own', ROOT_ONLY, async (t) => {
    const { address: { socketPath } } = await startServer(t, { socketPath: makeSocketPath(t) });
    chmodSync(dirname(String(socketPath)), 0o755);
    chmodSync(String(socketPath), 0o666);
    const folder = makeFolder(t);
    const host = runHost(t, `
      ${becomeNobody(folder)}
      const own = new WebApiServer({ systemStatus: () => ACTIVE, socketPath: ${JSON.stringify(join(folder, 'own'))} });
      const { socketPath } = await own.runInBackground();
      for (const path of [socketPath, ${JSON.stringify(socketPath)}]) {
        say(await new WebApiClient(undefined, undefined, { socketPath: path }).pause());
      }
      process.exit();
    `);
    await host.ends('ok', 'ok');
  });

  it('reports a socket without a server as OFFLINE', async (t) => {
    const folder = makeFolder(t);
    writeFileSync(join(folder, 'file'), '');
    for (const name of ['nothing', 'file', '.']) {
      const socketPath = join(folder, name);
      const client = new WebApiClient(undefined, undefined, { socketPath });
      assert.equal(await client.getStatus(), OFFLINE);
      assert.equal(await client.pause(), null);
      const reply = await client.request('status');
      assert.ok(!reply.ok && reply.phase !== 'answered');
      assert.ok(reply.error.startsWith(`unix:${socketPath} does not respond: `), reply.error);
    }
  });
});

describe('A thread on a Unix socket', { ...SUITE, concurrency: 1 }, () => {
  it('does not take the path back after a restart if another server has it', async (t) => {
    collectWarnings(t);
    const workers = collectThreads(t);
    const socketPath = makeSocketPath(t);
    const { server } = await startServer(t, { socketPath });
    await workers[0]?.terminate();
    rmSync(socketPath);
    await startForeign(t, () => {}, socketPath);
    const before = contentsOf(dirname(socketPath));
    await until(() => workers.length === 3); // the second one has tried
    assert.deepEqual(contentsOf(dirname(socketPath)), before);
    await server.close();
    assert.deepEqual(contentsOf(dirname(socketPath)), before);
  });
});

describe('socketPath', SUITE, () => {
  it('is absolute from the start: the program may change its directory', async (t) => {
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
});

/** Runs a host that serves on this socket, and says so. */
function startHostAt(t: TestContext, socketPath: string): ReturnType<typeof runHost> {
  return runHost(t, `
    const server = new WebApiServer({ systemStatus: () => PAUSED, socketPath: ${JSON.stringify(socketPath)} });
    await server.runInBackground();
    say('listening');
    await server.nextCommand();
  `);
}
