import assert from 'node:assert/strict';
import { once } from 'node:events';
import fs, { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, symlinkSync } from 'node:fs';
import { writeFileSync } from 'node:fs';
import { get } from 'node:http';
import { syncBuiltinESMExports } from 'node:module';
import { createServer } from 'node:net';
import { basename, dirname, join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus, VERSION, WebApiClient } from '../../../control.ts';
import { BOXES, boxOf, CART, FAILED, FORCE, Learner, move, nextWord, seedWords } from '../../demo/cartpole.ts';
import { Checkpoints, ignoredIn, latestIn, readCheckpoint } from '../../demo/checkpoints.ts';
import {
  getDetail, getInfo, lacksScript, lacksSockets, makeFolder, makeSocketPath, NO_TOKEN, runProgram, start, startProgram,
  TOKEN, until, WRONG_ACCESS,
} from '../helpers.ts';
import type { ControlCommand } from '../../../control.ts';
import type { Snapshot } from '../../demo/cartpole.ts';
import type { Ended, Running } from '../helpers.ts';
import type { IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';

const DEGREE = Math.PI / 180;
const lacksLinks = process.platform === 'win32' && 'Windows restricts symbolic links';
const lacksSignals = process.platform === 'win32' && 'Windows has no signals';
const NAME = /^\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}Z\.json$/;

// ───── The cart and the pole ─────────────────────────────────────────────────────────────────────────────────────

describe('move', () => {
  const STATES: readonly (readonly number[])[] = [
    [0, 0, 0, 0],
    [0.3, 1.2, 0.05, -0.7],
    [-2, -0.4, -0.2, 1.9],
    [1.1, -3, 0.15, 3.5],
  ];

  it('has the accelerations of an upright pole at rest, calculated by hand', () => {
    const cart = new Float64Array(4);
    move(cart, FORCE);
    near(cart, [0, (0.02 * 400) / 41, 0, (-0.02 * 600) / 41]);
  });

  it('satisfies the balance of forces and torques', () => {
    for (const state of STATES) {
      for (const force of [-FORCE, FORCE]) {
        const [, velocity, angle, turning] = state as [number, number, number, number];
        const cart = Float64Array.from(state);
        move(cart, force);
        const acceleration = ((cart[CART.VELOCITY] as number) - velocity) / 0.02;
        const angular = ((cart[CART.ANGULAR_VELOCITY] as number) - turning) / 0.02;
        const [sine, cosine] = [Math.sin(angle), Math.cos(angle)];
        const forces = force + 0.1 * 0.5 * (turning ** 2 * sine - angular * cosine) - 0.0005 * Math.sign(velocity);
        const torques = 0.1 * 9.8 * 0.5 * sine - 0.1 * acceleration * cosine * 0.5 - 0.000002 * turning;
        near([1.1 * acceleration, (4 / 3) * 0.1 * 0.5 ** 2 * angular], [forces, torques]);
      }
    }
  });

  it('moves with the velocities before the step', () => {
    for (const state of STATES) {
      const [position, velocity, angle, turning] = state as [number, number, number, number];
      const cart = Float64Array.from(state);
      move(cart, FORCE);
      near([cart[CART.POSITION], cart[CART.ANGLE]], [position + 0.02 * velocity, angle + 0.02 * turning]);
    }
  });
});

describe('boxOf', () => {
  it('has 162 boxes with different indices', () => {
    const indices = new Set<number>();
    for (const position of [-1, 0, 1]) {
      for (const velocity of [-1, 0, 1]) {
        for (const angle of [-9, -3, -0.5, 0.5, 3, 9]) {
          for (const turning of [-60, 0, 60]) indices.add(box(position, velocity, angle, turning));
        }
      }
    }
    assert.equal(indices.size, 162);
    assert.deepEqual([Math.min(...indices), Math.max(...indices)], [0, 161]);
    assert.equal(BOXES, 162);
  });

  it('has borders at ±0.8 m, ±0.5 m/s, 0, ±1 and ±6°, ±50°/s, and nowhere else', () => {
    assert.deepEqual(bordersOf((value) => box(value, 0, 0.5, 0), 2.4), [-0.8, 0.8]);
    assert.deepEqual(bordersOf((value) => box(0, value, 0.5, 0), 5), [-0.5, 0.5]);
    assert.deepEqual(bordersOf((value) => box(0, 0, value, 0), 12), [-6, -1, 0, 1, 6]);
    assert.deepEqual(bordersOf((value) => box(0, 0, 0.5, value), 200), [-50, 50]);
  });

  it('assigns a border to the box above it', () => {
    assert.equal(box(0.8, 0.5, 0.5, 0), box(1, 1, 0.5, 0));
    assert.equal(box(-0.8, -0.5, 0, 0), box(0, 0, 0.5, 0));
  });

  it('fails beyond 2.4 m and beyond 12°', () => {
    for (const sign of [-1, 1]) {
      assert.notEqual(box(sign * 2.4, 0, 0, 0), FAILED);
      assert.equal(box(sign * 2.4001, 0, 0, 0), FAILED);
      assert.notEqual(box(0, 0, sign * 11.999, 0), FAILED);
      assert.equal(box(0, 0, sign * 12.001, 0), FAILED);
    }
  });
});

describe('nextWord', () => {
  it('matches the reference implementation of xoshiro128**', () => {
    const words = Uint32Array.of(1, 2, 3, 4);
    const expected = [11520, 0, 5927040, 70819200, 2031721883, 1637235492, 1287239034, 3734860849, 3729100597];
    assert.deepEqual(expected.map(() => nextWord(words) >>> 0), expected);
  });

  it('never starts from four zeros', () => {
    for (const seed of [0, 1, 2 ** 31, 2 ** 32 - 1, 0x61c88647]) assert.ok(seedWords(seed).some((word) => word !== 0));
    assert.notDeepEqual(seedWords(0), seedWords(1));
  });
});

// ───── The learner ───────────────────────────────────────────────────────────────────────────────────────────────

type Invalid = readonly [field: keyof Snapshot, values: (valid: Snapshot) => unknown[], message: RegExp];

const INVALID: readonly Invalid[] = [
  ['format', () => ['', 1, null], /^it is not a checkpoint of control-demo$/],
  ['version', () => [0, 2, '1'], /^its "version" must be 1$/],
  ['seed', () => [-1, 2 ** 32, 1.5, '1', null], /^its "seed" must be an integer from 0 to 4294967295$/],
  ['steps', () => [-1, 0.5, '9', 2 ** 53, null], /^its "steps" must be an integer from 0 to 9007199254740991$/],
  ['steps', ({ steps }) => [0, 1e12, steps * 40], /^its "steps" must match its "episodes", "returns" and/],
  ['episodes', () => [-1, 0.5, '9', null], /^its "episodes" must be an integer from 0 to 9007199254740991$/],
  ['episodes', ({ steps }) => [steps, 100], /^its "steps" must match its "episodes"/],
  ['episodes', () => [0, 99], /^its "returns" must be an array of (0|99) numbers$/],
  ['episodeSteps', () => [-1, 500, 0.5, '9'], /^its "episodeSteps" must be an integer from 0 to 499$/],
  ['returns', ({ returns }) => [null, {}, [], [...returns, 9]], /^its "returns" must be an array of 100 numbers$/],
  ['returns', ({ returns }) => [changed(returns, '9')], /^its "returns" must be an array of 100 numbers$/],
  ['returns', ({ returns }) => [0, 501, 9.5].map((one) => changed(returns, one)), /^its "returns" must be from 1 to/],
  ['cart', ({ cart }) => ['', [], [0, 0, 0], [...cart, 0]], /^its "cart" must be an array of 4 numbers$/],
  ['cart', ({ cart }) => [changed(cart, null)], /^its "cart" must be an array of 4 numbers$/],
  ['cart', () => [[2.5, 0, 0, 0], [0, 0, -0.3, 0]], /^its "cart" must not be in a failed state$/],
  ['random', ({ random }) => [[], changed(random, Infinity)], /^its "random" must be an array of 4 numbers$/],
  ['random', () => [-4, 2 ** 32, 0.5].map((one) => [1, 2, 3, one]), /^its "random" must be integers from 0 to 4294/],
  ['random', () => [[0, 0, 0, 0]], /^its "random" must not be all zeros/],
  ['values', ({ values }) => [[], values.slice(1), changed(values, NaN)], /^its "values" must be an array of 324/],
  ['values', ({ values }) => [-0.1, 101].map((one) => changed(values, one)), /^its "values" must be from 0 to 100$/],
];

