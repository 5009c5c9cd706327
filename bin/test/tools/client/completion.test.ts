// control-client completion: what may come next, and each shell, typed into a pseudo-terminal.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { isDeepStrictEqual } from 'node:util';
import { COMPLETE, type Shell, SHELLS } from '../../../client/completion.ts';
import { STATUS_WORDS } from '../../../shared/commands.ts';
import { makeFolder } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { type Puppet, startPuppet, startWeb } from '../../puppet.ts';
import { CTRL_C, openTerminal } from '../../screen.ts';
import { LIMIT, until } from '../../wait.ts';
import { at, call, run as runAlone } from './helpers.ts';
import { openSession } from './systems.ts';
import type { CommandDeclaration } from '../../../../control.ts';

/** Another machine, and one more that cannot be reached. */
const [GPU, GPUS] = ["--via 'gpu1=env A=1' --dir DIR status", "gpu1=env A=1, gpu2=sh -c 'exit 9'"];

/** An unfinished line after `control-client`, and what `__complete` prints: the directive, and the words. */
const CANDIDATES: readonly [line: string, printed: string, CONTROL_VIA?: string][] = [
  ['pau', 'words pause'], ['li', 'words list'], ['inv', 'words'],
  ['--port 9000 save', 'words save-state'], ['--ex', 'words --exec'],
  ['watch --ex', 'words --exec'], ['--reason watch status --ex', 'words'],
  ['p --wai', 'words --wait'], ['h --wai', 'words'],
  ['shutdown box:80 --wai', 'words --wait'], ['status --vers', 'words --version'],
  ['x --js', 'words --json'], ['status -h', 'words -h'], ['wait off', 'words offline'],
  ['--timeout 5 wait --json off', 'words offline'], ['wait active off', 'words'],
  ['pause off', 'words'], ['completion zsh fi', 'words'], ['help tra', 'words'],
  ['x tra', 'words'], ['watch --on off', 'words offline'],
  ['watch --on=paused,off', 'words --on=paused,offline'], ['--targets inv', 'files'],
  ['--socket=inv', 'files --socket='], ['list --dir inv', 'files'], ['--host far', 'hosts'],
  ['--host=far', 'hosts --host='], ['--port inv', 'words'], ['status --reason tra', 'words'],
  ['--reason --js', 'words'], ['wait tra', 'words'], ['list tra', 'words train.py'],
  ['run tra', 'words'], ['status tra', 'words train.py'],
  ['--json pause --wait box tra', 'words train.py'], ['watch exp', 'words exp'],
  ['watch exp-1', 'words exp-12'], ['wait paused tra', 'words train.py'],
  ['log tr', 'words train.py trial'], ['log --si', 'words --since'], ['log --al', 'words'],
  ['status --dir none tra', 'words'], ['--port 1 run eval', 'words'],
  ['--by x:1 --reason "to see" run eval', 'words evaluate'], ['run evaluate tra', 'words train.py'],
  ['run mode n', 'words name='], ['run mode log=tr', 'words log=true'],
  ['run evaluate episodes=5 --wai', 'words --wait'],
  ['watch --on ', `words ${[...STATUS_WORDS, 'no-answer', 'ask'].join(' ')}`],
  ['watch --',
    'words --host --port --socket --targets --all --dir --via --exec --on --json --help --version'],
  ['answer ', 'words approved='], ['answer k3', 'words k3f-q2'], ['answer k3f-q2 ', 'words train.py exp approved='],
  ['answer approved=', 'words approved=true approved=false'], ['answer k3f-q2 approved=t', 'words approved=true'],
  ['answer --no', 'words --no'], ['pause --no', 'words'], ['asks e', 'words exp'],
  ['--dir DIR answer exp-12 file=', 'words file=a.pt'], ['--dir DIR answer abc-q7 exp-12 f', 'words file='],
  [`${GPU} g`, 'words gpu1/'], [`${GPU} gpu1/`, 'words gpu1/exp gpu1/train.py'],
  [`${GPU} gpu1/train.py-`, 'words gpu1/train.py-5'], [`--via x=false ${GPU} gpu1/e`, 'words gpu1/exp'],
  ['--dir DIR pause --wait ', 'words gpu1/ gpu2/', GPUS], ['--dir DIR status tr', 'words train.py', GPUS],
  ['--via g', 'hosts'],
];

