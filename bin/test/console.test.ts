import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus, VERSION, WebApiClient } from '../../control.ts';
import {
  lacksScript, lacksSockets, makeSocketPath, NO_TOKEN, runProgram, start, startServer, startSystem, TOKEN, WRONG_ACCESS,
} from './helpers.ts';
import type { Running } from './helpers.ts';
import type { TestContext } from 'node:test';

const CTRL_C = '\x03';
const CTRL_D = '\x04';
const UP = '\x1b[A';

describe('control-console with a pipe', () => {
  it('runs line by line, without prompts or echo', async (t) => {
    const saved: string[] = [];
    const port = await startSystem(t, { onPaused: () => sleep(150), saveState: () => void saved.push('state') });
    const ended = await piped(t, port, 'pause\n\n  RESUME  \nsave\np\nr\nhelp\nq\nnever reached\n');
    assert.deepEqual([ended.code, ended.stderr], [0, '']);
    const lines = ended.stdout.replaceAll(/\d+\.\d s/g, 'N s').split('\n');
    assert.deepEqual(lines.slice(0, 2), ['pausing … paused (N s)', 'active (N s)']);
    assert.equal(lines[2], 'save-state: ok');
    assert.match(lines[3] as string, /paused \(N s\)$/);
    assert.match(lines[4] as string, /active \(N s\)$/);
    assert.match(lines.slice(5).join('\n'), /^  h, help .*\n  p, pause .*\n  r, resume .*\n  save .*\n  shutdown .*\n  q, quit .*\n$/);
    assert.deepEqual(saved, ['state']);
  });

  it('shuts down after a y or yes in any case, and nothing else', async (t) => {
    const port = await startSystem(t);
    for (const answer of ['n', '', 'yep', 'no', 'shutdown']) {
      const kept = await piped(t, port, `shutdown\n${answer}\n`);
      assert.deepEqual([kept.code, kept.stdout, kept.stderr], [0, 'not shut down\n', '']);
    }
    const ended = await piped(t, port, 'shutdown\n YeS \npause\n');
    assert.deepEqual([ended.code, ended.stderr], [0, '']);
    assert.match(ended.stdout, /^(.* … )?offline \(\d\.\d s\)\n$/);
  });

  it('ends with 1 if a command failed, and goes on with the next', async (t) => {
    const port = await startSystem(t);
    const ended = await piped(t, port, 'paws\npause now\npause\n');
    const unknown = (word: string): string => `unknown command '${word}'; help lists the commands\n`;
    assert.deepEqual([ended.code, ended.stderr], [1, unknown('paws') + unknown('pause now')]);
    assert.match(ended.stdout, /paused/);
    const unanswered = await piped(t, port, 'shutdown\n');
    assert.equal(unanswered.code, 1);
    assert.equal(unanswered.stderr, 'shutdown was not sent: the input ended before the y\n');
  });

  it('sends nothing while the system is offline, and says which address', async (t) => {
    const { port, server } = await startServer(t);
    await server.close();
    const ended = await piped(t, port, 'pause\nresume\nsave\nshutdown\nhelp\n');
    assert.equal(ended.code, 1);
    const lines = ended.stderr.trimEnd().split('\n');
    assert.deepEqual(
      lines.map((line) => line.split(' was not sent: ')[0]),
      ['pause', 'resume', 'save-state', 'shutdown'],
    );
    for (const line of lines) assert.ok(line.includes(`http://localhost:${port} does not answer`), line);
  });

  it('says when the queue is full', async (t) => {
    const { port, server } = await startServer(t, { maxQueueSize: 1 });
    const ended = await piped(t, port, 'save\nsave\n');
    assert.equal(ended.code, 1);
    assert.equal(ended.stderr, 'save-state failed: Command queue is full, try again later\n');
    assert.equal(server.receiveCommand(), 'save-state');
  });

  it('stops waiting when the system cannot get there any more', async (t) => {
    const { port } = await startServer(t, { systemStatus: () => SystemStatus.SHUTTING_DOWN });
    const ended = await piped(t, port, 'pause\n');
    assert.equal(ended.code, 1);
    assert.match(ended.stderr, /^not paused after \d\.\d s: the system is shutting down\n$/);
  });
});

