// The page of control-board with many systems: rows, their order, filters, and accessibility.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { before, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { launchSystem, makeFolder, startProgram, until } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { startBrowser } from './browser.ts';
import { forSuite, INFO, LIMIT, startFake, startHost } from './helpers.ts';
import {
  cards, confirm, eventually, FIND_FLAWS, FIND_FLAWS_OF_DIALOG, FIND_PALE_TEXT, focused, glances, openPage, orderOf,
  posted, problemOf, SECOND, sees, seesAll, seesRows,
} from './page.ts';
import type { Browser } from './browser.ts';
import type { Glance } from './page.ts';
import type { StartedBoard } from './helpers.ts';
import type { System } from '../../../../control.ts';
import type { TestContext } from 'node:test';

const IDLE = { step: () => sleep(50) };
const COUNT = 12; // from this many systems on, the page has rows

/** The test shuts the system down, which saves again. */
function failOnce(): () => void {
  let count = 0;
  return () => void ((count += 1) === 1 && assert.fail('ENOSPC: no space left'));
}

/** One browser runs all tests in sequence. */
describe('Many systems on the page of control-board', { ...LIMIT, skip: lacks('chromium', 'chromedriver') }, () => {
  const suite = forSuite();
  let browser: Browser;

  before(async () => {
    browser = await startBrowser(suite);
  });

  const open = (t: TestContext, ports: readonly number[], options?: readonly string[]): Promise<StartedBoard> => {
    return openPage(t, browser, ports, options);
  };

  /** Starts idle systems t1, t2 … and opens their page. */
  const openMany = async (t: TestContext, hooks: readonly Partial<System>[] = [], count: number = COUNT) => {
    t.mock.method(process, 'emitWarning', () => {}); // for failing commands
    const systems = [];
    for (let index = 0; index < count; index += 1) {
      systems.push(await launchSystem(t, { ...IDLE, ...hooks[index] }, { name: `t${index + 1}` }));
    }
    await open(t, systems.map(({ address }) => address.port));
    await seesRows(browser, (rows) => assert.deepEqual(rows.map(({ status }) => status), Array(count).fill('active')));
    return systems;
  };

  it('has cards for eleven and rows from twelve on, worst first, then by name', async (t) => {
    let count = 0;
    const describe = (): object => {
      const rate = 123_400 + ((count += 1) % 2) * 100;
      return { step: 7, of: 100, a: 1, b: 12_345, word: 'x', c: 0.3, d: 4, 'samples per second': rate };
    };
    const systems = await openMany(t, [{ describe }, { saveState: failOnce() }]);
    const names = Array.from({ length: COUNT }, (_, index) => `t${index + 1}`);
    assert.deepEqual(await orderOf(browser), names, 't2 before t10');
    await seesRows(browser, ([first]) => {
      const numbers = first?.numbers.join().replace('123.5', '123.4');
      assert.equal(numbers, 'samples per second 123.4K,a 1,b 12,345', 'those that change come first');
      assert.match(first?.text ?? '', /^7 %/);
    });
    await systems[10]?.client.request('pause', { by: 'ana@laptop', reason: 'GPU needed', wait: 10 });
    await systems[9]?.client.request('shutdown', { by: 'ana', wait: 10 });
    await systems[1]?.client.request('save-state', { wait: 10 });
    await seesRows(browser, (rows) => {
      const rest = names.filter((name) => !['t2', 't11', 't10'].includes(name));
      assert.deepEqual(rows.map(({ name }) => name), ['t2', 't11', ...rest, 't10']);
      assert.deepEqual([rows[0]?.status, rows[0]?.text.slice(0, 34)], ['active', 'save failed: ENOSPC: no space left']);
      assert.equal(rows[1]?.status, 'paused');
      assert.match(rows[1]?.text ?? '', /^\d+ s · ana: GPU needed$/);
      assert.equal(rows.at(-1)?.status, 'ended');
      assert.match(rows.at(-1)?.text ?? '', /^\d+ s ago · ana( · saved .*)?$/);
    });
    assert.equal(await browser.title(), 'failed: t2 – control-board');
    for (const [width, count] of [[1280, 3], [640, 1], [390, 1], [360, 1], [320, 1]] as const) {
      await browser.resize(width, 844);
      assert.deepEqual(await browser.run(FIND_FLAWS), [], `${width} px`);
      const rows = await glances(browser);
      assert.equal(rows.find(({ name }) => name === 't1')?.numbers.length, count);
      assert.ok(rows.every(({ height }) => height <= 64), `${width} px: ${rows.map(({ height }) => height)}`);
    }
    assert.ok((await cards(browser)).every(({ buttons }) => buttons.join('') === ''), 'closed');
  });

  it('opens the full card under a row', async (t) => {
    const commands = { evaluate: { run: () => 7 } };
    await openMany(t, [{ describe: () => ({ loss: 0.5 }), commands }]);
    await browser.click('.open');
    await sees(browser, ({ rows, buttons, place }) => {
      assert.deepEqual(rows.map(({ name, text, plot }) => [name, text, plot !== null]), [['loss', '0.5', true]]);
      assert.deepEqual(buttons, ['Pause', 'Save', 'Shut down', '']);
      assert.match(place, /^process \d+ on .* · localhost:\d+$/);
    });
    assert.equal((await glances(browser))[0]?.button, '', 'there is one button to pause');
    await browser.click('.open');
    await seesRows(browser, ([first]) => assert.equal(first?.button, 'Pause'));
    await browser.activate(await browser.findByRole('button', 'Pause t1'));
    await browser.findByRole('dialog', 'Pause t1?');
    assert.deepEqual(await browser.run(FIND_FLAWS_OF_DIALOG), []);
    await confirm(browser);
    await seesRows(browser, ([first]) => assert.deepEqual([first?.status, first?.button], ['paused', 'Resume']));
  });

  it('filters by state and by search', async (t) => {
    const systems = await openMany(t);
    for (const index of [3, 10]) await systems[index]?.client.pause();
    const names = async (): Promise<string> => (await glances(browser)).map(({ name }) => name).join();
    const chips = (): Promise<string[]> => browser.run(`
      return [...document.querySelectorAll('#chips button')].map((chip) => chip.innerText + ' ' + chip.ariaPressed);
    `);
    await eventually(async () => (await chips()).join() === '2 paused false,10 active false', () => 'no chips');
    const counts = await browser.find('#counts'); // for screen readers
    assert.equal(await browser.role(counts), 'status');
    await eventually(async () => await browser.text(counts) === '2 paused · 10 active', () => 'nothing is heard');
    await eventually(async () => (await names()).startsWith('t4,t11,t1,t2,'), () => 'the order is another one');
    await browser.activate(await browser.findByRole('button', '2 paused'));
    assert.equal(await names(), 't4,t11');
    assert.deepEqual(await chips(), ['2 paused true', '10 active false']);
    assert.equal(await browser.text('#summary'), '2 of 12 systems');
    await systems[10]?.client.resume();
    await eventually(async () => (await names()) === 't4', () => 'it is still there');
    await systems[3]?.client.resume();
    await eventually(async () => (await names()) === '', () => 'it is still there');
    await browser.activate(await browser.findByRole('button', '0 paused'));
    await eventually(async () => (await chips()).join() === '12 active false', () => 'it is still there');
    await browser.click('#search');
    await browser.press('T1');
    assert.equal(await names(), 't1,t10,t11,t12');
    await browser.press('Backspace', 'Backspace', String(systems[4]?.address.port));
    assert.equal(await names(), 't5');
  });

  it('keeps a filter button that has the focus; Tab follows the order of the page', async (t) => {
    const systems = await openMany(t);
    await systems[3]?.client.pause();
    const chip = await browser.findByRole('button', '1 paused');
    await browser.run('arguments[0].focus()', chip);
    await systems[3]?.client.resume();
    await browser.findByRole('button', '0 paused');
    await browser.run(SECOND);
    assert.equal(await focused(browser), '0 paused');
    await browser.press('Tab');
    await eventually(async () => (await browser.findAll('#chips button')).length === 1, () => 'it is still there');
    const order: string[] = [];
    for (let count = 0; count < 7; count += 1) {
      order.push(await focused(browser));
      await browser.press('Tab');
    }
    assert.deepEqual(order, [
      '12 active', 'Search by name or address', 'All systems', 't1', 'Pause t1', 't2', 'Pause t2',
    ]);
  });

  it('draws only the systems that are scrolled into view', async (t) => {
    await openMany(t);
    await browser.resize(390, 200);
    await browser.run(`
      const { querySelectorAll } = Element.prototype;
      let drawn;
      window.drawings = [];
      Element.prototype.querySelectorAll = function (...args) {
        if (this.localName === 'article') {
          if (drawn === undefined) {
            window.drawings.push(drawn = new Set());
            queueMicrotask(() => (drawn = undefined));
          }
          drawn.add(this);
        }
        return querySelectorAll.apply(this, args);
      };
      scrollTo(0, 0);
    `);
    const isSparing = 'return window.drawings.some(({ size }) => size > 0 && size < 12)';
    let isDown = false;
    await eventually(async () => {
      await browser.run('scrollTo(0, arguments[0])', (isDown = !isDown) ? 9999 : 0);
      return browser.run<boolean>(isSparing);
    }, () => 'all are drawn');
  });

  it('shows the other systems if one cannot be drawn', async (t) => {
    let count = 0;
    const systems = await openMany(t, [{ describe: () => ({ loss: count += 1 }) }]);
    await browser.run(`
      const { json } = Response.prototype;
      window.spoiled = {};
      Response.prototype.json = async function () {
        const news = await json.call(this);
        for (const system of news.systems ?? []) if (system.id === 0) Object.assign(system, window.spoiled);
        return news;
      };
    `);
    const spoil = (fields: object): Promise<void> => browser.run('window.spoiled = arguments[0]', fields);
    const statusOf = (rows: Glance[], name: string) => rows.find((row) => row.name === name)?.status;
    const detail = [{ name: 'x', value: '1e20', samples: [[1, 1], [2, 2]], intervalMs: 1000 }];
    await spoil({ detail, reason: 'spoiled' });
    await seesRows(browser, ([first]) => {
      assert.match(first?.text ?? '', /: spoiled$/);
      assert.deepEqual(first?.numbers, [], 'a text is no number');
    });
    assert.deepEqual(await browser.consoleErrors(), []);
    await spoil({ detail: null });
    await eventually(async () => (await browser.consoleErrors()).length > 0, () => 'the error is hidden');
    await systems[1]?.client.pause();
    await seesRows(browser, (rows) => assert.equal(statusOf(rows, 't2'), 'paused'));
    await spoil({});
    await systems[0]?.client.pause();
    await seesRows(browser, (rows) => assert.equal(statusOf(rows, 't1'), 'paused'));
    assert.equal(await problemOf(browser), '');
    await browser.consoleErrors();
  });

  it('moves nothing while the user points, types or answers a dialog, and never moves the focus', async (t) => {
    const say = { parameters: { text: { type: 'string', maxLength: 9 } as const }, run: () => {} };
    const systems = await openMany(t, [{ commands: { say } }]);
    const first = async (): Promise<string | undefined> => (await orderOf(browser))[0];
    const stays = async (name: string, what: string): Promise<void> => {
      const before = await first();
      await systems.find((_, index) => `t${index + 1}` === name)?.client.pause();
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

  it('has enough contrast, and names that distinguish systems', async (t) => {
    const run = { pid: 4711, command: 'python train.py', started: '2026-11-21', 'CPU seconds': 7 };
    const detail = { loss: 0.5, run };
    const hooks = [{ describe: () => detail }, { saveState: failOnce() }, { describe: () => ({ step: 7, of: 9 }) }];
    const systems = await openMany(t, hooks);
    await systems[1]?.client.request('save-state', { wait: 10 });
    await systems[3]?.client.pause();
    await systems[4]?.client.shutdown();
    await seesRows(browser, (rows) => assert.equal(rows.at(-1)?.status, 'ended'));
    await browser.run('for (const button of document.querySelectorAll(".open")) button.click()');
    await sees(browser, ({ process, rows }) => {
      assert.ok(process.includes('pid') && process.includes('command'), String(process));
      assert.deepEqual(rows.map(({ name }) => name), ['loss']);
    });
    for (const dark of [false, true]) {
      await browser.emulate({ dark });
      assert.deepEqual(await browser.run(FIND_PALE_TEXT), [], dark ? 'dark' : 'light');
    }
    await browser.emulate({});
    for (const element of await browser.findAll('#systems :is(button, summary, progress, input)')) {
      if (await browser.run<boolean>('return !arguments[0].checkVisibility()', element)) continue;
      assert.match(await browser.name(element), /\bt\d+$/);
    }
  });

  it('shows any text from a system as text', async (t) => {
    const html = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>';
    const long = 'w'.repeat(900);
    const ports = [];
    for (let index = 0; index < COUNT; index += 1) {
      const text = index % 2 === 0 ? html : long;
      const commands = [{ command: 'save-state', state: index < 4 ? 'failed' : 'done', error: text, value: text }];
      const detail = { [text]: index, [`${text}2`]: -1.2e-300, huge: 1.7e308, of: 1e300, pid: 7, command: text };
      const status = index < 8 ? 'paused' : text;
      const info = { ...INFO, name: text, status, by: text, reason: text, host: text, detail, commands };
      ports.push(await startFake(t, () => JSON.stringify(info)));
    }
    await open(t, ports);
    await seesRows(browser, (rows) => {
      const statuses = rows.map(({ status }) => status);
      assert.deepEqual(['paused', 'unknown'].map((one) => statuses.filter((status) => status === one).length), [8, 4]);
      const texts = rows.map(({ name, text, numbers }) => [name, text, ...numbers].join());
      assert.ok(texts.some((text) => text.includes(`${html} at localhost:`) && text.includes(`save failed: ${html}`)));
    });
    await browser.run('for (const button of document.querySelectorAll(".open")) button.click()');
    for (const width of [320, 360, 390, 1280]) {
      await browser.resize(width, 800);
      assert.deepEqual(await browser.run(FIND_FLAWS), [], `${width} px`);
    }
    assert.equal(await browser.run('return window.hacked ?? null'), null);
    assert.deepEqual(await browser.findAll('#systems img, script:not([type]), #filter img'), []);
  });

  it('has no buttons and no fields with the view key', async (t) => {
    const commands = { say: { parameters: { text: { type: 'string', maxLength: 9 } as const }, run: () => {} } };
    const { address: { port } } = await launchSystem(t, { ...IDLE, commands }, { name: 'one' });
    const board = await open(t, [port, port], ['--view-key-file', join(makeFolder(t), 'view-key')]);
    await sees(browser, ({ buttons }) => assert.deepEqual(buttons, ['Pause', 'Save', 'Shut down', '']));
    const [, key = ''] = /^view only · http:\S+#(\S+)/m.exec(board.running.output()) ?? [];
    await browser.run('location.hash = arguments[0]', key);
    await sees(browser, ({ status, buttons }) => assert.deepEqual([status, buttons.join('')], ['active', '']));
    const shown = '[...document.querySelectorAll("button, input, textarea")].filter((one) => one.checkVisibility())';
    assert.equal(await browser.run(`return ${shown}.length`), 0);
    await posted(browser);
    await browser.press('Tab', 'Enter');
    assert.deepEqual(await posted(browser), []);
  });

  it('draws gaps where samples are missing, and a nearly constant number as a flat line', async (t) => {
    let count = 0;
    const describe = (): object => ({ flat: 1000 + (count += 1) % 2, zero: 0, none: -(count % 2) });
    const { address: { port } } = await launchSystem(t, { ...IDLE, describe });
    const host = await startHost(t, 'step: () => sleep(50), describe: () => ({ pid: 7, time: performance.now() })');
    await open(t, [port, host.port]);
    const plotOf = async (index: number, name: string): Promise<string> => {
      const row = (await cards(browser))[index]?.rows.find((one) => one.name === name);
      return row?.plot ?? '';
    };
    const heights = async (name: string): Promise<number[]> => {
      return (await plotOf(0, name)).split(/[ML]/).slice(1).map((point) => Number(point.split(' ')[1]));
    };
    await until(async () => new Set(await heights('flat')).size > 1 && new Set(await heights('none')).size > 1);
    assert.ok((await heights('flat')).every((height) => height > 10 && height < 14), 'around the middle');
    assert.deepEqual([...new Set(await heights('zero'))], [12]);
    assert.deepEqual([...new Set(await heights('none'))].sort((one, other) => one - other), [1, 23], 'the full height');
    assert.equal(await browser.text('.plot small'), '1,001\n1,000');
    await until(async () => (await plotOf(1, 'time')).includes('L'));
    assert.equal(await plotOf(1, 'pid'), '');
    host.running.child.kill('SIGSTOP');
    await sleep(4000);
    host.running.child.kill('SIGCONT');
    await eventually(async () => (await plotOf(1, 'time')).split('M').length > 2, () => 'there is no gap');
  });

  it('shows the progress of a program with the time left', async (t) => {
    let step = 0;
    const { client, address: { port } } = await launchSystem(t, {
      step: () => sleep(20), describe: () => ({ loss: 0.5, step: step += 1, of: 1000 }),
    });
    await open(t, [port]);
    await sees(browser, ({ progress, rows }) => {
      assert.match(progress, /^step [\d,]+ of 1,000 · \d+ % · \d+ (s|min|h) left$/);
      assert.deepEqual(rows.map(({ name }) => name), ['loss', 'step']);
    });
    const bar = await browser.find('.body progress');
    assert.match(await browser.name(bar), /^step of /);
    await client.pause();
    await sees(browser, ({ progress }) => assert.match(progress, /^step [\d,]+ of 1,000 · \d+ %$/));
  });

  it('shows how a program crashed, in its row, its card and the filter', { skip: lacks('Unix') }, async (t) => {
    const command = ['--port', '0', '--name', 'job', '--', 'sh', '-c', 'read line; exit 7'];
    const { shows, output, child } = startProgram(t, 'run', command);
    await shows(/localhost:\d+\n/);
    const ports = [Number(/localhost:(\d+)/.exec(output())?.[1])];
    const info = JSON.stringify({ ...INFO, status: 'paused' });
    while (ports.length < COUNT) ports.push(await startFake(t, () => info));
    await open(t, ports);
    await seesRows(browser, (rows) => assert.equal(`${rows.at(-1)?.name} ${rows.at(-1)?.status}`, 'job active'));
    child.stdin?.write('\n');
    await seesRows(browser, ([first]) => {
      assert.match(`${first?.status} ${first?.text}`, /^crashed: exit code 7, \d+ s ago$/);
    });
    assert.match(await browser.text('#chips'), /^1 crashed\b/);
    assert.match(await browser.title(), /^crashed: job – control-board$/);
    await browser.run('document.querySelector(".open").click()');
    await seesAll(browser, ([card]) => {
      assert.match(`${card?.status} ${card?.cause}`, /^crashed: exit code 7, \d+ s ago$/);
      assert.deepEqual([card?.level, card?.error], ['bad', '']);
      assert.match(card?.commands.join() ?? '', /^crashed: exit code 7, \d+ s ago$/);
      assert.ok(card?.isGray);
    });
  });
});
