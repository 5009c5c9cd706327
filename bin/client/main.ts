// What control-client does: finds the targets, sends requests, and prints their outcomes.

import { setMaxListeners } from 'node:events';
import { parseArgs } from 'node:util';
import { SystemStatus } from '../../control.ts';
import {
  acceptedIn, COMPLETION_MS, completionsOf, isArgument, parseArguments, wordsBefore,
} from '../shared/accepts.ts';
import { ADDRESS_OPTIONS, ADDRESS_PARTS, BY, ENVIRONMENT_HELP } from '../shared/access.ts';
import { paintStatus } from '../shared/colour.ts';
import { commandsFor, findCommand, helpOf, ownersOf, STATUS_WORDS, wordOf, wordsOf } from '../shared/commands.ts';
import { describeInfo, describeStatusAndSave } from '../shared/describe.ts';
import { DIR_OPTION, findTargets, socketFolder } from '../shared/folder.ts';
import { completeName } from '../shared/names.ts';
import {
  describeOptions, EXIT, listOf, parseDuration, parseOptions, parseText, UsageError, warn,
} from '../shared/options.ts';
import { describeUnknown, NO_ANSWER, statusNameOf, UNKNOWN } from '../shared/replies.ts';
import { suggest } from '../shared/suggest.ts';
import { inParallel, TARGETS_OPTION } from '../shared/targets.ts';
import { printableJson, tidy } from '../shared/text.ts';
import { completionFor, LIVE } from './completion.ts';
import { isCondition, parseCondition } from './condition.ts';
import { pauseFor, pauseMine, resumeMine } from './lease.ts';
import { list, watchList } from './list.ts';
import { failure, finish, HINT, runDeclared, send } from './send.ts';
import { selectAll, selectTargets } from './targets.ts';
import { Top } from './top.ts';
import { waitFor, waitUntil } from './wait.ts';
import { ChangeHook, watch } from './watch.ts';
import type { Command, CommandName, Shell } from '../shared/commands.ts';
import type { PrintableClient } from '../shared/replies.ts';
import type { Target } from '../shared/targets.ts';
import type { Condition } from './condition.ts';
import type { Find } from './fleet.ts';
import type { Invocation, Outcome } from './send.ts';
import type { WatchOptions } from './watch.ts';

const ON_WORDS = [...STATUS_WORDS, wordOf(NO_ANSWER)];

const OPTIONS = {
  ...ADDRESS_OPTIONS,
  targets: TARGETS_OPTION,
  all: { type: 'boolean', help: 'all live systems of the folder --dir, instead of targets' },
  dir: DIR_OPTION,
  wait: { type: 'boolean', help: 'wait until the command is done, and print the status or what it returned' },
  timeout: {
    type: 'string', value: 'SECONDS',
    help: 'time limit of --wait and wait, and of each command of --for (default 30), and of status, info, list and run ' +
      'alone if below 5',
  },
  for: {
    type: 'string', value: 'TIME',
    help: 'pause: stay for this time, such as 90s, 30m or 2h, and then do what resume --mine does',
  },
  mine: { type: 'boolean', help: 'resume: only what nobody but the sender (--by) has paused' },
  reason: { type: 'string', value: 'TEXT', help: 'why the command is sent; the system shows it' },
  by: { type: 'string', value: 'TEXT', help: "who sends it, instead of CONTROL_BY ('' for nobody)" },
  exec: {
    type: 'string', value: 'CMD',
    help: 'watch: run CMD with sh at each new status, with CONTROL_STATUS, CONTROL_BEFORE, CONTROL_REASON and ' +
      'CONTROL_TARGET in its environment',
  },
  on: { type: 'string', value: 'STATUS,…', completion: ON_WORDS, help: 'watch: run CMD for these statuses alone' },
  watch: { type: 'boolean', help: 'list: redraw the table until interrupted' },
  json: { type: 'boolean', help: 'print one line of JSON for each outcome or change' },
} as const;

