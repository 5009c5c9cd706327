// The learner of control-demo: its physics, its random numbers, what it learns and how it is restored.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { BOXES, boxOf, CART, FAILED, FORCE, Learner, move, nextWord, seedWords } from '../../../demo/cartpole.ts';
import { plain, snapshotOf } from './helpers.ts';
import type { Snapshot } from '../../../demo/cartpole.ts';

const DEGREE = Math.PI / 180;

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
  ['version', () => [0, 3, '2'], /^its "version" must be 1 or 2$/],
  ['learningRate', () => [-0.1, 1.1, '0', null, NaN], /^its "learningRate" must be a number from 0 to 1$/],
  ['exploration', () => [-0.1, 1.1, '0', null, NaN], /^its "exploration" must be a number from 0 to 1$/],
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
    while (learner.meanReturn < 195 && learner.steps < 3_000_000) learner.step();
    assert.ok(learner.meanReturn >= 195, `it solves the task, but got ${learner.meanReturn}`);
    assert.equal(Math.max(...learner.snapshot().returns), 500, 'an episode ends after 500 steps');
  });

  it('is deterministic for a seed, and differs between seeds', () => {
    assert.deepEqual(snapshotOf(5, 20_000), snapshotOf(5, 20_000));
    assert.notDeepEqual(snapshotOf(5, 20_000).values, snapshotOf(6, 20_000).values);
  });

  it('continues from a snapshot like the original, at any step', () => {
    for (const steps of [0, 1, 999, 30_000]) {
      const learner = Learner.restore(snapshotOf(9, steps));
      for (let more = 0; more < 20_000; more += 1) learner.step();
      assert.deepEqual(plain(learner), snapshotOf(9, steps + 20_000));
    }
  });

  it('evaluates the same way each time, without changing anything, wherever it is in an episode', () => {
    for (const steps of [0, 999, 30_000]) {
      const learner = Learner.restore({ ...snapshotOf(9, steps), learningRate: 0.5, exploration: 0.5 });
      const before = plain(learner);
      const result = learner.evaluate(30);
      assert.ok(result >= 1 && result <= 500, `${result}`);
      assert.equal(learner.evaluate(30), result);
      assert.notEqual(learner.evaluate(1), learner.evaluate(1000), 'episodes differ');
      assert.deepEqual(plain(learner), before);
    }
  });

  it('evaluates from new starts, whatever the episode, the learning rate and the exploration are', () => {
    const snapshot = snapshotOf(9, 30_000);
    const results = [0, 1].flatMap((learningRate) => [0, 1].map((exploration) => {
      return Learner.restore({ ...snapshot, learningRate, exploration }).evaluate(50);
    }));
    assert.equal(new Set(results).size, 1, `${results}`);
    const steps = snapshot.steps - snapshot.episodeSteps + 499;
    assert.ok(Learner.restore({ ...snapshot, steps, episodeSteps: 499 }).evaluate(1) > 1, 'not the rest of an episode');
  });

  it('evaluates without random actions', () => {
    const learner = new Learner(1);
    while (learner.meanReturn < 480) learner.step();
    learner.exploration = 1;
    assert.ok(learner.evaluate(100) > 480, `${learner.evaluate(100)}`);
    for (let episodes = learner.episodes + 100; learner.episodes < episodes; ) learner.step();
    assert.ok(learner.meanReturn < 50, `${learner.meanReturn} with random actions alone`);
  });

  it('keeps its values with a learning rate of 0, and takes the best action alone with an exploration of 0', () => {
    const learner = Learner.restore({ ...snapshotOf(9, 30_000), learningRate: 0, exploration: 0 });
    const { values } = plain(learner);
    while (learner.steps < 60_000) learner.step();
    assert.deepEqual(plain(learner).values, values);
    const other = Learner.restore({ ...snapshotOf(9, 30_000), learningRate: 0, exploration: 0.5 });
    while (other.steps < 60_000) other.step();
    assert.ok(other.meanReturn < learner.meanReturn, `${other.meanReturn} is less than ${learner.meanReturn}`);
  });

  it('continues with the learning rate and the exploration that were set, and from version 1 with the defaults', () => {
    const learner = Learner.restore(snapshotOf(9, 30_000));
    Object.assign(learner, { learningRate: 0.25, exploration: 0.75 });
    const restored = Learner.restore(plain(learner));
    assert.deepEqual([restored.learningRate, restored.exploration], [0.25, 0.75]);
    for (let more = 0; more < 20_000; more += 1) learner.step();
    for (let more = 0; more < 20_000; more += 1) restored.step();
    assert.deepEqual(plain(restored), plain(learner));
    const { learningRate, exploration, ...old } = snapshotOf(9, 30_000);
    assert.deepEqual(plain(Learner.restore({ ...old, version: 1 })), { ...old, learningRate, exploration });
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

// ───── Helpers ───────────────────────────────────────────────────────────────────────────────────────────────────

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
