// The Python module that control-run prints, and the programs of bin/run/channel.md that use it.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { getInfo, makeFolder, perform, runProgram, start } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { endRun, PYTHON, showsDetail, showsRun, startRun, stateOf } from './helpers.ts';
import { declarationsOf, epochOf, order, talks } from './talk.ts';
import type { TestContext } from 'node:test';

const suite = { ...LIMIT, concurrency: 3 };
const SEVERAL_TIMEOUTS_MS = 200; // of 0.05 s
const MODULE = readFileSync('bin/run/control.py', 'utf8');

/** What a trainer needs. Files control how it saves; it writes its latest epoch to a file. */
const AROUND = `
import os, pathlib, sys, time
from control import Control
folder = sys.argv[1]
def exists(name): return os.path.exists(folder + '/' + name)
saves = 0
def save():
    global saves
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

const TRAINER = `
control = Control(save)
for epoch in range(90):
    loss = train(epoch)
    control.say(detail={'epoch': epoch, 'loss': loss})
    if control.poll(): break
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

/** The module and a trainer as files: multiprocessing reads the trainer again. */
function writeScript(t: TestContext, code: string, stepSeconds: number = 0.01): Script {
  const folder = makeFolder(t);
  const path = join(folder, 'train.py');
  writeFileSync(join(folder, 'control.py'), MODULE);
  writeFileSync(path, `${AROUND}${code}`);
  return { folder, path, command: [PYTHON, path, folder, `${stepSeconds}`] };
}