const HELP = `
Usage: control-client [options] COMMAND [TARGET ...]
       control-client [options] run NAME [PARAMETER=VALUE ...] [TARGET ...]

Shows what running systems are doing, sends them one command, or waits for a status.

${commandsFor('client').map(helpOf).join('\n')}

A target is the NAME of a system in the folder --dir, its NAME-PID or PID, or the address of one: HOST, HOST:PORT,
:PORT, unix:PATH or a path with a slash. Each line of the output then begins with its target; the exit code is the
highest of all. The arguments of run may also be one object of JSON: '{"episodes":200}'.

${describeOptions(OPTIONS)}

${ENVIRONMENT_HELP}

Exit codes:
  0  success; shutdown --wait: also if it was offline already
  1  refused or failed: the queue is full, the token is wrong, the command failed, the status is unknown, …
  2  usage error, or arguments that the system does not take
  3  offline: no control server responds at that address
  4  --wait, wait: not done or not reached in time, or no longer possible
  5  no answer: the request was sent, and a command may still take effect, unless the error says 'not sent'
`;

/** How commands are used, after `control-client`. */
const EXAMPLES: Readonly<Partial<Record<CommandName, string>>> = {
  watch: `watch --exec 'notify-send "$CONTROL_TARGET: $CONTROL_STATUS"' --on paused,offline`,
  wait: 'wait paused --timeout 60',
  pause: "pause --wait --reason 'GPU needed until noon'",
  'save-state': 'save-state --wait --timeout 300',
  run: 'run evaluate episodes=200 --wait',
  completion: 'completion fish | source',
};
const MORE_HELP = 'Targets, environment variables, exit codes: control-client --help';
const ADDRESSING: string[] = [...ADDRESS_PARTS, 'targets', 'all']; // not for a command that finds the systems itself

const REQUEST_TIMEOUT_MS = 5000;
const WAIT_TIMEOUT_S = '30';
const LEASE_DAYS = 365;

type Values = NonNullable<ReturnType<typeof parseOptions<typeof OPTIONS>>>['values'];

/**
 * Returns the exit code.
 *
 * @throws {UsageError} If the arguments are wrong.
 */
export async function main(args: readonly string[] = process.argv.slice(2)): Promise<number> {
  if (args[0] === LIVE) return complete(args[1] ?? '');
  const parsed = parseOptions(OPTIONS, helpOn, Infinity, args);
  if (parsed === null) return EXIT.DONE;
  const { values, positionals: [word, ...names] } = parsed;
  const command = parseCommand(word);
  const argument = command.argument?.values === undefined ? '' : parseArgument(command.argument, names.shift());
  const condition = isCondition(argument) ? parseCondition(argument) : null;
  checkOptions(command, values);
  if (command.isLocal) {
    const topic = command.name === 'help' ? names.shift() : undefined;
    if (names[0] !== undefined) throw new UsageError(`unexpected argument '${names[0]}'; see --help`);
    if (command.name === 'completion') console.log(completionFor(argument as Shell, OPTIONS));
    else console.log(helpOn(topic && parseCommand(topic).name));
    return EXIT.DONE;
  }
  const invocation = command.name === 'run' ? takeInvocation(names, values) : null;
  const isSent = command.options?.includes('wait') === true && (command.name !== 'run' || invocation !== null);
  if (isSent && values.timeout !== undefined && values.wait !== true && values.for === undefined) {
    throw new UsageError(`--timeout requires --wait: ${command.name} does not wait without it`);
  }
  const timeoutMs = parseDuration('--timeout', values.timeout ?? WAIT_TIMEOUT_S) * 1000;
  const durationMs = values.for === undefined ? null : parseDuration('--for', values.for, 'seconds', LEASE_DAYS) * 1000;
  const hook = createHook(values);
  const requestMs = Math.min(timeoutMs, REQUEST_TIMEOUT_MS);
  if (command.name === 'list' && values.watch !== true) {
    return list(await selectAll('list', names, values, requestMs), values.json === true);
  }
  if (command.name === 'list' || command.name === 'top') return showLive(command.name, names, values, requestMs);
  const targets = await selectTargets(names, values, requestMs, invocation === null ? '' : HINT);
  if (targets.length === 0) return EXIT.OFFLINE; // selectAll() has told
  const end = endOfOutput();
  let exitCode: number = EXIT.DONE;
  const settings = { values, condition, invocation, timeoutMs, hook, end };
  const perform = async (target: Target, name = command.name, own: Partial<Settings> = {}): Promise<Outcome> => {
    const outcome = await execute(name, argument, target, { ...settings, ...own });
    exitCode = Math.max(exitCode, outcome.exitCode);
    print(outcome, target, values.json === true);
    return outcome;
  };
  if (durationMs !== null) {
    const { reason, ...others } = { ...values, wait: true };
    await pauseFor(targets, {
      durationMs,
      pause: (target, signal) => perform(target, 'pause', { signal }),
      resume: async (target) => void await perform(target, 'resume', { values: { ...others, mine: true } }),
      resumeLine: resumeLineFor(names, values),
    });
  } else {
    await inParallel(targets, async (target) => void await perform(target));
  }
  await hook?.end();
  return exitCode;
}

