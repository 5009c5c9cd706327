// control-console and job control: Ctrl-Z, fg and bg, signals, and the state of the terminal afterwards.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { defer, launchSystem, LIMIT, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { ACTIVE, at, CTRL_C, CTRL_D, CTRL_Z, prompt, pseudoTerminal, READY, shown } from './helpers.ts';

const CONSOLE = `${process.execPath} dist/bin/console.js`;
const STOPPED = /Stopped[^]*SHELL> $/;
const GIVES_UP = /\(Ctrl-C gives up\) … $/;

describe('control-console and job control', { ...LIMIT, concurrency: 2, skip: lacks('script', 'bash') }, () => {
  it('is stopped by Ctrl-Z, and continues after fg', async (t) => {
    const saved = defer<string>();
    const { address: { port }, client } = await launchSystem(t, { saveState: () => saved.promise });
    t.after(() => saved.resolve('')); // a failure would block the system's end
    const shell = 'bash --norc --noprofile --noediting -i';
    const { type, shows, output } = await pseudoTerminal(t, shell, /SHELL> $/, { PS1: 'SHELL> ' });

    await t.test('accepts keys after Ctrl-Z and after kill -STOP; its own stop is no silence of the system', async () => {
      await type(`sh -c 'echo pid $$; exec ${CONSOLE} ${at(port)}'\r`, READY);
      process.kill(Number(output().match(/(?<=\npid )\d+/)?.[0]), 'SIGSTOP');
      await shows(STOPPED);
      for (const command of ['fg', 'fg %1']) {
        await type('sleep 3\r', /SHELL> $/); // longer than the limit for `no answer`
        const length = output().length;
        await type(`${command}\r`, new RegExp(`${prompt('active')}$`));
        await type('statuss', /statuss$/);
        await type('\x7f\r', shown(ACTIVE));
        assert.doesNotMatch(output().slice(length), /no answer/);
        await type(CTRL_Z, STOPPED);
      }
    });

    await t.test('keeps a question and a running command', async () => {
      await type('fg\r', new RegExp(`${prompt('active')}$`));
      await type('shutdown\r', /down\? \(y\/\[N\]\) $/);
      await type(CTRL_Z, STOPPED);
      await type('fg\r', /down\? \(y\/\[N\]\) $/);
      await type('n\r', shown('shutdown cancelled'));
      await type('save\r', GIVES_UP);
      await type(CTRL_Z, STOPPED);
      saved.resolve('state 1');
      await type('fg\r', shown('saved state 1 \\(\\d+\\.\\d s\\)'));
    });

    await t.test('keeps the line, and leaves the terminal to the shell while it is in the background', async () => {
      await type('stat', /stat$/);
      await type(CTRL_Z, STOPPED);
      await type('stty -a | tr ";" "\\n"\r', / icanon [^]* echo [^]*SHELL> $/);
      await type('bg\r', /SHELL> $/);
      const length = output().length;
      await client.request('pause', { wait: 60, by: 'ben@desk' });
      await type('sleep 2; jobs\r', /Running[^]*SHELL> $/);
      assert.ok(!output().slice(length).includes('paused'), 'it draws nothing in the background');
      await type('fg\r', /\npaused by ben@desk\n.*\(paused\) > stat$/);
      await type('us\r', /paused \d+ s ago[^]*> $/);
      await type(CTRL_D, /SHELL> $/);
      await type('echo "code $?"\r', /code 0\n/);
    });
  });

  it('restores the terminal', async (t) => {
    const { port } = await startServer(t);
    const run = `sh -c "echo pid \\$\\$; exec ${CONSOLE} ${at(port)}"; echo "code $?"; stty -a`;
    const { type, write, shows, output } = await pseudoTerminal(t, `sh -c '${run}; ${run}'`, READY);
    const asItWas = (code: number): RegExp => new RegExp(`code ${code}\n[^]* icanon [^]* echo `);
    await type(CTRL_C + CTRL_C, asItWas(0));
    await shows(READY);
    await type('save\r', GIVES_UP);
    write('');
    process.kill(Number(output().match(/(?<=^pid )\d+/gm)?.at(-1)), 'SIGTERM');
    await shows(asItWas(143));
  });
});
