// The learner of control-demo: what it learns, the simulation, and the boxes.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { boxOf, move } from '../../../demo/cartpole.ts';
import { Learner } from '../../../demo/learner.ts';
import { plain, stateAt } from './helpers.ts';
import type { Cart } from '../../../demo/cartpole.ts';

describe('Learner', () => {
  it('learns to balance the pole, for at most 500 steps', () => {
    const learner = Learner.fromSeed(1);
    while (learner.state.episodes < 100) learner.step();
    assert.ok(learner.meanReturn < 200, `got ${learner.meanReturn} at first`);
    while (learner.meanReturn < 450 && learner.state.steps < 1_500_000) learner.step();
    assert.ok(learner.meanReturn >= 450, `got ${learner.meanReturn}`);
    assert.equal(Math.max(...learner.state.returns), 500);
    assert.ok(learner.evaluate(100) > 400, `${learner.evaluate(100)}`);
    learner.state.exploration = 1;
    assert.ok(learner.evaluate(100) > 400, 'evaluate() does not explore');
    for (let last = learner.state.episodes + 100; learner.state.episodes < last; ) learner.step();
    assert.ok(learner.meanReturn < 50, `${learner.meanReturn} with random actions alone`);
  });

  it('depends on its seed alone, and continues from its state like the original', () => {
    assert.notDeepEqual(stateAt(5, 20_000).values, stateAt(6, 20_000).values);
    for (const steps of [0, 1, 999, 30_000]) {
      const learner = new Learner(stateAt(9, steps));
      for (let more = 0; more < 20_000; more += 1) learner.step();
      assert.deepEqual(plain(learner.state), stateAt(9, steps + 20_000));
    }
  });

  it('evaluates new episodes without learning, and changes nothing', () => {
    const results = [0, 1].map((share) => {
      const before = { ...stateAt(9, 30_000), episodeSteps: 499, learningRate: share, exploration: share };
      const learner = new Learner(structuredClone(before));
      const result = learner.evaluate(30);
      assert.equal(learner.evaluate(30), result);
      assert.deepEqual(plain(learner.state), before);
      return result;
    });
    assert.ok(results[0] === results[1] && Number(results[0]) > 1, `${results}`);
  });

  it('counts steps, episodes and the mean return of the last 100 episodes', () => {
    const learner = Learner.fromSeed(3);
    assert.equal(learner.meanReturn, 0);
    const lengths: number[] = [];
    for (let last = 0; lengths.length < 250; ) {
      learner.step();
      if (learner.state.episodes === lengths.length) continue;
      lengths.push(learner.state.steps - last);
      last = learner.state.steps;
      const recent = lengths.slice(-100);
      assert.equal(learner.meanReturn, recent.reduce((sum, length) => sum + length) / recent.length);
    }
    assert.deepEqual(learner.state.returns, lengths.slice(-100));
  });
});

describe('move', () => {
  it('satisfies the balance of forces and torques', () => {
    const carts: Cart[] = [[0, 0, 0, 0], [0.3, 1.2, 0.05, -0.7], [-2, -0.4, -0.2, 1.9], [1.1, -3, 0.15, 3.5]];
    for (const cart of carts) {
      for (const force of [-10, 10]) {
        const [position, velocity, angle, turning] = cart;
        const moved = move(cart, force);
        const acceleration = (moved[1] - velocity) / 0.02;
        const angular = (moved[3] - turning) / 0.02;
        const [sine, cosine] = [Math.sin(angle), Math.cos(angle)];
        const forces = force + 0.1 * 0.5 * (turning ** 2 * sine - angular * cosine) - 0.0005 * Math.sign(velocity);
        const torques = 0.1 * 9.8 * 0.5 * sine - 0.1 * acceleration * cosine * 0.5 - 0.000002 * turning;
        const actual = [moved[0], moved[2], 1.1 * acceleration, (4 / 3) * 0.1 * 0.5 ** 2 * angular];
        const expected = [position + 0.02 * velocity, angle + 0.02 * turning, forces, torques];
        expected.forEach((value, index) => assert.ok(Math.abs(value - Number(actual[index])) < 1e-9, `${actual}`));
      }
    }
  });
});

describe('boxOf', () => {
  it('has borders at ±0.8 m, ±0.5 m/s, 0, ±1 and ±6°, ±50°/s, and fails beyond 2.4 m and 12°', () => {
    assert.deepEqual(bordersOf((value) => box(value, 0, 0.5, 0), 3), [-2.4, -0.8, 0.8, 2.41]);
    assert.deepEqual(bordersOf((value) => box(0, value, 0.5, 0), 5), [-0.5, 0.5]);
    assert.deepEqual(bordersOf((value) => box(0, 0, value, 0), 15), [-12, -6, -1, 0, 1, 6, 12.01]);
    assert.deepEqual(bordersOf((value) => box(0, 0, 0.5, value), 200), [-50, 50]);
  });
});

/** The box of a cart in meters and degrees. */
function box(position: number, velocity: number, angle: number, turning: number): number {
  return boxOf([position, velocity, angle * (Math.PI / 180), turning * (Math.PI / 180)]);
}

/** The borders of boxes between −limit and limit: the first hundredth in each box. */
function bordersOf(boxAt: (value: number) => number, limit: number): number[] {
  const hundredths = Array.from({ length: 200 * limit }, (_, index) => index - 100 * limit);
  const starts = hundredths.filter((value) => boxAt(value / 100) !== boxAt((value - 1) / 100));
  return starts.map((value) => value / 100);
}
