// Lines of input: from a terminal with prompt, editing, completion and history, or from a pipe.

import { appendFileSync, chmodSync, readFileSync, renameSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import {
  type AsyncCompleter, clearScreenDown, type CompleterResult, createInterface, cursorTo, type Interface, moveCursor,
} from 'node:readline';
import { PassThrough } from 'node:stream';
import { StringDecoder } from 'node:string_decoder';
import { warn } from '../shared/cli.ts';
import { COMMANDS, findCommand, wordsOf } from '../shared/commands.ts';
import {
  acceptedBy, completeAnswer, COMPLETION_MS, completionsOf, questionsIn, wordsBefore,
} from '../shared/declared.ts';
import { createFolders, stateFolder } from '../shared/files.ts';
import { CTRL_C, CTRL_Z, ESCAPE_MS, type RawMode, startRawMode } from '../shared/terminal.ts';
import { printable } from '../shared/text.ts';
import type { PrintableClient } from '../shared/client.ts';

export type Lines = PipedLines | TerminalLines;

// ───── A pipe ────────────────────────────────────────────────────────────────────────────────────────────────────

export class PipedLines {
  readonly isTerminal = false;
  readonly interruption: AbortController = new AbortController(); // Ctrl-C ends the process
  readonly #lines: AsyncGenerator<string>;

  constructor(input: NodeJS.ReadableStream = process.stdin) {
    this.#lines = linesOf(input);
  }

  async next(): Promise<string | null> {
    return (await this.#lines.next()).value ?? null;
  }

  ask(): Promise<string | null> {
    return this.next();
  }

  close(): void {
    void this.#lines.return(null);
  }
}

/** No comments. Not by readline: since Node 24, that also ends a line at U+2028 and U+2029, which a reason may have. */
async function* linesOf(input: NodeJS.ReadableStream): AsyncGenerator<string> {
  const decoder = new StringDecoder();
  let rest = '';
  for await (const chunk of input) {
    const lines = (rest + decoder.write(chunk as Buffer)).split(/\r\n|\n|\r(?!$)/); // at the end, LF may follow
    rest = lines.pop() as string;
    yield* lines.filter((line) => !isComment(line));
  }
  if (rest !== '' && !isComment(rest)) yield rest.replace(/\r$/, '');
}

/** Whether a line is a comment. */
export function isComment(line: string): boolean {
  return line.trimStart().startsWith('#');
}

// ───── A terminal ────────────────────────────────────────────────────────────────────────────────────────────────
//
//   keys ──▶ typed ──▶ line editor ──▶ line      Keys wait in `typed` while a command runs, and while Tab asks the
//              │                                 system for completions. They then appear after the next prompt, one
//              │                                 line at a time.
//              └─ Ctrl-Z, and Ctrl-C while a command runs, act at once

export class TerminalLines {
  readonly isTerminal = true;
  /** Aborted by Ctrl-C while the latest line runs. Each line has a new one. */
  interruption: AbortController = new AbortController();
  readonly #completions: (line: string) => Promise<CompleterResult>;
  readonly #history: History;
  readonly #editorInput: PassThrough = new PassThrough();
  readonly #editor: Interface;
  readonly #rawMode: RawMode;
  #recalled: string[]; // the lines that Up recalls
  #typed = '';
  #news = ''; // lines to print above the prompt
  #receive: ((line: string | null) => void) | null = null; // set while a line is read
  #endsInReturn = false; // the latest keys end in CR: an LF that follows belongs to it
  #isClosed = false;
  #isQuestion = false;
  #isCompleting = false;
  #interrupts = 0; // consecutive presses of Ctrl-C on an empty line

  /** @param completions Returns the completions of a line. */
  constructor(completions: (line: string) => Promise<CompleterResult>, history: History) {
    this.#completions = completions;
    this.#history = history;
    this.#recalled = history.load();
    this.#editor = createInterface({
      input: this.#editorInput, output: process.stdout, terminal: true, escapeCodeTimeout: ESCAPE_MS,
      completer: (line, done) => void this.#complete(line, done),
      history: [...this.#recalled], historySize: MAX_LINES, removeHistoryDuplicates: true,
    });
    this.#editor.on('line', (line) => this.#onLine(line));
    this.#editor.on('close', () => this.#onClose());
    this.#editor.on('SIGINT', () => this.#onInterrupt());
    this.#editor.on('history', (lines) => {
      if (this.#isQuestion) lines.splice(0, lines.length, ...this.#recalled); // without answers
      else this.#recalled = [...lines];
    });
    this.#rawMode = startRawMode(() => this.#show());
    process.stdin.setEncoding('utf8');
    process.stdin.on('data', this.#onKeys).on('end', this.#onHangUp).on('error', this.#onHangUp);
  }

  /** Whether a part of the next line is typed. */
  get isTyping(): boolean {
    return this.#editor.line !== '' || this.#typed !== '';
  }

  /** Returns the next line, or null at the end of the input. */
  async next(prompt: string): Promise<string | null> {
    const line = await this.#read(prompt);
    if (line !== null && line.trim() !== '') this.#history.add(line);
    return line;
  }

  /** Asks the user a question. Returns the answer, or null at the end of the input. */
  async ask(question: string): Promise<string | null> {
    this.#isQuestion = true;
    const answer = await this.#read(question);
    this.#isQuestion = false;
    return answer;
  }

  /** Replaces the prompt unless a question is open. */
  setPrompt(prompt: string): void {
    if (this.#isQuestion || prompt === this.#editor.getPrompt()) return;
    this.#editor.setPrompt(prompt);
    this.#show();
  }

  /** Prints a line above the current or the next prompt. The text being typed stays. */
  print(line: string): void {
    this.#news += `${line}\n`;
    this.#show();
  }

  close(): void {
    const { stdin } = process;
    this.#editor.close();
    this.#rawMode.end();
    stdin.off('data', this.#onKeys).off('end', this.#onHangUp).off('error', this.#onHangUp).pause();
  }

  async #read(prompt: string): Promise<string | null> {
    if (this.#isClosed) return null;
    const line = new Promise<string | null>((resolve) => (this.#receive = resolve));
    this.#editor.setPrompt(prompt);
    process.stdout.write(this.#news);
    this.#news = '';
    this.#editor.prompt();
    this.#feed();
    return line;
  }

  /** Redraws the prompt and the line, unless the shell has the terminal. */
  #show(): void {
    if (this.#receive === null || !this.#rawMode.isOn) return;
    if (this.#news !== '' && process.env['TERM'] !== 'dumb') this.#printAbove();
    this.#editor.prompt(true);
  }

  /** Writes the news over the prompt, which then moves down. The editor expects the cursor in the same row of it. */
  #printAbove(): void {
    const { stdout } = process;
    const { rows } = this.#editor.getCursorPos();
    moveCursor(stdout, 0, -rows);
    cursorTo(stdout, 0);
    clearScreenDown(stdout);
    stdout.write(this.#news + '\n'.repeat(rows));
    this.#news = '';
  }

  // Properties, so that close() can remove these listeners.
  readonly #onKeys = (keys: string): void => {
    const text = this.#endsInReturn ? keys.replace(/^\n/, '') : keys;
    this.#endsInReturn = keys.endsWith('\r');
    for (const part of text.replaceAll(/\r\n?|\n/g, '\r').replaceAll(/[\u2028\u2029]/g, ' ').split(/([\x03\x1a])/)) {
      if (part === CTRL_Z) {
        this.#rawMode.suspend();
      } else if (part === CTRL_C && this.#receive === null) {
        this.#typed = '';
        this.interruption.abort();
      } else {
        this.#typed += part;
      }
      this.#feed();
    }
  };

  readonly #onHangUp = (): void => {
    this.#typed = ''; // the editor accepts nothing after the end
    this.#editorInput.end();
  };

  /**
   * Passes keys to the editor until it has a whole line. Keys go one by one: the editor would append longer text to the
   * line, wherever the cursor is.
   */
  #feed(): void {
    while (this.#receive !== null && !this.#isCompleting && this.#typed !== '') {
      const [key = ''] = this.#typed; // a code point
      this.#typed = this.#typed.slice(key.length);
      this.#editorInput.write(key);
    }
  }

  #onLine(line: string): void {
    this.#interrupts = 0;
    this.interruption = new AbortController();
    this.#receive?.(line);
    this.#receive = null;
  }

  #onClose(): void {
    this.#isClosed = true;
    if (this.#receive === null) return;
    process.stdout.write('\n');
    this.#receive(null);
    this.#receive = null;
  }

  /** Ctrl-C answers a question with no, and otherwise clears the line. Pressed twice on an empty line, it quits. */
  #onInterrupt(): void {
    if (this.#editor.line !== '') {
      this.#interrupts = 0;
      this.#editor.write(null, { ctrl: true, name: 'e' });
      this.#editor.write(null, { ctrl: true, name: 'u' });
      if (!this.#isQuestion) return;
    }
    process.stdout.write('\n');
    if (this.#isQuestion) return this.#onLine('');
    this.#interrupts += 1;
    if (this.#interrupts > 1) return this.#editor.close();
    process.stdout.write('press Ctrl-C again or Ctrl-D to quit\n');
    this.#editor.prompt();
  }

  async #complete(line: string, done: Parameters<AsyncCompleter>[1]): Promise<void> {
    const answers = ['y', 'n'].filter((answer) => answer.startsWith(line.toLowerCase()));
    this.#isCompleting = true;
    const completions: CompleterResult = this.#isQuestion ? [answers, line] : await this.#completions(line);
    this.#isCompleting = false;
    if (this.#isClosed) return;
    done(null, completions);
    this.#feed();
  }
}

// ───── Tab ───────────────────────────────────────────────────────────────────────────────────────────────────────

const WORDS = Object.values(COMMANDS).flatMap(wordsOf).filter((word) => word.length > 1);

/** Completes the last word of a line. Asks the system for its own commands, but waits only briefly. */
export async function complete(client: PrintableClient, line: string): Promise<CompleterResult> {
  const words = wordsBefore(line);
  const current = words.at(-1) ?? '';
  const own = words.length > 1 ? [] : WORDS.filter((word) => word.startsWith(current.toLowerCase()));
  const command = words.length > 1 ? findCommand(Object.values(COMMANDS), words[0] ?? '') : undefined;
  if (command?.name === 'run') words.shift();
  else if (command !== undefined && command.name !== 'answer') return [[], current];
  const { body } = await client.request('info', { signal: AbortSignal.timeout(COMPLETION_MS) });
  if (command?.name === 'answer') return [completeAnswer(questionsIn(body), words.slice(1), true), current];
  const accepts = acceptedBy(body);
  const declared = completionsOf(accepts, words).map((word) => accepts.get(word)?.parameters.size ? `${word} ` : word);
  return [[...new Set([...own, ...declared])], current];
}

// ───── The history: a file with one command per line, the newest last ────────────────────────────────────────────

const MAX_LINES = 1000;

/** Consoles share the file: each appends its lines. An unusable file is reported once. */
export class History {
  #isKept: boolean;

  /** @param isKept Whether to read and write the file. */
  constructor(isKept: boolean) {
    this.#isKept = isKept;
  }

  /** Returns the latest lines without duplicates, the newest first. Shortens a long file. */
  load(): string[] {
    let latest: string[] = [];
    this.#try((path) => {
      createFolders(dirname(path), 0o700);
      // Opening a FIFO would block, and chmod through a link would make /dev/null private.
      if (statSync(path, { throwIfNoEntry: false })?.isFile() === false) throw new Error(`'${path}' is not a file`);
      appendFileSync(path, '', { mode: 0o600 });
      chmodSync(path, 0o600);
      const lines = readFileSync(path, 'utf8').split('\n').map(printable).filter((line) => line !== '');
      latest = [...new Set(lines.reverse())].slice(0, MAX_LINES);
      if (lines.length <= MAX_LINES) return;
      writeFileSync(`${path}.${process.pid}`, `${[...latest].reverse().join('\n')}\n`, { mode: 0o600 });
      renameSync(`${path}.${process.pid}`, path);
    });
    return latest;
  }

  add(line: string): void {
    this.#try((path) => appendFileSync(path, `${line}\n`, { mode: 0o600 }));
  }

  #try(use: (path: string) => void): void {
    if (!this.#isKept) return;
    try {
      use(join(stateFolder(), 'history'));
    } catch (error) {
      this.#isKept = false;
      warn(`cannot keep the history: ${(error as Error).message}; --no-history disables it`);
    }
  }
}
