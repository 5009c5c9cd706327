#!/usr/bin/env node
// control-run: puts any command under control, unchanged.

import { closeSync, writeSync } from 'node:fs';
import { isatty } from 'node:tty';
import { parseCommandLine } from './run/options.ts';
import { Supervisor } from './run/supervisor.ts';
import { explainPort } from './shared/access.ts';
import { choosePlace } from './shared/folder.ts';
import { EXIT, run, UsageError } from './shared/options.ts';
import { printable } from './shared/text.ts';

const PROGRAM = 'control-run';
const NO_WEB_API = 125; // as env, nohup, timeout and docker use it

async function main(): Promise<number> {
  const parsed = parseCommandLine(process.argv.slice(2));
  if (parsed === null) return EXIT.DONE;
  const isOnTerminal = isatty(0) && process.platform !== 'win32';
  process.removeAllListeners('warning').on('warning', ({ message }) => say(message));
  if (process.pid === 1) say('as process 1, it does not reap orphans: start the container with --init');
  try {
    const supervisor = new Supervisor({ ...parsed.settings, isOnTerminal }, await choosePlace(parsed.access), say);
    const { exitCode, text } = await supervisor.run();
    leaveTerminal(isOnTerminal && text === 'SIGINT');
    return exitCode;
  } catch (error) {
    if (error instanceof UsageError) throw error;
    say(explainPort(error).message);
    return NO_WEB_API;
  }
}

/**
 * At its exit, Node sets the mode that the terminal had at the start, but others may use it by now, such as `less`.
 *
 * @param isInterrupted A loop or script of the shell ends only if Ctrl-C has ended its child, too.
 */
function leaveTerminal(isInterrupted: boolean): void {
  for (const fd of [0, 1, 2]) if (isatty(fd)) closeSync(fd);
  if (isInterrupted) process.removeAllListeners('SIGINT').kill(process.pid, 'SIGINT');
}

/**
 * Prints a line for people. The file descriptor is also that of the program: if it is a pipe, a stream of Node would
 * make it non-blocking.
 */
function say(message: string): void {
  try {
    writeSync(2, `${PROGRAM}: ${printable(message)}\n`);
  } catch {} // it is closed, or full
}

await run(PROGRAM, main, false);
