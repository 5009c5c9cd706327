// The page of control-board in a browser: what users see and do, and what other pages cannot do.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { before, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../../control.ts';
import {
  defer, freePort, getInfo, launchSystem, makeFolder, startImpostor, startServer, startSystem, TOKEN,
  until,
} from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LOOPBACK_ONLY, startBrowser } from './browser.ts';
import { forSuite, INFO, LIMIT, startBoard, startFake, startFakeIn, startHost } from './helpers.ts';
import {
  activateButton, cards, confirm, eventually, FIND_FLAWS, FIND_FLAWS_OF_DIALOG, focused, grayButtons, lightness,
  orderOf, posted, press, problemOf, SECOND, sees, seesAll,
} from './page.ts';
import type { StartedBoard } from './helpers.ts';
import type { Browser } from './browser.ts';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';

const WRONG_KEY = 'The key is wrong: open the address that control-board prints';
const NO_KEY = 'The key is missing: open the address that control-board prints';

/** A system that does nothing. */
const IDLE = { step: () => sleep(50) };

/** Resolves names that end in .test to this machine. */
const RULES = `--host-resolver-rules=MAP *.test 127.0.0.1, ${LOOPBACK_ONLY}`;

/** The attempts of a foreign page. Returns what each could read. */
const ATTACK = `
  const [board, key] = arguments;
  const api = board + '/api/systems';
  const soon = (promise) => Promise.race([promise, new Promise((resolve) => setTimeout(resolve, 3000, 'nothing'))]);
  const read = async (url, options) => {
    try {
      const response = await fetch(url, { signal: AbortSignal.timeout(3000), ...options });
      if (response.ok) return 'read: ' + await response.text();
      return response.type === 'opaque' ? 'nothing' : String(response.status);
    } catch {
      return 'nothing';
    }
  };
  const load = (name, attributes) => soon(new Promise((resolve) => {
    const element = Object.assign(document.createElement(name), attributes);
    element.onload = () => resolve(name + ' loaded');
    element.onerror = () => resolve('nothing');
    document.body.append(element);
  }));
  const Authorization = 'Bearer ' + key;
  const results = {};
  for (const method of ['GET', 'POST']) {
    const url = method === 'GET' ? api : api + '/pause';
    results[method + ' simple'] = await read(url, { method });
    results[method + ' no-cors'] = await read(url, { method, mode: 'no-cors', credentials: 'include' });
    results[method + ' with the key'] = await read(url, { method, headers: { Authorization } });
    const init = { method, mode: 'no-cors', headers: { Authorization } };
    results[method + ' no-cors with the key'] = await read(url, init);
  }
  results.page = await read(board + '/');
  navigator.sendBeacon(api + '/pause', 'x');
  for (const url of [board + '/', api]) {
    results['img ' + url] = await load('img', { src: url });
    results['script ' + url] = await load('script', { src: url });
    results['style ' + url] = await load('link', { rel: 'stylesheet', href: url });
  }
  const frame = document.createElement('iframe');
  frame.name = 'frame';
  document.body.append(frame);
  const form = document.createElement('form');
  Object.assign(form, { method: 'post', target: 'frame', action: api + '/pause' });
  document.body.append(form);
  const submitted = new Promise((resolve) => frame.addEventListener('load', resolve, { once: true }));
  form.submit();
  await soon(submitted);
  const peek = (view) => {
    try {
      return 'read: ' + view.document.documentElement.outerHTML;
    } catch {
      return 'nothing';
    }
  };
  results.form = peek(frame.contentWindow);
  const framed = Object.assign(document.createElement('iframe'), { src: board + '/#' + key });
  const arrived = new Promise((resolve) => framed.addEventListener('load', resolve, { once: true }));
  document.body.append(framed);
  await soon(arrived);
  results.frame = peek(framed.contentWindow);
  results.frames = framed.contentWindow.length > 0 ? 'read: frames' : 'nothing';
  const popup = window.open(board + '/');
  await new Promise((resolve) => setTimeout(resolve, 500));
  results.popup = popup === null ? 'no popup' : peek(popup);
  popup?.close();
  results.events = await soon(new Promise((resolve) => {
    const events = new EventSource(api);
    events.onopen = () => resolve('read: events');
    events.onerror = () => { events.close(); resolve('nothing'); };
  }));
  results.socket = await soon(new Promise((resolve) => {
    const socket = new WebSocket(board.replace('http', 'ws') + '/api/systems');
    socket.onopen = () => resolve('read: socket');
    socket.onerror = () => resolve('nothing');
  }));
  return results;
`;

