import assert from 'node:assert/strict';
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import {
  accessSync, chmodSync, constants, copyFileSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync,
} from 'node:fs';
import { once } from 'node:events';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { getDetail, lacks, perform, until } from './helpers.ts';
import { listTasks, readTask, startLine, startRun } from './run.helpers3.ts';
import { listByPs } from '../run/processes.ts';
import type { StartedRun, Task } from './run.helpers3.ts';

const PYTHON = '/usr/bin/python3'; // the one of Debian, which has numpy
const NOBODY = ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups'] as const;
const REST_MS = 300; // during which stopped processes must not get any CPU time
const IS_LINUX = process.platform === 'linux' || 'reads /proc, which only Linux has';

/** Everybody may read and write here, also who runs without privileges. */
const folder = mkdtempSync(join(tmpdir(), 'control-run-'));
chmodSync(folder, 0o777);
after(() => rmSync(folder, { recursive: true, force: true }));

interface Way {
  name: string;
  skip: string | false;
  isCgroup: boolean;
  start: typeof startRun;
}

const WAYS: Way[] = [
  { name: 'in a cgroup', skip: lacksCgroup(), isCgroup: true, start: startRun },
  { name: 'found in /proc', skip: lacksWayWithoutCgroup(), isCgroup: false, start: startWithoutCgroup },
];

interface Scenario {
  what: string;
  /**
   * Its output and exit code must be the same with and without pauses. It ends only after a line of input. `DIR` is an empty
   * folder of its own.
   */
  command: string[];
  /** How many processes run at the same time, at least. */
  processes: number;
  pauses?: number;
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
    for _ in range(15_000): digest = hashlib.sha256(digest).digest()
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
for n in range(100):
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

const count = 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo $i';

const stress = 'stress-ng -q --temp-path DIR --timeout 3';

const makefile = `
targets := $(addprefix DIR/,a b c d e f g h)
all: $(targets) ; @read line; cat $^ | sha256sum
DIR/%: ; @i=0; while [ $$i -lt 15000 ]; do i=$$((i+1)); done; (sleep 0.5; echo $* $$i; seq 20000) | sort -rn > $@
`;

const strays = `
setsid sh -c '(${count}; sleep 1) > DIR/session' &
(setsid sh -c '(${count}; sleep 1) > DIR/daemon' &) &
env -i /bin/sh -c '(${count}; sleep 1) > DIR/bare' &
setsid env -i /bin/sh -c '(${count}; sleep 1) > DIR/barer; true' &
bash -c 'set -m; (${count}; sleep 1) > DIR/group & wait' &
wait
until [ -s DIR/session ] && [ -s DIR/daemon ] && [ -s DIR/barer ]; do sleep 0.05; done
cd DIR; read line; grep . *`;

const jobs = `set -m; for n in 1 2 3 4 5 6 7; do seq 10000 | sort -rn | (sleep 0.3; md5sum); sleep 0.1 | cat; done 2>&1; read line`;

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
  { what: 'numpy', command: [PYTHON, '-c', numpy], processes: 1, skip: lacksNumpy() },
  { what: 'threads', command: [PYTHON, '-c', threads], processes: 1 },
  { what: 'multiprocessing with 9 processes', command: [PYTHON, '-c', pool], processes: 9 },
  {
    what: 'xz on a large file', processes: 3, skip: lacks('xz'),
    command: ['sh', '-c', '(seq 1000000; cat DIR/../large; cat) | xz -1 -T2 --block-size=1MiB | sha256sum; true'],
  },
  { what: 'make -j4', command: ['make', '-sj4', '-f', 'DIR/Makefile'], processes: 4, skip: lacks('make') },
  {
    what: 'a pipeline', processes: 4,
    command: ['sh', '-c', `(seq 200000; cat) | sort -rn | awk '{ sum += $1 * NR % 7; print sum }' | md5sum; true`],
  },
  { what: 'jobs of bash with set -m', command: ['bash', '-c', jobs], processes: 2, pauses: 5, skip: lacks('bash') },
  {
    what: 'stress-ng: fork, vfork, exec', processes: 4, isVague: true, skip: lacks('stress-ng'),
    command: ['sh', '-c', `${stress} --fork 2 --vfork 2 --exec 2; code=$?; read line; exit $code`],
  },
  { what: 'a fork storm of 200 processes', command: [PYTHON, '-c', storm], processes: 101, pauses: 2 },
  { what: 'children that leave their group, session, parent or environment', command: ['sh', '-c', strays], processes: 7 },
  { what: 'a name with spaces and parentheses', command: [PYTHON, '-c', odd], processes: 1 },
  {
    what: 'control-run in control-run', processes: 3,
    command: [process.execPath, 'RUN', '--port', '0', '--', 'sh', '-c', `${count}; read line; exit 7`],
  },
];

