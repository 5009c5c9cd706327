// Shared by the tests of --via: commands that start the far end here, with the folder of another session, and a far end
// in the process of the test that says anything.

import { execFileSync } from 'node:child_process';
import { constants, existsSync, openSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { Socket } from 'node:net';
import { join } from 'node:path';
import { unreachable } from '../../../shared/via.ts';
import { type Ended, makeFolder, preload, runProgram } from '../../helpers.ts';
import { until } from '../../wait.ts';
import { call } from '../client/helpers.ts';
import { openSession, type Session } from '../client/systems.ts';
import type { TestContext } from 'node:test';

/** Quotes a word of a command. */
export function quote(word: string): string {
  return `'${word.replaceAll("'", "'\\''")}'`;
}

/** The value of --via for a machine that is this one, with the folder of a session. */
export function via(label: string, { env }: Session, ...command: string[]): string {
  return [`${label}=env CONTROL_DIR=${env.CONTROL_DIR}`, ...command].join(' ');
}

/** The value of --via for a script of a shell, whose arguments start the far end. */
export function viaShell(label: string, script: string): string {
  return `${label}=sh -c ${quote(script)} sh`;
}

/** The options for these machines. */
export function optionsOf(vias: readonly string[]): string[] {
  return vias.flatMap((one) => ['--via', one]);
}

/** Runs control-client as a process with --via, until it ends. */
export function reach(
  t: TestContext,
  vias: readonly string[],
  args: readonly string[],
  env?: NodeJS.ProcessEnv,
): Promise<Ended> {
  return runProgram(t, 'client', [...optionsOf(vias), ...args], '', env);
}

/** The environment of a tool whose limits are twenty times as long: a busy machine may need longer. */
export function patient(source: string = ''): NodeJS.ProcessEnv {
  return preload(`
    import timers from 'node:timers';
    const { setTimeout } = timers;
    const start = (run, ms, ...rest) => setTimeout(run, ms >= 5000 ? 20 * ms : ms, ...rest);
    timers.setTimeout = globalThis.setTimeout = start;
    ${source}
  `);
}

let latest: Promise<unknown> = Promise.resolve();

/**
 * The same in this process, where a link stays open for the next call. One call at a time, because all warn of each
 * machine that is unreachable, and read the same environment.
 */
export function callVia(
  vias: readonly string[],
  args: readonly string[],
  env: NodeJS.ProcessEnv = {},
): Promise<Ended> {
  const ended = latest.then(async () => {
    const before = { ...process.env };
    Object.assign(process.env, env);
    unreachable.clear();
    const alive = setInterval(() => {}, 60_000); // as the process of the tool stays
    try {
      return await call([...optionsOf(vias), ...args]);
    } finally {
      clearInterval(alive);
      for (const name of Object.keys(env)) delete process.env[name];
      Object.assign(process.env, before);
    }
  });
  latest = ended.catch(() => {});
  return ended;
}

// ───── Machines ──────────────────────────────────────────────────────────────────────────────────────────────────

/** A machine that is this one, with the folder of another session. */
export interface Machine extends Session {
  /** The value of --via. */
  via: string;
  /** Ends all links, and refuses new ones. */
  leave(): void;
  comeBack(): void;
  /** The processes of all links so far. */
  links(): number[];
}

/** Opens a machine that can leave and come back. */
export function openMachine(t: TestContext, label: string): Machine {
  const session = openSession(t);
  const folder = makeFolder(t);
  const [script, gone, pids] = ['script', 'gone', 'pids'].map((name) => join(folder, name)) as [string, string, string];
  writeFileSync(script, `
    [ -e '${gone}' ] && { echo 'no route to host' >&2; exit 255; }
    echo $$ >> '${pids}'
    CONTROL_DIR='${session.env.CONTROL_DIR}' exec "$@"
  `);
  const links = (): number[] => existsSync(pids) ? readFileSync(pids, 'utf8').trim().split('\n').map(Number) : [];
  const leave = (): void => {
    writeFileSync(gone, '');
    for (const pid of links()) {
      try {
        process.kill(pid, 'SIGKILL');
      } catch {} // it has ended
    }
    rmSync(pids, { force: true });
  };
  return { ...session, via: `${label}=sh ${script}`, leave, comeBack: () => rmSync(gone), links };
}

// ───── A far end in this process ─────────────────────────────────────────────────────────────────────────────────

const HELLO = '\ncontrol-dial 1\n';

type OnFrame = (far: Far, stream: string, data: string) => void;

/** What a far end does. By default, it lists a system that is active. */
export interface Manners {
  /** What it writes when its command starts. */
  hello?: string;
  /** Whether it writes byte for byte. */
  isSlow?: boolean;
  START?: OnFrame;
  LIST?: OnFrame;
  OPEN?: OnFrame;
  DATA?: OnFrame;
  LOG?: OnFrame;
  PING?: OnFrame;
}

/** A far end, as its manners see it. */
export interface Far {
  write(text: string): void;
  send(stream: number | string, type: string, data?: string): void;
  list(...paths: string[]): void;
  /** Sends a response. */
  reply(stream: string, body?: object): void;
  /** Writes a text again and again, as fast as it is read. */
  flood(text: string, length: number, onEnd?: () => void): void;
  /** Ends the command with exit code 0. Started again, it never says a word. */
  end(): void;
}

/** A frame as a line. */
export function frame(stream: number | string, type: string, data: string = ''): string {
  return `${stream} ${type} ${Buffer.from(data).toString('base64')}\n`;
}

/** What the far end reports by default. */
const REPORT = { status: 'active', result: 'ok', name: 'train', pid: 7 };

/** The value of --via for a command that passes its input and output on to a far end in this process. */
export function viaFake(t: TestContext, label: string, manners: Manners = {}): string {
  const folder = makeFolder(t);
  const [script, up, down] = ['script', 'up', 'down'].map((name) => join(folder, name)) as [string, string, string];
  execFileSync('mkfifo', [up, down]);
  writeFileSync(script, `
    exec 3<&0
    echo START >${up}
    { cat <&3 >${up}; kill $$; } 2>/dev/null &
    cat <${down}
    kill $!
    exit 0
  `);
  const [input, output] = [up, down].map((path) => openSync(path, constants.O_RDWR | constants.O_NONBLOCK)) as [
    number, number,
  ];
  const reading = new Socket({ fd: input, writable: false });
  const writing = new Socket({ fd: output, readable: false });
  for (const socket of [reading, writing]) {
    t.after(() => socket.destroy());
    socket.unref().on('error', () => {});
  }
  const write: Far['write'] = (text) => {
    if (writing.destroyed) return;
    for (const part of manners.isSlow === true ? text : [text]) writing.write(part, 'latin1');
  };
  const far: Far = {
    write,
    send: (...parts) => write(frame(...parts)),
    list: (...paths) => write(frame(0, 'LIST', paths.join('\0'))),
    reply(stream, body = REPORT) {
      const json = JSON.stringify(body);
      const head = [
        'HTTP/1.1 200 OK', 'Content-Type: application/json', 'Connection: close',
        `Content-Length: ${Buffer.byteLength(json)}`,
      ];
      write(frame(stream, 'DATA', `${head.join('\r\n')}\r\n\r\n${json}`));
    },
    flood(text, length, onEnd = () => {}) {
      if (length <= 0 || writing.destroyed) return onEnd();
      writing.write(text, 'latin1', () => far.flood(text, length - text.length, onEnd));
    },
    end: () => writing.destroy(),
  };
  const onFrame: Record<string, OnFrame | undefined> = {
    START: manners.START ?? (() => write(manners.hello ?? HELLO)),
    LIST: manners.LIST ?? (() => far.list('/far/train-7.sock')),
    OPEN: manners.OPEN ?? ((_, stream) => far.send(stream, 'OPEN')),
    DATA: manners.DATA ?? ((_, stream) => far.reply(stream)),
    LOG: manners.LOG,
    PING: manners.PING,
  };
  let rest = '';
  reading.setEncoding('latin1').on('data', (chunk) => {
    const lines = `${rest}${chunk}`.split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) {
      const [stream = '', type = stream, data = ''] = line.split(' ');
      onFrame[type]?.(far, stream, String(Buffer.from(data, 'base64')));
    }
  });
  return `${label}=sh ${script}`;
}

// ───── Processes and files ───────────────────────────────────────────────────────────────────────────────────────

/** The processes with a text in their environment, on Linux. */
export function processesWith(text: string): number[] {
  return readdirSync('/proc').filter((name) => /^\d+$/.test(name)).map(Number).filter((pid) => {
    try {
      return pid !== process.pid && readFileSync(`/proc/${pid}/environ`, 'latin1').includes(text);
    } catch {
      return false; // it has ended, or is another user's
    }
  });
}

/** Waits until a file has as many lines, and returns them. */
export async function linesIn(path: string, count: number = 1): Promise<string[]> {
  let lines: string[] = [];
  await until(() => {
    try {
      lines = readFileSync(path, 'utf8').split('\n').slice(0, -1);
    } catch {} // it does not exist yet
    return lines.length >= count;
  }, () => `fewer than ${count} lines in ${path}: ${lines.join(', ')}`);
  return lines;
}
