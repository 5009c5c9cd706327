// The page of control-board with many systems: rows, their order, and filters.

import assert from 'node:assert/strict';
import { before, describe, it } from 'node:test';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { startBrowser } from './browser.ts';
import { forSuite } from './helpers.ts';
import {
  asking, cards, confirm, CRASHED, declare, ENDED, eventually, FAILED, FIND_FLAWS, focused, glances, openStates,
  orderOf, PAUSED, plotted, SECOND, sees, seesRows, type State,
} from './page.ts';
import type { Browser } from './browser.ts';

const COUNT = 12; // from this many systems on, the page has rows

/** Idle systems t1, t2 … with these differences. */
function many(...states: readonly State[]): State[] {
  return Array.from({ length: COUNT }, (_, index) => ({ name: `t${index + 1}`, ...states[index] }));
}

/** The same, where these systems are paused. */
function pausing(...names: readonly string[]): State[] {
  return many().map((state) => (names.includes(state.name ?? '') ? { ...state, ...PAUSED } : state));
}

/** One browser runs all tests in sequence. */
describe('Many systems on the page of control-board', { ...LIMIT, skip: lacks('chromium', 'chromedriver') }, () => {
  const suite = forSuite();
  let browser: Browser;

  before(async () => {
    browser = await startBrowser(suite);
  });

  it('has cards for eleven and rows from twelve on, worst first, then by name', async (t) => {
    const board = await openStates(t, browser, ...many().slice(1));
    await sees(browser, ({ name, buttons }) => assert.deepEqual([name, buttons.length], ['t2', 3]));
    assert.deepEqual(await glances(browser), []);
    board.show(...many());
    await seesRows(browser, (rows) => assert.deepEqual(rows.map(({ name }) => name), many().map(({ name }) => name)));
    assert.ok((await cards(browser)).every(({ buttons }) => buttons.join('') === ''), 'closed');
    const progress = { name: 'step', done: 7, of: 100, text: '7 %, 3 min left' };
    const fields = [plotted('step', 6, 7), { name: 'of', value: 100 }, { name: 'word', value: 'x' }];
    const [when, cause] = ['3 min ago', ' by ana: GPU'];
    board.show(...many(
      { fields, progress, when: 'for 3 min' }, FAILED, { ...PAUSED, when, cause, holds: ['and by ben'], progress },
      { ...ENDED, when, cause, saved: 'saved states/1' }, { ...CRASHED, when }, {},
      { sent: [{ id: 1, command: 'pause', state: 'failed', text: 'not paused: x' }], when: 'for 3 min' },
      asking({ id: 'q1', message: 'Go on?', parameters: [], times: '' }),
    ));
    await seesRows(browser, (rows) => {
      assert.deepEqual(rows.map(({ name, status, text }) => [name, status, text]), [
        ['t8', 'asks', 'Go on?'],
        ['t2', 'active', 'save failed: ENOSPC ·'],
        ['t5', 'crashed', '3 min ago: exit code 7'],
        ['t3', 'paused', '3 min ago by ana: GPU'],
        ['t1', 'active', '7 %, 3 min left'],
        ['t6', 'active', ''], ['t7', 'active', 'not paused: x ·for 3 min'],
        ...['t9', 't10', 't11', 't12'].map((name) => [name, 'active', '']),
        ['t4', 'ended', '3 min ago by ana: GPU · saved states/1'],
      ]);
    });
    assert.equal(await browser.title(), 'asking: t8 – control-board');
    for (const width of [1280, 640, 390, 360, 320]) {
      await browser.resize(width, 844);
      assert.deepEqual(await browser.run(FIND_FLAWS), [], `${width} px`);
      const rows = await glances(browser);
      assert.ok(rows.every(({ height }) => height <= 64), `${width} px: ${rows.map(({ height }) => height)}`);
    }
  });

  it('shows whole names on a phone', async (t) => {
    await openStates(t, browser, ...many({ name: 'worker-01' }, { name: 'evaluation-nightly' }));
    await browser.resize(390, 844);
    await seesRows(browser, (rows) => assert.equal(rows.filter(({ name }) => name.includes('-')).length, 2));
    assert.ok(await browser.run(`
      return [...document.querySelectorAll('.open')].every((name) => name.scrollWidth <= name.clientWidth);
    `));
  });

  it('opens the full card under a row', async (t) => {
    const accepts = [declare('evaluate')];
    const first = { fields: [plotted('loss', 1, 0.5)], accepts, process: 'process 7 on gpu1' };
    const board = await openStates(t, browser, ...many(first));
    await browser.click('.open');
    await sees(browser, ({ rows, buttons, place }) => {
      assert.deepEqual(rows.map(({ name, text, plot }) => [name, text, plot !== null]), [['loss', '0.5', true]]);
      assert.deepEqual([buttons, place], [['Pause', 'Save', 'Shut down', ''], 'process 7 on gpu1 · box:9000']);
    });
    assert.equal((await glances(browser))[0]?.button, '', 'there is one button to pause');
    await browser.click('.open');
    await seesRows(browser, ([row]) => assert.equal(row?.button, 'Pause'));
    await browser.activate(await browser.findByRole('button', 'Pause t1'));
    await browser.findByRole('dialog', 'Pause t1?');
    await confirm(browser);
    await board.takes('0/pause');
    board.show(...pausing('t1'));
    await seesRows(browser, ([row]) => assert.deepEqual([row?.status, row?.button], ['paused', 'Resume']));
  });

  it('filters by state and by search', async (t) => {
    const board = await openStates(t, browser, ...pausing('t4', 't11'));
    const names = async (): Promise<string> => (await glances(browser)).map(({ name }) => name).join();
    const chips = (): Promise<string[]> => browser.run(`
      return [...document.querySelectorAll('#chips button')].map((chip) => chip.innerText + ' ' + chip.ariaPressed);
    `);
    await eventually(async () => (await chips()).join() === '2 paused false,10 active false', () => 'no chips');
    const counts = await browser.find('#counts'); // for screen readers
    assert.deepEqual([await browser.role(counts), await browser.text(counts)], ['status', '2 paused · 10 active']);
    await browser.activate(await browser.findByRole('button', '2 paused'));
    assert.equal(await names(), 't4,t11');
    assert.deepEqual(await chips(), ['2 paused true', '10 active false']);
    assert.equal(await browser.text('#summary'), '2 of 12 systems');
    board.show(...pausing('t4'));
    await eventually(async () => (await names()) === 't4', () => 'it is still there');
    board.show(...many());
    await eventually(async () => (await names()) === '', () => 'it is still there');
    await browser.run('arguments[0].focus()', await browser.findByRole('button', '0 paused'));
    await browser.run(SECOND);
    assert.equal(await focused(browser), '0 paused', 'it stays');
    await browser.press('Enter', 'Tab');
    await eventually(async () => (await chips()).join() === '12 active false', () => 'it is still there');
    await browser.click('#search');
    await browser.press('T1');
    assert.equal(await names(), 't1,t10,t11,t12');
    await browser.press('Backspace', 'Backspace', '9004');
    assert.equal(await names(), 't5');
  });

  it('moves nothing while the user points, types or answers a dialog, and never moves the focus', async (t) => {
    const accepts = [declare('say', { text: {} })];
    const board = await openStates(t, browser, ...many({ accepts }));
    const first = async (): Promise<string | undefined> => (await orderOf(browser))[0];
    const stays = async (name: string, what: string): Promise<void> => {
      const before = await first();
      const [one, ...others] = pausing(name);
      board.show({ ...one, accepts }, ...others);
      await seesRows(browser, (rows) => assert.equal(rows.find((row) => row.name === name)?.status, 'paused'));
      for (let count = 0; count < 4; count += 1) await browser.run(SECOND);
      assert.equal(await first(), before, what);
    };
    const moves = (name: string): Promise<void> => {
      return eventually(async () => await first() === name, () => `${name} is not the first`);
    };
    await browser.run('dispatchEvent(new PointerEvent("pointerdown"))');
    await stays('t12', 'a finger is on the page');
    await browser.run('dispatchEvent(new PointerEvent("pointerup"))');
    await moves('t12');
    await browser.activate(await browser.findByRole('button', 'Pause t2'));
    await stays('t11', 'a dialog is open');
    await browser.press('Escape');
    await moves('t11');
    await browser.activate(await browser.findByRole('button', 't1'));
    await browser.activate('.own summary');
    await browser.run('document.querySelector(".own .fields :is(input, textarea)").focus()');
    await stays('t10', 'somebody types');
    await browser.run('document.querySelector(".own summary").focus()');
    await moves('t10');
    assert.equal(await focused(browser), 'say of t1');
  });

  it('has no buttons and no fields with the view key', async (t) => {
    const accepts = [declare('say', { text: {} })];
    const board = await openStates(t, browser, { accepts }, { accepts, name: 'other' });
    await sees(browser, ({ buttons }) => assert.deepEqual(buttons, ['Pause', 'Save', 'Shut down', '']));
    board.canPress = false;
    board.show({ accepts }, { accepts, name: 'other' });
    await sees(browser, ({ status, buttons }) => assert.deepEqual([status, buttons.join('')], ['active', '']));
    const shown = '[...document.querySelectorAll("button, input, textarea")].filter((one) => one.checkVisibility())';
    assert.equal(await browser.run(`return ${shown}.length`), 0);
    await browser.press('Tab', 'Enter');
    await board.takes();
  });
});
