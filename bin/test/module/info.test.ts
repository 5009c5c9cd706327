// GET /api/info: what the program is doing, who told it to, and what came of the latest commands.

import assert from 'node:assert/strict';
import { hostname } from 'node:os';
import { basename, extname } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import {
  COMMANDS, GET, HOST, ID, INFO, LIMIT, PAGE, POST, WAIT, collectWarnings, head, outcomeOf, postAll, runHost, send,
  serveOthers, takeAll, wait,
} from './helpers.ts';
import { TOKEN, startServer, until } from '../helpers.ts';
import { SystemStatus, VERSION } from '../../../control.ts';
import type { SystemInfo, WebApiServer, WebApiServerOptions } from '../../../control.ts';
import type { StartedServer, Where } from '../helpers.ts';
import type { TestContext } from 'node:test';

const { ACTIVE, PAUSED, SHUTTING_DOWN } = SystemStatus;

type Info = SystemInfo & { tag: string };

async function getInfo(where: Where): Promise<Info> {
  const { statusCode, headers, body } = await send(where, INFO);
  assert.equal(statusCode, 200);
  return { ...JSON.parse(body), tag: headers.etag };
}

interface ObedientHost extends StartedServer {
  /** Sets the status, as the program itself does, and publishes it. */
  setStatus(status: SystemStatus | null): void;
  /** Takes all commands; the status follows them. */
  obey(): void;
}

/** A host in this process. It fails to tell its status while that is null. */
async function start(t: TestContext, options: Partial<WebApiServerOptions> = {}): Promise<ObedientHost> {
  let status: SystemStatus | null = ACTIVE;
  const started = await startServer(t, { systemStatus: () => status ?? assert.fail('lost'), ...options });
  const { server } = started;
  return {
    ...started,
    setStatus(value) {
      status = value;
      server.hasCommands();
    },
    obey() {
      while (server.hasCommands()) {
        const command = server.receiveCommand();
        if (command === 'pause') status = PAUSED;
        if (command === 'resume') status = ACTIVE;
      }
    },
  };
}

describe('GET /api/info', { ...LIMIT, concurrency: true }, () => {
  it('responds with what is known of the program', async (t) => {
    const before = Date.now();
    const { port } = await start(t, { name: 'cartpole' });
    const { statusCode, headers, body } = await send(port, INFO);
    const { startedAt, since, heardAt, ...others } = JSON.parse(body);
    assert.deepEqual([statusCode, others], [200, {
      name: 'cartpole', pid: process.pid, host: hostname(), version: VERSION, status: 'active', detail: null,
      commands: [],
    }]);
    for (const time of [startedAt, since, heardAt]) {
      assert.equal(new Date(time).toISOString(), time);
      assert.ok(Date.parse(time) <= Date.now(), time);
    }
    assert.ok(Date.parse(startedAt) >= before - process.uptime() * 1000 - 1000, startedAt);
    assert.ok(Date.parse(since) >= before - 1000, since);
    assert.ok(Date.parse(heardAt) >= before - 1000, heardAt);
    const { headers: headOnly, body: noBody } = await send(port, 'HEAD /api/info');
    assert.deepEqual([noBody, headOnly.etag], ['', headers.etag]);
  });

  it('is named after the script by default', async (t) => {
    const { port } = await start(t);
    const script = String(process.argv[1]);
    assert.equal(JSON.parse((await send(port, INFO)).body).name, basename(script, extname(script)));
  });

  it('is for those who may use the other routes', async (t) => {
    const { port } = await start(t, { token: TOKEN, allowedOrigins: [PAGE] });
    const bearer = `Authorization: Bearer ${TOKEN}`;
    const rows: [outcome: string, line: string, ...fields: string[]][] = [
      ['active', INFO, bearer], ['active', `${INFO}?x=1`, bearer], ['200', 'HEAD /api/info', bearer],
      ['active', INFO, bearer, `Origin: ${PAGE}`], ['304', INFO, bearer, 'If-None-Match: *'],
      ['401', INFO], ['401', INFO, WAIT, 'If-None-Match: *'], ['401', POST, WAIT],
      ['403 allowedHosts', INFO, bearer, 'Host: evil'], ['403 allowedOrigins', INFO, bearer, 'Origin: null'],
      ['403 allowedOrigins', POST, bearer, WAIT, 'Sec-Fetch-Site: cross-site'],
      ['404', 'GET /api/info/', bearer, WAIT], ['405', 'POST /api/info', bearer, WAIT], ['405', 'PUT /api/info', bearer],
      ['405', 'GET /api/pause', bearer, WAIT],
    ];
    for (const [outcome, line, ...fields] of rows) {
      const response = await send(port, line, ...fields);
      assert.equal(outcomeOf(response), outcome, `${line} ${fields}`);
      assert.equal(response.headers['preference-applied'], undefined);
      if (line.endsWith('/api/info') && outcome === '405') assert.equal(response.headers.allow, 'GET, HEAD');
    }
  });

  it('and waits are there for pages of allowedOrigins', async (t) => {
    const { server, port } = await start(t, { allowedOrigins: [PAGE] });
    const origin = `Origin: ${PAGE}`;
    const namesIn = (list: unknown): string[] => String(list).toLowerCase().split(/, ?/).sort();
    for (const path of ['/api/info', '/api/pause']) {
      const { headers } = await send(port, `OPTIONS ${path}`, origin, 'Access-Control-Request-Headers: prefer');
      const allowed = namesIn(headers['access-control-allow-headers']);
      assert.deepEqual(allowed, ['authorization', 'content-type', 'if-none-match', 'prefer']);
    }
    const { response } = await wait(t, port, head(POST, HOST, WAIT, origin));
    takeAll(server);
    const responses = [await response, await send(port, GET, origin), await send(port, INFO, origin)];
    responses.push(await send(port, GET, origin, 'If-None-Match: *'));
    for (const { headers } of responses) {
      assert.equal(headers['access-control-allow-origin'], PAGE);
      assert.deepEqual(namesIn(headers['access-control-expose-headers']), ['etag', 'preference-applied']);
    }
  });

  it('knows since when the status is the same, even after two months', async (t) => {
    const host = runHost(t, `
      const { now } = Date;
      Date.now = () => now() - 60 * 86_400_000;
      const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0 });
      const address = await server.runInBackground();
      Date.now = now;
      say(address.port);
      await server.nextCommand();
    `);
    const ageMs = Date.now() - Date.parse((await getInfo(await host.hear<number>())).since);
    assert.equal(Math.round(ageMs / 86_400_000), 60);
  });

  it('has a null status while systemStatus() throws', async (t) => {
    collectWarnings(t);
    const { port, setStatus } = await start(t);
    setStatus(null);
    assert.equal((await getInfo(port)).status, null);
  });
});

