// --dir and --via: adds the live systems of a folder to the board, and those that start later.

import { setTimeout as sleep } from 'node:timers/promises';
import { LinkError } from '../shared/reach/link.ts';
import { warn } from '../shared/line/options.ts';
import type { Folder } from '../shared/reach/folder.ts';
import type { Systems } from './systems.ts';

const SCAN_MS = 1000;

/**
 * Adds the live systems of a folder, and looks for others every second. A machine that cannot be reached at the start
 * is shown instead of its systems until it can.
 *
 * @throws {UsageError} If the folder cannot be used.
 */
export async function followFolder(systems: Systems, folder: Folder, timeoutMs: number): Promise<void> {
  const { machine: { label } } = folder;
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
    hide = systems.add({ ...folder.absent(label, { timeoutMs }), name: label, title: label });
  }
  void keepUpdating();
}
