// The checkpoints of control-demo on disk: their names, which of them are kept, and what a crash leaves.

import assert from 'node:assert/strict';
import fs, {
  existsSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, truncateSync, writeFileSync,
} from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { basename, join } from 'node:path';
import { describe, it } from 'node:test';
import { Checkpoints, ignoredIn, latestIn, readCheckpoint } from '../../../demo/checkpoints.ts';
import { makeFolder } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { contentsOf, NAME } from './helpers.ts';
import type { TestContext } from 'node:test';

describe('Checkpoints', () => {
  const FOREIGN = [
    'notes.json', 'other.tmp', '2020-01-01.json', '2020-01-01T00-00-00.000Z.json.bak', 'x2020-01-01T00-00-00.000Z.json',
    '2020-01-01T00-00-00.000Z.json.swp.tmp', '2020-99-01T00-00-00.000Z.json',
  ];

  it('writes JSON to a file named after the time', (t) => {
    setClock(t, '2026-11-20T10:22:33.123Z');
    const folder = makeFolder(t);
    const path = new Checkpoints(folder, 10).save({ answer: 42 });
    assert.equal(path, join(folder, '2026-11-20T10-22-33.123Z.json'));
    assert.equal(readFileSync(path, 'utf8'), '{"answer":42}\n');
    assert.deepEqual(readCheckpoint(path), { answer: 42 });
  });

  it('uses ascending names, even in the same millisecond and when the clock is set back', (t) => {
    setClock(t, '2026-12-31T23:59:59.998Z');
    const folder = makeFolder(t);
    const checkpoints = new Checkpoints(folder, 100);
    const paths = Array.from({ length: 20 }, (_, number) => checkpoints.save({ number }));
    setClock(t, '2026-12-31T12:00:00.000Z');
    paths.push(checkpoints.save({ number: 20 }));
    assert.deepEqual(readdirSync(folder).map((name) => join(folder, name)).sort(), paths);
    assert.equal(new Set(paths).size, 21);
    assert.deepEqual(readCheckpoint(latestIn(folder) as string), { number: 20 });
  });

  it('finds the newest checkpoint also after the clock was set back by years', (t) => {
    setClock(t, '2026-12-31T00:00:00.000Z');
    const folder = makeFolder(t);
    const checkpoints = new Checkpoints(folder, 2);
    const early = [1, 2].map((number) => checkpoints.save({ number }));
    setClock(t, '2020-01-01T00:00:00.000Z');
    const late = [3, 4, 5].map((number) => {
      const path = checkpoints.save({ number });
      assert.equal(latestIn(folder), path);
      return path;
    });
    const left = [...late.slice(-2), ...early].map((path) => basename(path));
    assert.deepEqual(readdirSync(folder).sort(), left);
  });

  it('has no latest one if the folder does not exist or contains none', (t) => {
    const folder = makeFolder(t);
    assert.equal(latestIn(folder), null);
    assert.equal(latestIn(join(folder, 'missing')), null);
    writeFileSync(join(folder, 'file'), '');
    assert.throws(() => latestIn(join(folder, 'file')), { message: 'it is not a folder' });
  });

  it('ignores names more than a day later than now', (t) => {
    const folder = makeFolder(t);
    setClock(t, '2026-11-20T10:22:33.123Z');
    const planted = ['2026-11-21T10-22-33.124Z.json', '9999-12-31T23-59-59.999Z.json'];
    for (const name of planted) writeFileSync(join(folder, name), name);
    const why = `'${join(folder, planted[0] as string)}' and 1 more: the time in the name of a checkpoint must be`;
    const limit = 'at most a day later than now';
    assert.throws(() => latestIn(folder), { message: `it contains no checkpoint other than ${why} ${limit}` });
    assert.equal(ignoredIn(folder), `${why} ${limit}`);
    const checkpoints = new Checkpoints(folder, 2);
    const paths = [1, 2, 3].map((number) => checkpoints.save({ number }));
    assert.equal(basename(paths[0] as string), '2026-11-20T10-22-33.123Z.json');
    assert.equal(latestIn(folder), paths[2]);
    const left = [...paths.slice(-2).map((path) => basename(path)), ...planted];
    assert.deepEqual(readdirSync(folder).sort(), left);
    for (const name of planted) assert.equal(readFileSync(join(folder, name), 'utf8'), name);
  });

  it('has no notice without such names, and counts names up to a day later', (t) => {
    const folder = makeFolder(t);
    setClock(t, '2026-11-20T10:22:33.123Z');
    const name = '2026-11-21T10-22-33.123Z.json';
    writeFileSync(join(folder, name), '{}');
    assert.equal(ignoredIn(folder), null);
    assert.equal(latestIn(folder), join(folder, name));
    setClock(t, '2026-11-20T10:22:34.000Z');
    const path = new Checkpoints(folder, 1).save({ number: 1 });
    assert.deepEqual([latestIn(folder), readdirSync(folder)], [path, ['2026-11-21T10-22-33.124Z.json']]);
  });

  it('never follows a symbolic link', { skip: lacks('Unix') }, (t) => {
    const folder = makeFolder(t);
    const victim = join(makeFolder(t), 'victim');
    writeFileSync(victim, 'precious');
    setClock(t, '2026-11-20T10:22:33.123Z');
    const name = '2026-11-20T10-22-33.123Z.json';
    symlinkSync(victim, join(folder, name));
    symlinkSync(victim, join(folder, `${name}.tmp`));
    const checkpoints = new Checkpoints(folder, 1);
    checkpoints.prepare();
    assert.equal(readFileSync(victim, 'utf8'), 'precious');
    const path = checkpoints.save({ number: 1 });
    assert.equal(path, join(folder, name));
    assert.deepEqual([fs.lstatSync(path).isFile(), readCheckpoint(path)], [true, { number: 1 }]);
    assert.equal(readFileSync(victim, 'utf8'), 'precious');
  });

  it('keeps the newest checkpoints and never changes other files', (t) => {
    const folder = makeFolder(t);
    for (const name of FOREIGN) writeFileSync(join(folder, name), name);
    mkdirSync(join(folder, '2020-01-01T00-00-00.000Z.json'));
    const checkpoints = new Checkpoints(folder, 3);
    const paths = Array.from({ length: 7 }, (_, number) => checkpoints.save({ number }));
    const expected = [...FOREIGN, '2020-01-01T00-00-00.000Z.json', ...paths.slice(-3).map((path) => basename(path))];
    assert.deepEqual(readdirSync(folder).sort(), expected.sort());
    for (const name of FOREIGN) assert.equal(readFileSync(join(folder, name), 'utf8'), name);
    assert.equal(latestIn(folder), paths.at(-1));
  });

  const OLD = [0, 3600, 7200, 10_800, 14_400, 18_000]; // seconds
  const BURST = Array.from({ length: 8 }, (_, index) => 20_000 + index * 3);
  const ENDLESS = Array.from({ length: 40 }, (_, index) => 20_000 + index * 5);
  const SET_BACK = [7201, 7202, 7203, 7204, 7205, 7206, 7207];
  const RETAINED: readonly [what: string, keep: number, seconds: readonly number[], left: readonly number[]][] = [
    ['as many older ones as of a burst', 6, [...OLD, ...BURST], [...OLD.slice(-3), ...BURST.slice(-3)]],
    ['one more of a burst if the number is odd', 5, [...OLD, ...BURST], [...OLD.slice(-2), ...BURST.slice(-3)]],
    ['an older one and the newest', 2, [...OLD, ...BURST], [...OLD.slice(-1), ...BURST.slice(-1)]],
    ['only the newest of a burst if it keeps one', 1, [...OLD, ...BURST], BURST.slice(-1)],
    ['older ones in a burst of minutes', 6, [...OLD, ...ENDLESS], [...OLD.slice(-3), ...ENDLESS.slice(-3)]],
    ['all older ones if they are few', 6, [0, 3600, ...BURST], [0, 3600, ...BURST.slice(-4)]],
    ['the newest of a burst if nothing is older', 6, BURST, BURST.slice(-6)],
    ['the newest if the burst is small', 6, [...OLD, ...BURST.slice(0, 2)], [...OLD.slice(-4), ...BURST.slice(0, 2)]],
    ['the newest without a burst', 3, [0, 61, 122, 183, 244], [122, 183, 244]],
    ['the newest of a whole minute', 2, [0, 30, 60], [30, 60]],
    ['the oldest of more than a minute', 2, [0, 30, 60.001], [0, 60.001]],
    ['older ones after the clock was set back', 6, [...OLD, ...SET_BACK], [7200, 10_800, 14_400, 7205, 7206, 7207]],
  ];
  for (const [what, keep, seconds, left] of RETAINED) {
    it(`keeps ${what}`, (t) => {
      const folder = makeFolder(t);
      const checkpoints = new Checkpoints(folder, keep);
      for (const [index, number] of seconds.entries()) {
        setClock(t, new Date(Date.UTC(2026, 10, 20) + number * 1000).toISOString());
        assert.equal(checkpoints.save({ number }), latestIn(folder));
        assert.equal(readdirSync(folder).length, Math.min(index + 1, keep));
      }
      assert.deepEqual(numbersIn(folder), left);
    });
  }

  it('can keep a single checkpoint', (t) => {
    const folder = makeFolder(t);
    const checkpoints = new Checkpoints(folder, 1);
    checkpoints.save({ number: 1 });
    const path = checkpoints.save({ number: 2 });
    assert.deepEqual(contentsOf(folder), new Map([[basename(path), '{"number":2}\n']]));
  });

  it('ignores and deletes the leftovers of a crash', (t) => {
    const folder = makeFolder(t);
    const checkpoints = new Checkpoints(folder, 10);
    const complete = checkpoints.save({ number: 1 });
    writeFileSync(join(folder, '2099-01-01T00-00-00.000Z.json.tmp'), '{"numb');
    writeFileSync(join(folder, '2020-01-01T00-00-00.000Z.json.0123456789abcdef.tmp'), '{"numb');
    assert.equal(latestIn(folder), complete);
    const next = checkpoints.save({ number: 2 });
    assert.deepEqual(readdirSync(folder).sort(), [basename(complete), basename(next)]);
  });

  it('never leaves an incomplete checkpoint, whenever it crashes', (t) => {
    let crashes = 0;
    for (let crashed = true; crashed; crashes += 1) {
      const folder = makeFolder(t);
      const checkpoints = new Checkpoints(folder, 3);
      for (const number of [1, 2, 3]) checkpoints.save({ number });
      const restart = crashAt(t, crashes + 1);
      try {
        checkpoints.save({ number: 4 });
        crashed = false;
      } catch (error) {
        assert.equal((error as Error).message, 'crash');
      }
      restart();
      const numbers = numbersIn(folder);
      assert.ok(['1,2,3', '1,2,3,4', '2,3,4'].includes(String(numbers)), `crash ${crashes + 1} leaves ${numbers}`);
      checkpoints.save({ number: 5 });
      assert.deepEqual(numbersIn(folder), [...numbers, 5].slice(-3));
      assert.deepEqual(readdirSync(folder).filter((name) => !NAME.test(name)), []);
    }
    assert.ok(crashes > 3, `it was crashed at ${crashes} moments`);
  });

  it('leaves nothing behind when the disk is full', (t) => {
    const folder = makeFolder(t);
    const checkpoints = new Checkpoints(folder, 2);
    for (const number of [1, 2]) checkpoints.save({ number });
    const before = contentsOf(folder);
    const real = fs.writeFileSync;
    t.mock.method(fs, 'writeFileSync', (path: string, text: string) => {
      real(path, text.slice(0, 5));
      throw new Error('ENOSPC: no space left on device, write');
    });
    syncBuiltinESMExports();
    assert.throws(() => checkpoints.save({ number: 3 }), { message: /^ENOSPC/ });
    t.mock.restoreAll();
    syncBuiltinESMExports();
    assert.deepEqual(contentsOf(folder), before);
  });

  it('creates its folder, also after it was deleted', (t) => {
    const folder = join(makeFolder(t), 'a', 'b');
    const checkpoints = new Checkpoints(folder, 3);
    checkpoints.prepare();
    assert.deepEqual(readdirSync(folder), []);
    rmSync(folder, { recursive: true });
    const path = checkpoints.save({ number: 1 });
    assert.equal(latestIn(folder), path);
  });
});

