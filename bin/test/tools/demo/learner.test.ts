// The learner of control-demo: what it learns, and the simulation.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { move } from '../../../demo/cartpole.ts';
import { Learner } from '../../../demo/learner.ts';
import { stateAt } from './helpers.ts';
import type { Cart } from '../../../demo/cartpole.ts';

describe('Learner', () => {
  it('learns to balance the pole, for at most 500 steps', () => {
    const learner = Learner.fromSeed(1);
    while (learner.state.episodes < 100) learner.step();
    assert.ok(learner.meanReturn < 200, `got ${learner.meanReturn} at first`);
    while (learner.meanReturn < 450 && learner.state.steps < 1_500_000) learner.step();
    assert.ok(learner.meanReturn >= 450, `got ${learner.meanReturn}`);
    assert.equal(Math.max(...learner.state.returns), 500);
    const evaluated = learner.evaluate(100);
    assert.ok(evaluated > 400, `${evaluated}`);
    Object.assign(learner.state, { learningRate: 1, exploration: 1 });
    assert.equal(learner.evaluate(100), evaluated, 'evaluate() neither learns nor explores');
    learner.state.learningRate = 0.01;
    for (let last = learner.state.episodes + 100; learner.state.episodes < last; ) learner.step();
    assert.ok(learner.meanReturn < 50, `${learner.meanReturn} with random actions alone`);
  });

  it('counts steps, episodes and the mean return of the last 100 episodes', () => {
    const learner = Learner.fromSeed(3);
    assert.equal(learner.meanReturn, 0);
    assert.notDeepEqual(learner.state.cart, stateAt(4, 0).cart, 'the seed matters');
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
