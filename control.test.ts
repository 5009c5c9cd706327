// The specification of control.ts: its promises to the program into which it is copied, and to the people who control
// that program. Each promise appears once, in the order in which a newcomer asks; bin/test/module/ has the tests with
// more rows, time or stress. The program under control is mostly this process: `startServer()` starts its server, and
// the test takes the commands; the tests of a suite may `share()` one. A program that blocks its thread, exits or gets
// signals is a separate process: `runHost()`. Clients speak plain HTTP: `ask()` sends one request on a connection of
// its own, a `Talk` one after the other, `exchange()` any bytes.

import assert from 'node:assert/strict';
import { getEventListeners, once } from 'node:events';
import { lstatSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { STATUS_CODES } from 'node:http';
import { Session } from 'node:inspector';
import { hostname } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { after, before, beforeEach, describe, it } from 'node:test';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { inspect } from 'node:util';

import {
  NO_TOKEN, TOKEN, collectThreads, collectWarnings, freePort, launchSystem, makeFolder, makeSocketPath,
  startForeign, startServer, takeAll,
} from './bin/test/helpers.ts';
import { runHost, spawnHost, startUnreachable } from './bin/test/host.ts';
import {
  BEARER, COMMANDS, HOST, INFO, PAGE, PAUSE, RESUME, SAVE, SHUTDOWN, STATUS, Talk, UPGRADE, WAIT, ask,
  assertWaits, connectTo, exchange, head, parse, readToEnd, serveOthers,
} from './bin/test/http.ts';
import { leaveSocket, reaches, refusalOf } from './bin/test/module/helpers.ts';
import { lacks } from './bin/test/needs.ts';
import { LIMIT, inTime, until } from './bin/test/wait.ts';
import {
  DEFAULT_HOST, DEFAULT_MAX_QUEUE_SIZE, DEFAULT_PORT, EmptyError, SystemStatus, VERSION, WebApiClient, WebApiServer,
  launch,
} from './control.ts';
import type { StartedServer } from './bin/test/helpers.ts';
import type { Host } from './bin/test/host.ts';
import type { AskInfo, Control, CommandRequest, ControlCommand, WebApiServerOptions } from './control.ts';
import type { TestContext } from 'node:test';

const { ACTIVE, PAUSING, PAUSED, RESUMING, SHUTTING_DOWN, OFFLINE } = SystemStatus;
const STATUSES = [ACTIVE, PAUSING, PAUSED, RESUMING, SHUTTING_DOWN]; // that a server reports

const UNIX = { ...LIMIT, skip: lacks('Unix') };

const NO_METHOD = 'Invalid API method';
const QUEUE_FULL = 'Command queue is full, try again later';
const WRONG_TOKEN = NO_TOKEN.replace('Missing', 'Wrong');
const SAY = 'POST /api/say';
const README = readFileSync('README.md', 'utf8');

/** A program that the tests of a suite share, one after the other. */
interface Program extends StartedServer<string> {
  /** What systemStatus() and describe() do. Each test finds an active program without commands. */
  status: () => unknown;
  detail: () => unknown;
  talk: Talk;
  /** Changes the status, as the program does after a command that it has taken. */
  become(status: SystemStatus): void;
  /** Sends a command that waits, lets the program take it, and change its status. Returns the outcome. */
  perform(line: string, next?: SystemStatus): Promise<unknown>;
}

/** A program with the own command `say`. */
function share(options: Partial<WebApiServerOptions<string>> = {}): Program {
  const ends: (() => unknown)[] = [];
  const program = {} as Program;
  program.become = (status) => {
    program.status = () => status;
    program.server.publish();
  };
  program.perform = async (line, next) => {
    const { server, port } = program;
    const response = ask(port, line, WAIT);
    await until(async () => server.hasCommands() || (await Promise.race([response, nextTurn()])) !== undefined);
    if (server.hasCommands()) server.receiveCommand();
    if (next !== undefined) program.become(next);
    server.hasCommands();
    const { statusCode, body } = await response;
    return statusCode === 200 ? body.value ?? 'done' : body.error;
  };
  before(async () => {
    const context = { after: (end: () => unknown) => void ends.push(end) } as unknown as TestContext;
    [program.status, program.detail] = [() => ACTIVE, () => null];
    Object.assign(program, await startServer<string>(context, {
      systemStatus: () => program.status() as SystemStatus, describe: () => program.detail(), commands: { say: {} },
      ...options,
    }));
    program.talk = new Talk(program.port);
  });
  beforeEach(() => {
    takeAll(program.server);
    program.become(ACTIVE);
  });
  after(async () => {
    program.talk.end();
    for (const end of ends) await end();
  });
  return program;
}

// ───── A program under control ───────────────────────────────────────────────────────────────────────────────────

/** The API in one table; the queue has room for one command. */
const ENDPOINTS: [request: string, statusCode: number, body: Record<string, string>, taken?: ControlCommand][] = [
  [STATUS, 200, { status: 'active' }],
  [PAUSE, 200, { result: 'ok' }, 'pause'],
  [RESUME, 200, { result: 'ok' }, 'resume'],
  [SAVE, 200, { result: 'ok' }, 'save-state'],
  [SHUTDOWN, 200, { result: 'ok' }, 'shutdown'],
  ['GET /api/unknown', 404, { error: 'Invalid API endpoint' }],
  ['POST /api/unknown', 404, { error: 'Invalid API endpoint' }],
  ['PUT /api/pause', 405, { error: 'Invalid API method' }],
  ['POST /', 405, { error: 'Invalid API method' }],
];

describe('A program under control', { ...LIMIT, concurrency: 3 }, () => {
  it('gives the responses that the first screen of the README shows', async (t) => {
    const [, source = ''] = /```ts\n(import [^]*?)```/.exec(README) ?? [];
    const [, transcript = ''] = /```console\n([^`]*\$ npx [^]*?)```/.exec(README) ?? [];
    const { port, ended } = await runExample(t, source
      .replace('1e8', '1e7')
      .replace('await launch({', '$& onListening: ({ port }) => console.log(port),')
      .replace(/\}\);\n$/, "}, { webApiAddress: ['localhost', 0] });"));
    const form = /^\$ .*curl .*?(-X POST )?(-H .*? )?localhost:8391([\w/-]+).*\n(\{.*?\})/gm;
    const requests = [...transcript.matchAll(form)];
    assert.equal(requests.length, 3, transcript);
    for (const [, post, wait, path, text = ''] of requests) {
      if (post === undefined) await until(async () => (await ask(port, `GET ${path}`)).text === text);
      else {
        const fields = wait === undefined ? [] : [WAIT];
        assert.deepEqual(withoutTimes(await ask(port, `POST ${path}`, ...fields)), withoutTimes({ text }));
      }
    }
    assert.equal((await ended).code, 0);
  });

  it('responds while it computes and never awaits', async (t) => {
    const { port, ended } = await runExample(t, `
      import { SystemStatus, WebApiServer } from './control.mts';
      let status = SystemStatus.ACTIVE;
      const server = new WebApiServer({ systemStatus: () => status, port: 0 });
      console.log((await server.runInBackground()).port);
      while (status !== SystemStatus.SHUTTING_DOWN) {
        const command = server.nextCommandSync({ timeout: status === SystemStatus.PAUSED ? Infinity : 0 });
        if (command === null) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1); // blocks the thread
        if (command === 'pause') status = SystemStatus.PAUSED;
        if (command === 'resume') status = SystemStatus.ACTIVE;
        if (command === 'shutdown') status = SystemStatus.SHUTTING_DOWN;
        if (command === 'save-state') server.report({ value: 'states/1.json' });
      }
      await server.close();
    `);
    await until(async () => (await ask(port, STATUS)).summary === '200 active'); // it may not get the CPU for 10 ms
    assert.equal((await ask(port, PAUSE, WAIT)).summary, '200 done');
    assert.equal((await ask(port, STATUS)).summary, '200 paused');
    assert.equal((await ask(port, SAVE, WAIT)).body?.['value'], 'states/1.json');
    assert.equal((await ask(port, RESUME, WAIT)).summary, '200 done');
    assert.equal((await ask(port, SHUTDOWN, WAIT)).summary, '200 done');
    assert.equal((await ended).code, 0);
  });

  it('has five endpoints; each response is JSON of a known length, for no cache and no other site', async (t) => {
    let status = ACTIVE;
    const { server, port } = await startServer(t, { systemStatus: () => status, maxQueueSize: 1 });
    const check = async (line: string, statusCode: number, body: object): Promise<void> => {
      const { headers, ...response } = await ask(port, line);
      assert.deepEqual([response.statusCode, response.text], [statusCode, JSON.stringify(body)], line);
      assert.deepEqual([headers['content-type'], headers['cache-control']], ['application/json', 'no-store']);
      assert.equal(headers['content-length'], String(response.text.length));
      assert.equal(headers['cross-origin-resource-policy'], 'same-origin');
      assert.equal(headers['x-content-type-options'], 'nosniff');
      assert.ok(Math.abs(Date.now() - Date.parse(headers['date'] ?? '')) < 60_000, headers['date']);
    };
    for (const [line, statusCode, body, taken] of ENDPOINTS) {
      await check(line, statusCode, body);
      assert.equal(server.hasCommands(), taken !== undefined, line);
      if (taken !== undefined) assert.equal(server.receiveCommand(), taken);
    }
    await check(SAVE, 200, { result: 'ok' });
    await check(PAUSE, 503, { error: QUEUE_FULL });
    assert.deepEqual(takeAll(server), ['save-state']);
    collectWarnings(t);
    status = OFFLINE; // which is for clients
    server.hasCommands();
    await check(STATUS, 500, { error: 'Internal server error' });
  });

  it('lists its endpoints, own commands included, for who opens its address', async (t) => {
    const { port } = await startServer(t, { commands: { say: {} } });
    const posts = [...COMMANDS, 'answer', 'withdraw', 'say'].map((name) => `POST /api/${name}`);
    const endpoints = ['GET /api/status', 'GET /api/info', 'GET /api/stack', ...posts];
    const [response] = await exchange(port, head('GET /?from=bookmark', HOST, 'Sec-Fetch-Site: none'));
    assert.deepEqual(response?.body, { endpoints, page: `README.md of runtime-control ${VERSION}` });
    for (const endpoint of endpoints) {
      const [reply] = await exchange(port, head(endpoint, HOST));
      assert.ok(reply !== undefined && !reply.summary.includes('endpoint'), `${endpoint}: ${reply?.summary}`);
    }
  });

  it('takes POST for commands, GET and HEAD for status and info; other methods get a 405', async (t) => {
    const { server, port } = await startServer(t);
    const talk = new Talk(port);
    for (const [allow, paths] of [['POST', COMMANDS], ['GET, HEAD', ['status', 'info']]] as const) {
      for (const method of ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS']) {
        if (allow.split(', ').includes(method)) continue;
        for (const path of paths) {
          const { statusCode, headers, body } = await talk.ask(`${method} /api/${path}`);
          const error = method === 'HEAD' ? undefined : NO_METHOD;
          assert.deepEqual([statusCode, headers['allow'], body?.error], [405, allow, error], `${method} ${path}`);
        }
      }
    }
    assert.deepEqual(takeAll(server), []);
  });

  it('has six statuses, documented defaults, and one version everywhere', () => {
    const names = ['active', 'pausing', 'paused', 'resuming', 'shutting down', 'offline'];
    assert.deepEqual(Object.values(SystemStatus).map(({ statusName }) => statusName), names);
    assert.deepEqual([...STATUSES, OFFLINE].map(String), names);
    assert.ok([SystemStatus, ...Object.values(SystemStatus)].every(Object.isFrozen));
    assert.deepEqual([DEFAULT_HOST, DEFAULT_PORT, DEFAULT_MAX_QUEUE_SIZE], ['localhost', 8391, 16]);
    assert.equal(VERSION, JSON.parse(readFileSync('package.json', 'utf8')).version);
    assert.ok(readFileSync('control.ts', 'utf8').startsWith(`/*! control.ts ${VERSION} `));
    assert.equal(/^## (?!Unreleased)(\S+)/m.exec(readFileSync('CHANGELOG.md', 'utf8'))?.[1], VERSION);
  });
});

// ───── Status ────────────────────────────────────────────────────────────────────────────────────────────────────

describe('GET /api/status', LIMIT, () => {
  const program = share();

  it('responds with each of five statuses and its tag; HEAD gets the same without the body', async () => {
    const { talk } = program;
    for (const status of STATUSES) {
      program.become(status);
      const { statusCode, headers, text } = await talk.ask(STATUS);
      assert.deepEqual([statusCode, text], [200, `{"status":"${status.statusName}"}`]);
      assert.equal(headers['etag'], `"${status.statusName.replace(' ', '-')}"`);
      const bodiless = await talk.ask('HEAD /api/status');
      assert.deepEqual([bodiless.statusCode, bodiless.text], [200, '']);
      assert.equal(bodiless.headers['content-length'], String(text.length));
    }
  });

  it('shows the effect of a command that was accepted before', async (t) => {
    let status = ACTIVE;
    const { server, port } = await startServer(t, { systemStatus: () => status });
    const talk = new Talk(port);
    const loop = assert.rejects(async () => {
      for (;;) status = (await server.nextCommand()) === 'pause' ? PAUSED : ACTIVE;
    }, EmptyError);
    for (let round = 0; round < 10; round += 1) {
      const [line, next] = round % 2 === 0 ? [PAUSE, PAUSED] : [RESUME, ACTIVE];
      await talk.ask(line);
      const began = performance.now();
      const { summary } = await talk.ask(STATUS);
      // The server waits 10 ms for a program that does not get the CPU, and then sends the last known status.
      if (performance.now() - began < 9) assert.equal(summary, `200 ${next}`);
      await until(() => status === next);
      assert.equal((await talk.ask(STATUS)).summary, `200 ${next}`, 'once the program looks again');
    }
    await server.close();
    await loop;
  });

  it('responds 500 while systemStatus() fails, warns once for each reason, and keeps accepting commands', async (t) => {
    const warnings = collectWarnings(t);
    const { server, talk } = program;
    for (program.status of [
      () => assert.fail('lost'), () => assert.fail('lost'), () => assert.fail('found'), () => 'active', () => undefined,
      () => OFFLINE, async () => assert.fail('this must not end the process'),
    ]) {
      server.hasCommands();
      assert.equal((await talk.ask(STATUS)).summary, '500 Internal server error');
    }
    assert.equal((await talk.ask(PAUSE)).summary, '200 ok');
    program.status = () => PAUSED;
    assert.deepEqual(takeAll(server), ['pause']);
    assert.equal((await talk.ask(STATUS)).summary, '200 paused');
    assert.deepEqual(warnings.slice(0, 3), [
      'systemStatus failed: lost', 'systemStatus failed: found',
      "systemStatus failed: it must return a SystemStatus other than OFFLINE, got 'active'",
    ]);
    let failures = 0;
    program.status = () => assert.fail(`failure ${failures += 1}`);
    while (failures < 1000) server.hasCommands();
    assert.ok(warnings.length <= 100, `${warnings.length} warnings`);
  });

  it('with If-None-Match responds 304 without a body if the client knows the status, and 200 if not', async () => {
    const { port, talk } = program;
    const began = performance.now();
    const waiting = ask(port, STATUS, 'If-None-Match: "active"', 'Prefer: wait=1');
    for (const list of [
      '"active"', 'W/"active"', '*', ' * ', '"paused", "active"', '"paused" ,W/"active",', '"a,b", "active"',
      '"a b", "active"', '"x"\r\nIf-None-Match: "active"',
    ]) {
      const { statusCode, headers, text } = await talk.ask(STATUS, `If-None-Match: ${list}`);
      assert.deepEqual([statusCode, headers['etag'], text], [304, '"active"', ''], list);
    }
    for (const list of [
      '"paused"', 'active', '"ACTIVE"', '"active', '" active"', '"*"', '""', '', '"paused", "pausing"', '"active-1"',
    ]) {
      assert.equal((await talk.ask(STATUS, `If-None-Match: ${list}`, WAIT)).statusCode, 200, list);
    }
    assert.equal((await waiting).statusCode, 304, 'nothing has changed when its wait ends');
    assert.ok(performance.now() - began > 990);
  });

  it('with If-None-Match waits for a status that the client does not know, if it prefers to', async () => {
    const { port } = program;
    const waiting = [STATUS, 'HEAD /api/status'].map((line) => ask(port, line, 'If-None-Match: "active"', WAIT));
    const later = ask(port, STATUS, 'If-None-Match: "active", "pausing"', WAIT);
    await assertWaits(port, ...waiting, later);
    program.become(PAUSING);
    for (const { statusCode, headers } of await Promise.all(waiting)) {
      assert.deepEqual([statusCode, headers.etag, headers['preference-applied']], [200, '"pausing"', 'wait=60']);
    }
    await assertWaits(port, later);
    program.become(PAUSED);
    assert.equal((await later).summary, '200 paused');
  });
});

// ───── Outcomes ──────────────────────────────────────────────────────────────────────────────────────────────────

describe('POST with Prefer: wait', LIMIT, () => {
  const program = share({ maxQueueSize: 2 });

  /** Sends a command that waits, and lets the program report. */
  const report = async (outcome: { value?: unknown; error?: unknown }) => {
    const { server, port } = program;
    const response = ask(port, SAVE, WAIT);
    await server.nextCommand();
    server.report(outcome);
    server.report({ error: 'a command is completed once' });
    return response;
  };

  it('responds once the command is done, with id, value and seconds', async () => {
    const { server, port } = program;
    const began = Date.now();
    const waiting = ask(port, SAVE, WAIT);
    await server.nextCommand();
    await assertWaits(port, waiting);
    server.report({ value: 'states/1.json' });
    const { statusCode, headers, body: { id, seconds, ...others } } = await waiting;
    assert.deepEqual([statusCode, headers['preference-applied']], [200, 'wait=60']);
    assert.deepEqual(others, { result: 'ok', state: 'done', value: 'states/1.json' });
    assert.match(id, /^[a-z\d]{3}-1$/);
    assert.ok(seconds >= 0 && seconds <= (Date.now() - began + 2) / 1000, seconds);
  });

  it('responds 500 with the reason if the command fails', async () => {
    for (const [error, reason] of [
      [new Error('disk full'), 'disk full'], ['disk full', "'disk full'"], [undefined, 'undefined'],
      [Object.assign(new Error(''), { code: 'ENOSPC' }), 'ENOSPC'], [{ code: 5 }, '{ code: 5 }'],
      [new Error('a\x1b[2J\nb'), 'a[2Jb'], [new Error('x'.repeat(2000)), 'x'.repeat(1000)],
    ] as const) {
      const { summary, headers } = await report({ error });
      assert.deepEqual([summary, headers['preference-applied']], [`500 save-state failed: ${reason}`, 'wait=60']);
    }
  });

  it('sends the value of report(): JSON up to 4 KiB, a text up to 1000 characters, or why it is omitted', async () => {
    const { server, talk } = program;
    for (const [value, expected] of [
      ['a\r\nb\x1b[2Jä\0\x7f\x9b"\\', 'ab[2Jä"\\'], ['😀'.repeat(1001), '😀'.repeat(1000)], [0.5, 0.5], [0, 0], ['', ''],
      [NaN, null], [null, null], [undefined, undefined], [true, true], [{ a: [{ b: 'é\n' }] }, { a: [{ b: 'é\n' }] }],
      ['\ud83d'.repeat(1001), '\ufffd'.repeat(1000)], [['x'.repeat(4092)], ['x'.repeat(4092)]],
    ]) {
      const { statusCode, body } = await report({ value });
      assert.deepEqual([statusCode, body.value], [200, expected], inspect(value));
    }
    const itself: unknown[] = [];
    itself.push(itself);
    for (const value of [['x'.repeat(4093)], 1n, itself, Symbol(), () => 1, Promise.resolve(1)]) {
      const { statusCode, body: { state, value: sent, valueOmitted } } = await report({ value });
      assert.deepEqual([statusCode, state, sent, typeof valueOmitted], [200, 'done', undefined, 'string']);
    }
    const omitted = 'the value must be JSON of at most 4096 bytes';
    assert.equal((await talk.ask(INFO)).body.commands.at(-6).valueOmitted, omitted);
    server.report({ value: 'of no command' });
    assert.throws(() => server.report({ valeu: 1 } as object), TypeError);
  });

  it('responds 202 with the state, waiting or running, when the wait ends', async () => {
    const { server, port } = program;
    const running = ask(port, PAUSE, 'Prefer: wait=1');
    assert.equal(await server.nextCommand(), 'pause');
    const waiting = ask(port, SAVE, 'Prefer: wait=1');
    assert.deepEqual([(await running).summary, (await waiting).summary], ['202 running', '202 waiting']);
    assert.deepEqual(Object.keys((await running).body), ['result', 'id', 'state']);
    assert.deepEqual(takeAll(server), ['save-state'], 'the command stands');
  });

  it('reads the preference as in RFC 7240, up to 300 seconds, and ignores any other form', async () => {
    const { server, port } = program;
    const rows: [applied: string | undefined, ...prefers: string[]][] = [
      ['wait=1', 'wait=1'], ['wait=300', 'wait=300', 'wait=301', 'wait=99999999999999999999'],
      ['wait=10',
        'wait=010', 'Wait=10', 'wait = 10', 'wait\t=\t10 ', 'respond-async, wait=10', ', ,wait=10,', 'wait=10, wait=20',
        'return=minimal\r\nPrefer: wait=10', 'wait=10\r\nPrefer: wait=20', 'wait=10; x', 'x="a", wait=10',
        'wait=10;x=y ; z="a, wait=20"', 'x; wait=20, wait=10'],
      [undefined,
        'wait=0', 'wait=-1', 'wait=1.5', 'wait=', 'wait', 'wait=""', 'wait="10"', 'wait="10", wait=20',
        'wait=0, wait=10', 'wait=+10', 'wait=1e1', 'wait=0x10', 'wait=10s', 'wait=1 0', 'wait="1 0"',
        "wait='10'", 'wait="10', 'wait:10', '', 'x-wait=10', 'wait-x=10', 'await=10', 'x; wait=10', 'x="wait=10"',
        'x="a, wait=10"', 'respond-async'],
    ];
    const talk = new Talk(port);
    for (const [applied, ...prefers] of rows) {
      for (const prefer of prefers) {
        const response = talk.ask(PAUSE, `Prefer: ${prefer}`);
        await server.nextCommand();
        server.hasCommands();
        const { headers, body } = await response;
        assert.deepEqual([headers['preference-applied'], 'id' in body], [applied, applied !== undefined], prefer);
      }
    }
    talk.end();
  });

  it('counts a command as done at the next look: a plain loop need not report', async (t) => {
    const { server, port } = await startServer(t);
    for (const look of [
      () => server.hasCommands(), () => assert.throws(() => server.receiveCommand(), EmptyError),
      () => {
        const end = new AbortController();
        const next = server.nextCommand(end);
        end.abort();
        return next.catch(() => {});
      },
      () => server.nextCommandSync({ timeout: 0 }), () => server.close(),
    ]) {
      const waiting = ask(port, PAUSE, WAIT);
      await until(() => server.hasCommands());
      server.receiveCommand();
      await assertWaits(port, waiting);
      await look();
      const { summary, body } = await waiting;
      assert.deepEqual([summary, 'value' in body], ['200 done', false], String(look));
    }
  });

  it('responds 202 at close() if the command still waits, and 503 at once if the queue is full', async () => {
    const { server, port } = program;
    await ask(port, SAVE);
    const waiting = ask(port, PAUSE, WAIT);
    await until(async () => (await ask(port, INFO)).body.commands.at(-1).command === 'pause');
    assert.equal((await ask(port, PAUSE, WAIT)).summary, `503 ${QUEUE_FULL}`);
    await assertWaits(port, waiting);
    await server.close();
    const { summary, headers } = await waiting;
    assert.deepEqual([summary, headers['connection']], ['202 waiting', 'close']);
    assert.deepEqual(takeAll(server), ['save-state', 'pause']);
  });
});

