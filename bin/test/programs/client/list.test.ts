// control-client list and what it shares with the board: the detail of a system, in parts.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { progressOf, splitDetail } from '../../../shared/describe.ts';
import { LIMIT } from '../../helpers.ts';

describe('progressOf', LIMIT, () => {
  it('is the number before "of"', () => {
    const rows: [detail: unknown, progress: ReturnType<typeof progressOf>][] = [
      [{ step: 7, of: 100 }, { name: 'step', done: 7, of: 100 }],
      [{ episode: 3, step: 7.5, unit: 'k', of: 100, loss: 2 }, { name: 'step', done: 7.5, of: 100 }],
      [{ step: 0, of: 1 }, { name: 'step', done: 0, of: 1 }],
      [{ step: 100, of: 100 }, { name: 'step', done: 100, of: 100 }],
      [JSON.parse('{"__proto__": 1, "of": 2}'), { name: '__proto__', done: 1, of: 2 }],
    ];
    for (const [detail, progress] of rows) assert.deepEqual(progressOf(detail), progress, JSON.stringify(detail));
  });

  it('is null without a number from 0 to "of"', () => {
    const others = [
      null, undefined, 7, 'step', [7, 100], {}, { step: 7 }, { of: 100 }, { of: 100, step: 7 }, { step: '7', of: 100 },
      { step: 7, of: '100' }, { step: 7, of: null }, { step: 0, of: 0 }, { step: -1, of: 2 }, { step: 3, of: 2 },
      { step: 7, of: Infinity }, { step: NaN, of: 2 }, { step: 7, of: NaN }, { step: -2, of: -1 },
    ];
    for (const detail of others) assert.equal(progressOf(detail), null, JSON.stringify(detail));
  });
});

describe('splitDetail', LIMIT, () => {
  it("separates the fields of the program and control-run's", () => {
    const run = {
      pid: 7, command: 'train.py', started: '2026-11-21T14:03:07.120Z', processes: 1, 'CPU seconds': 1.5,
      'memory MiB': 40, gpu: 'released', state: 'not written: ENOSPC', ended: 'exit code 1', restarts: 1,
      'last end': 'signal SIGKILL',
    };
    const own = { step: 7, of: 100, 'mean return': 497.1 };
    assert.deepEqual(splitDetail({ ...own, ...run }), { own, run });
    assert.deepEqual(Object.keys(splitDetail({ ...own, ...run }).own), Object.keys(own), 'in their order');
  });

  it('leaves a detail without a process and a command alone', () => {
    const details = [{ pid: 7, state: 'x' }, { command: 'x', ended: 1 }, { pid: '7', command: 'x' }, { pid: 1.5 }, {}];
    for (const own of details) {
      assert.deepEqual(splitDetail(own), { own, run: {} });
    }
    for (const detail of [null, undefined, 7, 'x', [1]]) assert.deepEqual(splitDetail(detail), { own: {}, run: {} });
  });
});