interface Settings {
  values: Values;
  /** For `wait`, unless it is for a status. */
  condition: Condition | null;
  /** For `run`, unless it is to list the commands. */
  invocation: Invocation | null;
  timeoutMs: number;
  hook: ChangeHook | null;
  /** Ends `watch`. */
  end: AbortSignal;
  /** Ends the wait for the outcome of a command. */
  signal?: AbortSignal;
}

function execute(
  command: Command['name'],
  argument: string,
  target: Target,
  { values, condition, invocation, timeoutMs, hook, end, signal }: Settings,
): Promise<Outcome> {
  const { name, label, client } = target;
  const { json = false, wait = false, mine = false, reason } = values;
  switch (command) {
    case 'status': return getStatus(client, process.stdout.isTTY && !json);
    case 'info': return getInfo(client);
    case 'wait':
      if (condition !== null) return waitUntil(client, condition, timeoutMs);
      return waitFor(client, parseStatus(argument), timeoutMs);
    case 'watch': return watchUntil(client, { signal: end, json, label, target: name, hook });
  }
  const output = name === undefined && process.stderr.isTTY ? process.stderr : undefined;
  const options = { timeoutMs, by: senderIn(values), reason, output, ...(signal && { signal }) };
  if (command === 'pause' && values.for !== undefined) return pauseMine(client, options);
  if (mine) return resumeMine(client, wait ? finish : send, options);
  if (command === 'run') return runDeclared(target, invocation, wait ? finish : send, options);
  return (wait ? finish : send)(client, command, options);
}

/** Draws a table again and again: `list --watch`, or `top` of the targets or else of all systems in the folder. */
async function showLive(name: 'list' | 'top', names: string[], values: Values, timeoutMs: number): Promise<number> {
  const what = name === 'list' ? 'list --watch' : 'top';
  const isTerminal = process.stdout.isTTY && process.stdin.isTTY;
  if (!isTerminal || values.json === true) {
    const why = isTerminal ? 'excludes --json' : 'requires a terminal';
    throw new UsageError(`${what} ${why}; 'watch --all' prints a line for each change`);
  }
  const find: Find = (known) => findTargets(socketFolder(values.dir), timeoutMs, known);
  const isFolder = ([...ADDRESS_PARTS, 'targets'] as const).every((option) => values[option] === undefined);
  if (name === 'list') {
    await selectAll(what, names, values, timeoutMs); // refuses what list does not take
    await watchList(find, endOfOutput());
  } else {
    await new Top().run(isFolder && names.length === 0 ? find : await selectTargets(names, values, timeoutMs, ''));
  }
  return EXIT.DONE;
}

