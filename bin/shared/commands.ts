// The commands of control-client and control-console: the only list, for help, completion and `did you mean`.

import { type ControlCommand, SystemStatus } from '../../control.ts';
import { helpLine, listOf, suggest } from './cli.ts';

/** The name of a command in the tools. */
export type CommandName =
  ControlCommand | 'status' | 'info' | 'list' | 'top' | 'watch' | 'log' | 'wait' | 'run' | 'asks' | 'answer' |
  'completion' | 'dial' | 'help' | 'quit';

export interface Command {
  name: CommandName;
  /** Other words for it. */
  words?: readonly string[];
  /** What similar tools call it. */
  elsewhere?: readonly string[];
  help: string;
  /** The tool that has it; without it, both. */
  tool?: 'client' | 'console';
  /** Its first argument: its name, its values unless only the system knows them, and what else it may be. */
  argument?: { name: string; values?: readonly string[]; other?: string };
  /** The options of control-client that only some commands have. */
  options?: readonly string[];
  /** The options that only it does not have. */
  lacks?: readonly string[];
  /** It does not concern a system, so it has no targets. */
  isLocal?: true;
}

const STATUSES: readonly SystemStatus[] = Object.values(SystemStatus);

/** The statuses as arguments. */
export const STATUS_WORDS: readonly string[] = STATUSES.map(({ statusName }) => wordOf(statusName));

/** Of `--on`, beside the statuses: a question. */
export const ASK = 'ask';

/** Finds a status by its name or word. */
export function findStatus(word: string): SystemStatus | undefined {
  return STATUSES[STATUS_WORDS.indexOf(wordOf(word))];
}

/** The name of a status without the space. */
export function wordOf(statusName: string): string {
  return statusName.replace(' ', '-');
}

/** The shells that control-client has a completion for. */
export const SHELLS = ['bash', 'zsh', 'fish'] as const;
export type Shell = typeof SHELLS[number];

const SENDING = ['wait', 'timeout', 'reason', 'by'];

const COMMANDS: readonly Command[] = [
  { name: 'status', help: 'print the status and its cause', options: ['timeout'] },
  { name: 'info', help: 'print all details and the latest commands', options: ['timeout'] },
  { name: 'list', tool: 'client', elsewhere: ['ls', 'ps'], options: ['timeout'],
    help: 'list the targets, or what runs here: name, process, status, since when, and target or detail' },
  { name: 'top', tool: 'client', help: 'show the targets, or what runs here, in a live table with keys' },
  { name: 'watch', tool: 'client', help: 'print each new status and each command that is done, until interrupted',
    options: ['exec', 'on'] },
  { name: 'log', tool: 'client', elsewhere: ['logs', 'history'], options: ['since', 'follow'],
    lacks: ['targets', 'all', 'via'],
    help: 'print what the targets (also FILE), or all systems of this user, have logged, also after their end' },
  { name: 'wait', tool: 'client',
    help: `wait for a status (${listOf(STATUS_WORDS)}), or for a field of the detail: wait 'loss < 0.1'`,
    argument: { name: 'STATUS', values: STATUS_WORDS, other: "a quoted condition: 'loss < 0.1'" },
    options: ['timeout'] },
  { name: 'pause', words: ['p'], elsewhere: ['suspend', 'freeze'], help: 'pause the system',
    options: [...SENDING, 'for'] },
  { name: 'resume', words: ['r'], elsewhere: ['continue', 'unpause'], help: 'resume the system',
    options: [...SENDING, 'mine'] },
  { name: 'save-state', words: ['save'], elsewhere: ['checkpoint', 'snapshot'], help: 'save a checkpoint',
    options: SENDING },
  { name: 'shutdown', elsewhere: ['stop', 'kill', 'halt', 'exit', 'quit'], help: 'shut the system down',
    options: SENDING },
  { name: 'run',
    help: "run one of the program's own commands, such as evaluate points=200; without NAME, list them",
    argument: { name: 'NAME' }, options: SENDING },
  { name: 'asks', tool: 'client', help: 'list the open questions of the program, and what they take',
    options: ['timeout'] },
  { name: 'answer', help: 'answer a question, such as approved=true; without ID, the only open one, unless it is new',
    argument: { name: '[ID]' }, options: ['yes', 'no', 'reason', 'by'] },
  { name: 'completion', tool: 'client', help: `print the completion for a shell: ${listOf(SHELLS)}`,
    argument: { name: 'SHELL', values: SHELLS }, isLocal: true },
  { name: 'dial', tool: 'client', isLocal: true,
    help: 'the far end of --via, over standard input and output: for a key that permits nothing else' },
  { name: 'help', words: ['h', '?'], help: 'print this help', isLocal: true },
  { name: 'quit', words: ['q', 'exit'], tool: 'console', help: 'quit the console; the system is unaffected' },
];

/** For the help of the console. */
export const REASON_HELP: string =
  'The rest of the line after pause, resume, save or shutdown is the reason: pause GPU needed until noon';

export function commandsFor(tool: 'client' | 'console'): Command[] {
  return COMMANDS.filter((command) => (command.tool ?? tool) === tool);
}

/** Finds a command by any of its words, in any case. */
export function findCommand(tool: 'client' | 'console', word: string): Command | undefined {
  return commandsFor(tool).find((command) => wordsOf(command).includes(word.toLowerCase()));
}

/** ` (did you mean shutdown?)`, for a word that is no command, such as `stop` or `shutdwon`; empty if none is near. */
export function suggestCommand(tool: 'client' | 'console', word: string, others: Iterable<string> = []): string {
  const commands = commandsFor(tool);
  const meant = commands.find(({ elsewhere }) => elsewhere?.includes(word.toLowerCase()));
  if (meant !== undefined) return ` (did you mean ${meant.name}?)`;
  return suggest(word, [...commands.flatMap(wordsOf), ...others]);
}

/** The commands of control-client that have an option; none if all have it. */
export function ownersOf(option: string): Command[] {
  return commandsFor('client').filter(({ options }) => options?.includes(option));
}

/** All words for a command, the shortest first. */
export function wordsOf({ name, words = [] }: Command): string[] {
  return [name, ...words].sort((one, other) => one.length - other.length);
}

/** A line of the help: the words, the argument, and what the command does. */
export function helpOf(command: Command): string {
  const { argument, help } = command;
  return helpLine(`${wordsOf(command).join(', ')}${argument === undefined ? '' : ` ${argument.name}`}`, help);
}
