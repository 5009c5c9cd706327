// Shared by the tests of control-run: runs, and a shell on a terminal to start them from.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { chmodSync, copyFileSync, readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { clientAt, makeFolder, start, startProgram, until } from './helpers.ts';
import type { WebApiClient } from '../../control.ts';
import type { Running } from './helpers.ts';
import type { TestContext } from 'node:test';

const BANNER = /control-run: [^\n]*?\[(\d+)\] · web API at http:\/\/localhost:(\d+)\n/;

/** Starts control-run on a free port, with pipes as its standard streams. Returns the program's process id, too. */
export async function startRun(
  t: TestContext,
  options: string[],
  command: string[],
  env: NodeJS.ProcessEnv = {},
): Promise<{ running: Running; port: number; pid: number; client: WebApiClient }> {
  const mark = `TEST=${randomUUID()}`;
  t.after(() => endAll(mark));
  const args = ['--port', '0', ...options, '--', ...command];
  const running = startProgram(t, 'run', args, { ...env, TEST: mark.slice(5) });
  t.after(() => running.child.kill('SIGTERM'));
  await running.shows(BANNER);
  const [, pid, port] = BANNER.exec(running.output()) as unknown as [string, string, string];
  const client = clientAt(t, { host: '127.0.0.1', port: Number(port) });
  return { running, port: Number(port), pid: Number(pid), client };
}

export interface Controlled {
  port: number;
  /** The process id of the program, and that of control-run. */
  pid: number;
  parent: number;
}

/** An interactive bash in a pseudo-terminal of 24 rows and 80 columns. Its prompt is `<EXIT CODE> `. */
export interface Shell extends Pick<Running, 'child' | 'ended'> {
  pid: number;
  /** The path of the terminal. */
  path: string;
  /** Lists the processes of this terminal that run, other than the shell. */
  others(): number[];
  /** Types keys. */
  write(keys: string): void;
  /** What the terminal has shown since the last keys of `type()`, without the first line of control-run. */
  text(): string;
  /** Resolves when it matches. */
  shows(pattern: RegExp): Promise<void>;
  /** Types keys, and resolves when the output since then matches. */
  type(keys: string, pattern: RegExp): Promise<void>;
  /** Starts a command with $RUN, which is control-run on a free port, and resolves once the program runs. */
  control(line: string): Promise<Controlled>;
}

/**
 * Starts the shell. When the test ends, its terminal is closed, and that must end all that it has started.
 *
 * @param run The command line of control-run.
 */
export async function startShell(t: TestContext, run: string = CONTROL_RUN, options: string = ''): Promise<Shell> {
  const mark = `TEST=${randomUUID()}`;
  const shell = `stty rows 24 cols 80; exec bash --norc --noprofile ${options || '--noediting'} -i`;
  const { child, output, ended } = start(t, 'script', ['--quiet', '--return', '--command', shell, '/dev/null'], {
    PS1: '<$?> ', HISTFILE: '/dev/null', RUN: run, TEST: mark.slice(5), LC_ALL: 'C.UTF-8', SHELL: '/bin/sh',
  });
  t.after(async () => {
    child.kill('SIGKILL');
    await endAll(mark);
  });
  let seen = 0;
  const raw = (): string => output().slice(seen).replaceAll('\r\n', '\n');
  const text = (): string => raw().replaceAll(new RegExp(BANNER, 'g'), ''); // it may be anywhere, also after a prompt
  const shows = (pattern: RegExp): Promise<void> => {
    return until(() => pattern.test(text()), () => `no ${pattern} in ${JSON.stringify(text())}`);
  };
  const write = (keys: string): void => void child.stdin?.write(keys);
  const type = (keys: string, pattern: RegExp): Promise<void> => {
    seen = output().length;
    write(keys);
    return shows(pattern);
  };
  const control = async (line: string): Promise<Controlled> => {
    seen = output().length;
    write(`${line}\n`);
    await until(() => BANNER.test(raw()), () => `no banner in ${JSON.stringify(raw())}`);
    const [, pid, port] = BANNER.exec(raw()) as unknown as [string, string, string];
    return { port: Number(port), pid: Number(pid), parent: Number(fieldsOf(Number(pid))[1]) };
  };
  await shows(/^<0> /m);
  await type('echo $$ $(tty) =\n', /^\d+ \S+ =\n<0> /m);
  const [, pid, path] = /^(\d+) (\S+) =$/m.exec(text()) as unknown as [string, string, string];
  const others = (): number[] => listMarked(mark).filter((one) => one !== child.pid && one !== Number(pid));
  return { child, ended, pid: Number(pid), path, others, write, text, shows, type, control };
}

const UNPRIVILEGED = 'setpriv --reuid=65534 --regid=65534 --clear-groups';
const CONTROL_RUN = `${process.execPath} ${resolve('dist/bin/run.js')} --port 0 --grace 1`;

/**
 * The two ways in which control-run finds the processes of a program: with a cgroup, and without as a user who may not
 * create one. Each is the command line that starts it.
 */
export const WAYS: readonly [what: string, command: (t: TestContext) => string, skip: string | false][] = [
  ['as the user of the tests', () => CONTROL_RUN, false],
  ['without a cgroup', (t) => {
    const folder = makeFolder(t);
    chmodSync(folder, 0o755);
    copyFileSync('dist/bin/run.js', join(folder, 'run.mjs'));
    return `${UNPRIVILEGED} ${CONTROL_RUN.replace(resolve('dist/bin/run.js'), join(folder, 'run.mjs'))}`;
  }, lacksUnprivileged()],
];

function lacksUnprivileged(): string | false {
  const { status } = spawnSync('sh', ['-c', `${UNPRIVILEGED} ${process.execPath} --version`]);
  return status !== 0 && 'needs root, setpriv (apt-get install util-linux), and a Node that everybody may execute';
}

/** Waits until no process has the variable in its environment; ends those that are left after that, and fails. */
async function endAll(mark: string): Promise<void> {
  try {
    await until(() => listMarked(mark).length === 0);
  } catch {
    const left = listMarked(mark).map((pid) => `${pid} ${stateOf(pid)} ${tryRead(`/proc/${pid}/cmdline`)}`);
    for (const pid of listMarked(mark)) spawnSync('kill', ['-s', 'KILL', String(pid)]);
    assert.deepEqual(left, [], 'these processes are left');
  }
}

/** The processes that have the variable in their environment. */
export function listMarked(mark: string): number[] {
  const pids = readdirSync('/proc').filter((name) => /^\d/.test(name) && Number(name) !== process.pid);
  return pids.filter((pid) => tryRead(`/proc/${pid}/environ`).split('\0').includes(mark)).map(Number);
}

/** A process and all its descendants. */
export function listTree(pid: number): number[] {
  const children = readdirSync('/proc').filter((name) => /^\d/.test(name) && fieldsOf(Number(name))[1] === String(pid));
  return [pid, ...children.flatMap((child) => listTree(Number(child)))];
}

/** One letter: `T` is stopped. Empty if the process has ended. */
export function stateOf(pid: number): string {
  return fieldsOf(pid)[0]?.replace('Z', '') ?? '';
}

/** What /proc/PID/stat tells after the name: state, parent, group, session, terminal … */
function fieldsOf(pid: number): string[] {
  const stat = tryRead(`/proc/${pid}/stat`);
  return stat === '' ? [] : stat.slice(stat.lastIndexOf(')') + 2).split(' ');
}

function tryRead(path: string): string {
  try {
    return readFileSync(path, 'latin1');
  } catch {
    return '';
  }
}
