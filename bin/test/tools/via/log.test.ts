// control-client log with --via: the logs of other machines, which are this one with other folders.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { appendFileSync, mkdirSync, renameSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { assertHarmless, HOSTILE, makeFolder, startProgram } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { startBoard, untilSystem } from '../board/helpers.ts';
import { linesOf } from '../client/helpers.ts';
import { DEAD, end, entry, of, pause, resume, run, start, startActive, status } from '../client/story.ts';
import { openSession } from '../client/systems.ts';
import { callVia, frame, optionsOf, processesWith, reach, viaFake } from './helpers.ts';
import type { Body } from '../../../shared/text.ts';
import type { TestContext } from 'node:test';
import type { Manners } from './helpers.ts';

/** A machine with these logs, by the names of the files. `mark` is in the environment of its far end. */
function openMachine(t: TestContext, label: string, logs: Record<string, readonly Body[]>): {
  via: string; folder: string; mark: string; env: { XDG_STATE_HOME: string; CONTROL_DIR: string };
} {
  const root = makeFolder(t);
  const folder = join(root, 'control');
  mkdirSync(folder);
  for (const [name, entries] of Object.entries(logs)) writeFileSync(join(folder, name), textOf(entries));
  const env = { XDG_STATE_HOME: root, CONTROL_DIR: openSession(t).folder };
  const variables = Object.entries(env).map(([name, value]) => `${name}=${value}`);
  return { via: `${label}=env ${variables.join(' ')}`, folder, mark: `XDG_STATE_HOME=${root}`, env };
}

function textOf(entries: readonly Body[]): string {
  return entries.map((one) => `${JSON.stringify(one)}\n`).join('');
}

const HERE = hostname();
const SUITE = { ...LIMIT, concurrency: 2, skip: lacks('Unix') };

