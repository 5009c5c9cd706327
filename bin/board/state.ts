// The state of a system as pages show it, and the functions that read it from responses. Any program may have sent the
// responses, so every field may have any type and text.

import { describeAnswer, isAnswer } from '../shared/words/asks.ts';
import { holdsOf, splitDetail, valueIn } from '../shared/words/describe.ts';
import { timeIn } from '../shared/words/time.ts';
import { isCrash } from '../shared/reach/end.ts';
import { excerpt, excerptOf, excerptOfJson, isRecord, MAX_VALUE_LENGTH, textOfJson } from '../shared/words/text.ts';
import type { Progress } from '../shared/words/describe.ts';
import type { Body } from '../shared/words/text.ts';
import type { Fold } from '../shared/words/log.ts';
import type { Ask, AskEnd } from './asks.ts';
import type { currentValues, OwnCommand } from './declarations.ts';
import type { Sample } from './series.ts';

const MAX_ROWS = 64; // of the detail
const MAX_RUN_ROWS = 16; // of these; control-run adds fewer, but any program may report a field `run`

/** Times are in milliseconds. Times that the system reports are by its own clock. */
export interface State {
  target: string;
  name: string;
  /** `process 4711 on gpu3`, or empty. */
  process: string;
  /** Empty until the first response. */
  status: string;
  since: number | null;
  by: string;
  reason: string;
  /** Everybody who holds the pause, the oldest first. */
  holds: Pick<State, 'by' | 'reason' | 'since'>[];
  /** Why the status is unknown. */
  error: string;
  /** Whether the system is offline because of a shutdown or because its work is done, not because of a crash. */
  ended: boolean;
  /** Whether the system is offline because its program failed, as control-run reports. `reason` says how it ended. */
  crashed: boolean;
  /** False if the latest read says that the program has no way to save. Without an open page, reads are rare: true. */
  canSave: boolean;
  /** The last successful save. */
  saved: { value: string; at: number | null } | null;
  /** Why the latest save failed; empty if it succeeded. */
  saveError: string;
  /** Since when the system has not responded; null if it responds. */
  unansweredSince: number | null;
  /** Since when the program has not checked for commands: it is in a long step or hangs. Null if it checks. */
  unheardSince: number | null;
  detail: DetailRow[];
  /** `leftMs` is null while it is unknown. */
  progress: (Progress & { leftMs: number | null }) | null;
  /** The fields of the detail that have the name of a parameter. */
  current: ReturnType<typeof currentValues>;
  /** The open questions, the oldest first. */
  asks: Ask[];
  /** How the latest questions have ended. */
  askEnds: AskEnd[];
  /** Commands of all clients, the latest first. */
  commands: ListedCommand[];
  /** Commands sent by the board: the pending ones and the latest. */
  sent: readonly SentCommand[];
  /** The id of the last command sent by the board. */
  sentCount: number;
  /** Whether the system logs what happens to a file. */
  hasLog: boolean;
}

export interface DetailRow {
  name: string;
  value: string | number;
  /** Whether control-run has added it. */
  isRun?: true;
}

export interface ListedCommand {
  command: string;
  arguments: string;
  /** As the system reports it, or `crashed`, `refused` or `outcome unknown`. */
  state: string;
  by: string;
  reason: string;
  value: string;
  error: string;
  seconds: number | null;
  at: number | null;
  /** The line of an entry that is the end of a question. */
  answer?: string;
}

export interface SentCommand {
  /** Increases with each command. */
  id: number;
  command: string;
  state: 'sent' | 'done' | 'failed';
  /** The outcome. */
  text: string;
  /** The parameter whose argument was refused. */
  parameter?: string;
}

/** What a page shows of the log of a system. */
export interface LogPart {
  /** Where the log is if it is not here, or what is wrong with it. Otherwise empty. */
  note: string;
  /** The oldest first. */
  entries: ({ at: number; text: string } & Partial<Fold>)[];
}

/** The state of a system in a response to a page, without the samples and own commands that the page has. */
export type Update = Omit<State, 'detail'> & {
  id: number;
  /** A page draws a gap between samples that are much further apart than `intervalMs`. */
  detail: (DetailRow & { samples?: Sample[]; intervalMs?: number })[];
  accepts?: readonly OwnCommand[];
};

/** Everybody who holds a pause. */
export function readHolds(info: Body): State['holds'] {
  return holdsOf(info).map((hold) => {
    return { by: excerptOf(hold['by']), reason: excerptOf(hold['reason']), since: timeIn(hold, 'since') };
  });
}

/** Whether the program has a way to save, as far as control-run knows. */
export function canSaveIn({ detail }: Body): boolean {
  return splitDetail(detail).run['canSave'] !== false;
}

/** Whether an entry is a save that control-run has refused: none has failed. For 10 s, `canSave` is unknown. */
export function isRefusedSave({ command, state, error }: Body, info: Body): boolean {
  const isOfRun = splitDetail(info['detail']).run['pid'] !== undefined;
  const hasNoWay = !canSaveIn(info) || (isOfRun && /^no way to save: start control-run /.test(excerptOf(error)));
  return command === 'save-state' && state === 'failed' && hasNoWay;
}

/** Whether an entry is the end of a program that failed. control-run lists it as a shutdown, which nobody has sent. */
export function isCrashEntry(entry: Body): boolean {
  return entry['command'] === 'shutdown' && isCrash(entry);
}

/** A command in the list of a response. */
export function readCommand(entry: Body, info: Body): ListedCommand {
  return {
    command: excerptOf(entry['command']),
    arguments: excerptOfJson(entry['arguments']),
    state: isCrashEntry(entry) ? 'crashed' : isRefusedSave(entry, info) ? 'refused' : excerptOf(entry['state']),
    by: excerptOf(entry['by']),
    reason: excerptOf(entry['reason']),
    value: valueIn(entry),
    error: excerptOf(entry['error'], MAX_VALUE_LENGTH),
    seconds: typeof entry['seconds'] === 'number' ? entry['seconds'] : null,
    at: timeIn(entry, 'at'),
    ...(isAnswer(entry) && { answer: describeAnswer(entry) }),
  };
}

/**
 * The rows of a table. Those of the fields added by control-run come last, and are called `run.NAME` if the program
 * reports a field of that name. If excerpts of names collide, the first counts.
 */
export function readRows(detail: unknown): DetailRow[] {
  if (detail === null || detail === undefined) return [];
  if (!isRecord(detail)) return [readRow(['', detail])];
  const { own, run } = splitDetail(detail);
  const added = Object.entries(run).slice(0, MAX_RUN_ROWS).map(([name, value]): DetailRow => {
    return { ...readRow([Object.hasOwn(own, name) ? `run.${name}` : name, value]), isRun: true };
  });
  const rows = [...Object.entries(own).slice(0, MAX_ROWS - added.length).map(readRow), ...added];
  return rows.filter(({ name }, index) => rows.findIndex((other) => other.name === name) === index);
}

function readRow([name, value]: [name: string, value: unknown]): DetailRow {
  const isNumber = typeof value === 'number' && Number.isFinite(value); // JSON permits 1e999
  return { name: excerpt(name), value: isNumber ? value : excerpt(textOfJson(value)) };
}

export function numbersIn(detail: readonly DetailRow[]): [name: string, value: number][] {
  return detail.flatMap(({ name, value }): [string, number][] => (typeof value === 'number' ? [[name, value]] : []));
}
