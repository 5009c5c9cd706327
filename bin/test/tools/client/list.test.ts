// control-client list on a terminal, list --watch, and the detail as list, top, watch and the board show it.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { describeDetail, describeInfo } from '../../../shared/words/describe.ts';
import { assertHarmless, HOSTILE, LIMIT, start, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { AT_ONCE, call, linesOf, onTerminal, run } from './helpers.ts';
import { openTable } from './screen.ts';
import { startSilent, startWeb } from './systems.ts';
import type { Ended } from '../../helpers.ts';
import type { TestContext } from 'node:test';

const SUITE = { ...AT_ONCE, skip: lacks('script') };

describe('control-client list on a terminal', SUITE, () => {
  it('prints a table in natural order, with sender, reason, duration and detail', async (t) => {
    const { folder, show } = openTable(t);
    const since = new Date(Date.now() - 3 * 60_000 - 30_000).toISOString();
    await show('t10', { since, detail: { loss: 0.3, step: 42, unit: 'k', of: 100 } });
    await show('t2', { status: 'paused', since, by: 'ana', reason: 'GPU needed', detail: 'idle' });
    assert.deepEqual(await tableIn(t, folder, 90), [
      'NAME  PROCESS  STATUS                     SINCE  DETAIL',
      't2    7        paused by ana: GPU needed  3 min  idle',
      't10   7        active                     3 min  [####      ] 42 %, loss 0.3, step 42 of …',
    ]);
  });

  it('shows the process and the detail of the program, not of control-run', async (t) => {
    const { folder, show } = openTable(t);
    const detail = { epoch: 3, run: { pid: 4711, started: '2026-11-21T14:03:07.120Z', processes: 1, canSave: false } };
    await show('train', { detail });
    const [, line = ''] = await tableIn(t, folder, 90);
    assert.match(line, /^train  4711     active {9}epoch 3$/);
    const [row] = linesOf((await call(['list', '--json', '--dir', folder])).stdout).map((text) => JSON.parse(text));
    assert.deepEqual([row.pid, row.detail], [4711, detail]);
  });

  it('distinguishes systems of the same name', async (t) => {
    const { folder, show } = openTable(t);
    for (const socket of ['a', 'b', 'c']) await show(socket, { name: socket === 'c' ? 'other' : 'train' });
    const lines = await tableIn(t, folder, 90);
    assert.deepEqual(lines.map((line) => line.split(' ')[0]), ['NAME', 'other', 'a-7', 'b-7']);
  });

  it('aligns the columns of any characters', async (t) => {
    const { folder, show } = openTable(t);
    const names = ['e\u0301é…☀', '漢字カｶ한', '\u1112\u1161\u11ab😀⚡', '🇩🇪𠀀＃', '👨\u200d👩❤\ufe0f'];
    for (const [index, name] of names.entries()) await show(`t${index}`, { name: `${index}${name}` });
    assert.deepEqual((await tableIn(t, folder, 30)).map((line) => line.normalize()), [
      'NAME        PROCE…  STATUS',
      '0éé…☀       7       active',
      '1漢字カｶ한  7       active',
      '2\u1112\u1161\u11ab😀⚡     7       active'.normalize(),
      '3🇩🇪𠀀＃     7       active',
      '4👨👩❤      7       active',
    ]);
  });

  it('prints no line wider than the terminal, whatever the texts contain', async (t) => {
    const { folder, show } = openTable(t);
    const texts = { by: HOSTILE, reason: HOSTILE, detail: { [HOSTILE]: HOSTILE } };
    await show('a', { name: HOSTILE, status: 'paused', ...texts });
    await show('b', { name: '漢字'.repeat(8), ...texts });
    await show('c', { name: 'c', detail: { step: 1, of: 3 } });
    for (const width of [12, 40, 100]) {
      const lines = await tableIn(t, folder, width);
      assert.equal(lines.length, 4);
      for (const line of lines) {
        assertHarmless(line);
        const wide = line.match(/[漢字😀]/gu) ?? [];
        assert.ok([...line].length + wide.length <= width, `${width}: ${line}`);
      }
    }
  });

  it('reports systems that do not respond', async (t) => {
    const { folder, show } = openTable(t);
    await show('alive');
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
  it('redraws the table when systems change, come and go, with as many as fit', async (t) => {
    const { show, open } = openTable(t);
    for (let number = 2; number <= 40; number++) await show(`t${number}`);
    let info: object = {};
    const { end, requests } = await show('t1', () => info);
    const { lines, showsLine, write, ended } = await open('list --watch');
    await showsLine(/^… 14 more: control-client top shows all$/);
    await until(() => lines().every((line, index) => index === 0 || index > 26 || line.startsWith(`t${index} `)));
    assert.equal(lines()[29], '', 'for what the terminal shows of Ctrl-C');
    info = { status: 'paused', by: 'ana' };
    await showsLine(/^t1 +7 +paused by ana\b/);
    await show('s');
    await showsLine(/^s +7 +active\b/);
    info = { commands: [{ command: 'shutdown', state: 'running', by: 'ana', reason: 'done' }] };
    const before = requests.length;
    await until(() => requests.length > before + 1); // the command was seen
    end();
    await showsLine(/^t1 +7 +offline: shutdown by ana: done/);
    write('\x03');
    assert.equal((await ended).code, 130);
  });

  it('requires a terminal, as top does, and excludes --json and addresses', async (t) => {
    const hint = "; 'watch --all' prints a line for each change";
    await assert.rejects(call(['list', '--watch']), { message: `list --watch requires a terminal${hint}` });
    await assert.rejects(call(['top']), { message: `top requires a terminal${hint}` });
    const rows: [args: string, message: RegExp][] = [
      ['list --watch --json', /list --watch excludes --json; /],
      ['list --watch --port 80', /--port and list --watch are mutually exclusive/],
      ['top --json', /top excludes --json; /],
    ];
    for (const [args, message] of rows) {
      const { code, stdout } = await onTerminal(t, args.split(' ')).ended;
      assert.match(stdout, message);
      assert.equal(code, 2);
    }
    const status = await run(t, ['status', '--watch']);
    assert.deepEqual([status.code, status.stderr], [2, "control-client: --watch requires list, got 'status'\n"]);
  });
});

describe('describeDetail', LIMIT, () => {
  it('begins with the progress bar of the number before "of", and omits what control-run adds', () => {
    const run = { pid: 7, started: '2026-11-21', gpu: 'released' };
    const rows: [detail: unknown, text: string][] = [
      [{ loss: 0.3, step: 42, of: 100 }, '[####      ] 42 %, loss 0.3, step 42 of 100'],
      [{ episode: 3, step: 7.5, unit: 'k', of: 10 }, '[#######   ] 75 %, episode 3, step 7.5 of 10, unit k'],
      [{ step: 0, of: 1 }, '[          ] 0 %, step 0 of 1'],
      [{ step: 999, of: 1000 }, '[######### ] 99 %, step 999 of 1000'],
      [{ step: 3, of: 3 }, '[##########] 100 %, step 3 of 3'],
      [{ step: 1e300, of: 1e300 }, '[##########] 100 %, step 1e+300 of 1e+300'],
      [JSON.parse('{"__proto__": 1, "of": 2}'), '[#####     ] 50 %, __proto__ 1 of 2'],
      [{ gpu: 0.93, run }, 'gpu 0.93'], [{ run, gpu: 0.93, pid: 8 }, 'gpu 0.93, pid 8'], [{ run }, ''],
      [{ run: 'own', gpu: 0.93, pid: 8 }, 'run own, gpu 0.93, pid 8'], [{ run: { id: 'abc' } }, 'run {"id":"abc"}'],
      [{ run: { pid: 7 } }, 'run {"pid":7}'], [{ run: null, loss: 1 }, 'run null, loss 1'],
      [{ run: { pid: 'x', started: 'x' } }, 'run {"pid":"x","started":"x"}'],
    ];
    for (const [detail, text] of rows) assert.equal(describeDetail(detail), text);
    const info = describeInfo({ detail: { step: 1, of: 2, run } }).slice(-2);
    const bar = 'detail    [#####     ] 50 %, step 1 of 2';
    assert.deepEqual(info, [bar, 'run       pid 7, started 2026-11-21, gpu released']);
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
});

function listOn(t: TestContext, folder: string, width: number): Promise<Ended> {
  const command = `stty cols ${width}; exec ${process.execPath} dist/bin/client.js list --dir '${folder}'`;
  return start(t, 'script', ['--quiet', '--return', '--command', command, '/dev/null']).ended;
}

async function tableIn(t: TestContext, folder: string, width: number): Promise<string[]> {
  const { code, stdout } = await listOn(t, folder, width);
  assert.equal(code, 0, stdout);
  return stdout.trimEnd().split('\r\n');
}