describe('control-client log --via', SUITE, () => {
  it('tells what has happened on all machines, in the order of time', async (t) => {
    const one = openMachine(t, 'gpu1', {
      [`train@${HERE}.jsonl.1`]: of('train', DEAD, run('01:00', 'train.py'), startActive('01:00')),
      [`train@${HERE}.jsonl`]: of('train', DEAD, pause('03:00', 'ben', 'leak')), // killed: no end
      'web@other.jsonl': of('web', DEAD, startActive('02:00')), // may run there
    });
    const two = openMachine(t, 'gpu2', {
      [`eval@${HERE}.jsonl`]: of('eval', 1, startActive('02:30'), resume('04:00', 'ana'), end('05:00')),
    });
    const vias = [one.via, two.via];
    const all = await callVia(vias, ['log']);
    assert.deepEqual([all.code, linesOf(all.stdout), all.stderr], [0, [
      '2026-11-23 01:00:00  gpu1/train-4194305  started: train.py',
      '2026-11-23 02:00:00  gpu1/web-4194305    started',
      '2026-11-23 02:30:00  gpu2/eval-1         started',
      '2026-11-23 03:00:00  gpu1/train-4194305  paused by ben: leak',
      '2026-11-23 03:00:00  gpu1/train-4194305  pause by ben (leak) done in 0.01 s',
      '2026-11-23 03:00:00  gpu1/train-4194305  the log ends here: killed, or the machine stopped',
      '2026-11-23 04:00:00  gpu2/eval-1         resume by ana done in 0.01 s',
      '2026-11-23 05:00:00  gpu2/eval-1         ended',
    ], '']);
    const since = await callVia(vias, ['log', '--since', '2026-11-23T03:30']);
    assert.deepEqual(linesOf(since.stdout), [
      '2026-11-23 02:00:00  gpu1/web-4194305    active',
      '2026-11-23 02:30:00  gpu2/eval-1         active',
      '2026-11-23 03:00:00  gpu1/train-4194305  paused by ben: leak',
      '2026-11-23 03:00:00  gpu1/train-4194305  the log ends here: killed, or the machine stopped',
      '2026-11-23 04:00:00  gpu2/eval-1         resume by ana done in 0.01 s',
      '2026-11-23 05:00:00  gpu2/eval-1         ended',
    ]);
    for (const [words, count] of [['gpu2/', 3], ['eval', 3], ['gpu*/w*', 1], ['gpu2/eval gpu1/web', 4]] as const) {
      const { code, stdout } = await callVia(vias, ['log', ...words.split(' ')]);
      assert.deepEqual([code, linesOf(stdout).length], [0, count], words);
    }
    const [json = ''] = linesOf((await callVia(vias, ['log', 'web', '--json'])).stdout);
    assert.deepEqual(JSON.parse(json), { ...of('web', DEAD, start('02:00'))[0], machine: 'gpu1' });
    const missing = await callVia(vias, ['log', 'trian']);
    assert.deepEqual([missing.code, missing.stderr], [
      2, "control-client: there is no log of 'trian' there (did you mean train?)\n",
    ]);
    const file = await callVia(vias, ['log', './x.jsonl']);
    assert.deepEqual([file.code, file.stderr], [2, "control-client: --via reads no files, got './x.jsonl'\n"]);
  });

  it('names a machine that is down, is too old or tells no logs, and tells the others', async (t) => {
    const fine = openMachine(t, 'fine', { [`train@${HERE}.jsonl`]: of('train', 1, start('01:00'), end('02:00')) });
    const dial = `node ${join(process.cwd(), 'dist/bin/client.js')} dial --no-log`;
    const vias = [
      fine.via, 'down=sh -c "exit 3"', viaFake(t, 'old', { PING: (far, stream) => far.send(stream, 'PING') }),
      `mute=sh -c "exec ${dial}" sh`, viaFake(t, 'slow', { LOG: (far, stream) => far.send(stream, 'LOG') }),
    ];
    const { code, stdout, stderr } = await reach(t, vias, ['log']);
    assert.deepEqual([code, linesOf(stdout).length], [5, 2]);
    assert.deepEqual(linesOf(stderr).sort(), [
      'control-client: down: sh ended with exit code 3',
      'control-client: mute: dial --no-log tells no logs',
      'control-client: old: its control-client is older than 0.29',
      'control-client: slow: it tells its logs too slowly, or not at all',
    ]);
  });

  it('follows them over links that end: no line twice, and none missing', async (t) => {
    const machine = openMachine(t, 'gpu1', { [`train@${HERE}.jsonl`]: of('train', process.pid, startActive('01:00')) });
    const path = join(machine.folder, `train@${HERE}.jsonl`);
    const other = spawn('sleep', ['98765']);
    const { pid = 0 } = other;
    writeFileSync(join(machine.folder, `other@${HERE}.jsonl`), textOf(of('other', pid, startActive('01:00'))));
    let count = 0;
    const say = (): void => {
      appendFileSync(path, textOf(of('train', process.pid, entry('02:00', 'thread', { error: `no. ${count += 1}.` }))));
    };
    const running = startProgram(t, 'client', ['log', '--follow', ...optionsOf([machine.via])]);
    await running.shows(/started\n/);
    for (let round = 0; round < 3; round += 1) {
      say();
      await running.shows(new RegExp(`no\\. ${count}\\.\n`));
      say();
      const ends = processesWith(machine.mark).filter((pid) => pid !== running.child.pid);
      for (const pid of ends) process.kill(pid, 'SIGKILL');
      say();
      if (round === 1) renameSync(path, `${path}.1`);
      if (round === 2) other.kill('SIGKILL');
      say();
      await running.shows(new RegExp(`no\\. ${count}\\.\n`));
    }
    const numbers = [...running.output().matchAll(/ no\. (\d+)\.\n/g)].map(([, number]) => Number(number));
    assert.deepEqual(numbers, Array.from({ length: count }, (_, index) => index + 1));
    assert.match(running.output(), /^control-client: gpu1: env was killed by SIGKILL$/m);
    assert.match(running.output(), /^control-client: gpu1: its log goes on$/m);
    await running.shows(/gpu1\/other-\d+ +the log ends here: killed/);
  });

  it('reads the log that a live system names; the board shows it', async (t) => {
    const machine = openMachine(t, 'gpu1', {});
    const log = join(makeFolder(t), 'own');
    writeFileSync(log, textOf(of('sleep', DEAD, run('01:00', 'sleep'), startActive('01:00'))));
    const program = startProgram(t, 'run', [
      '--log', log, '--socket', join(machine.env.CONTROL_DIR, 'train-7.sock'), '--', 'sleep', '98765',
    ]);
    await program.shows(/web API at/);
    const { stdout, stderr } = await callVia([machine.via], ['log']);
    assert.match(stdout, / gpu1\/sleep-\d+ +started: sleep 98765\n/, stderr);
    assert.match(stdout, new RegExp(` gpu1/sleep-${DEAD} +the log ends here: killed`), stderr);
    const board = await startBoard(t, [], optionsOf([machine.via]));
    const { id } = await untilSystem(board, ({ hasLog }) => hasLog);
    const { entries } = await (await board.get(`/api/logs/${id}`)).json() as { entries: { text: string }[] };
    assert.equal(entries[0]?.text, 'started: sleep 98765');
  });
});