describe('Learner', () => {
  it('learns to balance the pole, for at most 500 steps', () => {
    const learner = new Learner(1);
    while (learner.episodes < 100) learner.step();
    const first = learner.meanReturn;
    assert.ok(first > 5 && first < 80, `the pole falls soon at first, got ${first}`);
    while (learner.steps < 22_000_000) learner.step();
    assert.ok(learner.meanReturn > 400, `later it almost never falls, got ${learner.meanReturn}`);
    assert.equal(Math.max(...learner.snapshot().returns), 500, 'an episode ends after 500 steps');
  });

  it('is deterministic for a seed, and differs between seeds', () => {
    assert.deepEqual(snapshotOf(5, 20_000), snapshotOf(5, 20_000));
    assert.notDeepEqual(snapshotOf(5, 20_000).values, snapshotOf(6, 20_000).values);
  });

  it('continues from a snapshot like the original, at any step', () => {
    for (const steps of [0, 1, 999, 1000, 30_000]) {
      const learner = Learner.restore(snapshotOf(9, steps));
      for (let more = 0; more < 50_000; more += 1) learner.step();
      assert.deepEqual(plain(learner), snapshotOf(9, steps + 50_000));
    }
  });

  it('counts steps, episodes and the mean return of the last 100 episodes', () => {
    const learner = new Learner(3);
    assert.deepEqual([learner.steps, learner.episodes, learner.meanReturn], [0, 0, 0]);
    const lengths: number[] = [];
    for (let last = 0; lengths.length < 250; ) {
      learner.step();
      if (learner.episodes === lengths.length) continue;
      lengths.push(learner.steps - last);
      last = learner.steps;
      const recent = lengths.slice(-100);
      near([learner.meanReturn], [recent.reduce((sum, length) => sum + length) / recent.length]);
      assert.equal(Learner.restore(plain(learner)).meanReturn, learner.meanReturn);
    }
    assert.deepEqual(plain(learner).returns, lengths.slice(-100));
  });

  it('rejects invalid snapshots with the reason', () => {
    const valid = snapshotOf(4, 30_000);
    const foreign = /^it is not a checkpoint of control-demo$/;
    for (const value of [null, undefined, 7, 'control-demo', [], {}, { format: 'other' }]) {
      assert.throws(() => Learner.restore(value), { message: foreign });
    }
    for (const [field, values, message] of INVALID) {
      for (const value of values(valid)) {
        assert.throws(() => Learner.restore({ ...valid, [field]: value }), { message }, `${field}: ${value}`);
      }
      const { [field]: _, ...incomplete } = valid;
      assert.throws(() => Learner.restore(incomplete), Error, `without ${field}`);
    }
    assert.deepEqual(plain(Learner.restore(valid)), valid);
  });
});

// ───── Checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────

describe('Checkpoints', () => {
  const FOREIGN = [
    'notes.json', 'other.tmp', '2020-01-01.json', '2020-01-01T00-00-00.000Z.json.bak', 'x2020-01-01T00-00-00.000Z.json',
    '2020-01-01T00-00-00.000Z.json.swp.tmp', '2020-99-01T00-00-00.000Z.json',
  ];

  it('writes JSON to a file named after the time', (t) => {
    setClock(t, '2026-11-20T10:22:33.123Z');
    const folder = makeFolder(t);
    const path = new Checkpoints(folder, 10).save({ answer: 42 });
    assert.equal(path, join(folder, '2026-11-20T10-22-33.123Z.json'));
    assert.equal(readFileSync(path, 'utf8'), '{"answer":42}\n');
    assert.deepEqual(readCheckpoint(path), { answer: 42 });
  });

  it('uses ascending names, even in the same millisecond and when the clock is set back', (t) => {
    setClock(t, '2026-12-31T23:59:59.998Z');
    const folder = makeFolder(t);
    const checkpoints = new Checkpoints(folder, 100);
    const paths = Array.from({ length: 20 }, (_, number) => checkpoints.save({ number }));
    setClock(t, '2026-12-31T12:00:00.000Z');
    paths.push(checkpoints.save({ number: 20 }));
    assert.deepEqual(readdirSync(folder).map((name) => join(folder, name)).sort(), paths);
    assert.equal(new Set(paths).size, 21);
    assert.deepEqual(readCheckpoint(latestIn(folder) as string), { number: 20 });
  });

  it('finds the newest checkpoint also after the clock was set back by years', (t) => {
    setClock(t, '2026-12-31T00:00:00.000Z');
    const folder = makeFolder(t);
    const checkpoints = new Checkpoints(folder, 2);
    const early = [1, 2].map((number) => checkpoints.save({ number }));
    setClock(t, '2020-01-01T00:00:00.000Z');
    const late = [3, 4, 5].map((number) => {
      const path = checkpoints.save({ number });
      assert.equal(latestIn(folder), path);
      return path;
    });
    const left = [...late.slice(-2), ...early].map((path) => basename(path));
    assert.deepEqual(readdirSync(folder).sort(), left);
  });

  it('has no latest one if the folder does not exist or contains none', (t) => {
    const folder = makeFolder(t);
    assert.equal(latestIn(folder), null);
    assert.equal(latestIn(join(folder, 'missing')), null);
    writeFileSync(join(folder, 'file'), '');
    assert.throws(() => latestIn(join(folder, 'file')), { message: 'it is not a folder' });
  });

  it('ignores names more than a day later than now', (t) => {
    const folder = makeFolder(t);
    setClock(t, '2026-11-20T10:22:33.123Z');
    const planted = ['2026-11-21T10-22-33.124Z.json', '9999-12-31T23-59-59.999Z.json'];
    for (const name of planted) writeFileSync(join(folder, name), name);
    const why = `'${join(folder, planted[0] as string)}' and 1 more: the time in the name of a checkpoint must be`;
    const limit = 'at most a day later than now';
    assert.throws(() => latestIn(folder), { message: `it contains no checkpoint other than ${why} ${limit}` });
    assert.equal(ignoredIn(folder), `${why} ${limit}`);
    const checkpoints = new Checkpoints(folder, 2);
    const paths = [1, 2, 3].map((number) => checkpoints.save({ number }));
    assert.equal(basename(paths[0] as string), '2026-11-20T10-22-33.123Z.json');
    assert.equal(latestIn(folder), paths[2]);
    const left = [...paths.slice(-2).map((path) => basename(path)), ...planted];
    assert.deepEqual(readdirSync(folder).sort(), left);
    for (const name of planted) assert.equal(readFileSync(join(folder, name), 'utf8'), name);
  });

  it('has no notice without such names, and counts names up to a day later', (t) => {
    const folder = makeFolder(t);
    setClock(t, '2026-11-20T10:22:33.123Z');
    const name = '2026-11-21T10-22-33.123Z.json';
    writeFileSync(join(folder, name), '{}');
    assert.equal(ignoredIn(folder), null);
    assert.equal(latestIn(folder), join(folder, name));
    setClock(t, '2026-11-20T10:22:34.000Z');
    const path = new Checkpoints(folder, 1).save({ number: 1 });
    assert.deepEqual([latestIn(folder), readdirSync(folder)], [path, ['2026-11-21T10-22-33.124Z.json']]);
  });

  it('never follows a symbolic link', { skip: lacksLinks }, (t) => {
    const folder = makeFolder(t);
    const victim = join(makeFolder(t), 'victim');
    writeFileSync(victim, 'precious');
    setClock(t, '2026-11-20T10:22:33.123Z');
    const name = '2026-11-20T10-22-33.123Z.json';
    symlinkSync(victim, join(folder, name));
    symlinkSync(victim, join(folder, `${name}.tmp`));
    const checkpoints = new Checkpoints(folder, 1);
    checkpoints.prepare();
    assert.equal(readFileSync(victim, 'utf8'), 'precious');
    const path = checkpoints.save({ number: 1 });
    assert.equal(path, join(folder, name));
    assert.deepEqual([fs.lstatSync(path).isFile(), readCheckpoint(path)], [true, { number: 1 }]);
    assert.equal(readFileSync(victim, 'utf8'), 'precious');
  });

  it('never writes to a file that exists, whatever its name', { skip: lacksLinks }, (t) => {
    const folder = makeFolder(t);
    const victim = join(makeFolder(t), 'victim');
    writeFileSync(victim, 'precious');
    const checkpoints = new Checkpoints(folder, 1);
    const real = fs.writeFileSync;
    let planted = 0;
    t.mock.method(fs, 'writeFileSync', (path: string, ...others: [string, object]) => {
      symlinkSync(victim, path);
      planted += 1;
      real(path, ...others);
    });
    syncBuiltinESMExports();
    try {
      assert.throws(() => checkpoints.prepare(), { code: 'EEXIST' });
      assert.throws(() => checkpoints.save({ number: 1 }), { code: 'EEXIST' });
    } finally {
      t.mock.restoreAll();
      syncBuiltinESMExports();
    }
    assert.deepEqual([planted, readFileSync(victim, 'utf8')], [2, 'precious']);
  });

  it('keeps the newest checkpoints and never changes other files', (t) => {
    const folder = makeFolder(t);
    for (const name of FOREIGN) writeFileSync(join(folder, name), name);
    mkdirSync(join(folder, '2020-01-01T00-00-00.000Z.json'));
    const checkpoints = new Checkpoints(folder, 3);
    const paths = Array.from({ length: 7 }, (_, number) => checkpoints.save({ number }));
    const expected = [...FOREIGN, '2020-01-01T00-00-00.000Z.json', ...paths.slice(-3).map((path) => basename(path))];
    assert.deepEqual(readdirSync(folder).sort(), expected.sort());
    for (const name of FOREIGN) assert.equal(readFileSync(join(folder, name), 'utf8'), name);
    assert.equal(latestIn(folder), paths.at(-1));
  });

  const OLD = [0, 3600, 7200, 10_800, 14_400, 18_000]; // seconds
  const BURST = Array.from({ length: 20 }, (_, index) => 20_000 + index * 3);
  const ENDLESS = Array.from({ length: 200 }, (_, index) => 20_000 + index);
  const SET_BACK = [7201, 7202, 7203, 7204, 7205, 7206, 7207];
  const RETAINED: readonly [what: string, keep: number, seconds: readonly number[], left: readonly number[]][] = [
    ['as many older ones as of a burst', 6, [...OLD, ...BURST], [...OLD.slice(-3), ...BURST.slice(-3)]],
    ['one more of a burst if the number is odd', 5, [...OLD, ...BURST], [...OLD.slice(-2), ...BURST.slice(-3)]],
    ['an older one and the newest', 2, [...OLD, ...BURST], [...OLD.slice(-1), ...BURST.slice(-1)]],
    ['only the newest of a burst if it keeps one', 1, [...OLD, ...BURST], BURST.slice(-1)],
    ['older ones in a burst of minutes', 6, [...OLD, ...ENDLESS], [...OLD.slice(-3), ...ENDLESS.slice(-3)]],
    ['all older ones if they are few', 6, [0, 3600, ...BURST], [0, 3600, ...BURST.slice(-4)]],
    ['the newest of a burst if nothing is older', 6, BURST, BURST.slice(-6)],
    ['the newest if the burst is small', 6, [...OLD, ...BURST.slice(0, 2)], [...OLD.slice(-4), ...BURST.slice(0, 2)]],
    ['the newest without a burst', 3, [0, 61, 122, 183, 244], [122, 183, 244]],
    ['the newest of a whole minute', 2, [0, 30, 60], [30, 60]],
    ['the oldest of more than a minute', 2, [0, 30, 60.001], [0, 60.001]],
    ['older ones after the clock was set back', 6, [...OLD, ...SET_BACK], [7200, 10_800, 14_400, 7205, 7206, 7207]],
  ];
  for (const [what, keep, seconds, left] of RETAINED) {
    it(`keeps ${what}`, (t) => {
      const folder = makeFolder(t);
      const checkpoints = new Checkpoints(folder, keep);
      for (const [index, number] of seconds.entries()) {
        setClock(t, new Date(Date.UTC(2026, 10, 20) + number * 1000).toISOString());
        assert.equal(checkpoints.save({ number }), latestIn(folder));
        assert.equal(readdirSync(folder).length, Math.min(index + 1, keep));
      }
      assert.deepEqual(numbersIn(folder), left);
    });
  }

  it('can keep a single checkpoint', (t) => {
    const folder = makeFolder(t);
    const checkpoints = new Checkpoints(folder, 1);
    checkpoints.save({ number: 1 });
    const path = checkpoints.save({ number: 2 });
    assert.deepEqual(contentsOf(folder), new Map([[basename(path), '{"number":2}\n']]));
  });

  it('ignores and deletes the leftovers of a crash', (t) => {
    const folder = makeFolder(t);
    const checkpoints = new Checkpoints(folder, 10);
    const complete = checkpoints.save({ number: 1 });
    writeFileSync(join(folder, '2099-01-01T00-00-00.000Z.json.tmp'), '{"numb');
    writeFileSync(join(folder, '2020-01-01T00-00-00.000Z.json.0123456789abcdef.tmp'), '{"numb');
    assert.equal(latestIn(folder), complete);
    const next = checkpoints.save({ number: 2 });
    assert.deepEqual(readdirSync(folder).sort(), [basename(complete), basename(next)]);
  });

  it('never leaves an incomplete checkpoint, whenever it crashes', (t) => {
    let crashes = 0;
    for (let crashed = true; crashed; crashes += 1) {
      const folder = makeFolder(t);
      const checkpoints = new Checkpoints(folder, 3);
      for (const number of [1, 2, 3]) checkpoints.save({ number });
      const restart = crashAt(t, crashes + 1);
      try {
        checkpoints.save({ number: 4 });
        crashed = false;
      } catch (error) {
        assert.equal((error as Error).message, 'crash');
      }
      restart();
      const numbers = numbersIn(folder);
      assert.ok(['1,2,3', '1,2,3,4', '2,3,4'].includes(String(numbers)), `crash ${crashes + 1} leaves ${numbers}`);
      checkpoints.save({ number: 5 });
      assert.deepEqual(numbersIn(folder), [...numbers, 5].slice(-3));
      assert.deepEqual(readdirSync(folder).filter((name) => !NAME.test(name)), []);
    }
    assert.ok(crashes > 3, `it was crashed at ${crashes} moments`);
  });

  it('renames the file after its content is on disk, and then syncs the folder', (t) => {
    const folder = makeFolder(t);
    const calls: string[] = [];
    const note = (name: 'writeFileSync' | 'renameSync' | 'fsyncSync'): void => {
      const real = fs[name] as (...all: unknown[]) => unknown;
      t.mock.method(fs, name, (...all: unknown[]) => {
        calls.push((all[2] as { flush?: boolean } | undefined)?.flush ? `${name} flush` : name);
        return real(...all);
      });
    };
    for (const name of ['writeFileSync', 'renameSync', 'fsyncSync'] as const) note(name);
    syncBuiltinESMExports();
    t.after(syncBuiltinESMExports);
    new Checkpoints(folder, 3).save({ number: 1 });
    t.mock.restoreAll();
    const renamed = calls.indexOf('renameSync');
    assert.deepEqual([calls[0], calls.slice(renamed)], ['writeFileSync flush', ['renameSync', 'fsyncSync']]);
  });

  it('leaves nothing behind when the disk is full', (t) => {
    const folder = makeFolder(t);
    const checkpoints = new Checkpoints(folder, 2);
    for (const number of [1, 2]) checkpoints.save({ number });
    const before = contentsOf(folder);
    const real = fs.writeFileSync;
    t.mock.method(fs, 'writeFileSync', (path: string, text: string) => {
      real(path, text.slice(0, 5));
      throw new Error('ENOSPC: no space left on device, write');
    });
    syncBuiltinESMExports();
    assert.throws(() => checkpoints.save({ number: 3 }), { message: /^ENOSPC/ });
    t.mock.restoreAll();
    syncBuiltinESMExports();
    assert.deepEqual(contentsOf(folder), before);
  });

  it('creates its folder, also after it was deleted', (t) => {
    const folder = join(makeFolder(t), 'a', 'b');
    const checkpoints = new Checkpoints(folder, 3);
    checkpoints.prepare();
    assert.deepEqual(readdirSync(folder), []);
    rmSync(folder, { recursive: true });
    const path = checkpoints.save({ number: 1 });
    assert.equal(latestIn(folder), path);
  });
});

