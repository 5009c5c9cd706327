// The pages that cite tests: what bin/guarantees.md promises and what bin/track-record.md tells has a test each.

import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, it } from 'node:test';
import { citationsIn, PAGE, readRows, revert, rowOf } from '../dev/trials/record.ts';
import { MENDS } from '../dev/trials/table.ts';

const GUARANTEES = 'bin/guarantees.md';
const MAX_LINES = 60;
/** A title in the source of a test. */
const TITLE = /\b(?:it|test|describe)(?:\.\w+)?\(\s*(['"`])((?:\\.|(?!\1)[^\\])*)\1/gs;

describe('bin/guarantees.md', () => {
  it(`has at most ${MAX_LINES} lines`, () => {
    const { length } = readFileSync(GUARANTEES, 'utf8').trimEnd().split('\n');
    assert.ok(length <= MAX_LINES, `${GUARANTEES} has ${length} lines`);
  });

  it('ends each row and item with a test that there is', () => {
    const page = readFileSync(GUARANTEES, 'utf8');
    const promises = [...page.matchAll(/^- .*(?:\n +\S.*)*|^\| .*$(?!\n\|-)/gm)];
    assert.ok(promises.length > 0);
    for (const [promise] of promises) {
      const text = promise.replaceAll(/\s+/g, ' ');
      const [last] = /\*[^*]+\*[.)]*(?: \|)?$/.exec(text) ?? [''];
      assert.equal(citationsIn(last).length, 1, `no *FILE: TITLE* at the end of: ${text}`);
    }
    assertCited(page);
  });
});

describe(PAGE, () => {
  it('has a test that there is in each row, the newest first', () => {
    const versions = readRows().map(({ version }) => version);
    const sorted = [...versions].sort((one, other) => other.localeCompare(one, 'en', { numeric: true }));
    assert.deepEqual(versions, sorted);
    assertCited(readFileSync(PAGE, 'utf8'));
  });

  it('has the rows of all mends that can be undone, and says how many', () => {
    const rows = readRows();
    for (const mend of MENDS) {
      rowOf(mend, rows);
      for (const [path, text] of revert(mend)) assert.notEqual(text, readFileSync(path, 'utf8'), mend.bug);
    }
    assert.equal(new Set(MENDS.map(({ bug }) => bug)).size, MENDS.length);
    assert.ok(readFileSync(PAGE, 'utf8').includes(`For ${MENDS.length} of the ${rows.length} rows`), `${MENDS.length}`);
  });
});

/** Fails unless all tests are there that a page cites. */
function assertCited(page: string): void {
  const text = page.replaceAll(/\s+/g, ' ').replace(/\*file: title\*/i, ''); // what a citation is
  const cited = citationsIn(text);
  const alike = text.match(/\*[^*\s][^*]*: [^*]+\*/g) ?? [];
  assert.deepEqual(alike.filter((one) => citationsIn(one).length === 0), [], 'FILE is a path without .test.ts');
  for (const { path, title } of cited) {
    assert.ok(existsSync(path), `'${title}' is cited from ${path}, which is missing`);
    const titles = [...readFileSync(path, 'utf8').matchAll(TITLE)].map(([, , literal = '']) => {
      return literal.replaceAll(/\\(.)/g, '$1');
    });
    titles.push(...path.endsWith('/transcripts.test.ts') ? scenesIn(dirname(path)) : []);
    assert.ok(titles.includes(title), `${path} has no test or suite '${title}'`);
    assert.ok(!title.includes('${'), `the title has a variable part, so its suite must be cited: '${title}'`);
  }
}

/** The titles of the scenes of a folder's transcripts. */
function scenesIn(folder: string): string[] {
  const names = readdirSync(folder).filter((name) => name.endsWith('.txt'));
  return names.flatMap((name) => readFileSync(join(folder, name), 'utf8').match(/(?<=^# ).*/gm) ?? []);
}
