// The tools of control-mcp with live systems: the commands that arrive, and the results of the calls.

import assert from 'node:assert/strict';
import { chmodSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../../control.ts';
import {
  clientAt, defer, freePort, getInfo, launchSystem, makeFolder, platformIs, preload, startOldServer, startServer, TOKEN,
  until,
} from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { hideFailures, openSession, startFull, startOwnProcess, startSilent, startWeb } from '../client/systems.ts';
import { AT_ONCE, startMcp, valueOf } from './helpers.ts';
import type { CommandRequest } from '../../../../control.ts';
import type { TestContext } from 'node:test';
import type { Mcp } from './helpers.ts';

hideFailures();

const SUITE = { ...AT_ONCE, skip: lacks('Unix') };
const LINUX = { skip: lacks('Linux') };
const CLIENT_INFO = 'io.modelcontextprotocol/clientInfo';

/** Starts control-mcp for the systems at these ports. Their ids are `127.0.0.1:PORT`. */
function startAt(t: TestContext, ports: readonly number[], args: readonly string[] = [], env?: NodeJS.ProcessEnv): Mcp {
  return startMcp(t, [...args, ...ports.map(at)], env);
}

function at(port: number): string {
  return `127.0.0.1:${port}`;
}

// ───── Commands ──────────────────────────────────────────────────────────────────────────────────────────────────

describe('The commands of control-mcp', SUITE, () => {
  it('arrive with their sender and reason, in both eras', async (t) => {
    const received: unknown[] = [];
    const note = ({ command, by, reason }: CommandRequest<string>): void => void received.push([command, by, reason]);
    const { address: { port } } = await launchSystem(t, {
      onPaused: note,
      onResumed: note,
      saveState: (_, request) => note(request),
      commands: { evaluate: { parameters: { episodes: { type: 'integer' } }, run: (_, request) => note(request) } },
    });
    const mcp = startAt(t, [port], ['--allow', 'all']);
    const calls: [tool: string, reason: string, values?: object][] = [
      ['pause', 'the GPU is needed'], ['save_state', 'before the reboot'], ['resume', 'ü 😀'],
      ['run_command', 'r'.repeat(200), { command: 'evaluate', arguments: { episodes: 7 } }],
    ];
    const callers: [name: unknown, by: string][] = [
      ['claude-code', 'mcp:claude-code'], ['é\x07😀', 'mcp:é 😀'], [undefined, 'mcp'], ['', 'mcp'], [7, 'mcp'],
    ];
    for (const [name, by] of callers) {
      const meta = { [CLIENT_INFO]: name === undefined ? undefined : { name, version: '1' } };
      const params = { name: 'pause', arguments: { system: at(port), reason: 'a test' } };
      valueOf((await mcp.modern('tools/call', params, meta)).result);
      assert.deepEqual(received.splice(0), [['pause', by, 'a test']]);
      await mcp.call('resume', { system: at(port), reason: 'again' });
      received.length = 0;
    }
    await mcp.initialize(undefined, 'inspector');
    for (const [tool, reason, values] of calls) await mcp.call(tool, { system: at(port), reason, ...values });
    const by = 'mcp:inspector';
    assert.deepEqual(received, [
      ['pause', by, 'the GPU is needed'], ['save-state', by, 'before the reboot'], ['resume', by, 'ü 😀'],
      ['evaluate', by, 'r'.repeat(200)],
    ]);
  });

  it('say who had already paused the system', async (t) => {
    const { address: { port }, client } = await launchSystem(t);
    const mcp = startAt(t, [port]);
    const call = { system: at(port), reason: 'a test' };
    assert.deepEqual([(await mcp.call('pause', call)).note, (await mcp.call('pause', call)).note], [undefined, undefined]);
    await client.request('resume', { wait: 30 });
    await client.request('pause', { by: 'ana@laptop', wait: 30 });
    const { outcome, note } = await mcp.call('pause', call);
    assert.deepEqual([outcome, note], ['done', 'it was already paused by ana@laptop: see commands of get_info']);
  });
});

describe('A command of control-mcp that is not done', SUITE, () => {
  it('has failed, with the error of the program', async (t) => {
    let isOver = false;
    t.after(() => (isOver = true));
    const fail = (): void => assert.ok(isOver, 'disk full');
    const { address: { port } } = await launchSystem(t, { saveState: fail, commands: { evaluate: { run: fail } } });
    const mcp = startAt(t, [port], ['--allow', 'all']);
    for (const [tool, command] of [['save_state', 'save-state'], ['run_command', 'evaluate']] as const) {
      const values = { system: at(port), reason: 'a test', ...tool === 'run_command' && { command } };
      const { error, ...result } = await mcp.fail(tool, values);
      assert.deepEqual([result.system, result.command, result.outcome], [at(port), command, 'failed']);
      assert.match(error, /disk full$/);
    }
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

  it('is refused without the token, and with wrong arguments', async (t) => {
    const { port } = await startServer(t, { host: '127.0.0.1', token: TOKEN });
    const parameters = { episodes: { type: 'integer', minimum: 1 } } as const;
    const { address } = await launchSystem(t, { commands: { evaluate: { parameters, run: () => assert.fail() } } });
    const mcp = startAt(t, [port, address.port], ['--allow', 'all']);
    const denied = await mcp.fail('pause', { system: at(port), reason: 'a test' });
    assert.deepEqual([denied.outcome, denied.command], ['refused', 'pause']);
    assert.match(denied.error, /Missing or wrong token/);
    const rows: [values: object, error: RegExp][] = [
      [{ command: 'evaluate', arguments: { episodes: '1' } }, /episodes must be an integer from 1, got "1"$/],
      [{ command: 'evaluate', arguments: { episodes: 1, x: 'x'.repeat(5000) } }, /./],
      [{ command: 'evalute' }, /evalute.*evaluate/s],
    ];
    for (const [values, error] of rows) {
      const failure = await mcp.fail('run_command', { system: at(address.port), reason: 'a test', ...values });
      assert.match(failure.error, error);
      assert.notEqual(failure.outcome, 'failed');
    }
    assert.deepEqual((await getInfo(address.port)).commands, []);
  });

  it('is offline or unanswered: nothing listens, the connection is cut, the process is stopped', LINUX, async (t) => {
    const offline = await freePort();
    const cut = await startWeb(t, () => null);
    const stopped = await startOwnProcess(t);
    await stopped.stop();
    const full = await startFull(t);
    const silent = await startSilent(t);
    const mcp = startMcp(t, [at(offline), cut.target, at(stopped.port), `unix:${full}`, silent]);
    const rows: [system: string, outcome: string, error: RegExp][] = [
      [at(offline), 'offline', /ECONNREFUSED/],
      [cut.target, 'unanswered', /pause sent, but no response .*it may still take effect/],
      [at(stopped.port), 'unanswered', /pause sent, but no response .*it may still take effect/],
      [silent, 'unanswered', /pause sent, but no response .*it may still take effect/],
      [`unix:${full}`, 'unanswered', /pause not sent: .*queue of connections is full/],
    ];
    await Promise.all(rows.map(async ([system, expected, message]) => {
      const { error, ...result } = await mcp.fail('pause', { system, reason: 'a test', seconds: 2 });
      assert.deepEqual([result.system, result.command, result.outcome], [system, 'pause', expected], error);
      assert.match(error, message);
    }));
    stopped.child.kill('SIGCONT');
    await until(async () => (await getInfo(stopped.port)).status === 'paused');
  });
});

// ───── What is allowed ───────────────────────────────────────────────────────────────────────────────────────────

describe('control-mcp --allow', SUITE, () => {
  it('permits only the listed commands, and names the missing word for the others', async (t) => {
    const taken: string[] = [];
    const run = (_: object, { command }: CommandRequest<string>): void => void taken.push(command);
    const { address: { port } } = await launchSystem(t, {
      onResumed: () => void taken.push('resume'), onShutdown: () => void taken.push('shutdown'),
      commands: { a: { run }, b: { run }, c: { run } },
    });
    const system = at(port);
    const calls: [what: string, tool: string, command?: string][] = [
      ['resume', 'resume'], ['run:a', 'run_command', 'a'], ['run:b', 'run_command', 'b'],
      ['run:c', 'run_command', 'c'], ['shutdown', 'shutdown'],
    ];
    const lists: [args: string[], allowed: string[]][] = [
      [[], []], [['--allow', 'run:a,run:b'], ['run:a', 'run:b']], [['--allow', 'resume'], ['resume']],
      [['--allow', 'all'], ['resume', 'run:a', 'run:b', 'run:c', 'shutdown']],
    ];
    for (const [args, allowed] of lists) {
      const mcp = startAt(t, [port], args);
      const { tools } = (await mcp.modern('tools/list')).result;
      const listed: string[] = tools.slice(5).map(({ name }: { name: string }) => name); // five are always available
      const expected = new Set(allowed.map((what) => what.replace(/^run:.*/, 'run_command')));
      assert.deepEqual(listed.sort(), [...expected].sort());
      await mcp.call('pause', { system, reason: 'a test' });
      for (const [what, tool, command] of calls) {
        const values = { system, reason: 'a test', ...command !== undefined && { command } };
        if (allowed.includes(what)) {
          assert.equal((await mcp.call(tool, values)).outcome, 'done', what);
        } else {
          const { error } = await mcp.fail(tool, values);
          assert.match(error, new RegExp(`--allow ${what.replace(/^run:(.)/, 'run:($1|COMMAND)')}$`), what);
        }
      }
      await mcp.end();
      const names = allowed.map((what) => what.replace('run:', ''));
      assert.deepEqual(taken.splice(0), names, `${args}`);
    }
  });

  it('never permits run_command to send a command that has its own tool or an invalid one', async (t) => {
    const { server, port } = await startServer(t, { host: '127.0.0.1', commands: { evaluate: {} } });
    const mcp = startAt(t, [port], ['--allow', 'all']);
    const rows: [command: string, error: RegExp][] = [
      ...['pause', 'resume', 'save-state', 'shutdown'].map((command): [string, RegExp] => {
        return [command, /not an own command of a program: call \w/];
      }),
      ...['status', 'info', 'Evaluate', '../pause', 'evaluate?by=ana', '__proto__'].map((command): [string, RegExp] => {
        return [command, /no program has a command/];
      }),
      ['', /^command must be/], ['constructor', /./], ['evalute', /\bevaluate\b/],
    ];
    for (const [command, error] of rows) {
      assert.match((await mcp.fail('run_command', { system: at(port), command, reason: 'x' })).error, error, command);
    }
    assert.equal(server.hasCommands(), false);
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
    const cause = { since: body?.['since'], by: 'ana', reason: 'lunch' };
    await until(async () => { // a busy host may report no detail in time
      const { systems: [row] } = await mcp.call('list_systems');
      if (row.reported?.detail === undefined) return false;
      assert.deepEqual(row, { system, status: 'paused', reported: { ...cause, detail } });
      return true;
    });
    const { tag, reported, now, ...info } = await mcp.call('get_info', { system });
    assert.deepEqual(info, { system, status: 'paused' });
    assert.match(tag, /./);
    const { commands, ...fields } = reported;
    const { name, pid, host, version, startedAt, accepts } = body ?? {};
    const expected = { name, pid, host, version, startedAt, ...cause, detail };
    for (const [field, value] of Object.entries({ ...expected, accepts })) {
      assert.deepEqual(fields[field], value, field);
    }
    assert.deepEqual(accepts, { evaluate: { description: 'Runs episodes', parameters } });
    assert.deepEqual([commands.length, commands[0].command, commands[0].state], [1, 'pause', 'done']);
  });

  it('report the status of a server without /api/info, which also shows that commands are done', async (t) => {
    const { port, posted } = await startOldServer(t, true);
    const system = `localhost:${port}`;
    const mcp = startMcp(t, [system]);
    const { status, reported } = await mcp.call('get_info', { system });
    assert.deepEqual([status, reported?.name], ['active', undefined]);
    assert.equal((await mcp.call('pause', { system, reason: 'a test' })).outcome, 'done');
    assert.equal((await mcp.call('wait', { system, until: 'paused', seconds: 30 })).ended, 'reached');
    assert.equal((await mcp.fail('wait', { system, until: 'loss < 1' })).error, 'the server reports only its status');
    const saved = await mcp.call('save_state', { system, reason: 'a test' });
    assert.equal(saved.outcome, 'pending');
    assert.match(saved.note, /reports no outcome/);
    assert.deepEqual(posted, ['pause', 'save-state']);
  });

  it('say why a system does not respond', LINUX, async (t) => {
    const { port: locked } = await startServer(t, { host: '127.0.0.1', token: TOKEN });
    const stopped = await startOwnProcess(t);
    await stopped.stop();
    const offline = await freePort();
    const foreign = await startWeb(t, () => ({ hello: 'world' }));
    const mcp = startAt(t, [locked, stopped.port, offline, foreign.port]);
    const expected: [port: number, status: string, error?: RegExp][] = [
      [locked, 'missing or wrong token', /^Missing or wrong token/],
      [stopped.port, 'no answer', /has not responded|no response|no answer/],
      [offline, 'offline'],
      [foreign.port, 'offline', /is not a control server/],
    ];
    const [{ systems }, ...infos] = await Promise.all([
      mcp.call('list_systems'), ...expected.map(([port]) => mcp.call('get_info', { system: at(port) })),
    ]);
    for (const [index, [port, status, error]] of expected.entries()) {
      for (const report of [systems[index], infos[index]]) {
        assert.deepEqual([report.system, report.status], [at(port), status]);
        if (error === undefined) assert.equal(report.error, undefined);
        else assert.match(report.error, error);
      }
      assert.equal(infos[index].reported, undefined);
    }
  });
});

// ───── Waiting ───────────────────────────────────────────────────────────────────────────────────────────────────

describe('wait of control-mcp', SUITE, () => {
  it('ends when a status is reached, or at once if it already is', async (t) => {
    const { address: { port }, client } = await launchSystem(t);
    const mcp = startAt(t, [port]);
    const system = at(port);
    const first = await mcp.call('wait', { system, until: 'active' });
    assert.deepEqual([first.system, first.ended, first.status], [system, 'reached', 'active']);
    const waiting = mcp.call('wait', { system, until: 'paused', seconds: 60 });
    await mcp.settled();
    await client.request('pause', { by: 'ana', reason: 'lunch' });
    const { ended, status, tag, reported } = await waiting;
    assert.deepEqual([ended, status, reported.by, reported.reason], ['reached', 'paused', 'ana', 'lunch']);
    assert.match((await mcp.fail('wait', { system, until: 'paused', tag })).error, /^tag is for until: change/);
  });

  it('ends with a change of the status, of its cause, or of a command, but not of the detail', async (t) => {
    let step = 0;
    const { address: { port }, client } = await launchSystem(t, { describe: () => ({ step: step += 1 }) });
    const mcp = startAt(t, [port]);
    const system = at(port);
    const idle = await mcp.call('wait', { system, seconds: 3 });
    assert.deepEqual([idle.ended, idle.status, idle.silentSeconds], ['timeout', 'active', undefined]);
    for (const [command, status] of [['pause', 'paused'], ['save-state', 'paused'], ['resume', 'active']] as const) {
      const waiting = mcp.call('wait', { system, until: 'change', seconds: 60 });
      await sleep(300);
      await client.request(command, { by: 'ana', wait: 30 });
      const { ended, reported } = await waiting;
      assert.deepEqual([ended, reported.commands[0]?.command], ['changed', command]);
      await until(async () => (await mcp.call('get_info', { system })).status === status);
    }
  });

  it('misses no change since the tag of an earlier result', async (t) => {
    const evaluated = defer();
    t.after(() => evaluated.resolve());
    const { address: { port }, client } = await launchSystem(t, {
      commands: { look: { run() {} }, evaluate: { run: () => evaluated.promise } },
    });
    const mcp = startAt(t, [port]);
    const system = at(port);
    for (let count = 0; count < 20; count += 1) await client.request('look', { wait: 30 });
    let { tag } = await mcp.call('get_info', { system });
    assert.equal((await client.request('evaluate')).ok, true);
    assert.equal((await mcp.call('wait', { system, tag, seconds: 1 })).ended, 'timeout', 'it runs');
    evaluated.resolve();
    for (const command of ['evaluate', 'pause', 'save-state']) {
      if (command !== 'evaluate') await client.request(command, { by: 'ana', wait: 30 });
      const changed = await mcp.call('wait', { system, tag, seconds: 60 });
      assert.deepEqual([changed.ended, changed.reported.commands[0].command], ['changed', command]);
      tag = changed.tag;
    }
    await mcp.call('save_state', { system, reason: 'a test' });
    assert.equal((await mcp.call('wait', { system, tag, seconds: 60 })).ended, 'changed', 'its own command counts');
  });

  it('ends when the detail meets a condition, and returns the value', async (t) => {
    const detail: Record<string, unknown> = { loss: 0.5, phase: 'train' };
    const { address: { port }, client } = await launchSystem(t, { describe: () => detail });
    const mcp = startAt(t, [port]);
    const system = at(port);
    const { ended, value } = await mcp.call('wait', { system, until: 'phase != test', seconds: 60 });
    assert.deepEqual([ended, value], ['reached', 'train']);
    const late = mcp.call('wait', { system, until: 'loss < 0.1', seconds: 60 });
    const never = mcp.call('wait', { system, until: 'missing > 0', seconds: 2 });
    assert.deepEqual([(await never).ended, (await never).note], [
      'timeout', `the detail has no field 'missing', only loss, phase`,
    ]);
    detail['loss'] = 0.05;
    assert.deepEqual([(await late).ended, (await late).value], ['reached', 0.05]);
    await client.request('pause', { wait: 30 });
    detail['loss'] = 0.01;
    assert.equal((await mcp.call('wait', { system, until: 'loss < 0.02', seconds: 60 })).ended, 'reached', 'paused');
  });

  it('ends at once when a system goes offline, whatever the goal', async (t) => {
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
  });

  it('reports a restart as a change since the tag of the previous process', async (t) => {
    const port = await freePort();
    const first = await startServer(t, { host: '127.0.0.1', port });
    const mcp = startAt(t, [port]);
    const system = at(port);
    const { tag } = await mcp.call('get_info', { system });
    await first.server.close();
    await startServer(t, { host: '127.0.0.1', port });
    const { ended, status } = await mcp.call('wait', { system, tag, seconds: 60 });
    assert.deepEqual([ended, status], ['changed', 'active']);
  });

  it('goes on while a system hangs, and is refused without the token', LINUX, async (t) => {
    const { port, child, stop } = await startOwnProcess(t);
    const { port: locked } = await startServer(t, { host: '127.0.0.1', token: TOKEN });
    const mcp = startAt(t, [port, locked]);
    await stop();
    const waiting = mcp.call('wait', { system: at(port), until: 'paused', seconds: 80 });
    const denied = await mcp.fail('wait', { system: at(locked), seconds: 80 });
    assert.match(denied.error, /^Missing or wrong token/);
    const hung = await mcp.call('wait', { system: at(port), until: 'loss < 1', seconds: 1 });
    assert.equal(hung.ended, 'timeout');
    child.kill('SIGCONT');
    await clientAt(t, { host: '127.0.0.1', port }).pause();
    assert.equal((await waiting).ended, 'reached');
  });

  it('serves 300 waits on one system with hardly more requests than one wait', async (t) => {
    let status = SystemStatus.ACTIVE;
    let samples = 0;
    const systemStatus = (): SystemStatus => {
      samples += 1;
      return status;
    };
    const { server, port } = await startServer(t, { host: '127.0.0.1', systemStatus, describe: () => ({ loss: 0.5 }) });
    const mcp = startAt(t, [port]);
    const waitAll = (goals: readonly string[], seconds: number): Promise<string[]> => {
      const goalsOfAll = Array.from({ length: 100 }, () => goals).flat();
      return Promise.all(goalsOfAll.map(async (until) => {
        return (await mcp.call('wait', { system: at(port), until, seconds })).ended;
      }));
    };
    const endsOf = (ended: readonly string[]): string[] => [...new Set(ended)].sort();
    assert.deepEqual(endsOf(await waitAll(['change', 'paused', 'loss < 0.1'], 4)), ['timeout']);
    const before = samples;
    const all = waitAll(['change', 'paused', 'loss < 0.1', 'loss >= 0.5'], 60);
    await sleep(4000);
    assert.ok(samples - before < 200, `${samples - before} samples`); // one wait alone: 12
    status = SystemStatus.PAUSED;
    server.hasCommands();
    await sleep(1000);
    await server.close();
    assert.deepEqual(endsOf(await all), ['changed', 'offline', 'reached']);
  });

  it('accepts any status or condition, and nothing else', async (t) => {
    const { port } = await startServer(t, { host: '127.0.0.1', systemStatus: () => SystemStatus.SHUTTING_DOWN });
    const mcp = startAt(t, [port]);
    for (const goal of ['shutting-down', 'shutting down', 'Shutting-Down']) {
      assert.equal((await mcp.call('wait', { system: at(port), until: goal })).ended, 'reached', goal);
    }
    for (const goal of ['', 'pause', 'pausedx', 'loss', 'loss <', '< 1', 'loss < x', 'change ', 'a < b < 1']) {
      const { error } = await mcp.fail('wait', { system: at(port), until: goal });
      assert.match(error, /^(until|a condition) must /, goal);
    }
  });
});

// ───── Which system ──────────────────────────────────────────────────────────────────────────────────────────────

describe('The argument system of control-mcp', SUITE, () => {
  it('is an id of list_systems, or an unambiguous name or process id', async (t) => {
    const { folder, env } = openSession(t);
    const webs = new Map<string, string[]>();
    for (const id of ['train-5', 'train-6', 'eval-7', 'exp-8-9', 'bare', '12-13']) {
      const respond = (): object => ({ status: 'active', result: 'ok', name: 'claimed', pid: 99 });
      const { requests } = await startWeb(t, respond, { socketPath: join(folder, `${id}.sock`) });
      webs.set(id, requests);
    }
    const mcp = startMcp(t, [], env);
    const { systems } = await mcp.call('list_systems');
    const ids = systems.map(({ system }: { system: string }) => system);
    assert.deepEqual(ids.sort(), [...webs.keys()].sort());
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
    const { folder, env } = openSession(t);
    const inFolder = await startWeb(t, undefined, { socketPath: join(folder, 'train-5.sock') });
    const other = await startWeb(t);
    const hidden = await startWeb(t, undefined, { socketPath: join(makeFolder(t), 'hidden-6.sock') });
    const mcp = startMcp(t, ['--allow', 'all'], env);
    const [, path = ''] = hidden.target.split(':');
    const addresses = [
      other.target, `:${other.port}`, `http://${other.target}`, hidden.target, path, inFolder.target,
      join(folder, 'train-5.sock'), '../control/train-5', 'localhost', '127.0.0.1',
    ];
    for (const system of addresses) {
      for (const [tool, values] of [['get_info', {}], ['pause', { reason: 'x' }], ['wait', { seconds: 1 }]] as const) {
        assert.match((await mcp.fail(tool, { system, ...values })).error, /no system/, system);
      }
    }
    assert.deepEqual([other.requests, hidden.requests, inFolder.requests], [[], [], []]);
  });

  it('is refused once its user has withdrawn the target', async (t) => {
    const { folder, launch } = openSession(t);
    await launch('train');
    const socketPath = join(folder, 'eval-5.sock');
    const { requests } = await startWeb(t, undefined, { socketPath });
    const file = join(makeFolder(t), 'targets');
    writeFileSync(file, `unix:${socketPath}\ntrain-${process.pid}\n`, { mode: 0o600 });
    const mcp = startMcp(t, ['--targets', file], { XDG_RUNTIME_DIR: dirname(folder) });
    const [evaluation] = (await mcp.call('list_systems')).systems;
    assert.match(evaluation.system, /eval-5/);
    writeFileSync(file, `train-${process.pid}\n`);
    requests.length = 0;
    assert.match((await mcp.fail('pause', { system: evaluation.system, reason: 'a test' })).error, /no system/);
    assert.match((await mcp.fail('pause', { system: 'eval', reason: 'a test' })).error, /no system/);
    assert.deepEqual(requests, []);
  });

  it('is looked up for each call: systems come and go', async (t) => {
    const { folder, launch } = openSession(t);
    const mcp = startMcp(t, ['--allow', 'all', '--dir', folder]); // and not what listens at the default port
    const ids = async (): Promise<string[]> => {
      const { systems } = await mcp.call('list_systems');
      return systems.map(({ system }: { system: string }) => system);
    };
    const socketPath = join(folder, 'old-5.sock');
    const old = await startWeb(t, undefined, { socketPath });
    assert.deepEqual(await ids(), ['old-5']);
    old.end();
    const { finished } = await launch('train');
    assert.deepEqual(await ids(), [`train-${process.pid}`]);
    assert.equal((await mcp.call('get_info', { system: 'old-5' })).status, 'offline');
    assert.match((await mcp.fail('get_info', { system: 'old-6' })).error, /no system.*train/);
    await mcp.call('shutdown', { system: 'train', reason: 'a test' });
    await finished;
    assert.deepEqual(await ids(), []);
    assert.equal((await mcp.fail('pause', { system: 'train', reason: 'a test' })).outcome, 'offline');
    assert.match((await mcp.fail('pause', { system: 'eval', reason: 'a test' })).error, /no system.*none/);
  });
});

// ───── Where systems are looked for ──────────────────────────────────────────────────────────────────────────────

describe('The systems of control-mcp', SUITE, () => {
  const idsOf = async (mcp: Mcp): Promise<string[]> => {
    const { systems } = await mcp.call('list_systems');
    return systems.map(({ system }: { system: string }) => system);
  };

  it('are the targets, those in a file with their tokens, or the systems in --dir', async (t) => {
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
    const mixed = startMcp(t, ['--targets', targets, at(address.port)], env);
    assert.deepEqual(await idsOf(mixed), [at(address.port), at(locked), `train-${process.pid}`]);
    const ofDir = startMcp(t, ['--dir', folder]);
    assert.deepEqual(await idsOf(ofDir), [`train-${process.pid}`]);
    assert.equal((await ofDir.call('get_info', { system: 'train' })).status, 'active');
    const withFile = startMcp(t, [at(locked)], { CONTROL_TOKEN_FILE: tokenFile });
    assert.equal((await withFile.call('get_info', { system: at(locked) })).status, 'active');
  });

  it('may end and start again if they are chosen by name: that is never a host', async (t) => {
    const { folder, env } = openSession(t);
    const first = await startWeb(t, undefined, { socketPath: join(folder, 'train-5.sock') });
    const mcp = startMcp(t, ['train'], env);
    assert.deepEqual(await idsOf(mcp), ['train-5']);
    first.end();
    const { systems, note } = await mcp.call('list_systems');
    assert.deepEqual([systems, note], [[], 'none of the targets is running']);
    assert.equal((await mcp.fail('pause', { system: 'train', reason: 'a test' })).outcome, 'offline');
    await startWeb(t, undefined, { socketPath: join(folder, 'train-6.sock') });
    assert.deepEqual(await idsOf(mcp), ['train-6']);
  });

  it('are the one at the address in the environment, not those in the folder', async (t) => {
    const { env, launch } = openSession(t);
    await launch('train');
    const { address: { port } } = await launchSystem(t);
    const byPort = startMcp(t, [], { ...env, CONTROL_HOST: '127.0.0.1', CONTROL_PORT: `${port}` });
    assert.deepEqual(await idsOf(byPort), [at(port)]);
    assert.equal((await byPort.call('get_info', { system: at(port) })).status, 'active');
  });

  it('are the one at the default port if there is none in the folder', async (t) => {
    const { address: { port } } = await launchSystem(t);
    const { env, launch } = openSession(t);
    const mcp = startMcp(t, [], { ...env, ...redirectDefaultPort(port) });
    assert.deepEqual(await idsOf(mcp), ['localhost:8391']);
    assert.equal((await mcp.call('get_info', { system: 'localhost:8391' })).status, 'active');
    const alone = startMcp(t, [], { ...openSession(t).env, ...redirectDefaultPort(await freePort()) });
    assert.deepEqual(await idsOf(alone), []);
    assert.match((await alone.fail('get_info', { system: 'localhost:8391' })).error, /no system.*none now$/);
    await launch('train');
    assert.deepEqual(await idsOf(mcp), [`train-${process.pid}`]);
    const ofDir = startMcp(t, ['--dir', makeFolder(t)], redirectDefaultPort(port));
    assert.deepEqual(await idsOf(ofDir), [], 'not with --dir');
    const windows = startMcp(t, [], { ...env, ...redirectDefaultPort(port, 'win32') });
    assert.deepEqual(await idsOf(windows), ['localhost:8391'], 'there is no folder');
  });
});

/** Redirects connections from the default port, where a developer may have a program of their own. */
function redirectDefaultPort(port: number, platform: NodeJS.Platform = process.platform): NodeJS.ProcessEnv {
  const program = `
    import { Socket } from 'node:net';
    ${platformIs(platform)}
    const { connect } = Socket.prototype;
    Socket.prototype.connect = function (...args) {
      const [options] = args.flat();
      if (options?.port === 8391) Object.assign(options, { port: ${port}, host: '127.0.0.1' });
      return connect.apply(this, args);
    };
  `;
  return preload(program);
}
