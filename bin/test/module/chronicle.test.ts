// What a program does, what its clients are told and what its log has agree, whatever happens: see chronicle.ts.

import { appendFileSync, existsSync, renameSync, truncateSync } from 'node:fs';
import { describe, it } from 'node:test';
import { lacks } from '../needs.ts';
import { LIMIT, until } from '../wait.ts';
import { chronicle } from './chronicle.ts';
import { FILLER } from './log.ts';

describe('A program, its clients and its log agree', { timeout: 3 * LIMIT.timeout, concurrency: 3 }, () => {
  it('if nothing happens', (t) => chronicle(t, {
    isIdle: true,
    least: {
      'waited in vain': 1, 'holds ended': 1, withdrawn: 5,
      servers: 4, TimeoutError: 5, RangeError: 5, 'equal tags': 10, 'in time': 10, overtaken: 2, undelivered: 3,
    },
  }));

  it('if the program is often busy for more than a second, and its numbers pass 2²⁸', (t) => chronicle(t, {
    isBusy: true, first: 2 ** 28 - 20, least: { 'in time': 10, undelivered: 8 },
  }));

  it('if five of its server threads die', (t) => chronicle(t, { deaths: 5, least: { deaths: 5 } }));

  it('if it is killed, again and again', (t) => chronicle(t, { kills: 2 }));

  it('if its log is renamed, again and again, and its numbers pass 2³²', { skip: lacks('Unix') }, async (t) => {
    const old: string[] = [];
    await chronicle(t, {
      first: 2 ** 32 - 20,
      disturb: (path) => {
        if (!existsSync(path)) return true;
        old.push(`${path}.old${old.length}`);
        renameSync(path, old.at(-1) as string);
        return old.length < 15;
      },
      files: (path) => [...old.splice(0), path],
    });
  });

  it('if its log is shared, and renamed when large, and its numbers pass 2³¹', { skip: lacks('Unix') }, async (t) => {
    const old: string[] = [];
    await chronicle(t, {
      programs: 2,
      first: 2 ** 31 - 20,
      disturb: async (path) => {
        if (!existsSync(path)) return true;
        appendFileSync(path, FILLER);
        await until(() => existsSync(`${path}.1`));
        old.push(`${path}.old${old.length}`);
        renameSync(`${path}.1`, old.at(-1) as string);
        return old.length < 8;
      },
      files: (path) => [...old.splice(0), path],
    });
  });

  it('if its log is truncated, again and again: it has whole lines', { skip: lacks('Unix') }, async (t) => {
    let cuts = 0;
    await chronicle(t, {
      mayLoseLines: true,
      disturb: (path) => {
        if (!existsSync(path)) return true;
        truncateSync(path);
        cuts += 1;
        return cuts < 20;
      },
    });
  });
});
