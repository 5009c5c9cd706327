// The main paths of control-kbctl: in a terminal, and with a stand-in for the helper of macOS.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { freePort, launchSystem, makeFolder, startServer, TOKEN } from '../helpers.ts';
import { lacks } from '../needs.ts';
import { LIMIT } from '../wait.ts';
import { END, listening, startInTerminal, startQuick } from './kbctl/helpers.ts';

describe('control-kbctl in a terminal', { ...LIMIT, skip: lacks('script') }, () => {
  it('sends keys, prints no other key, and reports combinations that it cannot distinguish', async (t) => {
    const { port, posted } = await startQuick(t);
    const args = '--backend terminal --resume-key ctrl+shift+r --quit-key alt+shift+x';
    const { shows, type, write, checkEnd } = await startInTerminal(t, port, `$KBCTL; ${END}`, { args });
    const problem = 'terminals cannot distinguish Ctrl\\+Shift\\+R from other keys';
    const notice = `control-kbctl: ${problem}; set --resume-key to another combination`;
    await shows(new RegExp(`^${notice}\nlistening to this terminal.*\n  Alt.* pause\n  Alt.* quit\n`, 'm'));
    await shows(/^press Ctrl-C to quit$/m);
    await shows(/^http:.*: active$/m);
    await type('\x1bP', /^pause … paused after \d\.\d\d s\n$/);
    await type('sesame 123\t\n\x1b[A\x10\x1bxr', /^resume … active after \d\.\d\d s\n$/);
    await type('p', /^pause … paused after \d\.\d\d s\n$/);
    write('\x1bX');
    assert.match(await checkEnd(0), /s\r\nquit; the system is unaffected\r\ncode/);
    assert.deepEqual(posted(), ['pause', 'resume', 'pause']);
  });
});

describe('control-kbctl', { ...LIMIT, skip: lacks('Unix'), concurrency: 4 }, () => {
  it('prints when the system goes offline and online; each press tries again', async (t) => {
    const port = await freePort();
    const { say, shows, output } = await listening(t, ['--port', `${port}`]);
    say('hit 0');
    await shows(/^pause … offline.*\n/m);
    const { client } = await launchSystem(t, {}, { webApiAddress: ['localhost', port] });
    await shows(/: active\n$/);
    say('hit 0');
    await shows(/^pause … paused after.*\n$/m);
    await client.shutdown();
    await shows(/: offline\n$/);
    const where = `http://localhost:${port}`;
    const [, , , ...lines] = output().replaceAll(/\d+\.\d\d s/g, 'N s').split('\n');
    const isBusy = lines[0] === `${where}: no answer`; // this machine
    assert.deepEqual(isBusy ? [lines[2], lines[1], ...lines.slice(3)] : lines, [
      isBusy ? `${where}: offline` : `nothing listens at localhost:${port}; each key press tries again`,
      'press Ctrl-C to quit',
      `pause … offline: nothing listens at localhost:${port}`, `${where}: active`,
      'pause … paused after N s', `${where}: offline`, '',
    ]);
  });

  it('takes the name of a system, and keeps the token in CONTROL_TOKEN from the helper', async (t) => {
    const [dir, environment] = [makeFolder(t), join(makeFolder(t), 'environment')];
    const { server } = await startServer(t, { name: 'train', socketPath: `${dir}/`, token: TOKEN });
    const { say, shows, output } = await listening(t, ['train', '--dir', dir], {
      script: `env > '${environment}'; exec cat "$KEYS"`,
      env: { CONTROL_TOKEN: TOKEN },
    });
    await shows(/^train: active$/m);
    say('hit 1');
    assert.equal(await server.nextCommand(), 'resume');
    server.report({});
    await shows(/^resume … active after/m);
    assert.match(readFileSync(environment, 'utf8'), /^PATH=/m);
    assert.doesNotMatch(output() + readFileSync(environment, 'utf8'), new RegExp(`${TOKEN}|CONTROL_TOKEN`));
  });
});