const NOT_A_LOG = 'it sent what is not a log';
const FIRST = '#{"host":"far","time":0}\n';
const DONE = '#{"done":true}\n';
const LINES = textOf(of('train', 1, start('01:00'), status('01:00', 'active')));
const NOTE = '#{"path":"/far/train@far.jsonl","ends":{"1-2":100}}\n';

function namesOf(count: number): string {
  return Array.from({ length: count }, (_, index) => `#{"path":"/x${index}","ends":{}}\n`).join('');
}

/** What a far end tells, and what is printed of it. */
const TOLD: readonly [what: string, text: string, lines: readonly string[], error?: string][] = [
  ['a log', FIRST + LINES + NOTE + DONE, ['started']],
  ['lines of no file', FIRST + LINES + DONE, [], 'nothing is logged'],
  ['what is no entry', `${FIRST}7\nnull\n{"time":"3:00","name":"x","pid":1,"event":"start"}\n${LINES}${NOTE}${DONE}`,
    ['started'], "3 lines are no log entries in 'far:/far/train@far.jsonl'"],
  ['notes of all kinds', [
    '#', '#7', '#[]', '#{', '#{"host":7,"time":"x"}', '#{"dead":7}', '#{"dead":[null,"x",{}]}', '#{"path":7,"ends":7}',
    '#{"path":"__proto__","ends":{"__proto__":7,"x":null}}', '#{"path":"/x","error":{"x":1}}', '#{"done":1}',
    FIRST + LINES + NOTE + DONE,
  ].join('\n'), ['started'], "cannot read the log 'far:/x': "],
  ['lines without an end', FIRST + 'x'.repeat(2 ** 24 + 100_000), [], `far: ${NOT_A_LOG}`],
  ['more files than there can be', FIRST + namesOf(9000) + DONE, [], `far: ${NOT_A_LOG}`],
  ['the end before all is told', FIRST + LINES + NOTE, ['started'], 'far: it stopped telling its logs'],
];

describe('a far end that tells', { ...LIMIT, skip: lacks('Unix') }, () => {
  const tell = (text: string): Manners => ({
    LOG(far, stream) {
      far.send(stream, 'LOG');
      for (let from = 0; from < text.length; from += 60_000) far.send(stream, 'DATA', text.slice(from, from + 60_000));
      far.send(stream, 'CLOSE');
    },
  });

  it('anything harms neither the tool nor other machines', async (t) => {
    for (const [what, text, lines, error] of TOLD) {
      const { stdout, stderr } = await callVia([viaFake(t, 'far', tell(text))], ['log']);
      assert.deepEqual(linesOf(stdout).map((line) => line.split('  ').at(-1)), lines, what);
      const errors = linesOf(stderr).filter((line) => !line.includes('the clock of far is'));
      assert.deepEqual(errors, error === undefined ? [] : [`control-client: ${error}`], what);
      assertHarmless(stdout + stderr);
    }
  });

  it('hostile texts, the labels of others, and times in the future, has them under its own label', async (t) => {
    const entries = [
      ...of(HOSTILE, 1, start('01:00'), pause('02:00', HOSTILE, HOSTILE)), ...of('gpu1/train', 7, start('01:00')),
      ...of('late', 1, start('2126-11-23T01:00')),
    ];
    const text = FIRST + textOf(entries) + NOTE.replace('/far/', `/${JSON.stringify(HOSTILE).slice(1, -1)}`) + DONE;
    const other = openMachine(t, 'gpu1', { [`train@${HERE}.jsonl`]: of('train', 1, start('01:00'), end('02:00')) });
    const { stdout, stderr } = await callVia([viaFake(t, 'far', tell(text)), other.via], ['log']);
    assertHarmless(stdout + stderr);
    const titles = linesOf(stdout).map((line) => line.split(/ {2,}/)[1] ?? '');
    assert.equal(titles.filter((title) => title.startsWith('gpu1/')).length, 2);
    assert.ok(titles.filter((title) => !title.startsWith('gpu1/')).every((title) => title.startsWith('far/')), stdout);
    assert.match(linesOf(stdout).at(-1) ?? '', /^2126-11-23 01:00:00  far\/late-1 +started$/);
    assert.match(stderr, /^control-client: the clock of far is \d+ s behind$/m);
  });
});

