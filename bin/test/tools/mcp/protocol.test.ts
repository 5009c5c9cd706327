// The protocol of control-mcp in both eras: methods, errors, lines, ids, cancellation and the end of the input; and its
// command line.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { makeFolder, runProgram, start } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { parseCommandLine } from '../../../mcp/options.ts';
import { until } from '../../wait.ts';
import { ACTIVE, startSilent, startWeb } from '../client/systems.ts';
import { AT_ONCE, failureOf, LEGACY, metaOf, MODERN, startMcp, valueOf } from './helpers.ts';
import type { Id, Mcp, Message } from './helpers.ts';
import type { TestContext } from 'node:test';

const SUITE = { ...AT_ONCE, skip: lacks('Unix') };

const PARSE = -32700;
const INVALID = -32600;
const NO_METHOD = -32601;
const PARAMS = -32602;
const INTERNAL = -32603;
const VERSION = -32022;

const PACKAGE = JSON.parse(readFileSync('package.json', 'utf8')) as { version: string };
const META = 'io.modelcontextprotocol';

/** Fields of a result that only one era has. */
const CACHE_HINTS = { ttlMs: 300_000, cacheScope: 'private' };

describe('control-mcp in one era', SUITE, () => {
  it('takes initialize and ping first in the legacy era, and has the newest version that is not newer', async (t) => {
    const mcp = startMcp(t);
    for (const [method, params] of [
      ['tools/list'], ['tools/call', { name: 'list_systems', arguments: {} }], ['server/discover'], ['nothing'],
      ['subscriptions/listen', { notifications: {} }], ['tools/list', { _meta: {} }], ['tools/list', { _meta: null }],
    ] as const) {
      checkError(await mcp.request(method, params), PARAMS, /io\.modelcontextprotocol\/protocolVersion.*initialize/);
    }
    for (const params of [undefined, {}, { protocolVersion: 1 }]) {
      checkError(await mcp.request('initialize', params), PARAMS, /protocolVersion/);
    }
    assert.deepEqual((await mcp.request('ping')).result, {});
    const { result } = await mcp.request('initialize', { protocolVersion: '2025-06-18', clientInfo: { name: 7 } });
    assert.equal(result.protocolVersion, '2025-06-18');
    for (const [requested, version] of [
      ...LEGACY.map((version) => [version, version] as const),
      ['2026-07-28', '2025-11-25'], ['9999-12-31', '2025-11-25'], ['2025-11-24', '2025-06-18'],
      ['2025-03-26', '2024-11-05'], ['2024-11-04', '2025-11-25'], ['1900-01-01', '2025-11-25'],
    ] as const) {
      const { protocolVersion, capabilities, serverInfo, instructions, ...others } = await mcp.initialize(requested);
      assert.deepEqual([protocolVersion, capabilities, others], [version, { tools: {} }, {}], requested);
      checkServer(serverInfo);
      assert.match(instructions, /\bdata\b/);
    }
  });

  it('requires version and capabilities of the client in the modern era, which has subscriptions', async (t) => {
    const mcp = startMcp(t);
    const rows: [field: string, values: unknown[], code: number | undefined][] = [
      ['clientCapabilities', [undefined, null, [], 'all', true], PARAMS],
      ['protocolVersion', [null, 7, [MODERN], {}], PARAMS],
      ['protocolVersion', ['2025-11-25', '2026-07-29', '', 'DRAFT'], VERSION],
      ['clientInfo', [undefined, {}, { name: 7 }], undefined],
    ];
    for (const [field, values, code] of rows) {
      for (const value of values) {
        const { error } = await mcp.modern('tools/list', {}, { [`${META}/${field}`]: value });
        assert.equal(error?.code, code, `${field} ${JSON.stringify(value)}`);
        if (code === PARAMS) assert.ok(error?.message.includes(`${META}/${field}`), error?.message);
        if (code === VERSION) assert.deepEqual(error?.data, { supported: [MODERN], requested: value });
      }
    }
    const filter = { notifications: { toolsListChanged: true, resourceSubscriptions: ['file:///x'] } };
    const ids: Id[] = ['s', '7', 7];
    for (const id of ids) mcp.send(modern(id, 'subscriptions/listen', filter));
    await mcp.settled();
    const acknowledgments = mcp.notifications('notifications/subscriptions/acknowledged');
    assert.deepEqual(acknowledgments.map(({ params }) => params), ids.map((id) => {
      return { _meta: { [`${META}/subscriptionId`]: id }, notifications: {} };
    }));
    await mcp.end();
    assert.deepEqual(ids.flatMap(mcp.responsesTo), []);
  });
});

