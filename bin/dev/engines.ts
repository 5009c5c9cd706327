// Runs the recipes with the engines that they are for: `npm run engines`. Each engine is a table of steps.

import { chmod, mkdir, mkdtemp } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { EXIT, parseOptions, run, UsageError } from '../shared/cli.ts';
import { freePort } from '../test/helpers.ts';
import { docker } from './engines/docker.ts';
import {
  endDaemon, type Engine, interruption, ROOT_PATH, shellIn, startDaemon, throwIfInterrupted,
} from './engines/engine.ts';
import { podman } from './engines/podman.ts';
import { ranks } from './engines/ranks.ts';
import { slurm } from './engines/slurm.ts';
import { ssh } from './engines/ssh.ts';
import { supervisord } from './engines/supervisord.ts';
import { systemd } from './engines/systemd.ts';
import type { ChildProcess } from 'node:child_process';

const ENGINES: Record<string, Engine> = { systemd, docker, podman, slurm, supervisord, ssh, ranks };
const ALL = Object.keys(ENGINES);

const HELP = `
Usage: npm run engines -- [ENGINE ...]

Starts each engine, runs its recipe and shows what works. Needs Linux and root. Takes a quarter of an hour. The engines and
their Debian packages:

${Object.entries(ENGINES).map(([name, { packages }]) => `  ${name.padEnd(12)} ${packages}`).join('\n')}

Exit codes: 0 all steps work, 1 a step fails or an engine is not installed, 2 usage error.
`;

// Root file system with Node and npm where the images of Node have them, and with the libraries of this machine.
const BUILD_ROOT = `
  release=$(. /etc/os-release; [ "$ID" = debian ] && echo "$VERSION_CODENAME" || echo stable)
  mmdebstrap --quiet --variant=apt --include=systemd,systemd-sysv,dbus,libstdc++6 "$release" root
  cp "${process.execPath}" root/usr/local/bin/node
  mkdir -p root/usr/local/lib/node_modules
  cp --archive "$(npm root --global)/npm" root/usr/local/lib/node_modules
  ln -s ../lib/node_modules/npm/bin/npm-cli.js root/usr/local/bin/npm
  for file in $(ldd "${process.execPath}" | grep -o '/[^ ]*'); do
    [ -e "root$file" ] || cp --parents --dereference "$file" root
  done`;
const READY = 'ready() { until client status >/dev/null 2>&1; do sleep 0.2; done; }';

async function main(): Promise<number> {
  const parsed = parseOptions({}, HELP, Infinity);
  if (parsed === null) return EXIT.DONE;
  const names = parsed.positionals.length > 0 ? parsed.positionals : ALL;
  const unknown = names.find((name) => !ALL.includes(name));
  if (unknown !== undefined) throw new UsageError(`the engine must be one of ${ALL.join(', ')}, got '${unknown}'`);
  if (process.platform !== 'linux' || process.geteuid?.() !== 0) throw new UsageError('engines need Linux and root');
  for (const name of ['SIGINT', 'SIGTERM'] as const) {
    process.on(name, () => { interruption.by = name; interruption.end(); });
  }
  const root = await mkdtemp('/tmp/engines-'); // a short path, for Unix sockets
  await chmod(root, 0o711); // a trainer may be another user's
  let fails = 0;
  try {
    const installed: string[] = [];
    for (const name of names) if (await isInstalled(ENGINES[name] as Engine)) installed.push(name);
    const env = await prepare(root, installed.some((name) => ENGINES[name]?.needsRoot)); // that takes one of its programs
    for (const name of names) {
      console.log(name);
      fails += await tryEngine(ENGINES[name] as Engine, installed.includes(name), join(root, name), env);
      throwIfInterrupted();
    }
  } finally {
    await shellIn('/')(`rm -rf --one-file-system '${root}'`); // not what is mounted there, such as /dev
  }
  return fails === 0 ? EXIT.DONE : EXIT.REFUSED;
}

/** Installs the package. Returns the environment of the engines, without their ports. */
async function prepare(root: string, needsRoot: boolean): Promise<NodeJS.ProcessEnv> {
  const pack = shellIn('.', { ROOT: root });
  const name = (await pack('npm pack --silent --ignore-scripts --pack-destination "$ROOT"')).split('\n').at(-1) ?? '';
  const shell = shellIn(root);
  await shell(`npm install --silent --global --prefix "$PWD/npm" "./${name}"`);
  if (needsRoot) await shell(BUILD_ROOT);
  return {
    PATH: `${join(root, 'npm/bin')}:${process.env['PATH'] ?? ROOT_PATH}`,
    RECIPES: resolve('bin/recipes'), TRAINER: resolve('dist/bin/demo.js'), TARBALL: join(root, name),
    ROOT: join(root, 'root'), XDG_STATE_HOME: join(root, 'state'),
  };
}

async function isInstalled({ programs }: Engine): Promise<boolean> {
  return shellIn('/')(`type ${programs.join(' ')}`).then(() => true, () => false);
}

/** Prints a row for each step. Returns how many fail. */
async function tryEngine(
  engine: Engine,
  isThere: boolean,
  folder: string,
  common: NodeJS.ProcessEnv,
): Promise<number> {
  if (!isThere) {
    console.log(`  FAILS  not installed: apt-get install ${engine.packages}`);
    return 1;
  }
  const width = Math.max(...engine.steps.map(({ name }) => name.length));
  let fails = 0;
  const attempt = async (name: string, act: () => Promise<string | void>): Promise<void> => {
    try {
      console.log(`  works  ${name.padEnd(width)}  ${await act() ?? ''}`.trimEnd());
    } catch (error) {
      fails += 1;
      console.log(`  FAILS  ${name.padEnd(width)}  ${(error as Error).message}`);
    }
  };
  await mkdir(folder);
  const env = { ...common, PORT: `${await freePort()}`, PORT2: `${await freePort()}` };
  const functions = `${READY}\n${engine.functions}`;
  const shell = shellIn(folder, env, functions);
  const daemons: ChildProcess[] = [];
  await attempt('start', async () => {
    await shell(engine.prepare);
    for (const command of engine.daemons ?? []) daemons.unshift(startDaemon(folder, env, functions, command));
    await shell(engine.start ?? '');
  });
  for (const step of fails === 0 ? engine.steps : []) {
    if (interruption.by !== null) break;
    await attempt(step.name, async () => {
      await shell(step.begin ?? 'begin');
      return step.expect({ shell, states: join(folder, engine.states) }, () => shell(step.do ?? ''));
    });
  }
  await attempt('stop', async () => {
    await shell(engine.stop ?? '').finally(async () => {
      for (const daemon of daemons) await endDaemon(daemon); // the latest first
    });
    const left = await leftIn(folder);
    if (left !== '') throw new Error(`left: ${left.replaceAll('\n', ', ')}`);
    return 'no process and no mount is left';
  });
  return fails;
}

/** Returns the processes that name the folder in their command line or environment, and the mounts in it. */
function leftIn(folder: string): Promise<string> {
  const pattern = `[/]${folder.slice(1)}`; // does not match itself, in the command line of this shell
  return shellIn('/')(`grep -ls '${pattern}' /proc/[0-9]*/{cmdline,environ} || true
    grep -o '${pattern}\\S*' /proc/self/mounts || true`);
}

await run('engines', main);
