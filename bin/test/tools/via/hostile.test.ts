// A far end that sends anything.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { foldersOf } from '../../../shared/via.ts';
import { assertHarmless, HOSTILE, preload } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { newsOf, startBoard, untilSystem, untilSystems } from '../board/helpers.ts';
import { linesOf } from '../client/helpers.ts';
import { openSession } from '../client/systems.ts';
import { reach, via, viaProgram } from './helpers.ts';

const LISTED = 'train  7  active    m/unix:/far/train-7.sock\n';
const NO_FRAME = 'control-client: m: it sent what is not a frame\n';

/** Statements of a far end, and what `list` prints. */
const CASES: readonly [what: string, source: string, stdout: string, stderr: string][] = [
  ['nothing unusual', 'stdout.write(HELLO);', LISTED, ''],
  ['a hello cut into bytes, as all else', `
    const write = stdout.write.bind(stdout);
    stdout.write = (text) => { for (const one of text) write(one); };
    stdout.write(HELLO);`, LISTED, ''],
  ['1 MiB before the hello', "stdout.write('x'.repeat(2 ** 20) + HELLO);", LISTED, ''],
  ['lines before the hello', "stdout.write('7 DATA eA==\\n'.repeat(1e5) + 'control-dial 12\\n' + HELLO);", LISTED, ''],
  ['a banner without a line feed', "stdout.write('Welcome to \\x1b[31mm\\x1b[0m! ' + HELLO);", LISTED, ''],
  ['a second hello', 'stdout.write(HELLO + HELLO);', '', NO_FRAME],
  ['a text after the hello', "stdout.write(HELLO + 'Last login: today\\n');", '', NO_FRAME],
  ['an empty line after the hello', "stdout.write(HELLO + '\\n');", '', NO_FRAME],
  ['a number that is too long', "stdout.write(HELLO + frame('1234567890', 'DATA', 'x'));", '', NO_FRAME],
  ['what is not base64', "stdout.write(HELLO + '1 DATA {}\\n');", '', NO_FRAME],
  ['a frame above 1 MiB', "stdout.write(HELLO + frame(1, 'DATA', 'x'.repeat(2 ** 20)));", '', NO_FRAME],
  ['a frame of 1 MiB in bytes', `
    stdout.write(HELLO);
    const line = frame(1, 'DATA', 'x'.repeat(780_000));
    for (let at = 0; at < line.length; at += 100) stdout.write(line.slice(at, at + 100));`, LISTED, ''],
  ['frames of unknown streams and types', `
    stdout.write(HELLO);
    for (const type of ['OPEN', 'DATA', 'END', 'CLOSE', 'LIST', 'PING', 'EVIL']) {
      for (const stream of ['1', '2', '999999999', '00', '01']) send(stream, type, 'ECONNREFUSED x');
    }`, LISTED, ''],
  ['other frames before OPEN, and frames of the connections to come', `
    stdout.write(HELLO);
    onFrame.OPEN = (stream) => {
      for (const type of ['LIST', 'PING', 'EVIL']) send(stream, type, '/far/other-8.sock');
      for (const ahead of [1, 2, 3]) send(Number(stream) + ahead, 'CLOSE', 'ECONNREFUSED x');
      send(stream, 'OPEN');
    };`, LISTED, ''],
  ['bytes before OPEN', "stdout.write(HELLO); onFrame.OPEN = (stream) => send(stream, 'DATA', 'HTTP/1.1 2');",
    'train  7  no answer    m/unix:/far/train-7.sock\n', 'control-client: m/train: timeout after 5 s\n'],
  ['the end before OPEN', "stdout.write(HELLO); onFrame.OPEN = (stream) => send(stream, 'END');",
    'train  7  no answer    m/unix:/far/train-7.sock\n', 'control-client: m/train: socket hang up\n'],
  ['frames after the end of a stream', `
    stdout.write(HELLO);
    const { DATA } = onFrame;
    onFrame.DATA = (stream) => {
      DATA(stream);
      for (const type of ['END', 'END', 'DATA', 'OPEN', 'CLOSE', 'CLOSE', 'DATA', 'END']) send(stream, type, 'x');
    };`, LISTED, ''],
  ['a refusal with a code of its own', `
    stdout.write(HELLO);
    onFrame.OPEN = (stream) => send(stream, 'CLOSE', 'EXIT3 \\x1b[31mno');`,
  'train  7  no answer    m/unix:/far/train-7.sock\n',
  'control-client: m/train:  [31mno\n'],
];

