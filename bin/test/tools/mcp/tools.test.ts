// The tools of control-mcp with live systems: the commands that arrive, and the results of the calls.

import assert from 'node:assert/strict';
import { chmodSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus, VERSION } from '../../../../control.ts';
import { TOOLS } from '../../../mcp/tools.ts';
import {
  defer, freePort, getInfo, launchSystem, makeFolder, startBasicServer, startServer, TOKEN,
} from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { ACTIVE, startPuppet, startWeb } from '../../puppet.ts';
import { LIMIT, until } from '../../wait.ts';
import { hereIs, hideFailures, openSession, startSilent } from '../client/systems.ts';
import { entry, infoOf, NO_LOG, outcome, writeLog } from '../logs.ts';
import { AT_ONCE, startMcp, valueOf } from './helpers.ts';
import type { CommandRequest } from '../../../../control.ts';
import type { TestContext } from 'node:test';
import type { Mcp } from './helpers.ts';

hideFailures();

const SUITE = { ...AT_ONCE, skip: lacks('Unix') };
const CLIENT_INFO = 'io.modelcontextprotocol/clientInfo';

/** Starts control-mcp for the systems at these ports. Their ids are `127.0.0.1:PORT`. */
function startAt(t: TestContext, ports: readonly number[], args: readonly string[] = [], env?: NodeJS.ProcessEnv): Mcp {
  return startMcp(t, [...args, ...ports.map(at)], env);
}

async function idsOf(mcp: Mcp): Promise<string[]> {
  const { systems } = await mcp.call('list_systems');
  return systems.map(({ system }: { system: string }) => system);
}

function at(port: number): string {
  return `127.0.0.1:${port}`;
}

// ───── Commands ──────────────────────────────────────────────────────────────────────────────────────────────────

describe('The commands of control-mcp', SUITE, () => {
  it('arrive with their sender and reason, in both eras, and say who else holds the pause', async (t) => {
    const received: unknown[] = [];
    const record = ({ command, by, reason }: CommandRequest<string>): void => {
      received.push([command, by, reason]);
    };
    const { address: { port }, client } = await launchSystem(t, {
      onPaused: record,
      onResumed: record,
      saveState: (_, request) => record(request),
      commands: { evaluate: { parameters: { episodes: { type: 'integer' } }, run: (_, request) => record(request) } },
    });
    const mcp = startAt(t, [port], ['--allow', 'all']);
    const call = { system: at(port), reason: 'ü 😀' };
    const callers: [name: unknown, by: string][] = [
      ['claude-code', 'mcp:claude-code'], ['é\x07😀', 'mcp:é 😀'], [undefined, 'mcp'], ['', 'mcp'], [7, 'mcp'],
    ];
    for (const [name, by] of callers) {
      const meta = { [CLIENT_INFO]: name === undefined ? undefined : { name, version: '1' } };
      valueOf((await mcp.modern('tools/call', { name: 'pause', arguments: call }, meta)).result);
      assert.deepEqual(received.splice(0), [['pause', by, 'ü 😀']]);
      await mcp.call('resume', call);
      received.length = 0;
    }
    await mcp.initialize(undefined, 'inspector');
    for (const tool of ['pause', 'save_state', 'resume']) await mcp.call(tool, call);
    const command = { command: 'evaluate', arguments: { episodes: 7 } };
    await mcp.call('run_command', { ...call, ...command, reason: 'r'.repeat(200) });
    const reasons = { pause: 'ü 😀', 'save-state': 'ü 😀', resume: 'ü 😀', evaluate: 'r'.repeat(200) };
    assert.deepEqual(received, Object.entries(reasons).map(([name, reason]) => [name, 'mcp:inspector', reason]));
    for (let time = 0; time < 2; time += 1) assert.equal((await mcp.call('pause', call)).note, undefined);
    await client.request('resume', { wait: 30 });
    await client.request('pause', { by: 'ana@laptop', wait: 30 });
    const { outcome, note } = await mcp.call('pause', call);
    assert.equal(outcome, 'done');
    assert.match(note, /^paused \d+ s ago by ana@laptop/);
    const own = await mcp.call('resume', { ...call, mine: true });
    assert.deepEqual([own.outcome, own.status, own.value], ['done', 'paused', { released: true }]);
    assert.match(own.note, /^paused \d+ s ago by ana@laptop$/);
    const none = await mcp.call('resume', { ...call, mine: true });
    assert.deepEqual([none.status, none.value], ['paused', { released: false }]);
    assert.equal((await mcp.call('resume', { ...call, mine: false })).status, 'active');
  });

  it('do not include a resume of mine that would resume for everybody', async (t) => {
    const webs = await Promise.all(['0.15.9', '0.18.0', '1.0.0', undefined].map((version) => {
      return startWeb(t, ({ method }) => {
        if (method === 'POST') return { result: 'ok', state: 'done', value: { released: true } };
        return { status: 'paused', version, commands: [] };
      });
    }));
    const locked = at((await startServer(t, { host: '127.0.0.1', token: TOKEN })).port);
    const mcp = startMcp(t, ['--allow', 'resume', locked, ...webs.map(({ target }) => target)]);
    for (const [system, error] of [
      [webs[0]?.target, /^not sent: the server reports its status only/], [locked, /^not sent: Missing token/],
      [webs[3]?.target, /^not sent: the server is no control.ts/],
    ] as const) {
      assert.match((await mcp.fail('resume', { system, mine: true, reason: 'a test' })).error, error);
    }
    for (const { target } of webs.slice(1, 3)) {
      await mcp.call('resume', { system: target, mine: true, reason: 'a test' });
    }
    const posted = webs.map(({ requests }) => requests.filter((request) => request.startsWith('POST')));
    const resume = 'POST /api/resume?by=mcp%3Atest&reason=a+test&mine=true';
    assert.deepEqual(posted, [[], [resume], [resume], []]);
  });
});

