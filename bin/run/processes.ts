// The processes of a program: finds, stops, continues and ends them together.

import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { constants } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const MAX_STOP_MS = 10_000; // a system call may take longer
const MAX_STOP_AGAIN_MS = 1000; // of a traced process, whose tracer may keep SIGSTOP from it
const TRACED_MS = 50; // a process that a tracer holds may run on until then; in a debugger, it may stay as it is
const VFORK_MS = 50; // a process that has not stopped by then may be in vfork()
const JOBS_MS = 1000; // then jobs are stopped even if their shell still runs
const MAX_KILL_MS = 5000;
const POLL_MS = 50; // while waiting for all processes to end
const SETTLE_MS = 200; // the helpers of a program may end right after it
const FOREIGN_MS = 1000; // a process of another user may end once the others have ended
const MAX_NAMES = 3; // of processes in a message
const TICKS_PER_SECOND = 100; // of the CPU times in /proc
const SECONDS_PER_PART = [1, 60, 3600, 86_400]; // of `[[days-]hours:]minutes:seconds`, from the right
const MAX_PS_LENGTH = 2 ** 24;

/** A process id, and a start time, which differs for a later process with the same id. */
export interface Listed {
  pid: number;
  startedAt: number; // clock ticks since boot; 0 if unknown
}

export interface Process extends Listed {
  parent: number;
  group: number;
  session: number; // 0 if unknown
  /** One letter, as `ps` shows it: `T` is stopped. */
  state: string;
  /** Includes children it has waited for, but not with ps. 0 if unknown. */
  cpuSeconds: number;
  /** Returns the resident memory in KiB, shared memory included. 0 if unknown. */
  measureMemory(): number;
}

/** The first process of a program. */
interface Main extends Listed {
  hasEnded(): boolean;
}

/**
 * Tells the keeper what to end if control-run is killed: the first process, from which it finds others, and those that
 * are known. An empty list leaves nothing to end.
 */
export type Keep = (listed: readonly Listed[]) => void;

export class Processes {
  readonly #main: Main;
  readonly #mark: string;
  readonly #cgroup: Cgroup | null;
  readonly #keep: Keep;
  readonly #group: number; // of control-run
  readonly #stopped: Set<number> = new Set(); // in this order
  readonly #known: Map<number, number> = new Map(); // ids and start times, since a pause or the end began
  #isStopping = false; // until continue()
  #isReleased = false;

  /**
   * @param mark A variable with its value, `NAME=VALUE`, that only the processes of this program inherit.
   * @param cgroup Contains the processes of the program, except those that have moved, and nothing else.
   * @param group The process group of control-run, which other programs may share.
   * @param known Processes of the program, other than the first.
   */
  constructor(
    main: Main,
    mark: string,
    cgroup: Cgroup | null,
    keep: Keep,
    group: number = OWN_GROUP,
    known: readonly Listed[] = [],
  ) {
    this.#main = main;
    this.#mark = mark;
    this.#cgroup = cgroup;
    this.#keep = keep;
    this.#group = group;
    this.#forgetKnown();
    for (const { pid, startedAt } of known) this.#known.set(pid, startedAt);
  }

