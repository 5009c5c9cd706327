// The command line of control-client.

import {
  describeOptions, listOf, type Options, parseDuration, parseOptions, parsePast, parseText, suggest, UsageError,
} from '../shared/cli.ts';
import { ADDRESS_OPTIONS, ADDRESS_PARTS, BY, ENVIRONMENT_HELP, NO_ANSWER } from '../shared/client.ts';
import {
  ASK, type Command, type CommandName, commandsFor, findCommand, helpOf, ownersOf, STATUS_WORDS, suggestCommand, wordOf,
} from '../shared/commands.ts';
import { isArgument, isQuestionId, parseArguments } from '../shared/declared.ts';
import { type Condition, isCondition, OPERATOR, parseCondition } from '../shared/describe.ts';
import { ALL_OPTION, DIR_OPTION, TARGET_HELP, TARGETS_OPTION } from '../shared/folder.ts';
import { tidy } from '../shared/text.ts';
import { VIA_OPTION, type Where } from '../shared/via.ts';
import type { Answering, Invocation } from './verbs.ts';

const ON_WORDS = [...STATUS_WORDS, wordOf(NO_ANSWER), ASK];

const OPTIONS = {
  ...ADDRESS_OPTIONS,
  targets: TARGETS_OPTION,
  all: ALL_OPTION,
  dir: DIR_OPTION,
  via: VIA_OPTION,
  wait: { type: 'boolean', help: 'wait until the command is done, and print the new status or the returned value' },
  timeout: {
    type: 'string', value: 'SECONDS',
    help: 'time limit of --wait, --mine and --for (default 30), of wait (default: none), and of status, info, list ' +
      'and asks (at most 5, the default); a command sent with --wait and --timeout expires at this time',
  },
  for: {
    type: 'string', value: 'SECONDS',
    help: 'pause: resume after this time, such as 30m, as resume --mine does',
  },
  mine: { type: 'boolean', help: 'resume: release only the hold of the sender (--by), and wait as --wait does' },
  reason: { type: 'string', value: 'TEXT', help: 'why the command is sent; the system shows it' },
  by: { type: 'string', value: 'TEXT', help: "who sends the command, instead of CONTROL_BY ('' for nobody)" },
  yes: { type: 'boolean', help: 'answer: the same as true for the only parameter of the question' },
  no: { type: 'boolean', help: 'answer: the same as false' },
  exec: {
    type: 'string', value: 'CMD',
    help: 'watch: run CMD with sh when the status changes; its variables are CONTROL_STATUS, CONTROL_BEFORE, ' +
      'CONTROL_REASON, CONTROL_TARGET and CONTROL_QUESTION',
  },
  on: {
    type: 'string', value: 'STATUS,…', completion: ON_WORDS,
    help: `watch: run CMD for these statuses only, or for each question (${ASK})`,
  },
  since: {
    type: 'string', value: 'TIME',
    help: 'log: begin with the statuses at this time, such as 3:00 or 2026-11-23T03:00, or so long ago, such as 8h',
  },
  follow: { type: 'boolean', help: 'log: also print new lines, until interrupted' },
  json: { type: 'boolean', help: 'print one line of JSON for each outcome or change' },
} as const;

/** For the completion. */
export const CLIENT_OPTIONS: Options = OPTIONS;

const HELP = `
Usage: control-client [options] COMMAND [TARGET ...]
       control-client [options] run NAME [PARAMETER=VALUE ...] [TARGET ...]
       control-client [options] answer [ID] [PARAMETER=VALUE ...] [TARGET ...]

Shows what running systems are doing or asking, sends them a command or an answer, or waits for a status or a value.

${commandsFor('client').map(helpOf).join('\n')}

${TARGET_HELP}
Each line of output then begins with a name, and the exit code is the highest of all.

The arguments of run and answer can also be one JSON object: '{"points":200}'.

${describeOptions(OPTIONS)}

SECONDS may have a unit: 90s, 30m, 2h.

${ENVIRONMENT_HELP}

Exit codes:
  0  success; shutdown --wait: also if the system was already offline
  1  refused or failed: the queue is full, the token is wrong, the command failed, the status is unknown, …
  2  usage error, no live system has the name, or the system does not take the arguments
  3  offline: no control server listens at the address
  4  wait, --wait: not reached or not done in time; the command is still pending unless it has expired
  5  no answer: the system does not respond, or its machine cannot be reached; the command may still take effect,
     unless the error says 'not sent' or names the machine alone
  6  wait: the system has ended before the status or the value
`;