describe('A command of control-mcp that is not done', SUITE, () => {
  it('has failed or is refused, with the error of the program or the server', async (t) => {
    const { port: locked } = await startServer(t, { host: '127.0.0.1', token: TOKEN });
    const parameters = { episodes: { type: 'integer', minimum: 1 } } as const;
    let isOver = false;
    t.after(() => (isOver = true));
    const fail = (): void => assert.ok(isOver, 'disk full');
    const { address: { port } } = await launchSystem(t, {
      saveState: fail, commands: { evaluate: { parameters, run: fail } },
    });
    const mcp = startAt(t, [port, locked], ['--allow', 'all']);
    const run = (episodes: unknown): object => ({ command: 'evaluate', arguments: { episodes } });
    const rows: [tool: string, port: number, values: object, outcome: string, error: RegExp][] = [
      ['save_state', port, {}, 'failed', /disk full$/], ['run_command', port, run(1), 'failed', /disk full$/],
      ['pause', locked, {}, 'refused', /Missing token/],
      ['run_command', port, run('1'), 'refused', /episodes must be an integer from 1, got "1"$/],
      ['run_command', port, run('x'.repeat(5000)), 'refused', /./],
      ['run_command', port, { command: 'evalute' }, 'refused', /evalute.*evaluate/s],
    ];
    for (const [tool, where, values, outcome, message] of rows) {
      const { error, ...result } = await mcp.fail(tool, { system: at(where), reason: 'a test', ...values });
      const { command = tool.replace('_', '-') } = values as { command?: string };
      assert.deepEqual([result.system, result.command, result.outcome], [at(where), command, outcome]);
      assert.match(error, message);
    }
    assert.equal((await getInfo(port)).commands.length, 2, 'what is refused does not arrive');
  });

  it('is pending after the given seconds, and takes effect later', async (t) => {
    const saved = defer();
    t.after(() => saved.resolve()); // before the shutdown, which waits for it
    const { address: { port } } = await launchSystem(t, { saveState: () => saved.promise });
    const mcp = startAt(t, [port]);
    const { outcome, note } = await mcp.call('save_state', { system: at(port), reason: 'a test', seconds: 1 });
    assert.equal(outcome, 'pending');
    assert.match(note, /./);
    saved.resolve();
    await until(async () => (await getInfo(port)).commands.at(-1)?.state === 'done');
  });
});

it('control-mcp says that a system does not respond, or that nothing listens', LIMIT, async (t) => {
  const [absent, silent] = [at(await freePort()), await startSilent(t)];
  const mcp = startMcp(t, [absent, silent]);
  const listing = mcp.call('list_systems');
  for (const [system, status, error, outcome, pauseError] of [
    [absent, 'offline', /^$/, 'offline', /nothing listens at/],
    [silent, 'no answer', /has not responded/, 'unanswered', /pause sent, but no response .*it may still take effect/],
  ] as const) {
    const [info, { systems }] = [await mcp.call('get_info', { system }), await listing];
    for (const report of [info, systems.find((one: { system: string }) => one.system === system)]) {
      assert.deepEqual([report.status, report.reported], [status, undefined]);
      assert.match(report.error ?? '', error);
    }
    const failure = await mcp.fail('pause', { system, reason: 'a test', seconds: 1 });
    assert.deepEqual([failure.system, failure.command, failure.outcome], [system, 'pause', outcome], failure.error);
    assert.match(failure.error, pauseError);
  }
});

// ───── What is allowed ───────────────────────────────────────────────────────────────────────────────────────────

describe('control-mcp --allow', SUITE, () => {
  it('permits only the listed commands, and names the missing word for the others', async (t) => {
    const taken: string[] = [];
    const note = ({ command }: CommandRequest<string>): void => void taken.push(command);
    const run = (_: object, request: CommandRequest<string>): void => note(request);
    const { address: { port } } = await launchSystem(t, {
      onResumed: note, onShutdown: note, commands: { a: { run }, b: { run } },
    });
    const words = ['resume', 'run:a', 'run:b', 'shutdown'];
    for (const allowed of [[], ['resume', 'run:b'], words]) {
      const list = allowed === words ? 'all' : allowed.join();
      const mcp = startAt(t, [port], list === '' ? [] : ['--allow', list.replace(',', ' , ')]);
      const { tools } = (await mcp.modern('tools/list')).result;
      const listed = tools.slice(6).map(({ name }: { name: string }) => name); // six are always available
      assert.deepEqual(new Set(listed), new Set(allowed.map((word) => word.replace(/^run:.*/, 'run_command'))));
      const limit = / Only these are allowed: (.*)\.$/.exec(tools.at(-1).description)?.[1];
      assert.equal(limit, list === 'all' ? undefined : /run:(.)/.exec(list)?.[1]);
      await mcp.call('pause', { system: at(port), reason: 'a test' });
      for (const word of words) {
        const [tool = '', command] = word.replace('run:', 'run_command:').split(':');
        const values = { system: at(port), reason: 'a test', ...command !== undefined && { command } };
        if (allowed.includes(word)) assert.equal((await mcp.call(tool, values)).outcome, 'done', word);
        else {
          for (const given of [values, { ...values, reason: undefined }, { ...values, seconds: 'x' }]) {
            assert.ok((await mcp.fail(tool, given)).error.endsWith(` --allow ${word}`), word);
          }
        }
      }
      await mcp.end();
      assert.deepEqual(taken.splice(0), allowed.map((word) => word.replace('run:', '')), list);
    }
  });
});

