// The values of a number over the last hour.

const HOUR_MS = 3_600_000;
const MAX_SAMPLES = 300; // that a page is sent at once: a plot has fewer pixels

/** The time in milliseconds, and the value. */
export type Sample = [time: number, value: number];

export class Series {
  readonly #times: number[] = []; // two arrays of plain doubles take a quarter of the memory of pairs
  readonly #values: number[] = [];

  add(time: number, value: number): void {
    this.#times.push(time);
    this.#values.push(value);
    while ((this.#times[0] as number) <= time - HOUR_MS) {
      this.#times.shift();
      this.#values.shift();
    }
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
