// Brings the bugs of bin/track-record.md back, one after the other, to see that their tests fail:
// `node bin/dev/run.mjs mends`. bin/dev/trials/table.ts has the edits that undo the mends.

import { cpSync, writeFileSync } from 'node:fs';
import { describeOptions, EXIT, parseOptions, run, UsageError } from '../shared/cli.ts';
import { Copy, type Result } from './trials/copy.ts';
import { BUGS, readRows, revert, type Row, rowOf } from './trials/record.ts';
import { type Mend, MENDS } from './trials/table.ts';

const OPTIONS = {
  check: { type: 'boolean', help: 'only check that each mend can be undone in these sources' },
} as const;

const HELP = `
Usage: node bin/dev/run.mjs mends [--check] [WORD ...]

Undoes the mends of the bugs in ${BUGS}, each in a copy of this folder, and runs the test of the
bug, which must fail. Before that, all these tests must pass. With words, only the bugs that contain one of them. Takes
about ten minutes. The tests of control-run and of sockets need Linux and root.

Options:
${describeOptions(OPTIONS)}

Exit codes: 0 all tests fail as expected, 1 a test passes nevertheless, or a mend cannot be undone, 2 usage error.
`;

const START_MS = 30_000; // for a test to start; then it may take three times as long as before, or else it hangs
const ALL_LIMIT_MS = 600_000; // to build the copy, and for all tests of the unmodified one

/** A mend and its row. */
type Case = Mend & { row: Row };

async function main(): Promise<number> {
  const parsed = parseOptions(OPTIONS, HELP, Infinity);
  if (parsed === null) return EXIT.DONE;
  const { values: { check = false }, positionals: words } = parsed;
  const rows = readRows();
  const cases = MENDS.map((mend): Case => ({ ...mend, row: rowOf(mend, rows) })).filter(({ row }) => {
    const text = `${row.version} ${row.bug} ${row.test.path} ${row.test.title}`;
    return words.length === 0 || words.some((word) => text.includes(word));
  });
  if (cases.length === 0) throw new UsageError(`no bug that can be brought back has ${words.join(' or ')} in its row`);
  const isApplicable = (one: Case): boolean => {
    try {
      return revert(one).size > 0;
    } catch (error) {
      print(one, `DOES NOT APPLY: ${(error as Error).message}`);
      return false;
    }
  };
  const applicable = cases.filter(isApplicable);
  const isComplete = applicable.length === cases.length;
  if (check) {
    console.log(`${applicable.length} of ${cases.length} mends can be undone`);
    return isComplete ? EXIT.DONE : EXIT.REFUSED;
  }
  const { red, skipped } = await tryAll(applicable, new Copy());
  console.log(`${red} of ${cases.length} tests fail as expected${skipped === 0 ? '' : `, ${skipped} are skipped`}`);
  return red + skipped === cases.length ? EXIT.DONE : EXIT.REFUSED;
}

/** Returns how many tests fail as expected, and how many need something that this machine lacks. */
async function tryAll(cases: readonly Case[], copy: Copy): Promise<{ red: number; skipped: number }> {
  const built = await copy.build(ALL_LIMIT_MS);
  if (built.code !== 0) throw new Error(built.output);
  console.error(`${cases.length} tests of the unmodified sources`);
  const { output } = await testRows(cases.map(({ row }) => row), copy, ALL_LIMIT_MS);
  let [red, skipped] = [0, 0];
  for (const one of cases) {
    const { row, edits } = one;
    const duration = durationIn(output, '✔', row);
    if (duration === null) {
      const needs = /^ *﹣ .*# (.*)$/m.exec(lineIn(output, '﹣', row))?.[1];
      if (needs !== undefined) skipped += 1;
      const fault = lineIn(output, '✖', row) === '' ? 'DOES NOT RUN' : 'FAILS';
      print(one, needs === undefined ? `${fault} in the unmodified sources` : `skipped (${needs})`);
      continue;
    }
    console.error(`undoing: ${row.bug}`);
    for (const [path, text] of revert(one)) writeFileSync(`${copy.folder}/${path}`, text);
    const start = performance.now();
    const rebuilt = await copy.build(ALL_LIMIT_MS);
    const isBuilt = rebuilt.code === 0;
    const result = isBuilt ? await testRows([row], copy, START_MS + 3 * duration) : rebuilt;
    const isRed = result.isLate ? isBuilt && one.hangs === true : durationIn(result.output, '✖', row) !== null;
    if (isRed) red += 1;
    else console.error(result.output);
    const miss = result.isLate ? 'TOO SLOW' : 'STILL GREEN';
    const verdict = isRed ? 'red as expected' : isBuilt ? miss : 'DOES NOT BUILD';
    print(one, `${verdict} (${((performance.now() - start) / 1000).toFixed()} s)`);
    for (const [path] of edits) cpSync(path, `${copy.folder}/${path}`);
  }
  return { red, skipped };
}

function print({ row }: Case, verdict: string): void {
  console.log(`${row.version.padEnd(6)} ${verdict}: ${row.bug}`);
}

function testRows(rows: readonly Row[], copy: Copy, limitMs: number): Promise<Result> {
  const paths = new Set(rows.map(({ test: { path } }) => path));
  const patterns = rows.map(({ test: { title } }) => `--test-name-pattern=^${title.replaceAll(/[^\w ]/g, '\\$&')}$`);
  return copy.test([...paths, ...patterns], limitMs);
}

/** Returns how long a test took, in milliseconds; null if the output has no such verdict on it. */
function durationIn(output: string, verdict: '✔' | '✖', row: Row): number | null {
  const line = lineIn(output, verdict, row);
  return line === '' ? null : parseFloat(line.slice(`${verdict} ${row.test.title} (`.length));
}

/** Returns the line with a verdict on a test, or an empty text. */
function lineIn(output: string, verdict: '✔' | '✖' | '﹣', { test: { title } }: Row): string {
  return output.split('\n').map((one) => one.trim()).find((one) => one.startsWith(`${verdict} ${title} (`)) ?? '';
}

await run('mends', main);
