// A session of the console: runs commands, and shows the status in the prompt.

import { SystemStatus } from '../../control.ts';
import { paintError, paintStatus, UsageError, wrap } from '../shared/cli.ts';
import { BY, NO_ANSWER, obstacleIn, type PrintableClient, type PrintableReply, statusNameOf } from '../shared/client.ts';
import { COMMANDS as ALL, findCommand, helpOf, REASON_HELP, suggestCommand } from '../shared/commands.ts';
import {
  acceptedBy, CONTROL_COMMANDS, describeAccepts, describeGiven, describeOpen, describeQuestion, isAnswer, isCommandId,
  isQuestionId, parseArguments, type Question, questionsIn, readAnswer, readArguments, splitWords, stackIn,
} from '../shared/declared.ts';
import { commandsOf, describeAuthor, describeCommand, haveQuestionsChanged } from '../shared/describe.ts';
import { follow, type FollowedSystem, type FollowOptions, GOALS, observe, seen, withLimit } from '../shared/system.ts';
import { type Body, excerpt, excerptOf, printable } from '../shared/text.ts';
import { describeInfo, viewOf } from '../shared/view.ts';
import { isComment, type Lines, type TerminalLines } from './lines.ts';

const COMMANDS = Object.values(ALL);
const REASONED = [...CONTROL_COMMANDS, 'withdraw']; // a reason may follow
const NO_COMMANDS = 'the program declares no commands';
const FOLLOW_MS = 30_000;
const REQUEST_MS = 30_000; // longer than the client's own limit
const HINT_MS = 1000; // then a hint shows what a command waits for; an ordinary shutdown is faster
const HELP_MS = 1000; // how long the help waits for the own commands of the program
const PROMPT_MS = 250; // how long the prompt waits for the status
const SEEN_MS = 1000; // how long a question is shown until a line that is begun can mean it
const SILENT_MS = 2500; // then a system counts as silent: the console sends a request every second
const TICK_MS = 1000; // how often the prompt updates its duration
const MAX_NAME = 40; // characters in the prompt

export class Session {
  readonly #client: PrintableClient;
  readonly #lines: Lines;
  readonly #prompt: Prompt | null;
  #hasEnded = false;

  constructor(client: PrintableClient, lines: Lines) {
    this.#client = client;
    this.#lines = lines;
    this.#prompt = lines.isTerminal ? new Prompt(client, lines) : null;
  }

  /** Runs commands until the input or a command ends the session. Returns whether all commands succeeded. */
  async run(): Promise<boolean> {
    let allSucceeded = true;
    while (!this.#hasEnded) {
      const line = await (this.#prompt === null ? this.#lines.next('') : this.#prompt.next());
      if (line === null) break;
      // As the prompt shows it; lines from a pipe are all for the first one.
      if (this.#prompt !== null || this.#client.meant === undefined) this.#client.meant = this.#client.key;
      if (!(await this.#execute(line.trim()).catch(failUsage))) allSucceeded = false;
    }
    this.#prompt?.close();
    return allSucceeded;
  }

  async #execute(line: string): Promise<boolean> {
    if (line === '' || isComment(line)) return true;
    const [first = '', ...words] = splitWords(line);
    const command = findCommand(COMMANDS, first);
    if (command === undefined) return this.#run(first, words);
    if (command.name === 'run' && words[0] !== undefined) return this.#run(words[0], words.slice(1));
    if (command.name === 'help' && words.length < 2) return this.#help(words[0]);
    if (command.name === 'answer') return this.#answer(words);
    if (command.name === 'withdraw') return this.#withdraw(line);
    const takesReason = REASONED.includes(command.name);
    if (words.length > 0 && !takesReason) return fail(`unexpected argument '${words.at(-1)}' after ${command.name}`);
    if (words[0]?.startsWith('--') === true) return fail(`'${words[0]}' is an option of control-client, not a reason`);
    const reason = line.replace(/^\S+\s*/, '') || undefined; // as typed, with quotes and apostrophes
    switch (command.name) {
      case 'run': return this.#report((info) => describeAccepts(acceptedBy(info)) || NO_COMMANDS);
      case 'status': return this.#status();
      case 'info': return this.#report((_, reply) => describeInfo(this.#seen(reply)).join('\n'));
      case 'stack': return this.#stack();
      case 'shutdown': return this.#shutdown(reason);
      case 'quit': return this.#hasEnded = true;
      default: return this.#send(command.name, reason);
    }
  }

  /** Explains one command or all. The own commands of the program are listed only if it responds. */
  async #help(topic: string | undefined): Promise<boolean> {
    const command = topic === undefined ? undefined : findCommand(COMMANDS, topic);
    const hint = REASONED.includes(`${command?.name}`) ? '; a reason may follow' : '';
    if (command !== undefined) return print(wrap(helpOf(command) + hint));
    if (topic === undefined) print(wrap(COMMANDS.map(helpOf).join('\n')));
    const info = await this.#request('info', HELP_MS);
    const accepts = acceptedBy(info.body);
    if (topic === undefined) return print(`${describeAccepts(accepts)}\n\n${wrap(REASON_HELP)}`.replace(/^\n/, ''));
    const declaration = accepts.get(topic);
    if (declaration === undefined) return failUnknown(topic, accepts.keys());
    return print(describeAccepts(new Map([[topic, declaration]])));
  }

  /** Prints something of what the system reports. */
  async #report(textOf: (info: Body, reply: PrintableReply) => string): Promise<boolean> {
    const reply = await this.#request('info');
    return reply.ok ? print(textOf(reply.body, reply)) : fail(reply.error);
  }

  async #stack(): Promise<boolean> {
    const reply = await this.#request('stack');
    return reply.ok ? print(stackIn(reply.body).join('\n')) : fail(reply.error);
  }

