// What runs here, without a target, while systems and the user of the default port change; here.txt has the rest.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { type Ended, freePort, makeFolder, type Running, startProgram, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { startPuppet } from '../../puppet.ts';
import { lineOf, openTerminal } from '../../screen.ts';
import { until } from '../../wait.ts';
import { AT_ONCE, watch } from './helpers.ts';
import { callAt } from './place.ts';
import { hereIs, openSession, startOwnProcess } from './systems.ts';

const SUITE = { ...AT_ONCE, skip: lacks('Linux', 'root') };

describe('Without a target, control-client', SUITE, () => {
  it('waits for the first system, and says so after 2 s', async (t) => {
    const { folder, serve } = openSession(t);
    const port = await freePort();
    const named = callAt(folder, { port }, ['wait', 'active', 'eval', '--timeout', '60']);
    const waiting = startProgram(t, 'client', ['wait', 'active'], hereIs(folder, port));
    await waiting.shows(/./);
    await serve('train-5');
    const notice = 'control-client: nothing runs here: it may still start\n';
    assert.deepEqual(await waiting.ended, { code: 0, stdout: 'active\n', stderr: notice });
    await serve('eval-6');
    const { stdout, stderr } = await named;
    assert.equal(stdout, 'eval  active\n');
    assert.match(stderr, /^control-client: there is no system 'eval' here: it may still start; .*\n$/);
  });
});