// ───── Information ───────────────────────────────────────────────────────────────────────────────────────────────

describe('GET /api/info', LIMIT, () => {
  const program = share();

  it('describes the program', async (t) => {
    const started = Date.now();
    const { port } = await startServer(t, { name: 'pole\x07', describe: () => ({ episode: 7, tags: ['a'] }) });
    const { statusCode, headers, body: { startedAt, since, heardAt, ...others } } = await ask(port, INFO);
    assert.equal(statusCode, 200);
    assert.match(headers['etag'] ?? '', /^"[a-z\d]{3}-\d+"$/);
    assert.deepEqual(others, {
      name: 'pole', pid: process.pid, host: hostname(), port, version: VERSION, status: 'active', holds: [],
      detail: { episode: 7, tags: ['a'] }, accepts: {}, asks: [], commands: [],
    });
    for (const time of [startedAt, since, heardAt]) assert.equal(new Date(time).toISOString(), time);
    assert.ok(Math.abs(Date.parse(startedAt) - performance.timeOrigin) < 1000 && started <= Date.parse(since));
    const { body: { name } } = await program.talk.ask(INFO);
    assert.equal(name, basename(process.argv[1] ?? '', '.js'), 'the file of the program, without a name');
  });

  it('lists the latest 16 commands, oldest first, with sender, reason, state and outcome', async () => {
    const { server, talk } = program;
    for (let count = 0; count < 20; count += 1) {
      await talk.ask(`${RESUME}?by=ana@laptop&reason=${count}`);
      server.receiveCommand();
    }
    server.report({ value: 'in time' });
    for (const line of [SAVE, `${PAUSE}?by=`, SHUTDOWN]) await talk.ask(line);
    server.receiveCommand();
    server.report({ error: 'disk full' });
    server.receiveCommand();
    const { commands } = (await talk.ask(INFO)).body;
    const [first, ...ids] = commands.map(({ id }: typeof commands[0]) => Number(id.slice(4)));
    assert.deepEqual(ids, Array.from({ length: 15 }, (_, index) => first + index + 1));
    const latest = commands.slice(-5).map(({ id, at, takenAt = at, seconds, ...others }: typeof commands[0]) => {
      assert.ok(at <= takenAt && Date.parse(at) <= Date.now());
      assert.equal(seconds >= 0, ['done', 'failed'].includes(others.state));
      return others;
    });
    assert.deepEqual(latest, [
      { command: 'resume', state: 'done', by: 'ana@laptop', reason: '18' },
      { command: 'resume', state: 'done', value: 'in time', by: 'ana@laptop', reason: '19' },
      { command: 'save-state', state: 'failed', error: "'disk full'" },
      { command: 'pause', state: 'running' }, { command: 'shutdown', state: 'waiting' },
    ]);
  });

  it('takes sender and reason from the query: up to 200 characters, without control characters', async () => {
    const { server, talk } = program;
    for (const [query, by, reason] of [
      ['?by=ana%40laptop&reason=GPU+needed%20now', 'ana@laptop', 'GPU needed now'],
      ['?by=a%00b%1B%5B2Jc%C2%85d%7Fe&reason=%0D%0Ax%09', 'ab[2Jcde', 'x'],
      ['?by=%22%5C%27%3C%3E&reason=%E2%80%A8%7B%7D', '"\\\'<>', '\u2028{}'],
      [`?by=${encodeURIComponent('😀'.repeat(300))}&reason=`, '😀'.repeat(200), undefined],
      ['?by=%FF%C3x', '\ufffd\ufffdx', undefined], ['?by=100%&reason=%zz%4', '100%', '%zz%4'],
      ['?&&by=a=b?c&reason=1%262;3&', 'a=b?c', '1&2;3'], ['?%62y=a', 'a', undefined],
      ['?by', undefined, undefined], ['?', undefined, undefined], ['', undefined, undefined],
    ] as const) {
      for (const line of [PAUSE, 'POST http://localhost/api/pause']) {
        assert.equal((await talk.ask(line + query)).statusCode, 200);
        server.receiveCommand();
        const { commands } = (await talk.ask(INFO)).body;
        assert.deepEqual([commands.at(-1).by, commands.at(-1).reason], [by, reason], query);
      }
    }
  });

  it('reports since when the status holds, by whom and why, whatever a save or another pause does', async () => {
    const { server, talk } = program;
    const getCause = async (): Promise<[since: string, by?: string, reason?: string]> => {
      const { since, by, reason } = (await talk.ask(INFO)).body;
      return [since, by, reason];
    };
    const perform = async (line: string, next?: SystemStatus): ReturnType<typeof getCause> => {
      await sleep(2); // so that times differ
      await program.perform(line, next);
      return getCause();
    };
    const started = await getCause();
    assert.deepEqual(await perform(`${RESUME}?by=eve`), started);
    const paused = await perform(`${PAUSE}?by=ana&reason=lunch`, PAUSED);
    assert.deepEqual([paused[0] > started[0], ...paused.slice(1)], [true, 'ana', 'lunch']);
    await talk.ask(`${SAVE}?by=bob&reason=daily`);
    server.receiveCommand();
    for (const status of [PAUSING, PAUSED]) program.become(status);
    assert.deepEqual(await perform(`${PAUSE}?by=bob&reason=dinner`), paused);
    for (let count = 0; count < 70; count += 1) await talk.ask(SAVE).then(() => takeAll(server));
    assert.deepEqual(await getCause(), paused, 'although those commands are no longer listed');
    const active = await perform(`${RESUME}?by=ana`, ACTIVE);
    assert.deepEqual([active[0] > paused[0], ...active.slice(1)], [true, 'ana', undefined]);
    await talk.ask(`${PAUSE}?by=eve`); // which still waits when the program itself pauses
    program.become(PAUSED);
    assert.equal((await getCause())[1], 'itself');
  });

  it('has the status that a command has led to once the next command is taken', async () => {
    const { server, talk } = program;
    await talk.ask(`${PAUSE}?by=ana`);
    await talk.ask(`${SAVE}?by=ben`);
    assert.equal(server.receiveCommand(), 'pause');
    program.status = () => PAUSED;
    assert.equal(server.receiveCommand(), 'save-state');
    const { status, by } = (await talk.ask(INFO)).body;
    assert.deepEqual([status, by], ['paused', 'ana']);
  });

  it('has a null detail, with a warning, while describe() fails or returns more than 4 KiB of JSON', async (t) => {
    const warnings = collectWarnings(t);
    const fits = 'x'.repeat(4094);
    const becomes = (detail: unknown): Promise<void> => {
      return until(async () => (await program.talk.ask(INFO)).body.detail === detail);
    };
    for (const failing of [
      () => `${fits}x`, () => 'é'.repeat(2048), () => 1n, () => Symbol(), async () => 1, () => assert.fail('lost'),
      async () => assert.fail('this must not end the process'),
    ]) {
      program.detail = () => fits;
      await becomes(fits);
      program.detail = failing;
      await becomes(null);
    }
    const tooLong = 'describe failed: the value must be JSON of at most 4096 bytes';
    assert.deepEqual(warnings.filter((warning) => !warning.includes('BigInt')), [tooLong, 'describe failed: lost']);
  });

  it('has a tag that changes with status, commands and outcomes, but not with the detail', async () => {
    const { server, port, talk } = program;
    let count = 0;
    program.detail = () => (count += 1);
    let tag = (await talk.ask(INFO)).headers['etag'];
    await until(async () => (await talk.ask(INFO)).body.detail > 1);
    for (const change of [
      () => talk.ask(PAUSE), () => server.receiveCommand(), () => server.report({ value: 1 }),
      () => program.become(PAUSED), () => server.post('resume'), () => server.receiveCommand(),
    ]) {
      const waiting = [INFO, 'HEAD /api/info'].map((line) => ask(port, line, `If-None-Match: ${tag}`, WAIT));
      await assertWaits(port, ...waiting);
      await change();
      for (const { statusCode } of await Promise.all(waiting)) assert.equal(statusCode, 200, String(change));
      tag = (await talk.ask(INFO)).headers['etag'];
    }
    assert.equal((await talk.ask(INFO, `If-None-Match: ${tag}`)).summary, '304');
  });
});

