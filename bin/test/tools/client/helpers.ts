// Shared by the tests of control-client: runs it in this process, in a process of its own, and on a terminal.

import { chmodSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { main } from '../../../client/main.ts';
import { EXIT, run as runMain, UsageError, warn } from '../../../shared/cli.ts';
import { type Ended, makeFolder, type Running, runProgram, start, startProgram } from '../../helpers.ts';
import { lineOf } from '../../screen.ts';
import { LIMIT } from '../../wait.ts';
import { capture } from './capture.ts';
import type { TestContext } from 'node:test';

/** For suites whose tests mostly wait. */
export const AT_ONCE: { timeout: number; concurrency: number } = { ...LIMIT, concurrency: 2 };

await runMain('control-client', async () => EXIT.DONE, EXIT.REFUSED, false); // sets the name in its messages

/**
 * Runs control-client in this process, which is a hundred times faster.
 *
 * @param env Variables for this run alone.
 */
export function call(args: readonly string[], env?: NodeJS.ProcessEnv): Promise<Ended> {
  return capture(async () => {
    try {
      return await main(args);
    } catch (error) {
      warn((error as Error).message);
      return error instanceof UsageError ? EXIT.USAGE : EXIT.REFUSED;
    }
  }, env);
}

/** What a run shows that refuses its arguments. */
export function refusal(message: string): Ended {
  return { code: EXIT.USAGE, stdout: '', stderr: `control-client: ${message}\n` };
}

/** Runs control-client as a process of its own. */
export function run(t: TestContext, args: readonly string[], input?: string, env?: NodeJS.ProcessEnv): Promise<Ended> {
  return runProgram(t, 'client', args, input, env);
}

/** Starts `watch`. */
export function watch(t: TestContext, args: readonly string[], env?: NodeJS.ProcessEnv): Running {
  return startProgram(t, 'client', ['watch', ...args], env);
}

/** Runs control-client with a terminal as its standard input, output and error, and nothing else in its output. */
export function onTerminal(t: TestContext, args: readonly string[], env?: NodeJS.ProcessEnv): Running {
  const command = `exec ${lineOf('client', args)}`;
  return start(t, 'script', ['--quiet', '--return', '--command', command, '/dev/null'], env);
}

/** The options for a port. */
export function at(port: number): string[] {
  return ['--host', '127.0.0.1', '--port', `${port}`];
}

/** The lines of a text, each of which has an end. */
export function linesOf(text: string): string[] {
  return text.split('\n').slice(0, -1);
}

/** Creates a file in a new folder, with exactly this mode. */
export function makeFile(t: TestContext, text: string, mode: number = 0o644): string {
  const path = join(makeFolder(t), 'file');
  writeFileSync(path, text);
  chmodSync(path, mode);
  return path;
}