// ───── The program ───────────────────────────────────────────────────────────────────────────────────────────────

describe('control-demo', { timeout: 60_000 }, () => {
  it('prints its seed, the address of the web API and how to control it', async (t) => {
    const demo = await startDemo(t, '--seed', '4294967295');
    const line = demo.output().split('\n')[0] as string;
    const control = `control it from another terminal: control-console --port ${demo.port}`;
    const address = `web API at http://localhost:${demo.port}`;
    assert.equal(line, `Q-learning on CartPole, seed 4294967295 · ${address} · ${control}`);
  });

  it('prints the --host option for the console if it is not the default', async (t) => {
    const demo = await startDemo(t, '--host', '127.0.0.1');
    const control = `http://127.0.0.1:${demo.port} · control it from another terminal: control-console `;
    assert.ok(demo.output().includes(`${control}--host 127.0.0.1 --port ${demo.port}\n`), demo.output());
  });

  it('picks a random seed by default', async (t) => {
    const seeds = await Promise.all([startDemo(t), startDemo(t)]);
    const [one, other] = seeds.map((demo) => /seed (\d+) /.exec(demo.output())?.[1]);
    assert.notEqual(one, other);
  });

  it('prints episode, mean return, steps per second and status', async (t) => {
    const demo = await startDemo(t);
    await demo.client.pause();
    await demo.shows(/paused\n/);
    const line = demo.output().split('\n').at(-2) as string;
    assert.match(line, /^episode [\d,]+ · mean return \d+\.\d · \d+(\.\d+)? M steps\/s · paused$/);
  });

  it('stands still while paused, and continues when resumed', async (t) => {
    const demo = await startDemo(t);
    await demo.client.pause();
    await demo.client.waitFor(SystemStatus.PAUSED);
    const first = await save(demo);
    await sleep(200);
    const second = await save(demo);
    assert.deepEqual(second, first);
    await demo.client.resume();
    await demo.client.waitFor(SystemStatus.ACTIVE);
    const third = await save(demo);
    assert.ok(third.steps > first.steps);
    await demo.client.shutdown();
    await demo.ended;
    assert.deepEqual(statusesIn(demo), ['active', 'paused', 'active', 'paused', 'active', 'shutting down']);
  });

  it('excludes pauses from the steps per second', async (t) => {
    const demo = await startDemo(t);
    await sleep(600);
    await demo.client.pause();
    await sleep(1500);
    await demo.client.resume();
    await demo.client.waitFor(SystemStatus.ACTIVE);
    await demo.client.shutdown();
    await demo.ended;
    const speeds = demo.output().matchAll(/([\d.]+) M steps\/s · (?:paused|shutting down)/g);
    const [before, after] = [...speeds].map((one) => Number(one[1])) as [number, number];
    assert.ok(after > 0.6 * before, `${before} before and ${after} after`); // with the pause it would be a quarter
  });

  it('saves a last checkpoint on shutdown and exits with 0', async (t) => {
    const demo = await startDemo(t, '--seed', '5');
    await demo.client.shutdown();
    const { code, stdout, stderr } = await demo.ended;
    assert.deepEqual([code, stderr], [0, '']);
    const path = join(demo.folder, readdirSync(demo.folder)[0] as string);
    const { steps } = readCheckpoint(path) as Snapshot;
    const [saved, progress, stopped, rest] = stdout.split('\n').slice(-4);
    assert.equal(saved, `saved ${path}`);
    assert.match(progress as string, / · shutting down$/);
    assert.equal(stopped, `stopped at step ${steps.toLocaleString('en-US')}; continue with --load ${path}`);
    assert.equal(rest, '');
  });

  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    it(`does the same on ${signal}, also while paused`, async (t) => {
      for (const pause of [false, true]) {
        const demo = await startDemo(t);
        if (pause) await demo.client.pause();
        if (pause) await demo.client.waitFor(SystemStatus.PAUSED);
        demo.child.kill(signal);
        const { code, stderr } = await demo.ended;
        assert.deepEqual([code, stderr], [0, '']);
        assert.deepEqual(savedIn(demo).map((path) => basename(path)), readdirSync(demo.folder));
        assert.equal(savedIn(demo).length, 1);
      }
    });
  }

  it('saves on SIGUSR2 and continues', { skip: lacksSignals }, async (t) => {
    const demo = await startDemo(t);
    demo.child.kill('SIGUSR2');
    await demo.shows(/^saved /m);
    const { steps } = readCheckpoint(savedIn(demo)[0] as string) as Snapshot;
    assert.ok((await shutDown(demo)).steps > steps);
  });

  it('tells a client that waits the path of the checkpoint', async (t) => {
    const demo = await startDemo(t);
    for (const saves of [1, 2]) {
      const [statusCode, { state, value }] = await post(demo, 'save-state');
      assert.equal(savedIn(demo).length, saves);
      assert.deepEqual([statusCode, state, value], [200, 'done', savedIn(demo).at(-1)]);
    }
    const [statusCode, { value }] = await post(demo, 'shutdown');
    assert.deepEqual([statusCode, value], [200, latestIn(demo.folder)]);
    assert.equal((await demo.ended).code, 0);
  });

  it('describes in /api/info what it is doing', async (t) => {
    const demo = await startDemo(t, '--seed', '5');
    await demo.client.pause();
    await demo.client.waitFor(SystemStatus.PAUSED);
    const detail = await getDetail(demo.port) as Record<string, number>;
    const { name } = await getInfo(demo.port);
    const { steps, episodes } = await save(demo);
    const mean = Learner.restore(snapshotOf(5, steps)).meanReturn;
    const speed = detail['steps per second'] as number;
    assert.equal(name, 'demo');
    assert.deepEqual(Object.entries(detail), [
      ['episode', episodes], ['mean return', Number(mean.toFixed(1))], ['step', steps], ['steps per second', speed],
    ]);
    assert.ok(speed > 0 && speed === Number(speed.toPrecision(3)), `${speed}`);
  });

  it('has the same result with and without an interruption', async (t) => {
    const whole = await startDemo(t, '--seed', '7');
    await sleep(500);
    const end = await shutDown(whole);
    assert.deepEqual(end, savedBy(snapshotOf(7, end.steps)));

    const first = await startDemo(t, '--seed', '7');
    await sleep(200);
    await save(first);
    const { steps } = await shutDown(first);
    const second = await startDemo(t, '--load', 'latest', '--states-dir', first.folder);
    const from = `seed 7, from step ${steps.toLocaleString('en-US')} ·`;
    assert.ok(second.output().includes(from), `no '${from}' in ${second.output()}`);
    await sleep(200);
    await second.client.shutdown();
    await second.ended;
    const last = readCheckpoint(latestIn(first.folder) as string) as Snapshot;
    assert.ok(last.steps > steps);
    assert.deepEqual(last, savedBy(snapshotOf(7, last.steps)));
  });

  it('reports a checkpoint from the future once, and loads the latest other one', async (t) => {
    const folder = makeFolder(t);
    const planted = join(folder, '9999-12-31T23-59-59.999Z.json');
    writeFileSync(planted, JSON.stringify(snapshotOf(8, 12_345)));
    writeFileSync(join(folder, '2020-01-01T00-00-00.000Z.json'), JSON.stringify(snapshotOf(9, 23_456)));
    const demo = await startDemo(t, '--load', 'latest', '--states-dir', folder);
    assert.match(demo.output(), /seed 9, from step 23,456 ·/);
    await save(demo);
    await demo.client.shutdown();
    const { code, stderr } = await demo.ended;
    const why = 'the time in the name of a checkpoint must be at most a day later than now';
    assert.deepEqual([code, stderr], [0, `control-demo: ignoring '${planted}': ${why}\n`]);
    assert.equal(latestIn(folder), savedIn(demo).at(-1));
  });

  it('--load latest begins anew if there is no checkpoint, and says so', async (t) => {
    const parent = makeFolder(t);
    const empty = join(parent, 'empty');
    mkdirSync(empty);
    writeFileSync(join(empty, '2026-01-01T00-00-00.000Z.json.tmp'), '{"form');
    for (const folder of [empty, join(parent, 'missing')]) {
      const demo = await startDemo(t, '--load', 'latest', '--states-dir', folder);
      assert.match(demo.output(), /, seed \d+ · web API/);
      await demo.client.shutdown();
      const { code, stderr } = await demo.ended;
      assert.deepEqual([code, stderr], [0, `control-demo: '${folder}' contains no checkpoint: beginning anew\n`]);
      assert.equal(readdirSync(folder).length, 1);
    }
  });

  it('--until ends as soon as the mean return of 100 episodes is reached, and not before there are 100', async (t) => {
    for (const goal of [1, 60.5]) {
      const learner = new Learner(6);
      while (learner.episodes < 100 || learner.meanReturn < goal) learner.step();
      const folder = makeFolder(t);
      const options = ['--seed', '6', '--until', `${goal}`, '--states-dir', folder];
      for (const where of [['--port', '0'], ['--no-web-api']]) {
        const { code, stdout, stderr } = await runProgram(t, 'demo', [...options, ...where]);
        assert.deepEqual([code, stderr], [0, '']);
        const path = latestIn(folder) as string;
        assert.deepEqual(readCheckpoint(path), savedBy(plain(learner)));
        const what = `step ${learner.steps.toLocaleString('en-US')}, with a mean return of ${learner.meanReturn}`;
        assert.equal(stdout.split('\n').at(-2), `stopped at ${what}; continue with --load ${path}`);
      }
    }
  });

  it('--until ends at once if a loaded checkpoint has reached it', async (t) => {
    const learner = new Learner(6);
    while (learner.episodes < 100) learner.step();
    const path = join(makeFolder(t), 'mine');
    writeFileSync(path, JSON.stringify(learner.snapshot()));
    const folder = makeFolder(t);
    const options = ['--port', '0', '--load', path, '--until', '2', '--states-dir', folder];
    assert.equal((await runProgram(t, 'demo', options)).code, 0);
    assert.equal((readCheckpoint(latestIn(folder) as string) as Snapshot).steps, learner.steps + 1);
  });

  it('--until changes nothing if a command comes before', async (t) => {
    const demo = await startDemo(t, '--until', '500');
    await demo.client.shutdown();
    assert.match((await demo.ended).stdout, /\nstopped at step [\d,]+; continue with [^\n]+\n$/);
  });

  it('--allow-host permits further names of the host', async (t) => {
    const names = ['localhost', 'box.lan', 'trainer', 'a.trainer', 'x.svc', 'other'];
    const demos = [await startDemo(t), await startDemo(t, '--allow-host', 'box.lan', '--allow-host=.svc')];
    const expected = [[200, 403, 403, 403, 403, 403], [200, 200, 403, 403, 200, 403]];
    for (const [index, { port }] of demos.entries()) {
      assert.deepEqual(await Promise.all(names.map((name) => requestAs(name, port))), expected[index]);
    }
  });

  it('--load accepts any checkpoint', async (t) => {
    const folder = makeFolder(t);
    const path = join(folder, 'mine');
    writeFileSync(path, JSON.stringify(snapshotOf(8, 12_345)));
    const demo = await startDemo(t, '--load', path);
    assert.match(demo.output(), /seed 8, from step 12,345 ·/);
    assert.deepEqual(await shutDown(demo).then(({ seed }) => seed), 8);
  });

  it('--keep limits the checkpoints', async (t) => {
    const demo = await startDemo(t, '--keep', '2');
    for (let saves = 0; saves < 3; saves += 1) await save(demo);
    const last = await shutDown(demo);
    const names = readdirSync(demo.folder);
    assert.deepEqual(names.map((name) => join(demo.folder, name)), savedIn(demo).slice(-2));
    assert.deepEqual(readCheckpoint(latestIn(demo.folder) as string), last);
  });

  it('continues when a save fails, and tells a client that waits why', async (t) => {
    const demo = await startDemo(t);
    blockSaves(demo);
    const [statusCode, { error }] = await post(demo, 'save-state');
    assert.equal(statusCode, 500);
    assert.match(error as string, /^save-state failed: EEXIST: .*mkdir/);
    await demo.client.waitFor(SystemStatus.ACTIVE);
    rmSync(demo.folder);
    await shutDown(demo);
    assert.match((await demo.ended).stderr, failedSaves(1));
  });

  it('pauses if the last save fails after a command, and exits with 1 if the next last save fails, too', async (t) => {
    const demo = await startDemo(t);
    blockSaves(demo);
    const [statusCode, { error }] = await post(demo, 'shutdown');
    assert.equal(statusCode, 500);
    assert.match(error as string, /^shutdown failed: .*EEXIST: /);
    await demo.client.waitFor(SystemStatus.PAUSED);
    assert.doesNotMatch(demo.output(), /stopped at/);
    await demo.client.shutdown();
    const { code, stdout, stderr } = await demo.ended;
    assert.equal(code, 1);
    assert.match(stderr, failedSaves(2));
    assert.match(stdout, /\nstopped at step [\d,]+\n$/);
  });

  it('exits with 0 if the last save succeeds at the second attempt', async (t) => {
    const demo = await startDemo(t);
    blockSaves(demo);
    assert.equal((await post(demo, 'shutdown'))[0], 500);
    rmSync(demo.folder);
    const [statusCode, { value }] = await post(demo, 'shutdown');
    const { code, stdout, stderr } = await demo.ended;
    assert.deepEqual([statusCode, code], [200, 0]);
    assert.match(stderr, failedSaves(1));
    assert.ok(stdout.endsWith(`; continue with --load ${value}\n`), stdout);
  });

  it('exits with 1 and one line if the last save fails after a signal', { skip: lacksSignals }, async (t) => {
    const demo = await startDemo(t);
    blockSaves(demo);
    demo.child.kill('SIGTERM');
    const { code, stdout, stderr } = await demo.ended;
    assert.equal(code, 1);
    assert.match(stderr, failedSaves(1));
    assert.match(stdout, /\nstopped at step [\d,]+\n$/);
  });

  it('exits with 1 and one line if the last save fails after --until, without a web API', async (t) => {
    const folder = makeFolder(t);
    const demo = startProgram(t, 'demo', ['--no-web-api', '--until', '475', '--seed', '1', '--states-dir', folder]);
    await demo.shows(/active\n/);
    blockSaves({ folder });
    const { code, stdout, stderr } = await demo.ended;
    assert.equal(code, 1);
    assert.match(stderr, failedSaves(1));
    assert.match(stdout, /\nstopped at step [\d,]+, with a mean return of 4[\d.]+\n$/);
  });

  it('runs without a web API', async (t) => {
    const folder = makeFolder(t);
    const demo = startProgram(t, 'demo', ['--no-web-api', '--seed', '1', '--states-dir', folder]);
    await demo.shows(/active\n/);
    assert.match(demo.output(), /^Q-learning on CartPole, seed 1 · no web API; Ctrl-C or SIGTERM shuts it down\n/);
    demo.child.kill('SIGTERM');
    assert.equal((await demo.ended).code, 0);
    assert.equal(readdirSync(folder).length, 1);
  });

  it('exits with 1 and one line when the port is in use', async (t) => {
    const port = await takePort(t);
    const { code, stdout, stderr } = await runProgram(t, 'demo', ['--port', `${port}`, '--states-dir', makeFolder(t)]);
    assert.deepEqual([code, stdout], [1, '']);
    assert.match(stderr, /^control-demo: Cannot serve at localhost:\d+: .*EADDRINUSE.*\n$/);
  });

  it('--help prints all options, --version the version', async (t) => {
    const help = await runProgram(t, 'demo', ['--help']);
    assert.deepEqual([help.code, help.stderr], [0, '']);
    const options = [
      'host', 'port', 'allow-host', 'no-web-api', 'until', 'seed', 'load', 'save-every', 'states-dir', 'keep', 'help',
      'version',
    ];
    for (const option of options) assert.match(help.stdout, new RegExp(`^ .*--${option}\\b`, 'm'));
    for (const signal of ['Ctrl-C', 'SIGTERM', 'SIGHUP', 'SIGUSR2']) assert.ok(help.stdout.includes(signal), signal);
    assert.ok(help.stdout.split('\n').every((line) => line.length <= 120));
    assert.deepEqual(await runProgram(t, 'demo', ['--version']), { code: 0, stdout: `${VERSION}\n`, stderr: '' });
  });

  const [major, minor] = process.versions.node.split('.').map(Number) as [number, number];
  const stripsTypes = major > 22 || (major === 22 && minor >= 18);
  it('runs without a build', { skip: !stripsTypes && 'needs Node 22.18' }, async (t) => {
    const { ended } = start(t, process.execPath, ['bin/demo.ts', '--version']);
    assert.deepEqual(await ended, { code: 0, stdout: `${VERSION}\n`, stderr: '' });
  });
});

