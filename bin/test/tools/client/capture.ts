// Captures the output of a tool that a test runs in its own process, where the test runner prints, too.

import { AsyncLocalStorage } from 'node:async_hooks';
import type { Ended } from '../../helpers.ts';

interface Run {
  stdout: string;
  stderr: string;
  env: NodeJS.ProcessEnv;
}

const runs = new AsyncLocalStorage<Run>();

for (const name of ['stdout', 'stderr'] as const) {
  const stream = process[name].setMaxListeners(0); // each run of a tool may add listeners
  const write = stream.write.bind(stream) as (...args: unknown[]) => boolean;
  stream.isTTY = false;
  stream.write = (text: string | Uint8Array, ...rest: unknown[]): boolean => {
    const output = runs.getStore();
    if (output === undefined) return write(text, ...rest);
    output[name] += String(text);
    return true;
  };
}
for (const name of ['HOST', 'PORT', 'SOCKET', 'TOKEN', 'TOKEN_FILE', 'VIA']) delete process.env[`CONTROL_${name}`];
process.env['CONTROL_DIR'] = process.env['XDG_STATE_HOME'] = '/nowhere'; // so that a mistake cannot reach a real system

process.env = new Proxy(process.env, {
  get: (env, name: string) => {
    const own = runs.getStore()?.env ?? {};
    return name in own ? own[name] : env[name];
  },
  set: (env, name: string, value: string) => {
    env[name] = value;
    return true;
  },
});

/**
 * Calls a function that returns an exit code, and captures its output, also from asynchronous work.
 *
 * @param env Variables for it alone.
 */
export async function capture(main: () => Promise<number>, env: NodeJS.ProcessEnv = {}): Promise<Ended> {
  const run = { stdout: '', stderr: '', env };
  const code = await runs.run(run, main);
  return { code, stdout: run.stdout, stderr: run.stderr };
}
