// control-client log where times, processes and users matter; log.txt has its words.

import assert from 'node:assert/strict';
import {
  appendFileSync, mkdirSync, renameSync, rmdirSync, truncateSync, unlinkSync, writeFileSync,
} from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import os, { hostname } from 'node:os';
import { join } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { assertHarmless, makeFolder, startProgram } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { HOSTILE_LINES, linesOf, outcome, writeLog } from '../logs.ts';
import { call, linesOf as printedLines, refusal } from './helpers.ts';
import { command, DEAD, end, entry, exit, of, pause, resume, run, save, startActive } from './story.ts';
import type { Body } from '../../../shared/text.ts';

process.env['TZ'] = 'Asia/Kolkata'; // half an hour off, so that no local time is taken for UTC
const SUITE = { ...LIMIT, skip: lacks('Unix') };

/** Writes a log of this name into a new folder of logs. Returns its path, and the variable for the folder. */
function openState(t: TestContext, ...entries: readonly Body[]): { path: string; env: { XDG_STATE_HOME: string } } {
  const root = makeFolder(t);
  mkdirSync(join(root, 'control'));
  const path = join(root, 'control', `train@${hostname()}.jsonl`);
  writeFileSync(path, linesOf(entries));
  return { path, env: { XDG_STATE_HOME: root } };
}

/** A night with a save per minute: a pause at 02:58, a resume at 07:40, a crash at 09:12. */
function night(): Body[] {
  const saves = (from: number, to: number): Body[] => Array.from({ length: to - from }, (_, index) => {
    const minutes = [Math.floor((from + index) / 60), (from + index) % 60];
    return save(`${minutes.map((part) => String(part).padStart(2, '0')).join(':')}:20`, 'itself');
  }).flat();
  return of('train', DEAD, run('2026-11-22T20:00', 'python3', 'train.py'), startActive('2026-11-22T20:00'),
    saves(10, 178), pause('02:58:11', 'ben@desk', 'B leaks memory'),
    command('04:00:02', 'save-state', 'cron', { seconds: 0.31, value: 'ckpt/412.pt' }),
    resume('07:40:55', 'ana@laptop'), saves(461, 552), end('09:12:40'), exit('09:12:40', 'exit code 1', 1));
}

const NIGHT = [
  '2026-11-23 02:58:11  train-4194305  paused by ben@desk: B leaks memory',
  '2026-11-23 04:00:02  train-4194305  save-state by cron done in 0.31 s: ckpt/412.pt',
  '2026-11-23 07:40:55  train-4194305  active by ana@laptop',
  '2026-11-23 07:40:55  train-4194305  resume by ana@laptop done in 0.01 s',
  '2026-11-23 09:11:20  train-4194305  save-state by itself done in 0.01 s: a.json (91 times since 07:41:20)',
  '2026-11-23 09:12:40  train-4194305  exit code 1',
];

