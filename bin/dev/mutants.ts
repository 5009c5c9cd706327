// Makes small random errors in the sources, one after the other, to see which ones no test notices:
// `node bin/dev/run.mjs mutants SEED COUNT`.

import { transformSync } from 'esbuild';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describeOptions, EXIT, parseInteger, parseOptions, run, UsageError } from '../shared/cli.ts';
import { Copy, type Verdict } from './trials/copy.ts';
import { type Edit, editsOf } from './trials/edits.ts';

const MAX = 100_000;

const OPTIONS = {
  limit: {
    type: 'string', value: 'SECONDS', default: '120', help: 'for the tests of one mutant (default: 120)',
    parse: (option: string, text: string) => parseInteger(option, text, 1, MAX),
  },
  only: {
    type: 'string', value: 'N,N', help: 'only the mutants with these numbers',
    parse: (option: string, text: string) => text.split(',').map((one) => parseInteger(option, one, 1, MAX)),
  },
  list: { type: 'boolean', help: 'only print the mutants' },
} as const;

const HELP = `
Usage: node bin/dev/run.mjs mutants [--limit SECONDS] [--only N,N] [--list] SEED COUNT [WORD ...]

Changes one thing in one source, in a copy of this folder, and runs the tests that should notice, until one fails: the
mutant is killed. One that survives shows what no test checks, or makes no difference. The same sources and SEED give
the same mutants. With words, only in sources whose paths contain one of them. All tests must pass before, and nothing
else may run on the machine; the tests of control-run need Linux and root.

Options:
${describeOptions(OPTIONS)}

Exit codes: 0 all mutants are killed, 1 not all, or none was tried, 2 usage error.
`;

const BUILD_LIMIT_MS = 600_000;

/** The words in the paths of the tests that should notice a change of a source, best first: the first prefix counts. */
const TESTS: readonly (readonly [prefix: string, ...words: string[]])[] = [
  ['control.ts', 'control.test', 'module/chronicle', 'module/'],
  ['bin/shared/cli.ts', 'client/transcripts', 'run/refusals', 'board/commandline', 'via/options',
    'client/', 'kbctl/'],
  ['bin/shared/commands', 'console', 'client/transcripts', 'client/completion', 'kbctl.test'],
  ['bin/shared/client.ts', 'tools/unreachable', 'client/transcripts', 'client/targets', 'client/'],
  ['bin/shared/declared', 'client/transcripts', 'client/asks', 'console/transcripts', 'board/page', 'client/completion',
    'mcp/transcripts'],
  ['bin/shared/describe', 'view.test', 'client/transcripts', 'client/asks', 'console', 'mcp/transcripts'],
  ['bin/shared/files', 'history.test', 'console/history', 'client/targets', 'run/state', 'run/log', 'run/ask'],
  ['bin/shared/fleet', 'client/folder', 'board/folder', 'client/table', 'mcp/transcripts', 'via/tools'],
  ['bin/shared/folder', 'client/transcripts', 'client/folder', 'client/here', 'client/names', 'board/folder',
    'client/table', 'via/'],
  ['bin/shared/log', 'client/transcripts', 'client/log', 'via/log', 'via/since', 'history.test', 'run/log', 'board/api',
    'mcp/transcripts'],
  ['bin/shared/names', 'client/transcripts', 'client/names', 'client/here', 'client/targets', 'client/folder',
    'board/folder', 'via/'],
  ['bin/shared/system', 'client/transcripts', 'client/conditions', 'client/watch', 'console/status',
    'board/systems', 'mcp/transcripts', 'client/', 'kbctl/'],
  ['bin/shared/terminal', 'kbctl/program', 'console/terminal', 'client/table', 'run/terminal'],
  ['bin/shared/text', 'view.test', 'client/transcripts', 'client/log', 'mcp/hostile', 'via/hostile', 'client/'],
  ['bin/shared/via', 'via/'],
  ['bin/shared/view', 'view.test', 'client/table', 'client/transcripts', 'board/systems', 'mcp/transcripts',
    'board/page'],
  ['bin/client', 'tools/client.test', 'client/transcripts', 'client/', 'history.test', 'via/tools'],
  ['bin/console', 'console.test', 'console/transcripts', 'console/', 'history.test', 'via/tools'],
  ['bin/kbctl', 'kbctl.test', 'kbctl/', 'via/tools'],
  ['bin/board', 'board.test', 'board/api', 'board/systems', 'board/', 'via/tools'],
  ['bin/mcp', 'mcp.test', 'mcp/transcripts', 'mcp/', 'via/tools', 'history.test'],
  ['bin/run/ask', 'run/ask'],
  ['bin/run/channel', 'run/channel', 'run/ask', 'run/python', 'run/'],
  ['bin/run/processes', 'run/processes', 'run/signals', 'run/continued', 'run/'],
  ['bin/run/state', 'run/state', 'run/log', 'run/'],
  ['bin/run', 'tools/run.test', 'run/saves', 'run/life', 'run/release', 'run/state', 'run/'],
  ['bin/demo', 'tools/demo'],
];