describe('control-run: the Python module', { ...suite, skip: lacks('Linux', 'python3') }, () => {
  it('pauses, resumes, saves, reports and ends between two steps; a failed save changes nothing', async (t) => {
    // select() fails with more than 1,024 files; the default timeout is not for commands.
    const { folder, command } = writeScript(t, `
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
files = [open(os.devnull) for _ in range(1100)]
socket.setdefaulttimeout(.05)
${ENDLESS}${EPILOGUE}`);
    const run = await startRun(t, [], command);
    await talks(run);
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    assert.equal(stateOf(run.pid), 'S', 'it sleeps instead of being stopped');
    const epoch = Number(readFileSync(join(folder, 'epoch'), 'utf8'));
    await showsDetail(run, { epoch, loss: 1 / (epoch + 1) });
    await showsRun(run, { pid: run.pid, command: command.join(' '), processes: 1, canSave: true });
    await sleep(SEVERAL_TIMEOUTS_MS);
    assert.equal(Number(readFileSync(join(folder, 'epoch'), 'utf8')), epoch, 'no epoch passes while it is paused');
    assert.deepEqual(await perform(run.port, 'save-state'), [200, 'ckpt/1.pt']);
    assert.equal((await getInfo(run.port)).status, 'paused', 'a save does not end the pause');
    assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
    await until(async () => await epochOf(run) > epoch);
    for (const [file, why] of [
      ['silent', 'AssertionError()'], ['broken', '[Errno 28] No space left on device'],
    ] as const) {
      writeFileSync(join(folder, file), '');
      for (const name of ['save-state', 'shutdown'] as const) {
        assert.deepEqual(await perform(run.port, name), [500, `${name} failed: ${why}`]);
      }
      rmSync(join(folder, file));
    }
    const later = await epochOf(run);
    await until(async () => await epochOf(run) > later, () => 'it no longer trains');
    assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'ckpt/2.pt; exit code 0']);
    const { code, stdout } = await run.running.ended;
    assert.equal(code, 0);
    assert.match(stdout, /^saved 1\nsaved 2\nended after \d+ epochs\n$/);
  });

  for (const [signal, code] of [['SIGTERM', 0], ['SIGKILL', null]] as const) {
    it(`saves when control-run receives ${signal}, even while paused`, async (t) => {
      const ignore = 'import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n'; // of the keeper
      const run = await startRun(t, ['--grace', '60'], writeScript(t, `${ignore}${ENDLESS}`).command);
      await talks(run);
      await perform(run.port, 'pause');
      run.running.child.kill(signal);
      const ended = await run.running.ended;
      assert.deepEqual([ended.code, ended.stdout], [code, 'saved 1\n']);
      assert.match(ended.stderr, /^control-run: .*\n$/, 'nothing but the banner');
    });
  }

  it('does nothing without control-run, whatever the variable or the descriptor is', async (t) => {
    const { folder, path } = writeScript(t, TRAINER + EPILOGUE, 0);
    const connect = 'import os, socket, subprocess, sys; server = socket.create_server(("127.0.0.1", 0)); ' +
      'near = socket.create_connection(server.getsockname()); far, _ = server.accept(); os.dup2(near.fileno(), 3); ' +
      'code = subprocess.run(sys.argv[1:], pass_fds=[3]).returncode; near.close(); os.close(3); ' +
      'sys.exit(code or len(far.recv(99)))';
    await Promise.all([
      'unset CONTROL_FD; "$@"', '"$@" 3>&-', '"$@" 3> "$0/file"', '{ "$@" 3>&1 >&4 | cat; } 4>&1',
      `"$1" -c '${connect}' "$@"`,
    ].map(async (script) => {
      const args = ['-c', script, folder, PYTHON, path, folder, '0'];
      const { code, stdout, stderr } = await start(t, 'sh', args, { CONTROL_FD: '3' }).ended;
      assert.deepEqual([code, stdout, stderr], [0, 'ended after 90 epochs\n', ''], script);
    }));
    assert.equal(statSync(join(folder, 'file')).size, 0);
  });

  it('does nothing in child processes', async (t) => {
    const { command } = writeScript(t, `
import subprocess
if len(sys.argv) > 3: # a child with an environment of its own
    control = Control(save)
    control.say(detail={'epoch': -1})
    sys.exit(control.poll())
control = Control(save)
link = os.readlink(f'/proc/self/fd/{control.socket.fileno()}')
subprocess.run([sys.executable, *sys.argv, 'child'], check=True)
child = os.fork()
if child == 0:
    control.say(detail={'epoch': -1})
    links = [os.readlink(entry) for entry in os.scandir('/proc/self/fd') if os.path.lexists(entry)]
    os._exit(link in links or control.poll())
assert os.waitpid(child, 0)[1] == 0
control.say(detail={'children': 'have ended'})
while not control.poll(): time.sleep(.01)
`);
    const run = await startRun(t, [], command);
    assert.equal((await showsDetail(run, { children: 'have ended' }))['epoch'], undefined);
    assert.deepEqual(await perform(run.port, 'save-state'), [200, 'ckpt/1.pt']);
    assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'ckpt/2.pt; exit code 0']);
  });

  it('takes them in one process of those whose launcher has closed the descriptor; the others say so', async (t) => {
    const { command } = writeScript(t, `
import socket, subprocess
if len(sys.argv) < 4:
    children = [subprocess.Popen([sys.executable, *sys.argv, '1']) for _ in '12']
    sys.exit(max(child.wait() for child in children))
others = socket.socketpair()  # has the number that the descriptor had
def save(): return os.getpid()
${ENDLESS}${EPILOGUE}`);
    const run = await startRun(t, [], command);
    await run.running.shows(/^control\.py: takes no commands: process \d+ takes the commands$/m);
    const [, taker] = /process (\d+) takes/.exec(run.running.output()) ?? [];
    await talks(run);
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    assert.equal(stateOf(run.pid), 'S', 'it is not stopped');
    assert.deepEqual(await perform(run.port, 'save-state'), [200, Number(taker)]);
    assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
    await endRun(run.running); // before the folder goes, into which they write
  });

  it('takes commands that arrive together', async (t) => {
    const { folder, command } = writeScript(t, `
control = Control(lambda: pathlib.Path(save()))
control.say(detail={'epoch': 0})
while not exists('step ends'): time.sleep(.01)
while not control.poll(): time.sleep(.01)
`);
    const run = await startRun(t, ['--grace', '0.3'], command);
    await showsDetail(run, { epoch: 0 });
    for (const name of ['pause', 'resume', 'pause'] as const) await run.client.request(name);
    await until(async () => (await getInfo(run.port)).commands[2]?.state === 'running');
    writeFileSync(join(folder, 'step ends'), '');
    await until(async () => (await getInfo(run.port)).commands[2]?.state === 'done');
    const outcomes = (await getInfo(run.port)).commands.map(({ value, error }) => value ?? error);
    const silence = `train.py[${run.pid}] did not respond within 0.3 s`;
    assert.deepEqual(outcomes, ['stopped by SIGSTOP', silence, undefined]);
    assert.equal((await getInfo(run.port)).status, 'paused');
    assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
    assert.deepEqual(await perform(run.port, 'save-state'), [200, 'ckpt/1.pt'], 'a path is a text');
  });

  it('is what --python prints, in the syntax of 3.8', async (t) => {
    assert.deepEqual(await runProgram(t, 'run', ['--python']), { code: 0, stdout: MODULE, stderr: '' });
    const check = 'import ast, sys; ast.parse(sys.stdin.read(), feature_version=(3, 8))';
    const { status, stderr } = spawnSync(PYTHON, ['-c', check], { input: MODULE, encoding: 'utf8' });
    assert.equal(status, 0, stderr);
  });

  it('refuses what cannot be declared, even without control-run', (t) => {
    const { folder } = writeScript(t, '');
    const message = 'is not supported: a parameter needs a name and a type ' +
      '(bool, int, float, str or typing.Literal); a default must have that type';
    const name = 'the name must match [a-z][a-z0-9-]{0,31} and not be a standard one';
    const long = 'x'.repeat(33);
    const pass = 'def set(): pass';
    const number = 'a dict in Annotated may have minimum, maximum, description, got';
    const bounds: [annotated: string, error: string, preset?: string][] = [
      ["float, {'maximum': 1.5, 'description': 'per step'}", '', '1'],
      ["str, {'maxLength': 3}", '', "'abc'"],
      ["bool, {'description': 'whether'}", '', 'True'],
      ["typing.Literal['a'], {'description': 'how'}", '', "'a'"],
      ["float, {'min': 0}", `${number} {'min': 0}`],
      ["int, 'of another library', {'minimum': 1}", ''],
      ["int, 'of another library', {'minimum': 1}", "the default must be within {'minimum': 1}, got 0", '0'],
      ["str, {'minimum': 0}", "a dict in Annotated may have maxLength, description, got {'minimum': 0}"],
      ["typing.Literal['a'], {'maxLength': 1}", "a dict in Annotated may have description, got {'maxLength': 1}"],
      ["int, {'minimum': '0'}", "minimum must be a finite number, got '0'"],
      ["int, {'maximum': True}", 'maximum must be a finite number, got True'],
      ["float, {'minimum': float('nan')}", 'minimum must be a finite number, got nan'],
      ["str, {'maxLength': 2.5}", 'maxLength must be an integer, got 2.5'],
      ["str, {'maxLength': -1}", 'maxLength must be at least 0, got -1'],
      ["int, {'minimum': 2, 'maximum': 1}", 'maximum must be at least 2, got 1'],
      ["str, {'description': 5}", 'description must be a text, got 5'],
      ["float, {'maximum': 1}", "the default must be within {'maximum': 1}, got 2", '2'],
      ["str, {'maxLength': 3}", "the default must be within {'maxLength': 3}, got 'long'", "'long'"],
    ];
    const rows: [key: string, code: string, error: string][] = [
      ['set-it', 'def set(rate): pass', `TypeError: command 'set-it': rate ${message}`],
      ['set-it', 'def set(*rates: float): pass', `TypeError: command 'set-it': *rates: float ${message}`],
      ['set-it', 'def set(rates: list): pass', `TypeError: command 'set-it': rates: list ${message}`],
      ['set-it', 'def set(rate: int = 0.5): pass', `TypeError: command 'set-it': rate: int = 0.5 ${message}`],
      ['set-it', "def set(rate: typing.Literal['a', 1]): pass",
        `TypeError: command 'set-it': rate: Literal['a', 1] ${message}`],
      ['set-it', "def set(rate: 'Rate'): pass", "TypeError: command 'set-it': name 'Rate' is not defined"],
      ['set-it', 'set = 7', "TypeError: command 'set-it': 7 is not a module, class, method, or function."],
      ['set-it', 'set = lambda _rate: 0',
        "ValueError: command 'set-it': the name '_rate' must match [A-Za-z][A-Za-z0-9_]{0,31}"],
      ...['pause', 'status', 'stack', 'set_rate', '', long].map((one): [string, string, string] => {
        return [one, pass, `ValueError: command '${one}': ${name}`];
      }),
      ['pause-all', pass, ''],
      ...bounds.map(([annotated, error, preset]): [string, string, string] => [
        'set', `def set(rate: typing.Annotated[${annotated}]${preset === undefined ? '' : ` = ${preset}`}): pass`,
        error && `ValueError: command 'set': rate: ${error}`,
      ]),
    ];
    const script = `
import json, sys, typing
from control import Control
for key, code, _ in json.load(sys.stdin):
    exec(code)
    error = ''
    try: Control(commands={key: set})
    except Exception as raised: error = f'{type(raised).__name__}: {raised}'
    print(error.replace(': typing.Literal', ': Literal'))`;
    const options = { cwd: folder, input: JSON.stringify(rows), encoding: 'utf8' } as const;
    assert.deepEqual(spawnSync(PYTHON, ['-c', script], options).stdout.split('\n'), [...rows.map((row) => row[2]), '']);
  });

  it('executes own commands between two steps, also while paused, and continues if one fails', async (t) => {
    const { command } = writeScript(t, `
rate = 0.1
def set_rate(learning_rate: float, note: str = 'none'):
    global rate
    if learning_rate < 0: raise ValueError('learning_rate must not be negative')
    if note == 'long': raise ValueError('x' * 100_000)
    before, rate = rate, learning_rate
    return {'before': before, 'rate': rate, 'note': note, 'by': control.request.get('by')}
control = Control(save, {'set': set_rate})
for epoch in range(10**6):
    control.say(detail={'epoch': epoch, 'learning_rate': rate})
    if control.poll(): break
    time.sleep(.01)
assert control.poll() and control.ends
print('ended', flush=True)
`);
    const run = await startRun(t, [], command);
    await showsDetail(run, { learning_rate: 0.1 });
    const set = (body: object, by: string = ''): Promise<unknown> => order(run.port, `set${by}`, body);
    const first = { before: 0.1, rate: 0.01, note: 'none', by: 'ana' };
    assert.deepEqual(await set({ learning_rate: 0.01 }, '?by=ana'), [200, first]);
    await showsDetail(run, { learning_rate: 0.01 });
    assert.deepEqual(await set({ learning_rate: -1 }), [500, 'set failed: learning_rate must not be negative']);
    await run.running.shows(/^Traceback .*\n[^]*ValueError: learning_rate must not be negative\n/m);
    assert.match(String(await set({ learning_rate: 1, note: 'long' })), /^500,set failed: x{1000}$/);
    assert.deepEqual(await set({}), [400, 'set: learning_rate must be a number, got nothing']);
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    const second = { before: 0.01, rate: 0.2, note: 'ü\n', by: null };
    assert.deepEqual(await set({ learning_rate: 0.2, note: 'ü\n' }), [200, second]);
    assert.equal((await getInfo(run.port)).status, 'paused');
    assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'ckpt/1.pt; exit code 0']);
    assert.match((await run.running.ended).stdout, /ended\n$/);
  });

  it('declares functions, passes numbers of their types, and sends what JSON lacks as texts', async (t) => {
    const { command } = writeScript(t, `
import functools, typing
class Trainer:
    def evaluate(self, episodes: 'int' = 100, *, greedy: bool = True):
        """
        Runs episodes
        without learning.
        """
def set_rate(optimizer, rate: float, mode: typing.Literal['once', 'for ever'] = 'once', note: str = ''): pass
class Tensor:
    def item(self): return 0.5
class Endless:
    def item(self): return Endless()
    def __str__(self): return 'endless'
class Mute:
    def __str__(self): raise ValueError
circle = []
circle.append(circle)
values = {
    'nested': [1, (2, {'best': float('-inf')})], 'tensor': Tensor(), 'path': pathlib.Path('a'), 'none': None,
    'endless': [Endless()], 'integer': 10**309, 'huge': ['x' * 100] * 1000,
    'key': {(1, 2): 3}, 'mute': Exception(Mute()),
}
def get(name: str):
    if isinstance(values[name], Exception): raise values[name]
    return values[name]
Share = typing.Annotated[float, {'minimum': 0, 'maximum': 1, 'description': 'of all'}]
def types(a: Share, b: int, c: float = 1): return repr([a, b, c])
control = Control(commands={
    'evaluate': Trainer().evaluate, 'set': functools.partial(set_rate, None), 'warm-up': lambda: None, 'get': get,
    'types': types,
})
control.say(detail={(1, 2): 3, 5: 6, Mute(): 7, 'mute': Mute(), 'circle': circle, 'keys': {'a': {(1, 2): 3}},
                    'loss': float('nan'), 'tensor': Tensor()})
control.say(detail=circle)
while not control.poll(): time.sleep(.01)
`);
    const run = await startRun(t, [], command);
    const detail = await showsDetail(run, {
      '(1, 2)': 3, 5: 6, circle: '[[...]]', keys: "{'a': {(1, 2): 3}}", loss: 'NaN', tensor: 0.5,
    });
    assert.match(String(detail['mute']), /^<__main__.Mute object at /);
    assert.match(Object.keys(detail).join(), /<__main__.Mute object at /);
    const { get: _, types, ...declared } = await declarationsOf(run.port) as Record<string, object>;
    const share = { type: 'number', minimum: 0, maximum: 1, description: 'of all' };
    assert.deepEqual((types as { parameters: object }).parameters, {
      a: share, b: { type: 'integer' }, c: { type: 'number', default: 1 },
    });
    assert.deepEqual(declared, {
      evaluate: {
        description: 'Runs episodes',
        parameters: { episodes: { type: 'integer', default: 100 }, greedy: { type: 'boolean', default: true } },
      },
      set: {
        description: '',
        parameters: {
          rate: { type: 'number' }, mode: { type: 'string', enum: ['once', 'for ever'], default: 'once' },
          note: { type: 'string', default: '' },
        },
      },
      'warm-up': { description: '', parameters: {} },
    });
    assert.deepEqual(await order(run.port, 'types', { a: 1, b: 2 }), [200, '[1.0, 2, 1.0]']);
    const tooLarge = [400, 'types: a must be a number from 0 to 1, got 1.5'];
    assert.deepEqual(await order(run.port, 'types', { a: 1.5, b: 2 }), tooLarge);
    for (const [name, value] of Object.entries({
      nested: [1, [2, { best: '-Infinity' }]], tensor: 0.5, path: 'a', none: undefined, endless: ['endless'],
      integer: `1${'0'.repeat(309)}`,
    })) {
      assert.deepEqual(await order(run.port, 'get', { name }), [200, value]);
    }
    for (const [name, error] of [
      ['huge', /^get failed: the program wrote a line longer than 64 KiB$/],
      ['key', /^get failed: keys must be str, int, float, bool or None, not tuple$/],
      ['mute', /^get failed: <Exception object at /],
    ] as const) {
      const [statusCode, text] = await order(run.port, 'get', { name });
      assert.equal(statusCode, 500);
      assert.match(String(text), error);
    }
    const error = 'save-state failed: the program has no save function';
    assert.deepEqual(await perform(run.port, 'save-state'), [500, error]);
    assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'exit code 0']);
  });
});

