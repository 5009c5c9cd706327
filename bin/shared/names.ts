// Which systems a command line means: names, addresses and a file with these, or else what runs here.

import { existsSync, statSync } from 'node:fs';
import { isIP } from 'node:net';
import { dirname, resolve } from 'node:path';
import { text as readAll } from 'node:stream/consumers';
import { DEFAULT_HOST } from '../../control.ts';
import { listOf, suggest, UsageError, warn } from './cli.ts';
import {
  type Address, ADDRESS_PARTS, createClient, LINK_ENDED, type Machine, PrintableClient, type PrintableReply,
  type Reach, readTrusted, VARIABLES,
} from './client.ts';
import { splitDetail } from './describe.ts';
import {
  DEFAULT_TARGET, type Folder, type Found, inParallel, labelled, nameInPath, patternOf, type Target,
} from './folder.ts';
import { type Body, tidy } from './text.ts';
import { findIn, folderOf, foldersFor, foldersOf, unreachable, type Where } from './via.ts';

/** A target as written. */
interface Word {
  text: string;
  tokenFile?: string | undefined;
  /** `line 3 of gpus: ` */
  where?: string;
}

export interface Sources extends Where, Address {
  /** The file of `--targets`. Its lines are `TARGET` or `TARGET token-file=PATH`, the path relative to the file. */
  targets?: string | undefined;
  /** Everything here, whatever the variables say. */
  all?: boolean | undefined;
  timeoutMs?: number;
  /** What a name without a live system means; by default, an error. */
  absence?: 'none' | 'offline';
  /** Ends the error about a name that has no live system. */
  hint?: string;
  /** How long a machine may take; by default, as long as its link needs. */
  patienceMs?: number;
  /** Ends errors about what must be one system. */
  allHint?: string;
}

export interface Selection {
  targets: Target[];
  /** Everything in them is meant, also what starts later; empty if words, `--targets` or an address say what. */
  folders: Folder[];
  /** Why there are no targets. */
  none: string;
}

/** No live system has the name: it may still start. */
export class NoSystem extends UsageError {}

const MAX_SHOWN = 5; // names in an error

/**
 * Returns the systems that words, `--targets` or an address say or, without any, what runs here: in the folders of this
 * user and at localhost:8391, or the same on the machines of `--via`. Options take precedence over variables.
 *
 * @param several What several systems here mean without words: all of them, or a mistake; `later` searches for none.
 * @throws {UsageError} If a word or an option is invalid, or several systems run here and one is required.
 */
export async function select(
  words: readonly string[],
  sources: Sources,
  several: 'all' | 'mistake' | 'later',
): Promise<Selection> {
  const { all = false, dir, via, targets: file, timeoutMs, patienceMs, allHint } = sources;
  const part = ADDRESS_PARTS.find((name) => sources[name] !== undefined);
  const isNamed = words.length > 0 || file !== undefined;
  if (all && words[0] !== undefined) throw new UsageError(`unexpected argument '${words[0]}': --all takes no targets`);
  const given = part ?? (file === undefined ? undefined : 'targets');
  if (all && given !== undefined) exclude(`--${given} and --all`, '--all means everything here');
  if (part !== undefined && isNamed) exclude(`--${part} and targets`, 'a target is a complete address');
  if (part !== undefined && dir !== undefined) exclude(`--${part} and --dir`, 'an address needs no folder');
  if (isNamed) {
    const none = `nothing runs in ${listOf(file === undefined ? words : [...words, file])}`;
    return { targets: await parseTargets(words, sources), folders: [], none };
  }
  const folders = foldersOf(sources);
  const hasVariable = ADDRESS_PARTS.some((name) => Boolean(process.env[VARIABLES[name]]));
  if (part !== undefined || (hasVariable && !all && dir === undefined && via === undefined)) {
    const { machine } = folderOf(DEFAULT_TARGET, folders, allHint);
    const client = createClient(sources, { timeoutMs, machine });
    const { target } = client;
    const [name, label] = machine.label === '' ? [undefined, ''] : [target, `${target}  `];
    return { targets: [{ name, id: target, title: target, label, client }], folders: [], none: '' };
  }
  if (several === 'later') return { targets: [], folders, none: '' };
  const targets = labelled(await findIn(folders, (folder) => folder.systems({ timeoutMs }), patienceMs));
  const isUnsure = several === 'mistake' && !all && unreachable.size > 0; // that machine may have others
  if (isUnsure) return { targets: [], folders, none: '' };
  if (targets.length > 1 && several === 'mistake' && !all) throw tooMany(targets, folders, allHint);
  const none = [`nothing runs ${placesOf(folders)}`, ...folders.flatMap(({ hints }) => hints)].join('; ');
  const isBare = targets.length === 1 && !all && folders[0]?.machine.label === '';
  return { targets: isBare ? targets.map((one) => ({ ...one, label: '' })) : targets, folders, none };
}

