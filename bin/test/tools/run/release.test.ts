// A pause that frees memory or a lock: --pause-command, --resume-command and --release-gpu.

import assert from 'node:assert/strict';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../../control.ts';
import { getInfo, makeFolder, perform, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { Cuda } from './cuda.ts';
import { exitCodeOf, killAll, readLines, run, showsRun, startRun, stateOf, WAIT } from './helpers.ts';
import { accepts, HELLO, order, RELAY, SEVERAL_GRACES_MS, startListener, startTalk } from './talk.ts';
import type { StartedRun } from './helpers.ts';
import type { Talk } from './talk.ts';
import type { TestContext } from 'node:test';

const { ACTIVE, PAUSED } = SystemStatus;
const suite = { concurrency: 3, timeout: 300_000, skip: lacks('Linux') };

interface Released extends StartedRun {
  cuda: Cuda;
  /** Returns the notes of the shell commands since the last call: name, and states of the program and its GPU. */
  notes(): string[];
  /** Makes a shell command run this after its note. */
  on(command: 'pause' | 'resume', script: string): void;
}

/** Options with shell commands that note what they see, and functions that read the notes. */
function commandsOf(t: TestContext, cuda: Cuda): Pick<Released, 'notes' | 'on'> & { options: string[] } {
  const folder = makeFolder(t);
  const commandFor = (name: string): string => `
    set -- $(grep '^State:' /proc/$CONTROL_PID/status) $(cat ${cuda.folder}/$CONTROL_PID.state)
    echo "${name} $2 $4 $CONTROL_REASON" >> ${folder}/notes
    if [ -e ${folder}/${name} ]; then . ${folder}/${name}; fi
    echo ${name}d`;
  let seen = 0;
  return {
    options: ['pause', 'resume'].flatMap((name) => [`--${name}-command`, commandFor(name)]),
    notes: () => {
      const notes = readLines(join(folder, 'notes')).slice(seen).map((line) => line.trimEnd());
      seen += notes.length;
      return notes;
    },
    on: (command, script) => writeFileSync(join(folder, command), script),
  };
}

/** Starts a program that uses CUDA, with all three options. */
async function startReleased(t: TestContext, options: string[] = []): Promise<Released> {
  const cuda = new Cuda(t);
  const commands = commandsOf(t, cuda);
  const program = [cuda.shell, '-c', `${cuda.start}; echo ready; read end`];
  const all = ['--release-gpu', ...commands.options, ...options];
  const started = await startRun(t, all, program, { PATH: cuda.path });
  await started.running.shows(/ready/);
  return { ...started, ...commands, cuda };
}

/** Starts a program that takes commands itself, and whose only child uses CUDA. */
async function startWithWorker(
  t: TestContext,
  cuda: Cuda,
  options: string[] = [],
  startIt: typeof startTalk = startListener,
): Promise<{ talk: Talk; pid: number }> {
  const worker = `${cuda.shell} -c '${cuda.start}; echo worker $$; ${WAIT}' &`;
  const tidy = `trap 'trap "" TERM; kill 0' EXIT;`; // the worker must not outlive a program that ends by itself
  const talk = await startIt(t, ['--release-gpu', ...options], `${tidy} ${worker} ${RELAY}`, { PATH: cuda.path });
  await talk.running.shows(/worker/);
  return { talk, pid: Number(/worker (\d+)/.exec(talk.running.output())?.[1]) };
}

function each(pid: number, ...actions: string[]): string[] {
  return actions.map((action) => (action === 'lock' ? `lock ${pid} 10000` : `${action} ${pid}`));
}

describe('control-run: --pause-command and --resume-command', suite, () => {
  it('run before the program stops and after it continues, and return their last line', async (t) => {
    const { port, pid, client, notes } = await startReleased(t);
    for (const reason of ['until noon', '']) {
      assert.deepEqual(await order(port, `pause?reason=${encodeURIComponent(reason)}`), [200, 'paused']);
      assert.deepEqual([await client.getStatus(), stateOf(pid)], [PAUSED, 'T']);
      assert.deepEqual(notes(), [`pause S running ${reason}`.trimEnd()]);
      assert.deepEqual(await order(port, 'resume?reason=done'), [200, 'resumed']);
      assert.deepEqual([await client.getStatus(), stateOf(pid)], [ACTIVE, 'S']);
      assert.deepEqual(notes(), ['resume S running done']);
    }
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    assert.deepEqual(notes(), [], 'it is already active');
  });

  it('work without each other', async (t) => {
    for (const [option, outcomes] of [['pause', ['a', undefined]], ['resume', [undefined, 'a']]] as const) {
      const { port } = await startRun(t, [`--${option}-command`, 'echo a'], ['sleep', '98765']);
      assert.deepEqual([(await perform(port, 'pause'))[1], (await perform(port, 'resume'))[1]], outcomes);
    }
  });

  it('end although a background process keeps their output open and keeps running', async (t) => {
    const options = ['--resume-command', 'sleep 98765 & echo $!'];
    const { running, port, client } = await startRun(t, options, ['sleep', '98765']);
    await perform(port, 'pause');
    const [statusCode, value] = await perform(port, 'resume');
    const pid = Number(value);
    t.after(() => killAll([pid]));
    assert.deepEqual([statusCode, await client.getStatus(), stateOf(pid)], [200, ACTIVE, 'S']);
    running.child.kill('SIGTERM');
    assert.equal(await exitCodeOf(running), 128 + 15);
    assert.equal(stateOf(pid), 'S');
  });

  it('leave the program as it was if they fail', async (t) => {
    const { port, pid, client, notes, on, cuda } = await startReleased(t);
    on('pause', 'echo no; exit 3');
    assert.deepEqual(
      await perform(port, 'pause'),
      [500, 'pause failed: the pause command ended with exit code 3: no'],
    );
    assert.deepEqual([await client.getStatus(), stateOf(pid), cuda.calls()], [ACTIVE, 'S', []]);
    assert.deepEqual(notes(), ['pause S running']);
    on('pause', '');
    assert.equal((await perform(port, 'pause'))[0], 200);
    cuda.calls();
    on('resume', 'kill -KILL $$');
    for (let count = 0; count < 2; count += 1) {
      assert.deepEqual(await perform(port, 'resume'), [500, 'resume failed: the resume command ended with SIGKILL']);
      assert.deepEqual([await client.getStatus(), stateOf(pid), cuda.stateOf(pid)], [PAUSED, 'T', 'checkpointed']);
      const calls = each(pid, 'restore', 'unlock', 'get-state', 'get-state', 'lock', 'checkpoint', 'get-state');
      assert.deepEqual(cuda.calls(), calls, 'it has the GPU while the command runs');
    }
    on('resume', '');
    assert.deepEqual(await perform(port, 'resume'), [200, 'resumed']);
    assert.deepEqual([await client.getStatus(), stateOf(pid)], [ACTIVE, 'S']);
  });
});

describe('control-run: --release-gpu', suite, () => {
  it('releases before the program stops, and restores after it continues', async (t) => {
    const { port, pid, cuda } = await startReleased(t);
    const of = { port };
    await showsRun(of, { gpu: undefined });
    for (let count = 0; count < 2; count += 1) {
      assert.equal((await perform(port, 'pause'))[0], 200);
      assert.deepEqual(cuda.calls(), each(pid, 'get-state', 'lock', 'checkpoint', 'get-state'));
      assert.deepEqual([cuda.stateOf(pid), stateOf(pid)], ['checkpointed', 'T']);
      await showsRun(of, { gpu: 'released' });
      assert.equal((await perform(port, 'resume'))[0], 200);
      assert.deepEqual(cuda.calls(), each(pid, 'restore', 'unlock', 'get-state'));
      assert.deepEqual([cuda.stateOf(pid), stateOf(pid)], ['running', 'S']);
      await showsRun(of, { gpu: undefined });
    }
  });

  it('leaves the program as it was if the GPU is busy', async (t) => {
    const { port, pid, client, cuda, notes } = await startReleased(t);
    cuda.on(pid, 'lock', "fail 'device not ready'");
    assert.deepEqual(await perform(port, 'pause'), [
      500,
      `pause failed: the GPU is busy: process ${pid} could not be locked within 10 s: ` +
      `Could not lock on process ID ${pid}: "device not ready"`,
    ]);
    assert.deepEqual([await client.getStatus(), stateOf(pid), cuda.stateOf(pid)], [ACTIVE, 'S', 'running']);
    assert.deepEqual(notes(), ['pause S running', 'resume S running'], 'the pause command is undone');
    cuda.on(pid, 'lock', '');
    assert.equal((await perform(port, 'pause'))[0], 200);
  });

  for (const [what, script] of [['', ''], [' that failed and could not be undone', "fail 'unknown error'"]] as const) {
    it(`leaves the program paused after a release${what}, while the GPU memory is in use`, async (t) => {
      const { port, pid, client, cuda, notes } = await startReleased(t);
      cuda.on(pid, 'checkpoint', script && `become checkpointed; ${script}`);
      cuda.on(pid, 'restore', "fail 'out of memory'");
      const inUse = `the GPU's memory is in use: process ${pid} could not be restored: ` +
        `Could not restore on process ID ${pid}: "out of memory"`;
      const [statusCode, outcome] = await perform(port, 'pause');
      assert.equal(statusCode, script ? 500 : 200);
      if (script) assert.match(String(outcome), /^pause failed: the GPU cannot be released: .+; the GPU's memory is/);
      for (let count = 0; count < 2; count += 1) {
        await showsRun({ port }, { gpu: 'released' });
        assert.deepEqual([await client.getStatus(), stateOf(pid), cuda.stateOf(pid)], [PAUSED, 'T', 'checkpointed']);
        assert.deepEqual(await perform(port, 'resume'), [500, `resume failed: ${inUse}`]);
      }
      assert.deepEqual(notes(), ['pause S running'], 'the resume command waits until the GPU is back');
      cuda.on(pid, 'restore', '');
      assert.deepEqual(await perform(port, 'resume'), [200, 'resumed']);
      assert.deepEqual([await client.getStatus(), stateOf(pid), cuda.stateOf(pid)], [ACTIVE, 'S', 'running']);
      assert.deepEqual(notes(), ['resume S running']);
    });
  }

  it('forgets the memory of a program that has ended', async (t) => {
    const { port, pid, cuda } = await startReleased(t, ['--restart', 'on-failure']);
    await perform(port, 'pause');
    process.kill(pid, 'SIGKILL');
    await until(async () => (await getInfo(port)).commands.length === 1 && stateOf(pid) === '');
    await showsRun({ port }, { gpu: undefined, ended: 'SIGKILL' });
    cuda.calls();
    assert.equal((await perform(port, 'resume'))[0], 200);
    await until(() => existsSync(join(cuda.folder, `${pid}.state`)));
    assert.deepEqual(cuda.calls(), []);
  });

  for (const [action, command] of [['checkpoint', 'pause'], ['restore', 'resume']] as const) {
    it(`has --grace for a ${action} once a signal waits`, async (t) => {
      const { running, port, pid, cuda } = await startReleased(t, ['--grace', '0.3']);
      if (command === 'resume') await perform(port, 'pause');
      cuda.on(pid, action, 'sleep 98765');
      const outcome = perform(port, command);
      await until(() => cuda.calls().includes(`${action} ${pid}`));
      const waiting = perform(port, 'save-state').catch(() => null); // it may not arrive
      await sleep(SEVERAL_GRACES_MS);
      assert.equal((await getInfo(port)).commands.at(command === 'pause' ? 0 : 1)?.state, 'running');
      running.child.kill('SIGTERM');
      assert.match(String((await outcome)[1]), /cuda-checkpoint ended with SIGKILL/);
      await waiting;
      assert.equal(await exitCodeOf(running), 128 + 15);
    });
  }

  it('is refused if cuda-checkpoint is missing', { skip: existsSync('/usr/bin/cuda-checkpoint') }, async (t) => {
    const { code, stdout, stderr } = await run(t, ['--release-gpu'], ['echo', 'started']);
    const error = '--release-gpu requires cuda-checkpoint on the PATH: see https://github.com/NVIDIA/cuda-checkpoint';
    assert.deepEqual([code, stdout, stderr], [2, '', `control-run: ${error}\n`]);
  });
});

describe('control-run: a shutdown of a paused program that has freed something', suite, () => {
  it('takes that back first', async (t) => {
    const { running, port, pid, cuda, notes } = await startReleased(t);
    await perform(port, 'pause');
    cuda.calls();
    notes();
    assert.deepEqual(await perform(port, 'shutdown'), [200, 'SIGTERM']);
    assert.equal(await exitCodeOf(running), 128 + 15);
    assert.deepEqual(cuda.calls(), each(pid, 'restore', 'unlock', 'get-state'));
    assert.deepEqual(notes(), ['resume S running']);
  });

  it('is cancelled if that fails, except after a signal', async (t) => {
    const { running, port, pid, client, cuda, on } = await startReleased(t);
    await perform(port, 'pause');
    on('resume', 'echo the wake-up failed; exit 1');
    const errors = ['the resume command ended with exit code 1: the wake-up failed', "the GPU's memory is in use: "];
    for (const error of errors) {
      const [statusCode, outcome] = await perform(port, 'shutdown');
      assert.equal(statusCode, 500);
      assert.ok(String(outcome).startsWith(`shutdown failed: ${error}`), String(outcome));
      assert.deepEqual([await client.getStatus(), stateOf(pid), cuda.stateOf(pid)], [PAUSED, 'T', 'checkpointed']);
      cuda.on(pid, 'restore', "fail 'out of memory'");
    }
    running.child.kill('SIGTERM');
    assert.equal(await exitCodeOf(running), 128 + 15);
  });
});

describe('control-run: a shutdown of a paused program that cannot be saved', suite, () => {
  it('leaves it active if it cannot be paused again', async (t) => {
    const { running, port, pid, client, cuda, on } = await startReleased(t, ['--save-signal', 'USR1']);
    await perform(port, 'pause');
    on('pause', 'echo no; exit 3');
    const [statusCode, error] = await perform(port, 'shutdown');
    assert.equal(statusCode, 500);
    assert.match(String(error), /^shutdown failed: no process of .+ handles SIGUSR1/);
    await running.shows(/control-run: the pause command ended with exit code 3: no\n/);
    assert.deepEqual([await client.getStatus(), stateOf(pid), cuda.stateOf(pid)], [ACTIVE, 'S', 'running']);
    running.child.stdin?.end('\n'); // it reads that
    assert.equal(await exitCodeOf(running), 0);
  });

  it('does not pause it again after a signal', async (t) => {
    const { running, port, notes } = await startReleased(t, ['--save-signal', 'USR1']);
    await perform(port, 'pause');
    running.child.kill('SIGTERM');
    assert.equal(await exitCodeOf(running), 128 + 15);
    assert.deepEqual(notes(), ['pause S running', 'resume S running SIGTERM']);
  });
});

describe('control-run: the GPU of a program on CONTROL_FD', suite, () => {
  it('is released after the program pauses, and restored before it resumes', async (t) => {
    const cuda = new Cuda(t);
    const { options, notes } = commandsOf(t, cuda);
    const { talk, pid } = await startWithWorker(t, cuda, options);
    const pause = perform(talk.port, 'pause');
    const id = await talk.gets('pause');
    assert.deepEqual([cuda.calls(), notes()], [[], ['pause S']]);
    talk.say({ done: id, value: 'epoch 7' });
    assert.deepEqual(await pause, [200, 'paused; epoch 7']);
    assert.deepEqual([cuda.calls(), stateOf(pid)], [each(pid, 'get-state', 'lock', 'checkpoint', 'get-state'), 'S']);
    cuda.on(pid, 'restore', "fail 'out of memory'");
    assert.equal((await perform(talk.port, 'resume'))[0], 500);
    cuda.on(pid, 'restore', '');
    const resume = perform(talk.port, 'resume');
    talk.say({ done: await talk.gets('resume') });
    assert.deepEqual(await resume, [200, 'resumed']);
    assert.deepEqual([cuda.stateOf(pid), notes()], ['running', ['resume S']]);
  });

  it('may be busy: then the program is asked to resume', async (t) => {
    const cuda = new Cuda(t);
    const { talk, pid } = await startWithWorker(t, cuda);
    cuda.on(pid, 'lock', "fail 'device not ready'");
    const pause = perform(talk.port, 'pause');
    talk.say({ done: await talk.gets('pause') });
    talk.say({ done: await talk.gets('resume') });
    assert.match(String((await pause)[1]), /^pause failed: the GPU is busy/);
    await talk.is('active');
  });

  it('stays released if the program opens CONTROL_FD during a failing resume: it is paused again', async (t) => {
    const path = join(makeFolder(t), 'end');
    const resume = `while [ ! -e ${path} ]; do sleep 0.05; done; exit 1`;
    const talk = await startTalk(t, ['--resume-command', resume]);
    await perform(talk.port, 'pause');
    assert.equal(stateOf(talk.pid), 'T');
    const resumed = perform(talk.port, 'resume');
    talk.say(HELLO);
    await talk.taken();
    writeFileSync(path, '');
    talk.say({ done: await talk.gets('pause') });
    assert.deepEqual(await resumed, [500, 'resume failed: the resume command ended with exit code 1']);
    await talk.is('paused');
  });

  it('stays released if the program closed CONTROL_FD and a resume fails: it is stopped', async (t) => {
    const script = `echo '{"accepts":{"set":{}}}' >&3; read -r pause <&3; echo '{"status":"paused"}' >&3
      read -r line; exec 3>&-; ${WAIT}`;
    const talk = await startTalk(t, ['--resume-command', 'exit 1'], script);
    await accepts(talk, 'set');
    assert.deepEqual([await perform(talk.port, 'pause'), stateOf(talk.pid)], [[200, undefined], 'S']);
    talk.say('close\n');
    await accepts(talk);
    const error = 'resume failed: the resume command ended with exit code 1';
    assert.deepEqual(await perform(talk.port, 'resume'), [500, error]);
    assert.deepEqual([await talk.client.getStatus(), stateOf(talk.pid)], [PAUSED, 'T']);
  });
});
