// Prefer, ETag and If-None-Match: what came of a command, and the status as it changes.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  COMMANDS, GET, HOST, ID, INFO, LIMIT, POST, WAIT, collectWarnings, exchange, head, outcomeOf, send, serveOthers,
  shortOf, takeAll, wait, waitAll,
} from './helpers.ts';
import { startServer as start } from '../helpers.ts';
import { SystemStatus } from '../../../control.ts';
import type { WebApiClient, WebApiServer } from '../../../control.ts';

const { ACTIVE, PAUSING, PAUSED, RESUMING, SHUTTING_DOWN } = SystemStatus;

const KNOWN = 'If-None-Match: "active"';
const WAITING_GET = head(GET, HOST, KNOWN, WAIT);
const WAITING_POST = head(POST, HOST, WAIT);

describe('A command that waits', { ...LIMIT, concurrency: true }, () => {
  const OUTCOMES: [
    name: string, outcome: Parameters<WebApiServer['report']>[0] | null, statusCode: number, fields: object,
  ][] = [
    ['no value', null, 200, {}],
    ['a path', { value: 'states/2026-11-21T14-03-07.json' }, 200, { value: 'states/2026-11-21T14-03-07.json' }],
    ['a number', { value: -0.5 }, 200, { value: -0.5 }],
    ['1001 characters', { value: 'x'.repeat(1001) }, 200, { value: 'x'.repeat(1000) }],
    ['control characters', { value: '\x1b[2Jä\0\r\n\x7f\x9b😀"\\' }, 200, { value: '[2Jä😀"\\' }],
    ['a failure', { error: new Error('ENOSPC: no space left on device') }, 500, {
      error: 'save-state failed: ENOSPC: no space left on device',
    }],
    ['a failure of 1001 characters', { error: new Error('x'.repeat(1001)) }, 500, {
      error: `save-state failed: ${'x'.repeat(1000)}`,
    }],
  ];

  it('is told what came of it when the program has done it', async (t) => {
    const { server, port } = await start(t);
    const ids: string[] = [];
    for (const [name, outcome, expectedCode, fields] of OUTCOMES) {
      const began = performance.now();
      const waiting = await wait(t, port, head('POST /api/save-state', HOST, WAIT));
      assert.equal(await server.nextCommand(), 'save-state', name);
      await sleep(20);
      const tookAtLeast = 0.017;
      if (outcome === null) server.hasCommands();
      else server.report(outcome);
      const { statusCode, headers, body } = await waiting.response;
      assert.equal(headers['preference-applied'], 'wait=60');
      const { result, id, state, seconds, ...others } = JSON.parse(body);
      assert.deepEqual([statusCode, others], [expectedCode, fields], name);
      if (statusCode === 500) continue;
      assert.deepEqual([result, state], ['ok', 'done']);
      const tookAtMost = (performance.now() - began) / 1000 + 0.01;
      assert.ok(seconds >= tookAtLeast && seconds <= tookAtMost, `${seconds} s of ${tookAtMost}`);
      ids.push(id);
    }
    const [first = '', ...others] = ids;
    assert.match(first, ID);
    const [prefix, number] = first.split('-');
    assert.deepEqual(others, others.map((_, index) => `${prefix}-${Number(number) + index + 1}`), 'of one process');
  });

  it('is told after N seconds that it is still waiting or running, and stands', async (t) => {
    const { server, port } = await start(t);
    const began = performance.now();
    const running = send(port, POST, 'Prefer: wait=1');
    assert.equal(await server.nextCommand(), 'pause');
    const waiting = send(port, 'POST /api/resume', 'Prefer: wait=1');
    const responses = await Promise.all([running, waiting]);
    assert.deepEqual(responses.map(shortOf), ['202 running wait=1', '202 waiting wait=1']);
    const tookMs = performance.now() - began;
    assert.ok(tookMs > 990 && tookMs < 3000, `${tookMs} ms`);
    assert.deepEqual(takeAll(server), ['resume']);
  });

  it('responds 503 at once while the queue is full, and queues nothing', async (t) => {
    const { server, port } = await start(t, { maxQueueSize: 1 });
    await wait(t, port, WAITING_POST);
    const { statusCode, body } = await send(port, 'POST /api/resume', WAIT);
    assert.deepEqual([statusCode, body], [503, '{"error":"Command queue is full, try again later"}']);
    assert.deepEqual(takeAll(server), ['pause']);
  });

  it('waits no longer than the client says (RFC 7240)', async (t) => {
    const { server, port } = await start(t);
    const host = setInterval(() => takeAll(server), 1);
    t.after(() => clearInterval(host));
    const rows: [seconds: number | null, ...lines: string[]][] = [
      [1, 'wait=1'], [300, 'wait=300'], [300, 'wait=301'], [300, 'wait=99999999999999999999'],
      [10, 'wait="10"'], [10, 'Wait=10'], [10, 'wait = 10'], [10, 'wait\t=\t10 '],
      [10, 'respond-async, wait=10'], [10, ', ,wait=10,'], [10, 'wait=10, wait=20'],
      [10, 'respond-async', 'return=minimal', 'wait=10'], [10, 'wait=10', 'wait=20'],
      [10, 'wait=10; x'], [10, 'wait=10;x=y ; z="a, wait=20"'], [10, 'x; wait=20, wait=10'],
      [10, 'x="a, wait=20", wait=10'], [10, 'x="\\", wait=20", wait=10'], [10, 'x=",wait=20,", y=" ,wait=30", wait=10'],
      [null, 'wait=0'], [null, 'wait=-1'], [null, 'wait=1.5'], [null, 'wait='], [null, 'wait'], [null, 'wait=""'],
      [null, 'wait="0"'], [null, 'wait=+10'], [null, 'wait=1e1'], [null, 'wait=0x10'], [null, 'wait=10s'],
      [null, 'wait=1 0'], [null, 'wait="1 0"'], [null, "wait='10'"], [null, 'wait="10'], [null, 'wait:10'],
      [null, ''], [null, 'x-wait=10'], [null, 'wait-x=10'], [null, 'await=10'], [null, 'x; wait=10'],
      [null, 'respond-async; wait=10'], [null, 'x="wait=10"'], [null, 'x="a, wait=10"'], [null, 'respond-async'],
    ];
    for (const [seconds, ...lines] of rows) {
      const response = await send(port, POST, ...lines.map((line) => `Prefer: ${line}`));
      assert.equal(shortOf(response), seconds === null ? 'ok' : `done wait=${seconds}`, lines.join(' | '));
    }
  });
});

