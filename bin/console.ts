#!/usr/bin/env node
// control-console: an interactive console for a running system. console/ holds its sessions and the input of lines.

import { complete, History, PipedLines, TerminalLines } from './console/lines.ts';
import { Session } from './console/session.ts';
import { describeOptions, EXIT, parseOptions, run } from './shared/cli.ts';
import { ADDRESS_OPTIONS, ENVIRONMENT_HELP } from './shared/client.ts';
import { COMMANDS, helpOf, REASON_HELP } from './shared/commands.ts';
import { DIR_OPTION, ONE_TARGET_HELP } from './shared/folder.ts';
import { selectClient } from './shared/names.ts';
import { VIA_OPTION } from './shared/via.ts';

const OPTIONS = {
  ...ADDRESS_OPTIONS,
  dir: DIR_OPTION,
  via: VIA_OPTION,
  'no-history': { type: 'boolean', help: 'do not read or write the command history' },
} as const;

const HELP = `
Usage: control-console [options] [TARGET]

Controls a running system interactively, or by lines from a pipe; one that begins with # is a comment.

${Object.values(COMMANDS).map(helpOf).join('\n')}

${REASON_HELP}. The program's own commands work the same way: evaluate points=200.

${ONE_TARGET_HELP}

${describeOptions(OPTIONS)}

${ENVIRONMENT_HELP}

Exit codes: 0 success, 1 a command from a pipe failed, 2 usage error.
`;

async function main(): Promise<number> {
  const parsed = parseOptions(OPTIONS, HELP, 1);
  if (parsed === null) return EXIT.DONE;
  const client = await selectClient(parsed.positionals[0], parsed.values);
  const isTerminal = process.stdin.isTTY && process.stdout.isTTY;
  const history = new History(parsed.values['no-history'] !== true);
  const lines = isTerminal ? new TerminalLines((line) => complete(client, line), history) : new PipedLines();
  if (lines.isTerminal) console.log(`${client.target}: type help for a list of commands`);
  const allSucceeded = await new Session(client, lines).run();
  lines.close();
  return allSucceeded || lines.isTerminal ? EXIT.DONE : EXIT.REFUSED;
}

void run('control-console', main);
