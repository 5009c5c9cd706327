// control-client completion in each shell, typed into a pseudo-terminal; completion.txt has what may come next.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { isDeepStrictEqual } from 'node:util';
import { COMPLETE, type Shell, SHELLS } from '../../../client/completion.ts';
import { makeFolder } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { type Puppet, startPuppet, startWeb } from '../../puppet.ts';
import { CTRL_C, openTerminal } from '../../screen.ts';
import { LIMIT, until } from '../../wait.ts';
import { at, call, run as runAlone } from './helpers.ts';
import type { CommandDeclaration } from '../../../../control.ts';

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

describe('control-client completion', LIMIT, () => {
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
    const failing = [at(1).join(' '), '--port wrong', '--prot', '--help', '--targets -', "--via m='sh -c false'"];
    for (const options of failing) await finds(options);
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
    const isFish = shell === 'fish'; // which may take the first for its list alone
    await type(CTRL_C, /ready> /).catch((error) => isFish ? type(CTRL_C, /ready> /) : Promise.reject(error));
  };
  assert.deepEqual(await run(`${load}; control-client done`), ['done']);
  return { run, offersFor, home, output, system };
}
