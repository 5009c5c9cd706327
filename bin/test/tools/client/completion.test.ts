// control-client completion in bash, zsh and fish, typed into a pseudo-terminal.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { describe, it } from 'node:test';
import { isDeepStrictEqual } from 'node:util';
import { COMPLETE } from '../../../client/completion.ts';
import { SHELLS, STATUS_WORDS } from '../../../shared/words/commands.ts';
import { makeFolder, start, startServer, until } from '../../helpers.ts';
import { LIMIT } from '../../module/helpers.ts';
import { BASH_COMPLETION, lacks } from '../../needs.ts';
import { at, call, run as runAlone } from './helpers.ts';
import { COMPUTING, startOwnProcess, startSilent, startWeb } from './systems.ts';
import type { CommandDeclaration } from '../../../../control.ts';
import type { Shell } from '../../../shared/words/commands.ts';
import type { TestContext } from 'node:test';

/** An unfinished line after `control-client`, and what `__complete` prints: the directive, and the words. */
const CANDIDATES: readonly [line: string, printed: string][] = [
  ['pau', 'words pause'], ['li', 'words list'], ['inv', 'words'], ['--port 9000 save', 'words save-state'],
  ['--ex', 'words --exec'], ['watch --ex', 'words --exec'], ['--reason watch status --ex', 'words'],
  ['p --wai', 'words --wait'], ['h --wai', 'words'], ['shutdown box:80 --wai', 'words --wait'],
  ['status --vers', 'words --version'], ['x --js', 'words --json'], ['status -h', 'words -h'],
  ['wait off', 'words offline'], ['--timeout 5 wait --json off', 'words offline'], ['wait active off', 'words'],
  ['pause off', 'words'], ['completion zsh fi', 'words'], ['help tra', 'words'], ['x tra', 'words'],
  ['watch --on off', 'words offline'], ['watch --on=paused,off', 'words --on=paused,offline'],
  ['--targets inv', 'files'], ['--socket=inv', 'files --socket='], ['list --dir inv', 'files'],
  ['--host far', 'hosts'], ['--host=far', 'hosts --host='], ['--port inv', 'words'], ['status --reason tra', 'words'],
  ['--reason --js', 'words'], ['wait tra', 'words'], ['list tra', 'words'], ['run tra', 'words'],
  ['status tra', 'words train.py'], ['--json pause --wait box tra', 'words train.py'], ['watch exp', 'words exp'],
  ['watch exp-1', 'words exp-12'], ['wait paused tra', 'words train.py'], ['status --dir none tra', 'words'],
  ['run eval', 'words evaluate'], ['run evaluate tra', 'words train.py'], ['run mode n', 'words name='],
  ['run evaluate episodes=5 --wai', 'words --wait'], ['--port 1 run eval', 'words'],
];

/** A line after `control-client`, and the arguments that the shell completes it to. */
const LINES: readonly [typed: string, args: string[]][] = [
  ['pau\t', ['pause']],
  ['--by ana@box:1 --reason "a pause" pau\t', ['--by', 'ana@box:1', '--reason', 'a pause', 'pause']],
  ['--host ::1 pau\t', ['--host', '::1', 'pause']],
  ['--json watch --ex\t', ['--json', 'watch', '--exec']],
  ['completion fi\t .', ['completion', 'fish', '.']],
  ['watch --on paused,off\t', ['watch', '--on', 'paused,offline']],
  ['watch --on=paused,off\t', ['watch', '--on=paused,offline']],
  ['--targets inv\t', ['--targets', 'inventory.txt']],
  ['--targets=inv\t', ['--targets=inventory.txt']],
  ['status inv\t', ['status', 'inv']],
  ['--host far\t', ['--host', 'faraway']],
  ['status box far\t', ['status', 'box', 'far']],
  ['--json pause --wait box tra\t', ['--json', 'pause', '--wait', 'box', 'train.py']],
  ['--reason "to see" run evaluate epi\t5', ['--reason', 'to see', 'run', 'evaluate', 'episodes=5']],
  ['run mode log=tr\t n\tslo\t --wai\t', ['run', 'mode', 'log=true', 'name=slow', '--wait']],
];