function exclude(options: string, why: string): never {
  throw new UsageError(`${options} are mutually exclusive: ${why}`);
}

function placesOf(folders: readonly Folder[]): string {
  return listOf(folders.map(({ place }) => place));
}

function tooMany(targets: readonly Target[], folders: readonly Folder[], hint: string = ''): UsageError {
  const titles = targets.map(({ title }) => title).sort();
  const more = titles.length > MAX_SHOWN ? ` and ${titles.length - MAX_SHOWN} more` : '';
  const shown = titles.slice(0, MAX_SHOWN).join(', ') + more;
  const places = folders.map(({ place }) => place).join(' and ');
  return new UsageError(`${titles.length} systems run ${places}: ${shown}: name one${hint}`);
}

/**
 * Returns the client of a tool that controls one system: what the target or the address says, or else what runs here.
 *
 * @throws {UsageError} If one of them is invalid, or may mean several systems.
 */
export async function selectClient(word: string | undefined, sources: Sources): Promise<PrintableClient> {
  const selection = await select(word === undefined ? [] : [word], sources, 'all');
  const { targets, folders, none } = selection;
  const [reason] = unreachable.values();
  if (reason !== undefined) throw new Error(reason);
  const [one, ...others] = targets;
  const isOnly = one !== undefined && others.length === 0;
  if (word !== undefined && !isOnly) {
    const titles = targets.map(({ title }) => title).join(' and ');
    throw new UsageError(titles === '' ? none : `TARGET must be one system, got '${word}', which matches ${titles}`);
  }
  await one?.client.machine.open?.();
  if (isOnly && folders.length === 0) return one.client;
  if (one === undefined && folders.some(({ isForeign }) => isForeign)) throw new UsageError(none);
  const present = one === undefined ? null : clientIn(selection);
  return new ClientOfHere(present, folders[0]?.machine, async () => clientIn(await select([], sources, 'all')));
}

/** Of several systems, returns the one at localhost:8391. */
function clientIn({ targets, folders, none }: Selection): PrintableClient {
  const [one, ...others] = targets;
  if (one === undefined) throw new NoSystem(none);
  const isAtPort = ({ socket }: Target): boolean => socket === undefined || socket.pid === folders[0]?.portPid;
  const found = others.length === 0 ? one : folders.length === 1 ? targets.find(isAtPort) : undefined;
  if (found === undefined) throw tooMany(targets, folders);
  return found.client;
}

/** The client of what runs here and, when that has ended, of what runs here then. */
class ClientOfHere extends PrintableClient {
  readonly #find: () => Promise<PrintableClient>;
  #present: PrintableClient | null;

  /** @param find Throws an error while nothing runs, or too much. */
  constructor(present: PrintableClient | null, machine: Machine | undefined, find: () => Promise<PrintableClient>) {
    super(undefined, undefined, {}, machine);
    this.#find = find;
    this.#present = present;
    this.#note();
  }

  #note(): void {
    const { baseUrl, socketPath, title } = this.#present ?? this;
    Object.assign(this, { baseUrl, socketPath, title });
  }

  override async request(...args: Parameters<PrintableClient['request']>): Promise<PrintableReply> {
    try {
      this.#present ??= await this.#find();
    } catch (error) {
      const code = error instanceof NoSystem ? 'ENOENT' : error instanceof UsageError ? 'EACCES' : LINK_ENDED;
      return this.failure((error as Error).message, code); // several are not offline
    }
    this.#note();
    const isCommand = args[0] !== 'status' && args[0] !== 'info';
    if (isCommand && this.meant !== undefined && this.meant !== this.key) {
      return this.failure(`${args[0]} not sent: ${this.target} runs here now`, 'EACCES');
    }
    const reply = await this.#present.request(...args);
    if (reply.fault === 'offline') this.#present = null;
    return reply;
  }
}

/**
 * Returns the targets of the command line and of the file, each once.
 *
 * @throws {UsageError} If a target or the file is invalid, or the file names none.
 */
