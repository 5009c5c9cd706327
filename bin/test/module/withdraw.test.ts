// POST /api/withdraw: a command that waits is taken back, and what waits behind it, asks or sleeps goes on.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../control.ts';
import { launchSystem, makeFolder, startServer, takeAll } from '../helpers.ts';
import { runHost } from '../host.ts';
import { INFO, PAUSE, RESUME, SAVE, SHUTDOWN, Talk, WAIT, ask } from '../http.ts';
import { LIMIT, until } from '../wait.ts';
import { readLog } from './log.ts';
import type { TestContext } from 'node:test';
import type { CommandInfo, WebApiServerOptions } from '../../../control.ts';
import type { StartedServer } from '../helpers.ts';

const { PAUSED } = SystemStatus;
const SAY = 'POST /api/say';

interface Started extends StartedServer<'say'> {
  /** Sends commands, and returns their ids. */
  send(...lines: string[]): Promise<string[]>;
  entryOf(id: string): Promise<CommandInfo>;
}

async function start(t: TestContext, options: Partial<WebApiServerOptions<'say'>> = {}): Promise<Started> {
  const started = await startServer(t, { commands: { say: {} }, ...options });
  const { port } = started;
  return {
    ...started,
    async send(...lines) {
      for (const line of lines) assert.equal((await ask(port, line)).summary, '200 ok', line);
      const { commands } = (await ask(port, INFO)).body;
      return commands.slice(-lines.length).map(({ id }: CommandInfo) => id);
    },
    async entryOf(id) {
      const { commands } = (await ask(port, INFO)).body;
      return commands.find((one: CommandInfo) => one.id === id) ?? assert.fail(id);
    },
  };
}

/** Returns the status code with the error or the result. */
async function withdraw(port: number, id: string = '', query: string = ''): Promise<string> {
  return (await ask(port, `POST /api/withdraw?id=${id}${query}`)).summary;
}

