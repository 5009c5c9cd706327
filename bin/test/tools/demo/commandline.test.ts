// What control-demo refuses: options, addresses and checkpoints.

import assert from 'node:assert/strict';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { parseCommandLine } from '../../../demo/options.ts';
import { loadState } from '../../../demo/state.ts';
import { UsageError } from '../../../shared/options.ts';
import { makeFolder, runProgram, TOKEN, WRONG_ACCESS } from '../../helpers.ts';
import { CAUSE, contentsOf, LIMIT, snapshotOf } from './helpers.ts';

describe('The command line of control-demo', LIMIT, () => {
  const SEED = /^--seed must be an integer from 0 to 4294967295, got '.*'$/;
  const KEEP = /^--keep must be an integer from 1 to 1000000, got '.*'$/;
  const EVERY = /^--save-every must be a number of minutes above 0, or one such as 30m, .*, and at most 24d, got '.*'$/;
  const PORT = /^--port must be an integer from 0 to 65535, got '.*'$/;
  const UNTIL = /^--until must be a number from 1 to 500, got '.*'$/;
  const NAME_FORM = /^--allow-host must be like 'box\.lan', '\.lan' or '\*', got '[^]*'$/;
  const WRONG: readonly (readonly [message: RegExp, ...args: string[]])[] = [
    ...['0', '0.99', '500.1', '-5', '1e2', 'x', '', 'NaN'].map((one) => [UNTIL, `--until=${one}`] as const),
    ...['', 'a b', 'http://box', 'box:80', '[::1]', '*.lan', 'a\nb'].map((one) => {
      return [NAME_FORM, '--allow-host', 'box.lan', `--allow-host=${one}`] as const;
    }),
    ...['-1', '4294967296', '1.5', '1e3', 'x', '', ' 1', 'NaN'].map((one) => [SEED, `--seed=${one}`] as const),
    ...['0', '-1', '2.5', '1000001', 'all', ''].map((one) => [KEEP, `--keep=${one}`] as const),
    ...['0', '0.0', '-1', '34560.1', '30d', '1e3', '0x5', '5 min', 'Infinity', ''].map((one) => {
      return [EVERY, `--save-every=${one}`] as const;
    }),
    ...['-1', '65536', '80.5', 'http', ''].map((one) => [PORT, `--port=${one}`] as const),
    [/^--name must be 1 to 200 characters, none of them a control character, got ''$/, '--name='],
    [/^--host must be a host name or an IP address, got ''$/, '--host='],
    [/^--host must be a host name or an IP address, got 'http:\/\/localhost'$/, '--host', 'http://localhost'],
    [/^--states-dir must not be empty$/, '--states-dir='],
    [/^--load must not be empty$/, '--load='],
    [/^--load requires a value/, '--load'],
    [/^--seed and --load are mutually exclusive: a checkpoint contains its seed$/, '--seed', '1', '--load', 'latest'],
    [/'--no-web-api' does not take an argument/, '--no-web-api=1'],
    [/^unknown option '--speed'/, '--speed', '1'],
    [/^unexpected argument 'latest'/, 'latest'],
  ];

  it('is refused with the option, what is expected and what was given', () => {
    for (const [message, ...args] of WRONG) {
      const isExpected = (error: unknown): boolean => error instanceof UsageError && message.test(error.message);
      assert.throws(() => parseCommandLine(args), isExpected, args.join(' '));
    }
    for (const [what, args, token, message] of WRONG_ACCESS) {
      if (token === '') assert.throws(() => parseCommandLine(args), { message }, what);
    }
  });

  it('has defaults, of which the seed is random', () => {
    const [one, other] = [parseCommandLine([]), parseCommandLine([])];
    assert.ok(one !== null && other !== null);
    const { access: { host, port, socketPath }, noWebApi, load, folder, keep, goal, saveMs } = one;
    assert.deepEqual([host, port, socketPath, noWebApi], ['localhost', 8391, undefined, false]);
    assert.deepEqual([load, folder, keep, goal, saveMs], [undefined, './states', 10, Infinity, Infinity]);
    assert.ok(Number.isInteger(one.seed) && one.seed >= 0 && one.seed < 2 ** 32);
    assert.notEqual(one.seed, other.seed);
  });

  it('takes no token that is too short, and does not print it', async (t) => {
    const folder = join(makeFolder(t), 'states');
    const [, args, token, line] = WRONG_ACCESS.find(([what]) => what === 'a short token') ?? assert.fail();
    const ended = await runProgram(t, 'demo', ['--states-dir', folder, ...args], '', { CONTROL_TOKEN: token });
    assert.deepEqual(ended, { code: 2, stdout: '', stderr: `control-demo: ${line}\n` });
    const { stdout } = await runProgram(t, 'demo', ['--help'], '', { CONTROL_TOKEN: TOKEN });
    assert.ok(!stdout.includes(TOKEN));
    assert.ok(!existsSync(folder));
  });

  it('takes the name in CONTROL_NAME, unless that is wrong', async (t) => {
    const ended = await runProgram(t, 'demo', ['--states-dir', makeFolder(t)], '', { CONTROL_NAME: 'a\nb' });
    const line = "CONTROL_NAME must be 1 to 200 characters, none of them a control character, got 'a b'";
    assert.deepEqual(ended, { code: 2, stdout: '', stderr: `control-demo: ${line}\n` });
  });

  it('names a folder in which control-demo can write', async (t) => {
    const file = join(makeFolder(t), 'file');
    writeFileSync(file, '');
    for (const folder of [file, process.platform === 'linux' ? '/proc/states' : join(file, 'states')]) {
      const { code, stdout, stderr } = await runProgram(t, 'demo', ['--port', '0', '--states-dir', folder]);
      assert.deepEqual([code, stdout], [2, '']);
      const line = `control-demo: cannot write to '${folder}': `;
      assert.ok(stderr.startsWith(line), stderr);
      assert.match(stderr.slice(line.length), /^E[A-Z]+: .*; --states-dir requires a writable folder, or a path .*\n$/);
    }
  });
});

