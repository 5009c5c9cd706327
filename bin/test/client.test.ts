import assert from 'node:assert/strict';
import { createServer } from 'node:net';
import { relative } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus, VERSION } from '../../control.ts';
import {
  assertHarmless, freePort, HARMLESS, HOSTILE, lacksSockets, makeSocketPath, NO_TOKEN, runProgram, startImpostor,
  startServer, startSystem, TOKEN, WRONG_ACCESS,
} from './helpers.ts';
import type { Ended } from './helpers.ts';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';

describe('control-client', () => {
  it('prints the status', async (t) => {
    const port = await startSystem(t);
    assert.deepEqual(await client(t, port, 'status'), { code: 0, stdout: 'active\n', stderr: '' });
    const json = { code: 0, stdout: '{"status":"active"}\n', stderr: '' };
    assert.deepEqual(await client(t, port, 'status', '--json'), json);
  });

  it('sends each command and prints the result', async (t) => {
    const { port, server } = await startServer(t);
    for (const command of ['pause', 'resume', 'save-state', 'shutdown']) {
      assert.deepEqual(await client(t, port, command), { code: 0, stdout: 'ok\n', stderr: '' });
      assert.equal(server.receiveCommand(), command);
    }
    assert.deepEqual(await client(t, port, 'pause', '--json'), { code: 0, stdout: '{"result":"ok"}\n', stderr: '' });
  });

  it('--wait waits until the system is paused, active, offline', async (t) => {
    const hook = (): Promise<void> => sleep(150);
    const port = await startSystem(t, { onPaused: hook, onResumed: hook, saveState: hook });
    assert.deepEqual(await client(t, port, 'pause', '--wait'), { code: 0, stdout: 'paused\n', stderr: '' });
    assert.deepEqual(await client(t, port, 'resume', '--wait'), { code: 0, stdout: 'active\n', stderr: '' });
    const ended = await client(t, port, 'shutdown', '--wait', '--json');
    assert.equal(ended.code, 0);
    const outcome = JSON.parse(ended.stdout);
    assert.deepEqual({ ...outcome, seconds: 0 }, { result: 'ok', status: 'offline', seconds: 0 });
    assert.ok(outcome.seconds > 0.1, `the last save alone takes 0.15 s, got ${outcome.seconds}`);
    assert.equal((await client(t, port, 'status')).code, 3);
  });

  it('--wait ignores statuses from before the command takes effect', async (t) => {
    let status = SystemStatus.ACTIVE;
    const { port, server } = await startServer(t, { systemStatus: () => status });
    const ended = client(t, port, 'pause', '--wait');
    await server.nextCommand();
    await sleep(300);
    status = SystemStatus.PAUSED;
    assert.deepEqual(await ended, { code: 0, stdout: 'paused\n', stderr: '' });
  });

  it('--timeout need not be a whole number of milliseconds', async (t) => {
    const port = await startSystem(t);
    assert.equal((await client(t, port, 'pause', '--wait', '--timeout', '2.01')).stdout, 'paused\n');
  });

  it('--wait stops at --timeout with exit code 4', async (t) => {
    const { port } = await startServer(t);
    const ended = await client(t, port, 'pause', '--wait', '--timeout', '0.5', '--json');
    assert.equal(ended.code, 4);
    const outcome = JSON.parse(ended.stdout);
    assert.equal(outcome.status, 'active');
    assert.match(outcome.error, /^not paused after 0\.\d s: the system is active; the command is still pending$/);
    assert.equal(ended.stderr, `control-client: ${outcome.error}\n`);
  });

  it('--wait stops early when the system is shutting down', async (t) => {
    const { port } = await startServer(t, { systemStatus: () => SystemStatus.SHUTTING_DOWN });
    const ended = await client(t, port, 'pause', '--wait');
    assert.equal(ended.code, 4);
    assert.equal(ended.stdout, '');
    assert.match(ended.stderr, /^control-client: not paused after [012]\.\d s: the system is shutting down\n$/);
  });

  it('--wait distinguishes a system that reports no status from one that is offline', async (t) => {
    const { port, server } = await startServer(t, { systemStatus: () => assert.fail('not today') });
    const ended = await client(t, port, 'shutdown', '--wait', '--timeout', '0.3', '--json');
    assert.equal(ended.code, 4);
    const { status, error } = JSON.parse(ended.stdout);
    assert.equal(status, undefined);
    const reason = 'the system does not report its status; the command is still pending';
    assert.match(error, new RegExp(`^not offline after 0\\.\\d s: ${reason}$`));
    assert.equal(server.receiveCommand(), 'shutdown');
  });

  it('accepts an IP address in brackets', async (t) => {
    const { port } = await startServer(t);
    assert.equal((await client(t, port, 'status', '--host', '[127.0.0.1]')).stdout, 'active\n');
  });

  it('--wait stops early when the system is offline', async (t) => {
    const { port, server } = await startServer(t);
    const ended = client(t, port, 'pause', '--wait');
    await server.nextCommand();
    await server.close();
    assert.equal((await ended).code, 3);
  });

  it('reports a full queue with exit code 1', async (t) => {
    const { port } = await startServer(t, { maxQueueSize: 1 });
    assert.equal((await client(t, port, 'pause')).code, 0);
    const error = 'Command queue is full, try again later';
    const refused = { code: 1, stdout: '', stderr: `control-client: ${error}\n` };
    assert.deepEqual(await client(t, port, 'pause', '--wait'), refused);
    const json = { ...refused, stdout: `${JSON.stringify({ error })}\n` };
    assert.deepEqual(await client(t, port, 'pause', '--json'), json);
  });

  it('reports a failing status provider with exit code 1', async (t) => {
    const { port } = await startServer(t, { systemStatus: () => assert.fail('not today') });
    const stderr = 'control-client: Internal server error\n';
    assert.deepEqual(await client(t, port, 'status'), { code: 1, stdout: '', stderr });
  });

  const known = 'active, pausing, paused, resuming, shutting down';
  for (const status of ['draining', 'offline', 'unknown', '']) {
    it(`reports the unknown status '${status}' with exit code 1`, async (t) => {
      const port = await startImpostor(t, 200, { status });
      const error = `the status must be one of ${known}, got '${status}'`;
      const stderr = `control-client: ${error}\n`;
      assert.deepEqual(await client(t, port, 'status'), { code: 1, stdout: 'unknown\n', stderr });
      const json = { code: 1, stdout: `${JSON.stringify({ status, error })}\n`, stderr };
      assert.deepEqual(await client(t, port, 'status', '--json'), json);
    });
  }

  it('prints no control characters of a server; with --json, escapes them', async (t) => {
    const ok = await startImpostor(t, 200, { status: HOSTILE, result: HOSTILE });
    const failing = await startImpostor(t, 500, { error: HOSTILE });
    const unknown = `the status must be one of ${known}, got '${HARMLESS}'`;
    const line = (error: string): string => `control-client: ${error}\n`;
    const all: [port: number, command: string, Ended, json: object][] = [
      [ok, 'status', { code: 1, stdout: 'unknown\n', stderr: line(unknown) }, { status: HOSTILE, error: unknown }],
      [ok, 'pause', { code: 0, stdout: `${HARMLESS}\n`, stderr: '' }, { result: HOSTILE }],
      [failing, 'status', { code: 1, stdout: '', stderr: line(HARMLESS) }, { error: HOSTILE }],
      [failing, 'pause', { code: 1, stdout: '', stderr: line(HARMLESS) }, { error: HOSTILE }],
    ];
    for (const [port, command, ended, json] of all) {
      assert.deepEqual(await client(t, port, command), ended);
      const { code, stdout, stderr } = await client(t, port, command, '--json');
      assert.deepEqual([code, JSON.parse(stdout), stderr], [ended.code, json, ended.stderr]);
      assert.equal(stdout.split('\n').length, 2);
      for (const text of [ended.stdout, ended.stderr, stdout]) assertHarmless(text);
    }
    const waited = await client(t, ok, 'pause', '--wait', '--timeout', '0.2', '--json');
    assertHarmless(waited.stdout + waited.stderr);
    assert.deepEqual([waited.code, JSON.parse(waited.stdout).result], [4, HOSTILE]);
  });

  it('reports a system that is offline with exit code 3', async (t) => {
    const port = await freePort();
    const offline = await client(t, port, 'status');
    assert.deepEqual([offline.code, offline.stdout], [3, 'offline\n']);
    const line = `control-client: http://localhost:${port} does not respond: .*ECONNREFUSED.*\n`;
    assert.match(offline.stderr, new RegExp(`^${line}$`));
    const command = await client(t, port, 'pause', '--json');
    assert.equal(command.code, 3);
    assert.match(JSON.parse(command.stdout).error, /does not respond/);
  });

  it('--timeout limits a request to a server that never responds', async (t) => {
    const server = createServer().listen(0, 'localhost');
    t.after(() => server.close());
    await new Promise((resolve) => server.once('listening', resolve));
    const { port } = server.address() as AddressInfo;
    const ended = await client(t, port, 'pause', '--timeout', '0.3');
    assert.equal(ended.code, 3);
    assert.match(ended.stderr, /does not respond: timeout after 0\.3 s\n$/);
  });

  const command = 'the command must be one of status, pause, resume, save-state, shutdown, got';
  const wait = '--wait requires pause, resume or shutdown, got';
  const seconds = '--timeout must be a number of seconds above 0 and at most 2147483, got';
  const wrong: [args: string[], line: string][] = [
    [[], `${command} nothing`],
    [['stop'], `${command} 'stop'`],
    [[''], `${command} ''`],
    [['pause', 'resume'], "unexpected argument 'resume'; see --help"],
    [['status', '--wait'], `${wait} 'status'`],
    [['save-state', '--wait'], `${wait} 'save-state'`],
    [['status', '--prot', '1'], "unknown option '--prot'; see --help"],
    [['status', '--port'], '--port requires a value; see --help'],
    [['status', '--port', '-1'],
      '--port requires a value (write --port=VALUE if it starts with a dash); see --help'],
    [['status', '--port=-1'], "--port must be an integer from 1 to 65535, got '-1'"],
    [['status', '--port', '0'], "--port must be an integer from 1 to 65535, got '0'"],
    [['status', '--port', '65536'], "--port must be an integer from 1 to 65535, got '65536'"],
    [['status', '--port', '80.5'], "--port must be an integer from 1 to 65535, got '80.5'"],
    [['status', '--port', ''], "--port must be an integer from 1 to 65535, got ''"],
    [['status', '--port', 'NaN'], "--port must be an integer from 1 to 65535, got 'NaN'"],
    [['status', '--host', ''], "--host must be a host name or an IP address, got ''"],
    [['status', '--host', ' '], "--host must be a host name or an IP address, got ' '"],
    [['status', '--host', 'http://localhost'], "--host must be a host name or an IP address, got 'http://localhost'"],
    [['status', '--host', 'localhost:8391'], "--host must be a host name or an IP address, got 'localhost:8391'"],
    [['status', '--host', '[::1'], "--host must be a host name or an IP address, got '[::1'"],
    [['status', '--timeout', '0'], `${seconds} '0'`],
    [['status', '--timeout', 'soon'], `${seconds} 'soon'`],
    [['status', '--timeout', '1e3'], `${seconds} '1e3'`],
    [['status', '--timeout', '9999999'], `${seconds} '9999999'`],
    [['status', '--json=1'], "option '--json' does not take an argument; see --help"],
  ];
  for (const [args, line] of wrong) {
    it(`rejects: control-client ${args.map((arg) => arg || "''").join(' ')}`, async (t) => {
      const stderr = `control-client: ${line}\n`;
      assert.deepEqual(await runProgram(t, 'client', args), { code: 2, stdout: '', stderr });
    });
  }

  it('prints no control characters of an argument', async (t) => {
    const stderr = `control-client: ${command} 'stop [2J '\n`;
    assert.deepEqual(await runProgram(t, 'client', ['stop\n\x1b[2J\x9b\u202e']), { code: 2, stdout: '', stderr });
  });

  it('--help prints the exit codes, --version the version', async (t) => {
    const help = await runProgram(t, 'client', ['--help']);
    assert.equal(help.code, 0);
    for (let code = 0; code <= 4; code += 1) assert.match(help.stdout, new RegExp(`^  ${code}  `, 'm'));
    assert.deepEqual(await runProgram(t, 'client', ['--version']), { code: 0, stdout: `${VERSION}\n`, stderr: '' });
  });
});