/** Prints the targets, and what else may come next after `run`, for the scripts of the completion, or nothing. */
async function complete(line: string): Promise<number> {
  const limit = setTimeout(() => process.exit(EXIT.DONE), COMPLETION_MS); // nothing else ends a look-up of a name
  try {
    const [, ...words] = wordsBefore(line);
    const current = words.pop() ?? '';
    const { values, positionals } = parseArgs({ args: words, options: OPTIONS, allowPositionals: true });
    const [command = '', name, ...others] = positionals;
    const isRun = findCommand('client', command)?.name === 'run';
    if (!isRun || name !== undefined) for (const word of await completeName(current, values.dir)) console.log(word);
    if (!isRun) return EXIT.DONE;
    const targets = await selectTargets(others.filter((word) => !isArgument(word)), values, COMPLETION_MS, '');
    const accepts = acceptedIn(await targets[0]?.client.request('info'));
    const typed = name === undefined ? [] : [name, ...others.filter(isArgument)];
    for (const word of completionsOf(accepts, [...typed, current])) console.log(word);
  } catch {} // the user is typing, and is told when the line is complete
  finally {
    clearTimeout(limit);
  }
  return EXIT.DONE;
}

// ───── The command line ──────────────────────────────────────────────────────────────────────────────────────────

function parseCommand(word: string | undefined): Command {
  const command = word === undefined ? undefined : findCommand('client', word);
  if (command !== undefined) return command;
  const commands = commandsFor('client');
  const names = commands.map(({ name }) => name).join(', ');
  const hint = suggest(word ?? '', commands.flatMap(wordsOf));
  throw new UsageError(`the command must be one of ${names}, got ${quote(word)}${hint}`);
}

/** The help of one command: its line, its options, an example. Of anything else, the whole help. */
function helpOn(word: string = 'help'): string {
  const command = findCommand('client', word);
  if (command === undefined || command.name === 'help') return HELP.trim();
  const { name, isLocal, takesNoTargets, options: own = [] } = command;
  const isTaken = (option: string): boolean => {
    if (ownersOf(option).length > 0) return own.includes(option);
    return isLocal !== true && !(takesNoTargets && ADDRESSING.includes(option));
  };
  const options = Object.fromEntries(Object.entries(OPTIONS).filter(([option]) => isTaken(option)));
  const example = `Example: control-client ${EXAMPLES[name] ?? name}`;
  return [helpOf(command), describeOptions(options), `${example}\n${MORE_HELP}`].join('\n\n');
}

function parseArgument(argument: NonNullable<Command['argument']>, text: string | undefined): string {
  const { name, values = [], other } = argument;
  if (text !== undefined && (values.includes(text) || (other !== undefined && isCondition(text)))) return text;
  const choices = `${values.join(', ')}${other === undefined ? '' : `, or ${other}`}`;
  throw new UsageError(`the ${name.toLowerCase()} must be one of ${choices}, got ${quote(text)}${suggest(text ?? '', values)}`);
}

/** Takes what `run` is to run from the words after it, and leaves the targets. Returns null if there is no command. */
function takeInvocation(words: string[], values: Values): Invocation | null {
  const [first] = words;
  const isTarget = first === undefined || (/[.:/]|^\d+$/.test(first) && !isArgument(first)); // it can be no command
  if (isTarget) {
    const option = (['wait', 'by', 'reason'] as const).find((name) => values[name] !== undefined);
    if (option !== undefined) throw new UsageError(`--${option} requires the name of a command: run alone lists them`);
    return null;
  }
  const [name = '', ...others] = words.splice(0, Infinity);
  words.push(...others.filter((word) => !isArgument(word)));
  return { name, typed: parseArguments(others.filter(isArgument)) };
}

function quote(text: string | undefined): string {
  return text === undefined ? 'nothing' : `'${text}'`;
}

/** Refuses options that the command would ignore. */
function checkOptions({ name, options = [] }: Command, values: Values): void {
  for (const option of Object.keys(values)) {
    const owners = ownersOf(option);
    if (owners.length === 0 || options.includes(option)) continue;
    const names = owners.map((owner) => owner.name);
    throw new UsageError(`--${option} requires ${listOf(names)}, got '${name}'`);
  }
  const [lease] = (['for', 'mine'] as const).filter((option) => values[option] !== undefined);
  if (lease !== undefined && senderIn(values) === '') {
    throw new UsageError(`--${lease} requires a sender: --by and CONTROL_BY must not be empty`);
  }
  if (values.on !== undefined && values.exec === undefined) throw new UsageError('--on requires --exec');
}

