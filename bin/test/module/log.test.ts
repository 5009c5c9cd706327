// The option `log`: what each line holds, and that none is missing or torn, whatever happens to the file, to the server
// thread and to the program.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import {
  appendFileSync, chmodSync, chownSync, copyFileSync, existsSync, lstatSync, lutimesSync, mkdirSync, readFileSync, readdirSync, readlinkSync,
  renameSync, rmSync, rmdirSync, statSync, symlinkSync, truncateSync, utimesSync, writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { basename, dirname, join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus, VERSION, WebApiServer } from '../../../control.ts';
import { TOKEN, collectThreads, collectWarnings, freePort, launchSystem, makeFolder, startServer } from '../helpers.ts';
import { runHost } from '../host.ts';
import { BEARER, HOST, INFO, PAUSE, SAVE, WAIT, ask, head } from '../http.ts';
import { lacks } from '../needs.ts';
import { LIMIT, until } from '../wait.ts';
import { becomeNobody, contentsOf, randomNumbers, SEED } from './helpers.ts';
import { checkDelivered, checkSent, completion, countEvents, flood, parseLog, readLog } from './log.ts';
import type { SystemInfo, WebApiServerOptions } from '../../../control.ts';
import type { StartedServer } from '../helpers.ts';
import type { Host } from '../host.ts';
import type { Delivered, Line, Sent } from './log.ts';
import type { TestContext } from 'node:test';

const { ACTIVE, PAUSED, SHUTTING_DOWN } = SystemStatus;

const EXPIRY_MS = 1200; // of commands with expires=1
const EMOJI = '😀'.repeat(200);

function makePath(t: TestContext): string { return join(makeFolder(t), 'log.jsonl'); }

const FILLERS = 265; // lines that have more than 4 MiB
const FILLER = JSON.stringify({
  time: new Date().toISOString(), name: 'filler', pid: 1, event: 'filler', text: 'x'.repeat(16_000),
}).concat('\n').repeat(FILLERS);

/** Checks and removes what every run changes. */
function bare({ time, name, pid, ...line }: Line): object {
  assert.deepEqual([name, pid], ['train', process.pid]);
  const { id, at, seconds, holds, ...rest } = line as Partial<SystemInfo['commands'][0] & SystemInfo>;
  assert.equal(at !== undefined, line.event === 'outcome');
  assert.equal(seconds !== undefined && seconds >= 0, line.event === 'outcome');
  assert.equal(at && new Date(at).toISOString(), at);
  return {
    ...rest,
    ...id !== undefined && { id: id.replace(/^[a-z\d]{3}-/, '') },
    ...holds !== undefined && { holds: holds.map(({ by, reason, since = '', ...others }) => {
      assert.deepEqual([new Date(since).toISOString(), others], [since, {}]);
      return [by, reason];
    }) },
  };
}

/** Receives and completes commands until the server is closed. */
async function serveAll(server: WebApiServer<any>): Promise<void> {
  for (;;) {
    const command = await server.nextCommand().catch(() => null);
    if (command === null) return;
    server.report({ value: server.request?.reason ?? null });
  }
}

/** A server that completes all commands. */
async function startBusy(t: TestContext, options: Partial<WebApiServerOptions>): Promise<StartedServer> {
  const started = await startServer(t, { host: '127.0.0.1', ...options });
  void serveAll(started.server);
  return started;
}

/** A request to save, for flood(). */
function request(query: string): string { return head(SAVE + query, HOST); }

function errorOf(info: SystemInfo | null): string | undefined { return info?.log?.error; }

/** The source of a host that completes all commands, and ends when it is told. */
const BUSY = `
  process.removeAllListeners('warning');
  process.on('warning', ({ message }) => say(message));
  const run = async (options) => {
    const server = await serve(options);
    obey({ end: () => server.close(), mark: () => say('mark') });
    for (;;) {
      const command = await server.nextCommand().catch(() => null);
      if (command === null) break;
      server.report({ value: server.request.reason ?? null });
    }
  };
`;

// ───── Lines ─────────────────────────────────────────────────────────────────────────────────────────────────────

