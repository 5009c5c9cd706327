// Uses control-mcp as an MCP client does: lists its tools, and calls each of them for each of three systems. The matrix
// copies it to where the clients are installed.
//
// Its arguments: sdk1, sdk2 legacy|auto|2026-07-28, or inspector legacy|modern

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { promisify } from 'node:util';

const TOOLS = 'get_info list_systems pause resume run_command save_state shutdown wait';
const TRAIN = `
import time
from control import Control
def set(learningRate: float, exploration: float):
    return {'learningRate': learningRate, 'exploration': exploration}
step, control = 0, Control(lambda: 'train.pt', commands={'set': set})
while not control.poll():
    step += 1
    control.say(detail={'step': step})
    time.sleep(0.1)
`;

const program = (name) => `../../node_modules/.bin/control-${name}`;
const session = mkdtempSync('/tmp/control-'); // a socket path is short
const env = { XDG_RUNTIME_DIR: session }; // clients pass few variables on to a server, and not this one
const server = { command: program('mcp'), args: ['--allow', 'all'], env };

const [client, mode = 'legacy'] = process.argv.slice(2);
writeFileSync('train.py', TRAIN);
writeFileSync('control.py', (await promisify(execFile)(program('run'), ['--python'])).stdout);
const children = [
  ['demo', '--states-dir', '1'], ['demo', '--states-dir', '2'], ['run', '--name', 'train', '--', 'python3', 'train.py'],
].map(([name, ...rest]) => spawn(program(name), ['--port', '0', ...rest], {
  env: { ...process.env, ...env }, stdio: ['ignore', 'ignore', 'inherit'],
}));
try {
  await (client === 'inspector' ? useInspector() : useSdk());
} finally {
  for (const child of children) child.kill();
  rmSync(session, { recursive: true, force: true });
}

/** Each call is a process, which validates the result against the schema of the tool. */
async function useInspector() {
  const inspect = async (...args) => {
    const options = ['--cli', '--protocol-era', mode, '--format', 'json', '--method', ...args];
    for (const [name, value] of Object.entries(env)) options.push('-e', `${name}=${value}`);
    const { stdout } = await promisify(execFile)('mcp-inspector', [...options, '--', server.command, ...server.args]);
    return JSON.parse(stdout).result;
  };
  await useTools(await inspect('tools/list'), (name, args) => {
    return inspect('tools/call', '--tool-name', name, '--tool-args-json', JSON.stringify(args));
  });
}

async function useSdk() {
  const [from, suffix, ...schema] = client === 'sdk1' ? ['sdk/client', '.js', undefined] : ['client', ''];
  const { Client } = await import(`@modelcontextprotocol/${from}${suffix && `/index${suffix}`}`);
  const { StdioClientTransport } = await import(`@modelcontextprotocol/${from}/stdio${suffix}`);
  const versionNegotiation = { mode: /^\d/.test(mode) ? { pin: mode } : mode };
  const connection = new Client({ name: 'matrix', version: '1' }, { versionNegotiation });
  const errors = [];
  connection.onerror = (error) => errors.push(error); // such as a response to a cancelled request
  await connection.connect(new StdioClientTransport(server));
  const call = (name, args, options) => connection.callTool({ name, arguments: args }, ...schema, options);
  await useTools(await connection.listTools(), call);
  await connection.close();
  assert.deepEqual(errors, []);
}

async function useTools({ tools }, call) {
  assert.equal(tools.map(({ name }) => name).sort().join(' '), TOOLS);
  const use = async (name, args, options) => {
    const { structuredContent, content, isError } = await call(name, args, options);
    assert.ok(structuredContent && !isError, `${name}: ${JSON.stringify(content)}`);
    return structuredContent;
  };
  let systems = [];
  for (const end = Date.now() + 30_000; systems.length < children.length;) {
    assert.ok(Date.now() < end, `the systems are ${JSON.stringify(systems)}`);
    ({ systems } = await use('list_systems', {}));
  }
  if (client !== 'inspector') await useWaits(use, systems[0].system);
  for (const { system } of systems) {
    const send = async (name, more) => {
      const { outcome, status, value } = await use(name, { system, reason: 'to try it', ...more });
      assert.deepEqual([name, outcome], [name, 'done']);
      return { status, value };
    };
    assert.equal((await use('wait', { system, until: 'step > 0' })).ended, 'reached');
    assert.equal((await send('pause')).status, 'paused');
    const { status, reported } = await use('get_info', { system });
    assert.match(`${status} by ${reported.by}: ${reported.reason}`, /^paused by mcp:\S+: to try it$/);
    const values = { learningRate: 0.5, exploration: 0 };
    assert.deepEqual((await send('run_command', { command: 'set', arguments: values })).value, values);
    assert.match((await send('save_state')).value, /\.(json|pt)$/);
    assert.equal((await send('resume')).status, 'active');
    assert.equal((await send('shutdown')).status, 'offline');
  }
}

/** Cancels one wait. Another one outlasts the timeout of its request, because there is progress. */
async function useWaits(use, system) {
  const wait = (seconds, options) => use('wait', { system, until: 'step < 0', seconds }, options);
  await assert.rejects(wait(60, { signal: AbortSignal.timeout(500) }), /abort|timeout/i);
  const totals = [];
  const onprogress = ({ total }) => totals.push(total);
  const limits = { timeout: 9000, resetTimeoutOnProgress: true, maxTotalTimeout: 30_000 };
  assert.equal((await wait(12, { ...limits, onprogress })).ended, 'timeout');
  assert.deepEqual(totals, [12, 12]);
}