/** A line, and the arguments that the shell completes it to. */
const LINES: readonly [typed: string, args: string[]][] = [
  ['control-client --host ::1 --by ana@box:1 --reason "a pause" pau\t', [
    '--host', '::1', '--by', 'ana@box:1', '--reason', 'a pause', 'pause',
  ]],
  ['control-client completion fi\t .', ['completion', 'fish', '.']],
  ['control-client watch --on paused,off\t', ['watch', '--on', 'paused,offline']],
  ['control-client watch --on=paused,off\t', ['watch', '--on=paused,offline']],
  ['control-client --targets inv\t', ['--targets', 'inventory.txt']],
  ['control-client --targets=inv\t', ['--targets=inventory.txt']],
  ['control-client status inv\t', ['status', 'inv']],
  ['control-client --host far\t', ['--host', 'faraway']],
  ['control-client status box far\t', ['status', 'box', 'far']],
  ['control-client --json pause --wait box tra\t', ['--json', 'pause', '--wait', 'box', 'train.py']],
  ['control-client --via "gpu1=env A=1" status gp\ttra\t', ['--via', 'gpu1=env A=1', 'status', 'gpu1/train.py']],
  ['control-client run mode log=tr\t n\tslo\t --wai\t', ['run', 'mode', 'log=true', 'name=slow', '--wait']],
];

const COMMANDS: Record<string, CommandDeclaration> = {
  evaluate: { description: 'Runs episodes', parameters: { episodes: { type: 'integer', default: 100 } } },
  mode: { parameters: { name: { type: 'string', enum: ['fast', 'slow'] }, log: { type: 'boolean', default: false } } },
};

/** A text that no shell may run. */
const CODE = '$(touch owned)`touch owned`;touch owned';

for (const shell of SHELLS) {
  it(`control-client completion in ${shell}`, { ...LIMIT, skip: lacks('script', shell) }, async (t) => {
    const { run, offersFor, home, output, system } = await openShell(t, shell);

    await t.test('completes what is typed', async () => {
      for (const [typed, args] of LINES) await passesAtLast(args, () => run(typed));
    });

    await t.test('neither runs nor offers what a hostile system sends', async () => {
      const choices = [CODE, "'", '*', 'plain', '\x1b[2J', { [CODE]: CODE }];
      const parameters = { mode: { type: 'string', enum: choices }, [CODE]: { type: 'boolean' } };
      system.set({ accepts: { [CODE]: {}, set: { parameters } } });
      await passesAtLast(['run', 'set', 'mode=plain'], () => run('control-client run s\t mo\tp\t'));
      assert.ok(!existsSync(join(home, 'owned')));
    });

    await t.test('prints nothing without a response', async () => {
      system.set({ silent: true });
      const { length } = output();
      assert.deepEqual(await run('control-client run s\t'), ['run', 's']);
      assert.doesNotMatch(output().slice(length), /control-client: |rror/);
    });

    await t.test('offers and explains commands and options', async () => {
      const { commands, options } = await readHelp();
      for (const [start, entries] of [['', commands], ['-', options]] as const) {
        await offersFor(`control-client ${start}`, entries.map((entry) => patternOf(shell, entry)));
      }
    });

    if (shell !== 'bash') return;
    await t.test('completes file names without compopt, such as version 3.2', async () => {
      await run('enable -n compopt; control-client done');
      assert.deepEqual(await run('control-client --targets inv\t'), ['--targets', 'inventory.txt']);
      assert.deepEqual(await run('control-client --targets=./inv\t'), ['--targets=./inventory.txt']);
      assert.deepEqual(await run('control-client --reason --js\t'), ['--reason', '--js']);
    });
  });
}

/** Runs the completion in this process, which ends it after 500 ms otherwise. */
async function complete(t: TestContext, line: string, env?: NodeJS.ProcessEnv): Promise<string> {
  const exit = t.mock.method(process, 'exit', () => {});
  const { stdout } = await call([COMPLETE, line], env);
  exit.mock.restore();
  return stdout;
}

