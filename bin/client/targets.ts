// The systems to which control-client sends a command.

import { ADDRESS_PARTS, createClient } from '../shared/reach/access.ts';
import { findIn, folderOf, foldersOf, unreachable } from '../shared/reach/machines.ts';
import { DEFAULT_TARGET, parseTargets, refuseAddress } from '../shared/reach/names.ts';
import { listOf, UsageError, warn } from '../shared/line/options.ts';
import { labelled, onlyTarget } from '../shared/reach/targets.ts';
import type { Address } from '../shared/reach/access.ts';
import type { Sources } from '../shared/reach/names.ts';
import type { Target } from '../shared/reach/targets.ts';

const ALL_HINT = ', or --all';
/** The options that exclude `--all`. */
const SINGLE = [...ADDRESS_PARTS, 'targets'] as const;

type Values = Address & Sources & { all?: boolean | undefined };

/** Whether nothing says which systems: `list` and `top` then mean all. */
export function namesNone(words: readonly string[], values: Values): boolean {
  return words.length === 0 && SINGLE.every((option) => values[option] === undefined);
}

async function selectAll(words: readonly string[], values: Values, timeoutMs: number): Promise<Target[]> {
  for (const option of SINGLE) {
    if (values[option] === undefined) continue;
    throw new UsageError(`--${option} and --all are mutually exclusive: --all is for the systems of a folder`);
  }
  if (words[0] !== undefined) throw new UsageError(`unexpected argument '${words[0]}': --all takes no targets`);
  const folders = foldersOf(values);
  const found = await findIn(folders, (folder) => folder.systems({ timeoutMs }));
  const places = listOf(folders.map(({ place }) => place));
  if (found.length === 0 && unreachable.size === 0) warn(`no live system ${places}`);
  return labelled(found);
}

/** Returns the targets or, without any, the system at the address in the options or the environment. */
export async function selectTargets(
  words: string[],
  values: Values,
  timeoutMs: number,
  hint: string = '',
): Promise<Target[]> {
  if (values.all === true) return selectAll(words, values, timeoutMs);
  if (words.length === 0 && values.targets === undefined) {
    if (values.dir !== undefined) throw new UsageError('--dir requires --all, list or a target');
    const { machine } = folderOf(DEFAULT_TARGET, foldersOf(values), ALL_HINT);
    return [onlyTarget(createClient(values, { timeoutMs, machine }))];
  }
  refuseAddress(values);
  const targets = await parseTargets(words, { ...values, timeoutMs, hint, allHint: ALL_HINT });
  const given = values.targets === undefined ? words : [...words, values.targets];
  if (targets.length === 0 && unreachable.size === 0) warn(`no live system in ${listOf(given)}`); // gpu1/
  return targets;
}
