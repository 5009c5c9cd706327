// control-console on a terminal and a system that does not respond.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { describe, it } from 'node:test';
import { getInfo } from '../../helpers.ts';
import { LIMIT } from '../../module/helpers.ts';
import { lacks } from '../../needs.ts';
import { startOwnProcess } from '../client/systems.ts';
import { at, CTRL_C, prompt, shown, terminal } from './helpers.ts';
import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';

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
    await type('pause\r', new RegExp(`\npause not sent: 127.0.0.1:${port} has not responded within [5-9](\\.\\d)? s\n`));
    child.kill('SIGCONT');
    assert.deepEqual((await getInfo(port)).commands, []);
  });

  it('reports a command as sent, and quits while a request is pending', async (t) => {
    const { server, port, posted, recover } = await startMute(t);
    const { type, shows, ended } = await terminal(t, at(port));
    for (const [word, command] of [['save', 'save-state'], ['pause', 'pause'], ['shutdown', 'shutdown']] as const) {
      recover();
      await shows(new RegExp(`${prompt('active')}$`));
      if (word === 'shutdown') await type('shutdown\r', /down\? \(y\/\[N\]\) $/);
      await type(word === 'shutdown' ? 'y\r' : `${word}\r`, /\(Ctrl-C gives up\) … $/);
      const summary = `${command} sent, but no response within \\d+(\\.\\d)? s: it may still take effect`;
      await type(CTRL_C, shown(summary, '.*'));
      assert.deepEqual(posted, [command]);
    }
    const asked = once(server, 'request');
    server.closeAllConnections(); // the console sends a new request
    await asked;
    const start = performance.now();
    await type('quit\r', /quit\n/);
    assert.equal((await ended).code, 0);
    assert.ok(performance.now() - start < 5000, 'the time limit of that request');
  });
});

/** A server that responds to nothing after a command, until it recovers. */
interface Mute {
  server: Server;
  port: number;
  posted: string[];
  recover(): void;
}

async function startMute(t: TestContext): Promise<Mute> {
  const posted: string[] = [];
  const server = createServer(({ method, url = '' }, response) => {
    if (method === 'POST') posted.push(url.replace(/^\/api\/([^?]*).*$/, '$1'));
    else if (posted.length === 0) response.end(JSON.stringify({ status: 'active' }));
  });
  t.after(() => server.close().closeAllConnections());
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const recover = (): void => {
    posted.length = 0;
    server.closeAllConnections(); // the console sends a new request
  };
  return { server, port: (server.address() as AddressInfo).port, posted, recover };
}