describe('control-demo: pauses and saves that nobody requests', { concurrency: 4, timeout: 60_000 }, () => {
  it('starts paused if it was saved while paused, by whatever saves it, and active if not', async (t) => {
    const first = await startDemo(t, '--seed', '7');
    assert.equal((await save(first)).paused, false);
    await first.client.pause();
    await first.client.waitFor(SystemStatus.PAUSED);
    const { steps, paused } = await save(first);
    assert.equal(paused, true);
    first.child.kill('SIGKILL');
    await first.ended;

    const second = await startDemo(t, '--load', 'latest', '--states-dir', first.folder);
    await second.client.waitFor(SystemStatus.PAUSED);
    await second.shows(/ paused\n/);
    const { by, reason, commands } = await getInfo(second.port);
    assert.deepEqual([by, reason], ['itself', 'started paused']);
    assert.deepEqual(commands.map(({ command, state }) => [command, state]), [['pause', 'done']]);
    assert.equal(getStep(await getDetail(second.port)), steps);
    second.child.kill('SIGTERM'); // its last save tells that it was paused, too
    assert.equal((await second.ended).code, 0);
    assert.doesNotMatch(second.output(), / active\n/);
    assert.deepEqual(readCheckpoint(latestIn(first.folder) as string), savedBy(snapshotOf(7, steps), true));

    const third = await startDemo(t, '--load', 'latest', '--states-dir', first.folder);
    await third.client.waitFor(SystemStatus.PAUSED);
    await third.client.resume();
    await third.client.waitFor(SystemStatus.ACTIVE);
    await until(async () => getStep(await getDetail(third.port)) > steps);
    assert.equal((await shutDown(third)).paused, false);
    const fourth = await startDemo(t, '--load', 'latest', '--states-dir', first.folder);
    assert.deepEqual((await getInfo(fourth.port)).commands, []);
    assert.equal((await shutDown(fourth)).paused, false);
  });

  it('is active without a web API, and if the checkpoint does not tell whether it was paused', async (t) => {
    const path = join(makeFolder(t), 'mine');
    writeFileSync(path, JSON.stringify(snapshotOf(8, 12_345)));
    const old = await startDemo(t, '--load', path);
    assert.deepEqual((await getInfo(old.port)).commands, []);
    assert.equal((await shutDown(old)).paused, false);
    writeFileSync(path, JSON.stringify(savedBy(snapshotOf(8, 12_345), true)));
    const alone = startProgram(t, 'demo', ['--no-web-api', '--load', path, '--states-dir', makeFolder(t)]);
    await alone.shows(/ active\n/);
    alone.child.kill('SIGTERM');
    const { code, stderr } = await alone.ended;
    assert.deepEqual([code, stderr], [0, '']);
    assert.doesNotMatch(alone.output(), / paused\n/);
  });

  it('--save-every saves when the last save was that long ago, but not while paused', async (t) => {
    const everyMs = 1200;
    const begunAt = performance.now();
    const demo = await startDemo(t, '--save-every', `${everyMs / 60_000}`);
    const saved = (): string[] => readdirSync(demo.folder).filter((name) => NAME.test(name)).sort();
    await until(() => saved().length >= 2);
    assert.ok(performance.now() - begunAt >= 2 * everyMs, 'not earlier');
    for (const { command, by, reason } of (await getInfo(demo.port)).commands) {
      assert.deepEqual([command, by, reason], ['save-state', 'itself', '--save-every']);
    }
    for (const name of saved()) assert.equal((readCheckpoint(join(demo.folder, name)) as Saved).paused, false);

    await sleep(everyMs / 2); // so that the next save would come before its time, if that of a client did not count
    const askedAt = performance.now();
    const [, { value }] = await post(demo, 'save-state');
    await until(() => saved().at(-1) as string > basename(`${value}`));
    assert.ok(performance.now() - askedAt >= everyMs, 'after the last save of any cause');

    await post(demo, 'pause');
    const before = saved();
    await sleep(2 * everyMs); // nothing is to happen
    assert.deepEqual(saved(), before);
    await post(demo, 'resume');
    await until(() => String(saved().at(-1)) > String(before.at(-1))); // there may not be more: old ones are deleted
    await shutDown(demo);
  });

  it('--save-every saves without a web API, too', { skip: lacksSignals }, async (t) => {
    const folder = makeFolder(t);
    const demo = startProgram(t, 'demo', ['--no-web-api', '--save-every', '.002', '--states-dir', folder]);
    await demo.shows(/(^saved [^]*){2}/m);
    demo.child.kill('SIGTERM');
    const { code, stderr } = await demo.ended;
    assert.deepEqual([code, stderr], [0, '']);
    assert.ok(readdirSync(folder).length >= 3);
  });
});

