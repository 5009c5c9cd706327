// save-state and shutdown: how a program saves, and what happens if that fails.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../../control.ts';
import { assertHarmless, getInfo, makeFolder, perform } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import {
  exitCodeOf, handler, processesOf, PYTHON, readLines, readTask, shell, showsRun, startRun, stateOf,
  WAIT, WAIT_FOR_END,
} from './helpers.ts';
import { startTalk } from './talk.ts';

const { ACTIVE, PAUSED } = SystemStatus;

/** Three processes that handle SIGUSR1: a parent and its children. */
const FAMILY = `
import os, signal
parent = os.getpid()
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'saved\\n' if os.getpid() == parent else b'child\\n'))
os.fork() and os.fork()
if os.getpid() == parent: os.write(1, b'parent %d\\n' % parent)
while True: signal.pause()
`;

const suite = { ...LIMIT, concurrency: 3, skip: lacks('Linux') };

describe('control-run: save-state', suite, () => {
  it('reports how --save-command ended, and its last line of output', async (t) => {
    const path = join(makeFolder(t), 'script');
    const { port, client } = await startRun(t, ['--save-command', `. '${path}'`], ['sleep', '98765']);
    for (const [script, code, outcome] of [
      ['echo full; echo ENOSPC >&2; exit 28', 500, 'save-state failed: the save command ended with exit code 28: full'],
      ['exit 1', 500, 'save-state failed: the save command ended with exit code 1'],
      ['echo half; kill $$', 500, 'save-state failed: the save command ended with SIGTERM: half'],
      ['printf "a\\r\\nb\\r\\n\\n \\n"', 200, 'b'],
      ['printf "no end of line"', 200, 'no end of line'],
      ['cat; echo "its input is empty"', 200, 'its input is empty'],
      ['yes | head -c 1000000; echo; echo last', 200, 'last'],
      ['printf "\\033[2Jred\\007\\302\\233"', 200, '[2Jred'],
    ] as [string, number, string][]) {
      writeFileSync(path, script);
      const [statusCode, what] = await perform(port, 'save-state');
      assert.deepEqual([statusCode, String(what).trimEnd()], [code, outcome], script);
      assertHarmless(String(what));
    }
    writeFileSync(path, 'head -c 1000000 /dev/zero | tr "\\0" x');
    const [statusCode, long] = await perform(port, 'save-state') as [number, string];
    assert.equal(statusCode, 200);
    assert.match(long, /^x{100,65536}$/);
    writeFileSync(path, 'true');
    assert.deepEqual((await perform(port, 'save-state'))[0], 200);
    assert.equal(await client.getStatus(), ACTIVE);
  });

  it('is possible if the detail says canSave', async (t) => {
    const closes = shell('echo \'{"status":"active"}\' >&3; read -r line <&3; exec 3>&-; exec sleep 98765');
    const ends = shell('echo \'{"status":"active"}\' >&3; read -r line <&3; exit 1');
    const handles = handler('trap "echo saved" USR1');
    await Promise.all(([
      [[], handler(':'), undefined, 500, false], // it could still open CONTROL_FD at first
      [['--save-command', 'true'], handler(':'), true, 200, true],
      [['--save-signal', 'USR1'], handles, true, 200, true],
      [[], closes, true, 500, undefined], [[], ends, true, 500, undefined],
    ] as const).map(async ([options, command, canSave, statusCode, canSaveLater]) => {
      const run = await startRun(t, ['--restart', 'on-failure', '--grace', '0.3', ...options], [...command]);
      if (command !== closes && command !== ends) await run.running.shows(/ready/);
      await showsRun(run, { pid: run.pid, canSave });
      assert.equal((await perform(run.port, 'save-state'))[0], statusCode);
      const ended = command === ends ? 'exit code 1' : undefined;
      await showsRun(run, { pid: run.pid, ended, canSave: canSaveLater });
    }));
  });

  it('waits for --save-command even if the program ends meanwhile, which no failure cancels', async (t) => {
    const failed = 'shutdown failed: the save command ended with exit code 1: late';
    for (const [command, then, outcome] of [
      ['save-state', 'true', [200, 'late']], ['shutdown', 'false', [500, failed]],
    ] as const) {
      const save = `kill -KILL $CONTROL_PID; ${WAIT_FOR_END}; echo late; ${then}`;
      const { running, port } = await startRun(t, ['--save-command', save], ['sleep', '98765']);
      assert.deepEqual(await perform(port, command), outcome);
      assert.equal(await exitCodeOf(running), 128 + 9);
    }
  });

  it('sends --save-signal to the topmost process that handles it', {
    skip: lacks('python3'),
  }, async (t) => {
    const options = ['--save-signal', 'usr1', '--grace', '0.3'];
    const run = await startRun(t, options, shell('"$@"; :', PYTHON, '-c', FAMILY));
    await run.running.shows(/parent \d+/);
    await until(() => processesOf(run.running).length === 4);
    const parent = Number(/parent (\d+)/.exec(run.running.output())?.[1]);
    for (const saves of ['saved\n', 'saved\nsaved\n']) {
      assert.deepEqual(await perform(run.port, 'save-state'), [200, `SIGUSR1 sent to process ${parent}`]);
      await run.running.shows(new RegExp(`^${saves}`, 'm'));
    }
    await perform(run.port, 'pause');
    const error = `save-state failed: sh[${run.pid}] is stopped and cannot save: resume it first`;
    assert.deepEqual(await perform(run.port, 'save-state'), [500, error]);
    await perform(run.port, 'resume');
    assert.equal(processesOf(run.running).length, 4);
    assert.doesNotMatch(run.running.output(), /child/);
  });
});

