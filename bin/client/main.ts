// Runs control-client: finds the targets, runs the command for each, and prints the outcomes; also the exit code for
// machines that cannot be reached.

import { setMaxListeners } from 'node:events';
import { checkTrusted, type SystemStatus } from '../../control.ts';
import { EXIT, UsageError, warn } from '../shared/cli.ts';
import { type CommandName, findStatus, type Shell } from '../shared/commands.ts';
import { inParallel, type Target } from '../shared/folder.ts';
import { printableJson } from '../shared/text.ts';
import {
  dial, endLinks, findIn, foldersOf, FRAME, HELLO, keepTerminal, MAX_FRAME_LENGTH, PATIENCE_MS, unreachable,
} from '../shared/via.ts';
import { complete, COMPLETE, SCRIPTS } from './completion.ts';
import { list } from './list.ts';
import { log } from './log.ts';
import { type CommandLine, helpOn, parseCommandLine, resumeLineFor, senderIn, type Values } from './options.ts';
import { Top } from './top.ts';
import {
  answer, failure, finish, getInfo, getStatus, listAsks, namesNone, type Outcome, pauseFor, pauseMine, resumeMine,
  runDeclared, selectTargets, send, waitFor,
} from './verbs.ts';
import { ChangeHook, watch } from './watch.ts';
import type { FollowOptions } from '../shared/system.ts';

const REQUEST_TIMEOUT_MS = 5000;
const MAX_EXPIRES_S = 86_400;
/**
 * Returns the exit code.
 *
 * @throws {UsageError} If the arguments are wrong.
 */
export async function main(args: readonly string[] = process.argv.slice(2)): Promise<number> {
  if (args[0] === COMPLETE) return complete(...args.slice(1));
  const commandLine = parseCommandLine(args);
  if (commandLine === null) return EXIT.DONE;
  const { command: { name }, argument, words, values, timeoutMs, since, durationMs } = commandLine;
  const { answering, exec } = commandLine;
  if (name === 'help' || name === 'completion') {
    console.log(name === 'help' ? helpOn(argument) : SCRIPTS[argument as Shell].trim());
    return EXIT.DONE;
  }
  if (name === 'dial') {
    dial(checkTrusted, HELLO, FRAME, MAX_FRAME_LENGTH);
    return EXIT.DONE; // the input keeps it running
  }
  const requestMs = Math.min(timeoutMs, REQUEST_TIMEOUT_MS);
  if (name === 'top') return showTop(words, values, requestMs);
  if (name === 'log') {
    const { json: isJson = false, follow: isFollowed = false } = values;
    return log(words, values, requestMs, { since, isJson, isFollowed, signal: endOfOutput() });
  }
  if (name === 'list') {
    const all = values.all === true || namesNone(words, values);
    const exitCode = await list(await selectTargets(words, { ...values, all }, requestMs), values.json === true);
    return Math.max(exitCode, warnUnreachable());
  }
  const awaitsEnd = name === 'wait' && argument === 'offline'; // the system may have ended just now
  const sources = awaitsEnd ? { ...values, absence: 'offline' as const } : values;
  const targets = await selectTargets(words, sources, requestMs, hintFor(commandLine));
  if (targets.length === 0) return warnUnreachable() || EXIT.OFFLINE; // both have warned
  const end = endOfOutput();
  const hook = exec && new ChangeHook(exec.command, exec.words);
  await Promise.allSettled(targets.map(({ client }) => client.machine.open?.()));
  let exitCode = warnUnreachable();
  let hasOutput = false;
  const report = (target: Target, outcome: Outcome): void => {
    exitCode = Math.max(exitCode, outcome.exitCode);
    hasOutput ||= outcome.text !== '';
    print(outcome, target, values.json === true);
  };
  if (answering !== null) {
    const outcomes = await answer(targets, answering, { by: senderIn(values), reason: values.reason });
    for (const [target, outcome] of outcomes) report(target, outcome);
    return exitCode;
  }
  const perform = async (target: Target, own: Partial<Task> = {}): Promise<Outcome> => {
    const outcome = await execute(target, { ...commandLine, name, end, hook, ...own });
    report(target, outcome);
    return outcome;
  };
  if (durationMs === null) {
    await inParallel(targets, async (target) => void await perform(target));
  } else {
    const { reason, timeout, ...others } = values; // without --timeout, the resume does not expire
    await pauseFor(targets, {
      durationMs,
      pause: (target, signal) => perform(target, { signal }),
      resume: async (target) => {
        await perform(target, { name: 'resume', values: { ...others, wait: true, mine: true } });
      },
      resumeLine: resumeLineFor(words, values),
    });
  }
  if (name === 'asks' && !hasOutput && values.json !== true) warn('no question is open');
  await hook?.end();
  return exitCode;
}

