// Usage errors of control-client by its environment, and its whole help; usage.txt has the command line.

import assert from 'node:assert/strict';
import { resolve } from 'node:path';
import { describe, it } from 'node:test';
import { inspect } from 'node:util';
import { VERBS } from '../../../client/verbs.ts';
import { UsageError } from '../../../shared/cli.ts';
import { createClient } from '../../../shared/client.ts';
import { helpOf } from '../../../shared/commands.ts';
import { WRONG_ACCESS } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { call, run } from './helpers.ts';

const PORT = 'must be an integer from 1 to 65535, got';
const HOST = 'must be a host name or an IP address, got';

describe('control-client refuses', LIMIT, () => {
  it('an address that is none, with the same words as other tools', async () => {
    for (const [, args, token, line] of WRONG_ACCESS) if (token === '') await refuses(['status', ...args], line);
  });

  it('an invalid address in the environment, and a folder instead of a socket', { skip: lacks('Unix') }, async () => {
    const long = `/${'x'.repeat(94)}`;
    const folder = "must be the path of a socket, not of a folder, got '/tmp/'";
    const both = 'CONTROL_SOCKET replaces CONTROL_HOST and CONTROL_PORT: give one or the other';
    const rows: [env: NodeJS.ProcessEnv, line: string][] = [
      [{ CONTROL_SOCKET: '/tmp/', CONTROL_PORT: '' }, `CONTROL_SOCKET ${folder}`],
      [{ CONTROL_HOST: 'gpu1:8391' }, `CONTROL_HOST ${HOST} 'gpu1:8391'`],
      [{ CONTROL_PORT: '0' }, `CONTROL_PORT ${PORT} '0'`],
      [{ CONTROL_PORT: '', CONTROL_SOCKET: long },
        `CONTROL_SOCKET must be at most 94 bytes long, without NUL, got ${inspect(resolve(long))}`],
      [{ CONTROL_SOCKET: '/nowhere', CONTROL_HOST: 'gpu1', CONTROL_PORT: '1' }, both],
      [{ CONTROL_SOCKET: '/nowhere', CONTROL_HOST: 'gpu1', CONTROL_PORT: '' }, both],
    ];
    for (const [env, line] of rows) await refuses(['pause'], line, env);
  });

  it('an invalid token in the environment, and does not print it', async (t) => {
    const [, args, token, line] = WRONG_ACCESS.find(([, , token]) => token !== '') ?? assert.fail();
    const ended = await run(t, ['status', ...args], '', { CONTROL_TOKEN: token });
    assert.deepEqual(ended, { code: 2, stdout: '', stderr: `control-client: ${line}\n` });
  });
});

describe('The address in the environment', { ...LIMIT, skip: lacks('Unix') }, () => {
  it('is CONTROL_HOST and CONTROL_PORT, or CONTROL_SOCKET, and options win', (t) => {
    const empty = { CONTROL_HOST: '', CONTROL_PORT: '', CONTROL_SOCKET: '' };
    t.after(() => Object.assign(process.env, empty, { CONTROL_PORT: '1' }));
    const both = { CONTROL_HOST: 'gpu1', CONTROL_PORT: '9000' };
    const rows: [options: Parameters<typeof createClient>[0], env: NodeJS.ProcessEnv, url: string][] = [
      [{}, {}, 'http://localhost:8391'],
      [{}, both, 'http://gpu1:9000'],
      [{}, { CONTROL_SOCKET: '/a' }, 'unix:/a'],
      [{ port: '1' }, { CONTROL_HOST: 'gpu1', CONTROL_PORT: 'wrong' }, 'http://gpu1:1'],
      [{ host: 'gpu2' }, { CONTROL_HOST: '/', CONTROL_PORT: '9000' }, 'http://gpu2:9000'],
      [{ host: 'gpu2', port: '1' }, { CONTROL_SOCKET: '/a' }, 'http://gpu2:1'],
      [{ port: '1' }, { CONTROL_HOST: 'gpu1', CONTROL_SOCKET: '/a' }, 'http://gpu1:1'],
      [{ host: 'gpu2' }, { CONTROL_PORT: '9000', CONTROL_SOCKET: '/a' }, 'http://gpu2:9000'],
      [{ host: '[::1]' }, {}, 'http://[::1]:8391'],
      [{ socket: '/b' }, { CONTROL_HOST: 'gpu1', CONTROL_PORT: 'wrong' }, 'unix:/b'],
      [{ socket: '/b' }, { CONTROL_SOCKET: 'x'.repeat(200) }, 'unix:/b'],
    ];
    for (const [options, env, url] of rows) {
      Object.assign(process.env, empty, env);
      assert.equal(createClient(options).baseUrl, url, JSON.stringify([options, env]));
    }
  });
});

describe('The help of control-client', LIMIT, () => {
  it('lists every command, and every word for help prints it', async () => {
    const { stdout } = await call(['help']);
    for (const entry of VERBS) assert.ok(stdout.includes(`\n${helpOf(entry)}\n`), entry.name);
    assert.doesNotMatch(stdout, /\bquit\b/, 'a command of the console');
    for (const word of ['--help', '-h', 'HELP', 'h', '?']) {
      assert.deepEqual(await call([word]), { code: 0, stdout, stderr: '' }, word);
    }
  });

  it('is printed instead of a refusal', async () => {
    const whole = await call(['--help']);
    assert.deepEqual(await call(['pasue', '--help']), whole);
    assert.deepEqual(await call(['help', '--help']), whole);
  });
});

async function refuses(args: string[], message: string, env?: NodeJS.ProcessEnv): Promise<void> {
  await assert.rejects(call(args, env), (error) => {
    assert.ok(error instanceof UsageError, `${args}: ${error}`);
    assert.equal(error.message, message);
    return true;
  });
}