describe('The log', { ...LIMIT, concurrency: 4 }, () => {
  it('has what happened, with all fields, but no token and no request that was refused', async (t) => {
    const path = makePath(t);
    let status: SystemStatus = ACTIVE;
    const { server, port, client } = await startServer(t, {
      name: 'train', log: path, token: TOKEN, autoReport: false, maxQueueSize: 2,
      systemStatus: () => status ?? assert.fail('no status'),
      commands: { note: { parameters: { text: { type: 'string' } } } },
    });
    const post = async (command: string, options: object = {}): Promise<void> => {
      assert.equal((await client.request(command, options)).ok, true);
    };
    const take = (outcome: object, next: SystemStatus = status): void => {
      server.receiveCommand();
      status = next;
      server.report(outcome);
    };
    await post('note', { arguments: { text: 'x'.repeat(300) }, by: 'ana', reason: 'long' });
    take({ value: { loss: 0.5 } });
    await post('note', { arguments: { text: '{"\nä😀' } });
    take({ value: 'x'.repeat(5000) });
    await post('save-state', { by: 'ana' });
    take({ value: Array(5000).fill(0) });
    await post('save-state', { reason: 'again' });
    take({ error: new Error('ENOSPC') });
    await post('pause', { by: 'ana', reason: 'heat' });
    take({}, PAUSED);
    await post('pause', { by: 'ben' });
    take({});
    await post('resume', { by: 'ana', mine: true });
    await post('resume', { by: 'eve', mine: true });
    server.hasCommands();
    server.post('resume', { reason: 'timer' });
    take({}, ACTIVE);
    await post('save-state', { expires: 1 });
    await sleep(EXPIRY_MS);
    server.hasCommands();
    await post('shutdown');
    await post('note', { arguments: { text: '' } });
    await post('note', { arguments: { text: '' } });
    for (const [expected, line, ...fields] of [
      [401, PAUSE], [403, PAUSE, BEARER, 'Host: evil.example'], [403, PAUSE, BEARER, 'Origin: null'],
      [405, 'GET /api/pause', BEARER], [404, 'POST /api/nothing', BEARER], [400, `${PAUSE}?expires=0`, BEARER],
      [400, 'POST /api/note', BEARER],
    ] as const) {
      assert.equal((await ask(port, line, ...fields)).statusCode, expected);
    }
    const full = await client.request('note', { arguments: { text: '' } });
    assert.equal(full.ok === false && full.statusCode, 503);
    take({}, SHUTTING_DOWN);
    await server.close();
    assert.equal(readFileSync(path, 'utf8').includes(TOKEN), false);
    assert.deepEqual(readLog(path).map(bare), [
      { event: 'start', version: VERSION },
      { event: 'status', status: 'active', holds: [] },
      { event: 'command', id: '1', command: 'note', arguments: { text: 'x'.repeat(300) }, by: 'ana', reason: 'long' },
      { event: 'outcome', id: '1', command: 'note', state: 'done', value: { loss: 0.5 }, by: 'ana', reason: 'long' },
      { event: 'command', id: '2', command: 'note', arguments: { text: '{"\nä😀' } },
      {
        event: 'outcome', id: '2', command: 'note', arguments: { text: '{"\nä😀' }, state: 'done',
        value: 'x'.repeat(1000),
      },
      { event: 'command', id: '3', command: 'save-state', by: 'ana' },
      {
        event: 'outcome', id: '3', command: 'save-state', state: 'done', by: 'ana',
        valueOmitted: 'the value must be JSON of at most 4096 bytes',
      },
      { event: 'command', id: '4', command: 'save-state', reason: 'again' },
      { event: 'outcome', id: '4', command: 'save-state', state: 'failed', error: 'ENOSPC', reason: 'again' },
      { event: 'command', id: '5', command: 'pause', by: 'ana', reason: 'heat' },
      { event: 'status', status: 'paused', by: 'ana', reason: 'heat', holds: [['ana', 'heat']] },
      { event: 'outcome', id: '5', command: 'pause', state: 'done', by: 'ana', reason: 'heat' },
      { event: 'command', id: '6', command: 'pause', by: 'ben' },
      { event: 'status', status: 'paused', by: 'ana', reason: 'heat', holds: [['ana', 'heat'], ['ben', undefined]] },
      { event: 'outcome', id: '6', command: 'pause', state: 'done', by: 'ben' },
      { event: 'command', id: '7', command: 'resume', by: 'ana' },
      { event: 'command', id: '8', command: 'resume', by: 'eve' },
      { event: 'status', status: 'paused', by: 'ben', holds: [['ben', undefined]] },
      { event: 'outcome', id: '7', command: 'resume', state: 'done', value: { released: true }, by: 'ana' },
      { event: 'outcome', id: '8', command: 'resume', state: 'done', value: { released: false }, by: 'eve' },
      { event: 'command', id: 'i9', command: 'resume', by: 'itself', reason: 'timer' },
      { event: 'status', status: 'active', by: 'itself', reason: 'timer', holds: [] },
      { event: 'outcome', id: 'i9', command: 'resume', state: 'done', by: 'itself', reason: 'timer' },
      { event: 'command', id: '10', command: 'save-state' },
      { event: 'outcome', id: '10', command: 'save-state', state: 'failed', error: 'expired after 1 s' },
      { event: 'command', id: '11', command: 'shutdown' },
      { event: 'command', id: '12', command: 'note', arguments: { text: '' } },
      { event: 'command', id: '13', command: 'note', arguments: { text: '' } },
      { event: 'status', status: 'shutting down', during: 'shutdown', holds: [] },
      { event: 'outcome', id: '11', command: 'shutdown', state: 'done' },
      ...['12', '13'].map((id) => ({
        event: 'outcome', id, command: 'note', arguments: { text: '' }, state: 'failed',
        error: 'the program has shut down',
      })),
      { event: 'end' },
    ]);
  });

  it('says which statuses belong to a save or an end: those while the command runs, and no others', async (t) => {
    const path = makePath(t);
    const { client, finished } = await launchSystem(t, {}, { log: path });
    for (const command of ['pause', 'resume', 'save-state', 'shutdown']) await client.request(command, { wait: 10 });
    await finished;
    const statuses = readLog(path).filter(({ event }) => event === 'status');
    assert.deepEqual(statuses.map(({ status, during }) => [status, during]), [
      ['active', undefined],
      ['pausing', undefined], ['paused', undefined], ['resuming', undefined], ['active', undefined],
      ...['pausing', 'paused', 'resuming', 'active'].map((status) => [status, 'save-state']),
      ['shutting down', 'shutdown'],
    ]);
  });

  it('has lines of at most 16 KiB, and all holds', async (t) => {
    const path = makePath(t);
    const cause = Array.from({ length: 20 }, (_, number) => ({
      by: `${number}`.padEnd(2, '.') + EMOJI.slice(4), reason: EMOJI,
    }));
    const { server, client } = await startServer(t, {
      log: path, name: EMOJI, cause, systemStatus: () => PAUSED,
      commands: { say: { parameters: { text: { type: 'string' } } } },
    });
    const text = '"'.repeat(2000);
    assert.equal((await client.request('say', { arguments: { text }, by: EMOJI, reason: EMOJI })).ok, true);
    server.receiveCommand();
    server.report({ error: new Error('😀'.repeat(2000)) });
    await server.close();
    const [, status, command, outcome] = readLog(path); // which checks the length
    assert.deepEqual([status?.['by'], status?.['reason']], [cause[0]?.by, EMOJI]);
    assert.deepEqual(status?.['holds'].map(({ by }: { by: string }) => by), [
      ...cause.slice(0, 15).map(({ by }) => by), undefined,
    ]);
    assert.deepEqual(command?.['arguments'], { text });
    assert.equal(outcome?.['error'], '😀'.repeat(1000));
  });

  it('is a file that only this user can read, and that is not kept open', { skip: lacks('Linux') }, async (t) => {
    const path = makePath(t);
    const { server, client } = await startBusy(t, { log: path });
    assert.deepEqual(readLog(path).map(({ event }) => event), ['start', 'status']);
    await client.request('save-state', { wait: 60 });
    await until(() => readLog(path).length === 4);
    assert.equal(statSync(path).mode & 0o777, 0o600);
    const open = readdirSync('/proc/self/fd').map((file) => {
      try {
        return readlinkSync(`/proc/self/fd/${file}`);
      } catch {
        return null; // that of the folder
      }
    });
    assert.equal(open.includes(path), false);
    await server.close();
  });

  it('has the status null while the program fails to tell it', async (t) => {
    const path = makePath(t);
    const host = runHost(t, `
      await (await serve({ log: ${JSON.stringify(path)}, systemStatus: () => null })).close();
    `, ['--no-warnings']);
    await host.hear();
    await host.ends();
    assert.deepEqual(readLog(path).map(({ event, status }) => [event, status]), [
      ['start', undefined], ['status', null], ['end', undefined],
    ]);
  });

  it('is in a folder that the program has left, and in /api/info', async (t) => {
    const [folder, port] = [makeFolder(t), await freePort()];
    const host = runHost(t, `
      process.chdir(${JSON.stringify(folder)});
      const server = await serve({ log: 'log.jsonl', port: ${port} });
      process.chdir('/');
      halt();
      await server.close();
    `);
    await host.hear();
    assert.deepEqual((await ask(port, INFO)).body.log, { path: join(folder, 'log.jsonl') });
    host.release();
    await host.ends();
    assert.deepEqual(countEvents(readLog(join(folder, 'log.jsonl'))), { start: 1, status: 1, end: 1 });
  });

  it('is off by default', async (t) => {
    const { port } = await startServer(t);
    assert.equal('log' in (await ask(port, INFO)).body, false);
  });

  it('is an option of launch(), which logs until it ends', async (t) => {
    const path = makePath(t);
    const { address: { port }, finished } = await launchSystem(t, {
      saveState: () => 'saved', onShutdown: () => 'bye',
    }, { log: path, name: 'train', startPaused: { by: 'ben', reason: 'night' } });
    await ask(port, `${SAVE}?by=ana`, WAIT);
    await ask(port, 'POST /api/resume?by=ana', WAIT);
    await ask(port, 'POST /api/shutdown', WAIT);
    await finished;
    const lines = readLog(path).map(({ event, command, status, value, holds }) => {
      return [event, command ?? status, value ?? holds?.length].filter((part) => part !== undefined).join(' ');
    });
    assert.deepEqual(lines, [
      'start', 'command pause', 'status paused 1', 'status pausing 1', 'status paused 1', 'outcome pause',
      'command save-state', 'outcome save-state saved',
      'command resume', 'status resuming 1', 'status active 0', 'outcome resume',
      'command shutdown', 'status shutting down 0', 'outcome shutdown bye', 'end',
    ]);
  });

  for (const [log, type, message] of [
    [1, TypeError, /^log must be the path of a file, got 1$/], [null, TypeError, /got null$/],
    [true, TypeError, /got true$/], [{}, TypeError, /got {}$/],
    ['', RangeError, /got ''$/], ['/', RangeError, /got '\/'$/], ['logs/', RangeError, /got 'logs\/'$/],
    ['a\0b', RangeError, /got 'a\\x00b'$/],
  ] as const) {
    it(`cannot be ${JSON.stringify(log)}`, () => {
      assert.throws(() => new WebApiServer({ systemStatus: () => ACTIVE, log: log as string }), (error: Error) => {
        return error.constructor === type && message.test(error.message);
      });
    });
  }
});

