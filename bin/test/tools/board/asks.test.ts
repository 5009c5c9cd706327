// Questions of programs on control-board: who is asked, who answers, and who was faster.

import assert from 'node:assert/strict';
import { before, describe, it } from 'node:test';
import { BY } from '../../../shared/client.ts';
import { assertHarmless, HOSTILE, startServer } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT } from '../../wait.ts';
import { startWeb } from '../client/systems.ts';
import { type Browser, type Element, startBrowser } from './browser.ts';
import { checkMetrics, createSystem, forSuite, INFO, startBoard, untilSystem } from './helpers.ts';
import {
  asking, declare, eventually, FAILED, type FakeBoard, FIND_FLAWS, focused, glances, openPage, openStates, orderOf,
  sees, seesAll, SILENT, type State,
} from './page.ts';
import type { Ask } from '../../../board/forms.ts';

const MESSAGE = 'Delete 3 branches?';
const PARAMETERS = { file: { type: 'string', enum: ['a', 'b'] }, note: { type: 'string', default: '' } } as const;

/** What the board sends of a question; without parameters, of a yes or no. */
function ask(id: string, more: Partial<Ask> = {}): Ask {
  const { parameters } = declare('answer', { approved: { type: 'boolean' } });
  return { id, message: MESSAGE, parameters, times: 'asked 3 min ago', ...more };
}

/** What it sends of a question that somebody has answered. */
function answered(id: string, by: string = 'ana@phone'): State['askEnds'] {
  return [{ id, text: `${by} has answered: approved=true`, isAnswered: true }];
}

