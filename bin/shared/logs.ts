// Which logs there are, here and on other machines, and what is in them. Whoever has a log tells it as lines:
//
//   #{"host":"gpu1","time":1764531604123}                      first: its name, and its clock
//   {"time":"2026-11-30T18:40:04.123Z","name":"train", …       lines of a log; then which, and how far files are told
//   #{"path":"/…/train@gpu1.jsonl","ends":{"…":4096}}
//   #{"dead":[4711]}                                           processes in such lines that have ended
//   #{"done":true}                                             all is told; with `follow`, what is new follows

import { readdirSync, statSync } from 'node:fs';
import { isIPv4 } from 'node:net';
import { hostname, networkInterfaces } from 'node:os';
import { basename, isAbsolute, join } from 'node:path';
import { addAbortSignal } from 'node:stream';
import { stateFolder } from './files.ts';
import { nameInPath } from './folder.ts';
import { describeLog, type Line, parseEntry, parseRecord } from './log.ts';
import { type Body, excerptOf } from './text.ts';
import type { FileHandle } from 'node:fs/promises';
import type { Machine, PrintableClient } from './client.ts';

/** What is asked. On another machine, anybody may ask. */
export interface LogRequest {
  /** Lines that are much older may be left out unless the statuses and commands of this time follow from them. */
  since?: string;
  follow?: boolean;
  /** Only of this log, if it is one, and only the latest lines. */
  path?: string;
  /** By log: how far its files are known, by the beginning of their first line, which a copy shares. */
  known?: Record<string, Record<string, number>>;
  running?: (readonly [path: string, pid: number])[]; // processes in these logs
}

/**
 * Tells logs: without `given`, those that live systems name and those in the state folder of this user, the last 4 MiB
 * of each file. Runs as text elsewhere, so it refers to nothing outside itself.
 *
 * @param request A LogRequest as JSON.
 * @param live The sockets of live systems.
 * @param write Fails when nobody hears.
 * @param given Logs, and folders with logs, which end with a slash.
 */
