// The rest of control-demo: what it does with its options, signals, saves that fail, sockets and tokens.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { get } from 'node:http';
import { basename, join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus, VERSION, WebApiClient } from '../../../../control.ts';
import { Learner } from '../../../demo/cartpole.ts';
import { latestIn, readCheckpoint } from '../../../demo/checkpoints.ts';
import {
  clientAt, getInfo, makeFolder, makeSocketPath, NO_TOKEN, runProgram, start, startProgram, TOKEN, until,
} from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import {
  blockSaves, CAUSE, failedSaves, LIMIT, NAME, perform, save, savedBy, savedIn, shutDown, snapshotOf, startDemo,
  startPaused, writePaused,
} from './helpers.ts';
import type { Saved } from './helpers.ts';
import type { IncomingMessage } from 'node:http';

const skip = lacks('Unix');

describe('control-demo in the rest of its uses', LIMIT, () => {
  it('prints the --host for the console, and serves the names of --allow-host', async (t) => {
    const names = ['--allow-host', 'box.lan', '--allow-host=.svc'];
    const demo = await startPaused(t, '--host', '127.0.0.1', ...names, '--until', '500');
    const control = `http://127.0.0.1:${demo.port} · control it from another terminal: control-console `;
    assert.ok(demo.output().includes(`${control}--host 127.0.0.1 --port ${demo.port}\n`), demo.output());
    const expected = { localhost: 200, 'box.lan': 200, trainer: 403, 'a.box.lan': 403, 'x.svc': 200, other: 403 };
    const codes = Object.keys(expected).map(async (name) => [name, await requestAs(name, demo.port)]);
    assert.deepEqual(Object.fromEntries(await Promise.all(codes)), expected);
    await shutDown(demo);
    assert.match(demo.output(), /\nstopped at step 12,345; continue with [^\n]+\n$/, 'no mean return');
  });

  it('excludes pauses from the steps per second', async (t) => {
    const demo = await startDemo(t);
    await perform(demo, 'pause');
    await sleep(3000); // with it, the average would fall to a twentieth
    await perform(demo, 'resume');
    await perform(demo, 'shutdown');
    await demo.ended;
    const speeds = demo.output().matchAll(/([\d,]+) steps\/s · (?:paused|shutting down)/g);
    const [before = NaN, after = NaN] = [...speeds].map((one) => Number(one[1]?.replace(',', '')));
    assert.ok(after > 0.2 * before, `${before} before and ${after} after`);
  });

  it('saves and ends on SIGINT and SIGHUP, saves on SIGUSR2 and continues', { skip }, async (t) => {
    for (const signal of ['SIGINT', 'SIGHUP'] as const) {
      const demo = await startPaused(t);
      demo.child.kill('SIGUSR2');
      await demo.shows(/^saved .*\n/m);
      assert.equal((await getInfo(demo.port)).status, 'paused');
      demo.child.kill(signal);
      const { code, stderr } = await demo.ended;
      assert.deepEqual([code, stderr], [0, ''], signal);
      assert.equal(savedIn(demo).length, 2);
      assert.deepEqual(readdirSync(demo.folder).sort().map((name) => join(demo.folder, name)), savedIn(demo));
      assert.deepEqual(readCheckpoint(savedIn(demo)[0] ?? ''), savedBy(snapshotOf(8, 12_345), CAUSE));
    }
  });

  it('reports a checkpoint from the future once, and loads the latest other one', async (t) => {
    const folder = makeFolder(t);
    const planted = join(folder, '9999-12-31T23-59-59.999Z.json');
    writeFileSync(planted, JSON.stringify(snapshotOf(8, 12_345)));
    writeFileSync(join(folder, '2020-01-01T00-00-00.000Z.json'), JSON.stringify(savedBy(snapshotOf(9, 23_456), CAUSE)));
    const demo = await startDemo(t, '--load', 'latest', '--states-dir', folder);
    assert.match(demo.output(), /seed 9, from step 23,456, paused as it was saved ·/);
    await save(demo);
    await shutDown(demo);
    const why = 'the time in the name of a checkpoint must be at most a day later than now';
    assert.equal((await demo.ended).stderr, `control-demo: ignoring '${planted}': ${why}\n`);
    assert.equal(latestIn(folder), savedIn(demo).at(-1));
  });

  it('begins anew with --load latest if there is no checkpoint, and says so', async (t) => {
    const folder = join(makeFolder(t), 'missing');
    const options = ['--load', 'latest', '--until', '1', '--no-web-api', '--states-dir', folder];
    const { code, stdout, stderr } = await runProgram(t, 'demo', options);
    assert.deepEqual([code, stderr], [0, `control-demo: '${folder}' contains no checkpoint: beginning anew\n`]);
    assert.match(stdout, /^Q-learning on CartPole, seed \d+ · no web API/);
    assert.equal(readdirSync(folder).length, 1);
  });

  it('ends at once if the loaded checkpoint has reached --until', async (t) => {
    const learner = new Learner(6);
    while (learner.episodes < 100) learner.step();
    const path = join(makeFolder(t), 'mine');
    writeFileSync(path, JSON.stringify(learner.snapshot()));
    const folder = makeFolder(t);
    const options = ['--port', '0', '--load', path, '--until', '2', '--states-dir', folder];
    assert.equal((await runProgram(t, 'demo', options)).code, 0);
    assert.equal((readCheckpoint(latestIn(folder) ?? '') as Saved).steps, learner.steps + 1);
  });

  it('keeps as many checkpoints as --keep says', async (t) => {
    const demo = await startPaused(t, '--keep', '2');
    for (let saves = 0; saves < 3; saves += 1) await save(demo);
    const last = await shutDown(demo);
    const paths = readdirSync(demo.folder).sort().map((name) => join(demo.folder, name));
    assert.deepEqual(paths, savedIn(demo).slice(-2));
    assert.deepEqual(readCheckpoint(paths.at(-1) ?? ''), last);
  });

  it('saves whenever the last save was --save-every ago, but not while paused', async (t) => {
    const everyMs = 250;
    const begunAt = performance.now();
    const demo = await startDemo(t, '--save-every', `${everyMs / 60_000}`);
    const saved = (): string[] => readdirSync(demo.folder).filter((name) => NAME.test(name)).sort();
    await until(() => saved().length >= 2);
    assert.ok(performance.now() - begunAt >= 2 * everyMs, 'not earlier');
    for (const { command, by, reason } of (await getInfo(demo.port)).commands) {
      assert.deepEqual([command, by, reason], ['save-state', 'itself', '--save-every']);
    }
    await sleep(everyMs / 2); // so that the next save would come before its time, if that of a client did not count
    const askedAt = performance.now();
    const { value = '' } = await perform(demo, 'save-state');
    await until(() => String(saved().at(-1)) > basename(value));
    assert.ok(performance.now() - askedAt >= everyMs, 'after the last save of any cause');

    await perform(demo, 'pause');
    const before = saved();
    await sleep(3 * everyMs); // nothing is to happen
    assert.deepEqual(saved(), before);
    await perform(demo, 'resume');
    await until(() => String(saved().at(-1)) > String(before.at(-1))); // there may not be more: old ones are deleted
    await shutDown(demo);
  });

  it('learns without a web API although it was saved while paused, and saves on its own', { skip }, async (t) => {
    const folder = makeFolder(t);
    const options = ['--load', writePaused(t), '--no-web-api', '--save-every', '.001', '--states-dir', folder];
    const demo = startProgram(t, 'demo', options);
    await demo.shows(/(^saved [^]*){2}/m);
    demo.child.kill('SIGTERM');
    const { code, stdout, stderr } = await demo.ended;
    assert.deepEqual([code, stderr], [0, '']);
    const where = 'no web API; Ctrl-C or SIGTERM shuts it down';
    assert.ok(stdout.startsWith(`Q-learning on CartPole, seed 8, from step 12,345 · ${where}\n`), stdout);
    assert.match(stdout, /^.*\n.* active\n/);
    assert.ok(readdirSync(folder).length >= 3);
    for (const path of savedIn(demo)) assert.equal((readCheckpoint(path) as Saved).paused, false);
  });

  it('runs without a build', { skip: lacks('typeStripping') }, async (t) => {
    const { ended } = start(t, process.execPath, ['bin/demo.ts', '--version']);
    assert.deepEqual(await ended, { code: 0, stdout: `${VERSION}\n`, stderr: '' });
  });
});

