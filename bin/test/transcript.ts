// Transcripts: what people type, what a tool prints, and what systems receive. `RECORD=1` writes what is seen into the
// file: a change of words is a diff to read.
//
//   # a scene: it begins without systems, and in an empty folder
//   @ a-1 {status: 'paused'}   a puppet at the socket a-1.sock of the folder; later lines change it; `gone: true` ends
//                              it, and the next line starts another one there
//   @ gpu1/a-1 {}              the same in the folder gpu1/, as if on another machine
//   @ b {}                     without a process id or `.sock`: at a port, which is shown as 127.0.0.1:B
//   & train.jsonl end('4:00')  a file of the folder gets lines: texts, and objects as JSON; a function gets its path
//   $ status a                 the tool; with `$b status`, at the address of b; with `$ CONTROL_BY=ana pause`, with a
//                              variable; `CONTROL_PORT=:B` and `--port=:B` have the number of the port alone
//   < pause                    a line of its standard input
//   active                     what it prints; lines of stderr begin with `! `, the last one with a code other than 0
//   > a-1 POST /api/pause      what systems receive, other than GET, without the usual sender; nothing else may arrive
//   $ pause {a|'b c'}          once with each; the words become {} if the outputs differ in nothing else
//   $a wait {paused|active} &  in the background, both at once; each line with @ waits until they have seen the one
//                              before. `$ fg` waits for their ends, and shows the rest
//   ~                          an empty line that is printed; DIR is the folder, of logs, too; N s is a duration
//
// What a puppet can do is in puppet.ts.

import assert from 'node:assert/strict';
import { appendFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { get } from 'node:http';
import { hostname } from 'node:os';
import { dirname, join } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { BY } from '../shared/client.ts';
import { assertHarmless, type Ended } from './helpers.ts';
import { lacks } from './needs.ts';
import { type Puppet, startPuppet } from './puppet.ts';
import { openSession } from './tools/client/systems.ts';
import { END_MS, inTime, LIMIT, until } from './wait.ts';

/** Runs the tool, in this process or in one of its own. */
export type Tool = (args: readonly string[], env: NodeJS.ProcessEnv, input: string, t: TestContext) => Promise<Ended>;

const IS_RECORDING = process.env['RECORD'] === '1' && process.env['CI'] === undefined;
const SUITE = { ...LIMIT, concurrency: IS_RECORDING ? 1 : 4, skip: lacks('Unix') };

/** The sender in a query, unless a line gives another one. */
const USUAL_SENDER = new RegExp(`by=${encodeURIComponent(BY)}&?`);

/** What differs from run to run or between versions of Node, or is too long to read. */
const VARIABLE: readonly (readonly [pattern: RegExp, show: (all: string) => string])[] = [
  [/\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+Z)?/g, () => 'TIME'], [/\b\d\d:\d\d:\d\d\b/g, () => 'CLOCK'],
  [/\b\d+(\.\d+)? s\b/g, () => 'N s'], [/"seconds":[\d.]+/g, () => '"seconds":N'],
  [/ in JSON at position \d+( \(line \d+ column \d+\))?/g, () => ' in JSON'],
  [/(😀){9,}/gu, (all) => `😀×${[...all].length}`], [/x{99,}/g, (all) => `x×${all.length}`],
];

