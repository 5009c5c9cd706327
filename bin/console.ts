#!/usr/bin/env node
// control-console: an interactive console for a running system.

import { createInterface } from 'node:readline';
import { SystemStatus } from '../control.ts';
import { TARGETS, follow } from './shared/follow.ts';
import { ADDRESS_OPTIONS, EXIT, clientFor, parseOptions, run } from './shared/options.ts';
import type { ControlCommand, WebApiClient } from '../control.ts';
import type { Interface } from 'node:readline';

const HELP = `
Usage: control-console [options]

Opens a console that controls a running system. Commands may also come from a pipe, one a line.

  --host HOST        host name or address of the system (default localhost)
  --port PORT        port of its web API (default 8391)
  --socket PATH      Unix socket of its web API, in place of host and port
  -h, --help         show this
  --version          show the version

If the system wants a token, CONTROL_TOKEN in the environment holds it.

Exit code: 0; 1 if commands came from a pipe and one of them failed; 2 for wrong usage.
`;

const FOLLOW_MS = 30_000;
const REFRESH_MS = 1000; // from one look at the status to the next while the prompt waits

// ───── Commands: a line here adds one ────────────────────────────────────────────────────────────────────────────

interface Command {
  words: readonly string[];
  help: string;
  /** Returns whether it did its work. */
  run(session: Session): boolean | Promise<boolean>;
}

const COMMANDS: readonly Command[] = [
  { words: ['h', 'help'], help: 'list all commands', run: (session) => session.help() },
  { words: ['p', 'pause'], help: 'pause the system', run: (session) => session.send('pause') },
  { words: ['r', 'resume'], help: 'resume the system', run: (session) => session.send('resume') },
  { words: ['save'], help: 'save a checkpoint of the current state', run: (session) => session.send('save-state') },
  { words: ['shutdown'], help: 'shut the system down, after a question', run: (session) => session.shutdown() },
  { words: ['q', 'quit'], help: 'leave the console; the system is unaffected', run: (session) => session.quit() },
];

// ───── The session ───────────────────────────────────────────────────────────────────────────────────────────────

class Session {
  readonly #client: WebApiClient;
  readonly #lines: LineReader;
  #isOver = false;

  constructor(client: WebApiClient, lines: LineReader) {
    this.#client = client;
    this.#lines = lines;
  }