describe('control-demo when a save fails', LIMIT, () => {
  it('goes on; pauses if it was the last one, every time; exits with 1 after a signal', { skip }, async (t) => {
    const demo = await startDemo(t);
    blockSaves(demo);
    assert.match((await perform(demo, 'save-state')).error ?? '', /^save-state failed: EEXIST: .*mkdir/);
    assert.equal((await getInfo(demo.port)).status, 'active');
    for (let count = 0; count < 3; count += 1) {
      assert.match((await perform(demo, 'shutdown')).error ?? '', /^shutdown failed: .*EEXIST: /);
      await demo.client.waitFor(SystemStatus.PAUSED);
    }
    assert.doesNotMatch(demo.output(), /stopped at/);
    demo.child.kill('SIGTERM');
    const { code, stdout, stderr } = await demo.ended;
    assert.equal(code, 1);
    assert.match(stderr, failedSaves(5));
    assert.match(stdout, /\nstopped at step [\d,]+\n$/);
  });

  it('exits with 0 if the last save succeeds at the second attempt', async (t) => {
    const demo = await startPaused(t);
    blockSaves(demo);
    assert.match((await perform(demo, 'shutdown')).error ?? '', /^shutdown failed: /);
    rmSync(demo.folder);
    const { value } = await perform(demo, 'shutdown');
    const { code, stdout, stderr } = await demo.ended;
    assert.equal(code, 0);
    assert.match(stderr, failedSaves(1));
    assert.ok(stdout.endsWith(`; continue with --load ${value}\n`), stdout);
  });

  it('exits with 1 and one line if it is the last one after a signal', { skip }, async (t) => {
    const demo = await startPaused(t);
    blockSaves(demo);
    demo.child.kill('SIGTERM');
    const { code, stdout, stderr } = await demo.ended;
    assert.equal(code, 1);
    assert.match(stderr, failedSaves(1));
    assert.match(stdout, /\nstopped at step 12,345\n$/);
  });

  it('exits with 1 and one line if it is the last one after --until, without a web API', { skip }, async (t) => {
    const args = ['--no-web-api', '--until', '9', '--seed', '1', '--states-dir', makeFolder(t)];
    const fullDisk = 'ulimit -f 0; exec "$0" dist/bin/demo.js "$@"'; // no file may have a byte
    const { code, stdout, stderr } = await start(t, 'sh', ['-c', fullDisk, process.execPath, ...args]).ended;
    assert.equal(code, 1);
    assert.match(stderr, /^control-demo: cannot save a checkpoint: EFBIG: .*\n$/);
    assert.match(stdout, /\nstopped at step [\d,]+, with a mean return of [\d.]+\n$/);
  });
});