// ───── Usage errors ──────────────────────────────────────────────────────────────────────────────────────────────

describe('control-demo with an invalid checkpoint', { concurrency: 4, timeout: 60_000 }, () => {
  const TEXT = JSON.stringify(snapshotOf(2, 5000));
  const FILES: readonly [what: string, content: string | Buffer, message: RegExp][] = [
    ['empty', '', /it is truncated or not JSON/],
    ['truncated', TEXT.slice(0, -30), /it is truncated or not JSON/],
    ['binary', Buffer.from([0, 255, 10, 13, 128]), /it is truncated or not JSON/],
    ['foreign', '{"name":"runtime-control","version":"0.1.0"}', /it is not a checkpoint of control-demo/],
    ['null', 'null', /it is not a checkpoint of control-demo/],
    ['of a later version', TEXT.replace('"version":1', '"version":2'), /its "version" must be 1/],
    ['damaged', TEXT.replace('"seed":2', '"seed":1e999'), /its "seed" must be an integer from 0 to 4294967295/],
    ['paused as a number', TEXT.replace('"seed":2', '"seed":2,"paused":1'), /its "paused" must be true or false/],
    ['paused as null', TEXT.replace('"seed":2', '"seed":2,"paused":null'), /its "paused" must be true or false/],
    ['enormous', ' '.repeat(2_000_000) + TEXT, /it is too large for a checkpoint/],
  ];

  for (const [what, content, message] of FILES) {
    it(`rejects one that is ${what}, by its name and as the latest`, async (t) => {
      const folder = makeFolder(t);
      const good = join(folder, '2020-01-01T00-00-00.000Z.json');
      writeFileSync(good, TEXT);
      const path = join(folder, '2020-01-02T00-00-00.000Z.json');
      writeFileSync(path, content);
      await rejects(t, folder, path, `'${path}'`, message);
      const expected = `continue with --load '${good}', the newest good checkpoint`;
      await rejects(t, folder, 'latest', `'${path}'`, message, expected);
    });
  }

  it('names the newest checkpoint that can be loaded, past all that cannot', async (t) => {
    const folder = makeFolder(t);
    const contents = [TEXT, TEXT, ...FILES.map(([, content]) => content)];
    const paths = contents.map((_, index) => join(folder, `2020-01-01T00-00-${10 + index}.000Z.json`));
    for (const [index, path] of paths.entries()) writeFileSync(path, contents[index] as string | Buffer);
    writeFileSync(join(folder, '9999-01-01T00-00-00.000Z.json'), TEXT);
    writeFileSync(join(folder, 'mine.json'), TEXT);
    const expected = `continue with --load '${paths[1]}', the newest good checkpoint`;
    await rejects(t, folder, 'latest', `'${paths.at(-1)}'`, /it is too large for a checkpoint/, expected);
  });

  it('says so if no checkpoint can be loaded', async (t) => {
    const folder = makeFolder(t);
    const paths = FILES.map((_, index) => join(folder, `2020-01-01T00-00-${10 + index}.000Z.json`));
    for (const [index, [, content]] of FILES.entries()) writeFileSync(paths[index] as string, content);
    const expected = `'${folder}' contains no good checkpoint: begin anew without --load`;
    await rejects(t, folder, 'latest', `'${paths.at(-1)}'`, /it is too large for a checkpoint/, expected);
  });

  it('rejects a path that is not a file', async (t) => {
    const folder = makeFolder(t);
    const missing = join(folder, 'missing.json');
    await rejects(t, folder, missing, `'${missing}'`, /no such file/);
    await rejects(t, folder, folder, `'${folder}'`, /it is a folder/);
    if (existsSync('/dev/zero')) await rejects(t, folder, '/dev/zero', `'/dev/zero'`, /it is not a regular file/);
  });

  it('rejects latest if the folder contains only checkpoints from the future, or is none', async (t) => {
    const folder = makeFolder(t);
    writeFileSync(join(folder, '9999-01-01T00-00-00.000Z.json'), TEXT);
    const future = /it contains no checkpoint other than '/;
    await rejects(t, folder, 'latest', `the latest checkpoint in '${folder}'`, future);
    const file = join(folder, 'file');
    writeFileSync(file, '');
    await rejects(t, file, 'latest', `the latest checkpoint in '${file}'`, /it is not a folder/);
  });
});

