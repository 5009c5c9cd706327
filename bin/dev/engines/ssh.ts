// ssh to this machine, by the name gpu3, with an sshd, keys and configurations of its own.

import { existsSync } from 'node:fs';
import { mkdir, readFile, rmdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { checkOutside, checkSave, endProgram, startProgram, succeed, until } from './engine.ts';
import { freePort } from '../../test/helpers.ts';
import type { ChildProcess } from 'node:child_process';
import type { Engine, Place, RunningEngine, Trainer } from './engine.ts';

const HOST = 'gpu3';
const LOOPBACK = '127.0.0.1';
const PRIVILEGE_SEPARATION = '/run/sshd'; // sshd requires this folder
const RUNS_NOTHING = 'it runs no programs';

export const ssh: Engine = {
  name: 'ssh',
  packages: 'openssh-server openssh-client',
  programs: ['sshd', 'ssh', 'ssh-keygen'],
  async start(place) {
    const machine = new Machine(place);
    try {
      await machine.start();
    } catch (error) {
      await machine.stop();
      throw error;
    }
    return run(machine, place);
  },
};

/** A machine that ssh reaches. */
class Machine {
  readonly #place: Place;
  readonly #programs: ChildProcess[] = [];
  #hasMadeFolder = false;

  constructor(place: Place) {
    this.#place = place;
  }

  async start(): Promise<void> {
    const { folder, programs } = this.#place;
    const port = await freePort();
    for (const name of ['host', 'user']) {
      await succeed('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', join(folder, name)]);
    }
    await writeFile(join(folder, 'known'), `[${LOOPBACK}]:${port} ${await readFile(join(folder, 'host.pub'), 'utf8')}`);
    await writeFile(join(folder, 'sshd_config'), configureServer(folder, port, `${programs}:${process.env['PATH']}`));
    await writeFile(join(folder, 'ssh_config'), configureClient(folder, port));
    if (!existsSync(PRIVILEGE_SEPARATION)) {
      await mkdir(PRIVILEGE_SEPARATION, 0o755);
      this.#hasMadeFolder = true;
    }
    const path = await succeed('sh', ['-c', 'command -v sshd']); // it refuses to be started by its name alone
    this.startProgram(path, '-D', '-f', join(folder, 'sshd_config'));
    await until('ssh logs in', () => this.run('echo ready'));
  }

  async stop(): Promise<void> {
    await Promise.all(this.#programs.map((program) => endProgram(program)));
    if (this.#hasMadeFolder) await rmdir(PRIVILEGE_SEPARATION);
  }

  /** Starts a program that ends with the machine. */
  startProgram(program: string, ...args: string[]): ChildProcess {
    const child = startProgram(program, args);
    this.#programs.push(child);
    return child;
  }

  /** Starts a connection. */
  connect(...args: string[]): ChildProcess {
    return this.startProgram('ssh', '-F', join(this.#place.folder, 'ssh_config'), ...args);
  }

  /** Runs a command there, and returns its output. Throws unless its exit code is 0. */
  run(...command: string[]): Promise<string> {
    return succeed('ssh', ['-F', join(this.#place.folder, 'ssh_config'), HOST, ...command]);
  }
}

function configureServer(folder: string, port: number, path: string): string {
  return `
    ListenAddress ${LOOPBACK}:${port}
    HostKey ${folder}/host
    AuthorizedKeysFile ${folder}/user.pub
    PidFile ${folder}/sshd.pid
    StrictModes no
    UsePAM no
    PermitRootLogin prohibit-password
    PasswordAuthentication no
    KbdInteractiveAuthentication no
    SetEnv PATH=${path}
  `.replaceAll(/^ +/gm, '');
}

function configureClient(folder: string, port: number): string {
  return `
    Host ${HOST}
    HostName ${LOOPBACK}
    Port ${port}
    User root
    IdentityFile ${folder}/user
    IdentitiesOnly yes
    UserKnownHostsFile ${folder}/known
    BatchMode yes
    ExitOnForwardFailure yes
  `.replaceAll(/^ +/gm, '');
}

function run(machine: Machine, { folder, trainer, programs }: Place): RunningEngine {
  const client = join(programs, 'control-client');

  return {
    checks: {
      async outside() {
        const [socket, states] = [join(folder, 'far.sock'), join(folder, 'far')];
        machine.startProgram('node', trainer, '--socket', socket, '--states-dir', states);
        const bySsh: Trainer = {
          client: (...args) => machine.run('control-client', ...args, '--socket', socket),
          states,
        };
        const port = await freePort();
        const nearSocket = join(folder, 'near.sock');
        const forwardings = [`${nearSocket}:${socket}`, `${LOOPBACK}:${port}:${socket}`];
        machine.connect('-N', ...forwardings.flatMap((forwarding) => ['-L', forwarding]), HOST);
        const seen = await checkOutside(bySsh);
        for (const address of [['--socket', nearSocket], ['--port', `${port}`]]) {
          await checkOutside({ client: (...args) => succeed(client, [...args, ...address]), states });
        }
        return `${seen}, by ssh ${HOST} and through ssh -L to a socket, from a socket and from a port`;
      },
      async stop() {
        const [socket, states] = [join(folder, 'terminal.sock'), join(folder, 'terminal')];
        const connection = machine.connect('-tt', HOST, `node ${trainer} --socket ${socket} --states-dir ${states}`);
        const direct: Trainer = { client: (...args) => succeed(client, [...args, '--socket', socket]), states };
        return checkSave(direct, async () => {
          await endProgram(connection, 'SIGKILL');
          await direct.client('wait', 'offline');
          return 'when the connection of ssh -t broke';
        });
      },
      confined: RUNS_NOTHING,
      limit: RUNS_NOTHING,
      preemption: RUNS_NOTHING,
      death: RUNS_NOTHING,
      requeue: RUNS_NOTHING,
      probes: RUNS_NOTHING,
      paused: RUNS_NOTHING,
      many: RUNS_NOTHING,
    },
    stop: () => machine.stop(),
  };
}
