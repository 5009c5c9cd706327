// control-client log: the words for each entry, the night in ten lines, targets, --since, --follow and --json.

import assert from 'node:assert/strict';
import { appendFileSync, mkdirSync, renameSync, rmdirSync, truncateSync, writeFileSync } from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import os, { hostname } from 'node:os';
import { join, relative } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { parsePast, UsageError } from '../../../shared/cli.ts';
import { createClient } from '../../../shared/client.ts';
import { describeLog, LogReader, parseEntry, readHistory } from '../../../shared/log.ts';
import { describeInfo } from '../../../shared/view.ts';
import { assertHarmless, HARMLESS, HOSTILE, makeFolder, makePipe, startProgram } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { systemOf } from '../view.ts';
import { call, linesOf } from './helpers.ts';
import { ACTIVE, openSession, type Session, startWeb } from './systems.ts';
import type { Body } from '../../../shared/text.ts';

process.env['TZ'] = 'Asia/Kolkata'; // half an hour off, so that no local time is taken for UTC
const DEAD = 2 ** 22 + 1; // above the largest process id of Linux
const SUITE = { ...LIMIT, skip: lacks('Unix') };
const CUT = 'the log ends here: killed, or the machine stopped';

/** An entry, at a local time of 2026-11-23 or of another day. */
function entry(clock: string, event: string, fields: object = {}, system: object = {}): Body {
  const time = new Date(clock.includes('-') ? clock : `2026-11-23T${clock}`);
  return { time: time.toISOString(), name: 'train', pid: DEAD, event, ...fields, ...system };
}

let commands = 0;

/** A command, the statuses meanwhile, and its outcome. */
function command(clock: string, name: string, by: string, outcome: object, statuses: object[] = []): Body[] {
  commands += 1;
  const sent = { id: `a-${commands}`, command: name, by };
  return [
    entry(clock, 'command', sent),
    ...statuses.map((status) => entry(clock, 'status', status)),
    entry(clock, 'outcome', { ...sent, state: 'done', seconds: 0.012, ...outcome }),
  ];
}

/** A pause, as `launch()` logs it. */
function pause(clock: string, by: string, reason?: string): Body[] {
  const cause = { by, reason };
  const statuses = [{ status: 'pausing', ...cause, holds: [] }, { status: 'paused', ...cause, holds: [cause] }];
  return command(clock, 'pause', by, { reason }, statuses);
}

function resume(clock: string, by: string): Body[] {
  const statuses = [{ status: 'resuming', by, holds: [{ by: 'x' }] }, { status: 'active', by, holds: [] }];
  return command(clock, 'resume', by, {}, statuses);
}

/** A save of an active system: it pauses meanwhile. */
function save(clock: string, by: string, outcome: object = { value: 'a.json' }): Body[] {
  const statuses = [
    { status: 'pausing', by, holds: [] }, { status: 'paused', by, holds: [{ by }] },
    { status: 'resuming', by, holds: [{ by }] }, { status: 'active', holds: [] },
  ];
  return command(clock, 'save-state', by, outcome, statuses.map((status) => ({ ...status, during: 'save-state' })));
}

/** A question, and its end. */
function asks(clock: string, id: string, message: string): Body[] {
  return [entry(clock, 'ask', { id, message, parameters: {} })];
}

function answer(clock: string, id: string, message: string, end: object): Body[] {
  return [entry(clock, 'answer', { id, command: 'answer', message, state: 'done', seconds: 30, ...end })];
}

const EXPIRED = { state: 'failed', error: 'expired' };

function withdrawal(clock: string, id: string, message: string): Body[] {
  return answer(clock, id, message, { state: 'failed', error: 'withdrawn' });
}

const START = entry('01:00', 'start', { version: '0.17.0' });
const RELEASED = { value: { released: true } };
const ACTIVE_AT_START = entry('01:00', 'status', { status: 'active', holds: [] });

