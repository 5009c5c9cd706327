// control-client completion in bash, zsh and fish, typed into a pseudo-terminal.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { isDeepStrictEqual } from 'node:util';
import { COMPLETE, type Shell, SHELLS } from '../../../client/completion.ts';
import { STATUS_WORDS } from '../../../shared/commands.ts';
import { makeFolder, start, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { at, call, run as runAlone } from './helpers.ts';
import { COMPUTING, openSession, startOwnProcess, startSilent, startWeb } from './systems.ts';
import type { CommandDeclaration } from '../../../../control.ts';

/** An unfinished line after `control-client`, and what `__complete` prints: the directive, and the words. */
const CANDIDATES: readonly [line: string, printed: string][] = [
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

for (const shell of SHELLS) {
  describe(`control-client completion in ${shell}`, { ...LIMIT, skip: lacks('script', shell) }, () => {
    it('completes what is typed', async (t) => {
      const { port } = await startServer(t, { commands: COMMANDS });
      const { run, home } = await openShell(t, shell, { port });
      mkdirSync(join(home, 'control'));
      for (const name of ['train.py-5', 'exp-12', 'exp-23', '$(touch owned)-6', '`touch owned`;-7']) {
        await startWeb(t, undefined, { socketPath: join(home, 'control', `${name}.sock`) });
      }
      for (const [typed, args] of LINES) await passesAtLast(args, () => run(typed));
      assert.ok(!existsSync(join(home, 'owned')));
    });

    it('offers and explains commands and options', async (t) => {
      const { commands, options } = await readHelp();
      for (const [start, entries] of [['', commands], ['-', options]] as const) {
        const { offersFor } = await openShell(t, shell);
        await offersFor(`control-client ${start}`, entries.map((entry) => patternOf(shell, entry)));
      }
    });

    it('neither runs nor offers what a hostile system sends, and prints nothing without a response', async (t) => {
      const code = '$(touch owned)`touch owned`;touch owned';
      const choices = [code, "'", '*', 'plain', '\x1b[2J', { [code]: code }];
      const parameters = { mode: { type: 'string', enum: choices }, [code]: { type: 'boolean' } };
      const { port } = await startWeb(t, () => ({ status: 'active', accepts: { [code]: {}, set: { parameters } } }));
      const { run, home } = await openShell(t, shell, { port });
      await passesAtLast(['run', 'set', 'mode=plain'], () => run('control-client run s\t mo\tp\t'));
      assert.ok(!existsSync(join(home, 'owned')));
      const silent = Number((await startSilent(t)).split(':')[1]);
      const { run: runSilent, output } = await openShell(t, shell, { port: silent });
      assert.deepEqual(await runSilent('control-client run s\t'), ['run', 's']);
      assert.doesNotMatch(output(), /control-client: |rror/);
    });
  });
}

it('bash completes file names without compopt, and never offers an option as the value of an option', {
  ...LIMIT, skip: lacks('script', 'bash'),
}, async (t) => {
  const { run } = await openShell(t, 'bash'); // such as version 3.2
  await run('enable -n compopt; control-client done');
  assert.deepEqual(await run('control-client --targets inv\t'), ['--targets', 'inventory.txt']);
  assert.deepEqual(await run('control-client --targets=./inv\t'), ['--targets=./inventory.txt']);
  assert.deepEqual(await run('control-client --reason --js\t'), ['--reason', '--js']);
});

/** Runs the completion in this process, which ends it after 500 ms otherwise. */
async function complete(t: TestContext, line: string, env?: NodeJS.ProcessEnv): Promise<string> {
  const exit = t.mock.method(process, 'exit', () => {});
  const { stdout } = await call([COMPLETE, line], env);
  exit.mock.restore();
  return stdout;
}

describe('control-client completion', LIMIT, () => {
  it('knows what may come next', { skip: lacks('Unix') }, async (t) => {
    const { port } = await startServer(t, { commands: COMMANDS });
    const { env, serve } = openSession(t);
    for (const title of ['train.py-5', 'exp-12', 'exp-23']) await serve(title);
    const state = makeFolder(t);
    mkdirSync(join(state, 'control'));
    for (const name of ['trial', 'train.py', 'tr(a)']) writeFileSync(join(state, `control/${name}@gpu1.jsonl`), '');
    for (const [line, printed] of CANDIDATES) {
      const place = /^(?!.*--(port|host|socket))/.test(line) ? ` ${at(port).join(' ')}` : '';
      await passesAtLast(printed, async () => {
        const typed = `control-client${place} ${line}`;
        const stdout = await complete(t, typed, { ...env, XDG_STATE_HOME: state });
        return stdout.replaceAll(/\t.*/g, '').trim().replaceAll(/\s+/g, ' ');
      });
    }
  });

  it('offers all commands and options of the help, those of a command, and values', async (t) => {
    const { commands, options } = await readHelp();
    const linesFor = async (line: string): Promise<string[]> => {
      return (await complete(t, `control-client ${line}`)).trim().split('\n').slice(1);
    };
    const entriesOf = (entries: Entry[]): string[] => entries.map(({ name, help }) => `${name}\t${help}`);
    assert.deepEqual(await linesFor(''), entriesOf(commands));
    assert.deepEqual(await linesFor('--'), entriesOf(options));
    const owned = ['exec', 'on', 'host', 'port', 'socket', 'targets', 'all', 'dir', 'via', 'json', 'help', 'version'];
    const ofWatch = (await linesFor('watch --')).map((line) => line.replace(/\t.*/, ''));
    assert.deepEqual(ofWatch.sort(), owned.map((name) => `--${name}`).sort());
    assert.deepEqual(await linesFor('watch --on '), [...STATUS_WORDS, 'no-answer', 'ask']);
  });

  it('completes an answer: ids, parameters and values, those of the target', { skip: lacks('Unix') }, async (t) => {
    const { port, server, client } = await startServer(t);
    const { env, folder, serve } = openSession(t);
    const asks = [{ id: 'abc-q7', message: 'A?', parameters: { file: { type: 'string', enum: ['a.pt', '$(x)'] } } }];
    await serve('exp-1', () => ({ status: 'active', asks }));
    void server.ask('Delete 3 branches?');
    const [id] = (await client.getInfo())?.asks?.map((ask) => ask.id) ?? [];
    const rows: [words: string, found: string][] = [
      ['answer ', 'approved='], [`answer ${id?.slice(0, 3)}`, `${id}`], [`answer ${id} `, 'approved= exp'],
      ['answer approved=', 'approved=false approved=true'], [`answer ${id} approved=t`, 'approved=true'],
      ['answer --no', '--no'], ['pause --no', ''], ['asks e', 'exp'],
    ];
    const find = async (line: string): Promise<string> => {
      const lines = (await complete(t, `control-client ${line}`, env)).split('\n').slice(1);
      return lines.map((text) => text.replace(/\t.*/, '')).filter((text) => text !== '').sort().join(' ');
    };
    for (const [words, found] of rows) await passesAtLast(found, () => find(`${at(port).join(' ')} ${words}`));
    await passesAtLast('file=a.pt', () => find(`--dir ${folder} answer exp-1 file=`));
    await passesAtLast('file=', () => find(`--dir ${folder} answer abc-q7 exp-1 f`));
  });

  it('offers the machines of --via, and then the systems there', { skip: lacks('Unix') }, async (t) => {
    const { folder, serve } = openSession(t);
    for (const title of ['train-5', 'eval-6']) await serve(title);
    const [via, both] = [`gpu1=env A=1`, `gpu1=env A=1, gpu2=sh -c 'exit 9'`];
    const rows: [line: string, found: string, CONTROL_VIA?: string][] = [
      [`--via '${via}' --dir ${folder} status g`, 'gpu1/'],
      [`--via '${via}' --dir ${folder} status gpu1/`, 'gpu1/eval gpu1/train'],
      [`--via '${via}' --dir ${folder} status gpu1/train-`, 'gpu1/train-5'],
      [`--dir ${folder} pause --wait `, 'gpu1/ gpu2/', both],
      [`--dir ${folder} status ev`, 'eval', both], // the other machine cannot be reached
      [`--via 'x=false' --via '${via}' --dir ${folder} status gpu1/e`, 'gpu1/eval'],
    ];
    for (const [line, found, CONTROL_VIA = ''] of rows) {
      await passesAtLast(found, async () => {
        const stdout = await complete(t, `control-client ${line}`, { CONTROL_VIA, XDG_STATE_HOME: folder });
        return stdout.split('\n').slice(1, -1).sort().join(' ');
      });
    }
    assert.equal(await complete(t, 'control-client --via g'), 'hosts \n');
  });

  it('completes with a system that computes', { skip: lacks('Linux') }, async (t) => {
    const { port } = await startOwnProcess(t, COMPUTING);
    for (const [line, stdout] of [['run ', 'words\nevaluate\n'], ['run evaluate ', 'words\nepisodes=\n']] as const) {
      const args = [COMPLETE, `control-client ${at(port).join(' ')} ${line}`];
      await passesAtLast({ code: 0, stdout, stderr: '' }, () => runAlone(t, args));
    }
  });

  it('waits 500 ms for the live system, and prints no errors', async (t) => {
    let longestMs = 0; // as the system sees it
    const { port: silent } = await startWeb(t, async ({ socket }) => {
      const start = performance.now();
      await once(socket, 'close');
      longestMs = Math.max(longestMs, performance.now() - start);
      return null;
    });
    const addresses = [silent, silent, silent, 1].map((port) => at(port).join(' ')); // a busy machine may delay some
    const lines = [...addresses, '--port wrong', '--prot', '--help', '--targets -', 'wait'];
    for (const options of lines) {
      const ended = await runAlone(t, [COMPLETE, `control-client ${options} run `], '', { CONTROL_PORT: '1' });
      assert.deepEqual(ended, { code: 0, stdout: 'words\n', stderr: '' }, options);
    }
    await until(() => longestMs > 0);
    assert.ok(longestMs > 100 && longestMs < 2000, `${longestMs.toFixed()} ms; other requests take 5 s`);
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
  output(): string;
  /** Runs a line, and returns the arguments of the tool that it calls last. */
  run(line: string): Promise<string[]>;
  /** Types an unfinished line. Returns what the shell offers once that has all parts. */
  offersFor(line: string, parts: RegExp[]): Promise<string>;
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

/**
 * Starts a shell in a pseudo-terminal with such a control-client, and loads the completion.
 *
 * @param port The port of the system in the environment.
 */
async function openShell(
  t: TestContext,
  shell: Shell,
  { port = 1 }: { port?: number } = {},
): Promise<OpenShell> {
  const home = makeFolder(t);
  makeClient(join(home, 'bin'));
  mkdirSync(join(home, '.ssh'));
  writeFileSync(join(home, 'inventory.txt'), '');
  writeFileSync(join(home, 'hosts'), '127.0.0.1 faraway\n');
  writeFileSync(join(home, '.ssh/known_hosts'), 'faraway ssh-ed25519 AAAA\n');
  const env = {
    HOME: home, XDG_CONFIG_HOME: home, XDG_DATA_HOME: home, XDG_CACHE_HOME: home, XDG_RUNTIME_DIR: home, ZDOTDIR: home,
    PATH: `${join(home, 'bin')}:${process.env['PATH']}`, HOSTFILE: join(home, 'hosts'), LC_ALL: 'C.UTF-8',
    CONTROL_HOST: '127.0.0.1', CONTROL_PORT: `${port}`, CONTROL_DIR: join(home, 'control'),
  };
  const [open, load] = {
    bash: ['bash --norc --noprofile -i', 'eval "$(control-client completion bash)"'],
    zsh: ['zsh -f -i', 'autoload -Uz compinit; compinit -u -d dump; eval "$(control-client completion zsh)"'],
    fish: [
      `fish --no-config -i --init-command "function fish_prompt; echo 'ready> '; end"`,
      'control-client completion fish | source',
    ],
  }[shell];
  const command = `cd '${home}'; stty cols 250 rows 60; exec env PS1='ready> ' ${open}`;
  const { child, output } = start(t, 'script', ['--quiet', '--return', '--command', command, '/dev/null'], env);
  let seen = 0;
  const text = (): string => {
    return output().slice(seen).replaceAll(/\x1b(\[[\d;?<>=]*[a-zA-Z]|\][^\x07]*\x07|[=>]|[()]B)|[\r\x0e\x0f]/g, '');
  };
  const shows = async (pattern: RegExp): Promise<RegExpExecArray> => {
    await until(() => pattern.test(text()), () => `no ${pattern} in ${JSON.stringify(text())}`);
    return pattern.exec(text()) as RegExpExecArray;
  };
  const type = (keys: string): void => {
    seen = output().length;
    child.stdin?.write(keys);
  };
  const run = async (line: string): Promise<string[]> => {
    type(`${line}\r`);
    const [, args = ''] = await shows(/\{(.*)\};\s[^]*ready> /);
    return args.split('}{');
  };
  const offersFor = async (line: string, parts: RegExp[]): Promise<string> => {
    type(`${line}${shell === 'bash' ? '\t\t' : '\t'}`);
    for (const part of parts) await shows(part);
    return text();
  };
  await shows(/ready> /);
  assert.deepEqual(await run(`${load}; control-client done`), ['done']);
  return { run, offersFor, home, output };
}
