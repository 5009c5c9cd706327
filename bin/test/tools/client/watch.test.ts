// control-client watch: JSON, several targets, --exec, and how a system has ended.

import assert from 'node:assert/strict';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  assertHarmless, freePort, HARMLESS, HOSTILE, launchSystem, makeFolder, NO_TOKEN, startServer, TOKEN,
} from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { until } from '../../wait.ts';
import { AT_ONCE, at, call, linesOf, watch } from './helpers.ts';
import { ACTIVE, openSession, startOwnProcess, startWeb } from './systems.ts';
import type { Running } from '../../helpers.ts';
import type { TestContext } from 'node:test';

const SUITE = { ...AT_ONCE, skip: lacks('Unix') };

describe('control-client watch', SUITE, () => {

  it('prints one object per change with --json, and no server can fake one', async (t) => {
    const port = await freePort();
    const commands: object[] = [];
    const liar = await startWeb(t, () => ({ ...ACTIVE, target: 'gpu1:8391', time: 'never', commands }));
    const { address, client } = await launchSystem(t);
    const targets = [`127.0.0.1:${address.port}`, `127.0.0.1:${port}`, liar.target];
    const watching = watch(t, ['--json', ...targets]);
    await until(() => changesOf(watching).length === 3, watching.output);
    await launchSystem(t, {}, { webApiAddress: ['127.0.0.1', port] });
    await client.request('pause', { by: 'ana', reason: 'lunch' });
    commands.push({ id: '1', command: 'pause', state: 'done', target: 'gpu1:8391', time: 'never' });
    const of = (index: number): Record<string, unknown>[] =>
      changesOf(watching).filter(({ target }) => target === targets[index]);
    await until(() => of(0).length >= 3 && of(1).length === 2 && of(2).length === 2, watching.output);
    const has = (field: object): boolean => of(0).some((change) => {
      return Object.entries(field).every(([name, value]) => change[name] === value);
    });
    assert.ok(has({ status: 'paused', by: 'ana', reason: 'lunch' }), watching.output());
    assert.ok(has({ command: 'pause', state: 'done', by: 'ana' }), watching.output());
    assert.deepEqual(of(1).map(({ status }) => status), ['offline', 'active']);
    for (const { target, time } of changesOf(watching)) {
      assert.ok(targets.includes(`${target}`));
      assert.match(`${time}`, /^\d{4}-/);
    }
  });

  it('watches what runs here, also what starts later, and begins each line with the time and the system', async (t) => {
    const { env, launch } = openSession(t);
    const waiting = watch(t, [], env);
    await waiting.shows(/^control-client: nothing runs in '.*': it may still start\n$/);
    const { client } = await launch('train');
    const { shows, output, child } = watch(t, ['--all'], env);
    for (const watching of [waiting, { shows }]) await watching.shows(/  train  active\n/);
    await launch('job');
    for (const watching of [waiting, { shows }]) await watching.shows(/  job +active\n/);
    await client.request('pause', { by: 'ana', reason: 'lunch' });
    await shows(/  train  paused by ana: lunch\n/);
    await client.shutdown();
    await shows(/  train  offline/);
    assert.equal(child.exitCode, null, 'it waits until the system comes back');
    for (const line of linesOf(output())) assert.match(line, /^\d{4}(-\d\d){2} \d\d(:\d\d){2}  (train|job) {2,}\w/);
  });

  it('ends when all systems deny access, and otherwise watches the rest', async (t) => {
    const closed = await Promise.all([startServer(t, { token: TOKEN }), startServer(t, { token: TOKEN })]);
    const [a, b] = closed.map(({ port }) => `127.0.0.1:${port}`) as [string, string];
    const { code, stdout, stderr } = await call(['watch', a, b]);
    assert.deepEqual([code, stdout], [1, '']);
    assert.deepEqual(linesOf(stderr).sort(), [a, b].map((target) => `control-client: ${target}: ${NO_TOKEN}`).sort());
    const { target: open } = await startWeb(t);
    const { child, ended, shows } = watch(t, ['--json', a, open]);
    await Promise.all([shows(new RegExp(`${a}: `)), shows(/"active"/)]);
    assert.equal(child.exitCode, null);
    child.kill('SIGTERM');
    assert.equal((await ended).stderr, `control-client: ${a}: ${NO_TOKEN}\n`);
  });
});

