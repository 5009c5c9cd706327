// Calls each tool of control-mcp once for a demo: node mcp-clients.mjs MODULE-OF-CLIENT MODULE-OF-TRANSPORT
//
// The matrix copies this file to where it has installed the SDKs.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';

const [clientModule, transportModule] = process.argv.slice(2);
const { Client } = await import(clientModule);
const { StdioClientTransport } = await import(transportModule);

const address = `:${process.env.PORT}`;
const demo = spawn('control-demo', ['--port', process.env.PORT], { stdio: 'ignore' });
const client = new Client({ name: 'matrix', version: '1' }, { versionNegotiation: { mode: 'auto' } });
client.onerror = (error) => assert.fail(error);
try {
  await client.connect(new StdioClientTransport({ command: 'control-mcp', args: ['--allow', 'all', address] }));
  const { tools } = await client.listTools();
  const unused = new Set(tools.map(({ name }) => name));
  const call = async (name, args) => {
    const { structuredContent, content, isError } = await client.callTool({ name, arguments: args });
    assert.ok(structuredContent && !isError, `${name}: ${JSON.stringify(content)}`);
    unused.delete(name);
    return structuredContent;
  };
  const { systems: [{ system }] } = await call('list_systems', {});
  assert.equal((await call('wait', { system, until: 'active' })).ended, 'reached');
  const command = { system, reason: 'to try it' };
  assert.equal((await call('pause', command)).status, 'paused');
  assert.equal((await call('get_info', { system })).reported.reason, command.reason);
  const evaluation = { ...command, command: 'evaluate', arguments: { points: 1 } };
  assert.equal((await call('run_command', evaluation)).outcome, 'done');
  assert.match((await call('save_state', command)).value, /\.json$/);
  assert.ok(Array.isArray((await call('get_stack', { system })).stack));
  assert.ok(Array.isArray((await call('get_history', { system, since: '1h' })).entries));
  const { content: [{ text }] } = await client.callTool({ name: 'withdraw', arguments: { ...command, id: 'k3f-1' } });
  assert.match(text, /you have not sent k3f-1/);
  unused.delete('withdraw');
  assert.equal((await call('resume', command)).status, 'active');
  assert.equal((await call('shutdown', command)).status, 'offline');
  assert.deepEqual([...unused], []);
} finally {
  await client.close();
  demo.kill();
}
