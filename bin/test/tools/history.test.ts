// The log of a system for the tools that show it, whatever the system reports: only its own entries, from a file of
// this machine.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { appendFileSync, mkdirSync, readFileSync, renameSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { hostname, networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { createClient, type PrintableClient } from '../../shared/client.ts';
import { readHistory } from '../../shared/log.ts';
import { assertHarmless, makeFolder, makePipe } from '../helpers.ts';
import { lacks } from '../needs.ts';
import { LIMIT } from '../wait.ts';
import { entry, HOSTILE_LINES, infoOf, linesOf, NO_LOG, outcome, writeLog } from './logs.ts';

const SUITE = { ...LIMIT, skip: lacks('Unix') };
const TEXTS = ['started', 'paused by ana: lunch', 'resume by ana done in 0.25 s'];

let count = 0;

/** A client of its own: reads of one system are shared. */
function clientAt(host: string = '127.0.0.1'): PrintableClient {
  return createClient({ host, port: `${count += 1}` }, { timeoutMs: 1000 });
}

function writeOwn(t: TestContext): string {
  const paused = { status: 'paused', by: 'ana', reason: 'lunch', holds: [{ by: 'ana', reason: 'lunch' }] };
  return writeLog(t, entry(9, 'start'), entry(8, 'status', paused), outcome(7, 'a-1'));
}

async function textsOf(info: Record<string, unknown>, client?: PrintableClient): Promise<string[]> {
  return (await readHistory(client ?? clientAt(), info)).lines.map(({ text }) => text);
}

