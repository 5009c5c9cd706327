// A session of the console: the commands, and the prompt before each.

import { DEFAULT_HOST, DEFAULT_PORT, SystemStatus } from '../../control.ts';
import {
  acceptedIn, CONTROL_COMMANDS, describeAccepts, parseArguments, readArguments, splitWords,
} from '../shared/accepts.ts';
import { BY } from '../shared/access.ts';
import { paintError, paintStatus } from '../shared/colour.ts';
import { commandsFor, findCommand, helpOf, REASON_HELP, wordsOf } from '../shared/commands.ts';
import { commandsOf, describeAuthor, describeInfo, describeStatusAndSave } from '../shared/describe.ts';
import { follow, GOALS } from '../shared/follow.ts';
import { withLimit } from '../shared/limit.ts';
import { observe } from '../shared/observe.ts';
import { UsageError } from '../shared/options.ts';
import {
  describeUnknown, isAbsent, lacksInfo, NO_ANSWER, obstacleIn, statusNameOf, UNKNOWN,
} from '../shared/replies.ts';
import { suggest } from '../shared/suggest.ts';
import { excerptOf, printable } from '../shared/text.ts';
import { isComment } from './lines.ts';
import type { Body } from '../shared/describe.ts';
import type { FollowOptions } from '../shared/follow.ts';
import type { PrintableClient, PrintableReply } from '../shared/replies.ts';
import type { Lines } from './lines.ts';

const COMMANDS = commandsFor('console');
const FOLLOW_MS = 30_000;
const REQUEST_MS = 30_000; // more than the client takes
const HINT_MS = 1000; // what a command waits for is shown after this time: a shutdown may take half as long
const HELP_MS = 1000; // the help waits for the commands that the program declares no longer than this
const PROMPT_MS = 250; // the prompt waits for the status no longer than this
const SILENT_MS = 2500; // a system that has not responded for this time gives no answer; it is asked every second
const TICK_MS = 1000; // between two prompts with another duration

export class Session {
  readonly #client: PrintableClient;
  readonly #lines: Lines;
  readonly #sent = new Set<unknown>(); // the ids of its commands
  #isOver = false;

  constructor(client: PrintableClient, lines: Lines) {
    this.#client = client;
    this.#lines = lines;
  }

  /** Runs commands until the input ends or a command ends the session. Returns whether all of them succeeded. */
  async run(): Promise<boolean> {
    let allSucceeded = true;
    const prompt = this.#lines.isTerminal ? new Prompt(this.#client, this.#lines, this.#sent) : null;
    while (!this.#isOver) {
      const line = await (prompt === null ? this.#lines.next('') : prompt.next());
      if (line === null) break;
      if (!(await this.#execute(line.trim()))) allSucceeded = false;
    }
    prompt?.close();
    return allSucceeded;
  }

  async #execute(line: string): Promise<boolean> {
    if (line === '' || isComment(line)) return true;
    const [first = '', ...words] = splitWords(line);
    const command = findCommand('console', first);
    if (command === undefined) return this.#run(first, words);
    if (command.name === 'run' && words[0] !== undefined) return this.#run(words[0], words.slice(1));
    if (command.name === 'help' && words.length < 2) return this.#help(words[0]);
    const takesReason = CONTROL_COMMANDS.includes(command.name);
    if (words.length > 0 && !takesReason) return fail(`unexpected argument '${words.at(-1)}' after ${command.name}`);
    const reason = line.replace(/^\S+\s*/, '') || undefined; // as typed: quotes and apostrophes belong to it
    switch (command.name) {
      case 'run': return this.#list();
      case 'status': return this.#status();
      case 'info': return this.#info();
      case 'shutdown': return this.#shutdown(reason);
      case 'quit': return this.#isOver = true;
      default: return this.#send(command.name, reason);
    }
  }

  /** Explains one command, or all: those of the console, whether the system responds or not, and what it accepts. */
  async #help(topic: string | undefined): Promise<boolean> {
    const command = topic === undefined ? undefined : findCommand('console', topic);
    if (command !== undefined) return print(helpOf(command));
    if (topic === undefined) print(COMMANDS.map(helpOf).join('\n'));
    const info = await this.#request('info', HELP_MS);
    const accepts = acceptedIn(info);
    if (topic === undefined) return print(`${describeAccepts(accepts)}\n\n${REASON_HELP}`.replace(/^\n/, ''));
    const declaration = accepts.get(topic);
    if (declaration === undefined) return failUnknown(topic, accepts.keys());
    return print(describeAccepts(new Map([[topic, declaration]])));
  }

  /** Lists the commands that the program declares. */
  async #list(): Promise<boolean> {
    const info = await this.#request('info');
    if (!info.ok) return fail(info.error);
    return print(describeAccepts(acceptedIn(info)) || 'the program declares no commands');
  }