/** What happens, and the lines about it without the times. */
const STORIES: readonly [what: string, entries: Body[], lines: string[]][] = [
  ['a start, a pause, a resume and an end', [
    START, ACTIVE_AT_START, ...pause('02:00', 'ben', 'leak'), ...resume('03:00', 'ana'), entry('04:00', 'end'),
  ], [
    'started', 'paused by ben: leak', 'pause by ben (leak) done in 0.01 s', 'active by ana',
    'resume by ana done in 0.01 s', 'ended',
  ]],
  ['pauses by two people, of which the first gets no status, and one that has a value', [
    ...pause('02:00', 'ben', 'leak').map((one) => ({ at: one['time'], ...one })),
    ...pause('02:01', 'ben', 'leak').slice(-1).map((one) => ({ at: one['time'], ...one })),
    entry('02:02', 'status', { status: 'paused', by: 'ben', holds: [{ by: 'ben', reason: 'leak' }, { by: 'ana' }] }),
    ...command('02:02', 'pause', 'ana', { at: entry('02:02', 'x')['time'], value: 'freed' }).slice(-1),
  ], [
    'paused by ben: leak', 'pause by ben (leak) done in 0.01 s', 'paused by ben; and by ana',
    'pause by ana done in 0.01 s: freed',
  ]],
  ['a system that starts paused', [
    START, entry('00:59:59', 'status', { status: 'paused', by: 'ben', holds: [{ by: 'ben' }] }),
  ], ['started', 'paused by ben']],
  ['holds that come and go', [
    ...pause('02:00', 'ben', 'leak'),
    entry('02:01', 'status', { status: 'paused', by: 'ben', holds: [{ by: 'ben', reason: 'leak' }, { by: 'ana' }] }),
    entry('02:02', 'status', { status: 'paused', by: 'ana', holds: [{ by: 'ana' }] }),
    entry('02:03', 'status', { status: 'paused', by: 'ana', holds: [{ by: 'ana', since: 'later' }] }),
  ], [
    'paused by ben: leak', 'pause by ben (leak) done in 0.01 s', 'paused by ben; and by ana', 'paused by ana',
  ]],
  ['a release of one hold, and a vain one', [
    ...command('02:00', 'resume', 'ana', { value: { released: true } }),
    ...command('02:00', 'resume', 'ben', { value: { released: false } }),
  ], ['resume by ana done in 0.01 s: released own hold', 'resume by ben done in 0.01 s: held no pause']],
  ['a release, and a vain one of the same sender', [
    ...command('02:00', 'resume', 'ana', { value: { released: true } }),
    ...command('02:00', 'resume', 'ana', { value: { released: false } }),
  ], ['resume by ana done in 0.01 s: released own hold', 'resume by ana done in 0.01 s: held no pause']],
  ['resumes whose status tells all, one of an active system, and one that has a value', [
    ...pause('02:00', 'ben', 'leak'), ...resume('02:01', 'ana'), ...command('02:02', 'resume', 'ana', {}),
    ...pause('03:00', 'ben', 'leak'),
    entry('03:01', 'status', { status: 'paused', by: 'ben', holds: [{ by: 'ben', reason: 'leak' }, { by: 'ana' }] }),
    ...command('03:02', 'resume', 'ben', RELEASED, [{ status: 'paused', by: 'ana', holds: [{ by: 'ana' }] }]),
    ...command('03:03', 'resume', 'ana', RELEASED, [{ status: 'active', by: 'ana', holds: [] }]),
    ...pause('04:00', 'ben'), ...command('04:01', 'resume', '', { by: undefined }, [{ status: 'active', holds: [] }]),
    ...pause('05:00', 'ben'),
    ...command('05:01', 'resume', 'ana', { value: 'warm' }, [{ status: 'active', by: 'ana', holds: [] }]),
  ].map((one) => ({ at: one['time'], ...one })), [
    'paused by ben: leak', 'active by ana', 'resume by ana done in 0.01 s', 'paused by ben: leak',
    'paused by ben; and by ana', 'paused by ana', 'resume by ben done in 0.01 s: released own hold',
    'active by ana', 'paused by ben', 'active', 'paused by ben', 'active by ana', 'resume by ana done in 0.01 s: warm',
  ]],
  ['saves, without their statuses', [
    START, ACTIVE_AT_START, ...save('02:00', 'cron'), ...save('03:00', 'cron', { value: 'b.json' }),
    ...save('04:00', 'cron', { state: 'failed', error: 'disk full' }), ...save('2026-11-24T01:00', 'cron'),
  ], [
    'started', 'save-state by cron failed after 0.01 s: disk full',
    'save-state by cron done in 0.01 s: a.json (3 times since 2026-11-23 02:00:00)',
  ]],
  ['saves of two senders, folded up to the pause', [
    ...save('01:00', 'cron'), ...save('01:01', 'itself'), ...save('01:02', 'cron'), ...save('01:03', 'itself'),
    ...pause('02:00', 'ben'), ...command('03:00', 'save-state', 'cron', {}), ...resume('04:00', 'ana'),
    ...save('05:00', 'cron'),
  ], [
    'active', 'save-state by cron done in 0.01 s: a.json (2 times since 01:00:00)',
    'save-state by itself done in 0.01 s: a.json (2 times since 01:01:00)', 'paused by ben',
    'pause by ben done in 0.01 s', 'save-state by cron done in 0.01 s', 'active by ana', 'resume by ana done in 0.01 s',
    'save-state by cron done in 0.01 s: a.json',
  ]],
  ['own commands, folded only if their arguments are the same', [
    ...[1, 2, 2].flatMap((rate) => command('02:00', 'set', 'ana', { arguments: { rate }, value: rate })),
  ], ['set {"rate":1} by ana done in 0.01 s: 1', 'set {"rate":2} by ana done in 0.01 s: 2 (2 times since 02:00:00)']],
  ['a pause by the sender of a save that outlasts it', [
    START, entry('02:00', 'command', { id: 's', command: 'save-state', by: 'cron' }), ...pause('02:01', 'cron'),
    entry('02:02', 'outcome', { id: 's', command: 'save-state', state: 'done', seconds: 1, by: 'cron' }),
    entry('05:00', 'end'),
  ], [
    'started', 'paused by cron', 'pause by cron done in 0.01 s', 'save-state by cron done in 1.00 s', 'ended',
  ]],
  ['a program under control-run that crashes and is started again', [
    entry('01:00', 'start', { commandLine: ['python3', 'train.py', '-n', 3] }), START, ACTIVE_AT_START,
    entry('02:00', 'end', { ended: 'SIGSEGV', exitCode: 139, signal: 'SIGSEGV' }),
    entry('02:01', 'start', { commandLine: ['python3', 'train.py'] }),
    entry('03:00', 'end'), entry('03:00', 'end', { ended: 'exit code 1', exitCode: 1 }),
  ], ['started: python3 train.py -n 3', 'SIGSEGV', 'started: python3 train.py', 'exit code 1']],
  ['a program under control-run that was never started', [
    entry('01:00', 'start', { commandLine: ['a'] }),
    entry('01:00', 'end', { ended: 'Cannot serve at localhost:8391: in use', exitCode: 125 }),
    entry('02:00', 'start', { commandLine: ['pyhton3'] }), START, ACTIVE_AT_START, entry('02:00', 'end'),
    entry('02:00', 'end', { ended: "cannot start 'pyhton3': not found", exitCode: 127 }),
    entry('03:00', 'start', { commandLine: ['a'] }), START,
    entry('04:00', 'end', { ended: 'exit code 127', exitCode: 127 }),
  ], [
    'Cannot serve at localhost:8391: in use', "cannot start 'pyhton3': not found", 'started: a', 'exit code 127',
  ]],
  ['a program whose control-run was killed, and that was started again', [
    entry('01:00', 'start', { commandLine: ['a'] }), START, entry('01:30', 'command', { id: 'x', command: 'pause' }),
    entry('02:00', 'end', { ended: 'control-run is gone' }), entry('02:01', 'start', { commandLine: ['a'] }),
  ], ['started: a', 'pause has no outcome since 01:30:00', 'control-run is gone', 'started: a']],
  ['a save after which the program stays paused, because a hook has failed', [
    START, ACTIVE_AT_START, ...save('02:00', 'cron').filter(({ status }) => status !== 'active'),
  ], ['started', 'paused by cron', 'save-state by cron done in 0.01 s: a.json']],
  ['a program under control-run that ends by itself, or by a signal', [
    entry('01:00', 'start', { commandLine: ['a'] }), START,
    ...command('02:00', 'shutdown', 'itself', { reason: 'exit code 0', value: { ended: 'exit code 0', exitCode: 0 } }, [
      { status: 'shutting down', by: 'itself', reason: 'exit code 0' },
    ]),
    entry('02:00', 'end'), entry('02:00', 'end', { ended: 'exit code 0', exitCode: 0 }),
    entry('03:00', 'start', { commandLine: ['a'] }), START,
    ...command('04:00', 'shutdown', 'itself', { reason: 'SIGTERM', value: { ended: 'exit code 3', exitCode: 3 } }, [
      { status: 'shutting down', by: 'itself', reason: 'SIGTERM' },
    ]),
    entry('04:00', 'end'), entry('04:00', 'end', { ended: 'exit code 3', exitCode: 3 }),
  ], [
    'started: a', 'exit code 0', 'started: a', 'shutting down by itself: SIGTERM',
    'shutdown by itself (SIGTERM) done in 0.01 s: exit code 3', 'exit code 3',
  ]],
  ['a program under control-run that is asked to end, is killed, and is asked again', [
    entry('01:00', 'start', { commandLine: ['a'] }), START,
    entry('02:00', 'status', { status: 'shutting down', by: 'itself', reason: 'SIGTERM' }),
    entry('03:00', 'start', { commandLine: ['a'] }), entry('03:00', 'start', { version: '0.17.0' }),
    entry('04:00', 'status', { status: 'shutting down', by: 'itself', reason: 'SIGTERM' }),
  ], ['started: a', 'shutting down by itself: SIGTERM', CUT, 'started: a', 'shutting down by itself: SIGTERM']],
  ['a shutdown that fails, and one that succeeds', [
    START, ...command('02:00', 'shutdown', 'ben', { state: 'failed', error: 'disk full' }, [
      { status: 'shutting down', by: 'ben' }, { status: 'pausing', by: 'ben' },
      { status: 'paused', by: 'itself', reason: 'shutdown cancelled', holds: [{ by: 'itself' }] },
    ]),
    ...command('03:00', 'shutdown', 'ben', { value: { saved: '12', ended: 'exit code 0', exitCode: 0 } }, [
      { status: 'shutting down', by: 'ben', holds: [{ by: 'itself' }] },
    ]),
    entry('03:00', 'end'),
  ], [
    'started', 'shutting down by ben', 'paused by itself: shutdown cancelled',
    'shutdown by ben failed after 0.01 s: disk full', 'shutting down by ben',
    'shutdown by ben done in 0.01 s: 12; exit code 0', 'ended',
  ]],
  ['commands without an outcome, at an end and now', [
    START, entry('02:00', 'command', { id: 'x', command: 'evaluate', arguments: { n: 3 }, by: 'ana', reason: 'why' }),
    entry('02:01', 'command', { id: 'y', command: 'note', arguments: { text: 'x'.repeat(300) } }),
    entry('03:00', 'end'),
    entry('04:00', 'start', { version: '0.17.0' }), entry('04:01', 'command', { id: 'z', command: 'pause', by: 'ana' }),
  ], [
    'started', 'evaluate {"n":3} by ana (why) has no outcome since 02:00:00', 'note has no outcome since 02:01:00',
    'ended', 'started',
    'pause by ana has no outcome yet',
  ]],
  ['a run that was killed, and the next one with the same process id', [
    entry('01:00', 'start', { commandLine: ['a'] }), START, ...save('02:00', 'cron'),
    entry('03:00', 'start', { commandLine: ['a'] }), entry('03:00', 'start', { version: '0.17.0' }),
  ], ['started: a', 'save-state by cron done in 0.01 s: a.json', CUT, 'started: a']],
  ['a server that was killed, and the next one', [
    START, ACTIVE_AT_START, ...pause('02:00', 'ben'), entry('03:00', 'start'), ACTIVE_AT_START,
  ], ['started', 'paused by ben', 'pause by ben done in 0.01 s', CUT, 'started']],
  ['a control-run that was killed between two runs, and the next one with the same process id', [
    entry('01:00', 'start', { commandLine: ['a'] }), START, entry('02:00', 'end', { ended: 'SIGSEGV', exitCode: 139 }),
    entry('03:00', 'start', { commandLine: ['a'] }), entry('03:00', 'start', { version: '0.17.0' }), ACTIVE_AT_START,
    entry('04:00', 'end'), entry('04:00', 'end', { ended: 'exit code 0', exitCode: 0 }),
  ], ['started: a', 'SIGSEGV', 'started: a', 'exit code 0']],
  ['a thread that has died, and what its successor repeats', [
    START, ACTIVE_AT_START, ...pause('02:00', 'ben'), entry('02:00', 'thread', { error: 'out of memory' }),
    ACTIVE_AT_START, entry('02:00', 'status', { status: 'paused', by: 'ben', holds: [{ by: 'ben' }] }),
    ...repeated(pause('02:00', 'ben')), ...resume('03:00', 'ana'),
  ], [
    'started', 'paused by ben', 'pause by ben done in 0.01 s', 'the server thread died: out of memory', 'active by ana',
    'resume by ana done in 0.01 s',
  ]],
  ['a command that a new thread repeats, and saves on both sides', [
    START, ...save('02:00', 'cron'), entry('02:01', 'thread', { error: 'x' }),
    entry('02:00', 'command', { id: `a-${commands}`, command: 'save-state', by: 'cron' }), ...save('02:02', 'cron'),
    entry('03:00', 'end'),
  ], [
    'started', 'save-state by cron done in 0.01 s: a.json', 'the server thread died: x',
    'save-state by cron done in 0.01 s: a.json', 'ended',
  ]],
  ['lines that are lost, and with them an outcome', [
    entry('02:00', 'command', { id: 's', command: 'save-state', by: 'ben' }),
    entry('02:01', 'lost', { lines: 37, error: 'ENOSPC: no space left on device, write' }),
    entry('02:02', 'lost', { lines: 1, error: 'not written in time' }), ...pause('03:00', 'ben'),
  ], [
    '37 lines are lost: ENOSPC: no space left on device, write', 'save-state by ben may have lost its outcome',
    '1 line is lost: not written in time', 'paused by ben', 'pause by ben done in 0.01 s',
  ]],
  ['a question, who has answered it and why, and the next one', [
    ...asks('02:00', 'q1', 'Delete 3 branches?'),
    ...answer('02:05', 'q1', 'Delete 3 branches?', { by: 'ana', reason: 'looked', arguments: { approved: true } }),
    ...asks('02:06', 'q2', 'Delete 3 branches?'), ...answer('02:07', 'q2', 'Delete 3 branches?', { arguments: {} }),
  ], [
    'asks: Delete 3 branches?', 'answer by ana (looked): approved=true (Delete 3 branches?)',
    'asks: Delete 3 branches?', 'answer by somebody (Delete 3 branches?)',
  ]],
  ['a question that a pause and saves withdraw, and that is asked again each time', [
    START, ...asks('02:00', 'q1', 'Go on?'), ...withdrawal('02:01', 'q1', 'Go on?'), ...pause('02:01', 'ben'),
    ...resume('02:02', 'ben'), ...asks('02:02', 'q2', 'Go on?'), ...withdrawal('03:00', 'q2', 'Go on?'),
    ...save('03:00', 'cron'), ...asks('03:01', 'q3', 'Go on?'), ...answer('03:02', 'q3', 'Go on?', { by: 'ana' }),
  ], [
    'started', 'asks: Go on?', 'Go on? withdrawn', 'paused by ben', 'pause by ben done in 0.01 s', 'active by ben',
    'resume by ben done in 0.01 s', 'Go on? withdrawn', 'save-state by cron done in 0.01 s: a.json',
    'asks: Go on? (2 times since 02:02:00)', 'answer by ana (Go on?)',
  ]],
  ['a question that is withdrawn, and not asked again', [
    START, ...asks('02:00', 'q1', 'A?'), ...withdrawal('02:01', 'q1', 'A?'), ...pause('02:02', 'ben'),
    entry('03:00', 'end'), entry('04:00', 'start'), ...asks('05:00', 'q2', 'B?'), ...withdrawal('05:01', 'q2', 'B?'),
    ...save('06:00', 'cron'),
  ], [
    'started', 'asks: A?', 'A? withdrawn', 'paused by ben', 'pause by ben done in 0.01 s', 'ended', 'started',
    'asks: B?', 'B? withdrawn', 'save-state by cron done in 0.01 s: a.json',
  ]],
  ['a question that expires all night, is asked again each time, and is still open', [
    ...['01:00', '02:00', '03:00'].flatMap((clock, index) => [
      ...asks(clock, `q${index}`, 'Go on?'), ...answer(`${clock}:30`, `q${index}`, 'Go on?', EXPIRED),
    ]),
    ...asks('04:00', 'q9', 'Go on?'),
  ], ['Go on? expired (3 times since 01:00:30)', 'asks: Go on? (4 times since 01:00:00)']],
  ['two questions that expire, and are not the same', [
    ...asks('01:00', 'q1', 'A?'), ...asks('01:00', 'q2', 'B?'), ...answer('01:01', 'q1', 'A?', EXPIRED),
    ...answer('01:02', 'q2', 'B?', EXPIRED),
  ], ['asks: A?', 'asks: B?', 'A? expired', 'B? expired']],
  ['questions that a new thread repeats, and an answer before its question', [
    ...asks('02:00', 'q1', 'A?'), entry('02:01', 'thread', { error: 'x' }), ...asks('02:00', 'q1', 'A?'),
    ...withdrawal('02:02', 'q1', 'A?'), ...asks('02:03', 'q2', 'A?'), ...withdrawal('02:02', 'q1', 'A?'),
    ...answer('02:04', 'q2', 'A?', { by: 'ana' }), ...asks('02:03', 'q2', 'A?'),
    ...answer('02:04', 'q2', 'A?', { by: 'ana' }),
  ], ['asks: A?', 'the server thread died: x', 'A? withdrawn', 'asks: A?', 'answer by ana (A?)']],
  ['a program under control-run that ends by itself while it asks', [
    entry('01:00', 'start', { commandLine: ['a'] }), START, ...asks('02:00', 'q1', 'A?'),
    ...command('03:00', 'shutdown', 'itself', { reason: 'exit code 0', value: { ended: 'exit code 0', exitCode: 0 } }, [
      { status: 'shutting down', by: 'itself', reason: 'exit code 0' },
    ]).flatMap((one) => one['event'] === 'outcome' ? [...withdrawal('03:00', 'q1', 'A?'), one] : [one]),
    entry('03:00', 'end'), entry('03:00', 'end', { ended: 'exit code 0', exitCode: 0 }),
  ], ['started: a', 'asks: A?', 'A? withdrawn', 'exit code 0']],
];

