// The samples of control-board: when it takes them, how many it keeps, and the time left that it derives.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { limitSamples, LIVE, RECORD, Series, steadyNow } from '../../../board/series.ts';
import { defer, startServer, until } from '../../helpers.ts';
import { createSystem, INFO, LIMIT, newsOf, startBoard } from './helpers.ts';
import type { TestContext } from 'node:test';
import type { BoardSystem } from '../../../board/system.ts';
import type { Period } from '../../../board/series.ts';
import type { Update } from '../../../board/state.ts';

const START = 1e9;

describe('--record', LIMIT, () => {
  it('takes a sample every 10 s while no page is open', async (t) => {
    const calls: number[] = [];
    const describe = (): object => ({ calls: calls.push(performance.now()) });
    const { port } = await startServer(t, { describe });
    const board = await startBoard(t, [`127.0.0.1:${port}`], ['--record']);
    await until(() => calls.length > 0 && Number(calls.at(-1)) - Number(calls[0]) > 9000);
    assert.ok(calls.length < 12, 'it was not read each second');
    let row: Update['detail'][number] | undefined;
    await until(async () => {
      row = (await newsOf(board)).systems[0]?.detail[0]; // with all samples
      return Number(row?.samples?.length) >= 2;
    });
    const [[first], [second]] = row?.samples as [[number, number], [number, number]];
    assert.ok(second - first >= 9500, `${second - first} ms`);
    assert.equal(row?.intervalMs, 10_000);
    assert.equal((await newsOf(board)).keepMs, 24 * 3_600_000);
  });

  it('is required for samples while no page is open', async (t) => {
    const { system, tick } = await driveSystem(t, LIVE);
    await tick(5000);
    assert.deepEqual(samplesOf(system.updateSince(0)), undefined);
    system.setWatched(true);
    await tick(1000);
    await tick(1000);
    system.setWatched(false);
    await tick(1000);
    assert.equal(samplesOf(system.updateSince(0))?.length, 2);
  });
});

