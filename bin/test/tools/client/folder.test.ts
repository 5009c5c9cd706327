// control-client and the systems whose sockets are in a folder: list, --all, and dead sockets.

import assert from 'node:assert/strict';
import {
  chownSync, existsSync, mkdirSync, readdirSync, renameSync, symlinkSync, utimesSync, writeFileSync,
} from 'node:fs';
import { join, relative } from 'node:path';
import { describe, it } from 'node:test';
import { SystemStatus } from '../../../../control.ts';
import { freePort, launchSystem, makeFolder, NO_TOKEN, startProgram, startServer, TOKEN } from '../../helpers.ts';
import { contentsOf, leaveSocket } from '../../module/helpers.ts';
import { lacks } from '../../needs.ts';
import { until } from '../../wait.ts';
import { AT_ONCE, call, linesOf, run } from './helpers.ts';
import { openSession, startFull, startSilent } from './systems.ts';
import type { Ended } from '../../helpers.ts';
import type { TestContext } from 'node:test';

const SUITE = { ...AT_ONCE, skip: lacks('Unix') };

describe('control-client list', SUITE, () => {
  it('prints name, process, status, since when and target of each live system', async (t) => {
    const { folder, launch, serve } = openSession(t);
    const paused = await launch('train: 7B');
    await paused.client.pause();
    await paused.client.waitFor(SystemStatus.PAUSED);
    await launch('eval');
    const { target, end } = await serve('agent-5', ({ url }) => { // a server that lacks /api/info
      return url === '/api/status' ? { status: 3 } : { code: 404, error: 'Not found' };
    });
    await makeOtherFiles(t, folder);
    const { code, stdout, stderr } = await call(['list', '--dir', folder]);
    assert.deepEqual([code, stderr], [0, '']);
    const pid = process.pid;
    end();
    assert.deepEqual(linesOf(stdout.replaceAll(/\d+ (s|min) +/g, 'SINCE  ').replace(/ {2,}/g, '  ')), [
      `agent  5  paused  ${target}`,
      `eval  ${pid}  active  SINCE  unix:${folder}/eval-${pid}.sock`,
      `train__7B  ${pid}  paused  SINCE  unix:${folder}/train__7B-${pid}.sock`, // as a target, it would be a host
    ]);
    const json = linesOf((await call(['list', '--json', '--dir', relative('.', folder)])).stdout);
    const rows = json.map((line) => JSON.parse(line) as Record<string, unknown>);
    const { body } = await paused.client.request('info') as { body?: Record<string, unknown> };
    assert.equal(rows[1]?.['since'], body?.['since']);
    assert.deepEqual(rows[1]?.['holds'], body?.['holds']);
    assert.deepEqual(rows.map(({ since, holds, ...others }) => others), [
      { target: `unix:${folder}/eval-${pid}.sock`, name: 'eval', pid, status: 'active' },
      {
        target: `unix:${folder}/train__7B-${pid}.sock`, name: 'train: 7B', pid, status: 'paused', by: 'somebody',
      },
    ]);
  });

  it('prints only the targets, if there are any, also those that are offline', async (t) => {
    const { folder, launch } = openSession(t);
    for (const name of ['train-a', 'train-b', 'eval']) await launch(name);
    const { port } = await launchSystem(t, {}, { name: 'far' }).then(({ address }) => address);
    const free = await freePort();
    const file = join(folder, 'targets');
    writeFileSync(file, `127.0.0.1:${port}\ntrain-b # both\n`, { mode: 0o600 });
    const rows: [args: string[], names: string[], code: number][] = [
      [['train-?'], ['train-a', 'train-b'], 0], [['--targets', file], ['far', 'train-b'], 0],
      [['eval', `127.0.0.1:${free}`], ['eval', `127.0.0.1:${free}`], 3],
    ];
    for (const [args, names, expected] of rows) {
      const { code, stdout } = await call(['list', ...args, '--dir', folder, '--json']);
      const found = linesOf(stdout).map((line) => JSON.parse(line) as { name: string; status: string; port?: number });
      assert.deepEqual([code, found.map(({ name }) => name).sort()], [expected, names.sort()], `${args}`);
      for (const { name, status, port: shown } of found) {
        assert.equal(status, name.endsWith(`:${free}`) ? 'offline' : 'active');
        assert.equal(shown, name === 'far' ? port : undefined);
      }
    }
    const alone = await call(['list', '--port', `${port}`, '--json']);
    assert.deepEqual([alone.code, JSON.parse(alone.stdout).name], [0, 'far']);
    assert.match((await call(['list', '--port', `${port}`])).stdout, new RegExp(`  localhost:${port}\n$`));
  });

  it('finds control-demo and control-run, which also serve at a port', async (t) => {
    const session = makeFolder(t);
    const env = { CONTROL_DIR: join(session, 'control') };
    startProgram(t, 'demo', ['--port', '0', '--name', 'pole', '--states-dir', join(session, 'states')], env);
    startProgram(t, 'run', ['--port', '0', 'sleep', '60'], env);
    await until(async () => linesOf((await call(['list'], env)).stdout).length === 2);
    const { code, stdout } = await call(['pause', '--wait', 'pole', 'sleep'], env);
    assert.deepEqual([code, stdout.match(/^(pole|sleep) +paused$/gm)?.length], [0, 2], stdout);
    assert.equal((await call(['shutdown', '--wait', '--all'], env)).code, 0);
    await until(() => readdirSync(join(session, 'control')).length === 0); // it is offline a moment before that
  });

  it('prints why a system does not respond, with the name and process from its socket path', async (t) => {
    const folder = makeFolder(t);
    const silent = await startSilent(t, join(folder, 'my-job-77.sock'));
    await startServer(t, { socketPath: `${folder}/`, name: 'locked', token: TOKEN });
    const locked = `unix:${folder}/locked-${process.pid}.sock`;
    const args = ['list', '--dir', folder];
    const [{ code, stdout, stderr }, asJson, allowed] = await Promise.all([ // each waits for the silent one
      call(args), call([...args, '--json']), run(t, args, '', { CONTROL_TOKEN: TOKEN }),
    ]);
    assert.equal(code, 5);
    const [one, other, ...more] = linesOf(stderr);
    assert.deepEqual([one, more], [`control-client: locked: ${NO_TOKEN}`, []]);
    assert.match(other ?? '', /^control-client: my-job: has not responded within \d+(\.\d)? s$/);
    assert.deepEqual(linesOf(stdout).map((line) => line.split(/ {2,}/).filter((cell) => cell !== '')), [
      ['locked', `${process.pid}`, 'missing or wrong token', locked],
      ['my-job', '77', 'no answer', silent],
    ]);
    const [first, second] = linesOf(asJson.stdout).map((line) => JSON.parse(line) as { error: string });
    const status = 'missing or wrong token';
    assert.deepEqual(first, { target: locked, name: 'locked', pid: process.pid, status, error: NO_TOKEN });
    assert.match(second?.error ?? '', /^has not responded within \d+(\.\d)? s$/);
    const unanswered = { target: silent, name: 'my-job', pid: 77, status: 'no answer', error: '' };
    assert.deepEqual({ ...second, error: '' }, unanswered);
    assert.match(linesOf(allowed.stdout)[0] ?? '', /^locked .* active /);
  });

  it('sends nothing to the socket of another user, reports that, and leaves it there when it is dead', {
    skip: lacks('root'),
  }, async (t) => {
    const { folder, launch, serve } = openSession(t);
    const { requests } = await serve('foreign-5');
    const dead = join(folder, 'dead-1.sock');
    await leaveDead(dead);
    for (const path of [join(folder, 'foreign-5.sock'), dead]) chownSync(path, 12345, 12345);
    await launch('own');
    const { code, stdout, stderr } = await call(['list', '--dir', folder]);
    assert.match(stdout, /^foreign +5 +unknown +unix:.*\nown .*\n$/);
    assert.deepEqual([code, requests, existsSync(dead)], [3, [], true]);
    assert.match(stderr, /^control-client: foreign: [^\n]*belongs to user 12345; nothing was sent\n$/);
  });
});

