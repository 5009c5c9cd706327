// Runs the fenced blocks of the pages as printed: `node bin/dev/run.mjs pages`.
//
// Each page starts in an empty home folder, as ana@laptop on the machine gpu1 (10.0.0.1; gpu2 is 10.0.0.2), with a
// network, processes and /run of its own. `ssh` is a stand-in: programs that it starts on gpu1 or gpu2 have a session
// folder of that machine, but the same ports and files. The blocks run from top to bottom:
//
//   console  A line `$ COMMAND` is typed into a terminal (bash, 120 columns); an incomplete command continues on the
//            next line. The lines up to the next command are its output. Text after the prompts `… (…) > ` and
//            `(y/[N]) ` is typed, and a line `^C` presses Ctrl-C. Ignored: words with a digit or at least 20 letters
//            (numbers, dates, ids, keys), units of durations, widths of gaps, empty lines, the shell's lines about
//            jobs, and statuses that a long wait shows (`pausing … paused`). `…` stands for any text; alone on its
//            line, for any lines. All blocks of a page share one terminal, except those marked `background`.
//   sh       Runs as a script, which must exit with code 0.
//   ts       Is type-checked against control.ts; undeclared names and packages count as `any`. Without an import of
//            control.mts, it is a fragment: statements, or properties of the argument of launch().
//   python, json  Are parsed.
//   others   Are not checked, but a block without a language must not contain commands.
//
// Comments directly before a block take effect in their order:
//
//   <!-- fresh -->            ends everything the page has started, and empties its folder
//   <!-- run: COMMANDS -->    runs commands in the page's terminal, which must succeed; $REPOSITORY is the checkout
//   <!-- file: NAME -->       also writes the block to a file in the page's folder
//   <!-- background -->       runs the block in a terminal of its own, where its last command keeps running. The next
//                             block starts once the first line of output has appeared. The output is compared at the
//                             end of the page, or at `fresh`; more lines may follow
//   <!-- not run: REASON -->  for what cannot run here

import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { HOME, Terminal, TOOLS } from './pages/terminal.ts';
import { EXIT, parseOptions, run, UsageError } from '../shared/line/options.ts';
import type { Failure, Step } from './pages/terminal.ts';

const HELP = `
Usage: node bin/dev/run.mjs pages [WORD ...]

Runs the blocks of README.md and bin/**/*.md as printed and compares their output. With words, only those of the pages
with these paths, or whose paths contain one of the words. Uses the tools in dist/ (npm run build) and the Node that
runs this. The first lines of bin/dev/pages.ts state the rules. Needs Linux, root or user namespaces, script, ip,
curl, jq and python3. The pages have no network.

Exit codes: 0 all pass, 1 a block fails, 2 wrong usage.
`;

const SET_UP = `mount -t tmpfs tmpfs /run && mkdir -p /run/user/1000 ${TOOLS} ${HOME} && hostname gpu1 &&
  ip link set lo up && ip addr add 10.0.0.1 dev lo && ip addr add 10.0.0.2 dev lo &&
  printf '%s\\n' '127.0.0.1 localhost' '10.0.0.1 gpu1' '10.0.0.2 gpu2' > /run/hosts &&
  { [ ! -d /tmp/control-$UID ] || mount -t tmpfs tmpfs /tmp/control-$UID; } &&
  mount --bind /run/hosts /etc/hosts && "$@"; exit $?`; // the shell stays, to reap processes
/** Like sshd, it has a shell parse the words again. */
const SSH = `#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
[ "$1" != -- ] || shift
host=$1
shift
if ! getent hosts "$host" > /dev/null; then
  echo "ssh: Could not resolve hostname $host: Name or service not known" >&2
  exit 255
fi
export XDG_RUNTIME_DIR="/run/user/1000/$host"
mkdir -p "$XDG_RUNTIME_DIR"
exec sh -c "$*"
`;
const SPACES = ['--net', '--uts', '--mount', '--pid', '--mount-proc', '--fork', '--kill-child'];
const IMPORTS = "import { launch, SystemStatus, WebApiClient, WebApiServer } from './control.mts';\n";
const TSC = '--ignoreConfig --noEmit --strict --target es2022 --lib es2022 --module nodenext --types node ' +
  '--skipLibCheck --allowImportingTsExtensions --pretty false block.mts';