describe('control-client completion', LIMIT, () => {
  it('knows what may come next', { skip: lacks('Unix') }, async (t) => {
    const parameters = { approved: { type: 'boolean' } };
    const { port } = await startPuppet(t, { accepts: COMMANDS, asks: [{ id: 'k3f-q2', message: 'Go?', parameters }] });
    const { env, folder, serve } = openSession(t);
    const files = { file: { type: 'string', enum: ['a.pt', '$(x)'] } };
    const asking = { status: 'active', asks: [{ id: 'abc-q7', message: 'A?', parameters: files }] };
    for (const title of ['train.py-5', 'exp-23']) await serve(title);
    await serve('exp-12', () => asking);
    const state = makeFolder(t);
    mkdirSync(join(state, 'control'));
    for (const name of ['trial', 'train.py', 'tr(a)']) writeFileSync(join(state, `control/${name}@gpu1.jsonl`), '');
    for (const [line, printed, CONTROL_VIA = ''] of CANDIDATES) {
      const place = /--(port|host|socket)|^--(dir|via)/.test(line) ? '' : ` ${at(port).join(' ')}`;
      await passesAtLast([line, ...printed.split(' ').sort()], async () => {
        const typed = `control-client${place} ${line.replace('DIR', folder)}`;
        const stdout = await complete(t, typed, { ...env, XDG_STATE_HOME: state, CONTROL_VIA });
        return [line, ...stdout.replaceAll(/\t.*/g, '').trim().split(/\s+/).sort()];
      });
    }
  });

  it('waits at most 500 ms for the live system, and prints no errors', async (t) => {
    const times: number[] = []; // as the system sees it
    const { port: silent } = await startWeb(t, async ({ socket }) => {
      const start = performance.now();
      await once(socket, 'close');
      times.push(performance.now() - start);
      return null;
    });
    const finds = async (options: string): Promise<void> => {
      const ended = await runAlone(t, [COMPLETE, `control-client ${options} run `], '', { CONTROL_PORT: '1' });
      assert.deepEqual(ended, { code: 0, stdout: 'words\n', stderr: '' }, options);
    };
    await until(async () => { // a busy machine may delay some; other requests take 5 s
      await finds(at(silent).join(' '));
      return times.some((ms) => ms < 2000);
    }, () => `${times} ms`);
    for (const options of [at(1).join(' '), '--port wrong', '--prot', '--help', '--targets -']) await finds(options);
  });
});

/** Retries a check that asks a live system: on a busy machine, a response may come too late. */
async function passesAtLast<T>(expected: T, run: () => Promise<T>): Promise<void> {
  let tries = 0;
  let actual: T;
  do actual = await run(); while (!isDeepStrictEqual(actual, expected) && (tries += 1) < 10);
  assert.deepEqual(actual, expected);
}

interface Entry {
  /** The longest word for a command, or the long form of an option. */
  name: string;
  help: string;
}

async function readHelp(): Promise<{ commands: Entry[]; options: Entry[] }> {
  const { stdout } = await call(['--help']);
  const [lines = ''] = stdout.replaceAll(/\n {20,}/g, ' ').split('\nEnvironment');
  const entries = [...lines.matchAll(/^ {2}(?:\S+, )*(\S+)(?: \S+)? {2,}(\S.*)$/gm)].map(([, name = '', help = '']) => {
    return { name, help };
  });
  const options = entries.filter(({ name }) => name.startsWith('-'));
  const commands = entries.filter((entry) => !options.includes(entry));
  assert.ok(commands.length > 8 && options.length > 8, stdout);
  return { commands, options };
}

/** How a shell offers a command or an option. */
function patternOf(shell: Shell, { name, help }: Entry): RegExp {
  const description = help.replaceAll(/[^\w\s]/g, '\\$&');
  const suffix = { bash: '(?![\\w-])', zsh: `( +-\\w)? +-- ${description}`, fish: ` +\\(${description}\\)` }[shell];
  return new RegExp(`(?<![\\w-])${name}${suffix}`);
}