// ───── Times ─────────────────────────────────────────────────────────────────────────────────────────────────────

describe('A command', { ...LIMIT, concurrency: 4 }, () => {
  it('is in the log before its response', async (t) => {
    const path = makePath(t);
    const { server, port } = await startBusy(t, { log: path });
    const isLogged = ({ reason }: Sent): boolean => {
      return readFileSync(path, 'utf8').includes(`"command":"save-state","by":"ana","reason":"${reason}"`);
    };
    await Promise.all(Array.from({ length: 8 }, (_, client) => flood(port, 'ana', (query) => {
      return head(`${SAVE}${query}/${client}`, HOST);
    }, (accepted, latest) => {
      assert.ok(latest === undefined || isLogged({ ...latest, reason: `${latest.reason}/${client}` }));
      return accepted === 40;
    })));
    await server.close();
  });

  it('is in the log before the program can take it', async (t) => {
    const path = makePath(t);
    const host = runHost(t, `
      import { readFileSync } from 'node:fs';
      const server = await serve({ log: ${JSON.stringify(path)} });
      const late = [];
      for (let commands = 0; commands < 300; commands += 1) {
        while (!server.hasCommands());
        server.receiveCommand();
        const { id } = server.request;
        const text = readFileSync(${JSON.stringify(path)}, 'utf8');
        if (!text.includes('"event":"command","id":"' + id + '",')) late.push(id);
      }
      await server.close();
      say(late);
    `);
    const port = await host.hear<number>();
    await flood(port, 'ana', request, (accepted) => accepted === 300);
    await host.ends([]);
  });

  it('is in the log while the program computes, as are its own commands and statuses', async (t) => {
    const path = makePath(t);
    const host = runHost(t, `
      let status = ACTIVE;
      const server = await serve({ log: ${JSON.stringify(path)}, systemStatus: () => status });
      while (!server.hasCommands()) await sleep(1);
      server.receiveCommand();
      status = PAUSED;
      server.report({ value: 1 });
      server.post('save-state');
      halt();
      await server.close();
    `);
    const port = await host.hear<number>();
    await ask(port, `${PAUSE}?by=ana`);
    const seen = (): string => parseLog(path).lines.map(({ event, by = '' }) => `${event} ${by}`.trim()).join(', ');
    const expected = 'start, status, command ana, status ana, outcome ana, command itself';
    await until(() => seen() === expected, seen);
    await ask(port, SAVE);
    assert.equal(seen(), `${expected}, command`);
    host.release();
    await host.ends();
    assert.equal(seen(), `${expected}, command, end`);
  });

  it('has its time by the clock of the computer, even if that is set', async (t) => {
    const path = makePath(t);
    const { server } = await startServer(t, { log: path });
    t.mock.timers.enable({ apis: ['Date'], now: Date.now() + 3_600_000 }); // of the host only
    const from = Date.now();
    server.post('save-state');
    server.receiveCommand();
    server.report();
    await server.close(); // writes this
    const times = readLog(path).slice(-3).map(({ event, time }) => [event, Math.abs(Date.parse(time) - from) < 60_000]);
    t.mock.timers.reset();
    assert.deepEqual(times, [['command', true], ['outcome', true], ['end', true]]);
  });

  it('and statuses that are too many at once are counted', async (t) => {
    const path = makePath(t);
    let status: SystemStatus = ACTIVE;
    const { server } = await startServer(t, { log: path, systemStatus: () => status });
    for (let changes = 0; changes < 301; changes += 1) {
      status = status === ACTIVE ? PAUSED : ACTIVE;
      server.publish();
    }
    await until(() => parseLog(path).lines.at(-1)?.['status'] === 'paused');
    for (let posts = 0; posts < 150; posts += 1) {
      server.post('save-state', { reason: `post ${posts}` });
      server.receiveCommand();
      server.report({ value: posts });
    }
    await server.close();
    const lines = readLog(path);
    const lost = lines.filter(({ event }) => event === 'lost');
    assert.ok(lost.length >= 2 && lost.every(({ error }) => error === 'not written in time'), JSON.stringify(lost));
    const sum = lost.reduce((total, line) => total + line['lines'], 0);
    assert.equal(lines.length - lost.length + sum, 1 + 302 + 300 + 1); // start, statuses, commands and outcomes, end
    assert.deepEqual(lines.at(-2)?.['value'], 149);
    assert.equal(lines.at(-1)?.event, 'end');
  });
});

