// Following a command: waiting until the system is where the command takes it.

import { SystemStatus } from '../../control.ts';
import type { ControlCommand, WebApiClient } from '../../control.ts';

/** Where a command takes the system; a save leads nowhere. */
export const TARGETS: Partial<Record<ControlCommand, SystemStatus>> = {
  pause: SystemStatus.PAUSED,
  resume: SystemStatus.ACTIVE,
  shutdown: SystemStatus.OFFLINE,
};

export interface Followed {
  reached: boolean;
  /** The last status read; null if the system never told one. */
  status: SystemStatus | null;
  /** Since the start of the wait. */
  seconds: number;
  /** If it was not reached: what became of it, in words. */
  summary: string;
}

export interface FollowOptions {
  timeoutMs: number;
  /** Ends the wait. */
  signal?: AbortSignal;
  /** Where the states are written as they are reached: `pausing … paused (0.1 s)`. */
  output?: NodeJS.WritableStream | undefined;
}

/**
 * Waits until the system is where a command takes it. Ends early when it is shutting down or gone and so cannot get
 * there any more.
 */
export async function follow(client: WebApiClient, target: SystemStatus, options: FollowOptions): Promise<Followed> {
  const { timeoutMs, signal, output } = options;
  const start = performance.now();
  const deadEnd = new AbortController();
  let status = null as SystemStatus | null;
  const onStatus = (current: SystemStatus): void => {
    status = current;
    output?.write(current.statusName + (current === target ? ' ' : ' … '));
    const isEnd = current === SystemStatus.SHUTTING_DOWN || current === SystemStatus.OFFLINE;
    if (isEnd && target !== SystemStatus.OFFLINE) deadEnd.abort();
  };
  const end = signal === undefined ? deadEnd.signal : AbortSignal.any([deadEnd.signal, signal]);
  const reached = await client.waitFor(target, { timeout: timeoutMs, signal: end, onStatus }).then(
    () => true,
    (error: Error) => {
      if (error.name !== 'TimeoutError' && error.name !== 'AbortError') throw error;
      return false;
    },
  );
  const seconds = (performance.now() - start) / 1000;
  output?.write(`(${seconds.toFixed(1)} s)\n`);
  const state = target === SystemStatus.OFFLINE ? 'gone' : target.statusName;
  const present = status === null ? 'does not tell its status' : `is ${status.statusName}`;
  const hope = deadEnd.signal.aborted ? '' : ', and the command still stands';
  const summary = `not ${state} after ${seconds.toFixed(1)} s: the system ${present}${hope}`;
  return { reached, status, seconds, summary };
}