describe('The cause of a status', { ...LIMIT, concurrency: true }, () => {
  const EMOJI = '%F0%9F%98%80';
  const QUERIES: [query: string, by?: string | undefined, reason?: string | undefined][] = [
    ['?by=ana@laptop&reason=GPU+needed+until+noon', 'ana@laptop', 'GPU needed until noon'],
    ['?by=%C3%A4na&reason=%E6%97%A5', 'äna', '日'],
    ['?by=a%00b%1B%5B2Jc%C2%85d%7Fe&reason=%0D%0Ax%09', 'ab[2Jcde', 'x'],
    ['?by=%22%5C%27%3C%3E&reason=%E2%80%A8%7B%7D', '"\\\'<>', '\u2028{}'],
    [`?by=${'a'.repeat(300)}&reason=${'%C3%A4'.repeat(300)}`, 'a'.repeat(200), 'ä'.repeat(200)],
    [`?reason=${'a'.repeat(200)}`, undefined, 'a'.repeat(200)],
    ['?by=100%&reason=%zz%4', '100%', '%zz%4'],
    ['?by=%FF%C3x', '\ufffd\ufffdx'],
    ['?by=a&by=b&reason=c&reason=d', 'a', 'c'],
    ['?x=1&&=&by=a=b?c&reason=1%262;3', 'a=b?c', '1&2;3'],
    ['?%62y=a', 'a'],
    ['?By=a&REASON=b&by%20=c'],
    ['?'],
    [''],
  ];

  it('is the command that led to it, with who and why as the query tells', async (t) => {
    const { port, obey } = await start(t);
    for (const [index, [query, by, reason]] of QUERIES.entries()) {
      await send(port, `POST /api/${index % 2 === 0 ? 'pause' : 'resume'}${query}`);
      obey();
      const info = await getInfo(port);
      const command = info.commands.at(-1);
      assert.deepEqual([info.by, info.reason], [by, reason], query);
      assert.deepEqual([command?.by, command?.reason], [by, reason], query);
    }
  });

  it('is that command also if the program reports its outcome before it polls again', async (t) => {
    let status = ACTIVE;
    const { server, port } = await startServer(t, { systemStatus: () => status });
    await send(port, 'POST /api/pause?by=ana');
    assert.equal(server.receiveCommand(), 'pause');
    status = PAUSED;
    server.report({});
    server.hasCommands();
    assert.equal((await getInfo(port)).by, 'ana');
  });

  it('is told in absolute-form targets and requests that wait, too, and never cuts a character', async (t) => {
    const { port, obey } = await start(t);
    const query = `?reason=${EMOJI.repeat(300)}&by=ana`;
    const { response } = await wait(t, port, head(`POST http://localhost/api/pause${query}`, HOST, WAIT));
    obey();
    await response;
    const { by, reason = '' } = await getInfo(port);
    assert.equal(by, 'ana');
    assert.ok(['😀'.repeat(100), '😀'.repeat(200)].includes(reason), reason);
  });

  it('is the program itself if no command led to it', async (t) => {
    const { port, setStatus, obey } = await start(t);
    const first = await getInfo(port);
    assert.deepEqual([first.by, first.reason], [undefined, undefined]);
    await send(port, 'POST /api/save-state?by=ana&reason=now');
    obey();
    setStatus(PAUSED);
    const paused = await getInfo(port);
    assert.deepEqual([paused.by, paused.reason], ['itself', undefined]);
    assert.ok(paused.since > first.since, `${paused.since} > ${first.since}`);
    await send(port, 'POST /api/resume?by=ben');
    obey();
    assert.equal((await getInfo(port)).by, 'ben');
    setStatus(SHUTTING_DOWN);
    assert.equal((await getInfo(port)).by, 'itself');
  });

  it('is not a command that changes nothing, nor one that is still on the queue', async (t) => {
    const { port, obey, setStatus } = await start(t);
    await send(port, 'POST /api/pause?by=ana&reason=noon');
    obey();
    const before = await getInfo(port);
    await sleep(5);
    await postAll(port, ['pause', 'save-state']);
    await send(port, 'POST /api/pause?by=ben&reason=lunch');
    obey();
    const { status, since, by, reason } = await getInfo(port);
    assert.deepEqual([status, since, by, reason], ['paused', before.since, 'ana', 'noon']);
    await send(port, 'POST /api/resume?by=ben');
    setStatus(ACTIVE);
    assert.equal((await getInfo(port)).by, 'itself');
  });
});

