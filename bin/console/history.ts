// The history of the console: one line per command, the newest last.

import { appendFileSync, chmodSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { dirname, isAbsolute, join } from 'node:path';
import { warn } from '../shared/options.ts';

const MAX_LINES = 1000;

/** `$XDG_STATE_HOME/control/history`, by default in `~/.local/state` (XDG Base Directory Specification). */
export function historyPath(): string {
  const folder = process.env['XDG_STATE_HOME'] ?? '';
  return join(isAbsolute(folder) ? folder : join(homedir(), '.local', 'state'), 'control', 'history');
}

/** Several consoles may share the file: each appends its own lines. A file that cannot be used is reported once. */
export class History {
  #path: string | null;

  /** @param path Null keeps no history between runs. */
  constructor(path: string | null) {
    this.#path = path;
  }

  /** Returns the latest lines, the newest first, and shortens a file that has become long. */
  load(): string[] {
    let lines: string[] = [];
    this.#try((path) => {
      mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
      appendFileSync(path, '', { mode: 0o600 });
      chmodSync(path, 0o600);
      const all = readFileSync(path, 'utf8').split('\n').filter((line) => line !== '');
      lines = all.slice(-MAX_LINES);
      if (all.length <= 2 * MAX_LINES) return;
      writeFileSync(`${path}.${process.pid}`, `${lines.join('\n')}\n`, { mode: 0o600 });
      renameSync(`${path}.${process.pid}`, path);
    });
    return lines.reverse();
  }

  add(line: string): void {
    this.#try((path) => appendFileSync(path, `${line}\n`, { mode: 0o600 }));
  }

  #try(use: (path: string) => void): void {
    if (this.#path === null) return;
    try {
      use(this.#path);
    } catch (error) {
      this.#path = null;
      warn(`cannot keep the history: ${(error as Error).message}; --no-history keeps none`);
    }
  }
}