describe('A question on the web API of control-board', LIMIT, () => {
  it('is shown with what it takes, and answered once, by the sender of the board', async (t) => {
    const { server, port } = await startServer(t, { name: 'cleaner' });
    const board = await startBoard(t, [`127.0.0.1:${port}`], [], { CONTROL_BY: 'ana@phone' });
    const other = await startBoard(t, [`127.0.0.1:${port}`], [], { CONTROL_BY: 'ben@desk' });
    assert.deepEqual((await untilSystem(board, ({ status }) => status === 'active')).asks, []);
    const gauge = async (): Promise<string | undefined> => {
      const text = await (await board.get('/metrics')).text();
      checkMetrics(text);
      return text.split('\n').find((line) => line.startsWith('control_asks{'));
    };
    assert.equal(await gauge(), 'control_asks{system="cleaner"} 0');
    const asked = server.ask('Which one?', { parameters: PARAMETERS, timeout: 900_000 });
    const { asks: [open] } = await untilSystem(board, ({ asks }) => asks.length === 1);
    const { id, message, parameters, times } = open ?? assert.fail();
    assert.deepEqual([message, parameters], ['Which one?', [
      { name: 'file', description: '', hint: 'required', ...PARAMETERS.file },
      { name: 'note', description: '', hint: '', ...PARAMETERS.note },
    ]]);
    assert.match(times, /^asked \d+ s ago, expires in 14 min$/);
    assert.equal(await gauge(), 'control_asks{system="cleaner"} 1');

    const answer = async (path: string, body: string): Promise<unknown[]> => {
      const response = await board.post(`/api/systems/0/answer${path}`, {}, body);
      return [response.status, await response.json()];
    };
    const wrong = { error: 'answer: file must be one of a, b, got "c"', parameter: 'file' };
    assert.deepEqual(await answer(`?id=${id}`, '{"file":"c"}'), [400, wrong]);
    assert.deepEqual(await answer('?id=k9', '{}'), [404, { error: `There is no question k9: open are ${id}` }]);
    assert.deepEqual(await answer('', '{"file":"a"}'), [404, {
      error: `There is no question without an id: open are ${id}`,
    }]);
    assert.deepEqual(await answer(`?id=${id}`, 'x'), [400, { error: 'The body must be a JSON object' }]);
    const long = JSON.stringify({ file: 'a', note: 'x'.repeat(2048) });
    assert.deepEqual(await answer(`?id=${id}`, long), [413, { error: 'The arguments exceed 2048 bytes' }]);
    assert.equal((await other.get('/api/systems/0/answer')).status, 405);
    assert.deepEqual(await answer(`?id=${id}&reason=looked&by=eve`, '{"file":"a"}'), [200, { result: 'ok' }]);
    const { arguments: values, by, reason } = await asked;
    assert.deepEqual([{ ...values }, by, reason], [{ file: 'a', note: '' }, 'ana@phone', 'looked']);
    const late = await other.post(`/api/systems/0/answer?id=${id}`, {}, '{"file":"b"}');
    assert.deepEqual([late.status, await late.json()], [409, { error: `ana@phone has answered ${id}` }]);
    const { askEnds, commands: [listed] } = await untilSystem(other, ({ asks, askEnds: [end] }) => {
      return asks.length === 0 && end !== undefined;
    });
    assert.deepEqual(askEnds, [{ id, text: 'ana@phone has answered: file=a, note="" (looked)', isAnswered: true }]);
    assert.equal(listed?.state, 'answer');
    assert.match(listed.text, /^answer by ana@phone \(looked\): file=a, note="" \(Which one\?\), \d+ s ago$/);
    assert.equal(await gauge(), 'control_asks{system="cleaner"} 0');
  });

  it('is no failure of anything when it expires or is withdrawn, and counts once it is answered', async (t) => {
    const { server, port } = await startServer(t, { name: 'cleaner' });
    const board = await startBoard(t, [`127.0.0.1:${port}`]);
    await untilSystem(board, ({ status }) => status === 'active');
    const ended = async (text: string): Promise<void> => void await untilSystem(board, ({ askEnds }) => {
      return askEnds.at(-1)?.text === text;
    });
    server.ask(MESSAGE, { timeout: 1 });
    await ended('expired');
    const end = new AbortController();
    server.ask(MESSAGE, { signal: end.signal });
    end.abort();
    await ended('withdrawn');
    const asked = server.ask(MESSAGE);
    const { asks: [open] } = await untilSystem(board, ({ asks }) => asks.length === 1);
    await board.post(`/api/systems/0/answer?id=${open?.id}`, {}, '{"approved":false}');
    assert.equal((await asked).by, BY);
    await ended(`${BY} has answered: approved=false`);
  });

  it('is refused with the sentence of the system, and never with a status that means the key', async (t) => {
    const rows: [code: number, error: string, expected: number][] = [
      [409, 'a pause waits', 409], [404, 'There is no question x: open are none', 404], [401, 'Missing token', 502],
      [403, 'Host not allowed', 502], [500, 'Internal server error', 502], [503, 'full', 502], [409, HOSTILE, 409],
    ];
    let current: object | null = null;
    const web = await startWeb(t, ({ method }) => (method === 'POST' ? current : { ...INFO, asks: [] }));
    const board = await startBoard(t, [web.target]);
    for (const [code, error, expected] of rows) {
      current = { code, error, parameter: error };
      const response = await board.post('/api/systems/0/answer?id=x&reason=y', {}, '{}');
      const body = await response.json() as { error: string };
      assert.equal(response.status, expected, error);
      if (error !== HOSTILE) assert.match(body.error, new RegExp(error));
      assertHarmless(JSON.stringify(body));
    }
    current = null; // cuts the connection
    const cut = await board.post('/api/systems/0/answer?id=x', {}, '{}');
    assert.equal(cut.status, 502);
    assert.match(Object(await cut.json()).error, /^answer sent, but no response .*: it may still take effect$/);
    assert.equal((await board.post('/api/systems/1/answer?id=x', {}, '{}')).status, 404);
    assert.equal((await board.post('/api/systems/answer?id=x', {}, '{}')).status, 404, 'not to all systems');
    const posted = [...new Set(web.requests.filter((request) => request.startsWith('POST')))];
    assert.deepEqual(posted, [`POST /api/answer?id=x&by=${encodeURIComponent(BY)}&reason=y`, 'POST /api/answer']);
  });

  it('stays while the system is silent, but not when it refuses or has ended', async (t) => {
    const failure = { ok: false, error: 'x', original: 'x', body: {} };
    const open = { ...INFO, asks: [{ id: 'q1', message: MESSAGE, parameters: {} }] };
    let current: object = { ok: true, value: 'active', original: 'active', fault: null, body: open };
    const system = createSystem(t, () => current);
    for (const [reply, status, count] of [
      [current, 'active', 1], [{ ...failure, phase: 'sent', code: 'ETIMEDOUT', fault: 'silent' }, 'no answer', 1],
      [{ ...failure, phase: 'answered', statusCode: 401, fault: 'denied' }, 'missing or wrong token', 0],
      [current, 'active', 1],
      [{ ...failure, phase: 'connect', code: 'ECONNREFUSED', fault: 'offline' }, 'offline', 0],
    ] as const) {
      current = reply;
      await eventually(async () => system.state.status === status);
      assert.equal(system.state.asks.length, count, status);
    }
  });

  it('has short texts without control characters, whatever a system sends', async (t) => {
    const texts = [HOSTILE, HOSTILE.repeat(99), '', 7, null, {}, [HOSTILE], true];
    const asks = [
      ...texts.map((text) => ({
        id: text, message: text, at: text, expiresAt: text,
        parameters: { [String(text)]: { type: 'string' }, a: { type: text }, b: { type: 'string', description: text } },
      })),
      null, 7, 'x', [], { parameters: { length: 5 } }, { id: 'ok', message: 'x', parameters: 'x' },
      { id: 'long', message: 'x', parameters: { a: { type: 'string', enum: ['x'.repeat(20_000)] } } },
      ...Array(50).fill({ id: 'more', message: 'x', parameters: {} }),
    ];
    const commands = texts.flatMap((text) => ['done', 'failed'].map((state) => ({
      id: text, command: 'answer', message: `${text}`, state, by: text, reason: text, error: text,
      arguments: { [String(text)]: text },
    })));
    for (const fields of [{ asks, commands }, { asks: { length: 5 } }, { asks: HOSTILE }, { asks: [HOSTILE] }]) {
      const system = createSystem(t, () => {
        const body = { ...INFO, ...fields };
        return { ok: true, value: 'active', original: 'active', fault: null, body, tag: undefined };
      });
      await eventually(async () => system.state.status === 'active');
      const { asks: shown, askEnds, commands: listed } = system.state;
      assert.ok(shown.length <= 16 && shown.every((one) => JSON.stringify(one).length <= 16_384));
      for (const { id, message, times, parameters } of shown) {
        assertHarmless(id + message + times + parameters.map(({ name, description }) => name + description).join(''));
        assert.ok([...id].length <= 201 && [...message].length <= 1001);
        assert.ok(parameters.every(({ name }) => /^\w+$/.test(name)));
      }
      for (const { id, text } of askEnds) assertHarmless(id + text);
      for (const { text } of listed) assertHarmless(text);
      if (Array.isArray(fields.asks) && fields.asks.length > 1) {
        assert.ok(shown.length > 8 && askEnds.length === 16, `${shown.length} ${askEnds.length}`);
      } else assert.deepEqual(shown, []);
    }
  });
});

