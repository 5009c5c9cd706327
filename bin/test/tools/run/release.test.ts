// A pause that frees memory or a lock: --pause-command and --resume-command.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { SystemStatus } from '../../../../control.ts';
import { makeFolder, perform } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { exitCodeOf, killAll, readLines, shell, startRun, stateOf, WAIT } from './helpers.ts';
import { accepts, HELLO, order, RELAY, startListener, startTalk } from './talk.ts';
import type { StartedRun } from './helpers.ts';
import type { TestContext } from 'node:test';

const { ACTIVE, PAUSED } = SystemStatus;
const suite = { ...LIMIT, concurrency: 3, skip: lacks('Linux') };

interface Commands {
  options: string[];
  /** Returns the notes of the commands since the last call: name, state of the program, and reason. */
  notes(): string[];
  /** Makes a command run this after its note. */
  on(command: 'pause' | 'resume', script: string): void;
}

/** Options with commands that note what they see, and functions that read the notes. */
function commandsOf(t: TestContext): Commands {
  const folder = makeFolder(t);
  const commandFor = (name: string): string => `
    set -- $(grep '^State:' /proc/$CONTROL_PID/status)
    echo "${name} $2 $CONTROL_REASON" >> ${folder}/notes
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

async function startWithCommands(t: TestContext, options: string[] = []): Promise<StartedRun & Commands> {
  const commands = commandsOf(t);
  const started = await startRun(t, [...commands.options, ...options], shell('echo ready; read end'));
  await started.running.shows(/ready/);
  return { ...started, ...commands };
}

describe('control-run: a pause that frees something', suite, () => {
  it('runs its steps in order; a step that fails undoes those before it', async (t) => {
    const { running, port, pid, client, notes, on } = await startWithCommands(t);
    const isActive = async (): Promise<void> => {
      assert.deepEqual([await client.getStatus(), stateOf(pid)], [ACTIVE, 'S']);
    };
    const isPaused = async (): Promise<void> => {
      assert.deepEqual([await client.getStatus(), stateOf(pid)], [PAUSED, 'T']);
    };
    for (const reason of ['until noon', '']) {
      assert.deepEqual(await order(port, `pause?reason=${encodeURIComponent(reason)}`), [200, 'paused']);
      await isPaused();
      assert.deepEqual(notes(), [`pause S ${reason}`.trimEnd()]);
      assert.deepEqual(await order(port, 'resume?reason=done'), [200, 'resumed']);
      await isActive();
      assert.deepEqual(notes(), ['resume S done']);
    }
    assert.deepEqual([await perform(port, 'resume'), notes()], [[200, undefined], []], 'it is already active');

    on('pause', 'echo no; exit 3');
    const refused = 'pause failed: the pause command ended with exit code 3: no';
    assert.deepEqual(await perform(port, 'pause'), [500, refused]);
    await isActive();
    assert.deepEqual(notes(), ['pause S']);
    on('pause', '');

    assert.equal((await perform(port, 'pause'))[0], 200);
    on('resume', 'kill -KILL $$');
    for (const command of ['resume', 'shutdown'] as const) {
      const killed = `${command} failed: the resume command ended with SIGKILL`;
      assert.deepEqual(await perform(port, command), [500, killed]);
      await isPaused();
    }
    assert.deepEqual(notes(), ['pause S', 'resume S', 'resume S'], 'the program runs while a resume command does');
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

  it('is reversed by a shutdown; if the save fails, it is repeated, except after a signal', async (t) => {
    const { running, port, pid, client, notes, on } = await startWithCommands(t, ['--save-signal', 'USR1']);
    await perform(port, 'pause');
    on('pause', 'echo no; exit 3');
    const [statusCode, error] = await perform(port, 'shutdown');
    assert.equal(statusCode, 500);
    assert.match(String(error), /^shutdown failed: no process of .+ handles SIGUSR1/);
    await running.shows(/control-run: the pause command ended with exit code 3: no\n/);
    assert.deepEqual([await client.getStatus(), stateOf(pid)], [ACTIVE, 'S'], 'it cannot be paused again');
    on('pause', '');
    await perform(port, 'pause');
    notes();
    running.child.kill('SIGTERM');
    assert.equal(await exitCodeOf(running), 128 + 15);
    assert.deepEqual(notes(), ['resume S SIGTERM']);
  });
});

describe('control-run: a program on CONTROL_FD that is paused', suite, () => {
  it('is asked to pause after the pause command, and to resume before the resume command', async (t) => {
    const { options, notes } = commandsOf(t);
    const talk = await startListener(t, options, RELAY);
    const pause = perform(talk.port, 'pause');
    const id = await talk.gets('pause');
    assert.deepEqual(notes(), ['pause S']);
    talk.say({ done: id, value: 'epoch 7' });
    assert.deepEqual(await pause, [200, 'paused; epoch 7']);
    const resume = perform(talk.port, 'resume');
    talk.say({ done: await talk.gets('resume') });
    assert.deepEqual([await resume, notes()], [[200, 'resumed'], ['resume S']]);
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
