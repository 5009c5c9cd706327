// What the targets of a command line or of a file are: addresses, or the names of systems in a folder.

import { isIP } from 'node:net';
import { basename, dirname, resolve } from 'node:path';
import { text as readAll } from 'node:stream/consumers';
import { DEFAULT_PORT } from '../../control.ts';
import { createClient, createTargetClient, readTrusted } from './access.ts';
import { findCommand, STATUS_WORDS } from './commands.ts';
import { splitDetail } from './describe.ts';
import { findTargets, liveOf, socketFolder, socketsIn, targetAt } from './folder.ts';
import { UsageError } from './options.ts';
import { isAbsent } from './replies.ts';
import { suggest } from './suggest.ts';
import { inParallel, labelled } from './targets.ts';
import type { Address } from './access.ts';
import type { PrintableClient } from './replies.ts';
import type { Target } from './targets.ts';

type Found = Omit<Target, 'label'>;

/** A target as written. */
interface Word {
  text: string;
  tokenFile?: string | undefined;
  /** `line 3 of gpus: ` */
  where?: string;
}

export interface Sources {
  /** The file of `--targets`. Its lines are `TARGET` or `TARGET token-file=PATH`, the path relative to the file. */
  targets?: string | undefined;
  /** The folder of the names, unless it is that of the session. */
  dir?: string | undefined;
  timeoutMs?: number;
  /** What a number may be meant for. */
  hint?: string;
}

const MAX_SHOWN = 5; // names in an error

/**
 * Returns the targets of the command line and of the file, each once.
 *
 * @throws {UsageError} If a target or the file is invalid, or the file names none.
 */
export async function parseTargets(texts: readonly string[], sources: Sources): Promise<Target[]> {
  const paths = pathsIn(sources.dir);
  const lines = sources.targets === undefined ? [] : await readLines(sources.targets);
  const words: Word[] = [...texts.map((text) => ({ text })), ...lines];
  const found = new Map<Word, Found[]>();
  await inParallel(words, async (word) => void found.set(word, await find(word, paths, sources)));
  const targets = new Map<string, Found>(); // by URL
  for (const word of words) {
    for (const target of found.get(word) ?? []) {
      const { baseUrl } = target.client;
      if (word.tokenFile !== undefined || !targets.has(baseUrl)) targets.set(baseUrl, target);
    }
  }
  return labelled([...targets.values()]);
}

/**
 * Returns the client of a program that controls one system: that of the target, or else at the address in the options
 * or the environment.
 *
 * @throws {UsageError} If the target or the address is invalid, or several systems have that name.
 */
export async function selectClient(
  word: string | undefined,
  values: Address & { dir?: string | undefined },
): Promise<PrintableClient> {
  if (word === undefined) {
    if (values.dir !== undefined) throw new UsageError('--dir requires a TARGET');
    return createClient(values);
  }
  refuseOthers([word], values);
  const [target, ...others] = await parseTargets([word], { dir: values.dir });
  if (target !== undefined && others.length === 0) return target.client;
  const titles = [target, ...others].map((one) => one?.title);
  throw new UsageError(`TARGET must be one system, got '${word}', which is ${titles.join(' and ')}`);
}

/** @throws {UsageError} If a target is rather a command or a status, or there is an address besides. */
export function refuseOthers(words: readonly string[], values: Address): void {
  const wrong = words.find((word) => findCommand('client', word) !== undefined || STATUS_WORDS.includes(word));
  if (wrong !== undefined) {
    throw new UsageError(`unexpected argument '${wrong}'; a host of that name is ${wrong}:${DEFAULT_PORT}`);
  }
  for (const option of ['host', 'port', 'socket'] as const) {
    if (values[option] === undefined) continue;
    throw new UsageError(`--${option} and targets are mutually exclusive: a target is a whole address`);
  }
}

