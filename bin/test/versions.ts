// Past versions of this repository, from its history.

import { execFile, execFileSync } from 'node:child_process';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { VERSION } from '../../control.ts';

const COUNT = 3;

/** Lets root read the clone of another user. */
const ENVIRONMENT = {
  ...process.env, GIT_CONFIG_COUNT: '1', GIT_CONFIG_KEY_0: 'safe.directory', GIT_CONFIG_VALUE_0: '*',
};

interface Past {
  version: string;
  commit: string;
}

/** The last commits of the three minor versions before this one, the latest first. Null without a full history. */
export function findPast(): Past[] | null {
  const past: Past[] = [];
  try {
    const lastCommits = git('log', '--format=%P', '-G"version":', '--', 'package.json').match(/\S+/g) ?? [];
    for (const commit of ['HEAD', ...lastCommits]) {
      const { version } = JSON.parse(git('show', `${commit}:./package.json`));
      const known = [VERSION, ...past.map((one) => one.version)].map(minorOf);
      if (!known.includes(minorOf(version))) past.push({ version, commit });
      if (past.length === COUNT) return past;
    }
  } catch {} // no git, no repository, or a commit is not in the clone
  return null;
}

/** Builds a version in a new folder, as its package.json says, with the development dependencies of this one. */
export async function build({ version, commit }: Past, parent: string): Promise<void> {
  const script = `
    mkdir "$0" && git archive ${commit} | tar -x -C "$0" && ln -s "$1" "$0" && cd "$0" && npm run --silent build`;
  const args = ['-c', script, join(parent, version), resolve('node_modules')];
  await promisify(execFile)('sh', args, { env: ENVIRONMENT });
}

function git(...args: string[]): string {
  return execFileSync('git', args, { encoding: 'utf8', env: ENVIRONMENT, stdio: ['ignore', 'pipe', 'ignore'] });
}

function minorOf(version: string): string {
  return version.replace(/\.\d+$/, '');
}
