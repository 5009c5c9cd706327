// The life of a program: how it starts, what it inherits, how it ends, and when it restarts.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { describe, it } from 'node:test';
import { SystemStatus } from '../../../../control.ts';
import { clientAt, makeFolder, perform, start, startProgram, TOKEN } from '../../helpers.ts';
import { lacks, NAMESPACE } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import {
  BANNER, cgroupsOf, exitCodeOf, handler, keepersOf, killAll, listTasks, processesOf, readLines, readTask, run, shell,
  showsDetail, showsRun, startRun, stateOf, tryRead, WAIT, WAIT_FOR_END,
} from './helpers.ts';
import type { StartedRun } from './helpers.ts';

const { ACTIVE } = SystemStatus;
const O_NONBLOCK = 0o4000; // on Linux
const CONTROL_RUN = `'${process.execPath}' dist/bin/run.js --port 0`;

const suite = { ...LIMIT, concurrency: 3, skip: lacks('Linux') };

describe('control-run: a program', suite, () => {
  it('inherits the standard streams, which stay blocking, CONTROL_FD, and no other file', async (t) => {
    const script = 'for fd in 0 1 2; do cat /proc/self/fdinfo/$fd; done; echo --; ls /proc/self/fd';
    const pipeline = `cat | ${CONTROL_RUN} sh -c 'read line; ${script}' 2>&1 | cat`; // for Node, pipes are sockets
    const running = start(t, 'sh', ['-c', `ls /proc/self/fd; echo --; ${pipeline}`]);
    await running.shows(/web API/);
    running.child.stdin?.end('line\n'); // now that control-run may have done harm
    const { stdout } = await running.ended;
    const flags = [...stdout.matchAll(/^flags:\s+(\d+)$/gm)].map(([, octal]) => parseInt(octal as string, 8));
    assert.deepEqual(flags.map((flag) => flag & (O_NONBLOCK | 3)), [0, 1, 1], stdout); // read, write
    const [without = [], , within = []] = stdout.split('--\n').map((lines) => lines.trim().split('\n'));
    assert.deepEqual(without.filter((fd) => !within.includes(fd)), []);
    assert.equal(within.length, without.length + 1, stdout); // both contain that of the folder
  });

  it('shares its streams with other commands of a shell', async (t) => {
    const path = join(makeFolder(t), 'result');
    const runs = `sh -c 'echo ran >> "$1"; exit 6' sh '${path}'`;
    for (const [what, script, stdout, stderr] of [
      ['SIGPIPE ends it', `{ ${CONTROL_RUN} yes; echo "exit code $?" >&2; } | head -n 1`, 'y\n', /\nexit code 141\n$/],
      ['it leaves input unread', `printf 'a\\nb\\n' | { ${CONTROL_RUN} sh -c 'read line; echo $line'; cat; }`,
        'a\nb\n', /^/],
      ['it runs even if control-run cannot print', `${CONTROL_RUN} ${runs} <&- >&- 2>&-; echo "exit code $?"`,
        'exit code 6\n', /^$/],
    ] as const) {
      const ended = await start(t, 'sh', ['-c', script]).ended;
      assert.equal(ended.stdout, stdout, what);
      assert.match(ended.stderr, stderr, what);
    }
    assert.deepEqual(readLines(path), ['ran']);
  });

  it('inherits the folder and the environment, without token and name, with what control-run adds', async (t) => {
    const folder = makeFolder(t);
    const inner = `'${process.execPath}' "$0" --port 0 --save-command 'env >&2' -- sh -c 'pwd; umask; env; read line'`;
    const variables = { CONTROL_FD: '99', CONTROL_RUN: 'of another control-run', SPACES: ' a  b ' };
    const environment = { ...variables, CONTROL_TOKEN: TOKEN, CONTROL_NAME: 'of this one alone' };
    const script = `cd '${folder}' && umask 027 && exec ${inner}`;
    const running = start(t, 'sh', ['-c', script, resolve('dist/bin/run.js')], environment);
    await running.shows(/^SPACES= a {2}b $/m);
    await running.shows(BANNER);
    for (const pid of processesOf(running)) assert.ok(!readFileSync(`/proc/${pid}/environ`, 'utf8').includes(TOKEN));
    const lines = listTasks().map(({ pid }) => tryRead(`/proc/${pid}/cmdline`));
    const [, mark = assert.fail()] = /^CONTROL_RUN=\d+-([0-9a-f]{32})$/m.exec(running.output()) ?? [];
    assert.ok(!lines.some((line) => line.includes(mark)), 'every user can read these, and could set the variable');
    const address = { host: '127.0.0.1', port: Number(BANNER.exec(running.output())?.[2]) };
    assert.equal((await clientAt(t, address).request('pause')).ok, false);
    const reply = await clientAt(t, address, TOKEN).request('save-state', { wait: 60 });
    assert.equal(reply.ok, true);
    running.child.stdin?.end('\n');
    const { code, stdout, stderr } = await running.ended;
    assert.equal(code, 0);
    assert.match(stdout, new RegExp(`^${folder}\n0?027\n`));
    assert.match(stdout, /^CONTROL_FD=3$/m);
    assert.match(stdout, /^CONTROL_RUN_SOCKET=\/.*\/control-run-[0-9a-f]{12}\/ask$/m);
    assert.deepEqual(stdout.match(/^CONTROL_\w+/gm)?.sort(), [
      'CONTROL_DIR', 'CONTROL_FD', 'CONTROL_RUN', 'CONTROL_RUN_SOCKET',
    ]);
    assert.match(stderr, /^SPACES=/m);
    assert.doesNotMatch(stdout + stderr, new RegExp(`${TOKEN}|CONTROL_TOKEN|CONTROL_NAME`));
  });

  it('is reported with the number, memory and CPU time of its processes, also while paused', async (t) => {
    const before = Date.now();
    const count = 'i=0; while [ $i -lt 50000 ]; do i=$((i + 1)); done';
    const fill = 'dd if=/dev/zero bs=16M count=1 2>/dev/null | sleep 98765'; // it waits with 16 MiB to write
    const script = `sh -c '${count}'; echo counted; ${fill}`;
    const run = await startRun(t, [], shell(script, 'x'.repeat(300)));
    await run.running.shows(/counted/);
    await until(() => processesOf(run.running).length === 3);
    await until(async () => Number((await showsRun(run, { processes: 3 }))['memory MiB']) >= 16);
    await perform(run.port, 'pause');
    assert.deepEqual(Object.keys(await showsDetail(run, {})), ['run']);
    const { canSave: _, ...detail } = await showsRun(run, { processes: 3 });
    const names = ['pid', 'command', 'started', 'processes', 'CPU seconds', 'memory MiB'];
    assert.deepEqual(Object.keys(detail), names);
    assert.equal(detail['command'], `sh -c ${script} sh ${'x'.repeat(300)}`.slice(0, 200) + '…');
    const startedAt = Date.parse(String(detail['started']));
    assert.ok(before <= startedAt && startedAt <= Date.now());
    assert.ok(Number(detail['CPU seconds']) > 0, 'includes the child that has ended');
    assert.ok(Number(detail['memory MiB']) < 100, `${detail['memory MiB']} MiB`);
  });
});

