// control-client wait for a condition, resume --mine and pause --for.

import assert from 'node:assert/strict';
import { describe, it, type TestContext } from 'node:test';
import { SystemStatus } from '../../../../control.ts';
import { parseDuration } from '../../../shared/cli.ts';
import { type Ended, freePort, getInfo, launchSystem, start, startProgram, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { until } from '../../wait.ts';
import { at, AT_ONCE, call, linesOf } from './helpers.ts';
import { ACTIVE, hideFailures, startWeb, type Web } from './systems.ts';

hideFailures();

const RUN = {
  pid: 7, started: '2026-11-21T14:03:07.120Z', processes: 1, ended: 'exit code 7', 'memory MiB': 320, canSave: true,
};
const DETAIL = {
  loss: 0.05, 'mean return': 400, step: 1000, least: -3, phase: 'warm up', seven: '7', done: true, best: null,
  list: [1], processes: 8, run: RUN,
};

/** Starts a system that reports the given `/api/info`. */
function report(t: TestContext, info: () => object): Promise<Web> {
  return startWeb(t, ({ method }) => method === 'POST' ? { result: 'ok' } : { status: 'active', ...info() });
}

describe('control-client wait for a condition', AT_ONCE, () => {
  it('compares numbers as numbers, and other values as texts', async (t) => {
    const { port } = await report(t, () => ({ detail: DETAIL }));
    const rows: [condition: string, value: string | null][] = [
      ['loss < 0.1', '0.05'], ['loss<.1', '0.05'], ['loss < 5e-2', null], ['loss <= 5e-2', '0.05'],
      ['mean return >= 400', '400'], ['  mean return  >  399.9 ', '400'], ['mean return > 400', null],
      ['step = 1e3', '1000'], ['step == 1000.0', '1000'], ['step != 1000', null], ['step != 999', '1000'],
      ['step > 999', '1000'], ['step < 9', null], ['least < -2', '-3'], ['least > -10', '-3'],
      ['phase = warm up', 'warm up'], ['phase = "warm up"', 'warm up'], ['phase=warm', null],
      ['phase != warm', 'warm up'], ['phase > 0', null],
      ['seven = 7', '7'], ['seven = 7.0', null], ['seven >= 7', null], // a text
      ['done = true', 'true'], ['done = 1', null], ['done != false', 'true'], ['done > 0', null],
      ['best = null', 'null'], ['best != null', null], ['best < 1', null], ['list = 1', null], ['list > 0', null],
      ['processes = 8', '8'], ['run.processes = 1', '1'], ['run.memory MiB > 300', '320'], ['memory MiB > 0', null],
      ['run.ended = exit code 7', 'exit code 7'], ['run.canSave = true', 'true'], ['run.constructor != 1', null],
      ['Loss < 0.1', null], ['Loss != 0.1', null], ['constructor != 1', null], ['__proto__ != 1', null],
    ];
    await Promise.all(rows.map(async ([condition, value]) => {
      const { code, stdout } = await call([...at(port), 'wait', condition, '--timeout', value === null ? '1' : '60']);
      const expected = value === null ? [4, ''] : [0, `${value}\n`];
      assert.deepEqual([condition, code, stdout], [condition, ...expected]);
    }));
  });

  it('polls until the condition is met, even if the system is offline at first', async (t) => {
    const port = await freePort();
    const met = call([...at(port), 'wait', 'step >= 3', '--json']);
    let step = 0;
    const describe = (): object => ({ step: (step += 1) });
    await launchSystem(t, { describe }, { webApiAddress: ['127.0.0.1', port] });
    const { code, stdout, stderr } = await met;
    const { seconds, value, ...outcome } = JSON.parse(stdout);
    assert.deepEqual([code, outcome, stderr], [0, { status: 'active' }, '']);
    assert.ok(value >= 3 && seconds >= 1.9, stdout); // it polls once a second
  });

  it('exits with 4 at the timeout, and says what the system reports, or reported before it ended', async (t) => {
    const rows: [info: () => object, reason: string][] = [
      [() => ({ detail: DETAIL }), 'loss is 0.05'],
      [() => ({ detail: { loss: '0.001' } }), "loss is '0.001'"],
      [() => ({ detail: { accuracy: 1, step: 7 } }), 'the system reports accuracy, step, but not loss'],
      [() => ({ detail: { run: { pid: 7, started: '' } } }), 'the system reports run.pid, run.started, but not loss'],
      [() => ({ detail: null }), 'the system reports no detail'],
      [() => ({ detail: ['loss'] }), 'the system reports no detail'],
    ];
    await Promise.all(rows.map(async ([info, reason]) => {
      const { port } = await report(t, info);
      const { code, stdout, stderr } = await call([...at(port), 'wait', 'loss < 0.01', '--timeout', '6']);
      assert.deepEqual([code, stdout], [4, '']);
      assert.match(stderr, /^control-client: not loss < 0\.01 after \d\.\d s: /);
      assert.equal(stderr.split(' s: ')[1], `${reason}\n`);
    }));
  });

  it('exits with 6 once a system that was seen has ended, and has no time limit of its own', async (t) => {
    const ends = async (goal: string, ...infos: object[]): Promise<unknown[]> => {
      let info: object = { detail: { loss: 7 } };
      const web = await report(t, () => info);
      const ended = call([...at(web.port), 'wait', goal, '--json']);
      for (const next of [...infos, null]) {
        const seen = web.requests.length + 2; // so the response has arrived
        await until(() => web.requests.length >= seen);
        info = next ?? {};
      }
      web.end();
      const { code, stdout } = await ended;
      const { error, seconds, ...outcome } = JSON.parse(stdout);
      return [code, outcome, error.replace(/ after \d+\.\d s/, '')];
    };
    const ending = { status: 'shutting down', by: 'ana', reason: 'enough', detail: { loss: 7 } };
    const crashed = { status: 'shutting down', by: 'itself', reason: 'exit code 7', detail: {} };
    const [status, met] = [{ status: 'offline' }, { value: 7, status: 'offline' }];
    assert.deepEqual(await Promise.all([
      ends('loss < 1'), ends('paused'), ends('loss < 1', ending), ends('loss < 1', crashed), ends('paused', ending),
    ]), [
      [6, met, 'not loss < 1: the system is offline; loss was 7'], [6, status, 'not paused: the system is offline'],
      [6, met, 'not loss < 1: the system is offline: shutdown by ana: enough; loss was 7'],
      [6, status, 'not loss < 1: the system is offline: exit code 7'],
      [6, status, 'not paused: the system is offline: shutdown by ana: enough'],
    ]);
  });

  it('exits with 6 also if the system has accepted requests, but never responded', async (t) => {
    const web = await startWeb(t, () => new Promise<never>(() => {}));
    const ended = call([...at(web.port), 'wait', 'paused']);
    await until(() => web.requests.length > 1); // the first one has timed out
    web.end();
    const { code, stderr } = await ended;
    assert.equal(code, 6, stderr);
    assert.match(stderr, / s: the system is offline\n$/);
  });

  it('goes on if the system comes back within seconds, and takes an operator as a word', async (t) => {
    const web = await report(t, () => ({ detail: { loss: 7 } }));
    const met = call([...at(web.port), 'wait', 'loss', '<', '1', '--timeout', '60']);
    await until(() => web.requests.length > 1);
    web.end();
    await launchSystem(t, { describe: () => ({ loss: 0.5 }) }, { webApiAddress: ['127.0.0.1', web.port] });
    assert.deepEqual(await met, { code: 0, stdout: '0.5\n', stderr: '' });
  });
});

describe('control-client resume --mine', AT_ONCE, () => {
  const mine = (port: number, by: string, ...args: string[]): Promise<Ended> => {
    return call([...at(port), 'resume', '--mine', '--by', by, ...args]);
  };
  const failed = (error: string, code: number = 1): Ended => {
    return { code, stdout: '', stderr: `control-client: ${error}\n` };
  };
  const printed = (stdout: string): Ended => ({ code: 0, stdout: `${stdout}\n`, stderr: '' });

  it('releases the pause of the sender, and resumes a system that nobody else has paused', async (t) => {
    const { address: { port }, client } = await launchSystem(t);
    const ana = `ana\t${'\u{1f600}'.repeat(300)}`; // the server truncates it
    await client.request('pause', { by: 'ben', reason: 'B leaks memory', wait: 30 });
    await client.request('pause', { by: ana, wait: 30 });
    assert.deepEqual(await mine(port, ana), printed('released; still paused by ben: B leaks memory'));
    const nothing = 'not resumed: eve holds no pause; paused by ben: B leaks memory';
    assert.deepEqual(await mine(port, 'eve'), failed(nothing));
    const { code, stdout } = await mine(port, 'eve', '--json');
    const { status, error, value } = JSON.parse(stdout);
    assert.deepEqual([code, status, error, value], [1, 'paused', nothing, { released: false }]);
    assert.deepEqual(await mine(port, 'ben'), printed('active'));
    assert.deepEqual(await mine(port, 'ben'), printed('active'));
    const commands = (await getInfo(port)).commands.map(({ command }) => command);
    assert.deepEqual(commands, ['pause', 'pause', ...Array(4).fill('resume')]); // nothing is sent to an active system
  });

  it('also undoes a pause that still waits, of an active system', async (t) => {
    const { server, port, client } = await startServer(t);
    await client.request('pause', { by: 'ana' });
    const ended = mine(port, 'ana', '--timeout', '60');
    await until(async () => (await getInfo(port)).commands.length === 2);
    assert.equal(await server.nextCommand(), 'pause');
    server.report({ error: 'busy' });
    assert.deepEqual(await ended, printed('active')); // it held nothing
  });

  it('sends nothing to an active system that is busy with another command', async (t) => {
    const commands = [{ command: 'pause', state: 'done' }, { command: 'evaluate', state: 'running' }];
    const { port, requests } = await startWeb(t, () => ({ status: 'active', version: '0.18.0', commands }));
    assert.deepEqual([await mine(port, 'ana'), requests], [printed('active'), ['GET /api/info']]);
  });

  it('sends nothing to a server that would resume for everybody, as pause --for does', async (t) => {
    const commands = [['--mine', 'resume', '--mine'], ['--for', 'pause', '--for=1h']];
    for (const info of [{ version: '0.15.3' }, { code: 404 }]) {
      for (const [option = '', ...args] of commands) {
        const { port, requests } = await startWeb(t, () => ({ status: 'paused', ...info }));
        const expected = failed(`${option} requires a server with control.ts 0.18 or later: leave it out`, 2);
        assert.deepEqual([await call([...at(port), ...args]), requests], [expected, ['GET /api/info']]);
      }
    }
  });
});

describe('control-client pause --for', AT_ONCE, () => {
  it('pauses all targets, and resumes them when the time is up', async (t) => {
    const times: number[] = [];
    const note = (): void => void times.push(performance.now());
    const hooks = { onPaused: note, onResumed: note };
    const systems = await Promise.all([launchSystem(t, hooks), launchSystem(t)]);
    const targets = systems.map(({ address }) => `127.0.0.1:${address.port}`);
    const offline = `127.0.0.1:${await freePort()}`;
    const args = ['pause', '--for', '1s', '--reason', 'lunch', '--json', '--by', 'ana', ...targets, offline];
    const { code, stdout, stderr } = await call(args);
    const outcomes = linesOf(stdout).map((line) => JSON.parse(line));
    for (const target of targets) {
      const own = outcomes.filter((outcome) => outcome.target === target);
      assert.deepEqual(own.map(({ state, status }) => [state, status]), [['done', 'paused'], ['done', 'active']]);
    }
    assert.deepEqual(outcomes.filter(({ target }) => target === offline).length, 1); // not resumed
    assert.equal(code, 3);
    assert.match(stderr, new RegExp(`^control-client: ${offline}: pause not sent: .*\n$`));
    const { commands } = await getInfo(systems[0]?.address.port ?? 0);
    const sent = commands.map(({ command, by, reason }) => [command, by, reason]);
    assert.deepEqual(sent, [['pause', 'ana', 'lunch'], ['resume', 'ana', undefined]]);
    const [from = 0, to = 0] = times;
    assert.ok(to - from > 990, `${to - from} ms`);
  });

  it('does not undo what somebody else wants', async (t) => {
    const [paused, resumed] = await Promise.all([launchSystem(t), launchSystem(t)]);
    await paused.client.request('pause', { by: 'ben', reason: 'lunch', wait: 30 });
    const targets = [paused, resumed].map(({ address }) => `127.0.0.1:${address.port}`);
    const ended = call(['pause', '--for', '1', ...targets]);
    await resumed.client.waitFor(SystemStatus.PAUSED);
    await resumed.client.request('resume', { by: 'ben', wait: 30 });
    const { code, stdout, stderr } = await ended;
    const ends = linesOf(stdout).slice(2).sort();
    const expected = [`${targets[0]}  released; still paused by ben: lunch`, `${targets[1]}  active`].sort();
    assert.deepEqual([code, ends, stderr], [0, expected, '']);
    assert.equal(await paused.client.getStatus(), SystemStatus.PAUSED);
  });

  it('sends a pause that expires with --wait and --timeout, but no resume that does', async (t) => {
    const posted: (string | undefined)[] = [];
    const { port } = await startWeb(t, ({ method, url }) => {
      if (method === 'POST') posted.push(url);
      return { ...ACTIVE, status: 'paused', state: 'done' };
    });
    await call([...at(port), 'pause', '--for', '0.1', '--wait', '--timeout', '5', '--by', 'ana']);
    assert.deepEqual(posted, ['/api/pause?by=ana&expires=5', '/api/resume?by=ana&mine=true']);
  });

  it('ends at once if the pause has expired', async (t) => {
    const expired = { code: 500, error: 'pause failed: expired after 5 s' };
    const { port, requests } = await startWeb(t, ({ method }) => method === 'POST' ? expired : ACTIVE);
    const { code, stderr } = await call([...at(port), 'pause', '--for', '1h', '--wait', '--timeout', '5']);
    assert.deepEqual([code, stderr], [4, 'control-client: pause expired: never delivered\n']);
    assert.equal(requests.filter((request) => request.startsWith('POST')).length, 1);
  });

  it('resumes a system that was not paused in time, too', async (t) => {
    const { server, port } = await startServer(t);
    const ended = call([...at(port), 'pause', '--for', '1s', '--timeout', '5', '--by', 'ana']);
    await until(async () => (await getInfo(port)).commands.length === 2);
    assert.equal(await server.nextCommand(), 'pause');
    assert.equal(await server.nextCommand(), 'resume');
    server.report({});
    const { code, stdout, stderr } = await ended;
    assert.match(stderr, /^control-client: not paused after .*; the command is still pending\n$/);
    assert.deepEqual([code, stdout], [4, 'active\n']);
  });

  it('says nothing of paused systems when interrupted before any is paused', { skip: lacks('Unix') }, async (t) => {
    const { target, requests } = await startWeb(t, () => new Promise(() => {}));
    const { child, ended } = startProgram(t, 'client', ['pause', '--for', '1h', target]);
    await until(() => requests.length > 0);
    child.kill('SIGINT');
    const { stderr } = await ended;
    assert.match(stderr, /: pause not sent: .*\ncontrol-client: interrupted\n$/);
    assert.equal(child.signalCode, 'SIGINT');
  });

  it('leaves the system paused when interrupted, and says how to resume it', { skip: lacks('Unix') }, async (t) => {
    const { address: { port }, client } = await launchSystem(t);
    const target = `127.0.0.1:${port}`;
    const rows: [signal: NodeJS.Signals, by: string, word: string][] = [
      ['SIGINT', 'ana', '--by=ana'], ['SIGHUP', 'ben', '--by=ben'],
      ['SIGTERM', "o'neil & co", "'--by=o'\\''neil & co'"],
    ];
    for (const [signal, by, word] of rows) {
      const { child, shows, ended } = startProgram(t, 'client', ['pause', '--for', '1h', '--by', by, target]);
      await shows(/paused\n/);
      child.kill(signal);
      const { stderr } = await ended;
      const command = `control-client resume --mine ${word} ${target}`;
      assert.equal(stderr, `control-client: interrupted: paused systems stay paused; to resume them: ${command}\n`);
      assert.equal(child.signalCode, signal);
      assert.equal(await client.getStatus(), SystemStatus.PAUSED);
      const typed = command.replace('control-client', `'${process.execPath}' dist/bin/client.js`);
      const { code, stdout } = await start(t, 'sh', ['-c', `${typed} --wait`]).ended;
      assert.deepEqual([code, stdout], [0, `${target}  active\n`]);
    }
  });

  it('stops waiting for the pause when interrupted', { skip: lacks('Unix') }, async (t) => {
    const { server, port } = await startServer(t);
    const { child, ended } = startProgram(t, 'client', [...at(port), 'pause', '--for', '1h', '--timeout', '300']);
    await until(() => server.hasCommands());
    child.kill('SIGTERM');
    const { stderr } = await ended;
    const [pending, left] = linesOf(stderr);
    assert.match(pending ?? '', /^control-client: (not paused after .* still pending|pause sent, .* may still .*)$/);
    assert.match(left ?? '', /to resume them: control-client resume --mine --host=127\.0\.0\.1 --port=\d+$/);
    assert.equal(child.signalCode, 'SIGTERM');
  });

  it('counts the time for which the machine is suspended', async (t) => {
    const { address: { port } } = await launchSystem(t);
    const suspend = ` // the clock goes on, the timer of 30 s does not
      import timers from 'node:timers/promises';
      import { syncBuiltinESMExports } from 'node:module';
      const [sleep, now] = [timers.setTimeout, Date.now];
      let passedMs = 0;
      timers.setTimeout = (ms, ...rest) => {
        if (ms === 30_000) passedMs += 16 * 86_400_000;
        return sleep(ms === 30_000 ? 10 : ms, ...rest);
      };
      Date.now = () => now() + passedMs;
      syncBuiltinESMExports();`;
    const env = { NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(suspend)}` };
    const { code, stdout, stderr } = await startProgram(t, 'client', [...at(port), 'pause', '--for', '30d'], env).ended;
    assert.deepEqual([code, stdout, stderr], [0, 'paused\nactive\n', '']);
  });
});

it('A duration has a unit, or the default unit of the option', () => {
  const seconds = { 90: 90, '90s': 90, '30m': 1800, '2h': 7200, '1.5d': 129_600, '.5m': 30, '1.': 1 };
  for (const [text, value] of Object.entries(seconds)) assert.equal(parseDuration('--for', text), 1000 * value, text);
  const minutes = { 90: 90, '90s': 1.5, '30m': 30, '2h': 120, '24d': 34_560 };
  for (const [text, value] of Object.entries(minutes)) {
    assert.equal(parseDuration('--save-every', text, 'minutes'), 60_000 * value, text);
  }
});
