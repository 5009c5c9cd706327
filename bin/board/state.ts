// The state of a system as pages show it, and the functions that read it from responses. Any program may have sent the
// responses, so every field may have any type and text.

import { acceptedBy, describeAnswer, describeValues, isAnswer, limitsOf, questionsIn } from '../shared/declared.ts';
import { commandsOf, hasEnded, holdsOf, isCrash, type Progress, splitDetail, valueIn } from '../shared/describe.ts';
import {
  type Body, excerpt, excerptOf, excerptOfJson, isRecord, MAX_VALUE_LENGTH, textOfJson, timeIn,
} from '../shared/text.ts';
import type { Fold } from '../shared/log.ts';
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
function isCrashEntry(entry: Body): boolean {
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

// ───── Own commands ──────────────────────────────────────────────────────────────────────────────────────────────

const TYPES = ['boolean', 'integer', 'number', 'string'] as const;
const MAX_COMMANDS = 32;
const MAX_PARAMETERS = 32; // per command or question
const MAX_LENGTH = 16_384; // of all declarations as JSON: control.ts permits 8 KiB
const MAX_CURRENT = 32;

type Scalar = boolean | number | string;

/** An own command, as a page shows it. */
export interface OwnCommand {
  name: string;
  description: string;
  parameters: Parameter[];
}

/** Values are exact, not safe to print: a page sends them back. A parameter without a default is required. */
interface Parameter {
  name: string;
  type: typeof TYPES[number];
  description: string;
  /** `from 1 to 1000 · required`. */
  hint: string;
  default: Scalar | undefined;
  minimum: number | undefined;
  maximum: number | undefined;
  maxLength: number | undefined;
  enum: Scalar[] | undefined;
}

/** Returns what is valid of the declarations in `/api/info`. */
export function ownCommandsOf(info: Fields): OwnCommand[] {
  let length = 0;
  return [...acceptedBy(info)].slice(0, MAX_COMMANDS)
    .map(([name, { description, parameters }]): OwnCommand => {
      return { name, description, parameters: parametersOf(parameters) };
    })
    .filter((command) => (length += JSON.stringify(command).length) <= MAX_LENGTH);
}

/** The parameters that a form can have. */
function parametersOf(parameters: ReadonlyMap<string, Fields>): Parameter[] {
  return [...parameters].slice(0, MAX_PARAMETERS).flatMap(tidyParameter);
}

function tidyParameter([name, fields]: [name: string, fields: Fields]): Parameter[] {
  const type = TYPES.find((known) => known === fields['type']);
  if (type === undefined) return [];
  const { enum: choices, default: value } = fields;
  const [minimum, maximum, maxLength] = [fields['minimum'], fields['maximum'], fields['maxLength']].map(finite);
  const values = Array.isArray(choices) ? choices.filter((choice) => isOf(type, choice)) : [];
  const isList = values.length > 0;
  const initial = isOf(type, value) && (!isList || values.includes(value)) ? value : undefined;
  const limits = isList ? '' : limitsOf({ type, minimum, maximum, maxLength }); // a list shows them
  const isRequired = initial === undefined && (type !== 'boolean' || isList); // a checkbox has a value
  return [{
    name, type, description: excerptOf(fields['description']),
    hint: [limits, isRequired ? 'required' : ''].filter((part) => part !== '').join(' · '),
    default: initial, minimum, maximum, maxLength, enum: isList ? values : undefined,
  }];
}

/** The current values of parameters: the fields of the detail that have their names, if they are short scalars. */
export function currentValues(detail: unknown, ownCommands: readonly OwnCommand[]): [name: string, value: Scalar][] {
  const names = new Set(ownCommands.flatMap(({ parameters }) => parameters.map(({ name }) => name)));
  const entries = Object.entries(isRecord(detail) ? detail : {}) as [name: string, value: Scalar][];
  return entries.filter(([name, value]) => {
    const isShort = typeof value !== 'string' || value.length <= MAX_VALUE_LENGTH;
    return names.has(name) && isShort && TYPES.some((type) => isOf(type, value));
  }).slice(0, MAX_CURRENT);
}

type Fields = Readonly<Record<string, unknown>>;

/** Whether a value is of a type. */
function isOf(type: Parameter['type'], value: unknown): value is Scalar {
  if (typeof value !== 'number') return typeof value === type;
  return type === 'integer' ? Number.isInteger(value) : type === 'number' && finite(value) !== undefined;
}

/** Undefined for anything but a finite number: JSON permits 1e999. */
function finite(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isFinite(value) ? value : undefined;
}

// ───── Questions ─────────────────────────────────────────────────────────────────────────────────────────────────

const MAX_ASK_LENGTH = 16_384; // of a question as JSON: control.ts permits 4 KiB

/** An open question. Times are by the clock of the system. */
export interface Ask {
  id: string;
  message: string;
  parameters: Parameter[];
  at: number | null;
  expiresAt: number | null;
}

/** How a question has ended. */
interface AskEnd {
  id: string;
  /** `ana@phone has answered: approved=true`, `expired`, `withdrawn`. */
  text: string;
  isAnswered: boolean;
}

/** The open questions, the oldest first. */
export function readAsks(info: Body): Ask[] {
  return questionsIn(info).map(({ id, message, parameters, entry }): Ask => {
    const [at, expiresAt] = [timeIn(entry, 'at'), timeIn(entry, 'expiresAt')];
    return { id, message, parameters: parametersOf(parameters), at, expiresAt };
  }).filter((ask) => JSON.stringify(ask).length <= MAX_ASK_LENGTH);
}

/** The ends of the latest questions. */
export function readAskEnds(info: Body): AskEnd[] {
  return commandsOf(info).filter((entry) => isAnswer(entry) && hasEnded(entry)).map((entry) => {
    const { id, by, reason, error, arguments: given, state } = entry;
    const [isAnswered, values, why] = [state === 'done', describeValues(given), excerptOf(reason)];
    const answer = `${excerptOf(by) || 'somebody'} has answered${values && `: ${values}`}${why && ` (${why})`}`;
    return { id: excerptOf(id), text: isAnswered ? answer : excerptOf(error), isAnswered };
  });
}
