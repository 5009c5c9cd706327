// Shared by the browser tests of control-board: what users see and do on its page.

import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Level, viewOf } from '../../../shared/view.ts';
import { until } from '../../wait.ts';
import { systemOf } from '../view.ts';
import { startBoard, type StartedBoard } from './helpers.ts';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';
import type { Ask, OwnCommand } from '../../../board/forms.ts';
import type { Sample } from '../../../board/series.ts';
import type { Update } from '../../../board/system.ts';
import type { Browser, Element } from './browser.ts';

const POLL_MS = 250; // reading the page costs more than the page itself
const WAIT_MS = 4000; // the page gives up later

/** Time for the page to draw at least once. */
export const SECOND: string = 'return new Promise((resolve) => setTimeout(resolve, 1000))';

// ───── Boards ────────────────────────────────────────────────────────────────────────────────────────────────────

/** Opens the page of a new board. */
export async function openPage(
  t: TestContext,
  browser: Browser,
  ...args: [targets: readonly string[], options?: readonly string[], env?: NodeJS.ProcessEnv]
): Promise<StartedBoard> {
  await prepare(t, browser);
  const board = await startBoard(t, ...args);
  await browser.open(`${board.url}#${board.key}`);
  return board;
}

/** Afterwards the browser console must have no errors. */
async function prepare(t: TestContext, browser: Browser): Promise<void> {
  await browser.resize(1280, 800);
  await browser.emulate({});
  t.after(async () => { // before the board stops
    await browser.open('about:blank');
    assert.deepEqual(await browser.consoleErrors(), []);
  });
}

/** What a board sends of a system. */
export type State = Partial<Update>;

/** A board that shows what a test tells it to. */
export interface FakeBoard {
  show(...systems: readonly State[]): void;
  /** Waits for exactly these commands since the last call: `0/evaluate?reason=lunch {"episodes":7}`. */
  takes(...commands: readonly string[]): Promise<void>;
  /** The status code and the error of the next responses to commands and answers; code 0 responds nothing. */
  refusal: [statusCode: number, error: string, parameter?: string] | null;
  /** Whether the page has the view key. */
  canPress: boolean;
}

/** Opens the page of a board that shows these systems. */
export async function openStates(t: TestContext, browser: Browser, ...systems: readonly State[]): Promise<FakeBoard> {
  let shown: State[] = [];
  let [version, count] = [0, 0];
  const posted: string[] = [];
  const changes = new EventEmitter();
  const board: FakeBoard = {
    show(...states) {
      shown = states.map((state, id) => ({ id, ...QUIET, sentCount: count, target: `box:${9000 + id}`, ...state }));
      version += 1;
      changes.emit('change');
    },
    async takes(...commands) {
      await until(() => posted.length >= commands.length, () => `${posted} are not ${commands}`);
      assert.deepEqual(posted.splice(0), commands);
    },
    refusal: null,
    canPress: true,
  };
  board.show(...systems);
  const server = createServer(async (request, response) => {
    const { method, url = '' } = request;
    if (url === '/') {
      response.setHeader('Content-Type', 'text/html').end(readFileSync('bin/board/page.html'));
      return;
    }
    const [statusCode, error, parameter] = board.refusal ?? [200, undefined];
    if (method === 'POST') {
      const body = (await request.toArray()).join('');
      posted.push(`${url.replace('/api/systems/', '').replace(/[?&]reason=$/, '')} ${body}`.trim());
      if (statusCode !== 0) response.writeHead(statusCode).end(JSON.stringify({ id: count += 1, error, parameter }));
      return;
    }
    const signal = AbortSignal.timeout(WAIT_MS);
    if (url.endsWith(`since=${version}`)) await once(changes, 'change', { signal }).catch(() => {});
    const { canPress } = board;
    const ids = shown.map(({ id }) => id);
    response.end(JSON.stringify({ canPress, startedAt: 1, version, keepMs: 3_600_000, ids, systems: shown }));
  });
  await prepare(t, browser);
  t.after(() => server.close().closeAllConnections());
  await once(server.listen(0, '127.0.0.1'), 'listening');
  await browser.open(`http://127.0.0.1:${(server.address() as AddressInfo).port}/#key`);
  await eventually(async () => (await browser.findAll('article')).length === shown.length);
  return board;
}

