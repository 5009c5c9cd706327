// The terminal in raw mode: keys arrive at once, without echo.

import { spawnSync } from 'node:child_process';
import { closeSync, existsSync, readFileSync } from 'node:fs';
import { isatty } from 'node:tty';

export const CTRL_C = '\x03';
export const CTRL_D = '\x04';
export const CTRL_Z = '\x1a';
/** After this, Esc does not begin a sequence, which a slow connection may split. Node's default is 500. */
export const ESCAPE_MS = 100;

const RESUME_MS = 100; // after a SIGTSTP without effect
const CHECK_MS = 500; // between two checks in the background: not every shell sends SIGCONT for `fg`

export interface RawMode {
  /** False while another job has the terminal. */
  readonly isOn: boolean;
  /** Stops the whole job and returns the terminal to the shell until `fg`, as Ctrl-Z outside raw mode does. */
  suspend(): void;
  /** Sets the mode again: a Node process that exits resets it, even from the background. */
  renew(): void;
  /** Ends the raw mode. */
  end(): void;
}

/**
 * Puts the terminal of stdin in raw mode, and again each time the shell returns the terminal to this job. While another
 * job has it, stdin is paused: reading or setting the mode would stop this process.
 *
 * @param onResume Called each time the terminal returns.
 */
export function startRawMode(onResume: () => void = () => {}): RawMode {
  const { stdin } = process;
  let isOn = false;
  let timer: NodeJS.Timeout | undefined;
  const leave = (resumeMs: number): void => {
    isOn = false;
    stdin.pause();
    timer = setTimeout(resume, resumeMs);
  };
  const resume = (): void => {
    clearTimeout(timer);
    if (jobState() === 'background') return leave(CHECK_MS);
    setRawMode(false); // node skips a mode that it believes is set, although the shell has changed it
    setRawMode(true);
    if (!isOn) stdin.resume();
    isOn = true;
    onResume();
  };
  isOn = jobState() !== 'background';
  if (isOn) setRawMode(true);
  else leave(CHECK_MS);
  process.on('SIGCONT', resume);
  return {
    get isOn(): boolean {
      return isOn;
    },
    suspend(): void {
      if (!isOn || process.platform === 'win32') return;
      setRawMode(false);
      leave(RESUME_MS);
      process.kill(0, 'SIGTSTP');
    },
    renew: resume,
    end(): void {
      clearTimeout(timer);
      process.off('SIGCONT', resume);
      if (isOn && jobState() !== 'background') setRawMode(false);
      isOn = false;
    },
  };
}

function setRawMode(isRaw: boolean): void {
  const { stdin } = process;
  if (stdin.destroyed) return;
  const ignore = (): void => {}; // the terminal was closed
  stdin.on('error', ignore).setRawMode(isRaw).off('error', ignore);
}

/**
 * Node resets the terminal when it exits. Prevents that in the background, where the shell or another job has set the
 * mode; also prevents Node from aborting because the terminal was closed.
 */
export function spareTerminalAtExit(): void {
  const terminals = [0, 1, 2].filter((file) => isatty(file));
  process.on('exit', () => {
    const isElsewhere = jobState() === 'background';
    for (const file of terminals) {
      if (isElsewhere || !isatty(file)) closeSync(file); // node skips it then
    }
  });
}

/**
 * Returns whether this job has the terminal: one in the background is stopped if it sets the mode or reads. A process
 * without a controlling terminal (setsid, su -c) has no job control, and may share its terminal with others.
 */
export function jobState(): 'foreground' | 'background' | 'none' {
  if (process.platform === 'win32') return 'foreground';
  const [, group, foreground] = groups();
  if (group !== undefined && group === foreground) return 'foreground';
  return Number(foreground) > 0 ? 'background' : 'none';
}

const STAT = '/proc/self/stat'; // id (name) state parent group session terminal foreground …

/** A match with the process group of this process, and the one in the foreground of its terminal. */
function groups(): string[] {
  try {
    return /^.*\) \S+ \d+ (\d+) \d+ -?\d+ (-?\d+)/s.exec(readFileSync(STAT, 'utf8')) ?? [];
  } catch {
    if (existsSync(STAT)) return []; // too many files are open
  }
  const { stdout } = spawnSync('ps', ['-o', 'pgid=', '-o', 'tpgid=', '-p', `${process.pid}`], { encoding: 'utf8' });
  return /^\s*(\d+)\s+(-?\d+)/.exec(stdout) ?? []; // as on macOS; null does not match either
}
