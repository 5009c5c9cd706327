// The start of a paused program: a shell waits at a gate, which is a socket, and is stopped there. The first resume
// opens the gate, and the shell becomes the program, with the same process id, session and files. A SIGCONT from
// elsewhere, such as `fg`, does not open the gate. If control-run is killed, the gate closes, and the shell exits.

import { accessSync, constants, statSync } from 'node:fs';
import { delimiter } from 'node:path';
import { GATE_FD } from './descriptors.ts';

const DEFAULT_PATH = '/usr/bin:/bin';

/**
 * Returns the command line and the environment of the shell. A shell may drop variables whose names it does not accept,
 * such as functions exported by bash. These pass it under other names; as arguments, every user could read them.
 */
export function shellAtGate(
  line: readonly string[],
  variables: NodeJS.ProcessEnv,
): [line: [string, ...string[]], env: NodeJS.ProcessEnv] {
  if (Number.isNaN(GATE_FD)) throw new Error('it was paused, and the file descriptors from 3 to 9 are in use');
  const env = { ...variables };
  const aliases = Object.keys(env).filter((name) => !/^[A-Za-z_]\w*$/.test(name)).map((name, index) => {
    const alias = `CONTROL_RUN_${index}`;
    env[alias] = `${name}=${env[name]}`;
    delete env[name];
    return alias;
  });
  const names = aliases.map((alias) => `-u ${alias}`).join(' ');
  const values = aliases.map((alias) => `"$${alias}"`).join(' ');
  const restore = `env ${names} -- ${values} nice -n 0 `; // env alone would take `lr=0.1/train.sh` for a variable
  const script = `read -r line <&${GATE_FD} && exec ${aliases.length > 0 ? restore : ''}"$@" ${GATE_FD}<&-`;
  return [['/bin/sh', '-c', script, 'sh', ...line], env];
}

/** @throws {NodeJS.ErrnoException} As `spawn()` does, if a file cannot be executed. */
export function checkExecutable(file: string): void {
  if (process.platform === 'win32') throw new Error('it was paused, and Windows cannot stop processes');
  const folders = (process.env['PATH'] ?? DEFAULT_PATH).split(delimiter);
  const paths = file.includes('/') ? [file] : folders.map((folder) => `${folder || '.'}/${file}`);
  const codes = paths.map(obstacleAt);
  if (codes.includes(null)) return;
  const code = codes.includes('EACCES') ? 'EACCES' : codes.at(-1);
  throw Object.assign(new Error(`${code}`), { code, path: file });
}

/** Returns the error code if a path cannot be executed; otherwise null. */
function obstacleAt(path: string): string | null {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile() ? null : 'EACCES';
  } catch (error) {
    return (error as NodeJS.ErrnoException).code as string;
  }
}
