// The main paths of control-console. console/ has the rest.

import assert from 'node:assert/strict';
import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { defer, launchSystem, makeFolder, startProgram, TOKEN } from '../helpers.ts';
import { lacks } from '../needs.ts';
import { CTRL_C, UP } from '../screen.ts';
import { LIMIT } from '../wait.ts';
import { hideFailures, openSession } from './client/systems.ts';
import { completes, prompt, shown, terminal } from './console/helpers.ts';

hideFailures();

describe('control-console with a pipe', LIMIT, () => {
  it('runs one command per line with the rest as its reason, without prompt, echo or history', async (t) => {
    const paused = defer();
    t.after(() => paused.resolve()); // first, or a failure would block the system's end
    const { client, address: { port } } = await launchSystem(t, {
      onPaused: () => paused.promise,
      saveState: () => 'states/1.json',
      commands: {
        evaluate: { parameters: { episodes: { type: 'integer' } }, run: (values: object) => values },
        fail: { run: () => { throw new Error('no GPU'); } },
      },
    }, { token: TOKEN });
    const [folder, file] = [makeFolder(t), join(makeFolder(t), 'token')];
    writeFileSync(file, `${TOKEN}\n`, { mode: 0o600 });
    const { child, shows, ended } = startProgram(t, 'console', [], {
      CONTROL_HOST: '127.0.0.1', CONTROL_PORT: `${port}`, CONTROL_TOKEN_FILE: file, CONTROL_BY: 'ana@laptop',
      XDG_STATE_HOME: folder, HOME: folder,
    });
    const reason = 'the GPU\'s "needed" until=noon {x}  # or so';
    child.stdin?.write(`pause   ${reason} \n\nstatus\n  RESUME  \n`);
    child.stdin?.write('evaluate episodes=200\nfail\nSave-State\n# a comment\n');
    await shows(/^(still active … )?pausing … $/);
    paused.resolve();
    await shows(/^saved /m);
    const { commands = [] } = await client.getInfo() ?? {};
    assert.deepEqual(commands.map((entry) => [entry.command, entry.by, entry.reason]), [
      ['pause', 'ana@laptop', reason], ['resume', 'ana@laptop', undefined], ['evaluate', 'ana@laptop', undefined],
      ['fail', 'ana@laptop', undefined], ['save-state', 'ana@laptop', undefined],
    ]);
    child.stdin?.end('shutdown\n  # really?\n YeS \nnever reached\n'); // a comment is not an answer
    const { code, stdout, stderr } = await ended;
    assert.deepEqual([code, stderr, readdirSync(folder)], [1, 'fail failed: no GPU\n', []]);
    assert.equal(stdout.replaceAll(/(still )?\w+(ing| down)? … /g, '').replaceAll(/\d+(\.\d)? s/g, 'N s'), [
      'paused (N s)', `paused N s ago by ana@laptop: ${reason}`, 'active (N s)', 'evaluate: {"episodes":200} (N s)',
      'saved states/1.json (N s)', 'offline: states/1.json (N s)', '',
    ].join('\n'));
  });
});

describe('control-console on a terminal', { ...LIMIT, skip: lacks('script') }, () => {
  it('shows the status in the prompt, completes and recalls commands, and asks before a shutdown', async (t) => {
    const paused = defer();
    t.after(() => paused.resolve()); // first, or a failure would block the system's end
    const { env, launch } = openSession(t);
    const { client } = await launch('train', { onPaused: () => paused.promise });
    const console = await terminal(t, 'train', env);
    const { shows, type, ended } = console;
    const question = /Shut train down\? \[y\/N\] $/;

    await t.test('shows the current status', async () => {
      await client.pause();
      await shows(new RegExp(`${prompt('pausing')}$`));
      paused.resolve();
      await shows(/(?<!\S)train \(paused\) > $/);
      await type('status\r', shown('paused \\d+ s ago.*', 'paused'));
      await type('resume\r', shown('(.* … )?active \\(\\d+\\.\\d s\\)'));
    });

    await t.test('completes and recalls commands', async () => {
      await completes(console, '', /pause[^]*shutdown[^]*quit[^]*> $/);
      await completes(console, 'pau', /se$/);
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
      await completes(console, '', /^\s*y +n\s+Shut \S+ down\? \[y\/N\] $/);
      await type('y\r', /offline \(\d+\.\d s\)/);
      assert.equal((await ended).code, 0);
    });
  });
});
