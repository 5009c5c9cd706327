// The log of control-run: which file, what it has of the program's starts and ends, and when it cannot be used.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import {
  existsSync, mkdirSync, readdirSync, readFileSync, renameSync, statSync, symlinkSync, writeFileSync,
} from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { getInfo, makeFolder, ONCE, perform, runProgram, start, startForeign, TOKEN } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { exitCodeOf, isTidy, run, shell, startRun, WAIT } from './helpers.ts';

type Entry = Record<string, unknown> & { event: string; pid: number };

const OTHERS = '--log FILE logs to another file, --no-log to none';

/** Reads a log, which must have nothing but complete lines of JSON. */
function read(path: string): Entry[] {
  const lines = readFileSync(path, 'utf8').split('\n');
  assert.equal(lines.pop(), '', 'the last line is complete');
  return lines.map((line) => JSON.parse(line));
}

/** What control-run itself has logged of the program. */
function runsIn(path: string): object[] {
  const isOwn = (one: Entry): boolean => 'commandLine' in one || 'ended' in one;
  return read(path).filter(isOwn).map(({ time, name, pid, ...rest }) => rest);
}

/** A folder for `XDG_STATE_HOME`, and where control-run logs in it by default. */
function makeState(t: TestContext, name: string): { folder: string; path: string; env: NodeJS.ProcessEnv } {
  const state = makeFolder(t);
  const folder = join(state, 'control');
  return { folder, path: join(folder, `${name}@${hostname()}.jsonl`), env: { XDG_STATE_HOME: state } };
}

const suite = { ...LIMIT, concurrency: 3, skip: lacks('Linux') };

