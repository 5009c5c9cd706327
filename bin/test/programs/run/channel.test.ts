// Programs that take the commands of control-run themselves: the Python class of bin/README.md, and programs that speak
// the protocol well and badly.

import assert from 'node:assert/strict';
import { readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { assertHarmless, getDetail, getInfo, HOSTILE, makeFolder, perform, start, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import {
  exitCodeOf, killAll, processesOf, PYTHON, shell, showsDetail, startRun, stateOf, tryRead,
} from './helpers.ts';
import type { ControlCommand } from '../../../../control.ts';
import type { Running } from '../../helpers.ts';
import type { StartedRun } from './helpers.ts';
import type { TestContext } from 'node:test';

const suite = { concurrency: 3, timeout: 300_000 };

// ───── The Python class ──────────────────────────────────────────────────────────────────────────────────────────────

const [CLASS = '', TRAINER = ''] = [...readFileSync('bin/README.md', 'utf8').matchAll(/^```python\n(.*?)^```$/gms)]
  .map(([, code = '']) => code);

/** What the trainer needs of its surroundings. Files control how it saves; it writes its latest epoch to one. */
const AROUND = `
import decimal, pathlib, sys, time
folder = sys.argv[1]
def exists(name): return os.path.exists(folder + '/' + name)
saves = 0
def save():
    global saves
    while exists('slow'): time.sleep(.01)
    if exists('broken'): raise OSError(28, 'No space left on device')
    if exists('silent'): raise AssertionError
    saves += 1
    print(f'saved {saves}', flush=True)
    return f'ckpt/{saves}.pt'
def train(epoch):
    time.sleep(float(sys.argv[2]))
    with open(folder + '/epoch', 'w') as file: file.write(str(epoch))
    return 1 / (epoch + 1)
`;

const ENDLESS = TRAINER.replace('range(90)', 'range(10**6)');
const EPILOGUE = `
print(f'ended after {epoch + 1} epochs', flush=True)
`;

interface Script {
  folder: string;
  path: string;
  command: string[];
}

/** The class and a trainer as a file: multiprocessing reads it again. */
function writeScript(t: TestContext, code: string, stepSeconds: number = 0.01): Script {
  const folder = makeFolder(t);
  const path = join(folder, 'train.py');
  writeFileSync(path, `${CLASS}${AROUND}${code}`);
  return { folder, path, command: [PYTHON, path, folder, `${stepSeconds}`] };
}

async function epochOf({ port }: StartedRun): Promise<number> {
  return ((await getDetail(port)) as { epoch?: number }).epoch ?? -1;
}

/** Waits until a program has written its first line: until then, it is stopped. */
async function talks(run: StartedRun): Promise<void> {
  await until(async () => await epochOf(run) >= 0, () => run.running.output());
}

describe('control-run: the Python class of bin/README.md', { ...suite, skip: lacks('Linux', 'python3') }, () => {
  it('pauses, resumes, saves, reports and ends between two steps', async (t) => {
    const { folder, command } = writeScript(t, ENDLESS + EPILOGUE);
    const run = await startRun(t, [], command);
    await talks(run);
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    assert.equal(stateOf(run.pid), 'S', 'it sleeps, and is not stopped');
    const epoch = Number(readFileSync(join(folder, 'epoch'), 'utf8'));
    await showsDetail(run, { epoch, loss: 1 / (epoch + 1), pid: run.pid, command: command.join(' '), processes: 1 });
    assert.equal(Number(readFileSync(join(folder, 'epoch'), 'utf8')), epoch, 'no epoch passes while it is paused');
    assert.deepEqual(await perform(run.port, 'save-state'), [200, 'ckpt/1.pt']);
    assert.equal((await getInfo(run.port)).status, 'paused', 'a save does not end the pause');
    assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
    await until(async () => await epochOf(run) > epoch);
    assert.deepEqual(await perform(run.port, 'save-state'), [200, 'ckpt/2.pt']);
    assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'ckpt/3.pt; exit code 0']);
    const { code, stdout, stderr } = await run.running.ended;
    assert.equal(code, 0);
    assert.match(stdout, /^saved 1\nsaved 2\nsaved 3\nended after \d+ epochs\n$/);
    assert.match(stderr, /^control-run: .*\n$/, 'nothing but the banner');
  });

  it('reports why a save failed, takes its time for one, and saves at SIGTERM, even while paused', async (t) => {
    const { folder, command } = writeScript(t, ENDLESS);
    const run = await startRun(t, ['--grace', '0.3'], command);
    await talks(run);
    writeFileSync(join(folder, 'silent'), '');
    assert.deepEqual(await perform(run.port, 'save-state'), [500, 'save-state failed: the program gave no reason']);
    writeFileSync(join(folder, 'broken'), '');
    const full = '[Errno 28] No space left on device';
    assert.deepEqual(await perform(run.port, 'save-state'), [500, `save-state failed: ${full}`]);
    assert.deepEqual(await perform(run.port, 'shutdown'), [500, `shutdown failed: ${full}`]);
    const epoch = Number(readFileSync(join(folder, 'epoch'), 'utf8'));
    await until(async () => await epochOf(run) > epoch);
    assert.equal((await getInfo(run.port)).status, 'active');
    for (const name of ['silent', 'broken']) rmSync(join(folder, name));
    writeFileSync(join(folder, 'slow'), '');
    const save = perform(run.port, 'save-state');
    const pause = perform(run.port, 'pause');
    await until(async () => (await getInfo(run.port)).commands.at(-1)?.command === 'pause');
    await sleep(SEVERAL_GRACES_MS);
    assert.deepEqual((await getInfo(run.port)).commands.slice(-2).map(({ state }) => state), ['running', 'waiting']);
    rmSync(join(folder, 'slow'));
    assert.deepEqual(await save, [200, 'ckpt/1.pt']);
    assert.deepEqual(await pause, [200, undefined]);
    run.running.child.kill('SIGTERM');
    const { code, stdout } = await run.running.ended;
    assert.deepEqual([code, stdout], [0, 'saved 1\nsaved 2\n']);
  });

  it('does nothing without control-run, whatever the variable or the descriptor is', async (t) => {
    const { folder, path } = writeScript(t, TRAINER + EPILOGUE, 0);
    const listen = 'import os, socket, sys; server = socket.create_server(("127.0.0.1", 0)); ' +
      'os.dup2(server.fileno(), 3); os.set_inheritable(3, True); os.execvp(sys.argv[1], sys.argv[1:])';
    await Promise.all([
      'unset CONTROL_FD; "$@"', '"$@" 3>&-', '"$@" 3> "$0/file"', '"$@" 3< "$0/train.py"', '"$@" 3> /dev/null',
      '{ "$@" 3>&1 >&4 | cat; } 4>&1', `"$1" -c '${listen}' "$@"`,
    ].map(async (script) => {
      const args = ['-c', script, folder, PYTHON, path, folder, '0'];
      const { code, stdout, stderr } = await start(t, 'sh', args, { CONTROL_FD: '3' }).ended;
      assert.deepEqual([code, stdout, stderr], [0, 'ended after 90 epochs\n', ''], script);
    }));
    assert.equal(statSync(join(folder, 'file')).size, 0);
  });

  it('does nothing in the processes that it starts', async (t) => {
    const { command } = writeScript(t, `
import multiprocessing, subprocess
def work(seconds):
    time.sleep(seconds)
    return seconds
if __name__ == '__main__':
    if len(sys.argv) > 3: # the child of the program
        control = Control(save)
        for epoch in range(3): control.say(detail={'epoch': -99}); assert not control.poll()
        print('the child has ended', flush=True)
        sys.exit()
    control = Control(save)
    control.say(detail={'epoch': 0})
    subprocess.run([sys.executable, *sys.argv, 'child'], check=True)
    with multiprocessing.get_context('spawn').Pool(1) as pool: print(len(pool.map(work, [.01] * 10)), flush=True)
    with multiprocessing.get_context('fork').Pool(2) as pool:
        pool.map(work, [.01] * 2)
        control.say(detail={'epoch': 1})
        while not control.poll(): time.sleep(.01)
`);
    const run = await startRun(t, [], command);
    await showsDetail(run, { epoch: 1 });
    assert.match(run.running.output(), /the child has ended\n10\n/);
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    assert.equal(stateOf(run.pid), 'S');
    assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
    assert.deepEqual(await perform(run.port, 'save-state'), [200, 'ckpt/1.pt']);
    assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'ckpt/2.pt; exit code 0']);
  });

  it('takes commands that arrive together, and sends what is not JSON as a text', async (t) => {
    const { folder, command } = writeScript(t, `
control = Control(lambda: pathlib.Path(save()))
control.say(detail={'epoch': 0, 'loss': decimal.Decimal('0.5')})
while not exists('step ends'): time.sleep(.01)
while not control.poll(): time.sleep(.01)
`);
    const run = await startRun(t, ['--grace', '0.3'], command);
    await showsDetail(run, { epoch: 0, loss: '0.5' });
    for (const name of ['pause', 'resume', 'pause'] as const) await run.client.request(name);
    await until(async () => (await getInfo(run.port)).commands[2]?.state === 'running');
    writeFileSync(join(folder, 'step ends'), '');
    await until(async () => (await getInfo(run.port)).commands[2]?.state === 'done');
    const outcomes = (await getInfo(run.port)).commands.map(({ value, error }) => value ?? error);
    const name = PYTHON.replace(/.*\//, '');
    const silence = `${name}[${run.pid}] has not responded within 0.3 s`;
    assert.deepEqual(outcomes, ['stopped by SIGSTOP', silence, undefined]);
    assert.equal((await getInfo(run.port)).status, 'paused');
    assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
    assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'ckpt/1.pt; exit code 0']);
  });

  it('saves if control-run is killed, unless SIGTERM ends it first', async (t) => {
    const { command } = writeScript(t, `
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
${ENDLESS}`);
    const run = await startRun(t, ['--grace', '60'], command);
    await talks(run);
    await perform(run.port, 'pause');
    run.running.child.kill('SIGKILL');
    const { stdout, stderr } = await run.running.ended;
    assert.deepEqual([stdout, stderr.match(/Traceback/)], ['saved 1\n', null]);
  });
});

