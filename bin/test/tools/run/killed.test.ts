// kill -9 of control-run at random moments: no process of the program stays behind, stopped or running.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { chmodSync, copyFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { makeFolder, perform, start } from '../../helpers.ts';
import { randomNumbers } from '../../module/helpers.ts';
import { lacks } from '../../needs.ts';
import { until } from '../../wait.ts';
import { BANNER, cgroupsOf, keepersOf, killAll, listTasks, tryRead, WAYS } from './helpers.ts';
import type { ControlCommand } from '../../../../control.ts';
import type { Running } from '../../helpers.ts';
import type { Task } from './helpers.ts';
import type { TestContext } from 'node:test';

const KILLS = Number(process.env['KILLS'] ?? 12); // KILLS=100 takes some minutes
const SEED = Number(process.env['SEED'] ?? Date.now() % 1_000_000);

/**
 * Its processes ignore SIGTERM, have no environment, or have left their session or parent, and new ones keep starting.
 * Each has the path of the folder in its command line.
 */
const PROGRAM = `
sh -c 'trap "" TERM; while :; do "$0/nap" 98765; done' "$0" &
setsid env -i sh -c 'trap "" TERM; while :; do "$0/nap" 98765; done' "$0" &
(setsid sh -c '"$0/nap" 98765; :' "$0" &)
sh -c 'while :; do "$0/nap" 0.02; done' "$0" &
echo ready
while :; do "$0/nap" 98765 & wait; done`;

interface Victim {
  running: Running;
  send(command: ControlCommand): Promise<unknown>;
  killProgram(): void;
}

interface Phase {
  /** The kill comes after a random part of this time. */
  limitMs: number;
  /** The program is ready before, unless it starts. */
  starts?: 'active' | 'paused';
  prepare?(victim: Victim): unknown;
}

const PHASES: Record<string, Phase> = {
  start: { limitMs: 600, starts: 'active' },
  'a paused start': { limitMs: 600, starts: 'paused' },
  active: { limitMs: 200 },
  pausing: { limitMs: 40, prepare: ({ send }) => void send('pause') },
  paused: { limitMs: 100, prepare: ({ send }) => send('pause') },
  resuming: { limitMs: 20, prepare: ({ send }) => send('pause').then(() => void send('resume')) },
  saving: { limitMs: 200, prepare: ({ send }) => void send('save-state') },
  'shutting down': { limitMs: 2000, prepare: ({ send }) => void send('shutdown') },
  'waiting for a restart': {
    limitMs: 1300,
    prepare: ({ killProgram, running }) => {
      killProgram();
      return running.shows(/restart 1 in 1 s/);
    },
  },
};

const NAMES = Object.keys(PHASES);

describe('control-run: kill -9', { concurrency: 4, timeout: 3_600_000, skip: lacks('Linux', 'setsid') }, () => {
  for (const [index, { name, skip, line }] of WAYS.entries()) {
    it(`leaves nothing of a program that runs ${name}, with SEED=${SEED}`, { skip }, async (t) => {
      const random = randomNumbers(SEED + index);
      const words = line(t);
      const kills = Math.ceil(KILLS / WAYS.length);
      const counts: Record<string, number> = {};
      for (let count = 0; count < kills; count += 1) {
        const phase = NAMES[(SEED + index * kills + count) % NAMES.length] as string; // all, if there are enough kills
        counts[phase] = (counts[phase] ?? 0) + 1;
        await kill(t, words, phase, random());
      }
      t.diagnostic(JSON.stringify(counts));
    });
  }

  it('leaves nothing stopped even if control-run has been deleted meanwhile', async (t) => {
    const { copy, running, isGone } = await pauseCopy(t);
    rmSync(copy);
    running.child.kill('SIGKILL');
    await isGone();
  });

  it('leaves nothing stopped after pkill -9 -f control-run, which does not find the keeper', async (t) => {
    const { copy, running, isGone } = await pauseCopy(t);
    const lineOf = (pid: number): string => tryRead(`/proc/${pid}/cmdline`);
    assert.deepEqual(keepersOf(running).map((pid) => lineOf(pid).includes('control-run')), [false]);
    killAll(listTasks().map(({ pid }) => pid).filter((pid) => lineOf(pid).includes(copy))); // only those of this test
    await isGone();
  });
});

/** Pauses a program that runs under a copy of control-run. */
async function pauseCopy(t: TestContext): Promise<{ copy: string; running: Running; isGone(): Promise<void> }> {
  const copy = join(makeFolder(t), "control-run's.mjs");
  copyFileSync('dist/bin/run.js', copy);
  const line = ['--port', '0', '--', 'sh', '-c', 'echo $$ ready; while :; do sleep 0.05; done'];
  const running = start(t, process.execPath, [copy, ...line]);
  await Promise.all([running.shows(BANNER), running.shows(/ready/)]);
  await perform(Number(BANNER.exec(running.output())?.[2]), 'pause');
  const pid = Number(/(\d+) ready/.exec(running.output())?.[1]);
  t.after(() => killAll([pid]));
  const isGone = (): Promise<void> => until(() => listTasks().every((one) => one.pid !== pid), () => `${pid} is left`);
  return { copy, running, isGone };
}

async function kill(
  t: TestContext,
  [file, ...args]: [string, ...string[]],
  phase: string,
  part: number,
): Promise<void> {
  const { limitMs, starts, prepare } = PHASES[phase] as Phase;
  const folder = makeFolder(t);
  chmodSync(folder, 0o777);
  const state = join(folder, 'state');
  if (starts === 'paused') writeFileSync(state, '{"status":"paused"}');
  symlinkSync(execFileSync('sh', ['-c', 'command -v sleep'], { encoding: 'utf8' }).trim(), join(folder, 'nap'));
  const options = ['--port', '0', '--grace', '1', '--restart', 'on-failure', '--save-command', `'${folder}/nap' 0.2`];
  const command = ['sh', '-c', PROGRAM, folder];
  const running = start(t, file, [...args, ...options, '--state', state, '--', ...command]);
  const own = running.child.pid as number;
  const find = (text: string): Task[] => {
    return listTasks().filter(({ pid }) => tryRead(`/proc/${pid}/cmdline`).includes(text));
  };
  const list = (): number[] => find(folder).map(({ pid }) => pid);
  t.after(() => killAll(list()));
  const killProgram = (): void => {
    for (let pids = list(); pids.length > 1; pids = list()) killAll(pids.filter((pid) => pid !== own));
  };
  const send = (command: ControlCommand): Promise<unknown> => {
    return perform(Number(BANNER.exec(running.output())?.[2]), command).catch(() => {}); // it may never be done
  };
  if (starts === undefined) await Promise.all([running.shows(BANNER), running.shows(/ready/)]);
  await prepare?.({ running, send, killProgram });
  await sleep(part * limitMs);
  running.child.kill('SIGKILL');
  const left = (): string[] => [
    ...[...find(folder), ...find(`keeper-${own}\0`)].map(({ pid, name, state }) => `${pid} ${name} ${state}`),
    ...cgroupsOf(running),
  ];
  await until(() => left().length === 0, () => `left ${phase}, ${part * limitMs} ms: ${left().join(', ')}`);
}
