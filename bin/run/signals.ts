// Signals to control-run: ends the program or passes them on, and follows the terminal's job control (Ctrl-Z, fg).

import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { isatty } from 'node:tty';
import type { Program } from './program.ts';

const MAX_SUSPEND_MS = 2000; // for a program to restore the terminal
const POLL_MS = 10;

// Not SIGPROF, which Node's profiler uses, and none that reports a fault of control-run itself, such as SIGSEGV.
const OFFERED = ['SIGABRT', 'SIGALRM', 'SIGVTALRM', 'SIGIO', 'SIGXCPU', 'SIGSTKFLT'] as const;

interface SignalListener {
  /** Returns the latest run of the program. */
  program(): Program;
  /** Returns a time that identifies the current pause; undefined unless the program is paused. */
  pausedSince(): string | undefined;
  end(name: NodeJS.Signals): void;
  resume(name: NodeJS.Signals): void;
  say(message: string): void;
}

/** @param isOnTerminal Whether the program is in the same process group and so gets the terminal's signals itself. */
export function handleSignals(isOnTerminal: boolean, listener: SignalListener): void {
  const signals = new Signals(listener);
  const end = (name: NodeJS.Signals): void => listener.end(name);
  const pass = (name: NodeJS.Signals): void => listener.program().send(name);
  const offer = (name: NodeJS.Signals): void => void (listener.program().offer(name) || end(name));
  for (const name of ['SIGTERM', 'SIGHUP', 'SIGPWR'] as const) process.on(name, end);
  for (const name of OFFERED) process.on(name, offer);
  for (const name of ['SIGUSR1', 'SIGUSR2'] as const) process.on(name, pass);
  process.on('SIGCONT', () => signals.onContinue());
  if (isOnTerminal) {
    for (const name of ['SIGINT', 'SIGQUIT'] as const) {
      process.on(name, () => (listener.program().end === null ? signals.onInterrupt(name) : end(name)));
    }
    process.on('SIGTSTP', () => signals.followProgram());
  } else {
    process.on('SIGINT', end).on('SIGQUIT', offer).on('SIGWINCH', pass).on('SIGTSTP', () => signals.suspend());
  }
}

class Signals {
  readonly #listener: SignalListener;
  #isSuspended = false; // from SIGTSTP to SIGCONT
  #pending: { name: NodeJS.Signals; since: string | undefined } | null = null; // delivered when the program continues

  constructor(listener: SignalListener) {
    this.#listener = listener;
  }

  onInterrupt(name: NodeJS.Signals): void {
    const { name: program, processes } = this.#listener.program();
    if (processes.stopped.length === 0) return;
    this.#pending = { name, since: this.#listener.pausedSince() };
    this.#listener.say(`${program} is paused and will receive ${name} when it is resumed`);
  }

  /**
   * Ctrl-Z on the program's terminal. The program may restore the terminal before it stops, or ignore the signal. So
   * this process stops last: then the shell takes the terminal back.
   */
  async followProgram(): Promise<void> {
    const { processes } = this.#listener.program();
    const end = performance.now() + MAX_SUSPEND_MS;
    while (!processes.haveStopped('group') && performance.now() < end) await sleep(POLL_MS);
    if (processes.haveStopped('main')) process.kill(process.pid, 'SIGSTOP');
  }

  /** Ctrl-Z when the program is not on the terminal: only this process gets SIGTSTP. */
  async suspend(): Promise<void> {
    if (this.#isSuspended) return;
    this.#isSuspended = true;
    const { processes } = this.#listener.program();
    const wasRunning = processes.stopped.length === 0;
    let hasContinued = false;
    const continued = once(process, 'SIGCONT').then(() => (hasContinued = true));
    await processes.stop().catch(() => {}); // then only this process stops
    await nextTurn(); // SIGCONT may have arrived
    if (!hasContinued) process.kill(process.pid, 'SIGSTOP');
    await continued;
    this.#isSuspended = false;
    if (wasRunning) processes.continue();
  }

  /** `fg` continues all processes on the terminal. Stops a paused program again, unless a signal is pending for it. */
  onContinue(): void {
    const { processes } = this.#listener.program();
    if (this.#isSuspended || processes.stopped.length === 0) return;
    const isTaking = this.#pending !== null && this.#pending.since === this.#listener.pausedSince();
    if (isTaking) this.#listener.resume((this.#pending as { name: NodeJS.Signals }).name);
    else void processes.stop().catch(() => {});
    this.#pending = null;
  }
}

/**
 * Whether stderr is a terminal on which a line does no harm. Editors and other full-screen programs read single keys,
 * so the terminal is then not in canonical mode.
 */
export function mayShow(): boolean {
  if (!isatty(2)) return false;
  const { stdout } = spawnSync('stty', ['-a'], { stdio: [2, 'pipe', 'ignore'], encoding: 'utf8', timeout: 1000 });
  return /(?<!-)\bicanon\b/.test(stdout ?? ''); // null if there is no stty
}
