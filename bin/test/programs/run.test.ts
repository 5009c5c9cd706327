import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join, resolve } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus, VERSION } from '../../../control.ts';
import {
  assertHarmless, clientAt, getDetail, getInfo, makeFolder, makeSocketPath, perform, runProgram, start, startProgram,
  TOKEN, until, WRONG_ACCESS,
} from '../helpers.ts';
import {
  BANNER, cgroupsOf, exitCodeOf, isTidy, killAll, lacksNamespace, lacksProc, NAMESPACE, processesOf, readTask, startRun,
  stateOf, WAYS,
} from './run/helpers.ts';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';
import type { Ended } from '../helpers.ts';

const { ACTIVE, PAUSED, OFFLINE } = SystemStatus;
const O_NONBLOCK = 0o4000; // of Linux

/** Runs a command under control until it ends, and returns what is on stderr after the banner. */
async function run(
  t: TestContext,
  options: string[],
  command: string[],
  input: string = '',
  env: NodeJS.ProcessEnv = {},
): Promise<Ended> {
  const { stderr, ...ended } = await runProgram(t, 'run', ['--port', '0', ...options, ...command], input, env);
  return { ...ended, stderr: stderr.replace(BANNER, '') };
}

const WAIT = 'while :; do sleep 98765.1 & wait; done';

function shell(script: string, ...args: string[]): string[] {
  return ['sh', '-c', script, 'sh', ...args];
}

/** A shell command that has handlers for signals, and waits. Each signal interrupts the wait. */
function handler(...traps: string[]): string[] {
  return shell(`${traps.join('; ')}; echo ready; ${WAIT}`);
}

function readLines(path: string): string[] {
  return existsSync(path) ? readFileSync(path, 'utf8').split('\n').slice(0, -1) : [];
}

describe('control-run: the command line', { concurrency: 3, skip: lacksProc }, () => {
  const wrong: [what: string, args: string[], line: string][] = [
    ['no command', ['--'], 'COMMAND is missing; see --help'],
    ['an unknown option', ['--nice', '5', 'touch'], "unknown option '--nice'; see --help"],
    ['an option without its value', ['--grace', '--', 'touch'],
      '--grace requires a value (write --grace=VALUE if it starts with a dash); see --help'],
    ['a port that is none', ['--port', '65536', 'touch'], "--port must be an integer from 0 to 65535, got '65536'"],
    ['no grace', ['--grace', '0', 'touch'],
      "--grace must be a number of seconds above 0 and at most 2147483, got '0'"],
    ['a negative force-stop', ['--force-stop=-1', 'touch'],
      "--force-stop must be a number of seconds above 0 and at most 2147483, got '-1'"],
    ...['SAVE', '10', 'SIGKILL', 'term'].map((name): [string, string[], string] => {
      const line = `--save-signal must be the name of a signal that a program can handle, such as USR1, got '${name}'`;
      return [`the save signal ${name}`, ['--save-signal', name, 'touch'], line];
    }),
    ['an empty save command', ['--save-command', '', 'touch'], '--save-command must not be empty'],
    ['two ways to save', ['--save-command', 'true', '--save-signal', 'USR1', 'touch'],
      '--save-signal and --save-command are mutually exclusive: give one or the other'],
    ['a wrong restart', ['--restart', 'always', 'touch'],
      "--restart must be on-failure or on-failure:N, got 'always'"],
    ['no restarts', ['--restart', 'on-failure:0', 'touch'],
      "the N in --restart on-failure:N must be an integer from 1 to 1000000, got '0'"],
    ['an empty number of restarts', ['--restart', 'on-failure:', 'touch'],
      "the N in --restart on-failure:N must be an integer from 1 to 1000000, got ''"],
    ['two addresses', ['--socket', '/nowhere/control.sock', '--port', '80', 'touch'],
      '--socket replaces --host and --port: give one or the other'],
  ];
  for (const [what, args, line] of wrong) {
    it(`refuses ${what}`, async (t) => {
      const path = join(makeFolder(t), 'started');
      const command = args.at(-1) === 'touch' ? [...args, path] : args;
      assert.deepEqual(await runProgram(t, 'run', command), { code: 2, stdout: '', stderr: `control-run: ${line}\n` });
      assert.equal(existsSync(path), false);
    });
  }

  it('refuses a wrong token, and does not print it', async (t) => {
    const [, args, token, line] = WRONG_ACCESS.find(([, , token]) => token !== '') ?? assert.fail();
    const ended = await runProgram(t, 'run', [...args, 'true'], '', { CONTROL_TOKEN: token });
    assert.deepEqual(ended, { code: 2, stdout: '', stderr: `control-run: ${line}\n` });
  });

  it('prints its help and its version, and starts nothing', async (t) => {
    const path = join(makeFolder(t), 'started');
    for (const option of ['--help', '-h']) {
      const { code, stdout, stderr } = await run(t, [option], ['touch', path]);
      assert.deepEqual([code, stderr], [0, '']);
      assert.match(stdout, /^Usage: control-run \[options\] \[--\] COMMAND \[ARGUMENT…\]\n/);
      const names = [
        'host', 'port', 'socket', 'allow-host', 'save-signal', 'save-command', 'grace', 'force-stop', 'restart', 'help',
        'version',
      ];
      for (const name of names) assert.match(stdout, new RegExp(`^  (-h, )?--${name}\\b`, 'm'));
      for (const what of ['macOS', 'Windows', '125', '126', '127', '128 + N', 'CONTROL_TOKEN', 'clocks run on']) {
        assert.ok(stdout.includes(what), `${what} is not in the help`);
      }
      for (const line of stdout.split('\n')) assert.ok(line.length <= 120, line);
    }
    assert.deepEqual(await run(t, ['--version'], ['touch', path]), { code: 0, stdout: `${VERSION}\n`, stderr: '' });
    assert.equal(existsSync(path), false);
  });

  it('leaves the options after the command to it', async (t) => {
    const args = ['--', '--help', '-h', '--version', '--port', 'x', '--', '--grace=', '-', '', "it's $HOME", 'ü\n'];
    const print = ['printf', '<%s>', ...args];
    const stdout = args.map((arg) => `<${arg}>`).join('');
    for (const separator of [[], ['--']]) {
      assert.deepEqual(await run(t, separator, print), { code: 0, stdout, stderr: '' });
    }
  });

  it('takes a command that begins with a dash after --', async (t) => {
    const folder = makeFolder(t);
    writeFileSync(join(folder, '--grace'), '#!/bin/sh\necho "it is $0, $*"\n', { mode: 0o755 });
    const env = { PATH: `${folder}:${process.env['PATH']}` };
    assert.equal((await run(t, ['--'], ['--grace', '5'], '', env)).stdout, `it is ${folder}/--grace, 5\n`);
  });

  it('takes values with = and short times', async (t) => {
    const options = ['--grace=.5', '--force-stop=1.', '--restart=on-failure:1', '--save-signal=sigusr1', '--host=::1'];
    const { code, stdout, stderr } = await runProgram(t, 'run', ['--port=0', ...options, 'echo', 'yes']);
    assert.deepEqual([code, stdout], [0, 'yes\n']);
    assert.match(stderr, /^control-run: echo\[\d+\] · web API at http:\/\/\[::1\]:\d+\n$/);
  });
});

