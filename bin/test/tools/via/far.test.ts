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
import { callVia, frame, via, viaShell } from './helpers.ts';
import type { Server, Socket } from 'node:net';
import type { TestContext } from 'node:test';
import type { Running } from '../../helpers.ts';
import type { Need } from '../../needs.ts';

const HELLO = '\ncontrol-dial 1\n';
const MOST_KIB = 95_000; // Node and what it is passing on take up to 70,000; 50,000 more are written
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
    it(`means the same parsed once and twice by ${shell}`, { skip }, (t) => {
      const line = `printf '%s\\n' ${words.join(' ')}`;
      const env = { ...process.env, HOME: makeFolder(t) }; // bash may read ~/.bashrc
      for (const script of [line, `eval ${line.replace("'%s\\n'", '%s\\\\\\\\n')}`]) {
        const { stdout, stderr } = spawnSync(shell, ['-c', script], { encoding: 'utf8', env });
        assert.deepEqual([stdout.split('\n').slice(0, -1), stderr], [words, ''], script.slice(0, 40));
      }
    });
  }

  it('runs over a shell that parses it twice, and as control-client dial, which can be all a key may do', async (t) => {
    const session = openSession(t);
    const { requests } = await session.serve('train-7');
    const enter = `CONTROL_DIR=${session.env.CONTROL_DIR}; export CONTROL_DIR; exec`;
    const forced = `SSH_ORIGINAL_COMMAND="$*" ${DIAL.map((word) => `'${word}'`).join(' ')}`;
    const vias = [
      viaShell('twice', `${enter} sh -c "sh -c '$*'"`), viaShell('forced', `${enter} env ${forced}`),
    ];
    const ended = await callVia(vias, ['pause', '--all']);
    assert.deepEqual([ended.code, ended.stdout.split('\n').sort(), ended.stderr], [
      0, ['', 'forced/train  ok', 'twice/train   ok'], '',
    ]);
    assert.deepEqual(requests, ['POST /api/pause', 'POST /api/pause']);
    for (const extra of [['x'], ['--wait']]) {
      assert.match((await callVia([], ['dial', ...extra])).stderr, /unexpected|unknown|requires/, `${extra}`);
    }
  });

  it('begins with a line of its own, answers, runs nothing, and ends with its input', async (t) => {
    const file = join(makeFolder(t), 'file');
    const script = `touch ${file}`;
    const rubbish = ['', 'sh', script, `$(${script})`, '0 EXEC'].map((line) => `${line}\n`);
    const frames = ['EXEC', 'OPEN', 'LIST', 'DATA'].map((type) => frame(1, type, script));
    for (const command of [words, DIAL]) {
      const far = startFar(t, command);
      far.child.stdin?.end([...rubbish, ...frames, frame(0, 'PING')].join(''));
      const { code, stdout, stderr } = await far.ended;
      assert.deepEqual([code, stderr, stdout.startsWith(HELLO)], [0, '', true]);
      assert.ok(stdout.includes('\n0 PING \n'), stdout);
      assert.ok(!existsSync(file));
    }
  });

  it('ends when nobody reads its output, or sends a line that is too long', async (t) => {
    const deaf = startFar(t, words);
    await deaf.shows(/dial 1\n/);
    deaf.child.stdout?.destroy();
    await until(() => {
      deaf.send('0', 'PING');
      return deaf.child.exitCode !== null;
    });
    assert.equal(deaf.child.exitCode, 1);
    const far = startFar(t, words);
    far.child.stdin?.write('x'.repeat(2 ** 21));
    assert.equal((await far.ended).code, 1);
  });

  it('ends after a minute without a byte', async (t) => {
    const hasted = preload('const { now } = performance; performance.now = () => now.call(performance) * 60;');
    const far = startFar(t, words, hasted);
    assert.equal((await far.ended).code, 1);
    assert.equal(far.output(), HELLO);
    const [command = '', ...args] = words;
    const unread = spawn(command, args, { stdio: ['pipe', 'pipe', 'ignore'], env: { ...process.env, ...hasted } });
    t.after(() => unread.kill('SIGKILL'));
    unread.stdin.on('error', () => {}).write('0 PING\n'.repeat(100_000)); // more than a pipe holds
    assert.deepEqual(await once(unread, 'exit'), [1, null]);
  });

  it('connects to localhost only, and to no socket of another user', async (t) => {
    const session = openSession(t);
    for (const title of ['train-7', 'other-8']) await session.serve(title);
    const [path, other] = ['train-7', 'other-8'].map((title) => join(session.folder, `${title}.sock`));
    const port = await freePort();
    const rows: [address: string, refusal: string | null][] = [
      ['192.0.2.1:80', "ERROR '192.0.2.1' is not localhost"], ['box:80', "ERROR 'box' is not localhost"],
      ['0.0.0.0:80', "ERROR '0.0.0.0' is not localhost"], [':80', "ERROR '' is not localhost"],
      ['127.0.0.1.box:80', "ERROR '127.0.0.1.box' is not localhost"],
      [`127.0.0.1:${port}`, `ECONNREFUSED connect ECONNREFUSED 127.0.0.1:${port}`],
      ['/nowhere/x.sock', "ENOENT ENOENT: no such file or directory, stat '/nowhere/x.sock'"],
      ['127.0.0.1:99999', null], ['', null], [`${path}`, ''],
    ];
    if (lacks('root') === false) {
      chownSync(`${other}`, 12345, 12345);
      rows.push([`${other}`, `EACCES '${other}' is not trusted, because it belongs to user 12345`]);
    }
    const far = startFar(t, words);
    for (const [address, refusal] of rows) {
      const id = far.open(address);
      const [, type, data = ''] = (await far.hears(new RegExp(`^${id} (OPEN|CLOSE) .*$`, 'm'))).split(' ');
      const text = Buffer.from(data, 'base64').toString();
      assert.deepEqual([type, text], refusal === '' ? ['OPEN', ''] : ['CLOSE', refusal ?? text], address);
    }
  });

  it('opens at most 2,048 connections at a time', { skip: lacks('Linux') }, async (t) => {
    const { path } = await startSink(t, () => {});
    const far = startFar(t, words);
    await far.shows(/dial 1\n/);
    for (let count = 0; count < 2048;) { // in groups, which the queue of the socket can hold
      for (const end = count + 64; count < end; count += 1) far.open(path);
      await far.until(() => (far.output().match(/^\d+ OPEN $/gm) ?? []).length === count);
    }
    const refusal = Buffer.from('EMFILE too many connections').toString('base64');
    for (const id of [far.open(path), far.open(path)]) await far.hears(`${id} CLOSE ${refusal}`);
    far.send('7', 'CLOSE');
    await far.hears(new RegExp(`^${far.open(path)} OPEN $`, 'm'));
  });

  it('reads no more while a socket does not, passes all on once it does', { skip: lacks('Linux') }, async (t) => {
    let received = 0;
    const { path, sockets } = await startSink(t, (socket) => socket.pause().on('data', (chunk) => {
      received += chunk.length;
    }));
    const far = startFar(t, words);
    const id = far.open(path);
    await far.hears(new RegExp(`^${id} OPEN $`, 'm'));
    const data = 'x'.repeat(500_000);
    for (let count = 0; count < 100; count += 1) far.send(id, 'DATA', data);
    far.send('0', 'PING');
    await far.readsNoMore();
    assert.ok(peakOf(far) < MOST_KIB, `${peakOf(far)} kB`);
    assert.ok(received < 1_000_000, `${received}`);
    for (const socket of sockets) socket.resume();
    await until(() => received === 100 * data.length, () => `${received}`);
    await far.hears('0 PING ');
  });

  it('reads no more while its output is not read', { skip: lacks('Linux') }, async (t) => {
    const far = startFar(t, words);
    await far.shows(/dial 1\n/);
    far.child.stdout?.pause();
    far.child.stdin?.write(frame(9, 'OPEN', 'x').repeat(3_000_000));
    await far.readsNoMore();
    assert.ok(peakOf(far) < MOST_KIB, `${peakOf(far)} kB`);
  });

  it('lists the folder that it was asked for last, with one scan a second', async (t) => {
    const [one, two] = [openSession(t), openSession(t)];
    await two.serve('b-2');
    let connections = 0;
    const path = join(one.folder, 'a-1.sock');
    await startSink(t, (socket) => {
      socket.end();
      utimesSync(path, 0, connections += 1); // as if it were another socket, which is tried again
    }, path);
    const far = startFar(t, words);
    for (let count = 0; count < 300; count += 1) far.send('0', 'LIST', one.folder);
    await far.lists([path]);
    const [start, before] = [performance.now(), connections];
    await until(() => connections > before);
    far.send('0', 'LIST', '/nowhere');
    await far.hears(/^0 CLOSE ./m); // what else was due has happened by then
    const seconds = (performance.now() - start) / 1000;
    assert.ok(connections - before <= seconds + 2, `${connections - before} in ${seconds} s`);
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
    const far = startFar(t, words, session.env);
    far.send('0', 'LIST');
    await far.lists([socket('a-1'), socket('b-2')]);
    await session.serve('c-3');
    await far.lists([socket('a-1'), socket('b-2'), socket('c-3')]);
    rmSync(socket('c-3'));
    await far.lists([socket('a-1'), socket('b-2')]);
    own.end(); // removes its socket
    await far.lists([socket('a-1')]);
    assert.ok(existsSync(socket('dead-3')));
    chmodSync(session.folder, 0o777);
    await far.lists([]);
    const why = `'${session.folder}' is not trusted, because others can write to it; chmod go-w '${session.folder}'`;
    const { code, stderr } = await callVia([via('m', session)], ['list', '--dir', session.folder]);
    assert.deepEqual([code, stderr], [5, `control-client: m: cannot use the folder '${session.folder}': ${why}\n`]);
  });
});