// ───── The queue ─────────────────────────────────────────────────────────────────────────────────────────────────

describe('The queue', LIMIT, () => {
  const program = share();

  it('holds maxQueueSize commands in order, and refuses more with 503', async (t) => {
    for (const maxQueueSize of [1, 3]) {
      const { server, port } = await startServer(t, { maxQueueSize });
      const talk = new Talk(port);
      for (let round = 0; round < 2; round += 1) { // the ring wraps around
        const posted = Array.from({ length: maxQueueSize }, (_, index) => COMMANDS[(index + round) % 4]);
        for (const command of posted) assert.equal((await talk.ask(`POST /api/${command}`)).summary, '200 ok');
        assert.equal((await talk.ask(PAUSE)).summary, `503 ${QUEUE_FULL}`);
        assert.equal(server.receiveCommand(), posted.shift());
        assert.equal((await talk.ask(SAVE)).summary, '200 ok');
        assert.equal((await talk.ask(PAUSE)).summary, `503 ${QUEUE_FULL}`);
        assert.deepEqual(takeAll(server), [...posted, 'save-state']);
      }
    }
  });

  it('is empty to begin with: hasCommands() returns false, and receiveCommand() throws an EmptyError', () => {
    const { server } = program;
    assert.equal(server.hasCommands(), false);
    assert.throws(() => server.receiveCommand(), EmptyError);
    assert.throws(() => server.receiveCommand(), { name: 'EmptyError', message: 'The command queue is empty' });
  });

  it('has two lanes: own commands never fill that of the four, nor these that of own commands', async (t) => {
    const { server, port } = await startServer(t, { maxQueueSize: 2, commands: { say: {} } });
    for (const line of [SAY, SAVE]) {
      for (const expected of [200, 200, 503]) assert.equal((await ask(port, line)).statusCode, expected, line);
    }
    assert.deepEqual(takeAll(server), ['say', 'say', 'save-state', 'save-state']);
  });

  it('is taken in the order of acceptance, unless a pause or a shutdown waits: then the four go first', async () => {
    const { server, talk } = program;
    for (const [lines, expected] of [
      [[SAY, SAVE, SAY, RESUME], 'say save-state say resume'],
      [[SAY, SAVE, PAUSE, SAY, RESUME, SAY], 'save-state pause say say resume say'],
      [[SAY, PAUSE, RESUME, SHUTDOWN, SAVE], 'pause resume shutdown say save-state'],
      [[SAVE, SAY, SHUTDOWN, SAY, SAVE, PAUSE], 'save-state shutdown save-state pause say say'],
      [[SAY, RESUME, 'save-state', SAY, 'resume'], 'save-state resume say resume say'], // two of the program itself
    ] as const) {
      for (const line of lines) {
        if (line.startsWith('POST')) await talk.ask(line);
        else server.post(line as ControlCommand);
      }
      const taken: string[] = [];
      while (server.hasCommands()) {
        taken.push(server.receiveCommand());
        server.report({ error: 'not now' }); // a shutdown that succeeded would end own commands
      }
      assert.equal(taken.join(' '), expected);
    }
  });

  it('shows what blocks, although 16 later commands are listed', async (t) => {
    const { server, port } = await startServer(t, { maxQueueSize: 20, commands: { say: {} } });
    const talk = new Talk(port);
    await talk.ask(SAY);
    server.receiveCommand();
    for (let count = 0; count < 20; count += 1) await talk.ask(SAY);
    const { commands } = (await talk.ask(INFO)).body;
    const numbers = commands.map(({ id, state }: { id: string; state: string }) => `${id.slice(4)} ${state}`);
    const latest = Array.from({ length: 16 }, (_, index) => `${index + 6} waiting`);
    assert.deepEqual(numbers, ['1 running', '2 waiting', ...latest]);
  });

  it('is told apart by hasWaiting(), which counts only what is to be delivered', async () => {
    const { server, talk } = program;
    program.become(PAUSED);
    for (const line of [SAY, `${RESUME}?mine=true`]) await talk.ask(line);
    assert.deepEqual([server.hasCommands(), server.hasWaiting()], [true, false]);
    await talk.ask(SAVE);
    assert.deepEqual([server.hasWaiting(), server.hasWaiting(['pause', 'shutdown'])], [true, false]);
    server.post('pause');
    assert.equal(server.hasWaiting(['pause', 'shutdown']), true);
  });

  it('is neither seen nor taken while the program is asked for its status or detail', async () => {
    const { server, port, talk } = program;
    const seen: unknown[] = [];
    program.detail = () => {
      const taken = (): unknown => server.receiveCommand();
      if (!server.hasWaiting()) return;
      seen.push(server.hasCommands());
      assert.throws(taken, EmptyError);
    };
    await talk.ask(SAVE);
    const info = ask(port, INFO);
    await until(() => server.hasCommands() && seen.length > 0);
    await info;
    assert.deepEqual([new Set(seen), takeAll(server)], [new Set([false]), ['save-state']]);
  });

  it('loses nothing when a shutdown has succeeded: own commands that wait then fail', async () => {
    const { server, port, talk } = program;
    for (const outcome of [{ error: 'disk full' }, {}]) {
      const said = ask(port, SAY, WAIT);
      await assertWaits(port, said);
      await talk.ask(SHUTDOWN);
      assert.equal(server.receiveCommand(), 'shutdown');
      server.report(outcome);
      const isShutDown = !('error' in outcome);
      assert.deepEqual(takeAll(server), isShutDown ? [] : ['say']);
      assert.equal((await said).summary, isShutDown ? '500 say failed: the program has shut down' : '200 done');
    }
  });
});

// ───── Own commands ──────────────────────────────────────────────────────────────────────────────────────────────

describe('Own commands', LIMIT, () => {
  it('run between two steps of launch(), also while paused; their value or error is the outcome', async (t) => {
    let rate = 0.1;
    const { client } = await launchSystem(t, {
      describe: () => ({ rate }),
      commands: {
        set: {
          parameters: { rate: { type: 'number', minimum: 0, maximum: 1 } },
          run: async (given: { rate: number }, { by }: CommandRequest) => {
            const before = rate;
            ({ rate } = given);
            if (rate === 0) throw new Error('it learns nothing');
            return { before, by };
          },
        },
      },
    });
    const set = async (value: number): Promise<unknown> => {
      const reply = await client.request('set', { arguments: { rate: value }, by: 'ana', wait: 60 });
      return reply.ok ? reply.body['value'] : `${reply.statusCode} ${reply.error}`;
    };
    assert.deepEqual(await set(0.2), { before: 0.1, by: 'ana' });
    await client.request('pause', { wait: 60, by: 'bob' });
    assert.deepEqual(await set(0.3), { before: 0.2, by: 'ana' });
    const wrong = '400 set: rate must be a number from 0 to 1, got 5';
    assert.deepEqual([await set(5), await set(0)], [wrong, '500 set failed: it learns nothing']);
    const { status, by, detail } = await client.getInfo() ?? {};
    assert.deepEqual([status, by, detail], ['paused', 'bob', { rate: 0 }]);
  });

  it('reach a loop with arguments, sender and reason; /api/info has declarations and arguments', async (t) => {
    const episodes = { type: 'integer', minimum: 1, default: 100 } as const;
    const evaluate = { description: 'Runs episodes without learning', parameters: { episodes } };
    const { server, port } = await startServer(t, { commands: { evaluate, 'cool-down': {} } });
    const talk = new Talk(port);
    const line = 'evaluate?by=ana&reason=before+lunch';
    for (const body of ['', '{"episodes":7}']) assert.equal((await talk.post(line, body)).text, '{"result":"ok"}');
    const { accepts, commands } = (await talk.ask(INFO)).body;
    assert.deepEqual(accepts, { evaluate, 'cool-down': {} });
    assert.deepEqual(commands.map((entry: CommandRequest) => entry.arguments), [{ episodes: 100 }, { episodes: 7 }]);
    server.receiveCommand();
    const command: ControlCommand | 'evaluate' | 'cool-down' = server.receiveCommand();
    const { id, ...others } = server.request as CommandRequest;
    assert.deepEqual(others, { command, arguments: { episodes: 7 }, by: 'ana', reason: 'before lunch' }, id);
    const { statusCode, body } = await talk.post('evaluate', '{"episodes":0}');
    const error = 'evaluate: episodes must be an integer from 1, got 0';
    assert.deepEqual([statusCode, body], [400, { error, parameter: 'episodes' }]);
  });
});

// ───── Who holds a pause ────────────────────────────────────────────────────────────────────────────────────────