const IGNORED = /error TS(2304|2307|2552|7006|7031|18004|1117):/; // undeclared names; two versions of a property
const CHECKED = ['console', 'sh', 'ts', 'python', 'json'];

interface Block { line: number; language: string; text: string; comments: string[] }

async function main(): Promise<number> {
  const parsed = parseOptions({}, HELP, Infinity);
  if (parsed === null) return EXIT.DONE;
  const all = readdirSync('bin', { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.md'));
  const names = ['README.md', ...all.map((name) => `bin/${name}`).sort()];
  const words = parsed.positionals.length > 0 ? parsed.positionals : [''];
  const isMeant = (name: string, word: string): boolean => names.includes(word) ? name === word : name.includes(word);
  const pages = names.filter((name) => words.some((word) => isMeant(name, word)));
  if (pages.length === 0) throw new UsageError(`no path of a page contains ${words.join(' or ')}`);
  if (process.env['PAGES_INSIDE'] === undefined) return isolate();
  for (const name of readdirSync('dist/bin')) {
    const command = `#!/bin/sh\nexec node '${resolve('dist/bin', name)}' "$@"\n`;
    writeFileSync(`${TOOLS}/control-${name.replace('.js', '')}`, command, { mode: 0o755 });
  }
  symlinkSync(process.execPath, `${TOOLS}/node`);
  writeFileSync(`${TOOLS}/ssh`, SSH, { mode: 0o755 });
  let failures = 0;
  for (const page of pages) failures += await runPage(page);
  console.log(failures === 0 ? 'all pass' : `${failures} fail`);
  return failures === 0 ? EXIT.DONE : EXIT.REFUSED;
}

/** Runs this program again in its own namespaces: when they end, all processes end. */
function isolate(): number {
  spawnSync('npx', ['-y', 'tsx', '--version'], { stdio: 'ignore' }); // for a page: inside, there is no network
  const spaces = process.geteuid?.() === 0 ? SPACES : ['--map-root-user', ...SPACES];
  const args = [...spaces, 'bash', '-c', SET_UP, 'pages', process.execPath, ...process.argv.slice(1)];
  const env = { ...process.env, PAGES_INSIDE: '1' };
  return spawnSync('unshare', args, { stdio: 'inherit', env }).status ?? EXIT.REFUSED;
}

/** Returns the number of blocks that fail. */
async function runPage(page: string): Promise<number> {
  let failures = 0;
  let terminal: Terminal | null = null;
  let background: { block: Block; finish: () => Promise<Failure> }[] = [];
  const report = ({ line, language, comments }: Block, failure: Failure): void => {
    const reason = comments.find((comment) => comment.startsWith('not run'));
    const result = reason ?? (CHECKED.includes(language) ? 'pass' : 'not checked');
    console.log(`${page}:${line}  ${language}  ${failure === null ? result : `FAIL: ${failure}`}`);
    if (failure !== null) failures += 1;
  };
  const runSilently = (command: string): Promise<Failure> => {
    terminal ??= new Terminal();
    return terminal.run({ command: `${command} > /run/output 2>&1 || cat /run/output`, output: [] });
  };
  const reset = async (): Promise<void> => {
    for (const { block, finish } of background) report(block, await finish());
    [background, terminal] = [[], null];
    const kept = [1, process.ppid, process.pid];
    const pids = readdirSync('/proc').filter((name) => Number(name) > 0 && !kept.includes(Number(name)));
    spawnSync('kill', ['-9', ...pids]);
    for (const folder of [HOME, '/run/user/1000']) {
      for (const name of readdirSync(folder)) rmSync(join(folder, name), { recursive: true });
    }
  };
  const runBlock = async (block: Block): Promise<void> => {
    const { language, text, comments } = block;
    for (const comment of comments) {
      const [, name, value = ''] = /^(fresh|run|file|background|not run)(?::\s+(.+))?$/s.exec(comment) ?? [];
      if (name === undefined) return report(block, `unknown comment '${comment}'`);
      if (name === 'not run') return report(block, null);
      if (name === 'fresh') await reset();
      if (name === 'file') writeFileSync(join(HOME, value), text);
      const failure = name === 'run' ? await runSilently(`{ ${value}\n}`) : null;
      if (failure !== null) return report(block, failure);
    }
    if (language === 'sh') writeFileSync('/run/block.sh', text);
    if (language === 'sh') return report(block, await runSilently('bash /run/block.sh'));
    if (language !== 'console') return report(block, checkText(language, text));
    const steps = parseTranscript(text);
    const last = comments.includes('background') ? steps.pop() : undefined;
    const own = last === undefined ? (terminal ??= new Terminal()) : new Terminal();
    for (const step of steps) {
      const failure = await own.run(step);
      if (failure !== null) return report(block, failure);
    }
    if (last === undefined) report(block, null);
    else background.push({ block, finish: await own.start(last) });
  };
  for (const block of parsePage(readFileSync(page, 'utf8'))) await runBlock(block);
  await reset();
  return failures;
}

function parsePage(page: string): Block[] {
  const fence = /^((?: *<!--(?:(?!-->)[^])*-->\s*)*)( *)```(\w*)\n([^]*?)^\2```$/gm;
  return [...page.matchAll(fence)].map(({ index, 1: comments = '', 2: indent, 3: language = '', 4: text = '' }) => ({
    line: page.slice(0, index + comments.length).split('\n').length,
    language,
    text: text.replaceAll(new RegExp(`^${indent}`, 'gm'), ''),
    comments: [...comments.matchAll(/<!--\s*([^]*?)\s*-->/g)].map(([, comment = '']) => comment),
  }));
}

function parseTranscript(text: string): Step[] {
  const steps: Step[] = [];
  let isComplete = true;
  for (const line of text.trimEnd().split('\n')) {
    const step = steps.at(-1);
    if (step !== undefined && !isComplete) step.command += `\n${line}`;
    else if (line.startsWith('$ ')) steps.push({ command: line.slice(2), output: [] });
    else step?.output.push(line);
    const { command = '', output = [] } = steps.at(-1) ?? {};
    isComplete = output.length > 0 || (!command.endsWith('\\') && execute('bash', ['-n', '-c', command]) === null);
  }
  return steps;
}

function checkText(language: string, text: string): Failure {
  if (language === 'ts') return checkTypes(text);
  if (language === 'json') return execute('node', ['-e', 'JSON.parse(process.argv[1])', text]);
  if (language === 'python') return execute('python3', ['-c', 'import ast, sys; ast.parse(sys.argv[1])', text]);
  return language === '' && /^\$ /m.test(text) ? 'the language of a transcript is console' : null;
}

/** Runs a program that prints nothing unless it fails. */
function execute(file: string, args: readonly string[]): Failure {
  const { status, stdout, stderr } = spawnSync(file, args, { encoding: 'utf8' });
  return status === 0 && stderr === '' ? null : `${stdout}${stderr}`;
}

function checkTypes(text: string): Failure {
  mkdirSync('.dev', { recursive: true });
  const folder = mkdtempSync(resolve('.dev/types-')); // tsc finds @types/node from here
  try {
    const head = text.includes("from './control.mts'") ? '' : IMPORTS;
    const body = /^\w+: /.test(text) ? `await launch({\n${text}\n});` : text;
    writeFileSync(join(folder, 'block.mts'), `${head}${body}\nexport {};\n`);
    symlinkSync(resolve('control.ts'), join(folder, 'control.mts'));
    const { stdout } = spawnSync(resolve('node_modules/.bin/tsc'), TSC.split(' '), { cwd: folder, encoding: 'utf8' });
    const errors = stdout.split('\n').filter((line) => line.includes('error TS') && !IGNORED.test(line));
    return errors.length === 0 ? null : errors.join('\n');
  } finally {
    rmSync(folder, { recursive: true });
  }
}

await run('pages', main);
