// Slurm with one node, this machine, and with jobs made of trainer.sbatch: as it is, and with its line `exec`.

import { copyFile, mkdir, readFile, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  checkContinuation, checkMany, checkOutside, checkPausedKept, checkSave, commandsIn, endProgram, infoOf, latestIn,
  startProgram, succeed, TASKS, until, untilStarted,
} from './engine.ts';
import { freePort } from '../../test/helpers.ts';
import type { ChildProcess } from 'node:child_process';
import type { Checkpoint, Engine, Info, Place, RunningEngine, Trainer } from './engine.ts';

const LOOPBACK = '127.0.0.1';
const GRACE_S = 5;
const URGENT = ['--partition=urgent', `--ntasks=${TASKS}`, '--output=/dev/null', '--wrap=true'];
const LIMIT = '--time=1'; // in minutes; there is no shorter one
const END_TIMEOUT_MS = 120_000; // Slurm signals and ends jobs up to a minute early or late
const RUNNING_STATES = ['RUNNING', 'SIGNALING', 'COMPLETING'];
const REVOKED_MS = 1100; // a job must not start again in the second in which it ended

export const slurm: Engine = {
  name: 'slurm',
  packages: 'slurm-wlm munge',
  programs: ['munged', 'slurmctld', 'slurmd', 'sbatch', 'srun', 'scancel', 'scontrol'],
  async start(place) {
    const cluster = new Cluster(place);
    try {
      await cluster.start();
      const recipe = await readFile(join(place.recipes, 'trainer.sbatch'), 'utf8');
      return run(cluster, recipe.replaceAll('/tmp/', `${place.folder}/`)); // the folder of the sockets
    } catch (error) {
      await cluster.stop();
      throw error;
    }
  },
};

class Cluster {
  readonly #place: Place;
  readonly #environment: NodeJS.ProcessEnv;
  readonly #daemons: ChildProcess[] = [];
  #jobs = 0;

  constructor(place: Place) {
    this.#place = place;
    const path = `${place.programs}:${process.env['PATH']}`;
    this.#environment = { SLURM_CONF: join(place.folder, 'slurm.conf'), PATH: path };
  }

  async start(): Promise<void> {
    const { folder } = this.#place;
    for (const name of ['state', 'spool', 'munge']) await mkdir(join(folder, name));
    const [controllerPort, nodePort] = [await freePort(), await freePort()];
    await writeFile(join(folder, 'slurm.conf'), configure(folder, controllerPort, nodePort));
    await writeFile(join(folder, 'cgroup.conf'), 'CgroupMountpoint=/sys/fs/cgroup\n');
    await this.#startMunge();
    for (const name of ['slurmctld', 'slurmd']) this.#startDaemon(name, '-D', '-f', `${folder}/slurm.conf`);
    const options = ['--noheader', '--partition=main', '--format=%T'];
    await until('the node is idle', async () => (await this.run('sinfo', ...options)) === 'idle');
  }

  async #startMunge(): Promise<void> {
    const folder = join(this.#place.folder, 'munge');
    await succeed('mungekey', ['--create', `--keyfile=${folder}/key`]);
    const files = [`--key-file=${folder}/key`, `--seed-file=${folder}/seed`, `--pid-file=${folder}/pid`];
    // Otherwise it refuses folders that are closed to others.
    this.#startDaemon('munged', '--foreground', '--force', `--socket=${folder}/socket`, ...files);
  }

