import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, writeFileSync, writeSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { after, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { createContext, runInContext } from 'node:vm';
import { SystemStatus, VERSION } from '../../../control.ts';
import { listenEvdev } from '../../kbctl/evdev.ts';
import { parseBindings } from '../../kbctl/keys.ts';
import { chooseBackends } from '../../kbctl/listener.ts';
import { SCRIPT, macosCommand } from '../../kbctl/macos.ts';
import { SOURCE, windowsCommand } from '../../kbctl/windows.ts';
import {
  assertHarmless, freePort, HARMLESS, HOSTILE, lacks, lacksScript, lacksSockets, launchSystem, makeFolder, makePipe,
  makeSocketPath, NO_TOKEN, runProgram, start, startImpostor, startProgram, startServer, startSystem, TOKEN, until,
  WRONG_ACCESS,
} from '../helpers.ts';
import type { WebApiServerOptions } from '../../../control.ts';
import type { Ended, Running } from '../helpers.ts';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';

const [PAUSE, RESUME] = parseBindings({}).map(({ combination }) => combination.name) as [string, string];
const NO_BACKEND = 'no backend can listen to the keyboard';

const lacksShell = process.platform === 'win32' && 'Windows has no FIFOs and no sh';
const lacksEvdev = process.platform !== 'linux' && 'only Linux has evdev';

/** Stand-ins for both helpers: they run the script in the variable HELPER. */
const STUBS = makeFolder({ after });
for (const name of ['osascript', 'powershell.exe']) {
  writeFileSync(join(STUBS, name), '#!/bin/sh\neval "$HELPER"\n', { mode: 0o755 });
}

// ───── Terminal ──────────────────────────────────────────────────────────────────────────────────────────────────

describe('control-kbctl with the terminal backend', { concurrency: 4, timeout: 30_000, skip: lacksScript() }, () => {
  it('sends keys typed with or without Alt, and prints no other key', async (t) => {
    const { shows, type } = await terminal(t, await startSystem(t));
    await shows(/^listening to this terminal.*\n.* pause\n.* resume\nhttp:.*: active\npress Ctrl-C to quit\n$/m);
    await type('\x1bP', /^pause … paused after \d\.\d\d s\n$/);
    await type('\x1bR', /^resume … active after \d\.\d\d s\n$/);
    await type('sesame 123\t\n\x1b[A\x10\x1bxp', /^pause … paused after \d\.\d\d s\n$/);
    await type('r', /^resume … active after \d\.\d\d s\n$/);
  });

  it('reports combinations that terminals cannot distinguish; the letter still works', async (t) => {
    const { shows, type } = await terminal(t, await startSystem(t), '--pause-key ctrl+shift+p --resume-key f5');
    const problem = 'terminals cannot distinguish Ctrl\\+Shift\\+P from other keys';
    const notice = `${problem}; set --pause-key to another combination`;
    await shows(new RegExp(`^control-kbctl: ${notice}\nlistening to this terminal.*\n  F5  resume\nhttp:`, 'm'));
    await type('p', /^pause … paused/);
    await type('\x1b[15~', /^resume … active/);
  });

  it('continues after Ctrl-Z without a shell', async (t) => {
    const { type } = await terminal(t, await startSystem(t));
    await type('\x1ap', /pause … paused/);
    await type('r', /resume … active/);
  });

  const quit: [what: string, (typed: Typed) => void][] = [
    ['q', ({ write }) => write('q')],
    ['Ctrl-C', ({ write }) => write('\x03')],
    ['--quit-key', ({ write }) => write('\x1bX')],
    ['SIGTERM', ({ processId }) => void process.kill(processId, 'SIGTERM')],
    ['SIGINT', ({ processId }) => void process.kill(processId, 'SIGINT')],
  ];
  for (const [what, act] of quit) {
    it(`quits with 0 on ${what}, and restores the terminal`, async (t) => {
      const { port } = await startServer(t);
      const typed = await terminal(t, port, '--quit-key alt+shift+x');
      act(typed);
      const { stdout } = await typed.ended;
      const [before, code, afterwards] = [...stdout.matchAll(/^(?:mode|code) (.*)\r$/gm)].map(([, word]) => word);
      assert.deepEqual([code, afterwards], ['0', before]);
      assert.ok(before);
    });
  }
});

interface Typed extends Pick<Running, 'ended'> {
  processId: number;
  write(keys: string): void;
  /** Resolves when the output since the last keys matches. */
  shows(pattern: RegExp): Promise<void>;
  /** Types keys, and resolves when the output since then matches. */
  type(keys: string, pattern: RegExp): Promise<void>;
}

/** The program in a pseudo-terminal, ready for input. */
async function terminal(t: TestContext, port: number, options: string = ''): Promise<Typed> {
  const program = `${process.execPath} dist/bin/kbctl.js --backend terminal --port ${port} ${options}`;
  const command = `echo mode $(stty -g); sh -c 'echo pid $$; exec ${program}'; echo code $?; echo mode $(stty -g)`;
  const { child, output, ended } = start(t, 'script', ['--quiet', '--return', '--command', command, '/dev/null']);
  let seen = 0;
  const text = (): string => output().slice(seen).replaceAll('\r\n', '\n');
  const shows = (pattern: RegExp): Promise<void> => {
    return until(() => pattern.test(text()), () => `no ${pattern} in ${text()}`);
  };
  await shows(/^press Ctrl-C to quit.*\n/m);
  const processId = Number(/^pid (\d+)/m.exec(text())?.[1]);
  const write = (keys: string): void => void child.stdin?.write(keys);
  const type = (keys: string, pattern: RegExp): Promise<void> => {
    seen = output().length;
    write(keys);
    return shows(pattern);
  };
  return { ended, processId, write, shows, type };
}

describe('control-kbctl in a terminal', { concurrency: 4, timeout: 30_000, skip: lacksScript() }, () => {
  it('does not show what is typed, not even while the backend starts', async (t) => {
    const port = await startSystem(t);
    const { write, say, shows, ended } = startInTerminal(t, port, '$KBCTL; echo code $?', { NO_COLOR: undefined });
    await shows(/^control-kbctl: \d+/m);
    write('hidden\r\n');
    say('ready 1 1 0');
    await shows(/^press Ctrl-C/m);
    write('secret\x1bP\x1bp\t\x1b[A\r');
    say('hit 0');
    await shows(/^pause … paused after/m);
    write('\x03');
    const lines = (await ended).stdout.split('\r\n').slice(1);
    assert.match(lines.shift() ?? '', /^control-kbctl: \d+$/);
    assert.match(lines.splice(5, 1)[0] ?? '', /^pause … paused after \d\.\d\d s$/);
    assert.deepEqual(lines, [
      'listening to macOS key events (backend macos: set by --backend)', `  ${PAUSE}  pause`, `  ${RESUME}  resume`,
      `http://localhost:${port}: \x1b[32mactive\x1b[39m`, 'press Ctrl-C to quit', 'quit; the system is unaffected',
      'code 0', '',
    ]);
  });

  const ends: [what: string, act: (typed: InTerminal) => void, code: number][] = [
    ['Ctrl-C', ({ write }) => write('\x03'), 0],
    ['Ctrl-D', ({ write }) => write('\x04'), 0],
    ['SIGTERM', ({ processId }) => void process.kill(processId(), 'SIGTERM'), 0],
    ['SIGINT', ({ processId }) => void process.kill(processId(), 'SIGINT'), 0],
    ['SIGHUP', ({ processId }) => void process.kill(processId(), 'SIGHUP'), 0],
    ['a failure of the backend', ({ say }) => say('exit'), 1],
  ];
  for (const [what, act, code] of ends) {
    it(`restores it at the end: ${what}`, async (t) => {
      const typed = startInTerminal(t, await startSystem(t), '$KBCTL; echo code $?; echo mode $(stty -g)', {
        HELPER: 'echo "note $PPID"; echo ready 1 1 0; read -r _ < "$KEYS"; exit 1',
      });
      await typed.shows(/^press Ctrl-C/m);
      const path = typed.path();
      assert.equal(isEchoing(path), false);
      act(typed);
      const { stdout } = await typed.ended;
      assert.equal(/^code (\d+)/m.exec(stdout)?.[1], `${code}`);
      assert.equal(/^mode (\S+)/m.exec(stdout)?.[1], typed.mode());
      assert.doesNotMatch(stdout, /\^C|\n\r?\n/);
    });
  }

  it('restores it when the output is closed', async (t) => {
    const typed = startInTerminal(t, await startSystem(t), '$KBCTL | head -n 5; echo mode $(stty -g)');
    typed.say('ready 1 1 0');
    await typed.shows(/^press Ctrl-C/m);
    assert.equal(isEchoing(typed.path()), false);
    typed.say('hit 0');
    assert.equal(/^mode (\S+)/m.exec((await typed.ended).stdout)?.[1], typed.mode());
  });

  it('quits when it is closed', async (t) => {
    const ERRORS = join(makeFolder(t), 'errors');
    const typed = startInTerminal(t, await startSystem(t), '$KBCTL 2> "$ERRORS"', { ERRORS });
    typed.say('ready 1 1 0');
    await typed.shows(/^press Ctrl-C/m);
    const errors = readFileSync(ERRORS, 'utf8');
    const processId = Number(/^control-kbctl: (\d+)\n$/.exec(errors)?.[1]);
    assert.ok(isRunning(processId));
    typed.child.kill('SIGKILL');
    await until(() => !isRunning(processId));
    assert.equal(readFileSync(ERRORS, 'utf8'), errors);
  });

  it('returns it to the shell on Ctrl-Z, and silences it again on fg', async (t) => {
    const script = 'set -m; $KBCTL; echo stopped; read -r line; echo "read $line"; fg; echo code $?';
    const { write, say, shows, path, ended } = startInTerminal(t, await startSystem(t), script);
    say('ready 1 1 0');
    await shows(/^press Ctrl-C/m);
    write('\x1a');
    await shows(/^stopped/m);
    write('visible\n');
    await shows(/^visible\r\nread visible/m);
    await until(() => !isEchoing(path()));
    write('hidden\x03');
    const { stdout } = await ended;
    assert.match(stdout, /^quit; the system is unaffected\r\ncode 0\r\n$/m);
    assert.doesNotMatch(stdout, /hidden/);
  });

  const background: [what: string, script: string, keys: string][] = [
    ['&', '$KBCTL &', ''],
    ['Ctrl-Z and bg', '$KBCTL; bg;', '\x1a'],
    ['SIGSTOP and bg', '$KBCTL; stty sane; bg;', ''],
  ];
  for (const [what, script, keys] of background) {
    it(`leaves it to the shell after ${what}, and silences it on fg`, async (t) => {
      const all = `set -m; ${script} echo ready; read -r line; echo "read $line"; read -r _; fg; echo code $?`;
      const typed = startInTerminal(t, await startSystem(t), all);
      const { write, say, shows, path, processId, ended } = typed;
      say('ready 1 1 0');
      await shows(/^press Ctrl-C/m);
      write(keys);
      if (what.startsWith('SIGSTOP')) process.kill(processId(), 'SIGSTOP');
      await shows(/^ready$/m);
      write('visible\n');
      await shows(/^visible[^]*^read visible/m);
      say('hit 0');
      await shows(/^pause … paused after/m);
      write('\n');
      await until(() => !isEchoing(path()));
      write('hidden\x04');
      const { stdout } = await ended;
      assert.match(stdout, /^quit; the system is unaffected\r\ncode 0\r\n$/m);
      assert.doesNotMatch(stdout, /hidden/);
    });
  }

  it('reads keys with the terminal backend once it is in the foreground', async (t) => {
    const script = 'set -m; $KBCTL --port $PORT & read -r line; echo "read $line"; fg';
    const port = await startSystem(t);
    const KBCTL = `${process.execPath} dist/bin/kbctl.js --backend terminal`;
    const { write, shows, path } = startInTerminal(t, port, script, { KBCTL, PORT: `${port}` });
    await shows(/^press Ctrl-C/m);
    write('p\n');
    await shows(/^read p/m);
    await until(() => !isEchoing(path()));
    write('r');
    await shows(/^resume … active after/m);
  });

  it('leaves it alone when it ends in the background', async (t) => {
    const script = 'set -m; $KBCTL & read -r line; stty -echo; kill %1; wait; echo ended; read -r line';
    const { write, say, shows, path } = startInTerminal(t, await startSystem(t), script);
    say('ready 1 1 0');
    await shows(/^press Ctrl-C/m);
    write('\n');
    await shows(/^quit; the system is unaffected[^]*^ended/m);
    assert.equal(isEchoing(path()), false);
  });

  it('silences it again after another program has changed its mode', async (t) => {
    const { write, say, shows, path } = startInTerminal(t, await startSystem(t), '$KBCTL');
    say('ready 1 1 0');
    await shows(/^press Ctrl-C/m);
    spawnSync('stty', ['-F', path(), 'sane']);
    assert.ok(isEchoing(path()));
    write('visible\n');
    await until(() => !isEchoing(path()));
  });

  it('leaves it alone without job control, unless the terminal is the backend', async (t) => {
    const port = await startSystem(t);
    const { say, shows, path, write } = startInTerminal(t, port, 'setsid --wait $KBCTL; $TERMINAL', {
      TERMINAL: `setsid --wait ${process.execPath} dist/bin/kbctl.js --backend terminal --port ${port}`,
      HELPER: 'echo ready 1 1 0; read -r _ < "$KEYS"; exit 1',
    });
    await shows(/^press Ctrl-C/m);
    assert.ok(isEchoing(path()));
    say('exit');
    await shows(/press Ctrl-C[^]*press Ctrl-C/);
    write('p');
    await shows(/^pause … paused after/m);
  });
});

interface InTerminal extends Running {
  /** Types these keys. */
  write(keys: string): void;
  /** Makes the helper write these lines. */
  say(...lines: string[]): void;
  /** The path of the terminal, and its mode at the start. */
  path(): string;
  mode(): string;
  /** The id of control-kbctl, which the helper tells. */
  processId(): number;
}

/** Runs a bash script in a pseudo-terminal. There, $KBCTL is the program with a stand-in helper. */
function startInTerminal(t: TestContext, port: number, script: string, options: NodeJS.ProcessEnv = {}): InTerminal {
  const { file, path: KEYS } = makePipe(t);
  const running = start(t, 'script', ['--quiet', '--return', '--command', 'exec bash -c "$SCRIPT"', '/dev/null'], {
    PATH: `${STUBS}:${process.env['PATH']}`, KEYS, HELPER: 'echo "note $PPID"; exec cat "$KEYS"',
    KBCTL: `${process.execPath} dist/bin/kbctl.js --backend macos --port ${port}`,
    SCRIPT: `echo in $(tty) $(stty -g); ${script}`,
    ...options,
  });
  const find = (pattern: RegExp): string => pattern.exec(running.output())?.[1] ?? assert.fail(running.output());
  return {
    ...running,
    write: (keys) => void running.child.stdin?.write(keys),
    say: (...lines) => void writeSync(file, `${lines.join('\n')}\n`),
    path: () => find(/^in (\S+)/m),
    mode: () => find(/^in \S+ (\S+)/m),
    processId: () => Number(find(/^control-kbctl: (\d+)/m)),
  };
}

/** Whether a terminal shows what is typed. */
function isEchoing(path: string): boolean {
  const { stdout } = spawnSync('stty', ['-F', path, '-a'], { encoding: 'utf8' });
  assert.match(stdout, / -?echo /);
  return / echo /.test(stdout);
}

// ───── Sending ───────────────────────────────────────────────────────────────────────────────────────────────────

describe('control-kbctl sends', { concurrency: 4, timeout: 30_000, skip: lacksShell }, () => {
  it('one command per press, and prints its outcome', async (t) => {
    const port = await startSystem(t);
    const { say, shows, output } = await listening(t, ['--port', `${port}`]);
    say('hit 0');
    await shows(/^pause … paused after \d\.\d\d s$/m);
    say('hit 1');
    await shows(/^resume … active after \d\.\d\d s$/m);
    say('hit 0');
    await until(() => output().split('paused after').length === 3);
    const [title, ...lines] = output().split('\n');
    assert.match(title as string, /^listening to Windows hotkeys \(backend windows: set by --backend\)$/);
    assert.deepEqual(lines.slice(0, 2), [`  ${PAUSE}  pause`, `  ${RESUME}  resume`]);
  });

  const skipped = 'accepted, not confirmed';
  const noToken = `refused: ${NO_TOKEN.charAt(0).toLowerCase()}${NO_TOKEN.slice(1)}`;
  const outcomes: [what: string, options: Partial<WebApiServerOptions>, hits: string[], lines: string[]][] = [
    ['a full queue', { maxQueueSize: 1 }, ['hit 0', 'hit 1'],
      [`pause … ${skipped}`, 'resume … refused: command queue is full, try again later']],
    ['a system that is shutting down', { systemStatus: () => SystemStatus.SHUTTING_DOWN }, ['hit 0'],
      ['pause … not paused after N s: the system is shutting down']],
    ['a missing token', { token: TOKEN }, ['hit 0'], [`pause … ${noToken}`]],
  ];
  for (const [what, options, hits, lines] of outcomes) {
    it(`commands, and reports ${what}`, async (t) => {
      const { port } = await startServer(t, options);
      const { say, output } = await listening(t, ['--port', `${port}`]);
      say(...hits);
      const printed = (): string[] => readOutcomes(output());
      await until(() => printed().length === lines.length, output);
      assert.deepEqual(printed(), lines);
    });
  }

  it('two presses, and reports the first as superseded by the second', async (t) => {
    const { say, output } = await listening(t, ['--port', `${await startSystem(t)}`]);
    say('hit 0', 'hit 1');
    await until(() => readOutcomes(output()).length === 2, output);
    assert.deepEqual(readOutcomes(output()), [`pause … ${skipped}`, 'resume … active after N s']);
  });

  it('a press, although the command before is not done', async (t) => {
    const { port, server, client } = await startServer(t);
    const { say, shows } = await listening(t, ['--port', `${port}`]);
    say('hit 0');
    assert.equal(await server.nextCommand(), 'pause');
    say('hit 1');
    const states = async (): Promise<string[] | undefined> => (await client.info())?.commands.map(({ state }) => state);
    await until(async () => `${await states()}` === 'running,waiting');
    assert.equal(await server.nextCommand(), 'resume');
    server.report({});
    await shows(/^pause … accepted, not confirmed\nresume … active after/m);
  });

  it('commands, and prints why one failed', async (t) => {
    const port = await startSystem(t, { onPaused: () => assert.fail('GPU busy\x1b[2J') });
    const { say, shows, output } = await listening(t, ['--port', `${port}`]);
    say('hit 0');
    await shows(/^pause … failed: onPaused failed: GPU busy\[2J$/m);
    assertHarmless(output());
  });

  it('who presses the key', async (t) => {
    const { port, server, client } = await startServer(t);
    const { say } = await listening(t, ['--port', `${port}`], { CONTROL_BY: 'ana@laptop' });
    say('hit 0');
    assert.equal(await server.nextCommand(), 'pause');
    assert.equal((await client.info())?.commands[0]?.by, 'ana@laptop');
  });

  it('each press during a pending command once, in order', async (t) => {
    const { port, posted } = await startSlowServer(t, { postMs: 200 });
    const { say, shows, output } = await listening(t, ['--port', `${port}`]);
    say('hit 0', 'hit 1', 'hit 0');
    await shows(/pause … /);
    say('hit 1');
    await shows(/active after/);
    assert.deepEqual(posted, ['pause', 'resume', 'pause', 'resume']);
    const early = [`pause … ${skipped}`, `resume … ${skipped}`, `pause … ${skipped}`];
    assert.deepEqual(readOutcomes(output()), [...early, 'resume … active after N s']);
  });

  it('presses before --quit-key, and none after it', async (t) => {
    const { port, posted } = await startSlowServer(t, { postMs: 200 });
    const { say, ended } = await listening(t, ['--port', `${port}`, '--quit-key', 'ctrl+alt+q']);
    say('hit 0', 'hit 1', 'hit 2', 'hit 0');
    const { code, stdout, stderr } = await ended;
    assert.deepEqual([code, stderr, posted], [0, '', ['pause', 'resume']]);
    assert.match(stdout, /^pause … accepted, not confirmed\nresume … accepted, not confirmed\n/m);
  });

  it('presses before two signals, such as those of a terminal and npm', async (t) => {
    const { port, posted } = await startSlowServer(t, { postMs: 300 });
    const { child, say, shows, ended } = await listening(t, ['--port', `${port}`]);
    say('hit 0', 'hit 1');
    await shows(/pause … /);
    child.kill('SIGINT');
    await sleep(20);
    child.kill('SIGINT');
    assert.equal((await ended).code, 0);
    assert.deepEqual(posted, ['pause', 'resume']);
  });

  it('nothing later than two seconds after SIGTERM', async (t) => {
    const { port, posted } = await startSlowServer(t, { postMs: 60_000 });
    const { child, say, shows, ended } = await listening(t, ['--port', `${port}`]);
    say('hit 0', 'hit 1', 'hit 0');
    await shows(/pause … /);
    const start = performance.now();
    child.kill('SIGTERM');
    const { code, stdout } = await ended;
    assert.equal(code, 0);
    assert.ok(performance.now() - start < 4000, 'quits within the time limit');
    assert.deepEqual(posted, ['pause']);
    const abandoned = 'pause … sent, but not answered within \\d\\.?\\d? s: it may still take effect';
    const lines = [abandoned, 'resume … not sent', 'pause … not sent', 'quit; the system is unaffected\n$'];
    assert.match(stdout, new RegExp(lines.join('\n')));
  });

  it('before the first status, and prints complete lines', async (t) => {
    const { port, posted, hold, release } = await startSlowServer(t, {});
    void hold('GET');
    const { say, shows } = startHelped(t, ['--port', `${port}`]);
    say('ok 0', 'ok 1', 'ready', 'hit 0');
    await until(() => posted.length === 1);
    await shows(/^http:.*: no answer\npress Ctrl-C to quit\npause … $/m);
    release();
    await shows(/^pause … \nhttp:.*: paused\npause … paused after \d\.\d\d s\n$/m);
  });

  it('commands, and completes the line after a notice', async (t) => {
    const { port } = await startSlowServer(t, { postMs: 300 });
    const helper = 'printf "ready 1 1 0\nhit 0\n"; read -r line < "$KEYS"; echo "$line"; exec cat "$KEYS"';
    const { say, shows } = startHelped(t, ['--port', `${port}`], { backend: 'macos', helper });
    await shows(/pause … $/);
    say('note something else');
    await shows(/^pause … \npause … paused after/m);
    await shows(/^control-kbctl: something else$/m);
  });

  it('nothing more after its output is closed', async (t) => {
    const { port, server } = await startServer(t);
    const { say, child } = await listening(t, ['--port', `${port}`]);
    const ended = once(child, 'exit');
    child.stdout?.destroy();
    say('hit 0');
    assert.equal(await server.nextCommand(), 'pause');
    assert.deepEqual(await ended, [0, null]);
  });

  it('commands again when the system is back online', async (t) => {
    const { port, server } = await startServer(t);
    const { say, shows } = await listening(t, ['--port', `${port}`]);
    await server.close();
    say('hit 1');
    await shows(new RegExp(`^resume … offline: localhost:${port} does not respond: .*ECONNREFUSED.*\n`, 'm'));
    await launchSystem(t, {}, { webApiAddress: ['localhost', port] });
    say('hit 1');
    await shows(/^resume … active after/m);
  });

  it('status requests, and prints when the system goes offline and comes back', async (t) => {
    const port = await freePort('localhost');
    const { client } = await launchSystem(t, {}, { webApiAddress: ['localhost', port] });
    const { say, shows, output } = await listening(t, ['--port', `${port}`]);
    say('hit 0');
    await shows(/^pause … paused after.*\n$/m);
    await client.shutdown();
    await shows(/: offline\n$/);
    await launchSystem(t, {}, { webApiAddress: ['localhost', port] });
    await shows(/: offline\n.*: active\n$/);
    const where = `http://localhost:${port}`;
    const lines = output().replace(/\d\.\d\d s/, 'N s').split('\n').slice(3);
    assert.deepEqual(lines, [
      `${where}: active`, 'press Ctrl-C to quit', 'pause … paused after N s', `${where}: offline`, `${where}: active`, '',
    ]);
  });

  it('status requests, and tells a system that is offline from one that hangs', async (t) => {
    const { port, hold, close } = await startSlowServer(t, {});
    const { shows } = await listening(t, ['--port', `${port}`]);
    await hold('GET');
    close();
    await shows(/^press Ctrl-C to quit\nhttp:.*: offline\n$/m);
  });

  it('status requests, and prints when the system responds', async (t) => {
    const { port, hold, release } = await startSlowServer(t, {});
    void hold('GET');
    const start = performance.now();
    const { shows } = await listening(t, ['--port', `${port}`]);
    await shows(/^http:.*: no answer\npress Ctrl-C to quit\n$/m);
    assert.ok(performance.now() - start < 4000, 'before the time limit of the request');
    release();
    await shows(/^press Ctrl-C to quit\nhttp:.*: active\n$/m);
  });

  it('a press to a system that does not respond, and completes its line', async (t) => {
    const { port, hold } = await startSlowServer(t, {});
    const { say, shows, child, ended } = await listening(t, ['--port', `${port}`]);
    void hold('GET', 'POST');
    say('hit 0');
    const unanswered = 'pause … sent, but not answered within 6 s: it may still take effect';
    await shows(new RegExp(`^pause … \nhttp:.*: no answer\n${unanswered}\n$`, 'm'));
    const start = performance.now();
    child.kill();
    assert.equal((await ended).code, 0);
    assert.ok(performance.now() - start < 2000, 'quits although a status request is pending');
  });

  it('a status request at the start, and prints the status', async (t) => {
    const { port: activePort } = await startServer(t);
    const { port: closedPort } = await startServer(t, { token: TOKEN });
    const { port: mutePort } = await startServer(t, { systemStatus: () => assert.fail('not today') });
    const { port: gonePort, server } = await startServer(t);
    await server.close();
    const lines: [port: number, line: string][] = [
      [activePort, `http://localhost:${activePort}: active`],
      [closedPort, `http://localhost:${closedPort}: ${NO_TOKEN}`],
      [mutePort, `http://localhost:${mutePort}: Internal server error`],
      [gonePort, `http://localhost:${gonePort} does not respond: connect ECONNREFUSED .*; each key press tries again`],
    ];
    await Promise.all(lines.map(async ([port, line]) => {
      const { output } = await listening(t, ['--port', `${port}`]);
      assert.match(output(), new RegExp(`^${line}\npress Ctrl-C to quit\n`, 'm'));
    }));
  });

  it('commands, and prints no control characters of a server', async (t) => {
    const failing = await startImpostor(t, 500, { error: HOSTILE });
    const ok = await startImpostor(t, 200, { status: HOSTILE, result: HOSTILE });
    const refused = await listening(t, ['--port', `${failing}`]);
    assert.ok(refused.output().includes(`\nhttp://localhost:${failing}: ${HARMLESS}\n`), refused.output());
    refused.say('hit 0');
    await until(() => refused.output().includes(`\npause … refused: p${HARMLESS.slice(1)}\n`), refused.output);
    const accepted = await listening(t, ['--port', `${ok}`]);
    assert.ok(accepted.output().includes(`\nhttp://localhost:${ok}: unknown\n`), accepted.output());
    accepted.say('hit 0', 'hit 1');
    await accepted.shows(/^pause … accepted, not confirmed$/m);
    for (const { output } of [refused, accepted]) assertHarmless(output());
  });

  it('the token in CONTROL_TOKEN, to a Unix socket', { skip: lacksSockets() }, async (t) => {
    const path = makeSocketPath(t);
    const socketPath = `${path}\x1b`;
    const { server } = await startServer(t, { port: undefined, socketPath, token: TOKEN });
    const { say, shows, output } = await listening(t, ['--socket', socketPath], { CONTROL_TOKEN: TOKEN });
    await shows(new RegExp(`^unix:${path} : active$`, 'm'));
    say('hit 1');
    assert.equal(await server.nextCommand(), 'resume');
    server.report({});
    await shows(/^resume … active after/m);
    assert.ok(!output().includes(TOKEN));
  });

  it('nothing that takes effect with an empty or wrong token', async (t) => {
    const { port, server } = await startServer(t, { token: TOKEN });
    await Promise.all(['', `not-${TOKEN}`].map(async (token) => {
      const { say, shows } = await listening(t, ['--port', `${port}`], { CONTROL_TOKEN: token });
      say('hit 0');
      await shows(new RegExp(`^pause … ${noToken}\n`, 'm'));
    }));
    assert.equal(server.hasCommands(), false);
  });
});

/** The lines with outcomes, without their times. */
function readOutcomes(output: string): string[] {
  const lines = output.split('\n').slice(0, -1).filter((line) => line.includes(' … '));
  return lines.map((line) => line.replace(/\d+\.\d+ s/, 'N s'));
}

interface SlowServerOptions {
  postMs?: number;
  /** Receives the path of each request. */
  sent?: string[];
}

interface SlowServer {
  port: number;
  posted: string[];
  /** Sends no responses to these methods until release(). Resolves with the first such request. */
  hold(...methods: string[]): Promise<void>;
  release(): void;
  /** Cuts all connections. */
  close(): void;
}

/** A slow web API whose commands take effect at once. */
async function startSlowServer(t: TestContext, { postMs = 0, sent = [] }: SlowServerOptions): Promise<SlowServer> {
  const posted: string[] = [];
  let heldMethods: string[] = [];
  let onHeld = (): void => {};
  const held: (() => void)[] = [];
  const server = createServer(({ method, url = '' }, response) => {
    sent.push(url);
    const isPost = method === 'POST';
    const status = posted.at(-1) === 'pause' ? 'paused' : 'active';
    if (isPost) posted.push(url.replace('/api/', '').replace(/\?.*/, ''));
    const body = JSON.stringify(isPost ? { result: 'ok' } : { status });
    setTimeout(() => {
      if (!heldMethods.includes(`${method}`)) return response.end(body);
      held.push(() => response.end(body));
      return onHeld();
    }, isPost ? postMs : 0).unref();
  });
  const close = (): void => server.close().closeAllConnections();
  t.after(close);
  await new Promise<void>((resolve) => server.listen(0, 'localhost', resolve));
  const { port } = server.address() as AddressInfo;
  const hold = (...methods: string[]): Promise<void> => {
    heldMethods = methods;
    return new Promise((resolve) => (onHeld = resolve));
  };
  const release = (): void => {
    heldMethods = [];
    for (const respond of held.splice(0)) respond();
  };
  return { port, posted, hold, release, close };
}

// ───── Helpers: macOS and Windows ────────────────────────────────────────────────────────────────────────────────

interface HelpedOptions {
  backend?: string;
  helper?: string;
  CONTROL_TOKEN?: string | undefined;
  CONTROL_BY?: string;
  TEXT?: string;
}

interface Helped extends Running {
  /** Makes the helper write these lines. */
  say(...lines: string[]): void;
}

/** Starts the program with a stand-in helper, by default one that only writes the lines of say(). */
function startHelped(t: TestContext, args: string[], options: HelpedOptions = {}): Helped {
  const { backend = 'windows', helper = 'exec cat "$KEYS"', ...env } = options;
  const { file, path } = makePipe(t);
  const running = startProgram(t, 'kbctl', [...args, '--backend', backend], {
    PATH: `${STUBS}:${process.env['PATH']}`, SystemRoot: undefined, HELPER: helper, KEYS: path, ...env,
  });
  return { ...running, say: (...lines) => void writeSync(file, `${lines.join('\n')}\n`) };
}

/** The same, ready for key presses. */
async function listening(...given: Parameters<typeof startHelped>): Promise<Helped> {
  const helped = startHelped(...given);
  helped.say(...(given[2]?.backend === 'macos' ? ['ready 1 1 0'] : ['ok 0', 'ok 1', 'ready']));
  await helped.shows(/^press Ctrl-C to quit/m);
  return helped;
}

describe('control-kbctl with a helper', { concurrency: 4, timeout: 30_000, skip: lacksShell }, () => {
  const PERMISSION = /^control-kbctl: macos: the terminal application lacks a permission: .* > Accessibility .*\n/;
  const taken = (name: string, option: string): string => {
    return `${name} does not work, another program uses it; set ${option} to another combination`;
  };

  it('prints notes of macOS, and reports secure input', async (t) => {
    const port = await startSystem(t);
    const { say, shows, output } = startHelped(t, ['--port', `${port}`], { backend: 'macos' });
    say('note Error: no monitor', 'ready 1 0 1');
    await shows(/^press Ctrl-C to quit/m);
    assert.match(output(), /^listening to macOS key events \(backend macos: set by --backend\)\n/);
    assert.match(output(), /^control-kbctl: Error: no monitor\ncontrol-kbctl: secure input is on: .*\n$/m);
    say('hit 1');
    await shows(/^resume … active after/m);
  });

  for (const permissions of ['0 0 0', '0 -1 0']) {
    it(`explains how to get the permission of macOS: ${permissions}`, async (t) => {
      const { say, ended } = startHelped(t, [], { backend: 'macos' });
      say(`ready ${permissions}`);
      const { code, stdout, stderr } = await ended;
      assert.deepEqual([code, stdout], [1, '']);
      assert.match(stderr, PERMISSION);
    });
  }

  for (const permissions of ['0 1 0', '1 0 0', '1 1 -1', '-1 -1 -1', '-1 0 0']) {
    it(`starts when macOS may permit it: ${permissions}`, async (t) => {
      const { port } = await startServer(t);
      const { say, shows, output } = startHelped(t, ['--port', `${port}`], { backend: 'macos' });
      say(`ready ${permissions}`);
      await shows(/^press Ctrl-C to quit/m);
      assert.doesNotMatch(output(), /control-kbctl:/);
    });
  }

  it('reports combinations that Windows rejects, and continues with the others', async (t) => {
    const port = await startSystem(t);
    const { say, shows, output } = startHelped(t, ['--port', `${port}`, '--quit-key', 'f9']);
    say('failed 0 1409\r', 'ok 1\r', 'failed 2 87\r', 'ready\r', 'hit 99\r', 'constructor\r');
    await shows(/^press Ctrl-C to quit/m);
    assert.match(output(), /^listening to Windows hotkeys.*\n  \S+  resume\nhttp:/m);
    assert.ok(output().includes(`control-kbctl: ${taken(PAUSE, '--pause-key')}\n`), output());
    const rejected = 'F9 does not work, Windows rejected it (error 87); set --quit-key to another combination';
    assert.ok(output().includes(`control-kbctl: ${rejected}\n`), output());
    say('hit 1\r');
    await shows(/^resume … active after/m);
  });

  it('exits with 1 if Windows rejects all combinations', async (t) => {
    const { say, ended } = startHelped(t, []);
    say('failed 0 1409', 'failed 1 1409', 'ready');
    const why = `${taken(PAUSE, '--pause-key')}; ${taken(RESUME, '--resume-key')}`;
    const stderr = `control-kbctl: windows: ${why}\n`;
    assert.deepEqual(await ended, { code: 1, stdout: '', stderr });
  });

  for (const backend of ['macos', 'windows']) {
    it(`keeps the token out of the environment of the helper: ${backend}`, async (t) => {
      const { port } = await startServer(t, { token: TOKEN });
      const file = join(makeFolder(t), 'environment');
      const helper = `env > '${file}'; exec cat "$KEYS"`;
      const { output } = await listening(t, ['--port', `${port}`], { backend, helper, CONTROL_TOKEN: TOKEN });
      assert.ok(output().includes(`\nhttp://localhost:${port}: active\n`), 'kbctl itself sends the token');
      const environment = readFileSync(file, 'utf8');
      assert.match(environment, /^KEYS=/m);
      assert.ok(!environment.includes(TOKEN) && !environment.includes('CONTROL_TOKEN'), environment);
    });
  }

  it('prints no control characters of the helper', async (t) => {
    const helper = `printf '%s\\n' "note $TEXT"; echo "$TEXT" >&2; exit 1`;
    const TEXT = '\x1b]0;title\x07\x9b2J\u202e!';
    const { stdout, stderr } = await startHelped(t, [], { backend: 'macos', helper, TEXT }).ended;
    const why = 'macos: osascript exited with code 1:  ]0;title 2J !';
    assert.deepEqual([stdout, stderr], ['', `control-kbctl:  ]0;title 2J !\ncontrol-kbctl: ${why}\n`]);
  });

  it('joins lines that arrive in pieces', async (t) => {
    const port = await startSystem(t);
    const helper = 'printf "note whole\\nrea"; exec cat "$KEYS"';
    const { say, shows } = startHelped(t, ['--port', `${port}`], { backend: 'macos', helper });
    await shows(/^control-kbctl: whole$/m);
    say('dy 1 1 0');
    await shows(/^press Ctrl-C to quit/m);
    say('hit 1');
    await shows(/^resume … active after/m);
  });

  const early: [what: string, helper: string, why: string][] = [
    ['exits with 3', 'exit 3', 'powershell.exe exited with code 3'],
    ['exits with 0', 'exit 0', 'powershell.exe exited with code 0'],
    ['is killed', 'kill -KILL $$', 'powershell.exe was killed by SIGKILL'],
    ['fails', 'echo " reason" >&2; echo second >&2; exit 1', 'powershell.exe exited with code 1: reason'],
    ['fails at length', 'echo reason >&2; seq 9999 >&2; exit 1', 'powershell.exe exited with code 1: reason'],
    ['must not compile',
      'echo "Add-Type : Definition of new types is not supported in this language mode." >&2; exit 1',
      'a policy of this machine (Constrained Language Mode) forbids Add-Type in PowerShell'],
  ];
  for (const [what, helper, why] of early) {
    it(`exits with 1 and the reason when the helper ${what} at the start`, async (t) => {
      const stderr = `control-kbctl: windows: ${why}\n`;
      assert.deepEqual(await startHelped(t, [], { helper }).ended, { code: 1, stdout: '', stderr });
    });
  }

  it('exits with 1 when there is no interpreter', async (t) => {
    const PATH = makeFolder(t);
    for (const [backend, file] of [['macos', 'osascript'], ['windows', 'powershell.exe']] as const) {
      const ended = await runProgram(t, 'kbctl', ['--backend', backend], '', { PATH, SystemRoot: undefined });
      const why = `${backend}: cannot start ${file}: spawn ${file} ENOENT`;
      const stderr = `control-kbctl: ${why}\n`;
      assert.deepEqual(ended, { code: 1, stdout: '', stderr });
    }
  });

  it('exits with 1 and the reason when the helper exits later', async (t) => {
    const { port } = await startServer(t);
    const helper = 'printf "ok 0\\nok 1\\nready\\n"; read -r _ < "$KEYS"; echo no more >&2; exit 7';
    const { say, shows, ended } = startHelped(t, ['--port', `${port}`], { helper });
    await shows(/^press Ctrl-C to quit/m);
    say('go');
    const { code, stderr } = await ended;
    assert.deepEqual([code, stderr], [1, 'control-kbctl: powershell.exe exited with code 7: no more\n']);
  });

  const quit: [what: string, (helped: Helped) => void][] = [
    ['SIGTERM', ({ child }) => void child.kill('SIGTERM')],
    ['SIGINT', ({ child }) => void child.kill('SIGINT')],
    ['--quit-key', ({ say }) => say('hit 2')],
  ];
  for (const [what, act] of quit) {
    it(`quits with 0 on ${what}, and ends the helper`, async (t) => {
      const { port } = await startServer(t);
      const helper = 'echo "note $$"; exec cat "$KEYS"';
      const helped = startHelped(t, ['--port', `${port}`, '--quit-key', 'f9'], { backend: 'macos', helper });
      helped.say('ready 1 1 0');
      await helped.shows(/^press Ctrl-C to quit/m);
      const processId = Number(/^control-kbctl: (\d+)$/m.exec(helped.output())?.[1]);
      assert.ok(isRunning(processId));
      act(helped);
      assert.equal((await helped.ended).code, 0);
      await until(() => !isRunning(processId));
    });
  }

  it('does not wait for children of the helper', async (t) => {
    const { port } = await startServer(t);
    const helper = 'sleep 5 & echo ready 1 1 0; wait';
    const { child, shows, ended } = startHelped(t, ['--port', `${port}`], { backend: 'macos', helper });
    await shows(/^press Ctrl-C to quit/m);
    const start = performance.now();
    child.kill();
    assert.equal((await ended).code, 0);
    assert.ok(performance.now() - start < 3000);
  });

  it('quits with 0 while the helper starts, and ends the helper', async (t) => {
    const helper = 'echo "note $$"; exec sleep 60';
    const { child, shows, output, ended } = startHelped(t, [], { backend: 'macos', helper });
    await shows(/^control-kbctl: \d+$/m);
    const processId = Number(/(\d+)$/m.exec(output())?.[1]);
    child.kill('SIGTERM');
    const { code, stdout } = await ended;
    assert.deepEqual([code, stdout], [0, 'quit; the system is unaffected\n']);
    await until(() => !isRunning(processId));
  });

  const ctrlC = 'quits with 0 on Ctrl-C of a terminal that is not its input; the helper does not receive it';
  it(ctrlC, { skip: lacksScript() }, async (t) => {
    const { port } = await startServer(t);
    const marker = join(makeFolder(t), 'interrupted');
    const env = {
      PATH: `${STUBS}:${process.env['PATH']}`, MARKER: marker,
      HELPER: 'trap \'touch "$MARKER"\' INT; echo ready 1 1 0; while :; do sleep 0.1; done',
    };
    const program = `exec ${process.execPath} dist/bin/kbctl.js --backend macos --port ${port} < /dev/null`;
    const command = ['--quiet', '--return', '--command', program, '/dev/null'];
    const { child, shows, ended } = start(t, 'script', command, env);
    await shows(/^press Ctrl-C to quit\r$/m);
    child.stdin?.write('\x03');
    const { code, stdout } = await ended;
    assert.equal(code, 0);
    assert.match(stdout, /^\^C\r\nquit; the system is unaffected\r\n$/m);
    assert.equal(existsSync(marker), false);
  });
});

describe('the macOS helper', () => {
  it('receives the combinations as JSON', () => {
    const bindings = parseBindings({ 'quit-key': 'ctrl+cmd+f17' }, 'darwin');
    const combinations = '[{"code":35,"flags":655360},{"code":15,"flags":655360},{"code":64,"flags":1310720}]';
    assert.deepEqual(macosCommand(bindings), ['osascript', '-l', 'JavaScript', '-e', SCRIPT, combinations]);
  });

  const [P, R, ALT_SHIFT, CTRL, CAPS_LOCK] = [35, 15, 0xa0000, 0x40000, 0x10000];
  const event = (keyCode: number, modifierFlags: number, isARepeat: boolean = false): Step => {
    return { event: { keyCode, modifierFlags, isARepeat } };
  };
  const presses: [what: string, steps: Record<number, Step>, hits: string][] = [
    ['the key state', { 5: { flags: ALT_SHIFT }, 6: { down: [P] }, 12: { down: [] } }, '0'],
    ['the monitor', { 5: event(R, ALT_SHIFT) }, '1'],
    ['both sources within 250 ms, once', { 5: { flags: ALT_SHIFT, down: [P] }, 15: event(P, ALT_SHIFT) }, '0'],
    ['both sources in the other order, once', { 5: event(P, ALT_SHIFT), 15: { flags: ALT_SHIFT, down: [P] } }, '0'],
    ['both sources 300 ms apart, twice', { 5: { flags: ALT_SHIFT, down: [P] }, 20: event(P, ALT_SHIFT) }, '0 0'],
    ['two combinations at once', { 5: event(P, ALT_SHIFT), 6: event(R, ALT_SHIFT) }, '0 1'],
    ['two presses', { 5: { flags: ALT_SHIFT, down: [P] }, 10: { down: [] }, 20: { down: [P] } }, '0 0'],
    ['a held key, once', { 5: { flags: ALT_SHIFT, down: [P] }, 30: event(P, ALT_SHIFT, true) }, '0'],
    ['no auto-repeat', { 5: event(P, ALT_SHIFT, true) }, ''],
    ['no extra modifier', { 5: { flags: ALT_SHIFT | CTRL, down: [P] }, 30: event(R, ALT_SHIFT | CTRL) }, ''],
    ['no missing modifier', { 5: { flags: 0x80000, down: [P] }, 30: event(R, 0x20000) }, ''],
    ['a press with CapsLock on', { 5: { flags: ALT_SHIFT | CAPS_LOCK, down: [P] } }, '0'],
    ['a press with bits of one side', { 5: event(R, ALT_SHIFT | 0x122) }, '1'],
    ['no key before the modifiers', { 5: { down: [P] }, 6: { flags: ALT_SHIFT } }, ''],
    ['no key held since before the start', { 0: { flags: ALT_SHIFT, down: [P] } }, ''],
    ['no other key', { 5: { flags: ALT_SHIFT, down: [34] }, 6: event(34, ALT_SHIFT) }, ''],
  ];
  for (const [what, steps, hits] of presses) {
    it(`reports ${what}`, () => {
      const [ready, ...lines] = runScript(steps);
      assert.equal(ready, 'ready 0 1 -1');
      assert.equal(lines.map((line) => line.replace('hit ', '')).join(' '), hits);
    });
  }

  it('continues without the monitor, and writes a note', () => {
    const lines = runScript({ 5: { flags: ALT_SHIFT, down: [P] } }, false);
    assert.deepEqual(lines, ['note Error: no monitor', 'ready 0 1 -1', 'hit 0']);
  });
});

interface Step {
  flags?: number;
  down?: number[];
  event?: { keyCode: number; modifierFlags: number; isARepeat: boolean };
}

/** Runs the script with a stand-in for AppKit. A turn takes 20 ms; the parent exits after 50 turns. */
function runScript(steps: Record<number, Step>, hasMonitor: boolean = true): string[] {
  let [now, turn] = [1e6, 0];
  let onKeyDown: (event: unknown) => void = () => {};
  const lines: string[] = [];
  const keys: Required<Pick<Step, 'flags' | 'down'>> = { flags: 0, down: [], ...steps[0] };
  const runUntilDate = (): void => {
    [turn, now] = [turn + 1, now + 20];
    assert.ok(turn < 100, 'the script ends when its parent exits');
    const { event, ...state } = steps[turn] ?? {};
    Object.assign(keys, state);
    if (event !== undefined) onKeyDown(event);
  };
  const addMonitor = (mask: number, handler: typeof onKeyDown): void => {
    if (!hasMonitor) throw new Error('no monitor');
    assert.equal(mask, 1024);
    onKeyDown = handler;
  };
  const $ = Object.assign((text: string) => ({ dataUsingEncoding: () => text }), {
    NSUTF8StringEncoding: 4,
    NSFileHandle: { fileHandleWithStandardOutput: { writeData: (text: string) => lines.push(text.trim()) } },
    NSApplication: { sharedApplication: { setActivationPolicy: () => {} } },
    NSEvent: { addGlobalMonitorForEventsMatchingMaskHandler: addMonitor },
    NSRunLoop: { currentRunLoop: { runUntilDate } },
    NSDate: { dateWithTimeIntervalSinceNow: () => {} },
    NSThread: { sleepForTimeInterval: () => {} },
    CGEventSourceFlagsState: () => keys.flags,
    CGEventSourceKeyState: (_: number, code: number) => keys.down.includes(code),
    AXIsProcessTrusted: () => false,
    CGPreflightListenEventAccess: () => true,
    getppid: () => (turn < 50 ? 99 : 1),
  });
  const bindFunction = (name: string): void => assert.notEqual(name, 'IsSecureEventInputEnabled');
  const context = createContext({ $, ObjC: { import: () => {}, bindFunction }, Date: { now: () => now } });
  runInContext(SCRIPT, context);
  context['run']([macosCommand(parseBindings({}, 'darwin')).at(-1)]);
  return lines;
}

describe('the Windows helper', { concurrency: 2, timeout: 30_000 }, () => {
  const bindings = parseBindings({ 'resume-key': 'ctrl+shift+super+f5' }, 'win32');

  it('is started by its full path, without double quotes', () => {
    const root = process.env['SystemRoot'];
    try {
      delete process.env['SystemRoot'];
      const [file, ...args] = windowsCommand(bindings, 4711);
      assert.equal(file, 'powershell.exe');
      assert.ok(!args.join('').includes('"'));
      assert.deepEqual(args.slice(0, -1), [
        '-NoLogo', '-NoProfile', '-NonInteractive', '-InputFormat', 'None', '-ExecutionPolicy', 'Bypass', '-Command',
      ]);
      assert.match(args.at(-1) as string, /^[\x20-\x7e]+; \[Hotkeys\]::Listen\(4711,'5,80;14,116;5,81'\)$/);
      process.env['SystemRoot'] = 'C:\\Windows';
      const [fullPath] = windowsCommand(bindings, 4711);
      assert.equal(fullPath, 'C:\\Windows\\System32\\WindowsPowerShell\\v1.0\\powershell.exe');
    } finally {
      if (root === undefined) delete process.env['SystemRoot'];
      else process.env['SystemRoot'] = root;
    }
  });

  it('has the same source after PowerShell has restored the quotes', () => {
    assert.equal(readSource().replace(/\s+/g, ' '), SOURCE.trim().replace(/\s+/g, ' '));
  });

  it('compiles with C# 5', { skip: lacksShell || lacks('mcs') }, async (t) => {
    const folder = makeFolder(t);
    writeFileSync(join(folder, 'Hotkeys.cs'), readSource());
    const args = ['-langversion:5', '-target:library', `-out:${folder}/Hotkeys.dll`, `${folder}/Hotkeys.cs`];
    assert.deepEqual(await start(t, 'mcs', args).ended, { code: 0, stdout: '', stderr: '' });
  });

  const lacksCompilers = lacksShell || lacks('mcs', 'mono', 'cc');
  it('registers combinations, reports presses, and exits with its parent', { skip: lacksCompilers }, async (t) => {
    const folder = makeFolder(t);
    const call = 'public static void Main(string[] words) { Hotkeys.Listen(int.Parse(words[0]), words[1]); }';
    writeFileSync(join(folder, 'Main.cs'), `${readSource()} public class Program { ${call} }`);
    writeFileSync(join(folder, 'user32.c'), USER32);
    const compiled = await Promise.all([
      start(t, 'mcs', ['-langversion:5', `-out:${folder}/Main.exe`, `${folder}/Main.cs`]).ended,
      start(t, 'cc', ['-shared', '-fPIC', '-o', `${folder}/libuser32.so`, `${folder}/user32.c`]).ended,
    ]);
    assert.deepEqual(compiled.map(({ code }) => code), [0, 0]);
    const parent = start(t, 'cat', []);
    const helper = start(t, 'mono', [`${folder}/Main.exe`, `${parent.child.pid}`, '5,80;2,80;4,80;8,113']);
    await helper.shows(/hit 3/);
    parent.child.kill();
    const { code, stdout, stderr } = await helper.ended;
    assert.deepEqual([code, stderr], [0, '']);
    assert.equal(stdout, 'ok 0\nfailed 1 1409\nfailed 2 87\nok 3\nready\nhit 0\nhit 3\n');
  });

  /** The source as PowerShell evaluates it from the command line. */
  function readSource(): string {
    const expression = /-TypeDefinition \('((?:[^']|'')*)'\.Replace\(\[string\]\[char\]96,\[string\]\[char\]34\)\); /;
    const [, quoted] = expression.exec(windowsCommand(bindings, 1).at(-1) as string) ?? [];
    assert.ok(quoted);
    return quoted.replaceAll("''", "'").replaceAll('`', '"');
  }
});

