// Questions of a program under control-run: of any script, of a program on CONTROL_FD, and of the Python module.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, existsSync, statSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { dirname, join, resolve } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import {
  assertHarmless, getInfo, HOSTILE, makeFolder, perform, type Running, runProgram, startProgram,
} from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import {
  endRun, killAll, processesOf, PYTHON, run, shell, type StartedRun, startRun, stateOf, WAIT,
} from './helpers.ts';
import { HELLO, order, RELAY, startListener, startTalk, type Talk } from './talk.ts';
import type { AskInfo } from '../../../../control.ts';

const suite = { ...LIMIT, concurrency: 3 };
const CLOCK_MS = 200; // by which the clocks of two processes may differ
const HOUR_MS = 3_600_000;

/** What control-run ask prints if the answer does not come at once. */
const WAITS = /^control-run: waits for an answer: .*\n/gm;

/** For a shell: `ask` is control-run ask. */
const ASK = `ask() { '${process.execPath}' '${resolve('dist/bin/run.js')}' ask "$@"; }`;

/** The open questions. */
async function asksOf({ port }: { port: number }): Promise<AskInfo[]> {
  return (await getInfo(port) as unknown as { asks: AskInfo[] }).asks;
}

/** Waits until these questions are open. */
async function opens(run: { port: number }, ...messages: string[]): Promise<AskInfo[]> {
  let asks: AskInfo[] = [];
  await until(async () => {
    asks = await asksOf(run);
    return asks.map(({ message }) => message).join('\n') === messages.join('\n');
  }, () => `${JSON.stringify(messages)} instead of ${JSON.stringify(asks)}`);
  return asks;
}

/** Waits for one question, other than one that was open before. */
async function openOne(run: { port: number }, message: string, before: string = ''): Promise<AskInfo> {
  let question: AskInfo | undefined;
  await until(async () => ([question] = await opens(run, message), question?.id !== before));
  return question as AskInfo;
}

async function answer(
  { port }: { port: number },
  { id }: Pick<AskInfo, 'id'>,
  body: object,
  query: string = '',
): Promise<[number, unknown]> {
  return await order(port, `answer?id=${id}${query}`, body);
}

/** The outcomes of ended questions, oldest first. */
async function endsOf({ port }: { port: number }): Promise<unknown[]> {
  const { commands } = await getInfo(port);
  return commands.filter(({ command }) => command === 'answer').map(({ state, error }) => error ?? state);
}

interface Asked extends StartedRun {
  /** Of the socket. */
  path: string;
  /** Runs control-run ask outside the program, so that what ends the program does not end it. */
  ask(...args: string[]): Running;
}

/** Starts a program that has a socket for control-run ask. */
async function startAsked(t: TestContext, options: string[] = [], command: string = WAIT): Promise<Asked> {
  const run = await startRun(t, options, shell(`echo "<$CONTROL_RUN_SOCKET>"; ${command}`));
  await run.running.shows(/<\/.*>/);
  const [, path = ''] = /<(\/.*)>/.exec(run.running.output()) ?? [];
  const ask = (...args: string[]): Running => startProgram(t, 'run', ['ask', ...args], { CONTROL_RUN_SOCKET: path });
  return { ...run, path, ask };
}

/** What is left of stderr without the line that says what the script waits for. */
async function endOf(running: Running): Promise<[code: number | null, stdout: string, stderr: string]> {
  const { code, stdout, stderr } = await running.ended;
  return [code, stdout, stderr.replace(WAITS, '')];
}

