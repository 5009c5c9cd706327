// control-client and the systems whose sockets are in a folder: list, and --all with each command.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { chownSync, mkdirSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer as createHttpServer } from 'node:http';
import { createServer } from 'node:net';
import { join, relative } from 'node:path';
import { describe, it } from 'node:test';
import { SystemStatus } from '../../../../control.ts';
import {
  assertHarmless, defer, HARMLESS, HOSTILE, lacksSockets, launchSystem, makeFolder, NO_TOKEN, runProgram,
  start, startProgram, startServer, TOKEN,
} from '../../helpers.ts';
import type { Ended, LaunchedSystem } from '../../helpers.ts';
import type { System } from '../../../../control.ts';
import type { IncomingMessage } from 'node:http';
import type { TestContext } from 'node:test';

const isRoot = process.geteuid?.() === 0;
const AT_ONCE = { concurrency: 4, skip: lacksSockets() };

describe('control-client list', AT_ONCE, () => {
  it('tells name, process, status, since when and target of each live system, and removes nothing', async (t) => {
    const { folder, launch } = openFolder(t);
    const paused = await launch('train: 7B');
    await paused.client.pause();
    await paused.client.waitFor(SystemStatus.PAUSED);
    await launch('eval');
    await makeOtherFiles(t, folder);
    const before = readdirSync(folder).sort();

    const { code, stdout, stderr } = await run(t, ['list', '--dir', folder]);
    assert.deepEqual([code, stderr], [0, '']);
    const pid = process.pid;
    const [first = '', second = '', ...rest] = linesOf(stdout);
    assert.deepEqual(first.split(/ {2,}/), [
      'eval', `${pid}`, 'active', first.split(/ {2,}/)[3], `unix:${folder}/eval-${pid}.sock`,
    ]);
    assert.deepEqual(second.split(/ {2,}/), [
      'train: 7B', `${pid}`, 'paused', second.split(/ {2,}/)[3], `unix:${folder}/train__7B-${pid}.sock`,
    ]);
    for (const line of [first, second]) assert.match(line.split(/ {2,}/)[3] ?? '', /^\d+ (s|min)$/);
    assert.equal(first.indexOf('unix:'), second.indexOf('unix:'), 'columns');
    assert.deepEqual(rest, []);

    const json = linesOf((await run(t, ['list', '--json', '--dir', relative('.', folder)])).stdout);
    const rows = json.map((line) => JSON.parse(line) as Record<string, unknown>);
    const { body } = await paused.client.request('info') as { body?: Record<string, unknown> };
    assert.equal(rows[1]?.['since'], body?.['since']);
    assert.deepEqual(rows.map(({ since, ...others }) => others), [
      { target: `unix:${folder}/eval-${pid}.sock`, name: 'eval', pid, status: 'active' },
      { target: `unix:${folder}/train__7B-${pid}.sock`, name: 'train: 7B', pid, status: 'paused' },
    ]);
    assert.deepEqual(readdirSync(folder).sort(), before);
  });

  it('looks in the folder of the session by default', async (t) => {
    const { root: session, launch } = openFolder(t, 'control');
    await launch('demo');
    const { stdout } = await run(t, ['list'], { XDG_RUNTIME_DIR: session });
    assert.match(stdout, new RegExp(`^demo .* unix:${session}/control/demo-${process.pid}\\.sock\\n$`));
  });

  it('refuses a file as the default folder', async (t) => {
    const session = makeFolder(t);
    writeFileSync(join(session, 'control'), '');
    const { code, stdout, stderr } = await run(t, ['list'], { XDG_RUNTIME_DIR: session });
    assert.deepEqual([code, stdout], [2, '']);
    assert.match(stderr, /^control-client: --dir must be a folder that can be read, got '.*\/control': ENOTDIR: .*\n$/);
  });

  it('is sorted by path, whatever the order of the responses', async (t) => {
    const folder = makeFolder(t);
    const asked = defer();
    await startWeb(t, join(folder, 'a-1.sock'), () => asked.promise.then(() => ({ status: 'active', name: 'x' })));
    for (const name of ['c-3', 'b-2']) {
      await startWeb(t, join(folder, `${name}.sock`), () => {
        asked.resolve();
        return { status: 'active', name: 'x' };
      });
    }
    const { stdout } = await run(t, ['list', '--dir', folder]);
    const targets = linesOf(stdout).map((line) => line.split('/').at(-1));
    assert.deepEqual(targets, ['a-1.sock', 'b-2.sock', 'c-3.sock']);
  });

  it('tells what keeps a system from answering, with name and process from the name of its socket', async (t) => {
    const folder = makeFolder(t);
    const silent = await startSilent(t, join(folder, 'my-job-77.sock'));
    await startServer(t, { socketPath: `${folder}/`, name: 'locked', token: TOKEN });
    const locked = `unix:${folder}/locked-${process.pid}.sock`;
    const args = ['list', '--dir', folder];
    const [{ code, stdout, stderr }, asJson, allowed] = await Promise.all([ // each waits for the silent one
      run(t, args), run(t, [...args, '--json']), run(t, args, { CONTROL_TOKEN: TOKEN }),
    ]);
    assert.deepEqual([code, stderr], [0, '']);
    assert.deepEqual(linesOf(stdout).map((line) => line.split(/ {2,}/).filter((cell) => cell !== '')), [
      ['locked', `${process.pid}`, 'missing or wrong token', locked],
      ['my-job', '77', 'no answer', `unix:${silent}`],
    ]);
    assert.deepEqual(linesOf(asJson.stdout).map((line) => JSON.parse(line)), [
      { target: locked, name: 'locked', pid: process.pid, status: 'missing or wrong token' },
      { target: `unix:${silent}`, name: 'my-job', pid: 77, status: 'no answer' },
    ]);
    assert.match(linesOf(allowed.stdout)[0] ?? '', /^locked .* active /);
  });

  it('prints no control characters, neither of a server nor of the name of a socket', async (t) => {
    const folder = makeFolder(t);
    const fields = ['name', 'pid', 'since', 'by', 'reason'];
    const info = Object.fromEntries(fields.map((field) => [field, HOSTILE]));
    await startWeb(t, join(folder, 'a\x1b[2J\n-5.sock'), () => ({ ...info, status: 'active' }));
    await startWeb(t, join(folder, 'b\x1b[2J-6.sock'), () => ({ ...info, status: HOSTILE }));
    for (const option of [[], ['--json']]) {
      const { code, stdout, stderr } = await run(t, ['list', ...option, '--dir', folder]);
      assert.deepEqual([code, stderr], [0, '']);
      assert.equal(linesOf(stdout).length, 2, stdout);
      assertHarmless(stdout);
      if (option.length === 0) assert.ok(stdout.startsWith(HARMLESS), stdout);
    }
  });

  it('sends nothing to the socket of another user, and says so', { skip: !isRoot && 'needs root' }, async (t) => {
    const { folder, launch } = openFolder(t);
    const path = join(folder, 'foreign-5.sock');
    const { requests } = await startWeb(t, path, () => ({ status: 'active' }));
    chownSync(path, 12345, 12345);
    await launch('own');
    const { code, stdout, stderr } = await run(t, ['list', '--dir', folder]);
    assert.match(stdout, /^own .*\n$/);
    assert.deepEqual([code, requests], [0, []]);
    assert.match(stderr, /^control-client: [^\n]*foreign-5\.sock: [^\n]*belongs to user 12345\n$/);
  });
});

