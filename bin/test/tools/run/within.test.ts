// What control-run does in the middle of a step: it says where the program is, and stops or kills it.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import { getInfo, makeFolder, perform } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { exitCodeOf, processesOf, PYTHON, readTask, shell, showsRun, startRun, stateOf } from './helpers.ts';
import { accepts, order, startListener, talks } from './talk.ts';
import type { WebApiClient } from '../../../../control.ts';

const suite = { ...LIMIT, concurrency: 3, skip: lacks('Linux') };

/** Asks until there is a response in time: a busy machine may be late. */
async function stackOf(client: WebApiClient): Promise<string[]> {
  let stack: unknown;
  await until(async () => (stack = (await client.request('stack')).body['stack']) !== undefined);
  return stack as string[];
}

/** Pauses a program within some seconds. Returns the value or the error of the pause. */
async function freeze(client: WebApiClient, within: number): Promise<unknown> {
  const { body } = await client.request('pause', { within, wait: 60 });
  return body['value'] ?? body['error'] ?? body['state'];
}

describe('control-run: GET /api/stack', suite, () => {
  it('says what each process does', async (t) => {
    const { client, port, pid, running } = await startRun(t, [], shell('while :; do :; done & sleep 98765 & wait'));
    const forms = [/^sh \(\d+\): sleeps/, /^sh \(\d+\): runs, \d+ % CPU in \d\.\d s$/, /^sleep \(\d+\): sleeps/];
    let stack: string[] = [];
    const isComplete = (): boolean => forms.every((form) => stack.some((line) => form.test(line)));
    await until(async () => (stack = await stackOf(client)).length === 3 && isComplete(), () => stack.join('\n'));
    assert.ok(stack.some((line) => line.startsWith(`sh (${pid}): sleeps`)));
    await perform(port, 'pause');
    for (const line of await stackOf(client)) assert.match(line, /^\w+ \(\d+\): is stopped, 0 % CPU/);
    running.child.kill('SIGTERM');
    await running.ended;
  });

  it('is empty while the program waits for a restart', async (t) => {
    const { client, running } = await startRun(t, ['--restart', 'on-failure'], shell('exit 3'));
    await running.shows(/restart 2 in 2 s/);
    assert.deepEqual(await stackOf(client), []);
  });

  it('has the frames of a Python program, also in native code, after a fork', { skip: lacks('python3') }, async (t) => {
    const folder = makeFolder(t);
    writeFileSync(join(folder, 'train.py'), `
import os, re, sys, time
from control import Control
control = Control()
if os.fork() == 0: time.sleep(98765)
control.say(detail={'epoch': 0})
def parse(line): return re.match(r'^(\\w+\\s?)*$', line)
def step(): parse('word ' * 40 + '!')
step()
`);
    const run = await startRun(t, ['--grace', '0.3'], [PYTHON, join(folder, 'train.py')], { PYTHONPATH: 'bin/run' });
    await talks(run);
    let stack: string[] = [];
    const names = (): string => stack.map((line) => line.replace(/ .*/, '')).join(' ');
    const place = ` (${join(folder, 'train.py')}:`;
    await until(async () => {
      stack = await stackOf(run.client);
      return /match parse step <module> python\S* python\S*$/.test(names());
    }, () => stack.join('\n'));
    assert.deepEqual(stack.slice(1, 4), [`parse${place}7)`, `step${place}8)`, `<module>${place}9)`]);
    assert.equal(await freeze(run.client, 0), 'stopped by SIGSTOP');
    assert.match((await stackOf(run.client)).join(), /^python\S* \(\d+\): is stopped/);
  });

  it('has the frames of a process that shows them, and sends it no signal that it may not survive', async (t) => {
    const { client, pid } = await startRun(t, [], shell('while :; do :; done'));
    const [, path = ''] = /CONTROL_RUN_SOCKET=([^\0]*)/.exec(readFileSync(`/proc/${pid}/environ`, 'utf8')) ?? [];
    let answer = '';
    const register = (way: object): Socket => {
      const socket = connect(path).setEncoding('utf8');
      t.after(() => socket.destroy());
      socket.write(`${JSON.stringify({ stack: way })}\n`);
      return socket.on('data', (line) => {
        assert.equal(line, '{"look":true}\n');
        socket.write(answer);
      });
    };
    const busy = /^sh \(\d+\): runs, \d+ % CPU in \d\.\d s$/;
    const shows = async (...expected: string[]): Promise<void> => {
      await until(async () => isDeepStrictEqual((await stackOf(client)).slice(0, -1), expected));
      assert.match((await stackOf(client)).at(-1) as string, busy);
    };
    const others = [{ pid: process.pid, signal: 15 }, { signal: 'x' }, { pid: [pid], signal: [9] }];
    for (const way of [{ pid, signal: 9 }, { pid, signal: 63 }, ...others]) {
      register(way);
      answer = '{"stack":["parse (train.py:7)","",7]}\nno JSON\n';
      await shows('parse (train.py:7)', '7');
      answer = '';
      await shows();
      await sleep(100); // no younger one is reused
      await shows();
    }
    const socket = register({});
    for (const text of ['{"stack":7}\n', '\0', `${'x'.repeat(100_000)}\n`]) {
      answer = text;
      await shows();
    }
    socket.destroy();
    await shows();
  });
});