/** Stands in for Windows: rejects Ctrl+P and Shift+P, and reports presses of the first and fourth combination. */
const USER32 = `
#include <errno.h>
#include <stdint.h>
#include <unistd.h>

typedef struct { void *window; uint32_t type; uintptr_t wParam; intptr_t lParam; uint32_t time; int32_t x, y; } Message;

int RegisterHotKey(void *window, int id, uint32_t modifiers, uint32_t key) {
  if (modifiers == 0x4002 && key == 0x50) { errno = 1409; return 0; }
  if (window != 0 || modifiers == 0x4004 || !(modifiers & 0x4000) || id < 1) { errno = 87; return 0; }
  return 1;
}

int GetMessage(Message *message, void *window, uint32_t first, uint32_t last) {
  static int count;
  static const Message messages[] = { { 0, 0x0312, 1 }, { 0, 0x0113, 2 }, { 0, 0x0312, 4, 5, 6, 7, 8 } };
  usleep(10000);
  *message = messages[count < 3 ? count++ : 1];
  return 1;
}
`;

// ───── Options, and the choice of the backend ────────────────────────────────────────────────────────────────────

describe('control-kbctl options', { concurrency: 4, timeout: 30_000, skip: lacksShell }, () => {
  const backends = '--backend must be one of x11, evdev, terminal, macos, windows, got';
  const keys = (option: string, text: string, why: string): string => {
    return `${option} must be a key combination such as alt+shift+p, got '${text}': ${why}`;
  };
  const wrong: [args: string[], line: string][] = [
    [['--prot', '1'], "unknown option '--prot'; see --help"],
    [['pause'], "unexpected argument 'pause'; see --help"],
    [['--backend', 'wayland'], `${backends} 'wayland'`],
    [['--backend='], `${backends} ''`],
    [['--backend', 'constructor'], `${backends} 'constructor'`],
    [['--pause-key'], '--pause-key requires a value; see --help'],
    [['--pause-key', 'alt+p\nq'], keys('--pause-key', 'alt+p q', 'unknown key p q')],
    [['--pause-key='], keys('--pause-key', '', 'it is empty')],
    [['--pause-key', 'p'], keys('--pause-key', 'p', 'only function keys work without ctrl, alt or super')],
    [['--resume-key', 'alt+'], keys('--resume-key', 'alt+', 'a key is missing next to +')],
    [['--quit-key', 'alt+x+y'], keys('--quit-key', 'alt+x+y', 'more than one key: X and Y')],
    [['--resume-key', '<shift>+P+Option'], `--pause-key and --resume-key must differ, got ${PAUSE} for both`],
    [['--quit-key', 'alt+shift+r'], `--resume-key and --quit-key must differ, got ${RESUME} for both`],
    [['--port', '0'], "--port must be an integer from 1 to 65535, got '0'"],
    [['--port=x'], "--port must be an integer from 1 to 65535, got 'x'"],
    [['--host', 'a b'], "--host must be a host name or an IP address, got 'a b'"],
  ];
  const all = [
    ...wrong.map(([args, line]) => [args.join(' '), args, '', line] as const),
    ...WRONG_ACCESS,
  ];
  for (const [what, args, token, line] of all) {
    it(`rejects ${what}, and starts nothing`, async (t) => {
      const { path: marker } = makePipe(t);
      const addressed = args.some((arg) => /^--(port|host|socket)/.test(arg));
      const sent: string[] = [];
      const { port } = await startSlowServer(t, { sent });
      const env = { PATH: `${STUBS}:${process.env['PATH']}`, HELPER: 'touch "$MARKER.started"', MARKER: marker };
      const backend = args.some((arg) => arg.startsWith('--backend')) ? [] : ['--backend', 'windows'];
      const options = [...(addressed ? [] : ['--port', `${port}`]), ...backend, ...args];
      const ended = await runProgram(t, 'kbctl', options, '', { ...env, CONTROL_TOKEN: token });
      assert.deepEqual(ended, { code: 2, stdout: '', stderr: `control-kbctl: ${line}\n` });
      assert.deepEqual([existsSync(`${marker}.started`), sent], [false, []]);
    });
  }

  it('--help and --version', async (t) => {
    const { code, stdout, stderr } = await runProgram(t, 'kbctl', ['--help'], '', { CONTROL_TOKEN: TOKEN });
    assert.deepEqual([code, stderr], [0, '']);
    assert.match(stdout, /^Usage: control-kbctl /);
    const options = [...stdout.matchAll(/^  (?:-h, )?--(\S+)/gm)].map(([, option]) => option);
    const keys = ['pause-key', 'resume-key', 'quit-key'];
    assert.deepEqual(options, ['host', 'port', 'socket', ...keys, 'backend', 'help', 'version']);
    assert.match(stdout, /\bCONTROL_TOKEN\b[^]*^Exit codes: 0 .*; 1 .*; 2 /m);
    assert.ok(!stdout.includes(TOKEN));
    assert.deepEqual(await runProgram(t, 'kbctl', ['-h']), { code, stdout, stderr });
    assert.deepEqual(await runProgram(t, 'kbctl', ['--version']), { code: 0, stdout: `${VERSION}\n`, stderr: '' });
  });
});

