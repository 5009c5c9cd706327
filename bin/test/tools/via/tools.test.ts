// --via in every tool: two machines with systems of the same names and process ids, one of which goes and comes back.

import assert from 'node:assert/strict';
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { makeFolder, runProgram, startProgram } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { checkMetrics, newsOf, startBoard, untilSystem, untilSystems } from '../board/helpers.ts';
import { call, linesOf, watch } from '../client/helpers.ts';
import { openSession } from '../client/systems.ts';
import { prompt, terminal } from '../console/helpers.ts';
import { READY, startHelped } from '../kbctl/helpers.ts';
import { startMcp } from '../mcp/helpers.ts';
import { NO_LOG } from '../logs.ts';
import type { System } from '../../../../control.ts';
import type { TestContext } from 'node:test';
import type { Update } from '../../../board/system.ts';
import type { Session } from '../client/systems.ts';

const SUITE = { ...LIMIT, concurrency: 2, skip: lacks('Unix') };
const BY = 'ana@laptop';
/** The name and process id of a system that the test launches, without its machine. */
const TITLE = `train-${process.pid}`;
const GONE = '(sh was killed by SIGKILL|sh ended with exit code 255: no route to host)';

const HOOKS: Partial<System> = {
  describe: () => ({ loss: 0.3 }),
  saveState: () => 'states/3.json',
  commands: { evaluate: { parameters: { episodes: { type: 'integer' } }, run: ({ episodes }) => episodes } },
};

/** A machine that is this one, with the folder of another session. */
interface Machine extends Session {
  /** The value of --via. */
  via: string;
  /** Ends the latest link, and refuses new ones. */
  leave(): void;
  comeBack(): void;
  /** Whether the command has been started. */
  isStarted(): boolean;
}

function openMachine(t: TestContext, label: string): Machine {
  const session = openSession(t);
  const folder = makeFolder(t);
  const [script, gone, started] = ['script', 'gone', 'started'].map((name) => join(folder, name)) as [
    string, string, string,
  ];
  writeFileSync(script, `
    [ -e '${gone}' ] && { echo 'no route to host' >&2; exit 255; }
    echo $$ > '${started}'
    CONTROL_DIR='${session.env.CONTROL_DIR}' exec "$@"
  `);
  const isStarted = (): boolean => existsSync(started);
  const leave = (): void => {
    writeFileSync(gone, '');
    if (isStarted()) process.kill(Number(readFileSync(started, 'utf8')), 'SIGKILL');
  };
  return { ...session, via: `${label}=sh ${script}`, leave, comeBack: () => rmSync(gone), isStarted };
}

interface Pair {
  a: Machine;
  b: Machine;
  /** The options of both. */
  vias: string[];
}

/** Two machines, each with a system of the same name and process id. */
async function openPair(t: TestContext, hooks: Partial<System> = HOOKS): Promise<Pair> {
  const [a, b] = [openMachine(t, 'a'), openMachine(t, 'b')];
  for (const { launch } of [a, b]) await launch('train', hooks);
  return { a, b, vias: ['--via', a.via, '--via', b.via] };
}

