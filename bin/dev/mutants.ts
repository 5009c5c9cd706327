// Makes small random errors in the sources, one after the other, to see which ones no test notices:
// `node bin/dev/run.mjs mutants SEED COUNT`.

import { transformSync } from 'esbuild';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { describeOptions, EXIT, parseOptions, run, UsageError } from '../shared/cli.ts';
import { build, copyHere, isTyped, testUntilFailure } from './trials/copy.ts';
import { type Edit, editsOf } from './trials/edits.ts';

const OPTIONS = {
  limit: { type: 'string', value: 'SECONDS', default: '120', help: 'for the tests of one mutant (default: 120)' },
  only: { type: 'string', value: 'N,N', help: 'only the mutants with these numbers' },
  list: { type: 'boolean', help: 'only print the mutants' },
} as const;

const HELP = `
Usage: node bin/dev/run.mjs mutants [--limit SECONDS] [--only N,N] [--list] SEED COUNT [WORD ...]

Changes one thing in one source, in a copy of this folder, and runs the tests that should notice, until one fails: the
mutant is killed. One that survives shows what no test checks, or what makes no difference. The same sources and SEED
give the same mutants. With words, only in sources whose paths contain one of them.

Options:
${describeOptions(OPTIONS)}

Exit codes: 0 all mutants are killed, 1 some survive, 2 usage error.
`;

const BUILD_LIMIT_MS = 600_000;

/** The words in the paths of the tests that should notice a change of a source, best first: the first prefix counts. */
const TESTS: readonly (readonly [prefix: string, ...words: string[]])[] = [
  ['control.ts', 'control.test', 'module/'],
  ['bin/shared/cli', 'client/usage', 'run/options', 'board/commandline', 'via/options', 'client/', 'kbctl/', 'console/'],
  ['bin/shared/commands', 'console', 'client/usage', 'client/completion', 'kbctl.test'],
  ['bin/shared/client', 'client/outcomes', 'client/unreachable', 'client/targets', 'client/waits', 'client/', 'via/tools'],
  ['bin/shared/declared', 'client/run', 'client/asks', 'console/pipe', 'board/forms', 'client/completion', 'mcp/tools'],
  ['bin/shared/describe', 'view.test', 'client/outcomes', 'client/asks', 'client/waits', 'console', 'mcp/tools'],
  ['bin/shared/files', 'history.test', 'console/history', 'client/targets', 'run/state', 'run/log', 'run/ask', 'board/'],
  ['bin/shared/fleet', 'client/folder', 'board/folder', 'client/table', 'mcp/tools', 'via/tools'],
  ['bin/shared/folder', 'client/folder', 'client/here', 'client/names', 'board/folder', 'client/table', 'via/'],
  ['bin/shared/log', 'client/log', 'history.test', 'run/log', 'board/log', 'mcp/tools'],
  ['bin/shared/names', 'client/names', 'client/here', 'client/targets', 'client/folder', 'board/folder', 'via/'],
  ['bin/shared/system', 'client/waits', 'client/outcomes', 'client/conditions', 'client/watch', 'console/status',
    'board/systems', 'mcp/tools', 'client/', 'kbctl/'],
  ['bin/shared/terminal', 'kbctl/program', 'console/terminal', 'client/table', 'run/terminal'],
  ['bin/shared/text', 'view.test', 'client/outcomes', 'client/log', 'mcp/hostile', 'via/hostile', 'client/'],
  ['bin/shared/via', 'via/'],
  ['bin/shared/view', 'view.test', 'client/table', 'client/outcomes', 'board/systems', 'mcp/tools', 'board/page'],
  ['bin/client', 'tools/client.test', 'client/', 'history.test', 'via/tools'],
  ['bin/console', 'console.test', 'console/pipe', 'console/', 'history.test', 'via/tools'],
  ['bin/kbctl', 'kbctl.test', 'kbctl/', 'via/tools'],
  ['bin/board', 'board.test', 'board/api', 'board/systems', 'board/', 'via/tools'],
  ['bin/mcp', 'mcp.test', 'mcp/tools', 'mcp/', 'via/tools', 'history.test'],
  ['bin/run/ask', 'run/ask'],
  ['bin/run/channel', 'run/channel', 'run/ask', 'run/python', 'run/'],
  ['bin/run/processes', 'run/processes', 'run/signals', 'run/continued', 'run/'],
  ['bin/run/state', 'run/state', 'run/log', 'run/'],
  ['bin/run', 'tools/run.test', 'run/saves', 'run/life', 'run/release', 'run/state', 'run/'],
  ['bin/demo', 'tools/demo'],
];

