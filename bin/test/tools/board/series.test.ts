// The samples of control-board: when it takes them, how many it keeps, and the time left that it derives.

import assert from 'node:assert/strict';
import { describe, it, type TestContext } from 'node:test';
import { defer } from '../../helpers.ts';
import { LIMIT, until } from '../../wait.ts';
import { createSystem, INFO } from './helpers.ts';
import type { BoardSystem, Update } from '../../../board/system.ts';

const START = 1e9;
const HOUR_MS = 3_600_000;

describe('Samples', LIMIT, () => {
  it('are taken only while a page is open', async (t) => {
    const { system, tick } = await driveSystem(t);
    await tick(5000);
    assert.deepEqual(samplesOf(system.updateSince(0)), undefined);
    system.setWatched(true);
    await tick(1000);
    await tick(1000);
    system.setWatched(false);
    await tick(1000);
    assert.equal(samplesOf(system.updateSince(0))?.length, 2);
  });

  it('are taken once per interval of a steady clock, however often the system is read', async (t) => {
    let wallMs = START;
    t.mock.method(Date, 'now', () => wallMs);
    for (const [stepMs, count] of [[100, 11], [990, 100]] as const) {
      const { system, tick } = await driveSystem(t);
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

  it('arrive once on a page, also while only ages are news', async (t) => {
    const { system, tick } = await driveSystem(t);
    let nowMs = Date.parse(String(INFO['since']));
    t.mock.method(Date, 'now', () => nowMs);
    system.setWatched(true);
    const received: number[] = [];
    let known = 0; // the version that the page has
    for (let second = 0; second < 5; second += 1) {
      nowMs += 1000;
      await tick(1000);
      assert.ok(system.version > known, system.state.when);
      received.push(...(samplesOf(system.updateSince(known)) ?? []).map(([time]) => time));
      known = Math.max(system.version, ...received) + 1; // as of the response
    }
    assert.equal(received.length, 5);
    assert.equal(new Set(received).size, 5);
  });

  it('cover all numbers except a process id', async (t) => {
    const numbers = { x: 3, pid: 4, restarts: 5, run: { pid: 1, started: '', 'CPU seconds': 2, restarts: 6 } };
    const { system, tick } = await driveSystem(t, () => numbers);
    system.setWatched(true);
    await tick(1000);
    const { fields } = system.updateSince(0);
    const shown = fields.map(({ name, isRun, samples }) => [name, isRun === true, samples?.length]);
    assert.deepEqual(shown, [
      ['x', false, 1], ['pid', false, undefined], ['restarts', false, 1], ['run.pid', true, undefined],
      ['started', true, undefined], ['CPU seconds', true, 1], ['run.restarts', true, 1],
    ]);
  });

  it('yield the time left while the program is active and makes progress', async (t) => {
    let step = 0;
    const detail = { loss: 1, step, of: 100 };
    const { system, tick, setStatus } = await driveSystem(t, () => ({ ...detail, step: (step += 2) }));
    system.setWatched(true);
    await tick(1000);
    await tick(1000);
    const shows = (done: number, text: string): void => {
      assert.deepEqual(system.updateSince(0).progress, { name: 'step', done, of: 100, text });
      assert.equal(system.secondsLeft === null, !text.includes('left'));
    };
    shows(4, '4 %');
    await tick(1000);
    shows(6, '6 %, 47 s left');
    assert.ok(Math.abs(Number(system.secondsLeft) - 47) < 0.5, `${system.secondsLeft}`);
    await setStatus('paused');
    shows(6, '6 %');
    await tick(60_000);
    shows(8, '8 %');
    await setStatus('active');
    await tick(1000);
    await tick(1000);
    shows(12, `12 %, ${Math.floor(Number(system.secondsLeft))} s left`);
    assert.ok(Number(system.secondsLeft) < 60, 'the pause does not count');
    step = 0; // the progress restarts
    await tick(1000);
    shows(2, '2 %');
    detail.of = -1;
    await tick(1000);
    assert.equal(system.updateSince(0).progress, null);
  });

  it('are kept for an hour, and those of a long series are thinned in order', async (t) => {
    let count = 0;
    const { system, tick } = await driveSystem(t, () => ({ x: count += 1 }));
    system.setWatched(true);
    for (let ms = 0; ms < 3 * HOUR_MS; ms += 1000) await tick(1000);
    const { fields: [field] } = system.updateSince(0);
    const { samples = [], intervalMs = 0 } = field ?? {};
    const [[first], [last, value]] = [samples[0] ?? assert.fail(), samples.at(-1) ?? assert.fail()];
    const coveredHours = (last - first) / HOUR_MS;
    assert.ok(coveredHours <= 1 && coveredHours > 0.99, `${coveredHours} hours`);
    assert.equal(value, count, 'the latest');
    assert.ok(samples.length <= 301 && samples.length >= 150, `${samples.length} samples`);
    const gaps = samples.slice(1).map(([time], index) => time - (samples[index]?.[0] ?? 0));
    assert.ok(Math.min(...gaps) > 0 && Math.max(...gaps) <= 2.5 * intervalMs, `gaps of ${Math.max(...gaps)}`);
  });
});

interface Driven {
  system: BoardSystem;
  /** Advances the clock and then reads the system. */
  tick(ms: number): Promise<void>;
  setStatus(status: string): Promise<void>;
}

/** A system with a mocked clock. Its waiting request completes when the status changes. */
async function driveSystem(t: TestContext, describe: () => object = () => ({ x: 1 })): Promise<Driven> {
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
    return { ok: true, value: status, original: status, fault: null, body, tag: String(tag) };
  });
  await until(() => system.state.status === 'active');
  return {
    system,
    tick(ms: number): Promise<void> {
      clockMs += ms;
      return system.readDetail();
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

function samplesOf({ fields: [field] }: Update): [time: number, value: number][] | undefined {
  return field?.samples;
}
