// Waits that end: a test fails within seconds when what it waits for does not come, and never because others are busy.

import { readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';

const LIMIT_MS = 10_000; // on an idle machine
const TICK_MS = 100;
const POLL_MS = 20;
const UNKNOWN_SHARE = 1 / 6;

/** How long this process could have run by now, with its share of the CPUs. */
let fairMs = 0;
let lastMs = performance.now();
const checks: Set<() => void> = new Set();
setInterval(() => { // of Node, even if a test replaces it
  const nowMs = performance.now();
  fairMs += Math.min(nowMs - lastMs, 2 * TICK_MS) * shareOfCpu();
  lastMs = nowMs;
  for (const check of checks) check();
}, TICK_MS).unref();

/** What a process gets of a CPU that wants one: all of it on an idle machine, 0.1 if 20 want the same two. */
function shareOfCpu(): number {
  try {
    const [, running] = / (\d+)\//.exec(readFileSync('/proc/loadavg', 'utf8')) ?? [];
    return Math.min(1, availableParallelism() / Number(running));
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
  while (!(await isTrue())) {
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

/** The same for a promise that is waited for later: its time begins with `then()`, and so with `await`. */
export function limited<Value>(promise: Promise<Value>, what: () => string, limitMs?: number): Promise<Value> {
  const wait = (): Promise<Value> => inTime(promise, what, limitMs);
  return {
    then: (...handlers) => wait().then(...handlers),
    catch: (handler) => wait().catch(handler),
    finally: (handler) => wait().finally(handler),
    [Symbol.toStringTag]: 'Promise',
  };
}