describe('control-demo on a Unix socket', { ...LIMIT, skip }, () => {
  it('requires the token, which it does not print, and removes the socket at its end', async (t) => {
    const socketPath = makeSocketPath(t);
    const options = ['--socket', socketPath, '--load', writePaused(t), '--states-dir', makeFolder(t)];
    const demo = startProgram(t, 'demo', options, { CONTROL_TOKEN: TOKEN });
    await demo.shows(/ paused\n/);
    const [line = ''] = /^Q-learning .*$/m.exec(demo.output()) ?? [];
    const control = `control it from another terminal: control-console --socket ${socketPath}`;
    assert.equal(line.slice(line.indexOf(' · ')), ` · web API at unix:${socketPath} · ${control}`);
    assert.equal(statSync(socketPath).mode, 0o140600);
    for (const token of [undefined, `not-${TOKEN}`]) {
      const stranger = new WebApiClient(undefined, undefined, { socketPath, token });
      const reply = await stranger.request('shutdown');
      assert.equal(!reply.ok && reply.error, NO_TOKEN);
    }
    const owner = new WebApiClient(undefined, undefined, { socketPath, token: TOKEN });
    assert.equal(await owner.shutdown(), 'ok');
    const { code, stdout, stderr } = await demo.ended;
    assert.deepEqual([code, stderr], [0, '']);
    assert.ok(!stdout.includes(TOKEN));
    assert.ok(!existsSync(socketPath));
  });

  for (const [what, args, name] of [['itself', [], 'control-demo'], ['--name', ['--name', 'lr 0.1'], 'lr_0.1']] as const) {
    it(`names a socket in a folder after ${what}, and removes it at its end`, async (t) => {
      const folder = join(makeFolder(t), 'sockets'); // the program makes it
      const options = [...args, '--socket', `${folder}/`, '--load', writePaused(t), '--states-dir', makeFolder(t)];
      const environment = { CONTROL_TOKEN: '', CONTROL_NAME: args.length > 0 ? 'other' : '' };
      const demo = startProgram(t, 'demo', options, environment);
      await demo.shows(/ paused\n/);
      const socketPath = join(folder, `${name}-${demo.child.pid}.sock`);
      assert.deepEqual(readdirSync(folder), [basename(socketPath)]);
      const control = `control it from another terminal: control-console --socket ${socketPath}`;
      assert.ok(demo.output().includes(` · web API at unix:${socketPath} · ${control}\n`), demo.output());
      const client = clientAt(t, { host: '', port: 0, socketPath });
      assert.equal((await client.info())?.name, args[1] ?? name);
      assert.equal(await client.shutdown(), 'ok');
      assert.equal((await demo.ended).code, 0);
      assert.deepEqual(readdirSync(folder), []);
    });
  }

  it('exits with 1 and one line if it cannot use the path, and leaves what is there alone', async (t) => {
    const file = makeSocketPath(t);
    writeFileSync(file, 'precious');
    const ended = await runProgram(t, 'demo', ['--socket', file, '--states-dir', makeFolder(t)]);
    assert.deepEqual([ended.code, ended.stdout], [1, '']);
    assert.match(ended.stderr, new RegExp(`^control-demo: Cannot serve at ${file}.*: .*not a socket.*\n$`));
    assert.equal(readFileSync(file, 'utf8'), 'precious');
  });
});

/** The status code of a request for another name of the host. */
async function requestAs(host: string, port: number): Promise<number | undefined> {
  const options = { host: '127.0.0.1', port, path: '/api/status', agent: false, headers: { host } };
  const [response] = await once(get(options), 'response') as [IncomingMessage];
  response.resume();
  return response.statusCode;
}
