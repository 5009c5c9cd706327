// A system in words, as terminals, pages and scripts show it: what a report, a silence, an end and a failure mean, and
// the texts of its parts.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { BY, LINK_ENDED, type Machine } from '../../shared/client.ts';
import { describeDuration } from '../../shared/text.ts';
import { compareViews, describeInfo, viewOf } from '../../shared/view.ts';
import { assertHarmless, HARMLESS, HOSTILE } from '../helpers.ts';
import { LIMIT } from '../wait.ts';
import { ago, systemOf, viewOfReport } from './view.ts';
import type { View } from '../../shared/view.ts';

/** A report, what else is known of the system, and what is shown of both. */
type Row = [info: object | null, shown: Partial<View>, circumstances?: Parameters<typeof systemOf>[1]];

function check(rows: readonly Row[]): void {
  for (const [info, shown, circumstances] of rows) {
    const view = viewOfReport(info, circumstances);
    assert.deepEqual(view, { ...view, ...shown }, JSON.stringify([info, circumstances]));
  }
}

const NAMED = 'the status must be one of active, pausing, paused, resuming, shutting down, got';
const PAUSED = { status: 'paused', since: ago(120), by: 'ana', reason: 'a < b' };
const ENDING = { status: 'shutting down', since: ago(5), by: 'ana', reason: 'done' };
const SAVE = { command: 'save-state', state: 'done', seconds: 0.5 };
const FAILED = { ...SAVE, state: 'failed', error: 'ENOSPC', at: ago(2) };
const ASKED = { id: 'k3f-q1', message: 'Delete 3 branches?', parameters: {}, at: ago(3) };

/** A command in the list of the latest ones. */
function listed(text: string, state: string, id: string = '', mayWithdraw: boolean = false): View['commands'][number] {
  return { id, text, state, mayWithdraw };
}

/** How a program under control-run has ended, as it reports that when it shuts down. */
function ended(reason: string, exitCode: number): object {
  const run = { pid: 7, started: 'today', ended: reason, exitCode };
  return { ...ENDING, by: 'itself', reason, detail: { run } };
}

it('A duration is in a unit of which there are at least two', () => {
  const texts: [seconds: number, text: string][] = [
    [0, '0 s'], [99.9, '99 s'], [119.9, '119 s'], [120, '2 min'], [179, '2 min'], [7199, '119 min'], [7200, '2 h'],
    [48 * 3600 - 1, '47 h'], [48 * 3600, '2 days'],
  ];
  for (const [seconds, text] of texts) assert.equal(describeDuration(seconds), text);
});