describe('control-demo with invalid options', { concurrency: 4, timeout: 60_000 }, () => {
  const SEED = /--seed must be an integer from 0 to 4294967295, got '.*'/;
  const KEEP = /--keep must be an integer from 1 to 1000000, got '.*'/;
  const EVERY = /--save-every must be a number of minutes above 0 and at most 35791, got '.*'/;
  const PORT = /--port must be an integer from 0 to 65535, got '.*'/;
  const UNTIL = /--until must be a number from 1 to 500, got '.*'/;
  const NAME_FORM = /--allow-host must be like 'box\.lan', '\.lan' or '\*', got '.*'/;
  const CASES: readonly (readonly [options: readonly string[], message: RegExp])[] = [
    ...['0', '0.99', '500.1', '-5', '1e2', 'x', '', 'NaN'].map((one) => [[`--until=${one}`], UNTIL] as const),
    ...['', 'a b', 'http://box', 'box:80', '[::1]', '*.lan', 'a\nb'].map((one) => {
      return [['--allow-host', 'box.lan', `--allow-host=${one}`], NAME_FORM] as const;
    }),
    ...['-1', '4294967296', '1.5', '1e3', 'x', '', ' 1', 'NaN'].map((one) => [[`--seed=${one}`], SEED] as const),
    ...['0', '-1', '2.5', '1000001', 'all', ''].map((one) => [[`--keep=${one}`], KEEP] as const),
    ...['0', '0.0', '-1', '35791.1', '1e3', '0x5', '5 min', 'Infinity', ''].map((one) => {
      return [[`--save-every=${one}`], EVERY] as const;
    }),
    ...['-1', '65536', '80.5', 'http', ''].map((one) => [[`--port=${one}`], PORT] as const),
    [['--host='], /--host must be a host name or an IP address, got ''/],
    [['--host', 'http://localhost'], /--host must be a host name or an IP address, got 'http:\/\/localhost'/],
    [['--states-dir='], /--states-dir must not be empty/],
    [['--load='], /--load must not be empty/],
    [['--load'], /--load requires a value/],
    [['--seed', '1', '--load', 'latest'], /--seed and --load are mutually exclusive: a checkpoint contains its seed/],
    [['--no-web-api=1'], /'--no-web-api' does not take an argument/],
    [['--speed', '1'], /unknown option '--speed'/],
    [['latest'], /unexpected argument 'latest'/],
  ];

  for (const [options, message] of CASES) {
    it(`rejects ${options.join(' ')}`, async (t) => {
      const folder = join(makeFolder(t), 'states');
      const place = options[0]?.startsWith('--states-dir') === true ? [] : ['--states-dir', folder];
      const { code, stdout, stderr } = await runProgram(t, 'demo', [...place, ...options]);
      assert.deepEqual([code, stdout], [2, '']);
      assert.match(stderr, oneLine(message));
      assert.ok(!existsSync(folder));
    });
  }

  it('rejects a --states-dir that cannot be created or written', async (t) => {
    const file = join(makeFolder(t), 'file');
    writeFileSync(file, '');
    const folders = [file, join(file, 'states'), ...(process.platform === 'linux' ? ['/proc', '/proc/states'] : [])];
    for (const folder of folders) {
      const { code, stdout, stderr } = await runProgram(t, 'demo', ['--port', '0', '--states-dir', folder]);
      assert.deepEqual([code, stdout], [2, '']);
      assert.match(stderr, oneLine(/cannot write to '.*': E[A-Z]+: .*; --states-dir requires a writable folder/));
      assert.ok(stderr.includes(`'${folder}'`));
    }
  });
});

// ───── With a Unix socket or a token ─────────────────────────────────────────────────────────────────────────────

