// The rest of control-demo: what it refuses, saves at intervals and saves that fail, a terminal, which checkpoints
// it keeps and loads, and what its learner learns.

import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { basename, join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../../control.ts';
import { loadCheckpoint, saveCheckpoint } from '../../../demo/checkpoints.ts';
import { Learner } from '../../../demo/learner.ts';
import { UsageError } from '../../../shared/cli.ts';
import { clientAt, getInfo, LIMIT, makeFolder, runProgram, start, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import {
  checkpointOf, HOLD, pathsIn, perform, portOf, savedBy, shutDown, startDemo, startPaused, stateAt,
} from './helpers.ts';

const skip = lacks('Unix');

describe('control-demo in other uses', LIMIT, () => {
  const REFUSED: readonly [args: string[], code: number, message: RegExp][] = [
    [['--until', '501'], 2, /^--until must be an integer from 1 to 500, got '501'$/],
    [['--seed', '4294967296'], 2, /^--seed must be an integer from 0 to 4294967295, got '4294967296'$/],
    [['--keep', '0'], 2, /^--keep must be an integer from 1 to 1000000, got '0'$/],
    [['--save-every', '5 min'], 2, /^--save-every must be a number of minutes .*, got '5 min'$/],
    [['--log', '/nowhere/log'], 2, /^cannot log to '\/nowhere\/log': ENOENT: .*; --log requires a file of this user, /],
    [['--log', 'log', '--no-log'], 2, /^--log and --no-log are mutually exclusive$/],
    [['--load', '/nowhere'], 2, /^cannot load '\/nowhere': ENOENT: /],
    [['--states-dir', 'package.json'], 1, /^ENOTDIR: .*package\.json/],
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
    await demo.shows(/ · paused\n/); // after the lines of all saves
    const count = countSaves();
    await sleep(3 * everyMs);
    assert.equal(countSaves(), count);
    await shutDown(demo);
    assert.deepEqual(pathsIn(demo.folder), savedBy(demo).slice(-2));
  });

  it('logs to a file named after it, to --log FILE, or nowhere', { skip }, async (t) => {
    const [state, folder] = [makeFolder(t), makeFolder(t)];
    const eventsOf = async (path: string, options: string[], XDG_STATE_HOME: string): Promise<[string[], string]> => {
      const args = ['--port', '0', '--states-dir', folder, '--until', '20', ...options];
      const { code, stderr } = await runProgram(t, 'demo', args, '', { XDG_STATE_HOME });
      assert.equal(code, 0, stderr);
      const lines = existsSync(path) ? readFileSync(path, 'utf8').trimEnd().split('\n') : [];
      return [lines.map((line) => JSON.parse(line).event), stderr];
    };
    const [own, other] = [join(state, 'control', `control-demo@${hostname()}.jsonl`), join(folder, 'log')];
    assert.deepEqual(await eventsOf(own, ['--no-log'], state), [[], '']);
    for (const [path, ...options] of [[other, '--log', other], [own]] as const) {
      const [events, stderr] = await eventsOf(path, [...options], state);
      assert.deepEqual([events[0], events.includes('outcome'), events.at(-1), stderr], ['start', true, 'end', '']);
    }
    const [, reason] = await eventsOf(own, [], '/proc/x');
    assert.match(reason, /^control-demo: cannot log: ENOENT: .* '\/proc\/x'; --log FILE logs to another file, .*\n$/);
  });
});

describe('control-demo when a save fails', { ...LIMIT, skip }, () => {
  it('continues, and exits with 1 after a signal: the disk is full', async (t) => {
    const folder = makeFolder(t);
    const fullDisk = 'ulimit -f 0; exec "$0" dist/bin/demo.js "$@"'; // files cannot have content
    const running = start(t, 'sh', ['-c', fullDisk, process.execPath, '--port', '0', '--states-dir', folder]);
    await running.shows(/ active\n/);
    const port = portOf(running);
    const demo = { ...running, folder, port, client: clientAt(t, { host: 'localhost', port }) };
    assert.match(await perform(demo, 'save-state'), /^save-state failed: EFBIG: /);
    assert.equal((await getInfo(port)).status, 'active');
    demo.child.kill('SIGTERM');
    const { code, stdout, stderr } = await demo.ended;
    assert.equal(code, 1);
    assert.match(stderr, /^control-demo: Cannot log: EFBIG: .*\n(control-demo: saveState failed: EFBIG: .*\n){2}$/);
    assert.match(stdout, /\nstopped at step [\d,]+\n$/);
    assert.deepEqual(readdirSync(folder), []);
  });

  it('exits with 1 after a signal: its folder and the one above are deleted', async (t) => {
    const folder = join(makeFolder(t), 'run');
    mkdirSync(folder);
    const inFolder = 'program=$PWD/dist/bin/demo.js; cd "$1"; exec "$0" "$program" --port 0'; // saves in ./states
    const running = start(t, 'sh', ['-c', inFolder, process.execPath, folder]);
    await running.shows(/ active\n/);
    rmSync(folder, { recursive: true });
    running.child.kill('SIGTERM');
    const { code, stderr } = await running.ended;
    assert.equal(code, 1);
    assert.match(stderr, /^control-demo: saveState failed: ENOENT: .*\n/);
  });

  it('cancels a shutdown by command and pauses, until a save succeeds', async (t) => {
    const demo = await startPaused(t);
    rmSync(demo.folder, { recursive: true });
    writeFileSync(demo.folder, '');
    await perform(demo, 'resume');
    assert.match(await perform(demo, 'shutdown'), /^shutdown failed: ENOTDIR: /);
    await demo.client.waitFor(SystemStatus.PAUSED);
    assert.doesNotMatch(demo.output(), /stopped at/);
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
    const client = clientAt(t, { host: 'localhost', port: portOf(demo) });
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

const STATE = stateAt(2, 5000);
const TEXT = checkpointOf(STATE, []);

describe('The checkpoints of control-demo', () => {
  it('have ascending names, whatever the clock; the oldest are deleted, and nothing else is', (t) => {
    const folder = makeFolder(t);
    const others = ['notes.json', '2020-01-01.json', '2020-01-01T00-00-00.000Z.json.bak'].sort();
    for (const name of others) writeFileSync(join(folder, name), '');
    const times = ['2026-12-31T23:59:59.998Z', '2026-12-31T23:59:59.998Z', '2020-01-01T00:00:00.000Z'];
    const clock = t.mock.method(Date, 'now', () => Date.parse(times.shift() ?? ''));
    const names = [1, 2, 3].map(() => basename(save(folder, 2)));
    assert.deepEqual(names, ['2026-12-31T23-59-59.998Z', '2026-12-31T23-59-59.999Z', '2027-01-01T00-00-00.000Z']
      .map((name) => `${name}.json`));
    assert.deepEqual(readdirSync(folder).sort(), [...others, ...names.slice(1)].sort());
    clock.mock.restore();
    rmSync(save(folder, 1));
    assert.deepEqual(readdirSync(folder).sort(), others);
    assert.equal(loadCheckpoint('latest', folder), null);
  });

  const OLD: readonly [version: string, fields: object, random: number, holds: object[]][] = [
    ['0.12', { version: 2, random: [7, 8, 9, 10], paused: false }, 7, []],
    ['0.15', { version: 3, paused: true, ...HOLD }, STATE.random, [HOLD]],
  ];
  for (const [name, fields, random, holds] of OLD) {
    it(`of version ${name} continue with what they have learned, and with the hold of a pause`, (t) => {
      const path = join(makeFolder(t), 'old.json');
      writeFileSync(path, JSON.stringify({ format: 'control-demo', ...STATE, ...fields }));
      const loaded = loadCheckpoint(path, '');
      assert.deepEqual([loaded?.learner.state, loaded?.holds], [{ ...STATE, random }, holds]);
    });
  }

  const UNKNOWN = 'it is not a checkpoint of control-demo 0.12 or later';
  const REFUSED: readonly [content: string, message: string][] = [
    ['', 'Unexpected end of JSON input'], ['{"name":"runtime-control","version":4}', UNKNOWN],
    [TEXT.replace('"version":4', '"version":1'), UNKNOWN], ['null', UNKNOWN],
  ];
  it('are refused if they are damaged or of another program, and the one before the latest is named', (t) => {
    const folder = makeFolder(t);
    const [good, bad] = [save(folder, 10), save(folder, 10)];
    for (const [content, message] of REFUSED) {
      writeFileSync(bad, content);
      for (const [file, hint] of [[bad, ''], ['latest', `; the checkpoint before it is '${good}'`]] as const) {
        assert.throws(() => loadCheckpoint(file, folder), new UsageError(`cannot load '${bad}': ${message}${hint}`));
      }
    }
  });
});

function save(folder: string, keep: number): string {
  return saveCheckpoint({ learner: new Learner(STATE), holds: [] }, folder, keep);
}

// ───── The learner ───────────────────────────────────────────────────────────────────────────────────────────────

describe('Learner', () => {
  it('learns to balance the pole, for at most 500 steps', () => {
    const learner = Learner.fromSeed(1);
    while (learner.state.episodes < 100) learner.step();
    assert.ok(learner.meanReturn < 200, `got ${learner.meanReturn} at first`);
    while (learner.meanReturn < 450 && learner.state.steps < 1_500_000) learner.step();
    assert.ok(learner.meanReturn >= 450, `got ${learner.meanReturn}`);
    assert.equal(Math.max(...learner.state.returns), 500);
    const evaluated = learner.evaluate(100);
    assert.ok(evaluated > 400, `${evaluated}`);
    Object.assign(learner.state, { learningRate: 1, exploration: 1 });
    assert.equal(learner.evaluate(100), evaluated, 'evaluate() neither learns nor explores');
    learner.state.learningRate = 0.01;
    for (let last = learner.state.episodes + 100; learner.state.episodes < last; ) learner.step();
    assert.ok(learner.meanReturn < 50, `${learner.meanReturn} with random actions alone`);
  });

  it('counts steps, episodes and the mean return of the last 100 episodes', () => {
    const learner = Learner.fromSeed(3);
    assert.equal(learner.meanReturn, 0);
    assert.notDeepEqual(learner.state.cart, stateAt(4, 0).cart, 'the seed matters');
    const lengths: number[] = [];
    for (let last = 0; lengths.length < 250; ) {
      learner.step();
      if (learner.state.episodes === lengths.length) continue;
      lengths.push(learner.state.steps - last);
      last = learner.state.steps;
      const recent = lengths.slice(-100);
      assert.equal(learner.meanReturn, recent.reduce((sum, length) => sum + length) / recent.length);
    }
    assert.deepEqual(learner.state.returns, lengths.slice(-100));
  });
});