describe('The default port', SUITE, () => {
  it('of another user is not meant, nor is anything sent there', async (t) => {
    const { port, requests } = await startPuppet(t);
    const folder = makeFolder(t);
    const owner = 12_345;
    const reason = `nothing runs here; localhost:8391 belongs to user ${owner}: --port 8391 means it\n`;
    for (const tool of ['console', 'kbctl']) {
      const { ended } = startProgram(t, tool, [], hereIs(folder, port, owner));
      assert.deepEqual(await ended, { code: 2, stdout: '', stderr: `control-${tool}: ${reason}` });
    }
    for (const args of [['pause'], ['list']]) await callAt(folder, { port, owner }, args);
    assert.deepEqual(requests, []);
    await callAt(folder, { port, owner }, ['status', '--port', '8391']);
    assert.deepEqual(requests, ['GET /api/status']);
  });

  it('is watched like the systems of the folder; from when another user has it, nothing is sent there', async (t) => {
    const [{ folder, serve }, flag] = [openSession(t), join(makeFolder(t), 'foreign')];
    const first = await startPuppet(t);
    const env = hereIs(folder, first.port, flag);
    const watching = watch(t, [], env);
    const [board, console] = ['board --listen localhost:0', 'console'].map((line): Running => {
      const [tool = '', ...args] = line.split(' ');
      return startProgram(t, tool, args, env);
    }) as [Running, Running];
    await watching.shows(/  localhost:8391  active\n/);
    await board.shows(/^1 system/);
    console.child.stdin?.write('status\n');
    await console.shows(/^active\n/);
    writeFileSync(flag, '12345'); // the user who has the port now
    await watching.shows(/  localhost:8391  offline.*\n/);
    const [, port, key] = /localhost:(\d+)\/#(\S+)/.exec(board.output()) ?? [];
    const headers = { Authorization: `Bearer ${key}` };
    await fetch(`http://localhost:${port}/api/systems/0/shutdown?reason=now`, { method: 'POST', headers });
    console.child.stdin?.write('pause\n');
    await console.shows(/nothing (runs here|listens)/);
    const { end } = await serve('train-5'); // that a tool has looked again shows that it had time to send something
    await watching.shows(/  train +active\n/);
    await serve('train-6');
    await watching.shows(/  train-6 +active\n/);
    const before = first.requests.length;
    end();
    await watching.shows(/  train(-5)? +offline/);
    assert.deepEqual(first.requests.slice(before), []);
    assert.deepEqual(first.posted(), []);
  });

  it('is the one of several that a console means, unless it is foreign', async (t) => {
    const [first, second] = [openSession(t), openSession(t)];
    for (const { serve } of [first, second]) await serve('train-5');
    const own = await startServer(t, { host: '127.0.0.1', name: 'x', socketPath: `${first.folder}/`, port: 0 });
    const puppet = await startPuppet(t, { status: 'paused' });
    const rows: [env: NodeJS.ProcessEnv, code: number, stdout: RegExp, stderr: string][] = [
      [hereIs(first.folder, own.port), 0, /^active\b.*\n$/, ''],
      [hereIs(second.folder, puppet.port), 0, /^paused\n$/, ''],
      [hereIs(first.folder, own.port, 12_345), 2, /^$/, 'control-console: 2 systems run here: train, x: name one\n'],
    ];
    for (const [env, expected, pattern, error] of rows) {
      const { child, ended } = startProgram(t, 'console', [], env);
      child.stdin?.end('status\n');
      const { code, stdout, stderr } = await ended;
      assert.deepEqual([code, stderr], [expected, error]);
      assert.match(stdout, pattern);
    }
  });

  it('of a program without a name that one with a name takes over: each change is told once', async (t) => {
    const { folder } = openSession(t);
    const port = await freePort();
    const { shows, output } = watch(t, [], hereIs(folder, port));
    const { server } = await startServer(t, { host: '127.0.0.1', port });
    await shows(/  localhost:8391  active\n/);
    await server.close();
    await shows(/  localhost:8391  offline/);
    const train = await startServer(t, { host: '127.0.0.1', port, name: 'train', socketPath: `${folder}/` });
    await shows(/  train +active\n/);
    const before = output();
    await train.server.close();
    await shows(/  train +offline/);
    assert.doesNotMatch(output().slice(before.length), /localhost:8391/);
  });

  it('of a system with a socket is that system, also while it hangs', async (t) => {
    const { folder } = openSession(t);
    const { port, child, stop } = await startOwnProcess(t, undefined, { CONTROL_DIR: folder });
    const status = (): Promise<Ended> => callAt(folder, { port }, ['status']);
    assert.deepEqual(await status(), { code: 0, stdout: 'active\n', stderr: '' });
    await stop();
    const { code, stdout } = await status();
    assert.deepEqual([code, stdout], [5, 'no answer\n']);
    child.kill('SIGCONT');
  });

  it('may be that of any web server, which is not meant', async (t) => {
    for (const state of [{ raw: '{"hello":"world"}' }, { code: 404, error: 'Not found' }]) {
      const puppet = await startPuppet(t, state);
      await until(async () => { // a busy machine may be too late to tell what it is
        const { code, stdout, stderr } = await callAt(makeFolder(t), puppet, ['pause']);
        return [code, stdout, stderr].join() === '3,,control-client: nothing runs here\n';
      });
    }
  });

  it('is meant whoever has it where nobody can tell: it counts once', async (t) => {
    const { folder } = openSession(t);
    const { port } = await startPuppet(t, { pid: 5 });
    const isOne = async (): Promise<boolean> => {
      return (await callAt(folder, { port, owner: 12_345, isHidden: true }, ['status'])).stdout === 'active\n';
    };
    await until(isOne);
    await startPuppet(t, { pid: 5 }, { socketPath: join(folder, 'train-5.sock') });
    await until(isOne); // a busy machine may be too late to compare what they report
  });
});

describe('control-console without a target', SUITE, () => {
  it('goes on with what runs when its system has ended', async (t) => {
    const { folder, serve } = openSession(t);
    const port = await freePort();
    const first = await serve('train-5');
    const { child, shows } = startProgram(t, 'console', [], hereIs(folder, port));
    child.stdin?.write('status\n');
    await shows(/^active\n$/);
    first.end();
    child.stdin?.write('status\n');
    await shows(/nothing (listens at .*train-5|runs here)/);
    await serve('eval-6', () => ({ status: 'paused' }));
    child.stdin?.write('status\n');
    await shows(/\npaused\n/);
  });

  it('sends no command to another system than the one whose prompt or question it was for', async (t) => {
    const { folder, serve } = openSession(t);
    const first = await serve('train-5');
    const env = hereIs(folder, await freePort());
    const { type, shows } = await openTerminal(t, lineOf('console'), /train \(active\) > $/, { env });
    await type('shutdown\r', /Shut train down\? \[y\/N\] $/);
    first.end();
    const { requests } = await serve('prod-6');
    await until(() => requests.length > 0);
    await type('y\r', /not shut down: shutdown not sent: prod runs here now|shutdown not sent: prod runs here now/);
    await shows(/prod \(active\) > $/);
    assert.deepEqual(requests.filter((request) => request.startsWith('POST')), []);
  });
});
