// Shared by the browser tests of control-board: a board that shows what a test tells it to, and what users see of it.

import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { inTime, until } from '../../wait.ts';
import { viewOfReport } from '../view.ts';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';
import type { Ask, AskEnd, OwnCommand } from '../../../board/forms.ts';
import type { Sample } from '../../../board/series.ts';
import type { LogPart, SentCommand, Update } from '../../../board/system.ts';
import type { Level } from '../../../shared/view.ts';
import type { Browser, Element } from './browser.ts';

const WAIT_MS = 4000; // the page gives up later

// ───── What a board shows ────────────────────────────────────────────────────────────────────────────────────────

/** What a board sends of a system. */
export type State = Partial<Update>;

/** A board that shows what a test tells it to. */
export interface FakeBoard {
  /** Loads the page anew, with these systems. */
  open(...systems: readonly State[]): Promise<void>;
  /** Shows these systems. Resolves when the page has drawn them. */
  show(...systems: readonly State[]): Promise<void>;
  /** Waits for exactly these commands since the last call: `0/evaluate?reason=lunch {"episodes":7}`. */
  takes(...commands: readonly string[]): Promise<void>;
  /** The status code and the error of the next responses to commands and answers; with code 0, these are cut off. */
  refusal: [statusCode: number, error: string, parameter?: string] | null;
  /** The log of each system, and its call stack; without it, there is no response. */
  log: LogPart | null;
  /** How often the page has asked for a log or a call stack. */
  logCount: number;
  /** Whether the page has a key that permits commands. */
  canPress: boolean;
}

/** Starts a board for a browser, until the end of the tests. */
export async function startFakeBoard(t: TestContext, browser: Browser): Promise<FakeBoard> {
  let shown: State[] = [];
  let [version, sentCount, loads] = [0, 0, 0];
  const posted: string[] = [];
  const events = new EventEmitter();
  const server = createServer(async (request, response) => {
    const { method, url = '' } = request;
    const cut = (): void => void response.writeHead(200, { 'Content-Length': 9 }).write('{', () => response.destroy());
    if (url.startsWith('/?')) {
      response.setHeader('Content-Type', 'text/html').end(readFileSync('bin/board/page.html'));
    } else if (/^\/api\/(log|stack)s\//.test(url)) {
      board.logCount += 1;
      if (board.log === null) cut();
      else response.end(JSON.stringify(board.log));
    } else if (method === 'POST') {
      const body = (await request.toArray()).join('');
      posted.push(`${url.replace('/api/systems/', '').replace(/[?&]reason=$/, '')} ${body}`.trim());
      const [statusCode, error, parameter] = board.refusal ?? [200];
      if (statusCode === 0) return cut();
      response.writeHead(statusCode).end(JSON.stringify({ id: sentCount += 1, error, parameter }));
    } else {
      if (url.endsWith(`since=${version}`)) { // the page asks again when it has drawn the response
        events.emit('drawn');
        await once(events, 'change', { signal: AbortSignal.timeout(WAIT_MS) }).catch(() => {});
      }
      const ids = shown.map(({ id }) => id);
      const { canPress } = board;
      response.end(JSON.stringify({ canPress, startedAt: 1, version, keepMs: 3_600_000, ids, systems: shown }));
    }
  });
  const update = async (systems: readonly State[], act: () => unknown): Promise<void> => {
    shown = systems.map((state, id) => ({ id, ...QUIET, sentCount, target: `box:${9000 + id}`, ...state }));
    version += 1;
    const drawn = once(events, 'drawn');
    await act();
    await inTime(drawn, () => 'the page does not ask again');
  };
  t.after(() => server.close().closeAllConnections());
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  const board: FakeBoard = {
    async open(...systems) {
      [sentCount, loads] = [0, loads + 1];
      Object.assign(board, { refusal: null, log: null, logCount: 0, canPress: true });
      posted.length = 0;
      await browser.resize(1280, 800);
      await browser.emulate({});
      await update(systems, () => browser.open(`http://127.0.0.1:${port}/?${loads}#key`));
      await browser.run(CLOCKS);
    },
    show: (...systems) => update(systems, () => events.emit('change')),
    async takes(...commands) {
      await until(() => posted.length >= commands.length, () => `${posted} are not ${commands}`);
      assert.deepEqual(posted.splice(0), commands);
    },
    refusal: null, log: null, logCount: 0, canPress: true,
  };
  return board;
}

