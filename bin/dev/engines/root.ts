// A Debian root file system for the engines that run one: systemd, Node, npm and the package.

import { copyFile, cp, mkdir, readFile, rm, symlink } from 'node:fs/promises';
import { existsSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { succeed } from './engine.ts';

const PACKAGES = 'systemd,systemd-sysv,dbus,libstdc++6';
export const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'; // in the root file system
const BUILD_TIMEOUT_MS = 300_000; // the mirror may be slow

/** Downloads the packages from Debian's mirror, which takes about 20 seconds, and copies the rest from this machine. */
export async function buildRootFileSystem(
  folder: string,
  tarball: string,
  progress: (text: string) => void,
): Promise<string> {
  progress('building a root file system');
  const args = ['--quiet', '--variant=apt', `--include=${PACKAGES}`, await debianRelease(), folder];
  await succeed('mmdebstrap', args, { timeout: BUILD_TIMEOUT_MS });
  await copyNode(folder);
  await copyFile(tarball, join(folder, basename(tarball)));
  await succeed('chroot', [folder, 'npm', 'install', '--silent', '--global', '--offline', `/${basename(tarball)}`]);
  await rm(join(folder, basename(tarball)));
  return folder;
}

/**
 * Makes an image from the root file system, without the package, and names it as the Dockerfile names the one that it
 * begins from, which is therefore not downloaded.
 * @param run Runs a shell command with `docker` or `podman`.
 */
export async function importBaseImage(
  root: string,
  program: 'docker' | 'podman',
  dockerfile: string,
  run: (command: string) => Promise<string>,
): Promise<void> {
  const name = /^FROM (\S+)$/m.exec(dockerfile)?.[1];
  const without = '--exclude=./usr/local/bin/control-* --exclude=./usr/local/lib/node_modules/runtime-control';
  await run(`tar -C ${root} ${without} -c . | ${program} import --change 'ENV PATH=${PATH}' - ${name}`);
}

/** Returns the release of this machine, because Node's libraries are copied from it. */
async function debianRelease(): Promise<string> {
  const release = await readFile('/etc/os-release', 'utf8');
  const name = /^ID=debian$/m.test(release) ? /^VERSION_CODENAME=(\w+)$/m.exec(release)?.[1] : undefined;
  return name ?? 'stable';
}

/** Copies Node and npm to where Node's own images have them, and the libraries that Debian's packages did not bring. */
async function copyNode(folder: string): Promise<void> {
  const prefix = join(folder, 'usr/local');
  const modules = await succeed('npm', ['root', '--silent', '--global']);
  await copyFile(process.execPath, join(prefix, 'bin/node'));
  await mkdir(join(prefix, 'lib/node_modules'), { recursive: true });
  await cp(join(modules, 'npm'), join(prefix, 'lib/node_modules/npm'), { recursive: true, verbatimSymlinks: true });
  await symlink('../lib/node_modules/npm/bin/npm-cli.js', join(prefix, 'bin/npm'));
  const libraries = await succeed('ldd', [process.execPath]);
  for (const [path] of libraries.matchAll(/\/\S+(?= \(0x)/g)) {
    if (existsSync(join(folder, path))) continue;
    await mkdir(dirname(join(folder, path)), { recursive: true });
    await copyFile(path, join(folder, path));
  }
}
