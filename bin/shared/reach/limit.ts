// Work with a time limit, and how long it took.

/**
 * Runs work with a signal that aborts after a time, or when the given signal does. Node 20 garbage-collects an
 * `AbortSignal.timeout()` to which only `AbortSignal.any()` refers, and it never aborts.
 */
export async function withLimit<T>(
  limitMs: number,
  signal: AbortSignal,
  work: (limit: AbortSignal) => Promise<T>,
): Promise<T> {
  const limit = new AbortController();
  const end = (): void => limit.abort();
  const timer = setTimeout(end, limitMs);
  signal.addEventListener('abort', end);
  if (signal.aborted) end();
  try {
    return await work(limit.signal);
  } finally {
    clearTimeout(timer);
    signal.removeEventListener('abort', end);
  }
}

/** @param start The value of `performance.now()` at the start. */
export function elapsedSeconds(start: number): number {
  return Number(((performance.now() - start) / 1000).toFixed(3));
}
