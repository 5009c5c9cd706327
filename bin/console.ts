#!/usr/bin/env node
// control-console: an interactive console for a running system.

import { createInterface } from 'node:readline';
import { SystemStatus } from '../control.ts';
import { describeInfo, describeStatus } from './shared/describe.ts';
import { follow } from './shared/follow.ts';
import {
  ADDRESS_OPTIONS, BY, createClient, describeUnknown, EXIT, parseOptions, run, UNKNOWN,
} from './shared/options.ts';
import { excerptOf, printable } from './shared/text.ts';
import type { ControlCommand } from '../control.ts';
import type { PrintableClient } from './shared/options.ts';
import type { Interface } from 'node:readline';

const HELP = `
Usage: control-console [options]

Controls a running system interactively. Also reads commands from a pipe, one per line.

  --host HOST        host name or IP address of the system (default localhost)
  --port PORT        port of its web API (default 8391)
  --socket PATH      Unix socket of its web API; replaces --host and --port
  -h, --help         print this help
  --version          print the version

If the system requires a token, set the environment variable CONTROL_TOKEN. The system shows who sends a command:
CONTROL_BY, or user@machine.

Exit codes: 0 success, 1 a command from a pipe failed, 2 usage error.
`;

const FOLLOW_MS = 30_000;
const REFRESH_MS = 1000; // interval between status requests while the prompt waits

async function main(): Promise<number> {
  const parsed = parseOptions(ADDRESS_OPTIONS, HELP);
  if (parsed === null) return EXIT.DONE;
  const client = createClient(parsed.values);
  const lines = new LineReader();
  if (lines.isTerminal) process.stdout.write(`${client.baseUrl}: type help for a list of commands\n`);
  const allSucceeded = await new Session(client, lines).run();
  lines.close();
  return allSucceeded || lines.isTerminal ? EXIT.DONE : EXIT.REFUSED;
}

// ───── Commands: add a line to add a command ─────────────────────────────────────────────────────────────────────

interface Command {
  words: readonly string[];
  help: string;
  /** Returns whether the command succeeded. */
  run(session: Session): boolean | Promise<boolean>;
}

const COMMANDS: readonly Command[] = [
  { words: ['h', 'help'], help: 'list the commands', run: (session) => session.help() },
  { words: ['status'], help: 'tell the status, and what is known of it', run: (session) => session.status() },
  { words: ['info'], help: 'tell all that is known, and the latest commands', run: (session) => session.info() },
  { words: ['p', 'pause'], help: 'pause the system', run: (session) => session.send('pause') },
  { words: ['r', 'resume'], help: 'resume the system', run: (session) => session.send('resume') },
  { words: ['save'], help: 'save a checkpoint', run: (session) => session.send('save-state') },
  { words: ['shutdown'], help: 'shut the system down, after confirmation', run: (session) => session.shutdown() },
  { words: ['q', 'quit'], help: 'quit the console; the system is unaffected', run: (session) => session.quit() },
];

// ───── The session ───────────────────────────────────────────────────────────────────────────────────────────────

class Session {
  readonly #client: PrintableClient;
  readonly #lines: LineReader;
  #isOver = false;

  constructor(client: PrintableClient, lines: LineReader) {
    this.#client = client;
    this.#lines = lines;
  }