describe('A pause', LIMIT, () => {
  const program = share();
  const since = '2026-11-23T06:00:00.000Z';

  const send = (line: string): Promise<unknown> => program.perform(line, line.startsWith(PAUSE) ? PAUSED : undefined);
  const release = (by: string, next?: SystemStatus): Promise<unknown> => {
    return program.perform(`${RESUME}?by=${by}&mine=true`, next);
  };
  const holders = async (): Promise<string> => {
    const { status, by, reason, since: pausedAt, holds } = (await program.talk.ask(INFO)).body;
    assert.deepEqual(program.server.holds, holds);
    const { until: _, ...first } = holds[0] ?? {};
    if (status === 'paused') assert.deepEqual({ by, reason, since: pausedAt }, { reason: undefined, ...first });
    return [status, ...holds.map((hold: CommandRequest) => [hold.by, hold.reason].join(' ').trim())].join(', ');
  };

  it('is held by everybody who has paused: each releases a hold, and the last release resumes', async () => {
    const { server } = program;
    assert.deepEqual([await release('ana'), await holders()], [{ released: false }, 'active']);
    for (const query of ['?by=ben&reason=leak', '?by=ana&reason=tariff', '?by=ben', '']) await send(PAUSE + query);
    assert.equal(await holders(), 'paused, ben leak, ana tariff, somebody');
    await send(`${PAUSE}?by=ben&reason=B+leaks`);
    const all = 'paused, ben B leaks, ana tariff, somebody';
    assert.deepEqual([await release('eve'), await holders()], [{ released: false }, all]);
    assert.deepEqual([await release('ben'), await holders()], [{ released: true }, 'paused, ana tariff, somebody']);
    assert.deepEqual([await release(''), await holders()], [{ released: true }, 'paused, ana tariff']);
    assert.equal(server.request?.command, 'pause', 'no partial release is delivered');
    assert.deepEqual([await release('ana', ACTIVE), await holders()], [{ released: true }, 'active']);
    assert.equal(server.request?.command, 'resume');
  });

  it('ends for all at a plain resume, or when the program is active again; a failed one holds nothing', async () => {
    const { server, port, talk } = program;
    for (const by of ['ana', 'ben']) await send(`${PAUSE}?by=${by}`);
    assert.deepEqual([await program.perform(RESUME, ACTIVE), await holders()], ['done', 'active']);
    for (const by of ['ana', 'ben']) await send(`${PAUSE}?by=${by}`);
    program.become(ACTIVE);
    assert.equal(await holders(), 'active');
    program.become(PAUSED);
    assert.equal(await holders(), 'paused, itself');
    await talk.ask(`${PAUSE}?by=eve`);
    server.receiveCommand();
    server.report({ error: 'stuck' });
    assert.equal(await holders(), 'paused, itself');
    const released = ask(port, `${RESUME}?by=itself&mine=true`, WAIT);
    assert.equal(await server.nextCommand(), 'resume');
    server.report({ error: 'too hot' });
    assert.deepEqual([(await released).summary, await holders()], ["500 resume failed: 'too hot'", 'paused, itself']);
    await talk.ask(SHUTDOWN);
    program.become(ACTIVE);
    assert.equal(server.receiveCommand(), 'shutdown');
    program.become(SHUTTING_DOWN);
    program.become(PAUSED);
    assert.equal(await holders(), 'paused, itself shutdown cancelled');
  });

  it('ends by itself after the seconds of `for`: the server sends the resume of its holder', async () => {
    const { server, talk } = program;
    const before = Date.now();
    await send(`${PAUSE}?by=ana&reason=quota&for=1`);
    const [{ until: end }] = server.holds as [{ until: string }];
    assert.ok(Math.abs(Date.parse(end) - before - 1000) < 900, end);
    assert.deepEqual([server.request?.until, (await talk.ask(INFO)).body.commands.at(-1).until], [end, end]);
    await send(`${PAUSE}?by=ben&for=1`);
    await send(`${PAUSE}?by=ben&for=2`);
    await until(async () => (server.hasCommands(), server.holds.length === 1));
    assert.equal(await holders(), 'paused, ben');
    const { command, state, value, by, reason, arguments: values } = (await talk.ask(INFO)).body.commands.at(-1);
    assert.deepEqual([command, state, value, by, reason, values], [
      'resume', 'done', { released: true }, 'ana', 'the hold has ended', { until: end },
    ]);
    const { until: last } = server.holds[0] as { until: string };
    assert.equal(await server.nextCommand(), 'resume');
    assert.ok(Date.now() >= Date.parse(last), last);
    assert.deepEqual([server.request?.by, server.request?.arguments], ['ben', { until: last }]);
    program.become(ACTIVE);
    assert.equal(await holders(), 'active');
  });

  it('has no end once its sender has paused anew without one, or its resume has failed', async () => {
    const { server } = program;
    await send(`${PAUSE}?by=ana&for=1`);
    await send(`${PAUSE}?by=ana`);
    await send(`${PAUSE}?by=ben&for=1`);
    await send(`${PAUSE}?by=eve&for=1`);
    await release('ana');
    await until(async () => (server.hasCommands(), server.holds.length === 1));
    assert.equal(await server.nextCommand(), 'resume');
    server.report({ error: 'too hot' });
    const [{ by, until: end }] = server.holds as [CommandRequest];
    assert.deepEqual([by === 'ben' || by === 'eve', end], [true, undefined]);
    await send(`${PAUSE}?by=${by}&for=1`);
    assert.equal(await server.nextCommand(), 'resume');
    server.hasCommands(); // the program ignores it
    assert.deepEqual(server.holds.map(({ until: left }) => left), [undefined]);
  });

  it('that is not taken by its end never is', async () => {
    const { server, port } = program;
    const paused = ask(port, `${PAUSE}?by=ana&for=1`, WAIT);
    const expiring = ask(port, `${PAUSE}?by=ana&for=60&expires=1`, WAIT);
    await sleep(1300);
    server.hasCommands();
    for (const response of [paused, expiring]) {
      assert.equal((await response).summary, '500 pause failed: expired after 1 s');
    }
    await sleep(600);
    assert.equal(server.hasCommands(), false, 'there is nothing to end');
  });

  it('starts with the holds that the program has saved; one whose end has passed ends at once', async (t) => {
    const last = '2099-01-01T00:00:00.000Z';
    const cause = [
      { by: 'ben', reason: 'B leaks', since }, { reason: 'tariff', since, until: '2099-01-01T02:00+02:00' },
      { by: 'ben', reason: 'leak' }, { by: 'eve', since, until: since },
    ];
    const { server, port } = await startServer(t, { systemStatus: () => PAUSED, cause });
    const holds = [{ by: 'ben', reason: 'leak', since }, { by: 'somebody', reason: 'tariff', since, until: last }];
    await until(() => !server.hasCommands() && server.holds.length === 2);
    assert.deepEqual([(await ask(port, INFO)).body.holds, server.holds], [holds, holds]);
  });
});

describe('The parameters of a POST', LIMIT, () => {
  const program = share();

  it('are by and reason, expires of 1 to 86,400 whole seconds, for of pause, and mine of resume', async () => {
    const { server, talk } = program;
    for (const value of ['0', '-1', '1.5', '86401', '99999999999', '1e3', '0x10', '01', '', '+1', 'x']) {
      const { summary } = await talk.ask(`${PAUSE}?expires=${encodeURIComponent(value)}`);
      assert.equal(summary, `400 expires must be an integer from 1 to 86400, got "${value}"`);
    }
    for (const value of ['yes', '1', '', 'TRUE']) {
      const { summary } = await talk.ask(`${RESUME}?mine=${value}`);
      assert.equal(summary, `400 mine must be true or false, got "${value}"`);
    }
    for (const value of ['0', '-1', '1.5', '2592001', '9999999', '1h', '01', '']) {
      const { summary } = await talk.ask(`${PAUSE}?by=ana&for=${value}`);
      assert.equal(summary, `400 for must be an integer from 1 to 2592000, got "${value}"`);
    }
    for (const [query, fault] of [
      ['for=60', 'for requires by: who holds the pause'], ['for=60&by=%07', 'for requires by: who holds the pause'],
      ['for=60&by=ana&within=60', 'within must be smaller than for'],
    ]) assert.equal((await talk.ask(`${PAUSE}?${query}`)).summary, `400 ${fault}`);
    for (const line of [RESUME, SHUTDOWN, SAY]) {
      const { summary } = await talk.ask(`${line}?for=60&by=ana`);
      assert.match(summary, /^400 unknown parameter for: by, reason, expires/);
    }
    assert.deepEqual(takeAll(server), []);
    for (const line of [`${SAY}?expires=86400`, `${RESUME}?mine=false`, `${PAUSE}?expires=1`]) {
      assert.equal((await talk.ask(line)).statusCode, 200, line);
    }
    const taken = takeAll(server).filter((command) => command !== 'pause'); // which may have expired
    assert.deepEqual(taken.sort(), ['resume', 'say']);
  });
});

// ───── Commands of the program itself ────────────────────────────────────────────────────────────────────────────

describe('A program that commands itself:', LIMIT, () => {
  const program = share();

  it('post() puts up to maxQueueSize commands on the queue, in order, ahead of those of clients', async (t) => {
    const { server, port } = await startServer(t, { maxQueueSize: 2 });
    await ask(port, PAUSE);
    assert.deepEqual([server.post('save-state'), server.post('shutdown'), server.post('pause')], [true, true, false]);
    await ask(port, RESUME);
    assert.equal(server.receiveCommand(), 'save-state');
    assert.equal(server.post('save-state'), true);
    assert.deepEqual(takeAll(server), ['shutdown', 'save-state', 'pause', 'resume']);
  });

  it('post() works without a running server, and wakes nextCommand()', async () => {
    const unused = new WebApiServer({ systemStatus: () => ACTIVE });
    assert.deepEqual([unused.post('shutdown'), unused.signal.aborted], [true, true]);
    assert.deepEqual(takeAll(unused), ['shutdown']);
    const { server } = program;
    const next = server.nextCommand();
    setImmediate(() => server.post('resume'));
    assert.equal(await next, 'resume');
  });

  it('with autoReport false, only report() or the next command completes the one taken last', async (t) => {
    const { server, port } = await startServer(t, { autoReport: false });
    for (const line of [SAVE, PAUSE]) await ask(port, line);
    const states = async (): Promise<string[]> => {
      return (await ask(port, INFO)).body.commands.map(({ state }: { state: string }) => state);
    };
    server.receiveCommand();
    assert.deepEqual([server.hasCommands(), await states()], [true, ['running', 'waiting']]);
    server.receiveCommand();
    server.report({ error: 'hot' });
    assert.deepEqual([server.hasCommands(), await states()], [false, ['done', 'failed']]);
  });

  it('request is the command taken last, with its sender and reason', async (t) => {
    const { server, port } = await startServer(t);
    assert.equal(server.request, null);
    await ask(port, `${PAUSE}?by=ana%40laptop&reason=GPU+needed+until+noon`);
    await ask(port, RESUME);
    server.post('save-state', { reason: 'hourly' });
    const requests = [1, 2, 3].map(() => server.receiveCommand() && server.request);
    const [prefix] = String(requests[0]?.id).split('-');
    assert.deepEqual(requests, [
      { command: 'save-state', id: `${prefix}-i3`, arguments: {}, by: 'itself', reason: 'hourly' },
      { command: 'pause', id: `${prefix}-1`, arguments: {}, by: 'ana@laptop', reason: 'GPU needed until noon' },
      { command: 'resume', id: `${prefix}-2`, arguments: {}, by: undefined, reason: undefined },
    ]);
  });
});

describe('The signal', LIMIT, () => {
  const program = share();

  it('does not abort for a resume, a save or an own command: a step goes on', async () => {
    const { server, talk } = program;
    const { signal } = server;
    for (const line of [RESUME, SAVE, SAY]) await talk.ask(line);
    server.post('save-state');
    await sleep(50);
    assert.equal(signal.aborted, false);
  });

  it('aborts for a pause while the system is active, and its reason names the command', async () => {
    const { server, talk } = program;
    const { signal } = server;
    await talk.ask(PAUSE);
    await until(() => signal.aborted);
    assert.deepEqual([signal.reason.name, signal.reason.message], ['AbortError', 'Interrupted by pause']);
    assert.equal(server.signal.aborted, true, 'from the start, while such a command waits');
    takeAll(server);
    assert.equal(server.signal.aborted, false);
  });

  it('aborts while the system is paused for a shutdown, but for a pause only once it is active', async () => {
    const { server, talk } = program;
    program.become(PAUSED);
    const { signal } = server;
    for (const line of [RESUME, PAUSE]) await talk.ask(line);
    assert.equal(server.receiveCommand(), 'resume');
    assert.equal(signal.aborted, false);
    program.status = () => ACTIVE;
    server.hasCommands();
    assert.equal(signal.aborted, true);
    takeAll(server);
    program.become(PAUSED);
    const { signal: next } = server;
    server.post('pause');
    assert.equal(next.aborted, false);
    server.post('shutdown');
    assert.deepEqual([next.aborted, next.reason.message], [true, 'Interrupted by shutdown']);
  });
});

// ───── Questions ─────────────────────────────────────────────────────────────────────────────────────────────────

