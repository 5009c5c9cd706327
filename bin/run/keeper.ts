// The keeper: a shell that outlives control-run, even after SIGKILL. It then starts a control-run that continues and
// ends the remaining processes of the program, which would otherwise stay stopped forever.

import { spawn } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { appendTo, type LogEntry, type LogFile } from '../shared/logfile.ts';
import { Cgroup, type Keep, type Listed, OWN_GROUP, Processes, tryTo } from './processes.ts';

const MARK = 'CONTROL_KEEPER_MARK'; // a variable, because every user can read the arguments of a process
const LOG = 'CONTROL_KEEPER_LOG'; // the path of the log, and its last line
const WORDS = 'CONTROL_KEEPER_WORDS'; // a variable, too: `pkill -9 -f control-run` would kill a keeper that names it
const EXEC_MS = 1000; // a starting process has no mark before exec()

/** Instead of the first process of a program that is about to start: only the mark identifies its processes. */
export const STARTING: Listed = { pid: -1, startedAt: 0 };

// While control-run lives, the shell, which is small, only reads which processes to end. It ignores SIGTERM, which may
// be sent to all children of control-run. If it cannot start control-run, which may be deleted or lack memory, it
// signals the known processes itself, so that nothing stays stopped.
const SCRIPT = `
eval "set -- $${WORDS}"
cgroup=$1 folder=$2 known=
shift 2
trap '' HUP INT TERM
while read -r line; do known=$line; done
rm -rf "$folder"
if [ -n "$known" ] || [ -d "$cgroup" ]; then
  "$@" "$cgroup" $known && exit
  [ ! -d "$cgroup" ] || echo 0 > "$cgroup/cgroup.freeze"
  for one in $known $(cat "$cgroup/cgroup.procs"); do
    pid=\${one%:*}
    [ "$pid" -lt 0 ] || kill -s TERM -- "-$pid" "$pid"
    [ "$pid" -lt 0 ] || kill -s CONT -- "-$pid" "$pid"
  done
fi
`;

/**
 * Starts a keeper. Returns a function that tells it which processes to end.
 *
 * @param mark A variable with its value, `NAME=VALUE`, that only the program's processes inherit.
 * @param cgroup The path of their cgroup, which the keeper removes at the end; empty if there is none.
 * @param folder The path of a folder that the keeper removes.
 * @param log Where the keeper appends the end of the program.
 */
export function startKeeper(graceMs: number, mark: string, cgroup: string, folder: string, log: LogFile): Keep {
  const name = `keeper-${process.pid}`;
  const lastEntry = log.entry('end', { ended: 'control-run is gone' });
  const self = [process.execPath, ...process.execArgv, process.argv[1] as string];
  const words = [cgroup, folder, ...self, name, `${OWN_GROUP}`, `${graceMs}`];
  // In its own session, signals from the terminal do not reach it.
  const shell = spawn('/bin/sh', ['-c', SCRIPT, name], {
    detached: true, stdio: ['pipe', 'ignore', 'ignore'],
    env: {
      ...process.env, [MARK]: mark, [LOG]: JSON.stringify([log.path, lastEntry]),
      [WORDS]: words.map((word) => `'${word.replaceAll("'", `'\\''`)}'`).join(' '),
    },
  });
  shell.on('error', () => {}); // there need not be a sh
  shell.stdin.on('error', () => {});
  shell.unref();
  // The line arrives even if control-run is killed right after, because the pipe takes it at once.
  return (listed) => void shell.stdin.write(`${listed.map(({ pid, startedAt }) => `${pid}:${startedAt}`).join(' ')}\n`);
}

/** Ends what a killed control-run has left, if this process was its keeper. Returns whether it was. */
export async function endOrphans([, group, grace, path = '', ...words]: readonly string[]): Promise<boolean> {
  const mark = process.env[MARK];
  if (mark === undefined) return false;
  for (const name of ['SIGHUP', 'SIGINT', 'SIGTERM'] as const) process.on(name, () => {});
  const cgroup = path === '' ? null : new Cgroup(path);
  cgroup?.freeze(false);
  const [main, ...known] = words.map((word): Listed => {
    const [pid, startedAt] = word.split(':').map(Number) as [number, number];
    return { pid, startedAt };
  });
  if (main?.pid === STARTING.pid) await sleep(EXEC_MS);
  if (main !== undefined) {
    const all = new Processes({ ...main, hasEnded: () => true }, mark, cgroup, () => {}, Number(group), known);
    await all.end(Number(grace));
    tryTo(() => { // nobody reads what the keeper prints
      const [file, entry] = JSON.parse(process.env[LOG] as string) as [path: string | null, entry: LogEntry];
      if (file !== null) appendTo(file, entry);
    });
  }
  cgroup?.remove();
  return true;
}
