// control-demo as a user runs it first: it learns, saves, pauses, takes its own commands, ends and continues.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, readdirSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { SystemStatus, VERSION } from '../../../control.ts';
import { Learner } from '../../demo/cartpole.ts';
import { latestIn, readCheckpoint } from '../../demo/checkpoints.ts';
import { getDetail, getInfo, makeFolder, runProgram, until } from '../helpers.ts';
import { lacks } from '../needs.ts';
import {
  CAUSE, LIMIT, perform, plain, save, savedBy, savedIn, shutDown, snapshotOf, startDemo, startPaused,
} from './demo/helpers.ts';
import type { Running } from '../helpers.ts';
import type { Saved } from './demo/helpers.ts';
import type { AddressInfo } from 'node:net';

describe('control-demo', LIMIT, () => {
  it('learns, prints its progress, saves, pauses and resumes until it is shut down', async (t) => {
    const startedAt = performance.now();
    const demo = await startDemo(t, '--seed', '4294967295');
    const [first] = demo.output().split('\n');
    const control = `control it from another terminal: control-console --port ${demo.port}`;
    const address = `web API at http://localhost:${demo.port}`;
    assert.equal(first, `Q-learning on CartPole, seed 4294967295 · ${address} · ${control}`);
    assert.deepEqual((await getInfo(demo.port)).commands, [], 'it is active from the start');

    await perform(demo, 'pause');
    await demo.shows(/paused\n/);
    const line = demo.output().split('\n').at(-2) ?? '';
    assert.match(line, /^episode [\d,]+ · mean return \d+\.\d · [\d,]+ steps\/s · paused$/);
    const { steps, episodes, ...rest } = await save(demo);
    const { since = '' } = rest;
    const most = 20 * (performance.now() - startedAt) + 600; // three slices: it makes up for one, and starts with two
    assert.ok(steps <= most, `${steps} steps, not ${most}`);
    assert.deepEqual({ steps, episodes, ...rest }, savedBy(snapshotOf(4_294_967_295, steps), { since }));
    assert.deepEqual(await save(demo), { steps, episodes, ...rest }, 'it stands still');
    const detail = await detailAt(demo.port, steps);
    const speed = detail['steps per second'] ?? 0;
    const mean = Learner.restore({ steps, episodes, ...rest }).meanReturn;
    assert.deepEqual(Object.entries(detail), [
      ['episode', episodes], ['mean return', Number(mean.toFixed(1))], ['step', steps], ['steps per second', speed],
      ['learningRate', 0.01], ['exploration', 0.01],
    ]);
    assert.ok(speed > 0 && speed === Number(speed.toPrecision(3)), `${speed}`);
    assert.equal((await getInfo(demo.port)).name, 'control-demo');

    await perform(demo, 'resume');
    await until(async () => (await getDetail(demo.port) as { step: number }).step > steps);
    const { value: path = '' } = await perform(demo, 'shutdown');
    const { code, stdout, stderr } = await demo.ended;
    assert.deepEqual([code, stderr], [0, '']);
    const last = readCheckpoint(path) as { steps: number; paused: boolean };
    assert.ok(last.steps > steps && !last.paused);
    const [saved, progress = '', stopped, end] = stdout.split('\n').slice(-4);
    assert.equal(saved, `saved ${path}`);
    assert.match(progress, / · shutting down$/);
    assert.equal(stopped, `stopped at step ${last.steps.toLocaleString('en-US')}; continue with --load ${path}`);
    assert.equal(end, '');
    assert.deepEqual(statusesIn(demo), ['active', 'paused', 'active', 'shutting down']);
    assert.deepEqual(readdirSync(demo.folder).map((name) => join(demo.folder, name)), savedIn(demo));
  });

  it('saves and ends when it is interrupted, and continues as it was', { skip: lacks('Unix') }, async (t) => {
    const first = await startDemo(t, '--seed', '7');
    first.child.kill('SIGTERM');
    assert.deepEqual([(await first.ended).code, (await first.ended).stderr], [0, '']);
    const { steps } = readCheckpoint(latestIn(first.folder) ?? '') as { steps: number };
    const latest = ['--load', 'latest', '--states-dir', first.folder];

    const second = await startDemo(t, ...latest);
    const from = `seed 7, from step ${steps.toLocaleString('en-US')} ·`;
    assert.ok(second.output().includes(from), second.output());
    const { by, reason } = CAUSE;
    await second.client.request('pause', { wait: 300, by, reason });
    const { since } = await getInfo(second.port);
    second.child.kill('SIGTERM');
    assert.equal((await second.ended).code, 0);
    const paused = readCheckpoint(latestIn(first.folder) ?? '') as Saved;
    assert.ok(paused.steps > steps);
    assert.ok(Math.abs(Date.parse(paused.since ?? '') - Date.parse(since)) < 1000, `${paused.since}, not ${since}`);
    const saved = savedBy(snapshotOf(7, paused.steps), { ...CAUSE, since: paused.since ?? '' });
    assert.deepEqual(paused, saved, 'the interruption changes nothing');

    const third = await startDemo(t, ...latest);
    await third.client.waitFor(SystemStatus.PAUSED);
    const { commands, ...info } = await getInfo(third.port);
    assert.deepEqual([info.by, info.reason, info.since], [by, reason, paused.since]);
    assert.deepEqual(commands.map(({ command, state }) => [command, state]), [['pause', 'done']]);
    assert.doesNotMatch(third.output(), / active\n/);
    assert.deepEqual(await save(third), paused);
    await perform(third, 'resume');
    assert.equal((await shutDown(third)).paused, false);
  });

  it('takes commands of its own while paused: evaluate changes nothing, set both values, step one step', async (t) => {
    const demo = await startPaused(t);
    const before = await save(demo);
    const value = { meanReturn: Number(Learner.restore(before).evaluate(50).toFixed(1)), episodes: 50 };
    assert.deepEqual(await post(demo.port, 'evaluate', { episodes: 50 }), [200, value]);
    assert.deepEqual((await post(demo.port, 'evaluate'))[0], 200);
    assert.deepEqual(await save(demo), before);

    const settings = { learningRate: 0.25, exploration: 0.5 };
    assert.deepEqual(await post(demo.port, 'set', settings), [200, settings]);
    assert.deepEqual(await post(demo.port, 'step'), [200, { step: 12_346 }]);
    const { learningRate, exploration } = await detailAt(demo.port, 12_346);
    assert.deepEqual({ learningRate, exploration }, settings);
    const learner = Learner.restore({ ...before, ...settings });
    learner.step();
    assert.deepEqual(await save(demo), savedBy(plain(learner), CAUSE));
    for (const [command, given, error] of [
      ['evaluate', { episodes: 1001 }, 'evaluate: episodes must be an integer from 1 to 1000, got 1001'],
      ['set', { learningRate: 2, exploration: 0 }, 'set: learningRate must be a number from 0 to 1, got 2'],
      ['set', { learningRate: 0 }, 'set: exploration must be a number from 0 to 1, got nothing'],
      ['step', { steps: 2 }, 'step: steps is unknown, not one of []'],
    ] as const) {
      assert.deepEqual(await post(demo.port, command, given), [400, error]);
    }
    assert.equal((await getInfo(demo.port)).status, 'paused');
    await shutDown(demo);
  });

  it('--until ends it as soon as 100 episodes have this mean return', async (t) => {
    const learner = new Learner(6);
    while (learner.episodes < 100 || learner.meanReturn < 60.5) learner.step();
    const folder = makeFolder(t);
    const options = ['--no-web-api', '--seed', '6', '--until', '60.5', '--states-dir', folder];
    const { code, stdout, stderr } = await runProgram(t, 'demo', options);
    assert.deepEqual([code, stderr], [0, '']);
    const path = latestIn(folder) ?? '';
    assert.deepEqual(readCheckpoint(path), savedBy(plain(learner)));
    const what = `step ${learner.steps.toLocaleString('en-US')}, with a mean return of ${learner.meanReturn}`;
    assert.equal(stdout.split('\n').at(-2), `stopped at ${what}; continue with --load ${path}`);
  });

  it('exits with 1 and one line when the port is in use', async (t) => {
    const server = createServer().listen(0, '127.0.0.1');
    await once(server, 'listening');
    t.after(() => server.close());
    const { port } = server.address() as AddressInfo;
    const { code, stdout, stderr } = await runProgram(t, 'demo', ['--port', `${port}`, '--states-dir', makeFolder(t)]);
    assert.deepEqual([code, stdout], [1, '']);
    assert.match(stderr, /^control-demo: Cannot serve at localhost:\d+: .*EADDRINUSE.*; --port 0 picks a free one\n$/);
  });

  it('exits with 2 and one line when an option is wrong, and creates no folder', async (t) => {
    const folder = join(makeFolder(t), 'states');
    const ended = await runProgram(t, 'demo', ['--states-dir', folder, '--keep', '0']);
    const line = "control-demo: --keep must be an integer from 1 to 1000000, got '0'\n";
    assert.deepEqual(ended, { code: 2, stdout: '', stderr: line });
    assert.ok(!existsSync(folder));
  });

  it('--help prints all options, and --version the version', async (t) => {
    const help = await runProgram(t, 'demo', ['--help']);
    assert.deepEqual([help.code, help.stderr], [0, '']);
    for (const option of [
      'host', 'port', 'socket', 'allow-host', 'name', 'no-web-api', 'until', 'seed', 'load', 'save-every', 'states-dir',
      'keep', 'help', 'version',
    ]) {
      assert.match(help.stdout, new RegExp(`^ .*--${option}\\b`, 'm'));
    }
    for (const command of ['evaluate', 'set', 'step']) assert.match(help.stdout, new RegExp(`^  ${command} `, 'm'));
    for (const name of ['Ctrl-C', 'SIGTERM', 'SIGHUP', 'SIGUSR2', 'CONTROL_TOKEN']) {
      assert.ok(help.stdout.includes(name), name);
    }
    assert.ok(help.stdout.split('\n').every((line) => line.length <= 120));
    assert.deepEqual(await runProgram(t, 'demo', ['--version']), { code: 0, stdout: `${VERSION}\n`, stderr: '' });
  });
});

/** Waits for the detail of this step: it may be a tenth of a second old. */
async function detailAt(port: number, step: number): Promise<Record<string, number>> {
  let detail: Record<string, number> = {};
  await until(async () => (detail = await getDetail(port) as Record<string, number>)['step'] === step);
  return detail;
}

/** Sends a command of its own over HTTP and waits for it. Returns the status code, and the value or the error. */
async function post(port: number, command: string, given?: object): Promise<[statusCode: number, outcome: unknown]> {
  const body = given === undefined ? null : JSON.stringify(given);
  const init = { method: 'POST', headers: { Prefer: 'wait=30' }, body };
  const response = await fetch(`http://127.0.0.1:${port}/api/${command}`, init);
  const { value, error } = await response.json() as { value?: unknown; error?: string };
  return [response.status, response.status === 200 ? value : error];
}

/** The statuses of the progress lines without consecutive duplicates: a slow run prints extra lines. */
function statusesIn(demo: Running): string[] {
  const all = [...demo.output().matchAll(/steps\/s · (.*)\n/g)].map((one) => one[1] as string);
  return all.filter((status, index) => status !== all[index - 1]);
}
