// control-client with several targets, on the command line and in a file, and their tokens.

import assert from 'node:assert/strict';
import { chownSync, writeFileSync } from 'node:fs';
import { join, relative, resolve } from 'node:path';
import { describe, it } from 'node:test';
import { UsageError } from '../../../shared/cli.ts';
import { select } from '../../../shared/names.ts';
import { defer, freePort, makeFolder, makeSocketPath, startServer, TOKEN } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { until } from '../../wait.ts';
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
    outcomes.sort((one, other) => Number(other.target === web.target) - Number(one.target === web.target));
    const error = `nothing listens at 127.0.0.1:${port}`;
    assert.deepEqual(outcomes, [
      { target: web.target, status: 'active' }, { target: `127.0.0.1:${port}`, status: 'offline', error },
    ]);
    const line = `control-client: 127.0.0.1:${port}: nothing listens\n`;
    assert.deepEqual([code, stderr], [3, line]);
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

  it('accepts ports and IPv6 addresses, and adds the default port', async (t) => {
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
    const targets = (await select([...urls.map(([target]) => target), 'gpu1:8391'], {}, 'all')).targets;
    assert.deepEqual(targets.map(({ name, client }) => [name, client.baseUrl]), urls);
    if (lacks('IPv6')) return;
    const { target } = await startWeb(t, () => ACTIVE, { host: '::1' });
    assert.deepEqual(await call(['status', target]), { code: 0, stdout: `${target}  active\n`, stderr: '' });
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

  it('refuses an invalid target, names the line of the file, and sends nothing at all', async (t) => {
    const port = 'must be an integer from 1 to 65535, got';
    const host = 'must be a host name or an IP address, got';
    const wrong: [target: string, message: string][] = [
      ['gpu1:', `the port of the target 'gpu1:' ${port} ''`],
      ['gpu1:0', `the port of the target 'gpu1:0' ${port} '0'`],
      ['gpu1:1:2', `the port of the target 'gpu1:1:2' ${port} '1:2'`],
      ['[::1]:x', `the port of the target '[::1]:x' ${port} 'x'`],
      [':', `the port of the target ':' ${port} ''`],
      ['http://', `the host of the target 'http://' ${host} ''`],
      ['http://gpu1/api', `the host of the target 'http://gpu1/api' ${host} 'gpu1/api'`],
      ['http://gpu1:1/api', `the port of the target 'http://gpu1:1/api' ${port} '1/api'`],
      ...['https://gpu1:1', 'HTTPS://gpu1', 'file:///x', 'ws+Unix://x/y'].map((text): [string, string] => {
        return [text, `the web API speaks HTTP without TLS: a target is http://HOST:PORT, got '${text}'`];
      }),
      ['./', `the path of the target './' must be the path of a socket, not of a folder, got './'`],
      ['a b:1', `the host of the target 'a b:1' ${host} 'a b'`],
      ['unix:', "the path of the target 'unix:' must be a non-empty string, got ''"],
    ];
    const { target, requests } = await startWeb(t);
    for (const [name, message] of wrong) {
      await assert.rejects(call(['shutdown', target, name]), new UsageError(message));
      const file = makeFile(t, `# all\n${target}\n\n${name} # the last\n`);
      const inFile = new UsageError(`line 4 of ${file}: ${message}`);
      await assert.rejects(call(['shutdown', '--targets', file]), inFile);
    }
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
    const { target } = await startWeb(t, () => ACTIVE, { socketPath: join(makeFolder(t), 'a b#c') });
    const { stdout } = await call(['status', '--targets', makeFile(t, `${target} # a socket`)]);
    assert.equal(stdout, `${target}  active\n`);
  });

  it('refuses a list that is missing, empty or wrong, and sends nothing', async (t) => {
    const { target, requests } = await startWeb(t);
    for (const text of ['', '\n\n', '# none\n  # at all']) {
      const file = makeFile(t, text);
      await assert.rejects(call(['pause', '--targets', file, target]), new UsageError(`${file} names no target`));
    }
    const missing = call(['pause', target, '--targets', '/nowhere/x']);
    await assert.rejects(missing, { message: /^cannot use the targets file '\/nowhere\/x': ENOENT/ });
    const token = makeFile(t, TOKEN, 0o600);
    const rows: [line: string, message: string][] = [
      ['a b:1', "the host of the target 'a b:1' must be a host name or an IP address, got 'a b'"],
      [`${target} token-file=${token}`, `token-file= is only for a file that --targets names, got '${token}'`],
    ];
    for (const [line, message] of rows) {
      const stderr = `control-client: line 2 of standard input: ${message}\n`;
      const ended = await run(t, ['pause', '--targets', '-'], `${target}\n${line}\n`);
      assert.deepEqual(ended, { code: 2, stdout: '', stderr });
    }
    assert.deepEqual(requests, []);
  });
});

