// --via: other machines, each with the systems that it would list over there.

import { setTimeout as sleep } from 'node:timers/promises';
import { Folder, LocalFolder, patternOf, Socket } from './folder.ts';
import { Link, LinkError } from './link.ts';
import { DEFAULT_HOST } from '../../../control.ts';
import { listOf, UsageError } from '../line/options.ts';
import { suggest } from '../line/suggest.ts';
import type { ListOption } from '../line/options.ts';
import type { Reach } from './access.ts';
import type { Found } from './targets.ts';

/** The option that names machines. */
export const VIA_OPTION: ListOption = {
  type: 'string', multiple: true, value: '[LABEL=]CMD', completion: 'hosts',
  help: 'another machine, as if on it: CMD is a host for ssh, or a command that runs others there, such as ' +
    "'docker exec -i web'; may be repeated (default: CONTROL_VIA, such as 'gpu1, gpu2')",
};

/** Which systems are meant by names: those of machines, in a folder. */
export interface Where {
  via?: readonly string[] | undefined;
  dir?: string | undefined;
}

/** For tools that show what they have found meanwhile, and completions. */
export const PATIENCE_MS = 5000;
const MAX_PATIENCE_MS = 600_000; // links give up earlier
const MAX_NEW = 64; // systems that a machine may add at a search; these are a second apart

const links = new Map<string, Link>(); // each is kept while the tool runs

/**
 * Returns the folders of the machines of `--via` or CONTROL_VIA or, without any, the one of this machine.
 *
 * @throws {UsageError} If an option is invalid.
 */
export function foldersOf({ via, dir }: Where): Folder[] {
  const [option, given] = via === undefined
    ? ['CONTROL_VIA', (process.env['CONTROL_VIA'] || undefined)?.split(',') ?? []]
    : ['--via', via];
  const folders = new Map<string, Folder>();
  for (const text of given) {
    const [label, command] = parseVia(option, text.trim());
    if (folders.has(label)) throw new UsageError(`${option} has the label '${label}' twice: write LABEL=COMMAND`);
    if (command === null) {
      folders.set(label, new LocalFolder(dir, { label }));
      continue;
    }
    const key = JSON.stringify([label, command, dir]);
    const link = links.get(key) ?? new Link(label, command, dir ?? '');
    links.set(key, link);
    folders.set(label, new FarFolder(link));
  }
  return folders.size === 0 ? [new LocalFolder(dir)] : [...folders.values()];
}

/** Returns the label and the words of the command; null for this machine. */
function parseVia(option: string, text: string): [label: string, command: string[] | null] {
  const [, given, line = text] = /^(\w[\w.-]*)=(.*)$/s.exec(text) ?? [];
  const words = splitShell(line);
  const [first = '', second] = words ?? [];
  if (words === null) throw new UsageError(`${option} must close its quotes, got '${text}'`);
  if (first === '' || first.startsWith('-')) {
    throw new UsageError(`${option} must be a host or a command, got '${text}'`);
  }
  const last = words.filter((word) => word !== '--').at(-1) ?? '';
  const label = given ?? last.replace(/^.*@/, '');
  if (!/^\w[\w.-]*$/.test(label)) {
    throw new UsageError(`${option} needs a label, so write LABEL=COMMAND: got '${text}'`);
  }
  if (second === undefined) return [label, first.toLowerCase() === DEFAULT_HOST ? null : ['ssh', '--', first]];
  return [label, words];
}

/** Splits a command as a shell does: quotes and backslashes, no expansion. Null if a quote is not closed. */
function splitShell(line: string): string[] | null {
  const word = /\s*((?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\s'"\\])+)\s*/gsy;
  const words = [...line.matchAll(word)];
  if (words.map(([text]) => text).join('') !== line) return null;
  return words.map(([, text = '']) => {
    return text.replaceAll(/\\(.)|'([^']*)'|"((?:\\.|[^"\\])*)"/gs, (_, one, plain, quoted?: string) => {
      return one ?? plain ?? quoted?.replaceAll(/\\(["\\$`])/g, '$1');
    });
  });
}

/** Returns the folders that a target may mean, and the target without its label. */
export function foldersFor(target: string, folders: readonly Folder[]): [target: string, folders: readonly Folder[]] {
  const [, label, rest = ''] = /^([\w*?][\w.*?-]*)\/(.*)$/s.exec(target) ?? [];
  const labels = folders.map(({ machine }) => machine.label);
  if (label === undefined || labels[0] === '') return [target, folders];
  const pattern = patternOf(label);
  const found = folders.filter(({ machine }) => machine.label === label || pattern?.test(machine.label) === true);
  if (found.length > 0) return [rest, found];
  throw new UsageError(`no --via has the label '${label}'${suggest(label, labels) || `, only ${listOf(labels)}`}`);
}

/** Returns the one folder whose machine an address may be of. */
export function folderOf(address: string, [folder, ...others]: readonly Folder[], hint: string = ''): Folder {
  if (folder !== undefined && others.length === 0) return folder;
  throw new UsageError(`'${address}' may be of several machines: write LABEL/TARGET${hint}`);
}

/** Why machines could not be reached at the latest search, by label. */
export const unreachable: Map<string, string> = new Map();

/** Returns what is found on all machines that can be reached in time. */
export async function findIn(
  folders: readonly Folder[],
  find: (folder: Folder) => Promise<Found[]>,
  patienceMs: number = MAX_PATIENCE_MS,
): Promise<Found[]> {
  const all = await Promise.all(folders.map(async (folder) => {
    const { label } = folder.machine;
    const late = sleep(patienceMs, undefined, { ref: false }).then(() => {
      throw new LinkError(label, 'no answer yet');
    });
    try {
      const found = await Promise.race([find(folder), late]);
      unreachable.delete(label);
      return found;
    } catch (error) {
      const isUnreachable = error instanceof LinkError;
      if (folders.length === 1 && !isUnreachable) throw error; // otherwise, the others must not suffer
      unreachable.set(label, `${isUnreachable ? '' : `${label}: `}${(error as Error).message}`);
      return [];
    }
  }));
  return all.flat();
}

/** A folder, or those of the user's session, on another machine. */
class FarFolder extends Folder {
  declare readonly machine: Link;
  readonly fault = '';
  #maxNew = Infinity; // systems; no limit at the first search
  protected readonly path = ''; // there are none in the root folder

  get place(): string {
    return `on ${this.machine.label}`;
  }

  /** For tools that search again and again, finds a few new systems at a time: a machine may invent them. */
  override async systems(reach: Reach, known?: ReadonlySet<string>): Promise<Found[]> {
    const found = await super.systems(reach, known);
    if (known === undefined) return found;
    const taken = found.slice(0, this.#maxNew);
    this.#maxNew = MAX_NEW;
    return taken;
  }

  protected async live(mayBeMeant: (socket: Socket) => boolean): Promise<Socket[]> {
    await this.machine.open();
    return [...this.machine.sockets].map((path) => new Socket(path, this.machine)).filter(mayBeMeant);
  }
}
