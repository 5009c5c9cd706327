// A terminal of the checker of the pages: types commands, and compares what it shows with the page.

import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ChildProcess } from 'node:child_process';

/** What is wrong, or null. */
export type Failure = string | null;
export interface Step { command: string; output: string[] }

export const HOME = '/run/ana';
export const TOOLS = '/run/tools'; // in front of the PATH

const SECONDS = 120; // for a command to end
const READ_MS = 3000; // that a person takes to read a question
const READY = '\x1e'; // the shell's prompt
const PROMPT = /^(.*(?:\S \([^)]*\) > |\[y\/N\] ))(.+)$/;
const JOB = /^\[\d+\][-+ ] *(\d+$|(Done|Exit|Terminated|Killed|Hangup|Interrupt|Running|Stopped)\b)/;
const EARLY = /^control-client: .* is offline: it may still start$/; // if `wait` starts before the program
const PASSED = /\b(active|pausing|paused|resuming|shutting down) … /g; // shown during a wait that takes long
const QUESTION = /\b[a-z0-9]{3}-(q\d+)\b/g;
const ESCAPE = /\x1b\[[\d;?]*[a-zA-Z]|\x1b\][^\x07]*\x07|\x1e/g;
const SHELL = 'stty -echo cols 120 rows 40; exec bash --norc --noprofile --noediting -i';

export class Terminal {
  readonly #script: ChildProcess;
  readonly #ids = new Map<string, string>(); // of questions, by their numbers
  #output = ''; // since the latest command

  constructor() {
    const { PATH, LANG, PYENV_ROOT, HOME: home = '' } = process.env;
    const env = {
      LANG, PYENV_ROOT, PATH: `${TOOLS}:${PATH}`, HOME, USER: 'ana', TERM: 'xterm', NO_COLOR: '1', PS1: READY, PS2: '',
      XDG_RUNTIME_DIR: '/run/user/1000', CONTROL_BY: 'ana@laptop',
      npm_config_cache: join(home, '.npm'), npm_config_prefer_offline: 'true', npm_config_update_notifier: 'false',
    };
    this.#script = spawn('script', ['-qfc', SHELL, '/dev/null'], { cwd: HOME, env });
    this.#script.stdout?.setEncoding('utf8').on('data', (text: string) => (this.#output += text));
  }

  /** Runs a command to its end. */
  async run({ command, output }: Step): Promise<Failure> {
    await this.#begin(command);
    let seconds = SECONDS;
    for (const [index, line] of output.entries()) {
      const [, prompt, input] = PROMPT.exec(line) ?? [];
      if (prompt === undefined && line !== '^C') continue;
      const shown = [...output.slice(0, index), prompt ?? '^C'];
      if (!await this.#until(() => this.#compare(shown) === null, 20)) {
        seconds = 1;
        break;
      }
      if (input?.startsWith('answer ') === true) await sleep(READ_MS);
      this.#script.stdin?.write(prompt === undefined ? '\x03' : `${input}\r`);
    }
    const hasEnded = await this.#until(() => this.#output.includes(READY), seconds);
    if (!hasEnded && !await this.#end('\x03')) await this.#end('\x04'); // Ctrl-C, Ctrl-D
    const difference = this.#compare(output);
    if (hasEnded && difference === null) return null;
    return `$ ${command}${hasEnded ? '' : ` # still runs after ${seconds} s`}\n${difference ?? ''}`;
  }

  /** Starts a command that keeps running, and returns once its output up to an empty line, or a line, has appeared. */
  async start({ command, output }: Step): Promise<() => Promise<Failure>> {
    await this.#begin(command);
    await this.#until(() => this.#compare(output.slice(0, Math.max(1, output.indexOf(''))), true) === null, 20);
    return async () => {
      await this.#until(() => this.#compare(output, true) === null, 10);
      const difference = this.#compare(output, true);
      if (!await this.#end('\x03')) return `$ ${command} # still runs after Ctrl-C`;
      return difference && `$ ${command}\n${difference}`;
    };
  }

  /** Presses a key, unless the command has ended. */
  async #end(key: string): Promise<boolean> {
    if (!this.#output.includes(READY)) this.#script.stdin?.write(key);
    return this.#until(() => this.#output.includes(READY), 10);
  }

  async #begin(command: string): Promise<void> {
    await this.#until(() => this.#output.includes(READY));
    for (const [id, number = ''] of this.#output.matchAll(QUESTION)) this.#ids.set(number, id);
    this.#output = '';
    const typed = command.replaceAll(QUESTION, (id, number: string) => this.#ids.get(number) ?? id);
    this.#script.stdin?.write(`${typed}\n`);
  }

  async #until(condition: () => boolean, seconds: number = SECONDS): Promise<boolean> {
    const end = performance.now() + seconds * 1000;
    while (!condition() && performance.now() < end && this.#script.exitCode === null) await sleep(30);
    return condition();
  }

  #compare(expected: readonly string[], mayContinue: boolean = false): Failure {
    const text = this.#output.replaceAll('\x1b[1G', '\r').replaceAll(ESCAPE, '').replaceAll(/\r+\n/g, '\n');
    const lines = text.split('\n').map((line) => line.slice(line.lastIndexOf('\r') + 1));
    const seen = lines.filter((line) => !JOB.test(line) && !EARLY.test(line) && line.trim() !== '');
    return compare(expected.filter((line) => line !== '^C' && line !== ''), seen, mayContinue);
  }
}

/** The first difference between the output on a page and the lines seen. */
function compare(expected: readonly string[], seen: readonly string[], mayContinue: boolean): Failure {
  let [at, isOpen, index] = [0, false, 0]; // isOpen: after a line `…`
  for (; index < expected.length; index += 1) {
    const line = expected[index] as string;
    const pattern = new RegExp(`^${toSource(line)}$`);
    const isFound = (other: string, place: number): boolean => place >= at && pattern.test(normalize(other));
    const found = line === '…' ? at - 1 : seen.findIndex(isFound);
    if (line !== '…' && (found === -1 || (found > at && !isOpen))) break;
    [at, isOpen] = [found + 1, line === '…'];
  }
  if (index === expected.length && (isOpen || mayContinue || at === seen.length)) return null;
  const missing = expected.slice(index, index + 4).map((line) => `  - ${line}`);
  return [...missing, ...seen.slice(at, at + 20).map((line) => `  + ${line}`)].join('\n');
}

function toSource(line: string): string {
  return normalize(line).replaceAll(/[\\^$.*+?()[\]{}|]/g, '\\$&').replaceAll('…', '.*');
}

function normalize(line: string): string {
  const result = line.replaceAll(PASSED, '').replaceAll(/\w+…/g, '…'); // a truncated word has any length
  const words = result.replaceAll(/[\w-]{20,}|[\w.:+-]*\d(?:[\w.:+-]|,(?=\d))*/g, '0').replaceAll(/\[[# ]+\]/g, '[#]');
  return words.replaceAll(/\b0 (ms|s|min|h|days?)\b/g, '0 s').replaceAll(/\s+/g, ' ').trimEnd();
}
