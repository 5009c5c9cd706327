// The command line of control-run.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { isatty } from 'node:tty';
import { VERSION } from '../../../../control.ts';
import { parseCommandLine } from '../../../run/options.ts';
import { UsageError } from '../../../shared/cli.ts';
import { LogFile } from '../../../shared/logfile.ts';
import { runProgram, start, WRONG_ACCESS } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { asOn } from './helpers.ts';

const DURATION = 'must be a number of seconds or a duration (30m, 2h, 1.5d), above 0 and up to 24d';

/** Invalid command lines, with their messages. */
const WRONG: [args: string[], message: string][] = [
  [[], 'COMMAND is missing; see --help'],
  [['--'], 'COMMAND is missing; see --help'],
  [['--nice', '5', 'true'], "unknown option '--nice'; see --help"],
  [['--grace', '--', 'true'],
    '--grace requires a value (write --grace=VALUE if it starts with a dash); see --help'],
  [['--port', '65536', 'true'], "--port must be an integer from 0 to 65535, got '65536'"],
  [['--grace', '0', 'true'], `--grace ${DURATION}, got '0'`],
  [['--force-stop=-1', 'true'], `--force-stop ${DURATION}, got '-1'`],
  ...['SAVE', '10', 'SIGKILL', 'stop', 'CONT', 'TSTP', 'term'].map((name): [string[], string] => {
    const message = 'must be the name of a signal that a program can handle, such as USR1, got';
    return [['--save-signal', name, 'true'], `--save-signal ${message} '${name}'`];
  }),
  ...['save', 'pause', 'resume'].map((name): [string[], string] => [
    [`--${name}-command`, '', 'true'], `--${name}-command must not be empty`,
  ]),
  ...['', 'a\nb', 'x'.repeat(201)].map((name): [string[], string] => [
    ['--name', name, 'true'], `--name must be 1 to 200 characters, none of them a control character, got '${name}'`,
  ]),
  [['--save-command', 'true', '--save-signal', 'USR1', 'true'],
    '--save-signal and --save-command are mutually exclusive'],
  [['--no-log', '--log', 'FILE', 'true'], '--log and --no-log are mutually exclusive'],
  [['--log', '', 'true'], '--log must not be empty'],
  [['--python', 'train.py'], "--python takes no COMMAND, got 'train.py'"],
  [['--restart', 'always', 'true'], "--restart must be on-failure or on-failure:N, got 'always'"],
  ...['0', ''].map((count): [string[], string] => [
    ['--restart', `on-failure:${count}`, 'true'],
    `the N in --restart on-failure:N must be an integer from 1 to 1000000, got '${count}'`,
  ]),
];

/** Command lines, with the names of their programs. */
const NAMES: readonly [line: string[], name: string][] = [
  [['./train'], 'train'], [['/opt/bin/solver', '--case', '1'], 'solver'], [['7z', 'a', 'x.7z', 'data'], '7z'],
  [['python', '../src/train.py', 'old.py'], 'train.py'], [['nice', '-n', '5', 'python3', '-u', 'train.py'], 'train.py'],
  [['java', '-jar', 'lib/app.jar'], 'app.jar'], [['python', '-m', 'pkg.train'], 'python'], [['ls', '.py'], 'ls'],
  [['sh', '-c', 'cd /data && exec python3 train.py > log'], 'train.py'], [['sh', '-c', 'A="x y"; ./solver'], 'sh'],
  [['sh', '-c', 'exec "./my run.sh"'], 'run.sh'], [['/opt/my tool/run it'], 'run it'],
  [[''], 'command'], [['/'], 'command'], [['', ''], 'command'],
];

function parse(...args: string[]): NonNullable<ReturnType<typeof parseCommandLine>> {
  return parseCommandLine(args) ?? assert.fail();
}

/** The settings without options. */
const DEFAULTS = {
  saveSignal: undefined, saveCommand: undefined, pauseCommand: undefined, resumeCommand: undefined,
  state: undefined, log: new LogFile({}, ''), isOnTerminal: isatty(0), isQuiet: false,
};