describe('Samples', LIMIT, () => {
  it('are taken once per interval of a steady clock, however often the system is read', async (t) => {
    let wallMs = START;
    t.mock.method(Date, 'now', () => wallMs);
    for (const [period, stepMs, count] of [[LIVE, 100, 11], [LIVE, 990, 100], [RECORD, 1000, 11]] as const) {
      const { system, tick } = await driveSystem(t, period);
      system.setWatched(true);
      for (let step = 0; step < 101; step += 1) {
        wallMs += step % 7 === 0 ? 3_600_000 : -600_000; // the wall clock may jump
        await tick(stepMs);
      }
      const samples = samplesOf(system.updateSince(0)) ?? assert.fail();
      assert.ok(Math.abs(samples.length - count) <= 1, `${samples.length} in ${101 * stepMs} ms`);
      const coveredMs = Number(samples.at(-1)?.[0]) - Number(samples[0]?.[0]);
      assert.ok(coveredMs > 90 * stepMs && coveredMs < 102 * stepMs, `${coveredMs} of ${101 * stepMs} ms`);
    }
  });

  it('cover all numbers except a process id', async (t) => {
    const numbers = { x: 3, pid: 4, restarts: 5, run: { pid: 1, started: '', 'CPU seconds': 2, restarts: 6 } };
    const { system, tick } = await driveSystem(t, LIVE, () => numbers);
    system.setWatched(true);
    await tick(1000);
    const { detail } = system.updateSince(0);
    const shown = detail.map(({ name, isRun, samples }) => [name, isRun === true, samples?.length]);
    assert.deepEqual(shown, [
      ['x', false, 1], ['pid', false, undefined], ['restarts', false, 1], ['run.pid', true, undefined],
      ['started', true, undefined], ['CPU seconds', true, 1], ['run.restarts', true, 1],
    ]);
  });

  it('yield the time left while the program is active and makes progress', async (t) => {
    let step = 0;
    const detail = { loss: 1, step, of: 100 };
    const { system, tick, setStatus } = await driveSystem(t, LIVE, () => ({ ...detail, step: (step += 2) }));
    system.setWatched(true);
    await tick(1000);
    await tick(1000);
    assert.deepEqual(system.updateSince(0).progress, { name: 'step', done: 4, of: 100, leftMs: null });
    await tick(1000);
    const { leftMs, ...progress } = system.updateSince(0).progress ?? assert.fail();
    assert.deepEqual(progress, { name: 'step', done: 6, of: 100 });
    assert.ok(Math.abs(Number(leftMs) - 47_000) < 500, `${leftMs}`);
    await setStatus('paused');
    assert.equal(system.updateSince(0).progress?.leftMs, null);
    await tick(60_000);
    assert.equal(system.updateSince(0).progress?.leftMs, null);
    await setStatus('active');
    await tick(1000);
    await tick(1000);
    assert.ok(Number(system.updateSince(0).progress?.leftMs) < 60_000, 'the pause does not count');
    step = 0; // the progress restarts
    await tick(1000);
    assert.equal(system.updateSince(0).progress?.leftMs, null);
    detail.of = -1;
    await tick(1000);
    assert.equal(system.updateSince(0).progress, null);
  });

  it('are limited over all systems, and the oldest are dropped', () => {
    const seriesFrom = (start: number, count: number): Series => {
      const series = new Series(RECORD);
      for (let index = 0; index < count; index += 1) series.add(start + index * 10_000, index);
      return series;
    };
    const now = steadyNow();
    const all = [seriesFrom(now - 8_000_000, 100), seriesFrom(now - 2_000_000, 200), new Series(RECORD)];
    limitSamples(all, 300);
    assert.deepEqual(all.map(({ length }) => length), [100, 200, 0], 'few enough');
    limitSamples(all, 250);
    const [old = 0, young = 0] = all.map(({ length }) => length);
    assert.ok(old <= 50 && old > 30 && young === 200, `${old} and ${young}`);
    assert.equal(all[0]?.since(0).at(-1)?.[1], 99);
    limitSamples(all, 0);
    assert.deepEqual(all.map(({ length }) => length), [0, 0, 0]);
  });

  it('are kept for the time of the period, and those of a long series are thinned in order', async (t) => {
    for (const [period, hours, kept] of [[LIVE, 3, 1], [RECORD, 30, 24]] as const) {
      let count = 0;
      const { system, tick } = await driveSystem(t, period, () => ({ x: count += 1 }));
      system.setWatched(true);
      for (let ms = 0; ms < hours * 3_600_000; ms += period.intervalMs) await tick(period.intervalMs);
      const { detail: [row] } = system.updateSince(0);
      const { samples = [], intervalMs = 0 } = row ?? {};
      const [[first], [last, value]] = [samples[0] ?? assert.fail(), samples.at(-1) ?? assert.fail()];
      const coveredHours = (last - first) / 3_600_000;
      assert.ok(coveredHours <= kept && coveredHours > 0.99 * kept, `${coveredHours} hours`);
      assert.equal(value, count, 'the latest');
      assert.ok(samples.length <= 301 && samples.length >= 150, `${samples.length} samples`);
      const gaps = samples.slice(1).map(([time], index) => time - (samples[index]?.[0] ?? 0));
      assert.ok(Math.min(...gaps) > 0 && Math.max(...gaps) <= 2.5 * intervalMs, `gaps of ${Math.max(...gaps)}`);
    }
  });
});

interface Driven {
  system: BoardSystem;
  /** Advances the clock and then reads the system. */
  tick(ms: number): Promise<void>;
  setStatus(status: string): Promise<void>;
}

/** A system with a mocked clock. Its waiting request completes when the status changes. */
async function driveSystem(
  t: TestContext,
  period: Period,
  describe: () => object = () => ({ x: 1 }),
): Promise<Driven> {
  let clockMs = performance.now();
  t.mock.method(performance, 'now', () => clockMs);
  let status = 'active';
  let tag = 1;
  let change = defer();
  let detail: unknown = null;
  const system = createSystem(t, async (options) => {
    if (options.tag === String(tag)) await change.promise;
    if (options.signal === undefined) detail = describe(); // otherwise the latest one, as servers do
    const body = { ...INFO, status, detail };
    return { ok: true, value: status, body, tag: String(tag) };
  }, period);
  await until(() => system.state.status === 'active');
  return {
    system,
    tick(ms: number): Promise<void> {
      clockMs += ms;
      return system.read();
    },
    async setStatus(next: string): Promise<void> {
      status = next;
      tag += 1;
      change.resolve();
      change = defer();
      await until(() => system.state.status === next);
    },
  };
}

function samplesOf({ detail: [row] }: Update): [time: number, value: number][] | undefined {
  return row?.samples;
}