export async function tellLogs(
  request: string,
  live: Iterable<readonly [path: string, id: string]>,
  write: (text: string) => Promise<void>,
  given?: readonly string[],
): Promise<void> {
  const { constants, readdirSync } = process.getBuiltinModule('node:fs');
  const { open, stat } = process.getBuiltinModule('node:fs/promises');
  const { get } = process.getBuiltinModule('node:http');
  const { homedir, hostname } = process.getBuiltinModule('node:os');
  const { basename, dirname, isAbsolute, join } = process.getBuiltinModule('node:path');
  let home = '/';
  try { home = homedir(); } catch {} // in a container, the user may have a number only
  const { since, follow, path: only, known = {}, running = [] } = JSON.parse(request) as LogRequest;
  const isAll = since === undefined || given !== undefined; // whoever reads files here chooses
  const recent = isAll ? '' : new Date(Date.parse(since) - 60_000).toISOString(); // servers may repeat the latest lines
  const { XDG_STATE_HOME: state = '' } = process.env;
  const ours = given ?? [join(isAbsolute(state) ? state : join(home, '.local/state'), 'control/')];
  const maxSize = only !== undefined ? 2 ** 20 : given === undefined ? 2 ** 22 : Infinity;
  const buffer = Buffer.alloc(2 ** 16); // no server writes a longer line
  const ends = new Map(Object.entries(known)); // as in `known`
  const states = new Map<string, [state: string, rounds: number]>(); // of the latest file of each log
  const sizes = new Map<string, number>(); // of older files in the round before
  const opened = new Map<string, FileHandle>(); // the latest file of each log, which may get another name
  const asked = new Set<string>(); // live sockets
  const named = new Set<string>(); // logs of live systems
  const held = new Set<string>(); // systems whose status is told after the outcome of a save or a shutdown
  const settled = new Set<string>(); // commands and questions with an outcome
  const pids = new Set<number>();
  let [isLast, serial] = [false, 0];

  /** Asks a live system for its log. */
  async function ask(socketPath: string, id: string): Promise<void> {
    asked.add(`${socketPath},${id}`);
    try {
      const asking = get({ socketPath, path: '/api/info', agent: false, signal: AbortSignal.timeout(2000) });
      const response = await new Promise<any>((done, fail) => asking.on('response', done).on('error', fail));
      let text = '';
      for await (const chunk of response.setEncoding('utf8')) if ((text += chunk).length > 2 ** 20) asking.destroy();
      const { host, log } = JSON.parse(text);
      if (host === hostname() && isAbsolute(log.path)) named.add(log.path);
    } catch {} // it has none, requires a token, or does not answer
  }

  function namesIn(folder: string): string[] {
    try { return readdirSync(folder); } catch { return []; } // whoever can read a file need not be able to list these
  }

  /** The files of a log, the newest first. */
  function filesOf(log: string): string[] {
    const names = namesIn(dirname(log)).filter((name) => name.replace(/\.\d+$/, '.') === `${basename(log)}.`);
    const numbers = names.map((name) => Number(name.slice(basename(log).length + 1))).sort((one, other) => one - other);
    return [log, ...numbers.map((number) => `${log}.${number}`)].slice(0, only === undefined ? undefined : 2);
  }

  /** Yields what is new in a file, in whole lines. A server may still append to an older one. */
  async function* read(file: FileHandle, told: Record<string, number>, log: string, isOlder: boolean) {
    const { ino, size } = await file.stat();
    const begin = buffer.toString('latin1', 0, (await file.read(buffer, 0, 100, 0)).bytesRead);
    const key = /(?<=^\{"time":)"[\d:.T-]+Z[^\n]*/.exec(begin)?.[0] ?? `${ino}`; // no secret
    let end = told[key] ?? Math.max(0, size - maxSize);
    let isTorn = end > 0 && told[key] === undefined; // it starts within a line
    if (!(end >= 0 && end <= size)) end = isOlder ? size : 0; // it is a copy, or has been truncated
    const isWhole = isLast || (isOlder && (!follow || sizes.get(log + key) === size)); // a last line needs no newline
    if (isOlder) sizes.set(log + key, size);
    while (end < size) {
      const { bytesRead } = await file.read(buffer, 0, buffer.length, end);
      const length = buffer.subarray(0, bytesRead).lastIndexOf(10) + 1;
      if (bytesRead === 0 || (length === 0 && bytesRead < buffer.length && !isWhole)) return;
      const lines = buffer.toString('utf8', 0, length || bytesRead).split('\n').slice(isTorn ? 1 : 0);
      isTorn = length === 0;
      told[key] = end += length || bytesRead;
      yield lines.filter((line) => line.trim() !== '');
    }
  }

  /**
   * Keeps what the state of a system later follows from: not passing statuses, and no commands and questions that have
   * ended, but its latest line. Returns false if a line is recent.
   */
  function keep(line: string, kept: Map<string, string>): boolean {
    let entry: Record<string, unknown> = {};
    try { entry = JSON.parse(line); } catch {}
    const { time = '', name, pid, event, id, status, command, during } = entry;
    if (String(time) >= recent) return false;
    const system = `${pid} ${name}`;
    const one = `${system} ${id}`;
    const isBegin = event === 'command' || event === 'ask';
    if (isBegin && settled.has(one)) return true; // it is repeated
    const isEnd = event === 'outcome' || event === 'answer';
    if (isEnd && settled.add(one)) kept.delete(one);
    const isLasting = event === 'status' && status !== 'pausing' && status !== 'resuming';
    if (isLasting && (during !== undefined || status === 'shutting down')) held.add(system);
    const isSave = command === 'save-state' || command === 'shutdown';
    const isState = event === 'status' ? isLasting : !isEnd || (isSave && held.delete(system));
    const key = isBegin ? one : isState ? `${serial += 1}` : system;
    kept.delete(key); // it moves to the end
    kept.set(key, line);
    return true;
  }

  /** Tells what is new in a log. */
  async function tell(path: string): Promise<void> {
    const state = await stat(path).then(({ ino, size, ctimeMs }) => `${ino} ${size} ${ctimeMs}`, () => '');
    const isNew = !states.has(path);
    const [earlier, rounds] = states.get(path) ?? ['', 0];
    states.set(path, [state, state === earlier ? rounds + 1 : 0]);
    if (state === earlier && state !== '' && rounds > 1 && !isLast) return; // nothing is new
    let kept: Map<string, string> | null = isNew && !isAll ? new Map() : null;
    for (const one of [held, settled]) one.clear();
    for (const [log, pid] of running) if (isNew && log === path) pids.add(pid);
    const told = { ...ends.get(path) };
    const send = (lines: readonly string[], note: object): Promise<void> => {
      return write(`${lines.join('\n')}\n#${JSON.stringify({ path, ...note })}\n`);
    };
    const before = opened.get(path); // it may have another name now, or none
    const files = before === undefined ? [] : [before]; // the oldest first
    try {
      for (const one of filesOf(path)) {
        try {
          if (!(await stat(one)).isFile()) throw new Error('it is not a regular file'); // opening a device has effects
          const file = await open(one, constants.O_RDONLY | (constants.O_NONBLOCK ?? 0));
          files[one === path ? 'push' : 'unshift'](file);
          if (one === path) opened.set(path, file);
          if ((await file.stat()).size > maxSize) break; // there would be a gap
        } catch ({ code, message }: any) {
          const isNamed = isNew && (named.has(one) || ours.includes(one));
          if (code !== 'ENOENT' || isNamed) await send([], { error: message });
        }
      }
      for (const file of files) {
        try {
          for await (const all of read(file, told, path, file !== before && file !== opened.get(path))) {
            const lines = all.map((line) => {
              for (const [, pid] of line.matchAll(/"pid"\s*:\s*(-?\d+)/g)) pids.add(Number(pid));
              const isEntry = given !== undefined || /^\s*\{.*?"time"\s*:\s*"\d.*?"pid"/s.test(line);
              return isEntry ? line : '?'; // it may be a secret
            });
            const first = lines.findIndex((line) => kept === null || !keep(line, kept));
            if (first < 0) continue;
            await send([...kept?.values() ?? [], ...lines.slice(first)], { ends: told });
            kept = null;
          }
        } catch ({ message }: any) {
          await send([], { error: message }); // this fails, too, if nobody hears
        }
      }
      if (kept !== null && kept.size > 0) await send([...kept.values()], { ends: told });
      ends.set(path, told);
    } finally {
      for (const file of files) if (file !== opened.get(path)) await file.close();
    }
  }

  await write(`#${JSON.stringify({ host: hostname(), time: Date.now() })}\n`);
  try {
    for (let round = 0; round < 3 || follow; round += 1) {
      isLast = round > 0 && !follow;
      const dead = [...pids].filter((pid) => {
        try { return pid <= 0 || !process.kill(pid, 0); } catch ({ code }: any) { return code !== 'EPERM'; }
      });
      const isFound = only !== undefined && ours.includes(`${dirname(only)}/`); // so nobody needs to be asked
      const asks = [...live].filter((one) => !isFound && !asked.has(`${one}`)).map(([path, id]) => ask(path, id));
      const paths = new Set(named);
      for (const path of ours) {
        const names = path.endsWith('/') ? namesIn(path).filter((name) => /\.jsonl(\.\d+)?$/.test(name)) : [''];
        for (const name of names) paths.add(name === '' ? path : join(path, name.replace(/(?<=\.jsonl)\.\d+$/, '')));
      }
      const isOlder = (path: string): boolean => /\.\d+$/.test(path) && paths.has(path.replace(/\.\d+$/, ''));
      const logs = [...paths].filter((path) => !isOlder(path) && (only === undefined || only === path)).sort();
      for (const path of logs) await tell(path);
      for (const pid of dead) pids.delete(pid);
      for (let from = 0; from < dead.length; from += 1000) {
        await write(`#${JSON.stringify({ dead: dead.slice(from, from + 1000) })}\n`);
      }
      if (round === 0) await Promise.all(asks); // up to 2 s, when all that needs no answer is told
      await write(round === 2 ? '#{"done":true}\n' : '');
      if (round > 1 && follow) await new Promise((resolve) => setTimeout(resolve, given === undefined ? 500 : 250));
    }
  } finally {
    for (const file of opened.values()) await file.close();
  }
}

const MAX_LENGTH = 2 ** 29; // characters until another machine has told all; a line and an object count 200 more
const MAX_UNTOLD = 2 ** 24; // characters before it says which log they are from
const MAX_LOGS = 5000;
const MAX_SILENT_MS = 10_000; // until it has told all
const MAX_MS = 120_000; // the same, although it is not silent

/**
 * Hears logs until all is told; with `follow`, until the signal. Another call with the same request goes on.
 *
 * @param take Called with what begins with #, which may be anything, the entries before, and the number of other lines.
 * @param given Logs, and folders with logs, of this machine: see `tellLogs()`.
 * @throws {Error} Why not all is told, or that the signal has ended it.
 */
export async function hearLogs(
  machine: Machine,
  request: LogRequest,
  take: (note: Body, entries: Body[], broken: number) => void,
  given: readonly string[],
  signal?: AbortSignal,
): Promise<void> {
  const known = request.known ??= {};
  let [rest, length, untold, logs, broken, isDone, entries] = ['', 0, 0, 0, 0, false, [] as Body[]];
  const hear = (text: string): void => {
    const lines = (rest + text).split('\n');
    rest = lines.pop() as string;
    untold += text.length;
    if (machine.log !== undefined) length += text.length + 200 * text.split(/[[{\n]/).length;
    for (const line of lines) {
      if (!line.startsWith('#')) {
        const entry = parseEntry(line);
        if (entry !== null) entries.push(entry);
        else if (line !== '') broken += 1;
        continue;
      }
      const note = parseRecord(line.slice(1)) ?? {};
      take(note, entries, broken);
      [entries, broken, untold] = [[], 0, 0];
      const { path, ends } = note;
      if (typeof path === 'string' && ends !== undefined && known[path] === undefined) logs += 1;
      if (typeof path === 'string' && ends !== undefined) known[path] = Object(ends);
      isDone ||= note['done'] === true;
      if (isDone) length = 0;
    }
    if (machine.log === undefined) return;
    if (untold > MAX_UNTOLD || logs > MAX_LOGS) throw new Error('it sent what is not a log');
    const most = request.path === undefined ? MAX_LENGTH : MAX_LENGTH / 16;
    if (length > most) throw new Error('it sent too much: write --since TIME');
  };
  const hearHere = async (text: string): Promise<void> => signal?.aborted ? Promise.reject(signal.reason) : hear(text);
  if (machine.log === undefined) return tellLogs(JSON.stringify(request), [], hearHere, given);
  const stream = await machine.log(JSON.stringify(request));
  const startedAt = performance.now();
  const slow = new Error('it tells its logs too slowly, or not at all');
  const limit = setTimeout(() => stream.destroy(slow), MAX_SILENT_MS);
  if (signal !== undefined) addAbortSignal(signal, stream);
  try {
    for await (const text of stream.setEncoding('utf8') as AsyncIterable<string>) {
      hear(text);
      if (isDone && request.follow !== true) return;
      if (isDone) clearTimeout(limit);
      else if (performance.now() - startedAt < MAX_MS) limit.refresh();
    }
    throw new Error('it stopped telling its logs');
  } finally {
    clearTimeout(limit);
    stream.destroy();
  }
}

// ───── The files ─────────────────────────────────────────────────────────────────────────────────────────────────

/** The log of control-run and control-demo, unless an option names another one. */
export function logFileOf(name: string): string {
  return join(stateFolder(), `${nameInPath(name)}@${hostname()}.jsonl`);
}

/** The logs in the state folder, each without its older generations. None if there is no folder. */
export function logsOfUser(): string[] {
  const folder = stateFolder();
  const names = namesIn(folder).filter((name) => LOG.test(name));
  return [...new Set(names.map((name) => join(folder, name.replace(LOG, '.jsonl'))))].sort();
}

/** The name of the system in the path of a log, if it is named like a default one. */
export function nameInLogPath(path: string): string {
  return /^(.*)@[^@]*\.jsonl$/s.exec(basename(path))?.[1] ?? '';
}

/** The machine in the path of a log, if it is named like a default one. */
export function hostOf(path: string): string | undefined {
  return /@([^@]*)\.jsonl(\.\d+)?$/.exec(basename(path))?.[1];
}

/** The path of the log of a running system; null if it keeps none, or on another machine. It may be any path. */
export function logPathIn({ host, log }: Body): string | null {
  const path: unknown = Object(log).path;
  const isHere = host === hostname() && typeof path === 'string' && isAbsolute(path) && !path.includes('\0');
  return isHere ? path : null;
}

/** The end of the name of a log: `train@gpu1.jsonl`, or an older generation, `train@gpu1.jsonl.1`. */
export const LOG: RegExp = /\.jsonl(\.\d+)?$/;

function namesIn(folder: string): string[] {
  return statSync(folder, { throwIfNoEntry: false }) === undefined ? [] : readdirSync(folder);
}

/** Whether an entry is of a system. */
export function isOf(entry: Body, { name, pid }: Body): boolean {
  return entry['name'] === name && entry['pid'] === pid;
}

// ───── The latest lines of a system ──────────────────────────────────────────────────────────────────────────────
// The system may report any path and any host: only what it has logged itself is read, and no note says which files
// exist.

const MAX_LINES = 201; // one more than a tool shows
const NO_LOG = 'does not log: start it with --log FILE, or with the option log of launch()';

interface History {
  /** Where the log is if it is not here, or what is wrong with it: `logs on gpu1 to /…`. Otherwise empty. */
  note: string;
  /** The oldest first. Safe to print. */
  lines: readonly Line[];
}

const reads: Map<string, Promise<History>> = new Map(); // in progress, by the key of the client

/**
 * Returns the latest 201 lines of the log of a system if it can be read. There is one read per system at a time,
 * whatever it reports: calls during a read share the result.
 *
 * @param info The latest body of its /api/info; the system may have ended.
 */
export function readHistory(client: PrintableClient, info: Body): Promise<History> {
  const { key } = client;
  const read = reads.get(key) ?? readNow(client, info).finally(() => reads.delete(key));
  reads.set(key, read);
  return read;
}

async function readNow(client: PrintableClient, info: Body): Promise<History> {
  const { path, error } = Object(info['log']) as Body;
  const [place, host, fault] = [path, info['host'], error].map((field) => excerptOf(field));
  if (!hasLog(info)) return { note: NO_LOG, lines: [] };
  const [{ machine }, file] = [client, logPathIn(info)];
  const elsewhere = `logs on ${host || 'an unknown machine'} to ${place}`;
  const isHere = file !== null && isOfThisMachine(client);
  if (machine.log === undefined && !isHere) return { note: elsewhere, lines: [] };
  const own: Body[] = [];
  const take = (_: Body, entries: Body[]): void => void own.push(...entries.filter((entry) => isOf(entry, info)));
  const told = hearLogs(machine, { path: String(path) }, take, [file ?? '']);
  const failure = await told.then(() => '', ({ message }: Error) => excerptOf(message));
  const lines = describeLog(own).slice(-MAX_LINES);
  const absence = machine.log === undefined ? `no readable entries in ${place}` : elsewhere;
  const note = fault ? `cannot write to ${place}: ${fault}` : lines.length === 0 ? absence : '';
  return { note: machine.log === undefined ? note : failure || note, lines };
}

/** Whether a system reports that it logs to a file. */
export function hasLog(info: Body): boolean {
  return excerptOf(Object(info['log']).path) !== '';
}

/** Whether the address is one of this machine. A system elsewhere may report the name and the files of this one. */
function isOfThisMachine({ machine, socketPath, baseUrl }: PrintableClient): boolean {
  if (machine.label !== '') return machine.connect === undefined;
  if (socketPath !== undefined) return true;
  const { hostname: host } = new URL(baseUrl);
  if (host === 'localhost' || (isIPv4(host) && host.startsWith('127.'))) return true;
  const addresses = Object.values(networkInterfaces()).flatMap((entries = []) => entries.map(({ address }) => address));
  const name = hostname().toLowerCase(); // as in a URL
  return [name, name.split('.')[0], '::1', ...addresses].includes(host.replace(/^\[(.*)\]$/, '$1'));
}
