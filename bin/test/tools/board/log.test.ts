// The log of a system on control-board: its web API, and what the page shows.

import assert from 'node:assert/strict';
import { appendFileSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { before, describe, it } from 'node:test';
import { assertHarmless, launchSystem, makeFolder } from '../../helpers.ts';
import { lacks } from '../../needs.ts';
import { LIMIT, until } from '../../wait.ts';
import { startWeb } from '../client/systems.ts';
import { entry, HOSTILE_LINES, HTML, infoOf, linesOf, NO_LOG, outcome, writeLog } from '../logs.ts';
import { startBrowser } from './browser.ts';
import { exchange, forSuite, INFO, startBoard, untilSystems } from './helpers.ts';
import { eventually, FIND_FLAWS, openPage, SECOND } from './page.ts';
import type { LogPart } from '../../../board/system.ts';
import type { Browser } from './browser.ts';
import type { StartedBoard } from './helpers.ts';

process.env['TZ'] = 'America/St_Johns'; // of the browser; the board has another one

async function logOf(board: StartedBoard, id: number = 0): Promise<LogPart> {
  const response = await board.get(`/api/logs/${id}`);
  assert.equal(response.status, 200);
  return await response.json() as LogPart;
}

describe('The log in the web API of control-board', { ...LIMIT, skip: lacks('Unix') }, () => {
  it('has the latest 50 entries, with equal outcomes as one', async (t) => {
    const path = join(makeFolder(t), 'train.jsonl');
    const { address: { port }, client, finished } = await launchSystem(t, { saveState: () => '1.json' }, { log: path });
    for (let time = 0; time < 30; time += 1) {
      await client.request('pause', { by: 'ana', wait: 30 });
      await client.request('resume', { by: 'ben', wait: 30 });
    }
    for (let time = 0; time < 3; time += 1) await client.request('save-state', { by: 'cron', wait: 30 });
    await until(() => readFileSync(path, 'utf8').split('"outcome"').length === 64);
    const board = await startBoard(t, [`127.0.0.1:${port}`]);
    await untilSystems(board, ([system]) => system?.hasLog === true);
    const { note, entries } = await logOf(board);
    assert.deepEqual([note, entries.length], ['', 50]);
    const texts = entries.map(({ text }) => text.replace(/\d\.\d\d s/, 'x s'));
    assert.deepEqual(texts.slice(-3), ['paused by ana', 'active by ben', 'save-state by cron done in x s: 1.json']);
    assert.deepEqual(entries.map(({ count }) => count), [...Array<undefined>(49), 3]);
    const { at = NaN, firstTime = NaN } = entries.at(-1) ?? {};
    assert.ok(firstTime <= at && Math.abs(at - Date.now()) < 300_000);
    await client.shutdown();
    await finished; // before its folder is removed
  });

  it('requires a key, which may be the view key, and shows nothing of other files and machines', async (t) => {
    const path = writeLog(t, ...HOSTILE_LINES, outcome(1, 'last'));
    const infos = [
      infoOf(path), infoOf(path, { host: 'gpu1' }), infoOf(path, { log: undefined }), infoOf('/etc/passwd'),
      infoOf('/dev/zero'), infoOf(path, { name: 'other' }),
    ];
    const webs = await Promise.all(infos.map((info) => startWeb(t, () => ({ ...INFO, ...info }))));
    const view = join(makeFolder(t), 'view');
    const board = await startBoard(t, webs.map(({ target }) => target), ['--view-key-file', view]);
    await untilSystems(board, (all) => all.every(({ status }) => status === 'active'));
    const notes = [
      '', `logs on gpu1 to ${path}`, NO_LOG, 'no readable entries in /etc/passwd',
      'no readable entries in /dev/zero',
    ];
    for (const [id, note] of notes.entries()) {
      const log = await logOf(board, id);
      assert.deepEqual([log.note, log.entries.length > 0], [note, note === ''], `${id}`);
      assert.doesNotMatch(JSON.stringify(log), /foreign|root:/);
      for (const { text } of log.entries) assertHarmless(text);
    }
    const other = await logOf(board, 5); // there is one entry with that name
    assert.deepEqual(other.entries.map(({ text }) => text), ['foreign']);
    const viewKey = readFileSync(view, 'utf8').trim();
    const rows: [status: number, line: string, key: string][] = [
      [200, 'GET /api/logs/0', viewKey], [200, 'GET /api/logs/0?x=y', board.key], [401, 'GET /api/logs/0', 'wrong'],
      [405, 'POST /api/logs/0', board.key], [403, 'POST /api/logs/0', viewKey], [405, 'HEAD /api/logs/0', board.key],
      ...['9', '-1', '', '0/', '0x0', 'x', '..', '99999999999999999999', '0%00', '__proto__'].map((id) => {
        return [404, `GET /api/logs/${id}`, board.key] as [number, string, string];
      }),
    ];
    for (const [status, line, key] of rows) {
      const response = await exchange(board.port, line, 'Host: localhost', `Authorization: Bearer ${key}`);
      assert.equal(response.status, status, `${line} ${response.body}`);
    }
    const foreign = ['Host: localhost', `Authorization: Bearer ${board.key}`, 'Origin: http://example.com'];
    assert.equal((await exchange(board.port, 'GET /api/logs/0', ...foreign)).status, 403);
  });
});

describe('The log on the page of control-board', { ...LIMIT, skip: lacks('chromium', 'chromedriver') }, () => {
  const suite = forSuite();
  let browser: Browser;

  before(async () => {
    browser = await startBrowser(suite);
  });

  /** The note and the entries that a user sees; null if the log is closed. */
  const seen = (id: number = 0): Promise<string[] | null> => browser.run(`
    const log = document.querySelector('[data-id="${id}"] .log');
    const lines = [...log.querySelectorAll('p, li')].filter((line) => line.checkVisibility() && line.innerText !== '');
    return log.open && log.checkVisibility() ? lines.map((line) => line.innerText) : null;
  `);
  const sees = async (id: number, isRight: (lines: string[]) => boolean): Promise<string[]> => {
    let lines: string[] | null = null;
    await eventually(async () => isRight(lines = await seen(id) ?? []), () => JSON.stringify(lines));
    return lines ?? [];
  };

  it('is loaded when it is opened, again while it is open, and after the end of the system', async (t) => {
    const old = { time: '2026-11-23T22:00:00Z' };
    const paused = entry(0, 'status', { ...old, status: 'paused' });
    const path = writeLog(t, outcome(0, 'a', old), outcome(0, 'b', old), paused);
    const webs = await Promise.all([infoOf(path), infoOf(path, { host: 'gpu1' }), infoOf(path, { log: undefined })]
      .map((info) => startWeb(t, () => ({ ...INFO, ...info }))));
    const board = await openPage(t, browser, webs.map(({ target }) => target), [], { TZ: 'Asia/Tokyo' });
    await untilSystems(board, (all) => all.every(({ status }) => status === 'active'));
    const areShown = (): Promise<string> => browser.run(`
      const logs = [0, 1, 2].map((id) => document.querySelector('[data-id="' + id + '"] .log'));
      return logs.map((log) => log?.checkVisibility() && !log.open).join();
    `);
    await eventually(async () => await areShown() === 'true,true,false', () => 'closed, and absent without a log');
    await browser.run(SECOND);
    const requests = async (): Promise<string[]> => {
      const urls = (await browser.requests()).filter((url) => url.includes('/logs/'));
      return urls.map((url) => url.replace(board.url, ''));
    };
    assert.deepEqual(await requests(), []);
    const summary = await browser.find('[data-id="0"] .log summary');
    assert.equal(await browser.name(summary), `Log of train at ${webs[0]?.target}`);
    await browser.activate(summary);
    const time = '2026-11-23 18:30:00';
    assert.deepEqual(await sees(0, (lines) => lines.length > 0), [
      `${time} paused`, `${time} resume by ana done in 0.25 s (2 times since ${time})`,
    ]);
    assert.deepEqual(await requests(), ['api/logs/0']);
    appendFileSync(path, linesOf([outcome(0, 'c', { by: 'ben' })]));
    const [first] = await sees(0, (lines) => lines.length === 3);
    const today = await browser.run<string>('return new Date().toLocaleDateString("sv")');
    const line = first?.replace(`${today} `, 'today '); // the date is there if it was yesterday
    assert.match(line ?? '', /^(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d resume by ben done in 0\.25 s$/);
    await browser.activate('[data-id="1"] .log summary');
    assert.deepEqual(await sees(1, (lines) => lines.length > 0), [`logs on gpu1 to ${path}`]);
    appendFileSync(path, linesOf([entry(0, 'end', { ended: 'exit code 1', exitCode: 1 })]));
    webs[0]?.end();
    await sees(0, ([line]) => /exit code 1$/.test(line ?? ''));
    board.running.child.kill();
    await sees(0, ([line]) => line === 'no response from control-board');
    await browser.open('about:blank');
    assert.match(JSON.stringify(await browser.consoleErrors()), /ERR_CONNECTION_REFUSED/);
  });

  it('is text, whatever is in it, and fits a phone and a screen', async (t) => {
    const path = writeLog(t, ...HOSTILE_LINES, ...[HTML, 'w'.repeat(900), '"'.repeat(900)].flatMap((text, index) => [
      outcome(1, `x-${index}`, { command: text, by: text, reason: text, state: 'failed', error: text }),
      entry(1, 'status', { status: text }),
    ]));
    const infos = Array.from({ length: 12 }, () => ({ ...INFO, ...infoOf(path, { name: HTML }) }));
    const own = infoOf(path);
    const webs = await Promise.all([own, ...infos].map((info) => startWeb(t, () => ({ ...INFO, ...info }))));
    for (const count of [1, 13]) {
      const targets = webs.slice(0, count).map(({ target }) => target);
      const board = await openPage(t, browser, targets);
      await untilSystems(board, (all) => all.every(({ status }) => status === 'active'));
      await browser.find('[data-id="0"] .log');
      await browser.run('document.querySelector(`[data-id="0"] .open`).click()');
      await browser.run('document.querySelector(`[data-id="0"] .log`).open = true');
      const lines = await sees(0, ({ length }) => length > 0);
      assert.ok(lines.length === 50 && lines.some((line) => line.includes(HTML)), lines.join('\n'));
      for (const [width, height] of [[390, 844], [1280, 800], [320, 800]] as const) {
        await browser.resize(width, height);
        assert.deepEqual(await browser.run(FIND_FLAWS), [], `${count} systems, ${width} px`);
      }
      assert.deepEqual(await browser.findAll('#systems :is(img, script, b)'), []);
      assert.equal(await browser.run('return window.hacked ?? null'), null);
    }
  });
});
