// A far end that sends anything.

import assert from 'node:assert/strict';
import { existsSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { assertHarmless, HOSTILE, makeFolder } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { newsOf, startBoard, untilSystem, untilSystems } from '../board/helpers.ts';
import { linesOf } from '../client/helpers.ts';
import { openSession } from '../client/systems.ts';
import { callVia, frame, optionsOf, patient, reach, via, viaFake, viaShell } from './helpers.ts';
import type { Far, Manners } from './helpers.ts';

const HELLO = '\ncontrol-dial 1\n';
const NO_FRAME = 'it sent what is not a frame';
const ALL_TYPES = ['OPEN', 'DATA', 'END', 'CLOSE', 'LIST', 'PING', 'EVIL'];
const LONG_NAMES = ['x'.repeat(90), 'é'.repeat(50), 'x'.repeat(1e5)].map((name) => `/${name}.sock`);
const BAD_PATHS = ['', '/', '/x', '.sock', 'x.sock', 'relative/x.sock', '/x/', '/far/../x.sock', ...LONG_NAMES];

/** What a far end does, and what becomes of its system, or why the machine cannot be reached. */
const CASES: readonly [what: string, manners: Manners, result: string][] = [
  ['nothing unusual', {}, 'active'],
  ['a hello and all else in single bytes', { isSlow: true }, 'active'],
  ['1 MiB before the hello', { hello: 'x'.repeat(2 ** 20) + HELLO }, 'active'],
  ['lines before the hello', { hello: `${'7 DATA eA==\n'.repeat(1e5)}control-dial 12\n${HELLO}` }, 'active'],
  ['a banner without a line feed', { hello: `Welcome to \x1b[31mm\x1b[0m! ${HELLO}` }, 'active'],
  ['a second hello', { hello: HELLO + HELLO }, NO_FRAME],
  ['a text after the hello', { hello: `${HELLO}Last login: today\n` }, NO_FRAME],
  ['an empty line after the hello', { hello: `${HELLO}\n` }, NO_FRAME],
  ['a number that is too long', { hello: HELLO + frame('1234567890', 'DATA', 'x') }, NO_FRAME],
  ['what is not base64', { hello: `${HELLO}1 DATA {}\n` }, NO_FRAME],
  ['a frame above 1 MiB', { hello: HELLO + frame(1, 'DATA', 'x'.repeat(2 ** 20)) }, NO_FRAME],
  ['a frame of almost 1 MiB', { hello: HELLO + frame(1, 'DATA', 'x'.repeat(780_000)) }, 'active'],
  ['frames of unknown streams and types', {
    hello: HELLO + ALL_TYPES.flatMap((type) => {
      return ['1', '2', '999999999', '00', '01'].map((stream) => frame(stream, type, 'ECONNREFUSED x'));
    }).join(''),
  }, 'active'],
  ['other frames before OPEN, and frames of the connections to come', {
    OPEN(far, stream) {
      for (const type of ['LIST', 'PING', 'EVIL']) far.send(stream, type, '/far/other-8.sock');
      for (const ahead of [1, 2, 3]) far.send(Number(stream) + ahead, 'CLOSE', 'ECONNREFUSED x');
      far.send(stream, 'OPEN');
    },
  }, 'active'],
  ['the end before OPEN', { OPEN: (far, stream) => far.send(stream, 'END') }, 'no answer: socket hang up'],
  ['frames after the end of a stream', {
    DATA(far, stream) {
      far.reply(stream);
      for (const type of ['END', 'END', 'DATA', 'OPEN', 'CLOSE', 'CLOSE', 'DATA', 'END']) far.send(stream, type, 'x');
    },
  }, 'active'],
  ['paths that no client takes', {
    LIST: (far) => far.list(...BAD_PATHS, '/far/train-7.sock', ...BAD_PATHS),
  }, 'active'],
  ...[
    ['ECONNREFUSED x', 'offline: nothing listens'], ['ENOENT x', 'offline: nothing listens'],
    ['EXIT2 x', 'no answer: x'],
    ['', 'no answer: socket hang up'], ['econnrefused x', 'no answer: x'],
    ['ECONNREFUSED', 'no answer: ECONNREFUSED'], ['ETIMEDOUT x', 'no answer: x'],
    ['EXIT3 \x1b[31mno', 'no answer:  [31mno'],
  ].map(([refusal = '', result = '']): [string, Manners, string] => {
    return [`the refusal ${refusal}`, { OPEN: (far, stream) => far.send(stream, 'CLOSE', refusal) }, result];
  }),
  ['a refusal after the connection was confirmed', {
    DATA: (far, stream) => far.send(stream, 'CLOSE', 'ECONNREFUSED gone'),
  }, 'no answer: has not responded (gone)'],
];

const MIB = 2 ** 20;
const MOST_KIB = 150_000; // seven links take up to 120,000, and one flood that is kept adds 48,000
const OK = 'HTTP/1.1 200 OK\r\n';

/** A far end that sends a lot, and the status that its system has then. */
const FLOODS: readonly [what: string, manners: Manners, status: string][] = [
  ['a line before the hello', {
    hello: '', START: (far) => far.flood('x'.repeat(65_536), 48 * MIB, () => far.write(HELLO)),
  }, 'active'],
  ['lines before the hello', {
    hello: '', START: (far) => far.flood('y\n'.repeat(32_768), 2 * MIB, () => far.write(HELLO)),
  }, 'active'],
  ...[
    ['data of unknown streams', 48, frame(7, 'DATA', 'x'.repeat(60_000))], ['PING', 3, '0 PING\n'.repeat(10_000)],
    ['lists', 24, frame(0, 'LIST', `/far/train-8.sock${'\0bad.sock'.repeat(20_000)}`)],
  ].map(([what, size, text]): [string, Manners, string] => [`${what}`, {
    LIST: (far) => far.flood(`${text}`, Number(size) * MIB, () => far.list('/far/train-7.sock')),
  }, 'active']),
  ...[['a response', '\r\n'], ['a head', '']].map(([what = '', end]): [string, Manners, string] => [what, {
    DATA(far, stream) {
      far.send(stream, 'DATA', OK + end);
      far.flood(frame(stream, 'DATA', 'x'.repeat(60_000)), 48 * MIB);
    },
  }, 'no answer']),
];

describe('a far end that sends', { ...LIMIT, skip: lacks('Unix') }, () => {
  it('anything harms neither the tool nor other machines', async (t) => {
    const labelOf = (index: number): string => `m${index + 10}`;
    const vias = CASES.map(([, manners], index) => viaFake(t, labelOf(index), manners));
    const { code, stdout, stderr } = await reach(t, vias, ['status', 'train', '--json'], patient());
    const results = new Map<string, string>();
    for (const line of linesOf(stdout)) {
      const { target = '', status, error } = JSON.parse(line) as Record<string, string>;
      const [label = '', path] = target.split(/\/(.*)/s);
      assert.equal(path, 'unix:/far/train-7.sock');
      const reason = error?.replace(/^m\S+ (does not respond: )?| at \S+$/, '');
      results.set(label, reason === undefined ? `${status}` : `${status}: ${reason}`);
    }
    for (const line of linesOf(stderr)) {
      const [, label = '', error = ''] = /^control-client: (m\d+): (.*)$/.exec(line) ?? [];
      if (label !== '') results.set(label, error);
    }
    assert.deepEqual(
      CASES.map(([what], index) => [what, results.get(labelOf(index))]),
      CASES.map(([what, , result]) => [what, result]),
    );
    assert.equal(code, 5);
  });

  it('a lot takes no memory', async (t) => {
    const measure = patient("process.on('exit', () => console.error(process.resourceUsage().maxRSS)); // KiB");
    const vias = FLOODS.map(([, manners], index) => viaFake(t, `m${index}`, manners));
    const { stdout, stderr } = await reach(t, vias, ['list', '--json'], measure);
    const statuses = linesOf(stdout).map((line) => (JSON.parse(line) as { status: string }).status);
    const named = FLOODS.map(([what], index) => [what, statuses[index]]);
    assert.deepEqual(named, FLOODS.map(([what, , status]) => [what, status]), stderr);
    const [, peak] = /^(\d+)\n$/m.exec(stderr) ?? [];
    assert.ok(Number(peak) < MOST_KIB, stderr);
  });

  it('10,000 sockets is taken at its word for 1,000', async (t) => {
    const paths = Array.from({ length: 10_000 }, (_, index) => `/far/train-${index + 1}.sock`);
    const source = viaFake(t, 'many', { LIST: (far) => far.list(...paths, ...paths) });
    const { code, stdout, stderr } = await reach(t, [source], ['list'], patient());
    assert.deepEqual([code, linesOf(stdout).length, stderr], [0, 1000, '']);
  });

  it('other sockets again and again adds 64 at a search to a board, which serves others', async (t) => {
    const session = openSession(t);
    await session.launch('train');
    let number = 0;
    const listNew = (far: Far): void => far.list(...Array.from({ length: 100 }, () => `/far/x-${number += 1}.sock`));
    const LIST = (far: Far): void => {
      const timer = setInterval(() => listNew(far), 500);
      t.after(() => clearInterval(timer));
    };
    const board = await startBoard(t, [], optionsOf([viaFake(t, 'evil', { LIST }), via('good', session)]));
    const last = async (): Promise<number> => Math.max(...(await newsOf(board)).ids);
    let id = -1;
    await untilSystems(board, (systems) => {
      id = systems.find(({ name, status }) => name === 'good/train' && status === 'active')?.id ?? -1;
      return id >= 0;
    });
    const [start, first] = [performance.now(), await last()];
    assert.equal((await board.post(`/api/systems/${id}/pause`)).status, 202);
    await untilSystem(board, ({ status }) => status === 'paused', id);
    await until(async () => await last() > first + 64); // those of two searches
    const added = await last() - first;
    const seconds = (performance.now() - start) / 1000;
    assert.ok(added <= 64 * (seconds + 2), `${added} in ${seconds} s`);
  });

  it('control characters and labels as paths, bodies and reasons', async (t) => {
    const path = `/far/${HOSTILE.replaceAll(/\0|😀/g, '')}-7.sock`;
    const labels = { machine: 'gpu2', target: 'gpu2/train', label: 'gpu2/' };
    const body = { status: HOSTILE, name: HOSTILE, detail: HOSTILE, by: HOSTILE, ...labels };
    const manners: Manners = {
      LIST: (far) => far.list(path, '/../gpu2/train-8.sock', '/gpu2/../gpu2\ntrain-9.sock'),
      DATA: (far, stream) => far.reply(stream, body),
    };
    const target = viaFake(t, 'm', manners);
    for (const args of [
      ['list'], ['list', '--json'], ['status', '--all'], ['info', '--all', '--json'], ['pause', '--all'],
      ['status', 'm/nix'], ['wait', 'active', '--all', '--timeout', '0.5'],
    ]) {
      const { stdout, stderr } = await callVia([target], args);
      assertHarmless(stdout + stderr);
      for (const line of linesOf(stdout)) {
        if (args.includes('--json')) assert.match((JSON.parse(line) as { target: string }).target, /^m\//);
        else assert.match(line, args[0] === 'list' ? /  m\/unix:\// : /^m\/(PW|train-8|gpu2 train-9)/);
      }
      const known = /^control-client: (m\/(PW|train-8|gpu2 train-9)|there is no system 'nix' on m)/;
      for (const line of linesOf(stderr)) assert.match(line, known);
    }
    const reason = join(makeFolder(t), 'reason');
    writeFileSync(reason, `${HOSTILE}\n`);
    const vias = [
      viaFake(t, 'a', { OPEN: (far, stream) => far.send(stream, 'CLOSE', `EACCES ${HOSTILE}`) }),
      viaFake(t, 'b', { hello: HELLO + frame(0, 'CLOSE', `EVIL ${HOSTILE}`) }),
      viaShell('c', `cat ${reason} >&2; exit 1`), viaShell('d', `cat ${reason}; exit 1`),
    ];
    const { code, stderr } = await callVia(vias, ['list']);
    assertHarmless(stderr);
    const told = linesOf(stderr).map((line) => /^control-client: ([a-d])\b/.exec(line)?.[1]);
    assert.deepEqual([code, told.sort()], [5, ['a', 'b', 'c', 'd']]);
    for (const args of [['pause', '--all', '--json'], ['pause', 'a/:80']]) {
      const ended = await callVia(vias.slice(0, 1), args);
      assertHarmless(ended.stdout + ended.stderr);
    }
  });

  it('the names of local sockets gets nothing of them', async (t) => {
    const session = openSession(t);
    const { requests } = await session.serve('train-7');
    let connections = 0;
    const path = join(session.folder, 'other-8.sock');
    const server = createServer(() => (connections += 1)).listen(path);
    t.after(() => server.close());
    const target = viaFake(t, 'm', { LIST: (far) => far.list(join(session.folder, 'train-7.sock'), path) });
    const shutdown = ['shutdown', '--all', '--wait', '--timeout', '1'];
    for (const args of [['list'], ['pause', '--all'], ['pause', 'm/train'], shutdown]) {
      const { stdout } = await callVia([target], args, session.env);
      if (args[0] !== 'shutdown') assert.match(stdout, /^m\/|m\/unix:/m);
    }
    assert.deepEqual([requests, connections], [[], 0]);
    assert.ok(existsSync(path));
  });

  it('nothing, or a refusal, after a command may have got it: only what was not confirmed was not sent', async (t) => {
    const [mute, rash, late] = [
      viaFake(t, 'mute', { OPEN: () => {} }),
      viaFake(t, 'rash', { OPEN: (far, stream) => far.send(stream, 'DATA', 'HTTP/1.1 2') }),
      viaFake(t, 'late', { DATA: (far, stream) => far.send(stream, 'CLOSE', 'ECONNREFUSED gone') }),
    ];
    for (const [target, words, error] of [
      [mute, ['mute/train', '--wait', '--timeout', '1'], 'mute/train: pause not sent: '],
      [rash, ['rash/train', '--wait', '--timeout', '1'], 'rash/train: pause not sent: '],
      [late, ['late/train'], 'late/train: pause sent, but no response (gone): it may still take effect'],
      [late, ['late/:80'], 'late/:80: pause sent, but no response (gone): it may still take effect'],
    ] as const) {
      const { code, stderr } = await callVia([target], ['pause', ...words]);
      assert.ok(stderr.startsWith(`control-client: ${error}`), stderr);
      assert.equal(code, 5);
    }
  });
});