/** What words may mean that are no targets. */
function hintFor({ command: { options }, invocation, answering, words }: CommandLine): string {
  if (words.includes('all')) return '; all systems are --all';
  if (invocation !== null) return '; arguments are name=value';
  if (answering !== null) return '; an answer is --yes, --no or name=value';
  return words.length > 1 && options?.includes('reason') === true ? "; a reason is --reason 'TEXT'" : '';
}

interface Task extends CommandLine {
  name: CommandName;
  /** Ends `watch`. */
  end: AbortSignal;
  /** Of `watch --exec`. */
  hook: ChangeHook | null;
  /** Ends the wait for the outcome of a command. */
  signal?: AbortSignal;
}

async function execute(target: Target, task: Task): Promise<Outcome> {
  const { name: command, argument, values, condition, invocation, timeoutMs, hook, end, signal } = task;
  const { name, title, label, client } = target;
  const { json = false, wait = false, mine = false, reason } = values;
  switch (command) {
    case 'status': return getStatus(client, process.stdout.isTTY && !json);
    case 'info': return getInfo(client);
    case 'asks': return listAsks(client);
    case 'wait': return waitFor(target, condition ?? findStatus(argument) as SystemStatus, timeoutMs);
    case 'watch': {
      const denied = await watch(client, { signal: end, json, label, target: name, title, hook });
      return denied === null ? { exitCode: EXIT.DONE } : failure(denied);
    }
  }
  const output = name === undefined && process.stderr.isTTY ? process.stderr : undefined;
  const limit = wait && values.timeout !== undefined ? expireIn(timeoutMs) : { timeoutMs };
  const options = { ...limit, by: senderIn(values), reason, output, ...(signal && { signal }) };
  if (command === 'pause' && values.for !== undefined) return pauseMine(client, options);
  if (mine) return resumeMine(client, options);
  const act = wait ? finish : send;
  if (command === 'run') return runDeclared(client, invocation, act, options);
  return act(client, command, options);
}

/** The wait is a second longer, for the report that a command has expired. */
function expireIn(timeoutMs: number): Pick<FollowOptions, 'expires' | 'timeoutMs'> {
  const seconds = Math.ceil(timeoutMs / 1000);
  return { expires: Math.min(seconds, MAX_EXPIRES_S), timeoutMs: (seconds + 1) * 1000 };
}

/** Warns about machines that cannot be reached, and returns the exit code. */
function warnUnreachable(): number {
  for (const message of unreachable.values()) warn(message);
  return unreachable.size > 0 ? EXIT.NO_ANSWER : EXIT.DONE;
}

/** Shows a live table of the targets or, without any, of all systems in the folder. */
async function showTop(names: string[], values: Values, timeoutMs: number): Promise<number> {
  const isTerminal = process.stdout.isTTY && process.stdin.isTTY;
  if (!isTerminal || values.json === true) {
    const why = isTerminal ? 'excludes --json' : 'requires a terminal';
    throw new UsageError(`top ${why}; 'watch --all' prints a line for each change`);
  }
  const folders = foldersOf(values);
  const others = folders.filter(({ machine }) => machine.open !== undefined);
  const isAll = namesNone(names, values);
  const targets = isAll ? [] : await selectTargets(names, values, timeoutMs);
  if (isAll) await findIn(others, (folder) => folder.systems({ timeoutMs }), PATIENCE_MS); // may ask for passwords
  else if (targets.length === 0) return warnUnreachable() || EXIT.OFFLINE;
  await keepTerminal();
  await new Top().run(targets, isAll ? folders : [], timeoutMs);
  endLinks();
  return EXIT.DONE;
}

/** Aborts when stdout is closed. */
function endOfOutput(): AbortSignal {
  const end = new AbortController();
  setMaxListeners(0, end.signal); // a listener per target
  process.stdout.once('error', () => end.abort());
  return end.signal;
}

/** Prints an outcome; each line begins with the target, if it has a name. */
function print({ text = '', json, error = '' }: Outcome, target: Target, isJson: boolean): void {
  const { name, title, label, client } = target;
  const reason = name === undefined ? error : client.shorten(error);
  if (isJson && json !== undefined) {
    const own = name === undefined ? {} : { target: name };
    console.log(printableJson({ ...own, ...json, ...own })); // first, and not overridden by the server
  } else if (text !== '') {
    const suffix = name === undefined || reason === '' ? '' : `: ${reason}`;
    console.log(`${text}${suffix}`.replaceAll(/^/gm, () => label));
    if (name !== undefined) return;
  }
  if (error !== '') warn(name === undefined ? error : `${title}: ${reason}`);
}