describe('control-client --all', AT_ONCE, () => {
  it('is for all live systems of the folder, with any command', async (t) => {
    const { folder, launch } = openFolder(t);
    const systems = [await launch('a'), await launch('long name', { saveState: () => 'x' })];
    await makeOtherFiles(t, folder);
    const targets = ['a', 'long_name'].map((name) => `unix:${folder}/${name}-${process.pid}.sock`);
    const width = Math.max(...targets.map((target) => target.length));
    const labels = targets.map((target) => target.padEnd(width));
    const lines = (...texts: string[]): string[] => texts.map((text, index) => `${labels[index]}  ${text}`);
    const rows: [args: string[], ...texts: string[]][] = [
      [['status'], 'active', 'active'],
      [['pause', '--wait', '--by', 'ana', '--reason', 'GPU needed'], 'paused', 'paused'],
      [['wait', 'paused'], 'paused', 'paused'],
      [['save-state', '--wait'], 'ok', 'x'],
      [['resume', '--wait'], 'active', 'active'],
      [['save-state'], 'ok', 'ok'],
    ];
    for (const [args, ...texts] of rows) {
      const { code, stdout, stderr } = await run(t, [...args, '--all', '--dir', folder]);
      assert.deepEqual([code, stderr], [0, ''], `${args}`);
      assert.deepEqual(linesOf(stdout).sort(), lines(...texts), `${args}`);
    }
    for (const { client } of systems) {
      const { body } = await client.request('info') as { body?: { commands: Record<string, unknown>[] } };
      const [first] = body?.commands ?? [];
      assert.deepEqual([first?.['command'], first?.['by'], first?.['reason']], ['pause', 'ana', 'GPU needed']);
    }
    const info = linesOf((await run(t, ['info', '--all', '--dir', folder])).stdout);
    for (const line of lines('status    active', 'status    active')) assert.ok(info.includes(line), line);
    assert.ok(info.every((line) => labels.some((label) => line.startsWith(`${label}  `))));
    const outcomes = linesOf((await run(t, ['status', '--json', '--all', '--dir', folder])).stdout);
    const expected = targets.map((target) => ({ target, status: 'active' }));
    assert.deepEqual(outcomes.sort().map((line) => JSON.parse(line)), expected);

    const ended = await run(t, ['shutdown', '--wait', '--all', '--dir', folder]);
    assert.deepEqual([ended.code, linesOf(ended.stdout).sort()], [0, lines('offline', 'offline')], ended.stderr);
    for (const { finished } of systems) await finished;
  });

  it('watches all systems', async (t) => {
    const { folder, launch } = openFolder(t);
    const { client } = await launch('a');
    await launch('b');
    const { child, shows, output } = startProgram(t, 'client', ['watch', '--all', '--dir', folder]);
    const target = (name: string): string => `unix:${folder}/${name}-${process.pid}\\.sock`;
    for (const name of ['a', 'b']) await shows(new RegExp(`${target(name)}  active.*\\n`));
    await client.pause();
    await shows(new RegExp(`${target('a')}  paused.*\\n`));
    assert.doesNotMatch(output(), new RegExp(`${target('b')}  paus`));
    child.kill('SIGTERM');
  });

  it('ends with the highest exit code of all', async (t) => {
    const { folder, launch } = openFolder(t);
    const { client } = await launch('a');
    const args = ['pause', '--wait', '--timeout', '20', '--all', '--dir', folder];
    assert.equal((await run(t, args)).code, 0);
    await startServer(t, { socketPath: `${folder}/`, name: 'locked', token: TOKEN });
    const denied = await run(t, args);
    assert.equal(denied.code, 1);
    assert.equal(denied.stderr, `control-client: unix:${folder}/locked-${process.pid}.sock: ${NO_TOKEN}\n`);
    const silent = await startSilent(t, join(folder, 'silent-5.sock'));
    const status = await run(t, ['status', '--all', '--dir', folder]);
    assert.equal(status.code, 5);
    assert.match(status.stdout, new RegExp(`^unix:${silent} +no answer: `, 'm'));
    assert.match(status.stdout, new RegExp(`a-${process.pid}\\.sock +paused\\n`));
    assert.equal(await client.getStatus(), SystemStatus.PAUSED);
  });

  it('does not mind the address in the environment', async (t) => {
    const { root: session, launch } = openFolder(t, 'control');
    await launch('a');
    const env = { XDG_RUNTIME_DIR: session, CONTROL_SOCKET: '/nowhere/x.sock' };
    const expected = { code: 0, stdout: `unix:${session}/control/a-${process.pid}.sock  active\n`, stderr: '' };
    assert.deepEqual(await run(t, ['status', '--all'], env), expected);
  });
});