function readAppended(): string[] {
  const folder = mkdtempSync(join(tmpdir(), 'control-'));
  const target = viaShell('m', `printf '%s\\n' "$@" >${folder}/words`);
  spawnSync(process.execPath, ['dist/bin/client.js', '--via', target, 'list']);
  const text = readFileSync(join(folder, 'words'), 'utf8');
  rmSync(folder, { recursive: true });
  return text.split('\n').slice(0, -1);
}

/** Starts a server at a socket. */
async function startSink(
  t: TestContext,
  onConnection: (socket: Socket) => void,
  path: string = join(openSession(t).folder, 'sink-1.sock'),
): Promise<{ path: string; server: Server; sockets: Set<Socket> }> {
  const sockets = new Set<Socket>();
  const server = createServer({ pauseOnConnect: true }, (socket) => {
    sockets.add(socket.on('error', () => {}));
    t.after(() => socket.destroy());
    onConnection(socket);
  }).listen(path);
  t.after(() => server.close());
  await once(server, 'listening');
  return { path, server, sockets };
}

/** The most memory that a program has had, in KiB. */
function peakOf({ child: { pid } }: Running): number {
  return Number(/VmHWM:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]);
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
  /** Waits until it sleeps although it has more to read. */
  readsNoMore(): Promise<void>;
}

