// Usage errors of control-client by its environment, and what that is for; usage.txt has the command line.

import assert from 'node:assert/strict';
import { resolve } from 'node:path';
import { describe, it } from 'node:test';
import { inspect } from 'node:util';
import { UsageError } from '../../../shared/cli.ts';
import { makeSocketPath, WRONG_ACCESS } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { startPuppet } from '../../puppet.ts';
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
  it('is CONTROL_HOST and CONTROL_PORT, or CONTROL_SOCKET; options and targets win', async (t) => {
    const [path, other] = [makeSocketPath(t), makeSocketPath(t)];
    const active = await startPuppet(t);
    const paused = await startPuppet(t, { status: 'paused' });
    await startPuppet(t, { status: 'pausing' }, { socketPath: path });
    await startPuppet(t, { status: 'resuming' }, { socketPath: other });
    const [port, itsPort, host] = [`${active.port}`, `${paused.port}`, '127.0.0.1'];
    const rows: [args: string[], env: NodeJS.ProcessEnv, shown: string][] = [
      [[], { CONTROL_HOST: host, CONTROL_PORT: port }, 'active'],
      [[], { CONTROL_PORT: port }, 'active'],
      [[], { CONTROL_SOCKET: path }, 'pausing'],
      [['--port', itsPort], { CONTROL_HOST: host, CONTROL_PORT: 'wrong' }, 'paused'],
      [['--host', host], { CONTROL_HOST: '/', CONTROL_PORT: port }, 'active'],
      [['--host', host, '--port', itsPort], { CONTROL_SOCKET: path }, 'paused'],
      [['--port', itsPort], { CONTROL_HOST: host, CONTROL_SOCKET: path }, 'paused'],
      [['--host', host], { CONTROL_PORT: port, CONTROL_SOCKET: path }, 'active'],
      [['--socket', other], { CONTROL_HOST: host, CONTROL_PORT: 'wrong' }, 'resuming'],
      [['--socket', other], { CONTROL_SOCKET: 'x'.repeat(200) }, 'resuming'],
      [[paused.target], { CONTROL_HOST: '/', CONTROL_PORT: 'wrong', CONTROL_SOCKET: 'x'.repeat(200) },
        `${paused.target}  paused`],
    ];
    const empty = { CONTROL_HOST: '', CONTROL_PORT: '', CONTROL_SOCKET: '' };
    for (const [args, env, shown] of rows) {
      const ended = await call(['status', ...args], { ...empty, ...env });
      assert.deepEqual(ended, { code: 0, stdout: `${shown}\n`, stderr: '' }, JSON.stringify([args, env]));
    }
  });
});

async function refuses(args: string[], message: string, env?: NodeJS.ProcessEnv): Promise<void> {
  await assert.rejects(call(args, env), (error) => {
    assert.ok(error instanceof UsageError, `${args}: ${error}`);
    assert.equal(error.message, message);
    return true;
  });
}