describe('control-run: the end of a program', suite, () => {
  it('leaves nothing stopped, even during a pause', async (t) => {
    const { running, port, pid } = await startRun(t, [], shell('sleep 98765 & sleep 98765; :'));
    await until(() => processesOf(running).length === 3);
    const left = processesOf(running).filter((one) => one !== pid);
    const pausing = perform(port, 'pause').catch(() => null); // it may not arrive
    await until(() => left.some((one) => stateOf(one) === 'T'));
    process.kill(pid, 'SIGKILL');
    await pausing;
    assert.equal(await exitCodeOf(running), 128 + 9);
    await until(() => left.every((one) => stateOf(one) === 'S'), () => left.map(stateOf).join());
    killAll(left);
  });

  for (const exitCode of [2, 0]) {
    it(`leaves background processes running, and no cgroup; exit code ${exitCode}`, {
      skip: lacks('setsid'),
    }, async (t) => {
      const { running, pid } = await startRun(t, [], shell('(setsid sleep 98765 &); read -r code; exit $code'));
      const daemon = (): number[] => processesOf(running).filter((one) => one !== pid);
      await until(() => daemon().flatMap(readTask).some(({ name }) => name === 'sleep'));
      const [left = assert.fail()] = daemon();
      running.child.stdin?.end(`${exitCode}\n`);
      assert.equal(await exitCodeOf(running), exitCode);
      await until(() => cgroupsOf(running).length === 0);
      const line = `sh[${pid}] has ended and left processes without control, such as process ${left} (sleep): ` +
        'run a server in the foreground'; // it cannot be meant if the program has failed
      if (exitCode === 0) await until(() => running.output().endsWith(`\ncontrol-run: ${line}\n`), running.output);
      else assert.doesNotMatch(running.output(), /without control/);
      assert.equal(stateOf(left), 'S');
      killAll([left]);
    });
  }

  for (const [what, options] of [['', []], ['with --restart, ', ['--restart', 'on-failure']]] as const) {
    it(`${what}does so even during --pause-command`, async (t) => {
      const pause = `kill -KILL $CONTROL_PID; ${WAIT_FOR_END}`;
      const { running, port, pid } = await startRun(t, ['--pause-command', pause, ...options], shell(WAIT));
      await until(() => processesOf(running).length === 2);
      const left = processesOf(running).filter((one) => one !== pid);
      t.after(() => killAll(left));
      const outcome = await perform(port, 'pause').catch(() => null); // it may not arrive
      if (options.length > 0) { // it may restart soon
        assert.deepEqual(outcome, [500, `pause failed: sh[${pid}] has ended: SIGKILL`]);
      } else {
        assert.equal(await exitCodeOf(running), 128 + 9);
        await until(() => keepersOf(running).length === 0);
      }
      assert.deepEqual(left.map(stateOf), ['S']);
      killAll(left);
    });
  }
});

