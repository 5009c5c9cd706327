// ranks.py: all ranks of a program obey in the same step. Here, pipes take the place of torch.distributed and mpi4py,
// which `npm run engines` tries.

import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { getDetail, makeFolder, perform, start } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { exitCodeOf, PYTHON, startRun, stateOf } from './helpers.ts';
import { order } from './talk.ts';
import type { TestContext } from 'node:test';
import type { StartedRun } from './helpers.ts';

const SIZE = 3;

/** A launcher that closes CONTROL_FD, and ranks that note their steps. Files in the folder control what they do. */
const PROGRAM = `
import contextlib, functools, multiprocessing, os, sys, time
from ranks import Ranks
folder, size = sys.argv[1], ${SIZE}
def exists(name): return os.path.exists(f'{folder}/{name}')
class Pipes:
    def __init__(self, rank, ends): self.rank, self.size, self.ends = rank, size, ends
    def send(self, what, rank): self.ends[rank].send(what)
    def receive(self, rank): return self.ends[rank].recv()
pipes = [multiprocessing.Pipe() for _ in range(1, size)]
rank = 0
for one in range(1, size):
    if rank == 0 and os.fork() == 0: rank = one
with contextlib.suppress(KeyError, OSError): os.close(int(os.environ['CONTROL_FD']))
ends = {one: pipes[one - 1][0] for one in range(1, size)} if rank == 0 else {0: pipes[rank - 1][1]}
step = 0
def save():
    if exists('broken') and rank == 1: raise OSError(28, 'No space left on device')
    open(f'{folder}/shard-{step}-{rank}', 'w').close()
    return f'{rank}:{step}'
def scale(by: float, name: str = 'x'):
    """Scales."""
    return [rank * by, name]
def leave(): sys.exit(3) if rank == 1 else None
ranks = Ranks(save, {'scale': functools.partial(scale, name='x'), 'leave': leave}, Pipes(rank, ends), every=2)
while step < 100 or ranks.is_controlled:
    if exists('absent') and rank == 2:
        time.sleep(60)
    time.sleep(.001 * rank)
    step += 1
    with open(f'{folder}/step-{rank}', 'w') as file: file.write(str(step))
    ranks.say(detail={'step': step})
    if ranks.poll(): break
print(f'rank {rank} ended at {step}', flush=True)
if rank == 0:
    for _ in range(1, size): os.wait()
`;

const ROOT = makeFolder({ after }); // the programs write into it until they have ended

function writeProgram(): { folder: string; command: string[] } {
  const folder = mkdtempSync(`${ROOT}/`);
  for (const name of ['control.py', 'ranks.py']) writeFileSync(join(folder, name), readFileSync(`bin/run/${name}`));
  writeFileSync(join(folder, 'train.py'), PROGRAM);
  return { folder, command: [PYTHON, join(folder, 'train.py'), folder] };
}

/** The step of each rank. */
function stepsIn(folder: string): number[] {
  return Array.from({ length: SIZE }, (_, rank) => Number(readFileSync(join(folder, `step-${rank}`), 'utf8')));
}

async function startRanks(t: TestContext): Promise<{ folder: string; run: StartedRun }> {
  const { folder, command } = writeProgram();
  const run = await startRun(t, ['--grace', '1'], command);
  await until(async () => ((await getDetail(run.port)) as { step?: number }).step !== undefined);
  return { folder, run };
}

const suite = { ...LIMIT, concurrency: 3, skip: lacks('Linux', 'python3') };

describe('control-run: the ranks of a Python program', suite, () => {
  it('pause, save, resume and end in the same step, although their launcher has closed CONTROL_FD', async (t) => {
    const { folder, run } = await startRanks(t);
    const shards = new Set<string>();
    for (let round = 0; round < 8; round += 1) {
      assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
      const steps = stepsIn(folder);
      assert.deepEqual(steps, steps.map(() => steps[0]));
      const [, value] = await perform(run.port, 'save-state');
      assert.deepEqual(value, steps.map((step, rank) => `${rank}:${step}`));
      for (let rank = 0; rank < SIZE; rank += 1) shards.add(`shard-${steps[0]}-${rank}`);
      assert.equal(stateOf(run.pid), 'S', 'it waits, and is not stopped');
      assert.deepEqual(stepsIn(folder), steps);
      assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
      await sleep(10 * round);
    }
    assert.equal((await perform(run.port, 'shutdown'))[0], 200);
    assert.equal(await exitCodeOf(run.running), 0);
    const ends = run.running.output().match(/ended at \d+/g) ?? [];
    assert.deepEqual([ends.length, new Set(ends).size], [SIZE, 1], run.running.output());
    const last = stepsIn(folder)[0];
    for (let rank = 0; rank < SIZE; rank += 1) shards.add(`shard-${last}-${rank}`);
    assert.deepEqual(new Set(readdirSync(folder).filter((name) => name.startsWith('shard'))), shards);
  });

  it('execute own commands with the same arguments; a failure names the rank', async (t) => {
    const { folder, run } = await startRanks(t);
    const [, value] = await order(run.port, 'scale', { by: 2 }) as [number, unknown];
    assert.deepEqual(value, [[0, 'x'], [2, 'x'], [4, 'x']]);
    assert.deepEqual(await order(run.port, 'leave'), [500, 'leave failed: rank 1: 3']);
    writeFileSync(join(folder, 'broken'), '');
    const error = 'save-state failed: rank 1: [Errno 28] No space left on device';
    assert.deepEqual(await perform(run.port, 'save-state'), [500, error]);
    assert.equal((await perform(run.port, 'shutdown'))[0], 500, 'the program goes on');
    const [before] = stepsIn(folder);
    await until(() => stepsIn(folder)[0] !== before);
  });

  it('run on without control-run', async (t) => {
    const { command: [file = '', ...args] } = writeProgram();
    const { code, stdout } = await start(t, file, args, { CONTROL_FD: undefined }).ended;
    assert.equal(code, 0);
    assert.deepEqual(stdout.split('\n').sort(), ['', ...[0, 1, 2].map((rank) => `rank ${rank} ended at 100`)]);
  });

  it('that do not call poll() are named, but not during a pause', async (t) => {
    const { folder, run } = await startRanks(t);
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    await sleep(11_500);
    assert.doesNotMatch(run.running.output(), /ranks\.py/);
    writeFileSync(join(folder, 'absent'), '');
    await perform(run.port, 'resume');
    await run.running.shows(/^ranks\.py: poll\(\) has waited 10 s for rank 2$/m);
  });
});
