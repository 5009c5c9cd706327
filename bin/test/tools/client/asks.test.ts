// control-client answer with a real server, and --exec for questions; questions.txt has the rest.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { assertHarmless, HARMLESS, HOSTILE, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { startPuppet } from '../../puppet.ts';
import { LIMIT, until } from '../../wait.ts';
import { at, call, watch } from './helpers.ts';

const SUITE = { ...LIMIT, skip: lacks('Unix') };

describe('control-client answer', SUITE, () => {
  it('exits with 1 and the sentence of the server if somebody was faster, and never answers another one', async (t) => {
    const { server, port, client } = await startServer(t);
    const idOf = async (): Promise<string> => `${(await client.getInfo())?.asks?.[0]?.id}`;
    const answer = (...args: string[]) => call([...at(port), 'answer', ...args]);
    const asked = server.ask('Delete 3 branches?');
    const id = await idOf();
    const sent = await Promise.all(['ana', 'ben'].map((sender) => answer(id, '--yes', '--by', sender)));
    const { arguments: given, by } = await asked;
    assert.deepEqual([given, sent.map(({ code }) => code).sort()], [{ approved: true }, [0, 1]]);
    const late = { code: 1, stdout: '', stderr: `control-client: ${by} has answered ${id}\n` };
    assert.deepEqual(sent.find(({ code }) => code === 1), late);
    void server.ask('Delete all branches?');
    for (const args of [['--yes'], ['approved=false'], ['x=1'], []]) assert.deepEqual(await answer(id, ...args), late);
    const next = await idOf();
    assert.match(next, /^\w{3}-q2$/);
    const unknown = await answer('zzz-q9', '--yes');
    assert.equal(unknown.stderr, `control-client: There is no question zzz-q9: open are ${next}\n`);
    server.withdrawQuestions();
    assert.equal((await answer(next, '--yes')).stderr, `control-client: ${next} was withdrawn\n`);
    assert.match((await answer('--yes')).stderr, /: no question is open\n$/);
  });

  it('refuses one without an id until it has been open for 3 s', async (t) => {
    const { server, port } = await startServer(t);
    const begun = performance.now();
    const asked = server.ask('Delete main?');
    await until(async () => {
      const { code, stderr } = await call([...at(port), 'answer', '--yes', '--by', 'ana']);
      const changed = /, because the questions have just changed: open are \w{3}-q1 \(Delete main\?\)\n$/;
      if (code !== 0) assert.match(stderr, changed);
      return code === 0;
    });
    assert.ok(performance.now() - begun > 2900);
    assert.equal((await asked).by, 'ana');
  });
});

describe('control-client watch --exec', SUITE, () => {
  it('runs the command for each question with --on ask, also when it is asked again', async (t) => {
    const listed = (id: string, message: string): object => ({ id, message, parameters: {} });
    const withdrawn = { id: 'k3f-q1', command: 'answer', state: 'failed', message: 'Ready?', error: 'withdrawn' };
    const { target, set, end } = await startPuppet(t, { asks: [listed('k3f-q1', 'Ready?')], commands: [] });
    const command = 'echo "<$CONTROL_QUESTION|$CONTROL_STATUS|$CONTROL_TARGET>"';
    const { output, shows } = watch(t, [target, '--exec', command, '--on', 'offline,ask']);
    const other = watch(t, [target, '--exec', command]);
    await Promise.all([shows(/^<Ready\?\|active\|127.0.0.1:\d+>\n/m), other.shows(/asks: Ready\?/)]);
    set({ asks: [listed('k3f-q2', 'Ready?'), listed('k3f-q3', HOSTILE)], commands: [withdrawn] });
    await Promise.all([shows(/^<PW /m), other.shows(/asks: PW/)]);
    end();
    await Promise.all([shows(/^<\|offline\|/m), other.shows(/^<\|offline\|/m)]);
    assertHarmless(output());
    const ran = (text: string): string[] => text.match(/(?<=^<)[^|]{0,40}(?=.*\|.*>$)/gm) ?? [];
    assert.deepEqual(ran(output()), ['Ready?', 'Ready?', HARMLESS.slice(0, 40), '']);
    assert.deepEqual(ran(other.output()), [''], 'without --on, it runs for statuses only');
  });
});
