// The learner: tabular Q-learning (C. J. C. H. Watkins: Learning from delayed rewards. Thesis, Cambridge 1989).

import { boxOf, BOXES, FAILED, move } from './cartpole.ts';
import type { Cart } from './cartpole.ts';

// As in CartPole-v1 of Gymnasium: reward 1 per step, at most 500 steps, a start close to upright and at rest.
export const EPISODE_STEPS = 500;
const FORCE = 10; // newtons, to the left or to the right
const START_SPREAD = 0.05;

const DISCOUNT = 0.99;
export const MEAN_EPISODES = 100;

/** All that a learner knows, as plain JSON: a learner with the same state does exactly the same. */
export interface LearnerState {
  seed: number;
  learningRate: number; // from 0 to 1: how far a step moves the value of an action
  exploration: number; // from 0 to 1: the share of random actions
  steps: number; // in all episodes
  episodes: number; // finished
  returns: number[]; // of the last 100 finished episodes
  episodeSteps: number; // in the current episode
  cart: Cart;
  random: number; // the state of the random numbers
  values: number[]; // of both actions, left and right, in each box
}

export class Learner {
  readonly state: LearnerState;

  constructor(state: LearnerState) {
    this.state = state;
  }

  /** The seed, from 0 to 2³² − 1, determines everything that happens. */
  static fromSeed(seed: number): Learner {
    const learner = new Learner({
      seed, learningRate: 0.01, exploration: 0.01, // with 60 of 60 seeds, it learns within 1.4 million steps
      steps: 0, episodes: 0, returns: [], episodeSteps: 0, cart: [0, 0, 0, 0], random: seed,
      values: Array(2 * BOXES).fill(1 / (1 - DISCOUNT)), // as if the pole never fell: untried actions look best
    });
    learner.#startEpisode();
    return learner;
  }

  /** Of the last 100 finished episodes; 0 before the first. */
  get meanReturn(): number {
    const { returns } = this.state;
    return returns.reduce((sum, one) => sum + one, 0) / Math.max(1, returns.length);
  }

  /** Simulates one time step and learns from it. */
  step(): void {
    const { state } = this;
    const index = this.#choose(boxOf(state.cart));
    state.cart = move(state.cart, index % 2 === 0 ? -FORCE : FORCE);
    state.steps += 1;
    state.episodeSteps += 1;

    const box = boxOf(state.cart);
    const value = this.#valueAt(index);
    const future = box === FAILED ? 0 : this.#valueAt(this.#best(box));
    state.values[index] = value + state.learningRate * (1 + DISCOUNT * future - value);
    if (box === FAILED || state.episodeSteps === EPISODE_STEPS) this.#endEpisode();
  }

  /** Returns the mean return of episodes without learning and without random actions. Changes nothing. */
  evaluate(episodes: number): number {
    const copy = new Learner({ ...structuredClone(this.state), learningRate: 0, exploration: 0 });
    copy.#startEpisode();
    const last = copy.state.episodes + episodes;
    while (copy.state.episodes < last) copy.step();
    return (copy.state.steps - this.state.steps) / episodes;
  }

  /** Returns the index of an action in `values`: of the better one in this box, or of a random one to explore. */
  #choose(box: number): number {
    const chance = this.#random();
    if (chance >= this.state.exploration) return this.#best(box);
    return 2 * box + (chance < this.state.exploration / 2 ? 0 : 1);
  }

  #best(box: number): number {
    const left = 2 * box;
    return this.#valueAt(left) >= this.#valueAt(left + 1) ? left : left + 1;
  }

  #valueAt(index: number): number {
    return this.state.values[index] as number;
  }

  #startEpisode(): void {
    const spread = (): number => START_SPREAD * (2 * this.#random() - 1);
    this.state.cart = [spread(), spread(), spread(), spread()];
    this.state.episodeSteps = 0;
  }

  #endEpisode(): void {
    const { returns, episodeSteps } = this.state;
    returns.push(episodeSteps);
    if (returns.length > MEAN_EPISODES) returns.shift();
    this.state.episodes += 1;
    this.#startEpisode();
  }

  /** Returns a number from 0 to 1 by mulberry32 (T. Ettinger), whose state can be saved, unlike Math.random()'s. */
  #random(): number {
    const state = (this.state.random + 0x6d2b79f5) | 0;
    const mixed = Math.imul(state ^ (state >>> 15), state | 1);
    const word = mixed ^ (mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61));
    this.state.random = state;
    return ((word ^ (word >>> 14)) >>> 0) / 2 ** 32;
  }
}
