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
  lastIn, pathsIn, perform, read, save, savedBy, startDemo, startPaused, writeState,
} from './demo/helpers.ts';

const UNIX = { skip: lacks('Unix') };

describe('control-demo', LIMIT, () => {
  it('searches, prints its progress, saves, pauses and resumes until it is shut down', async (t) => {
    const demo = await startDemo(t, makeFolder(t), '--seed', '4294967295');
    const url = `http://localhost:${demo.port}`;
    const control = `web API at ${url} · control it from another terminal: control-console ${url}`;
    assert.ok(demo.output().startsWith(`a new search, seed 4294967295\n${control}\n`), demo.output());

    assert.equal(await perform(demo, 'pause'), undefined);
    await demo.shows(/^step \d+ · loss \d+\.\d{3} · paused$/m);
    const { holds, step } = await save(demo);
    assert.deepEqual(holds, (await demo.client.getInfo())?.holds);
    await perform(demo, 'resume');
    await until(async () => (await getDetail(demo.port) as { step: number }).step > step);
    const path = await perform(demo, 'shutdown');
    const { code, stdout, stderr } = await demo.ended;
    assert.deepEqual([code, stderr, read(path).holds], [0, '', []]);
    const [saved, progress = ''] = stdout.trimEnd().split('\n').slice(-2);
    assert.equal(saved, `saved ${path}`);
    assert.match(progress, / · shutting down$/);
    assert.deepEqual(pathsIn(demo.folder), savedBy(demo));
  });

  it('saves when it is interrupted, and continues as if it had not been, with all holds', UNIX, async (t) => {
    const [state, whole] = [writeState(t, { temperature: 2 }), makeFolder(t)];
    const options = ['--until', '5', '--load'];
    const ended = runProgram(t, 'demo', ['--port', '0', '--states-dir', whole, ...options, state]);
    const first = await startDemo(t, makeFolder(t), ...options, state);
    first.child.kill('SIGTERM');
    assert.deepEqual([(await first.ended).code, (await first.ended).stderr], [0, '']);

    const second = await startDemo(t, first.folder, ...options, 'latest');
    assert.ok(second.output().startsWith(`continues from ${pathsIn(first.folder).at(-1)}\n`), second.output());
    await perform(second, 'pause');
    await second.client.request('pause', { wait: 300, by: 'ben@desk' });
    const { holds = [] } = await second.client.getInfo() ?? {};
    assert.deepEqual(holds.map(({ by }) => by), ['ana@laptop', 'ben@desk']);
    second.child.kill('SIGTERM');
    await second.ended;

    const third = await startDemo(t, first.folder, ...options, 'latest');
    await third.client.waitFor(SystemStatus.PAUSED);
    assert.deepEqual((await third.client.getInfo())?.holds, holds);
    assert.doesNotMatch(third.output(), / active\n/);
    await perform(third, 'resume');
    assert.equal((await third.ended).code, 0);
    assert.equal((await ended).code, 0);
    assert.deepEqual(lastIn(first.folder), lastIn(whole));
  });

  it('runs its own commands while paused; the hotter it is, the greater the loss', async (t) => {
    const demo = await startPaused(t);
    const before = await save(demo);
    const evaluated = await perform(demo, 'evaluate', { points: 50 });
    assert.equal(evaluated.points, 50);
    assert.ok(Math.abs(evaluated.meanLoss - before.loss) < 20, `${evaluated.meanLoss}`);
    assert.equal((await perform(demo, 'evaluate')).points, 100);
    assert.deepEqual(await perform(demo, 'evaluate', { points: 50 }), evaluated);
    assert.deepEqual(await save(demo), before, 'evaluate changes nothing');
    const detail = { step: 12_345, loss: 202.5, temperature: 0.5 };
    assert.deepEqual(await getDetail(demo.port), detail);
    const tooMany = 'evaluate: points must be an integer from 1 to 1000, got 1001';
    assert.equal(await perform(demo, 'evaluate', { points: 1001 }), tooMany);
    const tooHot = 'set: temperature must be a number from 0 to 100, got 200';
    assert.equal(await perform(demo, 'set', { temperature: 200 }), tooHot);

    const hasLoss = (isIt: (loss: number) => boolean): Promise<void> => {
      return until(async () => isIt((await getDetail(demo.port) as { loss: number }).loss));
    };
    await perform(demo, 'resume');
    await hasLoss((loss) => loss < 5);
    assert.deepEqual(await perform(demo, 'set', { temperature: 50 }), { temperature: 50 });
    await hasLoss((loss) => loss > 20);
  });

  it('--until shuts it down at this loss; it serves at a socket, and starts from scratch', UNIX, async (t) => {
    const [folder, sockets] = [makeFolder(t), join(makeFolder(t), 'sockets')];
    const options = ['--socket', `${sockets}/`, '--name', 'pole', '--load', 'latest', '--states-dir', folder];
    for (const scratch of [true, false]) { // the second time, the goal is reached already
      const ended = await runProgram(t, 'demo', [...options, '--until', '60', '--seed', '6']);
      assert.deepEqual([ended.code, ended.stderr], [0, '']);
      assert.match(ended.stdout, scratch ? /^a new search, seed 6\n/ : /^continues from /);
      assert.match(ended.stdout, new RegExp(`: control-console unix:${sockets}/pole-\\d+\\.sock\n`));
      const { step, loss } = lastIn(folder);
      assert.deepEqual([step, loss <= 60], [970, true]);
    }
    assert.deepEqual([pathsIn(folder).length, readdirSync(sockets)], [2, []]);
  });
});
