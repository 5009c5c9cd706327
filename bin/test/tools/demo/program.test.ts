// The rest of control-demo: what it refuses, saves at intervals and saves that fail, which checkpoints it keeps and
// loads, and what its search finds.

import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { basename, join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../../control.ts';
import { advance, createSearch, evaluate, loadCheckpoint, saveCheckpoint } from '../../../demo/search.ts';
import { UsageError } from '../../../shared/cli.ts';
import { clientAt, getInfo, makeFolder, runProgram, start } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import {
  checkpointOf, HOLD, pathsIn, perform, portOf, savedBy, searchAt, shutDown, startDemo, startPaused,
} from './helpers.ts';

const skip = lacks('Unix');

describe('control-demo in other uses', LIMIT, () => {
  const REFUSED: readonly [args: string[], code: number, message: RegExp][] = [
    [['--until', '501'], 2, /^--until must be an integer from 1 to 100, got '501'$/],
    [['--seed', '4294967296'], 2, /^--seed must be an integer from 0 to 4294967295, got '4294967296'$/],
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

  it('saves every --save-every, except while paused, and keeps the latest ten checkpoints', async (t) => {
    const everyMs = 250;
    const startedAt = performance.now();
    const demo = await startDemo(t, makeFolder(t), '--save-every', `${everyMs / 60_000}`);
    const countSaves = (): number => savedBy(demo).length;
    await until(() => countSaves() >= 11);
    assert.ok(performance.now() - startedAt >= 11 * everyMs, 'not earlier');
    const { by, reason, command } = (await getInfo(demo.port)).commands[0] ?? assert.fail();
    assert.deepEqual([command, by, reason], ['save-state', 'itself', '--save-every']);
    await perform(demo, 'pause');
    await demo.shows(/ · paused\n/); // after the lines of all saves
    const count = countSaves();
    await sleep(3 * everyMs);
    assert.equal(countSaves(), count);
    await shutDown(demo);
    assert.deepEqual(pathsIn(demo.folder), savedBy(demo).slice(-10));
  });

  it('logs to a file named after it, to --log FILE, or nowhere', { skip }, async (t) => {
    const [state, folder] = [makeFolder(t), makeFolder(t)];
    const eventsOf = async (path: string, options: string[], XDG_STATE_HOME: string): Promise<[string[], string]> => {
      const args = ['--port', '0', '--states-dir', folder, '--until', '90', ...options];
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
    const [first, ...lines] = stderr.trimEnd().split('\n');
    assert.match(first ?? '', /^control-demo: Cannot log: EFBIG: /);
    const failed = /^control-demo: (saveState failed: )?EFBIG: /;
    assert.deepEqual([lines.length, lines.every((line) => failed.test(line))], [3, true], stderr);
    assert.match(stdout, / · shutting down\n$/);
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
    assert.doesNotMatch(demo.output(), / · shutting down/);
    rmSync(demo.folder);
    await shutDown(demo);
    assert.deepEqual(pathsIn(demo.folder), savedBy(demo).slice(-1));
  });
});

const SEARCH = searchAt(2, 5000);
const TEXT = checkpointOf(SEARCH, []);

describe('The checkpoints of control-demo', () => {
  it('have ascending names, whatever the clock; the oldest are deleted, and nothing else is', (t) => {
    const folder = makeFolder(t);
    const others = ['notes.json', '2020-01-01.json', '2020-01-01T00-00-00.000Z.json.bak'].sort();
    for (const name of others) writeFileSync(join(folder, name), '');
    const end = '2026-12-31T23:59:59.998Z';
    const times = [end, end, ...Array<string>(10).fill('2020-01-01T00:00:00.000Z')];
    t.mock.method(Date, 'now', () => Date.parse(times.shift() ?? ''));
    const names = Array.from({ length: 12 }, () => basename(saveCheckpoint(SEARCH, [], folder)));
    assert.deepEqual(names.slice(0, 3), [
      '2026-12-31T23-59-59.998Z.json', '2026-12-31T23-59-59.999Z.json', '2027-01-01T00-00-00.000Z.json',
    ]);
    assert.deepEqual(readdirSync(folder).sort(), [...others, ...names.slice(2)].sort());
  });

  it('have the search and the holds, and are refused if they are damaged or of another program', (t) => {
    const path = saveCheckpoint(SEARCH, [HOLD], makeFolder(t));
    assert.deepEqual(loadCheckpoint(path), { search: SEARCH, holds: [HOLD] });
    const unknown = 'it is no checkpoint of control-demo 0.24 or later';
    for (const [content, message] of [
      ['', 'Unexpected end of JSON input'], ['{"name":"runtime-control","version":4}', unknown],
      [TEXT.replace('demo 5', 'demo 4'), unknown], ['null', unknown],
    ] as const) {
      writeFileSync(path, content);
      assert.throws(() => loadCheckpoint(path), new UsageError(`cannot load '${path}': ${message}`));
    }
  });
});

describe('The search of control-demo', () => {
  it('finds the minimum while it cools, and loses it when it is heated', () => {
    for (const seed of [1, 2, 3]) {
      const search = createSearch(seed);
      assert.ok(search.loss > 50, `${search.loss} at first`);
      while (search.step < 1_000_000) advance(search);
      assert.ok(search.loss < 0.1, `${search.loss}`);
      const before = structuredClone(search);
      assert.ok(evaluate(search, 100) > search.loss);
      assert.deepEqual(search, before, 'evaluate() changes nothing');
      search.temperature = 50;
      for (let step = 0; step < 10_000; step += 1) advance(search);
      assert.ok(search.loss > 20, `${search.loss}`);
    }
  });
});