// ───── In browsers ───────────────────────────────────────────────────────────────────────────────────────────────

const SIZES = [[390, 844], [1280, 800]] as const;

/** Questions take no answer before, after something has moved. */
const GUARD = 'return new Promise((resolve) => setTimeout(resolve, 500))';

/** What a user sees of a question. */
interface Shown {
  message: string;
  badge: string;
  /** The values of the fields, and of the reason. */
  values: string[];
  buttons: string[];
  refused: string;
  end: string;
}

/** The questions of all systems, in the order of the page. */
function questions(browser: Browser): Promise<Shown[]> {
  return browser.run(`
    const text = (element) => (element.checkVisibility() ? element.innerText.trim() : '');
    return [...document.querySelectorAll('.ask')].filter((ask) => ask.checkVisibility()).map((ask) => ({
      message: text(ask.querySelector('h3')), badge: text(ask.querySelector('.badge')),
      values: [...ask.querySelectorAll('input, select, textarea')].filter((one) => one.checkVisibility())
        .map((one) => one.selectedOptions?.[0].text ?? one.value),
      buttons: [...ask.querySelectorAll('button')].filter((one) => one.checkVisibility()).map(text),
      refused: text(ask.querySelector('.refused')), end: text(ask.querySelector('.end')),
    }));
  `);
}

