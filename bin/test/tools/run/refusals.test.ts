// The command line of control-run: what it refuses, with exit code 2 and one line, before anything starts or is
// written, and what it takes. The rows run in one process, which loads the tool anew for each.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync, chownSync, mkdirSync, readdirSync, readFileSync, statSync, symlinkSync, writeFileSync,
} from 'node:fs';
import { get, type IncomingMessage, request } from 'node:http';
import { join, resolve } from 'node:path';
import { after, describe, it, type TestContext } from 'node:test';
import { pathToFileURL } from 'node:url';
import { VERSION } from '../../../../control.ts';
import { assertHarmless, type Ended, makeFolder, platformIs, runProgram, start, WRONG_ACCESS } from '../../helpers.ts';
import { lacks, NOBODY } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { endRun, IN_PROC, run } from './helpers.ts';

/** A command line, with COMMAND; what precedes it is a text of words, or a list. */
type Row = readonly [options: string | readonly string[], line: string | RegExp];

const DURATION = 'must be a number of seconds or a duration (30m, 2h, 1.5d), above 0 and up to 24d';
const SIGNAL = 'must be the name of a signal that a program can handle, such as USR1, got';
const NAME = 'must be 1 to 200 characters, none of them a control character, got';
const NOBODY_ANSWERS = 'nobody can answer: not under control-run, which sets CONTROL_RUN_SOCKET';

const OPTIONS: readonly Row[] = [
  ['--nice 5', "unknown option '--nice'; see --help"],
  [['--grace', '--'], '--grace requires a value (write --grace=VALUE if it starts with a dash); see --help'],
  ['--port 65536', "--port must be an integer from 0 to 65535, got '65536'"],
  ['--grace 0', `--grace ${DURATION}, got '0'`],
  ['--force-stop=-1', `--force-stop ${DURATION}, got '-1'`],
  ...['SAVE', '10', 'SIGKILL', 'stop', 'CONT', 'TSTP', 'term'].map((name): Row => {
    return [`--save-signal ${name}`, `--save-signal ${SIGNAL} '${name}'`];
  }),
  ...['save-command', 'pause-command', 'resume-command', 'log', 'state'].map((name): Row => {
    return [[`--${name}`, ''], `--${name} must not be empty`];
  }),
  [['--name', ''], `--name ${NAME} ''`],
  [['--name', 'a\nb'], `--name ${NAME} 'a b'`],
  [`--name ${'x'.repeat(201)}`, `--name ${NAME} '${'x'.repeat(201)}'`],
  ['--save-command true --save-signal USR1', '--save-signal and --save-command are mutually exclusive'],
  ['--no-log --log FILE', '--log and --no-log are mutually exclusive'],
  ['--restart always', "--restart must be on-failure or on-failure:N, got 'always'"],
  ...['0', ''].map((count): Row => [
    `--restart on-failure:${count}`,
    `the N in --restart on-failure:N must be an integer from 1 to 1000000, got '${count}'`,
  ]),
];

/** Without COMMAND. */
const BARE: readonly Row[] = [
  ['', 'COMMAND is missing; see --help'],
  ['--', 'COMMAND is missing; see --help'],
  ['--python train.py', "--python takes no COMMAND, got 'train.py'"],
  ['ask', 'MESSAGE is missing; see control-run ask --help'],
  ['ask Deploy now', "unexpected argument 'now'; see --help"],
  ['ask Deploy? --timeout 0', `--timeout ${DURATION}, got '0'`],
  ['ask Deploy? --timeout soon', `--timeout ${DURATION}, got 'soon'`],
  ['ask Deploy? --parameters {file}', "--parameters must be JSON, got '{file}'"],
  ['ask Deploy? --wait', "unknown option '--wait'; see --help"],
  ['ask Deploy?', NOBODY_ANSWERS],
];

const NOT_JSON = 'it is truncated or not JSON';
const STATUS = 'its "status" must be "active" or "paused"';
const HOLDS = 'its "holds" must be a list of objects, at least one';
const SINCE = 'its "since" must be a time such as "20';

/** Files for --state. */
const STATES: readonly [content: string, why: string][] = [
  ['', NOT_JSON], ['{"status":"paused","by":"an', NOT_JSON], ['#!/bin/sh\n', NOT_JSON], ['[]', STATUS],
  ['null', STATUS], ['{"name":"app"}', STATUS], ['{"status":"shutting down"}', STATUS],
  ['{"status":"paused","holds":7}', HOLDS], ['{"status":"paused","holds":[]}', HOLDS],
  ['{"status":"paused","holds":[null]}', HOLDS],
  ['{"status":"paused","holds":[{},{"by":7}]}', 'its "by" must be a text'],
  ['{"status":"paused","reason":null}', 'its "reason" must be a text'],
  ['{"status":"paused","since":7}', SINCE], ['{"status":"paused","since":"noon"}', SINCE],
  ['{"status":"paused","since":"1969-12-31"}', SINCE], [' '.repeat(65_537), 'it is too large'],
];