describe('control-client --via', SUITE, () => {
  it('sends to the systems that are meant, and begins each line with their machines', async (t) => {
    const { vias } = await openPair(t);
    const rows: [args: string[], ...lines: string[]][] = [
      [['status', 'train'], 'a/train  active', 'b/train  active'],
      [['status', 'a/train'], 'a/train  active'],
      [['status', `b/${process.pid}`], 'b/train  active'],
      [['pause', `b/${TITLE}`, '--wait', '--by', BY, '--reason', 'lunch'], 'b/train  paused'],
      [['wait', 'paused', 'b/'], 'b/train  paused'],
      [['status', '--all'], 'a/train  active', 'b/train  paused'],
      [['resume', 'train', '--mine', '--by', BY], 'a/train  active', 'b/train  active'],
      [['wait', 'loss < 0.5', 'train'], 'a/train  0.3', 'b/train  0.3'],
      [['run', 'evaluate', 'episodes=7', 'b/train', '--wait'], 'b/train  7'],
      [['save-state', '--wait', '--all'], 'a/train  states/3.json', 'b/train  states/3.json'],
    ];
    for (const [args, ...lines] of rows) {
      const { code, stdout, stderr } = await call([...vias, ...args]);
      assert.deepEqual([linesOf(stdout).sort(), stderr, code], [lines, '', 0], args.join(' '));
    }
    const { stdout } = await call([...vias, 'info', 'train']);
    const starts = new Set(linesOf(stdout).map((line) => line.split(' ')[0]));
    assert.deepEqual([...starts].sort(), ['a/train', 'b/train']);
  });

  it('lists machine by machine, and names the machine in JSON', async (t) => {
    const { a, b, vias } = await openPair(t);
    for (const { serve } of [b, a]) await serve('eval-6', () => ({ name: 'eval', pid: 6, status: 'paused' }));
    const pathOf = ({ folder }: Machine, title: string): string => `unix:${folder}/${title}.sock`;
    const systems = [
      ['a', 'eval', 6, `a/${pathOf(a, 'eval-6')}`], ['a', 'train', process.pid, `a/${pathOf(a, TITLE)}`],
      ['b', 'eval', 6, `b/${pathOf(b, 'eval-6')}`], ['b', 'train', process.pid, `b/${pathOf(b, TITLE)}`],
    ];
    const listed = linesOf((await call([...vias, 'list', '--json'])).stdout).map((line) => JSON.parse(line));
    assert.deepEqual(listed.map(({ machine, name, pid, target }) => [machine, name, pid, target]), systems);
    const targets = linesOf((await call([...vias, 'list'])).stdout).map((line) => line.split(/ +/).at(-1));
    assert.deepEqual(targets, systems.map((row) => row.at(-1)));
    const { stdout } = await call([...vias, 'status', 'eval', '--json']);
    const outcomes = Object.entries({ a, b }).map(([label, machine]) => {
      return JSON.stringify({ target: `${label}/${pathOf(machine, 'eval-6')}`, status: 'paused' });
    });
    assert.deepEqual(linesOf(stdout).sort(), outcomes);
  });

  it('says so if a machine has no live system', async (t) => {
    const { via } = openMachine(t, 'a');
    const warning = 'control-client: nothing runs in a/\n';
    assert.deepEqual(await call(['--via', via, 'pause', 'a/']), { code: 3, stdout: '', stderr: warning });
  });

  it('asks and answers over there, only the question that is meant', async (t) => {
    const answers: unknown[] = [];
    const hooks = (label: string): Partial<System> => ({
      async step(control) {
        answers.push([label, (await control.ask('Go on?')).arguments]);
        control.pause();
      },
    });
    const [a, b] = [openMachine(t, 'a'), openMachine(t, 'b')];
    for (const [label, { launch }] of Object.entries({ a, b })) await launch('train', hooks(label));
    const vias = ['--via', a.via, '--via', b.via];
    let stdout = '';
    await until(async () => {
      ({ stdout } = await call([...vias, 'asks', '--all']));
      return /^a.*Go on/m.test(stdout) && /^b.*Go on/m.test(stdout);
    }, () => stdout);
    const [idA = '', idB = ''] = ['a', 'b'].map((label) => new RegExp(`^${label}/.* (\\w+-q1),`, 'm').exec(stdout)?.[1]);
    const no = await call([...vias, 'answer', idB, 'b/train', '--no']);
    assert.equal(no.stdout, 'b/train  approved=false (Go on?)\n');
    await until(() => answers.length > 0);
    const yes = await call([...vias, 'answer', idA, '--all', '--yes']);
    assert.equal(yes.stdout, 'a/train  approved=true (Go on?)\n');
    await until(() => answers.length > 1);
    assert.deepEqual(answers, [['b', { approved: false }], ['a', { approved: true }]]);
  });

  it('watches: a machine that goes is no answer, not offline; also in JSON, and for --exec', async (t) => {
    const { a, vias } = await openPair(t);
    const file = join(makeFolder(t), 'runs');
    const hook = ['--exec', `echo "$CONTROL_TARGET $CONTROL_STATUS" >> '${file}'`, '--on', 'offline,no-answer'];
    const { shows, output } = watch(t, [...vias, 'train', ...hook]);
    const json = openMachine(t, 'c');
    await json.launch('train', HOOKS);
    const other = watch(t, ['--via', json.via, '--all', '--json']);
    await shows(/a\/train  active/);
    await shows(/b\/train  active/);
    a.leave();
    await shows(new RegExp(`a/train  no answer: ${GONE}`));
    a.comeBack();
    await shows(/no answer[^]*a\/train  active/);
    await until(() => existsSync(file) && readFileSync(file, 'utf8') === `a/${TITLE} no answer\n`);
    assert.doesNotMatch(output(), /offline|b\/.*no answer/);
    await other.shows(/"status":"active"/);
    json.leave();
    await other.shows(/"status":"no answer"/);
    const [first] = linesOf(other.output()).map((line) => JSON.parse(line));
    assert.equal(first.target, `c/unix:${json.folder}/${TITLE}.sock`);
    assert.doesNotMatch(other.output(), /offline/);
  });

  it('runs no command of watch for a system that was offline before its link ended', async (t) => {
    const a = openMachine(t, 'a');
    const { client } = await a.launch('train', HOOKS);
    const file = join(makeFolder(t), 'runs');
    const hook = ['--exec', `echo "$CONTROL_BEFORE, $CONTROL_STATUS" >> '${file}'`, '--on', 'offline,no-answer'];
    const { shows } = watch(t, ['--via', a.via, 'train', ...hook]);
    await shows(/active/);
    await client.shutdown();
    await shows(/offline/);
    a.leave();
    await shows(/offline[^]*no answer/);
    a.comeBack();
    await shows(/offline[^]*no answer[^]*offline/);
    a.leave(); // its command follows what the status before may have run
    await shows(/offline[^]*no answer[^]*offline[^]*no answer/);
    const runsAfterEnd = (): string[] => {
      const runs = linesOf(readFileSync(file, 'utf8')).map((line) => line.replace(/^.*, /, ''));
      return runs.slice(runs.indexOf('offline') + 1);
    };
    await until(() => runsAfterEnd().length >= 2);
    assert.deepEqual(runsAfterEnd(), ['no answer', 'no answer']);
  });

  it('pauses for a while; interrupted, it names the machines in the command that resumes', async (t) => {
    const { vias } = await openPair(t);
    const { stdout } = await runProgram(t, 'client', [...vias, 'pause', 'train', '--for', '1']);
    const lines = ['active', 'paused'].flatMap((status) => [`a/train  ${status}`, `b/train  ${status}`]);
    assert.deepEqual(linesOf(stdout).filter((line) => !line.startsWith('until ')).sort(), lines.sort());
    const { child, shows, ended } = startProgram(t, 'client', [...vias, 'pause', 'a/train', '--for', '300']);
    await shows(/paused\n/);
    child.kill('SIGINT');
    const quoted = vias.filter((_, at) => at % 2 === 1).map((via) => `'--via=${via}'`).join(' ');
    const { stderr } = await ended;
    assert.ok(stderr.includes(`control-client resume --mine ${quoted} a/train`), stderr);
  });

  it('takes CONTROL_VIA, too; log has neither, and names the command that shows logs over there', async (t) => {
    const { via, isStarted } = openMachine(t, 'a');
    const env = { CONTROL_VIA: via, XDG_STATE_HOME: makeFolder(t) };
    const message = 'log has no --via: it reads files, so run ssh a control-client log';
    await assert.rejects(call(['log', '--via', via]), { message });
    const { code, stderr } = await runProgram(t, 'client', ['log', 'train'], '', env);
    assert.deepEqual([code, stderr, isStarted()], [2, `control-client: ${message}\n`, false]);
    await runProgram(t, 'client', ['list'], '', env);
    assert.ok(isStarted());
  });
});

