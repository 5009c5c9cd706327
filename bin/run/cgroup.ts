// A cgroup of Linux for the processes of a program: it lists them all, and freezes them at once.

import { mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

export class Cgroup {
  readonly path: string;
  readonly #parent: string;

  private constructor(parent: string) {
    this.#parent = parent;
    this.path = join(parent, `control-run-${process.pid}`);
  }

  /** Creates a cgroup (version 2) below that of this process. Returns null if that is not possible. */
  static create(): Cgroup | null {
    let cgroup: Cgroup | undefined;
    try {
      const [, path = ''] = /^0::(.*)$/m.exec(readFileSync('/proc/self/cgroup', 'utf8')) ?? [];
      const [, mount = ''] = /^\S+ (\S+) cgroup2 /m.exec(readFileSync('/proc/self/mounts', 'utf8')) ?? [];
      cgroup = new Cgroup(join(mount, path));
      mkdirSync(cgroup.path);
      cgroup.spawn(() => {}); // some may create a cgroup, but not enter it
      cgroup.freeze(false);
      return cgroup;
    } catch {
      cgroup?.remove();
      return null;
    }
  }

  /** Enters the cgroup while a child is spawned: so the child cannot start others outside. */
  spawn<T>(spawnChild: () => T): T {
    enter(this.path);
    try {
      return spawnChild();
    } finally {
      enter(this.#parent);
    }
  }

  /** Returns the processes in it, and in those that they have created below. */
  pids(): number[] {
    return [this.path, ...foldersIn(this.path)].flatMap((path) => {
      try {
        return readFileSync(join(path, 'cgroup.procs'), 'latin1').split('\n').filter(Boolean).map(Number);
      } catch {
        return []; // it was removed
      }
    });
  }

  freeze(isFrozen: boolean): void {
    writeFileSync(join(this.path, 'cgroup.freeze'), isFrozen ? '1' : '0');
  }

  /** Removes it if it exists and is empty. */
  remove(): void {
    try {
      rmdirSync(this.path);
    } catch {}
  }
}

function enter(path: string): void {
  writeFileSync(join(path, 'cgroup.procs'), String(process.pid));
}

function foldersIn(path: string): string[] {
  const entries = readdirSync(path, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  return entries.map(({ name }) => join(path, name)).flatMap((folder) => [folder, ...foldersIn(folder)]);
}