/** The lines of the latest command again, as a new thread may write them. */
function repeated(entries: Body[]): Body[] {
  commands -= 1;
  return entries.map((one) => one['id'] === undefined ? one : { ...one, id: `a-${commands}` });
}

describe('The log in words', LIMIT, () => {
  for (const [what, entries, lines] of STORIES) {
    it(`tells of ${what}`, () => {
      assert.deepEqual(describeLog(entries).map(({ text }) => text), lines);
    });
  }

  it('orders late entries by time', () => {
    const late = [entry('02:00:00.200', 'outcome', { command: 'a', state: 'done', seconds: 0 }),
      entry('02:00:00.100', 'outcome', { command: 'b', state: 'done', seconds: 0 })];
    assert.deepEqual(describeLog(late).map(({ text }) => text), ['b done in 0.00 s', 'a done in 0.00 s']);
  });

  it('keeps every hostile text on one line, whatever the types', () => {
    const deep = JSON.parse(`${'['.repeat(20_000)}${']'.repeat(20_000)}`) as unknown;
    for (const value of [HOSTILE, deep, null, 7, { by: HOSTILE }, [HOSTILE]]) {
      const fields = {
        id: value, command: value, by: value, reason: value, state: value, status: value, holds: value, error: value,
        value, lines: value, commandLine: value, ended: value, arguments: value, seconds: value, version: value,
        message: value, parameters: value,
      };
      const holds = [{ by: value, reason: value }, value];
      const events = ['start', 'command', 'outcome', 'status', 'thread', 'lost', 'end', 'ask', 'answer', '__proto__',
        HOSTILE];
      const entries = events.flatMap((event) => [
        entry('02:00', event, fields), entry('02:00', event, { ...fields, state: 'done', status: 'paused', holds }),
      ]);
      for (const { text, status } of describeLog(entries)) assertHarmless(text + status);
    }
  });

  it('takes nothing but entries', () => {
    const time = '2026-11-23T03:00:00.000Z';
    const good = { time, name: 'train', pid: 1, event: 'end' };
    assert.deepEqual(parseEntry(JSON.stringify(good)), good);
    const bad = [
      { time: '3:00' }, { time: 7 }, { time: '2026-13-23T03:00:00.000Z' }, { time: '+275760-09-13T00:00:00.000Z' },
      { name: 1 }, { name: null }, { pid: '1' }, { pid: 1.5 }, { event: null }, { event: {} },
    ];
    for (const fields of bad) assert.equal(parseEntry(JSON.stringify({ ...good, ...fields })), null, String(fields));
    for (const text of ['', '{', '[]', 'null', '"x"', '7']) assert.equal(parseEntry(text), null);
  });
});

