// control-client top: a live table of systems, and keys that control them.

import { once, setMaxListeners } from 'node:events';
import { emitKeypressEvents, type Interface, type Key } from 'node:readline';
import { SystemStatus } from '../../control.ts';
import { EXIT, UsageError, warn } from '../shared/cli.ts';
import { BY } from '../shared/client.ts';
import { stackIn } from '../shared/declared.ts';
import { Fleet } from '../shared/fleet.ts';
import { readHistory } from '../shared/logs.ts';
import { select } from '../shared/names.ts';
import { describeDone, follow, FollowedSystem } from '../shared/system.ts';
import { CTRL_C, CTRL_Z, ESCAPE_MS, jobState, type RawMode, startRawMode } from '../shared/terminal.ts';
import { clockTime, printable } from '../shared/text.ts';
import { endLinks, findIn, keepTerminal, PATIENCE_MS } from '../shared/via.ts';
import { compareViews, describeInfo, type View, viewOf } from '../shared/view.ts';
import { fit, Screen, Table, wrap } from './list.ts';
import { SIGNALS, type Verb, verb, warnUnreachable } from './verb.ts';
import type { Folder, Found } from '../shared/folder.ts';

// ESC [ ? 1049 h and l enter and leave the alternate screen, ESC [ ? 25 l and h hide and show the cursor, ESC [ 7 m and
// ESC [ 27 m begin and end inverse video.
const ENTER = '\x1b[?1049h\x1b[?25l';
const LEAVE = '\x1b[?25h\x1b[?1049l';
const inverse = (text: string): string => `\x1b[7m${text}\x1b[27m`;

const HELP = 'q quit  p pause  r resume  s save  d shut down  i info  l log  t stack  / filter';
const COMMANDS: Readonly<Record<string, string>> = { p: 'pause', r: 'resume', s: 'save-state' };
const ANSWER = ' [y/N]';
const COMMAND_MS = 30_000;
const QUIT_MS = 2000; // for pending commands
const INDENT = ' '.repeat(10); // of the values in describeInfo()
const READ_MS = 2000; // between two readings of what is visible
const WAIT_S = 20; // each request waits this long for a change: 500 systems must stay cheap
const MAX_ENDED = 100;
const LINES_MS = 2000; // between two readings of the log or the stack that is shown
const MAX_ENTRIES = 50; // of the log
const NONE = 'nothing runs: it may still start';

