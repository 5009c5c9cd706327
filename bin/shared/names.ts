// The targets of a command line or a file: addresses, or names of systems in a folder.

import { isIP } from 'node:net';
import { dirname, resolve } from 'node:path';
import { text as readAll } from 'node:stream/consumers';
import { DEFAULT_HOST, DEFAULT_PORT } from '../../control.ts';
import { listOf, suggest, UsageError } from './cli.ts';
import { type Address, ADDRESS_PARTS, createClient, type PrintableClient, type Reach, readTrusted } from './client.ts';
import { splitDetail } from './describe.ts';
import { type Folder, type Found, inParallel, labelled, nameInPath, patternOf, type Target } from './folder.ts';
import { findIn, folderOf, foldersFor, foldersOf, unreachable, type Where } from './via.ts';

/** A target as written. */
interface Word {
  text: string;
  tokenFile?: string | undefined;
  /** `line 3 of gpus: ` */
  where?: string;
}

export interface Sources extends Where {
  /** The file of `--targets`. Its lines are `TARGET` or `TARGET token-file=PATH`, the path relative to the file. */
  targets?: string | undefined;
  timeoutMs?: number;
  /** What a name without a live system means; by default, an error. */
  absence?: 'none' | 'offline';
  /** Ends the error about a name that has no live system. */
  hint?: string;
  /** How long a machine may take; by default, as long as its link needs. */
  patienceMs?: number;
  /** Ends the error about an address without a label. */
  allHint?: string;
}

const MAX_SHOWN = 5; // names in an error
/** For messages: the address without any option. */
export const DEFAULT_TARGET: string = `${DEFAULT_HOST}:${DEFAULT_PORT}`;

/**
 * Returns the targets of the command line and of the file, each once.
 *
 * @throws {UsageError} If a target or the file is invalid, or the file names none.
 */
export async function parseTargets(texts: readonly string[], sources: Sources): Promise<Target[]> {
  const folders = foldersOf(sources);
  const lines = sources.targets === undefined ? [] : await readLines(sources.targets);
  const words: Word[] = [...texts.map((text) => ({ text })), ...lines];
  const found = new Map<Word, Found[]>();
  await inParallel(words, async (word) => void found.set(word, await find(word, folders, sources)));
  const targets = new Map<string, Found>(); // by the key of the client
  for (const word of words) {
    for (const target of found.get(word) ?? []) {
      const { key } = target.client;
      if (word.tokenFile !== undefined || !targets.has(key)) targets.set(key, target);
    }
  }
  return labelled([...targets.values()]);
}

/**
 * Returns the client of a tool that controls one system: the target, or else the address in the options or the
 * environment.
 *
 * @throws {UsageError} If the target or the address is invalid, or several systems have that name.
 */
export async function selectClient(
  word: string | undefined,
  values: Address & Where,
): Promise<PrintableClient> {
  if (word === undefined) {
    if (values.dir !== undefined) throw new UsageError('--dir requires a TARGET');
    const { machine } = folderOf(DEFAULT_TARGET, foldersOf(values));
    await machine.open?.();
    return createClient(values, { machine });
  }
  refuseAddress(values);
  const [target, ...others] = await parseTargets([word], values);
  const [reason] = unreachable.values();
  if (reason !== undefined) throw new Error(reason);
  await target?.client.machine.open?.();
  if (target !== undefined && others.length === 0) return target.client;
  const titles = [target, ...others].map((one) => one?.title);
  throw new UsageError(`TARGET must be one system, got '${word}', which matches ${titles.join(' and ')}`);
}

/** @throws {UsageError} If the options beside a target hold an address. */
export function refuseAddress(values: Address): void {
  for (const option of ADDRESS_PARTS) {
    if (values[option] === undefined) continue;
    throw new UsageError(`--${option} and targets are mutually exclusive: a target is a complete address`);
  }
}