/** An active system that reports nothing. */
const QUIET: Omit<Update, 'id' | 'target' | 'sentCount'> = {
  ...viewOf(systemOf({ status: 'active', name: 'box' })), name: 'box',
  asks: [], current: [], askEnds: [], sent: [], accepts: [], hasLog: false,
};

export const PAUSED: State = { status: 'paused', ...worded('paused', 'warn') };
export const OFFLINE: State = { status: 'offline', ...worded('offline', 'bad'), isControllable: false };
export const SILENT: State = { ...OFFLINE, status: 'no answer', ...worded('no answer', 'bad') };
export const CRASHED: State = { ...OFFLINE, ...worded('crashed', 'bad'), cause: ': exit code 7' };
export const ENDED: State = { ...OFFLINE, ...worded('ended', 'ended') };
export const FAILED: State = { word: 'failed', level: 'bad', failed: 'save failed: ENOSPC' };

function worded(word: string, level: Level): State {
  return { word, heading: word, level, statusLevel: level };
}

/** A system that asks. */
export function asking(...asks: Ask[]): State {
  return { word: 'asking', level: 'asks', asks, askAge: /^asked (.*?) ago/.exec(asks[0]?.times ?? '')?.[1] ?? '' };
}

/** An own command with these parameters, which are strings unless a field says otherwise. */
export function declare(name: string, parameters: object = {}): OwnCommand {
  return {
    name, description: '',
    parameters: Object.entries(parameters).map(([key, fields]: [string, object]) => {
      return { name: key, type: 'string', description: '', hint: '', ...fields } as OwnCommand['parameters'][number];
    }),
  };
}

/** A number in the detail, with its plot: one sample a second; `null` is one that is missing. */
export function plotted(name: string, ...values: readonly (number | null)[]): Update['fields'][number] {
  const start = Date.now() - values.length * 1000;
  const samples = values.flatMap((value, index): Sample[] => (value === null ? [] : [[start + index * 1000, value]]));
  return { name, value: values.at(-1) ?? '', samples, intervalMs: 1000 };
}

// ───── What users see ────────────────────────────────────────────────────────────────────────────────────────────

/** What a user sees of a system. */
export interface Card {
  name: string;
  status: string;
  /** Since when, by whom and why. */
  cause: string;
  /** Who else holds the pause. */
  holds: string[];
  step: string;
  error: string;
  rows: { name: string; text: string; plot: string | null }[];
  /** The fields that control-run has added. */
  process: string[];
  progress: string;
  saved: string;
  unsaved: string;
  buttons: string[];
  /** Whether all buttons are gray. */
  isGray: boolean;
  sent: string[];
  commands: string[];
  place: string;
  /** Those of the card and of its status, which decide the colors. */
  level: string;
  statusLevel: string;
}

/** The cards in the order of the targets. For the order of the page, see `glances()`. */
export function cards(browser: Browser): Promise<Card[]> {
  return browser.run(`
    const text = (element) => (element?.checkVisibility() ? element.innerText.trim() : '');
    const articles = [...document.querySelectorAll('#systems article')];
    return articles.sort((one, other) => one.dataset.id - other.dataset.id).map((card) => {
      const find = (selector) => text(card.querySelector('.body ' + selector));
      const findAll = (selector) => [...card.querySelectorAll('.body ' + selector)];
      return {
        name: find('h2'), status: find('.status strong'), cause: find('.cause'), step: find('.step'),
        holds: findAll('.holds p').map(text), error: find('.error'), place: find('.place'), level: card.dataset.level,
        statusLevel: card.querySelector('.status').dataset.level,
        process: findAll('.process th').map(({ textContent }) => textContent),
        progress: find('.progress'), saved: find('.saved'), unsaved: find('.unsaved'),
        rows: findAll('[aria-label=Detail] tbody tr').map(({ cells }) => ({
          name: text(cells[0]), text: text(cells[1]),
          plot: cells[2].checkVisibility() ? cells[2].querySelector('path').getAttribute('d') : null,
        })),
        buttons: findAll('button').map(text),
        isGray: findAll('button').every(({ ariaDisabled }) => ariaDisabled === 'true'),
        sent: findAll('> .sent p').map(text), commands: findAll('.commands li').map(text),
      };
    });
  `);
}

