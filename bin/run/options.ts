// The command line of control-run.

import { constants } from 'node:os';
import { basename } from 'node:path';
import { isatty } from 'node:tty';
import { parseArgs } from 'node:util';
import pythonModule from '#python-module';
import ranksModule from '#ranks-module';
import {
  describeOptions, type Options, parseDuration, parseInteger, parseOptions, parseText, UsageError,
} from '../shared/cli.ts';
import { parseServerOptions, SERVER_ENVIRONMENT_HELP, SERVER_OPTIONS, type ServerAccess } from '../shared/client.ts';
import { LOG_OPTIONS, LogFile } from '../shared/logfile.ts';
import { StateFile } from './state.ts';

const OPTIONS = {
  ...SERVER_OPTIONS,
  'save-signal': {
    type: 'string', value: 'NAME', help: 'save-state sends this signal, such as USR1, to the process that handles it',
    parse: parseSignal,
  },
  'save-command': {
    type: 'string', value: 'CMD',
    help: 'save-state runs this shell command, with the process id in CONTROL_PID: exit code 0 means saved, and the ' +
      'last line of output is the result',
    parse: parseText,
  },
  'pause-command': {
    type: 'string', value: 'CMD',
    help: 'pause runs this shell command first, with the reason in CONTROL_REASON, and fails if it fails',
    parse: parseText,
  },
  'resume-command': { type: 'string', value: 'CMD', help: 'resume runs this shell command last', parse: parseText },
  state: {
    type: 'string', value: 'FILE',
    help: 'record in this file whether the program is paused, by whom and why; if it was, it starts paused',
    parse: (option, text) => new StateFile(parseText(option, text)),
  },
  grace: {
    type: 'string', value: 'SECONDS', default: '10',
    help: 'time to save after --save-signal, to end after SIGTERM, and for a shell command once another command ' +
      'waits (default 10)',
    parse: parseDuration,
  },
  'force-stop': {
    type: 'string', value: 'SECONDS',
    help: 'stop a program on CONTROL_FD that has not paused by then (default: once another command has waited for ' +
      '--grace)',
    parse: parseDuration,
  },
  restart: {
    type: 'string', value: 'on-failure[:N]',
    help: 'restart the program if it fails, up to N times in a row, after 1 s, 2 s, 4 s … 60 s',
    parse: parseRestart,
  },
  ...LOG_OPTIONS,
  quiet: { type: 'boolean', help: 'print only errors and warnings' },
  python: { type: 'boolean', help: 'print control.py: a Python program takes commands itself' },
  ranks: { type: 'boolean', help: 'print ranks.py: so do all ranks of torch or MPI' },
} as const satisfies Options;

const HELP = `
Usage: control-run [options] [--] COMMAND [ARGUMENT…]
       control-run ask MESSAGE [options]
       control-run --python > control.py; control-run --ranks > ranks.py

Runs a program with a web API that pauses, resumes, saves and ends all its processes.

  pause        stops all processes (SIGSTOP); clocks and timeouts run on
  resume       continues them
  save-state   requires --save-signal or --save-command
  shutdown     saves if it can; cancelled if that fails; then sends SIGTERM and, after --grace, SIGKILL

A program that reads and writes JSON lines on the socket in CONTROL_FD takes these commands itself, and can declare
its own: see bin/run/channel.md.
Any of its processes can ask whoever controls it: see control-run ask --help.
Standard input, output and the terminal belong to the program. SIGTERM and SIGHUP to control-run shut the program down,
even if it cannot save; so does SIGINT unless standard input is a terminal. SIGUSR1 and SIGUSR2 are passed on.

${describeOptions(OPTIONS)}

SECONDS may have a unit: 90s, 30m, 2h.

${SERVER_ENVIRONMENT_HELP}

On macOS, a process escapes if it leaves its group and its parent, and --save-signal requires a program of one process.

Exit codes: the code of COMMAND, or 128 + N if signal N killed it; 2 usage error, 125 no web API, 126 COMMAND cannot be
started, 127 COMMAND not found.
`;

const UNFIT_SIGNALS = ['SIGKILL', 'SIGSTOP', 'SIGCONT', 'SIGTSTP', 'SIGTERM']; // these never mean `save`