describe('control-run: exit codes', { concurrency: 3, skip: lacksProc }, () => {
  for (const [command, code] of [
    [shell('exit 255'), 255], [shell('kill -SEGV $$'), 128 + 11], [shell('kill -KILL $$'), 128 + 9],
  ] as [string[], number][]) {
    it(`passes on ${code}`, async (t) => {
      assert.deepEqual(await run(t, [], command), { code, stdout: '', stderr: '' });
    });
  }

  it('is 127 or 126 if the command cannot be started, as in a shell', async (t) => {
    const folder = makeFolder(t);
    const file = join(folder, 'file');
    const lost = join(folder, 'lost');
    writeFileSync(file, 'echo no\n', { mode: 0o644 });
    writeFileSync(lost, '#!/nowhere/sh\n', { mode: 0o755 });
    for (const [name, code, why] of [
      ['\x1b[2J', 127, 'not found'], [lost, 127, 'not found'], [file, 126, 'permission denied'],
      [folder, 126, 'permission denied'], [join(file, 'x'), 126, 'not a directory'],
    ] as [string, number, string][]) {
      const stderr = `control-run: cannot start '${name.replace('\x1b', ' ')}': ${why}\n`;
      assert.deepEqual(await run(t, [], [name, 'x']), { code, stdout: '', stderr });
    }
  });

  it('runs a script without #!, as a shell does', async (t) => {
    const script = join(makeFolder(t), 'script');
    writeFileSync(script, 'echo "script $1"; exit 7\n', { mode: 0o755 });
    assert.deepEqual(await run(t, [], [script, 'x']), { code: 7, stdout: 'script x\n', stderr: '' });
  });

  it('is 125 if the web API cannot listen, and the program is not started', async (t) => {
    const path = join(makeFolder(t), 'started');
    const server = createServer().listen(0, '127.0.0.1');
    t.after(() => server.close());
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    const inUse = startProgram(t, 'run', ['--port', `${port}`, '--host', '127.0.0.1', 'touch', path]);
    const ended = await inUse.ended;
    assert.deepEqual([ended.code, ended.stdout], [125, '']);
    assert.match(ended.stderr, new RegExp(`^control-run: .*EADDRINUSE.*${port}.*\\n$`));
    const nowhere = await runProgram(t, 'run', ['--socket', '/nowhere/control.sock', 'touch', path]);
    assert.deepEqual([nowhere.code, nowhere.stdout], [125, '']);
    assert.match(nowhere.stderr, /^control-run: .*\/nowhere.*\n$/);
    assert.equal(existsSync(path), false);
    await isTidy(inUse);
  });
});

