// Waits that end: a test fails within seconds when what it waits for does not come. The seconds are those in which a
// process could have run, so that a busy machine makes no test fail; without /proc, they are six times as long.

import { readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';

/** For each suite: a test that hangs fails. A slow machine needs a fraction of this time. */
export const LIMIT: { timeout: number } = { timeout: 300_000 };

const LIMIT_MS = 10_000; // of a wait

/** For the end of a program: some wait for 20 s before they say that there is no answer. */
export const END_MS = 30_000;

const TICK_MS = 100;
const POLL_MS = 20;
const UNKNOWN_SHARE = 1 / 6;
const LEAST_SHARE = 1 / 30; // a container sees the processes of the whole machine

const readClock = performance.now.bind(performance); // a test may replace it, and setInterval()
let fairMs = 0;
let lastMs = readClock();
const checks: Set<() => void> = new Set();
setInterval(() => {
  const nowMs = readClock();
  fairMs += Math.min(nowMs - lastMs, 2 * TICK_MS) * shareOfCpu(); // more has passed only if this process did not run
  lastMs = nowMs;
  for (const check of checks) check();
}, TICK_MS).unref();

/** What a process gets of a CPU if it wants one: all of it on an idle machine, 0.1 if 20 want the same two. */
function shareOfCpu(): number {
  try {
    const [, running] = / (\d+)\//.exec(readFileSync('/proc/loadavg', 'utf8')) as unknown as [string, string];
    return Math.max(LEAST_SHARE, Math.min(1, availableParallelism() / Number(running)));
  } catch {
    return UNKNOWN_SHARE;
  }
}

/** Polls until the condition is true; rejects when the time is over. */
export async function until(
  isTrue: () => boolean | Promise<boolean>,
  what: () => string = () => `timed out waiting for: ${isTrue}`,
  limitMs: number = LIMIT_MS,
): Promise<void> {
  const endMs = fairMs + limitMs;
  for (;;) {
    const result = isTrue();
    if (typeof result === 'boolean' ? result : await inTime(result, what, endMs - fairMs)) return;
    if (fairMs > endMs) throw new Error(what());
    await sleep(POLL_MS);
  }
}

/** Settles like the promise, or rejects when the time is over. */
export async function inTime<Value>(
  promise: Promise<Value>,
  what: () => string,
  limitMs: number = LIMIT_MS,
): Promise<Value> {
  const endMs = fairMs + limitMs;
  let check = (): void => {};
  const over = new Promise<never>((_, reject) => {
    check = () => void (fairMs > endMs && reject(new Error(what())));
  });
  checks.add(check);
  return Promise.race([promise, over]).finally(() => checks.delete(check));
}

/** The same for a promise that may be awaited later: its time begins with `await` or `then()`. */
export function limited<Value>(promise: Promise<Value>, what: () => string, limitMs?: number): Promise<Value> {
  const wait = (): Promise<Value> => inTime(promise, what, limitMs);
  return {
    then: (...handlers) => wait().then(...handlers),
    catch: (handler) => wait().catch(handler),
    finally: (handler) => wait().finally(handler),
    [Symbol.toStringTag]: 'Promise',
  };
}
