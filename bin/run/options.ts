// The command line of control-run.

import { constants } from 'node:os';
import { parseArgs } from 'node:util';
import pythonModule from '#python-module';
import { parseServerOptions, SERVER_OPTIONS, TOKEN_HELP } from '../shared/access.ts';
import {
  describeOptions, parseDuration, parseInteger, parseOptions, parseText, UsageError,
} from '../shared/options.ts';
import { Gpu } from './gpu.ts';
import { nameOf } from './name.ts';
import { StateFile } from './state.ts';
import type { ServerAccess } from '../shared/access.ts';
import type { Settings } from './supervisor.ts';

const OPTIONS = {
  ...SERVER_OPTIONS,
  'save-signal': {
    type: 'string', value: 'NAME', help: 'save-state sends this signal, such as USR1, to the process that handles it',
  },
  'save-command': {
    type: 'string', value: 'CMD',
    help: 'save-state runs this shell command; its exit code is the outcome, and its last line of output tells what ' +
      'was saved; CONTROL_PID is the process id of COMMAND',
  },
  'pause-command': {
    type: 'string', value: 'CMD',
    help: 'a pause begins with this shell command, and fails if that fails; CONTROL_REASON is the reason',
  },
  'resume-command': { type: 'string', value: 'CMD', help: 'a resume ends with this one' },
  'release-gpu': {
    type: 'boolean',
    help: 'a pause moves what is in the memory of NVIDIA GPUs to that of the host, by cuda-checkpoint',
  },
  state: {
    type: 'string', value: 'FILE',
    help: 'keeps in this file whether COMMAND is paused, by whom and why; if it was, it starts paused',
    completion: 'files',
  },
  grace: {
    type: 'string', value: 'SECONDS', default: '10',
    help: 'shutdown waits this long after the save signal, and again after SIGTERM before it kills (default 10)',
  },
  'force-stop': {
    type: 'string', value: 'SECONDS',
    help: 'stop a program that takes commands on CONTROL_FD if it has not paused by then (default: wait for it)',
  },
  restart: {
    type: 'string', value: 'on-failure[:N]',
    help: 'start COMMAND again if it fails, after 1 s, 2 s, 4 s … 60 s; at most N times in a row',
  },
  quiet: { type: 'boolean', help: 'print errors and warnings alone' },
  python: { type: 'boolean', help: 'print a module with which a program in Python takes commands itself, and its own' },
} as const;

const HELP = `
Usage: control-run [options] [--] COMMAND [ARGUMENT…]
       control-run --python > control.py

Runs a command with a web API that pauses, resumes, saves and ends all its processes, however many and however deep.

  pause        stops all processes (SIGSTOP); clocks run on, and connections may time out
  resume       continues them
  save-state   requires --save-signal or --save-command
  shutdown     saves if it can, and is cancelled if that fails; then sends SIGTERM and, after --grace, SIGKILL

A program that reads and writes JSON lines on the socket in CONTROL_FD takes the commands itself, and may declare more;
see bin/run/channel.md.
Standard input and output are those of the command; so is the terminal. SIGTERM and SIGHUP shut it down, even if it
cannot be saved, and so does SIGINT if standard input is not a terminal; SIGUSR1 and SIGUSR2 are passed on.

${describeOptions(OPTIONS)}

${TOKEN_HELP}

On macOS, processes that leave their group and their parent escape. On Windows there is no pause: it cannot stop
processes.

Exit codes: that of COMMAND, 128 + N if signal N ended it; 2 usage error, 125 no web API, 126 COMMAND cannot be started,
127 COMMAND not found.
`;

const UNFIT_SIGNALS = ['SIGKILL', 'SIGSTOP', 'SIGCONT', 'SIGTSTP', 'SIGTERM']; // they never mean `save`

export interface CommandLine {
  settings: Omit<Settings, 'isOnTerminal'>;
  access: ServerAccess;
}

/**
 * Returns null if it asks for the help, the version or the Python module, which have been printed.
 *
 * @throws {UsageError} If control-run cannot be started like this.
 */
export function parseCommandLine(commandLine: readonly string[]): CommandLine | null {
  const [args, line] = splitCommandLine(commandLine);
  const parsed = parseOptions(OPTIONS, HELP, 0, args);
  if (parsed === null) return null;
  const { values } = parsed;
  const [file] = line;
  if (values.python) {
    if (file !== undefined) throw new UsageError(`--python takes no COMMAND, got '${file}'`);
    console.log(pythonModule.trimEnd());
    return null;
  }
  if (file === undefined) throw new UsageError('COMMAND is missing; see --help');
  const access = parseServerOptions(values, {}, nameOf(line));
  const { 'save-signal': saveSignal, 'save-command': saveCommand, 'force-stop': forceStop, restart } = values;
  if (saveSignal !== undefined && saveCommand !== undefined) {
    throw new UsageError('--save-signal and --save-command are mutually exclusive: give one or the other');
  }
  const settings: CommandLine['settings'] = {
    line: [file, ...line.slice(1)],
    name: access.name as string, // there is a default
    isQuiet: values.quiet === true,
    saveSignal: saveSignal === undefined ? undefined : parseSignal('--save-signal', saveSignal),
    saveCommand: parseShellCommand('--save-command', saveCommand),
    pauseCommand: parseShellCommand('--pause-command', values['pause-command']),
    resumeCommand: parseShellCommand('--resume-command', values['resume-command']),
    gpu: values['release-gpu'] ? Gpu.find() : undefined,
    state: values.state === undefined ? undefined : new StateFile(parseText('--state', values.state)),
    graceMs: parseDuration('--grace', values.grace) * 1000,
    forceStopMs: forceStop === undefined ? undefined : parseDuration('--force-stop', forceStop) * 1000,
    maxRestarts: restart === undefined ? 0 : parseRestart('--restart', restart),
  };
  return { settings, access };
}

/** Separates the options from the command, which begins with the first argument that is no option or value of one. */
function splitCommandLine(args: readonly string[]): [options: readonly string[], command: readonly string[]] {
  const { tokens } = parseArgs({ args: [...args], options: OPTIONS, strict: false, tokens: true });
  const first = tokens.find(({ kind }) => kind !== 'option');
  if (first === undefined) return [args, []];
  return [args.slice(0, first.index), args.slice(first.kind === 'positional' ? first.index : first.index + 1)];
}

function parseShellCommand(option: string, text: string | undefined): string | undefined {
  return text === undefined ? undefined : parseText(option, text);
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