describe('control-run: shutdown', suite, () => {
  it('fails if no process handles --save-signal; a signal ends the program', async (t) => {
    const command = shell('trap "" USR2; sleep 98765; :'); // ignored, not handled
    const { running, port, pid } = await startRun(t, ['--save-signal', 'USR2'], command);
    await until(() => processesOf(running).length === 2);
    const error = `no process of sh[${pid}] handles SIGUSR2: it would kill the program`;
    assert.deepEqual(await perform(port, 'save-state'), [500, `save-state failed: ${error}`]);
    for (let count = 0; count < 3; count += 1) {
      assert.deepEqual(await perform(port, 'shutdown'), [500, `shutdown failed: ${error}`]);
      assert.equal(processesOf(running).length, 2);
    }
    running.child.kill('SIGTERM');
    assert.equal(await exitCodeOf(running), 128 + 15);
  });

  const closed = (pid: number): string => {
    return `no way to save: sh[${pid}] has closed CONTROL_FD; SIGTERM to control-run ends it anyway`;
  };

  it('does not end a program that has closed CONTROL_FD, unless there is another way to save', async (t) => {
    const script = `echo '{"status":"active"}' >&3; read -r line; exec 3>&-; ${WAIT}`;
    const run = await startTalk(t, [], script);
    const other = await startTalk(t, ['--save-command', 'echo 12.pt'], script);
    for (const one of [run, other]) {
      await showsRun(one, { canSave: true });
      one.say('close\n');
    }
    await showsRun(run, { canSave: undefined });
    assert.deepEqual(await perform(run.port, 'shutdown'), [500, `shutdown failed: ${closed(run.pid)}`]);
    assert.deepEqual([await run.client.getStatus(), stateOf(run.pid)], [ACTIVE, 'S']);
    await perform(run.port, 'pause');
    assert.deepEqual(await perform(run.port, 'shutdown'), [500, `shutdown failed: ${closed(run.pid)}`]);
    assert.deepEqual([await run.client.getStatus(), stateOf(run.pid)], [PAUSED, 'T']);
    run.running.child.kill('SIGTERM');
    assert.equal(await exitCodeOf(run.running), 128 + 15);
    assert.deepEqual(await perform(other.port, 'shutdown'), [200, '12.pt; SIGTERM']);
  });

  it('does not end a program that closes CONTROL_FD instead of an outcome, unless it saves in another way', async (t) => {
    const script = `trap 'echo saved' USR1; echo '{"status":"active"}' >&3; read -r line <&3; exec 3>&-; ${WAIT}`;
    for (const options of [[], ['--save-command', 'echo 12.pt'], ['--save-signal', 'USR1']]) {
      const run = await startTalk(t, options, script);
      await showsRun(run, { canSave: true });
      const outcome = await perform(run.port, 'shutdown');
      if (options.length > 0) {
        const value = options.includes('USR1') ? `SIGUSR1 sent to process ${run.pid}` : '12.pt';
        assert.deepEqual(outcome, [200, `${value}; SIGTERM`]);
        continue;
      }
      assert.deepEqual(outcome, [500, `shutdown failed: ${closed(run.pid)}`]);
      assert.deepEqual([await run.client.getStatus(), stateOf(run.pid)], [ACTIVE, 'S']);
    }
  });

  it('ends the program only after a successful save, however often it is sent', async (t) => {
    const save = 'echo save >> "$LOG"; until [ -s "$LOG.go" ]; do sleep 0.05; done; . "$LOG.go"';
    const log = join(makeFolder(t), 'log');
    const options = ['--save-command', save];
    const { running, port, client, pid } = await startRun(t, options, ['sleep', '98765'], { LOG: log });
    await perform(port, 'pause');
    const shutdowns = [perform(port, 'shutdown')];
    await until(() => readLines(log).length === 1);
    shutdowns.push(perform(port, 'shutdown'), perform(port, 'shutdown'));
    await until(async () => (await getInfo(port)).commands.length === 4);
    writeFileSync(`${log}.go`, 'echo no; false');
    const failed = 'shutdown failed: the save command ended with exit code 1';
    for (const outcome of shutdowns) assert.deepEqual(await outcome, [500, `${failed} (the program is paused): no`]);
    assert.equal(readLines(log).length, 3);
    assert.deepEqual([await client.getStatus(), stateOf(pid)], [PAUSED, 'T']);
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    assert.deepEqual(await perform(port, 'shutdown'), [500, `${failed}: no`]);
    assert.deepEqual([await client.getStatus(), stateOf(pid)], [ACTIVE, 'S']);
    writeFileSync(`${log}.go`, 'echo ckpt/5.pt');
    assert.deepEqual(await perform(port, 'shutdown'), [200, 'ckpt/5.pt; SIGTERM']);
    assert.equal(await exitCodeOf(running), 128 + 15);
  });

  it('gives its shell commands any time, whatever waits', async (t) => {
    const options = ['--grace', '0.5', '--save-command', 'sleep 2; echo ok', '--resume-command', 'sleep 2'];
    const { running, port } = await startRun(t, options, ['sleep', '98765']);
    await perform(port, 'pause');
    const shutdown = perform(port, 'shutdown');
    await until(async () => (await getInfo(port)).commands.at(-1)?.state === 'running');
    const waiting = perform(port, 'save-state').catch(() => null); // it may not get an answer
    assert.deepEqual(await shutdown, [200, 'ok; SIGTERM']);
    assert.equal(await exitCodeOf(running), 128 + 15);
    await waiting;
  });

  it('sends --save-signal even to a paused program, waits for --grace, and sends SIGTERM', async (t) => {
    const command = handler('trap "echo saving" USR1', 'trap "echo ends; exit 9" TERM');
    const { running, port, pid } = await startRun(t, ['--save-signal', 'USR1', '--grace', '0.4'], command);
    await running.shows(/ready/);
    await perform(port, 'pause');
    assert.deepEqual(await perform(port, 'shutdown'), [200, `SIGUSR1 sent to process ${pid}; exit code 9`]);
    const { stdout, stderr } = await running.ended;
    assert.equal(stdout, 'ready\nsaving\nends\n');
    assert.match(stderr, /SIGUSR1 sent to process \d+; SIGTERM follows within 0\.4 s\n$/);
  });
});

