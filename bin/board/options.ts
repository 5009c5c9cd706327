// The command line of control-board.

import { randomBytes } from 'node:crypto';
import { statSync, writeFileSync } from 'node:fs';
import { DEFAULT_PORT as SYSTEM_PORT } from '../../control.ts';
import { describeOptions, parseOptions, parseText, UsageError, warn } from '../shared/cli.ts';
import {
  type Address, ENVIRONMENT_HELP, parseServerOptions, readTrusted, SERVER_OPTIONS, splitAuthority,
} from '../shared/client.ts';
import { ALL_OPTION, DIR_OPTION, type Folder, type Target, TARGET_HELP, TARGETS_OPTION } from '../shared/folder.ts';
import { select, type Sources } from '../shared/names.ts';
import { foldersOf, unreachable, VIA_OPTION } from '../shared/via.ts';

const OPTIONS = {
  targets: TARGETS_OPTION,
  all: ALL_OPTION,
  dir: { ...DIR_OPTION, help: `${DIR_OPTION.help}; beside targets, also shows everything in it` },
  via: VIA_OPTION,
  listen: {
    type: 'string', value: 'HOST:PORT', default: 'localhost:8390',
    help: 'address of the page (default localhost:8390); port 0 picks a free one, and 0.0.0.0 is every address of ' +
      'this machine',
  },
  'allow-host': {
    ...SERVER_OPTIONS['allow-host'],
    help: 'host name by which browsers may call it: box.lan, .lan (all names in lan) or * (all names); may be ' +
      'repeated (default: only localhost, the HOST of --listen and IP addresses)',
  },
  'key-file': {
    type: 'string', value: 'PATH',
    help: 'keep the key in this file (default: new at each start)',
  },
  'view-key-file': {
    type: 'string', value: 'PATH',
    help: 'keep a second key in this file, which permits no commands',
  },
} as const;

const ADDRESS = { type: 'string', help: '' } as const;
/** The options of all other tools for the address of a system: here one could take them for that of the page. */
const ADDRESS_OPTIONS = { host: ADDRESS, port: ADDRESS, socket: ADDRESS } as const;

const HELP = `
Usage: control-board [options] [TARGET ...]

Serves a web page that shows and controls systems, for a phone or a second screen. Prints the address of the page. It
contains the key: anyone with it can pause, resume, save and shut down the systems, run their own commands, and answer
their questions.

${TARGET_HELP}
Without TARGET, the board shows the system at the address in the environment, or else everything that runs here, also
what starts later.

${describeOptions(OPTIONS)}

${ENVIRONMENT_HELP}

Exit codes: 1 cannot listen, or no machine of a TARGET can be reached, 2 usage error.
`;

const DEFAULT_PORT = '8390';
const KEY_BYTES = 16;
const MIN_KEY_LENGTH = 22; // KEY_BYTES in base64url

export interface CommandLine {
  /** HOST or HOST:PORT as given. */
  listen: string;
  host: string;
  port: number;
  allowedHosts: string[];
  keyFile: string | undefined;
  viewKeyFile: string | undefined;
  words: readonly string[];
  sources: Pick<Sources, 'targets' | 'all' | 'dir' | 'via'>;
}

/** What the command line names: the keys of the page, and the systems on it. */
export interface Setup {
  key: string;
  viewKey: string | undefined;
  targets: Target[];
  /** Their systems are shown, too. */
  folders: Folder[];
}

/**
 * Returns null after printing the help or the version.
 *
 * @throws {UsageError} If an option is invalid.
 */
export function parseCommandLine(args?: readonly string[]): CommandLine | null {
  const parsed = parseOptions({ ...OPTIONS, ...ADDRESS_OPTIONS }, HELP, Infinity, args);
  if (parsed === null) return null;
  const { values, positionals: words } = parsed;
  refuseAddress(values);
  const { listen, 'allow-host': allowHost, 'key-file': keyFile, 'view-key-file': viewKeyFile } = values;
  const { targets, all, dir, via } = values;
  if (/^\d+$/.test(listen)) { // as a host, 9000 would be the address 0.0.35.40
    throw new UsageError(`--listen must be HOST or HOST:PORT, such as localhost:9000, got '${listen}'`);
  }
  const { host: hostName, port: portText = DEFAULT_PORT } = splitAuthority(listen);
  const { host, port, allowedHosts } = parseServerOptions(
    { host: hostName, port: portText, 'allow-host': allowHost },
    { host: `the host of --listen '${listen}'`, port: `the port of --listen '${listen}'` },
  );
  if (keyFile !== undefined) parseText('--key-file', keyFile);
  if (viewKeyFile !== undefined) parseText('--view-key-file', viewKeyFile);
  return { listen, host, port, allowedHosts, keyFile, viewKeyFile, words, sources: { targets, all, dir, via } };
}

function refuseAddress({ host, port, socket }: Address): void {
  if (socket !== undefined) throw new UsageError(`--socket is no option: write the target unix:${socket}`);
  if ((host ?? port) === undefined) return;
  const [page, system] = [`${host ?? 'localhost'}:${port ?? DEFAULT_PORT}`, `${host ?? ''}:${port ?? SYSTEM_PORT}`];
  const what = `--${host === undefined ? 'port' : 'host'} is no option`;
  throw new UsageError(`${what}: write --listen ${page} for the page, or the target ${system} for a system`);
}

/**
 * Finds the targets, then creates or reads the key files.
 *
 * @param timeoutMs Of a request to a target.
 * @throws {UsageError} If a target or a file is invalid.
 * @throws {Error} If there are targets, but their machines cannot be reached.
 */
export async function setUp(commandLine: CommandLine, timeoutMs: number): Promise<Setup> {
  const { words, sources, keyFile, viewKeyFile } = commandLine;
  const selection = await select(words, { ...sources, timeoutMs }, 'later');
  const { targets } = selection;
  const folders = sources.dir === undefined ? selection.folders : foldersOf(sources); // beside the targets
  const reasons = [...unreachable.values()];
  const isEmpty = targets.length + folders.length === 0; // and the page would stay so
  if (isEmpty && reasons.length > 0) throw new Error(reasons.join('; '));
  for (const reason of reasons) warn(reason);
  const key = keyFile === undefined ? createKey() : readKey(keyFile);
  const viewKey = viewKeyFile === undefined ? undefined : readKey(viewKeyFile);
  if (viewKey === key) throw new UsageError(`--view-key-file must hold another key than --key-file: '${viewKeyFile}'`);
  return { key, viewKey, targets, folders };
}

function createKey(): string {
  return randomBytes(KEY_BYTES).toString('base64url');
}

/** Returns the key in a file. Creates the file with a new key if it is missing. */
function readKey(path: string): string {
  try {
    writeFileSync(path, `${createKey()}\n`, { flag: 'wx', mode: 0o600 });
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code !== 'EEXIST') throw new UsageError(`cannot create the key file '${path}': ${message}`);
  }
  const key = readTrusted('key', path, false).trim();
  if (process.geteuid !== undefined && (statSync(path).mode & 0o044) !== 0) {
    throw new UsageError(`cannot use the key file '${path}': others can read it; chmod go-r '${path}'`);
  }
  if (/^[\w-]+$/.test(key) && key.length >= MIN_KEY_LENGTH) return key;
  throw new UsageError(`the key in '${path}' must be ${MIN_KEY_LENGTH} or more letters, digits, - and _`);
}