/** Stand-ins for the library and the code around each callback of the page. The check of the pages runs PyTorch's. */
const CALLBACKS = {
  transformers: `
transformers = sys.modules['transformers'] = MagicMock(TrainerCallback=object)
trainer = MagicMock(**{'lr_scheduler.base_lrs': [0.1], 'evaluate.return_value': {'eval_loss': 0.25}})
trainer.lr_scheduler.get_last_lr = lambda: trainer.lr_scheduler.base_lrs
trainer.args.output_dir, trainer.state.global_step = 'out', 7
PROGRAM
callback, control = trainer.add_callback.call_args[0][0], MagicMock(should_training_stop=False)
while not control.should_training_stop:
    callback.on_step_end(trainer.args, trainer.state, control, lr_scheduler=trainer.lr_scheduler, model=None)
    time.sleep(.01)`,
  Lightning: `
sys.modules['lightning'] = MagicMock(Callback=object)
PROGRAM
group = {'lr': 0.1}
trainer = MagicMock(global_step=7, optimizers=[MagicMock(param_groups=[group])], should_stop=False)
callback = RemoteControl()
callback.on_train_start(trainer, None)
while not trainer.should_stop:
    trainer.callback_metrics = {'learning_rate': group['lr']}
    callback.on_train_batch_end(trainer, None, {}, None, 0)
    time.sleep(.01)`,
};

