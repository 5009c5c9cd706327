// GPU memory: NVIDIA's cuda-checkpoint moves the GPU memory of a process to host memory, and back.
//
//            lock             checkpoint
//   running ─────▶ locked ───────────────▶ checkpointed     release(): CUDA calls block
//           ◀─────        ◀───────────────                  restore()
//            unlock            restore
//
// A thread of the process does the work, so the process must not be stopped meanwhile. Processes that share work, as
// with NCCL, can be locked only together, and all must be locked before the first is checkpointed.

import { execFile, spawnSync } from 'node:child_process';
import { readdir, readFile } from 'node:fs/promises';
import { promisify } from 'node:util';
import { UsageError } from '../shared/line/options.ts';
import { excerpt, MAX_VALUE_LENGTH } from '../shared/words/text.ts';
import { ShellCommand } from './shell.ts';

const TOOL = 'cuda-checkpoint';
const LOCK_MS = 10_000; // for the GPU to complete the submitted work
const REACH_MS = 30_000; // for the tool to reach the driver and the process; usually about 3 s
const COPY_MS = 600_000; // for the memory; interrupting the copy loses the process
const MAX_LOOKS = 8; // at a time
const BUSY = /not ready/;
const FULL = /out of memory/;
const IN_USE = "the GPU's memory is in use";

type Action = 'lock' | 'checkpoint' | 'restore' | 'unlock';

const LIMITS_MS: Record<Action, number> = {
  lock: LOCK_MS + REACH_MS, checkpoint: COPY_MS, restore: COPY_MS, unlock: REACH_MS,
};
const DONE: Record<Action, string> = {
  lock: `locked within ${LOCK_MS / 1000} s`, checkpoint: 'checkpointed', restore: 'restored', unlock: 'unlocked',
};

interface Failure {
  pid: number;
  action: Action;
  /** The last line of output of the tool. */
  text: string;
}

/** The memory of a process on one GPU. */
interface Use {
  pid: number;
  gpu: string;
  mebibytes: number;
}

export class Gpu {
  readonly #tool: Tool = new Tool();
  readonly #locked: Set<number> = new Set();
  readonly #checkpointed: Set<number> = new Set();
  #uses: readonly Use[] = []; // by the checkpointed processes; empty if unknown

  private constructor() {}

  /** @throws {UsageError} If cuda-checkpoint is missing. */
  static find(): Gpu {
    const { status } = spawnSync('sh', ['-c', `command -v ${TOOL}`]);
    if (status === 0) return new Gpu();
    throw new UsageError(`--release-gpu requires ${TOOL} on the PATH: see https://github.com/NVIDIA/cuda-checkpoint`);
  }

  /** Whether there is something to restore. */
  get isReleased(): boolean {
    return this.#locked.size + this.#checkpointed.size > 0;
  }