describe('The commands', { ...LIMIT, concurrency: true }, () => {
  it('are the latest 16, oldest first, with what came of them', async (t) => {
    const { server, port } = await start(t, { maxQueueSize: 32 });
    const before = Date.now();
    const posted = Array.from({ length: 20 }, (_, index) => COMMANDS[index % 4] ?? 'pause');
    await postAll(port, posted.slice(0, 19));
    await send(port, 'POST /api/save-state?by=ana&reason=now');
    for (let taken = 0; taken < 6; taken += 1) server.receiveCommand(); // the latest one completes those before
    server.report({ value: 'state.json' });
    server.receiveCommand();
    server.report({ error: new Error('GPU busy') });
    server.receiveCommand();

    const { commands } = await getInfo(port);
    const [{ id: firstId = '' } = {}] = commands;
    const [prefix, number] = firstId.split('-');
    for (const [index, { id, at, ...others }] of commands.entries()) {
      assert.match(id, ID);
      assert.equal(id, `${prefix}-${Number(number) + index}`);
      assert.equal(new Date(at).toISOString(), at);
      assert.ok(Date.parse(at) >= before - 1 && Date.parse(at) <= Date.now(), at);
      const names = ['id', 'at', ...Object.keys(others)].sort().join(' ');
      assert.match(names, /^at( by)? command( error)? id( reason)?( seconds)? state( value)?$/);
    }
    const expected = [
      { state: 'done' }, { state: 'done', value: 'state.json' }, { state: 'failed', error: 'GPU busy' },
      { state: 'running' }, ...Array(12).fill({ state: 'waiting' }),
    ];
    const told = commands.map(({ state, value, error }) => JSON.parse(JSON.stringify({ state, value, error })));
    assert.deepEqual(told, expected);
    assert.deepEqual(commands.map(({ command }) => command), posted.slice(4));
    for (const { state, seconds } of commands) {
      if (state === 'done') assert.ok(Number(seconds) >= 0 && Number(seconds) < 60, String(seconds));
      if (state === 'waiting' || state === 'running') assert.equal(seconds, undefined);
    }
    assert.deepEqual(commands.map(({ by, reason }) => [by, reason]), [
      ...Array(15).fill([undefined, undefined]), ['ana', 'now'],
    ]);
    assert.deepEqual(Object.keys(commands[1] ?? {}), ['id', 'command', 'at', 'state', 'value', 'seconds']);
  });

  it('count those of the program itself', async (t) => {
    const { server, port, obey } = await start(t);
    await send(port, 'POST /api/resume?by=ana');
    assert.equal(server.post('pause', { reason: 'budget spent' }), true);
    const { commands } = await getInfo(port);
    const numbers = commands.map(({ id }) => Number(id.split('-')[1]));
    assert.deepEqual(numbers.sort(), [numbers[0], Number(numbers[0]) + 1]);
    assert.deepEqual(commands.map(({ by, reason }) => [by, reason]), [['ana', undefined], ['itself', 'budget spent']]);
    obey(); // its own first
    assert.equal((await getInfo(port)).status, 'active');
  });
});

