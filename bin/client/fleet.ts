// The systems of list and top: what each has reported, and what it reports from now on.

import { setMaxListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus } from '../../control.ts';
import {
  describeDetail, describeDuration, describeEnd, describeStatus, progressOf, secondsSince, splitDetail,
} from '../shared/describe.ts';
import { Shutdown } from '../shared/end.ts';
import { partsOf } from '../shared/folder.ts';
import { observe } from '../shared/observe.ts';
import { isAbsent, isDenied, isUnanswered, statusNameOf } from '../shared/replies.ts';
import { isOfFolder } from '../shared/targets.ts';
import { excerptOf, isRecord, printable } from '../shared/text.ts';
import type { Body } from '../shared/describe.ts';
import type { PrintableReply } from '../shared/replies.ts';
import type { Target } from '../shared/targets.ts';

const TICK_MS = 1000; // between two looks into the folder, or two requests to a system that is offline
const DETAIL_MS = 2000; // between two requests for a detail
const WAIT_S = 20; // of each request for news: 500 systems must not cost much
const HANG_MS = 2000; // a system that is ending cuts connections faster
const PACE_MS = 60_000; // the time left follows from the pace of the last minute
const MAX_ENDED = 100;
const { ACTIVE, OFFLINE } = SystemStatus;

const { compare } = new Intl.Collator('en', { numeric: true }); // t2 before t10

export function compareRows(one: Row, other: Row): number {
  return compare(one.name, other.name) || compare(`${one.target.name}`, `${other.target.name}`);
}

/** What is shown of a system. Its texts are safe to print. */
export class Row {
  readonly target: Target;
  name: string;
  /** The process of the program, not of control-run. Empty if it is unknown. */
  pid: string;
  /** Empty before the first reply. */
  status: string = '';
  /** The status with who and why, or how the system has ended, or why it could not be asked. */
  story: string = '';
  /** What the program reports of itself. */
  detail: string = '';
  /** Why it could not be asked, unless the status says so. */
  error: string = '';
  /** All that it has reported last. */
  info: Body = {};
  /** Whether it has left the folder. */
  isEnded: boolean = false;
  /** Whether a request for its detail is pending. */
  isAsked: boolean = false;
  readonly #shutdown = new Shutdown();
  #end: Body | null = null; // the shutdown with which it has ended
  #failedAt: number | null = null;
  #done: number | null = null; // the latest progress
  readonly #steps: { at: number; done: number }[] = []; // when it has grown

  constructor(target: Target) {
    this.target = target;
    const { name, pid = '' } = isOfFolder(target) ? partsOf(`${target.name}`) : { name: target.title, pid: undefined };
    [this.name, this.pid] = [excerptOf(name), pid];
  }

  /** How long it has had its status. Empty if it has been silent from the start. */
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
    const { detail } = this.info;
    this.detail = describeDetail(isRecord(detail) ? splitDetail(detail).own : detail, this.#secondsLeft());
    const more = this.#end === null ? this.error : describeEnd(this.#end);
    const reported = this.info['status'];
    if (reported === status) this.story = describeStatus({ ...this.info, since: undefined }); // which has a column
    else this.story = more === '' ? status : `${status}: ${more}`;
  }

  #noteInfo(info: Body): void {
    this.info = info;
    const { run } = splitDetail(info['detail']);
    if (isOfFolder(this.target)) this.name = excerptOf(info['name']) || this.name;
    this.pid = excerptOf(run['pid']) || excerptOf(info['pid']) || this.pid;
  }

  /** Null until the progress has been seen to grow twice: the first time, it may be the work of an hour. */
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

/** Finds the systems of a folder, except the targets that are known already. */
export type Find = (known: ReadonlySet<string>) => Promise<Target[]>;

/** Follows given systems, or those of a folder, which come and go. */
export class Fleet {
  /** Those that are asked for their details. */
  visible: readonly Row[] = [];
  /** Why the folder cannot be read; otherwise empty. */
  error: string = '';
  readonly #signal: AbortSignal;
  readonly #onChange: () => void;
  #rows: readonly Row[] = []; // the oldest first
  #sorted: readonly Row[] | null = null;

  /**
   * @param signal Ends it.
   * @param onChange Called also from time to time, because durations grow.
   */
  constructor(signal: AbortSignal, onChange: () => void) {
    setMaxListeners(0, signal); // several for each system
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

  /** @param isLasting Whether a system may come back at its address. */
  add(targets: readonly Target[], isLasting: boolean = true): void {
    const rows = targets.map((target) => new Row(target));
    const names = new Set(targets.map(({ name }) => name)); // one at the path of a system that has ended replaces it
    this.#setRows([...this.#rows.filter(({ target }) => !names.has(target.name)), ...rows]);
    for (const row of rows) void this.#follow(row, isLasting);
  }

  /** Adds the systems of a folder, until the signal. */
  async addAll(find: Find): Promise<void> {
    while (!this.#signal.aborted) {
      const live = this.#rows.filter(({ isEnded }) => !isEnded);
      try {
        const targets = await find(new Set(live.map(({ target }) => `${target.name}`)));
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

  /** Asks for the detail, which is not among the news. */
  async #ask(row: Row): Promise<void> {
    if (row.isAsked || row.isEnded) return;
    row.isAsked = true;
    const start = performance.now();
    const reply = await row.target.client.request('info', { signal: this.#signal });
    row.isAsked = false;
    const isHanging = isUnanswered(reply) && performance.now() - start > HANG_MS;
    if (reply.ok || isHanging) this.#note(row, statusNameOf(reply), reply); // #follow() notes all other failures
  }

  async #follow(row: Row, isLasting: boolean): Promise<void> {
    for await (const { status, reply, isNew } of observe(row.target.client, 'info', this.#signal, WAIT_S)) {
      if (isNew) this.#note(row, status, reply);
      else if (row.status !== status) void this.#ask(row); // it hung, but not long enough for this request to fail
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

  /** Keeps a system that has ended, in place of the oldest one. */
  #keep(row: Row): void {
    row.isEnded = true;
    const ended = this.#rows.filter(({ isEnded }) => isEnded);
    if (ended.length > MAX_ENDED) this.#setRows(this.#rows.filter((other) => other !== ended[0]));
  }

  async #pause(): Promise<void> {
    await sleep(TICK_MS, undefined, { signal: this.#signal }).catch(() => {});
  }
}
