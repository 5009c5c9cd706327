// Which processes a pause stops and a shutdown ends: with a cgroup, with /proc, and with ps.

import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, closeSync, existsSync, mkdirSync, openSync, readdirSync, writeFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../../control.ts';
import { listByPs } from '../../../run/processes.ts';
import { getInfo, makeFolder, perform } from '../../helpers.ts';
import { lacks, NOBODY, ownCgroup } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import {
  asOn, cgroupsOf, exitCodeOf, IN_CGROUP, IN_PROC, isTidy, killAll, listTasks, processesOf, PYTHON, readLines, readTask,
  run, shell, showsRun, startRun, stateOf, tryRead, WAYS,
} from './helpers.ts';
import type { StartedRun, Task, Way } from './helpers.ts';
import type { TestContext } from 'node:test';

const { ACTIVE } = SystemStatus;
const REST_MS = 100; // in which stopped processes must not use any CPU time

interface Scenario {
  what: string;
  /**
   * Its last argument is a new empty folder. After a line of input, it ends, with the same output whether it was paused
   * or not.
   */
  command: string[];
  output: string;
  /** The minimum number of processes before that. */
  processes: number;
  skip: string | false;
}

const COUNT = 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo $i';
const STRAYS = ['session', 'daemon', 'bare', 'barer', 'group', 'odd'];

/** Each process counts, and then waits for the end. */
const LEAVE = `
cd "$1"
export STRAY='(${COUNT}) > $0; until [ -e end ]; do sleep 0.05; done'
setsid sh -c "$STRAY" session &
(setsid sh -c "$STRAY" daemon &) &
env -i PATH="$PATH" sh -c "$STRAY" bare &
setsid env -i PATH="$PATH" sh -c "$STRAY" barer &
bash -c 'set -m; sh -c "$STRAY" group & wait' &
sh -c 'echo ") T 1 (a b" > /proc/self/comm; '"$STRAY" odd &
read line
for name in ${STRAYS.join(' ')}; do
  until [ -s $name ]; do sleep 0.05; done
  echo $name $(cat $name)
done
touch end
wait`;

/** Pipelines until a line arrives. A shell that notices that its job was stopped prints it. */
const JOBS = `
set -m
until read -t 0; do seq 10000 | sort -rn | (sleep 0.1; md5sum); sleep 0.1 | cat; done > "$0/output" 2>&1
uniq "$0/output"`;

const SCENARIOS: Scenario[] = [
  {
    what: 'children that have left their group, session, parent or environment',
    skip: lacks('bash', 'setsid'),
    command: shell(LEAVE), output: STRAYS.map((name) => `${name} 20000\n`).join(''), processes: 8,
  },
  {
    what: 'pipelines of a shell with job control', skip: lacks('bash'),
    command: ['bash', '-c', JOBS], output: '1ebc04fb9ff04a96e038c8df2c327a52  -\n', processes: 2,
  },
];

/** It has called vfork(): its child does not reach exec() before the FIFO has a writer. */
const VFORK = `
import os, sys
path = os.path.join(sys.argv[1], 'fifo')
os.mkfifo(path)
action = (os.POSIX_SPAWN_OPEN, 3, path, os.O_RDONLY, 0)
child = os.posix_spawn('/bin/sh', ['sh', '-c', 'read line; exit 9'], os.environ, file_actions=[action])
print(os.WEXITSTATUS(os.waitpid(child, 0)[1]))`;

/** Starts a daemon that is not dumpable, as ssh-agent is, so that only root can read its environment. */
const HIDDEN = `
import ctypes, os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() > 0: os._exit(0)
    ctypes.CDLL(None).prctl(4, 0)
    path = os.path.join(sys.argv[1], 'pid')
    with open(path + '.new', 'w') as file: file.write(str(os.getpid()))
    os.rename(path + '.new', path)
time.sleep(98765)`;

const suite = { ...LIMIT, concurrency: 3, skip: lacks('Linux') };

