// The terminal of control-kbctl: what it shows, which job has it, and that its mode is restored at the end.

import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { LIMIT, makeFolder, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { END, FORWARD, isRunning, PAUSE, READY, RESUME, startInTerminal, startSlowSystem } from './helpers.ts';
import type { InTerminal } from './helpers.ts';

const LISTENS = /^press Ctrl-C to quit/m;

describe('control-kbctl in a terminal', { ...LIMIT, concurrency: 4, skip: lacks('script') }, () => {
  it('does not show what is typed, not even while the backend starts, and quits on Ctrl-C', async (t) => {
    const { port } = await startSlowSystem(t);
    const color = { env: { NO_COLOR: undefined } };
    const { write, say, shows, checkEnd } = await startInTerminal(t, port, `$KBCTL; ${END}`, color);
    await shows(/^control-kbctl: \d+/m);
    write('hidden\r\n');
    say(READY);
    await shows(LISTENS);
    write('secret\x1bP\x1bp\t\x1b[A\r');
    say('hit 0');
    await shows(/^pause … paused after/m);
    write('\x03');
    const [, , note = '', ...lines] = (await checkEnd(0)).split('\r\n');
    assert.match(note, /^control-kbctl: \d+$/);
    assert.match(lines.splice(5, 1)[0] ?? '', /^pause … paused after \d\.\d\d s$/);
    assert.deepEqual(lines.slice(0, -2), [
      'listening to macOS key events (backend macos: set by --backend)', `  ${PAUSE}  pause`, `  ${RESUME}  resume`,
      `http://localhost:${port}: \x1b[32mactive\x1b[39m`, 'press Ctrl-C to quit', 'quit; the system is unaffected',
      'code 0',
    ]);
  });

  const ends: [what: string, script: string, code: number, act: (typed: InTerminal) => unknown][] = [
    ['SIGHUP', '$KBCTL', 0, ({ processId }) => process.kill(processId(), 'SIGHUP')],
    ['a failure of the backend', '$KBCTL', 1, ({ say }) => say('fail')],
    ['its output is closed', '$KBCTL | head -n 5', 0, ({ say }) => say('hit 0')],
    ['SIGINT, after another process has changed its mode', '$KBCTL', 0, async (typed) => {
      typed.reset();
      assert.ok(typed.isEchoing());
      typed.write('visible\n');
      await until(() => !typed.isEchoing()); // it is silenced again
      process.kill(typed.processId(), 'SIGINT');
    }],
  ];
  for (const [what, script, code, act] of ends) {
    it(`restores it at the end: ${what}`, async (t) => {
      const { port } = await startSlowSystem(t);
      const typed = await startInTerminal(t, port, `${script}; ${END}`, { script: FORWARD });
      typed.say(READY);
      await typed.shows(LISTENS);
      assert.equal(typed.isEchoing(), false);
      await act(typed);
      assert.doesNotMatch(await typed.checkEnd(code), /\^C|\n\r?\n/);
    });
  }

  it('quits when it is closed', async (t) => {
    const { port } = await startSlowSystem(t);
    const ERRORS = join(makeFolder(t), 'errors');
    const { child, say, shows } = await startInTerminal(t, port, '$KBCTL 2> "$ERRORS"', { env: { ERRORS } });
    say(READY);
    await shows(LISTENS);
    const errors = readFileSync(ERRORS, 'utf8');
    const processId = Number(/^control-kbctl: (\d+)\n$/.exec(errors)?.[1]);
    assert.ok(isRunning(processId));
    child.kill('SIGKILL');
    await until(() => !isRunning(processId));
    assert.equal(readFileSync(ERRORS, 'utf8'), errors);
  });

  it('returns it to the shell on Ctrl-Z, leaves it alone after bg, and silences it on fg', async (t) => {
    const script = 'set -m; $KBCTL; echo stopped; read -r line; echo "read $line"; bg; read -r line; echo "read $line"';
    const { port } = await startSlowSystem(t);
    const { type, write, say, shows, isEchoing, checkEnd } = await startInTerminal(t, port, `${script}; fg; ${END}`);
    say(READY);
    await shows(LISTENS);
    await type('\x1a', /^stopped/m);
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
    const { port } = await startSlowSystem(t);
    const args = '--backend terminal';
    const { type, write, shows, isEchoing, checkEnd } = await startInTerminal(t, port, script, { args });
    await shows(LISTENS);
    await type('p\n', /^read p/m);
    await until(() => !isEchoing());
    await type('r', /^resume … active after/m);
    write('q');
    assert.doesNotMatch(await checkEnd(0), /^pause/m);
  });

  it('quits on Ctrl-C even if the terminal is not its input; the helper does not receive it', async (t) => {
    const { port } = await startSlowSystem(t);
    const marker = join(makeFolder(t), 'interrupted');
    const script = `trap : INT; $KBCTL < /dev/null; ${END}`;
    const options = { script: `trap "touch '${marker}'" INT; ${FORWARD}` };
    const { say, shows, write, checkEnd } = await startInTerminal(t, port, script, options);
    say(READY);
    await shows(LISTENS);
    write('\x03');
    assert.match(await checkEnd(0), /^\^C\r\nquit; the system is unaffected\r\n/m);
    assert.equal(existsSync(marker), false);
  });
});
