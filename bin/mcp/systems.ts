// The systems that an assistant can reach: those that its user has chosen, looked up again for each call.

import { DEFAULT_PORT } from '../../control.ts';
import { createClient, hasEnvironmentAddress } from '../shared/access.ts';
import { findTargets, partsOf, socketFolder } from '../shared/folder.ts';
import { parseTargets, refuseOthers } from '../shared/names.ts';
import { UsageError } from '../shared/options.ts';
import { isAbsent } from '../shared/replies.ts';
import { onlyTarget } from '../shared/targets.ts';
import { cleanText } from './reported.ts';
import type { Sources } from '../shared/names.ts';
import type { PrintableClient } from '../shared/replies.ts';
import type { Target } from '../shared/targets.ts';

const TIMEOUT_MS = 5000; // of each request that waits for nothing
const MAX_SHOWN = 20; // in an error

export interface System {
  /** What an assistant calls it: `train-2551` for one of a folder, or the target as its user has written it. */
  id: string;
  /** For one of a folder, what its socket is named after. Nothing that the system reports. */
  name: string | undefined;
  pid: string | undefined;
  client: PrintableClient;
}

export class Systems {
  readonly #words: readonly string[];
  readonly #sources: Sources;

  /** @throws {UsageError} If a target is rather a command or a status. */
  constructor(words: readonly string[], sources: Sources) {
    refuseOthers(words, { dir: sources.dir });
    if (sources.targets === '-') throw new UsageError('--targets must be a file: standard input is for the assistant');
    this.#words = words;
    this.#sources = { ...sources, timeoutMs: TIMEOUT_MS };
  }

  /** @throws {UsageError} If a target or the folder is invalid. */
  async all(): Promise<System[]> {
    return (await this.#targets()).map(({ name = '', title, client }) => {
      const isOfFolder = name.startsWith('unix:') && name !== title;
      return { id: cleanText(title), ...(isOfFolder ? partsOf(name) : { name: undefined, pid: undefined }), client };
    });
  }

  /** Where systems were looked for, if there is none. */
  get place(): string {
    const { dir } = this.#sources;
    return `'${socketFolder(dir)}'${dir === undefined ? ` and localhost:${DEFAULT_PORT}` : ''}`;
  }

  /** The targets, or else the one in the environment, or else those of the folder, or else that at the default port. */
  async #targets(): Promise<Target[]> {
    const { dir, targets } = this.#sources;
    if (this.#words.length > 0 || targets !== undefined) return parseTargets(this.#words, this.#sources);
    const isFolder = dir !== undefined || !hasEnvironmentAddress();
    const found = isFolder ? await findTargets(socketFolder(dir), TIMEOUT_MS) : [];
    if (found.length > 0 || dir !== undefined) return found;
    const client = createClient({}, TIMEOUT_MS);
    const isThere = !isFolder || !isAbsent(await client.request('status'));
    return isThere ? [onlyTarget(client)] : [];
  }

  /**
   * Returns the one with that id or, if there is only one, with that name or process id.
   *
   * @throws {UsageError} If there is none, or there are several.
   */
  async find(text: string): Promise<System> {
    const systems = await this.all();
    const named = systems.filter(({ name, pid }) => name === text || pid === text);
    const found = systems.find(({ id }) => id === text) ?? named[0];
    if (found !== undefined && (found.id === text || named.length === 1)) return found;
    const [start, offered] = named.length > 1 ? ['several systems are', named] : ['there is no system', systems];
    const ids = offered.slice(0, MAX_SHOWN).map(({ id }) => id).join(', ');
    throw new UsageError(`${start} '${cleanText(text)}'; list_systems has ${ids || 'none now'}`);
  }
}
