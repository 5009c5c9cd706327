// Tools that would have nothing left to wait for but a link that has ended: none of them ends in the middle.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { makeFolder, preload, startProgram } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { startHelped } from '../kbctl/helpers.ts';
import { openSession, startWeb } from '../client/systems.ts';
import { quote, reach, viaProgram, viaShell } from './helpers.ts';
import type { TestContext } from 'node:test';
import type { Running } from '../../helpers.ts';
import type { Session } from '../client/systems.ts';

const NO_FRAME = 'it sent what is not a frame';

/**
 * The value of --via for a far end that lists a system and then ends. Started again, it never says hello.
 *
 * @param end Its last statements.
 * @param flag The path of a file that is there from then on.
 */
function viaLost(t: TestContext, label: string, end: string, flag: string = join(makeFolder(t), 'flag')): string {
  return viaProgram(t, label, `
    const { existsSync, writeFileSync } = require('node:fs');
    if (!existsSync('${flag}')) stdout.write(HELLO);
    onFrame.LIST = () => {
      list('/far/train-7.sock');
      writeFileSync('${flag}', '');
      ${end}
    };`);
}

/** The values of --via for a machine `a` that is lost while `b` still connects. */
function viaPair(t: TestContext, session: Session): string[] {
  const flag = join(makeFolder(t), 'flag');
  const enter = `CONTROL_DIR=${session.env.CONTROL_DIR} exec "$@"`;
  return [
    viaLost(t, 'a', 'setTimeout(() => process.exit(7), 200);', flag),
    viaShell('b', `until [ -e ${quote(flag)} ]; do sleep 0.1; done; sleep 0.5; ${enter}`),
  ];
}

describe('a tool whose link ends', { ...LIMIT, concurrency: 4, skip: lacks('Unix') }, () => {
  for (const [args, code, request] of [
    [['pause', '--all'], 5, 'POST /api/pause'],
    [['shutdown', 'train', '--json'], 5, 'POST /api/shutdown'],
    [['status', 'b/train', 'a/train'], 5, 'GET /api/status'],
    [['wait', 'active', 'train', '--timeout', '5'], 4, 'GET /api/info'],
  ] as const) {
    it(`while another machine connects serves that one, and says so: ${args.join(' ')}`, async (t) => {
      const session = openSession(t);
      const { requests } = await session.serve('train-8');
      const ended = await reach(t, viaPair(t, session), args);
      assert.equal(ended.code, code, JSON.stringify(ended));
      assert.match(ended.stdout, /^b\/train {2}|"b\/unix:/m);
      assert.match(ended.stdout + ended.stderr, /^(a\/train +no answer|control-client: a(\/train)?): /m);
      assert.ok(requests.includes(request), requests.join());
    });
  }

  for (const args of [
    ['pause', '--all', '--wait'], ['resume', 'm/train', '--mine'], ['answer', '--yes', '--all'], ['status', 'train'],
    ['run', 'evaluate', 'train'], ['pause', 'typo'],
  ]) {
    it(`reports a machine that sends what is not a frame: ${args.join(' ')}`, async (t) => {
      const ended = await reach(t, [viaLost(t, 'm', "stdout.write('not a frame\\n');")], args);
      const isTold = ended.code === 5 && (ended.stdout + ended.stderr).includes(NO_FRAME);
      const isTypo = args.includes('typo') && ended.code === 2 && /no system 'typo' on m/.test(ended.stderr); // by then
      assert.ok(isTold || isTypo, JSON.stringify(ended));
    });
  }

  for (const tool of ['console', 'kbctl'] as const) {
    it(`reports a system that was on the machine: control-${tool}`, async (t) => {
      const args = [...viaPair(t, openSession(t)).flatMap((one) => ['--via', one]), 'train'];
      const { ended } = tool === 'kbctl' ? startHelped(t, args) : startProgram(t, tool, args);
      const { code, stdout, stderr } = await ended;
      assert.deepEqual([code, stdout], [1, '']);
      assert.match(stderr, new RegExp(`^control-${tool}: a: .* ended with exit code 7\n$`));
    });
  }
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
