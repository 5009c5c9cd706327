// For the tests of control-run: a program under its control, and what /proc tells of the processes.

import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { clientAt, start, until } from './helpers.ts';
import type { WebApiClient } from '../../control.ts';
import type { Running } from './helpers.ts';
import type { TestContext } from 'node:test';

export interface StartedRun {
  running: Running;
  port: number;
  /** Of the program. */
  pid: number;
  client: WebApiClient;
  /** `NAME=VALUE` in the environment of control-run and all that it starts. */
  marker: string;
}

let runs = 0;

/** Starts control-run with a command on a free port. At the end of the test, all processes must be gone. */
export function startRun(
  t: TestContext,
  options: string[],
  command: string[],
  env: NodeJS.ProcessEnv = {},
): Promise<StartedRun> {
  return startLine(t, [process.execPath, 'dist/bin/run.js'], options, command, env);
}

/** @param line What starts control-run. */
export async function startLine(
  t: TestContext,
  line: [string, ...string[]],
  options: string[],
  command: string[],
  env: NodeJS.ProcessEnv = {},
): Promise<StartedRun> {
  const marker = `TEST_RUN=${process.pid}-${Date.now()}-${runs++}`;
  const [name, value] = marker.split('=') as [string, string];
  const after: (() => unknown)[] = [];
  t.after(async () => {
    for (const end of after) await end();
  });
  const [file, ...args] = line;
  const running = start(t, file, [...args, '--port', '0', ...options, '--', ...command], { ...env, [name]: value });
  after.push(async () => {
    running.child.kill();
    await Promise.race([running.ended, sleep(15_000, null, { ref: false })]);
    running.child.kill('SIGKILL');
    try {
      await until(() => findByVariable(marker).length === 0, () => `left: ${JSON.stringify(findByVariable(marker))}`);
    } finally {
      for (const { pid } of findByVariable(marker)) process.kill(pid, 'SIGKILL');
    }
  });
  await running.shows(/\[(\d+)\] · web API at http:\/\/localhost:(\d+)/);
  const [, pid, port] = (/\[(\d+)\] · web API at http:\/\/localhost:(\d+)/.exec(running.output()) ?? []).map(Number);
  const client = clientAt(t, { host: '127.0.0.1', port: port as number });
  return { running, port: port as number, pid: pid as number, client, marker };
}

export interface Task {
  pid: number;
  name: string;
  parent: number;
  group: number;
  session: number;
  /** Of all threads that have not ended; in a list of all processes, of the first thread only. */
  states: string;
  /** CPU time in clock ticks. */
  ticks: number;
}

/** The processes whose environment has this `NAME=VALUE`. */
export function findByVariable(variable: string): Task[] {
  return listTasks().filter(({ pid }) => tryRead(`/proc/${pid}/environ`).split('\0').includes(variable));
}

/** All processes that have not ended. */
export function listTasks(): Task[] {
  return readdirSync('/proc').filter((name) => /^\d/.test(name)).map(Number).flatMap((pid) => readTask(pid, false));
}

/** Returns nothing if it has ended. */
export function readTask(pid: number, hasThreads: boolean = true): Task[] {
  const [, name = '', rest] = /^\d+ \((.*)\) (.*)$/s.exec(tryRead(`/proc/${pid}/stat`)) ?? [];
  if (rest === undefined) return [];
  const fields = rest.split(' ');
  const [parent, group, session] = fields.slice(1, 4).map(Number) as [number, number, number];
  const threads = hasThreads ? tryList(`/proc/${pid}/task`) : [];
  const all = threads.map((id) => /\) (\w) [^)]*$/.exec(tryRead(`/proc/${pid}/task/${id}/stat`))?.[1] ?? '').join('');
  const states = (hasThreads ? all : fields[0] as string).replaceAll(/[ZX]/g, '');
  const ticks = Number(fields[11]) + Number(fields[12]);
  return states === '' && hasThreads ? [] : [{ pid, name, parent, group, session, states, ticks }];
}

function tryRead(path: string): string {
  try {
    return readFileSync(path, 'latin1');
  } catch {
    return '';
  }
}

function tryList(path: string): string[] {
  try {
    return readdirSync(path);
  } catch {
    return [];
  }
}
