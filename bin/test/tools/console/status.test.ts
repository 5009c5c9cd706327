// control-console on a terminal while others change the status, while the system does not respond, and under job
// control: Ctrl-Z, fg and bg, signals, and the state of the terminal afterwards.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { defer, launchSystem, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { startPuppet, startWeb } from '../../puppet.ts';
import { CTRL_C, CTRL_D, CTRL_Z, lineOf, openTerminal } from '../../screen.ts';
import { LIMIT, until } from '../../wait.ts';
import { ACTIVE, at, prompt, READY, shown, terminal } from './helpers.ts';

const STOPPED = /Stopped[^]*SHELL> $/;
const GIVES_UP = /\(Ctrl-C gives up\) … $/;
const SUITE = { ...LIMIT, concurrency: 4, skip: lacks('script') };

describe('control-console while others change the status', SUITE, () => {
  it('prints who has changed it and why above the typed text, and nothing about its own commands', async (t) => {
    const { port, set } = await startPuppet(t, { since: 'a', commands: [] });
    const { type, shows, output } = await terminal(t, at(port));
    let count = 0;
    const change = (status: string, command: string, by?: string, reason?: string): void => {
      const entry = { id: `k3f-${count += 1}`, command, state: 'done', by, reason };
      set({ status, since: `${count}`, by, reason, commands: [entry] });
    };
    await type('help qu', /help qu$/);
    change('paused', 'pause', 'ben@desk', 'GPU \x1b[2Jneeded');
    await shows(new RegExp(`paused by ben@desk: GPU {1,2}\\[2Jneeded\n(${prompt('\\w+')}help qu)+$`));
    await type('it\r', shown('  q, quit, exit .*', 'paused'));
    set({ commands: [{ id: 'k3f-9', command: 'pause', state: 'done', by: 'eve' }] }); // without effect
    change('active', 'resume', 'ben@desk');
    await shows(new RegExp(`resumed by ben@desk\n(${prompt('\\w+')})+$`));
    await type('z'.repeat(100), /(z ?){100}$/); // in two rows of the terminal
    change('paused', 'pause', 'ben@desk');
    await shows(new RegExp(`\x1b\\[1Apaused by ben@desk\n\n\x1b\\[1A${prompt('\\w+')}z{100}`));
    await type(CTRL_C, new RegExp(`${prompt('paused')}$`));
    set({ post: { id: 'own', state: 'done' } });
    await type('r\r', /active \(\d+\.\d s\)/);
    set({ status: 'active', since: 'own', by: 'ana', commands: [{ id: 'own', command: 'resume', state: 'done' }] });
    await shows(new RegExp(`${prompt('active')}$`));
    const save = { id: 's', command: 'save-state', state: 'running', by: 'eve' };
    set({ status: 'paused', since: 'save', commands: [save] });
    await shows(new RegExp(`${prompt('paused')}$`));
    change('active', 'save-state'); // the pause during a save is none
    await shows(new RegExp(`${prompt('active')}$`));
    change('paused', 'pause', 'somebody');
    await shows(/paused by somebody\n/);
    change('shutting down', 'shutdown', 'ben@desk', 'GPU needed');
    await shows(new RegExp(`shutting down by ben@desk: GPU needed\n(${prompt('[\\w ]+')})+$`));
    assert.doesNotMatch(output(), / by (ana|eve)/);
    assert.equal(output().match(/(paused|resumed|active|down) by \w+/g)?.length, 5, output());
  });

  it('prints nothing about its own command although a report lists that as waiting: the status is newer', async (t) => {
    const { port, set } = await startPuppet(t, { since: 'a', commands: [], post: { id: 'own', state: 'done' } });
    const { type, shows, output } = await terminal(t, at(port));
    await type('p\r', shown('(still active … )?paused \\(\\d+\\.\\d s\\)'));
    const pause = { id: 'own', command: 'pause', by: 'ana' };
    set({ status: 'paused', since: 'b', by: 'ana', commands: [{ ...pause, state: 'waiting' }] });
    await shows(new RegExp(`${prompt('paused')}$`));
    const resume = { id: 'other', command: 'resume', by: 'ben@desk', state: 'waiting' };
    set({ status: 'active', since: 'c', by: 'ben@desk', commands: [{ ...pause, state: 'done' }, resume] });
    await shows(/resumed by ben@desk\n/);
    set({ status: 'paused', since: 'd', by: 'eve', commands: [{ ...resume, state: 'done' }, { ...resume, id: 'k' }] });
    await shows(/paused by eve\n/); // a resume that waits has had no effect
    assert.doesNotMatch(output(), / by ana/);
  });

  it('prints a change during a command even if the first report comes during it, too', async (t) => {
    const [reported, changed, saved] = [defer(), defer(), defer()];
    const active = { status: 'active', since: '2026-01-23T06:00:00.000Z', commands: [] };
    const paused = { status: 'paused', since: '2026-01-23T07:00:00.000Z', by: 'ben@desk', commands: [] };
    let reports = 0;
    const { port } = await startWeb(t, async ({ url, method }) => {
      if (method === 'POST') await saved.promise;
      if (url !== '/api/info') return { status: 'active', result: 'ok', id: 'abc-1', state: 'done', value: 'state 1' };
      await ((reports += 1) === 1 ? reported : changed).promise;
      return reports === 1 ? active : paused;
    });
    const { type, shows } = await terminal(t, at(port));
    await type('save\r', GIVES_UP);
    reported.resolve();
    await until(() => reports === 2);
    changed.resolve();
    await until(() => reports === 3);
    saved.resolve();
    await shows(/ … saved state 1 .*\n[^]*paused by ben@desk\n/);
  });
});

