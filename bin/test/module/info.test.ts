// GET /api/info, row by row and under load: who and why, the outcomes and the detail.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import { LIMIT, collectWarnings, getDetail, getInfo, perform, startServer, takeAll, until } from '../helpers.ts';
import { runHost } from '../host.ts';
import { COMMANDS, HOST, INFO, WAIT, ask, head, postAll, serveOthers, wait } from '../http.ts';
import { SystemStatus } from '../../../control.ts';
import type { CommandOutcome, SystemInfo, WebApiServer } from '../../../control.ts';

const { ACTIVE, PAUSED, SHUTTING_DOWN } = SystemStatus;

const LONG = 'x'.repeat(1001);

describe('GET /api/info', { ...LIMIT, concurrency: true }, () => {
  it('has the cause of the first status, until another status has another cause', async (t) => {
    let status = PAUSED;
    const since = '2026-11-21T14:03:07.120Z';
    const { server, port } = await startServer(t, {
      systemStatus: () => status, cause: { by: 'a\nna', reason: 'r'.repeat(300), since },
    });
    const first = await getInfo(port);
    assert.deepEqual([first.by, first.reason, first.since], ['ana', 'r'.repeat(200), since]);
    server.post('resume', { by: 'clock', reason: 'noon' });
    server.receiveCommand();
    status = ACTIVE;
    server.report();
    const second = await getInfo(port);
    assert.deepEqual([second.status, second.by, second.reason], ['active', 'clock', 'noon']);
    assert.notEqual(second.since, since);
  });

  it('shows who sent a command and why, from its query', async (t) => {
    const { server, port } = await startServer(t);
    const smile = '%F0%9F%98%80';
    const rows: [query: string, by?: string | undefined, reason?: string | undefined][] = [
      ['?by=ana@laptop&reason=GPU+needed+until+noon', 'ana@laptop', 'GPU needed until noon'],
      ['?by=%C3%A4na&reason=%E6%97%A5', 'äna', '日'],
      ['?by=a%00b%1B%5B2Jc%C2%85d%7Fe&reason=%0D%0Ax%09', 'ab[2Jcde', 'x'],
      ['?by=%22%5C%27%3C%3E&reason=%E2%80%A8%7B%7D', '"\\\'<>', '\u2028{}'],
      [`?by=${'a'.repeat(300)}&reason=${'%C3%A4'.repeat(300)}`, 'a'.repeat(200), 'ä'.repeat(200)],
      [`?reason=${smile.repeat(300)}`, undefined, '😀'.repeat(200)],
      ['?by=100%&reason=%zz%4', '100%', '%zz%4'],
      ['?by=%FF%C3x', '\ufffd\ufffdx'],
      ['?by=a&by=b&reason=c&reason=d', 'a', 'c'],
      ['?x=1&&=&by=a=b?c&reason=1%262;3', 'a=b?c', '1&2;3'],
      ['?%62y=a', 'a'],
      ['?By=a&REASON=b&by%20=c'],
      ['?'],
      [''],
    ];
    const { response } = await wait(t, port, head('POST http://localhost/api/pause?by=ana', HOST, WAIT));
    takeAll(server);
    await response;
    for (const [query, by, reason] of [['in an absolute-form target', 'ana'], ...rows] as typeof rows) {
      if (query === '' || query.startsWith('?')) await ask(port, `POST /api/pause${query}`);
      takeAll(server);
      const command = (await getInfo(port)).commands.at(-1);
      assert.deepEqual([command?.by, command?.reason], [by, reason], query);
    }
  });

  it('names as the cause of a status the command that changed it, or else the program itself', async (t) => {
    let status = ACTIVE;
    const { server, port } = await startServer(t, { systemStatus: () => status });
    const change = (value: SystemStatus): void => {
      status = value;
      server.hasCommands();
    };
    const checkCause = async (by?: string, reason?: string): Promise<string> => {
      const info = await getInfo(port);
      assert.deepEqual([info.status, info.by, info.reason], [status.statusName, by, reason]);
      return (await getInfo(port) as unknown as SystemInfo).since;
    };
    await checkCause();
    await ask(port, 'POST /api/save-state?by=ana&reason=now');
    takeAll(server);
    change(PAUSED); // after the command was done
    await checkCause('itself');
    await ask(port, 'POST /api/resume?by=ben&reason=lunch');
    assert.equal(server.receiveCommand(), 'resume');
    change(ACTIVE);
    const since = await checkCause('ben', 'lunch');
    await ask(port, 'POST /api/resume?by=ana'); // changes nothing
    takeAll(server);
    await ask(port, 'POST /api/pause?by=ana'); // still on the queue
    assert.equal(await checkCause('ben', 'lunch'), since);
    change(SHUTTING_DOWN);
    await checkCause('itself');
  });

  it('lists the latest 16 commands, oldest first, with their outcomes', async (t) => {
    const { server, port } = await startServer(t, { maxQueueSize: 100 });
    const posted = Array.from({ length: 100 }, (_, index) => COMMANDS[index % 4] ?? 'pause');
    await postAll(port, posted);
    for (let taken = 0; taken < 90; taken += 1) {
      server.receiveCommand();
      if (taken === 86) server.report({ value: 'state.json' });
      if (taken === 87) server.report({ error: new Error('GPU busy') });
    }
    const { commands } = await getInfo(port);
    assert.deepEqual(commands.map(({ command }) => command), posted.slice(84));
    const [prefix, number] = commands[0]?.id.split('-') ?? [];
    assert.deepEqual(commands.map(({ id }) => id), commands.map((_, index) => `${prefix}-${Number(number) + index}`));
    assert.deepEqual(commands.map(({ state, value, error }) => value ?? error ?? state), [
      'done', 'done', 'state.json', 'GPU busy', 'done', 'running', ...Array(10).fill('waiting'),
    ]);
  });

  it('has a tag that changes with each of these, but not with the detail', async (t) => {
    let status = ACTIVE;
    let calls = 0;
    const { server, port } = await startServer(t, { systemStatus: () => status, describe: () => (calls += 1) });
    const take = async (): Promise<void> => {
      await postAll(port, ['save-state']);
      server.receiveCommand();
    };
    const changes: [name: string, prepare: () => unknown, change: () => unknown][] = [
      ['a command', () => {}, () => postAll(port, ['save-state'])],
      ['its start', () => {}, () => server.receiveCommand()],
      ['its end', () => {}, () => server.hasCommands()],
      ['a value', take, () => server.report({ value: 1 })],
      ['a status', () => {}, () => {
        status = PAUSED;
        server.hasCommands();
      }],
    ];
    const tags = new Set<unknown>();
    for (const [name, prepare, change] of changes) {
      await prepare();
      const { headers: { etag }, body } = await ask(port, INFO);
      assert.ok(!tags.has(etag), name);
      tags.add(etag);
      await until(async () => {
        const { headers, body: newBody } = await ask(port, INFO);
        assert.equal(headers.etag, etag, name);
        return newBody.detail !== body.detail;
      });
      const { response } = await wait(t, port, head(INFO, HOST, `If-None-Match: ${etag}`, WAIT));
      const headOnly = await wait(t, port, head('HEAD /api/info', HOST, `If-None-Match: ${etag}`, WAIT));
      await change();
      assert.notEqual((await response).headers.etag, etag, name);
      assert.equal((await headOnly.response).statusCode, 200, name);
    }
  });

  it('has a tag that is never newer than the commands, so that no outcome is missed', async (t) => {
    const { server, client } = await startServer(t);
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
    const others = [follow()];
    for (let count = 0; count < 50; count += 1) {
      const status = client.getStatus(); // samples that are fresh while the outcome is on its way
      const reply = await client.request('save-state', { wait: 60 });
      assert.ok(reply.ok);
      await until(() => seen.get(String(reply.body['id'])) === 'states/1.json', () => `${count} outcomes`);
      await status;
    }
    isOver.abort();
    await Promise.all(others);
  });
});

