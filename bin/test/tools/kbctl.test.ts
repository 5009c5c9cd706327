// The main paths of control-kbctl: in a terminal, and with stand-ins for the helpers of macOS and Windows.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { listenEvdev } from '../../kbctl/evdev.ts';
import { parseBindings } from '../../kbctl/keys.ts';
import {
  freePort, launchSystem, makeFolder, runProgram, startBasicServer, startServer, startSystem, TOKEN,
} from '../helpers.ts';
import { lacks } from '../needs.ts';
import { LIMIT } from '../wait.ts';
import { END, FORWARD, listening, startInTerminal, startSlowSystem } from './kbctl/helpers.ts';

describe('control-kbctl in a terminal', { ...LIMIT, skip: lacks('script') }, () => {
  it('sends keys, prints no other key, and reports combinations that it cannot distinguish', async (t) => {
    const port = await startSystem(t);
    const args = '--backend terminal --resume-key ctrl+shift+r --quit-key alt+shift+x';
    const { shows, type, write, checkEnd } = await startInTerminal(t, port, `$KBCTL; ${END}`, { args });
    const problem = 'terminals cannot distinguish Ctrl\\+Shift\\+R from other keys';
    const notice = `control-kbctl: ${problem}; set --resume-key to another combination`;
    await shows(new RegExp(`^${notice}\nlistening to this terminal.*\n  Alt.* pause\n  Alt.* quit\n`, 'm'));
    await shows(/^http:.*: active\s+press Ctrl-C to quit\s+$/m);
    await type('\x1bP', /^pause … paused after \d\.\d\d s\n$/);
    await type('sesame 123\t\n\x1b[A\x10\x1bxr', /^resume … active after \d\.\d\d s\n$/);
    await type('p', /^pause … paused after \d\.\d\d s\n$/);
    write('\x1bX');
    assert.match(await checkEnd(0), /s\r\nquit; the system is unaffected\r\ncode/);
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
    const lines = output().replaceAll(/\d\.\d\d s/g, 'N s').split('\n');
    assert.deepEqual(lines.slice(3), [
      `nothing listens at localhost:${port}; each key press tries again`, 'press Ctrl-C to quit',
      `pause … offline: nothing listens at localhost:${port}`, `${where}: active`,
      'pause … paused after N s', `${where}: offline`, '',
    ]);
  });

  it('controls a server with the endpoints of the specification alone', async (t) => {
    const { port, posted } = await startBasicServer(t, true);
    const { say, shows } = await listening(t, ['--port', `${port}`]);
    await shows(/: active\n/);
    for (const [index, word, line] of [[0, 'pause', 'paused'], [1, 'resume', 'active']] as const) {
      say(`hit ${index}`);
      await shows(new RegExp(`^${word} … ${line} after \\d\\.\\d\\d s\n$`, 'm'));
    }
    assert.deepEqual(posted, ['pause', 'resume']);
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

  it('exits with 1 when the backend fails, even if a command is not done', async (t) => {
    const { server, port } = await startServer(t);
    const print = `printf 'note \\033]0;title\\007\\302\\2332J\\342\\200\\256!\\n'`; // control sequences
    const { say, shows, ended } = await listening(t, ['--port', `${port}`], {
      script: `${print}; ${print} >&2; ${FORWARD}`,
    });
    say('hit 0');
    assert.equal(await server.nextCommand(), 'pause');
    await shows(/^pause … /m);
    say('fail');
    const { code, stdout, stderr } = await ended;
    assert.equal(code, 1);
    assert.match(stdout, /^pause … accepted, not confirmed\n$/m);
    const text = ' ]0;title 2J !';
    assert.ok(stderr.startsWith(`control-kbctl: ${text}\n`), stderr);
    assert.ok(stderr.endsWith(`\ncontrol-kbctl: osascript exited with code 7: note ${text}\n`), stderr);
  });

  it('exits with 0 after the next press once its output is closed', async (t) => {
    const { port, posted } = await startSlowSystem(t);
    const { child, say } = await listening(t, ['--port', `${port}`]);
    const exited = once(child, 'exit');
    child.stdout?.destroy();
    say('hit 0');
    assert.deepEqual([...await exited, ...posted], [0, null, 'pause']);
  });

  it('exits with 1 when no backend can listen, and under Wayland suggests a desktop shortcut', async (t) => {
    const silent = { onPress: () => {}, onNotice: () => {}, onEnd: () => {} };
    const evdev = await listenEvdev(parseBindings({}), silent).catch(() => null);
    evdev?.close();
    if (evdev !== null) return t.skip('this user may read the keyboards');
    const display = { WAYLAND_DISPLAY: 'wayland-0', DISPLAY: '127.0.0.1:99999', CONTROL_TOKEN: TOKEN };
    const { code, stdout, stderr } = await runProgram(t, 'kbctl', ['--socket', '/nowhere/control.sock'], '', display);
    const [first, ...lines] = stderr.split('\n');
    assert.deepEqual([code, stdout], [1, '']);
    assert.match(first ?? '', /^control-kbctl: evdev: /);
    assert.deepEqual(lines, [
      "x11: DISPLAY must have a number from 0 to 59535 after the host, got '127.0.0.1:99999'",
      'terminal: standard input is not a terminal',
      'alternative: in the settings of your desktop, bind keys to control-client pause and resume',
      'no backend can listen to the keyboard',
    ].map((line) => `control-kbctl: ${line}`).concat(''));
  });

  it('prints its help, and exits with 2 after a usage error', async (t) => {
    const { code, stdout, stderr } = await runProgram(t, 'kbctl', ['--help'], '', { CONTROL_TOKEN: TOKEN });
    assert.deepEqual([code, stderr], [0, '']);
    assert.match(stdout, /^Usage: control-kbctl /);
    const options = [...stdout.matchAll(/^  (?:-\w, )?--(\S+)/gm)].map(([, option]) => option);
    const keys = ['pause-key', 'resume-key', 'quit-key'];
    assert.deepEqual(options, ['host', 'port', 'socket', 'dir', 'via', ...keys, 'backend', 'help', 'version']);
    assert.match(stdout, /\bCONTROL_TOKEN\b[^]*^Exit codes: 0 .*; 1 .*; 2 /m);
    assert.ok(!stdout.includes(TOKEN));
    const line = "--pause-key must be a key combination such as alt+shift+p, got 'alt+p q': unknown key p q";
    const wrong = await runProgram(t, 'kbctl', ['--pause-key', 'alt+p\nq']);
    assert.deepEqual(wrong, { code: 2, stdout: '', stderr: `control-kbctl: ${line}\n` });
  });
});
