import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, chownSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer as createHttpServer } from 'node:http';
import { createServer, isIPv6 } from 'node:net';
import { networkInterfaces } from 'node:os';
import { join, relative } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { SystemStatus } from '../../../../control.ts';
import { inParallel, parseTargets } from '../../../shared/targets.ts';
import { createClient } from '../../../shared/access.ts';
import { UsageError } from '../../../shared/options.ts';
import {
  assertHarmless, defer, freePort, HARMLESS, HOSTILE, lacksScript, lacksSockets, launchSystem, makeFolder,
  makeSocketPath, NO_TOKEN, runProgram, start, startProgram, startServer, TOKEN, until,
} from '../../helpers.ts';
import type { Ended, Running } from '../../helpers.ts';
import type { ChildProcess } from 'node:child_process';
import type { IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';

const ACTIVE = { status: 'active', result: 'ok' };

describe('control-client with several targets', { concurrency: 4, skip: lacksSockets() }, () => {
  it('asks all targets at the same time, and begins each line with its target', async (t) => {
    const all = defer();
    let count = 0;
    const respond = async (): Promise<object> => {
      count += 1;
      if (count === 3) all.resolve();
      await all.promise;
      return ACTIVE;
    };
    const socketPath = makeSocketPath(t);
    const webs = [await startWeb(t, respond), await startWeb(t, respond), await startWeb(t, respond, socketPath)];
    const targets = [`127.0.0.1:${webs[0]?.port}`, `[127.0.0.1]:${webs[1]?.port}`, `unix:${socketPath}`];
    const { code, stdout, stderr } = await run(t, ['status', ...targets]);
    const width = `unix:${socketPath}`.length;
    assert.deepEqual([code, stderr], [0, '']);
    assert.deepEqual(linesOf(stdout).sort(), targets.map((target) => `${target.padEnd(width)}  active`).sort());
  });

  it('sends commands to all, with who and why', async (t) => {
    const webs = await Promise.all([startWeb(t), startWeb(t)]);
    const args = ['pause', ...webs.map(({ target }) => target), '--by', 'ana', '--reason', 'lunch'];
    const { code, stdout, stderr } = await run(t, args);
    assert.deepEqual([code, stderr], [0, '']);
    assert.deepEqual(linesOf(stdout).sort(), webs.map(({ target }) => `${target}  ok`).sort());
    for (const { requests } of webs) assert.deepEqual(requests, ['POST /api/pause?by=ana&reason=lunch']);
  });

  it('begins each line of info with the target', async (t) => {
    const { address: { port } } = await launchSystem(t);
    const { code, stdout } = await run(t, ['info', `127.0.0.1:${port}`]);
    const lines = linesOf(stdout);
    assert.equal(code, 0);
    assert.ok(lines.length >= 3, stdout);
    for (const line of lines) assert.ok(line.startsWith(`127.0.0.1:${port}  `), line);
  });

  it('--json prints one object for each target', async (t) => {
    const [web, port] = [await startWeb(t), await freePort()];
    const { code, stdout, stderr } = await run(t, ['status', '--json', web.target, `127.0.0.1:${port}`]);
    const outcomes = linesOf(stdout).map((line) => JSON.parse(line));
    outcomes.sort((one) => (one.target === web.target ? -1 : 1));
    const error = `http://127.0.0.1:${port} does not respond: connect ECONNREFUSED 127.0.0.1:${port}`;
    assert.deepEqual(outcomes, [
      { target: web.target, status: 'active' }, { target: `127.0.0.1:${port}`, status: 'offline', error },
    ]);
    const line = `control-client: 127.0.0.1:${port}: connect ECONNREFUSED 127.0.0.1:${port}\n`;
    assert.deepEqual([code, stderr], [3, line]);
    const command = await run(t, ['pause', '--wait', '--json', `127.0.0.1:${port}`]);
    const outcome = { ...JSON.parse(command.stdout), seconds: 0 };
    assert.deepEqual(outcome, { target: `127.0.0.1:${port}`, seconds: 0, error });
  });

  it('ends with the highest exit code of all', async (t) => {
    const { port: busyPort } = await startServer(t); // it never takes its commands
    const { port: closedPort } = await startServer(t, { token: TOKEN });
    const done = (await startWeb(t, () => ({ ...ACTIVE, state: 'done' }))).target;
    const [busy, denied, offline, silent] =
      [busyPort, closedPort, await freePort(), (await startSilent(t)).port].map((port) => `127.0.0.1:${port}`);
    const all: [code: number, targets: (string | undefined)[]][] = [
      [0, [done]], [1, [denied, done]], [3, [done, offline, denied]], [4, [busy, offline, denied, done]],
      [5, [denied, silent, offline, busy]],
    ];
    await Promise.all(all.map(async ([code, targets]) => {
      const ended = await run(t, ['pause', '--wait', '--timeout', '3', ...targets as string[]]);
      assert.equal(ended.code, code, JSON.stringify(ended));
      assert.equal(linesOf(ended.stdout).length, targets.includes(done) ? 1 : 0);
      assert.equal(linesOf(ended.stderr).length, targets.length - linesOf(ended.stdout).length);
      const { stdout, stderr } = ended;
      const isTold = (target: unknown): boolean => stdout.includes(`${target}  `) || stderr.includes(`: ${target}: `);
      assert.ok(targets.every(isTold), JSON.stringify(ended));
    }));
  });

  it('tells of each target why it failed, without the address a second time', async (t) => {
    const { port } = await startServer(t, { token: TOKEN });
    const [offline, silent] = [`127.0.0.1:${await freePort()}`, `127.0.0.1:${(await startSilent(t)).port}`];
    const { target: foreign } = await startWeb(t, () => ({}));
    const targets = [`127.0.0.1:${port}`, offline, silent, foreign];
    const { stdout, stderr } = await run(t, ['status', '--timeout', '3', ...targets]);
    const width = Math.max(...targets.map((target) => target.length));
    const lines = linesOf(stdout).map((line) => line.replace(/within .*/, 'within N s')).sort();
    assert.deepEqual(lines, [
      `${offline.padEnd(width)}  offline: connect ECONNREFUSED ${offline}`,
      `${silent.padEnd(width)}  no answer: has not answered within N s`,
      `${foreign.padEnd(width)}  offline: is not a control server: it responded with status code 200`,
    ].sort());
    assert.equal(stderr, `control-client: 127.0.0.1:${port}: ${NO_TOKEN}\n`);
  });

  it('asks a target that is named twice only once', async (t) => {
    const { port, requests } = await startWeb(t);
    const socketPath = makeSocketPath(t);
    const socket = await startWeb(t, () => ACTIVE, socketPath);
    const file = makeFile(t, `127.0.0.1:${port}\nunix:${socketPath}\n`);
    const [first, second] = [`127.0.0.1:${port}`, `unix:${relative('.', socketPath)}`];
    const names = [first, `[127.0.0.1]:${port}`, second, `unix:${socketPath}`];
    const { stdout } = await run(t, ['pause', ...names, ...names, '--targets', file]);
    assert.deepEqual(linesOf(stdout).map((line) => line.split('  ')[0]).sort(), [first, second].sort());
    assert.deepEqual([requests.length, socket.requests.length], [1, 1]);
  });

  it('knows ports, IPv6 addresses and the default port', async () => {
    const urls: [target: string, url: string][] = [
      ['gpu1', 'http://gpu1:8391'], ['gpu1:1', 'http://gpu1:1'], ['10.0.0.1', 'http://10.0.0.1:8391'],
      ['10.0.0.1:65535', 'http://10.0.0.1:65535'], ['::1', 'http://[::1]:8391'], ['[::1]:9000', 'http://[::1]:9000'],
      ['fe80::2', 'http://[fe80::2]:8391'], ['[fe80::3]', 'http://[fe80::3]:8391'],
      ['unix:/nowhere/a:1', 'unix:/nowhere/a:1'], ['http://gpu2:9000', 'http://gpu2:9000'],
      ['http://[::1]:9001/', 'http://[::1]:9001'],
    ];
    const targets = await parseTargets([...urls.map(([target]) => target), 'gpu1:8391'], undefined, 1000);
    assert.deepEqual(targets.map(({ name, client }) => [name, client.baseUrl]), urls);
  });

  const hasIPv6 = Object.values(networkInterfaces()).flat().some((address) => address?.address === '::1');
  it('reaches an IPv6 address in brackets', { skip: !hasIPv6 && 'no IPv6' }, async (t) => {
    const { port } = await startWeb(t, () => ACTIVE, undefined, '::1');
    const { code, stdout } = await run(t, ['status', `[::1]:${port}`]);
    assert.deepEqual([code, stdout], [0, `[::1]:${port}  active\n`]);
  });

  it('waits for a status of all targets', async (t) => {
    const systems = await Promise.all([launchSystem(t), launchSystem(t)]);
    const targets = systems.map(({ address }) => `127.0.0.1:${address.port}`);
    const ended = run(t, ['wait', 'paused', ...targets]);
    for (const { client } of systems) await client.pause();
    const { code, stdout, stderr } = await ended;
    assert.deepEqual([code, linesOf(stdout).sort(), stderr], [0, targets.map((name) => `${name}  paused`).sort(), '']);
  });

  it('--wait waits for all targets', async (t) => {
    const systems = await Promise.all([launchSystem(t), launchSystem(t)]);
    const targets = systems.map(({ address }) => `127.0.0.1:${address.port}`);
    const { code, stdout, stderr } = await run(t, ['pause', '--wait', ...targets]);
    assert.deepEqual([code, linesOf(stdout).sort(), stderr], [0, targets.map((name) => `${name}  paused`).sort(), '']);
    const ended = await run(t, ['shutdown', '--wait', '--json', ...targets]);
    assert.deepEqual(linesOf(ended.stdout).map((line) => JSON.parse(line).status), ['offline', 'offline']);
    await Promise.all(systems.map(({ finished }) => finished));
  });

  it('starts at most 32 requests at once', async () => {
    const open: (() => void)[] = [];
    const done = inParallel(Array.from({ length: 40 }), () => new Promise<void>((end) => open.push(end)));
    const settle = async (): Promise<void> => { // without a timer, so that none counts as slow
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

  it('leaves no timer behind', async () => {
    const count = (): number => process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length;
    const before = count();
    await inParallel([1, 2, 3], async () => {});
    assert.equal(count(), before); // no other test runs meanwhile
  });

  it('is not held up by targets that do not respond', async (t) => {
    const silent = await Promise.all(Array.from({ length: 40 }, () => startSilent(t)));
    const webs = await Promise.all(Array.from({ length: 10 }, () => startWeb(t)));
    const input = [...silent, ...webs].map(({ port }) => `127.0.0.1:${port}`).join('\n');
    const start = performance.now();
    const { code, stdout } = await run(t, ['status', '--targets', '-', '--timeout', '3'], input);
    const seconds = (performance.now() - start) / 1000;
    assert.equal(code, 5);
    const lines = linesOf(stdout);
    assert.deepEqual(lines.slice(0, 10).map((line) => line.endsWith('  active')), Array(10).fill(true), stdout);
    assert.equal(lines.filter((line) => line.includes('  no answer: ')).length, 40);
    assert.ok(seconds < 30, `${seconds} s; one after the other, it takes 120 s`);
  });

  for (const option of ['host', 'port', 'socket']) {
    it(`rejects --${option} beside targets`, async (t) => {
      const { requests, target } = await startWeb(t);
      const line = `control-client: --${option} and targets are mutually exclusive: a target is a whole address\n`;
      const file = makeFile(t, target);
      for (const args of [[target], ['--targets', file]]) {
        const ended = await run(t, ['pause', `--${option}`, '1', ...args]);
        assert.deepEqual(ended, { code: 2, stdout: '', stderr: line });
      }
      assert.deepEqual(requests, []);
    });
  }

  const port = 'must be an integer from 1 to 65535, got';
  const host = 'must be a host name or an IP address, got';
  const wrong: [target: string, message: string][] = [
    ['gpu1:', `the port of the target 'gpu1:' ${port} ''`],
    ['gpu1:0', `the port of the target 'gpu1:0' ${port} '0'`],
    ['gpu1:65536', `the port of the target 'gpu1:65536' ${port} '65536'`],
    ['gpu1:1:2', `the port of the target 'gpu1:1:2' ${port} '1:2'`],
    ['[::1]:x', `the port of the target '[::1]:x' ${port} 'x'`],
    [':80', `the host of the target ':80' ${host} ''`],
    ['http://gpu1', `the port of the target 'http://gpu1' ${port} '//gpu1'`],
    ['gpu1/api', `the host of the target 'gpu1/api' ${host} 'gpu1/api'`],
    ['gpu1 gpu2', `the host of the target 'gpu1 gpu2' ${host} 'gpu1 gpu2'`],
    ['[gpu1', `the host of the target '[gpu1' ${host} '[gpu1'`],
    ['unix:', "the path of the target 'unix:' must be a non-empty string, got ''"],
  ];
  it('rejects what is no target, and names the line of the file', async (t) => {
    for (const [name, message] of wrong) {
      await assert.rejects(parseTargets(['gpu1', name], undefined, 1000), new UsageError(message));
      const file = makeFile(t, `# all\ngpu1\n\n${name} # the last\n`);
      await assert.rejects(parseTargets([], file, 1000), new UsageError(`line 4 of ${file}: ${message}`));
    }
  });

  it('sends nothing to the others if a target is wrong', async (t) => {
    const { target, requests } = await startWeb(t);
    const file = makeFile(t, `${target}\ngpu1:\n`);
    const message = `the port of the target 'gpu1:' ${port} ''`;
    for (const [args, line] of [
      [[target, 'gpu1:'], message], [['--targets', file], `line 2 of ${file}: ${message}`],
      [[target, 'pause'], "unexpected argument 'pause'; a host of that name is pause:8391"],
    ] as const) {
      const ended = await run(t, ['shutdown', ...args]);
      assert.deepEqual(ended, { code: 2, stdout: '', stderr: `control-client: ${line}\n` });
    }
    assert.deepEqual(requests, []);
  });

  it('prints no control characters of a target', async (t) => {
    const path = `/nowhere/\x1b[2J\u202e${'x'.repeat(20)}`;
    const { code, stdout } = await run(t, ['status', `unix:${path}`]);
    const shown = path.replace(/\x1b/, ' ').replace(/\u202e/, ' ');
    assert.deepEqual([code, stdout], [3, `unix:${shown}  offline: connect ENOENT ${shown}\n`]);
  });
});

describe('control-client --targets', { concurrency: 4, skip: lacksSockets() }, () => {
  it('reads targets, one per line, with comments and blank lines', async (t) => {
    const webs = await Promise.all([1, 2, 3, 4].map(() => startWeb(t)));
    const [a, b, c, d] = webs.map(({ target }) => target);
    const text = `\n# all of them\n${a} # the first\r\n   ${b}\t\n\n#${'x'.repeat(9)}\n\t# nothing\n${c}`;
    for (const [input, file] of [['', makeFile(t, text)], [text, '-']] as const) {
      const { code, stdout, stderr } = await run(t, ['status', `${d}`, '--targets', file], input);
      assert.deepEqual([code, stderr], [0, '']);
      assert.deepEqual(linesOf(stdout).map((line) => line.split(' ')[0]).sort(), [a, b, c, d].sort());
    }
  });

  it('takes paths with spaces and number signs', async (t) => {
    const socketPath = join(makeFolder(t), 'a b#c');
    await startWeb(t, () => ACTIVE, socketPath);
    const file = makeFile(t, `unix:${socketPath} # a socket`);
    const { stdout } = await run(t, ['status', '--targets', file]);
    assert.equal(stdout, `unix:${socketPath}  active\n`);
  });

  for (const text of ['', '\n\n', '# none\n  # at all']) {
    it(`rejects a list without targets: ${JSON.stringify(text)}`, async (t) => {
      const { target, requests } = await startWeb(t);
      const file = makeFile(t, text);
      const refused = (what: string): Ended =>
        ({ code: 2, stdout: '', stderr: `control-client: ${what} names no target\n` });
      assert.deepEqual(await run(t, ['pause', '--targets', file, target]), refused(file));
      assert.deepEqual(await run(t, ['pause', '--targets', '-'], text), refused('standard input'));
      assert.deepEqual(requests, []);
    });
  }

  it('names the line of standard input that is wrong', async (t) => {
    const message = "the host of the target 'a/b' must be a host name or an IP address, got 'a/b'";
    const stderr = `control-client: line 2 of standard input: ${message}\n`;
    assert.deepEqual(await run(t, ['status', '--targets', '-'], 'gpu1\na/b\n'), { code: 2, stdout: '', stderr });
  });

  it('rejects a file that does not exist', async (t) => {
    const file = join(makeFolder(t), 'none');
    const { code, stderr } = await run(t, ['status', '--targets', file]);
    assert.equal(code, 2);
    assert.match(stderr, new RegExp(`^control-client: cannot use the targets file '${file}': ENOENT.*\n$`));
  });

  it('sends CONTROL_TOKEN to all targets, and to those with a token file the token in it', async (t) => {
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

  it('sends the token of its line to a target that is also on the command line', async (t) => {
    const { target, tokens } = await startWeb(t);
    const file = makeFile(t, `${target} token-file=${makeFile(t, TOKEN, 0o600)}\n${target}`);
    await run(t, ['status', target, '--targets', file]);
    assert.deepEqual(tokens, [`Bearer ${TOKEN}`]);
  });

  it('finds a token file named on standard input in the working directory', async (t) => {
    const { target, tokens } = await startWeb(t);
    const path = makeFile(t, TOKEN, 0o600);
    await run(t, ['status', '--targets', '-'], `${target} token-file=${relative('.', path)}`);
    await run(t, ['status', '--targets', '-'], `${target} token-file=${path}`);
    assert.deepEqual(tokens, [`Bearer ${TOKEN}`, `Bearer ${TOKEN}`]);
  });

  it('rejects an empty name of a token file', async (t) => {
    for (const name of ['gpu1', 'unix:/nowhere/a']) {
      const { code, stdout, stderr } = await run(t, ['pause', '--targets', '-'], `${name} token-file= # none`);
      assert.deepEqual([code, stdout], [2, '']);
      assert.match(stderr, /^control-client: line 1 of standard input: cannot use the token file '.*': it is not a file\n$/);
    }
  });

  it('sends the token in CONTROL_TOKEN_FILE', async (t) => {
    const [one, other] = [await startWeb(t), await startWeb(t)];
    const env = { CONTROL_TOKEN_FILE: makeFile(t, `${TOKEN}\n`, 0o600), CONTROL_TOKEN: '' };
    assert.equal((await run(t, ['status', '--host', '127.0.0.1', '--port', `${one.port}`], '', env)).stderr, '');
    assert.equal((await run(t, ['status', one.target, other.target], '', env)).stderr, '');
    assert.deepEqual([...one.tokens, ...other.tokens], Array(3).fill(`Bearer ${TOKEN}`));
    const stderr = 'control-client: CONTROL_TOKEN and CONTROL_TOKEN_FILE are both set: set one or the other\n';
    const both = { ...env, CONTROL_TOKEN: TOKEN };
    assert.deepEqual(await run(t, ['status', one.target], '', both), { code: 2, stdout: '', stderr });
    assert.deepEqual(await run(t, ['status'], '', both), { code: 2, stdout: '', stderr });
    const empty = await run(t, ['status', one.target], '', { CONTROL_TOKEN_FILE: '' });
    assert.equal(empty.stdout, `${one.target}  active\n`);
    assert.equal(one.tokens.at(-1), undefined);
  });

  it('rejects a token file without a token, and never prints what it holds', async (t) => {
    const { target, requests } = await startWeb(t);
    for (const [text, got] of [['', '0'], ['short', '5'], [`${TOKEN} ${TOKEN}`, 'other characters'],
      [`${TOKEN}\n\n`, 'other characters']] as const) {
      const path = makeFile(t, text, 0o600);
      const message = `the token in '${path}' must be a string of 16 to 1024 visible ASCII characters, got ${got}\n`;
      const one = await run(t, ['pause', target], '', { CONTROL_TOKEN_FILE: path });
      assert.deepEqual(one, { code: 2, stdout: '', stderr: `control-client: ${message}` });
      const line = await run(t, ['pause', target, '--targets', '-'], `gpu1 token-file=${path}`);
      assert.deepEqual(line, { code: 2, stdout: '', stderr: `control-client: line 1 of standard input: ${message}` });
    }
    const missing = await run(t, ['pause', target], '', { CONTROL_TOKEN_FILE: '/nowhere/token' });
    assert.match(missing.stderr, /^control-client: cannot use the token file '\/nowhere\/token': ENOENT.*\n$/);
    assert.deepEqual([missing.code, requests], [2, []]);
  });

  it('rejects a file that others can write, and sends nothing', async (t) => {
    const { target, requests } = await startWeb(t);
    for (const mode of [0o666, 0o620, 0o602]) {
      const targets = makeFile(t, target, mode);
      const token = makeFile(t, TOKEN, mode);
      const line = (what: string, path: string): string =>
        `cannot use the ${what} file '${path}': others can write it; chmod go-w '${path}'\n`;
      const refused = (message: string): Ended => ({ code: 2, stdout: '', stderr: `control-client: ${message}` });
      assert.deepEqual(await run(t, ['pause', '--targets', targets]), refused(line('targets', targets)));
      const env = { CONTROL_TOKEN_FILE: token };
      assert.deepEqual(await run(t, ['pause', target], '', env), refused(line('token', token)));
      const ended = await run(t, ['pause', '--targets', '-'], `${target} token-file=${token}`);
      assert.deepEqual(ended, refused(`line 1 of standard input: ${line('token', token)}`));
    }
    assert.deepEqual(requests, []);
  });

  const isRoot = process.geteuid?.() === 0;
  it('rejects a file of another user', { skip: !isRoot && 'needs root' }, async (t) => {
    const { target, requests } = await startWeb(t);
    const [targets, token] = [makeFile(t, target), makeFile(t, TOKEN, 0o600)];
    for (const path of [targets, token]) chownSync(path, 12345, 12345);
    const line = (what: string, path: string): string =>
      `control-client: cannot use the ${what} file '${path}': it belongs to another user\n`;
    assert.equal((await run(t, ['pause', '--targets', targets])).stderr, line('targets', targets));
    const env = { CONTROL_TOKEN_FILE: token };
    assert.equal((await run(t, ['pause', target], '', env)).stderr, line('token', token));
    assert.deepEqual(requests, []);
  });

  it('warns once of a token file that others can read', async (t) => {
    const [one, other] = [await startWeb(t), await startWeb(t)];
    for (const mode of [0o640, 0o604]) {
      const path = makeFile(t, TOKEN, mode);
      const stderr = `control-client: others can read the token file '${path}'; chmod go-r '${path}'\n`;
      const targets = makeFile(t, [one, other].map(({ target }) => `${target} token-file=${path}\n`).join(''), 0o644);
      const ended = await run(t, ['status', '--targets', targets]);
      assert.deepEqual([ended.code, ended.stderr], [0, stderr]);
      const env = { CONTROL_TOKEN_FILE: path };
      assert.equal((await run(t, ['status', one.target, other.target], '', env)).stderr, stderr);
    }
    assert.deepEqual(new Set([...one.tokens, ...other.tokens]), new Set([`Bearer ${TOKEN}`]));
  });
});

describe('control-client: the address in the environment', { concurrency: 4, skip: lacksSockets() }, () => {
  it('is CONTROL_HOST and CONTROL_PORT, or CONTROL_SOCKET', () => {
    const empty = { CONTROL_HOST: '', CONTROL_PORT: '', CONTROL_SOCKET: '' };
    const both = { CONTROL_HOST: 'gpu1', CONTROL_PORT: '9000' };
    const all: [options: Parameters<typeof createClient>[0], env: NodeJS.ProcessEnv, url: string][] = [
      [{}, {}, 'http://localhost:8391'],
      [{}, both, 'http://gpu1:9000'],
      [{}, { CONTROL_SOCKET: '/a' }, 'unix:/a'],
      [{ port: '1' }, { CONTROL_HOST: 'gpu1' }, 'http://gpu1:1'],
      [{ port: '1' }, { CONTROL_HOST: 'gpu1', CONTROL_PORT: 'wrong' }, 'http://gpu1:1'],
      [{ host: 'gpu2' }, { CONTROL_HOST: '/', CONTROL_PORT: '9000' }, 'http://gpu2:9000'],
      [{ host: 'gpu2', port: '1' }, both, 'http://gpu2:1'],
      [{ host: 'gpu2', port: '1' }, { CONTROL_SOCKET: '/a' }, 'http://gpu2:1'],
      [{ port: '1' }, { CONTROL_HOST: 'gpu1', CONTROL_SOCKET: '/a' }, 'http://gpu1:1'],
      [{ host: 'gpu2' }, { CONTROL_PORT: '9000', CONTROL_SOCKET: '/a' }, 'http://gpu2:9000'],
      [{ socket: '/b' }, { CONTROL_HOST: 'gpu1', CONTROL_PORT: 'wrong' }, 'unix:/b'],
      [{ socket: '/b' }, { CONTROL_SOCKET: '/a' }, 'unix:/b'],
      [{ socket: '/b' }, { CONTROL_SOCKET: 'x'.repeat(200) }, 'unix:/b'],
    ];
    for (const [options, env, url] of all) {
      Object.assign(process.env, empty, env);
      assert.equal(createClient(options).baseUrl, url, JSON.stringify([options, env]));
    }
    for (const name of Object.keys(empty)) delete process.env[name];
  });

  it('reaches the system', async (t) => {
    const [{ port }, socketPath] = [await startWeb(t), makeSocketPath(t)];
    await startWeb(t, () => ({ status: 'paused' }), socketPath);
    const host = { CONTROL_HOST: '127.0.0.1' };
    assert.equal((await run(t, ['status'], '', { ...host, CONTROL_PORT: `${port}` })).stdout, 'active\n');
    assert.equal((await run(t, ['status'], '', { CONTROL_SOCKET: socketPath })).stdout, 'paused\n');
  });

  it('does not matter beside targets', async (t) => {
    const { target } = await startWeb(t);
    const env = { CONTROL_HOST: '/', CONTROL_PORT: 'wrong', CONTROL_SOCKET: 'x'.repeat(200) };
    const active = { code: 0, stdout: `${target}  active\n`, stderr: '' };
    assert.deepEqual(await run(t, ['status', target], '', env), active);
    assert.deepEqual(await run(t, ['status', '--targets', '-'], target, env), active);
  });

  const wrong: [env: NodeJS.ProcessEnv, line: string][] = [
    [{ CONTROL_HOST: 'http://gpu1' }, "CONTROL_HOST must be a host name or an IP address, got 'http://gpu1'"],
    [{ CONTROL_HOST: 'gpu1:8391' }, "CONTROL_HOST must be a host name or an IP address, got 'gpu1:8391'"],
    [{ CONTROL_PORT: '0' }, "CONTROL_PORT must be an integer from 1 to 65535, got '0'"],
    [{ CONTROL_PORT: '80.5' }, "CONTROL_PORT must be an integer from 1 to 65535, got '80.5'"],
    [{ CONTROL_PORT: ' ' }, "CONTROL_PORT must be an integer from 1 to 65535, got ' '"],
    [{ CONTROL_SOCKET: `/${'x'.repeat(94)}` },
      `CONTROL_SOCKET must be at most 94 bytes long, without NUL, got '/${'x'.repeat(94)}'`],
    [{ CONTROL_SOCKET: '/nowhere', CONTROL_HOST: 'gpu1', CONTROL_PORT: '1' },
      'CONTROL_SOCKET replaces CONTROL_HOST and CONTROL_PORT: give one or the other'],
    [{ CONTROL_SOCKET: '/nowhere', CONTROL_HOST: 'gpu1' },
      'CONTROL_SOCKET replaces CONTROL_HOST and CONTROL_PORT: give one or the other'],
  ];
  for (const [env, line] of wrong) {
    it(`names the variable: ${JSON.stringify(env).slice(0, 60)}`, async (t) => {
      assert.deepEqual(await run(t, ['pause'], '', env), { code: 2, stdout: '', stderr: `control-client: ${line}\n` });
    });
  }

  it('is explained by --help', async (t) => {
    const { stdout } = await run(t, ['--help']);
    for (const name of ['HOST', 'PORT', 'SOCKET', 'TOKEN', 'TOKEN_FILE', 'BY']) {
      assert.match(stdout, new RegExp(`\\bCONTROL_${name}\\b`));
    }
  });
});

describe('control-client and a system that does not respond', { concurrency: 4, skip: lacksSockets() }, () => {
  it('sends a command to a stopped system, which takes effect later', async (t) => {
    const { port, child, stop } = await startChild(t);
    const command = 'echo ran "$CONTROL_BEFORE" to "$CONTROL_STATUS"';
    const watching = startProgram(t, 'client', [...at(port), 'watch', '--exec', command]);
    await watching.shows(/  active\n/);
    await stop();
    const [shutdown, status, pause] = await Promise.all([
      run(t, [...at(port), 'shutdown']),
      run(t, [...at(port), 'status', '--timeout', '2', '--json']),
      run(t, [...at(port), 'resume', '--wait', '--timeout', '2']),
    ]);
    assert.deepEqual([shutdown.code, shutdown.stdout, pause.code, pause.stdout], [5, '', 5, '']);
    const within = (seconds: string): string => `not answered within ${seconds} s: it may still take effect\n$`;
    assert.match(shutdown.stderr, new RegExp(`^control-client: shutdown sent, but ${within('\\d(\\.\\d)?')}`));
    assert.match(pause.stderr, new RegExp(`^control-client: resume sent, but ${within('\\d(\\.\\d)?')}`));
    const { status: name, error } = JSON.parse(status.stdout);
    assert.deepEqual([status.code, name, status.stderr], [5, 'no answer', `control-client: ${error}\n`]);
    await watching.shows(/  no answer: .*\n[^]*ran active to no answer\n/);
    child.kill('SIGCONT');
    if (child.exitCode === null) await once(child, 'exit');
    assert.equal(child.exitCode, 0, 'it has shut down');
    await watching.shows(/  offline: .*\n/);
  });

  it('does not report success of a stopped system', async (t) => {
    const { port, child, stop } = await startChild(t);
    await stop();
    const [shutdown, pause, wait, socket] = await Promise.all([
      run(t, [...at(port), 'shutdown', '--wait', '--timeout', '2', '--json']),
      run(t, [...at(port), 'pause', '--wait', '--timeout', '2']),
      run(t, [...at(port), 'wait', 'offline', '--timeout', '2']),
      run(t, ['shutdown', '--wait', '--timeout', '2', `127.0.0.1:${port}`]),
    ]);
    assert.deepEqual([shutdown, pause, wait, socket].map(({ code }) => code), [5, 5, 4, 5]);
    assert.deepEqual([pause, wait, socket].map(({ stdout }) => stdout), ['', '', '']);
    assert.match(JSON.parse(shutdown.stdout).error, /^shutdown sent, but not answered within \d(\.\d)? s: it may/);
    assert.match(wait.stderr, /^control-client: not offline after \d\.\d s: the system does not report its status\n$/);
    const ended = run(t, [...at(port), 'wait', 'offline', '--timeout', '20']);
    child.kill('SIGKILL');
    assert.deepEqual(await ended, { code: 0, stdout: 'offline\n', stderr: '' });
  });

  it('--wait does not take a slow connection for silence', async (t) => {
    const { port } = await startWeb(t, async ({ method }) => {
      if (method === 'POST') await new Promise(() => {}); // its response is still under way when the time is up
      await sleep(300);
      return ACTIVE;
    });
    const { code, stderr } = await run(t, [...at(port), 'pause', '--wait', '--timeout', '1']);
    assert.match(stderr, /not paused after \d\.\d s: the system is active; the command is still pending\n$/);
    assert.equal(code, 4);
  });

  it('shutdown --wait reports success when a system that did not respond has ended', async (t) => {
    const received = defer();
    const web = await startWeb(t, ({ method }) => {
      if (method === 'POST') received.resolve();
      return new Promise<null>(() => {});
    });
    const ended = run(t, [...at(web.port), 'shutdown', '--wait', '--timeout', '20']);
    await received.promise;
    web.end();
    assert.deepEqual(await ended, { code: 0, stdout: 'offline\n', stderr: '' });
    assert.equal(web.requests.filter((request) => request.startsWith('POST')).length, 1);
  });

  it('tells a connection that was cut after the command', async (t) => {
    const { port, requests } = await startWeb(t, () => null);
    const { code, stdout, stderr } = await run(t, [...at(port), 'pause']);
    assert.deepEqual([code, stdout], [5, '']);
    assert.match(stderr, /^control-client: pause sent, but not answered \(.+\): it may still take effect\n$/);
    assert.deepEqual(requests, ['POST /api/pause']);
  });

  it('shutdown --wait of a system that is not there is done', async (t) => {
    const port = await freePort();
    const [missing, left] = [makeSocketPath(t), makeSocketPath(t)];
    const program = "require('node:net').createServer().listen(process.argv[1], () => console.log('listening'))";
    const server = start(t, process.execPath, ['--eval', program, left]);
    await server.shows(/listening/);
    server.child.kill('SIGKILL'); // it leaves its socket
    await server.ended;
    assert.ok(existsSync(left));
    const target = `127.0.0.1:${port}`;
    await Promise.all([['--port', `${port}`], ['--socket', missing], ['--socket', left]].map(async (args) => {
      const done = { code: 0, stdout: 'already offline\n', stderr: '' };
      assert.deepEqual(await run(t, ['shutdown', '--wait', ...args]), done);
      const { code, stdout, stderr } = await run(t, ['shutdown', '--wait', '--json', ...args]);
      assert.deepEqual([code, stderr], [0, '']);
      assert.deepEqual({ ...JSON.parse(stdout), seconds: 0 }, { seconds: 0, status: 'offline' });
      for (const command of [['shutdown'], ['pause', '--wait']]) {
        const sent = await run(t, [...command, ...args]);
        assert.deepEqual([sent.code, sent.stdout], [3, '']);
      }
    }));
    const done = { code: 0, stdout: `${target}  already offline\n`, stderr: '' };
    assert.deepEqual(await run(t, ['shutdown', '--wait', target]), done);
  });

  it('a host that does not exist is not already offline', async (t) => {
    for (const host of ['name.invalid', 'ENOENT.invalid']) {
      for (const args of [['--host', host], [`${host}:1`]]) {
        const { code, stdout } = await run(t, ['shutdown', '--wait', '--timeout', '5', ...args]);
        assert.deepEqual([code, stdout], [3, ''], `${args}`);
      }
    }
  });

  const isRoot = process.geteuid?.() === 0;
  it('a socket of another user is not already offline', { skip: !isRoot && 'needs root' }, async (t) => {
    const folder = makeFolder(t);
    const socketPath = join(folder, 'ENOENT');
    const { requests } = await startWeb(t, () => ACTIVE, socketPath);
    chownSync(socketPath, 12345, 12345);
    const { code, stdout, stderr } = await run(t, ['shutdown', '--wait', '--socket', socketPath]);
    assert.deepEqual([code, stdout, requests], [3, '', []]);
    assert.match(stderr, /no request was sent, because the socket belongs to user 12345\n$/);
  });
});

describe('control-client and the queue', { concurrency: 4, skip: lacksSockets() }, () => {
  it('--wait sends a command again while the queue is full, until it is accepted', async (t) => {
    let count = 0;
    const web = await startWeb(t, ({ method }) => {
      if (method === 'GET') return ACTIVE;
      count += 1;
      return count <= 3 ? { code: 503, error: 'full' } : { ...ACTIVE, state: 'done', id: '1', value: 'a.json' };
    });
    const ended = await run(t, [...at(web.port), 'save-state', '--wait']);
    assert.deepEqual(ended, { code: 0, stdout: 'a.json\n', stderr: '' });
    assert.equal(count, 4);
  });

  it('without --wait, a full queue is a failure at once', async (t) => {
    const { port, requests } = await startWeb(t, () => ({ code: 503, error: 'full' }));
    assert.deepEqual(await run(t, [...at(port), 'pause']), { code: 1, stdout: '', stderr: 'control-client: full\n' });
    assert.deepEqual(requests, ['POST /api/pause']);
  });

  it('--wait does not send a command again after other failures', async (t) => {
    await Promise.all([400, 401, 403, 404, 429, 500].map(async (code) => {
      const { port, requests } = await startWeb(t, () => ({ code, error: 'no' }));
      const ended = await run(t, [...at(port), 'pause', '--wait', '--timeout', '5']);
      assert.equal(ended.code, 1, JSON.stringify(ended));
      assert.equal(requests.filter((request) => request.startsWith('POST')).length, 1);
    }));
  });

  it('--wait gives up when the queue is full for too long', async (t) => {
    const { port, requests } = await startWeb(t, () => ({ code: 503, error: 'full' }));
    const { code, stdout, stderr } = await run(t, [...at(port), 'shutdown', '--wait', '--timeout', '2', '--json']);
    const { error, seconds } = JSON.parse(stdout);
    assert.deepEqual([code, error, stderr], [1, 'full', stderr]);
    assert.match(stderr, /^control-client: not shut down after \d\.\d s: full\n$/);
    assert.ok(seconds >= 1.8, stdout);
    assert.ok(requests.length > 1);
  });

  it('--wait learns that the queue was full to the end', async (t) => {
    let ended: Ended | null = null;
    for (let round = 0; ended?.code !== 1 && round < 5; round += 1) { // a busy machine may be late
      const first = defer<number>();
      const { port } = await startWeb(t, async ({ method }) => {
        if (method === 'GET') return ACTIVE;
        first.resolve(performance.now());
        const passedMs = performance.now() - await first.promise;
        if (passedMs > 1) await sleep(1050 - passedMs); // the time is up meanwhile
        return { code: 503, error: 'full' };
      });
      ended = await run(t, [...at(port), 'pause', '--wait', '--timeout', '1']);
    }
    assert.match(`${ended?.stderr}`, /^control-client: not paused after \d\.\d s: full\n$/);
    assert.equal(ended?.code, 1);
  });

  it('shutdown --wait gets through a full queue once', { skip: lacksScript() }, async (t) => {
    const { port, server, client: api } = await startServer(t, { maxQueueSize: 1 });
    await api.pause();
    const { shows, ended } = onTerminal(t, [...at(port), 'shutdown', '--wait']);
    await shows(/the queue is full … /);
    assert.equal(await server.nextCommand(), 'pause');
    assert.equal(await server.nextCommand(), 'shutdown');
    assert.equal(server.hasCommands(), false);
    await server.close();
    const { code, stdout } = await ended;
    assert.match(stdout, /^the queue is full … (active … )?offline \(\d+\.\d s\)\r\n$/);
    assert.equal(code, 0);
  });

  it('resume --wait does not report success while a pause waits in the queue', async (t) => {
    let status = SystemStatus.ACTIVE;
    const { port, server, client: api } = await startServer(t, { systemStatus: () => status });
    await api.pause();
    let isDone = false;
    const ended = run(t, [...at(port), 'resume', '--wait', '--timeout', '20']).then((end) => ({ ...end, isDone }));
    await until(async () => (await api.info())?.commands.some(({ command }) => command === 'resume') === true);
    await sleep(400); // active all the while
    assert.equal(await server.nextCommand(), 'pause');
    status = SystemStatus.PAUSED;
    server.report({});
    assert.equal(await server.nextCommand(), 'resume');
    status = SystemStatus.ACTIVE;
    await sleep(400); // active again, and not done
    isDone = true;
    server.report({});
    assert.deepEqual(await ended, { code: 0, stdout: 'active\n', stderr: '', isDone: true });
  });

  it('--wait asks for the outcome again if a response is lost', async (t) => {
    let count = 0;
    const { port } = await startWeb(t, ({ method, url }) => {
      if (method === 'POST') return { code: 202, result: 'ok', id: '1', state: 'waiting' };
      if (url !== '/api/info') return ACTIVE; // as before the command
      count += 1;
      const state = count < 4 ? { state: 'running' } : { state: 'failed', error: 'no GPU' };
      return count % 2 === 1 ? null : { ...ACTIVE, commands: [{ id: '1', command: 'resume', ...state }] };
    });
    const ended = await run(t, [...at(port), 'resume', '--wait', '--timeout', '20']);
    assert.deepEqual(ended, { code: 1, stdout: '', stderr: 'control-client: not resumed: no GPU\n' });
  });

  it('--wait on a terminal prints the status once', { skip: lacksScript() }, async (t) => {
    const { address: { port } } = await launchSystem(t, { saveState: () => 'states/1.json' });
    const all: [args: string[], stdout: RegExp][] = [
      [['pause'], /^(active … )?(pausing … )?paused \(\d+\.\d s\)\r\n$/],
      [['resume'], /^(paused … )?(resuming … )?active \(\d+\.\d s\)\r\n$/],
      [['save-state'], /^saved states\/1\.json \(\d+\.\d s\)\r\n$/],
      [['pause', `127.0.0.1:${port}`], new RegExp(`^127\\.0\\.0\\.1:${port}  paused\r\n$`)],
    ];
    for (const [args, pattern] of all) {
      const { code, stdout } = await onTerminal(t, [...args, '--wait', ...(args.length === 1 ? at(port) : [])]).ended;
      assert.match(stdout, pattern);
      assert.equal(code, 0);
    }
    const { stdout } = await onTerminal(t, [...at(port), 'resume', '--wait', '--json']).ended;
    assert.equal(stdout.split('"active"').length, 2, stdout);
    const offline = await onTerminal(t, ['--port', `${await freePort()}`, 'shutdown', '--wait']).ended;
    assert.deepEqual([offline.code, offline.stdout], [0, 'already offline\r\n']);
  });
});

describe('control-client watch with several targets', { concurrency: 4, skip: lacksSockets() }, () => {
  it('begins each line with the time and the target', async (t) => {
    const port = await freePort();
    const { address, client: api } = await launchSystem(t);
    const targets = [`127.0.0.1:${address.port}`, `127.0.0.1:${port}`];
    const width = Math.max(...targets.map((target) => target.length));
    const [one = '', other = ''] = targets.map((target) => target.padEnd(width));
    const text = startProgram(t, 'client', ['watch', ...targets]);
    const json = startProgram(t, 'client', ['watch', '--json', ...targets]);
    await Promise.all([one, `${other}  offline`].map((start) => text.shows(new RegExp(`  ${start}`))));
    await until(() => changesOf(json).length === 2, json.output);
    await launchSystem(t, {}, { webApiAddress: ['127.0.0.1', port] });
    await text.shows(new RegExp(`  ${other}  active\n`));
    await api.request('pause', { by: 'ana', reason: 'lunch' });
    await text.shows(new RegExp(`  ${one}  pause by ana \\(lunch\\) done in .*\n`));
    const form = /^\d{4}(-\d\d){2} \d\d(:\d\d){2}  127\.0\.0\.1:\d+ {2,}\w/;
    for (const line of linesOf(text.output())) assert.match(line, form);
    const has = (name: string, value: string): boolean => changesOf(json).some((change) => change[name] === value);
    await until(() => has('command', 'pause') && has('status', 'paused'), json.output);
    await until(() => changesOf(json).filter(({ target }) => target === targets[1]).length === 2, json.output);
    const changes = changesOf(json);
    const statuses = changes.filter(({ target }) => target === targets[1]).map(({ status }) => status);
    assert.deepEqual(statuses, ['offline', 'active']);
    assert.deepEqual(changes.filter(({ target }) => !targets.includes(`${target}`)), []);
  });

  it('ends when access is denied by all, and watches the others if not', async (t) => {
    const closed = await Promise.all([startServer(t, { token: TOKEN }), startServer(t, { token: TOKEN })]);
    const [a, b] = closed.map(({ port }) => `127.0.0.1:${port}`) as [string, string];
    const { code, stdout, stderr } = await run(t, ['watch', a, b]);
    assert.deepEqual([code, stdout], [1, '']);
    assert.deepEqual(linesOf(stderr).sort(), [a, b].map((target) => `control-client: ${target}: ${NO_TOKEN}`).sort());
    const { target: open } = await startWeb(t);
    const { child, ended, shows } = startProgram(t, 'client', ['watch', '--json', a, open]);
    await Promise.all([shows(new RegExp(`${a}: `)), shows(/"active"/)]);
    child.stdout?.destroy();
    child.kill('SIGTERM');
    assert.equal((await ended).stderr, `control-client: ${a}: ${NO_TOKEN}\n`);
  });

  it('a server cannot pass for another target', async (t) => {
    const commands: object[] = [];
    const target = 'gpu1:8391';
    const web = await startWeb(t, () => ({ ...ACTIVE, target, time: 'never', commands }));
    const info = await run(t, ['info', '--json', web.target]);
    assert.deepEqual(JSON.parse(info.stdout).target, web.target);
    const watching = startProgram(t, 'client', ['watch', '--json', web.target]);
    await watching.shows(/"active"/);
    commands.push({ id: '1', command: 'pause', state: 'done', target, time: 'never' });
    await until(() => changesOf(watching).length === 2, watching.output);
    for (const change of changesOf(watching)) {
      assert.equal(change['target'], web.target);
      assert.match(`${change['time']}`, /^\d{4}-/);
    }
  });
});

describe('control-client watch --exec', { concurrency: 4, skip: lacksSockets() }, () => {
  it('runs the command for each new status, not for the first one', async (t) => {
    const { setStatus, watch } = await startWatch(t);
    const command = 'echo "$CONTROL_BEFORE>$CONTROL_STATUS"; echo noise >&2';
    const { shows, child, ended } = await watch(['--exec', command, '--json']);
    for (const [before, status] of [['active', 'paused'], ['paused', 'shutting down'], ['shutting down', 'active']]) {
      setStatus(`${status}`);
      await shows(new RegExp(`^${before}>${status}\nnoise\n`, 'm'));
    }
    child.kill();
    const { stdout, stderr } = await ended;
    const statuses = linesOf(stdout).map((line) => JSON.parse(line).status);
    assert.deepEqual(statuses, ['active', 'paused', 'shutting down', 'active']);
    const runs = ['active>paused', 'paused>shutting down', 'shutting down>active'];
    assert.deepEqual(linesOf(stderr), runs.flatMap((line) => [line, 'noise']));
  });

  it('tells the command what a hostile server sends without its control characters, and not the token', async (t) => {
    const { setStatus, watch, target } = await startWatch(t, HOSTILE);
    const variables = ['STATUS', 'BEFORE', 'REASON', 'TARGET'].map((name) => `"$CONTROL_${name}"`);
    const command = `printf "<%s>" ${variables.join(' ')} "\${CONTROL_TOKEN-none}" "\${CONTROL_BY-none}"; echo`;
    const { shows, output } = await watch(['--exec', command], { CONTROL_TOKEN: TOKEN, CONTROL_BY: 'ana' });
    setStatus(HOSTILE);
    await shows(/^<.*>\n/m);
    assert.equal(/^<.*\n/m.exec(output())?.[0], `<unknown><active><${HARMLESS}><${target}><none><ana>\n`);
    setStatus('paused');
    await shows(/^<paused><unknown>/m);
    assertHarmless(output());
    assert.ok(!output().includes(TOKEN));
  });

  it('does not run what a server sends', async (t) => {
    const path = join(makeFolder(t), 'owned');
    const { setStatus, watch } = await startWatch(t, `'; touch ${path}; $(touch ${path}) \`touch ${path}\` "`);
    const { shows } = await watch(['--exec', 'echo ran "$CONTROL_REASON"']);
    setStatus('paused');
    await shows(/^ran '; touch /m);
    assert.ok(!existsSync(path));
  });

  it('tells the target as it was given, cleaned of control characters', async (t) => {
    const socketPath = join(makeFolder(t), 'a\x1b[2J\u202eb');
    let status = 'active';
    await startWeb(t, () => ({ status }), socketPath);
    const args = ['watch', `unix:${socketPath}`, '--exec', 'echo "<$CONTROL_TARGET>"'];
    const { shows, output } = startProgram(t, 'client', args);
    await shows(/  active\n/);
    status = 'paused';
    await shows(/^<.*>\n/m);
    assert.ok(output().includes(`<unix:${join(socketPath, '..')}/a [2J b>\n`), JSON.stringify(output()));
  });

  it('runs one command at a time; what changes meanwhile is one change', async (t) => {
    const { setStatus, watch } = await startWatch(t);
    const folder = makeFolder(t);
    const [log, go] = [join(folder, 'log'), join(folder, 'go')];
    const command = `echo "$CONTROL_BEFORE>$CONTROL_STATUS" >> '${log}'; ` +
      `until test -e '${go}' || ! test -d '${folder}'; do sleep 0.05; done; echo end >> '${log}'`;
    const { output } = await watch(['--exec', command]);
    const shown = (): string[] => linesOf(output()).map((line) => line.split('  ')[1] ?? '');
    const change = async (status: string): Promise<void> => {
      const count = shown().length;
      setStatus(status);
      await until(() => shown().length > count && shown().at(-1) === status, output);
    };
    const has = (lines: string[]): Promise<void> =>
      until(() => existsSync(log) && readFileSync(log, 'utf8') === lines.map((line) => `${line}\n`).join(''),
        () => readFileSync(log, 'utf8'));
    await change('paused');
    await has(['active>paused']);
    for (const status of ['resuming', 'active', 'pausing', 'paused', 'resuming', 'active']) await change(status);
    await has(['active>paused']);
    writeFileSync(go, '');
    await has(['active>paused', 'end', 'paused>active', 'end']);
    await change('paused');
    await has(['active>paused', 'end', 'paused>active', 'end', 'active>paused', 'end']);
  });

  it('forgets a change that was undone while the command ran', async (t) => {
    const { setStatus, watch } = await startWatch(t);
    const folder = makeFolder(t);
    const go = join(folder, 'go');
    const command = `echo "ran $CONTROL_STATUS"; until test -e '${go}' || ! test -d '${folder}'; do sleep 0.05; done`;
    const { shows, output } = await watch(['--exec', command]);
    setStatus('paused');
    await shows(/ran paused\n/);
    setStatus('active');
    await shows(/  paused\n[^]*  active\n/);
    setStatus('paused');
    await shows(/  paused\n[^]*  active\n[^]*  paused\n/);
    writeFileSync(go, '');
    setStatus('pausing');
    await shows(/ran pausing\n/);
    assert.deepEqual(output().match(/^ran .*/gm), ['ran paused', 'ran pausing']);
  });

  it('runs one command at a time for all targets', async (t) => {
    const folder = makeFolder(t);
    let status = 'active';
    const webs = await Promise.all(Array.from({ length: 5 }, () => startWeb(t, () => ({ status }))));
    const path = join(folder, 'running');
    const command = `mkdir '${path}' || echo twice; sleep 0.1; rmdir '${path}'; echo "ran $CONTROL_TARGET"`;
    const targets = webs.map(({ target }) => target);
    const { output } = startProgram(t, 'client', ['watch', '--exec', command, ...targets]);
    await until(() => output().split(/  active\n/).length === 6, output);
    status = 'paused';
    await until(() => output().split(/^ran /m).length === 6, output);
    assert.deepEqual(output().match(/(?<=^ran ).*/gm)?.sort(), targets.sort());
    assert.ok(!/twice/.test(output()), output());
  });

  it('--on runs the command for these statuses alone', async (t) => {
    const { setStatus, watch } = await startWatch(t);
    const command = 'echo "ran $CONTROL_BEFORE>$CONTROL_STATUS"';
    const { shows, output } = await watch(['--exec', command, '--on', 'paused,shutting-down']);
    const passes = ['pausing', 'paused', 'resuming', 'active', 'paused', 'shutting down'];
    for (const [index, status] of passes.entries()) {
      setStatus(status);
      await until(() => linesOf(output()).filter((line) => /^\d/.test(line)).length === index + 2, output);
      if (status === 'paused' || status.startsWith('shut')) await shows(new RegExp(`>${status}\n(?![^]*ran)`));
    }
    const runs = ['ran pausing>paused', 'ran active>paused', 'ran paused>shutting down'];
    assert.deepEqual(output().match(/^ran .*/gm), runs);
  });

  it('runs the command when the system gives no answer', async (t) => {
    const { port, child, stop } = await startChild(t);
    const command = 'echo "ran $CONTROL_BEFORE>$CONTROL_STATUS"';
    const { shows, output } = startProgram(t, 'client', [...at(port), 'watch', '--exec', command, '--on', 'no-answer']);
    await shows(/  active\n/);
    await stop();
    await shows(/^ran active>no answer\n/m);
    child.kill('SIGCONT');
    await shows(/  no answer: [^]*  active\n/);
    assert.equal(output().match(/^ran /gm)?.length, 1);
  });

  it('runs the command when the system goes offline and comes back', async (t) => {
    const port = await freePort();
    const command = 'echo "ran $CONTROL_BEFORE>$CONTROL_STATUS at $CONTROL_TARGET"';
    const args = [...at(port), 'watch', '--exec', command, '--on', 'offline,active'];
    const { shows, output } = startProgram(t, 'client', args);
    await shows(/  offline: /);
    const { client: api } = await launchSystem(t, {}, { webApiAddress: ['127.0.0.1', port] });
    await shows(new RegExp(`^ran offline>active at 127\\.0\\.0\\.1:${port}\n`, 'm'));
    await api.shutdown();
    await shows(/^ran .*>offline at/m);
    await launchSystem(t, {}, { webApiAddress: ['127.0.0.1', port] });
    await shows(/^ran offline>active[^]*^ran offline>active/m);
    assert.equal(output().match(/^ran /gm)?.length, 3);
  });

  it('reports a command that fails, and goes on', async (t) => {
    const { setStatus, watch } = await startWatch(t);
    const commands: Record<string, string> = { paused: 'exit 3', resuming: 'kill -9 $$', pausing: '/nowhere/command' };
    const cases = Object.entries(commands).map(([status, command]) => `${status}) ${command};;`).join(' ');
    const { shows } = await watch(['--exec', `case "$CONTROL_STATUS" in ${cases} esac`]);
    for (const [status, line] of [['paused', 'exit code 3'], ['resuming', 'SIGKILL'], ['pausing', 'exit code 127']]) {
      setStatus(`${status}`);
      await shows(new RegExp(`^control-client: --exec ended with ${line}\n`, 'm'));
    }
    setStatus('active');
    await shows(/  pausing\n[^]*  active\n/);
  });

  it('runs the command to its end when nobody reads the output any more', async (t) => {
    const { setStatus, watch } = await startWatch(t);
    const folder = makeFolder(t);
    const wait = `until test -e '${folder}/go' || ! test -d '${folder}'; do sleep 0.05; done`;
    const command = `echo begun; ${wait}; touch '${folder}/done'`;
    const { child, shows, ended } = await watch(['--exec', command]);
    setStatus('paused');
    await shows(/begun\n/);
    child.stdout?.destroy();
    setStatus('active'); // the line that nobody reads
    await sleep(600);
    assert.equal(child.exitCode, null);
    writeFileSync(join(folder, 'go'), '');
    assert.equal((await ended).code, 0);
    assert.ok(existsSync(join(folder, 'done')));
  });
});

describe('control-client on a terminal', { concurrency: 4, skip: lacksScript() }, () => {
  const COLOURED = { NO_COLOR: undefined, COLORTERM: undefined, TMUX: undefined, CI: undefined, TERM: 'xterm' };
  const [GREEN, YELLOW, RED, END] = ['\x1b[32m', '\x1b[33m', '\x1b[31m', '\x1b[39m'];

  it('colours statuses and errors', async (t) => {
    const port = await freePort();
    const watching = onTerminal(t, [...at(port), 'watch'], COLOURED);
    const shows = (text: string): Promise<void> => until(() => watching.output().includes(text), watching.output);
    await shows(`  ${RED}offline${END}: `);
    const { client: api } = await launchSystem(t, {}, { webApiAddress: ['127.0.0.1', port] });
    await shows(`  ${GREEN}active${END}\r\n`);
    await api.request('pause', { by: 'ana' });
    await shows(`  ${YELLOW}paused${END} by ana\r\n`);
    const targets = onTerminal(t, ['watch', `127.0.0.1:${port}`], COLOURED);
    await until(() => targets.output().includes(`  127.0.0.1:${port}  ${YELLOW}paused${END}`), targets.output);
    const offline = await onTerminal(t, ['status', ...at(await freePort())], COLOURED).ended;
    assert.ok(offline.stdout.includes(`${RED}control-client: http://`), offline.stdout);
    const wrong = await onTerminal(t, ['stop'], COLOURED).ended;
    assert.match(wrong.stdout, /^\x1b\[31mcontrol-client: the command must be .*\x1b\[39m\r\n$/);
  });

  it('has no colours with NO_COLOR, FORCE_COLOR=0 or TERM=dumb', async (t) => {
    const [{ port }, closedPort] = [await startWeb(t), await freePort()];
    await Promise.all([{ NO_COLOR: '1' }, { FORCE_COLOR: '0' }, { TERM: 'dumb' }].map(async (env) => {
      const watching = onTerminal(t, [...at(port), 'watch'], { ...COLOURED, ...env });
      await watching.shows(/active\r\n/);
      const { stdout } = await onTerminal(t, [...at(closedPort), 'status'], { ...COLOURED, ...env }).ended;
      assert.match(stdout, /control-client: http:/);
      assert.ok(!`${watching.output()}${stdout}`.includes('\x1b'), JSON.stringify([env, watching.output(), stdout]));
    }));
  });

  it('has no colours in a pipe, and none in JSON', async (t) => {
    const [{ port }, closedPort] = [await startWeb(t), await freePort()];
    for (const env of [COLOURED, { ...COLOURED, FORCE_COLOR: '1' }]) {
      const ended = await run(t, [...at(closedPort), 'status'], '', env);
      assert.equal(ended.code, 3);
      assert.ok(!`${ended.stdout}${ended.stderr}`.includes('\x1b'), JSON.stringify(ended));
      const watching = startProgram(t, 'client', [...at(port), 'watch'], env);
      await watching.shows(/  active\n/);
      assert.ok(!watching.output().includes('\x1b'));
    }
    for (const args of [['status', '--json'], ['watch', '--json']]) {
      const { shows, output } = onTerminal(t, [...at(port), ...args], COLOURED);
      await shows(/\{.*"active".*\}\r\n/);
      assert.ok(!output().includes('\x1b'), JSON.stringify(output()));
    }
  });

  it('colours what is on the terminal alone', async (t) => {
    const program = `${process.execPath} dist/bin/client.js status --port ${await freePort()} | sed 's/^/piped: /'`;
    const { stdout } = await start(t, 'script', ['--quiet', '--command', program, '/dev/null'], COLOURED).ended;
    assert.match(stdout, /^piped: offline\r$/m);
    assert.match(stdout, /^\x1b\[31mcontrol-client: .*\x1b\[39m\r$/m);
  });
});

/** Starts a web API whose status the test sets, and watches it. */
async function startWatch(t: TestContext, reason: string = ''): Promise<{
  target: string;
  setStatus: (name: string) => void;
  /** Resolves when the first status is shown. */
  watch: (args: string[], env?: NodeJS.ProcessEnv) => Promise<Running>;
}> {
  let status = 'active';
  const { port, target } = await startWeb(t, () => ({ status, reason }));
  const watch = async (args: string[], env?: NodeJS.ProcessEnv): Promise<Running> => {
    const watching = startProgram(t, 'client', [...at(port), 'watch', ...args], env);
    await watching.shows(/\bactive\b.*\n/);
    return watching;
  };
  return { target, setStatus: (name) => (status = name), watch };
}

/** The lines of `watch --json` so far. */
function changesOf({ output }: Running): Record<string, unknown>[] {
  return linesOf(output()).map((line) => JSON.parse(line) as Record<string, unknown>);
}

/** A system in a process of its own. */
async function startChild(t: TestContext): Promise<{ port: number; child: ChildProcess; stop: () => Promise<void> }> {
  const program = `
    import { launch } from ${JSON.stringify(pathToFileURL('dist/control.js'))};
    const step = () => new Promise((end) => setTimeout(end, 1));
    const onListening = ({ port }) => console.log('port ' + port);
    launch({ step, onListening }, { webApiAddress: ['127.0.0.1', 0] });
  `;
  const { child, shows, output } = start(t, process.execPath, ['--input-type=module', '--eval', program]);
  await shows(/port \d+\n/);
  const stop = async (): Promise<void> => {
    child.kill('SIGSTOP');
    const state = (): string => spawnSync('ps', ['-o', 'stat=', '-p', `${child.pid}`], { encoding: 'utf8' }).stdout;
    await until(() => state().trim().startsWith('T'));
  };
  return { port: Number(/\d+/.exec(output())), child, stop };
}

/** Runs control-client with a terminal as its standard input, output and error. */
function onTerminal(t: TestContext, args: string[], env?: NodeJS.ProcessEnv): Running {
  const command = ['exec', process.execPath, 'dist/bin/client.js', ...args.map((arg) => `'${arg}'`)].join(' ');
  return start(t, 'script', ['--quiet', '--return', '--command', command, '/dev/null'], env);
}

function at(port: number): string[] {
  return ['--host', '127.0.0.1', '--port', `${port}`];
}

/** A web API of its own, and what it was asked. */
interface Web {
  port: number;
  /** Its address on the command line; not that of a Unix socket. */
  target: string;
  /** `POST /api/pause?by=ana`. */
  requests: string[];
  /** The `Authorization` of each request. */
  tokens: (string | undefined)[];
  /** Closes it, and cuts all connections. */
  end(): void;
}

/** What it responds to a request: a body, with its status code if that is not 200, or nothing to cut the connection. */
type Respond = (request: IncomingMessage) => object | null | Promise<object | null>;

/** Starts a web API that responds as told. Closes it at the end of the test. */
async function startWeb(
  t: TestContext,
  respond: Respond = () => ACTIVE,
  socketPath?: string,
  host: string = '127.0.0.1',
): Promise<Web> {
  const requests: string[] = [];
  const tokens: (string | undefined)[] = [];
  const server = createHttpServer(async (request, response) => {
    const { method, url, headers, socket } = request;
    const query = new URL(`${url}`, 'http://localhost').searchParams;
    requests.push(`${method} ${query.get('reason') === null ? url?.replace(/\?.*/, '') : url}`);
    tokens.push(headers.authorization);
    const body = await respond(request);
    if (body === null) return void socket.destroy();
    const { code = 200, ...fields } = body as { code?: number };
    response.writeHead(code, { 'Content-Type': 'application/json' }).end(JSON.stringify(fields));
  });
  const end = (): void => server.close().closeAllConnections();
  t.after(end);
  if (socketPath === undefined) server.listen(0, host);
  else server.listen(socketPath);
  await once(server, 'listening');
  const { port } = Object(server.address()) as AddressInfo;
  return { port, target: `${isIPv6(host) ? `[${host}]` : host}:${port}`, requests, tokens, end };
}

/** Starts a server that takes connections and never responds. */
async function startSilent(t: TestContext): Promise<{ port: number }> {
  const server = createServer((socket) => {
    socket.on('error', () => {});
    t.after(() => socket.destroy());
  }).listen(0, '127.0.0.1');
  t.after(() => server.close());
  await once(server, 'listening');
  return { port: (server.address() as AddressInfo).port };
}

/** Creates a file in a folder of its own, with the mode as it is. */
function makeFile(t: TestContext, text: string, mode: number = 0o644): string {
  const path = join(makeFolder(t), 'file');
  writeFileSync(path, text);
  chmodSync(path, mode);
  return path;
}

function run(t: TestContext, args: string[], input?: string, env?: NodeJS.ProcessEnv): Promise<Ended> {
  return runProgram(t, 'client', args, input, env);
}

function linesOf(text: string): string[] {
  return text.split('\n').slice(0, -1);
}
