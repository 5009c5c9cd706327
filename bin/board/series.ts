// The numbers in the detail of a system over time.

const HOUR_MS = 3_600_000;
const MAX_SAMPLES = 300; // in one response to a page: a plot has fewer pixels
const STEPS = 64; // limitSamples() drops the oldest 64th of the time that all series cover
const MAX_SERIES = 32; // of a system
const DUE = 0.95; // of the interval: a timer may fire early

/** How often samples are taken and how long they are kept. */
export interface Period {
  intervalMs: number;
  keepMs: number;
}

/** For samples that are taken while a page is open. */
export const LIVE: Period = { intervalMs: 1000, keepMs: HOUR_MS };

/** For samples that are taken all the time (`--record`). */
export const RECORD: Period = { intervalMs: 10_000, keepMs: 24 * HOUR_MS };

/** The number of samples in all series together: 45 MB. */
const MAX_TOTAL = 2_000_000;

/** The time in milliseconds, and the value. */
export type Sample = [time: number, value: number];

/** The time in milliseconds by a clock that is never set: a step of the wall clock would distort the plots. */
export function steadyNow(): number {
  return Math.floor(performance.timeOrigin + performance.now());
}

/** The samples of one number. */
export class Series {
  readonly #times: number[] = []; // two arrays of doubles take a quarter of the memory of pairs
  readonly #values: number[] = [];
  readonly #period: Period;

  constructor(period: Period = LIVE) {
    this.#period = period;
  }

  add(time: number, value: number): void {
    this.#times.push(time);
    this.#values.push(value);
    this.dropUntil(time - this.#period.keepMs);
  }

  get length(): number {
    return this.#times.length;
  }

  /** The time of the first sample; Infinity if there is none. */
  get start(): number {
    return this.#times[0] ?? Infinity;
  }

  dropUntil(time: number): void {
    while (this.start <= time) {
      this.#times.shift();
      this.#values.shift();
    }
  }

  /** The usual time between two samples on a page, which receives only some samples of a long series. */
  get intervalMs(): number {
    const times = this.#times;
    return Math.max(this.#period.intervalMs, ((times.at(-1) ?? 0) - (times[0] ?? 0)) / MAX_SAMPLES);
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
  readonly #period: Period;
  #sampledAt = 0;

  constructor(period: Period) {
    this.#period = period;
  }

  /** Whether the next sample is due: the board may read a system more often. */
  get isDue(): boolean {
    return steadyNow() - this.#sampledAt >= this.#period.intervalMs * DUE;
  }

  get all(): Iterable<Series> {
    return this.#series.values();
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
    const series = this.#series.get(name) ?? new Series(this.#period);
    this.#series.delete(name);
    this.#series.set(name, series);
    for (const oldest of this.#series.keys()) {
      if (this.#series.size <= MAX_SERIES) break;
      this.#series.delete(oldest);
    }
    return series;
  }
}

/** Drops the oldest samples of all series together until there are few enough. */
export function limitSamples(all: readonly Series[], maxTotal: number = MAX_TOTAL): void {
  const count = (): number => all.reduce((sum, { length }) => sum + length, 0);
  while (count() > maxTotal) {
    const start = all.reduce((least, series) => Math.min(least, series.start), Infinity);
    for (const series of all) series.dropUntil(start + Math.max(0, steadyNow() - start) / STEPS);
  }
}