describe('control-run: a pause of all processes', suite, () => {
  for (const { what, command, output, processes, skip } of SCENARIOS) {
    for (const way of WAYS) {
      it(`stops ${what} (${way.name})`, { skip: skip || way.skip }, async (t) => {
        const run = await startRun(t, [], [...command, makeOpenFolder(t)], {}, way);
        assert.equal(cgroupOf(run.pid).includes('/control-run-'), way === IN_CGROUP);
        await until(() => findTree(run).length >= processes, () => `${findTree(run).length} processes`);
        const outcomes = await Promise.all((['pause', 'resume', 'pause', 'resume', 'pause'] as const).map((one) => {
          return perform(run.port, one);
        }));
        assert.deepEqual(outcomes, Array.from(outcomes, () => [200, undefined]));
        await assertRest(run);
        assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
        run.running.child.stdin?.end('\n');
        const { code, stdout, stderr } = await run.running.ended;
        assert.deepEqual([code, stdout], [0, output], stderr);
        assert.doesNotMatch(stderr, /Stopped|did not|failed/);
      });
    }
  }

  it('leaves a process stopped that was stopped before; it receives SIGTERM at the end', async (t) => {
    const script = `sh -c 'trap "echo trapped; exit" TERM; kill -STOP $$; :' & while :; do sleep 0.05; done`;
    const run = await startRun(t, [], shell(script));
    const stopped = (): Task[] => findTree(run).filter(({ parent, state }) => parent === run.pid && state === 'T');
    const areRunning = (): boolean => readTask(run.pid)[0]?.state !== 'T' && stopped().length === 1;
    await until(areRunning);
    for (let n = 0; n < 2; n++) {
      await perform(run.port, 'pause');
      await assertRest(run);
      await perform(run.port, 'resume');
      await until(areRunning);
    }
    await perform(run.port, 'pause');
    assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'SIGTERM']);
    assert.equal((await run.running.ended).stdout, 'trapped\n');
  });

  it('stops and ends a daemon that hides its environment, while the leader of its session is a zombie', {
    skip: IN_PROC.skip || lacks('python3'),
  }, async (t) => {
    const folder = makeOpenFolder(t);
    const { port, running } = await startRun(t, [], [PYTHON, '-c', HIDDEN, folder], {}, IN_PROC);
    await until(() => existsSync(join(folder, 'pid')));
    const pid = Number(tryRead(join(folder, 'pid')));
    t.after(() => killAll([pid]));
    assert.deepEqual(await perform(port, 'pause'), [200, undefined]);
    assert.equal(stateOf(pid), 'T');
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    assert.equal(stateOf(pid), 'S');
    assert.equal((await perform(port, 'shutdown'))[0], 200);
    await running.ended;
    assert.equal(stateOf(pid), '');
  });

  it('lets the child of vfork() reach exec(); if that takes more than 10 s, the pause fails, and can be retried', {
    skip: IN_PROC.skip || lacks('python3'),
  }, async (t) => {
    const folder = makeOpenFolder(t);
    const run = await startRun(t, [], [PYTHON, '-c', VFORK, folder], {}, IN_PROC);
    await until(() => existsSync(join(folder, 'fifo')) && readTask(run.pid)[0]?.state === 'D');
    const [statusCode, error] = await perform(run.port, 'pause');
    assert.equal(statusCode, 500);
    assert.match(String(error), new RegExp(`^pause failed: not stopped within 10 s: .*\\b${run.pid} \\(state D\\)`));
    const paused = perform(run.port, 'pause');
    await until(async () => (await getInfo(run.port)).status === 'pausing');
    await sleep(200); // until the child of vfork() is continued again and again
    const file = openSync(join(folder, 'fifo'), 'r+'); // does not wait for the reader, which may be stopped
    t.after(() => closeSync(file));
    assert.deepEqual(await paused, [200, undefined]);
    await assertRest(run);
    await perform(run.port, 'resume');
    run.running.child.stdin?.end('\n');
    assert.equal((await run.running.ended).stdout, '9\n');
  });

  it('stops and ends a process whose first thread has ended', { skip: lacks('python3') }, async (t) => {
    const source = `
import ctypes, os, threading
def spin():
    while True: pass
threading.Thread(target=spin).start()
os.write(1, b'pid %d\\n' % os.getpid())
ctypes.CDLL(None).pthread_exit(None)`;
    const { running, port } = await startRun(t, [], shell('"$@" & wait; sleep 98765', PYTHON, '-c', source));
    await running.shows(/pid \d+\n/);
    const [, pid] = /pid (\d+)\n/.exec(running.output()) ?? [];
    const states = (): string => readdirSync(`/proc/${pid}/task`)
      .map((thread) => /\) (\w) [^)]*$/.exec(tryRead(`/proc/${pid}/task/${thread}/stat`))?.[1]).join('');
    await until(() => states() === 'ZR', states);
    assert.deepEqual(await perform(port, 'pause'), [200, undefined]);
    assert.equal(states(), 'ZT');
    await perform(port, 'resume');
    await until(() => states() === 'ZR', states);
    running.child.kill();
    await running.ended;
    await until(() => tryRead(`/proc/${pid}/stat`) === ''); // once it is reaped
  });

  it('stops and ends what escapes from all but the cgroup', { skip: lacks('cgroup', 'setsid') }, async (t) => {
    const script = '(setsid env -i PATH="$PATH" sh -c "sleep 0.2; exec sleep 98765" &); exec sleep 98765';
    const run = await startRun(t, [], shell(script));
    const name = cgroupOf(run.pid);
    const all = (): Task[] => listTasks().filter(({ pid }) => cgroupOf(pid) === name);
    await until(() => all().length >= 2);
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    assert.match(all().map(({ state }) => state).join(''), /^TT+$/);
    await perform(run.port, 'resume');
    await until(() => !all().some(({ state }) => state === 'T'));
    await perform(run.port, 'shutdown');
    await run.running.ended;
    assert.deepEqual(all(), []);
  });
});

