// control-client top, and the tables of several machines; list.txt has those of one.

import assert from 'node:assert/strict';
import { appendFileSync } from 'node:fs';
import { describe, it, type TestContext } from 'node:test';
import { HOSTILE, launchSystem } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { type Puppet, type PuppetState, startPuppet } from '../../puppet.ts';
import { CTRL_C, CTRL_Z, DOWN, HARMFUL, lineOf, openTerminal, type Terminal, UP } from '../../screen.ts';
import { until } from '../../wait.ts';
import { HOSTILE_LINES, infoOf, linesOf as logOf, outcome, writeLog } from '../logs.ts';
import { AT_ONCE, call, onTerminal, refusal } from './helpers.ts';
import { openSession, type Session, startSilent } from './systems.ts';

const SUITE = { ...AT_ONCE, skip: lacks('script') };
const ENTER_SCREEN = '\x1b[?1049h';
const LEAVE_SCREEN = '\x1b[?1049l';

/** The time so many seconds ago. */
const ago = (seconds: number): string => new Date(Date.now() - 1000 * seconds).toISOString();

it('control-client top requires a terminal, and excludes --json', SUITE, async (t) => {
  const hint = "; 'watch' prints a line for each change";
  assert.deepEqual(await call(['top']), refusal(`top requires a terminal${hint}`));
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
    await startSilent(t, `${folder}/hung-8.sock`);
    await showsLine(/^hung +8 +no answer /);
    await show('t1'); // at the same path
    await showsLine(/^4 systems: 1 no answer, 1 paused, 2 active$/);
  });

  it('controls the selected system, and asks before a shutdown and a resume of what others have paused', async (t) => {
    const { launch, show, open } = openTable(t);
    await launch('one');
    const { client, finished } = await launch('three', { saveState: () => 'states/3.json' });
    const guest = await show('two');
    const { write, showsLine, type } = await open('top');
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
    const sent = (await client.getInfo())?.commands.map(({ command, by }) => [command, by]);
    assert.deepEqual(sent, [['pause', 'ana'], ['save-state', 'ana'], ['resume', 'ana']]);

    write('/two\r');
    await showsLine(/; 'two' matches 1$/);
    for (const key of ['n', '\r', '\x1b', 'x']) {
      await type('d', /Shut two down\? \[y\/N\]/);
      await type(key, /shutdown cancelled/);
    }
    assert.deepEqual(guest.posted(), []);
    write('\x1b/three act\r');
    await showsLine(/; 'three act' matches 1$/);
    await type('d', /Shut three down\?/);
    await client.request('pause', { wait: 60, by: 'ana' });
    await showsLine(/; 'three act' matches 0$/); // it has left the table in the meantime
    write('y');
    await showsLine(/^shutdown three: offline: states\/3\.json \(\d+\.\d s\)$/);
    await finished;

    const holds = [{ by: 'ben@desk', reason: `B leaks memory ${'!'.repeat(99)}` }, { by: 'ana' }];
    guest.set({ status: 'paused', ...holds[0], holds, post: { state: 'done' } });
    write('\x1b/two\r');
    await showsLine(/^two +7 +paused by ben/);
    await type('r', /Resume two, paused by ben@desk: B leaks memory !+… \[y\/N\]/);
    await type('n', /resume cancelled/);
    assert.deepEqual(guest.posted(), []);
    await type('r', /Resume two, /);
    write('y');
    await showsLine(/^resume two: active \(\d+\.\d s\)$/);
    assert.deepEqual(guest.posted(), ['resume']);
  });

  it('shows the info of a system until a key is pressed, and what it asks before all others', async (t) => {
    const { show, open } = openTable(t);
    await show('a');
    const long = `${'x'.repeat(120)}END`;
    const z = await show('z', { host: 'gpu3', detail: { step: 0, of: 1_000_000, long } });
    const { write, lines, showsLine } = await open('top');
    await showsLine(/^2 systems: 2 active$/);

    await t.test('with the time left, but none while paused', async () => {
      await showsLine(/^z .*\] 0 %, step 0 of/);
      for (const step of [1, 2]) {
        z.set({ detail: { step, of: 1_000_000, long } });
        await showsLine(step === 1 ? /^z .*\] 0 %, step 1 of/ : /^z .*\] 0 %, \d+ (min|h|days) left, step 2 of/);
      }
      z.set({ status: 'paused', by: 'ana' });
      await showsLine(/^z .* 0 %, step 2 of/);
      write(DOWN);
      for (const key of ['i', '\r']) {
        write(key);
        await showsLine(/^press any key to return$/);
        assert.deepEqual(lines().slice(0, 3), [
          'z: paused by ana', 'name      z (process 7 on gpu3)', 'status    paused by ana',
        ]);
        assert.match(lines()[3] ?? '', /^detail    \[ {10}\] 0 %, step 2 of 1000000, long x+$/);
        await showsLine(/^ {10}x+END$/);
        write('q');
        await showsLine(/^NAME /);
      }
    });

    await t.test('with its questions', async () => {
      const parameters = { ok: { type: 'boolean' } };
      const question = { id: 'k3f-q2', message: 'Delete 3 branches?', parameters, at: ago(200) };
      z.set({ status: 'active', by: undefined, detail: null, asks: [question] });
      await showsLine(/^2 systems, 1 asking: 2 active$/);
      assert.match(lines()[2] ?? '', /^z +7 +asks +3 min +Delete 3 branches\?$/);
      write('/asks\r');
      await showsLine(/'asks' matches 1$/);
      write('\r'); // the selection has followed its system
      await showsLine(/^z: asks$/);
      await showsLine(/^asks {6}k3f-q2, asked 3 min ago: Delete 3 branches\? \(answer yes or no\)$/);
      z.set({ asks: [] });
      await showsLine(/^z: active$/);
      write('q\x1b');
      await showsLine(/^2 systems: 2 active$/);
      await until(() => lines().slice(2, 4).map((line) => line[0]).join('') === 'az', () => lines().join('\n'));
    });
  });

  it('shows the log of a system, or its stack, until a key is pressed, with what is added, or says where it is', async (t) => {
    const { show, open } = openTable(t);
    const path = writeLog(t, ...Array.from({ length: 60 }, (_, index) => {
      const fields = { name: 't1', command: `c${index}`, value: 'x'.repeat(80) };
      return outcome(0, `h-${index}`, { time: '2026-11-23T03:00:00Z', ...fields });
    }));
    await show('t1', infoOf(path, { name: 't1' }));
    await show('t2', infoOf(path, { name: 't2', host: 'gpu1\x1b[2J' }));
    const t3 = await show('t3', { stack: ['inner\x1b[2J (t.mjs:1:2)', 'x'.repeat(99)] });
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
    write('qt');
    await showsLine(/^inner \[2J \(t\.mjs:1:2\)$/);
    assert.deepEqual([lines()[0], lines()[2]], ['stack of t3', 'x'.repeat(99)]);
    t3.set({ code: 501, error: 'not available' });
    await showsLine(/^not available$/);
    t3.set({ code: 200 });
    write('q');
    await showsLine(/^3 systems: 3 active$/);
    assert.equal(lines()[29], 'q quit  p pause  r resume  s save  d shut down  i info  l log  t stack  / filter');
  });

  it('filters by name and status, scrolls, and redraws the whole screen when the size changes', async (t) => {
    const { show, open } = openTable(t);
    const { posted } = await show('train');
    await show('Eval', { status: 'paused' });
    await show('strain', { status: 'paused' });
    for (let number = 1; number <= 60; number++) await show(`x${number}`, { detail: 'x'.repeat(200) });
    const { stty, write, lines, showsLine } = await open('top');
    await showsLine(/^63 systems: 2 paused, 61 active$/);
    const names = (...rows: number[]): string => rows.map((row) => lines()[row]?.split(' ')[0]).join(' ').trim();
    const filters: [keys: string, line: RegExp, names: string][] = [
      ['/RAIN', /^\/RAIN_ /, 'strain train'],
      ['\x7fX', /^\/RAIX_ /, ''],
      ['\r', /^63 systems: .*; 'RAIX' matches 0$/, ''],
      ['p', /^q quit/, ''], // nothing is selected
      ['\x1b', /^63 systems: 2 paused, 61 active$/, 'Eval strain train'],
      ['/paused\r', /^63 systems: .*; 'paused' matches 2$/, 'Eval strain'],
      ['/q', /^\/pausedq_ /, ''],
      ['\x1b', /^63 systems: 2 paused, 61 active$/, 'Eval strain train'],
      ['/strain\r\x1b/EV', /^\/EV_ /, 'Eval'], // Esc and soon another key
      ['\x7f\x7fx\r', /; 'x' matches 60$/, 'x1 x2 x3'],
    ];
    for (const [keys, line, expected] of filters) {
      write(keys);
      await showsLine(line);
      await until(() => names(2, 3, 4) === expected, () => `${keys}: ${lines().join('\n')}`);
    }
    assert.deepEqual(posted(), []);
    const steps: [keys: string, shown: string][] = [
      ['\x1b[H', 'x1 x27'], ['\x1b[6~', 'x2 x28'], ['\x1b[F', 'x34 x60'], ['k\x1b[5~', 'x32 x58'], ['\x1b[H', 'x1 x27'],
      ['j'.repeat(27), 'x2 x28'],
    ];
    for (const [keys, expected] of steps) {
      write(keys);
      await until(() => names(2, 28) === expected, () => `${JSON.stringify(keys)}: ${lines().join('\n')}`);
    }
    await showsLine(/^x2 .*x…$/);
    stty('cols', '40', 'rows', '10');
    await until(() => /^q quit .{32}…$/.test(`${lines()[9]}`), () => lines().join('\n'));
    assert.ok(lines().slice(0, 10).every((line) => line.length <= 40), lines().join('\n'));
  });

  it('accepts targets, which may come back', async (t) => {
    const { open } = openTable(t);
    const { end, target, port } = await startPuppet(t);
    const { showsLine } = await open('top', target);
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
    assert.doesNotMatch(output(), HARMFUL);
  });
});