/** Tests that take long run last. */
const SLOW = ['mcp/hostile', 'completion', 'board/page', 'board/attacks', 'via/hostile', 'module/attacks',
  'run/killed', 'run/python', 'via/link'];

interface Mutant extends Edit {
  path: string;
  line: number;
  /** The line as the mutant has it. */
  shown: string;
}

async function main(): Promise<number> {
  const parsed = parseOptions(OPTIONS, HELP, Infinity);
  if (parsed === null) return EXIT.DONE;
  const { values: { limit, only, list = false }, positionals: [seed = '', countText = '', ...words] } = parsed;
  const count = parseInteger('COUNT', countText, 1, MAX);
  const copy = new Copy();
  const isChosen = (path: string): boolean => words.length === 0 || words.some((word) => path.includes(word));
  const paths = sourcesIn(copy.folder).filter(isChosen);
  if (paths.length === 0) throw new UsageError(`no path of a source contains ${words.join(' or ')}`);
  const durations: number[] = [];
  let [number, tried] = [0, 0];
  for await (const mutant of mutants(seed, count, paths, copy)) {
    number += 1;
    if (only !== undefined && number > Math.max(...only)) break;
    if (only?.includes(number) === false) continue;
    tried += 1;
    const name = `${String(number).padStart(3)}  ${mutant.path}:${mutant.line}  ${mutant.kind}: ${mutant.shown}`;
    if (list) {
      console.log(name);
      continue;
    }
    const start = performance.now();
    const verdict = await tryMutant(mutant, copy, limit);
    const seconds = (performance.now() - start) / 1000;
    if (verdict.kind === 'killed') durations.push(seconds);
    console.log(`${name}\n     after ${seconds.toFixed()} s: ${describeVerdict(verdict)}`);
  }
  if (list) return EXIT.DONE;
  const median = durations.sort((one, other) => one - other)[Math.floor(durations.length / 2)] ?? 0;
  console.log(`${durations.length} of ${tried} killed, half of them within ${median.toFixed()} s`);
  return tried > 0 && durations.length === tried ? EXIT.DONE : EXIT.REFUSED;
}

function sourcesIn(folder: string): string[] {
  const isSource = (path: string): boolean => path.endsWith('.ts') && !/^bin\/(test|dev|recipes)\//.test(path);
  return ['control.ts', ...pathsIn(folder, 'bin').filter(isSource)].filter((path) => testsFor(path, folder).length > 0);
}

function pathsIn(folder: string, room: string): string[] {
  const paths = readdirSync(join(folder, room), { recursive: true, encoding: 'utf8' });
  return paths.map((path) => `${room}/${path.replaceAll('\\', '/')}`).sort();
}

/** The tests that should notice, in the order in which they start: one with the name of the source first. */
function testsFor(source: string, folder: string): string[] {
  const [, ...words] = TESTS.find(([prefix]) => source.startsWith(prefix)) ?? [''];
  const tests = ['control.test.ts', ...pathsIn(folder, 'bin/test').filter((path) => path.endsWith('.test.ts'))];
  const found = [...new Set(words.flatMap((word) => tests.filter((path) => path.includes(word))))];
  const name = /(\w+?)s?\.ts$/.exec(source)?.[1] ?? '';
  const isNamesake = new RegExp(`/${name}s?\\.test`);
  const rankOf = (path: string): number => {
    if (isNamesake.test(path)) return 0;
    return SLOW.some((word) => path.includes(word)) ? 2 : 1;
  };
  return found.sort((one, other) => rankOf(one) - rankOf(other));
}

