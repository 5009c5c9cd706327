// The state that control-board keeps of systems of all kinds.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { inspect } from 'node:util';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../../control.ts';
import { BY } from '../../../shared/reach/access.ts';
import { isCrash, savedBy } from '../../../shared/reach/end.ts';
import {
  assertHarmless, defer, freePort, HOSTILE, launchSystem, makeFolder, start, startOldServer, startServer, until,
} from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import {
  checkMetrics, createSystem, INFO, LIMIT, newsOf, NOWHERE, startBoard, startFake, startHost, untilSystem,
} from './helpers.ts';
import type { OwnCommand } from '../../../board/declarations.ts';
import type { Update } from '../../../board/state.ts';
import type { AddressInfo } from 'node:net';

describe('What control-board knows of systems', { ...LIMIT, concurrency: 3 }, () => {
  it('reads the detail about once a second while a page is open, and rarely otherwise', async (t) => {
    const calls: number[] = [];
    const describe = (): object => {
      calls.push(performance.now());
      return { step: calls.length };
    };
    const { address } = await launchSystem(t, { describe, step: () => sleep(20) });
    const board = await startBoard(t, [`127.0.0.1:${address.port}`]);
    await sleep(1200); // nothing must happen
    assert.ok(calls.length <= 2, `${calls.length} calls`);
    const before = calls.length;
    const start = performance.now();
    let { version } = await newsOf(board);
    while (calls.length < before + 4) ({ version } = await newsOf(board, version, 10)); // a changed detail is news
    assert.ok(performance.now() - start > 1500, 'not more often');
    const leaving = new AbortController();
    const headers = { Authorization: `Bearer ${board.key}`, Prefer: 'wait=30' };
    const last = fetch(`${board.url}api/systems?since=${version}`, { headers, signal: leaving.signal });
    leaving.abort();
    await assert.rejects(last);
    while (performance.now() - Number(calls.at(-1)) < 5000) await sleep(200); // until it stops
    const count = calls.length;
    await newsOf(board);
    await until(() => calls.length > count);
  });

  it('keeps samples of numbers, and sends those that a page lacks, even for a slow system', async (t) => {
    let step = 0;
    const slow = await startFake(t, async () => {
      step += 1;
      const own = step;
      await sleep(300);
      return JSON.stringify({ ...INFO, detail: { step: own, name: 'x' } });
    });
    const fast = await startFake(t, () => JSON.stringify({ ...INFO, detail: { time: Math.random() } }));
    const board = await startBoard(t, [slow, fast].map((port) => `127.0.0.1:${port}`));
    const received: [time: number, value: number][] = [];
    let version = 0;
    while (received.length < 4) {
      const news = await newsOf(board, version, 10);
      for (const { id, detail } of news.systems) {
        if (id !== 0) continue;
        assert.ok(detail.every(({ name, samples }) => name === 'step' || samples === undefined));
        const { samples = [] } = detail.find(({ name }) => name === 'step') ?? {};
        assert.ok(samples.every(([time]) => time > version && time <= news.version), 'only what is new');
        received.push(...samples);
      }
      ({ version } = news);
    }
    const [{ detail } = assert.fail()] = (await newsOf(board)).systems;
    const all = detail.find(({ name }) => name === 'step')?.samples ?? [];
    assert.deepEqual(received, all.slice(0, received.length), 'each sample arrives once');
    assert.ok(all.length - received.length <= 1, `${all.length - received.length} samples are missing`);
  });

  it('reports since when a system that hangs has not responded', { skip: lacks('Unix') }, async (t) => {
    const { running: { child }, port } = await startHost(t, 'step: () => sleep(20)');
    const board = await startBoard(t, [`127.0.0.1:${port}`]);
    const startedAt = Date.now();
    const before = await untilSystem(board, ({ status }) => status === 'active');
    assert.equal(before.unansweredSince, null);
    child.kill('SIGSTOP');
    const { unansweredSince, name } = await untilSystem(board, (system) => system.unansweredSince !== null);
    const metrics = await (await board.get('/metrics')).text();
    for (const line of [`control_up{system="${name}"} 0`, `control_status{system="${name}",status="no answer"} 1`]) {
      assert.ok(metrics.includes(`\n${line}\n`), metrics);
    }
    assert.ok(Number(unansweredSince) >= startedAt && Number(unansweredSince) <= Date.now());
    child.kill('SIGCONT');
    await untilSystem(board, (system) => system.unansweredSince === null && system.status === 'active');
  });

  it('distinguishes an ended system from a killed one', { skip: lacks('Unix') }, async (t) => {
    const signal = join(makeFolder(t), 'signal');
    const system = `
      step: () => sleep(20),
      onShutdown: async () => { while (!process.getBuiltinModule('node:fs').existsSync('${signal}')) await sleep(20) },
    `;
    const [commanded, killed, interrupted] = [
      await startHost(t, system), await startHost(t, system), await startHost(t, system),
    ];
    let status = SystemStatus.ACTIVE;
    const failing = await startServer(t, { systemStatus: () => status });
    const all = [commanded, killed, interrupted, failing];
    const board = await startBoard(t, all.map(({ port }) => `127.0.0.1:${port}`));
    for (const id of all.keys()) await untilSystem(board, (shown) => shown.status === 'active', id);
    await fetch(`http://127.0.0.1:${commanded.port}/api/shutdown?by=ana&reason=lunch`, { method: 'POST' });
    killed.running.child.kill('SIGKILL');
    interrupted.running.child.kill('SIGTERM');
    failing.server.post('shutdown', { reason: 'exit code 7' }); // as control-run does
    failing.server.receiveCommand();
    status = SystemStatus.SHUTTING_DOWN;
    failing.server.report({ value: { ended: 'exit code 7', exitCode: 7, signal: null } });
    for (const id of [0, 2, 3]) {
      await untilSystem(board, (shown) => shown.status === 'shutting down', id);
    }
    writeFileSync(signal, '');
    await failing.server.close();
    const expected = [[true, false, 'ana', 'lunch'], [false, false, '', ''], [true, false, 'itself', 'SIGTERM'],
      [false, true, 'itself', 'exit code 7']];
    for (const [id, end] of expected.entries()) {
      const { ended, crashed, by, reason } = await untilSystem(board, (shown) => shown.status === 'offline', id);
      assert.deepEqual([ended, crashed, by, reason], end);
    }
    const { commands: [last] } = await untilSystem(board, ({ crashed }) => crashed, 3);
    assert.deepEqual([last?.command, last?.state], ['shutdown', 'crashed']);
  });

  it('attributes the end to its own shutdown, even if the program ends at once', async (t) => {
    const { child, shows, output } = start(t, process.execPath, ['--input-type=module', '-e', `
      import { SystemStatus, WebApiServer } from './dist/control.js';
      const block = (ms) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
      const options = { host: '127.0.0.1', port: 0, name: 'loop', systemStatus: () => SystemStatus.ACTIVE };
      const server = new WebApiServer(options);
      console.log('port', (await server.runInBackground()).port);
      while (await server.nextCommand() !== 'pause');
      server.report({});
      block(3000); // longer than the last response counts
      if (server.receiveCommand() === 'shutdown') process.exit(0);
    `]);
    await shows(/port \d+\n/);
    const target = `127.0.0.1:${/port (\d+)/.exec(output())?.[1]}`;
    const board = await startBoard(t, [target, NOWHERE]);
    await untilSystem(board, ({ status }) => status === 'active');
    await board.post('/api/systems/0/pause');
    await untilSystem(board, ({ sent: [first] }) => first?.state === 'done');
    await board.post('/api/systems/0/shutdown?reason=lunch');
    await board.post('/api/systems/1/shutdown?reason=lunch'); // already offline
    const { by, reason, status } = await untilSystem(board, ({ ended }) => ended);
    assert.deepEqual([by, reason, status, child.exitCode], [BY, 'lunch', 'offline', 0]);
    const metrics = await (await board.get('/metrics')).text();
    assert.match(metrics, /^control_commands_total\{system="loop",command="shutdown",state="done"\} 1$/m);
    const other = await untilSystem(board, ({ sent: [first] }) => first?.state === 'done', 1);
    assert.deepEqual([other.status, other.ended, other.sent[0]?.text], ['offline', false, 'already offline']);
  });

  it('reports the last save, and why the latest one failed', async (t) => {
    const { server, port } = await startServer(t);
    const board = await startBoard(t, [`127.0.0.1:${port}`]);
    const save = async (outcome: object): Promise<void> => {
      await board.post('/api/systems/0/save-state');
      await server.nextCommand();
      server.report(outcome);
    };
    const startedAt = Date.now();
    await save({ value: 'states/1' });
    const first = await untilSystem(board, ({ saved }) => saved?.value === 'states/1');
    assert.ok(Number(first.saved?.at) >= startedAt && Number(first.saved?.at) <= Date.now());
    await save({ error: new Error('ENOSPC') });
    const failed = await untilSystem(board, ({ saveError }) => saveError === 'ENOSPC');
    assert.deepEqual(failed.saved, first.saved);
    await save({ value: 'states/2' });
    await untilSystem(board, ({ saved, saveError }) => saved?.value === 'states/2' && saveError === '');
    await board.post('/api/systems/0/shutdown');
    await server.nextCommand();
    server.report({ value: { saved: 'states/3', ended: 'exit code 0', exitCode: 0 } }); // as control-run does
    await server.close();
    await untilSystem(board, ({ status, saved }) => status === 'offline' && saved?.value === 'states/3');
  });

  it('reports since when the program is in a long step', async (t) => {
    const startedAt = Date.now();
    const signal = join(makeFolder(t), 'signal');
    const path = JSON.stringify(signal);
    const { port } = await startHost(t, `
      step: () => (process.getBuiltinModule('node:fs').existsSync(${path}) ? block(60_000) : sleep(20)),
    `);
    const board = await startBoard(t, [`127.0.0.1:${port}`]);
    const before = await untilSystem(board, ({ status }) => status === 'active');
    assert.equal(before.unheardSince, null);
    writeFileSync(signal, '');
    const during = await untilSystem(board, (system) => system.unheardSince !== null);
    const { unheardSince, unansweredSince, status } = during;
    assert.ok(Number(unheardSince) > startedAt && Number(unheardSince) < Date.now() - 1000);
    assert.deepEqual([unansweredSince, status], [null, 'active']);
  });

  it('shows a server that reports only its status, and one that dies and comes back', async (t) => {
    const { port, posted } = await startOldServer(t);
    const original = await startOldServer(t, true);
    const mortal = await freePort();
    const board = await startBoard(t, [`localhost:${port}`, `localhost:${original.port}`, `127.0.0.1:${mortal}`]);
    for (const id of [0, 1]) await untilSystem(board, ({ status }) => status === 'active', id);
    await board.post('/api/systems/0/pause');
    const { sent, detail, commands } = await untilSystem(board, ({ status, sent: [first] }) => {
      return status === 'paused' && first?.state === 'done';
    });
    assert.deepEqual([posted, detail, commands, sent.length], [['pause'], [], [], 1]);
    await board.post('/api/systems/0/save-state');
    const text = 'save-state accepted, but the server reports no outcome';
    await untilSystem(board, ({ sent: [first] }) => first?.state === 'done' && first.text === text);
    await untilSystem(board, ({ status }) => status === 'offline', 2);
    const { server } = await startServer(t, { host: '127.0.0.1', port: mortal, name: 'phoenix', describe: () => 7 });
    await untilSystem(board, ({ status, name, detail: [row] }) => {
      return status === 'active' && name === 'phoenix' && row?.value === 7;
    }, 2);
    await server.close();
    await untilSystem(board, ({ status, error }) => status === 'offline' && /^connect ECONNREFUSED/.test(error), 2);
    await startServer(t, { host: '127.0.0.1', port: mortal, systemStatus: () => SystemStatus.PAUSED });
    await untilSystem(board, ({ status }) => status === 'paused', 2);
  });

  it('survives arbitrary responses', async (t) => {
    const many = Object.fromEntries(Array.from({ length: 500 }, (_, index) => [`field ${index}`, index]));
    const ofRun = { pid: 7, started: '2026-11-21' };
    const deep = `${'['.repeat(30_000)}${']'.repeat(30_000)}`;
    const with_ = (fields: string): string => JSON.stringify(INFO).replace(/}$/, `,${fields}}`);
    const bodies: [what: string, body: string][] = [
      ['hostile texts', JSON.stringify({
        ...INFO, name: HOSTILE, by: HOSTILE, reason: HOSTILE, pid: HOSTILE, host: HOSTILE, since: HOSTILE,
        detail: { [HOSTILE]: HOSTILE, x: [HOSTILE], y: { [HOSTILE]: HOSTILE } },
        commands: [{ command: HOSTILE, state: HOSTILE, by: HOSTILE, value: HOSTILE, error: HOSTILE, at: HOSTILE }],
      })],
      ['a hostile status', JSON.stringify({ ...INFO, status: HOSTILE })],
      ['markup', JSON.stringify({ ...INFO, name: '<img src=x onerror=alert(1)>', detail: { '<b>': '</script>' } })],
      ['numbers that are none', with_('"detail":{"x":1e999,"y":-1e999,"z":5},"since":1e999,"heardAt":1e999')],
      ['500 fields', JSON.stringify({ ...INFO, detail: many })],
      ['500 fields like those of control-run', JSON.stringify({
        ...INFO, detail: { ...many, run: { ...many, ...ofRun } },
      })],
      ['names with the same excerpt', JSON.stringify({
        ...INFO,
        detail: {
          '\u0001': 1, '\u0002': '1e20', x: 2, 'run.x': 3, run: { x: 4, y: 5, 'y\u0001': 6, 'y ': 7, ...ofRun },
        },
      })],
      ['the names of prototypes', with_(
        '"detail":{"__proto__":{"x":1},"constructor":7,"toString":null,"":1,"hasOwnProperty":"x"},"__proto__":[]',
      )],
      ['a deep detail', with_(`"detail":${deep}`)],
      ['a deep field of the detail', with_(`"detail":{"x":${deep}}`)],
      ['deep commands', with_(`"commands":${deep}`)],
      ['a deep status', `{"status":${deep}}`],
      ...[
        [null, 1, 'x', [], { command: {} }], Array<object>(500).fill({ command: 'pause', seconds: -1 }), 'x',
        { length: 5 },
      ].map((commands): [string, string] => {
        return [`commands ${JSON.stringify(commands).slice(0, 20)}`, JSON.stringify({ ...INFO, commands })];
      }),
      ...[null, [], true, -1, 'active\0', 1e300].map((status): [string, string] => {
        return [`the status ${JSON.stringify(status)}`, JSON.stringify({ ...INFO, status })];
      }),
      ...['null', '7', '[]', '{}', '', '<html>', '{"status":'].map((body) => {
        return [`the body ${body}`, body] as [string, string];
      }),
      ...Object.entries(hostileDeclarations(deep)).map(([what, accepts]): [string, string] => {
        return [what, with_(`"accepts":${typeof accepts === 'string' ? accepts : JSON.stringify(accepts)}`)];
      }),
      ['current values', JSON.stringify({
        ...INFO, accepts: declare('a', 'b', 'c', 'd', 'e', 'f', 'toString'),
        detail: { a: 1.5, b: false, c: 'x', d: null, e: { f: 1 }, f: 'x'.repeat(1001), g: 1 },
      })],
      ['current values that are too large', with_(`"detail":{"a":1e999},"accepts":${JSON.stringify(declare('a'))}`)],
      ['a huge body', 'x'.repeat(500_000)],
      ['100,000 fields', with_(`"detail":{${Array.from({ length: 100_000 }, (_, index) => `"k${index}":1`).join()}}`)],
      ...['"7"', '-5', '0', '1e308', '1e999', '[9]', '{}', 'null', '"<b>"'].map((of): [string, string] => {
        return [`of ${of}`, with_(`"detail":{"step":5,"of":${of}}`)];
      }),
      ['a progress of hostile names', with_(`"detail":{${JSON.stringify(HOSTILE)}:5,"of":9}`)],
      ['a long detail', JSON.stringify({ ...INFO, detail: { x: 'x'.repeat(60_000), ['y'.repeat(2000)]: 1 } })],
    ];
    const ports: number[] = [];
    for (const [, body] of bodies) ports.push(await startFake(t, () => body));
    const cutting = createServer((socket) => socket.on('error', () => {}).once('data', () => socket.destroy()));
    const mute = createServer((socket) => socket.on('error', () => {}));
    for (const server of [cutting, mute]) {
      t.after(() => server.close());
      await once(server.listen(0, '127.0.0.1'), 'listening');
      ports.push((server.address() as AddressInfo).port);
    }
    let reads = 0;
    const { port } = await startServer(t, { describe: () => ({ x: reads += 1 }) });
    const board = await startBoard(t, [...ports, port].map((target) => `127.0.0.1:${target}`));
    const { child } = board.running;
    await untilSystem(board, ({ detail }) => detail.length > 0, ports.length);
    await until(() => reads > 2); // so the others were read, too
    for (const id of ports.keys()) assert.equal((await board.post(`/api/systems/${id}/save-state`)).status, 202);
    await untilSystem(board, ({ sent: [first] }) => first?.state === 'failed', bodies.length);
    await untilSystem(board, ({ unansweredSince }) => unansweredSince !== null, bodies.length + 1);
    checkMetrics(await (await board.get('/metrics')).text());
    assert.equal(child.exitCode, null, board.running.output());
    const { systems } = await newsOf(board);
    for (const [index, system] of systems.entries()) {
      const [what = ''] = bodies[index] ?? [];
      assert.ok(JSON.stringify(system).length < 60_000, what);
      assert.ok(system.detail.length <= 64, what);
      assert.equal(new Set(system.detail.map(({ name }) => name)).size, system.detail.length, what);
      assert.ok(system.commands.length <= 5, what);
      checkDeclarations(system.accepts ?? assert.fail(what), what);
      for (const text of textsOf(system)) assertHarmless(text);
      const { progress } = system;
      const isPlausible = progress === null || (progress.done === 5 && Number.isFinite(progress.of));
      assert.ok(isPlausible, `${what} ${JSON.stringify(progress)}`);
      for (const { value, samples } of system.detail) {
        assert.ok(['string', 'number'].includes(typeof value), what);
        assert.ok((samples ?? []).every(([time, number]) => Number.isFinite(time) && Number.isFinite(number)), what);
      }
      for (const time of [system.since, system.unheardSince, system.unansweredSince]) {
        assert.ok(time === null || Number.isFinite(time), what);
      }
    }
    const declared = new Map(bodies.map(([what], index) => [what, systems[index]?.accepts?.map(({ name }) => name)]));
    assert.deepEqual(declared.get('reserved names'), ['ok']);
    const find = (what: string): Update => systems[bodies.findIndex(([name]) => name === what)] ?? assert.fail(what);
    assert.equal(find('10,000 commands').accepts?.length, 32);
    assert.equal(find('40 parameters').accepts?.[0]?.parameters.length, 32);
    assert.deepEqual(find('fields that do not fit their type').accepts?.[0]?.parameters, FITTING);
    assert.deepEqual(find('current values').current, [['a', 1.5], ['b', false], ['c', 'x']]);
    assert.deepEqual(find('current values that are too large').current, []);
    assert.deepEqual(declared.get('the names of prototypes as commands'), ['constructor']);
    const { detail: ofProto } = find('the names of prototypes');
    const shown = Object.fromEntries(ofProto.map(({ name, value }) => [`[${name}]`, value]));
    assert.deepEqual(shown, {
      '[__proto__]': '{"x":1}', '[constructor]': 7, '[toString]': 'null', '[]': 1, '[hasOwnProperty]': 'x',
    });
    assert.equal(systems.at(-1)?.status, 'active');
    assert.equal(board.running.output().split('\n').length, 2, board.running.output());
  });

  it('forgets the outcome of a command once the system is a new process', async (t) => {
    const known = defer();
    let pid = 1;
    const port = await startFake(t, async ({ method, url }) => {
      if (method === 'POST') return JSON.stringify({ error: 'the queue is full' });
      if (url === '/api/status') return JSON.stringify({ status: 'active' });
      await known.promise;
      return JSON.stringify({ ...INFO, pid });
    }, ({ method }) => (method === 'POST' ? 503 : 200));
    const board = await startBoard(t, [`127.0.0.1:${port}`]);
    await board.post('/api/systems/0/pause');
    await untilSystem(board, ({ sent: [first] }) => first?.state === 'failed');
    known.resolve();
    const first = await untilSystem(board, ({ process }) => process === 'process 1 on box');
    assert.equal(first.sent.length, 1);
    pid = 2;
    const second = await untilSystem(board, ({ process }) => process === 'process 2 on box');
    assert.deepEqual(second.sent, []);
  });
});