describe('The callbacks of bin/recipes/loops.md', { ...suite, skip: lacks('Linux', 'python3') }, () => {
  const programs = [...readFileSync('bin/recipes/loops.md', 'utf8').matchAll(/^```python\n(.*?)^```$/gms)];
  for (const [index, [name, around]] of Object.entries(CALLBACKS).entries()) {
    it(`take commands with ${name}`, async (t) => {
      const program = around.replace('PROGRAM', programs[index]?.[1] ?? assert.fail());
      const { command } = writeScript(t, `from unittest.mock import MagicMock\n${program}`);
      const run = await startRun(t, [], command);
      await showsDetail(run, { step: 7, learning_rate: 0.1 });
      assert.equal((await order(run.port, 'set', { learning_rate: 0.01 }))[0], 200);
      await showsDetail(run, { learning_rate: 0.01 });
      assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
      const path = name === 'Lightning' ? '7.ckpt' : 'out/checkpoint-7';
      assert.deepEqual(await perform(run.port, 'save-state'), [200, path]);
      if (name === 'transformers') assert.deepEqual(await order(run.port, 'evaluate'), [200, { eval_loss: 0.25 }]);
      assert.deepEqual(await perform(run.port, 'shutdown'), [200, `${path}; exit code 0`]);
    });
  }
});
