// The far end: its text, and what it does with frames.

import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, chownSync, existsSync, mkdtempSync, readFileSync, rmSync, utimesSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { freePort, makeFolder, preload, start } from '../../helpers.ts';
import { leaveSocket } from '../../module/helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { openSession } from '../client/systems.ts';
import { reach, via, viaShell } from './helpers.ts';
import type { TestContext } from 'node:test';
import type { Running } from '../../helpers.ts';
import type { Need } from '../../needs.ts';

const STUCK_MS = 5000;
const MOST_KIB = 200_000; // of 200 MB and more; Node alone takes 50,000
const DIAL = [process.execPath, 'dist/bin/client.js', 'dial'];
/** What a tool appends to its command. */
const words = readAppended();

describe('the far end', { ...LIMIT, concurrency: 2, skip: lacks('Unix') }, () => {
  it('is a text of at most 8,000 characters that no shell changes', () => {
    const [node, option, text = '', ...rest] = words;
    assert.deepEqual([node, option, ...rest], ['node', '--import', '-e', '0']);
    assert.match(text, /^data:text\/javascript,[\w.~%-]+$/);
    assert.ok(words.join(' ').length <= 8000, `${words.join(' ').length}`);
  });

  for (const shell of ['sh', 'bash', 'dash', 'fish', 'zsh'] as const) {
    const needs: Need[] = shell === 'sh' || shell === 'dash' ? [] : [shell];
    const skip = lacks(...needs) || (shell === 'dash' && spawnSync('dash', ['-c', '']).error !== undefined);
    it(`means the same parsed once and twice by ${shell}`, { skip }, async (t) => {
      const line = `printf '%s\\n' ${words.join(' ')}`;
      for (const script of [line, `eval ${line.replace("'%s\\n'", '%s\\\\\\\\n')}`]) {
        const { stdout, stderr } = spawnSync(shell, ['-c', script], { encoding: 'utf8' });
        assert.deepEqual([stdout.split('\n').slice(0, -1), stderr], [words, ''], script.slice(0, 40));
      }
      const session = openSession(t);
      await session.serve('train-7');
      const run = `CONTROL_DIR=${session.env.CONTROL_DIR}; export CONTROL_DIR; exec ${shell} -c`;
      for (const script of [`${run} "$*"`, `${run} "${shell} -c '$*'"`]) {
        const ended = await reach(t, [viaShell('m', script)], ['status', '--all']);
        assert.deepEqual(ended, { code: 0, stdout: 'm/train  active\n', stderr: '' });
      }
    });
  }

  it('is also control-client dial, which can be all that a key may do', async (t) => {
    const session = openSession(t);
    const { requests } = await session.serve('train-7');
    const variables = `CONTROL_DIR=${session.env.CONTROL_DIR} SSH_ORIGINAL_COMMAND="$*"`;
    const forced = viaShell('m', `${variables} exec ${DIAL.map((word) => `'${word}'`).join(' ')}`);
    const ended = await reach(t, [forced], ['pause', 'train']);
    assert.deepEqual(ended, { code: 0, stdout: 'm/train  ok\n', stderr: '' });
    assert.deepEqual(requests, ['POST /api/pause']);
    const file = join(makeFolder(t), 'file');
    const far = startFar(t, DIAL);
    const script = `touch ${file}`;
    const frame = (type: string): string => `1 ${type} ${Buffer.from(script).toString('base64')}`;
    const lines = ['', 'sh', script, `$(${script})`, ...['EXEC', 'OPEN', 'LIST', 'DATA'].map(frame), '0 PING', ''];
    far.child.stdin?.write(lines.join('\n'));
    await far.hears('0 PING ');
    assert.ok(!existsSync(file));
    far.child.stdin?.end('\n');
    assert.equal((await far.ended).code, 0);
    for (const extra of [['x'], ['--wait']]) {
      const refused = start(t, process.execPath, ['dist/bin/client.js', 'dial', ...extra]);
      assert.equal((await refused.ended).code, 2, `${extra}`);
    }
  });

  it('begins with a line of its own, answers, and ends with its input', async (t) => {
    for (const command of [words, DIAL]) {
      const far = startFar(t, command);
      await far.shows(/^\ncontrol-dial 1\n$/);
      far.send('0', 'PING');
      await far.hears('0 PING ');
      far.child.stdin?.end();
      assert.deepEqual(await far.ended, { code: 0, stdout: '\ncontrol-dial 1\n0 PING \n', stderr: '' });
    }
  });

  it('ends when nobody reads its output, or sends a line that is too long', async (t) => {
    const deaf = startFar(t, words);
    await deaf.shows(/dial 1\n/);
    deaf.child.stdout?.destroy();
    deaf.send('0', 'PING');
    deaf.send('0', 'PING');
    await until(() => {
      deaf.send('0', 'PING');
      return deaf.child.exitCode !== null;
    });
    assert.equal(deaf.child.exitCode, 1);
    const far = startFar(t, words);
    await far.shows(/dial 1\n/);
    far.child.stdin?.write('x'.repeat(2 ** 21));
    assert.equal((await far.ended).code, 1);
  });

  it('ends after a minute without a byte', async (t) => {
    const hasted = preload('const { now } = performance; performance.now = () => now.call(performance) * 60;');
    const far = startFar(t, words, hasted);
    await far.shows(/dial 1\n/);
    assert.equal((await far.ended).code, 1);
    assert.equal(far.output(), '\ncontrol-dial 1\n');
    const [command = '', ...args] = words;
    const unread = spawn(command, args, { stdio: ['pipe', 'pipe', 'ignore'], env: { ...process.env, ...hasted } });
    t.after(() => unread.kill('SIGKILL'));
    unread.stdin.on('error', () => {}).write('0 PING\n'.repeat(100_000)); // more than a pipe holds
    assert.deepEqual(await once(unread, 'exit'), [1, null]);
  });

  it('connects to localhost only, and to no socket of another user', async (t) => {
    const session = openSession(t);
    await session.serve('train-7');
    const path = join(session.folder, 'train-7.sock');
    const port = await freePort();
    const far = startFar(t, words);
    for (const [address, refusal] of [
      ['192.0.2.1:80', "ERROR '192.0.2.1' is not localhost"], ['box:80', "ERROR 'box' is not localhost"],
      ['0.0.0.0:80', "ERROR '0.0.0.0' is not localhost"], [':80', "ERROR '' is not localhost"],
      ['127.0.0.1.box:80', "ERROR '127.0.0.1.box' is not localhost"],
      [`127.0.0.1:${port}`, `ECONNREFUSED connect ECONNREFUSED 127.0.0.1:${port}`],
      ['/nowhere/x.sock', "ENOENT ENOENT: no such file or directory, stat '/nowhere/x.sock'"],
      ['127.0.0.1:99999', null], ['', null], [path, ''],
    ] as const) {
      const id = far.open(address);
      const line = await far.hears(new RegExp(`^${id} (OPEN|CLOSE) .*$`, 'm'));
      const [, type, data = ''] = line.split(' ');
      const text = Buffer.from(data, 'base64').toString();
      assert.deepEqual([type, text], refusal === '' ? ['OPEN', ''] : ['CLOSE', refusal ?? text], address);
    }
    if (lacks('root') !== false) return;
    chownSync(path, 12345, 12345);
    const id = far.open(path);
    const line = await far.hears(new RegExp(`^${id} (OPEN|CLOSE) .*$`, 'm'));
    const refusal = `EACCES '${path}' is not trusted, because it belongs to user 12345`;
    assert.equal(line, `${id} CLOSE ${Buffer.from(refusal).toString('base64')}`);
  });

  it('opens at most 2,048 connections at a time', { skip: lacks('Linux') }, async (t) => {
    const session = openSession(t);
    const path = join(session.folder, 'sink.sock');
    const server = createServer().listen(path);
    t.after(() => server.close());
    await once(server, 'listening');
    const far = startFar(t, words);
    await far.shows(/dial 1\n/);
    for (let count = 0; count < 2048;) { // in groups, which the queue of the socket can hold
      for (const end = count + 64; count < end; count += 1) far.open(path);
      await until(() => (far.output().match(/^\d+ OPEN $/gm) ?? []).length === count);
    }
    const refusal = Buffer.from('EMFILE too many connections').toString('base64');
    for (const id of [far.open(path), far.open(path)]) await far.hears(`${id} CLOSE ${refusal}`);
    far.send('7', 'CLOSE');
    await far.hears(new RegExp(`^${far.open(path)} OPEN $`, 'm'));
  });

  it('reads no more while a socket does not, or its own output is not read', { skip: lacks('Linux') }, async (t) => {
    const session = openSession(t);
    const path = join(session.folder, 'sink.sock');
    const server = createServer({ pauseOnConnect: true }).listen(path);
    t.after(() => server.close());
    await once(server, 'listening');
    const frame = `1 DATA ${Buffer.alloc(500_000).toString('base64')}\n`;
    for (const [isSocket, text] of [[true, frame], [false, '9 OPEN eDox\n'.repeat(2500)]] as const) {
      const far = startFar(t, words);
      await far.shows(/dial 1\n/);
      await far.hears(new RegExp(`^${far.open(path)} OPEN $`, 'm'));
      if (!isSocket) far.child.stdout?.pause();
      const { stdin, pid } = far.child;
      let written = 0;
      for (let isStuck = false; !isStuck && written < 400;) {
        written += 1;
        if (stdin?.write(text) !== false) continue;
        isStuck = await Promise.race([once(stdin, 'drain').then(() => false), stuck()]);
      }
      const [, peak] = /VmHWM:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8')) ?? [];
      assert.ok(written < 400, `${written} of 400, ${peak} kB`);
      assert.ok(Number(peak) < MOST_KIB, `${peak} kB`);
    }
  });

  it('passes on what is more than a socket takes at once, once that reads', async (t) => {
    const session = openSession(t);
    const path = join(session.folder, 'slow.sock');
    let received = 0;
    const server = createServer((socket) => {
      socket.pause().on('data', (chunk) => (received += chunk.length));
      setTimeout(() => socket.resume(), 500);
    }).listen(path);
    t.after(() => server.close());
    await once(server, 'listening');
    const far = startFar(t, words);
    const id = far.open(path);
    await far.hears(new RegExp(`^${id} OPEN $`, 'm'));
    for (let count = 0; count < 20; count += 1) far.send(id, 'DATA', 'x'.repeat(500_000));
    far.send('0', 'PING');
    await until(() => received === 10_000_000, () => `${received}`);
    await far.hears('0 PING ');
  });

  it('lists the folder that it was asked for last, with one scan a second', async (t) => {
    const [one, two] = [openSession(t), openSession(t)];
    await two.serve('b-2');
    const connections: number[] = [];
    const path = join(one.folder, 'a-1.sock');
    const server = createServer((socket) => {
      connections.push(Date.now());
      socket.on('error', () => {}).end();
      utimesSync(path, 0, connections.length); // as if it were another socket, which is tried again
    }).listen(path);
    t.after(() => server.close());
    await once(server, 'listening');
    const far = startFar(t, words);
    for (let count = 0; count < 300; count += 1) far.send('0', 'LIST', one.folder);
    await far.lists([path]);
    const start = [Date.now(), connections.length] as const;
    await until(() => connections.length >= start[1] + 3);
    const seconds = (Date.now() - start[0]) / 1000;
    assert.ok(connections.length - start[1] <= seconds + 2, `${connections.length - start[1]} in ${seconds} s`);
    far.send('0', 'LIST', '/nowhere');
    await far.hears(/^0 CLOSE ./m);
    far.send('0', 'LIST', two.folder);
    await far.lists([join(two.folder, 'b-2.sock')]);
  });

  it('lists the live sockets of its user and root, again at each change, and removes none', async (t) => {
    const session = openSession(t);
    const socket = (name: string): string => join(session.folder, `${name}.sock`);
    await session.serve('a-1');
    const own = await session.serve('b-2');
    await leaveSocket(socket('dead-3'));
    if (lacks('root') === false) {
      await session.serve('other-4');
      chownSync(socket('other-4'), 12345, 12345);
    }
    for (const folder of ['', session.folder]) {
      const far = startFar(t, words, session.env);
      far.send('0', 'LIST', folder);
      await far.lists([socket('a-1'), socket('b-2')]);
      await session.serve('c-3');
      await far.lists([socket('a-1'), socket('b-2'), socket('c-3')]);
      rmSync(socket('c-3'));
      await far.lists([socket('a-1'), socket('b-2')]);
    }
    const far = startFar(t, words, session.env);
    far.send('0', 'LIST');
    await far.lists([socket('a-1'), socket('b-2')]);
    own.end(); // removes its socket
    await far.lists([socket('a-1')]);
    assert.ok(existsSync(socket('dead-3')));
    chmodSync(session.folder, 0o777);
    await far.lists([]);
    const why = `'${session.folder}' is not trusted, because others can write to it; chmod go-w '${session.folder}'`;
    const { code, stderr } = await reach(t, [via('m', session)], ['list', '--dir', session.folder]);
    assert.deepEqual([code, stderr], [5, `control-client: m: cannot use the folder '${session.folder}': ${why}\n`]);
  });
});

