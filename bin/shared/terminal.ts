// The terminal in raw mode: keys arrive at once, and the terminal does not show them.

export const CTRL_C = '\x03';
export const CTRL_D = '\x04';
export const CTRL_Z = '\x1a';

const RESUME_MS = 100; // after a SIGTSTP without effect

export interface RawMode {
  /** Stops the whole job and returns the terminal to the shell until `fg`, as Ctrl-Z outside raw mode does. */
  suspend(): void;
  /** Ends the raw mode. */
  end(): void;
}

/**
 * Puts the terminal of stdin in raw mode, and again each time the shell returns the terminal to this job.
 *
 * @param onResume Called then.
 */
export function startRawMode(onResume: () => void = () => {}): RawMode {
  const { stdin } = process;
  let resumeTimer: NodeJS.Timeout | undefined;
  const resume = (): void => {
    clearTimeout(resumeTimer);
    stdin.setRawMode(false); // node skips a mode that it believes is set, although the shell has changed it
    stdin.setRawMode(true);
    onResume();
  };
  stdin.setRawMode(true);
  process.on('SIGCONT', resume);
  return {
    suspend(): void {
      if (process.platform === 'win32') return;
      stdin.setRawMode(false);
      resumeTimer = setTimeout(resume, RESUME_MS);
      process.kill(0, 'SIGTSTP');
    },
    end(): void {
      clearTimeout(resumeTimer);
      process.off('SIGCONT', resume);
      if (stdin.isTTY && !stdin.destroyed) stdin.setRawMode(false);
    },
  };
}
