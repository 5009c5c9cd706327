// The web API of control-board.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { before, describe, it } from 'node:test';
import { assertHarmless, getInfo, HOSTILE, makeFolder, startServer, TOKEN } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { type Respond, startWeb, type Web } from '../../puppet.ts';
import { LIMIT, until } from '../../wait.ts';
import { entry, HOSTILE_LINES, infoOf, NO_LOG, outcome, writeLog } from '../logs.ts';
import { exchange, forSuite, INFO, newsOf, NOWHERE, startBoard, untilSystem } from './helpers.ts';
import type { LogPart, Update } from '../../../board/system.ts';
import type { StartedServer } from '../../helpers.ts';
import type { RawResponse, StartedBoard } from './helpers.ts';

/** The own command of a system. */
const EVALUATE = {
  description: 'Runs episodes without learning',
  parameters: { episodes: { type: 'integer', minimum: 1, maximum: 1000, default: 100 }, note: { type: 'string' } },
} as const;

/** The systems of the board, by id. */
const [FIRST, SECOND, LOCKED, ABSENT, DECLARING, FAKE] = [0, 1, 2, 3, 4, 5] as const;
const NO_SYSTEM = 6;

describe('The web API of control-board', LIMIT, () => {
  const suite = forSuite();
  let board: StartedBoard;
  let viewKey: string;
  let systems: Record<typeof FIRST | typeof SECOND | typeof DECLARING, StartedServer<string>>;
  let web: Web; // of the fake system
  let reply: Respond = () => ({ result: 'ok', state: 'done' }); // of the fake system to commands
  const report: Record<string, unknown> = { ...INFO };

  before(async () => {
    const commands = { evaluate: EVALUATE };
    systems = [await startServer(suite), await startServer(suite)] as unknown as typeof systems;
    systems[DECLARING] = await startServer<string>(suite, { name: 'cleaner', commands });
    const { port: locked } = await startServer(suite, { token: TOKEN });
    web = await startWeb(suite, (request) => (request.method === 'POST' ? reply(request) : report));
    const addresses = Object.values(systems).map(({ port }) => `127.0.0.1:${port}`);
    const [first, second, own] = addresses as [string, string, string];
    const targets = [first, second, `127.0.0.1:${locked}`, NOWHERE, own, web.target];
    const path = join(makeFolder(suite), 'view');
    const options = lacks('Unix') === false ? ['--view-key-file', path] : [];
    board = await startBoard(suite, targets, options, { CONTROL_BY: 'ana@phone' });
    viewKey = options.length > 0 ? readFileSync(path, 'utf8').trim() : '';
    for (const id of [FIRST, SECOND, FAKE]) await untilSystem(board, ({ status }) => status === 'active', id);
    await untilSystem(board, ({ accepts = [] }) => accepts.length === 1, DECLARING);
    await untilSystem(board, ({ status }) => status === 'missing or wrong token', LOCKED);
    await untilSystem(board, ({ status }) => status === 'offline', ABSENT);
  });

  const take = async (id: keyof typeof systems): Promise<string> => {
    const { server } = systems[id];
    const command = await server.nextCommand();
    server.report({});
    return command;
  };

  it('returns these responses', async () => {
    const [none, wrong] = ['X: x', `Authorization: Bearer ${board.key}x`];
    const rows: [status: number, line: string, field?: string][] = [
      [200, 'GET /', none], [200, 'HEAD /', none], [200, 'GET /?a=b', none], [405, 'POST /', none], [405, 'PUT /'],
      [405, 'OPTIONS /', none],
      [200, 'GET /api/systems'], [200, 'GET /api/systems?since=0'], [200, 'GET /api/systems?since=9&x=y'],
      [200, 'GET /api/systems?since=999999999999999'],
      ...['', '-1', '1.5', 'x', '1e3', '9999999999999999', '%00'].map((since): typeof rows[number] => {
        return [400, `GET /api/systems?since=${since}`];
      }),
      [405, 'POST /api/systems'], [405, 'OPTIONS /api/systems'],
      [200, 'GET /metrics'], [405, 'POST /metrics'], [401, 'GET /metrics', none], [401, 'GET /metrics', wrong],
      [401, 'GET /api/systems', none], [401, 'GET /api/systems?since=x', wrong], [401, 'POST /api/systems', none],
      [401, 'OPTIONS /api/systems', none], [401, 'GET /nothing', none],
      [401, 'POST /api/systems/0/pause', wrong], [401, 'POST /api/systems/pause', none],
      [202, 'POST /api/systems/0/save-state'], [202, 'POST /api/systems/00/save-state'],
      [202, 'POST /api/systems/4/evaluate'], [405, 'GET /api/systems/4/evaluate'],
      [404, 'POST /api/systems/4/answer'], [404, 'POST /api/systems/4/answer?id=x'], [405, 'GET /api/systems/4/answer'],
      [401, 'POST /api/systems/4/answer?id=x', none], [502, 'POST /api/systems/2/answer?id=x'],
      [404, 'POST /api/systems/6/answer?id=x'], [404, 'POST /api/systems/4/withdraw?id=x'],
      [405, 'GET /api/systems/4/withdraw'], [401, 'POST /api/systems/4/withdraw?id=x', none],
      [401, 'POST /api/systems/4/evaluate', none], [401, 'POST /api/systems/4/evaluate', wrong],
      [405, 'GET /api/systems/0/pause'], [405, 'PUT /api/systems/pause'], [405, 'HEAD /api/systems/pause'],
      [200, 'GET /api/logs/0'], [200, 'GET /api/logs/0?x=y'], [401, 'GET /api/logs/0', wrong],
      [405, 'POST /api/logs/0'], [405, 'HEAD /api/logs/0'], [200, 'GET /api/stacks/0'], [404, 'GET /api/stacks/9'],
      [401, 'GET /api/stacks/0', wrong], [405, 'POST /api/stacks/0'], [404, 'GET /api/stack/0'],
      ...['9', '-1', '', '0/', '0x0', 'x', '..', '9'.repeat(20), '0%00', '__proto__'].map((id): typeof rows[0] => {
        return [404, `GET /api/logs/${id}`];
      }),
      ...[
        '/nothing', '/api/', '/api/systems/', '/api/systems/0', '/api/systems/6/pause', '/api/systems/-1/pause',
        '/api/systems/0/pause/', '/api/systems/0/stop', '/api/systems/0x0/pause', '/api/systems//pause', '//', '/%2e',
        '/api/systems/99999999999999999999/pause', '/api/systems/0/PAUSE', '/api/systems/0/__proto__', '/page.html',
        '/../package.json', '*', '/api/systems%00', '/api/systems/evaluate', '/api/systems/1/evaluate',
        '/api/systems/answer', '/api/systems/4/answer/', '/api/systems/withdraw', '/api/systems/4/withdraw/',
        '/api/systems/4/EVALUATE', '/api/systems/4/evaluate/', '/api/systems/4/evaluate-', '/api/systems/4/constructor',
        '/api/systems/4/toString', '/api/systems/4/status', '/api/systems/4/info', '/api/systems/4/0',
      ].flatMap((path): typeof rows => [[404, `GET ${path}`], [404, `POST ${path}`]]),
    ];
    for (const [status, line, field = `Authorization: Bearer ${board.key}`] of rows) {
      const response = await exchange(board.port, line, 'Host: localhost', field);
      assert.equal(response.status, status, `${line} ${field} ${response.body}`);
      checkResponse(response, line);
      assert.ok(!response.text.includes(board.key), 'the key is nowhere');
    }
    assert.deepEqual([await take(FIRST), await take(FIRST)], ['save-state', 'save-state']);
    for (const path of ['pause', 'answer', 'withdraw']) {
      const { error } = await (await board.post(`/api/systems/${NO_SYSTEM}/${path}`)).json() as { error?: string };
      assert.equal(error, `No system has the id ${NO_SYSTEM}: GET /api/systems lists them`, path);
    }
  });

  it('shows everything with the view key, and refuses its commands', { skip: lacks('Unix') }, async (t) => {
    const get: StartedBoard['get'] = (path) => board.get(path, { Authorization: `Bearer ${viewKey}` });
    await board.running.shows(/view only .*\n/); // the second line may arrive later
    const [, url, shown] = /view only · (http:.*)#([\w-]+) /.exec(board.running.output()) ?? [];
    assert.deepEqual([url, shown], [board.url, viewKey]);
    assert.equal((await newsOf(board)).canPress, true);
    const news = await newsOf({ ...board, get });
    assert.deepEqual([news.canPress, news.systems[DECLARING]?.accepts?.length], [false, 1]);
    for (const path of ['/metrics', '/api/logs/0']) assert.equal((await get(path)).status, 200, path);
    for (const path of [
      '/api/systems/0/pause', '/api/systems/pause', '/api/systems/4/evaluate', '/api/systems', '/metrics', '/nothing',
      '/api/systems/4/answer?id=x', '/api/systems/4/withdraw?id=x', '/api/logs/0',
    ]) {
      const line = `POST ${path}`;
      const response = await exchange(board.port, line, 'Host: localhost', `Authorization: Bearer ${viewKey}`);
      assert.equal(response.body, '{"error":"The view key permits no commands"}', line);
      assert.equal(response.status, 403);
      checkResponse(response, line);
    }
    await board.post('/api/systems/0/pause');
    assert.equal(await take(FIRST), 'pause', 'the first command that arrives');
    const path = join(makeFolder(t), 'view');
    await startBoard(t, [NOWHERE], ['--view-key-file', path]);
    assert.equal(statSync(path).mode & 0o777, 0o600);
  });

  it('serves a page that holds no secret, and runs only scripts and styles with its hashes', async () => {
    const response = await fetch(board.url);
    const page = await response.text();
    assert.ok(!page.includes(board.key) && !page.includes(NOWHERE));
    const policy = new Map(response.headers.get('content-security-policy')?.split('; ').map((directive) => {
      const [name = '', ...values] = directive.split(' ');
      return [name, values.join(' ')];
    }));
    const hashOf = (element: string): string => {
      const all = page.match(new RegExp(`(?<=<${element}\\b[^>]*>)[^]*?(?=</${element}>)`, 'g')) ?? [];
      assert.equal(all.length, 1, `one ${element}`);
      return `'sha256-${createHash('sha256').update(all[0] as string).digest('base64')}'`;
    };
    for (const [name, value] of [
      ['default-src', "'none'"], ['script-src', hashOf('script')], ['style-src', hashOf('style')],
      ['connect-src', "'self'"], ['require-trusted-types-for', "'script'"], ['frame-ancestors', "'none'"],
      ['base-uri', "'none'"], ['form-action', "'none'"],
    ] as const) {
      assert.equal(policy.get(name), value, name);
    }
    assert.doesNotMatch([...policy.values()].join(' '), /unsafe|\*|http|blob/);
    assert.doesNotMatch(page, /<\w[^>]* (?:src|action|on\w+)=|@import|url\(|https?:(?!\/\/www\.w3\.org\/2000\/svg)/);
  });

  it('responds at once if there is news, otherwise when some arrives or after the wait', async (t) => {
    // Their ages stay the same for a day: else, these are news each second.
    const quiet = (): object => ({ ...INFO, heardAt: undefined, result: 'ok', state: 'done' });
    const webs = [await startWeb(t, quiet), await startWeb(t, quiet)];
    const one = await startBoard(t, [...webs.map(({ target }) => target), NOWHERE]);
    const all = await newsOf(one, 0, 30);
    assert.deepEqual([all.ids, all.systems.map(({ id }) => id)], [[0, 1, 2], [0, 1, 2]]);
    assert.ok(Number.isSafeInteger(all.version));
    let { version, systems: changed } = all;
    while (changed.length > 0) ({ version, systems: changed } = await newsOf(one, version, 1)); // until it has waited
    assert.deepEqual((await newsOf(one, version)).systems, [], 'without a wait');
    assert.equal((await newsOf(one, 999_999_999_999_999, 30)).systems.length, 3, 'a version in the future');

    const waiting = newsOf(one, version, 30);
    await one.post('/api/systems/1/save-state');
    const { systems: [first, ...others], version: later } = await waiting;
    assert.deepEqual([first?.id, others], [1, []], 'only what has changed');
    assert.equal(first?.sent[0]?.command, 'save-state');
    assert.ok(later > version);
    await until(() => webs[1]?.requests.includes('POST /api/save-state') === true);
  });

  it('passes on the arguments of an own command unchanged, and no other body', async () => {
    const path = `/api/systems/${DECLARING}/evaluate`;
    const { server } = systems[DECLARING];
    const init = { method: 'POST', headers: { Authorization: `Bearer ${board.key}` }, body: 'x'.repeat(5_000_000) };
    assert.equal((await fetch(`${board.url}api/systems/0/pause`, init)).status, 202);
    assert.equal(await take(FIRST), 'pause', 'which has no arguments');
    while (server.hasCommands()) await take(DECLARING);
    for (const [body, expected] of [
      ['{"note":"a"}', { episodes: 100, note: 'a' }],
      [' {\n"episodes": 1e2, "note": "\\ud83d\\ude00\\u0000<b>"} ', { episodes: 100, note: '😀\0<b>' }],
    ] as const) {
      const response = await board.post(`${path}?reason=why`, { 'Content-Type': 'text/html' }, body);
      assert.equal(response.status, 202, body);
      assert.equal(await server.nextCommand(), 'evaluate');
      const { arguments: values, reason } = server.request ?? assert.fail();
      assert.deepEqual([{ ...values }, reason], [expected, 'why']);
      server.report({ value: { meanReturn: 497.1 } });
    }
    const exact = JSON.stringify({ note: '' }).padEnd(4096);
    const noText = Buffer.from('{"note":"\xff"}', 'latin1');
    for (const [status, body] of [
      [202, exact], [413, `${exact} `], [413, 'x'.repeat(5_000_000)],
      ...['x', '[]', 'null', '7', '"x"', '{', '{"a":1}{}', '\ufeff', noText].map((text) => [400, text] as const),
    ] as [number, string | Buffer][]) {
      const response = await board.post(path, {}, body);
      assert.equal(response.status, status, String(body).slice(0, 50));
      if (status !== 202) assert.match(String(Object(await response.json()).error), /^The (body|arguments) \w+/);
    }
    assert.equal(await take(DECLARING), 'evaluate');
    assert.equal(server.hasCommands(), false);
  });

  it('shows the outcome of an own command until the next one of its name, and which argument is invalid', async () => {
    const path = `/api/systems/${DECLARING}/evaluate`;
    const { server } = systems[DECLARING];
    const areDone = ({ sent }: Update): boolean => sent.every(({ state }) => state !== 'sent');
    await untilSystem(board, areDone, DECLARING); // commands of other tests
    for (const [body, text, parameter] of [
      ['', 'evaluate: note must be a string, got nothing', 'note'],
      ['{"episodes":5000,"note":""}', 'evaluate: episodes must be an integer from 1 to 1000, got 5000', 'episodes'],
      ['{"note":"","__proto__":{}}', /^evaluate: .*__proto__/, ''],
    ] as const) {
      const { id } = await (await board.post(path, {}, body)).json() as { id: number };
      const { sent } = await untilSystem(board, (one) => areDone(one) && one.sent.some((command) => command.id === id),
        DECLARING);
      const [shown, ...others] = sent.filter(({ command }) => command === 'evaluate');
      assert.deepEqual([shown?.id, shown?.state, shown?.parameter, others], [id, 'failed', parameter, []]);
      assert.equal(shown?.isReported, false);
      if (typeof text === 'string') assert.equal(shown?.text, text);
      else assert.match(shown?.text ?? '', text);
    }
    await board.post(path, {}, '{"note":"x"}');
    await server.nextCommand();
    const listed = await untilSystem(board, ({ commands: [latest] }) => latest?.state === 'running', DECLARING);
    const { text: running = '' } = listed.commands[0] ?? {};
    assert.match(running, /^evaluate \{"episodes":100,"note":"x"\} by ana@phone running for \d+ s$/);
    server.report({ value: { meanReturn: 497.1 } });
    const isListed = ({ commands }: Update): boolean => commands.some(({ text }) => text.includes('"note":"x"'));
    await untilSystem(board, (system) => areDone(system) && !isListed(system), DECLARING); // `sent` has its outcome
    await board.post(`/api/systems/${DECLARING}/save-state`);
    await take(DECLARING);
    const { sent } = await untilSystem(board, areDone, DECLARING);
    assert.deepEqual(sent.map(({ command }) => command), ['evaluate', 'save-state']);
    assert.match(sent[0]?.text ?? '', /^evaluate: \{"meanReturn":497\.1\} \(\d+\.\d s\)$/);
  });

  it('sends the declarations to a page that lacks them, and again after a change', async () => {
    const { server } = systems[DECLARING];
    const described = (system: Update): unknown[] | undefined => system.accepts?.map(({ name }) => name);
    let { version, systems: all } = await newsOf(board);
    assert.deepEqual(all.map(described), [[], [], [], [], ['evaluate'], []]);
    assert.deepEqual(all[DECLARING]?.accepts?.[0]?.parameters, [
      {
        name: 'episodes', description: '', hint: 'from 1 to 1000', type: 'integer', minimum: 1, maximum: 1000,
        default: 100,
      },
      { name: 'note', description: '', hint: 'required', type: 'string' },
    ]);
    const next = async (): Promise<Update> => {
      for (;;) {
        const news = await newsOf(board, version, 30);
        ({ version } = news);
        const update = news.systems.find(({ id }) => id === DECLARING);
        if (update !== undefined) return update;
      }
    };
    await board.post(`/api/systems/${DECLARING}/pause`);
    await take(DECLARING);
    assert.equal(described(await next()), undefined);
    const text = 'a\u001b\n\u202e<b>'; // a page sends it back
    const mode = { type: 'string', default: text, maxLength: 9, enum: ['', text] } as const;
    server.commands = { 'set-2': { parameters: { mode } } };
    let accepts: Update['accepts']; // the pause may still be news
    while (accepts === undefined) ({ accepts } = await next());
    const parameters = [{ name: 'mode', description: '', hint: '', ...mode }];
    assert.deepEqual(accepts, [{ name: 'set-2', description: '', parameters }]);
    assert.equal((await board.post(`/api/systems/${DECLARING}/evaluate`)).status, 404);
    server.commands = { evaluate: EVALUATE };
    await untilSystem(board, (system) => described(system)?.join() === 'evaluate', DECLARING);
  });

  it('sends a command to all systems except offline ones and those that cannot do it', async () => {
    const hint = 'start control-run with --save-signal or --save-command';
    const run = { pid: 1, started: '2026-11-21', canSave: false };
    report['detail'] = { run };
    await untilSystem(board, ({ canSave }) => !canSave, FAKE);
    const refused = await board.post(`/api/systems/${FAKE}/save-state`);
    assert.deepEqual([refused.status, await refused.json()], [409, { error: `The program cannot save: ${hint}` }]);
    const { sent: before } = await untilSystem(board, () => true, ABSENT);
    web.requests.length = 0;
    for (const command of ['save-state', 'pause']) {
      const response = await board.post(`/api/systems/${command}?reason=lunch`);
      assert.deepEqual([response.status, await response.json()], [202, { result: 'sent' }]);
      for (const id of [FIRST, SECOND, DECLARING] as const) {
        assert.equal(await take(id), command);
        assert.equal((await getInfo(systems[id].port)).commands.at(-1)?.reason, 'lunch');
      }
    }
    assert.deepEqual((await untilSystem(board, () => true, ABSENT)).sent, before);
    run.canSave = true;
    await untilSystem(board, ({ canSave }) => canSave, FAKE);
    await board.post(`/api/systems/${FAKE}/save-state`);
    const by = 'by=ana%40phone';
    await until(() => web.requests.includes('POST /api/save-state'), () => web.requests.join());
    assert.deepEqual(web.requests.filter((line) => line.startsWith('POST')), [
      `POST /api/pause?${by}&reason=lunch`, 'POST /api/save-state',
    ]);
  });

  it('shows a question with what it takes, and sends the answer, which may be late', async (t) => {
    const { server, port, client } = await startServer(t, { name: 'asker' });
    const one = await startBoard(t, [`127.0.0.1:${port}`], [], { CONTROL_BY: 'ana@phone' });
    const parameters = { file: { type: 'string', enum: ['a', 'b'] }, note: { type: 'string', default: '' } } as const;
    const ends = async (text: string): Promise<Update> => untilSystem(one, ({ askEnds }) => {
      return askEnds.at(-1)?.text === text;
    });
    const open = async (): Promise<Update['asks'][number]> => {
      return (await untilSystem(one, ({ asks }) => asks.length === 1)).asks[0] as Update['asks'][number];
    };
    server.ask('Delete?', { timeout: 1 });
    assert.deepEqual((await ends('expired')).asks, []);
    const asked = server.ask('Which one?', { parameters, timeout: 900_000 });
    const { id, times, ...rest } = await open();
    assert.deepEqual(rest, { message: 'Which one?', parameters: [
      { name: 'file', description: '', hint: 'required', ...parameters.file },
      { name: 'note', description: '', hint: '', ...parameters.note },
    ] });
    assert.match(times, /^asked \d+ s ago, expires in 14 min$/);
    const long = JSON.stringify({ file: 'a', note: 'x'.repeat(2048) });
    for (const [query, body, status, response] of [
      [`?id=${id}`, '{"file":"c"}', 400, { error: 'answer: file must be one of a, b, got "c"', parameter: 'file' }],
      ['?id=k9', '{}', 404, { error: `There is no question k9: open are ${id}` }],
      ['', '{"file":"a"}', 404, { error: `There is no question without an id: open are ${id}` }],
      [`?id=${id}`, 'x', 400, { error: 'The body must be a JSON object' }],
      [`?id=${id}`, long, 413, { error: 'The arguments exceed 2048 bytes' }],
      [`?id=${id}&reason=looked&by=eve`, '{"file":"a"}', 200, { result: 'ok' }],
      [`?id=${id}`, '{"file":"b"}', 409, { error: `ana@phone has answered ${id}` }],
    ] as const) {
      const answer = await one.post(`/api/systems/0/answer${query}`, {}, body);
      assert.deepEqual([answer.status, await answer.json()], [status, response]);
    }
    const { arguments: values, by, reason } = await asked;
    assert.deepEqual([{ ...values }, by, reason], [{ file: 'a', note: '' }, 'ana@phone', 'looked']);
    const { askEnds, asks, commands: [listed] } = await ends('file=a, note="", by ana@phone (looked)');
    assert.deepEqual([asks, askEnds.at(-1)?.isAnswered, askEnds.at(-1)?.id, listed?.state], [[], true, id, 'answer']);
    assert.match(listed?.text ?? '', /^\d+ s ago · answer by ana@phone \(looked\): file=a, note="" \(Which one\?\)$/);
    server.ask('Go on?');
    await client.request('answer', { id: (await open()).id, arguments: { approved: false }, by: 'ben@desk' });
    await ends('No, by ben@desk');
    server.ask('Go on?');
    await open();
    await server.close();
    await untilSystem(one, ({ status, asks: left }) => status === 'offline' && left.length === 0);
  });

  it('refuses an answer with the sentence of the system, and never with a status that means the key', async () => {
    const rows: [code: number, error: string, expected: number][] = [
      [409, 'a pause waits', 409], [404, 'There is no question x: open are none', 404], [401, 'Missing token', 502],
      [403, 'Host not allowed', 502], [500, 'Internal server error', 502], [503, 'full', 502], [409, HOSTILE, 409],
    ];
    const answer = async (id: number | string = FAKE): Promise<[status: number, body: Record<string, string>]> => {
      const response = await board.post(`/api/systems/${id}/answer?id=x&reason=y`, {}, '{}');
      return [response.status, await response.json() as Record<string, string>];
    };
    web.requests.length = 0;
    for (const [code, error, expected] of rows) {
      reply = () => ({ code, error, parameter: error });
      const [status, body] = await answer();
      assert.equal(status, expected, error);
      if (error !== HOSTILE) assert.match(body['error'] ?? '', new RegExp(error));
      assertHarmless(JSON.stringify(body));
    }
    reply = () => null; // cuts the connection
    const [status, { error = '' }] = await answer();
    assert.equal(status, 502);
    assert.match(error, /^answer sent, but no response .*: it may still take effect$/);
    assert.deepEqual([(await answer(NO_SYSTEM))[0], (await board.post('/api/systems/answer?id=x', {}, '{}')).status], [
      404, 404, // not to all systems
    ]);
    const posted = new Set(web.requests.filter((request) => request.startsWith('POST')));
    assert.deepEqual([...posted], ['POST /api/answer?id=x&by=ana%40phone&reason=y']);
  });

  it('says what has waited for 10 s and can take effect in a step, and sends that', async (t) => {
    const rows: [late: string, version: string, command: string, seconds: number, detail: object | null][] = [
      ['pause', '0.26.1', 'pause', 11, { run: {} }], ['shutdown', '0.26.1', 'shutdown', 11, null],
      ['', '0.26.1', 'pause', 11, { epoch: 7 }], ['', '0.25.1', 'shutdown', 11, null],
      ['', '0.26.1', 'shutdown', 5, null], ['', '0.26.1', 'save-state', 11, { run: {} }],
    ];
    const webs = await Promise.all(rows.map(([, version, command, seconds, detail]) => {
      return startWeb(t, () => {
        const at = new Date(Date.now() - 1000 * seconds).toISOString();
        return { ...INFO, version, detail, commands: [{ id: 'k3f-1', command, state: 'running', at }] };
      });
    }));
    const one = await startBoard(t, webs.map(({ target }) => target));
    for (const [id, [late]] of rows.entries()) {
      const system = await untilSystem(one, ({ status, commands }) => status === 'active' && commands.length === 1, id);
      assert.equal(system.late, late, `${id}`);
    }
    for (const path of ['pause?within=5', 'pause?within=', 'shutdown?within=00']) {
      const response = await one.post(`/api/systems/0/${path}`);
      assert.deepEqual([response.status, await response.json()], [400, { error: 'within must be 0' }]);
    }
    assert.equal((await one.post('/api/systems/0/pause?reason=x&within=0')).status, 202);
    const sent = (): string[] => webs[0]?.urls.filter((url) => url.startsWith('POST')) ?? [];
    await until(() => sent().length > 0);
    assert.deepEqual(sent().map((url) => url.replace(/by=[^&]*/, '')), ['POST /api/pause?&reason=x&within=0']);
  });

  it('pauses with an end only what knows that, and takes back what waits', async (t) => {
    const commands = ['k3f-7', 'k3f-i8', '', '<b>'].map((id) => ({ id, command: 'save-state', state: 'waiting' }));
    const webs = await Promise.all(['0.27.0', '0.26.9'].map((version) => {
      return startWeb(t, () => ({ ...INFO, version, commands, result: 'ok', state: 'done' }));
    }));
    const one = await startBoard(t, webs.map(({ target }) => target));
    const idsOf = async (index: number): Promise<unknown[]> => {
      const { commands: listed } = await untilSystem(one, ({ commands: shown }) => shown.length === 4, index);
      return listed.flatMap(({ id, mayWithdraw }) => (mayWithdraw ? [id] : []));
    };
    assert.deepEqual([await idsOf(0), await idsOf(1)], [['k3f-7'], []]);
    for (const value of ['', '0', '-1', '1.5', '1h', '2592001']) {
      const response = await one.post(`/api/systems/0/pause?for=${value}`);
      assert.deepEqual([response.status, await response.json()], [400, { error: 'for must be an integer from 1 to 2592000' }]);
    }
    assert.equal((await one.post('/api/systems/0/shutdown?for=60')).status, 400);
    assert.equal((await one.post('/api/systems/pause?reason=x&for=7200')).status, 202);
    const old = await untilSystem(one, ({ sent }) => sent.at(-1)?.state === 'failed', 1);
    assert.equal(old.sent.at(-1)?.text, 'not paused: an end requires control.ts 0.27 or later');
    const withdrawn = await one.post('/api/systems/0/withdraw?id=k3f-7&reason=y');
    assert.deepEqual([withdrawn.status, await withdrawn.json()], [200, { result: 'ok' }]);
    const sent = (index: number): string[] => {
      const posted = webs[index]?.urls.filter((url) => url.startsWith('POST')) ?? [];
      return posted.map((url) => url.replace(/by=[^&]*/, ''));
    };
    await until(() => sent(0).length === 2);
    assert.deepEqual([sent(0).sort(), sent(1)], [[
      'POST /api/pause?&reason=x&for=7200', 'POST /api/withdraw?id=k3f-7&&reason=y',
    ], []]);
  });

  it('returns the latest 50 entries of a log on this machine, and nothing of other files', {
    skip: lacks('Unix'),
  }, async (t) => {
    const hostile = writeLog(t, ...HOSTILE_LINES, outcome(1, 'last'));
    const path = writeLog(
      t, ...Array.from({ length: 60 }, (_, index) => entry(9, 'status', { status: `s${index}` })),
      ...Array.from({ length: 3 }, (_, index) => outcome(3 - index, `k${index}`, { command: 'save-state' })),
    );
    const infos: [info: object, note: string, count: number][] = [
      [infoOf(path), '', 50], [infoOf(hostile), '', 50], [infoOf(path, { host: 'gpu1' }), `logs on gpu1 to ${path}`, 0],
      [infoOf(path, { log: undefined }), NO_LOG, 0],
      [infoOf('/etc/passwd'), 'no readable entries in /etc/passwd', 0],
      [infoOf('/dev/zero'), 'no readable entries in /dev/zero', 0], [infoOf(hostile, { name: 'other' }), '', 1],
    ];
    const stack = ['inner (file:///t.mjs:1:2)', HOSTILE];
    const webs = await Promise.all(infos.map(([info]) => startWeb(t, () => ({ ...INFO, ...info, stack }))));
    const one = await startBoard(t, webs.map(({ target }) => target));
    const logs: LogPart[] = [];
    for (const [id, [info, note, count]] of infos.entries()) {
      const { hasLog } = await untilSystem(one, ({ status }) => status === 'active', id);
      assert.equal(hasLog, Object(info).log !== undefined);
      const log = await (await one.get(`/api/logs/${id}`)).json() as LogPart;
      assert.deepEqual([log.note, log.entries.length], [note, count], `${id}`);
      for (const { text } of log.entries) assertHarmless(text);
      logs.push(log);
      const { note: fault, entries: [frame, other] } = await (await one.get(`/api/stacks/${id}`)).json() as LogPart;
      assert.deepEqual([fault, frame], ['', { text: stack[0] }]);
      assertHarmless(other?.text ?? '');
    }
    assert.doesNotMatch(JSON.stringify(logs.slice(0, -1)), /foreign|root:/);
    assert.deepEqual(logs.at(-1)?.entries.map(({ text }) => text), ['foreign']);
    const [first, ...others] = logs[0]?.entries.reverse() ?? [];
    assert.deepEqual([first?.text, first?.count], ['save-state by ana done in 0.25 s', 3]);
    assert.ok(Number(first?.at) - Number(first?.firstTime) > 119_000, 'from the first to the last');
    assert.deepEqual([others[0]?.text, others[0]?.count, others.at(-1)?.text], ['s59', undefined, 's11']);
  });
});

/** The headers that every response must have. */
function checkResponse({ status, headers, body }: RawResponse, line: string): void {
  assert.equal(headers['cache-control'], 'no-store');
  assert.equal(headers['cross-origin-resource-policy'], 'same-origin');
  assert.equal(headers['referrer-policy'], 'no-referrer');
  assert.equal(headers['x-content-type-options'], 'nosniff');
  assert.ok(Object.keys(headers).every((name) => !/^access-control|^set-cookie|^server|^x-powered/.test(name)));
  assert.equal(headers['www-authenticate'], status === 401 ? 'Bearer' : undefined);
  const allow = line.includes('/api/systems/') ? 'POST' : /\/(api|metrics)/.test(line) ? 'GET' : 'GET, HEAD';
  assert.equal(headers['allow'], status === 405 ? allow : undefined, line);
  const length = Number(headers['content-length']);
  if (line.startsWith('HEAD')) return assert.ok(body === '' && length > 0);
  assert.equal(length, Buffer.byteLength(body));
  if (headers['content-type']?.startsWith('text/html') === true) return assert.ok(headers['content-security-policy']);
  if (headers['content-type']?.startsWith('text/plain') === true) return assert.equal(status, 200);
  assert.equal(headers['content-type'], 'application/json');
  const value = JSON.parse(body) as Record<string, unknown>;
  if (status >= 400) assert.deepEqual(Object.keys(value), ['error']);
}