describe('The end of a system', () => {
  it('is a crash if the program ended by itself, unsuccessfully, and without a termination signal', () => {
    for (const [exitCode, isExpected] of [
      [7, true], [1, true], [127, true], [137, true], [139, true],
      [0, false], [129, false], [130, false], [141, false], [143, false], ['7', false], [undefined, false],
    ] as const) {
      const value = { ended: 'x', exitCode };
      const run = { pid: 7, started: '2026-11-21T14:03:07.120Z', ...value };
      for (const cause of [{ value }, { detail: { run } }, { commands: [{ value }] }]) {
        assert.equal(isCrash({ by: 'itself', ...cause }), isExpected, inspect(cause));
        assert.equal(isCrash({ by: 'ana', ...cause }), false);
      }
    }
    assert.equal(isCrash({ by: 'itself', reason: 'exit code 7' }), false);
  });

  it('does not count as a save', () => {
    for (const [value, expected] of [
      [{ ended: 'exit code 0', exitCode: 0 }, ''], [{ saved: 'states/1', ended: 'SIGTERM', exitCode: 143 }, 'states/1'],
      ['states/1', 'states/1'], ['', ''], [{ saved: 1 }, '{"saved":1}'],
    ] as const) assert.equal(savedBy({ value }), expected);
  });
});

