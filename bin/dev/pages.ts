// Runs the fenced blocks of the pages as printed: `node bin/dev/run.mjs pages`.
//
// Each page starts in an empty home folder, as ana@laptop on the machine gpu1 (10.0.0.1; gpu2 is 10.0.0.2), with a
// network, processes and /run of its own. Its blocks run from top to bottom:
//
//   console  A line `$ COMMAND` is typed into a terminal (bash, 120 columns); an incomplete command continues on the
//            next line. The lines up to the next command are its output. Text after the prompts `… (…) > ` and
//            `(y/[N]) ` is typed, and a line `^C` presses Ctrl-C. Ignored: words with a digit (numbers, dates, ids),
//            units of durations, widths of gaps, empty lines, the shell's lines about jobs, and the statuses that
//            `--wait` shows on the way. `…` stands for any text; alone on its line, for any lines. All blocks of a
//            page share one terminal, except those marked `background`.
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

import { spawn, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { EXIT, parseOptions, run, UsageError } from '../shared/options.ts';
import type { ChildProcess } from 'node:child_process';

const HELP = `
Usage: node bin/dev/run.mjs pages [WORD ...]

Runs the blocks of README.md and bin/**/*.md as printed and compares their output. With words, only those of the pages
with these paths, or whose paths contain one of the words. Uses the tools in dist/ (npm run build) and the Node that
runs this. The first lines of bin/dev/pages.ts state the rules. Needs Linux, root or user namespaces, script, ip,
curl, jq and python3. npx finds only what it has run before: the pages have no network.

Exit codes: 0 all pass, 1 a block fails, 2 wrong usage.
`;

const SECONDS = 120; // for a command to end
const HOME = '/run/ana';
const READY = '\x1e'; // the shell's prompt
const PROMPT = /^(.*(?:\S \([^)]*\) > |\[N\]\) ))(.+)$/;
const JOB = /^\[\d+\][-+ ] *(\d+$|(Done|Exit|Terminated|Killed|Hangup|Interrupt|Running|Stopped)\b)/;
const IMPORTS = "import { launch, SystemStatus, WebApiClient, WebApiServer } from './control.mts';\n";
const TSC = '--ignoreConfig --noEmit --strict --target es2022 --lib es2022 --module nodenext --types node ' +
  '--skipLibCheck --allowImportingTsExtensions --pretty false block.mts';
const IGNORED = /error TS(2304|2307|2552|7006|7031|18004|1117):/; // undeclared names; two versions of a property
const SHELL = 'stty -echo cols 120 rows 40; exec bash --norc --noprofile --noediting -i';

/** What is wrong, or null. */
type Failure = string | null;
interface Block { line: number; language: string; text: string; comments: string[] }
interface Step { command: string; output: string[] }

