// control-console on a terminal and a system that does not respond.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { defer, getInfo } from '../../helpers.ts';
import { LIMIT } from '../../module/helpers.ts';
import { lacks } from '../../needs.ts';
import { ACTIVE, startOwnProcess, startWeb } from '../client/systems.ts';
import { at, CTRL_C, prompt, shown, terminal } from './helpers.ts';

const SUITE = { ...LIMIT, concurrency: 4, skip: lacks('script', 'Linux') };

describe('control-console and a system that does not respond', SUITE, () => {
  it('counts the seconds in the prompt, until it responds again or is offline', async (t) => {
    const { port, child, stop } = await startOwnProcess(t);
    const { type, shows, output } = await terminal(t, at(port));
    await shows(new RegExp(`${prompt('active')}$`));
    await stop();
    await shows(/no answer for (\d+) s\) > .*no answer for (?!\1 )\d+ s\) > $/);
    await type('\r'.repeat(15), new RegExp(`^(\n(${prompt('.*')})*){15}(${prompt('no answer for \\d+ s')})+$`));
    assert.doesNotMatch(output(), /Warning/);
    child.kill('SIGCONT');
    await shows(new RegExp(`${prompt('active')}$`));
    await stop();
    await shows(/no answer for \d+ s\) > $/);
    child.kill('SIGKILL');
    await shows(new RegExp(`${prompt('offline')}$`));
  });

  it('shows what it waits for, sends nothing after Ctrl-C, and gives up after 5 s', async (t) => {
    const { port, child, stop } = await startOwnProcess(t);
    const { type, shows } = await terminal(t, at(port));
    await shows(new RegExp(`${prompt('active')}$`));
    await stop();
    const noAnswer = prompt('(active|no answer for \\d+ s)');
    for (const command of ['shutdown', 'status', 'info', 'save']) {
      await type(`${command}\r`, new RegExp(`\nwaiting for 127.0.0.1:${port} \\(Ctrl-C gives up\\) … $`));
      const sent = ['status', 'info'].includes(command) ? '' : `(${command}|save-state) not sent: `;
      const error = `127.0.0.1:${port} has not responded within [0-4](\\.\\d)? s`;
      await type(CTRL_C, new RegExp(`^\n${sent}${error}\n${noAnswer}`));
    }
    const error = `127.0.0.1:${port} has not responded within [5-9](\\.\\d)? s`;
    await type('pause\r', new RegExp(`\npause not sent: ${error}\n`));
    child.kill('SIGCONT');
    assert.deepEqual((await getInfo(port)).commands, []);
  });

  it('reports a command as sent, and quits while a request is pending', async (t) => {
    let silence = defer();
    t.after(() => silence.resolve());
    let isMute = false;
    const { port, requests } = await startWeb(t, async ({ method }) => {
      isMute ||= method === 'POST';
      if (isMute) await silence.promise;
      return ACTIVE;
    });
    const { type, shows, ended } = await terminal(t, at(port));
    for (const [word, command] of [['save', 'save-state'], ['pause', 'pause'], ['shutdown', 'shutdown']] as const) {
      [silence, isMute] = [(silence.resolve(), defer()), false];
      await shows(new RegExp(`${prompt('active')}$`));
      if (word === 'shutdown') await type('shutdown\r', /down\? \(y\/\[N\]\) $/);
      await type(word === 'shutdown' ? 'y\r' : `${word}\r`, /\(Ctrl-C gives up\) … $/);
      const summary = `${command} sent, but no response within \\d+(\\.\\d)? s: it may still take effect`;
      await type(CTRL_C, shown(summary, '.*'));
    }
    assert.deepEqual(requests.filter((one) => one.startsWith('POST')), [
      'POST /api/save-state', 'POST /api/pause', 'POST /api/shutdown',
    ]);
    const start = performance.now();
    await type('quit\r', /quit\n/);
    assert.equal((await ended).code, 0);
    assert.ok(performance.now() - start < 5000, 'the time limit of a request');
  });
});