  /**
   * Releases the GPU memory of all processes that use CUDA.
   *
   * @throws {Error} If one of them cannot release it. The others are restored then, if possible.
   */
  async release(pids: readonly number[]): Promise<void> {
    if (this.isReleased) await this.restore(); // an earlier release could not be undone
    const running = await findRunning(this.#tool, pids);
    const failures = await this.#act('lock', running, this.#locked);
    if (failures.length === 0) {
      this.#uses = await this.#tool.listUses(running);
      failures.push(...await this.#act('checkpoint', [...this.#locked], this.#checkpointed));
    }
    if (failures.length === 0) failures.push(...await this.#findUnreleased());
    const [failure] = failures;
    if (failure === undefined) return;
    const text = errorOf(failure, BUSY.test(failure.text) ? 'the GPU is busy' : 'the GPU cannot be released');
    const undone = await this.#undo(failures).then(() => '', (error: Error) => `; ${error.message}`);
    throw new Error(`${text}${undone}`);
  }

  /** The tool may report success without effect, so only the state counts. */
  async #findUnreleased(): Promise<Failure[]> {
    const failures: Failure[] = [];
    for await (const { pid, isDone, text } of this.#tool.lookAt([...this.#checkpointed])) {
      if (isDone && text === 'checkpointed') continue;
      if (await hasDriver(pid)) failures.push({ pid, action: 'checkpoint', text: isDone ? `it is ${text}` : text });
      else this.#forget(pid);
    }
    return failures;
  }

  /** The failed processes come last: asked for their state, the tool may wait for the others. */
  async #undo(failures: readonly Failure[]): Promise<void> {
    for (const { pid } of failures) this.#forget(pid);
    await this.restore().catch(() => {}); // retried below
    for (const { pid } of failures) {
      const { isDone, text } = await this.#tool.look(pid);
      if (isDone && text === 'locked') this.#locked.add(pid);
      if (isDone && text === 'checkpointed') this.#checkpointed.add(pid);
    }
    await this.restore();
  }

  /**
   * Restores the GPU memory.
   *
   * @throws {Error} If that is not possible, for example while another program uses it. The processes then stay blocked
   *   until a later call succeeds.
   */
  async restore(): Promise<void> {
    await this.#forgetEnded();
    await this.#checkFree();
    const [failure] = await this.#act('restore', [...this.#checkpointed], this.#locked);
    if (failure !== undefined) {
      throw new Error(errorOf(failure, FULL.test(failure.text) ? IN_USE : 'the GPU cannot be restored'));
    }
    const unlocked = [...this.#locked];
    const [stuck] = await this.#findBlocked(unlocked, await this.#act('unlock', unlocked, null));
    if (stuck !== undefined) throw new Error(errorOf(stuck, 'the GPU cannot be restored'));
  }

  /** Also here, only the state counts. A later call continues from there. */
  async #findBlocked(pids: readonly number[], failures: readonly Failure[]): Promise<Failure[]> {
    const blocked: Failure[] = [];
    for await (const { pid, isDone, text } of this.#tool.lookAt(pids)) {
      this.#forget(pid);
      if ((isDone && text === 'running') || !await hasDriver(pid)) continue;
      const isCheckpointed = isDone && text === 'checkpointed';
      (isCheckpointed ? this.#checkpointed : this.#locked).add(pid);
      const action = isCheckpointed ? 'restore' : 'unlock';
      blocked.push(failures.find((one) => one.pid === pid) ?? { pid, action, text: isDone ? `it is ${text}` : text });
    }
    return blocked;
  }

  /** Call it once all processes have ended. */
  forget(): void {
    this.#locked.clear();
    this.#checkpointed.clear();
  }

  /** Interrupts a release or restore, because the processes are about to be killed. */
  abandon(): void {
    this.#tool.kill();
  }

  #forget(pid: number): void {
    this.#locked.delete(pid);
    this.#checkpointed.delete(pid);
  }

  async #forgetEnded(): Promise<void> {
    for (const pid of [...this.#locked, ...this.#checkpointed]) if (!await hasDriver(pid)) this.#forget(pid);
  }

  /** Runs one action for all processes in parallel. Moves each process for which it succeeds to the set, if any. */
  async #act(action: Action, pids: readonly number[], to: Set<number> | null): Promise<Failure[]> {
    const options = action === 'lock' ? ` --timeout ${LOCK_MS}` : '';
    const failures = await Promise.all(pids.map(async (pid): Promise<Failure[]> => {
      const { isDone, text } = await this.#tool.run(`--action ${action} --pid ${pid}${options}`, LIMITS_MS[action]);
      if (!isDone && await hasDriver(pid)) return [{ pid, action, text }];
      this.#forget(pid);
      if (isDone) to?.add(pid);
      return []; // done, or the process has ended
    }));
    return failures.flat();
  }

  /** Checks first: with driver 580, a process whose restore fails for lack of memory is lost. */
  async #checkFree(): Promise<void> {
    const uses = this.#uses.filter(({ pid }) => this.#checkpointed.has(pid));
    if (uses.length === 0) return;
    for (const [gpu, free] of await this.#tool.listFree()) {
      const needed = uses.reduce((sum, use) => sum + (use.gpu === gpu ? use.mebibytes : 0), 0);
      if (needed > free) throw new Error(`${IN_USE}: ${needed} MiB needed, ${free} MiB free on ${gpu}`);
    }
  }
}

function errorOf({ pid, action, text }: Failure, what: string): string {
  return `${what}: process ${pid} could not be ${DONE[action]}: ${excerpt(text, MAX_VALUE_LENGTH)}`;
}

// ───── The processes ─────────────────────────────────────────────────────────────────────────────────────────────────

/**
 * Returns the processes that use CUDA. A call of the tool takes seconds, so this asks only about processes that have
 * loaded the driver and have CUDA threads: a forked process, such as a DataLoader worker, has none.
 *
 * @throws {Error} If one of them is in an unexpected state.
 */
