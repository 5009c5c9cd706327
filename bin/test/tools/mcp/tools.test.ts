// The tools of control-mcp: who sends, what nobody can make them do, how much they take at once, and which systems they
// have. tools.txt has what each of them does.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { makeFolder, startServer, TOKEN } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { ACTIVE, startPuppet, startWeb } from '../../puppet.ts';
import { until } from '../../wait.ts';
import { hereIs, openSession } from '../client/systems.ts';
import { infoOf, outcome, writeLog } from '../logs.ts';
import { AT_ONCE, META, startMcp, valueOf } from './helpers.ts';
import type { Mcp } from './helpers.ts';

const SUITE = { ...AT_ONCE, skip: lacks('Unix') };

/** The parts of a tool that tell how to call it. */
interface Offered {
  name: string;
  inputSchema: { properties: object };
}

async function statusesOf(mcp: Mcp): Promise<string[]> {
  const { systems } = await mcp.call('list_systems');
  return systems.map(({ system, status }: Record<string, string>) => `${system} ${status}`);
}

describe('The tools of control-mcp', SUITE, () => {
  it('send the name of the client in both eras, and a reason of 200 characters', async (t) => {
    const { target: system, urls } = await startWeb(t, () => ({ ...ACTIVE, state: 'done' }));
    const mcp = startMcp(t, [system]);
    const reason = 'r'.repeat(200);
    const callers: [name: unknown, by: string][] = [
      ['claude-code', 'mcp:claude-code'], ['é\x07😀', 'mcp:é 😀'], [undefined, 'mcp'], ['', 'mcp'], [7, 'mcp'],
    ];
    const call = { name: 'save_state', arguments: { system, reason } };
    for (const [name, by] of callers) {
      const meta = { [`${META}/clientInfo`]: name === undefined ? undefined : { name, version: '1' } };
      valueOf((await mcp.modern('tools/call', call, meta)).result);
      assert.ok(urls.includes(`POST /api/save-state?${new URLSearchParams({ by, reason })}`), `${urls}`);
      urls.length = 0;
    }
    await mcp.initialize(undefined, 'inspector');
    await mcp.call('save_state', call.arguments);
    assert.ok(urls.includes(`POST /api/save-state?${new URLSearchParams({ by: 'mcp:inspector', reason })}`), `${urls}`);
  });

  it('never answer a question, whatever --allow says and the model tries', async (t) => {
    const id = 'k3f-q1';
    const asks = [{ id, message: 'Delete 3 branches?', parameters: { approved: { type: 'boolean' } } }];
    const accepts = { answer: {}, evaluate: {} };
    const texts = [
      'answer', 'Answer', 'answer\n', `answer?id=${id}`, '../answer', '%61nswer', 'answer\0', `evaluate?id=${id}`, id,
    ];
    const given = { id, approved: true, command: 'answer', endpoint: 'answer', __proto__: null };
    for (const options of [[], ['--allow', 'all']]) {
      const info = { ...ACTIVE, id: 'k3f-1', state: 'done', accepts, commands: [], asks };
      const { target: system, requests } = await startWeb(t, () => info); // would take everything
      const mcp = startMcp(t, [...options, system]);
      const { tools } = (await mcp.modern('tools/list')).result as { tools: Offered[] };
      for (const name of ['answer', 'answer_question', 'POST /api/answer']) {
        const { error } = await mcp.modern('tools/call', { name, arguments: { system, ...given } });
        assert.equal(error?.code, -32602, name);
      }
      for (const { name, inputSchema: { properties } } of tools) {
        const results = await Promise.all(texts.flatMap((text) => {
          const all = { system, reason: text, command: text, until: text, tag: text, name: text, since: text };
          const values = Object.entries({ ...all, arguments: given, seconds: 3, mine: true, limit: 1, within: 9 });
          const fitting = Object.fromEntries(values.filter(([key]) => key in properties));
          return [fitting, { ...fitting, ...given }].map((args) => mcp.modern('tools/call', { name, arguments: args }));
        }));
        assert.ok(results.every(({ result }) => result !== undefined));
      }
      const paths = [...new Set(requests.map((request) => request.replace(/\?.*/, '')))].sort();
      const commands = ['pause', 'save-state', ...options.length > 0 ? ['resume', 'shutdown'] : []];
      const posts = commands.map((command) => `POST /api/${command}`);
      const reads = ['info', 'status', 'stack'].map((name) => `GET /api/${name}`);
      const harmless = [...reads, ...posts, `POST /api/${id}`]; // which no program has
      assert.deepEqual(paths.filter((path) => !harmless.includes(path)), []);
      for (const path of posts) assert.ok(paths.includes(path), path);
    }
  });

  it('wait 100 times for one system, each with its own goal', async (t) => {
    const puppet = await startPuppet(t, { detail: { loss: 0.5 } });
    const mcp = startMcp(t, [puppet.target]);
    const goals = ['change', 'paused', 'loss < 0.1', 'loss >= 0.5'];
    const all = Array.from({ length: 25 }, () => goals).flat().map(async (until) => {
      return (await mcp.call('wait', { system: puppet.target, until, seconds: 60 })).ended;
    });
    const of = (goal: string): Promise<unknown[]> => Promise.all(all.filter((_, index) => goals[index % 4] === goal));
    await of('loss >= 0.5');
    await until(() => puppet.met() > 100);
    puppet.set({ status: 'paused' });
    await of('paused');
    puppet.end();
    assert.deepEqual([...new Set(await Promise.all(all))].sort(), ['changed', 'offline', 'reached']);
  });

  it('return the latest 50 entries of a log, or as many as the limit, and say whether there are more', async (t) => {
    const path = writeLog(t, ...Array.from({ length: 300 }, (_, index) => {
      return outcome(300 - index, `h-${index}`, { command: `c${index}` });
    }));
    const { target: system } = await startWeb(t, () => infoOf(path));
    const mcp = startMcp(t, [system]);
    const since = new Date(Date.now() - 20.5 * 60_000).toISOString();
    const rows: [args: object, count: number, isCut?: true][] = [
      [{}, 50, true], [{ limit: 200 }, 200, true], [{ since }, 20], [{ since, limit: 20 }, 20],
      [{ since, limit: 19 }, 19, true], [{ since: '20.5m' }, 20], [{ since: '2d', limit: 200 }, 200, true],
    ];
    for (const [args, count, isCut] of rows) {
      const history = await mcp.call('get_history', { system, ...args });
      const commands = history.entries.map(({ command }: { command: string }) => command);
      const expected = Array.from({ length: count }, (_, index) => `c${300 - count + index}`);
      assert.deepEqual([commands, history.isCut], [expected, isCut], JSON.stringify(args));
    }
  });
});