describe('control-run: how a program ended', suite, () => {
  const ENDS: readonly [
    by: string, reason: string, exitCode: number, signal: string | null, cause: (run: StartedRun) => unknown,
  ][] = [
    ['itself', 'exit code 0', 0, null, ({ running }) => running.child.stdin?.end('0\n')],
    ['itself', 'exit code 7', 7, null, ({ running }) => running.child.stdin?.end('7\n')],
    ['itself', 'SIGKILL', 137, 'SIGKILL', ({ pid }) => process.kill(pid, 'SIGKILL')],
    ['itself', 'SIGTERM', 143, 'SIGTERM', ({ running }) => running.child.kill('SIGTERM')],
    ['ana@laptop', 'lunch', 143, 'SIGTERM', ({ client }) => {
      return client.request('shutdown', { by: 'ana@laptop', reason: 'lunch' });
    }],
  ];
  for (const [by, reason, exitCode, signal, cause] of ENDS) {
    it(`is reported to watching clients: ${reason} by ${by}`, async (t) => {
      const run = await startRun(t, [], shell('read -r code; exit $code'));
      const text = startProgram(t, 'client', ['watch', '--port', `${run.port}`]);
      const json = startProgram(t, 'client', ['watch', '--port', `${run.port}`, '--json']);
      await Promise.all([text.shows(/  active\n/), json.shows(/"active"/)]);
      await cause(run);
      await text.shows(new RegExp(`  offline: ${by === 'itself' ? reason : `shutdown by ${by}: ${reason}`}\n`));
      await json.shows(/"offline".*\n/);
      const lines = json.output().trimEnd().split('\n').map((line) => JSON.parse(line));
      const { value } = lines.find(({ command, state }) => command === 'shutdown' && state === 'done');
      const last = lines.at(-1);
      assert.deepEqual(
        [value.exitCode, value.signal, last.status, last.by, last.reason, last.error],
        [exitCode, signal, 'offline', by, reason, undefined],
      );
    });
  }
});

