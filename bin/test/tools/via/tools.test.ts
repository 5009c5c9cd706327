// --via in every tool: two machines with systems of the same names and process ids, one of which goes and comes back.

import assert from 'node:assert/strict';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { makeFolder, runProgram } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { checkMetrics, startBoard, untilSystem, untilSystems } from '../board/helpers.ts';
import { linesOf, watch } from '../client/helpers.ts';
import { prompt, terminal } from '../console/helpers.ts';
import { READY, startHelped } from '../kbctl/helpers.ts';
import { NO_LOG } from '../logs.ts';
import { startMcp } from '../mcp/helpers.ts';
import { callVia, openMachine, optionsOf } from './helpers.ts';
import type { TestContext } from 'node:test';
import type { Machine } from './helpers.ts';

const SUITE = { ...LIMIT, concurrency: 2, skip: lacks('Unix') };
/** The name and process id of a system that the test launches, without its machine. */
const TITLE = `train-${process.pid}`;
const AWAY = 'sh ended with exit code 255: no route to host';
const GONE = `(sh was killed by SIGKILL|${AWAY})`;

const [at, parameters] = ['2026-01-01T00:00:00Z', { ok: { type: 'boolean' } }];
const asks = [{ id: 'k3f-q2', message: 'Go on?', parameters, at }];
const EVAL = { name: 'eval', status: 'active', host: 'gpu1', asks, log: { path: '/var/log/x.jsonl' } };

/** Two machines, each with a system of the same name and process id. */
async function openPair(t: TestContext): Promise<{ a: Machine; b: Machine; vias: string[] }> {
  const [a, b] = [openMachine(t, 'a'), openMachine(t, 'b')];
  const hooks = { describe: () => ({ loss: 0.3 }), commands: { evaluate: { run: () => 7 } } };
  for (const { launch } of [a, b]) await launch('train', hooks);
  return { a, b, vias: optionsOf([a.via, b.via]) };
}

