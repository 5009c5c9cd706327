// The values of a number over time.

const HOUR_MS = 3_600_000;
const MAX_SAMPLES = 300; // that a page is sent at once: a plot has fewer pixels
const PACE_MS = 600_000; // what was longer ago tells little of what is left

/** How often samples are taken, and for how long they are kept. */
export interface Period {
  intervalMs: number;
  keepMs: number;
}

/** While a page is open. */
export const LIVE: Period = { intervalMs: 1000, keepMs: HOUR_MS };

/** The time in milliseconds, and the value. */
export type Sample = [time: number, value: number];

/** The time in milliseconds, by a clock that nobody sets: a step of the wall clock would squeeze the plots. */
export function steadyNow(): number {
  return Math.floor(performance.timeOrigin + performance.now());
}

export class Series {
  readonly #times: number[] = []; // two arrays of plain doubles take a quarter of the memory of pairs
  readonly #values: number[] = [];
  readonly #period: Period;

  constructor(period: Period = LIVE) {
    this.#period = period;
  }

  add(time: number, value: number): void {
    this.#times.push(time);
    this.#values.push(value);
    while ((this.#times[0] as number) <= time - this.#period.keepMs) {
      this.#times.shift();
      this.#values.shift();
    }
  }

  /** The usual time between two samples that a page has: it was sent fewer of a long series. */
  get intervalMs(): number {
    const times = this.#times;
    return Math.max(this.#period.intervalMs, ((times.at(-1) ?? 0) - (times[0] ?? 0)) / MAX_SAMPLES);
  }

  /** The increase in a millisecond, of late, since a time and since the last decrease; null if there is none. */
  paceSince(time: number): number | null {
    const [times, values] = [this.#times, this.#values] as const;
    const last = times.length - 1;
    const start = Math.max(time, (times[last] ?? 0) - PACE_MS);
    let first = last;
    while (first > 0 && times[first - 1] as number >= start && values[first - 1] as number <= (values[first] as number)) {
      first -= 1;
    }
    const increase = (values[last] as number) - (values[first] as number);
    return increase > 0 ? increase / ((times[last] as number) - (times[first] as number)) : null;
  }

  /** The samples after a time; of too many, the last of each interval. */
  since(time: number): Sample[] {
    const times = this.#times;
    let first = times.length;
    while (first > 0 && times[first - 1] as number > time) first -= 1;
    const samples = times.slice(first).map((at, index): Sample => [at, this.#values[first + index] as number]);
    if (samples.length <= MAX_SAMPLES) return samples;
    const interval = (times.at(-1) as number - (times[first] as number)) / MAX_SAMPLES;
    return samples.filter(([at], index) => {
      const [next = Infinity] = samples[index + 1] ?? [];
      return Math.floor(next / interval) !== Math.floor(at / interval);
    });
  }
}
