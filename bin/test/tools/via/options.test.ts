// --via and CONTROL_VIA: labels, words, targets, tokens and exit codes.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { UsageError } from '../../../shared/cli.ts';
import { type Ended, makeFolder, runProgram, startServer, TOKEN } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { call, linesOf, makeFile } from '../client/helpers.ts';
import { openSession, type Session, startWeb } from '../client/systems.ts';
import { quote, reach, via, viaShell } from './helpers.ts';

const NO_COMMAND = "cannot start '/nowhere/x': there is no such command; only a single word is a host";

describe('--via', { ...LIMIT, concurrency: 2, skip: lacks('Unix') }, () => {
  it('takes the label from the last word, or the one before =', async () => {
    for (const [text, label] of [
      ['gpu1', 'gpu1'], ['ana@gpu1', 'gpu1'], ['a@b@gpu1', 'gpu1'], ['gpu-1.example.com', 'gpu-1.example.com'],
      ['  gpu1 ', 'gpu1'], ['192.0.2.7', '192.0.2.7'], ['localhost', 'localhost'], ['LocalHost', 'LocalHost'],
      ['m=gpu1', 'm'], ['m=localhost', 'm'], ['m=[::1]', 'm'], ['a.b-c_d=x=y z', 'a.b-c_d'], ['7=gpu1', '7'],
      ['docker exec -i web', 'web'], ['sudo -u ana', 'ana'], ['kubectl exec -i trainer-0 --', 'trainer-0'],
      ['ssh -- ana@gpu1 --', 'gpu1'], ['ssh "gpu1"', 'gpu1'], ["ssh gp'u'1", 'gpu1'], ['ssh gpu\\1', 'gpu1'],
      ['ssh\tgpu1\n', 'gpu1'], ['m=sudo -u "x y"', 'm'], ['m= gpu1', 'm'],
    ] as const) {
      const error = `--via has the label '${label}' twice: write LABEL=COMMAND`;
      await assertRefused(['--via', text, '--via', `${label}=x`, 'list'], error);
      const variable = error.replace('--via', 'CONTROL_VIA');
      await assertRefused(['list'], variable, { CONTROL_VIA: `${text},${label}=x` });
    }
    for (const hosts of ['gpu1,gpu1', 'gpu1, ana@gpu1', 'gpu0,gpu1,gpu2,gpu1']) {
      await assertRefused(['--via', hosts, 'list'], "--via has the label 'gpu1' twice: write LABEL=COMMAND");
    }
    for (const text of ['x gpu1,gpu1', '/x,gpu1']) { // in a command, a comma may mean anything
      await assertRefused(['--via', text, 'list'], `--via needs a label, so write LABEL=COMMAND: got '${text}'`);
    }
  });

  it('refuses what is no host and no command', async () => {
    for (const text of [
      '', ' ', '-oProxyCommand=id', '-x y', "''", '""', "'-x'", '\\-x', 'm=', 'm= ', 'm=-x', "m=''",
    ]) {
      const error = `--via must be a host or a command, got '${text.trim()}'`;
      await assertRefused([`--via=${text}`, 'list'], error);
    }
    for (const text of ['[::1]', '/usr/bin/x', 'ana@', 'a b/c', 'ssh gpu1 PATH=/x:$PATH', 'ssh ""', 'm/n=x y/z']) {
      await assertRefused(['--via', text, 'list'], `--via needs a label, so write LABEL=COMMAND: got '${text}'`);
    }
    for (const text of ["ssh 'gpu1", 'ssh "gpu1', 'gpu1\\', '\x1b[2J"']) {
      await assertRefused(['--via', text, 'list'], `--via must close its quotes, got '${text}'`);
    }
    const list = { CONTROL_VIA: 'gpu1,,gpu2' };
    await assertRefused(['list'], "CONTROL_VIA must be a host or a command, got ''", list);
    await assertRefused(['list', '--via', 'x y='], "--via needs a label, so write LABEL=COMMAND: got 'x y='", list);
  });

  it('takes an empty target for no system, not for all', async (t) => {
    const session = openSession(t);
    await session.serve('train-7');
    for (const via of [[], ['--via', `m=env CONTROL_DIR=${session.env.CONTROL_DIR}`]]) {
      const { code, stderr } = await runProgram(t, 'client', [...via, 'pause', ''], '', session.env);
      assert.equal(code, 2);
      assert.match(stderr, /there is no system ''/);
    }
  });

  it('refuses targets that no machine has, or several may have', async (t) => {
    const [one, two] = [['--via', 'gpu1=x y'], ['--via', 'gpu1=x y', '--via', 'gpu2=x y']];
    const absolute = 'the path of a socket on gpu1 must be absolute, got ';
    const several = ' may be of several machines: write LABEL/TARGET, or --all';
    for (const [words, message, vias = two] of [
      [['gpu3/train'], "no --via has the label 'gpu3' (did you mean gpu1 or gpu2?)"],
      [['x/'], "no --via has the label 'x', only gpu1 or gpu2"],
      [['GPU1/'], "no --via has the label 'GPU1' (did you mean gpu1?)", one],
      [['gpu1/unix:x/y.sock'], `${absolute}'x/y.sock'`], [['--socket', 'y.sock'], `${absolute}'y.sock'`, one],
      [[':99'], `':99'${several}`], [['/x.sock'], `'/x.sock'${several}`],
      [['unix:/x.sock'], `'unix:/x.sock'${several}`], [['127.0.0.1'], `'127.0.0.1'${several}`],
      [['box:80'], `'box:80'${several}`], [['http://box'], `'http://box'${several}`],
      [['gpu1/:0'], "the port of the target ':0' must be an integer from 1 to 65535, got '0'"],
      [['--port', '80'], `'localhost:8391'${several}`],
      [['--all', 'gpu1/'], "unexpected argument 'gpu1/': --all takes no targets"],
    ] as [string[], string, string[]?][]) await assertRefused(['pause', ...vias, ...words], message);
    const sessions = [openSession(t), openSession(t)];
    const vias = sessions.flatMap((session, index) => ['--via', via(`gpu${index + 1}`, session)]);
    const webs = await Promise.all(sessions.map((session) => session.serve('train-7')));
    const stray = "'x/y.sock' is no socket and no system on gpu1, only train";
    await assertRefused(['pause', ...vias, 'gpu1/x/y.sock'], stray);
    const both = '2 systems run on gpu1 and on gpu2: gpu1/train, gpu2/train: name one, or --all';
    await assertRefused(['pause', ...vias], both);
    assert.deepEqual(webs.map(({ requests }) => requests), [[], []]);
  });

  it('splits the command as a shell does', async (t) => {
    const show = 'for word; do [ "$word" = node ] && exit 9; printf "<%s>" "$word" >&2; done';
    const script = quote(makeFile(t, show));
    const cases = [
      ['a  b', '<a><b>'], ["'a  b' c", '<a  b><c>'], ['"a  b"c', '<a  bc>'], ['a\\ b', '<a b>'], ["''", '<>'],
      ["'a\"b'", '<a"b>'], ["\"a'b\"", "<a'b>"], ['"a\\"b\\\\c\\$d\\`e\\f"', '<a"b\\c$d`e\\f>'], ["'a\\b'", '<a\\b>'],
      ['$HOME ~ * `id` ; | & > #', '<$HOME><~><*><`id`><;><|><&><>><#>'], ['é=\\é', '<é=é>'],
    ] as const;
    const vias = cases.map(([line], index) => `m${index}=sh ${script} ${line}`);
    const { code, stderr } = await reach(t, vias, ['list']);
    const lines = cases.map(([, words], index) => `control-client: m${index}: sh ended with exit code 9: ${words}`);
    assert.deepEqual([code, linesOf(stderr).sort()], [5, lines.sort()]);
  });

  it('runs ssh for a mere word, which cannot be an option, and not for localhost', async (t) => {
    const folder = makeFolder(t);
    writeFileSync(join(folder, 'ssh'), '#!/bin/sh\necho "${*%% node *}" >&2\nexit 255\n', { mode: 0o755 });
    const env = { PATH: `${folder}:${process.env['PATH']}` };
    for (const text of ['gpu1', 'gpu1=ana@gpu1', 'gpu1="ana@gpu1"']) {
      const { code, stderr } = await reach(t, [text], ['list'], env);
      const host = text.includes('ana') ? 'ana@gpu1' : 'gpu1';
      const error = `gpu1: cannot be reached: -o BatchMode=yes -T -o RemoteCommand=none -- ${host}`;
      assert.deepEqual([code, stderr], [5, `control-client: ${error}\n`]);
    }
    const session = openSession(t);
    await session.serve('train-7');
    const own = await reach(t, ['localhost'], ['list'], { ...env, ...session.env });
    const stdout = `train  7  active    localhost/${target(session, 'train-7')}\n`;
    assert.deepEqual(own, { code: 0, stdout, stderr: '' });
  });

  it('names systems as the other machine does, after the label', async (t) => {
    const [one, two] = [openSession(t), openSession(t)];
    const [web, other] = [await one.serve('train-7'), await two.serve('train-7')];
    const vias = [via('gpu1', one), via('gpu2', two)];
    const is = async (words: string[], expected: string[], given = vias): Promise<void> => {
      const { code, stdout, stderr } = await reach(t, given, ['status', ...words]);
      const lines = linesOf(stdout).sort(); // as the responses come
      const width = Math.max(...expected.map(({ length }) => length));
      const all = expected.map((name) => `${name.padEnd(width)}  active`).sort();
      assert.deepEqual({ code, lines, stderr }, { code: 0, lines: all, stderr: '' }, `${words}`);
    };
    const path = join(one.folder, 'train-7.sock');
    const { port } = await startWeb(t);
    await Promise.all([
      is(['train'], ['gpu1/train', 'gpu2/train']), is(['7'], ['gpu1/train', 'gpu2/train']),
      is(['gpu2/train', 'gpu1/train-7'], ['gpu2/train', 'gpu1/train']),
      is(['gpu1/7'], ['gpu1/train']), is(['gpu2/'], ['gpu2/train']),
      is(['gpu?/t*n'], ['gpu1/train', 'gpu2/train']), is(['*2/'], ['gpu2/train']),
      is(['tr*'], ['gpu1/train', 'gpu2/train']), is([], ['gpu1/train', 'gpu2/train']),
    ]);
    await Promise.all([
      is([`gpu1/:${port}`], [`gpu1/:${port}`]), is([`gpu2/127.0.0.1:${port}`], [`gpu2/127.0.0.1:${port}`]),
      is([`gpu2/unix:${path}`], [`gpu2/unix:${path}`]), is([`gpu2/${path}`], [`gpu2/${path}`]),
    ]);
    const eighth = await one.serve('train-8');
    await Promise.all([
      is([`:${port}`], [`gpu1/:${port}`], [via('gpu1', one)]),
      is(['train-7'], ['gpu1/train'], [via('gpu1', one)]),
      is(['--port', `${port}`], [`gpu1/localhost:${port}`], [via('gpu1', one)]),
      is(['--socket', path], [`gpu1/unix:${path}`], [via('gpu1', one)]),
    ]);
    assert.deepEqual(eighth.requests, []);
    await Promise.all([
      is(['--dir', one.folder, '--all'], ['gpu2/train-7', 'gpu2/train-8'], [via('gpu2', two)]),
      is(['train'], ['gpu1/train-7', 'gpu1/train-8', 'gpu2/train']),
    ]);
    assert.ok(web.requests.length > 0 && other.requests.length > 0);
  });

  it('exits with 5 at least if a machine cannot be reached, and serves the others', async (t) => {
    const session = openSession(t);
    const { requests } = await session.serve('train-7');
    const [here, there, nowhere] = [via('here', session), 'there=/nowhere/x y', 'nowhere=/nowhere/x y'];
    const absent = ['there', 'nowhere'].map((label) => `${label}: ${NO_COMMAND}`);
    const cases: [vias: string[], args: string[], code: number, stdout: string[], unreachable?: number][] = [
      [[here], ['pause', 'train'], 0, ['here/train  ok']],
      [[here, there], ['pause', 'train'], 5, ['here/train  ok'], 1],
      [[here, there, nowhere], ['pause', '--all'], 5, ['here/train  ok'], 2],
      [[here, there, nowhere], ['pause', 'here/train'], 0, ['here/train  ok']],
      [[there, nowhere], ['pause', '--all'], 5, [], 2],
      [[there, nowhere], ['pause', 'train'], 5, [], 2],
      [[there, here], ['pause', 'there/', 'there/x', 'there/7', '7'], 5, ['here/train  ok'], 1],
      [[there], ['pause', 'train'], 5, [], 1],
      [[there], ['list'], 5, [], 1],
      [[there], ['wait', 'offline', 'train'], 5, [], 1],
      [[there, here], ['list'], 5, [`train  7  active    here/${target(session, 'train-7')}`], 1],
      [[there, here], ['status', 'nix'], 5, [], 1],
    ];
    for (const [vias, args, code, stdout, unreachable = 0] of cases) {
      const ended = await reach(t, vias, args);
      assert.deepEqual({ code: ended.code, stdout: linesOf(ended.stdout) }, { code, stdout }, `${vias} ${args}`);
      const errors = absent.slice(0, unreachable).map((error) => `control-client: ${error}`);
      assert.deepEqual(linesOf(ended.stderr).sort(), errors.sort(), `${vias} ${args}`);
    }
    assert.equal(requests.filter((line) => line === 'POST /api/pause').length, 5);
    const empty = openSession(t);
    const ended = await reach(t, [via('a', empty), via('b', empty)], ['list']);
    assert.deepEqual(ended, { code: 0, stdout: '', stderr: 'control-client: nothing runs on a or on b\n' });
    for (const [command, stdout] of [['status', 'offline\n'], ['pause', '']] as const) {
      const none = await reach(t, [via('a', empty)], [command]);
      assert.deepEqual(none, { code: 3, stdout, stderr: 'control-client: nothing runs on a\n' });
    }
    const one = await reach(t, [via('a', empty)], ['status', 'train']);
    const rule = 'an address has a port, such as a/:9000';
    assert.deepEqual([one.code, one.stderr], [2, `control-client: there is no system 'train' on a; ${rule}\n`]);
  });

  it('reaches no other machine through one', async (t) => {
    const session = openSession(t);
    for (const [words, title, host] of [
      [['m/box:80'], 'm/box:80', 'box'], [['box:80'], 'm/box:80', 'box'], [['--host', 'box'], 'm/box:8391', 'box'],
      [['m/http://box'], 'm/http://box', 'box'], [['192.0.2.7'], 'm/192.0.2.7', '192.0.2.7'],
    ] as const) {
      const ended = await reach(t, [via('m', session)], ['status', ...words]);
      assert.deepEqual(ended, { code: 5, stdout: `${title}  no answer: '${host}' is not localhost\n`, stderr: '' });
    }
  });

  it('reports a system at an address of a machine that cannot be reached as not answering', async (t) => {
    const run = (...args: string[]): Promise<Ended> => reach(t, ['m=/nowhere/x y'], args);
    const [none, status, pause, wait] = await Promise.all([
      run('status'), run('status', '--port', '8391'), run('pause', ':80', '--wait'),
      run('wait', 'offline', ':80', '--timeout', '1'),
    ]);
    assert.deepEqual(none, { code: 5, stdout: '', stderr: `control-client: m: ${NO_COMMAND}\n` });
    assert.deepEqual([status.code, status.stdout], [5, `m/localhost:8391  no answer: ${NO_COMMAND}\n`]);
    assert.deepEqual([pause.code, pause.stderr], [5, `control-client: m/:80: pause not sent: ${NO_COMMAND}\n`]);
    const reason = 'not offline after N s: the system does not report its status';
    assert.deepEqual([wait.code, wait.stderr.replace(/\d+\.\d/, 'N')], [4, `control-client: m/:80: ${reason}\n`]);
  });

  it('says why a system of wait does not answer any more', async (t) => {
    const session = openSession(t);
    const { requests } = await session.serve('train-7');
    const file = join(makeFolder(t), 'pid');
    const { CONTROL_DIR } = session.env;
    const script = `[ -e ${file} ] && exit 7; echo $$ >${file}; CONTROL_DIR=${CONTROL_DIR} exec "$@"`;
    const waiting = reach(t, [viaShell('m', script)], ['wait', 'paused', 'train', '--timeout', '20']);
    await until(() => requests.length > 1);
    process.kill(Number(readFileSync(file, 'utf8')), 'SIGKILL');
    const { code, stderr } = await waiting;
    assert.match(stderr, /: m\/train: not paused after \S+ s: sh (ended with exit code 7|was killed by SIGKILL)\n$/);
    assert.equal(code, 4);
  });

  it('ends control-board if no target can be reached, because its page would stay empty', async (t) => {
    const args = ['--listen', 'localhost:0', '--via', 'm=/nowhere/x y', 'm/train'];
    const { code, stderr } = await runProgram(t, 'board', args);
    assert.deepEqual([code, stderr], [1, `control-board: m: ${NO_COMMAND}\n`]);
  });

  it('sends a token only to a machine that is named, to all, or from the file of the target', async (t) => {
    const [one, two, three] = [openSession(t), openSession(t), openSession(t)];
    const webs = [await one.serve('train-7'), await two.serve('train-7')];
    const vias = [via('a', one), via('b', two)];
    const own = 'the-token-of-a-file';
    const file = makeFile(t, `${own}\n`, 0o600);
    const targets = makeFile(t, `a/train token-file=${file}\nb/train\n`);
    const both = makeFile(t, `train token-file=${file}\n`);
    for (const [args, expected, given = vias] of [
      [['train'], [undefined, undefined]], [['7'], [undefined, undefined]], [['a/train'], [TOKEN]],
      [['a/'], [TOKEN]], [['b/7', 'a/7'], [TOKEN, TOKEN]], [['--all'], [TOKEN, TOKEN]],
      [['train'], [TOKEN], vias.slice(0, 1)],
      [['--targets', targets], [own, TOKEN]], [['--targets', both], [own, own]],
    ] as [string[], (string | undefined)[], string[]?][]) {
      const { code, stderr } = await reach(t, given, ['pause', ...args], { CONTROL_TOKEN: TOKEN });
      assert.deepEqual([code, stderr], [0, ''], `${args}`);
      const sent = webs.flatMap(({ tokens }) => tokens.splice(0));
      assert.deepEqual(sent, expected.map((token) => token && `Bearer ${token}`), `${args}`);
    }
    const unread = await reach(t, vias, ['pause', 'train'], { CONTROL_TOKEN_FILE: '/nowhere/token' });
    assert.deepEqual([unread.code, unread.stderr], [0, '']);
    await startServer(t, { name: 'eval', socketPath: `${three.folder}/`, token: TOKEN });
    const locked = await reach(t, [...vias, via('c', three)], ['pause', 'eval'], { CONTROL_TOKEN: TOKEN });
    const hint = `it needs a token, and a name without a label gets none: write c/eval-${process.pid}`;
    assert.deepEqual([locked.code, locked.stderr], [1, `control-client: c/eval: ${hint}\n`]);
  });

  it('shows the command neither the token nor the names', async (t) => {
    const session = openSession(t);
    await session.serve('train-7');
    const folder = makeFolder(t);
    const show = `env >${folder}/env; echo "$@" >${folder}/words`;
    const script = `${show}; CONTROL_DIR=${session.env.CONTROL_DIR} exec "$@"`;
    const secrets = { CONTROL_TOKEN: TOKEN, CONTROL_NAME: 'own-name' };
    const { code } = await reach(t, [viaShell('m', script)], ['pause', 'train'], secrets);
    assert.equal(code, 0);
    const secret = new RegExp(`CONTROL_(?!DIR=)|${TOKEN}|train|own-name`);
    for (const name of ['env', 'words']) assert.doesNotMatch(readFileSync(join(folder, name), 'utf8'), secret, name);
  });
});

async function assertRefused(args: readonly string[], message: string, env: NodeJS.ProcessEnv = {}): Promise<void> {
  const error = await call(args, env).then(() => assert.fail(`${args}`), (reason: unknown) => reason as Error);
  assert.ok(error instanceof UsageError, `${args}: ${error}`);
  assert.equal(error.message, message);
}

function target({ folder }: Session, title: string): string {
  return `unix:${join(folder, `${title}.sock`)}`;
}
