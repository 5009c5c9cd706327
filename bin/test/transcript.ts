// Transcripts: what people type, what a tool prints, and what systems receive. RECORD=1 writes what is seen into the
// file: a change of words is a diff to read.
//
//   # a scene: it begins without systems, and in an empty folder
//   @ a-1 {status: 'paused'}   a puppet at the socket a-1.sock of the folder; later lines change what it reports
//   @ b {}                     without a process id: at a port, which is shown as 127.0.0.1:B
//   $ status a                 the tool; with `$b status`, at the address of b
//   active                     what it prints; lines of stderr begin with `! `, the last one with a code other than 0
//   > a-1 POST /api/pause      what systems receive, other than GET; nothing else may arrive
//   $ wait offline a &         runs on; `$ fg` shows the rest
//   $ pause {a|'b c'}          once with each; the words become {} if the outputs differ in nothing else
//
// Of a puppet, `post` replaces the response to commands, `code` is the status code, `raw` is the body as a text; `old`
// reports the status only; `silent`, `cut` and `gone` do not respond. A value may be a function of the request.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { assertHarmless, type Ended } from './helpers.ts';
import { openSession, type Respond, startWeb, type Web } from './tools/client/systems.ts';
import { END_MS, inTime, LIMIT, until } from './wait.ts';

/** Runs the tool in this process. A usage error is thrown. */
export type Tool = (args: readonly string[], env: NodeJS.ProcessEnv) => Promise<Ended>;

const IS_RECORDING = process.env['RECORD'] !== undefined;

/** Of the info of a puppet without a name. */
const DULL = /^name {7}\(process {2}on \)$|^version {3}9\.0\.0$/;

/** What differs from run to run, or is too long to read. */
const VARIABLE: readonly (readonly [pattern: RegExp, shown: string])[] = [
  [/\b\d+(\.\d+)? s\b/g, 'N s'], [/"seconds":[\d.]+/g, '"seconds":N'],
  [/\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+Z)?/g, 'TIME'], [/\b\d\d:\d\d:\d\d\b/g, 'CLOCK'],
  [/ in JSON at position \d+( \(line \d+ column \d+\))?/g, ' in JSON'], // by the version of Node
  [/\s*(😀){9,}/gu, '😀…'], [/x{99,}/g, 'xxx…'],
];