describe('control-run: a pause with a limit', suite, () => {
  it('stops a program that takes commands itself, and has not paused by then', async (t) => {
    const talk = await startListener(t, ['--grace', '600']);
    const pause = freeze(talk.client, 1);
    const id = await talk.gets('pause');
    assert.equal(await pause, 'stopped by SIGSTOP');
    assert.equal(stateOf(talk.pid), 'T');
    assert.equal((await getInfo(talk.port)).status, 'paused');
    await showsRun(talk, { frozen: true });
    const resume = perform(talk.port, 'resume');
    const resumeId = await talk.gets('resume');
    await showsRun(talk, { frozen: undefined });
    talk.say({ done: id }, { done: resumeId });
    assert.deepEqual(await resume, [200, undefined]);
    const second = freeze(talk.client, 60);
    talk.say({ done: await talk.gets('pause') });
    assert.equal(await second, 'done', 'in time');
    assert.notEqual(stateOf(talk.pid), 'T');
    await showsRun(talk, { frozen: undefined });
  });

  it('does not wait for an own command or a resume, but for a save', async (t) => {
    const talk = await startListener(t, ['--grace', '600']);
    talk.say({ accepts: { evaluate: {} } });
    await accepts(talk, 'evaluate');
    const evaluate = order(talk.port, 'evaluate');
    await talk.gets('evaluate', { arguments: {} });
    assert.equal(await freeze(talk.client, 0), 'stopped by SIGSTOP');
    const late = `sh[${talk.pid}] did not respond within the limit of a pause`;
    assert.deepEqual(await evaluate, [500, `evaluate failed: ${late}`]);
    const resume = perform(talk.port, 'resume');
    await talk.gets('resume');
    assert.notEqual(stateOf(talk.pid), 'T');
    assert.equal(await freeze(talk.client, 0), 'stopped by SIGSTOP');
    assert.deepEqual(await resume, [500, `resume failed: ${late}`]);
    const again = perform(talk.port, 'resume');
    talk.say({ done: await talk.gets('resume') });
    assert.deepEqual(await again, [200, undefined]);
    const save = perform(talk.port, 'save-state');
    const id = await talk.gets('save-state');
    const pause = freeze(talk.client, 0);
    await until(async () => (await getInfo(talk.port)).commands.at(-1)?.command === 'pause');
    await talk.taken();
    assert.notEqual(stateOf(talk.pid), 'T');
    talk.say({ done: id, value: 'saved' });
    assert.deepEqual(await save, [200, 'saved']);
    assert.equal(await pause, 'stopped by SIGSTOP');
    assert.equal(talk.complaints(), '');
  });

  it('ends a pause command that takes longer', async (t) => {
    const { client, pid } = await startRun(t, ['--pause-command', 'sleep 98765'], ['sleep', '98765']);
    assert.equal(await freeze(client, 1), 'the pause command was killed');
    assert.equal(stateOf(pid), 'T');
  });

  it('does not reach a later pause', async (t) => {
    const talk = await startListener(t, ['--grace', '600']);
    const first = freeze(talk.client, 1);
    const id = await talk.gets('pause');
    assert.equal(await first, 'stopped by SIGSTOP');
    const resume = perform(talk.port, 'resume');
    talk.say({ done: id }, { done: await talk.gets('resume') });
    await resume;
    const later = perform(talk.port, 'pause');
    const laterId = await talk.gets('pause');
    await talk.taken();
    await talk.is('pausing');
    talk.say({ done: laterId });
    assert.deepEqual(await later, [200, undefined]);
  });
});

describe('control-run: a shutdown with a limit', suite, () => {
  const DEAF = shell('trap "" TERM; sleep 98765 & while :; do wait; done');
  for (const [what, options, before, within] of [
    ['ignores SIGTERM', [], [], 1],
    ['is stopped', [], ['pause'], 0],
    ['has not saved', ['--save-command', 'sleep 98765'], ['save-state'], 1],
    ['has not saved for another shutdown', ['--save-command', 'sleep 98765'], ['shutdown'], 1],
  ] as const) {
    it(`kills a program that ${what}, with its processes, and does not restart it`, async (t) => {
      const all = ['--grace', '600', '--restart', 'on-failure', ...options];
      const { running, client, port } = await startRun(t, all, DEAF);
      await until(() => processesOf(running).some((one) => readTask(one)[0]?.name === 'sleep')); // it is deaf by then
      for (const command of before) await client.request(command);
      const response = await fetch(`http://127.0.0.1:${port}/api/shutdown?within=${within}`, {
        method: 'POST', headers: { Prefer: 'wait=60' },
      });
      const { error } = await response.json() as { error: string };
      const expected = 'shutdown failed: the limit of a shutdown has passed: the program was killed';
      assert.deepEqual([response.status, error], [500, expected]);
      assert.equal(await exitCodeOf(running), 128 + 9);
      assert.match(running.output(), /sh\[\d+\] did not end within the limit of the shutdown: killed\n/);
      assert.deepEqual(processesOf(running), []);
    });
  }
});