describe('control-demo with a Unix socket or a token', {
  concurrency: 4, skip: lacksSockets(), timeout: 60_000,
}, () => {
  it('is controlled over the socket with the token, which no program prints', async (t) => {
    const [folder, socketPath] = [makeFolder(t), makeSocketPath(t)];
    const options = ['--socket', socketPath, '--states-dir', folder];
    const demo = startProgram(t, 'demo', options, { CONTROL_TOKEN: TOKEN });
    await demo.shows(/ active\n/);
    const [line] = /^Q-learning .*$/m.exec(demo.output()) as RegExpExecArray;
    const control = `control it from another terminal: control-console --socket ${socketPath}`;
    assert.equal(line.slice(line.indexOf(' · ')), ` · web API at unix:${socketPath} · ${control}`);
    assert.equal(statSync(socketPath).mode, 0o140600);

    const all: Ended[] = [];
    const runOn = async (name: string, args: string[], input = '', token: string = TOKEN): Promise<Ended> => {
      all.push(await runProgram(t, name, ['--socket', socketPath, ...args], input, { CONTROL_TOKEN: token }));
      return all.at(-1) as Ended;
    };
    assert.deepEqual(await runOn('client', ['status']), { code: 0, stdout: 'active\n', stderr: '' });
    assert.deepEqual(await runOn('client', ['pause', '--wait']), { code: 0, stdout: 'paused\n', stderr: '' });
    const refused = { code: 1, stdout: '', stderr: `control-client: ${NO_TOKEN}\n` };
    assert.deepEqual(await runOn('client', ['resume'], '', `not-${TOKEN}`), refused);
    assert.deepEqual(await runOn('client', ['status']), { code: 0, stdout: 'paused\n', stderr: '' });
    const ended = await runOn('console', [], 'resume\nshutdown\ny\n');
    assert.deepEqual([ended.code, ended.stderr], [0, '']);
    assert.match(ended.stdout, /active \(\d+\.\d s\)\n.*offline: .*\.json \(\d+\.\d s\)\n$/);

    const { code, stdout, stderr } = await demo.ended;
    assert.deepEqual([code, stderr], [0, '']);
    assert.deepEqual(readdirSync(dirname(socketPath)), []);
    all.push({ code, stdout, stderr });
    assert.ok(!JSON.stringify(all).includes(TOKEN));
  });

  it('requires the token on a port', async (t) => {
    const folder = makeFolder(t);
    const running = startProgram(t, 'demo', ['--port', '0', '--states-dir', folder], { CONTROL_TOKEN: TOKEN });
    const { port, client } = await connect(folder, running);
    const reply = await client.request('shutdown');
    assert.deepEqual([reply.ok, !reply.ok && reply.error], [false, NO_TOKEN]);
    const args = ['--port', `${port}`, 'shutdown'];
    assert.equal((await runProgram(t, 'client', args, '', { CONTROL_TOKEN: TOKEN })).stdout, 'ok\n');
    assert.equal((await running.ended).code, 0);
    assert.ok(!running.output().includes(TOKEN));
  });

  it('names its socket in a folder after itself, and replaces that of a killed program', async (t) => {
    const folder = join(makeFolder(t), 'sockets'); // the program makes it
    const options = ['--socket', `${folder}/`, '--states-dir', makeFolder(t)];
    const killed = startProgram(t, 'demo', options);
    await killed.shows(/ active\n/);
    assert.deepEqual(readdirSync(folder), [`demo-${killed.child.pid}.sock`]);
    killed.child.kill('SIGKILL');
    await killed.ended;
    const next = startProgram(t, 'demo', options);
    await next.shows(/ active\n/);
    const socketPath = join(folder, `demo-${next.child.pid}.sock`);
    await until(() => readdirSync(folder).join() === basename(socketPath));
    assert.ok(next.output().includes(`web API at unix:${socketPath} · `), next.output());
    assert.match(next.output(), new RegExp(`control-console --socket ${socketPath}\\n`));
    const args = ['shutdown', '--wait', '--socket', socketPath];
    assert.deepEqual(await runProgram(t, 'client', args), { code: 0, stdout: 'offline\n', stderr: '' });
    assert.equal((await next.ended).code, 0);
    assert.deepEqual(readdirSync(folder), []);
  });

  it('replaces the socket of a killed program, and ignores an empty CONTROL_TOKEN', async (t) => {
    const socketPath = makeSocketPath(t);
    const options = ['--socket', socketPath, '--states-dir', makeFolder(t)];
    const killed = startProgram(t, 'demo', options);
    await killed.shows(/ active\n/);
    killed.child.kill('SIGKILL');
    await killed.ended;
    assert.ok(existsSync(socketPath));
    const next = startProgram(t, 'demo', options, { CONTROL_TOKEN: '' });
    await next.shows(/ active\n/);
    const client = new WebApiClient(undefined, undefined, { socketPath });
      assert.equal(await client.shutdown(), 'ok');
    const { code, stderr } = await next.ended;
    assert.deepEqual([code, stderr], [0, '']);
  });

  it('exits with 1 and one line when it cannot use the socket', async (t) => {
    const [taken, file, nowhere] = [makeSocketPath(t), makeSocketPath(t), join(makeSocketPath(t), 'control.sock')];
    const server = createServer().listen(taken);
    t.after(() => server.close());
    await new Promise((resolve) => server.once('listening', resolve));
    writeFileSync(file, 'precious');
    const CASES: readonly [socketPath: string, message: RegExp][] = [
      [taken, /[^\n]*server[^\n]*/],
      [file, /[^\n]*not a socket[^\n]*/],
      [nowhere, /ENOENT: [^\n]*/],
      [`${nowhere}/`, /ENOENT: [^\n]*/],
    ];
    await Promise.all(CASES.map(async ([socketPath, message]) => {
      const ended = await runProgram(t, 'demo', ['--socket', socketPath, '--states-dir', makeFolder(t)]);
      assert.deepEqual([ended.code, ended.stdout], [1, '']);
      assert.match(ended.stderr, new RegExp(`^control-demo: Cannot serve at ${socketPath}.*: ${message.source}\\n$`));
    }));
    assert.ok(statSync(taken).isSocket());
    assert.equal(readFileSync(file, 'utf8'), 'precious');
  });

  for (const [what, args, token, line] of WRONG_ACCESS) {
    it(`rejects ${what}`, async (t) => {
      const folder = join(makeFolder(t), 'states');
      const ended = await runProgram(t, 'demo', ['--states-dir', folder, ...args], '', { CONTROL_TOKEN: token });
      assert.deepEqual(ended, { code: 2, stdout: '', stderr: `control-demo: ${line}\n` });
      assert.ok(!existsSync(folder));
    });
  }

  it('--help mentions --socket and CONTROL_TOKEN, not the token', async (t) => {
    const { stdout } = await runProgram(t, 'demo', ['--help'], '', { CONTROL_TOKEN: TOKEN });
    assert.match(stdout, /^ {2}--socket PATH .*[^]*\bCONTROL_TOKEN\b/m);
    assert.ok(!stdout.includes(TOKEN));
  });
});

// ───── On a terminal ─────────────────────────────────────────────────────────────────────────────────────────────

