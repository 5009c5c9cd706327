// control-demo as a user runs it first: it learns, saves, pauses, runs its own commands, ends and continues.

import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { SystemStatus } from '../../../control.ts';
import { Learner } from '../../demo/learner.ts';
import { getDetail, LIMIT, makeFolder, runProgram, until } from '../helpers.ts';
import { lacks } from '../needs.ts';
import {
  checkpointOf, pathsIn, perform, plain, read, save, savedBy, shutDown, startDemo, startPaused, stateAt,
} from './demo/helpers.ts';

const UNIX = { skip: lacks('Unix') };

describe('control-demo', LIMIT, () => {
  it('learns, prints its progress, saves, pauses and resumes until it is shut down', async (t) => {
    const startedAt = performance.now();
    const demo = await startDemo(t, makeFolder(t), '--seed', '4294967295');
    const url = `http://localhost:${demo.port}`;
    const control = `web API at ${url} · control it from another terminal: control-console ${url}`;
    assert.ok(demo.output().startsWith(`Q-learning on CartPole, seed 4294967295\n${control}\n`), demo.output());

    assert.equal(await perform(demo, 'pause'), undefined);
    await demo.shows(/^episode [\d,]+ · mean return \d+\.\d · step [\d,]+ · paused$/m);
    const { holds, format, version, ...state } = await save(demo) as any;
    assert.ok(state.steps <= 20 * (performance.now() - startedAt) + 200, `${state.steps} steps are too many`);
    assert.deepEqual([holds, format, version], [(await demo.client.getInfo())?.holds, 'control-demo', 4]);
    assert.deepEqual(state, stateAt(4_294_967_295, state.steps));

    await perform(demo, 'resume');
    await until(async () => (await getDetail(demo.port) as { step: number }).step > state.steps);
    const path = await perform(demo, 'shutdown');
    const { code, stdout, stderr } = await demo.ended;
    assert.deepEqual([code, stderr], [0, '']);
    const last = read(path);
    assert.ok(last.steps > state.steps);
    assert.deepEqual(last.holds, []);
    const [saved, progress = '', stopped] = stdout.trimEnd().split('\n').slice(-3);
    assert.equal(saved, `saved ${path}`);
    assert.match(progress, / · shutting down$/);
    assert.equal(stopped, `stopped at step ${last.steps.toLocaleString('en-US')}; continue with --load ${path}`);
    assert.deepEqual(pathsIn(demo.folder), savedBy(demo));
  });

  it('saves when it is interrupted, and continues as if it had not been, with all holds', UNIX, async (t) => {
    const first = await startDemo(t, makeFolder(t), '--seed', '7');
    first.child.kill('SIGTERM');
    assert.deepEqual([(await first.ended).code, (await first.ended).stderr], [0, '']);
    const { steps } = read(pathsIn(first.folder).at(-1) ?? '');

    const second = await startDemo(t, first.folder, '--load', 'latest');
    const from = `seed 7, from step ${steps.toLocaleString('en-US')}\n`;
    assert.ok(second.output().includes(from), second.output());
    await until(async () => (await getDetail(second.port) as { step: number }).step > steps);
    await perform(second, 'pause');
    await second.client.request('pause', { wait: 300, by: 'ben@desk' });
    const { holds = [] } = await second.client.getInfo() ?? {};
    assert.deepEqual(holds.map(({ by }) => by), ['ana@laptop', 'ben@desk']);
    second.child.kill('SIGTERM');
    await second.ended;
    const saved = read(pathsIn(first.folder).at(-1) ?? '');
    assert.deepEqual(saved, JSON.parse(checkpointOf(stateAt(7, saved.steps), holds)));

    const third = await startDemo(t, first.folder, '--load', 'latest');
    await third.client.waitFor(SystemStatus.PAUSED);
    assert.deepEqual((await third.client.getInfo())?.holds, holds);
    assert.match(third.output(), /, still paused\n/);
    assert.doesNotMatch(third.output(), / active\n/);
    assert.deepEqual(await save(third), saved);
    await perform(third, 'resume');
    await shutDown(third);
    assert.deepEqual(read(savedBy(third).at(-1) ?? '').holds, []);
  });

  it('runs its own commands while paused', async (t) => {
    const demo = await startPaused(t);
    const before = await save(demo);
    const meanReturn = Number(new Learner(stateAt(8, 12_345)).evaluate(50).toFixed(1));
    assert.deepEqual(await perform(demo, 'evaluate', { episodes: 50 }), { meanReturn, episodes: 50 });
    assert.equal((await perform(demo, 'evaluate')).episodes, 100);
    assert.deepEqual(await save(demo), before, 'evaluate changes nothing');

    const settings = { learningRate: 0.25, exploration: 0.5 };
    assert.deepEqual(await perform(demo, 'set', settings), settings);
    assert.deepEqual(await perform(demo, 'step'), { step: 12_346 });
    const learner = new Learner({ ...stateAt(8, 12_345), ...settings });
    learner.step();
    assert.deepEqual(await save(demo), { ...before, ...plain(learner.state) });
    await until(async () => (await getDetail(demo.port) as { step: number }).step === 12_346);
    const { episodes: episode } = learner.state;
    const detail = { episode, 'mean return': Number(learner.meanReturn.toFixed(1)), step: 12_346, ...settings };
    assert.deepEqual(await getDetail(demo.port), detail);
    const tooMany = 'evaluate: episodes must be an integer from 1 to 1000, got 1001';
    assert.equal(await perform(demo, 'evaluate', { episodes: 1001 }), tooMany);
    const tooFast = 'set: learningRate must be a number from 0 to 1, got 2';
    assert.equal(await perform(demo, 'set', { learningRate: 2, exploration: 0 }), tooFast);
    await shutDown(demo);
  });

  it('--until shuts it down at this mean return; it serves at a socket, and starts from scratch', UNIX, async (t) => {
    const learner = Learner.fromSeed(6);
    while (learner.state.episodes < 100 || learner.meanReturn < 40) learner.step();
    const [folder, sockets] = [makeFolder(t), join(makeFolder(t), 'sockets')];
    const options = ['--socket', `${sockets}/`, '--name', 'pole', '--load', 'latest', '--states-dir', folder];
    for (const scratch of [true, false]) { // the second time, the goal is reached already
      const ended = await runProgram(t, 'demo', [...options, '--until', '40', '--seed', '6']);
      const stderr = scratch ? `control-demo: no checkpoint in '${folder}': starting from scratch\n` : '';
      assert.deepEqual([ended.code, ended.stderr], [0, stderr]);
      assert.match(ended.stdout, new RegExp(`: control-console unix:${sockets}/pole-\\d+\\.sock\n`));
      const saved = read(pathsIn(folder).at(-1) ?? '');
      assert.deepEqual(saved, JSON.parse(checkpointOf(plain(learner.state), [])));
    }
    assert.deepEqual([pathsIn(folder).length, readdirSync(sockets)], [2, []]);
  });

  it('--help prints all options', async (t) => {
    const { stdout } = await runProgram(t, 'demo', ['--help']);
    const own = ['until', 'seed', 'load', 'save-every', 'states-dir', 'keep', 'log', 'no-log', 'help', 'version'];
    const all = ['host', 'port', 'socket', 'allow-host', 'name', ...own];
    assert.deepEqual(stdout.match(/(?<=^  (-\w, )?--)[a-z-]+/gm), all);
  });
});
