// control-client watch: prints each change of a system, and runs a command for it.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { SystemStatus } from '../../control.ts';
import { paintStatus, warn } from '../shared/cli.ts';
import { type FailedReply, NO_ANSWER, type PrintableClient } from '../shared/client.ts';
import { ASK, wordOf } from '../shared/commands.ts';
import { describeQuestion, questionsIn } from '../shared/declared.ts';
import { commandsOf, describeCause, describeCommand, describeEnd, hasEnded } from '../shared/describe.ts';
import { FollowedSystem } from '../shared/system.ts';
import { excerptOf, localTime, printable, printableJson } from '../shared/text.ts';

export interface WatchOptions {
  /** Ends the watch. */
  signal: AbortSignal;
  json: boolean;
  /** Follows the time in each line. */
  label: string;
  /** The `target` of each JSON object. */
  target: string | undefined;
  /** What the system is called in `--exec`. */
  title: string;
  /** Notified of each change of the status, and of each question. */
  hook: ChangeHook | null;
}

/**
 * Prints a line for each new status, each question and each completed command, also for the end of a question.
 *
 * @returns The reply that denied access; null when the signal ended it.
 */
export async function watch(client: PrintableClient, options: WatchOptions): Promise<FailedReply | null> {
  const { signal, json, label, target, title, hook } = options;
  const print = (text: string, change: object): void => {
    const time = new Date();
    const line = `${localTime(time)}  ${label}${text}`;
    const own = { time, target };
    console.log(json ? printableJson({ ...own, ...change, ...own }) : line); // first, and not overridden by the server
  };
  const system = new FollowedSystem({ client, id: title });
  let known: ReadonlySet<string> = new Set(); // the ids of the open questions
  let last = ''; // status of a system that answered, or was absent
  let before = ''; // what the system has reported before
  let completed: ReadonlySet<unknown> | null = null; // the ids of the commands that have ended before
  for await (const reply of system.follow(signal)) {
    if (reply.fault === 'denied') return reply;
    const { status, end, reported } = system;
    if (reported !== before) {
      const error = reply.ok || end !== null ? undefined : target === undefined ? reply.error : system.error;
      const { body } = reply;
      const { by, reason } = end ?? body;
      const how = end === null ? error : describeEnd(end);
      const why = how === undefined ? '' : `: ${how}`;
      print(`${paintStatus(status, status)}${describeCause(body)}${why}`, { status, by, reason, error });
      const shown = { reason: how ?? excerptOf(reason), target: printable(title), question: '' };
      const wasOffline = last === status && status === SystemStatus.OFFLINE.statusName; // until its machine was lost
      if (before !== '' && !wasOffline) hook?.report(client, { status, before, ...shown });
      if (status !== NO_ANSWER) last = status;
      before = reported;
    }
    if (reply.ok && reply.body['commands'] !== undefined) {
      const ended = commandsOf(reply.body).filter((entry) => hasEnded(entry) && excerptOf(entry['id']) !== '');
      for (const entry of ended) if (completed?.has(entry['id']) === false) print(describeCommand(entry), entry);
      completed = new Set(ended.map(({ id }) => id));
    }
    const questions = system.isCurrent ? questionsIn(system.info) : [];
    for (const question of questions.filter(({ id }) => !known.has(id))) {
      const { message, entry } = question;
      print(paintStatus(`asks: ${describeQuestion(question, questions.length > 1)}`, 'asks'), { event: ASK, ...entry });
      hook?.ask({ status, before: status, reason: '', target: printable(title), question: message });
    }
    if (system.isCurrent) known = new Set(questions.map(({ id }) => id));
  }
  return null;
}

// ───── Running a command ─────────────────────────────────────────────────────────────────────────────────────────

interface StatusChange {
  status: string;
  before: string;
  reason: string;
  target: string;
  /** The message of a question; otherwise empty. */
  question: string;
}

/**
 * Runs a shell command for the changes of all systems, one at a time. Changes of a system during a run are merged into
 * one; questions are not.
 */
export class ChangeHook {
  readonly #command: string;
  readonly #words: readonly string[] | null;
  readonly #changes: Map<PrintableClient, StatusChange> = new Map(); // pending
  #running: Promise<void> = Promise.resolve();

  /** @param words The statuses for which the command runs, and `ask` for questions; null for all statuses. */
  constructor(command: string, words: readonly string[] | null) {
    this.#command = command;
    this.#words = words;
  }

  report(client: PrintableClient, change: StatusChange): void {
    const before = this.#changes.get(client)?.before ?? change.before;
    this.#changes.set(client, { ...change, before });
    this.#running = this.#running.then(() => this.#run(client));
  }

  ask(change: StatusChange): void {
    if (this.#words?.includes(ASK) === true) this.#running = this.#running.then(() => this.#execute(change));
  }

  /** Resolves when the command has run for all changes. */
  async end(): Promise<void> {
    await this.#running;
  }

  async #run(client: PrintableClient): Promise<void> {
    const change = this.#changes.get(client);
    this.#changes.delete(client);
    if (change === undefined || change.status === change.before) return; // merged into an earlier run, or undone
    if (this.#words?.includes(wordOf(change.status)) !== false) await this.#execute(change);
  }

  /** The command's output goes to stderr, because stdout is for the lines of `watch`. */
  async #execute({ status, before, reason, target, question }: StatusChange): Promise<void> {
    const env = {
      ...process.env,
      CONTROL_STATUS: status, CONTROL_BEFORE: before, CONTROL_REASON: reason, CONTROL_TARGET: target,
      CONTROL_QUESTION: question,
    };
    try {
      const child = spawn('sh', ['-c', this.#command], { stdio: ['ignore', 2, 2], env });
      const [code, signal] = await once(child, 'exit') as [number | null, string | null];
      if (code !== 0) warn(`--exec ended with ${signal ?? `exit code ${code}`}`);
    } catch (error) {
      warn(`--exec failed: ${(error as Error).message}`);
    }
  }
}