/** A far end, and the frames that it has sent. */
function startDial(t: TestContext, env: NodeJS.ProcessEnv) {
  const far = spawn(process.execPath, ['dist/bin/client.js', 'dial'], { env: { ...process.env, ...env } });
  t.after(() => far.kill('SIGKILL'));
  let output = '';
  far.stdout.setEncoding('latin1').on('data', (text: string) => (output += text));
  const say = (...words: Parameters<typeof frame>): boolean => far.stdin.write(frame(...words));
  return { say, output: (): string => output };
}

/** What the far end has told in a stream. */
function toldIn(output: string, stream: string | number = '\\d+'): string {
  const parts = [...output.matchAll(new RegExp(`^${stream} DATA (\\S+)$`, 'gm'))];
  return String(Buffer.concat(parts.map(([, data = '']) => Buffer.from(data, 'base64'))));
}

describe('a near end', SUITE, () => {
  it('gets no file but logs, whatever it asks for', async (t) => {
    const secret = 'topsecret';
    const machine = openMachine(t, 'x', { [`train@${HERE}.jsonl`]: of('train', 1, start('01:00'), end('02:00')) });
    const outside = join(makeFolder(t), 'own.jsonl');
    for (const path of [outside, join(machine.folder, 'notes.jsonl'), join(machine.folder, 'notes.txt')]) {
      writeFileSync(path, `${secret}\n{"password":"${secret}"}\n`);
    }
    const requests = [
      '{}', '', 'null', '[]', '7', JSON.stringify({ given: [outside, '/etc/passwd'], folder: '/etc', path: outside }),
      JSON.stringify({ known: { x: -1, y: 'z', __proto__: 7 }, since: 7, pids: 'x', follow: 'no' }), '{"known":null}',
      JSON.stringify({ since: '../../x', pids: null }), '{"path":"/etc/passwd"}', '{"path":["/etc/passwd"]}',
    ];
    const { say, output } = startDial(t, machine.env);
    for (const [index, request] of requests.entries()) say(index + 1, 'LOG', request);
    const isAnswered = (index: number): boolean => new RegExp(`^${index + 1} CLOSE`, 'm').test(output());
    await until(() => requests.every((request, index) => isAnswered(index) || request.includes('"follow"')));
    assert.ok(toldIn(output()).includes('"event":"end"'), output());
    assert.ok(!toldIn(output()).includes(secret) && !toldIn(output()).includes('root:'), toldIn(output()));
  });

  it('that closes a stream hears no more of it, and makes room for another one', async (t) => {
    const machine = openMachine(t, 'x', {});
    const { say, output } = startDial(t, machine.env);
    const count = (pattern: RegExp): number => output().match(pattern)?.length ?? 0;
    for (let stream = 1; stream <= 65; stream += 1) say(stream, 'LOG', '{"follow":true}');
    await until(() => count(/^\d+ LOG/gm) === 64 && count(/^65 CLOSE/gm) === 1);
    for (let stream = 1; stream < 64; stream += 1) say(stream, 'CLOSE');
    let stream = 100;
    await until(() => {
      say(stream += 1, 'LOG', '{"follow":true}');
      return count(/^\d{3} LOG/gm) > 0;
    });
    writeFileSync(join(machine.folder, `train@${HERE}.jsonl`), textOf(of('train', 1, start('01:00'), end('02:00'))));
    await until(() => toldIn(output(), 64).includes('"event":"end"'));
    assert.equal(toldIn(output(), 1).includes('"event"'), false);
  });
});