/** `-` is standard input. */
async function readLines(file: string): Promise<Word[]> {
  const isInput = file === '-';
  const called = isInput ? 'standard input' : file;
  const lines = (isInput ? await readAll(process.stdin) : readTrusted('targets', file, false)).split('\n');
  const words = lines.flatMap((line, index): Word[] => {
    const [, text, token] = /^(.+?)(?:\s+token-file=(.*))?$/.exec(line.replace(/(^|\s)#.*/, '').trim()) ?? [];
    const tokenFile = token === undefined ? undefined : resolve(isInput ? '.' : dirname(file), token);
    return text === undefined ? [] : [{ text, tokenFile, where: `line ${index + 1} of ${called}: ` }];
  });
  if (words.length === 0) throw new UsageError(`${called} names no target`);
  return words;
}

// ───── Names ─────────────────────────────────────────────────────────────────────────────────────────────────────

/** The name and the process id in the path of a socket. */
export function partsOf(path: string): { name: string; pid: string | undefined } {
  const [, name = '', pid] = /^(.+?)(?:-(\d+))?\.sock$/s.exec(basename(path)) ?? [];
  return { name, pid };
}

function nameOf({ name = '' }: Target): string {
  return partsOf(name).name;
}

/** A name as the path of a socket has it; see `socketPath` in control.ts. */
function nameInPath(name: string): string {
  return name.replaceAll(/[^\w.-]/g, '_').slice(0, 32);
}

/** Returns the systems of that name or process id or, if there is none, that at the address. */
async function find(word: Word, sockets: readonly string[], { dir, timeoutMs, hint = '' }: Sources): Promise<Found[]> {
  const { text, tokenFile, where = '' } = word;
  try {
    const isName = !/[:/]/.test(text) && isIP(text) === 0;
    const paths = isName ? sockets.filter((path) => isNamed(path, text) || isProcess(path, text)) : [];
    const others = isName ? sockets.filter((path) => mayControl(path, text)) : [];
    const found = paths.length > 0 ? await choose(paths, word, timeoutMs) : []; // most targets take no time
    if (found.length === 0 && others.length > 0) found.push(...await findControlled(others, word, timeoutMs));
    if (found.length > 0) return found;
    if (/^\d+$/.test(text)) { // as a host, 9000 is the address 0.0.35.40, which would be sent the token
      const error = `'${text}' is neither a process of the folder nor an address: write :${text} for the port`;
      throw new UsageError(error + hint);
    }
    const words = isName ? { hint: () => describeNames(text, dir) } : {};
    return [{ name: text, title: text, client: createTargetClient(text, timeoutMs, tokenFile, words) }];
  } catch (error) {
    if (error instanceof UsageError) error.message = where + error.message;
    throw error;
  }
}

/** Returns the live ones of the systems that may be meant. */
async function choose(paths: readonly string[], { text, tokenFile }: Word, timeoutMs?: number): Promise<Found[]> {
  const live = await liveOf(paths);
  const processes = live.filter((path) => isProcess(path, text));
  const isExact = text === nameInPath(text); // otherwise another name may look the same
  const isMeant = await Promise.all(live.map((path) => {
    return isNamed(path, text) && (isExact || hasName(targetAt(path, timeoutMs, tokenFile), text));
  }));
  const named = live.filter((_, index) => isMeant[index]);
  if (named.length > 0 && processes.length > 0) {
    const all = [...named, ...processes].map((path) => `unix:${path}`).join(' and ');
    throw new UsageError(`'${text}' is a name and a process, of ${all}: write one of these`);
  }
  return [...named, ...processes].map((path) => targetAt(path, timeoutMs, tokenFile));
}

/** Returns the systems that control the process: lists show it, instead of that of control-run in the socket's name. */
async function findControlled(
  paths: readonly string[],
  { text, tokenFile }: Word,
  timeoutMs: number | undefined,
): Promise<Found[]> {
  const found: Found[] = [];
  await inParallel(await liveOf(paths), async (path) => {
    const target = targetAt(path, timeoutMs, tokenFile);
    const reply = await target.client.request('info');
    const { run } = splitDetail(reply.ok ? reply.body['detail'] : undefined);
    if (run['pid'] === Number(pidIn(text))) found.push(target);
  });
  return found;
}

function isNamed(path: string, text: string): boolean {
  return partsOf(path).name === nameInPath(text);
}

/** Whether the text is its process id or `NAME-PID`. */
function isProcess(path: string, text: string): boolean {
  return mayControl(path, text) && partsOf(path).pid === pidIn(text);
}

/** Whether the text is any process id, or its name and one. */
function mayControl(path: string, text: string): boolean {
  const [, name] = /^(?:(.+)-)?\d+$/s.exec(text) ?? [];
  return pidIn(text) !== undefined && (name === undefined || isNamed(path, name));
}

function pidIn(text: string): string | undefined {
  return /(?:^|-)(\d+)$/.exec(text)?.[1];
}

/** Without `--dir`, most targets are no names: it does not matter whether there is a folder. */
function pathsIn(dir: string | undefined): string[] {
  try {
    return socketsIn(socketFolder(dir));
  } catch (error) {
    if (dir !== undefined) throw error;
    return [];
  }
}

async function hasName({ title, client }: Found, word: string): Promise<boolean> {
  const reply = await client.request('info');
  if (reply.ok) return reply.body['name'] === word;
  if (isAbsent(reply)) return false;
  throw new UsageError(`cannot tell whether ${title} is '${word}': ${client.shorten(reply.error)}; write ${title}`);
}

/** For a host that does not exist: it may be a mistyped name. */
async function describeNames(text: string, dir: string | undefined): Promise<string> {
  try {
    const folder = socketFolder(dir);
    const names = new Set((await findTargets(folder)).map(nameOf));
    const all = names.size === 0 || names.size > MAX_SHOWN ? '' : `, only ${[...names].join(', ')}`;
    return `; '${folder}' has no system of that name${suggest(text, names) || all}`;
  } catch (error) {
    return `; ${(error as Error).message}`;
  }
}

/** What completes a target: names or, if none begins like that, NAME-PID. Without what a shell could expand. */
export async function completeName(current: string, dir: string | undefined): Promise<string[]> {
  const targets = await findTargets(socketFolder(dir));
  const all = [[...new Set(targets.map(nameOf))], targets.map(({ title }) => title)];
  const offers = all.map((words) => words.filter((word) => word.startsWith(current) && /^\w[\w.-]*$/.test(word)));
  return offers.find(({ length }) => length > 0) ?? [];
}
