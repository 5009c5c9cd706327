// control-client log: which logs, and their lines in the order of time; shared/log.ts reads the files.

import { existsSync, statSync } from 'node:fs';
import { hostname } from 'node:os';
import { resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { EXIT, paintStatus, parsePast, suggest, UsageError, warn } from '../shared/cli.ts';
import { ADDRESS_PARTS } from '../shared/client.ts';
import { stateFolder } from '../shared/files.ts';
import { nameInPath, patternOf, type Target } from '../shared/folder.ts';
import {
  byTime, hostOf, isAlive, isLogPath, isOf, type Line, logPathIn, LogReader, logsOfUser, newestOf, Story, timeOf,
} from '../shared/log.ts';
import { select, type Sources } from '../shared/names.ts';
import { type Body, excerptOf, localTime, printableJson } from '../shared/text.ts';
import { foldersOf } from '../shared/via.ts';
import { failure, type Verb, verb } from './verb.ts';

const POLL_MS = 250; // the server thread writes as often
const MAX_SHOWN = 5; // names in an error

interface LogOptions {
  /** In milliseconds; -Infinity for everything. */
  since: number;
  isFollowed: boolean;
  isJson: boolean;
}

/** What a target means: entries in some logs. */
interface Choice {
  paths(): string[];
  isMeant(entry: Body): boolean;
  /** The path is the target. */
  isGiven?: true;
  /** The target, if it is the name of a system that must be in these logs. */
  name?: string | undefined;
  /** Why there is no log of that name although the system runs. */
  obstacle?: string | undefined;
}

/** A system in a log. */
interface Logged {
  path: string;
  name: string;
  pid: number;
  /** NAME-PID, safe to print. */
  title: string;
  story: Story;
  /** Whether its first line may be printed. */
  hasBegun: boolean;
}

/** Prints the logs of the targets: names, addresses and files; without any, all logs of this user on this machine. */
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
  lacks: ['targets', 'all', 'via'],
  async run({ words, values, requestMs, end }) {
    const { since = -Infinity, follow: isFollowed = false, json: isJson = false } = values;
    const far = foldersOf(values).find(({ machine }) => machine.label !== '')?.machine.label;
    const instead = `run ssh ${far} control-client log`;
    if (far !== undefined) throw new UsageError(`log has no --via: it reads files, so ${instead}`);
    const { choices, exitCode } = await choose(words, values, requestMs);
    if (choices.length === 0) return exitCode;
    const logs = new Logs(choices, { since, isFollowed, isJson });
    await logs.read();
    await logs.update();
    logs.checkNames();
    logs.addRunning();
    logs.warnIfEmpty();
    logs.print();
    while (isFollowed && !end.aborted) {
      await sleep(POLL_MS, undefined, { signal: end }).catch(() => {});
      await logs.update();
      logs.print();
    }
    return exitCode;
  },
});

// ───── Targets ───────────────────────────────────────────────────────────────────────────────────────────────────

async function choose(
  words: readonly string[],
  values: Sources,
  timeoutMs: number,
): Promise<{ choices: Choice[]; exitCode: number }> {
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
  if (words.length === 0 && !isAddress) choices.push({ paths: logsOfUser, isMeant: () => true });
  else if (isAddress) await Promise.all((await select(words, { ...values, timeoutMs }, 'all')).targets.map(addRunning));
  for (const word of words) {
    if (isFile(word)) {
      if (!existsSync(word)) throw new UsageError(`there is no log '${word}'`);
      choices.push({ paths: () => [resolve(word)], isMeant: () => true, isGiven: true });
      continue;
    }
    const { targets } = await select([word], { dir: values.dir, timeoutMs, absence: 'none' }, 'all');
    for (const target of targets) {
      if (target.socket === undefined) await addRunning(target);
    }
    if (targets.some(({ socket }) => socket === undefined)) continue;
    const running = await Promise.all(targets.map(findRunning));
    const known = running.filter((found): found is Choice => !('error' in found));
    const [obstacle] = running.flatMap((found) => 'error' in found ? found.error : []);
    const isMeant = (entry: Body): boolean => isNamed(entry, word);
    choices.push(...known, { paths: logsOfUser, isMeant, name: known.length === 0 ? word : undefined, obstacle });
  }
  return { choices, exitCode };
}

