// The page of control-board in a browser: what it shows of systems, and what it sends. The words of a state have
// their table in ../view.test.ts, and what a board does has its tests in api.test.ts.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { afterEach, before, describe, it } from 'node:test';
import { SystemStatus } from '../../../../control.ts';
import { makeFolder, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { HTML } from '../logs.ts';
import { type Browser, startBrowser } from './browser.ts';
import { forSuite, startBoard, type StartedBoard } from './helpers.ts';
import {
  answered, ask, asking, type Card, cards, CRASHED, declare, ENDED, FAILED, type FakeBoard, FIND_FLAWS,
  FIND_FLAWS_OF_DIALOG, focused, glances, listed, MESSAGE, OFFLINE, orderOf, type OwnRow, PAUSED, plotted,
  type Question, sees, sent, SILENT, skip, startFakeBoard, type State,
} from './page.ts';
import type { Update } from '../../../board/system.ts';

process.env['TZ'] = 'America/St_Johns'; // of the browser; a board may have another one

const MANY = 12; // from this many systems on, the page has rows
const SETTLE_MS = 3000; // until the page is at rest
const GUARD_MS = 500; // questions take no answer before, after something has moved
const LONG = 'w'.repeat(200);
const REASON = '.own form > input'; // of the first own command

/** A save whose outcome the system reports, too. */
const NOT_SAVED = sent(1, 'save-state', 'failed', 'not saved: ENOSPC', { isReported: true });

/** What the board sends, and what the card shows. */
const STATES: [state: State, card: Partial<Card>][] = [
  [{ status: '', word: 'connecting', heading: 'connecting', level: 'none', isControllable: false }, {
    status: 'connecting', gray: [true, true, true], level: 'none',
  }],
  [{
    when: 'for 3 min', cause: ' by ana: a < b', holds: ['and by ben', 'and by others'], step: 'in a step',
    error: 'a < b', saved: 'saved <i>', unsaved: 'not saved',
    progress: { name: 'step', done: 1700.5, of: 10_000, text: '17 %, 3 h left' },
    commands: [listed('2 s ago · x expired', 'answer', 'q1'), listed('3 s ago · load done in 0.50 s', 'done', 'k3f-1')],
  }, {
    status: 'active', cause: 'for 3 min by ana: a < b', holds: ['and by ben', 'and by others'], step: 'in a step',
    error: 'a < b', saved: 'saved <i>', unsaved: 'not saved',
    progress: 'step 1700.5 of 10,000 · 17 %, 3 h left',
    commands: ['2 s ago · x expired', '3 s ago · load done in 0.50 s'],
    gray: [false, false, false], level: 'good', buttons: ['Pause', 'Save', 'Shut down'], hint: '', hasLog: false,
  }],
  [{ ...PAUSED, status: 'pausing', ...sent(1, 'save-state', 'done', 'accepted, but the server reports no outcome') }, {
    gray: [false, false, false], buttons: ['Resume', 'Save', 'Shut down'],
    sent: ['✓ accepted, but the server reports no outcome'], spoken: [],
  }],
  [{ ...PAUSED, ...FAILED, ...NOT_SAVED, unsaved: 'save failed: ENOSPC' }, {
    status: 'paused', level: 'bad', statusLevel: 'warn', unsaved: 'save failed: ENOSPC', sent: [],
    spoken: ['✗ not saved: ENOSPC'],
  }],
  [CRASHED, { status: 'crashed', cause: 'exit code 7', gray: [true, true, true], level: 'bad' }],
  [ENDED, { status: 'ended', gray: [true, true, true], level: 'ended' }],
  [{ ...PAUSED, ...sent(1, 'save-state', 'done', 'saved a', { isReported: true }), saved: 'saved a 1 s ago' }, {
    status: 'paused', level: 'warn', buttons: ['Resume', 'Save', 'Shut down'], sent: [], spoken: ['✓ saved a'],
  }],
  [{ process: 'process 7 on gpu3', target: 'gpu3:1', fields: [
    { name: 'CPU seconds', value: 1 }, { name: 'run.CPU seconds', value: 2.07, isRun: true },
  ] }, { place: 'process 7 on gpu3 · CPU 2.07 s · gpu3:1' }],
  [{ process: 'process 7 on gpu3', target: 'gpu3/unix:/x' }, { place: 'process 7 on gpu3' }],
  [{
    target: 'unix:/x', sent: [
      { id: 1, command: 'pause', state: 'sent', text: '' }, { id: 2, command: 'pause', state: 'done', text: 'paused' },
      { id: 3, command: 'save-state', state: 'failed', text: 'not saved: ENOSPC' },
    ],
  }, { place: 'unix:/x', sent: ['✗ not saved: ENOSPC'], spoken: ['… pause sent', '✓ paused'] }],
  [{ ...PAUSED, ...asking({ ...ask('q1'), parameters: [] }) }, {
    status: 'paused', level: 'asks', statusLevel: 'warn', buttons: ['Answer', 'Resume', 'Save', 'Shut down'],
  }],
];

/** Systems, the title of the page, and the level of its icon. */
const TITLES: [systems: State[], title: string, level: string][] = [
  [[{}], 'active', 'good'], [[PAUSED], 'paused', 'warn'], [[CRASHED], 'crashed', 'bad'], [[ENDED], 'ended', 'none'],
  [[{ ...PAUSED, ...FAILED }], 'failed', 'bad'], [[{ name: 'one' }, { name: 'two', ...ENDED }], 'active: one', 'good'],
  [[FAILED, SILENT, PAUSED], '1 failed · 1 no answer', 'bad'],
  [[FAILED, asking(ask('q1'))], 'asking: box at box:9001', 'asks'], [[], 'no systems', 'none'],
];

describe('The page of control-board', { ...LIMIT, skip: lacks('chromium', 'chromedriver') }, () => {
  const suite = forSuite();
  let browser: Browser;
  let board: FakeBoard;

  before(async () => {
    browser = await startBrowser(suite);
    board = await startFakeBoard(suite, browser);
  });

  afterEach(async () => { // responses that refuse something are errors, too
    const errors = (await browser.consoleErrors()).filter((error) => !error.includes('Failed to load resource'));
    assert.deepEqual(errors, []);
  });

  const card = async (id: number = 0): Promise<Card> => (await cards(browser))[id] ?? assert.fail(`no system ${id}`);
  const press = async (name: string): Promise<void> => browser.activate(await browser.findByRole('button', name));
  /** A button of the first card, even if it is gray. */
  const pressAt = (place: number, id: number = 0): Promise<void> => {
    return browser.activate(`[data-id='${id}'] .body button`, place);
  };
  const focus = (selector: string): Promise<void> => {
    return browser.run('document.querySelector(arguments[0]).focus()', selector);
  };
  const isOpen = async (): Promise<boolean> => (await browser.findAll('dialog[open]')).length > 0;
  /** Enters the reason in the dialog. */
  const confirm = async (reason: string = ''): Promise<void> => {
    await browser.find('dialog[open]');
    await focus('dialog input');
    await browser.press(...(reason === '' ? [] : [reason]), 'Enter');
  };
  const icon = (): Promise<string> => browser.run('return document.querySelector("link[rel=icon]").href');
  const describedBy = async (name: string): Promise<[isGray: boolean, hint: string]> => browser.run(`
    const hint = document.getElementById(arguments[0].getAttribute('aria-describedby'));
    return [arguments[0].ariaDisabled === 'true', hint.checkVisibility() ? hint.innerText : ''];
  `, await browser.findByRole('button', name));

  const field = (command: string, parameter: string): string => `#field-0-${command}-${parameter}`;
  const openRow = (name: string): Promise<void> => browser.run(`
    const rows = [...document.querySelectorAll('.own summary')];
    const row = rows.find(({ textContent }) => textContent === arguments[0]).parentElement;
    if (!row.open) row.firstElementChild.click();
  `, name);
  /** Replaces the text in a field. */
  const type = async (selector: string, text: string): Promise<void> => {
    await browser.click(selector);
    await browser.run('document.activeElement.select()');
    await browser.press(...(text === '' ? ['Backspace'] : [text]));
  };
  /** Waits until an own command is as expected. */
  const seesRow = (name: string, check: (row: OwnRow) => void): Promise<void> => sees(browser, ({ own }) => {
    check(own.find((row) => row.name === name) ?? assert.fail(`there is no row ${name}`));
  });
  const seesQuestions = (check: (...all: Question[]) => void): Promise<void> => {
    return sees(browser, (...all) => check(...all.flatMap(({ questions }) => questions)));
  };

  it('shows each part of a state at its place', async () => {
    await board.open(...STATES.map(([state]) => state));
    const all = await cards(browser);
    for (const [id, [, expected]] of STATES.entries()) assert.deepEqual(all[id], { ...all[id], ...expected });
    const takesRoom = await browser.run(`
      const all = [...document.querySelectorAll('.body > .sent')];
      return all.filter(({ innerText }) => innerText.includes('ENOSPC')).map((one) => getComputedStyle(one).position !== 'absolute');
    `);
    assert.deepEqual(takesRoom, [false, true], 'unless it is only spoken');
  });

  it('shows no failed save of its own that a later one has replaced, and one that was refused', async () => {
    const unsaved = 'save failed 3 h ago: ENOSPC';
    await board.open({ ...NOT_SAVED, saved: 'saved b 1 s ago' }, { ...sent(1, 'save-state', 'failed', 'busy'), unsaved });
    assert.deepEqual((await cards(browser)).map(({ sent: shown, spoken }) => [shown, spoken]), [
      [[], ['✗ not saved: ENOSPC']], [['✗ busy'], []],
    ]);
  });

  it('has the worst state in its title and its icon', async () => {
    await board.open();
    const icons = new Map<string, string>();
    for (const [states, title, level] of TITLES) {
      await board.show(...states);
      assert.equal(await browser.title(), `${title} – control-board`);
      const shown = await icon();
      assert.equal(icons.get(level) ?? shown, shown, title);
      icons.set(level, shown);
    }
    assert.equal(new Set(icons.values()).size, 5);
    assert.equal(await browser.text('#summary'), 'no systems');
  });

  it('shows the detail with plots of its numbers', async () => {
    const rows: [entry: Update['fields'][number], text: string, heights: string | null][] = [
      [{ name: 'word', value: 'cart pole' }, 'cart pole', null], [{ name: 'toString', value: 7 }, '7', null],
      [plotted('__proto__', 1001, 1003), '1,003', 'M14.2L9.8'], // nearly flat
      [plotted('constructor', 1, 3, 2), '2', 'M23L1L12'], [plotted('', 0, 0), '0', 'M12L12'],
      [plotted('loss', 0.123_456_789, -0.123_456_789), '-0.123457', 'M1L23'],
      [plotted('huge', -1.7e308, 1.7e308), '1.7e+308', 'M23L1'],
      [{ name: 'tiny', value: -2.199e-6 }, '-2.199e-6', null],
      [{ name: 'small', value: 0.000_123_456 }, '0.000123456', null],
      [plotted('gap', 1, 3, null, null, 1, 3), '3', 'M23L1M23L1'],
    ];
    const run = ['pid', 'command'].map((name) => ({ name, value: 7, isRun: true as const }));
    const progress = { name: 'epoch', done: 1, of: 2, text: '50 %' };
    await board.open({ fields: rows.map(([entry]) => entry) }, {
      fields: [
        ...run, plotted('epoch', 0, 1), { name: 'of', value: 2 }, plotted('learningRate', 0.01, 0.01), plotted('step', 1, 13_696_800),
      ],
      progress,
    });
    await browser.activate('[data-id="1"] .process summary');
    await browser.resize(390, 844); // a phone
    const [first, second] = await cards(browser);
    assert.deepEqual(first?.rows.map(({ name, text, plot }) => {
      return [name, text, plot?.replaceAll(/([ML])[\d.]+ ([\d.]+?)(\.0)?(?=[ML]|$)/g, '$1$2') ?? null];
    }), rows.map(([{ name }, ...rest]) => [name || 'detail', ...rest]));
    assert.deepEqual([second?.process, second?.rows.map(({ name, text }) => [name, text])], [
      ['pid', 'command'], [['learningRate', '0.01'], ['step', '13,696,800']], // the progress shows the others
    ]);
    const [range, label, constant, ...heights] = await browser.run<unknown[]>(`
      const plotOf = (name) => [...document.querySelectorAll('.plot')].find((one) => one.innerHTML.includes(name));
      const rows = [...document.querySelectorAll('[data-id="1"] [aria-label=Detail] tr')];
      const rangeOf = (name) => plotOf(name).querySelector('small').textContent;
      return [rangeOf('constructor'), plotOf('constructor').querySelector('svg').ariaLabel, rangeOf('learningRate'),
        ...rows.map((row) => row.offsetHeight)];
    `);
    assert.deepEqual([range, label, constant], ['max 3\nmin 1', 'constructor over the last 2 s: 1 to 3', '']);
    assert.ok(heights.length === 2 && heights.every((height) => Number(height) < 40), `a line each: ${heights}`);
  });

  it('adds the samples of later news, and thins them', async () => {
    const start = Date.now() - 7_200_000;
    const samplesAt = (...times: number[]): State => ({
      fields: [{ name: 'x', value: 1, samples: times.map((time) => [start + time * 1000, time]), intervalMs: 1000 }],
    });
    const points = async (): Promise<number> => (await card()).rows[0]?.plot?.split(/[ML]/).slice(1).length ?? 0;
    await board.open(samplesAt(0, 1, 2));
    await board.show(samplesAt(2, 3));
    assert.equal(await points(), 4, 'each once');
    await board.show(samplesAt(...Array.from({ length: 400 }, (_, index) => 4 + index)));
    assert.ok(await points() <= 151, `${await points()}`);
    await board.show(samplesAt(3700));
    assert.ok(await points() < 120, 'those of the last hour');
  });

  it('asks for a reason before it pauses or shuts down, or ends the hold of somebody else', async () => {
    await board.open({ name: 'trainer' });
    for (const [place, verb] of [[0, 'Pause'], [2, 'Shut down']] as const) {
      for (const end of [() => browser.click('#cancel'), () => browser.press('typed', 'Escape')]) {
        await browser.click('.body button', place);
        await browser.findByRole('dialog', `${verb} trainer?`);
        const first = verb === 'Pause' ? 'Reason' : 'Cancel'; // a second Enter must not end the program
        assert.deepEqual([await focused(browser), await browser.text('#confirm')], [first, verb]);
        await end();
        await until(async () => !await isOpen(), () => `${end} does not close it`);
        assert.equal(await focused(browser), `${verb} trainer`);
      }
    }
    await browser.click('.body button', 0);
    await browser.click('#confirm'); // without a reason, not with the cancelled one
    await board.takes('0/pause');
    await browser.click('.body button', 2);
    await browser.press('Shift+Tab', 'a&b');
    await browser.click('#confirm');
    await board.takes('0/shutdown?reason=a%26b');
    assert.equal(await focused(browser), 'Shut down trainer');
    await board.show({ name: 'trainer', ...PAUSED, othersHold: 'paused by ben@desk; and by ana: night tariff' });
    await browser.click('.body button', 0);
    await browser.findByRole('dialog', 'Resume trainer, paused by ben@desk; and by ana: night tariff?');
    await confirm('both agree');
    await board.takes('0/resume?reason=both+agree');
    await board.show({ name: 'trainer', ...PAUSED });
    await browser.click('.body button', 0); // does not ask: its own hold
    await board.takes('0/resume');
  });

  it('pauses for a time, and takes back what waits', async () => {
    await board.open({ name: 'trainer' });
    const choose = async (value: string): Promise<void> => {
      await browser.click('.body button', 0);
      await browser.find('dialog select:not([hidden])');
      await browser.run('document.querySelector("dialog select").value = arguments[0]', value);
    };
    await choose('7200');
    await confirm('lunch');
    await board.takes('0/pause?reason=lunch&for=7200');
    await choose('1800');
    await browser.click('#cancel');
    await browser.click('.body button', 2);
    await browser.find('dialog[open] select[hidden]');
    await confirm();
    await board.takes('0/shutdown');
    const commands = [
      listed('shutdown by ana waiting for 3 s (k3f-7)', 'waiting', 'k3f-7', true),
      listed('3 s ago · load done in 0.10 s', 'done', 'k3f-6'),
    ];
    await board.show({ name: 'trainer', commands });
    await browser.click('.commands button:not([hidden])');
    await browser.findByRole('dialog', 'Withdraw shutdown by ana waiting for 3 s (k3f-7)?');
    const later = listed('save-state waiting for 0 s (k3f-8)', 'waiting', 'k3f-8', true);
    await board.show({ name: 'trainer', commands: [later, ...commands] });
    await confirm('the wrong program');
    await board.takes('0/withdraw?reason=the+wrong+program&id=k3f-7');
    await board.show({ name: 'trainer', commands });
    board.refusal = [409, 'k3f-7 is running'];
    await browser.click('.commands button:not([hidden])');
    await confirm();
    await board.takes('0/withdraw?reason=&id=k3f-7');
    await sees(browser, ({ unsent }) => assert.equal(unsent, 'not sent: k3f-7 is running'));
    board.refusal = null;
    await board.show({ name: 'trainer', commands: commands.slice(1) });
    assert.equal((await browser.findAll('.commands button:not([hidden])')).length, 0);
  });

  it('offers to end, or to stop in its step, a program that lets a command wait, and where it is', async () => {
    for (const [late, button] of [['shutdown', 'Kill now'], ['pause', 'Freeze now']] as const) {
      const sent = [{ id: 1, command: late, state: 'sent', text: '' } as const];
      const ending = { status: 'shutting down', isControllable: false }; // its other buttons are off
      await board.show({ name: 'trainer', late, sent, ...late === 'shutdown' && ending });
      await sees(browser, ({ buttons, gray, hasStack }) => {
        assert.deepEqual([buttons[3], gray[3], hasStack], [button, false, true]);
      });
      await browser.click('.force');
      await browser.findByRole('dialog', `${button} trainer?`);
      if (late === 'shutdown') assert.equal(await focused(browser), 'Cancel');
      await confirm();
      await board.takes(`0/${late}?reason=&within=0`);
    }
    await board.show({ name: 'trainer' });
    await sees(browser, ({ buttons, hasStack }) => assert.deepEqual([buttons.length, hasStack], [3, false]));
  });

  it('sends one command on a double click and while Enter is held down', async () => {
    await board.open({});
    await browser.run(`
      window.clicks = [];
      addEventListener('click', ({ target, detail }) => window.clicks.push([target.id, detail]), true);
    `);
    const clicks = (): Promise<unknown> => browser.run('return window.clicks.splice(0)');
    await browser.doubleClick('.body button', 0);
    assert.deepEqual(await clicks(), [['', 1], ['question', 2]]); // it was a real double click
    await confirm();
    await board.takes('0/pause');
    await board.show(PAUSED);
    await browser.doubleClick('.body button', 0);
    await board.takes('0/resume');
    assert.ok(await browser.run(`
      const repeated = { key: 'Enter', repeat: true, bubbles: true, cancelable: true };
      return !document.querySelector('.body button').dispatchEvent(new KeyboardEvent('keydown', repeated));
    `));
    await pressAt(2);
    await browser.run(`
      const { left, top, width, height } = document.querySelector('#confirm').getBoundingClientRect();
      document.querySelector('#cancel').click();
      const place = 'position: fixed; left: ' + left + 'px; top: ' + top + 'px; width: ' + width + 'px;';
      document.querySelector('.body .danger').style.cssText = place + 'height: ' + height + 'px';
    `);
    await clicks();
    await browser.doubleClick('.body .danger');
    assert.deepEqual(await clicks(), [['', 1], ['confirm', 2]]);
    assert.ok(await isOpen(), 'it is not confirmed');
    await board.takes();
    await browser.press('Enter');
    await board.takes('0/shutdown');
  });

  it('says why a command was not sent, and sends nothing by gray buttons', async () => {
    await board.open({ name: 'job-1' });
    for (const [refusal, text] of [
      [[409, 'The program cannot save'], 'not sent: The program cannot save'],
      [[0, ''], 'possibly not sent: control-board has not confirmed it'], [null, ''],
    ] as [FakeBoard['refusal'], string][]) {
      board.refusal = refusal;
      await press('Save job-1');
      await board.takes('0/save-state');
      await sees(browser, ({ unsent }) => assert.equal(unsent, text));
    }
    const gone = 'not sent: job-1 can no longer be controlled';
    await pressAt(0);
    await board.show({ name: 'job-1', ...SILENT });
    assert.deepEqual((await card()).gray, [true, true, true]);
    await confirm();
    await sees(browser, ({ unsent }) => assert.equal(unsent, gone));
    for (const place of [0, 1, 2]) await pressAt(place);
    assert.equal(await isOpen(), false);

    await board.show({ name: 'job-1' }, { name: 'other' });
    await press('Shut down job-1');
    await board.show({ id: 1, name: 'other' }); // the first is gone, its dialog is open
    await skip(browser, SETTLE_MS);
    await board.show({ id: 1, name: 'other' });
    assert.deepEqual((await cards(browser)).map(({ name, gray: [isGray] }) => [name, isGray]), [
      ['job-1', true], ['other', false],
    ], 'nothing moves');
    await confirm();
    await until(async () => await browser.text('#unsent') === gone);
    await skip(browser, SETTLE_MS);
    await board.show({ id: 1, name: 'other' });
    assert.deepEqual((await cards(browser)).map(({ name }) => name), ['other']);
    await board.takes();
    await press('Save other');
    await board.takes('1/save-state');
    await until(async () => await browser.text('#unsent') === '');
  });

  it('commands all systems at once, and distinguishes systems of the same name by target', async () => {
    const offline = { name: 'away', ...OFFLINE };
    await board.open({ name: 'demo' }, { name: 'demo' }, { name: 'other' }, offline);
    await press('Shut down demo at box:9001');
    await browser.findByRole('dialog', 'Shut down demo at box:9001?');
    await browser.activate('#cancel');
    await browser.activate('summary');
    await press('Pause all');
    await browser.findByRole('dialog', 'Pause all 3 systems?');
    await confirm('lunch');
    await board.takes('pause?reason=lunch');
    for (const [states, text] of [
      [['sent', 'done', 'done'], '… pause: 1 sent · 2 done'],
      [['done', 'done', 'failed'], '✗ pause: 2 done · 1 failed'], [['done', 'done', 'done'], '✓ pause: 3 done'],
    ] as const) {
      await board.show(...states.map((state) => sent(1, 'pause', state)), offline);
      assert.equal(await browser.text('#all .sent'), text);
    }
    await board.show(offline, offline);
    assert.equal((await browser.findAll('#all button[aria-disabled=true]')).length, 4);
    await press('Pause all');
    assert.equal(await isOpen(), false);
    await board.show({});
    await skip(browser, SETTLE_MS);
    await board.show({});
    assert.ok(await browser.run('return document.querySelector("#all").hidden'), 'for one system');
  });

  it('disables the save of a program that cannot save, and says why', async () => {
    const hint = 'Cannot save: start control-run with\n--save-signal or --save-command';
    const job = { name: 'job', canSave: false };
    await board.open(job, { name: 'trainer' });
    assert.deepEqual([await describedBy('Save job'), await describedBy('Save trainer')], [[true, hint], [false, '']]);
    await focus('[data-id="0"] .body [data-command=pause]');
    await browser.press('Tab');
    assert.equal(await focused(browser), 'Save job', 'which has the reason');
    await browser.press('Enter');
    await board.takes();
    await browser.activate('summary');
    assert.deepEqual(await describedBy('Save all'), [false, '']);
    await press('Save all');
    await board.takes('save-state');
    await board.show(job, { name: 'trainer', ...sent(1, 'save-state', 'done') });
    assert.equal(await browser.text('#all .sent'), '✓ save-state: 1 done · 1 cannot save');
    await board.show(job, { name: 'trainer', ...OFFLINE });
    assert.deepEqual(await describedBy('Save all'), [true, hint]);
    await board.show({ name: 'job' }, { name: 'trainer', ...OFFLINE });
    assert.deepEqual([await describedBy('Save all'), await describedBy('Save job')], [[false, ''], [false, '']]);
  });

  it('shows a real board, sends it everything, and keeps the key for this tab, also if that restarts', async (t) => {
    t.after(() => browser.open('about:blank')); // before the board stops
    let status = SystemStatus.ACTIVE;
    const episodes = { type: 'integer', minimum: 1, maximum: 1000, default: 100 } as const;
    const { server, port } = await startServer(t, {
      name: 'cartpole', systemStatus: () => status, log: join(makeFolder(t), 'log'),
      commands: { evaluate: { description: 'Runs <b>episodes</b>', parameters: { episodes } } },
    });
    const take = async (): Promise<unknown[]> => {
      const command = await server.nextCommand();
      const { arguments: values, by, reason } = server.request ?? assert.fail();
      if (command === 'pause') status = SystemStatus.PAUSED;
      server.report({ value: command === 'evaluate' ? 497.1 : undefined });
      return [command, { ...values }, by, reason];
    };
    const [targets, keyFile] = [[`127.0.0.1:${port}`], join(makeFolder(t), 'key')];
    const first = await startBoard(t, targets, ['--key-file', keyFile], { CONTROL_BY: 'ana@phone' });
    const { url, key } = first;
    await browser.open(`${url}#${key}`);
    const shows = (word: string): Promise<void> => sees(browser, (all) => {
      assert.deepEqual([all?.status, all?.gray[0]], [word, false]);
    });
    await shows('active');
    await press('Pause cartpole');
    await confirm('lunch');
    assert.deepEqual(await take(), ['pause', {}, 'ana@phone', 'lunch']);
    await sees(browser, (one) => {
      assert.deepEqual([one.status, one.sent, one.commands], ['paused', [], []], 'once');
      assert.match(one.spoken.join(), /^✓ paused \(\d\.\d s\)$/);
    });
    await openRow('evaluate');
    await type(field('evaluate', 'episodes'), '5000');
    await browser.press('Enter');
    await seesRow('evaluate', ({ description, fields: [one] }) => assert.deepEqual([description, one], [
      'Runs <b>episodes</b>', {
        name: 'episodes', hint: 'from 1 to 1000', value: '5000', isInvalid: true,
        wrong: 'episodes must be an integer from 1 to 1000, got 5000',
      },
    ]));
    await type(field('evaluate', 'episodes'), '200');
    await type(REASON, 'before lunch');
    await press('evaluate cartpole');
    assert.deepEqual(await take(), ['evaluate', { episodes: 200 }, 'ana@phone', 'before lunch']);
    await seesRow('evaluate', ({ outcome, isOpen: isShown, fields: [one] }) => {
      assert.match(outcome.join(), /^✓ evaluate: 497\.1 \(\d+\.\d s\)$/);
      assert.deepEqual([isShown, one?.value], [true, '100'], 'the default again');
    });
    const asked = server.ask('Go on?');
    await sees(browser, ({ questions }) => assert.equal(questions[0]?.message, 'Go on?'));
    await until(async () => { // it takes no press at first
      const button = await browser.findByRole('button', 'Yes: Go on?');
      return browser.run('arguments[0].click(); return arguments[0].ariaDisabled === "true"', button);
    });
    const { arguments: given, by } = await asked;
    assert.deepEqual([given['approved'], by], [true, 'ana@phone']);
    await sees(browser, ({ questions }) => assert.equal(questions[0]?.end, 'Yes, by ana@phone · Go on?'));
    await browser.activate('.log summary');
    await sees(browser, ({ log }) => assert.match(log?.join() ?? '', /evaluate .*by ana@phone \(before lunch\)/));

    const reload = async (script: string): Promise<void> => {
      await browser.run(`window.isOld = true; ${script}`);
      await until(() => browser.run<boolean>('return window.isOld === undefined'));
    };
    const reports = async (problem: RegExp, count: number): Promise<void> => {
      await until(async () => problem.test(await browser.text('.lost')), () => `${problem}`);
      assert.deepEqual([await browser.url(), await browser.title()], [url, 'no data – control-board']);
      await sees(browser, (...all) => {
        assert.deepEqual(all.map(({ gray, level }) => [gray[0], level]), Array(count).fill([true, 'none']));
      });
    };
    assert.equal(await browser.url(), url);
    await reload('location.reload()');
    await shows('paused');
    await reload('location.hash = "#another-key-0123456789"');
    await reports(/^The key is wrong: open the address that control-board prints$/, 0);
    await reload('sessionStorage.clear(); location.reload()');
    await reports(/^The key is missing: open the address that control-board prints$/, 0);
    await reload(`location.hash = '${key}'`);
    await shows('paused');
    const restart = (...options: string[]): Promise<StartedBoard> => {
      return startBoard(t, targets, ['--listen', `localhost:${first.port}`, ...options]);
    };
    first.running.child.kill('SIGKILL');
    await reports(/^no response from control-board for \d+ s$/, 1);
    await browser.requests();
    await pressAt(1);
    assert.ok((await browser.requests()).every((request) => !request.includes('save-state')));
    const second = await restart('--key-file', keyFile);
    await shows('paused');
    second.running.child.kill('SIGKILL');
    await second.running.ended;
    await restart(); // with a new key
    await reports(/^The key is wrong/, 1);
    await server.close(); // before the folder of its log is removed
  });

  it('does not report the board as lost when the tab comes to the foreground', async () => {
    await board.open({}); // nothing changes, so there is no news
    await browser.requests();
    await browser.run(`
      window.seen = [];
      new MutationObserver(() => window.seen.push(document.querySelector('#problem').textContent))
        .observe(document.querySelector('#problem'), { childList: true });
      document.dispatchEvent(new Event('visibilitychange'));
    `);
    await until(async () => (await browser.requests()).length > 0); // a new one, as the first may be lost
    assert.deepEqual([await browser.run('return window.seen'), (await card()).gray[0]], [[], false]);
  });

  it('shows any text as text, on cards and in rows, light and dark, on screens of any width', async () => {
    const texts = (text: string, more: State = {}): State => ({
      name: text, process: text, heading: text, when: 'for 3 min', cause: `by ${text}: ${text}`, error: text,
      saved: `saved ${text} by ${text}`, unsaved: `save failed: ${text}`, failed: `save failed: ${text}`, step: text,
      fields: [{ name: text, value: text }, plotted(`${text}2`, 2 ** 53 - 1, -1.234_567_89e-300)],
      progress: { name: `the ${text}`, done: 5, of: 1e300, text },
      commands: ['done', 'failed', 'constructor'].map((state) => listed(`${text} by ${text} (${text})`, state)),
      holds: Array(16).fill(`and by ${text}: ${text}`), ...sent(1, 'pause', 'failed', text), hasLog: true, ...more,
    });
    const name = 'a'.repeat(32);
    const own = { ...declare(name, {
      [name]: { description: HTML, default: HTML, maxLength: 1e300 },
      number: { type: 'number', description: LONG, minimum: -1.797e308, maximum: 1.797e308, default: -1.23e-300 },
      choice: { enum: [LONG.repeat(5), HTML, 'a\u001b[2Jb\u202ec'], default: HTML },
      isLoud: { type: 'boolean', description: LONG }, constructor: {}, toString: { type: 'integer' },
    }), description: HTML };
    const asks = [HTML, LONG.repeat(5)].flatMap((message, index) => {
      const { parameters } = declare('x', { a: { type: 'boolean', description: message } });
      return [ask(`${index}`, { message, parameters: own.parameters }), ask(`${index}-2`, { message, parameters })];
    });
    const states = [
      texts(HTML, {
        accepts: [own, { ...declare('constructor'), description: LONG }], asks,
        current: [['choice', HTML], ['number', 7]],
      }),
      texts(LONG), texts(HTML, PAUSED),
      texts(LONG, { ...PAUSED, othersHold: `paused${`; and by ${LONG}`.repeat(16)}` }),
      texts(HTML, OFFLINE), texts(LONG, { ...CRASHED, heading: LONG }), texts(LONG, { canSave: false }),
    ];
    await board.open(...states);
    board.log = { note: HTML, entries: [HTML, LONG.repeat(5), '"'.repeat(900)].map((text) => ({ at: 0, text })) };
    await browser.run('for (const details of document.querySelectorAll("details")) details.open = true');
    await sees(browser, (first) => {
      assert.deepEqual([first.name, first.rows[0]?.name, first.rows[0]?.text, first.error], Array(4).fill(HTML));
      assert.ok(first.cause.includes(HTML) && first.sent[0] === `✗ ${HTML}`);
      const [row] = first.own;
      assert.deepEqual([row?.description, ...row?.fields.map(({ value }) => value) ?? []], [
        HTML, HTML, '7', HTML, false, '', '',
      ]);
      assert.deepEqual(first.questions.map(({ message }) => message), asks.map(({ message }) => message));
      assert.ok(first.log?.[0] === HTML && first.log.at(-1)?.endsWith(HTML));
    });
    const labels = await browser.run('return [...document.querySelector("select").options].map(({ label }) => label)');
    assert.deepEqual(labels, [LONG.repeat(5), HTML, 'a [2Jb c']);
    const checkLayout = async (what: string): Promise<void> => {
      for (const width of [320, 360, 1280]) {
        await browser.resize(width, 800);
        assert.deepEqual(await browser.run(FIND_FLAWS), [], `${what}, ${width} px`);
      }
    };
    for (const [dark, color] of [[true, 'rgb(13, 17, 23)'], [false, 'rgb(243, 244, 246)']] as const) {
      await browser.emulate({ dark });
      assert.equal(await browser.run('return getComputedStyle(document.body).backgroundColor'), color);
    }
    await checkLayout('cards');
    await board.show(...states, ...states.map((_, index) => ({ name: `t${index}` }))); // enough for rows
    const rows = (await glances(browser)).map((row) => row.name + row.text);
    assert.ok(rows.some((text) => text.startsWith(`${HTML} at box:`) && text.includes(HTML, 60)), rows.join('\n'));
    await browser.run('for (const button of document.querySelectorAll(".open")) button.click()');
    await checkLayout('rows with open cards');
    await browser.resize(360, 640);
    for (const [id, place] of [[1, 2], [3, 0]] as const) { // one asks to shut down, one to resume
      await until(async () => { // a page that has just moved takes no press
        if (!await isOpen()) await pressAt(place, id);
        return isOpen();
      });
      assert.deepEqual(await browser.run(FIND_FLAWS_OF_DIALOG), []);
      await browser.press('Escape');
    }
    assert.equal(await browser.run('return window.hacked ?? null'), null);
    assert.deepEqual(await browser.findAll('#systems :is(img, script, b), #filter img, body > img'), []);
  });

  it('leaves no holes between cards, which keep their columns when others grow, and does not scroll', async () => {
    const states = (...lengths: number[]): State[] => lengths.map((length) => {
      return { fields: Array.from({ length }, (_, index) => ({ name: `${index}`, value: index })), hasLog: true };
    });
    const checkPlaces = async (count: number): Promise<void> => {
      const places = await browser.run<[left: number, top: number, bottom: number][]>(`
        const rects = [...document.querySelectorAll('#systems article')].map((card) => card.getBoundingClientRect());
        return rects.map(({ left, top, bottom }) => [left, top, bottom]);
      `);
      const lefts = new Set(places.map(([left]) => left));
      assert.equal(lefts.size, count);
      for (const [index, [left, top]] of places.entries()) {
        const [above, , bottom] = places[index - count] ?? [left, 0, (places[0]?.[1] ?? 0) - 12];
        const isRight = left === above && top - bottom >= 11.5 && top - bottom <= 14; // rounded up to 2 px
        assert.ok(isRight, `${count} columns: ${places.join(' | ')}`);
      }
    };
    await board.open(...states(0, 9, 1, 5, 0, 2, 3));
    for (const [width, count] of [[390, 1], [800, 2], [1280, 3], [800, 2]] as const) {
      await browser.resize(width, 800);
      await browser.run('return new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))');
      await checkPlaces(count);
      await board.show(...states(width / 80, 9, 1, 5, 0, 2, 3));
      await checkPlaces(count);
      for (const wanted of [1e6, 100]) { // the end of the page, and somewhere else
        const y = await browser.run<number>('scrollTo(0, arguments[0]); return scrollY', wanted);
        assert.ok(y > 0);
        await board.show(...states(width / 80, 9, 1, 5, 0, 2, 3));
        assert.equal(await browser.run('return scrollY'), y, `${count} columns`);
      }
      await browser.run('scrollTo(0, 0)');
      await browser.activate('.log summary');
      await browser.run('return new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))');
      await checkPlaces(count);
    }
  });

  it('works by keyboard alone, and keeps the focus', async () => {
    await board.open({ name: 'one' }, { name: 'two' });
    const order: string[] = [];
    for (const keys of [['Tab'], ['Enter', 'Tab'], ...Array<string[]>(9).fill(['Tab'])]) {
      await browser.press(...keys);
      order.push(await focused(browser));
    }
    assert.deepEqual(order, [
      'All systems', 'Pause all', 'Resume all', 'Save all', 'Shut all down',
      'Pause one', 'Save one', 'Shut down one', 'Pause two', 'Save two', 'Shut down two',
    ]);
    await browser.press('Shift+Tab', 'Shift+Tab', 'Enter');
    await browser.findByRole('dialog', 'Pause two?');
    await browser.press('by hand', 'Enter');
    await board.takes('1/pause?reason=by+hand');
    await board.show({ name: 'one' }, { name: 'two', ...PAUSED });
    assert.equal(await focused(browser), 'Resume two'); // the same button
    await skip(browser, SETTLE_MS);
    await board.show({ name: 'one' }, { name: 'two', ...PAUSED });
    assert.deepEqual([await orderOf(browser), await focused(browser)], [['two', 'one'], 'Resume two']);
    await browser.press(' ');
    await board.takes('1/resume');
    await browser.press('Tab', 'Tab', ' ', 'Tab');
    assert.equal(await focused(browser), 'Shut down');
    await browser.press('Enter');
    await board.takes('1/shutdown');
    await board.show({ name: 'one' }, { name: 'two', ...ENDED });
    assert.equal(await focused(browser), 'Shut down two');
    await browser.press('Enter', 'Shift+Tab', ' ');
    assert.equal(await focused(browser), 'Save two');
    await board.takes();
    assert.equal(await browser.run('return getComputedStyle(document.activeElement).outlineStyle'), 'solid');
  });

  it('has no buttons and no fields with the view key', async () => {
    const systems = [{ accepts: [declare('say', { text: {} })], asks: [ask('q1')] }, { name: 'other' }];
    await board.open(...systems);
    assert.deepEqual((await card()).buttons, ['No', 'Yes', 'Pause', 'Save', 'Shut down', '']);
    board.canPress = false;
    await board.show(...systems);
    const { status, buttons, questions } = await card();
    assert.deepEqual([status, buttons.join(''), questions[0]], [
      'active', '', { message: MESSAGE, badge: 'asked 3 min ago', values: [], buttons: [], refused: '', end: '' },
    ]);
    const shown = '[...document.querySelectorAll("button, input, textarea")].filter((one) => one.checkVisibility())';
    assert.equal(await browser.run(`return ${shown}.length`), 0);
    await browser.press('Tab', 'Enter');
    await board.takes();
  });

  it('loads a log when it is opened, and again while it is open', async () => {
    const system = { name: 'train', hasLog: true };
    await board.open(system);
    const { hasLog, log: closed } = await card();
    assert.deepEqual([hasLog, closed, board.logCount], [true, null, 0]);
    const at = Date.parse('2026-11-23T22:00:00Z');
    const entries = [
      { at, text: 'paused' }, { at, text: 'resume done', count: 2, firstTime: at }, { at: Date.now(), text: 'saved' },
    ];
    board.log = { note: '', entries };
    assert.equal(await browser.name(await browser.find('.log summary')), 'Log of train');
    await browser.activate('.log summary');
    const old = '2026-11-23 18:30:00';
    await sees(browser, ({ log }) => {
      const [latest = '', ...others] = log ?? [];
      assert.match(latest, /^(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d saved$/); // the date if midnight has passed
      assert.deepEqual(others, [`${old} resume done (2 times since ${old})`, `${old} paused`]);
    });
    assert.equal(board.logCount, 1);
    board.log = { note: 'logs on gpu1 to /x', entries: [] };
    await skip(browser, 2000);
    await board.show({ ...system, ...ENDED });
    await sees(browser, ({ log }) => assert.deepEqual(log, ['logs on gpu1 to /x']));
    board.log = null;
    await skip(browser, 2000);
    await board.show({ ...system, ...ENDED });
    await sees(browser, ({ log }) => assert.deepEqual(log, ['no response from control-board']));
  });

  it('shows where a program is while it is in a step, and then as long as it is open', async () => {
    await board.open({ name: 'train' });
    assert.equal((await card()).hasStack, false);
    board.log = { note: '', entries: [{ text: 'inner (file:///t.mjs:1:2)' }, { text: HTML }] };
    await board.show({ name: 'train', step: 'in a step for 3 s' });
    assert.equal(await browser.name(await browser.find('.stack summary')), 'Call stack of train');
    await browser.activate('.stack summary');
    await sees(browser, ({ stack }) => assert.deepEqual(stack, ['inner (file:///t.mjs:1:2)', HTML]));
    board.log = { note: 'not available on Bun', entries: [] };
    await skip(browser, 2000);
    await board.show({ name: 'train' });
    await sees(browser, ({ stack }) => assert.deepEqual(stack, ['not available on Bun']));
    await browser.activate('.stack summary');
    await sees(browser, ({ hasStack }) => assert.equal(hasStack, false));
  });

  describe('with many systems', () => {
    /** Idle systems t1, t2 … with these differences. */
    const many = (...states: readonly State[]): State[] => {
      return Array.from({ length: MANY }, (_, index) => ({ name: `t${index + 1}`, ...states[index] }));
    };
    /** The same, where these systems are paused. */
    const pausing = (...names: readonly string[]): State[] => {
      return many().map((state) => (names.includes(state.name ?? '') ? { ...state, ...PAUSED } : state));
    };
    const names = async (): Promise<string> => (await glances(browser)).map(({ name }) => name).join();

    it('has rows instead of cards, worst first, then by name, which fit screens of any width', async () => {
      await board.open(...many().slice(1));
      assert.deepEqual([(await card()).buttons.length, await names()], [3, '']);
      await board.show(...many());
      assert.equal(await names(), many().map(({ name }) => name).join());
      assert.ok((await cards(browser)).every(({ buttons }) => buttons.join('') === ''), 'closed');
      const progress = { name: 'step', done: 7, of: 100, text: '7 %, 3 min left' };
      const fields = [plotted('step', 6, 7), { name: 'of', value: 100 }, { name: 'word', value: 'x' }];
      const [when, cause] = ['3 min ago', ' by ana: GPU'];
      const cpu = [{ name: 'processes', value: 1 }, { name: 'CPU seconds', value: 2.07 }]
        .map((field) => ({ ...field, isRun: true as const }));
      await board.show(...many(
        { fields, progress, when: 'for 3 min' }, FAILED, { ...PAUSED, when, cause, holds: ['and by ben'], progress },
        { ...ENDED, when, cause, saved: 'saved states/1' }, { ...CRASHED, when }, {},
        { ...sent(1, 'pause', 'failed', 'not paused: x'), when: 'for 3 min', fields: cpu },
        asking(ask('q1', { times: '' })), asking(ask('q2'), ask('q3')), { name: 'evaluation-nightly' },
      ));
      assert.deepEqual((await glances(browser)).map(({ name, status, text }) => [name, status, text]), [
        ['t8', 'asks', MESSAGE], ['t9', 'asked 3 min ago', `2 questions, first: ${MESSAGE}`],
        ['t2', 'active', 'save failed: ENOSPC ·'], ['t5', 'crashed', '3 min ago: exit code 7'],
        ['t3', 'paused', '3 min ago by ana: GPU'], ['evaluation-nightly', 'active', ''],
        ['t1', 'active', '7 %, 3 min left'], ['t6', 'active', ''],
        ['t7', 'active', 'not paused: x ·for 3 min · CPU 2.07 s'],
        ['t11', 'active', ''], ['t12', 'active', ''], ['t4', 'ended', '3 min ago by ana: GPU · saved states/1'],
      ]);
      assert.equal(await browser.title(), '2 asking – control-board');
      for (const width of [1280, 640, 390, 360, 320]) {
        await browser.resize(width, 844);
        assert.deepEqual(await browser.run(FIND_FLAWS), [], `${width} px`);
        const heights = (await glances(browser)).map(({ height }) => height);
        assert.ok(heights.every((height) => height <= 64), `${width} px: ${heights}`);
        if (width >= 390) assert.ok(await browser.run(`
          return [...document.querySelectorAll('.open')].every((name) => name.scrollWidth <= name.clientWidth);
        `), `whole names at ${width} px`);
      }
    });

    it('opens the full card under a row', async () => {
      const accepts = [declare('evaluate')];
      const first = { fields: [plotted('loss', 1, 0.5)], accepts, process: 'process 7 on gpu1', asks: [ask('q1')] };
      await board.open(...many({ ...first, ...asking(ask('q1')) }));
      assert.deepEqual((await glances(browser)).slice(0, 2).map(({ button }) => button), ['Answer', 'Pause']);
      await press('Answer t1');
      assert.equal(await focused(browser), 't1');
      await browser.press('Tab', 'Tab');
      assert.equal(await focused(browser), `No: ${MESSAGE}`);
      await skip(browser, SETTLE_MS);
      await board.show(...many(first));
      const { rows, buttons, place, questions } = await card();
      assert.deepEqual(rows.map(({ name, text, plot }) => [name, text, plot !== null]), [['loss', '0.5', true]]);
      assert.deepEqual([buttons.slice(2), place], [['Pause', 'Save', 'Shut down', ''], 'process 7 on gpu1 · box:9000']);
      assert.equal(questions.length, 1);
      assert.equal((await glances(browser))[0]?.button, '', 'there is one button to pause');
      await browser.click('.open');
      assert.deepEqual([(await card()).questions.length, (await glances(browser))[0]?.button], [0, 'Pause']);
      await press('Pause t1');
      await browser.findByRole('dialog', 'Pause t1?');
      await confirm();
      await board.takes('0/pause');
      await skip(browser, SETTLE_MS);
      await board.show(...pausing('t1'));
      const [row] = await glances(browser);
      assert.deepEqual([row?.name, row?.status, row?.button], ['t1', 'paused', 'Resume']);
    });

    it('keeps the button of a row while it is touched, and the focus in the row', async () => {
      const buttonOf = async (): Promise<string | undefined> => (await glances(browser))[0]?.button;
      const asks = many({ ...PAUSED, ...asking(ask('q1')) });
      await board.open(...asks);
      await browser.run('dispatchEvent(new PointerEvent("pointerdown"))');
      await board.show(...many(PAUSED));
      assert.equal(await buttonOf(), 'Answer', 'a press may be on its way');
      await browser.run('dispatchEvent(new PointerEvent("pointerup"))');
      await skip(browser, SETTLE_MS);
      await board.show(...many(PAUSED));
      assert.equal(await buttonOf(), 'Resume');
      await browser.run('document.querySelector(".toggle").focus()');
      await board.show(...asks);
      assert.deepEqual([await buttonOf(), await focused(browser)], ['Answer', 't1']);
    });

    it('filters by state and by search', async () => {
      const chips = (): Promise<string[]> => browser.run(`
        return [...document.querySelectorAll('#chips button')].map((chip) => chip.innerText + ' ' + chip.ariaPressed);
      `);
      await board.open(...pausing('t4', 't11'));
      assert.deepEqual(await chips(), ['2 paused false', '10 active false']);
      const counts = await browser.find('#counts'); // for screen readers
      assert.deepEqual([await browser.role(counts), await browser.text(counts)], ['status', '2 paused · 10 active']);
      await press('2 paused');
      assert.equal(await names(), 't4,t11');
      assert.deepEqual(await chips(), ['2 paused true', '10 active false']);
      assert.equal(await browser.text('#summary'), '2 of 12 systems');
      await board.show(...pausing('t4'));
      assert.equal(await names(), 't4');
      await board.show(...many());
      assert.equal(await names(), '');
      await browser.run('arguments[0].focus()', await browser.findByRole('button', '0 paused'));
      await board.show(...many());
      assert.equal(await focused(browser), '0 paused', 'it stays');
      await browser.press('Enter', 'Tab');
      await board.show(...many());
      assert.deepEqual(await chips(), ['12 active false']);
      await browser.click('#search');
      await browser.press('T1');
      assert.equal(await names(), 't1,t10,t11,t12');
      await browser.press('Backspace', 'Backspace', '9004');
      assert.equal(await names(), 't5');
    });

    it('moves nothing while the user points, types or answers a dialog, and never moves the focus', async () => {
      const accepts = [declare('say', { text: {} })];
      await board.open(...many({ accepts }));
      const comesFirst = async (name: string, isTouched: boolean, what: string): Promise<void> => {
        const [before] = await orderOf(browser);
        const [one, ...others] = pausing(name);
        for (let time = 0; time < 2; time += 1) {
          await skip(browser, SETTLE_MS);
          await board.show({ ...one, accepts }, ...others);
        }
        assert.equal((await glances(browser)).find((row) => row.name === name)?.status, 'paused');
        assert.equal((await orderOf(browser))[0], isTouched ? before : name, what);
      };
      const dispatch = (event: string): Promise<void> => browser.run(`dispatchEvent(new PointerEvent("${event}"))`);
      await dispatch('pointerdown');
      await comesFirst('t12', true, 'a finger is on the page');
      await dispatch('pointerup');
      await board.show(...pausing('t12'));
      assert.equal((await orderOf(browser))[0], 't1', 'it has just left the page');
      await comesFirst('t12', false, 'at rest');
      await press('Pause t2');
      await comesFirst('t11', true, 'a dialog is open');
      await browser.press('Escape');
      await comesFirst('t11', false, 'it is closed');
      await press('t1');
      await browser.activate('.own summary');
      await focus('.own .fields :is(input, textarea)');
      await comesFirst('t10', true, 'somebody types');
      await focus('.own summary');
      await comesFirst('t10', false, 'nobody does');
      assert.equal(await focused(browser), 'say of t1');
    });
  });

  describe('with own commands', () => {
    const seesValues = (name: string, ...expected: unknown[]): Promise<void> => {
      return seesRow(name, ({ fields }) => assert.deepEqual(fields.map(({ value }) => value), expected));
    };
    /** Waits until the button of the first own command is gray, or no longer. */
    const seesGray = (isGray: boolean): Promise<void> => {
      return sees(browser, ({ gray }) => assert.deepEqual(gray.slice(0, 4), [false, false, false, isGray]));
    };

    it('shows a closed row for each, and the outcomes in it', async () => {
      const accepts = [{ ...declare('evaluate'), description: 'Runs <b>episodes</b>' }, declare('step')];
      await board.open({ accepts, sent: [
        ...sent(1, 'step', 'failed', 'step failed: x').sent ?? [], ...sent(2, 'pause', 'done', 'paused').sent ?? [],
      ] });
      const closed = { isOpen: false, description: '', fields: [], outcome: [], unsent: '' };
      const { own, spoken: others } = await card();
      assert.deepEqual(own, [
        { ...closed, name: 'evaluate' }, { ...closed, name: 'step', outcome: ['✗ step failed: x'] },
      ]);
      assert.deepEqual(others, ['✓ paused']);
      await openRow('evaluate');
      await seesRow('evaluate', ({ description }) => assert.equal(description, 'Runs <b>episodes</b>'));
    });

    it('shows the error of an argument at its field until it is edited, but not that of another page', async () => {
      const accepts = [declare('set', { rate: { type: 'number', hint: 'from 0 to 1' }, seed: { type: 'integer' } })];
      await board.open({ accepts });
      await openRow('set');
      const seesErrors = (wrong: string[], outcome: string = ''): Promise<void> => seesRow('set', (row) => {
        assert.deepEqual(row.fields.map((one) => one.wrong), wrong);
        assert.deepEqual(row.fields.map(({ isInvalid }) => isInvalid), wrong.map((text) => text !== ''));
        assert.equal(row.outcome.join(), outcome);
      });
      await type(field('set', 'rate'), '1.5');
      await browser.press('Enter');
      await board.takes('0/set {"rate":1.5}');
      await browser.run('document.querySelector(".own details").open = false');
      await board.show({ accepts, ...sent(1, 'set', 'failed', 'set: rate must be … 1', { parameter: 'rate' }) });
      await seesErrors(['rate must be … 1', '']); // the row is open again
      await type(field('set', 'rate'), '0.5');
      await seesErrors(['', '']);
      for (const none of ['1e999', '--5', '1e']) { // unreadable, so there is no value to send
        await type(field('set', 'seed'), none);
        await browser.press('Enter');
        await seesErrors(['', 'seed must be an integer']);
      }
      assert.equal(await focused(browser), 'seed');
      await type(field('set', 'seed'), '7');
      await browser.press('Enter');
      await board.takes('0/set {"rate":0.5,"seed":7}');
      await board.show({ accepts, ...sent(2, 'set', 'done', 'set done') });
      await seesErrors(['', ''], '✓ set done');
      const described = await browser.run<string>(`
        const ids = document.querySelector(arguments[0]).getAttribute('aria-describedby').split(' ');
        return ids.map((id) => document.getElementById(id).textContent).join('|');
      `, field('set', 'rate'));
      assert.equal(described, 'from 0 to 1||');
      await browser.run('document.querySelector(".own details").open = false');
      await board.show({ accepts, ...sent(3, 'set', 'failed', 'set: rate must be … 1', { parameter: 'rate' }) });
      await seesRow('set', ({ outcome, isOpen: isShown }) => {
        assert.deepEqual([outcome, isShown], [['✗ set: rate must be … 1'], false]);
      });
      await openRow('set');
      await seesErrors(['', ''], '✗ set: rate must be … 1');
    });

    it('runs one once, however often the button or Enter is pressed, until the outcome is known', async () => {
      const accepts = [declare('evaluate', { episodes: { type: 'integer', default: 100 } }), declare('other')];
      await board.open({ accepts });
      await openRow('evaluate');
      await browser.click(field('evaluate', 'episodes'));
      await browser.press('Enter', 'Enter', 'Enter');
      await seesGray(true);
      const others = sent(9, 'evaluate', 'failed', 'evaluate: …').sent ?? []; // of another page
      await board.show({ accepts, sent: [...sent(1, 'evaluate', 'sent').sent ?? [], ...others] });
      await seesRow('evaluate', ({ outcome }) => {
        assert.deepEqual(outcome, ['… evaluate sent', '✗ evaluate: …']);
      });
      await press('evaluate box');
      await browser.press('Enter');
      await board.show({ accepts, ...sent(1, 'evaluate', 'done', 'evaluate: 1') });
      await seesGray(false);
      await board.takes('0/evaluate {"episodes":100}');
      await browser.press('Enter');
      await board.takes('0/evaluate {"episodes":100}');
      await seesGray(true);
      await board.show({ accepts }); // the board has forgotten it: the program has restarted
      await seesGray(false);
      board.refusal = [413, 'The arguments exceed 4096 bytes'];
      await browser.press('Enter');
      await seesRow('evaluate', ({ unsent }) => assert.equal(unsent, 'not sent: The arguments exceed 4096 bytes'));
      await seesGray(false);
    });

    it('keeps the typed text, the focus and the elements when news and other declarations arrive', async () => {
      const accepts = [declare('say', { text: { maxLength: 50 } }), declare('evaluate', { n: { type: 'integer' } })];
      await board.open({ accepts });
      await openRow('say');
      await openRow('evaluate');
      await type(field('evaluate', 'n'), '7');
      await browser.click(field('say', 'text'));
      await browser.press('hello');
      await browser.run(`
        document.activeElement.setSelectionRange(1, 3);
        window.changes = [];
        const options = { subtree: true, childList: true, attributes: true, characterData: true };
        new MutationObserver((records) => window.changes.push(...records.map(({ type }) => type)))
          .observe(document.querySelector('.own'), options);
      `);
      for (const value of [1, 2]) {
        await board.show({ accepts, fields: [{ name: 'n', value }], current: [['text', 'other'], ['n', value]] });
      }
      assert.deepEqual(await browser.run(`
        const { value, selectionStart, selectionEnd } = document.activeElement;
        return [window.changes, value, selectionStart, selectionEnd];
      `), [[], 'hello', 1, 3]);
      await press('evaluate box');
      await board.takes('0/evaluate {"n":7}');
      await board.show({ accepts, ...sent(1, 'evaluate', 'failed', 'evaluate failed: x') });
      await seesValues('evaluate', '7');
      const say = { ...declare('say', { before: {}, text: { maxLength: 50 } }), description: 'New' };
      await board.show({ accepts: [declare('first'), say], ...OFFLINE });
      const { own } = await card();
      assert.deepEqual(own.map(({ name, isOpen: isShown }) => [name, isShown]), [['first', false], ['say', true]]);
      assert.deepEqual([own[1]?.description, own[1]?.fields.map(({ value }) => value)], ['New', ['', 'hello']]);
      assert.equal(await focused(browser), 'text');
      await press('say box');
      await board.takes();
    });

    it('shows current values unless the user has edited the field', async () => {
      const accepts = [declare('set', {
        rate: { type: 'number', default: 9 }, mode: { enum: ['slow', 'fast'] },
        isLoud: { type: 'boolean', default: false }, text: {}, seed: { type: 'integer', default: 5 },
      })];
      type Current = NonNullable<State['current']>;
      const show = (current: Current, more: State = {}): Promise<void> => board.show({ accepts, current, ...more });
      await board.open({ accepts });
      await browser.run(`
        const later = window.setTimeout;
        window.setTimeout = (work, ms) => later(work, ms === ${SETTLE_MS} ? 500 : ms);
      `);
      await openRow('set');
      await show([
        ['rate', 0.25], ['mode', 'fast'], ['isLoud', true], ['text', 'a\n"b"'], ['seed', 1.5], ['extra', 'x'],
      ]);
      await seesValues('set', '0.25', 'fast', true, 'a\n"b"', '5'); // 1.5 is not an integer
      await show([['rate', 0.5], ['mode', 'slow'], ['isLoud', false], ['text', 'c'], ['seed', 6]]);
      await seesValues('set', '0.5', 'slow', false, 'c', '6');
      await type(field('set', 'rate'), '0.1');
      await browser.click(field('set', 'seed')); // focused, but not edited
      const before: Current = [['rate', 0.75], ['mode', 'unheard of'], ['isLoud', false], ['text', 'c'], ['seed', 8]];
      await show(before);
      await seesValues('set', '0.1', 'slow', false, 'c', '6');
      await press('set box');
      await board.takes('0/set {"rate":0.1,"mode":"slow","isLoud":false,"text":"c","seed":6}');
      await show(before, sent(1, 'set', 'done', 'set done'));
      assert.equal((await card()).own[0]?.fields[0]?.value, '0.1', 'not at once the value before the command');
      await type(field('set', 'text'), 'd');
      await seesValues('set', '0.75', 'slow', false, 'd', '8'); // it has not changed them
    });

    it('has selects, checkboxes, inputs and text areas; Enter runs it, except in a text area', async () => {
      const accepts = [declare('say', {
        line: { maxLength: 100 }, area: { maxLength: 101, default: 'a\n  b' }, free: { default: '' },
        level: { type: 'integer', enum: [3, 1, 2], default: 1 }, tone: { enum: ['', 'kind'], default: '' },
        isLoud: { type: 'boolean' }, count: { type: 'integer', default: 7 },
      }), declare('choose', { one: { type: 'boolean', enum: [true, false] } })];
      await board.open({ accepts });
      await openRow('say');
      const kinds = await browser.run<string[]>(`
        return [...document.querySelectorAll('.own form')[0].elements].map(({ type }) => type);
      `);
      assert.deepEqual(kinds, [
        'text', 'textarea', 'textarea', 'select-one', 'select-one', 'checkbox', 'number', 'text', 'submit',
      ]);
      await browser.click(field('say', 'free'));
      await browser.press('one', 'Enter', 'two');
      await focus(field('say', 'tone'));
      await browser.press('k');
      await browser.click(field('say', 'isLoud'));
      await type(field('say', 'count'), ''); // the default applies
      assert.equal(await browser.run('return document.activeElement.placeholder'), '7');
      await type(REASON, 'why');
      await browser.click(field('say', 'line'));
      await board.takes();
      await browser.press('<i>', 'Enter');
      await board.takes(`0/say?reason=why ${JSON.stringify({
        line: '<i>', area: 'a\n  b', free: 'one\ntwo', level: 1, tone: 'kind', isLoud: true,
      })}`);
      await openRow('choose');
      await browser.doubleClick(await browser.findByRole('button', 'choose box'));
      await board.takes('0/choose {}'); // nothing is chosen
      await board.show({ accepts, ...sent(2, 'choose', 'failed', 'choose: …') });
      await focus(field('choose', 'one'));
      await browser.press('f');
      await press('choose box');
      await board.takes('0/choose {"one":false}');
    });
  });

  describe('with questions', () => {
    /** Presses a button of a question that has not moved for a while. */
    const answer = async (name: string): Promise<void> => {
      await skip(browser, GUARD_MS);
      await press(name);
    };

    it('shows them before everything else, with their age', async () => {
      const failed = { name: 'bad', ...FAILED };
      const times = 'asked 3 min ago, expires in 12 min';
      const job = { name: 'job', ...asking(ask('q1', { times }), ask('q2', { times: '' })) };
      await board.open(failed, { name: 'idle' }, job);
      assert.deepEqual(await orderOf(browser), ['job', 'bad', 'idle']);
      const { questions, level, status } = await card(2);
      assert.deepEqual([level, status, ...questions.map(({ message, badge }) => [message, badge])], [
        'asks', 'active', [MESSAGE, times], [MESSAGE, ''],
      ]);
      await board.show(failed, { name: 'idle' }, { ...job, ...SILENT }); // nobody can answer it now
      assert.equal((await card(2)).questions[0]?.buttons.length, 2);
      await answer(`Yes: ${MESSAGE}`); // gray
      await board.takes();
    });

    it('takes yes or no by two buttons as wide as a thumb, neither of which Enter presses', async () => {
      for (const [index, [width, height]] of [[390, 844], [1280, 800]].entries()) {
        await board.open({ name: 'job', asks: [ask('q1')] });
        await browser.resize(width as number, height as number);
        assert.deepEqual(await browser.run(FIND_FLAWS), []);
        await browser.press('Tab');
        assert.equal(await focused(browser), `Reason for the answer to ${MESSAGE}`);
        await browser.press('looked', 'Enter', 'Tab');
        assert.equal(await focused(browser), `No: ${MESSAGE}`);
        await browser.press('Tab');
        assert.equal(await focused(browser), `Yes: ${MESSAGE}`);
        const sizes = await browser.run<[number, number][]>(`
          return [...document.querySelectorAll('.ask button')].map((one) => [one.offsetWidth, one.offsetHeight]);
        `);
        assert.equal(sizes.length, 2);
        for (const [buttonWidth, buttonHeight] of sizes) assert.ok(buttonWidth >= 88 && buttonHeight >= 44, `${sizes}`);
        await board.takes();
        await answer(`${index === 0 ? 'No' : 'Yes'}: ${MESSAGE}`);
        await board.takes(`0/answer?id=q1&reason=looked {"approved":${index !== 0}}`);
        await answer(`No: ${MESSAGE}`); // gray until the end is known
        await board.takes();
      }
    });

    it('takes no press that was meant for what was there before', async () => {
      /** Clicks as soon as anything changes. */
      const clickThen = (clicks: string): Promise<void> => browser.run(`
        new MutationObserver((_, observer) => {
          observer.disconnect();
          ${clicks};
        }).observe(document.querySelector('#systems'), { subtree: true, childList: true });
      `);
      await board.open({ name: 'a' });
      await clickThen('document.querySelectorAll(".ask button").forEach((one) => one.click())');
      const above = { name: 'a', asks: [ask('q1')] };
      const below = { name: 'b', asks: [ask('q2', { message: 'Other?' })] };
      await board.show(above, below);
      await board.takes();
      await browser.resize(390, 844);
      await board.show(above, below); // the new place is known
      await skip(browser, GUARD_MS);
      await clickThen('document.querySelectorAll(".ask button")[3].click()');
      await board.show({ ...above, fields: [{ name: 'step', value: '7' }] }, below);
      await board.takes();
      await skip(browser, GUARD_MS);
      await browser.doubleClick(await browser.findByRole('button', 'Yes: Other?'));
      await board.takes('1/answer?id=q2 {"approved":true}');
    });

    it('takes a press while another system asks again and again, and shows only the latest ends', async () => {
      const calm = { name: 'calm', asks: [ask('q1')] };
      const again = (count: number): State => ({ name: 'noisy', asks: [ask(`q${count}`, { message: 'Again?' })] });
      await board.open(calm, again(0));
      await skip(browser, GUARD_MS);
      for (let count = 1; count < 10; count += 1) await board.show(calm, again(count));
      await press(`Yes: ${MESSAGE}`);
      await board.takes('0/answer?id=q1 {"approved":true}');
      await board.show(calm, { name: 'noisy', asks: Array.from({ length: 30 }, (_, index) => ask(`${index}`)) });
      assert.equal((await card(1)).questions.length, 31);
      await board.show(calm, { name: 'noisy' });
      assert.deepEqual((await card(1)).questions.map(({ end }) => end), [`no longer open · ${MESSAGE}`]);
    });

    it('shows the latest end on one line below those that are open, and lists that only afterwards', async () => {
      const deletion = (count: number) => ask(`q${count}`, { message: `Delete ${count} ${LONG}?` });
      const heightOf = (selector: string): Promise<number> => {
        return browser.run('return document.querySelector(arguments[0]).offsetHeight', selector);
      };
      const commands = [2, 1, 0].map((count) => listed(`answer ${count}`, 'answer', `q${count}`));
      await board.open({ name: 'job', asks: [deletion(0)] });
      for (let count = 1; count < 4; count += 1) {
        await board.show({ name: 'job', asks: [deletion(count)], askEnds: answered(`q${count - 1}`) });
        assert.deepEqual((await card()).questions.map(({ message, buttons, end }) => [message, buttons, end]), [
          [`Delete ${count} ${LONG}?`, ['No', 'Yes'], ''],
          ['', [], `Yes, by ana@phone · Delete ${count - 1} ${LONG}?`],
        ]);
        assert.ok(await heightOf('.ask[data-ended]') < 30, 'one line');
      }
      await board.show({ name: 'job', asks: [deletion(3)], askEnds: answered('q2'), commands });
      assert.deepEqual((await card()).commands, ['answer 1', 'answer 0']);
      const open = await heightOf('.asks');
      await browser.run('dispatchEvent(new PointerEvent("pointerdown"))');
      await board.show({ name: 'job', askEnds: answered('q3'), commands });
      assert.equal(await heightOf('.asks'), open, 'the buttons below do not move under a finger');
      await browser.run('dispatchEvent(new PointerEvent("pointerup"))');
      await skip(browser, 31_000);
      await board.show({ name: 'job', commands });
      const { questions, commands: all } = await card();
      assert.deepEqual([questions, all, await heightOf('.asks')], [[], ['answer 2', 'answer 1', 'answer 0'], 0]);
    });

    it('has a form for other parameters, with the error at its field, and sentences of the system', async () => {
      const { parameters } = declare('answer', {
        file: { enum: ['a', 'b'] }, note: { default: '', maxLength: 50 }, loud: { type: 'boolean' },
        quick: { type: 'boolean', default: true },
      });
      await board.open({ name: 'job', asks: [ask('q1', { parameters })] });
      const [first] = (await card()).questions;
      assert.deepEqual([first?.values, first?.buttons], [['', '', '', 'on', ''], ['Answer']]);
      board.refusal = [400, 'answer: loud must be a boolean, got nothing', 'loud'];
      await answer(`Answer: ${MESSAGE}`);
      await board.takes('0/answer?id=q1 {"note":"","quick":true}');
      await until(async () => await browser.text('.ask .wrong', 2) === 'loud must be a boolean, got nothing');
      await browser.run('document.querySelectorAll(".ask select")[1].focus()');
      await browser.press('f');
      await focus('.ask select');
      await browser.press('b');
      await type('.ask .fields input', 'x');
      for (const [refusal, text] of [
        [[409, 'a pause waits'], 'not sent: a pause waits'], [[502, 'ECONNRESET'], 'not sent: ECONNRESET'],
        [[0, ''], 'possibly not sent: control-board has not confirmed it'], [null, ''],
      ] as [FakeBoard['refusal'], string][]) {
        board.refusal = refusal;
        await browser.press('Enter');
        await board.takes('0/answer?id=q1 {"file":"b","note":"x","loud":false,"quick":true}');
        await seesQuestions(({ refused }) => assert.equal(refused, text));
      }
      const { parameters: sure } = declare('answer', { sure: { type: 'boolean', enum: [true] } });
      await board.show({ name: 'job', asks: [ask('q2', { parameters: sure })] });
      assert.deepEqual((await card()).questions[0]?.buttons, ['Answer'], 'there is no choice');
    });

    it('keeps what is typed through news and when they are asked again without an answer', async () => {
      const shows = async (asks: Update['asks'], askEnds: Update['askEnds'], ...expected: unknown[]): Promise<void> => {
        await board.show({ name: 'job', asks, askEnds });
        assert.deepEqual((await card()).questions.map(({ end, values }) => [end, values.at(-1)]), expected);
      };
      await board.open({ name: 'job', asks: [ask('q1')] });
      await type('.ask form > input', 'half');
      await shows([ask('q1'), ask('q2', { message: 'Other?' })], [], ['', 'half'], ['', '']);
      await browser.press('-typed');
      assert.equal(await focused(browser), `Reason for the answer to ${MESSAGE}`);
      const withdrawn = [{ id: 'q1', text: 'withdrawn', isAnswered: false }];
      await shows([], withdrawn, ['no longer open · Other?', undefined]);
      await shows([ask('q3')], withdrawn, ['', 'half-typed'], ['no longer open · Other?', undefined]);
      await answer(`Yes: ${MESSAGE}`);
      await board.takes('0/answer?id=q3&reason=half-typed {"approved":true}');
      await shows([ask('q4')], answered('q3'), ['', ''], [`Yes, by ana@phone · ${MESSAGE}`, undefined]);
      await type('.ask form > input', 'other');
      await shows([ask('q5', { message: 'Delete 4 branches?' })], answered('q4', '<i>'),
        ['', ''], [`Yes, by <i> · ${MESSAGE}`, undefined]);
      await skip(browser, 31_000);
      await shows([ask('q5', { message: 'Delete 4 branches?' })], [], ['', '']);
    });
  });
});