/** Resolves after a time in which a busy machine reads what can be read. */
async function stuck(): Promise<true> {
  await sleep(STUCK_MS);
  return true;
}

function readAppended(): string[] {
  const folder = mkdtempSync(join(tmpdir(), 'control-'));
  const target = viaShell('m', `printf '%s\\n' "$@" >${folder}/words`);
  spawnSync(process.execPath, ['dist/bin/client.js', '--via', target, 'list']);
  const text = readFileSync(join(folder, 'words'), 'utf8');
  rmSync(folder, { recursive: true });
  return text.split('\n').slice(0, -1);
}

/** A far end, and what it has sent. */
interface Far extends Running {
  send(stream: string, type: string, data?: string): void;
  /** Sends OPEN, and returns the number of the stream. */
  open(address: string): string;
  /** Waits for a line, and returns it. */
  hears(line: string | RegExp): Promise<string>;
  /** Waits until the latest list has these paths. */
  lists(paths: readonly string[]): Promise<void>;
}

function startFar(t: TestContext, [command = '', ...args]: readonly string[], env?: NodeJS.ProcessEnv): Far {
  const running = start(t, command, args, env);
  const { child, output } = running;
  let last = 0;
  const send: Far['send'] = (stream, type, data = '') => {
    child.stdin?.write(`${stream} ${type} ${Buffer.from(data).toString('base64')}\n`);
  };
  return {
    ...running, send,
    open(address) {
      send(`${last += 1}`, 'OPEN', address);
      return `${last}`;
    },
    async hears(line) {
      const isIt = (one: string): boolean => typeof line === 'string' ? one === line : line.test(one);
      let found: string | undefined;
      await until(() => (found = output().split('\n').find(isIt)) !== undefined, () => `no ${line} in ${output()}`);
      return `${found}`;
    },
    async lists(paths) {
      const latest = (): string | undefined => [...output().matchAll(/^0 LIST (.*)$/gm)].at(-1)?.[1];
      const expected = Buffer.from(paths.join('\0')).toString('base64');
      await until(() => latest() === expected, () => Buffer.from(`${latest()}`, 'base64').toString());
    },
  };
}