describe('control-run: the log', suite, () => {
  it('is in $XDG_STATE_HOME/control, for this user only, and has starts, commands, statuses and ends', async (t) => {
    const { folder, path, env } = makeState(t, 'sweep_lr_0.1');
    const options = ['--name', 'sweep/lr=0.1', '--save-command', 'echo 412.pt'];
    const { running, port } = await startRun(t, options, shell(WAIT, 'ü\n'), { ...env, CONTROL_TOKEN: '' });
    assert.deepEqual((await getInfo(port) as { log?: object }).log, { path });
    await fetch(`http://127.0.0.1:${port}/api/pause?by=ana&reason=noon`, { method: 'POST', headers: ONCE });
    await perform(port, 'save-state');
    await perform(port, 'shutdown');
    assert.equal(await exitCodeOf(running), 143);
    assert.deepEqual([statSync(folder).mode & 0o777, statSync(path).mode & 0o777], [0o700, 0o600]);
    const entries = read(path);
    for (const { name, pid } of entries) assert.deepEqual([name, pid], ['sweep/lr=0.1', running.child.pid]);
    assert.deepEqual(entries[0]?.['commandLine'], shell(WAIT, 'ü\n'));
    assert.equal(entries.at(-1)?.['ended'], 'SIGTERM');
    const [start, ...rest] = entries.slice(1, -1);
    assert.deepEqual([start?.event, rest.pop()?.event], ['start', 'end']); // of the server
    const commands = rest.filter(({ event, by }) => event === 'command' && by !== 'itself');
    const posted = commands.map((one) => [one['command'], one['by']]);
    assert.deepEqual(posted, [['pause', 'ana'], ['save-state', undefined], ['shutdown', undefined]]);
    const idsOf = (kind: string): unknown[] => rest.filter(({ event }) => event === kind).map(({ id }) => id);
    assert.deepEqual(idsOf('command'), idsOf('outcome')); // also the end of the program by its shutdown
    const outcomes = rest.filter(({ event }) => event === 'outcome').map(({ command, value }) => ({ command, value }));
    assert.deepEqual(outcomes.find(({ command }) => command === 'save-state')?.value, '412.pt');
    assert.ok(rest.some(({ status, by, reason }) => status === 'paused' && by === 'ana' && reason === 'noon'));
  });

  it('is in ~/.local/state/control, elsewhere with --log, and nowhere with --no-log', async (t) => {
    const [home, other] = [makeFolder(t), join(makeFolder(t), 'log')];
    const env = { HOME: home, XDG_STATE_HOME: 'not/absolute' };
    assert.equal((await run(t, ['--no-log'], ['true'], '', env)).stderr, '');
    assert.equal((await run(t, ['--log', other], ['true'], '', env)).stderr, '');
    assert.deepEqual(readdirSync(home), []);
    assert.equal((await run(t, [], ['true'], '', env)).stderr, '');
    const path = join(home, '.local/state/control', `true@${hostname()}.jsonl`);
    const end = { event: 'end', ended: 'exit code 0', exitCode: 0 };
    for (const one of [other, path]) assert.deepEqual(runsIn(one), [{ event: 'start', commandLine: ['true'] }, end]);
  });

  /** Files that cannot be a log, in a folder. */
  const UNUSABLE: readonly [what: string, make: (path: string) => unknown, reason: RegExp][] = [
    ['a link', (path) => symlinkSync(`${path}.other`, path), /: it is a symbolic link$/],
    ['a folder', (path) => mkdirSync(path), /: EISDIR: illegal operation on a directory, open '.*'$/],
    ['a FIFO', (path) => execFileSync('mkfifo', [path]), /: it is not a regular file$/],
  ];

  it('starts the program without a log, and says why, if the default one cannot be used', async (t) => {
    for (const [what, make, reason] of UNUSABLE) {
      const { folder, path, env } = makeState(t, 'echo');
      mkdirSync(folder);
      make(path);
      const { code, stdout, stderr } = await run(t, [], ['echo', 'ran'], '', env);
      const [message = '', remedy] = stderr.trimEnd().split('; ');
      assert.deepEqual([code, stdout, remedy, stderr.split('\n').length], [0, 'ran\n', OTHERS, 2], stderr);
      assert.ok(message.startsWith(`control-run: cannot log to '${path}'`), stderr);
      assert.match(message, reason, what);
    }
    for (const [what, XDG_STATE_HOME, reason] of [
      ['in a folder where none can be created', '/proc/x', "ENOENT: no such file or directory, mkdir '/proc/x'"],
      ['below a file', '/dev/null', "ENOTDIR: not a directory, stat '/dev/null/control'"],
    ] as const) {
      const { code, stderr } = await run(t, ['--quiet'], ['true'], '', { XDG_STATE_HOME });
      assert.deepEqual([code, stderr], [0, `control-run: cannot log: ${reason}; ${OTHERS}\n`], what);
    }
  });

  it('says nothing of a log that is off, and has none in /api/info', async (t) => {
    const { port } = await startRun(t, ['--no-log'], shell(WAIT), { XDG_STATE_HOME: '/proc/x' });
    assert.equal('log' in await getInfo(port), false);
  });

  it('has a start and an end for each run of the program, also after SIGKILL', async (t) => {
    const path = join(makeFolder(t), 'log');
    const program = shell('[ -e "$1" ] && exit 5; touch "$1"; kill -9 $$', join(path, '../mark'));
    const { code } = await run(t, ['--log', path, '--restart', 'on-failure:1'], program);
    const started = { event: 'start', commandLine: program };
    const killed = { event: 'end', ended: 'SIGKILL', exitCode: 137, signal: 'SIGKILL' };
    const failed = { event: 'end', ended: 'exit code 5', exitCode: 5 };
    assert.deepEqual([code, runsIn(path)], [5, [started, killed, started, failed]]);
  });

  it('has no second end if the program ends while it waits for a restart', async (t) => {
    const path = join(makeFolder(t), 'log');
    const { running, port } = await startRun(t, ['--log', path, '--restart', 'on-failure'], shell('exit 3'));
    await running.shows(/restart 1 in 1 s/);
    await perform(port, 'shutdown');
    await exitCodeOf(running);
    const starts = running.output().split(' · ').length - 1;
    const pairs = Array.from({ length: starts }, () => ['start', 'end']);
    assert.deepEqual(runsIn(path).map((one) => (one as Entry).event), pairs.flat());
  });

  it('has the end of a program that cannot be started, and of one without a web API', async (t) => {
    const path = join(makeFolder(t), 'log');
    const { code } = await run(t, ['--log', path], ['/nowhere/train']);
    const { port } = await startForeign(t, () => {});
    const place = ['--host', '127.0.0.1', '--port', `${port}`];
    const ended = await runProgram(t, 'run', [...place, '--log', path, 'true']);
    assert.deepEqual([code, ended.code], [127, 125]);
    const [, missing, , refused] = runsIn(path) as Entry[];
    assert.deepEqual(missing, { event: 'end', ended: "cannot start '/nowhere/train': not found", exitCode: 127 });
    assert.match(refused?.['ended'] as string, /^Cannot serve at 127\.0\.0\.1:\d+: listen EADDRINUSE/);
    assert.equal(refused?.['exitCode'], 125);
  });

  it('has the end of a program whose control-run is killed', async (t) => {
    const path = join(makeFolder(t), 'log');
    const { running } = await startRun(t, ['--log', path], shell(WAIT));
    running.child.kill('SIGKILL');
    await exitCodeOf(running);
    await isTidy(running);
    assert.deepEqual(runsIn(path).at(-1), { event: 'end', ended: 'control-run is gone' });
    assert.equal(read(path).at(-1)?.pid, running.child.pid);
  });

  it('has whole lines after one that is incomplete, and escapes control characters', async (t) => {
    const path = join(makeFolder(t), 'log');
    writeFileSync(path, '{"time":');
    await run(t, ['--log', path], ['true', 'a\x9b\u2028b']);
    const [torn, start = '', ...rest] = readFileSync(path, 'utf8').split('\n');
    assert.deepEqual([torn, JSON.parse(start).commandLine, rest.at(-1)], ['{"time":', ['true', 'a\x9b\u2028b'], '']);
    assert.doesNotMatch(start, /[\x9b\u2028]/);
    assert.equal(new Date(JSON.parse(start).time).toISOString(), JSON.parse(start).time);
  });

  it('has the holds with which a program starts paused, and its first start', async (t) => {
    const folder = makeFolder(t);
    const [path, state] = [join(folder, 'log'), join(folder, 'state')];
    const hold = { by: 'ana@laptop', reason: 'noon', since: '2026-01-23T06:00:00.000Z' };
    writeFileSync(state, JSON.stringify({ status: 'paused', holds: [hold] }));
    const { running, port } = await startRun(t, ['--log', path, '--state', state], shell('exit 0'));
    await perform(port, 'resume');
    await exitCodeOf(running);
    const entries = read(path);
    const statuses = entries.filter(({ event }) => event === 'status').map((one) => [one['status'], one['holds']]);
    assert.deepEqual(statuses[0], ['paused', [hold]]);
    assert.equal('commandLine' in (entries[0] ?? {}), true);
    assert.deepEqual(runsIn(path).at(-1), { event: 'end', ended: 'exit code 0', exitCode: 0 });
  });

  it('is shared by programs of one name', async (t) => {
    const { path, env } = makeState(t, 'train');
    const options = ['--name', 'train', '--restart', 'on-failure:1'];
    const runs = await Promise.all([1, 2, 3].map((code) => run(t, options, shell(`exit ${code}`), '', env)));
    assert.deepEqual(runs.map(({ code }) => code), [1, 2, 3]);
    const entries = read(path);
    const pids = new Set(entries.map(({ pid }) => pid));
    assert.equal(pids.size, 3);
    for (const pid of pids) {
      const ended = entries.filter((one) => one.pid === pid && 'ended' in one).map((one) => one['exitCode']);
      assert.deepEqual([ended.length, new Set(ended).size], [2, 1]);
    }
  });

  it('has at most 16 KiB per line: long command lines are shortened', async (t) => {
    const path = join(makeFolder(t), 'log');
    const lines = [
      ['a script', shell(`: ${'ü'.repeat(60_000)}`)],
      ['many words', ['true', ...Array.from({ length: 20_000 }, (_, index) => `${index}`)]],
      ['control characters', ['true', '\x01x'.repeat(15_000)]],
    ] as const;
    for (const [what, line] of lines) assert.equal((await run(t, ['--log', path], [...line])).code, 0, what);
    const sizes = readFileSync(path, 'utf8').split('\n').map((text) => Buffer.byteLength(text));
    assert.ok(sizes.every((size) => size < 16_384), `${sizes}`);
    const logged = read(path).map(({ commandLine }) => commandLine as string[]).filter(Boolean);
    assert.deepEqual(logged.map((words) => words.length), [1, 1, 1]);
    for (const [index, start] of ['sh -c : üü', 'true 0 1 2', 'true  x x'].entries()) {
      assert.ok(logged[index]?.[0]?.startsWith(start) && logged[index]?.[0]?.endsWith('…'), `${logged[index]}`);
    }
  });

  it('never has the token', async (t) => {
    const { path, env } = makeState(t, 'sh');
    const variables = { ...env, CONTROL_TOKEN: TOKEN };
    const { running, port } = await startRun(t, ['--restart', 'on-failure'], shell(WAIT), variables);
    const headers = { Authorization: `Bearer ${TOKEN}`, ...ONCE };
    for (const name of ['pause?by=ana', 'nothing', 'shutdown']) {
      await fetch(`http://127.0.0.1:${port}/api/${name}`, { method: 'POST', headers });
    }
    await exitCodeOf(running);
    assert.equal(runsIn(path).length, 2);
    assert.equal(readFileSync(path, 'utf8').includes(TOKEN), false);
  });

  it('goes on without a log whose disk is full', async (t) => {
    const path = join(makeFolder(t), 'log');
    const fullDisk = 'ulimit -f 0; exec "$0" dist/bin/run.js "$@"'; // files cannot have content
    const words = ['-c', fullDisk, process.execPath, '--port', '0', '--log', path, 'echo', 'ran'];
    const { code, stdout, stderr } = await start(t, 'sh', words).ended;
    assert.deepEqual([code, stdout, readFileSync(path, 'utf8')], [0, 'ran\n', ''], stderr);
    const own = stderr.split('\n').filter((line) => line.includes('cannot log'));
    assert.deepEqual(own, [`control-run: cannot log to '${path}': EFBIG: file too large, write`]);
  });

  it('goes on without a log that disappears, with one warning for its own lines', async (t) => {
    const folder = join(makeFolder(t), 'logs');
    mkdirSync(folder);
    const path = join(folder, 'log');
    const go = join(folder, '../go');
    const program = shell(`until [ -e '${go}' ]; do sleep 0.05; done; exit 4`);
    const { running } = await startRun(t, ['--log', path, '--restart', 'on-failure:1'], program);
    renameSync(folder, `${folder}.old`);
    writeFileSync(go, '');
    assert.equal(await exitCodeOf(running), 4);
    const lines = running.output().split('\n').filter((line) => line.includes('cannot log'));
    const reason = `ENOENT: no such file or directory, open '${path}'`;
    assert.deepEqual(lines, [`control-run: cannot log to '${path}': ${reason}`]);
    assert.equal(runsIn(join(`${folder}.old`, 'log')).length, 1);
    assert.equal(existsSync(folder), false);
  });
});