describe('A request without Prefer', LIMIT, () => {
  const COMMON = [
    'Cache-Control: no-store', 'Cross-Origin-Resource-Policy: same-origin', 'X-Content-Type-Options: nosniff',
    'Date: ', 'Connection: keep-alive', '', '',
  ].join('\r\n');
  const RESPONSES: [line: string, field: string, length: number, body: string][] = [
    ...COMMANDS.map((command): typeof RESPONSES[number] => [`POST /api/${command}`, 'X: x', 15, '{"result":"ok"}']),
    [POST, 'Prefer: wait=0', 15, '{"result":"ok"}'],
    [POST, 'If-None-Match: *', 15, '{"result":"ok"}'],
    [GET, 'X: x', 19, '{"status":"active"}'],
    [GET, WAIT, 19, '{"status":"active"}'],
    ['HEAD /api/status', 'X: x', 19, ''],
  ];
  it('gets the bytes of version 0.2.1, but for the ETag', async (t) => {
    const { server, port } = await start(t);
    for (const [line, field, length, body] of RESPONSES) {
      const text = await exchange(port, [head(line, HOST, field)], 1);
      const bytes = text.replace(/(?<=\r\nDate: )[^\r]*/, '').replace('ETag: "active"\r\n', '');
      const start = `HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ${length}\r\n`;
      assert.equal(bytes, start + COMMON + body, `${line} ${field}`);
    }
    assert.deepEqual(takeAll(server), [...COMMANDS, 'pause', 'pause']);
  });
});

