import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { hostname, userInfo } from 'node:os';
import { relative } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus, VERSION } from '../../../control.ts';
import {
  assertHarmless, freePort, HARMLESS, HOSTILE, lacksScript, lacksSockets, launchSystem, makeSocketPath, NO_TOKEN,
  runProgram, start, startImpostor, startOldServer, startProgram, startServer, startSystem, TOKEN, until, WRONG_ACCESS,
} from '../helpers.ts';
import { commandsFor, helpOf, STATUS_WORDS } from '../../shared/commands.ts';
import { describeStatus } from '../../shared/describe.ts';
import type { Ended, Running } from '../helpers.ts';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';

describe('control-client', { concurrency: 3 }, () => {
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
    assert.match(outcome.id, /^\w{3}-3$/);
    const expected = { result: 'ok', id: outcome.id, state: 'done', seconds: outcome.seconds, status: 'offline' };
    assert.deepEqual(outcome, expected);
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
    server.report({});
    assert.deepEqual(await ended, { code: 0, stdout: 'paused\n', stderr: '' });
  });

  it('--timeout need not be a whole number of milliseconds', async (t) => {
    const port = await startSystem(t);
    assert.equal((await client(t, port, 'pause', '--wait', '--timeout', '2.01')).stdout, 'paused\n');
  });

  it('--wait stops at --timeout with exit code 4', async (t) => {
    const { port } = await startServer(t);
    const ended = await client(t, port, 'pause', '--wait', '--timeout', '2', '--json');
    assert.equal(ended.code, 4);
    const outcome = JSON.parse(ended.stdout);
    assert.equal(outcome.status, 'active');
    assert.match(outcome.error, /^not paused after \d\.\d s: the system is active; the command is still pending$/);
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
    const ended = await client(t, port, 'shutdown', '--wait', '--timeout', '2', '--json');
    assert.equal(ended.code, 4);
    const { status, error } = JSON.parse(ended.stdout);
    assert.equal(status, undefined);
    const reason = 'the system does not report its status; the command is still pending';
    assert.match(error, new RegExp(`^not shut down after \\d\\.\\d s: ${reason}$`));
    assert.equal(server.receiveCommand(), 'shutdown');
  });

  it('save-state --wait prints what the program tells', async (t) => {
    const values = ['states/1.json', 7, undefined, {}, '\x1b[2J\u202e'.repeat(3000)];
    const port = await startSystem(t, { saveState: () => values.shift() });
    for (const stdout of ['states/1.json\n', '7\n', 'ok\n', 'ok\n']) {
      assert.deepEqual(await client(t, port, 'save-state', '--wait'), { code: 0, stdout, stderr: '' });
    }
    const { code, stdout } = await client(t, port, 'save-state', '--wait');
    assert.deepEqual([code, stdout], [0, `${'[2J '.repeat(250)}\n`]);
  });

  it('--wait ends at once when the command fails, and tells why', async (t) => {
    let isBroken = true; // until the system is to end
    const breaks = (reason: string) => () => isBroken && assert.fail(reason);
    const port = await startSystem(t, { onResumed: breaks('no GPU'), saveState: breaks('ENOSPC: no space left') });
    const failing = await startSystem(t, { onPaused: breaks('GPU busy') });
    const start = performance.now();
    const all: [port: number, command: string, what: string, reason: string][] = [
      [failing, 'pause', 'not paused', 'onPaused failed: GPU busy'],
      [failing, 'save-state', 'not saved', 'onPaused failed: GPU busy'],
      [port, 'save-state', 'not saved', 'ENOSPC: no space left'],
      [port, 'shutdown', 'not shut down', 'ENOSPC: no space left'], // the system is paused from now on
      [port, 'resume', 'not resumed', 'onResumed failed: no GPU'],
    ];
    for (const [where, command, what, error] of all) {
      const { code, stdout, stderr } = await client(t, where, command, '--wait', '--json');
      const { seconds, status, ...outcome } = JSON.parse(stdout);
      assert.deepEqual([code, stderr], [1, `control-client: ${what}: ${error}\n`]);
      assert.deepEqual(outcome, { state: 'failed', error });
    }
    assert.ok(performance.now() - start < 20_000, 'no wait reached its time limit');
    isBroken = false;
  });

  it('follows a command that takes longer than one request, and sends it once', async (t) => {
    const { port, server } = await startServer(t);
    const ended = client(t, port, 'save-state', '--wait', '--timeout', '1.9');
    assert.equal(await server.nextCommand(), 'save-state');
    await sleep(1300); // one request waits for whole seconds
    server.report({ value: 'states/1.json' });
    assert.deepEqual(await ended, { code: 0, stdout: 'states/1.json\n', stderr: '' });
    assert.equal(server.hasCommands(), false);
  });

  it('save-state --wait stops at --timeout with exit code 4', async (t) => {
    const { port } = await startServer(t);
    const { code, stdout, stderr } = await client(t, port, 'save-state', '--wait', '--timeout', '1.2');
    assert.deepEqual([code, stdout], [4, '']);
    assert.match(stderr, /^control-client: not saved after 1\.\d s: the system is active; .* still pending\n$/);
  });

  for (const isOriginal of [false, true]) {
    it(`--wait follows a server that tells no outcome by its status${isOriginal ? ', a number' : ''}`, async (t) => {
      const { port, posted } = await startOldServer(t, isOriginal);
      assert.deepEqual(await client(t, port, 'status'), { code: 0, stdout: 'active\n', stderr: '' });
      assert.deepEqual(await client(t, port, 'pause', '--wait'), { code: 0, stdout: 'paused\n', stderr: '' });
      assert.deepEqual(await client(t, port, 'resume', '--wait'), { code: 0, stdout: 'active\n', stderr: '' });
      const unconfirmed = 'control-client: accepted, but the server does not tell when a command is done\n';
      assert.deepEqual(await client(t, port, 'save-state', '--wait'), { code: 4, stdout: '', stderr: unconfirmed });
      const old = 'control-client: the server is of version 0.2 or older, which tells its status only\n';
      assert.deepEqual(await client(t, port, 'info'), { code: 1, stdout: '', stderr: old });
      const watching = watch(t, port);
      await watching.shows(/  active\n/);
      assert.equal((await client(t, port, 'pause')).stdout, 'ok\n');
      assert.deepEqual(await client(t, port, 'wait', 'paused'), { code: 0, stdout: 'paused\n', stderr: '' });
      await watching.shows(/  paused\n/);
      const json = JSON.parse((await client(t, port, 'shutdown', '--wait', '--json')).stdout);
      assert.deepEqual({ ...json, seconds: 0 }, { result: 'ok', seconds: 0, status: 'offline' });
      assert.deepEqual(posted, ['pause', 'resume', 'save-state', 'pause', 'shutdown']);
    });
  }

  it('sends who and why', async (t) => {
    const { address: { port }, client: api } = await launchSystem(t, {}, { webApiAddress: ['localhost', 0] });
    const send = (args: string[], by?: string): Promise<Ended> => {
      return runProgram(t, 'client', ['--port', `${port}`, 'resume', ...args], '', { CONTROL_BY: by });
    };
    await send([]);
    await send(['--wait', '--reason', 'the GPU is free & mine'], 'ana@laptop');
    await send(['--by', 'bob'], 'ana@laptop');
    await send(['--by', ''], 'ana@laptop');
    await send([], '');
    const { commands = [] } = await api.info() ?? {};
    const self = `${userInfo().username}@${hostname()}`;
    assert.deepEqual(commands.map(({ by }) => by), [self, 'ana@laptop', 'bob', undefined, undefined]);
    assert.equal(commands[1]?.reason, 'the GPU is free & mine');
  });

  it('info prints what is known, with --json as received', async (t) => {
    const describe = (): object => ({ episode: 7, note: '\u202e' });
    const { address: { port }, client: api } = await launchSystem(t, { describe }, {
      name: 'cartpole', webApiAddress: ['localhost', 0],
    });
    await api.request('pause', { wait: 5, by: 'ana@laptop', reason: 'lunch' });
    let stdout = '';
    await until(async () => { // a busy machine tells no detail, and that the program has not responded for a second
      const ended = await client(t, port, 'info');
      assert.deepEqual([ended.code, ended.stderr], [0, '']);
      stdout = ended.stdout;
      return stdout.includes('\ndetail') && !stdout.includes('not responded');
    });
    for (const line of [
      /^name      cartpole \(process \d+ on .+\)$/m, /^status    paused \d+ s ago by ana@laptop: lunch$/m,
      /^detail    episode 7, note  $/m, /^commands  pause by ana@laptop \(lunch\) done in 0\.\d\d s$/m,
    ]) assert.match(stdout, line);
    const json = await client(t, port, 'info', '--json');
    assertHarmless(json.stdout);
    const { heardAt, ...received } = JSON.parse(json.stdout);
    assert.deepEqual({ heardAt, ...received }, { ...await api.info(), heardAt });
  });

  it('watch prints each new status and each finished command', async (t) => {
    const port = await freePort();
    const [text, json] = [watch(t, port), watch(t, port, '--json')];
    await Promise.all([text.shows(/  offline: http.*ECONNREFUSED.*\n$/), json.shows(/offline.*\n$/)]);
    let isBroken = true;
    const saveState = async (): Promise<string> => {
      if (isBroken) assert.fail('ENOSPC');
      await sleep(300); // a system that ends within milliseconds cannot be asked for its last outcome
      return 'states/1.json';
    };
    const system = await launchSystem(t, { saveState }, { webApiAddress: ['localhost', port] });
    const shows = (pattern: RegExp, field: object): Promise<unknown> => Promise.all([
      text.shows(pattern),
      until(() => json.output().split('\n').slice(0, -1).some((line) => {
        const change = JSON.parse(line);
        return Object.entries(field).every(([name, value]) => change[name] === value);
      }), json.output),
    ]);
    await shows(/  active\n/, { status: 'active' });
    const by = 'ana@laptop';
    await system.client.request('pause', { by, reason: 'lunch' });
    await shows(/  paused by ana@laptop: lunch\n/, { status: 'paused', by, reason: 'lunch' });
    await shows(/  pause by ana@laptop \(lunch\) done in 0\.\d\d s\n/, { command: 'pause', state: 'done', by });
    await system.client.request('save-state', { by, wait: 5 });
    await shows(/  save-state by ana@laptop failed after \d\.\d\d s: ENOSPC\n/, { state: 'failed', error: 'ENOSPC' });
    isBroken = false;
    await system.client.request('save-state', { wait: 5 });
    await shows(/  save-state done in \d\.\d\d s: states\/1.json\n/, { state: 'done', value: 'states/1.json' });
    await system.client.shutdown();
    await shows(/  shutdown done in .*: states\/1.json\n[^]*offline: .*\n$/, { command: 'shutdown', state: 'done' });
    await launchSystem(t, {}, { webApiAddress: ['localhost', port] });
    await text.shows(/offline: .*\n.*  active\n$/);
    for (const line of text.output().trimEnd().split('\n')) assert.match(line, /^\d{4}(-\d\d){2} \d\d(:\d\d){2}  \w/);
  });

  it('watch ends quietly when nobody reads its output', async (t) => {
    const { address: { port }, client: api } = await launchSystem(t, {}, { webApiAddress: ['localhost', 0] });
    const { child, ended, shows, output } = watch(t, port, '--json');
    await shows(/active.*\n/);
    child.stdout?.destroy();
    await api.pause();
    assert.deepEqual([(await ended).code, output().split('\n').length], [0, 2]);
  });

  it('watch ends when access is denied', async (t) => {
    const { port } = await startServer(t, { token: TOKEN });
    assert.deepEqual(await client(t, port, 'watch'), { code: 1, stdout: '', stderr: `control-client: ${NO_TOKEN}\n` });
    assert.deepEqual(await client(t, port, 'wait', 'offline'), await client(t, port, 'watch'));
  });

  it('wait waits for a status, of a system that is offline, too', async (t) => {
    const port = await freePort();
    const late = await client(t, port, 'wait', 'active', '--timeout', '0.3', '--json');
    assert.equal(late.code, 4);
    assert.match(late.stderr, /^control-client: not active after \d\.\d s: the system is offline\n$/);
    const ended = client(t, port, 'wait', 'active', '--json');
    const paused = client(t, port, 'wait', 'shutting-down');
    const saveState = (): Promise<void> => sleep(500);
    const { client: api } = await launchSystem(t, { saveState }, { webApiAddress: ['localhost', port] });
    const { code, stdout, stderr } = await ended;
    assert.deepEqual([code, JSON.parse(stdout).status, stderr], [0, 'active', '']);
    await api.shutdown();
    assert.deepEqual(await paused, { code: 0, stdout: 'shutting down\n', stderr: '' });
  });

  it('status tells more on a terminal', { skip: lacksScript() }, async (t) => {
    const { port, server, client: api } = await startServer(t);
    const command = `exec ${process.execPath} dist/bin/client.js --port ${port} status`;
    const status = async (): Promise<string> => {
      return (await start(t, 'script', ['--quiet', '--return', '--command', command, '/dev/null']).ended).stdout.trim();
    };
    assert.equal(await status(), 'active');
    await api.pause();
    assert.equal(await status(), 'active; pause waits for the step');
    assert.equal(server.receiveCommand(), 'pause');
    assert.equal((await client(t, port, 'status')).stdout, 'active\n');
  });

  it('status tells how long a step takes', () => {
    const heardAt = new Date(Date.now() - 4500).toISOString();
    const waiting = { command: 'pause', state: 'waiting' };
    const texts: [info: object, text: string][] = [
      [{ status: 'active', heardAt, by: 'ana' }, 'active, in a step for 4 s'],
      [{ status: 'active', heardAt, commands: [waiting] }, 'active, in a step for 4 s; pause waits for the step'],
      [{ status: 'paused', commands: [waiting, waiting] }, 'paused; pause, pause wait'],
      [{ status: 'paused', heardAt, since: heardAt }, 'paused 4 s ago; the program has not responded for 4 s'],
      [{ status: 'pausing', by: 'itself', reason: 'budget' }, 'pausing by itself: budget'],
      [{ status: null, commands: { length: 3 } }, 'unknown'],
    ];
    for (const [info, text] of texts) assert.equal(describeStatus(info as Record<string, unknown>), text);
  });

  it('accepts an IP address in brackets', async (t) => {
    const { port } = await startServer(t);
    assert.equal((await client(t, port, 'status', '--host', '[127.0.0.1]')).stdout, 'active\n');
  });

  it('--wait stops early when the system is offline', async (t) => {
    const { port, server } = await startServer(t);
    const ended = client(t, port, 'pause', '--wait');
    await until(() => server.hasCommands());
    await server.close();
    const { code, stderr } = await ended;
    assert.match(stderr, /^control-client: not paused after \d\.\d s: the system is offline\n$/);
    assert.equal(code, 3);
  });

  it('reports a full queue with exit code 1', async (t) => {
    const { port } = await startServer(t, { maxQueueSize: 1 });
    assert.equal((await client(t, port, 'pause')).code, 0);
    const error = 'Command queue is full, try again later';
    const refused = { code: 1, stdout: '', stderr: `control-client: ${error}\n` };
    assert.deepEqual(await client(t, port, 'pause'), refused);
    const json = { ...refused, stdout: `${JSON.stringify({ error })}\n` };
    assert.deepEqual(await client(t, port, 'pause', '--json'), json);
    const { code, stdout, stderr } = await client(t, port, 'pause', '--wait', '--timeout', '2');
    assert.deepEqual([code, stdout], [1, '']);
    assert.match(stderr, new RegExp(`^control-client: not paused after \\d\\.\\d s: ${error}\n$`));
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
    const waited = await client(t, ok, 'pause', '--wait', '--timeout', '2', '--json');
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

  it('reports a system that does not respond with exit code 5', async (t) => {
    const server = createServer().listen(0, 'localhost');
    t.after(() => server.close());
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    const silent = await client(t, port, 'status', '--timeout', '2');
    const line = new RegExp(`^control-client: localhost:${port} has not answered within \\d(\\.\\d)? s\n$`);
    assert.deepEqual([silent.code, silent.stdout], [5, 'no answer\n']);
    assert.match(silent.stderr, line);
    const { code, stdout, stderr } = await client(t, port, 'pause', '--wait', '--timeout', '2', '--json');
    const { error, ...outcome } = JSON.parse(stdout);
    assert.deepEqual([code, Object.keys(outcome), stderr], [5, ['seconds'], `control-client: ${error}\n`]);
    assert.match(error, /^pause sent, but not answered within \d(\.\d)? s: it may still take effect$/);
  });

  const command = `the command must be one of ${commandsFor('client').map(({ name }) => name).join(', ')}, got`;
  const status = `the status must be one of ${STATUS_WORDS.join(', ')}, got`;
  const statusOfOn = (got: string): string => {
    return status.replace('status', 'status of --on').replace(', got', `, no-answer, got '${got}'`);
  };
  const requires = 'requires pause, resume, save-state or shutdown, got';
  const seconds = '--timeout must be a number of seconds above 0 and at most 2147483, got';
  const wrong: [args: string[], line: string][] = [
    [[], `${command} nothing`],
    [['stop'], `${command} 'stop'`],
    [[''], `${command} ''`],
    [['pause', 'resume'], "unexpected argument 'resume'; a host of that name is resume:8391"],
    [['status', '--wait'], `--wait ${requires} 'status'`],
    [['wait', 'paused', '--wait'], `--wait ${requires} 'wait'`],
    [['info', '--reason', 'why'], `--reason ${requires} 'info'`],
    [['watch', '--by', ''], `--by ${requires} 'watch'`],
    [['wait'], `${status} nothing`],
    [['wait', 'done'], `${status} 'done'`],
    [['wait', 'paused', 'active'], "unexpected argument 'active'; a host of that name is active:8391"],
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
    [['pause', '--timeout', '5'], '--timeout requires --wait: pause does not wait without it'],
    [['watch', '--timeout', '5'],
      "--timeout requires status, info, list, wait, pause, resume, save-state or shutdown, got 'watch'"],
    [['status', '--host', 'a', '--host', 'b'], "--host must be given only once, got 'a' and 'b'"],
    [['status', '--port', '1', '--port=1'], "--port must be given only once, got '1' and '1'"],
    [['status', '--socket', '/nowhere/a', '--socket', '/nowhere/b'],
      "--socket must be given only once, got '/nowhere/a' and '/nowhere/b'"],
    [['pause', '--reason', '', '--reason', 'b'], "--reason must be given only once, got '' and 'b'"],
    [['help', 'pause', 'resume'], "unexpected argument 'resume'; see --help"],
    [['help', 'stop'], `${command} 'stop'`],
    [['quit'], `${command} 'quit'`],
    [['pause', '--exec', 'true'], "--exec requires watch, got 'pause'"],
    [['watch', '--exec', ''], '--exec must not be empty'],
    [['watch', '--on', 'paused'], '--on requires --exec'],
    [['watch', '--exec', 'true', '--on', 'paused,done'], statusOfOn('done')],
    [['watch', '--exec', 'true', '--on', 'shutting down'], statusOfOn('shutting down')],
    [['watch', '--exec', 'true', '--on', ''], statusOfOn('')],
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

  it('help explains a command', async (t) => {
    const stdout = '  p, pause           pause the system\n';
    assert.deepEqual(await runProgram(t, 'client', ['help', 'p']), { code: 0, stdout, stderr: '' });
  });

  it('--help prints every command and every word for it', async (t) => {
    const { stdout } = await runProgram(t, 'client', ['help']);
    for (const entry of commandsFor('client')) assert.ok(stdout.includes(`\n${helpOf(entry)}\n`), entry.name);
    assert.ok(!/\bquit\b/.test(stdout), 'a command of the console');
    for (const word of ['--help', '-h', 'HELP', 'h', '?']) {
      assert.deepEqual(await runProgram(t, 'client', [word]), { code: 0, stdout, stderr: '' }, word);
    }
  });

  it('--help prints the exit codes, --version the version', async (t) => {
    const help = await runProgram(t, 'client', ['--help']);
    assert.equal(help.code, 0);
    for (let code = 0; code <= 5; code += 1) assert.match(help.stdout, new RegExp(`^  ${code}  `, 'm'));
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

function watch(t: TestContext, port: number, ...args: string[]): Running {
  return startProgram(t, 'client', ['--port', `${port}`, 'watch', ...args]);
}

function client(t: TestContext, port: number, ...args: string[]): ReturnType<typeof runProgram> {
  return runProgram(t, 'client', ['--port', String(port), ...args]);
}
