// Brings the bugs in bin/track-record.md back, one after the other, to see that their tests fail:
// `node bin/dev/run.mjs mends`. bin/dev/mends/table.ts has the edits that undo the mends.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { tryRead } from '../run/processes.ts';
import { describeOptions, EXIT, parseOptions, run, UsageError } from '../shared/cli.ts';
import { PAGE, readRows, revert, type Row, rowOf } from './mends/record.ts';
import { type Mend, MENDS } from './mends/table.ts';

const OPTIONS = {
  check: { type: 'boolean', help: 'only check that each mend can be undone in these sources' },
} as const;

const HELP = `
Usage: node bin/dev/run.mjs mends [--check] [WORD ...]

Undoes each mend in ${PAGE}, in a copy of this folder, and runs the test of the bug, which must fail. Before
that, all these tests must pass. With words, only the bugs whose rows contain one of them. Takes about ten minutes. The
tests of control-run and of sockets need Linux and root.

Options:
${describeOptions(OPTIONS)}

Exit codes: 0 all tests fail as expected, 1 a test passes nevertheless, or a mend cannot be undone, 2 usage error.
`;

const LEFT_OUT = ['.git', '.dev', '.test', 'dist', 'node_modules', 'states'];
const MARK = 'MENDS'; // a variable, whose value is the path of the copy
const START_MS = 30_000; // for a test to start; then it may take three times as long as before, or else it hangs
const CLOSE_MS = 1000; // for output that a process without the mark keeps open
const ALL_LIMIT_MS = 600_000; // for all tests of the unmodified copy

/** A mend and its row. */
type Case = Mend & { row: Row };

interface Result { output: string; isLate?: boolean }

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
  const { red, skipped } = await tryAll(applicable, copy());
  console.log(`${red} of ${cases.length} tests fail as expected${skipped === 0 ? '' : `, ${skipped} are skipped`}`);
  return red + skipped === cases.length ? EXIT.DONE : EXIT.REFUSED;
}

/** Below .dev/, because other users, as whom tests run programs, can reach this folder. */
function copy(): string {
  mkdirSync('.dev', { recursive: true });
  const folder = mkdtempSync(resolve('.dev/mends-'));
  process.on('exit', () => {
    killAll(folder);
    rmSync(folder, { recursive: true });
  });
  for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(name, () => process.exit(EXIT.REFUSED));
  for (const name of readdirSync('.').filter((one) => !LEFT_OUT.includes(one))) {
    cpSync(name, `${folder}/${name}`, { recursive: true });
  }
  symlinkSync(resolve('node_modules'), `${folder}/node_modules`);
  return folder;
}

/** Returns how many tests fail as expected, and how many need something that this machine lacks. */
async function tryAll(cases: readonly Case[], folder: string): Promise<{ red: number; skipped: number }> {
  const fault = await build(folder);
  if (fault !== '') throw new Error(fault);
  console.error(`${cases.length} tests of the unmodified sources`);
  const { output } = await test(cases.map(({ row }) => row), folder, ALL_LIMIT_MS);
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
    for (const [path, text] of revert(one)) writeFileSync(`${folder}/${path}`, text);
    const start = performance.now();
    const errors = await build(folder);
    const result = errors === '' ? await test([row], folder, START_MS + 3 * duration) : { output: errors };
    const isRed = result.isLate === true ? one.hangs === true : durationIn(result.output, '✖', row) !== null;
    if (isRed) red += 1;
    else console.error(result.output);
    const miss = result.isLate === true ? 'TOO SLOW' : 'STILL GREEN';
    const verdict = isRed ? 'red as expected' : errors === '' ? miss : 'DOES NOT BUILD';
    print(one, `${verdict} (${((performance.now() - start) / 1000).toFixed()} s)`);
    for (const [path] of edits) cpSync(path, `${folder}/${path}`);
  }
  return { red, skipped };
}

function print({ row }: Case, verdict: string): void {
  console.log(`${row.version.padEnd(6)} ${verdict}: ${row.bug}`);
}

/** Returns what is wrong. The tests run programs in dist/. */
async function build(folder: string): Promise<string> {
  return (await execute(['bin/dev/build.mjs'], folder, ALL_LIMIT_MS)).output;
}

function test(rows: readonly Row[], folder: string, limitMs: number): Promise<Result> {
  const paths = new Set(rows.map(({ test: { path } }) => path));
  const patterns = rows.map(({ test: { title } }) => `--test-name-pattern=^${title.replaceAll(/[^\w ]/g, '\\$&')}$`);
  return execute(['bin/test/run.mjs', ...paths, ...patterns], folder, limitMs);
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

/** Runs Node in the copy, and ends what it leaves running, as some bugs do. */
async function execute(args: readonly string[], folder: string, limitMs: number): Promise<Result> {
  const env = { ...process.env, [MARK]: folder };
  const child = spawn(process.execPath, args, { cwd: folder, detached: true, stdio: ['ignore', 'pipe', 'pipe'], env });
  const result: Result = { output: '' };
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => (result.output += text));
  }
  const closed = once(child, 'close');
  const timer = setTimeout(() => {
    result.isLate = true;
    killAll(folder, child.pid);
  }, limitMs);
  await once(child, 'exit');
  clearTimeout(timer);
  killAll(folder, child.pid);
  await Promise.race([closed, sleep(CLOSE_MS)]);
  return result;
}

/** Kills a process group, and on Linux also the processes that have inherited the mark. */
function killAll(folder: string, group?: number): void {
  const pids = process.platform === 'linux' ? readdirSync('/proc').filter((name) => /^\d/.test(name)).map(Number) : [];
  const marked = pids.filter((pid) => tryRead(`/proc/${pid}/environ`).split('\0').includes(`${MARK}=${folder}`));
  for (const pid of group === undefined ? marked : [-group, ...marked]) {
    try {
      process.kill(pid, 'SIGKILL');
    } catch {} // it has ended
  }
}

await run('mends', main);
