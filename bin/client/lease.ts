// control-client resume --mine and pause --for: a pause that ends unless somebody else has paused the system, too.

import { setMaxListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { commandsOf, describeAuthor, localTime, MAX_COMMANDS } from '../shared/words/describe.ts';
import { EXIT, warn } from '../shared/line/options.ts';
import { inParallel } from '../shared/reach/targets.ts';
import { failure, finish } from './send.ts';
import type { Body } from '../shared/words/describe.ts';
import type { FollowOptions } from '../shared/reach/follow.ts';
import type { FailedReply, PrintableClient } from '../shared/reach/replies.ts';
import type { Target } from '../shared/reach/targets.ts';
import type { Outcome, send } from './send.ts';

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const; // SIGHUP: the terminal was closed
const CHECK_MS = 30_000; // timers stop while the machine is suspended, so the clock is read this often

/** Resumes a system that nobody but the sender has paused. Sends nothing to an active system. */
export async function resumeMine(
  client: PrintableClient,
  act: typeof send,
  options: FollowOptions,
): Promise<Outcome> {
  const reply = await client.request('info');
  if (!reply.ok) return notSent('resume', reply);
  const { body, value: status } = reply;
  const isPaused = status === 'paused' || status === 'pausing';
  const pauses = pausesOf(body, isPaused);
  if (pauses.length === 0 && status === 'active') return { exitCode: EXIT.DONE, text: status, json: { status } };
  const foreign = pauses.find(({ by }) => by !== options.by);
  if (foreign === undefined && knowsPauses(body)) return act(client, 'resume', options);
  const { by, reason } = foreign ?? {};
  const what = isPaused ? 'paused' : 'about to be paused';
  const known = `${what}${describeAuthor({ by: by ?? 'an unknown sender', reason })}`;
  const error = `not resumed: ${foreign === undefined ? 'the system no longer reports who else has paused it' : known}`;
  return { exitCode: EXIT.REFUSED, json: { status, by, reason, error }, error };
}

/** Pauses a system if it reports who has paused it; otherwise `resumeMine()` would never resume it. */
export async function pauseMine(client: PrintableClient, options: FollowOptions): Promise<Outcome> {
  const reply = await client.request('info', { signal: options.signal });
  return reply.ok ? finish(client, 'pause', options) : notSent('pause', reply);
}

function notSent(command: string, reply: FailedReply): Outcome {
  const [error = '', original = ''] = [reply.error, reply.original].map((text) => `${command} not sent: ${text}`);
  return { ...failure({ ...reply, error, original }), isSent: false };
}

/**
 * Who wants the system paused: each pause since the last resume that has not failed, and the cause of the status. The
 * cause is the first pause, which the list of commands may have dropped. It may have the reason of a later pause, so it
 * comes last.
 *
 * @param isPaused If false, the program itself has undone the completed pauses.
 */
function pausesOf(info: Body, isPaused: boolean): Body[] {
  const commands = commandsOf(info).filter(({ state }) => state !== 'failed');
  const latest = commands.slice(commands.map(({ command }) => command).lastIndexOf('resume') + 1);
  const pauses = latest.filter(({ command, state }) => command === 'pause' && (isPaused || state !== 'done'));
  return isPaused ? [...pauses, info] : pauses;
}

/** Whether the list of commands is complete, or reaches back to a resume or to before the current status. */
function knowsPauses(info: Body): boolean {
  const commands = commandsOf(info);
  const hasResume = commands.some(({ command, state }) => command === 'resume' && state !== 'failed');
  if (commands.length < MAX_COMMANDS || hasResume) return true;
  return Date.parse(String(commands[0]?.['at'])) <= Date.parse(String(info['since']));
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
    warn(`interrupted: paused systems stay paused; to resume them: ${resumeLine}`);
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
