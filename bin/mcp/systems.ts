// The systems that an assistant can reach: the user chooses them, and each call looks them up again.

import { suggest, UsageError } from '../shared/cli.ts';
import { Fleet } from '../shared/fleet.ts';
import { select, type Sources } from '../shared/names.ts';
import { FollowedSystem } from '../shared/system.ts';
import { foldersFor, foldersOf, keepTerminal, PATIENCE_MS, unreachable } from '../shared/via.ts';
import { cleanText } from './reported.ts';

const TIMEOUT_MS = 5000; // of each request without a wait
const MAX_SHOWN = 20; // systems in an error
const MAX_ENDED = 100; // systems, whose logs can still be read

/** An assistant knows a system by its id: `train-2551` if it is in a folder, otherwise the target as written. */
export class Directory {
  readonly #words: readonly string[];
  readonly #sources: Sources;
  readonly #fleet = new Fleet({
    create: (target) => new FollowedSystem(target), maxEnded: MAX_ENDED, keepsNamesakes: true,
  });
  #search: Promise<FollowedSystem[]> | undefined; // in progress
  #none = '';

  constructor(words: readonly string[], sources: Sources) {
    this.#words = words;
    this.#sources = { ...sources, timeoutMs: TIMEOUT_MS, patienceMs: PATIENCE_MS };
  }

  /**
   * Checks the options, and that each name has a live system. On other machines, these may start later.
   *
   * @throws {UsageError} If a target or the folder is invalid.
   */
  async check(): Promise<void> {
    const folders = foldersOf(this.#sources);
    for (const word of this.#words) foldersFor(word, folders);
    await keepTerminal(); // nobody watches it
    if (folders[0]?.machine.label) void this.all().catch(() => {}); // opens the links
    else if (this.#isGiven) await this.#searchAll();
  }

  /** Why the list is empty, as of the latest search. */
  get absence(): string {
    return this.#isGiven ? 'none of the targets is running' : this.#none;
  }

  get #isGiven(): boolean {
    return this.#words.length > 0 || this.#sources.targets !== undefined;
  }

  /**
   * Concurrent calls share one search.
   *
   * @throws {UsageError} If a target or the folder is invalid.
   */
  all(): Promise<FollowedSystem[]> {
    this.#search ??= this.#searchAll({ absence: 'none' }).finally(() => (this.#search = undefined));
    return this.#search;
  }

  async #searchAll(options?: Pick<Sources, 'absence'>): Promise<FollowedSystem[]> {
    const { targets, none } = await select(this.#words, { ...this.#sources, ...options }, 'all');
    this.#none = none;
    const systems = targets.map((target) => this.#fleet.add({ ...target, id: cleanText(target.id) }));
    this.#fleet.noteEnds();
    const lost = this.#fleet.all.filter(({ client: { machine } }) => unreachable.has(machine.label));
    const present = lost.filter((system) => system.target.socket?.exists === true && !this.#fleet.hasEnded(system));
    return [...new Set([...present, ...systems])]; // requests report why a machine is unreachable
  }

  /**
   * Returns the system with this id, live or ended. Otherwise the live system with this name or process id in the path
   * of its socket, or the last one that has ended: reports name no system.
   *
   * @throws {UsageError} If there is none, or there are several.
   */
  async find(text: string): Promise<FollowedSystem> {
    const live = await this.all();
    // A system that is live but no longer among the targets has not ended, and cannot be reached.
    const ended = this.#fleet.all.filter(({ target: { socket } }) => socket?.exists === false);
    const hasId = ({ target: { id } }: FollowedSystem): boolean => id === text;
    const hasName = ({ target: { socket }, client: { machine: { label } } }: FollowedSystem): boolean => {
      return [socket?.name, socket?.pid].some((name) => name === text || `${label}/${name}` === text);
    };
    const choices = [
      live.filter(hasId), ended.filter(hasId).slice(-1), live.filter(hasName), ended.filter(hasName).slice(-1),
    ];
    const matching = choices.find(({ length }) => length > 0) ?? [];
    const [found, ...others] = matching;
    if (found !== undefined && others.length === 0) return found;
    const ids = (found === undefined ? live : matching).map(({ target: { id } }) => id);
    const more = ids.length > MAX_SHOWN ? ` and ${ids.length - MAX_SHOWN} more` : '';
    const shown = ids.slice(0, MAX_SHOWN).join(', ') + more;
    if (found !== undefined) throw new UsageError(`'${text}' is ambiguous: use one of ${shown}`);
    const why = [...unreachable.values()].map((message) => `; ${message}`).join('');
    const hint = why === '' ? suggest(text, ids) : '';
    throw new UsageError(`there is no system '${text}'${hint}; list_systems returns ${shown || 'none now'}${why}`);
  }
}
