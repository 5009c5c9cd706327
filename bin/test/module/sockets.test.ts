// The file of a Unix socket: who can open it, what it replaces, who removes it.

import assert from 'node:assert/strict';
import {
  chmodSync, chownSync, existsSync, linkSync, lstatSync, lutimesSync, mkdirSync, readdirSync, readlinkSync,
  renameSync, rmSync, symlinkSync, utimesSync, writeFileSync,
} from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { describe, it } from 'node:test';
import { inspect } from 'node:util';
import {
  LIMIT, POST, becomeNobody, collectWarnings, collectThreads, contentsOf, leaveSocket, outcomeOf, runHost, send,
  startImpostor, takeAll,
} from './helpers.ts';
import { TOKEN, makeFolder, makeSocketPath, startServer as start, until } from '../helpers.ts';
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
            const isPrivate = entry.isSocket() ? entry.mode === 0o140600 : (entry.mode & 0o77) === 0;
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
    await host.ends([['140600 control.sock'], 0]);
  });

  it('may be out of reach of close(), which responds to a pending request all the same', async (t) => {
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
    ['a live server', 'EADDRINUSE', (t, path) => startImpostor(t, () => {}, path)],
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
    assert.equal(outcomeOf(await send(socketPath, POST)), 'ok');
    assert.deepEqual(takeAll(server), ['pause']);
  });

  it('is not taken from a live server, which goes on', async (t) => {
    const socketPath = makeSocketPath(t);
    const { server, client } = await start(t, { socketPath, maxConnections: 1 });
    assert.equal(await client.pause(), 'ok');
    await assert.rejects(start(t, { socketPath }), { code: 'EADDRINUSE' });
    await until(async () => (await client.resume()) === 'ok'); // the second server's connection may still be open
    assert.deepEqual(takeAll(server), ['pause', 'resume']);
    assert.ok(lstatSync(socketPath).isSocket());
  });

  it('has exactly one server after a race to replace that of a killed one', async (t) => {
    for (let round = 0; round < 3; round += 1) {
      const socketPath = makeSocketPath(t);
      await leaveSocket(socketPath);
      const servers = Array.from({ length: 6 }, () => new WebApiServer({ systemStatus: () => ACTIVE, socketPath }));
      const codes = await Promise.all(servers.map((server) => {
        return server.runInBackground().then(() => 'listening', ({ code }: NodeJS.ErrnoException) => String(code));
      }));
      assert.deepEqual(codes.sort(), [...Array<string>(5).fill('EADDRINUSE'), 'listening'], `round ${round}`);
      assert.equal(await new WebApiClient(undefined, undefined, { socketPath }).pause(), 'ok');
      assert.deepEqual(servers.flatMap(takeAll), ['pause']);
      assert.deepEqual(readdirSync(dirname(socketPath)), ['control.sock']);
      await Promise.all(servers.map((server) => server.close()));
    }
  });

  it('has a lock, which another server respects unless a server that died long ago has left it', async (t) => {
    const socketPath = makeSocketPath(t);
    const lock = `${socketPath}.start`;
    const setAge = (seconds: number): void => utimesSync(lock, 0, Date.now() / 1000 - seconds);
    mkdirSync(lock);
    await leaveSocket(`${lock}/s`);
    const message = `Cannot serve at ${socketPath}: another server is starting there (if not, remove ${lock})`;
    for (const seconds of [0, -3600]) { // an hour ahead: a clock that was wrong
      setAge(seconds);
      await assert.rejects(start(t, { socketPath }), { code: 'EADDRINUSE', message });
    }
    setAge(3600);
    const { client } = await start(t, { socketPath });
    assert.equal(await client.getStatus(), ACTIVE);
    assert.deepEqual(readdirSync(dirname(socketPath)), ['control.sock']);
  });

  it('has a lock of its own: a folder of another user, one with other contents and a link stay', async (t) => {
    const socketPath = makeSocketPath(t);
    const lock = `${socketPath}.start`;
    const other = ROOT_ONLY.skip === false ? () => chownSync(lock, 65534, 65534) : null; // root only
    for (const prepare of [() => writeFileSync(`${lock}/precious`, ''), other]) {
      if (prepare === null) continue;
      mkdirSync(lock);
      prepare();
      utimesSync(lock, 0, 0);
      const before = contentsOf(lock);
      await assert.rejects(start(t, { socketPath }), { code: 'EADDRINUSE' });
      assert.deepEqual(contentsOf(lock), before);
      rmSync(lock, { recursive: true });
    }
    const folder = makeFolder(t);
    writeFileSync(join(folder, 's'), 'precious');
    symlinkSync(folder, lock);
    lutimesSync(lock, 0, 0);
    await assert.rejects(start(t, { socketPath }), { code: 'EADDRINUSE' });
    assert.deepEqual([readlinkSync(lock), readdirSync(folder)], [folder, ['s']]);
  });

  it('is not created in a folder that does not exist or is not open to its user', async (t) => {
    const folder = makeFolder(t);
    writeFileSync(join(folder, 'file'), '');
    const before = contentsOf(folder);
    for (const [name, code] of [['nowhere', 'ENOENT'], ['file', 'ENOTDIR']] as const) {
      await assert.rejects(start(t, { socketPath: join(folder, name, 'control.sock') }), { code });
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
      const { server, client } = await start(t, { socketPath });
      assert.equal(await client.pause(), 'ok');
      act();
      await server.close();
      assert.deepEqual(takeAll(server), ['pause'], name);
      assert.deepEqual(existsSync(folder) ? readdirSync(folder).sort() : [], left, name);
      rmSync(folder, { recursive: true, force: true });
      mkdirSync(folder);
    }
  });

  it("is not removed by close() if it is another server's by now", async (t) => {
    const socketPath = makeSocketPath(t);
    const { server } = await start(t, { socketPath });
    rmSync(socketPath);
    const { server: next } = await start(t, { socketPath, systemStatus: () => PAUSED });
    await server.close();
    assert.equal(await new WebApiClient(undefined, undefined, { socketPath }).getStatus(), PAUSED);
    await next.close();
    assert.deepEqual(readdirSync(dirname(socketPath)), []);
  });

  it('has a path of at most 94 bytes', async (t) => {
    const longest = `${makeFolder(t)}/ü`.padEnd(93, 'x'); // 93 characters, 94 bytes
    assert.equal(Buffer.byteLength(longest), 94);
    const { client } = await start(t, { socketPath: longest });
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
    const received: string[] = [];
    await startImpostor(t, (_socket, request) => received.push(request), socketPath);
    chownSync(socketPath, 65534, 65534);
    symlinkSync(socketPath, link);
    for (const path of [socketPath, link]) {
      const client = new WebApiClient(undefined, undefined, { socketPath: path, token: TOKEN });
      const error = `unix:${path} does not respond: no request was sent, because the socket belongs to user 65534`;
      const reply = { ok: false, error, answered: false, sent: false, statusCode: undefined };
      assert.deepEqual(await client.request('pause'), reply);
    }
    assert.deepEqual(received, []);
  });

  it('sends requests to the server of root, and to its own', ROOT_ONLY, async (t) => {
    const { address: { socketPath } } = await start(t, { socketPath: makeSocketPath(t) });
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
      assert.ok(!reply.ok && !reply.answered && reply.error.startsWith(`unix:${socketPath} does not respond: `));
    }
  });
});

describe('A thread on a Unix socket', { ...SUITE, concurrency: 1 }, () => {
  it('does not take the path back after a restart if another server has it by now', async (t) => {
    collectWarnings(t);
    const workers = collectThreads(t);
    const socketPath = makeSocketPath(t);
    const { server } = await start(t, { socketPath });
    await workers[0]?.terminate();
    rmSync(socketPath);
    await startImpostor(t, () => {}, socketPath);
    const before = contentsOf(dirname(socketPath));
    await until(() => workers.length === 4); // it has tried twice
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
