// The Python module that control-run prints, and the programs of bin/run/channel.md that use it.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { getInfo, makeFolder, perform, runProgram, start, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { PYTHON, showsDetail, showsRun, startRun, stateOf } from './helpers.ts';
import { epochOf, order, talks } from './talk.ts';
import type { TestContext } from 'node:test';

const suite = { concurrency: 3, timeout: 300_000 };
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
  it('pauses, resumes, saves, reports and ends between two steps', async (t) => {
    const { folder, command } = writeScript(t, ENDLESS + EPILOGUE);
    const run = await startRun(t, [], command);
    await talks(run);
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    assert.equal(stateOf(run.pid), 'S', 'it sleeps instead of being stopped');
    const epoch = Number(readFileSync(join(folder, 'epoch'), 'utf8'));
    await showsDetail(run, { epoch, loss: 1 / (epoch + 1) });
    await showsRun(run, { pid: run.pid, command: command.join(' '), processes: 1, canSave: true });
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

  it('reports why a save failed, and saves at SIGTERM, even while paused', async (t) => {
    const { folder, command } = writeScript(t, ENDLESS);
    const run = await startRun(t, [], command);
    await talks(run);
    for (const [file, why] of [
      ['silent', 'AssertionError()'], ['broken', '[Errno 28] No space left on device'],
    ] as const) {
      writeFileSync(join(folder, file), '');
      for (const name of ['save-state', 'shutdown'] as const) {
        assert.deepEqual(await perform(run.port, name), [500, `${name} failed: ${why}`]);
      }
      rmSync(join(folder, file));
    }
    const epoch = await epochOf(run);
    await until(async () => await epochOf(run) > epoch, () => 'it no longer trains');
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    run.running.child.kill('SIGTERM');
    const { code, stdout } = await run.running.ended;
    assert.deepEqual([code, stdout], [0, 'saved 1\n']);
  });

  it('does nothing without control-run, whatever the variable or the descriptor is', async (t) => {
    const { folder, path } = writeScript(t, TRAINER + EPILOGUE, 0);
    const listen = (server: string): string => `import os, socket, sys; server = ${server}; ` +
      'os.dup2(server.fileno(), 3); os.set_inheritable(3, True); os.execvp(sys.argv[1], sys.argv[1:])';
    const connect = 'import os, socket, subprocess, sys; server = socket.create_server(("127.0.0.1", 0)); ' +
      'near = socket.create_connection(server.getsockname()); far, _ = server.accept(); os.dup2(near.fileno(), 3); ' +
      'code = subprocess.run(sys.argv[1:], pass_fds=[3]).returncode; near.close(); os.close(3); ' +
      'sys.exit(code or len(far.recv(99)))';
    await Promise.all([
      'unset CONTROL_FD; "$@"', '"$@" 3>&-', '"$@" 3> "$0/file"', '"$@" 3< "$0/train.py"', '"$@" 3> /dev/null',
      '{ "$@" 3>&1 >&4 | cat; } 4>&1', `"$1" -c '${connect}' "$@"`,
      `"$1" -c '${listen('socket.create_server(("127.0.0.1", 0))')}' "$@"`,
      `"$1" -c '${listen('socket.socket(socket.AF_UNIX)')}' "$@"`,
    ].map(async (script) => {
      const args = ['-c', script, folder, PYTHON, path, folder, '0'];
      const { code, stdout, stderr } = await start(t, 'sh', args, { CONTROL_FD: '3' }).ended;
      assert.deepEqual([code, stdout, stderr], [0, 'ended after 90 epochs\n', ''], script);
    }));
    assert.equal(statSync(join(folder, 'file')).size, 0);
  });

  it('does nothing in child processes', async (t) => {
    const { command } = writeScript(t, `
import multiprocessing, subprocess
def misuse(_):
    control.say(detail={'epoch': -1})
    links = [os.readlink(entry) for entry in os.scandir('/proc/self/fd') if os.path.lexists(entry)]
    return link in links or control.poll()
if __name__ == '__main__':
    if len(sys.argv) > 3: # the child of the program
        control = Control(save)
        for epoch in range(3): control.say(detail={'epoch': -99}); assert not control.poll()
        print('the child has ended', flush=True)
        sys.exit()
    control = Control(save)
    control.say(detail={'epoch': 0})
    subprocess.run([sys.executable, *sys.argv, 'child'], check=True)
    link = os.readlink(f'/proc/self/fd/{control.socket.fileno()}')
    with multiprocessing.get_context('fork').Pool(2) as pool:
        assert not any(pool.map(misuse, range(2)))
        control.say(detail={'epoch': 1})
        while not control.poll(): time.sleep(.01)
`);
    const run = await startRun(t, [], command);
    await showsDetail(run, { epoch: 1 });
    assert.match(run.running.output(), /the child has ended\n/);
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    assert.equal(stateOf(run.pid), 'S');
    assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
    assert.deepEqual(await perform(run.port, 'save-state'), [200, 'ckpt/1.pt']);
    assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'ckpt/2.pt; exit code 0']);
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
    assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'ckpt/1.pt; exit code 0']);
  });

  for (const [what, code] of [
    ['when more than 1,024 files are open', `
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
files = [open(os.devnull) for _ in range(1100)]
`],
    ['whatever the default timeout of sockets is', 'import socket\nsocket.setdefaulttimeout(.05)\n'],
  ] as const) {
    it(`takes commands ${what}`, async (t) => {
      const { command } = writeScript(t, code + ENDLESS);
      const run = await startRun(t, [], command);
      await talks(run);
      assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
      assert.equal(stateOf(run.pid), 'S', 'it sleeps, and is not stopped');
      await sleep(500);
      assert.equal((await getInfo(run.port)).status, 'paused');
      assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'ckpt/1.pt; exit code 0']);
    });
  }

  it('saves when control-run is killed, unless SIGTERM ends it first', async (t) => {
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

  it('is what --python prints: at most 120 lines of at most 120 columns, in the syntax of 3.8', async (t) => {
    assert.deepEqual(await runProgram(t, 'run', ['--python']), { code: 0, stdout: MODULE, stderr: '' });
    const lines = MODULE.split('\n').slice(0, -1);
    assert.ok(lines.length <= 120, `${lines.length} lines`);
    assert.deepEqual(lines.filter((line) => line.length > 120 || /\s$/.test(line)), []);
    const check = 'import ast, sys; ast.parse(sys.stdin.read(), feature_version=(3, 8))';
    const { status, stderr } = spawnSync(PYTHON, ['-c', check], { input: MODULE, encoding: 'utf8' });
    assert.equal(status, 0, stderr);
  });

  it('declares commands from the signatures of functions', async (t) => {
    const { command } = writeScript(t, `
import functools, typing
class Trainer:
    def evaluate(self, episodes: 'int' = 100, *, greedy: bool = True):
        """
        Runs episodes
        without learning.
        """
def set_rate(optimizer, rate: float, mode: typing.Literal['once', 'for ever'] = 'once', note: str = ''): pass
control = Control(commands={
    'evaluate': Trainer().evaluate, 'set': functools.partial(set_rate, None), 'now': lambda: None,
    'warm-up': lambda: None,
})
control.say(detail={'epoch': 0})
while not control.poll(): time.sleep(.01)
`);
    const run = await startRun(t, [], command);
    await talks(run);
    const { accepts } = await getInfo(run.port) as unknown as { accepts: object };
    assert.deepEqual(accepts, {
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
      now: { description: '', parameters: {} },
      'warm-up': { description: '', parameters: {} },
    });
    const error = 'save-state failed: the program has no save function';
    assert.deepEqual(await perform(run.port, 'save-state'), [500, error]);
    assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'exit code 0']);
  });

  it('refuses what cannot be declared, even without control-run', (t) => {
    const { folder } = writeScript(t, '');
    const message = 'is not supported: a parameter needs a name and a type ' +
      '(bool, int, float, str or typing.Literal); a default must have that type';
    const parameter = 'must match [A-Za-z][A-Za-z0-9_]{0,31}';
    const long = 'x'.repeat(33);
    for (const [code, expected] of [
      ['def set(rate): pass', `TypeError: rate ${message}`],
      ['def set(first: int, rate=0.1): pass', `TypeError: rate=0.1 ${message}`],
      ['def set(*rates: float): pass', `TypeError: *rates: float ${message}`],
      ['def set(**rates: float): pass', `TypeError: **rates: float ${message}`],
      ['def set(rates: list): pass', `TypeError: rates: list ${message}`],
      ['def set(rate: int = 0.5): pass', `TypeError: rate: int = 0.5 ${message}`],
      ["def set(rate: typing.Literal['a', 1]): pass", `TypeError: rate: Literal['a', 1] ${message}`],
      ["def set(rate: 'Rate'): pass", "TypeError: name 'Rate' is not defined"],
      ['set = 7', 'TypeError: 7 is not a module, class, method, or function.'],
      ...['_rate', 'größe', long].map((name) => [
        `set = lambda ${name}: 0`, `ValueError: the name '${name}' ${parameter}`,
      ] as const),
    ] as const) {
      const [type, why] = expected.split(/: (.*)/);
      assert.equal(declare("'set-it'", code), `${type}: command 'set-it': ${why}`, code);
    }
    const valid = 'the name must match [a-z][a-z0-9-]{0,31} and not be a standard one';
    for (const name of [
      "'pause'", "'resume'", "'shutdown'", "'save-state'", "'status'", "'info'", "'Set'", "'set_rate'", "''", "'2x'",
      "'set\\n'", `'${long}'`, '7',
    ]) {
      assert.equal(declare(name, 'set = lambda: None'), `ValueError: command ${name}: ${valid}`);
    }
    for (const name of ["'pause-all'", "'infos'", `'${'x'.repeat(32)}'`]) {
      assert.equal(declare(name, 'set = lambda: None'), '');
    }
    function declare(name: string, code: string): string {
      const script = `import typing\nfrom control import Control\n${code}\nControl(commands={${name}: set})\n`;
      const env = { ...process.env, PYTHONIOENCODING: 'utf-8' };
      const { stderr } = spawnSync(PYTHON, ['-c', script], { cwd: folder, encoding: 'utf8', env });
      return stderr.trimEnd().split('\n').slice(-1).join().replace('typing.Literal[', 'Literal[');
    }
  });

  it('executes own commands between two steps, also while paused, and continues if one fails', async (t) => {
    const { command } = writeScript(t, `
rate = 0.1
def set_rate(learning_rate: float, note: str = 'none'):
    global rate
    if learning_rate < 0: raise ValueError('learning_rate must not be negative')
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
    assert.deepEqual(await set({}), [400, 'set: learning_rate must be a number, got nothing']);
    assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
    const second = { before: 0.01, rate: 0.2, note: 'ü\n', by: null };
    assert.deepEqual(await set({ learning_rate: 0.2, note: 'ü\n' }), [200, second]);
    assert.equal((await getInfo(run.port)).status, 'paused');
    assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'ckpt/1.pt; exit code 0']);
    assert.match((await run.running.ended).stdout, /ended\n$/);
  });

  it('passes numbers of the declared type, sends what JSON lacks as texts, and raises no exception', async (t) => {
    const { command } = writeScript(t, `
import typing
class Tensor:
    def item(self): return 0.5
    def __str__(self): return 'no text'
class Same:
    def item(self): return self
    def __str__(self): return 'same'
class Endless(Same):
    def item(self): return Endless()
class Mute:
    def __str__(self): raise ValueError
class Number: # as numpy has them
    def __hash__(self): return 0
    def __str__(self): return '3'
circle, deep = [], []
circle.append(circle)
for _ in range(10**5): deep = [deep]
values = {
    'nan': float('nan'), 'nested': [1, (2, {'best': float('-inf')})], 'tensor': Tensor(), 'path': pathlib.Path('a'),
    'text': 'ä€😀', 'none': None, 'same': {'same': [Same()]}, 'endless': Endless(), 'integer': 10**309,
    'long': 'x' * 5000, 'list': ['x' * 100] * 50, 'huge': ['x' * 100] * 1000, 'key': {(1, 2): 3},
    'mute': Exception(Mute()), 'error': Exception('x' * 100_000),
}
def get(name: str):
    if isinstance(values[name], Exception): raise values[name]
    return values[name]
def types(a: float, b: int, c: float = 1, d: typing.Literal[1.0, 2.5] = 1.0): return repr([a, b, c, d])
control = Control(commands={'get': get, 'types': types})
detail = {(1, 2): 3, Number(): 4, 5: 6, Mute(): Mute(), 'circle': circle, 'deep': deep, 'same': Same(),
          'endless': {'a': [Endless()]}, 'keys': {'a': {(1, 2): 3}}, 'epoch': 7, 'loss': float('nan'),
          'huge': [10**400, 10**307]}
detail['itself'] = detail
control.say(detail=detail)
for _ in range(2): control.say(detail={'note': 'x' * 3000})
control.say(detail=circle)
while not control.poll(): time.sleep(.01)
`);
    const run = await startRun(t, [], command);
    const detail = await showsDetail(run, {
      '(1, 2)': 3, 3: 4, 5: 6, circle: '[[...]]', same: 'same', endless: { a: ['same'] }, keys: "{'a': {(1, 2): 3}}",
      epoch: 7, loss: 'NaN', huge: [`1${'0'.repeat(400)}`, 1e307],
    });
    assert.match(String(detail['deep']), /^<list object at /);
    assert.match(Object.keys(detail).join(), /<__main__.Mute object at /);
    assert.deepEqual(await order(run.port, 'types', { a: 1, b: 2 }), [200, '[1.0, 2, 1.0, 1.0]']);
    const others = { a: 1e300, b: -3, c: 0.5, d: 2.5 };
    assert.deepEqual(await order(run.port, 'types', others), [200, '[1e+300, -3, 0.5, 2.5]']);
    for (const [name, expected] of Object.entries({
      nan: 'NaN', nested: [1, [2, { best: '-Infinity' }]], tensor: 0.5, path: 'a', text: 'ä€😀', none: undefined,
      same: { same: ['same'] }, endless: 'same', integer: `1${'0'.repeat(309)}`, long: 'x'.repeat(1000),
      list: undefined, // above 4 KiB
    })) {
      assert.deepEqual(await order(run.port, 'get', { name }), [200, expected], name);
    }
    for (const [name, expected] of [
      ['huge', /^get failed: the program wrote a line longer than 64 KiB$/],
      ['key', /^get failed: keys must be str, int, float, bool or None, not tuple$/],
      ['nothing', /^get failed: 'nothing'$/], ['mute', /^get failed: <Exception object at /],
      ['error', /^get failed: x{1000}$/],
    ] as const) {
      const [statusCode, error] = await order(run.port, 'get', { name });
      assert.equal(statusCode, 500, name);
      assert.match(String(error), expected);
    }
    assert.deepEqual(await perform(run.port, 'shutdown'), [200, 'exit code 0']);
    assert.deepEqual((await run.running.ended).stderr.match(/.* wrote .*/g), [
      `control-run: train.py[${run.pid}] wrote a detail larger than 3000 bytes to CONTROL_FD`,
    ]);
  });
});

// ───── The programs of the page ──────────────────────────────────────────────────────────────────────────────────────

/** Stand-ins for the libraries and for the code around each example. */
const STAND_INS: Record<string, { before: string; after: string }> = {
  PyTorch: {
    before: `
import time
class Model:
    def __call__(self, inputs): return inputs
    def state_dict(self): return {'weight': 1}
class Loss(float):
    def backward(self): time.sleep(.001)
class Optimizer(Model):
    param_groups = [{'lr': 0.1}, {'lr': 0.1}]
    def zero_grad(self): pass
    def step(self): pass
model, optimizer, loss_function = Model(), Optimizer(), lambda output, targets: Loss(output - targets)
class Loader:
    left = 10**6
    def __iter__(self): return iter([(3.5, 3.0)] * 10)
loader = Loader()
def range(count):
    epoch = 0
    while True:
        yield epoch
        epoch += 1
`,
    after: '',
  },
  transformers: {
    before: `
import time, types
class Scheduler:
    base_lrs = [0.1]
    def get_last_lr(self): return self.base_lrs
class Trainer:
    model, args, state = object(), types.SimpleNamespace(output_dir='out'), types.SimpleNamespace(global_step=0)
    lr_scheduler = Scheduler()
    def _save_checkpoint(self, model, trial): assert model is self.model
    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix='eval'): return {'eval_loss': 0.25}
    def add_callback(self, callback): self.callback = callback
trainer = Trainer()
`,
    after: `
control = types.SimpleNamespace(should_training_stop=False)
while not control.should_training_stop:
    time.sleep(.01)
    trainer.state.global_step += 1
    trainer.callback.on_step_end(trainer.args, trainer.state, control, model=trainer.model, optimizer=None,
                                 lr_scheduler=trainer.lr_scheduler, train_dataloader=None)
`,
  },
  Lightning: {
    before: '',
    after: `
import time, types
class Trainer:
    should_stop, global_step, current_epoch, callback_metrics = False, 0, 0, {'loss': 0.5, 'learning_rate': 0.1}
    optimizers = [types.SimpleNamespace(param_groups=[{'lr': 0.1}])]
    def save_checkpoint(self, path, weights_only=None, storage_options=None): pass
trainer, callback = Trainer(), RemoteControl()
callback.on_train_start(trainer, None)
while not trainer.should_stop:
    time.sleep(.01)
    trainer.global_step += 1
    trainer.callback_metrics['learning_rate'] = trainer.optimizers[0].param_groups[0]['lr']
    callback.on_train_batch_end(trainer, None, {}, None, 0)
`,
  },
};

const LIBRARIES = {
  'torch.py': 'def save(value, path): open(path, "w").write(repr(value))\n',
  'transformers.py': 'class TrainerCallback: pass\n',
  'lightning.py': 'class Callback: pass\n',
};

describe('The Python programs of bin/run/channel.md', { ...suite, skip: lacks('Linux', 'python3') }, () => {
  const programs = [...readFileSync('bin/run/channel.md', 'utf8').matchAll(/^```python\n(.*?)^```$/gms)];
  assert.equal(programs.length, Object.keys(STAND_INS).length);
  for (const [index, [name, { before, after }]] of Object.entries(STAND_INS).entries()) {
    it(`take commands with ${name}`, async (t) => {
      const folder = makeFolder(t);
      writeFileSync(join(folder, 'control.py'), MODULE);
      for (const [file, code] of Object.entries(LIBRARIES)) writeFileSync(join(folder, file), code);
      const program = `import os\nos.chdir('${folder}')\n${before}${programs[index]?.[1]}${after}`;
      writeFileSync(join(folder, 'train.py'), program);
      const run = await startRun(t, [], [PYTHON, join(folder, 'train.py')]);
      await showsDetail(run, { learning_rate: 0.1 });
      assert.equal((await order(run.port, 'set', { learning_rate: 0.01 }))[0], 200);
      await showsDetail(run, { learning_rate: 0.01 });
      assert.deepEqual(await perform(run.port, 'pause'), [200, undefined]);
      assert.equal(stateOf(run.pid), 'S');
      const [statusCode, path] = await perform(run.port, 'save-state');
      assert.equal(statusCode, 200, String(path));
      assert.match(String(path), /^(\d+\.pt|out\/checkpoint-\d+|\d+\.ckpt)$/);
      if (name === 'transformers') assert.deepEqual(await order(run.port, 'evaluate'), [200, { eval_loss: 0.25 }]);
      assert.deepEqual(await perform(run.port, 'resume'), [200, undefined]);
      assert.match(String((await perform(run.port, 'shutdown'))[1]), /; exit code 0$/);
      assert.equal((await run.running.ended).code, 0);
    });
  }
});
