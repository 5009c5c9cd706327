// Own commands of a program under control-run.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { assertHarmless, clientAt, getInfo, HOSTILE, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { exitCodeOf, killAll, processesOf } from './helpers.ts';
import { accepts, declarationsOf, HELLO, order, startListener } from './talk.ts';

const EVALUATE = { parameters: { episodes: { type: 'integer', minimum: 1, maximum: 1000, default: 100 } } };
const SET = { description: 'Sets the rate', parameters: { rate: { type: 'number' } } };

describe('control-run: own commands', {
  concurrency: 3, timeout: 300_000, skip: lacks('Linux'),
}, () => {
  it('reach the program with arguments, sender and reason, and change no status', async (t) => {
    const talk = await startListener(t);
    talk.say({ accepts: { evaluate: EVALUATE, set: SET, constructor: {} } });
    await accepts(talk, 'evaluate', 'set', 'constructor');
    assert.deepEqual(await declarationsOf(talk.port), { evaluate: EVALUATE, set: SET, constructor: {} });

    const wrong = 'evaluate: episodes must be an integer from 1 to 1000, got 5000';
    assert.deepEqual(await order(talk.port, 'evaluate', { episodes: 5000 }), [400, wrong]);
    assert.equal((await order(talk.port, 'steer'))[0], 404);

    const evaluate = order(talk.port, 'evaluate?by=ana&reason=before+lunch', { episodes: 200 });
    const id = await talk.gets('evaluate', { arguments: { episodes: 200 }, by: 'ana', reason: 'before lunch' });
    await talk.is('active');
    talk.say({ done: id, value: { meanReturn: 497.1, returns: [1, null] } });
    assert.deepEqual(await evaluate, [200, { meanReturn: 497.1, returns: [1, null] }]);

    const failing = order(talk.port, 'evaluate');
    talk.say({ failed: await talk.gets('evaluate', { arguments: { episodes: 100 } }), error: 'no environment' });
    assert.deepEqual(await failing, [500, 'evaluate failed: no environment']);

    const client = clientAt(t, { host: '127.0.0.1', port: talk.port });
    const pausing = client.request('pause', { wait: 30, by: 'ben' });
    talk.say({ done: await talk.gets('pause', { by: 'ben' }) });
    assert.equal((await pausing).ok, true);
    await talk.is('paused');
    const constructor = order(talk.port, 'constructor', {});
    const constructorId = await talk.gets('constructor', { arguments: {} });
    await talk.is('paused');
    talk.say({ done: constructorId });
    assert.deepEqual(await constructor, [200, undefined]);
    await talk.is('paused');
    assert.equal(talk.complaints(), '');
  });

  it('may be declared again; invalid declarations are reported, and the previous ones stay', async (t) => {
    const talk = await startListener(t);
    talk.say({ accepts: { evaluate: EVALUATE } });
    await accepts(talk, 'evaluate');
    const complaint = 'set.rate.type must be one of boolean, integer, number, string, got "float"';
    talk.say({ accepts: { set: { parameters: { rate: { type: 'float' } } } } });
    await until(() => talk.complaints() !== '');
    assert.equal(talk.complaints(), `control-run: sh[${talk.pid}] declares invalid commands: ${complaint}\n`);
    const before = talk.complaints();
    talk.say({ accepts: { [HOSTILE]: {} } });
    await until(() => talk.complaints().length > before.length);
    assertHarmless(talk.complaints());
    assert.equal(talk.complaints().split('\n').length, before.split('\n').length + 1);
    assert.ok(talk.complaints().length < before.length + 1200);
    for (const wrong of [7, 'set', null, [], true]) talk.say({ accepts: wrong });
    await talk.taken();
    await accepts(talk, 'evaluate');
    const first = order(talk.port, 'evaluate');
    const id = await talk.gets('evaluate', { arguments: { episodes: 100 } });
    const second = order(talk.port, 'evaluate');
    await until(async () => (await getInfo(talk.port)).commands.length === 2);
    talk.say({ accepts: { set: SET }, status: 'paused', done: id });
    assert.deepEqual(await first, [200, undefined]);
    assert.deepEqual(await second, [500, `evaluate failed: sh[${talk.pid}] no longer takes this command`]);
    await accepts(talk, 'set');
    await talk.is('paused');
    talk.say({ accepts: {} });
    await accepts(talk);
  });

  it('are gone when the program ends; a restarted program declares them again', async (t) => {
    const talk = await startListener(t, ['--restart', 'on-failure:1']);
    talk.say({ accepts: { evaluate: EVALUATE } });
    await accepts(talk, 'evaluate');
    const running = order(talk.port, 'evaluate');
    await talk.gets('evaluate', { arguments: { episodes: 100 } });
    const waiting = order(talk.port, 'evaluate', { episodes: 7 });
    await until(async () => (await getInfo(talk.port)).commands.length === 2);
    talk.say({ status: 'shutting down' });
    await talk.is('shutting down');
    killAll(processesOf(talk.running));
    assert.deepEqual(await running, [500, 'evaluate failed: the program closed CONTROL_FD']);
    const late = /^500,evaluate failed: sh\[\d+\] (has ended: SIGKILL|no longer takes this command)$/;
    assert.match(String(await waiting), late);
    await accepts(talk);
    await talk.is('active');
    assert.equal((await order(talk.port, 'evaluate'))[0], 404);
    await talk.running.shows(/ended with SIGKILL: restart 1 in 1 s\n[^]* web API at /);
    talk.say(HELLO, { accepts: { evaluate: EVALUATE } });
    await accepts(talk, 'evaluate');
    const again = order(talk.port, 'evaluate');
    await talk.running.shows(/(\{"id":1,"command":"evaluate",.*\n[^]*){2}/);
    talk.say({ done: 1, value: 'anew' });
    assert.deepEqual(await again, [200, 'anew']);
    talk.running.child.stdin?.end();
    assert.equal(await exitCodeOf(talk.running), 7);
  });
});