describe('report()', LIMIT, () => {
  const OUTCOMES: [name: string, outcome: CommandOutcome, statusCode: number, sent: unknown][] = [
    ['a path', { value: 'states/2026-11-21T14-03-07.json' }, 200, 'states/2026-11-21T14-03-07.json'],
    ['a number', { value: -0.5 }, 200, -0.5],
    ['no finite number', { value: NaN }, 200, null],
    ['a list', { value: [{ a: '\n' }] }, 200, [{ a: '\n' }]],
    ['1001 characters', { value: LONG }, 200, LONG.slice(1)],
    ['control characters', { value: '\x1b[2Jä\0\r\n\x7f\x9b😀"\\' }, 200, '[2Jä😀"\\'],
    ['an Error', { error: new Error('ENOSPC: no space') }, 500, 'save-state failed: ENOSPC: no space'],
    ['an error of 1001 characters', { error: new Error(LONG) }, 500, `save-state failed: ${LONG.slice(1)}`],
    ['an error with control characters', { error: new Error('a\x1b[2J\nb') }, 500, 'save-state failed: a[2Jb'],
    ['an error that is none', { error: { code: 5 } }, 500, 'save-state failed: { code: 5 }'],
    ['an error without a message', { error: Object.assign(new Error(''), { code: 5 }) }, 500, 'save-state failed: 5'],
    ['undefined', { error: undefined }, 500, 'save-state failed: undefined'],
  ];

  it('returns any JSON, and texts without control characters, of at most 1000 characters', async (t) => {
    const { server, port } = await startServer(t);
    for (const [name, outcome, statusCode, sent] of OUTCOMES) {
      const performed = perform(port, 'save-state');
      assert.equal(await server.nextCommand(), 'save-state');
      server.report(outcome);
      server.report({ error: new Error('too late') });
      assert.deepEqual(await performed, [statusCode, sent], name);
    }
  });

  for (const [name, ask] of [
    ['hasCommands()', (server) => server.hasCommands()],
    ['receiveCommand()', (server) => server.receiveCommand()],
    ['nextCommand()', (server) => server.nextCommand()],
    ['nextCommandSync()', (server) => server.nextCommandSync()],
    ['close()', (server) => server.close()],
  ] as [string, (server: WebApiServer) => unknown][]) {
    it(`is not needed before ${name}, which completes the command taken last`, async (t) => {
      const { server, port } = await startServer(t);
      const performed = perform(port, 'save-state');
      await server.nextCommand();
      server.post('pause');
      await ask(server);
      assert.deepEqual(await performed, [200, undefined]);
    });
  }
});

