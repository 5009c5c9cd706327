// Waits until a command has taken effect.

import { SystemStatus } from '../../control.ts';
import type { ControlCommand, WebApiClient } from '../../control.ts';

/** The status to which each command leads; save-state leads to none. */
export const TARGETS: Partial<Record<ControlCommand, SystemStatus>> = {
  pause: SystemStatus.PAUSED,
  resume: SystemStatus.ACTIVE,
  shutdown: SystemStatus.OFFLINE,
};

export interface Followed {
  reached: boolean;
  /** The latest status; null if the system never reported one. */
  status: SystemStatus | null;
  /** Duration of the wait. */
  seconds: number;
  /** Why the target was not reached, in one line. */
  summary: string;
}

export interface FollowOptions {
  timeoutMs: number;
  /** Ends the wait. */
  signal?: AbortSignal;
  /** Receives each status as it is reported: `pausing … paused (0.1 s)`. */
  output?: NodeJS.WritableStream | undefined;
}

/** Waits for a status. Stops early when the system can no longer reach it: when it is shutting down or offline. */
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
  const current = status === null ? 'does not report its status' : `is ${status.statusName}`;
  const pending = deadEnd.signal.aborted ? '' : '; the command is still pending';
  const summary = `not ${target.statusName} after ${seconds.toFixed(1)} s: the system ${current}${pending}`;
  return { reached, status, seconds, summary };
}