/** The command, and what the options say: their help explains what has no comment. */
export interface Settings {
  /** The command and its arguments. */
  line: readonly [string, ...string[]];
  /** The name of the program in messages. */
  name: string;
  /** How to save: one of the two, or neither. */
  saveSignal: NodeJS.Signals | undefined;
  saveCommand: string | undefined;
  pauseCommand: string | undefined;
  resumeCommand: string | undefined;
  state: StateFile | undefined;
  log: LogFile;
  graceMs: number;
  forceStopMs: number | undefined;
  maxRestarts: number;
  /** Whether the program stays in the session of the terminal and in the process group of control-run. */
  isOnTerminal: boolean;
  isQuiet: boolean;
}

/**
 * Returns null after printing the help, the version or a Python module.
 *
 * @throws {UsageError} If the command line is invalid.
 */
export function parseCommandLine(
  commandLine: readonly string[],
): { settings: Settings; access: ServerAccess } | null {
  const [args, line] = splitCommandLine(commandLine);
  const parsed = parseOptions(OPTIONS, HELP, 0, args);
  if (parsed === null) return null;
  const { values } = parsed;
  const [file] = line;
  for (const name of ['python', 'ranks'] as const) {
    if (values[name] !== true) continue;
    if (file !== undefined) throw new UsageError(`--${name} takes no COMMAND, got '${file}'`);
    console.log({ python: pythonModule, ranks: ranksModule }[name].trimEnd());
    return null;
  }
  if (process.platform === 'win32') throw new UsageError('Windows lacks the signals that it requires: use WSL');
  if (file === undefined) throw new UsageError('COMMAND is missing; see --help');
  const access = parseServerOptions(values, {}, programName(line));
  const {
    'save-signal': saveSignal, 'save-command': saveCommand, 'pause-command': pauseCommand, 'force-stop': forceStopMs,
    'resume-command': resumeCommand, state, grace: graceMs, restart: maxRestarts = 0, quiet: isQuiet = false,
  } = values;
  if (saveSignal !== undefined && saveCommand !== undefined) {
    throw new UsageError('--save-signal and --save-command are mutually exclusive');
  }
  const name = access.name as string; // it has a default
  return { access, settings: {
    line: [file, ...line.slice(1)], name, saveSignal, saveCommand, pauseCommand, resumeCommand, state,
    log: new LogFile(values, name), graceMs, forceStopMs, maxRestarts, isOnTerminal: isatty(0), isQuiet,
  } };
}

/** Splits the arguments: COMMAND is the first one that is neither an option nor the value of an option. */
function splitCommandLine(args: readonly string[]): [options: readonly string[], command: readonly string[]] {
  const { tokens } = parseArgs({ args: [...args], options: OPTIONS, strict: false, tokens: true });
  const first = tokens.find(({ kind }) => kind !== 'option');
  if (first === undefined) return [args, []];
  return [args.slice(0, first.index), args.slice(first.kind === 'positional' ? first.index : first.index + 1)];
}

function parseSignal(option: string, text: string): NodeJS.Signals {
  const name = text.toUpperCase().replace(/^(?!SIG)/, 'SIG');
  if (Object.hasOwn(constants.signals, name) && !UNFIT_SIGNALS.includes(name)) return name as NodeJS.Signals;
  throw new UsageError(`${option} must be the name of a signal that a program can handle, such as USR1, got '${text}'`);
}

function parseRestart(option: string, text: string): number {
  const [, count] = /^on-failure(?::(.*))?$/s.exec(text) ?? [];
  if (text === 'on-failure') return Infinity;
  if (count !== undefined) return parseInteger(`the N in ${option} on-failure:N`, count, 1, 1_000_000);
  throw new UsageError(`${option} must be on-failure or on-failure:N, got '${text}'`);
}

// ───── The name of the program ───────────────────────────────────────────────────────────────────────────────────

const SCRIPT = /[^/]\.([cm]?[jt]sx?|py|rb|pl|php|R|jl|lua|sh|jar)$/;

/**
 * Returns the base name of the first word that looks like a script, also in shell code, or else of the command:
 * `train.py` for `nice -n 5 python3 -u train.py`. Never empty.
 */
function programName(line: readonly string[]): string {
  const words = line.join(' ').split(/[\s;&|()<>'"=]+/);
  return basename(words.find((word) => SCRIPT.test(word)) ?? line[0] ?? '') || 'command';
}