/** Different ones, whose types are right, and that are not the same program. */
async function* mutants(seed: string, count: number, paths: readonly string[], copy: Copy): AsyncGenerator<Mutant> {
  const unchanged = await copy.check(BUILD_LIMIT_MS);
  if (unchanged.code !== 0) throw new Error(unchanged.output);
  const random = randomOf(seed);
  const tried = new Set<string>();
  const texts = new Map(paths.map((path) => [path, readFileSync(join(copy.folder, path), 'utf8')]));
  const lengths = paths.map((path) => texts.get(path)!.split('\n').filter(isCode).length);
  const total = lengths.reduce((sum, one) => sum + one, 0);
  let found = 0;
  for (let draws = 0; found < count && draws < 100 * count; draws += 1) {
    let left = random() * total; // a file by its share of the lines, then a kind of edit, then one of these
    const path = paths[lengths.findIndex((one) => (left -= one) < 0)]!;
    const source = texts.get(path)!;
    const edits = editsOf(source);
    const kind = pick([...new Set(edits.map((one) => one.kind))], random);
    const edit = pick(edits.filter((one) => one.kind === kind), random);
    const key = `${path} ${edit?.start} ${edit?.text}`;
    if (edit === undefined || tried.has(key)) continue;
    tried.add(key);
    if (!isProgram(source, edit)) continue;
    writeFileSync(join(copy.folder, path), apply(source, edit));
    const { code } = await copy.check(BUILD_LIMIT_MS);
    writeFileSync(join(copy.folder, path), source);
    if (code !== 0) continue;
    found += 1;
    yield describe(path, source, edit);
  }
  if (found < count) console.error(`${found} of ${count} mutants found`);
}

function isCode(line: string): boolean {
  return !/^\s*(\/\/|\*|\/\*|$)/.test(line);
}

function apply(source: string, { start, end, text }: Edit): string {
  return source.slice(0, start) + text + source.slice(end);
}

/** Whether it compiles, to something else than before. */
function isProgram(source: string, edit: Edit): boolean {
  const compile = (code: string): string => {
    return transformSync(code, { loader: 'ts', minifyWhitespace: true, target: 'node20', logLevel: 'silent' }).code;
  };
  try {
    return compile(source) !== compile(apply(source, edit));
  } catch {
    return false;
  }
}

function describe(path: string, source: string, edit: Edit): Mutant {
  const from = source.lastIndexOf('\n', edit.start) + 1;
  const to = source.indexOf('\n', edit.end);
  const changed = source.slice(from, edit.start) + edit.text + source.slice(edit.end, to);
  const shown = edit.text === ';' ? `without ${source.slice(edit.start, edit.end)}` : changed;
  const line = source.slice(0, edit.start).split('\n').length;
  return { ...edit, path, line, shown: shown.replaceAll(/\s+/g, ' ').trim() };
}

async function tryMutant(mutant: Mutant, copy: Copy, limitS: number): Promise<Verdict> {
  const path = join(copy.folder, mutant.path);
  const source = readFileSync(path, 'utf8');
  writeFileSync(path, apply(source, mutant));
  const { code, output } = await copy.build(BUILD_LIMIT_MS);
  const tests = testsFor(mutant.path, copy.folder);
  const verdict: Verdict = code === 0
    ? await copy.testUntilFailure(tests, 1000 * limitS)
    : { kind: 'unknown', why: output };
  writeFileSync(path, source);
  return verdict;
}

function describeVerdict(verdict: Verdict): string {
  if (verdict.kind === 'survived') return 'SURVIVED';
  return verdict.kind === 'killed' ? `killed by ${verdict.by.slice(0, 150)}` : `NO VERDICT: ${verdict.why}`;
}

/** Numbers from 0 to 1, the same for the same seed (mulberry32). */
function randomOf(seed: string): () => number {
  let state = [...seed].reduce((sum, one) => (Math.imul(sum, 31) + one.charCodeAt(0)) | 0, 7);
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

function pick<Item>(list: readonly Item[], random: () => number): Item | undefined {
  return list[Math.floor(random() * list.length)];
}

await run('mutants', main);
