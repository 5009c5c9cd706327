// Runs the fenced blocks of the pages as printed: `node bin/dev/run.mjs pages`.
//
// Each page starts in an empty home folder, as ana@laptop, with a network, processes and /run of its own. The checkout
// is ~/runtime-control, and the tools are in the PATH. The blocks run from top to bottom, as a reader copies them: only
// what the page shows prepares a block, and the next command is typed as soon as the prompt is back.
//
//   console  A line `$ COMMAND` is typed into a terminal (bash, 120 columns); an incomplete command continues on the
//            next line. The lines up to the next command are its output. Text after the prompts `… (…) > ` and
//            `[y/N] ` is typed, `answer` after a time to read, and a line `^C` presses Ctrl-C. In a command, the id of
//            a question stands for the latest one with this number that was printed. Ignored: words with a digit or at
//            least 20 letters (numbers, dates, ids, keys), units of durations, widths of gaps, empty lines, the shell's
//            lines about jobs, and what a long wait shows (`pausing … paused`, `… may still start`). `…` stands for any
//            text; alone on its line, for any lines. All blocks of a page share one terminal, except those marked
//            `background`.
//   sh       Runs as a script, which must exit with code 0.
//   ts       Is type-checked against control.ts; undeclared names and packages count as `any`. Without an import of
//            control.mts, it is a fragment: statements, or properties of the argument of launch().
//   python, json  Are parsed.
//   others   Are not checked, but a block without a language must not contain commands.
//
// A block after a text that ends in "as `NAME`:" is written to this file in the home folder; a script is only parsed.
//
// Comments directly before a block:
//
//   <!-- background -->        The text has the reader use another terminal. The last command keeps running there. The
//                              next block starts once the output above the first empty line has appeared, or the first
//                              line if there is none. The output is compared at the end of the page, before Ctrl-C ends
//                              the command; more lines may follow.
//   <!-- on gpu1: COMMANDS --> The text says what runs on another machine, gpu1 or gpu2: these commands start it, and
//                              must end. `ssh` is a stand-in: these machines have homes, session folders and ports of
//                              their own, but share the processes.
//   <!-- not run: REASON -->   For what cannot run here.
//
// At the end of a page, nothing may listen at localhost:8391, where the next page starts its program.

import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { EXIT, parseOptions, run, UsageError } from '../shared/cli.ts';
import { type Failure, HOME, type Step, Terminal, TOOLS } from './pages/terminal.ts';

const HELP = `
Usage: node bin/dev/run.mjs pages [WORD ...]

Runs the blocks of README.md and bin/**/*.md as printed and compares their output. With words, only those of the pages
with these paths, or whose paths contain one of the words. Builds the tools, and uses the Node that runs this. The first
lines of bin/dev/pages.ts state the rules. Needs Linux, root, unshare, script, ip, curl, jq and python3. The pages have
no network.

Exit codes: 0 all pass, 1 a block fails, 2 usage error.
`;

const SET_UP = `mount -t tmpfs tmpfs /run && mkdir -p /run/user/1000 ${TOOLS} ${HOME} && hostname laptop &&
  ip link set lo up && ip addr add 10.0.0.1 dev lo && ip addr add 10.0.0.2 dev lo && ip link add eth0 type veth &&
  ip addr add 192.168.1.7 dev eth0 && ip link set eth0 up && ip link set veth0 up &&
  for host in gpu1 gpu2; do touch /run/net.$host; unshare --net=/run/net.$host ip link set lo up || exit; done &&
  printf '%s\\n' '127.0.0.1 localhost' '10.0.0.1 gpu1' '10.0.0.2 gpu2' > /run/hosts &&
  { [ ! -d /tmp/control-$UID ] || mount -t tmpfs tmpfs /tmp/control-$UID; } &&
  mount --bind /run/hosts /etc/hosts && "$@"; exit $?`; // the shell stays, to reap processes
/** Like sshd, it has a shell parse the words again. */
const SSH = `#!/bin/sh
while :; do case $1 in -o) shift 2 ;; -T) shift ;; *) break ;; esac; done
[ "$1" != -- ] || shift
host=$1
shift
if ! getent hosts "$host" > /dev/null; then
  echo "ssh: Could not resolve hostname $host: Name or service not known" >&2
  exit 255
fi
home=/run/$host session=/run/user/1000/$host
mkdir -p "$home" "$session" && cd "$home" || exit
exec nsenter --net="/run/net.$host" env -i PATH="${TOOLS}:$PATH" HOME="$home" XDG_RUNTIME_DIR="$session" \\
  PYENV_ROOT="$PYENV_ROOT" USER=ana CONTROL_BY="ana@$host" sh -c "$*"
`;
const SPACES = ['--net', '--uts', '--mount', '--pid', '--mount-proc', '--fork', '--kill-child'];
const IMPORTS = "import { launch, SystemStatus, WebApiClient, WebApiServer } from './control.mts';\n";
const TSC = '--ignoreConfig --noEmit --strict --target es2022 --lib es2022 --module nodenext --types node ' +
  '--skipLibCheck --allowImportingTsExtensions --pretty false block.mts';
const IGNORED = /error TS(2304|2307|2552|7006|7031|18004|1117):/; // undeclared names; two versions of a property
const NOTHING_LISTENS = '$ curl -s localhost:8391/api/status';
const CHECKED = ['console', 'sh', 'ts', 'python', 'json'];

