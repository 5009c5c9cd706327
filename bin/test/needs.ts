// What tests need besides Node and a POSIX shell. Without it, a test is skipped, and the reason says how to get it: the
// reporter gathers these reasons into one line. In CI, nothing that a package provides may be missing.

import { spawnSync } from 'node:child_process';
import { accessSync, constants, readFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { delimiter, join } from 'node:path';
import { findPast } from './versions.ts';

/** Debian's Python, which has Debian's modules. */
export const PYTHON = '/usr/bin/python3';

/** Commands, and the Debian packages that have them. */
const PACKAGES = {
  Xvfb: 'xvfb', bash: 'bash', cc: 'gcc libc6-dev', chromedriver: 'chromium-driver', chromium: 'chromium', curl: 'curl',
  fish: 'fish', grep: 'grep', less: 'less', mcs: 'mono-mcs', mkfifo: 'coreutils', mono: 'mono-runtime',
  prlimit: 'util-linux', promtool: 'prometheus', ps: 'procps', python3: 'python3', setsid: 'util-linux',
  setxkbmap: 'x11-xkb-utils', 'systemd-analyze': 'systemd', tmux: 'tmux', top: 'procps', vi: 'vim-tiny',
  wine: 'wine wine64', zsh: 'zsh',
} as const;

type CommandLine = readonly [command: string, ...args: string[]];

/** Prefixes that run a command as process 1, and as a user without rights. */
export const NAMESPACE: CommandLine = ['unshare', '--fork', '--pid', '--mount-proc', '--kill-child'];
export const NOBODY: CommandLine = ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups'];

type Command = keyof typeof PACKAGES;
type Other =
  | 'IPv6' | 'Linux' | 'Unix' | 'cgroup' | 'history' | 'namespace' | 'nobody' | 'root' | 'script'
  | 'typeStripping' | 'yaml';
export type Need = Command | Other;

/** Everything else: whether it is there, and how to get it. */
const OTHERS: Record<Other, [isThere: () => boolean, remedy: string]> = {
  IPv6: [() => Object.values(networkInterfaces()).flat().some((one) => one?.address === '::1'), 'enable IPv6'],
  Linux: [() => process.platform === 'linux', 'use Linux'],
  Unix: [() => process.platform !== 'win32', 'use Linux or macOS'],
  cgroup: [() => ownCgroup() !== null, 'run as root with a writable cgroup (version 2)'],
  history: [() => findPast() !== null, 'use a full clone of the git repository'],
  namespace: [() => runs(...NAMESPACE, 'true'), 'run as root with unshare of util-linux'],
  nobody: [
    () => runs(...NOBODY, process.execPath, '--version'),
    'run as root with setpriv of util-linux and a Node that everybody may execute',
  ],
  root: [() => process.geteuid?.() === 0, 'run as root'],
  script: [() => /util-linux/.test(outputOf('script', '--version')), 'apt-get install bsdutils'],
  typeStripping: [() => 'typescript' in process.features, 'use Node 22.18'],
  yaml: [() => runs(PYTHON, '-c', 'import yaml'), 'apt-get install python3 python3-yaml'],
};

/** The option `skip` of a test or a suite: how to get what is missing, or false if nothing is. */
export function lacks(...needs: readonly Need[]): string | false {
  const remedies = needs.map(remedyFor).filter((remedy) => remedy !== null);
  return remedies.length > 0 && remedies.join('; ');
}

/** The path of the cgroup of this process; null if it is not writable. */
export function ownCgroup(): string | null {
  try {
    const [, path = ''] = /^0::(.*)$/m.exec(readFileSync('/proc/self/cgroup', 'utf8')) ?? [];
    const [, mount = ''] = /^\S+ (\S+) cgroup2 /m.exec(readFileSync('/proc/self/mounts', 'utf8')) ?? [];
    accessSync(join(mount, path), constants.W_OK);
    return mount === '' ? null : join(mount, path);
  } catch {
    return null;
  }
}

function remedyFor(need: Need): string | null {
  if (!(need in OTHERS)) return isOnPath(need) ? null : `apt-get install ${PACKAGES[need as Command]}`;
  const [isThere, remedy] = OTHERS[need as Other];
  return isThere() ? null : remedy;
}

function isOnPath(command: string): boolean {
  return (process.env['PATH'] ?? '').split(delimiter).some((folder) => {
    try {
      accessSync(join(folder, command), constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
}

function runs(command: string = '', ...args: string[]): boolean {
  return spawnSync(command, args).status === 0;
}

function outputOf(command: string, ...args: string[]): string {
  return spawnSync(command, args, { encoding: 'utf8' }).stdout ?? '';
}