describe('control-run ask', { ...suite, skip: lacks('Linux') }, () => {
  it('asks from a process at any depth; a yes is exit code 0, a no is 1', async (t) => {
    const script = `${ASK}; ask 'Deploy build 4711?' < /dev/null; echo "code $?"`;
    const nested = "sh -c 'sh -c \"$1\"; echo back' sh \"$1\"";
    const { running, ...run } = await startRun(t, [], ['sh', '-c', `${nested}; ${nested}; exit 9`, 'sh', script]);
    for (const [approved, code, line] of [
      [true, 0, 'control-run: yes by ana@phone: looked at it\n'], [false, 1, 'control-run: no\n'],
    ] as const) {
      const question = await openOne(run, 'Deploy build 4711?');
      await until(() => running.output().match(WAITS)?.length === code + 1, running.output);
      assert.deepEqual(question.parameters, { approved: { type: 'boolean' } });
      assert.equal(question.expiresAt, undefined);
      const query = approved ? '&by=ana@phone&reason=looked+at+it' : '';
      assert.deepEqual(await answer(run, question, { approved }, query), [200, undefined]);
      await running.shows(new RegExp(`^code ${code}\nback\n`, 'm'));
      assert.ok(running.output().includes(line), running.output());
    }
    const { code, stdout } = await running.ended;
    assert.deepEqual([code, stdout], [9, 'code 0\nback\ncode 1\nback\n']);
  });

  it('prints the answer to --parameters as JSON', async (t) => {
    const run = await startAsked(t);
    const parameters = { file: { type: 'string', enum: ['a', 'b'] }, note: { type: 'string', default: 'none' } };
    const asking = run.ask('Which?', '--parameters', JSON.stringify(parameters));
    const question = await openOne(run, 'Which?');
    assert.deepEqual(question.parameters, parameters);
    const wrong = 'answer: file must be one of a, b, got "c"';
    assert.deepEqual(await answer(run, question, { file: 'c' }), [400, wrong]);
    const note = '\x1b[2Jü\u202e';
    assert.deepEqual(await answer(run, question, { file: 'b', note }, '&by=ana'), [200, undefined]);
    const stdout = '{"file":"b","note":"\\u001b[2Jü\\u202e"}\n';
    assert.deepEqual(await endOf(asking), [0, stdout, 'control-run: answered by ana\n']);
    const refusing = run.ask('Sure?', '--parameters', '{"approved":{"type":"boolean"}}');
    await answer(run, await openOne(run, 'Sure?'), { approved: false });
    assert.deepEqual(await endOf(refusing), [0, '{"approved":false}\n', 'control-run: answered\n']);
    const mute = startProgram(t, 'run', ['ask', 'Full?', '--parameters', '{}'], { CONTROL_RUN_SOCKET: run.path });
    mute.child.stdout?.destroy();
    await answer(run, await openOne(run, 'Full?'), {});
    const unwritten = 'control-run: answered\ncontrol-run: EPIPE: broken pipe, write\n';
    assert.deepEqual(await endOf(mute), [2, '', unwritten]);
  });

  it('has the answer of an earlier question with its --key, also after a restart; not without a log', async (t) => {
    const options = ['--name', 'deployer', '--log', join(makeFolder(t), 'log')];
    const args = ['Deploy?', '--key', 'deploy 4711'] as const;
    const first = await startAsked(t, options);
    const asking = first.ask(...args);
    const question = await openOne(first, 'Deploy?');
    assert.equal(question.key, 'deploy 4711');
    const refusal = "control-run: Cannot ask: 'deploy 4711' is asked already\n";
    assert.deepEqual(await endOf(first.ask(...args)), [2, '', refusal]);
    await answer(first, question, { approved: true }, '&by=ana');
    const yes = [0, '', 'control-run: yes by ana\n'];
    for (const one of [asking, first.ask(...args)]) assert.deepEqual(await endOf(one), yes);
    await endRun(first.running);
    const second = await startAsked(t, options);
    assert.deepEqual(await endOf(second.ask(...args)), yes);
    const [code, , stderr] = await endOf(second.ask('Deploy all?', ...args.slice(1)));
    assert.equal(code, 2);
    assert.match(stderr, /^control-run: 'deploy 4711' in '\/.*' is the key of another question: Deploy\?\n$/);
    const mute = await startAsked(t, ['--no-log']);
    assert.deepEqual(await endOf(mute.ask(...args)), [2, '', 'control-run: key requires a log\n']);
  });

  it('exits with 4 once the time has passed', async (t) => {
    const run = await startAsked(t);
    assert.deepEqual(await endOf(run.ask('Now?', '--timeout', '.05')), [4, '', 'control-run: expired\n']);
    assert.deepEqual(await endsOf(run), ['expired']);
    const asking = run.ask('Later?', '--timeout', '15m');
    const { at, expiresAt = '' } = await openOne(run, 'Later?');
    assert.equal(Date.parse(expiresAt) - Date.parse(at), 900_000);
    asking.child.kill();
  });

  it('stays open during a pause, in which its time goes on', async (t) => {
    const script = `${ASK}; ask 'Deploy?' --timeout 1h && echo deployed; ${WAIT}`;
    const run = await startRun(t, [], shell(script));
    const first = await openOne(run, 'Deploy?');
    const end = Date.parse(first.expiresAt ?? '');
    assert.equal(end - Date.parse(first.at), HOUR_MS);
    await perform(run.port, 'pause');
    const second = await openOne(run, 'Deploy?', first.id);
    const movedMs = Math.abs(Date.parse(second.expiresAt ?? '') - end);
    assert.ok(movedMs < CLOCK_MS, `${movedMs} ms`);
    assert.ok(processesOf(run.running).every((pid) => stateOf(pid) === 'T'));
    assert.deepEqual(await answer(run, first, { approved: true }), [409, `${first.id} was withdrawn`]);
    assert.deepEqual(await answer(run, second, { approved: true }, '&by=ana'), [200, undefined]);
    await opens(run);
    assert.doesNotMatch(run.running.output(), /deployed/);
    await perform(run.port, 'resume');
    await run.running.shows(/^deployed$/m);
    assert.ok(run.running.output().includes('control-run: yes by ana\n'));
    assert.deepEqual(await endsOf(run), ['withdrawn', 'done']);
  });

  it('expires during a pause, and the script learns that once it is resumed', async (t) => {
    const run = await startAsked(t);
    const asking = run.ask('Deploy?', '--timeout', '2');
    const first = await openOne(run, 'Deploy?');
    await perform(run.port, 'pause');
    const second = await openOne(run, 'Deploy?', first.id);
    assert.ok(second.expiresAt !== undefined);
    await opens(run);
    await perform(run.port, 'resume');
    assert.deepEqual(await endOf(asking), [4, '', 'control-run: expired\n']);
  });

  it('keeps its id over a resume', async (t) => {
    const run = await startAsked(t);
    const asking = run.ask('Deploy?');
    const first = await openOne(run, 'Deploy?');
    await perform(run.port, 'pause');
    const second = await openOne(run, 'Deploy?', first.id);
    await perform(run.port, 'resume');
    assert.equal((await openOne(run, 'Deploy?')).id, second.id);
    await answer(run, second, { approved: true });
    assert.equal((await asking.ended).code, 0);
  });

  it('is asked anew after a save, and after a pause that fails', async (t) => {
    const run = await startAsked(t, ['--save-command', 'echo saved', '--pause-command', 'false']);
    const asking = run.ask('Deploy?', '--timeout', '1h');
    let question = await openOne(run, 'Deploy?');
    for (const [command, outcome] of [
      ['save-state', [200, 'saved']], ['pause', [500, 'pause failed: the pause command ended with exit code 1']],
      ['save-state', [200, 'saved']],
    ] as const) {
      assert.deepEqual(await perform(run.port, command), outcome);
      question = await openOne(run, 'Deploy?', question.id);
    }
    await until(async () => (question = await openOne(run, 'Deploy?')).expiresAt !== undefined);
    assert.deepEqual(await answer(run, question, { approved: false }), [200, undefined]);
    assert.deepEqual(await endOf(asking), [1, '', 'control-run: no\n']);
  });

  it('is withdrawn by a shutdown, and refused until the end', async (t) => {
    const save = "[ -e $CONTROL_PID.txt ]; until [ -e \"$ended\" ]; do sleep .02; done";
    const ended = join(makeFolder(t), 'ended');
    const run = await startAsked(t, ['--save-command', save.replace('$ended', ended)]);
    const asking = run.ask('Deploy?', '--timeout', '1h');
    await openOne(run, 'Deploy?');
    const shutdown = perform(run.port, 'shutdown');
    const withdrawn = [5, '', 'control-run: withdrawn: the program is shutting down\n'];
    assert.deepEqual(await endOf(asking), withdrawn);
    assert.deepEqual(await endOf(run.ask('Deploy now?')), withdrawn);
    writeFileSync(ended, '');
    assert.deepEqual(await shutdown, [200, 'SIGTERM']);
    await run.running.ended;
    assert.equal(existsSync(dirname(run.path)), false);
  });

  it('is withdrawn when it ends, by any signal', async (t) => {
    const run = await startAsked(t);
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGKILL'] as const) {
      const asking = run.ask('Deploy?');
      await openOne(run, 'Deploy?');
      asking.child.kill(signal);
      await opens(run);
      await asking.ended;
      assert.equal(asking.child.signalCode, signal);
    }
    assert.deepEqual(await endsOf(run), ['withdrawn', 'withdrawn', 'withdrawn']);
    const asking = run.ask('Deploy?');
    const question = await openOne(run, 'Deploy?');
    await perform(run.port, 'pause');
    await openOne(run, 'Deploy?', question.id);
    asking.child.kill('SIGKILL');
    await opens(run);
    await perform(run.port, 'resume');
    await opens(run);
  });

  it('is withdrawn when the program has ended, also with --restart, and when control-run was killed', async (t) => {
    const run = await startAsked(t, ['--restart', 'on-failure']);
    const first = run.ask('Deploy?');
    await openOne(run, 'Deploy?');
    process.kill(run.pid, 'SIGKILL');
    assert.deepEqual(await endOf(first), [5, '', `control-run: withdrawn: sh[${run.pid}] has ended\n`]);
    await opens(run);
    await run.running.shows(/<[^]*</); // restarted
    const second = run.ask('Deploy?');
    await openOne(run, 'Deploy?');
    const left = processesOf(run.running);
    run.running.child.kill('SIGKILL');
    assert.deepEqual(await endOf(second), [5, '', 'control-run: withdrawn: control-run was killed\n']);
    await until(() => !existsSync(dirname(run.path)), () => `${run.path} is left`);
    const late = await run.ask('Deploy?').ended;
    const stderr = `control-run: nobody can answer: cannot reach control-run: connect ENOENT ${run.path}\n`;
    assert.deepEqual(late, { code: 2, stdout: '', stderr });
    killAll(left);
  });

  it('refuses wrong use with one line and exit code 2', async (t) => {
    const run = await startAsked(t);
    const duration = '--timeout must be a number of seconds or a duration (30m, 2h, 1.5d), above 0 and up to 24d';
    for (const [args, line] of [
      [[], 'MESSAGE is missing; see control-run ask --help'],
      [['Deploy', 'now'], "unexpected argument 'now'; see --help"],
      [['Deploy?', '--timeout', '0'], `${duration}, got '0'`],
      [['Deploy?', '--timeout', 'soon'], `${duration}, got 'soon'`],
      [['Deploy?', '--parameters', '{file}'], "--parameters must be JSON, got '{file}'"],
      [['Deploy?', '--wait'], "unknown option '--wait'; see --help"],
    ] as const) {
      assert.deepEqual(await run.ask(...args).ended, { code: 2, stdout: '', stderr: `control-run: ${line}\n` });
    }
    for (const [args, line] of [
      [[' '], "message must be a text of 1 to 1000 characters, got ' '"],
      [['Deploy?', '--parameters', '7'], 'parameters must be an object, got 7'],
      [['Deploy?', '--parameters', '{"file":{"type":"file"}}'],
        'answer.file.type must be one of boolean, integer, number, string, got "file"'],
    ] as const) {
      assert.deepEqual(await endOf(run.ask(...args)), [2, '', `control-run: ${line}\n`]);
    }
    assert.deepEqual(await endsOf(run), []);
    const stderr = 'control-run: nobody can answer: not under control-run, which sets CONTROL_RUN_SOCKET\n';
    for (const CONTROL_RUN_SOCKET of [undefined, '']) {
      const ended = await runProgram(t, 'run', ['ask', 'Deploy?'], '', { CONTROL_RUN_SOCKET });
      assert.deepEqual(ended, { code: 2, stdout: '', stderr });
    }
    const { code, stdout, stderr: errors } = await run.ask('--help').ended;
    assert.deepEqual([code, errors], [0, '']);
    assert.match(stdout, /^Usage: control-run ask MESSAGE /);
    assert.deepEqual(stdout.split('\n').filter((text) => text.length > 120), []);
  });

  it('neither prints nor sends control characters', async (t) => {
    const run = await startAsked(t);
    const asking = run.ask(HOSTILE.replaceAll('\0', ''));
    await asking.shows(WAITS);
    const [question = assert.fail()] = await asksOf(run);
    assert.doesNotMatch(question.message, /\p{Cc}/u);
    const query = `&by=${encodeURIComponent(HOSTILE)}&reason=${encodeURIComponent(HOSTILE)}`;
    assert.deepEqual(await answer(run, question, { approved: true }, query), [200, undefined]);
    const { code, stderr } = await asking.ended;
    assert.equal(code, 0);
    assertHarmless(stderr);
    assert.match(stderr.replace(WAITS, ''), /^control-run: yes by PW.*\n$/);
  });

  it('has a socket for this user alone, which refuses what is no question', async (t) => {
    const run = await startAsked(t);
    assert.deepEqual([run.path, dirname(run.path)].map((path) => statSync(path).mode & 0o777), [0o600, 0o700]);
    const say = async (text: string): Promise<string> => {
      const socket = connect(run.path).setEncoding('utf8').on('error', () => {});
      socket.write(text);
      let reply = '';
      socket.on('data', (part) => (reply += part));
      await once(socket, 'close');
      return reply;
    };
    const error = "message must be a text of 1 to 1000 characters, got ''";
    for (const text of ['Deploy?\n', '7\n', '[]\n', '{}\n{}\n', `{"message":"${'x'.repeat(70_000)}`, '\0\n', '\n']) {
      assert.deepEqual(JSON.parse(await say(text)), { error }, text.slice(0, 20));
    }
    for (const [fields, what] of [
      [{}, "message must be a text of 1 to 1000 characters, got ''"],
      [{ message: 'x', timeout: '5' }, 'timeout must be a number of seconds from 0.001 to 2073600'],
      [{ message: 'x', timeout: 1e9 }, 'timeout must be a number of seconds from 0.001 to 2073600'],
      [{ message: 'x', timout: 5 }, 'ask has no option timout; it has parameters, timeout, signal, key'],
      [{ message: 'x', parameters: null }, 'parameters must be an object, got null'],
      [{ message: 'x', parameters: { x: { type: 'string', description: 'x'.repeat(5000) } } },
        /^the size of the question as JSON must be an integer from 0 to 4096, got \d+$/],
    ] as const) {
      const reply = JSON.parse(await say(`${JSON.stringify(fields)}\n`)) as { error: string };
      if (typeof what === 'string') assert.deepEqual(reply, { error: what });
      else assert.match(reply.error, what);
    }
    assert.deepEqual(await endsOf(run), []);
  });

  it('refuses a seventeenth question, and leaves sixteen open over a pause', async (t) => {
    const run = await startAsked(t);
    const messages = Array.from({ length: 16 }, (_, index) => `Question ${index}?`);
    const sockets = messages.map((message, index) => {
      const socket = connect(run.path).setEncoding('utf8').on('error', () => {});
      t.after(() => socket.destroy());
      socket.write(`${JSON.stringify({ message, timeout: index % 2 ? 3600 : undefined })}\n`);
      return socket;
    });
    const ids = async (): Promise<string[]> => {
      const asks = await asksOf(run);
      assert.ok(asks.length <= 16);
      return asks.length === 16 ? asks.map(({ id }) => id) : [];
    };
    await until(async () => (await ids()).length === 16);
    const refused = [2, '', 'control-run: Cannot ask: 16 questions are open\n'];
    assert.deepEqual(await endOf(run.ask('One more?')), refused);
    const before = await ids();
    await perform(run.port, 'pause');
    await until(async () => (await ids()).some((id) => !before.includes(id)));
    assert.deepEqual(await endOf(run.ask('One more?')), refused);
    await perform(run.port, 'resume');
    await until(async () => {
      return (await asksOf(run)).filter(({ expiresAt }) => expiresAt !== undefined).length === 8;
    });
    for (const [index, socket] of sockets.entries()) {
      const question = (await asksOf(run)).find(({ message }) => message === messages[index]) ?? assert.fail();
      const replied = once(socket, 'data');
      assert.deepEqual(await answer(run, question, { approved: index % 3 === 0 }), [200, undefined]);
      assert.deepEqual((await replied).join(''), `{"arguments":{"approved":${index % 3 === 0}}}\n`);
    }
  });

  it('is not available without a folder for its socket; the program runs nevertheless', async (t) => {
    const folder = makeFolder(t);
    for (const [path, why] of [
      [join(folder, 'none'), 'ENOENT: no such file or directory, mkdir'], [`/tmp/${'x'.repeat(90)}`, 'its path is too'],
    ] as const) {
      const ended = await run(t, [], shell(`${ASK}; ask 'Deploy?'; exit $?`), '', { TMPDIR: path });
      assert.equal(ended.code, 2);
      const [first, second] = ended.stderr.split('\n');
      assert.match(first ?? '', /^control-run: scripts cannot use control-run ask: cannot create the socket '/);
      assert.ok(first?.includes(`: ${why}`), first);
      assert.equal(second, 'control-run: nobody can answer: not under control-run, which sets CONTROL_RUN_SOCKET');
    }
  });
});

