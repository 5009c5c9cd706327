// control-console on a terminal while others change the status.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { SystemStatus } from '../../../../control.ts';
import { defer, launchSystem, makeFolder, startServer, until } from '../../helpers.ts';
import { LIMIT } from '../../module/helpers.ts';
import { lacks } from '../../needs.ts';
import { hideFailures, startWeb } from '../client/systems.ts';
import { at, prompt, shown, terminal } from './helpers.ts';
import type { TestContext } from 'node:test';

const SUITE = { ...LIMIT, concurrency: 4, skip: lacks('script') };
const BEN = { wait: 60, by: 'ben@desk', reason: 'GPU needed' };

hideFailures();

describe('control-console while others change the status', SUITE, () => {
  it('prints who has changed it and why, above the typed text', async (t) => {
    const shutDown = defer();
    t.after(() => shutDown.resolve()); // first, or a failure would block the system's end
    const { address: { port }, client } = await launchSystem(t, { onShutdown: () => shutDown.promise });
    const { type, shows } = await terminal(t, at(port));
    await type('help qu', /help qu$/);
    await client.request('pause', { ...BEN, reason: 'GPU \x1b[2Jneeded' });
    await shows(new RegExp(`paused by ben@desk: GPU {1,2}\\[2Jneeded\n(${prompt('\\w+')}help qu)+$`));
    await type('it\r', shown('  q, quit, exit .*', 'paused'));
    await client.request('resume', { wait: 60, by: 'ben@desk' });
    await shows(new RegExp(`resumed by ben@desk\n(${prompt('\\w+')})+$`));
    await client.request('shutdown', { ...BEN, wait: undefined });
    await shows(new RegExp(`shutting down by ben@desk: GPU needed\n(${prompt('[\\w ]+')})+$`));
  });

  it('prints nothing about its own commands, saves, no-ops, and changes without an author', async (t) => {
    let isBusy = true;
    const { address: { port }, client } = await launchSystem(t, {
      onPaused: () => assert.ok(!isBusy, 'GPU busy'), saveState: () => 'states/1.json',
    });
    const { type, shows, output } = await terminal(t, at(port));
    await type('pause\r', shown('not paused: onPaused failed: GPU busy'));
    await client.request('pause', BEN); // fails, too
    isBusy = false;
    await client.request('save-state', BEN);
    await type('p my own\r', shown('(.* … )?paused \\(\\d+\\.\\d s\\)', 'paused'));
    await client.request('pause', BEN);
    await type('save\r', shown('saved states/1.json \\(\\d+\\.\\d s\\)', 'paused'));
    await type('r\r', shown('(.* … )?active \\(\\d+\\.\\d s\\)'));
    await client.request('pause', { wait: 60 });
    await shows(new RegExp(`${prompt('paused')}$`));
    await client.request('resume', BEN); // reported after all earlier changes
    await shows(/resumed by ben@desk: GPU needed\n/);
    assert.equal(output().match(/\w+ by \w+/g)?.length, 1, output());
  });

  it('prints changes during a command after its outcome', async (t) => {
    let status = SystemStatus.ACTIVE;
    const { port, server, client } = await startServer(t, { systemStatus: () => status });
    const { type, shows } = await terminal(t, at(port));
    await type('save\r', /\(Ctrl-C gives up\) … $/);
    status = SystemStatus.PAUSED;
    assert.equal(await server.nextCommand(), 'save-state');
    await until(async () => (await client.info())?.status === 'paused');
    server.report({ value: 'state 1' });
    const again = `(${prompt('paused')})*`; // if the console has not seen the change yet
    await shows(new RegExp(`\\(Ctrl-C gives up\\) … saved state 1 .*\n${again}paused by .*\n(${prompt('paused')})+$`));
  });

  it('prints a change during a command even if the first report comes during it, too', async (t) => {
    const [reported, changed, saved] = [defer(), defer(), defer()];
    const active = { status: 'active', since: '2026-01-23T06:00:00.000Z', commands: [] };
    const paused = { status: 'paused', since: '2026-01-23T07:00:00.000Z', by: BEN.by, commands: [] };
    let reports = 0;
    const { port } = await startWeb(t, async ({ url, method }) => {
      if (method === 'POST') await saved.promise;
      if (url !== '/api/info') return { status: 'active', result: 'ok', id: 'abc-1', state: 'done', value: 'state 1' };
      await ((reports += 1) === 1 ? reported : changed).promise;
      return reports === 1 ? active : paused;
    });
    const { type, shows } = await terminal(t, at(port));
    await type('save\r', /\(Ctrl-C gives up\) … $/);
    reported.resolve();
    await until(() => reports === 2);
    changed.resolve();
    await until(() => reports === 3);
    saved.resolve();
    await shows(/ … saved state 1 .*\n[^]*paused by ben@desk\n/);
  });

  it('keeps a line that is longer than the terminal, and the cursor', { skip: lacks('tmux') }, async (t) => {
    const { address: { port }, client } = await launchSystem(t);
    const { press, shows } = await openTmux(t, port);
    const start = `control-console 127.0.0.1:${port}`;
    await shows(`\n${start} (active) > `);
    press('z'.repeat(100), ...Array<string>(90).fill('Left'));
    await shows(`\n${start} (active) > ${'z'.repeat(100)}`);
    await client.request('pause', BEN);
    await shows(`\npaused by ben@desk: GPU needed\n${start} (paused) > ${'z'.repeat(100)}`);
    press('here');
    await client.request('resume', BEN);
    const news = 'paused by ben@desk: GPU needed\nresumed by ben@desk: GPU needed\n';
    await shows(`\n${news}${start} (active) > ${'z'.repeat(10)}here${'z'.repeat(90)}`);
  });
});

interface Tmux {
  press(...keys: string[]): void;
  /** Resolves when the screen ends in this text, which the terminal may have wrapped. */
  shows(text: string): Promise<void>;
}

/** The console in a terminal emulator that returns its screen. */
async function openTmux(t: TestContext, port: number): Promise<Tmux> {
  t.after(() => tmux('kill-server')); // before its folder is removed
  const socket = join(makeFolder(t), 'tmux');
  const tmux = (...args: string[]): string => {
    return execFileSync('tmux', ['-f', '/dev/null', '-S', socket, ...args], { encoding: 'utf8' });
  };
  const command = `exec '${process.execPath}' dist/bin/console.js --no-history ${at(port)}`;
  tmux('new-session', '-d', '-x', '60', '-y', '15', command);
  const screen = (): string => tmux('capture-pane', '-p', '-J').trimEnd(); // -J joins wrapped lines
  const shows = (text: string): Promise<void> => {
    return until(() => screen().endsWith(text.trimEnd()), () => `no ${text} in ${screen()}`);
  };
  return { press: (...keys) => void tmux('send-keys', ...keys), shows };
}
