// GPU memory: NVIDIA's cuda-checkpoint moves the GPU memory of a process to host memory, and back.
//
//            lock             checkpoint
//   running ─────▶ locked ───────────────▶ checkpointed     release(): CUDA calls block
//           ◀─────        ◀───────────────                  restore()
//            unlock            restore
//
// A thread of the process does the work, so the process must not be stopped meanwhile. Processes that share work, as
// with NCCL, can be locked only together, and all must be locked before the first is checkpointed.

import { spawnSync } from 'node:child_process';
import { UsageError } from '../shared/cli.ts';
import { excerpt, MAX_VALUE_LENGTH } from '../shared/text.ts';
import { readThreads, tryRead } from './processes.ts';
import { ShellCommand } from './program.ts';

const TOOL = 'cuda-checkpoint';
const LOCK_MS = 10_000; // for the GPU to complete the submitted work
const REACH_MS = 30_000; // for the tool to reach the driver and the process; usually about 3 s
const COPY_MS = 600_000; // for the memory; interrupting the copy loses the process
const MAX_LOOKS = 8; // at a time
const CANNOT_RELEASE = 'the GPU cannot be released';
const CANNOT_RESTORE = 'the GPU cannot be restored';
const IN_USE = "the GPU's memory is in use";

const ACTIONS = {
  lock: { options: `--timeout ${LOCK_MS}`, limitMs: LOCK_MS + REACH_MS, done: `locked within ${LOCK_MS / 1000} s` },
  checkpoint: { options: '', limitMs: COPY_MS, done: 'checkpointed' },
  restore: { options: '', limitMs: COPY_MS, done: 'restored' },
  unlock: { options: '', limitMs: REACH_MS, done: 'unlocked' },
};

type Action = keyof typeof ACTIONS;

interface Failure {
  pid: number;
  action: Action;
  /** The last line of output of the tool. */
  text: string;
}

export class Gpu {
  readonly #held: Map<number, 'locked' | 'checkpointed'> = new Map(); // processes that are not known to run
  readonly #commands: Set<ShellCommand> = new Set(); // running
  #uses: string[][] = []; // process id, GPU and MiB before the release; empty if unknown
  #isAbandoned = false;

  private constructor() {}

  /** @throws {UsageError} If cuda-checkpoint is missing. */
  static find(): Gpu {
    const { status } = spawnSync('sh', ['-c', `command -v ${TOOL}`]);
    if (status === 0) return new Gpu();
    throw new UsageError(`--release-gpu requires ${TOOL} on the PATH: see https://github.com/NVIDIA/cuda-checkpoint`);
  }

  /** Whether there is something to restore. */
  get isReleased(): boolean {
    return this.#held.size > 0;
  }

  /**
   * Releases the GPU memory of all processes that use CUDA. Not to be called while something is released.
   *
   * @throws {Error} If one of them cannot release it. The others are restored then, if possible.
   */
  async release(pids: readonly number[]): Promise<void> {
    const running = await this.#findRunning(pids);
    let failures = await this.#act('lock', running, 'locked');
    if (failures.length === 0) {
      this.#uses = await this.#query('--query-compute-apps=pid,gpu_uuid,used_memory');
      failures = await this.#act('checkpoint', [...this.#held.keys()], 'checkpointed');
    }
    if (failures.length === 0) failures = await this.#confirm([...this.#held.keys()], 'checkpointed');
    const [failure] = failures;
    if (failure === undefined) return;
    const error = errorOf(failure, /not ready/.test(failure.text) ? 'the GPU is busy' : CANNOT_RELEASE);
    const undone = await this.#undo(failures.map(({ pid }) => pid)).then(() => '', ({ message }) => `; ${message}`);
    throw new Error(`${error.message}${undone}`);
  }