describe('control-run: standard input, output and error', { concurrency: 3, skip: lacksProc }, () => {
  const controlRun = `'${process.execPath}' dist/bin/run.js --port 0`;

  it('leaves them blocking', async (t) => {
    const script = 'for i in 0 1 2; do grep flags /proc/self/fdinfo/$i; done; sleep 0.3; ' +
      'for i in 0 1 2; do grep flags /proc/self/fdinfo/$i; done';
    // Of Node, a pipe is a socket. The sleep gives control-run time to do harm later.
    const pipeline = `cat < /dev/null | ${controlRun} -- sh -c '${script}' 2>&1 | cat`;
    const { stdout } = await start(t, 'sh', ['-c', pipeline]).ended;
    const flags = [...stdout.matchAll(/^flags:\s+(\d+)$/gm)].map(([, octal]) => parseInt(octal as string, 8));
    assert.deepEqual(flags.map((flag) => flag & (O_NONBLOCK | 3)), [0, 1, 1, 0, 1, 1], stdout); // read, write
  });

  it('gives the program these three and CONTROL_FD, and nothing else', async (t) => {
    const { stdout } = await start(t, 'sh', ['-c', `ls /proc/self/fd; echo; ${controlRun} ls -l /proc/self/fd`]).ended;
    const [without = '', within = ''] = stdout.split('\n\n');
    const open = [...within.matchAll(/ (\d+) -> (\S*)/g)].map(([, fd, what]) => [fd, what?.replace(/:.*/, '')]);
    assert.deepEqual(open.find(([fd]) => fd === '3')?.[1], 'socket');
    assert.equal(open.length, without.trim().split('\n').length + 1, stdout); // both contain that of the folder
  });

  it('lets the program read only what it wants', async (t) => {
    const { stdout } = await start(t, 'sh', ['-c', `yes | ${controlRun} head -1`]).ended;
    assert.equal(stdout, 'y\n');
    const both = `printf 'a\\nb\\n' | { ${controlRun} sh -c 'read a; echo $a'; cat; }`;
    assert.equal((await start(t, 'sh', ['-c', both]).ended).stdout, 'a\nb\n');
    const path = join(makeFolder(t), 'file');
    writeFileSync(path, 'a\nb\n');
    const file = `{ ${controlRun} sh -c 'read a; echo $a'; cat; } < ${path}`;
    assert.equal((await start(t, 'sh', ['-c', file]).ended).stdout, 'a\nb\n');
  });

  it('ends with the program when nobody reads its output', async (t) => {
    const script = `{ ${controlRun} yes; echo "exit code $?" >&2; } | head -1`;
    const { stdout, stderr } = await start(t, 'sh', ['-c', script]).ended;
    assert.equal(stdout, 'y\n');
    assert.match(stderr, /\nexit code 141\n$/);
  });

  it('does not depend on its own stderr', async (t) => {
    const path = join(makeFolder(t), 'result');
    for (const redirection of ['2>&-', '>&- 2>&-', '<&- >&- 2>&-', '2> /dev/full']) {
      const script = `${controlRun} sh -c 'echo ran >> "$1"; exit 6' sh '${path}' ${redirection}; echo "exit code $?"`;
      assert.equal((await start(t, 'sh', ['-c', script]).ended).stdout, 'exit code 6\n', redirection);
    }
    assert.deepEqual(readLines(path), ['ran', 'ran', 'ran', 'ran']);
    const piped = `{ { sleep 0.2; ${controlRun} sh -c 'exit 6' 2>&1; echo "exit code $?" >&3; } | true; } 3>&1`;
    assert.equal((await start(t, 'sh', ['-c', piped]).ended).stdout, 'exit code 6\n'); // its stderr is a broken pipe
  });

  it('passes 16 MiB of binary data through unchanged, and only these', async (t) => {
    const path = join(makeFolder(t), 'data');
    writeFileSync(path, randomBytes(2 ** 24));
    const sum = createHash('sha256').update(readFileSync(path)).digest('hex');
    const { stdout } = await start(t, 'sh', ['-c', `cat '${path}' | ${controlRun} cat | cat | sha256sum`]).ended;
    assert.equal(stdout, `${sum}  -\n`);
  });

  it('prints one line to stderr, and nothing to stdout', async (t) => {
    const command = shell('echo out; echo err >&2; cat');
    const { code, stdout, stderr } = await runProgram(t, 'run', ['--port', '0', ...command], 'in');
    assert.deepEqual([code, stdout], [0, 'out\nin']);
    assert.match(stderr, /^(err\n)?control-run: sh\[\d+\] · web API at http:\/\/localhost:\d+\n(err\n)?$/);
    assert.equal(stderr.split('\n').length, 3);
  });

  it('prints no control characters of a command', async (t) => {
    const folder = makeFolder(t);
    const name = 'PW\x1b]0;title\x07\n\u202eNED';
    writeFileSync(join(folder, name), '#!/bin/sh\n', { mode: 0o755 });
    const { code, stderr } = await runProgram(t, 'run', ['--port', '0', join(folder, name)]);
    assert.equal(code, 0);
    assertHarmless(stderr);
    assert.equal(stderr.split('\n').length, 2);
  });
});

describe('control-run: the environment', { concurrency: 3, skip: lacksProc }, () => {
  it('keeps the token, which clients need, from the program and the save command', async (t) => {
    const env = { CONTROL_TOKEN: TOKEN, OTHER: 'x' };
    const options = ['--save-command', 'env >&2; echo saved'];
    const { running, port, client } = await startRun(t, options, shell('env; read line'), env);
    await running.shows(/OTHER=x\n/);
    for (const pid of processesOf(running)) {
      assert.ok(!readFileSync(`/proc/${pid}/environ`, 'utf8').includes(TOKEN));
    }
    assert.equal((await client.request('pause')).ok, false);
    const friend = clientAt(t, { host: '127.0.0.1', port }, TOKEN);
    assert.equal((await friend.request('pause', { wait: 10 })).ok, true);
    assert.equal(await friend.getStatus(), PAUSED);
    assert.equal((await friend.request('save-state', { wait: 10 })).ok, true);
    await until(() => running.output().split('OTHER=x\n').length === 3);
    assert.doesNotMatch(running.output(), new RegExp(`${TOKEN}|CONTROL_TOKEN`));
    assert.equal((await friend.request('shutdown', { wait: 10 })).ok, true);
  });

  it('adds CONTROL_RUN and CONTROL_FD, and keeps the working directory and the umask', async (t) => {
    const folder = makeFolder(t);
    const script = `cd '${folder}' && umask 027 && '${process.execPath}' "$0" --port 0 sh -c 'pwd; umask; env'`;
    const env = { CONTROL_FD: '99', CONTROL_RUN: 'of another control-run', SPACES: ' a  b ' };
    const { stdout } = await start(t, 'sh', ['-c', script, resolve('dist/bin/run.js')], env).ended;
    assert.match(stdout, new RegExp(`^${folder}\n0?027\n`));
    assert.match(stdout, /^CONTROL_FD=3$/m);
    assert.match(stdout, /^CONTROL_RUN=\d+-\d+$/m);
    assert.match(stdout, /^SPACES= a {2}b $/m);
    assert.equal(stdout.split('\n').filter((line) => /^CONTROL_/.test(line)).length, 2);
  });
});

