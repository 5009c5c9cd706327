// The rest of control-demo: what it refuses, saves at intervals and saves that fail, which checkpoints it keeps and
// loads.

import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../../control.ts';
import { clientAt, type Ended, getInfo, makeFolder, runProgram, start, TOKEN } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { transcript } from '../../transcript.ts';
import { LIMIT, until } from '../../wait.ts';
import { pathsIn, perform, portOf, read, savedBy, shutDown, startDemo, startPaused, STATE } from './helpers.ts';

const skip = lacks('Unix');

transcript('bin/test/tools/demo/refusals.txt', 'control-demo', (args, env, input, t) => {
  const folder = args.includes('--states-dir') ? [] : ['--states-dir', makeFolder(t)];
  return runProgram(t, 'demo', [...args, ...folder], input, { CONTROL_TOKEN: TOKEN, ...env });
});

describe('control-demo in other uses', LIMIT, () => {
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
    const [own, other] = [join(state, 'control', `control-demo@${hostname()}.jsonl`), join(folder, 'log')];
    const runDemo = (XDG_STATE_HOME: string, ...options: string[]): Promise<Ended> => {
      const args = ['--port', '0', '--states-dir', folder, '--until', '90', ...options];
      return runProgram(t, 'demo', args, '', { XDG_STATE_HOME });
    };
    assert.equal((await runDemo(state, '--no-log')).stderr, '');
    assert.ok(!existsSync(own));
    for (const [path, ...options] of [[other, '--log', other], [own]] as const) {
      const { code, stderr } = await runDemo(state, ...options);
      const events = readFileSync(path, 'utf8').trimEnd().split('\n').map((line) => JSON.parse(line).event);
      assert.deepEqual([code, stderr, events[0], events.at(-1)], [0, '', 'start', 'end']);
      assert.ok(events.includes('outcome'));
      assert.ok(!existsSync(own) || path === own);
    }
    const { code, stderr } = await runDemo('/proc/x');
    assert.equal(code, 0);
    assert.match(stderr, /^control-demo: cannot log: ENOENT: .* '\/proc\/x'; --log FILE logs to another file, .*\n$/);
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
    const { child, shows, ended } = start(t, 'sh', ['-c', inFolder, process.execPath, folder]);
    await shows(/ active\n/);
    rmSync(folder, { recursive: true });
    child.kill('SIGTERM');
    const { code, stderr } = await ended;
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

describe('The checkpoints of control-demo', { ...LIMIT, skip }, () => {
  it('have ascending names, whatever the clock; the oldest are deleted, and nothing else is', async (t) => {
    const folder = makeFolder(t);
    const others = ['notes.json', '2020-01-01.json', '2020-01-01T00-00-00.000Z.json.bak'];
    const old = Array.from({ length: 9 }, (_, index) => `2020-01-01T00-00-00.00${index}Z.json`);
    const future = '2126-12-31T23-59-59.998Z.json';
    for (const name of [...others, ...old]) writeFileSync(join(folder, name), '');
    writeFileSync(join(folder, future), JSON.stringify(STATE));
    const demo = await startDemo(t, folder, '--load', 'latest');
    assert.ok(demo.output().startsWith(`continues from ${join(folder, future)}\n`), demo.output());
    const next = ['2126-12-31T23-59-59.999Z.json', '2127-01-01T00-00-00.000Z.json'];
    for (const name of next) assert.equal(await perform(demo, 'save-state'), join(folder, name));
    assert.deepEqual(readdirSync(folder).sort(), [...others, ...old.slice(2), future, ...next].sort());
    assert.deepEqual(read(join(folder, next[1] ?? '')), STATE);
  });

  it('are refused if they are damaged or of another program', async (t) => {
    const unknown = 'it is no checkpoint of control-demo 0.24 or later';
    const text = JSON.stringify(STATE);
    const rows: [content: string, message: string][] = [
      ['', 'Unexpected end of JSON input'], ['{"name":"runtime-control","version":4}', unknown],
      [text.replace('demo 5', 'demo 4'), unknown], ['null', unknown],
    ];
    await Promise.all(rows.map(async ([content, message]) => {
      const folder = makeFolder(t);
      const path = join(folder, 'mine.json');
      writeFileSync(path, content);
      const ended = await runProgram(t, 'demo', ['--states-dir', folder, '--load', path]);
      assert.deepEqual(ended, { code: 2, stdout: '', stderr: `control-demo: cannot load '${path}': ${message}\n` });
    }));
  });
});
