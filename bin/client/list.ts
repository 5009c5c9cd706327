// control-client list: the targets or all live systems in a folder, and what they are doing; and the tables for it.

import { EXIT, paintStatus, warn } from '../shared/cli.ts';
import { type FollowedSystem, seen } from '../shared/system.ts';
import { jobState } from '../shared/terminal.ts';
import { excerptOf, printable, printableJson } from '../shared/text.ts';
import { compareViews, type View, viewOf } from '../shared/view.ts';
import { failure, TIMEOUT, type Verb, verb, warnUnreachable } from './verb.ts';
import type { Target } from '../shared/folder.ts';

interface Listed {
  target: Target;
  system: FollowedSystem;
  view: View;
}

export const list: Verb = verb({
  name: 'list', elsewhere: ['ls', 'ps'], options: { timeout: TIMEOUT },
  help: 'list the targets, or what runs here',
  targets: () => ({ several: 'all', none: { exitCode: EXIT.DONE, json: undefined }, isQuick: true }),
  async run({ values, each }) {
    const all: Listed[] = [];
    await each(async (target) => {
      const reply = await target.client.ask();
      if (reply.fault === 'offline' && target.socket !== undefined) return null; // it has ended
      const system = seen(target, reply);
      all.push({ target, system, view: viewOf(system) });
      return reply.ok ? null : { exitCode: failure(reply).exitCode };
    });
    all.sort((one, other) => compareViews(one.view, other.view));
    const views = all.map(({ view }) => view);
    const isTable = process.stdout.isTTY && all.length > 0;
    const lines = values.json === true ? all.map(toJson)
      : isTable ? new Table().linesOf(views, terminalSize().columns) : linesOf(all);
    for (const line of lines) console.log(line.trimEnd());
    for (const { target, system: { error } } of all) {
      if (error !== '') warn(`${target.title}: ${error}`);
    }
    return warnUnreachable();
  },
});

function toJson({ target, system: { info, error }, view: { machine, name, pid, status, asks } }: Listed): string {
  const [reported, since, by, reason] = ['name', 'since', 'by', 'reason'].map((field) => excerptOf(info[field]));
  return printableJson({
    target: target.name, machine: machine || undefined, name: reported || name,
    pid: Number(pid) || undefined, port: info['port'],
    status, error: error || undefined,
    since: since || undefined, by: by || undefined, reason: reason || undefined, holds: info['holds'],
    asks: asks.length > 0 ? info['asks'] : undefined, detail: info['detail'] ?? undefined,
  });
}

/** For scripts: nothing is truncated. */
function linesOf(all: readonly Listed[]): string[] {
  const cells = all.map(({ view: { name, pid, status, age }, target }) => {
    return [name, pid, status, age, printable(target.name ?? target.title)];
  });
  const widths = [0, 1, 2, 3].map((column) => Math.max(...cells.map((texts) => `${texts[column]}`.length)));
  const isNumber = [false, true, false, true]; // a process and an age
  return cells.map((texts) => texts.map((text, column) => {
    const width = widths[column] ?? 0;
    return isNumber[column] === true ? text.padStart(width) : text.padEnd(width);
  }).join('  '));
}

// ───── Widths ────────────────────────────────────────────────────────────────────────────────────────────────────

/** Invisible characters and modifiers: terminals disagree on their width. */
const UNCERTAIN = /[\p{Cf}\ufe00-\ufe0f\u20e3\u{1f3fb}-\u{1f3ff}]/gu;
/** Combining characters, and the vowels and finals of Hangul: no column of their own. */
const COMBINING = /[\p{Mn}\p{Me}\u1160-\u11ff]/u;
/** Emoji and East Asian characters: two columns. A flag is two letters of one column each. */
const WIDE = new RegExp('(?![\\u{1f1e6}-\\u{1f1ff}])[\\p{Emoji_Presentation}\\u1100-\\u115f\\u2e80-\\u303e' +
  '\\u3041-\\u4dbf\\u4e00-\\ua4cf\\ua960-\\ua97c\\uac00-\\ud7a3\\uf900-\\ufaff\\ufe30-\\ufe6f\\uff01-\\uff60' +
  '\\uffe0-\\uffe6\\u{16fe0}-\\u{18cff}\\u{1aff0}-\\u{1b2ff}\\u{20000}-\\u{3fffd}]', 'u');
const ASCII = /^[\x20-\x7e]*$/;

/** The number of terminal columns of a printable text. */
function columnsOf(text: string): number {
  if (ASCII.test(text)) return text.length;
  let columns = 0;
  for (const character of text) columns += COMBINING.test(character) ? 0 : WIDE.test(character) ? 2 : 1;
  return columns;
}

/** Truncates or pads a printable text to a number of columns. */
export function fit(text: string, width: number): string {
  const whole = text.replaceAll(UNCERTAIN, '');
  const shown = columnsOf(whole) <= width ? whole : `${startOf(whole, width - 1)}…`;
  return shown + ' '.repeat(Math.max(0, width - columnsOf(shown)));
}

/** Splits a printable text into lines, and indents all but the first. */
export function wrap(text: string, width: number, indent: string): string[] {
  const whole = text.replaceAll(UNCERTAIN, '');
  const line = startOf(whole, width);
  const isAll = line === whole || width <= 2 * indent.length; // the indented rest would not fit
  return isAll ? [line] : [line, ...wrap(indent + whole.slice(line.length), width, indent)];
}