/** Tests that take long run last. */
const SLOW = ['mcp/hostile', 'completion', 'board/page', 'board/many', 'board/attacks', 'via/hostile', 'module/model',
  'module/attacks', 'run/killed', 'run/python', 'via/link'];

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
  const [count, seconds] = [Number(countText), Number(limit)];
  if (seed === '' || !(count >= 1)) throw new UsageError(`give a seed and how many mutants, such as 1 30; see --help`);
  if (!(seconds > 0)) throw new UsageError(`--limit must be a number of seconds, got '${limit}'`);
  const paths = sources(words);
  if (paths.length === 0) throw new UsageError(`no path of a source contains ${words.join(' or ')}`);
  const folder = copyHere();
  const numbers = only?.split(',').map(Number);
  const durations: number[] = [];
  const tally = { killed: 0, SURVIVED: 0, 'NO VERDICT': 0 };
  let number = 0;
  for (const mutant of mutants(seed, count, paths, folder)) {
    number += 1;
    if (numbers !== undefined && !numbers.includes(number)) continue;
    const name = `${String(number).padStart(3)}  ${mutant.path}:${mutant.line}  ${mutant.kind}: ${mutant.shown}`;
    if (list) {
      console.log(name);
      continue;
    }
    const [verdict, duration, failure] = await tryMutant(mutant, folder, seconds);
    tally[verdict] += 1;
    if (verdict === 'killed') durations.push(duration);
    console.log(`${name}\n     ${verdict} after ${duration.toFixed()} s${failure && `: ${failure.slice(0, 150)}`}`);
  }
  if (list) return EXIT.DONE;
  const median = durations.sort((one, other) => one - other)[Math.floor(durations.length / 2)] ?? 0;
  const { killed, SURVIVED, 'NO VERDICT': none } = tally;
  console.log(`${killed} killed, in ${median.toFixed()} s in the median; ${SURVIVED} survived; ${none} without a verdict`);
  return SURVIVED + none === 0 ? EXIT.DONE : EXIT.REFUSED;
}

function sources(words: readonly string[]): string[] {
  const all = readdirSync('bin', { recursive: true }).map((path) => `bin/${String(path).replaceAll('\\', '/')}`);
  return ['control.ts', ...all.sort()].filter((path) => {
    const isSource = path.endsWith('.ts') && !/^bin\/(test|dev|recipes)\//.test(path);
    return isSource && testsFor(path).length > 0 && (words.length === 0 || words.some((word) => path.includes(word)));
  });
}

/** The tests that should notice, in the order in which they start: one with the name of the source first. */
function testsFor(source: string): string[] {
  const [, ...words] = TESTS.find(([prefix]) => source.startsWith(prefix)) ?? [''];
  const all = readdirSync('bin/test', { recursive: true }).map((path) => String(path).replaceAll('\\', '/')).sort();
  const tests = ['control.test.ts', ...all.filter((path) => path.endsWith('.test.ts'))];
  const found = [...new Set(words.flatMap((word) => tests.filter((path) => path.includes(word))))];
  const name = `/${/(\w+?)s?\.ts$/.exec(source)?.[1]}`;
  const rankOf = (path: string): number => path.includes(name) ? 0 : SLOW.some((word) => path.includes(word)) ? 2 : 1;
  return found.sort((one, other) => rankOf(one) - rankOf(other));
}

/** Different ones, whose types are right, and that are not the same program. */
function* mutants(seed: string, count: number, paths: readonly string[], folder: string): Generator<Mutant> {
  const random = randomOf(seed);
  const tried = new Set<string>();
  const texts = new Map(paths.map((path) => [path, readFileSync(path, 'utf8')]));
  const lengths = paths.map((path) => texts.get(path)!.split('\n').filter(isCode).length);
  const total = lengths.reduce((sum, one) => sum + one, 0);
  for (let found = 0; found < count && tried.size < 100 * count;) {
    let left = random() * total; // a file by its share of the lines, then a kind of edit, then one of these
    const path = paths[lengths.findIndex((one) => (left -= one) < 0)]!;
    const source = texts.get(path)!;
    const edits = editsOf(source);
    const kind = pick([...new Set(edits.map((one) => one.kind))], random);
    const edit = pick(edits.filter((one) => one.kind === kind), random);
    if (edit === undefined) continue;
    const key = `${path} ${edit.start} ${edit.text}`;
    if (tried.has(key)) continue;
    tried.add(key);
    if (!isProgram(source, edit)) continue;
    writeFileSync(`${folder}/${path}`, apply(source, edit));
    const isRight = isTyped(folder);
    writeFileSync(`${folder}/${path}`, source);
    if (!isRight) continue;
    found += 1;
    yield describe(path, source, edit);
  }
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
  const shown = edit.text === ';' ? `without ${source.slice(edit.start, edit.end)}` : changed.trim();
  return { ...edit, path, line: source.slice(0, edit.start).split('\n').length, shown };
}

async function tryMutant(
  mutant: Mutant,
  folder: string,
  limitS: number,
): Promise<['killed' | 'SURVIVED' | 'NO VERDICT', durationS: number, failure: string]> {
  const source = readFileSync(mutant.path, 'utf8');
  writeFileSync(`${folder}/${mutant.path}`, apply(source, mutant));
  const built = await build(folder, BUILD_LIMIT_MS);
  if (built.code !== 0) throw new Error(built.output);
  const start = performance.now();
  const failure = await testUntilFailure(testsFor(mutant.path), folder, 1000 * limitS);
  writeFileSync(`${folder}/${mutant.path}`, source);
  const verdict = failure === null ? 'NO VERDICT' : failure === '' ? 'SURVIVED' : 'killed';
  return [verdict, (performance.now() - start) / 1000, failure ?? ''];
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