describe('control-run: processes that have moved to another cgroup', {
  ...suite, skip: suite.skip || lacks('cgroup', 'setsid'),
}, () => {
  for (const end of ['shutdown', 'SIGKILL'] as const) {
    it(`are stopped, continued, and ended by ${end}`, async (t) => {
      const script = `echo $$ > "$1/cgroup.procs"
        (setsid sh -c 'trap "" TERM; while :; do echo >> "$0"; sleep 0.02; done' "$2" &)
        exec sleep 98765`;
      const path = join(makeFolder(t), 'count');
      const run = await startRun(t, ['--grace', '0.3'], shell(script, ownCgroup() ?? assert.fail(), path));
      const count = (): number => readLines(path).length;
      await until(() => count() > 0);
      await until(() => findTree(run).every(({ pid }) => cgroupOf(pid) === cgroupOf(process.pid))); // unless one ends
      assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
      await assertRest(run);
      if (end === 'SIGKILL') {
        run.running.child.kill(end);
        await isTidy(run.running);
        return;
      }
      const before = count();
      assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
      await until(() => count() > before);
      await until(() => cgroupsOf(run.running).every((cgroup) => spawnSync('rmdir', [cgroup]).status === 0));
      assert.deepEqual(await perform(run.port, 'pause'), [200, undefined], 'the cgroup that they left is gone');
      await assertRest(run);
      assert.equal((await perform(run.port, end))[0], 200);
      assert.deepEqual(processesOf(run.running), []);
    });
  }
});

