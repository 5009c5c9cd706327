// gpu.ts: the order of the calls of cuda-checkpoint, and what happens if one fails.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { Gpu } from '../../../run/gpu.ts';
import { LIMIT, start, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { Cuda } from './cuda.ts';
import { readLines, shell } from './helpers.ts';
import type { Action } from './cuda.ts';
import type { TestContext } from 'node:test';

const ILLEGAL = 'the operation cannot be performed in the present state';

interface Setup {
  cuda: Cuda;
  gpu: Gpu;
  /** In ascending order. */
  pids: number[];
}

/** Starts processes that use CUDA, and puts the stand-in on the PATH of this process. */
async function setUp(t: TestContext, count: number = 2): Promise<Setup> {
  const cuda = new Cuda(t);
  const path = process.env['PATH'];
  process.env['PATH'] = cuda.path;
  t.after(() => (process.env['PATH'] = path));
  const pids = await Promise.all(Array.from({ length: count }, () => startShell(t, [cuda.shell, '-c', cuda.start])));
  return { cuda, gpu: Gpu.find(), pids: pids.sort((one, other) => one - other) };
}

/** Starts a shell that waits after its script. Returns its process id. */
async function startShell(t: TestContext, [file, ...args]: string[]): Promise<number> {
  const [option = '', script = ''] = args;
  const running = start(t, file as string, [option, `${script}; echo ready; read end`]);
  await running.shows(/ready/);
  return running.child.pid as number;
}

function each(pids: readonly number[], ...actions: string[]): string[] {
  return actions.flatMap((action) => pids.map((pid) => (action === 'lock' ? `lock ${pid} 10000` : `${action} ${pid}`)));
}

async function messageOf(promise: Promise<void>): Promise<string> {
  return await promise.then(() => assert.fail('it has not failed'), (error: Error) => error.message);
}

describe('Gpu', { ...LIMIT, skip: lacks('Linux') }, () => {
  it('asks processes with a CUDA thread; without any, those that have loaded the driver', async (t) => {
    const { cuda, gpu, pids } = await setUp(t, 1);
    const stranger = await startShell(t, shell(':'));
    const loaded = await Promise.all(Array.from({ length: 9 }, () => startShell(t, [cuda.shell, '-c', ':'])));
    await gpu.release([stranger, 2 ** 22 + 1]);
    assert.deepEqual([cuda.calls(), gpu.isReleased], [[], false]);
    await gpu.release([stranger, ...loaded, ...pids]);
    assert.deepEqual(cuda.calls(), each(pids, 'get-state', 'lock', 'checkpoint', 'get-state'));
    await gpu.restore();
    cuda.calls();
    const pid = loaded.at(-1) as number;
    cuda.setState(pid, 'running');
    await gpu.release([stranger, ...loaded]);
    assert.deepEqual(cuda.calls().slice(loaded.length), each([pid], 'lock', 'checkpoint', 'get-state'));
  });

  it('leaves alone what another tool has checkpointed, and fails if a process is in another state', async (t) => {
    const { cuda, gpu, pids } = await setUp(t);
    const [one, other] = pids as [number, number];
    cuda.setState(one, 'checkpointed');
    await gpu.release(pids);
    await gpu.restore();
    const steps = ['lock', 'checkpoint', 'get-state', 'restore', 'unlock', 'get-state'];
    assert.deepEqual(cuda.calls().slice(2), each([other], ...steps));
    for (const state of ['locked', 'failed']) {
      cuda.setState(one, state);
      assert.equal(await messageOf(gpu.release(pids)), `the GPU cannot be released: process ${one}: ${state}`);
    }
    cuda.on(one, 'get-state', 'fail "operation not permitted"');
    assert.equal(
      await messageOf(gpu.release(pids)),
      `the GPU cannot be released: process ${one}: Error getting process state for process ID ${one}: ` +
      '"operation not permitted"',
    );
    assert.deepEqual([cuda.stateOf(other), gpu.isReleased], ['running', false]);
  });

  const LOOK = '"$folder/$pid.get-state"';
  const CHECKPOINT = 'the GPU cannot be released: process PID could not be checkpointed: ';
  const UNSUPPORTED = `${CHECKPOINT}Could not checkpoint on process ID PID: "operation not supported"`;
  /** `then` is the state of the process that fails, PID in the error. */
  const FAILURES: [what: string, action: Action, script: string, error: string, then: string][] = [
    ['a lock fails', 'lock', "fail 'device not ready'",
      'the GPU is busy: process PID could not be locked within 10 s: ' +
      'Could not lock on process ID PID: "device not ready"', 'running'],
    ['a lock takes effect but is reported as failed', 'lock', "become locked; fail 'unknown error'",
      'the GPU cannot be released: process PID could not be locked within 10 s: ' +
      'Could not lock on process ID PID: "unknown error"', 'running'],
    ['a checkpoint fails and has no effect', 'checkpoint', "fail 'operation not supported'", UNSUPPORTED, 'running'],
    ['a checkpoint fails but has an effect', 'checkpoint', "become checkpointed; fail 'operation not supported'",
      UNSUPPORTED, 'running'],
    ['a checkpoint breaks its process', 'checkpoint', "become failed; fail 'operation not supported'", UNSUPPORTED,
      'failed'], // nothing helps it
    ['a checkpoint has exit code 0 but no effect', 'checkpoint', 'exit 0', `${CHECKPOINT}it is locked`, 'running'],
    ['a checkpoint has exit code 0 but undoes the lock', 'checkpoint', 'become running; exit 0',
      `${CHECKPOINT}it is running`, 'running'],
    ['it cannot learn whether a checkpoint had an effect', 'checkpoint',
      `echo 'rm ${LOOK}; fail "device lost"' > ${LOOK}`,
      `${CHECKPOINT}Error getting process state for process ID PID: "device lost"`, 'running'],
  ];
  it('locks all processes before it checkpoints any; if one fails, it leaves the others running', async (t) => {
    const { cuda, gpu, pids } = await setUp(t, 3);
    const [one, late, other] = pids as [number, number, number];
    assert.equal(gpu.isReleased, false);
    await gpu.release(pids);
    assert.deepEqual(cuda.calls(), each(pids, 'get-state', 'lock', 'checkpoint', 'get-state'));
    assert.equal(gpu.isReleased, true);
    await gpu.restore();
    assert.deepEqual(cuda.calls(), each(pids, 'restore', 'unlock', 'get-state'), 'all are restored before any runs');
    for (const [what, action, script, error, then] of FAILURES) {
      cuda.setState(late, 'running');
      cuda.on(late, action, script);
      assert.equal(await messageOf(gpu.release(pids)), error.replaceAll('PID', `${late}`), what);
      const states = [one, late, other].map((pid) => cuda.stateOf(pid));
      assert.deepEqual([...states, gpu.isReleased], ['running', then, 'running', false], what);
      const calls = cuda.calls();
      assert.ok(calls.lastIndexOf(`get-state ${late}`) > calls.lastIndexOf(`unlock ${other}`), `${what}: it is last`);
      cuda.on(late, action, '');
    }
  });

  const CANNOT_RESTORE = 'the GPU cannot be restored: process PID could not be restored: ';
  const CANNOT_UNLOCK = 'the GPU cannot be restored: process PID could not be unlocked: ';
  const BLOCKED: [what: string, scripts: [Action, string][], error: string, state: string][] = [
    ['there is no memory', [['restore', "fail 'out of memory'"]],
      "the GPU's memory is in use: process PID could not be restored: " +
      'Could not restore on process ID PID: "out of memory"', 'checkpointed'],
    ['a restore fails', [['restore', "fail 'unknown error'"]],
      `${CANNOT_RESTORE}Could not restore on process ID PID: "unknown error"`, 'checkpointed'],
    ['an unlock fails', [['unlock', `fail '${ILLEGAL}'`]],
      `${CANNOT_UNLOCK}Could not unlock on process ID PID: "${ILLEGAL}"`, 'locked'],
    ['a restore has no effect', [['restore', 'exit 0'], ['unlock', 'exit 0']],
      `${CANNOT_RESTORE}it is checkpointed`, 'checkpointed'],
    ['an unlock has no effect', [['unlock', 'exit 0']], `${CANNOT_UNLOCK}it is locked`, 'locked'],
  ];
  it('keeps what is still blocked, and continues from there; asks for enough memory first', async (t) => {
    const { cuda, gpu, pids } = await setUp(t);
    const [one, other] = pids as [number, number];
    for (const [what, scripts, error, state] of BLOCKED) {
      await gpu.release(pids);
      for (const [action, script] of scripts) cuda.on(other, action, script);
      for (let count = 0; count < 2; count += 1) {
        assert.equal(await messageOf(gpu.restore()), error.replaceAll('PID', `${other}`), what);
        assert.deepEqual([cuda.stateOf(other), gpu.isReleased], [state, true], what);
      }
      for (const [action] of scripts) cuda.on(other, action, '');
      await gpu.restore();
      assert.deepEqual([...pids.map((pid) => cuda.stateOf(pid)), gpu.isReleased], ['running', 'running', false], what);
    }
    cuda.setMemory([[one, 'GPU-a', 700], [other, 'GPU-a', 800], [other, 'GPU-b', 9], [1, 'GPU-a', 5000]], {});
    await gpu.release(pids);
    cuda.calls();
    cuda.setMemory([], { 'GPU-b': 9, 'GPU-a': 1499 });
    const error = "the GPU's memory is in use: 1500 MiB needed, 1499 MiB free on GPU-a";
    assert.equal(await messageOf(gpu.restore()), error);
    assert.deepEqual([cuda.calls(), gpu.isReleased], [[], true]);
    cuda.setMemory([], { 'GPU-b': 9, 'GPU-a': 1500 });
    await gpu.restore();
    assert.equal(gpu.isReleased, false);
  });

  it('ignores processes that end meanwhile', async (t) => {
    const { cuda, gpu, pids } = await setUp(t, 5);
    const [early, second, third, fourth, last] = pids as [number, number, number, number, number];
    const ends = (pid: number): string => `kill -KILL ${pid}; while grep -q . /proc/${pid}/maps; do :; done; exit 1`;
    cuda.on(early, 'get-state', ends(early));
    cuda.on(second, 'lock', ends(second));
    cuda.on(third, 'checkpoint', ends(third));
    await gpu.release(pids);
    process.kill(fourth, 'SIGKILL');
    await until(() => readLines(`/proc/${fourth}/maps`).length === 0);
    cuda.on(last, 'restore', ends(last));
    cuda.calls();
    await gpu.restore();
    assert.deepEqual(cuda.calls(), [`restore ${last}`]);
    assert.equal(gpu.isReleased, false);
  });

  it('kills a tool that hangs', async (t) => {
    const { cuda, gpu, pids } = await setUp(t, 1);
    const [pid] = pids as [number];
    cuda.on(pid, 'get-state', 'sleep 98765');
    t.mock.timers.enable({ apis: ['setTimeout'] });
    const released = messageOf(gpu.release(pids));
    while (cuda.calls().length === 0) await nextTurn();
    t.mock.timers.tick(30_000);
    const text = 'cuda-checkpoint did not respond within 30 s';
    assert.equal(await released, `the GPU cannot be released: process ${pid}: ${text}`);
  });
});