/** The reply to a request that waits for a change. */
const NEVER = new Promise<object>(() => {});

describe('BoardSystem', LIMIT, () => {
  it('remembers since when a system is silent when a read fails and while no page is open', async () => {
    const failed = { ok: false, phase: 'sent', body: {}, error: 'timeout after 5 s' };
    const { promise: reply, resolve } = defer<object>();
    const replies: (object | Promise<object>)[] = [reply, failed];
    const answer = { ok: true, value: 'active', body: INFO, tag: undefined };
    const system = createSystem(({ signal }) => (signal === undefined ? replies.shift() ?? answer : NEVER));
    system.setWatched(true);
    const silentSince = (): number | null => system.updateSince(0).unansweredSince;
    const reading = system.read();
    await until(() => {
      void system.read(); // while the other request waits
      return silentSince() !== null;
    });
    const since = silentSince();
    resolve(failed);
    await reading;
    assert.equal(silentSince(), since);
    await system.read();
    assert.equal(silentSince(), since);
    system.setWatched(false);
    system.setWatched(true);
    assert.equal(silentSince(), since);
    await system.read();
    assert.equal(silentSince(), null);
  });

  it('has the status unknown, and is not silent, while the board has too many open files', async (t) => {
    const error = 'http://box:1 does not respond: connect EMFILE box:1; too many open files';
    const failed = { ok: false, phase: 'connect', body: {}, statusCode: undefined, code: 'EMFILE', error };
    const answer = { ok: true, value: 'active', body: INFO, tag: undefined };
    let isFull = true;
    const system = createSystem(() => (isFull ? failed : answer));
    t.after(() => system.close());
    await until(() => system.state.status !== '');
    const shown = async (): Promise<unknown[]> => {
      await system.read();
      const { status, unansweredSince } = system.state;
      return [status, unansweredSince, system.state.error];
    };
    assert.deepEqual(await shown(), ['unknown', null, error]);
    isFull = false;
    await until(() => system.state.status === 'active');
    assert.deepEqual(await shown(), ['active', null, '']);
  });
});

