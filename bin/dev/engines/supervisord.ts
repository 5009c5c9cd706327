// supervisord with supervisord.conf as it is, and with numprocs=64.

import { existsSync } from 'node:fs';
import { copyFile, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import {
  checkContinuation, checkMany, checkOutside, checkPausedKept, checkSave, commandsIn, infoOf, succeed, TASKS,
  until, untilStarted,
} from './engine.ts';
import type { Engine, Place, RunningEngine, Trainer } from './engine.ts';

const NAME = 'supervisord.conf';

export const supervisord: Engine = {
  name: 'supervisord',
  packages: 'supervisor',
  programs: ['supervisord', 'supervisorctl'],
  async start(place) {
    return run(new Supervisor(place), await readFile(join(place.recipes, NAME), 'utf8'));
  },
};

/** supervisord in a folder that contains the recipe and the trainer. */
class Supervisor implements Trainer {
  readonly #place: Place;
  readonly #folder: string;

  constructor(place: Place) {
    this.#place = place;
    this.#folder = join(place.folder, 'trainer');
  }

  get states(): string {
    return join(this.#folder, 'states/0');
  }

  /** Starts a trainer without checkpoints. @param owner Of the folder. */
  async start(recipe: string, owner: string = 'root'): Promise<void> {
    await this.shutDown();
    await rm(this.#folder, { recursive: true, force: true });
    await mkdir(this.#folder);
    await copyFile(this.#place.trainer, join(this.#folder, 'trainer.mjs'));
    await writeFile(join(this.#folder, NAME), recipe);
    await succeed('chown', ['--recursive', owner, this.#folder]);
    await this.run(commandsIn(recipe)[0] as string);
  }

  async shutDown(): Promise<void> {
    const pidFile = join(this.#folder, 'supervisord.pid');
    if (!existsSync(pidFile)) return;
    const pid = (await readFile(pidFile, 'utf8')).trim();
    await this.control('shutdown');
    await until('supervisord ends', async () => (await readFile(`/proc/${pid}/cmdline`).catch(() => '')).length === 0);
  }

  /** Runs a command of the shell in the folder, and returns its output. Throws unless its exit code is 0. */
  run(command: string): Promise<string> {
    const path = `${this.#place.programs}:${process.env['PATH']}`;
    return succeed('sh', ['-c', command], { cwd: this.#folder, env: { PATH: path } });
  }

  control(command: string): Promise<string> {
    return this.run(`supervisorctl --configuration ${NAME} ${command}`);
  }

  async client(...args: string[]): Promise<string> {
    const { target } = JSON.parse(await this.run('control-client list --json --dir sockets'));
    return this.run(`control-client ${args.join(' ')} --socket ${target.replace('unix:', '')}`);
  }

  /** Returns the last line of the log, without the time. */
  async lastLogged(): Promise<string> {
    return (await this.run('tail -n 1 supervisord.log')).replace(/^\S+ \S+ /, '');
  }
}

function run(supervisor: Supervisor, recipe: string): RunningEngine {
  async function stop(): Promise<string> {
    await supervisor.control('stop trainer:*');
    return supervisor.lastLogged();
  }

  return {
    checks: {
      async outside() {
        await supervisor.start(recipe);
        await untilStarted(supervisor);
        const pause = commandsIn(recipe).find((command) => command.includes('control-client pause')) as string;
        await supervisor.run(pause);
        const { status } = await infoOf(supervisor);
        if (status !== 'paused') throw new Error(`it is ${status} after ${pause}`);
        await supervisor.client('resume', '--wait');
        return checkOutside(supervisor);
      },
      async confined() {
        const withUser = recipe.replace('; user=trainer', 'user=nobody');
        if (withUser === recipe) throw new Error('the recipe has no line `; user=trainer`');
        await supervisor.start(withUser, 'nobody');
        const user = await until('the trainer listens', () => supervisor.run('stat --format %U sockets/*.sock'));
        if (user !== 'nobody') throw new Error(`it runs as user ${user}`);
        await until('its user can pause it', async () => {
          await supervisor.run('runuser -u nobody -- control-client pause --all --wait --dir sockets');
          return true;
        });
        return 'user nobody, by user=; supervisord has no NoNewPrivileges=';
      },
      async stop() {
        await supervisor.start(recipe);
        return checkSave(supervisor, stop);
      },
      limit: 'it has no time limit',
      preemption: 'it does not preempt',
      async death() {
        await supervisor.start(recipe);
        return checkContinuation(supervisor, async () => {
          process.kill((await infoOf(supervisor)).pid, 'SIGKILL');
        });
      },
      requeue: 'it has no queue',
      probes: 'it has no probes',
      async paused() {
        await supervisor.start(recipe);
        return checkPausedKept(supervisor, async () => {
          await supervisor.shutDown();
          await supervisor.run(commandsIn(recipe)[0] as string);
          return 'the end and start of supervisord';
        });
      },
      async many() {
        await supervisor.start(recipe.replace('numprocs=1', `numprocs=${TASKS}`));
        return checkMany((...args) => supervisor.run(`control-client ${args.join(' ')} --dir sockets`));
      },
    },
    stop: () => supervisor.shutDown(),
  };
}
