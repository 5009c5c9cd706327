// The order in which commands are taken: next() and find() against the rule of WebApiServer, computed anew each time.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { makeFolder } from '../helpers.ts';
import { LIMIT } from '../wait.ts';
import { SEED, oneOf, randomNumbers } from './helpers.ts';
import { SystemStatus } from '../../../control.ts';

const [PAUSE, RESUME, SHUTDOWN, SAVE, OWN] = [0, 1, 2, 3, 4];
const STATES = 50_000;

/** A command that waits. */
interface Waiting {
  slot: number;
  code: number;
  number: number;
  expiresAt: number;
}

describe('The order of commands', LIMIT, () => {
  it('is that of their numbers; while a stop waits, the four come first; those of the program precede all', async (t) => {
    t.diagnostic(`the seed is ${SEED}`);
    const path = join(makeFolder(t), 'control.mjs');
    const names = ['linkToHost', 'openQueue', 'prepareThreadData'];
    writeFileSync(path, `${readFileSync(join('dist', 'control.js'), 'utf8')}\nexport { ${names.join(', ')} };\n`);
    const { linkToHost, openQueue, prepareThreadData } = await import(pathToFileURL(path).href);
    const random = randomNumbers(SEED);
    const upTo = (count: number): number => Math.floor(random() * count);
    const counts = { states: 0, stops: 0, expiredStops: 0 };
    while (counts.states < STATES) {
      const maxQueueSize = oneOf(random, [1, 3, 8, 40]);
      const stopsAmong = oneOf(random, [2, 5, 30]); // one of so many of the four
      const data = prepareThreadData({ systemStatus: () => SystemStatus.ACTIVE, port: 0, maxQueueSize });
      data.memory[data.cells.ACCEPTED] = oneOf(random, [0, 2 ** 29 - 100, 2 ** 31 - 100, 2 ** 32 - 100]);
      let now = 1000;
      const link = linkToHost(data, () => {}, () => now);
      const { table } = link;
      const queue = openQueue(data, table);
      const waiting = { posted: [] as Waiting[], client: [] as Waiting[], own: [] as Waiting[] };
      for (let turn = 0; turn < 1000; turn += 1) {
        const kind = oneOf(random, ['posted', 'client', 'client', 'own', 'own'] as const);
        const code = kind === 'own' ? OWN : oneOf(random, upTo(stopsAmong) === 0 ? [PAUSE, SHUTDOWN] : [RESUME, SAVE]);
        const limit = kind !== 'posted' && upTo(3) === 0 ? 1 + upTo(30) : 0;
        const isFull = waiting[kind].length === maxQueueSize;
        const action = upTo(10);
        if (action === 0) {
          now += upTo(12);
        } else if (action < 4) {
          const slot = queue.next();
          if (slot !== undefined) {
            assert.ok(table.change(slot, 'taken') && table.change(slot, 'done'));
            for (const lane of Object.values(waiting)) if (lane[0]?.slot === slot) lane.shift();
          }
        } else if (kind === 'posted') {
          assert.equal(queue.count(kind), waiting[kind].length);
          if (isFull) continue;
          const slot = table.claim(kind);
          table.open(slot, code, '{}');
          waiting[kind].push({ slot, code, number: table.numberOf(slot), expiresAt: Infinity });
        } else {
          const slot = link.enqueue(code, '', limit);
          assert.equal(slot === null, isFull);
          if (slot === null) continue;
          waiting[kind].push({ slot, code, number: table.numberOf(slot), expiresAt: limit > 0 ? now + limit : Infinity });
        }

        const isStop = ({ code: one }: Waiting): boolean => one === PAUSE || one === SHUTDOWN;
        const last = waiting.client.map((one) => isStop(one) && one.expiresAt > now).lastIndexOf(true);
        const first = waiting.client.slice(0, last + 1);
        const others = [...waiting.client.slice(last + 1), ...waiting.own].sort((one, other) => {
          return (one.number - other.number) | 0;
        });
        const order = [...waiting.posted, ...first, ...others].map(({ slot }) => slot);
        const found: number[] = [];
        queue.find((slot: number) => {
          found.push(slot);
          return false;
        });
        assert.deepEqual(found, order);
        assert.equal(queue.next(), order[0]);
        counts.states += 1;
        if (last >= 0 && waiting.own.length > 0) counts.stops += 1;
        if (waiting.client.some((one) => isStop(one) && one.expiresAt <= now)) counts.expiredStops += 1;
      }
    }
    assert.ok(counts.stops > STATES / 10 && counts.expiredStops > STATES / 20, JSON.stringify(counts));
  });
});