describe('control-console and control-kbctl --via', SUITE, () => {
  it('control-console controls a system over there, and refuses a name that several machines have', async (t) => {
    const { a, b, vias } = await openPair(t);
    const { stdout } = await runProgram(t, 'console', [...vias, 'b/train'], 'status\npause\nevaluate episodes=7\n');
    assert.match(stdout, /^active.*\npaused .*\nevaluate: 7 .*\n$/);
    assert.equal((await call([...vias, 'status', 'a/train'])).stdout, 'a/train  active\n');
    const { code, stderr } = await runProgram(t, 'console', [...vias, 'train']);
    assert.deepEqual([code, stderr], [
      2, "control-console: TARGET must be one system, got 'train', which matches a/train and b/train\n",
    ]);
    a.leave();
    const alone = await runProgram(t, 'console', [...vias, 'train']);
    assert.equal(alone.code, 1, 'the system of b need not be the one that is meant');
    assert.match(alone.stderr, new RegExp(`^control-console: a: ${GONE}\n$`));
    await b.launch('other');
  });

  it('control-console shows no answer while the machine is gone', { skip: lacks('script') }, async (t) => {
    const { a } = await openPair(t);
    const { shows, type } = await terminal(t, `--via '${a.via}' a/train`);
    await shows(new RegExp(prompt('active.*')));
    await type('status\r', /active[^]*control-console a\/train /);
    a.leave();
    await type('pause\r', new RegExp(`pause not sent: a/unix:\\S+ does not respond: ${GONE}\\s[^]*\\(no answer`));
    a.comeBack();
    await shows(/no answer[^]*control-console a\/train \(active.*\) > $/);
  });

  it('control-kbctl pauses a system over there, and shows when the machine goes and comes back', async (t) => {
    const { a, vias } = await openPair(t);
    const { say, shows, output } = startHelped(t, [...vias, 'a/train']);
    say(READY);
    await shows(/^a\/train: active$/m);
    say('hit 0');
    await shows(/^pause … paused after /m);
    a.leave();
    await shows(/paused after .*\na\/train: no answer$/m);
    a.comeBack();
    await shows(/: no answer\na\/train: paused$/m);
    const statuses = linesOf((await call([...vias, 'status', 'train'])).stdout).sort();
    assert.deepEqual(statuses, ['a/train  paused', 'b/train  active']);
    assert.doesNotMatch(output(), /offline/);
  });
});