describe('describe()', { ...LIMIT, concurrency: true }, () => {
  it('returns the detail, up to 4 KiB of JSON; otherwise the detail is null, with a warning', async (t) => {
    const warnings = collectWarnings(t);
    let sample: () => unknown = () => 0;
    const { port } = await startServer(t, { describe: () => sample() });
    const circular: unknown[] = [];
    circular.push(circular);
    const good = [
      'x'.repeat(4094), [1, { a: 'b' }, null], '😀'.repeat(1000), false, { toJSON: () => 'text' }, { text: '😀"' },
    ];
    const bad: (() => unknown)[] = [
      () => `x${'ä'.repeat(2047)}`, // a byte more than 4 KiB
      () => 1n,
      () => circular,
      () => assert.fail('GPU busy'),
      async () => 1,
      async () => assert.fail('this must not end the process'),
    ];
    for (const [index, value] of good.entries()) {
      for (sample of [() => value, bad[index] ?? assert.fail()]) {
        const expected = sample === bad[index] ? 'null' : JSON.stringify(value);
        await until(async () => JSON.stringify((await getInfo(port)).detail) === expected, () => `${sample}`);
      }
    }
    assert.ok(warnings.length > 3 && warnings.every((warning) => warning.startsWith('describe ')), inspect(warnings));
    assert.equal(new Set(warnings).size, warnings.length, 'each text once');
  });

  it('runs only on request, up to ten times a second, and never twice at once', async (t) => {
    let calls = 0;
    let depth = 0;
    const host: { server?: WebApiServer } = {};
    const { server, port } = await startServer(t, {
      describe() {
        calls += 1;
        depth += 1;
        host.server?.hasCommands();
        depth -= 1;
        return { depth };
      },
    });
    host.server = server;
    const polls = setInterval(() => server.hasCommands(), 1);
    t.after(() => clearInterval(polls));
    await postAll(port, ['pause', 'resume']);
    takeAll(server);
    await serveOthers(port);
    assert.equal(calls, 0);
    const began = performance.now();
    while (calls < 4) assert.deepEqual(await getDetail(port), { depth: 0 });
    const tookMs = performance.now() - began;
    assert.ok(calls <= tookMs / 100 + 1, `${calls} calls in ${tookMs} ms`);
  });

  it('runs on request, as systemStatus() does, while a program that never yields lets a command wait', async (t) => {
    const host = runHost(t, `
      let [calls, status] = [0, ACTIVE];
      const server = await serve({ describe: () => (calls += 1), systemStatus: () => status });
      for (;;) if (server.hasCommands()) status = PAUSED; // by itself, before it takes the command
    `);
    const port = await host.hear<number>();
    await ask(port, 'POST /api/save-state');
    for (let round = 0, before = -1; round < 3; round += 1) {
      await until(async () => Number(await getDetail(port)) > before);
      before = Number(await getDetail(port));
    }
    await until(async () => (await ask(port, 'GET /api/status')).summary === '200 paused');
  });

  it('does not run at a second poll before a command is taken: who posts and then asks sees its effect', async (t) => {
    const host = runHost(t, `
      let status = ACTIVE;
      const server = await serve({ systemStatus: () => status, describe: () => status.statusName });
      for (;;) {
        while (!server.hasCommands()) block(1);
        block(20); // until the client has asked
        if (server.hasCommands()) status = server.receiveCommand() === 'pause' ? PAUSED : ACTIVE;
      }
    `);
    const port = await host.hear<number>();
    const seen: unknown[] = [];
    for (let round = 0; round < 20; round += 1) {
      await sleep(100); // a detail may be as old
      await ask(port, round % 2 === 0 ? 'POST /api/pause' : 'POST /api/resume');
      seen.push(await getDetail(port));
    }
    const right = seen.filter((detail, round) => detail === (round % 2 === 0 ? 'paused' : 'active'));
    assert.ok(right.length > 10, `${seen}`); // a busy machine may let some wait for too long
  });
});

describe('systemStatus()', LIMIT, () => {
  it('runs at the start, at each look for commands, and on request', async (t) => {
    let calls = 0;
    const { server, port } = await startServer(t, { systemStatus: () => (calls += 1, ACTIVE) });
    const counts = [calls];
    const controller = new AbortController();
    const sleeping = (): void => void server.nextCommand({ signal: controller.signal }).catch(() => {});
    for (const action of [
      () => server.hasCommands(), sleeping, () => controller.abort(), () => ask(port, 'POST /api/pause'),
      () => server.receiveCommand(), () => ask(port, 'GET /api/status'), () => ask(port, 'GET /'),
    ]) {
      await action();
      counts.push(calls);
    }
    assert.deepEqual(counts, [1, 2, 3, 3, 3, 4, 5, 5]);
  });

  it('causes a limited number of warnings, even if all texts differ', async (t) => {
    const warnings = collectWarnings(t);
    let calls = 0;
    const { server } = await startServer(t, { systemStatus: () => assert.fail(`failure ${calls += 1}`) });
    for (let round = 0; round < 1000; round += 1) server.hasCommands();
    assert.ok(warnings.length > 1 && warnings.length <= 100, `${warnings.length} warnings`);
  });
});
