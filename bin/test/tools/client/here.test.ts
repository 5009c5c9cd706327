// What runs here, without a target: each command while nothing runs, one system, or several; whose the default port is;
// and words that are no system.

import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { type Ended, freePort, makeFolder, type Running, startProgram, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { startPuppet } from '../../puppet.ts';
import { until } from '../../wait.ts';
import { pseudoTerminal } from '../console/helpers.ts';
import { AT_ONCE, watch } from './helpers.ts';
import { callAt } from './place.ts';
import { hereIs, openSession, startOwnProcess } from './systems.ts';

const SUITE = { ...AT_ONCE, skip: lacks('Linux', 'root') };
const BODY = { name: 'x', accepts: { evaluate: {} }, asks: [], commands: [] };
const BUSY = { ...BODY, post: { code: 404, error: 'no such question' } };

type Shown = [code: number, stdout: RegExp | string, stderr?: RegExp | string];

describe('Without a target, control-client', SUITE, () => {
  const none = 'control-client: nothing runs here\n';
  const two = 'control-client: 2 systems run here: localhost:8391, train: name one, or --all\n';
  const both = (text: string): RegExp => new RegExp(`^(localhost:8391|train {9})  ${text}$`, 'gm');
  const rows: [args: string, none: Shown | null, one: Shown | null, several: Shown | null][] = [
    ['status', [3, 'offline\n', none], [0, 'active\n'], [0, both('active')]],
    ['status --json', [3, '{"status":"offline","error":"nothing runs here"}\n', none],
      [0, '{"status":"active"}\n'], [0, /^\{"target":"(localhost:8391|unix:.*)","status":"active"\}$/gm]],
    ['list', [0, '', none], [0, /^x +5 +active +unix:\/.*train-5\.sock\n$/], [0, /^x .*(localhost:8391|5\.sock)$/gm]],
    ['info', [3, '', none], [0, /^name +x /], [0, both('name +x .*')]],
    ['asks', [3, '', none], [0, '', /no question/], [0, '', /no question/]],
    ['answer abc-q1 --yes', [3, '', none], [1, '', /no such question/], [1, '', /there is no question abc-q1/]],
    ['run', [3, '', none], [0, /^ +evaluate\n$/], [0, both(' *evaluate')]],
    ['run evaluate', [3, '', none], [1, '', /no such question/], [2, '', two]],
    ['pause', [3, '', none], [1, '', /no such question/], [2, '', two]],
    ['resume --mine', [3, '', none], null, [2, '', two]],
    ['shutdown', [3, '', none], null, [2, '', two]],
    ['answer --yes', [3, '', none], [1, '', /no question/], [2, '', two]],
    ['shutdown --wait --all', [3, '', none], null, null],
    ['wait active --timeout 0.5', [4, '', /: not active after \d\.\d s: nothing runs here\n$/], null, [2, '', two]],
    ['wait active', null, [0, 'active\n'], [2, '', two]],
    ['wait offline', [0, 'offline\n', none], null, [2, '', two]],
  ];
  for (const [args, ...outcomes] of rows) {
    it(`${args}: nothing, one system, several`, async (t) => {
      const { folder } = openSession(t);
      const { port } = await startPuppet(t, BUSY);
      const empty = await freePort();
      const shows = async (port: number, shown: Shown | null | undefined): Promise<void> => {
        if (!shown) return;
        const [code, stdout, stderr = ''] = shown;
        const ended = await callAt(folder, { port }, args.split(' '));
        const text = JSON.stringify(ended);
        assert.equal(ended.code, code, text);
        for (const [pattern, output] of [[stdout, ended.stdout], [stderr, ended.stderr]] as const) {
          if (typeof pattern === 'string') assert.equal(output, pattern, text);
          else if (pattern.global) assert.equal(new Set(output.match(pattern)).size, 2, text);
          else assert.match(output, pattern, text);
        }
      };
      await shows(empty, outcomes[0]);
      await startPuppet(t, BUSY, { socketPath: join(folder, 'train-5.sock') });
      await shows(empty, outcomes[1]);
      await shows(port, outcomes[2]);
    });
  }

  it('means the only one at localhost:8391 as well, unless an option or a variable says otherwise', async (t) => {
    const [puppet, other, { folder }] = [await startPuppet(t), await startPuppet(t), openSession(t)];
    const pause = (args: string[], env?: NodeJS.ProcessEnv): Promise<Ended> => {
      return callAt(folder, puppet, ['pause', ...args], env);
    };
    assert.deepEqual(await pause([]), { code: 0, stdout: 'ok\n', stderr: '' });
    const at = { CONTROL_HOST: '127.0.0.1', CONTROL_PORT: `${other.port}` };
    await pause([], at);
    const { stdout } = await callAt(folder, puppet, ['list'], at);
    assert.equal(stdout.split(/ +/).at(-1), `127.0.0.1:${other.port}\n`);
    await pause(['--all'], at);
    assert.deepEqual([puppet.posted().length, other.posted().length], [2, 1]);
  });

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
    for (const [owner, name] of [[12_345, 'user 12345'], [0, 'root']] as const) {
      const reason = `nothing runs here; localhost:8391 belongs to ${name}: --port 8391 means it\n`;
      for (const [code, ...args] of [[3, 'pause'], [3, 'shutdown', '--wait'], [0, 'list']] as const) {
        const expected = { code, stdout: '', stderr: `control-client: ${reason}` };
        assert.deepEqual(await callAt(folder, { port, owner }, args), expected, `${args}`);
      }
      for (const tool of owner === 0 ? [] : ['console', 'kbctl']) {
        const { ended } = startProgram(t, tool, [], hereIs(folder, port, owner));
        assert.deepEqual(await ended, { code: 2, stdout: '', stderr: `control-${tool}: ${reason}` });
      }
      assert.deepEqual(requests, []);
      await callAt(folder, { port, owner }, ['status', '--port', '8391']);
      assert.deepEqual(requests.splice(0), ['GET /api/status']);
    }
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
    const puppet = await startPuppet(t, { ...BODY, status: 'paused' });
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
    const status = (): Promise<Ended> => callAt(folder, { port }, ['status', '--timeout', '2']);
    assert.deepEqual(await status(), { code: 0, stdout: 'active\n', stderr: '' });
    await stop();
    const { code, stdout } = await status();
    assert.deepEqual([code, stdout], [5, 'no answer\n']);
    child.kill('SIGCONT');
  });

  it('of a system without a socket is found by what it reports: the name and the process id', async (t) => {
    const { port, posted } = await startPuppet(t, { ...BODY, pid: 77 });
    const [folder, active] = [makeFolder(t), { code: 0, stdout: 'localhost:8391  active\n', stderr: '' }];
    for (const word of ['x', '77', 'x-77']) {
      assert.deepEqual(await callAt(folder, { port }, ['status', word]), active, word);
    }
    assert.equal((await callAt(folder, { port }, ['wait', 'offline', 'x', '--timeout', '1'])).code, 4);
    assert.equal((await callAt(folder, { port }, ['shutdown', 'y', '--wait'])).code, 2);
    assert.deepEqual(posted(), []);
  });

  it('may be that of any web server, which is not meant', async (t) => {
    for (const state of [{ raw: '{"hello":"world"}' }, { code: 404, error: 'Not found' }]) {
      const ended = await callAt(makeFolder(t), await startPuppet(t, state), ['pause']);
      assert.deepEqual(ended, { code: 3, stdout: '', stderr: 'control-client: nothing runs here\n' });
    }
  });

  it('is meant whoever has it where nobody can tell: it counts once', async (t) => {
    const { folder, serve } = openSession(t);
    const { port } = await startPuppet(t, { ...BODY, pid: 5 });
    const place = { port, owner: 12_345, isHidden: true };
    assert.equal((await callAt(folder, place, ['status'])).stdout, 'active\n');
    await serve('train-5', () => ({ ...BODY, status: 'active', pid: 5 }));
    assert.equal((await callAt(folder, place, ['status'])).stdout, 'active\n');
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
    await serve('eval-6', () => ({ ...BODY, status: 'paused' }));
    child.stdin?.write('status\n');
    await shows(/\npaused\n/);
  });

  it('sends no command to another system than the one whose prompt or question it was for', async (t) => {
    const { folder, serve } = openSession(t);
    const first = await serve('train-5');
    const command = `'${process.execPath}' dist/bin/console.js`;
    const env = hereIs(folder, await freePort());
    const { type, shows } = await pseudoTerminal(t, command, /train \(active\) > $/, env);
    await type('shutdown\r', /Shut train down\? \(y\/\[N\]\) $/);
    first.end();
    const { requests } = await serve('prod-6');
    await until(() => requests.length > 0);
    await type('y\r', /not shut down: shutdown not sent: prod runs here now|shutdown not sent: prod runs here now/);
    await shows(/prod \(active\) > $/);
    assert.deepEqual(requests.filter((request) => request.startsWith('POST')), []);
  });
});

