// The page of control-board in a browser: its cards, and what users do with them.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { before, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { makeFolder, startSystem } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { startBrowser } from './browser.ts';
import { forSuite, startBoard } from './helpers.ts';
import {
  activateButton, asking, type Card, cards, confirm, CRASHED, declare, ENDED, eventually, FAILED, FIND_FLAWS,
  FIND_FLAWS_OF_DIALOG, focused, grayButtons, OFFLINE, openPage, openStates, orderOf, PAUSED, plotted, press, problemOf,
  SECOND, sees, seesAll, seesRow, seesRows, SILENT, type State,
} from './page.ts';
import type { Update } from '../../../board/system.ts';
import type { Browser } from './browser.ts';
import type { StartedBoard } from './helpers.ts';

const WRONG_KEY = /^The key is wrong: open the address that control-board prints$/;
const NO_KEY = /^The key is missing: open the address that control-board prints$/;

/** A text that would run as a script, and one as long as the board sends. */
const HTML = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>';
const LONG = 'w'.repeat(200);

/** What the board sends, and what the card and the title of the page show: for the words, see ../view.test.ts. */
const STATES: [state: State, card: Partial<Card>, title: string][] = [
  [{ status: '', word: 'connecting', heading: 'connecting', level: 'none', isControllable: false }, {
    status: 'connecting', isGray: true, level: 'none',
  }, 'connecting'],
  [{
    when: 'for 3 min', cause: ' by ana: a < b', holds: ['and by ben', 'and by others'], step: 'in a step',
    error: 'a < b', saved: 'saved <i>', unsaved: 'not saved',
    progress: { name: 'step', done: 1700.5, of: 10_000, text: '17 %, 3 h left' },
    commands: [{ text: 'x expired', state: 'answer' }, { text: 'save-state done', state: 'done' }],
  }, {
    status: 'active', cause: 'for 3 min by ana: a < b', holds: ['and by ben', 'and by others'], step: 'in a step',
    error: 'a < b', saved: 'saved <i>', unsaved: 'not saved',
    progress: 'step 1700.5 of 10,000 · 17 %, 3 h left',
    commands: ['x expired', 'save-state done'], isGray: false, level: 'good', buttons: ['Pause', 'Save', 'Shut down'],
  }, 'active'],
  [{ ...PAUSED, status: 'pausing' }, { isGray: false, buttons: ['Resume', 'Save', 'Shut down'] }, 'paused'],
  [{ ...PAUSED, ...FAILED }, { status: 'paused', level: 'bad', statusLevel: 'warn' }, 'failed'],
  [CRASHED, { status: 'crashed', cause: 'exit code 7', isGray: true, level: 'bad' }, 'crashed'],
  [ENDED, { status: 'ended', isGray: true, level: 'ended' }, 'ended'],
  [PAUSED, { status: 'paused', isGray: false, level: 'warn', buttons: ['Resume', 'Save', 'Shut down'] }, 'paused'],
  [{ process: 'process 7 on gpu3', target: 'gpu3:1' }, { place: 'process 7 on gpu3 · gpu3:1' }, 'active'],
  [{ process: 'process 7 on gpu3', target: 'gpu3/unix:/x' }, { place: 'process 7 on gpu3' }, 'active'],
  [{ target: 'unix:/x' }, { place: 'unix:/x' }, 'active'],
  [{
    sent: [
      { id: 1, command: 'pause', state: 'sent', text: '' }, { id: 2, command: 'pause', state: 'done', text: 'paused' },
      { id: 3, command: 'save-state', state: 'failed', text: 'not saved: ENOSPC' },
    ],
  }, { sent: ['… pause sent', '✓ paused', '✗ not saved: ENOSPC'] }, 'active'],
  [{ ...PAUSED, ...asking({ id: 'q1', message: 'x', parameters: [], times: '' }) }, {
    status: 'paused', level: 'asks', statusLevel: 'warn', buttons: ['Answer', 'Resume', 'Save', 'Shut down'],
  }, 'asking'],
];