describe('A status that the client knows', { ...LIMIT, concurrency: true }, () => {
  it('has a tag', async (t) => {
    let status = ACTIVE;
    const { server, port } = await start(t, { systemStatus: () => status });
    for (status of [ACTIVE, PAUSING, PAUSED, RESUMING, SHUTTING_DOWN]) {
      server.hasCommands();
      const tag = `"${status === SHUTTING_DOWN ? 'shutting-down' : status.statusName}"`;
      for (const line of [GET, 'HEAD /api/status']) {
        const { statusCode, headers } = await send(port, line);
        assert.deepEqual([statusCode, headers.etag], [200, tag]);
        const known = await send(port, line, `If-None-Match: ${tag}`);
        assert.deepEqual([known.statusCode, known.headers.etag], [304, tag]);
      }
    }
  });

  it('is named by If-None-Match (RFC 9110 §13.1.2)', async (t) => {
    const { port } = await start(t);
    const rows: [statusCode: number, ...lines: string[]][] = [
      [304, '"active"'], [304, 'W/"active"'], [304, '*'], [304, ' * '], [304, '"paused", "active"'],
      [304, '"paused" ,W/"active",'], [304, '"paused"', '"active"'], [304, '"a,b", "active"'], [304, '"a b", "active"'],
      [200, '"paused"'], [200, '"Active"'], [200, 'active'], [200, '"active'], [200, '" active"'], [200, '"*"'],
      [200, '""'], [200, ''], [200, '"paused", "pausing"'], [200, '"active-1"'],
    ];
    for (const [statusCode, ...lines] of rows) {
      for (const line of [GET, 'HEAD /api/status']) {
        const response = await send(port, line, ...lines.map((value) => `If-None-Match: ${value}`));
        assert.equal(response.statusCode, statusCode, lines.join(' | '));
        assert.equal(response.headers['preference-applied'], undefined);
      }
    }
  });

  it('is sent at once if the client does not know it', async (t) => {
    const { port } = await start(t);
    for (const field of ['X: x', 'If-None-Match: "paused"', 'If-None-Match: "pausing", W/"paused"']) {
      assert.equal(shortOf(await send(port, GET, WAIT, field)), 'active');
    }
  });

  type Change = (server: WebApiServer, client: WebApiClient, setStatus: (status: SystemStatus) => void) => unknown;
  const HOSTS: [name: string, toPaused: Change][] = [
    ['polls', (server, _client, setStatus) => {
      setStatus(PAUSED);
      server.hasCommands();
    }],
    ['sleeps in nextCommand()', async (server, client, setStatus) => {
      const taken = server.nextCommand();
      await client.pause();
      await taken;
      setStatus(PAUSED);
      const next = server.nextCommand(); // sleeps
      await client.resume();
      await next;
    }],
    ['tells it when asked', async (_server, client, setStatus) => {
      setStatus(PAUSED);
      await client.getStatus();
    }],
  ];
  for (const [name, toPaused] of HOSTS) {
    it(`is waited for until it changes: the host ${name}`, async (t) => {
      let status = ACTIVE;
      const { server, port, client } = await start(t, { systemStatus: () => status });
      const waiting = await waitAll(t, port, [
        WAITING_GET,
        head('HEAD /api/status', HOST, KNOWN, WAIT),
        head(GET, HOST, 'If-None-Match: "x", W/"active", "y"', WAIT),
        head(GET, HOST, KNOWN, 'If-None-Match: "x"', 'Prefer: respond-async', WAIT),
      ]);
      await toPaused(server, client, (value) => (status = value));
      for (const { response } of waiting) {
        const { statusCode, headers } = await response;
        assert.deepEqual([statusCode, headers.etag, headers['preference-applied']], [200, '"paused"', 'wait=60']);
      }
    });
  }

  it('is reported within milliseconds after the change, and costs the program nothing until then', async (t) => {
    let status = ACTIVE;
    let samples = 0;
    const systemStatus = (): SystemStatus => (samples += 1, status);
    const { server, port } = await start(t, { systemStatus });
    const durationsMs: number[] = [];
    for (let round = 0; round < 5; round += 1) {
      const tag = `If-None-Match: "${status.statusName}"`;
      const { response } = await wait(t, port, head(GET, HOST, tag, WAIT));
      await sleep(10); // a late sample is over
      samples = 0;
      await sleep(50);
      assert.equal(samples, 0);
      status = status === ACTIVE ? PAUSED : ACTIVE;
      const began = performance.now();
      server.hasCommands();
      assert.equal(outcomeOf(await response), status.statusName);
      durationsMs.push(performance.now() - began);
    }
    assert.ok(Math.min(...durationsMs) < 20, `${durationsMs} ms`);
  });

  it('is not waited for by the list that names the next one, too', async (t) => {
    let status = ACTIVE;
    const { server, port } = await start(t, { systemStatus: () => status });
    const { response } = await wait(t, port, head(GET, HOST, 'If-None-Match: "active", "pausing"', WAIT));
    status = PAUSING;
    server.hasCommands();
    await serveOthers(port);
    status = PAUSED;
    server.hasCommands();
    assert.equal(outcomeOf(await response), 'paused');
  });

  it('gets a 304 after N seconds', async (t) => {
    let samples = 0;
    const { port } = await start(t, { systemStatus: () => (samples += 1, ACTIVE) });
    const { headers: { etag } } = await send(port, INFO);
    samples = 0;
    const began = performance.now();
    const responses = await Promise.all([
      send(port, GET, KNOWN, 'Prefer: wait=1'),
      send(port, 'HEAD /api/status', 'If-None-Match: *', 'Prefer: wait=1'),
      send(port, INFO, `If-None-Match: ${etag}`, 'Prefer: wait=1'),
    ]);
    const tookMs = performance.now() - began;
    assert.deepEqual(responses.map(shortOf), Array(3).fill('304 wait=1'));
    assert.deepEqual(responses.map(({ headers }) => headers.etag), ['"active"', '"active"', etag]);
    assert.ok(tookMs > 990 && tookMs < 3000, `${tookMs} ms`);
    assert.ok(samples <= 6, `${samples} samples`); // at most two for each
  });

  it('cannot be known while systemStatus() throws: 500 at once, also to those who wait', async (t) => {
    collectWarnings(t);
    let isLost = false;
    const { server, port } = await start(t, { systemStatus: () => (isLost ? assert.fail('lost') : ACTIVE) });
    const { response } = await wait(t, port, WAITING_GET);
    isLost = true;
    server.hasCommands();
    assert.equal(shortOf(await response), '500 wait=60');
    for (const field of [KNOWN, 'If-None-Match: *', 'X: x']) {
      const { statusCode, body } = await send(port, GET, field, WAIT);
      assert.deepEqual([statusCode, body], [500, '{"error":"Internal server error"}']);
    }
  });
});