describe('control-client top and the terminal', SUITE, () => {
  it('restores it at Ctrl-C, SIGTERM and SIGHUP, and takes keys after another program has set its mode', async (t) => {
    const { open, show } = openTable(t);
    const ends: [code: number, end: (screen: Terminal) => void | Promise<void>][] = [
      [0, async ({ stty, write }) => {
        stty('sane');
        write('\r');
        await until(() => /-icanon/.test(stty('-a')));
        write(CTRL_C);
      }],
      [128 + 15, ({ pid }) => void process.kill(pid, 'SIGTERM')],
      [128 + 1, ({ pid }) => void process.kill(pid, 'SIGHUP')],
    ];
    const none = await open('top');
    await none.showsLine(/^nothing runs: it may still start$/);
    await show('train');
    for (const [code, end] of ends) {
      const view = await open('top');
      await view.showsLine(/^1 system: /);
      await end(view);
      const { code: actual, stdout } = await view.ended;
      assert.equal(actual, code);
      assert.equal(stdout.split(LEAVE_SCREEN).length, 2);
      assert.ok(stdout.includes(`\x1b[?25h${LEAVE_SCREEN}`));
    }
  });

  it('completes a command after q and prints the outcome, but does not wait for long', async (t) => {
    const { show, open } = openTable(t);
    const puppet = await show('t1', { post: { state: 'done' }, silent: 'POST' });
    const quit = async (act: (view: Terminal) => Promise<void>): Promise<string> => {
      const view = await open('top');
      await view.showsLine(/^t1 .*active/);
      view.write('pqr');
      await act(view);
      const { code, stdout } = await view.ended;
      assert.equal(code, 0);
      return stdout.slice(stdout.lastIndexOf(LEAVE_SCREEN));
    };
    const left = await quit(async ({ until, output }) => {
      await until(() => output().includes(LEAVE_SCREEN));
      await puppet.holds('POST', 1);
      puppet.set({ silent: false });
    });
    assert.match(left, /control-client: pause t1: paused \(\d+\.\d s\)/);
    puppet.set({ silent: 'POST' });
    const late = await quit(() => puppet.holds('POST', 1));
    assert.match(late, /control-client: pause t1: (not paused after|pause sent, but no response within) /);
    assert.deepEqual(puppet.posted(), ['pause', 'pause']);
  });

  it('restores it at Ctrl-Z, and takes it back at fg', { skip: lacks('bash') }, async (t) => {
    const { env, show } = openTable(t);
    await show('t1');
    const shell = 'bash --norc --noprofile --noediting -i';
    const { shows, showsLine, output, write, type } = await openTerminal(t, shell, /SHELL> $/, {
      env: { PS1: 'SHELL> ', ...env },
    });
    write(`${lineOf('client', ['top'])}\r`);
    await showsLine(/^t1 /);
    const entries = (): number => output().split(ENTER_SCREEN).length - 1;
    assert.equal(entries(), 1);
    await type(CTRL_Z, /Stopped[^]*SHELL> $/);
    assert.ok(output().lastIndexOf(LEAVE_SCREEN) > output().lastIndexOf(ENTER_SCREEN));
    await type('stty -a\r', / icanon [^]*SHELL> $/);
    await type('fg\r', /1 system: 1 active/);
    assert.equal(entries(), 2);
    write('q');
    await shows(/SHELL> $/);
    await type('stty -a\r', / icanon [^]*SHELL> $/);
  });
});