describe('control-client log', SUITE, () => {
  it('tells the night in six lines, although the system saves every minute', async (t) => {
    const { env } = openState(t, ...night());
    const prints = async (args: string[], lines: string[]): Promise<void> => {
      assert.deepEqual(await call(['log', ...args], env), { code: 0, stdout: `${lines.join('\n')}\n`, stderr: '' });
    };
    await prints(['--since', '2026-11-23T03:00'], NIGHT);
    await prints([], [
      '2026-11-22 20:00:00  train-4194305  started: python3 train.py',
      '2026-11-23 02:57:20  train-4194305  save-state by itself done in 0.01 s: a.json (168 times since 00:10:20)',
      NIGHT[0] as string, '2026-11-23 02:58:11  train-4194305  pause by ben@desk (B leaks memory) done in 0.01 s',
      ...NIGHT.slice(1),
    ]);
  });

  it('keeps every hostile text on one line, whatever the types', async (t) => {
    const path = writeLog(t, ...HOSTILE_LINES, outcome(1, 'last'));
    const { code, stdout, stderr } = await call(['log', path]);
    assertHarmless(stdout + stderr);
    const lines = printedLines(stdout);
    for (const line of lines) {
      assert.match(line, /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  \S+-\d+ /);
      assert.ok(line.length <= 5000, `${line.length}`);
    }
    assert.ok(lines.length > 20, `${lines.length}`);
    assert.match(stdout, /  train-7 +resume by ana done in 0\.25 s\n/);
    assert.equal(code, 0);
    for (const line of printedLines((await call(['log', '--json', path])).stdout)) assertHarmless(line);
  });

  it('says what to set for a user without a home folder, and still reads a file', async (t) => {
    const { path } = openState(t, end('03:00'));
    t.after(() => { t.mock.restoreAll(); syncBuiltinESMExports(); });
    const missing = (): never => { throw new Error('A system error occurred: uv_os_homedir returned ENOENT'); };
    const message = 'you have no home folder: set HOME or XDG_STATE_HOME';
    for (const homedir of [missing, () => '']) { // no entry in /etc/passwd, and HOME=
      t.mock.method(os, 'homedir', homedir);
      syncBuiltinESMExports();
      const env = { XDG_STATE_HOME: '' };
      for (const words of [[], ['train']]) assert.deepEqual(await call(['log', ...words], env), refusal(message));
      assert.match((await call(['log', path], env)).stdout, /  train-1  ended\n/);
    }
  });

  it('prints new lines through renaming, truncation and new logs, and the end of a killed process', async (t) => {
    const sleeper = startProgram(t, 'client', ['wait', 'active', '--socket', '/nowhere/x', '--timeout', '1h']);
    const pid = sleeper.child.pid as number;
    const say = (error: string): string => linesOf(of('train', pid, entry('02:00', 'thread', { error })));
    const { path, env } = openState(t, ...of('train', pid, startActive('01:00')));
    const following = startProgram(t, 'client', ['log', '--follow'], { ...env, TZ: process.env['TZ'] });
    const { shows, output } = following;
    await shows(/started\n/);
    const half = say('one');
    appendFileSync(path, half.slice(0, 30));
    appendFileSync(path, half.slice(30));
    await shows(/died: one\n/);
    const late = say('two');
    appendFileSync(path, late.slice(0, 30));
    renameSync(path, `${path}.1`);
    appendFileSync(`${path}.1`, late.slice(30, -1)); // by a program that still has it open; no newline follows
    writeFileSync(path, say('three'));
    await shows(/died: three\n/);
    truncateSync(path);
    await shows(/died: two\n/);
    unlinkSync(path);
    mkdirSync(path);
    await shows(/cannot read the log '.*': it is not a regular file\n/);
    rmdirSync(path);
    writeFileSync(path, say('four'));
    await shows(/died: four\n/);
    writeFileSync(path.replace('train@', 'late@'), linesOf(of('late', process.pid, startActive('01:00'))));
    await shows(/late-\d+ +started\n/);
    appendFileSync(path, say('five'));
    await shows(/died: five\n/);
    appendFileSync(path, say('six'));
    renameSync(path, `${path}-20261123`); // as some logrotates do
    writeFileSync(path, say('seven'));
    await shows(/died: seven\n/);
    sleeper.child.kill('SIGKILL');
    const [refusal, cut] = ['it is not a regular file', 'the log ends here: killed, or the machine stopped'];
    await shows(new RegExp(`train-${pid} +${cut}\n`));
    assert.equal(following.hasEnded(), false);
    const told = printedLines(output()).map((line) => line.replace(/.*(  |died: )/, '').replace(/'.*'/, ''));
    assert.deepEqual(told.sort(), [
      `control-client: cannot read the log : ${refusal}`, 'five', 'four', 'one', 'seven', 'six', 'started', 'started',
      'three', 'two', cut,
    ].sort());
  });
});

it('--since is a time of today or yesterday, a date, or a duration', SUITE, async (t) => {
  const { path } = openState(t, end('2020-01-01T00:00'));
  t.mock.timers.enable({ apis: ['Date'], now: new Date('2026-11-23T09:30:00') });
  const rows: [text: string, time: string][] = [
    ['3:00', '2026-11-23 03:00:00'], ['09:30', '2026-11-23 09:30:00'], ['9:31', '2026-11-22 09:31:00'],
    ['23:59', '2026-11-22 23:59:00'], ['2026-11-23', '2026-11-23 00:00:00'],
    ['2026-11-20T03:00', '2026-11-20 03:00:00'], ['2026-11-20 03:00:07', '2026-11-20 03:00:07'],
    ['2026-11-22T21:30:00.5Z', '2026-11-23 03:00:00'], ['2026-11-23T03:00+05:30', '2026-11-23 03:00:00'],
    ['3:00:07', '2026-11-23 03:00:07'], ['8h', '2026-11-23 01:30:00'], ['90s', '2026-11-23 09:28:30'],
    ['8.h', '2026-11-23 01:30:00'], ['1.5d', '2026-11-21 21:30:00'],
  ];
  for (const [text, time] of rows) {
    const { stderr } = await call(['log', path, '--since', text]);
    assert.equal(stderr, `control-client: nothing is logged since ${time}\n`, text);
  }
  const form = '--since must be a past time (3:00, 2026-11-23T03:00) or a duration (30m, 8h), got';
  const wrong = [
    '', '8', '24:00', '3:60', '3', '2026-02-30', '2026-02-30T03:00Z', '2026-11-23T25:00', '2026-11-23T9:00',
    '2026-11-23T09:31', 'noon', '-1', '3am', '3 pm',
  ];
  for (const text of wrong) assert.deepEqual(await call(['log', `--since=${text}`]), refusal(`${form} '${text}'`));
  assert.match((await call(['log', '--since=-1h'])).stderr, /: --since must be a number of seconds or a duration/);
});