  /** Runs one of them. */
  async #run(name: string, words: readonly string[]): Promise<boolean> {
    const info = await this.#request('info');
    if (!info.ok && !lacksInfo(info)) return fail(`${name} not sent: ${info.error}`);
    const accepts = acceptedIn(info);
    const declaration = accepts.get(name);
    if (declaration === undefined) return failUnknown(name, accepts.keys());
    try {
      return await this.#follow(name, { arguments: readArguments(parseArguments(words), declaration) });
    } catch (error) {
      if (error instanceof UsageError) return fail(error.message);
      throw error;
    }
  }

  async #status(): Promise<boolean> {
    const info = await this.#request('info');
    if (info.ok) return print(describeStatusAndSave(info.body));
    const reply = lacksInfo(info) ? await this.#request('status') : info;
    if (!reply.ok) return fail(reply.error);
    return reply.value === UNKNOWN ? fail(describeUnknown(reply.original)) : print(reply.value);
  }

  async #info(): Promise<boolean> {
    const info = await this.#request('info');
    return info.ok ? print(describeInfo(info.body).join('\n')) : fail(info.error);
  }

  async #shutdown(reason: string | undefined): Promise<boolean> {
    const { isTerminal } = this.#lines;
    const question = `Shut ${isDefault(this.#client) ? 'the system' : this.#client.target} down? (y/[N]) `;
    const piped = isTerminal ? null : await this.#lines.ask(question); // whatever comes of the next request
    const reply = await this.#request('status');
    if (isAbsent(reply)) return print(`already ${SystemStatus.OFFLINE}`);
    const obstacle = obstacleIn(reply);
    if (obstacle !== null) return fail(`shutdown not sent: ${obstacle}`);
    const answer = isTerminal ? await this.#lines.ask(question) : piped;
    if (answer === null) return fail('shutdown not sent: the input ended before the confirmation');
    if (!/^(y|yes)$/i.test(answer.trim())) return print('shutdown cancelled');
    this.#isOver = await this.#send('shutdown', reason);
    return this.#isOver;
  }

  /** Sends a command, and prints each status until it is done, and its outcome. */
  async #send(command: string, reason: string | undefined): Promise<boolean> {
    const obstacle = obstacleIn(await this.#request('status'));
    return obstacle === null ? this.#follow(command, { reason }) : fail(`${command} not sent: ${obstacle}`);
  }

  async #follow(command: string, sent: Pick<FollowOptions, 'arguments' | 'reason'>): Promise<boolean> {
    const { summary, error, received } = await this.#patiently((signal, output) => {
      return follow(this.#client, command, { ...sent, timeoutMs: FOLLOW_MS, by: BY, signal, output });
    });
    if (received.id !== undefined) this.#sent.add(received.id);
    if (error !== '') return fail(summary);
    return summary === '' || print(summary);
  }

  #request(endpoint: 'status' | 'info', limitMs: number = REQUEST_MS): Promise<PrintableReply> {
    return this.#patiently((signal) => withLimit(limitMs, signal, (limit) => {
      return this.#client.request(endpoint, { signal: limit });
    }));
  }

  /** Runs what Ctrl-C can end, and tells what it waits for if it takes long. */
  async #patiently<T>(work: (signal: AbortSignal, output: { write(text: string): void }) => Promise<T>): Promise<T> {
    let isLineOpen = false;
    const write = (text: string): void => {
      process.stdout.write(text);
      isLineOpen = !text.endsWith('\n');
    };
    const hint = (): void => write(`${isLineOpen ? '' : `waiting for ${this.#client.target} `}(Ctrl-C gives up) … `);
    const timer = this.#lines.isTerminal ? setTimeout(hint, HINT_MS) : undefined;
    const result = await work(this.#lines.interruption, { write });
    clearTimeout(timer);
    if (isLineOpen) write('\n');
    return result;
  }
}

function isDefault({ target }: PrintableClient): boolean {
  return target === `${DEFAULT_HOST}:${DEFAULT_PORT}`;
}

function print(text: string): true {
  process.stdout.write(`${text}\n`);
  return true;
}

/** @param declared What the program declares, if that is known. */
function failUnknown(word: string, declared: Iterable<string> = []): false {
  const hint = suggest(word, [...COMMANDS.flatMap(wordsOf), ...declared]);
  return fail(`unknown command '${word}'${hint}; type help for a list of commands`);
}

function fail(message: string): false {
  console.error(paintError(printable(message))); // it may quote the input
  return false;
}

// ───── The prompt ────────────────────────────────────────────────────────────────────────────────────────────────

/** How the lines begin that say who has changed the status. The other statuses pass. */
const CHANGES: ReadonlyMap<string, string> = new Map([
  [SystemStatus.ACTIVE.statusName, 'resumed'],
  [SystemStatus.PAUSED.statusName, 'paused'],
  [SystemStatus.SHUTTING_DOWN.statusName, 'shutting down'],
]);

/** Tells the address, unless it is the default, and the current status; above, who else has changed it. */
class Prompt {
  readonly #client: PrintableClient;
  readonly #lines: Lines;
  readonly #sent: ReadonlySet<unknown>;
  readonly #end = new AbortController();
  #status = 'connecting';
  #info: Body = {}; // the latest one
  #known = ''; // the latest status of which is known who has changed it, and since when it is
  #isReading = false;
  #heardAt = performance.now();
  #tickedAt = performance.now();

  /** @param sent The ids of the commands of this console, which print their outcomes themselves. */
  constructor(client: PrintableClient, lines: Lines, sent: ReadonlySet<unknown>) {
    this.#client = client;
    this.#lines = lines;
    this.#sent = sent;
    const timer = setInterval(() => this.#tick(), TICK_MS); // for how long there has been no answer
    this.#end.signal.addEventListener('abort', () => clearInterval(timer));
    void this.#follow();
  }

  /** Returns the next line. The prompt has the current status if the system tells it soon. */
  async next(): Promise<string | null> {
    const limit = AbortSignal.timeout(PROMPT_MS);
    const reply = await this.#client.request('status', { signal: limit });
    if (!limit.aborted) this.#update(statusNameOf(reply));
    this.#isReading = true;
    this.#announce();
    const line = await this.#lines.next(this.#text());
    this.#isReading = false;
    return line;
  }

  close(): void {
    this.#end.abort();
  }

  async #follow(): Promise<void> {
    for await (const { status, reply, isNew } of observe(this.#client, 'info', this.#end.signal)) {
      this.#update(status);
      if (reply.ok && isNew) this.#info = reply.body;
      this.#announce();
      this.#show();
    }
  }

  /**
   * Prints who else has changed the status, and why. While a command of the console runs, its id is not known yet. A
   * save pauses the system until it is done, which is no change.
   */
  #announce(): void {
    const status = excerptOf(this.#info['status']);
    const commands = commandsOf(this.#info).filter(({ state }) => state === 'done' || state === 'running');
    const isSaving = commands.some(({ command, state }) => command === 'save-state' && state === 'running');
    const change = `${status} since ${excerptOf(this.#info['since'])}`;
    const word = CHANGES.get(status);
    if (!this.#isReading || word === undefined || isSaving || change === this.#known) return;
    const isFirst = this.#known === '';
    this.#known = change;
    const author = describeAuthor(this.#info);
    const changes = commands.filter(({ command }) => GOALS.has(String(command)));
    const leadsHere = changes.map(({ command }) => GOALS.get(String(command))?.statusName === status);
    const cause = changes[leadsHere.lastIndexOf(false) + 1]; // those after it were without effect
    if (isFirst || author === '' || this.#sent.has(cause?.['id'])) return;
    this.#lines.print(paintStatus(word + author, status));
  }

  #update(status: string): void {
    const hasResponded = status !== NO_ANSWER;
    if (hasResponded || this.#isSilent()) this.#status = status;
    if (hasResponded) this.#heardAt = performance.now();
  }

  /** A console that was stopped itself has heard nothing, and its requests have timed out: that tells nothing. */
  #tick(): void {
    const now = performance.now();
    if (now - this.#tickedAt > 2 * TICK_MS) this.#heardAt = now;
    this.#tickedAt = now;
    this.#show();
  }

  #isSilent(): boolean {
    return performance.now() - this.#heardAt > SILENT_MS;
  }

  #show(): void {
    this.#lines.setPrompt(this.#text());
  }

  #text(): string {
    const isSilent = this.#isSilent() && this.#status !== SystemStatus.OFFLINE.statusName;
    const seconds = Math.floor((performance.now() - this.#heardAt) / 1000);
    const status = isSilent ? `${NO_ANSWER} for ${seconds} s` : this.#status;
    const where = isDefault(this.#client) ? '' : ` ${this.#client.target}`;
    return `control-console${where} (${paintStatus(status, isSilent ? NO_ANSWER : this.#status)}) > `;
  }
}