/** Waits for the line with the answer to a question. */
async function gets(talk: Talk, id: string): Promise<Record<string, unknown>> {
  const answers = (): Record<string, unknown>[] => [...talk.running.output().matchAll(/^\{"answer":(.*)\}$/gm)]
    .map(([, json = '']) => JSON.parse(json) as Record<string, unknown>).filter((one) => one['id'] === id);
  await until(() => answers().length > 0, () => `no answer to ${id} in: ${talk.running.output()}`);
  assert.equal(answers().length, 1);
  return answers()[0] as Record<string, unknown>;
}

describe('control-run: questions on CONTROL_FD', { ...suite, skip: lacks('Linux') }, () => {
  it('are answered at once if their key has an answer', async (t) => {
    const talk = await startListener(t, ['--log', join(makeFolder(t), 'log')]);
    talk.say({ ask: { id: 'a1', message: 'Delete?', key: 'k' } });
    await answer(talk, await openOne(talk, 'Delete?'), { approved: false }, '&by=ana');
    for (const id of ['a1', 'a2']) {
      if (id === 'a2') talk.say({ ask: { id, message: 'Delete?', key: 'k' } });
      assert.deepEqual(await gets(talk, id), { id, arguments: { approved: false }, by: 'ana' });
    }
    talk.say({ ask: { id: 'a3', message: 'Delete?', key: 5 } });
    assert.deepEqual(await gets(talk, 'a3'), { id: 'a3', error: 'key must be 1 to 200 characters, got 5' });
    talk.running.child.stdin?.end();
    await talk.running.ended;
  });

  it('are answered, expire and are withdrawn, several at a time', async (t) => {
    const talk = await startListener(t);
    const parameters = { file: { type: 'string' } };
    talk.say({ ask: { id: 'a1', message: 'Delete?' } }, { ask: { id: 'a2', message: 'Which?', parameters } });
    const [first, second] = await opens(talk, 'Delete?', 'Which?') as [AskInfo, AskInfo];
    assert.deepEqual(second.parameters, parameters);
    assert.deepEqual(await answer(talk, second, { file: 'ü' }, '&by=ana@phone&reason=best'), [200, undefined]);
    const fields = { id: 'a2', arguments: { file: 'ü' }, by: 'ana@phone', reason: 'best' };
    assert.deepEqual(await gets(talk, 'a2'), fields);
    talk.say({ withdraw: 'a1' }, { withdraw: 'a1' }, { withdraw: 'none' });
    assert.deepEqual(await gets(talk, 'a1'), { id: 'a1', error: 'withdrawn' });
    assert.deepEqual(await answer(talk, first, { approved: true }), [409, `${first.id} was withdrawn`]);
    talk.say({ ask: { id: 'a3', message: 'Now?', timeout: 0.05 }, detail: { epoch: 1 } });
    assert.deepEqual(await gets(talk, 'a3'), { id: 'a3', error: 'expired' });
    talk.say({ ask: { id: 'a1', message: 'Again?' } });
    await opens(talk, 'Again?');
    assert.equal(talk.complaints(), '');
    talk.running.child.stdin?.end();
    await talk.running.ended;
  });

  it('end when a pause, a save or a shutdown waits', async (t) => {
    const talk = await startListener(t);
    for (const command of ['save-state', 'pause', 'shutdown'] as const) {
      const id = `of ${command}`;
      talk.say({ ask: { id, message: 'Delete?' } });
      await opens(talk, 'Delete?');
      const done = perform(talk.port, command);
      const number = await talk.gets(command);
      assert.deepEqual(await gets(talk, id), { id, error: `Interrupted by ${command}` });
      talk.say({ done: number });
      if (command === 'shutdown') talk.running.child.stdin?.end();
      assert.equal((await done)[0], 200);
    }
  });

  it('end with the program, also if it restarts', async (t) => {
    const folder = makeFolder(t);
    const path = join(folder, 'asked');
    const script = `[ -e '${path}' ] || echo '{"ask":{"id":"a1","message":"Delete?"}}' >&3; touch '${path}'; read line`;
    const run = await startRun(t, ['--restart', 'on-failure'], shell(script));
    await opens(run, 'Delete?');
    process.kill(run.pid, 'SIGKILL');
    await opens(run);
    assert.deepEqual(await endsOf(run), ['withdrawn']);
  });

  it('are answered with an error if they are invalid; lines that are no questions are reported once', async (t) => {
    const talk = await startListener(t);
    for (const [ask, error] of [
      [{ message: 7 }, 'message must be a text of 1 to 1000 characters, got 7'],
      [{}, "message must be a text of 1 to 1000 characters, got ''"],
      [{ message: 'x', timeout: -1 }, 'timeout must be a number of seconds from 0.001 to 2073600'],
      [{ message: 'x', parameters: { file: {} } },
        'answer.file.type must be one of boolean, integer, number, string, got nothing'],
    ] as const) {
      const id = `wrong ${error}`.slice(0, 100);
      talk.say({ ask: { id, ...ask } });
      assert.deepEqual(await gets(talk, id), { id, error });
    }
    assert.equal(talk.complaints(), '');
    talk.say('{"ask": {"id": "nan", "message": "x", "timeout": NaN}}\n');
    const nan = await gets(talk, 'nan');
    assert.match(String(nan['error']), /^the program wrote an invalid line: \{"ask": \{"id": "nan", /);
    talk.say(`{"ask":{"id":"long","message":"${'x'.repeat(70_000)}"}}\n`);
    assert.deepEqual(await gets(talk, 'long'), { id: 'long', error: 'the program wrote a line longer than 64 KiB' });
    talk.say({ ask: { id: 'a1', message: 'Delete?' } });
    const question = await openOne(talk, 'Delete?');
    talk.say({ ask: { id: 'a1', message: 'Delete more?' } }, '{"ask":{"id":"a1","message":NaN}}\n');
    for (const id of [7, '', null, 'x'.repeat(101)]) talk.say({ ask: { id, message: 'x' } }, { withdraw: id });
    talk.say({ ask: 'Delete?' }, { ask: null });
    await talk.taken();
    await answer(talk, question, { approved: true });
    assert.deepEqual(await gets(talk, 'a1'), { id: 'a1', arguments: { approved: true } });
    assert.match(talk.complaints(), /^control-run: sh\[\d+\] wrote an invalid line: \{"ask": .* to CONTROL_FD\n$/);
    assert.deepEqual(await endsOf(talk), ['done']);
    for (let count = 0; count < 17; count += 1) talk.say({ ask: { id: `b${count}`, message: 'x' } });
    assert.deepEqual(await gets(talk, 'b16'), { id: 'b16', error: 'Cannot ask: 16 questions are open' });
  });

  it('are no longer answered while the program leaves 1 MiB of answers unread', async (t) => {
    const flood = `seq 40000 | sed 's/.*/{"ask":{"id":"f&","message":7}}/' >&3`;
    const talk = await startTalk(t, [], `${flood}; ${RELAY}`);
    talk.say(HELLO);
    await talk.taken();
    talk.say({ ask: { id: 'a1', message: 'Delete?' } });
    await answer(talk, await openOne(talk, 'Delete?'), { approved: true });
    await gets(talk, 'a1');
    const count = talk.running.output().match(/^\{"answer":\{"id":"f/gm)?.length ?? 0;
    assert.ok(count > 10_000 && count < 30_000, `${count} answers`);
  });
});

/** Starts a Python program with the module beside it. */
async function startPython(t: TestContext, code: string): Promise<StartedRun> {
  return await startRun(t, [], [PYTHON, writePython(t, code)]);
}

function writePython(t: TestContext, code: string): string {
  const path = join(makeFolder(t), 'train.py');
  copyFileSync('bin/run/control.py', join(dirname(path), 'control.py'));
  writeFileSync(path, `import functools, os, signal\nfrom control import Control, Interrupted\n` +
    `print = functools.partial(print, flush=True)\n${code}`);
  return path;
}

describe('control-run: ask() of the Python module', { ...suite, skip: lacks('Linux', 'python3') }, () => {
  it('returns the answer that its key has', async (t) => {
    const code = "control = Control()\nprint([control.ask('Deploy?', key='deploy 4711') for _ in '12'])\n";
    const path = writePython(t, code);
    const options = ['--name', 'deployer', '--log', join(dirname(path), 'log')];
    const run = await startRun(t, options, [PYTHON, path]);
    await answer(run, await openOne(run, 'Deploy?'), { approved: true });
    assert.equal((await run.running.ended).stdout, '[True, True]\n');
    const again = await runProgram(t, 'run', ['--port', '0', ...options, '--', PYTHON, path], '');
    assert.equal(again.stdout, '[True, True]\n');
  });

  it('returns True, False or a dict, and raises what happened instead', async (t) => {
    const run = await startPython(t, `
control = Control()
print(control.ask('First?'), control.ask('Second?', timeout=900))
parameters = {'rate': {'type': 'number'}, 'steps': {'type': 'integer'}}
print(control.ask('Which?', parameters=parameters))
for arguments in ({'timeout': .05}, {'timeout': 'soon'}, {'timeout': float('nan')}, {'parameters': {'x': 1}}):
    try: control.ask('Wrong?', **arguments)
    except Exception as error: print(f'{type(error).__name__}: {error}')
`);
    const first = await openOne(run, 'First?');
    await answer(run, first, { approved: true });
    const second = await openOne(run, 'Second?');
    assert.equal(Date.parse(second.expiresAt ?? '') - Date.parse(second.at), 900_000);
    await answer(run, second, { approved: false });
    await answer(run, await openOne(run, 'Which?'), { rate: 1, steps: 2 });
    const { code, stdout } = await run.running.ended;
    const range = 'ValueError: timeout must be a number of seconds from 0.001 to 2073600';
    const type = 'ValueError: answer.x.type must be one of boolean, integer, number, string, got nothing';
    const lines = ['True False', "{'rate': 1.0, 'steps': 2}", 'TimeoutError: expired: Wrong?', range, range, type, ''];
    assert.deepEqual([code, stdout.split('\n')], [0, lines]);
  });

  it('raises Interrupted when a command waits, for poll(); own commands wait for the answer', async (t) => {
    const run = await startPython(t, `
assert Control.Interrupted is Interrupted
control = Control(lambda: 'saved', {'set': lambda: print('set')})
while not control.poll():
    try:
        print(control.ask('Delete?'))
        print(control.poll())
        control.ask('Last?')
    except control.Interrupted: print('interrupted')
print('ended')
`);
    let question = await openOne(run, 'Delete?');
    for (const [command, outcome] of [
      ['save-state', [200, 'saved']], ['pause', [200, undefined]],
    ] as const) {
      assert.deepEqual(await perform(run.port, command), outcome);
      if (command === 'pause') await opens(run);
      else question = await openOne(run, 'Delete?', question.id);
    }
    assert.equal(stateOf(run.pid), 'S', 'it pauses by itself');
    assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
    question = await openOne(run, 'Delete?');
    const set = order(run.port, 'set');
    await until(async () => (await getInfo(run.port)).commands.some(({ state }) => state === 'running'));
    assert.doesNotMatch(run.running.output(), /^set$/m);
    await answer(run, question, { approved: true });
    assert.equal((await set)[0], 200);
    await openOne(run, 'Last?');
    assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'saved; exit code 0']);
    const stdout = 'interrupted\ninterrupted\nTrue\nset\nFalse\ninterrupted\nended\n';
    assert.deepEqual((await run.running.ended).stdout, stdout);
  });

  it('takes part in own commands, and is withdrawn by an exception', async (t) => {
    const run = await startPython(t, `
control = Control(commands={'clean': lambda: control.ask('Clean?')})
try: control.ask('Wait?')
except KeyboardInterrupt: print('stopped')
while not control.poll(): signal.sigtimedwait([], .01)
`);
    await openOne(run, 'Wait?');
    process.kill(run.pid, 'SIGINT');
    await run.running.shows(/stopped/);
    await opens(run);
    const clean = order(run.port, 'clean');
    await answer(run, await openOne(run, 'Clean?'), { approved: true });
    assert.deepEqual(await clean, [200, true]);
    const interrupted = order(run.port, 'clean');
    await openOne(run, 'Clean?');
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    assert.deepEqual(await interrupted, [500, 'clean failed: Interrupted by pause']);
    assert.deepEqual(await endsOf(run), ['withdrawn', 'done', 'withdrawn']);
  });

  it('raises an error without control-run, and when control-run was killed', async (t) => {
    const alone = writePython(t, "try: Control().ask('Delete?')\nexcept RuntimeError as error: print(error)\n");
    const { stdout } = spawnSync(PYTHON, [alone], { encoding: 'utf8' });
    assert.equal(stdout, 'nobody can answer: not under control-run\n');
    const run = await startPython(t, `
signal.signal(signal.SIGTERM, signal.SIG_IGN)
control = Control(lambda: print('saved'))
try: control.ask('Delete?')
except Interrupted as error: print(error)
print(control.poll())
`);
    await openOne(run, 'Delete?');
    run.running.child.kill('SIGKILL');
    assert.equal((await run.running.ended).stdout, 'control-run was killed\nsaved\nTrue\n');
  });
});
