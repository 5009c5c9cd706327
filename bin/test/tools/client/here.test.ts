// What runs here, without a target: each command while nothing runs, one system, or several; whose the default port is;
// and words that are no system.

import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { freePort, makeFolder, platformIs, preload, start, startProgram, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { until } from '../../wait.ts';
import { pseudoTerminal } from '../console/helpers.ts';
import { AT_ONCE, call, linesOf, run, watch } from './helpers.ts';
import { ACTIVE, hereIs, openSession, type Respond, startWeb, type Web } from './systems.ts';

const SUITE = { ...AT_ONCE, skip: lacks('Linux', 'root') };
const BODY = { ...ACTIVE, name: 'x', accepts: { evaluate: {} }, asks: [], commands: [] };

const respond: Respond = ({ url = '' }) => url.includes('/answer') ? { code: 404, error: 'no such question' } : BODY;

type Shown = [code: number, stdout: RegExp | string, stderr?: RegExp | string];

describe('Without a target, control-client', SUITE, () => {
  const none = "control-client: nothing runs here\n";
  const two = 'control-client: 2 systems run here: localhost:8391, train: name one, or --all\n';
  const both = (text: string): RegExp => new RegExp(`^(localhost:8391|train {9})  ${text}$`, 'gm');
  const rows: [args: string[], none: Shown | null, one: Shown | null, several: Shown | null][] = [
    [['status'], [3, 'offline\n', none], [0, 'active\n'], [0, both('active')]],
    [['status', '--json'], [3, '{"status":"offline","error":"nothing runs here"}\n', none],
      [0, '{"status":"active"}\n'], [0, /^\{"target":"(localhost:8391|unix:.*)","status":"active"\}$/gm]],
    [['list'], [0, '', none], [0, /^x +5 +active +unix:\/.*train-5\.sock\n$/], [0, /^x .*(localhost:8391|5\.sock)$/gm]],
    [['info'], [3, '', none], [0, /^name +x /], [0, both('name +x .*')]],
    [['asks'], [3, '', none], [0, '', /no question/], [0, '', /no question/]],
    [['answer', 'abc-q1', '--yes'], [3, '', none], [1, '', /no such question/], [1, '', /there is no question abc-q1/]],
    [['run'], [3, '', none], [0, /^ +evaluate\n$/], [0, both(' *evaluate')]],
    [['run', 'evaluate'], [3, '', none], [0, 'ok\n'], [2, '', two]],
    [['pause'], [3, '', none], [0, 'ok\n'], [2, '', two]],
    [['resume', '--mine'], [3, '', none], [0, 'active\n'], [2, '', two]],
    [['shutdown'], [3, '', none], [0, 'ok\n'], [2, '', two]],
    [['answer', '--yes'], [3, '', none], [1, '', /no question/], [2, '', two]],
    [['shutdown', '--wait', '--all'], [3, '', none], null, null],
    [['wait', 'active', '--timeout', '0.5'], [4, '', /: not active after \d\.\d s: nothing runs here\n$/],
      null, [2, '', two]],
    [['wait', 'active'], null, [0, 'active\n'], [2, '', two]],
    [['wait', 'offline'], [0, 'offline\n', none], null, [2, '', two]],
    [['pause', '--all'], [3, '', none], [0, 'train  ok\n'], [0, both('ok')]],
  ];
  for (const [args, ...outcomes] of rows) {
    it(`${args.join(' ')}: nothing, one system, several`, async (t) => {
      const { folder, serve } = openSession(t);
      const { port } = await startWeb(t, respond);
      const empty = hereIs(folder, await freePort());
      const shows = async (env: NodeJS.ProcessEnv, shown: Shown | null | undefined): Promise<void> => {
        if (!shown) return;
        const [code, stdout, stderr = ''] = shown;
        const ended = await run(t, args, '', env);
        const text = JSON.stringify(ended);
        assert.equal(ended.code, code, text);
        for (const [pattern, output] of [[stdout, ended.stdout], [stderr, ended.stderr]] as const) {
          if (typeof pattern === 'string') assert.equal(output, pattern, text);
          else if (pattern.global) assert.equal(new Set(output.match(pattern)).size, 2, text);
          else assert.match(output, pattern, text);
        }
      };
      await shows(empty, outcomes[0]);
      await serve('train-5', respond);
      await shows(empty, outcomes[1]);
      await shows(hereIs(folder, port), outcomes[2]);
    });
  }

  it('means the only one at localhost:8391 as well, unless an option or a variable says otherwise', async (t) => {
    const [web, other, { folder }] = [await startWeb(t), await startWeb(t), openSession(t)];
    const env = hereIs(folder, web.port);
    assert.deepEqual(await run(t, ['pause'], '', env), { code: 0, stdout: 'ok\n', stderr: '' });
    const at = { CONTROL_HOST: '127.0.0.1', CONTROL_PORT: `${other.port}` };
    await run(t, ['pause'], '', { ...env, ...at });
    const { stdout } = await run(t, ['list'], '', { ...env, ...at });
    assert.equal(stdout.split(/ +/).at(-1), `127.0.0.1:${other.port}\n`);
    await run(t, ['pause', '--all'], '', { ...env, ...at });
    const posted = ({ requests }: Web): number => requests.filter((request) => request.startsWith('POST')).length;
    assert.deepEqual([posted(web), posted(other)], [2, 1]);
  });

  it('waits for the first system, and says so after 2 s', async (t) => {
    const { folder, serve } = openSession(t);
    const waiting = startProgram(t, 'client', ['wait', 'active'], hereIs(folder, await freePort()));
    await waiting.shows(/./);
    await serve('train-5');
    const notice = 'control-client: nothing runs here: it may still start\n';
    assert.deepEqual(await waiting.ended, { code: 0, stdout: 'active\n', stderr: notice });
    const named = run(t, ['wait', 'active', 'eval', '--timeout', '60'], '', hereIs(folder, await freePort()));
    await sleep(1000);
    await serve('eval-6');
    assert.deepEqual(await named, { code: 0, stdout: 'eval  active\n', stderr: '' });
  });

  it('watches the systems of the port and of the folder, by NAME-PID if several have the name', async (t) => {
    const [{ port }, { folder, serve }] = [await startWeb(t), openSession(t)];
    const { shows } = watch(t, [], hereIs(folder, port));
    await shows(/  localhost:8391  active\n/);
    await serve('train-5');
    await shows(/  train +active\n/);
    await serve('train-6');
    await shows(/  train-6 +active\n/);
  });

  it('waits for no name of a file', async (t) => {
    const path = join(makeFolder(t), 'targets');
    writeFileSync(path, 'trian\n', { mode: 0o600 });
    for (const args of [['watch'], ['wait', 'active'], ['wait', 'active', '--timeout', '60']]) {
      const { code, stderr } = await run(t, [...args, '--targets', path], '', { CONTROL_DIR: makeFolder(t) });
      assert.deepEqual([code, /there is no system 'trian'/.test(stderr)], [2, true], stderr);
    }
  });
});

describe('The default port', SUITE, () => {
  it('of another user is not meant, nor is anything sent there', async (t) => {
    const web = await startWeb(t);
    for (const [owner, name] of [[12_345, 'user 12345'], [0, 'root']] as const) {
      const env = hereIs(makeFolder(t), web.port, owner);
      const reason = `nothing runs here; localhost:8391 belongs to ${name}: --port 8391 means it\n`;
      for (const [tool, code, ...args] of [
        ['client', 3, 'pause'], ['client', 3, 'shutdown', '--wait'], ['client', 0, 'list'],
        ['console', 2], ['kbctl', 2],
      ] as const) {
        const { ended } = start(t, process.execPath, [`dist/bin/${tool}.js`, ...args], env);
        assert.deepEqual(await ended, { code, stdout: '', stderr: `control-${tool}: ${reason}` }, `${tool} ${args}`);
      }
      assert.deepEqual(web.requests, []);
      await run(t, ['status', '--port', '8391'], '', env);
      assert.deepEqual(web.requests.splice(0), ['GET /api/status']);
    }
  });

  it('goes to another user while a tool follows it: from then on, nothing is sent there', async (t) => {
    const { folder } = openSession(t);
    const flag = join(makeFolder(t), 'foreign');
    const first = await startWeb(t);
    const env = hereIs(folder, first.port, flag);
    const tools = ['client.js watch', 'board.js --listen localhost:0'].map((tool) => {
      return start(t, 'sh', ['-c', `exec '${process.execPath}' dist/bin/${tool}`], env);
    });
    const [watching, board] = tools;
    await watching?.shows(/  localhost:8391  active\n/);
    await board?.shows(/^1 system/);
    const console = start(t, process.execPath, ['dist/bin/console.js'], env);
    console.child.stdin?.write('status\n');
    await console.shows(/^active\n/);
    writeFileSync(flag, '12345'); // the user who has the port now
    await watching?.shows(/  localhost:8391  offline.*\n/);
    const [, port, key] = /localhost:(\d+)\/#(\S+)/.exec(board?.output() ?? '') ?? [];
    const headers = { Authorization: `Bearer ${key}` };
    first.requests.splice(0);
    await fetch(`http://localhost:${port}/api/systems/0/shutdown?reason=now`, { method: 'POST', headers });
    console.child.stdin?.write('pause\n');
    await console.shows(/nothing (runs here|listens)/);
    await sleep(1500);
    assert.deepEqual(first.requests.filter((request) => !request.startsWith('GET /api/info')), []);
    first.requests.splice(0);
    await sleep(1500);
    assert.deepEqual(first.requests, []);
  });

  it('of another user, and of a system with a socket, is not the one that a console means', async (t) => {
    const { folder, serve } = openSession(t);
    const { port } = await startServer(t, { host: '127.0.0.1', name: 'x', socketPath: `${folder}/`, port: 0 });
    await serve('train-5');
    const [own, foreign] = [hereIs(folder, port), hereIs(folder, port, 12_345)];
    const input = async (env: NodeJS.ProcessEnv): Promise<object> => {
      const { child, ended } = start(t, process.execPath, ['dist/bin/console.js'], env);
      child.stdin?.end('status\n');
      return ended;
    };
    assert.deepEqual(await input(own), { code: 0, stdout: 'active\n', stderr: '' });
    const several = 'control-console: 2 systems run here: train, x: name one\n';
    assert.deepEqual(await input(foreign), { code: 2, stdout: '', stderr: several });
  });

  it('of a program without a name that one with a name takes over: each change is told once', async (t) => {
    const { folder } = openSession(t);
    const port = await freePort();
    const { shows, output } = watch(t, [], hereIs(folder, port));
    const { server } = await startServer(t, { host: '127.0.0.1', port });
    await shows(/  localhost:8391  active\n/);
    await server.close();
    await shows(/  localhost:8391  offline/);
    const { client } = await startServer(t, { host: '127.0.0.1', port, name: 'train', socketPath: `${folder}/` });
    await shows(/  train +active\n/);
    const before = output();
    await client.request('pause');
    await sleep(1500);
    assert.doesNotMatch(output().slice(before.length), /localhost:8391/);
  });

  it('of a system with a socket is that system, also while it hangs', async (t) => {
    const { folder } = openSession(t);
    const program = `
      import { launch } from '${new URL('dist/control.js', `file://${process.cwd()}/`)}';
      const step = () => new Promise((end) => setTimeout(end, 1));
      const onListening = ({ port }) => console.log('port ' + port);
      launch({ step, onListening }, { name: 'train', webApiAddress: ['127.0.0.1', 0] });
    `;
    const args = ['--input-type=module', '--eval', program];
    const { child, shows, output } = start(t, process.execPath, args, { CONTROL_DIR: folder });
    await shows(/port \d+\n/);
    const env = hereIs(folder, Number(/\d+/.exec(output())));
    assert.deepEqual(await run(t, ['status'], '', env), { code: 0, stdout: 'active\n', stderr: '' });
    child.kill('SIGSTOP');
    const { code, stdout } = await run(t, ['status', '--timeout', '1'], '', env);
    assert.deepEqual([code, stdout], [5, 'no answer\n']);
    child.kill('SIGCONT');
    assert.equal((await run(t, ['shutdown', '--wait'], '', env)).code, 0);
  });

  it('of a system without a socket is found by what it reports: the name and the process id', async (t) => {
    const web = await startWeb(t, () => ({ ...BODY, pid: 77 }));
    const env = hereIs(makeFolder(t), web.port);
    for (const word of ['x', '77', 'x-77']) {
      assert.deepEqual(await run(t, ['status', word], '', env), {
        code: 0, stdout: 'localhost:8391  active\n', stderr: '',
      });
    }
    assert.equal((await run(t, ['wait', 'offline', 'x', '--timeout', '0.5'], '', env)).code, 4);
    assert.equal((await run(t, ['shutdown', 'y', '--wait'], '', env)).code, 2);
    assert.deepEqual(web.requests.filter((request) => request.startsWith('POST')), []);
  });

  it('may be that of any web server, which is not meant', async (t) => {
    const page = await startWeb(t, () => ({ hello: 'world' }));
    const lost = await startWeb(t, () => ({ code: 404, error: 'Not found' }));
    for (const { port } of [page, lost]) {
      const ended = await run(t, ['pause'], '', hereIs(makeFolder(t), port));
      assert.deepEqual(ended, { code: 3, stdout: '', stderr: 'control-client: nothing runs here\n' });
    }
  });

  it('is meant whoever has it where nobody can tell: it counts once', async (t) => {
    const { folder, serve } = openSession(t);
    const { port } = await startWeb(t, () => ({ ...BODY, pid: 5 }));
    const { NODE_OPTIONS = '', ...env } = hereIs(folder, port, 12_345);
    const macos = { ...env, NODE_OPTIONS: `${NODE_OPTIONS} ${preload(platformIs('darwin'))['NODE_OPTIONS']}` };
    const unreadable = preload("import fs from 'node:fs'; const { readFileSync } = fs;" +
      "fs.readFileSync = (path, ...rest) => readFileSync(`${path}`.replace('/net/tcp', '/none'), ...rest);");
    const any = { ...macos, NODE_OPTIONS: `${NODE_OPTIONS} ${unreadable['NODE_OPTIONS']}` };
    assert.equal((await run(t, ['status'], '', any)).stdout, 'active\n');
    await serve('train-5', () => ({ ...BODY, pid: 5 }));
    assert.equal((await run(t, ['status'], '', any)).stdout, 'active\n');
  });
});

describe('control-console and control-kbctl without a target', SUITE, () => {
  it('go on with what runs when their system has ended', async (t) => {
    const { folder, serve } = openSession(t);
    const env = hereIs(folder, await freePort());
    const first = await serve('train-5');
    const kbctl = start(t, process.execPath, ['dist/bin/kbctl.js', '--backend', 'none'], env);
    assert.equal((await kbctl.ended).code, 2, 'checked first');
    const console = start(t, process.execPath, ['dist/bin/console.js'], env);
    console.child.stdin?.write('status\n');
    await console.shows(/^active\n$/);
    first.end();
    await until(async () => (await run(t, ['list'], '', env)).stdout === '');
    console.child.stdin?.write('status\n');
    await console.shows(/nothing (listens at .*train-5|runs here)/);
    await serve('eval-6', () => ({ ...BODY, status: 'paused' }));
    console.child.stdin?.write('status\n');
    await console.shows(/\npaused\n/);
  });

  it('send no command to another system than the one whose prompt or question it was for', async (t) => {
    const { folder, serve } = openSession(t);
    const env = hereIs(folder, await freePort());
    const first = await serve('train-5');
    const command = `'${process.execPath}' dist/bin/console.js`;
    const { type, shows } = await pseudoTerminal(t, command, /train \(active\) > $/, env);
    await type('shutdown\r', /Shut train down\? \(y\/\[N\]\) $/);
    first.end();
    const { requests } = await serve('prod-6');
    await until(() => requests.length > 0);
    await type('y\r', /not shut down: shutdown not sent: prod runs here now|shutdown not sent: prod runs here now/);
    await shows(/prod \(active\) > $/);
    assert.deepEqual(requests.filter((request) => request.startsWith('POST')), []);
  });

  it('take the one at localhost:8391 of several, or else none', async (t) => {
    const { folder, serve } = openSession(t);
    const { port } = await startWeb(t, () => ({ ...BODY, status: 'paused' }));
    await serve('train-5');
    const status = async (env: NodeJS.ProcessEnv): Promise<object> => {
      const { child, ended } = start(t, process.execPath, ['dist/bin/console.js'], env);
      child.stdin?.end('status\n');
      return ended;
    };
    assert.deepEqual(await status(hereIs(folder, port)), { code: 0, stdout: 'paused\n', stderr: '' });
    await serve('eval-6');
    assert.deepEqual(await status(hereIs(folder, await freePort())), {
      code: 2, stdout: '', stderr: 'control-console: 2 systems run here: eval, train: name one\n',
    });
  });
});

describe('A word that is no system here', SUITE, () => {
  it('is a mistake in every spelling: nothing is sent, and nothing is offline', async (t) => {
    const { folder, serve } = openSession(t);
    const { requests } = await serve('gpu1-train-5');
    const web = await startWeb(t);
    mkdirSync(join(folder, 'folder'));
    const words = [
      'gpu1/train', 'gpu1/train-5', 'gpu1/', 'gpu1/*', 'gpu?/train*', '*/train', 'a/b/c', 'sweep/lr=0.1', 'gpu1//train',
      'gpu1/train.sock', 'folder/x.sock', 'trian', 'gpu1', 'train.sh', '99999', 'gpu1-train-6', 'gpu1-*x', 'GPU1-TRAIN',
      'gpu1 train', '日本', 'run/user/0/control/x.sock', 'sub/:9000',
    ];
    const env = hereIs(folder, web.port);
    const commands = [['shutdown', '--wait'], ['pause'], ['status'], ['info'], ['list'], ['watch'], ['wait', 'active']];
    for (const word of words) {
      for (const args of [...commands, ...word.includes('/') ? [['wait', 'offline']] : []]) {
        await assert.rejects(call([...args, word], { CONTROL_DIR: folder }), (error: Error) => {
          assert.equal(error.name, 'Error');
          assert.match(error.message, /^(there is no system|'.*' is no socket and no system) /, `${args} ${word}`);
          assert.doesNotMatch(error.message, /offline/);
          return true;
        }, `${args} ${word}`);
      }
    }
    const line = "control-client: 'gpu1/train' is no socket and no system here (did you mean gpu1-train?); " +
      'for a system on gpu1: --via gpu1\n';
    const ended = await run(t, ['shutdown', '--wait', 'gpu1/train'], '', env);
    assert.deepEqual(ended, { code: 2, stdout: '', stderr: line });
    const posted = [...requests, ...web.requests].filter((request) => request.startsWith('POST'));
    assert.deepEqual(posted, []);
  });

  it('may be the name that a system reports, with a slash', async (t) => {
    const { folder, serve } = openSession(t);
    await serve('sweep_lr_0.1-5', () => ({ ...BODY, name: 'sweep/lr=0.1' }));
    const { code, stdout } = await call(['status', 'sweep/lr=0.1'], { CONTROL_DIR: folder });
    assert.deepEqual([code, stdout], [0, 'sweep_lr_0.1  active\n']);
    assert.match(linesOf((await call(['list'], { CONTROL_DIR: folder })).stdout)[0] ?? '', /^sweep_lr_0\.1 /);
    const [sockets, log] = [makeFolder(t), join(makeFolder(t), 'log.jsonl')];
    await startServer(t, { name: 'sweep/lr=0.2', socketPath: `${sockets}/`, log });
    await until(async () => (await call(['log', 'sweep/lr=0.2', '--dir', sockets])).stdout.includes('  started\n'));
  });
});