/** Lets `skip()` move the clocks of the page. */
const CLOCKS = `
  window.skippedMs = 0;
  for (const clock of [Date, performance]) {
    const now = clock.now.bind(clock);
    clock.now = () => now() + skippedMs;
  }
`;

/** Moves the clocks of the page. What depends on them happens with the next news. */
export function skip(browser: Browser, ms: number): Promise<void> {
  return browser.run('window.skippedMs += arguments[0]', ms);
}

/** An active system that reports nothing. */
const QUIET: Omit<Update, 'id' | 'target' | 'sentCount'> = {
  ...viewOfReport({ status: 'active', name: 'box' }), name: 'box',
  asks: [], current: [], askEnds: [], sent: [], accepts: [], late: '', hasLog: false,
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

export const MESSAGE = 'Delete 3 branches?';

/** A question; without parameters, for a yes or no. */
export function ask(id: string, more: Partial<Ask> = {}): Ask {
  const { parameters } = declare('answer', { approved: { type: 'boolean' } });
  return { id, message: MESSAGE, parameters, times: 'asked 3 min ago', ...more };
}

/** The end of a question that somebody has answered. */
export function answered(id: string, by: string = 'ana@phone'): AskEnd[] {
  return [{ id, text: `Yes, by ${by}`, isAnswered: true }];
}

/** A command that the board has sent. */
export function sent(
  id: number, command: string, state: SentCommand['state'], text = '', more: Partial<SentCommand> = {},
): State {
  return { sent: [{ id, command, state, text, ...more }] };
}

/** A command in the list of the latest ones. */
export function listed(text: string, state: string, id: string = '', mayWithdraw: boolean = false): Listed {
  return { id, text, state, mayWithdraw };
}

type Listed = Update['commands'][number];

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

/** What a user sees of a system. Texts that are not visible are empty. */
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
  /** Which of them are gray. */
  gray: boolean[];
  /** Why there is no save, and why a command was not sent. */
  hint: string;
  unsent: string;
  sent: string[];
  /** Outcomes that only screen readers read, because the card shows them elsewhere. */
  spoken: string[];
  commands: string[];
  place: string;
  /** Those of the card and of its status, which decide the colors. */
  level: string;
  statusLevel: string;
  questions: Question[];
  own: OwnRow[];
  hasLog: boolean;
  hasStack: boolean;
  /** The note and the entries of its log; null if that is closed. */
  log: string[] | null;
  stack: string[] | null;
}

/** What a user sees of a question. */
export interface Question {
  message: string;
  badge: string;
  /** The values of the fields, and of the reason. */
  values: string[];
  buttons: string[];
  refused: string;
  end: string;
}

/** What a user sees of an own command. */
export interface OwnRow {
  name: string;
  isOpen: boolean;
  description: string;
  /** The fields with the texts around them. */
  fields: { name: string; hint: string; value: string | boolean; wrong: string; isInvalid: boolean }[];
  outcome: string[];
  unsent: string;
}