/** The names of the systems, in the order of the page. */
export function orderOf(browser: Browser): Promise<string[]> {
  return browser.run('return [...document.querySelectorAll("#systems article")].map(({ ariaLabel }) => ariaLabel)');
}

/** What a user sees of a system among many, in the order of the page. */
export interface Glance {
  name: string;
  status: string;
  /** The rest of the line: errors, durations, reasons. */
  text: string;
  button: string;
  height: number;
}

/** The rows that the filters leave. */
export function glances(browser: Browser): Promise<Glance[]> {
  return browser.run(`
    const isVisible = (element) => element.checkVisibility();
    const text = (element) => (isVisible(element) ? element.innerText.trim() : '');
    return [...document.querySelectorAll('#systems .row')].filter(isVisible).map((row) => {
      const [status, note, rest] = row.querySelector('.brief').children;
      return {
        name: text(row.querySelector('.open')), status: text(status), text: text(note) + text(rest),
        button: text(row.querySelector('.toggle')), height: row.closest('article').offsetHeight,
      };
    });
  `);
}

/** Waits until the rows are as expected. */
export async function seesRows(browser: Browser, check: (all: Glance[]) => void): Promise<void> {
  await looks(async () => check(await glances(browser)));
}

/** What a user sees of an own command. */
export interface Row {
  name: string;
  isOpen: boolean;
  description: string;
  /** The fields with the texts around them. */
  fields: { name: string; hint: string; value: string | boolean; wrong: string; isInvalid: boolean }[];
  outcome: string[];
}

/** The own commands of the first system. */
export function rowsOf(browser: Browser): Promise<Row[]> {
  return browser.run(`
    const text = (element) => (element?.checkVisibility() ? element.innerText.trim() : '');
    return [...document.querySelector('[data-id="0"] .own')?.children ?? []].map((row) => ({
      name: text(row.querySelector('summary')), isOpen: row.querySelector('details').open,
      description: text(row.querySelector('form > p')),
      fields: [...row.querySelectorAll('.fields :is(input, select, textarea)')]
        .filter((control) => control.checkVisibility()).map((control) => ({
          name: control.labels[0].innerText, hint: text(control.labels[0].nextElementSibling),
          value: control.type === 'checkbox' ? control.checked
            : control.localName === 'select' ? control.selectedOptions[0].text : control.value,
          wrong: text(document.getElementById(control.getAttribute('aria-describedby').split(' ').at(-1))),
          isInvalid: control.ariaInvalid === 'true',
        })),
      outcome: [...row.querySelectorAll('.sent p')].map(text),
    }));
  `);
}

/** Waits until a row of the first system is as expected. */
export async function seesRow(browser: Browser, name: string, check: (row: Row) => void): Promise<void> {
  await looks(async () => {
    check((await rowsOf(browser)).find((row) => row.name === name) ?? assert.fail(`there is no row ${name}`));
  });
}

/** Waits until the condition is true, with few checks. */
export function eventually(isTrue: () => Promise<boolean>, what?: () => string): Promise<void> {
  return until(async () => await isTrue() || await sleep(POLL_MS, false), what);
}

/** Waits until all cards are as expected. */
export async function seesAll(browser: Browser, check: (all: Card[]) => void): Promise<void> {
  await looks(async () => check(await cards(browser)));
}

async function looks(check: () => Promise<void>): Promise<void> {
  let problem: unknown;
  const isRight = async (): Promise<boolean> => {
    try {
      await check();
      return true;
    } catch (error) {
      problem = error;
      return false;
    }
  };
  await eventually(isRight).catch(() => {
    throw problem;
  });
}

