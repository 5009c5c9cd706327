// The checkpoints of control-demo on disk: their names, which of them are kept, and which can be loaded.

import assert from 'node:assert/strict';
import { rmSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { describe, it } from 'node:test';
import { loadCheckpoint, saveCheckpoint } from '../../../demo/checkpoints.ts';
import { Learner } from '../../../demo/learner.ts';
import { UsageError } from '../../../shared/line/options.ts';
import { makeFolder } from '../../helpers.ts';
import { checkpointOf, pathsIn, stateAt } from './helpers.ts';

const STATE = stateAt(2, 5000);
const TEXT = checkpointOf(STATE, null);

describe('Checkpoints of control-demo', () => {
  it('have ascending names, even in the same millisecond and after the clock was set back', (t) => {
    const folder = makeFolder(t);
    const times = ['2026-12-31T23:59:59.998Z', '2026-12-31T23:59:59.998Z', '2020-01-01T00:00:00.000Z'];
    t.mock.method(Date, 'now', () => Date.parse(times.shift() ?? ''));
    const paths = [save(folder, 10), save(folder, 10), save(folder, 10)];
    const names = ['2026-12-31T23-59-59.998Z', '2026-12-31T23-59-59.999Z', '2027-01-01T00-00-00.000Z'];
    assert.deepEqual(paths, names.map((name) => join(folder, `${name}.json`)));
    assert.deepEqual(pathsIn(folder), paths);
  });

  it('are deleted from the oldest on, and nothing else is', (t) => {
    const folder = makeFolder(t);
    const others = ['notes.json', '2020-01-01.json', '2020-01-01T00-00-00.000Z.json.bak'];
    for (const name of others) writeFileSync(join(folder, name), '');
    const paths = Array.from({ length: 7 }, () => save(folder, 3));
    const left = [...others, ...paths.slice(-3).map((path) => basename(path))];
    assert.deepEqual(pathsIn(folder), left.sort().map((name) => join(folder, name)));
    rmSync(save(folder, 1));
    assert.deepEqual(pathsIn(folder).map((path) => basename(path)), others.sort());
    assert.equal(loadCheckpoint('latest', folder), null);
  });

  it('of version 0.12 continue with what they have learned', (t) => {
    const path = join(makeFolder(t), 'old.json');
    writeFileSync(path, JSON.stringify({ ...JSON.parse(TEXT), version: 2, random: [7, 8, 9, 10] }));
    assert.deepEqual(loadCheckpoint(path, '')?.learner.state, { ...STATE, random: 7 });
  });

  const UNKNOWN = 'it is not a checkpoint of control-demo 0.12 or later';
  const REFUSED: readonly [content: string, message: string][] = [
    ['', 'Unexpected end of JSON input'], ['{"name":"runtime-control","version":3}', UNKNOWN],
    [TEXT.replace('"version":3', '"version":1'), UNKNOWN], ['null', UNKNOWN],
  ];
  it('are refused if they are damaged or of another program, and the one before the latest is named', (t) => {
    const folder = makeFolder(t);
    const [good, bad] = [save(folder, 10), save(folder, 10)];
    for (const [content, message] of REFUSED) {
      writeFileSync(bad, content);
      for (const [file, hint] of [[bad, ''], ['latest', `; the checkpoint before it is '${good}'`]] as const) {
        assert.throws(() => loadCheckpoint(file, folder), new UsageError(`cannot load '${bad}': ${message}${hint}`));
      }
    }
  });
});

function save(folder: string, keep: number): string {
  return saveCheckpoint({ learner: new Learner(STATE), cause: null }, folder, keep);
}