/** The cards in the order of the targets. For the order of the page, see `glances()`. */
export function cards(browser: Browser): Promise<Card[]> {
  return browser.run(`
    const text = (element) => (element?.checkVisibility() ? element.innerText.trim() : '');
    const valueOf = (control) => control.selectedOptions?.[0].text ?? control.value;
    const ownRow = (row) => ({
      name: text(row.querySelector('summary')), isOpen: row.querySelector('details').open,
      description: text(row.querySelector('form > p')),
      fields: [...row.querySelectorAll('.fields :is(input, select, textarea)')]
        .filter((control) => control.checkVisibility()).map((control) => ({
          name: control.labels[0].innerText, hint: text(control.labels[0].nextElementSibling),
          value: control.type === 'checkbox' ? control.checked : valueOf(control),
          wrong: text(document.getElementById(control.getAttribute('aria-describedby').split(' ').at(-1))),
          isInvalid: control.ariaInvalid === 'true',
        })),
      outcome: [...row.querySelectorAll('.sent p')].map(text), unsent: text(row.querySelector('.unsent')),
    });
    const question = (ask) => ({
      message: text(ask.querySelector('h3')), badge: text(ask.querySelector('.badge')),
      values: [...ask.querySelectorAll('input, select, textarea')].filter((one) => one.checkVisibility()).map(valueOf),
      buttons: [...ask.querySelectorAll('button')].filter((one) => one.checkVisibility()).map(text),
      refused: text(ask.querySelector('.refused')), end: text(ask.querySelector('.end')),
    });
    const linesOf = (log) => [...log.querySelectorAll('p, li')].map(text).filter((line) => line !== '');
    const articles = [...document.querySelectorAll('#systems article')];
    return articles.sort((one, other) => one.dataset.id - other.dataset.id).map((card) => {
      const [log, stack] = [card.querySelector('.log'), card.querySelector('.stack')];
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
        buttons: findAll('button:not([hidden])').map(text),
        gray: findAll('button:not([hidden])').map((one) => one.ariaDisabled === 'true'),
        hint: find('> .hint'), unsent: find('> .unsent'),
        sent: findAll('> .sent p:not([data-state=spoken])').map(text),
        spoken: findAll('> .sent [data-state=spoken]').map(text), commands: findAll('.commands li').map(text),
        questions: findAll('.ask').filter((one) => one.checkVisibility()).map(question),
        own: findAll('.own > div').map(ownRow), hasLog: log.checkVisibility(), log: log.open ? linesOf(log) : null,
        hasStack: stack.checkVisibility(), stack: stack.open ? linesOf(stack) : null,
      };
    });
  `);
}

/** What a user sees of a system among many. */
export interface Glance {
  name: string;
  status: string;
  /** The rest of the line: errors, durations, reasons. */
  text: string;
  button: string;
  height: number;
}

/** The rows that the filters leave, in the order of the page. */
export function glances(browser: Browser): Promise<Glance[]> {
  return browser.run(`
    const isVisible = (element) => element.checkVisibility();
    const text = (element) => (isVisible(element) ? element.innerText.trim() : '');
    return [...document.querySelectorAll('#systems .row')].filter(isVisible).map((row) => {
      const [status, note, rest] = row.querySelector('.brief').children;
      return {
        name: text(row.querySelector('.open')), status: text(status), text: text(note) + text(rest),
        button: [...row.querySelectorAll('.toggle, .answer')].map(text).join(''),
        height: row.closest('article').offsetHeight,
      };
    });
  `);
}

/** The names of the systems, in the order of the page. */
export function orderOf(browser: Browser): Promise<string[]> {
  return browser.run('return [...document.querySelectorAll("#systems article")].map(({ ariaLabel }) => ariaLabel)');
}

/** Waits until the cards are as expected. */
export async function sees(browser: Browser, check: (...all: Card[]) => void): Promise<void> {
  let problem: unknown;
  await until(async () => {
    try {
      check(...await cards(browser));
      return true;
    } catch (error) {
      problem = error;
      return false;
    }
  }).catch(() => {
    throw problem;
  });
}

/** The name of the element that has the focus. */
export async function focused(browser: Browser): Promise<string> {
  const element = await browser.run<Element>('return document.activeElement');
  return await browser.name(element) || await browser.text(element);
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
