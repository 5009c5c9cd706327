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
export function handleSignals(isOnTerminal: boolean, { program, pausedSince, end, resume, say }: SignalListener): void {
  let isSuspended = false; // from SIGTSTP to SIGCONT
  let pending: { name: NodeJS.Signals; since: string | undefined } | null = null; // until the program continues

  const pass = (name: NodeJS.Signals): void => program().send(name);
  const offer = (name: NodeJS.Signals): void => void (program().offer(name) || end(name));
  const interrupt = (signal: NodeJS.Signals): void => {
    const { name, processes, end: ended } = program();
    if (ended !== null) return end(signal);
    if (processes.stopped.length === 0) return;
    pending = { name: signal, since: pausedSince() };
    say(`${name} is paused and will receive ${signal} when it is resumed`);
  };

  /** Ctrl-Z when the program is not on the terminal: only this process gets SIGTSTP. */
  const suspend = async (): Promise<void> => {
    if (isSuspended) return;
    isSuspended = true;
    const { processes } = program();
    const wasRunning = processes.stopped.length === 0;
    let hasContinued = false;
    const continued = once(process, 'SIGCONT').then(() => (hasContinued = true));
    await processes.stop().catch(() => {}); // then only this process stops
    await nextTurn(); // SIGCONT may have arrived
    if (!hasContinued) process.kill(process.pid, 'SIGSTOP');
    await continued;
    isSuspended = false;
    if (wasRunning) processes.continue();
  };

  for (const name of ['SIGTERM', 'SIGHUP', 'SIGPWR'] as const) process.on(name, end);
  for (const name of OFFERED) process.on(name, offer);
  process.on('SIGUSR1', pass).on('SIGUSR2', pass);
  if (isOnTerminal) process.on('SIGINT', interrupt).on('SIGQUIT', interrupt).on('SIGTSTP', () => follow(program()));
  else process.on('SIGINT', end).on('SIGQUIT', offer).on('SIGWINCH', pass).on('SIGTSTP', suspend);

  // `fg` continues all processes on the terminal. Stops a paused program again, unless a signal is pending for it.
  process.on('SIGCONT', () => {
    const { processes } = program();
    if (isSuspended || processes.stopped.length === 0) return;
    if (pending !== null && pending.since === pausedSince()) resume(pending.name);
    else void processes.stop().catch(() => {});
    pending = null;
  });
}

/**
 * Ctrl-Z on the program's terminal. The program may restore the terminal before it stops, or ignore the signal. So
 * this process stops last: then the shell takes the terminal back.
 */
async function follow({ processes }: Program): Promise<void> {
  const end = performance.now() + MAX_SUSPEND_MS;
  while (!processes.haveStopped('group') && performance.now() < end) await sleep(POLL_MS);
  if (processes.haveStopped('main')) process.kill(process.pid, 'SIGSTOP');
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