async function main(): Promise<number> {
  const parsed = parseOptions({}, HELP, Infinity);
  if (parsed === null) return EXIT.DONE;
  const all = readdirSync('bin', { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.md'));
  const names = ['README.md', ...all.map((name) => `bin/${name}`).sort()];
  const words = parsed.positionals.length > 0 ? parsed.positionals : [''];
  const isNamed = (name: string, word: string): boolean => names.includes(word) ? name === word : name.includes(word);
  const pages = names.filter((name) => words.some((word) => isNamed(name, word)));
  if (pages.length === 0) throw new UsageError(`no path of a page contains ${words.join(' or ')}`);
  if (process.env['PAGES_INSIDE'] === undefined) return isolate();
  makeTools();
  let failures = 0;
  for (const page of pages) failures += await new Page(page).run();
  console.log(failures === 0 ? 'all pass' : `${failures} fail`);
  return failures === 0 ? EXIT.DONE : EXIT.REFUSED;
}

/** Runs this program again in namespaces of its own; their end is the end of all processes. */
function isolate(): number {
  const setUp = `mount -t tmpfs tmpfs /run && mkdir -p /run/user/1000 /run/tools ${HOME} && hostname gpu1 &&
    ip link set lo up && ip addr add 10.0.0.1 dev lo && ip addr add 10.0.0.2 dev lo &&
    printf '%s\\n' '127.0.0.1 localhost' '10.0.0.1 gpu1' '10.0.0.2 gpu2' > /run/hosts &&
    mount --bind /run/hosts /etc/hosts && "$@"; exit $?`; // this shell stays, to reap processes
  const spaces = ['--net', '--uts', '--mount', '--pid', '--mount-proc', '--fork', '--kill-child'];
  if (process.geteuid?.() !== 0) spaces.unshift('--map-root-user');
  const command = ['bash', '-c', setUp, 'pages', process.execPath, ...process.argv.slice(1)];
  const env = { ...process.env, PAGES_INSIDE: '1' };
  return spawnSync('unshare', [...spaces, ...command], { stdio: 'inherit', env }).status ?? EXIT.REFUSED;
}

/** Makes the tools commands. */
function makeTools(): void {
  for (const name of readdirSync('dist/bin')) {
    const command = `#!/bin/sh\nexec node '${resolve('dist/bin', name)}' "$@"\n`;
    writeFileSync(`/run/tools/control-${name.replace('.js', '')}`, command, { mode: 0o755 });
  }
  symlinkSync(process.execPath, '/run/tools/node');
}

// ───── Pages ─────────────────────────────────────────────────────────────────────────────────────────────────────

class Page {
  readonly #name: string;
  #terminal: Terminal | null = null;
  #background: { block: Block; finish: () => Promise<Failure> }[] = [];
  #failures = 0;

  constructor(name: string) {
    this.#name = name;
  }

  /** Returns the number of blocks that fail. */
  async run(): Promise<number> {
    for (const block of parsePage(readFileSync(this.#name, 'utf8'))) {
      const background = this.#background.length;
      const failure = await this.#runBlock(block);
      if (failure !== null || this.#background.length === background) this.#report(block, failure);
    }
    await this.#reset();
    return this.#failures;
  }

  #report({ line, language, comments }: Block, failure: Failure): void {
    const reason = comments.find((comment) => comment.startsWith('not run'));
    const isChecked = ['console', 'sh', 'ts', 'python', 'json'].includes(language);
    const result = reason ?? (isChecked ? 'pass' : 'not checked');
    if (failure !== null) this.#failures++;
    console.log(`${this.#name}:${line}  ${language}  ${failure === null ? result : `FAIL: ${failure}`}`);
  }

  async #runBlock(block: Block): Promise<Failure> {
    const { language, text, comments } = block;
    for (const comment of comments) {
      const [, name, value = ''] = /^(fresh|run|file|background|not run)(?::\s+(.+))?$/s.exec(comment) ?? [];
      if (name === undefined) return `unknown comment '${comment}'`;
      if (name === 'not run') return null;
      if (name === 'fresh') await this.#reset();
      if (name === 'file') writeFileSync(join(HOME, value), text);
      const failure = name === 'run' ? await this.#runSilently(`{ ${value}\n}`) : null;
      if (failure !== null) return failure;
    }
    if (language === 'console') return this.#runTranscript(block);
    if (language === 'ts') return checkTypes(text);
    if (language === 'json') return execute('node', ['-e', 'JSON.parse(process.argv[1])', text]);
    if (language === 'python') return execute('python3', ['-c', 'import ast, sys; ast.parse(sys.argv[1])', text]);
    if (language === '' && /^\$ /m.test(text)) return 'the language of a transcript is console';
    if (language !== 'sh') return null;
    writeFileSync('/run/block.sh', text);
    return this.#runSilently('bash /run/block.sh');
  }

  async #runTranscript(block: Block): Promise<Failure> {
    const isBackground = block.comments.includes('background');
    const terminal = isBackground ? new Terminal() : (this.#terminal ??= new Terminal());
    const steps = parseTranscript(block.text);
    const last = isBackground ? steps.pop() : undefined;
    for (const step of steps) {
      const failure = await terminal.run(step);
      if (failure !== null) return failure;
    }
    if (last !== undefined) this.#background.push({ block, finish: await terminal.start(last) });
    return null;
  }

  #runSilently(command: string): Promise<Failure> {
    this.#terminal ??= new Terminal();
    return this.#terminal.run({ command: `${command} > /run/output 2>&1 || cat /run/output`, output: [] });
  }

  /** Ends all processes but this one and its parents, and empties the folders. */
  async #reset(): Promise<void> {
    for (const { block, finish } of this.#background) this.#report(block, await finish());
    this.#background = [];
    this.#terminal = null;
    const kept = [1, process.ppid, process.pid];
    const others = readdirSync('/proc').filter((name) => Number(name) > 0 && !kept.includes(Number(name)));
    spawnSync('kill', ['-9', ...others]);
    for (const folder of [HOME, '/run/user/1000']) {
      for (const name of readdirSync(folder)) rmSync(join(folder, name), { recursive: true });
    }
  }
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

// ───── Terminals ─────────────────────────────────────────────────────────────────────────────────────────────────

class Terminal {
  readonly #script: ChildProcess;
  #output = '';

  constructor() {
    const { LANG, PYENV_ROOT, HOME: home = '' } = process.env;
    const env = {
      PATH: `/run/tools:${process.env['PATH']}`, HOME, USER: 'ana', TERM: 'xterm', NO_COLOR: '1', PS1: READY, PS2: '',
      LANG, PYENV_ROOT, XDG_RUNTIME_DIR: '/run/user/1000', CONTROL_BY: 'ana@laptop', REPOSITORY: resolve('.'),
      npm_config_cache: join(home, '.npm'), npm_config_prefer_offline: 'true', npm_config_update_notifier: 'false',
    };
    this.#script = spawn('script', ['-qfc', SHELL, '/dev/null'], { cwd: HOME, env });
    this.#script.stdout?.setEncoding('utf8').on('data', (text: string) => (this.#output += text));
  }

  /** Runs a command to its end. */
  async run({ command, output }: Step): Promise<Failure> {
    await this.#begin(command);
    let seconds = SECONDS;
    for (const [index, line] of output.entries()) {
      const [, prompt = '', input] = line === '^C' ? ['', '', '\x03'] : (PROMPT.exec(line) ?? []);
      if (input === undefined) continue;
      const shown = [...output.slice(0, index), ...(prompt === '' ? [] : [prompt])];
      if (await this.#until(() => this.#compare(shown) === null, 20)) {
        this.#script.stdin?.write(prompt === '' ? input : `${input}\r`);
        continue;
      }
      seconds = 1;
      break;
    }
    const hasEnded = await this.#until(() => this.#output.includes(READY), seconds);
    const difference = this.#compare(output);
    if (!hasEnded) this.#script.stdin?.write('\x03');
    else if (/[^&]&\s*(#.*)?$/.test(command)) await this.#until(isListening, 10); // a reader would wait as well
    const note = hasEnded ? '' : ` # still runs after ${seconds} s`;
    return hasEnded && difference === null ? null : `$ ${command}${note}\n${difference ?? ''}`;
  }

  /** Starts a command that keeps running, and returns once the first line of its output has appeared. */
  async start({ command, output }: Step): Promise<() => Promise<Failure>> {
    await this.#begin(command);
    await this.#until(() => this.#compare(output.slice(0, 1), true) === null, 20);
    return async () => {
      await this.#until(() => this.#compare(output, true) === null, 10);
      const difference = this.#compare(output, true);
      return difference && `$ ${command}\n${difference}`;
    };
  }

  async #begin(command: string): Promise<void> {
    await this.#until(() => this.#output.includes(READY));
    this.#output = '';
    this.#script.stdin?.write(`${command}\n`);
  }

  async #until(condition: () => boolean, seconds: number = SECONDS): Promise<boolean> {
    const end = Date.now() + seconds * 1000;
    while (!condition() && Date.now() < end && this.#script.exitCode === null) await sleep(30);
    return condition();
  }

  /** The first difference between the output of a page and what the terminal shows, which may have `more` lines. */
  #compare(expected: readonly string[], more: boolean = false): Failure {
    const moved = this.#output.replaceAll('\x1b[1G', '\r');
    const text = moved.replaceAll(/\x1b\[[\d;?]*[a-zA-Z]|\x1b\][^\x07]*\x07|\x1e/g, '');
    const lines = text.replaceAll(/\r+\n/g, '\n').split('\n').map((line) => line.slice(line.lastIndexOf('\r') + 1));
    const shown = lines.filter((line) => !JOB.test(line) && line.trim() !== '');
    return compare(expected.filter((line) => line !== '^C' && line !== ''), shown, more);
  }
}

function isListening(): boolean {
  return execute('bash', ['-c', ': < /dev/tcp/localhost/8391']) === null;
}

function compare(expected: readonly string[], seen: readonly string[], more: boolean): Failure {
  let at = 0;
  let skips = false;
  for (const [index, line] of expected.entries()) {
    if (line === '…') {
      skips = true;
      continue;
    }
    const pattern = toPattern(line);
    const found = seen.findIndex((other, position) => position >= at && pattern.test(normalize(other)));
    if (found === -1 || (found > at && !skips)) return describeDifference(expected.slice(index), seen.slice(at));
    at = found + 1;
    skips = false;
  }
  return skips || more || at === seen.length ? null : describeDifference([], seen.slice(at));
}

function describeDifference(expected: readonly string[], seen: readonly string[]): string {
  const lines = [...expected.slice(0, 4).map((line) => `- ${line}`), ...seen.slice(0, 20).map((line) => `+ ${line}`)];
  return lines.map((line) => `  ${line}`).join('\n');
}

function toPattern(line: string): RegExp {
  return new RegExp(`^${normalize(line).replaceAll(/[\\^$.*+?()[\]{}|]/g, '\\$&').replaceAll('…', '.*')}$`);
}

function normalize(line: string): string {
  const outcome = line.replace(/^(\w+( down)? … )+/, '');
  const words = outcome.replaceAll(/[\w.:+-]*\d(?:[\w.:+-]|,(?=\d))*/g, '0').replaceAll(/\[[# ]+\]/g, '[#]');
  return words.replaceAll(/\b0 (ms|s|min|h|days?)\b/g, '0 s').replaceAll(/\s+/g, ' ').trimEnd();
}

await run('pages', main);
