// What bin/guarantees.md promises has a test each, and so have the bugs of bin/track-record.md.

import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, it } from 'node:test';
import { BUGS, citationsIn, readRows, revert, rowOf } from '../dev/trials/record.ts';
import { MENDS } from '../dev/trials/table.ts';

const GUARANTEES = 'bin/guarantees.md';
const PROMISES = 'bin/test/promises.txt';
const MAX_LINES = 60;
/** A title in the source of a test. */
const TITLE = /\b(?:it|test|describe)(?:\.\w+)?\(\s*(['"`])((?:\\.|(?!\1)[^\\])*)\1/gs;

describe('bin/guarantees.md', () => {
  it(`has at most ${MAX_LINES} lines`, () => {
    const { length } = readFileSync(GUARANTEES, 'utf8').trimEnd().split('\n');
    assert.ok(length <= MAX_LINES, `${GUARANTEES} has ${length} lines`);
  });

  it('names the files of the tests of each promise, which are there', () => {
    const tests = readFileSync(PROMISES, 'utf8');
    const [, ...entries] = tests.split('\n\n');
    const promises = [...readFileSync(GUARANTEES, 'utf8').matchAll(/^\| (.*) \| ([^|]*) \|$(?!\n\|-)/gm)];
    assert.ok(promises.length > 20 && promises.length === entries.length);
    for (const [index, [, promise = '', files]] of promises.entries()) {
      const [beginning = '', ...cited] = entries[index]?.trimEnd().split('\n') ?? [];
      assert.ok(promise.startsWith(beginning), `not '${beginning}': ${promise}`);
      const paths = cited.map((line) => /^ {2}\*([a-z/]+): /.exec(line)?.[1]);
      assert.equal([...new Set(paths)].join(', '), files, promise);
    }
    assertCited(tests);
  });
});

describe(BUGS, () => {
  it('has a test that there is for each bug, the newest first', () => {
    const versions = readRows().map(({ version }) => version);
    const sorted = [...versions].sort((one, other) => other.localeCompare(one, 'en', { numeric: true }));
    assert.deepEqual(versions, sorted);
    assertCited(readFileSync(BUGS, 'utf8'));
  });

  it('has all bugs that can be brought back, and the page says how many', () => {
    const rows = readRows();
    for (const mend of MENDS) {
      rowOf(mend, rows);
      for (const [path, text] of revert(mend)) assert.notEqual(text, readFileSync(path, 'utf8'), mend.bug);
    }
    assert.equal(new Set(MENDS.map(({ bug }) => bug)).size, MENDS.length);
    const page = readFileSync('bin/track-record.md', 'utf8').replaceAll(/\s+/g, ' ');
    assert.ok(page.includes(`For ${MENDS.length} of the ${rows.length} bugs`), `${MENDS.length} of ${rows.length}`);
  });
});

/** Fails unless all tests are there that a text cites. */
function assertCited(text: string): void {
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