describe('list and top of several machines', SUITE, () => {
  it('have a column for the machine, filter by it, name it in each title, and say which is not reached', async (t) => {
    const [one, other] = [openTable(t), openTable(t)];
    const [a, b] = [await one.show('train'), await other.show('train', { post: { state: 'done' } })];
    await one.show('t2');
    await other.show('t2', { status: 'paused', by: 'ana' });
    const via = (label: string, { env }: Table): string => `${label}=env CONTROL_DIR=${env.CONTROL_DIR}`;
    const [vias, down] = [['--via', via('a', one), '--via', via('b', other)], 'down=sh -c "echo no route >&2; exit 9"'];
    const { stdout } = await onTerminal(t, [...vias, 'list']).ended;
    assert.deepEqual(stdout.trimEnd().split(/\r?\n/).map((line) => line.trimEnd()), [
      'MACHINE  NAME   PROCESS  STATUS         SINCE  DETAIL',
      'a        t2     7        active',
      'a        train  7        active',
      'b        t2     7        paused by ana',
      'b        train  7        active',
    ]);
    const ended = await onTerminal(t, [...vias, '--via', down, 'top', 'down/train']).ended;
    assert.equal(ended.code, 5, 'it must not show all systems, which keys would control');
    assert.equal(ended.stdout, 'control-client: down: sh ended with exit code 9: no route\r\n');

    const { write, lines, showsLine, type } = await openTable(t).open(...vias, '--via', down, 'top');
    await showsLine(/^4 systems: 1 paused, 3 active; down: sh ended with exit code 9: no route$/);
    assert.match(lines()[1] ?? '', /^MACHINE +NAME +PROCESS/);
    write('/b/tr\r');
    await showsLine(/; 'b\/tr' matches 1; /);
    assert.match(lines()[2] ?? '', /^b +train +7 /);
    write('p');
    await showsLine(/^pause b\/train: /);
    await type('d', /Shut b\/train down\? \[y\/N\]/);
    write('n');
    await showsLine(/^shutdown cancelled$/);
    write('\r');
    await showsLine(/^b\/train: active$/);
    write('xl');
    await showsLine(/^log of b\/train$/);
    write('x/!\r');
    await showsLine(/matches 0; /);
    assert.match(lines()[1] ?? '', /^MACHINE /, 'no column moves');
    assert.deepEqual([a.posted(), b.posted()], [[], ['pause']]);
  });
});

// ───── Helpers ───────────────────────────────────────────────────────────────────────────────────────────────────

interface Table extends Session {
  /** Starts a puppet with the given info, as process 7. */
  show(name: string, state?: PuppetState): Promise<Puppet>;
  /** Starts control-client on a terminal of 100 columns and 30 lines, with this session. */
  open(...args: string[]): Promise<Terminal>;
}

function openTable(t: TestContext): Table {
  const session = openSession(t);
  const show: Table['show'] = (name, state) => {
    const socketPath = `${session.folder}/${name}-7.sock`;
    return startPuppet(t, { name, pid: 7, version: undefined, ...state }, { socketPath });
  };
  const open: Table['open'] = (...args) => {
    return openTerminal(t, lineOf('client', args), /NAME/, { env: { ...session.env, CONTROL_BY: 'ana' } });
  };
  return { ...session, show, open };
}