describe('control-client --all', SUITE, () => {
  it('sends each command to all live systems of the folder, whatever the address in the environment', async (t) => {
    const { folder, env, launch } = openSession(t);
    const all = (...args: string[]): Promise<Ended> => {
      return call([...args, '--all'], { ...env, CONTROL_SOCKET: '/nowhere/x.sock' });
    };
    const systems = [await launch('a'), await launch('long name', { saveState: () => 'x' })];
    await makeOtherFiles(t, folder);
    const titles = ['a', 'long_name'].map((name) => `${name}-${process.pid}`);
    const labels = ['a        ', 'long_name'];
    const lines = (...texts: string[]): string[] => texts.map((text, index) => `${labels[index]}  ${text}`);
    const rows: [args: string[], ...texts: string[]][] = [
      [['status'], 'active', 'active'],
      [['pause', '--wait', '--by', 'ana', '--reason', 'GPU needed'], 'paused', 'paused'],
      [['save-state', '--wait'], 'ok', 'x'],
      [['resume', '--wait'], 'active', 'active'],
    ];
    for (const [args, ...texts] of rows) {
      const { code, stdout, stderr } = await all(...args);
      assert.deepEqual([code, stderr], [0, ''], `${args}`);
      assert.deepEqual(linesOf(stdout).sort(), lines(...texts), `${args}`);
    }
    for (const { client } of systems) {
      const { body } = await client.request('info') as { body: { commands?: Record<string, unknown>[] } };
      const [first] = body?.commands ?? [];
      assert.deepEqual([first?.['command'], first?.['by'], first?.['reason']], ['pause', 'ana', 'GPU needed']);
    }
    const info = linesOf((await all('info')).stdout);
    assert.ok(info.every((line) => labels.some((label) => line.startsWith(`${label}  `))));
    const outcomes = linesOf((await all('status', '--json')).stdout).sort().map((line) => JSON.parse(line));
    assert.deepEqual(outcomes, titles.map((title) => ({ target: `unix:${folder}/${title}.sock`, status: 'active' })));
    const ended = await all('shutdown', '--wait');
    assert.deepEqual([ended.code, linesOf(ended.stdout).sort()], [0, lines('offline', 'offline: x')], ended.stderr);
    for (const { finished } of systems) await finished;
  });
});

