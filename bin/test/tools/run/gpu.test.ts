// release-gpu.sh of the recipes under control-run: the order of the calls of cuda-checkpoint, and what a failure leaves.

import assert from 'node:assert/strict';
import { resolve } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { SystemStatus } from '../../../../control.ts';
import { LIMIT, perform } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { type Action, Cuda } from './cuda.ts';
import { startRun, type StartedRun, stateOf } from './helpers.ts';

interface Setup extends StartedRun {
  cuda: Cuda;
  /** In ascending order. */
  pids: number[];
}

/** Starts a program of which two processes use CUDA, and one has loaded its driver only. */
async function setUp(t: TestContext): Promise<Setup> {
  const cuda = new Cuda(t);
  const use = `${cuda.start}; echo pid $$`;
  const script = `${cuda.shell} -c '${use}; read end' & ${cuda.shell} -c 'read end' & ${use}; echo ready; read end`;
  const command = `'${resolve('bin/recipes/release-gpu.sh')}'`;
  const options = ['--pause-command', `${command} release 2>&1`, '--resume-command', `${command} restore 2>&1`];
  const started = await startRun(t, options, [cuda.shell, '-c', `exec 3<&0; ${script.replaceAll('read end', 'read end <&3')}`], {
    PATH: cuda.path,
  });
  await started.running.shows(/(?:[^]*pid \d+\n){2}/);
  const pids = [...started.running.output().matchAll(/pid (\d+)\n/g)].map(([, pid]) => Number(pid));
  return { ...started, cuda, pids: pids.sort((one, other) => one - other) };
}

function each(pids: readonly number[], ...actions: string[]): string[] {
  return actions.flatMap((action) => pids.map((pid) => (action === 'lock' ? `lock ${pid} 10000` : `${action} ${pid}`)));
}

describe('release-gpu.sh', { ...LIMIT, skip: lacks('Linux', 'ps') }, () => {
  it('locks all processes before it checkpoints any; if one fails, it leaves the others running', async (t) => {
    const { cuda, pids, port, client } = await setUp(t);
    const [one, late] = pids as [number, number];
    const states = (): string[] => pids.map((pid) => `${stateOf(pid)} ${cuda.stateOf(pid)}`);
    assert.equal((await perform(port, 'pause'))[0], 200);
    assert.deepEqual([cuda.calls(), states()], [each(pids, 'lock', 'checkpoint'), Array(2).fill('T checkpointed')]);
    assert.equal((await perform(port, 'resume'))[0], 200);
    assert.deepEqual([cuda.calls(), states()], [each(pids, 'restore', 'unlock'), Array(2).fill('S running')]);

    const failures: [what: string, action: Action, script: string, then: string][] = [
      ['a lock fails', 'lock', "fail 'device not ready'", 'running'],
      ['a checkpoint fails and has no effect', 'checkpoint', "fail 'operation not supported'", 'running'],
      ['a checkpoint has exit code 0 but no effect', 'checkpoint', 'exit 0', 'running'],
    ];
    for (const [what, action, script, then] of failures) {
      cuda.on(late, action, script);
      const refused = `pause failed: the pause command ended with exit code 1: the GPU cannot be released: process ${late}`;
      assert.deepEqual(await perform(port, 'pause'), [500, refused], what);
      assert.deepEqual([cuda.stateOf(one), cuda.stateOf(late)], ['running', then], what);
      assert.equal(await client.getStatus(), SystemStatus.ACTIVE);
      cuda.on(late, action, '');
    }
    assert.equal((await perform(port, 'pause'))[0], 200);
  });

  it('keeps what is still blocked, and continues from there at the next resume', async (t) => {
    const { cuda, pids, port, client } = await setUp(t);
    const [one, late] = pids as [number, number];
    const blocked: [action: Action, script: string, then: string][] = [
      ['restore', "fail 'out of memory'", 'checkpointed'], ['restore', 'exit 0', 'checkpointed'],
      ['unlock', "fail 'unknown error'", 'locked'],
    ];
    for (const [action, script, then] of blocked) {
      await perform(port, 'pause');
      cuda.on(late, action, script);
      const error = `the resume command ended with exit code 1: the GPU cannot be restored: process ${late}`;
      assert.deepEqual(await perform(port, 'resume'), [500, `resume failed: ${error}`]);
      assert.deepEqual([cuda.stateOf(one), cuda.stateOf(late)], ['running', then]);
      assert.equal(await client.getStatus(), SystemStatus.PAUSED);
      cuda.on(late, action, '');
      assert.equal((await perform(port, 'resume'))[0], 200);
      assert.deepEqual([cuda.stateOf(one), cuda.stateOf(late)], ['running', 'running']);
    }
  });
});
