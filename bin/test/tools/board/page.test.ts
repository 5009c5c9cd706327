// The page of control-board in a browser: its cards, and what users do with them.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { before, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { makeFolder, startSystem } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { startBrowser } from './browser.ts';
import { forSuite, LIMIT, startBoard } from './helpers.ts';
import {
  activateButton, cards, confirm, declare, eventually, FIND_FLAWS, FIND_FLAWS_OF_DIALOG, focused, grayButtons,
  minutesAgo, openPage, openStates, orderOf, plotted, press, problemOf, SECOND, sees, seesAll, seesRow, seesRows,
} from './page.ts';
import type { Browser } from './browser.ts';
import type { StartedBoard } from './helpers.ts';
import type { Card, State } from './page.ts';
import type { Update } from '../../../board/state.ts';

const WRONG_KEY = /^The key is wrong: open the address that control-board prints$/;
const NO_KEY = /^The key is missing: open the address that control-board prints$/;

/** A text that would run as a script, and one as long as the board sends. */
const HTML = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>';
const LONG = 'w'.repeat(200);

/** A command in the list of a card. */
const LISTED = {
  command: 'save-state', arguments: '', state: 'done', by: '', reason: '', value: '', error: '', seconds: 1.5, at: null,
};

/** What the board sends, and what the card and the title of the page show. */
const STATES: [state: State, card: Partial<Card>, title: string][] = [
  [{ status: '' }, { status: 'connecting', isGray: true, level: 'none' }, 'connecting'],
  [{ since: minutesAgo(3), by: 'ana@sofa' }, {
    status: 'active', cause: 'for 3 min, by ana@sofa', isGray: false, level: 'good',
    buttons: ['Pause', 'Save', 'Shut down'],
  }, 'active'],
  [{ status: 'pausing' }, {
    status: 'pausing', level: 'warn', isGray: false, buttons: ['Resume', 'Save', 'Shut down'],
  }, 'pausing'],
  [{ status: 'paused', since: minutesAgo(120), by: 'ana', reason: 'a < b' }, {
    status: 'paused', cause: 'for 2 h, by ana: a < b', level: 'warn', buttons: ['Resume', 'Save', 'Shut down'],
  }, 'paused'],
  [{
    status: 'paused', since: minutesAgo(120), by: 'ben@desk', reason: '', holds: [
      { by: 'ben@desk', reason: '', since: minutesAgo(120) },
      { by: 'ana@laptop', reason: 'a < b', since: minutesAgo(3) }, { by: 'others', reason: '', since: null },
    ],
  }, {
    status: 'paused', cause: 'for 2 h, by ben@desk',
    holds: ['and for 3 min, by ana@laptop: a < b', 'and by others'], level: 'warn',
  }, 'paused'],
  [{ status: 'resuming' }, { status: 'resuming', level: 'warn', isGray: false }, 'resuming'],
  [{ status: 'shutting down' }, { status: 'shutting down', level: 'warn', isGray: true }, 'shutting down'],
  [{ status: 'unknown', error: 'the status must be …' }, {
    status: 'unknown', error: 'the status must be …', level: 'bad', isGray: false,
  }, 'unknown'],
  [{ status: 'missing or wrong token' }, { level: 'bad', isGray: true }, 'missing or wrong token'],
  [{ status: 'offline', since: minutesAgo(3), error: 'ECONNREFUSED' }, {
    status: 'offline', cause: 'for 3 min', error: 'ECONNREFUSED', level: 'bad', isGray: true,
  }, 'offline'],
  [{ status: 'offline', ended: true, since: minutesAgo(3), by: 'ana', reason: 'done', error: 'ECONNREFUSED' }, {
    status: 'ended', cause: '3 min ago by ana: done', error: '', level: 'ended', isGray: true,
  }, 'ended'],
  [{ status: 'offline', crashed: true, since: minutesAgo(3), by: 'itself', reason: 'exit code 7' }, {
    status: 'crashed: exit code 7,', cause: '3 min ago', error: '', level: 'bad', isGray: true,
  }, 'crashed'],
  [{ unansweredSince: minutesAgo(3), by: 'ana' }, {
    status: 'no answer', cause: 'for 3 min', level: 'bad', isGray: true,
  }, 'no answer'],
  [{ unheardSince: minutesAgo(3) }, { step: 'in a step for 3 min', level: 'good', isGray: false }, 'active'],
  [{ status: 'paused', unheardSince: minutesAgo(3) }, { step: 'the program has not responded for 3 min' }, 'paused'],
  [{ process: 'process 7 on gpu3', target: 'gpu3:1' }, { place: 'process 7 on gpu3 · gpu3:1' }, 'active'],
  [{ process: 'process 7 on gpu3', target: 'gpu3/unix:/x' }, { place: 'process 7 on gpu3' }, 'active'],
  [{ target: 'unix:/x' }, { place: 'unix:/x' }, 'active'],
  [{ saved: { value: 'states/<i>', at: minutesAgo(3) } }, { saved: 'saved states/<i>, 3 min ago' }, 'active'],
  [{ saved: { value: 'states/1', at: null } }, { saved: 'saved states/1' }, 'active'],
  [{ saved: { value: '', at: minutesAgo(3) } }, { saved: 'saved, 3 min ago' }, 'active'],
  [{ saved: { value: 'states/1', at: null }, saveError: 'ENOSPC' }, {
    saved: 'save failed: ENOSPC', level: 'bad',
  }, 'failed'],
  [{ status: 'paused', commands: [{ ...LISTED, state: 'failed' }] }, { status: 'paused', level: 'bad' }, 'failed'],
  [{ commands: [{ ...LISTED, state: 'refused' }, { ...LISTED, state: 'done' }] }, { level: 'good' }, 'active'],
  [{
    sent: [
      { id: 1, command: 'pause', state: 'sent', text: '' }, { id: 2, command: 'pause', state: 'done', text: 'paused' },
      { id: 3, command: 'save-state', state: 'failed', text: 'not saved: ENOSPC' },
    ],
  }, { sent: ['… pause sent', '✓ paused', '✗ not saved: ENOSPC'], level: 'good' }, 'active'],
  [{
    status: 'paused', saveError: 'ENOSPC',
    asks: [{ id: 'q1', message: 'x', parameters: [], at: null, expiresAt: null }],
  }, {
    status: 'paused', saved: 'save failed: ENOSPC', level: 'asks', buttons: ['Answer', 'Resume', 'Save', 'Shut down'],
  }, 'asks'],
  [{ commands: [{ ...LISTED, command: 'answer', state: 'failed', answer: 'x expired' }, LISTED] }, {
    level: 'good', commands: ['x expired', 'save-state done in 1.50 s'],
  }, 'active'],
  [{ progress: { name: 'step', done: 1700, of: 10_000, leftMs: 180_000 } }, {
    progress: 'step 1,700 of 10,000 · 17 % · 3 min left',
  }, 'active'],
  [{ progress: { name: 'step', done: 99.9, of: 100, leftMs: null } }, {
    progress: 'step 99.9 of 100 · 99 %',
  }, 'active'],
];