// ───── Threads and programs that die ─────────────────────────────────────────────────────────────────────────────

describe('Of 10,000 commands, over 8 connections, in both lanes', LIMIT, () => {
  const [CLIENTS, EACH, DEATHS] = [8, 1250, 15];
  const random = randomNumbers(SEED);

  /** Returns whether Node 20 has aborted the host, because a thread was terminated in the middle of the HTTP parser. */
  async function run(t: TestContext): Promise<boolean> {
    const [path, result] = [makePath(t), makePath(t)];
    const host = runHost(t, `
      import { writeFileSync } from 'node:fs';
      process.removeAllListeners('warning'); // each thread that dies causes a warning
      const { setTimeout } = globalThis;
      globalThis.setTimeout = (call, ms) => setTimeout(call, ms === 1000 ? 10 : ms); // restarts at once
      const threads = [];
      process.on('worker', (thread) => threads.push(thread));
      const commands = { note: { parameters: { number: { type: 'integer' } } } };
      const server = await serve({ log: ${JSON.stringify(path)}, commands, autoReport: false });
      obey({ kill: () => threads.at(-1).terminate(), end: () => server.close() });
      const delivered = [];
      for (let number = 0; ; number += 1) {
        const command = await server.nextCommand().catch(() => null);
        if (command === null) break;
        const { request } = server;
        const outcome = [{}, { value: { number } }, { error: 'failed ' + number }, { value: 'done' }][number % 4];
        server.report('error' in outcome ? { error: new Error(outcome.error) } : outcome);
        delivered.push({ request, outcome });
        if (number % 100 === 0) server.post('save-state', { reason: 'post ' + number });
      }
      writeFileSync(${JSON.stringify(result)}, JSON.stringify(delivered));
    `);
    const port = await host.hear<number>();
    let [isOver, answers, deaths] = [false, 0, 0];
    host.process.on('exit', () => (isOver = true));
    const isDeathDue = (): boolean => {
      return deaths < DEATHS && answers > (deaths + 0.5 * random()) * EACH * CLIENTS / DEATHS;
    };
    const floods = Array.from({ length: CLIENTS }, (_, client) => flood(port, `c${client}`, (query, number) => {
      const fields = number % 4 === 0 ? [HOST, WAIT] : [HOST];
      if (client % 2 === 0) return head(SAVE + query, ...fields);
      const body = JSON.stringify({ number });
      return head(`POST /api/note${query}`, ...fields, `Content-Length: ${body.length}`) + body;
    }, (accepted, latest) => {
      if (latest !== undefined) answers += 1;
      if (isDeathDue()) {
        deaths += 1;
        host.order('kill');
      }
      return isOver || accepted === EACH;
    }));
    const sent = (await Promise.all(floods)).flat();
    if (!isOver) await completion(port);
    host.order('end');
    const { code, stderr } = await host.ended;
    if (stderr.startsWith('FATAL ERROR: v8::ToLocalChecked Empty MaybeLocal')) return true;
    assert.deepEqual([code, stderr], [0, '']);
    const lines = readLog(`${path}.1`, path);
    checkSent(lines, sent);
    checkDelivered(lines, JSON.parse(readFileSync(result, 'utf8')) as Delivered[]);
    const { command, outcome, ...others } = countEvents(lines);
    assert.ok(Number(command) >= CLIENTS * EACH && Number(outcome) >= CLIENTS * EACH);
    assert.deepEqual(others, { start: 1, status: 1, thread: deaths, end: 1 });
    const errors = lines.filter(({ event }) => event === 'thread').map(({ error }) => error);
    assert.deepEqual(errors, Array(DEATHS).fill('its thread exited'));
    return false;
  }

  it('the log, the responses and what was delivered agree, although 15 server threads die', async (t) => {
    t.diagnostic(`the seed is ${SEED}`);
    while (await run(t));
  });
});

describe('A program that is killed', LIMIT, () => {
  const [SERVERS, KILLS] = [5, 10];

  it('has logged every command that was answered, and goes on with whole lines', async (t) => {
    const folder = makeFolder(t);
    const paths = Array.from({ length: SERVERS }, (_, server) => join(folder, `${server}.jsonl`));
    const sent: Sent[][] = paths.map(() => []);
    const random = randomNumbers(SEED);
    t.diagnostic(`the seed is ${SEED}`);
    for (let kills = 0; kills <= KILLS; kills += 1) {
      const host = runHost(t, `
        const all = ${JSON.stringify(paths)}.map((log) => ({ systemStatus: () => ACTIVE, ...place, log }));
        const servers = all.map((options) => new WebApiServer(options));
        const addresses = await Promise.all(servers.map((server) => server.runInBackground()));
        say(addresses.map(({ port }) => port));
        const complete = async (server) => { for (;;) { await server.nextCommand(); server.report({ value: 1 }); } };
        obey({ end: () => servers.forEach((server) => server.close()) });
        await Promise.allSettled(servers.map(complete));
      `);
      const ports = await host.hear<number[]>();
      let answersLeft = 1 + Math.floor(99 * random());
      const floods = ports.map((port) => flood(port, `k${kills}`, request, (_, latest) => {
        if (latest !== undefined) answersLeft -= 1;
        if (answersLeft <= 0 && kills < KILLS) host.process.kill('SIGKILL'); // others wait for their response
        return answersLeft <= 0;
      }));
      for (const [server, one] of (await Promise.all(floods)).entries()) sent[server]?.push(...one);
      if (kills === KILLS) host.order('end');
      await host.ended;
    }
    for (const [server, path] of paths.entries()) {
      const { lines, torn } = parseLog(path);
      const { start, end, lost = 0 } = countEvents(lines);
      assert.deepEqual([start, end, lost], [KILLS + 1, 1, 0]);
      assert.ok(torn.length <= KILLS);
      const logged = new Set(lines.filter(({ event }) => event === 'command').map(({ reason }) => reason));
      const answered = sent[server]?.filter(({ response }) => response?.statusCode === 200) ?? [];
      assert.deepEqual(answered.filter(({ reason }) => !logged.has(reason)), []);
    }
  });

  it('may leave a torn line, which does not spoil the next one', async (t) => {
    const path = makePath(t);
    writeFileSync(path, '{"time":"20');
    const { server, client } = await startBusy(t, { log: path });
    appendFileSync(path, '{"half');
    assert.equal((await client.request('save-state', { wait: 60 })).ok, true);
    appendFileSync(path, '\n\n');
    await server.close();
    const { lines, torn } = parseLog(path);
    assert.deepEqual(torn, ['{"time":"20', '{"half']);
    assert.deepEqual(countEvents(lines), { start: 1, status: 1, command: 1, outcome: 1, end: 1 });
  });
});

