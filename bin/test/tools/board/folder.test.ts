// control-board --dir: systems of a folder that start and end; what a fleet keeps of them.

import assert from 'node:assert/strict';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { describe, it } from 'node:test';
import { PrintableClient, type PrintableReply } from '../../../shared/client.ts';
import { Fleet } from '../../../shared/fleet.ts';
import { Socket } from '../../../shared/folder.ts';
import { FollowedSystem } from '../../../shared/system.ts';
import { freePort, makeFolder, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { startWeb } from '../client/systems.ts';
import { INFO, newsOf, startBoard, untilSystem, untilSystems } from './helpers.ts';
import type { TestContext } from 'node:test';
import type { StartedBoard } from './helpers.ts';

const MAX_ENDED = 16; // offline systems of the folder

describe('control-board --dir', { ...LIMIT, skip: lacks('Unix') }, () => {
  it('shows the live systems of the folder, at the start and later, besides the targets', async (t) => {
    const folder = makeFolder(t);
    const socketPath = `${folder}/`;
    const { address } = await startServer(t, { socketPath, name: 'both' });
    await startServer(t, { socketPath, name: 'early' });
    writeFileSync(join(folder, 'file-1.sock'), '');
    const { port } = await startServer(t, { name: 'elsewhere' });
    const board = await startBoard(t, [`127.0.0.1:${port}`, `unix:${address.socketPath}`], ['--dir', folder]);
    assert.match(board.running.output(), /^3 systems · /);
    await untilShown(board, [['elsewhere', 'active'], ['both', 'active'], ['early', 'active']]);

    const late = await startServer(t, { socketPath, name: 'late' });
    await untilShown(board, [['elsewhere', 'active'], ['both', 'active'], ['early', 'active'], ['late', 'active']]);
    await late.server.close();
    await untilSystem(board, ({ status }) => status === 'offline', 3);
    assert.deepEqual((await newsOf(board)).ids, [0, 1, 2, 3], 'it stays');
    assert.equal(board.running.output().split('\n').length, 2, board.running.output());
  });

  it('is the folder where names are looked up', async (t) => {
    const [session, folder] = [makeFolder(t), makeFolder(t)];
    await startServer(t, { socketPath: `${session}/control/`, name: 'early' });
    await startServer(t, { socketPath: `${folder}/`, name: 'late' });
    const board = await startBoard(t, ['late'], ['--dir', folder], { XDG_RUNTIME_DIR: session });
    assert.match(board.running.output(), /^1 system · /);
    await untilShown(board, [['late', 'active']]);
  });

  it('starts with no systems, and sends the first one to a waiting page', async (t) => {
    const folder = join(makeFolder(t), 'sockets');
    mkdirSync(folder);
    const board = await startBoard(t, [], ['--dir', relative('.', folder)]);
    assert.match(board.running.output(), /^0 systems · /m);
    assert.match(board.running.output(), /^control-board: nothing runs in '.*': it may still start$/m);
    const { version, ids, systems } = await newsOf(board, 0, 30); // at once: a page without systems does not wait
    assert.deepEqual([ids, systems], [[], []]);
    const waiting = newsOf(board, version, 300);
    const first = await startServer(t, { socketPath: `${folder}/`, name: 'first' });
    const news = await waiting;
    assert.deepEqual([news.ids, news.systems.map(({ id }) => id)], [[0], [0]]);
    await untilShown(board, [['first', 'active']]);
    await first.server.close();
    rmSync(folder, { recursive: true }); // it comes back, as after a logout
    await untilShown(board, [['first', 'offline']]);
    mkdirSync(folder);
    await startServer(t, { socketPath: `${folder}/`, name: 'second' });
    await untilShown(board, [['first', 'offline'], ['second', 'active']]);
  });

  it('drops the oldest offline system when a new one comes, but no target and no live system', async (t) => {
    const folder = makeFolder(t);
    const given = `127.0.0.1:${await freePort()}`;
    const board = await startBoard(t, [given], ['--dir', folder]);
    const ends: (() => void)[] = [];
    for (let id = 1; id <= MAX_ENDED + 2; id += 1) { // in this order
      ends.push(await startIn(t, folder, `s${id}`));
      if (id < 3) await untilSystem(board, ({ status }) => status === 'active', id);
    }
    await untilSystems(board, (systems) => systems.length === MAX_ENDED + 3);
    for (const [index, end] of ends.entries()) if (index !== 1) end(); // the second stays
    await untilSystems(board, (systems) => {
      return systems.every(({ id, status }) => status === (id === 2 ? 'active' : 'offline'));
    });
    const ids = Array.from({ length: MAX_ENDED + 3 }, (_, id) => id);
    assert.deepEqual((await newsOf(board)).ids, ids, 'nothing has come');
    await startIn(t, folder, 'new');
    await untilSystems(board, (systems) => systems.some(({ id }) => id === MAX_ENDED + 3));
    const news = await newsOf(board);
    assert.deepEqual(news.ids, [0, ...ids.slice(2), MAX_ENDED + 3]);
    assert.deepEqual(news.systems.map(({ id }) => id), news.ids);
    assert.equal((await board.post('/api/systems/1/pause')).status, 404);
    assert.equal((await board.post('/api/systems/0/pause')).status, 202);
    assert.equal((await board.post(`/api/systems/${MAX_ENDED + 3}/pause`)).status, 202);
  });

  it('shows a restarted program in place of the ended one', async (t) => {
    const folder = makeFolder(t);
    const board = await startBoard(t, [], ['--dir', folder]);
    const end = await startIn(t, folder, 'job-1');
    await startIn(t, folder, 'job-2');
    const endOther = await startIn(t, folder, 'job-b-3');
    await untilShown(board, [['job-1', 'active'], ['job-2', 'active'], ['job-b-3', 'active']]);
    end();
    endOther();
    await startIn(t, folder, 'job-4');
    await untilShown(board, [['job-2', 'active'], ['job-b-3', 'offline'], ['job-4', 'active']]);
  });
});

it('control-board shows a given system again that comes back at its path', { ...LIMIT, skip: lacks('Unix') }, async (t) => {
  const folder = makeFolder(t);
  const end = await startIn(t, folder, 'train');
  const board = await startBoard(t, ['train'], ['--dir', folder]);
  await untilShown(board, [['train', 'active']]);
  end();
  await untilShown(board, [['train', 'offline']]);
  await startIn(t, folder, 'train');
  await untilShown(board, [['train', 'active']]);
  assert.deepEqual((await newsOf(board)).ids, [0]);
});

describe('A fleet', { ...LIMIT, skip: lacks('Unix') }, () => {
  it('replaces a program of the same name whose socket is gone, also before a request has failed', (t) => {
    const folder = makeFolder(t);
    const fleet = new Fleet({ create: (target) => new FollowedSystem(target), maxEnded: 9 }); // follows nothing
    const add = (id: string): FollowedSystem => {
      const path = join(folder, `${id}.sock`);
      writeFileSync(path, '');
      const client = new PrintableClient(undefined, undefined, { socketPath: path });
      const system = fleet.add({ name: `unix:${path}`, id, title: id, client, socket: new Socket(path) });
      const reply = { ok: true, value: 'active', original: 'active', fault: null, body: INFO, tag: undefined };
      system.note('active', reply as PrintableReply);
      return system;
    };
    const [ended, , other] = [add('job-1'), add('job-2'), add('job-b-3')];
    assert.equal(fleet.add(ended.target as Parameters<typeof fleet.add>[0]), ended);
    for (const { target: { socket } } of [ended, other]) rmSync(socket?.path ?? '');
    add('job-4');
    assert.deepEqual(fleet.all.map(({ target: { id } }) => id), ['job-2', 'job-b-3', 'job-4']);
  });
});

/** Starts an active system in a folder. Returns a function that ends it. */
async function startIn(t: TestContext, folder: string, name: string): Promise<() => void> {
  return (await startWeb(t, () => ({ ...INFO, name }), { socketPath: join(folder, `${name}.sock`) })).end;
}

/** Waits until the board shows exactly these systems. */
async function untilShown(board: StartedBoard, expected: [name: string, status: string][]): Promise<void> {
  await untilSystems(board, (systems) => {
    return JSON.stringify(systems.map(({ name, status }) => [name, status])) === JSON.stringify(expected);
  });
}