describe('info', LIMIT, () => {
  it('begins each command with its time, and the date unless that is today', () => {
    const today = new Date(new Date().setHours(3, 12, 9, 0));
    const outcome = { command: 'pause', state: 'done', seconds: 0 };
    const rows = describeInfo(systemOf({ commands: [
      { ...outcome, at: new Date('2026-01-02T03:04:05').toISOString() }, { ...outcome, at: today.toISOString() },
      outcome, { ...outcome, at: '+275760-09-13T00:00:00.000Z' },
    ] }));
    assert.deepEqual(rows.slice(2), [
      'commands  2026-01-02 03:04:05 pause done in 0.00 s', '          03:12:09 pause done in 0.00 s',
      '          pause done in 0.00 s', '          pause done in 0.00 s',
    ]);
  });
});

// ───── The files ─────────────────────────────────────────────────────────────────────────────────────────────────

/** The errors of the entries that a reader finds. */
async function errorsIn(reader: LogReader, method: 'read' | 'close' = 'read'): Promise<unknown[]> {
  const errors: unknown[] = [];
  for await (const entries of reader[method]()) errors.push(...entries.map(({ error }) => error));
  return errors;
}

describe('A reader of a log', SUITE, () => {
  it('also finds what is appended to a renamed file, and an entry without a newline at the end', async (t) => {
    const path = join(makeFolder(t), 'a.jsonl');
    const say = (error: string): string => textOf([entry('02:00', 'thread', { error })]);
    const reader = new LogReader(path);
    assert.deepEqual(await errorsIn(reader), []);
    writeFileSync(path, say('one'));
    assert.deepEqual(await errorsIn(reader), ['one']);
    renameSync(path, `${path}.1`);
    appendFileSync(`${path}.1`, say('two').slice(0, 40));
    assert.deepEqual(await errorsIn(reader), []);
    writeFileSync(path, say('three'));
    assert.deepEqual(await errorsIn(reader), ['three']);
    appendFileSync(`${path}.1`, say('two').slice(40));
    appendFileSync(path, say('four').trim());
    assert.deepEqual(await errorsIn(reader), ['two']);
    assert.deepEqual(await errorsIn(reader, 'close'), ['four']);
    assert.equal(reader.broken, 0);
  });

  it('goes on when the file can be read again', async (t) => {
    const path = join(makeFolder(t), 'a.jsonl');
    const say = (error: string): string => textOf([entry('02:00', 'thread', { error })]);
    const reader = new LogReader(path);
    writeFileSync(path, say('one'));
    assert.deepEqual(await errorsIn(reader), ['one']);
    renameSync(path, `${path}.1`);
    mkdirSync(path);
    for (const _ of [1, 2]) await assert.rejects(errorsIn(reader), { message: 'it is not a regular file' });
    appendFileSync(`${path}.1`, say('two'));
    rmdirSync(path);
    writeFileSync(path, say('three'));
    assert.deepEqual(await errorsIn(reader), ['two', 'three']);
    await errorsIn(reader, 'close');
  });

  it('takes the latest lines of a system from the file in its info, and only its own', async (t) => {
    const path = join(makeFolder(t), 'a.jsonl');
    const info = { name: 'train', pid: DEAD, host: hostname(), log: { path } };
    const client = createClient({ socket: path }, { timeoutMs: 1000 });
    const texts = async (about: object): Promise<string[]> => {
      return (await readHistory(client, { ...info, ...about })).lines.map(({ text }) => text);
    };
    assert.deepEqual(await texts({}), []);
    const others = [{ name: 'other' }, { pid: 1 }].map((system) => entry('02:00', 'end', {}, system));
    const own = [...pause('03:00', 'ben'), ...resume('04:00', 'ana')];
    writeFileSync(path, textOf(['secret', ...others, '{"secret":1}', ...own]));
    const lines = ['paused by ben', 'pause by ben done in 0.01 s', 'active by ana', 'resume by ana done in 0.01 s'];
    assert.deepEqual(await texts({}), lines);
    writeFileSync(`${path}.1`, textOf([START]));
    assert.deepEqual(await texts({}), ['started', ...lines]);
    const paths = [7, null, 'a.jsonl', '', `${path}\0`, makeFolder(t), makePipe(t).path, '/dev/zero', '/proc/self/mem'];
    const logs = paths.map((one) => ({ log: { path: one } }));
    for (const wrong of [...logs, { log: null }, { host: 'gpu1' }, { pid: '1' }]) {
      assert.deepEqual(await texts(wrong), [], String(Object.values(wrong)));
    }
    appendFileSync(path, `${'x'.repeat(2 ** 20)}\n${JSON.stringify(entry('05:00', 'end'))}\n`);
    assert.deepEqual(await texts({}), ['ended'], 'no more than a mebibyte is read, nor older entries after a gap');
    const thread = (_: unknown, index: number): Body => entry('06:00', 'thread', { error: index });
    appendFileSync(path, textOf(Array.from({ length: 210 }, thread)));
    const latest = await texts({});
    const [first, last] = [9, 209].map((index) => `the server thread died: ${index}`);
    assert.deepEqual([latest.length, latest[0], latest.at(-1)], [201, first, last]);
  });
});