/** Shows the given systems, and those in folders, until `q` or Ctrl-C. Always restores the terminal. */
class Top {
  readonly #end = new AbortController();
  readonly #screen = new Screen((width, height) => this.#linesOf(width, height));
  readonly #views = new Map<FollowedSystem, View>(); // until news of the system, or the next reading
  readonly #onNews = (system: FollowedSystem): void => {
    this.#views.delete(system);
    this.#screen.refresh();
  };
  readonly #fleet = new Fleet({
    create: (target) => new FollowedSystem(target), maxEnded: MAX_ENDED, waitS: WAIT_S, onReply: this.#onNews,
  });
  readonly #errors = new Map<Folder, string>(); // why folders cannot be searched
  #visible: readonly FollowedSystem[] = [];
  readonly #table = new Table();
  readonly #limit = new AbortController(); // ends the commands, which outlive the table
  readonly #sent: Promise<void>[] = [];
  #rawMode: RawMode | undefined;
  #mode: 'table' | 'filter' | 'question' | 'info' | 'log' | 'stack' = 'table';
  #filter = '';
  /** The latest outcome. */
  #message = '';
  #selected: FollowedSystem | undefined;
  /** The system of the question, the info, the log or the stack. It may leave the table in the meantime. */
  #subject: FollowedSystem | undefined;
  #question = { command: '', text: '' };
  #lines: readonly string[] = []; // the log or the stack of the subject, once it is read
  #linesAt = -Infinity; // when it was read
  #index = 0; // of the selected row
  #first = 0; // index of the first visible row
  #room = 1; // number of rows that fit

  async run(targets: readonly Found[], folders: readonly Folder[], timeoutMs: number): Promise<void> {
    const { stdin } = process;
    setMaxListeners(0, this.#limit.signal, this.#end.signal); // a listener per command, and per reading
    const quit = (reason?: unknown): void => this.#end.abort(reason);
    for (const signal of SIGNALS) process.once(signal, quit);
    process.on('exit', this.#close); // after an error
    emitKeypressEvents(stdin, { escapeCodeTimeout: ESCAPE_MS } as unknown as Interface); // it reads no other field
    stdin.on('keypress', this.#onKey).on('end', quit).on('error', quit);
    this.#rawMode = startRawMode(this.#enter);
    if (this.#rawMode.isOn) this.#enter();
    for (const target of targets) this.#fleet.add(target, true);
    for (const folder of folders) void this.#addAll(folder, timeoutMs);
    const timer = setInterval(() => this.#read(), READ_MS);
    await once(this.#end.signal, 'abort');
    clearInterval(timer);
    this.#fleet.close();
    this.#close();
    stdin.off('keypress', this.#onKey).pause();
    for (const signal of SIGNALS) process.off(signal, quit);
    const limit = setTimeout(() => this.#limit.abort(), QUIT_MS);
    await Promise.all(this.#sent);
    clearTimeout(limit);
    const signal = SIGNALS.find((name) => name === this.#end.signal.reason);
    if (signal !== undefined) process.kill(process.pid, signal); // so that the shell sees the signal
  }

  async #addAll(folder: Folder, timeoutMs: number): Promise<void> {
    for await (const error of this.#fleet.addAll(folder, timeoutMs, this.#end.signal)) {
      this.#errors.set(folder, printable(error));
      this.#screen.refresh();
    }
  }

  /** Reads the details of what is visible, and draws, because durations grow. */
  #read(): void {
    for (const system of this.#visible) {
      const onNews = (): void => this.#onNews(system);
      if (!this.#fleet.hasEnded(system)) void system.read(onNews, this.#end.signal).then(onNews);
    }
    this.#views.clear();
    this.#screen.refresh();
  }

  #viewOf(system: FollowedSystem): View {
    const view = this.#views.get(system) ?? viewOf(system);
    this.#views.set(system, view);
    return view;
  }

  readonly #enter = (): void => {
    if (!this.#screen.isOn) process.stdout.write(ENTER);
    this.#screen.isOn = true;
    this.#screen.redraw();
  };

  #leave(): void {
    if (this.#screen.isOn && jobState() !== 'background') process.stdout.write(LEAVE);
    this.#screen.isOn = false;
  }

  readonly #close = (): void => {
    this.#leave();
    this.#rawMode?.end();
    this.#screen.close();
  };

  // ───── Display ─────────────────────────────────────────────────────────────────────────────────────────────────

  #linesOf(width: number, height: number): string[] {
    const lines = this.#bodyOf(width, height);
    const rest = Array.from({ length: height }, () => '');
    return [...[...lines, ...rest].slice(0, height - 1), fit(this.#lastLine(width), width)];
  }

  #bodyOf(width: number, height: number): string[] {
    switch (this.#mode) {
      case 'info': return this.#describe(this.#subject as FollowedSystem, width);
      case 'log':
      case 'stack': return this.#showLines(this.#subject as FollowedSystem, width, height);
      default: return this.#list(width, height);
    }
  }

  #list(width: number, height: number): string[] {
    const all = this.#sorted();
    const found = this.#found(all);
    const index = found.findIndex((system) => system === this.#selected);
    this.#index = Math.max(0, Math.min(index < 0 ? this.#index : index, found.length - 1));
    this.#selected = found[this.#index];
    this.#room = Math.max(1, height - 3);
    const last = Math.max(0, Math.min(this.#index, found.length - this.#room));
    this.#first = Math.max(this.#index - this.#room + 1, Math.min(this.#first, last));
    this.#visible = found.slice(this.#first, this.#first + this.#room);
    const lines = this.#table.linesOf(this.#visible.map((system) => this.#viewOf(system)), width);
    const shown = lines.map((line, at) => at - 1 === this.#index - this.#first ? inverse(line) : line);
    return [fit(this.#summarize(all, found.length), width), ...shown];
  }

  #sorted(): FollowedSystem[] {
    return this.#fleet.all.sort((one, other) => compareViews(this.#viewOf(one), this.#viewOf(other)));
  }

  /** `60 systems, 1 asking: 1 offline, 2 paused, 57 active`. */
  #summarize(all: readonly FollowedSystem[], found: number): string {
    const views = all.map((system) => this.#viewOf(system));
    const error = [...this.#errors.values()].filter((text) => text !== '').join('; ');
    const counts = new Map(Object.values(SystemStatus).map(({ statusName }) => [statusName, 0]));
    for (const { status } of views) counts.set(status, (counts.get(status) ?? 0) + 1);
    const parts = [...counts].filter(([, count]) => count > 0).reverse(); // a narrow terminal cuts the last ones
    const texts = parts.map(([status, count]) => `${count} ${status || 'connecting'}`).join(', ');
    const asking = views.filter(({ level }) => level === 'asks').length;
    const asks = asking === 0 ? '' : `, ${asking} asking`;
    const size = all.length === 1 ? '1 system' : `${all.length} systems`;
    const systems = all.length === 0 ? NONE : `${size}${asks}${texts && ': '}${texts}`;
    return `${systems}${this.#filter && `; '${this.#filter}' matches ${found}`}${error && `; ${error}`}`;
  }

  #describe(system: FollowedSystem, width: number): string[] {
    this.#visible = [system];
    const { fullName, story } = this.#viewOf(system);
    const lines = system.info['status'] === undefined ? [] : describeInfo(system);
    const title = `${fullName}: ${story}${system.isCurrent ? '' : '; before:'}`;
    return [inverse(fit(title, width)), ...lines.flatMap((line) => wrap(line, width, INDENT))];
  }

  /** The latest entries of the log that fit, the newest last, or the stack. Reads them again when they are old. */
  #showLines(system: FollowedSystem, width: number, height: number): string[] {
    const mode = this.#mode;
    this.#visible = [system];
    if (performance.now() - this.#linesAt >= LINES_MS) void this.#readLines(system, mode);
    const wrapped = this.#lines.flatMap((line) => wrap(line, width, INDENT));
    const shown = mode === 'log' ? wrapped.slice(2 - height) : wrapped;
    return [inverse(fit(`${mode} of ${this.#viewOf(system).fullName}`, width)), ...shown];
  }

  async #readLines(system: FollowedSystem, mode: string): Promise<void> {
    this.#linesAt = Infinity;
    const lines = mode === 'log' ? await readEntries(system) : await readStack(system);
    if (this.#subject !== system || this.#mode !== mode) return;
    [this.#lines, this.#linesAt] = [lines, performance.now()];
    this.#screen.refresh();
  }

  #lastLine(width: number): string {
    switch (this.#mode) {
      case 'info':
      case 'log':
      case 'stack': return 'press any key to return';
      case 'filter': return `/${this.#filter}_  (Enter keeps it, Esc clears it)`;
      case 'question': return `${fit(this.#question.text, width - ANSWER.length).trimEnd()}${ANSWER}`;
      case 'table': return this.#message || HELP;
    }
  }

  #found(all: readonly FollowedSystem[] = this.#sorted()): readonly FollowedSystem[] {
    const filter = this.#filter.toLowerCase();
    return all.filter((one) => {
      const { fullName, level, status } = this.#viewOf(one);
      return `${fullName} ${level === 'asks' ? 'asks ' : ''}${status}`.toLowerCase().includes(filter);
    });
  }

  // ───── Keys ────────────────────────────────────────────────────────────────────────────────────────────────────

  readonly #onKey = (_: string | undefined, { name = '', sequence: key = '' }: Key): void => {
    if (this.#end.signal.aborted) return; // keys in the same chunk, after q
    if (/^\x1b.$/su.test(key)) { // Esc and soon another key, or Alt
      this.#onKey(undefined, { name: 'escape', sequence: '\x1b' });
      return this.#onKey(undefined, { name, sequence: key.slice(1) });
    }
    if (key === CTRL_C) return this.#end.abort();
    if (key === CTRL_Z) {
      this.#leave();
      return this.#rawMode?.suspend();
    }
    if (name === 'enter') this.#rawMode?.renew(); // in raw mode, the key is called return
    this.#message = '';
    const mode = this.#mode;
    if (mode !== 'filter' || ['escape', 'return', 'enter'].includes(name)) this.#mode = 'table';
    if (mode === 'table') this.#onTableKey(name, key);
    if (mode === 'filter') this.#onFilterKey(name, key);
    if (mode === 'question') this.#onAnswer(key);
    this.#screen.draw();
  };

  #onTableKey(name: string, key: string): void {
    const steps: Record<string, number> = {
      up: -1, k: -1, down: 1, j: 1, pageup: -this.#room, pagedown: this.#room, home: -Infinity, end: Infinity,
    };
    const found = this.#found();
    const system = this.#selected;
    if (key === 'q') this.#end.abort();
    if (key === '/') this.#mode = 'filter';
    if (name === 'escape') this.#filter = '';
    if (Object.hasOwn(steps, name)) {
      const index = this.#index + (steps[name] as number);
      this.#selected = found[Math.max(0, Math.min(index, found.length - 1))];
    }
    if (system === undefined) return;
    const { fullName, othersHold } = this.#viewOf(system);
    if (key === 'r' && othersHold !== '') this.#ask('resume', `Resume ${fullName}, ${othersHold}?`);
    else if (Object.hasOwn(COMMANDS, key)) this.#sent.push(this.#send(COMMANDS[key] as string, system));
    if (key === 'd') this.#ask('shutdown', `Shut ${fullName} down?`);
    if (key === 'i' || name === 'return' || name === 'enter') [this.#mode, this.#subject] = ['info', system];
    const lines = key === 'l' ? 'log' : key === 't' ? 'stack' : null;
    if (lines !== null) [this.#mode, this.#subject, this.#lines, this.#linesAt] = [lines, system, [], -Infinity];
  }

  #onFilterKey(name: string, key: string): void {
    if (name === 'escape') this.#filter = '';
    if (name === 'backspace') this.#filter = this.#filter.replace(/.$/u, '');
    if (/^\P{Cc}+$/u.test(key)) this.#filter += key;
  }

  #ask(command: string, text: string): void {
    [this.#mode, this.#subject, this.#question] = ['question', this.#selected, { command, text }];
  }

  #onAnswer(key: string): void {
    const { command } = this.#question;
    if (key.toLowerCase() === 'y') this.#sent.push(this.#send(command, this.#subject as FollowedSystem));
    else this.#message = `${command} cancelled`;
  }

  async #send(command: string, system: FollowedSystem): Promise<void> {
    const { client } = system;
    const name = this.#viewOf(system).fullName;
    this.#message = `${command} ${name} …`;
    const options = { timeoutMs: COMMAND_MS, by: BY, signal: this.#limit.signal };
    const { value, seconds, summary } = await follow(client, command, options);
    this.#message = `${command} ${name}: ${summary || describeDone(command, value)} (${seconds.toFixed(1)} s)`;
    if (this.#end.signal.aborted) warn(this.#message);
    else this.#screen.refresh();
  }
}

async function readEntries({ client, info }: FollowedSystem): Promise<string[]> {
  const { note, lines } = await readHistory(client, info);
  const texts = lines.slice(-MAX_ENTRIES).map(({ time, text }) => `${clockTime(new Date(time))}  ${text}`);
  return note === '' ? texts : [...texts, note];
}

async function readStack({ client }: FollowedSystem): Promise<string[]> {
  const reply = await client.request('stack');
  return reply.ok ? stackIn(reply.body) : [reply.error];
}

// ───── The verb ──────────────────────────────────────────────────────────────────────────────────────────────────

export const top: Verb = verb({
  name: 'top', help: 'show the targets, or what runs here, as a live table',
  async run({ words, values, requestMs: timeoutMs }) {
    const isTerminal = process.stdout.isTTY && process.stdin.isTTY;
    if (!isTerminal || values.json === true) {
      const why = isTerminal ? 'excludes --json' : 'requires a terminal';
      throw new UsageError(`top ${why}; 'watch' prints a line for each change`);
    }
    const { targets, folders, none } = await select(words, { ...values, timeoutMs }, 'later');
    if (targets.length + folders.length === 0) {
      const exitCode = warnUnreachable();
      if (exitCode === EXIT.DONE) warn(none);
      return exitCode || EXIT.OFFLINE;
    }
    const others = folders.filter(({ machine }) => machine.open !== undefined);
    await findIn(others, (folder) => folder.systems({ timeoutMs }), PATIENCE_MS); // may ask for passwords
    await keepTerminal();
    await new Top().run(targets, folders, timeoutMs);
    endLinks();
    return EXIT.DONE;
  },
});