// ───── Reports ───────────────────────────────────────────────────────────────────────────────────────────────────

describe('list_systems and get_info of control-mcp', SUITE, () => {
  it('report the cause of the status, the detail and the own commands', async (t) => {
    const { env, launch } = openSession(t);
    const parameters = { episodes: { type: 'integer', minimum: 1, default: 100, description: 'how many' } } as const;
    const { client } = await launch('train', {
      describe: () => ({ step: 5, loss: 0.25, phase: 'test' }),
      commands: { evaluate: { description: 'Runs episodes', parameters, run: () => 7 } },
    });
    await client.request('pause', { by: 'ana', reason: 'lunch', wait: 30 });
    const { body } = await client.request('info') as { body?: Record<string, unknown> };
    const mcp = startMcp(t, [], env);
    const system = `train-${process.pid}`;
    const detail = { step: 5, loss: 0.25, phase: 'test' };
    const holds = [{ by: 'ana', reason: 'lunch', since: body?.['since'] }];
    const cause = { since: body?.['since'], by: 'ana', reason: 'lunch', holds };
    await until(async () => { // a busy host may report no detail in time
      const { systems: [row] } = await mcp.call('list_systems');
      if (row.reported?.detail === undefined) return false;
      assert.deepEqual(row, { system, status: 'paused', reported: { ...cause, detail } });
      return true;
    });
    const { tag, reported: { commands, ...reported }, now, ...info } = await mcp.call('get_info', { system });
    assert.deepEqual(info, { system, status: 'paused' });
    const { name, pid, host, version, startedAt } = body ?? {};
    const accepts = { evaluate: { description: 'Runs episodes', parameters } };
    assert.deepEqual(reported, { name, pid, host, version, startedAt, ...cause, detail, accepts });
    assert.deepEqual([commands.length, commands[0].command, commands[0].state], [1, 'pause', 'done']);
  });

  it('say for how long a program has not responded', async (t) => {
    const heardAt = new Date().toISOString();
    const { target: system } = await startPuppet(t, { heardAt });
    const mcp = startMcp(t, [system]);
    await until(async () => (await mcp.call('get_info', { system })).silentSeconds >= 1);
  });

  it('list the command that runs, although there is no room for all that wait for it', async (t) => {
    const commands = Array.from({ length: 18 }, (_, index) => {
      return { command: `say-${index}`, state: index === 0 ? 'running' : 'waiting', reason: 'r'.repeat(200) };
    });
    const { target: system } = await startWeb(t, () => ({ status: 'active', commands }));
    const { reported } = await startMcp(t, [system]).call('get_info', { system });
    const names = reported.commands.map(({ command }: { command: string }) => command);
    assert.deepEqual([names[0], names.at(-1)], ['say-0', 'say-17']);
    assert.ok(names.length < 18);
  });

  it('report the status of a server without /api/info, which also shows that commands are done', async (t) => {
    const { port, posted } = await startBasicServer(t, true);
    const system = `localhost:${port}`;
    const mcp = startMcp(t, [system]);
    const { status, reported } = await mcp.call('get_info', { system });
    assert.deepEqual([status, reported?.name], ['active', undefined]);
    assert.equal((await mcp.call('pause', { system, reason: 'a test' })).outcome, 'done');
    assert.equal((await mcp.call('wait', { system, until: 'paused', seconds: 30 })).ended, 'reached');
    for (const goal of ['loss < 1', 'ask']) {
      assert.equal((await mcp.fail('wait', { system, until: goal })).error, 'the server reports its status only');
    }
    const saved = await mcp.call('save_state', { system, reason: 'a test' });
    assert.equal(saved.outcome, 'pending');
    assert.match(saved.note, /reports no outcome/);
    assert.deepEqual(posted, ['pause', 'save-state']);
  });
});