describe('a machine that leaves and comes back', SUITE, () => {
  it('has no answer, and is never offline, in every tool', { skip: lacks('script') }, async (t) => {
    const { a, b, vias } = await openPair(t);
    const { requests } = await b.serve('eval-6', ({ url = '' }) => /answer/.test(url) ? { result: 'ok' } : EVAL);
    a.leave();
    const [board, mcp] = [await startBoard(t, [], vias), startMcp(t, vias)];
    assert.ok(board.running.output().includes(`control-board: a: ${AWAY}\n`), board.running.output());
    const statuses = new Set<string>();
    const boardShows = (expected: Record<string, string>): Promise<unknown> => untilSystems(board, (systems) => {
      for (const { status } of systems) statuses.add(status);
      const shown = Object.fromEntries(systems.map(({ name, status }) => [name, status]));
      return Object.entries(expected).every(([name, status]) => shown[name] === status);
    });
    const mcpLists = (status: string): Promise<void> => until(async () => {
      const { systems } = await mcp.call('list_systems');
      const own = systems.find(({ system }: { system: string }) => system === `a/${TITLE}`);
      return own?.status === status;
    });
    await boardShows({ 'a': 'no answer', 'b/train': 'active', 'b/eval': 'active' });
    const { systems, note } = await mcp.call('list_systems');
    assert.deepEqual([systems.length, note], [2, `a: ${AWAY}`]);
    const { error } = await mcp.fail('get_info', { system: `a/${TITLE}` });
    assert.equal(error, `there is no system 'a/${TITLE}'; list_systems returns b/eval-6, b/${TITLE}; ${note}`);

    a.comeBack();
    const runs = join(makeFolder(t), 'runs');
    const hook = ['--exec', `echo "$CONTROL_TARGET $CONTROL_STATUS" >> '${runs}'`, '--on', 'offline,no-answer'];
    const watches = [watch(t, [...vias, 'train', ...hook]), watch(t, ['--via', a.via, '--all', '--json'])] as const;
    const keys = startHelped(t, [...vias, 'a/train']);
    keys.say(READY);
    const screen = await terminal(t, `--via '${a.via}' a/train`);
    await Promise.all([
      watches[0].shows(/a\/train  active/), watches[0].shows(/b\/train  active/), watches[1].shows(/"status":"active"/),
      keys.shows(/^a\/train: active$/m), screen.shows(new RegExp(prompt('active.*'))),
      boardShows({ 'a/train': 'active', 'b/train': 'active' }), mcpLists('active'),
    ]);
    const ambiguous = await mcp.fail('pause', { system: 'train', reason: 'lunch' });
    assert.equal(ambiguous.error, `'train' is ambiguous: use one of a/${TITLE}, b/${TITLE}`);

    a.leave();
    await Promise.all([
      watches[0].shows(new RegExp(`a/train  no answer: ${GONE}`)), watches[1].shows(/"status":"no answer"/),
      keys.shows(/^a\/train: no answer$/m), boardShows({ 'a/train': 'no answer' }), mcpLists('no answer'),
      screen.type('pause\r', new RegExp(`pause not sent: a/unix:\\S+ does not respond: ${GONE}\\s[^]*\\(no answer`)),
    ]);
    const { id = -1, target } = (await untilSystems(board, () => true)).find(({ name }) => name === 'a/train') ?? {};
    assert.equal(target, `a/unix:${a.folder}/${TITLE}.sock`);
    await board.post(`/api/systems/${id}/pause`);
    const { sent: [failed] } = await untilSystem(board, ({ sent }) => sent[0]?.state === 'failed', id);
    assert.match(failed?.text ?? '', new RegExp(`^pause not sent: ${GONE}$`));
    const refused = await mcp.fail('save_state', { system: `a/${TITLE}`, reason: 'lunch' });
    assert.match(refused.error, new RegExp(`^save-state not sent: ${GONE}$`));
    const waited = await mcp.call('wait', { system: `a/${TITLE}`, until: 'offline', seconds: 1 });
    assert.deepEqual([waited.ended, waited.status], ['timeout', 'no answer']);

    a.comeBack();
    await Promise.all([
      watches[0].shows(/no answer[^]*a\/train  active/), keys.shows(/: no answer\na\/train: active$/m),
      screen.shows(/no answer[^]*(?<!\S)a\/train \(active.*\) > $/), boardShows({ 'a/train': 'active' }),
      mcpLists('active'),
    ]);
    keys.say('hit 0');
    await Promise.all([
      keys.shows(/^pause … paused after /m), mcpLists('paused'), screen.shows(/a\/train \(paused.*\) > $/),
      boardShows({ 'a/train': 'paused', 'b/train': 'active' }),
    ]);
    await until(() => existsSync(runs) && readFileSync(runs, 'utf8') === `a/${TITLE} no answer\n`);
    const { target: title } = JSON.parse(linesOf(watches[1].output())[0] ?? '') as { target: string };
    assert.equal(title, `a/unix:${a.folder}/${TITLE}.sock`);
    for (const { output } of [...watches, keys]) assert.doesNotMatch(output(), /offline|b\/.*no answer/);
    assert.ok(!statuses.has('offline'), [...statuses].join());

    const history = await mcp.call('get_history', { system: `a/${TITLE}` });
    assert.deepEqual([history.note, history.entries], [NO_LOG, []]);
    const metrics = await (await board.get('/metrics')).text();
    checkMetrics(metrics);
    const ups = metrics.split('\n').filter((line) => line.startsWith('control_up{')).sort();
    assert.deepEqual(ups, [
      'control_up{system="a/train",machine="a"} 1', 'control_up{system="b/eval",machine="b"} 1',
      'control_up{system="b/train",machine="b"} 1',
    ]);
    const asking = (await untilSystems(board, () => true)).find(({ name }) => name === 'b/eval');
    const shown = await (await board.get(`/api/logs/${asking?.id}`)).json();
    assert.deepEqual(shown, { note: 'logs on gpu1 to /var/log/x.jsonl', entries: [] });
    const response = await board.post(`/api/systems/${asking?.id}/answer?id=k3f-q2`, {}, '{"ok":true}');
    assert.equal(response.status, 200, await response.text());
    assert.ok(requests.some((request) => request.startsWith('POST /api/answer')), requests.join());
  });

  it('was not offline because of that, if its system had ended before', async (t) => {
    const a = openMachine(t, 'a');
    const { client } = await a.launch('train');
    const file = join(makeFolder(t), 'runs');
    writeFileSync(file, '');
    const runs = (): string[] => linesOf(readFileSync(file, 'utf8'));
    const hook = ['--exec', `echo "$CONTROL_STATUS" >> '${file}'`, '--on', 'offline,no-answer'];
    const { shows } = watch(t, ['--via', a.via, 'train', ...hook]);
    await shows(/active/);
    await client.shutdown();
    await until(() => runs().includes('offline'));
    const from = runs().indexOf('offline'); // on a slow machine, it may have had no answer before
    a.leave();
    await shows(/offline[^]*no answer/);
    a.comeBack();
    await shows(/offline[^]*no answer[^]*offline/);
    a.leave(); // its command follows what the status before may have run
    await shows(/offline[^]*no answer[^]*offline[^]*no answer/);
    await until(() => runs().length >= from + 3);
    assert.deepEqual(runs().slice(from), ['offline', 'no answer', 'no answer']);
  });
});

describe('a command over --via', SUITE, () => {
  it('of control-console is for one system, and none if a machine that may have it is gone', async (t) => {
    const { a, vias } = await openPair(t);
    const { stdout } = await runProgram(t, 'console', [...vias, 'b/train'], 'status\npause\nevaluate\n');
    assert.match(stdout, /^active.*\npaused .*\nevaluate: 7 .*\n$/);
    assert.equal((await callVia([], [...vias, 'status', 'a/train'])).stdout, 'a/train  active\n');
    const { code, stderr } = await runProgram(t, 'console', [...vias, 'train']);
    assert.deepEqual([code, stderr], [
      2, "control-console: TARGET must be one system, got 'train', which matches a/train and b/train\n",
    ]);
    a.leave();
    const alone = await runProgram(t, 'console', [...vias, 'train']);
    assert.equal(alone.code, 1, 'the system of b need not be the one that is meant');
    assert.match(alone.stderr, new RegExp(`^control-console: a: ${GONE}\n$`));
  });
});