describe('control-console and a system that does not respond', SUITE, () => {
  it('counts the seconds in the prompt, shows what it waits for, and sends nothing after Ctrl-C', async (t) => {
    const { port, set, end, posted } = await startPuppet(t);
    const { type, shows, output, ended } = await terminal(t, at(port));
    set({ silent: true });
    await shows(/no answer for (\d+) s\) > .*no answer for (?!\1 )\d+ s\) > $/);
    await type('\r'.repeat(15), new RegExp(`^(\n(${prompt('.*')})*){15}(${prompt('no answer for \\d+ s')})+$`));
    assert.doesNotMatch(output(), /Warning/);
    const silence = (seconds: string): string => `127.0.0.1:${port} has not responded within ${seconds}(\\.\\d)? s`;
    for (const command of ['shutdown', 'status', 'save']) {
      await type(`${command}\r`, new RegExp(`\nwaiting for 127.0.0.1:${port} \\(Ctrl-C gives up\\) … $`));
      const sent = command === 'status' ? '' : `(${command}|save-state) not sent: `;
      await type(CTRL_C, new RegExp(`^\n${sent}${silence('[0-4]')}\n${prompt('no answer for \\d+ s')}`));
    }
    await type('pause\r', new RegExp(`\npause not sent: ${silence('[5-9]')}\n`));
    set({
      silent: false,
      post: () => {
        set({ silent: true });
        return new Promise<object>(() => {});
      },
    });
    await shows(new RegExp(`${prompt('active')}$`));
    assert.deepEqual(posted(), []);

    await type('shutdown\r', /down\? \[y\/N\] $/);
    await type('y\r', GIVES_UP);
    const summary = 'shutdown sent, but no response within \\d+(\\.\\d)? s: it may still take effect';
    await type(CTRL_C, shown(summary, '.*'));
    assert.deepEqual(posted(), ['shutdown']);
    end();
    await shows(new RegExp(`${prompt('offline')}$`));
    await type('quit\r', /quit\n/);
    assert.equal((await ended).code, 0);
  });
});

describe('control-console and job control', { ...LIMIT, concurrency: 2, skip: lacks('script', 'bash') }, () => {
  it('is stopped by Ctrl-Z, and continues after fg', async (t) => {
    const saved = defer<string>();
    const { address: { port }, client } = await launchSystem(t, { saveState: () => saved.promise });
    t.after(() => saved.resolve('')); // a failure would block the system's end
    const shell = 'bash --norc --noprofile --noediting -i';
    const { type, shows, output } = await openTerminal(t, shell, /SHELL> $/, { env: { PS1: 'SHELL> ' } });

    await t.test('accepts keys after Ctrl-Z and kill -STOP; its own stop is no silence of the system', async () => {
      await type(`sh -c 'echo pid $$; exec ${lineOf('console')} ${at(port)}'\r`, READY);
      process.kill(Number(output().match(/(?<=\npid )\d+/)?.[0]), 'SIGSTOP');
      await shows(STOPPED);
      for (const command of ['fg', 'fg %1']) {
        await type('sleep 3\r', /SHELL> $/); // longer than the limit for `no answer`
        const { length } = output();
        await type(`${command}\r`, new RegExp(`${prompt('active')}$`));
        await type('statuss', /statuss$/);
        await type('\x7f\r', shown(ACTIVE));
        assert.doesNotMatch(output().slice(length), /no answer/);
        await type(CTRL_Z, STOPPED);
      }
    });

    await t.test('keeps a question and a running command', async () => {
      await type('fg\r', new RegExp(`${prompt('active')}$`));
      await type('shutdown\r', /down\? \[y\/N\] $/);
      await type(CTRL_Z, STOPPED);
      await type('fg\r', /down\? \[y\/N\] $/);
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
      const { length } = output();
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
    const run = `sh -c "echo pid \\$\\$; exec ${lineOf('console')} ${at(port)}"; echo "code $?"; stty -a`;
    const { type, write, shows, output } = await openTerminal(t, `sh -c '${run}; ${run}'`, READY);
    const asItWas = (code: number): RegExp => new RegExp(`code ${code}\n[^]* icanon [^]* echo `);
    await type(CTRL_C + CTRL_C, asItWas(0));
    await shows(READY);
    await type('save\r', GIVES_UP);
    write('');
    process.kill(Number(output().match(/(?<=^pid )\d+/gm)?.at(-1)), 'SIGTERM');
    await shows(asItWas(143));
  });
});