describe('control-run: the web API', { concurrency: 3, skip: lacksProc }, () => {
  it('listens on --socket', async (t) => {
    const socketPath = makeSocketPath(t);
    const running = startProgram(t, 'run', ['--socket', socketPath, 'cat']);
    await running.shows(/web API at /);
    assert.ok(running.output().endsWith(`web API at unix:${socketPath}\n`));
    const client = clientAt(t, { host: '', port: 0, socketPath });
    assert.equal((await client.request('pause', { wait: 10 })).ok, true);
    assert.equal(await client.getStatus(), PAUSED);
    assert.equal((await client.request('shutdown', { wait: 10 })).ok, true);
    assert.equal(await exitCodeOf(running), 128 + 15);
    assert.equal(existsSync(socketPath), false);
  });

  it('listens in the folder --socket, on a socket with the name of the command and its own process id', async (t) => {
    const folder = join(makeFolder(t), 'sockets'); // it makes the folder
    const running = startProgram(t, 'run', ['--socket', `${folder}/`, 'cat']);
    const socketPath = join(folder, `cat-${running.child.pid}.sock`);
    await running.shows(/web API at .*\n/);
    assert.ok(running.output().endsWith(`web API at unix:${socketPath}\n`), running.output());
    assert.deepEqual(readdirSync(folder).map((name) => join(folder, name)), [socketPath]);
    const reply = await clientAt(t, { host: '', port: 0, socketPath }).request('shutdown', { wait: 10 });
    assert.equal(reply.ok, true);
    assert.equal(await exitCodeOf(running), 128 + 15);
    assert.deepEqual(readdirSync(folder), []);
  });

  it('tells the program, its processes and what they use, also while it is paused', async (t) => {
    const started = new Date();
    const count = 'i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done';
    const script = `sh -c '${count}'; x=$(head -c 30000000 /dev/zero | tr '\\0' x); sleep 98765.3 & echo counted; wait`;
    const { running, port, pid } = await startRun(t, [], shell(script, 'x'.repeat(300)));
    await running.shows(/counted/);
    await until(() => processesOf(running).length === 2);
    await perform(port, 'pause');
    const info = await getInfo(port);
    assert.deepEqual([info.name, info.status], ['sh', 'paused']);
    const detail = await getDetail(port) as Record<string, unknown>;
    assert.deepEqual(Object.keys(detail), ['pid', 'command', 'started', 'processes', 'CPU seconds', 'memory MiB']);
    assert.deepEqual([detail['pid'], detail['processes']], [pid, 2]);
    assert.equal(detail['command'], `sh -c ${script} sh ${'x'.repeat(300)}`.slice(0, 200) + '…');
    const elapsed = new Date(detail['started'] as string).getTime() - started.getTime();
    assert.ok(elapsed >= 0 && elapsed < 20_000, `${elapsed}`);
    assert.ok(Number(detail['CPU seconds']) > 0.05, 'counts the child that has ended');
    assert.ok(Number(detail['CPU seconds']) < 20, `${detail['CPU seconds']}`);
    assert.ok(Number(detail['memory MiB']) >= 28 && Number(detail['memory MiB']) < 300, `${detail['memory MiB']}`);
    const { stdout } = await runProgram(t, 'client', ['--port', `${port}`, 'info']);
    assert.match(stdout, /^name      sh \(process \d+ on .+\)$/m);
    assert.match(stdout, new RegExp(`^detail    pid ${pid}, command sh -c `, 'm'));
  });

  it('pause and resume change nothing if the program is paused or active already', async (t) => {
    const { port, pid, client } = await startRun(t, [], ['sleep', '98765.4']);
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    assert.equal(await client.getStatus(), ACTIVE);
    for (let count = 0; count < 2; count += 1) {
      assert.deepEqual(await perform(port, 'pause'), [200, undefined]);
      assert.deepEqual([await client.getStatus(), stateOf(pid)], [PAUSED, 'T']);
    }
    for (let count = 0; count < 2; count += 1) {
      assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
      assert.equal(await client.getStatus(), ACTIVE);
      await until(() => stateOf(pid) === 'S');
    }
  });

  it('posts under load have an outcome each', async (t) => {
    const script = 'for i in 1 2; do while :; do /bin/true; done & done; wait';
    const { port, client, running } = await startRun(t, [], shell(script));
    for (let count = 0; count < 5; count += 1) {
      const batch = Array.from({ length: 8 }, (_, index) => perform(port, index % 2 === 0 ? 'pause' : 'resume'));
      for (const outcome of await Promise.all(batch)) assert.deepEqual(outcome, [200, undefined]);
    }
    assert.deepEqual(await perform(port, 'pause'), [200, undefined]);
    for (const pid of processesOf(running)) assert.equal(stateOf(pid), 'T');
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    assert.equal(await client.getStatus(), ACTIVE);
  });

  it('those who wait learn the end', async (t) => {
    const { running, port, client } = await startRun(t, [], shell('read line; exit 9'));
    const watching = startProgram(t, 'client', ['--port', `${port}`, 'watch']);
    const waiting = runProgram(t, 'client', ['--port', `${port}`, 'wait', 'offline']);
    const offline = client.waitFor(OFFLINE);
    await watching.shows(/ {2}active\n/);
    running.child.stdin?.end('\n');
    assert.equal(await exitCodeOf(running), 9);
    assert.deepEqual(await waiting, { code: 0, stdout: 'offline\n', stderr: '' });
    await offline;
    await watching.shows(/ {2}offline: /);
    watching.child.kill();
    await isTidy(running);
  });
});

