// CartPole: a cart on a track balances a pole. The simulation, and the boxes in which the learner sees it.
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
export type Cart = [position: number, velocity: number, angle: number, angularVelocity: number];

/** Returns the cart one time step later. The force is in newtons. */
export function move([position, velocity, angle, angularVelocity]: Cart, force: number): Cart {
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

export const BOXES: number = 3 * 3 * 6 * 3;

/** The box of a cart that has left its track, or whose pole has fallen. */
export const FAILED = -1;

/** Returns the index of the box that contains the cart, or `FAILED`. */
export function boxOf(cart: Cart): number {
  if (Math.abs(cart[0]) > 2.4 || Math.abs(cart[2]) > radians(12)) return FAILED;
  return BORDERS.reduceRight((box, borders, dimension) => {
    let section = 0;
    for (const border of borders) if (cart[dimension] as number >= border) section += 1;
    return box * (borders.length + 1) + section;
  }, 0);
}
