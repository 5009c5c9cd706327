// A Linux cgroup for the processes of a program: lists those that have not left it, and freezes them at once.

import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

const ROUNDS = 10; // of moving processes: each may start others meanwhile

export class Cgroup {
  readonly path: string;
  readonly #parent: string;

  /** @param path Of an existing cgroup. */
  constructor(path: string) {
    this.path = path;
    this.#parent = dirname(path);
  }

  /** Creates a cgroup (version 2) below the cgroup of this process. Returns null if that is not possible. */
  static create(): Cgroup | null {
    let cgroup: Cgroup | undefined;
    try {
      const [, path] = /^0::(.*)$/m.exec(readFileSync('/proc/self/cgroup', 'utf8')) ?? [];
      const [, mount] = /^\S+ (\S+) cgroup2 /m.exec(readFileSync('/proc/self/mounts', 'utf8')) ?? [];
      if (path === undefined || mount === undefined) return null;
      removeDead(join(mount, path));
      cgroup = new Cgroup(mkdtempSync(join(mount, path, `control-run-${process.pid}-`)));
      cgroup.spawn(() => {}); // some users may create a cgroup but not enter it
      cgroup.freeze(false);
      return cgroup;
    } catch {
      cgroup?.remove();
      return null;
    }
  }

  /** Spawns a child inside the cgroup, so that it cannot start others outside. */
  spawn<T>(spawnChild: () => T): T {
    mkdirSync(this.path, { recursive: true }); // control-run in another PID namespace may have removed it as dead
    enter(this.path);
    try {
      return spawnChild();
    } finally {
      enter(this.#parent);
    }
  }

  /** Lists the processes in it, and in the cgroups that they have created below. */
  pids(): number[] {
    return foldersFrom(this.path).flatMap((path) => {
      return tryTo(() => readFileSync(join(path, 'cgroup.procs'), 'latin1').split('\n').filter(Boolean).map(Number));
    });
  }

  /** Does nothing if control-run in another PID namespace has removed the cgroup, because all have left it. */
  freeze(isFrozen: boolean): void {
    if (existsSync(this.path)) writeFileSync(join(this.path, 'cgroup.freeze'), isFrozen ? '1' : '0');
  }

  /** Removes it. Processes that are left in it move to the cgroup of this process and keep running. */
  remove(): void {
    for (let round = 0; round < ROUNDS; round += 1) {
      for (const pid of this.pids()) tryTo(() => enter(this.#parent, pid));
    }
    removeFolders(this.path);
  }
}

/** Removes the empty cgroups of control-runs that were killed together with their keepers. */
function removeDead(parent: string): void {
  for (const name of readdirSync(parent)) {
    const [, pid] = /^control-run-(\d+)-\w{6}$/.exec(name) ?? [];
    if (pid === undefined || existsSync(`/proc/${pid}`)) continue; // it may be about to start its program
    const path = join(parent, name);
    tryTo(() => /^populated 0$/m.test(readFileSync(join(path, 'cgroup.events'), 'latin1')) ? removeFolders(path) : []);
  }
}

function removeFolders(path: string): void {
  for (const one of foldersFrom(path).reverse()) tryTo(() => rmdirSync(one));
}

function enter(path: string, pid: number = process.pid): void {
  writeFileSync(join(path, 'cgroup.procs'), String(pid));
}

function foldersFrom(path: string): string[] {
  const entries = tryTo(() => readdirSync(path, { withFileTypes: true })).filter((entry) => entry.isDirectory());
  return [path, ...entries.flatMap(({ name }) => foldersFrom(join(path, name)))];
}

/** Returns nothing if it fails: a process or cgroup may disappear at any time. */
function tryTo<T>(act: () => T[] | void): T[] {
  try {
    return act() ?? [];
  } catch {
    return [];
  }
}