/** One browser runs all tests in sequence. */
describe('The page of control-board', { ...LIMIT, skip: lacks('chromium', 'chromedriver') }, () => {
  const suite = forSuite();
  let browser: Browser;

  before(async () => {
    browser = await startBrowser(suite);
  });

  it('shows each part of a state at its place, and its level also in the icon', async (t) => {
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
  });

  it('shows the detail with plots of its numbers', async (t) => {
    const rows: [entry: Update['fields'][number], text: string, heights: string | null][] = [
      [{ name: 'word', value: 'cart pole' }, 'cart pole', null], [{ name: 'toString', value: 7 }, '7', null],
      [plotted('__proto__', 1001, 1003), '1,003', 'M14.2L9.8'], // nearly flat
      [plotted('constructor', 1, 3, 2), '2', 'M23L1L12'], [plotted('', 0, 0), '0', 'M12L12'],
      [plotted('loss', 0.123_456_789, -0.123_456_789), '-0.123457', 'M1L23'],
      [plotted('huge', -1.7e308, 1.7e308), '1.7e+308', 'M23L1'],
      [plotted('gap', 1, 3, null, null, 1, 3), '3', 'M23L1M23L1'],
    ];
    const board = await openStates(t, browser, { fields: rows.map(([entry]) => entry) });
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
    board.show({ fields: [plotted('learningRate', 0.01, 0.01), plotted('step', 1, 13_696_800)] });
    await browser.resize(390, 844); // a phone
    await sees(browser, (card) => assert.deepEqual(card.rows.map((row) => row.text), ['0.01', '13,696,800']));
    const heights = await browser.run<number[]>(`
      return [...document.querySelectorAll('tr')].map((row) => row.offsetHeight);
    `);
    assert.ok(heights.length === 2 && heights.every((height) => height < 40), `a line each: ${heights}`);
    const run = ['pid', 'command'].map((name) => ({ name, value: 7, isRun: true as const }));
    const progress = { name: 'loss', done: 1, of: 2, text: '50 %' };
    board.show({ fields: [...run, { name: 'of', value: 2 }, plotted('loss', 1, 2)], progress });
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
    board.show({ name: 'trainer', ...PAUSED, othersHold: 'paused by ben@desk; and by ana: night tariff' });
    await sees(browser, ({ status }) => assert.equal(status, 'paused'));
    await browser.click('.body button', 0);
    await browser.findByRole('dialog', 'Resume trainer, paused by ben@desk; and by ana: night tariff?');
    await confirm(browser, 'both agree');
    board.show({ name: 'trainer', ...PAUSED, cause: ' by ben@desk' });
    await sees(browser, ({ cause }) => assert.equal(cause, 'by ben@desk'));
    await browser.click('.body button', 0); // does not ask: its own hold
    await board.takes('0/resume?reason=both+agree', '0/resume');
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
    board.show(PAUSED);
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
    board.show({ name: 'job-1', ...SILENT });
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
    const offline = { name: 'away', ...OFFLINE };
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
    board.show(job, { name: 'trainer', ...OFFLINE });
    await seesButton('Save all', true);
    board.show({ name: 'job' }, { name: 'trainer', ...OFFLINE });
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
      name: text, process: text, heading: text, when: 'for 3 min', cause: `by ${text}: ${text}`, error: text,
      saved: `saved ${text} by ${text}`, unsaved: `save failed: ${text}`, failed: `save failed: ${text}`, step: text,
      fields: [{ name: text, value: text }, plotted(`${text}2`, 2 ** 53 - 1, -1.234_567_89e-300)],
      progress: { name: text, done: 5, of: 1e300, text },
      commands: ['done', 'failed', 'constructor'].map((state) => ({ text: `${text} by ${text} (${text})`, state })),
      holds: Array(16).fill(`and by ${text}: ${text}`),
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
      const asked = { message, times: 'asked 3 min ago, expires in 12 min' };
      const { parameters: yesOrNo } = declare('x', { a: { type: 'boolean', description: message } });
      return [{ ...asked, id: `${index}`, parameters }, { ...asked, id: `${index}-2`, parameters: yesOrNo }];
    });
    const states = [
      texts(HTML, { accepts, asks, current: [['choice', HTML], ['number', 7]] }), texts(LONG),
      texts(HTML, PAUSED), texts(LONG, { ...PAUSED, othersHold: `paused${`; and by ${LONG}`.repeat(16)}` }),
      texts(HTML, OFFLINE), texts(LONG, { ...CRASHED, heading: LONG }), texts(LONG, { canSave: false }),
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
    board.show({ name: 'one' }, { name: 'two', ...PAUSED });
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
    board.show({ name: 'one' }, { name: 'two', ...ENDED });
    await seesAll(browser, ([, two]) => assert.deepEqual([two?.status, two?.isGray], ['ended', true]));
    assert.equal(await focused(browser), 'Shut down two');
    assert.equal(await browser.title(), 'active: one – control-board');
    await browser.press('Enter', 'Shift+Tab', ' ');
    assert.equal(await focused(browser), 'Save two');
    await board.takes();
    assert.equal(await browser.run('return getComputedStyle(document.activeElement).outlineStyle'), 'solid');
  });
});