describe('control-client and tokens', SUITE, () => {
  it('sends CONTROL_TOKEN, the token in CONTROL_TOKEN_FILE, or that in the token file of a target', async (t) => {
    const other = 'another-token-for-tests';
    const webs = await Promise.all([1, 2, 3].map(() => startWeb(t)));
    const [a, b, c] = webs.map(({ target }) => target);
    const file = makeFile(t, `${b} token-file=secret b.token # with a space\n${c}\n`);
    writeFileSync(join(file, '../secret b.token'), `${other}\r\n`, { mode: 0o600 });
    const { code, stderr } = await run(t, ['status', `${a}`, '--targets', file], '', { CONTROL_TOKEN: TOKEN });
    assert.deepEqual([code, stderr], [0, '']);
    const tokens = webs.map(({ tokens: [token] }) => token);
    assert.deepEqual(tokens, [`Bearer ${TOKEN}`, `Bearer ${other}`, `Bearer ${TOKEN}`]);
    await call(['status', `${b}`, '--targets', file]);
    assert.equal(webs[1]?.tokens[1], `Bearer ${other}`, 'also if the target is on the command line');

    const [one, two] = [await startWeb(t), await startWeb(t)];
    const env = { CONTROL_TOKEN_FILE: makeFile(t, `${TOKEN}\n`, 0o600) };
    assert.equal((await call(['status', '--host', '127.0.0.1', '--port', `${one.port}`], env)).stderr, '');
    assert.equal((await call(['status', one.target, two.target], env)).stderr, '');
    assert.deepEqual([...one.tokens, ...two.tokens], Array(3).fill(`Bearer ${TOKEN}`));
    const line = 'control-client: CONTROL_TOKEN and CONTROL_TOKEN_FILE are both set: set one or the other\n';
    const both = await run(t, ['status', one.target], '', { ...env, CONTROL_TOKEN: TOKEN });
    assert.deepEqual(both, { code: 2, stdout: '', stderr: line });
    await call(['status', one.target], { CONTROL_TOKEN_FILE: '' });
    assert.equal(one.tokens.at(-1), undefined);
  });

  it('reads a token file from Windows, with a byte order mark', async (t) => {
    const { target, tokens } = await startWeb(t);
    const contents = [`\ufeff${TOKEN}\r\n`, `\ufeff${TOKEN}`];
    for (const content of contents) {
      await call(['status', target], { CONTROL_TOKEN_FILE: makeFile(t, content, 0o600) });
    }
    assert.deepEqual(tokens, contents.map(() => `Bearer ${TOKEN}`));
  });

  it('refuses a file that is not for this user only, or holds no token, and never prints its content', async (t) => {
    const { target, requests } = await startWeb(t);
    const refuses = async (path: string, message: string): Promise<void> => {
      await assert.rejects(call(['pause', target], { CONTROL_TOKEN_FILE: path }), { message });
      const file = makeFile(t, `${target} token-file=${path}`);
      await assert.rejects(call(['pause', '--targets', file]), { message: `line 1 of ${file}: ${message}` });
    };
    const texts = [
      ['', '0'], ['short', '5'], [`${TOKEN} ${TOKEN}`, 'other characters'], [`${TOKEN}\n\n`, 'other characters'],
      ['x'.repeat(1025), '1025'],
    ];
    for (const [text = '', got] of texts) {
      const path = makeFile(t, text, 0o600);
      const form = 'a string of 16 to 1024 visible ASCII characters';
      await refuses(path, `the token in '${path}' must be ${form}, got ${got}`);
    }
    const folder = makeFolder(t);
    await refuses(folder, `cannot use the token file '${folder}': it is not a file`);
    const owners = lacks('root') ? [] : [12345];
    for (const [mode, owner] of [[0o666], [0o620], [0o602], ...owners.map((owner) => [0o600, owner])]) {
      const [targets, token] = [makeFile(t, target, mode), makeFile(t, TOKEN, mode)];
      if (owner !== undefined) for (const path of [targets, token]) chownSync(path, owner, owner);
      const reason = (path: string): string => {
        return owner === undefined ? `others can write to it; chmod go-w '${path}'` : 'it belongs to another user';
      };
      const message = `cannot use the targets file '${targets}': ${reason(targets)}`;
      await assert.rejects(call(['pause', '--targets', targets]), { message });
      await refuses(token, `cannot use the token file '${token}': ${reason(token)}`);
    }
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
