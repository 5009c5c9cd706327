// The web API of control-board.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { before, describe, it } from 'node:test';
import { getInfo, makeFolder, startServer, TOKEN } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { startWeb } from '../client/systems.ts';
import { exchange, forSuite, INFO, newsOf, NOWHERE, startBoard, untilSystem } from './helpers.ts';
import type { Update } from '../../../board/system.ts';
import type { StartedServer } from '../../helpers.ts';
import type { RawResponse, StartedBoard } from './helpers.ts';

/** The own commands of the last system. */
const EVALUATE = {
  description: 'Runs episodes without learning',
  parameters: { episodes: { type: 'integer', minimum: 1, maximum: 1000, default: 100 }, note: { type: 'string' } },
} as const;

/** The systems of the board, by id. */
const [FIRST, SECOND, LOCKED, ABSENT, DECLARING] = [0, 1, 2, 3, 4] as const;

describe('The web API of control-board', LIMIT, () => {
  const suite = forSuite();
  let board: StartedBoard;
  let systems: [first: StartedServer, second: StartedServer, locked: StartedServer];
  let declaring: StartedServer<string>;
  const take = async (id: typeof FIRST | typeof SECOND | typeof DECLARING): Promise<string> => {
    const { server } = id === DECLARING ? declaring : systems[id];
    const command = await server.nextCommand();
    server.report({});
    return command;
  };

  before(async () => {
    systems = [await startServer(suite), await startServer(suite), await startServer(suite, { token: TOKEN })];
    declaring = await startServer<string>(suite, { commands: { evaluate: EVALUATE } });
    const [own, ...others] = [declaring, ...systems].map(({ port }) => `127.0.0.1:${port}`);
    board = await startBoard(suite, [...others, NOWHERE, own ?? '']);
    await untilSystem(board, ({ status }) => status === 'active', FIRST);
    await untilSystem(board, ({ accepts = [] }) => accepts.length === 1, DECLARING);
    await untilSystem(board, ({ status }) => status === 'active', SECOND);
    await untilSystem(board, ({ status }) => status === 'missing or wrong token', LOCKED);
    await untilSystem(board, ({ status }) => status === 'offline', ABSENT);
  });

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
      [404, 'POST /api/systems/5/answer?id=x'],
      [401, 'POST /api/systems/4/evaluate', none], [401, 'POST /api/systems/4/evaluate', wrong],
      [405, 'GET /api/systems/0/pause'], [405, 'PUT /api/systems/pause'], [405, 'HEAD /api/systems/pause'],
      ...[
        '/nothing', '/api/', '/api/systems/', '/api/systems/0', '/api/systems/5/pause', '/api/systems/-1/pause',
        '/api/systems/0/pause/', '/api/systems/0/stop', '/api/systems/0x0/pause', '/api/systems//pause', '//', '/%2e',
        '/api/systems/99999999999999999999/pause', '/api/systems/0/PAUSE', '/api/systems/0/__proto__', '/page.html',
        '/../package.json', '*', '/api/systems%00', '/api/systems/evaluate', '/api/systems/1/evaluate',
        '/api/systems/answer', '/api/systems/4/answer/',
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
    for (const path of ['systems/5/pause', 'systems/5/answer']) {
      const { error } = await (await board.post(`/api/${path}`)).json() as { error?: string };
      assert.equal(error, 'No system has the id 5: GET /api/systems lists them', path);
    }
  });

  it('shows everything with the view key, and refuses its commands', { skip: lacks('Unix') }, async (t) => {
    const path = join(makeFolder(t), 'view');
    const viewing = await startBoard(t, [`127.0.0.1:${declaring.port}`], ['--view-key-file', path]);
    await viewing.running.shows(/view only .*\n/); // the second line may arrive later
    const [, url, viewKey = ''] = /view only · (http:.*)#([\w-]+) /.exec(viewing.running.output()) ?? [];
    assert.deepEqual([url, viewKey], [viewing.url, readFileSync(path, 'utf8').trim()]);
    assert.equal(statSync(path).mode & 0o777, 0o600);
    const own = await untilSystem(viewing, ({ accepts = [] }) => accepts.length === 1);
    assert.equal((await newsOf(viewing)).canPress, true);
    const get: StartedBoard['get'] = (path_) => viewing.get(path_, { Authorization: `Bearer ${viewKey}` });
    const news = await newsOf({ ...viewing, get });
    assert.equal((await get('/metrics')).status, 200);
    assert.equal(news.canPress, false);
    assert.deepEqual(news.systems[0]?.accepts, own.accepts);
    for (const line of [
      'POST /api/systems/0/pause', 'POST /api/systems/pause', 'POST /api/systems/0/evaluate', 'POST /api/systems',
      'POST /api/systems/0/answer?id=x',
      'POST /metrics', 'POST /nothing',
    ]) {
      const response = await exchange(viewing.port, line, 'Host: localhost', `Authorization: Bearer ${viewKey}`);
      assert.deepEqual([response.status, JSON.parse(response.body)], [
        403, { error: 'The view key permits no commands' },
      ], line);
      checkResponse(response, line);
    }
    assert.equal(declaring.server.hasCommands(), false);
    assert.equal((await viewing.post('/api/systems/0/pause')).status, 202);
    assert.equal(await take(DECLARING), 'pause');
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
    assert.equal(policy.get('default-src'), "'none'");
    assert.equal(policy.get('script-src'), hashOf('script'));
    assert.equal(policy.get('style-src'), hashOf('style'));
    assert.equal(policy.get('connect-src'), "'self'");
    assert.equal(policy.get('require-trusted-types-for'), "'script'");
    for (const name of ['frame-ancestors', 'base-uri', 'form-action']) assert.equal(policy.get(name), "'none'", name);
    assert.doesNotMatch([...policy.values()].join(' '), /unsafe|\*|http|blob/);
    assert.doesNotMatch(page, /<\w[^>]* (?:src|action|on\w+)=|@import|url\(|https?:(?!\/\/www\.w3\.org\/2000\/svg)/);
  });

  it('ignores the bodies of standard commands, even large ones', async () => {
    const init = { method: 'POST', headers: { Authorization: `Bearer ${board.key}` }, body: 'x'.repeat(5_000_000) };
    assert.equal((await fetch(`${board.url}api/systems/0/pause`, init)).status, 202);
    assert.equal(await take(FIRST), 'pause');
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
    let askedAt = 0;
    while (changed.length > 0) {
      askedAt = performance.now();
      ({ version, systems: changed } = await newsOf(one, version, 1));
    }
    assert.ok(performance.now() - askedAt > 990, 'without news, after the wait');
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
    const { server } = declaring;
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
    const noJson = ['x', '[]', 'null', '7', '"x"', '{', '{"a":1}{}', '\ufeff', noText];
    for (const [status, body] of [
      [202, exact], [413, `${exact} `], [413, 'x'.repeat(5_000_000)],
      ...noJson.map((text) => [400, text] as const),
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
    const { server } = declaring;
    const areDone = ({ sent }: Update): boolean => sent.every(({ state }) => state !== 'sent');
    await untilSystem(board, areDone, DECLARING); // commands of other tests
    for (const [body, text, parameter] of [
      ['', 'evaluate: note must be a string, got nothing', 'note'],
      ['{"episodes":5000,"note":""}', 'evaluate: episodes must be an integer from 1 to 1000, got 5000', 'episodes'],
      ['{"episodes":"5","note":""}', 'evaluate: episodes must be an integer from 1 to 1000, got "5"', 'episodes'],
      ['{"note":"","__proto__":{}}', /^evaluate: .*__proto__/, undefined],
    ] as const) {
      const { id } = await (await board.post(path, {}, body)).json() as { id: number };
      const isShown = ({ sent }: Update): boolean => sent.some((entry) => {
        return typeof text === 'string' ? entry.text === text : text.test(entry.text);
      });
      const { sent } = await untilSystem(board, isShown, DECLARING);
      const shown = sent.filter(({ command }) => command === 'evaluate');
      assert.deepEqual(shown.map((entry) => [entry.id, entry.state, entry.parameter]), [[id, 'failed', parameter]]);
    }
    await board.post(path, {}, '{"note":"x"}');
    await server.nextCommand();
    const listed = await untilSystem(board, ({ commands: [latest] }) => latest?.state === 'running', DECLARING);
    const { text: running = '' } = listed.commands[0] ?? {};
    assert.match(running, /^evaluate \{"episodes":100,"note":"x"\} by .* running for \d+ s$/);
    server.report({ value: { meanReturn: 497.1 } });
    const isListed = ({ commands: [latest] }: Update): boolean => {
      return / done in \d\.\d\d s: \{"meanReturn":497\.1\}, \d+ s ago$/.test(latest?.text ?? '');
    };
    await untilSystem(board, (system) => isListed(system) && areDone(system), DECLARING);
    await board.post(`/api/systems/${DECLARING}/save-state`);
    await take(DECLARING);
    const { sent } = await untilSystem(board, areDone, DECLARING);
    assert.deepEqual(sent.map(({ command }) => command), ['evaluate', 'save-state']);
    assert.match(sent[0]?.text ?? '', /^evaluate: \{"meanReturn":497\.1\} \(\d+\.\d s\)$/);
  });

  it('sends the declarations to a page that lacks them, and again after a change', async () => {
    const { server } = declaring;
    const described = (system: Update): unknown[] | undefined => system.accepts?.map(({ name }) => name);
    let { version, systems: all } = await newsOf(board);
    assert.deepEqual(all.map(described), [[], [], [], [], ['evaluate']]);
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
    await untilSystem(board, ({ accepts = [] }) => accepts.length === 1, DECLARING);
  });

  it('sends no save to a program that cannot save, until it can', async (t) => {
    const run = { pid: 1, started: '2026-11-21', canSave: false };
    const web = await startWeb(t, () => ({ ...INFO, detail: { run }, result: 'ok', state: 'done' }));
    const received = (): string[] => web.requests.filter((line) => line.startsWith('POST'));
    const able = await startServer(t);
    const one = await startBoard(t, [web.target, `127.0.0.1:${able.port}`]);
    const hint = 'start control-run with --save-signal or --save-command';
    await untilSystem(one, ({ canSave }) => !canSave);
    const refused = await one.post('/api/systems/0/save-state');
    assert.deepEqual([refused.status, await refused.json()], [409, { error: `The program cannot save: ${hint}` }]);
    assert.equal((await one.post('/api/systems/save-state')).status, 202);
    assert.equal(await able.server.nextCommand(), 'save-state');
    able.server.report({});
    assert.equal((await one.post('/api/systems/0/pause')).status, 202);
    run.canSave = true;
    await untilSystem(one, ({ canSave }) => canSave);
    assert.equal((await one.post('/api/systems/0/save-state')).status, 202);
    await until(() => received().length === 2);
    assert.deepEqual(received(), ['POST /api/pause', 'POST /api/save-state']);
  });

  it('sends a command to all systems except offline ones', async () => {
    const { sent: before } = await untilSystem(board, () => true, ABSENT);
    const response = await board.post('/api/systems/pause?reason=lunch');
    assert.deepEqual([response.status, await response.json()], [202, { result: 'sent' }]);
    for (const id of [FIRST, SECOND, DECLARING] as const) {
      assert.equal(await take(id), 'pause');
      const { port } = id === DECLARING ? declaring : systems[id];
      assert.equal((await getInfo(port)).commands.at(-1)?.reason, 'lunch');
    }
    const { sent } = await untilSystem(board, () => true, ABSENT);
    assert.deepEqual(sent, before);
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
