// Signals to control-run itself, without a terminal.

import assert from 'node:assert/strict';
import { constants } from 'node:os';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../../control.ts';
import { perform, start } from '../../helpers.ts';
import { lacks, NAMESPACE } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { BANNER, exitCodeOf, handler, listTree, readTask, shell, startRun, stateOf } from './helpers.ts';

const { ACTIVE, PAUSED } = SystemStatus;
const HARM_MS = 50; // in which a wrong signal would arrive

describe('control-run: signals', { ...LIMIT, concurrency: 3, skip: lacks('Linux') }, () => {
  it('passes on SIGUSR1, SIGUSR2 and SIGWINCH, to a paused program when it is resumed', async (t) => {
    const names = ['USR1', 'USR2', 'WINCH'];
    const traps = names.map((name) => `trap 'echo "got ${name}"' ${name}`);
    const { running, port } = await startRun(t, [], handler(...traps));
    await running.shows(/ready/);
    for (const name of names) {
      running.child.kill(`SIG${name}` as NodeJS.Signals);
      await running.shows(new RegExp(`got ${name}\n`));
    }
    await perform(port, 'pause');
    running.child.kill('SIGUSR1');
    await sleep(HARM_MS);
    assert.equal(running.output().match(/got/g)?.length, 3);
    await perform(port, 'resume');
    await until(() => running.output().match(/got/g)?.length === 4);
  });

  it('passes on what a program handles, to a paused one when it is resumed', async (t) => {
    const names = ['QUIT', 'ABRT', 'ALRM', 'VTALRM', 'IO', 'XCPU', 'STKFLT'] as const;
    const traps = names.map((name) => `trap 'echo "got ${name}"' ${constants.signals[`SIG${name}`]}`);
    const { running, port } = await startRun(t, [], handler(...traps));
    await running.shows(/ready/);
    for (const name of names) {
      running.child.kill(`SIG${name}` as NodeJS.Signals);
      await running.shows(new RegExp(`got ${name}\n`));
    }
    await perform(port, 'pause');
    running.child.kill('SIGQUIT');
    await sleep(HARM_MS);
    assert.equal(running.output().match(/got/g)?.length, names.length);
    await perform(port, 'resume');
    await until(() => running.output().match(/got QUIT/g)?.length === 2);
  });

  it('waits for a program that ends by such a signal, and does not restart it', async (t) => {
    const last = 'sleep 0.2; echo "the last words"; ulimit -c 0; trap - QUIT; kill -QUIT $$';
    for (const [end, code] of [[last, 131], ['exit 131', 131], ['exit 0', 0]] as const) {
      const program = shell(`trap '${end}' QUIT; echo ready; while :; do sleep 0.1; done`);
      const { running } = await startRun(t, ['--restart', 'on-failure'], program);
      await running.shows(/ready/);
      running.child.kill('SIGQUIT');
      assert.equal(await exitCodeOf(running), code);
      assert.equal(running.output().includes('the last words'), end === last);
    }
  });

  it('saves and ends the program at a signal that would end it at once, as at SIGTERM', async (t) => {
    const save = ['--save-command', 'echo saved >&2'];
    for (const name of ['QUIT', 'ABRT', 'ALRM', 'IO', 'PWR']) {
      const { running, port } = await startRun(t, save, ['sleep', '98765']);
      if (name === 'QUIT') await perform(port, 'pause');
      running.child.kill(`SIG${name}` as NodeJS.Signals);
      assert.equal(await exitCodeOf(running), 128 + 15, name);
      assert.match(running.output(), /^saved$/m, name);
    }
    const { running } = await startRun(t, ['--restart', 'on-failure'], shell('exit 3'));
    await running.shows(/restart 1 in 1 s/);
    running.child.kill('SIGQUIT');
    assert.equal(await exitCodeOf(running), 3);
  });

  it('stops with the program at SIGTSTP, and continues it at SIGCONT unless it was paused before', async (t) => {
    const { running: { child }, port, pid, client } = await startRun(t, [], ['sleep', '98765']);
    const own = child.pid as number;
    for (let count = 0; count < 2; count += 1) {
      child.kill('SIGTSTP');
      await until(() => stateOf(own) === 'T');
      assert.equal(stateOf(pid), 'T');
      child.kill('SIGCONT');
      await until(() => stateOf(pid) === 'S');
      assert.equal(await client.getStatus(), ACTIVE);
    }
    await perform(port, 'pause');
    for (const name of ['SIGCONT', 'SIGTSTP', 'SIGCONT'] as const) {
      child.kill(name);
      await until(() => (stateOf(own) === 'T') === (name === 'SIGTSTP'));
      await sleep(HARM_MS);
      assert.equal(stateOf(pid), 'T');
    }
    assert.equal(await client.getStatus(), PAUSED);
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    await until(() => stateOf(pid) === 'S');
    for (let count = 0; count < 10; count += 1) { // it may come at any time
      child.kill('SIGTSTP');
      await sleep(count % 5);
      child.kill('SIGCONT');
      await client.getStatus();
    }
    await until(() => {
      child.kill('SIGCONT'); // one that comes just before control-run stops itself is lost
      return stateOf(own) !== 'T' && stateOf(pid) === 'S';
    }, () => `control-run ${stateOf(own)}, the command ${stateOf(pid)}`);
    assert.equal(await client.getStatus(), ACTIVE);
  });

  it('sends no signal, after SIGKILL, to a new process with the id of a stopped one', {
    skip: lacks('namespace', 'setsid'),
  }, async (t) => {
    const program = `(setsid sh -c 'echo "daemon $$"; exec sleep 98765' &); sleep 98765; :`;
    const script = 'umount -a -l -t cgroup2; "$@" & while read -r line; do eval "$line"; done';
    const controlRun = [process.execPath, 'dist/bin/run.js', '--port', '0', '--grace', '1', ...shell(program)];
    const [command, ...args] = NAMESPACE;
    const running = start(t, command, [...args, ...shell(script, ...controlRun)]);
    const order = (line: string): unknown => running.child.stdin?.write(`${line}\n`);
    await running.shows(BANNER);
    await running.shows(/daemon \d+\n/);
    const pid = Number(/daemon (\d+)/.exec(running.output())?.[1]);
    assert.deepEqual(await perform(Number(BANNER.exec(running.output())?.[2]), 'pause'), [200, undefined]);
    order(`kill -9 ${pid}; while kill -0 ${pid}; do sleep 0.05; done`); // this shell reaps it, as process 1
    const fork = `echo ${pid - 1} > /proc/sys/kernel/ns_last_pid; sleep 87654 & newcomer=$!`;
    order(`run=$!; newcomer=; until [ "$newcomer" = ${pid} ]; do ${fork}; done; kill -9 $run; echo "killed"`);
    await running.shows(/killed/);
    const family = (): string => listTree(running.child.pid as number).flatMap(readTask).map(({ name }) => name).join();
    await sleep(HARM_MS); // while the keeper gets another parent, a look may miss it
    await until(() => family() === 'unshare,sh,sleep', family); // the keeper has ended, and not the newcomer
  });
});