// ───── What others do to the file ────────────────────────────────────────────────────────────────────────────────

describe('A log that others move', { ...LIMIT, concurrency: 4, skip: lacks('Unix') }, () => {
  const ROTATIONS = 15;

  it('is made anew when it is renamed: nothing is missing', async (t) => {
    const path = makePath(t);
    const { server, port } = await startBusy(t, { log: path });
    let moves = 0;
    const sent = await Promise.all(['ana', 'ben', 'eve'].map((by) => flood(port, by, request, (accepted) => {
      if (accepted % 30 === 29 && existsSync(path)) renameSync(path, `${path}.old${moves += 1}`);
      return accepted === 250;
    })));
    await completion(port);
    await server.close();
    const paths = Array.from({ length: moves }, (_, number) => `${path}.old${number + 1}`);
    const lines = readLog(...paths, path);
    checkSent(lines, sent.flat());
    assert.ok(moves >= 15, `${moves} moves`);
    assert.deepEqual(countEvents(lines), { start: 1, status: 1, command: 750, outcome: 750, end: 1 });
  });

  it('continues at its beginning when it is truncated: nothing that comes later is missing', async (t) => {
    const path = makePath(t);
    const { server, port } = await startBusy(t, { log: path });
    const copies: string[] = [];
    const sent: Sent[] = [];
    const logged = (): Line[] => parseLog(...copies, path).lines;
    for (let round = 0; round < 5; round += 1) {
      const floods = ['ana', 'ben'].map((by) => flood(port, `${by}${round}`, request, (accepted) => accepted === 60));
      sent.push(...(await Promise.all(floods)).flat());
      await until(() => countEvents(logged())['outcome'] === 120 * (round + 1));
      copies.push(`${path}.copy${round}`);
      copyFileSync(path, `${path}.copy${round}`);
      truncateSync(path);
    }
    await server.close();
    const lines = readLog(...copies, path);
    checkSent(lines, sent);
    assert.deepEqual(countEvents(lines), { start: 1, status: 1, command: 600, outcome: 600, end: 1 });
  });

  it('has whole lines and no gaps when it is truncated while they are written', async (t) => {
    const path = makePath(t);
    const { server, port } = await startBusy(t, { log: path });
    let cuts = 0;
    await Promise.all(['ana', 'ben', 'eve'].map((by) => flood(port, by, request, (accepted, latest) => {
      if (latest !== undefined && accepted % 20 === 0) truncateSync(path, 0 * (cuts += 1));
      return accepted === 160;
    })));
    await server.close();
    assert.equal(cuts, 24);
    const lines = readLog(path); // a NUL is no JSON
    assert.equal(lines.at(-1)?.event, 'end');
  });

  it('is shared by two systems, and renamed once it is large: nothing is missing', async (t) => {
    const path = makePath(t);
    const hosts = ['a', 'b'].map((name) => runHost(t, `
      ${BUSY}
      await run({ log: ${JSON.stringify(path)}, name: '${name}' });
    `));
    let isOver = false;
    const floods = hosts.map(async (host, number) => {
      const port = await host.hear<number>();
      const senders = ['ana', 'ben', 'eve', 'kim'].map((by) => by + number);
      const own = await Promise.all(senders.map((by) => flood(port, by, request, () => isOver)));
      await completion(port);
      return own.flat();
    });
    await until(() => countEvents(parseLog(path).lines)['outcome'] !== undefined);
    const paths: string[] = [];
    while (paths.length < ROTATIONS) {
      appendFileSync(path, FILLER);
      await until(() => existsSync(`${path}.1`));
      paths.push(`${path}.old${paths.length}`);
      renameSync(`${path}.1`, paths.at(-1) as string);
    }
    isOver = true;
    const sent = await Promise.all(floods);
    for (const host of hosts) {
      host.order('end');
      await host.ends();
    }
    assert.ok(paths.every((one) => statSync(one).size > 2 ** 22));
    assert.equal(statSync(path).mode & 0o777, 0o600);
    const lines = readLog(...paths, path);
    const { filler, start, end, lost = 0 } = countEvents(lines);
    assert.deepEqual([filler, start, end, lost], [ROTATIONS * FILLERS, 2, 2, 0]);
    for (const [number, name] of ['a', 'b'].entries()) {
      checkSent(lines.filter((one) => one.name === name), sent[number] as Sent[]);
    }
  });

  it('is renamed above 4 MiB, and over a link instead of through it', async (t) => {
    const [path, other] = [makePath(t), makePath(t)];
    const length = FILLER.length / FILLERS;
    writeFileSync(path, FILLER.slice(0, 2 ** 22 - 2 ** 22 % length - length));
    writeFileSync(other, 'nothing to lose');
    symlinkSync(other, `${path}.1`);
    const { server, client } = await startBusy(t, { log: path });
    assert.equal((await client.request('save-state', { wait: 60 })).ok, true);
    assert.ok(lstatSync(`${path}.1`).isSymbolicLink());
    appendFileSync(path, FILLER.slice(0, 2 * length));
    assert.equal((await client.request('save-state', { wait: 60 })).ok, true);
    await server.close();
    assert.equal(readFileSync(other, 'utf8'), 'nothing to lose');
    assert.ok(lstatSync(`${path}.1`).isFile() && statSync(path).size < 2000);
    const { filler, ...others } = countEvents(readLog(`${path}.1`, path));
    assert.deepEqual(others, { start: 1, status: 1, command: 2, outcome: 2, end: 1 });
  });

  it('is not renamed while another process does so; only a killed one has not done so after 1 s', async (t) => {
    const path = makePath(t);
    writeFileSync(path, FILLER);
    const lock = `${path}.${statSync(path).ino}.lock`;
    const makeLock = (ageS: number): void => {
      mkdirSync(lock, { recursive: true });
      utimesSync(lock, Date.now() / 1000 - ageS, Date.now() / 1000 - ageS);
    };
    makeLock(-30);
    const { server, client } = await startBusy(t, { log: path });
    const save = async (): Promise<void> => assert.ok((await client.request('save-state', { wait: 60 })).ok);
    for (let count = 0; count < 3; count += 1) await save();
    assert.deepEqual([existsSync(`${path}.1`), existsSync(lock)], [false, true]);
    for (const ageS of [10, -3600]) {
      makeLock(ageS);
      if (existsSync(`${path}.1`)) renameSync(`${path}.1`, path); // with its inode
      for (let count = 0; count < 3; count += 1) await save(); // the first removes the lock, and the second renames
      assert.deepEqual([existsSync(`${path}.1`), existsSync(lock)], [true, false]);
    }
    await server.close();
  });

  it('is not renamed while something of others, or more than an empty folder, is in place of the lock', async (t) => {
    const path = makePath(t);
    const precious = makeFolder(t);
    writeFileSync(join(precious, 'file'), '');
    const warnings = collectWarnings(t);
    const { server, client } = await startBusy(t, { log: path });
    const lock = `${path}.${statSync(path).ino}.lock`;
    const obstacles: [reason: string, make: () => void][] = [
      ['ENOTDIR', () => {
        symlinkSync(precious, lock);
        lutimesSync(lock, 0, 0);
      }],
      ['ENOTEMPTY', () => {
        mkdirSync(join(lock, 'd'), { recursive: true });
        utimesSync(lock, 0, 0);
      }],
    ];
    if (lacks('root') === false) obstacles.push(['it belongs to user 65534', () => {
      mkdirSync(join(lock, 'd'), { recursive: true });
      chownSync(lock, 65_534, -1);
      utimesSync(lock, 0, 0);
    }]);
    for (const [index, [reason, make]] of obstacles.entries()) {
      make();
      if (index === 0) appendFileSync(path, FILLER);
      assert.ok((await client.request('save-state', { wait: 60 })).ok);
      assert.deepEqual([existsSync(`${path}.1`), readdirSync(precious)], [false, ['file']]);
      const { error = '' } = (await client.getInfo())?.log ?? {};
      assert.ok(error.includes(reason) && error.includes(lock), error);
      rmSync(lock, { recursive: true }); // nothing is written meanwhile
    }
    assert.ok((await client.request('save-state', { wait: 60 })).ok);
    assert.equal(existsSync(`${path}.1`), true);
    await server.close();
    assert.match(warnings.join(), /^Cannot log: ENOTDIR[^,]*, rmdir '[^,]*'$/, 'one until it works');
    assert.deepEqual(countEvents(readLog(`${path}.1`, path))['lost'], undefined);
  });

  it('is not renamed if another process has just done so', async (t) => {
    const path = makePath(t);
    const host = runHost(t, `
      const fs = process.getBuiltinModule('node:fs'); // of close(): the thread has its own
      const path = ${JSON.stringify(path)};
      const server = await serve({ log: path });
      halt();
      const write = fs.writeSync;
      fs.writeSync = (...args) => {
        fs.writeSync = write;
        const written = write(...args);
        fs.renameSync(path, path + '.1');
        fs.copyFileSync(path + '.fresh', path);
        return written;
      };
      await server.close();
    `);
    await host.hear();
    appendFileSync(path, FILLER);
    writeFileSync(`${path}.fresh`, FILLER.slice(0, FILLER.length / FILLERS));
    host.release();
    await host.ends();
    assert.equal(readLog(`${path}.1`).length, 2 + FILLERS + 1);
    assert.deepEqual(countEvents(readLog(path)), { filler: 1 });
  });
});

