// control-console with commands from a pipe.

import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { Readable } from 'node:stream';
import { describe, it } from 'node:test';
import { PipedLines } from '../../../console/lines.ts';
import { Session } from '../../../console/session.ts';
import { createClient } from '../../../shared/reach/access.ts';
import { REASON_HELP } from '../../../shared/words/commands.ts';
import {
  assertHarmless, HARMLESS, HOSTILE, launchSystem, makeFolder, makeSocketPath, NO_TOKEN, runProgram, startOldServer,
  startServer, TOKEN,
} from '../../helpers.ts';
import { LIMIT } from '../../module/helpers.ts';
import { lacks } from '../../needs.ts';
import { capture } from '../client/capture.ts';
import { hideFailures, startSilent, startWeb } from '../client/systems.ts';
import { ACTIVE } from './helpers.ts';
import type { Ended } from '../../helpers.ts';

const AT_ONCE = { ...LIMIT, concurrency: 4 };

hideFailures();

describe('control-console with a pipe', AT_ONCE, () => {
  it('shuts down only after y or yes, in any case', async (t) => {
    const { address: { port } } = await launchSystem(t);
    const answers = ['n', '', 'yep', 'no', 'shutdown'];
    const kept = await converse(port, answers.map((answer) => `shutdown\n${answer}\n`).join(''));
    assert.deepEqual(kept, { code: 0, stdout: 'shutdown cancelled\n'.repeat(answers.length), stderr: '' });
    const ended = await converse(port, 'shutdown\n  # really?\n YeS \npause\n'); // a comment is not an answer
    assert.deepEqual([ended.code, ended.stderr], [0, '']);
    assert.match(ended.stdout, /^(.* … )?offline \(\d+\.\d s\)\n$/);
  });

  it('does not shut down when the input ends before the answer', async (t) => {
    const { port, server } = await startServer(t);
    const stderr = 'shutdown not sent: the input ended before the confirmation\n';
    for (const input of ['shutdown\n', 'shutdown']) {
      assert.deepEqual(await converse(port, input), { code: 1, stdout: '', stderr });
    }
    assert.equal(server.hasCommands(), false);
  });

  it('skips # comments, and knows common synonyms', async (t) => {
    const { port, server } = await startServer(t, { name: 'cartpole' });
    server.hasCommands();
    const input = '# pause\n  #shutdown\n#\nSTATUS\ninfo\n?\nhelp pause\nHelp  Exit\n? p\nhelp ?\nexit\npause\n';
    const { code, stdout, stderr } = await converse(port, input);
    assert.deepEqual([code, stderr, server.hasCommands()], [0, '', false]);
    const pause = '  p, pause +pause the system\n';
    const quit = '  q, quit, exit +quit the console; the system is unaffected\n';
    const info = `name      cartpole \\(process .*\nstatus    ${ACTIVE}\n(started|version) [^]*`;
    const helps = `  status [^]*${quit}\n${REASON_HELP}\n${pause}${quit}${pause}  h, \\?, help +print this help\n`;
    assert.match(stdout, new RegExp(`^${ACTIVE}\n${info}${helps}$`));
  });

  it('refuses unknown commands, suggests a similar word, and continues', async (t) => {
    const { port, server } = await startServer(t, { commands: { evaluate: {}, mode: {} } });
    const unknown = (word: string, hint: string = ''): string => {
      return `unknown command '${word}'${hint}; type help for a list of commands`;
    };
    const meant = (word: string, other: string): string => unknown(word, ` (did you mean ${other}?)`);
    const unexpected = (name: string): string => `unexpected argument 'now' after ${name}`;
    const rows: [line: string, error: string][] = [
      ['paws', unknown('paws')], ['help nonsense', unknown('nonsense')], ['y', unknown('y')],
      ['pasue GPU needed', meant('pasue', 'pause')], ['help RESUM', meant('RESUM', 'resume')],
      ['shut', meant('shut', 'shutdown')], ['evalaute n=1', meant('evalaute', 'evaluate')],
      ['run mod', meant('mod', 'mode')], ['help mod', meant('mod', 'mode')],
      ['help pause now', unexpected('help')], ['status now', unexpected('status')], ['info now', unexpected('info')],
      ['q now', unexpected('quit')],
    ];
    const input = rows.map(([line]) => `${line}\n`).join('');
    const { code, stdout, stderr } = await converse(port, `${input}help quit\n`);
    assert.deepEqual([code, stderr], [1, rows.map(([, error]) => `${error}\n`).join('')]);
    assert.match(stdout, /^  q, quit, exit .*\n$/);
    assert.equal(server.hasCommands(), false);
  });

  it('reads the arguments of own commands', async (t) => {
    const text = { type: 'string', default: '' } as const;
    const parameters = { text, other: text, on: { type: 'boolean', default: false } } as const;
    const { address: { port } } = await launchSystem(t, { commands: { say: { parameters, run: (values) => values } } });
    const rows: [line: string, values: object][] = [
      ['say', {}],
      ['say text="hello  world" on=true', { text: 'hello  world', on: true }],
      ["say  text='\"hi\", she said'  other=it's", { text: '"hi", she said', other: "it's" }],
      ['say text=a" b "c', { text: 'a b c' }],
      ['run say {"text": "two  words {", "on": true}', { text: 'two  words {', on: true }],
    ];
    const said = await converse(port, rows.map(([line]) => `${line}\n`).join(''));
    assert.deepEqual([said.code, said.stderr], [0, '']);
    const outcomes = rows.map(([, values]) => `say: ${JSON.stringify({ text: '', other: '', on: false, ...values })}`);
    const lines = said.stdout.trimEnd().split('\n');
    assert.deepEqual(lines.map((line) => line.replace(/ \(\d+\.\d s\)$/, '')), outcomes);
    const wrong = await converse(port, 'say hello\n');
    const stderr = "an argument must be name=value or one JSON object, got 'hello'\n";
    assert.deepEqual(wrong, { code: 1, stdout: '', stderr });
  });

  it('prefers a console command to an own command of the same name, except after run', async (t) => {
    const { port, server } = await startServer(t, { commands: { p: {}, quit: { description: 'leaves' } } });
    const ended = converse(port, 'run p\nhelp p\nrun\nquit\nrun quit\n');
    assert.equal(await server.nextCommand(), 'p');
    server.report({});
    const { code, stdout } = await ended;
    assert.deepEqual([code, server.hasCommands()], [0, false]);
    assert.match(stdout, /^p done \(\d+\.\d s\)\n  p, pause .*\n  p\n  quit               leaves\n$/);
  });

  it('reports that there are no own commands', async (t) => {
    const { port } = await startServer(t);
    const { stdout, stderr } = await converse(port, 'run\nevaluate\n');
    assert.equal(stdout, 'the program declares no commands\n');
    const unknown = "unknown command 'evaluate'; type help for a list of commands\n";
    assert.equal(stderr, unknown);
    const { port: undeclared } = await startWeb(t);
    const { port: statusOnly } = await startOldServer(t);
    assert.equal((await converse(undeclared, 'evaluate\n')).stderr, unknown);
    assert.equal((await converse(statusOnly, 'evaluate\n', { host: 'localhost' })).stderr, unknown);
    const { port: closed } = await startServer(t, { token: TOKEN });
    assert.equal((await converse(closed, 'evaluate\n')).stderr, `evaluate not sent: ${NO_TOKEN}\n`);
  });

  it('prints the status and all that is known', async (t) => {
    const { address: { port }, client } = await launchSystem(t, { describe: () => ({ episode: 7 }) }, {
      name: 'cartpole',
    });
    await client.request('pause', { wait: 60, by: 'ana@laptop', reason: 'GPU needed until noon' });
    const { code, stdout, stderr } = await converse(port, 'status\ninfo\n');
    assert.deepEqual([code, stderr], [0, '']);
    const silent = '; the program has not responded for \\d+ s'; // of a program that gets no CPU time
    const status = `paused \\d+ s ago by ana@laptop: GPU needed until noon(${silent})?`;
    const lines = [
      status,
      `name      cartpole \\(process ${process.pid} on .+\\)`,
      `status    ${status}`,
      'started   \\d+ \\w+ ago',
      'detail    episode 7',
      'commands  pause by ana@laptop \\(GPU needed until noon\\) done in \\d+\\.\\d\\d s',
      'version   .*',
    ];
    assert.match(stdout, new RegExp(`^${lines.join('\n')}\n$`));
  });

  it('prints why a command failed, and the returned value of a completed one', async (t) => {
    let isFull = true; // until the system shuts down
    const { address: { port: failing } } = await launchSystem(t, { onPaused: () => assert.fail('GPU busy') });
    const notPaused = 'onPaused failed: GPU busy\n';
    const stderr = `not paused: ${notPaused}not saved: ${notPaused}`;
    const failed = await converse(failing, 'pause\nsave\n'); // on a slow machine, stdout may have more statuses
    assert.deepEqual([failed.code, failed.stderr], [1, stderr]);

    const { address: { port: full } } = await launchSystem(t, {
      onPaused: () => '3 GB freed', saveState: () => (isFull ? assert.fail('ENOSPC: no space left') : 'states/1.json'),
    });
    const ended = await converse(full, 'p\nsave\nshutdown\ny\n');
    const reason = 'ENOSPC: no space left\n';
    assert.deepEqual([ended.code, ended.stderr], [1, `not saved: ${reason}not shut down: ${reason}`]);
    isFull = false;
    const { stdout } = await converse(full, 'resume\npause\nshutdown\ny\n');
    const done = stdout.replaceAll(/\w+(ing| down)? … |\d+\.\d/g, '');
    assert.equal(done, 'active ( s)\npaused: 3 GB freed ( s)\noffline: states/1.json ( s)\n');
  });

  for (const isOriginal of [false, true]) {
    it(`follows the status of a server that reports only that${isOriginal ? ', a number' : ''}`, async (t) => {
      const { port, posted } = await startOldServer(t, isOriginal);
      const input = 'status\ninfo\npause\nsave\nresume\nstatus\nshutdown\ny\n';
      const { stdout, stderr } = await converse(port, input, { host: 'localhost' });
      assert.deepEqual(posted, ['pause', 'save-state', 'resume', 'shutdown']);
      assert.equal(stderr, 'the server reports its status only\n');
      const save = 'save-state accepted, but the server reports no outcome';
      const outcomes = ['active', 'paused (N s)', save, 'active (N s)', 'active', 'offline (N s)\n'];
      assert.equal(stdout.replaceAll(/\w+ … /g, '').replaceAll(/\d+\.\d s/g, 'N s'), outcomes.join('\n'));
    });
  }
});

