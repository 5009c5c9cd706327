// The main paths of control-console. console/ has the rest.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { REASON_HELP } from '../../shared/commands.ts';
import {
  defer, launchSystem, makeFolder, runProgram, startProgram, startServer, startSystem, TOKEN,
} from '../helpers.ts';
import { lacks } from '../needs.ts';
import { LIMIT } from '../wait.ts';
import { hideFailures, openSession } from './client/systems.ts';
import { ACTIVE, at, CTRL_C, CTRL_D, prompt, shown, terminal, UP } from './console/helpers.ts';

hideFailures();

describe('control-console with a pipe', { ...LIMIT, concurrency: 3 }, () => {
  it('runs one command per line, without prompt, echo or history', async (t) => {
    const paused = defer();
    t.after(() => paused.resolve()); // first, or a failure would block the system's end
    const port = await startSystem(t, { onPaused: () => paused.promise, saveState: () => 'states/1.json' });
    const folder = makeFolder(t);
    const env = { XDG_STATE_HOME: folder, HOME: folder };
    const { child, shows, ended } = startProgram(t, 'console', ['--port', `${port}`], env);
    child.stdin?.end('pause\n\n  RESUME  \nsave\n# a comment\nhelp\nq\nnever reached\n');
    await shows(/^(still active … )?pausing … $/);
    paused.resolve();
    const { code, stdout, stderr } = await ended;
    assert.deepEqual([code, stderr], [0, '']);
    assert.deepEqual(readdirSync(folder), []);
    const lines = stdout.replaceAll(/\d+\.\d s/g, 'N s').split('\n');
    const outcomes = lines.slice(0, 3).map((line) => line.replaceAll(/(still active|resuming) … |still paused … (?=active|resuming)/g, ''));
    assert.deepEqual(outcomes, ['pausing … paused (N s)', 'active (N s)', 'saved states/1.json (N s)']);
    const commands = [
      'status', 'info', 'p, pause', 'r, resume', 'save, save-state', 'shutdown', 'run NAME', 'answer \\[ID\\]',
      'h, \\?, help', 'q, quit, exit',
    ];
    const help = commands.map((words) => `  ${words} .*\n`);
    assert.match(lines.slice(3).join('\n'), new RegExp(`^${help.join('')}\n${REASON_HELP}\n$`));
  });

  it('runs own commands, and lists them in its help', async (t) => {
    const port = await startSystem(t, {
      commands: {
        evaluate: {
          description: 'Runs episodes without learning',
          parameters: { episodes: { type: 'integer', maximum: 1000 } },
          run: ({ episodes }: { episodes: number }) => ({ episodes, meanReturn: 497.1 }),
        },
        fail: { run: () => { throw new Error('no GPU'); } },
      },
    });
    const input = 'evaluate episodes=200\npause\nevaluate episodes=9999\nfail\nhelp\n';
    const { code, stdout, stderr } = await runProgram(t, 'console', ['--port', `${port}`], input);
    const invalid = 'evaluate: episodes must be an integer up to 1000, got 9999\n';
    assert.deepEqual([code, stderr], [1, `${invalid}fail failed: no GPU\n`]);
    assert.match(stdout, /^evaluate: \{"episodes":200,"meanReturn":497\.1\} \(\d+\.\d s\)\n/);
    const help = [
      '  evaluate           Runs episodes without learning', '    episodes         an integer up to 1000 (required)',
      '  fail',
    ];
    assert.ok(stdout.endsWith(`\n${help.join('\n')}\n\n${REASON_HELP}\n`), stdout);
  });

  it('sends the rest of a line as the reason; the environment sets address, token and author', async (t) => {
    const { client, address: { port } } = await launchSystem(t, {}, { token: TOKEN });
    const file = join(makeFolder(t), 'token');
    writeFileSync(file, `${TOKEN}\n`, { mode: 0o600 });
    const address = { CONTROL_HOST: '127.0.0.1', CONTROL_PORT: `${port}` };
    const env = { ...address, CONTROL_TOKEN_FILE: file, CONTROL_BY: 'ana@laptop' };
    const reason = 'the GPU\'s "needed" until=noon {x}  # or so';
    const input = `pause   ${reason} \nstatus\nSave-State\nr now\nsave for the demo\nshutdown enough for today\nn\n`;
    const { code, stdout, stderr } = await runProgram(t, 'console', [], input, env);
    assert.deepEqual([code, stderr], [0, '']);
    const cause = stdout.split('\n').find((line) => line.startsWith('paused ') && line.includes(' by ')) ?? '';
    assert.ok(/^paused \d+ s ago/.test(cause) && cause.includes(` by ana@laptop: ${reason}`), stdout);
    const { commands = [] } = await client.getInfo() ?? {};
    assert.deepEqual(commands.map((entry) => [entry.command, entry.by, entry.reason]), [
      ['pause', 'ana@laptop', reason], ['save-state', 'ana@laptop', undefined], ['resume', 'ana@laptop', 'now'],
      ['save-state', 'ana@laptop', 'for the demo'],
    ]);
  });

  it('explains commands, options and variables with --help, and exits with 2 after a usage error', async (t) => {
    const { stdout } = await runProgram(t, 'console', ['--help'], '', { CONTROL_TOKEN: TOKEN });
    assert.match(stdout, /^Usage: control-console [^]*^ {2}p, pause [^]*^ {2}--socket PATH [^]*^ {2}--no-history /m);
    for (const name of ['HOST', 'PORT', 'SOCKET', 'VIA', 'TOKEN', 'TOKEN_FILE', 'BY']) {
      assert.match(stdout, new RegExp(`^  (CONTROL_\\w+, )*CONTROL_${name}\\b`, 'm'));
    }
    assert.ok(!stdout.includes(TOKEN));
    const wrong = await runProgram(t, 'console', ['gpu1:1', 'gpu2:1'], 'pause\n');
    const stderr = "control-console: unexpected argument 'gpu2:1'; see --help\n";
    assert.deepEqual(wrong, { code: 2, stdout: '', stderr });
  });
});