  /** Runs commands until the input or one of them ends the session. Returns whether all did their work. */
  async run(): Promise<boolean> {
    let allWorked = true;
    while (!this.#isOver) {
      const line = await this.#lines.next(() => this.#prompt());
      if (line === null) break;
      const word = line.trim();
      if (word !== '' && !(await this.#execute(word))) allWorked = false;
    }
    return allWorked;
  }

  help(): boolean {
    for (const { words, help } of COMMANDS) process.stdout.write(`  ${words.join(', ').padEnd(12)}${help}\n`);
    return true;
  }

  quit(): boolean {
    this.#isOver = true;
    return true;
  }

  async shutdown(): Promise<boolean> {
    if (!(await this.#isConnected('shutdown'))) return false;
    const answer = await this.#lines.ask('Shut the system down? (y/[N]) ');
    if (answer === null) return fail('shutdown was not sent: the input ended before the y');
    if (!/^(y|yes)$/i.test(answer.trim())) {
      process.stdout.write('not shut down\n');
      return true;
    }
    const isGone = await this.send('shutdown');
    if (isGone) this.#isOver = true;
    return isGone;
  }

  /** Sends a command, and shows the states on the way to where it leads. */
  async send(command: ControlCommand): Promise<boolean> {
    if (!(await this.#isConnected(command))) return false;
    const reply = await this.#client.request(command);
    if (!reply.ok) return fail(`${command} failed: ${reply.error}`);
    const target = TARGETS[command];
    if (target !== undefined) return this.#follow(target);
    process.stdout.write(`${command}: ${reply.value}\n`);
    return true;
  }

  async #isConnected(command: ControlCommand): Promise<boolean> {
    const reply = await this.#client.request('status');
    return reply.ok || reply.answered || fail(`${command} was not sent: ${reply.error}`);
  }

  async #follow(target: SystemStatus): Promise<boolean> {
    const key = new AbortController();
    const giveBackKeys = this.#lines.takeKeys(() => key.abort());
    const options = { timeoutMs: FOLLOW_MS, signal: key.signal, output: process.stdout };
    const { reached, summary } = await follow(this.#client, target, options);
    giveBackKeys();
    return reached || fail(summary);
  }

  async #execute(word: string): Promise<boolean> {
    const command = COMMANDS.find(({ words }) => words.includes(word.toLowerCase()));
    return command === undefined ? fail(`unknown command '${word}'; help lists the commands`) : command.run(this);
  }

  async #prompt(): Promise<string> {
    const reply = await this.#client.request('status');
    const statusName = reply.ok ? reply.value : reply.answered ? 'unknown' : SystemStatus.OFFLINE.statusName;
    return `control-console (${statusName}) > `;
  }
}

function fail(message: string): false {
  console.error(message);
  return false;
}

// ───── Lines of input ────────────────────────────────────────────────────────────────────────────────────────────

/** Reads lines: with prompt, editing and history on a terminal, as they are from a pipe. */
class LineReader {
  readonly isTerminal: boolean = Boolean(process.stdin.isTTY && process.stdout.isTTY);
  readonly #readline: Interface;
  readonly #early: string[] = []; // lines that came before they were asked for
  #receive: ((line: string | null) => void) | null = null;
  #isClosed = false;
  #isQuestion = false;
  #interrupts = 0; // Ctrl-C on an empty line, one after the other

  constructor() {
    const input = process.stdin;
    this.#readline = this.isTerminal
      ? createInterface({ input, output: process.stdout, completer: complete, removeHistoryDuplicates: true })
      : createInterface({ input, terminal: false });
    this.#readline.on('line', (line) => this.#onLine(line));
    this.#readline.on('close', () => this.#onClose());
    this.#readline.on('SIGINT', () => this.#onInterrupt());
    this.#readline.on('history', (history) => {
      if (this.#isQuestion) history.shift(); // an answer is no command to recall
    });
  }

  /** The next line, or null at the end of the input. The prompt is kept up to date while it is shown. */
  async next(prompt: () => Promise<string>): Promise<string | null> {
    if (!this.isTerminal || this.#early.length > 0) return this.#line();
    let shown = await prompt();
    const show = (): void => {
      this.#readline.setPrompt(shown);
      this.#readline.prompt(true);
    };
    if (!this.#isClosed) show();
    const line = this.#line();
    const receive = this.#receive; // the mark of this wait
    let isAsking = false;
    const refresh = setInterval(async () => {
      if (isAsking) return;
      isAsking = true;
      const fresh = await prompt();
      isAsking = false;
      if (fresh === shown || this.#receive !== receive) return;
      shown = fresh;
      show();
    }, REFRESH_MS);
    return line.finally(() => clearInterval(refresh));
  }

  /** The answer to a question, or null at the end of the input. */
  async ask(question: string): Promise<string | null> {
    this.#isQuestion = true;
    if (this.isTerminal) {
      this.#readline.setPrompt(question);
      this.#readline.prompt();
    }
    const answer = await this.#line();
    this.#isQuestion = false;
    return answer;
  }

  /** Has the next keys go to `onKey` instead of into a line, until the function that is returned is called. */
  takeKeys(onKey: () => void): () => void {
    if (!this.isTerminal) return () => {};
    const { stdin } = process;
    const editors = stdin.listeners('keypress') as (() => void)[];
    stdin.on('keypress', onKey);
    for (const editor of editors) stdin.off('keypress', editor);
    return () => {
      for (const editor of editors) stdin.on('keypress', editor);
      stdin.off('keypress', onKey);
    };
  }

  close(): void {
    this.#readline.close();
  }

  #line(): Promise<string | null> {
    const early = this.#early.shift();
    if (early !== undefined) return Promise.resolve(early);
    if (this.#isClosed) return Promise.resolve(null);
    return new Promise((resolve) => (this.#receive = resolve));
  }

  #onLine(line: string): void {
    this.#interrupts = 0;
    if (this.#receive === null) {
      this.#early.push(line);
      return;
    }
    this.#receive(line);
    this.#receive = null;
  }

  #onClose(): void {
    this.#isClosed = true;
    if (this.isTerminal && this.#receive !== null) process.stdout.write('\n');
    this.#receive?.(null);
    this.#receive = null;
  }

  /** Ctrl-C clears the line; on an empty one it declines a question, and leaves the second time. */
  #onInterrupt(): void {
    if (this.#readline.line !== '') {
      this.#interrupts = 0;
      this.#readline.write(null, { ctrl: true, name: 'e' });
      this.#readline.write(null, { ctrl: true, name: 'u' });
      return;
    }
    process.stdout.write('\n');
    if (this.#isQuestion) return this.#onLine('');
    this.#interrupts += 1;
    if (this.#interrupts > 1) return this.close();
    process.stdout.write('Ctrl-C once more, or Ctrl-D, leaves the console\n');
    this.#readline.prompt();
  }
}

function complete(line: string): [hits: string[], line: string] {
  const words = COMMANDS.map(({ words }) => words.at(-1) as string);
  return [words.filter((word) => word.startsWith(line.toLowerCase())), line];
}

// ───── Start ─────────────────────────────────────────────────────────────────────────────────────────────────────

void run('control-console', async () => {
  const parsed = parseOptions(ADDRESS_OPTIONS, HELP);
  if (parsed === null) return EXIT.DONE;
  const client = clientFor(parsed.values);
  const lines = new LineReader();
  if (lines.isTerminal) process.stdout.write(`${client.baseUrl}: help lists the commands\n`);
  const allWorked = await new Session(client, lines).run();
  lines.close();
  client.close();
  return allWorked || lines.isTerminal ? EXIT.DONE : EXIT.REFUSED;
});