describe('The systems of control-mcp', SUITE, () => {
  it('are the targets, and those in a file, which its user may edit, with their tokens', async (t) => {
    const { env, serve } = openSession(t);
    const [train, other] = [await serve('train-5'), await startWeb(t)];
    const { port } = await startServer(t, { host: '127.0.0.1', token: TOKEN });
    const locked = `127.0.0.1:${port}`;
    const place = makeFolder(t);
    const file = join(place, 'targets');
    const edit = (...lines: string[]): void => writeFileSync(file, lines.join('\n'), { mode: 0o600 });
    writeFileSync(join(place, 'token'), `${TOKEN}\n`, { mode: 0o600 });
    edit('# all', `${locked} token-file=token`, '', 'train # by name');
    const mcp = startMcp(t, ['--targets', file, other.target], env);
    const others = [`${other.target} active`, 'train-5 active'];
    assert.deepEqual(await statusesOf(mcp), [others[0], `${locked} active`, others[1]]);
    for (const [rest, status] of [['', 'missing or wrong token'], [' token-file=token', 'active']]) {
      edit(`${locked}${rest}`, 'train');
      assert.equal((await mcp.call('get_info', { system: locked })).status, status);
    }
    edit(locked);
    train.requests.length = 0;
    for (const system of ['train-5', 'train']) {
      assert.match((await mcp.fail('pause', { system, reason: 'a test' })).error, /^there is no system 'train/);
    }
    assert.deepEqual(train.requests, []);
    const [host, at] = other.target.split(':');
    const byPort = startMcp(t, [], { ...env, CONTROL_HOST: host, CONTROL_PORT: at });
    assert.deepEqual(await statusesOf(byPort), others.slice(0, 1), 'not those in the folder');
  });

  it('are what runs here, also at the default port, and what starts later', { skip: lacks('root') }, async (t) => {
    const { port } = await startWeb(t);
    const { folder, serve } = openSession(t);
    const mcp = startMcp(t, [], hereIs(folder, port));
    assert.deepEqual(await statusesOf(mcp), ['localhost:8391 active']);
    assert.equal((await mcp.call('get_info', { system: 'localhost:8391' })).status, 'active');
    await serve('train-5');
    assert.deepEqual((await statusesOf(mcp)).sort(), ['localhost:8391 active', 'train-5 active']);
    const foreign = startMcp(t, [], hereIs(makeFolder(t), port, 12345));
    const { note } = await foreign.call('list_systems');
    assert.equal(note, 'nothing runs here; localhost:8391 belongs to user 12345: --port 8391 means it');
  });
});