  /** Leaves only the first process to the keeper, which finds the others from there. */
  #forgetKnown(): void {
    this.#known.clear();
    this.#keep([this.#main]);
  }

  /** Reports processes to the keeper before a signal: once their parents end, it could no longer find them. */
  #report(processes: readonly Process[]): void {
    const hasFresh = processes.some(({ pid, startedAt }) => this.#known.get(pid) !== startedAt);
    this.#known.clear(); // others have ended
    for (const { pid, startedAt } of processes) this.#known.set(pid, startedAt);
    if (hasFresh) this.#keep([this.#main, ...processes]);
  }

  /** The processes that `stop()` has stopped. */
  get stopped(): number[] {
    return [...this.#stopped];
  }

  /**
   * Lists the running processes: those in the cgroup if there is one, the members of the session, the processes that
   * inherited the mark, and all their descendants, and members of their sessions. A process escapes if it leaves the
   * cgroup and the session, changes or hides its environment and loses its parent before a pause or the end begins. The
   * main process never escapes.
   */
  list(): Process[] {
    return this.#search().filter(({ state }) => !state.startsWith('Z') && !state.startsWith('X')); // ended
  }

  #search(): Process[] {
    const main = this.#main;
    const inside = new Set(this.#cgroup?.pids());
    const candidates = listAll().filter(({ pid, startedAt }) => {
      return pid !== process.pid && (startedAt >= main.startedAt || inside.has(pid));
    });
    const isReused = candidates.some(({ pid, startedAt }) => pid === main.pid && startedAt !== main.startedAt);
    const leader = isReused ? null : main.pid; // another process or group may have this id by now
    const isMember = (one: Process): boolean => inside.has(one.pid) || this.#isMember(one, leader);
    const members = new Map(candidates.filter(isMember).map((one) => [one.pid, one]));
    for (const parent of members.keys()) { // includes the ones the loop adds
      for (const one of candidates) if (one.parent === parent || one.session === parent) members.set(one.pid, one);
    }
    if (!members.has(main.pid) && !main.hasEnded()) members.set(main.pid, { ...UNKNOWN, pid: main.pid });
    return [...members.values()];
  }

  #isMember({ pid, group, session, startedAt }: Process, leader: number | null): boolean {
    if (pid === leader || group === leader || session === leader || this.#known.get(pid) === startedAt) return true;
    return HAS_PROC && tryRead(`/proc/${pid}/environ`).split('\0').includes(this.#mark);
  }

  /**
   * Stops all processes, including any that start meanwhile, unless `continue()` is called. A process that was stopped
   * before stays stopped after `continue()`.
   *
   * @throws {Error} If a process belongs to another user or does not stop in time; the others then continue, unless an
   *   earlier call has stopped them.
   */
  async stop(): Promise<void> {
    this.#isStopping = true;
    const isAgain = this.#stopped.size > 0;
    const running = await this.#stopAll(isAgain);
    if (running.length === 0) return;
    this.#cgroup?.freeze(false);
    if (!isAgain) this.continue();
    const foreign = running.find(isForeign);
    if (foreign !== undefined) throw new Error(`${labelOf(foreign)} belongs to another user and cannot be stopped`);
    const tracers = running.map(({ pid }) => tracerOf(pid)).filter((pid) => pid > 0);
    const why = tracers.length === 0 ? '' : `, traced by ${labelOf({ pid: tracers[0] as number })}`;
    const names = running.slice(0, MAX_NAMES).map(({ pid, state }) => `process ${pid} (state ${state}${why})`);
    throw new Error(`not stopped ${isAgain ? 'again' : `within ${MAX_STOP_MS / 1000} s`}: ${names.join(', ')}`);
  }

  /** Returns the processes that did not stop in time; none after `continue()`. */
  async #stopAll(isAgain: boolean): Promise<readonly Process[]> {
    this.#cgroup?.freeze(true); // so that no process starts another before it is stopped
    let processes = this.list();
    const start = performance.now(); // that look may take longer than a limit
    const isBefore = ({ pid, state }: Process): boolean => state.startsWith('T') && !this.#stopped.has(pid);
    const before = new Set(processes.filter(isBefore).map(({ pid }) => pid));
    // A process may start while list() looks, unless all others were stopped before: hence two looks in a row.
    for (let looks = 0; ;) {
      const elapsed = performance.now() - start;
      const running = processes.filter(({ state }) => !(elapsed > TRACED_MS ? /^t/i : /^T/).test(state));
      for (const { pid } of running) before.delete(pid);
      const jobs = elapsed > JOBS_MS ? new Set() : groupsOfJobs(running);
      this.#report(processes);
      for (const { pid, group } of processes) if (!before.has(pid) && !jobs.has(group)) this.#stopped.add(pid);
      looks = running.length === 0 ? looks + 1 : 0;
      const limitMs = isAgain && running.some(({ pid }) => tracerOf(pid) > 0) ? MAX_STOP_AGAIN_MS : MAX_STOP_MS;
      if (looks === 2 || (running.length > 0 && elapsed > limitMs) || running.some(isForeign)) return running;
      if (elapsed > VFORK_MS) letExec(processes.filter(({ pid }) => !before.has(pid)));
      this.#send(running.filter(({ group }) => !jobs.has(group)), 'SIGSTOP');
      this.#cgroup?.freeze(false);
      await sleep(elapsed < VFORK_MS ? 1 : 10);
      if (!this.#isStopping) return [];
      processes = this.list();
    }
  }

  /** Whether those that `stop()` found last are still stopped. */
  areStopped(): boolean {
    if (!HAS_PROC) return this.list().every(isStopped);
    return [...this.#known].every(([pid, startedAt]) => {
      return readProcess(pid).some((one) => one.startedAt === startedAt && isStopped(one));
    });
  }

  /** Whether all members of control-run's process group are stopped, or the main process alone. */
  haveStopped(who: 'group' | 'main'): boolean {
    const isMeant = ({ pid, group }: Process): boolean => {
      return who === 'main' ? pid === this.#main.pid : group === this.#group;
    };
    const ones = this.list().filter(isMeant);
    return ones.every(isStopped) && (who === 'group' || ones.length > 0);
  }

  /** Continues what `stop()` has stopped: jobs before their shell, so that it does not notice. */
  continue(): void {
    this.#isStopping = false;
    for (const pid of [...this.#stopped].reverse()) trySend(pid, 'SIGCONT');
    this.#stopped.clear();
    if (this.#known.size > 0) this.#forgetKnown();
  }

  /** Call it when the program has ended by itself: its background processes keep running. */
  release(): void {
    this.continue();
    this.#keep([]);
    this.#isReleased = true;
  }

  /** Lists the processes that keep running after `release()`. */
  async listReleased(): Promise<Process[]> {
    if (!this.#isReleased || this.list().length === 0) return [];
    await sleep(SETTLE_MS);
    return this.list();
  }

  /** Sends a signal to all processes. A stopped process takes it when it continues. */
  signal(name: NodeJS.Signals): void {
    this.#send(this.list(), name);
  }

  /** Signals whole groups, so that all members stop at once, except the group of control-run. */
  #send(processes: readonly Process[], name: NodeJS.Signals): void {
    const targets = processes.map(({ pid, group }) => (group === this.#group ? pid : -group));
    for (const target of new Set(targets)) trySend(target, name);
  }

  /**
   * Ends all processes: SIGTERM, then SIGKILL for the rest.
   *
   * @returns How many had to be killed, and the processes that cannot be ended, such as those of another user.
   */
  async end(graceMs: number): Promise<{ killed: number; left: Process[] }> {
    this.#isStopping = false;
    this.#report(this.list());
    this.signal('SIGTERM');
    this.signal('SIGCONT'); // also to processes that were stopped before the pause
    this.#stopped.clear();
    let left = await this.#waitForEnd(graceMs);
    const killed = left.filter((one) => !isForeign(one)).length;
    for (const end = performance.now() + MAX_KILL_MS; !left.every(isForeign) && performance.now() < end;) {
      this.signal('SIGKILL');
      left = await this.#waitForEnd(POLL_MS);
    }
    if (left.length === 0) this.#keep([]);
    return { killed, left };
  }

  /** Returns the processes that have not ended in time. */
  async #waitForEnd(timeoutMs: number): Promise<Process[]> {
    for (const start = performance.now(); ;) {
      const seen = this.list();
      const left = seen.length > 0 ? seen : this.list(); // the last ones may have started others during the look
      this.#report(left);
      const limitMs = left.every(isForeign) ? Math.min(timeoutMs, FOREIGN_MS) : timeoutMs;
      if (left.length === 0 || performance.now() - start >= limitMs) return left;
      await sleep(POLL_MS);
    }
  }

  /**
   * Returns the process that has a handler for a signal: of several, one whose parent has none. Returns null if there
   * is none. Without /proc, this is unknown, and it returns the main process if there is no other.
   *
   * @throws {Error} If there are others: the signal could kill a wrapper, such as a shell.
   */
  findHandler(name: NodeJS.Signals): number | null {
    const processes = this.list();
    if (!HAS_PROC) {
      if (processes.every(({ pid }) => pid === this.#main.pid)) return this.#main.pid;
      throw new Error(`it is unknown which of ${processes.length} processes handles ${name}: use --save-command`);
    }
    const handlers = processes.filter(({ pid }) => handles(pid, constants.signals[name]));
    const pids = handlers.map(({ pid }) => pid);
    return handlers.find(({ parent }) => !pids.includes(parent))?.pid ?? null;
  }
}

function trySend(target: number, name: NodeJS.Signals): void {
  tryTo(() => void process.kill(target, name)); // it has ended, or belongs to another user
}

/** Whether this process may not signal the other one. */
function isForeign({ pid }: Process): boolean {
  try {
    return !process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

/** `process 4711 (python3)` */
export function labelOf({ pid }: Pick<Process, 'pid'>): string {
  const name = tryRead(`/proc/${pid}/comm`).trimEnd();
  return `process ${pid}${name && ` (${name})`}`;
}

/**
 * Returns the groups with a process whose parent runs in another group. A parent that is a shell must stop first:
 * otherwise it notices that its job was stopped, even if both get SIGSTOP at once.
 */
function groupsOfJobs(running: readonly Process[]): Set<number> {
  const groups = new Map(running.map(({ pid, group }) => [pid, group]));
  const jobs = running.filter(({ parent, group }) => (groups.get(parent) ?? group) !== group);
  return new Set(jobs.map(({ group }) => group));
}

/** After vfork(), a process cannot stop before its child calls exec() or ends; a stopped child does neither. */
function letExec(processes: readonly Process[]): void {
  const waiting = new Set(processes.filter(({ state }) => state === 'D').map(({ pid }) => pid));
  for (const one of processes) if (waiting.has(one.parent) && isStopped(one)) trySend(one.pid, 'SIGCONT');
}

function isStopped({ state }: Process): boolean {
  return /^t/i.test(state); // t: held by a tracer, such as strace or a debugger
}

function tracerOf(pid: number): number {
  return Number(/^TracerPid:\s+(\d+)/m.exec(tryRead(`/proc/${pid}/status`))?.[1] ?? 0);
}

// ───── /proc and ps ──────────────────────────────────────────────────────────────────────────────────────────────

const HAS_PROC = process.platform === 'linux';
const OWN_TABLE = HAS_PROC ? readProcess(process.pid) : listByPs();
export const OWN_GROUP: number = OWN_TABLE.find(({ pid }) => pid === process.pid)?.group ?? 0;

function listAll(): Process[] {
  return HAS_PROC ? readdirSync('/proc').filter((name) => /^\d/.test(name)).flatMap(readProcess) : listByPs();
}

/** Returns when a process started; 0 if unknown. */
export function startOf(pid: number): number {
  return readProcess(pid)[0]?.startedAt ?? 0;
}

/** Returns nothing if the process has ended. */
function readProcess(pid: number | string): Process[] {
  const stat = tryRead(`/proc/${pid}/stat`); // see proc(5); the name may contain spaces and parentheses
  if (stat === '') return [];
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  const [parent = 0, group = 0, session = 0] = fields.slice(1, 4).map(Number);
  const mayOthersRun = /[TtZ]/.test(fields[0] as string) && Number(fields[17]) > 1; // other threads
  const state = mayOthersRun ? stateOfThreads(pid) : fields[0] as string;
  const ticks = fields.slice(11, 15).reduce((sum, field) => sum + Number(field), 0);
  return [{
    pid: Number(pid), parent, group, session, state, startedAt: Number(fields[19]),
    cpuSeconds: ticks / TICKS_PER_SECOND,
    measureMemory: () => Number(/^VmRSS:\s+(\d+)/m.exec(tryRead(`/proc/${pid}/status`))?.[1] ?? 0),
  }];
}

/** Returns the state of a running thread, or else of a traced one, or else of a stopped one. */
function stateOfThreads(pid: number | string): string {
  const stats = readThreads(pid, 'stat');
  const states = stats.map((stat) => stat.charAt(stat.lastIndexOf(')') + 2)).filter((state) => /[^ZX]/.test(state));
  return states.find((state) => /[^Tt]/.test(state)) ?? states.find((state) => state === 't') ?? states[0] ?? 'Z';
}

/** Returns a file of each thread; nothing if the process has ended. */
function readThreads(pid: number | string, file: string): string[] {
  return tryTo(() => readdirSync(`/proc/${pid}/task`).map((thread) => tryRead(`/proc/${pid}/task/${thread}/${file}`)));
}

/** For a process of another user that /proc hides (`hidepid`). */
const UNKNOWN: Omit<Process, 'pid'> = {
  parent: 0, group: OWN_GROUP, session: 0, state: '?', startedAt: 0, cpuSeconds: 0, measureMemory: () => 0,
};

/** For macOS and other systems without /proc. */
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

/** Whether a process has a handler for a signal. False without /proc. */
export function handles(pid: number, signal: number): boolean {
  const caught = /^SigCgt:\s+([0-9a-f]+)/m.exec(tryRead(`/proc/${pid}/status`))?.[1] ?? '0';
  return ((BigInt(`0x${caught}`) >> BigInt(signal - 1)) & 1n) === 1n;
}

/** Returns an empty text if the process has ended or belongs to another user. */
export function tryRead(path: string): string {
  return tryTo(() => [readFileSync(path, 'latin1')])[0] ?? '';
}

// ───── The cgroup ────────────────────────────────────────────────────────────────────────────────────────────────
// A Linux cgroup lists the processes that have not left it, and freezes them at once.

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
export function tryTo<T>(act: () => T[] | void): T[] {
  try {
    return act() ?? [];
  } catch {
    return [];
  }
}