describe('control-run: processes of another user', {
  ...suite, skip: suite.skip || lacks('root', 'nobody'),
}, () => {
  const [become = '', ...rights] = NOBODY;
  const options = ['--grace', '60'];
  /** Runs control-run as root without the right to signal other users' processes, or even to see them. */
  const wayOf = (isHidden: boolean): Way => ({
    ...IN_CGROUP, skip: false,
    line: (t) => {
      const [, ...hide] = shell('mount -t proc -o hidepid=2,gid=65534 proc /proc; exec "$@"');
      const line = [become, `--bounding-set=-kill${isHidden ? ',-sys_ptrace' : ''}`, ...IN_CGROUP.line(t)] as const;
      return isHidden ? ['unshare', '--mount', 'sh', ...hide, ...line] : [...line];
    },
  });

  for (const isHidden of [false, true]) {
    it(`cannot be stopped or ended, and keep running${isHidden ? ', if /proc hides them' : ''}`, {
      skip: isHidden && lacks('namespace'),
    }, async (t) => {
      const run = await startRun(t, options, [become, ...rights, 'sleep', '98765'], {}, wayOf(isHidden));
      t.after(() => killAll([run.pid])); // before control-run is ended
      await until(() => readTask(run.pid)[0]?.name === 'sleep');
      if (isHidden) await showsRun(run, { processes: 1, 'CPU seconds': 0, 'memory MiB': 0 }); // those that are known
      const what = isHidden ? `process ${run.pid}` : `process ${run.pid} (sleep)`;
      const outcome = [500, `pause failed: ${what} belongs to another user and cannot be stopped`];
      assert.deepEqual(await perform(run.port, 'pause'), outcome);
      assert.deepEqual(await perform(run.port, 'shutdown'), [500, `shutdown failed: ${what} cannot be ended`]);
      run.running.child.kill('SIGUSR1'); // cannot be passed on either
      assert.equal(await run.client.getStatus(), ACTIVE);
      run.running.child.kill('SIGTERM');
      assert.equal(await exitCodeOf(run.running), 1);
      assert.ok(run.running.output().endsWith(`\ncontrol-run: ${what} cannot be ended\n`), run.running.output());
      assert.equal(stateOf(run.pid), 'S');
      killAll([run.pid]);
    });
  }

  it('leave nothing stopped after a failed pause; a shutdown ends the others', async (t) => {
    const script = `${become} ${rights.join(' ')} sleep 98765 & sleep 98765 & wait`;
    const run = await startRun(t, options, shell(script), {}, wayOf(false));
    const names = (): string => processesOf(run.running).flatMap(readTask).map(({ name }) => name).sort().join(' ');
    await until(() => names() === 'sh sleep sleep', names);
    const pids = processesOf(run.running);
    const foreign = pids.find((pid) => /^Uid:\t65534/m.test(tryRead(`/proc/${pid}/status`))) ?? assert.fail();
    t.after(() => killAll([foreign]));
    const error = `pause failed: process ${foreign} (sleep) belongs to another user and cannot be stopped`;
    assert.deepEqual(await perform(run.port, 'pause'), [500, error]);
    assert.deepEqual(pids.map(stateOf), ['S', 'S', 'S']);
    const line = `process ${foreign} (sleep) cannot be ended`;
    assert.deepEqual(await perform(run.port, 'shutdown'), [500, `shutdown failed: ${line}`]);
    assert.equal(await exitCodeOf(run.running), 128 + 15);
    assert.deepEqual(pids.filter((pid) => stateOf(pid) !== ''), [foreign]);
    killAll([foreign]);
  });
});

describe('control-run: cgroups of dead control-runs', { ...suite, skip: suite.skip || lacks('cgroup') }, () => {
  it('are removed if they are empty; those of a living control-run or with processes stay', async (t) => {
    const { pid: dead } = spawnSync('true');
    const own = ownCgroup() ?? assert.fail();
    const [empty, nested, living, full] = [dead, dead, process.pid, dead].map((pid, index) => {
      return join(own, `control-run-${pid}-test0${index}`);
    }) as [string, string, string, string];
    const child = spawn('sleep', ['98765']);
    t.after(async () => {
      child.kill('SIGKILL');
      await once(child, 'exit');
      spawnSync('rmdir', [living, join(full, 'inner'), full]); // another test's control-run may remove these
    });
    mkdirSync(full);
    writeFileSync(join(full, 'cgroup.procs'), String(child.pid)); // at once: another test may remove an empty one
    for (const one of [empty, join(nested, 'inner'), living, join(full, 'inner')]) mkdirSync(one, { recursive: true });
    assert.equal((await run(t, [], ['true'])).code, 0);
    const paths = [empty, nested, living, full, join(full, 'inner')];
    assert.deepEqual(paths.filter((path) => existsSync(path)), [living, full, join(full, 'inner')]);
  });
});