describe('control-run: --restart', suite, () => {
  it('does not restart a program that SIGTERM has ended', async (t) => {
    const ended = await run(t, ['--restart', 'on-failure'], shell('kill $$'));
    assert.deepEqual(ended, { code: 128 + 15, stdout: '', stderr: '' });
  });

  it('waits longer each time, takes all commands meanwhile, and leaves background processes alone', async (t) => {
    const options = ['--restart', 'on-failure', '--save-command', 'echo no'];
    const { running, port, pid, client } = await startRun(t, options, shell('sleep 98765 & wait'));
    const isChild = (one: number): boolean => readTask(one)[0]?.name === 'sleep';
    await until(() => processesOf(running).some(isChild));
    const [left = assert.fail()] = processesOf(running).filter(isChild);
    t.after(() => killAll([left]));
    process.kill(pid, 'SIGKILL');
    await running.shows(/sh\[\d+\] ended with SIGKILL: restart 1 in 1 s\n/);
    const end = { ended: 'SIGKILL', exitCode: 137, signal: 'SIGKILL' };
    await showsRun({ port }, { restarts: 1, 'last end': 'SIGKILL', ...end });
    assert.deepEqual(await perform(port, 'pause'), [200, undefined]);
    assert.deepEqual(await perform(port, 'save-state'), [500, `save-state failed: sh[${pid}] has ended: SIGKILL`]);
    running.child.kill('SIGUSR2');
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    await running.shows(/(web API [^]*){2}/);
    await showsRun({ port }, { restarts: 1, 'last end': 'SIGKILL', ended: undefined });
    const next = Number((await showsRun({ port }, {}))['pid']);
    assert.deepEqual(await perform(port, 'pause'), [200, undefined]);
    assert.deepEqual([stateOf(next), await client.getStatus()], ['T', SystemStatus.PAUSED]);
    process.kill(next, 'SIGKILL');
    await running.shows(/sh\[\d+\] ended with SIGKILL: restart 2 in 2 s\n/);
    assert.deepEqual(await perform(port, 'shutdown'), [200, 'SIGKILL']);
    assert.equal(await exitCodeOf(running), 128 + 9);
    await until(() => cgroupsOf(running).length === 0);
    assert.equal(stateOf(left), 'S');
    killAll(processesOf(running));
  });

  it('keeps a program paused that ends during a failing resume, and its background processes running', async (t) => {
    const path = join(makeFolder(t), 'state');
    const options = ['--restart', 'on-failure', '--state', path, '--resume-command', `${WAIT_FOR_END}; exit 1`];
    const { running, port, pid, client } = await startRun(t, options, handler("trap 'exit 7' USR1"));
    await running.shows(/ready/);
    await until(() => processesOf(running).length === 2);
    const left = processesOf(running).filter((one) => one !== pid);
    t.after(() => killAll(left));
    assert.equal((await client.request('pause', { by: 'ana', reason: 'lunch', wait: 60 })).ok, true);
    process.kill(pid, 'SIGUSR1'); // delivered when it continues
    assert.equal((await client.request('resume', { by: 'bob', wait: 60 })).ok, false);
    assert.deepEqual(left.map(stateOf), ['S']);
    const { status, by, reason, holds } = await client.getInfo() ?? assert.fail();
    assert.deepEqual([status, by, reason], ['paused', 'ana', 'lunch']);
    assert.deepEqual(JSON.parse(readFileSync(path, 'utf8')), { status, holds });
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    await running.shows(/(ready[^]*){2}/);
    assert.equal(await client.getStatus(), ACTIVE);
    const next = processesOf(running).filter((one) => !left.includes(one));
    assert.deepEqual([...new Set(next.map(stateOf))], ['S']);
    killAll(left);
  });

  it('ends if the command no longer exists', async (t) => {
    const script = join(makeFolder(t), 'script');
    writeFileSync(script, '#!/bin/sh\nrm "$0"\nexit 1\n', { mode: 0o755 });
    const { code, stderr } = await run(t, ['--restart', 'on-failure'], [script]);
    assert.equal(code, 127);
    assert.match(stderr, new RegExp(`restart 1 in 1 s\ncontrol-run: cannot start '${script}': not found\n$`));
  });
});

describe('control-run: as process 1', { ...suite, skip: lacks('Linux', 'namespace') }, () => {
  it('warns that it does not reap orphans, and takes commands and signals', async (t) => {
    const [command, ...args] = NAMESPACE;
    const controlRun = [process.execPath, 'dist/bin/run.js', '--port', '0', ...handler('trap "exit 6" TERM')];
    const { shows, output, ended } = start(t, command, [...args, ...controlRun]);
    await shows(/^ready$/m);
    await shows(BANNER);
    const port = Number(BANNER.exec(output())?.[2]);
    assert.deepEqual(await perform(port, 'pause'), [200, undefined]);
    assert.deepEqual(await perform(port, 'shutdown'), [200, 'exit code 6']);
    const { code, stderr } = await ended;
    assert.equal(code, 6);
    const warning = 'process 1 must reap orphans, and control-run does not: start the container with --init';
    assert.ok(stderr.startsWith(`control-run: ${warning}\n`), stderr);
  });
});