describe('A question', LIMIT, () => {
  const program = share();

  const answer = async (client: WebApiClient, id: string, values: object, options = {}): Promise<string> => {
    const reply = await client.request('answer', { id, arguments: values, ...options });
    return reply.ok ? JSON.stringify(reply.body) : `${reply.statusCode} ${reply.error}`;
  };
  const openIn = async (client: WebApiClient): Promise<AskInfo> => {
    const [question] = (await client.getInfo())?.asks ?? [];
    assert.ok(question !== undefined);
    return question;
  };
  const errorOf = (promise: Promise<unknown>): Promise<Error> => promise.then(() => assert.fail(), (error) => error);

  it('is in /api/info until its first answer, which the program gets with who gave it and why', async () => {
    const { server, client, talk } = program;
    const asked = server.ask('Delete\n 3 branches?');
    const { headers: { etag }, body: { asks: [{ id, at, ...others }] } } = await talk.ask(INFO);
    assert.match(id, /^[a-z\d]{3}-q1$/);
    assert.equal(new Date(at).toISOString(), at);
    assert.deepEqual(others, { message: 'Delete 3 branches?', parameters: { approved: { type: 'boolean' } } });
    const who = { by: 'ana@phone', reason: 'looked' };
    assert.equal(await answer(client, id, { approved: true }, who), '{"result":"ok"}');
    assert.equal(await answer(client, id, { approved: false }, { by: 'ben' }), `409 ana@phone has answered ${id}`);
    assert.deepEqual(await asked, { arguments: { approved: true }, ...who });
    const { headers, body: { asks, commands: [{ at: askedAt, seconds, ...entry }] } } = await talk.ask(INFO);
    assert.deepEqual([asks, askedAt, typeof seconds, headers['etag'] === etag], [[], at, 'number', false]);
    const { message } = others;
    assert.deepEqual(entry, { id, command: 'answer', message, arguments: { approved: true }, state: 'done', ...who });
    assert.equal(server.hasCommands(), false);
  });

  it('stays open after a wrong answer, which gets a line that says what is right', async () => {
    const { server, client, talk } = program;
    const file = { type: 'string', enum: ['1.pt', '2.pt'] } as const;
    const asked = server.ask('Which checkpoint?', { parameters: { file, note: { type: 'string', default: '' } } });
    const { id } = await openIn(client);
    for (const [to, values, outcome] of [
      [id, {}, '400 answer: file must be one of 1.pt, 2.pt, got nothing'],
      [id, { file: '1.pt', approved: true }, '400 answer: approved is unknown, not one of [file, note]'],
      [id, [], '400 answer: a JSON object is required'],
      [id, { file: '1.pt', note: 'x'.repeat(2048) }, '413 The arguments exceed 2048 bytes'],
      ['k3f-q9', { file: '1.pt' }, `404 There is no question k3f-q9: open are ${id}`],
      ['', { file: '1.pt' }, `404 There is no question without an id: open are ${id}`],
    ] as const) assert.equal(await answer(client, to, values), outcome);
    assert.equal((await talk.ask(`GET /api/answer?id=${id}`)).summary, `405 ${NO_METHOD}`);
    assert.equal(await answer(client, id, { file: '2.pt' }), '{"result":"ok"}');
    assert.deepEqual((await asked).arguments, { file: '2.pt', note: '' });
  });

  it('expires after its timeout: the promise rejects with a TimeoutError', async () => {
    const { server, client } = program;
    const { name, message } = await errorOf(server.ask('Deploy?', { timeout: 20 }));
    assert.deepEqual([name, message], ['TimeoutError', 'expired: Deploy?']);
    const { id = '', state, error } = (await client.getInfo())?.commands.at(-1) ?? {};
    assert.deepEqual([state, error], ['failed', 'expired']);
    assert.equal(await answer(client, id, { approved: true }), `409 ${id} has expired`);
    const later = server.ask('Later?', { timeout: 60_000 });
    const { at, expiresAt = '' } = await openIn(client);
    assert.equal(Date.parse(expiresAt) - Date.parse(at), 60_000);
    server.withdrawQuestions();
    await errorOf(later);
  });

  it('ends with the work that a pause, a shutdown or a save interrupts, without an answer', async () => {
    const { server, client } = program;
    for (const command of ['pause', 'shutdown', 'save-state'] as const) {
      const { signal } = server;
      const asked = [server.ask('Delete?'), server.ask('Really?')];
      const { id } = await openIn(client);
      server.post(command);
      const errors = await Promise.all(asked.map(errorOf));
      for (const error of errors) assert.equal(String(error), `AbortError: Interrupted by ${command}`);
      assert.equal(signal.reason, command === 'save-state' ? undefined : errors[0]);
      const late = await errorOf(server.ask('And now?')); // the command still waits
      assert.equal(late.message, `Interrupted by ${command}`);
      assert.deepEqual([await answer(client, id, { approved: true })], [`409 ${id} was withdrawn`]);
      assert.deepEqual(takeAll(server), [command]);
    }
    assert.deepEqual((await client.getInfo())?.asks, []);
  });

  it('is one of 16 that are open at most', async () => {
    const { server, client } = program;
    const asked = Array.from({ length: 16 }, (_, index) => server.ask(`${index}?`));
    assert.throws(() => server.ask('16?'), { message: 'Cannot ask: 16 questions are open' });
    const asks = (await client.getInfo())?.asks ?? [];
    assert.deepEqual(asks.map(({ message }) => message), asked.map((_, index) => `${index}?`));
    for (const { id } of [...asks].reverse()) await answer(client, id, { approved: true }, { by: id });
    assert.deepEqual((await Promise.all(asked)).map(({ by }) => by), asks.map(({ id }) => id));
  });

  it('ends by its signal or close(); the promise need not be handled', async () => {
    const { server, client } = program;
    const end = new AbortController();
    const asked = server.ask('Delete?', { signal: end.signal });
    const { id } = await openIn(client);
    end.abort(new Error('enough'));
    assert.equal((await errorOf(asked)).message, 'enough');
    assert.equal(await answer(client, id, { approved: true }), `409 ${id} was withdrawn`);
    assert.equal((await errorOf(server.ask('Again?', { signal: end.signal }))).message, 'enough');
    const others = new AbortController();
    const last = server.ask('Really?', { signal: others.signal });
    await server.close();
    assert.equal((await errorOf(last)).message, 'The server is closed');
    assert.deepEqual(getEventListeners(others.signal, 'abort'), []);
    assert.throws(() => server.ask('Still there?'), { message: 'Cannot ask: the server is not running' });
  });
});

// ───── Sleeping ──────────────────────────────────────────────────────────────────────────────────────────────────

describe('A program that sleeps', LIMIT, () => {
  const program = share();

  it('gets a waiting command or the next one from nextCommand(); several callers get one each, in order', async () => {
    const { server, talk } = program;
    await talk.ask(PAUSE);
    assert.equal(await server.nextCommand(), 'pause');
    const order: string[] = [];
    const calls = Array.from({ length: 3 }, async () => order.push(await server.nextCommand()));
    await nextTurn();
    for (const line of [SAVE, RESUME, PAUSE, SHUTDOWN]) await talk.ask(line);
    await Promise.all(calls);
    assert.deepEqual(order, ['save-state', 'resume', 'pause']); // whichever call is the first to hear of a command
    assert.deepEqual(takeAll(server), ['shutdown']);
  });

  it('cancels nextCommand() by a signal, and loses no command', async () => {
    const { server, talk } = program;
    const controller = new AbortController();
    const reason = new Error('enough');
    const [aborted, other] = [server.nextCommand({ signal: controller.signal }), server.nextCommand()];
    controller.abort(reason);
    await assert.rejects(aborted, reason);
    await talk.ask(PAUSE);
    await talk.ask(RESUME);
    assert.equal(await other, 'pause');
    await assert.rejects(server.nextCommand({ signal: controller.signal }), reason);
    assert.equal(await server.nextCommand(), 'resume');
  });

  it('cancels nextCommand() by a signal that systemStatus() aborts', { timeout: 10_000 }, async () => {
    const { server } = program;
    const controller = new AbortController();
    server.post('pause');
    assert.equal(await server.nextCommand({ signal: controller.signal }), 'pause');
    program.status = () => {
      controller.abort(new Error('spent'));
      return ACTIVE;
    };
    await assert.rejects(server.nextCommand({ signal: controller.signal }), new Error('spent'));
  });

  it('gets a command or null at the timeout from nextCommandSync()', async () => {
    const { server, talk } = program;
    assert.deepEqual([server.nextCommandSync({ timeout: 0 }), server.nextCommandSync({ timeout: 20 })], [null, null]);
    await talk.ask(PAUSE);
    assert.equal(server.nextCommandSync(), 'pause');
  });

  it('gets an EmptyError if nothing can put commands on the queue: closed, or never started', async () => {
    const { server, talk } = program;
    await talk.ask(PAUSE);
    await server.close();
    assert.equal(await server.nextCommand(), 'pause');
    await assert.rejects(server.nextCommand(), { name: 'EmptyError', message: 'The server is closed' });
    assert.throws(() => server.nextCommandSync(), EmptyError);
    const unused = new WebApiServer({ systemStatus: () => ACTIVE });
    await assert.rejects(unused.nextCommand(), { name: 'EmptyError', message: 'The server was not started' });
  });
});

// ───── Starting and closing ──────────────────────────────────────────────────────────────────────────────────────

describe('A server', LIMIT, () => {
  it('resolves runInBackground() with its address, and serves localhost at 127.0.0.1 and ::1, once', async (t) => {
    const { server, address, port } = await startServer(t);
    assert.deepEqual(address, { host: 'localhost', port });
    for (const host of ['127.0.0.1', ...(lacks('IPv6') === false ? ['::1'] : [])]) {
      assert.equal(await new WebApiClient(host, port).getStatus(), ACTIVE, host);
    }
    await assert.rejects(server.runInBackground(), { message: 'Cannot start the server: it is already running' });
    await server.close();
    await assert.rejects(server.runInBackground(), { message: 'Cannot start the server: it was closed' });
  });

  it('rejects with the reason if it cannot listen, and can be started again', async (t) => {
    const { server: other, port } = await startServer(t, { host: '127.0.0.1', name: 'pole' });
    const { code, message = '' } = await refusalOf({ host: '192.0.2.1', port }) ?? {}; // nobody's (RFC 5737 §3)
    assert.ok(code !== undefined && message.startsWith(`Cannot serve at 192.0.2.1:${port}: `), message);
    const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port });
    t.after(() => server.close());
    await assert.rejects(server.runInBackground(), {
      code: 'EADDRINUSE',
      message: `Cannot serve at 127.0.0.1:${port}: it is in use by pole (process ${process.pid})`,
    });
    assert.throws(() => server.ask('Alone?'), { message: 'Cannot ask: the server is not running' });
    await other.close();
    assert.deepEqual(await server.runInBackground(), { host: '127.0.0.1', port });
    const respond = (body: object) => (): Promise<{ port: number }> => startForeign(t, (socket) => {
      const json = JSON.stringify({ status: 'active', ...body });
      socket.end(`HTTP/1.1 200 OK\r\nContent-Length: ${json.length}\r\n\r\n${json}`);
    });
    for (const [startOther, who] of [
      [() => startServer(t, { host: '127.0.0.1', token: TOKEN }), null],
      [() => startForeign(t, (socket) => void socket.destroy()), null],
      [respond({ name: 5, pid: 7 }), null],
      [respond({ name: 'a\x1b[2J\n', pid: 7 }), 'a[2J (process 7)'],
    ] as const) {
      const { port: taken } = await startOther();
      const where = `127.0.0.1:${taken}`;
      const reason = who === null ? `listen EADDRINUSE: address already in use ${where}` : `it is in use by ${who}`;
      const refusal = await refusalOf({ host: '127.0.0.1', port: taken });
      assert.deepEqual([refusal?.code, refusal?.message], ['EADDRINUSE', `Cannot serve at ${where}: ${reason}`]);
    }
  });

  it('warns if other machines can connect', async (t) => {
    const warnings = collectWarnings(t);
    const { address, port } = await startServer(t, { host: '0.0.0.0' });
    assert.equal(address.host, 'localhost', 'for clients');
    assert.deepEqual(warnings, [`Other machines can control 0.0.0.0:${port} without a token`]);
  });

  it('frees its port on close(), and keeps the accepted commands; further calls are no-ops', async (t) => {
    const { server, port, client } = await startServer(t, { host: '127.0.0.1' });
    await ask(port, PAUSE);
    await ask(port, RESUME);
    await Promise.all([server.close(), server.close()]);
    assert.equal(await client.getStatus(), OFFLINE);
    assert.deepEqual(takeAll(server), ['pause', 'resume']);
    await startServer(t, { host: '127.0.0.1', port, systemStatus: () => PAUSED });
    assert.equal(await client.getStatus(), PAUSED);
  });

  it('completes a request in progress on close(), without waiting for idle or slow clients', async (t) => {
    const { server, port } = await startServer(t, { host: '127.0.0.1' });
    const [pending, idle, slow] = [connectTo(port), connectTo(port), connectTo(port)];
    idle.write(head(STATUS, HOST));
    for (const socket of [pending, slow]) socket.write(head(PAUSE, HOST, 'Expect: 100-continue', 'Content-Length: 2'));
    await Promise.all([pending, idle, slow].map((socket) => once(socket, 'data'))); // 100 Continue, 200
    const [text, ended] = [readToEnd(pending), once(idle, 'close')];
    const closed = server.close();
    await ended;
    assert.equal(slow.closed, false, 'it gets a moment');
    pending.write('{}');
    const [response] = parse(await text);
    assert.deepEqual([response?.text, response?.headers['connection']], ['{"result":"ok"}', 'close']);
    await closed;
    assert.deepEqual(takeAll(server), ['pause']);
  });
});

// ───── Access ────────────────────────────────────────────────────────────────────────────────────────────────────