describe('viewOf', LIMIT, () => {
  it('tells the status, since when, who and why, how urgent it is, and whether the system takes commands', () => {
    check([
      [null, {
        status: '', fault: null, heading: 'connecting', word: 'connecting', when: '', age: '', level: 'none',
        statusLevel: 'none', isControllable: false, summary: '',
      }],
      [{ status: 'active', since: ago(3), by: 'ana@sofa' }, {
        heading: 'active', when: 'for 3 min', cause: ' by ana@sofa', word: 'active', level: 'good', statusLevel: 'good',
        isControllable: true, error: '', summary: 'active', story: 'active',
      }],
      [{ status: 'pausing' }, { heading: 'pausing', when: '', cause: '', level: 'warn', isControllable: true }],
      [PAUSED, {
        heading: 'paused', when: '2 h ago', age: '2 h', cause: ' by ana: a < b', level: 'warn', isControllable: true,
        holds: [], summary: 'paused 2 h ago by ana: a < b', story: 'paused by ana: a < b',
      }],
      [{ status: 'resuming', since: ago(3) }, { when: 'for 3 min', level: 'warn', isControllable: true }],
      [{ status: 'shutting down' }, { heading: 'shutting down', level: 'warn', isControllable: false }],
      [{ status: 'a < b' }, {
        heading: 'unknown', error: `${NAMED} 'a < b'`, level: 'bad', isControllable: true,
        story: `unknown: ${NAMED} 'a < b'`,
      }],
      [{ status: 'active', heardAt: ago(3) }, {
        step: 'in a step for 3 min', level: 'good', isControllable: true, summary: 'active, in a step for 3 min',
      }],
      [{ ...PAUSED, heardAt: ago(3) }, { step: 'the program has not responded for 3 min' }],
    ]);
  });

  it('tells who else holds a pause', () => {
    const holds = [
      { by: 'ben@desk', since: ago(120) }, { by: 'ana@laptop', reason: 'a < b', since: ago(3) }, { since: null },
    ];
    const paused = { ...PAUSED, ...holds[0], reason: '' };
    check([
      [{ ...paused, holds }, {
        heading: 'paused', when: '2 h ago', cause: ' by ben@desk',
        holds: ['and 3 min ago by ana@laptop: a < b', 'and by others'],
        othersHold: 'paused by ben@desk; and by ana@laptop: a < b; and by others',
      }],
      [{ ...paused, holds: holds.slice(0, 1) }, { holds: [], othersHold: 'paused by ben@desk' }],
      [{ ...paused, by: BY, holds: [{ by: BY }] }, { holds: [], othersHold: '' }],
      [{ ...paused, status: 'resuming', holds }, { holds: [], othersHold: '' }],
    ]);
  });

  it('tells a system that is absent, silent or refuses from one that has ended, and that from a crash', () => {
    const absent = { failure: { fault: 'offline', error: 'nothing listens' }, since: Date.parse(ago(3)) } as const;
    const silent = { failure: { fault: 'silent', error: 'no response' }, unansweredSince: Date.parse(ago(3)) } as const;
    const token = { fault: 'denied', statusCode: 401, error: 'Missing token' } as const;
    const gone = { when: 'for 3 min', age: '3 min', cause: '', level: 'bad', isControllable: false } as const;
    check([
      [PAUSED, { heading: 'offline', fault: 'offline', error: '', ...gone, story: 'offline' }, absent],
      [PAUSED, { heading: 'no answer', fault: 'silent', error: '', ...gone, holds: [], story: 'no answer' }, silent],
      [PAUSED, { heading: 'no answer', ...gone }, { unansweredSince: Date.parse(ago(3)) }],
      [null, { heading: 'offline', error: 'no such machine' }, { // which is not known of the system
        failure: { fault: 'offline', code: LINK_ENDED, error: 'no such machine' },
      }],
      [null, { heading: 'offline', fault: 'foreign', error: 'HTTP 302', story: 'offline: HTTP 302' }, {
        failure: { fault: 'foreign', error: 'HTTP 302' },
      }],
      [PAUSED, {
        heading: 'missing or wrong token', error: 'Missing token', story: 'missing or wrong token', level: 'bad',
        isControllable: false,
      }, { failure: token }],
      [null, { heading: 'access denied', error: 'Not allowed' }, {
        failure: { ...token, statusCode: 403, error: 'Not allowed' },
      }],
      [ENDING, {
        status: 'offline', heading: 'ended', word: 'ended', when: '3 min ago', cause: ' by ana: done', error: '',
        level: 'ended', statusLevel: 'ended', isControllable: false, story: 'offline: shutdown by ana: done',
      }, absent],
      [ended('exit code 7', 7), {
        heading: 'crashed', word: 'crashed', when: '3 min ago', cause: ': exit code 7', error: '', level: 'bad',
        story: 'offline: exit code 7',
      }, absent],
      [ended('SIGTERM', 143), { heading: 'ended', cause: ' by itself: SIGTERM', level: 'ended' }, absent],
      [{ status: 'active', commands: [{ command: 'shutdown', state: 'running', by: 'ana' }] }, {
        heading: 'ended', cause: ' by ana', commands: [], // too fast to be seen as a status
      }, absent],
      [{ status: 'active' }, { heading: 'active', cause: '', error: '' }, { earlier: [ENDING, null] }], // restarted
      [null, { status: 'unknown', error: 'EMFILE', level: 'bad' }, { failure: { fault: 'unknown', error: 'EMFILE' } }],
    ]);
  });

  it('tells a crash from an end by the exit code, which a command, the detail or both report', () => {
    const gone = { failure: { fault: 'offline' } } as const;
    const crashed = { word: 'crashed', heading: 'crashed', cause: ': exit', level: 'bad' } as const;
    const done = { heading: 'ended', cause: ' by itself: exit', statusLevel: 'ended' } as const;
    for (const [exitCode, shown] of [
      [7, crashed], [1, crashed], [127, crashed], [137, crashed], [139, crashed], // control-run adds 128 to a signal
      [0, done], [129, done], [130, done], [141, done], [143, done], ['7', done], [undefined, done],
    ] as const) {
      const value = { ended: 'exit', ...exitCode !== undefined && { exitCode } };
      const shutdown = { command: 'shutdown', state: 'done', by: 'itself', reason: 'exit', value };
      const listing = { status: 'active', commands: [shutdown] };
      const detail = { run: { pid: 7, started: 'today', ...value } };
      const ending = { status: 'shutting down', by: 'itself', reason: 'exit' };
      const failed = { command: 'evaluate', state: 'failed', error: 'x' };
      check([
        [listing, shown, gone], [{ ...ending, detail }, shown, gone], [{ ...listing, ...ending }, shown, gone],
        [{ ...ending, commands: [shutdown, failed] }, { ...shown, failed: 'evaluate failed: x', level: 'bad' }, gone],
        [{ status: 'active', commands: [{ ...shutdown, by: 'ana', reason: undefined }] }, {
          ...done, cause: ' by ana',
        }, gone],
      ]);
    }
  });

  it('tells the last save, a later one that failed, and what else has failed since anything succeeded', () => {
    const saved = { ...SAVE, value: 'states/<i>', at: ago(3), by: 'ana' };
    const noWay = 'no way to save: start control-run with --save-signal or --save-command';
    const refused = { ...FAILED, error: noWay };
    const run = { pid: 7, started: 'today' };
    const ended = (value: unknown): object => active({ command: 'shutdown', state: 'done', value });
    const evaluated = { command: 'evaluate', state: 'failed', error: 'GPU busy', seconds: 2 };
    const active = (...commands: object[]): object => ({ status: 'active', commands });
    check([
      [active(), { saved: '', unsaved: '', failed: '', canSave: true }],
      [active(saved), { saved: 'saved states/<i> 3 min ago by ana', unsaved: '', summary: 'active; saved 3 min ago' }],
      [active({ ...SAVE, value: 'states/1' }), { saved: 'saved states/1' }],
      [active({ ...SAVE, at: ago(3) }), { saved: 'saved 3 min ago' }],
      [active({ ...SAVE, at: 'soon', seconds: -1, value: { n: 1 }, by: 7 }), { saved: 'saved {"n":1} by 7' }],
      [active(saved, FAILED), {
        saved: 'saved states/<i> 3 min ago by ana', unsaved: 'save failed 2 min ago: ENOSPC',
        failed: 'save failed: ENOSPC', heading: 'active', word: 'failed', level: 'bad', statusLevel: 'good',
        summary: 'active; saved 3 min ago; save failed 2 min ago',
      }],
      [active(FAILED, saved), { unsaved: '', failed: '', level: 'good' }],
      [{ ...PAUSED, commands: [evaluated] }, {
        failed: 'evaluate failed: GPU busy', heading: 'paused', word: 'failed', level: 'bad', statusLevel: 'warn',
      }],
      [active(evaluated, SAVE), { failed: '', word: 'active', level: 'good' }],
      [{ ...active(refused), detail: { run: { ...run, canSave: false } } }, {
        canSave: false, saved: '', unsaved: '', failed: '', level: 'good',
        commands: [listed(`2 min ago · save-state refused: ${noWay}`, 'refused')],
      }],
      [{ ...active(refused), detail: { run } }, { canSave: true, unsaved: '', failed: '' }], // not reported yet
      [{ ...active(refused), detail: { run: {} } }, { // not by control-run
        unsaved: `save failed 2 min ago: ${noWay}`, failed: `save failed: ${noWay}`,
      }],
      [{ status: 'active', pid: 2 }, { unsaved: '', failed: '' }, { // another process
        earlier: [{ status: 'active', pid: 1 }, { ...active(FAILED), pid: 1 }],
      }],
      [ended({ ended: 'exit code 0', exitCode: 0 }), { saved: '' }], [ended(''), { saved: '' }],
      [ended({ saved: 'states/1', ended: 'SIGTERM', exitCode: 143 }), { saved: 'saved states/1' }],
      [ended('states/1'), { saved: 'saved states/1' }], [ended({ saved: 1 }), { saved: 'saved {"saved":1}' }],
      [active(FAILED), { word: 'offline', level: 'bad', unsaved: 'save failed 2 min ago: ENOSPC' }, {
        failure: { fault: 'offline' },
      }],
    ]);
  });

  it('tells what a system asks, before everything else', () => {
    const expiring = { ...ASKED, id: 'k3f-q2', expiresAt: new Date(Date.now() + 12.5 * 60_000).toISOString() };
    const asks = [ASKED, expiring, { ...ASKED, at: 'soon' }];
    const expired = { command: 'answer', message: 'x', state: 'failed', error: 'expired', at: ago(3), seconds: 60 };
    check([
      [{ ...PAUSED, commands: [FAILED], asks }, {
        heading: 'paused', word: 'asking', level: 'asks', statusLevel: 'warn', askAge: '3 min',
        story: 'asks; paused by ana: a < b', detail: Array(3).fill(ASKED.message).join('; '), asks: [
          { id: 'k3f-q1', message: ASKED.message, times: 'asked 3 min ago' },
          { id: 'k3f-q2', message: ASKED.message, times: 'asked 3 min ago, expires in 12 min' },
          { id: 'k3f-q1', message: ASKED.message, times: '' },
        ],
      }],
      [{ status: 'active', asks: [ASKED] }, { story: 'asks', summary: `active; asks: ${ASKED.message}` }],
      [{ status: 'active', asks: [ASKED] }, { word: 'no answer', level: 'bad', asks: [
        { id: 'k3f-q1', message: ASKED.message, times: 'asked 3 min ago' },
      ] }, { unansweredSince: Date.now() }], // nobody can answer it now
      [{ status: 'active', asks: [ASKED] }, { word: 'offline', level: 'bad', asks: [] }, {
        failure: { fault: 'offline' },
      }],
      [{ status: 'active', commands: [expired] }, {
        failed: '', level: 'good', commands: [listed('2 min ago · x expired', 'answer')],
      }],
    ]);
  });

  it('lists the latest commands first, each with its age, and with its duration if that is 0.1 s or more', () => {
    const load = { ...SAVE, command: 'load' };
    const rows: [entry: object, text: string, state?: string][] = [
      [{ value: 'states/1' }, 'load done in 0.50 s: states/1'], [{ value: 7, seconds: 0.099 }, 'load: 7'],
      [{ value: 7, at: ago(3), by: 'ana', reason: 'why' }, '3 min ago · load by ana (why) done in 0.50 s: 7'],
      [{ seconds: 0.1, by: 'ana' }, 'load by ana done in 0.10 s'], [{ seconds: 0, by: 'ana' }, 'load by ana'],
      [{ seconds: null, by: 'ana' }, 'load by ana'], [{ seconds: { valueOf: 1, toString: 1 } }, 'load'], // unknown
      [{ state: 'failed', error: 'ENOSPC', by: 'ana' }, 'load by ana failed after 0.50 s: ENOSPC', 'failed'],
      [{ state: 'failed', error: 'ENOSPC', at: ago(3), seconds: 0.02 }, '3 min ago · load failed: ENOSPC', 'failed'],
      [{ command: 'evaluate', arguments: { n: 1 }, state: 'running', by: 'ana', reason: 'why', at: ago(4),
        takenAt: ago(3) }, 'evaluate {"n":1} by ana (why) running for 3 min', 'running'],
      [{ state: 'failed', error: 'withdrawn by ben: x', by: 'ana' }, 'load by ana withdrawn by ben: x', 'failed'],
      [{ command: 'pause', state: 'waiting', at: ago(3) }, 'pause waiting for 3 min', 'waiting'],
      [{ command: 'answer', message: 'Go?', by: 'ana@phone', arguments: { ok: true }, at: ago(3), seconds: 60 },
        '2 min ago · answer by ana@phone: ok=true (Go?)', 'answer'],
      [{ state: 'constructor' }, 'load constructor', 'constructor'],
    ];
    for (const [entry, text, state = 'done'] of rows) {
      check([[{ status: 'active', commands: [{ ...load, ...entry }] }, { commands: [listed(text, state)] }]]);
    }
    const withdrawn = { ...SAVE, state: 'failed', error: 'withdrawn' };
    check([[{ status: 'active', commands: [withdrawn] }, { failed: '', unsaved: '', word: 'active', level: 'good' }]]);
    const waiting = { status: 'active', commands: [{ command: 'pause', state: 'waiting', id: 'k3f-7', at: ago(3) }] };
    const text = 'pause waiting for 3 min (k3f-7)';
    check([
      [{ ...waiting, version: '0.27.0' }, { commands: [listed(text, 'waiting', 'k3f-7', true)] }],
      [{ ...waiting, version: '0.26.9' }, { commands: [listed(text, 'waiting', 'k3f-7')] }],
    ]);
    const pending = { command: 'pause', state: 'running' };
    const all = [pending, ...Array.from({ length: 9 }, (_, index) => ({ ...load, value: index }))];
    check([
      [{ status: 'active', commands: [{ command: 'pause', state: 'waiting', by: 'ana', at: ago(3) }] }, {
        commands: [listed('3 min ago · pause by ana outcome unknown', 'outcome unknown')],
      }, { failure: { fault: 'offline' } }],
      [{ status: 'active', commands: all }, { commands: [
        ...[8, 7, 6, 5, 4].map((value) => listed(`load done in 0.50 s: ${value}`, 'done')),
        listed('pause running for 0 s', 'running'),
      ] }],
    ]);
  });

  it('lists no command of which the status or the last save says the same', () => {
    const [done, at, later] = [{ state: 'done', seconds: 0.02, by: 'ana' }, ago(3), ago(2)];
    const [since, justBefore] = [at, new Date(Date.parse(at) - 25).toISOString()]; // by less than they are rounded
    const named = (by: string): View['commands'][number] => listed(`4 min ago · pause by ${by}`, 'done');
    const pauses = ['ben', 'cy'].map((by) => {
      return { ...done, command: 'pause', by, at: by === 'cy' ? justBefore : ago(4) };
    });
    const release = { ...done, command: 'resume', at: later, value: { released: true } };
    const saves = [5, 4].map((minutes) => ({ ...SAVE, value: 'x', at: ago(minutes), by: 'ana' }));
    const [ended, gone] = [{ ended: 'exit code 7', exitCode: 7 }, { failure: { fault: 'offline' } }] as const;
    const ends = [
      { ...done, command: 'shutdown', state: 'failed', error: 'GPU busy', at: ago(4) },
      { ...done, command: 'shutdown', by: 'itself', reason: ended.ended, value: ended, at },
    ];
    const failed = listed('4 min ago · shutdown by ana failed: GPU busy', 'failed');
    check([
      [{ status: 'paused', since, commands: pauses }, { commands: [named('ben')] }],
      [{ status: 'paused', since, commands: [...pauses, release] }, {
        commands: [listed('2 min ago · resume by ana: released own hold', 'done'), named('ben')],
      }],
      [{ status: 'active', since: later, commands: [pauses[0], release] }, { commands: [named('ben')] }],
      [{ status: 'paused', commands: pauses }, { commands: [
        listed('3 min ago · pause by cy', 'done'), named('ben'),
      ] }], // nobody knows since when
      [{ status: 'active', commands: saves }, {
        commands: [listed('5 min ago · save-state by ana done in 0.50 s: x', 'done')],
      }],
      [{ status: 'active', commands: [saves[1], FAILED] }, { commands: [], unsaved: 'save failed 2 min ago: ENOSPC' }],
      [{ status: 'active', commands: [FAILED, { ...FAILED, at }] }, {
        commands: [listed('2 min ago · save-state failed after 0.50 s: ENOSPC', 'failed')],
      }],
      [{ status: 'active', commands: ends }, { heading: 'crashed', commands: [failed] }, gone],
      [{ status: 'active', commands: ends.slice(0, 1) }, { heading: 'offline', commands: [failed] }, gone],
    ]);
  });

  it('tells the progress and the fields of the detail', () => {
    const run = { pid: 7, started: 'today', gpu: 'released' };
    check([
      [{ detail: { step: 1700, of: 10_000, loss: 0.3 } }, {
        progress: { name: 'step', done: 1700, of: 10_000, text: '17 %, 3 min left' },
        detail: '[#         ] 17 %, 3 min left, step 1700 of 10000, loss 0.3',
        fields: [{ name: 'step', value: 1700 }, { name: 'of', value: 10_000 }, { name: 'loss', value: 0.3 }],
      }, { secondsLeft: 180 }],
      [{ detail: { step: 99.9, of: 100 } }, { progress: { name: 'step', done: 99.9, of: 100, text: '99 %' } }],
      [{ detail: { gpu: 'busy', run } }, { progress: null, detail: 'gpu busy', fields: [
        { name: 'gpu', value: 'busy' }, { name: 'pid', value: 7, isRun: true },
        { name: 'started', value: 'today', isRun: true }, { name: 'run.gpu', value: 'released', isRun: true },
      ] }],
      [{ detail: 'idle' }, { detail: 'idle', fields: [{ name: '', value: 'idle' }] }],
      [{ detail: null }, { detail: '', fields: [] }],
      [{ detail: { list: [1, 'a'], huge: Infinity } }, {
        fields: [{ name: 'list', value: '[1,"a"]' }, { name: 'huge', value: 'null' }],
      }],
    ]);
  });

  it('tells the name, the machine and the process', () => {
    const machine: Machine = { label: 'gpu1' };
    const socket = { name: 'train', pid: '2551' };
    check([
      [{ name: 'demo', pid: 7, host: 'gpu3' }, {
        machine: '', name: 'demo', title: ':9000', label: 'demo (:9000)', fullName: 'demo (:9000)', pid: '7',
        process: 'process 7 on gpu3',
      }, { id: ':9000' }],
      [{}, { name: ':9000', title: ':9000', label: ':9000', pid: '', process: '' }, { id: ':9000' }],
      [{ name: 'my train', host: 'gpu3' }, {
        machine: 'gpu1', name: 'my train', title: 'train-2551', label: 'my train', fullName: 'gpu1/my train',
        pid: '2551', process: 'process 2551 on gpu3',
      }, { id: 'gpu1/train-2551', machine, socket }],
      [{ name: 'host:1' }, { name: 'train', label: 'train' }, { id: 'train-2551', socket }], // would be another target
      [{ pid: 7, detail: { run: { pid: 4711, started: 'today' } } }, { pid: '4711', process: 'process 4711' }],
    ]);
    const named = (name: string, label: string = '', info: object = {}): View => {
      return viewOfReport({ status: 'active', name, ...info }, { machine: { label }, socket });
    };
    const views = [named('t10', 'b'), named('t2', 'b'), named('t3', 'a'), named('t4', 'c', { asks: [ASKED] })];
    assert.deepEqual(views.sort(compareViews).map(({ name }) => name), ['t4', 't3', 't2', 't10']);
  });

  it('shows a step that the latest response has shown, and none that would only have begun since then', (t) => {
    const now = Date.now();
    t.mock.timers.enable({ apis: ['Date'], now });
    for (const [silence, steps] of [[500, ''], [4500, ', in a step for 4 s']] as const) {
      const system = systemOf({ status: 'active', heardAt: new Date(Date.now() - silence).toISOString() });
      assert.equal(viewOf(system).story, `active${steps}`);
      t.mock.timers.tick(2000);
      assert.equal(viewOf(system).story, `active${steps.replace('4', '6')}`);
      assert.match(describeInfo(system).join(), new RegExp(`active${steps.replace('4', '6')}$`));
    }
  });

  it('is safe to print, whatever a system sends', () => {
    const textsIn = (value: unknown): string[] => {
      return typeof value === 'string' ? [value] : Object.values(Object(value) as object).flatMap(textsIn);
    };
    for (const text of [HOSTILE, '', 7, null, {}, [HOSTILE], true, { length: 3 }]) {
      const fields = 'command state by reason value error arguments at message id seconds name pid host since heardAt';
      const entry = Object.fromEntries(fields.split(' ').map((name) => [name, text]));
      const lists = { holds: [entry, text], asks: [entry, text], commands: [entry, SAVE, { ...entry, ...FAILED }] };
      for (const status of ['active', 'paused', text]) {
        for (const detail of [text, { [String(text)]: text, run: text, of: 7 }]) {
          const view = viewOfReport({ ...entry, ...lists, detail, status }, { id: HOSTILE });
          for (const shown of textsIn(view)) assertHarmless(shown);
        }
      }
    }
    const late = { command: 'answer', state: 'done', message: 'Delete?', at: ago(0), seconds: 1e20 };
    const info = describeInfo(systemOf({ status: 'active', commands: [late] }));
    assert.equal(info.at(-1), 'commands  answer by somebody (Delete?)', 'an end that no clock shows');
  });
});

