// The terminal of control-kbctl: what it shows, which job has it, and that its mode is restored at the end.

import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { makeFolder, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { END, isRunning, LIMIT, PAUSE, READY, RESUME, startInTerminal, startSlowServer } from './helpers.ts';

describe('control-kbctl in a terminal', { ...LIMIT, concurrency: 4, skip: lacks('script') }, () => {
  it('does not show what is typed, not even while the backend starts, and quits on Ctrl-C', async (t) => {
    const { port } = await startSlowServer(t);
    const color = { env: { NO_COLOR: undefined } };
    const { write, say, shows, checkEnd } = startInTerminal(t, port, `$KBCTL; ${END}`, color);
    await shows(/^control-kbctl: \d+/m);
    write('hidden\r\n');
    say(READY);
    await shows(/^press Ctrl-C/m);
    write('secret\x1bP\x1bp\t\x1b[A\r');
    say('hit 0');
    await shows(/^pause … paused after/m);
    write('\x03');
    const [, note = '', ...lines] = (await checkEnd(0)).split('\r\n');
    assert.match(note, /^control-kbctl: \d+$/);
    assert.match(lines.splice(5, 1)[0] ?? '', /^pause … paused after \d\.\d\d s$/);
    assert.deepEqual(lines.slice(0, -2), [
      'listening to macOS key events (backend macos: set by --backend)', `  ${PAUSE}  pause`, `  ${RESUME}  resume`,
      `http://localhost:${port}: \x1b[32mactive\x1b[39m`, 'press Ctrl-C to quit', 'quit; the system is unaffected',
      'code 0',
    ]);
  });

  const ends: [what: string, code: number, act: (typed: ReturnType<typeof startInTerminal>) => void][] = [
    ['SIGHUP', 0, ({ processId }) => void process.kill(processId(), 'SIGHUP')],
    ['a failure of the backend', 1, ({ say }) => say('fail')],
  ];
  for (const [what, code, act] of ends) {
    it(`restores it at the end: ${what}`, async (t) => {
      const { port } = await startSlowServer(t);
      const typed = startInTerminal(t, port, `$KBCTL; ${END}`, {
        script: `echo "note $PPID"; echo ${READY}; read -r _ < "$KEYS"; exit 1`,
      });
      await typed.shows(/^press Ctrl-C/m);
      assert.equal(typed.isEchoing(), false);
      act(typed);
      assert.doesNotMatch(await typed.checkEnd(code), /\^C|\n\r?\n/);
    });
  }

  it('restores it when the output is closed', async (t) => {
    const { port } = await startSlowServer(t);
    const typed = startInTerminal(t, port, `$KBCTL | head -n 5; ${END}`);
    typed.say(READY);
    await typed.shows(/^press Ctrl-C/m);
    typed.say('hit 0');
    await typed.checkEnd(0);
  });

  it('quits when it is closed', async (t) => {
    const { port } = await startSlowServer(t);
    const ERRORS = join(makeFolder(t), 'errors');
    const typed = startInTerminal(t, port, '$KBCTL 2> "$ERRORS"', { env: { ERRORS } });
    typed.say(READY);
    await typed.shows(/^press Ctrl-C/m);
    const errors = readFileSync(ERRORS, 'utf8');
    const processId = Number(/^control-kbctl: (\d+)\n$/.exec(errors)?.[1]);
    assert.ok(isRunning(processId));
    typed.child.kill('SIGKILL');
    await until(() => !isRunning(processId));
    assert.equal(readFileSync(ERRORS, 'utf8'), errors);
  });

  it('returns it to the shell on Ctrl-Z, leaves it alone after bg, and silences it on fg', async (t) => {
    const script = 'set -m; $KBCTL; echo stopped; read -r line; echo "read $line"; bg; read -r line; echo "read $line"';
    const { port } = await startSlowServer(t);
    const typed = startInTerminal(t, port, `${script}; fg; ${END}`);
    const { write, say, shows } = typed;
    say(READY);
    await shows(/^press Ctrl-C/m);
    write('\x1a');
    await shows(/^stopped/m);
    write('visible\n');
    await shows(/^visible\r\nread visible/m);
    say('hit 0');
    await shows(/^pause … paused after/m);
    write('too\n');
    await shows(/^too\r\nread too/m);
    await until(() => !typed.isEchoing());
    write('hidden\x04');
    assert.doesNotMatch(await typed.checkEnd(0), /hidden/);
  });

  it('leaves it to the shell after SIGSTOP and bg, and silences it on fg', async (t) => {
    const script = 'set -m; $KBCTL; stty sane; bg; echo ready; read -r line; echo "read $line"; fg';
    const { port } = await startSlowServer(t);
    const typed = startInTerminal(t, port, `${script}; ${END}`);
    const { write, say, shows, processId } = typed;
    say(READY);
    await shows(/^press Ctrl-C/m);
    process.kill(processId(), 'SIGSTOP');
    await shows(/^ready/m);
    say('hit 0');
    await shows(/^pause … paused after/m);
    write('visible\n');
    await shows(/^visible\r\nread visible/m);
    await until(() => !typed.isEchoing());
    write('hidden\x03');
    const { stdout } = await typed.ended;
    assert.match(stdout, /^quit; the system is unaffected\r\ncode 0\r\n/m);
    assert.doesNotMatch(stdout, /hidden/);
  });

  it('reads keys with the terminal backend once it is in the foreground', async (t) => {
    const script = `set -m; $KBCTL & read -r line; echo "read $line"; fg; ${END}`;
    const { port } = await startSlowServer(t);
    const typed = startInTerminal(t, port, script, { args: '--backend terminal' });
    await typed.shows(/^press Ctrl-C/m);
    typed.write('p\n');
    await typed.shows(/^read p/m);
    await until(() => !typed.isEchoing());
    typed.write('r');
    await typed.shows(/^resume … active after/m);
    typed.write('q');
    assert.doesNotMatch(await typed.checkEnd(0), /^pause/m);
  });

  it('leaves it alone when control-kbctl ends in the background', async (t) => {
    const { port } = await startSlowServer(t);
    const script = 'set -m; $KBCTL & read -r line; stty -echo; kill %1; wait; echo ended; read -r line';
    const typed = startInTerminal(t, port, script);
    typed.say(READY);
    await typed.shows(/^press Ctrl-C/m);
    typed.write('\n');
    await typed.shows(/^quit; the system is unaffected[^]*^ended/m);
    assert.equal(typed.isEchoing(), false);
  });

  it('silences it again after another process has changed its mode', async (t) => {
    const { port } = await startSlowServer(t);
    const typed = startInTerminal(t, port, `$KBCTL; ${END}`);
    typed.say(READY);
    await typed.shows(/^press Ctrl-C/m);
    typed.reset();
    assert.ok(typed.isEchoing());
    typed.write('visible\n');
    await until(() => !typed.isEchoing());
    process.kill(typed.processId(), 'SIGINT');
    await typed.checkEnd(0);
  });

  it('reports combinations that terminals cannot distinguish; their letters still work', async (t) => {
    const args = `--backend terminal --pause-key ctrl+shift+p --resume-key f5 --quit-key alt+shift+x`;
    const { port } = await startSlowServer(t);
    const { shows, type, write, checkEnd } = startInTerminal(t, port, `$KBCTL; ${END}`, { args });
    const problem = 'terminals cannot distinguish Ctrl\\+Shift\\+P from other keys';
    const notice = `control-kbctl: ${problem}; set --pause-key to another combination`;
    const keys = 'F5 .* resume\\s+Alt.* quit';
    await shows(new RegExp(`^${notice}\\s+listening to this terminal.*\\s+${keys}\\s+http:`, 'm'));
    await shows(/^press Ctrl-C to quit/m);
    await type('p', /^pause … paused/);
    await type('\x1b[15~', /^resume … active/);
    write('\x1bX');
    await checkEnd(0);
  });

  it('leaves it alone without job control, except as the backend', { skip: lacks('setsid') }, async (t) => {
    const { port } = await startSlowServer(t);
    const TERMINAL = `${process.execPath} dist/bin/kbctl.js --backend terminal --port ${port}`;
    const { shows, isEchoing, say, type } = startInTerminal(t, port, 'setsid --wait $KBCTL; setsid --wait $TERMINAL', {
      script: `echo ${READY}; read -r _ < "$KEYS"; exit 1`,
      env: { TERMINAL },
    });
    await shows(/^press Ctrl-C/m);
    assert.ok(isEchoing());
    say('fail');
    await shows(/press Ctrl-C[^]*press Ctrl-C/);
    await type('p', /^pause … paused after/m);
  });

  it('quits on Ctrl-C even if the terminal is not its input; the helper does not receive it', async (t) => {
    const { port } = await startSlowServer(t);
    const marker = join(makeFolder(t), 'interrupted');
    const typed = startInTerminal(t, port, `trap : INT; $KBCTL < /dev/null; ${END}`, {
      script: `trap "touch '${marker}'" INT; echo ${READY}; read -r _ < "$KEYS"`,
    });
    await typed.shows(/^press Ctrl-C to quit/m);
    typed.write('\x03');
    assert.match(await typed.checkEnd(0), /^\^C\r\nquit; the system is unaffected\r\n/m);
    assert.equal(existsSync(marker), false);
  });
});
