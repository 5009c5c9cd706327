// A shell command that runs beside the program, and its last line of output. It has its own session, so that Ctrl-C
// does not reach it.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { endTree } from './processes.ts';
import { endOf } from './program.ts';
import type { ChildProcess } from 'node:child_process';
import type { Socket } from 'node:net';
import type { End } from './program.ts';

const MAX_OUTPUT_LENGTH = 65_536;
const MAX_OUTPUT_MS = 100; // after its exit

export class ShellCommand {
  readonly ended: Promise<{ end: End; output: string; lastLine: string }>;
  readonly #child: ChildProcess;

  constructor(command: string, variables: Record<string, string>) {
    const env = { ...process.env, ...variables };
    const child = spawn(command, { shell: true, detached: true, stdio: ['ignore', 'pipe', 'inherit'], env });
    this.#child = child;
    let output = '';
    const closed = new Promise((resolve) => child.on('close', resolve));
    child.stdout.setEncoding('utf8').on('data', (text: string) => (output = (output + text).slice(-MAX_OUTPUT_LENGTH)));
    this.ended = once(child, 'exit').then(async ([code, signal]) => {
      (child.stdout as Socket).unref(); // background processes may keep the output open
      await Promise.race([closed, sleep(MAX_OUTPUT_MS)]);
      return { end: endOf(code, signal), output, lastLine: output.trimEnd().split('\n').slice(-1).join() };
    });
  }

  kill(): void {
    this.#child.stdout?.destroy(); // a process that has left the group may keep it open
    const pid = this.#child.pid as number;
    if (process.platform === 'win32') return void endTree(pid);
    try {
      process.kill(-pid, 'SIGKILL');
    } catch {} // the whole group has ended
  }
}
