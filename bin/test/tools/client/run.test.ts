// control-client run: own commands of a program.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { assertHarmless, launchSystem, startBasicServer, startServer } from '../../helpers.ts';
import { AT_ONCE, at, call, linesOf } from './helpers.ts';
import { ACTIVE, hideFailures, startWeb } from './systems.ts';
import type { CommandDeclaration } from '../../../../control.ts';

hideFailures();

const COMMANDS: Record<string, CommandDeclaration> = {
  evaluate: {
    description: 'Runs episodes without learning',
    parameters: {
      episodes: { type: 'integer', minimum: 1, maximum: 1000, default: 100, description: 'how many' },
      seeds: { type: 'string', enum: ['fixed', 'any'], default: 'any' },
    },
  },
  set: {
    parameters: {
      rate: { type: 'number', minimum: 0 }, decay: { type: 'number', maximum: 1, default: 0 },
      text: { type: 'string', maxLength: 20, default: '' }, isFrozen: { type: 'boolean', default: false },
    },
  },
  list: {},
};

describe('control-client run', AT_ONCE, () => {
  it('reads each argument as the declared type', async (t) => {
    const { port, server } = await startServer(t, { commands: COMMANDS });
    const set = { rate: 1, decay: 0, text: '', isFrozen: false };
    const rows: [words: string[], command: string, values: object][] = [
      [['evaluate'], 'evaluate', { episodes: 100, seeds: 'any' }],
      [['evaluate', 'seeds=fixed', 'episodes=2e2'], 'evaluate', { episodes: 200, seeds: 'fixed' }],
      [['evaluate', '{"episodes": 7}'], 'evaluate', { episodes: 7, seeds: 'any' }],
      [['set', 'rate=1'], 'set', set],
      [['set', 'rate=1', 'decay=-2.5e-1', 'text=a=b, "c"', 'isFrozen=true'], 'set',
        { rate: 1, decay: -0.25, text: 'a=b, "c"', isFrozen: true }],
      [['set', 'rate=1', 'text=5', 'isFrozen=false'], 'set', { ...set, text: '5' }],
      [['set', 'rate=1', 'text='], 'set', set],
      [['list'], 'list', {}],
    ];
    for (const [words, command, values] of rows) {
      assert.deepEqual(await call([...at(port), 'run', ...words]), { code: 0, stdout: 'ok\n', stderr: '' }, `${words}`);
      assert.equal(server.receiveCommand(), command);
      assert.deepEqual(server.request?.arguments, values);
    }
  });

  it('exits with 2 if the system takes neither the command nor its arguments, with 1 if it takes none', async (t) => {
    const { port, server } = await startServer(t, { commands: COMMANDS });
    const { port: plain } = await startServer(t);
    const error = 'evaluate: the moon is full'; // known to the server only
    const { port: strict } = await startWeb(t, ({ method }) => {
      return method === 'POST' ? { code: 400, error } : { ...ACTIVE, accepts: { evaluate: {} } };
    });
    const episodes = 'evaluate: episodes must be an integer from 1 to 1000, got';
    const unknown = (name: string): RegExp => new RegExp(`: evaluate: .*\\b${name}\\b.*episodes, ?seeds`);
    const rows: [port: number, words: string[], line: string | RegExp][] = [
      [port, ['evalute'], "the command must be one of evaluate, set, list, got 'evalute' (did you mean evaluate?)"],
      [port, ['pause'], "the command must be one of evaluate, set, list, got 'pause'"],
      [strict, ['evaluate'], error],
      [plain, ['evaluate'], "the program declares no commands, got 'evaluate'"],
      [port, ['evaluate', 'episode=5'], unknown('episode')],
      [port, ['evaluate', '__proto__=5'], unknown('__proto__')],
      [port, ['evaluate', 'episodes=5000'], `${episodes} 5000`],
      [port, ['evaluate', 'episodes=many'], `${episodes} "many"`],
      [port, ['evaluate', 'episodes=05'], `${episodes} "05"`],
      [port, ['evaluate', 'episodes=0x5'], `${episodes} "0x5"`],
      [port, ['evaluate', 'episodes=9007199254740993'], `${episodes} "9007199254740993"`],
      [port, ['evaluate', '{"episodes":"5"}'], `${episodes} "5"`],
      [port, ['set', 'rate=1e999'], 'set: rate must be a number from 0, got "1e999"'],
      [port, ['set', 'rate=1', 'isFrozen=yes'], 'set: isFrozen must be a boolean, got "yes"'],
    ];
    for (const [where, words, error] of rows) {
      for (const options of [[], ['--wait']]) {
        const ended = await call([...at(where), 'run', ...words, ...options]);
        assert.deepEqual([ended.code, ended.stdout, linesOf(ended.stderr).length], [2, '', 1]);
        if (typeof error === 'string') assert.equal(ended.stderr, `control-client: ${error}\n`);
        else assert.match(ended.stderr, error);
      }
    }
    const long = await call([...at(port), 'run', 'set', '--wait', `{"text":"${'x'.repeat(5000)}"}`]);
    const stderr = 'control-client: set failed: The arguments exceed 4096 bytes\n';
    assert.deepEqual(long, { code: 2, stdout: '', stderr });
    const json = await call([...at(port), 'run', 'evaluate', 'episodes=0', '--json']);
    assert.deepEqual(JSON.parse(json.stdout), { error: `${episodes} 0` });
    assert.equal(server.hasCommands(), false);

    const { port: undeclared } = await startWeb(t);
    const { port: statusOnly } = await startBasicServer(t);
    const { port: full, server: busy } = await startServer(t, { commands: COMMANDS, maxQueueSize: 1 });
    await call([...at(full), 'run', 'list']);
    const none = 'the server takes only pause, resume, save-state and shutdown';
    const refusals: [args: string[], error: string][] = [
      [['--port', `${statusOnly}`], none], [at(full), 'Command queue is full, try again later'],
    ];
    for (const [address, error] of refusals) {
      const ended = { code: 1, stdout: '', stderr: `control-client: ${error}\n` };
      assert.deepEqual(await call([...address, 'run', 'list']), ended);
    }
    assert.equal(busy.receiveCommand(), 'list');
    const ended = await call([...at(undeclared), 'run', 'list']);
    assert.deepEqual([ended.code, ended.stderr], [2, "control-client: the program declares no commands, got 'list'\n"]);
  });

  it('prints the value with --wait: a string as it is, any other value as JSON, or ok', async (t) => {
    const long = { list: Array.from({ length: 400 }, (_, index) => index) };
    const rows: [value: unknown, stdout: string][] = [
      ['states/1.json', 'states/1.json'], [7, '7'], [false, 'false'], [null, 'null'], [undefined, 'ok'], ['', 'ok'],
      [{ meanReturn: 497.1 }, '{"meanReturn":497.1}'], [['\u202e\n\x9b'], '["\\u202e\\n\\u009b"]'],
      [long, JSON.stringify(long)], ['\x1b[2J\u202e'.repeat(300), '[2J '.repeat(250)],
    ];
    const values = rows.map(([value]) => value);
    const { address: { port } } = await launchSystem(t, { commands: { evaluate: { run: () => values.shift() } } });
    for (const [value, stdout] of rows) {
      const ended = await call([...at(port), 'run', 'evaluate', '--wait']);
      assert.deepEqual(ended, { code: 0, stdout: `${stdout}\n`, stderr: '' }, JSON.stringify(value));
      assertHarmless(ended.stdout);
    }
  });

  it('prints the outcome with --wait --json, and exits with 1 after a failure, 4 after --timeout', async (t) => {
    const { address: { port } } = await launchSystem(t, {
      commands: {
        evaluate: { run: () => ({ meanReturn: 497.1 }) },
        fail: { run: () => assert.fail('no GPU') },
        sleep: { run: () => sleep(4000) },
      },
    });
    const outcome = async (name: string): Promise<[code: number | null, outcome: object, stderr: string]> => {
      const { code, stdout, stderr } = await call([...at(port), 'run', name, '--wait', '--timeout', '1.5', '--json']);
      const { id, seconds, status, ...rest } = JSON.parse(stdout);
      return [code, rest, stderr];
    };
    const value = { meanReturn: 497.1 };
    assert.deepEqual(await outcome('evaluate'), [0, { result: 'ok', state: 'done', value }, '']);
    const failed = { state: 'failed', error: 'no GPU' };
    assert.deepEqual(await outcome('fail'), [1, failed, 'control-client: fail failed: no GPU\n']);
    const [code, , stderr] = await outcome('sleep');
    assert.deepEqual([code, stderr], [4, 'control-client: sleep runs: not done after 2 s\n']);
  });

  it('lists the own commands without a name', async (t) => {
    const { port } = await startServer(t, { commands: COMMANDS });
    const lines = [
      '  evaluate           Runs episodes without learning',
      '    episodes         an integer from 1 to 1000 (default 100): how many',
      '    seeds            one of fixed, any (default any)',
      '  set',
      '    rate             a number from 0 (required)',
      '    decay            a number up to 1 (default 0)',
      "    text             a string of at most 20 characters (default '')",
      '    isFrozen         true or false (default false)',
      '  list',
    ];
    const listed = await call([...at(port), 'run']);
    assert.deepEqual(listed, { code: 0, stdout: `${lines.join('\n')}\n`, stderr: '' });
    const json = await call([...at(port), 'run', '--json']);
    assert.deepEqual(JSON.parse(json.stdout), { accepts: COMMANDS });
    const target = `127.0.0.1:${port}`;
    const { stdout } = await call(['run', target]);
    assert.equal(stdout, lines.map((line) => `${target}  ${line}\n`).join(''));
    const { port: plain } = await startServer(t);
    const none = { code: 0, stdout: '', stderr: 'control-client: the program declares no commands\n' };
    assert.deepEqual(await call([...at(plain), 'run']), none);
  });

  it('neither lists nor sends invalid declarations, but lists unknown types', async (t) => {
    const parameters = { when: { type: 'date' }, what: { type: null } };
    const names = ['pause', 'resume', 'save-state', 'shutdown', 'status', 'info', 'Set'];
    const accepts = { ...Object.fromEntries(names.map((name) => [name, {}])), plan: { parameters } };
    const { port, requests } = await startWeb(t, () => ({ ...ACTIVE, accepts }));
    const lines = ['  plan', '    when             a date (required)', '    what             a value (required)', ''];
    assert.equal((await call([...at(port), 'run'])).stdout, lines.join('\n'));
    for (const name of names) {
      const stderr = `control-client: the command must be one of plan, got '${name}'\n`;
      assert.deepEqual(await call([...at(port), 'run', name]), { code: 2, stdout: '', stderr });
    }
    assert.deepEqual(requests.filter((request) => request.startsWith('POST')), []);
  });

  it('reads the arguments for each of several systems, which may declare different types', async (t) => {
    const declare = (type: 'integer' | 'string'): Record<string, CommandDeclaration> => {
      return { say: { parameters: { text: { type } } } };
    };
    const declared = [declare('integer'), declare('string'), {}];
    const systems = await Promise.all(declared.map((commands) => startServer(t, { commands })));
    const [one, other, plain] = systems.map(({ port }) => `127.0.0.1:${port}`) as [string, string, string];
    const { code, stdout, stderr } = await call(['run', 'say', one, 'text=5', other, plain]);
    assert.deepEqual([code, linesOf(stdout).sort()], [2, [one, other].sort().map((target) => `${target}  ok`)]);
    assert.equal(stderr, `control-client: ${plain}: the program declares no commands, got 'say'\n`);
    const taken = systems.slice(0, 2).map(({ server }) => [server.receiveCommand(), server.request?.arguments]);
    assert.deepEqual(taken, [['say', { text: 5 }], ['say', { text: '5' }]]);
  });
});