describe('control-console on a terminal', { skip: lacksScript() }, () => {
  it('shows the status in the prompt and keeps it up to date', async (t) => {
    const port = await startSystem(t);
    const { shows, type } = await terminal(t, port);
    await shows(/control-console \(active\) > $/);
    const client = new WebApiClient('localhost', port);
    await client.pause();
    await type('sa', /control-console \(paused\) > (.*\n?)*sa$/);
    client.close();
  });

  it('tells a system that does not say how it is from one that is gone', async (t) => {
    const { port, server } = await startServer(t, { token: TOKEN });
    const { shows } = await terminal(t, port);
    await shows(/control-console \(unknown\) > $/);
    await server.close();
    await shows(/control-console \(offline\) > $/);
  });

  it('completes, recalls, and shows the states as they are reached', async (t) => {
    const port = await startSystem(t, { onPaused: () => sleep(150) });
    const { type } = await terminal(t, port);
    await type('pau', /pau$/);
    await type('\t', /se$/);
    await type('\r', /pausing … paused \(\d\.\d s\)\n.*control-console \(paused\) > $/s);
    await type('r\r', /active \(\d\.\d s\)\n.*control-console \(active\) > $/s);
    await type(UP + UP, /> pause$/);
    await type('\r', /paused \(\d\.\d s\)\n.*control-console \(paused\) > $/s);
  });

  it('stops showing the states at a key, which goes nowhere else', async (t) => {
    let status = SystemStatus.PAUSING;
    const { port } = await startServer(t, { systemStatus: () => status });
    const { type, shows } = await terminal(t, port);
    await type('pause\r', /\npausing … $/);
    await type('x', /not paused after .*: the system is pausing, and the command still stands\n.*control-console \(pausing\) > $/s);
    status = SystemStatus.PAUSED;
    await shows(/control-console \(paused\) > $/);
  });

  it('asks before a shutdown, does not recall the answer, and ends with the system', async (t) => {
    const port = await startSystem(t, { saveState: () => sleep(200) });
    const { type, ended } = await terminal(t, port);
    await type('shutdown\r', /Shut the system down\? \(y\/\[N\]\) $/);
    await type('no\r', /not shut down\n.*> $/s);
    await type('shutdown\r', /Shut the system down\? \(y\/\[N\]\) $/);
    await type(CTRL_C, /not shut down\n.*> $/s);
    await type(UP, /> shutdown$/);
    await type('\r', /Shut the system down\? \(y\/\[N\]\) $/);
    await type('y\r', /shutting down … offline \(\d\.\d s\)/);
    assert.equal((await ended).code, 0);
  });

  it('Ctrl-C clears the line and leaves the second time on an empty one', async (t) => {
    const port = await startSystem(t);
    const { type, ended } = await terminal(t, port);
    await type('shutdo', /shutdo$/);
    await type(CTRL_C, /> $/);
    await type(CTRL_C, /Ctrl-C once more, or Ctrl-D, leaves the console\n.*> $/s);
    await type(CTRL_C, /\n/);
    assert.equal((await ended).code, 0);
  });

  it('an empty line does nothing, Ctrl-D leaves, and a failed command does not change the exit code', async (t) => {
    const port = await startSystem(t);
    const { type, ended } = await terminal(t, port);
    await type('\r', /^\s+control-console \(active\) > $/);
    await type('nonsense\r', /unknown command 'nonsense'; help lists the commands\n.*> $/s);
    await type(CTRL_D, /\n/);
    assert.equal((await ended).code, 0);
  });
});

describe('control-console options', () => {
  const wrong: [args: string[], line: string][] = [
    [['--port', 'x'], "--port must be an integer from 1 to 65535, got 'x'"],
    [['--port', '0'], "--port must be an integer from 1 to 65535, got '0'"],
    [['--host='], "--host must be a host name or an IP address, got ''"],
    [['--prot', '1'], "unknown option '--prot'; --help lists the options"],
    [['pause'], "unexpected argument 'pause'; --help lists the options"],
  ];
  for (const [args, line] of wrong) {
    it(`refuses ${args.join(' ')}`, async (t) => {
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
  it('sends commands there, with the token of its environment', async (t) => {
    const socketPath = makeSocketPath(t);
    const { server } = await startServer(t, { port: undefined, socketPath, token: TOKEN });
    const ended = await runProgram(t, 'console', ['--socket', socketPath], 'save\n', { CONTROL_TOKEN: TOKEN });
    assert.deepEqual(ended, { code: 0, stdout: 'save-state: ok\n', stderr: '' });
    assert.equal(server.receiveCommand(), 'save-state');
  });

  it('is refused without the token or with a wrong one, in the words of the server', async (t) => {
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

  it('takes an empty CONTROL_TOKEN for none, and says when nothing answers', async (t) => {
    const socketPath = makeSocketPath(t);
    const ended = await runProgram(t, 'console', ['--socket', socketPath], 'pause\n', { CONTROL_TOKEN: '' });
    const stderr = `pause was not sent: unix:${socketPath} does not answer: connect ENOENT ${socketPath}\n`;
    assert.deepEqual(ended, { code: 1, stdout: '', stderr });
  });

  for (const [what, args, token, line] of WRONG_ACCESS) {
    it(`refuses ${what}`, async (t) => {
      const ended = await runProgram(t, 'console', args, 'pause\n', { CONTROL_TOKEN: token });
      assert.deepEqual(ended, { code: 2, stdout: '', stderr: `control-console: ${line}\n` });
    });
  }

  it('--help names --socket and CONTROL_TOKEN', async (t) => {
    const { stdout } = await runProgram(t, 'console', ['--help'], '', { CONTROL_TOKEN: TOKEN });
    assert.match(stdout, /^ {2}--socket PATH .*[^]*\bCONTROL_TOKEN\b/m);
    assert.ok(!stdout.includes(TOKEN));
  });
});

function piped(t: TestContext, port: number, input: string): ReturnType<typeof runProgram> {
  return runProgram(t, 'console', ['--port', String(port)], input);
}

interface Terminal extends Pick<Running, 'shows' | 'ended'> {
  /** Types keys, and resolves when what is written from then on matches. */
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
  await shows(/help lists the commands\n.*> $/s);
  const type = async (keys: string, pattern: RegExp): Promise<void> => {
    seen = output().length;
    child.stdin?.write(keys);
    await shows(pattern);
  };
  return { type, shows, ended };
}
