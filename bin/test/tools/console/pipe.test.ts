// control-console with commands from a pipe.

import assert from 'node:assert/strict';
import { Readable } from 'node:stream';
import { describe, it } from 'node:test';
import { PipedLines } from '../../../console/lines.ts';
import { Session } from '../../../console/session.ts';
import { createClient } from '../../../shared/client.ts';
import { REASON_HELP } from '../../../shared/commands.ts';
import {
  assertHarmless, type Ended, HARMLESS, HOSTILE, launchSystem, NO_TOKEN, startBasicServer, startServer, TOKEN,
} from '../../helpers.ts';
import { LIMIT } from '../../wait.ts';
import { capture } from '../client/capture.ts';
import { hideFailures, startWeb } from '../client/systems.ts';
import { ACTIVE } from './helpers.ts';

hideFailures();

describe('control-console with a pipe', { ...LIMIT, concurrency: 4 }, () => {
  it('shuts down only after y or yes, in any case', async (t) => {
    const { address: { port }, client } = await launchSystem(t);
    for (const input of ['shutdown\n', 'shutdown']) {
      const stderr = 'shutdown not sent: the input ended before the confirmation\n';
      assert.deepEqual(await converse(port, input), { code: 1, stdout: '', stderr });
    }
    const answers = ['n', '', 'yep', 'no', 'shutdown'];
    const kept = await converse(port, answers.map((answer) => `shutdown\n${answer}\n`).join(''));
    assert.deepEqual(kept, { code: 0, stdout: 'shutdown cancelled\n'.repeat(answers.length), stderr: '' });
    assert.deepEqual((await client.getInfo())?.commands, []);
    const ended = await converse(port, 'shutdown\n  # really?\n YeS \npause\n'); // a comment is not an answer
    assert.deepEqual([ended.code, ended.stderr], [0, '']);
    assert.match(ended.stdout, /^(.* … )?offline \(\d+\.\d s\)\n$/);
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
      ['shut', meant('shut', 'shutdown')], ['stop now', meant('stop', 'shutdown')],
      ['evalaute n=1', meant('evalaute', 'evaluate')],
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

  it('reports that there are no own commands, or that it cannot know', async (t) => {
    const unknown = "unknown command 'evaluate'; type help for a list of commands\n";
    const { port } = await startServer(t);
    const { stdout, stderr } = await converse(port, 'run\nevaluate\n');
    assert.deepEqual([stdout, stderr], ['the program declares no commands\n', unknown]);
    const { port: statusOnly } = await startBasicServer(t);
    assert.equal((await converse(statusOnly, 'evaluate\n', 'localhost')).stderr, unknown);
  });

  it('prints why a command failed, and the returned value of a completed one', async (t) => {
    let isFull = true; // until the system shuts down
    const { address: { port } } = await launchSystem(t, {
      onPaused: () => '3 GB freed', saveState: () => (isFull ? assert.fail('ENOSPC: no space left') : 'states/1.json'),
    });
    const ended = await converse(port, 'p\nsave\nshutdown\ny\n'); // on a slow machine, stdout may have more statuses
    const reason = 'ENOSPC: no space left';
    const advice = 'free space and retry, or end it with SIGTERM (loses what is not saved)';
    const lines = `not saved: ${reason}\nnot shut down, now paused: ${reason}; ${advice}\n`;
    assert.deepEqual([ended.code, ended.stderr], [1, lines]);
    isFull = false;
    const { stdout } = await converse(port, 'resume\npause\nshutdown\ny\n');
    const done = stdout.replaceAll(/(still )?\w+(ing| down)? … |\d+\.\d/g, '');
    assert.equal(done, 'active ( s)\npaused: 3 GB freed ( s)\noffline: states/1.json ( s)\n');
  });

  it('follows the status of a server that reports only that, as a number', async (t) => {
    const { port, posted } = await startBasicServer(t, true);
    const input = 'status\ninfo\npause\nsave\nresume\nstatus\nshutdown\ny\n';
    const { stdout, stderr } = await converse(port, input, 'localhost');
    assert.deepEqual(posted, ['pause', 'save-state', 'resume', 'shutdown']);
    assert.equal(stderr, 'the server reports its status only\n');
    const save = 'save-state accepted, but the server reports no outcome';
    const outcomes = ['active', 'paused (N s)', save, 'active (N s)', 'active', 'offline (N s)\n'];
    assert.equal(stdout.replaceAll(/(still )?\w+ … /g, '').replaceAll(/\d+\.\d s/g, 'N s'), outcomes.join('\n'));
  });

  it('sends nothing to a system that is offline, which counts as shut down', async (t) => {
    const { port, server } = await startServer(t);
    await server.close();
    const { code, stderr } = await converse(port, 'pause\nhelp\n');
    assert.equal(code, 1);
    assert.match(stderr, new RegExp(`^pause not sent: nothing listens at 127\\.0\\.0\\.1:${port}\n$`));
    for (const input of ['shutdown\ny\n', 'shutdown\nn\n', 'shutdown\n']) {
      assert.deepEqual(await converse(port, input), { code: 0, stdout: 'already offline\n', stderr: '' });
    }
  });

  it('takes a line with the line separators of Unicode as one', async (t) => {
    const { address: { port }, client } = await launchSystem(t);
    const input = 'pause it says\u2028shutdown\u2029y\r\n\rstatus';
    const { code, stdout, stderr } = await converse(port, input);
    assert.deepEqual([code, stderr], [0, '']);
    assert.match(stdout, /^paused \(.*\)\npaused .*: it says.shutdown.y\n$/);
    assert.deepEqual((await client.getInfo())?.commands.map(({ command }) => command), ['pause']);
  });

  it('reports a missing token, and still reads the line after shutdown as the answer', async (t) => {
    const { port, server } = await startServer(t, { token: TOKEN });
    const { code, stdout, stderr } = await converse(port, 'status\ninfo\nevaluate\nshutdown\nhelp\nsave\n');
    assert.deepEqual([code, stdout], [1, '']);
    const starts = ['', '', 'evaluate not sent: ', 'shutdown not sent: ', 'save-state not sent: '];
    assert.equal(stderr, starts.map((start) => `${start}${NO_TOKEN}\n`).join(''));
    assert.equal(server.hasCommands(), false);
  });

  it('prints no control characters from a server or the input', async (t) => {
    const hostile = { name: HOSTILE, status: HOSTILE, by: HOSTILE, reason: HOSTILE, detail: { [HOSTILE]: HOSTILE } };
    let body: object = { ...hostile, result: 'ok', state: 'done', value: HOSTILE, commands: [HOSTILE, hostile, null] };
    const { port } = await startWeb(t, () => body);
    const { code, stdout, stderr } = await converse(port, 'save\nstatus\ninfo\n\x1b[2J\x9b\u202e!\n');
    const unknown = "unknown command ' [2J !'; type help for a list of commands\n";
    const { length } = `the status must be one of active, pausing, paused, resuming, shutting down, got '${HARMLESS}'\n`;
    assert.deepEqual([code, stderr.slice(length)], [1, unknown]);
    assertHarmless(stderr);
    body = { code: 500, error: HOSTILE };
    const failed = await converse(port, 'pause\n');
    assert.ok(failed.stderr.startsWith(`not paused: ${HARMLESS.slice(0, -1)}`), failed.stderr);
    assertHarmless(stdout + failed.stderr);
  });
});

/** Runs a session that reads from a pipe in this process: ten times as fast. */
function converse(port: number, input: string, host: string = '127.0.0.1'): Promise<Ended> {
  const client = createClient({ host, port: `${port}` });
  const lines = new PipedLines(Readable.from([input]));
  return capture(async () => (await new Session(client, lines).run() ? 0 : 1));
}
