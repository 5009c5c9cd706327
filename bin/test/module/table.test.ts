// What the two threads share, at moments that no client can choose: a slot that is being written, threads that die in
// the middle of a store, counters that have gone round, calls out of callbacks.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import threads from 'node:worker_threads';
import { SystemStatus } from '../../../control.ts';
import { collectThreads, collectWarnings, getInfo, makeFolder, startServer } from '../helpers.ts';
import { PAUSE, RESUME, ask } from '../http.ts';
import { LIMIT, until } from '../wait.ts';
import type { WebApiServerOptions } from '../../../control.ts';
import type { TestContext } from 'node:test';

const { ACTIVE, PAUSED } = SystemStatus;

const [PAUSE_CODE, SAVE_CODE, OWN_CODE] = [0, 3, 4];
const [DEAD, OPEN] = [7, 1]; // of a word: being written, open

/** The table of a server, as its thread has it. */
async function openShared(t: TestContext, options: Partial<WebApiServerOptions> = {}): Promise<any> {
  const path = join(makeFolder(t), 'control.mjs');
  const names = ['createLog', 'linkToHost', 'openQueue', 'openTable', 'prepareThreadData'];
  writeFileSync(path, `${readFileSync(join('dist', 'control.js'), 'utf8')}\nexport { ${names.join(', ')} };\n`);
  const copy = await import(pathToFileURL(path).href);
  const data = copy.prepareThreadData({ systemStatus: () => ACTIVE, port: 0, ...options });
  const readClock = (): number => performance.timeOrigin + performance.now();
  const reports: unknown[] = [];
  const link = copy.linkToHost(data, (report: unknown) => reports.push(report), readClock);
  const relink = (): unknown => copy.linkToHost(data, () => {}, readClock); // as the next thread does
  return { data, link, queue: copy.openQueue(data, link.table), reports, relink };
}

describe('A slot that is being written', LIMIT, () => {
  it('has no text, whatever is in it, also after its writer has died, and is written again', async (t) => {
    const path = join(makeFolder(t), 'log.jsonl');
    const { data, link: { table, log }, reports } = await openShared(t, { log: path });
    for (const kind of ['declarations', 'detail', 'status', 'question', 'posted']) {
      const slot = table.claim(kind);
      table.open(slot, 0, '{"by":"ana"}');
      data.table.words[slot] = DEAD;
      data.table.sizes[2 * slot] = 5; // the text is torn
      const { state, given } = table.read(slot);
      assert.deepEqual([state, given], ['writing', {}], kind);
    }
    assert.deepEqual([table.recent(['posted'], 16), table.questions()], [[], []]);
    log.write({ event: 'start' });
    const slot = table.claim('status');
    table.open(slot, 0, '{"by":"ben","holds":[]}');
    assert.equal(table.present('status').given.by, 'ben');
    log.write();
    const events = readFileSync(path, 'utf8').trim().split('\n').map((line) => JSON.parse(line).event);
    assert.deepEqual([events, reports], [['start', 'status'], []]);
  });

  it('is opened anew if a thread has died before it counted the record, which nobody was told of', async (t) => {
    const { data, link, queue, relink } = await openShared(t);
    const slot = link.table.claim('client');
    link.table.open(slot, PAUSE_CODE, '');
    data.table.heads[0] = slot; // the word is stored, and HEAD is not
    assert.equal(queue.next(), undefined);
    const { table, enqueue } = relink();
    assert.equal(enqueue(SAVE_CODE, '', 0), slot);
    assert.deepEqual([queue.next(), table.codeOf(slot), data.table.words[slot] & DEAD], [slot, SAVE_CODE, OPEN]);
  });
});

describe('A stop that was taken', LIMIT, () => {
  it('puts no command first, however many commands ago', async (t) => {
    const { data, link, queue } = await openShared(t);
    const take = (): void => { link.table.change(queue.next(), 'taken'); };
    link.enqueue(PAUSE_CODE, '', 0);
    take();
    for (const count of [2 ** 30, 2 ** 31, 2 ** 32 - 1]) {
      Atomics.add(data.memory, data.cells.ACCEPTED, count | 0);
      const own = link.enqueue(OWN_CODE, '{"name":"say"}', 0);
      link.enqueue(SAVE_CODE, '', 0);
      assert.equal(queue.next(), own, String(count));
      take();
      take();
    }
  });
});

describe('nextCommand()', LIMIT, () => {
  it('takes what systemStatus() or describe() posts while it looks', async (t) => {
    let posts = 0;
    const post = (): void => {
      if (posts > 0) posts -= 1;
      if (posts === 1) assert.ok(server.post('save-state'));
    };
    const { server, port } = await startServer(t, {
      systemStatus: () => {
        post();
        return ACTIVE;
      },
      describe: post,
    });
    for (const count of [2, 3, 4, 5]) {
      posts = count;
      const next = server.nextCommand();
      const calls = setInterval(() => posts > 1 && void getInfo(port).catch(() => {}), 20); // which call both
      assert.equal(await next, 'save-state');
      clearInterval(calls);
    }
  });
});

describe('The request that the program has', LIMIT, () => {
  it('is a copy: what the program makes of it changes neither holds nor causes', async (t) => {
    let status = ACTIVE;
    const { server, port } = await startServer(t, { systemStatus: () => status });
    for (const [line, next] of [[PAUSE, PAUSED], [RESUME, ACTIVE]] as const) {
      assert.equal((await ask(port, `${line}?by=ana`)).statusCode, 200);
      server.receiveCommand();
      Object.assign(server.request as object, { by: 'mallory', command: 'shutdown' });
      status = next;
      server.hasCommands();
      assert.deepEqual([(await getInfo(port)).by, server.request?.by], ['ana', 'ana']);
      assert.deepEqual(server.holds.map(({ by }) => by), next === PAUSED ? ['ana'] : []);
    }
  });
});

describe('A thread that cannot be created', LIMIT, () => {
  it('is tried again a second later', async (t) => {
    const warnings = collectWarnings(t);
    const created = collectThreads(t);
    const { port } = await startServer(t);
    const { Worker } = threads;
    let attempts = 0;
    threads.Worker = function fail() {
      attempts += 1;
      threads.Worker = Worker;
      syncBuiltinESMExports();
      throw new Error('no more threads');
    } as unknown as typeof Worker;
    syncBuiltinESMExports();
    await created[0]?.terminate();
    await until(() => created.length > 1);
    assert.equal(attempts, 1);
    await until(async () => (await ask(port, PAUSE).catch(() => null))?.statusCode === 200);
    assert.ok(warnings.some((warning) => warning.includes('no more threads')), warnings.join());
  });
});