describe('The log of a system', SUITE, () => {
  it('is read from the file that the system reports, and its older generation', async (t) => {
    const path = writeOwn(t);
    const { note, lines } = await readHistory(clientAt(), infoOf(path));
    assert.deepEqual([note, lines.map(({ text }) => text)], ['', TEXTS]);
    renameSync(path, `${path}.1`);
    writeFileSync(path, linesOf([outcome(6, 'a-2', { by: 'ben' })]));
    assert.deepEqual(await textsOf(infoOf(path)), [...TEXTS, 'resume by ben done in 0.25 s']);
  });

  it('is not here if the system logs nothing, logs elsewhere, or is at the address of another machine', async (t) => {
    const path = writeOwn(t);
    const rows: [info: object, host: string | undefined, note: string][] = [
      ...[{}, { log: null }, { log: 'x' }, { log: {} }, { log: { path: {} } }, { log: { path: '' } }].map((info) => {
        return [{ ...infoOf(path), log: undefined, ...info }, undefined, NO_LOG] as [object, undefined, string];
      }),
      [infoOf(path, { host: 'gpu1' }), undefined, `logs on gpu1 to ${path}`],
      [infoOf(path, { host: undefined }), undefined, `logs on an unknown machine to ${path}`],
      [infoOf(path), 'gpu1', `logs on ${hostname()} to ${path}`],
      [infoOf(path), '192.0.2.1', `logs on ${hostname()} to ${path}`],
      [infoOf(path), '127.0.0.1.example.com', `logs on ${hostname()} to ${path}`],
      [infoOf(path), 'localhost.example.com', `logs on ${hostname()} to ${path}`],
      [infoOf(path), '2001:db8::1', `logs on ${hostname()} to ${path}`],
    ];
    for (const [info, host, note] of rows) {
      assert.deepEqual(await readHistory(clientAt(host), info as Record<string, unknown>), { note, lines: [] });
    }
    const addresses = Object.values(networkInterfaces()).flatMap((entries = []) => entries.map((one) => one.address));
    for (const host of ['localhost', 'LOCALHOST', '::1', '127.0.0.2', hostname(), ...addresses]) {
      if (host.startsWith('fe80:')) continue;
      assert.deepEqual(await textsOf(infoOf(path), clientAt(host)), TEXTS, host);
    }
    const socket = createClient({ socket: join(makeFolder(t), 'train.sock') }, { timeoutMs: 1000 });
    assert.deepEqual(await textsOf(infoOf(path), socket), TEXTS);
  });

  it('has only entries with the name and the process of the system, whatever file it reports', async (t) => {
    const path = writeOwn(t);
    const others = [{ ...outcome(5, 'a-3'), name: 'other' }, { ...outcome(5, 'a-4'), pid: 8 }, '{"a":1}'];
    appendFileSync(path, linesOf(others));
    assert.deepEqual(await textsOf(infoOf(path)), TEXTS);
    const reports: object[] = [
      { name: 'other', pid: 7 }, { name: 'train', pid: '7' }, { name: ['train'] }, { name: undefined }, { pid: null },
      { pid: 7.5 }, { name: { toString: null } },
    ];
    for (const fields of reports) {
      const { note, lines } = await readHistory(clientAt(), infoOf(path, fields));
      const expected = 'pid' in fields && fields.pid === 7 ? ['resume by ana done in 0.25 s'] : [];
      assert.deepEqual(lines.map(({ text }) => text), expected, JSON.stringify(fields));
      assert.equal(note, expected.length > 0 ? '' : `no readable entries in ${path}`);
    }
    for (const foreign of ['/etc/passwd', process.execPath, 'package.json', '/proc/self/environ']) {
      assert.deepEqual(await textsOf(infoOf(foreign, { name: undefined, pid: undefined })), []);
      assert.deepEqual(await textsOf(infoOf(foreign)), []);
    }
  });

  it('is not read from anything but a regular file, and nothing blocks', async (t) => {
    const folder = makeFolder(t);
    const at = (name: string): string => join(folder, name);
    mkdirSync(at('folder'));
    const { path: pipe } = makePipe(t);
    execFileSync('mkfifo', [at('fifo')]); // nobody writes
    symlinkSync('/dev/zero', at('device'));
    symlinkSync(at('loop'), at('loop'));
    const server = createServer().listen(at('socket'));
    t.after(() => server.close());
    const paths = [
      pipe, at('fifo'), at('device'), at('loop'), at('socket'), at('folder'), at('none'), at('none/none'), '/dev/tty',
      '/dev/zero', '/dev/stdin', '/proc/kmsg', `/${'x'.repeat(5000)}`, 'relative.jsonl', `${at('a')}\0b`, '\ud800',
    ];
    for (const path of paths) assert.deepEqual(await textsOf(infoOf(path)), [], path);
    const { note } = await readHistory(clientAt(), infoOf(at('folder')));
    assert.equal(note, `no readable entries in ${at('folder')}`);
  });

  it('costs a bounded read of a huge file', { skip: lacks('Linux') }, async (t) => {
    const path = join(makeFolder(t), 'train.jsonl');
    for (const file of [path, `${path}.1`]) {
      writeFileSync(file, '');
      truncateSync(file, 2 ** 40); // without blocks on the disk
    }
    appendFileSync(path, `\n${linesOf([outcome(1, 'a-1')])}`);
    const before = bytesRead();
    assert.deepEqual(await textsOf(infoOf(path)), ['resume by ana done in 0.25 s']);
    assert.ok(bytesRead() - before < 4 * 2 ** 20, `${bytesRead() - before} bytes`);
  });

  it('is read once at a time, whatever the system reports meanwhile', async (t) => {
    const [path, other] = [writeOwn(t), writeOwn(t)];
    const client = clientAt();
    const first = readHistory(client, infoOf(path));
    assert.equal(readHistory(client, infoOf(other)), first);
    assert.notEqual(readHistory(clientAt(), infoOf(path)), first, 'another system');
    assert.equal((await first).lines.length, TEXTS.length);
    appendFileSync(path, linesOf([outcome(1, 'a-2', { by: 'ben' })]));
    assert.equal((await textsOf(infoOf(path), client)).length, TEXTS.length + 1, 'the next read is a new one');
  });

  it('is safe to print, whatever is in the file', async (t) => {
    const path = writeLog(t, ...HOSTILE_LINES, outcome(1, 'last'));
    const { lines } = await readHistory(clientAt(), infoOf(path));
    for (const { text, time } of lines) {
      assertHarmless(text);
      assert.doesNotMatch(text, /\n|foreign/);
      assert.ok(text.length <= 5000, `${text.length}`);
      assert.ok(Number.isFinite(time));
    }
    assert.ok(lines.length > 20, `${lines.length}`);
    assert.ok(lines.some(({ text }) => text === 'resume by ana done in 0.25 s'));
  });

  it('has a note if the system cannot write it', async (t) => {
    const path = writeOwn(t);
    const error = 'ENOSPC: no space left\x1b[2J';
    const { note, lines } = await readHistory(clientAt(), infoOf(path, { log: { path, error } }));
    assert.equal(note, `cannot write to ${path}: ENOSPC: no space left [2J`);
    assert.equal(lines.length, TEXTS.length);
  });
});

/** The bytes that this process has read so far. */
function bytesRead(): number {
  return Number(/^rchar: (\d+)$/m.exec(readFileSync('/proc/self/io', 'utf8'))?.[1]);
}
