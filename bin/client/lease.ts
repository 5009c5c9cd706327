// control-client resume --mine and pause --for: release the pause of one sender.

import { setMaxListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { commandsOf, describeCause, hasEnded } from '../shared/words/describe.ts';
import { localTime } from '../shared/words/time.ts';
import { EXIT, warn } from '../shared/line/options.ts';
import { inParallel } from '../shared/reach/targets.ts';
import { failure, finish, notSent, refuseOld } from './send.ts';
import type { Body } from '../shared/words/text.ts';
import type { FollowOptions } from '../shared/reach/follow.ts';
import type { PrintableClient } from '../shared/reach/replies.ts';
import type { Target } from '../shared/reach/targets.ts';
import type { Outcome } from './send.ts';

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const; // SIGHUP: the terminal was closed
const CHECK_MS = 30_000; // timers stop while the machine is suspended, so the clock is read this often

/** Releases the pause of the sender, which resumes the system if nobody else has paused it. */
export async function resumeMine(client: PrintableClient, options: FollowOptions): Promise<Outcome> {
  const reply = await client.request('info');
  const refused = refuseOld('--mine', reply);
  if (refused !== null) return refused;
  if (!reply.ok) return notSent('resume', reply);
  const isPausing = commandsOf(reply.body).some((entry) => entry['command'] === 'pause' && !hasEnded(entry));
  const isActive = reply.value === 'active' && !isPausing;
  if (isActive) return { exitCode: EXIT.DONE, text: reply.value, json: { status: reply.value } };
  const resumed = await finish(client, 'resume', { ...options, mine: true, output: undefined });
  if (resumed.exitCode !== EXIT.DONE) return resumed;
  const latest = await client.request('info');
  if (!latest.ok) return { ...failure(latest), json: { ...resumed.json, status: undefined, error: latest.original } };
  const { value: status, body } = latest;
  const json: Body = { ...resumed.json, status, holds: body['holds'] };
  if (status !== 'paused' && status !== 'pausing') return { exitCode: EXIT.DONE, text: status, json };
  const cause = `${status}${describeCause(body)}`;
  const { released } = Object(json['value']);
  if (released === true) return { exitCode: EXIT.DONE, text: `released; still ${cause}`, json };
  const error = `not resumed: ${options.by} holds no pause; ${cause}`;
  return { exitCode: EXIT.REFUSED, json: { ...json, error }, error };
}

/** Pauses a system if its server can release the pause of one sender; otherwise `resumeMine()` could not end it. */
export async function pauseMine(client: PrintableClient, options: FollowOptions): Promise<Outcome> {
  const reply = await client.request('info', { signal: options.signal });
  return refuseOld('--for', reply) ?? (reply.ok ? finish(client, 'pause', options) : notSent('pause', reply));
}

export interface Lease {
  durationMs: number;
  /** Also prints the outcome. */
  pause(target: Target, signal: AbortSignal): Promise<Outcome>;
  resume(target: Target): Promise<void>;
  /** The command line that resumes all targets, printed if a signal ends the lease. */
  resumeLine: string;
}

/** Pauses systems, and resumes them later. A signal that ends it leaves them paused. */
export async function pauseFor(targets: readonly Target[], lease: Lease): Promise<void> {
  const { durationMs, resumeLine } = lease;
  const end = new AbortController();
  setMaxListeners(0, end.signal); // a listener per target
  const interrupt = (name: NodeJS.Signals): void => end.abort(name);
  for (const name of SIGNALS) process.once(name, interrupt);
  const paused: Target[] = [];
  await inParallel(targets, async (target) => {
    if (end.signal.aborted) return;
    const { exitCode, isSent = true } = await lease.pause(target, end.signal);
    const isPending = exitCode === EXIT.NOT_REACHED || exitCode === EXIT.NO_ANSWER; // it may still be paused
    if (isSent && (exitCode === EXIT.DONE || isPending)) paused.push(target);
  });
  if (paused.length > 0) await sleepUntil(Date.now() + durationMs, end.signal);
  for (const name of SIGNALS) process.off(name, interrupt);
  if (end.signal.aborted) {
    const rest = `: paused systems stay paused; to resume them: ${resumeLine}`;
    warn(`interrupted${paused.length === 0 ? '' : rest}`);
    return void process.kill(process.pid, end.signal.reason as string); // so that a shell ends the loop around it, too
  }
  await inParallel(paused, lease.resume);
}

async function sleepUntil(time: number, signal: AbortSignal): Promise<void> {
  if (process.stderr.isTTY) console.error(`until ${localTime(new Date(time))}; Ctrl-C leaves it paused`);
  for (let left = time - Date.now(); left > 0 && !signal.aborted; left = time - Date.now()) {
    await sleep(Math.min(left, CHECK_MS), undefined, { signal }).catch(() => {});
  }
}
