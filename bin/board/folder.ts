// --dir: adds the live systems of a folder to the board, and those that start later.

import type { Folder } from '../shared/reach/folder.ts';
import type { Systems } from './systems.ts';

const SCAN_MS = 1000;

/** Adds the live systems of a folder, and looks for others every second. */
export async function followFolder(systems: Systems, folder: Folder, timeoutMs: number): Promise<void> {
  try {
    for (const target of await folder.systems(timeoutMs, systems.socketPaths)) systems.addFound(target);
  } finally { // later, a folder may be unreadable for a while
    setTimeout(() => followFolder(systems, folder, timeoutMs).catch(() => {}), SCAN_MS).unref();
  }
}
