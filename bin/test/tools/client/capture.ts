// What a program prints when a test runs it in this process, where the test runner prints, too.

import { AsyncLocalStorage } from 'node:async_hooks';
import type { Ended } from '../../helpers.ts';

const outputs = new AsyncLocalStorage<{ stdout: string; stderr: string }>();

for (const name of ['stdout', 'stderr'] as const) {
  const stream = process[name].setMaxListeners(0); // each run of a program may add some
  const write = stream.write.bind(stream) as (...args: unknown[]) => boolean;
  stream.isTTY = false;
  stream.write = (text: string | Uint8Array, ...rest: unknown[]): boolean => {
    const output = outputs.getStore();
    if (output === undefined) return write(text, ...rest);
    output[name] += String(text);
    return true;
  };
}
for (const name of ['HOST', 'SOCKET', 'TOKEN', 'TOKEN_FILE']) delete process.env[`CONTROL_${name}`];
process.env['CONTROL_PORT'] = '1'; // a mistake must not reach a system of this user
process.env['XDG_RUNTIME_DIR'] = '/nowhere'; // where no name of this user's systems is found

/** Calls the function, which returns an exit code, and keeps what it and all that it awaits print. */
export async function capture(main: () => Promise<number>): Promise<Ended> {
  const output = { stdout: '', stderr: '' };
  const code = await outputs.run(output, main);
  return { code, ...output };
}
