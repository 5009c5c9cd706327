// Past versions of this repository, from its history.

import { execFile, execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { VERSION } from '../../control.ts';

const COUNT = 3;

/** Later runs find the versions there that an earlier one has built. */
const CACHE = resolve('.test', 'past');

/** Lets root read the clone of another user. */
const ENVIRONMENT = {
  ...process.env, GIT_CONFIG_COUNT: '1', GIT_CONFIG_KEY_0: 'safe.directory', GIT_CONFIG_VALUE_0: '*',
};

interface Past {
  version: string;
  commit: string;
  /** The one that has its `dist/`, once it is built. */
  folder: string;
}

/** The last commits of the three minor versions before this one, the latest first. Null without a full history. */
export function findPast(): Past[] | null {
  const past: Past[] = [];
  try {
    const lastCommits = git('log', '--format=%P', '-G"version":', '--', 'package.json').match(/\S+/g) ?? [];
    for (const name of ['HEAD', ...lastCommits]) {
      const { version } = JSON.parse(git('show', `${name}:./package.json`));
      const known = [VERSION, ...past.map((one) => one.version)].map(minorOf);
      if (known.includes(minorOf(version))) continue;
      const commit = git('rev-parse', name).trim();
      past.push({ version, commit, folder: join(CACHE, commit) });
      if (past.length === COUNT) return past;
    }
  } catch {} // no git, no repository, or a commit is not in the clone
  return null;
}

/** Builds a version, as its package.json says, with the development dependencies of this one. */
export async function build({ commit, folder }: Past): Promise<void> {
  if (existsSync(folder)) return;
  mkdirSync(CACHE, { recursive: true });
  const draft = mkdtempSync(join(CACHE, 'draft-'));
  const script = `
    cd "$0" && git -C "$2" archive ${commit} | tar -x && ln -s "$1" . && npm run --silent build`;
  try {
    const args = ['-c', script, draft, resolve('node_modules'), process.cwd()];
    await promisify(execFile)('sh', args, { env: ENVIRONMENT });
    if (!existsSync(folder)) renameSync(draft, folder); // all of it or nothing
  } finally {
    rmSync(draft, { recursive: true, force: true });
  }
}

function git(...args: string[]): string {
  return execFileSync('git', args, { encoding: 'utf8', env: ENVIRONMENT, stdio: ['ignore', 'pipe', 'ignore'] });
}

function minorOf(version: string): string {
  return version.replace(/\.\d+$/, '');
}