// ───── The command ───────────────────────────────────────────────────────────────────────────────────────────────

/** The folder of this user's logs, and functions that write one. */
interface State {
  folder: string;
  path(name: string, host?: string): string;
  write(name: string, entries: readonly (Body | string)[], host?: string): string;
}

/** The folder of the sockets of a session, as an option: `call()` sets variables too briefly. */
function dirOf({ folder }: Session): string[] {
  return ['--dir', folder];
}

/** Opens an empty state folder, for tools in this process. */
function openState(t: TestContext): State {
  const root = makeFolder(t);
  const before = process.env['XDG_STATE_HOME'];
  t.after(() => {
    if (before === undefined) delete process.env['XDG_STATE_HOME'];
    else process.env['XDG_STATE_HOME'] = before;
  });
  process.env['XDG_STATE_HOME'] = root;
  const folder = join(root, 'control');
  mkdirSync(folder);
  const path: State['path'] = (name, host = hostname()) => join(folder, `${name}@${host}.jsonl`);
  const write: State['write'] = (name, entries, host) => {
    writeFileSync(path(name, host), textOf(entries));
    return path(name, host);
  };
  return { folder, path, write };
}

function textOf(entries: readonly (Body | string)[]): string {
  return entries.map((one) => `${typeof one === 'string' ? one : JSON.stringify(one)}\n`).join('');
}

/** Runs `log`, which must print these lines: each a time and a text, about `train` unless it begins with a title. */
async function prints(args: readonly string[], lines: readonly string[], errors: string = ''): Promise<void> {
  const { code, stdout, stderr } = await call(['log', ...args]);
  assert.deepEqual(linesOf(stdout), lines);
  assert.equal(stderr, errors);
  assert.equal(code, 0);
}

const TITLE = `train-${DEAD}`;

/** A night with a save per minute: a pause at 02:58, a resume at 07:40, a crash at 09:12. */
function night(): Body[] {
  const minutes = (from: number, to: number): string[] => Array.from({ length: to - from }, (_, index) => {
    const [hour, minute] = [Math.floor((from + index) / 60), (from + index) % 60];
    return `${String(hour).padStart(2, '0')}:${String(minute).padStart(2, '0')}:20`;
  });
  return [
    entry('2026-11-22T20:00', 'start', { commandLine: ['python3', 'train.py'] }),
    entry('2026-11-22T20:00', 'start', { version: '0.17.0' }),
    entry('2026-11-22T20:00', 'status', { status: 'active', holds: [] }),
    ...minutes(10, 178).flatMap((clock) => save(clock, 'itself')),
    ...pause('02:58:11', 'ben@desk', 'B leaks memory'),
    ...command('04:00:02', 'save-state', 'cron', { seconds: 0.31, value: 'ckpt/412.pt' }),
    ...resume('07:40:55', 'ana@laptop'),
    ...minutes(461, 552).flatMap((clock) => save(clock, 'itself')),
    entry('09:12:40', 'end'), entry('09:12:40', 'end', { ended: 'exit code 1', exitCode: 1 }),
  ];
}