/** Methods of other servers, and some that do not exist. */
const OTHER_METHODS = [
  'resources/list', 'prompts/get', 'logging/setLevel', 'notifications/initialized', 'Tools/list', '', '__proto__',
];

describe('control-mcp in both eras', SUITE, () => {
  it('has its methods and no others, with tools that clients can use', async (t) => {
    const mcp = startMcp(t, ['--allow', 'all', '--dir', makeFolder(t)]);
    await mcp.initialize();
    const ofLegacy = (await mcp.request('tools/list')).result;
    const { tools, ...hints } = withoutServer((await mcp.modern('tools/list')).result);
    assert.deepEqual([ofLegacy, hints], [{ tools }, CACHE_HINTS]);
    assert.equal(tools.length, 9);
    for (const { name, title, description, inputSchema, annotations, ...others } of tools) {
      for (const text of [title, description]) assert.match(text, /^\S.*\S$/s, name);
      assert.deepEqual([inputSchema.type, others], ['object', {}], name);
      assert.equal(annotations.readOnlyHint, ['list_systems', 'get_info', 'get_history', 'wait'].includes(name), name);
      assert.equal(annotations.destructiveHint, ['shutdown', 'run_command'].includes(name), name);
      assert.equal(inputSchema.required.includes('reason'), !annotations.readOnlyHint, name);
    }
    const { instructions, ...described } = withoutServer((await mcp.modern('server/discover')).result);
    assert.match(instructions, /\bdata\b/);
    assert.deepEqual(described, { supportedVersions: [MODERN], capabilities: { tools: {} }, ...CACHE_HINTS });
    const params = { name: 'list_systems', arguments: {} };
    for (const { result } of [await mcp.request('tools/call', params), await mcp.modern('tools/call', params)]) {
      assert.deepEqual(valueOf(result).systems, []);
    }
    for (const method of [...OTHER_METHODS, 'server/discover', 'subscriptions/listen']) {
      checkError(await mcp.request(method, { notifications: {} }), NO_METHOD, new RegExp(method));
    }
    for (const method of [...OTHER_METHODS, 'ping', 'initialize']) {
      checkError(await mcp.modern(method, { protocolVersion: '2025-11-25' }), NO_METHOD, new RegExp(method));
    }
  });

  it('refuses wrong parameters, and wrong arguments as the result of the tool, which models see', async (t) => {
    const mcp = startMcp(t, ['--allow', 'all']);
    await mcp.initialize();
    const rows: [method: string, params: object, message: RegExp][] = [
      ['tools/list', { cursor: '' }, /./],
      ['tools/call', {}, /name/],
      ['tools/call', { name: ['wait'] }, /name/],
      ['tools/call', { name: 'list_systems', arguments: [] }, /arguments/],
      ['tools/call', { name: 'list_systems', arguments: null }, /arguments/],
      ...['', 'list-systems', '__proto__', 'constructor', 'x\x1b[2J'].map((name): typeof rows[number] => {
        return ['tools/call', { name, arguments: {} }, /tool/i];
      }),
    ];
    for (const [method, params, message] of rows) {
      checkError(await mcp.request(method, params), PARAMS, message);
      checkError(await mcp.modern(method, params), PARAMS, message);
    }
    for (const [id, params] of [[], null, 'all', 7, true].entries()) {
      mcp.send({ jsonrpc: '2.0', id, method: 'tools/list', params });
      checkError(await mcp.responseTo(id), PARAMS, /params/);
    }
    const system = 'x';
    const reason = 'a test';
    const faults: [tool: string, args: object, error: RegExp][] = [
      ['list_systems', { system }, /^list_systems takes name, got 'system'$/],
      ['get_info', {}, /^system is required$/],
      ['get_history', { system, limit: 0 }, /^limit must be an integer from 1 to 200, got 0$/],
      ['get_history', { system, limit: 1.5 }, /^limit must be an integer from 1 to 200, got 1\.5$/],
      ['get_history', { system, limit: 201 }, /^limit must be /],
      ['get_history', { system, limit: '50' }, /^limit must be /],
      ...['yesterday', '8', '24:00', '8w', '-8h', '2026', '2026-13-01', '9999999d', '\x1b[2J'].map((since) => {
        return ['get_history', { system, since }, /^since must be .*, got '/] as typeof faults[number];
      }),
      ['get_info', { system: null }, /^system must be a string of 1 to 200 characters, got null$/],
      ['get_info', { system: ' ' }, /^system must be /],
      ['get_info', JSON.parse('{"system":"x","__proto__":1}') as object, /takes system, got '__proto__'/],
      ['get_info', { constructor: 1, system }, /takes system, got 'constructor'/],
      ['wait', { system, seconds: 0 }, /^seconds must be a number from 1 to 3600, got 0$/],
      ['wait', { system, seconds: 3601 }, /^seconds must be /],
      ['wait', { system, seconds: '5' }, /^seconds must be /],
      ['wait', { system, tag: 7 }, /^tag must be /],
      ...['pause', 'save_state', 'resume', 'shutdown', 'run_command'].map((tool): typeof faults[number] => {
        return [tool, { system, command: 'x' }, /^reason is required$|^\w+ takes system, reason and seconds, got/];
      }),
      ['pause', { system, reason: 'x'.repeat(201) }, /^reason must be /],
      ['resume', { system, reason, mine: 'true' }, /^mine must be true or false, got "true"$/],
      ['pause', { system, reason, mine: true }, /^pause takes system, reason or seconds, got 'mine'$/],
      ['run_command', { system, reason }, /^command is required$/],
      ['run_command', { system, reason, command: 'x', arguments: [] }, /^arguments must be an object, got \[\]$/],
    ];
    for (const [name, args, error] of faults) {
      const params = { name, arguments: args };
      for (const { result } of [await mcp.request('tools/call', params), await mcp.modern('tools/call', params)]) {
        assert.match(failureOf(result).error, error, JSON.stringify(params));
      }
    }
  });

  it('refuses a line that is not a message, with its id if it has one, or if it has more than 4 MiB', async (t) => {
    const mcp = startMcp(t);
    const lines: [line: string, id: Id | undefined, code: number | undefined][] = [
      ...['hello', '{', '\ufffd', '{"jsonrpc":"2.0","id":1,"method":"ping"}{}', '"'.padEnd(100_000, '\\')]
        .map((line): typeof lines[number] => [line, undefined, PARSE]),
      ...[
        '[]', '[{"jsonrpc":"2.0","id":1,"method":"ping"}]', 'null', '1', '{}', '{"jsonrpc":"2.0","method":7}',
        ...['null', '1.5', '1e400', '9007199254740993', '{}'].map((id) => {
          return `{"jsonrpc":"2.0","id":${id},"method":"ping"}`;
        }),
      ].map((line): typeof lines[number] => [line, undefined, INVALID]),
      ['{"id":1,"method":"ping"}', 1, INVALID],
      ['{"jsonrpc":2.0,"id":"3","method":"ping"}', '3', INVALID],
      ['{"jsonrpc":"2.0","id":4}', 4, INVALID],
      ['{"jsonrpc":"2.0","id":"6","method":["ping"]}', '6', INVALID],
      ...[0, 1, 16_000_000].map((excess): typeof lines[number] => {
        const start = '{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":"ü';
        const line = `${start.padEnd(4 * 1024 * 1024 + excess - 4, 'x')}"}}`; // ü has two bytes
        return excess === 0 ? [line, 7, undefined] : [line, undefined, INVALID];
      }),
    ];
    for (const [line, id, code] of lines) {
      const before = mcp.messages.length;
      mcp.send(`${line}\n`);
      await mcp.settled();
      const [response, pong, ...rest] = mcp.messages.slice(before) as [Message, Message, ...Message[]];
      assert.deepEqual([response.id, response.error?.code], [id, code], line.slice(0, 100));
      assert.deepEqual([pong.result, rest], [{}, []]);
    }
  });

  it('reads lines in any chunks and with any line end, and responds with the id of the request', async (t) => {
    const mcp = startMcp(t);
    const ping = (id: Id): string => JSON.stringify({ jsonrpc: '2.0', id, method: 'ping' });
    const bytes = Buffer.from(`${ping('é😀')}\n`);
    const middle = bytes.indexOf(0xf0); // of 😀, the first of four bytes
    let sent = 0;
    for (const end of [middle - 1, middle + 1, middle + 3, bytes.length]) {
      mcp.send(bytes.subarray(sent, end));
      sent = end;
      await sleep(50); // so that it is read by itself
    }
    assert.deepEqual((await mcp.responseTo('é😀')).result, {});
    mcp.send(`\n\r\n  \n${ping(1)}\r\n${ping(2)}\n\n${ping(3)} \t\n ${ping(4)}\n${ping(5).slice(0, 20)}`);
    mcp.send(`${ping(5).slice(20)}\n`);
    for (const id of [1, 2, 3, 4, 5]) assert.deepEqual((await mcp.responseTo(id)).result, {});
    assert.equal(mcp.messages.length, 6, 'nothing for empty lines');
    for (const id of [0, -1, Number.MAX_SAFE_INTEGER, '', '1', '__proto__', '\x1b[2J\u202e', 'x'.repeat(10_000)]) {
      mcp.send(legacy(id, 'ping'));
      assert.deepEqual(await mcp.responseTo(id), { jsonrpc: '2.0', id, result: {} });
    }
    mcp.send('{"jsonrpc":"2.0","id":3e2,"method":"ping"}\n', legacy(0, 'ping'));
    assert.deepEqual((await mcp.responseTo(300)).result, {});
    await mcp.settled();
    assert.equal(mcp.responsesTo(0).length, 2);
  });

  it('refuses the 1001st request in flight, and serves again when there are fewer', async (t) => {
    const mcp = startMcp(t);
    const listen = (id: Id): object => modern(id, 'subscriptions/listen', { notifications: {} });
    mcp.send(...Array.from({ length: 1000 }, (_, index) => listen(index)), listen('one more'), legacy('ping', 'ping'));
    for (const id of ['one more', 'ping']) checkError(await mcp.responseTo(id), INTERNAL, /1,?000/);
    assert.equal(mcp.notifications('notifications/subscriptions/acknowledged').length, 1000);
    mcp.notify('notifications/cancelled', { requestId: 7 });
    await until(async () => 'result' in await mcp.request('ping'));
    mcp.send(listen('the place of 7'));
    checkError(await mcp.request('ping'), INTERNAL, /1,?000/);
  });

  it('ignores what is no request, refuses an id that is in flight, and ends what is cancelled at once', async (t) => {
    const { mcp, system, requests, untilAsked, checkReleased } = await startWatching(t);
    await mcp.initialize();
    const before = mcp.messages.length;
    for (const message of [
      { method: 'notifications/initialized' }, { method: 'notifications/roots/list_changed', params: {} },
      { method: 'notifications/progress', params: { progressToken: 1, progress: 1 } }, { method: 'nothing' },
      { method: 'notifications/cancelled', params: null }, { method: '', params: 7 },
      { method: 'ping' }, { method: 'initialize', params: { protocolVersion: MODERN } }, { method: 'tools/list' },
      { method: 'tools/call', params: { name: 'pause', arguments: { system, reason: 'a test' } } },
      { method: 'subscriptions/listen', params: { _meta: metaOf(), notifications: {} } },
      { id: 1, result: {} }, { id: 'x', error: { code: 1, message: 'no' } }, { error: { code: 1, message: 'no' } },
    ]) mcp.send({ jsonrpc: '2.0', ...message });
    await mcp.call('get_info', { system }); // what the line before had sent would have arrived by then
    assert.equal(mcp.messages.length, before + 1);
    assert.deepEqual(requests.filter((request) => request.startsWith('POST')), []);
    for (const [id, condition] of [['change', 'change'], ['status', 'paused'], ['detail', 'loss < 0']] as const) {
      mcp.send(legacy(id, 'tools/call', waitFor(system, { until: condition })));
      await untilAsked();
      mcp.notify('notifications/cancelled', { requestId: id, reason: 'a test' });
      await checkReleased();
    }
    mcp.send(modern('modern', 'tools/call', waitFor(system)));
    await untilAsked();
    mcp.notify('notifications/cancelled', { requestId: 'modern', _meta: metaOf() });
    await checkReleased();
    mcp.send(legacy('both', 'tools/call', waitFor(system)), cancelled('both')); // in one chunk
    mcp.send(legacy('pause', 'tools/call', { name: 'pause', arguments: { system, reason: 'a test', seconds: 600 } }));
    await until(() => requests.includes('POST /api/pause?by=mcp%3Atest&reason=a+test'));
    mcp.notify('notifications/cancelled', { requestId: 'pause' });
    await checkReleased();
    for (const id of [1, '1']) mcp.send(legacy(id, 'tools/call', waitFor(system)));
    await untilAsked();
    mcp.send(legacy(1, 'ping'), legacy(1, 'tools/call', waitFor(system)));
    await mcp.settled();
    for (const response of mcp.responsesTo(1)) checkError(response, INVALID, /id/);
    assert.deepEqual([mcp.responsesTo(1).length, mcp.responsesTo('1').length], [2, 0]);
    mcp.notify('notifications/cancelled', { requestId: 1 });
    await until(async () => {
      mcp.send(legacy(1, 'ping'));
      await mcp.settled();
      return mcp.responsesTo(1).at(-1)?.error === undefined; // free again
    });
    mcp.send(modern(5, 'tools/call', waitFor(system)), legacy('done', 'ping'));
    await untilAsked();
    await mcp.settled();
    const others = mcp.messages.length;
    for (const requestId of ['5', 'done', null, [1], undefined]) mcp.notify('notifications/cancelled', { requestId });
    for (const params of [[1], 1, null]) mcp.send({ jsonrpc: '2.0', method: 'notifications/cancelled', params });
    await mcp.settled();
    assert.equal(mcp.messages.length, others + 1);
    await untilAsked();
    await mcp.end();
    assert.deepEqual(['change', 'status', 'detail', 'modern', 'both', 'pause'].flatMap(mcp.responsesTo), []);
  });

  it('reports progress every 5 seconds if the client asks for it, until the response', async (t) => {
    const { mcp, system } = await startWatching(t);
    await mcp.initialize();
    const wait = (id: Id, progressToken: unknown, seconds: number = 12): object => {
      return legacy(id, 'tools/call', { ...waitFor(system, { seconds }), _meta: { progressToken } });
    };
    mcp.send(modern('modern', 'tools/call', waitFor(system, { seconds: 12 }), { progressToken: 'modern' }));
    mcp.send(wait('7', 7), wait('wrong', 1.5), wait('cancelled', 'c'), wait('short', 'before the first report', 1));
    mcp.notify('notifications/cancelled', { requestId: 'cancelled' });
    for (const id of ['7', 'modern', 'wrong']) await mcp.responseTo(id);
    const reports = mcp.notifications('notifications/progress');
    for (const [token, id] of [[7, '7'], ['modern', 'modern']] as const) {
      const own = reports.filter(({ params }) => params.progressToken === token);
      const progress: number[] = own.map(({ params }) => params.progress);
      assert.ok(progress.length > 0);
      assert.deepEqual(progress, [...new Set(progress)].sort((one, other) => one - other), 'it increases');
      for (const { params } of own) {
        const expected = { progressToken: token, progress: params.progress, total: 12, message: `wait ${system}` };
        assert.deepEqual(params, expected);
      }
      assert.ok(mcp.messages.indexOf(own.at(-1) as Message) < mcp.messages.indexOf(await mcp.responseTo(id)));
    }
    assert.deepEqual(reports.filter(({ params }) => ![7, 'modern'].includes(params.progressToken)), []);
  });

  it('responds to what has arrived when its input ends, but waits neither for a wait nor for a system', async (t) => {
    const [silent, { target }] = [await startSilent(t), await startWeb(t)];
    const mcp = startMcp(t, [silent, target]);
    mcp.send(modern('asks', 'tools/call', { name: 'get_info', arguments: { system: target } }));
    mcp.send(modern('wait', 'tools/call', waitFor(silent))); // for an hour
    mcp.send(modern('hangs', 'tools/call', { name: 'get_info', arguments: { system: silent } }));
    mcp.send(modern('list', 'tools/list'), 'hello\n', '{"jsonrpc":"2.0","id":"last","method":"ping"}');
    const { stdout } = await mcp.end();
    const ids = ['wait', 'hangs', 'last', 'list', 'asks'];
    assert.deepEqual(ids.map((id) => mcp.responsesTo(id).length), [0, 0, 0, 1, 1]);
    assert.match(stdout, /-32700/);
  });

  it('exits silently when nobody reads its output', async (t) => {
    const { mcp, system, untilAsked } = await startWatching(t);
    mcp.send(modern('wait', 'tools/call', waitFor(system)));
    await untilAsked();
    mcp.child.stdout?.destroy();
    mcp.send(legacy(1, 'ping'), legacy(2, 'ping'));
    await sleep(100);
    mcp.send(legacy(3, 'ping'));
    mcp.child.stdin?.end();
    const { code, stderr } = await mcp.running.ended;
    assert.deepEqual([code, stderr], [0, '']);
  });

  it('exits on the signals that clients send', async (t) => {
    for (const signal of ['SIGTERM', 'SIGINT'] as const) {
      const mcp = startMcp(t);
      await mcp.settled();
      mcp.child.kill(signal);
      assert.equal((await mcp.running.ended).stderr, '', signal);
    }
  });
});

describe('The command line of control-mcp', SUITE, () => {
  it('is refused with one line, and allows only words that mean something', async (t) => {
    for (const [args, line] of [
      [['--alow', 'all'], /^unknown option '--alow' \(did you mean --allow\?\); see --help$/],
      [['--allow', 'pause'], /^--allow must have resume, .*, separated by commas, got 'pause'$/],
      ...['answer', 'run:answer', 'all,answer', 'run:evaluate, answer '].map((list) => [
        ['--allow', list], /^--allow never permits answers: people answer, got '(run:)?answer'$/,
      ] as const),
      [['9999'], /^there is no system '9999' in '[^']+'.*; an address has a port, such as gpu1:8391 or :9000$/],
      [['box:0'], /^the port of the target 'box:0' must be an integer from 1 to 65535, got '0'$/],
      [['--targets', '-'], /^--targets must be a file: standard input is for the assistant$/],
      [['--dir', '/nowhere'], /^--dir must be a folder that can be read, got '\/nowhere': ENOENT: /],
    ] as const) {
      const { code, stdout, stderr } = await runProgram(t, 'mcp', args);
      assert.deepEqual([code, stdout], [2, ''], args.join(' '));
      assert.match(stderr, /^control-mcp: [^\n\x1b]+\n$/);
      assert.match(stderr.slice('control-mcp: '.length, -1), line);
    }
    const { allowed } = parseCommandLine(['--allow', ' resume,run:a', '--allow', 'shutdown', '--allow=all']) ?? {};
    assert.deepEqual([...allowed ?? []], ['resume', 'run:a', 'shutdown', 'all']);
    for (const list of ['', 'wait', 'Resume', 'resume,', 'resume shutdown', 'run', 'run:', 'run:pause', 'x\x1b[2J']) {
      assert.throws(() => parseCommandLine(['--allow', list]), /^Error: --allow must have /, list);
    }
  });

  it('has help and a version', async (t) => {
    const help = await runProgram(t, 'mcp', ['--help']);
    assert.deepEqual([help.code, help.stderr], [0, '']);
    for (const text of ['--allow LIST', 'run:COMMAND', 'CONTROL_TOKEN']) assert.ok(help.stdout.includes(text), text);
    const version = await runProgram(t, 'mcp', ['--version']);
    assert.deepEqual(version, { code: 0, stdout: `${PACKAGE.version}\n`, stderr: '' });
  });

  it('prints a hint on a terminal, and serves there', { skip: lacks('script') }, async (t) => {
    const command = `exec ${process.execPath} dist/bin/mcp.js`;
    const { child, shows, ended } = start(t, 'script', ['--quiet', '--return', '--command', command, '/dev/null']);
    await shows(/^control-mcp: .* assistant.*; see --help\r\n/m);
    child.stdin?.write('{"jsonrpc":"2.0","id":"typed","method":"ping"}\n');
    await shows(/\{"jsonrpc":"2.0","id":"typed","result":\{\}\}/);
    child.stdin?.write('\x04');
    assert.equal((await ended).code, 0);
  });
});

// ───── Messages ──────────────────────────────────────────────────────────────────────────────────────────────────

function legacy(id: Id, method: string, params: object = {}): object {
  return { jsonrpc: '2.0', id, method, params };
}

function modern(id: Id, method: string, params: object = {}, meta: object = {}): object {
  return legacy(id, method, { ...params, _meta: { ...metaOf(), ...meta } });
}

function cancelled(requestId: Id): object {
  return { jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId } };
}

