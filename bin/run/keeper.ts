// The keeper: a shell that outlives control-run, even after SIGKILL. It then becomes a control-run that continues and
// ends the remaining processes of the program, which would otherwise stay stopped forever.

import { spawn } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { Cgroup } from './cgroup.ts';
import { Processes } from './processes.ts';
import type { ChildProcess } from 'node:child_process';
import type { Listed, Watch } from './processes.ts';

const MARK = 'CONTROL_KEEPER_MARK'; // a variable, because every user can read the arguments of a process
const STARTING: Listed = { pid: -1, startedAt: 0 };
const EXEC_MS = 1000; // a starting process has no mark before exec()

// While control-run lives, the shell, which is small, only reads which processes to end. It ignores SIGTERM, which may
// be sent to all children of control-run.
const SCRIPT = `
cgroup=$1 known=
shift
trap '' HUP INT TERM
while read -r what rest; do
  case $what in
    watch) known=$rest;;
    add) known="$known $rest";;
    forget) known=;;
  esac
done
if [ -n "$known" ] || [ -d "$cgroup" ]; then exec "$@" "$cgroup" $known; fi
`;

export class Keeper implements Watch {
  readonly #shell: ChildProcess;

  /**
   * @param mark A variable with its value, `NAME=VALUE`, that only the program's processes inherit.
   * @param cgroup The path of their cgroup, which the keeper removes at the end; empty if there is none.
   */
  constructor(graceMs: number, mark: string, cgroup: string) {
    const name = `control-run-keeper-${process.pid}`;
    const self = [process.execPath, ...process.execArgv, process.argv[1] as string];
    // In its own session, signals from the terminal do not reach it.
    this.#shell = spawn('/bin/sh', ['-c', SCRIPT, name, cgroup, ...self, name, String(graceMs)], {
      detached: true, stdio: ['pipe', 'ignore', 'ignore'], env: { ...process.env, [MARK]: mark },
    });
    this.#shell.on('error', () => {}); // there is no sh on Windows
    this.#shell.stdin?.on('error', () => {});
    this.#shell.unref();
  }

  /** The program is about to start: until watch(), only the mark identifies its processes. */
  expect(): void {
    this.watch(STARTING);
  }

  watch(main: Listed): void {
    this.#write('watch', main);
  }

  add(others: readonly Listed[]): void {
    if (others.length > 0) this.#write('add', ...others);
  }

  forget(): void {
    this.#write('forget');
  }

  /** The line arrives even if control-run is killed right after, because the pipe takes it at once. */
  #write(what: string, ...processes: Listed[]): void {
    const words = processes.map(({ pid, startedAt }) => `${pid}:${startedAt}`);
    this.#shell.stdin?.write(`${[what, ...words].join(' ')}\n`);
  }
}

/** Ends what a killed control-run has left, if this process was its keeper. Returns whether it was. */
export async function endOrphans([, grace, path = '', ...words]: readonly string[]): Promise<boolean> {
  const mark = process.env[MARK];
  if (mark === undefined) return false;
  for (const name of ['SIGHUP', 'SIGINT', 'SIGTERM'] as const) process.on(name, () => {});
  const cgroup = path === '' ? null : new Cgroup(path);
  cgroup?.freeze(false);
  const [main, ...others] = words.map((word): Listed => {
    const [pid, startedAt] = word.split(':').map(Number) as [number, number];
    return { pid, startedAt };
  });
  if (main?.pid === STARTING.pid) await sleep(EXEC_MS);
  if (main !== undefined) {
    await new Processes({ ...main, hasEnded: () => true }, mark, cgroup, null, others).end(Number(grace));
  }
  cgroup?.remove();
  return true;
}