const NIGHT: readonly string[] = [
  `2026-11-23 02:58:11  ${TITLE}  paused by ben@desk: B leaks memory`,
  `2026-11-23 04:00:02  ${TITLE}  save-state by cron done in 0.31 s: ckpt/412.pt`,
  `2026-11-23 07:40:55  ${TITLE}  active by ana@laptop`,
  `2026-11-23 07:40:55  ${TITLE}  resume by ana@laptop done in 0.01 s`,
  `2026-11-23 09:11:20  ${TITLE}  save-state by itself done in 0.01 s: a.json (91 times since 07:41:20)`,
  `2026-11-23 09:12:40  ${TITLE}  exit code 1`,
];

describe('control-client log', SUITE, () => {
  it('tells the night in six lines, although the system saves every minute', async (t) => {
    const { write } = openState(t);
    write('train', night());
    await prints(['--since', '2026-11-23T03:00'], NIGHT);
    await prints(['train', '--since', '2026-11-23 03:00:00'], NIGHT);
    await prints([], [
      `2026-11-22 20:00:00  ${TITLE}  started: python3 train.py`,
      `2026-11-23 02:57:20  ${TITLE}  save-state by itself done in 0.01 s: a.json (168 times since 00:10:20)`,
      NIGHT[0] as string, `2026-11-23 02:58:11  ${TITLE}  pause by ben@desk (B leaks memory) done in 0.01 s`,
      ...NIGHT.slice(1),
    ]);
  });

  it('begins with the status of each system that ran at --since, and omits those that had ended', async (t) => {
    const { write } = openState(t);
    write('ended', [START, entry('02:00', 'end')].map((one) => ({ ...one, name: 'ended' })));
    write('quiet', [START, ACTIVE_AT_START].map((one) => ({ ...one, name: 'quiet', pid: process.pid })));
    write('cut', [START, ACTIVE_AT_START, ...pause('01:30', 'ben')].map((one) => ({ ...one, name: 'cut' })));
    write('two', [
      entry('01:00', 'start', {}, { name: 'two', pid: DEAD + 1 }), // superseded by another run of that name
      ...[entry('01:10', 'start'), ACTIVE_AT_START, entry('04:00', 'end')].map((one) => ({ ...one, name: 'two' })),
    ]);
    const quiet = `quiet-${process.pid}`;
    const label = (title: string): string => title.padEnd(Math.max(quiet.length, `two-${DEAD}`.length));
    await prints(['--since', '2026-11-23T03:00'], [
      `2026-11-23 01:00:00  ${label(quiet)}  active`,
      `2026-11-23 01:10:00  ${label(`two-${DEAD}`)}  active`,
      `2026-11-23 01:30:00  ${label(`cut-${DEAD}`)}  paused by ben`,
      `2026-11-23 01:30:00  ${label(`cut-${DEAD}`)}  ${CUT}`,
      `2026-11-23 04:00:00  ${label(`two-${DEAD}`)}  ended`,
    ]);
  });

  it('counts equal outcomes from --since on', async (t) => {
    const { write } = openState(t);
    const saves = ['01:00', '02:00', '04:00', '05:00'].flatMap((clock) => save(clock, 'cron'));
    write('train', [...saves, entry('06:00', 'end')]);
    await prints(['--since', '2026-11-23T03:00'], [
      `2026-11-23 01:00:00  ${TITLE}  active`,
      `2026-11-23 05:00:00  ${TITLE}  save-state by cron done in 0.01 s: a.json (2 times since 04:00:00)`,
      `2026-11-23 06:00:00  ${TITLE}  ended`,
    ]);
  });

  it('says that a killed system has no end in its log, unless it may run on another machine', async (t) => {
    const { write, folder } = openState(t);
    const entries = [START, ...command('02:00', 'pause', 'ben', { state: 'failed', error: 'busy' })];
    write('train', entries);
    const lines = [
      `2026-11-23 01:00:00  ${TITLE}  started`,
      `2026-11-23 02:00:00  ${TITLE}  pause by ben failed after 0.01 s: busy`,
    ];
    await prints(['train'], [...lines, `2026-11-23 02:00:00  ${TITLE}  ${CUT}`]);
    write('train', [entry('01:00', 'start', { commandLine: ['a'] }), START,
      entry('02:00', 'status', { status: 'shutting down', by: 'itself', reason: 'SIGTERM' })]);
    await prints(['train'], [
      `2026-11-23 01:00:00  ${TITLE}  started: a`,
      `2026-11-23 02:00:00  ${TITLE}  shutting down by itself: SIGTERM`,
      `2026-11-23 02:00:00  ${TITLE}  ${CUT}`,
    ]);
    const copy = join(folder, 'copy.log.jsonl');
    writeFileSync(copy, textOf(entries));
    const more = 'the log ends here: killed, the machine stopped, or it runs on another one';
    await prints([copy], [...lines, `2026-11-23 02:00:00  ${TITLE}  ${more}`]);
    await prints([write('train', entries, 'another-machine')], lines);
  });

  it('takes a name, a process id or both, also of systems that have ended, and files', async (t) => {
    const { write, folder } = openState(t);
    const run = (name: string, pid: number): Body[] => [entry('01:00', 'start', {}, { name, pid }),
      entry('02:00', 'end', {}, { name, pid })];
    write('train', [...run('train', 4_200_001), ...run('train', 4_200_002)]);
    const path = write('sweep_lr_0.1', run('sweep/lr=0.1', 4_200_003));
    const rows: [words: string[], titles: string[]][] = [
      [['train'], ['train-4200001', 'train-4200002']], [['train-4200001'], ['train-4200001']],
      [['4200002'], ['train-4200002']], [['sweep_lr_0.1'], ['sweep_lr_0.1-4200003']],
      [['4200003', 'train-4200002'], ['train-4200002', 'sweep_lr_0.1-4200003']],
      [[path], ['sweep_lr_0.1-4200003']], [[relative('.', path)], ['sweep_lr_0.1-4200003']],
      [[path, `${folder}/../control/sweep_lr_0.1@${hostname()}.jsonl`], ['sweep_lr_0.1-4200003']],
      [[], ['train-4200001', 'train-4200002', 'sweep_lr_0.1-4200003']],
    ];
    for (const [words, titles] of rows) {
      const { stdout, stderr } = await call(['log', ...words]);
      const found = linesOf(stdout).map((line) => line.split(/  +/)[1]);
      assert.deepEqual(found.sort(), [...titles, ...titles].sort(), words.join(' '));
      assert.equal(stderr, '');
    }
  });

  it('refuses a name without a log, a missing file, and what is no file', async (t) => {
    const { write, folder } = openState(t);
    const form = 'a file has a slash or ends in .jsonl';
    const refuses = (words: string[], message: string): Promise<void> => {
      return assert.rejects(call(['log', ...words]), { message });
    };
    await refuses(['train'], `there is no log of 'train' in '${folder}'; ${form}`);
    const given = join(makeFolder(t), 'train.jsonl');
    writeFileSync(given, textOf([START]));
    await refuses(['train', given], `there is no log of 'train' in '${folder}'; ${form}`);
    write('train', [START]);
    write('evaluator', [entry('01:00', 'start', {}, { name: 'evaluator' })]);
    await refuses(['trian'], `there is no log of 'trian' in '${folder}' (did you mean train?); ${form}`);
    await refuses(['other'], `there is no log of 'other' in '${folder}', only of evaluator, train; ${form}`);
    await refuses(['train-1'], `there is no log of 'train-1' in '${folder}' (did you mean train?); ${form}`);
    await refuses(['other.jsonl'], "there is no log 'other.jsonl'");
    for (const path of [folder, makePipe(t).path, '/dev/null']) {
      await refuses([path], `cannot read the log '${path}': it is not a regular file`);
    }
    const rule = 'log takes targets as words only; without any, it is about all systems';
    await refuses(['--all'], `--all and log are mutually exclusive: ${rule}`);
    await refuses(['--targets', '/nowhere/x'], `--targets and log are mutually exclusive: ${rule}`);
    await assert.rejects(call(['log', '--dir', folder]), {
      message: '--dir requires a target: it is the folder of sockets',
    });
    const exclusive = '--port and targets are mutually exclusive: a target is a complete address';
    await refuses(['--port', '1', 'train'], exclusive);
  });

  it('says that there is nothing, and where it looked', async (t) => {
    const { folder, write } = openState(t);
    await prints([], [], `control-client: there is no log in '${folder}'\n`);
    write('train', [START, entry('02:00', 'end')]);
    await prints(['--since', '2026-11-23T03:00'], [], 'control-client: nothing is logged since 2026-11-23 03:00:00\n');
  });

  it('says what to set for a user without a home folder, and still reads a file', async (t) => {
    const path = openState(t).write('train', [entry('03:00:00', 'start')]);
    t.after(() => { t.mock.restoreAll(); syncBuiltinESMExports(); });
    process.env['XDG_STATE_HOME'] = '';
    const missing = (): never => { throw new Error('A system error occurred: uv_os_homedir returned ENOENT'); };
    for (const homedir of [missing, () => '']) { // no entry in /etc/passwd, and HOME=
      t.mock.method(os, 'homedir', homedir);
      syncBuiltinESMExports();
      const message = 'you have no home folder: set HOME or XDG_STATE_HOME';
      for (const words of [[], ['train']]) {
        await assert.rejects(call(['log', ...words]), (error: Error) => {
          return error instanceof UsageError && error.message === message;
        });
      }
      assert.match((await call(['log', path])).stdout, /  train-\d+  started\n/);
    }
  });

  it('skips broken and foreign lines, and counts them for each log', async (t) => {
    const { write, path, folder } = openState(t);
    const long = JSON.stringify(entry('01:30', 'outcome', { command: 'x'.repeat(2 ** 16) }));
    write('train', ['', 'not JSON', '[1]', START, '{"time":"torn', long, entry('02:00', 'end')]);
    appendFileSync(path('train'), '{"torn');
    appendFileSync(`${path('train')}.1`, `${JSON.stringify(entry('00:30', 'thread', { error: 'x' }))}`); // no newline
    write('b', ['{}']);
    const fifo = makePipe(t).path;
    renameSync(fifo, join(folder, 'fifo@x.jsonl'));
    const { code, stdout, stderr } = await call(['log']);
    assert.deepEqual(linesOf(stdout).map((line) => line.replace(/.*  /, '')), [
      'the server thread died: x', CUT, 'started', 'ended',
    ]);
    assert.deepEqual(linesOf(stderr).sort(), [
      `control-client: 1 line is no log entry in '${path('b')}'`,
      `control-client: 5 lines are no log entries in '${path('train')}'`,
      `control-client: cannot read the log '${join(folder, 'fifo@x.jsonl')}': it is not a regular file`,
    ]);
    assert.equal(code, 0);
  });

  it('reads older generations first, the oldest of them at the beginning', async (t) => {
    const { write, path } = openState(t);
    write('train', [entry('04:00', 'start'), entry('05:00', 'end')]);
    const older = [[1, '03:00', 'end'], [2, '02:00', 'lost'], [10, '01:00', 'start']] as const;
    for (const [number, clock, event] of older) {
      writeFileSync(`${path('train')}.${number}`, textOf([entry(clock, event, { lines: 2, error: 'x' })]));
    }
    const texts = ['started', '2 lines are lost: x', 'ended', 'started', 'ended'];
    const lines = texts.map((text, index) => `2026-11-23 0${index + 1}:00:00  ${TITLE}  ${text}`);
    for (const words of [[], ['train'], [path('train')], [path('train'), `${path('train')}.2`]]) {
      await prints(words, lines);
    }
    const { stdout } = await call(['log', `${path('train')}.2`]);
    assert.deepEqual(linesOf(stdout), [lines[1], `2026-11-23 02:00:00  ${TITLE}  ${CUT}`]);
  });

  it('prints entries as they are with --json, the status at --since first', async (t) => {
    const { write } = openState(t);
    const before = pause('02:00', 'ben', HOSTILE);
    const after = [entry('04:00', 'ask', { text: HOSTILE }), ...resume('05:00', 'ana'), entry('06:00', 'ask')];
    const deep = `,"value":${'['.repeat(20_000)}${']'.repeat(20_000)}}`; // JSON.stringify() fails
    write('train', [START, ...before, ...after.slice(0, -1), JSON.stringify(after.at(-1)).replace('}', deep)]);
    const { code, stdout, stderr } = await call(['log', '--json', '--since', '2026-11-23T03:00']);
    assertHarmless(stdout);
    const expected = [before[2], ...after].map((one) => JSON.stringify(one));
    assert.deepEqual(linesOf(stdout).map((line) => JSON.stringify(JSON.parse(line))), expected);
    assert.deepEqual([code, stderr], [0, '']);
    assert.equal(linesOf((await call(['log', '--json'])).stdout).length, 1 + before.length + after.length);
  });

  it('prints hostile texts harmlessly, also in titles, and at most 200 characters of them', async (t) => {
    const { write } = openState(t);
    write('train', pause('02:00', HOSTILE, HOSTILE).map((one) => ({ ...one, name: HOSTILE })));
    const { stdout } = await call(['log']);
    assertHarmless(stdout);
    assert.ok(stdout.includes(`paused by ${HARMLESS}: ${HARMLESS}\n`), stdout);
  });
});

