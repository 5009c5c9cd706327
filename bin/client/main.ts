// Runs control-client: finds the targets, runs the command for each, and prints the outcomes; also the exit code for
// machines that cannot be reached.

import { setMaxListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../control.ts';
import { EXIT, UsageError, warn } from '../shared/cli.ts';
import { type CommandName, findStatus, type Shell } from '../shared/commands.ts';
import { type Found, inParallel, labelled, type Target } from '../shared/folder.ts';
import { NoSystem, select, type Selection } from '../shared/names.ts';
import { printableJson } from '../shared/text.ts';
import { discover, endLinks, findIn, keepTerminal, PATIENCE_MS, runDial, unreachable } from '../shared/via.ts';
import { complete, COMPLETE, SCRIPTS } from './completion.ts';
import { list } from './list.ts';
import { log } from './log.ts';
import { type CommandLine, helpOn, parseCommandLine, resumeLineFor, senderIn, type Values } from './options.ts';
import { Top } from './top.ts';
import {
  answer, failure, finish, getInfo, getStatus, listAsks, type Outcome, pauseFor, pauseMine, resumeMine, runDeclared,
  send, waitFor,
} from './verbs.ts';
import { ChangeHook, watch } from './watch.ts';
import type { FollowOptions } from '../shared/system.ts';

const REQUEST_TIMEOUT_MS = 5000;
const MAX_EXPIRES_S = 86_400;
const LOOK_MS = 200; // between two looks for a system that may start
const NOTICE_MS = 2000; // after which the wait for it is told
/** Without a target, these are about everything here; others change or await one system. */
const READING: ReadonlySet<string> = new Set(['status', 'info', 'list', 'asks', 'watch']);

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
    runDial();
    return EXIT.DONE; // the input keeps it running
  }
  const requestMs = Math.min(timeoutMs, REQUEST_TIMEOUT_MS);
  if (name === 'top') return showTop(words, values, requestMs);
  if (name === 'log') {
    const { json: isJson = false, follow: isFollowed = false } = values;
    return log(words, values, requestMs, { since, isJson, isFollowed, signal: endOfOutput() });
  }
  const selection = await selectFor(commandLine, requestMs);
  const { targets, folders } = selection;
  if (name === 'list' && targets.length > 0) {
    return Math.max(await list(targets, values.json === true), warnUnreachable());
  }
  if (targets.length === 0) return warnUnreachable() || reportNone(selection, commandLine);
  const [only] = targets;
  if (only?.label === '' && name !== 'watch') targets[0] = { ...only, name: undefined }; // as at an address
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
  if (name === 'watch' && folders.length > 0) {
    await watchHere(selection, requestMs, end, perform);
  } else if (durationMs === null) {
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

/** Waits for the first system, or for one of the names, if the command does. */
async function selectFor(commandLine: CommandLine, requestMs: number): Promise<Selection> {
  const { command: { name }, argument, answering, condition, invocation, words, values, timeoutMs } = commandLine;
  const awaitsEnd = name === 'wait' && argument === 'offline'; // the system may have ended just now
  const isWaiting = name === 'watch' || (name === 'wait' && !awaitsEnd);
  const isOpen = words.length === 0 || (name === 'wait' && values.timeout !== undefined);
  const mayStart = isWaiting && isOpen && values.targets === undefined;
  const isReading = READING.has(name) || Boolean(answering?.id) || (name === 'run' && invocation === null);
  const sources = {
    ...values, timeoutMs: requestMs, hint: hintFor(commandLine), allHint: ', or --all',
    ...awaitsEnd && { absence: 'offline' as const },
  };
  const start = performance.now();
  for (let isNoticed = false;;) {
    const found = await select(words, sources, isReading ? 'all' : 'mistake').catch((error: Error): Selection => {
      if (mayStart && error instanceof NoSystem) return { targets: [], folders: [], none: error.message };
      throw error;
    });
    const waitedMs = performance.now() - start;
    if (found.targets.length > 0 || !mayStart || unreachable.size > 0) {
      if (mayStart) commandLine.timeoutMs = Math.max(1, timeoutMs - waitedMs); // opening links takes none of it
      return found;
    }
    if (waitedMs >= timeoutMs) {
      const goal = condition?.text ?? argument;
      return { ...found, none: `not ${goal} after ${(waitedMs / 1000).toFixed(1)} s: ${found.none}` };
    }
    if (!isNoticed && waitedMs >= NOTICE_MS) {
      warn(found.none.replace(/;|$/, ': it may still start$&'));
      isNoticed = true;
    }
    await sleep(Math.min(LOOK_MS, timeoutMs - waitedMs));
  }
}

/** Prints why there are no targets, and returns the exit code. */
function reportNone({ none }: Selection, { command: { name }, argument, values: { json } }: CommandLine): number {
  const { statusName: status } = SystemStatus.OFFLINE;
  const isEnd = name === 'wait' && argument === status;
  if (json === true && name !== 'list') console.log(printableJson({ status, error: none }));
  else if (name === 'status' || isEnd) console.log(status);
  warn(none);
  return isEnd || name === 'list' ? EXIT.DONE : name === 'wait' ? EXIT.NOT_REACHED : EXIT.OFFLINE;
}

/** Watches what runs here, also what starts later. */
async function watchHere(
  { targets, folders }: Selection,
  timeoutMs: number,
  end: AbortSignal,
  perform: (target: Target) => Promise<unknown>,
): Promise<void> {
  const known = new Set(targets.map(({ client }) => client.key));
  let all: Found[] = [];
  const watches: Promise<unknown>[] = [];
  const add = (found: readonly Found[]): void => {
    all = [...all.filter(({ socket }) => socket?.exists !== false), ...found];
    watches.push(...labelled(all).slice(all.length - found.length).map((target) => perform(target)));
    for (const { client } of found) known.add(client.key);
  };
  add(targets);
  await Promise.all(folders.map(async (folder) => {
    for await (const { found } of discover(folder, () => known, timeoutMs, end)) add(found);
  }));
  await Promise.all(watches);
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
  const { name, id, label, client } = target;
  const { json = false, wait = false, mine = false, reason } = values;
  switch (command) {
    case 'status': return getStatus(client, process.stdout.isTTY && !json);
    case 'info': return getInfo(client);
    case 'asks': return listAsks(client);
    case 'wait': return waitFor(target, condition ?? findStatus(argument) as SystemStatus, timeoutMs);
    case 'watch': {
      const denied = await watch(client, { signal: end, json, label, target: name, title: id, hook });
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

/** Shows a live table of the targets or, without any, of everything here. */
async function showTop(names: string[], values: Values, timeoutMs: number): Promise<number> {
  const isTerminal = process.stdout.isTTY && process.stdin.isTTY;
  if (!isTerminal || values.json === true) {
    const why = isTerminal ? 'excludes --json' : 'requires a terminal';
    throw new UsageError(`top ${why}; 'watch' prints a line for each change`);
  }
  const { targets, folders, none } = await select(names, { ...values, timeoutMs }, 'later');
  if (targets.length + folders.length === 0) {
    const exitCode = warnUnreachable();
    if (exitCode === EXIT.DONE) warn(none);
    return exitCode || EXIT.OFFLINE;
  }
  const others = folders.filter(({ machine }) => machine.open !== undefined);
  await findIn(others, (folder) => folder.systems({ timeoutMs }), PATIENCE_MS); // may ask for passwords
  await keepTerminal();
  await new Top().run(targets, folders, timeoutMs);
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