/** The same for the other tools, which complete from their help. */
const OTHER_LINES: readonly [typed: string, args: string[]][] = [
  ['control-demo --states\t inv\t', ['--states-dir', 'inventory.txt']],
  ['control-kbctl --pause-k\t x --resu\t', ['--pause-key', 'x', '--resume-key']],
  ['control-board --key-f\t inv\t', ['--key-file', 'inventory.txt']],
  ['control-console --no-h\t', ['--no-history']],
  ['control-run --save-s\t USR1 --gra\t 5', ['--save-signal', 'USR1', '--grace', '5']],
  ['control-run --state inv\t --qui\t', ['--state', 'inventory.txt', '--quiet']],
  ['control-run --quiet control-cli\t inv', ['--quiet', 'control-client', 'inv']],
  ['control-run -- cat --qui\t inv\t', ['--', 'cat', '--qui', 'inventory.txt']],
];

/** Lines that control-run passes to the completion of its command. */
const COMMAND_LINES: readonly [typed: string, args: string[]][] = [
  ['control-run --grace 5 control-client save\t', ['--grace', '5', 'control-client', 'save-state']],
  ['control-run --restart on-failure -- control-client --js\t pau\t', [
    '--restart', 'on-failure', '--', 'control-client', '--json', 'pause',
  ]],
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
      for (const [typed, args] of LINES) await passesAtLast(args, () => run(`control-client ${typed}`));
      assert.ok(!existsSync(join(home, 'owned')));
    });

    it('completes the other tools', async (t) => {
      const { run } = await openShell(t, shell);
      for (const [typed, args] of OTHER_LINES) assert.deepEqual(await run(typed), args, typed);
    });

    it('completes the names of systems for the other tools', { skip: lacks('Unix') }, async (t) => {
      const { run, home } = await openShell(t, shell);
      await startServer(t, { socketPath: join(home, 'control/'), name: 'trainer' });
      const pid = `trainer-${process.pid}`;
      for (const program of ['console --no-history', 'board --listen :0', 'kbctl --pause-key x']) {
        const args = program.split(' ').slice(1);
        await passesAtLast([...args, 'trainer'], () => run(`control-${program} tra\t`));
        await passesAtLast([...args, pid], () => run(`control-${program} trainer-\t`));
      }
    });

    it('offers and explains the options of the other tools', async (t) => {
      const { offersFor } = await openShell(t, shell);
      const entry = { name: '--resume-command', help: 'resume runs this shell command last' };
      await offersFor('control-run --re', [patternOf(shell, entry), /--release-gpu/, /--restart/]);
    });

    it('completes the command of control-run as the shell would by itself', {
      skip: shell === 'bash' && lacks('bashCompletion'),
    }, async (t) => {
      const { run } = await openShell(t, shell);
      if (shell === 'bash') await run(`. ${BASH_COMPLETION}; control-client done`);
      for (const [typed, args] of COMMAND_LINES) assert.deepEqual(await run(typed), args);
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

    it('shows help texts with special characters unchanged', async (t) => {
      const help = 'it\'s [odd] (x): "a:b", $HOME, `id`, \\n \\\' \\\\ * ? ~ {1,2} !! # %d; & | < > …';
      const { offersFor, home } = await openShell(t, shell);
      const odd = `#!/bin/sh\ncat <<'END'\n  --odd A:B  ${help}\n  --version  print\nEND\n`;
      writeFileSync(join(home, 'bin/control-demo'), odd);
      await offersFor('control-demo --', [patternOf(shell, { name: '--odd', help }), /--version/]);
    });
  });
}

it('bash without compopt completes file names', { ...LIMIT, skip: lacks('script', 'bash') }, async (t) => {
  const { run } = await openShell(t, 'bash'); // such as version 3.2
  await run('enable -n compopt; control-client done');
  assert.deepEqual(await run('control-client --targets inv\t'), ['--targets', 'inventory.txt']);
  assert.deepEqual(await run('control-client --targets=./inv\t'), ['--targets=./inventory.txt']);
});

it('bash never offers an option as the value of an option', { ...LIMIT, skip: lacks('script', 'bash') }, async (t) => {
  const { run } = await openShell(t, 'bash');
  assert.deepEqual(await run('control-client --reason --js\t'), ['--reason', '--js']);
});

