// What control-kbctl sends for each key press, what it prints about the system, and what it does with its terminal:
// which job has it, and that its mode is restored at the end.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { SystemStatus } from '../../../../control.ts';
import { assertHarmless, HARMLESS, HOSTILE, makeFolder, startProgram, startServer, TOKEN } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { startPuppet } from '../../puppet.ts';
import { CTRL_C, CTRL_Z } from '../../screen.ts';
import { LIMIT, until } from '../../wait.ts';
import {
  END, FORWARD, isRunning, listening, PAUSE, READY, readOutcomes, RESUME, startHelped, startInTerminal, startQuick,
} from './helpers.ts';

const NOT_CONFIRMED = 'accepted, not confirmed';
const LISTENS = /^press Ctrl-C to quit/m;

describe('control-kbctl sends', { ...LIMIT, concurrency: 4, skip: lacks('Unix') }, () => {
  it('each press with its author, even while the previous command runs, and prints the outcomes', async (t) => {
    let status = SystemStatus.ACTIVE;
    const { port, server, client } = await startServer(t, { maxQueueSize: 1, systemStatus: () => status });
    const args = ['--port', `${port}`, '--backend', 'windows', '--quit-key', 'ctrl+f9'];
    const { say, shows, output } = await listening(t, args, { env: { CONTROL_BY: 'ana@laptop' } });
    const source = 'Windows hotkeys (backend windows: set by --backend)';
    const keys = [`${PAUSE}  pause`, `${RESUME}  resume`, 'Ctrl+F9      quit'];
    assert.ok(output().startsWith([`listening to ${source}`, ...keys].join('\n  ')), output());
    say('hit 0');
    assert.equal(await server.nextCommand(), 'pause');
    say('hit 1');
    const listed = async (): Promise<string[]> => {
      const { commands = [] } = await client.getInfo() ?? {};
      return commands.map(({ command, state, by }) => `${command} by ${by}: ${state}`);
    };
    await until(async () => (await listed()).length === 2);
    assert.deepEqual(await listed(), ['pause by ana@laptop: running', 'resume by ana@laptop: waiting']);
    say('hit 0');
    await shows(/^pause … refused.*\n/m);
    assert.equal(await server.nextCommand(), 'resume');
    server.report({});
    say('hit 1');
    assert.equal(await server.nextCommand(), 'resume');
    server.report({});
    await shows(/^resume … active/m);
    say('hit 0');
    assert.equal(await server.nextCommand(), 'pause');
    server.report({ error: new Error('GPU busy\x1b[2J') });
    await shows(/^pause … failed.*\n/m);
    status = SystemStatus.SHUTTING_DOWN;
    say('hit 0');
    await shows(/: the system is shutting down\n/);
    assert.deepEqual(readOutcomes(output()), [
      `pause … ${NOT_CONFIRMED}`,
      `resume … ${NOT_CONFIRMED}`,
      'pause … refused: command queue is full, try again later',
      'resume … active after N s',
      'pause … failed: GPU busy[2J',
      'pause … not paused after N s: the system is shutting down',
    ]);
  });

  it('one command at a time, each press once and in order, also after two signals', async (t) => {
    const { port, posted, set, holds } = await startQuick(t);
    const { child, say, shows, ended } = await listening(t, ['--port', `${port}`]);
    set({ silent: 'POST' });
    say('hit 0');
    await holds('POST', 1);
    say('hit 1', 'hit 0', 'hit 1', 'note three more');
    await shows(/control-kbctl: three more\n/);
    assert.deepEqual(posted(), ['pause']);
    set({ silent: false });
    await shows(/^resume … active after/m);
    assert.deepEqual(posted(), ['pause', 'resume', 'pause', 'resume']);
    set({ silent: true });
    await holds('GET', 1);
    say('hit 0', 'hit 1', 'note two more');
    await shows(/control-kbctl: two more\n/);
    child.kill('SIGINT');
    await holds('GET', 0);
    child.kill('SIGINT'); // that of npm follows that of the terminal
    set({ silent: false });
    const { code, stdout } = await ended;
    assert.equal(code, 0);
    assert.deepEqual(posted().slice(4), ['pause', 'resume']);
    assert.deepEqual(readOutcomes(stdout), [
      'pause … ', // before the first notice
      'pause … paused after N s', `resume … ${NOT_CONFIRMED}`, `pause … ${NOT_CONFIRMED}`, 'resume … active after N s',
      `pause … ${NOT_CONFIRMED}`, `resume … ${NOT_CONFIRMED}`,
    ]);
  });

  it('presses before --quit-key, and none after it, to a server with the endpoints of the specification', async (t) => {
    const { port, posted, set } = await startPuppet(t, { old: true, status: 1 }, { host: 'localhost' });
    const { say, shows, ended } = await listening(t, ['--port', `${port}`, '--quit-key', 'ctrl+alt+q']);
    say('hit 1');
    await shows(/^http:.*: active\n[^]*^resume … active after \d\.\d\d s\n$/m);
    set({ status: 3 });
    say('hit 0', 'hit 1', 'hit 2', 'hit 0');
    const { code, stdout, stderr } = await ended;
    assert.deepEqual([code, posted(), stderr], [0, ['resume', 'pause', 'resume'], '']);
    assert.match(stdout, /^pause … .*\nresume … .*\nquit; the system is unaffected\n$/m);
  });

  it('nothing more, two seconds after SIGTERM, to a system that does not respond', async (t) => {
    const { port, posted, set } = await startQuick(t);
    const { child, say, shows, ended } = await listening(t, ['--port', `${port}`]);
    set({ silent: true });
    say('hit 0');
    const lost = (time: string): string => `pause … sent, but no response within ${time} s: it may still take effect`;
    await shows(new RegExp(`^pause … \nhttp:.*: no answer\n${lost('\\d+\\.?\\d*')}\n$`, 'm'));
    say('hit 0', 'hit 1', 'hit 0', 'note seen');
    await shows(/control-kbctl: seen\n/);
    child.kill();
    const { code, stdout } = await ended;
    assert.deepEqual([code, posted()], [0, ['pause', 'pause']]);
    const rest = [lost('\\d+\\.?\\d*'), 'resume … not sent', 'pause … not sent', 'quit; the system is unaffected\n$'];
    assert.match(stdout, new RegExp(rest.join('\n')));
  });

  it('a press before the first status, and prints complete lines', async (t) => {
    const { port, set } = await startQuick(t);
    set({ silent: 'GET' });
    const { say, ended, child, until: untilTrue } = startHelped(t, ['--port', `${port}`]);
    let stdout = '';
    child.stdout?.on('data', (text: string) => (stdout += text));
    say(READY, 'hit 0');
    const prints = (pattern: RegExp): Promise<void> => untilTrue(() => pattern.test(stdout), () => stdout);
    await prints(/^http:.*: no answer\npress Ctrl-C to quit\npause … (paused after .*\n)?$/m);
    set({ silent: false, status: 'paused' });
    await prints(/^http:.*: paused\n/m);
    await prints(/^pause … paused after \d+\.\d\d s\n/m);
    child.kill();
    const { code } = await ended;
    assert.equal(code, 0);
    assert.doesNotMatch(stdout, /….*http:/);
  });

  it('commands, and prints no control characters of a server or its helper, whose failure ends it', async (t) => {
    const { port, set, state } = await startPuppet(t, { code: 500, error: HOSTILE }, { host: 'localhost' });
    state.post = { code: 500 };
    const print = `printf 'note \\033]0;title\\007\\302\\2332J\\342\\200\\256!\\n'`;
    const { say, shows, output, ended } = await listening(t, ['--port', `${port}`], {
      script: `${print}; ${print} >&2; ${FORWARD}`,
    });
    await until(() => output().includes(`\nhttp://localhost:${port}: ${HARMLESS}\n`), output);
    say('hit 0');
    await until(() => output().includes(`pause … failed: ${HARMLESS.slice(0, -1)}`), output);
    set({ code: 200, status: HOSTILE, error: undefined, post: { result: HOSTILE } });
    say('hit 0', 'hit 1');
    await shows(new RegExp(`^pause … ${NOT_CONFIRMED}$`, 'm'));
    say('fail');
    const { code, stdout, stderr } = await ended;
    assert.equal(code, 1);
    assert.match(stdout, new RegExp(`^resume … ${NOT_CONFIRMED}\n$`, 'm')); // a command that is not done is no obstacle
    const text = ' ]0;title 2J !';
    assert.ok(stderr.startsWith(`control-kbctl: ${text}\n`), stderr);
    assert.ok(stderr.endsWith(`\ncontrol-kbctl: osascript exited with code 7: note ${text}\n`), stderr);
    assertHarmless(stdout + stderr);
  });

  it('one press once its output is closed, and exits with 0', async (t) => {
    const { port, posted } = await startQuick(t);
    const { child, say } = await listening(t, ['--port', `${port}`]);
    const exited = once(child, 'exit');
    child.stdout?.destroy();
    say('hit 0');
    assert.deepEqual([...await exited, ...posted()], [0, null, 'pause']);
  });

  it('nothing if it quits while the helper starts, and does not wait for children of the helper', async (t) => {
    const { child, shows, output, ended } = startHelped(t, [], { script: 'cat "$KEYS" & echo "note $$"; wait' });
    await shows(/^control-kbctl: \d+\n/m);
    const [, helper] = /^control-kbctl: (\d+)/m.exec(output()) ?? [];
    const stderr = output();
    child.kill();
    assert.deepEqual(await ended, { code: 0, stdout: 'quit; the system is unaffected\n', stderr });
    await until(() => !isRunning(Number(helper)));
  });

  it('nothing when no backend can listen: it exits with 1, and under Wayland suggests a shortcut', async (t) => {
    const display = { WAYLAND_DISPLAY: 'wayland-0', DISPLAY: '127.0.0.1:99999', CONTROL_TOKEN: TOKEN };
    const { child, output, ended, hasEnded } = startProgram(t, 'kbctl', ['--socket', '/nowhere/control.sock'], display);
    child.stdin?.end();
    await until(() => hasEnded() || output().startsWith('listening to the keyboards'), output);
    if (!hasEnded()) return t.skip('this user may read the keyboards');
    const { code, stdout, stderr } = await ended;
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
});

describe('control-kbctl in a terminal', { ...LIMIT, concurrency: 4, skip: lacks('script') }, () => {
  it('does not show what is typed, not even while the backend starts, and quits on Ctrl-C', async (t) => {
    const { port } = await startQuick(t);
    const color = { env: { NO_COLOR: undefined } };
    const { write, say, shows, checkEnd } = await startInTerminal(t, port, `$KBCTL; ${END}`, color);
    await shows(/^control-kbctl: \d+/m);
    write('hidden\r\n');
    say(READY);
    await shows(LISTENS);
    write('secret\x1bP\x1bp\t\x1b[A\r');
    say('hit 0');
    await shows(/^pause … paused after/m);
    write(CTRL_C);
    const [, , note = '', ...lines] = (await checkEnd(0)).split('\r\n');
    assert.match(note, /^control-kbctl: \d+$/);
    const others = lines.slice(0, -2).filter((line) => !/no answer|^pause … paused after \d+\.\d\d s$/.test(line));
    assert.deepEqual(others.sort(), [ // a busy machine has another order
      'listening to macOS key events (backend macos: set by --backend)', `  ${PAUSE}  pause`, `  ${RESUME}  resume`,
      `http://localhost:${port}: \x1b[32mactive\x1b[39m`, 'press Ctrl-C to quit', 'quit; the system is unaffected',
      'code 0',
    ].sort());
  });

  it('restores it at the end: SIGHUP, or a failure of the backend', async (t) => {
    const { port } = await startQuick(t);
    for (const code of [0, 1]) {
      const typed = await startInTerminal(t, port, `$KBCTL; ${END}`, { script: FORWARD });
      typed.say(READY);
      await typed.shows(LISTENS);
      assert.equal(typed.isEchoing(), false);
      if (code === 0) process.kill(typed.processId(), 'SIGHUP');
      else typed.say('fail');
      assert.doesNotMatch(await typed.checkEnd(code), /\^C|\n\r?\n/);
    }
  });

  it('returns it to the shell on Ctrl-Z, leaves it alone after bg, and silences it on fg', async (t) => {
    const script = 'set -m; $KBCTL; echo stopped; read -r line; echo "read $line"; bg; read -r line; echo "read $line"';
    const { port } = await startQuick(t);
    const { type, write, say, shows, isEchoing, checkEnd } = await startInTerminal(t, port, `${script}; fg; ${END}`);
    say(READY);
    await shows(LISTENS);
    await type(CTRL_Z, /^stopped/m);
    await type('visible\n', /^visible\nread visible/m);
    say('hit 0');
    await shows(/^pause … paused after/m);
    await type('too\n', /^too\nread too/m);
    await until(() => !isEchoing());
    write('hidden\x04');
    assert.doesNotMatch(await checkEnd(0), /hidden/);
  });

  it('reads keys with the terminal backend once it is in the foreground', async (t) => {
    const script = `set -m; $KBCTL & read -r line; echo "read $line"; fg; ${END}`;
    const { port } = await startQuick(t);
    const args = '--backend terminal';
    const { type, write, shows, isEchoing, checkEnd } = await startInTerminal(t, port, script, { args });
    await shows(LISTENS);
    await type('p\n', /^read p/m);
    await until(() => !isEchoing());
    await type('r', /^resume … active after/m);
    write('q');
    assert.doesNotMatch(await checkEnd(0), /^pause/m);
  });

  it('leaves it alone when control-kbctl ends in the background', async (t) => {
    const { port } = await startQuick(t);
    const script = 'set -m; $KBCTL & read -r line; stty -echo; kill %1; wait; echo ended; read -r line';
    const { say, shows, type, isEchoing } = await startInTerminal(t, port, script);
    say(READY);
    await shows(LISTENS);
    await type('\n', /^quit; the system is unaffected[^]*^ended/m);
    assert.equal(isEchoing(), false);
  });

  it('quits on Ctrl-C even if the terminal is not its input; the helper does not receive it', async (t) => {
    const { port } = await startQuick(t);
    const marker = join(makeFolder(t), 'interrupted');
    const script = `trap : INT; $KBCTL < /dev/null; ${END}`;
    const options = { script: `trap "touch '${marker}'" INT; ${FORWARD}` };
    const { say, shows, write, checkEnd } = await startInTerminal(t, port, script, options);
    say(READY);
    await shows(LISTENS);
    write(CTRL_C);
    assert.match(await checkEnd(0), /^\^C\r\nquit; the system is unaffected\r\n/m);
    assert.equal(existsSync(marker), false);
  });
});
