// The systems that list and top show: their rows, and the requests that keep the rows current.

import { setMaxListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { ageOf, type Question, questionsIn } from '../shared/declared.ts';
import { describeDetail, describeEnd, describeStatus, splitDetail } from '../shared/describe.ts';
import { FollowedSystem } from '../shared/system.ts';
import { type Body, describeDuration, excerptOf, printable, timeIn } from '../shared/text.ts';
import { discover } from '../shared/via.ts';
import type { Folder, Found } from '../shared/folder.ts';

const TICK_MS = 1000; // between two requests to a system that is offline
const DETAIL_MS = 2000; // between two requests for a detail
const STEP_MS = 1000; // shorter steps are not shown
const WAIT_S = 20; // each request waits this long for a change: 500 systems must stay cheap
const MAX_ENDED = 100;

const { compare } = new Intl.Collator('en', { numeric: true }); // t2 before t10

export function compareRows(one: Row, other: Row): number {
  return Number(other.asks) - Number(one.asks) || compare(one.machine, other.machine) ||
    compare(one.name, other.name) || compare(`${one.target.name}`, `${other.target.name}`);
}

/** A system in the table. Its texts are safe to print. */
export class Row {
  readonly target: Found;
  readonly system: FollowedSystem;
  /** Whether the system has left the folder. */
  isEnded: boolean = false;

  constructor(target: Found) {
    this.target = target;
    this.system = new FollowedSystem(target.client);
  }

  /** The label of its machine; empty without `--via`. */
  get machine(): string {
    return this.target.client.machine.label;
  }

  /** What tells it from others on its machine. */
  get title(): string {
    const { id } = this.target;
    return excerptOf(this.machine === '' ? id : id.slice(this.machine.length + 1));
  }

  /** As reported, unless that would be another target; with an address, followed by it. */
  get name(): string {
    const { target: { socket }, reportedName } = this;
    if (socket !== undefined) return /^$|[/:]/.test(reportedName) ? excerptOf(socket.name) : reportedName;
    return reportedName === '' ? this.title : `${reportedName} (${this.title})`;
  }

  /** Empty if unknown. */
  get reportedName(): string {
    return excerptOf(this.system.info['name']);
  }

  /** The name with the machine: `gpu1/train`. */
  get fullName(): string {
    return this.machine === '' ? this.name : `${this.machine}/${this.name}`;
  }

  /** The process id of the program, not of control-run. Empty if unknown. */
  get pid(): string {
    const { detail, pid } = this.system.info;
    return excerptOf(splitDetail(detail).run['pid']) || excerptOf(pid) || (this.target.socket?.pid ?? '');
  }

  /** The open questions; none if it does not respond. */
  get #questions(): Question[] {
    return this.system.isCurrent ? questionsIn(this.system.info) : [];
  }

  /** Whether it waits for an answer. */
  get asks(): boolean {
    return this.#questions.length > 0;
  }

  /** How long its oldest question has been open. Empty if unknown, or if there is none. */
  get askAge(): string {
    const [question] = this.#questions;
    return question === undefined ? '' : ageOf(question);
  }

  /** How long it has had its status. Empty if unknown. */
  get age(): string {
    const { since, unansweredSince } = this.system;
    const start = unansweredSince ?? since;
    return start === null ? '' : describeDuration(Math.max(0, Date.now() - start) / 1000);
  }

  /** The latest response, without `heardAt` unless the program was in a step then: it also ages without one. */
  get info(): Body {
    const { info, infoAt } = this.system;
    const heardAt = timeIn(info, 'heardAt') ?? infoAt;
    return infoAt - heardAt < STEP_MS ? { ...info, heardAt: undefined } : info;
  }

  /** The status with sender and reason, or how the system ended, or why the request failed. Begins with `asks`. */
  get story(): string {
    const { status, isCurrent, end, error, reply } = this.system;
    const text = isCurrent ? describeStatus({ ...this.info, since: undefined }) : ''; // it has a column
    if (this.asks) return text === 'active' ? 'asks' : `asks; ${text}`;
    if (isCurrent) return text;
    const isPlain = reply === null || ['offline', 'denied', 'silent'].includes(`${reply.fault}`);
    const more = end !== null ? describeEnd(end) : isPlain ? '' : error;
    return more === '' ? status : `${status}: ${more}`;
  }

  /** What it asks, and the program's own detail. */
  get detail(): string {
    const { info, secondsLeft } = this.system;
    const texts = [...this.#questions.map(({ message }) => message), describeDetail(info['detail'], secondsLeft)];
    return texts.filter((text) => text !== '').join('; ');
  }
}

/** Follows given systems, or all systems in a folder as they come and go. */
export class Fleet {
  /** The rows whose details are requested. */
  visible: readonly Row[] = [];
  readonly #errors: Map<Folder, string> = new Map();
  readonly #signal: AbortSignal;
  readonly #onChange: () => void;
  #rows: readonly Row[] = []; // oldest first
  #sorted: Row[] = [];

  /**
   * @param signal Ends all requests.
   * @param onChange Also called periodically, because durations grow.
   */
  constructor(signal: AbortSignal, onChange: () => void) {
    setMaxListeners(0, signal); // several listeners per system
    this.#signal = signal;
    this.#onChange = onChange;
    const timer = setInterval(() => this.#tick(), DETAIL_MS);
    signal.addEventListener('abort', () => clearInterval(timer));
  }

  /** Sorted by name, first those that ask. */
  get rows(): readonly Row[] {
    return this.#sorted.sort(compareRows); // almost sorted already
  }

  /** Why folders cannot be read; otherwise empty. */
  get error(): string {
    return [...this.#errors.values()].filter((error) => error !== '').join('; ');
  }

  #setRows(rows: readonly Row[]): void {
    [this.#rows, this.#sorted] = [rows, [...rows]];
  }

  /** @param isLasting Whether a system that ends may come back at its address. */
  add(targets: readonly Found[], isLasting: boolean = true): void {
    const rows = targets.map((target) => new Row(target));
    const names = new Set(targets.map(({ name }) => name)); // a new system replaces an ended one at its path
    this.#setRows([...this.#rows.filter(({ target }) => !names.has(target.name)), ...rows]);
    for (const row of rows) void this.#follow(row, isLasting);
  }

  /** Keeps adding the systems in a folder, until the signal. */
  async addAll(folder: Folder, timeoutMs: number): Promise<void> {
    const known = (): Set<string> => {
      return new Set(this.#rows.flatMap(({ isEnded, target: { client } }) => isEnded ? [] : [client.key]));
    };
    for await (const { found, error } of discover(folder, known, timeoutMs, this.#signal)) {
      if (found.length > 0) this.add(found, false);
      this.#errors.set(folder, printable(error));
      this.#onChange();
    }
  }

  #tick(): void {
    for (const row of this.visible) this.#read(row);
    this.#onChange();
  }

  #read({ system, isEnded }: Row): void {
    if (!isEnded) void system.read(this.#onChange, this.#signal).then(this.#onChange);
  }

  async #follow(row: Row, isLasting: boolean): Promise<void> {
    for await (const reply of row.system.follow(this.#signal, WAIT_S)) {
      this.#onChange();
      const hasLeft = row.machine !== '' && !reply.ok && row.target.socket?.exists === false; // it need not refuse
      if (!isLasting && (hasLeft || reply.fault === 'offline')) return this.#keep(row);
      if (!reply.ok) await this.#pause();
    }
  }

  /** Keeps the row of a system that has ended; drops the oldest one if there are too many. */
  #keep(row: Row): void {
    row.isEnded = true;
    const ended = this.#rows.filter(({ isEnded }) => isEnded);
    if (ended.length > MAX_ENDED) this.#setRows(this.#rows.filter((other) => other !== ended[0]));
  }

  async #pause(): Promise<void> {
    await sleep(TICK_MS, undefined, { signal: this.#signal }).catch(() => {});
  }
}
