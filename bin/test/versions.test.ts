// Old and new together: the tools of this version with programs that have an older control.ts or run under an older
// control-run, and the other way round. They must agree on what the pages promise; messages may differ.

import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { isDeepStrictEqual } from 'node:util';
import { VERSION } from '../../control.ts';
import { makeFolder, preload, runProgram, start, startProgram } from './helpers.ts';
import { lacks } from './needs.ts';
import { startBoard, untilSystem } from './tools/board/helpers.ts';
import { startMcp } from './tools/mcp/helpers.ts';
import { DEFAULT_WAY, PYTHON, startRun } from './tools/run/helpers.ts';
import { quote, viaShell } from './tools/via/helpers.ts';
import { build, findPast } from './versions.ts';
import { LIMIT } from './wait.ts';
import type { TestContext } from 'node:test';
import type { Update } from '../board/system.ts';
import type { Ended, Running } from './helpers.ts';
import type { StartedRun } from './tools/run/helpers.ts';

/** A version, and the folder that has its `dist/`. */
interface Version {
  version: string;
  folder: string;
}

/** The hooks and options of a program with `launch()`. */
const TRAIN = `{
  step: () => new Promise((end) => setTimeout(end, 5)),
  saveState: () => 'states/3.json',
  describe: () => ({ loss: 0.25 }),
  onListening: ({ port }) => console.log('port ' + port),
  commands: {
    set: { parameters: { rate: { type: 'number', maximum: 1 } }, run: ({ rate }) => ({ rate }) },
    fail: { run() { throw new Error('no'); } },
    clean: { run: async (_, __, control) => (await control.ask('Delete 3 branches?')).arguments },
  },
}, { name: 'train', webApiAddress: ['127.0.0.1', 0], socketPath: 'control/', log: 'train.jsonl' }`;

/** A loop of its own that never yields. */
const LOOP = `
  let status = SystemStatus.ACTIVE;
  const server = new WebApiServer({ systemStatus: () => status, name: 'loop', socketPath: 'control/' });
  await server.runInBackground();
  console.log('ready');
  while (status !== SystemStatus.SHUTTING_DOWN) {
    const command = server.nextCommandSync({ timeout: status === SystemStatus.PAUSED ? Infinity : 20 });
    if (command === 'pause') status = SystemStatus.PAUSED;
    if (command === 'resume') status = SystemStatus.ACTIVE;
    if (command === 'shutdown') status = SystemStatus.SHUTTING_DOWN;
    if (command === 'save-state') server.report({ value: 'loop.json' });
  }
  await server.close();`;

/** A program on CONTROL_FD; its arguments run `control-run ask` in one of its processes. */
const SCRIPT = `
import subprocess, sys, time
from control import Control
def deploy(): return subprocess.run(sys.argv[1:]).returncode
control = Control(lambda: 'model.bin', commands={'deploy': deploy})
while not control.poll():
    control.say(detail={'loss': 0.25})
    time.sleep(0.05)
`;

/** Runs in each tool: writes its requests to a file. */
const RECORDER = `
  import { appendFileSync } from 'node:fs';
  import http from 'node:http';
  const { request } = http;
  http.request = (options) => {
    const sent = [options.path, ...Object.keys(options.headers)];
    appendFileSync(process.env.REQUESTS, JSON.stringify(sent) + '\\n');
    return request(options);
  };`;

/** Runs a tool for each line of its input, which has the arguments: a process per run would take most of the time. */
const REPEATER = `
  import { createInterface } from 'node:readline';
  const { setInterval, clearInterval, process: { argv, stdout, stderr } } = globalThis;
  const [, tool] = argv;
  const print = stdout.write.bind(stdout);
  stdout.setMaxListeners(0); // each run adds some
  let [alive, ended, runs] = [undefined, undefined, 0];
  globalThis.setInterval = (act, ms) => {
    const timer = setInterval(act, ms);
    if (ms === 2 ** 30) alive = timer; // keeps the tool running until its end
    return timer;
  };
  for await (const line of createInterface({ input: process.stdin })) {
    const output = { stdout: '', stderr: '' };
    stdout.write = (text) => (output.stdout += text) !== '';
    stderr.write = (text) => (output.stderr += text) !== '';
    const over = new Promise((resolve) => (ended = resolve));
    globalThis.clearInterval = (timer) => {
      clearInterval(timer);
      if (timer === alive) ended();
    };
    argv.splice(1, argv.length, tool, ...JSON.parse(line));
    await import(tool + '?' + (runs += 1));
    await over;
    print(JSON.stringify({ code: process.exitCode, ...output }) + '\\n');
  }`;