// ───── The protocol ──────────────────────────────────────────────────────────────────────────────────────────────────

/** Between the test and the socket: standard input goes there, and what comes from there to standard output. */
const RELAY = 'cat <&3 & cat >&3; kill $!; exit 7';

const SEVERAL_GRACES_MS = 900; // of 0.3 s
const HELLO = '{"status":"active"}\n';

interface Talk extends StartedRun {
  /** Sends lines: objects as JSON, texts and bytes as they are. */
  say(...lines: (object | string | Buffer)[]): void;
  /** Waits for a command, and for nothing but that. Returns its id: they count from 1. */
  gets(command: ControlCommand): Promise<number>;
  /** Waits until all that was said has been taken. */
  taken(): Promise<void>;
  /** What control-run has printed after its banner. */
  complaints(): string;
  /** Waits for a status; a machine that is busy may report the one before. */
  is(status: string): Promise<void>;
}

let markers = 0;

async function startTalk(t: TestContext, options: string[] = [], script: string = RELAY): Promise<Talk> {
  let running: Running | undefined;
  t.after(() => running?.child.stdin?.end()); // so that it ends at once
  const grace = options.includes('--grace') ? [] : ['--grace', '0.3'];
  const run = await startRun(t, [...grace, ...options], shell(script));
  running = run.running;
  const { child, output } = run.running;
  let stderr = '';
  child.stderr?.on('data', (text: string) => (stderr += text));
  let received = 0;
  const say = (...lines: (object | string | Buffer)[]): void => {
    for (const line of lines) {
      child.stdin?.write(typeof line === 'string' || line instanceof Buffer ? line : `${JSON.stringify(line)}\n`);
    }
  };
  return {
    ...run,
    say,
    async gets(command) {
      const line = `{"id":${received + 1},"command":"${command}"}\n`;
      const commands = (): string[] => output().match(/^\{"id":.*\n/gm) ?? [];
      await until(() => commands().length > received, () => `no ${line} in: ${output()}`);
      assert.equal(commands()[received], line);
      return received += 1;
    },
    async taken() {
      const marker = `mark ${markers += 1}`;
      say({ detail: { marker } });
      await showsDetail(run, { marker });
    },
    complaints: () => stderr,
    is: (status) => until(async () => (await getInfo(run.port)).status === status, () => `not ${status}: ${output()}`),
  };
}

/** Starts a program that takes the commands itself. */
async function startListener(t: TestContext, options: string[] = [], script: string = RELAY): Promise<Talk> {
  const talk = await startTalk(t, options, script);
  talk.say(HELLO);
  await talk.taken();
  return talk;
}

/** The state of the latest command, and its value or error. */
async function latestOf({ port }: StartedRun): Promise<unknown> {
  const { commands } = await getInfo(port);
  const { command, state, value, error } = commands.at(-1) ?? assert.fail();
  return [command, state, value ?? error];
}

/** A line of a certain length, without its end. */
function lineOf(length: number, status: string): string {
  return `${`{"status":"${status}","x":"`.padEnd(length - 2, 'x')}"}\n`;
}

/** What is not understood, and changes nothing. */
const NONSENSE: string[] = [
  'epoch 12', '{"status":"paused"', '', '"paused"', '7', 'null', '[{"status":"paused"}]', '{}', '{"state":"paused"}',
  '{"value":7}', '{"error":"x"}', '{"status":"sleeping"}', '{"status":"offline"}', '{"status":"PAUSED"}',
  '{"status":3}', '{"status":null}', '{"status":"paused"}{"status":"paused"}', '{"status":"paused","detail":7}',
  '{"detail":[1]}', '{"detail":null}', '{"detail":{"loss":NaN}}', '{"done":1}', '{"failed":1,"error":"x"}',
  '{"done":0}', '{"done":-1}', '{"done":"1"}', '{"failed":0.5}', '{"done":null}', '{"done":true}',
  '{"__proto__":{"status":"paused"}}', '{"id":1,"command":"shutdown"}', "{'status': 'paused'}",
  '{"status":"paus\xff"}', '\ufeff{"status":"paused"}', '\0',
];

describe('control-run: the lines of a program that takes the commands itself', {
  ...suite, skip: lacks('Linux'),
}, () => {
  it('are understood', async (t) => {
    const talk = await startListener(t, ['--grace', '1000']);

    await t.test('as outcomes or statuses that complete one command at a time', async () => {
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

    await t.test('as statuses that the program has by itself', async () => {
      for (const status of ['active', 'pausing', 'paused', 'resuming', 'shutting down', 'paused']) {
        talk.say({ status });
        await talk.is(status);
      }
      assert.deepEqual(await perform(talk.port, 'pause'), [200, undefined], 'it is already');
    });

    await t.test('as several things in one line', async () => {
      const resume = perform(talk.port, 'resume');
      const id = await talk.gets('resume');
      talk.say({ done: id, status: 'active', detail: { epoch: 2 }, value: 'x', unknown: [1] });
      assert.deepEqual(await resume, [200, 'x']);
      await showsDetail(talk, { epoch: 2 });
      await talk.is('active');
    });

    await t.test('as outcomes of commands that are completed already, which change nothing', async () => {
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

    await t.test('as texts and numbers, and reasons that are texts', async () => {
      const none = 'the program gave no reason';
      const failed = (error: string): [number, string] => [500, `save-state failed: ${error}`];
      for (const [outcome, json, expected] of [
        ['value', '"ckpt/12.pt"', [200, 'ckpt/12.pt']], ['value', '-0.5e3', [200, -500]], ['value', '0', [200, 0]],
        ['value', '""', [200, '']], ['value', 'null', [200, undefined]],
        ['value', `"${'x'.repeat(2000)}"`, [200, 'x'.repeat(1000)]], ['value', '"\\u0000\\u001b[2J"', [200, '[2J']],
        ['error', '"disk full"', failed('disk full')], ['error', '28', failed('28')], ['error', '{}', failed(none)],
        ['error', '{"toString":1,"valueOf":1}', failed(none)], ['error', 'true', failed(none)],
        ['error', `"${'x'.repeat(2000)}"`, failed('x'.repeat(1000))],
        ['error', `${'['.repeat(30_000)}${']'.repeat(30_000)}`, failed(none)],
      ] as const) {
        const save = perform(talk.port, 'save-state');
        const id = await talk.gets('save-state');
        talk.say(`{"${outcome === 'value' ? 'done' : 'failed'}":${id},"${outcome}":${json}}\n`);
        assert.deepEqual(await save, expected, json.slice(0, 100));
      }
    });

    await t.test('with CRLF, spaces, and characters that are split or invalid', async () => {
      const details = '{"detail" : {"epoch":3}}\r\n {"detail":{"note":"ä€😀#"}}\r\n';
      const bytes = Buffer.from(details).map((byte) => (byte === 0x23 ? 0xff : byte));
      const middle = bytes.indexOf(0xf0) + 2; // of the emoji
      talk.say(Buffer.from(bytes.subarray(0, middle)));
      await showsDetail(talk, { epoch: 3 });
      talk.say(Buffer.from(bytes.subarray(middle)), '{"status":"paused"} \r\n');
      await showsDetail(talk, { note: 'ä€😀\ufffd' });
      await talk.is('paused');
    });

    await t.test('with up to 64 KiB, and details with up to 3000 bytes, which do not replace others', async () => {
      talk.say(lineOf(65_536, 'resuming'));
      await talk.is('resuming');
      const note = 'x'.repeat(3000 - '{"detail":{"pid":1,"command":"no","epoch":5,"note":""}}'.length);
      for (const one of [note, 'x'.repeat(note.length % 3) + '€'.repeat(note.length / 3)]) {
        talk.say({ detail: { pid: 1, command: 'no', epoch: 5, note: one } });
        const detail = await showsDetail(talk, { epoch: 5, note: one, pid: talk.pid });
        assert.match(String(detail['command']), /^sh -c /);
        for (const key of ['started', 'CPU seconds', 'memory MiB']) assert.ok(key in detail, key);
      }
      talk.say('{"detail":{"epoch":10,"__proto__":{"pid":1},"constructor":1,"toJSON":2}}\n');
      const detail = await showsDetail(talk, { epoch: 10, constructor: 1, pid: talk.pid });
      assert.ok(!('note' in detail));
    });

    assert.equal(talk.complaints(), '');
  });

  it('change nothing if they are not understood; the first of them is reported, and clears no terminal', async (t) => {
    const talk = await startTalk(t);
    talk.say(`${HOSTILE.replaceAll(/[\r\n]/g, '')}${'y'.repeat(60_000)}\n`);
    for (const line of NONSENSE) talk.say(`${line}\n`);
    await until(() => talk.complaints() !== '');
    assert.deepEqual(await perform(talk.port, 'pause'), [200, undefined]);
    await talk.is('paused');
    assert.equal(stateOf(talk.pid), 'T', 'so far, it does not take commands itself');
    assert.deepEqual(await perform(talk.port, 'resume'), [200, undefined]);
    talk.say({ detail: { epoch: 1, [HOSTILE]: HOSTILE } });
    await showsDetail(talk, { epoch: 1, [HOSTILE]: HOSTILE });
    const save = perform(talk.port, 'save-state');
    const id = await talk.gets('save-state');
    for (const line of NONSENSE) if (!/"(done|failed)":1/.test(line)) talk.say(`${line}\n`);
    for (const json of ['{}', '[]', 'true', 'NaN', 'Infinity', '1e999']) talk.say(`{"done":${id},"value":${json}}\n`);
    talk.say({ done: id + 1, value: 'future' }, { failed: 99 });
    await talk.taken();
    await talk.is('active');
    assert.deepEqual(await latestOf(talk), ['save-state', 'running', undefined]);
    talk.say({ done: id });
    assert.deepEqual(await save, [200, undefined]);
    const { commands } = await getInfo(talk.port);
    assert.deepEqual(commands.map(({ command }) => command), ['pause', 'resume', 'save-state']);
    const complaint = /^control-run: sh\[\d+\] has written a line that is not understood: PW \]0;title .*\n$/;
    assert.match(talk.complaints(), complaint);
    assertHarmless(talk.complaints());
    assert.ok(talk.complaints().length < 1000, `one line of a terminal or two, got ${talk.complaints().length}`);
  });

  it('change nothing if they are too long, however they arrive', async (t) => {
    const talk = await startTalk(t);
    talk.say({ status: 'paused', detail: { epoch: 0 } });
    await talk.is('paused');
    for (const [index, length] of [65_537, 131_073, 1_000_000].entries()) {
      talk.say(lineOf(length, 'resuming'), { detail: { epoch: index + 1 } });
      await showsDetail(talk, { epoch: index + 1 });
      await talk.is('paused');
    }
    talk.say('{"status":"resuming"}'.repeat(20_000)); // without an end
    const note = 'x'.repeat(3000);
    talk.say('\n', { detail: { epoch: 9, note } }, { detail: { epoch: 9 }, note });
    talk.say({ detail: { epoch: 9, note: '€'.repeat(1000) } });
    talk.say({ status: 'active' });
    await talk.is('active');
    await showsDetail(talk, { epoch: 3 });
    assert.match(talk.complaints(), /^control-run: sh\[\d+\] has written a line above 64 KiB to CONTROL_FD\n$/);
  });

  it('may come as a flood, of which control-run keeps no more than a part', async (t) => {
    const lines = ['{"status":"active"}', '{"detail":{"epoch":1,"note":"flood"}}', 'a line of a log '.repeat(20)];
    const script = `echo '{"detail":{"epoch":0}}' >&3; exec yes '${lines.join('\n')}' >&3`;
    const talk = await startTalk(t, ['--force-stop', '0.1'], script);
    await talks(talk);
    assert.deepEqual(await perform(talk.port, 'pause'), [200, 'stopped by SIGSTOP']);
    for (let count = 0; count < 3; count += 1) await talk.is('paused');
    assert.equal(stateOf(talk.pid), 'T');
    const memory = Number(/^VmRSS:\s+(\d+)/m.exec(tryRead(`/proc/${talk.running.child.pid}/status`))?.[1]);
    assert.ok(memory < 250_000, `${memory} KiB`);
    assert.deepEqual(await perform(talk.port, 'resume'), [200, undefined], 'it says that it is active');
    talk.running.child.kill('SIGTERM');
    assert.equal(await exitCodeOf(talk.running), 128 + 15);
    assert.equal(talk.complaints().match(/ to CONTROL_FD\n/g)?.length ?? 1, 1, talk.complaints());
  });
});

describe('control-run: a program that takes the commands itself', { ...suite, skip: lacks('Linux') }, () => {
  it('is waited for until another command waits for --grace: then it is stopped, or active', async (t) => {
    const talk = await startListener(t);
    const pause = perform(talk.port, 'pause');
    await talk.gets('pause');
    await sleep(SEVERAL_GRACES_MS); // nothing else waits
    assert.deepEqual(await latestOf(talk), ['pause', 'running', undefined]);
    const resume = perform(talk.port, 'resume');
    assert.deepEqual(await pause, [200, 'stopped by SIGSTOP']);
    const id = await talk.gets('resume');
    const save = perform(talk.port, 'save-state');
    assert.deepEqual(await resume, [500, `resume failed: sh[${talk.pid}] has not responded within 0.3 s`]);
    const saveId = await talk.gets('save-state');
    await talk.is('active');
    talk.say({ failed: id, error: 'late' });
    await talk.taken();
    await talk.is('active');
    talk.say({ done: saveId, value: 'saved' });
    assert.deepEqual(await save, [200, 'saved']);
    assert.equal(talk.complaints(), '');
  });

  const outcomes = {
    'save-state': (pid: number) => [500, `save-state failed: sh[${pid}] has not responded within 0.3 s`],
    shutdown: () => [200, 'SIGTERM'],
  };
  for (const command of ['save-state', 'shutdown'] as const) {
    it(`has all the time for a ${command} until a signal asks for the end, and then --grace`, async (t) => {
      const talk = await startListener(t);
      const saving = perform(talk.port, command);
      await talk.gets(command);
      const others = ['pause', 'shutdown'] as const;
      const waiting = others.map((other) => perform(talk.port, other).catch(() => null)); // they may not arrive
      await sleep(SEVERAL_GRACES_MS);
      assert.equal((await getInfo(talk.port)).commands[0]?.state, 'running');
      talk.running.child.kill('SIGTERM');
      assert.deepEqual(await saving, outcomes[command](talk.pid));
      assert.equal((await talk.running.ended).code, 128 + 15);
      await Promise.all(waiting);
    });
  }

  it('is stopped after --force-stop, and gets pause and resume in order once it continues', async (t) => {
    const talk = await startListener(t, ['--force-stop', '0.3', '--grace', '60']);
    assert.deepEqual(await perform(talk.port, 'pause'), [200, 'stopped by SIGSTOP']);
    await talk.is('paused');
    assert.equal(stateOf(talk.pid), 'T');
    const stopped = `save-state failed: sh[${talk.pid}] is stopped and cannot save: resume it first`;
    assert.deepEqual(await perform(talk.port, 'save-state'), [500, stopped]);
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
    await perform(talk.port, 'pause');
    const shutdown = perform(talk.port, 'shutdown');
    await talk.gets('pause');
    talk.say({ done: await talk.gets('shutdown'), value: 'saved' });
    talk.running.child.stdin?.end();
    assert.deepEqual(await shutdown, [200, 'saved; exit code 7']);
  });

  it('may pause before, while and after it is stopped', async (t) => {
    const talk = await startListener(t, ['--force-stop', '0.05', '--grace', '60']);
    for (const delayMs of [0, 30, 45, 50, 55, 80]) {
      const pause = perform(talk.port, 'pause');
      const id = await talk.gets('pause');
      await sleep(delayMs);
      talk.say({ done: id });
      assert.equal((await pause)[0], 200);
      await talk.is('paused');
      const resume = perform(talk.port, 'resume');
      talk.say({ done: await talk.gets('resume') });
      assert.deepEqual(await resume, [200, undefined]);
      await talk.is('active');
    }
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
      const none = 'save-state failed: no way to save: start control-run with --save-signal or --save-command';
      assert.deepEqual(await perform(run.port, 'save-state'), [500, none]);
      assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
      assert.notEqual(stateOf(run.pid), 'T');
    });
  }

  it('is started again with a new socket and new ids, whatever status it has reported', async (t) => {
    const talk = await startListener(t, ['--restart', 'on-failure:1']);
    const pause = perform(talk.port, 'pause');
    talk.say({ done: await talk.gets('pause') });
    await pause;
    talk.say({ status: 'shutting down' });
    await talk.is('shutting down');
    killAll(processesOf(talk.running));
    await talk.running.shows(/ended with SIGKILL: restart 1 in 1 s\n[^]* web API at /);
    talk.say(HELLO);
    await talk.taken();
    const again = perform(talk.port, 'pause');
    await talk.running.shows(/(\{"id":1,"command":"pause"\}\n[^]*){2}/);
    talk.say({ done: 1 });
    assert.deepEqual(await again, [200, undefined]);
    talk.running.child.stdin?.end();
    assert.equal(await exitCodeOf(talk.running), 7);
  });

  it('cancels each shutdown by failing to save; after a signal, it is killed if it does not end', async (t) => {
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
    talk.say({ failed: await talk.gets('shutdown'), error: 'still full' });
    assert.equal((await talk.running.ended).code, 128 + 9);
    assert.match(talk.complaints(), /did not end within 0\.3 s: killed/);
  });

  it('may end instead of responding to a shutdown', async (t) => {
    const talk = await startListener(t, ['--grace', '60']);
    const shutdown = perform(talk.port, 'shutdown');
    await talk.gets('shutdown');
    talk.running.child.stdin?.end();
    assert.deepEqual(await shutdown, [200, 'exit code 7']);
    assert.equal(await exitCodeOf(talk.running), 7);
  });

  it('may end right after it has sent an outcome, while others hold the socket open', async (t) => {
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
    assert.deepEqual(processesOf(talk.running), [], 'a shutdown ends all');
  });

  it('gets each command once, in order, even if the queue was full', async (t) => {
    const talk = await startListener(t, ['--grace', '1000']);
    const commands: ControlCommand[] = ['save-state', 'pause', 'save-state', 'resume'];
    const first = perform(talk.port, 'save-state');
    const id = await talk.gets('save-state');
    const accepted: ControlCommand[] = [];
    for (let count = 0; count < 20; count += 1) {
      const command = commands[accepted.length % 4] as ControlCommand;
      const { status } = await fetch(`http://127.0.0.1:${talk.port}/api/${command}`, { method: 'POST' });
      if (status === 200) accepted.push(command);
      else assert.equal(status, 503);
    }
    assert.equal(accepted.length, 16);
    talk.say({ done: id });
    assert.deepEqual(await first, [200, undefined]);
    for (const command of accepted) talk.say({ done: await talk.gets(command) });
    const last = perform(talk.port, 'save-state');
    talk.say({ done: await talk.gets('save-state'), value: 'the last' });
    assert.deepEqual(await last, [200, 'the last']);
  });
});