  #startDaemon(name: string, ...args: string[]): void {
    this.#daemons.unshift(startProgram(name, args, { env: this.#environment }));
  }

  async stop(): Promise<void> {
    await this.clear().catch(() => {}); // it may not run
    for (const daemon of this.#daemons) await endProgram(daemon); // the latest first
  }

  /** Ends all jobs. */
  async clear(): Promise<void> {
    await this.run('scancel', '--user=root');
    await until('no job is left', async () => (await this.run('squeue', '--noheader')) === '');
  }

  /** Runs a program of Slurm, or control-client, and returns its output. Throws unless its exit code is 0. */
  run(program: string, ...args: string[]): Promise<string> {
    return succeed(program, args, { env: this.#environment });
  }

  /** Submits a recipe that is alone with the trainer in a folder. */
  async submit(recipe: string, ...options: string[]): Promise<Job> {
    const folder = join(this.#place.folder, `job${this.#jobs += 1}`);
    await mkdir(folder);
    await copyFile(this.#place.trainer, join(folder, 'trainer.mjs'));
    await writeFile(join(folder, 'trainer.sbatch'), recipe);
    const args = ['--parsable', ...options, 'trainer.sbatch'];
    const id = await succeed('sbatch', args, { cwd: folder, env: this.#environment });
    return new Job(this, id, this.#place.folder, join(folder, 'states/0'));
  }
}

class Job implements Trainer {
  readonly id: string;
  readonly states: string;
  readonly sockets: string;
  readonly socket: string;
  readonly #cluster: Cluster;

  constructor(cluster: Cluster, id: string, folder: string, states: string) {
    this.id = id;
    this.states = states;
    this.sockets = join(folder, `trainer-${id}`);
    this.socket = join(this.sockets, '0.sock');
    this.#cluster = cluster;
  }

  client(...args: string[]): Promise<string> {
    return this.#cluster.run('control-client', ...args, '--socket', this.socket);
  }

  /** Runs control-client on the node of the job, as from a login node. */
  remoteClient(...args: string[]): Promise<string> {
    return this.#cluster.run('srun', `--jobid=${this.id}`, '--overlap', 'control-client', ...args);
  }

  /** Waits until Slurm has ended the job or put it back on the queue, and returns its state. */
  async ended(timeoutMs?: number): Promise<string> {
    return until(`job ${this.id} ends`, async () => {
      const properties = await this.#cluster.run('scontrol', 'show', 'job', this.id);
      const state = /\bJobState=(\S+)/.exec(properties)?.[1];
      return RUNNING_STATES.includes(state ?? '') ? '' : state;
    }, timeoutMs);
  }

  async cancel(): Promise<string> {
    await this.#cluster.run('scancel', this.id);
    return this.ended();
  }

  /** Puts the job back on the queue, and starts it again. */
  async requeue(): Promise<string> {
    await this.#cluster.run('scontrol', 'requeue', this.id);
    await this.startNow();
    return 'scontrol requeue';
  }

  /** Starts the job again that is back on the queue. */
  async startNow(): Promise<void> {
    const state = await this.ended();
    if (state !== 'PENDING') throw new Error(`it is ${state}, not back on the queue`);
    await sleep(REVOKED_MS);
    await this.#cluster.run('scontrol', 'update', `JobId=${this.id}`, 'StartTime=now');
  }
}

function configure(folder: string, controllerPort: number, nodePort: number): string {
  const [host] = hostname().split('.');
  return `
    ClusterName=one
    SlurmctldHost=${host}(${LOOPBACK})
    SlurmctldPort=${controllerPort}
    SlurmdPort=${nodePort}
    CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
    SlurmUser=root
    SlurmdUser=root
    AuthType=auth/munge
    AuthInfo=socket=${folder}/munge/socket
    StateSaveLocation=${folder}/state
    SlurmdSpoolDir=${folder}/spool
    SlurmctldPidFile=${folder}/slurmctld.pid
    SlurmdPidFile=${folder}/slurmd.pid
    SlurmctldLogFile=${folder}/slurmctld.log
    SlurmdLogFile=${folder}/slurmd.log
    ProctrackType=proctrack/linuxproc
    TaskPlugin=task/none
    JobAcctGatherType=jobacct_gather/none
    SelectType=select/cons_tres
    SelectTypeParameters=CR_Core
    SlurmdParameters=config_overrides
    SchedulerParameters=sched_min_interval=0
    ReturnToService=2
    PreemptType=preempt/partition_prio
    PreemptMode=REQUEUE
    NodeName=${host} NodeAddr=${LOOPBACK} CPUs=${TASKS}
    PartitionName=main Nodes=ALL Default=YES PriorityTier=1
    PartitionName=grace Nodes=ALL PriorityTier=1 GraceTime=${GRACE_S}
    PartitionName=urgent Nodes=ALL PriorityTier=2
  `.replaceAll(/^ +/gm, '');
}

function run(cluster: Cluster, recipe: string): RunningEngine {
  const withExec = recipe.replace(/^# exec /m, 'exec ');
  if (withExec === recipe) throw new Error('the recipe has no line `# exec`');
  const pauseCommand = commandsIn(recipe).find((command) => command.startsWith('srun ')) as string;
  const [host = ''] = hostname().split('.');

  /** Submits the recipe as the only job. */
  async function submit(text: string, ...options: string[]): Promise<Job> {
    await cluster.clear();
    return cluster.submit(text, ...options);
  }

  /** Checks that a job that saved and is back on the queue continues from there. */
  async function checkRequeued(job: Job, startedAt: string): Promise<string> {
    await job.ended(END_TIMEOUT_MS);
    const { steps } = latestIn(job.states) as Checkpoint;
    await job.startNow();
    const { detail } = await untilStarted(job, startedAt);
    if (detail.step < steps) throw new Error(`it began at step ${detail.step}, although step ${steps} was saved`);
    return 'requeued, and continued by StartTime=now';
  }

  return {
    checks: {
      async outside() {
        const job = await submit(recipe);
        await untilStarted(job);
        await cluster.run('sh', '-c', pauseCommand.replaceAll('ID', job.id));
        if ((await infoOf(job)).status !== 'paused') throw new Error(`not paused by ${pauseCommand}`);
        const client: Trainer['client'] = (...args) => job.remoteClient(...args, '--socket', job.socket);
        return `${await checkOutside({ client, states: job.states })}, with srun --overlap`;
      },
      confined: 'a job has the rights of its user',
      async stop() {
        const job = await submit(recipe);
        const seen = await checkSave(job, () => job.cancel());
        const other = await submit(withExec);
        return `${seen}; with exec: ${await checkSave(other, () => other.cancel())}`;
      },
      async limit() {
        const job = await submit(recipe, LIMIT, '--signal=B:USR1@45');
        const other = await cluster.submit(withExec, LIMIT, '--signal=B:TERM@45');
        const { startedAt } = await untilStarted(job);
        const seen = await Promise.all([
          checkSave(job, () => checkRequeued(job, startedAt)),
          checkSave(other, () => other.ended(END_TIMEOUT_MS)),
        ]);
        return `${LIMIT}: ${seen.join('; with exec: ')}`;
      },
      async preemption() {
        const jobs = [await submit(recipe), await cluster.submit(recipe, '--partition=grace')];
        const started = await Promise.all(jobs.map((job) => untilStarted(job)));
        let urgent: Promise<string> | undefined;
        const seen = await Promise.all(jobs.map((job, index) => checkSave(job, async () => {
          process.kill((await infoOf(job)).pid, 'SIGSTOP');
          await (urgent ??= cluster.run('sbatch', ...URGENT));
          return checkRequeued(job, (started[index] as Info).startedAt);
        })));
        return `after SIGSTOP: ${seen.join(`; with GraceTime=${GRACE_S}: `)}`;
      },
      async death() {
        const job = await submit(recipe);
        const seen = await checkContinuation(job, async () => {
          process.kill((await infoOf(job)).pid, 'SIGKILL');
          const state = await job.ended();
          if (state !== 'FAILED') throw new Error(`it is ${state} after kill -9`);
          await job.requeue();
        });
        return `${seen}; only after scontrol requeue`;
      },
      async requeue() {
        const job = await submit(recipe);
        const byCommand = await checkContinuation(job, () => job.requeue());
        const afterFailure = await checkContinuation(job, async () => {
          await cluster.run('scontrol', 'update', `NodeName=${host}`, 'State=DOWN', 'Reason=check');
          await job.startNow();
        });
        return `${byCommand}; after the failure of its node: ${afterFailure}`;
      },
      probes: 'it has no probes; the time limit counts while a job is paused, too',
      async paused() {
        const job = await submit(recipe);
        return checkPausedKept(job, () => job.requeue());
      },
      async many() {
        const job = await submit(recipe, `--array=0-${TASKS - 1}`);
        return `an array job: ${await checkMany((...args) => job.remoteClient(...args, '--dir', job.sockets))}`;
      },
    },
    stop: () => cluster.stop(),
  };
}