/** A command with parameters of these names. */
function declare(...names: string[]): object {
  return { x: { parameters: Object.fromEntries(names.map((name) => [name, { type: 'string' }])) } };
}

/** Fields of parameters, most of which do not fit the type. */
const MISFITS: Record<string, unknown> = {
  a: { type: 'integer', default: 1.5, minimum: '1', maximum: null, enum: 7 },
  b: { type: 'integer', default: 3, enum: [1, 2, '3', null, 1.5] }, c: { type: 'number', default: '1', enum: [] },
  d: { type: 'boolean', default: 0, enum: ['x'] }, e: { type: 'string', default: 7, maxLength: [], description: {} },
  f: {}, g: { type: 'array' }, h: { type: ['string'] }, i: { type: null }, j: [], k: 7, l: null,
  constructor: { type: 'number', default: 0.1, minimum: 0 },
};

/** What a page receives of them. */
const FITTING: readonly object[] = [
  { name: 'a', type: 'integer', description: '', hint: 'required' },
  { name: 'b', type: 'integer', description: '', hint: 'required', enum: [1, 2] },
  { name: 'c', type: 'number', description: '', hint: 'required' },
  { name: 'd', type: 'boolean', description: '', hint: '' },
  { name: 'e', type: 'string', description: '', hint: 'required' },
  { name: 'constructor', description: '', hint: 'from 0', type: 'number', default: 0.1, minimum: 0 },
];