describe('A request', LIMIT, () => {
  const program = share();

  const ACCEPTED: [name: string, request: string, outcome?: string][] = [
    ['a query, which names no endpoint', head(`${PAUSE}?by=/api/resume`, HOST)],
    ['an absolute-form target, which replaces Host', head('POST http://localhost:1/api/pause?by', 'Host: evil')],
    ['HTTP/1.0 without Host', head(`${PAUSE} HTTP/1.0`)],
    ['a body without content', `${head(PAUSE, HOST, 'Content-Length: 2')}{}`],
    ['an IP address as Host: it cannot be rebound', head(PAUSE, 'Host: 192.168.1.7')],
    ['an address that somebody typed into a browser', head(STATUS, HOST, 'Sec-Fetch-Site: none'), 'active'],
    ['an Upgrade to HTTP/2, which is ignored', head(PAUSE, HOST, ...UPGRADE)],
    ['an unknown Expect, which is ignored', head(PAUSE, HOST, 'Expect: x')],
    ['fields that JavaScript objects have anyway', head(PAUSE, HOST, '__proto__: 1', 'constructor: 1')],
  ];
  it('is accepted with', async () => {
    for (const [name, request, outcome = 'ok'] of ACCEPTED) {
      assert.deepEqual((await exchange(program.port, request)).map(({ summary }) => summary), [`200 ${outcome}`], name);
      assert.deepEqual(takeAll(program.server), outcome === 'ok' ? ['pause'] : [], name);
    }
  });

  const NOT_HOST = 'Host not allowed: use localhost, an IP address, or a name that the program allows';
  const NOT_PAGES = 'Requests from web pages are not allowed: use control-board';
  const TWICE = 'Duplicate header field';
  const NOWHERE = `Invalid API endpoint: the commands are ${COMMANDS.join(', ')}, say`;
  const NO_BODY = 'pause takes no body: send by and reason in the query, ?by=ana&reason=lunch';
  // The error is null if it is the reason phrase of the status code.
  const REFUSED: [statusCode: number, error: string | null, name: string, request: string, where?: 'guarded'][] = [
    [400, null, 'a malformed request', 'GARBAGE\r\n\r\n'],
    [400, NO_BODY, 'a body with content', `${head(PAUSE, HOST, 'Content-Length: 12')}{"by":"ana"}`],
    [400, 'unknown parameter a: by, reason, expires, within, for', 'an unknown parameter', head(`${PAUSE}?a=1`, HOST)],
    [400, 'by is given twice: by, reason, expires, within, for', 'a repeated parameter', head(`${PAUSE}?by=a&by=b`, HOST)],
    [400, 'Missing Host header', 'HTTP/1.1 without Host', head(PAUSE)],
    [400, TWICE, 'two Hosts', head(PAUSE, HOST, HOST, 'Authorization: x')],
    [401, NO_TOKEN, 'no token', head(PAUSE, HOST), 'guarded'],
    [401, WRONG_TOKEN, 'a wrong token', head(PAUSE, HOST, `${BEARER}x`), 'guarded'],
    [401, NO_TOKEN, 'the token in the query', head(`${PAUSE}?token=${TOKEN}`, HOST), 'guarded'],
    [401, NO_TOKEN, 'another path, without the token', head('GET /', HOST), 'guarded'],
    [403, NOT_HOST, 'another name as Host', head(STATUS, 'Host: evil.example:8391')],
    [403, NOT_HOST, 'an address that browsers take for this machine', head(PAUSE, 'Host: 0.0.0.0')],
    [403, NOT_PAGES, 'an Origin', head(STATUS, HOST, `Origin: ${PAGE}`)],
    [403, NOT_PAGES, 'Sec-Fetch-Site: cross-site', head(STATUS, HOST, 'Sec-Fetch-Site: cross-site')],
    [403, NOT_PAGES, 'a form that a page submits', head(PAUSE, HOST, 'Sec-Fetch-Site: none')],
    [403, NOT_PAGES, 'an own command from a page', head(SAY, HOST, `Origin: ${PAGE}`)],
    [404, NOWHERE, 'another path', head('GET /x', HOST)],
    [405, NO_METHOD, 'another method', head('PUT /api/pause', HOST)],
    [413, NO_BODY, 'a body above 4,096 bytes', head(PAUSE, HOST, 'Content-Length: 4097') + ' '.repeat(4097)],
    [413, null, 'a Content-Length above 65,536', head(PAUSE, HOST, 'Content-Length: 65537')],
    [431, null, 'a head of more than 8 KiB', head(PAUSE, HOST, `X: ${'x'.repeat(8192)}`)],
    [501, null, 'CONNECT', head('CONNECT localhost:80', HOST)],
  ];
  it('is refused, and queues nothing, for', async (t) => {
    const guarded = await startServer(t, { token: TOKEN });
    for (const [statusCode, error, name, request, where] of REFUSED) {
      const { server, port } = where === 'guarded' ? guarded : program;
      const responses = await exchange(port, request);
      const summary = `${statusCode} ${error ?? STATUS_CODES[statusCode]}`;
      assert.deepEqual(responses.map((response) => response.summary), [summary], name);
      assert.equal(responses[0]?.headers['www-authenticate'], statusCode === 401 ? 'Bearer' : undefined);
      assert.equal(server.hasCommands(), false, name);
    }
  });

  it('is refused before its body, which is ignored; the connection takes the next one after it', async (t) => {
    const { server, port } = await startServer(t, { token: TOKEN });
    for (const field of ['X-No: token', `Origin: ${PAGE}`]) {
      for (const [length, body] of [['Content-Length: 5', '12345'], ['Transfer-Encoding: chunked', '0\r\n\r\n']]) {
        const socket = connectTo(port);
        socket.write(head(PAUSE, HOST, field, length as string));
        const [refusal] = await once(socket, 'data') as [Buffer];
        assert.match(String(refusal), /^HTTP\/1\.1 40[13] /);
        socket.end(body + head(PAUSE, HOST, BEARER));
        assert.deepEqual(parse(await readToEnd(socket)).map(({ summary }) => summary), ['200 ok']);
      }
    }
    assert.deepEqual(takeAll(server).length, 4);
  });

  it('is dropped, and ends the connection, if it comes before the response to another one', async () => {
    const { server, port } = program;
    const [first, ...others] = await exchange(port, head(PAUSE, HOST, WAIT) + head(SAVE, HOST));
    assert.deepEqual([first?.summary, first?.headers['connection'], others], ['202 waiting', 'close', []]);
    assert.deepEqual(takeAll(server), ['pause']);
  });
});

describe('The option', LIMIT, () => {
  it('token is required from every client, and appears in no response, error or output of inspect()', async (t) => {
    const { server, port, client } = await startServer(t, { token: TOKEN });
    assert.equal(await client.pause(), 'ok');
    assert.equal((await ask(port, PAUSE, `authorization: bearer ${TOKEN} `)).statusCode, 200);
    assert.deepEqual(takeAll(server), ['pause', 'pause']);
    const stranger = new WebApiClient('127.0.0.1', port, { token: `${TOKEN}x` });
    const reply = await stranger.request('pause');
    const refused = { ok: false, error: WRONG_TOKEN, body: { error: WRONG_TOKEN }, statusCode: 401, code: undefined };
    const expected = { ...refused, phase: 'answered' };
    assert.deepEqual(reply, expected);
    assert.ok(!inspect([server, client, stranger, reply], { depth: 9, showHidden: true }).includes(TOKEN));
    assert.ok(!JSON.stringify([server, client]).includes(TOKEN));
  });

  it('socketPath is a Unix socket that only its user can open, and close() removes it', UNIX, async (t) => {
    const socketPath = makeSocketPath(t);
    const { server, address, client } = await startServer(t, { socketPath, token: TOKEN });
    assert.deepEqual(address, { host: 'localhost', port: 0, socketPath });
    assert.equal(lstatSync(socketPath).mode & 0o777, 0o600);
    assert.equal(client.baseUrl, `unix:${socketPath}`);
    assert.deepEqual([await client.pause(), await client.getStatus()], ['ok', ACTIVE]);
    assert.equal((await ask(socketPath, PAUSE, BEARER, 'Host: any.name')).summary, '200 ok');
    assert.equal((await ask(socketPath, PAUSE, BEARER, 'Origin: null')).statusCode, 403);
    assert.deepEqual(takeAll(server), ['pause', 'pause']);
    await server.close();
    assert.deepEqual([await client.getStatus(), readdirSync(dirname(socketPath))], [OFFLINE, []]);
  });

  it('socketPath replaces the socket of a dead server, but neither a live one nor another file', UNIX, async (t) => {
    const socketPath = makeSocketPath(t);
    await leaveSocket(socketPath);
    const { client } = await startServer(t, { socketPath });
    assert.equal((await refusalOf({ socketPath }))?.code, 'EADDRINUSE');
    assert.equal(await client.getStatus(), ACTIVE);
    const file = join(makeFolder(t), 'file');
    writeFileSync(file, 'mine');
    assert.equal((await refusalOf({ socketPath: file }))?.code, 'EEXIST');
    assert.equal(readFileSync(file, 'utf8'), 'mine');
  });

  it('socketPath may be a folder, in which the socket is named after the program and its process', UNIX, async (t) => {
    const folder = join(makeFolder(t), 'sockets');
    const options = { socketPath: `${folder}/`, name: 'pole 1' };
    const name = `pole_1-${process.pid}.sock`;
    const { server, address } = await startServer(t, options);
    assert.deepEqual(address, { host: 'localhost', port: 0, socketPath: join(folder, name) });
    assert.deepEqual([folder, join(folder, name)].map((path) => lstatSync(path).mode & 0o777), [0o700, 0o600]);
    await server.close();
    assert.deepEqual(readdirSync(folder), []);
  });

  it('log has a command and an answer before the response, then what becomes of them, from start to end', async (t) => {
    const log = join(makeFolder(t), 'log.jsonl');
    let status = ACTIVE;
    const { server, port, client } = await startServer(t, { name: 'train', systemStatus: () => status, log });
    const read = () => readFileSync(log, 'utf8').trim().split('\n').map((line) => JSON.parse(line));
    await ask(port, 'POST /api/pause?by=ana@laptop&reason=GPU+needed');
    const { time, ...command } = read().at(-1);
    assert.equal(new Date(time).toISOString(), time);
    const { id } = command;
    const sender = { by: 'ana@laptop', reason: 'GPU needed' };
    assert.deepEqual(command, { name: 'train', pid: process.pid, event: 'command', id, command: 'pause', ...sender });
    server.receiveCommand();
    status = PAUSED;
    server.report({ value: 7 });
    const asked = server.ask('Delete?', { timeout: 60_000 });
    const { asks: [question] = [], log: where } = await client.getInfo() ?? {};
    assert.deepEqual(where, { path: log });
    await client.request('answer', { id: question?.id, arguments: { approved: false }, by: 'ana', reason: 'no' });
    const [asking, answer] = read().slice(-2).map(({ time, name, pid, ...fields }) => fields);
    assert.deepEqual((await asked).arguments, { approved: false });
    const entry = (await client.getInfo())?.commands.at(-1);
    assert.deepEqual([asking, answer], [{ event: 'ask', ...question }, { event: 'answer', ...entry }]);
    await server.close();
    const lines = read();
    const events = ['start', 'status', 'command', 'status', 'outcome', 'ask', 'answer', 'end'];
    assert.deepEqual(lines.map(({ event }) => event), events);
    assert.equal(lines[0].version, VERSION);
    assert.deepEqual([lines[4].id, lines[4].state, lines[4].value], [id, 'done', 7]);
    assert.deepEqual([lines[3].status, lines[3].by, lines[3].holds.length], ['paused', 'ana@laptop', 1]);
  });
});

describe('A server thread that dies', LIMIT, () => {
  // In a turn of its own: on Node 20, a thread that ends within the HTTP parser may abort the process.
  const DEATHS: [statement: string, cause: RegExp][] = [
    ['setImmediate(() => process.exit(3))', /: its thread exited$/],
    ["setImmediate(() => { throw new Error('poison'); })", /: poison$/],
    ['setImmediate(() => { for (const all = [];;) all.push(Array(1e6).fill(0)); })', /memory/],
  ];
  it('is replaced at the same address with the same queue, and a warning gives the cause', async (t) => {
    const warnings = collectWarnings(t);
    const debug = new Session(); // a debugger can run statements in the threads of its process
    t.after(() => debug.disconnect());
    debug.connect();
    let sessionId = '';
    debug.on('NodeWorker.attachedToWorker', ({ params }) => ({ sessionId } = params));
    debug.post('NodeWorker.enable', { waitForDebuggerOnStart: false });
    const { server, port, client } = await startServer(t, { describe: () => 7 });
    for (const [expression, cause] of DEATHS) {
      assert.equal((await ask(port, INFO)).body.detail, 7);
      await ask(port, PAUSE);
      const message = JSON.stringify({ id: 1, method: 'Runtime.evaluate', params: { expression } });
      debug.post('NodeWorker.sendMessageToWorker', { sessionId, message });
      await until(() => warnings.length > 0);
      const warning = String(warnings.pop());
      const start = `The web API at localhost:${port} stopped and will be restarted: `;
      assert.ok(warning.startsWith(start) && cause.test(warning), warning);
      await reaches(client, ACTIVE);
      const saved = ask(port, SAVE, WAIT);
      assert.equal(await server.nextCommand(), 'pause');
      assert.equal(await server.nextCommand(), 'save-state');
      server.hasCommands();
      assert.equal((await saved).summary, '200 done');
    }
  });
});

// ───── launch ────────────────────────────────────────────────────────────────────────────────────────────────────

