// Whether a line may be printed on the terminal.

import { spawnSync } from 'node:child_process';
import { isatty } from 'node:tty';

/**
 * Whether a line on stderr can be read and does no harm: it is a terminal, and no program owns its screen. Such a
 * program reads single keys: the terminal is not in canonical mode then.
 */
export function mayShow(): boolean {
  if (!isatty(2)) return false;
  const { stdout } = spawnSync('stty', ['-a'], { stdio: [2, 'pipe', 'ignore'], encoding: 'utf8', timeout: 1000 });
  return /(?<!-)\bicanon\b/.test(stdout ?? ''); // null if there is no stty
}
