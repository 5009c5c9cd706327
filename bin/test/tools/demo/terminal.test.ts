// control-demo on a terminal, of which script(1) is one.

import assert from 'node:assert/strict';
import { readdirSync, rmSync } from 'node:fs';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../../control.ts';
import { makeFolder, start, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { blockSaves, connect, LIMIT, NAME, perform, shutDown, writePaused } from './helpers.ts';
import type { DemoRun } from './helpers.ts';
import type { TestContext } from 'node:test';

describe('control-demo on a terminal', { ...LIMIT, skip: lacks('script') }, () => {
  it('redraws the progress line in place, freezes it while paused, and prints other lines above it', async (t) => {
    const demo = await startOnTerminal(t, 100, []);
    await demo.shows(/(\r[^\r\n]* active\x1b\[K){3}/);
    await perform(demo, 'pause');
    await demo.shows(/\r[^\r\n]* paused\x1b\[K$/);
    const all = demo.output();
    await sleep(300); // in which an active system would redraw it three times
    assert.equal(demo.output(), all);
    assert.equal(all.split('\n').length, 2, 'one line for the address, one for all the progress');

    const frozen = all.split('\r').at(-1);
    const { value } = await perform(demo, 'save-state');
    await demo.shows(/\n\r[^\r\n]* paused\x1b\[K$/);
    assert.equal(demo.output().slice(all.length), `\r\x1b[Ksaved ${value}\r\n\r${frozen}`);

    const { length } = demo.output();
    await perform(demo, 'step');
    await until(() => demo.output().length > length);
    assert.match(demo.output().slice(length), /^\r[^\r\n]* paused\x1b\[K$/);

    await perform(demo, 'resume');
    await demo.shows(/ paused\x1b\[K(\r[^\r\n]* active\x1b\[K){2}/);
    await perform(demo, 'shutdown');
    const { code, stdout } = await demo.ended;
    assert.equal(code, 0);
    assert.match(
      stdout,
      /\r[^\r\n]* · shutting down\x1b\[K\r\nstopped at step [^\r\n]*; continue with --load [^\r\n]*\r\n$/,
    );
  });

  it('truncates the line to the width of the terminal', async (t) => {
    const demo = await startOnTerminal(t, 30, ['--load', writePaused(t)]);
    await demo.client.saveState();
    await demo.shows(/saved .*\r\n\r[^\r\n]+\x1b\[K/);
    const drawn = [...demo.output().matchAll(/\r([^\r\n]+)\x1b\[K/g)].map((one) => one[1] as string);
    const isRight = drawn.length > 0 && drawn.every((line) => line.startsWith('episode ') && line.length === 29);
    assert.ok(isRight, drawn.join('|'));
    await shutDown(demo);
  });

  it('goes on when the terminal is gone, and saves', async (t) => {
    const folder = makeFolder(t);
    const load = writePaused(t);
    const options = `--port 0 --load '${load}' --states-dir '${folder}'`;
    const command = `setsid -w '${process.execPath}' dist/bin/demo.js ${options}`; // no SIGHUP
    const demo = await connect(t, folder, start(t, 'script', ['-qec', command, '/dev/null']));
    const { pid } = await demo.client.info() ?? assert.fail();
    t.after(() => killIfAlive(pid));
    demo.child.kill('SIGKILL');
    await demo.ended;
    const countSaves = (): number => readdirSync(folder).filter((name) => NAME.test(name)).length;
    for (const saves of [1, 2]) {
      assert.equal((await perform(demo, 'save-state')).error, undefined);
      assert.equal(countSaves(), saves);
    }
    blockSaves({ folder });
    assert.match((await perform(demo, 'save-state')).error ?? '', /EEXIST/);
    rmSync(folder);
    assert.equal((await perform(demo, 'save-state')).error, undefined);
    assert.equal(countSaves(), 1);
    await demo.client.shutdown();
    await demo.client.waitFor(SystemStatus.OFFLINE, { timeout: LIMIT.timeout });
  });
});

/** Starts the program in a pseudo-terminal. */
function startOnTerminal(t: TestContext, columns: number, options: string[]): Promise<DemoRun> {
  const folder = makeFolder(t);
  const words = ['dist/bin/demo.js', '--port', '0', '--states-dir', folder, ...options];
  const command = [process.execPath, ...words].map((word) => `'${word}'`).join(' ');
  return connect(t, folder, start(t, 'script', ['-qec', `stty cols ${columns} rows 24; exec ${command}`, '/dev/null']));
}

/** For a program that is no child of the test. */
function killIfAlive(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // it has ended
  }
}