describe('The tag of /api/info', { ...LIMIT, concurrency: true }, () => {
  it('changes with status, commands and outcomes, but not with the detail', async (t) => {
    let calls = 0;
    const { server, port, setStatus } = await start(t, { describe: () => (calls += 1) });
    const { tag, commands } = await getInfo(port);
    await send(port, POST);
    const prefix = (await getInfo(port)).commands[0]?.id.split('-')[0];
    assert.match(tag, new RegExp(`^"${prefix}-\\d+"$`));
    assert.deepEqual(commands, []);

    const changes: [name: string, prepare: () => unknown, change: () => unknown, status: string][] = [
      ['a command', () => {}, () => send(port, 'POST /api/save-state'), 'active'],
      ['an outcome', () => [server.receiveCommand(), server.receiveCommand()], () => server.hasCommands(), 'active'],
      ['a value', async () => {
        await send(port, POST);
        server.receiveCommand();
      }, () => server.report({ value: 1 }), 'active'],
      ['a status', () => {}, () => setStatus(PAUSED), 'paused'],
    ];
    const tags = [tag];
    for (const [name, prepare, change, status] of changes) {
      await prepare();
      const known = await getInfo(port);
      const field = `If-None-Match: ${known.tag}`;
      assert.ok(!tags.includes(known.tag), known.tag);
      tags.push(known.tag);
      await until(async () => {
        const { detail, tag: sameTag } = await getInfo(port);
        assert.equal(sameTag, known.tag, name);
        return detail !== known.detail;
      });
      for (const line of [INFO, 'HEAD /api/info']) {
        for (const value of [known.tag, `W/${known.tag}`, `"x", ${known.tag}`, '*']) {
          const response = await send(port, line, `If-None-Match: ${value}`);
          assert.deepEqual([response.statusCode, response.headers.etag], [304, known.tag]);
        }
      }
      const { response } = await wait(t, port, head(INFO, HOST, field, WAIT));
      const headOnly = await wait(t, port, head('HEAD /api/info', HOST, field, WAIT));
      await change();
      const { headers, body } = await response;
      assert.equal(headers['preference-applied'], 'wait=60');
      assert.equal(JSON.parse(body).status, status, name);
      assert.notEqual(headers.etag, known.tag, name);
      assert.equal((await headOnly.response).statusCode, 200, name);
    }
    assert.equal(outcomeOf(await send(port, INFO, `If-None-Match: ${tag}`, WAIT)), 'paused'); // an old one
  });

  it('is never newer than the commands it comes with: who follows it sees every outcome', async (t) => {
    const { server, client } = await start(t);
    const poll = setInterval(() => {
      for (; server.hasCommands(); server.report({ value: 'states/1.json' })) server.receiveCommand();
    }, 1);
    t.after(() => clearInterval(poll));
    const seen = new Map<string, unknown>();
    const isOver = new AbortController();
    const { signal } = isOver;
    const follow = async (tag?: string): Promise<void> => {
      if (signal.aborted) return;
      const reply = await client.request('info', { tag, wait: tag === undefined ? undefined : 1, signal });
      const { commands = [] } = (reply.ok ? reply.body : {}) as Partial<SystemInfo>;
      for (const { id, value } of commands) seen.set(id, value);
      return follow(reply.ok ? reply.tag : undefined);
    };
    const ask = async (): Promise<void> => { // samples that are fresh while the outcome is on its way
      while (!signal.aborted) await client.getStatus(signal);
    };
    const others = [follow(), ask()];
    for (let count = 0; count < 50; count += 1) {
      const reply = await client.request('save-state', { wait: 5 });
      assert.ok(reply.ok);
      await until(() => seen.get(String(reply.body['id'])) === 'states/1.json', () => `${count} outcomes`);
    }
    isOver.abort();
    await Promise.all(others);
  });
});

