// Tries the recipes with the engines that run programs: `npm run engines`.
//
// Each engine runs here, as root, in a folder of its own; its trainer is control-demo. The table shows what was seen,
// also of what an engine cannot do. At the end, no process and no mount of an engine may be left.

import { chmod, mkdir, mkdtemp, readFile, readdir, rm } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { CHECKS, execute, interruption, mountsIn, succeed, throwIfInterrupted } from './engines/engine.ts';
import { buildRootFileSystem } from './engines/root.ts';
import { docker } from './engines/docker.ts';
import { podman } from './engines/podman.ts';
import { slurm } from './engines/slurm.ts';
import { ssh } from './engines/ssh.ts';
import { supervisord } from './engines/supervisord.ts';
import { systemd } from './engines/systemd.ts';
import { describeOptions, EXIT, parseOptions, run, UsageError, warn } from '../shared/options.ts';
import type { CheckName, Engine, Place } from './engines/engine.ts';
import type { Options } from '../shared/options.ts';

const ENGINES: readonly Engine[] = [systemd, docker, podman, slurm, supervisord, ssh];

const OPTIONS = {
  json: { type: 'boolean', help: 'print the results as JSON: engine, check, result (works, fails, cannot), seen' },
} as const satisfies Options;

const HELP = `
Usage: npm run engines -- [options] [ENGINE ...]

Starts each engine that is installed (${ENGINES.map(({ name }) => name).join(', ')}), runs the recipes in it and
shows what works. Needs root and Linux. Takes six minutes. Their Debian packages:

${ENGINES.map(({ name, packages }) => `  ${name.padEnd(12)} ${packages}`).join('\n')}

${describeOptions(OPTIONS)}

Exit codes: 0 nothing fails, 1 something fails or an engine is missing, 2 wrong usage.
`;

interface Result {
  engine: string;
  check: string;
  result: 'works' | 'fails' | 'cannot';
  seen: string;
}

async function main(): Promise<number> {
  const parsed = parseOptions(OPTIONS, HELP, Infinity);
  if (parsed === null) return EXIT.DONE;
  const { values, positionals: names } = parsed;
  const unknown = names.find((name) => ENGINES.every((engine) => engine.name !== name));
  if (unknown !== undefined) {
    throw new UsageError(`the engine must be one of ${ENGINES.map(({ name }) => name).join(', ')}, got '${unknown}'`);
  }
  if (process.platform !== 'linux' || process.geteuid?.() !== 0) throw new UsageError('engines need Linux and root');
  const engines = ENGINES.filter(({ name }) => names.length === 0 || names.includes(name));
  for (const name of ['SIGINT', 'SIGTERM'] as const) process.on(name, () => (interruption.by = name));
  const root = await mkdtemp('/tmp/engines-'); // a short path, for Unix sockets
  await chmod(root, 0o711); // a trainer may be another user's
  const results: Result[] = [];
  try {
    const place = await prepare(root);
    for (const engine of engines) {
      throwIfInterrupted();
      const ofEngine = await tryEngine(engine, { ...place, folder: join(root, engine.name) });
      results.push(...ofEngine);
      if (!values.json) show(engine, ofEngine);
    }
  } finally {
    const mounts = await mountsIn(root); // rm() would empty what is mounted there, such as /dev
    if (mounts.length === 0) await rm(root, { recursive: true, force: true });
    else warn(`'${root}' is kept, because of its mounts: ${mounts.join(', ')}`);
  }
  if (values.json) console.log(JSON.stringify(results, null, 2));
  return results.some(({ result }) => result === 'fails') ? EXIT.REFUSED : EXIT.DONE;
}

/** Packs the package, and installs it for the engines that share this file system. */
async function prepare(root: string): Promise<Omit<Place, 'folder'>> {
  progress('packing the package');
  const options = ['--silent', '--ignore-scripts', '--pack-destination', root]; // it is built
  const output = await succeed('npm', ['pack', ...options], { cwd: '.' });
  const tarball = join(root, output.split('\n').at(-1) as string);
  await succeed('npm', ['install', '--silent', '--global', '--prefix', join(root, 'npm'), tarball]);
  let image: Promise<string> | null = null;
  return {
    recipes: resolve('bin/recipes'),
    trainer: resolve('dist/bin/demo.js'),
    tarball,
    programs: join(root, 'npm', 'bin'),
    rootFileSystem: () => (image ??= buildRootFileSystem(join(root, 'image'), tarball, progress)),
    progress,
  };
}

async function tryEngine(engine: Engine, place: Place): Promise<Result[]> {
  const results: Result[] = [];
  const note = (check: string, result: Result['result'], seen: string): void => {
    results.push({ engine: engine.name, check, result, seen });
  };
  const missing = await findMissing(engine.programs);
  if (missing.length > 0) {
    note('starts', 'fails', `not installed: apt-get install ${engine.packages}`);
    return results;
  }
  await mkdir(place.folder);
  progress(`${engine.name}: starting`);
  try {
    const running = await engine.start(place);
    try {
      for (const [name, title] of Object.entries(CHECKS)) {
        throwIfInterrupted();
        progress(`${engine.name}: ${title}`);
        const check = running.checks[name as CheckName];
        if (typeof check === 'string') {
          note(title, 'cannot', check);
          continue;
        }
        const works = (seen: string): void => note(title, 'works', seen);
        const fails = ({ message }: Error): void => note(title, 'fails', message);
        await check().catch((error: Error) => {
          throwIfInterrupted(); // which may be why it fails
          throw error;
        }).then(works, fails);
      }
    } finally {
      progress(`${engine.name}: stopping`);
      const { by } = interruption;
      interruption.by = null; // stop() may wait, too
      await running.stop();
      interruption.by = by;
    }
  } catch (error) {
    note('starts and stops', 'fails', (error as Error).message);
  }
  const left = await leftIn(place.folder);
  if (left.length > 0) note('nothing is left', 'fails', left.join(', '));
  else note('nothing is left', 'works', 'no process, no mount');
  progress('');
  return results;
}

async function findMissing(programs: readonly string[]): Promise<string[]> {
  const found = await Promise.all(programs.map((program) => execute('sh', ['-c', `command -v ${program}`])));
  return programs.filter((_, index) => found[index]?.code !== 0);
}

/** Returns the processes that name the folder in their command line or environment, and the mounts below it. */
async function leftIn(folder: string): Promise<string[]> {
  const left: string[] = [];
  for (const pid of await readdir('/proc')) {
    if (!/^\d+$/.test(pid) || Number(pid) === process.pid) continue;
    const texts = await Promise.all(['cmdline', 'environ'].map((file) => {
      return readFile(`/proc/${pid}/${file}`, 'utf8').catch(() => '');
    }));
    if (texts.some((text) => text.includes(folder))) left.push(`process ${pid}`);
  }
  return [...left, ...(await mountsIn(folder)).map((path) => `the mount ${path}`)];
}

// ───── Output ────────────────────────────────────────────────────────────────────────────────────────────────────

function show({ name }: Engine, results: readonly Result[]): void {
  const width = Math.max(...Object.values(CHECKS).map((title) => title.length));
  console.log(name);
  for (const { check, result, seen } of results) {
    console.log(`  ${check.padEnd(width)}  ${result === 'works' ? '' : `${result.toUpperCase()}: `}${seen}`);
  }
}

/** Redraws one line on a terminal, and otherwise prints a line. */
function progress(text: string): void {
  if (process.stderr.isTTY) process.stderr.write(`\r\x1b[K${text.slice(0, process.stderr.columns - 1)}`);
  else if (text !== '') process.stderr.write(`${text}\n`);
}

await run('engines', main);