  /** Runs commands until the input ends or a command ends the session. Returns whether all of them succeeded. */
  async run(): Promise<boolean> {
    let allSucceeded = true;
    while (!this.#isOver) {
      const line = await this.#lines.next(() => this.#prompt());
      if (line === null) break;
      const word = line.trim();
      if (word !== '' && !(await this.#execute(word))) allSucceeded = false;
    }
    return allSucceeded;
  }

  help(): boolean {
    for (const { words, help } of COMMANDS) process.stdout.write(`  ${words.join(', ').padEnd(12)}${help}\n`);
    return true;
  }

  async status(): Promise<boolean> {
    const info = await this.#client.request('info');
    if (info.ok) return print(describeStatus(info.body));
    const reply = await this.#client.request('status'); // a server of version 0.2 or older
    if (!reply.ok) return fail(reply.error);
    return reply.value === UNKNOWN ? fail(describeUnknown(reply.original)) : print(reply.value);
  }

  async info(): Promise<boolean> {
    const info = await this.#client.request('info');
    return info.ok ? print(describeInfo(info.body).join('\n')) : fail(info.error);
  }

  quit(): boolean {
    this.#isOver = true;
    return true;
  }

  async shutdown(): Promise<boolean> {
    if (!(await this.#isConnected('shutdown'))) return false;
    const answer = await this.#lines.ask('Shut the system down? (y/[N]) ');
    if (answer === null) return fail('shutdown not sent: the input ended before the confirmation');
    if (!/^(y|yes)$/i.test(answer.trim())) {
      process.stdout.write('shutdown cancelled\n');
      return true;
    }
    this.#isOver = await this.send('shutdown');
    return this.#isOver;
  }

  /** Sends a command, and prints each status until it is done, and what came of it. */
  async send(command: ControlCommand): Promise<boolean> {
    if (!(await this.#isConnected(command))) return false;
    const keyPress = new AbortController();
    const releaseKeys = this.#lines.captureKeys(() => keyPress.abort());
    const { state, error, summary, received } = await follow(this.#client, command, {
      timeoutMs: FOLLOW_MS, by: BY, signal: keyPress.signal, output: process.stdout,
    });
    releaseKeys();
    if (state === 'unconfirmed') return print(`${command}: ${excerptOf(received.result)}`);
    return state === 'done' || fail(summary === error ? `${command} failed: ${error}` : summary);
  }

  async #isConnected(command: ControlCommand): Promise<boolean> {
    const reply = await this.#client.request('status');
    return reply.ok || reply.answered || fail(`${command} not sent: ${reply.error}`);
  }

  async #execute(word: string): Promise<boolean> {
    const command = COMMANDS.find(({ words }) => words.includes(word.toLowerCase()));
    if (command === undefined) return fail(`unknown command '${word}'; type help for a list of commands`);
    return command.run(this);
  }

  async #prompt(): Promise<string> {
    const reply = await this.#client.request('status');
    const statusName = reply.ok ? reply.value : reply.answered ? UNKNOWN : SystemStatus.OFFLINE.statusName;
    return `control-console (${statusName}) > `;
  }
}

function print(text: string): true {
  process.stdout.write(`${text}\n`);
  return true;
}

function fail(message: string): false {
  console.error(printable(message)); // it may quote the input
  return false;
}

// ───── Input lines ───────────────────────────────────────────────────────────────────────────────────────────────

/** Reads lines: from a terminal with prompt, editing and history, from a pipe without. */
class LineReader {
  readonly isTerminal: boolean = Boolean(process.stdin.isTTY && process.stdout.isTTY);
  readonly #readline: Interface;
  readonly #buffered: string[] = []; // lines received before the session asked for them
  #receive: ((line: string | null) => void) | null = null;
  #isClosed = false;
  #isQuestion = false;
  #interrupts = 0; // consecutive presses of Ctrl-C on an empty line

  constructor() {
    const input = process.stdin;
    this.#readline = this.isTerminal
      ? createInterface({ input, output: process.stdout, completer: complete, removeHistoryDuplicates: true })
      : createInterface({ input, terminal: false });
    this.#readline.on('line', (line) => this.#onLine(line));
    this.#readline.on('close', () => this.#onClose());
    this.#readline.on('SIGINT', () => this.#onInterrupt());
    this.#readline.on('history', (history) => {
      if (this.#isQuestion) history.shift(); // keep answers out of the history
    });
  }

  /** Returns the next line, or null at the end of the input. Refreshes the prompt while it waits. */
  async next(prompt: () => Promise<string>): Promise<string | null> {
    if (!this.isTerminal || this.#buffered.length > 0) return this.#line();
    let shown = await prompt();
    const show = (): void => {
      this.#readline.setPrompt(shown);
      this.#readline.prompt(true);
    };
    if (!this.#isClosed) show();
    const line = this.#line();
    const receive = this.#receive; // identifies this wait: a line or the end of the input replaces it
    let isRequesting = false;
    const refresh = setInterval(async () => {
      if (isRequesting) return;
      isRequesting = true;
      const fresh = await prompt();
      isRequesting = false;
      if (fresh === shown || this.#receive !== receive) return;
      shown = fresh;
      show();
    }, REFRESH_MS);
    return line.finally(() => clearInterval(refresh));
  }

  /** Asks a question. Returns the answer, or null at the end of the input. */
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

  /** Passes key presses to `onKey` instead of the line editor. Returns a function that ends this. */
  captureKeys(onKey: () => void): () => void {
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
    const buffered = this.#buffered.shift();
    if (buffered !== undefined) return Promise.resolve(buffered);
    if (this.#isClosed) return Promise.resolve(null);
    return new Promise((resolve) => (this.#receive = resolve));
  }

  #onLine(line: string): void {
    this.#interrupts = 0;
    if (this.#receive === null) {
      this.#buffered.push(line);
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

  /** Ctrl-C clears the line. On an empty line it answers a question with no; pressed twice, it quits the console. */
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
    process.stdout.write('press Ctrl-C again or Ctrl-D to quit\n');
    this.#readline.prompt();
  }
}

function complete(line: string): [hits: string[], line: string] {
  const words = COMMANDS.map(({ words }) => words.at(-1) as string);
  return [words.filter((word) => word.startsWith(line.toLowerCase())), line];
}

void run('control-console', main);