describe('get_history of control-mcp', SUITE, () => {
  it('returns what happened, when, by whom and why, also before it started', async (t) => {
    const path = join(makeFolder(t), 'train.jsonl');
    const hooks = { saveState: () => '1.json' };
    const { address: { port }, client, finished } = await launchSystem(t, hooks, { name: 'train', log: path });
    await client.request('pause', { by: 'ana@laptop', reason: 'lunch', wait: 30 });
    for (let time = 0; time < 3; time += 1) await client.request('save-state', { by: 'cron', wait: 30 });
    await until(() => readFileSync(path, 'utf8').split('"outcome"').length === 5);
    const mcp = startAt(t, [port]);
    const { system, status, entries, note, isCut } = await mcp.call('get_history', { system: at(port) });
    assert.deepEqual([system, status, note, isCut], [at(port), 'paused', undefined, undefined]);
    const times = entries.map(({ time }: { time: string }) => Date.parse(time));
    assert.deepEqual(times, times.toSorted());
    assert.ok(times.every((time: number) => Math.abs(time - Date.now()) < 300_000));
    const cause = { by: 'ana@laptop', reason: 'lunch' };
    const [start, paused, save, ...others] = entries.map(({ time, ...fields }: { time: string }) => fields);
    assert.deepEqual([start, others], [{ event: 'start', version: VERSION }, []]);
    const [{ since }] = paused.holds;
    assert.deepEqual(paused, { event: 'status', status: 'paused', ...cause, holds: [{ ...cause, since }] });
    const { event, state, command, value, by, times: count } = save;
    assert.deepEqual([event, state, command, value, by, count], ['outcome', 'done', 'save-state', '1.json', 'cron', 3]);
    assert.ok(Date.parse(save.firstTime) <= times.at(-1));
    await client.shutdown();
    await finished; // before its folder is removed
  });

  it('returns the latest entries since a time, and says whether earlier ones are left out', async (t) => {
    const path = writeLog(t, ...Array.from({ length: 300 }, (_, index) => {
      return outcome(300 - index, `h-${index}`, { command: `c${index}` });
    }));
    const web = await startWeb(t, () => infoOf(path));
    const mcp = startMcp(t, [web.target]);
    const ago = (minutes: number): string => new Date(Date.now() - minutes * 60_000).toISOString();
    const rows: [args: object, count: number, isCut?: true][] = [
      [{}, 50, true], [{ limit: 200 }, 200, true], [{ limit: 1 }, 1, true], [{ since: '20.5m' }, 20],
      [{ since: ago(20.5) }, 20], [{ since: ago(20.5), limit: 20 }, 20], [{ since: ago(20.5), limit: 19 }, 19, true],
      [{ since: '0.5h', limit: 5 }, 5, true], [{ since: '1s' }, 0],
      [{ since: '2d', limit: 200 }, 200, true], [{ since: '2026-01-01', limit: 200 }, 200, true],
    ];
    for (const [args, count, isCut] of rows) {
      const history = await mcp.call('get_history', { system: web.target, ...args });
      const commands = history.entries.map(({ command }: { command: string }) => command);
      const expected = Array.from({ length: count }, (_, index) => `c${300 - count + index}`);
      assert.deepEqual([commands, history.isCut], [expected, isCut], JSON.stringify(args));
    }
  });

  it('returns the log of a system that has ended, if it has been seen before', async (t) => {
    const { env, serve } = openSession(t);
    const end = entry(1, 'end', { ended: 'exit code 1', exitCode: 1 });
    const path = writeLog(t, entry(3, 'start'), outcome(2, 'a'), end);
    const web = await serve('train-7', () => infoOf(path));
    const other = await serve('other-8', () => infoOf(path, { name: 'other' }));
    const mcp = startMcp(t, [], env);
    await mcp.call('list_systems');
    web.end();
    const { status, entries } = await mcp.call('get_history', { system: 'train-7' });
    assert.deepEqual([status, entries.at(-1).ended], ['offline', 'exit code 1']);
    const nextPath = writeLog(t, outcome(1, 'b'));
    const next = await serve('train-8', () => infoOf(nextPath));
    assert.equal((await mcp.call('get_info', { system: 'train' })).system, 'train-8');
    next.end();
    for (const [id, count] of [['train-7', entries.length], ['train-8', 1]]) {
      const history = await mcp.call('get_history', { system: id });
      assert.deepEqual([history.system, history.status, history.entries.length], [id, 'offline', count]);
    }
    assert.equal((await mcp.call('get_info', { system: 'train' })).system, 'train-8', 'the last one that has ended');
    const late = startMcp(t, [], env);
    const { error } = await late.fail('get_history', { system: 'train-7' });
    assert.match(error, /^there is no system 'train-7'; list_systems returns other-8$/);
    assert.equal((await late.call('get_history', { system: 'other-8' })).note, `no readable entries in ${path}`);
    other.end();
  });

  it('returns no entries, and says why, of systems without a log here, and refuses others', async (t) => {
    const path = writeLog(t, outcome(2, 'a'));
    const webs = await Promise.all([
      infoOf(path, { log: undefined }), infoOf(path, { host: 'gpu1' }), { code: 401, error: 'no token' },
    ].map((info) => startWeb(t, () => info)));
    const secret = await startWeb(t, () => infoOf(path));
    const absent = at(await freePort());
    const mcp = startMcp(t, [...webs.map(({ target }) => target), absent]);
    const unseen = 'it has not responded to you, so the place of its log is unknown';
    const notes = [NO_LOG, `logs on gpu1 to ${path}`, unseen, unseen];
    for (const [index, system] of [...webs.map(({ target }) => target), absent].entries()) {
      const { entries, note } = await mcp.call('get_history', { system });
      assert.deepEqual([entries, note], [[], notes[index]]);
    }
    for (const system of [secret.target, path, 'train', '7', `${secret.port}`]) {
      assert.match((await mcp.fail('get_history', { system })).error, /^there is no system '/);
    }
    assert.deepEqual(secret.requests, []);
  });
});

// ───── Questions ─────────────────────────────────────────────────────────────────────────────────────────────────

describe('A question of a program and control-mcp', SUITE, () => {
  it('is shown by get_info and wait, which also waits for one, and by get_history with its answer', async (t) => {
    const log = join(makeFolder(t), 'train.jsonl');
    const { server, port, client } = await startServer(t, { host: '127.0.0.1', name: 'train', log });
    const mcp = startAt(t, [port]);
    const system = at(port);
    const { tag, reported } = await mcp.call('get_info', { system });
    assert.equal(reported.asks, undefined);
    assert.equal((await mcp.call('wait', { system, until: 'ask', seconds: 1 })).ended, 'timeout');
    const waits = [
      mcp.call('wait', { system, until: 'ask', seconds: 60 }), mcp.call('wait', { system, tag, seconds: 60 }),
    ];
    const parameters = { file: { type: 'string', enum: ['a', 'b'] } } as const;
    const asked = server.ask('Which file?', { parameters, timeout: 900_000 });
    const [reached, changed] = await Promise.all(waits);
    assert.deepEqual([reached.ended, changed.ended], ['reached', 'changed']);
    const info = await mcp.call('get_info', { system });
    const [{ id, at: askedAt, expiresAt, ...question }, ...others] = info.reported.asks;
    assert.deepEqual([question, others], [{ message: 'Which file?', parameters }, []]);
    assert.equal(Date.parse(expiresAt) - Date.parse(askedAt), 900_000);
    const { systems: [listed] } = await mcp.call('list_systems', {});
    for (const one of [reached, changed, listed]) assert.deepEqual(one.reported.asks, info.reported.asks);
    assert.equal((await mcp.call('wait', { system, until: 'ask' })).ended, 'reached', 'it is still open');

    const waiting = mcp.call('wait', { system, tag: info.tag, seconds: 60 });
    await client.request('answer', { id, arguments: { file: 'b' }, by: 'ana@phone', reason: 'looked' });
    await asked;
    const after = await waiting;
    assert.deepEqual([after.ended, after.reported.asks], ['changed', undefined]);
    const { seconds, ...answer } = after.reported.commands[0];
    const given = { arguments: { file: 'b' }, by: 'ana@phone', reason: 'looked' };
    assert.deepEqual(answer, { id, command: 'answer', message: 'Which file?', at: askedAt, state: 'done', ...given });
    await until(() => readFileSync(log, 'utf8').includes('"event":"answer"'));
    const { entries } = await mcp.call('get_history', { system });
    const told = entries.slice(-2).map(({ time, ...fields }: { time: string }) => fields);
    const common = { id, message: 'Which file?' };
    assert.deepEqual(told, [
      { event: 'ask', ...common, parameters, expiresAt },
      { event: 'answer', ...common, command: 'answer', state: 'done', seconds, ...given },
    ]);
  });

  it('is never answered, by no tool, whatever --allow says and the model tries', async (t) => {
    const { server, port, client } = await startServer(t, { host: '127.0.0.1', commands: { evaluate: {} } });
    const asked = server.ask('Delete 3 branches?');
    const [{ id } = assert.fail()] = (await client.getInfo())?.asks ?? [];
    const body = {
      ...ACTIVE, result: 'ok', id: 'k3f-1', state: 'done', accepts: { answer: {}, evaluate: {} }, commands: [],
      asks: [{ id, message: 'Delete 3 branches?', parameters: { approved: { type: 'boolean' } } }],
    };
    const texts = [
      'answer', 'Answer', 'answer\n', `answer?id=${id}`, '../answer', '%61nswer', 'answer\0', `evaluate?id=${id}`, id,
    ];
    const given = { id, approved: true, command: 'answer', endpoint: 'answer', __proto__: null };
    for (const allowed of ['', 'all']) {
      const web = await startWeb(t, () => body); // would take everything
      const mcp = startMcp(t, [...allowed === '' ? [] : ['--allow', allowed], web.target, at(port)]);
      const { tools } = (await mcp.modern('tools/list')).result;
      assert.ok(tools.every(({ name }: { name: string }) => !/answer|ask/.test(name)), 'there is no tool for it');
      for (const name of ['answer', 'answer_question', 'POST /api/answer']) {
        const { error } = await mcp.modern('tools/call', { name, arguments: { system: at(port), ...given } });
        assert.equal(error?.code, -32602, name);
      }
      const calls = TOOLS.flatMap(({ name, inputSchema: { properties = {} } }) => texts.flatMap((text, index) => {
        const isEnd = ['pause', 'save_state', 'shutdown'].includes(name); // these withdraw the question
        const system = isEnd || index % 2 === 0 ? web.target : at(port);
        const all = { system, reason: text, command: text, until: text, tag: text, name: text, since: text };
        const values = Object.entries({ ...all, arguments: given, seconds: 1, mine: true, limit: 1 });
        const fitting = Object.fromEntries(values.filter(([key]) => key in properties));
        return [fitting, { ...fitting, ...given }].map((args) => mcp.modern('tools/call', { name, arguments: args }));
      }));
      assert.ok((await Promise.all(calls)).every(({ result }) => result !== undefined));
      assert.deepEqual(web.requests.filter((request) => /answer/.test(request.replace(/\?.*/, ''))), [], allowed);
      while (server.hasCommands()) { // what the server has taken, so that its queue has room
        server.receiveCommand();
        server.report({});
      }
      await mcp.end();
    }
    const { asks } = await client.getInfo() ?? {};
    assert.deepEqual(asks?.map((one) => one.id), [id], 'it is still open');
    const mcp = startAt(t, [port], ['--allow', 'all']);
    const { error } = await mcp.fail('run_command', { system: at(port), command: 'answer', reason: 'x' });
    assert.equal(error, 'only people answer questions: tell the user, and do not retry');
    await client.request('answer', { id, arguments: { approved: false } });
    assert.equal((await asked).arguments.approved, false);
  });
});

// ───── Waiting ───────────────────────────────────────────────────────────────────────────────────────────────────

describe('wait of control-mcp', SUITE, () => {
  it('ends with a status, a change, also since a tag, or when the detail meets a condition', async (t) => {
    const evaluated = defer();
    t.after(() => evaluated.resolve());
    const detail = { step: 0, loss: 0.5, phase: 'train' };
    const { address: { port }, client } = await launchSystem(t, {
      describe: () => ({ ...detail, step: detail.step += 1 }),
      commands: { look: { run() {} }, evaluate: { run: () => evaluated.promise } },
    });
    const mcp = startAt(t, [port]);
    const system = at(port);
    const wait = (args: object): Promise<any> => mcp.call('wait', { system, seconds: 60, ...args });
    const first = await mcp.call('wait', { system, until: 'active' });
    assert.deepEqual([first.system, first.ended, first.status], [system, 'reached', 'active']);
    const idle = await wait({ seconds: 1.5 });
    assert.equal(idle.ended, 'timeout', 'a new detail is no change');
    for (const [command, status] of [['pause', 'paused'], ['save-state', 'paused'], ['resume', 'active']] as const) {
      const waiting = wait({ until: 'change' });
      const reached = wait({ until: status });
      let hasEnded = false; // a wait that begins after the command sees no change
      while (!hasEnded) {
        await client.request(command, { by: 'ana', reason: 'lunch', wait: 30 });
        hasEnded = await Promise.race([waiting.then(() => true), sleep(300, false)]);
      }
      const { ended, reported } = await waiting;
      assert.deepEqual([ended, reported.commands[0]?.command], ['changed', command]);
      const end = await reached;
      assert.deepEqual([end.ended, end.status], ['reached', status]);
      if (command === 'pause') assert.deepEqual([end.reported.by, end.reported.reason], ['ana', 'lunch']);
    }

    for (let count = 0; count < 20; count += 1) await client.request('look', { wait: 30 });
    let { tag } = await mcp.call('get_info', { system });
    assert.equal((await client.request('evaluate')).ok, true);
    assert.equal((await wait({ tag, seconds: 1 })).ended, 'timeout', 'it runs');
    evaluated.resolve();
    for (const command of ['evaluate', 'pause', 'save-state', 'resume']) {
      if (command !== 'evaluate') await client.request(command, { by: 'ana', wait: 30 });
      const changed = await wait({ tag });
      assert.deepEqual([changed.ended, changed.reported.commands[0].command], ['changed', command]);
      tag = changed.tag;
    }
    await mcp.call('save_state', { system, reason: 'a test' });
    assert.equal((await wait({ tag })).ended, 'changed', 'its own command counts');

    const { ended, value } = await wait({ until: 'phase != test' });
    assert.deepEqual([ended, value], ['reached', 'train']);
    const late = wait({ until: 'loss < 0.1' });
    const never = await wait({ until: 'missing > 0', seconds: 2 });
    const fields = "the detail has no field 'missing', only step, loss, phase";
    assert.deepEqual([never.ended, never.note], ['timeout', fields]);
    detail.loss = 0.05;
    assert.deepEqual([(await late).ended, (await late).value], ['reached', 0.05]);
    await client.request('pause', { wait: 30 });
    detail.loss = 0.01;
    assert.equal((await wait({ until: 'loss < 0.02' })).ended, 'reached', 'paused');
    await Promise.all(['shutting-down', 'shutting down', 'Shutting-Down'].map(async (goal) => {
      assert.equal((await wait({ until: goal, seconds: 1 })).ended, 'timeout', `${goal} is a status`);
    }));
  });

  it('ends with an own command that a later command has overtaken, not when another one arrives', async (t) => {
    const [say, pause, look] = ['say', 'pause', 'look'].map((command, id) => {
      return { command, id: `k3f-${id}`, state: 'done' };
    });
    let commands: object[] = [{ ...say, state: 'waiting' }, pause ?? {}];
    const { target: system } = await startWeb(t, () => ({ status: 'paused', commands }));
    const mcp = startMcp(t, [system]);
    const { tag } = await mcp.call('get_info', { system });
    commands = [{ ...say, state: 'running' }, pause ?? {}, { ...look, state: 'waiting' }];
    assert.equal((await mcp.call('wait', { system, tag, seconds: 1 })).ended, 'timeout');
    commands = [say ?? {}, pause ?? {}, { ...look, state: 'waiting' }];
    assert.equal((await mcp.call('wait', { system, tag })).ended, 'changed');
  });

  it('ends at once when a system goes offline, whatever the goal; a restart is a change since the tag', async (t) => {
    const { address: { port }, client, finished } = await launchSystem(t, { describe: () => ({ loss: 0.5 }) });
    const mcp = startAt(t, [port]);
    const system = at(port);
    const goals = ['change', 'paused', 'loss < 0.1', 'offline'];
    const waiting = goals.map((goal) => mcp.call('wait', { system, until: goal, seconds: 80 }));
    const { tag } = await mcp.call('get_info', { system });
    await sleep(300);
    await client.shutdown();
    await finished;
    const results = await Promise.all(waiting);
    assert.deepEqual(results.slice(1).map(({ ended }) => ended), ['offline', 'offline', 'reached']);
    assert.match(results[0].ended, /^(changed|offline)$/, 'it was shutting down');
    for (const { status, now, reportedAt } of results.slice(1)) {
      assert.equal(status, 'offline');
      assert.ok(reportedAt <= now, 'what it reports is from before');
    }
    assert.equal((await mcp.call('wait', { system, tag, seconds: 80 })).ended, 'offline', 'since the tag');
    await startServer(t, { host: '127.0.0.1', port });
    const { ended, status } = await mcp.call('wait', { system, tag, seconds: 60 });
    assert.deepEqual([ended, status], ['changed', 'active']);
  });

  it('goes on while a system hangs, and is refused without the token', async (t) => {
    const puppet = await startPuppet(t, { silent: true });
    const { port: locked } = await startServer(t, { host: '127.0.0.1', token: TOKEN });
    const mcp = startMcp(t, [puppet.target, at(locked)]);
    const waiting = mcp.call('wait', { system: puppet.target, until: 'paused', seconds: 80 });
    assert.match((await mcp.fail('wait', { system: at(locked), seconds: 80 })).error, /^Missing token/);
    const hung = await mcp.call('wait', { system: puppet.target, until: 'loss < 1', seconds: 1 });
    assert.equal(hung.ended, 'timeout');
    puppet.set({ silent: false, status: 'paused' });
    assert.equal((await waiting).ended, 'reached');
  });

  it('serves 100 waits on one system at once, each with its own goal', async (t) => {
    let status = SystemStatus.ACTIVE;
    const systemStatus = (): SystemStatus => status;
    const { server, port } = await startServer(t, { host: '127.0.0.1', systemStatus, describe: () => ({ loss: 0.5 }) });
    const mcp = startAt(t, [port]);
    const goals = ['change', 'paused', 'loss < 0.1', 'loss >= 0.5'];
    const all = Array.from({ length: 25 }, () => goals).flat().map(async (until) => {
      return (await mcp.call('wait', { system: at(port), until, seconds: 60 })).ended;
    });
    const of = (goal: string): Promise<unknown[]> => Promise.all(all.filter((_, index) => goals[index % 4] === goal));
    await of('loss >= 0.5');
    status = SystemStatus.PAUSED;
    server.hasCommands();
    await of('paused');
    await server.close();
    const ended = await Promise.all(all);
    assert.deepEqual([...new Set(ended)].sort(), ['changed', 'offline', 'reached']);
  });
});

// ───── Which system ──────────────────────────────────────────────────────────────────────────────────────────────

describe('The argument system of control-mcp', SUITE, () => {
  it('is an id of list_systems, or an unambiguous name or process id', async (t) => {
    const { env, serve } = openSession(t);
    const ids = ['12-13', 'bare', 'eval-7', 'exp-8-9', 'train-5', 'train-6'];
    for (const id of ids) await serve(id, () => ({ status: 'active', name: 'claimed', pid: 99 }));
    const mcp = startMcp(t, [], env);
    assert.deepEqual((await idsOf(mcp)).sort(), ids);
    for (const [text, id] of [
      ['train-5', 'train-5'], ['6', 'train-6'], ['eval', 'eval-7'], ['exp-8', 'exp-8-9'], ['bare', 'bare'],
    ]) assert.equal((await mcp.call('get_info', { system: text })).system, id, text);
    const several = await mcp.fail('get_info', { system: 'train' });
    assert.match(several.error, /ambiguous.*train-5.*train-6/);
    assert.doesNotMatch(several.error, /eval/);
    for (const text of ['claimed', '99', 'claimed-99', 'Train-5', 'train-', 'train-5 ', '*', '-5']) {
      const { error } = await mcp.fail('get_info', { system: text });
      assert.match(error, /no system.*train-5/, text);
    }
  });

  it('is never taken for an address', async (t) => {
    const { folder, env, serve } = openSession(t);
    const inFolder = await serve('train-5');
    const other = await startWeb(t);
    const hidden = await startWeb(t, undefined, { socketPath: join(makeFolder(t), 'hidden-6.sock') });
    const mcp = startMcp(t, ['--allow', 'all'], env);
    const [, path = ''] = hidden.target.split(':');
    const addresses = [
      other.target, `:${other.port}`, `http://${other.target}`, hidden.target, path, inFolder.target,
      join(folder, 'train-5.sock'), '../control/train-5',
    ];
    for (const system of addresses) {
      for (const [tool, values] of [['get_info', {}], ['pause', { reason: 'x' }]] as const) {
        assert.match((await mcp.fail(tool, { system, ...values })).error, /no system/, system);
      }
    }
    assert.deepEqual([other.requests, hidden.requests, inFolder.requests], [[], [], []]);
  });

  it('is refused once its user has withdrawn the target', async (t) => {
    const { env, launch, serve } = openSession(t);
    await launch('train');
    const { requests, target } = await serve('eval-5');
    const file = join(makeFolder(t), 'targets');
    writeFileSync(file, `${target}\ntrain-${process.pid}\n`, { mode: 0o600 });
    const mcp = startMcp(t, ['--targets', file], env);
    const [evaluation] = (await mcp.call('list_systems')).systems;
    assert.match(evaluation.system, /eval-5/);
    writeFileSync(file, `train-${process.pid}\n`);
    requests.length = 0;
    assert.match((await mcp.fail('pause', { system: evaluation.system, reason: 'a test' })).error, /no system/);
    assert.match((await mcp.fail('pause', { system: 'eval', reason: 'a test' })).error, /no system/);
    assert.deepEqual(requests, []);
  });

  it('is looked up for each call: systems come and go, also those that are chosen by name', async (t) => {
    const { folder, env, launch, serve } = openSession(t);
    const old = await serve('train-5');
    const mcp = startMcp(t, ['--allow', 'all', 'train'], env);
    assert.deepEqual(await idsOf(mcp), ['train-5']);
    old.end();
    const { systems, note } = await mcp.call('list_systems');
    assert.deepEqual([systems, note], [[], 'none of the targets is running']);
    assert.equal((await mcp.call('get_info', { system: 'train-5' })).status, 'offline');
    assert.equal((await mcp.fail('pause', { system: 'train', reason: 'a test' })).outcome, 'offline');
    const ofDir = startMcp(t, ['--allow', 'all', '--dir', folder]); // and not what listens at the default port
    assert.deepEqual(await idsOf(ofDir), []);
    const { finished } = await launch('train');
    for (const one of [mcp, ofDir]) assert.deepEqual(await idsOf(one), [`train-${process.pid}`]);
    assert.match((await mcp.fail('get_info', { system: 'train-6' })).error, /no system.*train/);
    const end = await mcp.call('shutdown', { system: 'train', reason: 'a test' });
    assert.deepEqual([end.outcome, end.status], ['done', 'offline']);
    await finished;
    assert.match((await mcp.fail('pause', { system: 'eval', reason: 'a test' })).error, /no system.*none/);
  });
});

// ───── Where systems are looked for ──────────────────────────────────────────────────────────────────────────────

describe('The systems of control-mcp', SUITE, () => {
  it('are the targets, those in a file with their tokens, the one of the environment, or those in --dir', async (t) => {
    const { folder, env, launch } = openSession(t);
    await launch('train');
    const { address } = await launchSystem(t);
    const { port: locked } = await startServer(t, { host: '127.0.0.1', token: TOKEN });
    const place = makeFolder(t);
    const [targets, tokenFile] = [join(place, 'targets'), join(place, 'token')];
    writeFileSync(tokenFile, `${TOKEN}\n`);
    chmodSync(tokenFile, 0o600);
    writeFileSync(targets, `# all\n${at(locked)} token-file=token\n\ntrain # by name\n`);
    const fromFile = startMcp(t, ['--targets', targets], env);
    assert.deepEqual(await idsOf(fromFile), [at(locked), `train-${process.pid}`]);
    const { systems } = await fromFile.call('list_systems');
    assert.deepEqual(systems.map(({ status }: { status: string }) => status), ['active', 'active']);
    for (const [rest, status] of [['', 'missing or wrong token'], [' token-file=token', 'active']]) {
      writeFileSync(targets, `${at(locked)}${rest}\ntrain\n`); // its user may edit it
      assert.equal((await fromFile.call('get_info', { system: at(locked) })).status, status);
    }
    const mixed = startMcp(t, ['--targets', targets, at(address.port)], env);
    assert.deepEqual(await idsOf(mixed), [at(address.port), at(locked), `train-${process.pid}`]);
    const ofDir = startMcp(t, ['--dir', folder]);
    assert.deepEqual(await idsOf(ofDir), [`train-${process.pid}`]);
    const byPort = startMcp(t, [], { ...env, CONTROL_HOST: '127.0.0.1', CONTROL_PORT: `${address.port}` });
    assert.deepEqual(await idsOf(byPort), [at(address.port)], 'not those in the folder');
  });

  it('are what runs here, also at the default port, and what starts later', { skip: lacks('root') }, async (t) => {
    const { port } = await startServer(t, { host: '127.0.0.1' });
    const { folder, serve } = openSession(t);
    const mcp = startMcp(t, [], hereIs(folder, port));
    assert.deepEqual(await idsOf(mcp), ['localhost:8391']);
    assert.equal((await mcp.call('get_info', { system: 'localhost:8391' })).status, 'active');
    await serve('train-5');
    assert.deepEqual((await idsOf(mcp)).sort(), ['localhost:8391', 'train-5']);
    const foreign = startMcp(t, [], hereIs(makeFolder(t), port, 12345));
    const { note } = await foreign.call('list_systems');
    assert.equal(note, 'nothing runs here; localhost:8391 belongs to user 12345: --port 8391 means it');
  });
});

