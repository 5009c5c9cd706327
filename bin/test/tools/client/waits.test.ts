// control-client --wait and wait: how a wait ends, also with a full queue or a system that does not respond.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../../control.ts';
import { defer, freePort, launchSystem, startServer, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { AT_ONCE, at, call } from './helpers.ts';
import { ACTIVE, hideFailures, startOwnProcess, startWeb } from './systems.ts';

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
      [port, 'shutdown', 'not shut down', 'ENOSPC: no space left'], // the system is paused from now on
      [port, 'resume', 'not resumed', 'onResumed failed: no GPU'],
    ];
    for (const [where, command, what, error] of rows) {
      const { code, stdout, stderr } = await call([...at(where), command, '--wait', '--json']);
      const { seconds, status, ...outcome } = JSON.parse(stdout);
      assert.deepEqual([code, stderr], [1, `control-client: ${what}: ${error}\n`]);
      assert.deepEqual(outcome, { state: 'failed', error });
    }
    isBroken = false;
  });

  it('exits with 4 at --timeout, which can be a fraction', async (t) => {
    const { port } = await startServer(t);
    const { port: mute } = await startServer(t, { systemStatus: () => assert.fail('not today') });
    const rows: [port: number, command: string, status: string | undefined, error: string][] = [
      [port, 'save-state', 'active', 'not saved after N s: the system is active'],
      [mute, 'shutdown', undefined, 'not shut down after N s: the system does not report its status'],
    ];
    await Promise.all(rows.map(async ([where, command, status, expected]) => {
      const { code, stdout, stderr } = await call([...at(where), command, '--wait', '--timeout', '4.01', '--json']);
      const { error, seconds, ...outcome } = JSON.parse(stdout);
      assert.deepEqual([code, stderr, outcome.status], [4, `control-client: ${error}\n`, status]);
      assert.equal(error.replace(/\d+\.\d s/, 'N s'), `${expected}; the command is still pending`);
      assert.ok(seconds >= 4.009, stdout);
    }));
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
    await until(async () => (await client.info())?.commands.some(({ command }) => command === 'resume') === true);
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

  it('retries with a full queue until the command is accepted, and not after other failures', async (t) => {
    let count = 0;
    const { port } = await startWeb(t, ({ method }) => {
      if (method === 'GET') return ACTIVE;
      count += 1;
      return count <= 3 ? { code: 503, error: 'full' } : { ...ACTIVE, state: 'done', id: '1', value: 'a.json' };
    });
    const ended = await call([...at(port), 'save-state', '--wait', '--timeout', '24d']); // the longest
    assert.deepEqual([ended, count], [{ code: 0, stdout: 'a.json\n', stderr: '' }, 4]);
    await Promise.all([400, 401, 403, 404, 429, 500, 503].map(async (code) => {
      const { port, requests } = await startWeb(t, () => ({ code, error: 'no' }));
      const ended = await call([...at(port), 'pause', ...(code === 503 ? [] : ['--wait'])]);
      assert.equal(ended.code, code === 400 ? 2 : 1, JSON.stringify(ended));
      assert.equal(requests.filter((request) => request.startsWith('POST')).length, 1);
    }));
  });

  it('exits with 1 if the queue stays full until --timeout, also from a response that arrives later', async (t) => {
    const first = defer<number>();
    const { port } = await startWeb(t, async ({ method }) => {
      if (method === 'GET') return ACTIVE;
      const now = performance.now();
      first.resolve(now);
      const passedMs = now - await first.promise;
      if (passedMs > 0) await sleep(1050 - passedMs); // until after the timeout
      return { code: 503, error: 'full' };
    });
    const { code, stderr } = await call([...at(port), 'pause', '--wait', '--timeout', '1']);
    assert.match(stderr, /^control-client: not paused after \d+\.\d s: full\n$/);
    assert.equal(code, 1);
  });

  it('waits until a stopped process is offline', { skip: lacks('Linux') }, async (t) => {
    const { port, child, stop } = await startOwnProcess(t);
    await stop();
    const ended = call([...at(port), 'wait', 'offline', '--timeout', '60']);
    child.kill('SIGKILL');
    assert.deepEqual(await ended, { code: 0, stdout: 'offline\n', stderr: '' });
  });

  it('ends soon after --timeout, even if the queue was full before', async (t) => {
    const commands = ['pause', 'shutdown'].map(async (command) => {
      let count = 0;
      const { port } = await startWeb(t, async ({ method }) => {
        if (method === 'POST') count += 1;
        if (method === 'GET' || count > 1) await new Promise(() => {});
        await sleep(3000);
        return { code: 503, error: 'full' };
      });
      const { code, stdout } = await call([...at(port), command, '--wait', '--timeout', '4', '--json']);
      const { seconds, error } = JSON.parse(stdout);
      assert.equal(code, 5, stdout);
      assert.match(error, /^\w+ sent, but no response within \d+(\.\d)? s: it may still take effect$/);
      assert.ok(seconds >= 3.999 && seconds < 7, stdout); // a limit per request would add up to 8
    });
    await Promise.all(commands);
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
    const ended = call([...at(web.port), 'shutdown', '--wait', '--timeout', '60']);
    await received.promise;
    web.end();
    assert.deepEqual(await ended, { code: 0, stdout: 'offline\n', stderr: '' });
    assert.equal(web.requests.filter((request) => request.startsWith('POST')).length, 1);
  });
});