describe('control-console and a system that denies access, is offline or does not respond', AT_ONCE, () => {
  it('sends nothing while the system is offline, and prints the address', { skip: lacks('Unix') }, async (t) => {
    const { port, server } = await startServer(t);
    await server.close();
    const { code, stderr } = await converse(port, 'pause\nresume\nsave\nhelp\n');
    assert.equal(code, 1);
    const lines = stderr.trimEnd().split('\n');
    assert.deepEqual(lines.map((line) => line.split(' not sent: ')[0]), ['pause', 'resume', 'save-state']);
    for (const line of lines) assert.ok(line.includes(`http://127.0.0.1:${port} does not respond`), line);
    const socket = makeSocketPath(t);
    const missing = await converse(0, 'pause\n', { socket });
    assert.equal(missing.code, 1);
    assert.match(missing.stderr, new RegExp(`^pause not sent: unix:${socket} does not respond: ENOENT: .*\n$`));
  });

  it('reports a shutdown as done if the system is already offline, whatever the answer, and continues', async (t) => {
    const { port, server } = await startServer(t);
    await server.close();
    for (const input of ['shutdown\ny\n', 'shutdown\nn\n', 'shutdown\n']) {
      assert.deepEqual(await converse(port, input), { code: 0, stdout: 'already offline\n', stderr: '' });
    }
    const { code, stdout } = await converse(port, 'shutdown\ny\nhelp pause\n');
    assert.equal(code, 0);
    assert.match(stdout, /^already offline\n  p, pause .*\n$/);
  });

  it('reports a missing token, and still reads the line after shutdown as the answer', async (t) => {
    const { port, server } = await startServer(t, { token: TOKEN });
    const { code, stdout, stderr } = await converse(port, 'status\ninfo\nshutdown\nhelp\nsave\n');
    assert.deepEqual([code, stdout], [1, '']);
    const lines = ['', '', 'shutdown not sent: ', 'save-state not sent: '].map((start) => `${start}${NO_TOKEN}\n`);
    assert.equal(stderr, lines.join(''));
    assert.equal(server.hasCommands(), false);
  });

  it('gives up on a system that does not respond, and prints nothing before', async (t) => {
    const port = Number((await startSilent(t)).split(':')[1]);
    const { code, stdout, stderr } = await converse(port, 'pause\n', { timeoutMs: 1500 });
    assert.deepEqual([code, stdout], [1, '']);
    assert.match(stderr, /^pause not sent: 127\.0\.0\.1:\d+ has not responded within \d+(\.\d)? s\n$/);
  });

  it('prints no control characters from a server or the input', async (t) => {
    const { port: ok } = await startWeb(t, () => ({ status: HOSTILE, result: HOSTILE }));
    const refused = await converse(ok, 'save\n\x1b[2J\x9b\u202e!\n');
    const unknown = "unknown command ' [2J !'; type help for a list of commands\n";
    const stdout = 'save-state accepted, but the server reports no outcome\n';
    assert.deepEqual(refused, { code: 1, stdout, stderr: unknown });
    const { port: failing } = await startWeb(t, () => ({ code: 500, error: HOSTILE }));
    const failed = await converse(failing, 'pause\n');
    assert.deepEqual([failed.code, failed.stdout], [1, '']);
    assert.ok(failed.stderr.startsWith(`not paused: ${HARMLESS.slice(0, -1)}`), failed.stderr);
    assertHarmless(failed.stderr);
  });

  it('truncates what a server sends, and removes control characters, in every field', async (t) => {
    const done = { state: 'done', value: HOSTILE.repeat(4) };
    const entry = { command: HOSTILE, by: HOSTILE, reason: HOSTILE, error: HOSTILE, at: HOSTILE, ...done };
    const states = ['waiting', 'running', 'done', 'failed', 'constructor', HOSTILE, 7, null, {}];
    const commands = [...states.map((state) => ({ ...entry, state })), null, 1];
    const detail = { [HOSTILE]: HOSTILE, list: [HOSTILE] };
    const about = { name: HOSTILE, pid: HOSTILE, host: {}, version: [HOSTILE] };
    const info = { ...about, status: HOSTILE, by: HOSTILE, detail, commands };
    const bodies = [{ ...info, result: 'ok', ...done }, { status: 'paused', commands: HOSTILE, detail: HOSTILE }];
    for (const body of bodies) {
      const { port } = await startWeb(t, () => body);
      const { stdout, stderr } = await converse(port, 'save\nstatus\ninfo\n');
      assertHarmless(stdout + stderr);
      const longest = Math.max(...stdout.split('\n').map((line) => [...line].length));
      assert.ok(longest > 100 && longest < 4 * 1000, `a line of ${longest} characters`);
    }
  });

  it('does not read or write a history', async (t) => {
    const folder = makeFolder(t);
    const { port } = await startServer(t);
    const env = { XDG_STATE_HOME: folder, HOME: folder };
    const { code } = await runProgram(t, 'console', ['--port', `${port}`], 'status\n', env);
    assert.deepEqual([code, readdirSync(folder)], [0, []]);
  });
});

interface Place {
  host?: string;
  socket?: string;
  timeoutMs?: number;
}

/** Runs a session that reads from a pipe in this process: ten times as fast. */
function converse(port: number, input: string, { timeoutMs, socket, host = '127.0.0.1' }: Place = {}): Promise<Ended> {
  const client = createClient(socket === undefined ? { host, port: `${port}` } : { socket }, timeoutMs);
  const lines = new PipedLines(Readable.from([input]));
  return capture(async () => (await new Session(client, lines).run() ? 0 : 1));
}