const MOST_KIB = 200_000; // of 200 MB and more; Node alone takes 50,000
const RESPONSE = "send(stream, 'DATA', 'HTTP/1.1 200 OK\\r\\n";

/** Statements of a far end that sends a lot, and what `list` prints. */
const FLOODS: readonly [what: string, source: string, stdout: RegExp][] = [
  ['a line before the hello', "flood('x'.repeat(65_536), 2e8, () => stdout.write(HELLO));", /  active /],
  ['lines before the hello', "flood('y\\n'.repeat(32_768), 2e7, () => stdout.write(HELLO));", /  active /],
  ...[
    ['data of unknown streams', 2e8, "frame(7, 'DATA', 'x'.repeat(60_000))"],
    ['PING', 2e7, "'0 PING\\n'.repeat(10_000)"],
    ['lists', 2e8, "frame(0, 'LIST', '/far/train-8.sock' + '\\0bad.sock'.repeat(20_000))"],
  ].map(([what, bytes, text]): [string, string, RegExp] => [`${what}`, `
    stdout.write(HELLO);
    onFrame.LIST = () => flood(${text}, ${bytes}, () => list('/far/train-7.sock'));`, /  active /]),
  ...[
    ['a response', "\\r\\n');"], ['a head', "');"],
  ].map(([what = '', end]): [string, string, RegExp] => [what, `
    stdout.write(HELLO);
    onFrame.DATA = (stream) => {
      ${RESPONSE}${end}
      flood(frame(stream, 'DATA', 'x'.repeat(60_000)), 2e8);
    };`, /  no answer /]),
];

