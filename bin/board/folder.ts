// --dir and --via: adds the live systems of a folder to the board, and those that start later.

import { setTimeout as sleep } from 'node:timers/promises';
import { findIn, PATIENCE_MS, unreachable } from '../shared/reach/machines.ts';
import { warn } from '../shared/line/options.ts';
import type { Folder } from '../shared/reach/folder.ts';
import type { Systems } from './systems.ts';

const SCAN_MS = 1000;
const ELSEWHERE = 'elsewhere:1'; // refused by the far end, so that its status is never `offline`

/**
 * Adds the live systems of a folder, and looks for others every second. A machine that cannot be reached at the start
 * is shown, and why, until it can.
 *
 * @throws {UsageError} If the folder cannot be used.
 */
export async function followFolder(systems: Systems, folder: Folder, timeoutMs: number): Promise<void> {
  const { machine: { label } } = folder;
  const update = async (): Promise<void> => {
    const found = await findIn([folder], () => folder.systems({ timeoutMs }, systems.keys), PATIENCE_MS);
    for (const target of found) systems.addFound(target);
  };
  const keepUpdating = async (hide: () => void): Promise<void> => {
    for (;;) {
      await sleep(SCAN_MS, undefined, { ref: false });
      await update().catch(() => {}); // it may be unreadable for a while
      if (!unreachable.has(label)) hide();
    }
  };
  await update();
  const reason = unreachable.get(label);
  if (reason !== undefined) warn(reason);
  const shown = { ...folder.at(ELSEWHERE, { timeoutMs }), name: label, title: label };
  void keepUpdating(reason === undefined ? () => {} : systems.add(shown));
}
