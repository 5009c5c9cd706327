// What control-client prints of a status and an outcome on a terminal and in color, and of hostile names; outcomes.txt
// has the rest.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { assertHarmless, freePort, HOSTILE, launchSystem, makeFolder, start, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { startPuppet } from '../../puppet.ts';
import { until } from '../../wait.ts';
import { at, AT_ONCE, call, onTerminal, run } from './helpers.ts';

const SUITE = { ...AT_ONCE, skip: lacks('script') };

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

  it('shows each status once during --wait', async (t) => {
    const commands = { evaluate: { run: () => ({ meanReturn: 497.1 }) } };
    const { address: { port } } = await launchSystem(t, { saveState: () => 'states/1.json', commands });
    const rows: [args: string[], stdout: RegExp][] = [
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
    const wrong = await onTerminal(t, ['frobnicate'], COLORED).ended;
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

it('control-client leaves the terminal to the shell when it ends in the background', {
  ...AT_ONCE, skip: lacks('script'),
}, async (t) => {
  const { target, urls, set } = await startPuppet(t);
  const client = `${process.execPath} dist/bin/client.js wait paused ${target} > /dev/null`;
  const line = `set -m; stty -echo; ${client} & read -r line; stty echo; echo changed; wait; stty -a`;
  const { child, shows, ended } = start(t, 'script', ['--quiet', '--command', `bash -c '${line}'`, '/dev/null']);
  await until(() => urls.length > 1);
  child.stdin?.write('\n');
  await shows(/changed\r\n/);
  set({ status: 'paused' });
  assert.match((await ended).stdout, / echo /); // Node would restore the mode that it has found
});

const FIELDS = Object.fromEntries(['name', 'pid', 'since', 'by', 'reason'].map((field) => [field, HOSTILE]));

describe('control-client prints no control characters', { ...AT_ONCE, skip: lacks('Unix') }, () => {
  it('of a name, a path or a target', async (t) => {
    const folder = makeFolder(t);
    const systems = [['a\x1b[2J\n-5', {}], ['b\x1b[2J-6', { ...FIELDS, status: HOSTILE }],
      ['c\x1b[2J-7', { code: 500, error: HOSTILE, post: { code: 500 } }], ['d\x1b[2J-8', { silent: true }]] as const;
    for (const [name, state] of systems) await startPuppet(t, state, { socketPath: join(folder, `${name}.sock`) });
    const rows: [args: string[], shown: RegExp][] = [
      [['list'], /^PW \]0;title .*\n/m], [['list', '--json'], /^\{/],
      [['status', '--all'], /: c \[2J: PW /], [['pause', '5'], /^a \[2J {2,}ok/],
      [['pause', '7', '--json'], /: c \[2J: PW/], [['pause', 'x'], /only a \[2J , b \[2J/],
      [['status', `unix:${folder}/\x1b[2J\u202e`], / \[2J {3}offline: /],
    ];
    await Promise.all(rows.map(async ([args, pattern]) => {
      const words = args[1]?.startsWith('unix:') ? args : [...args, '--dir', folder];
      const { stdout, stderr } = await call(words);
      assertHarmless(stdout + stderr);
      assert.match(stdout + stderr, pattern);
    }));
  });
});
