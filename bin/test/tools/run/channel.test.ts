// Programs that take commands on CONTROL_FD, also their own, and follow the protocol or violate it.

import assert from 'node:assert/strict';
import { mkdirSync, rmSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { assertHarmless, getInfo, HOSTILE, makeFolder, perform } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import {
  exitCodeOf, killAll, processesOf, PYTHON, shell, showsDetail, showsRun, startRun, stateOf, tryRead,
} from './helpers.ts';
import {
  accepts, declarationsOf, HELLO, order, RELAY, SEVERAL_GRACES_MS, startListener, startTalk, talks,
} from './talk.ts';
import type { StartedRun } from './helpers.ts';

const FRESH_MS = 200; // twice the age that a detail may have
const suite = { ...LIMIT, concurrency: 3 };

const EVALUATE = { parameters: { episodes: { type: 'integer', minimum: 1, maximum: 1000, default: 100 } } };
const SET = { description: 'Sets the rate', parameters: { rate: { type: 'number' } } };

/** Returns the latest command, its state, and its value or error. */
async function latestOf({ port }: StartedRun): Promise<unknown> {
  const { commands } = await getInfo(port);
  const { command, state, value, error } = commands.at(-1) ?? assert.fail();
  return [command, state, value ?? error];
}

/** Returns a line of a given length, newline not counted. */
function lineOf(length: number, status: string): string {
  return `${`{"status":"${status}","x":"`.padEnd(length - 2, 'x')}"}\n`;
}

/** Invalid lines, which change nothing. */
const INVALID: string[] = [
  'epoch 12', '{"status":"paused"', '', '"paused"', '7', 'null', '[{"status":"paused"}]', '{}', '{"state":"paused"}',
  '{"stack":7}', '{"value":7}', '{"error":"x"}', '{"status":"sleeping"}', '{"status":"offline"}', '{"status":"PAUSED"}',
  '{"status":3}', '{"status":null}', '{"status":"paused"}{"status":"paused"}', '{"status":"paused","detail":7}',
  '{"detail":[1]}', '{"detail":null}', '{"detail":{"loss":NaN}}', '{"done":1}', '{"failed":1,"error":"x"}',
  '{"done":0}', '{"done":-1}', '{"done":"1"}', '{"failed":0.5}', '{"done":null}', '{"done":true}',
  '{"__proto__":{"status":"paused"}}', '{"id":1,"command":"shutdown"}', "{'status': 'paused'}",
  '{"status":"paus\xff"}', '\ufeff{"status":"paused"}', '\0',
];

describe('control-run: lines of a program on CONTROL_FD', {
  ...suite, skip: lacks('Linux'),
}, () => {
  it('are understood', async (t) => {
    const talk = await startListener(t, ['--grace', '1000']);

    await t.test('as outcomes or statuses, which complete one command at a time', async () => {
      const [pause, save, resume] = (['pause', 'save-state', 'resume'] as const).map((one) => perform(talk.port, one));
      await talk.gets('pause');
      await talk.is('pausing');
      talk.say({ status: 'active' }, { status: 'pausing' }, { status: 'resuming' });
      await talk.taken();
      await talk.is('pausing');
      assert.doesNotMatch(talk.running.output(), /"id":2/);
      talk.say({ status: 'paused' });
      assert.deepEqual(await pause, [200, undefined]);
      talk.say({ done: await talk.gets('save-state'), value: 'ckpt/12.pt' });
      assert.deepEqual(await save, [200, 'ckpt/12.pt']);
      await talk.is('resuming');
      talk.say({ done: await talk.gets('resume') });
      assert.deepEqual(await resume, [200, undefined]);
      await talk.is('active');
      for (const error of ['GPU busy', undefined]) {
        const failing = perform(talk.port, 'pause');
        talk.say({ failed: await talk.gets('pause'), error });
        assert.deepEqual(await failing, [500, `pause failed: ${error ?? 'the program gave no reason'}`]);
        await talk.is('active');
      }
    });

    await t.test('as statuses without a command, and as several things in one line', async () => {
      for (const status of ['active', 'pausing', 'paused', 'resuming', 'shutting down', 'paused']) {
        talk.say({ status });
        await talk.is(status);
      }
      assert.deepEqual(await perform(talk.port, 'pause'), [200, undefined], 'already paused');
      const resume = perform(talk.port, 'resume');
      const id = await talk.gets('resume');
      talk.say({ done: id, status: 'active', detail: { epoch: 2 }, value: 'x', unknown: [1] });
      assert.deepEqual(await resume, [200, 'x']);
      await showsDetail(talk, { epoch: 2 });
      await talk.is('active');
    });

    await t.test('as outcomes of completed commands, which change nothing', async () => {
      const first = perform(talk.port, 'save-state');
      const id = await talk.gets('save-state');
      talk.say({ done: id, value: 'first' }, { done: id, value: 'again' }, { failed: id, error: 'late' });
      assert.deepEqual(await first, [200, 'first']);
      const second = perform(talk.port, 'save-state');
      await talk.gets('save-state');
      talk.say({ done: id, value: 'old' }, { failed: id, error: 'old' });
      await talk.taken();
      assert.deepEqual(await latestOf(talk), ['save-state', 'running', undefined]);
      talk.say({ done: id + 1, failed: id + 1, value: 'x', error: 'both' });
      assert.deepEqual(await second, [500, 'save-state failed: both']);
    });

    await t.test('as values of any type, and errors that are texts', async () => {
      const none = 'the program gave no reason';
      const failed = (error: string): [number, string] => [500, `save-state failed: ${error}`];
      for (const [outcome, json, expected] of [
        ['value', '-0.5e3', [200, -500]], ['value', 'null', [200, undefined]],
        ['value', '{"loss":0.3,"best":[{}]}', [200, { loss: 0.3, best: [{}] }]],
        ['value', `["${'x'.repeat(4093)}"]`, [200, undefined]],
        ['value', `${'['.repeat(30_000)}${']'.repeat(30_000)}`, [200, undefined]],
        ['value', `"${'x'.repeat(2000)}"`, [200, 'x'.repeat(1000)]],
        ['error', '28', failed('28')], ['error', '{"toString":1,"valueOf":1}', failed(none)],
        ['error', `"${'x'.repeat(2000)}"`, failed('x'.repeat(1000))],
        ['error', `${'['.repeat(30_000)}${']'.repeat(30_000)}`, failed(none)],
      ] as const) {
        const save = perform(talk.port, 'save-state');
        const id = await talk.gets('save-state');
        talk.say(`{"${outcome === 'value' ? 'done' : 'failed'}":${id},"${outcome}":${json}}\n`);
        assert.deepEqual(await save, expected, json.slice(0, 100));
      }
    });

    await t.test('as outcomes that fail their command because they are invalid', async () => {
      for (const [value, what] of [
        ['NaN', 'an invalid line: {"done":ID,"value":NaN}'], [`"${'x'.repeat(70_000)}"`, 'a line longer than 64 KiB'],
        [`"${'x'.repeat(300_000)}"`, 'a line longer than 64 KiB'],
      ] as const) {
        const save = perform(talk.port, 'save-state');
        const id = await talk.gets('save-state');
        talk.say(`{"done":${id - 1},"value":${value}}\n`, `{"done":${id + 1},"value":${value}}\n`);
        await talk.taken();
        assert.equal((await getInfo(talk.port)).commands.at(-1)?.state, 'running', 'the other ids change nothing');
        talk.say(`{"done":${id},"value":${value}}\n`);
        const error = `save-state failed: the program wrote ${what.replace('ID', `${id}`)}`;
        assert.deepEqual(await save, [500, error]);
      }
    });

    await t.test('with CRLF, spaces, and split or invalid characters', async () => {
      const details = '{"detail" : {"epoch":3}}\r\n {"detail":{"note":"ä€😀#"}}\r\n';
      const bytes = Buffer.from(details).map((byte) => (byte === 0x23 ? 0xff : byte));
      const middle = bytes.indexOf(0xf0) + 2; // of the emoji
      talk.say(Buffer.from(bytes.subarray(0, middle)));
      await showsDetail(talk, { epoch: 3 });
      talk.say(Buffer.from(bytes.subarray(middle)), '{"status":"paused"} \r\n');
      await showsDetail(talk, { note: 'ä€😀\ufffd' });
      await talk.is('paused');
    });

    await t.test('as an end instead of an outcome', async () => {
      const shutdown = perform(talk.port, 'shutdown');
      await talk.gets('shutdown');
      talk.running.child.stdin?.end();
      assert.deepEqual(await shutdown, [200, 'exit code 7']);
      assert.equal(await exitCodeOf(talk.running), 7);
    });

    assert.match(talk.complaints(), /^control-run: sh\[\d+\] wrote an invalid line: .*"value":NaN\} to CONTROL_FD\n$/);
  });

  it('change nothing if they are invalid; the first one is reported and cannot clear the terminal', async (t) => {
    const talk = await startTalk(t);
    talk.say(`${HOSTILE.replaceAll(/[\r\n]/g, '')}${'y'.repeat(60_000)}\n`);
    for (const line of INVALID) talk.say(`${line}\n`);
    await until(() => talk.complaints() !== '');
    assert.deepEqual(await perform(talk.port, 'pause'), [200, undefined]);
    await talk.is('paused');
    assert.equal(stateOf(talk.pid), 'T', 'it does not take commands itself yet');
    assert.deepEqual(await perform(talk.port, 'resume'), [200, undefined]);
    talk.say({ detail: { epoch: 1, [HOSTILE]: HOSTILE } });
    await showsDetail(talk, { epoch: 1, [HOSTILE]: HOSTILE });
    const save = perform(talk.port, 'save-state');
    const id = await talk.gets('save-state');
    for (const line of INVALID) if (!/"(done|failed)":1/.test(line)) talk.say(`${line}\n`);
    talk.say({ done: id + 1, value: 'future' }, { failed: 99 });
    await talk.taken();
    await talk.is('active');
    assert.deepEqual(await latestOf(talk), ['save-state', 'running', undefined]);
    talk.say({ done: id });
    assert.deepEqual(await save, [200, undefined]);
    const { commands } = await getInfo(talk.port);
    assert.deepEqual(commands.map(({ command }) => command), ['pause', 'resume', 'save-state']);
    const complaint = /^control-run: sh\[\d+\] wrote an invalid line: PW \]0;title .*\n$/;
    assert.match(talk.complaints(), complaint);
    assertHarmless(talk.complaints());
    assert.ok(talk.complaints().length < 1000, `one line of a terminal or two, got ${talk.complaints().length}`);
  });

  it("keep their own names, except 'run', which is reported once", async (t) => {
    const talk = await startListener(t);
    const detail = { gpu: 0.93, state: 'warmup', ended: false, processes: 8, 'CPU seconds': 'many' };
    for (const run of [7, { pid: 1, canSave: 0 }]) {
      talk.say({ detail: { ...detail, run } });
      await showsDetail(talk, detail);
      const shown = await showsRun(talk, { pid: talk.pid, processes: 3, canSave: true });
      assert.deepEqual([shown['gpu'], shown['state'], shown['ended']], [undefined, undefined, undefined]);
    }
    const complaint = "reports a field 'run', which is replaced: it is reserved for control-run";
    assert.equal(talk.complaints(), `control-run: sh[${talk.pid}] ${complaint}\n`);
  });

  it('have room beside everything that control-run adds', async (t) => {
    const folder = join(makeFolder(t), 'disk');
    mkdirSync(folder);
    const options = ['--restart', 'on-failure', '--state', join(folder, 'state.json'), '--save-command', 'true'];
    const note = 'x'.repeat(3000 - '{"note":""}'.length);
    const script = `echo "{\\"detail\\":{\\"note\\":\\"$1\\"}}" >&3
      read -r pause <&3; echo '{"status":"paused"}' >&3; exec 3>&-; exec sleep 98765`;
    const foxes = '\u{1f98a}'.repeat(300);
    const run = await startRun(t, options, ['env', `FOX=${foxes}`, ...shell(script, note)]);
    await showsDetail(run, { note });
    process.kill(run.pid, 'SIGKILL');
    await run.running.shows(/(web API [^]*){2}/);
    await showsDetail(run, { note });
    rmSync(folder, { recursive: true });
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    await sleep(FRESH_MS);
    await showsDetail(run, { note });
    let shown: Record<string, unknown> = {};
    await until(async () => {
      shown = await showsRun(run, { restarts: 1, 'last end': 'SIGKILL', canSave: true });
      return /^not written: ENOENT/.test(String(shown['state']));
    }, () => JSON.stringify(shown));
    const least = `env FOX=${foxes}`.slice(0, 'env FOX='.length + 2 * 92);
    assert.equal(shown['command'], `${least}…`, '100 characters, not 200');
  });

  it('have limits, and change nothing beyond them, however they arrive', async (t) => {
    const talk = await startTalk(t);
    const note = 'x'.repeat(3000 - '{"epoch":5,"note":""}'.length);
    for (const one of [note, 'x'.repeat(note.length % 3) + '€'.repeat(note.length / 3)]) {
      talk.say({ detail: { epoch: 5, note: one }, more: note });
      await showsDetail(talk, { epoch: 5, note: one });
    }
    const sums = Array<number>(130).fill(1e20); // 22 bytes each, with the comma
    const escapes = '\\u0062'.repeat(40);
    talk.say(`{"detail":{"epoch":6,"sums":[${sums.map(() => '1e20').join()}],"\\u0061":"${escapes}"}}\n`);
    await showsDetail(talk, { epoch: 6, sums, a: 'b'.repeat(40), note: undefined });
    talk.say('{"detail":{"epoch":7,"__proto__":{"pid":1},"constructor":1,"toJSON":2}}\n');
    await showsDetail(talk, { epoch: 7, constructor: 1 });
    talk.say(lineOf(65_536, 'paused'));
    await talk.is('paused');
    for (const length of [65_537, 131_073, 1_000_000]) {
      talk.say(lineOf(length, 'resuming'), { detail: { length } });
      await showsDetail(talk, { length });
      await talk.is('paused');
    }
    talk.say('{"status":"resuming"}'.repeat(20_000)); // without a newline
    talk.say('\n', { detail: { epoch: 9, note: `${note}x` } }, { detail: { epoch: 9, note: '€'.repeat(1000) } });
    talk.say(`{"detail":{"epoch":9,"sums":[${Array(140).fill('1e20').join()}]}}\n`); // 140 × 22 bytes
    talk.say(`{"detail":{"epoch":9,"deep":${'['.repeat(30_000)}${']'.repeat(30_000)}}}\n`);
    talk.say({ status: 'active' });
    await talk.is('active');
    await sleep(FRESH_MS);
    await showsDetail(talk, { epoch: undefined, length: 1_000_000 });
    assert.match(talk.complaints(), /^control-run: sh\[\d+\] wrote a line longer than 64 KiB to CONTROL_FD\n$/);
  });

  it('may come as a flood, without filling the memory', async (t) => {
    const lines = ['{"status":"active"}', '{"detail":{"epoch":1,"note":"flood"}}', 'a line of a log '.repeat(20)];
    const script = `echo '{"detail":{"epoch":0}}' >&3; exec yes '${lines.join('\n')}' >&3`;
    const talk = await startTalk(t, ['--force-stop', '0.1'], script);
    await talks(talk);
    assert.deepEqual(await perform(talk.port, 'pause'), [200, 'stopped by SIGSTOP']);
    for (let count = 0; count < 3; count += 1) await talk.is('paused');
    assert.equal(stateOf(talk.pid), 'T');
    const memory = Number(/^VmRSS:\s+(\d+)/m.exec(tryRead(`/proc/${talk.running.child.pid}/status`))?.[1]);
    assert.ok(memory < 250_000, `${memory} KiB`);
    assert.deepEqual(await perform(talk.port, 'resume'), [200, undefined], 'it reports that it is active');
    talk.running.child.kill('SIGTERM');
    assert.equal(await exitCodeOf(talk.running), 128 + 15);
    assert.equal(talk.complaints().match(/ to CONTROL_FD\n/g)?.length ?? 1, 1, talk.complaints());
  });
});

describe('control-run: a program on CONTROL_FD', { ...suite, skip: lacks('Linux') }, () => {
  it('has any time for a pause or resume until one of the four commands has waited for --grace', async (t) => {
    const talk = await startListener(t);
    talk.say({ accepts: { evaluate: {} } });
    await accepts(talk, 'evaluate');
    const [first, second] = [order(talk.port, 'evaluate'), order(talk.port, 'evaluate')];
    const firstId = await talk.gets('evaluate', { arguments: {} });
    await until(async () => (await getInfo(talk.port)).commands.length === 2);
    const pause = perform(talk.port, 'pause');
    await until(async () => (await getInfo(talk.port)).commands.length === 3);
    talk.say({ done: firstId });
    await talk.gets('pause');
    assert.deepEqual(await Promise.race([first, second]), [200, undefined]);
    await sleep(SEVERAL_GRACES_MS); // only an own command waits
    assert.deepEqual(await latestOf(talk), ['pause', 'running', undefined]);
    const resume = perform(talk.port, 'resume');
    assert.deepEqual(await pause, [200, 'stopped by SIGSTOP']);
    const stopped = [500, `evaluate failed: sh[${talk.pid}] is stopped: resume it first`];
    assert.deepEqual((await Promise.all([first, second])).sort(), [[200, undefined], stopped]);
    const id = await talk.gets('resume');
    const save = perform(talk.port, 'save-state');
    assert.deepEqual(await resume, [500, `resume failed: sh[${talk.pid}] did not respond within 0.3 s`]);
    const saveId = await talk.gets('save-state');
    await talk.is('active');
    talk.say({ failed: id, error: 'late' });
    await talk.taken();
    await talk.is('active');
    talk.say({ done: saveId, value: 'saved' });
    assert.deepEqual(await save, [200, 'saved']);
    assert.equal(talk.complaints(), '');
  });

  for (const [command, error] of [['save-state', 'did not respond within 0.3 s'], ['shutdown', null]] as const) {
    it(`has any time for a ${command} until a signal arrives, and then --grace`, async (t) => {
      const talk = await startListener(t);
      const saving = perform(talk.port, command);
      await talk.gets(command);
      const others = ['pause', 'shutdown'] as const;
      const waiting = others.map((other) => perform(talk.port, other).catch(() => null)); // they may not arrive
      await sleep(SEVERAL_GRACES_MS);
      assert.equal((await getInfo(talk.port)).commands[0]?.state, 'running');
      talk.running.child.kill('SIGTERM');
      const outcome = error === null ? [200, 'SIGTERM'] : [500, `${command} failed: sh[${talk.pid}] ${error}`];
      assert.deepEqual(await saving, outcome);
      assert.equal((await talk.running.ended).code, 128 + 15);
      await Promise.all(waiting);
    });
  }

  it('is stopped after --force-stop, and receives pause and resume in order once it continues', async (t) => {
    const talk = await startListener(t, ['--force-stop', '0.3', '--grace', '60']);
    talk.say({ accepts: { evaluate: {} } });
    await accepts(talk, 'evaluate');
    assert.deepEqual(await perform(talk.port, 'pause'), [200, 'stopped by SIGSTOP']);
    await talk.is('paused');
    assert.equal(stateOf(talk.pid), 'T');
    const stopped = `save-state failed: sh[${talk.pid}] is stopped and cannot save: resume it first`;
    assert.deepEqual(await perform(talk.port, 'save-state'), [500, stopped]);
    const own = `evaluate failed: sh[${talk.pid}] is stopped: resume it first`;
    assert.deepEqual(await order(talk.port, 'evaluate'), [500, own]);
    assert.deepEqual(await perform(talk.port, 'pause'), [200, undefined]);
    const resume = perform(talk.port, 'resume');
    const id = await talk.gets('pause');
    await talk.gets('resume');
    assert.notEqual(stateOf(talk.pid), 'T');
    talk.say({ status: 'paused' }, { done: id });
    await talk.taken();
    await talk.is('resuming');
    talk.say({ status: 'active' });
    assert.deepEqual(await resume, [200, undefined]);
    await talk.is('active');
    for (const delayMs of [280, 295, 300, 305]) { // it pauses before, while or after it is stopped
      const pause = perform(talk.port, 'pause');
      const pauseId = await talk.gets('pause');
      await sleep(delayMs);
      talk.say({ done: pauseId });
      assert.equal((await pause)[0], 200);
      await talk.is('paused');
      const resumed = perform(talk.port, 'resume');
      talk.say({ done: await talk.gets('resume') });
      assert.deepEqual(await resumed, [200, undefined]);
      await talk.is('active');
    }
    await perform(talk.port, 'pause');
    const shutdown = perform(talk.port, 'shutdown');
    await talk.gets('pause');
    talk.say({ done: await talk.gets('shutdown'), value: 'saved' });
    talk.running.child.stdin?.end();
    assert.deepEqual(await shutdown, [200, 'saved; exit code 7']);
  });

  for (const direction of ['SHUT_RD', 'SHUT_WR']) {
    it(`is stopped by SIGSTOP once it has closed its socket (${direction})`, { skip: lacks('python3') }, async (t) => {
      const run = await startRun(t, ['--grace', '0.3'], [PYTHON, '-c', `
import os, socket, time
control = socket.socket(fileno=3)
control.sendall(b'{"detail":{"epoch":1}}\\n')
if '${direction}' == 'SHUT_WR': control.recv(1)
control.shutdown(socket.${direction})
time.sleep(98765)
`]);
      await talks(run);
      assert.deepEqual(await perform(run.port, 'pause'), [500, 'pause failed: the program closed CONTROL_FD']);
      assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
      assert.equal(stateOf(run.pid), 'T');
      const none = `save-state failed: no way to save: python3[${run.pid}] has closed CONTROL_FD`;
      assert.deepEqual(await perform(run.port, 'save-state'), [500, none]);
      assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
      assert.notEqual(stateOf(run.pid), 'T');
    });
  }

  it('cancels every shutdown while it fails to save; after a signal, it is killed if it does not end', async (t) => {
    const talk = await startTalk(t, [], `trap "" TERM; ${RELAY}`);
    talk.say({ status: 'paused' });
    await talk.is('paused');
    for (let count = 0; count < 3; count += 1) {
      const shutdown = perform(talk.port, 'shutdown');
      const id = await talk.gets('shutdown');
      await talk.is('shutting down');
      talk.say({ status: 'active' });
      await talk.taken();
      await talk.is('shutting down');
      talk.say({ failed: id, error: 'disk full' });
      assert.deepEqual(await shutdown, [500, 'shutdown failed: disk full']);
      await talk.is('paused');
    }
    talk.running.child.kill('SIGTERM');
    talk.say({ failed: await talk.gets('shutdown', { by: 'itself', reason: 'SIGTERM' }), error: 'still full' });
    assert.equal((await talk.running.ended).code, 128 + 9);
    assert.match(talk.complaints(), /did not end within 0\.3 s: killed/);
  });

  it('may end right after it sends an outcome, while other processes hold the socket open', async (t) => {
    const talk = await startTalk(t, ['--grace', '60'], `
      sleep 98765 &
      echo '{"detail":{"epoch":0}}' >&3
      read -r line <&3
      yes '{"detail":{"epoch":1}}' | head -n 100 >&3
      echo '{"done":1,"value":"the last"}' >&3
      kill -KILL $$`);
    await talks(talk);
    assert.deepEqual(await perform(talk.port, 'shutdown'), [200, 'the last; SIGKILL']);
    assert.equal((await talk.running.ended).code, 128 + 9);
    assert.deepEqual(processesOf(talk.running), [], 'a shutdown ends all processes');
  });
});

describe('control-run: own commands', { ...suite, skip: lacks('Linux') }, () => {
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

    const pausing = talk.client.request('pause', { wait: 30, by: 'ben' });
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

describe('control-run: a channel on the socket in CONTROL_RUN_SOCKET', { ...suite, skip: lacks('Linux') }, () => {
  /** Starts a program without CONTROL_FD, and returns a function that asks for a channel. */
  const startBare = async (t: TestContext): Promise<StartedRun & { open(pid: number): Promise<Peer> }> => {
    const run = await startRun(t, ['--grace', '1'], shell(`echo "<$CONTROL_RUN_SOCKET>"; exec 3>&-; sleep 1000`));
    await run.running.shows(/<\/.*>/);
    const [, path = ''] = /<(\/.*)>/.exec(run.running.output()) ?? [];
    return { ...run, open: (pid) => openChannel(t, path, pid) };
  };

  it('is that of one process at a time', async (t) => {
    const run = await startBare(t);
    const first = await run.open(run.pid);
    assert.equal(first.lines.join(), '{"channel":"open"}');
    const [refused = assert.fail()] = (await run.open(run.pid)).lines;
    assert.equal(refused, `{"error":"process ${run.pid} takes the commands"}`);
    first.say({ detail: { epoch: 1 } });
    await showsDetail(run, { epoch: 1 });
    const pausing = perform(run.port, 'pause');
    await until(() => first.lines.length === 2);
    assert.equal(first.lines[1], '{"id":1,"command":"pause"}');
    first.say({ done: 1 });
    assert.deepEqual(await pausing, [200, undefined]);
    first.socket.destroy();
    const opening = run.open(run.pid);
    assert.equal(await Promise.race([opening, sleep(500, 'not during a pause')]), 'not during a pause');
    assert.equal((await getInfo(run.port)).status, 'paused');
    assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
    const second = await opening;
    const saving = perform(run.port, 'shutdown');
    await until(() => second.lines.length === 2);
    second.socket.destroy();
    assert.deepEqual(await saving, [500, `shutdown failed: process ${run.pid} hung up`]);
    assert.equal((await perform(run.port, 'shutdown'))[0], 200, 'nothing takes the commands any more');
    await run.running.ended;
  });

  it('is not given to a process that is older than the program: it may be left of an earlier run', async (t) => {
    const run = await startBare(t);
    const [refused] = (await run.open(process.pid)).lines;
    assert.equal(refused, '{"error":"the program has been started anew"}');
  });

  it('is not given while a process takes the commands on CONTROL_FD, whose lines wait until it closes', async (t) => {
    const talk = await startTalk(t, [], `echo "<$CONTROL_RUN_SOCKET>"; ${RELAY}`);
    await talk.running.shows(/<\/.*>/);
    const [, path = ''] = /<(\/.*)>/.exec(talk.running.output()) ?? [];
    const other = await openChannel(t, path, talk.pid);
    assert.equal(other.lines[0], '{"channel":"open"}');
    talk.say({ detail: { epoch: 2 } });
    other.say({ detail: { epoch: 1 } });
    await showsDetail(talk, { epoch: 1 });
    other.socket.destroy();
    await showsDetail(talk, { epoch: 2 });
    const pausing = perform(talk.port, 'pause');
    talk.say({ done: await talk.gets('pause') });
    assert.deepEqual(await pausing, [200, undefined]);
    const next = await startListener(t, [], `echo "<$CONTROL_RUN_SOCKET>"; ${RELAY}`);
    const [, nextPath = ''] = /<(\/.*)>/.exec(next.running.output()) ?? [];
    const [refused] = (await openChannel(t, nextPath, next.pid)).lines;
    assert.equal(refused, `{"error":"sh[${next.pid}] takes the commands"}`);
  });
});

/** A process that has asked for a channel, and what it has received. */
interface Peer {
  socket: Socket;
  lines: string[];
  say(line: object): void;
}

async function openChannel(t: TestContext, path: string, pid: number): Promise<Peer> {
  const socket = connect(path).setEncoding('utf8').on('error', () => {});
  t.after(() => socket.destroy());
  let text = '';
  const lines: string[] = [];
  socket.on('data', (more) => {
    text += more;
    lines.splice(0, lines.length, ...text.split('\n').slice(0, -1));
  });
  const say = (line: object): void => void socket.write(`${JSON.stringify(line)}\n`);
  say({ channel: { pid } });
  await until(() => lines.length > 0);
  return { socket, lines, say };
}