describe('--load of control-demo', LIMIT, () => {
  const TEXT = JSON.stringify(snapshotOf(2, 5000));
  const FILES: readonly [what: string, content: string | Buffer, message: RegExp][] = [
    ['empty', '', /it is truncated or not JSON/],
    ['truncated', TEXT.slice(0, -30), /it is truncated or not JSON/],
    ['binary', Buffer.from([0, 255, 10, 13, 128]), /it is truncated or not JSON/],
    ['foreign', '{"name":"runtime-control","version":"0.1.0"}', /it is not a checkpoint of control-demo/],
    ['null', 'null', /it is not a checkpoint of control-demo/],
    ['of a later version', TEXT.replace('"version":2', '"version":3'), /its "version" must be 1 or 2/],
    ['damaged', TEXT.replace('"seed":2', '"seed":1e999'), /its "seed" must be an integer from 0 to 4294967295/],
    ['paused as a number', TEXT.replace('"seed":2', '"seed":2,"paused":1'), /its "paused" must be true or false/],
    ['paused as null', TEXT.replace('"seed":2', '"seed":2,"paused":null'), /its "paused" must be true or false/],
    [
      'paused by nobody', TEXT.replace('"seed":2', '"seed":2,"paused":true,"since":"2026-11-23","by":null'),
      /its "by" must be a text/,
    ],
    ['paused at no time', TEXT.replace('"seed":2', '"seed":2,"paused":true,"since":7'), /its "since" must be a time/],
    ['enormous', ' '.repeat(2_000_000) + TEXT, /it is too large/],
  ];
  const REQUIRED = '--load requires a checkpoint of control-demo, or latest for the newest one in --states-dir';

  it('loads any checkpoint: older ones do not tell whether they were paused, or why', (t) => {
    const path = join(makeFolder(t), 'mine');
    for (const [fields, expected] of [
      [{}, false], [{ paused: false }, false], [{ paused: true }, true], [{ paused: true, ...CAUSE }, CAUSE],
      [{ paused: true, since: CAUSE.since }, { since: CAUSE.since }],
    ] as const) {
      writeFileSync(path, JSON.stringify({ ...snapshotOf(8, 12_345), ...fields }));
      const { learner, startPaused } = loadState(path, 'nowhere') ?? assert.fail();
      assert.deepEqual([learner.seed, learner.steps, startPaused], [8, 12_345, expected]);
    }
  });

  it('has no latest one in a folder that is missing or holds the leftovers of a crash', (t) => {
    const folder = makeFolder(t);
    writeFileSync(join(folder, '2026-01-01T00-00-00.000Z.json.tmp'), '{"form');
    assert.equal(loadState('latest', folder), null);
    assert.equal(loadState('latest', join(folder, 'missing')), null);
  });

  for (const [what, content, message] of FILES) {
    it(`refuses one that is ${what}, by its name and as the latest`, (t) => {
      const folder = makeFolder(t);
      const good = join(folder, '2020-01-01T00-00-00.000Z.json');
      writeFileSync(good, TEXT);
      const path = join(folder, '2020-01-02T00-00-00.000Z.json');
      writeFileSync(path, content);
      refuses(folder, path, `'${path}'`, message, REQUIRED);
      const expected = `continue with --load '${good}', the newest good checkpoint`;
      refuses(folder, 'latest', `'${path}'`, message, expected);
    });
  }

  it('names the newest checkpoint that can be loaded, past all that cannot', (t) => {
    const folder = makeFolder(t);
    const contents = [TEXT, TEXT, ...FILES.map(([, content]) => content)];
    const paths = contents.map((_, index) => join(folder, `2020-01-01T00-00-${10 + index}.000Z.json`));
    for (const [index, path] of paths.entries()) writeFileSync(path, contents[index] as string | Buffer);
    writeFileSync(join(folder, '9999-01-01T00-00-00.000Z.json'), TEXT);
    writeFileSync(join(folder, 'mine.json'), TEXT);
    const expected = `continue with --load '${paths[1]}', the newest good checkpoint`;
    refuses(folder, 'latest', `'${paths.at(-1)}'`, /it is too large/, expected);
  });

  it('says so if no checkpoint can be loaded, and exits with 2 and one line', async (t) => {
    const folder = makeFolder(t);
    const paths = FILES.map((_, index) => join(folder, `2020-01-01T00-00-${10 + index}.000Z.json`));
    for (const [index, [, content]] of FILES.entries()) writeFileSync(paths[index] as string, content);
    const before = contentsOf(folder);
    const ended = await runProgram(t, 'demo', ['--load', 'latest', '--states-dir', folder, '--port', '0']);
    const why = `it is too large; '${folder}' contains no good checkpoint: begin anew without --load`;
    const line = `control-demo: cannot load '${paths.at(-1)}': ${why}\n`;
    assert.deepEqual(ended, { code: 2, stdout: '', stderr: line });
    assert.deepEqual(contentsOf(folder), before);
  });

  it('refuses a path that is not a file', (t) => {
    const folder = makeFolder(t);
    const missing = join(folder, 'missing.json');
    refuses(folder, missing, `'${missing}'`, /no such file/, REQUIRED);
    refuses(folder, folder, `'${folder}'`, /it is a folder/, REQUIRED);
    if (existsSync('/dev/zero')) refuses(folder, '/dev/zero', `'/dev/zero'`, /it is not a regular file/, REQUIRED);
  });

  it('refuses latest if the folder holds only checkpoints from the future, or is none', (t) => {
    const folder = join(makeFolder(t), 'states');
    mkdirSync(folder);
    writeFileSync(join(folder, '9999-01-01T00-00-00.000Z.json'), TEXT);
    const future = /it contains no checkpoint other than '/;
    refuses(folder, 'latest', `the latest checkpoint in '${folder}'`, future, REQUIRED);
    const file = join(folder, 'file');
    writeFileSync(file, '');
    refuses(file, 'latest', `the latest checkpoint in '${file}'`, /it is not a folder/, REQUIRED);
  });
});

function refuses(folder: string, load: string, what: string, message: RegExp, expected: string): void {
  const before = contentsOf(folder);
  assert.throws(() => loadState(load, folder), (error) => {
    assert.ok(error instanceof UsageError, String(error));
    assert.match(error.message, message);
    assert.ok(error.message.startsWith(`cannot load ${what}: `), error.message);
    assert.ok(error.message.endsWith(`; ${expected}`), error.message);
    return true;
  });
  assert.deepEqual(contentsOf(folder), before);
}
