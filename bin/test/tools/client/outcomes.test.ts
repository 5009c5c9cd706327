// What control-client prints of a status and an outcome: in a pipe, on a terminal, in color, and of hostile texts.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import {
  assertHarmless, type Ended, freePort, HARMLESS, HOSTILE, launchSystem, makeFolder, start, startBasicServer,
  startServer,
} from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { until } from '../../wait.ts';
import { at, AT_ONCE, call, linesOf, onTerminal, run, watch } from './helpers.ts';
import { ACTIVE, startSilent, startWeb } from './systems.ts';

const SUITE = { ...AT_ONCE, skip: lacks('script') };

describe('control-client', AT_ONCE, () => {

  it('uses the address in the environment unless there are targets', async (t) => {
    const { port, target } = await startWeb(t);
    assert.equal((await call(['status'], { CONTROL_HOST: '127.0.0.1', CONTROL_PORT: `${port}` })).stdout, 'active\n');
    const wrong = { CONTROL_HOST: '/', CONTROL_PORT: 'wrong', CONTROL_SOCKET: 'x'.repeat(200) };
    const active = { code: 0, stdout: `${target}  active\n`, stderr: '' };
    assert.deepEqual(await call(['status', target], wrong), active);
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
  it('follows the status of a control.ts before 0.18, which has reported more when it took the command', async (t) => {
    let status = 'active';
    const { port } = await startWeb(t, ({ method }) => {
      if (method === 'POST') setTimeout(() => (status = 'paused'), 500);
      return method === 'POST' ? { result: 'ok', id: 'abc-1', state: 'waiting' } : { status, version: '0.17.0' };
    });
    const paused = { code: 0, stdout: 'paused\n', stderr: '' };
    assert.deepEqual(await call(['--host', '127.0.0.1', '--port', `${port}`, 'pause', '--wait']), paused);
  });

  for (const isOriginal of [false, true]) {
    it(`follows the status${isOriginal ? ', which is a number' : ''}`, async (t) => {
      const { port, posted } = await startBasicServer(t, isOriginal);
      const client = (...args: string[]): Promise<Ended> => call(['--port', `${port}`, ...args]);
      assert.deepEqual(await client('status'), { code: 0, stdout: 'active\n', stderr: '' });
      const { shows } = watch(t, ['--port', `${port}`]);
      await shows(/  active\n/);
      assert.deepEqual(await client('pause', '--wait'), { code: 0, stdout: 'paused\n', stderr: '' });
      await shows(/  paused\n/);
      assert.deepEqual(await client('resume', '--wait'), { code: 0, stdout: 'active\n', stderr: '' });
      const stderr = 'control-client: save-state accepted, but the server reports no outcome\n';
      assert.deepEqual(await client('save-state', '--wait'), { code: 4, stdout: '', stderr });
      const lacking = 'the server reports its status only\n';
      const rows: [args: string[], error: string][] = [
        [['info'], lacking], [['wait', 'loss < 1', '--timeout', '300'], lacking],
      ];
      for (const [args, error] of rows) {
        assert.deepEqual(await client(...args), { code: 1, stdout: '', stderr: `control-client: ${error}` });
      }
      assert.equal((await client('pause')).stdout, 'ok\n');
      assert.deepEqual(await client('wait', 'paused'), { code: 0, stdout: 'paused\n', stderr: '' });
      const json = JSON.parse((await client('shutdown', '--wait', '--json')).stdout);
      assert.deepEqual({ ...json, seconds: 0 }, { result: 'ok', seconds: 0, status: 'offline' });
      assert.deepEqual(posted, ['pause', 'resume', 'save-state', 'pause', 'shutdown']);
    });
  }
});

describe('control-client on a terminal', SUITE, () => {
  it('prints the cause of the status', async (t) => {
    const { port, server, client } = await startServer(t);
    await client.pause();
    const { stdout } = await onTerminal(t, [...at(port), 'status']).ended;
    assert.equal(stdout.trim(), 'active; pause waits for the step');
    assert.equal(server.receiveCommand(), 'pause');
    assert.equal((await call([...at(port), 'status'])).stdout, 'active\n');
    await client.saveState();
    assert.equal(server.receiveCommand(), 'save-state');
    server.report({});
    const saved = await onTerminal(t, [...at(port), 'status']).ended;
    assert.match(saved.stdout, /^active(, in a step for \d+ s)?; saved \d+ s ago\r\n$/);
  });

  it('shows each status once during --wait, and the end of a pause --for', async (t) => {
    const commands = { evaluate: { run: () => ({ meanReturn: 497.1 }) } };
    const { address: { port } } = await launchSystem(t, { saveState: () => 'states/1.json', commands });
    const rows: [args: string[], stdout: RegExp][] = [
      [[...at(port), 'pause', '--for', '1'], new RegExp(
        '^(\\w+ … )*paused \\(.*\\)\r\nuntil 20\\d\\d-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d; ' +
        'Ctrl-C leaves it paused\r\nactive\r\n$',
      )],
      [[...at(port), 'pause'], /^(still active … )?(pausing … )?paused \(\d+\.\d s\)\r\n$/],
      [[...at(port), 'save-state'], /^saved states\/1\.json \(\d+\.\d s\)\r\n$/],
      [[...at(port), 'run', 'evaluate'], /^evaluate: \{"meanReturn":497\.1\} \(\d+\.\d s\)\r\n$/],
      [[...at(port), 'resume', '--json'], /^(\w+ … )*active \(\d+\.\d s\)\r\n\{[^\n]*"active"\}\r\n$/],
      [['pause', `127.0.0.1:${port}`], new RegExp(`^127\\.0\\.0\\.1:${port}  paused\r\n$`)],
    ];
    for (const [args, pattern] of rows) {
      const { code, stdout } = await onTerminal(t, [...args, '--wait']).ended;
      assert.match(stdout, pattern);
      assert.equal(code, 0);
    }
  });
});

describe('control-client and colors', SUITE, () => {
  const COLORED = { NO_COLOR: undefined, COLORTERM: undefined, TMUX: undefined, CI: undefined, TERM: 'xterm' };
  const [GREEN, YELLOW, RED, END] = ['\x1b[32m', '\x1b[33m', '\x1b[31m', '\x1b[39m'];

  it('colors statuses and errors', async (t) => {
    const port = await freePort();
    const watching = onTerminal(t, [...at(port), 'watch'], COLORED);
    const shows = (text: string): Promise<void> => watching.until(() => watching.output().includes(text));
    await shows(`  ${RED}offline${END}: `);
    const { client } = await launchSystem(t, {}, { webApiAddress: ['127.0.0.1', port] });
    await shows(`  ${GREEN}active${END}\r\n`);
    await client.request('pause', { by: 'ana' });
    await shows(`  ${YELLOW}paused${END} by ana\r\n`);
    const wrong = await onTerminal(t, ['cancel'], COLORED).ended;
    assert.match(wrong.stdout, /^\x1b\[31mcontrol-client: the command must be .*\x1b\[39m\r\n$/);
  });

  it('prints none with NO_COLOR or TERM=dumb, none in JSON, and none into a pipe, beside a terminal', async (t) => {
    const port = await freePort();
    for (const env of [{ NO_COLOR: '1' }, { TERM: 'dumb' }]) {
      const { stdout } = await onTerminal(t, [...at(port), 'status'], { ...COLORED, ...env }).ended;
      assert.match(stdout, /^offline\r\ncontrol-client: nothing listens at 127\.0\.0\.1:\d+\r\n$/);
    }
    const piped = await run(t, [...at(port), 'status'], '', { ...COLORED, FORCE_COLOR: '1' });
    assert.match(`${piped.stdout}${piped.stderr}`, /^offline\ncontrol-client: nothing listens at .*\n$/);
    const program = `${process.execPath} dist/bin/client.js status --port ${port} | sed 's/^/piped: /'`;
    const { stdout } = await start(t, 'script', ['--quiet', '--command', program, '/dev/null'], COLORED).ended;
    assert.match(stdout, /^piped: offline\r$/m);
    assert.match(stdout, /^\x1b\[31mcontrol-client: .*\x1b\[39m\r$/m);
    const { port: live } = await startServer(t);
    const json = await onTerminal(t, [...at(live), 'status', '--json'], COLORED).ended;
    assert.equal(json.stdout, '{"status":"active"}\r\n');
  });
});

const PARAMETER = { type: HOSTILE, description: HOSTILE, default: HOSTILE, enum: [HOSTILE, [HOSTILE]] };
const PARAMETERS = { a: PARAMETER, b: { ...PARAMETER, enum: HOSTILE, default: { [HOSTILE]: 1 } }, [HOSTILE]: {} };
const ACCEPTS = {
  set: { description: HOSTILE, parameters: PARAMETERS }, [HOSTILE]: {}, odd: null, list: [], text: HOSTILE,
};
const ENTRY = { id: '1', command: 'set', state: 'done', arguments: { [HOSTILE]: HOSTILE }, value: [HOSTILE] };
const FIELDS = Object.fromEntries(['name', 'pid', 'since', 'by', 'reason'].map((field) => [field, HOSTILE]));
const ASKS = [{ id: 'k3f-q2', message: HOSTILE, parameters: PARAMETERS, at: HOSTILE, expiresAt: HOSTILE }];
const UNKNOWN = `the status must be one of active, pausing, paused, resuming, shutting down, got '${HARMLESS}'`;

/** What a system responds, a command, its exit code, and what both outputs show, or what --json prints. */
const ROWS: readonly [body: object, args: string[], code: number, shown: string | RegExp | object][] = [
  [{ status: HOSTILE }, ['status'], 1, `unknown\ncontrol-client: ${UNKNOWN}\n`],
  [{ status: HOSTILE }, ['status', '--json'], 1, { status: HOSTILE, error: UNKNOWN }],
  [{ status: 'offline' }, ['status'], 1, /^unknown\n/], // only clients say that
  [{ result: HOSTILE }, ['pause'], 0, `${HARMLESS}\n`],
  [{ result: HOSTILE }, ['pause', '--json'], 0, { result: HOSTILE }],
  [{ code: 500, error: HOSTILE }, ['status'], 1, `control-client: ${HARMLESS}\n`],
  [{ code: 500, error: HOSTILE }, ['pause', '--json'], 1, { error: HOSTILE }],
  [{ ...ACTIVE, status: HOSTILE }, ['pause', '--wait', '--timeout', '6'], 4, /^control-client: not paused /],
  [{ ...ACTIVE, status: 'paused', state: 'done', by: HOSTILE, holds: [7, { by: HOSTILE }] }, ['resume', '--mine'], 1,
    /^control-client: not resumed: .* holds no pause; paused by PW .*; and by PW /],
  [{ ...ACTIVE, accepts: ACCEPTS }, ['run'], 0, /^ {2}set [^]*^ {4}a [^]*^ {4}b [^]*^ {2}odd\n {2}list\n {2}text\n$/m],
  ...[7, HOSTILE, null, [HOSTILE]].map((accepts): [object, string[], number, RegExp] => {
    return [{ ...ACTIVE, accepts }, ['run', HOSTILE], 2, /^control-client: /];
  }),
  [{ ...ACTIVE, ...FIELDS, commands: [ENTRY, { ...ENTRY, arguments: HOSTILE }] }, ['info'], 0, HARMLESS.slice(0, 40)],
  [{ ...ACTIVE, asks: [...ASKS, HOSTILE, { id: HOSTILE, message: 7 }] }, ['asks'], 0, /^k3f-q2: PW [^]*\nPW .*: 7\n$/],
  [{ ...ACTIVE, asks: ASKS }, ['asks', '--json'], 0, { asks: ASKS }],
  [{ ...ACTIVE, asks: ASKS }, ['info'], 0, HARMLESS.slice(0, 40)],
  [{ ...ACTIVE, asks: ASKS }, ['answer', 'k3f-q2', 'a=1'], 0, /^a=1 \(PW /],
  [{ ...ACTIVE, result: HOSTILE, asks: ASKS }, ['answer', 'k3f-q2', '--json'], 0,
    { result: HOSTILE, id: 'k3f-q2', message: `${HARMLESS.slice(0, -1)}${'😀'.repeat(134)}`, arguments: {} }],
  ...['loss < 1', 'text = x', 'long = x'].map((condition): [object, string[], number, RegExp] => {
    const detail = { [HOSTILE]: 1, text: HOSTILE, long: 'x'.repeat(100_000) };
    return [{ ...ACTIVE, detail }, ['wait', condition, '--timeout', '1'], 4, /^.{1,3000}\n$/];
  }),
  [{ ...ACTIVE, detail: { text: HOSTILE } }, ['wait', 'text != \x1b[2J'], 0, HARMLESS.slice(0, 40)],
  [{ ...ACTIVE, detail: { text: HOSTILE } }, ['wait', 'text != x', '--json'], 0, { status: 'active', value: HOSTILE }],
];

it('control-client leaves the terminal to the shell when it ends in the background', {
  ...AT_ONCE, skip: lacks('script'),
}, async (t) => {
  let status = 'active';
  const web = await startWeb(t, () => ({ status }));
  const client = `${process.execPath} dist/bin/client.js wait paused ${web.target} > /dev/null`;
  const line = `set -m; stty -echo; ${client} & read -r line; stty echo; echo changed; wait; stty -a`;
  const { child, shows, ended } = start(t, 'script', ['--quiet', '--command', `bash -c '${line}'`, '/dev/null']);
  await until(() => web.requests.length > 1);
  child.stdin?.write('\n');
  await shows(/changed\r\n/);
  status = 'paused';
  assert.match((await ended).stdout, / echo /); // Node would restore the mode that it has found
});

describe('control-client prints no control characters', { ...AT_ONCE, skip: lacks('Unix') }, () => {
  it('of a server; with --json, it escapes them', async (t) => {
    await Promise.all(ROWS.map(async ([body, args, code, expected]) => {
      const { port } = await startWeb(t, () => body);
      const ended = await call(['--host', '127.0.0.1', '--port', `${port}`, ...args]);
      const shown = ended.stdout + ended.stderr;
      assertHarmless(shown);
      assert.equal(ended.code, code, shown);
      if (expected instanceof RegExp) return assert.match(shown, expected);
      if (typeof expected === 'string') return assert.ok(shown.includes(expected), shown);
      const { seconds, ...printed } = JSON.parse(ended.stdout) as { seconds?: number };
      assert.deepEqual([printed, linesOf(ended.stdout).length], [expected, 1]);
    }));
  });

  it('of a name, a path or a target', async (t) => {
    const folder = makeFolder(t);
    const systems = [['a\x1b[2J\n-5', ACTIVE], ['b\x1b[2J-6', { ...FIELDS, status: HOSTILE }],
      ['c\x1b[2J-7', { code: 500, error: HOSTILE }]] as const;
    for (const [name, body] of systems) await startWeb(t, () => body, { socketPath: join(folder, `${name}.sock`) });
    await startSilent(t, join(folder, 'd\x1b[2J-8.sock'));
    const rows: [args: string[], shown: RegExp][] = [
      [['list', '--timeout', '4'], /^PW \]0;title .*\n/m], [['list', '--json', '--timeout', '4'], /^\{/],
      [['status', '--all', '--timeout', '4'], /: c \[2J: PW /], [['pause', '5'], /^a \[2J {2,}ok/],
      [['pause', '7', '--json'], /: c \[2J: PW/], [['pause', 'x'], /only a \[2J , b \[2J/],
      [['status', `unix:${folder}/\x1b[2J\u202e`], / \[2J {3}offline: /],
    ];
    await Promise.all(rows.map(async ([args, pattern]) => {
      const { stdout, stderr } = await run(t, args[1]?.startsWith('unix:') ? args : [...args, '--dir', folder]);
      assertHarmless(stdout + stderr);
      assert.match(stdout + stderr, pattern);
    }));
  });
});
