// control-client wait for a system that is absent, and pause --for with real systems, signals and a suspended machine;
// conditions.txt has the rest.

import assert from 'node:assert/strict';
import { describe, it, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { launchSystem, preload, start, startProgram } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { type Puppet, startPuppet } from '../../puppet.ts';
import { until } from '../../wait.ts';
import { at, AT_ONCE, call, linesOf } from './helpers.ts';

/** Starts a system that is paused and resumed at once. */
function startObedient(t: TestContext): Promise<Puppet> {
  const effects = { pause: { status: 'paused' }, resume: { status: 'active' } };
  return startPuppet(t, { effects, post: { state: 'done' } });
}

describe('control-client wait', AT_ONCE, () => {
  it('waits for a system that is offline, and says so', async (t) => {
    const { port, end, refused } = await startPuppet(t);
    end();
    const met = call([...at(port), 'wait', 'active']);
    await until(() => refused() > 1);
    await sleep(2000); // in which it says nothing
    const seen = refused();
    await until(() => refused() > seen);
    await startPuppet(t, {}, { port });
    const stderr = `control-client: 127.0.0.1:${port} is offline: it may still start\n`;
    assert.deepEqual(await met, { code: 0, stdout: 'active\n', stderr });
  });
});

describe('control-client pause --for', AT_ONCE, () => {
  it('resumes the system when the time is up, and not before', async (t) => {
    const times: number[] = [];
    const note = (): void => void times.push(performance.now());
    const { address: { port } } = await launchSystem(t, { onPaused: note, onResumed: note });
    const { code, stdout } = await call([...at(port), 'pause', '--for', '1s']);
    assert.deepEqual([code, stdout], [0, 'paused\nactive\n']);
    const [from = 0, to = 0] = times;
    assert.ok(to - from > 990, `${to - from} ms`);
  });

  it('counts the time for which the machine is suspended', async (t) => {
    const { port } = await startObedient(t);
    const suspend = ` // the clock goes on, the timer of 30 s does not
      import timers from 'node:timers/promises';
      import { syncBuiltinESMExports } from 'node:module';
      const [sleep, now] = [timers.setTimeout, Date.now];
      let passedMs = 0;
      timers.setTimeout = (ms, ...rest) => {
        if (ms === 30_000) passedMs += 16 * 86_400_000;
        return sleep(ms === 30_000 ? 10 : ms, ...rest);
      };
      Date.now = () => now() + passedMs;
      syncBuiltinESMExports();`;
    const { ended } = startProgram(t, 'client', [...at(port), 'pause', '--for', '30d'], preload(suspend));
    assert.deepEqual(await ended, { code: 0, stdout: 'paused\nactive\n', stderr: '' });
  });
});

describe('control-client pause --for, interrupted', { ...AT_ONCE, skip: lacks('Unix') }, () => {
  it('leaves the systems paused, and says how to resume them', async (t) => {
    const { state, target } = await startObedient(t);
    const rows: [signal: NodeJS.Signals, by: string, word: string][] = [
      ['SIGINT', 'ana', '--by=ana'], ['SIGHUP', 'ben', '--by=ben'],
      ['SIGTERM', "o'neil & co", "'--by=o'\\''neil & co'"],
    ];
    for (const [signal, by, word] of rows) {
      const { child, shows, ended } = startProgram(t, 'client', ['pause', '--for', '1h', '--by', by, target]);
      await shows(/paused\n/);
      child.kill(signal);
      const { stderr } = await ended;
      const line = `control-client resume --mine ${word} ${target}`;
      assert.equal(stderr, `control-client: interrupted: paused systems stay paused; to resume them: ${line}\n`);
      assert.deepEqual([child.signalCode, state['status']], [signal, 'paused']);
      if (signal !== 'SIGTERM') continue;
      const typed = line.replace('control-client', `'${process.execPath}' dist/bin/client.js`);
      assert.equal((await start(t, 'sh', ['-c', typed]).ended).stdout, `${target}  active\n`);
    }
  });

  it('says nothing of paused systems before any is paused', async (t) => {
    const { target, holds } = await startPuppet(t, { silent: true });
    const { child, ended } = startProgram(t, 'client', ['pause', '--for', '1h', target]);
    await holds('GET', 1);
    child.kill('SIGINT');
    const { stderr } = await ended;
    assert.match(stderr, /: pause not sent: .*\ncontrol-client: interrupted\n$/);
    assert.equal(child.signalCode, 'SIGINT');
  });

  it('no longer waits for the pause', async (t) => {
    const { port, holds } = await startPuppet(t, { silent: 'POST' });
    const { child, ended } = startProgram(t, 'client', [...at(port), 'pause', '--for', '1h', '--timeout', '300']);
    await holds('POST', 1);
    child.kill('SIGTERM');
    const [pending = '', left = ''] = linesOf((await ended).stderr);
    assert.match(pending, /^control-client: (not paused after .* still pending|pause sent, .* may still .*)$/);
    assert.match(left, /to resume them: control-client resume --mine --host=127\.0\.0\.1 --port=\d+$/);
    assert.equal(child.signalCode, 'SIGTERM');
  });
});