describe('control-client watch --exec', SUITE, () => {
  it('runs the command for each new status but the first, even after a failure', async (t) => {
    const { setStatus, exec } = await startWatched(t);
    const command = 'echo "$CONTROL_BEFORE>$CONTROL_STATUS"; echo noise >&2; ' +
      'case "$CONTROL_STATUS" in paused) exit 3;; active) kill -9 $$;; pausing) /nowhere/command;; esac';
    const { shows, child, ended } = await exec(command, '--json');
    const changes = [
      ['active', 'paused', 'exit code 3'], ['paused', 'active', 'SIGKILL'], ['active', 'pausing', 'exit code 127'],
      ['pausing', 'shutting down', null],
    ];
    for (const [before, status, failure] of changes) {
      setStatus(`${status}`);
      const report = failure === null ? '' : `(.*\n)?control-client: --exec ended with ${failure}\n`;
      await shows(new RegExp(`^${before}>${status}\nnoise\n${report}`, 'm'));
    }
    child.kill();
    const { stdout, stderr } = await ended;
    const statuses = linesOf(stdout).map((line) => JSON.parse(line).status);
    assert.deepEqual(statuses, ['active', 'paused', 'active', 'pausing', 'shutting down']);
    const runs = changes.map(([before, status]) => `${before}>${status}`);
    assert.deepEqual(linesOf(stderr).filter((line) => line.includes('>')), runs);
  });

  it('sets the variables without control characters, and does not pass the token', async (t) => {
    const folder = makeFolder(t);
    const owned = join(folder, 'owned');
    const state = { status: 'active', reason: HOSTILE };
    const { target } = await startWeb(t, () => state, { socketPath: join(folder, 'a\x1b[2J\u202eb') });
    const variables = ['STATUS', 'BEFORE', 'REASON', 'TARGET'].map((name) => `"$CONTROL_${name}"`);
    const command = `printf "<%s>" ${variables.join(' ')} "\${CONTROL_TOKEN-none}" "\${CONTROL_BY-none}"; echo`;
    const { shows, output } = watch(t, [target, '--exec', command], { CONTROL_TOKEN: TOKEN, CONTROL_BY: 'ana' });
    await shows(/  active/);
    state.status = HOSTILE;
    await shows(/^<.*>\n/m);
    const shown = `unix:${folder}/a [2J b`;
    assert.equal(/^<.*\n/m.exec(output())?.[0], `<unknown><active><${HARMLESS}><${shown}><none><ana>\n`);
    const code = `'; touch ${owned}; $(touch ${owned}) \`touch ${owned}\` "`;
    Object.assign(state, { status: 'paused', reason: code });
    await until(() => output().includes(`\n<paused><unknown><${code}>`), output);
    assert.ok(!existsSync(owned));
    assertHarmless(output());
    assert.ok(!output().includes(TOKEN));
  });

  it('runs one command at a time, and merges changes during a run, or drops undone ones', async (t) => {
    const { setStatus, exec } = await startWatched(t);
    const folder = makeFolder(t);
    const go = join(folder, 'go');
    const command = 'echo "ran $CONTROL_BEFORE>$CONTROL_STATUS"; ' +
      `until rm '${go}' 2>/dev/null || ! test -d '${folder}'; do sleep 0.05; done; echo end`;
    const running = await exec(command);
    const linesWith = (pattern: RegExp): string[] => linesOf(running.output()).filter((line) => pattern.test(line));
    let count = 1;
    const change = async (...statuses: string[]): Promise<void> => {
      for (const status of statuses) {
        setStatus(status);
        count += 1;
        await running.until(() => linesWith(/^\d/).length === count);
      }
    };
    const has = (...lines: string[]): Promise<void> => {
      return running.until(() => linesWith(/^ran|^end/).join() === lines.join());
    };
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
    let status = 'active';
    const webs = await Promise.all(Array.from({ length: 5 }, () => startWeb(t, () => ({ status }))));
    const command = `mkdir '${path}' || echo twice; sleep 0.1; rmdir '${path}'; echo "ran $CONTROL_TARGET"`;
    const targets = webs.map(({ target }) => target);
    const { output } = watch(t, ['--exec', command, ...targets]);
    await until(() => output().split(/  active\n/).length === 6, output);
    status = 'paused';
    await until(() => output().split(/^ran /m).length === 6, output);
    assert.deepEqual(output().match(/(?<=^ran ).*/gm)?.sort(), targets.sort());
    assert.doesNotMatch(output(), /twice/);
  });

  it('runs the command only for the statuses in --on', async (t) => {
    const { setStatus, exec } = await startWatched(t);
    const { shows, output } = await exec('echo "ran $CONTROL_BEFORE>$CONTROL_STATUS"', '--on', 'paused,shutting-down');
    const passes = ['pausing', 'paused', 'resuming', 'active', 'paused', 'shutting down'];
    for (const [index, status] of passes.entries()) {
      setStatus(status);
      await until(() => linesOf(output()).filter((line) => /^\d/.test(line)).length === index + 2, output);
      if (status === 'paused' || status.startsWith('shut')) await shows(new RegExp(`>${status}\n(?![^]*ran)`));
    }
    const runs = ['ran pausing>paused', 'ran active>paused', 'ran paused>shutting down'];
    assert.deepEqual(output().match(/^ran .*/gm), runs);
  });

  it('runs the command when the system does not respond', { skip: lacks('Linux') }, async (t) => {
    const { port, child, stop } = await startOwnProcess(t);
    const command = 'echo "ran $CONTROL_BEFORE>$CONTROL_STATUS"';
    const { shows, output } = watch(t, [...at(port), '--exec', command, '--on', 'no-answer']);
    await shows(/  active\n/);
    await stop();
    await shows(/^ran active>no answer\n/m);
    child.kill('SIGCONT');
    await shows(/  no answer: [^]*  active\n/);
    assert.equal(output().match(/^ran /gm)?.length, 1);
  });

  it('ends quietly when its output is closed, and completes the command before', async (t) => {
    const { setStatus, exec } = await startWatched(t);
    const folder = makeFolder(t);
    const wait = `until test -e '${folder}/go' || ! test -d '${folder}'; do sleep 0.05; done`;
    const { child, shows, ended } = await exec(`echo begun; ${wait}; touch '${folder}/done'`);
    setStatus('paused');
    await shows(/begun\n/);
    child.stdout?.destroy();
    setStatus('active'); // the output is closed
    await sleep(600);
    assert.equal(child.exitCode, null);
    writeFileSync(join(folder, 'go'), '');
    const { code, stderr } = await ended;
    assert.match(stderr, /^(begun\n)+$/);
    assert.equal(code, 0);
    assert.ok(existsSync(join(folder, 'done')));
  });
});

