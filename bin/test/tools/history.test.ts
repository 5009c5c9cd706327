// The log of a system for the tools that show it, here control-board, whatever the system reports: only its own
// entries, from a file of this machine.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { appendFileSync, mkdirSync, readFileSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { makeFolder, makePipe, preload } from '../helpers.ts';
import { lacks } from '../needs.ts';
import { startPuppet } from '../puppet.ts';
import { LIMIT } from '../wait.ts';
import { startBoard, type StartedBoard, untilSystems } from './board/helpers.ts';
import { entry, infoOf, linesOf, NO_LOG, outcome, writeLog } from './logs.ts';

const SUITE = { ...LIMIT, skip: lacks('Linux') };
const TEXTS = ['started', 'paused by ana: lunch', 'resume by ana done in 0.25 s'];

/** Whatever the address, the board connects to 127.0.0.1, and this machine has the address 192.0.2.7. */
const ANYWHERE = preload(`
  import { Socket } from 'node:net';
  import os from 'node:os';
  import { syncBuiltinESMExports } from 'node:module';
  os.networkInterfaces = () => ({ eth0: [{ address: '192.0.2.7' }] });
  syncBuiltinESMExports();
  const { connect } = Socket.prototype;
  Socket.prototype.connect = function (...args) {
    const [options] = args.flat();
    if (options?.port !== undefined) options.host = '127.0.0.1';
    return connect.apply(this, args);
  };
`);

function writeOwn(t: TestContext, ...others: readonly (object | string)[]): string {
  const paused = { status: 'paused', by: 'ana', reason: 'lunch', holds: [{ by: 'ana', reason: 'lunch' }] };
  return writeLog(t, entry(9, 'start'), entry(8, 'status', paused), outcome(7, 'a-1'), ...others);
}

/** Starts a board with these targets, which all respond. */
async function openBoard(t: TestContext, targets: readonly string[]): Promise<StartedBoard> {
  const board = await startBoard(t, targets, [], ANYWHERE);
  await untilSystems(board, (all) => all.length === targets.length && all.every(({ status }) => status === 'active'));
  return board;
}

interface Shown {
  note: string;
  texts: string[];
}

async function logOf(board: StartedBoard, id: number): Promise<Shown> {
  const response = await board.get(`/api/logs/${id}`);
  const { note, entries } = await response.json() as { note: string; entries: { text: string }[] };
  return { note, texts: entries.map(({ text }) => text) };
}

/** The bytes that a process has read so far. */
function bytesRead({ running: { child } }: StartedBoard): number {
  return Number(/^rchar: (\d+)$/m.exec(readFileSync(`/proc/${child.pid}/io`, 'utf8'))?.[1]);
}

