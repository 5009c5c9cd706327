// The main uses of control-run.

import assert from 'node:assert/strict';
import { existsSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { SystemStatus } from '../../../control.ts';
import { clientAt, getInfo, makeFolder, perform, runProgram, startProgram, startServer } from '../helpers.ts';
import { lacks } from '../needs.ts';
import { LIMIT, until } from '../wait.ts';
import {
  exitCodeOf, handler, isTidy, processesOf, readLines, run, shell, showsRun, startRun, stateOf, WAIT,
} from './run/helpers.ts';

const { ACTIVE, PAUSED, OFFLINE } = SystemStatus;

describe('control-run', { ...LIMIT, concurrency: 3, skip: lacks('Linux') }, () => {
  it('leaves the standard streams to the program, prints one line on stderr, and exits like the program', async (t) => {
    const command = shell('echo out; echo err >&2; cat; exit 7');
    const { code, stdout, stderr } = await runProgram(t, 'run', ['--port', '0', ...command], 'in');
    assert.deepEqual([code, stdout], [7, 'out\nin']);
    assert.match(stderr, /^(err\n)?control-run: sh\[\d+\] · web API at http:\/\/localhost:\d+\n(err\n)?$/);
    assert.equal(stderr.split('\n').length, 3);
  });

  it('exits with 125 if its port is in use, names the system that uses it, and starts nothing', async (t) => {
    const path = join(makeFolder(t), 'started');
    const { port, address: { host } } = await startServer(t, { name: 'cart\x1b[2Jpole', host: '127.0.0.1' });
    const { code, stderr } = await startProgram(t, 'run', ['--port', `${port}`, '--host', host, 'touch', path]).ended;
    const user = `cart[2Jpole (process ${process.pid})`;
    const message = `Cannot serve at 127.0.0.1:${port}: it is in use by ${user}; --port 0 picks a free one`;
    assert.deepEqual([code, stderr, existsSync(path)], [125, `control-run: ${message}\n`, false]);
  });

  it('pauses and resumes all processes of a program, and reports them', async (t) => {
    const run = await startRun(t, [], shell('sleep 98765 & sleep 98765; :'));
    await until(() => processesOf(run.running).length === 3);
    const pids = processesOf(run.running);
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    assert.deepEqual(pids.map(stateOf), ['T', 'T', 'T']);
    assert.equal(await run.client.getStatus(), PAUSED);
    assert.equal((await getInfo(run.port)).name, 'sh');
    await showsRun(run, { pid: run.pid, command: 'sh -c sleep 98765 & sleep 98765; : sh', processes: 3 });
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined], 'already paused');
    for (let count = 0; count < 2; count += 1) {
      assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
      await until(() => pids.every((pid) => stateOf(pid) === 'S'));
      assert.equal(await run.client.getStatus(), ACTIVE);
    }
  });

  it('saves with --save-command, also while paused, and before a shutdown', async (t) => {
    const save = 'echo noise; echo to stderr >&2; echo "ckpt/$CONTROL_PID.pt"';
    const { running, port, pid, client } = await startRun(t, ['--save-command', save], ['sleep', '98765']);
    assert.deepEqual(await perform(port, 'save-state'), [200, `ckpt/${pid}.pt`]);
    await perform(port, 'pause');
    assert.deepEqual(await perform(port, 'save-state'), [200, `ckpt/${pid}.pt`]);
    assert.deepEqual([await client.getStatus(), stateOf(pid)], [PAUSED, 'T']);
    const offline = client.waitFor(OFFLINE);
    assert.deepEqual(await perform(port, 'shutdown'), [200, `ckpt/${pid}.pt; SIGTERM`]);
    assert.equal(await exitCodeOf(running), 128 + 15);
    await offline;
    assert.match(running.output(), /^(to stderr\n){3}$/m);
    assert.doesNotMatch(running.output(), /noise|ckpt/);
    await isTidy(running);
  });

  it('saves with --save-signal, and lets the program end by itself after the save of a shutdown', async (t) => {
    const command = handler('trap "echo saved" USR1', 'trap "exit 8" USR2');
    const { running, port, pid } = await startRun(t, ['--save-signal', 'USR1', '--grace', '1000'], command);
    await running.shows(/ready/);
    const value = `SIGUSR1 sent to process ${pid}`;
    assert.deepEqual(await perform(port, 'save-state'), [200, value]);
    await running.shows(/^saved\n/m);
    const shutdown = perform(port, 'shutdown');
    await running.shows(/^saved\nsaved\n/m);
    running.child.kill('SIGUSR2'); // passed on
    assert.deepEqual(await shutdown, [200, `${value}; exit code 8`]);
    assert.equal(await exitCodeOf(running), 8);
  });

  it('sends SIGTERM to all processes, and SIGKILL after --grace to the rest', async (t) => {
    const script = `sh -c 'trap "" TERM; echo ready; ${WAIT}' & trap "exit 33" TERM; wait`;
    const { running, port } = await startRun(t, ['--grace', '0.5'], shell(script));
    await running.shows(/ready/);
    assert.deepEqual(await perform(port, 'shutdown'), [200, 'exit code 33']);
    assert.equal(await exitCodeOf(running), 33);
    assert.match(running.output(), /\ncontrol-run: sh\[\d+\] did not end within 0\.5 s: killed\n$/);
    await isTidy(running);
  });

  it('shuts down at SIGTERM, also while paused', async (t) => {
    const go = join(makeFolder(t), 'go');
    const save = `echo saving >&2; until [ -e '${go}' ]; do sleep 0.05; done`;
    const { running, port } = await startRun(t, ['--save-command', save], handler('trap "exit 3" TERM'));
    await running.shows(/ready/);
    await perform(port, 'pause');
    running.child.kill('SIGTERM');
    await running.shows(/saving/);
    await until(async () => (await getInfo(port)).status === 'shutting down');
    const command = (await getInfo(port)).commands.at(-1);
    assert.deepEqual([command?.command, command?.by, command?.reason], ['shutdown', 'itself', 'SIGTERM']);
    writeFileSync(go, '');
    assert.equal(await exitCodeOf(running), 3);
  });

  it('leaves nothing behind when it is killed while the program is paused', async (t) => {
    const script = `trap 'echo ends; exit' TERM; sleep 98765 & echo ready; ${WAIT}`;
    const { running, port } = await startRun(t, ['--grace', '1'], shell(script));
    await running.shows(/ready/);
    await perform(port, 'pause');
    running.child.kill('SIGKILL');
    await running.shows(/ends/);
    await isTidy(running);
  });

  it('restarts a program that fails, with --restart', async (t) => {
    const log = join(makeFolder(t), 'log');
    const { code, stderr } = await run(t, ['--restart', 'on-failure:1'], shell('echo run >> "$1"; exit 3', log));
    assert.equal(code, 3);
    assert.deepEqual(readLines(log), ['run', 'run']);
    const lines = stderr.replaceAll(/\[\d+\]/g, '').split('\n').filter((line) => !line.includes('web API'));
    const line = 'control-run: sh ended with exit code 3:';
    assert.deepEqual(lines, [`${line} restart 1 in 1 s`, `${line} no more restarts`, '']);
  });

  it('listens in a folder, on a socket named after the program and its own process id', async (t) => {
    const folder = join(makeFolder(t), 'sockets'); // control-run creates the folder
    const running = startProgram(t, 'run', ['--socket', `${folder}/`, 'cat']);
    const socketPath = join(folder, `cat-${running.child.pid}.sock`);
    await running.shows(/web API at .*\n/);
    assert.ok(running.output().endsWith(`web API at unix:${socketPath}\n`), running.output());
    assert.deepEqual(readdirSync(folder).map((name) => join(folder, name)), [socketPath]);
    const reply = await clientAt(t, { host: '', port: 0, socketPath }).request('shutdown', { wait: 60 });
    assert.equal(reply.ok, true);
    assert.equal(await exitCodeOf(running), 128 + 15);
    assert.deepEqual(readdirSync(folder), []);
  });
});