  async #withdraw(line: string): Promise<boolean> {
    const [, id = '', reason] = /^\S+\s*(\S*)\s*(.*)$/.exec(line) ?? [];
    if (!isCommandId(id)) return fail(`the ID must be that of a command, such as k3f-7, got ${id || 'nothing'}`);
    const reply = await this.#patiently((signal) => {
      return this.#client.request('withdraw', { id, by: BY, reason, signal });
    });
    return reply.ok ? print('withdrawn') : fail(reply.error);
  }

  #seen(reply: PrintableReply): FollowedSystem {
    return seen({ client: this.#client, id: this.#client.target }, reply);
  }

  /** Runs an own command. */
  async #run(name: string, words: readonly string[]): Promise<boolean> {
    const info = await this.#request('info');
    if (!info.ok && info.fault !== 'lacking') return fail(`${name} not sent: ${info.error}`);
    const accepts = acceptedBy(info.body);
    const declaration = accepts.get(name);
    if (declaration === undefined) return failUnknown(name, accepts.keys());
    return this.#follow(name, { arguments: readArguments(parseArguments(words), declaration) });
  }

  /** Answers the question that is named, or that was the only one when the line was begun. */
  async #answer(words: readonly string[]): Promise<boolean> {
    const isNamed = isQuestionId(words[0] ?? '');
    const meant = isNamed ? words[0] : this.#prompt?.meant; // may change during the requests
    if (meant === undefined) await this.#request('info'); // has the program note the time for the next one
    const info = await this.#request('info');
    if (!info.ok) return fail(`answer not sent: ${info.error}`);
    const open = questionsIn(info.body);
    const id = meant ?? (haveQuestionsChanged(info.body) ? '' : idOfOnly(open));
    const why = open.length === 1 ? ', because the questions have just changed' : '';
    if (id === '') return fail(open[0] ? `the id must be given${why}: ${describeOpen(open)}` : 'no question is open');
    const question = open.find((one) => one.id === id);
    const given = question === undefined ? {} : readAnswer(question, isNamed ? words.slice(1) : words);
    this.#prompt?.sent.add(id);
    const reply = await this.#patiently((signal) => {
      return this.#client.request('answer', { id, arguments: given, by: BY, signal });
    });
    if (reply.ok) return print(describeGiven(question ?? { message: '' }, given));
    this.#prompt?.sent.delete(id);
    return fail(reply.error); // also how a question has ended in the meantime
  }

  async #status(): Promise<boolean> {
    const info = await this.#request('info');
    const reply = info.fault === 'lacking' ? await this.#request('status') : info;
    if (!reply.ok) return fail(reply.error);
    const system = this.#seen(reply);
    return system.error === '' ? print(viewOf(system).summary) : fail(system.error);
  }

  async #shutdown(reason: string | undefined): Promise<boolean> {
    const { isTerminal } = this.#lines;
    const question = `Shut ${this.#client.target} down? [y/N] `;
    const piped = isTerminal ? null : await this.#lines.ask(); // reads the answer even if the request fails
    const reply = await this.#request('status');
    if (reply.fault === 'offline') return print(`already ${SystemStatus.OFFLINE}`);
    const obstacle = obstacleIn(reply);
    if (obstacle !== null) return fail(`shutdown not sent: ${obstacle}`);
    const answer = isTerminal ? await this.#lines.ask(question) : piped;
    if (answer === null) return fail('shutdown not sent: the input ended before the confirmation');
    if (!/^(y|yes)$/i.test(answer.trim())) return print('shutdown cancelled');
    return this.#hasEnded = await this.#send('shutdown', reason);
  }

  /** Sends a command. Prints each status on the way, and the outcome. */
  async #send(command: string, reason: string | undefined): Promise<boolean> {
    const obstacle = obstacleIn(await this.#request('status'));
    return obstacle === null ? this.#follow(command, { reason }) : fail(`${command} not sent: ${obstacle}`);
  }

  async #follow(command: string, sent: Pick<FollowOptions, 'arguments' | 'reason'>): Promise<boolean> {
    const { summary, error, received } = await this.#patiently((signal, output) => {
      return follow(this.#client, command, { ...sent, timeoutMs: FOLLOW_MS, by: BY, signal, output });
    });
    if (received.id !== undefined) this.#prompt?.sent.add(received.id);
    if (error !== '') return fail(summary);
    return summary === '' || print(summary);
  }

  #request(endpoint: 'status' | 'info' | 'stack', limitMs: number = REQUEST_MS): Promise<PrintableReply> {
    const request = (signal: AbortSignal): Promise<PrintableReply> => this.#client.request(endpoint, { signal });
    return this.#patiently((signal) => withLimit(limitMs, signal, request));
  }

  /** Runs work that Ctrl-C can end. If it takes long, prints what it waits for. */
  async #patiently<T>(work: (signal: AbortSignal, output: { write(text: string): void }) => Promise<T>): Promise<T> {
    let isLineOpen = false;
    const write = (text: string): void => {
      process.stdout.write(text);
      isLineOpen = !text.endsWith('\n');
    };
    const hint = (): void => write(`${isLineOpen ? '' : `waiting for ${this.#client.target} `}(Ctrl-C gives up) … `);
    const timer = this.#lines.isTerminal ? setTimeout(hint, HINT_MS) : undefined;
    const result = await work(this.#lines.interruption.signal, { write });
    clearTimeout(timer);
    if (isLineOpen) write('\n');
    return result;
  }
}

/** Empty unless exactly one question is open. */
function idOfOnly([question, other]: readonly Question[]): string {
  return question === undefined || other !== undefined ? '' : question.id;
}

function print(text: string): true {
  process.stdout.write(`${text}\n`);
  return true;
}

/** @param declared The names of the own commands, if they are known. */
function failUnknown(word: string, declared: Iterable<string> = []): false {
  const hint = suggestCommand(COMMANDS, word, declared);
  return fail(`unknown command '${word}'${hint}; type help for a list of commands`);
}

function failUsage(error: unknown): false {
  if (!(error instanceof UsageError)) throw error;
  return fail(error.message);
}

function fail(message: string): false {
  console.error(paintError(printable(message))); // it may quote the input
  return false;
}

// ───── The prompt ────────────────────────────────────────────────────────────────────────────────────────────────

/** The words for status changes by others. Changes to other statuses are not printed. */
const CHANGES: ReadonlyMap<string, string> = new Map([
  [SystemStatus.ACTIVE.statusName, 'resumed'],
  [SystemStatus.PAUSED.statusName, 'paused'],
  [SystemStatus.SHUTTING_DOWN.statusName, 'shutting down'],
]);

/** The prompt: the name and the current status. Prints changes by others above it. */
class Prompt {
  /** The question that an answer without an id is for: the only one seen when the line was begun. Otherwise empty. */
  meant: string = '';
  /** The ids of this console's commands, and of the questions that it answers: their outcomes are printed anyway. */
  readonly sent: Set<unknown> = new Set();
  readonly #client: PrintableClient;
  readonly #lines: TerminalLines;
  readonly #end = new AbortController();
  #status = 'connecting';
  #info: Body = {}; // the latest one
  #known = ''; // the latest announced status, and since when it holds
  #asks: readonly Question[] = []; // the open ones that are announced
  #asksAt = 0; // when they have changed
  #readAt = Infinity; // when the line was read whose command runs
  #isReading = false;
  #heardAt = performance.now();
  #tickedAt = performance.now();

  constructor(client: PrintableClient, lines: TerminalLines) {
    this.#client = client;
    this.#lines = lines;
    const timer = setInterval(() => this.#tick(), TICK_MS); // updates `no answer for 5 s`
    this.#end.signal.addEventListener('abort', () => clearInterval(timer));
    void this.#follow();
  }

  /** Returns the next line. The prompt has the current status if the system responds fast. */
  async next(): Promise<string | null> {
    this.#readAt = Infinity;
    const limit = AbortSignal.timeout(PROMPT_MS);
    const reply = await this.#client.request('status', { signal: limit });
    if (!limit.aborted) this.#update(statusNameOf(reply));
    this.#isReading = true;
    this.#announce();
    const line = await this.#lines.next(this.#text());
    this.#isReading = false;
    this.#readAt = performance.now();
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
      this.#lines.setPrompt(this.#text());
    }
  }

  /**
   * Prints who else has changed the status since the first report, and why. Waits until a command of the console is
   * completed, because its id is unknown before. The pause during a save is not a change. The commands of a report are
   * a moment older than its status, so what has led to this may still wait.
   */
  #announce(): void {
    this.#announceAsks();
    const status = excerptOf(this.#info['status']);
    const leadsHere = ({ command }: Body): boolean => GOALS.get(String(command))?.statusName === status;
    const commands = commandsOf(this.#info).filter((entry) => {
      return ['done', 'running'].includes(`${entry['state']}`) || (entry['state'] === 'waiting' && leadsHere(entry));
    });
    const isSaving = commands.some(({ command, state }) => command === 'save-state' && state === 'running');
    const change = `${status} since ${excerptOf(this.#info['since'])}`;
    const word = CHANGES.get(status);
    if (word === undefined || isSaving || change === this.#known) return;
    const isFirst = this.#known === '';
    if (!this.#isReading && !isFirst) return;
    this.#known = change;
    const author = describeAuthor(this.#info);
    const changes = commands.filter(({ command }) => GOALS.has(String(command)));
    const cause = changes[changes.map(leadsHere).lastIndexOf(false) + 1]; // later ones had no effect
    if (isFirst || author === '' || this.sent.has(cause?.['id'])) return;
    this.#lines.print(paintStatus(word + author, status));
  }

  /** Prints new questions, also those of a command that takes long, and how others have ended the ones before. */
  #announceAsks(): void {
    if (!this.#isReading && performance.now() - this.#readAt <= 2 * HINT_MS) return;
    const asks = questionsIn(this.#info);
    const isOf = ({ id }: Question, others: readonly Question[]): boolean => others.some((other) => other.id === id);
    for (const question of this.#asks.filter((one) => !isOf(one, asks) && !this.sent.has(one.id))) {
      const end = commandsOf(this.#info).find((entry) => isAnswer(entry) && entry['id'] === question.id);
      if (end !== undefined) this.#lines.print(describeCommand(end));
    }
    for (const question of asks.filter((one) => !isOf(one, this.#asks))) {
      const text = paintStatus(`asks: ${describeQuestion(question, asks.length > 1)}`, 'asks');
      if (this.#isReading) this.#lines.print(text);
      else print(`\n${text}, after Ctrl-C`); // the line may be open
    }
    const now = performance.now();
    if (asks.length !== this.#asks.length || !asks.every((one) => isOf(one, this.#asks))) this.#asksAt = now;
    this.#asks = asks;
    if (!this.#lines.isTyping) this.meant = now - this.#asksAt < SEEN_MS ? '' : idOfOnly(asks);
  }

  #update(status: string): void {
    const hasResponded = status !== NO_ANSWER;
    if (hasResponded || this.#isSilent()) this.#status = status;
    if (hasResponded) this.#heardAt = performance.now();
  }

  /** Updates the prompt. Ignores silence while the console itself was stopped. */
  #tick(): void {
    const now = performance.now();
    if (now - this.#tickedAt > 2 * TICK_MS) this.#heardAt = now;
    this.#tickedAt = now;
    this.#announceAsks(); // by now, they may count as seen
    this.#lines.setPrompt(this.#text());
  }

  #isSilent(): boolean {
    const now = performance.now();
    return now - this.#heardAt > SILENT_MS && now - this.#tickedAt <= 2 * TICK_MS;
  }

  #text(): string {
    const isSilent = this.#isSilent() && this.#status !== SystemStatus.OFFLINE.statusName;
    const seconds = Math.floor((performance.now() - this.#heardAt) / 1000);
    const status = isSilent ? `${NO_ANSWER} for ${seconds} s` : this.#status;
    const name = excerpt(this.#client.target.replace(/unix:.*\/(.+?)(?:\.sock)?$/, '$1'), MAX_NAME);
    return `${name} (${paintStatus(status, isSilent ? NO_ANSWER : this.#status)}) > `;
  }
}
