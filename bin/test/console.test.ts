import assert from 'node:assert/strict';
import { hostname, userInfo } from 'node:os';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus, VERSION, WebApiClient } from '../../control.ts';
import {
  assertHarmless, HARMLESS, HOSTILE, lacksScript, lacksSockets, launchSystem, makeSocketPath, NO_TOKEN, runProgram,
  start, startImpostor, startOldServer, startServer, startSystem, TOKEN, WRONG_ACCESS,
} from './helpers.ts';
import type { Running } from './helpers.ts';
import type { TestContext } from 'node:test';

const CTRL_C = '\x03';
const CTRL_D = '\x04';
const UP = '\x1b[A';

describe('control-console with a pipe', () => {
  it('runs one command per line, without prompt or echo', async (t) => {
    const saved: string[] = [];
    const saveState = (): string => `state ${saved.push('state')}`;
    const port = await startSystem(t, { onPaused: () => sleep(400), saveState });
    const ended = await piped(t, port, 'pause\n\n  RESUME  \nsave\np\nr\nhelp\nq\nnever reached\n');
    assert.deepEqual([ended.code, ended.stderr], [0, '']);
    const lines = ended.stdout.replaceAll(/\d+\.\d s/g, 'N s').split('\n');
    assert.deepEqual(lines.slice(0, 2), ['pausing … paused (N s)', 'active (N s)']);
    assert.equal(lines[2], 'saved state 1 (N s)');
    assert.match(lines[3] as string, /paused \(N s\)$/);
    assert.match(lines[4] as string, /active \(N s\)$/);
    const commands = ['h, help', 'status', 'info', 'p, pause', 'r, resume', 'save', 'shutdown', 'q, quit'];
    const help = commands.map((words) => `  ${words} .*\n`);
    assert.match(lines.slice(5).join('\n'), new RegExp(`^${help.join('')}$`));
    assert.deepEqual(saved, ['state']);
  });

  it('shuts down after y or yes, in any case, and after nothing else', async (t) => {
    const port = await startSystem(t);
    for (const answer of ['n', '', 'yep', 'no', 'shutdown']) {
      const kept = await piped(t, port, `shutdown\n${answer}\n`);
      assert.deepEqual([kept.code, kept.stdout, kept.stderr], [0, 'shutdown cancelled\n', '']);
    }
    const ended = await piped(t, port, 'shutdown\n YeS \npause\n');
    assert.deepEqual([ended.code, ended.stderr], [0, '']);
    assert.match(ended.stdout, /^(.* … )?offline \(\d\.\d s\)\n$/);
  });

  it('continues after a failed command, and exits with 1', async (t) => {
    const port = await startSystem(t);
    const ended = await piped(t, port, 'paws\npause now\npause\n');
    const unknown = (word: string): string => `unknown command '${word}'; type help for a list of commands\n`;
    assert.deepEqual([ended.code, ended.stderr], [1, unknown('paws') + unknown('pause now')]);
    assert.match(ended.stdout, /paused/);
    const unconfirmed = await piped(t, port, 'shutdown\n');
    assert.equal(unconfirmed.code, 1);
    assert.equal(unconfirmed.stderr, 'shutdown not sent: the input ended before the confirmation\n');
  });

  it('sends nothing while the system is offline, and reports the address', async (t) => {
    const { port, server } = await startServer(t);
    await server.close();
    const ended = await piped(t, port, 'pause\nresume\nsave\nshutdown\nhelp\n');
    assert.equal(ended.code, 1);
    const lines = ended.stderr.trimEnd().split('\n');
    assert.deepEqual(
      lines.map((line) => line.split(' not sent: ')[0]),
      ['pause', 'resume', 'save-state', 'shutdown'],
    );
    for (const line of lines) assert.ok(line.includes(`http://localhost:${port} does not respond`), line);
  });

  it('reports a full queue', async (t) => {
    const { port, client } = await startServer(t, { maxQueueSize: 1 });
    await client.saveState();
    const stderr = 'save-state failed: Command queue is full, try again later\n';
    assert.deepEqual(await piped(t, port, 'save\n'), { code: 1, stdout: '', stderr });
  });

  it('prints why a command failed, and what the program tells of one that is done', async (t) => {
    let isFull = true; // until the system is to end
    const failing = await startSystem(t, { onPaused: () => assert.fail('GPU busy') });
    const notPaused = 'onPaused failed: GPU busy\n';
    const stderr = `not paused: ${notPaused}not saved: ${notPaused}`;
    assert.deepEqual(await piped(t, failing, 'pause\nsave\n'), { code: 1, stdout: '', stderr });

    const full = await startSystem(t, { saveState: () => isFull && assert.fail('ENOSPC: no space left on device') });
    const ended = await piped(t, full, 'p\nsave\nshutdown\ny\n');
    const reason = 'ENOSPC: no space left on device\n';
    assert.deepEqual([ended.code, ended.stderr], [1, `not saved: ${reason}not shut down: ${reason}`]);
    isFull = false;

    const telling = await startSystem(t, { onPaused: () => '3 GB freed', saveState: () => 'states/1.json' });
    const { stdout } = await piped(t, telling, 'pause\nshutdown\ny\n');
    const done = stdout.replaceAll(/\w+(ing| down) … |\d\.\d/g, '');
    assert.equal(done, 'paused: 3 GB freed ( s)\noffline: states/1.json ( s)\n');
  });

  it('tells the status and what is known of it', async (t) => {
    const { address: { port }, client } = await launchSystem(t, { describe: () => ({ episode: 7 }) }, {
      name: 'cartpole', webApiAddress: ['localhost', 0],
    });
    assert.equal((await piped(t, port, 'status\n')).stdout, 'active\n');
    await client.request('pause', { wait: 5, by: 'ana@laptop', reason: 'GPU needed until noon' });
    const status = 'paused \\d s ago by ana@laptop: GPU needed until noon';
    const { code, stdout, stderr } = await piped(t, port, 'status\ninfo\n');
    assert.deepEqual([code, stderr], [0, '']);
    const lines = [
      status,
      `name      cartpole \\(process ${process.pid} on .+\\)`,
      `status    ${status}`,
      'started   \\d+ \\w+ ago',
      'detail    episode 7',
      'commands  pause by ana@laptop \\(GPU needed until noon\\) done in 0\\.\\d\\d s',
      'version   .*',
    ];
    assert.match(stdout, new RegExp(`^${lines.join('\n')}\n$`));
  });

  it('sends who types the commands', async (t) => {
    const { address: { port }, client } = await launchSystem(t, {}, { webApiAddress: ['localhost', 0] });
    for (const by of ['ana@laptop', '', undefined]) {
      await runProgram(t, 'console', ['--port', `${port}`], 'resume\n', { CONTROL_BY: by });
    }
    const { commands = [] } = await client.info() ?? {};
    assert.deepEqual(commands.map(({ by }) => by), ['ana@laptop', undefined, `${userInfo().username}@${hostname()}`]);
  });

  for (const isOriginal of [false, true]) {
    it(`follows a server that tells no outcome by its status${isOriginal ? ', a number' : ''}`, async (t) => {
      const { port, posted } = await startOldServer(t, isOriginal);
      const ended = await piped(t, port, 'status\ninfo\npause\nsave\nresume\nstatus\nshutdown\ny\n');
      assert.deepEqual(posted, ['pause', 'save-state', 'resume', 'shutdown']);
      assert.equal(ended.stderr, 'the server is of version 0.2 or older, which tells its status only\n');
      const outcomes = ['active … paused (0.N s)', 'save-state: ok', 'paused … active (0.N s)'];
      const lines = ['active', ...outcomes, 'active', 'active … offline (0.N s)\n'];
      assert.equal(ended.stdout.replaceAll(/0\.\d s/g, '0.N s'), lines.join('\n'));
    });
  }

  it('prints nothing unsafe of what a server tells', async (t) => {
    const told = { state: 'done', value: HOSTILE.repeat(4) };
    const entry = { command: HOSTILE, by: HOSTILE, reason: HOSTILE, error: HOSTILE, at: HOSTILE, ...told };
    const states = ['waiting', 'running', 'done', 'failed', 'constructor', HOSTILE, 7, null, {}];
    const commands = [...states.map((state) => ({ ...entry, state })), null, 1];
    const detail = { [HOSTILE]: HOSTILE, list: [HOSTILE] };
    const about = { name: HOSTILE, pid: HOSTILE, host: {}, version: [HOSTILE] };
    const info = { ...about, status: HOSTILE, by: HOSTILE, detail, commands };
    for (const body of [{ ...info, result: 'ok', ...told }, { status: 'paused', commands: HOSTILE, detail: HOSTILE }]) {
      const ended = await piped(t, await startImpostor(t, 200, body), 'save\nstatus\ninfo\n');
      assertHarmless(ended.stdout + ended.stderr);
      const longest = Math.max(...ended.stdout.split('\n').map((line) => [...line].length));
      assert.ok(longest < 4 * 1000, `a line of ${longest} characters`);
    }
  });

  it('prints a refusal of the server', async (t) => {
    const { port, server } = await startServer(t, { token: TOKEN });
    assert.equal((await piped(t, port, 'status\ninfo\n')).stderr, `${NO_TOKEN}\n${NO_TOKEN}\n`);
    assert.equal(server.hasCommands(), false);
  });

  it('prints no control characters of a server or of the input', async (t) => {
    const ok = await startImpostor(t, 200, { status: HOSTILE, result: HOSTILE });
    const saved = await piped(t, ok, 'save\n\x1b[2J\x9b\u202e!\n');
    const unknown = "unknown command ' [2J !'; type help for a list of commands\n";
    assert.deepEqual(saved, { code: 1, stdout: `save-state: ${HARMLESS}\n`, stderr: unknown });
    const failing = await startImpostor(t, 500, { error: HOSTILE });
    const failed = await piped(t, failing, 'pause\n');
    assert.deepEqual(failed, { code: 1, stdout: '', stderr: `pause failed: ${HARMLESS}\n` });
    for (const text of [saved.stdout, saved.stderr, failed.stderr]) assertHarmless(text);
  });

  it('stops waiting when the system is shutting down', async (t) => {
    const { port } = await startServer(t, { systemStatus: () => SystemStatus.SHUTTING_DOWN });
    const ended = await piped(t, port, 'pause\n');
    assert.equal(ended.code, 1);
    assert.match(ended.stderr, /^not paused after \d\.\d s: the system is shutting down\n$/);
  });
});