describe('A command that waits', { ...LIMIT, concurrency: true }, () => {
  it('is withdrawn: never delivered, logged before the response, and its sender is told', async (t) => {
    const log = `${makeFolder(t)}/log.jsonl`;
    const { server, port, send, entryOf } = await start(t, { log });
    const waiting = ask(port, `${SAY}?by=ana`, WAIT);
    await until(async () => (await ask(port, INFO)).body.commands.length === 1);
    const [other = '', shutdown = ''] = await send(SAVE, `${SHUTDOWN}?within=1&by=ana`);
    const { id } = (await ask(port, INFO)).body.commands[0];
    assert.equal(await withdraw(port, id, '&by=ben&reason=the+wrong+program'), '200 ok');
    const words = 'withdrawn by ben: the wrong program';
    const lines = readLog(log).filter((line) => line['id'] === id);
    assert.deepEqual(lines.map(({ event, error }) => [event, error]), [['command', undefined], ['outcome', words]]);
    assert.equal((await waiting).summary, `500 say failed: ${words}`);
    assert.equal(await withdraw(port, id, '&by=eve'), '200 ok', 'again, also by somebody else');
    assert.equal(await withdraw(port, shutdown), '200 ok');
    const { state, error, by } = await entryOf(id);
    assert.deepEqual([state, error, by], ['failed', words, 'ana']);
    await sleep(1200); // the limit of the shutdown
    assert.deepEqual(takeAll(server), ['save-state']);
    assert.equal((await entryOf(shutdown)).error, 'withdrawn');
    assert.equal((await entryOf(other)).state, 'done');
    await server.close();
    assert.equal(readLog(log).filter(({ event, id: one }) => event === 'outcome' && one === id).length, 1);
  });

  it('is not once the program has it, and nobody withdraws a command of the program itself', async (t) => {
    const { server, port, send } = await start(t, { autoReport: false });
    const [id = '', expiring = ''] = await send(SAVE, `${SAVE}?expires=1`);
    assert.ok(server.hasCommands());
    assert.equal(await withdraw(port, id), `409 ${id} is being taken`);
    assert.equal(server.receiveCommand(), 'save-state');
    assert.equal(await withdraw(port, id), `409 ${id} is running`);
    server.report();
    assert.equal(await withdraw(port, id), `409 ${id} is done`);
    await sleep(1200);
    assert.equal(server.hasCommands(), false);
    assert.equal(await withdraw(port, expiring), `409 ${expiring} has failed`);
    server.post('pause');
    const own = (await ask(port, INFO)).body.commands.at(-1).id;
    assert.equal(await withdraw(port, own), `409 ${own} is a command of the program itself`);
    const [prefix] = id.split('-');
    for (const unknown of [`${prefix}-0`, `${prefix}-99`, 'xyz-1', '1', '']) {
      assert.equal(await withdraw(port, unknown), `404 There is no command ${unknown || 'without an id'}`);
    }
    assert.equal(await withdraw(port, id, '&mine=true'), '400 unknown parameter mine: id, by, reason');
    assert.equal((await ask(port, 'GET /api/withdraw')).statusCode, 405);
    assert.deepEqual(takeAll(server), ['pause']);
  });

  it('is announced until the next look only', async (t) => {
    const { server, port, send } = await start(t);
    const [say = ''] = await send(SAY);
    assert.ok(server.hasCommands());
    const [pause = ''] = await send(PAUSE); // goes first
    assert.ok(server.hasCommands());
    assert.equal(await withdraw(port, pause), `409 ${pause} is being taken`);
    assert.equal(await withdraw(port, say), '200 ok');
    const [last = ''] = await send(SAY);
    assert.equal(server.receiveCommand(), 'pause');
    assert.equal(await withdraw(port, last), '200 ok');
    assert.deepEqual(takeAll(server), []);
  });

  it('no longer has effects: a pause holds nothing and lets none go first, a resume releases nothing', async (t) => {
    const cause = [{ by: 'ana' }, { by: 'ben' }];
    const { server, port, send } = await start(t, { systemStatus: () => PAUSED, cause });
    const [, release = '', pause = ''] = await send(SAVE, `${RESUME}?mine=true&by=ana`, `${PAUSE}?by=eve`);
    for (const id of [release, pause]) assert.equal(await withdraw(port, id), '200 ok');
    assert.deepEqual(takeAll(server), ['save-state']);
    assert.deepEqual(server.holds.map(({ by }) => by), ['ana', 'ben']);
    const [, , stop = ''] = await send(SAY, SAVE, PAUSE);
    assert.equal(await withdraw(port, stop), '200 ok');
    assert.deepEqual(takeAll(server), ['say', 'save-state']);
  });

  it('no longer refuses an answer while the program computes', async (t) => {
    const host = runHost(t, `
      const server = await serve({ systemStatus: () => ACTIVE });
      const question = server.ask('Go on?');
      halt();
      say((await question).arguments);
      await server.close();
    `);
    const port = await host.hear<number>();
    await ask(port, PAUSE);
    const { asks: [{ id }], commands: [pause] } = (await ask(port, INFO)).body;
    const talk = new Talk(port);
    const reply = async (): Promise<string> => (await talk.post(`answer?id=${id}`, '{"approved":true}')).summary;
    assert.equal(await reply(), '409 a pause waits');
    assert.deepEqual([await withdraw(port, pause.id), await reply()], ['200 ok', '200 ok']);
    talk.end();
    host.release();
    await host.ends({ approved: true });
  });

  it('gives its place back: at once if the program yields, else as often as there are places', async (t) => {
    const { server, port, send } = await start(t, { maxQueueSize: 2 });
    const [first = ''] = await send(SAY);
    for (let count = 0; count < 3; count += 1) {
      const [id] = await send(SAY);
      if (count < 2) assert.equal((await ask(port, SAY)).statusCode, 503);
      assert.equal(await withdraw(port, id), '200 ok');
    }
    assert.equal((await ask(port, SAY)).statusCode, 503, 'the slots are used up');
    assert.deepEqual([await withdraw(port, first), takeAll(server)], ['200 ok', []]);
    for (let count = 0; count < 9; count += 1) assert.equal(await withdraw(port, (await send(SAY))[0]), '200 ok');
  });

  it('leaves the one that has waited longest in the list, whatever is withdrawn', async (t) => {
    const host = runHost(t, `
      const server = await serve({ systemStatus: () => ACTIVE });
      halt();
      await server.close();
    `);
    const port = await host.hear<number>();
    const waiting = async (): Promise<string[]> => {
      const { commands } = (await ask(port, INFO)).body;
      return commands.filter(({ state }: CommandInfo) => state === 'waiting').map(({ id }: CommandInfo) => id);
    };
    const fill = async (count: number): Promise<void> => {
      for (let left = count; left > 0; left -= 1) assert.equal((await ask(port, SAVE)).statusCode, 200);
    };
    await fill(16);
    const [first, second, ...others] = await waiting();
    for (const id of [first, ...others.slice(0, 14)]) assert.equal(await withdraw(port, id), '200 ok');
    await fill(15);
    const listed = await waiting();
    assert.deepEqual([listed[0], listed.length], [second, 16]);
    host.release();
    await host.ends();
  });

  it('can be taken after hasCommands(), even if a callback looks meanwhile', async (t) => {
    let isPolling = false;
    const started: Started = await start(t, {
      systemStatus: () => {
        if (isPolling) assert.equal(started.server.nextCommandSync({ timeout: 0 }), null);
        return PAUSED;
      },
    });
    const { server, port, send } = started;
    const [id] = await send(SAY);
    assert.ok(server.hasCommands());
    isPolling = true;
    server.publish();
    assert.equal(await withdraw(port, id), `409 ${id} is being taken`);
    isPolling = false;
    assert.equal(server.receiveCommand(), 'say');
  });

  it('leaves other own commands to the end of a program that shuts down', async (t) => {
    const { server, port, send, entryOf } = await start(t);
    const [one = '', two = ''] = await send(SAY, SAY, SHUTDOWN);
    assert.equal(server.receiveCommand(), 'shutdown');
    assert.equal(await withdraw(port, one), '200 ok');
    server.report();
    assert.equal((await entryOf(two)).error, 'the program has shut down');
    assert.equal((await entryOf(one)).error, 'withdrawn');
    assert.equal(server.hasCommands(), false);
  });
});

describe('What a withdrawn command has interrupted', { ...LIMIT, concurrency: true }, () => {
  it('was a step of launch(), which goes on with the next', async (t) => {
    let steps = 0;
    const { address: { port } } = await launchSystem(t, {
      async step({ signal }) {
        steps += 1;
        await new Promise((resolve) => signal.addEventListener('abort', resolve));
        await sleep(300); // in which the command is withdrawn
        signal.throwIfAborted();
      },
    });
    for (let round = 1; round < 4; round += 1) {
      await until(() => steps === round);
      await ask(port, PAUSE);
      const { id } = (await ask(port, INFO)).body.commands.at(-1);
      assert.equal(await withdraw(port, id), '200 ok');
    }
    await until(() => steps === 4);
    assert.equal((await ask(port, INFO)).body.status, 'active');
  });

  it('was a step of an own loop: its signal is a new one', async (t) => {
    const { server, port, send } = await start(t);
    const { signal } = server;
    const [id] = await send(PAUSE);
    await until(() => signal.aborted);
    assert.equal(await withdraw(port, id), '200 ok');
    assert.deepEqual([server.hasCommands(), server.signal.aborted], [false, false]);
  });
});
