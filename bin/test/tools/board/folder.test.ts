// control-board --dir: systems of a folder that start and end, and those that stay on the board.

import assert from 'node:assert/strict';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { describe, it } from 'node:test';
import { freePort, makeFolder, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { startPuppet, startWeb } from '../../puppet.ts';
import { LIMIT, until } from '../../wait.ts';
import { INFO, newsOf, startBoard, untilSystems } from './helpers.ts';
import type { TestContext } from 'node:test';
import type { StartedBoard } from './helpers.ts';

const MAX_ENDED = 16; // offline systems of the folder

describe('control-board --dir', { ...LIMIT, skip: lacks('Unix') }, () => {
  it('shows the live systems of the folder, at the start and later, besides the targets', async (t) => {
    const [session, folder] = [makeFolder(t), makeFolder(t)];
    const socketPath = `${folder}/`;
    await startServer(t, { socketPath: `${session}/control/`, name: 'both' }); // names are looked up in --dir
    await startServer(t, { socketPath, name: 'both' });
    await startServer(t, { socketPath, name: 'early' });
    writeFileSync(join(folder, 'file-1.sock'), '');
    const { port } = await startServer(t, { name: 'elsewhere' });
    const targets = [`127.0.0.1:${port}`, 'both'];
    const board = await startBoard(t, targets, ['--dir', folder], { XDG_RUNTIME_DIR: session });
    assert.match(board.running.output(), /^3 systems · /);
    await untilShown(board, 'elsewhere active', 'both active', 'early active');
    const late = await startServer(t, { socketPath, name: 'late' });
    await untilShown(board, 'elsewhere active', 'both active', 'early active', 'late active');
    await late.server.close();
    await untilShown(board, 'elsewhere active', 'both active', 'early active', 'late offline'); // it stays
    assert.equal(board.running.output().split('\n').length, 2, board.running.output());
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
    await untilShown(board, 'first active');
    await first.server.close();
    rmSync(folder, { recursive: true }); // it comes back, as after a logout
    await untilShown(board, 'first offline');
    mkdirSync(folder);
    await startServer(t, { socketPath: `${folder}/`, name: 'second' });
    await untilShown(board, 'first offline', 'second active');
  });

  it('shows a restarted program in place of the ended one, also one that was given', async (t) => {
    const folder = makeFolder(t);
    const endGiven = await startIn(t, folder, 'train');
    const board = await startBoard(t, ['train'], ['--dir', folder]);
    const end = await startIn(t, folder, 'job-1');
    await startIn(t, folder, 'job-2');
    const endOther = await startIn(t, folder, 'job-b-3');
    const shown = ['train active', 'job-1 active', 'job-2 active', 'job-b-3 active'];
    await untilShown(board, ...shown);
    for (const one of [end, endOther, endGiven]) one();
    await startIn(t, folder, 'job-4');
    await untilShown(board, 'train offline', 'job-2 active', 'job-b-3 offline', 'job-4 active');
    await startIn(t, folder, 'train');
    await untilShown(board, 'train active', 'job-2 active', 'job-b-3 offline', 'job-4 active');
    assert.equal((await newsOf(board)).ids[0], 0, 'the same one');

    const path = join(folder, 'job-b-5.sock');
    const { set, held } = await startPuppet(t, { ...INFO, name: 'job-b-5' }, { socketPath: path });
    await untilShown(board, 'train active', 'job-2 active', 'job-4 active', 'job-b-5 active');
    set({ silent: true });
    await until(async () => (await newsOf(board)).ids.length > 0 && held() > 1); // all that it asks
    rmSync(path); // so it has ended, although no request has failed yet
    await startIn(t, folder, 'job-b-6');
    await untilShown(board, 'train active', 'job-2 active', 'job-4 active', 'job-b-6 active');
  });

  it('drops the oldest offline system when a new one comes, but no target and no live system', async (t) => {
    const folder = makeFolder(t);
    const given = `127.0.0.1:${await freePort()}`;
    const board = await startBoard(t, [given], ['--dir', folder]);
    const ends: (() => void)[] = [];
    for (let id = 1; id <= MAX_ENDED + 2; id += 1) { // in this order
      ends.push(await startIn(t, folder, `s${id}`));
      if (id < 3) await untilSystems(board, (systems) => systems[id]?.status === 'active');
    }
    await untilSystems(board, (systems) => systems.length === MAX_ENDED + 3);
    for (const [index, end] of ends.entries()) if (index !== 1) end(); // the second stays
    const ids = Array.from({ length: MAX_ENDED + 3 }, (_, id) => id);
    const systems = await untilSystems(board, (all) => {
      return all.every(({ id, status }) => status === (id === 2 ? 'active' : 'offline'));
    });
    assert.deepEqual(systems.map(({ id }) => id), ids, 'nothing has come');
    await startIn(t, folder, 'new');
    await untilSystems(board, (all) => all.some(({ id }) => id === MAX_ENDED + 3));
    const news = await newsOf(board);
    assert.deepEqual(news.ids, [0, ...ids.slice(2), MAX_ENDED + 3]);
    assert.deepEqual(news.systems.map(({ id }) => id), news.ids);
    for (const [id, status] of [[1, 404], [0, 202], [MAX_ENDED + 3, 202]] as const) {
      assert.equal((await board.post(`/api/systems/${id}/pause`)).status, status, `${id}`);
    }
  });
});

/** Starts an active system in a folder. Returns a function that ends it. */
async function startIn(t: TestContext, folder: string, name: string): Promise<() => void> {
  return (await startWeb(t, () => ({ ...INFO, name }), { socketPath: join(folder, `${name}.sock`) })).end;
}

/** Waits until the board shows exactly these systems, with their statuses. */
async function untilShown(board: StartedBoard, ...expected: string[]): Promise<void> {
  await untilSystems(board, (all) => all.map(({ name, status }) => `${name} ${status}`).join() === expected.join());
}
