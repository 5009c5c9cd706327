// The commands that control-client and control-console share, for help, completion and `did you mean`; the statuses as
// words.

import { type ControlCommand, SystemStatus } from '../../control.ts';
import { helpLine, suggest } from './cli.ts';

export interface Command {
  name: string;
  /** Other words for it. */
  words?: readonly string[];
  /** What similar tools call it. */
  elsewhere?: readonly string[];
  help: string;
  /** What follows it. */
  argument?: { name: string };
}

/** The commands of control-console in the order of its help; control-client has all but `quit`, and more. */
export const COMMANDS: Readonly<
  Record<ControlCommand | 'status' | 'info' | 'stack' | 'run' | 'answer' | 'withdraw' | 'help' | 'quit', Command>
> = {
  status: { name: 'status', help: 'print the status and its cause' },
  info: { name: 'info', help: 'print all details and the latest commands' },
  stack: {
    name: 'stack', elsewhere: ['backtrace', 'where', 'trace'], help: 'print where the program is, innermost first',
  },
  pause: { name: 'pause', words: ['p'], elsewhere: ['suspend', 'freeze'], help: 'pause the system' },
  resume: { name: 'resume', words: ['r'], elsewhere: ['continue', 'unpause'], help: 'resume the system' },
  'save-state': {
    name: 'save-state', words: ['save'], elsewhere: ['checkpoint', 'snapshot'], help: 'save a checkpoint',
  },
  shutdown: { name: 'shutdown', elsewhere: ['stop', 'kill', 'halt', 'exit', 'quit'], help: 'shut the system down' },
  run: { name: 'run', argument: { name: 'NAME' }, help: 'run an own command of the program; without NAME, list them' },
  answer: { name: 'answer', argument: { name: '[ID]' }, help: 'answer a question; without ID, the only open one' },
  withdraw: {
    name: 'withdraw', elsewhere: ['cancel', 'abort', 'undo', 'revoke'], argument: { name: 'ID' },
    help: 'take back a command that waits; info shows the ids',
  },
  help: { name: 'help', words: ['h', '?'], help: 'print this help' },
  quit: { name: 'quit', words: ['q', 'exit'], help: 'quit the console; the system is unaffected' },
};

/** For the help of the console. */
export const REASON_HELP = 'A reason may follow pause, resume, save, shutdown, withdraw ID: pause GPU needed';

/** Finds a command by any of its words, in any case. */
export function findCommand<T extends Command>(commands: readonly T[], word: string): T | undefined {
  return commands.find((command) => wordsOf(command).includes(word.toLowerCase()));
}

/** ` (did you mean shutdown?)`, for a word that is no command, such as `stop` or `shutdwon`; empty if none is near. */
export function suggestCommand(commands: readonly Command[], word: string, others: Iterable<string> = []): string {
  const meant = commands.find(({ elsewhere }) => elsewhere?.includes(word.toLowerCase()));
  if (meant !== undefined) return ` (did you mean ${meant.name}?)`;
  return suggest(word, [...commands.flatMap(wordsOf), ...others]);
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

// ───── Statuses ──────────────────────────────────────────────────────────────────────────────────────────────────

const STATUSES: readonly SystemStatus[] = Object.values(SystemStatus);

/** The statuses as arguments. */
export const STATUS_WORDS: readonly string[] = STATUSES.map(({ statusName }) => wordOf(statusName));

/** Finds a status by its name or word. */
export function findStatus(word: string): SystemStatus | undefined {
  return STATUSES[STATUS_WORDS.indexOf(wordOf(word))];
}

/** The name of a status without the space. */
export function wordOf(statusName: string): string {
  return statusName.replace(' ', '-');
}