/** A socket has a path, too. */
function isFile(word: string): boolean {
  if (/^(unix:|[a-z]+:\/\/)/i.test(word) || !isLogPath(word)) return false;
  if (!existsSync(word) && !/^\.{0,2}\/|\.jsonl$/.test(word)) return false; // a name may have a slash
  return statSync(word, { throwIfNoEntry: false })?.isSocket() !== true;
}

async function findRunning({ client }: Pick<Target, 'client'>): Promise<Choice | { error: string; exitCode: number }> {
  const reply = await client.request('info');
  if (!reply.ok) return { error: reply.error, exitCode: failure(reply).exitCode };
  const { body } = reply;
  const path = logPathIn(body);
  if (path !== null) return { paths: () => [path], isMeant: (entry) => isOf(entry, body) };
  const other = excerptOf(Object(body['log']).path);
  const where = `the log is on the machine ${excerptOf(body['host']) || 'of the system'}: '${other}'`;
  return { error: other === '' ? NO_LOG : where, exitCode: EXIT.REFUSED };
}

const NO_LOG = 'the system keeps no log: it was started without one, or is older than 0.17';

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
  readonly #readers: Map<string, LogReader> = new Map(); // by path
  readonly #systems: Map<string, Logged> = new Map(); // by path, process and name
  readonly #names: Set<string> = new Set(); // of all systems in the logs where a name is looked up, as targets
  readonly #found: Set<Choice> = new Set(); // what the logs have entries of
  readonly #warned: Set<string> = new Set(); // the paths of logs with a warning
  #rows: { title: string; line: Line }[] = []; // not printed yet
  #width = 0; // of the titles

  constructor(choices: readonly Choice[], options: LogOptions) {
    this.#choices = choices;
    this.#options = options;
  }

  warnIfEmpty(): void {
    const { since } = this.#options;
    const start = since === -Infinity ? '' : ` since ${localTime(new Date(since))}`;
    if (this.#readers.size === 0) warn(`there is no log in '${stateFolder()}'`);
    else if (this.#rows.length === 0) warn(`nothing is logged${start}`);
  }

  /** Reads what is new, also in new logs; for the last time, also last lines without a newline. */
  async read(isLast: boolean = false): Promise<void> {
    for (const [path, choices] of this.#choicesByPath()) {
      const reader = this.#readers.get(path) ?? new LogReader(path);
      this.#readers.set(path, reader);
      try {
        for await (const entries of reader.read()) this.#note(path, entries, choices);
        for await (const entries of isLast ? reader.close() : []) this.#note(path, entries, choices);
      } catch (error) {
        const message = `cannot read the log '${path}': ${(error as Error).message}`;
        if (choices.some(({ isGiven }) => isGiven)) throw new UsageError(message);
        this.#warnOnce(path, message);
      }
    }
  }

  /** The same, and finds the systems that have ended without an end in their log. */
  async update(): Promise<void> {
    const dead = [...this.#systems.values()].filter((system) => system.story.isOpen && isDead(system));
    await this.read(!this.#options.isFollowed); // they may have ended since the read before
    for (const system of dead) if (system.story.isOpen) this.#cut(system);
  }

  /** A log that is an older generation of another one is read with that. */
  #choicesByPath(): Map<string, Choice[]> {
    const choices = new Map<string, Choice[]>();
    for (const choice of this.#choices) {
      for (const path of choice.paths()) choices.set(path, [...choices.get(path) ?? [], choice]);
    }
    return new Map([...choices].filter(([path]) => path === newestOf(path) || !choices.has(newestOf(path))));
  }

  /** @throws {UsageError} If there is no entry of a system that is chosen by its name. */
  checkNames(): void {
    for (const choice of this.#choices) {
      const { name, obstacle } = choice;
      if (name === undefined || this.#found.has(choice)) continue;
      if (obstacle !== undefined) throw new UsageError(`${name}: ${obstacle}`);
      const names = [...this.#names].sort();
      const all = names.length === 0 || names.length > MAX_SHOWN ? '' : `, only of ${names.join(', ')}`;
      const where = `'${stateFolder()}'${suggest(name, names) || all}`;
      throw new UsageError(`there is no log of '${name}' in ${where}; a file has a slash or ends in .jsonl`);
    }
  }

  #note(path: string, entries: readonly Body[], choices: readonly Choice[]): void {
    const { since } = this.#options;
    for (const entry of entries) {
      const { name, pid } = entry as { name: string; pid: number };
      if (choices.some((choice) => choice.name !== undefined)) this.#names.add(nameInPath(name));
      const meaning = choices.filter((choice) => choice.isMeant(entry));
      if (meaning.length === 0) continue;
      for (const choice of meaning) this.#found.add(choice);
      const system = this.#systemOf(path, name, pid);
      const isMeant = timeOf(entry) >= since;
      if (isMeant) this.#begin(system);
      const lines = system.story.tell(entry);
      this.#push(system, lines.filter(({ time }) => time >= since), isMeant ? entry : undefined);
    }
  }

  #systemOf(path: string, name: string, pid: number): Logged {
    const key = `${path}\0${pid}\0${name}`;
    const known = this.#systems.get(key);
    if (known !== undefined) return known;
    const { isFollowed, isJson } = this.#options;
    const story = new Story(!isFollowed && !isJson);
    const system = { path, name, pid, title: `${nameInPath(name)}-${pid}`, story, hasBegun: false };
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
    const isShown = this.#isShown(system);
    if (isShown) this.#begin(system);
    const lines = system.story.cut(hostOf(system.path) === hostname());
    if (isShown) this.#push(system, lines);
  }

  /** Whether a system that may have ended is shown. Without an entry since then, only the latest one of its name is. */
  #isShown({ path, name, story: { lastTime } }: Logged): boolean {
    return lastTime >= this.#options.since || [...this.#systems.values()].every((other) => {
      return other.path !== path || other.name !== name || other.story.lastTime <= lastTime;
    });
  }

  /** Adds the systems that still run and have not logged anything since the printed part begins. */
  addRunning(): void {
    for (const system of this.#systems.values()) {
      if (!system.story.isOpen || (isElsewhere(system) && !this.#isShown(system))) continue;
      this.#begin(system);
      this.#push(system, system.story.describeUnfinished());
    }
  }

  /** @param entry With `--json`, it is printed instead of the lines. */
  #push({ title }: Logged, lines: readonly Line[], entry?: Body): void {
    const shown = !this.#options.isJson ? lines : entry === undefined ? [] : [jsonOf(entry)];
    for (const line of shown) this.#rows.push({ title, line });
  }

  print(): void {
    const rows = this.#rows.sort((one, other) => byTime(one.line, other.line));
    this.#rows = [];
    for (const { title } of rows) this.#width = Math.max(this.#width, title.length);
    for (const { title, line: { time, text, status } } of rows) {
      const start = `${localTime(new Date(time))}  ${title.padEnd(this.#width)}  `;
      console.log(this.#options.isJson ? text : start + (status === '' ? text : paintStatus(text, status)));
    }
    for (const [path, { broken }] of this.#readers) {
      const what = broken === 1 ? '1 line is no log entry' : `${broken} lines are no log entries`;
      if (broken > 0) this.#warnOnce(path, `${what} in '${path}'`);
    }
  }

  #warnOnce(path: string, message: string): void {
    if (!this.#warned.has(path)) warn(message);
    this.#warned.add(path);
  }
}

function jsonOf(entry: Body): Line {
  const { time, name, pid, event } = entry;
  const json = printableJson(entry);
  const text = json.startsWith('{') ? json : printableJson({ time, name, pid, event }); // it is nested too deep
  return { time: timeOf(entry), text, status: '', entry };
}

/** Whether it has logged on another machine, so that nobody knows whether it lives. */
function isElsewhere({ path }: Logged): boolean {
  return ![undefined, hostname()].includes(hostOf(path));
}

function isDead(system: Logged): boolean {
  return !isElsewhere(system) && !isAlive(system.pid);
}