interface OpenShell {
  /** The working directory of the shell. */
  home: string;
  /** The system in its environment, which has COMMANDS. */
  system: Puppet;
  output(): string;
  /** Runs a line, and returns the arguments of the tool that it calls last. */
  run(line: string): Promise<string[]>;
  /** Types an unfinished line, and clears it once the shell offers all parts. */
  offersFor(line: string, parts: RegExp[]): Promise<void>;
}

/** Creates a folder with a control-client that completes, but with other arguments only prints these. */
function makeClient(folder: string): void {
  mkdirSync(folder);
  const tool = `'${process.execPath}' '${resolve('dist/bin/client.js')}'`;
  writeFileSync(join(folder, 'control-client'), `#!/bin/sh
case "$1 $#" in ${COMPLETE}*|'completion 2') exec ${tool} "$@" ;; esac
printf '{%s}' "$@"
echo ';'
`, { mode: 0o755 });
}

/** How to start each shell, and to load the completion. */
const STARTS: Record<Shell, [open: string, load: string]> = {
  bash: ['bash --norc --noprofile -i', 'eval "$(control-client completion bash)"'],
  zsh: ['zsh -f -i', 'autoload -Uz compinit; compinit -u -d dump; eval "$(control-client completion zsh)"'],
  fish: [
    `fish --no-config -i --init-command "function fish_prompt; echo 'ready> '; end"`,
    'control-client completion fish | source',
  ],
};

const ESCAPES = /\x1b(\[[\d;?<>=]*[a-zA-Z]|\][^\x07]*\x07|[=>]|[()]B)|[\r\x0e\x0f]/g;

/** Starts a shell in a pseudo-terminal with such a control-client, and loads the completion. */
async function openShell(t: TestContext, shell: Shell): Promise<OpenShell> {
  const system = await startPuppet(t, { accepts: COMMANDS });
  const home = makeFolder(t);
  for (const folder of ['.ssh', 'control']) mkdirSync(join(home, folder));
  makeClient(join(home, 'bin'));
  writeFileSync(join(home, 'inventory.txt'), '');
  writeFileSync(join(home, 'hosts'), '127.0.0.1 faraway\n');
  writeFileSync(join(home, '.ssh/known_hosts'), 'faraway ssh-ed25519 AAAA\n');
  for (const name of ['train.py-5', 'exp-12', 'exp-23', '$(touch owned)-6', '`touch owned`;-7']) {
    await startWeb(t, undefined, { socketPath: join(home, 'control', `${name}.sock`) });
  }
  const env = {
    HOME: home, XDG_CONFIG_HOME: home, XDG_DATA_HOME: home, XDG_CACHE_HOME: home, XDG_RUNTIME_DIR: home, ZDOTDIR: home,
    PATH: `${join(home, 'bin')}:${process.env['PATH']}`, HOSTFILE: join(home, 'hosts'), LC_ALL: 'C.UTF-8',
    CONTROL_HOST: '127.0.0.1', CONTROL_PORT: `${system.port}`, CONTROL_DIR: join(home, 'control'),
  };
  const [open, load] = STARTS[shell];
  const command = `env -C '${home}' PS1='ready> ' ${open}`;
  const { write, text, output, until } = await openTerminal(t, command, /ready> /, { env, columns: 250, rows: 60 });
  const type = async (keys: string, pattern: RegExp): Promise<string> => {
    const plain = (): string => text().replaceAll(ESCAPES, '');
    write(keys);
    await until(() => pattern.test(plain()), () => `no ${pattern} in ${JSON.stringify(plain())}`);
    return plain();
  };
  const run = async (line: string): Promise<string[]> => {
    const pattern = /\{(.*)\};\s[^]*ready> /;
    const [, args = ''] = pattern.exec(await type(`${line}\r`, pattern)) ?? [];
    return args.split('}{');
  };
  const offersFor = async (line: string, parts: RegExp[]): Promise<void> => {
    const all = new RegExp(parts.map((part) => `(?=[^]*${part.source})`).join(''));
    await type(`${line}${shell === 'bash' ? '\t\t' : '\t'}`, all);
    await type(CTRL_C, /ready> /);
  };
  assert.deepEqual(await run(`${load}; control-client done`), ['done']);
  return { run, offersFor, home, output, system };
}
