// The systems of a folder: those that start while the board runs are added to it.

import { setTimeout as sleep } from 'node:timers/promises';
import { findTargets } from '../shared/folder.ts';
import type { Board } from './systems.ts';

const SCAN_MS = 1000;

/** Adds the live systems of a folder, and then those that come, for ever. */
export async function followFolder(board: Board, folder: string, timeoutMs: number): Promise<void> {
  await addNew(board, folder, timeoutMs);
  void keepAdding(board, folder, timeoutMs);
}

async function keepAdding(board: Board, folder: string, timeoutMs: number): Promise<never> {
  for (;;) {
    await sleep(SCAN_MS, undefined, { ref: false });
    await addNew(board, folder, timeoutMs).catch(() => {}); // the folder cannot be read now
  }
}

async function addNew(board: Board, folder: string, timeoutMs: number): Promise<void> {
  for (const target of await findTargets(folder, timeoutMs, board.urls)) board.addFound(target);
}
