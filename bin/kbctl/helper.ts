// A listener in a process of its own: a script that the system's own interpreter runs, for where node has no way to
// hear of keys. It writes a line for each thing it has to say; the first word tells which.

import { spawn } from 'node:child_process';
import { CannotListen } from './listener.ts';
import type { Binding, Modifier } from './keys.ts';
import type { ListenerEvents } from './listener.ts';

const START_MS = 20_000; // compiling the C# of Windows takes seconds on a busy machine
const KEPT_CHARACTERS = 2000; // of what it writes to stderr

export interface HelperOptions {
  /** Name or path of the program, and its arguments. */
  command: readonly [file: string, ...args: string[]];
  bindings: readonly Binding[];
  events: ListenerEvents;
  /** What to do at first words other than `hit N`; gets the others. Once `ready` has come, the helper listens. */
  lines: Readonly<Record<string, (...words: string[]) => void>>;
  /** What stderr tells of the reason why the helper has ended; null if it is just a message. */
  explain(errors: string): string | null;
  /** Ends the helper during its start. */
  leaving: AbortSignal;
}

/** Resolves, when the helper listens, with the function that ends it. Rejects with CannotListen. */
export function startHelper(options: HelperOptions): Promise<() => void> {
  const { command: [file, ...args], bindings, events, lines, explain, leaving } = options;
  const detached = process.platform !== 'win32'; // Ctrl-C is for this process alone, which ends the helper
  const child = spawn(file, args, { stdio: ['ignore', 'pipe', 'pipe'], windowsHide: true, detached });
  return new Promise((resolve, reject) => {
    let [isReady, isOver] = [false, false];
    let [text, errors] = ['', ''];
    const close = (): void => {
      isOver = true;
      clearTimeout(timer);
      child.kill();
      child.stdout.destroy(); // children of its own may hold the pipes
      child.stderr.destroy();
      child.unref();
    };
    const fail = (error: Error): void => {
      if (isOver) return;
      close();
      if (isReady) events.onEnd(error.message);
      else reject(error);
    };
    const timer = setTimeout(() => fail(new CannotListen(`${file} is not ready after ${START_MS / 1000} s`)), START_MS);
    leaving.addEventListener('abort', () => !isReady && fail(new CannotListen(`${file} was not ready yet`)));
    const onLine = (line: string): void => {
      const [word, ...others] = line.trim().split(' ') as [string, ...string[]];
      const binding = bindings[Number(others[0])];
      if (word === 'hit' && binding !== undefined) events.onPress(binding.action);
      if (Object.hasOwn(lines, word)) lines[word]?.(...others);
      if (word !== 'ready') return;
      clearTimeout(timer);
      isReady = true;
      resolve(close);
    };
    child.stderr.setEncoding('utf8').on('data', (chunk: string) => {
      errors = (errors + chunk).slice(0, KEPT_CHARACTERS);
    });
    child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
      const complete = (text + chunk).split('\n');
      text = complete.pop() as string;
      for (const line of complete) {
        if (isOver) return;
        try {
          onLine(line);
        } catch (error) {
          fail(error as Error);
        }
      }
    });
    child.on('error', ({ message }) => fail(new CannotListen(`cannot start ${file}: ${message}`)));
    child.on('close', (code, signal) => {
      const how = signal === null ? `with code ${code}` : `by ${signal}`;
      const first = errors.trim().split('\n')[0] as string;
      fail(new CannotListen(explain(errors) ?? `${file} ended ${how}${first === '' ? '' : `: ${first}`}`));
    });
  });
}

/** The modifiers as the bits that a system has for them. */
export function flagsOf(modifiers: ReadonlySet<Modifier>, flags: Readonly<Record<Modifier, number>>): number {
  return [...modifiers].reduce((bits, modifier) => bits | flags[modifier], 0);
}
