// control-console and job control: Ctrl-Z, fg and bg, signals, and the state of the terminal afterwards.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { launchSystem, startServer } from '../../helpers.ts';
import { LIMIT } from '../../module/helpers.ts';
import { lacks } from '../../needs.ts';
import {
  ACTIVE, at, CTRL_C, CTRL_D, CTRL_Z, prompt, pseudoTerminal, READY, shell, shown, terminal,
} from './helpers.ts';

const CONSOLE = `exec ${process.execPath} dist/bin/console.js`;
const STOPPED = /Stopped[^]*SHELL> $/;
const GIVES_UP = /\(Ctrl-C gives up\) … $/;

describe('control-console and job control', { ...LIMIT, concurrency: 4, skip: lacks('script', 'bash') }, () => {
  it('is stopped by Ctrl-Z, and continues after fg', async (t) => {
    const { address: { port }, client } = await launchSystem(t);
    const { type, shows, output } = await shell(t, port);

    await t.test('accepts text, Ctrl-C and Ctrl-D', async () => {
      for (const command of ['fg', 'fg %1']) {
        await type(CTRL_Z, STOPPED);
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

    await t.test('keeps a question', async () => {
      await type(`${process.execPath} dist/bin/console.js ${at(port)}\r`, READY);
      await type('shutdown\r', /down\? \(y\/\[N\]\) $/);
      await type(CTRL_Z, STOPPED);
      await type('fg\r', /down\? \(y\/\[N\]\) $/);
      await type('n\r', shown('shutdown cancelled'));
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
    });

    await t.test('accepts keys after kill -STOP', async () => {
      await type(`sh -c 'echo pid $$; ${CONSOLE} ${at(port)}'\r`, READY);
      const [pid] = output().match(/(?<=\npid )\d+/g)?.slice(-1) ?? [];
      process.kill(Number(pid), 'SIGSTOP');
      await shows(STOPPED);
      await type('fg\r', new RegExp(`${prompt('paused')}$`));
      await type('help quit\r', /unaffected\n[^\n]*> $/);
    });
  });

  it('keeps the current command running after Ctrl-Z', async (t) => {
    const { port, server } = await startServer(t);
    const { type } = await shell(t, port);
    await type('save\r', GIVES_UP);
    await type(CTRL_Z, STOPPED);
    assert.equal(await server.nextCommand(), 'save-state');
    server.report({ value: 'state 1' });
    await type('fg\r', shown('saved state 1 \\(\\d+\\.\\d s\\)'));
    await type('save\r', GIVES_UP);
    await type(CTRL_Z, STOPPED);
    await type('fg\r', /console\.js/);
    await type(CTRL_C, shown('not saved after .*'));
  });
});

describe('control-console and signals', { ...LIMIT, concurrency: 4, skip: lacks('script') }, () => {
  it('restores the terminal', async (t) => {
    const { port } = await startServer(t);
    const run = `sh -c "echo pid \\$\\$; ${CONSOLE} ${at(port)}"; echo "code $?"; stty -a`;
    const { type, write, shows, output } = await pseudoTerminal(t, `sh -c '${run}; ${run}; ${run}'`, READY);
    const asItWas = (code: number): RegExp => new RegExp(`code ${code}\n[^]* icanon [^]* echo [^]*${READY.source}`);
    const terminate = (): void => {
      const [pid] = output().match(/(?<=^pid )\d+/gm)?.slice(-1) ?? [];
      write('');
      process.kill(Number(pid), 'SIGTERM');
    };

    await t.test('after Ctrl-C, pressed twice', () => type(CTRL_C + CTRL_C, asItWas(0)));

    await t.test('after SIGTERM', async () => {
      terminate();
      await shows(asItWas(143));
    });

    await t.test('after SIGTERM while a command runs', async () => {
      await type('save\r', GIVES_UP);
      terminate();
      await shows(/code 143\n[^]* icanon [^]* echo /);
    });
  });

  it('does not count its own stop as silence of the system', { skip: lacks('Linux') }, async (t) => {
    const { address: { port } } = await launchSystem(t);
    const { type, shows, output, ...console } = await terminal(t, at(port));
    await shows(new RegExp(`${prompt('active')}$`));
    await console.stop();
    await sleep(3000); // longer than the limit for `no answer`
    console.continue();
    await type('status\r', shown(ACTIVE));
    assert.doesNotMatch(output(), /no answer/);
  });
});
