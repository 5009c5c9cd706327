// The signals to control-run, and what it does when its terminal suspends and continues it.

import { once } from 'node:events';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import type { Program } from './program.ts';

const MAX_SUSPEND_MS = 2000; // until a program has restored the terminal
const POLL_MS = 10;

/** Who carries out what a signal asks for. */
export interface SignalListener {
  /** Returns the program under control; of several starts, the latest. */
  program(): Program;
  /** Returns an object that is another one in each pause; null unless the program is paused. */
  pause(): object | null;
  end(name: NodeJS.Signals): void;
  resume(name: NodeJS.Signals): void;
  say(message: string): void;
}

/** @param isOnTerminal Whether the program is in the same process group: it gets the signals of the terminal itself. */
export function handleSignals(isOnTerminal: boolean, listener: SignalListener): void {
  const signals = new Signals(listener);
  const end = (name: NodeJS.Signals): void => listener.end(name);
  const pass = (name: NodeJS.Signals): void => listener.program().send(name);
  for (const name of ['SIGTERM', 'SIGHUP'] as const) process.on(name, end);
  for (const name of ['SIGUSR1', 'SIGUSR2'] as const) process.on(name, pass);
  process.on('SIGCONT', () => signals.onContinue());
  if (isOnTerminal) {
    for (const name of ['SIGINT', 'SIGQUIT'] as const) {
      process.on(name, () => (listener.program().end === null ? signals.onInterrupt(name) : end(name)));
    }
    process.on('SIGTSTP', () => signals.followProgram());
  } else {
    process.on('SIGINT', end).on('SIGWINCH', pass).on('SIGTSTP', () => signals.suspend());
  }
}

class Signals {
  readonly #listener: SignalListener;
  #isSuspended = false; // from SIGTSTP to SIGCONT
  #pending: { name: NodeJS.Signals; pause: object | null } | null = null; // taken once the program continues

  constructor(listener: SignalListener) {
    this.#listener = listener;
  }

  onInterrupt(name: NodeJS.Signals): void {
    const { name: program, processes } = this.#listener.program();
    if (processes.stopped.length === 0) return;
    this.#pending = { name, pause: this.#listener.pause() };
    this.#listener.say(`${program} is paused: it takes ${name} once it is resumed`);
  }

  /**
   * Ctrl-Z on the terminal of the program, which may restore the terminal before it stops, or ignore the signal. The
   * shell takes the terminal back as soon as this process stops.
   */
  async followProgram(): Promise<void> {
    const { processes } = this.#listener.program();
    const end = performance.now() + MAX_SUSPEND_MS;
    while (!processes.haveStopped('group') && performance.now() < end) await sleep(POLL_MS);
    if (processes.haveStopped('main')) process.kill(process.pid, 'SIGSTOP');
  }

  /** Ctrl-Z elsewhere: only this process gets it. */
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

  /** `fg` continues all processes on the terminal. A paused program stops again, unless it is taking a signal. */
  onContinue(): void {
    const { processes } = this.#listener.program();
    if (this.#isSuspended || processes.stopped.length === 0) return;
    const isTaking = this.#pending !== null && this.#pending.pause === this.#listener.pause();
    if (isTaking) this.#listener.resume((this.#pending as { name: NodeJS.Signals }).name);
    else void processes.stop().catch(() => {});
    this.#pending = null;
  }
}