describe('control-board --via', SUITE, () => {
  it('shows the systems of each machine, also of one that comes later, and that goes and comes back', async (t) => {
    const { a, b, vias } = await openPair(t);
    a.leave();
    const board = await startBoard(t, [], vias);
    assert.match(board.running.output(), /^control-board: a: sh ended with exit code 255: no route to host$/m);
    const seen = new Set<string>();
    const showsAll = (...expected: [name: string, status: string][]): Promise<Update[]> => {
      return untilSystems(board, (systems) => {
        for (const { status } of systems) seen.add(status);
        const shown = systems.map(({ name, status }) => [name, status]).sort();
        return JSON.stringify(shown) === JSON.stringify(expected);
      });
    };
    const [machine] = await showsAll(['a', 'no answer'], ['b/train', 'active']);
    assert.equal(machine?.error, 'sh ended with exit code 255: no route to host');
    a.comeBack();
    await showsAll(['a/train', 'active'], ['b/train', 'active']);
    await b.serve('eval-6', () => ({ name: 'eval', status: 'paused' }));
    const systems = await showsAll(['a/train', 'active'], ['b/eval', 'paused'], ['b/train', 'active']);
    const { id = -1, target } = systems.find(({ name }) => name === 'a/train') ?? {};
    assert.equal(target, `a/unix:${a.folder}/${TITLE}.sock`);

    const metrics = await (await board.get('/metrics')).text();
    checkMetrics(metrics);
    const ups = metrics.split('\n').filter((line) => line.startsWith('control_up{')).sort();
    assert.deepEqual(ups, [
      'control_up{system="a/train",machine="a"} 1', 'control_up{system="b/eval",machine="b"} 1',
      'control_up{system="b/train",machine="b"} 1',
    ]);

    a.leave();
    const gone = await untilSystem(board, ({ status, error }) => status === 'no answer' && error !== '', id);
    assert.match(gone.error, new RegExp(GONE));
    await board.post(`/api/systems/${id}/pause`);
    const { sent: [failed] } = await untilSystem(board, ({ sent }) => sent[0]?.state === 'failed', id);
    assert.match(failed?.text ?? '', new RegExp(`^pause not sent: ${GONE}$`));
    a.comeBack();
    const { error } = await untilSystem(board, ({ status }) => status === 'active', id);
    assert.equal(error, '');
    await board.post(`/api/systems/${id}/pause`);
    await showsAll(['a/train', 'paused'], ['b/eval', 'paused'], ['b/train', 'active']);
    assert.ok(!seen.has('offline'), [...seen].join());
  });

  it('shows where the log of a system is, and passes on the answer to its question', async (t) => {
    const { a, vias } = await openPair(t);
    const [at, parameters] = ['2026-01-01T00:00:00Z', { ok: { type: 'boolean' } }];
    const asks = [{ id: 'k3f-q2', message: 'Go on?', parameters, at }];
    const log = { path: '/var/log/x.jsonl' };
    const { requests } = await a.serve('eval-6', ({ url = '' }) => {
      return /answer/.test(url) ? { result: 'ok' } : { name: 'eval', status: 'active', host: 'gpu1', asks, log };
    });
    const board = await startBoard(t, ['a/eval'], vias);
    const { asks: [ask], hasLog } = await untilSystem(board, ({ asks: open }) => open.length > 0);
    assert.deepEqual([ask?.message, hasLog], ['Go on?', true]);
    const shown = await (await board.get('/api/logs/0')).json();
    assert.deepEqual(shown, { note: 'logs on gpu1 to /var/log/x.jsonl', entries: [] });
    const response = await board.post('/api/systems/0/answer?id=k3f-q2', {}, '{"ok":true}');
    assert.equal(response.status, 200, await response.text());
    assert.ok(requests.some((request) => request.startsWith('POST /api/answer')), requests.join());
    assert.equal((await newsOf(board)).ids.length, 1);
  });
});

