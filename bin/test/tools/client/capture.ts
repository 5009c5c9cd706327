// Captures the output of a tool that a test runs in its own process, where the test runner prints, too.

import { AsyncLocalStorage } from 'node:async_hooks';
import type { Ended } from '../../helpers.ts';

const outputs = new AsyncLocalStorage<{ stdout: string; stderr: string }>();

for (const name of ['stdout', 'stderr'] as const) {
  const stream = process[name].setMaxListeners(0); // each run of a tool may add listeners
  const write = stream.write.bind(stream) as (...args: unknown[]) => boolean;
  stream.isTTY = false;
  stream.write = (text: string | Uint8Array, ...rest: unknown[]): boolean => {
    const output = outputs.getStore();
    if (output === undefined) return write(text, ...rest);
    output[name] += String(text);
    return true;
  };
}
for (const name of ['HOST', 'PORT', 'SOCKET', 'TOKEN', 'TOKEN_FILE', 'VIA']) delete process.env[`CONTROL_${name}`];
process.env['CONTROL_DIR'] = process.env['XDG_STATE_HOME'] = '/nowhere'; // so that a mistake cannot reach a real system

/** Calls a function that returns an exit code, and captures its output, also from asynchronous work. */
export async function capture(main: () => Promise<number>): Promise<Ended> {
  const output = { stdout: '', stderr: '' };
  const code = await outputs.run(output, main);
  return { code, ...output };
}
