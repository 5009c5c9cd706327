// control-demo as a user runs it first: it searches, saves, pauses, runs its own commands, ends and continues.

import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { SystemStatus } from '../../../control.ts';
import { getDetail, makeFolder, runProgram } from '../helpers.ts';
import { lacks } from '../needs.ts';
import { LIMIT, until } from '../wait.ts';
import {
  checkpointOf, meanLossOf, pathsIn, perform, read, save, savedBy, searchAt, shutDown, startDemo, startPaused,
} from './demo/helpers.ts';

const UNIX = { skip: lacks('Unix') };

describe('control-demo', LIMIT, () => {
  it('searches, prints its progress, saves, pauses and resumes until it is shut down', async (t) => {
    const startedAt = performance.now();
    const demo = await startDemo(t, makeFolder(t), '--seed', '4294967295');
    const url = `http://localhost:${demo.port}`;
    const control = `web API at ${url} · control it from another terminal: control-console ${url}`;
    assert.ok(demo.output().startsWith(`a new search, seed 4294967295\n${control}\n`), demo.output());

    assert.equal(await perform(demo, 'pause'), undefined);
    await demo.shows(/^step \d+ · loss \d+\.\d{3} · paused$/m);
    const { holds, format, ...state } = await save(demo) as any;
    assert.ok(state.step <= 20 * (performance.now() - startedAt) + 200, `${state.step} steps are too many`);
    assert.deepEqual([holds, format], [(await demo.client.getInfo())?.holds, 'control-demo 5']);
    assert.deepEqual(state, searchAt(4_294_967_295, state.step));

    await perform(demo, 'resume');
    await until(async () => (await getDetail(demo.port) as { step: number }).step > state.step);
    const path = await perform(demo, 'shutdown');
    const { code, stdout, stderr } = await demo.ended;
    assert.deepEqual([code, stderr], [0, '']);
    const last = read(path);
    assert.ok(last.step > state.step);
    assert.deepEqual(last.holds, []);
    const [saved, progress = ''] = stdout.trimEnd().split('\n').slice(-2);
    assert.equal(saved, `saved ${path}`);
    assert.match(progress, / · shutting down$/);
    assert.deepEqual(pathsIn(demo.folder), savedBy(demo));
  });

  it('saves when it is interrupted, and continues as if it had not been, with all holds', UNIX, async (t) => {
    const first = await startDemo(t, makeFolder(t), '--seed', '7');
    first.child.kill('SIGTERM');
    assert.deepEqual([(await first.ended).code, (await first.ended).stderr], [0, '']);
    const path = pathsIn(first.folder).at(-1) ?? '';
    const { step } = read(path);

    const second = await startDemo(t, first.folder, '--load', 'latest');
    assert.ok(second.output().startsWith(`continues from ${path}\n`), second.output());
    await until(async () => (await getDetail(second.port) as { step: number }).step > step);
    await perform(second, 'pause');
    await second.client.request('pause', { wait: 300, by: 'ben@desk' });
    const { holds = [] } = await second.client.getInfo() ?? {};
    assert.deepEqual(holds.map(({ by }) => by), ['ana@laptop', 'ben@desk']);
    second.child.kill('SIGTERM');
    await second.ended;
    const saved = read(pathsIn(first.folder).at(-1) ?? '');
    assert.deepEqual(saved, JSON.parse(checkpointOf(searchAt(7, saved.step), holds)));

    const third = await startDemo(t, first.folder, '--load', 'latest');
    await third.client.waitFor(SystemStatus.PAUSED);
    assert.deepEqual((await third.client.getInfo())?.holds, holds);
    assert.doesNotMatch(third.output(), / active\n/);
    assert.deepEqual(await save(third), saved);
    await perform(third, 'resume');
    await shutDown(third);
    assert.deepEqual(read(savedBy(third).at(-1) ?? '').holds, []);
  });

  it('runs its own commands while paused', async (t) => {
    const demo = await startPaused(t);
    const before = await save(demo);
    const meanLoss = meanLossOf(searchAt(8, 12_345), 50);
    assert.deepEqual(await perform(demo, 'evaluate', { points: 50 }), { meanLoss, points: 50 });
    assert.equal((await perform(demo, 'evaluate')).points, 100);
    assert.deepEqual(await save(demo), before, 'evaluate changes nothing');

    assert.deepEqual(await perform(demo, 'set', { temperature: 50 }), { temperature: 50 });
    assert.deepEqual(await save(demo), { ...before, temperature: 50 });
    await until(async () => (await getDetail(demo.port) as { temperature: number }).temperature === 50);
    const detail = { step: 12_345, loss: Number(before.loss.toPrecision(4)), temperature: 50 };
    assert.deepEqual(await getDetail(demo.port), detail);
    const tooMany = 'evaluate: points must be an integer from 1 to 1000, got 1001';
    assert.equal(await perform(demo, 'evaluate', { points: 1001 }), tooMany);
    const tooHot = 'set: temperature must be a number from 0 to 100, got 200';
    assert.equal(await perform(demo, 'set', { temperature: 200 }), tooHot);
  });

  it('--until shuts it down at this loss; it serves at a socket, and starts from scratch', UNIX, async (t) => {
    const search = searchAt(6, Infinity, 60);
    const [folder, sockets] = [makeFolder(t), join(makeFolder(t), 'sockets')];
    const options = ['--socket', `${sockets}/`, '--name', 'pole', '--load', 'latest', '--states-dir', folder];
    for (const scratch of [true, false]) { // the second time, the goal is reached already
      const ended = await runProgram(t, 'demo', [...options, '--until', '60', '--seed', '6']);
      assert.deepEqual([ended.code, ended.stderr], [0, '']);
      assert.match(ended.stdout, scratch ? /^a new search, seed 6\n/ : /^continues from /);
      assert.match(ended.stdout, new RegExp(`: control-console unix:${sockets}/pole-\\d+\\.sock\n`));
      const saved = read(pathsIn(folder).at(-1) ?? '');
      assert.deepEqual(saved, JSON.parse(checkpointOf(search, [])));
    }
    assert.deepEqual([pathsIn(folder).length, readdirSync(sockets)], [2, []]);
  });
});