describe('control-run: save-state', { concurrency: 3, skip: lacksProc }, () => {
  it('fails without a way to save, and names the options', async (t) => {
    const { port, client } = await startRun(t, [], ['sleep', '98765.5']);
    const error = 'save-state failed: no way to save: start control-run with --save-signal or --save-command';
    assert.deepEqual(await perform(port, 'save-state'), [500, error]);
    await perform(port, 'pause');
    assert.deepEqual(await perform(port, 'save-state'), [500, error]);
    assert.equal(await client.getStatus(), PAUSED);
    assert.deepEqual(await perform(port, 'shutdown'), [200, 'SIGTERM']);
  });

  it('--save-command tells the last line of its output, also while the program is paused', async (t) => {
    const save = 'echo noise; echo to stderr >&2; echo "ckpt/$(cat) of $CONTROL_PID"; echo';
    const { running, port, pid, client } = await startRun(t, ['--save-command', save], ['sleep', '98765.6']);
    const value = `ckpt/ of ${pid}`; // its standard input is empty
    assert.deepEqual(await perform(port, 'save-state'), [200, value]);
    await perform(port, 'pause');
    assert.deepEqual(await perform(port, 'save-state'), [200, value]);
    assert.deepEqual([await client.getStatus(), stateOf(pid)], [PAUSED, 'T']);
    assert.match(running.output(), /to stderr\n/);
    assert.doesNotMatch(running.output(), /noise|ckpt/);
  });

  it('--save-command tells with its exit code whether it has saved', async (t) => {
    const path = join(makeFolder(t), 'script');
    const { port, client } = await startRun(t, ['--save-command', `. '${path}'`], ['sleep', '98765.7']);
    for (const [script, code, outcome] of [
      ['echo full; echo ENOSPC >&2; exit 28', 500, 'save-state failed: the save command ended with exit code 28: full'],
      ['exit 1', 500, 'save-state failed: the save command ended with exit code 1'],
      ['kill -SEGV $$', 500, 'save-state failed: the save command ended with SIGSEGV'],
      ['echo half; kill $$', 500, 'save-state failed: the save command ended with SIGTERM: half'],
      ['printf "a\\r\\nb\\r\\n\\n \\n"', 200, 'b'],
      ['printf "no end of line"', 200, 'no end of line'],
      ['yes | head -c 5000000; echo; echo last', 200, 'last'],
      ['printf "\\033[2Jred\\007\\302\\233"', 200, '[2Jred'],
    ] as [string, number, string][]) {
      writeFileSync(path, script);
      const [statusCode, what] = await perform(port, 'save-state');
      assert.deepEqual([statusCode, String(what).trimEnd()], [code, outcome], script);
      assertHarmless(String(what));
    }
    writeFileSync(path, 'head -c 5000000 /dev/zero | tr "\\0" x');
    const [statusCode, long] = await perform(port, 'save-state') as [number, string];
    assert.equal(statusCode, 200);
    assert.ok(long.length > 100 && long.length <= 65_536, `${long.length}`);
    writeFileSync(path, 'true');
    assert.deepEqual((await perform(port, 'save-state'))[0], 200);
    assert.equal(await client.getStatus(), ACTIVE);
  });

  it('--save-command completes if the program ends meanwhile', async (t) => {
    const save = 'kill -KILL $CONTROL_PID; sleep 0.2; echo late';
    const { running, port } = await startRun(t, ['--save-command', save], ['sleep', '98765.8']);
    assert.deepEqual(await perform(port, 'save-state'), [200, 'late']);
    assert.equal(await exitCodeOf(running), 128 + 9);
  });

  it('--save-signal that nobody handles fails, because it would end the program', async (t) => {
    const command = shell('trap "" USR2; sleep 98765.11; :');
    const { running, port, pid } = await startRun(t, ['--save-signal', 'USR2'], command);
    await until(() => processesOf(running).length === 2);
    const error = `no process of sh[${pid}] handles SIGUSR2, which would end it`;
    assert.deepEqual(await perform(port, 'save-state'), [500, `save-state failed: ${error}`]);
    assert.deepEqual(await perform(port, 'shutdown'), [500, `shutdown failed: ${error}`]); // the last save fails
    assert.equal(processesOf(running).length, 2);
    assert.deepEqual(await perform(port, 'shutdown'), [500, `shutdown failed: ${error}`]);
    assert.equal(await exitCodeOf(running), 128 + 15);
  });
});

