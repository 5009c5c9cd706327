// release-gpu.sh of the recipes under control-run: the order of its calls, and what a failure leaves.

import assert from 'node:assert/strict';
import { resolve } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { SystemStatus } from '../../../../control.ts';
import { perform } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { type Action, Cuda } from './cuda.ts';
import { startRun, type StartedRun, stateOf, WAIT } from './helpers.ts';

interface Setup extends StartedRun {
  cuda: Cuda;
  /** In ascending order. */
  pids: number[];
}

/** Starts a program of which two processes use CUDA, and one has loaded its driver only. */
async function setUp(t: TestContext): Promise<Setup> {
  const cuda = new Cuda(t);
  const use = `${cuda.start}; echo pid $$`;
  const script = `${cuda.shell} -c '${use}; ${WAIT}' & ${cuda.shell} -c '${WAIT}' & ${use}; echo ready; ${WAIT}`;
  const command = `'${resolve('bin/recipes/release-gpu.sh')}'`;
  const options = ['--pause-command', `${command} release 2>&1`, '--resume-command', `${command} restore 2>&1`];
  const started = await startRun(t, options, [cuda.shell, '-c', script], { PATH: cuda.path });
  await started.running.shows(/(?:[^]*pid \d+\n){2}/);
  const pids = [...started.running.output().matchAll(/pid (\d+)\n/g)].map(([, pid]) => Number(pid));
  return { ...started, cuda, pids: pids.sort((one, other) => one - other) };
}

function each(pids: readonly number[], ...actions: string[]): string[] {
  return actions.flatMap((action) => pids.map((pid) => (action === 'lock' ? `lock ${pid} 10000` : `${action} ${pid}`)));
}

describe('release-gpu.sh', { ...LIMIT, skip: lacks('Linux') }, () => {
  it('locks all processes before it checkpoints any; if one fails, it leaves the others running', async (t) => {
    const { cuda, pids, port, client } = await setUp(t);
    const [one, late] = pids as [number, number];
    const states = (): string[] => pids.map((pid) => `${stateOf(pid)} ${cuda.stateOf(pid)}`);
    assert.equal((await perform(port, 'pause'))[0], 200);
    assert.deepEqual([cuda.calls(), states()], [each(pids, 'lock', 'checkpoint'), Array(2).fill('T checkpointed')]);
    assert.equal((await perform(port, 'resume'))[0], 200);
    assert.deepEqual([cuda.calls(), states()], [each(pids, 'restore', 'unlock'), Array(2).fill('S running')]);

    const failures: [what: string, action: Action, script: string, error: string, then: string][] = [
      ['a lock fails', 'lock', "fail 'device not ready'", 'running; Could not lock .*: "device not ready"', 'running'],
      ['a lock takes effect but is reported as failed', 'lock', "become locked; fail 'unknown'", '', 'checkpointed'],
      ['a checkpoint fails and has no effect', 'checkpoint', "fail 'operation not supported'",
        'locked; Could not checkpoint .*: "operation not supported"', 'running'],
      ['a checkpoint has exit code 0 but no effect', 'checkpoint', 'exit 0', 'locked;', 'running'],
      ['a checkpoint undoes the lock', 'checkpoint', 'become running; exit 0', 'running;', 'running'],
      ['its state cannot be asked', 'get-state', "fail 'not permitted'", '.* "not permitted"', 'running'],
    ];
    for (const [what, action, script, error, then] of failures) {
      cuda.on(late, action, script);
      const [statusCode, message] = await perform(port, 'pause');
      const start = 'pause failed: the pause command ended with exit code 1: the GPU cannot be released: process';
      const expected = error === '' ? /^200 / : new RegExp(`^500 ${start} ${late} is ${error}`);
      assert.match(`${statusCode} ${message}`, expected, what);
      assert.deepEqual([cuda.stateOf(one), cuda.stateOf(late)], [error === '' ? then : 'running', then], what);
      assert.equal(await client.getStatus(), error === '' ? SystemStatus.PAUSED : SystemStatus.ACTIVE);
      cuda.on(late, action, '');
      assert.equal((await perform(port, 'resume'))[0], 200);
    }
    cuda.on(late, 'checkpoint', "become failed; fail 'operation not supported'"); // nothing helps it
    const broken = /^pause failed: .*: the GPU cannot be restored: process \d+ is failed;/;
    assert.match(String((await perform(port, 'pause'))[1]), broken);
    assert.deepEqual([cuda.stateOf(one), cuda.stateOf(late)], ['running', 'failed']);
  });

  it('does not checkpoint what another tool has, and continues after a release that was not undone', async (t) => {
    const { cuda, pids, port } = await setUp(t);
    const [one, late] = pids as [number, number];
    cuda.setState(one, 'checkpointed');
    await perform(port, 'pause');
    assert.deepEqual(cuda.calls(), each([late], 'lock', 'checkpoint'));
    await perform(port, 'resume');
    cuda.on(late, 'checkpoint', 'exit 0');
    cuda.on(late, 'unlock', 'exit 0');
    assert.match(String((await perform(port, 'pause'))[1]), /cannot be restored: process \d+ is locked;/);
    for (const action of ['checkpoint', 'unlock'] as const) cuda.on(late, action, '');
    assert.equal((await perform(port, 'pause'))[0], 200);
    assert.equal((await perform(port, 'resume'))[0], 200);
    assert.deepEqual([cuda.stateOf(one), cuda.stateOf(late)], ['running', 'running']);
  });

  it('fails without cuda-checkpoint', async (t) => {
    const script = resolve('bin/recipes/release-gpu.sh');
    const { running, port } = await startRun(t, ['--pause-command', `'${script}' release`], ['sleep', '98765']);
    const error = 'pause failed: the pause command ended with exit code 1: cuda-checkpoint is not on the PATH';
    assert.deepEqual(await perform(port, 'pause'), [500, error]);
    running.child.kill('SIGTERM');
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
      const [, error] = await perform(port, 'resume');
      const expected = new RegExp(`^resume failed: .*: the GPU cannot be restored: process ${late} is ${then};`);
      assert.match(String(error), expected);
      assert.deepEqual([cuda.stateOf(one), cuda.stateOf(late)], ['running', then]);
      assert.equal(await client.getStatus(), SystemStatus.PAUSED);
      cuda.on(late, action, '');
      assert.equal((await perform(port, 'resume'))[0], 200);
      assert.deepEqual([cuda.stateOf(one), cuda.stateOf(late)], ['running', 'running']);
    }
  });
});
