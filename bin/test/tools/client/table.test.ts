// The tables of control-client on a pseudo-terminal: list and top.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { appendFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { assertHarmless, type Ended, HOSTILE, launchSystem, makeFolder, start } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { until } from '../../wait.ts';
import { CTRL_C, CTRL_Z, pseudoTerminal, type Terminal, UP } from '../console/helpers.ts';
import { HOSTILE_LINES, infoOf, linesOf as logOf, outcome, writeLog } from '../logs.ts';
import { AT_ONCE, call, linesOf, onTerminal } from './helpers.ts';
import { openSession, type Session, startSilent, startWeb, type Web } from './systems.ts';

const SUITE = { ...AT_ONCE, skip: lacks('script') };
const DOWN = '\x1b[B';
const ENTER_SCREEN = '\x1b[?1049h';
const LEAVE_SCREEN = '\x1b[?1049l';

describe('control-client list on a terminal', SUITE, () => {
  it('prints a table in natural order, and tells systems of the same name apart', async (t) => {
    const { folder, show } = openTable(t);
    const since = new Date(Date.now() - 3 * 60_000 - 30_000).toISOString();
    const run = { pid: 4711, started: '2026-11-21T14:03:07.120Z', processes: 1, canSave: false };
    await show('t10', { since, detail: { loss: 0.3, step: 42, unit: 'k', of: 100 } });
    await show('t2', { status: 'paused', since, by: 'ana', reason: 'GPU needed', detail: 'idle' });
    await show('train', { detail: { epoch: 3, run } });
    for (const socket of ['a', 'b']) await show(socket, { name: 'same' });
    assert.deepEqual(await tableIn(t, folder, 91), [
      'NAME   PROCESS  STATUS                     SINCE  DETAIL',
      'a-7    7        active',
      'b-7    7        active',
      't2     7        paused by ana: GPU needed  3 min  idle',
      't10    7        active                     3 min  [####      ] 42 %, loss 0.3, step 42 of …',
      'train  4711     active                            epoch 3', // of the program, not of control-run
    ]);
    const rows = linesOf((await call(['list', '--json', '--dir', folder])).stdout).map((text) => JSON.parse(text));
    assert.deepEqual([rows.at(-1).pid, rows.at(-1).detail], [4711, { epoch: 3, run }]);
  });

  it('gives the status less room beside a detail, so that one long reason does not hide it', async (t) => {
    const { folder, show } = openTable(t);
    await show('a', { status: 'paused', by: 'ana@laptop', reason: 'GPU needed until noon' });
    assert.match((await tableIn(t, folder, 80))[1] ?? '', /^a     7        paused by ana@laptop: GPU needed un…$/);
    await show('b', { detail: { step: 42, of: 100 } });
    assert.deepEqual(await tableIn(t, folder, 80), [
      'NAME  PROCESS  STATUS                    SINCE  DETAIL',
      'a     7        paused by ana@laptop: G…',
      'b     7        active                           [####      ] 42 %, step 42 of 1…',
    ]);
  });

  it('begins with the systems that ask: since when, and what; all other rows stay as they are', async (t) => {
    const { folder, show } = openTable(t);
    const since = new Date(Date.now() - 3 * 3_600_000).toISOString();
    const [at, message] = [new Date(Date.now() - 200_000).toISOString(), 'Delete 3 branches that nobody has used?'];
    const asks = [{ id: 'k3f-q2', message, parameters: {}, at }];
    const detail = { step: 42, of: 100, loss: 0.3141, rate: 0.001 };
    await show('a', { since, detail });
    await show('z', { since, detail, asks });
    await show('y', { status: 'paused', by: 'ana', asks: [{ ...asks[0], at: 'x' }, ...asks] });
    assert.deepEqual(await tableIn(t, folder, 80), [
      'NAME  PROCESS  STATUS               SINCE  DETAIL',
      'y     7        asks; paused by ana         Delete 3 branches that nobody has us…',
      'z     7        asks                 3 min  Delete 3 branches that nobody has us…',
      'a     7        active               3 h    [####      ] 42 %, step 42 of 100, l…',
    ]);
    assert.equal((await tableIn(t, folder, 120))[2], 'z     7        asks                 3 min  ' +
      'Delete 3 branches that nobody has used?; [####      ] 42 %, step 42 of 100, …');
  });

  it('prints no header without systems', async (t) => {
    const { stdout } = await listOn(t, makeFolder(t), 80);
    assert.match(stdout, /^.*control-client: nothing runs in [^\n]*\n$/);
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
    const asks = [{ id: HOSTILE, message: HOSTILE, parameters: { [HOSTILE]: {} }, at: HOSTILE }];
    const texts = { by: HOSTILE, reason: HOSTILE, detail: { [HOSTILE]: HOSTILE }, asks };
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
});

it('control-client top requires a terminal, and excludes --json', SUITE, async (t) => {
  const hint = "; 'watch' prints a line for each change";
  await assert.rejects(call(['top']), { message: `top requires a terminal${hint}` });
  const { code, stdout } = await onTerminal(t, ['top', '--json']).ended;
  assert.match(stdout, /top excludes --json; /);
  assert.equal(code, 2);
});

describe('control-client top', SUITE, () => {
  it('shows all systems in the folder as they come and go, and counts each status', async (t) => {
    const { folder, show, open } = openTable(t);
    await show('t2', { status: 'paused', by: 'ana', reason: 'lunch' });
    await show('t10');
    const { lines, showsLine } = await open('top');
    await showsLine(/^2 systems: 1 paused, 1 active$/);
    assert.deepEqual(lines().slice(1, 4), [
      'NAME  PROCESS  STATUS                SINCE  DETAIL',
      't2    7        paused by ana: lunch',
      't10   7        active',
    ]);
    assert.match(lines()[29] ?? '', /^q quit {2}p pause /);
    const { end } = await show('t1', { detail: { step: 1, of: 4 } });
    await showsLine(/^t1 +7 +active +\[## {8}\] 25 %, step 1 of 4$/);
    assert.deepEqual(lines().slice(2, 5).map((line) => line.split(' ')[0]), ['t1', 't2', 't10']);
    end();
    await showsLine(/^t1 +7 +offline /);
    await showsLine(/^3 systems: 1 offline, 1 paused, 1 active$/);
    await startSilent(t, join(folder, 'hung-8.sock'));
    await showsLine(/^hung +8 +no answer /);
    await show('t1'); // at the same path
    await showsLine(/^4 systems: 1 no answer, 1 paused, 2 active$/);
  });

  it('pauses, resumes and saves the selected system, and shows the outcomes', async (t) => {
    const { launch, show, open } = openTable(t);
    await launch('one');
    const { client } = await launch('three', { saveState: () => 'states/3.json' });
    const guest = await show('two');
    const { write, showsLine } = await open('top');
    await showsLine(/^3 systems: 3 active$/);
    write(`${DOWN}${DOWN}${UP}p`); // one, three, two
    await showsLine(/^pause three: paused \(\d+\.\d s\)$/);
    await showsLine(/^three +\d+ +paused by ana /);
    write('s');
    await showsLine(/^save-state three: saved states\/3\.json \(\d+\.\d s\)$/);
    await show('a new first row');
    await showsLine(/^a new first row /);
    write('r'); // the selection follows its system
    await showsLine(/^resume three: active \(\d+\.\d s\)$/);
    const { body } = await client.request('info') as { body: { commands?: Record<string, unknown>[] } };
    const sent = body.commands?.map(({ command, by }) => [command, by]);
    assert.deepEqual(sent, [['pause', 'ana'], ['save-state', 'ana'], ['resume', 'ana']]);
    assert.deepEqual(guest.requests.filter((request) => request.startsWith('POST')), []);
  });

  it('asks before it shuts a system down, even if the system has left the table in the meantime', async (t) => {
    const { launch, show, open } = openTable(t);
    let status = 'active';
    const guest = await show('guest', () => ({ status, result: 'ok', state: 'done' }));
    const { finished } = await launch('job', { saveState: () => 'states/last.json' });
    const { write, showsLine, type } = await open('top');
    await showsLine(/^2 systems: 2 active$/);
    write('/act\r');
    await showsLine(/^2 systems: 2 active; 'act' matches 2$/);
    for (const key of ['n', '\r', '\x1b', 'x']) {
      await type('d', /Shut guest down\? \(y\/N\)/);
      await type(key, /shutdown cancelled/);
    }
    await type('d', /Shut guest down\?/);
    status = 'paused';
    await showsLine(/; 'act' matches 1$/);
    write('n');
    await showsLine(/^shutdown cancelled$/);
    assert.deepEqual(guest.requests.filter((request) => request.startsWith('POST')), []);
    await type('d', /Shut job down\?/);
    write('y');
    await showsLine(/^shutdown job: offline: states\/last\.json \(\d+\.\d s\)$/);
    await finished;
  });

  it('asks before it resumes what somebody else has paused, and says who and why', async (t) => {
    const { show, open } = openTable(t);
    const holds = [{ by: 'ben@desk', reason: `B leaks memory ${'!'.repeat(99)}` }, { by: 'ana' }];
    const { requests } = await show('train', { status: 'paused', ...holds[0], holds, result: 'ok', state: 'done' });
    const { write, showsLine, type } = await open('top');
    await showsLine(/^1 system: 1 paused$/);
    await type('r', /Resume train, paused by ben@desk: B leaks memory !+… \(y\/N\)/);
    await type('n', /resume cancelled/);
    assert.deepEqual(requests.filter((request) => request.startsWith('POST')), []);
    await type('r', /Resume train, /);
    write('y');
    await showsLine(/^resume train: active \(\d+\.\d s\)$/);
    assert.deepEqual(requests.filter((request) => request.startsWith('POST')), ['POST /api/resume']);
  });

  it('shows what a system asks, before all others, and all about it in the info', async (t) => {
    const { show, open } = openTable(t);
    let asks: object[] = [];
    const since = new Date().toISOString();
    await show('a', { since });
    await show('z', () => ({ since, asks, host: 'gpu1' }));
    const { write, lines, showsLine } = await open('top');
    await showsLine(/^2 systems: 2 active$/);
    write(DOWN);
    const at = new Date(Date.now() - 200_000).toISOString();
    asks = [{ id: 'k3f-q2', message: 'Delete 3 branches?', parameters: { ok: { type: 'boolean' } }, at }];
    await showsLine(/^2 systems, 1 asking: 2 active$/);
    assert.match(lines()[2] ?? '', /^z +7 +asks +3 min +Delete 3 branches\?$/);
    write('/asks\r');
    await showsLine(/'asks' matches 1$/);
    write('\r'); // the selection has followed its system
    await showsLine(/^z: asks$/);
    await showsLine(/^asks {6}k3f-q2, asked 3 min ago: Delete 3 branches\? \(answer yes or no\)$/);
    asks = [];
    await showsLine(/^z: active$/);
    write('q\x1b');
    await showsLine(/^2 systems: 2 active$/);
    await until(() => lines().slice(2, 4).map((line) => line[0]).join('') === 'az', () => lines().join('\n'));
  });

  it('shows the info of a system until a key is pressed, and the time left, but none while paused', async (t) => {
    const { show, open } = openTable(t);
    const detail = { step: 0, of: 1_000_000, long: `${'x'.repeat(120)}END` };
    let status = 'active';
    await show('t1', () => ({ status, by: 'ana', host: 'gpu3', detail }));
    const { write, lines, showsLine } = await open('top');
    await showsLine(/^t1 .*\] 0 %, step 0 of/);
    detail.step = 1;
    await showsLine(/^t1 .*\] 0 %, step 1 of/);
    detail.step = 2;
    await showsLine(/^t1 .*\] 0 %, \d+ (min|h|days) left, step 2 of/);
    status = 'paused';
    await showsLine(/^t1 .* 0 %, step 2 of/);
    for (const key of ['i', '\r']) {
      write(key);
      await showsLine(/^press any key to return$/);
      const shown = lines().slice(0, 4);
      assert.deepEqual(shown.slice(0, 3), [
        't1: paused by ana', 'name      t1 (process 7 on gpu3)', 'status    paused by ana',
      ]);
      assert.match(shown[3] ?? '', /^detail    \[ {10}\] 0 %, step 2 of 1000000, long x+$/);
      await showsLine(/^ {10}x+END$/);
      write('q');
      await showsLine(/^NAME /);
    }
  });

  it('shows the log of a system until a key is pressed, with what is added, or says where it is', async (t) => {
    const { show, open } = openTable(t);
    const path = writeLog(t, ...Array.from({ length: 60 }, (_, index) => {
      const fields = { name: 't1', command: `c${index}`, value: 'x'.repeat(80) };
      return outcome(0, `h-${index}`, { time: '2026-11-23T03:00:00Z', ...fields });
    }));
    await show('t1', infoOf(path, { name: 't1' }));
    await show('t2', infoOf(path, { name: 't2', host: 'gpu1\x1b[2J' }));
    await show('t3');
    const { write, lines, showsLine } = await open('top');
    await showsLine(/^3 systems: 3 active$/);
    write('\x1b[Hl');
    await showsLine(/^log of t1$/);
    await showsLine(/c59/);
    const time = new Date('2026-11-23T03:00:00Z').toLocaleString('sv');
    const expected = Array.from({ length: 14 }, (_, index) => {
      const line = `${time}  c${46 + index} by ana done in 0.25 s: ${'x'.repeat(80)}`;
      return [line.slice(0, 100), ' '.repeat(10) + line.slice(100)];
    });
    assert.deepEqual(lines(), ['log of t1', ...expected.flat(), 'press any key to return']);
    appendFileSync(path, logOf([outcome(0, 'new', { name: 't1', by: 'ben' })]));
    await showsLine(/^(\S+ )?\S+ {2}resume by ben done in 0\.25 s$/);
    assert.match(lines()[28] ?? '', / by ben /, 'the newest is the last');
    write(`q${DOWN}l`);
    await showsLine(new RegExp(`^logs on gpu1 \\[2J to ${path}$`));
    write(`q${DOWN}l`);
    await showsLine(/^does not log: start it with --log FILE, or with the option log of launch\(\)$/);
    write('q');
    await showsLine(/^3 systems: 3 active$/);
    assert.equal(lines()[29], 'q quit  p pause  r resume  s save  d shut down  Enter info  l log  / filter  ↑↓');
  });

  it('filters by name and status', async (t) => {
    const { show, open } = openTable(t);
    await show('train');
    await show('Eval', { status: 'paused' });
    await show('strain', { status: 'paused' });
    const { write, lines, showsLine } = await open('top');
    const names = (): string => lines().slice(2, 5).map((line) => line.split(' ')[0]).join(' ').trim();
    await showsLine(/^3 systems: /);
    const steps: [keys: string, line: RegExp, names: string][] = [
      ['/RAIN', /^\/RAIN_ /, 'strain train'],
      ['\x7fX', /^\/RAIX_ /, ''],
      ['\r', /^3 systems: .*; 'RAIX' matches 0$/, ''],
      ['p', /^q quit/, ''], // nothing is selected
      ['\x1b', /^3 systems: 2 paused, 1 active$/, 'Eval strain train'],
      ['/paused\r', /^3 systems: .*; 'paused' matches 2$/, 'Eval strain'],
      ['/q', /^\/pausedq_ /, ''],
      ['\x1b', /^3 systems: 2 paused, 1 active$/, 'Eval strain train'],
      ['/strain\r\x1b/EV', /^\/EV_ /, 'Eval'], // Esc and soon another key
    ];
    for (const [keys, line, expected] of steps) {
      write(keys);
      await showsLine(line);
      await until(() => names() === expected, () => `${keys}: ${names()}`);
    }
  });

  it('scrolls to the selected system, and redraws the whole screen when the size changes', async (t) => {
    const { show, open } = openTable(t);
    for (let number = 1; number <= 60; number++) await show(`t${number}`, { detail: 'x'.repeat(200) });
    const { tty, write, lines, showsLine } = await open('top');
    await showsLine(/^60 systems: 60 active$/);
    const shown = (): string => [lines()[2], lines()[28]].map((line) => line?.split(' ')[0]).join(' ');
    const steps: [keys: string, shown: string][] = [
      ['', 't1 t27'], ['\x1b[6~', 't2 t28'], ['\x1b[F', 't34 t60'], ['k\x1b[5~', 't32 t58'], ['\x1b[H', 't1 t27'],
      ['j'.repeat(27), 't2 t28'],
    ];
    for (const [keys, expected] of steps) {
      write(keys);
      await until(() => shown() === expected, () => `${JSON.stringify(keys)}: ${shown()}`);
    }
    await showsLine(/^t2 .*x…$/);
    execFileSync('stty', ['-F', tty, 'cols', '40', 'rows', '10']);
    await until(() => /^q quit .{32}…$/.test(`${lines()[9]}`), () => lines().join('\n'));
    assert.ok(lines().slice(0, 10).every((line) => line.length <= 40), lines().join('\n'));
  });

  it('accepts targets, which may come back', async (t) => {
    const { open } = openTable(t);
    const { end, target, port } = await startWeb(t);
    const { showsLine } = await open(`top ${target}`);
    await showsLine(new RegExp(`^${target} +active$`));
    end();
    await showsLine(new RegExp(`^${target} +offline `));
    await showsLine(/^1 system: 1 offline$/);
    await launchSystem(t, {}, { webApiAddress: ['127.0.0.1', port] });
    await showsLine(new RegExp(`^\\S+ \\(${target}\\) +${process.pid} +active `));
  });

  it('prints no control characters of a name, a status or a filter', async (t) => {
    const { show, open } = openTable(t);
    const path = writeLog(t, ...HOSTILE_LINES.map((line) => {
      return Object(line).name === 'train' ? { ...Object(line), name: HOSTILE } : line;
    }), outcome(1, 'a', { name: HOSTILE }));
    const asks = [{ id: HOSTILE, message: HOSTILE, parameters: { a: { enum: [HOSTILE] }, [HOSTILE]: {} } }];
    const info = infoOf(path, { name: HOSTILE, status: 'paused', by: HOSTILE, detail: { [HOSTILE]: HOSTILE }, asks });
    await show('a\x1b[31m', info);
    const { write, showsLine, output } = await open('top');
    await showsLine(/paused by PW/);
    write('\r');
    await showsLine(/^press any key/);
    write('xl');
    await showsLine(/^log of PW/);
    await showsLine(/resume by ana done/);
    write('x/\x9d2\u202e\r');
    await showsLine(/'2' matches /);
    const hostile = /\x1b\]|\x1b\[2J|\x1b\[31m|[\x07\x80-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/;
    assert.doesNotMatch(output(), hostile);
  });
});

describe('control-client top and the terminal', SUITE, () => {
  it('restores it at q, Ctrl-C, SIGTERM and SIGHUP', async (t) => {
    const { open } = openTable(t);
    const ends: [end: (screen: Screen) => void, code: number][] = [
      [({ write }) => write('q'), 0],
      [({ write }) => write(CTRL_C), 0],
      [({ pid }) => process.kill(pid, 'SIGTERM'), 128 + 15],
      [({ pid }) => process.kill(pid, 'SIGHUP'), 128 + 1],
    ];
    for (const [end, code] of ends) {
      const view = await open('top');
      await view.showsLine(/^nothing runs: it may still start$/);
      end(view);
      const { code: actual, stdout } = await view.ended;
      assert.equal(actual, code);
      assert.equal(stdout.split(LEAVE_SCREEN).length, 2);
      assert.ok(stdout.includes(`\x1b[?25h${LEAVE_SCREEN}`));
    }
  });

  it('takes keys at once again, from Enter on, after another program has set the mode of the terminal', async (t) => {
    const { show, open } = openTable(t);
    await show('train');
    const { tty, write, showsLine, ended } = await open('top');
    await showsLine(/^1 system: /);
    execFileSync('stty', ['-F', tty, 'sane']);
    write('\r');
    await until(() => /-icanon/.test(execFileSync('stty', ['-F', tty, '-a'], { encoding: 'utf8' })));
    write(CTRL_C);
    assert.equal((await ended).code, 0);
  });

  it('completes a command after q and prints the outcome, but does not wait for long', async (t) => {
    const { serve, open } = openTable(t);
    let left: (hasLeft: () => boolean) => Promise<void> = until;
    const { requests } = await serve('t1-7', async ({ method }) => {
      if (method === 'POST') await left(() => view.output().includes(LEAVE_SCREEN));
      return { status: 'active', result: 'ok', state: 'done' };
    });
    let view: Screen = await open('top');
    const quit = async (): Promise<string> => {
      await view.showsLine(/^t1 .*active/);
      view.write('pqr');
      const { code, stdout } = await view.ended;
      assert.equal(code, 0);
      return stdout.slice(stdout.lastIndexOf(LEAVE_SCREEN));
    };
    assert.match(await quit(), /control-client: pause t1: paused \(\d+\.\d s\)/);
    assert.deepEqual(requests.filter((request) => request.startsWith('POST')), ['POST /api/pause']);
    left = () => new Promise(() => {});
    view = await open('top');
    assert.match(await quit(), /control-client: pause t1: (not paused after|pause sent, but no response within) /);
  });

  it('restores it at Ctrl-Z, and takes it back at fg', async (t) => {
    const { env, show } = openTable(t);
    await show('t1');
    const bash = await pseudoTerminal(t, 'bash --norc --noprofile --noediting -i', /SHELL> $/, {
      PS1: 'SHELL> ', ...env,
    });
    bash.write(`${process.execPath} dist/bin/client.js top\r`);
    const { showsLine, output, write, type } = screenOf(bash);
    await showsLine(/^t1 /);
    const entries = (): number => output().split(ENTER_SCREEN).length - 1;
    assert.equal(entries(), 1);
    await type(CTRL_Z, /Stopped[^]*SHELL> $/);
    assert.ok(output().lastIndexOf(LEAVE_SCREEN) > output().lastIndexOf(ENTER_SCREEN));
    await type('stty -a\r', / icanon [^]*SHELL> $/);
    await type('fg\r', /1 system: 1 active/);
    assert.equal(entries(), 2);
    write('q');
    await bash.shows(/SHELL> $/);
    await type('stty -a\r', / icanon [^]*SHELL> $/);
  });
});

describe('list and top of several machines', SUITE, () => {
  it('have a column for the machine, tell equal names apart by it, and say which one cannot be reached', async (t) => {
    const { vias, open } = await openMachines(t);
    const { stdout } = await onTerminal(t, [...vias, 'list']).ended;
    assert.deepEqual(stdout.trimEnd().split(/\r?\n/).map((line) => line.trimEnd()), [
      'MACHINE  NAME   PROCESS  STATUS         SINCE  DETAIL',
      'a        t2     7        active',
      'a        train  7        active',
      'b        t2     7        paused by ana',
      'b        train  7        active',
    ]);
    const down = `--via 'down=sh -c "echo no route >&2; exit 9"'`;
    const { write, lines, showsLine } = await open(`${quoted(vias)} ${down} top`);
    await showsLine(/; down: sh ended with exit code 9: no route$/);
    await showsLine(/^b +train +7 +active/);
    assert.ok(lines().some((line) => /^MACHINE +NAME +PROCESS/.test(line)));
    write('q');
    const named = ['--via', 'down=sh -c "echo no route >&2; exit 9"'];
    const ended = await onTerminal(t, [...vias, ...named, 'top', 'down/train']).ended;
    assert.equal(ended.code, 5, 'it must not show all systems, which keys would control');
    assert.equal(ended.stdout, 'control-client: down: sh ended with exit code 9: no route\r\n');
  });

  it('top filters by machine, and names it in each message and title', async (t) => {
    const { a, b, vias, open } = await openMachines(t);
    const { write, lines, showsLine, type } = await open(`${quoted(vias)} top`);
    await showsLine(/^4 systems: 1 paused, 3 active$/);
    write('/b/tr\r');
    await showsLine(/; 'b\/tr' matches 1$/);
    assert.match(lines()[2] ?? '', /^b +train +7 /);
    write('p');
    await showsLine(/^pause b\/train: /);
    await type('d', /Shut b\/train down\? \(y\/N\)/);
    write('n');
    await showsLine(/^shutdown cancelled$/);
    write('\r');
    await showsLine(/^b\/train: active$/);
    write('xl');
    await showsLine(/^log of b\/train$/);
    write('x/!\r');
    await showsLine(/matches 0$/);
    assert.match(lines()[1] ?? '', /^MACHINE /, 'no column moves');
    assert.deepEqual([a, b].map(({ requests }) => requests.filter((request) => /^POST/.test(request))), [
      [], ['POST /api/pause'],
    ]);
  });
});

// ───── Helpers ───────────────────────────────────────────────────────────────────────────────────────────────────

function listOn(t: TestContext, folder: string, width: number): Promise<Ended> {
  const command = `stty cols ${width}; exec ${process.execPath} dist/bin/client.js list --dir '${folder}'`;
  return start(t, 'script', ['--quiet', '--return', '--command', command, '/dev/null']).ended;
}

async function tableIn(t: TestContext, folder: string, width: number): Promise<string[]> {
  const { code, stdout } = await listOn(t, folder, width);
  assert.equal(code, 0, stdout);
  return stdout.trimEnd().split('\r\n');
}

interface Screen extends Terminal {
  /** The lines on the screen, without colors and trailing spaces. */
  lines(): string[];
  /** Resolves when a line matches. */
  showsLine(pattern: RegExp): Promise<void>;
}

interface Table extends Session {
  /** Starts a fake web API with the given info, as process 7. */
  show(name: string, info?: object | (() => object)): Promise<Web>;
  /** Starts control-client on a terminal of 100 columns and 30 lines, with this session. */
  open(args: string): Promise<Screen>;
}

function openTable(t: TestContext): Table {
  const session = openSession(t);
  const show: Table['show'] = (name, info = {}) => session.serve(`${name}-7`, () => {
    return { name, pid: 7, status: 'active', ...typeof info === 'function' ? info() : info };
  });
  const open: Table['open'] = async (args) => {
    const command = `${process.execPath} dist/bin/client.js ${args}`;
    return screenOf(await pseudoTerminal(t, command, /NAME/, { ...session.env, CONTROL_BY: 'ana' }));
  };
  return { ...session, show, open };
}

/** Two machines with systems of the same names, as process 7, and the web APIs of the ones that are called train. */
async function openMachines(t: TestContext): Promise<Pick<Table, 'open'> & { a: Web; b: Web; vias: string[] }> {
  const [one, other] = [openTable(t), openTable(t)];
  const [a, b] = [await one.show('train'), await other.show('train')];
  await one.show('t2');
  await other.show('t2', { status: 'paused', by: 'ana' });
  const via = (label: string, { env }: Table): string => `${label}=env CONTROL_DIR=${env.CONTROL_DIR}`;
  return { a, b, vias: ['--via', via('a', one), '--via', via('b', other)], open: openTable(t).open };
}

/** Arguments for a shell. */
function quoted(args: readonly string[]): string {
  return args.map((arg) => `'${arg}'`).join(' ');
}

function screenOf(terminal: Terminal): Screen {
  const lines = (): string[] => linesIn(terminal.output());
  const showsLine = (pattern: RegExp): Promise<void> => {
    const isShown = (): boolean => lines().some((line) => pattern.test(line));
    return terminal.until(isShown, () => `no ${pattern} in:\n${lines().join('\n')}`);
  };
  return { ...terminal, lines, showsLine };
}

function linesIn(output: string): string[] {
  const lines: string[] = Array.from({ length: 30 }, () => '');
  for (const [, number, text = ''] of output.matchAll(/\x1b\[(\d+)H\x1b\[2K((?:[^\x1b]|\x1b\[\d+m)*)/g)) {
    lines[Number(number) - 1] = text.replaceAll(/\x1b\[\d+m/g, '').trimEnd();
  }
  return lines;
}