describe('control-console on a terminal', { skip: lacksScript() }, () => {
  it('shows the current status in the prompt', async (t) => {
    const port = await startSystem(t);
    const { shows, type } = await terminal(t, port);
    await shows(/control-console \(active\) > $/);
    const client = new WebApiClient('localhost', port);
    await client.pause();
    await type('sa', /control-console \(paused\) > (.*\n?)*sa$/);
  });

  it('distinguishes a system that refuses its status from one that is offline', async (t) => {
    const { port, server } = await startServer(t, { token: TOKEN });
    const { shows } = await terminal(t, port);
    await shows(/control-console \(unknown\) > $/);
    await server.close();
    await shows(/control-console \(offline\) > $/);
  });

  it('prints no control characters of a server', async (t) => {
    const ok = await terminal(t, await startImpostor(t, 200, { status: HOSTILE, result: HOSTILE }));
    await ok.shows(/\ncontrol-console \(unknown\) > $/);
    await ok.type('save\r', /\nsave-state: PW .*…\n.*> $/s);
    const failing = await terminal(t, await startImpostor(t, 500, { error: HOSTILE }));
    await failing.shows(/\ncontrol-console \(unknown\) > $/);
    await failing.type('pause\r', /\npause failed: PW .*…\n.*> $/s);
    for (const { output } of [ok, failing]) {
      const text = output().replaceAll(/\x1b\[\d+G|\x1b\[0J|\r/g, ''); // readline's, and the line ends of the terminal
      assertHarmless(text);
      assert.ok(text.includes(HARMLESS), text);
    }
  });

  it('completes commands, recalls them, and shows each status', async (t) => {
    const port = await startSystem(t, { onPaused: () => sleep(150) });
    const { type } = await terminal(t, port);
    await type('pau', /pau$/);
    await type('\t', /se$/);
    await type('\r', /pausing … paused \(\d\.\d s\)\n.*control-console \(paused\) > $/s);
    await type('r\r', /active \(\d\.\d s\)\n.*control-console \(active\) > $/s);
    await type(UP + UP, /> pause$/);
    await type('\r', /paused \(\d\.\d s\)\n.*control-console \(paused\) > $/s);
  });

  it('stops waiting at a key press, and discards the key', async (t) => {
    let status = SystemStatus.PAUSING;
    const { port } = await startServer(t, { systemStatus: () => status });
    const { type, shows } = await terminal(t, port);
    await type('pause\r', /\npausing … $/);
    const summary = 'not paused after .*: the system is pausing; the command is still pending';
    await type('x', new RegExp(`${summary}\n.*control-console \\(pausing\\) > $`, 's'));
    status = SystemStatus.PAUSED;
    await shows(/control-console \(paused\) > $/);
  });

  it('confirms a shutdown, keeps the answer out of the history, and exits', async (t) => {
    const port = await startSystem(t, { saveState: () => sleep(200) });
    const { type, ended } = await terminal(t, port);
    await type('shutdown\r', /Shut the system down\? \(y\/\[N\]\) $/);
    await type('no\r', /shutdown cancelled\n.*> $/s);
    await type('shutdown\r', /Shut the system down\? \(y\/\[N\]\) $/);
    await type(CTRL_C, /shutdown cancelled\n.*> $/s);
    await type(UP, /> shutdown$/);
    await type('\r', /Shut the system down\? \(y\/\[N\]\) $/);
    await type('y\r', /shutting down … offline \(\d\.\d s\)/);
    assert.equal((await ended).code, 0);
  });

  it('Ctrl-C clears the line, and pressed twice on an empty line quits', async (t) => {
    const port = await startSystem(t);
    const { type, ended } = await terminal(t, port);
    await type('shutdo', /shutdo$/);
    await type(CTRL_C, /> $/);
    await type(CTRL_C, /press Ctrl-C again or Ctrl-D to quit\n.*> $/s);
    await type(CTRL_C, /\n/);
    assert.equal((await ended).code, 0);
  });

  it('ignores empty lines, quits with Ctrl-D, and exits with 0 after a failed command', async (t) => {
    const port = await startSystem(t);
    const { type, ended } = await terminal(t, port);
    await type('\r', /^\s+control-console \(active\) > $/);
    await type('nonsense\r', /unknown command 'nonsense'; type help for a list of commands\n.*> $/s);
    await type(CTRL_D, /\n/);
    assert.equal((await ended).code, 0);
  });
});

describe('control-console options', () => {
  const wrong: [args: string[], line: string][] = [
    [['--port', 'x'], "--port must be an integer from 1 to 65535, got 'x'"],
    [['--port', '0'], "--port must be an integer from 1 to 65535, got '0'"],
    [['--host='], "--host must be a host name or an IP address, got ''"],
    [['--prot', '1'], "unknown option '--prot'; see --help"],
    [['pause'], "unexpected argument 'pause'; see --help"],
  ];
  for (const [args, line] of wrong) {
    it(`rejects ${args.join(' ')}`, async (t) => {
      const stderr = `control-console: ${line}\n`;
      assert.deepEqual(await runProgram(t, 'console', args), { code: 2, stdout: '', stderr });
    });
  }

  it('--help and --version', async (t) => {
    assert.match((await runProgram(t, 'console', ['--help'])).stdout, /^Usage: control-console /);
    assert.deepEqual(await runProgram(t, 'console', ['--version']), { code: 0, stdout: `${VERSION}\n`, stderr: '' });
  });
});

describe('control-console with a Unix socket or a token', { concurrency: 4, skip: lacksSockets() }, () => {
  it('sends commands to the socket, with the token in CONTROL_TOKEN', async (t) => {
    const socketPath = makeSocketPath(t);
    const { server } = await startServer(t, { port: undefined, socketPath, token: TOKEN });
    const ended = runProgram(t, 'console', ['--socket', socketPath], 'save\n', { CONTROL_TOKEN: TOKEN });
    assert.equal(await server.nextCommand(), 'save-state');
    server.report({ value: 7 });
    const { code, stdout, stderr } = await ended;
    assert.deepEqual([code, stdout.replace(/\d\.\d/, 'N'), stderr], [0, 'saved 7 (N s)\n', '']);
  });

  it('reports a missing or wrong token', async (t) => {
    const socketPath = makeSocketPath(t);
    const { server } = await startServer(t, { port: undefined, socketPath, token: TOKEN });
    await Promise.all([undefined, '', `not-${TOKEN}`].map(async (token) => {
      const input = 'pause\nshutdown\ny\nsave\n';
      const ended = await runProgram(t, 'console', ['--socket', socketPath], input, { CONTROL_TOKEN: token });
      const stderr = ['pause', 'shutdown', 'save-state'].map((command) => `${command} failed: ${NO_TOKEN}\n`).join('');
      assert.deepEqual(ended, { code: 1, stdout: '', stderr });
    }));
    assert.equal(server.hasCommands(), false);
  });

  it('ignores an empty CONTROL_TOKEN, and reports a missing socket', async (t) => {
    const socketPath = makeSocketPath(t);
    const ended = await runProgram(t, 'console', ['--socket', socketPath], 'pause\n', { CONTROL_TOKEN: '' });
    const stderr = `pause not sent: unix:${socketPath} does not respond: connect ENOENT ${socketPath}\n`;
    assert.deepEqual(ended, { code: 1, stdout: '', stderr });
  });

  for (const [what, args, token, line] of WRONG_ACCESS) {
    it(`rejects ${what}`, async (t) => {
      const ended = await runProgram(t, 'console', args, 'pause\n', { CONTROL_TOKEN: token });
      assert.deepEqual(ended, { code: 2, stdout: '', stderr: `control-console: ${line}\n` });
    });
  }

  it('--help mentions --socket and CONTROL_TOKEN, not the token', async (t) => {
    const { stdout } = await runProgram(t, 'console', ['--help'], '', { CONTROL_TOKEN: TOKEN });
    assert.match(stdout, /^ {2}--socket PATH .*[^]*\bCONTROL_TOKEN\b/m);
    assert.ok(!stdout.includes(TOKEN));
  });
});

function piped(t: TestContext, port: number, input: string): ReturnType<typeof runProgram> {
  return runProgram(t, 'console', ['--port', String(port)], input);
}

interface Terminal extends Pick<Running, 'output' | 'shows' | 'ended'> {
  /** Types keys, and resolves when the output since then matches. */
  type(keys: string, pattern: RegExp): Promise<void>;
}

/** The console in a pseudo-terminal, ready for input. */
async function terminal(t: TestContext, port: number): Promise<Terminal> {
  const command = `stty cols 100 rows 30; exec ${process.execPath} dist/bin/console.js --port ${port}`;
  const { child, output, ended } = start(t, 'script', ['--quiet', '--return', '--command', command, '/dev/null']);
  let seen = 0;
  const text = (): string => output().slice(seen).replaceAll(/\x1b\[\d*[GJK]/g, '').replaceAll(/\r+\n/g, '\n');
  const shows = async (pattern: RegExp): Promise<void> => {
    for (let tries = 0; !pattern.test(text()); tries += 1) {
      assert.ok(tries < 500, `no ${pattern} in ${JSON.stringify(text())}`);
      await sleep(20);
    }
  };
  await shows(/type help for a list of commands\n.*> $/s);
  const type = async (keys: string, pattern: RegExp): Promise<void> => {
    seen = output().length;
    child.stdin?.write(keys);
    await shows(pattern);
  };
  return { type, output, shows, ended };
}