function startFar(t: TestContext, [command = '', ...args]: readonly string[], env?: NodeJS.ProcessEnv): Far {
  const running = start(t, command, args, env);
  const { child, output, until: untilTrue } = running;
  let last = 0;
  const send: Far['send'] = (stream, type, data) => void child.stdin?.write(frame(stream, type, data));
  return {
    ...running, send,
    open(address) {
      send(`${last += 1}`, 'OPEN', address);
      return `${last}`;
    },
    async hears(line) {
      const isIt = (one: string): boolean => typeof line === 'string' ? one === line : line.test(one);
      let found: string | undefined;
      await untilTrue(() => (found = output().split('\n').find(isIt)) !== undefined, () => `no ${line} in ${output()}`);
      return `${found}`;
    },
    async lists(paths) {
      const latest = (): string | undefined => [...output().matchAll(/^0 LIST (.*)$/gm)].at(-1)?.[1];
      const expected = Buffer.from(paths.join('\0')).toString('base64');
      await untilTrue(() => latest() === expected, () => Buffer.from(`${latest()}`, 'base64').toString());
    },
    async readsNoMore() {
      const [readOf, stateOf] = ['io', 'stat'].map((name) => () => readFileSync(`/proc/${child.pid}/${name}`, 'utf8'));
      let [before, same] = ['', 0];
      await untilTrue(async () => {
        await sleep(50);
        const [read = ''] = /rchar: \d+/.exec(readOf?.() ?? '') ?? [];
        const isAsleep = /\) S /.test(stateOf?.() ?? '') && child.stdin?.writableNeedDrain === true;
        same = isAsleep && read === before ? same + 1 : 0;
        before = read;
        return same >= 5;
      }, () => `it has read ${before}`);
    },
  };
}