describe('control-run: shutdown', { concurrency: 3, skip: lacksProc }, () => {
  it('tells how the program ended', async (t) => {
    const { running, port } = await startRun(t, [], handler('trap "exit 33" TERM'));
    await running.shows(/ready/);
    assert.deepEqual(await perform(port, 'shutdown'), [200, 'exit code 33']);
    assert.equal(await exitCodeOf(running), 33);
    await isTidy(running);
  });

  it('leaves no process, even of those that ignore SIGTERM and left the session', async (t) => {
    const script = 'setsid sh -c \'trap "" TERM; sleep 98765.13; :\' & (setsid sleep 98765.14 &); sleep 98765.15';
    const { running, port } = await startRun(t, ['--grace', '0.3'], shell(script));
    await until(() => processesOf(running).length === 5);
    assert.deepEqual(await perform(port, 'shutdown'), [200, 'SIGTERM']);
    assert.equal(await exitCodeOf(running), 128 + 15);
    await isTidy(running);
  });

  it('saves first, and tells both', async (t) => {
    const save = 'kill -0 $CONTROL_PID && echo ckpt';
    const { running, port } = await startRun(t, ['--save-command', save], ['sleep', '98765.16']);
    assert.deepEqual(await perform(port, 'shutdown'), [200, 'ckpt; SIGTERM']);
    assert.equal(await exitCodeOf(running), 128 + 15);
  });

  it('is called off by a failing last save; a second one ends the program', async (t) => {
    const options = ['--save-command', 'echo no; false'];
    const { running, port, client, pid } = await startRun(t, options, ['sleep', '98765.17']);
    const error = 'shutdown failed: the save command ended with exit code 1: no';
    await perform(port, 'pause');
    assert.deepEqual(await perform(port, 'shutdown'), [500, error]);
    assert.deepEqual([await client.getStatus(), stateOf(pid)], [PAUSED, 'T']);
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    assert.equal(await client.getStatus(), ACTIVE);
    assert.deepEqual(await perform(port, 'shutdown'), [500, error]);
    assert.equal(await exitCodeOf(running), 128 + 15);
  });

  it('that was on the queue at the time shares the failure', async (t) => {
    const save = 'echo save >> "$LOG"; while [ ! -e "$LOG.go" ]; do sleep 0.05; done; false';
    const log = join(makeFolder(t), 'log');
    const { running, port, client } = await startRun(t, ['--save-command', save], ['sleep', '98765.18'], { LOG: log });
    const first = perform(port, 'shutdown');
    await until(() => readLines(log).length === 1);
    const others = [perform(port, 'shutdown'), perform(port, 'shutdown')];
    await until(async () => (await getInfo(port)).commands.filter(({ state }) => state !== 'failed').length === 3);
    writeFileSync(`${log}.go`, '');
    const error = 'shutdown failed: the save command ended with exit code 1';
    for (const outcome of [first, ...others]) assert.deepEqual(await outcome, [500, error]);
    assert.equal(await client.getStatus(), ACTIVE);
    assert.equal(readLines(log).length, 1);
    assert.deepEqual(await perform(port, 'shutdown'), [500, error]);
    assert.equal(await exitCodeOf(running), 128 + 15);
  });

  it('is over if the program has ended while its last save failed', async (t) => {
    const save = 'kill -KILL $CONTROL_PID; while kill -0 $CONTROL_PID; do sleep 0.05; done; false';
    const { running, port } = await startRun(t, ['--save-command', save], ['sleep', '98765.19']);
    assert.equal((await perform(port, 'shutdown'))[0], 500);
    assert.equal(await exitCodeOf(running), 128 + 9);
  });

  it('sends --save-signal and waits for the end', async (t) => {
    const options = ['--save-signal', 'USR1', '--grace', '1000'];
    const { running, port } = await startRun(t, options, handler('trap "exit 8" USR1'));
    await running.shows(/ready/);
    await perform(port, 'pause');
    const [statusCode, value] = await perform(port, 'shutdown');
    assert.equal(statusCode, 200);
    assert.match(String(value), /^SIGUSR1 sent to process \d+; exit code 8$/);
    assert.equal(await exitCodeOf(running), 8);
  });

  it('sends --save-signal, waits for --grace and sends SIGTERM', async (t) => {
    const command = handler('trap "echo saving" USR1', 'trap "echo ends; exit 9" TERM');
    const { running, port } = await startRun(t, ['--save-signal', 'USR1', '--grace', '0.4'], command);
    await running.shows(/ready/);
    const start = performance.now();
    const [, value] = await perform(port, 'shutdown');
    assert.match(String(value), /^SIGUSR1 sent to process \d+; exit code 9$/);
    assert.ok(performance.now() - start >= 400);
    await exitCodeOf(running);
    assert.match(running.output(), /^saving\nends$/m);
  });
});

