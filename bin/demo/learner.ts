// The learner: tabular Q-learning (C. J. C. H. Watkins: Learning from delayed rewards. Thesis, Cambridge 1989).

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

// ───── CartPole ──────────────────────────────────────────────────────────────────────────────────────────────────
// A cart on a track balances a pole: the simulation, and the boxes in which the learner sees it.
//
// All values are from A. G. Barto, R. S. Sutton, C. W. Anderson: Neuronlike adaptive elements that can solve difficult
// learning control problems. IEEE Transactions on Systems, Man, and Cybernetics, SMC-13(5), 834–846, 1983.

const GRAVITY = 9.8; // m/s²; the minus sign in the paper is a mistake
const CART_MASS = 1.0; // kg
const POLE_MASS = 0.1; // kg
const HALF_LENGTH = 0.5; // m, from the pivot to the center of the pole
const CART_FRICTION = 0.0005; // of the cart on the track
const POLE_FRICTION = 0.000002; // of the pole on the cart
const STEP_SECONDS = 0.02; // of Euler's method

const TOTAL_MASS = CART_MASS + POLE_MASS;
const POLE_MOMENT = POLE_MASS * HALF_LENGTH;

/** In meters, meters per second, radians from upright, radians per second. */
type Cart = [position: number, velocity: number, angle: number, angularVelocity: number];

/** Returns the cart one time step later. The force is in newtons. */
function move([position, velocity, angle, angularVelocity]: Cart, force: number): Cart {
  const sine = Math.sin(angle);
  const cosine = Math.cos(angle);
  const pull = force + POLE_MOMENT * angularVelocity * angularVelocity * sine - CART_FRICTION * Math.sign(velocity);
  const turn = GRAVITY * sine - (cosine * pull) / TOTAL_MASS - (POLE_FRICTION * angularVelocity) / POLE_MOMENT;
  const angularAcceleration = turn / (HALF_LENGTH * (4 / 3 - (POLE_MASS * cosine * cosine) / TOTAL_MASS));
  const acceleration = (pull - POLE_MOMENT * angularAcceleration * cosine) / TOTAL_MASS;
  return [
    position + STEP_SECONDS * velocity,
    velocity + STEP_SECONDS * acceleration,
    angle + STEP_SECONDS * angularVelocity,
    angularVelocity + STEP_SECONDS * angularAcceleration,
  ];
}

const radians = (degrees: number): number => degrees * (Math.PI / 180);

/** The borders of the boxes in each dimension of a cart. A border belongs to the box above it. */
const BORDERS = [[-0.8, 0.8], [-0.5, 0.5], [-6, -1, 0, 1, 6].map(radians), [-50, 50].map(radians)];

const BOXES: number = 3 * 3 * 6 * 3;

/** The box of a cart that has left its track, or whose pole has fallen. */
const FAILED = -1;

/** Returns the index of the box that contains the cart, or `FAILED`. */
function boxOf(cart: Cart): number {
  if (Math.abs(cart[0]) > 2.4 || Math.abs(cart[2]) > radians(12)) return FAILED;
  return BORDERS.reduceRight((box, borders, dimension) => {
    let section = 0;
    for (const border of borders) if (cart[dimension] as number >= border) section += 1;
    return box * (borders.length + 1) + section;
  }, 0);
}
