// The command line of control-mcp.

import { describeOptions, parseOptions, UsageError } from '../shared/cli.ts';
import { REACH_HELP } from '../shared/client.ts';
import { COMMAND, RESERVED } from '../shared/declared.ts';
import { ALL_OPTION, DIR_OPTION, TARGET_HELP, TARGETS_FILE_OPTION } from '../shared/folder.ts';
import { VIA_OPTION } from '../shared/via.ts';
import type { Sources } from '../shared/names.ts';

const OPTIONS = {
  targets: TARGETS_FILE_OPTION,
  all: ALL_OPTION,
  dir: DIR_OPTION,
  via: VIA_OPTION,
  allow: {
    type: 'string', multiple: true, value: 'LIST',
    help: 'what else the assistant may do: resume, shutdown, run:COMMAND for an own command of a program, or all; ' +
      'separated by commas',
  },
} as const;

const HELP = `
Usage: control-mcp [options] [TARGET ...]

Lets an assistant list, inspect, await and pause systems and save checkpoints: a server of the Model Context Protocol
over standard input and output, which the assistant starts. Everything else requires --allow. It sees the questions of
programs, but never answers them.

${TARGET_HELP}
Without TARGET, control-mcp uses the address in the environment, or else everything that runs here.

${describeOptions(OPTIONS)}

${REACH_HELP}

Exit codes: 0 standard input was closed, 2 usage error.
`;

interface CommandLine {
  /** The targets. */
  words: readonly string[];
  sources: Sources;
  /** The words of --allow. */
  allowed: ReadonlySet<string>;
}

/**
 * Returns null if the help or the version was printed.
 *
 * @throws {UsageError} If the arguments are wrong.
 */
export function parseCommandLine(args?: readonly string[]): CommandLine | null {
  const parsed = parseOptions(OPTIONS, HELP, Infinity, args);
  if (parsed === null) return null;
  const { values: { allow, ...sources }, positionals: words } = parsed;
  const allowed = parseAllowed(allow);
  if (sources.targets === '-') throw new UsageError('--targets must be a file: standard input is for the assistant');
  return { words, sources, allowed };
}

function parseAllowed(lists: readonly string[] = []): ReadonlySet<string> {
  const words = lists.flatMap((list) => list.split(',')).map((word) => word.trim());
  for (const word of words) {
    const [, command] = /^run:(.*)$/s.exec(word) ?? [];
    const isCommand = command !== undefined && COMMAND.test(command) && !RESERVED.includes(command);
    if (isCommand || word === 'resume' || word === 'shutdown' || word === 'all') continue;
    const isAnswer = word === 'answer' || command === 'answer';
    if (isAnswer) throw new UsageError(`--allow never permits answers: people answer, got '${word}'`);
    throw new UsageError(`--allow must have resume, shutdown, run:COMMAND or all, separated by commas, got '${word}'`);
  }
  return new Set(words);
}