/** Defines a test for each scene of a transcript. `names` are what its lines with @ can use. */
export function transcript(path: string, toolName: string, tool: Tool, names: Record<string, unknown> = {}): void {
  const [head = '', ...scenes] = readFileSync(path, 'utf8').split(/^(?=# )/m);
  const recorded: string[] = [];
  describe(path.replace(/.*\/|\.txt$/g, ''), { ...LIMIT, concurrency: IS_RECORDING ? 1 : 4 }, () => {
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

interface Puppet {
  web: Web;
  state: Record<string, any>;
  /** How many of its requests have been shown. */
  shown: number;
}

class Stage {
  readonly #t: TestContext;
  readonly #toolName: string;
  readonly #tool: Tool;
  readonly #names: Record<string, unknown>;
  readonly #folder: string;
  readonly #puppets: Map<string, Puppet> = new Map();
  #running: Promise<string[]> | undefined;

  constructor(t: TestContext, toolName: string, tool: Tool, names: Record<string, unknown>) {
    [this.#t, this.#toolName, this.#tool, this.#names] = [t, toolName, tool, names];
    this.#folder = openSession(t).folder;
  }

  /** Returns the lines as they should have been. */
  async play(lines: readonly string[]): Promise<string[]> {
    const seen: string[] = [];
    for (const line of lines) {
      const isComment = line === '' || line.startsWith('//');
      if (isComment || /^[@$]/.test(line)) seen.push(line);
      if (line.startsWith('@')) await this.#direct(line);
      if (line.startsWith('$')) seen.push(...await this.#typeEach(line));
    }
    return seen;
  }

  /** Starts a puppet, or changes it. */
  async #direct(line: string): Promise<void> {
    const [, name = '', source = ''] = /^@ (\S+) ?(.*)$/.exec(line) ?? assert.fail(line);
    const read = new Function(...Object.keys(this.#names), `return (${source || '{}'});`);
    const change = read(...Object.values(this.#names)) as Puppet['state'];
    const known = this.#puppets.get(name);
    if (change['gone'] === true) return known?.web.end();
    if (known !== undefined) return void Object.assign(known.state, change);
    const state = { status: 'active', version: '9.0.0', ...change };
    const place = /-\d+$/.test(name) ? { socketPath: join(this.#folder, `${name}.sock`) } : {};
    this.#puppets.set(name, { web: await startWeb(this.#t, respondAs(state), place), state, shown: 0 });
  }

  /** Types a line once for each word of {a|b}. Returns what is shown, once if it is the same. */
  async #typeEach(line: string): Promise<string[]> {
    const [all = '', list] = /\{([^{}"]*\|[^{}"]*)\}/.exec(line) ?? [];
    if (list === undefined) return this.#type(line);
    const type = async (word: string): Promise<[shown: string, abstract: string]> => {
      const shown = (await this.#type(line.replace(all, () => word))).join('\n');
      const bare = wordsOf(word).join('');
      const quoted = shown.replaceAll(`'${bare}'`, "'{}'").replaceAll(`"${bare}"`, '"{}"');
      const pattern = new RegExp(`(?<![\\w.])${bare.replaceAll(/\W/g, '\\$&')}(?![\\w.])`, 'g');
      return [shown, /\w/.test(bare) ? quoted.replaceAll(pattern, '{}') : quoted];
    };
    const results: [shown: string, abstract: string][] = [];
    const words = list.split('|');
    if (/^\$\S* wait /.test(line)) results.push(...await Promise.all(words.map(type))); // each takes its time
    else for (const word of words) results.push(await type(word));
    const isSame = new Set(results.map(([shown]) => shown)).size === 1;
    const isAlike = new Set(results.map(([, abstract]) => abstract)).size === 1;
    const distinct = new Set(results.map(([shown, abstract]) => isAlike && !isSame ? abstract : shown));
    return [...distinct].flatMap((one) => one === '' ? [] : one.split('\n'));
  }

  async #type(line: string): Promise<string[]> {
    const [, name = '', text = ''] = /^\$(\S*) (.*)$/.exec(line) ?? assert.fail(line);
    if (text === 'fg') return this.#running ?? assert.fail('nothing runs');
    const isBackground = text.endsWith(' &');
    const words = wordsOf(isBackground ? text.slice(0, -2) : text).map((word) => this.#address(word));
    const place = name === '' ? [] : ['--host', '127.0.0.1', '--port', `${this.#puppets.get(name)?.web.port}`];
    const before = this.#requestCount();
    const ended = this.#tool([...place, ...words], name === '' ? { CONTROL_DIR: this.#folder } : {});
    const shown = this.#show(inTime(ended, () => `${line}: does not end`, END_MS));
    if (!isBackground) return shown;
    this.#running = shown;
    await until(() => this.#requestCount() > before, () => `${line}: asks nobody`);
    return [];
  }

  #requestCount(): number {
    return [...this.#puppets.values()].reduce((sum, { web }) => sum + web.requests.length, 0);
  }

  /** Puts the port of a puppet in place of its name in upper case, and the folder in place of DIR. */
  #address(word: string): string {
    const port = (_: string, host: string, name: string): string => {
      return `${host}:${this.#puppets.get(name.toLowerCase())?.web.port ?? name}`;
    };
    return word.replace(/^(|127\.0\.0\.1):([A-Z]\w*)$/, port).replace(/^DIR\b/, this.#folder);
  }

  async #show(ending: Promise<Ended>): Promise<string[]> {
    const { code, stdout, stderr } = await ending.catch((error: Error) => { // a usage error
      return { code: 2, stdout: '', stderr: `${this.#toolName}: ${error.message}\n` };
    });
    assertHarmless(stdout + stderr);
    const errors = this.#linesOf(stderr).map((line) => `! ${line.replace(`${this.#toolName}: `, '')}`);
    if (code !== 0) errors.push(`! [${code}] ${(errors.pop() ?? '').slice(2)}`.trimEnd());
    const isOrdered = this.#puppets.size < 2;
    const sort = (lines: string[]): string[] => isOrdered ? lines : lines.sort();
    return [...sort(this.#linesOf(stdout)), ...sort(errors), ...this.#newPosts()];
  }

  #linesOf(text: string): string[] {
    const lines = this.#tidy(text).split('\n').slice(0, -1).filter((line) => !DULL.test(line));
    return lines.map((line) => line === '' ? '~' : line); // an empty line of the transcript separates scenes
  }

  #tidy(text: string): string {
    let tidied = text;
    for (const [name, { web: { port } }] of this.#puppets) {
      if (port > 0) tidied = tidied.replaceAll(`:${port}`, `:${name.toUpperCase()}`);
    }
    tidied = tidied.replaceAll(this.#folder, 'DIR').replaceAll(process.cwd(), 'CWD');
    for (const [pattern, shown] of VARIABLE) tidied = tidied.replaceAll(pattern, shown);
    return tidied;
  }

  #newPosts(): string[] {
    return [...this.#puppets].flatMap(([name, puppet]) => {
      const { requests } = puppet.web;
      const posts = requests.slice(puppet.shown).filter((request) => !request.startsWith('GET'));
      puppet.shown = requests.length;
      return posts.map((request) => `> ${name} ${request}`);
    });
  }
}

function respondAs(state: Puppet['state']): Respond {
  return async (request) => {
    const valueOf = async (key: string): Promise<any> => {
      return typeof state[key] === 'function' ? await state[key](request) : state[key];
    };
    if (await valueOf('silent') === true) return new Promise(() => {});
    if (await valueOf('cut') === true) return null;
    const { post, raw, old, silent, cut, ...info } = state;
    if (request.method === 'POST' && old === undefined) return { result: 'ok', ...info, ...await valueOf('post') };
    if (request.method === 'POST') return { result: 'ok' };
    if (raw !== undefined) return await valueOf('raw');
    if (old === undefined) return info;
    return request.url === '/api/status' ? { status: info['status'] } : { code: 404, error: 'Not found' };
  };
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
