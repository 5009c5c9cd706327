// The keeper: a shell that outlives control-run, even after SIGKILL. It then continues and ends the remaining processes
// of the program, which would otherwise stay stopped forever.

import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';

// While control-run lives, the keeper only reads which processes to end. A process is PID:START; the keeper compares
// START before each signal, because the id may have been reused. Each look searches as Processes.list() does, and so
// finds processes that start during SIGTERM. Found processes stay known, because a process may lose its parent
// meanwhile.
//
// The keeper ignores SIGTERM, which may be sent to all children of control-run. The search needs no other program, and
// works in dash, busybox and bash, although bash reads all variables of an environment as one line.
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
    [ "$pid" != "$main" ] || [ "$start" = "$since" ] || main= # the id, also as a group, was reused
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
  [ "$known" != start ] || sleep 1 # it has no mark before exec()
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
  for pid in $(cat "$cgroup/cgroup.procs"); do echo "$pid" > "$cgroup/../cgroup.procs"; done # they keep running
  find "$cgroup" -depth -type d -exec rmdir {} \\;
fi
`;

/** A process id, and a start time, which differs for a later process with the same id; 0 if unknown. */
export interface Watched {
  pid: number;
  startedAt: number;
}

export class Keeper {
  readonly #shell: ChildProcess;

  /**
   * @param mark A variable with its value, `NAME=VALUE`, that only the program's processes inherit. It is not an
   *   argument of the shell, because every user can read arguments.
   * @param cgroup The path of their cgroup, which the keeper removes at the end; empty if there is none.
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

  /** The program is about to start: until watch(), only the mark identifies its processes. */
  expect(): void {
    this.#write('start');
  }

  /** The program has started: from its first process, the keeper finds the others. */
  watch(main: Watched): void {
    this.#write('watch', wordOf(main));
  }

  /** Adds processes that the keeper might not find, because their parents may end first. */
  add(targets: readonly Watched[]): void {
    if (targets.length > 0) this.#write('add', ...targets.map(wordOf));
  }

  /** Nothing is left to end. */
  forget(): void {
    this.#write('forget');
  }

  /** The line arrives even if control-run is killed right after, because the pipe takes it at once. */
  #write(...words: string[]): void {
    this.#shell.stdin?.write(`${words.join(' ')}\n`);
  }
}

function wordOf({ pid, startedAt }: Watched): string {
  return `${pid}:${startedAt}`;
}
