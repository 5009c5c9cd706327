// control-client on a terminal: causes, the progress of --wait, and colors.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { freePort, launchSystem, start, startServer, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { AT_ONCE, at, call, onTerminal, run } from './helpers.ts';

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
      [[...at(port), 'pause'], /^(active … )?(pausing … )?paused \(\d+\.\d s\)\r\n$/],
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

  it('reports a full queue during --wait, and sends a shutdown once', async (t) => {
    const { port, server, client } = await startServer(t, { maxQueueSize: 1 });
    await client.pause();
    const { shows, ended } = onTerminal(t, [...at(port), 'shutdown', '--wait']);
    await shows(/the queue is full … /);
    assert.equal(await server.nextCommand(), 'pause');
    assert.equal(await server.nextCommand(), 'shutdown');
    assert.equal(server.hasCommands(), false);
    await server.close();
    const { code, stdout } = await ended;
    assert.match(stdout, /^the queue is full … (active … )?offline \(\d+\.\d s\)\r\n$/);
    assert.equal(code, 0);
  });
});

describe('control-client and colors', SUITE, () => {
  const COLORED = { NO_COLOR: undefined, COLORTERM: undefined, TMUX: undefined, CI: undefined, TERM: 'xterm' };
  const [GREEN, YELLOW, RED, END] = ['\x1b[32m', '\x1b[33m', '\x1b[31m', '\x1b[39m'];

  it('colors statuses and errors', async (t) => {
    const port = await freePort();
    const watching = onTerminal(t, [...at(port), 'watch'], COLORED);
    const shows = (text: string): Promise<void> => until(() => watching.output().includes(text), watching.output);
    await shows(`  ${RED}offline${END}: `);
    const { client } = await launchSystem(t, {}, { webApiAddress: ['127.0.0.1', port] });
    await shows(`  ${GREEN}active${END}\r\n`);
    await client.request('pause', { by: 'ana' });
    await shows(`  ${YELLOW}paused${END} by ana\r\n`);
    const wrong = await onTerminal(t, ['stop'], COLORED).ended;
    assert.match(wrong.stdout, /^\x1b\[31mcontrol-client: the command must be .*\x1b\[39m\r\n$/);
  });

  it('prints none with NO_COLOR or TERM=dumb', async (t) => {
    const port = await freePort();
    for (const env of [{ NO_COLOR: '1' }, { TERM: 'dumb' }]) {
      const { stdout } = await onTerminal(t, [...at(port), 'status'], { ...COLORED, ...env }).ended;
      assert.match(stdout, /^offline\r\ncontrol-client: http:.*\r\n$/);
    }
  });

  it('prints none into a pipe or a file, even if the other stream is a terminal, and none in JSON', async (t) => {
    const port = await freePort();
    const piped = await run(t, [...at(port), 'status'], '', { ...COLORED, FORCE_COLOR: '1' });
    assert.match(`${piped.stdout}${piped.stderr}`, /^offline\ncontrol-client: http:.*\n$/);
    const program = `${process.execPath} dist/bin/client.js status --port ${port} | sed 's/^/piped: /'`;
    const { stdout } = await start(t, 'script', ['--quiet', '--command', program, '/dev/null'], COLORED).ended;
    assert.match(stdout, /^piped: offline\r$/m);
    assert.match(stdout, /^\x1b\[31mcontrol-client: .*\x1b\[39m\r$/m);
    const { port: live } = await startServer(t);
    const json = await onTerminal(t, [...at(live), 'status', '--json'], COLORED).ended;
    assert.equal(json.stdout, '{"status":"active"}\r\n');
  });
});
