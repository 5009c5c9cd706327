// control-client log: which logs, and their lines in the order of time; shared/logs.ts reads the files.

import { existsSync, statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { EXIT, paintStatus, parsePast, suggest, UsageError, warn } from '../shared/cli.ts';
import { ADDRESS_PARTS, type Machine, THIS_MACHINE } from '../shared/client.ts';
import { stateFolder } from '../shared/files.ts';
import { nameInPath, patternOf, type Target } from '../shared/folder.ts';
import { byTime, type Line, Story, timeOf } from '../shared/log.ts';
import { hearLogs, hostOf, isOf, LOG, logPathIn, type LogRequest, logsOfUser } from '../shared/logs.ts';
import { select, type Sources } from '../shared/names.ts';
import { type Body, excerptOf, localTime, printableJson } from '../shared/text.ts';
import { foldersFor, foldersOf, unreachable } from '../shared/via.ts';
import { failure, type Verb, verb, warnUnreachable } from './verb.ts';

const POLL_MS = 250; // the server thread writes as often
const MAX_SHOWN = 5; // names in an error
const MAX_SKEW_MS = 1000;
const MAX_SYSTEMS = 100_000;
const MAX_WARNINGS = 1000;
const AGAIN_MS = 1000; // after a link has ended

interface LogOptions {
  /** In milliseconds; -Infinity for everything. */
  since: number;
  isFollowed: boolean;
  isJson: boolean;
}

/** What a target means: entries in the logs of a machine. */
interface Choice {
  machine: Machine;
  /** Of one log; otherwise, in those of the user there. */
  path?: string;
  isMeant(entry: Body): boolean;
  /** The path is the target. */
  isGiven?: true;
  /** The target, if it is the name of a system that must be in these logs. */
  name?: string | undefined;
  /** Why there is no log of that name although the system runs. */
  obstacle?: string | undefined;
}

type Failed = { error: string; exitCode: number };

/** A system in a log. */
interface Logged {
  /** Of its machine. */
  label: string;
  path: string;
  name: string;
  pid: number;
  /** NAME-PID, after the label of its machine. Safe to print. */
  title: string;
  story: Story;
  /** Whether its first line may be printed. */
  hasBegun: boolean;
}

/** Prints the logs of the targets: names, addresses and files; without any, all logs of this user. */
export const log: Verb = verb({
  name: 'log', elsewhere: ['logs', 'history'], example: 'log train.py --since 3:00',
  help: 'print what the targets (also FILE), or all systems of this user, have logged, also after their end',
  options: {
    since: {
      type: 'string', value: 'TIME', parse: parsePast,
      help: 'log: begin with the statuses at this time, such as 3:00 or 2026-11-23T03:00, or so long ago, such as 8h',
    },
    follow: { type: 'boolean', help: 'log: also print new lines, until interrupted' },
  },
  lacks: ['targets', 'all'],
  async run({ words, values, requestMs, end }) {
    const { since = -Infinity, follow: isFollowed = false, json: isJson = false } = values;
    const { choices, exitCode } = await choose(words, values, requestMs);
    if (choices.length === 0) return Math.max(exitCode, warnUnreachable());
    const logs = new Logs(choices, { since, isFollowed, isJson });
    await logs.hear(end);
    const farCode = warnUnreachable();
    logs.checkNames();
    logs.warnIfEmpty();
    for (;;) {
      logs.print();
      if (!isFollowed || end.aborted) return Math.max(exitCode, farCode);
      await sleep(POLL_MS, undefined, { signal: end }).catch(() => {});
    }
  },
});

// ───── Targets ───────────────────────────────────────────────────────────────────────────────────────────────────

async function choose(
  words: readonly string[],
  values: Sources,
  timeoutMs: number,
): Promise<{ choices: Choice[]; exitCode: number }> {
  const folders = foldersOf(values);
  const isHere = folders[0]?.machine.label === '';
  const isAddress = ADDRESS_PARTS.some((part) => values[part] !== undefined);
  if (words.length === 0 && !isAddress && values.dir !== undefined) {
    throw new UsageError('--dir requires a target: it is the folder of sockets');
  }
  let exitCode: number = EXIT.DONE;
  const choices: Choice[] = [];
  const addRunning = async (target: Target): Promise<void> => {
    const found = await findRunning(target);
    if (!('error' in found)) return void choices.push(found);
    warn(`${target.title}: ${target.client.shorten(found.error)}`);
    exitCode = Math.max(exitCode, found.exitCode);
  };
  if (isAddress) await Promise.all((await select(words, { ...values, timeoutMs }, 'all')).targets.map(addRunning));
  else if (words.length === 0) choices.push(...folders.map(({ machine }) => ({ machine, isMeant: () => true })));
  for (const word of words) {
    if (isHere ? isFile(word) : /^\.{1,2}\/|\.jsonl$/.test(word)) {
      if (!isHere) throw new UsageError(`--via reads no files, got '${word}'`);
      if (!existsSync(word)) throw new UsageError(`there is no log '${word}'`);
      const path = resolve(word);
      if (statSync(word).isDirectory()) throw new UsageError(`cannot read the log '${path}': it is not a regular file`);
      choices.push({ machine: THIS_MACHINE, path, isMeant: () => true, isGiven: true });
      continue;
    }
    const { targets } = await select([word], { ...values, timeoutMs, absence: 'none' }, 'all');
    for (const target of targets) {
      if (target.socket === undefined) await addRunning(target);
    }
    if (targets.some(({ socket }) => socket === undefined)) continue;
    const [text, meant] = foldersFor(word, folders);
    const isMeant = (entry: Body): boolean => text === '' || isNamed(entry, text);
    const running = await Promise.all(targets.map((target) => findRunning(target, isMeant)));
    const known = running.filter((found): found is Choice => !('error' in found));
    const [obstacle] = running.flatMap((found) => 'error' in found ? found.error : []);
    const name = known.length === 0 && text !== '' ? word : undefined;
    choices.push(...known, ...meant.map(({ machine }) => ({ machine, isMeant, name, obstacle })));
  }
  return { choices, exitCode };
}

/** A socket has a path, too. */
function isFile(word: string): boolean {
  if (/^(unix:|[a-z]+:\/\/)/i.test(word) || !(word.includes('/') || LOG.test(word))) return false;
  if (!existsSync(word) && !/^\.{0,2}\/|\.jsonl$/.test(word)) return false; // a name may have a slash
  return statSync(word, { throwIfNoEntry: false })?.isSocket() !== true;
}

async function findRunning({ client }: Pick<Target, 'client'>, isPast?: Choice['isMeant']): Promise<Choice | Failed> {
  const reply = await client.request('info');
  if (!reply.ok) return { error: reply.error, exitCode: failure(reply).exitCode };
  const [{ body }, { machine }] = [reply, client];
  const path = logPathIn(body);
  const isMeant = (entry: Body): boolean => isOf(entry, body) || isPast?.(entry) === true; // a predecessor
  const other = excerptOf(Object(body['log']).path);
  const obstacle = `its log is on ${machine.label}, but is not found there: '${other}'`;
  if (machine.log !== undefined && other !== '') return { machine, isMeant, name: client.title, obstacle };
  if (path !== null) return { machine, path, isMeant };
  const error = other === ''
    ? 'the system keeps no log: it was started without one, or is older than 0.17'
    : `the log is on the machine ${excerptOf(body['host']) || 'of the system'}: '${other}'`;
  return { error, exitCode: EXIT.REFUSED };
}

/** Whether an entry is of a system with that name or process id, or both: `train`, `2551`, `train-2551`, `train-*`. */
function isNamed({ name, pid }: Body, word: string): boolean {
  const inPath = nameInPath(name as string);
  const pattern = patternOf(word);
  if (pattern !== null) return pattern.test(inPath);
  const isName = (text: string | undefined): boolean => text === name || text === inPath;
  const [, ownName, number] = /^(?:(.+)-)?(\d+)$/s.exec(word) ?? [];
  return isName(word) || (Number(number) === pid && (ownName === undefined || isName(ownName)));
}

// ───── Reading and printing ──────────────────────────────────────────────────────────────────────────────────────

/** The logs that are chosen. */
class Logs {
  readonly #choices: readonly Choice[];
  readonly #options: LogOptions;
  readonly #systems: Map<string, Logged> = new Map(); // by machine, path, process and name
  readonly #latest: Map<string, Story> = new Map(); // by machine, path and name
  readonly #names: Set<string> = new Set(); // of all systems in the logs where a name is looked up, as targets
  readonly #found: Set<string | undefined> = new Set(); // the names of which the logs have entries
  readonly #hosts: Map<string, string> = new Map(); // as in the names of logs, by label
  readonly #warned: Set<string> = new Set(); // the paths of logs with a warning
  readonly #broken: Map<string, number> = new Map(); // lines that are no entries, by path
  #rows: { title: string; line: Line }[] = []; // not printed yet
  #width = 0; // of the titles
  #fault: UsageError | undefined; // a given log cannot be read
  #isPrinted = false;

  constructor(choices: readonly Choice[], options: LogOptions) {
    [this.#choices, this.#options] = [choices, options];
  }

  warnIfEmpty(): void {
    const { since } = this.#options;
    const start = since === -Infinity ? '' : ` since ${localTime(new Date(since))}`;
    const isHere = this.#choices.every(({ machine, path }) => machine.label === '' && path === undefined);
    if (isHere && logsOfUser().length === 0) warn(`there is no log in '${stateFolder()}'`);
    else if (this.#rows.length === 0 && unreachable.size === 0 && !this.#fault) warn(`nothing is logged${start}`);
  }

  /** Resolves when all machines have told all, or cannot be reached. With --follow, hears them until the signal. */
  async hear(end: AbortSignal): Promise<void> {
    const machines = new Map(this.#choices.map(({ machine }) => [machine.label, machine]));
    await Promise.all([...machines.values()].map((machine) => new Promise<void>((done, fail) => {
      this.#hearMachine(machine, end, done).catch(fail);
    })));
  }

  async #hearMachine(machine: Machine, end: AbortSignal, onDone: () => void): Promise<void> {
    const [{ label }, { since, isFollowed: follow }] = [machine, this.#options];
    const choices = this.#choices.filter((choice) => choice.machine.label === label);
    const given = new Set(machine.log === undefined ? choices.map(({ path }) => path ?? `${stateFolder()}/`) : []);
    const request: LogRequest = { follow, ...(since !== -Infinity && { since: new Date(since).toISOString() }) };
    const processes = new Map<number, Set<Logged>>(); // that have not ended, as far as is known
    let [askedAt, hasBegun] = [0, false];
    const take = (note: Body, entries: Body[], others: number): void => {
      const { host, time, path, error, dead, done } = note;
      if (typeof host === 'string') this.#hosts.set(label, host);
      const clock = typeof time === 'number' && label !== '' ? time : Date.now(); // it showed that since `askedAt`
      const aheadMs = Math.max(clock - Date.now(), Math.min(0, clock - askedAt));
      const how = `${Math.round(Math.abs(aheadMs) / 1000)} s ${aheadMs > 0 ? 'ahead' : 'behind'}`;
      if (Math.abs(aheadMs) > MAX_SKEW_MS) this.#warnOnce(label, `the clock of ${label} is ${how}`);
      if (typeof path === 'string') this.#note(label, path, entries, choices, processes);
      const place = `${label && `${label}:`}${excerptOf(path)}`;
      const broken = others + (this.#broken.get(place) ?? 0);
      if (others > 0 && this.#broken.size < MAX_WARNINGS) this.#broken.set(place, broken);
      const fault = error === undefined ? '' : `cannot read the log '${place}': ${excerptOf(error)}`;
      const isGiven = fault !== '' && choices.some((choice) => choice.isGiven && choice.path === path);
      if (isGiven) this.#fault = new UsageError(fault);
      else if (fault !== '') this.#warnOnce(place, fault);
      for (const pid of Array.isArray(dead) ? dead : []) {
        for (const system of processes.get(pid) ?? []) this.#cut(system);
        processes.delete(pid);
      }
      if (done !== true) return;
      if (unreachable.delete(label) && this.#isPrinted) warn(`${label}: its log ${hasBegun ? 'goes on' : 'follows'}`);
      if (!hasBegun) this.#addRunning(label);
      hasBegun = true;
      onDone();
    };
    while (!end.aborted) {
      askedAt = Date.now();
      request.running = [...processes.values()].flatMap((systems) => [...systems].map(({ path, pid }) => [path, pid]));
      const told = hearLogs(machine, request, take, [...given], end);
      const failure = await told.then(() => '', ({ message }) => end.aborted ? '' : `${label}: ${message}`);
      if (failure !== '' && this.#isPrinted && !unreachable.has(label)) warn(failure);
      if (failure !== '') unreachable.set(label, failure);
      onDone();
      if (!follow) return;
      await sleep(AGAIN_MS, undefined, { signal: end }).catch(() => {});
    }
  }

  /** @throws {UsageError} If there is no entry of a system that is chosen by its name. */
  checkNames(): void {
    for (const { name, obstacle, machine } of this.#choices) {
      const isUnknown = this.#choices.some((other) => other.name === name && unreachable.has(other.machine.label));
      if (name === undefined || this.#found.has(name) || isUnknown) continue;
      if (obstacle !== undefined) throw new UsageError(`${name}: ${obstacle}`);
      const names = [...this.#names].sort();
      const all = names.length === 0 || names.length > MAX_SHOWN ? '' : `, only of ${names.join(', ')}`;
      const where = machine.label === '' ? `in '${stateFolder()}'` : 'there';
      const hint = machine.label === '' ? '; a file has a slash or ends in .jsonl' : '';
      throw new UsageError(`there is no log of '${name}' ${where}${suggest(name, names) || all}${hint}`);
    }
  }

  #note(label: string, path: string, entries: Body[], all: Choice[], processes: Map<number, Set<Logged>>): void {
    const { since } = this.#options;
    const choices = all.filter(({ path: own }) => {
      if (own !== undefined) return own === path;
      return label !== '' || (path.endsWith('.jsonl') && dirname(path) === stateFolder());
    });
    for (const entry of entries) {
      const { name, pid } = entry as { name: string; pid: number };
      if (choices.some((choice) => choice.name !== undefined)) this.#names.add(nameInPath(name));
      const meaning = choices.filter((choice) => choice.isMeant(entry));
      if (meaning.length === 0) continue;
      for (const choice of meaning) this.#found.add(choice.name);
      const system = this.#systemOf(label, path, name, pid);
      processes.set(pid, (processes.get(pid) ?? new Set()).add(system));
      const isMeant = timeOf(entry) >= since;
      if (isMeant) this.#begin(system);
      const lines = system.story.tell(entry);
      this.#push(system, lines.filter(({ time }) => time >= since), isMeant ? entry : undefined);
      const key = `${label}\0${path}\0${name}`;
      if (!(this.#latest.get(key)?.lastTime as number > system.story.lastTime)) this.#latest.set(key, system.story);
    }
  }

  #systemOf(label: string, path: string, name: string, pid: number): Logged {
    const key = `${label}\0${path}\0${pid}\0${name}`;
    const known = this.#systems.get(key);
    if (known !== undefined) return known;
    if (label !== '' && this.#systems.size >= MAX_SYSTEMS) throw new Error('too many systems');
    const { isFollowed, isJson } = this.#options;
    const story = new Story(!isFollowed && !isJson);
    const title = `${label === '' ? '' : `${label}/`}${nameInPath(name)}-${pid}`;
    const system = { label, path, name, pid, title, story, hasBegun: false };
    this.#systems.set(key, system);
    return system;
  }

  /** Adds the status of a system that runs when the printed part begins. */
  #begin(system: Logged): void {
    const { hasBegun, story: { isOpen, status } } = system;
    system.hasBegun = true;
    if (!hasBegun) system.story.unfold();
    if (!hasBegun && isOpen && status !== null) this.#push(system, [status], status.entry);
  }

  #cut(system: Logged): void {
    if (!system.story.isOpen || this.#isElsewhere(system)) return;
    const isShown = this.#isShown(system);
    if (isShown) this.#begin(system);
    const lines = system.story.cut(hostOf(system.path) === this.#hosts.get(system.label));
    if (isShown) this.#push(system, lines);
  }

  /** Whether a system that may have ended is shown. Without an entry since then, only the latest one of its name is. */
  #isShown({ label, path, name, story }: Logged): boolean {
    const { lastTime } = this.#latest.get(`${label}\0${path}\0${name}`) ?? story;
    return story.lastTime >= Math.min(this.#options.since, lastTime);
  }

  /** Adds the systems that still run and have not logged anything since the printed part begins. */
  #addRunning(label: string): void {
    for (const system of this.#systems.values()) {
      if (system.label !== label || !system.story.isOpen) continue;
      if (this.#isElsewhere(system) && !this.#isShown(system)) continue;
      this.#begin(system);
      this.#push(system, system.story.describeUnfinished());
    }
  }

  /** @param entry With `--json`, it is printed instead of the lines. */
  #push({ title, label }: Logged, lines: readonly Line[], entry?: Body): void {
    const shown = !this.#options.isJson ? lines : entry === undefined ? [] : [jsonOf(entry, label)];
    for (const line of shown) this.#rows.push({ title, line });
  }

  /** @throws {UsageError} If a given log cannot be read. */
  print(): void {
    this.#isPrinted = true;
    if (this.#fault !== undefined) throw this.#fault;
    const rows = this.#rows.sort((one, other) => byTime(one.line, other.line));
    this.#rows = [];
    for (const { title } of rows) this.#width = Math.max(this.#width, title.length);
    for (const { title, line: { time, text, status } } of rows) {
      const start = `${localTime(new Date(time))}  ${title.padEnd(this.#width)}  `;
      console.log(this.#options.isJson ? text : start + (status === '' ? text : paintStatus(text, status)));
    }
    for (const [path, broken] of this.#broken) {
      const what = broken === 1 ? '1 line is no log entry' : `${broken} lines are no log entries`;
      this.#warnOnce(path, `${what} in '${path}'`);
    }
  }

  /** Whether it has logged on another machine, so that nobody knows whether it lives. */
  #isElsewhere({ label, path }: Logged): boolean {
    return ![undefined, this.#hosts.get(label)].includes(hostOf(path));
  }

  #warnOnce(path: string, message: string): void {
    if (this.#warned.has(path) || this.#warned.size >= MAX_WARNINGS) return;
    this.#warned.add(path);
    warn(message);
  }
}

function jsonOf(entry: Body, machine: string): Line {
  const { time, name, pid, event } = entry;
  const where = machine === '' ? {} : { machine };
  const json = printableJson({ ...entry, ...where });
  const text = json.startsWith('{') ? json : printableJson({ time, name, pid, event, ...where }); // nested too deep
  return { time: timeOf(entry), text, status: '', entry };
}
