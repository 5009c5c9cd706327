// --dir: adds the live systems of a folder to the board, and those that start later.

import { setTimeout as sleep } from 'node:timers/promises';
import type { Folder } from '../shared/reach/folder.ts';
import type { Systems } from './systems.ts';

const SCAN_MS = 1000;

/** Adds the live systems of a folder. Later ones follow within a second. */
export async function followFolder(systems: Systems, folder: Folder, timeoutMs: number): Promise<void> {
  await addNew(systems, folder, timeoutMs);
  void keepAdding(systems, folder, timeoutMs);
}

async function keepAdding(systems: Systems, folder: Folder, timeoutMs: number): Promise<never> {
  for (;;) {
    await sleep(SCAN_MS, undefined, { ref: false });
    await addNew(systems, folder, timeoutMs).catch(() => {}); // the folder is unreadable right now
  }
}

async function addNew(systems: Systems, folder: Folder, timeoutMs: number): Promise<void> {
  for (const target of await folder.systems(timeoutMs, systems.socketPaths)) systems.addFound(target);
}
