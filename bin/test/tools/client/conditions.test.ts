// control-client wait for a system that is absent, and pauses with an end; conditions.txt has the rest.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../../control.ts';
import { launchSystem } from '../../helpers.ts';
import { startPuppet } from '../../puppet.ts';
import { until } from '../../wait.ts';
import { at, AT_ONCE, call } from './helpers.ts';

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

describe('control-client pause --until', AT_ONCE, () => {
  it('pauses until the next time with this clock, by the clock of the system', async (t) => {
    const { address: { port }, client } = await launchSystem(t);
    const end = new Date(Math.ceil(Date.now() / 60_000 + 1) * 60_000); // in one to two minutes
    const clock = end.toTimeString().slice(0, 5);
    const args = [...at(port), 'pause', '--wait', '--by', 'ana', '--reason', 'lunch'];
    assert.deepEqual(await call([...args, '--until', clock]), { code: 0, stdout: 'paused\n', stderr: '' });
    const { holds: [hold] = [] } = await client.getInfo() ?? assert.fail();
    const lateMs = Date.parse(hold?.until ?? '') - end.getTime();
    assert.ok(lateMs >= 0 && lateMs < 10_000, `${lateMs} ms`);
    const said = new RegExp(`^status +paused \\d+ s ago by ana until \\S*${clock}\\S*: lunch`, 'm');
    assert.match((await call([...at(port), 'info'])).stdout, said);
  });

  it('ends by itself, and the system goes on', async (t) => {
    const { address: { port }, client } = await launchSystem(t);
    assert.equal((await call([...at(port), 'pause', '--for', '1', '--wait', '--by', 'ana'])).stdout, 'paused\n');
    await client.waitFor(SystemStatus.ACTIVE);
    const { by, reason } = await client.getInfo() ?? assert.fail();
    assert.deepEqual([by, reason], ['ana', 'the hold has ended']);
  });
});
