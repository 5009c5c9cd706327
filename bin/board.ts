#!/usr/bin/env node
// control-board: serves a web page that shows and controls systems. board/ holds the page, its web server
// and the state of each system.

import { type AddressInfo, isIPv4 } from 'node:net';
import { networkInterfaces } from 'node:os';
import { type CommandLine, parseCommandLine, setUp } from './board/options.ts';
import { serve, type Settings } from './board/server.ts';
import { Systems } from './board/systems.ts';
import { EXIT, run, warn } from './shared/cli.ts';
import { baseUrlOf } from './shared/client.ts';

const TIMEOUT_MS = 5000; // of a request to a system
const PROBE_MS = 2000; // of a request to the server that uses the port

async function main(): Promise<number> {
  const commandLine = parseCommandLine();
  if (commandLine === null) return EXIT.DONE;
  const { listen, host, port, allowedHosts } = commandLine;
  const { targets, folders, ...keys } = await setUp(commandLine, TIMEOUT_MS);
  const systems = new Systems(targets);
  await Promise.all(folders.map((folder) => systems.addAll(folder, TIMEOUT_MS)));
  const places = folders.map(({ place, hints }) => [`${place}: it may still start`, ...hints].join('; '));
  if (systems.all.length === 0) warn(`nothing runs ${places.join(' or ')}`);
  const settings = { systems, host, allowedHosts, ...keys };
  const addresses = await serve(settings, port).catch(async (error: Error) => {
    warn(`cannot listen on ${listen}: ${await explain(error, commandLine)}`);
    process.exit(EXIT.REFUSED); // the board already follows its systems
  });
  announce(settings, addresses);
  return EXIT.DONE; // the server keeps the process running
}

/** Explains which server uses the port, and how to pick another one. */
async function explain(error: Error, { host, port }: CommandLine): Promise<string> {
  const { code, message, address = host } = error as NodeJS.ErrnoException & { address?: string };
  if (code !== 'EADDRINUSE') return message;
  const [url, signal] = [baseUrlOf({ host: address, port }), AbortSignal.timeout(PROBE_MS)];
  const beginning = await fetch(url, { signal, redirect: 'error' }) // only the first chunk: it may be any server
    .then(({ body }) => body?.getReader().read()).then((chunk) => Buffer.from(chunk?.value ?? []).toString())
    .catch(() => '');
  const user = beginning.includes('<title>control-board</title>') ? ' by another control-board' : '';
  return `the port is in use${user}; --listen ${host.includes(':') ? `[${host}]` : host}:0 picks a free one`;
}

function announce({ systems: { all }, host, key, viewKey }: Settings, addresses: readonly AddressInfo[]): void {
  const isPublic = addresses.some(({ address }) => !/^127\.|^::1$/.test(address));
  if (isPublic) warn('nothing is encrypted: others on the network can read the key and everything on the page');
  const { address, port } = addresses[0] as AddressInfo;
  const bases = hostsOf(host, address).map((name) => baseUrlOf({ host: name, port }));
  const prefix = `${all.length} ${all.length === 1 ? 'system' : 'systems'} · `;
  const print = (title: string, fragment: string, hint: string): void => {
    const indent = ' '.repeat(title.length);
    console.log(`${title}${bases.map((base) => `${base}/#${fragment}`).join(`\n${indent}`)}   (${hint})`);
  };
  print(prefix, key, 'open it; the part after # is the key');
  if (viewKey !== undefined) print('view only · '.padStart(prefix.length), viewKey, 'no buttons');
}

/** The hosts by which a browser can reach a server that listens on `host`, which resolves to `address`. */
function hostsOf(host: string, address: string): string[] {
  if (!/^(0\.0\.0\.0|::)$/.test(address)) return [host];
  const addresses = Object.values(networkInterfaces()).flat().flatMap((entry) => {
    return entry === undefined || entry.internal || entry.address.startsWith('fe80:') ? [] : [entry.address];
  });
  return ['localhost', ...addresses.filter((other) => address === '::' || isIPv4(other))];
}

await run('control-board', main);
