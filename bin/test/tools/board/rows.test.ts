// Own commands on the page of control-board, in a browser.

import assert from 'node:assert/strict';
import { before, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { defer, getInfo, launchSystem, startImpostor, startServer, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { startBrowser } from './browser.ts';
import { forSuite, LIMIT } from './helpers.ts';
import {
  cards, confirm, eventually, FIND_FLAWS, focused, grayButtons, openPage, rowsOf, sees, seesRow, valueOf,
} from './page.ts';
import type { Browser } from './browser.ts';
import type { StartedBoard } from './helpers.ts';
import type { System } from '../../../../control.ts';
import type { TestContext } from 'node:test';

const EPISODES = { type: 'integer', minimum: 1, maximum: 1000, default: 100 } as const;

/** The reason field of the first own command. */
const REASON = '.own form > input';

/** One browser runs all tests in sequence. */
describe('Own commands on the page of control-board', { ...LIMIT, skip: lacks('chromium', 'chromedriver') }, () => {
  const suite = forSuite();
  let browser: Browser;

  before(async () => {
    browser = await startBrowser(suite);
  });

  const open = async (t: TestContext, port: number): Promise<StartedBoard> => {
    const board = await openPage(t, browser, [port]);
    await sees(browser, ({ status }) => assert.notEqual(status, 'connecting'));
    return board;
  };

  /** Starts a system that only has own commands, and opens its page. */
  const openSystem = async (
    t: TestContext,
    hooks: Partial<System>,
  ): Promise<{ port: number; board: StartedBoard }> => {
    t.mock.method(process, 'emitWarning', () => {}); // for failing commands
    const { address: { port } } = await launchSystem(t, { step: () => sleep(50), ...hooks }, { name: 'cartpole' });
    const board = await open(t, port);
    await eventually(async () => (await rowsOf(browser)).length > 0);
    return { port, board };
  };

  const openRow = (name: string): Promise<void> => browser.run(`
    const rows = [...document.querySelectorAll('.own summary')];
    const row = rows.find(({ textContent }) => textContent === arguments[0]).parentElement;
    if (!row.open) row.firstElementChild.click();
  `, name);
  const field = (command: string, parameter: string): string => `#field-0-${command}-${parameter}`;
  const press = async (name: string): Promise<void> => {
    await browser.activate(await browser.findByRole('button', name));
    if (name.startsWith('Pause')) await confirm(browser);
  };

  /** Replaces the text in a field. */
  const type = async (selector: string, text: string): Promise<void> => {
    await browser.click(selector);
    await browser.run('document.activeElement.select()');
    await browser.press(...(text === '' ? ['Backspace'] : [text]));
  };

  it('have a row each, closed at first, to run them with arguments and a reason and show the outcome', async (t) => {
    const taken: unknown[] = [];
    const evaluation = defer<object>();
    t.after(() => evaluation.resolve({}));
    await openSystem(t, {
      commands: {
        evaluate: {
          description: 'Runs <b>episodes</b>', parameters: { episodes: EPISODES },
          run(values, { reason }) {
            taken.push({ ...values }, reason);
            return evaluation.promise;
          },
        },
        step: { run: () => { throw new Error('GPU busy'); } },
      },
    });
    const closed = { isOpen: false, description: '', fields: [], outcome: [] };
    assert.deepEqual(await rowsOf(browser), [{ name: 'evaluate', ...closed }, { name: 'step', ...closed }]);
    await sees(browser, ({ buttons }) => assert.deepEqual(buttons, ['Pause', 'Save', 'Shut down', '', '']));

    await press('Pause cartpole');
    await sees(browser, ({ status }) => assert.equal(status, 'paused'));
    await openRow('evaluate');
    await seesRow(browser, 'evaluate', ({ description, fields }) => {
      assert.equal(description, 'Runs <b>episodes</b>');
      assert.deepEqual(fields, [
        { name: 'episodes', hint: 'from 1 to 1000', value: '100', wrong: '', isInvalid: false },
      ]);
    });
    await type(field('evaluate', 'episodes'), '200');
    await browser.click(REASON);
    await browser.press('before lunch');
    await press('evaluate cartpole');
    await seesRow(browser, 'evaluate', ({ outcome }) => assert.deepEqual(outcome, ['… evaluate sent']));
    await sees(browser, ({ commands, buttons, status }) => {
      assert.match(commands[0] ?? '', /^evaluate \{"episodes":200\} running, \d s ago by .*: before lunch$/);
      assert.deepEqual([buttons[3], status], ['evaluate', 'paused']);
    });
    assert.equal(await valueOf(browser, REASON), '');
    evaluation.resolve({ meanReturn: 497.1, best: [1, 'a'] });
    const value = '{"meanReturn":497.1,"best":[1,"a"]}';
    await seesRow(browser, 'evaluate', ({ outcome, isOpen, fields }) => {
      assert.match(outcome.join(), /^✓ evaluate: \{"meanReturn":497\.1,"best":\[1,"a"\]\} \(\d+\.\d s\)$/);
      assert.deepEqual([isOpen, fields[0]?.value], [true, '100'], 'the default again');
    });
    assert.deepEqual(taken, [{ episodes: 200 }, 'before lunch']);
    await sees(browser, ({ commands, sent, level }) => {
      const [latest = ''] = commands;
      assert.ok(latest.startsWith('evaluate {"episodes":200} done in ') && latest.includes(` s: ${value}, `), latest);
      assert.match(sent.join(), /^✓ paused/, 'the outcomes of the others stay');
      assert.equal(level, 'warn');
    });

    await openRow('step');
    await press('step cartpole');
    await seesRow(browser, 'step', ({ outcome }) => assert.deepEqual(outcome, ['✗ step failed: GPU busy']));
    await sees(browser, ({ level }) => assert.equal(level, 'bad'));
    const outcomes = (await rowsOf(browser)).map(({ outcome }) => outcome.join().slice(0, 11));
    assert.deepEqual(outcomes, ['✓ evaluate:', '✗ step fail']);
  });

  it('show the error of an argument at its field until the argument is edited or valid', async (t) => {
    const taken: object[] = [];
    await openSystem(t, {
      commands: {
        set: {
          parameters: {
            rate: { type: 'number', minimum: 0, maximum: 1 }, seed: { type: 'integer' }, episodes: EPISODES,
          },
          run: (values: object) => void taken.push({ ...values }),
        },
      },
    });
    await openRow('set');
    const sees = (wrong: string[], outcome: RegExp = /^$/): Promise<void> => {
      return seesRow(browser, 'set', (row) => {
        assert.deepEqual(row.fields.map((one) => one.wrong), wrong);
        assert.deepEqual(row.fields.map(({ isInvalid }) => isInvalid), wrong.map((text) => text !== ''));
        assert.match(row.outcome.join(), outcome);
      });
    };
    await seesRow(browser, 'set', ({ fields }) => {
      assert.deepEqual(fields.map(({ hint }) => hint), ['from 0 to 1 · required', 'required', 'from 1 to 1000']);
    });
    await press('set cartpole');
    await sees(['rate must be a number from 0 to 1, got nothing', '', '']);
    await type(field('set', 'rate'), '1.5');
    await sees(['', '', '']);
    await type(field('set', 'rate'), '0.5');
    await browser.press('Enter');
    await sees(['', 'seed must be an integer, got nothing', '']);
    await type(field('set', 'seed'), '1.5');
    await browser.press('Enter');
    await sees(['', 'seed must be an integer, got 1.5', '']);
    assert.equal(await focused(browser), 'seed');
    for (const none of ['1e999', '--5', '1e']) { // unreadable, so there is no value to send
      await type(field('set', 'seed'), none);
      await browser.press('Enter');
      await sees(['', 'seed must be an integer', '']);
    }
    await type(field('set', 'seed'), '7');
    await type(field('set', 'episodes'), '1001');
    await browser.press('Enter');
    await sees(['', '', 'episodes must be an integer from 1 to 1000, got 1001']);
    await type(field('set', 'episodes'), ''); // the default applies
    assert.equal(await browser.run('return document.activeElement.placeholder'), '100');
    await browser.press('Enter');
    await sees(['', '', ''], /^✓ set done \(\d+\.\d s\)$/);
    assert.deepEqual(taken, [{ rate: 0.5, seed: 7, episodes: 100 }]);
    const described = await browser.run<string>(`
      const ids = document.querySelector(arguments[0]).getAttribute('aria-describedby').split(' ');
      return ids.map((id) => document.getElementById(id).textContent).join('|');
    `, field('set', 'rate'));
    assert.equal(described, 'from 0 to 1 · required||');

    await type(field('set', 'rate'), '2');
    await browser.press('Enter');
    await sees(['rate must be a number from 0 to 1, got 2', '', '']);
    await browser.run('window.isOld = true; location.reload()');
    await eventually(() => browser.run<boolean>('return window.isOld === undefined'));
    await eventually(async () => (await rowsOf(browser)).length > 0);
    await openRow('set'); // on a page that has not sent the command
    await sees(['', '', ''], /^✗ set: rate must be a number from 0 to 1, got 2$/);
  });

  it('are not opened or marked by commands from another page', async (t) => {
    const commands = { evaluate: { parameters: { episodes: EPISODES }, run: () => 497.1 } };
    const { board } = await openSystem(t, { commands });
    await openRow('evaluate');
    await press('evaluate cartpole');
    await seesRow(browser, 'evaluate', ({ outcome }) => assert.match(outcome.join(), /^✓ evaluate: 497\.1 /));
    await browser.run('document.querySelector(".own details").open = false');
    await board.post('/api/systems/0/evaluate', {}, '{"episodes":5000}');
    await seesRow(browser, 'evaluate', ({ outcome, isOpen }) => {
      assert.deepEqual(outcome, ['✗ evaluate: episodes must be an integer from 1 to 1000, got 5000']);
      assert.equal(isOpen, false);
    });
    await openRow('evaluate');
    const [row] = await rowsOf(browser);
    assert.deepEqual(row?.fields.map(({ value, wrong, isInvalid }) => [value, wrong, isInvalid]), [['100', '', false]]);
  });

  it('run once, however often the button or Enter is pressed, until the outcome is known', async (t) => {
    const evaluations = [defer<number>(), defer<number>()];
    t.after(() => evaluations.forEach(({ resolve }) => resolve(0)));
    let runs = 0;
    const { port, board } = await openSystem(t, {
      commands: {
        evaluate: { parameters: { episodes: EPISODES }, run: () => evaluations[runs++]?.promise },
        other: { run: () => {} },
      },
    });
    await openRow('evaluate');
    await browser.click(field('evaluate', 'episodes'));
    await browser.press('Enter', 'Enter', 'Enter');
    await seesRow(browser, 'evaluate', ({ outcome }) => assert.deepEqual(outcome, ['… evaluate sent']));
    assert.deepEqual(await grayButtons(browser, '.body'), [false, false, false, true, false]);
    await press('evaluate cartpole');
    await board.post('/api/systems/0/evaluate', {}, '{"episodes":5000}'); // from another page, and refused
    await seesRow(browser, 'evaluate', ({ outcome: [, other] }) => assert.match(other ?? '', /^✗ .* got 5000$/));
    await browser.click(field('evaluate', 'episodes'));
    await browser.press('Enter');
    evaluations[0]?.resolve(1);
    await seesRow(browser, 'evaluate', ({ outcome: [own] }) => assert.match(own ?? '', /^✓ evaluate: 1 /));
    assert.deepEqual([runs, (await getInfo(port)).commands.length], [1, 1]);
    await browser.press('Enter');
    await seesRow(browser, 'evaluate', ({ outcome }) => assert.deepEqual(outcome, ['… evaluate sent']));
    evaluations[1]?.resolve(2);
    await seesRow(browser, 'evaluate', ({ outcome }) => assert.match(outcome.join(), /^✓ evaluate: 2 /));
    assert.equal(runs, 2);
  });

  it('keep the typed text, the focus and the elements when news arrives', async (t) => {
    let count = 0;
    await openSystem(t, {
      describe: () => ({ count: count += 1 }),
      commands: {
        say: { parameters: { text: { type: 'string', maxLength: 50 } }, run: () => {} },
        evaluate: { parameters: { episodes: EPISODES }, run: () => {} },
      },
    });
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
    const before = count;
    await until(async () => count > before + 3);
    await sees(browser, ({ rows }) => assert.ok(Number(rows[0]?.text) > before + 2));
    const kept = await browser.run<unknown[]>(`
      const { value, selectionStart, selectionEnd } = document.activeElement;
      return [window.changes, value, selectionStart, selectionEnd];
    `);
    assert.deepEqual(kept, [[], 'hello', 1, 3]);
    await press('Pause cartpole');
    await sees(browser, ({ status }) => assert.equal(status, 'paused'));
    const rows = await rowsOf(browser);
    assert.deepEqual(rows.map(({ isOpen, fields }) => [isOpen, fields[0]?.value]), [[true, 'hello'], [true, '7']]);
  });

  it('show current values unless the user has edited the field', async (t) => {
    const state = { rate: 0.25, mode: 'fast', isLoud: true, text: 'a\n"b"', seed: 1.5, extra: 'x' };
    let reads = 0;
    let takeEffect = (): void => {};
    await openSystem(t, {
      describe: () => ({ ...state, reads: reads += 1 }),
      commands: {
        set: {
          parameters: {
            rate: { type: 'number', default: 9 }, mode: { type: 'string', enum: ['slow', 'fast'] },
            isLoud: { type: 'boolean', default: false }, text: { type: 'string' },
            seed: { type: 'integer', default: 5 },
          },
          run(values: object) {
            takeEffect = () => void Object.assign(state, values); // later, when the detail is read
          },
        },
      },
    });
    await openRow('set');
    const seesValues = (...expected: unknown[]): Promise<void> => {
      return seesRow(browser, 'set', ({ fields }) => assert.deepEqual(fields.map(({ value }) => value), expected));
    };
    await seesValues('0.25', 'fast', true, 'a\n"b"', '5'); // 1.5 is not an integer
    Object.assign(state, { rate: 0.5, mode: 'slow', isLoud: false, text: 'c', seed: 6 });
    await seesValues('0.5', 'slow', false, 'c', '6');
    await type(field('set', 'rate'), '0.1');
    await browser.click(field('set', 'seed')); // focused, but not edited
    Object.assign(state, { rate: 0.75, mode: 'unheard of', seed: 8 });
    await sees(browser, ({ rows }) => assert.equal(rows[0]?.text, '0.75'));
    await seesValues('0.1', 'slow', false, 'c', '6');
    await press('set cartpole');
    await seesRow(browser, 'set', ({ outcome }) => assert.match(outcome.join(), /^✓ set done/));
    const readsBefore = reads;
    await until(() => reads > readsBefore);
    await seesValues('0.1', 'slow', false, 'c', '6'); // not the value before the command
    takeEffect();
    assert.deepEqual(state, { rate: 0.1, mode: 'slow', isLoud: false, text: 'c', seed: 6, extra: 'x' });
    await sees(browser, ({ rows }) => assert.equal(rows[0]?.text, '0.1'));
    await seesValues('0.1', 'slow', false, 'c', '6');
    await browser.click(REASON); // moves the focus away
    state.rate = 0.3;
    await seesValues('0.3', 'slow', false, 'c', '6');
  });

  it('show the current value again if a command has not changed it, unless the field was edited since', async (t) => {
    const state = { rate: 0.5, seed: 1, size: 10 };
    let reads = 0;
    await openSystem(t, {
      describe: () => ({ ...state, reads: reads += 1 }),
      commands: {
        set: {
          parameters: { rate: { type: 'number' }, seed: { type: 'integer' }, size: { type: 'integer' } },
          run: ({ seed }) => void (state.seed = Number(seed)),
        },
      },
    });
    await openRow('set');
    const seesValues = (...expected: string[]): Promise<void> => {
      return seesRow(browser, 'set', ({ fields }) => assert.deepEqual(fields.map(({ value }) => value), expected));
    };
    await seesValues('0.5', '1', '10');
    await type(field('set', 'seed'), '2');
    await type(field('set', 'size'), '20');
    await type(field('set', 'rate'), '0.9');
    await browser.press('Enter');
    await seesRow(browser, 'set', ({ outcome, fields }) => {
      assert.match(outcome.join(), /^✓ set done/);
      assert.deepEqual(fields.map(({ value }) => value), ['0.9', '2', '20']);
    });
    const readsBefore = reads;
    await type(field('set', 'size'), '30');
    await browser.click(field('set', 'rate')); // focused, but not edited
    await seesValues('0.5', '2', '30');
    assert.ok(reads > readsBefore + 1, 'not at once');
    await type(field('set', 'rate'), '0.9');
    await browser.press('Enter');
    await seesValues('0.5', '2', '10');
  });

  it('have selects, checkboxes, inputs and text areas; Enter runs them once, except in a text area', async (t) => {
    const taken: object[] = [];
    const { port } = await openSystem(t, {
      commands: {
        say: {
          parameters: {
            line: { type: 'string', maxLength: 100 }, area: { type: 'string', maxLength: 101, default: 'a\n  b' },
            free: { type: 'string', default: '' }, level: { type: 'integer', enum: [3, 1, 2], default: 1 },
            tone: { type: 'string', enum: ['', 'kind'], default: '' }, isLoud: { type: 'boolean' },
          },
          run: (values: object) => void taken.push({ ...values }),
        },
        choose: {
          parameters: { one: { type: 'boolean', enum: [true, false] } },
          run: (values: object) => void taken.push({ ...values }),
        },
      },
    });
    await openRow('say');
    const kinds = await browser.run<string[]>(`
      return [...document.querySelectorAll('.own form')[0].elements].map(({ type }) => type);
    `);
    assert.deepEqual(kinds, ['text', 'textarea', 'textarea', 'select-one', 'select-one', 'checkbox', 'text', 'submit']);
    await browser.click(field('say', 'free'));
    await browser.press('one', 'Enter', 'two');
    await browser.run('for (const name of ["level", "tone"]) document.querySelector("#field-0-say-" + name).focus()');
    await browser.press('k');
    await browser.click(field('say', 'isLoud'));
    await browser.click(field('say', 'line'));
    assert.deepEqual(taken, []);
    await browser.press('<i>', 'Enter');
    await until(() => taken.length > 0);
    assert.deepEqual(taken, [{ line: '<i>', area: 'a\n  b', free: 'one\ntwo', level: 1, tone: 'kind', isLoud: true }]);

    taken.length = 0;
    const isHeldPrevented = `
      const repeated = { key: 'Enter', repeat: true, bubbles: true, cancelable: true };
      return !document.querySelector(arguments[0]).dispatchEvent(new KeyboardEvent('keydown', repeated));
    `;
    assert.equal(await browser.run(isHeldPrevented, field('say', 'line')), true);
    assert.equal(await browser.run(isHeldPrevented, field('say', 'area')), false, 'it adds lines');
    await browser.run(`
      window.clicks = [];
      addEventListener('click', ({ detail }) => window.clicks.push(detail), true);
    `);
    await browser.doubleClick(await browser.findByRole('button', 'say cartpole'));
    assert.deepEqual(await browser.run('return window.clicks'), [1, 2]); // it was a real double click
    await until(() => taken.length > 0);
    await openRow('choose');
    await press('choose cartpole');
    await seesRow(browser, 'choose', ({ fields }) => {
      assert.equal(fields[0]?.wrong, 'one must be one of true, false, got nothing');
    });
    await browser.run('document.querySelector(arguments[0]).focus()', field('choose', 'one'));
    await browser.press('f');
    await press('choose cartpole');
    await until(() => taken.length > 1);
    assert.deepEqual(taken[1], { one: false });
    assert.equal((await getInfo(port)).commands.length, 3, 'none ran twice');

    const area = field('say', 'area');
    await browser.run('document.querySelector(arguments[0]).value = "x".repeat(5000)', area);
    await press('say cartpole');
    const unsent = '.own .unsent';
    await eventually(async () => await browser.text(unsent) === 'not sent: The arguments exceed 4096 bytes');
    await browser.consoleErrors(); // drops the 413
    await browser.run('document.querySelector(arguments[0]).value = "short"', area);
    await press('say cartpole');
    await eventually(async () => await browser.text(unsent) === '');
  });

  it('follow the declarations, and keep unchanged rows and fields', async (t) => {
    const { server, port } = await startServer<string>(t, { commands: { a: {}, b: {}, c: {} } });
    const text = { type: 'string', maxLength: 9 } as const;
    const other = { parameters: { kept: text } };
    server.commands = { first: {}, say: { parameters: { old: text, kept: text } }, other };
    await open(t, port);
    await seesRow(browser, 'say', () => {});
    for (const name of ['say', 'other']) {
      await openRow(name);
      await type(field(name, 'kept'), name);
    }
    await type(field('say', 'kept'), 'typed');
    server.commands = {
      say: { description: 'New', parameters: { before: text, kept: text, old: { ...text, maxLength: 8 } } },
      last: {}, other,
    };
    await seesRow(browser, 'say', ({ isOpen, description, fields }) => {
      assert.deepEqual([isOpen, description], [true, 'New']);
      const shown = fields.map(({ name, value }) => [name, value]);
      assert.deepEqual(shown, [['before', ''], ['kept', 'typed'], ['old', '']]);
    });
    assert.equal(await focused(browser), 'kept');
    const rows = await rowsOf(browser);
    assert.deepEqual(rows.map(({ name, isOpen }) => [name, isOpen]), [['say', true], ['last', false], ['other', true]]);
    assert.equal(rows[2]?.fields[0]?.value, 'other');
    server.commands = {};
    await eventually(async () => (await rowsOf(browser)).length === 0);
  });

  it('are disabled while the system cannot be controlled, and keep the typed text', async (t) => {
    const commands = { say: { parameters: { text: { type: 'string', maxLength: 9 } } } } as const;
    const { server, address } = await startServer(t, { name: 'agent', commands });
    await open(t, address.port);
    await seesRow(browser, 'say', () => {});
    await openRow('say');
    await type(field('say', 'text'), 'hello');
    await server.close();
    await sees(browser, ({ status, isGray }) => assert.deepEqual([status, isGray], ['offline', true]));
    await browser.requests();
    await browser.press('Enter');
    await browser.activate(await browser.findByRole('button', 'say agent'));
    assert.deepEqual((await browser.requests()).filter((url) => url.includes('/say')), []);
    await startServer(t, { name: 'agent', port: address.port, commands });
    await sees(browser, ({ status, isGray }) => assert.deepEqual([status, isGray], ['active', false]));
    assert.equal(await valueOf(browser, field('say', 'text')), 'hello');
  });

  it('show any text from a system as text, at 360 and 1280 pixels, light and dark', async (t) => {
    const html = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>';
    const long = 'w'.repeat(900);
    const name = 'a'.repeat(32);
    const parameters = {
      [name]: { type: 'string', description: html, default: html, maxLength: 1e300 },
      number: { type: 'number', description: long, minimum: -1.797e308, maximum: 1.797e308, default: -1.23456789e-300 },
      choice: { type: 'string', enum: [long, html, 'a\u001b[2Jb\u202ec'], default: html },
      isLoud: { type: 'boolean', description: long },
      ['B'.repeat(32)]: { type: 'boolean' }, constructor: { type: 'string' }, toString: { type: 'integer' },
    };
    const accepts = { [name]: { description: html, parameters }, constructor: { description: long }, 'x-1': {} };
    const commands = [{ command: name, state: 'done', arguments: { [html]: html, long } }];
    const port = await startImpostor(t, 200, {
      name: 'x', status: 'active', accepts, commands,
      detail: { choice: html, number: 7 }, state: 'failed', error: html,
    });
    await open(t, port);
    await seesRow(browser, name, () => {});
    await openRow(name);
    await openRow('constructor');
    await seesRow(browser, name, ({ description, fields }) => {
      assert.equal(description, html);
      assert.deepEqual(fields.map(({ value }) => value), [html, '7', html, false, false, '', '']);
    });
    const labels = await browser.run('return [...arguments[0].options].map(({ label }) => label)',
      await browser.find(field(name, 'choice')));
    assert.deepEqual(labels, [long, html, 'a [2Jb c']);
    await press(`${name} x`);
    await seesRow(browser, name, ({ outcome }) => assert.notEqual(outcome.join(), ''));
    for (const dark of [false, true]) {
      await browser.emulate({ dark });
      for (const width of [360, 1280]) {
        await browser.resize(width, 800);
        assert.deepEqual(await browser.run(FIND_FLAWS), [], `${width} px`);
      }
    }
    await browser.emulate({});
    assert.equal(await browser.run('return window.hacked ?? null'), null);
    assert.deepEqual(await browser.findAll('#systems img, #systems script, #systems b'), []);
    assert.equal((await cards(browser)).length, 1);
  });
});
