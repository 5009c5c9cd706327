// control-client and the sockets in a folder: those of real programs, of dead and hanging systems, and of other users.

import assert from 'node:assert/strict';
import {
  chownSync, existsSync, mkdirSync, readdirSync, renameSync, symlinkSync, utimesSync, writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { makeFolder, startProgram } from '../../helpers.ts';
import { contentsOf, leaveSocket } from '../../module/helpers.ts';
import { lacks } from '../../needs.ts';
import { startPuppet } from '../../puppet.ts';
import { until } from '../../wait.ts';
import { AT_ONCE, call, linesOf } from './helpers.ts';
import { openSession, startFull, startSilent } from './systems.ts';

describe('control-client and a folder', { ...AT_ONCE, skip: lacks('Unix') }, () => {
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

  it('sends nothing to the socket of another user, reports that, and leaves it there when it is dead', {
    skip: lacks('root'),
  }, async (t) => {
    const { folder } = openSession(t);
    const at = (title: string): string => join(folder, `${title}.sock`);
    const [foreign, own] = [await startPuppet(t, {}, { socketPath: at('train-5') }), at('train-6')];
    await startPuppet(t, {}, { socketPath: own });
    await leaveDead(at('dead-1'));
    for (const title of ['train-5', 'dead-1']) chownSync(at(title), 12345, 12345);
    const listed = await call(['list', '--dir', folder]);
    assert.match(listed.stdout, /^train +5 +unknown +unix:.*\ntrain +6 +active .*\n$/);
    assert.match(listed.stderr, /^control-client: train-5: [^\n]*belongs to user 12345; nothing was sent\n$/);
    assert.deepEqual([listed.code, existsSync(at('dead-1'))], [3, true]);
    assert.equal((await call(['pause', 'train', '--dir', folder])).stdout, 'train  ok\n', 'its own one is meant');
    chownSync(own, 12345, 12345);
    const { code, stderr } = await call(['pause', '6', '--dir', folder]);
    assert.equal(code, 3);
    assert.match(stderr, /^control-client: train: .* is not trusted, because it belongs to user 12345; nothing/);
    assert.deepEqual(foreign.requests, []);
  });
});

describe('control-client and the sockets of dead systems', { ...AT_ONCE, skip: lacks('Linux') }, () => {
  it('are removed by list and --all, which leave other files alone', async (t) => {
    const { folder } = openSession(t);
    await startPuppet(t, {}, { socketPath: join(folder, 'live-9.sock') });
    writeFileSync(join(folder, 'file-2.sock'), '');
    mkdirSync(join(folder, 'folder-3.sock'));
    symlinkSync(join(folder, 'nowhere'), join(folder, 'link-4.sock'));
    await startSilent(t, join(folder, 'socket'));
    await startSilent(t, `${folder}/`.padEnd(95, 'x') + '.sock'); // longer than the path of any server
    await leaveDead(join(folder, 'young-5.sock'), Date.now() / 1000 - 5); // it may not listen yet
    const before = contentsOf(folder);
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
