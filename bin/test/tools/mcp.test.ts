// The main paths of control-mcp: what an assistant does with it first. mcp/ has the rest.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { VERSION } from '../../../control.ts';
import { LIMIT, until } from '../wait.ts';
import { openSession } from './client/systems.ts';
import { startMcp } from './mcp/helpers.ts';

describe('control-mcp', { ...LIMIT, concurrency: 3 }, () => {
  it('lets an assistant list, inspect, wait, pause and save, and nothing else', async (t) => {
    const session = openSession(t);
    let loss = 0.5;
    const { client } = await session.launch('train', { saveState: () => 'states/1.json', describe: () => ({ loss }) });
    const mcp = startMcp(t, [], session.env);
    const { serverInfo, instructions } = await mcp.initialize();
    assert.deepEqual([serverInfo.name, serverInfo.version], ['control-mcp', VERSION]);
    assert.match(instructions, /not allowed here: resume, shutdown, run_command/i);
    const { result: { tools } } = await mcp.request('tools/list');
    assert.deepEqual(tools.map(({ name }: { name: string }) => name),
      ['list_systems', 'get_info', 'get_stack', 'get_history', 'wait', 'pause', 'save_state', 'withdraw']);
    let listed: any;
    await until(async () => { // a busy system may be listed without a report
      [listed] = (await mcp.call('list_systems')).systems;
      return listed.reported?.detail !== undefined;
    });
    const { system, status, reported } = listed;
    assert.deepEqual([system, status, reported.detail], [`train-${process.pid}`, 'active', { loss: 0.5 }]);
    const waiting = mcp.call('wait', { system, until: 'loss < 0.1' });
    loss = 0.05;
    assert.deepEqual(pick(await waiting, 'ended', 'value'), { ended: 'reached', value: 0.05 });
    const { tag } = await mcp.call('get_info', { system });
    const paused = await mcp.call('pause', { system, reason: 'GPU needed' });
    assert.deepEqual(pick(paused, 'system', 'command', 'outcome', 'status'), {
      system, command: 'pause', outcome: 'done', status: 'paused',
    });
    assert.equal((await mcp.call('wait', { system, tag })).ended, 'changed');
    assert.equal((await mcp.call('save_state', { system: 'train', reason: 'before the end' })).value, 'states/1.json');
    const info = await client.getInfo();
    assert.deepEqual([info?.status, info?.by, info?.reason], ['paused', 'mcp:test', 'GPU needed']);
    const { error } = await mcp.fail('resume', { system, reason: 'go on' });
    assert.match(error, /^resume is not allowed: .* --allow resume$/);
  });
});

function pick(result: Record<string, unknown>, ...names: string[]): Record<string, unknown> {
  return Object.fromEntries(names.map((name) => [name, result[name]]));
}