describe('control-client and a folder', SUITE, () => {
  it('says if nothing runs: list and wait offline exit with 0, wait with 4, others with 3', async (t) => {
    const [empty, other, session] = [makeFolder(t), makeFolder(t), makeFolder(t)];
    await makeOtherFiles(t, other);
    const places: [folder: string, args: string[]][] = [
      [empty, ['--dir', empty]], [other, ['--dir', other]], [join(session, 'control'), []],
    ];
    const limit = ['--timeout', '0.3'];
    const commands: [code: number, args: string[], stdout?: string][] = [
      [0, ['list']], [0, ['list', '--json']], [3, ['status'], 'offline\n'], [3, ['status', '--all'], 'offline\n'],
      [3, ['info']], [3, ['asks']], [3, ['run']], [3, ['pause']], [3, ['shutdown', '--wait']],
      [3, ['shutdown', '--wait', '--all']], [0, ['wait', 'offline'], 'offline\n'],
      [0, ['wait', 'offline', '--all'], 'offline\n'], [4, ['wait', 'paused', ...limit]],
      [4, ['wait', 'loss < 1', '--all', ...limit]],
    ];
    await Promise.all(places.map(async ([folder, place]) => {
      for (const [code, args, stdout = ''] of commands) {
        const ended = await call([...args, ...place], { CONTROL_DIR: join(session, 'control') });
        const line = /^control-client: (not \S.*: )?nothing runs in '(.*)'\n$/.exec(ended.stderr);
        assert.deepEqual([ended.code, ended.stdout, code === 4 || line?.[2]], [code, stdout, code === 4 || folder], `${args}`);
      }
    }));
  });
});