describe('viewOf on one line', LIMIT, () => {
  it('tells how long a step takes, which commands wait for what, and who paused the system', () => {
    const BEN = { by: 'ben@desk', reason: 'B leaks memory' };
    const paused = (holds: object): object => ({ status: 'paused', ...Object(holds)[0], holds });
    const heardAt = new Date(Date.now() - 4500).toISOString();
    const waiting = { command: 'pause', state: 'waiting' };
    const running = { command: 'evaluate', state: 'running', takenAt: heardAt };
    const texts: [info: object, text: string][] = [
      [{ status: 'active', heardAt, by: 'ana' }, 'active, in a step for 4 s'],
      [{ status: 'active', heardAt, commands: [waiting] }, 'active, in a step for 4 s; pause waits for the step'],
      [{ status: 'paused', commands: [waiting, waiting] }, 'paused; pause, pause wait'],
      [{ status: 'paused', heardAt, since: heardAt }, 'paused 4 s ago; the program has not responded for 4 s'],
      [{ status: 'active', heardAt, commands: [running] }, 'active, running evaluate for 4 s'],
      [{ status: 'active', commands: [running, waiting] }, 'active; pause waits for evaluate, which has run for 4 s'],
      [{ status: 'paused', by: 'ana', commands: [running, ...Array(17).fill(waiting)] },
        'paused by ana; 17 commands wait for evaluate, which has run for 4 s'],
      [{ status: 'active', commands: [{ ...running, takenAt: new Date().toISOString() }, waiting] },
        'active; pause waits for evaluate, which has run for 0 s'], // and waited before
      [{ status: 'paused', heardAt, by: 'ana', commands: [running] }, 'paused by ana; running evaluate for 4 s'],
      [{ status: 'pausing', commands: [running] }, 'pausing'],
      [{ status: 'pausing', by: 'itself', reason: 'budget' }, 'pausing by itself: budget'],
      [paused([BEN]), 'paused by ben@desk: B leaks memory'],
      [paused([BEN, {}]), 'paused by ben@desk: B leaks memory; and by others'],
      [paused([BEN, { by: 'ana', reason: 'night tariff' }, { by: 'eve' }]),
        'paused by ben@desk: B leaks memory; and by ana: night tariff; and by eve'],
      [paused([BEN, { by: 'ana' }, { by: 'eve' }, {}]),
        'paused by ben@desk: B leaks memory; and by ana; and by eve; and by others'], // too many to name
      [{ ...paused([BEN, { by: 'ana' }]), status: 'shutting down' }, 'shutting down by ben@desk: B leaks memory'],
      [paused([null, null, 7]), 'paused; and by others; and by others'], [paused({ length: 3 }), 'paused'],
      [paused([BEN, { by: [HOSTILE], reason: {} }, { by: HOSTILE }]),
        `paused by ben@desk: B leaks memory; and by others; and by ${HARMLESS}`],
    ];
    check(texts.map(([info, summary]): Row => [info, { summary }]));
  });

  it('begins the detail with the progress of a number from 0 to "of", and omits what control-run adds', () => {
    const run = { pid: 7, started: '2026-11-21', gpu: 'released' };
    const rows: [detail: unknown, text: string][] = [
      [{ loss: 0.3, step: 42, of: 100 }, '[####      ] 42 %, loss 0.3, step 42 of 100'],
      [{ episode: 3, step: 7.5, unit: 'k', of: 10 }, '[#######   ] 75 %, episode 3, step 7.5 of 10, unit k'],
      [{ step: 0, of: 1 }, '[          ] 0 %, step 0 of 1'],
      [{ step: 999, of: 1000 }, '[######### ] 99 %, step 999 of 1000'],
      [{ step: 3, of: 3 }, '[##########] 100 %, step 3 of 3'],
      [{ step: 1e300, of: 1e300 }, '[##########] 100 %, step 1e+300 of 1e+300'],
      [JSON.parse('{"__proto__": 1, "of": 2}'), '[#####     ] 50 %, __proto__ 1 of 2'],
      [{ gpu: 0.93, run }, 'gpu 0.93'], [{ run, gpu: 0.93, pid: 8 }, 'gpu 0.93, pid 8'], [{ run }, ''],
      [{ run: 'own', gpu: 0.93, pid: 8 }, 'run own, gpu 0.93, pid 8'], [{ run: { id: 'abc' } }, 'run {"id":"abc"}'],
      [{ run: { pid: 7 } }, 'run {"pid":7}'], [{ run: null, loss: 1 }, 'run null, loss 1'],
      [{ run: { pid: 'x', started: 'x' } }, 'run {"pid":"x","started":"x"}'],
    ];
    check(rows.map(([detail, text]): Row => [{ status: 'active', detail }, { detail: text }]));
    check([
      null, undefined, 7, 'step', [7, 100], {}, { step: 7 }, { of: 100 }, { of: 100, step: 7 }, { step: '7', of: 100 },
      { step: 7, of: '100' }, { step: 7, of: null }, { step: 0, of: 0 }, { step: -1, of: 2 }, { step: 3, of: 2 },
      { step: 1e308, of: 1e308 }, { step: 7, of: Infinity }, { step: NaN, of: 2 }, { step: 7, of: NaN },
      { step: -2, of: -1 },
    ].map((detail): Row => [{ status: 'active', detail }, { progress: null }]));
  });
});