// ───── Helpers ───────────────────────────────────────────────────────────────────────────────────────────────────

/** The numbers in the checkpoints of a folder; throws if a checkpoint is incomplete. */
function numbersIn(folder: string): number[] {
  const names = readdirSync(folder).filter((name) => NAME.test(name)).sort();
  return names.map((name) => (readCheckpoint(join(folder, name)) as { number: number }).number);
}

function setClock(t: TestContext, time: string): void {
  t.mock.restoreAll(); // the end of the test would restore a second mock to the first
  t.mock.method(Date, 'now', () => Date.parse(time));
}

/**
 * Simulates a crash of the machine: a write at that moment is truncated, and all later changes of the disk fail.
 * Returns a function that ends the simulation. What was not flushed before the crash is truncated, too.
 */
function crashAt(t: TestContext, moment: number): () => void {
  const unflushed = new Set<string>();
  const opened = new Map<unknown, string>(); // paths by descriptor
  let changes = 0;
  let isInside = false; // Node implements some of these with others
  for (const name of ['writeFileSync', 'renameSync', 'rmSync', 'openSync', 'fsyncSync'] as const) {
    const real = fs[name] as (...all: unknown[]) => unknown;
    t.mock.method(fs, name, (...all: unknown[]) => {
      if (isInside) return real(...all);
      changes += 1;
      if (changes > moment || (changes === moment && name !== 'writeFileSync')) throw new Error('crash');
      const [first, second, options] = all as [string, string, { flush?: boolean }?];
      if (name === 'writeFileSync' && options?.flush !== true) unflushed.add(first);
      if (name === 'renameSync' && unflushed.delete(first)) unflushed.add(second);
      if (name === 'fsyncSync') unflushed.delete(opened.get(first) ?? '');
      isInside = true;
      try {
        const result = real(...(changes === moment ? [first, second.slice(0, 5)] : all));
        if (name === 'openSync') opened.set(result, first);
        return result;
      } finally {
        isInside = false;
        if (changes === moment) throw new Error('crash');
      }
    });
  }
  syncBuiltinESMExports();
  return () => {
    t.mock.restoreAll();
    syncBuiltinESMExports();
    for (const path of unflushed) if (existsSync(path)) truncateSync(path, 5);
  };
}
