// Programs that take the commands of control-run themselves: the Python class of bin/README.md, and programs that speak
// the protocol well and badly.

import assert from 'node:assert/strict';
import { existsSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { assertHarmless, getDetail, getInfo, HOSTILE, lacks, makeFolder, perform, start, until } from '../../helpers.ts';
import { exitCodeOf, killAll, lacksProc, processesOf, startRun, stateOf, tryRead } from './helpers.ts';
import type { ControlCommand } from '../../../../control.ts';
import type { Running } from '../../helpers.ts';
import type { StartedRun } from './helpers.ts';
import type { TestContext } from 'node:test';

// ───── The Python class ──────────────────────────────────────────────────────────────────────────────────────────────

const [CLASS = '', TRAINER = ''] = [...readFileSync('bin/README.md', 'utf8').matchAll(/^```python\n(.*?)^```$/gms)]
  .map(([, code = '']) => code);

/** What the trainer needs of its surroundings. It fails to save while the file `broken` exists. */
const AROUND = `
import sys, time
folder = sys.argv[1]
saves = 0
def save():
    global saves
    if os.path.exists(folder + '/slow'): time.sleep(1)
    if os.path.exists(folder + '/broken'): raise OSError(28, 'No space left on device')
    if os.path.exists(folder + '/silent'): raise AssertionError
    saves += 1
    print(f'saved {saves}', flush=True)
    return f'ckpt/{saves}.pt'
def train(epoch):
    time.sleep(float(sys.argv[2]))
    return 1 / (epoch + 1)
`;
const DETAIL_MS = 200; // a younger detail is reused

const EPILOGUE = `
print(f'ended after {epoch + 1} epochs', flush=True)
`;

interface Script {
  folder: string;
  command: string[];
}

/** The class, and a trainer unless there is other code, as a file: multiprocessing reads it again. */
function writeScript(t: TestContext, code: string = TRAINER + EPILOGUE, stepSeconds: number = 0.01): Script {
  const folder = makeFolder(t);
  const path = join(folder, 'train.py');
  writeFileSync(path, `${CLASS}${AROUND}${code}`);
  return { folder, command: ['python3', path, folder, `${stepSeconds}`] };
}

async function epochOf({ port }: StartedRun): Promise<number> {
  return ((await getDetail(port)) as { epoch?: number }).epoch ?? -1;
}

/** Waits until a program has written its first line: until then, it is stopped. */
async function talks(run: StartedRun): Promise<void> {
  await until(async () => await epochOf(run) >= 0);
}

const needsPython = { concurrency: 6, skip: lacksProc || lacks('python3') };

describe('control-run: the Python class of bin/README.md', needsPython, () => {
  it('is found there', () => {
    assert.match(CLASS, /^class Control:/m);
    assert.match(TRAINER, /control\.poll\(\)/);
  });

  it('pauses, resumes, saves, reports and ends between two steps', async (t) => {
    const { folder, command } = writeScript(t, `${TRAINER.replace('range(90)', 'range(10**6)')}${EPILOGUE}`);
    const run = await startRun(t, [], [...command, folder]);
    await talks(run);
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    assert.equal(stateOf(run.pid), 'S', 'it sleeps, and is not stopped');
    let epochBefore = -1;
    await until(async () => {
      await sleep(DETAIL_MS);
      return epochBefore === (epochBefore = await epochOf(run));
    });
    const { detail, status } = await getInfo(run.port);
    assert.equal(status, 'paused');
    const { epoch, loss, pid, command: line, started, processes } = detail as Record<string, unknown>;
    assert.deepEqual([pid, line, processes], [run.pid, [...command, folder].join(' ').slice(0, 200), 1]);
    assert.equal(loss, 1 / (Number(epoch) + 1));
    assert.ok(Date.now() - Date.parse(String(started)) < 60_000);
    await sleep(DETAIL_MS);
    assert.equal(await epochOf(run), epoch, 'no epoch passes while it is paused');
    assert.deepEqual(await perform(run.port, 'save-state'), [200, 'ckpt/1.pt']);
    assert.equal((await getInfo(run.port)).status, 'paused', 'a save does not end the pause');
    assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
    await until(async () => await epochOf(run) > Number(epoch));
    assert.deepEqual(await perform(run.port, 'save-state'), [200, 'ckpt/2.pt']);
    assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'ckpt/3.pt; exit code 0']);
    const { code, stdout, stderr } = await run.running.ended;
    assert.equal(code, 0);
    assert.match(stdout, /^saved 1\nsaved 2\nsaved 3\nended after \d+ epochs\n$/);
    assert.match(stderr, /^control-run: .*\n$/, 'nothing but the banner');
  });

  it('is asked to save and end by SIGTERM, also while it is paused', async (t) => {
    for (const isPaused of [false, true]) {
      const { command } = writeScript(t, TRAINER.replace('90', '10**6'));
      const run = await startRun(t, [], command);
      await talks(run);
      if (isPaused) await perform(run.port, 'pause');
      run.running.child.kill('SIGTERM');
      const { code, stdout } = await run.running.ended;
      assert.deepEqual([code, stdout], [0, 'saved 1\n']);
    }
  });

  it('tells why a save failed; the last one calls the shutdown off once', async (t) => {
    const { folder, command } = writeScript(t, TRAINER.replace('90', '10**6'));
    const run = await startRun(t, ['--grace', '1'], command);
    await talks(run);
    writeFileSync(join(folder, 'silent'), '');
    assert.deepEqual(await perform(run.port, 'save-state'), [500, 'save-state failed: the program gave no reason']);
    writeFileSync(join(folder, 'broken'), '');
    const full = '[Errno 28] No space left on device';
    assert.deepEqual(await perform(run.port, 'save-state'), [500, `save-state failed: ${full}`]);
    assert.deepEqual(await perform(run.port, 'shutdown'), [500, `shutdown failed: ${full}`]);
    const epoch = await epochOf(run);
    await until(async () => await epochOf(run) > epoch);
    assert.equal((await getInfo(run.port)).status, 'active');
    assert.deepEqual(await perform(run.port, 'shutdown'), [500, `shutdown failed: ${full}`]);
    assert.equal((await run.running.ended).code, 143);
  });

  it('takes more than --grace to save; what comes meanwhile follows in order', async (t) => {
    const { folder, command } = writeScript(t, TRAINER.replace('90', '10**6'));
    const run = await startRun(t, ['--grace', '0.3'], command);
    await talks(run);
    writeFileSync(join(folder, 'slow'), '');
    const save = perform(run.port, 'save-state');
    await until(async () => (await getInfo(run.port)).commands[0]?.state === 'running');
    const [pause, shutdown] = [perform(run.port, 'pause'), perform(run.port, 'shutdown')];
    await until(async () => (await getInfo(run.port)).commands.length === 3);
    const { commands } = await getInfo(run.port);
    assert.deepEqual(commands.map(({ state }) => state), ['running', 'waiting', 'waiting']);
    assert.deepEqual(await save, [200, 'ckpt/1.pt']);
    assert.deepEqual(await pause, [200, undefined]);
    assert.deepEqual(await shutdown, [200, 'ckpt/2.pt; exit code 0']);
    assert.equal((await run.running.ended).stdout, 'saved 1\nsaved 2\n');
  });

  for (const [what, redirect] of [
    ['no variable', 'unset CONTROL_FD'], ['a closed descriptor', 'exec 3>&-'], ['a file', 'exec 3>"$1/file"'],
    ['a file to read', 'exec 3<"$0"'], ['/dev/null', 'exec 3>/dev/null'], ['a pipe', 'exec 3> >(cat)'],
  ] as const) {
    it(`does nothing without control-run: ${what}`, { skip: lacks('bash') }, async (t) => {
      const { folder, command: [, path = ''] } = writeScript(t, undefined, 0);
      const script = `${redirect}; python3 "$0" "$@"; echo "exit $?"; [ -t 3 ] || true`;
      const { ended } = start(t, 'bash', ['-c', script, path, folder, '0'], { CONTROL_FD: '3' });
      const { code, stdout, stderr } = await ended;
      assert.deepEqual([code, stdout, stderr], [0, 'ended after 90 epochs\nexit 0\n', '']);
      if (existsSync(join(folder, 'file'))) assert.equal(statSync(join(folder, 'file')).size, 0);
    });
  }

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
    for way in ['fork', 'spawn']:
        with multiprocessing.get_context(way).Pool(2) as pool: print(len(pool.map(work, [.01] * 10)), flush=True)
    with multiprocessing.get_context('fork').Pool(2) as pool:
        pool.map(work, [.01] * 2)
        control.say(detail={'epoch': 1})
        while not control.poll(): time.sleep(.01)
`);
    const run = await startRun(t, [], command);
    await until(async () => await epochOf(run) === 1, () => run.running.output());
    assert.match(run.running.output(), /the child has ended\n10\n10\n/);
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    assert.equal(stateOf(run.pid), 'S');
    assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
    assert.deepEqual(await perform(run.port, 'save-state'), [200, 'ckpt/1.pt']);
    assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'ckpt/2.pt; exit code 0']);
  });

  it('takes commands that arrive together', async (t) => {
    const { folder, command } = writeScript(t, `
control = Control(save)
control.say(detail={'epoch': 0})
while not os.path.exists(folder + '/step ends'): time.sleep(.01)
while not control.poll(): time.sleep(.01)
`);
    const run = await startRun(t, ['--grace', '0.5'], command);
    await talks(run);
    for (const name of ['pause', 'resume', 'pause'] as const) await run.client.request(name);
    await until(async () => (await getInfo(run.port)).commands[2]?.state === 'running');
    writeFileSync(join(folder, 'step ends'), '');
    await until(async () => (await getInfo(run.port)).commands[2]?.state === 'done');
    const outcomes = (await getInfo(run.port)).commands.map(({ value, error }) => value ?? error);
    const silence = `python3[${run.pid}] has not responded within 0.5 s`;
    assert.deepEqual(outcomes, ['stopped by SIGSTOP', silence, undefined]);
    assert.equal((await getInfo(run.port)).status, 'paused');
    assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
    assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'ckpt/1.pt; exit code 0']);
  });

  it('tells numbers of NumPy and paths as texts', async (t) => {
    const { command } = writeScript(t, `
import decimal, pathlib
control = Control(lambda: pathlib.Path(save()))
control.say(detail={'epoch': 0, 'loss': decimal.Decimal('0.5')})
while not control.poll(): time.sleep(.01)
`);
    const run = await startRun(t, [], command);
    await talks(run);
    assert.equal(String((await getDetail(run.port) as { loss: unknown }).loss), '0.5');
    assert.deepEqual(await perform(run.port, 'save-state'), [200, 'ckpt/1.pt']);
  });

  it('leaves another socket alone', async (t) => {
    const { folder, command: [, path = ''] } = writeScript(t, undefined, 0);
    const { ended } = start(t, 'python3', ['-c', `
import os, socket, sys
server = socket.create_server(('127.0.0.1', 0))
os.dup2(server.fileno(), 3)
os.set_inheritable(3, True)
os.execvp('python3', ['python3', *sys.argv[1:]])
`, path, folder, '0'], { CONTROL_FD: '3' });
    const { code, stdout, stderr } = await ended;
    assert.deepEqual([code, stdout, stderr], [0, 'ended after 90 epochs\n', '']);
  });

  it('saves if control-run is killed, unless SIGTERM ends it', async (t) => {
    for (const isPaused of [false, true]) {
      const { folder, command } = writeScript(t, `
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
control = Control(save)
for epoch in range(10**6):
    train(epoch)
    control.say(detail={'epoch': epoch}) if not os.path.exists(folder + '/quiet') else None
    if control.poll(): break
`);
      const run = await startRun(t, ['--grace', '5'], command);
      await talks(run);
      writeFileSync(join(folder, 'quiet'), '');
      if (isPaused) await perform(run.port, 'pause');
      run.running.child.kill('SIGKILL');
      await until(() => processesOf(run.running).length === 0);
      const { stdout, stderr } = await run.running.ended;
      assert.deepEqual([stdout, stderr.match(/Traceback/)], ['saved 1\n', null]);
    }
  });
});

// ───── The protocol ──────────────────────────────────────────────────────────────────────────────────────────────────

/** Between the test and the socket: standard input goes there, and what comes from there to standard output. */
const RELAY = `
const socket = new (require('node:net').Socket)({ fd: 3 });
socket.on('error', () => {}).pipe(process.stdout);
process.stdin.pipe(socket);
socket.on('close', () => process.stdin.resume());
process.stdin.on('end', () => process.exit(7));
setInterval(() => {}, 1000);
`;

const SEVERAL_GRACES_MS = 1200; // of 0.5 s, which startTalk() sets
const HELLO = '{"status":"active"}\n';

interface Talk extends StartedRun {
  /** Sends lines: objects as JSON, texts as they are. */
  say(...lines: (object | string)[]): void;
  /** Waits for a command with this id, and for nothing but that. */
  gets(id: number, command: string): Promise<void>;
  /** Waits until all that was said has been taken. */
  taken(): Promise<void>;
  /** What control-run has printed after its banner. */
  complaints(): string;
  /** Waits for a status; a machine that is busy may tell the one before. */
  is(status: string): Promise<void>;
}

let markers = 0;

async function startTalk(t: TestContext, options: string[] = [], code: string = RELAY): Promise<Talk> {
  t.after(() => running?.child.stdin?.end()); // so that it ends at once
  let running: Running | undefined;
  const grace = options.includes('--grace') ? [] : ['--grace', '0.5'];
  const run = await startRun(t, [...grace, ...options], [process.execPath, '-e', code]);
  running = run.running;
  const { child, output } = run.running;
  let stderr = '';
  child.stderr?.on('data', (text: string) => (stderr += text));
  let received = 0;
  const say = (...lines: (object | string)[]): void => {
    for (const line of lines) child.stdin?.write(typeof line === 'string' ? line : `${JSON.stringify(line)}\n`);
  };
  return {
    ...run,
    say,
    async gets(id, command) {
      const line = `{"id":${id},"command":"${command}"}\n`;
      const commands = (): string[] => output().match(/^\{"id":.*\n/gm) ?? [];
      await until(() => commands().length > received, () => `no ${line} in: ${output()}`);
      assert.equal(commands()[received], line);
      received += 1;
    },
    async taken() {
      const marker = `mark ${markers += 1}`;
      say({ detail: { marker } });
      await until(async () => (await getDetail(run.port) as { marker?: string }).marker === marker);
    },
    complaints: () => stderr,
    is: (status) => until(async () => (await getInfo(run.port)).status === status, () => `not ${status}: ${output()}`),
  };
}

/** The state of the latest command, and what came of it. */
async function latestOf({ port }: StartedRun): Promise<unknown> {
  const { commands } = await getInfo(port);
  const { command, state, value, error } = commands.at(-1) ?? assert.fail();
  return [command, state, value ?? error];
}

const NOTES = 'a line of a log '.repeat(20);
const NOT_UNDERSTOOD = 'has written a line that is not understood: ';

describe('control-run: a program that takes the commands itself', { concurrency: 6, skip: lacksProc }, () => {
  it('gets one command at a time, with ids from 1, and answers by a status or an outcome', async (t) => {
    const talk = await startTalk(t, ['--grace', '20']);
    talk.say(HELLO);
    await talk.taken();
    const [pause, save, resume] = (['pause', 'save-state', 'resume'] as const).map((name) => perform(talk.port, name));
    await talk.gets(1, 'pause');
    await talk.is('pausing');
    talk.say({ status: 'active' }, { status: 'pausing' }, { status: 'resuming' });
    await talk.taken();
    await talk.is('pausing');
    assert.doesNotMatch(talk.running.output(), /"id":2/);
    talk.say({ status: 'paused' });
    assert.deepEqual(await pause, [200, undefined]);
    await talk.gets(2, 'save-state');
    await talk.is('paused');
    talk.say({ done: 2, value: 'ckpt/12.pt' });
    assert.deepEqual(await save, [200, 'ckpt/12.pt']);
    await talk.gets(3, 'resume');
    await talk.is('resuming');
    talk.say({ done: 3 });
    assert.deepEqual(await resume, [200, undefined]);
    await talk.is('active');
    const failing = perform(talk.port, 'pause');
    await talk.gets(4, 'pause');
    talk.say({ failed: 4, error: 'GPU busy' });
    assert.deepEqual(await failing, [500, 'pause failed: GPU busy']);
    await talk.is('active');
    const again = perform(talk.port, 'pause');
    await talk.gets(5, 'pause');
    talk.say({ done: 5 });
    assert.deepEqual(await again, [200, undefined]);
    const stuck = perform(talk.port, 'resume');
    await talk.gets(6, 'resume');
    talk.say({ failed: 6 });
    assert.deepEqual(await stuck, [500, 'resume failed: the program gave no reason']);
    await talk.is('paused');
    assert.equal(talk.complaints(), '');
  });

  it('reports each status that it has by itself', async (t) => {
    const talk = await startTalk(t);
    for (const status of ['active', 'pausing', 'paused', 'resuming', 'shutting down', 'active', 'paused']) {
      talk.say({ status });
      await talk.is(status);
    }
    assert.deepEqual(await perform(talk.port, 'pause'), [200, undefined], 'it is already');
    const resume = perform(talk.port, 'resume');
    await talk.gets(1, 'resume');
    talk.say({ status: 'active' });
    assert.deepEqual(await resume, [200, undefined]);
    assert.equal(talk.complaints(), '');
  });

  it('completes a command only with its id', async (t) => {
    const talk = await startTalk(t);
    talk.say(HELLO);
    await talk.taken();
    const first = perform(talk.port, 'save-state');
    await talk.gets(1, 'save-state');
    talk.say({ done: 1, value: 'first' }, { done: 1, value: 'again' }, { failed: 1, error: 'late' });
    assert.deepEqual(await first, [200, 'first']);
    const second = perform(talk.port, 'save-state');
    await talk.gets(2, 'save-state');
    talk.say({ done: 1, value: 'old' }, { failed: 1, error: 'old' });
    await talk.taken();
    assert.equal(talk.complaints(), '', 'an outcome may come late');
    assert.deepEqual(await latestOf(talk), ['save-state', 'running', undefined]);
    talk.say({ done: 4, value: 'future' }, { failed: 99 });
    await talk.taken();
    assert.deepEqual(await latestOf(talk), ['save-state', 'running', undefined]);
    assert.match(talk.complaints(), /: \{"done":4,"value":"future"\}/);
    talk.say({ done: 2, value: 'second' });
    assert.deepEqual(await second, [200, 'second']);
    const third = perform(talk.port, 'save-state');
    await talk.gets(3, 'save-state');
    talk.say({ done: 3, failed: 3, value: 'x', error: 'both' });
    assert.deepEqual(await third, [500, 'save-state failed: both']);
  });

  it('may tell several things in one line', async (t) => {
    const talk = await startTalk(t);
    talk.say({ status: 'active', detail: { epoch: 1 } });
    await talks(talk);
    const pause = perform(talk.port, 'pause');
    await talk.gets(1, 'pause');
    talk.say({ done: 1, status: 'paused', detail: { epoch: 2 }, value: 'x', unknown: [1] });
    assert.deepEqual(await pause, [200, 'x']);
    await until(async () => await epochOf(talk) === 2);
    await talk.is('paused');
    assert.equal(talk.complaints(), '');
  });

  it('tells what it has saved as a text or a number, and why it failed as a text', async (t) => {
    const talk = await startTalk(t);
    talk.say(HELLO);
    await talk.taken();
    const values: [json: string, value: unknown][] = [
      ['"ckpt/12.pt"', 'ckpt/12.pt'], ['12', 12], ['-0.5e3', -500], ['0', 0], ['""', ''], ['null', undefined],
      [`"${'x'.repeat(2000)}"`, 'x'.repeat(1000)], ['"\\u0000\\u001b[2J"', '[2J'],
    ];
    for (const [index, [json, value]] of values.entries()) {
      const save = perform(talk.port, 'save-state');
      await talk.gets(index + 1, 'save-state');
      talk.say(`{"done":${index + 1},"value":${json}}\n`);
      assert.deepEqual(await save, [200, value], json);
    }
    assert.equal(talk.complaints(), '');
    void perform(talk.port, 'save-state');
    const id = values.length + 1;
    await talk.gets(id, 'save-state');
    for (const json of ['{}', '[]', 'true', 'NaN', 'Infinity', '1e999']) talk.say(`{"done":${id},"value":${json}}\n`);
    await talk.taken();
    assert.deepEqual(await latestOf(talk), ['save-state', 'running', undefined]);
    assert.match(talk.complaints(), /not understood: \{"done":9,"value":\{\}\}/);
    talk.say({ done: id });
    const none = 'the program gave no reason';
    const errors: [json: string, error: string][] = [
      ['"disk full"', 'disk full'], ['28', '28'], ['""', none], ['null', none], ['{}', none], ['[]', none],
      ['{"toString":1,"valueOf":1}', none], ['{"message":{"a":1}}', none], ['true', none],
      [`"${'x'.repeat(2000)}"`, `${'x'.repeat(999)}x`], [`${'['.repeat(30_000)}${']'.repeat(30_000)}`, none],
    ];
    for (const [index, [json, error]] of errors.entries()) {
      const id = values.length + 2 + index;
      const save = perform(talk.port, 'save-state');
      await talk.gets(id, 'save-state');
      talk.say(`{"failed":${id},"error":${json}}\n`);
      assert.deepEqual(await save, [500, `save-state failed: ${error}`], json.slice(0, 100));
    }
    assert.equal(talk.complaints().match(/\n/g)?.length, 1);
  });

  /** What is not understood, and changes nothing. */
  const NONSENSE: [what: string, line: string][] = [
    ['no JSON', 'epoch 12'], ['half a line of JSON', '{"status":"paused"'], ['an empty line', ''],
    ['a text', '"paused"'], ['a number', '7'], ['null', 'null'], ['an array', '[{"status":"paused"}]'],
    ['an empty object', '{}'],
    ['unknown keys', '{"state":"paused"}'], ['a value alone', '{"value":7}'], ['an error alone', '{"error":"x"}'],
    ['an unknown status', '{"status":"sleeping"}'], ['the status offline', '{"status":"offline"}'],
    ['a status in capitals', '{"status":"PAUSED"}'], ['the number of a status', '{"status":3}'],
    ['no status', '{"status":null}'], ['two lines in one', '{"status":"paused"}{"status":"paused"}'],
    ['a wrong and a right key', '{"status":"paused","detail":7}'], ['a detail that is no object', '{"detail":[1]}'],
    ['a detail that is null', '{"detail":null}'], ['a detail with NaN', '{"detail":{"loss":NaN}}'],
    ['an outcome before any command', '{"done":1}'], ['a failure before any command', '{"failed":1,"error":"x"}'],
    ['id 0', '{"done":0}'], ['a negative id', '{"done":-1}'], ['an id as a text', '{"done":"1"}'],
    ['an id that is not whole', '{"failed":0.5}'], ['no id', '{"done":null}'], ['true', '{"done":true}'],
    ['__proto__', '{"__proto__":{"status":"paused"}}'], ['a command', '{"id":1,"command":"shutdown"}'],
    ['single quotes', "{'status': 'paused'}"], ['an invalid character', '{"status":"paus\xff"}'],
    ['a byte order mark', '\ufeff{"status":"paused"}'], ['NUL', '\0'],
  ];

  it('changes nothing by a line that is not understood, and is stopped before its first one that is', async (t) => {
    const talk = await startTalk(t);
    for (const [, line] of NONSENSE) talk.say(`${line}\n`);
    await until(() => talk.complaints() !== '');
    assert.deepEqual(await perform(talk.port, 'pause'), [200, undefined]);
    await talk.is('paused');
    assert.equal(stateOf(talk.pid), 'T');
    assert.deepEqual(await perform(talk.port, 'resume'), [200, undefined]);
    talk.say({ detail: { epoch: 1 } });
    await talks(talk);
    for (const [, line] of NONSENSE) talk.say(`${line}\n`);
    await talk.taken();
    await talk.is('active');
    assert.equal(talk.complaints().match(/\n/g)?.length, 1, talk.complaints());
    assert.ok(talk.complaints().includes(`${NOT_UNDERSTOOD}epoch 12`));
    assert.deepEqual((await getInfo(talk.port)).commands.map(({ command }) => command), ['pause', 'resume']);
    const pause = perform(talk.port, 'pause');
    await talk.gets(1, 'pause');
    assert.notEqual(stateOf(talk.pid), 'T');
    talk.say({ done: 1 });
    assert.deepEqual(await pause, [200, undefined]);
  });

  it('clears no terminal by what is reported', async (t) => {
    const talk = await startTalk(t);
    talk.say(`${HOSTILE.replaceAll(/[\r\n]/g, '')}${'y'.repeat(60_000)}\n`);
    await until(() => talk.complaints().includes('\n'));
    assertHarmless(talk.complaints());
    assert.ok(talk.complaints().length < 1000, `one line of a terminal or two, got ${talk.complaints().length}`);
    talk.say(HELLO, { detail: { [HOSTILE]: HOSTILE } });
    await until(async () => HOSTILE in (await getDetail(talk.port) as object));
  });

  it('may use CRLF, spaces, multi-byte characters split over writes, invalid ones, and no newline yet', async (t) => {
    const talk = await startTalk(t, [], `
      const { writeSync } = require('node:fs');
      const lines = ' {"detail" : {"epoch": 1, "note": "ä€😀#"}}\\r\\n{"status":"paused"} \\r\\n{"status":';
      for (const byte of Buffer.from(lines).map((one) => one === 35 ? 255 : one)) {
        writeSync(3, Buffer.of(byte));
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
      }
      setTimeout(() => {}, 1e9);
    `);
    await talk.is('paused');
    await talks(talk);
    const { note, epoch } = await getDetail(talk.port) as Record<string, unknown>;
    assert.deepEqual([note, epoch], ['ä€😀\ufffd', 1]);
    assert.equal(talk.complaints(), '');
  });

  it('may write lines of 64 KiB; longer ones are dropped, however they arrive', async (t) => {
    const talk = await startTalk(t);
    const line = (length: number, status: string): string => {
      return `${`{"status":"${status}","x":"`.padEnd(length - 2, 'x')}"}\n`;
    };
    assert.equal(line(100, 'paused').length, 101);
    talk.say(line(65_536, 'paused'));
    await talk.is('paused');
    assert.equal(talk.complaints(), '');
    talk.say(line(65_537, 'resuming'), { detail: { epoch: 1 } });
    await until(async () => await epochOf(talk) === 1);
    await talk.is('paused');
    assert.match(talk.complaints(), /^.* has written a line above 64 KiB to CONTROL_FD\n$/m);
    for (const length of [70_000, 131_072, 131_073, 5_000_000]) {
      talk.say(line(length, 'resuming'), { detail: { epoch: length } });
      await until(async () => await epochOf(talk) === length);
      await talk.is('paused');
    }
    talk.say('{"status":"resuming"}'.repeat(20_000)); // without an end
    talk.say('\n', { status: 'active' });
    await talk.is('active');
    assert.equal(talk.complaints().match(/\n/g)?.length, 1, 'it is reported once');
  });

  it('may tell a detail in a line of 3000 bytes, which is merged with what control-run tells', async (t) => {
    const talk = await startTalk(t, []);
    const note = 'x'.repeat(3000 - '{"detail":{"pid":1,"command":"no","epoch":5,"note":""}}'.length);
    talk.say({ detail: { pid: 1, command: 'no', epoch: 5, note } });
    await talks(talk);
    const detail = await getDetail(talk.port) as Record<string, unknown>;
    assert.deepEqual([detail['epoch'], detail['note'], detail['pid'], detail['processes']], [5, note, talk.pid, 1]);
    assert.match(String(detail['command']), /node/);
    for (const key of ['started', 'CPU seconds', 'memory MiB']) assert.ok(key in detail, key);
    const euros = 'x'.repeat(note.length % 3) + '€'.repeat(note.length / 3);
    for (const line of [
      { detail: { pid: 1, command: 'no', epoch: 9, note: `${note}x` } }, { detail: { epoch: 9 }, x: 'x'.repeat(3000) },
      `{"detail":{"epoch":9,"deep":${'['.repeat(30_000)}${']'.repeat(30_000)}}}\n`,
      { detail: { pid: 1, command: 'no', epoch: 9, note: `${euros}x` } },
    ]) talk.say(line);
    talk.say({ status: 'resuming' });
    await talk.is('resuming');
    await sleep(DETAIL_MS);
    assert.equal(await epochOf(talk), 5);
    talk.say({ detail: { pid: 1, command: 'no', epoch: 6, note: euros } });
    await until(async () => await epochOf(talk) === 6);
    assert.equal(talk.complaints().match(/\n/g)?.length, 1, talk.complaints());
    talk.say('{"detail":{"epoch":10,"__proto__":{"pid":1},"constructor":1,"toJSON":2}}\n');
    await until(async () => await epochOf(talk) === 10);
    const { pid, ...others } = await getDetail(talk.port) as Record<string, unknown>;
    assert.deepEqual([pid, others['constructor'], 'note' in others], [talk.pid, 1, false]);
  });

  it('floods control-run, and is paused, resumed and ended', async (t) => {
    for (const line of ['{"status":"active"}\\n{"detail":{"epoch":1,"note":"flood"}}', NOTES]) {
      const talk = await startTalk(t, ['--force-stop', '0.2'], `
        const { writeSync } = require('node:fs');
        writeSync(3, '{"detail":{"epoch":0}}\\n');
        const lines = Buffer.from('${line}\\n'.repeat(10_000));
        for (;;) for (let start = 0; start < lines.length; ) start += writeSync(3, lines, start);
      `);
      await talks(talk);
      assert.deepEqual(await perform(talk.port, 'pause'), [200, 'stopped by SIGSTOP'], line);
      await talk.is('paused');
      await sleep(100);
      await talk.is('paused');
      assert.equal(stateOf(talk.pid), 'T');
      const resume = perform(talk.port, 'resume'); // the program does not read
      await until(() => stateOf(talk.pid) !== 'T');
      if (line !== NOTES) assert.deepEqual(await resume, [200, undefined], 'it says that it is active');
      talk.running.child.kill('SIGTERM');
      assert.equal(await exitCodeOf(talk.running), 128 + 15);
      assert.equal((await resume)[0], line === NOTES ? 500 : 200);
      assert.ok((talk.complaints().match(/ to CONTROL_FD\n/g)?.length ?? 0) <= 1, talk.complaints());
    }
  });

  it('needs no more memory for a flood of details', async (t) => {
    const talk = await startTalk(t, [], `
      const { writeSync } = require('node:fs');
      const some = '{"detail":{"epoch":0,"note":"' + 'x'.repeat(60) + '"}}\\n{"status":"active"}\\n';
      const lines = Buffer.from(some.repeat(50_000) + '{"detail":{"epoch":1}}\\n');
      for (let start = 0; start < lines.length; ) start += writeSync(3, lines, start);
      setTimeout(() => {}, 1e9);
    `);
    await until(async () => await epochOf(talk) === 1, () => talk.running.output());
    const memory = Number(/^VmRSS:\s+(\d+)/m.exec(tryRead(`/proc/${talk.running.child.pid}/status`))?.[1]);
    assert.ok(memory < 200_000, `${memory} KiB after 100,000 lines, 6 MB`);
  });

  it('tells what it has saved although it ends at once, even if others hold the socket open', async (t) => {
    const stdio = "['ignore', 'ignore', 'ignore', 3]";
    for (const left of ['', `require('node:child_process').spawn('sleep', ['98765.3'], { stdio: ${stdio} });`]) {
      const talk = await startTalk(t, ['--grace', '10'], `
        const { readSync, writeSync } = require('node:fs');
        ${left}
        writeSync(3, '{"detail":{"epoch":0}}\\n');
        readSync(3, Buffer.alloc(1000));
        writeSync(3, '{"detail":{"epoch":1}}\\n'.repeat(100) + '{"done":1,"value":"the last"}\\n');
        process.kill(process.pid, 'SIGKILL');
      `);
      await talks(talk);
      assert.deepEqual(await perform(talk.port, 'shutdown'), [200, 'the last; SIGKILL']);
      assert.equal((await talk.running.ended).code, 137);
      assert.deepEqual(processesOf(talk.running), [], 'a shutdown ends all');
    }
  });

  it('ends by itself while a grandchild holds the socket open', async (t) => {
    const talk = await startTalk(t, [], `
      const stdio = ['ignore', 'ignore', 'ignore', 3];
      require('node:child_process').spawn('sleep', ['98765.4'], { stdio, detached: true });
      require('node:fs').writeSync(3, '{"status":"active"}\\n');
      process.stdin.on('end', () => process.exit(5)).resume();
    `);
    talk.running.child.stdin?.end();
    assert.equal((await talk.running.ended).code, 5);
    killAll(processesOf(talk.running));
  });

  it('that does not answer is stopped, active and ended --grace after the next command', async (t) => {
    const talk = await startTalk(t);
    talk.say(HELLO);
    await talk.taken();
    const pause = perform(talk.port, 'pause');
    await talk.gets(1, 'pause');
    await sleep(SEVERAL_GRACES_MS); // nothing else waits
    assert.deepEqual(await latestOf(talk), ['pause', 'running', undefined]);
    const resume = perform(talk.port, 'resume');
    assert.deepEqual(await pause, [200, 'stopped by SIGSTOP']);
    await talk.gets(2, 'resume');
    await sleep(SEVERAL_GRACES_MS);
    assert.deepEqual(await latestOf(talk), ['resume', 'running', undefined]);
    const shutdown = perform(talk.port, 'shutdown');
    assert.deepEqual(await resume, [500, `resume failed: node[${talk.pid}] has not responded within 0.5 s`]);
    await talk.gets(3, 'shutdown');
    await sleep(SEVERAL_GRACES_MS); // a last save may take long
    assert.deepEqual(await latestOf(talk), ['shutdown', 'running', undefined]);
    const save = perform(talk.port, 'save-state').catch(() => null); // it may not arrive
    assert.deepEqual(await shutdown, [200, 'SIGTERM']);
    assert.equal(await exitCodeOf(talk.running), 128 + 15);
    await save;
  });

  it('is active although it has not answered a resume; what it says of it later is ignored', async (t) => {
    const talk = await startTalk(t);
    talk.say({ status: 'paused' });
    await talk.is('paused');
    const [resume, save] = [perform(talk.port, 'resume'), perform(talk.port, 'save-state')];
    await talk.gets(1, 'resume');
    assert.equal((await resume)[0], 500);
    await talk.gets(2, 'save-state');
    await talk.is('active');
    talk.say({ failed: 1, error: 'late' });
    await talk.taken();
    await talk.is('active');
    talk.say({ done: 2, value: 'saved' });
    assert.deepEqual(await save, [200, 'saved']);
    assert.deepEqual(await perform(talk.port, 'resume'), [200, undefined], 'it is known to be active');
    assert.equal(talk.complaints(), '');
  });

  it('ends --grace after a signal although it does not answer', async (t) => {
    const talk = await startTalk(t);
    talk.say(HELLO);
    await talk.taken();
    const shutdown = perform(talk.port, 'shutdown');
    await talk.gets(1, 'shutdown');
    talk.running.child.kill('SIGTERM');
    assert.deepEqual(await shutdown, [200, 'SIGTERM']);
    assert.equal(await exitCodeOf(talk.running), 128 + 15);
  });

  it('has all the time for a save, until a signal asks for the end', async (t) => {
    const talk = await startTalk(t);
    talk.say(HELLO);
    await talk.taken();
    const save = perform(talk.port, 'save-state');
    await talk.gets(1, 'save-state');
    void perform(talk.port, 'pause');
    await sleep(SEVERAL_GRACES_MS);
    assert.equal((await getInfo(talk.port)).commands[0]?.state, 'running');
    talk.running.child.kill('SIGTERM');
    assert.deepEqual(await save, [500, `save-state failed: node[${talk.pid}] has not responded within 0.5 s`]);
    await talk.gets(2, 'shutdown');
    talk.say({ done: 2 });
    assert.equal((await talk.running.ended).code, 143);
  });

  it('is stopped after --force-stop, and gets pause and resume in order', async (t) => {
    const talk = await startTalk(t, ['--force-stop', '0.3']);
    talk.say(HELLO);
    await talk.taken();
    const start = performance.now();
    assert.deepEqual(await perform(talk.port, 'pause'), [200, 'stopped by SIGSTOP']);
    assert.ok(performance.now() - start >= 300);
    await talk.is('paused');
    assert.equal(stateOf(talk.pid), 'T');
    const stopped = `save-state failed: node[${talk.pid}] is stopped and cannot save: resume it first`;
    assert.deepEqual(await perform(talk.port, 'save-state'), [500, stopped]);
    assert.deepEqual(await perform(talk.port, 'pause'), [200, undefined]);
    const resume = perform(talk.port, 'resume');
    await talk.gets(1, 'pause');
    await talk.gets(2, 'resume');
    assert.notEqual(stateOf(talk.pid), 'T');
    talk.say({ status: 'paused' }, { done: 1 });
    await talk.taken();
    await talk.is('resuming');
    talk.say({ status: 'active' });
    assert.deepEqual(await resume, [200, undefined]);
    await talk.is('active');
    await perform(talk.port, 'pause');
    const shutdown = perform(talk.port, 'shutdown');
    await talk.gets(3, 'pause');
    await talk.gets(4, 'shutdown');
    talk.say({ done: 4, value: 'saved' });
    assert.deepEqual(await shutdown, [200, 'saved; SIGTERM']);
  });

  it('is not stopped if it pauses just in time', async (t) => {
    const talk = await startTalk(t, ['--force-stop', '1']);
    talk.say(HELLO);
    await talk.taken();
    const pause = perform(talk.port, 'pause');
    await talk.gets(1, 'pause');
    talk.say({ status: 'paused' });
    assert.deepEqual(await pause, [200, undefined]);
    await sleep(1200);
    assert.equal(stateOf(talk.pid), 'S');
    const late = await startTalk(t, ['--force-stop', '0.05']);
    late.say(HELLO);
    await late.taken();
    for (let id = 1; id <= 12; id += 2) { // before, during and after it is stopped
      const busy = perform(late.port, 'pause');
      await late.running.shows(new RegExp(`"id":${id},`));
      await sleep(30 + 3 * id);
      late.say({ done: id });
      assert.equal((await busy)[0], 200);
      await late.is('paused');
      const resume = perform(late.port, 'resume');
      await late.running.shows(new RegExp(`"id":${id + 1},`));
      late.say({ done: id + 1 });
      assert.deepEqual(await resume, [200, undefined]);
      await late.is('active');
    }
  });

  for (const [what, close] of [
    ['the socket', 'socket.destroy()'], ['what it writes', 'socket.end()'],
  ] as const) {
    it(`may close ${what}, and is stopped from then on`, async (t) => {
      const talk = await startTalk(t, [], `
        const socket = new (require('node:net').Socket)({ fd: 3, allowHalfOpen: true });
        socket.on('data', () => ${close}).on('error', () => {});
        socket.write('{"status":"active"}\\n{"detail":{"epoch":1}}\\n');
        setInterval(() => {}, 1000);
      `);
      await talks(talk);
      assert.deepEqual(await perform(talk.port, 'pause'), [500, 'pause failed: the program closed CONTROL_FD']);
      await talk.is('active');
      assert.deepEqual(await perform(talk.port, 'pause'), [200, undefined]);
      assert.equal(stateOf(talk.pid), 'T');
      assert.deepEqual(await perform(talk.port, 'resume'), [200, undefined]);
      assert.notEqual(stateOf(talk.pid), 'T');
      const none = 'save-state failed: no way to save: start control-run with --save-signal or --save-command';
      assert.deepEqual(await perform(talk.port, 'save-state'), [500, none]);
      assert.deepEqual(await perform(talk.port, 'shutdown'), [200, 'SIGTERM']);
    });
  }

  it('may shut down the direction that it reads', { skip: lacks('python3') }, async (t) => {
    const run = await startRun(t, ['--grace', '0.5'], ['python3', '-c', `
import os, socket, time
control = socket.socket(fileno=3)
control.sendall(b'{"status":"active"}\\n')
control.shutdown(socket.SHUT_RD)
control.sendall(b'{"detail":{"epoch":1}}\\n')
time.sleep(98765.5)
`]);
    await talks(run);
    assert.equal((await perform(run.port, 'pause'))[0], 500);
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    assert.equal(stateOf(run.pid), 'T');
  });

  it('is started again with a new socket and new ids', async (t) => {
    const talk = await startTalk(t, ['--restart', 'on-failure:2'], `
      const socket = new (require('node:net').Socket)({ fd: 3 });
      console.log('started');
      socket.write('{"status":"active"}\\n{"detail":{"epoch":' + process.pid + '}}\\nnonsense\\n');
      let count = 0;
      socket.on('data', (text) => {
        process.stdout.write(text);
        socket.write('{"done":' + JSON.parse(text).id + '}\\n', () => (count += 1) === 2 && process.exit(3));
      });
    `);
    await until(async () => await epochOf(talk) === talk.pid);
    await perform(talk.port, 'pause');
    await perform(talk.port, 'resume');
    await talk.running.shows(/ended with exit code 3: restart 1 in 1 s/);
    await until(async () => ![-1, talk.pid].includes(await epochOf(talk)));
    assert.deepEqual(await perform(talk.port, 'pause'), [200, undefined]);
    assert.match(talk.running.output(), /\{"id":2,"command":"resume"\}\n(.*\n)*?started\n\{"id":1,/);
    assert.deepEqual(await perform(talk.port, 'shutdown'), [200, 'exit code 3']);
  });

  it('is restarted whatever status it has reported before', async (t) => {
    await Promise.all(['pausing', 'shutting down'].map(async (status) => {
      const talk = await startTalk(t, ['--restart', 'on-failure:1'], `
        require('node:fs').writeSync(3, '{"status":"${status}"}\\n');
        console.log('started');
        setTimeout(() => process.exit(4), 300);
      `);
      assert.equal((await talk.running.ended).code, 4);
      assert.equal(talk.running.output().match(/started/g)?.length, 2, status);
    }));
  });

  it('fails to save: the shutdown is called off once, the second one ends it', async (t) => {
    const talk = await startTalk(t);
    talk.say({ status: 'paused' });
    await talk.is('paused');
    const shutdown = perform(talk.port, 'shutdown');
    await talk.gets(1, 'shutdown');
    await talk.is('shutting down');
    talk.say({ status: 'active' });
    await talk.taken();
    await talk.is('shutting down');
    talk.say({ failed: 1, error: 'disk full' });
    assert.deepEqual(await shutdown, [500, 'shutdown failed: disk full']);
    await talk.is('paused');
    talk.say({ status: 'active' });
    await talk.is('active');
    const second = perform(talk.port, 'shutdown');
    await talk.gets(2, 'shutdown');
    talk.say({ failed: 2, error: 'still full' });
    assert.deepEqual(await second, [500, 'shutdown failed: still full']);
    assert.equal((await talk.running.ended).code, 143);
  });

  it('ends without an answer to the shutdown', async (t) => {
    const talk = await startTalk(t);
    talk.say(HELLO);
    await talk.taken();
    const shutdown = perform(talk.port, 'shutdown');
    await talk.gets(1, 'shutdown');
    talk.running.child.stdin?.end();
    assert.deepEqual(await shutdown, [200, 'exit code 7']);
    assert.equal((await talk.running.ended).code, 7);
  });

  it('fails a command during which it ends', async (t) => {
    for (const command of ['pause', 'save-state'] as const) {
      const talk = await startTalk(t);
      talk.say(HELLO);
      await talk.taken();
      const outcome = perform(talk.port, command);
      await talk.gets(1, command);
      talk.running.child.stdin?.end();
      assert.deepEqual(await outcome, [500, `${command} failed: the program closed CONTROL_FD`]);
      assert.equal((await talk.running.ended).code, 7);
    }
  });

  it('does not end although it has said that it is done', async (t) => {
    const talk = await startTalk(t, [], `process.on('SIGTERM', () => {});${RELAY}`);
    talk.say(HELLO);
    await talk.taken();
    const shutdown = perform(talk.port, 'shutdown');
    await talk.gets(1, 'shutdown');
    talk.say({ done: 1, value: 'saved' });
    assert.deepEqual(await shutdown, [200, 'saved; SIGKILL']);
    assert.equal((await talk.running.ended).code, 137);
    assert.match(talk.complaints(), /did not end within 0\.5 s: killed/);
  });

  it('gets each command once, in order, also if the queue was full', async (t) => {
    const program = `
      const socket = new (require('net').Socket)({ fd: 3 });
      const say = (what) => socket.write(JSON.stringify(what) + '\\n');
      let free = new Promise((resolve) => process.stdin.once('data', resolve));
      let last = Promise.resolve();
      require('readline').createInterface({ input: socket }).on('line', (line) => {
        const { id, command } = JSON.parse(line);
        console.log(command);
        last = last.then(() => free).then(() => say({ done: id, value: id }));
      });
      say({ status: 'active' });
      console.log('ready');
      process.stdin.on('end', () => process.exit(3));`;
    const { running, port } = await startRun(t, ['--grace', '100'], [process.execPath, '-e', program]);
    await running.shows(/^ready$/m);
    const first = perform(port, 'save-state');
    await running.shows(/^save-state$/m);
    const accepted = ['save-state'];
    const commands: ControlCommand[] = ['pause', 'save-state', 'resume'];
    for (let count = 0; count < 40; count += 1) {
      const command = commands[(accepted.length - 1) % 3] as ControlCommand;
      const { status } = await fetch(`http://127.0.0.1:${port}/api/${command}`, { method: 'POST' });
      if (status === 200) accepted.push(command);
      else assert.equal(status, 503);
    }
    assert.equal(accepted.length, 17);
    running.child.stdin?.write('\n');
    assert.deepEqual(await first, [200, 1]);
    const seen = (): string[] => running.output().split('\n').filter((line) => /^[a-z-]+$/.test(line)).slice(1);
    await until(async () => (await getInfo(port)).commands.every(({ state }) => state === 'done'));
    await until(() => seen().length >= accepted.length, () => seen().join());
    assert.deepEqual(await perform(port, 'save-state'), [200, 18]);
    assert.deepEqual(seen(), [...accepted, 'save-state']);
    running.child.stdin?.end();
    assert.equal(await exitCodeOf(running), 3);
  });
});