describe('control-client log of a live system', SUITE, () => {
  it('reads the file in its info if that is on this machine, and only its own entries', async (t) => {
    openState(t);
    const session = openSession(t);
    const foreign = join(makeFolder(t), 'foreign.jsonl');
    const own = { name: 'train', pid: process.pid };
    writeFileSync(foreign, textOf([entry('01:00', 'start', {}, { name: 'other' }), ...pause('02:00', 'ben'),
      entry('03:00', 'start', { version: '0.17.0' }, own)]));
    const info = (fields: object) => () => ({ ...ACTIVE, ...own, host: hostname(), ...fields });
    await session.serve(`train-${process.pid}`, info({ log: { path: foreign } }));
    const web = await startWeb(t, info({ log: { path: foreign } }));
    const line = `2026-11-23 03:00:00  train-${process.pid}  started`;
    for (const words of [['train'], [`${process.pid}`], [`127.0.0.1:${web.port}`]]) {
      const { code, stdout, stderr } = await call(['log', ...words, ...dirOf(session)]);
      assert.deepEqual([code, linesOf(stdout), stderr], [0, [line], ''], words.join());
    }
    const { stdout } = await call(['log', '--host', '127.0.0.1', '--port', `${web.port}`]);
    assert.deepEqual(linesOf(stdout), [line]);
  });

  it('says that the log is on another machine, or that there is none', async (t) => {
    openState(t);
    const session = openSession(t);
    const none = 'the system keeps no log: it was started without one, or is older than 0.17';
    await session.serve('train-7', () => ({ ...ACTIVE, name: 'train', pid: 7, host: hostname() }));
    await assert.rejects(call(['log', 'train', ...dirOf(session)]), { message: `train: ${none}` });
    const rows: [body: object | null, code: number, error: string][] = [
      [{ ...ACTIVE, host: hostname() }, 1, none], [ACTIVE, 1, none],
      [{ ...ACTIVE, host: hostname(), log: { path: 7 } }, 1, "the log is on the machine .*: '7'"],
      [{ ...ACTIVE, host: 'gpu1', log: { path: '/a.jsonl' } }, 1, "the log is on the machine gpu1: '/a.jsonl'"],
      [{ ...ACTIVE, host: HOSTILE, log: { path: HOSTILE } }, 1, 'the log is on the machine PW .*'],
      [{ code: 401, error: 'Missing token' }, 1, 'Missing token.*'],
    ];
    for (const [body, exitCode, error] of rows) {
      const { target } = await startWeb(t, () => body);
      const { code, stdout, stderr } = await call(['log', target]);
      assert.deepEqual([code, stdout], [exitCode, '']);
      assert.match(stderr, new RegExp(`^control-client: ${target}: ${error}\n$`));
      assertHarmless(stderr);
    }
  });
});