/** Command lines, with the names of their programs. */
const NAMES: readonly [name: string, ...line: string[]][] = [
  ['train', './train'], ['solver', '/opt/bin/solver', '--case', '1'], ['7z', '7z', 'a', 'x.7z', 'data'],
  ['train.py', 'python', '../src/train.py', 'old.py'], ['train.py', 'nice', '-n', '5', 'python3', '-u', 'train.py'],
  ['app.jar', 'java', '-jar', 'lib/app.jar'], ['python', 'python', '-m', 'pkg.train'], ['ls', 'ls', '.py'],
  ['train.py', 'sh', '-c', 'cd /data && exec python3 train.py > log'], ['sh', 'sh', '-c', 'A="x y"; ./solver'],
  ['run.sh', 'sh', '-c', 'exec "./my run.sh"'], ['run_it', '/opt/my tool/run it'],
  ['command', ''], ['command', '/'], ['command', '', ''],
];

/** Runs the tool once for each row of standard input, and writes its exit code after what it prints. */
const RUNNER = `
  const { writeSync } = require('node:fs');
  process.stdin.setEncoding('utf8').on('data', (text) => (input += text)).on('end', run);
  let input = '';
  async function run() {
    for (const [index, [args, variables]] of JSON.parse(input).entries()) {
      process.argv = [process.argv[0], 'control-run', ...args];
      Object.assign(process.env, variables);
      await import('${pathToFileURL('dist/bin/run.js')}?' + index);
      for (const name of Object.keys(variables)) delete process.env[name];
      for (const fd of [1, 2]) writeSync(fd, '\\0' + process.exitCode + '\\0');
    }
    process.exitCode = 0;
  }`;