/** What follows `control-client` in the example of a command's help. */
const EXAMPLES: Readonly<Partial<Record<CommandName, string>>> = {
  watch: `watch --exec 'notify-send "$CONTROL_TARGET: $CONTROL_STATUS"' --on paused,offline`,
  log: 'log train.py --since 3:00',
  wait: 'wait paused --timeout 60',
  pause: "pause --wait --reason 'GPU needed until noon'",
  'save-state': 'save-state --wait --timeout 300',
  run: 'run evaluate points=200 --wait',
  asks: 'asks --all',
  answer: "answer k3f-q2 --yes --reason 'looked at them'",
  completion: 'completion fish | source',
};
const MORE_HELP = 'Targets, environment variables, exit codes: control-client --help';

const OUTCOME_TIMEOUT_S = '30';
const LEASE_DAYS = 365;

type Texts = 'host' | 'port' | 'socket' | 'targets' | 'timeout' | 'for' | 'reason' | 'by' | 'exec' | 'on' |
  'since';
type Switches = 'all' | 'wait' | 'mine' | 'follow' | 'yes' | 'no' | 'json';

export type Values = Partial<Record<Texts, string | undefined> & Record<Switches, boolean | undefined>> & Where;

export interface CommandLine {
  command: Command;
  /** The status or the condition of `wait`, the command of `help`, the shell of `completion`; otherwise empty. */
  argument: string;
  /** Of `wait`; null if it waits for a status. */
  condition: Condition | null;
  /** Of `run`; null to list the commands. */
  invocation: Invocation | null;
  /** Of `answer`. */
  answering: Answering | null;
  /** The targets. */
  words: string[];
  values: Values;
  timeoutMs: number;
  /** Of `log`, in milliseconds; -Infinity without `--since`. */
  since: number;
  /** Of `pause --for`. */
  durationMs: number | null;
  /** Of `watch`: the shell command, and the statuses for which it runs, or null for all. */
  exec: { command: string; words: readonly string[] | null } | null;
}

/**
 * Returns null if the help or the version was requested; it has been printed.
 *
 * @throws {UsageError} If the arguments are wrong.
 */
export function parseCommandLine(args: readonly string[]): CommandLine | null {
  const parsed = parseOptions(OPTIONS, helpOn, Infinity, args);
  if (parsed === null) return null;
  const { values, positionals: [word, ...words] } = parsed;
  const command = parseCommand(word, words);
  const isSplit = command.name === 'wait' && OPERATOR.test(words[1] ?? ''); // wait loss '<' 0.1
  if (isSplit) words.unshift(words.splice(0, 3).join(' '));
  let argument = command.argument?.values === undefined ? '' : parseArgument(command.argument, words.shift());
  if (command.name === 'help' && words.length > 0) argument = parseCommand(words.shift()).name;
  const condition = isCondition(argument) ? parseCondition(argument) : null;
  checkOptions(command, values);
  if (command.isLocal && words[0] !== undefined) throw new UsageError(`unexpected argument '${words[0]}'; see --help`);
  const invocation = command.name === 'run' ? takeInvocation(words, values) : null;
  const answering = command.name === 'answer' ? takeAnswer(words, values) : null;
  const isSent = command.options?.includes('wait') === true && (command.name !== 'run' || invocation !== null);
  if (isSent && values.timeout !== undefined && ![values.wait, values.mine, values.for].some(Boolean)) {
    throw new UsageError(`--timeout requires --wait: ${command.name} does not wait without it`);
  }
  const isUnlimited = command.name === 'wait' && values.timeout === undefined;
  return {
    command, argument, condition, invocation, answering, words, values,
    timeoutMs: isUnlimited ? Infinity : parseDuration('--timeout', values.timeout ?? OUTCOME_TIMEOUT_S),
    since: values.since === undefined ? -Infinity : parsePast('--since', values.since),
    durationMs: values.for === undefined ? null : parseDuration('--for', values.for, 'seconds', LEASE_DAYS),
    exec: parseExec(values),
  };
}

function parseCommand(word: string | undefined, words: readonly string[] = []): Command {
  const command = word === undefined ? undefined : findCommand('client', word);
  if (command !== undefined) return command;
  const names = commandsFor('client').map(({ name }) => name).join(', ');
  const hint = words.some(isArgument) // only run and answer take them
    ? suggest(`${word}`, ['run', 'answer']) || ` (did you mean run ${word}?)`
    : suggestCommand('client', word ?? '');
  if (hint !== '') throw new UsageError(`unknown command '${word}'${hint}; see --help`);
  throw new UsageError(`the command must be one of ${names}, got ${quote(word)}`);
}

