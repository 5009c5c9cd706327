import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import {
  existsSync, mkdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync,
} from 'node:fs';
import { createServer as createHttpServer } from 'node:http';
import { hostname, userInfo } from 'node:os';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus, VERSION, WebApiClient } from '../../../control.ts';
import {
  assertHarmless, freePort, getInfo, HARMLESS, HOSTILE, lacksScript, lacksSockets, launchSystem, makeFolder,
  makeSocketPath, NO_TOKEN, runProgram, start, startImpostor, startOldServer, startProgram, startServer, startSystem,
  TOKEN, until, WRONG_ACCESS,
} from '../helpers.ts';
import type { Running } from '../helpers.ts';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';

const CTRL_C = '\x03';
const CTRL_D = '\x04';
const CTRL_Z = '\x1a';
const UP = '\x1b[A';
const LEFT = '\x1b[D';

/** A program that does not get the CPU soon is reported as silent. */
const SILENT = 'has not responded for \\d+ s';
const ACTIVE = 'active(, in a step for \\d+ s)?';
const IS_ACTIVE = new RegExp(`^${ACTIVE}\n$`);

/** Time limits of 30 s become 1 s. */
const FAST = {
  NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(`
    const { setTimeout } = globalThis;
    globalThis.setTimeout = (callback, ms, ...rest) => setTimeout(callback, ms === 30_000 ? 1000 : ms, ...rest);
  `)}`,
};

describe('control-console with a pipe', { concurrency: 4 }, () => {
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
    const commands = [
      'status', 'info', 'p, pause', 'r, resume', 'save, save-state', 'shutdown', 'h, \\?, help', 'q, quit, exit',
    ];
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
    const ended = await piped(t, port, 'pause\nresume\nsave\nhelp\n');
    assert.equal(ended.code, 1);
    const lines = ended.stderr.trimEnd().split('\n');
    assert.deepEqual(lines.map((line) => line.split(' not sent: ')[0]), ['pause', 'resume', 'save-state']);
    for (const line of lines) assert.ok(line.includes(`http://localhost:${port} does not respond`), line);
  });

  it('shutdown succeeds if the system is already offline, whatever the answer', async (t) => {
    const { port, server } = await startServer(t);
    await server.close();
    for (const input of ['shutdown\ny\n', 'shutdown\nn\n', 'shutdown\n']) {
      assert.deepEqual(await piped(t, port, input), { code: 0, stdout: 'already offline\n', stderr: '' });
    }
    const { code, stdout } = await piped(t, port, 'shutdown\ny\nhelp pause\n'); // the session goes on
    assert.equal(code, 0);
    assert.match(stdout, /^already offline\n  p, pause .*\n$/);
  });

  it('sends a command again while the queue is full', async (t) => {
    const { port, server, client } = await startServer(t, { maxQueueSize: 1 });
    await client.resume();
    const { child, ended, shows } = startProgram(t, 'console', ['--port', `${port}`]);
    child.stdin?.end('save\n');
    await shows(/^the queue is full … $/);
    assert.equal(server.receiveCommand(), 'resume');
    assert.equal(await server.nextCommand(), 'save-state');
    server.report({ value: 'state 1' });
    const { code, stdout, stderr } = await ended;
    assert.deepEqual([code, stderr], [0, '']);
    assert.match(stdout, /^the queue is full … saved state 1 \(\d+\.\d s\)\n$/);
  });

  it('gives up on a full queue after 30 s', async (t) => {
    const { port, server, client } = await startServer(t, { maxQueueSize: 1 });
    await client.resume();
    const { code, stdout, stderr } = await runProgram(t, 'console', ['--port', `${port}`], 'save\n', FAST);
    assert.deepEqual([code, server.receiveCommand(), server.hasCommands()], [1, 'resume', false]);
    assert.match(stdout, /^the queue is full … \([1-9]\.\d s\)\n$/);
    assert.match(stderr, /^not saved after [1-9]\.\d s: Command queue is full, try again later\n$/);
  });

  it('takes # lines for comments, and knows the words that people try', async (t) => {
    const { port, server } = await startServer(t, { name: 'cartpole' });
    server.hasCommands();
    const input = '# pause\n  #shutdown\n#\nSTATUS\ninfo\n?\nhelp pause\nHelp  Exit\n? p\nhelp ?\nexit\npause\n';
    const { code, stdout, stderr } = await piped(t, port, input);
    assert.deepEqual([code, stderr, server.hasCommands()], [0, '', false]);
    const pause = '  p, pause +pause the system\n';
    const quit = '  q, quit, exit +quit the console; the system is unaffected\n';
    const info = `name      cartpole \\(process .*\nstatus    ${ACTIVE}\n(started|version) [^]*`;
    const helps = `  status [^]*${quit}${pause}${quit}${pause}  h, \\?, help +print this help\n`;
    assert.match(stdout, new RegExp(`^${ACTIVE}\n${info}${helps}$`));
  });

  it('takes no comment for the answer to a question', async (t) => {
    const port = await startSystem(t);
    const { code, stdout, stderr } = await piped(t, port, 'shutdown\n  # really?\ny\n');
    assert.deepEqual([code, stderr], [0, '']);
    assert.match(stdout, /offline \(\d+\.\d s\)\n$/);
  });

  it('saves with save-state as with save', async (t) => {
    const { port, server } = await startServer(t);
    const ended = piped(t, port, 'Save-State\n');
    assert.equal(await server.nextCommand(), 'save-state');
    server.report({});
    assert.match((await ended).stdout, /^saved \(\d\.\d s\)\n$/);
  });

  it('rejects what is no command, also after help', async (t) => {
    const { port, server } = await startServer(t);
    for (const [line, word] of [['help nonsense', 'nonsense'], ['help pause now', 'help pause now'], ['y', 'y']]) {
      const stderr = `unknown command '${word}'; type help for a list of commands\n`;
      assert.deepEqual(await piped(t, port, `${line}\n`), { code: 1, stdout: '', stderr });
    }
    assert.equal(server.hasCommands(), false);
  });

  it('takes the line after shutdown for its answer, even if the token is wrong', async (t) => {
    const { port, server } = await startServer(t, { token: TOKEN });
    const { code, stderr } = await piped(t, port, 'shutdown\nhelp\nsave\n');
    assert.deepEqual([code, stderr], [1, `shutdown not sent: ${NO_TOKEN}\nsave-state not sent: ${NO_TOKEN}\n`]);
    assert.equal(server.hasCommands(), false);
  });

  it('does not wait for the answer when the input ends with shutdown', async (t) => {
    const { port, server } = await startServer(t);
    const { code, stderr } = await piped(t, port, 'shutdown');
    assert.deepEqual([code, stderr], [1, 'shutdown not sent: the input ended before the confirmation\n']);
    assert.equal(server.hasCommands(), false);
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
    assert.match((await piped(t, port, 'status\n')).stdout, IS_ACTIVE);
    await client.request('pause', { wait: 5, by: 'ana@laptop', reason: 'GPU needed until noon' });
    const status = `paused \\d s ago by ana@laptop: GPU needed until noon(; the program ${SILENT})?`;
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

describe('control-console on a terminal', { concurrency: 4, skip: lacksScript() }, () => {
  it('shows the target and the current status in the prompt', async (t) => {
    const port = await startSystem(t);
    const { shows, type } = await terminal(t, port);
    await shows(new RegExp(`\ncontrol-console localhost:${port} \\(active\\) > $`));
    const client = new WebApiClient('localhost', port);
    await client.pause();
    await type('sa', new RegExp(`control-console localhost:${port} \\(paused\\) > (.*\n?)*sa$`));
  });

  it('distinguishes a system that refuses its status from one that is offline', async (t) => {
    const { port, server } = await startServer(t, { token: TOKEN });
    const { shows, type } = await terminal(t, port);
    await shows(new RegExp(`${prompt('missing or wrong token')}$`));
    await type('shutdown\r', shown(`shutdown not sent: ${NO_TOKEN}`, 'missing or wrong token'));
    await type('pause\r', shown(`pause not sent: ${NO_TOKEN}`, 'missing or wrong token'));
    assert.equal(server.hasCommands(), false);
    await server.close();
    await shows(new RegExp(`${prompt('offline')}$`));
  });

  it('shutdown of a system that is offline asks nothing, and the session goes on', async (t) => {
    const { type, ended } = await terminal(t, await freePort());
    await type('shutdown\r', /^shutdown\nalready offline\n[^\n]*\(offline\) > $/);
    await type('pause\r', /^pause\npause not sent: .* does not respond: .*ECONNREFUSED.*\n[^\n]*\(offline\) > $/);
    await type('quit\r', /quit\n/);
    assert.equal((await ended).code, 0);
  });

  it('prints no control characters of a server', async (t) => {
    const ok = await terminal(t, await startImpostor(t, 200, { status: HOSTILE, result: HOSTILE }));
    await ok.shows(new RegExp(`\n${prompt('unknown')}$`));
    await ok.type('save\r', /\nsave-state: PW .*…\n.*> $/s);
    const failing = await terminal(t, await startImpostor(t, 500, { error: HOSTILE }));
    await failing.shows(new RegExp(`\n${prompt('unknown')}$`));
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
    await type('\r', shown('pausing … paused \\(\\d\\.\\d s\\)', 'paused'));
    await type('r\r', shown('active \\(\\d\\.\\d s\\)'));
    await type(UP + UP, /> pause$/);
    await type('\r', shown('paused \\(\\d\\.\\d s\\)', 'paused'));
    await type('sta', /sta$/);
    await type('\t', /tus$/);
    await type('\r', shown('paused \\d+ s ago .*', 'paused'));
  });

  it('Tab lists the commands at the prompt, and only y and n at a question', async (t) => {
    const { type, write, shows } = await terminal(t, await startSystem(t));
    const tabTwice = async (pattern: RegExp): Promise<void> => {
      write('\t');
      await sleep(250); // readline takes tabs that arrive together for text, and shows nothing at the first
      write('\t');
      await shows(pattern);
    };
    await tabTwice(/pause[^]*shutdown[^]*quit[^]*> $/);
    await type('shutdown\r', /down\? \(y\/\[N\]\) $/);
    await tabTwice(/^\s*y +n\s+Shut localhost:\d+ down\? \(y\/\[N\]\) $/);
    await type('n', /n$/);
    await type('\r', shown('shutdown cancelled'));
  });

  it('Ctrl-C ends a wait', async (t) => {
    let status = SystemStatus.PAUSING;
    const { port } = await startServer(t, { systemStatus: () => status });
    const { type, shows } = await terminal(t, port);
    await type('pause\r', /\npausing … \(Ctrl-C gives up\) … $/);
    const summary = 'not paused after .*: the system is pausing; the command is still pending';
    await type(CTRL_C, shown(summary, 'pausing'));
    status = SystemStatus.PAUSED;
    await shows(new RegExp(`${prompt('paused')}$`));
  });

  it('keeps what is typed during a wait for the next line', async (t) => {
    const { port, server } = await startServer(t);
    const { type, write, shows } = await terminal(t, port);
    await type('save\r', /Ctrl-C gives up/);
    write(`sttus${LEFT.repeat(3)}a\rstat\t\r# half`); // edited and completed
    assert.equal(await server.nextCommand(), 'save-state');
    server.report({});
    await shows(/saved \(\d+\.\d s\)\n[^\n]*status\nactive.*\n[^\n]*status\nactive.*\n[^\n]*# half$/);
  });

  it('confirms a shutdown of the target, keeps the answer out of the history, and exits', async (t) => {
    const port = await startSystem(t, { saveState: () => sleep(200) });
    const folder = makeFolder(t);
    const { type, ended } = await terminal(t, port, { XDG_STATE_HOME: folder });
    const question = new RegExp(`Shut localhost:${port} down\\? \\(y/\\[N\\]\\) $`);
    for (const answer of ['no', 'shutdown', 'status', '']) {
      await type('status\r', shown(ACTIVE));
      await type('shutdown\r', question);
      await type(`${answer}\r`, shown('shutdown cancelled'));
      await type(UP, /> shutdown$/);
      await type(UP, /> status$/);
      await type(CTRL_C, /> $/);
    }
    await type('shutdown\r', question);
    await type('ye', /ye$/);
    await type(CTRL_C, shown('shutdown cancelled'));
    await type(UP, /> shutdown$/);
    await type('\r', question);
    await type('y\r', /shutting down … offline \(\d\.\d s\)/);
    assert.equal((await ended).code, 0);
    assert.deepEqual(new Set(readHistory(folder)), new Set(['status', 'shutdown']));
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

  it('ignores empty lines and comments, quits with Ctrl-D, and exits with 0 after a failed command', async (t) => {
    const port = await startSystem(t);
    const { type, ended } = await terminal(t, port);
    await type('\r', new RegExp(`^\\s+${prompt('active')}$`));
    await type('# pause\r', new RegExp(`^# pause\n${prompt('active')}$`));
    await type('nonsense\r', shown("unknown command 'nonsense'; type help for a list of commands"));
    await type(CTRL_D, /\n/);
    assert.equal((await ended).code, 0);
  });

  it('edits lines that are longer than the terminal, also while its width changes', async (t) => {
    const { type, tty } = await terminal(t, await startSystem(t));
    const word = 'x'.repeat(250);
    await type(word, /x$/);
    await type(LEFT.repeat(250), /.*/);
    await type('a', /a/);
    await resize(tty, 40);
    await type('b\x05c', /c$/); // Ctrl-E: to the end
    await type('\r', shown(`unknown command 'abx{250}c'; type help for a list of commands`));
    await resize(tty, 100);
    await type('status\r', shown(ACTIVE));
  });

  it('takes characters whose bytes arrive one by one', async (t) => {
    const { type, write, shows } = await terminal(t, await startSystem(t));
    for (const byte of Buffer.from('äß€😀')) {
      write(Buffer.of(byte));
      await sleep(1); // most bytes are then read on their own
    }
    await shows(/😀/);
    await type('\x7fü\r', shown("unknown command 'äß€ü'; type help for a list of commands"));
  });

  it('takes keys after Alt-Enter and after half an escape sequence', async (t) => {
    const { type, ended } = await terminal(t, await startSystem(t));
    for (const keys of ['\x1b\r', '\x1b[\r', '\x1bO\r', '\x1b[1;5\r']) {
      await type(`stat${keys}us\r`, shown(ACTIVE));
    }
    await type(CTRL_D, /\n/);
    assert.equal((await ended).code, 0);
  });

  it('two consoles name their targets', async (t) => {
    const [one, other] = await Promise.all([startSystem(t), startSystem(t)]);
    await Promise.all([one, other].map(async (port) => {
      const { type, shows } = await terminal(t, port);
      await shows(new RegExp(`\ncontrol-console localhost:${port} \\(active\\) > $`));
      await type('shutdown\r', new RegExp(`\nShut localhost:${port} down\\? \\(y/\\[N\\]\\) $`));
      await type('n\r', /shutdown cancelled/);
    }));
  });
});

describe('control-console and lines that are pasted', { concurrency: 4, skip: lacksScript() }, () => {
  for (const [name, end] of [['CR', '\r'], ['LF', '\n'], ['CR LF', '\r\n']] as const) {
    it(`runs them one after the other, with echo and output (${name})`, async (t) => {
      const { type } = await terminal(t, await startSystem(t));
      const lines = ['status', 'nonsense', '# comment', '', 'pause', 'status', 'resume', 'help quit', 'rest'];
      const p = `(${prompt('\\w+')})+`; // drawn again when the status changes
      await type(lines.join(end), new RegExp([
        `^(${prompt('\\w+')})*status`, ACTIVE,
        `${p}nonsense`, "unknown command 'nonsense'; type help for a list of commands",
        `${p}# comment`,
        p,
        `${p}pause`, '(pausing … )?paused \\(\\d+\\.\\d s\\)',
        `${p}status`, 'paused \\d+ s ago by .*',
        `${p}resume`, '(\\w+ … )*active \\(\\d+\\.\\d s\\)',
        `${p}help quit`, '  q, quit, exit +.*',
        `${p}rest$`,
      ].join('\n')));
    });
  }

  it('takes mixed line ends, and a CR LF that arrives in two parts', async (t) => {
    const { type } = await terminal(t, await startSystem(t));
    const mixed = 'help quit\rhelp pause\nhelp save\r\n\n# end';
    await type(mixed, /^help quit\n[^]*> help pause\n[^]*> help save\n[^]*> \n[^\n]*> # end$/);
    await type(CTRL_C, /> $/);
    await type('help quit\r', /unaffected\n[^\n]*> $/);
    await type('\nstatus\n', new RegExp(`^status\n${ACTIVE}\n${prompt('active')}$`));
  });

  it('takes the answer to a question from the lines', async (t) => {
    const { type, ended, output } = await terminal(t, await startSystem(t));
    await type('shutdown\rn\rshutdown\r\rshutdown\ry\rstatus\r', /offline \(\d+\.\d s\)/);
    assert.equal((await ended).code, 0);
    assert.equal(output().split('shutdown cancelled').length - 1, 2);
    assert.doesNotMatch(output(), /unknown command|offline \(.*\)\s+\S*control-console/);
  });

  it('runs them after the command that runs, and Ctrl-C discards those that are left', async (t) => {
    const { port, server } = await startServer(t);
    const { type, write, shows, output } = await terminal(t, port);
    await type('save\r', /Ctrl-C gives up/);
    write('help quit\rsave\rpause\rresume\rshutdown\ry\r');
    assert.equal(await server.nextCommand(), 'save-state');
    server.report({ value: 'state 1' });
    await shows(/saved state 1 \(.*\)\n[^\n]*help quit\n  q, quit, exit [^\n]*\n[^\n]*save\n.*Ctrl-C gives up/);
    await type(CTRL_C, shown('not saved after .*; the command is still pending'));
    await type('status\r', shown(`${ACTIVE}; save-state waits for the step`));
    assert.equal(server.receiveCommand(), 'save-state');
    assert.equal(server.hasCommands(), false);
    assert.doesNotMatch(output(), /Shut localhost/);
  });

  it('Ctrl-C in the same write ends the command before it', async (t) => {
    const { port, server } = await startServer(t);
    const { type } = await terminal(t, port);
    await type(`save\r${CTRL_C}`, shown('(save-state )?not (sent|saved).*'));
    await type('status\r', shown('active.*'));
    assert.ok(!server.hasCommands() || server.receiveCommand() === 'save-state');
  });
});

describe('control-console and job control', { concurrency: 4, skip: lacksScript() }, () => {
  it('is stopped by Ctrl-Z, and takes text, Ctrl-C and Ctrl-D after fg', async (t) => {
    const { type } = await shell(t, await startSystem(t));
    for (const command of ['fg', 'fg %1']) {
      await type(CTRL_Z, /Stopped[^]*SHELL> $/);
      await type(`${command}\r`, new RegExp(`${prompt('active')}$`));
      await type('statuss', /statuss$/);
      await type('\x7f\r', shown(ACTIVE));
      await type('half', /half$/);
      await type(CTRL_C, /> $/);
      await type(CTRL_C, /press Ctrl-C again or Ctrl-D to quit\n.*> $/s);
      await type('status\r', shown(ACTIVE));
    }
    await type(CTRL_D, /SHELL> $/);
    await type('echo "code $?"\r', /code 0\n/);
  });

  it('keeps the line, and leaves the terminal to the shell while it is stopped', async (t) => {
    const { address: { port }, client } = await launchSystem(t, {}, { webApiAddress: ['localhost', 0] });
    const { type, output } = await shell(t, port);
    await type('stat', /stat$/);
    await type(CTRL_Z, /Stopped[^]*SHELL> $/);
    await type('stty -a | tr ";" "\\n"\r', / icanon [^]* echo [^]*SHELL> $/);
    await type('bg\r', /SHELL> $/);
    const length = output().length;
    await client.request('pause', { wait: 5 });
    await type('sleep 2; jobs\r', /Running[^]*SHELL> $/);
    assert.ok(!output().slice(length).includes('paused'), 'it draws nothing in the background');
    await type('fg\r', /\(paused\) > stat$/);
    await type('us\r', /paused \d+ s ago[^]*> $/);
  });

  it('Ctrl-Z while a command runs leaves the command running', async (t) => {
    const { port, server } = await startServer(t);
    const { type } = await shell(t, port);
    await type('save\r', /Ctrl-C gives up/);
    await type(CTRL_Z, /Stopped[^]*SHELL> $/);
    assert.equal(await server.nextCommand(), 'save-state');
    server.report({ value: 'state 1' });
    await type('fg\r', shown('saved state 1 \\(\\d+\\.\\d s\\)'));
    await type('save\r', /Ctrl-C gives up/);
    await type(CTRL_Z, /Stopped[^]*SHELL> $/);
    await type('fg\r', /console\.js/);
    await type(CTRL_C, shown('not saved after .*'));
    await type(CTRL_D, /SHELL> $/);
  });

  it('Ctrl-Z at a question leaves the question', async (t) => {
    const { type, shows } = await shell(t, await startSystem(t));
    await type('shutdown\r', /down\? \(y\/\[N\]\) $/);
    await type(CTRL_Z, /Stopped[^]*SHELL> $/);
    await type('fg\r', /down\? \(y\/\[N\]\) $/);
    await type('n\r', shown('shutdown cancelled'));
    await shows(/> $/);
  });

  it('takes keys after kill -STOP and kill -CONT', async (t) => {
    const { type, ...console } = await terminal(t, await startSystem(t));
    await console.stop();
    console.continue();
    await type('status\r', shown(ACTIVE));
    await type(CTRL_D, /\n/);
    assert.equal((await console.ended).code, 0);
  });

  it('takes keys after kill -STOP and fg', async (t) => {
    const { type, shows, pid } = await shell(t, await startSystem(t));
    execFileSync('pkill', ['-STOP', '-P', `${pid}`]);
    await shows(/Stopped[^]*SHELL> $/);
    await type('fg\r', new RegExp(`${prompt('active')}$`));
    await type('status\r', shown(ACTIVE));
  });

  for (const [how, keys, code] of [
    ['Ctrl-D', CTRL_D, 0], ['quit', 'quit\r', 0], ['Ctrl-C twice', CTRL_C + CTRL_C, 0], ['SIGTERM', '', 143],
    ['SIGTERM during a wait', 'save\r', 143],
  ] as const) {
    it(`returns the terminal as it was after ${how}`, async (t) => {
      const { port } = await startServer(t);
      const run = `${process.execPath} dist/bin/console.js --port ${port}; echo "code $?"; stty -a`;
      const { type, pid } = await pseudoTerminal(t, `sh -c '${run}'`, READY);
      await type(keys, how.startsWith('SIGTERM') && keys !== '' ? /Ctrl-C gives up/ : /.*/);
      if (how.startsWith('SIGTERM')) execFileSync('pkill', ['-TERM', '-P', `${pid}`]);
      await type('', new RegExp(`code ${code}\n[^]* icanon [^]* echo `));
    });
  }
});

describe('control-console and a system that does not respond', { concurrency: 8, skip: lacksScript() }, () => {
  it('does not take the time in which it was stopped for a silence of the system', async (t) => {
    const { type, shows, output, ...console } = await terminal(t, await startSystem(t));
    await shows(new RegExp(`${prompt('active')}$`));
    await console.stop();
    await sleep(6500); // the time limit of its requests is 6 s
    console.continue();
    await type('status\r', shown(ACTIVE));
    assert.doesNotMatch(output(), /no answer/);
  });

  it('tells for how long in the prompt', async (t) => {
    const { port, kill } = await startSystemProcess(t);
    const { type, shows, output } = await terminal(t, port);
    await shows(new RegExp(`${prompt('active')}$`));
    kill('SIGSTOP');
    await shows(/no answer for [23] s\) > .*no answer for [45] s\) > $/);
    await type('\r'.repeat(15), new RegExp(`^(\n(${prompt('.*')})*){15}(${prompt('no answer for \\d+ s')})+$`));
    assert.doesNotMatch(output(), /Warning/);
    kill('SIGCONT');
    await shows(new RegExp(`${prompt('active')}$`));
    kill('SIGSTOP');
    await shows(/no answer for [23] s\) > $/);
    kill('SIGKILL');
    await shows(new RegExp(`${prompt('offline')}$`));
  });

  it('tells what it waits for, Ctrl-C gives up, and nothing is sent', async (t) => {
    const { port, kill } = await startSystemProcess(t);
    const { type, shows } = await terminal(t, port);
    await shows(new RegExp(`${prompt('active')}$`));
    kill('SIGSTOP');
    for (const command of ['pause', 'shutdown', 'status', 'info', 'save', 'resume']) {
      await type(`${command}\r`, new RegExp(`\nwaiting for localhost:${port} \\(Ctrl-C gives up\\) … $`));
      const start = performance.now();
      const error = `localhost:${port} has not answered within \\d\\.\\d s`;
      const sent = ['status', 'info'].includes(command) ? '' : `(${command}|save-state) not sent: `;
      await type(CTRL_C, new RegExp(`^\n${sent}${error}\n${prompt('(active|no answer for \\d+ s)')}`));
      assert.ok(performance.now() - start < 2500, 'a moment, on a loaded machine'); // the time limit is 5 s
    }
    kill('SIGCONT');
    await type('status\r', shown(ACTIVE));
    assert.deepEqual((await getInfo(port)).commands, []);
  });

  it('gives up by itself after 5 s, and quits at once', async (t) => {
    const { port, kill } = await startSystemProcess(t);
    kill('SIGSTOP');
    const { type, shows, ended } = await terminal(t, port);
    await shows(/\(no answer for \d s\) > $/);
    const error = 'pause not sent: localhost:\\d+ has not answered within 5(\\.\\d)? s';
    await type('pause\r', shown(error, 'no answer for \\d+ s'));
    const start = performance.now();
    await type('quit\r', /quit\n/);
    assert.equal((await ended).code, 0);
    assert.ok(performance.now() - start < 3000, 'no request keeps the console');
  });

  for (const [word, command] of [['save', 'save-state'], ['pause', 'pause'], ['shutdown', 'shutdown']] as const) {
    it(`tells that a command was sent: ${word}`, async (t) => {
      const { port, posted } = await startMute(t);
      const { type, shows } = await terminal(t, port);
      await shows(new RegExp(`${prompt('active')}$`));
      if (word === 'shutdown') await type('shutdown\r', /down\? \(y\/\[N\]\) $/);
      await type(word === 'shutdown' ? 'y\r' : `${word}\r`, /\(Ctrl-C gives up\) … $/);
      const summary = `${command} sent, but not answered within \\d+\\.\\d s: it may still take effect`;
      await type(CTRL_C, shown(summary, '.*'));
      assert.deepEqual(posted, [command]);
    });
  }

  it('sends a command again while the queue is full, until Ctrl-C', async (t) => {
    const { port, server, client } = await startServer(t, { maxQueueSize: 1 });
    await client.resume();
    const { type, shows } = await terminal(t, port);
    await type('save\r', /\nthe queue is full … \(Ctrl-C gives up\) … $/);
    await type(CTRL_C, shown('not saved after \\d+\\.\\d s: Command queue is full, try again later'));
    await type('save\r', /\nthe queue is full … \(Ctrl-C gives up\) … $/);
    assert.equal(server.receiveCommand(), 'resume');
    assert.equal(await server.nextCommand(), 'save-state');
    server.report({});
    await shows(shown('the queue is full … \\(Ctrl-C gives up\\) … saved \\(\\d+\\.\\d s\\)'));
    assert.equal(server.hasCommands(), false);
  });

  it('a pipe tells nothing while it waits', async (t) => {
    const { port, kill } = await startSystemProcess(t);
    kill('SIGSTOP');
    const { code, stdout, stderr } = await piped(t, port, 'pause\n');
    assert.deepEqual([code, stdout], [1, '']);
    assert.match(stderr, /^pause not sent: localhost:\d+ has not answered within 5(\.\d)? s\n$/);
  });
});

describe('control-console and its history', { concurrency: 4, skip: lacksScript() }, () => {
  it('keeps it between two runs, in a file for the user alone', async (t) => {
    const port = await startSystem(t);
    const state = join(makeFolder(t), 'state');
    const first = await terminal(t, port, { XDG_STATE_HOME: state });
    await first.type('status\r', shown(ACTIVE));
    await first.type('   \r', /> $/);
    await first.type('help quit\r', /q, quit.*\n.*> $/);
    await first.type('shutdown\r', /down\? .*$/);
    await first.type('n\r', shown('shutdown cancelled'));
    await first.type(CTRL_D, /\n/);
    await first.ended;
    const file = join(state, 'control', 'history');
    assert.equal(readFileSync(file, 'utf8'), 'status\nhelp quit\nshutdown\n');
    const modes = [file, join(state, 'control'), state].map((path) => statSync(path).mode & 0o777);
    assert.deepEqual(modes, [0o600, 0o700, 0o700]);
    const second = await terminal(t, port, { XDG_STATE_HOME: state });
    await second.type(UP, /> shutdown$/);
    await second.type(UP, /> help quit$/);
    await second.type(UP, /> status$/);
    await second.type('\r', shown(ACTIVE));
    assert.equal(readFileSync(file, 'utf8'), 'status\nhelp quit\nshutdown\nstatus\n');
  });

  it('makes a file that others can read private', async (t) => {
    const folder = makeFolder(t);
    const file = writeHistory(folder, 'status\n', 0o644);
    await terminal(t, await startSystem(t), { XDG_STATE_HOME: folder });
    assert.equal(statSync(file).mode & 0o777, 0o600);
  });

  it('leaves a file alone that is none', async (t) => {
    const folder = makeFolder(t);
    const pipe = join(folder, 'pipe');
    execFileSync('mkfifo', ['--mode=644', pipe]);
    mkdirSync(join(folder, 'control'));
    symlinkSync(pipe, join(folder, 'control', 'history')); // as a link to /dev/null, which turns a history off
    const { type } = await terminal(t, await startSystem(t), { XDG_STATE_HOME: folder });
    await type('status\r', shown(ACTIVE));
    assert.equal(statSync(pipe).mode & 0o777, 0o644);
  });

  for (const [what, value] of [['unset', undefined], ['empty', ''], ['relative', 'state']] as const) {
    it(`is in ~/.local/state if XDG_STATE_HOME is ${what}`, async (t) => {
      const home = makeFolder(t);
      const { type } = await terminal(t, await startSystem(t), { HOME: home, XDG_STATE_HOME: value });
      await type('status\r', shown(ACTIVE));
      assert.deepEqual(readHistory(join(home, '.local', 'state')), ['status']);
      assert.ok(!existsSync('state'));
    });
  }

  it('loads at most 1,000 lines, and shortens a long file', async (t) => {
    const folder = makeFolder(t);
    const lines = Array.from({ length: 2500 }, (_, index) => `# ${index}`);
    const file = writeHistory(folder, `${lines.join('\n')}\n`);
    const { type } = await terminal(t, await startSystem(t), { XDG_STATE_HOME: folder });
    await type(UP, /> # 2499$/);
    await type(UP.repeat(999), /> # 1500$/);
    await type(UP, /> $/); // there are no more
    await type('# end\r', /\n[^\n]*> $/);
    assert.deepEqual(readHistory(folder), [...lines.slice(1500), '# end']);
    assert.equal(statSync(file).mode & 0o777, 0o600);
  });

  it('recalls a repeated command once', async (t) => {
    const folder = makeFolder(t);
    writeHistory(folder, `resume\n${'status\n'.repeat(50)}help\n${'status\n'.repeat(50)}`);
    const { type } = await terminal(t, await startSystem(t), { XDG_STATE_HOME: folder });
    await type(UP, /> status$/);
    await type(UP, /> help$/);
    await type(UP, /> resume$/);
  });

  it('two consoles at once keep the lines of both', async (t) => {
    const port = await startSystem(t);
    const folder = makeFolder(t);
    const consoles = await Promise.all([1, 2].map(() => terminal(t, port, { XDG_STATE_HOME: folder })));
    for (const round of [1, 2]) {
      for (const [index, { type }] of consoles.entries()) await type(`# ${round}.${index}\r`, /\n[^\n]*> $/);
    }
    assert.deepEqual(readHistory(folder), ['# 1.0', '# 1.1', '# 2.0', '# 2.1']);
  });

  it('--no-history neither reads nor writes it', async (t) => {
    const port = await startSystem(t);
    const folder = makeFolder(t);
    const unread = await terminal(t, port, { XDG_STATE_HOME: folder }, '--no-history');
    await unread.type('status\r', shown(ACTIVE));
    await unread.type(UP, /> status$/); // of this run
    assert.ok(!existsSync(join(folder, 'control')));
    const file = writeHistory(folder, 'help quit\n', 0o644);
    const { type } = await terminal(t, port, { XDG_STATE_HOME: folder }, '--no-history');
    await type('status\r', shown(ACTIVE));
    await type(UP, /> status$/);
    await type(UP, /> $/);
    assert.deepEqual([readFileSync(file, 'utf8'), statSync(file).mode & 0o777], ['help quit\n', 0o644]);
  });

  it('a file that cannot be used is one warning', async (t) => {
    const port = await startSystem(t);
    for (const isFolder of [true, false]) {
      const folder = makeFolder(t);
      if (isFolder) mkdirSync(join(folder, 'control', 'history'), { recursive: true });
      else writeFileSync(join(folder, 'control'), '');
      const { type, output } = await terminal(t, port, { XDG_STATE_HOME: folder });
      await type('status\r', shown(ACTIVE));
      await type('status\r', shown(ACTIVE));
      await type(UP, /> status$/);
      const warnings = output().match(/control-console: cannot keep the history: .*; --no-history keeps none/g);
      assert.equal(warnings?.length, 1, output());
    }
  });

  it('a file that becomes unusable is one warning, and the commands run', async (t) => {
    const folder = makeFolder(t);
    const { type, output } = await terminal(t, await startSystem(t), { XDG_STATE_HOME: folder });
    rmSync(join(folder, 'control'), { recursive: true });
    await type('status\r', shown(ACTIVE));
    await type('status\r', shown(ACTIVE));
    assert.equal(output().match(/cannot keep the history/g)?.length, 1, output());
  });

  it('a user without a home folder gets one warning, and the commands run', async (t) => {
    const code = `
      import os from 'node:os';
      import { syncBuiltinESMExports } from 'node:module';
      os.homedir = () => { throw new Error('no home') }; // as for a user whom the system does not know
      syncBuiltinESMExports();
    `;
    const env = { XDG_STATE_HOME: '', NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(code)}` };
    const { type, output } = await terminal(t, await startSystem(t), env);
    await type('status\r', shown(ACTIVE));
    assert.equal(output().match(/cannot keep the history: no home; --no-history keeps none/g)?.length, 1, output());
  });

  it('recalls lines of the file without control characters', async (t) => {
    const folder = makeFolder(t);
    writeHistory(folder, 'one\x1b]0;title\x07\x9b2Jtwo\u202e\n');
    const { type, output } = await terminal(t, await startSystem(t), { XDG_STATE_HOME: folder });
    await type(UP, /> one ]0;title 2Jtwo $/);
    assertHarmless(output().replaceAll(/\x1b\[\d+G|\x1b\[0J|\r/g, '')); // readline's
  });

  it('a pipe has none', async (t) => {
    const folder = makeFolder(t);
    const env = { XDG_STATE_HOME: folder, HOME: folder };
    const { code } = await runProgram(t, 'console', ['--port', `${await startSystem(t)}`], 'status\n', env);
    assert.equal(code, 0);
    assert.ok(!existsSync(join(folder, 'control')) && !existsSync(join(folder, '.local')));
  });
});

describe('control-console and its colours', { concurrency: 4, skip: lacksScript() }, () => {
  const COLOURS: NodeJS.ProcessEnv = { NO_COLOR: undefined, COLORTERM: undefined, TMUX: undefined, CI: undefined };

  it('colours the state in the prompt, and errors', async (t) => {
    const port = await startSystem(t);
    const { type, shows } = await terminal(t, port, COLOURS);
    await shows(/\(\x1b\[32mactive\x1b\[39m\) > $/);
    await type('pause\r', /\(\x1b\[33mpaused\x1b\[39m\) > $/);
    await type('nonsense\r', /\n\x1b\[31munknown command 'nonsense'.*\x1b\[39m\n/);
    const offline = await terminal(t, await freePort(), COLOURS);
    await offline.shows(/\(\x1b\[31moffline\x1b\[39m\) > $/);
  });

  const plain: [what: string, env: NodeJS.ProcessEnv][] = [
    ['NO_COLOR=1', { NO_COLOR: '1' }], ['FORCE_COLOR=0', { FORCE_COLOR: '0' }], ['TERM=dumb', { TERM: 'dumb' }],
  ];
  for (const [what, env] of plain) {
    it(`has none with ${what}`, async (t) => {
      const { type, shows, output } = await terminal(t, await startSystem(t), { ...COLOURS, ...env });
      await shows(/\(active\) > $/);
      await type('nonsense\r', /\nunknown command .*\n[^]*> $/);
      await type('pause\r', /\(paused\) > $/);
      assert.doesNotMatch(output(), /\x1b\[\d+m/);
    });
  }

  it('a pipe has none', async (t) => {
    const port = await startSystem(t);
    const { stdout, stderr } = await runProgram(t, 'console', ['--port', `${port}`], 'x\npause\n', COLOURS);
    assert.doesNotMatch(stdout + stderr, /\x1b/);
  });
});

describe('control-console and its environment', { concurrency: 4 }, () => {
  it('CONTROL_HOST and CONTROL_PORT name the system, options win', async (t) => {
    const { port } = await startServer(t);
    const nowhere = { CONTROL_HOST: 'nowhere.invalid', CONTROL_PORT: '1' };
    const run = async (args: string[], env: NodeJS.ProcessEnv): Promise<string> => {
      const { stdout, stderr } = await runProgram(t, 'console', args, 'status\n', env);
      return stdout + stderr;
    };
    assert.match(await run([], { CONTROL_HOST: '127.0.0.1', CONTROL_PORT: `${port}` }), IS_ACTIVE);
    assert.match(await run([], { CONTROL_HOST: '', CONTROL_PORT: `${port}`, CONTROL_SOCKET: '' }), IS_ACTIVE);
    assert.match(await run(['--host', 'localhost', '--port', `${port}`], nowhere), IS_ACTIVE);
    assert.match(await run(['--port', `${port}`], { CONTROL_PORT: '1' }), IS_ACTIVE);
    assert.match(await run([], { CONTROL_PORT: '1' }), /^http:\/\/localhost:1 does not respond: /);
    const wrong = "control-console: CONTROL_PORT must be an integer from 1 to 65535, got 'x'\n";
    assert.equal(await run([], { CONTROL_PORT: 'x' }), wrong);
  });

  it('CONTROL_SOCKET names the socket, and its file the token', { skip: lacksSockets() }, async (t) => {
    const socketPath = makeSocketPath(t);
    await startServer(t, { port: undefined, socketPath, token: TOKEN });
    const file = join(makeFolder(t), 'token');
    writeFileSync(file, `${TOKEN}\n`, { mode: 0o600 });
    const env = { CONTROL_SOCKET: socketPath, CONTROL_TOKEN_FILE: file };
    const ended = await runProgram(t, 'console', [], 'status\n', env);
    assert.deepEqual([ended.code, ended.stderr], [0, '']);
    assert.match(ended.stdout, IS_ACTIVE);
    const both = await runProgram(t, 'console', [], 'status\n', { ...env, CONTROL_TOKEN: TOKEN });
    const stderr = 'control-console: CONTROL_TOKEN and CONTROL_TOKEN_FILE are both set: set one or the other\n';
    assert.deepEqual(both, { code: 2, stdout: '', stderr });
    const other = await runProgram(t, 'console', ['--port', `${await freePort()}`], 'pause\n', env);
    assert.match(other.stderr, /^pause not sent: http:\/\/localhost:\d+ does not respond/);
  });

  it('names the socket in the prompt and in the question', { skip: lacksSockets() || lacksScript() }, async (t) => {
    const socketPath = makeSocketPath(t);
    await startServer(t, { port: undefined, socketPath });
    const env = { CONTROL_SOCKET: socketPath };
    const { type, shows } = await pseudoTerminal(t, `${process.execPath} dist/bin/console.js`, READY, env);
    await shows(new RegExp(`control-console unix:${socketPath} \\(active\\) > $`));
    await type('shutdown\r', new RegExp(`Shut unix:${socketPath} down\\? \\(y/\\[N\\]\\) $`));
  });

  it('--help tells the variables', async (t) => {
    const { stdout } = await runProgram(t, 'console', ['--help']);
    for (const name of ['HOST', 'PORT', 'SOCKET', 'TOKEN', 'TOKEN_FILE', 'BY']) {
      assert.match(stdout, new RegExp(`\\bCONTROL_${name}\\b`));
    }
  });
});

describe('control-console options', { concurrency: 4 }, () => {
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
      const commands = ['pause', 'shutdown', 'save-state'];
      const stderr = commands.map((command) => `${command} not sent: ${NO_TOKEN}\n`).join('');
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
  /** Types keys. `shows()` then looks at the output since. */
  write(keys: string | Uint8Array): void;
  /** The process of the console, or of the shell. */
  pid: number;
  /** Stops that process, as `kill -STOP` does, and script(1) with it. */
  stop(): Promise<void>;
  /** Lets it continue. */
  continue(): void;
  /** The path of the terminal. */
  tty: string;
}

/** A command in a pseudo-terminal, without history unless the environment names a folder. */
async function pseudoTerminal(
  t: TestContext,
  command: string,
  ready: RegExp,
  env: NodeJS.ProcessEnv = {},
): Promise<Terminal> {
  const folder = makeFolder(t);
  const line = `stty cols 100 rows 30; echo "$$ $(tty)"; exec ${command}`;
  const { child, output, ended } = start(t, 'script', ['--quiet', '--return', '--command', line, '/dev/null'], {
    SHELL: '/bin/sh', HOME: folder, XDG_STATE_HOME: join(folder, 'state'), ...env,
  });
  let seen = 0;
  const text = (): string => output().slice(seen).replaceAll(/\x1b\[\d*[CDGJK]/g, '').replaceAll(/\r+\n/g, '\n');
  const shows = (pattern: RegExp): Promise<void> => {
    return until(() => pattern.test(text()), () => `no ${pattern} in ${JSON.stringify(text())}`);
  };
  const write = (keys: string | Uint8Array): void => {
    seen = output().length;
    child.stdin?.write(keys);
  };
  const type = (keys: string, pattern: RegExp): Promise<void> => {
    write(keys);
    return shows(pattern);
  };
  await shows(ready);
  const [, pid, tty] = /^(\d+) (\S+)/.exec(output()) ?? [];
  return {
    type, write, output, shows, ended, pid: Number(pid), tty: tty as string,
    stop: async () => {
      process.kill(Number(pid), 'SIGSTOP');
      await until(() => stateOf(child.pid as number) === 'T');
    },
    continue: () => void child.kill('SIGCONT'), // script passes it on
  };
}

const READY = /type help for a list of commands\n[^]*> $/;

/** The console in a pseudo-terminal, ready for input. */
function terminal(
  t: TestContext,
  port: number,
  env: NodeJS.ProcessEnv = {},
  options: string = '',
): Promise<Terminal> {
  return pseudoTerminal(t, `${process.execPath} dist/bin/console.js --port ${port} ${options}`, READY, env);
}

/** A shell with job control in a pseudo-terminal, which runs the console. */
async function shell(t: TestContext, port: number): Promise<Terminal> {
  const bash = await pseudoTerminal(t, 'bash --norc --noprofile --noediting -i', /SHELL> $/, { PS1: 'SHELL> ' });
  await bash.type(`${process.execPath} dist/bin/console.js --port ${port}\r`, READY);
  return bash;
}

/** A prompt at the end of the output: a pattern for `RegExp`, after which there may be more. */
function prompt(status: string): string {
  return `control-console localhost:\\d+ \\(${status}\\) > `;
}

/** Checks what a command shows between its echo and the next prompt. */
function shown(lines: string, status: string = 'active'): RegExp {
  return new RegExp(`${lines}\n[^\n]*${prompt(status)}$`);
}

/** A system in a process of its own, which can be stopped. */
async function startSystemProcess(t: TestContext): Promise<{ port: number; kill(signal: NodeJS.Signals): void }> {
  const code = `
    import { launch } from './dist/control.js';
    const step = () => new Promise((resolve) => setTimeout(resolve, 1));
    const onListening = ({ port }) => console.log('port ' + port);
    await launch({ step, onListening }, { webApiAddress: ['localhost', 0] });
  `;
  const { child, shows, output } = start(t, process.execPath, ['--input-type=module', '--eval', code]);
  await shows(/port \d+/);
  return { port: Number(/port (\d+)/.exec(output())?.[1]), kill: (signal) => void child.kill(signal) };
}

/** A server that responds to nothing after the first command. Returns its port and the commands. */
async function startMute(t: TestContext): Promise<{ port: number; posted: string[] }> {
  const posted: string[] = [];
  const server = createHttpServer(({ method, url = '' }, response) => {
    if (method === 'POST') posted.push(url.replace(/^\/api\/([^?]*).*$/, '$1'));
    else if (posted.length === 0) response.end(JSON.stringify({ status: 'active' }));
  });
  t.after(() => server.close().closeAllConnections());
  server.listen(0, 'localhost');
  await once(server, 'listening');
  return { port: (server.address() as AddressInfo).port, posted };
}

/** The state of a process: T if it is stopped. */
function stateOf(pid: number): string {
  return execFileSync('ps', ['-o', 'state=', '-p', `${pid}`], { encoding: 'utf8' }).trim();
}

/** Changes the width of a terminal, and lets the console notice. */
async function resize(tty: string, columns: number): Promise<void> {
  execFileSync('stty', ['-F', tty, 'cols', `${columns}`]);
}

function historyFile(folder: string): string {
  return join(folder, 'control', 'history');
}

function readHistory(folder: string): string[] {
  return readFileSync(historyFile(folder), 'utf8').trimEnd().split('\n');
}

function writeHistory(folder: string, text: string, mode: number = 0o600): string {
  mkdirSync(join(folder, 'control'), { recursive: true });
  writeFileSync(historyFile(folder), text, { mode });
  return historyFile(folder);
}