describe('control-demo on a terminal', { skip: lacksScript(), timeout: 60_000 }, () => {
  it('redraws the progress line in place, and freezes it while paused', async (t) => {
    const demo = await startOnTerminal(t, 100);
    await demo.shows(/(\r[^\r\n]* active\x1b\[K){5}/);
    await demo.client.pause();
    await demo.shows(/\r[^\r\n]* paused\x1b\[K$/);
    const frozen = demo.output();
    await sleep(500);
    assert.equal(demo.output(), frozen);
    await demo.client.resume();
    await demo.shows(/ paused\x1b\[K(\r[^\r\n]* active\x1b\[K){3}/);
    assert.equal(demo.output().split('\n').length, 2, 'one line for the address, one for all the progress');
  });

  it('prints the path of a checkpoint above the progress line', async (t) => {
    const demo = await startOnTerminal(t, 100);
    await demo.client.pause();
    await demo.shows(/ paused\x1b\[K$/);
    const frozen = demo.output().split('\r').at(-1);
    await demo.client.saveState();
    await demo.shows(/\n\r[^\r\n]* paused\x1b\[K$/);
    const path = join(demo.folder, readdirSync(demo.folder)[0] as string);
    const expected = `\r${frozen}\r\x1b[Ksaved ${path}\r\n\r${frozen}`;
    assert.equal(demo.output().slice(-expected.length), expected);
  });

  it('ends with complete lines and exit code 0', async (t) => {
    const demo = await startOnTerminal(t, 100);
    await demo.client.shutdown();
    const { code, stdout } = await demo.ended;
    assert.equal(code, 0);
    const stopped = /\r[^\r\n]* · shutting down\x1b\[K\r\nstopped at step [^\r\n]*; continue with --load [^\r\n]*\r\n$/;
    assert.match(stdout, stopped);
  });

  it('continues when the terminal is gone, and saves', async (t) => {
    const folder = makeFolder(t);
    const command = `setsid -w '${process.execPath}' dist/bin/demo.js --port 0 --states-dir '${folder}'`; // no SIGHUP
    const demo = await connect(folder, start(t, 'script', ['-qec', command, '/dev/null']));
    t.after(() => demo.client.shutdown());
    demo.child.kill('SIGKILL');
    await demo.ended;
    const countSaves = (): number => readdirSync(folder).filter((name) => NAME.test(name)).length;
    for (const saves of [1, 2]) {
      await demo.client.saveState();
      await until(() => countSaves() === saves);
    }
    blockSaves({ folder });
    assert.equal((await post(demo, 'save-state'))[0], 500);
    rmSync(folder);
    await demo.client.saveState();
    await until(() => existsSync(folder) && countSaves() === 1);
  });

  it('truncates the line to the width of the terminal', async (t) => {
    const demo = await startOnTerminal(t, 30);
    await demo.shows(/(\r[^\r\n]*\x1b\[K){4}/);
    const drawn = [...demo.output().matchAll(/\r([^\r\n]+)\x1b\[K/g)].map((one) => one[1] as string);
    assert.ok(drawn.every((line) => line.startsWith('episode ') && line.length === 29), drawn.join('|'));
  });
});

// ───── Helpers ───────────────────────────────────────────────────────────────────────────────────────────────────

interface DemoRun extends Running {
  folder: string;
  port: number;
  client: WebApiClient;
}

/** Starts the program, in a new folder unless the options name one, and waits until it runs. */
function startDemo(t: TestContext, ...options: string[]): Promise<DemoRun> {
  const named = options.indexOf('--states-dir');
  const folder = named < 0 ? makeFolder(t) : options.splice(named, 2)[1] as string;
  return connect(folder, startProgram(t, 'demo', ['--port', '0', '--states-dir', folder, ...options]));
}

/** The same in a pseudo-terminal. */
function startOnTerminal(t: TestContext, columns: number): Promise<DemoRun> {
  const folder = makeFolder(t);
  const command = `exec '${process.execPath}' dist/bin/demo.js --port 0 --states-dir '${folder}'`;
  return connect(folder, start(t, 'script', ['-qec', `stty cols ${columns} rows 24; ${command}`, '/dev/null']));
}

async function connect(folder: string, running: Running): Promise<DemoRun> {
  await running.shows(/ (active|paused)\n|\x1b\[K/);
  const port = Number(/http:\/\/[\w.]+:(\d+)/.exec(running.output())?.[1]);
  const client = new WebApiClient('localhost', port);
  return { ...running, folder, port, client };
}

type Saved = Snapshot & { paused: boolean };

/** Saves and returns the checkpoint. */
async function save(demo: DemoRun): Promise<Saved> {
  const { length } = savedIn(demo);
  await demo.client.saveState();
  await demo.shows(new RegExp(`(saved [^]*){${length + 1}}\\n`));
  return readCheckpoint(savedIn(demo)[length] as string) as Saved;
}

/** Sends a command and waits until it is done. */
async function post({ port }: DemoRun, command: ControlCommand): Promise<[number, Record<string, unknown>]> {
  const options = { method: 'POST', headers: { Prefer: 'wait=20' } };
  const response = await fetch(`http://localhost:${port}/api/${command}`, options);
  return [response.status, await response.json() as Record<string, unknown>];
}

/** The status code of a request for another name of the host. */
async function requestAs(host: string, port: number): Promise<number | undefined> {
  const options = { host: 'localhost', port, path: '/api/status', agent: false, headers: { host } };
  const [response] = await once(get(options), 'response') as [IncomingMessage];
  response.resume();
  return response.statusCode;
}

/** Makes every save fail, until the file is removed. */
function blockSaves({ folder }: { folder: string }): void {
  rmSync(folder, { recursive: true });
  writeFileSync(folder, '');
}

/** All of stderr after that many failed saves. */
function failedSaves(count: number): RegExp {
  return new RegExp(`^(control-demo: cannot save a checkpoint: EEXIST: .*\\n){${count}}$`);
}

/** Shuts down and returns the last checkpoint. */
async function shutDown(demo: DemoRun): Promise<Saved> {
  await demo.client.shutdown();
  assert.equal((await demo.ended).code, 0);
  return readCheckpoint(savedIn(demo).at(-1) as string) as Saved;
}

function savedIn(demo: DemoRun): string[] {
  return [...demo.output().matchAll(/^saved (.*)\n/gm)].map((one) => one[1] as string);
}

function getStep(detail: unknown): number {
  return (detail as { step: number }).step;
}

/** The statuses of the progress lines without consecutive duplicates: a slow run prints extra lines. */
function statusesIn(demo: DemoRun): string[] {
  const all = [...demo.output().matchAll(/steps\/s · (.*)\n/g)].map((one) => one[1] as string);
  return all.filter((status, index) => status !== all[index - 1]);
}

async function rejects(
  t: TestContext,
  folder: string,
  load: string,
  what: string,
  message: RegExp,
  expected: string = '--load requires a checkpoint of control-demo, or latest for the newest one in --states-dir',
): Promise<void> {
  const before = contentsOf(folder);
  const taken = `${await takePort(t)}`; // listening would fail with another error
  const options = ['--load', load, '--states-dir', folder, '--port', taken];
  const { code, stdout, stderr } = await runProgram(t, 'demo', options);
  assert.deepEqual([code, stdout], [2, '']);
  assert.match(stderr, oneLine(message));
  assert.ok(stderr.startsWith(`control-demo: cannot load ${what}: `) && stderr.endsWith(`; ${expected}\n`), stderr);
  assert.deepEqual(contentsOf(folder), before);
}

function oneLine(message: RegExp): RegExp {
  return new RegExp(`^control-demo: [^\\n]*${message.source}[^\\n]*\\n$`);
}

/** A port in use. */
async function takePort(t: TestContext): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  t.after(() => server.close());
  return (server.address() as AddressInfo).port;
}

/** The files of a folder and their contents; null if the folder does not exist. */
function contentsOf(folder: string): Map<string, string> | null {
  if (!statSync(folder, { throwIfNoEntry: false })?.isDirectory()) return null;
  return new Map(readdirSync(folder).map((name) => [name, readFileSync(join(folder, name), 'latin1')]));
}

/** The numbers in the checkpoints of a folder; throws if a checkpoint is incomplete. */
function numbersIn(folder: string): number[] {
  const names = readdirSync(folder).filter((name) => NAME.test(name)).sort();
  return names.map((name) => (readCheckpoint(join(folder, name)) as { number: number }).number);
}

function setClock(t: TestContext, time: string): void {
  t.mock.restoreAll(); // the end of the test would restore a second mock to the first
  t.mock.method(Date, 'now', () => Date.parse(time));
}

/**
 * Simulates a crash: a write at that moment is truncated, and all later changes of the disk fail. Returns a function
 * that ends the simulation.
 */
function crashAt(t: TestContext, moment: number): () => void {
  let changes = 0;
  let isInside = false; // Node implements some of these with others
  for (const name of ['writeFileSync', 'renameSync', 'rmSync', 'openSync', 'fsyncSync'] as const) {
    const real = fs[name] as (...all: unknown[]) => unknown;
    t.mock.method(fs, name, (...all: unknown[]) => {
      if (isInside) return real(...all);
      changes += 1;
      if (changes > moment || (changes === moment && name !== 'writeFileSync')) throw new Error('crash');
      isInside = true;
      try {
        return real(...(changes === moment ? [all[0], String(all[1]).slice(0, 5)] : all));
      } finally {
        isInside = false;
        if (changes === moment) throw new Error('crash');
      }
    });
  }
  syncBuiltinESMExports();
  return () => {
    t.mock.restoreAll();
    syncBuiltinESMExports();
  };
}

/** The state of a learner with that seed after that many steps. */
function snapshotOf(seed: number, steps: number): Snapshot {
  const learner = new Learner(seed);
  while (learner.steps < steps) learner.step();
  return plain(learner);
}

/** The snapshot as read from a file: JSON has no −0. */
function plain(learner: Learner): Snapshot {
  return JSON.parse(JSON.stringify(learner.snapshot()));
}

/** What the program writes: the snapshot, and whether it was paused. */
function savedBy(snapshot: Snapshot, paused: boolean = false): Saved {
  return { ...snapshot, paused };
}

function changed(list: number[], value: unknown): unknown[] {
  return [value, ...list.slice(1)];
}

/** The box of a state given in metres and degrees. */
function box(position: number, velocity: number, angle: number, turning: number): number {
  return boxOf(Float64Array.of(position, velocity, angle * DEGREE, turning * DEGREE));
}

/** The borders of boxes between −limit and limit, to a hundredth. */
function bordersOf(boxAt: (value: number) => number, limit: number): number[] {
  const borders: number[] = [];
  for (let hundredths = -limit * 100 + 1; hundredths < limit * 100; hundredths += 1) {
    if (boxAt((hundredths - 0.5) / 100) !== boxAt((hundredths + 0.5) / 100)) borders.push(hundredths / 100);
  }
  return borders;
}

function near(actual: ArrayLike<number | undefined>, expected: readonly number[]): void {
  assert.equal(actual.length, expected.length);
  for (const [index, value] of expected.entries()) {
    assert.ok(Math.abs((actual[index] as number) - value) < 1e-9, `${actual[index]} is not ${value}`);
  }
}