describe('a far end that sends', { ...LIMIT, concurrency: 2 }, () => {
  for (const [what, source, stdout, stderr] of CASES) {
    it(what, async (t) => {
      const ended = await reach(t, [viaProgram(t, 'm', source)], ['list']);
      assert.deepEqual(ended, { code: stderr === '' ? 0 : 5, stdout, stderr });
    });
  }

  for (const [what, source, expected] of FLOODS) {
    it(`${what} takes no memory`, async (t) => {
      const measure = preload(`
        process.on('exit', () => console.error(process.resourceUsage().maxRSS)); // KiB
        const { setTimeout } = globalThis; // a busy machine may need longer than the limit
        globalThis.setTimeout = (run, ms, ...rest) => setTimeout(run, ms === 30_000 ? 200_000 : ms, ...rest);
      `);
      const { stdout, stderr } = await reach(t, [viaProgram(t, 'm', source)], ['list'], measure);
      assert.match(stdout, expected);
      const [, peak] = /^(\d+)\n$/m.exec(stderr) ?? [];
      assert.ok(Number(peak) < MOST_KIB, stderr);
    });
  }

  it('10,000 sockets is taken at its word for 1,000', async (t) => {
    const source = `
      stdout.write(HELLO);
      const paths = Array.from({ length: 10_000 }, (_, index) => '/far/train-' + (index + 1) + '.sock');
      onFrame.LIST = () => list('relative.sock', '', ...paths, ...paths);`;
    const { code, stdout, stderr } = await reach(t, [viaProgram(t, 'm', source)], ['list']);
    assert.deepEqual([code, stderr], [0, '']);
    assert.equal(linesOf(stdout).length, 1000);
  });

  it('1,000 other sockets ten times a second adds 64 a second to a board, which serves others', async (t) => {
    const session = openSession(t);
    await session.launch('train');
    const source = `
      stdout.write(HELLO);
      let last = 0;
      const listNew = () => list(...Array.from({ length: 1000 }, () => '/far/x-' + (last += 1) + '.sock'));
      onFrame.LIST = () => setInterval(listNew, 100);`;
    const vias = [viaProgram(t, 'evil', source), via('good', session)].flatMap((one) => ['--via', one]);
    const board = await startBoard(t, [], vias);
    let id = -1;
    await untilSystems(board, (systems) => {
      id = systems.find(({ name, status }) => name === 'good/train' && status === 'active')?.id ?? -1;
      return id >= 0;
    });
    const before = [Date.now(), Math.max(...(await newsOf(board)).ids)] as const;
    assert.equal((await board.post(`/api/systems/${id}/pause`)).status, 202);
    await untilSystem(board, ({ status }) => status === 'paused', id);
    await sleep(2000);
    const { ids } = await newsOf(board);
    const [seconds, added] = [(Date.now() - before[0]) / 1000, Math.max(...ids) - before[1]];
    assert.ok(added <= 64 * (seconds + 2), `${added} in ${seconds} s`);
    assert.ok(ids.length <= 1100, `${ids.length}`); // those of the first list leave
  });

  it('other sockets at each search: all of them at first, and those of a command; then 64', async (t) => {
    const source = `
      stdout.write(HELLO);
      let last = 0;
      onFrame.LIST = () => setInterval(() => list(...Array.from({ length: 200 }, () => {
        return '/far/x-' + (last += 1) + '.sock';
      })), 50);`;
    const [folder] = foldersOf({ via: [viaProgram(t, 'churn', source)] });
    const count = async (known?: Set<string>): Promise<number> => (await folder!.systems({}, known)).length;
    assert.deepEqual([await count(new Set()), await count(new Set()), await count()], [200, 64, 200]);
  });

  it('paths that no client takes, none of which changes the exit code', async (t) => {
    const long = ['x'.repeat(90), 'é'.repeat(50), 'x'.repeat(1e5)].map((name) => `/${name}.sock`);
    const bad = ['', '/', '/x', '.sock', 'x.sock', '/x/', ...long];
    const source = `
      stdout.write(HELLO);
      onFrame.LIST = () => list(...${JSON.stringify([...bad, '/far/train-7.sock', ...bad])});`;
    assert.deepEqual(await reach(t, [viaProgram(t, 'm', source)], ['list']), { code: 0, stdout: LISTED, stderr: '' });
  });

  it('paths with control characters, and bodies with them and with labels', async (t) => {
    const path = `/far/${HOSTILE.replaceAll(/\0|😀/g, '')}-7.sock`;
    const labels = { machine: 'gpu2', target: 'gpu2/train', label: 'gpu2/' };
    const body = { status: HOSTILE, name: HOSTILE, detail: HOSTILE, by: HOSTILE, ...labels };
    const source = `
      stdout.write(HELLO);
      onFrame.LIST = () => list(${JSON.stringify(path)}, '/../gpu2/train-8.sock', '/gpu2/../gpu2\\ntrain-9.sock');
      onFrame.DATA = (stream, text) => reply(stream, ${JSON.stringify(body)});`;
    const target = viaProgram(t, 'm', source);
    const lines = [
      ['list'], ['list', '--json'], ['status', '--all'], ['info', '--all', '--json'], ['pause', '--all'],
      ['status', 'm/nix'], ['status', 'nix', '--json'], ['wait', 'active', '--all', '--timeout', '1'],
    ];
    await Promise.all(lines.map(async (args) => {
      const { stdout, stderr } = await reach(t, [target], args);
      assertHarmless(stdout);
      assertHarmless(stderr);
      for (const line of linesOf(stdout)) {
        if (args.includes('--json')) assert.match((JSON.parse(line) as { target: string }).target, /^m\//);
        else assert.match(line, args[0] === 'list' ? /  m\/unix:\// : /^m\/(PW|train-8|gpu2 train-9)/);
      }
      const known = /^control-client: (m\/(PW|train-8|gpu2 train-9)|there is no system 'nix' on m)/;
      for (const line of linesOf(stderr)) assert.match(line, known);
    }));
    const refused = viaProgram(t, 'm', `
      stdout.write(HELLO);
      onFrame.OPEN = (stream) => send(stream, 'CLOSE', 'ENOENT ' + ${JSON.stringify(HOSTILE)});`);
    for (const args of [['list'], ['pause', '--all', '--json'], ['pause', 'm/:80']]) {
      const { stdout, stderr } = await reach(t, [refused], args);
      assertHarmless(stdout + stderr);
    }
    for (const script of [
      `process.stderr.write(${JSON.stringify(HOSTILE)} + '\\n'); process.exit(1);`,
      `stdout.write(${JSON.stringify(HOSTILE)} + '\\n'); setTimeout(() => process.exit(1), 200);`,
      `stdout.write(HELLO); send(0, 'CLOSE', 'EVIL ' + ${JSON.stringify(HOSTILE)});`,
    ]) {
      const { code, stdout, stderr } = await reach(t, [viaProgram(t, 'm', script)], ['list']);
      assert.deepEqual([code, stdout], [5, '']);
      assertHarmless(stderr);
      assert.match(stderr, /^control-client: m: .+\n$/);
    }
  });

  it('names local sockets, which are not touched', { skip: lacks('Unix') }, async (t) => {
    const session = openSession(t);
    const { requests, tokens } = await session.serve('train-7');
    let connections = 0;
    const path = join(session.folder, 'other-8.sock');
    const server = createServer(() => (connections += 1)).listen(path);
    t.after(() => server.close());
    await once(server, 'listening');
    const source = `
      stdout.write(HELLO);
      onFrame.LIST = () => list(${JSON.stringify(join(session.folder, 'train-7.sock'))}, ${JSON.stringify(path)});`;
    const shutdown = ['shutdown', '--all', '--wait', '--timeout', '1'];
    for (const args of [['list'], ['pause', '--all'], ['pause', 'm/train'], shutdown]) {
      const { stdout } = await reach(t, [viaProgram(t, 'm', source)], args, session.env);
      if (args[0] !== 'shutdown') assert.match(stdout, /^m\/|m\/unix:/m);
    }
    assert.deepEqual([requests, tokens, connections], [[], [], 0]);
    assert.ok(existsSync(path));
  });

  it('refusals, which change nothing for the systems of another machine', async (t) => {
    const session = openSession(t);
    await session.serve('train-7');
    for (const [refusal, code, status] of [
      ['ECONNREFUSED x', 3, 'offline'], ['ENOENT x', 3, 'offline'], ['EXIT2 x', 5, 'no answer'], ['', 5, 'no answer'],
      ['econnrefused x', 5, 'no answer'], ['ECONNREFUSED', 5, 'no answer'], ['ETIMEDOUT x', 5, 'no answer'],
    ] as const) {
      const source = `stdout.write(HELLO); onFrame.OPEN = (stream) => send(stream, 'CLOSE', '${refusal}');`;
      const targets = [via('good', session), viaProgram(t, 'bad', source)];
      const ended = await reach(t, targets, ['status', 'train']);
      const lines = linesOf(ended.stdout).sort();
      assert.equal(ended.code, code, refusal);
      assert.ok(lines[0]?.startsWith(`bad/train   ${status}`), lines[0]);
      assert.equal(lines[1], 'good/train  active');
    }
  });

  it('a refusal after the connection was confirmed, which makes no system offline', async (t) => {
    const source = `
      stdout.write(HELLO);
      onFrame.DATA = (stream) => send(stream, 'CLOSE', 'ECONNREFUSED gone');`;
    const target = viaProgram(t, 'm', source);
    for (const args of [['status', 'm/train'], ['pause', 'm/train'], ['pause', 'm/:80']]) {
      const { code, stdout, stderr } = await reach(t, [target], args);
      assert.equal(code, 5, stdout + stderr);
      assert.doesNotMatch(stdout + stderr, /offline|not sent/);
    }
  });

  it('nothing more, or never confirms', async (t) => {
    const target = viaProgram(t, 'm', 'stdout.write(HELLO); onFrame.OPEN = () => {};');
    const { code, stderr } = await reach(t, [target], ['pause', 'm/train', '--wait', '--timeout', '2']);
    assert.equal(code, 5);
    assert.match(stderr, /^control-client: m\/train: pause not sent: .+\n$/);
  });
});
