// Runs control-client: finds the verb and its targets, runs it, and prints the outcomes.

import { setMaxListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../control.ts';
import { EXIT, parseOptions, UsageError, warn } from '../shared/cli.ts';
import { inParallel, type Target } from '../shared/folder.ts';
import { NoSystem, select, type Selection, type Sources } from '../shared/names.ts';
import { printableJson } from '../shared/text.ts';
import { unreachable } from '../shared/via.ts';
import { complete } from './complete.ts';
import { COMPLETE } from './completion.ts';
import { checkOptions, findVerb, helpOn, NAME, OPTIONS } from './verbs.ts';
import { type Meaning, type Outcome, type Task, type Values, type Verb, warnUnreachable } from './verb.ts';
import type { SENDING } from './send.ts';

const REQUEST_TIMEOUT_MS = 5000;
const LOOK_MS = 200; // between two looks for a system that may start
const NOTICE_MS = 2000; // after which the wait for it is told

/** The options that are not the verb's alone. */
type Given = Values<Pick<typeof SENDING, 'timeout' | 'reason'>>;

interface Found extends Selection {
  waitedMs: number;
}

const NOTHING: Found = { targets: [], folders: [], none: '', waitedMs: 0 };

/**
 * Returns the exit code.
 *
 * @throws {UsageError} If the arguments are wrong.
 */
export async function main(args: readonly string[] = process.argv.slice(2)): Promise<number> {
  if (args[0] === COMPLETE) return complete(args.slice(1));
  const parsed = parseOptions({ ...OPTIONS, ...NAME }, helpOn, Infinity, args);
  if (parsed === null) return EXIT.DONE;
  const { values, positionals: [word, ...words] } = parsed as { values: Given; positionals: string[] };
  const verb = findVerb(word, words);
  checkOptions(verb, values);
  const argument = verb.take?.(words, values);
  if (verb.isLocal && words[0] !== undefined) throw new UsageError(`unexpected argument '${words[0]}'; see --help`);
  const requestMs = Math.min(values.timeout ?? REQUEST_TIMEOUT_MS, REQUEST_TIMEOUT_MS);
  const meaning = verb.targets?.(argument, values);
  const hint = hintFor(verb, words, values, meaning?.hint);
  const sources = { ...values, timeoutMs: requestMs, hint, allHint: ', or --all' };
  const selection = meaning === undefined ? NOTHING : await find(words, sources, meaning);
  const { targets, folders, none, waitedMs } = selection;
  if (meaning !== undefined && targets.length === 0) return warnUnreachable() || reportNone(none, meaning, values);
  const end = endOfOutput();
  let exitCode: number = EXIT.DONE;
  if (meaning?.isQuick !== true) {
    await Promise.allSettled(targets.map(({ client }) => client.machine.open?.()));
    exitCode = warnUnreachable();
  }
  const each: Task['each'] = async (work, some = targets) => void await inParallel(some, async (target) => {
    const outcome = await work(target);
    if (outcome === null) return;
    exitCode = Math.max(exitCode, outcome.exitCode);
    print(outcome, values, target);
  });
  const task = { argument, values, words, targets, folders, waitedMs, requestMs, end, each };
  const own = await verb.run(task) ?? EXIT.DONE;
  return Math.max(exitCode, own);
}

/** Waits for the first system, or for one of the names, if the verb does. */
async function find(words: readonly string[], sources: Sources, meaning: Meaning): Promise<Found> {
  const { several, awaits, ...others } = meaning;
  const timeoutMs = awaits?.timeoutMs ?? Infinity;
  const isOpen = words.length === 0 || timeoutMs !== Infinity;
  const mayStart = awaits !== undefined && isOpen && sources.targets === undefined;
  const start = performance.now();
  for (let isNoticed = false;;) {
    const found = await select(words, { ...others, ...sources }, several).catch((error: Error): Selection => {
      if (mayStart && error instanceof NoSystem) return { targets: [], folders: [], none: error.message };
      throw error;
    });
    if (!mayStart) return { ...found, waitedMs: 0 };
    const waitedMs = performance.now() - start;
    if (found.targets.length > 0 || unreachable.size > 0) return { ...found, waitedMs };
    if (waitedMs >= timeoutMs) {
      return { ...found, none: `not ${awaits.goal} after ${(waitedMs / 1000).toFixed(1)} s: ${found.none}`, waitedMs };
    }
    if (!isNoticed && waitedMs >= NOTICE_MS) {
      warn(found.none.replace(/;|$/, ': it may still start$&'));
      isNoticed = true;
    }
    await sleep(Math.min(LOOK_MS, timeoutMs - waitedMs));
  }
}

/** What words may mean that are no targets. */
function hintFor({ options = {} }: Verb, words: readonly string[], { reason }: Given, own?: string): string {
  if (words.includes('all')) return '; all systems are --all';
  if (own !== undefined) return own;
  const isReason = words.length > 1 ? 'reason' in options : /^\S+$/.test(reason ?? ''); // or the rest of one
  return isReason ? "; a reason is --reason 'TEXT'" : '';
}

/** Prints why there are no targets, and returns the exit code. */
function reportNone(error: string, { none }: Meaning, values: Given): number {
  const { statusName: status } = SystemStatus.OFFLINE;
  const outcome = { exitCode: EXIT.OFFLINE, json: { status, error }, error, ...none };
  print(outcome, values);
  return outcome.exitCode;
}

/** Aborts when stdout is closed. */
function endOfOutput(): AbortSignal {
  const end = new AbortController();
  setMaxListeners(0, end.signal); // a listener per target
  process.stdout.once('error', () => end.abort());
  return end.signal;
}

/** Prints an outcome; each line begins with the target, if it has a name. */
function print({ text = '', json, error = '' }: Outcome, { json: isJson }: Given, target?: Target): void {
  const { name, title = '', label = '', client } = target?.label === '' ? {} : target ?? {};
  const reason = client?.shorten(error) ?? error;
  if (isJson === true && json !== undefined) {
    const own = name === undefined ? {} : { target: name };
    console.log(printableJson({ ...own, ...json, ...own })); // first, and not overridden by the server
  } else if (text !== '') {
    const suffix = name === undefined || reason === '' ? '' : `: ${reason}`;
    console.log(`${text}${suffix}`.replaceAll(/^/gm, () => label));
    if (name !== undefined) return;
  }
  if (error !== '') warn(name === undefined ? error : `${title}: ${reason}`);
}
