// Shared by the tests of --via: commands that start the far end here, with the folder of another session, and programs
// that take its place.

import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { makeFolder, runProgram } from '../../helpers.ts';
import { until } from '../../wait.ts';
import type { Ended } from '../../helpers.ts';
import type { TestContext } from 'node:test';
import type { Session } from '../client/systems.ts';

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

/** Runs control-client as a process with --via, until it ends. */
export function reach(
  t: TestContext,
  vias: readonly string[],
  args: readonly string[],
  env?: NodeJS.ProcessEnv,
): Promise<Ended> {
  return runProgram(t, 'client', [...vias.flatMap((one) => ['--via', one]), ...args], '', env);
}

const FAR_END = `
const { stdin, stdout } = process;
const HELLO = '\\ncontrol-dial 1\\n';
const frame = (stream, type, data = '') => stream + ' ' + type + ' ' + Buffer.from(data).toString('base64') + '\\n';
const send = (...parts) => stdout.write(frame(...parts));
const list = (...paths) => send(0, 'LIST', paths.join('\\0'));
const reply = (stream, body) => {
  const json = JSON.stringify(body);
  const type = 'Content-Type: application/json\\r\\nConnection: close\\r\\n';
  const length = 'Content-Length: ' + Buffer.byteLength(json) + '\\r\\n';
  send(stream, 'DATA', 'HTTP/1.1 200 OK\\r\\n' + type + length + '\\r\\n' + json);
};
/** Writes a text again and again, as fast as it is read. */
const flood = (text, left, onEnd = () => {}) => {
  for (let isRead = true; isRead && left > 0; left -= text.length) isRead = stdout.write(text);
  if (left > 0) stdout.once('drain', () => flood(text, left, onEnd));
  else onEnd();
};
const onFrame = {
  LIST: () => list('/far/train-7.sock'),
  OPEN: (stream) => send(stream, 'OPEN'),
  DATA: (stream) => reply(stream, { status: 'active', result: 'ok', name: 'train', pid: 7 }),
};
let rest = '';
stdin.setEncoding('latin1').on('data', (chunk) => {
  const lines = (rest + chunk).split('\\n');
  rest = lines.pop();
  for (const line of lines) {
    const [stream, type, data = ''] = line.split(' ');
    onFrame[type]?.(stream, Buffer.from(data, 'base64').toString());
  }
}).on('end', () => process.exit());
stdout.on('error', () => process.exit());
`;

/**
 * The value of --via for a program in place of the far end. By default, it lists a system that is active.
 *
 * @param source Its statements, which may replace `onFrame.LIST` and others; they send the hello.
 */
export function viaProgram(t: TestContext, label: string, source: string = 'stdout.write(HELLO);'): string {
  const path = join(makeFolder(t), 'far.cjs');
  writeFileSync(path, FAR_END + source);
  return `${label}=${quote(process.execPath)} ${quote(path)}`;
}

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
