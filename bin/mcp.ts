#!/usr/bin/env node
// control-mcp: lets an assistant watch and control systems over the Model Context Protocol. mcp/ holds the protocol,
// the tools and the waits.

import { createCalls } from './mcp/calls.ts';
import { parseCommandLine } from './mcp/options.ts';
import { serve } from './mcp/protocol.ts';
import { Directory } from './mcp/systems.ts';
import { EXIT, run, warn } from './shared/cli.ts';

async function main(): Promise<number> {
  const commandLine = parseCommandLine();
  if (commandLine === null) return EXIT.DONE;
  const { words, sources, allowed } = commandLine;
  const systems = new Directory(words, sources);
  await systems.check();
  if (process.stdin.isTTY) warn('this is a server that an assistant starts; see --help');
  process.stdout.once('error', () => process.exit(EXIT.DONE)); // the assistant is gone
  await serve(createCalls(systems, allowed), process.stdin, process.stdout);
  process.stdout.write('', () => process.exit(EXIT.DONE)); // does not wait for requests to systems that hang
  return EXIT.DONE;
}

void run('control-mcp', main);
