// podman, which runs the pod of trainer.yaml. It is no cluster: what it ignores of the file is said in the table.

import { copyFile, mkdir, readFile, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import {
  checkConfined, checkContinuation, checkMany, checkOutside, checkPausedKept, checkSave, latestIn, mountsIn, succeed,
  TASKS, untilStarted,
} from './engine.ts';
import { importBaseImage } from './root.ts';
import type { Engine, Place, RunningEngine, Trainer } from './engine.ts';

const PROBES = 3;
// podman's default limits may exceed those of this machine. In a pod it swaps the soft and the hard one.
const CONTAINERS_CONF = `
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
`;

export const podman: Engine = {
  name: 'podman',
  packages: 'podman runc catatonit mmdebstrap',
  programs: ['podman', 'runc', 'catatonit', 'mmdebstrap'],
  async start(place) {
    const engine = new Podman(place.folder);
    try {
      const job = await engine.prepare(place);
      const dockerfile = await readFile(join(place.recipes, 'Dockerfile'), 'utf8');
      await importBaseImage(await place.rootFileSystem(), 'podman', dockerfile, (command) => engine.shell(command));
      await engine.run('build --isolation chroot --tag trainer .');
      return run(engine, job);
    } catch (error) {
      await engine.stop();
      throw error;
    }
  },
};

/** All its files are in the folder. */
class Podman {
  readonly pod: string;
  readonly #folder: string;
  readonly #recipe: string;

  constructor(folder: string) {
    this.#folder = folder;
    this.#recipe = join(folder, 'recipe');
    this.pod = join(this.#recipe, 'pod.yaml');
  }

  /** Returns trainer.yaml. */
  async prepare({ recipes, trainer, tarball }: Place): Promise<string> {
    const below = (path: string): string => join(this.#folder, path);
    for (const path of ['.config/containers', 'bin', 'recipe']) await mkdir(below(path), { recursive: true });
    await writeFile(below('.config/containers/policy.json'), '{ "default": [{ "type": "insecureAcceptAnything" }] }');
    await writeFile(below('containers.conf'), CONTAINERS_CONF);
    const program = await succeed('sh', ['-c', 'command -v podman']);
    const folders = ['root', 'runroot', 'tmpdir', 'volumepath'].map((name) => `--${name} ${below(name)}`).join(' ');
    await writeFile(below('bin/podman'), `#!/bin/sh\nexec ${program} ${folders} "$@"\n`, { mode: 0o755 });
    await copyFile(trainer, join(this.#recipe, 'trainer.mjs'));
    await copyFile(tarball, join(this.#recipe, basename(tarball)));
    await copyFile(join(recipes, 'Dockerfile'), join(this.#recipe, 'Dockerfile'));
    const job = await readFile(join(recipes, 'trainer.yaml'), 'utf8');
    await writeFile(this.pod, podOf(job));
    return job;
  }

  /** Runs podman with arguments for the shell, and returns its output. Throws unless its exit code is 0. */
  run(args: string): Promise<string> {
    return this.shell(`podman ${args}`);
  }

  /** Runs a shell command in which podman is this one. */
  shell(command: string): Promise<string> {
    const env = {
      HOME: this.#folder, // for policy.json
      CONTAINERS_CONF: join(this.#folder, 'containers.conf'),
      PATH: `${join(this.#folder, 'bin')}:${process.env['PATH']}`,
    };
    return succeed('sh', ['-c', command], { cwd: this.#recipe, env });
  }

  folderOf(volume: string): string {
    return join(this.#folder, 'volumepath', volume, '_data');
  }

  async stop(): Promise<void> {
    await this.run('pod rm --force --all');
    for (const mount of await mountsIn(this.#folder)) await succeed('umount', [mount]);
  }
}

/** Returns the pod that a Job starts: podman 4 knows no Job. */
function podOf(job: string): string {
  const [, template = ''] = job.split('\n  template:\n');
  return `apiVersion: v1\nkind: Pod\nmetadata: { name: trainer }\n${template.replace(/^ {4}/gm, '')}`;
}

function run(engine: Podman, job: string): RunningEngine {
  const inContainer = (command: string): Promise<string> => engine.run(`exec trainer-trainer ${command}`);
  const inspect = (what: string): Promise<string> => engine.run(`inspect --format '{{${what}}}' trainer-trainer`);
  const trainer: Trainer = {
    client: (...args) => inContainer(`control-client ${args.join(' ')}`),
    states: engine.folderOf('states'),
  };

  /** Starts the pod without checkpoints. */
  async function start(): Promise<void> {
    await engine.run('pod rm --force --all && podman volume rm --force states');
    await play();
  }

  async function play(): Promise<void> {
    await engine.run(`play kube --network none ${engine.pod}`);
    await untilStarted(trainer);
  }

  async function stop(): Promise<string> {
    await engine.run('pod stop trainer');
    const code = await inspect('.State.ExitCode');
    if (code !== '143') throw new Error(`with exit code ${code}, a Job would count as complete`);
    return `exit code ${code}, with which a Job starts another pod`;
  }

  return {
    checks: {
      async outside() {
        await start();
        return checkOutside(trainer);
      },
      async confined() {
        await start();
        const seen = checkConfined(await inContainer("sh -c 'cat /proc/$(pidof node)/status'"));
        return `${seen}; podman ignores runAsNonRoot`;
      },
      async stop() {
        await start();
        return `${await checkSave(trainer, stop)}; podman ignores terminationGracePeriodSeconds`;
      },
      limit: 'a pod of podman has no time limit; a Job has activeDeadlineSeconds',
      async preemption() {
        const [, hook = ''] = /preStop: \{ exec: \{ command: \[(.*)\] \} \}/.exec(job) ?? [];
        await start();
        return checkSave(trainer, async () => {
          const path = await inContainer(hook.replaceAll(',', ''));
          if (latestIn(trainer.states)?.name !== basename(path)) throw new Error(`preStop: ${path}`);
          return `preStop, run by hand because podman ignores it, then SIGTERM: ${await stop()}`;
        });
      },
      async death() {
        await start();
        return checkContinuation(trainer, () => inContainer("sh -c 'kill -KILL $(pidof node)'"));
      },
      async requeue() {
        await start();
        const seen = await checkContinuation(trainer, async () => {
          await stop();
          await engine.run('pod rm trainer');
          await play();
        });
        return `the pod is removed, and another takes its place: ${seen}`;
      },
      async probes() {
        await start();
        await trainer.client('pause', '--wait');
        for (let probe = 0; probe < PROBES; probe++) await engine.run('healthcheck run trainer-trainer');
        const seen = `${await inspect('.State.Health.Status')}, ${await trainer.client('status')}`;
        const restarts = await inspect('.RestartCount');
        if (seen !== 'healthy, paused' || restarts !== '0') throw new Error(`${seen}, ${restarts} restarts`);
        return `${seen} after ${PROBES} liveness probes, run by hand because podman lets systemd run them`;
      },
      async paused() {
        await start();
        return checkPausedKept(trainer, async () => {
          await engine.run('pod stop trainer');
          await engine.run('pod start trainer');
          return 'pod stop and pod start';
        });
      },
      async many() {
        await start();
        const others = `for n in $(seq ${TASKS - 1}); do
          node trainer.mjs --socket /run/control/ --states-dir /states/$n --load latest & done; wait`;
        await engine.run(`exec --detach trainer-trainer sh -c '${others}'`);
        const seen = await checkMany((...args) => trainer.client(...args, '--dir', '/run/control'));
        return `${TASKS} processes in the pod (pods share no sockets): ${seen}`;
      },
    },
    stop: () => engine.stop(),
  };
}
