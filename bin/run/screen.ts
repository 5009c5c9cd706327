// Checks whether a line may be printed on the terminal.

import { spawnSync } from 'node:child_process';
import { isatty } from 'node:tty';

/**
 * Whether stderr is a terminal on which a line does no harm. Editors and other full-screen programs read single keys,
 * so the terminal is then not in canonical mode.
 */
export function mayShow(): boolean {
  if (!isatty(2)) return false;
  const { stdout } = spawnSync('stty', ['-a'], { stdio: [2, 'pipe', 'ignore'], encoding: 'utf8', timeout: 1000 });
  return /(?<!-)\bicanon\b/.test(stdout ?? ''); // null if there is no stty
}
