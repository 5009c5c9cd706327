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

function each(pid: number, ...actions: string[]): string[] {
  return actions.map((action) => (action === 'lock' ? `lock ${pid} 10000` : `${action} ${pid}`));
}

describe('control-run: a pause that frees something', suite, () => {
  it('runs its steps in order; a step that fails undoes those before it', async (t) => {
    const { running, port, pid, client, notes, on, cuda } = await startReleased(t);
    const isActive = async (): Promise<void> => {
      assert.deepEqual([await client.getStatus(), stateOf(pid), cuda.stateOf(pid)], [ACTIVE, 'S', 'running']);
    };
    const isPaused = async (): Promise<void> => {
      assert.deepEqual([await client.getStatus(), stateOf(pid), cuda.stateOf(pid)], [PAUSED, 'T', 'checkpointed']);
      await showsRun({ port }, { gpu: 'released' });
    };
    const release = each(pid, 'get-state', 'lock', 'checkpoint', 'get-state');
    const restore = each(pid, 'restore', 'unlock', 'get-state');
    for (const reason of ['until noon', '']) {
      await showsRun({ port }, { gpu: undefined });
      assert.deepEqual(await order(port, `pause?reason=${encodeURIComponent(reason)}`), [200, 'paused']);
      await isPaused();
      assert.deepEqual([notes(), cuda.calls()], [[`pause S running ${reason}`.trimEnd()], release]);
      assert.deepEqual(await order(port, 'resume?reason=done'), [200, 'resumed']);
      await isActive();
      assert.deepEqual([notes(), cuda.calls()], [['resume S running done'], restore]);
    }
    assert.deepEqual([await perform(port, 'resume'), notes()], [[200, undefined], []], 'it is already active');

    on('pause', 'echo no; exit 3');
    const refused = 'pause failed: the pause command ended with exit code 3: no';
    assert.deepEqual([await perform(port, 'pause'), cuda.calls()], [[500, refused], []]);
    await isActive();
    assert.deepEqual(notes(), ['pause S running']);
    on('pause', '');
    cuda.on(pid, 'lock', "fail 'device not ready'");
    const busy = `pause failed: the GPU is busy: process ${pid} could not be locked within 10 s: ` +
      `Could not lock on process ID ${pid}: "device not ready"`;
    assert.deepEqual(await perform(port, 'pause'), [500, busy]);
    await isActive();
    assert.deepEqual(notes(), ['pause S running', 'resume S running'], 'the pause command is undone');
    cuda.on(pid, 'lock', '');
    const noMemory = "fail 'out of memory'";
    cuda.on(pid, 'checkpoint', "become checkpointed; fail 'unknown error'");
    cuda.on(pid, 'restore', noMemory);
    const stuck = /^pause failed: the GPU cannot be released: .+; the GPU's memory is in use/;
    assert.match(String((await perform(port, 'pause'))[1]), stuck);
    await isPaused();
    cuda.on(pid, 'checkpoint', '');
    cuda.on(pid, 'restore', '');
    assert.deepEqual(await perform(port, 'resume'), [200, 'resumed']);
    await isActive();

    assert.equal((await perform(port, 'pause'))[0], 200);
    notes();
    cuda.calls();
    on('resume', 'kill -KILL $$');
    for (const command of ['resume', 'shutdown'] as const) {
      const killed = `${command} failed: the resume command ended with SIGKILL`;
      assert.deepEqual(await perform(port, command), [500, killed]);
      assert.deepEqual(cuda.calls(), [...restore, ...release], 'the resume command has the GPU while it runs');
      await isPaused();
    }
    assert.deepEqual(notes(), ['resume S running', 'resume S running']);
    cuda.on(pid, 'restore', noMemory);
    for (const command of ['resume', 'shutdown'] as const) {
      const inUse = `${command} failed: the GPU's memory is in use: process ${pid} could not be restored: ` +
        `Could not restore on process ID ${pid}: "out of memory"`;
      assert.deepEqual(await perform(port, command), [500, inUse]);
      await isPaused();
    }
    assert.deepEqual(notes(), [], 'the resume command waits until the GPU is back');
    running.child.kill('SIGTERM');
    assert.equal(await exitCodeOf(running), 128 + 15, 'a signal ends the program in any case');
  });

  it('may have one command only, whose background processes keep its output open and run on', async (t) => {
    const { port } = await startRun(t, ['--pause-command', 'echo a'], ['sleep', '98765']);
    assert.deepEqual([await perform(port, 'pause'), await perform(port, 'resume')], [[200, 'a'], [200, undefined]]);
    const other = await startRun(t, ['--resume-command', 'sleep 98765 & echo $!'], ['sleep', '98765']);
    assert.deepEqual(await perform(other.port, 'pause'), [200, undefined]);
    const pid = Number((await perform(other.port, 'resume'))[1]);
    t.after(() => killAll([pid]));
    assert.deepEqual([await other.client.getStatus(), stateOf(pid)], [ACTIVE, 'S']);
    other.running.child.kill('SIGTERM');
    assert.equal(await exitCodeOf(other.running), 128 + 15);
    assert.equal(stateOf(pid), 'S');
  });

  it('forgets the GPU memory of a program that has ended', async (t) => {
    const { port, pid, cuda } = await startReleased(t, ['--restart', 'on-failure']);
    await perform(port, 'pause');
    process.kill(pid, 'SIGKILL');
    await showsRun({ port }, { gpu: undefined, ended: 'SIGKILL' });
    cuda.calls();
    assert.equal((await perform(port, 'resume'))[0], 200);
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

  it('is reversed by a shutdown; if the save fails, it is repeated, except after a signal', async (t) => {
    const { running, port, pid, client, cuda, notes, on } = await startReleased(t, ['--save-signal', 'USR1']);
    await perform(port, 'pause');
    on('pause', 'echo no; exit 3');
    const [statusCode, error] = await perform(port, 'shutdown');
    assert.equal(statusCode, 500);
    assert.match(String(error), /^shutdown failed: no process of .+ handles SIGUSR1/);
    await running.shows(/control-run: the pause command ended with exit code 3: no\n/);
    const state = [await client.getStatus(), stateOf(pid), cuda.stateOf(pid)];
    assert.deepEqual(state, [ACTIVE, 'S', 'running'], 'it cannot be paused again');
    on('pause', '');
    await perform(port, 'pause');
    notes();
    running.child.kill('SIGTERM');
    assert.equal(await exitCodeOf(running), 128 + 15);
    assert.deepEqual(notes(), ['resume S running SIGTERM']);
  });
});

describe('control-run: a program on CONTROL_FD that is paused', suite, () => {
  it('releases its GPU after it pauses, and has it back before it resumes; if that fails, it is undone', async (t) => {
    const cuda = new Cuda(t);
    const { options, notes } = commandsOf(t, cuda);
    const worker = `${cuda.shell} -c '${cuda.start}; echo worker $$; ${WAIT}' &`;
    const tidy = `trap 'trap "" TERM; kill 0' EXIT;`; // the worker must not outlive a program that ends by itself
    const talk = await startListener(t, ['--release-gpu', ...options], `${tidy} ${worker} ${RELAY}`, {
      PATH: cuda.path,
    });
    await talk.running.shows(/worker \d+\n/);
    const pid = Number(/worker (\d+)/.exec(talk.running.output())?.[1]);
    cuda.on(pid, 'lock', "fail 'device not ready'");
    const failing = perform(talk.port, 'pause');
    talk.say({ done: await talk.gets('pause') });
    talk.say({ done: await talk.gets('resume') });
    assert.match(String((await failing)[1]), /^pause failed: the GPU is busy/);
    await talk.is('active');
    cuda.on(pid, 'lock', '');
    cuda.calls();
    notes();

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

  it('is paused again if it opens CONTROL_FD during a resume that fails', async (t) => {
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

  it('is stopped if it has closed CONTROL_FD and a resume fails', async (t) => {
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