/** The longest start of a text that fits. */
function startOf(text: string, width: number): string {
  let [columns, end] = [0, 0];
  for (const character of text) {
    columns += columnsOf(character);
    if (columns > width) break;
    end += character.length;
  }
  return text.slice(0, end);
}

// ───── The table ─────────────────────────────────────────────────────────────────────────────────────────────────

const GAP = '  ';
const MIN_WIDTH = 4; // a narrower column is omitted

/** The columns: title, maximum share of the width, and cell. The last column takes the rest. */
const COLUMNS: readonly [title: string, share: number, textOf: (view: View, isUnique: boolean) => string][] = [
  ['MACHINE', 0.2, ({ machine }) => machine],
  ['NAME', 0.35, ({ label, title }, isUnique) => isUnique ? label : title],
  ['PROCESS', 0.2, ({ pid }) => pid],
  ['STATUS', 0.45, ({ story }) => story],
  ['SINCE', 0.2, ({ age, askAge, level }) => level === 'asks' ? askAge : age],
  ['DETAIL', 1, ({ detail }) => detail],
];
const [MACHINE, STATUS, DETAIL] = [0, 3, 5];
const STATUS_SHARE = 0.3; // beside a detail

/** A table as wide as the terminal. Between two drawings, only STATUS may become narrower, for the first detail. */
export class Table {
  #width = 0;
  #widths: number[] = [];
  #hasMachines = false;
  #hasDetails = false;

  /** Returns the header, and a line for each system. */
  linesOf(views: readonly View[], width: number): string[] {
    if (width !== this.#width) this.#widths = COLUMNS.map(([title]) => title.length);
    this.#width = width;
    this.#hasMachines ||= views.some(({ machine }) => machine !== '');
    this.#hasDetails ||= views.some(({ detail }) => detail !== '');
    const names = views.map(({ fullName }) => fullName);
    const isUnique = (name = ''): boolean => names.indexOf(name) === names.lastIndexOf(name);
    const cells = views.map((view, at) => COLUMNS.map(([, , textOf]) => textOf(view, isUnique(names[at]))));
    this.#widths = this.#widths.map((least, column) => {
      return column === DETAIL ? width : Math.max(least, ...cells.map((texts) => columnsOf(`${texts[column]}`)));
    });
    let rest = width;
    const widths = COLUMNS.map(([, most], column) => {
      const share = column === STATUS && this.#hasDetails ? STATUS_SHARE : most;
      if (column === MACHINE && !this.#hasMachines) return 0;
      const least = Math.min(this.#widths[column] as number, Math.floor(share * width), rest);
      if (least >= MIN_WIDTH) rest -= least + GAP.length;
      return least < MIN_WIDTH ? 0 : least;
    });
    return [COLUMNS.map(([title]) => title), ...cells].map((texts, line) => {
      const shown = texts.map((text, column) => fit(text, widths[column] as number));
      const { level, status = '' } = views[line - 1] ?? {};
      if (status !== '') shown[STATUS] = paintStatus(`${shown[STATUS]}`, level === 'asks' ? level : status);
      return shown.filter((_, column) => widths[column] !== 0).join(GAP);
    });
  }
}

// ───── The screen ────────────────────────────────────────────────────────────────────────────────────────────────

const SOON_MS = 200; // changes within this time are drawn together

/** A detached terminal may have no size. */
function terminalSize(): { columns: number; rows: number } {
  return { columns: process.stdout.columns || 80, rows: process.stdout.rows || 24 };
}

/** Draws on the whole terminal, and writes only the changed lines. */
export class Screen {
  /** Whether it may draw. */
  isOn: boolean = false;
  readonly #linesOf: (width: number, height: number) => readonly string[];
  #shown: readonly string[] = [];
  #timer: NodeJS.Timeout | undefined;

  /** @param linesOf Returns lines that fit the width. */
  constructor(linesOf: (width: number, height: number) => readonly string[]) {
    this.#linesOf = linesOf;
    process.stdout.on('resize', this.redraw);
  }

  /** Draws soon. */
  refresh(): void {
    if (this.isOn) this.#timer ??= setTimeout(() => this.draw(), SOON_MS);
  }

  draw(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    if (!this.isOn || jobState() === 'background') return;
    const { columns, rows } = terminalSize();
    const lines = this.#linesOf(columns, rows).slice(0, rows);
    let text = '';
    for (let index = 0; index < rows; index++) {
      const line = lines[index] ?? '';
      if (line !== this.#shown[index]) text += `\x1b[${index + 1}H\x1b[2K${line}`;
    }
    this.#shown = Array.from({ length: rows }, (_, index) => lines[index] ?? '');
    // Wrapping is off, so a character that is wider than expected shifts only the rest of its line.
    if (text !== '') process.stdout.write(`\x1b[?7l${text}\x1b[?7h\x1b[${lines.length + 1}H`);
  }

  /** Draws all lines, because the terminal may show anything. */
  readonly redraw = (): void => {
    this.#shown = [];
    this.draw();
  };

  close(): void {
    this.isOn = false;
    clearTimeout(this.#timer);
    process.stdout.off('resize', this.redraw);
  }
}
