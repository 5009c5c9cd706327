import assert from 'node:assert/strict';
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import {
  chmodSync, copyFileSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { getInfo, lacks, perform, start, until } from '../../helpers.ts';
import {
  BANNER, cgroupsOf, exitCodeOf, killAll, lacksCgroup, lacksNamespace, lacksProc, listTasks, listTree, NAMESPACE,
  processesOf, readTask, startRun, tryRead, WAYS,
} from './helpers.ts';
import { listByPs } from '../../../run/processes.ts';
import type { StartedRun, Task } from './helpers.ts';

const PYTHON = '/usr/bin/python3'; // the one of Debian, which has numpy
const LACKS_PYTHON = !existsSync(PYTHON) && 'needs /usr/bin/python3: apt-get install python3';
const REST_MS = 200; // during which stopped processes must not get any CPU time

/** Everybody may read and write here, also who runs without privileges. */
const folder = mkdtempSync(join(tmpdir(), 'control-run-'));
chmodSync(folder, 0o777);
after(() => rmSync(folder, { recursive: true, force: true }));
const RUN = join(folder, 'run.mjs');
copyFileSync('dist/bin/run.js', RUN);

interface Scenario {
  what: string;
  /**
   * Its output and exit code must be the same with and without pauses. It ends only after a line of input. `DIR` is an
   * empty folder of its own.
   */
  command: string[];
  /** How many processes run at the same time, at least. */
  processes: number;
  pauses?: number;
  /** In one way only: `in a cgroup` or `found in /proc`. */
  way?: string;
  /** Whether a part of the output differs from run to run. */
  isVague?: boolean;
  skip?: string | false;
}

const numpy = `
import hashlib, numpy
a = numpy.random.default_rng(7).standard_normal((300, 300))
for _ in range(30): a = numpy.tanh(a @ a.T / 300)
input()
print(hashlib.sha256(a.tobytes()).hexdigest())`;

const pool = `
import hashlib, multiprocessing
def work(n):
    digest = str(n).encode()
    for _ in range(10_000): digest = hashlib.sha256(digest).digest()
    return digest.hex()
if __name__ == '__main__':
    with multiprocessing.Pool(8) as pool:
        result = pool.map(work, range(8), 1)
        input()
        print(result)`;

const storm = `
import os, random, sys, time
def work(n):
    total = 0
    for i in range(4):
        pid = os.fork()
        if pid == 0:
            time.sleep(0.1 + random.random() * 0.1)
            os._exit(n % 50 + i)
        total += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return total
workers = []
hold, release = os.pipe()
for n in range(50):
    r, w = os.pipe()
    if os.fork() == 0:
        time.sleep(0.3)
        os.write(w, str(work(n)).encode())
        os.close(release)
        os.read(hold, 1)
        os._exit(0)
    os.close(w)
    workers.append(r)
result = [os.read(r, 99) for r in workers]
input()
os.close(release)
print(result)`;

const count = 'i=0; while [ $i -lt 40000 ]; do i=$((i+1)); done; echo $i';

const stress = 'stress-ng -q --temp-path DIR --timeout 60';

const makefile = `
targets := $(addprefix DIR/,a b c d e f g h)
all: $(targets) ; @read line; cat $^ | sha256sum
DIR/%: ; @i=0; while [ $$i -lt 15000 ]; do i=$$((i+1)); done; (sleep 0.5; echo $* $$i; seq 20000) | sort -rn > $@
`;

const strays = `
setsid sh -c '(${count}; sleep 2) > DIR/session' &
(setsid sh -c '(${count}; sleep 2) > DIR/daemon' &) &
env -i /bin/sh -c '(${count}; sleep 2) > DIR/bare' &
setsid env -i /bin/sh -c '(${count}; sleep 2) > DIR/barer; true' &
bash -c 'set -m; (${count}; sleep 2) > DIR/group & wait' &
wait
until [ -s DIR/session ] && [ -s DIR/daemon ] && [ -s DIR/barer ]; do sleep 0.05; done
cd DIR; read line; grep . *`;

const jobs = 'set -m; for n in 1 2 3 4 5; do seq 10000 | sort -rn | (sleep 0.3; md5sum); sleep 0.1 | cat; done 2>&1; ' +
  'read line';

const odd = `
import os, time
open('/proc/self/comm', 'w').write(') T 1 (a b')
total = 0
for i in range(2_000_000): total += i
input()
print(total, open('/proc/self/comm').read())`;

const threads = `
import hashlib, threading
def work(n):
    digest = bytes(100_000)
    for _ in range(200): digest = hashlib.sha256(digest).digest() + bytes(100_000)
    results[n] = digest[:32].hex()
results = [None] * 6
all = [threading.Thread(target=work, args=[n]) for n in range(6)]
for one in all: one.start()
for one in all: one.join()
input()
print(results)`;

const SCENARIOS: Scenario[] = [
  { what: 'numpy', command: [PYTHON, '-c', numpy], processes: 1, way: 'in a cgroup', skip: lacksNumpy() },
  { what: 'threads', command: [PYTHON, '-c', threads], processes: 1, way: 'found in /proc', skip: LACKS_PYTHON },
  {
    what: 'multiprocessing with 9 processes', processes: 9, way: 'found in /proc', skip: LACKS_PYTHON,
    command: [PYTHON, '-c', pool],
  },
  {
    what: 'xz on a large file', processes: 3, way: 'in a cgroup', skip: lacks('xz'),
    command: ['sh', '-c', '(seq 1000000; cat) | xz -1 -T2 --block-size=1MiB | sha256sum; true'],
  },
  {
    what: 'make -j4', processes: 4, way: 'in a cgroup', skip: lacks('make'),
    command: ['make', '-sj4', '-f', 'DIR/Makefile'],
  },
  {
    what: 'a pipeline', processes: 4, way: 'found in /proc',
    command: ['sh', '-c', `(seq 200000; cat) | sort -rn | awk '{ sum += $1 * NR % 7; print sum }' | md5sum; true`],
  },
  { what: 'jobs of bash with set -m', command: ['bash', '-c', jobs], processes: 2, pauses: 3, skip: lacks('bash') },
  {
    what: 'stress-ng: fork, vfork, exec', processes: 4, isVague: true, skip: lacks('stress-ng'),
    command: ['sh', '-c', `${stress} --fork 1 --vfork 1 --exec 1 & read line; kill $!; wait $!`],
  },
  {
    what: 'a fork storm of 100 processes', processes: 51, pauses: 2, skip: LACKS_PYTHON,
    command: [PYTHON, '-c', storm],
  },
  {
    what: 'children that leave their group, session, parent or environment', processes: 7, skip: lacks('bash'),
    command: ['sh', '-c', strays],
  },
  {
    what: 'a name with spaces and parentheses', processes: 1, way: 'found in /proc', skip: LACKS_PYTHON,
    command: [PYTHON, '-c', odd],
  },
  {
    what: 'control-run in control-run', processes: 3,
    command: [process.execPath, 'RUN', '--port', '0', '--', 'sh', '-c', `${count}; read line; exit 7`],
  },
];

describe('control-run: a pause of all processes', { concurrency: 4, skip: lacksProc }, () => {
  it('fails if one does not stop within 10 s', { skip: lacksSetuid() || lacks('cc') }, async (t) => {
    const program = compile('root', `
      #define _GNU_SOURCE
      #include <unistd.h>
      int main(void) { return setresuid(0, 0, 0) != 0 || setsid() < 0 || sleep(98765); }`);
    chmodSync(program, 0o4755);
    const script = `${program} & echo go; while :; do sleep 0.05; done`;
    const run = await startRun(t, [], ['sh', '-c', script], {}, WAYS[1]);
    await run.running.shows(/go/);
    const find = (): Task[] => listTasks().filter(({ parent, name, state }) => {
      return parent === run.pid && name === 'root' && state === 'S';
    });
    await until(() => find().length === 1);
    const [{ pid: root } = assert.fail()] = find();
    t.after(() => killAll([root]));
    const [status, error] = await perform(run.port, 'pause');
    assert.equal(status, 500);
    assert.equal(error, `pause failed: not stopped within 10 s: process ${root} (state S)`);
    await until(() => readTask(run.pid)[0]?.state !== 'T'); // the others were continued
    killAll([root]);
    await until(() => readTask(root).length === 0);
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]); // works now
    await assertRest(run);
  });

  for (const { what, command, processes, pauses = 1, way: only, isVague = false, skip = false } of SCENARIOS) {
    let undisturbed: Promise<[code: number | null, stdout: string]> | undefined;
    for (const way of WAYS.filter(({ name }) => name === (only ?? name))) {
      it(`stops ${what} (${way.name})`, { skip: skip || way.skip }, async (t) => {
        const expected = isVague ? [0] : await (undisturbed ??= runAlone(adapt(command)));
        const run = await startRun(t, [], adapt(command), {}, way);
        const hasCgroup = cgroupOf(run.pid).includes('/control-run-');
        assert.equal(hasCgroup, way.name === 'in a cgroup');
        for (let n = 0; n < pauses; n++) {
          if (n === 0) await until(() => findTree(run).length >= processes, () => `${findTree(run).length} processes`);
          assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
          await assertRest(run);
          assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
          await sleep(20 * n); // somewhere else each time
        }
        run.running.child.stdin?.end('\n');
        const { code, stdout, stderr } = await run.running.ended;
        assert.deepEqual([code, isVague || stdout], [expected[0], isVague || expected[1]], stderr);
        assert.doesNotMatch(stderr, /Stopped|did not|failed/);
      });
    }
  }

  for (const way of WAYS) {
    const { name, skip } = way;
    it(`lets the child of vfork() go as far as exec() (${name})`, { skip: skip || lacks('cc') }, async (t) => {
      const program = compile('vfork', `
        #include <stdio.h>
        #include <sys/wait.h>
        #include <unistd.h>
        int main(int count, char **arguments) {
          pid_t child = vfork();
          if (child == 0) {
            while (access(arguments[count - 1], F_OK) != 0) usleep(10000);
            execlp("sh", "sh", "-c", "sleep 0.2; exit 9", (char *)0);
            _exit(1);
          }
          int status = 0;
          waitpid(child, &status, 0);
          printf("%d\\n", WEXITSTATUS(status));
        }`);
      const path = join(makeOwnFolder(), 'exec');
      const run = await startRun(t, [], [program, path], {}, way);
      await until(() => findTree(run).some(({ state }) => state === 'D'));
      const paused = perform(run.port, 'pause');
      await until(async () => (await getInfo(run.port)).status === 'pausing');
      writeFileSync(path, '');
      assert.deepEqual(await paused, [200, undefined]);
      await assertRest(run);
      await perform(run.port, 'resume');
      assert.equal((await run.running.ended).stdout, '9\n');
    });

    it(`stops and ends a process whose first thread has ended (${name})`, { skip: skip || lacks('cc') }, async (t) => {
      const program = compile('threads', `
        #include <pthread.h>
        #include <stdio.h>
        #include <unistd.h>
        static void *spin(void *unused) { for (volatile long n = 0; ; n++) ; return unused; }
        int main(void) {
          pthread_t thread;
          pthread_create(&thread, 0, spin, 0);
          dprintf(1, "pid %d\\n", getpid());
          pthread_exit(0);
        }`);
      const { running, port } = await startRun(t, [], ['sh', '-c', `${program} & wait; sleep 98765`], {}, way);
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

    it(`leaves stopped what was stopped before (${name})`, { skip }, async (t) => {
      const script = 'sleep 98765.1 & kill -STOP $!; sleep 98765.2 & wait';
      const run = await startRun(t, [], ['sh', '-c', script], {}, way);
      const states = (): string => findTree(run).map(({ state }) => state).join();
      await until(() => states() === 'S,T,S', states);
      for (let n = 0; n < 2; n++) {
        await perform(run.port, 'pause');
        await assertRest(run);
        await perform(run.port, 'resume');
        await until(() => states() === 'S,T,S', states);
      }
    });
  }

  it('continues a job before its shell, also if its process id is lower', { skip: lacksNamespace() || lacks('bash') }, async (t) => {
    const setNext = (pid: number): string => `echo ${pid - 1} > /proc/sys/kernel/ns_last_pid`;
    const script = `set -m; ${setNext(100)}; (echo ready; sleep 98765.11; :)`;
    const controlRun = [process.execPath, 'dist/bin/run.js', '--port', '0', 'bash', '-c', script];
    const around = `umount -a -l -t cgroup2; ${setNext(3000)}; exec "$@"`;
    const running = start(t, 'unshare', [...NAMESPACE, 'sh', '-c', around, 'sh', ...controlRun]);
    await running.shows(BANNER);
    await running.shows(/ready/);
    const [, shell, port] = BANNER.exec(running.output()) as unknown as [string, string, string];
    assert.ok(Number(shell) > 3000);
    for (let n = 0; n < 10; n++) {
      const outcomes = [await perform(Number(port), 'pause'), await perform(Number(port), 'resume')];
      assert.deepEqual(outcomes, [[200, undefined], [200, undefined]], running.output());
    }
    await perform(Number(port), 'shutdown');
    await running.ended;
    assert.doesNotMatch(running.output(), /Stopped/);
  });

  it('stops what leaves everything else (in a cgroup)', { skip: lacksCgroup() }, async (t) => {
    const script = '(setsid env -i /bin/sh -c "sleep 0.2; exec sleep 98765.8" &); exec sleep 98765.9';
    const run = await startRun(t, [], ['sh', '-c', script]);
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

  it('leaves no cgroup, also if control-run runs in control-run', { skip: lacksCgroup() }, async (t) => {
    const inner = [process.execPath, 'dist/bin/run.js', '--port', '0', '--', 'sleep', '98765.11'];
    const run = await startRun(t, ['--grace', '5'], inner);
    await run.running.shows(/sleep\[\d+\]/);
    const [path = assert.fail()] = cgroupsOf(run.running);
    assert.ok(readdirSync(path).some((one) => one.startsWith(`control-run-${run.pid}-`)));
    await perform(run.port, 'pause');
    await assertRest(run);
    await perform(run.port, 'shutdown');
    await run.running.ended;
    await until(() => !existsSync(path), () => `${path} still exists`);
  });

});

describe('control-run: the end of all processes', { concurrency: 4, skip: lacksProc }, () => {
  for (const way of WAYS) {
    const { name, skip } = way;
    const isPaused = name === 'in a cgroup'; // at the same time

    it(`by shutdown, also what is stopped gets SIGTERM (${name})`, { skip: skip || lacks('bash') }, async (t) => {
      const path = join(makeOwnFolder(), 'trapped');
      const trap = `trap "echo \\$1 >> ${path}; exit" TERM`;
      const script = `bash -c '${trap}; kill -STOP $$; sleep 98765.3' - stopped & ` +
        `bash -c '${trap}; while :; do sleep 0.05; done' - running & wait`;
      const { running, port, pid } = await startRun(t, ['--grace', '15'], ['sh', '-c', script], {}, way);
      const tasks = (): Task[] => listTree(pid).flatMap(readTask);
      await until(() => tasks().some(({ name, state }) => name === 'bash' && state === 'T'));
      await until(() => tasks().some((one) => one.name === 'sleep'));
      if (isPaused) await perform(port, 'pause');
      assert.deepEqual(await perform(port, 'shutdown'), [200, 'SIGTERM']);
      const { code, stderr } = await running.ended;
      assert.equal(code, 143);
      assert.equal(readFileSync(path, 'utf8').split('\n').sort().join(), ',running,stopped');
      assert.doesNotMatch(stderr, /killed/);
    });

    it(`by shutdown, after --grace by SIGKILL (${name})`, { skip }, async (t) => {
      const script = 'trap "" TERM; (while :; do sleep 0.05; done) & setsid sleep 98765.4 & wait; ' +
        'while :; do sleep 0.05; done';
      const run = await startRun(t, ['--grace', '0.5'], ['sh', '-c', script], {}, way);
      await until(() => findTree(run).length >= 4);
      if (!isPaused) await perform(run.port, 'pause');
      const start = performance.now();
      assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'SIGKILL']);
      assert.ok(performance.now() - start >= 500);
      const { code, stderr } = await run.running.ended;
      assert.equal(code, 137);
      assert.match(stderr, /\ncontrol-run: sh\[\d+\] did not end within 0\.5 s: killed\n$/);
      assert.deepEqual(findTree(run), []);
    });

    it(`but not if it ends by itself, also while it is paused (${name})`, { skip }, async (t) => {
      const path = join(makeOwnFolder(), 'left');
      const script = `(sleep 0.5; until [ -e ${path}.go ]; do sleep 0.05; done; echo done > ${path}) & ` +
        'exec sleep 98765.7';
      const run = await startRun(t, [], ['sh', '-c', script], {}, way);
      await until(() => findTree(run).length === 3);
      await perform(run.port, 'pause');
      process.kill(run.pid, 'SIGKILL'); // also ends a stopped process
      assert.equal(await exitCodeOf(run.running), 128 + 9);
      writeFileSync(`${path}.go`, '');
      await until(() => existsSync(path) && readFileSync(path, 'utf8') === 'done\n');
    });
  }
});

describe('control-run: --save-signal', { concurrency: 4, skip: lacksProc }, () => {
  for (const way of WAYS) {
    const { name, skip } = way;
    const skips = skip || LACKS_PYTHON || lacks('bash');
    it(`to the program below its wrappers, once (${name})`, { skip: skips }, async (t) => {
      const code = `
import multiprocessing, os, signal, time
def save(*_): os.write(1, b'saved %s\\n' % b'parent' if os.getpid() == parent else b'child\\n')
def work():
    while True: time.sleep(0.05)
if __name__ == '__main__':
    parent = os.getpid()
    signal.signal(signal.SIGUSR1, save)
    for _ in range(4): multiprocessing.Process(target=work, daemon=True).start()
    print('go', parent, flush=True)
    work()`;
      const path = join(makeOwnFolder(), 'train.py');
      writeFileSync(path, code);
      const command = ['sh', '-c', `bash -c 'nice ${PYTHON} ${path}; true'; true`];
      const run = await startRun(t, ['--save-signal', 'usr1', '--grace', '1'], command, {}, way);
      await run.running.shows(/go \d+/);
      await until(() => findTree(run).length === 7);
      const parent = Number(/go (\d+)/.exec(run.running.output())?.[1]);
      for (let n = 0; n < 3; n++) {
        assert.deepEqual(await perform(run.port, 'save-state'), [200, `SIGUSR1 sent to process ${parent}`]);
        await until(() => (run.running.output().match(/saved parent/g) ?? []).length === n + 1);
      }
      await perform(run.port, 'pause');
      const error = `save-state failed: sh[${run.pid}] is stopped and cannot save: resume it first`;
      assert.deepEqual(await perform(run.port, 'save-state'), [500, error]);
      assert.deepEqual(await perform(run.port, 'pause'), [200, undefined], 'it is still paused');
      await perform(run.port, 'resume');
      assert.equal(findTree(run).length, 7);
      assert.doesNotMatch(run.running.output(), /child/);
    });
  }
});

describe('control-run: processes on macOS', { skip: lacksProc }, () => {
  it('lists by ps what is in /proc', { skip: lacks('ps') }, async (t) => {
    const spinner = 'while :; do :; done';
    const child = spawn('sh', ['-c', `sleep 98765.12 & sh -c '${spinner}' & wait`], { detached: true });
    t.after(() => process.kill(-(child.pid as number), 'SIGKILL'));
    const family = (): Task[] => listTasks().filter(({ group }) => group === child.pid);
    await until(() => family().length === 3 && family().reduce((sum, { ticks }) => sum + ticks, 0) > 120);
    process.kill(-(child.pid as number), 'SIGSTOP');
    await until(() => family().every(({ state }) => state === 'T'));
    const expected = family();
    const listed = listByPs().filter(({ group }) => group === child.pid);
    assert.equal(listed.length, 3);
    for (const { pid, parent, group, ticks } of expected) {
      const [one] = listed.filter((process) => process.pid === pid);
      assert.ok(one !== undefined);
      assert.deepEqual([one.parent, one.group, one.state], [parent, group, 'T']);
      assert.equal(one.cpuSeconds, Math.floor(ticks / 100)); // ps drops fractions
      const memory = Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'latin1'))?.[1]);
      assert.ok(Math.abs(one.measureMemory() - memory) < 1024, `${one.measureMemory()} and ${memory} KiB`);
    }
    const own = listByPs().filter(({ pid }) => pid === process.pid);
    assert.equal(own.length, 1);
    assert.equal(own[0]?.parent, process.ppid);
  });
});

