// control-client watch: what starts later, how a system has ended, and --exec; watch.txt has the rest.

import assert from 'node:assert/strict';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { assertHarmless, HARMLESS, HOSTILE, makeFolder, type Running, startServer, TOKEN } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { type Puppet, startPuppet } from '../../puppet.ts';
import { AT_ONCE, at, linesOf, watch } from './helpers.ts';
import { openSession } from './systems.ts';

const SUITE = { ...AT_ONCE, skip: lacks('Unix') };

/** What `watch --exec` runs: it says which change it is for. */
const SAY = 'echo "ran $CONTROL_BEFORE>$CONTROL_STATUS"';

/** Starts `watch --exec` for a puppet, and resolves when it shows the first status. */
async function startWatched(t: TestContext, command: string, ...options: string[]): Promise<{
  watching: Running;
  set: Puppet['set'];
  /** Sets one status after the other, each when the one before is shown. */
  change(...statuses: string[]): Promise<void>;
  /** The lines of the command. */
  ran(): string[];
}> {
  const { port, set } = await startPuppet(t);
  const watching = watch(t, [...at(port), '--exec', command, ...options]);
  const { output } = watching;
  const countChanges = (): number => linesOf(output()).filter((line) => /^(\d|\{)/.test(line)).length;
  await watching.until(() => countChanges() === 1);
  const change = async (...statuses: string[]): Promise<void> => {
    for (const status of statuses) {
      const before = countChanges();
      set({ status });
      await watching.until(() => countChanges() === before + 1);
    }
  };
  const ran = (): string[] => linesOf(output()).filter((line) => /^(ran|end)\b/.test(line));
  return { watching, set, change, ran };
}

describe('control-client watch', SUITE, () => {
  it('watches what runs here, also what starts later, and begins each line with the time and the system', async (t) => {
    const { env, serve } = openSession(t);
    const watches = [watch(t, [], env), watch(t, ['--all'], env)];
    const show = (pattern: RegExp): Promise<unknown> => Promise.all(watches.map(({ shows }) => shows(pattern)));
    await show(/^control-client: nothing runs in '.*': it may still start\n$/);
    const { end } = await serve('train-1');
    await show(/  train  active\n/);
    await serve('job-2');
    await show(/  job +active\n/);
    end();
    await show(/  train  offline/);
    for (const { output, hasEnded } of watches) {
      assert.equal(hasEnded(), false, 'it waits until the system comes back');
      const changes = linesOf(output()).filter((line) => !line.startsWith('control-client: '));
      for (const line of changes) assert.match(line, /^\d{4}(-\d\d){2} \d\d(:\d\d){2}  (train|job) {2,}\w/);
    }
  });

  it('reports a shutdown if one was sent shortly before, and an error if it had no effect', async (t) => {
    await Promise.all([[0, 'shutdown by ana'], [2500, 'nothing listens at .*']].map(async ([waitMs, how]) => {
      const { server, port, client } = await startServer(t, { commands: { say: {} } }); // it takes none
      const watching = watch(t, [...at(port), '--exec', 'echo "ran $CONTROL_REASON"', '--on', 'offline']);
      await watching.shows(/  active\n/);
      await client.request('shutdown', { by: 'ana' });
      await client.request('say'); // accepted later, and taken later
      await sleep(Number(waitMs) + 100);
      await server.close();
      await watching.shows(new RegExp(`  offline: (${how})\nran \\1\n`));
    }));
  });
});

describe('control-client watch --exec', SUITE, () => {
  it('runs the command for each new status but the first, even after a failure', async (t) => {
    const command = `${SAY}; echo noise >&2; ` +
      'case "$CONTROL_STATUS" in paused) exit 3;; active) kill -9 $$;; pausing) /nowhere/command;; esac';
    const { watching, change } = await startWatched(t, command, '--json');
    const changes = [
      ['active', 'paused', 'exit code 3'], ['paused', 'active', 'SIGKILL'], ['active', 'pausing', 'exit code 127'],
      ['pausing', 'shutting down', ''],
    ];
    for (const [before, status, failure] of changes) {
      await change(`${status}`);
      const report = failure === '' ? '' : `(.*\n)?control-client: --exec ended with ${failure}\n`;
      await watching.shows(new RegExp(`^ran ${before}>${status}\nnoise\n${report}`, 'm'));
    }
    watching.child.kill();
    const { stdout, stderr } = await watching.ended;
    const statuses = linesOf(stdout).map((line) => JSON.parse(line).status);
    assert.deepEqual(statuses, ['active', ...changes.map(([, status]) => status)]);
    const runs = changes.map(([before, status]) => `ran ${before}>${status}`);
    assert.deepEqual(linesOf(stderr).filter((line) => line.startsWith('ran')), runs);
  });

  it('sets the variables without control characters, and does not pass the token', async (t) => {
    const folder = makeFolder(t);
    const socketPath = join(folder, 'a\x1b[2J\u202eb');
    const { target, set } = await startPuppet(t, { reason: HOSTILE }, { socketPath });
    const variables = ['STATUS', 'BEFORE', 'REASON', 'TARGET'].map((name) => `"$CONTROL_${name}"`);
    const command = `printf "<%s>" ${variables.join(' ')} "\${CONTROL_TOKEN-none}" "\${CONTROL_BY-none}"; echo`;
    const env = { CONTROL_TOKEN: TOKEN, CONTROL_BY: 'ana' };
    const { until, shows, output } = watch(t, [target, '--exec', command], env);
    await shows(/  active/);
    set({ status: HOSTILE });
    await shows(/^<.*>\n/m);
    const shown = `unix:${folder}/a [2J b`;
    assert.equal(/^<.*\n/m.exec(output())?.[0], `<unknown><active><${HARMLESS}><${shown}><none><ana>\n`);
    const owned = join(folder, 'owned');
    const code = `'; touch ${owned}; $(touch ${owned}) \`touch ${owned}\` "`;
    set({ status: 'paused', reason: code });
    await until(() => output().includes(`\n<paused><unknown><${code}>`));
    assert.ok(!existsSync(owned));
    assertHarmless(output());
    assert.ok(!output().includes(TOKEN));
  });

  it('runs one command at a time, and merges changes during a run, or drops undone ones', async (t) => {
    const folder = makeFolder(t);
    const go = join(folder, 'go');
    const wait = `until rm '${go}' 2>/dev/null || ! test -d '${folder}'; do sleep 0.05; done; echo end`;
    const { watching, change, ran } = await startWatched(t, `${SAY}; ${wait}`);
    const has = (...lines: string[]): Promise<void> => watching.until(() => ran().join() === lines.join());
    await change('paused');
    await has('ran active>paused');
    await change('resuming', 'active', 'pausing', 'paused', 'resuming', 'active');
    writeFileSync(go, '');
    const first = ['ran active>paused', 'end', 'ran paused>active'];
    await has(...first);
    await change('paused', 'active'); // undone
    writeFileSync(go, '');
    await has(...first, 'end');
    await change('pausing');
    await has(...first, 'end', 'ran active>pausing');
  });

  it('runs one command at a time for all targets', async (t) => {
    const path = join(makeFolder(t), 'running');
    const puppets = await Promise.all(Array.from({ length: 5 }, () => startPuppet(t)));
    const command = `mkdir '${path}' || echo twice; sleep 0.1; rmdir '${path}'; echo "ran $CONTROL_TARGET"`;
    const targets = puppets.map(({ target }) => target);
    const { until, output } = watch(t, ['--exec', command, ...targets]);
    await until(() => output().split(/  active\n/).length === 6);
    for (const { set } of puppets) set({ status: 'paused' });
    await until(() => output().split(/^ran /m).length === 6);
    assert.deepEqual(output().match(/(?<=^ran ).*/gm)?.sort(), targets.sort());
    assert.doesNotMatch(output(), /twice/);
  });

  it('runs the command only for the statuses in --on, also when the system does not respond', async (t) => {
    const { watching, set, change, ran } = await startWatched(t, SAY, '--on', 'paused,shutting-down,no-answer');
    const runs = [
      'ran pausing>paused', 'ran active>paused', 'ran paused>no answer', 'ran no answer>paused',
      'ran paused>shutting down',
    ];
    const has = (count: number): Promise<void> => watching.until(() => ran().join() === runs.slice(0, count).join());
    await change('pausing', 'paused');
    await has(1);
    await change('resuming', 'active', 'paused');
    await has(2);
    set({ silent: true });
    await has(3);
    set({ silent: false });
    await has(4);
    await change('shutting down');
    await has(5);
  });

  it('ends quietly when its output is closed, and completes the command before', async (t) => {
    const folder = makeFolder(t);
    const wait = `until test -e '${folder}/go' || ! test -d '${folder}'; do sleep 0.05; done`;
    const { watching, set } = await startWatched(t, `echo begun; ${wait}; touch '${folder}/done'`);
    set({ status: 'paused' });
    await watching.shows(/begun\n/);
    watching.child.stdout?.destroy();
    set({ status: 'active' }); // the output is closed
    await sleep(600);
    assert.equal(watching.hasEnded(), false);
    writeFileSync(join(folder, 'go'), '');
    const { code, stderr } = await watching.ended;
    assert.match(stderr, /^(begun\n)+$/);
    assert.equal(code, 0);
    assert.ok(existsSync(join(folder, 'done')));
  });
});
