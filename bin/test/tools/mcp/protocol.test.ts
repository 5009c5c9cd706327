// The protocol of control-mcp: lines, ids, cancellation, progress and the end of the input; and its command line. What
// is answered at once is in legacy.txt and modern.txt.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { VERSION } from '../../../../control.ts';
import { makeFolder, runProgram, start } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { ACTIVE, startWeb } from '../../puppet.ts';
import { until } from '../../wait.ts';
import { refuses } from '../board/helpers.ts';
import { startSilent } from '../client/systems.ts';
import { AT_ONCE, metaOf, startMcp } from './helpers.ts';
import type { Id, Mcp, Message } from './helpers.ts';
import type { TestContext } from 'node:test';
import type { Refusal } from '../board/helpers.ts';

const SUITE = { ...AT_ONCE, skip: lacks('Unix') };

const INVALID = -32600;
const INTERNAL = -32603;

describe('control-mcp in both eras', SUITE, () => {
  it('has tools that clients can use', async (t) => {
    const mcp = startMcp(t, ['--allow', 'all', '--dir', makeFolder(t)]);
    const { tools } = (await mcp.modern('tools/list')).result;
    await mcp.initialize();
    assert.deepEqual((await mcp.request('tools/list')).result.tools, tools);
    for (const { name, title, description, inputSchema, annotations, ...others } of tools) {
      for (const text of [title, description]) assert.match(text, /^\S.*\S$/s, name);
      assert.deepEqual([inputSchema.type, others], ['object', {}], name);
      assert.equal(annotations.readOnlyHint, /^(list_systems|get_.+|wait)$/.test(name), name);
      assert.equal(annotations.destructiveHint, ['shutdown', 'run_command'].includes(name), name);
      assert.equal(inputSchema.required.includes('reason'), !annotations.readOnlyHint, name);
    }
  });

  it('takes a line of at most 4 MiB', async (t) => {
    const mcp = startMcp(t);
    for (const [excess, id, code] of [[0, 7, undefined], [1, undefined, INVALID], [6_000_000, undefined, INVALID]]) {
      const start = '{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":"ü';
      const before = mcp.messages.length;
      mcp.send(`${start.padEnd(4 * 1024 * 1024 + Number(excess) - 4, 'x')}"}}\n`); // ü has two bytes
      await mcp.settled();
      const [response, pong, ...rest] = mcp.messages.slice(before) as [Message, Message, ...Message[]];
      assert.deepEqual([response.id, response.error?.code, pong.result, rest], [id, code, {}, []]);
    }
  });

  it('reads lines in any chunks and with any line end', async (t) => {
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
    mcp.notify('tools/call', { name: 'pause', arguments: { system, reason: 'a test' } });
    mcp.notify('subscriptions/listen', { _meta: metaOf(), notifications: {} });
    await mcp.call('get_info', { system }); // what the line before had sent would have arrived by then
    assert.equal(mcp.messages.length, before + 1);
    assert.deepEqual(requests.filter((request) => request.startsWith('POST')), []);
    for (const [id, condition] of [['change', 'change'], ['detail', 'loss < 0']] as const) {
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
    for (const requestId of ['5', 'done', null, [5]]) mcp.notify('notifications/cancelled', { requestId });
    await mcp.settled();
    assert.equal(mcp.messages.length, others + 1);
    await untilAsked();
    await mcp.end();
    assert.deepEqual(['change', 'detail', 'modern', 'both', 'pause'].flatMap(mcp.responsesTo), []);
  });

  it('reports progress every 5 seconds if the client asks for it, until the response', async (t) => {
    const { mcp, system } = await startWatching(t);
    await mcp.initialize();
    const wait = (id: Id, progressToken: unknown, seconds: number = 6): object => {
      return legacy(id, 'tools/call', { ...waitFor(system, { seconds }), _meta: { progressToken } });
    };
    mcp.send(modern('modern', 'tools/call', waitFor(system, { seconds: 6 }), { progressToken: 'modern' }));
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
        const expected = { progressToken: token, progress: params.progress, total: 6, message: `wait ${system}` };
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
    const one = '--allow must have resume, shutdown, run:COMMAND or all, separated by commas, got';
    await refuses(t, 'mcp', [
      [['--alow', 'all'], "unknown option '--alow' (did you mean --allow?); see --help"],
      ...['', 'pause', 'Resume', 'run:', 'run:pause'].map((word): Refusal => [['--allow', word], `${one} '${word}'`]),
      [['--allow', 'resume,'], `${one} ''`],
      ...['run:answer', 'run:evaluate, answer '].map((list): Refusal => [
        ['--allow', list], /^--allow never permits answers: people answer, got '(run:)?answer'$/,
      ]),
      [['9999'], /^there is no system '9999' in '[^']+'.*; an address has a port, such as gpu1:8391 or :9000$/],
      [['box:0'], "the port of the target 'box:0' must be an integer from 1 to 65535, got '0'"],
      [['--targets', '-'], '--targets must be a file: standard input is for the assistant'],
      [['--dir', '/nowhere'], /^--dir must be a folder that can be read, got '\/nowhere': ENOENT: /],
    ]);
  });

  it('has help and a version', async (t) => {
    const help = await runProgram(t, 'mcp', ['--help']);
    assert.deepEqual([help.code, help.stderr], [0, '']);
    for (const text of ['--allow LIST', 'run:COMMAND', 'CONTROL_TOKEN']) assert.ok(help.stdout.includes(text), text);
    const version = await runProgram(t, 'mcp', ['--version']);
    assert.deepEqual(version, { code: 0, stdout: `${VERSION}\n`, stderr: '' });
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
