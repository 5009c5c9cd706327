// GET /metrics of control-board: what Prometheus reads, whatever systems report.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { HOSTILE, makeFolder, startForeign, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { startWeb } from '../../puppet.ts';
import { LIMIT, until } from '../../wait.ts';
import { checkMetrics, INFO, NOWHERE, startBoard, type StartedBoard } from './helpers.ts';
import type { Socket } from 'node:net';

describe('The metrics of control-board', LIMIT, () => {
  it('arrive even if a system hangs', async (t) => {
    const sockets: Socket[] = [];
    const never = `127.0.0.1:${(await startForeign(t, (socket) => sockets.push(socket))).port}`;
    const { target } = await startWeb(t, () => ({ ...INFO, name: 'quick', detail: { x: 1 } }));
    const board = await startBoard(t, [never, target]);
    await until(() => sockets.length > 0); // it follows the system
    const before = sockets.length;
    const lines = await untilMetrics(board, () => true);
    const arrivedAt = performance.now();
    await until(() => sockets[before]?.destroyed === true); // when the board gives that request up
    assert.ok(performance.now() - arrivedAt > 1000, 'the metrics have not waited for it');
    assert.ok(lines.includes('control_detail{system="quick",name="x"} 1'));
    const expected = [`control_up{system="${never}"} 0`, `control_status{system="${never}",status="no answer"} 1`];
    await untilMetrics(board, (all) => expected.every((line) => all.includes(line)));
  });

  it('report the status and the numbers, and are valid for Prometheus, whatever systems report', async (t) => {
    const run = { pid: 9, started: '2026-11-21', 'CPU seconds': 3, step: 8, canSave: true };
    const own = { loss: 0.25, step: 7, name: 'x', deep: [1], run };
    const { server, port } = await startServer(t, { name: 'train', describe: () => own });
    const half = ['\ud800', '\ud801', 'a\\"\n', 'x'.repeat(300), `${'x'.repeat(300)}y`];
    const detail = Object.fromEntries([...half, HOSTILE, '', '{}', '__proto__x'].map((name, index) => [name, index]));
    const many = Object.fromEntries(Array.from({ length: 60 }, (_, index) => [`field ${index}`, index]));
    const names = ['same', 'same', 'a"\\\n', HOSTILE, '\ud800', '\ud801', NOWHERE, `${NOWHERE}-6`, ''];
    const numbers = '"big":1e308,"small":-5e-324,"none":1e999,"zero":-0,"text":"7"';
    const bodies = [
      ...names.map((name) => ({ ...INFO, name, detail, asks: [{ id: name, message: name }] })),
      { ...INFO, detail: many }, JSON.stringify(INFO).replace('"detail":null', `"detail":{${numbers}}`),
    ];
    const targets: string[] = [];
    for (const body of bodies) targets.push((await startWeb(t, () => body)).target);
    const board = await startBoard(t, [...targets, NOWHERE, `127.0.0.1:${port}`]);
    const count = targets.length + 2;
    const up = 'control_up{system="train"}';
    const areUp = (all: string[]): boolean => all.filter((line) => /^control_up.* 1$/.test(line)).length === count - 1;
    const expected = [
      `${up} 1`, 'control_status{system="train",status="active"} 1', 'control_status{system="train",status="paused"} 0',
      'control_detail{system="train",name="loss"} 0.25', 'control_detail{system="train",name="step"} 7',
      'control_detail{system="train",name="CPU seconds"} 3', 'control_detail{system="train",name="run.step"} 8',
      ...targets.slice(0, 2).map((target) => `control_up{system="${target}"} 1`), // both have the same name
    ];
    const lines = await untilMetrics(board, (all) => areUp(all) && expected.every((line) => all.includes(line)));
    checkMetrics(lines.join('\n'));
    const withPart = (part: string): string[] => lines.filter((line) => line.includes(part));
    assert.deepEqual([withPart('name="field ').length, withPart('name="none"').length], [50, 0]);
    assert.equal(withPart('control_detail{system="train"').length, 5); // the process id of the program, too
    assert.equal(withPart('status="offline"').filter((line) => line.endsWith(' 1')).length, 1, NOWHERE);
    for (const value of ['1e+308', '-5e-324']) assert.ok(lines.some((line) => line.endsWith(`} ${value}`)), value);
    assert.equal(withPart('control_up{').length, count);
    const asking = withPart('control_asks{').map((line) => line.at(-1));
    assert.deepEqual(asking, [...names.map(() => '1'), '0', '0', '0', '0']);
    await server.close();
    await untilMetrics(board, (all) => {
      return all.includes(`${up} 0`) && !all.some((line) => line.startsWith('control_detail{system="train"'));
    });
  });

  it('are scraped with the configuration on the page', { skip: lacks('promtool') }, (t) => {
    const folder = makeFolder(t);
    const [, config = ''] = /```yaml\n(scrape_configs:.*?)```/s.exec(readFileSync('bin/recipes/README.md', 'utf8')) ?? [];
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
    return areRight(lines);
  }, () => `${areRight}\n${lines.join('\n')}`);
  return lines;
}
