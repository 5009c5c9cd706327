// Shared by the tests of programs that take commands on CONTROL_FD.

import assert from 'node:assert/strict';
import { getDetail, getInfo, ONCE } from '../../helpers.ts';
import { until } from '../../wait.ts';
import { shell, showsDetail, startRun } from './helpers.ts';
import type { Running } from '../../helpers.ts';
import type { StartedRun } from './helpers.ts';
import type { TestContext } from 'node:test';

export const SEVERAL_GRACES_MS = 900; // --grace is 0.3 s

/** Connects the test to the socket: copies standard input to it, and from it to standard output. */
export const RELAY = 'cat <&3 & cat >&3; kill $!; exit 7';

export const HELLO = '{"status":"active"}\n';

export interface Talk extends StartedRun {
  /** Writes lines to the socket: objects as JSON, texts and bytes as they are. */
  say(...lines: (object | string | Buffer)[]): void;
  /** Waits for the next command, which must be this one. Returns its id; ids count from 1. */
  gets(command: string, fields?: object): Promise<number>;
  /** Waits until control-run has read all that was written. */
  taken(): Promise<void>;
  /** Returns what control-run has printed after its banner. */
  complaints(): string;
  /** Waits for a status; on a busy machine, an earlier one may come first. */
  is(status: string): Promise<void>;
}

let markers = 0;

export async function startTalk(
  t: TestContext,
  options: string[] = [],
  script: string = RELAY,
  env: NodeJS.ProcessEnv = {},
): Promise<Talk> {
  let running: Running | undefined;
  t.after(() => running?.child.stdin?.end()); // ends the program at once
  const grace = options.includes('--grace') ? [] : ['--grace', '0.3'];
  const run = await startRun(t, ['--name', 'sh', ...grace, ...options], shell(script), env);
  running = run.running;
  const { child, output } = run.running;
  let stderr = '';
  child.stderr?.on('data', (text: string) => (stderr += text));
  let received = 0;
  const say = (...lines: (object | string | Buffer)[]): void => {
    for (const line of lines) {
      child.stdin?.write(typeof line === 'string' || line instanceof Buffer ? line : `${JSON.stringify(line)}\n`);
    }
  };
  return {
    ...run,
    say,
    async gets(command, fields) {
      const line = `${JSON.stringify({ id: received + 1, command, ...fields })}\n`;
      const commands = (): string[] => output().match(/^\{"id":.*\n/gm) ?? [];
      await run.running.until(() => commands().length > received, () => `no ${line} in: ${output()}`);
      assert.equal(commands()[received], line);
      return received += 1;
    },
    async taken() {
      const marker = `mark ${markers += 1}`;
      say({ detail: { marker } });
      await showsDetail(run, { marker });
    },
    complaints: () => stderr,
    is: (status) => until(async () => (await getInfo(run.port)).status === status, () => `not ${status}: ${output()}`),
  };
}

/** Starts a program that takes the commands itself. */
export async function startListener(...args: Parameters<typeof startTalk>): Promise<Talk> {
  const talk = await startTalk(...args);
  talk.say(HELLO);
  await talk.taken();
  return talk;
}

export async function epochOf({ port }: StartedRun): Promise<number> {
  return ((await getDetail(port)) as { epoch?: number }).epoch ?? -1;
}

/** Waits until a program has written its first line: until then, a pause would stop it. */
export async function talks(run: StartedRun): Promise<void> {
  await until(async () => await epochOf(run) >= 0, () => run.running.output());
}

export async function declarationsOf(port: number): Promise<object> {
  return (await getInfo(port) as unknown as { accepts: object }).accepts;
}

/** Waits until `/api/info` shows commands of these names. */
export async function accepts({ port }: Pick<Talk, 'port'>, ...names: string[]): Promise<void> {
  let declared: string[] = [];
  await until(async () => {
    declared = Object.keys(await declarationsOf(port));
    return declared.join() === names.join();
  }, () => `${declared} instead of ${names}`);
}

/** Sends a command with arguments as JSON. Returns the status code, and the value, the error or the state. */
export async function order(port: number, command: string, body: object | string = ''): Promise<[number, unknown]> {
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  const init = { method: 'POST', headers: { Prefer: 'wait=30', ...ONCE }, body: text };
  const response = await fetch(`http://127.0.0.1:${port}/api/${command}`, init);
  const { state, value, error } = await response.json() as Record<string, unknown>;
  return [response.status, response.status === 200 ? value : error ?? state];
}
