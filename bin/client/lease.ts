// The pauses of one sender: pause --for, and resume --mine, which ends one.

import { setMaxListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { EXIT, warn } from '../shared/cli.ts';
import { ADDRESS_PARTS, statusNameOf } from '../shared/client.ts';
import { commandsOf, describeCause, hasEnded } from '../shared/describe.ts';
import { type Body, localTime } from '../shared/text.ts';
import { finish, optionsOf, refuse, type SENDING, type Sending } from './send.ts';
import { failure, type Outcome, SIGNALS, type Task } from './verb.ts';
import type { Target } from '../shared/folder.ts';
import type { Sources } from '../shared/names.ts';

const CHECK_MS = 30_000; // timers stop while the machine is suspended, so the clock is read this often

/** Releases the pause of the sender, which resumes the system if nobody else has paused it. */
export async function resumeMine(target: Target, values: Sending): Promise<Outcome> {
  const { client } = target;
  const reply = await client.request('info');
  const refused = refuse('resume', '--mine', reply);
  if (refused !== null) return refused;
  const isPausing = commandsOf(reply.body).some((entry) => entry['command'] === 'pause' && !hasEnded(entry));
  const before = statusNameOf(reply);
  if (before === 'active' && !isPausing) return { exitCode: EXIT.DONE, text: before, json: { status: before } };
  const options = { ...optionsOf(values, target), mine: true, output: undefined };
  const resumed = await finish(client, 'resume', options);
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

/** Pauses systems, and resumes them later. A signal that ends it leaves them paused. */
export async function pauseFor(durationMs: number, { words, values, each }: Task<typeof SENDING>): Promise<void> {
  const end = new AbortController();
  const { signal } = end;
  setMaxListeners(0, signal); // a listener per target
  const interrupt = (name: NodeJS.Signals): void => end.abort(name);
  for (const name of SIGNALS) process.once(name, interrupt);
  const paused: Target[] = [];
  await each(async (target) => {
    if (signal.aborted) return null;
    const { client } = target;
    const reply = await client.request('info', { signal });
    const outcome = refuse('pause', '--for', reply) ??
      await finish(client, 'pause', { ...optionsOf(values, target), signal });
    const { exitCode, isSent = true } = outcome;
    const isPending = exitCode === EXIT.NOT_REACHED || exitCode === EXIT.NO_ANSWER; // it may still be paused
    if (isSent && (exitCode === EXIT.DONE || isPending)) paused.push(target);
    return outcome;
  });
  if (paused.length > 0) await sleepUntil(Date.now() + durationMs, signal);
  for (const name of SIGNALS) process.off(name, interrupt);
  if (signal.aborted) {
    const rest = `: paused systems stay paused; to resume them: ${resumeLineFor(words, values)}`;
    warn(`interrupted${paused.length === 0 ? '' : rest}`);
    return void process.kill(process.pid, signal.reason as string); // so that a shell ends the loop around it, too
  }
  const ofResume = { ...values, reason: undefined, wait: false, within: undefined }; // it does not expire
  await each((target) => resumeMine(target, ofResume), paused);
}

async function sleepUntil(time: number, signal: AbortSignal): Promise<void> {
  if (process.stderr.isTTY) console.error(`until ${localTime(new Date(time))}; Ctrl-C leaves it paused`);
  for (let left = time - Date.now(); left > 0 && !signal.aborted; left = time - Date.now()) {
    await sleep(Math.min(left, CHECK_MS), undefined, { signal }).catch(() => {});
  }
}

/** The command line that resumes what `pause --for` with these arguments has paused. */
function resumeLineFor(words: readonly string[], values: Sources & Sending): string {
  const options = ([...ADDRESS_PARTS, 'targets', 'dir', 'by'] as const)
    .flatMap((name) => values[name] === undefined ? [] : [`--${name}=${values[name]}`]);
  const via = values.via?.map((text) => `--via=${text}`) ?? [];
  const all = ['resume', '--mine', ...values.all === true ? ['--all'] : [], ...options, ...via, ...words];
  const isPlain = /^[\w@%+=:,./-]+$/;
  const quoted = all.map((word) => isPlain.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
  return `control-client ${quoted.join(' ')}`;
}