/** Removed after the last test: what a test has started writes there until its end. */
const FOLDER = makeFolder({ after });

const SUITE = { timeout: 3 * LIMIT.timeout, concurrency: 2, skip: lacks('Unix', 'history') };

describe('Old and new together', SUITE, () => {
  const past = findPast() ?? [];
  before(() => Promise.all(past.map(build)));
  for (const old of past) {
    const present = { version: VERSION, folder: resolve('.') };
    for (const [tools, programs] of [[old, present], [present, old]] as const) {
      describe(`tools of ${tools.version} and programs of ${programs.version}`, LIMIT, () => testPair(tools, programs));
    }
  }
});

function testPair(tools: Version, programs: Version): void {
  it('client, WebApiClient, console, board, mcp and --via control programs and read their log', async (t) => {
    const { env, folder, control, startTrain, startLoop } = open(t, tools, programs);
    const [{ port, pid, ended }] = await Promise.all([startTrain(), startLoop()]); // sockets of both in one folder
    const at = ['--port', `${port}`];
    const watched = startProgram(t, toolOf(tools, 'client'), ['watch', '--json', ...at], env);
    await watched.shows(/"active"/);
    await control(at, [
      [['pause', '--wait', '--by', 'ana', '--reason', 'lunch', '--timeout', '60'], 'paused'],
      [['pause', '--wait', '--by', 'ben'], 'paused'],
      [['resume', '--mine', '--by', 'ana'], /./],
      [['save-state', '--wait'], 'states/3.json'],
      [['run', 'set', 'rate=0.5', '--wait'], '{"rate":0.5}'],
      [['run', 'fail', '--wait'], '', 1],
    ]);
    const info = JSON.parse(await control(at, [[['info', '--json'], /^{/]]));
    hasAll([info], [{ name: 'train', pid, version: programs.version, status: 'paused', detail: { loss: 0.25 } }]);
    hasAll(info.commands, [{ command: 'pause', state: 'done', by: 'ana', reason: 'lunch' }]);
    assert.deepEqual(info.holds.map(({ by }: { by: string }) => by), ['ben']);

    const { SystemStatus, WebApiClient } = await import(moduleOf(tools)) as typeof import('../../control.ts');
    const client = new WebApiClient('127.0.0.1', port);
    const send = async (endpoint: string, options?: object): Promise<any> => {
      const { ok, body } = await client.request(endpoint, { wait: 30, ...options });
      assert.ok(ok, JSON.stringify([endpoint, body]));
      return body;
    };
    const { value, tag } = await client.request('status') as { value: string; tag?: string };
    const unchanged = await client.request('status', { tag, wait: 1 }) as { value: string };
    assert.deepEqual([value, unchanged.value], ['paused', '']);
    assert.deepEqual((await send('resume', { by: 'ben', mine: true })).value, { released: true });
    await client.waitFor(SystemStatus.ACTIVE);
    const cleaned = send('clean');
    await watched.shows(/"ask"/);
    const [, id = ''] = /^(\S+), .*branches/.exec(await control(at, [[['asks'], /branches/]])) ?? [];
    await control(at, [[['answer', id, '--yes', '--by', 'ana'], /approved=true/]]);
    assert.deepEqual((await cleaned).value, { approved: true });

    const lines = ['pause GPU needed', 'save', 'resume', 'shutdown', 'y', ''].join('\n');
    const { code, stdout, stderr } = await runProgram(t, toolOf(tools, 'console'), ['loop'], lines, env);
    assert.deepEqual([stderr, code], ['', 0]);
    assert.match(stdout, /^(\w+ … |still \w+ … )*paused.*\n.*saved loop\.json.*\n.*active.*\n.*offline/);

    const mcp = startMcp(t, ['--allow', 'all', `127.0.0.1:${port}`], env, toolOf(tools, 'mcp'));
    const { systems: [{ system }] } = await mcp.call('list_systems');
    assert.equal((await mcp.call('pause', { system, reason: 'lunch' })).outcome, 'done');
    const set = { system, command: 'set', arguments: { rate: 0.5 }, reason: 'slower' };
    assert.deepEqual((await mcp.call('run_command', set)).value, { rate: 0.5 });
    const { reported } = await mcp.call('get_info', { system });
    hasAll(reported.holds, [{ by: 'mcp:test', reason: 'lunch' }]);
    assert.match(JSON.stringify(await mcp.call('get_history', { system })), /Delete 3 branches\?/);

    const board = await startBoard(t, [`127.0.0.1:${port}`], [], env, toolOf(tools, 'board'));
    const shown = await untilSystem(board, (one) => causeOf(one) !== '' && fieldsOf(one).length > 0);
    assert.deepEqual([shown.name, shown.status, causeOf(shown)], ['train', 'paused', 'by mcp:test: lunch']);
    assert.deepEqual(fieldsOf(shown).map(({ name, value }) => [name, value]), [['loss', 0.25]]);
    assert.equal((await board.post('/api/systems/0/resume?reason=now', {}, '')).status, 202);
    await untilSystem(board, ({ sent }) => sent.some((one) => one.command === 'resume' && one.state === 'done'));

    const dial = `exec ${quote(process.execPath)} ${quote(`${toolOf(programs, 'client')}.js`)} dial`;
    const vias = [`a=env XDG_RUNTIME_DIR=${folder}`, viaShell('b', `XDG_RUNTIME_DIR=${folder} ${dial}`)];
    const there = ['--dir', join(folder, 'control')]; // not in the folders of the user, who may have systems
    await control([...vias.flatMap((one) => ['--via', one]), ...there], [
      [['pause', 'b/train', '--wait', '--by', 'ana'], new RegExp(`^b/train(-${pid})?  paused$`)],
      [['list'], /paused .* a\/unix:.*\n.*paused .* b\/unix:/],
    ]);

    const listed = parseLines(await control([], [[['list', '--json'], /"train"/]]));
    hasAll(listed, [{ name: 'train', status: 'paused', pid }]);
    await control(at, [
      [['shutdown', '--wait', '--by', 'ana', '--reason', 'done'], 'offline: states/3.json'], [['status'], 'offline', 3],
    ]);
    await watched.shows(/"offline"/);
    hasAll(parseLines(watched.output()), [
      { status: 'paused', by: 'ana', reason: 'lunch' },
      { event: 'ask', message: 'Delete 3 branches?' },
      { command: 'save-state', state: 'done', value: 'states/3.json' },
      { command: 'answer', state: 'done', arguments: { approved: true }, by: 'ana' },
    ]);
    await ended;
    const log = await control([], [[['log', join(folder, 'train.jsonl'), '--json'], /^{/]]);
    const events = new Set(parseLines(log).map(({ event }) => event));
    assert.deepEqual([...events].sort(), ['answer', 'ask', 'command', 'end', 'outcome', 'start', 'status']);
    knows(programs, env.REQUESTS);
  });

  it('control-run takes control.py, control-run ask, a state and a log', { skip: lacks('python3') }, async (t) => {
    const { env, folder, control } = open(t, tools, programs);
    const { stdout: module } = await runProgram(t, toolOf(tools, 'run'), ['--python']);
    writeFileSync(join(folder, 'control.py'), module);
    writeFileSync(join(folder, 'train.py'), SCRIPT);
    const runOf = (version: Version): [string, string] => [process.execPath, `${toolOf(version, 'run')}.js`];
    const startUnder = (version: Version): Promise<StartedRun> => {
      const command = [PYTHON, join(folder, 'train.py'), ...runOf(tools), 'ask', 'Deploy?'];
      const way = { ...DEFAULT_WAY, line: () => runOf(version) };
      return startRun(t, ['--state', join(folder, 'state.json')], command, env, way);
    };
    const first = await startUnder(programs);
    const at = ['--port', `${first.port}`];
    await control(at, [[['wait', 'loss < 0.5'], '0.25']]); // from here on, it takes the commands itself
    const deployed = runProgram(t, toolOf(tools, 'client'), ['run', 'deploy', '--wait', ...at], '', env);
    await first.running.shows(/waits for an answer/);
    const [, id = ''] = /^(\S+), .*Deploy/.exec(await control(at, [[['asks'], /Deploy/]])) ?? [];
    await control(at, [[['answer', id, '--yes'], /approved=true/]]);
    assert.equal((await deployed).stdout, '0\n');
    await control(at, [
      [['pause', '--wait', '--by', 'ana', '--reason', 'lunch'], 'paused'],
      [['shutdown', '--wait'], /^offline: model\.bin/],
    ]);
    await first.running.ended;
    const { port } = await startUnder(tools); // reads the state, and continues the log
    const info = JSON.parse(await control(['--port', `${port}`], [[['info', '--json'], /"paused"/]]));
    hasAll(info.holds, [{ by: 'ana', reason: 'lunch' }]);
    const log = parseLines(await control([], [[['log', 'train.py', '--json'], /^{/]]));
    const starts = log.filter(({ event, version }) => event === 'start' && version !== undefined);
    assert.deepEqual(starts.map(({ version }) => version), [programs.version, tools.version]);
    hasAll(log, [{ event: 'end', exitCode: 0 }, { event: 'answer', arguments: { approved: true } }]);
  });
}

// ───── Programs and tools ────────────────────────────────────────────────────────────────────────────────────────

function toolOf({ folder }: Version, name: string): string {
  return join(folder, 'dist/bin', name);
}

function moduleOf({ folder }: Version): string {
  return pathToFileURL(join(folder, 'dist/control.js')).href;
}

/** What a page of 0.25.0 or earlier receives instead of `cause` and `fields`. */
type Earlier = { by: string; reason: string; detail: Update['fields'] };

function causeOf(system: Update | Earlier): string {
  if ('cause' in system) return system.cause.trim();
  return system.by && `by ${system.by}: ${system.reason}`;
}

function fieldsOf(system: Update | Earlier): Update['fields'] {
  return 'fields' in system ? system.fields : system.detail;
}

/** Arguments of control-client, and what it prints. */
type Row = [args: string[], stdout: string | RegExp, code?: number];

/** A folder for the programs and the tools of a test. With `env`, tools write their requests to a file. */
function open(t: TestContext, tools: Version, programs: Version) {
  const folder = mkdtempSync(join(FOLDER, 'session-'));
  mkdirSync(join(folder, 'control'), { mode: 0o700 });
  const session = {
    XDG_RUNTIME_DIR: folder, CONTROL_DIR: join(folder, 'control'), XDG_STATE_HOME: join(folder, 'state'),
  };
  const env = { ...session, ...preload(RECORDER), REQUESTS: join(folder, 'requests') };
  const startNode = (source: string): Running => {
    const imports = `import { launch, SystemStatus, WebApiServer } from '${moduleOf(programs)}';`;
    const program = `${imports} process.chdir('${folder}'); ${source}`;
    return start(t, process.execPath, ['--input-type=module', '--eval', program], session);
  };
  const toolUrl = `${pathToFileURL(toolOf(tools, 'client'))}.js`;
  const repeater = start(t, process.execPath, ['--input-type=module', '--eval', REPEATER, toolUrl], env);
  let runs = 0;
  const run = async (args: readonly string[]): Promise<Ended> => {
    repeater.child.stdin?.write(`${JSON.stringify(args)}\n`);
    runs += 1;
    await repeater.until(() => repeater.output().split('\n').length > runs);
    return JSON.parse(repeater.output().split('\n')[runs - 1] ?? '') as Ended;
  };
  return {
    env, folder,
    /** Runs control-client for each row. Returns what the last one prints. */
    async control(targets: readonly string[], rows: readonly Row[]): Promise<string> {
      let text = '';
      for (const [args, expected, code = 0] of rows) {
        const ended = await run([...args, ...targets]);
        text = ended.stdout.trimEnd();
        const isRight = typeof expected === 'string' ? text === expected : expected.test(text);
        assert.ok(isRight && ended.code === code, JSON.stringify([args, ended, `${expected}`, code]));
      }
      return text;
    },
    async startTrain() {
      const { child: { pid }, output, shows, ended } = startNode(`launch(${TRAIN});`);
      await shows(/port \d+\n/);
      return { port: Number(/\d+/.exec(output())), pid, ended };
    },
    startLoop: () => startNode(LOOP).shows(/ready/),
  };
}

/** Checks that the control.ts of a version knows all parameters and headers that tools have sent. */
function knows({ folder }: Version, requests: string): void {
  const source = readFileSync(join(folder, 'control.ts'), 'utf8');
  for (const [path, ...headers] of parseLines(readFileSync(requests, 'utf8'))) {
    const { searchParams } = new URL(path, 'http://localhost');
    const parameters = [...searchParams.keys()].map((name) => `'${name}'`);
    for (const name of [...parameters, ...headers]) assert.ok(source.includes(name), `${name} of ${path}`);
  }
}

function parseLines(text: string): any[] {
  return text.trimEnd().split('\n').map((line) => JSON.parse(line));
}

/** Checks that there is an object with these fields for each of them. */
function hasAll(objects: readonly object[], expected: readonly object[]): void {
  for (const fields of expected) {
    const isFound = objects.some((one) => isDeepStrictEqual({ ...one, ...fields }, one));
    assert.ok(isFound, `no ${JSON.stringify(fields)} in ${JSON.stringify(objects)}`);
  }
}