/** `-` is standard input. */
async function readLines(file: string): Promise<Word[]> {
  const isInput = file === '-';
  const called = isInput ? 'standard input' : file;
  const lines = (isInput ? await readAll(process.stdin) : readTrusted('targets', file, false)).split('\n');
  const words = lines.flatMap((line, index): Word[] => {
    const [, text, token] = /^(.+?)(?:\s+token-file=(.*))?$/.exec(line.replace(/(^|\s)#.*/, '').trim()) ?? [];
    const where = `line ${index + 1} of ${called}: `;
    if (isInput && token !== undefined) { // the list may come from anywhere, and name any file and any host
      throw new UsageError(`${where}token-file= is only for a file that --targets names, got '${token}'`);
    }
    const tokenFile = token === undefined ? undefined : resolve(dirname(file), token);
    return text === undefined ? [] : [{ text, tokenFile, where }];
  });
  if (words.length === 0) throw new UsageError(`${called} names no target`);
  return words;
}

// ───── Names ─────────────────────────────────────────────────────────────────────────────────────────────────────

/**
 * Returns the systems with that name or process id, or the one at that address. A mere word is never a host: with a
 * mistyped name, or that of a system that has ended (`train.sh`), a stranger would receive the command and the token.
 */
async function find(word: Word, all: readonly Folder[], sources: Sources): Promise<Found[]> {
  const { tokenFile, where = '' } = word;
  const { timeoutMs, absence, hint = '', allHint, patienceMs } = sources;
  try {
    const [text, folders] = foldersFor(word.text, all);
    const isAnywhere = folders.length > 1; // there, a machine could get the token of another one
    const reach = { timeoutMs, tokenFile: tokenFile ?? (isAnywhere ? null : undefined) };
    if (text === '' && word.text !== '') return await findIn(folders, (folder) => folder.systems(reach), patienceMs);
    const isName = !/[:/]/.test(text) && isIP(text) === 0;
    const usable = isName ? folders.filter(({ fault }) => fault === '') : [];
    const named = (folder: Folder): Promise<Found[]> => findNamed(text, folder, reach);
    const found = usable.length > 0 ? await findIn(usable, named, patienceMs) : [];
    if (found.length > 0 || usable.some(({ machine }) => unreachable.has(machine.label))) return found;
    if (!isName || text.toLowerCase() === DEFAULT_HOST) return [folderOf(text, folders, allHint).at(text, reach)];
    if (absence === 'none') return [];
    if (absence === 'offline' && text === nameInPath(text)) return folders.map((folder) => folder.absent(text, reach));
    const example = folders[0]?.machine.label ? `${folders[0].machine.label}/:9000` : 'gpu1:8391 or :9000';
    const rule = `an address has a port, such as ${example}`;
    throw new UsageError(`there is no system '${text}'${await describeNames(text, folders)}; ${rule}${hint}`);
  } catch (error) {
    if (error instanceof UsageError) error.message = where + error.message;
    throw error;
  }
}

/** Returns the live systems with a name as in paths, a process id or both: `train`, `2551`, `train-2551`, `train-*`. */
async function findNamed(text: string, folder: Folder, reach: Reach): Promise<Found[]> {
  const live = (mayBeMeant: Parameters<Folder['find']>[0]): Promise<Found[]> => folder.find(mayBeMeant, reach);
  const pattern = patternOf(text);
  if (pattern !== null) return live(({ name }) => pattern.test(name)); // not NAME-PID: train-* is not train
  const named = await live(({ name }) => name === text);
  const [, ownName, pid] = /^(?:(.+)-)?(\d+)$/s.exec(text) ?? [];
  if (pid === undefined) return named;
  const hasOwnName = ({ name }: { name: string }): boolean => ownName === undefined || name === ownName;
  const processes = await live((socket) => hasOwnName(socket) && socket.pid === pid);
  const found = [...named, ...processes];
  if (found.length === 0) {
    const candidates = await live(hasOwnName);
    await inParallel(candidates, async (target) => void (await controls(target, Number(pid)) && found.push(target)));
    return found;
  }
  if (found.length === named.length || found.length === processes.length) return found;
  const all = found.map(({ name }) => name).join(' and ');
  throw new UsageError(`'${text}' is a name and a process id, of ${all}: write one of these`);
}

/** Whether the system is control-run and the process is its program: lists show that process. */
async function controls({ client }: Found, pid: number): Promise<boolean> {
  const reply = await client.request('info');
  return reply.ok && splitDetail(reply.body['detail']).run['pid'] === pid;
}

/** Which names there are instead. */
async function describeNames(text: string, folders: readonly Folder[]): Promise<string> {
  const [folder] = folders;
  if (folder !== undefined && folder.fault !== '') return `: ${folder.fault}`;
  const names = namesOf(await findIn(folders, (one) => one.systems({})));
  const all = names.length === 0 || names.length > MAX_SHOWN ? '' : `, only ${names.join(', ')}`;
  return ` ${listOf(folders.map(({ place }) => place))}${suggest(nameInPath(text), names) || all}`;
}

function namesOf(targets: readonly Found[]): string[] {
  return [...new Set(targets.map(({ socket }) => socket?.name ?? ''))];
}

/**
 * Completes a target with labels and names or, if none begins like that, NAME-PID, without characters that a shell
 * expands.
 */
export async function completeName(current: string, where: Where): Promise<string[]> {
  const all = foldersOf(where);
  const labels = all.flatMap(({ machine: { label } }) => label === '' ? [] : [`${label}/`]);
  const found = labels.filter((label) => label.startsWith(current) && label !== current);
  if (found.length > 0) return found;
  const [text, folders] = foldersFor(current, all);
  const targets = await findIn(folders, (folder) => folder.systems({}));
  const words = [namesOf(targets), targets.map(({ title }) => title.replace(/^.*\//, ''))];
  const start = current.slice(0, current.length - text.length);
  const offers = words.map((some) => some.filter((word) => word.startsWith(text) && /^\w[\w.-]*$/.test(word)));
  return (offers.find(({ length }) => length > 0) ?? []).map((word) => start + word);
}
