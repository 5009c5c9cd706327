// --dir and --via: adds the live systems of a folder to the board, and those that start later.

import { Duplex } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { createTargetClient } from '../shared/reach/access.ts';
import { findIn, unreachable } from '../shared/reach/machines.ts';
import { warn } from '../shared/line/options.ts';
import type { Folder } from '../shared/reach/folder.ts';
import type { Found } from '../shared/reach/targets.ts';
import type { Systems } from './systems.ts';

const SCAN_MS = 1000;

/**
 * Adds the live systems of a folder, and looks for others every second.
 *
 * @throws {UsageError} If the folder cannot be used.
 */
export async function followFolder(systems: Systems, folder: Folder, timeoutMs: number): Promise<void> {
  const update = async (): Promise<void> => {
    const found = await findIn([folder], () => folder.systems({ timeoutMs }, systems.keys));
    for (const target of found) systems.addFound(target);
  };
  await update();
  const hideIfOpen = showUnreachable(systems, folder);
  const keepUpdating = async (): Promise<void> => {
    for (;;) {
      await sleep(SCAN_MS, undefined, { ref: false });
      await update().catch(() => {}); // it may be unreadable for a while
      hideIfOpen();
    }
  };
  void keepUpdating();
}

/**
 * Adds the targets on machines that could not be reached, once they can.
 *
 * @param find Finds all targets.
 */
export async function awaitMachines(
  systems: Systems,
  folders: readonly Folder[],
  find: () => Promise<Found[]>,
): Promise<void> {
  const waiting = new Map(folders.map((folder) => [folder.machine, showUnreachable(systems, folder)]));
  while (waiting.size > 0) {
    await sleep(SCAN_MS, undefined, { ref: false });
    const found = await find().catch(() => []); // a file of targets may be unreadable for a while
    for (const [machine, hideIfOpen] of waiting) {
      if (unreachable.has(machine.label)) continue;
      const isNew = ({ client }: Found): boolean => client.machine === machine && !systems.keys.has(client.key);
      for (const target of found.filter(isNew)) systems.add(target);
      hideIfOpen();
      waiting.delete(machine);
    }
  }
}

/**
 * Shows a machine that cannot be reached, and why, instead of its systems.
 *
 * @returns A function that ends that once it can be reached.
 */
function showUnreachable(systems: Systems, { machine: { label } }: Folder): () => void {
  if (!unreachable.has(label)) return () => {};
  warn(`${unreachable.get(label)}`);
  const connect = (): Duplex => { // fails as a link does
    const error = Object.assign(new Error(unreachable.get(label)?.slice(label.length + 2)), { code: 'ENOLINK' });
    return new Duplex({ construct: (callback) => callback(error) });
  };
  const client = createTargetClient('localhost', { machine: { label, connect } });
  const hide = systems.add({ name: label, title: label, client });
  return () => unreachable.has(label) || hide();
}