async function findRunning(tool: Tool, pids: readonly number[]): Promise<number[]> {
  const loaded = await filter(pids, hasDriver);
  const likely = await filter(loaded, hasThreadOfCuda);
  const asked = likely.length > 0 ? likely : loaded;
  const running: number[] = [];
  for await (const { pid, isDone, text } of tool.lookAt(asked)) {
    if (isDone && text === 'running') running.push(pid);
    const isFine = isDone ? /^(running|checkpointed)$/.test(text) : likely.length === 0 || !await hasDriver(pid);
    if (!isFine) throw new Error(`the GPU cannot be released: process ${pid}: ${excerpt(text, MAX_VALUE_LENGTH)}`);
  }
  return running;
}

async function filter(pids: readonly number[], isWanted: (pid: number) => Promise<boolean>): Promise<number[]> {
  const areWanted = await Promise.all(pids.map(isWanted));
  return pids.filter((_, index) => areWanted[index]);
}

/** Also false if the process has ended. */
async function hasDriver(pid: number): Promise<boolean> {
  return (await readFile(`/proc/${pid}/maps`, 'latin1').catch(() => '')).includes('/libcuda.so');
}

async function hasThreadOfCuda(pid: number): Promise<boolean> {
  const threads = await readdir(`/proc/${pid}/task`).catch(() => []);
  const names = threads.map((thread) => readFile(`/proc/${pid}/task/${thread}/comm`, 'latin1').catch(() => ''));
  return (await Promise.all(names)).some((name) => name.startsWith('cuda'));
}

// ───── The tools ─────────────────────────────────────────────────────────────────────────────────────────────────────

interface ToolOutcome {
  isDone: boolean;
  /** The last line of output. */
  text: string;
}

class Tool {
  readonly #commands: Set<ShellCommand> = new Set(); // running
  readonly #end: AbortController = new AbortController();

  async run(args: string, limitMs: number): Promise<ToolOutcome> {
    if (this.#end.signal.aborted) return { isDone: false, text: `${TOOL} was killed` };
    const command = new ShellCommand(`exec ${TOOL} ${args} 2>&1`, {});
    this.#commands.add(command);
    let isLate = false;
    const timer = setTimeout(() => {
      isLate = true;
      command.kill();
    }, limitMs);
    const { end, lastLine } = await command.ended;
    clearTimeout(timer);
    this.#commands.delete(command);
    if (isLate) return { isDone: false, text: `${TOOL} did not respond within ${limitMs / 1000} s` };
    return { isDone: end.exitCode === 0, text: lastLine || `${TOOL} ended with ${end.text}` };
  }

  /** Asks for the state of a process. Fails if the process does not use CUDA. */
  look(pid: number): Promise<ToolOutcome> {
    return this.run(`--get-state --pid ${pid}`, REACH_MS);
  }

  /** Asks for the states of many processes, a few at a time. */
  async *lookAt(pids: readonly number[]): AsyncGenerator<{ pid: number } & ToolOutcome> {
    for (let start = 0; start < pids.length; start += MAX_LOOKS) {
      const some = pids.slice(start, start + MAX_LOOKS);
      yield* await Promise.all(some.map(async (pid) => ({ pid, ...await this.look(pid) })));
    }
  }

  /** Kills it for good: later calls fail. */
  kill(): void {
    this.#end.abort();
    for (const command of this.#commands) command.kill();
  }

  async listUses(pids: readonly number[]): Promise<Use[]> {
    const rows = await this.#query('--query-compute-apps=pid,gpu_uuid,used_memory');
    const uses = rows.map(([pid, gpu = '', mebibytes]) => ({ pid: Number(pid), gpu, mebibytes: Number(mebibytes) }));
    return uses.filter(({ pid, mebibytes }) => pids.includes(pid) && mebibytes > 0);
  }

  /** Returns the free MiB of each GPU. */
  async listFree(): Promise<[gpu: string, free: number][]> {
    return (await this.#query('--query-gpu=uuid,memory.free')).map(([gpu = '', free]) => [gpu, Number(free)]);
  }

  /** Returns nothing if nvidia-smi is missing. */
  async #query(query: string): Promise<string[][]> {
    const args = [query, '--format=csv,noheader,nounits'];
    const options = { timeout: REACH_MS, signal: this.#end.signal };
    const { stdout } = await promisify(execFile)('nvidia-smi', args, options).catch(() => ({ stdout: '' }));
    return stdout.split('\n').map((line) => line.split(', '));
  }
}
