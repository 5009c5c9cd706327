// --state: the file, and how a program starts with it.

import assert from 'node:assert/strict';
import {
  lstatSync, mkdirSync, readdirSync, readFileSync, readlinkSync, renameSync, statSync, symlinkSync, utimesSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { StateFile } from '../../../run/state.ts';
import { getInfo, makeFolder, perform, runProgram } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import {
  exitCodeOf, isTidy, killAll, listTree, processesOf, readLines, shell, showsDetail, showsRun, type StartedRun,
  startRun, stateOf, WAIT,
} from './helpers.ts';
import type { StatusCause } from '../../../../control.ts';

const SINCE = '2026-01-23T06:00:00.000Z';
const HOLD: StatusCause = { by: 'ana@laptop', reason: 'GPU needed until noon', since: SINCE };
const HOLDS: readonly StatusCause[] = [HOLD, { by: 'ben@desk', since: '2026-01-23T06:00:01.000Z' }];
const PAUSED = `{"status":"paused","holds":${JSON.stringify(HOLDS)}}\n`;
const ACTIVE = '{"status":"active","holds":[]}\n';
const REST_MS = 300; // in which a program would start if it were not stopped

describe('StateFile', () => {
  it('starts active without a file, and then remembers the holds of a pause', { skip: lacks('Unix') }, (t) => {
    const path = join(makeFolder(t), 'state.json');
    const state = new StateFile(path);
    assert.deepEqual(state.read(), []);
    assert.deepEqual([readFileSync(path, 'utf8'), statSync(path).mode & 0o777], [ACTIVE, 0o600]);
    state.keep(HOLDS);
    assert.equal(readFileSync(path, 'utf8'), PAUSED);
    assert.deepEqual(new StateFile(path).read(), HOLDS);
    state.keep([]);
    assert.deepEqual(new StateFile(path).read(), []);
    assert.deepEqual(readdirSync(join(path, '..')), ['state.json']);
  });

  it('reads texts of people; a hold without a credible time begins at the first start', (t) => {
    t.mock.timers.enable({ apis: ['Date'], now: Date.parse(SINCE) });
    for (const [what, fields, ...expected] of [
      ['an active one', { status: 'active' }],
      ['fields of other versions', { status: 'active', by: 7, pid: 4711, holds: 7 }],
      ['the only hold', { status: 'paused', ...HOLD }, HOLD],
      ['a time with an offset', { status: 'paused', since: '2026-01-23T07:00:00+01:00' }, {}],
      ['no time', { status: 'paused' }, {}],
      ['no time of a hold', { status: 'paused', holds: [HOLD, { by: 'ben@desk' }] }, HOLD, { by: 'ben@desk' }],
      ['a time in the future', { status: 'paused', since: '9999-01-01T00:00:00Z' }, {}],
      ['control characters', { status: 'paused', by: 'a\x1b[2J\x00\x85na' }, { by: 'a[2Jna' }],
      ['a long text', { status: 'paused', reason: '🦊'.repeat(201) }, { reason: '🦊'.repeat(200) }],
      ['marks of direction', { status: 'paused', reason: 'עד \u200fnoon' }, { reason: 'עד \u200fnoon' }],
    ] as const) {
      const path = join(makeFolder(t), 'state.json');
      writeFileSync(path, JSON.stringify(fields));
      for (const when of ['first', 'second']) {
        const holds = expected.map((hold) => ({ since: SINCE, ...hold }));
        assert.deepEqual(new StateFile(path).read(), holds, `${what}, ${when}`);
        t.mock.timers.tick(5000);
      }
      t.mock.timers.setTime(Date.parse(SINCE));
    }
  });

  it('reads what was edited on Windows, with a byte order mark, and writes it without', { skip: lacks('Unix') }, (t) => {
    const path = join(makeFolder(t), 'state.json');
    writeFileSync(path, `\ufeff${PAUSED.replace('\n', '\r\n')}`);
    assert.deepEqual(new StateFile(path).read(), HOLDS);
    assert.equal(readFileSync(path, 'utf8'), PAUSED);
  });

  it('writes to the target of a symbolic link, and keeps the link', { skip: lacks('Unix') }, (t) => {
    const folder = makeFolder(t);
    mkdirSync(join(folder, 'disk'));
    writeFileSync(join(folder, 'disk', 'state.json'), ACTIVE);
    const link = join(folder, 'state.json');
    symlinkSync('disk/state.json', link);
    const state = new StateFile(link);
    state.read();
    state.keep(HOLDS);
    assert.deepEqual([lstatSync(link).isSymbolicLink(), readlinkSync(link)], [true, 'disk/state.json']);
    assert.equal(readFileSync(join(folder, 'disk', 'state.json'), 'utf8'), PAUSED);
  });

  it('deletes leftovers of a crash at the start, and nothing else', (t) => {
    const folder = makeFolder(t);
    const others = ['other.json.0123456789abcdef.tmp', 'state.json.bak', 'state.json.x.tmp'];
    const past = Date.now() / 1000 - 61;
    for (const name of [...others, 'state.json.0123456789abcdef.tmp']) {
      writeFileSync(join(folder, name), '');
      utimesSync(join(folder, name), past, past);
    }
    const current = 'state.json.fedcba9876543210.tmp'; // of another control-run that starts at the same time
    others.push(current, 'loop');
    writeFileSync(join(folder, current), '');
    symlinkSync('loop', join(folder, 'loop')); // whoever looks at it gets an error
    new StateFile(join(folder, 'state.json')).read();
    assert.deepEqual(readdirSync(folder).sort(), [...others, 'state.json'].sort());
  });
});

describe('control-run --state', { ...LIMIT, concurrency: 3, skip: lacks('Linux') }, () => {
  it('starts a paused program stopped before its first instruction, with all holds', async (t) => {
    const { path, command, starts } = prepare(t);
    const first = await startRun(t, ['--state', path], command);
    await until(() => starts().length === 1);
    for (const { by, reason } of [HOLD, { by: 'cleo' }, { by: 'ben@desk' }]) await pause(first, { by, reason });
    const released = await first.client.request('resume', { wait: 60, by: 'cleo', mine: true });
    assert.deepEqual(released.body['value'], { released: true });
    const before = await first.client.getInfo();
    const holds = before?.holds?.map(({ by, reason }) => ({ by, reason }));
    assert.deepEqual(holds, [{ by: HOLD.by, reason: HOLD.reason }, { by: 'ben@desk', reason: undefined }]);
    await crash(first);

    const second = await startRun(t, ['--state', path], command);
    const after = await second.client.getInfo();
    assert.deepEqual([after?.status, after?.holds, after?.commands], ['paused', before?.holds, []]);
    await showsRun(second, { pid: second.pid, command: command.join(' '), processes: 1 });
    assert.equal(stateOf(second.pid), 'T');
    second.running.child.kill('SIGUSR1'); // would kill this program: not passed on
    process.kill(second.pid, 'SIGCONT'); // as `fg` does
    await sleep(REST_MS);
    assert.equal(starts().length, 1);

    assert.deepEqual(await perform(second.port, 'resume'), [200, undefined]);
    await until(() => starts().length === 2);
    assert.equal(starts()[1], String(second.pid), 'it is the same process');
    await crash(second);
    const third = await startRun(t, ['--state', path], command);
    await until(() => starts().length === 3);
    assert.equal((await getInfo(third.port)).status, 'active');
  });

  it('is written before the sender of a pause gets its outcome; a pause survives every end, without a save', async (t) => {
    const { path, command, starts, env } = prepare(t);
    const first = await startRun(t, ['--state', path], command);
    await until(() => starts().length === 1);
    const changes = [
      ['pause', { by: 'ana' }, ['ana']], ['pause', { by: 'ben' }, ['ana', 'ben']],
      ['resume', { by: 'ana', mine: true }, ['ben']], ['resume', { by: 'ben', mine: true }, []],
      ['pause', { by: 'cleo' }, ['cleo']], ['resume', {}, []],
    ] as const;
    for (const [command, options, expected] of [...changes, ...changes, ...changes]) {
      assert.ok((await first.client.request(command, { wait: 60, ...options })).ok);
      const { status, holds } = JSON.parse(readFileSync(path, 'utf8'));
      const seen = [status, ...holds.map(({ by }: StatusCause) => by)];
      assert.deepEqual(seen, [expected.length === 0 ? 'active' : 'paused', ...expected]);
    }
    await pause(first, HOLD);
    const text = readFileSync(path, 'utf8');
    assert.deepEqual(await perform(first.port, 'shutdown'), [200, 'SIGTERM']);
    assert.equal(await exitCodeOf(first.running), 128 + 15);
    for (const [end, ...options] of [
      ['shutdown'], ['shutdown', '--save-signal', 'USR1'], ['shutdown', '--save-command', 'echo saved >> "$STARTS"'],
      ['SIGTERM', '--save-command', 'echo saved >> "$STARTS"'],
    ] as const) {
      const { running, port } = await startRun(t, ['--state', path, ...options], command, env);
      assert.equal((await getInfo(port)).status, 'paused');
      if (end === 'SIGTERM') running.child.kill(end);
      else assert.deepEqual(await perform(port, end), [200, 'SIGTERM']);
      assert.equal(await exitCodeOf(running), 128 + 15);
      await isTidy(running);
      assert.deepEqual([starts().length, readFileSync(path, 'utf8')], [1, text], `${end} ${options}`);
    }
  });

  it('gives a program that starts paused the same arguments, environment and files', async (t) => {
    const script = `
      const { CONTROL_RUN, CONTROL_RUN_SOCKET, ...env } = process.env;
      console.log(JSON.stringify([process.argv, process.argv0, !!CONTROL_RUN_SOCKET, Object.entries(env).sort()]));
      console.log(fs.readdirSync('/proc/self/fd').join(), fs.readlinkSync('/proc/self/fd/3').split(':')[0]);`;
    const args = ['--', '-x', '', '*', "a'b\"c$d`e`\\", 'é\u0081\u0088€\u{1f600}\t\n'];
    const env = { 'odd.name': ' 1\n', 'BASH_FUNC_f%%': '() { echo "$1"; }', '-u': '2', PWD: process.cwd() };
    const outputs: string[] = [];
    for (const isPaused of [false, true]) {
      const { path } = prepare(t, isPaused);
      const { running, port } = await startRun(t, ['--state', path], ['node', '-e', script, ...args], env);
      if (isPaused) await perform(port, 'resume');
      outputs.push((await running.ended).stdout);
    }
    assert.match(outputs[0] ?? '', /\["odd\.name"," 1\\n"\]/);
    assert.equal(outputs[1], outputs[0]);
  });

  it('refuses at once a command that cannot be started, with or without a pause', async (t) => {
    const { path } = prepare(t, true);
    const plain = join(makeFolder(t), 'plain');
    writeFileSync(plain, 'echo no\n', { mode: 0o644 });
    for (const [file, code, why] of [
      ['no-such-\x1b[2J\u202ecommand', 127, 'not found'], [join(plain, '..', 'no'), 127, 'not found'],
      [plain, 126, 'permission denied'], ['/tmp', 126, 'permission denied'], [join(plain, 'x'), 126, 'not a directory'],
    ] as const) {
      for (const options of [['--state', path], []]) {
        const ended = await runProgram(t, 'run', ['--port', '0', ...options, file]);
        const name = file.replace('\x1b[2J\u202e', ' [2J ');
        assert.deepEqual(ended, { code, stdout: '', stderr: `control-run: cannot start '${name}': ${why}\n` });
      }
    }
    assert.equal(readFileSync(path, 'utf8'), PAUSED);
  });

  it('pauses although the state cannot be written, and reports that until a retry succeeds', async (t) => {
    const folder = makeFolder(t);
    const path = join(folder, 'disk', 'state.json');
    mkdirSync(join(folder, 'disk'));
    const run = await startRun(t, ['--state', path], prepare(t).command);
    renameSync(join(folder, 'disk'), join(folder, 'elsewhere'));
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    const { state } = await showsRun(run, { pid: run.pid });
    assert.match(String(state), /^not written: ENOENT: /);
    assert.match(run.running.output(), /^control-run: --state not written: ENOENT: .*$/m);
    renameSync(join(folder, 'elsewhere'), join(folder, 'disk'));
    await showsRun(run, { state: undefined });
    assert.match(readFileSync(path, 'utf8'), /^\{"status":"paused",/);
    renameSync(join(folder, 'disk'), join(folder, 'elsewhere'));
    await perform(run.port, 'resume');
    renameSync(join(folder, 'elsewhere'), join(folder, 'disk'));
    run.running.child.kill('SIGTERM');
    assert.equal(await exitCodeOf(run.running), 128 + 15);
    assert.equal(readFileSync(path, 'utf8'), ACTIVE, 'it tries once more at the end');
  });

  it('starts a program on CONTROL_FD when it is resumed', async (t) => {
    const { path } = prepare(t, true);
    const line = '{"status":"active","detail":{"epoch":0}}';
    const script = 'echo began; echo "$1" >&3; cat <&3';
    const run = await startRun(t, ['--state', path, '--grace', '0.3'], shell(script, line)); // it does not respond
    assert.equal(stateOf(run.pid), 'T');
    await showsRun(run, { pid: run.pid, canSave: undefined });
    const error = `save-state failed: sh[${run.pid}] has not started: there is nothing to save`;
    assert.deepEqual(await perform(run.port, 'save-state'), [500, error]);
    assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
    await run.running.shows(/^began$/m);
    await showsDetail(run, { epoch: 0 });
    await showsRun(run, { canSave: true });
    assert.equal((await getInfo(run.port)).status, 'active');
    void perform(run.port, 'pause');
    await run.running.shows(/^\{"id":1,"command":"pause"\}$/m);
  });

  it('with --restart, starts a program that was killed before it began when it is resumed', async (t) => {
    const { path, command, starts } = prepare(t, true);
    const { running, port, pid } = await startRun(t, ['--state', path, '--restart', 'on-failure'], command);
    killAll([pid]);
    await running.shows(/ended with SIGKILL: restart 1 in 1 s/);
    await sleep(1000 + REST_MS);
    assert.deepEqual([starts(), (await getInfo(port)).status], [[], 'paused']);
    assert.deepEqual(await perform(port, 'resume'), [200, undefined]);
    await until(() => starts().length === 1);
    assert.equal(readFileSync(path, 'utf8'), ACTIVE);
    await perform(port, 'pause');
    killAll(processesOf(running));
    await running.shows(/ended with SIGKILL: restart \d in \d s\n[^]*restart \d in \d s/);
    running.child.kill('SIGTERM');
    assert.equal(await exitCodeOf(running), 128 + 9, 'a signal ends the wait');
  });
});

interface Prepared {
  /** Of the state. */
  path: string;
  /** Notes its process id before it waits. */
  command: string[];
  env: NodeJS.ProcessEnv;
  /** The process ids of all starts so far. */
  starts(): string[];
}

/** A new folder, with the state of a pause if there is one. */
function prepare(t: TestContext, isPaused: boolean = false): Prepared {
  const folder = makeFolder(t);
  const path = join(folder, 'state.json');
  if (isPaused) writeFileSync(path, PAUSED);
  const starts = join(folder, 'starts');
  const command = shell(`echo $$ >> "$1"; ${WAIT}`, starts);
  return { path, command, env: { STARTS: starts }, starts: () => readLines(starts) };
}

async function pause({ client }: Pick<StartedRun, 'client'>, { by, reason }: StatusCause): Promise<void> {
  const reply = await client.request('pause', { wait: 60, by, reason });
  assert.ok(reply.ok);
}

/** As if the machine crashed: kills control-run, its keeper and the program. */
async function crash({ running }: StartedRun): Promise<void> {
  killAll([...listTree(running.child.pid as number), ...processesOf(running)]);
  await exitCodeOf(running);
  await until(() => processesOf(running).length === 0);
}
