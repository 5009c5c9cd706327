// The numbers in the detail of a system over time.

const MAX_SAMPLES = 300; // in one response to a page: a plot has fewer pixels
const MAX_SERIES = 32; // of a system
const DUE = 0.95; // of the interval: a timer may fire early

/** Samples are taken once a second while a page is open, and kept for an hour. */
const INTERVAL_MS = 1000;
export const KEEP_MS = 3_600_000;

/** The time in milliseconds, and the value. */
export type Sample = [time: number, value: number];

/** The time in milliseconds by a clock that is never set: a step of the wall clock would distort the plots. */
export function steadyNow(): number {
  return Math.floor(performance.timeOrigin + performance.now());
}

/** The samples of one number. */
class Series {
  readonly #times: number[] = []; // two arrays of doubles take a quarter of the memory of pairs
  readonly #values: number[] = [];

  add(time: number, value: number): void {
    this.#times.push(time);
    this.#values.push(value);
    while ((this.#times[0] ?? Infinity) <= time - KEEP_MS) {
      this.#times.shift();
      this.#values.shift();
    }
  }

  /** The usual time between two samples on a page, which receives only some samples of a long series. */
  get intervalMs(): number {
    const times = this.#times;
    return Math.max(INTERVAL_MS, ((times.at(-1) ?? 0) - (times[0] ?? 0)) / MAX_SAMPLES);
  }

  /** The samples after a time. Of too many, it returns the last in each interval. */
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

/** The series of one system, by name. */
export class SeriesGroup {
  readonly #series: Map<string, Series> = new Map(); // the latest last
  #sampledAt = 0;

  /** Whether the next sample is due: the board may read a system more often. */
  get isDue(): boolean {
    return steadyNow() - this.#sampledAt >= INTERVAL_MS * DUE;
  }

  get(name: string): Series | undefined {
    return this.#series.get(name);
  }

  add(time: number, numbers: readonly [name: string, value: number][]): void {
    this.#sampledAt = steadyNow();
    for (const [name, value] of numbers.slice(0, MAX_SERIES)) this.#seriesOf(name).add(time, value);
  }

  /** Drops the oldest series if there are too many: a program may use other names each time. */
  #seriesOf(name: string): Series {
    const series = this.#series.get(name) ?? new Series();
    this.#series.delete(name);
    this.#series.set(name, series);
    for (const oldest of this.#series.keys()) {
      if (this.#series.size <= MAX_SERIES) break;
      this.#series.delete(oldest);
    }
    return series;
  }
}