describe('control-client completion', LIMIT, () => {
  it('knows what may come next', { skip: lacks('Unix') }, async (t) => {
    const { port } = await startServer(t, { commands: COMMANDS });
    const session = makeFolder(t);
    mkdirSync(join(session, 'control'));
    for (const name of ['train.py-5', 'exp-12', 'exp-23']) {
      await startWeb(t, undefined, { socketPath: join(session, 'control', `${name}.sock`) });
    }
    for (const [line, printed] of CANDIDATES) {
      const place = /--(port|host|socket)/.test(line) ? [] : at(port);
      await passesAtLast(printed, async () => {
        const typed = ['control-client', ...place, line].join(' ');
        const { stdout } = await call([COMPLETE, typed], { XDG_RUNTIME_DIR: session });
        return stdout.replaceAll(/\t.*/g, '').trim().replaceAll(/\s+/g, ' ');
      });
    }
  });

  it('offers all commands and options of the help, those of a command, and the values of an option', async () => {
    const { commands, options } = await readHelp();
    const linesFor = async (line: string): Promise<string[]> => {
      return (await call([COMPLETE, `control-client ${line}`])).stdout.trim().split('\n').slice(1);
    };
    const entriesOf = (entries: Entry[]): string[] => entries.map(({ name, help }) => `${name}\t${help}`);
    assert.deepEqual(await linesFor(''), entriesOf(commands));
    assert.deepEqual(await linesFor('--'), entriesOf(options));
    const owned = ['exec', 'on', 'host', 'port', 'socket', 'targets', 'all', 'dir', 'json', 'help', 'version'];
    const offered = (await linesFor('watch --')).map((line) => line.replace(/\t.*/, ''));
    assert.deepEqual(offered.sort(), owned.map((name) => `--${name}`).sort());
    assert.deepEqual(await linesFor('watch --on '), [...STATUS_WORDS, 'no-answer']);
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
      const ended = await runAlone(t, [COMPLETE, `control-client ${options} run `]);
      assert.deepEqual(ended, { code: 0, stdout: 'words\n', stderr: '' }, options);
    }
    await until(() => longestMs > 0);
    assert.ok(longestMs > 100 && longestMs < 2000, `${longestMs.toFixed()} ms; other requests take 5 s`);
  });
});

/** Retries a check that asks a live system: on a busy machine, a response may come too late. */
async function passesAtLast<T>(expected: T, run: () => Promise<T>): Promise<void> {
  if (!isDeepStrictEqual(await run(), expected)) assert.deepEqual(await run(), expected);
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
  const suffix = { bash: '(?![\\w-])', zsh: `( +-h)? +-- ${description}`, fish: ` +\\(${description}\\)` }[shell];
  return new RegExp(`(?<![\\w-])${name}${suffix}`);
}

interface OpenShell {
  /** The working directory of the shell. */
  home: string;
  output(): string;
  /** Runs a line, and returns the arguments of the `control-client` that it calls last. */
  run(line: string): Promise<string[]>;
  /** Types an unfinished line. Returns what the shell offers once that has all parts. */
  offersFor(line: string, parts: RegExp[]): Promise<string>;
}

/**
 * Starts a shell in a pseudo-terminal with a control-client that prints its arguments, and loads the completion.
 *
 * @param port The port of the system in the environment.
 */
async function openShell(
  t: TestContext,
  shell: Shell,
  { port = 1 }: { port?: number } = {},
): Promise<OpenShell> {
  const home = makeFolder(t);
  const wrapper = `#!/bin/sh
if [ "$1 $#" = "completion 2" ]; then exec cat script; fi
if [ "$1" = ${COMPLETE} ]; then exec '${process.execPath}' '${resolve('dist/bin/client.js')}' "$@"; fi
printf '{%s}' "$@"
echo ';'
`;
  mkdirSync(join(home, 'bin'));
  for (const name of ['board', 'console', 'demo', 'kbctl', 'run']) {
    const other = `#!/bin/sh
if [ "$1" = --help ]; then exec '${process.execPath}' '${resolve(`dist/bin/${name}.js`)}' --help; fi
printf '{%s}' "$@"
echo ';'
`;
    writeFileSync(join(home, `bin/control-${name}`), other, { mode: 0o755 });
  }
  mkdirSync(join(home, '.ssh'));
  writeFileSync(join(home, 'bin/control-client'), wrapper, { mode: 0o755 });
  writeFileSync(join(home, 'inventory.txt'), '');
  writeFileSync(join(home, 'script'), (await call(['completion', shell])).stdout);
  writeFileSync(join(home, 'hosts'), '127.0.0.1 faraway\n');
  writeFileSync(join(home, '.ssh/known_hosts'), 'faraway ssh-ed25519 AAAA\n');
  const env = {
    HOME: home, XDG_CONFIG_HOME: home, XDG_DATA_HOME: home, XDG_CACHE_HOME: home, XDG_RUNTIME_DIR: home, ZDOTDIR: home,
    PATH: `${join(home, 'bin')}:${process.env['PATH']}`, HOSTFILE: join(home, 'hosts'), LC_ALL: 'C.UTF-8',
    CONTROL_HOST: '127.0.0.1', CONTROL_PORT: `${port}`,
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