function adapt(command: string[]): string[] {
  const own = makeOwnFolder();
  writeFileSync(join(own, 'Makefile'), makefile.replaceAll('DIR', `${own}/out`));
  execFileSync('mkdir', ['-m', '777', join(own, 'out')]);
  return command.map((text) => text.replace('DIR/Makefile', join(own, 'Makefile'))
    .replaceAll('DIR', join(own, 'out')).replace(/^RUN$/, RUN));
}

function makeOwnFolder(): string {
  const own = mkdtempSync(join(folder, 'own-'));
  chmodSync(own, 0o777);
  return own;
}

function runAlone([file, ...args]: string[]): Promise<[code: number | null, stdout: string]> {
  return new Promise((resolve, reject) => {
    const child = spawn(file as string, args, { stdio: ['pipe', 'pipe', 'ignore'], detached: true });
    child.stdin.end('\n');
    let stdout = '';
    child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text));
    child.on('error', reject).on('close', (code) => resolve([code, stdout]));
  });
}

/** Its descendants, what is in their session and what inherited their environment. */
function findTree({ pid: main, running }: StartedRun): Task[] {
  const heirs = processesOf(running);
  const all = listTasks();
  const members = new Set(all.filter(({ pid, session }) => session === main || heirs.includes(pid)));
  for (const member of members) {
    for (const one of all) if (one.parent === member.pid) members.add(one);
  }
  return all.filter((one) => members.has(one));
}

/** All processes are in state T, with all their threads, and stay so without CPU time. */
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

function compile(name: string, source: string): string {
  const path = join(makeOwnFolder(), name);
  execFileSync('cc', ['-O1', '-pthread', '-x', 'c', '-o', path, '-'], { input: source });
  return path;
}

function cgroupOf(pid: number): string {
  return /^0::(.*)$/m.exec(tryRead(`/proc/${pid}/cgroup`))?.[1] ?? '';
}

function lacksNumpy(): string | false {
  return spawnSync(PYTHON, ['-c', 'import numpy']).status !== 0 && 'needs numpy: apt-get install python3-numpy';
}

function lacksSetuid(): string | false {
  if (process.getuid?.() !== 0) return 'needs root, for a process that another user owns';
  return spawnSync('sh', ['-c', 'mount | grep -w nosuid | grep -w /tmp']).status === 0 && 'needs setuid';
}
