// control-client --wait and wait: how a wait ends, also of a command that expires or a system that does not respond.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../../control.ts';
import { defer, freePort, getInfo, launchSystem, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { until } from '../../wait.ts';
import { AT_ONCE, at, call } from './helpers.ts';
import { ACTIVE, hideFailures, startOwnProcess, startWeb } from './systems.ts';
import type { Ended } from '../../helpers.ts';

hideFailures();

describe('control-client --wait and wait', AT_ONCE, () => {
  it('exits with 1 if the command fails, and prints the reason', async (t) => {
    let isBroken = true; // until the system is to end
    const breaks = (reason: string) => () => isBroken && assert.fail(reason);
    const { address: { port } } = await launchSystem(t, {
      onResumed: breaks('no GPU'), saveState: breaks('ENOSPC: no space left'),
    });
    const { address: { port: failing } } = await launchSystem(t, { onPaused: breaks('GPU busy') });
    const rows: [port: number, command: string, what: string, reason: string][] = [
      [failing, 'pause', 'not paused', 'onPaused failed: GPU busy'],
      [failing, 'save-state', 'not saved', 'onPaused failed: GPU busy'],
      [port, 'shutdown', 'not shut down, now paused', 'ENOSPC: no space left'],
      [port, 'resume', 'not resumed', 'onResumed failed: no GPU'],
    ];
    for (const [where, command, what, error] of rows) {
      const { code, stdout, stderr } = await call([...at(where), command, '--wait', '--json']);
      const { seconds, status, ...outcome } = JSON.parse(stdout);
      const advice = '; free space and retry, or end it with SIGTERM (loses what is not saved)';
      const line = `control-client: ${what}: ${error}${command === 'shutdown' ? advice : ''}\n`;
      assert.deepEqual([code, stderr], [1, line]);
      assert.deepEqual(outcome, { state: 'failed', error });
    }
    isBroken = false;
  });

  it('exits with 4 a second after --timeout, which can be a fraction, while a step goes on', async (t) => {
    const { port } = await startOwnProcess(t, '{ step() { for (const end = Date.now() + 9000; Date.now() < end;); } }');
    const { code, stdout, stderr } = await call([...at(port), 'save-state', '--wait', '--timeout', '1.01', '--json']);
    const { error, seconds, id, result, ...outcome } = JSON.parse(stdout);
    assert.deepEqual([code, outcome], [4, { state: 'waiting', status: 'active' }]);
    assert.equal(error, 'save-state not taken yet: it expires when the program looks');
    assert.deepEqual([stderr, seconds >= 2.99], [`control-client: ${error}\n`, true]);
  });

  it('exits with 3 or 4 as soon as the system is offline, has cut the connection, or is shutting down', async (t) => {
    const { port, server } = await startServer(t);
    const closed = call([...at(port), 'pause', '--wait']);
    await until(() => server.hasCommands());
    await server.close();
    const web = await startWeb(t, () => {
      web.end();
      return null;
    });
    for (const { code, stderr } of [await closed, await call([...at(web.port), 'pause', '--wait'])]) {
      assert.match(stderr, /^control-client: not paused after \d\.\d s: the system is offline\n$/);
      assert.equal(code, 3);
    }
    const { port: ending } = await startServer(t, { systemStatus: () => SystemStatus.SHUTTING_DOWN });
    const { code, stdout, stderr } = await call([...at(ending), 'pause', '--wait']);
    assert.deepEqual([code, stdout], [4, '']);
    assert.match(stderr, /^control-client: not paused after \d\.\d s: the system is shutting down\n$/);
  });

  it('does not report a resume as done while a pause waits in the queue', async (t) => {
    let status = SystemStatus.ACTIVE;
    const { port, server, client } = await startServer(t, { systemStatus: () => status });
    await client.pause();
    let isDone = false;
    const ended = call([...at(port), 'resume', '--wait', '--timeout', '60']).then((end) => ({ ...end, isDone }));
    await until(async () => (await client.getInfo())?.commands.some(({ command }) => command === 'resume') === true);
    await sleep(300); // active throughout
    assert.equal(await server.nextCommand(), 'pause');
    status = SystemStatus.PAUSED;
    server.report({});
    assert.equal(await server.nextCommand(), 'resume');
    status = SystemStatus.ACTIVE;
    await sleep(300); // active again, and not done
    isDone = true;
    server.report({});
    assert.deepEqual(await ended, { code: 0, stdout: 'active\n', stderr: '', isDone: true });
  });

  it('sends the command once, and requests the outcome again if a response is lost', async (t) => {
    let count = 0;
    const { port, requests } = await startWeb(t, ({ method, url }) => {
      if (method === 'POST') return { code: 202, result: 'ok', id: '1', state: 'waiting' };
      if (url !== '/api/info') return ACTIVE; // as before the command
      count += 1;
      const state = count < 4 ? { state: 'running' } : { state: 'failed', error: 'no GPU' };
      return count % 2 === 1 ? null : { ...ACTIVE, commands: [{ id: '1', command: 'resume', ...state }] };
    });
    const ended = await call([...at(port), 'resume', '--wait']);
    assert.deepEqual(ended, { code: 1, stdout: '', stderr: 'control-client: not resumed: no GPU\n' });
    assert.equal(requests.filter((request) => request.startsWith('POST')).length, 1);
  });

  it('relies on the status if the list of commands no longer contains the command', async (t) => {
    let status = 'active';
    const { port } = await startWeb(t, ({ method }) => {
      if (method === 'POST') return { code: 202, result: 'ok', id: '1', state: 'running' };
      const before = status;
      status = 'paused';
      return { status: before, commands: [{ id: '2', command: 'resume', state: 'done' }] };
    });
    assert.deepEqual(await call([...at(port), 'pause', '--wait']), { code: 0, stdout: 'paused\n', stderr: '' });
    const stderr = 'control-client: save-state accepted, but the server reports no outcome\n';
    assert.deepEqual(await call([...at(port), 'save-state', '--wait']), { code: 4, stdout: '', stderr });
  });

  it('waits for the last save, and exits with 1 if it fails, although the system ends', async (t) => {
    const saved = { code: 0, stdout: 'offline\n', stderr: '' };
    const error = new Error('ENOSPC: no space left');
    const failed = { code: 1, stdout: '', stderr: `control-client: shut down, but: ${error.message}\n` };
    await Promise.all([{}, { error }].map(async (outcome) => {
      const { port, server } = await startServer(t, { systemStatus: () => SystemStatus.SHUTTING_DOWN });
      const ended = call([...at(port), 'shutdown', '--wait']);
      assert.equal(await server.nextCommand(), 'shutdown');
      await sleep(1500); // longer than other commands wait for a system that is shutting down
      server.report(outcome);
      await server.close();
      assert.deepEqual(await ended, 'error' in outcome ? failed : saved);
    }));
  });

  it('waits for a status, even if the system is offline', async (t) => {
    const port = await freePort();
    assert.equal((await call([...at(port), 'wait', 'active', '--timeout', '0.3'])).code, 4);
    const active = call([...at(port), 'wait', 'active', '--json']);
    const end = defer();
    t.after(() => end.resolve());
    const { client } = await launchSystem(t, { saveState: () => end.promise }, { webApiAddress: ['127.0.0.1', port] });
    const { code, stdout, stderr } = await active;
    assert.deepEqual([code, JSON.parse(stdout).status, stderr], [0, 'active', '']);
    await client.shutdown();
    const ending = await call([...at(port), 'wait', 'shutting-down']);
    assert.deepEqual(ending, { code: 0, stdout: 'shutting down\n', stderr: '' });
    const offline = call([...at(port), 'wait', 'offline']);
    end.resolve();
    assert.deepEqual(await offline, { code: 0, stdout: 'offline\n', stderr: '' });
  });

  it('sends a command once, also after a failure such as a full queue', async (t) => {
    await Promise.all([400, 401, 403, 404, 429, 500, 503].map(async (code) => {
      const { port, requests } = await startWeb(t, ({ method }) => method === 'GET' ? ACTIVE : { code, error: 'no' });
      const ended = await call([...at(port), 'pause', '--wait', '--timeout', '24d']); // the longest
      assert.equal(ended.code, code === 400 ? 2 : 1, JSON.stringify(ended));
      assert.equal(requests.filter((request) => request.startsWith('POST')).length, 1);
    }));
  });

  it('with --timeout, sends commands that expire, and says whether they were delivered', async (t) => {
    const { server, port } = await startServer(t);
    const pause = (...args: string[]): Promise<Ended> => call([...at(port), 'pause', '--wait', ...args]);
    const isSent = (count: number): Promise<void> => until(async () => (await getInfo(port)).commands.length === count);
    const expired = pause('--timeout', '0.5', '--json'); // at least a second
    await isSent(1);
    await sleep(1100);
    assert.equal(server.hasCommands(), false);
    const { code, stdout, stderr } = await expired;
    const { seconds, id, result, ...outcome } = JSON.parse(stdout);
    assert.deepEqual([code, stderr], [4, 'control-client: pause expired: never delivered\n']);
    assert.deepEqual(outcome, { state: 'failed', error: 'expired after 1 s', status: 'active' });
    const running = pause('--timeout', '1');
    await isSent(2);
    assert.equal(server.receiveCommand(), 'pause');
    const late = 'control-client: pause runs: not done after 1 s\n';
    assert.deepEqual(await running, { code: 4, stdout: '', stderr: late });
    server.report({});
    const kept = call([...at(port), 'resume', '--wait']);
    await isSent(3);
    await sleep(1100);
    assert.equal(server.receiveCommand(), 'resume');
    server.report({});
    assert.equal((await kept).code, 0);
  });

  it('sends nothing with --timeout to a server that does not know commands that expire', async (t) => {
    const versions = ['0.15.3', '0.9.0', '0.17.12', undefined, ['0.20.0'], '20'].map((version) => ({ version }));
    await Promise.all([...versions, { code: 404 }].map(async (info) => {
      const { port, requests } = await startWeb(t, () => ({ status: 'active', ...info }));
      const stderr = 'control-client: --timeout requires a server with control.ts 0.18 or later: leave it out\n';
      const ended = await call([...at(port), 'pause', '--wait', '--timeout', '5']);
      assert.deepEqual([ended, requests], [{ code: 2, stdout: '', stderr }, ['GET /api/info']]);
    }));
    const full = await startWeb(t, ({ method }) => method === 'POST' ? { result: 'ok' } : { code: 503, error: 'full' });
    const unknown = await call([...at(full.port), 'pause', '--wait', '--timeout', '5']);
    const unsent = { code: 1, stdout: '', stderr: 'control-client: pause not sent: full\n' };
    assert.deepEqual([unknown, full.requests], [unsent, ['GET /api/info']]);
    const { port, requests } = await startWeb(t, () => ({ ...ACTIVE, state: 'done', version: '1.0.0' }));
    assert.equal((await call([...at(port), 'pause', '--wait', '--timeout', '5'])).code, 0);
    assert.deepEqual(requests, ['GET /api/info', 'POST /api/pause']);
  });

  it('waits until a stopped process is offline', { skip: lacks('Linux') }, async (t) => {
    const { port, child, stop } = await startOwnProcess(t);
    await stop();
    const ended = call([...at(port), 'wait', 'offline', '--timeout', '60']);
    child.kill('SIGKILL');
    assert.deepEqual(await ended, { code: 0, stdout: 'offline\n', stderr: '' });
  });

  it('ends soon after --timeout', async (t) => {
    const { port } = await startWeb(t, ({ url }) => url === '/api/info' ? ACTIVE : new Promise(() => {}));
    const { code, stdout } = await call([...at(port), 'shutdown', '--wait', '--timeout', '4', '--json']);
    const { seconds, error } = JSON.parse(stdout);
    assert.equal(code, 5, stdout);
    assert.match(error, /^\w+ sent, but no response within \d+(\.\d)? s: it may still take effect$/);
    assert.ok(seconds >= 3.999 && seconds < 8, stdout); // a limit per request would add up to 10
  });

  it('does not mistake a slow connection for silence', async (t) => {
    const { port } = await startWeb(t, async ({ method }) => {
      if (method === 'POST') await new Promise(() => {}); // no response before the timeout
      await sleep(300);
      return ACTIVE;
    });
    const { code, stderr } = await call([...at(port), 'pause', '--wait', '--timeout', '1']);
    assert.match(stderr, /not paused after \d+\.\d s: the system is active; the command is still pending\n$/);
    assert.equal(code, 4);
  });

  it('reports a shutdown as done if a system that did not respond has ended', async (t) => {
    const received = defer();
    const web = await startWeb(t, ({ method }) => {
      if (method === 'POST') received.resolve();
      return new Promise<null>(() => {});
    });
    const ended = call([...at(web.port), 'shutdown', '--wait']);
    await received.promise;
    web.end();
    assert.deepEqual(await ended, { code: 0, stdout: 'offline\n', stderr: '' });
    assert.equal(web.requests.filter((request) => request.startsWith('POST')).length, 1);
  });
});