describe('control-run: signals', { concurrency: 3, skip: lacksProc }, () => {
  for (const name of ['SIGTERM', 'SIGHUP', 'SIGINT'] as const) {
    it(`${name} is a shutdown${name === 'SIGTERM' ? ', also while the program is paused' : ''}`, async (t) => {
      const folder = makeFolder(t);
      const save = `echo ckpt; touch '${folder}/saving'; while [ ! -e '${folder}/go' ]; do sleep 0.05; done`;
      const { running, port } = await startRun(t, ['--save-command', save], handler('trap "exit 3" TERM'));
      await running.shows(/ready/);
      if (name === 'SIGTERM') await perform(port, 'pause');
      running.child.kill(name);
      await until(() => existsSync(join(folder, 'saving')));
      await until(async () => (await getInfo(port)).status === 'shutting down');
      const command = (await getInfo(port)).commands.at(-1);
      assert.deepEqual([command?.command, command?.by, command?.reason], ['shutdown', 'itself', name]);
      writeFileSync(join(folder, 'go'), '');
      assert.equal(await exitCodeOf(running), 3);
    });
  }

  it('give a save command --grace to end, and kill it with its processes', async (t) => {
    const log = join(makeFolder(t), 'log');
    const save = 'echo $$ >> "$LOG"; sleep 98765.27 & echo $! >> "$LOG"; wait';
    const options = ['--save-command', save, '--grace', '0.5'];
    const { running, port } = await startRun(t, options, ['sleep', '98765.28'], { LOG: log });
    const saved = perform(port, 'save-state');
    await until(() => readLines(log).length === 2);
    const [command] = readTask(Number(readLines(log)[0]));
    assert.deepEqual([command?.session, command?.group], [command?.pid, command?.pid], 'Ctrl-C does not reach it');
    const waiting = perform(port, 'pause').catch(() => null); // it may not arrive
    await sleep(1000); // twice the grace; a save may take long
    assert.equal((await getInfo(port)).commands[0]?.state, 'running');
    running.child.kill('SIGTERM');
    assert.deepEqual(await saved, [500, 'save-state failed: the save command ended with SIGKILL']);
    await waiting;
    assert.equal(await exitCodeOf(running), 128 + 15);
    const pids = readLines(log).map(Number);
    assert.equal(pids.length, 4, 'the last save, too');
    await until(() => pids.every((pid) => stateOf(pid) === ''));
  });

  it('a signal ends the program even if the last save fails', async (t) => {
    const { running } = await startRun(t, ['--save-command', 'false'], ['sleep', '98765.21']);
    for (let count = 0; count < 40; count += 1) running.child.kill('SIGTERM'); // more than the queue holds
    assert.equal(await exitCodeOf(running), 128 + 15);
  });

  it('SIGUSR1, SIGUSR2 and SIGWINCH are passed on', async (t) => {
    const names = ['USR1', 'USR2', 'WINCH'];
    const command = handler(...names.map((name) => `trap 'echo "got ${name}"' ${name}`));
    const { running, port } = await startRun(t, [], command);
    await running.shows(/ready/);
    for (const name of names) {
      running.child.kill(`SIG${name}` as NodeJS.Signals);
      await running.shows(new RegExp(`got ${name}\n`));
    }
    assert.equal(running.output().split('got ').length, 4);
    await perform(port, 'pause');
    running.child.kill('SIGUSR1');
    await sleep(100); // time to do harm
    assert.equal(running.output().split('got ').length, 4);
    await perform(port, 'resume');
    await until(() => running.output().split('got ').length === 5);
  });

  it('SIGTSTP stops the program and control-run, and SIGCONT continues both', async (t) => {
    const { running, pid, client } = await startRun(t, [], ['sleep', '98765.22']);
    const { child } = running;
    for (let count = 0; count < 2; count += 1) {
      child.kill('SIGTSTP');
      await until(() => stateOf(child.pid as number) === 'T');
      assert.equal(stateOf(pid), 'T');
      child.kill('SIGCONT');
      await until(() => stateOf(pid) === 'S');
      assert.equal(await client.getStatus(), ACTIVE);
    }
    for (let count = 0; count < 20; count += 1) { // it may come at any time
      child.kill('SIGTSTP');
      await sleep(count % 5);
      child.kill('SIGCONT');
      await client.getStatus();
    }
    await until(() => {
      child.kill('SIGCONT'); // one that comes just before control-run stops itself is lost
      return stateOf(child.pid as number) !== 'T' && stateOf(pid) === 'S';
    }, () => {
      return `control-run ${stateOf(child.pid as number)}, the program ${stateOf(pid)}`;
    });
    assert.equal(await client.getStatus(), ACTIVE);
  });

  it('SIGCONT does not wake a paused program', async (t) => {
    const { running, port, pid } = await startRun(t, [], ['sleep', '98765.24']);
    await perform(port, 'pause');
    for (const name of ['SIGCONT', 'SIGTSTP', 'SIGCONT'] as const) {
      running.child.kill(name);
      if (name === 'SIGTSTP') await until(() => stateOf(running.child.pid as number) === 'T');
      else await until(async () => (await getInfo(port)).status === 'paused');
      await sleep(50); // time to do harm
      assert.equal(stateOf(pid), 'T');
    }
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    await until(() => stateOf(pid) === 'S');
  });
});

describe('control-run: killed', { concurrency: 4, skip: lacksProc }, () => {
  for (const way of WAYS) {
    for (const state of ['active', 'paused']) {
      const { name, skip } = way;
      it(`ends what is ${state}, first by SIGTERM, and what that starts (${name})`, { skip }, async (t) => {
        const script = `setsid sleep 98765.31 & (setsid sleep 98765.32 &); sh -c 'trap "" TERM HUP INT; ${WAIT}' &
          trap 'echo ends; setsid sleep 98765.33 & exit' TERM; echo ready; ${WAIT}`;
        const { running, port } = await startRun(t, ['--grace', '1'], shell(script), {}, way);
        await running.shows(/ready/);
        await until(() => processesOf(running).length === 6);
        if (state === 'paused') await perform(port, 'pause');
        assert.ok(processesOf(running).every((pid) => (stateOf(pid) === 'T') === (state === 'paused')));
        running.child.kill('SIGKILL');
        await running.shows(/ends/);
        await isTidy(running);
      });
    }
  }
});

describe('control-run: the end of the program', { concurrency: 3, skip: lacksProc }, () => {
  it('ends control-run at once, also within the first milliseconds', async (t) => {
    for (let count = 0; count < 2; count += 1) {
      const ended = await run(t, [], [count % 2 === 0 ? 'true' : 'false']);
      assert.deepEqual(ended, { code: count % 2, stdout: '', stderr: '' });
    }
  });

  it('while a pause runs leaves nothing stopped', async (t) => {
    for (let count = 0; count < 3; count += 1) {
      const { running, port, pid } = await startRun(t, [], shell('sleep 98765.42 & sleep 98765.43'));
      await until(() => processesOf(running).length === 3);
      const left = processesOf(running).filter((one) => one !== pid);
      const pausing = perform(port, 'pause').catch(() => null); // it may not arrive
      await until(() => left.some((one) => stateOf(one) === 'T') || running.child.exitCode !== null);
      process.kill(pid, 'SIGKILL');
      await pausing;
      assert.equal(await exitCodeOf(running), 128 + 9);
      await until(() => left.every((one) => stateOf(one) === 'S'), () => left.map(stateOf).join());
      killAll(left);
    }
  });

  it('leaves what it has started in the background, and no cgroup of its own', async (t) => {
    const { running } = await startRun(t, [], shell('setsid sleep 98765.44 & sleep 98765.45 & read line; exit 2'));
    await until(() => processesOf(running).length === 3);
    running.child.stdin?.end('\n');
    assert.equal(await exitCodeOf(running), 2);
    await until(() => cgroupsOf(running).length === 0);
    const left = processesOf(running);
    assert.deepEqual(left.map(stateOf), ['S', 'S']);
    killAll(left);
  });
});