/** As servers report it, so that `resume --mine` finds it. */
function senderIn({ by = BY }: Values): string {
  return tidy(by);
}

/** The command that resumes what `pause --for` with these arguments has paused. */
function resumeLineFor(names: readonly string[], values: Values): string {
  const options = ([...ADDRESS_PARTS, 'targets', 'dir', 'by'] as const)
    .flatMap((name) => values[name] === undefined ? [] : [`--${name}=${values[name]}`]);
  const words = ['resume', '--mine', ...values.all === true ? ['--all'] : [], ...options, ...names];
  const isPlain = /^[\w@%+=:,./-]+$/;
  const quoted = words.map((word) => isPlain.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
  return `control-client ${quoted.join(' ')}`;
}

function createHook({ exec, on }: Values): ChangeHook | null {
  if (exec === undefined) return null;
  const words = on?.split(',').map((word) => parseArgument({ name: 'status of --on', values: ON_WORDS }, word));
  return new ChangeHook(parseText('--exec', exec), words ?? null);
}

function parseStatus(word: string): SystemStatus {
  return Object.values(SystemStatus)[STATUS_WORDS.indexOf(word)] as SystemStatus;
}

/** Aborted when nobody reads the output any more. */
function endOfOutput(): AbortSignal {
  const end = new AbortController();
  setMaxListeners(0, end.signal); // one for each target
  process.stdout.once('error', () => end.abort());
  return end.signal;
}

// ───── Outcomes ──────────────────────────────────────────────────────────────────────────────────────────────────

/** Prints an outcome: that of a target in one line, or in lines that all begin with the target. */
function print({ text = '', json, error = '' }: Outcome, target: Target, isJson: boolean): void {
  const { name, title, label, client } = target;
  const reason = name === undefined ? error : client.shorten(error);
  if (isJson && json !== undefined) {
    const own = name === undefined ? {} : { target: name };
    console.log(printableJson({ ...own, ...json, ...own })); // in front, and not the server's
  } else if (text !== '') {
    const suffix = name === undefined || reason === '' ? '' : `: ${reason}`;
    console.log(`${text}${suffix}`.replaceAll(/^/gm, () => label));
    if (name !== undefined) return;
  }
  if (error !== '') warn(name === undefined ? error : `${title}: ${reason}`);
}

// ───── Questions ─────────────────────────────────────────────────────────────────────────────────────────────────

/** Scripts compare the word on stdout, so people get more of it only where no script can read it. */
async function getStatus(client: PrintableClient, isForPeople: boolean): Promise<Outcome> {
  const reply = await client.request('status');
  const name = statusNameOf(reply);
  if (!reply.ok) return reply.answered ? failure(reply) : { ...failure(reply, name), text: paintStatus(name, name) };
  if (name === UNKNOWN) {
    const error = describeUnknown(reply.original);
    return { exitCode: EXIT.REFUSED, text: paintStatus(name, name), json: { status: reply.original, error }, error };
  }
  const known = isForPeople ? await client.request('info') : null;
  const text = known?.ok === true ? describeStatusAndSave(known.body) : name;
  return { exitCode: EXIT.DONE, text: paintStatus(text, name), json: { status: name } };
}

async function getInfo(client: PrintableClient): Promise<Outcome> {
  const reply = await client.request('info');
  if (!reply.ok) return failure(reply);
  return { exitCode: EXIT.DONE, text: describeInfo(reply.body).join('\n'), json: reply.body };
}

async function watchUntil(client: PrintableClient, options: WatchOptions): Promise<Outcome> {
  const denied = await watch(client, options);
  return denied === null ? { exitCode: EXIT.DONE } : failure(denied);
}
