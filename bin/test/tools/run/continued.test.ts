// A paused program that somebody else continues, such as another supervisor, or a tracer such as strace or gdb.

import assert from 'node:assert/strict';
import { chmodSync, existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../../control.ts';
import { getInfo, makeFolder, perform, start } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import {
  asOn, IN_PROC, listTasks, listTree, PYTHON, readLines, readTask, shell, startRun, tryRead, WAYS,
} from './helpers.ts';
import type { StartedRun, Way } from './helpers.ts';
import type { TestContext } from 'node:test';

const { ACTIVE, PAUSED } = SystemStatus;
const REST_MS = 200; // in which a stopped program must not count
const ON_MACOS: Way = { ...asOn('darwin'), skip: lacks('ps') };

/** Adds lines to a file as long as that exists, in a process and in one that has left its session. */
const COUNT = `
export LOOP='echo > "$0"; while [ -e "$0" ]; do echo >> "$0"; sleep 0.02; done'
setsid sh -c "$LOOP" "$1" &
exec sh -c "$LOOP" "$2"`;

/**
 * Traces a process until it ends. Usage: \`run COMMAND\`, as strace does, slowly, so that the process is nearly always
 * held at a system call, or \`attach PID\`, which continues a stopped process and keeps SIGSTOP from it. A process
 * held at a system call dies with its tracer, so \`attach\` does not hold it there.
 */
const TRACER = `
import ctypes, os, signal, sys, time
ATTACH_LIVE, LISTEN, CONT, SYSCALL, EVENT_STOP = 0x4206, 0x4208, 7, 24, 128
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
def trace(request, data=0):
    if libc.ptrace(request, pid, None, data) != 0: raise OSError(ctypes.get_errno(), 'ptrace')
isWrapper = sys.argv[1] == 'run'
goOn = SYSCALL if isWrapper else CONT
pid = os.fork() if isWrapper else int(sys.argv[2])
if pid == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
    os.execvp(sys.argv[2], sys.argv[2:])
if isWrapper: os.waitpid(pid, os.WUNTRACED)
trace(ATTACH_LIVE)
os.kill(pid, signal.SIGCONT)
print('traces', flush=True)
while True:
    status = os.waitpid(pid, 0x40000000)[1]
    if not os.WIFSTOPPED(status): sys.exit()
    number, event = os.WSTOPSIG(status), status >> 16
    if isWrapper: time.sleep(0.02)
    if event == EVENT_STOP and number != signal.SIGTRAP and isWrapper: trace(LISTEN)
    elif event != 0 or number in (signal.SIGTRAP, 0 if isWrapper else signal.SIGSTOP): trace(goOn)
    else: trace(goOn, number)`;

const suite = { ...LIMIT, concurrency: 3, skip: lacks('Linux', 'setsid') };

describe('control-run: a paused program that somebody else continues', suite, () => {
  for (const way of [...WAYS, ON_MACOS]) {
    it(`is stopped again, and a resume leaves nothing stopped (${way.name})`, { skip: way.skip }, async (t) => {
      const counter = await startCounter(t, [], way);
      await perform(counter.port, 'pause');
      for (const pids of [counter.tree(), [counter.pid], [counter.daemon()]]) {
        continueAll(pids);
        await counter.isAtRest();
        assert.equal((await getInfo(counter.port)).status, 'paused');
      }
      assert.deepEqual(await perform(counter.port, 'resume'), [200, undefined]);
      await counter.runs();
      assert.doesNotMatch(counter.running.output(), /continued/);
    });
  }

  it('stands still when a second pause is done', async (t) => {
    const counter = await startCounter(t);
    await perform(counter.port, 'pause');
    for (let n = 0; n < 5; n++) {
      continueAll([counter.daemon()]);
      assert.deepEqual(await perform(counter.port, 'pause'), [200, undefined]);
      assert.equal(counter.states(), 'T');
    }
    await perform(counter.port, 'resume');
    await counter.runs();
  });

  it('is stopped again while it is saved', async (t) => {
    const folder = makeOpenFolder(t);
    const save = `touch '${folder}/saving'; until [ -e '${folder}/end' ]; do sleep 0.05; done; echo saved`;
    const counter = await startCounter(t, ['--save-command', save]);
    await perform(counter.port, 'pause');
    const saved = perform(counter.port, 'save-state');
    await until(() => existsSync(join(folder, 'saving')));
    continueAll(counter.tree());
    await counter.isAtRest();
    writeFileSync(join(folder, 'end'), '');
    assert.deepEqual(await saved, [200, 'saved']);
    assert.equal(counter.states(), 'T');
    await perform(counter.port, 'resume');
    await counter.runs();
  });

  it('is stopped again before its first instruction, which the resume runs', async (t) => {
    const state = join(makeFolder(t), 'state');
    writeFileSync(state, '{"status":"paused"}');
    const { port, pid, running } = await startRun(t, ['--state', state], shell('echo started; exec sleep 98765'));
    for (let n = 0; n < 2; n++) {
      continueAll([pid]);
      await until(() => readTask(pid)[0]?.state === 'T');
    }
    assert.doesNotMatch(running.output(), /started/);
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    await running.shows(/started/);
  });

  it('is stopped again if it was stopped before the pause; the resume then continues it, too', async (t) => {
    const counter = await startCounter(t);
    const daemon = counter.daemon();
    process.kill(daemon, 'SIGSTOP');
    await until(() => readTask(daemon)[0]?.state === 'T');
    await perform(counter.port, 'pause');
    continueAll([daemon]);
    await counter.isAtRest();
    await perform(counter.port, 'resume');
    await counter.runs();
  });

  it('is reported as active, with the reason, if it cannot be stopped again', {
    skip: lacks('root', 'python3'),
  }, async (t) => {
    const counter = await startCounter(t);
    await perform(counter.port, 'pause');
    const tracer = start(t, PYTHON, ['-c', TRACER, 'attach', String(counter.pid)]);
    await until(async () => (await getInfo(counter.port)).status === 'active');
    await counter.runs();
    const { by, reason } = await getInfo(counter.port);
    assert.equal(by, 'itself');
    const what = `continued by another process, and not stopped again: process ${counter.pid} `;
    assert.ok(reason?.startsWith(what), reason);
    assert.ok(reason?.includes(`, traced by process ${tracer.child.pid} (python3`), reason);
    assert.equal(counter.running.output().split(what).length, 2, counter.running.output());
    tracer.child.kill('SIGKILL');
    await tracer.ended;
    assert.deepEqual(await perform(counter.port, 'pause'), [200, undefined]);
    assert.equal(counter.states(), 'T');
    await perform(counter.port, 'resume');
    await counter.runs();
  });
});

describe('control-run: a program under a tracer', { ...suite, skip: suite.skip || lacks('python3') }, () => {
  it('stands still while it is paused, and runs after the resume', async (t) => {
    for (const way of WAYS.filter(({ skip }) => skip === false)) {
      const path = join(makeOpenFolder(t), 'count');
      const loop = ['sh', '-c', 'echo > "$0"; while [ -e "$0" ]; do echo >> "$0"; done', path];
      const { port, pid, client } = await startRun(t, [], [PYTHON, '-c', TRACER, 'run', ...loop], {}, way);
      const count = (): number => readLines(path).length;
      for (let n = 0; n < 3; n++) {
        const before = count();
        await until(() => count() > before);
        assert.deepEqual(await perform(port, 'pause'), [200, undefined]);
        const paused = count();
        assert.match(listTree(pid).flatMap(readTask).map(({ state }) => state).join(''), /^Tt$/);
        await sleep(REST_MS);
        assert.deepEqual([count(), await client.getStatus()], [paused, PAUSED]);
        assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
      }
      const before = count();
      await until(() => count() > before);
      assert.equal(await client.getStatus(), ACTIVE);
    }
  });
});

interface Counter extends StartedRun {
  /** The processes of the program. */
  tree(): number[];
  /** The one that has left the session. */
  daemon(): number;
  /** The different states of the processes, in one text. */
  states(): string;
  /** Waits until all are stopped, and checks that none counts. */
  isAtRest(): Promise<void>;
  /** Waits until all run. */
  runs(): Promise<void>;
}

async function startCounter(t: TestContext, options: string[] = [], way: Way = IN_PROC): Promise<Counter> {
  const folder = makeOpenFolder(t);
  const paths = ['daemon', 'main'].map((name) => join(folder, name)) as [string, string];
  const run = await startRun(t, options, shell(COUNT, ...paths), {}, way);
  const counts = (): number[] => paths.map((path) => readLines(path).length);
  const tree = (): number[] => listTree(run.pid);
  const states = (): string => [...new Set(tree().flatMap(readTask).map(({ state }) => state))].sort().join('');
  const runs = async (): Promise<void> => {
    const before = counts();
    const hasCounted = (): boolean => counts().every((count, index) => count > (before[index] as number));
    await until(hasCounted, () => `${before} ${counts()} ${states()}`);
    await until(() => !states().includes('T'), states);
  };
  await runs();
  return {
    ...run, tree, states, runs,
    daemon: () => {
      const [task] = listTasks().filter(({ pid }) => tryRead(`/proc/${pid}/cmdline`).endsWith(`\0${paths[0]}\0`));
      return task?.pid ?? assert.fail();
    },
    isAtRest: async () => {
      await until(() => states() === 'T', states);
      const before = counts();
      await sleep(REST_MS);
      assert.deepEqual(counts(), before);
    },
  };
}

function continueAll(pids: readonly number[]): void {
  for (const pid of pids) {
    try {
      process.kill(pid, 'SIGCONT');
    } catch {} // a nap that has ended
  }
}

/** A folder that all users may use. */
function makeOpenFolder(t: TestContext): string {
  const folder = makeFolder(t);
  chmodSync(folder, 0o777);
  return folder;
}
