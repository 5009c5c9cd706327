// control-client watch: prints each change of the systems, and runs a command for it.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { SystemStatus } from '../../control.ts';
import { EXIT, paintStatus, parseText, UsageError, warn } from '../shared/cli.ts';
import { type FailedReply, NO_ANSWER, type PrintableClient } from '../shared/client.ts';
import { STATUS_WORDS, wordOf } from '../shared/commands.ts';
import { describeQuestion, questionsIn } from '../shared/declared.ts';
import { commandsOf, describeCause, describeCommand, describeEnd, hasEnded } from '../shared/describe.ts';
import { type Found, labelled, type Target } from '../shared/folder.ts';
import { FollowedSystem } from '../shared/system.ts';
import { excerptOf, localTime, printable, printableJson } from '../shared/text.ts';
import { discover } from '../shared/via.ts';
import { failure, parseChoice, type Verb, verb } from './verb.ts';

/** Of `--on`, beside the statuses: a question. */
const ASK = 'ask';
const ON = { name: 'status of --on', values: [...STATUS_WORDS, wordOf(NO_ANSWER), ASK] };

export const watch: Verb = verb({
  name: 'watch', help: 'print each new status and each command that is done',
  example: `watch --exec 'notify-send "$CONTROL_TARGET: $CONTROL_STATUS"' --on paused,offline`,
  options: {
    exec: {
      type: 'string', value: 'CMD', parse: parseText,
      help: 'watch: run CMD with sh when the status changes; its variables are CONTROL_STATUS, CONTROL_BEFORE, ' +
        'CONTROL_REASON, CONTROL_TARGET and CONTROL_QUESTION',
    },
    on: {
      type: 'string', value: 'STATUS,…', completion: ON.values,
      parse: (_: string, text: string) => text.split(',').map((word) => parseChoice(ON, word)),
      help: `watch: run CMD only for these statuses (${ASK}: questions)`,
    },
  },
  take(_, { on, exec }) {
    if (on !== undefined && exec === undefined) throw new UsageError('--on requires --exec');
  },
  targets: () => ({ several: 'all', awaits: {} }),
  async run({ values: { exec, on = null, json = false }, targets, folders, requestMs, end, each }) {
    const hook = exec === undefined ? null : new ChangeHook(exec, on);
    const watchAll = (some: readonly Target[]): Promise<void> => each(async (target) => {
      const denied = await follow(target, json, hook, end);
      return denied === null ? { exitCode: EXIT.DONE } : failure(denied);
    }, some);
    const watches: Promise<void>[] = [];
    const all: Found[] = [];
    const known = (): Set<string> => new Set(all.map(({ client }) => client.key));
    const add = (found: readonly Found[]): void => {
      if (found.length === 0) return; // as most searches
      const others = all.filter(({ socket }) => socket?.exists !== false);
      watches.push(watchAll(labelled([...others, ...found]).slice(others.length)));
      all.push(...found);
    };
    if (folders.length === 0) watches.push(watchAll(targets));
    else add(targets);
    await Promise.all(folders.map(async (folder) => {
      for await (const { found } of discover(folder, known, requestMs, end)) add(found);
    }));
    await Promise.all(watches);
    await hook?.running;
  },
});

/**
 * Prints a line for each new status, each question and each completed command, also for the end of a question.
 *
 * @returns The reply that denied access; null when the signal ended it.
 */
async function follow(
  { client, name, id: title, label }: Target,
  json: boolean,
  hook: ChangeHook | null,
  signal: AbortSignal,
): Promise<FailedReply | null> {
  const print = (text: string, change: object): void => {
    const time = new Date();
    const line = `${localTime(time)}  ${label}${text}`;
    const own = { time, target: name };
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
      const error = reply.ok || end !== null ? undefined : name === undefined ? reply.error : system.error;
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
class ChangeHook {
  /** Resolves when the command has run for all changes until now. */
  running: Promise<void> = Promise.resolve();
  readonly #command: string;
  readonly #words: readonly string[] | null;
  readonly #changes: Map<PrintableClient, StatusChange> = new Map(); // pending

  /** @param words The statuses for which the command runs, and `ask` for questions; null for all statuses. */
  constructor(command: string, words: readonly string[] | null) {
    this.#command = command;
    this.#words = words;
  }

  report(client: PrintableClient, change: StatusChange): void {
    const before = this.#changes.get(client)?.before ?? change.before;
    this.#changes.set(client, { ...change, before });
    this.running = this.running.then(() => this.#run(client));
  }

  ask(change: StatusChange): void {
    if (this.#words?.includes(ASK) === true) this.running = this.running.then(() => this.#execute(change));
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