/** Values of `accepts`, or their JSON text. */
function hostileDeclarations(deep: string): Record<string, unknown> {
  const entries = (count: number, value: unknown, prefix = 'a'): object => {
    return Object.fromEntries(Array.from({ length: count }, (_, index) => [`${prefix}${index}`, value]));
  };
  const string = { type: 'string' };
  return {
    'a list': [{ evaluate: {} }], 'a text': '"evaluate"', 'deep declarations': deep, 'a deep command': `{"x":${deep}}`,
    'deep parameters': `{"x":{"parameters":${deep}}}`, 'a deep parameter': `{"x":{"parameters":{"a":${deep}}}}`,
    'a deep default': `{"x":{"parameters":{"a":{"type":"string","default":${deep},"enum":${deep}}}}}`,
    '10,000 commands': entries(10_000, {}), 'large commands': entries(30, { description: 'x'.repeat(999) }),
    '10,000 parameters': { x: { parameters: entries(10_000, string) } },
    '40 parameters': { x: { parameters: entries(40, string) } },
    'an enum of 10,000': { x: { parameters: { a: { type: 'integer', enum: [...Array(10_000).keys()] } } } },
    'hostile declarations': {
      [HOSTILE]: {},
      x: { description: HOSTILE, parameters: { [HOSTILE]: string, a: { ...string, description: HOSTILE } } },
    },
    'fields that do not fit their type': { x: { parameters: MISFITS } },
    'limits that are no numbers':
      '{"x":{"parameters":{"a":{"type":"number","minimum":-1e999,"maximum":1e999,"default":1e999}}}}',
    'reserved names': { pause: {}, info: {}, 'save-state': {}, Evaluate: {}, '': {}, 'a b': {}, ok: null },
    'the names of prototypes as commands':
      '{"__proto__":{},"constructor":{"parameters":{"__proto__":{"type":"string"},"toString":{"type":"string"}}}}',
  };
}

function checkDeclarations(accepts: readonly OwnCommand[], what: string): void {
  assert.ok(accepts.length <= 32 && JSON.stringify(accepts).length < 20_000, what);
  for (const { name, parameters } of accepts) {
    assert.match(name, /^[a-z][a-z0-9-]*$/, what);
    assert.ok(parameters.length <= 32, what);
    for (const parameter of parameters) {
      assert.match(parameter.name, /^[A-Za-z]\w*$/, what);
      assert.ok(['boolean', 'integer', 'number', 'string'].includes(parameter.type), what);
    }
  }
}

function textsOf(value: unknown): string[] {
  if (typeof value === 'string') return [value];
  if (typeof value !== 'object' || value === null) return [];
  return Object.entries(value).flatMap(([name, field]) => [name, ...textsOf(field)]);
}
