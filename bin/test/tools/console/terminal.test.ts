// control-console on a terminal: editing, completion, waits, questions, pasted lines. One session for as much as
// possible, because starting a console is slow.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { HOSTILE, launchSystem, NO_TOKEN, startServer, TOKEN } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { startPuppet } from '../../puppet.ts';
import { CTRL_C, LEFT } from '../../screen.ts';
import { LIMIT } from '../../wait.ts';
import { openSession } from '../client/systems.ts';
import { ACTIVE, at, completes, prompt, shown, terminal } from './helpers.ts';

const SUITE = { ...LIMIT, concurrency: 4, skip: lacks('script') };

describe('control-console on a terminal', SUITE, () => {
  it('distinguishes a system that refuses its status from one that is offline', async (t) => {
    const { port, server } = await startServer(t, { token: TOKEN });
    const { shows, type } = await terminal(t, at(port));
    await shows(new RegExp(`${prompt('missing or wrong token')}$`));
    await type('shutdown\r', shown(`shutdown not sent: ${NO_TOKEN}`, 'missing or wrong token'));
    assert.equal(server.hasCommands(), false);
    await server.close();
    await shows(new RegExp(`${prompt('offline')}$`));
    await type('shutdown\r', shown('already offline', 'offline')); // without a question
    await type('pause\r', shown('pause not sent: nothing listens at \\S+', 'offline'));
  });

  it('shows the name, the address or the socket of its system, cut and without control characters', async (t) => {
    const { folder, env, serve } = openSession(t);
    const { port } = await startPuppet(t, { name: HOSTILE });
    const long = 'x'.repeat(42);
    for (const name of ['train-5', 'a\x1b[2J\x9bb-6', `${long}-7`]) await serve(name);
    const opened: [options: string, greeting: string, name: string][] = [
      ['train', 'train', 'train'], ['6', 'a [2J b', 'a [2J b'], ['7', long, `${'x'.repeat(40)}…`],
      [`--socket ${folder}/train-5.sock`, `unix:${folder}/train-5.sock`, 'train-5'],
      [`http://127.0.0.1:${port}`, `127.0.0.1:${port}`, `127.0.0.1:${port}`],
    ];
    await Promise.all(opened.map(async ([options, greeting, name]) => {
      const { text } = await terminal(t, options, env);
      assert.ok(text().startsWith(`${greeting}: type help for a list of commands\n${name} (`), text());
    }));
  });

  it('completes own commands and their parameters, and its own words without a response', async (t) => {
    const name = { type: 'string', enum: ['fast', 'slow'] };
    const mode = { parameters: { name, log: { type: 'boolean' } } };
    const accepts = { evaluate: { parameters: { episodes: { type: 'integer' } } }, mode, pass: {} };
    const { port, set, requests } = await startPuppet(t, { accepts, post: { state: 'done' } });
    const console = await terminal(t, at(port));
    const { type, write, text, shows, until } = console;
    await completes(console, 'ev', /aluate /);
    await completes(console, 'ep', /isodes=/);
    await type('5\r', shown('evaluate done \\(\\d+\\.\\d s\\)'));
    await completes(console, 'run mo', /de /);
    await completes(console, 'log=t', /rue/);
    await type(' ', / $/);
    await completes(console, 'name=', /fast +name=slow/);
    await type('slow\r', shown('mode done \\(\\d+\\.\\d s\\)'));
    assert.deepEqual(requests.filter((one) => one.startsWith('POST')), ['POST /api/evaluate', 'POST /api/mode']);
    await completes(console, 'pa', /pause +pass/);
    await type(CTRL_C, /> $/);
    await completes(console, 'paus', /e/);
    await type(' ep\tx', / epx$/); // a console command without arguments
    await type(CTRL_C, /> $/);

    await until(async () => { // a busy machine may deliver both at once
      write('\x1b');
      await sleep(300);
      await type('help p\r', /(pause the system|unknown command)[^]*> $/);
      return text().includes('pause the system');
    }, () => `no key may be lost a moment after Esc: ${text()}`);

    set({ silent: true });
    await type('shutd\t', /shutdown$/);
    set({ silent: false });
    await shows(/shutdown$/);
  });

  it('shows what it waits for, keeps typed text, and ends the wait with Ctrl-C', async (t) => {
    const { port, server, client } = await startServer(t, { maxQueueSize: 1 });
    const { type, write, shows, output } = await terminal(t, at(port));

    await t.test('keeps typed text for the next line', async () => {
      await type('save\r', /\(Ctrl-C gives up\) … $/);
      write(`sttus${LEFT.repeat(3)}a\rstat\t\r# half`); // edited and completed
      assert.equal(await server.nextCommand(), 'save-state');
      server.report({});
      await shows(/saved \(\d+\.\d s\)\n[^\n]*status\nactive.*\n[^\n]*status\nactive.*\n[^\n]*# half$/);
      await type(CTRL_C, /> $/);
    });

    await t.test('runs pasted lines after the command, and Ctrl-C discards the rest', async () => {
      await type('save\r', /\(Ctrl-C gives up\) … $/);
      write('help quit\rsave\rpause\rresume\rshutdown\ry\r');
      assert.equal(await server.nextCommand(), 'save-state');
      server.report({ value: 'state 1' });
      await shows(/saved state 1 \(.*\)\n[^\n]*help quit\n  q, quit, exit [^\n]*\n[^\n]*save\n.*Ctrl-C gives up/);
      await type(CTRL_C, shown('not saved after .*; the command is still pending'));
      await type('status\r', shown('active.*; save-state waits for the step; saved \\d+ s ago'));
      assert.equal(server.receiveCommand(), 'save-state');
      assert.equal(server.hasCommands(), false);
      assert.doesNotMatch(output(), /Shut 127/);
    });

    await t.test('ends the command before a Ctrl-C in the same write', async () => {
      await type(`save\r${CTRL_C}`, shown('(save-state )?not (sent|saved).*'));
      await type('status\r', shown('active.*'));
      assert.ok(!server.hasCommands() || server.receiveCommand() === 'save-state');
    });

    await t.test('reports a full queue at once', async () => {
      await client.resume();
      await type('save\r', shown('not saved: Command queue is full, try again later'));
    });
  });

  it('edits lines, and runs them in sequence, with echo and output', async (t) => {
    const { address: { port } } = await launchSystem(t);
    const { type, write, shows, ended, output } = await terminal(t, at(port));

    await t.test('with characters whose bytes arrive one by one', async () => {
      for (const byte of Buffer.from('äß€😀')) {
        write(Buffer.of(byte));
        await sleep(1); // most bytes then arrive one by one
      }
      await shows(/😀/);
      await type('\x7fü\r', shown("unknown command 'äß€ü'; type help for a list of commands"));
    });

    await t.test('after Alt-Enter and after half an escape sequence', async () => {
      for (const keys of ['\x1b\r', '\x1b[\r', '\x1bO\r', '\x1b[1;5\r']) {
        await type(`stat${keys}us\r`, shown(ACTIVE));
      }
    });

    await t.test('that end in CR, LF or CR LF', async () => {
      const text = 'status\rnonsense\n# comment\r\n\r\npause\r\nstatus\n\nresume\r\rhelp quit\nrest';
      const p = `(${prompt('\\w+')})+`; // drawn again when the status changes
      await type(text, new RegExp([
        `^(${prompt('\\w+')})*status`, ACTIVE,
        `${p}nonsense`, "unknown command 'nonsense'; type help for a list of commands",
        `${p}# comment`,
        p,
        `${p}pause`, '(pausing … )?paused \\(\\d+\\.\\d s\\)',
        `${p}status`, 'paused \\d+ s ago .*',
        p,
        `${p}resume`, '(\\w+ … )*active \\(\\d+\\.\\d s\\)',
        p,
        `${p}help quit`, '  q, quit, exit +.*',
        `${p}rest$`,
      ].join('\n')));
      await type(CTRL_C, new RegExp(`${prompt('active')}$`));
    });

    await t.test('and a CR LF that arrives in two parts', async () => {
      await type('help quit\r', /unaffected\n[^\n]*> $/);
      await type('\nstatus\n', new RegExp(`^status\n${ACTIVE}\n${prompt('active')}$`));
    });

    await t.test('and reads the answer to a question from them', async () => {
      await type('shutdown\rn\rshutdown\r\rshutdown\ry\rstatus\r', /offline \(\d+\.\d s\)/);
      assert.equal((await ended).code, 0);
      assert.equal(output().split('shutdown cancelled').length - 1, 2);
      assert.doesNotMatch(output(), /offline \(.*\)\s+\S*control-console/);
    });
  });
});