describe('control-run: a save that hangs', suite, () => {
  it('is killed after --grace once another command waits', async (t) => {
    const { port, pid } = await startRun(t, ['--save-command', 'sleep 98765', '--grace', '0.3'], ['sleep', '98765']);
    const saved = perform(port, 'save-state');
    await until(async () => (await getInfo(port)).commands[0]?.state === 'running');
    await sleep(600); // twice the grace: a save may take long while nothing waits
    assert.equal((await getInfo(port)).commands[0]?.state, 'running');
    assert.deepEqual(await perform(port, 'pause'), [200, undefined]);
    const why = 'because another command waits';
    const error = `save-state failed: the save command was killed after 0.3 s of --grace, ${why}`;
    assert.deepEqual(await saved, [500, error]);
    assert.equal(stateOf(pid), 'T');
  });
});

describe('control-run: a signal during a save', suite, () => {
  for (const [command, saves] of [['save-state', 2], ['shutdown', 1]] as const) {
    it(`gives the --save-command of a ${command} --grace, kills it with its child processes, and ends`, async (t) => {
      const log = join(makeFolder(t), 'log');
      const save = 'sleep 98765 & echo $$ $! >> "$LOG"; wait';
      const options = ['--save-command', save, '--grace', '0.3'];
      const { running, port } = await startRun(t, options, ['sleep', '98765'], { LOG: log });
      const outcome = perform(port, command);
      await until(() => readLines(log).length === 1);
      const [process] = readTask(parseInt(readLines(log)[0] as string, 10));
      assert.deepEqual([process?.session, process?.group], [process?.pid, process?.pid], 'Ctrl-C does not reach it');
      await sleep(600); // twice the grace: a save may take long while nothing waits
      assert.equal((await getInfo(port)).commands[0]?.state, 'running');
      running.child.kill('SIGHUP');
      const why = 'because control-run must end';
      const error = `${command} failed: the save command was killed after 0.3 s of --grace, ${why}`;
      assert.deepEqual(await outcome, [500, error]);
      assert.equal(await exitCodeOf(running), 128 + 15);
      assert.equal(readLines(log).length, saves, 'the last save is another one');
      const pids = readLines(log).flatMap((line) => line.split(' ').map(Number));
      await until(() => pids.every((pid) => stateOf(pid) === ''));
    });
  }

  it('ends the program even if the last save fails', async (t) => {
    const { running, port } = await startRun(t, ['--save-command', 'false'], ['sleep', '98765']);
    assert.equal((await perform(port, 'shutdown'))[0], 500);
    for (let count = 0; count < 40; count += 1) running.child.kill('SIGINT'); // more than the queue holds
    assert.equal(await exitCodeOf(running), 128 + 15);
  });
});
