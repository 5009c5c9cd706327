import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../../../control.ts';
import { startBoard } from './helpers.ts';
import { startBrowser } from './browser.ts';
import {
  defer, freePort, getInfo, lacks, lacksSockets, launchSystem, makeFolder, start, startImpostor, startOldServer,
  startServer, startSystem, TOKEN, until,
} from '../../helpers.ts';
import type { StartedBoard } from './helpers.ts';
import type { Browser, Element } from './browser.ts';
import type { Running, StartedServer } from '../../helpers.ts';
import type { IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';

const skip = lacks('chromium', 'chromedriver');

describe('the page of control-board', { concurrency: 2 }, () => {
  describe('commands and states', { skip, concurrency: 1 }, () => {
    const use = prepareBrowser();

    it('pauses, resumes and saves with a reason, and shows what came of it', async (t) => {
      const saving = defer<string>();
      let saves = 0;
      t.after(() => saving.resolve(''));
      const system = await launchSystem(t, {
        saveState: () => [() => saving.promise, () => assert.fail('ENOSPC: no space left')][saves++]?.(),
      });
      const { port } = system.address;
      const { browser } = await use(t, [targetOf(port)], [], { CONTROL_BY: 'ana@sofa' });
      await sees(browser, ({ status }) => assert.equal(status, 'active'));
      const reason = await browser.find('#systems input');

      await browser.click(reason);
      await browser.press('GPU needed & <b>more</b>');
      await press(browser, 'Pause');
      await sees(browser, ({ status, cause, buttons, sent }) => {
        assert.equal(status, 'paused');
        assert.match(cause, /^for \d s, by ana@sofa: GPU needed & <b>more<\/b>$/);
        assert.deepEqual(buttons, ['Resume', 'Save', 'Shut down']);
        assert.match(sent.join(), /^✓ paused \(\d+\.\d s\)$/);
      });
      assert.equal(await valueOf(browser, reason), '');
      assert.equal((await getInfo(port)).reason, 'GPU needed & <b>more</b>');

      await press(browser, 'Resume');
      await sees(browser, ({ status, cause, buttons, sent }) => {
        assert.equal(status, 'active');
        assert.match(cause, /^for \d s, by ana@sofa$/);
        assert.deepEqual(buttons, ['Pause', 'Save', 'Shut down']);
        assert.match(sent.join(), /^✓ active \(\d+\.\d s\)$/);
      });

      await browser.click(reason);
      await browser.press('before noon');
      await press(browser, 'Save');
      await sees(browser, ({ sent, commands }) => {
        assert.deepEqual(sent, ['… save-state sent']);
        assert.match(commands[0] ?? '', /^save-state running, \d s ago by ana@sofa: before noon$/);
      });
      saving.resolve('states/<i>1</i>.json');
      await sees(browser, ({ sent, level }) => {
        assert.match(sent.join(), /^✓ saved states\/<i>1<\/i>\.json \(\d+\.\d s\)$/);
        assert.equal(level, 'good');
      });
      await press(browser, 'Save');
      await sees(browser, ({ sent, level, commands }) => {
        assert.deepEqual(sent, ['✗ not saved: ENOSPC: no space left']);
        assert.equal(level, 'bad');
        const [failed = '', done = ''] = commands;
        assert.match(failed, /^save-state failed after \d+\.\d\d s: ENOSPC: no space left, \d s ago by ana@sofa$/);
        assert.match(done, /^save-state done in \d+\.\d\d s: states\/<i>1<\/i>\.json, .* by ana@sofa: before noon$/);
      });
      assert.match(await browser.title(), /^failed – control-board$/);
      await press(browser, 'Pause');
      await sees(browser, ({ status }) => assert.equal(status, 'paused'));
      await press(browser, 'Resume');
      await sees(browser, ({ commands, level }) => {
        assert.deepEqual(commands.map((line) => line.split(' ', 2).join(' ')), [
          'resume done', 'pause done', 'save-state failed', 'save-state done', 'resume done',
        ]); // the first pause is the sixth
        assert.equal(level, 'good');
      });
    });

    it('shuts down only after a question', async (t) => {
      const { address: { port }, finished } = await launchSystem(t, {}, { name: 'trainer' });
      const { browser } = await use(t, [targetOf(port)]);
      await sees(browser, ({ name, status }) => assert.deepEqual([name, status], ['trainer', 'active']));
      const ways: [how: string, end: () => Promise<void>][] = [
        ['Cancel', () => browser.click('#cancel')], ['Escape', () => browser.press('Escape')],
      ];
      for (const [how, end] of ways) {
        await press(browser, 'Shut down');
        const dialog = await browser.findByRole('dialog', 'Shut down trainer?');
        await end();
        await until(() => browser.run<boolean>('return !arguments[0].open', dialog), () => `${how} does not close it`);
        assert.equal(await focused(browser), 'Shut down trainer', how);
        assert.deepEqual(await posted(browser), [], how);
      }
      await browser.click('#systems input');
      await browser.press('done for today');
      await press(browser, 'Shut down');
      await browser.click('#confirm');
      await finished;
      await sees(browser, ({ status, cause, commands, sent, isGrey, level }) => {
        assert.deepEqual([status, isGrey, level], ['offline', true, 'bad']);
        assert.match(cause, /^for \d+ s, by .+: done for today$/);
        assert.match(commands[0] ?? '', /^shutdown (done in|outcome unknown, )/);
        assert.match(sent.join(), /^✓ offline \(\d+\.\d s\)$/);
      });
      assert.equal(await focused(browser), 'Shut down trainer');
      assert.match(await browser.title(), /^offline – control-board$/);
    });

    it('tells systems of one name apart by their targets', async (t) => {
      const ports: number[] = [];
      for (const name of ['demo', 'demo', 'other']) {
        ports.push((await launchSystem(t, {}, { name })).address.port);
      }
      const { browser } = await use(t, ports.map(targetOf));
      await seesAll(browser, (all) => assert.deepEqual(all.map(({ name }) => name), ['demo', 'demo', 'other']));
      await browser.findByRole('button', 'Pause other');
      await browser.click(await browser.findByRole('button', `Shut down demo at ${targetOf(ports[1] ?? 0)}`));
      await browser.findByRole('dialog', `Shut down demo at ${targetOf(ports[1] ?? 0)}?`);
      await browser.click('#cancel');
    });

    it('does not pause and resume at a double click, or while Enter is held down', async (t) => {
      const port = await startSystem(t);
      const { browser } = await use(t, [targetOf(port)]);
      await sees(browser, ({ status }) => assert.equal(status, 'active'));
      await browser.run(`
        window.clicks = [];
        addEventListener('click', ({ detail }) => window.clicks.push(detail), true);
      `);
      await browser.doubleClick('#systems button', 0);
      assert.deepEqual(await browser.run('return window.clicks'), [1, 2]); // otherwise it was none
      await sees(browser, ({ status }) => assert.equal(status, 'paused'));
      await until(async () => (await getInfo(port)).commands.every(({ state }) => state === 'done'));
      assert.deepEqual((await getInfo(port)).commands.map(({ command }) => command), ['pause']);
      assert.equal((await posted(browser)).length, 1);
      const clicks = await browser.run<boolean>(`
        const repeated = { key: 'Enter', repeat: true, bubbles: true, cancelable: true };
        return document.querySelector('#systems button').dispatchEvent(new KeyboardEvent('keydown', repeated));
      `);
      assert.equal(clicks, false);
    });

    it('sends a command to all systems', async (t) => {
      const failing = await startSystem(t, { onPaused: () => Promise.reject(new Error('GPU busy')) });
      const ports = [await startSystem(t), await startSystem(t), failing];
      const absent = await freePort();
      const { browser } = await use(t, [...ports, absent].map(targetOf));
      await seesAll(browser, (all) => {
        assert.deepEqual(all.map(({ status }) => status), ['active', 'active', 'active', 'offline']);
      });
      await browser.click('summary');
      await browser.click('#all input');
      await browser.press('a storm');
      await browser.click(await browser.findByRole('button', 'Pause all'));
      await seesAll(browser, (all) => {
        assert.deepEqual(all.map(({ status }) => status), ['paused', 'paused', 'active', 'offline']);
        assert.match(all[0]?.cause ?? '', /: a storm$/);
        assert.deepEqual(all[2]?.sent, ['✗ not paused: onPaused failed: GPU busy']);
        assert.deepEqual(all[3]?.sent, []);
      });
      assert.equal(await browser.text('#all .sent'), '✗ pause: 2 done · 1 failed');
      assert.equal(await valueOf(browser, '#all input'), '');
      assert.deepEqual((await posted(browser)).map((url) => new URL(url).pathname), ['/api/systems/pause']);
      await browser.click(await browser.findByRole('button', 'Resume all'));
      await seesAll(browser, (all) => {
        assert.deepEqual(all.map(({ status }) => status), ['active', 'active', 'active', 'offline']);
      });
      await browser.click(await browser.findByRole('button', 'Save all'));
      await seesAll(browser, (all) => assert.match(all[0]?.sent.join() ?? '', /^✓ saved/));
      await posted(browser);
      await browser.click(await browser.findByRole('button', 'Shut all down'));
      await browser.findByRole('dialog', 'Shut down all 3 systems?');
      await browser.click('#cancel');
      assert.deepEqual(await posted(browser), []);
      await browser.click(await browser.findByRole('button', 'Shut all down'));
      await browser.click('#confirm');
      await seesAll(browser, (all) => {
        assert.deepEqual(all.map(({ status }) => status), ['offline', 'offline', 'offline', 'offline']);
      });
      assert.deepEqual(await greyButtons(browser, '#all'), [true, true, true, true]);
      await posted(browser);
      await browser.click(await browser.findByRole('button', 'Pause all'));
      assert.deepEqual(await posted(browser), []);
      assert.equal(await valueOf(browser, '#all input'), '');
    });

    it('shows each status, in the title and the icon, too', async (t) => {
      let status: SystemStatus = SystemStatus.ACTIVE;
      const { server, port } = await startServer(t, { systemStatus: () => status, name: 'one' });
      const { browser } = await use(t, [targetOf(port)]);
      const { ACTIVE, PAUSING, PAUSED, RESUMING, SHUTTING_DOWN } = SystemStatus;
      const table: [SystemStatus, toggle: string, level: string, isGrey: boolean][] = [
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
          const { status, buttons, level, isGrey } = card;
          assert.deepEqual([status, buttons[0], level, isGrey], expected);
        });
        assert.equal(await browser.title(), `${next} – control-board`);
        icons.add(await browser.run('return document.querySelector("link[rel=icon]").href'));
      }
      assert.equal(icons.size, 2);
    });

    it('tells a system that is silent from one in a long step', async (t) => {
      const hung = startHost(t, 'await launch({ step: () => setTimeout(1), onListening }, config)');
      const busy = startHost(t, `
        let steps = 0;
        const block = () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
        const step = () => (steps++ < 20 ? setTimeout(1) : block());
        await launch({ step, onListening }, config);
      `);
      const ports = [await portOf(hung), await portOf(busy)];
      const { browser } = await use(t, ports.map(targetOf));
      await seesAll(browser, ([first, second]) => {
        assert.equal(first?.status, 'active');
        assert.match(second?.step ?? '', /^in a step for \d+ s$/);
        assert.deepEqual([second?.status, second?.isGrey, second?.level], ['active', false, 'good']);
      });
      hung.child.kill('SIGSTOP');
      await sees(browser, ({ status, cause, isGrey, level }) => {
        assert.deepEqual([status, isGrey, level], ['no answer', true, 'bad']);
        assert.match(cause, /^for \d s$/);
      });
      assert.match(await browser.title(), /^no answer: .* – control-board$/);
      await posted(browser);
      await browser.click('#systems button', 0);
      await browser.click('#systems button', 2);
      assert.deepEqual(await posted(browser), []);
      hung.child.kill('SIGCONT');
      await sees(browser, (card) => {
        assert.deepEqual([card.status, card.isGrey, card.step], ['active', false, '']);
      });
    });

    it('shows systems that it cannot control, and those of version 0.2', async (t) => {
      const closed = await startServer(t, { token: TOKEN });
      const unknown = await startImpostor(t, 200, { status: '<b>dancing</b>', commands: [] });
      const old = await startOldServer(t);
      const { browser } = await use(t, [closed.port, unknown, old.port].map(targetOf));
      await seesAll(browser, ([first, second, third]) => {
        assert.equal(first?.status, 'missing or wrong token');
        assert.deepEqual([first?.isGrey, first?.level], [true, 'bad']);
        assert.equal(second?.status, 'unknown');
        assert.match(second?.error ?? '', /^the status must be one of .*, got '<b>dancing<\/b>'$/);
        assert.equal(second?.level, 'bad');
        assert.deepEqual([third?.status, third?.isGrey, third?.rows.length], ['active', false, 0]);
      });
      assert.equal(await browser.title(), '1 missing or wrong token · 1 unknown – control-board');
      await browser.click('#systems article:nth-child(3) button', 0);
      await seesAll(browser, ([, , third]) => {
        assert.equal(third?.status, 'paused');
        assert.match(third?.cause ?? '', /^for \d s$/);
        assert.match(third?.sent.join() ?? '', /^✓ paused/);
      });
      assert.deepEqual(old.posted, ['pause']);
    });

    it('shows the systems of a folder as they come and go', { skip: lacksSockets() }, async (t) => {
      const folder = makeFolder(t);
      const { browser } = await use(t, [], ['--dir', folder]);
      await until(async () => await browser.title() === 'no systems – control-board');
      assert.equal(await browser.text('#summary'), 'no systems');
      assert.deepEqual(await cards(browser), []);
      const startIn = (name: string): Promise<StartedServer> => startServer(t, { socketPath: `${folder}/`, name });
      const first = await startIn('first');
      await sees(browser, ({ name, status, isGrey }) => {
        assert.deepEqual([name, status, isGrey], ['first', 'active', false]);
      });
      await press(browser, 'Pause');
      assert.equal(await first.server.nextCommand(), 'pause');
      await first.server.close();
      const ended = await Promise.all(Array.from({ length: 16 }, (_, index) => startFakeIn(t, folder, `${index}`)));
      await seesAll(browser, (all) => {
        assert.deepEqual([all.length, all[0]?.status], [17, 'offline']);
        assert.ok(all.slice(1).every(({ status }) => status === 'active'));
      });
      for (const end of ended) end();
      await seesAll(browser, (all) => assert.ok(all.every(({ status }) => status === 'offline')));
      await startIn('last');
      await seesAll(browser, (all) => {
        assert.deepEqual([all.length, all.at(-1)?.name, all.at(-1)?.status], [17, 'last', 'active']);
        assert.ok(all.every(({ name }) => name !== 'first'));
      });
    });

    it('shows a system that dies and comes back', async (t) => {
      const source = `
        const describe = () => ({ pid: process.pid });
        await launch({ step: () => setTimeout(1), onListening, describe }, config);
      `;
      const first = startHost(t, source);
      const port = await portOf(first);
      const { browser } = await use(t, [targetOf(port)]);
      await sees(browser, ({ status, rows, place }) => {
        assert.deepEqual([status, rows[0]?.text], ['active', first.child.pid?.toLocaleString('en-US')]);
        assert.match(place, new RegExp(`^process ${first.child.pid} on .* · localhost:${port}$`));
      });
      first.child.kill('SIGKILL');
      await sees(browser, ({ status, cause, isGrey, level }) => {
        assert.deepEqual([status, isGrey, level], ['offline', true, 'bad']);
        assert.match(cause, /^for \d s$/);
      });
      await browser.click('#systems button', 0);
      await browser.click('#systems button', 1);
      await browser.click('#systems button', 2);
      assert.deepEqual(await posted(browser), []);
      const second = startHost(t, source, port);
      await sees(browser, ({ status, isGrey, rows }) => {
        assert.deepEqual([status, isGrey, rows[0]?.text], ['active', false, second.child.pid?.toLocaleString('en-US')]);
      });
      await press(browser, 'Pause');
      await sees(browser, ({ status }) => assert.equal(status, 'paused'));
    });
  });

  describe('the board, texts and devices', { skip, concurrency: 1 }, () => {
    const use = prepareBrowser();

    it('takes the key out of the address bar and keeps it for this tab', async (t) => {
      const port = await startSystem(t);
      const { browser, board: { url, key } } = await use(t, [targetOf(port)]);
      await sees(browser, ({ status }) => assert.equal(status, 'active'));
      assert.equal(await browser.url(), url);
      assert.ok(!(await browser.requests()).join().includes(key));
      await browser.run('location.reload()');
      await sees(browser, ({ status }) => assert.equal(status, 'active'));
      await browser.run('window.isOld = true; location.hash = "#another-key-0123456789"');
      await until(() => browser.run<boolean>('return window.isOld === undefined'));
      await until(async () => await problemOf(browser) === WRONG_KEY);
      assert.equal(await browser.url(), url);
      assert.deepEqual(await cards(browser), []);
      assert.match(await browser.title(), /^no news – control-board$/);
      await browser.consoleErrors(); // the 401
      await browser.run('location.hash = arguments[0]', key);
      await sees(browser, ({ status }) => assert.equal(status, 'active'));

      const first = await browser.window();
      await browser.newWindow();
      await browser.open(url);
      await until(async () => await problemOf(browser) === NO_KEY);
      await browser.open(`${url}#${key}`);
      await sees(browser, ({ status }) => assert.equal(status, 'active'));
      await press(browser, 'Pause'); // both windows show it
      await sees(browser, ({ status }) => assert.equal(status, 'paused'));
      const second = await browser.window();
      await browser.switchTo(first);
      await sees(browser, ({ status, buttons, sent }) => {
        assert.deepEqual([status, buttons[0]], ['paused', 'Resume']);
        assert.match(sent.join(), /^✓ paused/);
      });
      await browser.switchTo(second);
      await browser.open('about:blank');
      await browser.switchTo(first);
    });

    it('a page that comes to the foreground is not lost', async (t) => {
      const { port } = await startServer(t); // nothing changes: there is no news
      const { browser } = await use(t, [targetOf(port)]);
      await sees(browser, ({ status }) => assert.equal(status, 'active'));
      await browser.run(`
        window.seen = [];
        new MutationObserver(() => window.seen.push(document.querySelector('#problem').textContent))
          .observe(document.querySelector('#problem'), { childList: true });
        document.dispatchEvent(new Event('visibilitychange'));
      `);
      await sleep(2000); // a page that took the board for lost would show it until it has news
      assert.equal(await problemOf(browser), '');
      await sees(browser, ({ isGrey }) => assert.equal(isGrey, false));
      assert.deepEqual(await browser.run('return window.seen'), []);
    });

    it('finds a board that was started again with its key', async (t) => {
      const port = await startSystem(t);
      const keyFile = join(makeFolder(t), 'key');
      const { browser, board } = await use(t, [targetOf(port)], ['--key-file', keyFile]);
      await sees(browser, ({ status }) => assert.equal(status, 'active'));
      board.running.child.kill('SIGKILL');
      await until(async () => /^control-board does not respond/.test(await problemOf(browser)));
      await sees(browser, ({ isGrey, level }) => assert.deepEqual([isGrey, level], [true, 'none']));
      assert.match(await browser.title(), /^no news – control-board$/);
      let problem = '';
      await until(async () => {
        problem = await problemOf(browser);
        return /^control-board does not respond for \d+ s$/.test(problem);
      }, () => problem);
      await browser.requests();
      await browser.click('#systems button', 0);
      assert.deepEqual(await posted(browser), []);
      const again = ['--key-file', keyFile, '--listen', `localhost:${board.port}`];
      const { key } = await startBoard(t, [targetOf(port)], again);
      assert.equal(key, board.key);
      await until(async () => await problemOf(browser) === '');
      await sees(browser, ({ status, isGrey }) => assert.deepEqual([status, isGrey], ['active', false]));
      await press(browser, 'Pause');
      await sees(browser, ({ status }) => assert.equal(status, 'paused'));
      await browser.consoleErrors(); // those of the requests that failed
    });

    it('says that the key is wrong if the board was started again without it', async (t) => {
      const port = await startSystem(t);
      const { browser, board } = await use(t, [targetOf(port)]);
      await sees(browser, ({ status }) => assert.equal(status, 'active'));
      board.running.child.kill('SIGKILL');
      await board.running.ended;
      const { key } = await startBoard(t, [targetOf(port)], ['--listen', `localhost:${board.port}`]);
      await until(async () => await problemOf(browser) === WRONG_KEY);
      await sees(browser, ({ isGrey, level }) => assert.deepEqual([isGrey, level], [true, 'none']));
      await browser.requests();
      await browser.click('#systems button', 0);
      assert.deepEqual(await posted(browser), []);
      await browser.open(`${board.url}#${key}`);
      await sees(browser, ({ isGrey }) => assert.equal(isGrey, false));
      await browser.consoleErrors();
    });

    it('shows the detail, with plots of its numbers', async (t) => {
      let count = 1000;
      const describe = (): unknown => {
        count += 1;
        const detail = {
          word: 'cart pole', nested: { a: [1, null] }, no: null, yes: true, loss: 1 / count,
          huge: count % 2 === 0 ? 1.7e308 : -1.7e308, constructor: -count, '': count / 2, toString: 'text',
        };
        return Object.defineProperty(detail, '__proto__', { value: count, enumerable: true });
      };
      const port = await startSystem(t, { describe });
      const { browser } = await use(t, [targetOf(port)]);
      await sees(browser, ({ rows }) => {
        const shown = new Map(rows.map(({ name, text, plot }) => [name, [text, plot !== null]]));
        assert.deepEqual(shown.get('word'), ['cart pole', false]);
        assert.deepEqual(shown.get('nested'), ['{"a":[1,null]}', false]);
        assert.deepEqual(shown.get('no'), ['null', false]);
        assert.deepEqual(shown.get('yes'), ['true', false]);
        assert.deepEqual(shown.get('toString'), ['text', false]);
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
      await until(async () => (await plotOf('__proto__')).split('L').length > 3); // it changes each second
      assert.match(await plotOf('huge'), /^M[\d.L ]+$/);
      const label = await browser.run<string>(`
        const plots = [...document.querySelectorAll('svg')];
        return plots.find(({ ariaLabel }) => ariaLabel?.startsWith('__proto__')).ariaLabel;
      `);
      assert.match(label, /^__proto__ over the last \d s: 1,\d+ to 1,\d+$/);
    });

    it('loses no samples of a slow system beside a fast one, nor of one whose numbers come and go', async (t) => {
      let reads = 0;
      const slow = await startFake(t, async ({ url }) => {
        if (url !== '/api/info') return {};
        reads += 1;
        await sleep(150);
        return { status: 'active', commands: [], detail: reads % 4 === 0 ? {} : { reads } };
      });
      const fast = await startSystem(t, { describe: () => ({ now: performance.now() }) });
      const { browser } = await use(t, [slow, fast].map(targetOf));
      await seesAll(browser, ([first]) => assert.ok(first?.rows[0]?.plot));
      await until(() => reads > 6);
      assert.equal(await problemOf(browser), '');
      await seesAll(browser, ([first]) => assert.ok((first?.rows[0]?.plot ?? '').split('L').length > 2));
    });

    it('shows text from a system as text, whatever it is, in 360 and 1280 pixels, light and dark', async (t) => {
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
      const { browser } = await use(t, ports.map(targetOf));
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
      await browser.click('#systems article:nth-child(1) button', 1);
      await browser.click('#systems article:nth-child(2) button', 1);
      await browser.click('#systems article:nth-child(4) button', 1);
      await seesAll(browser, (all) => {
        for (const index of [0, 1, 3]) assert.notEqual(all[index]?.sent.join('').replace(/^….*/, ''), '');
      });
      await browser.click('summary');
      for (const dark of [false, true]) {
        await browser.emulate({ dark });
        for (const width of [360, 1280]) {
          await browser.resize(width, 800);
          assert.deepEqual(await browser.run(FIND_FLAWS), [], `${width} px`);
        }
        const [page, text, scheme] = await browser.run<string[]>(`
          const { backgroundColor, color } = getComputedStyle(document.body);
          return [backgroundColor, color, getComputedStyle(document.querySelector('#systems button')).color];
        `);
        assert.deepEqual([page, text, scheme].map((colour) => lightness(colour ?? '') > 128), [!dark, dark, dark]);
      }
      await browser.click('#systems article:nth-child(2) button', 2);
      await browser.resize(360, 640);
      assert.deepEqual(await browser.run(FIND_FLAWS_OF_DIALOG), []);
      await browser.press('Escape');
      await browser.emulate({});
      await browser.resize(1280, 800);
      assert.equal(await browser.run('return window.hacked ?? null'), null);
      assert.deepEqual(await browser.findAll('#systems img, #systems script:not(:empty), body > img'), []);
    });

    it('can be used by keyboard alone, and does not lose the focus', async (t) => {
      const [first, second] = [await launchSystem(t, {}, { name: 'one' }), await launchSystem(t, {}, { name: 'two' })];
      const { browser } = await use(t, [first, second].map(({ address }) => targetOf(address.port)));
      await seesAll(browser, (all) => assert.deepEqual(all.map(({ status }) => status), ['active', 'active']));
      await browser.press('Tab');
      assert.equal(await focused(browser), 'All systems');
      await browser.press('Enter');
      const order: string[] = [];
      for (let count = 0; count < 13; count += 1) {
        await browser.press('Tab');
        order.push(await focused(browser));
      }
      assert.deepEqual(order, [
        'Reason, for all systems', 'Pause all', 'Resume all', 'Save all', 'Shut all down',
        'Reason, for one', 'Pause one', 'Save one', 'Shut down one',
        'Reason, for two', 'Pause two', 'Save two', 'Shut down two',
      ]);
      for (let count = 0; count < 3; count += 1) await browser.press('Shift+Tab');
      await browser.press('by hand', 'Tab', 'Enter');
      await seesAll(browser, ([, two]) => {
        assert.equal(two?.status, 'paused');
        assert.match(two?.cause ?? '', /: by hand$/);
      });
      assert.equal(await focused(browser), 'Resume two'); // the same button
      await browser.press(' ');
      await seesAll(browser, ([, two]) => assert.equal(two?.status, 'active'));
      assert.equal(await focused(browser), 'Pause two');
      await browser.press('Tab', 'Tab', 'Enter');
      await browser.findByRole('dialog', 'Shut down two?');
      assert.equal(await focused(browser), 'Cancel');
      await browser.press('Escape');
      assert.equal(await focused(browser), 'Shut down two');
      await browser.press(' ');
      await browser.press('Tab');
      assert.equal(await focused(browser), 'Shut down');
      await browser.press('Enter');
      await second.finished;
      await seesAll(browser, ([, two]) => assert.deepEqual([two?.status, two?.isGrey], ['offline', true]));
      assert.equal(await focused(browser), 'Shut down two');
      assert.equal(await browser.title(), 'offline: two – control-board');
      await posted(browser);
      await browser.press('Enter');
      await browser.press('Shift+Tab', ' ');
      assert.deepEqual(await posted(browser), []);
      assert.equal(await focused(browser), 'Save two');
      const outline = 'return getComputedStyle(document.activeElement).outlineStyle';
      assert.equal(await browser.run(outline), 'solid');
    });
  });
});

const WRONG_KEY = 'The key is wrong: open the address that control-board prints';
const NO_KEY = 'The key is missing: open the address that control-board prints';

/** What is cut off, covers something else or needs horizontal scrolling. */
const FIND_FLAWS = `
  const flaws = [];
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) flaws.push('the page is ' + scrollWidth + ' px wide');
  const shown = [...document.querySelectorAll('h1, h2, p, th, td, button, input, summary, li, svg')]
    .filter((element) => element.checkVisibility() && element.getBoundingClientRect().height > 0);
  const nameOf = (element) => element.localName + ' ' + element.textContent.slice(0, 30);
  const controls = [];
  for (const element of shown) {
    const { left, right, width, height } = element.getBoundingClientRect();
    if (left < 0 || right > clientWidth) flaws.push(nameOf(element) + ' ends at ' + right);
    const card = element.closest('.card')?.getBoundingClientRect();
    if (card && (left < card.left || right > card.right)) flaws.push(nameOf(element) + ' leaves its card');
    if (element.localName !== 'input' && element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0) {
      flaws.push(nameOf(element) + ' is cut off: ' + element.scrollWidth + ' of ' + element.clientWidth);
    }
    const isControl = /^(button|input)$/.test(element.localName);
    if (isControl && (height < 24 || width < 24)) flaws.push(nameOf(element) + ' is small');
    if (!element.querySelector('p, td, svg')) controls.push(element);
  }
  controls.forEach((one, index) => {
    const a = one.getBoundingClientRect();
    for (const other of controls.slice(index + 1)) {
      if (one.contains(other) || other.contains(one)) continue;
      const b = other.getBoundingClientRect();
      const isBeside = a.right <= b.left + 0.5 || b.right <= a.left + 0.5;
      const isApart = isBeside || a.bottom <= b.top + 0.5 || b.bottom <= a.top + 0.5;
      if (!isApart) flaws.push(nameOf(one) + ' overlaps ' + nameOf(other));
    }
  });
  return flaws;
`;

const FIND_FLAWS_OF_DIALOG = `
  const dialog = document.querySelector('dialog');
  const { left, right, top, bottom } = dialog.getBoundingClientRect();
  const flaws = [];
  if (left < 0 || top < 0 || right > innerWidth || bottom > innerHeight) flaws.push('the dialog leaves the window');
  if (dialog.scrollWidth > dialog.clientWidth) flaws.push('the dialog scrolls');
  for (const element of dialog.querySelectorAll('p, button')) {
    const inner = element.getBoundingClientRect();
    const isInside = inner.left >= left && inner.right <= right && inner.bottom <= bottom;
    if (!isInside) flaws.push(element.textContent + ' is cut off');
  }
  return flaws;
`;

interface Used {
  browser: Browser;
  board: StartedBoard;
}

/** One browser for the tests of a suite. They leave no error in its console, and cause no request elsewhere. */
function prepareBrowser(): (t: TestContext, ...args: StartArguments) => Promise<Used> {
  const ends: (() => void | Promise<void>)[] = [];
  const flaws: string[] = []; // a hook that fails ends the hooks of its test: what they would have killed runs on
  let browser: Browser | undefined;
  before(async () => {
    browser = await startBrowser({ after: (end) => void ends.push(end) });
  });
  after(async () => {
    for (const end of ends) await end();
    assert.deepEqual(flaws, []);
  });
  return async (t, ...args) => {
    const used = browser ?? assert.fail();
    await used.open('about:blank'); // the page of the test before
    await used.consoleErrors();
    await used.requests();
    const all: string[] = [];
    const readRequests = used.requests.bind(used);
    used.requests = async () => {
      const urls = await readRequests();
      all.push(...urls);
      return urls;
    };
    let url = '';
    const check = async (): Promise<void> => {
      await used.requests();
      const errors = await used.consoleErrors();
      const elsewhere = all.filter((requested) => !requested.startsWith(url));
      flaws.push(...[...errors, ...elsewhere].map((flaw) => `${t.name}: ${flaw}`));
      used.requests = readRequests;
      await used.open('about:blank');
    };
    t.after(() => check().catch((error) => flaws.push(`${t.name}: ${error}`))); // before the board is killed
    const board = await startBoard(t, ...args);
    ({ url } = board);
    await used.open(`${board.url}#${board.key}`);
    return { browser: used, board };
  };
}

type StartArguments = [targets: readonly string[], options?: readonly string[], env?: NodeJS.ProcessEnv];

/** What a person sees of a system. */
interface Card {
  name: string;
  status: string;
  cause: string;
  step: string;
  error: string;
  rows: { name: string; text: string; plot: string | null }[];
  buttons: string[];
  /** Whether all buttons are. */
  isGrey: boolean;
  sent: string[];
  commands: string[];
  place: string;
  level: string;
}

function cards(browser: Browser): Promise<Card[]> {
  return browser.run(`
    const text = (element) => (element?.checkVisibility() ? element.innerText.trim() : '');
    return [...document.querySelectorAll('#systems article')].map((card) => {
      const find = (selector) => text(card.querySelector(selector));
      const findAll = (selector) => [...card.querySelectorAll(selector)];
      return {
        name: find('h2'), status: find('.status strong'), cause: find('.cause'), step: find('.step'),
        error: find('.error'), place: find('.place'), level: card.dataset.level,
        rows: findAll('tbody tr').map(({ cells }) => ({
          name: text(cells[0]), text: text(cells[1]),
          plot: cells[2].checkVisibility() ? cells[2].querySelector('path').getAttribute('d') : null,
        })),
        buttons: findAll('button').map(text),
        isGrey: findAll('button').every(({ ariaDisabled }) => ariaDisabled === 'true'),
        sent: findAll('.sent p').map(text), commands: findAll('ol li').map(text),
      };
    });
  `);
}

/** Waits until all that is shown is right. */
async function seesAll(browser: Browser, check: (all: Card[]) => void): Promise<void> {
  let problem: unknown;
  const isRight = async (): Promise<boolean> => {
    try {
      check(await cards(browser));
      return true;
    } catch (error) {
      problem = error;
      return false;
    }
  };
  await until(isRight).catch(() => {
    throw problem;
  });
}

/** The same for the first system. */
function sees(browser: Browser, check: (card: Card) => void): Promise<void> {
  return seesAll(browser, ([card]) => check(card ?? assert.fail('there is no system')));
}

/** Clicks a button of the first system. */
async function press(browser: Browser, label: string): Promise<void> {
  const [card] = await cards(browser);
  const index = card?.buttons.indexOf(label) ?? -1;
  assert.notEqual(index, -1, `no button '${label}'`);
  await browser.click('#systems button', index);
}

/** The URLs of the commands that the page has sent since the last call. */
async function posted(browser: Browser): Promise<string[]> {
  return (await browser.requests()).filter((url) => /\/(?:pause|resume|save-state|shutdown)(?:\?|$)/.test(url));
}

function greyButtons(browser: Browser, selector: string): Promise<boolean[]> {
  return browser.run(`
    return [...document.querySelectorAll(arguments[0] + ' button')].map(({ ariaDisabled }) => ariaDisabled === 'true');
  `, selector);
}

/** The name of the element that has the focus. */
async function focused(browser: Browser): Promise<string> {
  const element = await browser.run<Element>('return document.activeElement');
  return await browser.name(element) || await browser.text(element);
}

async function valueOf(browser: Browser, target: Element | string): Promise<string> {
  return browser.run('return arguments[0].value', typeof target === 'string' ? await browser.find(target) : target);
}

function problemOf(browser: Browser): Promise<string> {
  return browser.run('return document.querySelector(".lost")?.innerText.trim() ?? ""');
}

/** From 0 to 255. */
function lightness(colour: string): number {
  const [red = 0, green = 0, blue = 0] = (colour.match(/\d+/g) ?? []).map(Number);
  return (red + green + blue) / 3;
}

function targetOf(port: number): string {
  return `localhost:${port}`;
}

/** Starts a program of its own, which may block its thread or be stopped. */
function startHost(t: TestContext, source: string, port: number = 0): Running {
  return start(t, process.execPath, ['--input-type=module', '-e', `
    import { setTimeout } from 'node:timers/promises';
    import { launch } from './dist/control.js';
    const config = { webApiAddress: ['localhost', ${port}] };
    const onListening = ({ port }) => console.log('port', port);
    ${source}
  `]);
}

async function portOf({ shows, output }: Running): Promise<number> {
  await shows(/port \d+/);
  return Number(/port (\d+)/.exec(output())?.[1]);
}

/** Starts a server in a folder that tells that it is active, and returns what ends it. */
async function startFakeIn(t: TestContext, folder: string, name: string): Promise<() => void> {
  const server = createServer((_, response) => response.end(JSON.stringify({ name, status: 'active', commands: [] })));
  const end = (): void => server.close().closeAllConnections();
  t.after(end);
  await once(server.listen(join(folder, `${name}.sock`)), 'listening');
  return end;
}

/** A server that responds to each request with what a function returns. Returns its port. */
async function startFake(t: TestContext, respond: (request: IncomingMessage) => Promise<object>): Promise<number> {
  const server = createServer(async (request, response) => response.end(JSON.stringify(await respond(request))));
  t.after(() => server.close().closeAllConnections());
  server.listen(0, 'localhost');
  await once(server, 'listening');
  return (server.address() as AddressInfo).port;
}