describe('The log of a system', SUITE, () => {
  it('has only entries with the name and the process of the system, whatever file it reports', async (t) => {
    const others = [{ ...outcome(5, 'a-3'), name: 'other' }, { ...outcome(5, 'a-4'), pid: 8 }, '{"a":1}'];
    const path = writeOwn(t, ...others);
    const renamed = writeLog(t, outcome(6, 'a-2', { by: 'ben' }));
    writeFileSync(`${renamed}.1`, readFileSync(path));
    const [last] = TEXTS.slice(-1);
    const folder = makeFolder(t);
    const at = (name: string): string => join(folder, name);
    mkdirSync(at('folder'));
    execFileSync('mkfifo', [at('fifo')]); // nobody writes
    symlinkSync('/dev/zero', at('device'));
    symlinkSync(at('loop'), at('loop'));
    const server = createServer().listen(at('socket'));
    t.after(() => server.close());
    const unreadable = [
      '/etc/passwd', process.execPath, '/proc/self/environ', makePipe(t).path, at('fifo'), at('device'), at('loop'),
      at('socket'), at('folder'), at('none'), at('none/none'), '/dev/tty', '/dev/zero', '/dev/stdin', '/proc/kmsg',
    ];
    const unnamed = { name: undefined, pid: undefined };
    const fault = { path, error: 'ENOSPC: no space left\x1b[2J' };
    const noEntries = `no readable entries in ${path}`;
    const rows: [info: object, note: string, texts: readonly (string | undefined)[]][] = [
      [infoOf(path), '', TEXTS], [infoOf(renamed), '', [...TEXTS, 'resume by ben done in 0.25 s']],
      [infoOf(path, { name: 'other' }), '', [last]], [infoOf(path, { pid: 8 }), '', [last]],
      ...[{ pid: '7' }, { pid: null }, { name: ['train'] }, { name: undefined }, unnamed].map((fields) => {
        return [infoOf(path, fields), noEntries, []] as [object, string, string[]];
      }),
      [infoOf(path, { log: fault }), `cannot write to ${path}: ENOSPC: no space left [2J`, TEXTS],
      ...[undefined, null, 'x', {}, { path: {} }, { path: '' }].map((log) => {
        return [infoOf(path, { log }), NO_LOG, []] as [object, string, string[]];
      }),
      [infoOf(path, { host: 'gpu1' }), `logs on gpu1 to ${path}`, []],
      [infoOf(path, { host: undefined }), `logs on an unknown machine to ${path}`, []],
      [infoOf('relative.jsonl'), `logs on ${hostname()} to relative.jsonl`, []],
      [infoOf(`${path}\0x`), `logs on ${hostname()} to ${path} x`, []],
      ...unreadable.flatMap((one) => [infoOf(one), infoOf(one, unnamed)].map((info) => {
        return [info, `no readable entries in ${one}`, []] as [object, string, string[]];
      })),
    ];
    const puppets = await Promise.all(rows.map(([info]) => startPuppet(t, { ...info })));
    const board = await openBoard(t, puppets.map(({ target }) => target));
    for (const [id, [info, note, texts]] of rows.entries()) {
      assert.deepEqual(await logOf(board, id), { note, texts }, JSON.stringify(info));
    }
  });

  it('is not here if the system is at the address of another machine', async (t) => {
    const path = writeOwn(t);
    const { port } = await startPuppet(t, infoOf(path));
    const socket = await startPuppet(t, infoOf(path), { socketPath: join(makeFolder(t), 'x.sock') });
    const here = ['localhost', 'LOCALHOST', '[::1]', '127.0.0.2', hostname(), hostname().toUpperCase(), '192.0.2.7'];
    const elsewhere = ['gpu1', '192.0.2.1', '127.0.0.1.example.com', 'localhost.example.com', '[2001:db8::1]'];
    const hosts = [...new Set([...here, ...elsewhere])];
    const board = await openBoard(t, [...hosts.map((host) => `${host}:${port}`), socket.target]);
    for (const [id, host] of [...hosts, socket.target].entries()) {
      const isElsewhere = elsewhere.includes(host);
      const note = isElsewhere ? `logs on ${hostname()} to ${path}` : '';
      assert.deepEqual(await logOf(board, id), { note, texts: isElsewhere ? [] : TEXTS }, host);
    }
  });

  it('costs a bounded read of a huge file, and one at a time', async (t) => {
    const path = join(makeFolder(t), 'train.jsonl');
    for (const file of [path, `${path}.1`]) {
      writeFileSync(file, '');
      truncateSync(file, 2 ** 40); // without blocks on the disk
    }
    appendFileSync(path, `\n${linesOf([outcome(1, 'a-1')])}`);
    const { target } = await startPuppet(t, infoOf(path));
    const board = await openBoard(t, [target]);
    const before = bytesRead(board);
    const request = `GET /api/logs/0 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${board.key}\r\n`;
    const socket = connect(board.port, '127.0.0.1');
    socket.write(`${request}\r\n`.repeat(19) + `${request}Connection: close\r\n\r\n`); // read before any is answered
    let text = '';
    for await (const chunk of socket.setEncoding('utf8')) text += chunk;
    assert.equal(text.match(/"text":"resume by ana done in 0\.25 s"/g)?.length, 20);
    assert.ok(bytesRead(board) - before < 4 * 2 ** 20, `${bytesRead(board) - before} bytes`);
    appendFileSync(path, linesOf([outcome(1, 'a-2', { by: 'ben' })]));
    assert.equal((await logOf(board, 0)).texts.length, 2, 'the next read is a new one');
  });
});