describe('control-client log --follow', SUITE, () => {
  it('prints new lines through renaming, truncation and new logs, and the end of a killed process', async (t) => {
    const { write, path } = openState(t);
    const env = { XDG_STATE_HOME: process.env['XDG_STATE_HOME'], TZ: process.env['TZ'] };
    const sleeper = startProgram(t, 'client', ['wait', 'active', '--socket', '/nowhere/x', '--timeout', '1h']);
    const pid = sleeper.child.pid as number;
    const say = (error: string): string => textOf([entry('02:00', 'thread', { error }, { pid })]);
    write('train', [entry('01:00', 'start', {}, { pid })]);
    const { shows, output, child } = startProgram(t, 'client', ['log', '--follow'], env);
    await shows(/started\n/);
    const half = say('one');
    appendFileSync(path('train'), half.slice(0, 30));
    appendFileSync(path('train'), half.slice(30));
    await shows(/died: one\n/);
    renameSync(path('train'), `${path('train')}.1`);
    appendFileSync(`${path('train')}.1`, say('two'));
    write('train', [say('three').trim()]);
    await shows(/died: three\n/);
    truncateSync(path('train'));
    await shows(/died: two\n/);
    write('late', [entry('01:00', 'start', {}, { name: 'late', pid: process.pid })]);
    await shows(/late-\d+ +started\n/);
    appendFileSync(path('train'), say('four'));
    await shows(/died: four\n/);
    sleeper.child.kill('SIGKILL');
    await shows(new RegExp(`train-${pid} +${CUT}\n`));
    assert.equal(child.exitCode, null);
    const told = linesOf(output()).map((line) => line.replace(/.*  /, '').replace(/.*: /, ''));
    assert.deepEqual(told.sort(), [
      'four', CUT.replace(/.*: /, ''), 'one', 'started', 'started', 'three', 'two',
    ].sort());
  });
});

describe('--since', LIMIT, () => {
  it('is a time of today or yesterday, a date, or a duration', () => {
    const now = new Date('2026-11-23T09:30:00');
    const rows: [text: string, time: string][] = [
      ['3:00', '2026-11-23T03:00:00'], ['09:30', '2026-11-23T09:30:00'], ['9:31', '2026-11-22T09:31:00'],
      ['23:59', '2026-11-22T23:59:00'], ['2026-11-23', '2026-11-23T00:00:00'],
      ['2026-11-20T03:00', '2026-11-20T03:00:00'], ['2026-11-20 03:00:07', '2026-11-20T03:00:07'],
      ['2026-11-23T03:00:00.5Z', '2026-11-23T03:00:00.500Z'], ['2026-11-23T03:00+05:30', '2026-11-22T21:30:00Z'],
      ['3:00:07', '2026-11-23T03:00:07'], ['8h', '2026-11-23T01:30:00'],
      ['90s', '2026-11-23T09:28:30'], ['8.h', '2026-11-23T01:30:00'], ['1.5d', '2026-11-21T21:30:00'],
    ];
    for (const [text, time] of rows) assert.equal(parsePast('--since', text, now), new Date(time).getTime(), text);
    const form = '--since must be a past time (3:00, 2026-11-23T03:00) or a duration (30m, 8h), got';
    const wrong = [
      '', '8', '24:00', '3:60', '3', '2026-02-30', '2026-02-30T03:00Z', '2026-11-23T25:00', '2026-11-23T9:00',
      '2026-11-23T09:31', 'noon', '-1', '3am', '3 pm',
    ];
    for (const text of wrong) assert.throws(() => parsePast('--since', text, now), { message: `${form} '${text}'` });
    assert.throws(() => parsePast('--since', '-1h', now), /^Error: --since must be a number of seconds or a duration/);
  });
});