/** The parameters of a call that lasts an hour by default. */
function waitFor(system: string, args: object = {}): object {
  return { name: 'wait', arguments: { system, until: 'paused', seconds: 3600, ...args } };
}

function checkError({ result, error }: Message, code: number, message: RegExp): void {
  assert.deepEqual([result, error?.code], [undefined, code], JSON.stringify(error));
  assert.match(`${error?.message}`, message);
}

/** Checks the fields that each result of the modern era has, and returns the others. */
function withoutServer({ resultType, _meta, ...result }: any): any {
  assert.equal(resultType, 'complete');
  assert.deepEqual(Object.keys(_meta), [`${META}/serverInfo`]);
  checkServer(_meta[`${META}/serverInfo`]);
  return result;
}

function checkServer({ name, title, version, ...others }: any): void {
  assert.deepEqual([name, version, others], ['control-mcp', PACKAGE.version, {}]);
  assert.match(title, /\w/);
}

// ───── A system ──────────────────────────────────────────────────────────────────────────────────────────────────

interface Watching {
  mcp: Mcp;
  /** The target of a system that stays active, and the requests to it. */
  system: string;
  requests: readonly string[];
  /** Waits for another request to the system. */
  untilAsked(): Promise<void>;
  /** Checks, after a cancellation, that no further request follows. */
  checkReleased(): Promise<void>;
}

/** Starts control-mcp with a system that it asks every 250 ms during a wait. */
async function startWatching(t: TestContext): Promise<Watching> {
  const { target: system, requests } = await startWeb(t, () => ({ ...ACTIVE, detail: { loss: 1 } }));
  const mcp = startMcp(t, [system]);
  const untilAsked = async (): Promise<void> => {
    const before = requests.length;
    await until(() => requests.length > before);
  };
  const checkReleased = async (): Promise<void> => {
    await mcp.call('get_info', { system }); // what was sent before has arrived then
    const before = requests.length;
    await sleep(600);
    assert.equal(requests.length, before, 'another request');
  };
  return { mcp, system, requests, untilAsked, checkReleased };
}
