#!/usr/bin/env node
// control-run: puts any command under control, unchanged. bin/run/ starts it, stops its processes, passes commands to
// it and ends it.

import { isUtf8 } from 'node:buffer';
import { closeSync, writeSync } from 'node:fs';
import { isatty } from 'node:tty';
import { askFromShell } from './run/ask.ts';
import { endOrphans } from './run/keeper.ts';
import { parseCommandLine } from './run/options.ts';
import { tryRead } from './run/processes.ts';
import { Supervisor } from './run/supervisor.ts';
import { EXIT, run, UsageError } from './shared/cli.ts';
import { explainPort, placeOf } from './shared/client.ts';
import { printable } from './shared/text.ts';

const NAME = 'control-run';
const NO_WEB_API = 125; // env, nohup, timeout and docker exit with it if they fail themselves

async function main(): Promise<number> {
  if (await endOrphans(process.argv.slice(2))) return EXIT.DONE;
  const [first, ...others] = process.argv.slice(2);
  if (first === 'ask') return await askFromShell(others, say).catch(({ message }: Error) => {
    throw new UsageError(message); // no failure may pass for a no, which is exit code 1
  });
  const parsed = parseCommandLine(process.argv.slice(2));
  if (parsed === null) return EXIT.DONE;
  checkBytes();
  if (process.send !== undefined) say('the IPC channel of the parent ends here: the program has no process.send()');
  process.removeAllListeners('warning').on('warning', ({ message }) => say(message));
  if (process.pid === 1) say('process 1 must reap orphans, and control-run does not: start the container with --init');
  const { settings, access } = parsed;
  const place = placeOf(access);
  delete process.env['CONTROL_RUN']; // of a control-run around it, which has a name of its own
  try {
    const supervisor = new Supervisor(settings, place, say);
    const { exitCode, text } = await supervisor.run();
    leaveTerminal(settings.isOnTerminal && text === 'SIGINT');
    return exitCode;
  } catch (error) {
    if (error instanceof UsageError) throw error;
    const { message } = explainPort(error, place.port);
    settings.log.append('end', { ended: message, exitCode: NO_WEB_API });
    say(message);
    return NO_WEB_API;
  }
}

/** @throws {UsageError} If the program would get other bytes: Node replaces those that are not UTF-8. */
function checkBytes(): void {
  const words = ['cmdline', 'environ'].flatMap((file) => tryRead(`/proc/self/${file}`).split('\0'));
  const bytes = words.map((word) => Buffer.from(word, 'latin1')).find((one) => !isUtf8(one));
  if (bytes === undefined) return;
  const [name] = String(bytes).split('='); // of a variable, whose value may be confidential
  throw new UsageError(`'${name}' in arguments or environment is not UTF-8, so the program would get other bytes`);
}

/**
 * Keeps Node from restoring the terminal mode at exit: others, such as `less`, may use the terminal by now.
 *
 * @param isInterrupted A shell ends its loop or script only if Ctrl-C has killed the child, too.
 */
function leaveTerminal(isInterrupted: boolean): void {
  for (const fd of [0, 1, 2]) if (isatty(fd)) closeSync(fd);
  if (isInterrupted) process.removeAllListeners('SIGINT').kill(process.pid, 'SIGINT');
}

/**
 * Prints a line for people. Not with a stream: the program shares the file descriptor, and if that is a pipe, a stream
 * would make it non-blocking.
 */
function say(message: string): void {
  try {
    writeSync(2, `${NAME}: ${printable(message)}\n`);
  } catch {} // closed or full
}

await run(NAME, main, NO_WEB_API, false);
