// The systems that list and top show: their rows, and the requests that keep the rows current.

import { setMaxListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../control.ts';
import {
  describeDetail, describeDuration, describeEnd, describeStatus, progressOf, secondsSince, splitDetail,
} from '../shared/words/describe.ts';
import { Shutdown } from '../shared/reach/end.ts';
import { observe } from '../shared/reach/observe.ts';
import { isAbsent, isDenied, isUnanswered, statusNameOf } from '../shared/reach/replies.ts';
import { excerptOf, printable } from '../shared/words/text.ts';
import type { Body } from '../shared/words/describe.ts';
import type { PrintableReply } from '../shared/reach/replies.ts';
import type { Target } from '../shared/reach/targets.ts';

const TICK_MS = 1000; // between two scans of the folder, or two requests to a system that is offline
const DETAIL_MS = 2000; // between two requests for a detail
const WAIT_S = 20; // each request waits this long for a change: 500 systems must stay cheap
const HANG_MS = 2000; // a system that ends closes its connections sooner
const PACE_MS = 60_000; // the time left is computed from the pace of the last minute
const MAX_ENDED = 100;
const { ACTIVE, OFFLINE } = SystemStatus;

const { compare } = new Intl.Collator('en', { numeric: true }); // t2 before t10

export function compareRows(one: Row, other: Row): number {
  return compare(one.name, other.name) || compare(`${one.target.name}`, `${other.target.name}`);
}

/** A system in the table. Its texts are safe to print. */
export class Row {
  readonly target: Target;
  name: string;
  /** The process id of the program, not of control-run. Empty if unknown. */
  pid: string;
  /** Empty before the first reply. */
  status: string = '';
  /** The status with sender and reason, or how the system ended, or why the request failed. */
  story: string = '';
  /** The program's own detail. */
  detail: string = '';
  /** Why the request failed, unless the status says it. */
  error: string = '';
  /** The latest response to `info`. */
  info: Body = {};
  /** Whether the system has left the folder. */
  isEnded: boolean = false;
  /** Whether a request for its detail is pending. */
  isAsked: boolean = false;
  readonly #shutdown = new Shutdown();
  #end: Body | null = null; // the shutdown that ended it
  #failedAt: number | null = null;
  #done: number | null = null; // the latest progress
  readonly #steps: { at: number; done: number }[] = []; // when the progress grew

  constructor(target: Target) {
    this.target = target;
    const { name, pid = '' } = target.socket ?? { name: target.title, pid: undefined };
    [this.name, this.pid] = [excerptOf(name), pid];
  }

  /** How long it has had its status. Empty before the first response. */
  get age(): string {
    const seconds = this.#failedAt === null ? secondsSince(this.info, 'since') : (Date.now() - this.#failedAt) / 1000;
    return seconds === null ? '' : describeDuration(seconds);
  }

  note(status: string, reply: PrintableReply): void {
    this.#failedAt = reply.ok || this.status === '' ? null : this.#failedAt ?? Date.now();
    if (reply.ok) {
      this.#noteInfo(reply.body);
      this.#shutdown.note(reply.body, status);
    }
    if (status !== this.status) this.#end = status === OFFLINE.statusName ? this.#shutdown.cause : null;
    this.status = status;
    const isPlain = reply.ok || isAbsent(reply) || isDenied(reply) || isUnanswered(reply);
    this.error = isPlain ? '' : this.target.client.shorten(reply.error);
    this.detail = describeDetail(this.info['detail'], this.#secondsLeft());
    const more = this.#end === null ? this.error : describeEnd(this.#end);
    const reported = this.info['status'];
    if (reported === status) this.story = describeStatus({ ...this.info, since: undefined }); // it has a column
    else this.story = more === '' ? status : `${status}: ${more}`;
  }

  #noteInfo(info: Body): void {
    this.info = info;
    const { run } = splitDetail(info['detail']);
    if (this.target.socket !== undefined) this.name = excerptOf(info['name']) || this.name;
    this.pid = excerptOf(run['pid']) || excerptOf(info['pid']) || this.pid;
  }

  /** Null until the progress has grown twice: the first growth may be the work of an hour. */
  #secondsLeft(): number | null {
    const progress = this.status === ACTIVE.statusName ? progressOf(this.info['detail']) : null;
    const [now, steps, before] = [performance.now(), this.#steps, this.#done];
    this.#done = progress?.done ?? null;
    if (progress === null || before === null || progress.done < before) steps.length = 0;
    else if (progress.done > before) steps.push({ at: now, done: progress.done });
    if (steps.length > 2 && now - (steps[1]?.at ?? now) > PACE_MS) steps.shift();
    const [first, last] = [steps[0], steps.at(-1)];
    if (first === undefined || last === undefined || first === last || progress === null) return null;
    const leftMs = (progress.of - last.done) * (last.at - first.at) / (last.done - first.done);
    return Math.max(0, leftMs - (now - last.at)) / 1000;
  }
}

/** Finds the systems in a folder, except those with known sockets. */
export type Find = (known: ReadonlySet<string | undefined>) => Promise<Target[]>;

/** Follows given systems, or all systems in a folder as they come and go. */
export class Fleet {
  /** The rows whose details are requested. */
  visible: readonly Row[] = [];
  /** Why the folder cannot be read; otherwise empty. */
  error: string = '';
  readonly #signal: AbortSignal;
  readonly #onChange: () => void;
  #rows: readonly Row[] = []; // oldest first
  #sorted: readonly Row[] | null = null;

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

  /** Sorted by name. */
  get rows(): readonly Row[] {
    return this.#sorted ??= [...this.#rows].sort(compareRows);
  }

  #setRows(rows: readonly Row[]): void {
    [this.#rows, this.#sorted] = [rows, null];
  }

  /** @param isLasting Whether a system that ends may come back at its address. */
  add(targets: readonly Target[], isLasting: boolean = true): void {
    const rows = targets.map((target) => new Row(target));
    const names = new Set(targets.map(({ name }) => name)); // a new system replaces an ended one at its path
    this.#setRows([...this.#rows.filter(({ target }) => !names.has(target.name)), ...rows]);
    for (const row of rows) void this.#follow(row, isLasting);
  }

  /** Keeps adding the systems in a folder, until the signal. */
  async addAll(find: Find): Promise<void> {
    while (!this.#signal.aborted) {
      const live = this.#rows.filter(({ isEnded }) => !isEnded);
      try {
        const targets = await find(new Set(live.map(({ target }) => target.client.socketPath)));
        if (targets.length > 0) this.add(targets, false);
        this.error = '';
      } catch (error) {
        this.error = printable((error as Error).message);
      }
      this.#onChange();
      await this.#pause();
    }
  }

  #tick(): void {
    for (const row of this.visible) void this.#ask(row);
    this.#onChange();
  }

  /** Requests the detail: a change of it does not complete the request of `#follow()`. */
  async #ask(row: Row): Promise<void> {
    if (row.isAsked || row.isEnded) return;
    row.isAsked = true;
    const start = performance.now();
    const reply = await row.target.client.request('info', { signal: this.#signal });
    row.isAsked = false;
    const isHanging = isUnanswered(reply) && performance.now() - start > HANG_MS;
    if (reply.ok || isHanging) this.#note(row, statusNameOf(reply), reply); // #follow() notes the other failures
  }

  async #follow(row: Row, isLasting: boolean): Promise<void> {
    for await (const { status, reply, isNew } of observe(row.target.client, 'info', this.#signal, WAIT_S)) {
      if (isNew) this.#note(row, status, reply);
      else if (row.status !== status) void this.#ask(row); // it hung, but not long enough for #follow() to notice
      if (!isLasting && isAbsent(reply)) return this.#keep(row);
      if (!reply.ok) await this.#pause();
    }
  }

  #note(row: Row, status: string, reply: PrintableReply): void {
    const { name } = row;
    row.note(status, reply);
    if (row.name !== name) this.#sorted = null;
    this.#onChange();
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
