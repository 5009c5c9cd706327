// control-client with several targets, on the command line and in a file, and their tokens.

import assert from 'node:assert/strict';
import { chownSync, writeFileSync } from 'node:fs';
import { join, relative, resolve } from 'node:path';
import { describe, it } from 'node:test';
import { parseTargets } from '../../../shared/reach/names.ts';
import { UsageError } from '../../../shared/line/options.ts';
import { inParallel } from '../../../shared/reach/targets.ts';
import { defer, freePort, makeFolder, makeSocketPath, startServer, TOKEN, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { AT_ONCE, call, linesOf, makeFile, run } from './helpers.ts';
import { ACTIVE, startSilent, startWeb } from './systems.ts';

const SUITE = { ...AT_ONCE, skip: lacks('Unix') };

describe('control-client with several targets', SUITE, () => {
  it('sends the requests in parallel, and begins each line with its target', async (t) => {
    const all = defer();
    let count = 0;
    const respond = async (): Promise<object> => {
      count += 1;
      if (count === 3) all.resolve();
      await all.promise;
      return ACTIVE;
    };
    const socket = await startWeb(t, respond, { socketPath: makeSocketPath(t) });
    const [one, other] = [await startWeb(t, respond), await startWeb(t, respond)];
    const targets = [one.target, `[127.0.0.1]:${other.port}`, socket.target];
    const { code, stdout, stderr } = await call(['status', ...targets]);
    const width = socket.target.length;
    assert.deepEqual([code, stderr], [0, '']);
    assert.deepEqual(linesOf(stdout).sort(), targets.map((target) => `${target.padEnd(width)}  active`).sort());
  });

  it('prints one object per target with --json, and no server can fake another target', async (t) => {
    const web = await startWeb(t, () => ({ ...ACTIVE, target: 'gpu1:8391' }));
    const port = await freePort();
    const { code, stdout, stderr } = await call(['status', '--json', web.target, `127.0.0.1:${port}`]);
    const outcomes = linesOf(stdout).map((line) => JSON.parse(line));
    outcomes.sort((one) => (one.target === web.target ? -1 : 1));
    const error = `http://127.0.0.1:${port} does not respond: connect ECONNREFUSED 127.0.0.1:${port}`;
    assert.deepEqual(outcomes, [
      { target: web.target, status: 'active' }, { target: `127.0.0.1:${port}`, status: 'offline', error },
    ]);
    const line = `control-client: 127.0.0.1:${port}: connect ECONNREFUSED 127.0.0.1:${port}\n`;
    assert.deepEqual([code, stderr], [3, line]);
    const command = await call(['pause', '--wait', '--json', `127.0.0.1:${port}`]);
    const outcome = { ...JSON.parse(command.stdout), seconds: 0 };
    assert.deepEqual(outcome, { target: `127.0.0.1:${port}`, seconds: 0, error: `not paused: ${error}` });
    const shortened = `control-client: 127.0.0.1:${port}: not paused: connect ECONNREFUSED 127.0.0.1:${port}\n`;
    assert.deepEqual([command.code, command.stderr], [3, shortened]);
    const info = await call(['info', '--json', web.target]);
    assert.equal(JSON.parse(info.stdout).target, web.target);
  });

  it('exits with the highest code of all', async (t) => {
    const { port: busyPort } = await startServer(t); // it never takes a command
    const { port: closedPort } = await startServer(t, { token: TOKEN });
    const done = (await startWeb(t, () => ({ ...ACTIVE, state: 'done' }))).target;
    const [busy, denied, offline] = [busyPort, closedPort, await freePort()].map((port) => `127.0.0.1:${port}`);
    const silent = await startSilent(t);
    const rows: [code: number, targets: (string | undefined)[]][] = [
      [0, [done]], [1, [denied, done]], [3, [done, offline, denied]], [4, [busy, offline, denied, done]],
      [5, [denied, silent, offline, busy]],
    ];
    await Promise.all(rows.map(async ([code, targets]) => {
      const ended = await call(['pause', '--wait', '--timeout', '10', ...targets as string[]]);
      assert.equal(ended.code, code, JSON.stringify(ended));
      const { stdout, stderr } = ended;
      assert.equal(linesOf(stdout).length, targets.includes(done) ? 1 : 0);
      assert.equal(linesOf(stderr).length, targets.length - linesOf(stdout).length);
      for (const target of targets) {
        assert.ok(stdout.includes(`${target}  `) || stderr.includes(`: ${target}: `), JSON.stringify(ended));
      }
    }));
  });

  it('sends one request to a target that is named twice', async (t) => {
    const socketPath = makeSocketPath(t);
    const [web, socket] = [await startWeb(t), await startWeb(t, () => ACTIVE, { socketPath })];
    const file = makeFile(t, `${web.target}\n${socket.target}\n`);
    const [first, second] = [web.target, `unix:${relative('.', socketPath)}`];
    const names = [first, `[127.0.0.1]:${web.port}`, second, socket.target];
    const { stdout } = await call(['pause', ...names, ...names, '--targets', file]);
    assert.deepEqual(linesOf(stdout).map((line) => line.split('  ')[0]).sort(), [first, second].sort());
    assert.deepEqual([web.requests.length, socket.requests.length], [1, 1]);
  });

  it('accepts ports and IPv6 addresses, and adds the default port', async () => {
    const urls: [target: string, url: string][] = [
      ['http://gpu1', 'http://gpu1:8391'], ['gpu1:1', 'http://gpu1:1'], ['10.0.0.1', 'http://10.0.0.1:8391'],
      ['10.0.0.1:65535', 'http://10.0.0.1:65535'], ['::1', 'http://[::1]:8391'], ['[::1]:9000', 'http://[::1]:9000'],
      ['fe80::2', 'http://[fe80::2]:8391'], ['[fe80::3]', 'http://[fe80::3]:8391'],
      ['unix:/nowhere/a:1', 'unix:/nowhere/a:1'], ['http://gpu2:9000', 'http://gpu2:9000'],
      ['http://[::1]:9001/', 'http://[::1]:9001'], [':9000', 'http://localhost:9000'],
      ['/nowhere/a b:1', 'unix:/nowhere/a b:1'], ['./a', `unix:${resolve('a')}`],
      ['localhost', 'http://localhost:8391'], ['HTTP://gpu3:9000/', 'http://gpu3:9000'],
      ['unix:///nowhere/c', 'unix:/nowhere/c'],
    ];
    const targets = await parseTargets([...urls.map(([target]) => target), 'gpu1:8391'], {});
    assert.deepEqual(targets.map(({ name, client }) => [name, client.baseUrl]), urls);
  });

  it('reaches an IPv6 address in brackets', { skip: lacks('IPv6') }, async (t) => {
    const { target } = await startWeb(t, () => ACTIVE, { host: '::1' });
    assert.match(target, /^\[::1\]:/);
    assert.deepEqual(await call(['status', target]), { code: 0, stdout: `${target}  active\n`, stderr: '' });
  });

  it('starts at most 32 requests at once', async () => {
    const open: (() => void)[] = [];
    const done = inParallel(Array.from({ length: 40 }), () => new Promise<void>((end) => open.push(end)));
    const settle = async (): Promise<void> => { // without a timer, so that no target counts as slow
      for (let turn = 0; turn < 50; turn += 1) await null;
    };
    await settle();
    assert.equal(open.length, 32);
    open[7]?.();
    await settle();
    assert.equal(open.length, 33);
    for (let index = 0; index < 40; index += 1) {
      open[index]?.();
      await settle();
    }
    await done;
  });

  it('is not delayed by targets that do not respond', async (t) => {
    let isAsked = false;
    const silent = await Promise.all(Array.from({ length: 34 }, () => startSilent(t)));
    const web = await startWeb(t, () => {
      isAsked = true;
      return ACTIVE;
    });
    const ended = call(['status', ...silent, web.target]);
    const first = await Promise.race([ended, until(() => isAsked)]);
    assert.equal(first, undefined, 'it is asked while the others are silent');
    const { code, stdout } = await ended;
    const lines = linesOf(stdout);
    assert.equal(code, 5);
    assert.ok(lines[0]?.endsWith('  active'), stdout);
    assert.equal(lines.filter((line) => line.includes('  no answer: ')).length, 34);
  });

  it('refuses an invalid target, and names the line of the file', async (t) => {
    const port = 'must be an integer from 1 to 65535, got';
    const host = 'must be a host name or an IP address, got';
    const wrong: [target: string, message: string][] = [
      ['gpu1:', `the port of the target 'gpu1:' ${port} ''`],
      ['gpu1:0', `the port of the target 'gpu1:0' ${port} '0'`],
      ['gpu1:65536', `the port of the target 'gpu1:65536' ${port} '65536'`],
      ['gpu1:1:2', `the port of the target 'gpu1:1:2' ${port} '1:2'`],
      ['[::1]:x', `the port of the target '[::1]:x' ${port} 'x'`],
      [':', `the port of the target ':' ${port} ''`],
      [':0', `the port of the target ':0' ${port} '0'`],
      ['http://', `the host of the target 'http://' ${host} ''`],
      ['http://gpu1/api', `the host of the target 'http://gpu1/api' ${host} 'gpu1/api'`],
      ['http://gpu1:1/api', `the port of the target 'http://gpu1:1/api' ${port} '1/api'`],
      ...['https://gpu1:1', 'HTTPS://gpu1', 'file:///x', 'ws+Unix://x/y'].map((text): [string, string] => {
        return [text, `the web API speaks HTTP without TLS: a target is http://HOST:PORT, got '${text}'`];
      }),
      ['Http://', `the host of the target 'Http://' ${host} ''`],
      ['./', `the path of the target './' must be the path of a socket, not of a folder, got './'`],
      ['a b:1', `the host of the target 'a b:1' ${host} 'a b'`],
      ['unix:', "the path of the target 'unix:' must be a non-empty string, got ''"],
    ];
    for (const [name, message] of wrong) {
      await assert.rejects(parseTargets(['gpu1:1', name], {}), new UsageError(message));
      const file = makeFile(t, `# all\ngpu1:1\n\n${name} # the last\n`);
      await assert.rejects(parseTargets([], { targets: file }), new UsageError(`line 4 of ${file}: ${message}`));
    }
  });

  it('sends nothing at all if one target is invalid', async (t) => {
    const { target, requests } = await startWeb(t);
    const file = makeFile(t, `${target}\ngpu1:\n`);
    const message = "the port of the target 'gpu1:' must be an integer from 1 to 65535, got ''";
    await assert.rejects(call(['shutdown', target, 'gpu1:']), new UsageError(message));
    await assert.rejects(call(['shutdown', '--targets', file]), new UsageError(`line 2 of ${file}: ${message}`));
    assert.deepEqual(requests, []);
  });
});

describe('control-client --targets', SUITE, () => {
  it('reads targets from a file or standard input, one per line, with comments and blank lines', async (t) => {
    const webs = await Promise.all([1, 2, 3, 4].map(() => startWeb(t)));
    const [a, b, c, d] = webs.map(({ target }) => target) as [string, string, string, string];
    const text = `\n# all of them\n${a} # the first\r\n   ${b}\t\n\n#${'x'.repeat(9)}\n\t# nothing\n${c}`;
    const fromFile = await call(['status', d, '--targets', makeFile(t, text)]);
    const fromInput = await run(t, ['status', d, '--targets', '-'], text);
    for (const { code, stdout, stderr } of [fromFile, fromInput]) {
      assert.deepEqual([code, stderr], [0, '']);
      assert.deepEqual(linesOf(stdout).map((line) => line.split(' ')[0]).sort(), [a, b, c, d].sort());
    }
  });

  it('accepts paths with spaces and number signs', async (t) => {
    const { target } = await startWeb(t, () => ACTIVE, { socketPath: join(makeFolder(t), 'a b#c') });
    const { stdout } = await call(['status', '--targets', makeFile(t, `${target} # a socket`)]);
    assert.equal(stdout, `${target}  active\n`);
  });

  it('refuses a list without targets, and sends nothing', async (t) => {
    const { target, requests } = await startWeb(t);
    for (const text of ['', '\n\n', '# none\n  # at all']) {
      const file = makeFile(t, text);
      const error = new UsageError(`${file} names no target`);
      await assert.rejects(call(['pause', '--targets', file, target]), error);
    }
    assert.deepEqual(requests, []);
  });

  it('names the invalid line of standard input', async (t) => {
    const message = "the host of the target 'a b:1' must be a host name or an IP address, got 'a b'";
    const stderr = `control-client: line 2 of standard input: ${message}\n`;
    assert.deepEqual(await run(t, ['status', '--targets', '-'], 'gpu1:1\na b:1\n'), { code: 2, stdout: '', stderr });
  });

  it('refuses a file that does not exist', async () => {
    await assert.rejects(call(['status', '--targets', '/nowhere/x']), {
      message: /^cannot use the targets file '\/nowhere\/x': ENOENT/,
    });
  });
});

describe('control-client and tokens', SUITE, () => {
  it('sends CONTROL_TOKEN, or the token in the token file of a target', async (t) => {
    const other = 'another-token-for-tests';
    const webs = await Promise.all([1, 2, 3].map(() => startWeb(t)));
    const [a, b, c] = webs.map(({ target }) => target);
    const file = makeFile(t, `${b} token-file=secret b.token # with a space\n${c}\n`);
    writeFileSync(join(file, '../secret b.token'), `${other}\r\n`, { mode: 0o600 });
    const { code, stderr } = await run(t, ['status', `${a}`, '--targets', file], '', { CONTROL_TOKEN: TOKEN });
    assert.deepEqual([code, stderr], [0, '']);
    const tokens = webs.map(({ tokens: [token] }) => token);
    assert.deepEqual(tokens, [`Bearer ${TOKEN}`, `Bearer ${other}`, `Bearer ${TOKEN}`]);
  });

  it('uses the token file of a target that is also on the command line', async (t) => {
    const { target, tokens } = await startWeb(t);
    const file = makeFile(t, `${target} token-file=${makeFile(t, TOKEN, 0o600)}\n${target}`);
    await call(['status', target, '--targets', file]);
    assert.deepEqual(tokens, [`Bearer ${TOKEN}`]);
  });

  it('refuses token files in standard input, and sends nothing', async (t) => {
    const { target, requests } = await startWeb(t);
    const path = makeFile(t, TOKEN, 0o600);
    const ended = await run(t, ['status', '--targets', '-'], `${target}\n${target} token-file=${path}`);
    const line = `line 2 of standard input: token-file= is only for a file that --targets names, got '${path}'`;
    assert.deepEqual(ended, { code: 2, stdout: '', stderr: `control-client: ${line}\n` });
    assert.deepEqual(requests, []);
  });

  it('sends the token in CONTROL_TOKEN_FILE unless the variable is empty', async (t) => {
    const [one, other] = [await startWeb(t), await startWeb(t)];
    const env = { CONTROL_TOKEN_FILE: makeFile(t, `${TOKEN}\n`, 0o600) };
    assert.equal((await call(['status', '--host', '127.0.0.1', '--port', `${one.port}`], env)).stderr, '');
    assert.equal((await call(['status', one.target, other.target], env)).stderr, '');
    assert.deepEqual([...one.tokens, ...other.tokens], Array(3).fill(`Bearer ${TOKEN}`));
    const stderr = 'control-client: CONTROL_TOKEN and CONTROL_TOKEN_FILE are both set: set one or the other\n';
    const both = await run(t, ['status', one.target], '', { ...env, CONTROL_TOKEN: TOKEN });
    assert.deepEqual(both, { code: 2, stdout: '', stderr });
    await call(['status', one.target], { CONTROL_TOKEN_FILE: '' });
    assert.equal(one.tokens.at(-1), undefined);
  });

  it('refuses a token file without a token, and never prints its content', async (t) => {
    const { target, requests } = await startWeb(t);
    const texts = [
      ['', '0'], ['short', '5'], [`${TOKEN} ${TOKEN}`, 'other characters'], [`${TOKEN}\n\n`, 'other characters'],
      ['x'.repeat(1025), '1025'],
    ];
    for (const [text = '', got] of texts) {
      const path = makeFile(t, text, 0o600);
      const message = `the token in '${path}' must be a string of 16 to 1024 visible ASCII characters, got ${got}`;
      await assert.rejects(call(['pause', target], { CONTROL_TOKEN_FILE: path }), new UsageError(message));
      const file = makeFile(t, `gpu1:1 token-file=${path}`);
      const error = new UsageError(`line 1 of ${file}: ${message}`);
      await assert.rejects(call(['pause', target, '--targets', file]), error);
    }
    assert.deepEqual(requests, []);
  });

  it('refuses a token file that is not a regular file', async (t) => {
    const missing = call(['pause', 'gpu1:1'], { CONTROL_TOKEN_FILE: '/nowhere/token' });
    await assert.rejects(missing, { message: /^cannot use the token file '\/nowhere\/token': ENOENT/ });
    const file = makeFile(t, 'gpu1:1 token-file= # none');
    const message = `line 1 of ${file}: cannot use the token file '${join(file, '..')}': it is not a file`;
    await assert.rejects(call(['pause', '--targets', file]), new UsageError(message));
  });

  it('refuses a file that other users can write, and sends nothing', async (t) => {
    const { target, requests } = await startWeb(t);
    for (const mode of [0o666, 0o620, 0o602]) {
      const [targets, token] = [makeFile(t, target, mode), makeFile(t, TOKEN, mode)];
      const line = (what: string, path: string): string =>
        `cannot use the ${what} file '${path}': others can write to it; chmod go-w '${path}'`;
      await assert.rejects(call(['pause', '--targets', targets]), new UsageError(line('targets', targets)));
      const own = call(['pause', target], { CONTROL_TOKEN_FILE: token });
      await assert.rejects(own, new UsageError(line('token', token)));
      const file = makeFile(t, `${target} token-file=${token}`);
      const named = call(['pause', '--targets', file]);
      await assert.rejects(named, new UsageError(`line 1 of ${file}: ${line('token', token)}`));
    }
    assert.deepEqual(requests, []);
  });

  it('refuses a file of another user, and sends nothing', { skip: lacks('root') }, async (t) => {
    const { target, requests } = await startWeb(t);
    const [targets, token] = [makeFile(t, target), makeFile(t, TOKEN, 0o600)];
    for (const path of [targets, token]) chownSync(path, 12345, 12345);
    const line = (what: string, path: string): string =>
      `cannot use the ${what} file '${path}': it belongs to another user`;
    await assert.rejects(call(['pause', '--targets', targets]), new UsageError(line('targets', targets)));
    const own = call(['pause', target], { CONTROL_TOKEN_FILE: token });
    await assert.rejects(own, new UsageError(line('token', token)));
    assert.deepEqual(requests, []);
  });

  it('warns once about a token file that other users can read', async (t) => {
    const [one, other] = [await startWeb(t), await startWeb(t)];
    for (const mode of [0o640, 0o604]) {
      const path = makeFile(t, TOKEN, mode);
      const stderr = `control-client: others can read the token file '${path}'; chmod go-r '${path}'\n`;
      const targets = makeFile(t, [one, other].map(({ target }) => `${target} token-file=${path}\n`).join(''));
      const ended = await call(['status', '--targets', targets]);
      assert.deepEqual([ended.code, ended.stderr], [0, stderr]);
    }
    const path = makeFile(t, TOKEN, 0o640);
    const { stderr } = await call(['status', one.target, other.target], { CONTROL_TOKEN_FILE: path });
    assert.equal(linesOf(stderr).length, 1);
    assert.deepEqual(new Set([...one.tokens, ...other.tokens]), new Set([`Bearer ${TOKEN}`]));
  });
});
