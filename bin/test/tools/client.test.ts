// The main paths of control-client. client/ has the other tests.

import assert from 'node:assert/strict';
import { hostname } from 'node:os';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { VERSION } from '../../../control.ts';
import { assertHarmless, freePort, launchSystem, runProgram, startProgram, startServer, TOKEN } from '../helpers.ts';
import { LIMIT } from '../wait.ts';
import { hideFailures } from './client/systems.ts';
import type { Ended } from '../helpers.ts';
import type { TestContext } from 'node:test';

hideFailures();

const LOCAL = { webApiAddress: ['localhost', 0] } as const;

describe('control-client', { ...LIMIT, concurrency: 3 }, () => {
  it('sends a command with its sender and reason, or neither, and the token in CONTROL_TOKEN', async (t) => {
    const { port, server, client: api } = await startServer(t, { token: TOKEN });
    const rows = [[undefined, '--reason', 'the GPU is free & mine'], [undefined, '--by', ''], ['ana@laptop']] as const;
    for (const [CONTROL_BY, ...options] of rows) {
      const args = ['--port', `${port}`, 'save-state', ...options];
      const sent = await runProgram(t, 'client', args, '', { CONTROL_TOKEN: TOKEN, CONTROL_BY });
      assert.deepEqual(sent, { code: 0, stdout: 'ok\n', stderr: '' });
      assert.equal(server.receiveCommand(), 'save-state');
    }
    const [given, none, own] = (await api.getInfo())?.commands ?? [];
    assert.match(`${given?.by}: ${given?.reason}`, new RegExp(`^[^@]+@${hostname()}: the GPU is free & mine$`));
    assert.deepEqual([none?.by, none?.reason, own?.by], [undefined, undefined, 'ana@laptop']);
  });

  it('waits with --wait until the command is done, and exits with 1 if it fails', async (t) => {
    let isFull = true;
    const saveState = async (): Promise<string> => {
      if (isFull) assert.fail('ENOSPC: no space left');
      return sleep(150, 'states/1.json');
    };
    const { address: { port } } = await launchSystem(t, { onPaused: () => sleep(150), saveState }, LOCAL);
    assert.deepEqual(await client(t, port, 'pause', '--wait'), { code: 0, stdout: 'paused\n', stderr: '' });
    const stderr = 'control-client: not saved: ENOSPC: no space left\n';
    assert.deepEqual(await client(t, port, 'save-state', '--wait'), { code: 1, stdout: '', stderr });
    isFull = false;
    const saved = { code: 0, stdout: 'states/1.json\n', stderr: '' };
    assert.deepEqual(await client(t, port, 'save-state', '--wait'), saved);
    const { code, stdout } = await client(t, port, 'shutdown', '--wait', '--json');
    const { id, seconds, ...outcome } = JSON.parse(stdout);
    assert.equal(code, 0);
    assert.match(id, /^\w{3}-4$/);
    assert.deepEqual(outcome, { result: 'ok', state: 'done', value: 'states/1.json', status: 'offline' });
    assert.ok(seconds > 0.1, `the last save alone takes 0.15 s, got ${seconds}`);
  });

  it('prints the info as received with --json, without control characters', async (t) => {
    const describe = (): object => ({ episode: 7, note: '\u202e' });
    const { address: { port }, client: api } = await launchSystem(t, { describe }, { ...LOCAL, name: 'cartpole' });
    await api.request('pause', { wait: 60, by: 'ana@laptop', reason: 'lunch' });
    const { code, stdout } = await client(t, port, 'info', '--json');
    assertHarmless(stdout);
    const { heardAt, detail, ...received } = JSON.parse(stdout);
    assert.deepEqual([code, { heardAt, detail, ...received }], [0, { ...await api.getInfo(), heardAt, detail }]);
  });

  it('watches each new status and each completed command, and runs the command of --exec', async (t) => {
    const port = await freePort();
    const command = 'echo "ran $CONTROL_BEFORE>$CONTROL_STATUS"';
    const { shows, output } = startProgram(t, 'client', ['--port', `${port}`, 'watch', '--exec', command]);
    await shows(/  offline: nothing listens at \S+\n$/);
    let isBroken = true;
    const saveState = (): string => (isBroken ? assert.fail('ENOSPC') : 'states/1.json');
    const parameters = { episodes: { type: 'integer' } } as const;
    const commands = { evaluate: { parameters, run: () => ({ meanReturn: 497.1 }) } };
    const { client: api } = await launchSystem(t, { saveState, commands }, { webApiAddress: ['localhost', port] });
    await shows(/  active\n/);
    const by = 'ana@laptop';
    await api.request('pause', { by, reason: 'lunch' });
    await shows(/  paused by ana@laptop: lunch\n/);
    await shows(/  pause by ana@laptop \(lunch\) done in \d+\.\d\d s\n/);
    await api.request('save-state', { by, wait: 60 });
    await shows(/  save-state by ana@laptop failed after \d+\.\d\d s: ENOSPC\n/);
    isBroken = false;
    await api.request('save-state', { wait: 60 });
    await shows(/  save-state done in \d+\.\d\d s: states\/1.json\n/);
    await api.request('evaluate', { arguments: { episodes: 200 }, by, wait: 60 });
    const outcome = / evaluate \{"episodes":200\} by ana@laptop done in \d+\.\d\d s: \{"meanReturn":497\.1\}\n/;
    await shows(outcome);
    assert.match((await client(t, port, 'info')).stdout, outcome);
    await api.shutdown();
    await shows(/  save-state done [^]*  offline: .*\n/); // the last outcome may be lost when the system ends
    for (const run of ['offline>active', '(active|pausing)>paused', '[\\w ]+>offline']) {
      await shows(new RegExp(`^ran ${run}\n`, 'm'));
    }
    const lines = output().trimEnd().split('\n').filter((line) => !line.startsWith('ran '));
    for (const line of lines) assert.match(line, /^\d{4}(-\d\d){2} \d\d(:\d\d){2}  \w/);
  });

  it('exits with 2 after a usage error, prints one line without control characters, and has a version', async (t) => {
    const { code, stdout, stderr } = await runProgram(t, 'client', ['stop\n\x1b[2J\x9b\u202e']);
    assert.deepEqual([code, stdout], [2, '']);
    assert.match(stderr, /^control-client: the command must be one of [\w, -]+, got 'stop \[2J '\n$/);
    assert.equal((await runProgram(t, 'client', ['--version'])).stdout, `${VERSION}\n`);
  });
});

function client(t: TestContext, port: number, ...args: string[]): Promise<Ended> {
  return runProgram(t, 'client', ['--port', `${port}`, ...args]);
}