it('describeInfo has the process, the saves, the detail and commands, but no end of a program as a command', () => {
  const run = { pid: 7, started: '2026-11-21', gpu: 'released' };
  const shutdown = { command: 'shutdown', by: 'itself', state: 'done', seconds: 0.01 };
  const value = { ended: 'exit code 7', exitCode: 7 };
  const save = { ...SAVE, value: 'states/1.json', by: 'ana', at: ago(3) };
  const info = describeInfo(systemOf({ name: 'train', pid: 9, host: 'gpu1', detail: { step: 1, of: 2, run }, commands: [
    { ...shutdown, reason: 'exit code 7', value }, { ...shutdown, reason: 'SIGTERM', value }, save, FAILED,
  ] }));
  assert.deepEqual(info.map((row) => row.replace(/\d\d:\d\d:\d\d/, 'CLOCK')), [
    'name      train (process 7 on gpu1)', 'status    unknown', // not control-run's own process
    'saved     states/1.json 3 min ago by ana; save failed 2 min ago: ENOSPC',
    'detail    [#####     ] 50 %, step 1 of 2', 'run       pid 7, started 2026-11-21, gpu released',
    'commands  ended by itself: exit code 7', '          shutdown by itself (SIGTERM) done in 0.01 s: exit code 7',
    '          CLOCK save-state by ana done in 0.50 s: states/1.json',
    '          CLOCK save-state failed after 0.50 s: ENOSPC',
  ]);
});