describe('control-run: --restart', { concurrency: 6, skip: lacksProc }, () => {
  it('on-failure:N starts a program again that fails, after a growing pause', async (t) => {
    const log = join(makeFolder(t), 'log');
    const start = performance.now();
    const { code, stderr } = await run(t, ['--restart', 'on-failure:2'], shell('echo run >> "$1"; exit 3', log));
    assert.equal(code, 3);
    assert.ok(performance.now() - start >= 3000);
    assert.deepEqual(readLines(log), ['run', 'run', 'run']);
    const lines = stderr.replaceAll(/\[\d+\]/g, '').split('\n').filter((line) => !line.includes('web API'));
    const line = 'control-run: sh ended with exit code 3:';
    assert.deepEqual(lines, [`${line} restart 1 in 1 s`, `${line} restart 2 in 2 s`, `${line} no more restarts`, '']);
  });

  for (const [what, script, code] of [
    ['exit code 0', 'exit 0', 0], ['SIGTERM', 'kill $$', 143], ['SIGHUP', 'kill -HUP $$', 129],
    ['SIGINT', 'kill -INT $$', 130], ['SIGPIPE', 'kill -PIPE $$', 141],
  ] as [string, string, number][]) {
    it(`does not start a program again after ${what}`, async (t) => {
      assert.deepEqual(await run(t, ['--restart', 'on-failure'], shell(script)), { code, stdout: '', stderr: '' });
    });
  }

  it('starts a killed program again, and tells how it ended', async (t) => {
    const { running, port, pid } = await startRun(t, ['--restart', 'on-failure'], ['sleep', '98765.51']);
    process.kill(pid, 'SIGKILL');
    await running.shows(/sleep\[\d+\] ended with SIGKILL: restart 1 in 1 s\n/);
    const waiting = await getDetail(port) as Record<string, unknown>;
    assert.deepEqual([waiting['processes'], waiting['restarts'], waiting['last end']], [0, 1, 'SIGKILL']);
    await until(() => processesOf(running).length === 1);
    const detail = await getDetail(port) as Record<string, unknown>;
    assert.deepEqual([detail['processes'], detail['restarts'], detail['last end']], [1, 1, 'SIGKILL']);
    assert.equal(detail['pid'], processesOf(running)[0]);
    assert.deepEqual(await perform(port, 'pause'), [200, undefined]);
    assert.equal(stateOf(detail['pid'] as number), 'T');
    running.child.kill('SIGKILL');
    await isTidy(running);
  });

  it('starts a program that was paused meanwhile once it is resumed', async (t) => {
    const { running, port, pid, client } = await startRun(t, ['--restart', 'on-failure'], ['sleep', '98765.52']);
    await perform(port, 'pause');
    process.kill(pid, 'SIGKILL');
    await running.shows(/restart 1/);
    assert.equal(await client.getStatus(), PAUSED);
    await sleep(1500); // the time of the restart passes
    assert.deepEqual(processesOf(running), []);
    assert.deepEqual(await perform(port, 'pause'), [200, undefined]);
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    await until(() => processesOf(running).length === 1);
    assert.equal(await client.getStatus(), ACTIVE);
  });

  it('takes all commands while it waits; none of them is for what the program has left', async (t) => {
    const options = ['--restart', 'on-failure', '--save-command', 'echo no'];
    const { running, port, pid } = await startRun(t, options, shell('sleep 98765.53 & sleep 98765.54 & wait'));
    await until(() => processesOf(running).length === 3);
    process.kill(pid, 'SIGKILL');
    await running.shows(/restart 1/);
    assert.deepEqual(await perform(port, 'pause'), [200, undefined]);
    assert.deepEqual(await perform(port, 'save-state'), [500, `save-state failed: sh[${pid}] has ended: SIGKILL`]);
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    running.child.kill('SIGUSR2');
    assert.deepEqual(await perform(port, 'shutdown'), [200, 'SIGKILL']);
    assert.equal(await exitCodeOf(running), 128 + 9);
    await until(() => cgroupsOf(running).length === 0);
    const left = processesOf(running);
    assert.deepEqual(left.map(stateOf), ['S', 'S']);
    killAll(left);
  });

  it('a signal ends the wait', async (t) => {
    const { running, pid } = await startRun(t, ['--restart', 'on-failure'], ['sleep', '98765.54']);
    process.kill(pid, 'SIGKILL');
    await running.shows(/restart 1/);
    running.child.kill('SIGTERM');
    assert.equal(await exitCodeOf(running), 128 + 9);
  });

  it('ends if the command has disappeared', async (t) => {
    const script = join(makeFolder(t), 'script');
    writeFileSync(script, '#!/bin/sh\nrm "$0"\nexit 1\n', { mode: 0o755 });
    const { code, stderr } = await run(t, ['--restart', 'on-failure'], [script]);
    assert.equal(code, 127);
    assert.match(stderr, new RegExp(`restart 1 in 1 s\ncontrol-run: cannot start '${script}': not found\n$`));
  });
});

describe('control-run: as process 1', { skip: lacksProc || lacksNamespace() }, () => {
  it('says what it cannot do, and works', async (t) => {
    const command = shell('sleep 98765.62 & exit 5');
    const args = [...NAMESPACE, process.execPath, 'dist/bin/run.js', '--port', '0', ...command];
    const { code, stderr } = await start(t, 'unshare', args).ended;
    assert.equal(code, 5);
    assert.match(stderr, /^control-run: as process 1, it does not reap orphans: start the container with --init\n/);
  });

  it('takes signals and commands', async (t) => {
    const args = [...NAMESPACE, process.execPath, 'dist/bin/run.js', '--port', '0', ...handler('trap "exit 6" TERM')];
    const running = start(t, 'unshare', args);
    await running.shows(/ready/);
    await running.shows(/web API at/);
    const port = Number(/localhost:(\d+)/.exec(running.output())?.[1]);
    assert.deepEqual(await perform(port, 'pause'), [200, undefined]);
    assert.deepEqual(await perform(port, 'shutdown'), [200, 'exit code 6']);
    assert.equal(await exitCodeOf(running), 6);
  });
});