/** The same for the first system. */
export function sees(browser: Browser, check: (card: Card) => void): Promise<void> {
  return seesAll(browser, ([card]) => check(card ?? assert.fail('there is no system')));
}

/** Activates a button of a card. A pause and a shutdown are sent with a reason. */
export async function press(browser: Browser, label: string, index: number = 0, reason: string = ''): Promise<void> {
  const place = (await cards(browser))[index]?.buttons.indexOf(label) ?? -1;
  assert.notEqual(place, -1, `no button '${label}'`);
  await activateButton(browser, index, place);
  if (label === 'Pause' || label === 'Shut down') await confirm(browser, reason);
}

/** Activates a button of a card, even if it is gray. */
export function activateButton(browser: Browser, index: number, place: number): Promise<void> {
  return browser.activate(`[data-id='${index}'] .body button`, place);
}

/** Enters the reason in the dialog and confirms. */
export async function confirm(browser: Browser, reason: string = ''): Promise<void> {
  await browser.find('dialog[open]');
  await browser.run("document.querySelector('dialog input').focus()");
  await browser.press(...(reason === '' ? [] : [reason]), 'Enter');
}

export function grayButtons(browser: Browser, selector: string): Promise<boolean[]> {
  return browser.run(`
    return [...document.querySelectorAll(arguments[0] + ' button')].map(({ ariaDisabled }) => ariaDisabled === 'true');
  `, selector);
}

/** The name of the element that has the focus. */
export async function focused(browser: Browser): Promise<string> {
  const element = await browser.run<Element>('return document.activeElement');
  return await browser.name(element) || await browser.text(element);
}

export async function valueOf(browser: Browser, target: Element | string): Promise<string> {
  return browser.run('return arguments[0].value', typeof target === 'string' ? await browser.find(target) : target);
}

export function problemOf(browser: Browser): Promise<string> {
  return browser.run('return document.querySelector(".lost")?.innerText.trim() ?? ""');
}

/** Finds texts that are cut off, elements that overlap, and horizontal scrolling. */
export const FIND_FLAWS: string = `
  const flaws = [];
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) flaws.push('the page is ' + scrollWidth + ' px wide');
  const kinds = 'h1, h2, h3, p, th, td, button, input, select, textarea, summary, li, svg';
  const shown = [...document.querySelectorAll(kinds)]
    .filter((element) => element.checkVisibility() && element.getBoundingClientRect().height > 0);
  const nameOf = (element) => element.localName + ' ' + element.textContent.slice(0, 30);
  const controls = [];
  for (const element of shown) {
    const { left, right, width, height } = element.getBoundingClientRect();
    if (left < 0 || right > clientWidth) flaws.push(nameOf(element) + ' ends at ' + right);
    const card = element.closest('.card')?.getBoundingClientRect();
    if (card && (left < card.left || right > card.right)) flaws.push(nameOf(element) + ' leaves its card');
    const isField = /^(input|select|textarea)$/.test(element.localName);
    const isCut = getComputedStyle(element).textOverflow === 'ellipsis'; // the card has the full text
    if (!isField && !isCut && element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0) {
      flaws.push(nameOf(element) + ' is cut off: ' + element.scrollWidth + ' of ' + element.clientWidth);
    }
    const isControl = isField || element.localName === 'button';
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

export const FIND_FLAWS_OF_DIALOG: string = `
  const dialog = document.querySelector('dialog');
  const { left, right, top, bottom } = dialog.getBoundingClientRect();
  const flaws = [];
  if (left < 0 || top < 0 || right > innerWidth || bottom > innerHeight) flaws.push('the dialog leaves the window');
  if (dialog.scrollWidth > dialog.clientWidth) flaws.push('the dialog scrolls');
  for (const element of dialog.querySelectorAll('p, input, button')) {
    const inner = element.getBoundingClientRect();
    const isInside = inner.left >= left && inner.right <= right && inner.bottom <= bottom;
    if (!isInside) flaws.push(element.textContent + ' is cut off');
  }
  return flaws;
`;