describe('control-client and the sockets of dead systems', { ...AT_ONCE, skip: lacks('Linux') }, () => {
  it('are removed by list and --all, which leave other files alone', async (t) => {
    const { folder, launch } = openSession(t);
    await launch('live');
    await makeOtherFiles(t, folder);
    await leaveDead(join(folder, 'young-5.sock'), Date.now() / 1000 - 5); // it may not listen yet
    const before = contentsOf(folder).filter(([name]) => name !== 'dead-1.sock');
    for (const command of [['list'], ['status', '--all']]) {
      await leaveDead(join(folder, 'dead-1.sock'));
      const { code, stdout, stderr } = await call([...command, '--dir', folder]);
      assert.deepEqual([code, linesOf(stdout).length, stderr], [0, 1, '']);
      assert.deepEqual(contentsOf(folder), before);
    }
  });

  it('stay if a new server replaces them in the meantime', async (t) => {
    const folder = makeFolder(t);
    const [path, next] = [join(folder, 'dead-1.sock'), join(folder, 'next')];
    const replacements: (() => void)[] = [
      () => renameSync(next, path),
      () => utimesSync(path, 1, 1), // as if the inode had been reused
    ];
    for (const replace of replacements) {
      for (const one of [path, next]) await leaveDead(one);
      const listing = call(['list', '--dir', folder]); // it was refused already, and does not know yet
      replace();
      await listing;
      assert.equal(existsSync(path), true, `${replace}`);
    }
    await call(['list', '--dir', folder]);
    assert.equal(existsSync(path), false);
  });

  it('do not include systems whose connection queue is full, which are reported', async (t) => {
    const folder = makeFolder(t);
    const path = join(folder, 'full-1.sock');
    await startFull(t, path);
    utimesSync(path, LONG_AGO, LONG_AGO);
    for (const args of [['status', '--all'], ['pause', 'full'], ['pause', '1']]) {
      const { code, stdout, stderr } = await call([...args, '--dir', folder]);
      assert.match(stdout + stderr, /^(control-client: )?full\b.*: its queue of connections is full\n$/);
      assert.equal(code, 5);
    }
    const { code, stdout } = await call(['list', '--dir', folder]);
    assert.match(stdout, /^full +1 +no answer .*\n$/);
    assert.equal(code, 5);
    assert.equal(existsSync(path), true);
  });
});

// ───── Helpers ───────────────────────────────────────────────────────────────────────────────────────────────────

const LONG_AGO = 1_000_000_000; // seconds

/** Leaves the socket of a killed server that was started at the given time. */
async function leaveDead(path: string, startedAt: number = LONG_AGO): Promise<void> {
  await leaveSocket(path);
  utimesSync(path, startedAt, startedAt);
}

/** Fills the folder with entries that are no live system: dead sockets, files, folders, links, another suffix. */
async function makeOtherFiles(t: TestContext, folder: string): Promise<void> {
  await leaveDead(join(folder, 'dead-1.sock'));
  writeFileSync(join(folder, 'file-2.sock'), '');
  mkdirSync(join(folder, 'folder-3.sock'));
  symlinkSync(join(folder, 'nowhere'), join(folder, 'link-4.sock'));
  await startSilent(t, join(folder, 'socket'));
  await startSilent(t, `${folder}/`.padEnd(95, 'x') + '.sock'); // longer than the path of any server
}
