// control-client log --since with --via: the far end leaves lines out, and what is printed is the same as here.

import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { it } from 'node:test';
import { makeFolder } from '../../helpers.ts';
import { oneOf, randomNumbers, SEED } from '../../module/helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { linesOf } from '../client/helpers.ts';
import { DEAD } from '../client/story.ts';
import { callVia } from './helpers.ts';

const BEGIN = Date.parse('2026-11-23T00:00:00Z');
const LOGS = 40;

/** A log of a few hours, in which the processes start, end, ask and get commands as they like. */
function logOf(random: () => number, pids: readonly number[]): string[] {
  const one = <Value>(...values: readonly Value[]): Value => oneOf(random, values);
  const lines: string[] = [];
  const running = new Set<number>();
  const pending: { pid: number; sent: object }[] = [];
  let time = BEGIN;
  const log = (pid: number, event: string, fields: object = {}): void => {
    lines.push(JSON.stringify({ time: new Date(time).toISOString(), name: 'system', pid, event, ...fields }));
  };
  const repeat = (): void => {
    const isRecent = (line: string): boolean => line.includes('"id"') && Date.parse(line.slice(9, 33)) > time - 30_000;
    lines.push(...lines.slice(-4, -1).filter(isRecent));
  };
  const say: Record<string, (pid: number) => void> = {
    end(pid) {
      log(pid, 'end', one({}, { ended: 'SIGKILL', exitCode: 137 }, { ended: 'control-run was killed' }));
      running.delete(pid);
    },
    start: (pid) => log(pid, 'start', one({ version: '0.29.0' }, { commandLine: ['train.py'] })),
    status(pid) {
      const status = one('active', 'active', 'paused', 'paused', 'pausing', 'resuming', 'shutting down');
      log(pid, 'status', { status, by: one('ana', 'ben', 'itself'), during: one('save-state', undefined, undefined) });
    },
    command(pid) {
      const command = one('pause', 'resume', 'save-state', 'shutdown', 'lr');
      const sent = { id: `${lines.length}-${pid}`, command, by: one('ana', 'ben') };
      log(pid, 'command', sent);
      pending.push({ pid, sent });
    },
    outcome() {
      const [{ pid, sent } = { pid: 0, sent: {} }] = pending.splice(Math.floor(random() * pending.length), 1);
      const result = one({ state: 'done', seconds: 1 }, { state: 'failed', error: 'no room' });
      if (running.has(pid)) log(pid, 'outcome', { ...sent, at: new Date(time).toISOString(), ...result });
    },
    ask(pid) {
      const question = { id: `${lines.length}-${pid}`, message: one('Deploy?', 'Retry?') };
      log(pid, 'ask', question);
      if (random() < 0.7) log(pid, 'answer', { ...question, state: 'done', value: true, by: 'ana' });
    },
    thread(pid) {
      log(pid, 'thread', { error: 'out of memory' });
      repeat();
    },
    lost: (pid) => log(pid, 'lost', { lines: 2, error: 'no space left on device' }),
    torn: () => void lines.push('{"time":"2026-'),
  };
  const often = ['status', 'status', 'status', 'command', 'command', 'outcome', 'outcome'];
  for (let count = 40 + random() * 60; count > 0; count -= 1) {
    time += one(10, 50, 500, 5000, 60_000, 300_000);
    const pid = one(...pids);
    const event = running.has(pid) ? one(...often, ...often, ...Object.keys(say)) : 'start';
    running.add(pid);
    say[event]?.(pid);
  }
  return lines.map((line) => `${line}\n`);
}

it('tells the same of other machines as of this one', { ...LIMIT, skip: lacks('Unix') }, async (t) => {
  t.diagnostic(`TEST_SEED=${SEED}`);
  const random = randomNumbers(SEED);
  const root = makeFolder(t);
  mkdirSync(join(root, 'control'));
  for (let index = 0; index < LOGS; index += 1) {
    const lines = logOf(random, oneOf(random, [[1, DEAD], [DEAD], [1], [1, 2]]));
    const path = join(root, 'control', `log${index}@${oneOf(random, [hostname(), hostname(), 'other'])}.jsonl`);
    const older = Math.floor(random() * lines.length);
    if (index % 2 === 0) writeFileSync(`${path}.1`, lines.slice(0, older).join(''));
    writeFileSync(path, lines.slice(index % 2 === 0 ? older : 0).join(''));
  }
  for (const [index, options] of [[], ['--json'], [], ['--json']].entries()) {
    const since = new Date(BEGIN + (index + 1) * 15 * 60_000).toISOString();
    const [here, there] = [[], ['m=env A=1']].map((vias) => {
      return callVia(vias, ['log', '--since', since, ...options], { XDG_STATE_HOME: root });
    });
    const [expected, actual] = [await here, await there];
    assert.deepEqual(actual?.stderr.replaceAll("'m:", "'"), expected?.stderr);
    const plain = (text: string = ''): string[] => {
      return linesOf(text).map((line) => line.replace(/,"machine":"m"|(?<=^.{19} {2})m\//, '').replace(/ +/g, ' '));
    };
    assert.deepEqual(plain(actual?.stdout), plain(expected?.stdout), since);
    assert.ok(plain(actual?.stdout).length > 10, since);
  }
});
