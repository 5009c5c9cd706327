// The processes of a program: which they are, and how they are stopped, continued and ended together.

import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { constants } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Cgroup } from './cgroup.ts';
import type { Keeper } from './keeper.ts';

const MAX_STOP_MS = 10_000; // a process may be in a system call for longer
const VFORK_MS = 50; // a process that has not stopped by then may be in vfork()
const JOBS_MS = 1000; // and may keep its jobs from being stopped
const MAX_KILL_MS = 5000;
const POLL_MS = 50; // of the wait for the end of all processes
const FOREIGN_MS = 1000; // a process of another user may end by itself once the others have
const MAX_NAMES = 3; // of processes in a message
const TICKS_PER_SECOND = 100; // of the CPU times in /proc
const SECONDS_PER_PART = [1, 60, 3600, 86_400]; // of `[[days-]hours:]minutes:seconds`, from the right
const MAX_PS_LENGTH = 2 ** 24;

export interface Process {
  pid: number;
  parent: number;
  group: number;
  session: number; // 0 if unknown
  /** One letter, as `ps` shows it: `T` is stopped. */
  state: string;
  startedAt: number; // clock ticks since boot; 0 if unknown
  /** Also of the children that it has waited for; ps does not tell these. */
  cpuSeconds: number;
  /** Returns the resident memory in KiB, including what it shares with others. */
  measureMemory(): number;
}

export class Processes {
  readonly #main: number;
  readonly #mark: string;
  readonly #cgroup: Cgroup | null;
  readonly #keeper: Keeper;
  readonly #startedAt: number;
  readonly #stopped: Set<number> = new Set(); // in this order
  readonly #known: Map<number, number> = new Map(); // since a pause or the end began: ids, and when they started
  #isStopping = false; // until continue()

  /**
   * @param main The first process of the program.
   * @param mark A variable with its value, `NAME=VALUE`, that only the environment of this program has.
   * @param cgroup Contains all processes of the program, and nothing else.
   * @param keeper Ends them if control-run is killed.
   */
  constructor(main: number, mark: string, cgroup: Cgroup | null, keeper: Keeper) {
    this.#main = main;
    this.#mark = mark;
    this.#cgroup = cgroup;
    this.#keeper = keeper;
    this.#startedAt = readProcess(main)[0]?.startedAt ?? 0;
    this.#forgetKnown();
  }