describe('control-mcp --via', SUITE, () => {
  it('reaches the systems of each machine, and says which machine cannot be reached', async (t) => {
    const { a, vias } = await openPair(t);
    a.leave();
    const mcp = startMcp(t, vias);
    const list = async (): Promise<string[]> => {
      const { systems } = await mcp.call('list_systems');
      return systems.map(({ system, status }: Record<string, string>) => `${system} ${status}`);
    };
    const { systems, note } = await mcp.call('list_systems');
    assert.deepEqual([systems.length, note], [1, 'a: sh ended with exit code 255: no route to host']);
    const { error } = await mcp.fail('get_info', { system: `a/${TITLE}` });
    assert.equal(error, `there is no system 'a/${TITLE}'; list_systems returns b/${TITLE}; ${note}`);

    a.comeBack();
    const both = [`a/${TITLE} active`, `b/${TITLE} active`];
    await until(async () => (await list()).join() === both.join());
    const ambiguous = await mcp.fail('pause', { system: 'train', reason: 'lunch' });
    assert.equal(ambiguous.error, `'train' is ambiguous: use one of a/${TITLE}, b/${TITLE}`);
    const paused = await mcp.call('pause', { system: 'a/train', reason: 'lunch' });
    assert.deepEqual([paused.system, paused.outcome, paused.status], [`a/${TITLE}`, 'done', 'paused']);
    assert.equal((await mcp.call('wait', { system: `b/${TITLE}`, until: 'loss < 1' })).ended, 'reached');
    assert.deepEqual(await list(), [`a/${TITLE} paused`, `b/${TITLE} active`]);
    const history = await mcp.call('get_history', { system: `a/${TITLE}` });
    assert.deepEqual([history.note, history.entries], [NO_LOG, []]);

    a.leave();
    await until(async () => (await list()).join() === [`a/${TITLE} no answer`, `b/${TITLE} active`].join());
    const lost = await mcp.call('get_info', { system: `a/${TITLE}` });
    assert.match(lost.error, new RegExp(GONE));
    const waited = await mcp.call('wait', { system: `a/${TITLE}`, until: 'offline', seconds: 1 });
    assert.deepEqual([waited.ended, waited.status], ['timeout', 'no answer']);
    const refused = await mcp.fail('save_state', { system: `a/${TITLE}`, reason: 'lunch' });
    assert.match(refused.error, new RegExp(`^save-state not sent: ${GONE}$`));
    a.comeBack();
    await until(async () => (await list()).join() === [`a/${TITLE} paused`, `b/${TITLE} active`].join());
  });
});