/** Defines a test for each scene of a transcript. `names` are what its lines with @ and & can use. */
export function transcript(
  path: string,
  toolName: string,
  tool: Tool,
  names: Record<string, unknown> = {},
  skip: ReturnType<typeof lacks> = SUITE.skip,
): void {
  const [head = '', ...scenes] = readFileSync(path, 'utf8').split(/^(?=# )/m);
  assert.ok(!head.startsWith('#'), `${path} must begin with a line that says what it is for`);
  const recorded: string[] = [];
  describe(path.replace(/.*\/|\.txt$/g, ''), { ...SUITE, skip }, () => {
    for (const scene of scenes) {
      const [title = '', ...lines] = scene.trimEnd().split('\n');
      it(title.slice(2), async (t) => {
        const seen = await new Stage(t, toolName, tool, names).play(lines);
        recorded.push(`${title}\n${seen.join('\n')}\n`);
        if (!IS_RECORDING) assert.equal(seen.join('\n'), lines.join('\n'));
        else if (recorded.length === scenes.length) writeFileSync(path, head + recorded.join('\n'));
      });
    }
  });
}

interface Seen {
  puppet: Puppet;
  isGone: boolean;
  /** How many of its requests have been shown. */
  shown: number;
}

class Stage {
  readonly #t: TestContext;
  readonly #toolName: string;
  readonly #tool: Tool;
  readonly #names: Record<string, unknown>;
  readonly #folder: string;
  readonly #puppets: Map<string, Seen> = new Map();
  /** What runs in the background: how many at once, and what they show at their ends. */
  #running: { count: number; hasEnded: boolean; shown: Promise<string[]> } | undefined;

  constructor(t: TestContext, toolName: string, tool: Tool, names: Record<string, unknown>) {
    [this.#t, this.#toolName, this.#tool, this.#names] = [t, toolName, tool, names];
    this.#folder = openSession(t).folder;
  }

  /** Returns the lines as they should have been. */
  async play(lines: readonly string[]): Promise<string[]> {
    const seen: string[] = [];
    for (const [index, line] of lines.entries()) {
      if (/^[@&$]/.test(line)) seen.push(line);
      if (line.startsWith('@')) await this.#direct(line);
      if (line.startsWith('&')) await this.#write(line);
      if (!line.startsWith('$')) continue;
      const end = lines.findIndex((one, place) => place > index && !one.startsWith('< '));
      const input = lines.slice(index + 1, end < 0 ? undefined : end);
      seen.push(...input, ...await this.#typeEach(line, input.map((one) => `${one.slice(2)}\n`).join('')));
    }
    assert.equal(this.#running, undefined, 'a scene ends with `$ fg` if it has begun something with `&`');
    await Promise.all([...this.#puppets.values()].map(visit)); // whatever was sent before has arrived
    return [...seen, ...this.#newPosts()];
  }

  /** Starts a puppet, or changes it. */
  async #direct(line: string): Promise<void> {
    const [, name = '', source = ''] = /^@ (\S+) ?(.*)$/.exec(line) ?? assert.fail(line);
    const { gone, ...change } = this.#read(source || '{}') as Puppet['state'];
    const known = this.#puppets.get(name);
    if (known !== undefined) await this.#untilSeen(known, line);
    if (known === undefined || known.isGone) return this.#startPuppet(name, change, known);
    if (gone !== true) return known.puppet.set(change);
    known.isGone = true;
    if (this.#running === undefined || known.puppet.held() > 0) known.puppet.end();
    else await known.puppet.endWithNext();
  }

  async #startPuppet(name: string, state: Puppet['state'], before?: Seen): Promise<void> {
    const [, title] = /^(.+(?=\.sock$)|.+-\d+$)/.exec(name) ?? [];
    const path = join(this.#folder, `${title}.sock`);
    if (name.includes('/')) mkdirSync(dirname(path), { recursive: true, mode: 0o700 }); // another machine's folder
    const place = title === undefined ? { port: before?.puppet.port ?? 0 } : { socketPath: path };
    const puppet = await startPuppet(this.#t, state, place);
    puppet.urls.unshift(...before?.puppet.urls ?? []);
    this.#puppets.set(name, { puppet, isGone: false, shown: before?.shown ?? 0 });
  }

  /** Resolves when all that runs in the background has seen how a puppet is now. */
  async #untilSeen(seen: Seen, line: string): Promise<void> {
    const running = this.#running;
    if (running === undefined) return;
    const isSeen = (): boolean => seen.puppet.met() >= requestsOf(running.count);
    await until(() => running.hasEnded || isSeen(), () => `${line}: what runs has not seen the line before`);
    await visit(seen); // so its responses have been sent
    assert.ok(!running.hasEnded, `${line}: what runs has ended before`);
  }

  /** Adds lines to a file of the folder, or does something with its path. */
  async #write(line: string): Promise<void> {
    const [, name = '', source = ''] = /^& (\S+) (.+)$/.exec(line) ?? assert.fail(line);
    const path = join(this.#folder, this.#address(name));
    const parts = this.#read(`[${source}]`);
    for (const part of (parts as unknown[]).flat()) {
      if (typeof part === 'function') await part(path);
      else appendFileSync(path, `${typeof part === 'string' ? part : JSON.stringify(part)}\n`);
    }
  }

  /** The value of an expression. */
  #read(source: string): unknown {
    const read = new Function(...Object.keys(this.#names), `return (${this.#address(source)});`);
    return read(...Object.values(this.#names));
  }

  /** Types a line once for each word of {a|b}. Returns what is shown, once if it is the same. */
  async #typeEach(line: string, input: string): Promise<string[]> {
    const [all = '', list] = /\{([^{}"]*\|[^{}"]*)\}/.exec(line) ?? [];
    if (list === undefined) return this.#type(line, input);
    const words = list.split('|');
    const typed = (word: string): string => line.replace(all, () => word);
    if (!line.endsWith(' &')) {
      const shown: string[][] = [];
      for (const word of words) shown.push(await this.#type(typed(word), input));
      return mergeShown(words, shown);
    }
    const before = this.#countAnew();
    const running = Promise.all(words.map((word) => this.#start(typed(word), input)));
    return this.#leave(line, words.length, before, running.then((shown) => mergeShown(words, shown)));
  }

  async #type(line: string, input: string): Promise<string[]> {
    if (line === '$ fg') {
      const { shown, count } = this.#running ?? assert.fail('nothing runs in the background');
      const lines = await shown;
      this.#running = undefined;
      return [...lines, ...count > 1 ? this.#newPosts().sort() : this.#newPosts()];
    }
    const before = this.#countAnew();
    const shown = this.#start(line, input);
    if (line.endsWith(' &')) return this.#leave(line, 1, before, shown);
    return [...await shown, ...this.#newPosts()];
  }

  /** Runs the tool until it ends. Resolves with what it prints. */
  async #start(line: string, input: string): Promise<string[]> {
    const [, name = '', text = ''] = /^\$(\S*)(?: (.*?)(?: &)?)?$/.exec(line) ?? assert.fail(line);
    const words = wordsOf(text).map((word) => this.#address(word));
    const isVariable = (word: string): boolean => /^[A-Z_]+=/.test(word);
    const variables = words.splice(0, words.findIndex((word) => !isVariable(word)));
    const place = name === '' ? [] : ['--host', '127.0.0.1', '--port', `${this.#puppets.get(name)?.puppet.port}`];
    const env = name === '' ? { CONTROL_DIR: this.#folder, XDG_STATE_HOME: dirname(this.#folder) } : {};
    const given = Object.fromEntries(variables.map((word) => word.split(/=(.*)/s))) as NodeJS.ProcessEnv;
    const ending = this.#tool([...place, ...words], { ...env, ...given }, input, this.#t);
    const ended = await inTime(ending, () => `${line}: does not end`, END_MS);
    return this.#show(ended, name === '' && this.#puppets.size > 1 && words[0] !== 'list'); // which has an order
  }

  /** Leaves it in the background once it has sent requests. */
  async #leave(line: string, count: number, servedBefore: number, shown: Promise<string[]>): Promise<string[]> {
    const running = { count, hasEnded: false, shown };
    this.#running = running;
    void shown.catch(() => {}).then(() => (running.hasEnded = true)); // `fg` reports a failure
    const isSeen = (): boolean => running.hasEnded || this.#countServed() >= servedBefore + requestsOf(count);
    await until(isSeen, () => `${line}: asks no system`);
    return [];
  }

  /** Begins to count what meets each puppet. Returns how many requests have been served before. */
  #countAnew(): number {
    for (const { puppet } of this.#puppets.values()) puppet.set({});
    return this.#countServed();
  }

  /** How many requests have been served, wait for a puppet, or have been refused. */
  #countServed(): number {
    const counts = [...this.#puppets.values()].map(({ puppet }) => puppet.served() + puppet.held() + puppet.refused());
    return counts.reduce((sum, count) => sum + count, 0);
  }

  /** Puts the port of a puppet in place of its name in upper case, the folder in place of DIR, and this machine. */
  #address(text: string): string {
    const port = (all: string, host: string = '', name: string = ''): string => {
      const { port } = this.#puppets.get(name.toLowerCase())?.puppet ?? {};
      return port === undefined ? all : `${host}:${port}`;
    };
    const bare = text.replaceAll(/(?<=(?:PORT|--port)=):([A-Z]\w*)\b/g, (all, name) => port(all, '', name).slice(1));
    const addressed = bare.replaceAll(/(?<!\w)(127\.0\.0\.1)?:([A-Z]\w*)\b/g, port);
    return addressed.replaceAll(/\bDIR\b/g, this.#folder).replaceAll('@HOST', `@${hostname()}`);
  }

  /** @param isMixed Whether the lines are of several systems, in any order. */
  #show({ code, stdout, stderr }: Ended, isMixed: boolean): string[] {
    assertHarmless(stdout + stderr);
    const printed = this.#linesOf(stdout);
    const errors = this.#linesOf(stderr).map((line) => `! ${line.replace(`${this.#toolName}: `, '')}`);
    if (isMixed) for (const lines of [printed, errors]) sortByFirstWord(lines);
    if (code !== 0) errors.push(`! [${code}] ${(errors.pop() ?? '').slice(2)}`.trimEnd());
    return [...printed, ...errors];
  }

  #linesOf(text: string): string[] {
    const lines = this.#tidy(text).split('\n').slice(0, -1);
    return lines.map((line) => line === '' ? '~' : line); // an empty line of the transcript separates scenes
  }

  #tidy(text: string): string {
    let tidied = text;
    for (const [name, { puppet: { port } }] of this.#puppets) {
      if (port > 0) tidied = tidied.replaceAll(`:${port}`, `:${name.toUpperCase()}`);
    }
    tidied = tidied.replaceAll(this.#folder, 'DIR').replaceAll(`${process.cwd()}/`, 'CWD/');
    tidied = tidied.replaceAll(`@${hostname()}.`, '@HOST.');
    for (const [pattern, show] of VARIABLE) tidied = tidied.replaceAll(pattern, show);
    return tidied;
  }

  #newPosts(): string[] {
    return [...this.#puppets].flatMap(([name, seen]) => {
      const { urls } = seen.puppet;
      const posts = urls.slice(seen.shown).filter((request) => !request.startsWith('GET'));
      seen.shown = urls.length;
      return posts.map((request) => `> ${name} ${request.replace(USUAL_SENDER, '').replace(/[?&]$/, '')}`);
    });
  }
}

/** What is shown once for all words: all that is different, or the same with {} in place of the word. */
function mergeShown(words: readonly string[], all: readonly string[][]): string[] {
  const results = all.map((lines, index) => {
    const shown = lines.join('\n');
    const bare = wordsOf(words[index] ?? '').join('');
    const quoted = shown.replaceAll(`'${bare}'`, "'{}'").replaceAll(`"${bare}"`, '"{}"');
    const pattern = new RegExp(`(?<![\\w.])${bare.replaceAll(/\W/g, '\\$&')}(?![\\w.])`, 'g');
    return [shown, /\w/.test(bare) ? quoted.replaceAll(pattern, '{}') : quoted] as const;
  });
  const distinct = new Set(results.map(([shown]) => shown));
  const abstract = new Set(results.map(([, one]) => one));
  const texts = distinct.size > 1 && abstract.size === 1 ? [...abstract] : [...distinct];
  return texts.flatMap((text) => text !== '' ? text.split('\n') : texts.length > 1 ? ['(nothing)'] : []);
}

/** After so many requests, each of those that run has sent one: they take turns. */
function requestsOf(count: number): number {
  return count === 1 ? 1 : 3 * count;
}

/** Keeps the order of the lines of each system. */
function sortByFirstWord(lines: string[]): void {
  const wordOf = (line: string): string => /^(! )?\S+/.exec(line)?.[0] ?? '';
  lines.sort((one, other) => wordOf(one) < wordOf(other) ? -1 : Number(wordOf(one) > wordOf(other)));
}

/** Resolves when a puppet has served a request, or is gone. */
function visit({ puppet: { port, target } }: Seen): Promise<void> {
  const place = port > 0 ? { host: '127.0.0.1', port } : { socketPath: target.replace('unix:', '') };
  return new Promise((resolve) => {
    const request = get({ ...place, path: '/visit', agent: false });
    request.on('response', (response) => response.resume().on('end', resolve)).on('error', () => resolve());
  });
}

/** Words as a shell has them, with quotes and backslashes. */
function wordsOf(text: string): string[] {
  const unquoted = /'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)/g;
  return [...text.matchAll(/(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])+/g)].map(([word]) => {
    return word.replaceAll(unquoted, (_, single, double, escaped) => {
      return single ?? double?.replaceAll(/\\(.)/g, '$1') ?? escaped;
    });
  });
}