describe('control-run: processes', { concurrency: 4, skip: IS_LINUX !== true && IS_LINUX }, () => {
  writeFileSync(join(folder, 'large'), Buffer.alloc(6_000_000, 'large '));
  copyFileSync('dist/bin/run.js', join(folder, 'run.js'));
  chmodSync(join(folder, 'run.js'), 0o644);

  it('a pause fails if a process does not stop within 10 s', { skip: lacksSetuid() || lacks('cc') }, async (t) => {
    const program = compile('root', `
      #define _GNU_SOURCE
      #include <unistd.h>
      int main(void) { return setresuid(0, 0, 0) != 0 || setsid() < 0 || sleep(98765); }`);
    chmodSync(program, 0o4755);
    const run = await startWithoutCgroup(t, [], ['sh', '-c', `${program} & echo go; while :; do sleep 0.05; done`]);
    await run.running.shows(/go/);
    const isRoot = ({ name, states }: Task): boolean => name === 'root' && states === 'S';
    await until(() => listTasks().some(({ parent, ...one }) => parent === run.pid && isRoot({ parent, ...one })));
    const [root] = listTasks().filter(({ parent, ...one }) => parent === run.pid && isRoot({ parent, ...one }));
    t.after(() => readTask(root?.pid as number).length > 0 && process.kill(root?.pid as number, 'SIGKILL'));
    const [status, error] = await perform(run.port, 'pause');
    assert.equal(status, 500);
    assert.match(String(error), new RegExp(`^pause failed: 1 of \\d+ processes did not stop within 10 s: ${root?.pid} \\(state S\\)$`));
    await until(() => readTask(run.pid)[0]?.states !== 'T'); // the others were continued
    process.kill(root?.pid as number, 'SIGKILL');
    await until(() => readTask(root?.pid as number).length === 0);
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]); // works now
    await assertRest(run);
  });

  for (const { what, command, processes, pauses = 1, isVague = false, skip = false } of SCENARIOS) {
    let undisturbed: Promise<[code: number | null, stdout: string]> | undefined;
    for (const { name, start, isCgroup, skip: skipsWay } of WAYS) {
      it(`pauses ${what} (${name})`, { skip: skip || skipsWay }, async (t) => {
        const expected = await (undisturbed ??= runAlone(adapt(command)));
        const run = await start(t, [], adapt(command));
        assert.equal(cgroupOf(run.pid)?.includes('/control-run-'), isCgroup);
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

  for (const { name, start, skip } of WAYS) {
    it(`lets the child of vfork() go as far as exec() (${name})`, { skip: skip || lacks('cc') }, async (t) => {
      const program = compile('vfork', `
        #include <stdio.h>
        #include <sys/wait.h>
        #include <unistd.h>
        int main(void) {
          if (write(1, "go\\n", 3) != 3) return 1;
          pid_t child = vfork();
          if (child == 0) { usleep(700000); execlp("sh", "sh", "-c", "sleep 0.2; exit 9", (char *)0); _exit(1); }
          int status = 0;
          waitpid(child, &status, 0);
          printf("%d\\n", WEXITSTATUS(status));
        }`);
      const run = await start(t, [], [program]);
      await run.running.shows(/go/);
      await until(() => findTree(run).some(({ states }) => states === 'D'));
      assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
      await assertRest(run);
      await perform(run.port, 'resume');
      assert.equal((await run.running.ended).stdout, 'go\n9\n');
    });

    it(`stops threads that outlive the first one (${name})`, { skip: skip || lacks('cc') }, async (t) => {
      const program = compile('threads', `
        #include <pthread.h>
        static void *spin(void *unused) { for (volatile long n = 0; ; n++) ; return unused; }
        int main(void) {
          pthread_t thread;
          pthread_create(&thread, 0, spin, 0);
          pthread_exit(0);
        }`);
      const run = await start(t, [], ['sh', '-c', `setsid ${program} & wait; true`]);
      await until(() => findTree(run).some(({ states, name }) => name === 'threads' && states === 'R'));
      assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
      await assertRest(run);
    });

    it(`leaves stopped what was stopped before (${name})`, { skip }, async (t) => {
      const script = 'sleep 98765.1 & kill -STOP $!; sleep 98765.2 & wait';
      const run = await start(t, [], ['sh', '-c', script]);
      const states = (): string => findTree(run).map(({ states }) => states).join();
      await until(() => states() === 'S,T,S', states);
      for (let n = 0; n < 2; n++) {
        await perform(run.port, 'pause');
        await assertRest(run);
        await perform(run.port, 'resume');
        await until(() => states() === 'S,T,S', states);
      }
    });

    it(`shutdown also ends what is stopped, by SIGTERM (${name})`, { skip }, async (t) => {
      const path = join(makeOwnFolder(), 'trapped');
      const script = `bash -c 'trap "echo \\$1 >> ${path}; exit" TERM; kill -STOP $$; sleep 98765.3' - stopped & ` +
        `bash -c 'trap "echo \\$1 >> ${path}; exit" TERM; while :; do sleep 0.05; done' - running & wait`;
      for (const isPaused of [true, false]) {
        rmSync(path, { force: true });
        const run = await start(t, ['--grace', '15'], ['sh', '-c', script]);
        await until(() => findTree(run).some(({ states, name }) => name === 'bash' && states === 'T'));
        await until(() => findTree(run).some(({ name }) => name === 'sleep'));
        if (isPaused) await perform(run.port, 'pause');
        const [status, outcome] = await perform(run.port, 'shutdown');
        assert.deepEqual([status, outcome], [200, 'SIGTERM']);
        const { code, stderr } = await run.running.ended;
        assert.equal(code, 143);
        assert.equal(readFileSync(path, 'utf8').split('\n').sort().join(), ',running,stopped');
        assert.doesNotMatch(stderr, /killed/);
      }
    });

    it(`kills what is left after --grace (${name})`, { skip }, async (t) => {
      const script = `trap '' TERM; (trap '' TERM; while :; do sleep 0.05; done) & setsid sleep 98765.4 & wait; while :; do :; done`;
      const run = await start(t, ['--grace', '1'], ['sh', '-c', script]);
      await until(() => findTree(run).length >= 4);
      assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'SIGKILL']);
      const { code, stderr } = await run.running.ended;
      assert.equal(code, 137);
      assert.match(stderr, /\ncontrol-run: sh\[\d+\] did not end within 1 s: killed\n$/);
      assert.deepEqual(findTree(run), []);
    });

    it(`sends the save signal once, to the program below its wrappers (${name})`, { skip }, async (t) => {
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
      const run = await start(t, ['--save-signal', 'usr1', '--grace', '1'], command);
      await run.running.shows(/go \d+/);
      await until(() => findTree(run).length === 7);
      const parent = Number(/go (\d+)/.exec(run.running.output())?.[1]);
      for (let n = 0; n < 3; n++) {
        assert.deepEqual(await perform(run.port, 'save-state'), [200, `SIGUSR1 sent to process ${parent}`]);
        await until(() => (run.running.output().match(/saved parent/g) ?? []).length === n + 1);
      }
      await perform(run.port, 'pause');
      const [status, error] = await perform(run.port, 'save-state');
      assert.equal(status, 500);
      assert.match(String(error), /is stopped: it takes SIGUSR1 once it is resumed/);
      await perform(run.port, 'resume');
      assert.equal(findTree(run).length, 7);
      assert.doesNotMatch(run.running.output(), /child/);
    });

    it(`fails to save by a signal that would end the program (${name})`, { skip }, async (t) => {
      const run = await start(t, ['--save-signal', 'SIGUSR2', '--grace', '1'], ['sh', '-c', 'sleep 98765.5; true']);
      await until(() => findTree(run).length === 2);
      const [status, error] = await perform(run.port, 'save-state');
      assert.equal(status, 500);
      assert.match(String(error), /no process of sh\[\d+\] handles SIGUSR2, which would end it/);
      assert.equal(findTree(run).length, 2);
    });

    it(`tells processes, CPU time and memory, also while it is paused (${name})`, { skip }, async (t) => {
      const script = `sh -c '${count}'; sleep 98765.6 & x=$(head -c 30000000 /dev/zero | tr '\\0' x); echo go; wait`;
      const run = await start(t, [], ['bash', '-c', script]);
      await run.running.shows(/go/);
      await until(() => findTree(run).length === 2);
      await perform(run.port, 'pause');
      const detail = await getDetail(run.port) as Record<string, unknown>;
      assert.equal(detail['pid'], run.pid);
      assert.equal(detail['processes'], 2);
      assert.ok(Number(detail['CPU seconds']) > 0.1, 'counts the child that has ended');
      assert.ok(Number(detail['memory MiB']) >= 28 && Number(detail['memory MiB']) < 300, JSON.stringify(detail));
    });

    it(`lets run on what the program leaves behind, also after a pause (${name})`, { skip }, async (t) => {
      const path = join(makeOwnFolder(), 'left');
      const script = `(sleep 0.5; until [ -e ${path}.go ]; do sleep 0.05; done; echo done > ${path}) & exec sleep 98765.7`;
      const run = await start(t, [], ['sh', '-c', script]);
      await until(() => findTree(run).length === 3);
      await perform(run.port, 'pause');
      process.kill(run.pid, 'SIGKILL'); // also ends a stopped process
      assert.deepEqual(await once(run.running.child, 'exit'), [137, null]);
      writeFileSync(`${path}.go`, '');
      await until(() => existsSync(path) && readFileSync(path, 'utf8') === 'done\n');
    });
  }

  it('stops in its cgroup what leaves everything else', { skip: lacksCgroup() }, async (t) => {
    const script = `(setsid env -i /bin/sh -c "${count.replaceAll('$', '\\$')} >/dev/null; exec sleep 98765.8" &); exec sleep 98765.9`;
    const run = await startRun(t, [], ['sh', '-c', script]);
    const [, name] = /^0::(.*)$/m.exec(readFileSync(`/proc/${run.pid}/cgroup`, 'latin1')) ?? [];
    const all = (): Task[] => listTasks().filter(({ pid }) => cgroupOf(pid) === name);
    await until(() => all().length === 2);
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    assert.equal(all().map(({ states }) => states).join(), 'T,T');
    await perform(run.port, 'resume');
    await until(() => !all().some(({ states }) => states === 'T'));
    await perform(run.port, 'shutdown');
    await run.running.ended;
    assert.deepEqual(all(), []);
  });

  it('leaves no cgroup, also if control-run runs in control-run', { skip: lacksCgroup() }, async (t) => {
    const inner = [process.execPath, 'dist/bin/run.js', '--port', '0', '--', 'sleep', '98765.11'];
    const run = await startRun(t, ['--grace', '5'], inner);
    await run.running.shows(/sleep\[\d+\]/);
    const path = join(findCgroup() ?? '', `control-run-${run.running.child.pid}`);
    assert.ok(readdirSync(path).some((name) => name === `control-run-${run.pid}`));
    await perform(run.port, 'pause');
    await assertRest(run);
    await perform(run.port, 'shutdown');
    await run.running.ended;
    await until(() => !existsSync(path), () => `${path} still exists`);
  });

  it('lists by ps what is in /proc', { skip: spawnSync('ps', ['-V']).error && 'needs ps: apt-get install procps' }, async (t) => {
    const spinner = 'while :; do :; done';
    const child = spawn('sh', ['-c', `sleep 98765.12 & sh -c '${spinner}' & sh -c '${spinner}' & wait`], { detached: true });
    t.after(() => process.kill(-(child.pid as number), 'SIGKILL'));
    const family = (): Task[] => listTasks().filter(({ group }) => group === child.pid);
    await until(() => family().length === 4 && family().reduce((sum, { ticks }) => sum + ticks, 0) > 120);
    process.kill(-(child.pid as number), 'SIGSTOP');
    await until(() => family().every(({ states }) => states === 'T'));
    const expected = family();
    const listed = listByPs().filter(({ group }) => group === child.pid);
    assert.equal(listed.length, 4);
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
  return command.map((text) => text.replace('DIR/Makefile', join(own, 'Makefile')).replaceAll('DIR/..', folder)
    .replaceAll('DIR', join(own, 'out')).replace(/^RUN$/, join(folder, 'run.js')));
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

function startWithoutCgroup(...[t, ...rest]: Parameters<typeof startRun>): Promise<StartedRun> {
  if (lacksCgroup() !== false) return startRun(t, ...rest);
  return startLine(t, [...NOBODY, process.execPath, join(folder, 'run.js')], ...rest);
}

/** Its descendants, what is in their session and what inherited their environment. */
function findTree({ pid: main, marker }: StartedRun): Task[] {
  const inherits = ({ pid }: Task): boolean => {
    const environment = environmentOf(pid);
    return environment.includes(marker) && environment.some((line) => line.startsWith('CONTROL_RUN='));
  };
  const all = listTasks();
  const members = new Set(all.filter((one) => one.pid === main || one.session === main || inherits(one)));
  for (const member of members) {
    for (const one of all) if (one.parent === member.pid) members.add(one);
  }
  return all.filter((one) => members.has(one)).flatMap(({ pid }) => readTask(pid));
}

/** All processes are in state T, with all their threads, and stay so without CPU time. */
async function assertRest(run: StartedRun): Promise<void> {
  const before = findTree(run);
  for (const { pid, name, states } of before) assert.match(states, /^T+$/, `process ${pid} (${name})`);
  await sleep(REST_MS);
  assert.deepEqual(findTree(run), before);
}

function compile(name: string, source: string): string {
  const path = join(makeOwnFolder(), name);
  execFileSync('cc', ['-O1', '-pthread', '-x', 'c', '-o', path, '-'], { input: source });
  return path;
}

function cgroupOf(pid: number): string | undefined {
  try {
    return /^0::(.*)$/m.exec(readFileSync(`/proc/${pid}/cgroup`, 'latin1'))?.[1];
  } catch {
    return undefined;
  }
}

function environmentOf(pid: number): string[] {
  try {
    return readFileSync(`/proc/${pid}/environ`, 'latin1').split('\0');
  } catch {
    return [];
  }
}

/** The path of the cgroup of this process, if it may be written. */
function findCgroup(): string | null {
  try {
    const [, path = ''] = /^0::(.*)$/m.exec(readFileSync('/proc/self/cgroup', 'latin1')) ?? [];
    const [, mount = ''] = /^\S+ (\S+) cgroup2 /m.exec(readFileSync('/proc/self/mounts', 'latin1')) ?? [];
    accessSync(join(mount, path), constants.W_OK);
    return mount === '' ? null : join(mount, path);
  } catch {
    return null;
  }
}

function lacksCgroup(): string | false {
  return findCgroup() === null && 'needs a cgroup (version 2) that may be written: run it as root';
}

function lacksWayWithoutCgroup(): string | false {
  if (lacksCgroup() !== false) return false;
  const [file, ...args] = NOBODY;
  return spawnSync(file, [...args, process.execPath, '-e', '']).status !== 0 &&
    'needs root, setpriv (apt-get install util-linux), and a Node.js that everybody may run';
}

function lacksNumpy(): string | false {
  return spawnSync(PYTHON, ['-c', 'import numpy']).status !== 0 && 'needs numpy: apt-get install python3-numpy';
}

function lacksSetuid(): string | false {
  const [file, ...args] = NOBODY;
  if (process.getuid?.() !== 0) return 'needs root, for a process that another user owns';
  return spawnSync(file, [...args, 'sh', '-c', 'mount | grep -w nosuid | grep -w /tmp']).status === 0 && 'needs setuid';
}
