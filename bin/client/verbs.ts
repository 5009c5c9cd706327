// The verbs of control-client, in the order of the help, and what is made of all of them: the options and the help.

import { describeOptions, listOf, type Option, type Options, suggest, UsageError, wrap } from '../shared/cli.ts';
import { ADDRESS_OPTIONS, ENVIRONMENT_HELP } from '../shared/client.ts';
import { COMMANDS, findCommand, helpOf, suggestCommand } from '../shared/commands.ts';
import { isArgument } from '../shared/declared.ts';
import { ALL_OPTION, DIR_OPTION, TARGET_HELP, TARGETS_OPTION } from '../shared/folder.ts';
import { runDial, VIA_OPTION } from '../shared/via.ts';
import { answer, withdraw } from './answer.ts';
import { completion } from './completion.ts';
import { pause, resume, saveState, shutdown } from './control.ts';
import { list } from './list.ts';
import { log } from './log.ts';
import { run } from './run.ts';
import { asks, info, stack, status } from './status.ts';
import { top } from './top.ts';
import { quote, TIMEOUT, type Verb, verb } from './verb.ts';
import { wait } from './wait.ts';
import { watch } from './watch.ts';

const dial: Verb = verb({
  name: 'dial', isLocal: true,
  help: 'the far end of --via, for an SSH key that permits nothing else',
  example: 'dial --no-log    # authorized_keys: restrict,command="control-client dial --no-log" ssh-ed25519 …',
  options: { 'no-log': { type: 'boolean', help: 'dial: tell no logs' } },
  run: ({ values }) => runDial(values['no-log'] !== true), // the input keeps it running
});

const help: Verb = verb({
  ...COMMANDS.help,
  isLocal: true,
  take: (words) => words.length === 0 ? 'help' : findVerb(words.shift()).name,
  run: ({ argument }) => console.log(wrap(helpOn(argument))),
});

export const VERBS: readonly Verb[] = [
  status, info, stack, list, top, watch, log, wait, pause, resume, saveState, shutdown, run, asks, answer, withdraw,
  completion, dial, help,
];

const STARTER = 'a service manager or control-run --restart does';

/** @throws {UsageError} If the word is no verb. */
export function findVerb(word: string | undefined, words: readonly string[] = []): Verb {
  const found = findCommand(VERBS, word ?? '');
  if (found !== undefined) return found;
  if (/^(re)?start$/i.test(word ?? '') && !words.some(isArgument)) {
    throw new UsageError(`unknown command '${word}': nothing here starts programs; ${STARTER}`);
  }
  const hint = words.some(isArgument) // only run and answer take them
    ? suggest(`${word}`, ['run', 'answer']) || ` (did you mean run ${word}?)`
    : suggestCommand(VERBS, word ?? '');
  if (hint !== '') throw new UsageError(`unknown command '${word}'${hint}; see --help`);
  throw new UsageError(`the command must be one of ${VERBS.map(({ name }) => name).join(', ')}, got ${quote(word)}`);
}

// ───── Options ───────────────────────────────────────────────────────────────────────────────────────────────────

/** Those that not all verbs have. */
const OWN: Options = Object.assign({}, ...VERBS.map(({ options }) => options));
/** In the order of the help; those of other verbs follow. */
const FIRST = ['wait', 'timeout', 'for', 'until', 'mine', 'within', 'reason', 'by', 'yes', 'no'];

/** All options. */
export const OPTIONS: Options = {
  ...ADDRESS_OPTIONS,
  targets: TARGETS_OPTION, all: ALL_OPTION, dir: DIR_OPTION, via: VIA_OPTION,
  ...Object.fromEntries(FIRST.map((name) => [name, OWN[name] as Option])),
  ...OWN,
  timeout: {
    ...TIMEOUT,
    help: 'time limit of --wait and --mine (default 30; if given, the command then expires), of wait (default: none), ' +
      'and of status, info, stack, list and asks (at most 5)',
  },
  json: { type: 'boolean', help: 'print one line of JSON for each outcome or change' },
};

/** Refused, because a name is a target. */
export const NAME: Options = { name: { type: 'string', help: '' } };

/** Whether a verb has an option. */
export function takes({ options: own = {}, lacks = [] }: Pick<Verb, 'options' | 'lacks'>, option: string): boolean {
  return option in own || !(option in OWN || lacks.includes(option));
}

/** @throws {UsageError} If the verb would ignore an option. */
export function checkOptions(found: Verb, values: object): void {
  const { name, lacks = [] } = found;
  for (const [option, value] of Object.entries(values)) {
    if (option === 'via') continue; // log refuses CONTROL_VIA, too
    if (option in NAME) throw new UsageError(`unknown option '--name': a name is a target: ${name} ${value}`);
    if (takes(found, option)) continue;
    const rule = `${name} takes targets as words only; without any, it is about all systems`;
    if (lacks.includes(option)) throw new UsageError(`--${option} and ${name} are mutually exclusive: ${rule}`);
    const owners = VERBS.filter(({ options = {} }) => option in options).map((owner) => owner.name);
    throw new UsageError(`--${option} requires ${listOf(owners)}, got '${name}'`);
  }
}

// ───── The help ──────────────────────────────────────────────────────────────────────────────────────────────────

const HELP = `
Usage: control-client [options] COMMAND [TARGET ...]
       control-client [options] run NAME [PARAMETER=VALUE ...] [TARGET ...]
       control-client [options] answer [ID] [PARAMETER=VALUE ...] [TARGET ...]
       control-client [options] withdraw ID [TARGET ...]

Shows what running systems are doing or asking, sends them a command or an answer, or waits for a status or a value.

${VERBS.map(helpOf).join('\n')}

${TARGET_HELP}
Each line of output then begins with a name, and the exit code is the highest of all.

The arguments of run and answer can also be one JSON object: '{"points":200}'.

${describeOptions(OPTIONS)}

SECONDS may have a unit: 90s, 30m, 2h.

${ENVIRONMENT_HELP}

Exit codes:
  0  success; shutdown --wait: also if the system was already offline
  1  refused or failed: wrong token, full queue, failed command, …
  2  usage error, no live system has the name, or it does not take the arguments
  3  offline: no control server listens at the address
  4  not reached or done in time; the command is pending unless it has expired
  5  no answer; the command may still take effect, unless the error says 'not sent' or names the machine alone
  6  wait: the system has ended before the status or the value
`;

const MORE_HELP = 'Targets, environment variables, exit codes: control-client --help';

/** The help of one verb: its line, its options, an example. For any other word, the whole help. */
export function helpOn(word: string = 'help'): string {
  const found = findCommand(VERBS, word);
  if (found === undefined || found === help) return HELP.trim();
  const { name, isLocal, options: own, example = name } = found;
  const taken = Object.entries({ ...OPTIONS, ...own }).filter(([option]) => takes(found, option));
  const options = isLocal ? own ?? {} : Object.fromEntries(taken);
  return [helpOf(found), describeOptions(options), `Example: control-client ${example}`, MORE_HELP].join('\n\n');
}