  /** Leaves the keeper the first process, from which it finds the others that run. */
  #forgetKnown(): void {
    this.#known.clear();
    this.#keeper.watch({ pid: this.#main, startedAt: this.#startedAt });
  }

  /** Reports processes to the keeper, before a signal, which it would no longer find once their parents have ended. */
  #report(processes: readonly Process[]): void {
    const fresh = processes.filter(({ pid, startedAt }) => this.#known.get(pid) !== startedAt);
    this.#keeper.add(fresh.filter((one) => !this.#isMember(one, this.#main)));
    for (const { pid, startedAt } of fresh) this.#known.set(pid, startedAt);
  }

  /** What `stop()` has stopped. */
  get stopped(): number[] {
    return [...this.#stopped];
  }

  /**
   * Lists the processes that run: the contents of the cgroup if there is one. Otherwise the members of the session, the
   * processes that inherited the mark, and the descendants of all these. A process that escapes has left the session,
   * has changed its environment and was left by its parent before a pause or the end began.
   */
  list(): Process[] {
    const members = this.#cgroup === null ? this.#search() : this.#cgroup.pids().flatMap(readProcess);
    return members.filter(({ state }) => !state.startsWith('Z') && !state.startsWith('X')); // it has ended
  }

  #search(): Process[] {
    if (IS_WINDOWS) return listAlone(this.#main);
    const younger = listAll().filter(({ pid, startedAt }) => startedAt >= this.#startedAt && pid !== process.pid);
    const isReused = younger.some(({ pid, startedAt }) => pid === this.#main && startedAt !== this.#startedAt);
    const leader = isReused ? null : this.#main; // the id is another's now, also as that of a group
    const members = new Map(younger.filter((one) => this.#isMember(one, leader)).map((one) => [one.pid, one]));
    for (const parent of members.keys()) { // includes those that the loop adds
      for (const one of younger) if (one.parent === parent) members.set(one.pid, one);
    }
    return [...members.values()];
  }

  #isMember({ pid, group, session, startedAt }: Process, leader: number | null): boolean {
    if (pid === leader || group === leader || session === leader) return true;
    return this.#known.get(pid) === startedAt || hasVariable(pid, this.#mark);
  }

  /**
   * Stops all processes, including those that start meanwhile, unless `continue()` is called. Those that were stopped
   * before stay so after `continue()`.
   *
   * @throws {Error} If one belongs to another user, or does not stop within 10 s; the others are continued then.
   */
  async stop(): Promise<void> {
    if (IS_WINDOWS) throw new Error('Windows has no way to stop a process');
    this.#isStopping = true;
    const running = await this.#stopAll();
    if (running.length === 0) return;
    this.#cgroup?.freeze(false);
    this.continue();
    const foreign = running.find(isForeign);
    if (foreign !== undefined) throw new Error(`${labelOf(foreign)} belongs to another user and cannot be stopped`);
    const names = running.slice(0, MAX_NAMES).map(({ pid, state }) => `process ${pid} (state ${state})`);
    throw new Error(`not stopped within ${MAX_STOP_MS / 1000} s: ${names.join(', ')}`);
  }

  /** Returns those that did not stop in time; none after `continue()`. */
  async #stopAll(): Promise<readonly Process[]> {
    const start = performance.now();
    this.#cgroup?.freeze(true); // so that none starts another before it is stopped
    let processes = this.list();
    const before = new Set(processes.filter(isStopped).map(({ pid }) => pid).filter((pid) => !this.#stopped.has(pid)));
    // A process may have started after a look began, but not if all the others had stopped before: hence a second look.
    for (let looks = 0; ;) {
      const elapsed = performance.now() - start;
      const running = processes.filter((one) => !isStopped(one));
      const jobs = elapsed > JOBS_MS ? new Set() : groupsOfJobs(running);
      this.#report(processes);
      for (const { pid, group } of processes) if (!before.has(pid) && !jobs.has(group)) this.#stopped.add(pid);
      looks = running.length === 0 ? looks + 1 : 0;
      if (looks === 2 || elapsed > MAX_STOP_MS || running.some(isForeign)) return running;
      if (elapsed > VFORK_MS) letExec(processes.filter(({ pid }) => !before.has(pid)));
      send(running.filter(({ group }) => !jobs.has(group)), 'SIGSTOP');
      this.#cgroup?.freeze(false);
      await sleep(elapsed < VFORK_MS ? 1 : 10);
      if (!this.#isStopping) return [];
      processes = this.list();
    }
  }

  /** Whether all that are in the process group of control-run are stopped, or the main process alone. */
  haveStopped(who: 'group' | 'main'): boolean {
    const ones = this.list().filter(({ pid, group }) => (who === 'main' ? pid === this.#main : group === OWN_GROUP));
    return ones.every(isStopped) && (who === 'group' || ones.length > 0);
  }

  /** Continues what `stop()` has stopped: jobs before their shell, which does not notice that they were stopped. */
  continue(): void {
    this.#isStopping = false;
    for (const pid of [...this.#stopped].reverse()) trySend(pid, 'SIGCONT');
    this.#stopped.clear();
    if (this.#known.size > 0) this.#forgetKnown();
  }

  /** The program has ended by itself: what it leaves behind runs on. */
  release(): void {
    this.continue();
    this.#keeper.forget();
  }

  /** Sends a signal to all processes. A stopped process takes it when it continues. */
  signal(name: NodeJS.Signals): void {
    send(this.list(), name);
  }

  /**
   * Ends all processes: SIGTERM, then SIGKILL for those that are left.
   *
   * @returns How many had to be killed, and those that cannot be ended, such as the processes of another user.
   */
  async end(graceMs: number): Promise<{ killed: number; left: Process[] }> {
    this.#isStopping = false;
    this.#report(this.list());
    this.signal('SIGTERM');
    this.signal('SIGCONT'); // also to what was stopped before
    this.#stopped.clear();
    let left = await this.#waitForEnd(graceMs);
    const killed = left.filter((one) => !isForeign(one)).length;
    for (const end = performance.now() + MAX_KILL_MS; !left.every(isForeign) && performance.now() < end;) {
      this.signal('SIGKILL');
      left = await this.#waitForEnd(POLL_MS);
    }
    if (left.length === 0) this.#keeper.forget();
    return { killed, left };
  }

  /** Returns those that have not ended in time. */
  async #waitForEnd(timeoutMs: number): Promise<Process[]> {
    for (const start = performance.now(); ;) {
      const left = this.list();
      this.#report(left);
      const limitMs = left.every(isForeign) ? Math.min(timeoutMs, FOREIGN_MS) : timeoutMs;
      if (left.length === 0 || performance.now() - start >= limitMs) return left;
      await sleep(POLL_MS);
    }
  }

  /**
   * Returns the process that handles a signal, instead of being ended by it: of several, one whose parent does not.
   * Null if there is none. Without /proc, nobody can tell, and it is the main process.
   */
  findHandler(name: NodeJS.Signals): number | null {
    if (!HAS_PROC) return this.#main;
    const handlers = this.list().filter(({ pid }) => handles(pid, name));
    const pids = handlers.map(({ pid }) => pid);
    return handlers.find(({ parent }) => !pids.includes(parent))?.pid ?? null;
  }
}

/** A group gets one signal, so that all of it stops at once, unless this process is in it. */
function send(processes: readonly Process[], name: NodeJS.Signals): void {
  const targets = processes.map(({ pid, group }) => (group === OWN_GROUP ? pid : -group));
  for (const target of new Set(targets)) trySend(target, name);
}

function trySend(target: number, name: NodeJS.Signals): void {
  try {
    process.kill(target, name);
  } catch {} // it has ended, or belongs to another user
}

/** Whether this process may not signal it. */
function isForeign({ pid }: Process): boolean {
  try {
    return !process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

/** `process 4711 (python3)` */
export function labelOf({ pid }: Process): string {
  const name = tryRead(`/proc/${pid}/comm`).trimEnd();
  return `process ${pid}${name && ` (${name})`}`;
}

/**
 * Returns the groups with a process whose parent runs in another group. If that is a shell, it must stop first: it
 * would notice that its job was stopped, even if SIGSTOP was sent to both.
 */
function groupsOfJobs(running: readonly Process[]): Set<number> {
  const groups = new Map(running.map(({ pid, group }) => [pid, group]));
  const jobs = running.filter(({ parent, group }) => (groups.get(parent) ?? group) !== group);
  return new Set(jobs.map(({ group }) => group));
}

/** A process that called vfork() cannot stop before its child calls exec() or ends; a stopped child does neither. */
function letExec(processes: readonly Process[]): void {
  const waiting = new Set(processes.filter(({ state }) => state === 'D').map(({ pid }) => pid));
  for (const one of processes) if (waiting.has(one.parent) && isStopped(one)) trySend(one.pid, 'SIGCONT');
}

function isStopped({ state }: Process): boolean {
  return /^t/i.test(state); // t: by a debugger
}

// ───── /proc and ps ──────────────────────────────────────────────────────────────────────────────────────────────

const HAS_PROC = process.platform === 'linux';
const IS_WINDOWS = process.platform === 'win32';
const OWN_GROUP = (HAS_PROC ? readProcess(process.pid) : listByPs()).find(({ pid }) => pid === process.pid)?.group ?? 0;

function listAll(): Process[] {
  return HAS_PROC ? readdirSync('/proc').filter((name) => /^\d/.test(name)).flatMap(readProcess) : listByPs();
}

/** Returns nothing if the process has ended. */
function readProcess(pid: number | string): Process[] {
  const stat = tryRead(`/proc/${pid}/stat`); // see proc(5); the name of the program may contain spaces and parentheses
  if (stat === '') return [];
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  const [parent = 0, group = 0, session = 0] = fields.slice(1, 4).map(Number);
  const isFirstThreadAtRest = /[TtZ]/.test(fields[0] as string) && Number(fields[17]) > 1; // others may run
  const state = isFirstThreadAtRest ? stateOfThreads(pid) : fields[0] as string;
  const ticks = fields.slice(11, 15).reduce((sum, field) => sum + Number(field), 0);
  return [{
    pid: Number(pid), parent, group, session, state, startedAt: Number(fields[19]),
    cpuSeconds: ticks / TICKS_PER_SECOND,
    measureMemory: () => Number(/^VmRSS:\s+(\d+)/m.exec(tryRead(`/proc/${pid}/status`))?.[1] ?? 0),
  }];
}

/** Returns the state of a thread that runs, or else of one that is stopped. */
function stateOfThreads(pid: number | string): string {
  try {
    const stats = readdirSync(`/proc/${pid}/task`).map((thread) => tryRead(`/proc/${pid}/task/${thread}/stat`));
    const states = stats.map((stat) => stat.charAt(stat.lastIndexOf(')') + 2)).filter((state) => /[^ZX]/.test(state));
    return states.find((state) => /[^Tt]/.test(state)) ?? states[0] ?? 'Z';
  } catch {
    return 'Z'; // all have ended
  }
}

/** Where there is neither /proc nor ps. */
function listAlone(pid: number): Process[] {
  try {
    process.kill(pid, 0);
    const unknown = { parent: 0, session: 0, state: '?', startedAt: 0, cpuSeconds: 0, measureMemory: () => 0 };
    return [{ pid, group: OWN_GROUP, ...unknown }];
  } catch {
    return [];
  }
}

/** For macOS and others. */
export function listByPs(): Process[] {
  const columns = ['pid', 'ppid', 'pgid', 'state', 'time', 'rss'].flatMap((name) => ['-o', `${name}=`]);
  const { stdout } = spawnSync('ps', ['-A', ...columns], { encoding: 'utf8', maxBuffer: MAX_PS_LENGTH });
  return (stdout ?? '').split('\n').filter((line) => line !== '').map((line) => {
    const [pid, parent, group, state = '', time = '', memory] = line.trim().split(/\s+/);
    const cpuSeconds = time.split(/[-:]/).map(Number).reverse()
      .reduce((sum, part, index) => sum + part * (SECONDS_PER_PART[index] ?? 0), 0);
    return {
      pid: Number(pid), parent: Number(parent), group: Number(group), session: 0, state, startedAt: 0, cpuSeconds,
      measureMemory: () => Number(memory),
    };
  });
}

function hasVariable(pid: number, variable: string): boolean {
  return HAS_PROC && tryRead(`/proc/${pid}/environ`).split('\0').includes(variable);
}

function handles(pid: number, name: NodeJS.Signals): boolean {
  const caught = /^SigCgt:\s+([0-9a-f]+)/m.exec(tryRead(`/proc/${pid}/status`))?.[1] ?? '0';
  return ((BigInt(`0x${caught}`) >> BigInt(constants.signals[name] - 1)) & 1n) === 1n;
}

/** Returns an empty text if the process has ended, or belongs to another user. */
function tryRead(path: string): string {
  try {
    return readFileSync(path, 'latin1');
  } catch {
    return '';
  }
}
