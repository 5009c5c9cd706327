// control-client and its targets: what addresses mean, and which system gets which token.

import assert from 'node:assert/strict';
import { chownSync, writeFileSync } from 'node:fs';
import { Socket } from 'node:net';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { makeFolder, TOKEN } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { type Puppet, startPuppet } from '../../puppet.ts';
import { AT_ONCE, call, linesOf, makeFile, refusal, run } from './helpers.ts';
import { startSilent } from './systems.ts';

const SUITE = { ...AT_ONCE, skip: lacks('Unix') };

it('An address has a host, or none for localhost, and a port, or none for 8391', async (t) => {
  const rows: [words: string, address: string][] = [
    ['http://gpu1', 'gpu1 8391'], ['gpu1:1', 'gpu1 1'], ['10.0.0.1', '10.0.0.1 8391'],
    ['10.0.0.1:65535', '10.0.0.1 65535'], ['::1', '::1 8391'], ['[::1]:9000', '::1 9000'],
    ['fe80::2', 'fe80::2 8391'], ['[fe80::3]', 'fe80::3 8391'], ['http://gpu2:9000', 'gpu2 9000'],
    ['http://[::1]:9001/', '::1 9001'], [':9000', 'localhost 9000'], ['localhost', 'localhost 8391'],
    ['LOCALHOST', 'localhost 8391'], ['HTTP://gpu3:9000/', 'gpu3 9000'], ['127.0.0.1', '127.0.0.1 8391'],
    ['--host gpu4', 'gpu4 8391'], ['--host [::1]', '::1 8391'], ['--host ::1 --port 9002', '::1 9002'],
    ['--port 9003', 'localhost 9003'],
  ];
  const connected: string[] = [];
  t.mock.method(Socket.prototype, 'connect', function (this: Socket, ...args: any[]) {
    const [{ host, port }] = args.flat();
    connected.push(`${String(host).toLowerCase()} ${port}`);
    setImmediate(() => this.destroy(new Error('not connected')));
    return this;
  });
  for (const [words, address] of rows) {
    await call(['status', ...words.split(' ')]);
    assert.deepEqual(new Set(connected.splice(0)), new Set([address]), words);
  }
  await call(['status', 'http://gpu1', 'gpu1:8391']);
  assert.equal(connected.length, 1, 'they are the same');
});

describe('control-client with several targets', SUITE, () => {
  it('is not delayed by targets that do not respond', async (t) => {
    const silent = await Promise.all(Array.from({ length: 34 }, () => startSilent(t)));
    const puppet = await startPuppet(t, { silent: true });
    const ended = call(['status', ...silent, puppet.target]);
    await puppet.holds('GET', 1); // it is asked while the others are silent
    puppet.set({ silent: false });
    const { code, stdout } = await ended;
    const lines = linesOf(stdout);
    assert.equal(code, 5);
    assert.ok(lines[0]?.endsWith('  active'), stdout);
    assert.equal(lines.filter((line) => line.includes('  no answer: ')).length, 34);
  });
});