describe('control-client and a folder', AT_ONCE, () => {
  it('says that no system is live: list with exit code 0, --all with 3', async (t) => {
    const [empty, other, session] = [makeFolder(t), makeFolder(t), makeFolder(t)];
    await makeOtherFiles(t, other);
    const before = readdirSync(other).sort();
    const places: [folder: string, args: string[]][] = [
      [empty, ['--dir', empty]], [other, ['--dir', other]], [join(session, 'control'), []],
    ];
    const commands: [code: number, args: string[]][] = [
      [0, ['list']], [0, ['list', '--json']], [3, ['status', '--all']], [3, ['shutdown', '--wait', '--all']],
      [3, ['watch', '--all']], [3, ['wait', 'offline', '--all']],
    ];
    await Promise.all(places.map(async ([folder, place]) => {
      for (const [code, args] of commands) {
        const ended = await run(t, [...args, ...place], { XDG_RUNTIME_DIR: session });
        const line = `control-client: no live system in '${folder}'\n`;
        assert.deepEqual(ended, { code, stdout: '', stderr: line }, `${args}`);
      }
    }));
    assert.deepEqual(readdirSync(other).sort(), before);
  });

  const FOLDER = /^--dir must be a folder that can be read, got '.*': E(NOENT|NOTDIR): /;
  const wrong: [args: string[], line: string | RegExp][] = [
    ...['list', '--all'].flatMap((owner): typeof wrong => {
      const args = owner === 'list' ? ['list'] : ['pause', '--all'];
      const options: [name: string, value: string][] = [
        ['host', 'box'], ['port', '80'], ['socket', '/nowhere/x.sock'], ['targets', '/nowhere/x'],
      ];
      return [
        ...options.map(([name, value]): typeof wrong[number] => {
          const line = `--${name} and ${owner} are mutually exclusive: ${owner} is for the systems of a folder`;
          return [[...args, `--${name}`, value], line];
        }),
        [[...args, 'box:80'], `unexpected argument 'box:80': ${owner} takes no targets`],
        [[...args, '--dir', '/nowhere'], FOLDER],
        [[...args, '--dir', 'package.json'], FOLDER],
        [[...args, '--dir='], '--dir must not be empty'],
        [args, '--dir is required, because XDG_RUNTIME_DIR is not set'],
      ];
    }),
    [['status', '--dir', '.'], '--dir requires --all or list'],
    [['pause', '--dir', '.', 'box:80'], '--dir requires --all or list'],
    [['list', '--wait'], "--wait requires pause, resume, save-state or shutdown, got 'list'"],
    [['list', '--reason', 'x'], "--reason requires pause, resume, save-state or shutdown, got 'list'"],
  ];
  for (const [args, line] of wrong) {
    it(`rejects: control-client ${args.join(' ')}`, async (t) => {
      const { code, stdout, stderr } = await run(t, args, { XDG_RUNTIME_DIR: undefined });
      assert.deepEqual([code, stdout], [2, '']);
      const [, message = stderr] = /^control-client: ([^\n]*)\n$/.exec(stderr) ?? [];
      if (typeof line === 'string') assert.equal(message, line);
      else assert.match(message, line);
    });
  }

  it('takes an empty XDG_RUNTIME_DIR for none', async (t) => {
    const { code, stderr } = await run(t, ['list'], { XDG_RUNTIME_DIR: '' });
    assert.deepEqual([code, stderr], [2, 'control-client: --dir is required, because XDG_RUNTIME_DIR is not set\n']);
  });

  it('is no address of one system, for any client', async (t) => {
    const folder = `${makeFolder(t)}/`;
    const rest = `must be the path of a socket, not of a folder, got '${folder}'`;
    const cases: [program: string, args: string[], name: string, env?: NodeJS.ProcessEnv][] = [];
    for (const [program, ...args] of [['client', 'status'], ['console'], ['kbctl']] as const) {
      cases.push([program, [...args, '--socket', folder], '--socket']);
      cases.push([program, [...args], 'CONTROL_SOCKET', { CONTROL_SOCKET: folder }]);
    }
    cases.push(['client', ['status', `unix:${folder}`], `the path of the target 'unix:${folder}'`]);
    for (const [program, args, name, env] of cases) {
      const ended = await runProgram(t, program, args, '', env);
      const line = `control-${program}: ${name} ${rest}\n`;
      assert.deepEqual(ended, { code: 2, stdout: '', stderr: line }, `${program} ${args}`);
    }
  });
});

