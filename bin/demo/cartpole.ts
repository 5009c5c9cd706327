// Learns to balance a pole on a cart: the learner, the simulation, the random numbers.
//
// [BSA] is A. G. Barto, R. S. Sutton, C. W. Anderson: Neuronlike adaptive elements that can solve difficult learning
// control problems. IEEE Transactions on Systems, Man, and Cybernetics, SMC-13(5), 834–846, 1983.

// ───── The learner ───────────────────────────────────────────────────────────────────────────────────────────────

// As in Gymnasium's CartPole-v1: reward 1 per step, at most 500 steps, a start close to upright and at rest.
export const EPISODE_STEPS = 500;
const START_SPREAD = 0.05;

// Found by trial: with each of 60 seeds, the mean return of 100 episodes exceeds 450 within 1.5 million steps.
const DISCOUNT = 0.99;
const LEARNING_RATE = 0.01; // until it is set
const EXPLORATION = 0.01; // likewise

export const MEAN_EPISODES = 100;
const ACTIONS = 2; // push left, push right
const MAX_VALUE = 1 / (1 - DISCOUNT); // the value if the pole never falls
const ROUNDING = 1e-6; // exceeds any rounding error of a value

/** The complete state of a learner as plain JSON: a restored learner continues exactly like the original. */
export interface Snapshot {
  format: 'control-demo';
  version: 2;
  seed: number;
  learningRate: number;
  exploration: number;
  /** Time steps and finished episodes since the start. */
  steps: number;
  episodes: number;
  /** Returns of the last 100 finished episodes, the oldest first. */
  returns: number[];
  /** Steps of the current episode. */
  episodeSteps: number;
  cart: number[];
  /** The state of xoshiro128**. */
  random: number[];
  /** The value of each action (left, right) in each box. */
  values: number[];
}

/**
 * Tabular Q-learning (C. J. C. H. Watkins: Learning from delayed rewards. Thesis, Cambridge 1989) on the cart-pole. The
 * seed determines everything that happens.
 */
export class Learner {
  readonly seed: number;
  /** From 0 to 1: how far a step moves the value of an action. */
  learningRate: number = LEARNING_RATE;
  /** From 0 to 1: the share of random actions. */
  exploration: number = EXPLORATION;
  #steps = 0;
  #episodes = 0;
  #episodeSteps = 0;
  #returnsSum = 0;
  readonly #returns: Int32Array = new Int32Array(MEAN_EPISODES); // the return of episode n is at index n mod 100
  readonly #cart: Float64Array = new Float64Array(4);
  readonly #random: Uint32Array;
  readonly #values: Float64Array = new Float64Array(BOXES * ACTIONS).fill(MAX_VALUE); // untried actions look best
  #box = 0;

  /** @param seed An integer from 0 to 2³² − 1. */
  constructor(seed: number) {
    this.seed = seed;
    this.#random = seedWords(seed);
    this.#beginEpisode();
  }

  /**
   * Creates a learner that continues from a snapshot.
   *
   * @throws {Error} If the snapshot is invalid. In the message, "it" is the checkpoint.
   */
  static restore(value: unknown): Learner {
    const snapshot = upgrade(value);
    checkSnapshot(snapshot);
    const learner = new Learner(snapshot.seed);
    learner.learningRate = snapshot.learningRate;
    learner.exploration = snapshot.exploration;
    learner.#steps = snapshot.steps;
    learner.#episodes = snapshot.episodes - snapshot.returns.length;
    for (const length of snapshot.returns) learner.#count(length);
    learner.#episodeSteps = snapshot.episodeSteps;
    learner.#cart.set(snapshot.cart);
    learner.#random.set(snapshot.random);
    learner.#values.set(snapshot.values);
    learner.#box = boxOf(learner.#cart);
    return learner;
  }

  get steps(): number {
    return this.#steps;
  }

  /** Finished episodes. */
  get episodes(): number {
    return this.#episodes;
  }

  /** Mean return of the last 100 finished episodes; 0 before the first. */
  get meanReturn(): number {
    return this.#returnsSum / Math.max(1, Math.min(this.#episodes, MEAN_EPISODES));
  }

