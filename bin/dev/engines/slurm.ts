// Slurm, with this machine as its only node.

import {
  commandsOf, continues, failsWith, obeys, pausesAll, pauseStep, prints, reaches, saves, savesAndContinues,
  staysPaused, TASKS,
} from './engine.ts';
import { obeyTogether, TRAINING } from './ranks.ts';
import type { Engine, Step } from './engine.ts';

const pause = commandsOf('trainer.sbatch').find((command) => command.startsWith('srun '));
const CLIENT = 'srun --jobid="$(cat job)" --overlap control-client';

/** A training of four tasks: control-run is in the script of the job. */
function ranksStep(group: string, mpi: string, command: string): Step {
  const begin = `begin_ranks ${mpi} '${command} train.py ${group}'`;
  return { name: `srun --mpi=${mpi}: ranks of ${group}`, begin, expect: obeyTogether(4) };
}

export const slurm: Engine = {
  packages: 'slurm-wlm munge python3-torch python3-mpi4py libpmix-dev',
  programs: ['munged', 'slurmctld', 'slurmd', 'sbatch', 'srun', 'scancel', 'scontrol'],
  functions: `
    export SLURM_CONF=$PWD/slurm.conf
    clear() { scancel --user=root; while squeue --noheader | grep -q .; do sleep 0.2; done; }
    begin() { # [OPTION…] of sbatch
      clear
      rm -rf states trainer-*
      sbatch --parsable "$@" trainer.sbatch >job
    }
    begin_ranks() { # MPI COMMAND
      clear
      rm -rf shards log trainer-*
      cat >ranks.sbatch <<END
#!/bin/bash
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$(($PORT + 1)) WORLD_SIZE=4
mkdir -m 700 trainer-\\$SLURM_JOB_ID
exec control-run --socket trainer-\\$SLURM_JOB_ID/0.sock --grace 3 -- \\
  srun --ntasks=4 --mpi=$1 sh -c '$2' >>log 2>&1
END
      sbatch --parsable --ntasks=4 ranks.sbatch >job
    }
    client() { control-client --socket "trainer-$(cat job)/0.sock" "$@"; }
    far() { squeue --steps --noheader --format=%i | grep --invert-match batch || true; }
    ended() { # waits until the job has ended or is back on the queue
      local state=RUNNING
      while [[ $state =~ RUNNING|SIGNALING|COMPLETING ]]; do
        sleep 0.2
        state=$(scontrol show job "$(cat job)" | grep -o 'JobState=[A-Z_]*')
      done
      echo "$state"
    }
    again() { # starts the job that is back on the queue, but not in the second in which it ended
      ended
      sleep 1.1
      scontrol update JobId="$(cat job)" StartTime=now
    }`,
  prepare: `${TRAINING}
    mkdir state spool munge
    mungekey --create --keyfile="$PWD/munge/key"
    cp "$TRAINER" trainer.mjs
    sed "s,/tmp/,$PWD/," "$RECIPES/trainer.sbatch" >trainer.sbatch
    sed 's/^# exec /exec /' trainer.sbatch >exec.sbatch
    echo CgroupMountpoint=/sys/fs/cgroup >cgroup.conf
    host=$(hostname --short)
    cat >slurm.conf <<END
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$PORT
SlurmdPort=$PORT2
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
AuthInfo=socket=$PWD/munge/socket
StateSaveLocation=$PWD/state
SlurmdSpoolDir=$PWD/spool
SlurmctldPidFile=$PWD/slurmctld.pid
SlurmdPidFile=$PWD/slurmd.pid
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=0
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=$host NodeAddr=127.0.0.1 CPUs=${TASKS}
PartitionName=main Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=2
END`,
  daemons: [
    // --force: munged would refuse a folder that is closed to others.
    `exec munged --foreground --force --socket="$PWD/munge/socket" --key-file="$PWD/munge/key" \\
      --seed-file="$PWD/munge/seed" --pid-file="$PWD/munge/pid"`,
    'exec slurmctld -D -f "$PWD/slurm.conf"',
    'exec slurmd -D -f "$PWD/slurm.conf"',
  ],
  start: 'until [ "$(sinfo --noheader --partition=main --format=%T)" = idle ]; do sleep 0.2; done',
  states: 'states/0',
  steps: [
    { name: 'pause, save-state, resume by srun', expect: obeys(`${CLIENT} --socket "$PWD/trainer-$(cat job)/0.sock"`) },
    pauseStep(pause?.replaceAll('/tmp', '$PWD').replaceAll('ID', '$(cat job)')),
    {
      name: '--via srun',
      expect: reaches('srun --jobid=$(cat job) --overlap -n1', '$PWD/trainer-$(cat job)/0.sock'),
    },
    failsWith('srun --jobid=$(cat job) --overlap --input=none', 'srun ended with exit code 0; it must pass'),
    failsWith('srun --jobid=$(cat job) --overlap -n2', 'srun ended with exit code 1: srun: error: '),
    failsWith('srun --jobid=4711 --overlap', 'srun ended with exit code 1: srun: '),
    {
      name: 'a line passes srun, a part of one waits', // so frames are lines
      do: `ready; srun --jobid="$(cat job)" --overlap sh -c 'echo line; printf part; sleep 4; echo' |
        { read -r line; echo "$line"; read -r -t 2 -N 4 part && echo passed || echo waits; cat; }`,
      expect: prints(/^line, waits, part$/),
    },
    { name: 'scancel', do: 'scancel "$(cat job)"; ended', expect: saves(/CANCELLED/) },
    {
      name: 'end of --time: USR1',
      begin: 'begin --time=1 --signal=B:USR1@45', // minutes
      do: 'again',
      expect: savesAndContinues(/PENDING/),
    },
    {
      name: 'end of --time with the line exec: TERM',
      begin: 'begin; clear; sbatch --parsable exec.sbatch >job',
      do: 'scancel --batch --signal=TERM "$(cat job)"; ended', // as --signal=B:TERM does
      expect: saves(/COMPLETED/),
    },
    {
      name: 'preemption',
      do: `sbatch --partition=urgent --ntasks=${TASKS} --output=/dev/null --wrap=true; again`,
      expect: savesAndContinues(/PENDING/),
    },
    {
      name: 'kill -9, then scontrol requeue',
      do: `kill -9 "$(client info --json | grep -o '"pid":[0-9]*' | cut -d: -f2)"
        ended; scontrol requeue "$(cat job)"; again`,
      expect: continues(/FAILED.*PENDING/),
    },
    {
      name: 'failure of the node',
      do: 'scontrol update NodeName="$(hostname --short)" State=DOWN Reason=step; again',
      expect: continues(/PENDING/),
    },
    { name: 'scontrol requeue while paused', do: 'scontrol requeue "$(cat job)"; again', expect: staysPaused() },
    {
      name: `an array of ${TASKS} tasks`,
      begin: `begin --array=0-${TASKS - 1}`,
      expect: pausesAll(`${CLIENT} --dir "$PWD/trainer-$(cat job)"`),
    },
    ranksStep('torch', 'none', 'RANK=$SLURM_PROCID exec /usr/bin/python3'),
    ranksStep('mpi', 'pmix', 'exec /usr/bin/python3 -m mpi4py'),
  ],
  stop: 'clear',
};