/** What the board sends of a command, and its line. */
const COMMANDS: [entry: Partial<typeof LISTED>, line: string][] = [
  [{ value: 'states/1', at: null }, 'save-state done in 1.50 s: states/1'],
  [{ command: 'evaluate', arguments: '{"n":1}', state: 'running', by: 'ana', reason: 'why' },
    'evaluate {"n":1} running by ana: why'],
  [{ state: 'failed', error: 'ENOSPC', by: 'ana' }, 'save-state failed after 1.50 s: ENOSPC by ana'],
  [{ seconds: null as never }, 'save-state done in an unknown time'],
  [{ state: 'refused', error: 'no way to save' }, 'save-state refused: no way to save'],
  [{ command: 'shutdown', state: 'crashed', reason: 'exit code 7' }, 'crashed: exit code 7'],
];

/** One browser runs all tests in sequence. */
describe('The page of control-board', { ...LIMIT, skip: lacks('chromium', 'chromedriver') }, () => {
  const suite = forSuite();
  let browser: Browser;

  before(async () => {
    browser = await startBrowser(suite);
  });

  it('shows each state of a system, also in the title and the icon', async (t) => {
    const board = await openStates(t, browser, {});
    const icons = new Map<string | undefined, string>();
    for (const [state, expected, title] of STATES) {
      board.show(state);
      await sees(browser, (card) => assert.deepEqual(card, { ...card, ...expected }));
      const [card] = await cards(browser);
      assert.equal(await browser.title(), `${title} – control-board`);
      icons.set(card?.level, await browser.run('return document.querySelector("link[rel=icon]").href'));
    }
    assert.equal(new Set(icons.values()).size, 5, [...icons.keys()].join()); // ended looks like connecting
    const commands = COMMANDS.map(([entry]) => ({ ...LISTED, ...entry }));
    board.show({ commands });
    await sees(browser, (card) => assert.deepEqual(card.commands, COMMANDS.map(([, line]) => line)));
    board.show({ commands: [{ ...LISTED, value: '7', at: minutesAgo(3) as never, by: 'ana', reason: 'why' }] });
    await sees(browser, (card) => {
      assert.deepEqual(card.commands, ['save-state done in 1.50 s: 7, 3 min ago by ana: why']);
    });
    board.show({ unansweredSince: Date.now() + 2000 }); // a short silence is none
    await sees(browser, (card) => assert.deepEqual([card.commands, card.status], [[], 'active']));
    let before = '';
    await sees(browser, ({ status, cause }) => assert.equal(status, 'no answer', before = cause));
    await sees(browser, ({ cause }) => { // although no news has come
      assert.match(cause, /^for \d+ s$/);
      assert.notEqual(cause, before);
    });
  });

  it('shows the detail with plots of its numbers', async (t) => {
    const rows: [entry: Update['detail'][number], text: string, heights: string | null][] = [
      [{ name: 'word', value: 'cart pole' }, 'cart pole', null], [{ name: 'toString', value: 7 }, '7', null],
      [plotted('__proto__', 1001, 1003), '1,003', 'M14.2L9.8'], // nearly flat
      [plotted('constructor', 1, 3, 2), '2', 'M23L1L12'], [plotted('', 0, 0), '0', 'M12L12'],
      [plotted('loss', 0.123_456_789, -0.123_456_789), '-0.123457', 'M1L23'],
      [plotted('huge', -1.7e308, 1.7e308), '1.7e+308', 'M23L1'],
      [plotted('gap', 1, 3, null, null, 1, 3), '3', 'M23L1M23L1'],
    ];
    const board = await openStates(t, browser, { detail: rows.map(([entry]) => entry) });
    await sees(browser, (card) => {
      const shown = card.rows.map(({ name, text, plot }) => {
        return [name, text, plot?.replaceAll(/([ML])[\d.]+ ([\d.]+?)(\.0)?(?=[ML]|$)/g, '$1$2') ?? null];
      });
      assert.deepEqual(shown, rows.map(([{ name }, ...rest]) => [name || 'detail', ...rest]));
    });
    const [text, label] = await browser.run<string[]>(`
      const plot = [...document.querySelectorAll('.plot')].find((one) => one.innerHTML.includes('constructor'));
      return [plot.querySelector('small').textContent, plot.querySelector('svg').ariaLabel];
    `);
    assert.deepEqual([text, label], ['3\n1', 'constructor over the last 2 s: 1 to 3']);
    board.show({ detail: [plotted('learningRate', 0.01, 0.01), plotted('step', 1, 13_696_800)] });
    await browser.resize(390, 844); // a phone
    await sees(browser, (card) => assert.deepEqual(card.rows.map((row) => row.text), ['0.01', '13,696,800']));
    const heights = await browser.run<number[]>(`
      return [...document.querySelectorAll('tr')].map((row) => row.offsetHeight);
    `);
    assert.ok(heights.length === 2 && heights.every((height) => height < 40), `a line each: ${heights}`);
    const run = ['pid', 'command'].map((name) => ({ name, value: 7, isRun: true as const }));
    board.show({ detail: [...run, plotted('loss', 1, 2)], progress: { name: 'loss', done: 1, of: 2, leftMs: null } });
    await browser.activate('.process summary');
    await sees(browser, (card) => {
      assert.deepEqual([card.process, card.rows.map(({ name }) => name)], [['pid', 'command'], ['loss']]);
    });
  });

  it('asks for a reason before it pauses or shuts down, or ends the hold of somebody else', async (t) => {
    const board = await openStates(t, browser, { name: 'trainer' });
    for (const [place, verb] of [[0, 'Pause'], [2, 'Shut down']] as const) {
      const ways: [how: string, end: () => Promise<void>][] = [
        ['Cancel', () => browser.click('#cancel')], ['Escape', () => browser.press('typed', 'Escape')],
      ];
      for (const [how, end] of ways) {
        await browser.click('.body button', place);
        const dialog = await browser.findByRole('dialog', `${verb} trainer?`);
        const focus = verb === 'Pause' ? 'Reason' : 'Cancel'; // a second Enter must not end the program
        assert.deepEqual([await focused(browser), await browser.text('#confirm')], [focus, verb]);
        await end();
        const isClosed = (): Promise<boolean> => browser.run('return !arguments[0].open', dialog);
        await eventually(isClosed, () => `${how} does not close it`);
        assert.equal(await focused(browser), `${verb} trainer`, how);
      }
    }
    await browser.click('.body button', 0);
    await browser.click('#confirm'); // without a reason, not with the cancelled one
    await browser.click('.body button', 2);
    await browser.press('Shift+Tab', 'a&b');
    await browser.click('#confirm');
    await board.takes('0/pause', '0/shutdown?reason=a%26b');
    assert.equal(await focused(browser), 'Shut down trainer');
    const ben = { by: 'ben@desk', reason: '', since: null };
    const ana = { by: 'ana', reason: 'night tariff', since: null };
    const others = [['by ben@desk; and by ana: night tariff', [ben, ana]], ['by ana: night tariff', [ana]]] as const;
    for (const [who, holds] of others) {
      board.show({ name: 'trainer', status: 'paused', ...holds[0], holds: [...holds] });
      await sees(browser, (card) => assert.equal(card.cause, who.split(';')[0]));
      await browser.click('.body button', 0);
      await browser.findByRole('dialog', `Resume trainer, paused ${who}?`);
      await confirm(browser, 'both agree');
    }
    board.show({ name: 'trainer', status: 'paused', ...ben, holds: [ben] });
    await sees(browser, (card) => assert.equal(card.cause, 'by ben@desk'));
    await browser.click('.body button', 0); // does not ask: its own hold
    await board.takes('0/resume?reason=both+agree', '0/resume?reason=both+agree', '0/resume');
  });

  it('sends one command on a double click and while Enter is held down', async (t) => {
    const board = await openStates(t, browser, {});
    await browser.run(`
      window.clicks = [];
      addEventListener('click', ({ target, detail }) => window.clicks.push([target.id, detail]), true);
    `);
    const clicks = (): Promise<unknown> => browser.run('return window.clicks.splice(0)');
    await browser.doubleClick('.body button', 0);
    assert.deepEqual(await clicks(), [['', 1], ['question', 2]]); // it was a real double click
    await confirm(browser);
    board.show({ status: 'paused' });
    await sees(browser, ({ status }) => assert.equal(status, 'paused'));
    await browser.doubleClick('.body button', 0);
    await board.takes('0/pause', '0/resume');
    const isPrevented = await browser.run<boolean>(`
      const repeated = { key: 'Enter', repeat: true, bubbles: true, cancelable: true };
      return !document.querySelector('.body button').dispatchEvent(new KeyboardEvent('keydown', repeated));
    `);
    assert.ok(isPrevented);
    await browser.activate('.body button', 2);
    await browser.run(`
      const { left, top, width, height } = document.querySelector('#confirm').getBoundingClientRect();
      document.querySelector('#cancel').click();
      const place = 'position: fixed; left: ' + left + 'px; top: ' + top + 'px; width: ' + width + 'px;';
      document.querySelector('.body .danger').style.cssText = place + 'height: ' + height + 'px';
    `);
    await clicks();
    await browser.doubleClick('.body .danger');
    assert.deepEqual(await clicks(), [['', 1], ['confirm', 2]]);
    assert.equal((await browser.findAll('dialog[open]')).length, 1, 'it is not confirmed');
    await board.takes();
    await browser.press('Enter');
    await board.takes('0/shutdown');
  });

  it('says why a command was not sent, and sends nothing by gray buttons', async (t) => {
    const board = await openStates(t, browser, { name: 'job-1' });
    const says = (selector: string, text: string): Promise<void> => {
      return eventually(async () => await browser.text(selector) === text, () => `it does not say ${text}`);
    };
    board.refusal = [409, 'The program cannot save'];
    await press(browser, 'Save');
    await says('.body .unsent', 'not sent: The program cannot save');
    board.refusal = [0, ''];
    await press(browser, 'Save');
    await says('.body .unsent', 'possibly not sent: control-board has not confirmed it');
    board.refusal = null;
    await press(browser, 'Save');
    await says('.body .unsent', '');
    await browser.consoleErrors(); // drops that of the 409
    await browser.activate('.body button', 0);
    await board.takes('0/save-state', '0/save-state', '0/save-state');
    board.show({ name: 'job-1', unansweredSince: minutesAgo(3) });
    await sees(browser, ({ status, isGray }) => assert.deepEqual([status, isGray], ['no answer', true]));
    await confirm(browser);
    await says('.body .unsent', 'not sent: job-1 can no longer be controlled');
    for (const place of [0, 1, 2]) await activateButton(browser, 0, place);
    assert.deepEqual(await browser.findAll('dialog[open]'), []);

    board.show({ name: 'job-1' }, { name: 'other' });
    await sees(browser, ({ isGray }) => assert.equal(isGray, false));
    await browser.activate(await browser.findByRole('button', 'Shut down job-1'));
    board.show({ id: 1, name: 'other' }); // the first is gone, its dialog is open
    await seesAll(browser, ([first]) => assert.equal(first?.isGray, true));
    await browser.run(SECOND);
    assert.equal((await cards(browser)).length, 2, 'nothing moves');
    await confirm(browser);
    await seesAll(browser, (all) => assert.deepEqual(all.map(({ name }) => name), ['other']));
    assert.equal(await browser.text('#unsent'), 'not sent: job-1 can no longer be controlled');
    await board.takes();
    await browser.activate(await browser.findByRole('button', 'Save other'));
    await says('#unsent', '');
    await board.takes('1/save-state');
    board.show();
    await eventually(async () => await browser.title() === 'no systems – control-board');
    assert.equal(await browser.text('#summary'), 'no systems');
  });

  it('commands all systems at once, and distinguishes systems of the same name by target', async (t) => {
    const offline = { name: 'away', status: 'offline' };
    const board = await openStates(t, browser, { name: 'demo' }, { name: 'demo' }, { name: 'other' }, offline);
    await browser.activate(await browser.findByRole('button', 'Shut down demo at box:9001'));
    await browser.findByRole('dialog', 'Shut down demo at box:9001?');
    await browser.activate('#cancel');
    await browser.activate('summary');
    await browser.activate(await browser.findByRole('button', 'Pause all'));
    await browser.findByRole('dialog', 'Pause all 3 systems?');
    await confirm(browser, 'lunch');
    await board.takes('pause?reason=lunch');
    const pause = (state: 'sent' | 'done' | 'failed'): State => {
      return { sent: [{ id: 1, command: 'pause', state, text: '' }] };
    };
    for (const [states, text] of [
      [['sent', 'done', 'done'], '… pause: 1 sent · 2 done'],
      [['done', 'done', 'failed'], '✗ pause: 2 done · 1 failed'], [['done', 'done', 'done'], '✓ pause: 3 done'],
    ] as const) {
      board.show(...states.map(pause), offline);
      await eventually(async () => await browser.text('#all .sent') === text, () => text);
    }
    board.show(offline, offline);
    const allGray = [true, true, true, true];
    await eventually(async () => (await grayButtons(browser, '#all')).join() === allGray.join());
    await browser.activate(await browser.findByRole('button', 'Pause all'));
    assert.deepEqual(await browser.findAll('dialog[open]'), []);
    board.show({});
    await eventually(async () => browser.run('return document.querySelector("#all").hidden'), () => 'for one system');
  });

  it('disables the save of a program that cannot save, and says why', async (t) => {
    const job = { name: 'job', canSave: false };
    const board = await openStates(t, browser, job, { name: 'trainer' });
    /** Whether a button is disabled, and its description. */
    const seesButton = (name: string, isDisabled: boolean): Promise<void> => eventually(async () => {
      const button = await browser.findByRole('button', name);
      const shown = await browser.run<[boolean, string]>(`
        const hint = document.getElementById(arguments[0].getAttribute('aria-describedby'));
        return [arguments[0].ariaDisabled === 'true', hint.checkVisibility() ? hint.innerText : ''];
      `, button);
      const hint = 'Cannot save: start control-run with\n--save-signal or --save-command';
      return shown.join() === `${isDisabled},${isDisabled ? hint : ''}`;
    }, () => `${name} ${isDisabled}`);
    await seesButton('Save job', true);
    await seesButton('Save trainer', false);
    await browser.run('document.querySelector("[data-id=\\"0\\"] .body [data-command=pause]").focus()');
    await browser.press('Tab');
    assert.equal(await focused(browser), 'Save job', 'which has the reason');
    await browser.press('Enter');
    await board.takes();
    await browser.activate('summary');
    await seesButton('Save all', false);
    await browser.activate(await browser.findByRole('button', 'Save all'));
    await board.takes('save-state');
    board.show(job, { name: 'trainer', sent: [{ id: 1, command: 'save-state', state: 'done', text: '' }] });
    const counts = '✓ save-state: 1 done · 1 cannot save';
    await eventually(async () => await browser.text('#all .sent') === counts, () => counts);
    board.show(job, { name: 'trainer', status: 'offline' });
    await seesButton('Save all', true);
    board.show({ name: 'job' }, { name: 'trainer', status: 'offline' });
    await seesButton('Save all', false);
    await seesButton('Save job', false);
  });

  it('keeps the key for this tab, and reconnects to a restarted board with the same key', async (t) => {
    const targets = [`localhost:${await startSystem(t, { step: () => sleep(50) })}`];
    const keyFile = join(makeFolder(t), 'key');
    const { url, key, running, port: boardPort } = await openPage(t, browser, targets, ['--key-file', keyFile]);
    const isActive = (): Promise<void> => sees(browser, (card) => {
      assert.deepEqual([card.status, card.isGray], ['active', false]);
    });
    const reports = (problem: RegExp): Promise<void> => {
      return eventually(async () => problem.test(await problemOf(browser)), () => String(problem));
    };
    const reload = async (script: string): Promise<void> => {
      await browser.run(`window.isOld = true; ${script}`);
      await eventually(() => browser.run<boolean>('return window.isOld === undefined'));
    };
    await isActive();
    assert.equal(await browser.url(), url);
    await reload('location.reload()');
    await isActive();
    for (const [script, problem] of [
      ['location.hash = "#another-key-0123456789"', WRONG_KEY], ['sessionStorage.clear(); location.reload()', NO_KEY],
    ] as const) {
      await reload(script);
      await reports(problem);
      assert.deepEqual([await browser.url(), await browser.title()], [url, 'no data – control-board']);
      assert.deepEqual(await cards(browser), [], 'the page is empty');
    }
    await reload(`location.hash = '${key}'`);
    await isActive();

    const isLost = async (problem: RegExp): Promise<void> => {
      await reports(problem);
      await sees(browser, ({ isGray, level }) => assert.deepEqual([isGray, level], [true, 'none']));
      assert.equal(await browser.title(), 'no data – control-board');
      await browser.requests();
      await activateButton(browser, 0, 1);
      assert.deepEqual((await browser.requests()).filter((sent) => sent.includes('save-state')), []);
    };
    const restart = async (...options: readonly string[]): Promise<StartedBoard['running']> => {
      return (await startBoard(t, targets, ['--listen', `localhost:${boardPort}`, ...options])).running;
    };
    running.child.kill('SIGKILL');
    await isLost(/^no response from control-board for \d+ s$/);
    const second = await restart('--key-file', keyFile);
    await reports(/^$/);
    await isActive();
    second.child.kill('SIGKILL');
    await second.ended;
    await restart(); // with a new key
    await isLost(WRONG_KEY);
    await browser.consoleErrors(); // drops those of the failed requests
  });

  it('does not report the board as lost when the tab comes to the foreground', async (t) => {
    await openStates(t, browser, {}); // nothing changes, so there is no news
    await sees(browser, ({ status }) => assert.equal(status, 'active'));
    await browser.requests();
    await browser.run(`
      window.seen = [];
      new MutationObserver(() => window.seen.push(document.querySelector('#problem').textContent))
        .observe(document.querySelector('#problem'), { childList: true });
      document.dispatchEvent(new Event('visibilitychange'));
    `);
    await eventually(async () => (await browser.requests()).length > 0); // a new one, as the first may be lost
    assert.equal(await problemOf(browser), '');
    await sees(browser, ({ isGray }) => assert.equal(isGray, false));
    assert.deepEqual(await browser.run('return window.seen'), []);
  });

  it('shows any text as text, on cards and in rows, light and dark, on screens of any width', async (t) => {
    const texts = (text: string, more: State = {}): State => ({
      name: text, process: text, by: text, reason: text, error: text, saved: { value: text, at: 0 },
      detail: [{ name: text, value: text }, plotted(`${text}2`, 2 ** 53 - 1, -1.234_567_89e-300)],
      progress: { name: text, done: 5, of: 1e300, leftMs: 1e300 },
      commands: ['done', 'failed', 'constructor'].map((state) => {
        return { ...LISTED, command: text, state, arguments: text, by: text, reason: text, value: text, error: text };
      }),
      holds: Array(16).fill({ by: text, reason: text, since: 0 }),
      sent: [{ id: 1, command: 'pause', state: 'failed', text }], ...more,
    });
    const name = 'a'.repeat(32);
    const accepts = [
      { ...declare(name, {
        [name]: { description: HTML, default: HTML, maxLength: 1e300 },
        number: { type: 'number', description: LONG, minimum: -1.797e308, maximum: 1.797e308, default: -1.23e-300 },
        choice: { enum: [LONG.repeat(5), HTML, 'a\u001b[2Jb\u202ec'], default: HTML },
        isLoud: { type: 'boolean', description: LONG }, constructor: {}, toString: { type: 'integer' },
      }), description: HTML },
      { ...declare('constructor'), description: LONG },
    ];
    const { parameters = [] } = accepts[0] ?? {};
    const asks = [HTML, LONG.repeat(5)].flatMap((message, index) => {
      const asked = { message, at: 0, expiresAt: 1e300 };
      const { parameters: yesOrNo } = declare('x', { a: { type: 'boolean', description: message } });
      return [{ ...asked, id: `${index}`, parameters }, { ...asked, id: `${index}-2`, parameters: yesOrNo }];
    });
    const states = [
      texts(HTML, { accepts, asks, current: [['choice', HTML], ['number', 7]] }), texts(LONG),
      texts(HTML, { status: 'paused' }), texts(LONG, { status: 'paused' }),
      texts(HTML, { status: 'unknown' }), texts(LONG, { status: 'offline', saveError: LONG }),
      texts(HTML, { status: 'offline', crashed: true }), texts(LONG, { unheardSince: 0, canSave: false }),
    ];
    const board = await openStates(t, browser, ...states);
    await seesAll(browser, ([first]) => {
      assert.deepEqual([first?.name, first?.rows[0]?.name, first?.rows[0]?.text], [HTML, HTML, HTML]);
      assert.ok(first?.cause.includes(HTML) && first.error === HTML && first.sent[0] === `✗ ${HTML}`);
    });
    await browser.run('for (const details of document.querySelectorAll("details")) details.open = true');
    await seesRow(browser, name, ({ description, fields }) => {
      assert.equal(description, HTML);
      assert.deepEqual(fields.map(({ value }) => value), [HTML, '7', HTML, false, '', '']);
    });
    const messages = await browser.run('return [...document.querySelectorAll(".ask h3")].map((one) => one.innerText)');
    assert.deepEqual(messages, asks.map(({ message }) => message));
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
    board.show(...states, ...states);
    await seesRows(browser, (rows) => {
      const shown = rows.map((row) => row.name + row.text);
      assert.ok(shown.some((text) => text.startsWith(`${HTML} at box:`) && text.includes(HTML, 60)), shown.join('\n'));
    });
    await browser.run('for (const button of document.querySelectorAll(".open")) button.click()');
    await checkLayout('rows with open cards');
    await browser.resize(360, 640);
    for (const [index, place] of [[1, 2], [3, 0]] as const) { // one asks to shut down, one to resume
      await eventually(async () => !(await grayButtons(browser, `[data-id='${index}'] .body`))[place]);
      await activateButton(browser, index, place);
      await browser.find('dialog[open]');
      assert.deepEqual(await browser.run(FIND_FLAWS_OF_DIALOG), []);
      await browser.press('Escape');
    }
    assert.equal(await browser.run('return window.hacked ?? null'), null);
    assert.deepEqual(await browser.findAll('#systems :is(img, script, b), #filter img, body > img'), []);
  });

  it('works by keyboard alone, and keeps the focus', async (t) => {
    const board = await openStates(t, browser, { name: 'one' }, { name: 'two' });
    await browser.press('Tab');
    assert.equal(await focused(browser), 'All systems');
    await browser.press('Enter');
    const order: string[] = [];
    for (let count = 0; count < 10; count += 1) {
      await browser.press('Tab');
      order.push(await focused(browser));
    }
    assert.deepEqual(order, [
      'Pause all', 'Resume all', 'Save all', 'Shut all down',
      'Pause one', 'Save one', 'Shut down one', 'Pause two', 'Save two', 'Shut down two',
    ]);
    await browser.press('Shift+Tab', 'Shift+Tab', 'Enter');
    await browser.findByRole('dialog', 'Pause two?');
    await browser.press('by hand', 'Enter');
    await board.takes('1/pause?reason=by+hand');
    board.show({ name: 'one' }, { name: 'two', status: 'paused' });
    await seesAll(browser, ([, two]) => assert.equal(two?.status, 'paused'));
    assert.equal(await focused(browser), 'Resume two'); // the same button
    await eventually(async () => (await orderOf(browser)).join() === 'two,one', () => 'the worst is not the first');
    assert.equal(await focused(browser), 'Resume two');
    await browser.press(' ');
    await board.takes('1/resume');
    await browser.press('Tab', 'Tab', ' ', 'Tab');
    assert.equal(await focused(browser), 'Shut down');
    await browser.press('Enter');
    await board.takes('1/shutdown');
    board.show({ name: 'one' }, { name: 'two', status: 'offline', ended: true });
    await seesAll(browser, ([, two]) => assert.deepEqual([two?.status, two?.isGray], ['ended', true]));
    assert.equal(await focused(browser), 'Shut down two');
    assert.equal(await browser.title(), 'active: one – control-board');
    await browser.press('Enter', 'Shift+Tab', ' ');
    assert.equal(await focused(browser), 'Save two');
    await board.takes();
    assert.equal(await browser.run('return getComputedStyle(document.activeElement).outlineStyle'), 'solid');
  });
});