describe('The folder of the log', { skip: lacks('Unix') }, () => {
  it('must be one in which others cannot replace the file: not even with the sticky bit, as /tmp has', async (t) => {
    for (const mode of [0o1777, 0o1770, 0o777, 0o2775]) {
      const folder = makeFolder(t);
      chmodSync(folder, mode);
      for (const log of [join(folder, 'log.jsonl'), `${folder}/../${basename(folder)}/log.jsonl`]) {
        const server = new WebApiServer({ systemStatus: () => ACTIVE, port: 0, log });
        await assert.rejects(server.runInBackground(), ({ message }: Error) => {
          const isSticky = message.includes(`: cannot log: others can write to '${folder}`);
          assert.equal(isSticky && message.endsWith(': put the log into a folder of your own'), (mode & 0o1000) > 0);
          return isSticky || message.includes(`: cannot log: '${folder}' is not trusted, because others can write to it`);
        });
        await server.close();
        assert.deepEqual(readdirSync(folder), []);
      }
      const own = join(folder, 'own'); // there, the sticky bit protects it
      mkdirSync(own, 0o700);
      const started = new WebApiServer({ systemStatus: () => ACTIVE, port: 0, log: join(own, 'log.jsonl') });
      const isSticky = (mode & 0o1000) > 0;
      assert.equal(await started.runInBackground().then(() => true, () => false), isSticky);
      await started.close();
      assert.deepEqual(readdirSync(own), isSticky ? ['log.jsonl'] : []);
    }
  });
});

// ───── Disks and obstacles ───────────────────────────────────────────────────────────────────────────────────────

interface Disk {
  skip: string | false;
  prefix: (folder: string) => string[]; // of a host with this disk
  find: (host: Host, folder: string) => string; // the folder as the test sees it
  empty: (folder: string) => void;
}

const DISKS: Record<string, Disk> = {
  'of a limit of its size': {
    skip: false,
    prefix: () => ['sh', '-c', 'ulimit -f 20; exec "$@"', 'sh'], // in blocks of 512 bytes
    find: (_, folder) => folder,
    empty: (folder) => renameSync(join(folder, 'log.jsonl'), join(folder, 'log.jsonl.old')),
  },
  'the disk is full': {
    skip: lacks('Linux', 'namespace'),
    prefix: (folder) => {
      const fill = `mount -t tmpfs -o size=64k,mode=700 none ${folder}; head -c 32768 /dev/zero > ${folder}/filler; exec "$@"`;
      return ['unshare', '--mount', 'sh', '-c', fill, 'sh'];
    },
    find: ({ process: { pid } }, folder) => `/proc/${pid}/root${folder}`,
    empty: (folder) => truncateSync(join(folder, 'filler')),
  },
};