  /** Simulates one time step and learns from it. */
  step(): void {
    const index = this.#choose();
    move(this.#cart, index % ACTIONS === 0 ? -FORCE : FORCE);
    this.#box = boxOf(this.#cart);
    this.#steps += 1;
    this.#episodeSteps += 1;

    const reward = 1;
    const future = this.#box === FAILED ? 0 : (this.#values[this.#best()] as number);
    const value = this.#values[index] as number;
    this.#values[index] = value + this.learningRate * (reward + DISCOUNT * future - value);
    if (this.#box === FAILED || this.#episodeSteps === EPISODE_STEPS) this.#endEpisode();
  }

  /** Returns the mean return of episodes from new starts, without learning or exploring. Changes nothing. */
  evaluate(episodes: number): number {
    const copy = Learner.restore(this.snapshot());
    copy.learningRate = 0;
    copy.exploration = 0;
    copy.#beginEpisode();
    const last = copy.#episodes + episodes;
    while (copy.#episodes < last) copy.step();
    return (copy.#steps - this.#steps) / episodes;
  }

  snapshot(): Snapshot {
    const oldest = Math.max(0, this.#episodes - MEAN_EPISODES);
    const length = this.#episodes - oldest;
    return {
      format: 'control-demo',
      version: 2,
      seed: this.seed,
      learningRate: this.learningRate,
      exploration: this.exploration,
      steps: this.#steps,
      episodes: this.#episodes,
      returns: Array.from({ length }, (_, index) => this.#returns[(oldest + index) % MEAN_EPISODES] as number),
      episodeSteps: this.#episodeSteps,
      cart: [...this.#cart],
      random: [...this.#random],
      values: [...this.#values],
    };
  }

  /** The index in `values` of the action to take: the better one in this box, or a random one to explore. */
  #choose(): number {
    const chance = 0.5 + nextWord(this.#random) / 2 ** 32;
    if (chance >= this.exploration) return this.#best();
    return this.#box * ACTIONS + (chance < this.exploration / 2 ? 0 : 1);
  }

  #best(): number {
    const left = this.#box * ACTIONS;
    return (this.#values[left] as number) >= (this.#values[left + 1] as number) ? left : left + 1;
  }

  #endEpisode(): void {
    this.#count(this.#episodeSteps);
    this.#beginEpisode();
  }

  /** Counts a finished episode. */
  #count(value: number): void {
    const slot = this.#episodes % MEAN_EPISODES;
    this.#returnsSum += value - (this.#returns[slot] as number);
    this.#returns[slot] = value;
    this.#episodes += 1;
  }

  #beginEpisode(): void {
    this.#episodeSteps = 0;
    for (let index = 0; index < this.#cart.length; index += 1) {
      this.#cart[index] = START_SPREAD * (nextWord(this.#random) / 2 ** 31);
    }
    this.#box = boxOf(this.#cart);
  }
}

// ───── Validation of snapshots ───────────────────────────────────────────────────────────────────────────────────

/** Version 1 had neither a learning rate nor an exploration that could be set. */
function upgrade(value: unknown): unknown {
  const snapshot = Object(value) as { version?: unknown };
  if (snapshot.version !== 1) return value;
  return { ...snapshot, version: 2, learningRate: LEARNING_RATE, exploration: EXPLORATION };
}

function checkSnapshot(value: unknown): asserts value is Snapshot {
  const snapshot = Object(value) as Record<keyof Snapshot, unknown>;
  check(snapshot.format === 'control-demo', 'it is not a checkpoint of control-demo');
  check(snapshot.version === 2, 'its "version" must be 1 or 2');
  const { seed, learningRate, exploration, steps, episodes, returns, episodeSteps, cart, random, values } = snapshot;
  checkInteger('seed', seed, MAX_WORD);
  checkShare('learningRate', learningRate);
  checkShare('exploration', exploration);
  checkInteger('steps', steps, Number.MAX_SAFE_INTEGER);
  checkInteger('episodes', episodes, Number.MAX_SAFE_INTEGER);
  checkInteger('episodeSteps', episodeSteps, EPISODE_STEPS - 1);
  checkNumbers('returns', returns, Math.min(episodes, MEAN_EPISODES));
  check(returns.every((one) => isInteger(one, 1, EPISODE_STEPS)), `its "returns" must be from 1 to ${EPISODE_STEPS}`);
  checkNumbers('cart', cart, 4);
  check(boxOf(Float64Array.from(cart)) !== FAILED, 'its "cart" must not be in a failed state');
  checkNumbers('random', random, 4);
  check(random.every((one) => isInteger(one, 0, MAX_WORD)), `its "random" must be integers from 0 to ${MAX_WORD}`);
  check(random.some((one) => one !== 0), 'its "random" must not be all zeros: xoshiro128** would return only zeros');
  checkNumbers('values', values, BOXES * ACTIONS);
  check(values.every(isValue), `its "values" must be from 0 to ${Math.round(MAX_VALUE)}`);
  checkSum(steps, episodes, returns, episodeSteps);
}

/** `steps` is the sum over all episodes; for those before the last 100, only their number is known. */
function checkSum(steps: number, episodes: number, returns: number[], episodeSteps: number): void {
  const known = returns.reduce((sum, length) => sum + length, episodeSteps);
  const others = episodes - returns.length;
  const possible = steps >= known + others && steps <= known + others * EPISODE_STEPS;
  check(possible, 'its "steps" must match its "episodes", "returns" and "episodeSteps"');
}

function checkInteger(name: string, value: unknown, max: number): asserts value is number {
  check(isInteger(value, 0, max), `its "${name}" must be an integer from 0 to ${max}`);
}

function checkShare(name: string, value: unknown): void {
  const valid = typeof value === 'number' && value >= 0 && value <= 1;
  check(valid, `its "${name}" must be a number from 0 to 1`);
}

function checkNumbers(name: string, value: unknown, length: number): asserts value is number[] {
  const valid = Array.isArray(value) && value.length === length && value.every(Number.isFinite);
  check(valid, `its "${name}" must be an array of ${length} numbers`);
}

function isInteger(value: unknown, min: number, max: number): boolean {
  return Number.isInteger(value) && (value as number) >= min && (value as number) <= max;
}

function isValue(value: number): boolean {
  return value >= 0 && value <= MAX_VALUE + ROUNDING;
}

function check(condition: boolean, otherwise: string): asserts condition {
  if (!condition) throw new Error(otherwise);
}

// ───── The cart and the pole ─────────────────────────────────────────────────────────────────────────────────────

// All values are from [BSA], appendix, without the minus sign of g, which is a mistake there (R. V. Florian: Correct
// equations for the dynamics of the cart-pole system, 2007). Florian's improved friction model is not used.
const GRAVITY = 9.8; // m/s²
const CART_MASS = 1.0; // kg
const POLE_MASS = 0.1; // kg
const HALF_LENGTH = 0.5; // m, from the pivot to the centre of the pole
const CART_FRICTION = 0.0005; // of the cart on the track
const POLE_FRICTION = 0.000002; // of the pole on the cart
const STEP_SECONDS = 0.02; // of Euler's method

/** Newtons; the learner pushes with full force, to the left or to the right. [BSA], appendix. */
export const FORCE: number = 10;

const TOTAL_MASS = CART_MASS + POLE_MASS;
const DEGREE = Math.PI / 180;

/** Indices of the four state variables. */
export const CART = { POSITION: 0, VELOCITY: 1, ANGLE: 2, ANGULAR_VELOCITY: 3 } as const;

/**
 * Advances the simulation by one step of Euler's method, with the accelerations of [BSA], appendix.
 *
 * @param cart Metres, metres per second, radians from upright, radians per second. Updated in place.
 */
export function move(cart: Float64Array, force: number): void {
  const velocity = cart[CART.VELOCITY] as number;
  const angle = cart[CART.ANGLE] as number;
  const angularVelocity = cart[CART.ANGULAR_VELOCITY] as number;
  const sine = Math.sin(angle);
  const cosine = Math.cos(angle);
  const poleMoment = POLE_MASS * HALF_LENGTH;

  const pull = force + poleMoment * angularVelocity * angularVelocity * sine - CART_FRICTION * Math.sign(velocity);
  const turn = GRAVITY * sine - (cosine * pull) / TOTAL_MASS - (POLE_FRICTION * angularVelocity) / poleMoment;
  const angularAcceleration = turn / (HALF_LENGTH * (4 / 3 - (POLE_MASS * cosine * cosine) / TOTAL_MASS));
  const acceleration = (pull - poleMoment * angularAcceleration * cosine) / TOTAL_MASS;

  cart[CART.POSITION] = (cart[CART.POSITION] as number) + STEP_SECONDS * velocity;
  cart[CART.VELOCITY] = velocity + STEP_SECONDS * acceleration;
  cart[CART.ANGLE] = angle + STEP_SECONDS * angularVelocity;
  cart[CART.ANGULAR_VELOCITY] = angularVelocity + STEP_SECONDS * angularAcceleration;
}

// ───── The boxes ─────────────────────────────────────────────────────────────────────────────────────────────────
//
// The learner sees the state as one of 3 × 3 × 6 × 3 boxes. The borders are those of [BSA]. A border belongs to the box
// above it, as in the authors' program, http://incompleteideas.net/book/code/pole.c

const MAX_POSITION = 2.4; // m; an episode fails beyond this position or angle
const MAX_ANGLE = 12 * DEGREE;
const MIDDLE_POSITION = 0.8; // m
const LOW_VELOCITY = 0.5; // m/s
const SMALL_ANGLE = 1 * DEGREE;
const LARGE_ANGLE = 6 * DEGREE;
const LOW_ANGULAR_VELOCITY = 50 * DEGREE; // per second

export const BOXES = 162;

/** Returned by `boxOf()` when the pole has fallen or the cart has left its track. */
export const FAILED = -1;

/** Returns the index of the box, from 0 to 161, or `FAILED`. */
export function boxOf(cart: Float64Array): number {
  const position = cart[CART.POSITION] as number;
  const angle = cart[CART.ANGLE] as number;
  if (Math.abs(position) > MAX_POSITION || Math.abs(angle) > MAX_ANGLE) return FAILED;
  const thirdOfTrack = third(position, MIDDLE_POSITION);
  const velocity = third(cart[CART.VELOCITY] as number, LOW_VELOCITY);
  const angularVelocity = third(cart[CART.ANGULAR_VELOCITY] as number, LOW_ANGULAR_VELOCITY);
  return thirdOfTrack + 3 * (velocity + 3 * (sixth(angle) + 6 * angularVelocity));
}

function third(value: number, border: number): number {
  if (value < -border) return 0;
  return value < border ? 1 : 2;
}

function sixth(angle: number): number {
  if (angle < 0) {
    if (angle < -LARGE_ANGLE) return 0;
    return angle < -SMALL_ANGLE ? 1 : 2;
  }
  if (angle < SMALL_ANGLE) return 3;
  return angle < LARGE_ANGLE ? 4 : 5;
}

// ───── Random numbers ────────────────────────────────────────────────────────────────────────────────────────────

const MAX_WORD = 2 ** 32 - 1;

/** Returns the first four words of splitmix32, with the multipliers of github.com/skeeto/hash-prospector. */
export function seedWords(seed: number): Uint32Array {
  return Uint32Array.from([1, 2, 3, 4], (count) => {
    let word = seed + Math.imul(count, 0x9e3779b9);
    word = Math.imul(word ^ (word >>> 16), 0x21f0aaad);
    word = Math.imul(word ^ (word >>> 15), 0x735a2d97);
    return word ^ (word >>> 15);
  });
}

/**
 * Returns the next 32 bits of xoshiro128** 1.1 (D. Blackman, S. Vigna, https://prng.di.unimi.it/xoshiro128starstar.c)
 * as a signed integer: V8 would allocate memory for an unsigned one.
 */
export function nextWord(words: Uint32Array): number {
  const zero = words[0] as number;
  const one = words[1] as number;
  const two = words[2] as number;
  const three = words[3] as number;
  const product = Math.imul(one, 5);
  words[2] = two ^ zero ^ (one << 9);
  words[3] = rotate(three ^ one, 11);
  words[1] = one ^ two ^ zero;
  words[0] = zero ^ three ^ one;
  return Math.imul(rotate(product, 7), 9);
}

function rotate(word: number, bits: number): number {
  return (word << bits) | (word >>> (32 - bits));
}