describe('control-run: the command line', { ...LIMIT, skip: lacks('Unix') }, () => {
  const folder = makeFolder({ after });
  const command = (): string[] => ['touch', join(folder, 'started')];

  /** Runs command lines in one process, as on this platform or on another one. */
  async function runAll(
    t: TestContext,
    rows: readonly [args: readonly string[], variables: NodeJS.ProcessEnv][],
    source: string = '',
  ): Promise<Ended[]> {
    const running = start(t, process.execPath, ['-e', `${source};${RUNNER}`]);
    running.child.stdin?.end(JSON.stringify(rows));
    const { stdout, stderr } = await running.ended;
    const [out, errors] = [stdout, stderr].map((text) => text.split('\0')) as [string[], string[]];
    assert.equal(out.length, 2 * rows.length + 1, stderr);
    return rows.map((_, index) => {
      const [stdout = '', code = '', stderr = ''] = [out[2 * index], out[2 * index + 1], errors[2 * index]];
      return { code: Number(code), stdout, stderr };
    });
  }

  /** Fails unless each is refused with its line, and nothing is written or started. */
  async function refuses(t: TestContext, rows: readonly Row[], bare: readonly Row[] = []): Promise<void> {
    const files = (): unknown => readdirSync(folder).map((name) => [name, contentOf(join(folder, name))]);
    const filesBefore = files();
    const words = (options: Row[0]): readonly string[] => typeof options === 'string' ? options.split(' ') : options;
    const lines = [...rows.map(([options]) => [...words(options), ...command()]), ...bare.map(([line]) => words(line))];
    const ended = await runAll(t, lines.map((line) => [line.filter((word, index) => word !== '' || index > 0), {}]));
    for (const [index, [, line]] of [...rows, ...bare].entries()) {
      const { code, stdout, stderr } = ended[index] as Ended;
      assert.deepEqual([code, stdout], [2, ''], `${lines[index]}: ${stderr}`);
      assert.match(stderr, /^control-run: .*\n$/);
      assertHarmless(stderr);
      if (typeof line === 'string') assert.equal(stderr, `control-run: ${line}\n`);
      else assert.match(stderr, line);
    }
    assert.deepEqual(files(), filesBefore);
  }

  it('refuses wrong options', (t) => refuses(t, OPTIONS, BARE));

  it('refuses a wrong address or token, in words that do not contain it', async (t) => {
    const rows = WRONG_ACCESS.map(([, args, token]): [string[], NodeJS.ProcessEnv] => {
      const line = args.at(-1) === '--socket' ? args : [...args, ...command()];
      return [line, { CONTROL_TOKEN: token }];
    });
    const named = { CONTROL_NAME: 'a\tb' };
    const ended = await runAll(t, [...rows, [['--socket', '/nowhere/control.sock', ...command()], named]]);
    const lines = [...WRONG_ACCESS.map(([, , , line]) => line), `CONTROL_NAME ${NAME} 'a b'`];
    const expected = lines.map((line) => ({ code: 2, stdout: '', stderr: `control-run: ${line}\n` }));
    assert.deepEqual(ended, expected);
    assert.deepEqual(readdirSync(folder), []);
  });

  it('refuses a --state that is damaged, and leaves it unchanged', async (t) => {
    const remedy = '; remove the file to start active, or give another path\n';
    await refuses(t, STATES.map(([content, why], index): Row => {
      const path = join(folder, `state${index}`);
      writeFileSync(path, content);
      const line = startAndEnd(`cannot read --state '${path}': ${why}`, remedy);
      return [['--log', join(folder, 'log'), '--state', path], line];
    }));
  });

  it('refuses a --state that is no file or cannot be written', async (t) => {
    const link = join(folder, 'link');
    symlinkSync(join(folder, 'nowhere'), link);
    const remedy = '; --state requires a file that can be replaced, in a writable folder\n';
    await refuses(t, [
      [['--state', folder], startAndEnd(`cannot read --state '${folder}': it is a folder; remove`, '')],
      ['--state /dev/null', startAndEnd("cannot read --state '/dev/null': it is not a regular file; remove", '')],
      ...[join(folder, 'no/state'), link].map((path): Row => {
        return [['--state', path], startAndEnd(`cannot write to '${path}': ENOENT: `, remedy)];
      }),
    ]);
  });

  it('refuses an unusable --log', async (t) => {
    const [linked, fifo] = [join(folder, 'linked'), join(folder, 'fifo')];
    symlinkSync(join(folder, 'other'), linked);
    execFileSync('mkfifo', [fifo]);
    mkdirSync(join(folder, 'folder'));
    const remedy = '; --log requires a file of this user, in a folder of its own\n';
    const rows: [path: string, reason: string][] = [
      [linked, 'it is a symbolic link'], [fifo, 'it is not a regular file'],
      [join(folder, 'folder'), 'EISDIR: illegal operation on a directory'],
      [`${folder}/none/`, 'EISDIR: illegal operation on a directory'], [join(folder, 'no/log'), 'ENOENT: no such file'],
    ];
    if (lacks('root') === false) {
      const foreign = join(folder, 'foreign');
      writeFileSync(foreign, '');
      chownSync(foreign, 65_534, 65_534);
      rows.push([foreign, 'it belongs to another user']);
    }
    await refuses(t, rows.map(([path, reason]) => {
      return [['--log', path], startAndEnd(`cannot log to '${path}': ${reason}`, remedy)];
    }));
  });

  it('refuses a --log that this user may not write', { skip: lacks('nobody') }, async (t) => {
    const shared = makeFolder(t);
    chmodSync(shared, 0o755);
    const log = join(shared, 'log');
    writeFileSync(log, '', { mode: 0o600 });
    const [file, ...args] = IN_PROC.line(t);
    const [first = '', ...words] = file === NOBODY[0] ? [file, ...args] : [...NOBODY, file, ...args];
    const { code, stderr } = await start(t, first, [...words, '--log', log, ...command()]).ended;
    const remedy = '--log requires a file of this user, in a folder of its own';
    const line = `control-run: cannot log to '${log}': EACCES: permission denied, open '${log}'; ${remedy}\n`;
    assert.deepEqual([code, stderr], [2, line]);
  });

  it('refuses arguments and variables that are not UTF-8: the program would get other bytes', async (t) => {
    for (const [script, name] of [
      ['exec "$@" "$(printf "M\\374ller.txt")"', 'M\ufffdller.txt'],
      ['export SECRET="$(printf "ab\\374")"; exec "$@"', 'SECRET'],
    ] as const) {
      const args = ['-c', script, 'sh', process.execPath, resolve('dist/bin/run.js'), ...command()];
      const { code, stderr } = await start(t, 'sh', args).ended;
      const line = `'${name}' in arguments or environment is not UTF-8, so the program would get other bytes`;
      assert.deepEqual([code, stderr], [2, `control-run: ${line}\n`]);
    }
    assert.equal((await run(t, [], ['echo', 'Müller', '\ufffd'], '', { NAME: 'Müller' })).stdout, 'Müller \ufffd\n');
  });

  it('refuses Windows in one line', async (t) => {
    const rows = [command(), ['--save-command', 'true', ...command()], []];
    const ended = await runAll(t, rows.map((args) => [args, {}]), platformIs('win32'));
    const stderr = 'control-run: Windows lacks the signals that it requires: use WSL\n';
    assert.deepEqual(ended, rows.map(() => ({ code: 2, stdout: '', stderr })));
  });

  it('names the program after the first script, or else after the command; never with an empty text', async (t) => {
    const place = `/nowhere/${'x'.repeat(90)}/`; // too long for a socket
    const ended = await runAll(t, NAMES.map(([, ...line]) => [['--socket', place, '--', ...line], {}]));
    const named = ended.map(({ stderr }) => new RegExp(`${place}(.+)-\\d+\\.sock'\n$`).exec(stderr)?.[1]);
    assert.deepEqual(named, NAMES.map(([name]) => name));
  });

  it('takes the first argument that is no option, or follows --, as COMMAND', async (t) => {
    const rest = ['--', '--help', '-h', '--version', '--port', 'x', '--', '--grace=', '-', '', "it's $HOME", 'ü\n'];
    for (const separator of [[], ['--']]) {
      const { stdout } = await run(t, ['--grace=.5', '--restart=on-failure'], [...separator, 'printf', '%s|', ...rest]);
      assert.equal(stdout, `${rest.join('|')}|`);
    }
  });

  it('takes values with =, several --allow-host, and signal names in any case, with or without SIG', {
    skip: lacks('IPv6'),
  }, async (t) => {
    const script = "trap 'echo one' USR1; trap 'echo two' USR2; while :; do sleep 0.05; done";
    for (const [signal, line] of [['sigusr1', /one/], ['Usr2', /two/]] as const) {
      const options = ['--host=::1', '--port=0', '--allow-host=box.lan', '--allow-host=.test', '--grace=.5',
        '--force-stop=1.', '--restart=on-failure:3', `--save-signal=${signal}`];
      const running = start(t, process.execPath, [resolve('dist/bin/run.js'), ...options, 'sh', '-c', script]);
      t.after(() => endRun(running));
      const url = /web API at http:\/\/\S+:(\d+)/;
      await running.shows(url);
      const port = Number(url.exec(running.output())?.[1]);
      const statuses = await Promise.all(['box.lan', 'a.test', 'elsewhere.lan'].map(async (name) => {
        const request = get({ host: '::1', port, path: '/api/status', agent: false, headers: { Host: name } });
        const [response] = await once(request, 'response') as [IncomingMessage];
        response.resume();
        return response.statusCode;
      }));
      assert.deepEqual(statuses, [200, 200, 403]);
      request({ host: '::1', port, path: '/api/save-state', method: 'POST', agent: false }).end();
      await running.shows(line);
    }
  });

  it('prints the help and the version instead of starting anything', async (t) => {
    const [help, short, version, ask] = await runAll(t, [
      [['--help', ...command()], {}], [['-h', ...command()], {}], [['--version', ...command()], {}],
      [['ask', '--help'], {}],
    ]) as [Ended, Ended, Ended, Ended];
    assert.deepEqual([help, short], [{ ...help, code: 0, stderr: '' }, help]);
    assert.match(help.stdout, /^Usage: control-run \[options\] \[--\] COMMAND \[ARGUMENT…\]\n/);
    for (const name of ['port', 'allow-host', 'save-signal', 'force-stop', 'restart', 'python', 'help']) {
      assert.match(help.stdout, new RegExp(`^  (-\\w, )?--${name}\\b`, 'm'));
    }
    assert.match(ask.stdout, /^Usage: control-run ask MESSAGE /);
    assert.deepEqual((help.stdout + ask.stdout).split('\n').filter((line) => line.length > 120), []);
    assert.deepEqual(version, { code: 0, stdout: `${VERSION}\n`, stderr: '' });
    assert.deepEqual(await runProgram(t, 'run', ['--version']), version, 'also in a process of its own');
  });
});

function startAndEnd(text: string, end: string): RegExp {
  const escape = (one: string): string => one.replaceAll(/[^\w\s]/g, '\\$&');
  return new RegExp(`^control-run: ${escape(text)}.*${escape(end)}${end === '' ? '\n' : ''}$`);
}

/** Empty unless it is a file. */
function contentOf(path: string): string {
  return statSync(path, { throwIfNoEntry: false })?.isFile() === true ? readFileSync(path, 'utf8') : '';
}
