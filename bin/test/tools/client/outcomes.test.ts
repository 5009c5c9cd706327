// What control-client prints of a status and an outcome, also from a server that reports only its status.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { describeInfo, describeStatus, describeStatusAndSave } from '../../../shared/words/describe.ts';
import { assertHarmless, getDetail, launchSystem, startOldServer, startServer } from '../../helpers.ts';
import { AT_ONCE, at, call, watch } from './helpers.ts';
import { hideFailures, startWeb } from './systems.ts';
import type { Ended } from '../../helpers.ts';

hideFailures();

describe('control-client', AT_ONCE, () => {
  it('sends sender and reason, or neither', async (t) => {
    const { address: { port }, client } = await launchSystem(t);
    await call([...at(port), 'resume', '--by', 'ana@laptop', '--reason', 'the GPU is free & mine']);
    await call([...at(port), 'resume', '--by', '', '--wait']);
    const { commands = [] } = await client.info() ?? {};
    assert.deepEqual(commands.map(({ by, reason }) => [by, reason]), [
      ['ana@laptop', 'the GPU is free & mine'], [undefined, undefined],
    ]);
  });

  it('--json prints the status, and info as received, without control characters', async (t) => {
    const describe = (): object => ({ episode: 7, note: '\u202e' });
    const { address: { port }, client } = await launchSystem(t, { describe });
    const status = await call([...at(port), 'status', '--json']);
    assert.deepEqual(status, { code: 0, stdout: '{"status":"active"}\n', stderr: '' });
    await getDetail(port);
    await client.request('pause', { wait: 60, by: 'ana@laptop', reason: 'lunch' });
    const info = await call([...at(port), 'info', '--json']);
    assertHarmless(info.stdout);
    const { heardAt, ...received } = JSON.parse(info.stdout);
    assert.deepEqual({ heardAt, ...received }, { ...await client.info(), heardAt });
  });

  it('uses the address in the environment unless there are targets', async (t) => {
    const { port, target } = await startWeb(t);
    assert.equal((await call(['status'], { CONTROL_HOST: '127.0.0.1', CONTROL_PORT: `${port}` })).stdout, 'active\n');
    const wrong = { CONTROL_HOST: '/', CONTROL_PORT: 'wrong', CONTROL_SOCKET: 'x'.repeat(200) };
    const active = { code: 0, stdout: `${target}  active\n`, stderr: '' };
    assert.deepEqual(await call(['status', target], wrong), active);
  });

  it('describes how long a step takes, which command waits, and who paused the system', () => {
    const heardAt = new Date(Date.now() - 4500).toISOString();
    const waiting = { command: 'pause', state: 'waiting' };
    const running = { command: 'evaluate', state: 'running', at: heardAt };
    const texts: [info: object, text: string][] = [
      [{ status: 'active', heardAt, by: 'ana' }, 'active, in a step for 4 s'],
      [{ status: 'active', heardAt, commands: [waiting] }, 'active, in a step for 4 s; pause waits for the step'],
      [{ status: 'paused', commands: [waiting, waiting] }, 'paused; pause, pause wait'],
      [{ status: 'paused', heardAt, since: heardAt }, 'paused 4 s ago; the program has not responded for 4 s'],
      [{ status: 'active', heardAt, commands: [running] }, 'active, running evaluate for 4 s'],
      [{ status: 'active', commands: [running, waiting] }, 'active, running evaluate for 4 s; pause waits'],
      [{ status: 'paused', heardAt, by: 'ana', commands: [running] }, 'paused by ana; running evaluate for 4 s'],
      [{ status: 'pausing', commands: [running] }, 'pausing'],
      [{ status: 'pausing', by: 'itself', reason: 'budget' }, 'pausing by itself: budget'],
      [{ status: null, commands: { length: 3 } }, 'unknown'],
    ];
    for (const [info, text] of texts) assert.equal(describeStatus(info as Record<string, unknown>), text);
  });

  it('reports the last save, and a later one that failed', () => {
    const at = (seconds: number): string => new Date(Date.now() - seconds * 1000 - 500).toISOString();
    const save = { command: 'save-state', state: 'done', value: 'states/1.json', by: 'ana', at: at(250), seconds: 60 };
    const failed = { ...save, state: 'failed', at: at(20), error: 'ENOSPC' };
    const others = [{ ...save, state: 'waiting' }, { ...failed, command: 'pause' }];
    const texts: [commands: object[], saved: string[], status: string][] = [
      [others, [], 'active'],
      [[failed, save, ...others], ['states/1.json 3 min ago by ana'], 'active; saved 3 min ago'],
      [[save, failed], ['states/1.json 3 min ago by ana; save failed 0 s ago: ENOSPC'],
        'active; saved 3 min ago; save failed 0 s ago'],
      [[failed], ['save failed 0 s ago: ENOSPC'], 'active; save failed 0 s ago'],
      [[{ command: 'save-state', state: 'done' }], [], 'active; saved'],
      [[{ ...save, at: 'soon', seconds: -1, value: { n: 1 }, by: 7 }], ['{"n":1} by 7'], 'active; saved'],
    ];
    for (const [commands, saved, status] of texts) {
      const info = { status: 'active', commands };
      assert.equal(describeStatusAndSave(info), status.replace(/^active/, () => describeStatus(info)));
      const rows = describeInfo(info).filter((row) => row.startsWith('saved '));
      assert.deepEqual(rows, saved.map((text) => `saved     ${text}`));
    }
  });

  it('says why a value is missing', async (t) => {
    const { server, port } = await startServer(t, { host: '127.0.0.1' });
    const saved = call([...at(port), 'save-state', '--wait']);
    await server.nextCommand();
    server.report({ value: ['x'.repeat(4096)] });
    const { code, stdout, stderr } = await saved;
    assert.deepEqual([code, stdout], [0, 'ok\n']);
    const reason = '(omitted: the value must be JSON of at most 4096 bytes)';
    assert.equal(stderr, `control-client: save-state is done, its value is missing ${reason}\n`);
    assert.match((await call([...at(port), 'info'])).stdout, / done in \d.* s: \(omitted: the value must be JSON /);
  });
});

describe('control-client and a server that reports only its status', AT_ONCE, () => {
  for (const isOriginal of [false, true]) {
    it(`follows the status${isOriginal ? ', which is a number' : ''}`, async (t) => {
      const { port, posted } = await startOldServer(t, isOriginal);
      const client = (...args: string[]): Promise<Ended> => call(['--port', `${port}`, ...args]);
      assert.deepEqual(await client('status'), { code: 0, stdout: 'active\n', stderr: '' });
      const { shows } = watch(t, ['--port', `${port}`]);
      await shows(/  active\n/);
      assert.deepEqual(await client('pause', '--wait'), { code: 0, stdout: 'paused\n', stderr: '' });
      await shows(/  paused\n/);
      assert.deepEqual(await client('resume', '--wait'), { code: 0, stdout: 'active\n', stderr: '' });
      const stderr = 'control-client: save-state accepted, but the server reports no outcome\n';
      assert.deepEqual(await client('save-state', '--wait'), { code: 4, stdout: '', stderr });
      const lacking = 'control-client: the server reports its status only\n';
      assert.deepEqual(await client('info'), { code: 1, stdout: '', stderr: lacking });
      assert.equal((await client('pause')).stdout, 'ok\n');
      assert.deepEqual(await client('wait', 'paused'), { code: 0, stdout: 'paused\n', stderr: '' });
      const json = JSON.parse((await client('shutdown', '--wait', '--json')).stdout);
      assert.deepEqual({ ...json, seconds: 0 }, { result: 'ok', seconds: 0, status: 'offline' });
      assert.deepEqual(posted, ['pause', 'resume', 'save-state', 'pause', 'shutdown']);
    });
  }
});
