// Tools that would have nothing left to wait for but a link that has ended: none of them ends in the middle.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { makeFolder, preload, startProgram } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { startWeb } from '../../puppet.ts';
import { LIMIT, until } from '../../wait.ts';
import { openSession } from '../client/systems.ts';
import { startHelped } from '../kbctl/helpers.ts';
import { optionsOf, quote, viaFake, viaShell } from './helpers.ts';
import type { Running } from '../../helpers.ts';

const ENDED = 'sh ended with exit code 0'; // and no hint, because it has begun

/** A tool, and what it says of the machine that is lost while another one, with or without a system, connects. */
const TOOLS: readonly [line: string, code: number, said: RegExp, hasSystem?: boolean][] = [
  ['client pause --all', 5,
    new RegExp(`^b/train {2}ok\ncontrol-client: a(/train)?: (pause not sent: )?${ENDED}\n$`), true],
  ['client wait active train --timeout 5', 4, /^b\/train {2}active\ncontrol-client: a\/train: not active after/, true],
  ['console train', 1, new RegExp(`^control-console: a: ${ENDED}\n$`)],
  ['kbctl train', 1, new RegExp(`^control-kbctl: a: ${ENDED}\n$`)],
];

describe('a tool whose link ends', { ...LIMIT, concurrency: 2, skip: lacks('Unix') }, () => {
  for (const [line, code, said, hasSystem = false] of TOOLS) {
    it(`while another machine connects goes on with that one, and says so: ${line}`, async (t) => {
      const session = openSession(t);
      if (hasSystem) await session.serve('train-8');
      const flag = join(makeFolder(t), 'flag');
      const lost = viaFake(t, 'a', {
        LIST(far) {
          far.list('/far/train-7.sock');
          writeFileSync(flag, '');
          setTimeout(far.end, 200);
        },
      });
      const script = `until [ -e ${quote(flag)} ]; do sleep 0.1; done; sleep 0.5; exec "$@"`;
      const other = viaShell('b', `CONTROL_DIR=${session.env.CONTROL_DIR}; export CONTROL_DIR; ${script}`);
      const [tool = '', ...words] = line.split(' ');
      const args = [...optionsOf([lost, other]), ...words];
      const { ended } = tool === 'kbctl' ? startHelped(t, args) : startProgram(t, tool, args);
      const { code: found, stdout, stderr } = await ended;
      assert.match(stdout + stderr, said);
      assert.equal(found, code);
    });
  }

  it('reports a machine that sends what is not a frame', async (t) => {
    for (const args of [['pause', '--all', '--wait'], ['status', 'train']]) {
      let starts = 0;
      const rubbish = viaFake(t, 'm', {
        START(far) {
          starts += 1;
          if (starts === 1) far.write('\ncontrol-dial 1\n');
        },
        LIST(far) {
          far.list('/far/train-7.sock');
          far.write('not a frame\n');
        },
        OPEN() {},
      });
      const { code, stdout, stderr } = await startProgram(t, 'client', ['--via', rubbish, ...args]).ended;
      assert.match(stdout + stderr, /it sent what is not a frame/);
      assert.equal(code, 5);
    }
  });
});

describe('a tool that ends before it is done', { ...LIMIT, skip: lacks('Unix') }, () => {
  it('never ends with exit code 0', async (t) => {
    const exits = preload("process.on('SIGUSR2', () => process.exit());"); // as if nothing were left to wait for
    const web = await startWeb(t);
    const tools: [running: Running, code: number, isBusy: RegExp | (() => boolean)][] = [
      [startProgram(t, 'client', ['wait', 'offline', web.target], exits), 5, () => web.requests.length > 0],
      [startProgram(t, 'demo', ['--port', '0', '--no-log'], exits), 1, /web API at/],
      [startProgram(t, 'run', ['--port', '0', '--no-log', '--', 'sh', '-c', 'echo ready; sleep 60'], exits), 125,
        /ready\n/],
    ];
    for (const [{ child, shows, ended }, code, isBusy] of tools) {
      await (isBusy instanceof RegExp ? shows(isBusy) : until(isBusy));
      child.kill('SIGUSR2');
      assert.equal((await ended).code, code);
    }
  });
});
