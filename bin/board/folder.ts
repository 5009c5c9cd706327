// --dir and --via: adds the live systems of a folder to the board, and those that start later.

import { setTimeout as sleep } from 'node:timers/promises';
import { LinkError } from '../shared/reach/link.ts';
import { unreachable } from '../shared/reach/machines.ts';
import { warn } from '../shared/line/options.ts';
import type { Folder } from '../shared/reach/folder.ts';
import type { Found } from '../shared/reach/targets.ts';
import type { Systems } from './systems.ts';

const SCAN_MS = 1000;

/**
 * Adds the live systems of a folder, and looks for others every second. A machine that cannot be reached at the start
 * is shown instead of its systems until it can.
 *
 * @throws {UsageError} If the folder cannot be used.
 */
export async function followFolder(systems: Systems, folder: Folder, timeoutMs: number): Promise<void> {
  let hide = (): void => {};
  const update = async (): Promise<void> => {
    for (const target of await folder.systems({ timeoutMs }, systems.keys)) systems.addFound(target);
    hide();
  };
  const keepUpdating = async (): Promise<void> => {
    for (;;) {
      await sleep(SCAN_MS, undefined, { ref: false });
      await update().catch(() => {}); // it may be unreadable for a while
    }
  };
  try {
    await update();
  } catch (error) {
    if (!(error instanceof LinkError)) throw error;
    warn(error.message);
    hide = systems.add(cardOf(folder));
  }
  void keepUpdating();
}

/**
 * Shows machines instead of the targets there, until they can be reached.
 *
 * @param find Finds all targets.
 */
export async function awaitMachines(
  systems: Systems,
  folders: readonly Folder[],
  find: () => Promise<Found[]>,
): Promise<void> {
  let shown = folders.map((folder) => ({ folder, hide: systems.add(cardOf(folder)) }));
  const isOpen = ({ folder: { machine } }: typeof shown[number]): boolean => !unreachable.has(machine.label);
  while (shown.length > 0) {
    await sleep(SCAN_MS, undefined, { ref: false });
    const found = await find().catch(() => []); // a file of targets may be unreadable for a while
    for (const { folder: { machine }, hide } of shown.filter(isOpen)) {
      const isNew = ({ client }: Found): boolean => client.machine === machine && !systems.keys.has(client.key);
      for (const target of found.filter(isNew)) systems.add(target);
      hide();
    }
    shown = shown.filter((one) => !isOpen(one));
  }
}

/** A machine that cannot be reached. */
function cardOf(folder: Folder): Found {
  const { label } = folder.machine;
  return { ...folder.absent(label, {}), name: label, title: label };
}
