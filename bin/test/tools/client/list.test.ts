// control-client list on a terminal, list --watch, and what they share with top and the board: details, column widths.

import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { SystemStatus } from '../../../../control.ts';
import { Row } from '../../../client/fleet.ts';
import { columnsOf, fit, wrap } from '../../../client/table.ts';
import { describeDetail, describeInfo } from '../../../shared/words/describe.ts';
import { createTargetClient } from '../../../shared/reach/access.ts';
import { Socket } from '../../../shared/reach/folder.ts';
import { assertHarmless, HOSTILE, LIMIT, makeFolder, start, startServer, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { AT_ONCE, call, linesOf, run } from './helpers.ts';
import { screen } from './screen.ts';
import { startSilent, startWeb } from './systems.ts';
import type { PrintableReply } from '../../../shared/reach/replies.ts';
import type { Ended } from '../../helpers.ts';
import type { TestContext } from 'node:test';

const SUITE = { ...AT_ONCE, skip: lacks('script') };

describe('control-client list on a terminal', SUITE, () => {
  it('prints a table in natural order, with sender, reason, duration and detail', async (t) => {
    const { folder, serve } = openFolder(t);
    const since = new Date(Date.now() - 3 * 60_000 - 30_000).toISOString();
    await serve('t10', { since, detail: { loss: 0.3, step: 42, unit: 'k', of: 100 } });
    await serve('t2', { status: 'paused', since, by: 'ana', reason: 'GPU needed', detail: 'idle' });
    assert.deepEqual(await tableIn(t, folder, 90), [
      'NAME  PROCESS  STATUS                     SINCE  DETAIL',
      't2    7        paused by ana: GPU needed  3 min  idle',
      't10   7        active                     3 min  [####      ] 42 %, loss 0.3, step 42 of …',
    ]);
  });

  it('shows the process and the detail of the program, not of control-run', async (t) => {
    const { folder, serve } = openFolder(t);
    const detail = { epoch: 3, run: { pid: 4711, started: '2026-11-21T14:03:07.120Z', processes: 1, canSave: false } };
    await serve('train', { detail });
    const [, line = ''] = await tableIn(t, folder, 90);
    assert.match(line, /^train  4711     active {9}epoch 3$/);
    const [row] = linesOf((await call(['list', '--json', '--dir', folder])).stdout).map((text) => JSON.parse(text));
    assert.deepEqual([row.pid, row.detail], [4711, detail]);
  });

  it('distinguishes systems of the same name', async (t) => {
    const { folder, serve } = openFolder(t);
    for (const socket of ['a', 'b', 'c']) await serve(socket, { name: socket === 'c' ? 'other' : 'train' });
    const lines = await tableIn(t, folder, 90);
    assert.deepEqual(lines.map((line) => line.split(' ')[0]), ['NAME', 'other', 'a-7', 'b-7']);
  });

  it('prints no line wider than the terminal, whatever the texts contain', async (t) => {
    const { folder, serve } = openFolder(t);
    const texts = { by: HOSTILE, reason: HOSTILE, detail: { [HOSTILE]: HOSTILE } };
    await serve('a', { name: HOSTILE, status: 'paused', ...texts });
    await serve('b', { name: '漢字漢字漢字漢字漢字漢字漢字漢字漢字', ...texts });
    await serve('c', { name: 'c', detail: { step: 1, of: 3 } });
    for (const width of [12, 40, 100]) {
      const lines = await tableIn(t, folder, width);
      assert.equal(lines.length, 4);
      for (const line of lines) {
        assertHarmless(line);
        assert.ok(columnsOf(line) <= width, `${width}: ${line}`);
      }
    }
  });

  it('reports systems that do not respond', async (t) => {
    const { folder, serve } = openFolder(t);
    await serve('alive');
    await startSilent(t, join(folder, 'hung-8.sock'));
    await startWeb(t, () => ({ code: 200 }), { socketPath: join(folder, 'other-9.sock') });
    const { code, stdout } = await listOn(t, folder, 100);
    assert.equal(code, 5);
    assert.match(stdout, /^alive +7 +active\b/m);
    assert.match(stdout, /^hung +8 +no answer\r$/m);
    assert.match(stdout, /^other +9 +offline: is not a control server: /m);
  });
});

describe('control-client list --watch', SUITE, () => {
  it('redraws the table when systems change, come and go', async (t) => {
    const { session, folder, serve } = openFolder(t);
    let status = SystemStatus.ACTIVE;
    const { server } = await startServer(t, { socketPath: `${folder}/`, name: 'own', systemStatus: () => status });
    const { showsLine, write, ended } = await screen(t, 'list --watch', session, /NAME/);
    await showsLine(/^own +\d+ +active/);
    status = SystemStatus.PAUSED;
    server.hasCommands();
    await showsLine(/^own +\d+ +paused/);
    const { end } = await serve('guest');
    await showsLine(/^guest +7 +active/);
    end();
    await showsLine(/^guest +7 +offline/);
    write('\x03');
    assert.equal((await ended).code, 130);
  });

  it('shows as many systems as fit, and how many more there are', async (t) => {
    const { session, serve } = openFolder(t);
    for (let number = 1; number <= 40; number++) await serve(`t${number}`);
    const { showsLine, lines } = await screen(t, 'list --watch', session, /NAME/);
    await showsLine(/^… 14 more: control-client top shows all$/);
    await until(() => lines().every((line, index) => index === 0 || index > 26 || line.startsWith(`t${index} `)));
    assert.equal(lines()[29], '', 'for what the terminal shows of Ctrl-C');
  });

  it('requires a terminal, as top does, and excludes --json and addresses', async (t) => {
    const hint = "; 'watch --all' prints a line for each change";
    const rows: [args: string[], message: string][] = [
      [['list', '--watch'], `list --watch requires a terminal${hint}`],
      [['top'], `top requires a terminal${hint}`],
    ];
    for (const [args, message] of rows) await assert.rejects(call(args), { message });
    const onTerminal: [args: string, message: RegExp][] = [
      ['list --watch --json', /list --watch excludes --json; /],
      ['list --watch --port 80', /--port and list --watch are mutually exclusive/],
      ['top --json', /top excludes --json; /],
    ];
    for (const [args, message] of onTerminal) {
      const { code, stdout } = await onPty(t, `exec ${process.execPath} dist/bin/client.js ${args}`);
      assert.match(stdout, message);
      assert.equal(code, 2);
    }
    const status = await run(t, ['status', '--watch']);
    assert.deepEqual([status.code, status.stderr], [2, "control-client: --watch requires list, got 'status'\n"]);
  });
});

describe('columnsOf, fit and wrap', LIMIT, () => {
  const rows: [text: string, columns: number][] = [
    ['', 0], ['abc', 3], ['é', 1], ['e\u0301', 1], ['…', 1], ['漢字', 4], ['カ', 2], ['ｶ', 1], ['한', 2],
    ['\u1112\u1161\u11ab', 2], ['😀', 2], ['⚡', 2], ['☀', 1], ['🇩🇪', 2], ['𠀀', 2], ['＃', 2],
  ];

  it('count the columns of characters', () => {
    for (const [text, columns] of rows) assert.equal(columnsOf(text), columns, text);
  });

  it('pad and truncate', () => {
    const fitted: [text: string, width: number, shown: string][] = [
      ['abc', 5, 'abc  '], ['abc', 3, 'abc'], ['abcd', 3, 'ab…'], ['漢字', 5, '漢字 '], ['漢字', 4, '漢字'],
      ['漢字', 3, '漢…'], ['漢字', 2, '… '], ['e\u0301e\u0301e', 2, 'e\u0301…'], ['abc', 1, '…'],
      ['👨\u200d👩', 4, '👨👩'], ['❤\ufe0f', 2, '❤ '], ['👍\u{1f3fd}', 2, '👍'],
    ];
    for (const [text, width, shown] of fitted) assert.equal(fit(text, width), shown, text);
  });

  it('split a text into lines', () => {
    assert.deepEqual(wrap('detail    abcdefghij', 14, '  '), ['detail    abcd', '  efghij']);
    assert.deepEqual(wrap('漢字漢字', 5, ' '), ['漢字', ' 漢字']);
    assert.deepEqual(wrap('abc', 3, '  '), ['abc']);
    assert.deepEqual(wrap('abcdef', 3, '  '), ['abc'], 'a terminal too narrow');
  });
});

describe('describeDetail', LIMIT, () => {
  it('begins with the progress bar of the number before "of", which is full only at the end', () => {
    const rows: [detail: unknown, text: string][] = [
      [{ loss: 0.3, step: 42, of: 100 }, '[####      ] 42 %, loss 0.3, step 42 of 100'],
      [{ episode: 3, step: 7.5, unit: 'k', of: 10 }, '[#######   ] 75 %, episode 3, step 7.5 of 10, unit k'],
      [{ step: 0, of: 1 }, '[          ] 0 %, step 0 of 1'],
      [{ step: 999, of: 1000 }, '[######### ] 99 %, step 999 of 1000'],
      [{ step: 3, of: 3 }, '[##########] 100 %, step 3 of 3'],
      [{ step: 1e300, of: 1e300 }, '[##########] 100 %, step 1e+300 of 1e+300'],
      [JSON.parse('{"__proto__": 1, "of": 2}'), '[#####     ] 50 %, __proto__ 1 of 2'],
    ];
    for (const [detail, text] of rows) assert.equal(describeDetail(detail), text);
    assert.equal(describeDetail({ step: 1, of: 2 }, 200), '[#####     ] 50 %, 3 min left, step 1 of 2');
    assert.ok(describeInfo({ detail: { step: 1, of: 2 } }).includes('detail    [#####     ] 50 %, step 1 of 2'));
  });

  it('has no progress bar without a number from 0 to "of"', () => {
    const others = [
      null, undefined, 7, 'step', [7, 100], {}, { step: 7 }, { of: 100 }, { of: 100, step: 7 }, { step: '7', of: 100 },
      { step: 7, of: '100' }, { step: 7, of: null }, { step: 0, of: 0 }, { step: -1, of: 2 }, { step: 3, of: 2 },
      { step: 1e308, of: 1e308 }, { step: 7, of: Infinity }, { step: NaN, of: 2 }, { step: 7, of: NaN },
      { step: -2, of: -1 },
    ];
    for (const detail of others) assert.doesNotMatch(describeDetail(detail), / %/, JSON.stringify(detail));
  });

  it('omits what control-run adds, which info shows in a row of its own', () => {
    const run = { pid: 7, started: '2026-11-21', gpu: 'released' };
    const own = { run: 'own', gpu: 0.93, pid: 8 };
    const rows: [detail: unknown, text: string][] = [
      [{ gpu: 0.93, run }, 'gpu 0.93'], [{ run, gpu: 0.93, pid: 8 }, 'gpu 0.93, pid 8'], [{ run }, ''],
      [own, 'run own, gpu 0.93, pid 8'], [{ run: { id: 'abc' } }, 'run {"id":"abc"}'],
      [{ run: { pid: 7 } }, 'run {"pid":7}'], [{ run: null, loss: 1 }, 'run null, loss 1'],
      [{ run: { pid: 'x', started: 'x' } }, 'run {"pid":"x","started":"x"}'],
    ];
    for (const [detail, text] of rows) assert.equal(describeDetail(detail), text);
    const shown = describeInfo({ detail: { gpu: 0.93, run } }).slice(-2);
    assert.deepEqual(shown, ['detail    gpu 0.93', 'run       pid 7, started 2026-11-21, gpu released']);
  });
});

describe('Row', LIMIT, () => {
  const report: PrintableReply = {
    ok: true, value: 'active', original: 'active', body: { status: 'active', name: 'train/1', pid: 8 }, tag: undefined,
  };
  const socket = new Socket('/run/train_1-7.sock');
  const client = createTargetClient(socket.path);
  const target = { name: client.target, title: 'train_1-7', label: '', client, socket };

  it('takes its name from the socket path until the system reports one', () => {
    const row = new Row(target);
    assert.deepEqual([row.name, row.pid], ['train_1', '7']);
    row.system.note('active', report);
    assert.deepEqual([row.name, row.pid], ['train/1', '8']);
  });

  it('keeps the name of a typed target, even a socket path', () => {
    const { name = '' } = target;
    const row = new Row({ name, title: name, label: '', client });
    row.system.note('active', report);
    assert.deepEqual([row.name, row.pid], [name, '8']);
  });

  it('says who has shut the system down, even if only the command was seen', (t) => {
    const shutdown = { command: 'shutdown', state: 'running', by: 'ana', reason: 'done' };
    const ends: [last: object, story: string][] = [
      [{ status: 'shutting down', by: 'ana', reason: 'done' }, 'offline: shutdown by ana: done'],
      [{ status: 'active', commands: [shutdown] }, 'offline: shutdown by ana: done'],
      [{ status: 'active', commands: [{ ...shutdown, state: 'failed' }] }, 'offline'],
      [{ status: 'active', by: 'ana' }, 'offline'],
    ];
    const error = 'unix:/run/train_1-7.sock does not respond: connect ENOENT';
    const absent: PrintableReply = {
      ok: false, error, original: error, phase: 'connect', body: {}, statusCode: undefined, code: 'ENOENT',
    };
    for (const [last, story] of ends) {
      const row = new Row(target);
      const { status } = last as { status: string };
      row.system.note(status, { ...report, body: { ...last } });
      row.system.note('offline', absent);
      assert.equal(row.story, story);
      t.mock.method(performance, 'now', () => Infinity);
      row.system.note('offline', absent);
      assert.equal(row.story, story, 'later');
      t.mock.restoreAll();
    }
  });
});

// ───── Helpers ───────────────────────────────────────────────────────────────────────────────────────────────────

interface Opened {
  session: string;
  folder: string;
  /** Serves the given info, as process 7. */
  serve(name: string, info?: object): Promise<{ end(): void }>;
}

function openFolder(t: TestContext): Opened {
  const session = makeFolder(t);
  const folder = join(session, 'control');
  mkdirSync(folder);
  const serve: Opened['serve'] = (name, info = {}) => {
    const report = { name, pid: 7, status: 'active', ...info };
    return startWeb(t, () => report, { socketPath: join(folder, `${name}-7.sock`) });
  };
  return { session, folder, serve };
}

function onPty(t: TestContext, command: string): Promise<Ended> {
  return start(t, 'script', ['--quiet', '--return', '--command', command, '/dev/null']).ended;
}

function listOn(t: TestContext, folder: string, width: number): Promise<Ended> {
  return onPty(t, `stty cols ${width}; exec ${process.execPath} dist/bin/client.js list --dir '${folder}'`);
}

async function tableIn(t: TestContext, folder: string, width: number): Promise<string[]> {
  const { code, stdout } = await listOn(t, folder, width);
  assert.equal(code, 0, stdout);
  return stdout.trimEnd().split('\r\n');
}