describe('control-run: the command line', () => {
  it('refuses Windows in one line', async (t) => {
    const [file, ...args] = asOn('win32').line(t);
    const stderr = 'control-run: Windows lacks the signals that it requires: use WSL\n';
    for (const more of [['echo', 'started'], ['--save-command', 'true', 'echo', 'started'], []]) {
      const ended = await start(t, file, [...args, '--port', '0', ...more]).ended;
      assert.deepEqual(ended, { code: 2, stdout: '', stderr });
    }
  });

  it('refuses wrong options', () => {
    for (const [args, message] of WRONG) {
      assert.throws(() => parseCommandLine(args), { message });
      assert.throws(() => parseCommandLine(args), UsageError);
    }
    for (const [what, args, token, message] of WRONG_ACCESS) {
      if (token !== '') continue; // the token is read when the program starts
      const command = args.at(-1) === '--socket' ? [] : ['true'];
      assert.throws(() => parseCommandLine([...args, ...command]), { message }, what);
    }
  });

  it('says where a wrong name is from', async (t) => {
    const named = await runProgram(t, 'run', ['true'], '', { CONTROL_NAME: 'a\tb' });
    assert.deepEqual([named.code, named.stdout], [2, '']);
    assert.match(named.stderr, /^control-run: CONTROL_NAME must be 1 to 200 characters, .*, got 'a b'\n$/);
  });

  it('takes the first argument that is no option, or follows --, as COMMAND', () => {
    const rest = ['--', '--help', '-h', '--version', '--port', 'x', '--', '--grace=', '-', '', "it's $HOME", 'ü\n'];
    assert.deepEqual(parse('printf', ...rest).settings.line, ['printf', ...rest]);
    assert.deepEqual(parse('--', 'printf', ...rest).settings.line, ['printf', ...rest]);
    assert.deepEqual(parse('--grace', '5', '--', '--grace', '6').settings.line, ['--grace', '6']);
    assert.deepEqual(parse('--grace', '5', '-').settings.line, ['-']);
  });

  it('takes values with =, and signal names in any case, with or without SIG', { skip: lacks('Unix') }, () => {
    const { settings, access } = parse(
      '--grace=.5', '--force-stop=1.', '--restart=on-failure:3', '--save-signal=sigusr1', '--host=::1', '--port=0',
      '--allow-host=box.lan', '--allow-host=.test', '/bin/sleep', '1',
    );
    assert.deepEqual(settings, {
      ...DEFAULTS, line: ['/bin/sleep', '1'], name: 'sleep', saveSignal: 'SIGUSR1', graceMs: 500, forceStopMs: 1000,
      maxRestarts: 3,
    });
    const { host, port, allowedHosts, name } = access;
    assert.deepEqual([host, port, allowedHosts, name], ['::1', 0, ['box.lan', '.test'], 'sleep']);
    assert.equal(parse('--name', 'lr 0.1 €', 'python3', '-u', 'train.py').access.name, 'lr 0.1 €');
    assert.equal(parse('--save-signal', 'Usr2', 'true').settings.saveSignal, 'SIGUSR2');
    assert.equal(parse('--restart', 'on-failure', 'true').settings.maxRestarts, Infinity);
    assert.deepEqual(parse('true').settings, {
      ...DEFAULTS, line: ['true'], name: 'true', graceMs: 10_000, forceStopMs: undefined, maxRestarts: 0,
    });
  });

  it('names the program after the first script, or else after the command; never with an empty text', () => {
    assert.deepEqual(NAMES.map(([line]) => [line, parse('--', ...line).access.name]), NAMES);
  });

  it('prints the help and the version instead of starting anything', async (t) => {
    for (const option of ['--help', '-h']) {
      const { code, stdout, stderr } = await runProgram(t, 'run', [option, 'echo', 'started']);
      assert.deepEqual([code, stderr], [0, '']);
      assert.match(stdout, /^Usage: control-run \[options\] \[--\] COMMAND \[ARGUMENT…\]\n/);
      for (const name of ['port', 'allow-host', 'save-signal', 'force-stop', 'restart', 'python', 'help']) {
        assert.match(stdout, new RegExp(`^  (-\\w, )?--${name}\\b`, 'm'));
      }
      assert.deepEqual(stdout.split('\n').filter((line) => line.length > 120 || line === 'started'), []);
    }
    const version = { code: 0, stdout: `${VERSION}\n`, stderr: '' };
    assert.deepEqual(await runProgram(t, 'run', ['--version', 'echo', 'started']), version);
  });
});
