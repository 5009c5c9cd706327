// control-console on a terminal while others change the status, and while the system does not respond.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { defer, getInfo, launchSystem, LIMIT, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { ACTIVE, hideFailures, startOwnProcess, startWeb } from '../client/systems.ts';
import { at, CTRL_C, prompt, shown, terminal } from './helpers.ts';

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
    await type('z'.repeat(100), /(z ?){100}$/); // in two rows of the terminal
    await client.request('pause', BEN);
    await shows(new RegExp(`\x1b\\[1Apaused by ben@desk: GPU needed\n\n\x1b\\[1A${prompt('\\w+')}z{100}`));
    await type(CTRL_C, new RegExp(`${prompt('paused')}$`));
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
});

describe('control-console and a system that does not respond', { ...SUITE, skip: lacks('script', 'Linux') }, () => {
  it('counts the seconds in the prompt, shows what it waits for, and sends nothing after Ctrl-C', async (t) => {
    const { port, child, stop } = await startOwnProcess(t);
    const { type, shows, output } = await terminal(t, at(port));
    await shows(new RegExp(`${prompt('active')}$`));
    await stop();
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
    child.kill('SIGCONT');
    await shows(new RegExp(`${prompt('active')}$`));
    assert.deepEqual((await getInfo(port)).commands, []);
    await stop();
    await shows(/no answer for \d+ s\) > $/);
    child.kill('SIGKILL');
    await shows(new RegExp(`${prompt('offline')}$`));
  });

  it('reports a command as sent, and quits while a request is pending', async (t) => {
    const silence = defer();
    t.after(() => silence.resolve());
    let isMute = false;
    const { port, requests } = await startWeb(t, async ({ method }) => {
      isMute ||= method === 'POST';
      if (isMute) await silence.promise;
      return ACTIVE;
    });
    const { type, ended } = await terminal(t, at(port));
    await type('shutdown\r', /down\? \(y\/\[N\]\) $/);
    await type('y\r', /\(Ctrl-C gives up\) … $/);
    const summary = 'shutdown sent, but no response within \\d+(\\.\\d)? s: it may still take effect';
    await type(CTRL_C, shown(summary, '.*'));
    assert.deepEqual(requests.filter((one) => one.startsWith('POST')), ['POST /api/shutdown']);
    const start = performance.now();
    await type('quit\r', /quit\n/);
    assert.equal((await ended).code, 0);
    assert.ok(performance.now() - start < 5000, 'the time limit of a request');
  });
});