describe('the choice of the backend', { concurrency: 4, timeout: 30_000, skip: lacksEvdev }, () => {
  const NO_TERMINAL = /^control-kbctl: terminal: standard input is not a terminal/m;
  const NO_SERVER = /^control-kbctl: x11: no X server at .*:99999: connect ENOENT.*\n/;

  it('depends on the platform and the session', () => {
    const choices: [NodeJS.Platform, NodeJS.ProcessEnv, backends: string, reason: string][] = [
      ['linux', { DISPLAY: ':0' }, 'x11 evdev terminal', 'DISPLAY is set'],
      ['linux', { DISPLAY: ':0', WAYLAND_DISPLAY: 'wayland-0' }, 'evdev x11 terminal', 'WAYLAND_DISPLAY is set'],
      ['linux', { DISPLAY: '', WAYLAND_DISPLAY: '' }, 'evdev terminal', 'DISPLAY is not set'],
      ['freebsd', { DISPLAY: ':0' }, 'x11 evdev terminal', 'DISPLAY is set'],
      ['darwin', { DISPLAY: ':0' }, 'macos terminal', 'this is macOS'],
      ['win32', {}, 'windows terminal', 'this is Windows'],
    ];
    for (const [platform, env, backends, reason] of choices) {
      assert.deepEqual(chooseBackends(undefined, platform, env), { backends: backends.split(' '), reason });
      assert.deepEqual(chooseBackends('evdev', platform, env), { backends: ['evdev'], reason: 'set by --backend' });
    }
  });

  const NO_DISPLAY = ':99999';

  it('is evdev without a display', async (t) => {
    const { stderr } = await choose(t, {}, /DISPLAY is not set/);
    assert.doesNotMatch(stderr, /x11|curl/);
  });

  it('is evdev under Wayland; without its permission, suggests a shortcut of the desktop', async (t) => {
    const { stderr } = await choose(t, { WAYLAND_DISPLAY: 'wayland-0' }, /WAYLAND_DISPLAY is set/, ['--port', '4711']);
    if (stderr === '') return; // this machine permits evdev
    const [evdev, x11, , shortcut] = stderr.split('\n') as [string, string, string, string];
    assert.match(evdev, /^control-kbctl: evdev: /);
    assert.match(x11, /^control-kbctl: x11: DISPLAY is not set/);
    const command = 'curl -X POST http://localhost:4711/api/pause';
    const alternative = `alternative: in the settings of your desktop, bind keys to ${command} (and …/resume)`;
    assert.equal(shortcut, `control-kbctl: ${alternative}`);
  });

  it('suggests the path of the socket, but not the token', async (t) => {
    const env = { WAYLAND_DISPLAY: 'wayland-0', CONTROL_TOKEN: TOKEN };
    const { stderr } = await choose(t, env, /WAYLAND_DISPLAY is set/, ['--socket', '/nowhere/control.sock']);
    if (stderr === '') return;
    const where = "--unix-socket '/nowhere/control.sock' http://localhost/api/pause";
    assert.ok(stderr.includes(`curl -H 'Authorization: Bearer …' -X POST ${where}`), stderr);
    assert.ok(!stderr.includes(TOKEN));
  });

  it('is the next one if there is no server at DISPLAY', async (t) => {
    const { stderr } = await choose(t, { DISPLAY: NO_DISPLAY }, /x11 cannot listen/);
    assert.match(stderr, NO_SERVER);
    assert.doesNotMatch(stderr, /curl/);
  });

  it('is only the one of --backend', async (t) => {
    const env = { DISPLAY: NO_DISPLAY, WAYLAND_DISPLAY: undefined };
    const cannot: [backend: string, why: RegExp][] = [['terminal', NO_TERMINAL], ['x11', NO_SERVER]];
    for (const [backend, why] of cannot) {
      const { code, stdout, stderr } = await runProgram(t, 'kbctl', ['--backend', backend], '', env);
      assert.deepEqual([code, stdout, stderr.split('\n').length], [1, '', 2]);
      assert.match(stderr, why);
    }
  });

  /** Runs the program without a terminal. Whether it can read keyboards depends on the machine. */
  async function choose(t: TestContext, env: NodeJS.ProcessEnv, why: RegExp, args: string[] = []): Promise<Ended> {
    const silent = { onPress: () => {}, onNotice: () => {}, onEnd: () => {} };
    const listener = await listenEvdev(parseBindings({}), silent).catch(() => null);
    listener?.close();
    const canReadKeyboards = listener !== null;
    const without = { DISPLAY: undefined, WAYLAND_DISPLAY: undefined, ...env };
    const { child, shows, ended } = startProgram(t, 'kbctl', args, without);
    child.stdin?.end();
    await shows(/^press Ctrl-C to quit|no backend can listen/m);
    if (canReadKeyboards) child.kill();
    const { code, stdout, stderr } = await ended;
    if (canReadKeyboards) {
      assert.equal(code, 0);
      assert.match(stdout, /^listening to the keyboards \/dev\/input\/event/);
      assert.match(stdout, why);
    } else {
      assert.deepEqual([code, stdout, stderr.trimEnd().split('\n').at(-1)], [1, '', `control-kbctl: ${NO_BACKEND}`]);
      assert.match(stderr, /^control-kbctl: evdev: /m);
      assert.match(stderr, NO_TERMINAL);
    }
    return { code, stdout, stderr };
  }
});

function isRunning(processId: number): boolean {
  const { stdout } = spawnSync('ps', ['-o', 'stat=', '-p', `${processId}`], { encoding: 'utf8' });
  return /^[^Z\s]/.test(stdout.trim()); // Z: it has exited, but its parent has not noticed yet
}