/** The help of one command: its line, its options, an example. For any other word, the whole help. */
export function helpOn(word: string = 'help'): string {
  const command = findCommand('client', word);
  if (command === undefined || command.name === 'help') return HELP.trim();
  const { name, isLocal, options: own = [] } = command;
  const isTaken = (option: string): boolean => {
    if (ownersOf(option).length > 0) return own.includes(option);
    return isLocal !== true && command.lacks?.includes(option) !== true;
  };
  const timeout = { ...OPTIONS.timeout, help: timeoutHelp(command) };
  const options = Object.fromEntries(Object.entries({ ...OPTIONS, timeout }).filter(([option]) => isTaken(option)));
  const example = `Example: control-client ${EXAMPLES[name] ?? name}`;
  return [helpOf(command), describeOptions(options), `${example}\n${MORE_HELP}`].join('\n\n');
}

/** What --timeout is for one command. */
function timeoutHelp({ name, options = [] }: Command): string {
  if (name === 'wait') return 'time limit, such as 90s or 30m (default: none)';
  if (!options.includes('wait')) return 'time limit, at most 5 (default)';
  const waiting = ['wait', 'mine', 'for'].filter((option) => options.includes(option)).map((option) => `--${option}`);
  const expiry = 'with --wait, the command also expires at this time';
  return `time limit of ${waiting.join(' and ')}, such as 90s or 30m (default 30); ${expiry}`;
}

function parseArgument(argument: NonNullable<Command['argument']>, text: string | undefined): string {
  const { name, values = [], other } = argument;
  if (text !== undefined && (values.includes(text) || (other !== undefined && isCondition(text)))) return text;
  const choices = `${values.join(', ')}${other === undefined ? '' : `, or ${other}`}`;
  const hint = suggest(text ?? '', values);
  throw new UsageError(`the ${name.toLowerCase()} must be one of ${choices}, got ${quote(text)}${hint}`);
}

/** Removes the command and its arguments from the words after `run`; targets remain. Returns null without a command. */
function takeInvocation(words: string[], values: Values): Invocation | null {
  const [first] = words;
  const isTarget = first === undefined || (/[.:/]|^\d+$/.test(first) && !isArgument(first)); // can be no command
  if (isTarget) {
    const option = (['wait', 'by', 'reason'] as const).find((name) => values[name] !== undefined);
    if (option !== undefined) throw new UsageError(`--${option} requires the name of a command; run alone lists them`);
    return null;
  }
  const [name = '', ...others] = words.splice(0, Infinity);
  words.push(...others.filter((word) => !isArgument(word)));
  return { name, typed: parseArguments(others.filter(isArgument)) };
}

/** Removes the id and the arguments from the words after `answer`; targets remain. */
function takeAnswer(words: string[], { yes, no }: Values): Answering {
  const id = isQuestionId(words[0] ?? '') ? `${words.shift()}` : '';
  const all = words.splice(0, Infinity);
  words.push(...all.filter((word) => !isArgument(word)));
  const given = all.filter(isArgument);
  const answers = [...yes ? ['--yes'] : [], ...no ? ['--no'] : [], ...given];
  const [one = '', other] = answers;
  const isShort = one.startsWith('--');
  if (isShort && other !== undefined) throw new UsageError(`${one} and ${other} are mutually exclusive`);
  return { id, words: isShort ? [one.slice(2)] : given };
}

function quote(text: string | undefined): string {
  return text === undefined ? 'nothing' : `'${text}'`;
}

/** Rejects options that the command would ignore. */
function checkOptions({ name, options = [], lacks = [] }: Command, values: Values): void {
  for (const option of Object.keys(values)) {
    if (option === 'via') continue; // log() refuses CONTROL_VIA, too
    const rule = `${name} takes targets as words only; without any, it is about all systems`;
    if (lacks.includes(option)) throw new UsageError(`--${option} and ${name} are mutually exclusive: ${rule}`);
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

/** The sender as servers report it: one of control characters only is none. */
export function senderIn({ by = BY }: Values): string {
  return tidy(by);
}

/** The command line that resumes what `pause --for` with these arguments has paused. */
export function resumeLineFor(names: readonly string[], values: Values): string {
  const options = ([...ADDRESS_PARTS, 'targets', 'dir', 'by'] as const)
    .flatMap((name) => values[name] === undefined ? [] : [`--${name}=${values[name]}`]);
  const via = values.via?.map((text) => `--via=${text}`) ?? [];
  const words = ['resume', '--mine', ...values.all === true ? ['--all'] : [], ...options, ...via, ...names];
  const isPlain = /^[\w@%+=:,./-]+$/;
  const quoted = words.map((word) => isPlain.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
  return `control-client ${quoted.join(' ')}`;
}

function parseExec({ exec, on }: Values): CommandLine['exec'] {
  if (exec === undefined) return null;
  const words = on?.split(',').map((word) => parseArgument({ name: 'status of --on', values: ON_WORDS }, word));
  return { command: parseText('--exec', exec), words: words ?? null };
}
