// The keeper: a shell that outlives control-run, even after SIGKILL. It then continues and ends the processes that are
// left of the program, which would otherwise stay stopped for ever.

import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';

// While control-run lives, the keeper only reads what to end. A process is PID:START, and START is compared before each
// signal: another process may have the id by then. Each look searches as Processes.list() does, and so finds what the
// program starts when it gets SIGTERM. It keeps what it has found, because a process may lose its parent meanwhile.
//
// SIGTERM may be sent to all children of control-run, and the keeper ignores it. It needs no other program to search,
// and runs in dash, in busybox, and in bash, where the variables of an environment are read as one line, too.
const SCRIPT = `
grace=$1 cgroup=$2
trap '' HUP INT TERM

read_stat() { # see proc(5): the name may contain spaces, parentheses and newlines; what is needed follows
  line=
  while read -r next; do line=$next; done < "/proc/$1/stat"
  set -- \${line##*) }
  [ $# -ge 20 ] || return
  state=$1 parent=$2 group=$3 session=$4 threads=\${18} start=\${20}
}

has_mark() {
  while read -r next || [ -n "$next" ]; do
    case $next in *"$mark"*) return;; esac
  done < "/proc/$1/environ"
  return 1
}

belongs() { # PID:START PARENT GROUP SESSION
  case " $known " in *" $1 "*) return;; esac
  case " $found" in *" $2:"*) return;; esac
  [ "$3" = "$main" ] || [ "$4" = "$main" ] || has_mark "\${1%:*}"
}

search() {
  all=
  [ -z "$cgroup" ] || set -- $(find "$cgroup" -name cgroup.procs -exec cat {} +)
  inside=" $* "
  for folder in /proc/[0-9]*; do
    pid=\${folder#/proc/}
    read_stat "$pid" || continue
    case $state:$threads in [ZX]:[01]) continue;; esac
    case $inside in *" $pid "*) known="$known $pid:$start";; esac
    [ "$pid" != "$main" ] || [ "$start" = "$since" ] || main= # the id, also of a group, is another's now
    [ "$start" -lt "$since" ] || all="$all $pid:$start,$parent,$group,$session"
  done
  found= before=
  while [ "$all" != "$before" ]; do # a child may come before its parent
    before=$all all=
    for one in $before; do
      IFS=,
      set -- $one
      unset IFS
      if belongs "$@"; then found="$found$1 "; else all="$all $one"; fi
    done
  done
  known=$found
}

look() {
  [ ! -e /proc/self/stat ] || search
  left=
  for one in $known; do kill -0 "\${one%:*}" && left="$left $one"; done
  [ -n "$left" ]
}

signal() {
  for one in $left; do
    pid=\${one%:*} start=0
    [ ! -e /proc/self/stat ] || read_stat "$pid"
    [ "$pid:$start" != "$one" ] || kill "-$1" "$pid"
  done
}

known=
while read -r what rest; do
  case $what in
    mark) mark=$rest;;
    start) known=start main= since=0;;
    watch) known=$rest main=\${rest%:*} since=\${rest#*:};;
    add) known="$known $rest";;
    forget) known=;;
  esac
done

[ -z "$cgroup" ] || echo 0 > "$cgroup/cgroup.freeze"
if [ -n "$known" ]; then
  [ "$known" != start ] || sleep 1 # it may not have called exec() yet, and has no mark before
  [ -e /proc/self/stat ] || known="-$main:0 $known"
  look
  signal TERM
  signal CONT
  while look && [ "$grace" -gt 0 ]; do
    sleep 1
    grace=$((grace - 1))
  done
  for round in 1 2 3; do
    look || break
    signal KILL
    sleep 1
  done
fi
if [ -n "$cgroup" ]; then
  for pid in $(cat "$cgroup/cgroup.procs"); do echo "$pid" > "$cgroup/../cgroup.procs"; done # runs on
  find "$cgroup" -depth -type d -exec rmdir {} \\;
fi
`;

/** A process id, and what tells it from a later process with the same id: 0 where that is unknown. */
export interface Target {
  pid: number;
  startedAt: number;
}

export class Keeper {
  readonly #shell: ChildProcess;

  /**
   * @param mark A variable with its value that only the environment of the program's processes has. It is not an
   *   argument of the keeper, because everybody can read these.
   * @param cgroup The path of their cgroup, which is removed at the end; empty if there is none.
   */
  constructor(graceMs: number, mark: string, cgroup: string) {
    const grace = String(Math.ceil(graceMs / 1000));
    const args = ['-c', SCRIPT, `control-run-keeper-${process.pid}`, grace, cgroup];
    // In its own session, signals from the terminal do not reach it.
    this.#shell = spawn('/bin/sh', args, { detached: true, stdio: ['pipe', 'ignore', 'ignore'] });
    this.#shell.on('error', () => {}); // there is no sh on Windows
    this.#shell.stdin?.on('error', () => {});
    this.#shell.unref();
    this.#write('mark', mark);
  }

  /** A program is about to start: its processes can be found by their mark alone. */
  expect(): void {
    this.#write('start');
  }

  /** The program has started: the keeper finds its processes by itself, starting from the first. */
  watch(main: Target): void {
    this.#write('watch', textOf(main));
  }

  /** Adds processes that it might not find: the parent of one that is stopped or must end may end first. */
  add(targets: readonly Target[]): void {
    if (targets.length > 0) this.#write('add', ...targets.map(textOf));
  }

  /** There is nothing to end. */
  forget(): void {
    this.#write('forget');
  }

  /** The pipe takes it at once: it arrives even if control-run is killed right after. */
  #write(...words: string[]): void {
    this.#shell.stdin?.write(`${words.join(' ')}\n`);
  }
}

function textOf({ pid, startedAt }: Target): string {
  return `${pid}:${startedAt}`;
}