describe('A word that is no system here', SUITE, () => {
  it('is a mistake in every spelling: nothing is sent, and nothing is offline', async (t) => {
    const { folder } = openSession(t);
    const puppet = await startPuppet(t, {}, { socketPath: join(folder, 'gpu1-train-5.sock') });
    const other = await startPuppet(t);
    mkdirSync(join(folder, 'folder'));
    const words = [
      'gpu1/train', 'gpu1/train-5', 'gpu1/', 'gpu1/*', 'gpu?/train*', '*/train', 'a/b/c', 'sweep/lr=0.1', 'gpu1//train',
      'gpu1/train.sock', 'folder/x.sock', 'trian', 'gpu1', 'train.sh', '99999', 'gpu1-train-6', 'gpu1-*x', 'GPU1-TRAIN',
      'gpu1 train', '日本', 'run/user/0/control/x.sock', 'sub/:9000',
    ];
    const commands = ['shutdown --wait', 'pause', 'status', 'info', 'list', 'watch', 'wait active'];
    for (const word of words) {
      for (const command of [...commands, ...word.includes('/') ? ['wait offline'] : []]) {
        const args = [...command.split(' '), word];
        const { code, stdout, stderr } = await callAt(folder, other, args, { CONTROL_DIR: folder });
        assert.deepEqual([code, stdout], [2, ''], `${args}`);
        assert.match(stderr, /^control-client: (there is no system|'.*' is no socket and no system) /, `${args}`);
        assert.doesNotMatch(stderr, /offline/);
      }
    }
    const line = "control-client: 'gpu1/train' is no socket and no system here (did you mean gpu1-train?); " +
      'for a system on gpu1: --via gpu1\n';
    const ended = await callAt(folder, other, ['shutdown', '--wait', 'gpu1/train']);
    assert.deepEqual(ended, { code: 2, stdout: '', stderr: line });
    assert.deepEqual([...puppet.posted(), ...other.posted()], []);
  });
});