describe('control-client with a Unix socket or a token', { concurrency: 4, skip: lacksSockets() }, () => {
  it('sends commands to the socket, with the token in CONTROL_TOKEN', async (t) => {
    const socketPath = makeSocketPath(t);
    const { server } = await startServer(t, { port: undefined, socketPath, token: TOKEN });
    const ask = (...args: string[]): ReturnType<typeof runProgram> =>
      runProgram(t, 'client', args, '', { CONTROL_TOKEN: TOKEN });
    assert.deepEqual(await ask('status', '--socket', socketPath), { code: 0, stdout: 'active\n', stderr: '' });
    const path = relative(process.cwd(), socketPath);
    assert.deepEqual(await ask('--socket', path, 'pause'), { code: 0, stdout: 'ok\n', stderr: '' });
    assert.equal(server.receiveCommand(), 'pause');
  });

  it('sends the token to a port', async (t) => {
    const { port } = await startServer(t, { token: TOKEN });
    const args = ['--port', `${port}`, 'status'];
    const { stdout } = await runProgram(t, 'client', args, '', { CONTROL_TOKEN: TOKEN });
    assert.equal(stdout, 'active\n');
  });

  it('reports a missing or wrong token with exit code 1', async (t) => {
    const socketPath = makeSocketPath(t);
    const { server } = await startServer(t, { port: undefined, socketPath, token: TOKEN });
    const refused = { code: 1, stdout: '', stderr: `control-client: ${NO_TOKEN}\n` };
    await Promise.all([undefined, '', `not-${TOKEN}`].map(async (token) => {
      for (const args of [['status'], ['pause', '--wait']]) {
        const ended = await runProgram(t, 'client', [...args, '--socket', socketPath], '', { CONTROL_TOKEN: token });
        assert.deepEqual(ended, refused, `${args} with the token ${token}`);
      }
    }));
    assert.equal(server.hasCommands(), false);
  });

  it('ignores an empty CONTROL_TOKEN', async (t) => {
    const socketPath = makeSocketPath(t);
    await startServer(t, { port: undefined, socketPath });
    const ended = await runProgram(t, 'client', ['status', '--socket', socketPath], '', { CONTROL_TOKEN: '' });
    assert.deepEqual(ended, { code: 0, stdout: 'active\n', stderr: '' });
  });

  it('reports a missing socket with exit code 3', async (t) => {
    const socketPath = makeSocketPath(t);
    const args = ['status', '--socket', socketPath, '--json'];
    const { code, stdout, stderr } = await runProgram(t, 'client', args, '', { CONTROL_TOKEN: TOKEN });
    const error = `unix:${socketPath} does not respond: connect ENOENT ${socketPath}`;
    assert.deepEqual([code, JSON.parse(stdout)], [3, { status: 'offline', error }]);
    assert.equal(stderr, `control-client: ${error}\n`);
  });

  for (const [what, args, token, line] of WRONG_ACCESS) {
    it(`rejects ${what}`, async (t) => {
      const ended = await runProgram(t, 'client', ['status', ...args], '', { CONTROL_TOKEN: token });
      assert.deepEqual(ended, { code: 2, stdout: '', stderr: `control-client: ${line}\n` });
    });
  }

  it('--help mentions --socket and CONTROL_TOKEN, not the token', async (t) => {
    const { stdout } = await runProgram(t, 'client', ['--help'], '', { CONTROL_TOKEN: TOKEN });
    assert.match(stdout, /^ {2}--socket PATH .*[^]*\bCONTROL_TOKEN\b/m);
    assert.ok(!stdout.includes(TOKEN));
  });
});

function client(t: TestContext, port: number, ...args: string[]): ReturnType<typeof runProgram> {
  return runProgram(t, 'client', ['--port', String(port), ...args]);
}