describe('control-client watch: how a system has ended', SUITE, () => {
  it('is reported: who has shut it down and why, if that is known', async (t) => {
    const rows: [origin: { by?: string; reason?: string }, line: string][] = [
      [{ by: 'ana@laptop', reason: 'GPU needed' }, 'shutdown by ana@laptop: GPU needed'], [{}, 'shutdown'],
    ];
    await Promise.all(rows.map(async ([origin, line]) => {
      const { client, address } = await launchSystem(t, { onShutdown: () => sleep(1000) }); // to be seen on any machine
      const watching = watch(t, [...at(address.port), '--exec', 'echo "ran $CONTROL_REASON"', '--on', 'offline']);
      const json = watch(t, [...at(address.port), '--json']);
      await Promise.all([watching.shows(/  active\n/), json.shows(/"active"/)]);
      await client.request('shutdown', origin);
      await watching.shows(new RegExp(`  offline: ${line}\n[^]*^ran ${line}\n`, 'm'));
      await until(() => changesOf(json).at(-1)?.['status'] === 'offline', json.output);
      const change = changesOf(json).at(-1) ?? {};
      assert.deepEqual([change['by'], 'error' in change], [origin.by, false]);
    }));
  });

  it('is reported as a shutdown if one was sent shortly before, and as an error if it had no effect', async (t) => {
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

/** Starts a web API with a status that the test sets. */
async function startWatched(t: TestContext): Promise<{
  setStatus: (name: string) => void;
  /** Starts `watch`, and resolves when it shows the first status. */
  exec: (command: string, ...options: string[]) => Promise<Running>;
}> {
  let status = 'active';
  const { port } = await startWeb(t, () => ({ status }));
  const exec = async (command: string, ...options: string[]): Promise<Running> => {
    const watching = watch(t, [...at(port), '--exec', command, ...options]);
    await watching.shows(/\bactive\b.*\n/);
    return watching;
  };
  return { setStatus: (name) => (status = name), exec };
}

/** Parses the output of `watch --json`. */
function changesOf({ output }: Running): Record<string, unknown>[] {
  return linesOf(output()).map((line) => JSON.parse(line) as Record<string, unknown>);
}