describe('launch()', LIMIT, () => {
  it('calls each hook in its status with its command, and sends what it returns to a client that waits', async (t) => {
    const log: string[] = [];
    const hook = (name: string, value?: unknown) => async (...args: unknown[]): Promise<unknown> => {
      const status = args.find((argument) => argument instanceof SystemStatus);
      const { command, by } = args[status === undefined ? 0 : 1] as CommandRequest; // saveState() also gets a control
      log.push(`${name}(${status ?? ''}) while ${await launched.client.getStatus()}, for ${command} by ${by}`);
      return value;
    };
    const calls = (command: ControlCommand, ...names: string[]): string[] => {
      return names.map((name) => `${name}, for ${command} by ana`);
    };
    const launched = await launchSystem(t, {
      onPaused: hook('onPaused', 'cooled'), onResumed: hook('onResumed', 7), saveState: hook('saveState', '1.json'),
      onShutdown: hook('onShutdown'),
    });
    const { address: { port }, client, finished } = launched;
    const value = async (line: string): Promise<unknown> => (await ask(port, `${line}?by=ana`, WAIT)).body.value;
    const [paused, resumed] = ['onPaused() while pausing', 'onResumed() while resuming'];
    assert.deepEqual([await value(SAVE), await client.getStatus()], ['1.json', ACTIVE]);
    assert.deepEqual(log.splice(0), calls('save-state', paused, 'saveState(active) while paused', resumed));
    assert.deepEqual([await value(PAUSE), await value(PAUSE)], ['cooled', undefined], 'the second one is a no-op');
    assert.deepEqual([await value(SAVE), await client.getStatus()], ['1.json', PAUSED]);
    assert.deepEqual([await value(RESUME), await value(RESUME)], [7, undefined]);
    assert.deepEqual(log.splice(0), [
      ...calls('pause', paused), ...calls('save-state', 'saveState(paused) while paused'), ...calls('resume', resumed),
    ]);
    assert.equal(await value(SHUTDOWN), '1.json');
    await finished;
    const ending = ['saveState(active) while shutting down', 'onShutdown() while shutting down'];
    assert.deepEqual(log, calls('shutdown', ...ending));
  });

  it('runs steps while active and only then, one thing at a time, and drops what follows a shutdown', async (t) => {
    let [steps, saves, running, most] = [0, 0, 0, 0];
    const alone = async (): Promise<void> => {
      running += 1;
      await sleep(2);
      most = Math.max(most, running);
      running -= 1;
    };
    const hooks = { onPaused: alone, onResumed: alone, saveState: () => alone().then(() => void (saves += 1)) };
    const step = (): unknown => alone().then(() => void (steps += 1));
    const { address: { port }, finished } = await launchSystem(t, { step, ...hooks });
    await ask(port, PAUSE, WAIT);
    const before = steps;
    await sleep(50);
    assert.equal(steps, before);
    for (const line of [SAVE, RESUME, SAVE, PAUSE, RESUME]) await ask(port, line);
    await until(() => steps > before + 2);
    for (const line of [SHUTDOWN, SAVE, PAUSE]) await ask(port, line).catch(() => {}); // it may have ended
    await finished;
    assert.deepEqual([most, saves], [1, 3]);
  });

  it('continues if a hook fails, reports that to the client and as a warning, and keeps the status', async (t) => {
    const warnings = collectWarnings(t);
    let failing = '';
    const hooks = ['onPaused', 'onResumed', 'saveState', 'onShutdown'].map((name) => {
      return [name, () => (failing === name ? assert.fail('no power') : undefined)];
    });
    const { address: { port }, client, finished } = await launchSystem(t, Object.fromEntries(hooks));
    for (const [name, line, outcome, status] of [
      ['onPaused', PAUSE, '500 pause failed: onPaused failed: no power', ACTIVE],
      ['onPaused', SAVE, '500 save-state failed: onPaused failed: no power', ACTIVE],
      ['saveState', SAVE, '500 save-state failed: no power', ACTIVE],
      ['none', PAUSE, '200 done', PAUSED],
      ['onResumed', RESUME, '500 resume failed: onResumed failed: no power', PAUSED],
      ['saveState', SAVE, '500 save-state failed: no power', PAUSED],
      ['onShutdown', SHUTDOWN, '500 shutdown failed: onShutdown failed: no power', OFFLINE],
    ] as const) {
      failing = name;
      assert.equal((await ask(port, line, WAIT)).summary, outcome, name);
      await reaches(client, status);
      assert.deepEqual(warnings.splice(0), outcome === '200 done' ? [] : [`${name} failed: no power`]);
    }
    await finished;
  });

  it('ends at a command only after a successful save, however often it is sent; otherwise it pauses', async (t) => {
    collectWarnings(t);
    let isFull = true;
    const log: string[] = [];
    const hook = (name: string) => (): void => void log.push(name);
    const { address: { port }, client, finished } = await launchSystem(t, {
      onPaused: hook('onPaused'), onShutdown: hook('onShutdown'),
      saveState: (status) => (log.push(`save while ${status}`), isFull ? assert.fail('disk full') : 'saved'),
    });
    const outcomes = await Promise.all([1, 2, 3].map(() => ask(port, SHUTDOWN, WAIT)));
    assert.deepEqual(outcomes.map(({ summary }) => summary), Array(3).fill('500 shutdown failed: disk full'));
    const [active, paused] = ['save while active', 'save while paused'];
    assert.deepEqual([await client.getStatus(), log.splice(0)], [PAUSED, [active, 'onPaused', paused, paused]]);
    isFull = false;
    assert.equal((await ask(port, RESUME, WAIT)).summary, '200 done');
    assert.equal((await ask(port, SHUTDOWN, WAIT)).body.value, 'saved');
    await finished;
    assert.deepEqual(log, [active, 'onShutdown']);
  });

  it('rejects before a step if listening or onListening fails; handles signals only while it runs', async (t) => {
    const names = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR2'];
    const countHandlers = (): number[] => names.map((name) => process.listenerCount(name));
    const before = countHandlers();
    const { port } = await startServer(t, { host: '127.0.0.1' });
    const step = (): void => assert.fail('a step ran');
    await assert.rejects(launch({ step }, { webApiAddress: ['127.0.0.1', port] }), { code: 'EADDRINUSE' });
    const error = new Error('no log');
    const onListening = (): void => assert.fail(error);
    await assert.rejects(launch({ step, onListening }, { webApiAddress: ['127.0.0.1', 0] }), error);
    let during: number[] = [];
    await launch({ step: (control) => void (during = countHandlers(), control.shutdown()) }, { webApiAddress: null });
    assert.deepEqual([during, countHandlers()], [before.map((count) => count + 1), before]);
  });

  it('starts paused with the holds that saveState() has read; active without any', async (t) => {
    const since = '2026-11-23T06:00:00.000Z';
    const startPaused = [{ by: 'ana', reason: 'lunch', since }, { by: 'ben', since }];
    const saved: unknown[] = [];
    const { client } = await launchSystem(t, {
      saveState: (status, _request, control) => void saved.push(status, control.holds),
      onPaused: ({ by, reason }) => void saved.push(by, reason),
    }, { startPaused });
    await reaches(client, PAUSED);
    await client.request('save-state', { wait: 60 });
    const info = await client.getInfo();
    assert.deepEqual([info?.holds, info?.since, saved], [startPaused, since, ['ana', 'lunch', PAUSED, startPaused]]);
    const log: string[] = [];
    const hooks = { step: () => (log.push('step'), sleep(1)), onPaused: () => void log.push('onPaused') };
    const { client: other } = await launchSystem(t, hooks, { startPaused: true });
    await reaches(other, PAUSED);
    const { by, reason } = await other.getInfo() ?? {};
    assert.deepEqual([by, reason, log], ['itself', 'started paused', ['onPaused']]);
    await other.resume();
    await until(() => log.includes('step'));
    await launch({ step: (control) => void control.shutdown() }, { webApiAddress: null, startPaused: [] });
  });

  it('gives each step a control, which sees waiting commands; its own take effect after the step', async (t) => {
    const log: unknown[] = [];
    let port = 0;
    const { client, address } = await launchSystem(t, {
      step: async (control) => {
        if (port === 0 || log.length > 0) return sleep(1);
        const { signal } = control;
        log.push(signal.aborted, control.hasCommands());
        await ask(port, `${PAUSE}?by=ana`);
        await until(() => signal.aborted);
        log.push(control.hasCommands(), control.save('checkpoint'), control.pause('enough'));
      },
      saveState: () => void log.push('saveState'), onPaused: () => void log.push('onPaused'),
    });
    port = address.port;
    await until(async () => (await client.getInfo())?.commands.filter(({ state }) => state === 'done').length === 3);
    assert.deepEqual(log, [false, false, true, true, true, 'onPaused', 'saveState', 'onPaused']);
    assert.deepEqual((await client.getInfo())?.commands.map(({ command, by, reason }) => [command, by, reason]), [
      ['pause', 'ana', undefined], ['save-state', 'itself', 'checkpoint'], ['pause', 'itself', 'enough'],
    ]);
  });

  it('needs no thread if webApiAddress is null; the program then controls itself', async (t) => {
    const threads = collectThreads(t);
    const log: string[] = [];
    const step = (control: Control): void => {
      log.push('step');
      if (log.length === 1) control.save();
      else control.shutdown();
    };
    await launch({ step, saveState: () => void log.push('saveState') }, { webApiAddress: null });
    assert.deepEqual([threads, log], [[], ['step', 'saveState', 'step', 'saveState']]);
  });
});

// ───── Time, processes and clients ───────────────────────────────────────────────────────────────────────────────

