// GET /metrics of control-board: what Prometheus reads, whatever systems report.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { HOSTILE, makeFolder, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { startSilent, startWeb } from '../client/systems.ts';
import { checkMetrics, INFO, NOWHERE, startBoard, type StartedBoard, untilSystem } from './helpers.ts';

describe('The metrics of control-board', LIMIT, () => {
  it('report the status and the numbers', async (t) => {
    const run = { pid: 9, started: '2026-11-21', 'CPU seconds': 3, step: 8, canSave: true };
    const detail = { loss: 0.25, step: 7, name: 'x', deep: [1], run };
    const { server, port } = await startServer(t, { describe: () => detail });
    const board = await startBoard(t, [`127.0.0.1:${port}`, NOWHERE]);
    const { name } = await untilSystem(board, ({ status }) => status === 'active');
    await untilSystem(board, ({ status }) => status === 'offline', 1);
    const lines = await untilMetrics(board, (all) => all.includes(`control_up{system="${name}"} 1`));
    for (const line of [
      `control_up{system="${name}"} 1`, `control_up{system="${NOWHERE}"} 0`,
      `control_status{system="${name}",status="active"} 1`, `control_status{system="${name}",status="paused"} 0`,
      `control_status{system="${NOWHERE}",status="offline"} 1`,
      `control_detail{system="${name}",name="loss"} 0.25`, `control_detail{system="${name}",name="step"} 7`,
      `control_detail{system="${name}",name="CPU seconds"} 3`, `control_detail{system="${name}",name="run.step"} 8`,
    ]) assert.ok(lines.includes(line), `${line} in\n${lines.join('\n')}`);
    assert.equal(lines.filter((line) => line.startsWith('control_detail')).length, 5);
    await server.close();
    await untilMetrics(board, (all) => {
      return all.includes(`control_up{system="${name}"} 0`) && !all.some((line) => line.startsWith('control_detail'));
    });
    checkMetrics((await untilMetrics(board, () => true)).join('\n'));
  });

  it('arrive within about a second, even if a system hangs', async (t) => {
    const never = await startSilent(t);
    const quick = await startWeb(t, () => ({ ...INFO, name: 'quick', detail: { x: 1 } }));
    const board = await startBoard(t, [never, quick.target]);
    await untilSystem(board, ({ name }) => name === 'quick', 1);
    const start = performance.now();
    const lines = await untilMetrics(board, () => true);
    assert.ok(performance.now() - start < 4000, 'less than the time limit of a request');
    assert.ok(lines.includes('control_detail{system="quick",name="x"} 1'));
    const ofSilent = [`control_up{system="${never}"} 0`, `control_status{system="${never}",status="no answer"} 1`];
    await untilMetrics(board, (all) => ofSilent.every((line) => all.includes(line)));
  });

  it('are valid for Prometheus, whatever systems are called and report', async (t) => {
    const half = ['\ud800', '\ud801', 'a\\"\n', 'x'.repeat(300), `${'x'.repeat(300)}y`];
    const detail = Object.fromEntries([...half, HOSTILE, '', '{}', '__proto__x'].map((name, index) => [name, index]));
    const many = Object.fromEntries(Array.from({ length: 60 }, (_, index) => [`field ${index}`, index]));
    const names = ['same', 'same', 'a"\\\n', HOSTILE, '\ud800', '\ud801', '127.0.0.1:9', '127.0.0.1:9-6', ''];
    const numbers = '"big":1e308,"small":-5e-324,"none":1e999,"zero":-0,"text":"7"';
    const bodies = [
      ...names.map((name) => ({ ...INFO, name, detail, asks: [{ id: name, message: name }] })),
      { ...INFO, detail: many },
      JSON.stringify(INFO).replace('"detail":null', `"detail":{${numbers}}`),
    ];
    const targets: string[] = [];
    for (const body of bodies) targets.push((await startWeb(t, () => body)).target);
    const board = await startBoard(t, [...targets, NOWHERE]);
    for (const id of targets.keys()) await untilSystem(board, ({ process }) => process === 'process 1 on box', id);
    const lines = await untilMetrics(board, (all) => all.filter((line) => line.includes('name="none"')).length === 0);
    for (const target of targets.slice(0, 2)) { // both have the same name
      assert.ok(lines.includes(`control_up{system="${target}"} 1`), lines.join('\n'));
    }
    checkMetrics(lines.join('\n'));
    const fields = lines.filter((line) => line.includes('name="field '));
    assert.equal(fields.length, 50);
    for (const value of ['1e+308', '-5e-324']) assert.ok(lines.some((line) => line.endsWith(`} ${value}`)), value);
    assert.equal(lines.filter((line) => line.startsWith('control_up')).length, bodies.length + 1);
    const asking = lines.filter((line) => line.startsWith('control_asks')).map((line) => line.at(-1));
    assert.deepEqual(asking, [...names.map(() => '1'), '0', '0', '0']);
  });

  it('are scraped with the configuration on the page', { skip: lacks('promtool') }, (t) => {
    const folder = makeFolder(t);
    const [, config = ''] = /```yaml\n(scrape_configs:.*?)```/s.exec(readFileSync('bin/board/README.md', 'utf8')) ?? [];
    const [keyFile = ''] = /(?<=credentials_file: ).*/.exec(config) ?? [];
    writeFileSync(join(folder, 'key'), 'x');
    writeFileSync(join(folder, 'prometheus.yml'), config.replace(keyFile, 'key'));
    const { status, stdout, stderr } = spawnSync('promtool', ['check', 'config', join(folder, 'prometheus.yml')]);
    assert.equal(status, 0, `${stdout}${stderr}`);
  });
});

/** Waits until the lines are as expected, and returns them. */
async function untilMetrics(board: StartedBoard, areRight: (lines: string[]) => boolean): Promise<string[]> {
  let lines: string[] = [];
  await until(async () => {
    const response = await board.get('/metrics');
    assert.equal(response.status, 200);
    assert.equal(response.headers.get('content-type'), 'text/plain; version=0.0.4; charset=utf-8');
    lines = (await response.text()).split('\n');
    const isRight = areRight(lines);
    if (!isRight) await sleep(100);
    return isRight;
  }, () => `${areRight}\n${lines.join('\n')}`);
  return lines;
}
