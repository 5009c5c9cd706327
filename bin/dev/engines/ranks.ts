// Trainings of several processes, which obey in the same step: by torch.distributed and by mpi4py, started by the
// launcher of the page, by mpirun, and on two machines, which are network namespaces.

import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { until } from './engine.ts';
import type { Engine, Expectation, Shell, Step } from './engine.ts';

const ROUNDS = 10;
const LIMIT_S = 5; // of the collectives
const PAUSE_S = 20;

/** Writes the files of a training: it continues from the latest step of which all shards are there. */
export const TRAINING: string = `
  control-run --python >control.py
  control-run --ranks >ranks.py
  cat >train.py <<'END'
import os, sys, time
if sys.argv[1] == 'torch':
    import datetime, torch, torch.distributed as dist
    dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=${LIMIT_S}))
    rank, size = dist.get_rank(), dist.get_world_size()
    def exchange(): dist.all_reduce(torch.ones(1000))
else:
    from mpi4py import MPI
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    def exchange(): MPI.COMM_WORLD.allreduce(1)
from ranks import Ranks

os.makedirs('shards', exist_ok=True)
shards = [int(name.split('-')[0]) for name in os.listdir('shards') if not name.endswith('.new')]
step = first = max((one for one in shards if shards.count(one) == size), default=0)
exchange()

def save():
    path = f'shards/{step}-{rank}'
    open(f'{path}.new', 'w').close()
    os.replace(f'{path}.new', path)
    return path

ranks = Ranks(save)
while True:
    with open(f'shards/at-{rank}.new', 'w') as file: file.write(f'{step}\\n')
    if ranks.poll(): break
    ranks.say(detail={'first': first})
    exchange()
    time.sleep(.002)
    step += 1
print(f'rank {rank} ended at {step}', flush=True)
END`;

const TORCH = '/usr/bin/python3 launcher.py train.py torch';
const MPI = 'mpirun --allow-run-as-root --oversubscribe -n 3 /usr/bin/python3 -m mpi4py train.py mpi';

/** The last code block of the page. */
function launcher(): string {
  const page = readFileSync('bin/run/ranks.md', 'utf8');
  return [...page.matchAll(/^```python\n([^]*?)^```/gm)].at(-1)?.[1] ?? '';
}

/** Waits until all ranks train, having begun at a step that is not before `least`. Returns that step. */
async function untilTrained(shell: Shell, least: number = 0): Promise<number> {
  return until(`the ranks train from step ${least}`, async () => {
    const { detail } = JSON.parse(await shell('client info --json')) as { detail: { first?: number } | null };
    const first = detail?.first ?? -1;
    return first >= least ? first : undefined;
  });
}

/** All ranks pause, save and resume in the same step, and end in the same one. Their output is in the file `log`. */
export function obeyTogether(size: number): Expectation {
  return async ({ shell }) => {
    const ranks = Array.from({ length: size }, (_, rank) => rank);
    await untilTrained(shell);
    for (let round = 0; round < ROUNDS; round += 1) {
      await shell('client pause --wait');
      const steps = (await shell('cat shards/at-*')).split('\n');
      const value = await shell('client save --wait');
      const isSaved = value === JSON.stringify(ranks.map((rank) => `shards/${steps[0]}-${rank}`));
      if (!isSaved || new Set(steps).size > 1) throw new Error(`at ${steps}, saved ${value}`);
      await shell('client resume --wait');
    }
    await shell('client shutdown --wait');
    const ends = (await shell('cat log')).match(/rank \d+ ended at \d+/g) ?? [''];
    const last = (ends[0] as string).split(' ').at(-1);
    const missing = ranks.filter((rank) => !ends.includes(`rank ${rank} ended at ${last}`));
    if (missing.length > 0) throw new Error(`they ended differently: ${ends}`);
    return `${ROUNDS} pauses and saves, all ended after step ${last}`;
  };
}

/** The collectives have a limit, which does not pass during a pause. */
const outlastsLimit: Expectation = async ({ shell }) => {
  await untilTrained(shell);
  await shell('client pause --wait');
  await sleep(PAUSE_S * 1000);
  await shell('client resume --wait; sleep 1; client save --wait');
  if (await untilTrained(shell) > 0) throw new Error('it has started anew');
  return `paused for ${PAUSE_S} s`;
};

