// Runs a backend in a helper process, for platforms where Node cannot receive keys: a script for an interpreter that
// the platform includes. The helper writes one line per message; the first word is its type.

import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { BackendError, type Binding, type ListenerEvents, type Modifier } from './keys.ts';

const START_MS = 20_000; // compiling the C# of Windows takes seconds on a busy machine
const MAX_ERROR_LENGTH = 2000; // characters of its stderr

export interface HelperOptions {
  /** Name or path of the interpreter, and its arguments. */
  command: readonly [file: string, ...args: string[]];
  bindings: readonly Binding[];
  events: ListenerEvents;
  /** Handlers of messages other than `hit N`, by type. After `ready`, the helper listens. */
  handlers: Readonly<Record<string, (...words: string[]) => void>>;
  /** Explains known errors in stderr after the helper has exited; null if the error is unknown. */
  explain?(errors: string): string | null;
  /** Cancels the start of the helper. */
  quitting: AbortSignal;
}

/** Resolves when the helper listens, with the function that ends it. Rejects with BackendError. */
export function startHelper(options: HelperOptions): Promise<() => void> {
  const { command: [file, ...args], bindings, events, handlers, explain, quitting } = options;
  const detached = process.platform !== 'win32'; // keeps Ctrl-C from the helper: close() ends it
  const child = spawn(file, args, { stdio: ['ignore', 'pipe', 'pipe'], windowsHide: true, detached });
  return new Promise((resolve, reject) => {
    let [isReady, isClosed] = [false, false];
    let errors = '';
    const close = (): void => {
      isClosed = true;
      clearTimeout(timer);
      child.kill();
      child.stdout.destroy(); // its children may keep the pipes open
      child.stderr.destroy();
      child.unref();
    };
    const fail = (error: Error): void => {
      if (isClosed) return;
      close();
      if (isReady) events.onEnd(error.message);
      else reject(error);
    };
    const timer = setTimeout(() => fail(new BackendError(`${file} is not ready after ${START_MS / 1000} s`)), START_MS);
    quitting.addEventListener('abort', () => !isReady && fail(new BackendError(`${file} was not ready`)));
    const onLine = (line: string): void => {
      const [type, ...words] = line.trim().split(' ') as [string, ...string[]];
      const binding = bindings[Number(words[0])];
      if (type === 'hit' && binding !== undefined) events.onPress(binding.action);
      if (Object.hasOwn(handlers, type)) handlers[type]?.(...words);
      if (type !== 'ready') return;
      clearTimeout(timer);
      isReady = true;
      resolve(close);
    };
    child.stderr.setEncoding('utf8').on('data', (chunk: string) => {
      errors = (errors + chunk).slice(0, MAX_ERROR_LENGTH);
    });
    createInterface({ input: child.stdout }).on('line', (line) => {
      if (isClosed) return;
      try {
        onLine(line);
      } catch (error) {
        fail(error as Error);
      }
    });
    child.on('error', ({ message }) => fail(new BackendError(`cannot start ${file}: ${message}`)));
    child.on('close', (code, signal) => {
      const how = signal === null ? `exited with code ${code}` : `was killed by ${signal}`;
      const first = errors.trim().split('\n')[0] as string;
      fail(new BackendError(explain?.(errors) ?? `${file} ${how}${first === '' ? '' : `: ${first}`}`));
    });
  });
}

/** Combines the platform's bits for the modifiers. */
export function flagsOf(modifiers: ReadonlySet<Modifier>, flags: Readonly<Record<Modifier, number>>): number {
  return [...modifiers].reduce((bits, modifier) => bits | flags[modifier], 0);
}
