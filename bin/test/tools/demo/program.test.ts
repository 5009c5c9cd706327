// The rest of control-demo: what it refuses, saves at intervals and saves that fail, sockets, and a terminal.

import assert from 'node:assert/strict';
import { readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../../control.ts';
import { clientAt, getInfo, LIMIT, makeFolder, runProgram, start, startProgram, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { pathsIn, perform, savedBy, shutDown, startDemo, startPaused } from './helpers.ts';

const skip = lacks('Unix');

describe('control-demo in other uses', LIMIT, () => {
  const REFUSED: readonly [args: string[], code: number, message: RegExp][] = [
    [['--until', '501'], 2, /^--until must be an integer from 1 to 500, got '501'$/],
    [['--seed', '4294967296'], 2, /^--seed must be an integer from 0 to 4294967295, got '4294967296'$/],
    [['--keep', '0'], 2, /^--keep must be an integer from 1 to 1000000, got '0'$/],
    [['--save-every', '5 min'], 2, /^--save-every must be a number of minutes .*, got '5 min'$/],
    [['latest'], 2, /^unexpected argument 'latest'/],
    [['--load', '/nowhere'], 2, /^cannot load '\/nowhere': ENOENT: /],
    [['--states-dir', 'package.json'], 1, /^EEXIST: .*package\.json/],
    [['--socket', 'package.json'], 1, /^Cannot serve at .*package\.json.*: .*not a socket/],
  ];
  it('refuses wrong options, and places where it cannot save or serve', { skip }, async (t) => {
    await Promise.all(REFUSED.map(async ([args, expectedCode, message]) => {
      const options = args.includes('--states-dir') ? args : ['--states-dir', makeFolder(t), ...args];
      const { code, stdout, stderr } = await runProgram(t, 'demo', options);
      assert.deepEqual([code, stdout, stderr.split('\n').length], [expectedCode, '', 2], stderr);
      assert.match(stderr.slice('control-demo: '.length, -1), message);
    }));
  });

  it('saves every --save-every, except while paused, and keeps as many checkpoints as --keep says', async (t) => {
    const everyMs = 250;
    const startedAt = performance.now();
    const demo = await startDemo(t, makeFolder(t), '--save-every', `${everyMs / 60_000}`, '--keep', '2');
    const countSaves = (): number => savedBy(demo).length;
    await until(() => countSaves() >= 2);
    assert.ok(performance.now() - startedAt >= 2 * everyMs, 'not earlier');
    const { by, reason, command } = (await getInfo(demo.port)).commands[0] ?? assert.fail();
    assert.deepEqual([command, by, reason], ['save-state', 'itself', '--save-every']);
    await perform(demo, 'pause');
    const count = countSaves();
    await sleep(3 * everyMs);
    assert.equal(countSaves(), count);
    await shutDown(demo);
    assert.deepEqual(pathsIn(demo.folder), savedBy(demo).slice(-2));
  });

  it('serves at a socket, and starts from scratch if there is no latest checkpoint', { skip }, async (t) => {
    const [folder, sockets] = [makeFolder(t), join(makeFolder(t), 'sockets')];
    const options = ['--socket', `${sockets}/`, '--name', 'pole', '--load', 'latest', '--states-dir', folder];
    const demo = startProgram(t, 'demo', options);
    await demo.shows(/ active\n/);
    const socketPath = join(sockets, `pole-${demo.child.pid}.sock`);
    assert.ok(demo.output().includes(`: control-console unix:${socketPath}\n`), demo.output());
    assert.equal(await clientAt(t, { host: '', port: 0, socketPath }).shutdown(), 'ok');
    const { code, stderr } = await demo.ended;
    assert.deepEqual([code, stderr], [0, `control-demo: no checkpoint in '${folder}': starting from scratch\n`]);
    assert.deepEqual(readdirSync(sockets), []);
  });
});

describe('control-demo when a save fails', { ...LIMIT, skip }, () => {
  it('continues, cancels a shutdown by command, and exits with 1 after a signal: the disk is full', async (t) => {
    const folder = makeFolder(t);
    const fullDisk = 'ulimit -f 0; exec "$0" dist/bin/demo.js "$@"'; // files cannot have content
    const running = start(t, 'sh', ['-c', fullDisk, process.execPath, '--port', '0', '--states-dir', folder]);
    await running.shows(/ active\n/);
    const port = Number(/localhost:(\d+)/.exec(running.output())?.[1]);
    const demo = { ...running, folder, port, client: clientAt(t, { host: 'localhost', port }) };
    assert.match(await perform(demo, 'save-state'), /^save-state failed: EFBIG: /);
    assert.equal((await getInfo(port)).status, 'active');
    for (let count = 0; count < 2; count += 1) {
      assert.match(await perform(demo, 'shutdown'), /^shutdown failed: EFBIG: /);
      await demo.client.waitFor(SystemStatus.PAUSED);
    }
    assert.doesNotMatch(demo.output(), /stopped at/);
    demo.child.kill('SIGTERM');
    const { code, stdout, stderr } = await demo.ended;
    assert.equal(code, 1);
    assert.match(stderr, /^(control-demo: saveState failed: EFBIG: .*\n){4}$/);
    assert.match(stdout, /\nstopped at step [\d,]+\n$/);
    assert.deepEqual(readdirSync(folder), []);
  });

  it('exits with 0 if the last save succeeds at the second attempt', async (t) => {
    const demo = await startPaused(t);
    rmSync(demo.folder, { recursive: true });
    writeFileSync(demo.folder, '');
    assert.match(await perform(demo, 'shutdown'), /^shutdown failed: EEXIST: /);
    rmSync(demo.folder);
    await shutDown(demo);
    assert.ok(demo.output().includes(`; continue with --load ${pathsIn(demo.folder)[0]}\n`), demo.output());
  });
});

describe('control-demo on a terminal', { ...LIMIT, skip: lacks('script') }, () => {
  it('redraws its progress in place, truncated to the width, and prints other lines above it', async (t) => {
    const words = [process.execPath, 'dist/bin/demo.js', '--port', '0', '--states-dir', makeFolder(t)];
    const command = `stty cols 30 rows 24; exec ${words.map((word) => `'${word}'`).join(' ')}`;
    const demo = start(t, 'script', ['-qec', command, '/dev/null']);
    await demo.shows(/(\r[^\r\n]{29}\x1b\[K){3}/);
    const client = clientAt(t, { host: 'localhost', port: Number(/localhost:(\d+)/.exec(demo.output())?.[1]) });
    await client.request('pause', { wait: 300 });
    let before = '';
    await until(async () => (before = demo.output()) === (await sleep(300), demo.output()));
    const frozen = before.split('\r').at(-1) ?? '';
    assert.match(frozen, /^episode .*\x1b\[K$/);
    const reply = await client.request('save-state', { wait: 300 });
    const path = reply.ok ? reply.body['value'] : assert.fail(reply.error);
    const saved = `\r\x1b[Ksaved ${path}\r\n${frozen.replace('\x1b[K', '')}`;
    await until(() => demo.output() === before + saved, () => JSON.stringify(demo.output().slice(before.length)));
    await client.shutdown();
    assert.match((await demo.ended).stdout, /\r\nstopped at step [^\r\n]*; continue with --load [^\r\n]*\r\n$/);
  });
});
