// Own commands on the page of control-board, in a browser.

import assert from 'node:assert/strict';
import { before, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { launchSystem } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { startBrowser } from './browser.ts';
import { forSuite } from './helpers.ts';
import {
  confirm, declare, eventually, focused, grayButtons, OFFLINE, openPage, openStates, rowsOf, SECOND, sees, seesRow,
  type State, valueOf,
} from './page.ts';
import type { SentCommand } from '../../../board/system.ts';
import type { Browser } from './browser.ts';

/** The reason field of the first own command. */
const REASON = '.own form > input';

function sent(id: number, command: string, state: SentCommand['state'], text: string = '', parameter?: string): State {
  return { sent: [{ id, command, state, text, ...(parameter !== undefined && { parameter }) }] };
}

/** One browser runs all tests in sequence. */
describe('Own commands on the page of control-board', { ...LIMIT, skip: lacks('chromium', 'chromedriver') }, () => {
  const suite = forSuite();
  let browser: Browser;

  before(async () => {
    browser = await startBrowser(suite);
  });

  const openRow = (name: string): Promise<void> => browser.run(`
    const rows = [...document.querySelectorAll('.own summary')];
    const row = rows.find(({ textContent }) => textContent === arguments[0]).parentElement;
    if (!row.open) row.firstElementChild.click();
  `, name);
  const field = (command: string, parameter: string): string => `#field-0-${command}-${parameter}`;
  const press = async (name: string): Promise<void> => browser.activate(await browser.findByRole('button', name));

  /** Replaces the text in a field. */
  const type = async (selector: string, text: string): Promise<void> => {
    await browser.click(selector);
    await browser.run('document.activeElement.select()');
    await browser.press(...(text === '' ? ['Backspace'] : [text]));
  };

  const seesValues = (name: string, ...expected: unknown[]): Promise<void> => {
    return seesRow(browser, name, ({ fields }) => assert.deepEqual(fields.map(({ value }) => value), expected));
  };

  it('have a row each, closed at first, to run them with arguments and a reason and show the outcome', async (t) => {
    t.mock.method(process, 'emitWarning', () => {}); // for the failing command
    const taken: unknown[] = [];
    const episodes = { type: 'integer', minimum: 1, maximum: 1000, default: 100 } as const;
    const { address: { port } } = await launchSystem(t, {
      step: () => sleep(50),
      commands: {
        evaluate: {
          description: 'Runs <b>episodes</b>', parameters: { episodes },
          run(values, { reason }) {
            taken.push({ ...values }, reason);
            return 497.1;
          },
        },
        step: { run: () => assert.fail('GPU busy') },
      },
    }, { name: 'cartpole' });
    await openPage(t, browser, [`localhost:${port}`]);
    await eventually(async () => (await rowsOf(browser)).length > 0);
    const closed = { isOpen: false, description: '', fields: [], outcome: [] };
    assert.deepEqual(await rowsOf(browser), [{ name: 'evaluate', ...closed }, { name: 'step', ...closed }]);
    await sees(browser, ({ buttons }) => assert.deepEqual(buttons, ['Pause', 'Save', 'Shut down', '', '']));
    await press('Pause cartpole');
    await confirm(browser);
    await sees(browser, ({ status }) => assert.equal(status, 'paused'));
    await openRow('evaluate');
    await seesRow(browser, 'evaluate', ({ description, fields }) => {
      assert.equal(description, 'Runs <b>episodes</b>');
      assert.deepEqual(fields, [
        { name: 'episodes', hint: 'from 1 to 1000', value: '100', wrong: '', isInvalid: false },
      ]);
    });
    await type(field('evaluate', 'episodes'), '5000');
    await browser.press('Enter');
    await seesRow(browser, 'evaluate', ({ fields, outcome }) => {
      assert.equal(fields[0]?.wrong, 'episodes must be an integer from 1 to 1000, got 5000');
      assert.deepEqual(outcome, []);
    });
    await type(field('evaluate', 'episodes'), '200');
    await browser.click(REASON);
    await browser.press('before lunch');
    await press('evaluate cartpole');
    await seesRow(browser, 'evaluate', ({ outcome, isOpen, fields }) => {
      assert.match(outcome.join(), /^✓ evaluate: 497\.1 \(\d+\.\d s\)$/);
      assert.deepEqual([isOpen, fields[0]?.value], [true, '100'], 'the default again');
    });
    assert.deepEqual(taken, [{ episodes: 200 }, 'before lunch']);
    assert.equal(await valueOf(browser, REASON), '');
    await sees(browser, (card) => {
      assert.match(card.sent.join(), /^✓ paused/, 'the outcomes of the others stay');
      assert.deepEqual([card.status, card.level], ['paused', 'warn']);
    });
    await openRow('step');
    await press('step cartpole');
    await seesRow(browser, 'step', ({ outcome }) => assert.deepEqual(outcome, ['✗ step failed: GPU busy']));
    await sees(browser, ({ level }) => assert.equal(level, 'bad'));
    const outcomes = (await rowsOf(browser)).map(({ outcome }) => outcome.join().slice(0, 11));
    assert.deepEqual(outcomes, ['✓ evaluate:', '✗ step fail']);
  });

  it('show the error of an argument at its field until it is edited, but not that of another page', async (t) => {
    const accepts = [declare('set', { rate: { type: 'number', hint: 'from 0 to 1' }, seed: { type: 'integer' } })];
    const board = await openStates(t, browser, { accepts });
    await openRow('set');
    const seesErrors = (wrong: string[], outcome: string = ''): Promise<void> => seesRow(browser, 'set', (row) => {
      assert.deepEqual(row.fields.map((one) => one.wrong), wrong);
      assert.deepEqual(row.fields.map(({ isInvalid }) => isInvalid), wrong.map((text) => text !== ''));
      assert.equal(row.outcome.join(), outcome);
    });
    await type(field('set', 'rate'), '1.5');
    await browser.press('Enter');
    await board.takes('0/set {"rate":1.5}');
    await browser.run('document.querySelector(".own details").open = false');
    board.show({ accepts, ...sent(1, 'set', 'failed', 'set: rate must be … 1', 'rate') });
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
    board.show({ accepts, ...sent(2, 'set', 'done', 'set done') });
    await seesErrors(['', ''], '✓ set done');
    const described = await browser.run<string>(`
      const ids = document.querySelector(arguments[0]).getAttribute('aria-describedby').split(' ');
      return ids.map((id) => document.getElementById(id).textContent).join('|');
    `, field('set', 'rate'));
    assert.equal(described, 'from 0 to 1||');

    await browser.run('document.querySelector(".own details").open = false');
    board.show({ accepts, ...sent(3, 'set', 'failed', 'set: rate must be … 1', 'rate') });
    await seesRow(browser, 'set', ({ outcome, isOpen }) => {
      assert.deepEqual([outcome, isOpen], [['✗ set: rate must be … 1'], false]);
    });
    await openRow('set');
    await seesErrors(['', ''], '✗ set: rate must be … 1');
  });

  it('run once, however often the button or Enter is pressed, until the outcome is known', async (t) => {
    const accepts = [declare('evaluate', { episodes: { type: 'integer', default: 100 } }), declare('other')];
    const board = await openStates(t, browser, { accepts });
    const seesGray = (isGray: boolean): Promise<void> => eventually(async () => {
      return (await grayButtons(browser, '.body')).join() === [false, false, false, isGray, false].join();
    }, () => `the button is not ${isGray}`);
    await openRow('evaluate');
    await browser.click(field('evaluate', 'episodes'));
    await browser.press('Enter', 'Enter', 'Enter');
    await seesGray(true);
    const others = [{ id: 9, command: 'evaluate', state: 'failed', text: 'evaluate: …' } as const]; // of another page
    board.show({ accepts, sent: [...sent(1, 'evaluate', 'sent').sent ?? [], ...others] });
    await seesRow(browser, 'evaluate', ({ outcome }) => {
      assert.deepEqual(outcome, ['… evaluate sent', '✗ evaluate: …']);
    });
    await press('evaluate box');
    await browser.press('Enter');
    await seesGray(true);
    board.show({ accepts, ...sent(1, 'evaluate', 'done', 'evaluate: 1') });
    await seesGray(false);
    await board.takes('0/evaluate {"episodes":100}');
    await browser.press('Enter');
    await board.takes('0/evaluate {"episodes":100}');
    await seesGray(true);
    board.show({ accepts }); // the board has forgotten it: the program has restarted
    await seesGray(false);
    board.refusal = [413, 'The arguments exceed 4096 bytes'];
    await browser.press('Enter');
    await eventually(async () => await browser.text('.own .unsent') === 'not sent: The arguments exceed 4096 bytes');
    await browser.consoleErrors(); // drops the 413
    await seesGray(false);
  });

  it('keep the typed text, the focus and the elements when news and other declarations arrive', async (t) => {
    const episodes = { type: 'integer' } as const;
    const accepts = [declare('say', { text: { maxLength: 50 } }), declare('evaluate', { episodes })];
    const board = await openStates(t, browser, { accepts });
    await openRow('say');
    await openRow('evaluate');
    await type(field('evaluate', 'episodes'), '7');
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
      board.show({ accepts, fields: [{ name: 'count', value }], current: [['text', 'other'], ['episodes', value]] });
      await sees(browser, ({ rows }) => assert.equal(rows[0]?.text, String(value)));
    }
    const kept = await browser.run<unknown[]>(`
      const { value, selectionStart, selectionEnd } = document.activeElement;
      return [window.changes, value, selectionStart, selectionEnd];
    `);
    assert.deepEqual(kept, [[], 'hello', 1, 3]);
    await press('evaluate box');
    await board.takes('0/evaluate {"episodes":7}');
    board.show({ accepts, ...sent(1, 'evaluate', 'failed', 'evaluate failed: x') });
    await seesRow(browser, 'evaluate', ({ outcome }) => assert.deepEqual(outcome, ['✗ evaluate failed: x']));
    await seesValues('evaluate', '7');
    const more = [declare('first'), { ...declare('say', { before: {}, text: { maxLength: 50 } }), description: 'New' }];
    board.show({ accepts: more, ...OFFLINE });
    await seesRow(browser, 'say', ({ isOpen, description, fields }) => {
      assert.deepEqual([isOpen, description, ...fields.map(({ value }) => value)], [true, 'New', '', 'hello']);
    });
    assert.equal(await focused(browser), 'text');
    assert.deepEqual((await rowsOf(browser)).map(({ name }) => name), ['first', 'say']);
    await press('say box');
    await board.takes();
  });

  it('show current values unless the user has edited the field', async (t) => {
    const accepts = [declare('set', {
      rate: { type: 'number', default: 9 }, mode: { enum: ['slow', 'fast'] },
      isLoud: { type: 'boolean', default: false }, text: {}, seed: { type: 'integer', default: 5 },
    })];
    const board = await openStates(t, browser, { accepts });
    let count = 0;
    const show = async (current: NonNullable<State['current']>, more: State = {}): Promise<void> => {
      board.show({ accepts, current, fields: [{ name: 'count', value: count += 1 }], ...more });
      await sees(browser, ({ rows }) => assert.equal(rows[0]?.text, String(count)));
    };
    await openRow('set');
    await show([['rate', 0.25], ['mode', 'fast'], ['isLoud', true], ['text', 'a\n"b"'], ['seed', 1.5], ['extra', 'x']]);
    await seesValues('set', '0.25', 'fast', true, 'a\n"b"', '5'); // 1.5 is not an integer
    await show([['rate', 0.5], ['mode', 'slow'], ['isLoud', false], ['text', 'c'], ['seed', 6]]);
    await seesValues('set', '0.5', 'slow', false, 'c', '6');
    await type(field('set', 'rate'), '0.1');
    await browser.click(field('set', 'seed')); // focused, but not edited
    const before: NonNullable<State['current']> = [
      ['rate', 0.75], ['mode', 'unheard of'], ['isLoud', false], ['text', 'c'], ['seed', 8],
    ];
    await show(before);
    await seesValues('set', '0.1', 'slow', false, 'c', '6');
    await press('set box');
    await board.takes('0/set {"rate":0.1,"mode":"slow","isLoud":false,"text":"c","seed":6}');
    await show(before, sent(1, 'set', 'done', 'set done'));
    await browser.run(SECOND);
    await seesValues('set', '0.1', 'slow', false, 'c', '6'); // not at once the values before the command
    await type(field('set', 'text'), 'd');
    await seesValues('set', '0.75', 'slow', false, 'd', '8'); // it has not changed them
  });

  it('have selects, checkboxes, inputs and text areas; Enter runs them, except in a text area', async (t) => {
    const accepts = [declare('say', {
      line: { maxLength: 100 }, area: { maxLength: 101, default: 'a\n  b' }, free: { default: '' },
      level: { type: 'integer', enum: [3, 1, 2], default: 1 }, tone: { enum: ['', 'kind'], default: '' },
      isLoud: { type: 'boolean' }, count: { type: 'integer', default: 7 },
    }), declare('choose', { one: { type: 'boolean', enum: [true, false] } })];
    const board = await openStates(t, browser, { accepts });
    await openRow('say');
    const kinds = await browser.run<string[]>(`
      return [...document.querySelectorAll('.own form')[0].elements].map(({ type }) => type);
    `);
    assert.deepEqual(kinds, [
      'text', 'textarea', 'textarea', 'select-one', 'select-one', 'checkbox', 'number', 'text', 'submit',
    ]);
    await browser.click(field('say', 'free'));
    await browser.press('one', 'Enter', 'two');
    await browser.run('document.querySelector(arguments[0]).focus()', field('say', 'tone'));
    await browser.press('k');
    await browser.click(field('say', 'isLoud'));
    await type(field('say', 'count'), ''); // the default applies
    assert.equal(await browser.run('return document.activeElement.placeholder'), '7');
    await browser.click(field('say', 'line'));
    await board.takes();
    await browser.press('<i>', 'Enter');
    await board.takes(`0/say ${JSON.stringify({
      line: '<i>', area: 'a\n  b', free: 'one\ntwo', level: 1, tone: 'kind', isLoud: true,
    })}`);
    await openRow('choose');
    await browser.doubleClick(await browser.findByRole('button', 'choose box'));
    await board.takes('0/choose {}'); // nothing is chosen
    board.show({ accepts, ...sent(2, 'choose', 'failed', 'choose: …') });
    await seesRow(browser, 'choose', ({ outcome }) => assert.deepEqual(outcome, ['✗ choose: …']));
    await browser.run('document.querySelector(arguments[0]).focus()', field('choose', 'one'));
    await browser.press('f');
    await press('choose box');
    await board.takes('0/choose {"one":false}');
  });
});