async function parseTargets(texts: readonly string[], sources: Sources): Promise<Target[]> {
  const folders = foldersOf(sources);
  const lines = sources.targets === undefined ? [] : await readLines(sources.targets);
  const words: Word[] = [...texts.map((text) => ({ text })), ...lines];
  const found = await inParallel(words, (word) => find(word, folders, sources));
  const targets = new Map<string, Found>(); // by the key of the client
  for (const [index, { tokenFile }] of words.entries()) {
    for (const target of found[index] ?? []) {
      const { key } = target.client;
      if (tokenFile !== undefined || !targets.has(key)) targets.set(key, target);
    }
  }
  return labelled([...targets.values()]);
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
    const isPath = text.includes('/') && !text.includes('://');
    const isHere = folders[0]?.machine.label === '';
    const isSocket = isPath && isHere && existsSync(text) && statSync(text).isSocket();
    const isStray = isPath && !isSocket && !/^(\.{0,2}\/|unix:)/.test(text);
    const isName = isStray || (!/[:/]/.test(text) && isIP(text) === 0);
    const search = async (folder: Folder): Promise<Found[]> => {
      const named = await findNamed(text, folder, reach);
      if (named.length > 0) return named;
      const others = (await folder.systems(reach)).filter(({ socket }) => socket === undefined);
      return reporting(others, ({ name, pid }) => [name, pid, `${name}-${pid}`].map(String).includes(tidy(text)));
    };
    const found = isName ? await findIn(folders, search, patienceMs) : [];
    const isUnsure = (): boolean => isName && folders.some(({ machine }) => unreachable.has(machine.label));
    if (found.length > 0 || isUnsure()) return found;
    if (!isName || text.toLowerCase() === DEFAULT_HOST) return [folderOf(text, folders, allHint).at(text, reach)];
    if (absence === 'none' && !isStray) return [];
    const names = await describeNames(text, folders);
    if (isUnsure()) return []; // by now, it may have been lost
    if (absence === 'offline' && text !== '' && !isStray && patternOf(text) === null) {
      warn(`there is no system '${text}' ${names}`);
      return folders.map((folder) => folder.absent(text, reach));
    }
    const example = folders[0]?.machine.label ? `${folders[0].machine.label}/:9000` : 'gpu1:8391 or :9000';
    const [, machine] = /^(\w[\w.-]*)\//.exec(word.text) ?? [];
    const via = machine !== undefined && isHere ? `; for a system on ${machine}: --via ${machine}` : '';
    if (isStray) throw new NoSystem(`'${text}' is no socket and no system ${names}${via}`);
    throw new NoSystem(`there is no system '${text}' ${names}; an address has a port, such as ${example}${hint}`);
  } catch (error) {
    if (error instanceof UsageError) error.message = where + error.message;
    throw error;
  }
}

/** Returns the live systems with a name, a process id or both: `train`, `2551`, `train-2551`, `train-*`. */
async function findNamed(text: string, folder: Folder, reach: Reach): Promise<Found[]> {
  const live = (mayBeMeant: Parameters<Folder['find']>[0]): Promise<Found[]> => folder.find(mayBeMeant, reach);
  const pattern = patternOf(text);
  if (pattern !== null) return live(({ name }) => pattern.test(name)); // not NAME-PID: train-* is not train
  const named = await live(({ name }) => name === nameInPath(text));
  if (text !== nameInPath(text)) return reporting(named, ({ name }) => name === tidy(text)); // others may be called so
  const [, ownName, pid] = /^(?:(.+)-)?(\d+)$/s.exec(text) ?? [];
  if (pid === undefined) return named;
  const hasOwnName = ({ name }: { name: string }): boolean => ownName === undefined || name === ownName;
  const processes = await live((socket) => hasOwnName(socket) && socket.pid === pid);
  const found = [...named, ...processes];
  if (found.length === 0) {
    const isProgram = ({ detail }: Body): boolean => splitDetail(detail).run['pid'] === Number(pid); // lists show it
    return reporting(await live(hasOwnName), isProgram);
  }
  if (found.length === named.length || found.length === processes.length) return found;
  const all = found.map(({ name }) => name).join(' and ');
  throw new UsageError(`'${text}' is a name and a process id, of ${all}: write one of these`);
}

/** Returns the systems whose reports match. */
async function reporting(systems: readonly Found[], matches: (info: Body) => boolean): Promise<Found[]> {
  const replies = await inParallel(systems, ({ client }) => client.request('info'));
  return systems.filter((_, index) => replies[index]?.ok === true && matches(replies[index].body));
}

/** Where there is no such name, and which names there are instead. */
async function describeNames(text: string, folders: readonly Folder[]): Promise<string> {
  const names = namesOf(await findIn(folders, (one) => one.systems({})));
  const all = names.length === 0 || names.length > MAX_SHOWN ? '' : `, only ${names.join(', ')}`;
  const where = `${placesOf(folders)}${suggest(nameInPath(text), names) || all}`;
  return [where, ...folders.flatMap(({ hints }) => hints)].join('; ');
}

function namesOf(targets: readonly Found[]): string[] {
  return [...new Set(targets.flatMap(({ socket }) => socket?.name ?? []))];
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