describe('control-console on a terminal', { ...LIMIT, concurrency: 3, skip: lacks('script') }, () => {
  it('shows the status in the prompt, completes and recalls commands, and asks before a shutdown', async (t) => {
    const paused = defer();
    t.after(() => paused.resolve()); // first, or a failure would block the system's end
    const { env, launch } = openSession(t);
    const { client } = await launch('train', { onPaused: () => paused.promise });
    const { shows, type, write, ended } = await terminal(t, 'train', env);
    const question = /Shut train down\? \(y\/\[N\]\) $/;
    const tabTwice = async (pattern: RegExp): Promise<void> => {
      write('\t');
      await sleep(250); // readline treats tabs that arrive together as text, and shows nothing after the first
      write('\t');
      await shows(pattern);
    };

    await t.test('shows the current status', async () => {
      await shows(/control-console train \(active\) > $/);
      await client.pause();
      await shows(new RegExp(`${prompt('pausing')}$`));
      paused.resolve();
      await shows(new RegExp(`${prompt('paused')}$`));
      await type('status\r', shown('paused \\d+ s ago.*', 'paused'));
      await type('resume\r', shown('(.* … )?active \\(\\d+\\.\\d s\\)'));
    });

    await t.test('completes and recalls commands', async () => {
      await tabTwice(/pause[^]*shutdown[^]*quit[^]*> $/);
      await type('pau', /pau$/);
      await type('\t', /se$/);
      await type('\r', shown('(.* … )?paused \\(\\d+\\.\\d s\\)', 'paused'));
      await type('r\r', shown('(.* … )?active \\(\\d+\\.\\d s\\)'));
      await type(UP + UP, /> pause$/);
      await type('\r', shown('(.* … )?paused \\(\\d+\\.\\d s\\)', 'paused'));
    });

    await t.test('clears the line with Ctrl-C, and continues after a mistake', async () => {
      await type('shutdo', /shutdo$/);
      await type(CTRL_C, /> $/);
      await type(CTRL_C, /press Ctrl-C again or Ctrl-D to quit\n.*> $/s);
      await type('nonsense\r', shown("unknown command 'nonsense'; type help for a list of commands", 'paused'));
    });

    await t.test('shuts down only after y, keeps answers out of the history, and then exits with 0', async () => {
      for (const answer of ['n\r', 'shutdown\r', '\r', `ye${CTRL_C}`]) {
        await type('shutdown\r', question);
        await type(answer, shown('shutdown cancelled', 'paused'));
        await type(UP, /> shutdown$/);
        await type(CTRL_C, /> $/);
      }
      await type('shutdown\r', question);
      await tabTwice(/^\s*y +n\s+Shut \S+ down\? \(y\/\[N\]\) $/);
      await type('y\r', /offline \(\d+\.\d s\)/);
      assert.equal((await ended).code, 0);
    });
  });

  it('keeps the history between two runs, in a private file', async (t) => {
    const { port } = await startServer(t);
    const state = join(makeFolder(t), 'state');
    const first = await terminal(t, at(port), { XDG_STATE_HOME: state });
    await first.type('status\r', shown(ACTIVE));
    await first.type('   \r', /> $/);
    await first.type('help quit\r', /q, quit.*\n.*> $/);
    await first.type(CTRL_D, /\n/);
    assert.equal((await first.ended).code, 0);
    const file = join(state, 'control', 'history');
    assert.equal(readFileSync(file, 'utf8'), 'status\nhelp quit\n');
    const modes = [file, join(state, 'control'), state].map((path) => statSync(path).mode & 0o777);
    assert.deepEqual(modes, [0o600, 0o700, 0o700]);
    const second = await terminal(t, at(port), { XDG_STATE_HOME: state });
    await second.type(UP, /> help quit$/);
    await second.type(UP, /> status$/);
    await second.type('\r', shown(ACTIVE));
    assert.equal(readFileSync(file, 'utf8'), 'status\nhelp quit\nstatus\n');
  });
});