interface Block { line: number; file?: string | undefined; language: string; text: string; comments: string[] }

async function main(): Promise<number> {
  const parsed = parseOptions({}, HELP, Infinity);
  if (parsed === null) return EXIT.DONE;
  const all = readdirSync('bin', { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.md'));
  const names = ['README.md', ...all.map((name) => `bin/${name}`).sort()];
  const words = parsed.positionals.length > 0 ? parsed.positionals : [''];
  const isMeant = (name: string, word: string): boolean => names.includes(word) ? name === word : name.includes(word);
  const pages = names.filter((name) => words.some((word) => isMeant(name, word)));
  if (pages.length === 0) throw new UsageError(`no path of a page contains ${words.join(' or ')}`);
  if (process.geteuid?.() !== 0) throw new UsageError('the namespaces of the pages need root, such as by sudo');
  const inside = process.env['PAGES_INSIDE'];
  if (inside !== undefined) process.exit(await runPage(inside)); // and end the terminals
  spawnSync(process.execPath, ['bin/dev/build.mjs'], { stdio: 'inherit' });
  spawnSync('npx', ['-y', 'tsx', '--version'], { stdio: 'ignore' }); // for a page: inside, there is no network
  const failing = pages.filter((page) => !runIsolated(page));
  console.log(failing.length === 0 ? 'all pass' : `fail: ${failing.join(', ')}`);
  return failing.length === 0 ? EXIT.DONE : EXIT.REFUSED;
}

/** Runs this program for one page in namespaces of its own: when they end, all processes end. */
function runIsolated(page: string): boolean {
  const args = [...SPACES, 'bash', '-c', SET_UP, 'pages', process.execPath, ...process.argv.slice(1)];
  const env = { ...process.env, PAGES_INSIDE: page };
  return spawnSync('unshare', args, { stdio: 'inherit', env }).status === 0;
}

async function runPage(page: string): Promise<number> {
  for (const name of readdirSync('dist/bin')) {
    symlinkSync(resolve('dist/bin', name), `${TOOLS}/control-${name.replace('.js', '')}`);
  }
  symlinkSync(process.execPath, `${TOOLS}/node`);
  writeFileSync(`${TOOLS}/ssh`, SSH, { mode: 0o755 });
  symlinkSync(resolve('.'), `${HOME}/runtime-control`);
  const terminal = new Terminal();
  const background: { block: Block; finish: () => Promise<Failure> }[] = [];
  let result: number = EXIT.DONE;
  const report = ({ line, language, comments }: Block, failure: Failure): void => {
    const reason = comments.find((comment) => comment.startsWith('not run'));
    const verdict = reason ?? (CHECKED.includes(language) ? 'pass' : 'not checked');
    console.log(`${page}:${line}  ${language}  ${failure === null ? verdict : `FAIL: ${failure}`}`);
    if (failure !== null) result = EXIT.REFUSED;
  };
  const runBlock = async (block: Block): Promise<Failure> => {
    const { file, language, text, comments } = block;
    if (file !== undefined) writeFileSync(join(HOME, file), text);
    for (const comment of comments) {
      const [, name, host = '', value = ''] = /^(background|not run|on (gpu[12]))(?:: (.+))?$/s.exec(comment) ?? [];
      if (name === undefined) return `unknown comment '${comment}'`;
      if (name === 'not run') return null;
      const commands = `(${value}\n) > log 2>&1 || { cat log; false; }`;
      const failure = host === '' ? null : execute(`${TOOLS}/ssh`, [host, commands]);
      if (failure !== null) return failure;
    }
    if (language === 'sh' && file === undefined) {
      writeFileSync('/run/block.sh', text);
      const command = 'bash /run/block.sh > /run/output 2>&1 || { echo "exit code $?"; cat /run/output; }';
      return terminal.run({ command, output: [] });
    }
    if (language !== 'console') return checkText(language, text);
    const steps = parseTranscript(text);
    const last = comments.includes('background') ? steps.pop() : undefined;
    const own = last === undefined ? terminal : new Terminal();
    for (const step of steps) {
      const failure = await own.run(step);
      if (failure !== null) return failure;
    }
    if (last !== undefined) background.push({ block, finish: await own.start(last) });
    return null;
  };
  const source = readFileSync(page, 'utf8');
  for (const block of parsePage(source)) {
    const failure = await runBlock(block);
    if (failure !== null || background.at(-1)?.block !== block) report(block, failure);
  }
  for (const { block, finish } of background) report(block, await finish());
  const end = { line: source.split('\n').length, language: 'console', text: NOTHING_LISTENS, comments: [] };
  report(end, await runBlock(end));
  return result;
}

function parsePage(page: string): Block[] {
  const fence = /^((?: *<!--(?:(?!-->)[^])*-->\s*)*)( *)```(\w*)\n([^]*?)^\2```$/gm;
  return [...page.matchAll(fence)].map(({ index, 1: comments = '', 2: indent, 3: language = '', 4: text = '' }) => ({
    line: page.slice(0, index + comments.length).split('\n').length,
    file: /\bas\s`([^`]+)`:\s+$/.exec(page.slice(0, index))?.[1],
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
  if (language === 'sh') return execute('bash', ['-n', '-c', text]);
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
