// Where the program is: the frames of a process that shows them, and what each of its processes does.

import { setTimeout as sleep } from 'node:timers/promises';
import { handles, type Processes, tryRead, tryTo } from './processes.ts';
import type { Socket } from 'node:net';

const OBSERVED_MS = 200;
const ACTIVITIES: Record<string, string> = { R: 'runs', D: 'waits for a device', T: 'is stopped', t: 'is traced' };

/** Returns the frames of the main thread; none if they do not come in time. */
type Look = (processes: Processes) => Promise<string[]>;

/** Returns the frames, innermost first, and a line for each process: `python3 (2551): runs, 98 % CPU in 0.2 s`. */
export async function stackOf(processes: Processes, look: Look): Promise<string[]> {
  const before = new Map(processes.list().map(({ pid, cpuSeconds }) => [pid, cpuSeconds]));
  const [start, frames] = [performance.now(), processes.stopped.length > 0 ? [] : look(processes)];
  await sleep(OBSERVED_MS);
  const seconds = (performance.now() - start) / 1000;
  const lines = processes.list().map(({ pid, state, cpuSeconds }) => {
    const name = tryRead(`/proc/${pid}/comm`).trimEnd() || 'process';
    const place = tryRead(`/proc/${pid}/wchan`);
    const activity = ACTIVITIES[state.charAt(0)] ?? `sleeps${/^\w{2,}$/.test(place) ? ` in ${place}` : ''}`;
    const share = Math.round(100 * (cpuSeconds - (before.get(pid) ?? cpuSeconds)) / seconds);
    return `${name} (${pid}): ${activity}, ${share} % CPU in ${seconds.toFixed(1)} s`;
  });
  return [...(await frames).slice(0, 40), ...lines]; // a stack has at most 50 lines
}

/** Follows a socket on which a process shows the frames of its main thread. Returns a function that asks for them. */
export function followTracer(socket: Socket, { pid, signal }: Record<string, unknown>): Look {
  let [rest, take] = ['', (_: string[]): void => {}];
  socket.on('data', (text: string) => {
    const lines = (rest + text).slice(-65_536).split('\n');
    rest = lines.pop() as string;
    for (const line of lines) take(tryTo(() => (JSON.parse(line).stack as unknown[]).map(String).filter(Boolean)));
  });
  return async (processes) => {
    const interrupt = (): void => { // unless it may not survive that
      const isBusy = !socket.destroyed && processes.list().some((one) => one.pid === pid && one.state === 'R');
      if (isBusy && handles(pid as number, Number(signal))) process.kill(pid as number, Number(signal));
    };
    const timer = setTimeout(() => tryTo(interrupt), 100); // its threads seem to wait for the interpreter
    socket.write('{"look":true}\n');
    const shown = new Promise<string[]>((resolve) => (take = resolve));
    return await Promise.race([shown, sleep(OBSERVED_MS, [])]).finally(() => clearTimeout(timer));
  };
}