/** One browser runs all tests in sequence. */
describe('The page of control-board', { ...LIMIT, skip: lacks('chromium', 'chromedriver') }, () => {
  const suite = forSuite();
  let browser: Browser;

  before(async () => {
    browser = await startBrowser(suite, [RULES]);
  });

  const flaws: string[] = [];
  const earlier: string[] = []; // origins of boards that stopped while their pages were open

  /** Opens the page of a new board. Afterwards notes flaws: errors in the browser console, requests elsewhere. */
  const open = async (t: TestContext, ...args: StartArguments): Promise<StartedBoard> => {
    let origin = '';
    t.after(async () => { // before the board stops
      await browser.requests();
      const found = [...await browser.consoleErrors(), ...browser.origins]; // an error begins with a URL
      const own = found.filter((text) => text !== origin && !earlier.some((other) => text.startsWith(other)));
      flaws.push(...own.map((flaw) => `${t.name}: ${flaw}`));
      browser.origins.clear();
      earlier.push(origin);
    });
    const board = await startBoard(t, ...args);
    ({ origin } = new URL(board.url));
    await browser.open(`${board.url}#${board.key}`);
    return board;
  };

  it('pauses, resumes and saves with a reason, and shows the outcomes', async (t) => {
    t.mock.method(process, 'emitWarning', () => {}); // for the failing save
    const saving = defer<string>();
    let saves = 0;
    t.after(() => saving.resolve(''));
    const system = await launchSystem(t, {
      ...IDLE,
      saveState: () => [() => saving.promise, () => assert.fail('ENOSPC: no space left')][saves++]?.(),
    });
    const { port } = system.address;
    await open(t, [targetOf(port)], [], { CONTROL_BY: 'ana@sofa' });
    await sees(browser, ({ status }) => assert.equal(status, 'active'));

    await press(browser, 'Pause', 0, 'GPU needed & <b>more</b>');
    await sees(browser, ({ status, cause, buttons, sent }) => {
      assert.equal(status, 'paused');
      assert.match(cause, /^for \d s, by ana@sofa: GPU needed & <b>more<\/b>$/);
      assert.deepEqual(buttons, ['Resume', 'Save', 'Shut down']);
      assert.match(sent.join(), /^✓ paused \(\d+\.\d s\)$/);
    });
    assert.equal((await getInfo(port)).reason, 'GPU needed & <b>more</b>');

    await press(browser, 'Resume');
    await sees(browser, ({ status, cause, buttons, sent }) => {
      assert.equal(status, 'active');
      assert.match(cause, /^for \d s, by ana@sofa$/);
      assert.deepEqual(buttons, ['Pause', 'Save', 'Shut down']);
      assert.match(sent.join(), /^✓ active \(\d+\.\d s\)$/);
    });

    await press(browser, 'Save');
    await sees(browser, ({ sent, commands }) => {
      assert.deepEqual(sent, ['… save-state sent']);
      assert.match(commands[0] ?? '', /^save-state running, \d s ago by ana@sofa$/);
    });
    saving.resolve('states/<i>1</i>.json');
    await sees(browser, ({ sent, saved, level }) => {
      assert.match(saved, /^saved states\/<i>1<\/i>\.json, \d s ago$/);
      assert.match(sent.join(), /^✓ saved states\/<i>1<\/i>\.json \(\d+\.\d s\)$/);
      assert.equal(level, 'good');
    });
    await press(browser, 'Save');
    await sees(browser, ({ sent, saved, level, commands }) => {
      assert.equal(saved, 'save failed: ENOSPC: no space left');
      assert.deepEqual(sent, ['✗ not saved: ENOSPC: no space left']);
      assert.equal(level, 'bad');
      const [failed = '', done = ''] = commands;
      assert.match(failed, /^save-state failed after \d+\.\d\d s: ENOSPC: no space left, \d s ago by ana@sofa$/);
      assert.match(done, /^save-state done in \d+\.\d\d s: states\/<i>1<\/i>\.json, .* by ana@sofa$/);
    });
    assert.match(await browser.title(), /^failed – control-board$/);
  });

  it('asks for a reason before it pauses or shuts down', async (t) => {
    const { address: { port }, finished } = await launchSystem(t, IDLE, { name: 'trainer' });
    await open(t, [targetOf(port)], [], { CONTROL_BY: 'ana@sofa' });
    await sees(browser, ({ name, status }) => assert.deepEqual([name, status], ['trainer', 'active']));
    for (const verb of ['Pause', 'Shut down']) {
      const ways: [how: string, end: () => Promise<void>][] = [
        ['Cancel', () => browser.click('#cancel')], ['Escape', () => browser.press('typed', 'Escape')],
      ];
      for (const [how, end] of ways) {
        await browser.click('.body button', verb === 'Pause' ? 0 : 2);
        const dialog = await browser.findByRole('dialog', `${verb} trainer?`);
        const focus = verb === 'Pause' ? 'Reason' : 'Cancel'; // a second Enter must not end the program
        assert.deepEqual([await focused(browser), await browser.text('#confirm')], [focus, verb]);
        await end();
        const isClosed = (): Promise<boolean> => browser.run('return !arguments[0].open', dialog);
        await eventually(isClosed, () => `${how} does not close it`);
        assert.equal(await focused(browser), `${verb} trainer`, how);
        assert.deepEqual(await posted(browser), [], how);
      }
    }
    await browser.click('.body button', 0);
    await browser.click('#confirm'); // without a reason, not with the cancelled one
    await sees(browser, ({ status, cause }) => {
      assert.equal(status, 'paused');
      assert.match(cause, /^for \d s, by ana@sofa$/);
    });
    await browser.click('.body button', 2);
    await browser.press('Shift+Tab', 'done for today');
    await browser.click('#confirm');
    await finished;
    await sees(browser, ({ status, cause, commands, sent, isGray, level }) => {
      assert.deepEqual([status, isGray, level], ['ended', true, 'ended']);
      assert.match(cause, /^\d+ s ago by ana@sofa: done for today$/);
      assert.match(commands[0] ?? '', /^shutdown (done in|outcome unknown, )/);
      assert.match(sent.join(), /^✓ offline \(\d+\.\d s\)$/);
    });
    assert.equal(await focused(browser), 'Shut down trainer');
    assert.match(await browser.title(), /^ended – control-board$/);
  });

  it('does not pause and then resume on a double click or while Enter is held down', async (t) => {
    const port = await startSystem(t, IDLE);
    await open(t, [targetOf(port)]);
    await sees(browser, ({ status }) => assert.equal(status, 'active'));
    await browser.run(`
      window.clicks = [];
      addEventListener('click', ({ detail }) => window.clicks.push(detail), true);
    `);
    await browser.doubleClick('.body button', 0);
    assert.deepEqual(await browser.run('return window.clicks'), [1, 2]); // it was a real double click
    await browser.activate('#confirm');
    await sees(browser, ({ status }) => assert.equal(status, 'paused'));
    await browser.doubleClick('.body button', 0);
    await sees(browser, ({ status }) => assert.equal(status, 'active'));
    await until(async () => (await getInfo(port)).commands.every(({ state }) => state === 'done'));
    assert.deepEqual((await getInfo(port)).commands.map(({ command }) => command), ['pause', 'resume']);
    assert.equal((await posted(browser)).length, 2);
    const clicks = await browser.run<boolean>(`
      const repeated = { key: 'Enter', repeat: true, bubbles: true, cancelable: true };
      return document.querySelector('.body button').dispatchEvent(new KeyboardEvent('keydown', repeated));
    `);
    assert.equal(clicks, false);
  });

  it('does not confirm a shutdown on a double click', async (t) => {
    const { address: { port }, finished } = await launchSystem(t, IDLE);
    await open(t, [targetOf(port)]);
    await sees(browser, ({ status }) => assert.equal(status, 'active'));
    await browser.activate('.body button', 2);
    await browser.run(`
      const { left, top, width, height } = document.querySelector('#confirm').getBoundingClientRect();
      document.querySelector('#cancel').click();
      const place = 'position: fixed; left: ' + left + 'px; top: ' + top + 'px; width: ' + width + 'px;';
      document.querySelector('.body .danger').style.cssText = place + 'height: ' + height + 'px';
      window.clicks = [];
      addEventListener('click', ({ target, detail }) => window.clicks.push([target.id, detail]), true);
    `);
    await browser.doubleClick('.body .danger');
    assert.deepEqual(await browser.run('return window.clicks'), [['', 1], ['confirm', 2]]);
    assert.equal((await browser.findAll('dialog[open]')).length, 1);
    assert.deepEqual(await posted(browser), []);
    await browser.press('Enter');
    await finished;
  });

  it('reports a command as not sent if the system can no longer be controlled at the confirmation', async (t) => {
    const { running: { child }, port } = await startHost(t, 'step: () => sleep(50)');
    await open(t, [targetOf(port)]);
    await sees(browser, ({ status }) => assert.equal(status, 'active'));
    await browser.activate('.body button', 0);
    child.kill('SIGSTOP');
    await sees(browser, ({ status }) => assert.equal(status, 'no answer'));
    await confirm(browser);
    const isSaid = (text: RegExp) => async () => text.test(await browser.text('.body .unsent'));
    await eventually(isSaid(/^not sent: .+ can no longer be controlled$/), () => 'it is lost in silence');
    assert.deepEqual(await posted(browser), []);
  });

  it('commands all systems at once, and distinguishes systems of the same name by target', async (t) => {
    t.mock.method(process, 'emitWarning', () => {}); // for the failing pause
    const ports: number[] = [];
    for (const name of ['demo', 'demo', 'other']) {
      const onPaused = (): void => void (name === 'other' && assert.fail('GPU busy'));
      ports.push((await launchSystem(t, { ...IDLE, onPaused }, { name })).address.port);
    }
    await open(t, [...ports, await freePort()].map(targetOf));
    await seesAll(browser, (all) => {
      assert.deepEqual(all.map(({ status }) => status), ['active', 'active', 'active', 'offline']);
      assert.deepEqual(all.slice(0, 3).map(({ name }) => name), ['demo', 'demo', 'other']);
    });
    await browser.findByRole('button', 'Pause other');
    await browser.activate(await browser.findByRole('button', `Shut down demo at ${targetOf(ports[1] ?? 0)}`));
    await browser.findByRole('dialog', `Shut down demo at ${targetOf(ports[1] ?? 0)}?`);
    await browser.activate('#cancel');
    await browser.activate('summary');
    await browser.activate(await browser.findByRole('button', 'Pause all'));
    await browser.findByRole('dialog', 'Pause all 3 systems?');
    await confirm(browser, 'a storm');
    await seesAll(browser, (all) => {
      assert.deepEqual(all.map(({ status }) => status), ['paused', 'paused', 'active', 'offline']);
      assert.match(all[0]?.cause ?? '', /: a storm$/);
      assert.deepEqual(all[2]?.sent, ['✗ not paused: onPaused failed: GPU busy']);
      assert.deepEqual(all[3]?.sent, []);
    });
    assert.equal(await browser.text('#all .sent'), '✗ pause: 2 done · 1 failed');
    assert.deepEqual((await posted(browser)).map((url) => new URL(url).pathname), ['/api/systems/pause']);
    await posted(browser);
    await browser.activate(await browser.findByRole('button', 'Shut all down'));
    await browser.findByRole('dialog', 'Shut down all 3 systems?');
    await browser.activate('#confirm');
    await seesAll(browser, (all) => {
      assert.deepEqual(all.map(({ status }) => status), ['ended', 'ended', 'ended', 'offline']);
    });
    assert.deepEqual(await grayButtons(browser, '#all'), [true, true, true, true]);
    await posted(browser);
    await browser.activate(await browser.findByRole('button', 'Pause all'));
    assert.deepEqual(await posted(browser), []);
  });

  it('disables the save of a program that cannot save, and says why', async (t) => {
    const run = { pid: 1, started: '2026-11-21', canSave: false };
    const fake = await startFake(t, () => JSON.stringify({ ...INFO, name: 'job', detail: { run } }));
    const { client, address: { port } } = await launchSystem(t, IDLE, { name: 'trainer' });
    await open(t, [fake, port].map(targetOf));
    const isDisabled = async (name: string): Promise<boolean> => {
      return browser.run('return arguments[0].ariaDisabled === "true"', await browser.findByRole('button', name));
    };
    const descriptionOf = async (name: string): Promise<string> => browser.run(`
      const element = document.getElementById(arguments[0].getAttribute('aria-describedby'));
      return element.checkVisibility() ? element.innerText : '';
    `, await browser.findByRole('button', name));
    const hint = 'Cannot save: start control-run with\n--save-signal or --save-command';
    await eventually(() => isDisabled('Save job'));
    assert.equal(await descriptionOf('Save job'), hint);
    await seesAll(browser, ([job, trainer]) => {
      assert.deepEqual([job?.level, job?.isGray, trainer?.level], ['good', false, 'good']);
    });
    assert.deepEqual([await isDisabled('Save trainer'), await descriptionOf('Save trainer')], [false, '']);
    await browser.run('document.querySelector("[data-id=\\"0\\"] .body [data-command=pause]").focus()');
    await browser.press('Tab');
    assert.equal(await focused(browser), 'Save job', 'which has the reason');
    await browser.press('Enter');
    await browser.activate(await browser.findByRole('button', 'Save job'));
    assert.deepEqual(await posted(browser), []);

    await browser.activate('summary');
    assert.deepEqual([await isDisabled('Save all'), await descriptionOf('Save all')], [false, '']);
    await browser.activate(await browser.findByRole('button', 'Save all'));
    const isCounted = async (): Promise<boolean> => {
      return await browser.text('#all .sent') === '✓ save-state: 1 done · 1 cannot save';
    };
    await eventually(isCounted);
    await seesAll(browser, ([job]) => assert.deepEqual([job?.sent, job?.level], [[], 'good']));
    await client.shutdown();
    await eventually(() => isDisabled('Save all'));
    assert.equal(await descriptionOf('Save all'), hint);
    run.canSave = true;
    await eventually(async () => !await isDisabled('Save job'));
    assert.deepEqual([await descriptionOf('Save job'), await isDisabled('Save all')], ['', false]);
  });

  it('shows each status, also in the title and the icon', async (t) => {
    let status: SystemStatus = SystemStatus.ACTIVE;
    const { server, port } = await startServer(t, { systemStatus: () => status, name: 'one' });
    await open(t, [targetOf(port)]);
    const { ACTIVE, PAUSING, PAUSED, RESUMING, SHUTTING_DOWN } = SystemStatus;
    const table: [SystemStatus, toggle: string, level: string, isGray: boolean][] = [
      [ACTIVE, 'Pause', 'good', false], [PAUSING, 'Resume', 'warn', false], [PAUSED, 'Resume', 'warn', false],
      [RESUMING, 'Pause', 'warn', false], [SHUTTING_DOWN, 'Pause', 'warn', true],
    ];
    const icons = new Set<string>();
    for (const [next, ...others] of table) {
      const expected = [next.statusName, ...others];
      status = next;
      server.report({});
      server.hasCommands();
      await sees(browser, (card) => {
        const { status, buttons, level, isGray } = card;
        assert.deepEqual([status, buttons[0], level, isGray], expected);
      });
      assert.equal(await browser.title(), `${next} – control-board`);
      icons.add(await browser.run('return document.querySelector("link[rel=icon]").href'));
    }
    assert.equal(icons.size, 2);
  });

  it('distinguishes a silent system from a long step and from one that has died', async (t) => {
    const describe = 'describe: () => ({ pid: process.pid })';
    const mortal = await startHost(t, `step: () => sleep(50), ${describe}`);
    const busy = await startHost(t, 'step: () => block()');
    const { child } = mortal.running;
    await open(t, [mortal, busy].map(({ port }) => targetOf(port)));
    await seesAll(browser, ([first, second]) => {
      assert.deepEqual([first?.status, first?.rows[0]?.text], ['active', child.pid?.toLocaleString('en-US')]);
      assert.match(first?.place ?? '', new RegExp(`^process ${child.pid} on .* · localhost:${mortal.port}$`));
      assert.match(second?.step ?? '', /^in a step for \d+ s$/);
      assert.deepEqual([second?.status, second?.isGray, second?.level], ['active', false, 'good']);
    });

    child.kill('SIGSTOP');
    await sees(browser, ({ status, cause, isGray, level }) => {
      assert.deepEqual([status, isGray, level], ['no answer', true, 'bad']);
      assert.match(cause, /^for \d+ s$/);
    });
    assert.match(await browser.title(), /^no answer: .* – control-board$/);
    await posted(browser);
    for (const place of [0, 2]) await activateButton(browser, 0, place);
    assert.deepEqual(await posted(browser), [], 'gray buttons send nothing');
    child.kill('SIGCONT');
    await sees(browser, (card) => assert.deepEqual([card.status, card.isGray, card.step], ['active', false, '']));

    child.kill('SIGKILL');
    await sees(browser, ({ status, cause, isGray, level }) => {
      assert.deepEqual([status, isGray, level], ['offline', true, 'bad']);
      assert.match(cause, /^for \d+ s$/);
    });
  });

  it('shows systems that it cannot control', async (t) => {
    const closed = await startServer(t, { token: TOKEN });
    const unknown = await startImpostor(t, 200, { status: '<b>dancing</b>', commands: [] });
    await open(t, [closed.port, unknown].map(targetOf));
    await seesAll(browser, ([first, second]) => {
      assert.equal(first?.status, 'missing or wrong token');
      assert.deepEqual([first?.isGray, first?.level], [true, 'bad']);
      assert.equal(second?.status, 'unknown');
      assert.match(second?.error ?? '', /^the status must be one of .*, got '<b>dancing<\/b>'$/);
      assert.equal(second?.level, 'bad');
    });
    assert.equal(await browser.title(), '1 missing or wrong token · 1 unknown – control-board');
  });

  it('keeps a system that is gone while a dialog about it is open', { skip: lacks('Unix') }, async (t) => {
    const folder = makeFolder(t);
    await open(t, [], ['--dir', folder]);
    await eventually(async () => await browser.title() === 'no systems – control-board');
    assert.equal(await browser.text('#summary'), 'no systems');
    const end = await startFakeIn(t, folder, 'job-1');
    await startFakeIn(t, folder, 'other-2');
    await seesAll(browser, (all) => assert.deepEqual(all.map(({ status }) => status), ['active', 'active']));
    await browser.activate(await browser.findByRole('button', 'Shut down job-1'));
    end();
    await startFakeIn(t, folder, 'job-3'); // replaces the ended one
    await seesAll(browser, (all) => {
      assert.deepEqual(all.map(({ name, isGray }) => [name, isGray]), [
        ['job-1', true], ['other-2', false], ['job-3', false],
      ]);
    });
    await browser.run(SECOND);
    assert.equal((await cards(browser)).length, 3, 'nothing moves');
    await confirm(browser);
    await seesAll(browser, (all) => assert.deepEqual(all.map(({ name }) => name), ['other-2', 'job-3']));
    assert.equal(await browser.text('#unsent'), 'not sent: job-1 can no longer be controlled');
    assert.deepEqual(await posted(browser), []);
    await browser.activate(await browser.findByRole('button', 'Save job-3'));
    await eventually(async () => await browser.text('#unsent') === '', () => 'it is still said');
  });

  it('removes the key from the address bar and keeps it for this tab', async (t) => {
    const port = await startSystem(t, IDLE);
    const { url, key } = await open(t, [targetOf(port)]);
    await sees(browser, ({ status }) => assert.equal(status, 'active'));
    assert.equal(await browser.url(), url);
    assert.ok(!(await browser.requests()).join().includes(key));
    await browser.run('window.isOld = true; location.reload()');
    await eventually(() => browser.run<boolean>('return window.isOld === undefined'));
    await sees(browser, ({ status }) => assert.equal(status, 'active'));
    await browser.run('window.isOld = true; location.hash = "#another-key-0123456789"');
    await eventually(() => browser.run<boolean>('return window.isOld === undefined'));
    await eventually(async () => await problemOf(browser) === WRONG_KEY);
    assert.equal(await browser.url(), url);
    assert.deepEqual(await cards(browser), []);
    assert.match(await browser.title(), /^no data – control-board$/);
    await browser.consoleErrors(); // drops the 401
    await browser.run('location.hash = arguments[0]', key);
    await sees(browser, ({ status }) => assert.equal(status, 'active'));

    const first = await browser.window();
    await browser.newWindow();
    await browser.open(url);
    await eventually(async () => await problemOf(browser) === NO_KEY);
    await browser.open('about:blank');
    await browser.switchTo(first);
  });

  it('does not report the board as lost when the tab comes to the foreground', async (t) => {
    const { port } = await startServer(t); // nothing changes, so there is no news
    await open(t, [targetOf(port)]);
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

  it('reconnects to a restarted board with the same key, and reports a wrong key otherwise', async (t) => {
    const port = await startSystem(t, IDLE);
    const keyFile = join(makeFolder(t), 'key');
    const board = await open(t, [targetOf(port)], ['--key-file', keyFile]);
    await sees(browser, ({ status }) => assert.equal(status, 'active'));
    board.running.child.kill('SIGKILL');
    await eventually(async () => /^no response from control-board/.test(await problemOf(browser)));
    await sees(browser, ({ isGray, level }) => assert.deepEqual([isGray, level], [true, 'none']));
    assert.match(await browser.title(), /^no data – control-board$/);
    let problem = '';
    await eventually(async () => {
      problem = await problemOf(browser);
      return /^no response from control-board for \d+ s$/.test(problem);
    }, () => problem);
    await browser.requests();
    await browser.activate('#systems button', 0);
    assert.deepEqual(await posted(browser), []);
    const again = ['--key-file', keyFile, '--listen', `localhost:${board.port}`];
    const { running } = await startBoard(t, [targetOf(port)], again);
    await eventually(async () => await problemOf(browser) === '');
    await sees(browser, ({ status, isGray }) => assert.deepEqual([status, isGray], ['active', false]));

    running.child.kill('SIGKILL');
    await running.ended;
    await startBoard(t, [targetOf(port)], ['--listen', `localhost:${board.port}`]); // with a new key
    await eventually(async () => await problemOf(browser) === WRONG_KEY);
    await sees(browser, ({ isGray, level }) => assert.deepEqual([isGray, level], [true, 'none']));
    await posted(browser);
    await activateButton(browser, 0, 0);
    assert.deepEqual(await posted(browser), []);
    await browser.consoleErrors(); // drops those of the failed requests
  });

  it('shows the detail with plots of its numbers', async (t) => {
    let count = 1000;
    const describe = (): unknown => {
      count += 1;
      const detail = {
        word: 'cart pole', nested: { a: [1, null] }, no: null, yes: true, loss: 1 / count,
        huge: count % 2 === 0 ? 1.7e308 : -1.7e308, constructor: -count, '': count / 2, toString: 'text',
      };
      return Object.defineProperty(detail, '__proto__', { value: count, enumerable: true });
    };
    const port = await startSystem(t, { ...IDLE, describe });
    await open(t, [targetOf(port)]);
    await sees(browser, ({ rows }) => {
      const shown = new Map(rows.map(({ name, text, plot }) => [name, [text, plot !== null]]));
      for (const [name, text] of [
        ['word', 'cart pole'], ['nested', '{"a":[1,null]}'], ['no', 'null'], ['yes', 'true'], ['toString', 'text'],
      ] as const) assert.deepEqual(shown.get(name), [text, false]);
      for (const name of ['loss', 'huge', '__proto__', 'constructor', 'detail']) {
        assert.ok(shown.get(name)?.[1], `${name} has no plot`);
      }
      assert.match(String(shown.get('__proto__')?.[0]), /^1,\d{3}$/);
      assert.match(String(shown.get('loss')?.[0]), /^0\.000\d+$/);
    });
    const plotOf = async (name: string): Promise<string> => {
      const [card] = await cards(browser);
      return card?.rows.find((row) => row.name === name)?.plot ?? '';
    };
    await until(async () => (await plotOf('__proto__')).split('L').length > 3); // it changes every second
    assert.match(await plotOf('huge'), /^M[\d.L ]+$/);
    const label = await browser.run<string>(`
      const plots = [...document.querySelectorAll('svg')];
      return plots.find(({ ariaLabel }) => ariaLabel?.startsWith('__proto__')).ariaLabel;
    `);
    assert.match(label, /^__proto__ over the last \d s: 1,\d+ to 1,\d+$/);
  });

  it('shows any text from a system as text, at 360 and 1280 pixels, light and dark', async (t) => {
    const html = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>';
    const long = 'w'.repeat(10_000);
    const times = { at: new Date().toISOString(), seconds: 1.5 };
    const body = (name: string, text: string = name): object => ({
      name, status: 'active', since: 'yesterday', by: text, reason: text, pid: text, host: text, heardAt: 7,
      detail: { [text]: text, number: 9_007_199_254_740_991, [`${text}2`]: -1.234_567_89e-300, list: [text] },
      commands: [
        { command: 'save-state', state: 'done', value: text, by: text, reason: text, ...times },
        { command: 'save-state', state: 'failed', error: text, ...times },
        { command: text, state: 'constructor', ...times }, { command: '', state: '__proto__' },
        null, 7, { command: 'resume', state: 'done', at: {}, seconds: '1' },
      ],
      state: 'done', value: text,
    });
    const ports = [await startImpostor(t, 200, body(html)),
      await startImpostor(t, 200, body(long, long.slice(0, 2000))),
      await startImpostor(t, 500, { error: html }), await startImpostor(t, 500, { error: long }),
      await startImpostor(t, 200, { status: long, commands: 'none', detail: 7, name: { html } })];
    await open(t, ports.map(targetOf));
    await seesAll(browser, (all) => {
      assert.equal(all.length, 5);
      assert.equal(all[0]?.name, html);
      assert.equal(all[1]?.name, `${'w'.repeat(200)}…`);
      assert.equal(all[0]?.rows[0]?.name, html);
      assert.equal(all[0]?.rows[0]?.text, html);
      assert.ok(all[0]?.cause.includes(html));
      assert.ok(all[2]?.error.includes(html));
      const commands = all.flatMap((card) => card.commands).join('\n');
      assert.doesNotMatch(commands, /native code|function|\[object|undefined|NaN/);
    });
    for (const index of [0, 1, 3]) await activateButton(browser, index, 1);
    await seesAll(browser, (all) => {
      for (const index of [0, 1, 3]) assert.notEqual(all[index]?.sent.join('').replace(/^….*/, ''), '');
    });
    await browser.activate('summary');
    for (const dark of [false, true]) {
      await browser.emulate({ dark });
      for (const width of [360, 1280]) {
        await browser.resize(width, 800);
        assert.deepEqual(await browser.run(FIND_FLAWS), [], `${width} px`);
      }
      const [page, text, scheme] = await browser.run<string[]>(`
        const { backgroundColor, color } = getComputedStyle(document.body);
        return [backgroundColor, color, getComputedStyle(document.querySelector('.body button')).color];
      `);
      assert.deepEqual([page, text, scheme].map((color) => lightness(color ?? '') > 128), [!dark, dark, dark]);
    }
    await activateButton(browser, 1, 2);
    await browser.find('dialog[open]');
    await browser.resize(360, 640);
    assert.deepEqual(await browser.run(FIND_FLAWS_OF_DIALOG), []);
    await browser.press('Escape');
    await browser.emulate({});
    await browser.resize(1280, 800);
    assert.equal(await browser.run('return window.hacked ?? null'), null);
    assert.deepEqual(await browser.findAll('#systems img, #systems script:not(:empty), body > img'), []);
  });

  it('works by keyboard alone, and keeps the focus', async (t) => {
    const first = await launchSystem(t, IDLE, { name: 'one' });
    const second = await launchSystem(t, IDLE, { name: 'two' });
    await open(t, [first, second].map(({ address }) => targetOf(address.port)));
    await seesAll(browser, (all) => assert.deepEqual(all.map(({ status }) => status), ['active', 'active']));
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
    await seesAll(browser, ([, two]) => {
      assert.equal(two?.status, 'paused');
      assert.match(two?.cause ?? '', /: by hand$/);
    });
    assert.equal(await focused(browser), 'Resume two'); // the same button
    await eventually(async () => (await orderOf(browser)).join() === 'two,one', () => 'the worst is not the first');
    assert.equal(await focused(browser), 'Resume two');
    await browser.press(' ');
    await seesAll(browser, ([, two]) => assert.equal(two?.status, 'active'));
    assert.equal(await focused(browser), 'Pause two');
    await browser.press('Tab', 'Tab', ' ', 'Tab');
    assert.equal(await focused(browser), 'Shut down');
    await browser.press('Enter');
    await second.finished;
    await seesAll(browser, ([, two]) => assert.deepEqual([two?.status, two?.isGray], ['ended', true]));
    assert.equal(await focused(browser), 'Shut down two');
    assert.equal(await browser.title(), 'active: one – control-board');
    await posted(browser);
    await browser.press('Enter');
    await browser.press('Shift+Tab', ' ');
    assert.deepEqual(await posted(browser), []);
    assert.equal(await focused(browser), 'Save two');
    const outline = 'return getComputedStyle(document.activeElement).outlineStyle';
    assert.equal(await browser.run(outline), 'solid');
  });

  it('is out of reach of other pages in the same browser, under any host name, and so are its systems', async (t) => {
    const { port } = await startServer(t, { maxQueueSize: 1000 });
    const board = await startBoard(t, [targetOf(port)]);
    t.after(() => browser.open('about:blank'));
    const attacker = createServer((_, response) => {
      response.setHeader('Content-Type', 'text/html').end('<title>evil</title><body>evil');
    });
    t.after(() => attacker.close().closeAllConnections());
    await once(attacker.listen(0, '127.0.0.1'), 'listening');
    const { port: evilPort } = attacker.address() as AddressInfo;
    const pages = [`http://localhost:${evilPort}/`, `http://evil.test:${evilPort}/`];
    for (const page of pages) {
      await browser.open(page);
      assert.equal(await browser.title(), 'evil');
      await browser.requests();
      const results = await browser.run<Record<string, string>>(ATTACK, board.url, board.key);
      assert.ok(Object.keys(results).length >= 18);
      for (const [attempt, result] of Object.entries(results)) assert.equal(result, 'nothing', `${page} ${attempt}`);
      const tried = (await browser.requests()).filter((url) => url.includes(`:${board.port}/`));
      assert.ok(tried.length >= 15, `the attempts have left the page: ${tried}`);
    }

    // DNS rebinding: the name of the foreign page now resolves to the board.
    await browser.open(`http://evil.test:${board.port}/`);
    const text = await browser.run<string>('return document.body.innerText');
    assert.match(text, /Host not allowed/);
    const codes = await browser.run<number[]>(`
      const headers = { Authorization: 'Bearer ' + arguments[0] };
      const requests = ['/', '/api/systems'].map((path) => fetch(path, { headers }));
      for (const init of [{ headers }, {}]) requests.push(fetch('/api/systems/pause', { method: 'POST', ...init }));
      return Promise.all(requests.map(async (request) => (await request).status));
    `, board.key);
    assert.deepEqual(codes, [403, 403, 403, 403]);
    assert.deepEqual((await getInfo(port)).commands, []);

    await browser.open(board.url); // its own page has access
    const status = await browser.run<number>(`
      const headers = { Authorization: 'Bearer ' + arguments[0] };
      return (await fetch('/api/systems/pause', { method: 'POST', headers })).status;
    `, board.key);
    assert.equal(status, 202);
    await until(async () => (await getInfo(port)).commands.length === 1);
  });

  it('is empty without the key, and runs no injected code', async (t) => {
    const { port } = await startServer(t, { name: 'top-secret-name' });
    const board = await startBoard(t, [targetOf(port)]);
    t.after(() => browser.open('about:blank'));
    const checkEmpty = async (): Promise<void> => {
      assert.deepEqual(await browser.findAll('#systems *'), []);
      const html = await browser.run<string>('return document.documentElement.outerHTML');
      assert.doesNotMatch(html, /top-secret-name/);
    };
    await browser.open(board.url);
    await eventually(async () => await problemOf(browser) === NO_KEY);
    await checkEmpty();
    await browser.open(`${board.url}?#${board.key}x`);
    await eventually(async () => await problemOf(browser) === WRONG_KEY);
    await checkEmpty();
    const { violations, ...effects } = await browser.run<{ violations: string[] }>(`
      const violations = [];
      addEventListener('securitypolicyviolation', (event) => violations.push(event.effectiveDirective));
      const attempt = (work) => { try { return work(); } catch (error) { return error.name; } };
      const add = (name, set) => attempt(() => {
        const element = document.createElement(name);
        attempt(() => set(element));
        document.body.append(element);
      });
      add('script', (script) => script.append('window.injected = 1'));
      add('script', (script) => { script.textContent = 'window.injected = 2'; });
      add('script', (script) => { script.src = 'data:text/javascript,window.injected=3'; });
      const same = (text) => text;
      const trusted = trustedTypes.createPolicy('test', { createScript: same, createScriptURL: same });
      add('script', (script) => { script.textContent = trusted.createScript('window.injected = 6'); });
      add('script', (script) => { script.src = trusted.createScriptURL(location.origin + '/x.js'); });
      add('img', (image) => {
        image.setAttribute('onerror', trusted.createScript('window.injected = 7'));
        image.src = 'data:image/png,x';
      });
      add('style', (style) => { style.textContent = 'body { outline: 7px solid red }'; });
      add('img', (image) => { image.setAttribute('onerror', 'window.injected = 4'); image.src = 'data:x'; });
      add('img', (image) => { image.src = location.origin + '/x.png'; });
      add('iframe', (frame) => { frame.src = location.origin + '/'; });
      add('base', (base) => { base.href = 'http://evil.test/'; });
      document.body.setAttribute('style', 'outline: 8px solid red');
      const html = attempt(() => { document.body.innerHTML = '<b>x</b>'; return 'set'; });
      const evaluated = await new Promise((resolve) => { // later: scripts of WebDriver itself may call eval()
        setTimeout(() => resolve(attempt(() => eval('window.injected = 5; "run"'))));
      });
      const connected = await fetch('http://127.0.0.1:1/').then(() => 'sent', (error) => error.name);
      await new Promise((resolve) => setTimeout(resolve, 500));
      const styled = getComputedStyle(document.body).outlineStyle;
      return { injected: window.injected ?? null, html, evaluated, connected, styled, violations };
    `) as { violations: string[]; [name: string]: unknown };
    assert.equal(effects['injected'], null);
    assert.notEqual(effects['html'], 'set');
    assert.notEqual(effects['evaluated'], 'run');
    assert.notEqual(effects['connected'], 'sent');
    assert.equal(effects['styled'], 'none');
    for (const directive of [
      'script-src-elem', 'script-src-attr', 'style-src-elem', 'style-src-attr', 'connect-src', 'img-src', 'base-uri',
      'require-trusted-types-for',
    ]) {
      assert.ok(violations.includes(directive), `${directive}: ${violations}`);
    }
    assert.deepEqual((await getInfo(port)).commands, []);
  });

  it('leaves no errors in the browser console, and sends no requests elsewhere', () => {
    assert.deepEqual(flaws, []); // over all tests
  });
});

type StartArguments = [targets: readonly string[], options?: readonly string[], env?: NodeJS.ProcessEnv];

function targetOf(port: number): string {
  return `localhost:${port}`;
}
