// Where the program is: the frames that it writes on a signal if it can, and what each of its processes does.

import { closeSync, constants, fstatSync, openSync, readSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { handles, tryRead, tryTo } from './processes.ts';
import type { Program } from './program.ts';

const OBSERVED_MS = 300;
const SILENCE_MS = 20; // after which the frames are complete
const MAX_FRAMES = 40; // of the 50 lines of a stack
const FRAME = /^ {2}File "(.*)", line (\S+) in (.*)$/gm; // of Python's faulthandler
const ACTIVITIES: Record<string, string> = { R: 'runs', D: 'waits for a device', T: 'is stopped', t: 'is traced' };

/** Returns the frames, innermost first, and a line for each process: `python3 (2551): runs, 98 % CPU in 0.3 s`. */
export async function readStack(program: Program): Promise<string[]> {
  const { processes } = program;
  const before = new Map(processes.list().map(({ pid, cpuSeconds }) => [pid, cpuSeconds]));
  const [start, frames] = [performance.now(), readFrames(program).catch(() => [])]; // it may have ended
  await sleep(OBSERVED_MS);
  const seconds = (performance.now() - start) / 1000;
  const lines = processes.list().map(({ pid, state, cpuSeconds }) => {
    const name = tryRead(`/proc/${pid}/comm`).trimEnd() || 'process';
    const place = tryRead(`/proc/${pid}/wchan`);
    const activity = ACTIVITIES[state.charAt(0)] ?? `sleeps${/^\w{2,}$/.test(place) ? ` in ${place}` : ''}`;
    const share = Math.round(100 * (cpuSeconds - (before.get(pid) ?? cpuSeconds)) / seconds);
    return `${name} (${pid}): ${activity}, ${share} % CPU in ${seconds.toFixed(1)} s`;
  });
  return [...(await frames).slice(0, MAX_FRAMES), ...lines];
}

/** Has the program write its frames to a pipe: at once, even in native code, because no interpreter is needed. */
async function readFrames({ channel: { tracer }, processes }: Program): Promise<string[]> {
  if (tracer === null || processes.stopped.length > 0) return [];
  const { pid, signal, fd } = tracer;
  if (!processes.list().some((one) => one.pid === pid) || !handles(pid, signal)) return []; // it would kill others
  const pipe = openSync(`/proc/${pid}/fd/${fd}`, constants.O_RDONLY | constants.O_NONBLOCK);
  try {
    if (!fstatSync(pipe).isFIFO()) return [];
    drain(pipe); // what came too late for an earlier look
    process.kill(pid, signal);
    let text = '';
    for (const end = performance.now() + OBSERVED_MS; performance.now() < end;) {
      await sleep(SILENCE_MS);
      const more = drain(pipe);
      if (more === '' && text !== '') break;
      text += more;
    }
    return Array.from(text.matchAll(FRAME), ([, file, line, name]) => `${name} (${file}:${line})`);
  } finally {
    closeSync(pipe);
  }
}

/** Returns what a pipe contains. */
function drain(pipe: number): string {
  const bytes = Buffer.alloc(65_536);
  return tryTo(() => [bytes.toString('utf8', 0, readSync(pipe, bytes))])[0] ?? '';
}