describe('control-run: processes on macOS', LIMIT, () => {
  it('get --save-signal only if there is one: it could kill a wrapper', { skip: lacks('Linux', 'ps') }, async (t) => {
    const source =
      "process.on('SIGUSR2', () => console.log('saved')); setInterval(() => {}, 1e6); console.log('ready')";
    const program = [process.execPath, '-e', source];
    const options = ['--save-signal', 'USR2', '--grace', '0.3'];
    const alone = await startRun(t, options, program, {}, asOn('darwin'));
    await alone.running.shows(/ready/);
    assert.deepEqual(await perform(alone.port, 'save-state'), [200, `SIGUSR2 sent to process ${alone.pid}`]);
    await alone.running.shows(/saved/);
    const wrapped = await startRun(t, options, shell('"$@"; :', ...program), {}, asOn('darwin'));
    await wrapped.running.shows(/ready/);
    const error = 'it is unknown which of 2 processes handles SIGUSR2: use --save-command';
    for (const command of ['save-state', 'shutdown'] as const) {
      assert.deepEqual(await perform(wrapped.port, command), [500, `${command} failed: ${error}`]);
      assert.equal(processesOf(wrapped.running).length, 2);
    }
    assert.doesNotMatch(wrapped.running.output(), /saved/);
  });

  it('are parsed from the times and columns of its ps', { skip: lacks('Unix') }, (t) => {
    const folder = makeFolder(t);
    const lines = ['    1     0     1 Ss  12:03.45  14160', '70123     1 70123 T+   0:01.50 123456'];
    const days = '  998     1   998 R  1-02:03:04     16'; // of Linux
    writeFileSync(join(folder, 'ps'), `#!/bin/sh\necho '${[...lines, days].join('\n')}'\n`, { mode: 0o755 });
    const path = process.env['PATH'];
    process.env['PATH'] = `${folder}${delimiter}${path}`;
    const listed = listByPs();
    process.env['PATH'] = path;
    assert.deepEqual(listed.map(({ pid, parent, group, state, cpuSeconds, measureMemory }) => {
      return [pid, parent, group, state, cpuSeconds, measureMemory()];
    }), [
      [1, 0, 1, 'Ss', 723.45, 14_160], [70_123, 1, 70_123, 'T+', 1.5, 123_456],
      [998, 1, 998, 'R', ((24 + 2) * 60 + 3) * 60 + 4, 16],
    ]);
  });
});

/** A folder that all users may use. */
function makeOpenFolder(t: TestContext): string {
  const folder = makeFolder(t);
  chmodSync(folder, 0o777);
  return folder;
}

/** Its descendants, the members of its session, and the processes that inherited its environment. */
function findTree({ pid: main, running }: StartedRun): Task[] {
  const heirs = processesOf(running);
  const all = listTasks();
  const members = new Set(all.filter(({ pid, session }) => session === main || heirs.includes(pid)));
  for (const member of members) {
    for (const one of all) if (one.parent === member.pid) members.add(one);
  }
  return all.filter((one) => members.has(one));
}

/** Checks that all processes and threads are in state T, and stay there without using CPU time. */
async function assertRest(run: StartedRun): Promise<void> {
  const before = findTree(run);
  for (const { pid, name } of before) {
    for (const thread of readdirSync(`/proc/${pid}/task`)) {
      assert.match(tryRead(`/proc/${pid}/task/${thread}/stat`), /\) T [^)]*$/, `process ${pid} (${name})`);
    }
  }
  await sleep(REST_MS);
  assert.deepEqual(findTree(run), before);
}

function cgroupOf(pid: number): string {
  return /^0::(.*)$/m.exec(tryRead(`/proc/${pid}/cgroup`))?.[1] ?? '';
}