/** `do` kills a part, after which the training continues from the latest step of which all shards are there. */
const continuesTogether: Expectation = async ({ shell }, act) => {
  await untilTrained(shell);
  await shell('sleep 0.5');
  const value = await shell('client save --wait');
  const saved = Number(/\d+/.exec(value)?.join());
  const beganMs = Date.now();
  await act();
  const first = await untilTrained(shell, saved);
  await shell(`ls shards/${first}-{0,1,2}`);
  return `continued from step ${first} after ${((Date.now() - beganMs) / 1000).toFixed(1)} s`;
};

function stepsFor(name: string, command: string): Step[] {
  const begin = `begin ${command}`;
  const kill = (what: string, act: string): Step => {
    return { name: `${name}: kill -9 of ${what}`, begin, do: act, expect: continuesTogether };
  };
  return [
    { name: `${name}: pause, save, resume, shutdown`, begin, expect: obeyTogether(3) },
    { name: `${name}: a limit of ${LIMIT_S} s`, begin, expect: outlastsLimit },
    kill('rank 0', 'kill -9 "$(rank 0)"'),
    kill('rank 1', 'kill -9 "$(rank 1)"'),
    kill('the launcher', 'kill -9 "$(client info --json | grep -o \'"pid":[0-9]*\' | tail -n 1 | cut -d: -f2)"'),
    kill('control-run', `kill -9 "$(cat pid)"; gone; again ${command}`),
  ];
}

export const ranks: Engine = {
  packages: 'python3-torch python3-mpi4py openmpi-bin',
  programs: ['mpirun', 'ip'],
  functions: `
    client() { control-client --socket train.sock "$@"; }
    list() { # the processes in this folder that are, or start, the ranks
      local pid
      for pid in $(pgrep --full '^[^ ]*(node|python3|mpirun) .*(train\\.py|control-run)'); do
        [ "$(readlink /proc/$pid/cwd)" != "$PWD" ] || echo $pid
      done
    }
    rank() { # the process of a rank
      local pid
      for pid in $(list); do
        grep --quiet --null-data --line-regexp --extended-regexp "(RANK|OMPI_COMM_WORLD_RANK)=$1" /proc/$pid/environ &&
          grep --quiet --null-data '^train.py$' /proc/$pid/cmdline && echo $pid && return
      done
    }
    gone() { while [ -n "$(list)" ]; do sleep 0.1; done; }
    clear() {
      [ ! -e pid ] || kill "$(cat pid)" 2>/dev/null || true
      gone
    }
    again() {
      setsid control-run --socket train.sock --grace 3 --restart on-failure -- "$@" >>log 2>&1 </dev/null &
      echo $! >pid
    }
    begin() {
      clear
      rm -rf shards log
      again "$@"
    }`,
  prepare: `${TRAINING}
    /usr/bin/python3 -c 'import torch.distributed, mpi4py'
    cat >launcher.py <<'END'
${launcher()}END
    sed -i "s/29500/$PORT/" launcher.py
    sed 's/127.0.0.1/10.0.0.1/; s/range(3)/map(int, sys.argv.pop(1).split(","))/' launcher.py >machine.py
    cat >into <<'END'
#!/bin/bash
name=$1
shift
exec ip netns exec "$name" unshare --uts bash -c "hostname $name; $*"
END
    chmod +x into`,
  start: `
    for name in near$PORT far$PORT; do
      ip netns add $name
      ip -n $name link set lo up
    done
    ip -n near$PORT link add link0 type veth peer name link0 netns far$PORT
    ip -n near$PORT address add 10.0.0.1/24 dev link0
    ip -n far$PORT address add 10.0.0.2/24 dev link0
    for name in near$PORT far$PORT; do ip -n $name link set link0 up; done`,
  states: 'shards',
  steps: [
    ...stepsFor('torch', TORCH),
    ...stepsFor('mpirun', MPI),
    {
      name: 'torch: two machines',
      begin: `clear
        rm -rf shards log
        export GLOO_SOCKET_IFNAME=link0
        ./into far$PORT /usr/bin/python3 machine.py 2 train.py torch >>log 2>&1 </dev/null &
        again ./into near$PORT /usr/bin/python3 machine.py 0,1 train.py torch`,
      expect: obeyTogether(3),
    },
    {
      name: 'mpirun: two machines',
      begin: `begin ./into near$PORT ${MPI.replace('mpirun', `mpirun --mca plm_rsh_agent $PWD/into \\
        --host near$PORT:2,far$PORT:1`)}`,
      expect: obeyTogether(3),
    },
  ],
  stop: 'clear; for name in near$PORT far$PORT; do ip netns delete $name; done',
};