describe('A log that cannot be written', { ...LIMIT, concurrency: 4, skip: lacks('Unix') }, () => {
  for (const [why, { skip, prefix, find, empty }] of Object.entries(DISKS)) {
    it(`because ${why}, costs one warning, and then counts what is missing`, { skip }, async (t) => {
      const folder = makeFolder(t);
      const host = runHost(t, `
        ${BUSY}
        await run({ log: ${JSON.stringify(join(folder, 'log.jsonl'))} });
      `, [], prefix(folder));
      const port = await host.hear<number>();
      const path = join(find(host, folder), 'log.jsonl');
      const tags: unknown[] = [];
      const look = async (): Promise<string | undefined> => {
        const { body, headers } = await ask(port, INFO);
        tags.push(headers.etag);
        return errorOf(body);
      };
      let count = 0;
      const post = async (): Promise<void> => {
        const { statusCode } = await ask(port, `${SAVE}?by=${encodeURIComponent(EMOJI)}`, WAIT);
        assert.equal(statusCode, 200);
        count += 1;
        assert.ok(count < 1000, 'the disk has a limit');
      };
      while (await look() === undefined) await post();
      const warning = await host.hear<string>();
      assert.match(warning, /^Cannot log: .*(EFBIG|ENOSPC|no room)/);
      for (let more = 0; more < 10; more += 1) await post();
      assert.ok(await look() !== undefined);
      assert.match(String(tags.at(-1)), /-lost"$/);
      empty(find(host, folder));
      await until(async () => {
        await post();
        return await look() === undefined;
      });
      assert.notEqual(tags.at(-1), tags.at(-2));
      await until(() => parseLog(path).lines.at(-1)?.event === 'outcome');
      const { lines, torn } = parseLog(`${path}.old`, path);
      host.order('end');
      const warnings = await host.hearAll();
      assert.deepEqual([(await host.ended).code, warnings], [0, []]);
      assert.ok(torn.length <= 1, JSON.stringify(torn));
      const lost = lines.filter(({ event }) => event === 'lost');
      assert.equal(lost.length, 1);
      assert.match(lost[0]?.['error'], /EFBIG|ENOSPC|no room/);
      assert.equal(lines.length - 1 + lost[0]?.['lines'], 2 + 2 * count); // start, status, commands and outcomes
    });
  }

  const other = (path: string): string => join(path, '..', '..', 'other'); // where a link leads
  const notOwn = /is not a file of this user$/;
  type Obstacle = [
    what: string, skip: string | false, make: (path: string) => void, remove: (path: string) => void, error: RegExp,
  ];
  const OBSTACLES: Obstacle[] = [
    ['a link', false, (path) => symlinkSync(other(path), path), rmSync, /is a symbolic link$/],
    ['a link to nothing', false, (path) => symlinkSync('nothing', path), rmSync, /is a symbolic link$/],
    ['a folder', false, (path) => mkdirSync(path), rmdirSync, /EISDIR/],
    ['a FIFO', lacks('mkfifo'), (path) => execFileSync('mkfifo', [path]), rmSync, notOwn],
    ['a device', lacks('root'), (path) => execFileSync('mknod', [path, 'c', '1', '3']), rmSync, notOwn],
    ["somebody else's file", lacks('root'), (path) => {
      writeFileSync(path, '', { mode: 0o666 });
      chownSync(path, 65_534, 65_534);
    }, rmSync, notOwn],
    ['in no folder', false, (path) => rmdirSync(join(path, '..')), (path) => mkdirSync(join(path, '..')), /ENOENT/],
    ['in a file', false, (path) => {
      rmdirSync(join(path, '..'));
      writeFileSync(join(path, '..'), '');
    }, (path) => {
      rmSync(join(path, '..'));
      mkdirSync(join(path, '..'));
    }, /ENOTDIR/],
  ];

  for (const [what, skip, make, remove, error] of OBSTACLES) {
    it(`because it is ${what}, refuses the start, until that is removed`, { skip }, async (t) => {
      const [top, port] = [makeFolder(t), await freePort()];
      const path = join(top, 'folder', 'log.jsonl');
      mkdirSync(join(top, 'folder'));
      writeFileSync(other(path), 'nothing to lose');
      make(path);
      const host = runHost(t, `
        process.removeAllListeners('warning');
        process.on('warning', ({ message }) => say(message));
        const options = { ...place, port: ${port}, log: ${JSON.stringify(path)} };
        const server = new WebApiServer({ systemStatus: () => ACTIVE, ...options });
        const start = () => server.runInBackground().then(({ port }) => port, ({ message }) => message);
        obey({ start: async () => say(await start()), end: () => server.close() });
        process.stdin.ref();
      `);
      const before = contentsOf(top);
      for (let starts = 0; starts < 2; starts += 1) {
        host.order('start');
        const message = await host.hear<string>();
        assert.ok(message.startsWith(`Cannot serve at 127.0.0.1:${port}: cannot log: `), message);
        assert.match(message, error);
        assert.ok(message.includes(`'${dirname(path)}`) && !message.includes('\n'), message);
        const listener = createServer().listen(port, '127.0.0.1'); // the port is free
        await once(listener, 'listening');
        await new Promise((resolve) => listener.close(resolve));
      }
      assert.deepEqual(contentsOf(top), before);
      remove(path);
      host.order('start');
      assert.equal(await host.hear(), port);
      await ask(port, SAVE);
      const events = readLog(path).map(({ event }) => event);
      assert.deepEqual(events, ['start', 'status', 'command']);
      assert.equal(readFileSync(other(path), 'utf8'), 'nothing to lose');
      host.process.kill();
    });

    it(`because it becomes ${what}, costs one warning, until that is removed`, { skip }, async (t) => {
      const top = makeFolder(t);
      const path = join(top, 'folder', 'log.jsonl');
      mkdirSync(join(top, 'folder'));
      writeFileSync(other(path), 'nothing to lose');
      const host = runHost(t, `
        ${BUSY}
        await run({ log: ${JSON.stringify(path)} });
      `);
      const port = await host.hear<number>();
      assert.equal(countEvents(readLog(path))['start'], 1);
      rmSync(path);
      make(path);
      for (let posts = 0; posts < 5; posts += 1) assert.equal((await ask(port, SAVE, WAIT)).statusCode, 200);
      assert.match(String(errorOf((await ask(port, INFO)).body)), error);
      assert.match(await host.hear<string>(), error);
      remove(path);
      assert.equal((await ask(port, SAVE, WAIT)).statusCode, 200);
      assert.equal(errorOf((await ask(port, INFO)).body), undefined);
      host.order('end');
      await host.ends();
      assert.equal(readFileSync(other(path), 'utf8'), 'nothing to lose');
      const [lost, ...lines] = readLog(path);
      assert.deepEqual([lost?.event, lost?.['error'] === 'not written in time'], ['lost', false]);
      assert.deepEqual(lines.slice(-3).map(({ event }) => event), ['command', 'outcome', 'end']);
      assert.equal(lost?.['lines'] + lines.length, 13); // the fifth outcome may be in time
    });
  }

  it('under another name, because a folder has that name, still has all lines', async (t) => {
    const folder = makeFolder(t);
    const path = join(folder, 'log.jsonl');
    const host = runHost(t, `
      ${BUSY}
      await run({ log: ${JSON.stringify(path)} });
    `);
    const port = await host.hear<number>();
    mkdirSync(`${path}.1`);
    appendFileSync(path, FILLER);
    for (let posts = 0; posts < 3; posts += 1) assert.equal((await ask(port, SAVE, WAIT)).statusCode, 200);
    assert.match(String(errorOf((await ask(port, INFO)).body)), /EISDIR.*rename/);
    assert.match(await host.hear<string>(), /^Cannot log: EISDIR.*rename/);
    host.order('end');
    await host.ends();
    const expected = { start: 1, status: 1, filler: FILLERS, command: 3, outcome: 3, end: 1 };
    assert.deepEqual(countEvents(readLog(path)), expected);
    assert.deepEqual(readdirSync(folder).sort(), ['log.jsonl', 'log.jsonl.1']);
  });

  it('because the disk is full when it starts, costs one warning', { skip: lacks('Unix') }, async (t) => {
    const path = makePath(t);
    const host = runHost(t, `
      ${BUSY}
      await run({ log: ${JSON.stringify(path)} });
    `, [], ['sh', '-c', 'ulimit -f 0; exec "$@"', 'sh']);
    assert.equal(await host.hear(), 'Cannot log: EFBIG: file too large, write');
    const port = await host.hear<number>();
    assert.equal((await ask(port, SAVE)).statusCode, 200);
    assert.match(String(errorOf((await ask(port, INFO)).body)), /EFBIG/);
    host.order('mark');
    host.order('end');
    await host.ends('mark');
    assert.equal(readFileSync(path, 'utf8'), '');
  });

  it('because nobody may write to its folder, refuses the start', { skip: lacks('Unix', 'nobody') }, async (t) => {
    const folder = makeFolder(t);
    const path = join(folder, 'log.jsonl');
    const host = runHost(t, `
      import { chmodSync } from 'node:fs';
      process.on('warning', () => {});
      ${becomeNobody(folder)}
      chmodSync(${JSON.stringify(folder)}, 0o500);
      const server = new WebApiServer({ systemStatus: () => ACTIVE, ...place, log: ${JSON.stringify(path)} });
      say(await server.runInBackground().catch(({ message }) => message));
      chmodSync(${JSON.stringify(folder)}, 0o700);
      await server.runInBackground();
      await server.close();
    `, ['--no-warnings']);
    assert.match(await host.hear<string>(), /: cannot log: EACCES: .*'$/);
    await host.ends();
    assert.deepEqual(readLog(path).map(({ event }) => event), ['start', 'status', 'end']);
  });
});

// ───── Ends ──────────────────────────────────────────────────────────────────────────────────────────────────────

describe('The log of a thread', LIMIT, () => {
  it('has all statuses of ten saves that wait, and of a launch', async (t) => {
    const path = makePath(t);
    let release = (): void => {};
    const step = (): Promise<void> => new Promise((resolve) => (release = resolve));
    const { client, finished } = await launchSystem(t, { step }, { log: path });
    for (let count = 0; count < 10; count += 1) assert.equal(await client.saveState(), 'ok');
    assert.equal(await client.shutdown(), 'ok');
    release();
    await finished;
    const { lost, outcome, status } = countEvents(readLog(path));
    assert.deepEqual({ lost, outcome, status }, { lost: undefined, outcome: 11, status: 1 + 10 * 4 + 1 });
  });

  it('names the cause of its death, and not of the starts that failed after it', async (t) => {
    const warnings = collectWarnings(t);
    const threads = collectThreads(t);
    const path = makePath(t);
    const { server, port, client } = await startServer(t, { host: '127.0.0.1', log: path });
    await threads[0]?.terminate();
    const impostor = createServer((socket) => socket.destroy()).listen(port, '127.0.0.1');
    t.after(() => impostor.close());
    await once(impostor, 'listening');
    await until(() => warnings.some((warning) => /EADDRINUSE/.test(warning)));
    impostor.close();
    await client.waitFor(ACTIVE);
    await threads.at(-1)?.terminate();
    await until(() => threads.length === 4);
    await client.waitFor(ACTIVE);
    await server.close();
    const deaths = readLog(path).filter(({ event }) => event === 'thread').map(({ error }) => error);
    assert.deepEqual(deaths, ['its thread exited', 'its thread exited']);
  });
});

describe('At the end, the log', LIMIT, () => {
  it('has everything, even if no thread is there to write it', async (t) => {
    collectWarnings(t);
    const threads = collectThreads(t);
    const path = makePath(t);
    let status: SystemStatus = ACTIVE;
    const { server, port } = await startServer(t, { log: path, systemStatus: () => status });
    await ask(port, PAUSE);
    await threads[0]?.terminate();
    server.receiveCommand();
    status = PAUSED;
    server.report({ value: 'late' });
    server.post('save-state', { reason: 'own' });
    await server.close();
    const lines = readLog(path).map((line) => [line.event, line['status'] ?? line['value'] ?? line['reason']]);
    assert.deepEqual(lines, [
      ['start', undefined], ['status', 'active'], ['command', undefined], ['status', 'paused'], ['outcome', 'late'],
      ['command', 'own'], ['end', undefined],
    ]);
    await server.close();
    assert.equal(readLog(path).length, lines.length);
  });

  it('has no line of a server that could not start', async (t) => {
    const path = makePath(t);
    const taken = createServer().listen(0, '127.0.0.1');
    t.after(() => taken.close());
    await once(taken, 'listening');
    const { port } = taken.address() as { port: number };
    const options = { systemStatus: () => ACTIVE, host: '127.0.0.1', port, log: path };
    const server = new WebApiServer(options);
    await assert.rejects(server.runInBackground(), /EADDRINUSE/);
    await server.close();
    assert.equal(existsSync(path), false);
    const another = new WebApiServer(options);
    const start = another.runInBackground().catch(() => {});
    await another.close(); // while it starts
    await start;
    await new WebApiServer(options).close();
    assert.equal(existsSync(path), false);
  });

  it('says how much was lost, if it can be written again', async (t) => {
    const warnings = collectWarnings(t);
    const folder = join(makeFolder(t), 'folder');
    mkdirSync(folder);
    const path = join(folder, 'log.jsonl');
    const { server, client } = await startServer(t, { log: path });
    renameSync(folder, `${folder}-`);
    assert.equal(await client.pause(), 'ok');
    assert.match(String(errorOf(await client.getInfo())), /ENOENT/);
    renameSync(`${folder}-`, folder);
    server.receiveCommand();
    await server.close();
    const lost = readLog(path).find(({ event }) => event === 'lost');
    assert.equal(lost?.['lines'], 1);
    assert.deepEqual(warnings.map((warning) => /^Cannot log: ENOENT/.test(warning)), [true]);
  });
});