/** They mostly wait, for each other's processes or for seconds. */
describe('At the same time:', { timeout: 2 * LIMIT.timeout, concurrency: 3 }, () => {
  describe('A command with expires', { ...LIMIT, concurrency: 2 }, () => {
    it('is never delivered once it has expired, which is not decided before the program looks', async (t) => {
      const { server, port } = await startServer(t, { maxQueueSize: 2, commands: { say: {} } });
      for (const line of [SAY, SAVE]) await ask(port, line);
      const waiting = [PAUSE, SAY].map((line) => ask(port, `${line}?expires=1`, WAIT));
      await until(async () => (await ask(port, INFO)).body.commands.length === 4);
      await sleep(1200);
      assert.equal((await ask(port, SAVE)).statusCode, 503);
      assert.deepEqual(takeAll(server), ['say', 'save-state'], 'an expired pause puts no command first');
      const [paused, said] = await Promise.all(waiting);
      assert.deepEqual([paused?.summary, said?.summary], [
        '500 pause failed: expired after 1 s', '500 say failed: expired after 1 s',
      ]);
      const { commands } = (await ask(port, INFO)).body;
      const { state, error, seconds } = commands.find(({ command }: CommandRequest) => command === 'pause');
      assert.deepEqual([state, error, seconds >= 1], ['failed', 'expired after 1 s', true]);
      await ask(port, `${SHUTDOWN}?expires=2`);
      assert.equal(server.hasCommands(), true);
      await sleep(2200);
      assert.equal(server.receiveCommand(), 'shutdown', 'what a look has announced does not expire before the take');
    });

    it('does not expire once it has aborted the signal: the step has ended for it', async (t) => {
      const { server, port } = await startServer(t);
      const { signal } = server;
      await ask(port, `${PAUSE}?expires=1`);
      await until(() => signal.aborted);
      await sleep(1200);
      assert.deepEqual(takeAll(server), ['pause']);
    });
  });

  describe('A program that sleeps or never yields', { ...LIMIT, concurrency: 4 }, () => {
    it('stays alive in nextCommand(); a server, its signal and a client keep no process alive', async (t) => {
      const { port } = await startServer(t, { host: '127.0.0.1' });
      const host = runHost(t, `
        const server = await serve();
        server.signal.addEventListener('abort', () => {});
        const failed = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: ${port} });
        await failed.runInBackground().catch(({ code }) => say(code));
        say(await new WebApiClient('127.0.0.1', ${port}).pause());
        say(await server.nextCommand());
        setTimeout(() => {}, 1000); // the response may be on its way: only a shutdown waits for it
      `);
      const own = await host.hear<number>();
      assert.deepEqual([await host.hear(), await host.hear()], ['EADDRINUSE', 'ok']);
      await sleep(300);
      assert.equal(host.process.exitCode, null);
      await ask(own, PAUSE);
      await host.ends('pause');
    });

    it('may block its thread in nextCommandSync(): status, detail and outcomes are still sent', async (t) => {
      const host = runHost(t, `
        let status = ACTIVE;
        const server = await serve({ systemStatus: () => status, describe: () => 'asleep' });
        for (;;) {
          const command = server.nextCommandSync();
          status = command === 'pause' ? PAUSED : ACTIVE;
          say(command);
        }
      `);
      const port = await host.hear<number>();
      for (const [line, status] of [[PAUSE, 'paused'], [RESUME, 'active']] as const) {
        assert.equal((await ask(port, line, WAIT)).body.state, 'done');
        const { body } = await ask(port, INFO);
        assert.deepEqual([body.status, body.detail], [status, 'asleep']);
        assert.equal(`POST /api/${await host.hear()}`, line);
      }
    });

    it('gets every command in order, shows its effect, reports outcomes, and can close the server', async (t) => {
      const port = await freePort();
      const host = runHost(t, `
        let status = ACTIVE;
        const server = new WebApiServer({ systemStatus: () => status, host: '127.0.0.1', port: ${port} });
        server.runInBackground(); // it never even learns that its server has started
        const next = { 'pause': PAUSED, 'resume': ACTIVE, 'shutdown': SHUTTING_DOWN };
        while (status !== SHUTTING_DOWN) {
          while (server.hasCommands()) {
            const command = server.receiveCommand();
            say(command);
            status = next[command] ?? status;
          }
          block(1);
        }
        await server.close();
        say('closed');
      `);
      const client = new WebApiClient('127.0.0.1', port);
      await reaches(client, ACTIVE);
      const commands = ['pause', 'save-state', 'resume', 'pause', 'save-state', 'resume', 'resume', 'pause'] as const;
      for (const command of commands) assert.equal((await client.request(command)).ok, true);
      await reaches(client, PAUSED);
      const changed = ask(port, STATUS, 'If-None-Match: "paused"', WAIT);
      await assertWaits(port, changed);
      assert.equal((await ask(port, RESUME, WAIT)).body.state, 'done');
      assert.equal((await changed).body.status, 'active');
      assert.equal((await ask(port, SHUTDOWN, WAIT)).statusCode, 200);
      await host.ends(...commands, 'resume', 'shutdown', 'closed');
    });

    it('is reported at once with its last status and its age, even while it does not poll', async (t) => {
      const port = await freePort();
      const host = runHost(t, `
        const options = { systemStatus: () => PAUSED, describe: () => 7, host: '127.0.0.1', port: ${port} };
        const server = new WebApiServer(options);
        server.runInBackground();
        halt();
        for (;; block(1)) server.hasCommands();
      `);
      await reaches(new WebApiClient('127.0.0.1', port), PAUSED);
      const getAge = async (): Promise<number> => {
        const { headers, summary } = await ask(port, STATUS);
        assert.equal(summary, '200 paused');
        return Number(headers['age'] ?? 0);
      };
      await until(async () => (await getAge()) >= 1);
      if (lacks('Unix') === false) {
        const before = await getAge();
        host.process.kill('SIGSTOP');
        await sleep(2000);
        host.process.kill('SIGCONT');
        assert.ok(await getAge() >= before + 2, 'a stop of the process counts');
      }
      const { heardAt } = (await ask(port, INFO)).body;
      assert.ok(Date.now() - Date.parse(heardAt) > 900, heardAt);
      for (let round = 0; round < 4; round += 1) { // nobody waits again for the same detail
        await sleep(110); // so that it is due again
        const info = ask(port, INFO);
        await serveOthers(port);
        assert.notEqual(await Promise.race([info, nextTurn('waits')]), 'waits');
      }
      host.release();
      await until(async () => (await getAge()) === 0);
      assert.ok((await ask(port, INFO)).body.heardAt > heardAt);
    });
  });

  describe('A launched program', { ...UNIX, concurrency: 4 }, () => {
    const HOOKS = `
      const hook = (name) => () => say(name);
      const saveState = (status) => say('saveState of ' + status);
      await launchHost({ onPaused: hook('onPaused'), saveState, onShutdown: hook('onShutdown') });
    `;

    it('reports the status while a hook blocks the thread', async (t) => {
      const host = runHost(t, `
        const hook = (name) => () => (say(name), halt());
        await launchHost({ onPaused: hook('onPaused'), onResumed: hook('onResumed'), saveState: hook('saveState') });
      `);
      const port = await host.hear<number>();
      for (const [line, hook, status] of [
        [SAVE, 'onPaused', 'pausing'], ['', 'saveState', 'paused'], ['', 'onResumed', 'resuming'],
        [SHUTDOWN, 'saveState', 'shutting down'],
      ] as const) {
        if (line !== '') await ask(port, line);
        assert.equal(await host.hear(), hook);
        assert.equal((await ask(port, STATUS)).body.status, status);
        host.release();
      }
      await host.ends();
    });

    it('stays alive while it is paused, and uses no CPU; it shuts down at SIGHUP', async (t) => {
      const host = runHost(t, `
        let cpu;
        const onResumed = () => say(process.cpuUsage(cpu).user / 1e6); // seconds
        await launchHost({ onPaused: () => void (cpu = process.cpuUsage()), onResumed });
      `);
      const port = await host.hear<number>();
      await ask(port, PAUSE, WAIT);
      await sleep(1000);
      await ask(port, RESUME, WAIT);
      assert.ok(await host.hear<number>() < 0.2, 'of a core');
      host.process.kill('SIGHUP');
      await host.ends();
    });

    it('saves at SIGUSR2, by a command of its own, and ends at SIGTERM, while active or paused', async (t) => {
      for (const isPaused of [false, true]) {
        const host = runHost(t, HOOKS);
        const port = await host.hear<number>();
        if (isPaused) await ask(port, PAUSE, WAIT);
        host.process.kill('SIGUSR2');
        let commands: (CommandRequest & { state: string })[] = [];
        await until(async () => {
          ({ commands } = (await ask(port, INFO)).body);
          return commands.at(-1)?.command === 'save-state' && commands.at(-1)?.state === 'done';
        });
        assert.deepEqual([commands.at(-1)?.by, commands.at(-1)?.reason], ['itself', 'SIGUSR2']);
        assert.equal((await ask(port, STATUS)).summary, isPaused ? '200 paused' : '200 active');
        host.process.kill('SIGTERM');
        const save = `saveState of ${isPaused ? 'paused' : 'active'}`;
        await host.ends('onPaused', save, save, 'onShutdown');
      }
    });

    it('takes a signal after the running step, even if steps never await', async (t) => {
      await runHost(t, `
        let steps = 0;
        const step = () => {
          steps += 1;
          process.kill(process.pid, 'SIGTERM');
          block(50);
        };
        await launch({ step }, { webApiAddress: null });
        await launch({ step }, { webApiAddress: ['127.0.0.1', 0] });
        say(steps);
      `).ends(2);
    });

    it('ends at a signal even if the last save fails: launch() rejects with its error, after onShutdown', async (t) => {
      const host = runHost(t, `
        process.removeAllListeners('warning'); // Node's printer
        const saveState = () => { throw new Error('disk full'); };
        await launchHost({ saveState, onShutdown: () => say('onShutdown') }).catch(({ message }) => say(message));
      `);
      await host.hear();
      host.process.kill('SIGTERM');
      await host.ends('onShutdown', 'disk full');
    });

    it('saves at SIGINT, and is killed by a second one, but not within a second', async (t) => {
      const host = runHost(t, `
        const saveState = () => (say('saveState'), new Promise((resolve) => setTimeout(resolve, 2 ** 30)));
        await launchHost({ saveState });
      `);
      await host.hear();
      const ended = once(host.process, 'close');
      host.process.kill('SIGINT');
      assert.equal(await host.hear(), 'saveState');
      host.process.kill('SIGINT'); // a key that is held down
      await sleep(1500);
      assert.equal(host.process.signalCode, null);
      host.process.kill('SIGINT');
      assert.deepEqual(await ended, [null, 'SIGINT']);
    });
  });

  describe('A program that exits when it takes a shutdown', { ...LIMIT, concurrency: 3 }, () => {
    const PATIENT = `
      const wait = Atomics.wait;
      Atomics.wait = (memory, index, value) => {
        if (wait(memory, index, value, 10_000) === 'timed-out') throw new Error('Nobody has woken the program');
      };
    `;
    for (const [how, loop] of [
      ['spinning', 'while (!server.hasCommands()); server.receiveCommand(); process.exit();'],
      ['polling', 'setInterval(() => { if (server.hasCommands()) process.exit(server.receiveCommand() && 0); }, 1);'],
      ['sleeping', 'await server.nextCommand(); process.exit();'],
    ] as const) {
      it(`sends the response before it exits: ${how}`, async (t) => {
        const host = runHost(t, `${PATIENT} const server = await serve(); ${loop}`);
        assert.equal((await ask(await host.hear<number>(), SHUTDOWN)).text, '{"result":"ok"}');
        await host.ends();
      });
    }
  });

  describe('WebApiClient', { ...LIMIT, concurrency: 4 }, () => {
    it('reads the status, sends each command, and waits for outcomes', async (t) => {
      assert.equal(new WebApiClient().baseUrl, 'http://localhost:8391');
      assert.equal(new WebApiClient('::1', 80).baseUrl, 'http://[::1]:80');
      let status = ACTIVE;
      const { server, client } = await startServer(t, { systemStatus: () => status, describe: () => 7 });
      assert.deepEqual([await client.pause(), await client.resume()], ['ok', 'ok']);
      assert.deepEqual([await client.saveState(), await client.shutdown()], ['ok', 'ok']);
      assert.deepEqual(takeAll(server), ['pause', 'resume', 'save-state', 'shutdown']);
      for (status of STATUSES) {
        server.hasCommands();
        assert.equal(await client.getStatus(), status);
      }
      const [value, tag] = ['shutting down', '"shutting-down"'];
      assert.deepEqual(await client.request('status'), { ok: true, value, body: { status: value }, tag });
      assert.deepEqual(await client.request('status', { tag, wait: 1 }), { ok: true, value: '', body: {}, tag });
      const saved = client.request('save-state', { wait: 60, by: 'ana@laptop', reason: 'a & b' });
      await server.nextCommand();
      server.report({ value: 'x' });
      const reply = await saved;
      assert.deepEqual([reply.ok && reply.value, reply.ok && reply.body['value']], ['ok', 'x']);
      const { detail, commands = [] } = await client.getInfo() ?? {};
      assert.deepEqual([detail, commands.at(-1)?.by, commands.at(-1)?.reason], [7, 'ana@laptop', 'a & b']);
      const pending = client.request('pause', { wait: 60 });
      await server.nextCommand();
      client.close();
      const cancelled = await pending;
      assert.deepEqual([!cancelled.ok && cancelled.code, await client.getStatus()], ['ABORT_ERR', SHUTTING_DOWN]);
    });

    it('reports a system that it cannot reach as OFFLINE or null, and whether it sent the request', async (t) => {
      const port = await freePort();
      const client = new WebApiClient('127.0.0.1', port);
      const calls = [client.getInfo(), client.pause(), client.resume(), client.saveState(), client.shutdown()];
      assert.deepEqual(await Promise.all([client.getStatus(), ...calls]), [OFFLINE, null, null, null, null, null]);
      const error = `http://127.0.0.1:${port} does not respond: connect ECONNREFUSED 127.0.0.1:${port}`;
      const failed = { ok: false, body: {}, statusCode: undefined };
      assert.deepEqual(await client.request('pause'), { ...failed, error, phase: 'connect', code: 'ECONNREFUSED' });
      const silent = await startForeign(t, () => {});
      const impatient = new WebApiClient('127.0.0.1', silent.port, { timeout: 1000 });
      const late = `http://127.0.0.1:${silent.port} does not respond: timeout after 1 s`;
      assert.deepEqual(await impatient.request('pause'), { ...failed, error: late, phase: 'sent', code: 'ETIMEDOUT' });
      const cancelled = await client.request('pause', { signal: AbortSignal.abort() });
      assert.deepEqual([cancelled.ok, !cancelled.ok && cancelled.phase], [false, 'connect']);
    });

    it('reports a refusal with its error, and a server of another kind as such', async (t) => {
      const { client } = await startServer(t, { maxQueueSize: 1 });
      assert.deepEqual([await client.pause(), await client.pause()], ['ok', null]);
      const error = QUEUE_FULL;
      const refused = { ok: false, error, body: { error }, phase: 'answered', statusCode: 503, code: undefined };
      assert.deepEqual(await client.request('pause'), refused);
      for (const [status, body] of [[200, '<!doctype html>'], [200, '{"status":"on"}'], [500, '{}']] as const) {
        const { port } = await startForeign(t, (socket) => socket.end(`HTTP/1.1 ${status} X\r\n\r\n${body}`));
        const foreign = new WebApiClient('127.0.0.1', port);
        const reply = await foreign.request('pause');
        const error = `http://127.0.0.1:${port} is not a control server: it responded with status code ${status}`;
        const { body: received, ...failed } = { ...reply };
        assert.deepEqual(failed, { ok: false, error, phase: 'sent', statusCode: status, code: undefined });
        assert.deepEqual(received, body.startsWith('{') ? JSON.parse(body) : {});
        assert.deepEqual([await foreign.getStatus(), await foreign.pause()], [OFFLINE, null]);
      }
    });

    it('sends each request once, on a connection of its own, with its token and without a body', async (t) => {
      const foreign = await startForeign(t, (socket) => socket.destroy());
      const client = new WebApiClient('127.0.0.1', foreign.port, { token: TOKEN });
      for (const method of ['getStatus', 'pause', 'resume', 'saveState', 'shutdown'] as const) await client[method]();
      const lines = foreign.requests.map((text) => text.slice(0, text.indexOf(' HTTP')));
      assert.deepEqual(lines, [STATUS, PAUSE, RESUME, SAVE, SHUTDOWN]);
      for (const text of foreign.requests) {
        assert.ok(text.includes(`\r\nHost: 127.0.0.1:${foreign.port}\r\n`) && text.includes(`\r\n${BEARER}\r\n`), text);
        assert.match(text, /\r\nConnection: close(\r\n[^]*)?\r\n\r\n$/i);
        assert.doesNotMatch(text, /^(Transfer-Encoding|Content-Length: [^0])/im);
      }
    });

    it('cancels pending requests on close(), and can be used again', async (t) => {
      const foreign = await startForeign(t, () => client.close());
      const client = new WebApiClient('127.0.0.1', foreign.port);
      assert.deepEqual([await client.pause(), await client.pause(), foreign.requests.length], [null, null, 2]);
    });

    it('resolves waitFor() at the status, and calls onStatus for the first one and each change', async (t) => {
      let status = ACTIVE;
      const { server, client } = await startServer(t, { systemStatus: () => status });
      const seen: SystemStatus[] = [];
      const onStatus = (one: SystemStatus): void => void seen.push(one);
      const paused = client.waitFor(PAUSED, { onStatus });
      for (status of [ACTIVE, PAUSING, PAUSED]) {
        server.hasCommands();
        await until(() => seen.at(-1) === status);
      }
      await inTime(paused, () => 'waitFor() waits');
      const gone = client.waitFor(OFFLINE, { onStatus });
      await until(() => seen.length === 4);
      await server.close();
      await inTime(gone, () => 'waitFor() waits');
      assert.deepEqual(seen, [ACTIVE, PAUSING, PAUSED, PAUSED, OFFLINE]);
    });

    it('rejects with the reason of its signal, and with what onStatus throws', async (t) => {
      const { client } = await startServer(t);
      const reason = new Error('enough');
      const controller = new AbortController();
      const onStatus = (): void => controller.abort(reason);
      for (const options of [
        { onStatus, signal: controller.signal }, { signal: AbortSignal.abort(reason) },
        { onStatus: () => assert.fail(reason) },
      ]) await assert.rejects(inTime(client.waitFor(PAUSED, options), () => 'waitFor() waits'), reason);
    });
  });

  describe('waitFor()', LIMIT, () => {
    it('rejects with a TimeoutError; neither silence, lost packets nor an error response is OFFLINE', async (t) => {
      collectWarnings(t);
      const unreachable = new WebApiClient('127.0.0.1', await startUnreachable(t), { timeout: 50 });
      const reply = await unreachable.request('pause');
      assert.deepEqual([reply.ok, !reply.ok && reply.phase, !reply.ok && reply.code], [false, 'connect', 'ETIMEDOUT']);
      const { port } = await startForeign(t, () => {});
      const silent = new WebApiClient('127.0.0.1', port, { timeout: 50 });
      const { client: failing } = await startServer(t, { systemStatus: () => assert.fail('lost') });
      await Promise.all([unreachable, silent, failing].map((client) => {
        const message = "Timed out after 0.3 s waiting for the status 'offline'";
        return assert.rejects(client.waitFor(OFFLINE, { timeout: 300 }), { name: 'TimeoutError', message });
      }));
      assert.equal(await silent.getStatus(), OFFLINE, 'as for every request that fails');
    });
  });
});

// ───── Examples ──────────────────────────────────────────────────────────────────────────────────────────────────

/** Runs a program, such as a block of the README, that prints its port first. */
async function runExample(t: TestContext, source: string): Promise<Pick<Host, 'ended'> & { port: number }> {
  const folder = makeFolder(t);
  const path = join(folder, 'example.mjs');
  const program = source.replace("'./control.mts'", JSON.stringify(pathToFileURL('dist/control.js')));
  writeFileSync(path, `process.chdir(${JSON.stringify(folder)}); ${program}`);
  const { hear, ended } = spawnHost(t, [path]);
  return { port: await hear<number>(), ended };
}

/** A response without what differs from run to run. */
function withoutTimes({ text }: { text: string }): unknown {
  const { id, seconds, ...rest } = JSON.parse(text);
  return rest;
}