describe('The detail', { ...LIMIT, concurrency: true }, () => {
  it('is asked for when a client asks, at most ten times a second, and never twice at once', async (t) => {
    let calls = 0;
    let depth = 0;
    const host: { server?: WebApiServer } = {};
    const started = await start(t, {
      describe() {
        depth += 1;
        assert.equal(depth, 1);
        host.server?.hasCommands();
        depth -= 1;
        return { episode: (calls += 1), 'mean return': 497.1, text: '😀"' };
      },
    });
    const { server, port, obey, setStatus } = started;
    host.server = server;
    for (let round = 0; round < 50; round += 1) server.hasCommands();
    await postAll(port, ['pause', 'resume']);
    obey();
    setStatus(PAUSED);
    await serveOthers(port);
    assert.equal(calls, 0);

    const began = performance.now();
    const seen: unknown[] = [];
    while (performance.now() - began < 450) seen.push(Object((await getInfo(port)).detail).episode);
    const most = Math.ceil((performance.now() - began) / 100) + 1;
    assert.ok(calls >= 3 && calls <= most, `${calls} calls, at most ${most}`);
    assert.ok(seen.length > calls && new Set(seen).size >= calls - 1, inspect(seen));
    const { detail } = await getInfo(port);
    assert.deepEqual(detail, { ...Object(detail), 'mean return': 497.1, text: '😀"' });
  });

  it('is null, with one warning, if it is too long, not JSON, or fails', async (t) => {
    const warnings = collectWarnings(t);
    let value: unknown;
    let calls = 0;
    const { port } = await start(t, {
      describe() {
        calls += 1;
        return value instanceof Error ? assert.fail(value) : value;
      },
    });
    const circular: unknown[] = [];
    circular.push(circular);
    const rows: [name: string, value: unknown, isGood: boolean][] = [
      ['4 KiB', 'x'.repeat(4094), true], ['a byte more', `x${'ä'.repeat(2047)}`, false],
      ['1000 characters of 4 bytes', '😀'.repeat(1000), true],
      ['a bigint', 1n, false], ['a circular array', circular, false], ['an error', new Error('GPU busy'), false],
      ['null', null, true], ['false', false, true], ['a list', [1, { a: 'b' }, null], true],
      ['a failing toJSON()', { toJSON: () => assert.fail('lost') }, false],
    ];
    for (const [name, ...row] of rows) {
      let isGood = false;
      [value, isGood] = row;
      warnings.length = calls = 0;
      while (calls < 2) await getInfo(port); // a slow host gives it to the next request
      assert.deepEqual((await getInfo(port)).detail, isGood ? value : null, name);
      assert.equal(warnings.length, isGood ? 0 : 1, `${name}: ${warnings}`);
    }
  });

  // The times have a resolution of a quarter of a second.
  it('is the one known last while the host is in a long step, and heardAt tells since when', async (t) => {
    const host = runHost(t, `
      import { setTimeout as sleep } from 'node:timers/promises';
      let step = 0;
      const server = new WebApiServer({
        systemStatus: () => ACTIVE, describe: () => ({ step }), host: '127.0.0.1', port: 0,
      });
      say((await server.runInBackground()).port);
      await server.nextCommand();
      step = 1;
      say('blocked');
      block(1800);
      step = 2;
      server.hasCommands(); // it never yields
      say('polled');
      block(1800);
      step = 3;
      await server.nextCommand();
    `);
    const port = await host.hear<number>();
    await until(async () => (await getInfo(port)).detail !== null);
    await sleep(1500); // idle, not hung
    const idle = await getInfo(port);
    assert.ok(Date.now() - Date.parse(idle.heardAt) < 700, idle.heardAt);
    await send(port, POST);
    assert.equal(await host.hear(), 'blocked');
    await sleep(1500);
    const began = performance.now();
    const hung = await getInfo(port);
    const tookMs = performance.now() - began;
    assert.ok(tookMs < 100, `${tookMs} ms`);
    assert.deepEqual(hung.detail, { step: 0 });
    assert.ok(Date.now() - Date.parse(hung.heardAt) > 1000, hung.heardAt);
    assert.equal(await host.hear(), 'polled');
    const polled = await getInfo(port);
    assert.deepEqual(polled.detail, { step: 2 });
    assert.ok(Date.now() - Date.parse(polled.heardAt) < 700, polled.heardAt);
    await until(async () => (await getInfo(port)).commands[0]?.state === 'done');
  });
});