// ───── Helpers ───────────────────────────────────────────────────────────────────────────────────────────────────

interface Opened {
  /** That of all. */
  root: string;
  folder: string;
  /** Launches a system with a socket in the folder, in this process: names tell them apart. */
  launch(name: string, hooks?: Partial<System>): Promise<LaunchedSystem>;
}

/** A new folder with systems. They end before it is removed, because their clients need their sockets. */
function openFolder(t: TestContext, name: string = ''): Opened {
  const systems: LaunchedSystem[] = [];
  t.after(() => Promise.all(systems.map(async ({ client, finished }) => {
    await client.shutdown();
    await finished;
  })));
  const root = makeFolder(t);
  const folder = join(root, name);
  mkdirSync(folder, { recursive: true });
  const launch: Opened['launch'] = async (name, hooks) => {
    const webApiOptions = { socketPath: `${folder}/` };
    const system = await launchSystem(t, hooks, { name, webApiAddress: undefined, webApiOptions });
    systems.push(system);
    return system;
  };
  return { root, folder, launch };
}

/** Puts what is no live system into the folder: dead sockets, files, folders, links, and a socket of another suffix. */
async function makeOtherFiles(t: TestContext, folder: string): Promise<void> {
  const source = `require('net').createServer().listen(${JSON.stringify(join(folder, 'dead-1.sock'))}, () => {
    console.log('listening');
    setInterval(() => {}, 1000);
  })`;
  const dead = start(t, process.execPath, ['--eval', source]);
  await dead.shows(/listening/);
  dead.child.kill('SIGKILL');
  await dead.ended;
  writeFileSync(join(folder, 'file-2.sock'), '');
  mkdirSync(join(folder, 'folder-3.sock'));
  symlinkSync(join(folder, 'nowhere'), join(folder, 'link-4.sock'));
  await startSilent(t, join(folder, 'socket'));
  await startSilent(t, `${folder}/`.padEnd(95, 'x') + '.sock'); // longer than the path of any server
}

/** A web API that responds as told, and what it was asked. */
async function startWeb(
  t: TestContext,
  socketPath: string,
  respond: (request: IncomingMessage) => object | Promise<object>,
): Promise<{ requests: string[] }> {
  const requests: string[] = [];
  const server = createHttpServer(async (request, response) => {
    requests.push(`${request.url}`);
    response.writeHead(200, { 'Content-Type': 'application/json' }).end(JSON.stringify(await respond(request)));
  });
  t.after(() => server.close().closeAllConnections());
  await once(server.listen(socketPath), 'listening');
  return { requests };
}

/** A server that takes connections and never responds. Returns its path. */
async function startSilent(t: TestContext, socketPath: string): Promise<string> {
  const server = createServer((socket) => {
    socket.on('error', () => {});
    t.after(() => socket.destroy());
  });
  t.after(() => server.close());
  await once(server.listen(socketPath), 'listening');
  return socketPath;
}

function run(t: TestContext, args: string[], env?: NodeJS.ProcessEnv): Promise<Ended> {
  return runProgram(t, 'client', args, '', env);
}

function linesOf(text: string): string[] {
  return text.split('\n').slice(0, -1);
}
