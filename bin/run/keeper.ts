// The keeper: a shell that waits for the end of control-run, even by SIGKILL, and then continues and ends what is left
// of the program, which would otherwise stay stopped for ever.

import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';

// Each line of standard input replaces the targets: process ids, negative for groups. The input ends when control-run
// does. Each look also finds what the program starts when it gets SIGTERM. The keeper itself ignores that signal, which
// may be sent to all children of control-run. It runs in busybox, too, whose kill has no `--` and whose grep stops at a
// null byte.
const SCRIPT = `
grace=$1 mark=$2 cgroup=$3
trap '' HUP INT TERM
look() {
  set -- $targets
  for folder in /proc/[0-9]*; do
    tr '\\0' '\\n' < "$folder/environ" | grep -qxF "$mark" && set -- "$@" "\${folder#/proc/}"
  done
  [ -n "$cgroup" ] && set -- "$@" $(cat "$cgroup/cgroup.procs")
  left=
  for target in "$@"; do kill -0 "$target" && left="$left $target"; done
  [ -n "$left" ]
}
targets=
while read -r line; do targets=$line; done
[ -z "$cgroup" ] || echo 0 > "$cgroup/cgroup.freeze"
if [ -n "$targets" ]; then
  look
  for target in $left; do kill -TERM "$target"; kill -CONT "$target"; done
  while look && [ "$grace" -gt 0 ]; do
    sleep 1
    grace=$((grace - 1))
  done
  for round in 1 2 3; do
    look || break
    for target in $left; do kill -KILL "$target"; done
    sleep 1
  done
fi
[ -z "$cgroup" ] || rmdir "$cgroup"
`;

export class Keeper {
  readonly #shell: ChildProcess;

  /**
   * @param mark A variable with its value that only the environment of the program's processes has.
   * @param cgroup The path of their cgroup, which is removed at the end; empty if there is none.
   */
  constructor(graceMs: number, mark: string, cgroup: string) {
    const grace = String(Math.ceil(graceMs / 1000));
    const args = ['-c', SCRIPT, 'control-run-keeper', grace, mark, cgroup];
    // In its own session, signals from the terminal do not reach it.
    this.#shell = spawn('sh', args, { detached: true, stdio: ['pipe', 'ignore', 'ignore'] });
    this.#shell.on('error', () => {}); // there is no sh on Windows
    this.#shell.stdin?.on('error', () => {});
    this.#shell.unref();
  }

  /** Sets what to end: process ids, negative for groups. Empty once the program has ended. */
  watch(targets: readonly number[]): void {
    this.#shell.stdin?.write(`${targets.join(' ')}\n`);
  }
}
