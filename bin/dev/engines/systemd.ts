// systemd as PID 1 of a container, with trainer.service as it is.

import { once } from 'node:events';
import { copyFile, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import {
  checkConfined, checkContinuation, checkMany, checkOutside, checkPausedKept, checkSave, commandsIn, latestIn,
  startProgram, succeed, TASKS, until, untilStarted,
} from './engine.ts';
import { PATH } from './root.ts';
import type { ChildProcess } from 'node:child_process';
import type { Engine, Place, RunningEngine, Trainer } from './engine.ts';

const TIME_LIMIT_S = 3;
const POWER_OFF_MS = 100_000; // longer than TimeoutStopSec=

export const systemd: Engine = {
  name: 'systemd',
  packages: 'systemd-container mmdebstrap',
  programs: ['systemd-nspawn', 'mmdebstrap', 'nsenter'],
  async start(place) {
    const machine = new Machine(join(place.folder, 'root'));
    await succeed('cp', ['--archive', '--reflink=auto', await place.rootFileSystem(), machine.root]);
    try {
      await machine.boot();
      await installRecipe(machine, place);
    } catch (error) {
      await machine.powerOff();
      throw error;
    }
    return run(machine);
  },
};

/** A container that systemd boots. It has no network. */
class Machine {
  readonly root: string;
  #container: ChildProcess | null = null;

  constructor(root: string) {
    this.root = root;
  }

  async boot(): Promise<void> {
    const options = ['--quiet', '--register=no', '--keep-unit', '--private-network', '--boot'];
    this.#container = startProgram('systemd-nspawn', [...options, `--directory=${this.root}`]);
    await until('systemd has booted', async () => (await this.run('systemctl is-system-running')) === 'running');
  }

  /** Runs a command of bash in the container, and returns its output. Throws unless its exit code is 0. */
  async run(command: string): Promise<string> {
    const { pid } = this.#container as ChildProcess;
    const [init] = (await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8')).split(' ');
    if (init === undefined || init === '') throw new Error('the container is off');
    const environment = ['env', '--ignore-environment', `PATH=${PATH}`];
    return succeed('nsenter', ['--all', '--target', init, ...environment, 'bash', '-c', command]);
  }

  async powerOff(): Promise<void> {
    const container = this.#container;
    if (container === null || container.exitCode !== null) return;
    const signal = AbortSignal.timeout(POWER_OFF_MS);
    const off = once(container, 'exit', { signal }).catch(() => container.kill('SIGKILL'));
    await this.run('systemctl poweroff').catch(() => {}); // its connection breaks
    await off;
    this.#container = null;
  }
}

/** Does what the comment of the recipe says, in a folder that contains the recipe and the trainer. */
async function installRecipe(machine: Machine, { recipes, trainer }: Place): Promise<void> {
  const folder = join(machine.root, 'root/recipe');
  await mkdir(folder);
  await copyFile(trainer, join(folder, 'trainer.mjs'));
  await copyFile(join(recipes, 'trainer.service'), join(folder, 'trainer.service'));
  // The exit code is 0 even if it finds something.
  const complaints = await machine.run('cd /root/recipe && systemd-analyze verify ./trainer.service 2>&1');
  if (complaints !== '') throw new Error(complaints);
  const commands = commandsIn(await readFile(join(folder, 'trainer.service'), 'utf8'));
  for (const command of commands.slice(0, -1)) await machine.run(`cd /root/recipe && ${command}`);
  await untilStarted(trainerOf(machine));
  await machine.run(commands.at(-1) as string); // pauses
}

function trainerOf(machine: Machine): Trainer {
  return {
    client: (...args) => clientOf(machine, ...args, '--socket', '/run/trainer/trainer.sock'),
    states: join(machine.root, 'var/lib/trainer/trainer'),
  };
}

function clientOf(machine: Machine, ...args: string[]): Promise<string> {
  return machine.run(`runuser -u trainer -- control-client ${args.join(' ')}`);
}

function run(machine: Machine): RunningEngine {
  const trainer = trainerOf(machine);
  const property = (name: string): Promise<string> => machine.run(`systemctl show --value --property ${name} trainer`);

  /** Starts the trainer without checkpoints. @param setting A further setting of the unit. */
  async function start(setting = ''): Promise<void> {
    await machine.run('systemctl stop trainer urgent trainer@* 2>&1; systemctl reset-failed');
    await rm(join(machine.root, 'var/lib/trainer'), { recursive: true, force: true });
    const folder = join(machine.root, 'etc/systemd/system/trainer.service.d');
    await mkdir(folder, { recursive: true });
    await writeFile(join(folder, 'check.conf'), `[Service]\n${setting}\n`);
    await machine.run('systemctl daemon-reload && systemctl start trainer');
  }

  async function stop(): Promise<string> {
    await machine.run('systemctl stop trainer');
    return ending();
  }

  async function ending(): Promise<string> {
    if (await property('MainPID') !== '0') throw new Error('it still runs');
    return `result ${await property('Result')}, exit code ${await property('ExecMainStatus')}`;
  }

  return {
    checks: {
      async outside() {
        await start();
        const seen = await checkOutside(trainer);
        const saved = latestIn(trainer.states);
        await machine.run('systemctl reload trainer');
        if (latestIn(trainer.states)?.name === saved?.name) throw new Error('systemctl reload saved nothing');
        return `${seen}; systemctl reload saves`;
      },
      async confined() {
        await start();
        const process = await property('MainPID');
        const seen = checkConfined(await machine.run(`cat /proc/${process}/status`));
        const written = await machine.run(`for folder in /etc /home /srv/trainer /tmp /run/trainer /var/lib/trainer; do
          nsenter --mount --target ${process} sh -c "echo > $folder/check" 2>/dev/null && echo $folder; done; true`);
        if (written !== '/tmp\n/run/trainer\n/var/lib/trainer') throw new Error(`it can write ${written}`);
        return `${seen}; it can write ${written.replaceAll('\n', ', ')}`;
      },
      async stop() {
        await start();
        const byCommand = await checkSave(trainer, stop);
        await start('ExecStop=');
        return `${byCommand}; without ExecStop=: ${await checkSave(trainer, stop)}`;
      },
      async limit() {
        await start(`RuntimeMaxSec=${TIME_LIMIT_S}`);
        return checkSave(trainer, async () => {
          await until('it is started again', async () => (await property('NRestarts')) === '1');
          return `RuntimeMaxSec=${TIME_LIMIT_S}, then started again`;
        });
      },
      async preemption() {
        await start('ExecStop='); // which would wait in vain for a trainer that is stopped
        return checkSave(trainer, async () => {
          await machine.run(`systemctl kill --signal=STOP trainer
            systemd-run --quiet --unit=urgent -p Conflicts=trainer.service -p After=trainer.service sleep infinity`);
          await until('the urgent unit runs', () => machine.run('systemctl is-active urgent'));
          return `${await ending()}: stopped with SIGSTOP, then displaced by a unit with Conflicts=`;
        });
      },
      async death() {
        await start();
        return checkContinuation(trainer, () => machine.run('systemctl kill --signal=KILL trainer'));
      },
      requeue: 'it has no queue',
      probes: 'it has none: for WatchdogSec=, the program itself would have to notify systemd',
      async paused() {
        await start();
        return checkPausedKept(trainer, async () => {
          await machine.powerOff();
          await machine.boot();
          return 'poweroff and boot';
        });
      },
      async many() {
        await machine.run('systemctl stop trainer');
        await machine.run('cp /etc/systemd/system/trainer.service /etc/systemd/system/trainer@.service');
        await machine.run(`systemctl daemon-reload && systemctl start trainer@{1..${TASKS}}`);
        const seen = await checkMany((...args) => clientOf(machine, ...args, '--dir', '/run/trainer'));
        await machine.run('systemctl stop trainer@*');
        return `instances trainer@1 to trainer@${TASKS}: ${seen}`;
      },
    },
    stop: () => machine.powerOff(),
  };
}