describe('control-client and tokens', SUITE, () => {
  it('sends CONTROL_TOKEN, the token in CONTROL_TOKEN_FILE, or that in the token file of a target', async (t) => {
    const other = 'another-token-for-tests';
    const puppets = await Promise.all([1, 2, 3].map(() => startPuppet(t)));
    const [a, b, c] = puppets as [Puppet, Puppet, Puppet];
    const file = makeFile(t, `${b.target} token-file=secret b.token # with a space\n${c.target}\n`);
    writeFileSync(join(file, '../secret b.token'), `${other}\r\n`, { mode: 0o600 });
    const sent = (): (string | undefined)[] => puppets.flatMap(({ tokens }) => tokens.splice(0));
    const { code, stderr } = await run(t, ['status', a.target, '--targets', file], '', { CONTROL_TOKEN: TOKEN });
    assert.deepEqual([code, stderr], [0, '']);
    assert.deepEqual(sent(), [`Bearer ${TOKEN}`, `Bearer ${other}`, `Bearer ${TOKEN}`]);
    await call(['status', b.target, '--targets', file]);
    assert.deepEqual(sent(), [`Bearer ${other}`, undefined], 'also if the target is on the command line');
    for (const text of [`${TOKEN}\n`, `\ufeff${TOKEN}\r\n`, `\ufeff${TOKEN}`]) { // two of them from Windows
      const env = { CONTROL_TOKEN_FILE: makeFile(t, text, 0o600) };
      await call(['status', '--host', '127.0.0.1', '--port', `${a.port}`], env);
      await call(['status', b.target, c.target], env);
      assert.deepEqual(sent(), Array(3).fill(`Bearer ${TOKEN}`));
    }
    await call(['status', a.target], { CONTROL_TOKEN_FILE: '' });
    assert.deepEqual(sent(), [undefined]);
    const both = await run(t, ['status', a.target], '', { CONTROL_TOKEN: TOKEN, CONTROL_TOKEN_FILE: '/nowhere/x' });
    const line = 'control-client: CONTROL_TOKEN and CONTROL_TOKEN_FILE are both set: set one or the other\n';
    assert.deepEqual(both, { code: 2, stdout: '', stderr: line });
  });

  it('takes targets from standard input, but no token files', async (t) => {
    const { target, requests } = await startPuppet(t);
    const ended = await run(t, ['status', '--targets', '-'], `# one\n${target}`);
    assert.deepEqual(ended, { code: 0, stdout: `${target}  active\n`, stderr: '' });
    requests.splice(0);
    const rule = 'token-file= is only for a file that --targets names';
    const { code, stderr } = await run(t, ['pause', '--targets', '-'], `${target}\n${target} token-file=/nowhere/x\n`);
    const expected = `control-client: line 2 of standard input: ${rule}, got '/nowhere/x'\n`;
    assert.deepEqual([code, stderr, requests], [2, expected, []]);
  });

  it('refuses a file that is not for this user only, or holds no token, and never prints its content', async (t) => {
    const { target, requests } = await startPuppet(t);
    const refuses = async (path: string, message: string): Promise<void> => {
      assert.deepEqual(await call(['pause', target], { CONTROL_TOKEN_FILE: path }), refusal(message));
      const file = makeFile(t, `${target} token-file=${path}`);
      assert.deepEqual(await call(['pause', '--targets', file]), refusal(`line 1 of ${file}: ${message}`));
    };
    const texts: [text: string, got: string][] = [
      ['', '0'], ['short', '5'], [`${TOKEN} ${TOKEN}`, 'other characters'], [`${TOKEN}\n\n`, 'other characters'],
      ['x'.repeat(1025), '1025'],
    ];
    for (const [text, got] of texts) {
      const path = makeFile(t, text, 0o600);
      const form = 'a string of 16 to 1024 visible ASCII characters';
      await refuses(path, `the token in '${path}' must be ${form}, got ${got}`);
    }
    const folder = makeFolder(t);
    await refuses(folder, `cannot use the token file '${folder}': it is not a file`);
    for (const mode of [0o666, 0o620, 0o602]) {
      const path = makeFile(t, TOKEN, mode);
      await refuses(path, `cannot use the token file '${path}': others can write to it; chmod go-w '${path}'`);
    }
    if (lacks('root') === false) {
      const [list, token] = [makeFile(t, target, 0o600), makeFile(t, TOKEN, 0o600)];
      for (const path of [list, token]) chownSync(path, 12345, 12345);
      await refuses(token, `cannot use the token file '${token}': it belongs to another user`);
      const message = `cannot use the targets file '${list}': it belongs to another user`;
      assert.deepEqual(await call(['pause', '--targets', list]), refusal(message));
    }
    const short = refusal('CONTROL_TOKEN must be a string of 16 to 1024 visible ASCII characters, got 6');
    assert.deepEqual(await run(t, ['pause', target], '', { CONTROL_TOKEN: 'secret' }), short);
    assert.deepEqual(requests, []);
  });

  it('warns once about a token file that other users can read', async (t) => {
    const [one, other] = [await startPuppet(t), await startPuppet(t)];
    const warning = (path: string): string => {
      return `control-client: others can read the token file '${path}'; chmod go-r '${path}'\n`;
    };
    for (const mode of [0o640, 0o604]) {
      const path = makeFile(t, TOKEN, mode);
      const targets = makeFile(t, [one, other].map(({ target }) => `${target} token-file=${path}\n`).join(''));
      const ended = await call(['status', '--targets', targets]);
      assert.deepEqual([ended.code, ended.stderr], [0, warning(path)]);
    }
    const path = makeFile(t, TOKEN, 0o640);
    const { stderr } = await call(['status', one.target, other.target], { CONTROL_TOKEN_FILE: path });
    assert.equal(stderr, warning(path));
  });
});
