// A Docker daemon of its own, with Dockerfile and compose.yaml as they are.

import { copyFile, mkdir, readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import {
  checkConfined, checkContinuation, checkMany, checkOutside, checkPausedKept, checkSave, commandsIn, endProgram,
  startProgram, succeed, TASKS, until, untilStarted,
} from './engine.ts';
import { importBaseImage } from './root.ts';
import type { ChildProcess } from 'node:child_process';
import type { Engine, Place, RunningEngine, Trainer } from './engine.ts';

const HEALTH_CHECKS = 3;
const STATUS = "sh -c 'cat /proc/$(pidof node)/status'"; // what checkConfined() reads

export const docker: Engine = {
  name: 'docker',
  packages: 'docker.io docker-compose mmdebstrap',
  programs: ['dockerd', 'docker', 'docker-compose', 'mmdebstrap'],
  async start(place) {
    const daemon = new Daemon(place.folder);
    try {
      const dockerfile = await copyRecipes(place, daemon.recipe);
      await daemon.start();
      await importBaseImage(await place.rootFileSystem(), 'docker', dockerfile, (command) => daemon.run(command));
      return await run(daemon, dockerfile);
    } catch (error) {
      await daemon.stop();
      throw error;
    }
  },
};

/** All its files are in the folder, and it responds at a Unix socket there. */
class Daemon {
  readonly recipe: string;
  readonly #folder: string;
  #process: ChildProcess | null = null;

  constructor(folder: string) {
    this.#folder = folder;
    this.recipe = join(folder, 'trainer');
  }

  async start(): Promise<void> {
    const below = (name: string): string => join(this.#folder, name);
    this.#process = startProgram('dockerd', [
      '--data-root', below('data'), '--exec-root', below('exec'), '--pidfile', below('pid'), '--host', this.#address,
      '--bridge=none', '--iptables=false', '--ip-forward=false', // the network of this machine stays as it is
    ]);
    await until('the daemon responds', () => this.run('docker version'));
  }

  /** Runs a shell command in the folder of the recipes, and returns its output. Throws unless its exit code is 0. */
  run(command: string): Promise<string> {
    const env = { DOCKER_HOST: this.#address, DOCKER_CONFIG: join(this.#folder, 'config') };
    return succeed('sh', ['-c', command], { cwd: this.recipe, env });
  }

  /** @param volume Its name. */
  folderOf(volume: string): string {
    return join(this.#folder, 'data/volumes', volume, '_data');
  }

  /** Removes all containers and their networks, and ends the daemon. */
  async stop(): Promise<void> {
    if (this.#process === null) return;
    await this.run('docker-compose down; docker rm --force $(docker ps --all --quiet)').catch(() => {}); // maybe none
    await endProgram(this.#process);
    this.#process = null;
  }

  get #address(): string {
    return `unix://${this.#folder}/docker.sock`;
  }
}

/** Returns the Dockerfile. */
async function copyRecipes({ recipes, trainer, tarball }: Place, folder: string): Promise<string> {
  await mkdir(folder);
  await copyFile(trainer, join(folder, 'trainer.mjs'));
  await copyFile(tarball, join(folder, basename(tarball)));
  for (const name of ['Dockerfile', 'compose.yaml']) await copyFile(join(recipes, name), join(folder, name));
  return readFile(join(folder, 'Dockerfile'), 'utf8');
}

async function run(daemon: Daemon, dockerfile: string): Promise<RunningEngine> {
  const [build = '', start = '', pause = ''] = commandsIn(dockerfile);
  await daemon.run(build);
  await daemon.run(start);
  const trainer: Trainer = {
    client: (...args) => daemon.run(`docker exec trainer control-client ${args.join(' ')}`),
    states: join(daemon.folderOf('states'), 'trainer'),
  };
  await untilStarted(trainer);
  await daemon.run(pause);

  /** Starts a container without checkpoints. @param option A further option of docker run. */
  async function restart(option = ''): Promise<void> {
    await daemon.run('docker rm --force trainer; docker volume rm --force states control');
    await daemon.run(start.replace('docker run', `docker run ${option}`));
  }

  async function stop(): Promise<string> {
    await daemon.run('docker stop trainer');
    return `exit code ${await inspect('.State.ExitCode')}`;
  }

  const inspect = (what: string): Promise<string> => daemon.run(`docker inspect --format '{{${what}}}' trainer`);

  return {
    checks: {
      async outside() {
        await restart();
        return checkOutside(trainer);
      },
      async confined() {
        await restart();
        await untilStarted(trainer);
        return checkConfined(await daemon.run(`docker exec trainer ${STATUS}`));
      },
      async stop() {
        await restart();
        const seen = await checkSave(trainer, stop);
        return `${seen}; docker-compose stop: ${await checkCompose(daemon)}`;
      },
      limit: 'it has no time limit',
      async preemption() {
        await restart();
        return checkSave(trainer, async () => {
          await daemon.run('docker pause trainer');
          return `${await stop()}: frozen by docker pause, then docker stop`;
        });
      },
      async death() {
        const option = '--restart on-failure'; // as in compose.yaml
        await restart(option);
        const seen = await checkContinuation(trainer, async () => {
          const init = await inspect('.State.Pid');
          process.kill(Number(await readFile(`/proc/${init}/task/${init}/children`, 'utf8')), 'SIGKILL');
        });
        return `${seen}, with ${option}`;
      },
      requeue: 'it has no queue',
      async probes() {
        await restart('--health-interval 0.5s');
        await untilStarted(trainer);
        await trainer.client('pause', '--wait');
        const pausedAt = Date.now();
        const lookAt = '{{range .State.Health.Log}}{{.Start.UnixMilli}} {{.ExitCode}}\n{{end}}';
        const probes = await until(`${HEALTH_CHECKS} health checks`, async () => {
          const log = (await daemon.run(`docker inspect --format '${lookAt}' trainer`)).split('\n');
          const since = log.filter((line) => Number(line.split(' ')[0]) > pausedAt);
          return since.length >= HEALTH_CHECKS ? since : undefined;
        });
        const seen = `${await inspect('.State.Health.Status')}, ${await trainer.client('status')}`;
        const restarts = await inspect('.RestartCount');
        if (seen !== 'healthy, paused' || restarts !== '0') throw new Error(`${seen}, ${restarts} restarts`);
        const failed = probes.filter((line) => !line.endsWith(' 0'));
        if (failed.length > 0) throw new Error(`${failed.length} of ${probes.length} health checks failed`);
        return `${seen} after ${probes.length} health checks, ${restarts} restarts`;
      },
      async paused() {
        await restart();
        return checkPausedKept(trainer, async () => {
          await daemon.run('docker restart trainer');
          return 'docker restart';
        });
      },
      async many() {
        await restart();
        const tasks = Array.from({ length: TASKS - 1 }, (_, index) => index + 1); // beside the first container
        await Promise.all(tasks.map((task) => {
          const socket = `/run/control/${task}.sock`;
          const named = start.replace('--name trainer', `--name trainer-${task} --env CONTROL_SOCKET=${socket}`);
          return daemon.run(`${named} --socket ${socket} --states-dir /states/${task}`);
        }));
        // Here, two cores compute for all of them, and the client would get a 64th of these, too.
        const client = 'docker run --rm --cpu-shares 65536 -v control:/run/control --entrypoint control-client trainer';
        const seen = await checkMany((...args) => daemon.run(`${client} ${args.join(' ')} --dir /run/control`));
        await daemon.run('docker rm --force $(docker ps --all --quiet)');
        return `${TASKS} containers that share a volume: ${seen}`;
      },
    },
    stop: () => daemon.stop(),
  };
}

/** Does what the comment of compose.yaml says, with Debian's program for it. */
async function checkCompose(daemon: Daemon): Promise<string> {
  const recipe = await readFile(join(daemon.recipe, 'compose.yaml'), 'utf8');
  const commands = commandsIn(recipe).map((command) => {
    return command.replace('docker compose', 'docker-compose').replace('exec', 'exec -T'); // without a terminal
  });
  const [up = '', pause = '', stop = ''] = commands;
  await daemon.run(up);
  const trainer: Trainer = {
    client: (...args) => daemon.run(`docker-compose exec -T trainer control-client ${args.join(' ')}`),
    states: join(daemon.folderOf('trainer_states'), 'trainer'),
  };
  await untilStarted(trainer);
  await daemon.run(pause);
  checkConfined(await daemon.run(`docker-compose exec -T trainer ${STATUS}`));
  const seen = await checkSave(trainer, async () => {
    await daemon.run(stop);
    return 'paused before';
  });
  await daemon.run('docker-compose down --volumes');
  return seen;
}