async function seesQuestions(browser: Browser, check: (all: Shown[]) => void): Promise<void> {
  let problem: unknown;
  await eventually(async () => {
    try {
      check(await questions(browser));
      return true;
    } catch (error) {
      problem = error;
      return false;
    }
  }).catch(() => {
    throw problem;
  });
}

describe('Questions on the page of control-board', { ...LIMIT, skip: lacks('chromium', 'chromedriver') }, () => {
  const suite = forSuite();
  let browser: Browser;
  let second: Browser;

  before(async () => {
    [browser, second] = await Promise.all([startBrowser(suite), startBrowser(suite)]);
  });

  /** Presses a button until that is taken, unless it is gray or gone. */
  const press = async (name: string, page: Browser = browser, found?: Element): Promise<void> => {
    const button = found ?? await page.findByRole('button', name);
    const isTaken = (): Promise<boolean> => page.run(`
      arguments[0].click();
      return arguments[0].ariaDisabled === 'true';
    `, button);
    await eventually(isTaken, () => `${name} takes no press`);
  };
  const type = async (selector: string, text: string): Promise<void> => {
    await browser.click(selector);
    await browser.press(text);
  };

  it('are answered by one of two browsers at once, and the other one sees by whom', async (t) => {
    const { server, port } = await startServer(t, { name: 'cleaner' });
    const people = [[browser, 'ana@phone', 'Yes'], [second, 'ben@desk', 'No']] as const;
    for (const [page, by] of people) await openPage(t, page, [`127.0.0.1:${port}`], [], { CONTROL_BY: by });
    for (const [width, height] of [...SIZES, ...SIZES]) {
      const message = `At ${width}, for the ${(await questions(browser)).length}th time?`;
      const asked = server.ask(message);
      await Promise.all(people.map(([page]) => page.resize(width, height)));
      for (const [page] of people) {
        await seesQuestions(page, (all) => assert.deepEqual([all.at(-1)?.message, all.at(-1)?.buttons], [
          message, ['No', 'Yes'],
        ]));
        assert.equal(await page.title(), 'asking – control-board');
        assert.deepEqual(await page.run(FIND_FLAWS), []);
      }
      const names = people.map(([, , word]) => `${word}: ${message}`);
      const found = await Promise.all(people.map(([page], index) => page.findByRole('button', names[index] ?? '')));
      await Promise.all(people.map(([page], index) => press(names[index] ?? '', page, found[index])));
      const { arguments: { approved }, by = '' } = await asked;
      assert.equal(approved, by === 'ana@phone', by);
      for (const [page] of people) {
        await seesQuestions(page, (all) => assert.deepEqual([all.at(-1)?.end, all.at(-1)?.buttons], [
          `${by} has answered: approved=${approved}`, [],
        ]));
        await sees(page, ({ commands, level }) => {
          const line = `answer by ${by}: approved=${approved} (${message})`;
          assert.ok(commands[0]?.startsWith(line), commands[0]);
          assert.equal(level, 'good');
        });
        await page.consoleErrors(); // drops the 409
      }
    }
  });

  it('come first, with their age, on cards and in rows, in the title and in the icon', async (t) => {
    const failed = { name: 'bad', ...FAILED };
    const times = 'asked 3 min ago, expires in 12 min';
    const job = { name: 'job', ...asking(ask('q1', { times }), ask('q2', { times: '' })) };
    const board = await openStates(t, browser, failed, { name: 'idle' }, job);
    const icon = (): Promise<string> => browser.run('return document.querySelector("link[rel=icon]").href');
    await eventually(async () => (await orderOf(browser)).join() === 'job,bad,idle');
    assert.equal(await browser.title(), 'asking: job – control-board');
    const asks = await icon();
    await seesQuestions(browser, (all) => {
      assert.deepEqual(all.map(({ message, badge }) => [message, badge]), [
        [MESSAGE, times], [MESSAGE, ''],
      ]);
    });
    await seesAll(browser, (all) => {
      assert.deepEqual(all.map(({ level, status }) => [level, status]), [
        ['bad', 'active'], ['good', 'active'], ['asks', 'active'],
      ]);
    });
    board.show(failed, { name: 'idle' }, { ...job, ...SILENT }); // nobody can answer it now
    await eventually(async () => await browser.title() === '1 failed · 1 no answer – control-board');
    assert.notEqual(await icon(), asks);
    await seesQuestions(browser, ([first]) => assert.equal(first?.buttons.length, 2));
    await press(`Yes: ${MESSAGE}`); // gray
    await board.takes();
    const many = Array.from({ length: 12 }, (_, index) => ({ name: `t${index + 1}` }));
    board.show(...many.slice(0, 10), failed, job);
    await eventually(async () => (await orderOf(browser)).slice(0, 2).join() === 'job,bad');
    const [row] = await glances(browser);
    assert.deepEqual([row?.status, row?.text], ['asked 3 min ago', `2 questions, first: ${MESSAGE}`]);
    assert.equal(await browser.text('#chips button'), '1 asking');
    for (const [width, height] of SIZES) {
      await browser.resize(width, height);
      assert.deepEqual(await browser.run(FIND_FLAWS), [], `${width} px`);
    }
    assert.deepEqual(await questions(browser), [], 'the row is closed');
    await browser.click('.open');
    await seesQuestions(browser, (all) => assert.equal(all.length, 2));
  });

  it('take yes or no by two buttons as wide as a thumb, neither of which Enter presses', async (t) => {
    for (const [index, [width, height]] of SIZES.entries()) {
      const board = await openStates(t, browser, { name: 'job', asks: [ask('q1')] });
      await browser.resize(width, height);
      await browser.press('Tab');
      assert.equal(await focused(browser), `Reason for the answer to ${MESSAGE}`);
      await browser.press('looked', 'Enter');
      await browser.press('Tab');
      assert.equal(await focused(browser), `No: ${MESSAGE}`);
      await browser.press('Tab');
      assert.equal(await focused(browser), `Yes: ${MESSAGE}`);
      const sizes = await browser.run<[number, number][]>(`
        return [...document.querySelectorAll('.ask button')].map((one) => [one.offsetWidth, one.offsetHeight]);
      `);
      assert.equal(sizes.length, 2);
      for (const [buttonWidth, buttonHeight] of sizes) assert.ok(buttonWidth >= 88 && buttonHeight >= 44, `${sizes}`);
      await board.takes();
      await press(`${index === 0 ? 'No' : 'Yes'}: ${MESSAGE}`);
      await board.takes(`0/answer?id=q1&reason=looked {"approved":${index !== 0}}`);
      await press(`No: ${MESSAGE}`); // gray until the end is known
      await board.takes();
    }
  });

  it('take no press that was meant for what was there before', async (t) => {
    const board = await openStates(t, browser, { name: 'job' });
    await browser.run(`
      new MutationObserver(() => document.querySelectorAll('.ask button').forEach((one) => one.click()))
        .observe(document.querySelector('#systems'), { subtree: true, childList: true });
    `);
    board.show({ name: 'job', asks: [ask('q1')] });
    await seesQuestions(browser, (all) => assert.equal(all.length, 1));
    await board.takes();
    await browser.run(GUARD);
    await browser.doubleClick(await browser.findByRole('button', `Yes: ${MESSAGE}`));
    await board.takes('0/answer?id=q1 {"approved":true}');
  });

  it('take no press just after another card has moved them', async (t) => {
    const [above, below] = [{ name: 'a', asks: [ask('q1')] }, { name: 'b', asks: [ask('q2', { message: 'Other?' })] }];
    const board = await openStates(t, browser, above, below);
    await browser.resize(390, 844);
    await seesQuestions(browser, (all) => assert.equal(all.length, 2));
    await browser.run(GUARD);
    await browser.run(`
      new MutationObserver((_, observer) => {
        observer.disconnect();
        document.querySelectorAll('.ask button')[3].click();
      }).observe(document.querySelector('#systems'), { subtree: true, childList: true });
    `);
    board.show({ ...above, fields: [{ name: 'step', value: '7' }] }, below);
    await sees(browser, ({ rows }) => assert.equal(rows[0]?.text, '7'));
    await board.takes();
    await press('Yes: Other?');
    await board.takes('1/answer?id=q2 {"approved":true}');
  });

  it('take a press while another system asks again and again, and show only the latest ends', async (t) => {
    const calm = { name: 'calm', asks: [ask('q1')] };
    const again = (count: number): Ask => ask(`q${count}`, { message: 'Again?' });
    const board = await openStates(t, browser, calm, { name: 'noisy', asks: [again(0)] });
    let count = 0;
    const timer = setInterval(() => board.show(calm, { name: 'noisy', asks: [again(count += 1)] }), 100);
    t.after(() => clearInterval(timer));
    await eventually(async () => count > 9);
    await browser.activate(await browser.findByRole('button', `Yes: ${MESSAGE}`));
    clearInterval(timer);
    await board.takes('0/answer?id=q1 {"approved":true}');
    board.show(calm, { name: 'noisy', asks: Array.from({ length: 30 }, (_, index) => ask(`${index}`)) });
    await seesQuestions(browser, (all) => assert.equal(all.length, 31));
    board.show(calm, { name: 'noisy' });
    await seesQuestions(browser, (all) => assert.equal(all.length, 21));
  });

  it('stay where they are, one after the other: of the earlier ones, only the last end is shown', async (t) => {
    const deletion = (count: number): Ask => ask(`q${count}`, { message: `Delete ${count}?` });
    const board = await openStates(t, browser, { name: 'job', asks: [deletion(0)] });
    for (let count = 1; count < 4; count += 1) {
      const askEnds = answered(`q${count - 1}`) ?? [];
      board.show({ name: 'job', asks: [deletion(count)], askEnds });
      const expected = [[`Delete ${count - 1}?`, []], [`Delete ${count}?`, ['No', 'Yes']]];
      await seesQuestions(browser, (all) => {
        assert.deepEqual(all.map(({ message, buttons }) => [message, buttons]), expected);
      });
    }
  });

  it('have a form for other parameters, with the error at its field, and sentences of the system', async (t) => {
    const { parameters } = declare('answer', {
      file: { enum: ['a', 'b'] }, note: { default: '', maxLength: 50 }, loud: { type: 'boolean' },
      quick: { type: 'boolean', default: true },
    });
    const board = await openStates(t, browser, { name: 'job', asks: [ask('q1', { parameters })] });
    await seesQuestions(browser, (all) => {
      assert.deepEqual(all.map(({ values, buttons }) => [values, buttons]), [[['', '', '', 'on', ''], ['Answer']]]);
    });
    board.refusal = [400, 'answer: loud must be a boolean, got nothing', 'loud'];
    await press(`Answer: ${MESSAGE}`);
    await board.takes('0/answer?id=q1 {"note":"","quick":true}');
    await eventually(async () => await browser.text('.ask .wrong', 2) === 'loud must be a boolean, got nothing');
    await browser.run('document.querySelectorAll(".ask select")[1].focus()');
    await browser.press('f');
    await browser.run('document.querySelector(".ask select").focus()');
    await browser.press('b');
    await type('.ask .fields input', 'x');
    for (const [code, error] of [[409, 'a pause waits'], [502, 'ECONNRESET'], [0, '']] as const) {
      board.refusal = [code, error];
      await browser.press('Enter');
      await board.takes('0/answer?id=q1 {"file":"b","note":"x","loud":false,"quick":true}');
      const sentence = code === 0 ? 'possibly not sent: control-board has not confirmed it' : `not sent: ${error}`;
      await seesQuestions(browser, ([first]) => assert.equal(first?.refused, sentence));
    }
    await browser.consoleErrors(); // drops those of the refusals
    board.refusal = null;
    await browser.press('Enter');
    await board.takes('0/answer?id=q1 {"file":"b","note":"x","loud":false,"quick":true}');
    await seesQuestions(browser, ([first]) => assert.equal(first?.refused, ''));
    const { parameters: sure } = declare('answer', { sure: { type: 'boolean', enum: [true] } });
    board.show({ name: 'job', asks: [ask('q2', { parameters: sure })] });
    await seesQuestions(browser, (all) => assert.deepEqual(all.at(-1)?.buttons, ['Answer'], 'there is no choice'));
  });

  it('keep what is typed through news and when they are asked again without an answer', async (t) => {
    const board = await openStates(t, browser, { name: 'job', asks: [ask('q1')] });
    const shows = async (asks: Ask[], askEnds: State['askEnds'] = []): Promise<void> => {
      board.show({ name: 'job', asks, askEnds, fields: [{ name: 'step', value: `${asks[0]?.id}` }] });
      await sees(browser, ({ rows }) => assert.equal(rows[0]?.text, `${asks[0]?.id}`));
    };
    const seesReasons = (...expected: [end: string, reason: string | undefined][]): Promise<void> => {
      return seesQuestions(browser, (all) => {
        assert.deepEqual(all.map(({ end, values }) => [end, values.at(-1)]), expected);
      });
    };
    await type('.ask form > input', 'half');
    await shows([ask('q1'), ask('q2', { message: 'Other?' })]);
    await seesReasons(['', 'half'], ['', '']);
    await browser.press('-typed');
    assert.equal(await focused(browser), `Reason for the answer to ${MESSAGE}`);
    await shows([], [{ id: 'q1', text: 'withdrawn', isAnswered: false }]);
    await seesReasons(['withdrawn', undefined], ['no longer open', undefined]);
    await shows([ask('q3')], [{ id: 'q1', text: 'withdrawn', isAnswered: false }]);
    await seesReasons(['', 'half-typed'], ['no longer open', undefined]);
    await press(`Yes: ${MESSAGE}`);
    await board.takes('0/answer?id=q3&reason=half-typed {"approved":true}');
    await shows([ask('q4')], answered('q3'));
    await seesReasons(['ana@phone has answered: approved=true', undefined], ['no longer open', undefined], ['', '']);
    await type('.ask:last-child form > input', 'other');
    await shows([ask('q5', { message: 'Delete 4 branches?' })], answered('q4', '<i>'));
    await seesReasons(
      ['ana@phone has answered: approved=true', undefined], ['no longer open', undefined],
      ['<i> has answered: approved=true', undefined], ['', ''],
    );
    await browser.run('const { now } = Date; Date.now = () => now() + 31_000');
    await eventually(async () => (await questions(browser)).length === 1, () => 'the ends stay');
    await seesReasons(['', '']);
  });

  it('are shown without a form with the view key', async (t) => {
    const board: FakeBoard = await openStates(t, browser, { name: 'job', asks: [ask('q1')] });
    board.canPress = false;
    board.show({ name: 'job', asks: [ask('q1')] });
    await seesQuestions(browser, (all) => assert.deepEqual(all, [
      { message: MESSAGE, badge: 'asked 3 min ago', values: [], buttons: [], refused: '', end: '' },
    ]));
  });
});