  /** The failed processes come last: asked for their state, the tool may wait for the others. */
  async #undo(failed: readonly number[]): Promise<void> {
    for (const pid of failed) this.#held.delete(pid);
    await this.restore().catch(() => {}); // retried below
    await this.#confirm(failed, 'running');
    await this.restore();
  }

  /**
   * Restores the GPU memory.
   *
   * @throws {Error} If that is not possible, for example while another program uses it. The processes then stay blocked
   *   until a later call succeeds.
   */
  async restore(): Promise<void> {
    for (const pid of this.#held.keys()) if (!hasDriver(pid)) this.#held.delete(pid); // it has ended
    const checkpointed = [...this.#held.keys()].filter((pid) => this.#held.get(pid) === 'checkpointed');
    await this.#checkFree(checkpointed);
    const [failure] = await this.#act('restore', checkpointed, 'locked');
    if (failure !== undefined) throw errorOf(failure, /out of memory/.test(failure.text) ? IN_USE : CANNOT_RESTORE);
    const locked = [...this.#held.keys()];
    const failures = await this.#act('unlock', locked, 'locked'); // until it is confirmed
    const blocked = await this.#confirm(locked, 'running');
    const stuck = failures.find(({ pid }) => this.#held.has(pid)) ?? blocked[0];
    if (stuck !== undefined) throw errorOf(stuck, CANNOT_RESTORE);
  }

  /** Call it once all processes have ended. */
  forget(): void {
    this.#held.clear();
  }

  /** Interrupts a release or restore, because the processes are about to be killed. Later calls of the tool fail. */
  abandon(): void {
    this.#isAbandoned = true;
    for (const command of this.#commands) command.kill();
  }

  /** Runs one action for all processes in parallel. Those for which it succeeds are in the state then. */
  async #act(action: Action, pids: readonly number[], state: 'locked' | 'checkpointed'): Promise<Failure[]> {
    const { options, limitMs } = ACTIONS[action];
    const failures = await Promise.all(pids.map(async (pid): Promise<Failure[]> => {
      const { isDone, text } = await this.#run(`${TOOL} --action ${action} --pid ${pid} ${options}`, limitMs);
      if (isDone) this.#held.set(pid, state);
      else if (hasDriver(pid)) return [{ pid, action, text }];
      else this.#held.delete(pid);
      return [];
    }));
    return failures.flat();
  }

  /** Returns the processes in another state: the tool may report success without effect. */
  async #confirm(pids: readonly number[], wanted: 'running' | 'checkpointed'): Promise<Failure[]> {
    const others: Failure[] = [];
    for (const { pid, isDone, text } of await this.#look(pids)) {
      if (text === 'locked' || text === 'checkpointed') this.#held.set(pid, text);
      const hasEnded = !hasDriver(pid);
      if (text === 'running' || hasEnded) this.#held.delete(pid);
      if (text === wanted || hasEnded) continue;
      const missing = text === 'checkpointed' ? 'restore' : 'unlock';
      const action = wanted === 'running' ? missing : 'checkpoint';
      others.push({ pid, action, text: isDone ? `it is ${text}` : text });
    }
    return others;
  }

  /** Checks first: with driver 580, a process whose restore fails for lack of memory is lost. */
  async #checkFree(pids: readonly number[]): Promise<void> {
    const uses = this.#uses.filter(([pid]) => pids.includes(Number(pid)));
    if (uses.length === 0) return;
    for (const [gpu, free] of await this.#query('--query-gpu=uuid,memory.free')) {
      const needed = uses.reduce((sum, [, one, mebibytes]) => sum + (one === gpu ? Number(mebibytes) || 0 : 0), 0);
      if (needed > Number(free)) throw new Error(`${IN_USE}: ${needed} MiB needed, ${free} MiB free on ${gpu}`);
    }
  }

  /**
   * Returns the processes that use CUDA. A call of the tool takes seconds, so this asks only about processes that have
   * loaded the driver and have CUDA threads: a forked process, such as a DataLoader worker, has none.
   *
   * @throws {Error} If one of them is in an unexpected state.
   */
  async #findRunning(pids: readonly number[]): Promise<number[]> {
    const loaded = pids.filter(hasDriver);
    const likely = loaded.filter((pid) => readThreads(pid, 'comm').some((name) => name.startsWith('cuda')));
    const looks = await this.#look(likely.length > 0 ? likely : loaded);
    for (const { pid, isDone, text } of looks) {
      const isFine = isDone ? /^(running|checkpointed)$/.test(text) : likely.length === 0 || !hasDriver(pid);
      if (!isFine) throw new Error(`${CANNOT_RELEASE}: process ${pid}: ${excerpt(text, MAX_VALUE_LENGTH)}`);
    }
    return looks.filter(({ text }) => text === 'running').map(({ pid }) => pid);
  }

  /** Asks for the states of processes, a few at a time. That fails for a process that does not use CUDA. */
  async #look(pids: readonly number[]): Promise<{ pid: number; isDone: boolean; text: string }[]> {
    if (pids.length === 0) return [];
    const looks = await Promise.all(pids.slice(0, MAX_LOOKS).map(async (pid) => {
      return { pid, ...await this.#run(`${TOOL} --get-state --pid ${pid}`, REACH_MS) };
    }));
    return [...looks, ...await this.#look(pids.slice(MAX_LOOKS))];
  }

  /** Returns the rows of a table; none if nvidia-smi is missing. */
  async #query(query: string): Promise<string[][]> {
    const { isDone, output } = await this.#run(`nvidia-smi ${query} --format=csv,noheader,nounits`, REACH_MS);
    return isDone ? output.split('\n').map((line) => line.split(', ')) : [];
  }

  /** Returns the output and its last line, or why there is none. */
  async #run(line: string, limitMs: number): Promise<{ isDone: boolean; text: string; output: string }> {
    if (this.#isAbandoned) return { isDone: false, text: `${TOOL} was killed`, output: '' };
    const command = new ShellCommand(`exec ${line} 2>&1`, {});
    this.#commands.add(command);
    let late = '';
    const timer = setTimeout(() => {
      late = `${TOOL} did not respond within ${limitMs / 1000} s`;
      command.kill();
    }, limitMs);
    const { end, output, lastLine } = await command.ended;
    clearTimeout(timer);
    this.#commands.delete(command);
    return { isDone: end.exitCode === 0, text: late || lastLine || `${TOOL} ended with ${end.text}`, output };
  }
}

function errorOf({ pid, action, text }: Failure, what: string): Error {
  const { done } = ACTIONS[action];
  return new Error(`${what}: process ${pid} could not be ${done}: ${excerpt(text, MAX_VALUE_LENGTH)}`);
}

/** Whether a process has loaded the driver; false once it has ended. */
function hasDriver(pid: number): boolean {
  return tryRead(`/proc/${pid}/maps`).includes('/libcuda.so');
}
