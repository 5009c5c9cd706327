// A system in words, computed once for terminals, pages and scripts, which only lay them out. Any program may have sent
// what is in them; here, everything is safe to print.

import { BY, type Fault, isCurrent, LINK_ENDED, NO_ANSWER, OFFLINE, UNKNOWN } from './client.ts';
import {
  describeQuestion, isAnswer, isCommandId, type Question, questionsIn, summarizeAsks, timesOf,
} from './declared.ts';
import {
  canSaveIn, commandsOf, describeAuthor, describeCause, describeCommand, describeDetail, describeEnd, describeShare,
  describeStatus, describeStep, endedAt, hasEnded, holdsOf, isCrash, isRefusedSave, isWithdrawn, progressOf,
  splitDetail,
} from './describe.ts';
import {
  ageOf, agoOf, type Body, clockTime, excerpt, excerptOf, isRecord, MAX_VALUE_LENGTH, textOfJson, timeIn,
} from './text.ts';
import { type FollowedSystem, GOALS } from './system.ts';

/** How urgent it is to look at a system: from a question to an end as it should be. */
export type Level = 'asks' | 'bad' | 'warn' | 'none' | 'good' | 'ended';

/** A system in words: plain data. Ages are as of now. */
export interface View extends Names, Standing, Work {}

/** How a system appears. */
export function viewOf(system: FollowedSystem): View {
  return { ...namesOf(system), ...standingOf(system), ...workOf(system) };
}

const { compare } = new Intl.Collator('en', { numeric: true }); // t2 before t10

/** The order in a table: those that ask, then by machine and name. */
export function compareViews(one: View, other: View): number {
  return Number(other.level === 'asks') - Number(one.level === 'asks') || compare(one.machine, other.machine) ||
    compare(one.label, other.label) || compare(one.title, other.title);
}

// ───── What it is called ─────────────────────────────────────────────────────────────────────────────────────────

interface Names {
  /** The label of its machine; empty without `--via`. */
  machine: string;
  /** As reported, unless that would be another target. */
  name: string;
  /** What tells it from others on its machine: `train-2551`, `:9000`. */
  title: string;
  /** The name, followed by an address: `demo (:9000)`; the same after the machine: `gpu1/train`. */
  label: string;
  fullName: string;
  /** The process id of the program, not of control-run. Empty if unknown. */
  pid: string;
  /** `process 4711 on gpu3`, or empty. */
  process: string;
}

function namesOf({ info, target: { socket, id, client } }: FollowedSystem): Names {
  const machine = client.machine.label;
  const reported = excerptOf(info['name']);
  const title = excerptOf(machine === '' ? id : id.slice(machine.length + 1));
  const name = socket === undefined ? reported || title : /^$|[/:]/.test(reported) ? excerptOf(socket.name) : reported;
  const label = socket === undefined && name !== title ? `${name} (${title})` : name;
  const pid = excerptOf(splitDetail(info['detail']).run['pid']) || excerptOf(info['pid']) || (socket?.pid ?? '');
  const host = excerptOf(info['host']);
  return {
    machine, name, title, label, pid,
    fullName: `${machine && `${machine}/`}${label}`,
    process: (pid && `process ${pid}`) + (host && ` on ${host}`),
  };
}

// ───── What it does ──────────────────────────────────────────────────────────────────────────────────────────────

interface Standing {
  /** As reported, or offline, no answer, …; empty before the first reply. */
  status: string;
  /** Why it is not reported; null if it is. */
  fault: Fault | null;
  /** The same in words, unless the status says it all. */
  error: string;
  /** The status, or what is more urgent: asking, failed, crashed, ended, connecting. */
  word: string;
  level: Level;
  /** Of the status alone. */
  statusLevel: Level;
  isControllable: boolean;
  /** How long it has had its status, or has been silent: `3 min`. Empty if unknown. */
  age: string;
  /** The status or the end, since when, and who and why: `paused`, `3 min ago`, ` by ana@laptop: GPU needed`. */
  heading: string;
  when: string;
  cause: string;
  /** Who else holds the pause: `and 5 min ago by ben@desk: B leaks memory`. */
  holds: string[];
  /** The pause that a resume would end for others, too: `paused by ben@desk: B leaks memory`; or empty. */
  othersHold: string;
  /** `in a step for 3 s`, or empty. */
  step: string;
  /** All about the status but its age, and whether it asks: `asks; paused by ana: lunch`, `offline: exit code 7`. */
  story: string;
  /** The same with the age, the oldest question and the last save: `paused 3 min ago; asks: Delete 3 branches?; …`. */
  summary: string;
}

/** What statuses mean if nothing else is known; all others are bad. */
const LEVEL_OF: Readonly<Record<string, Level>> = {
  '': 'none', 'active': 'good', 'pausing': 'warn', 'paused': 'warn', 'resuming': 'warn', 'shutting down': 'warn',
};
/** The statuses of a system that may take a command. */
const CONTROLLABLE: readonly string[] = ['active', 'pausing', 'paused', 'resuming', UNKNOWN];

function standingOf(system: FollowedSystem): Standing {
  const { status, reply, info, end, isCurrent: isReported } = system;
  const fault = status === NO_ANSWER ? 'silent' : reply?.fault ?? null;
  const isPlain = fault === 'offline' || fault === 'silent';
  const isUnlinked = reply?.ok === false && reply.code === LINK_ENDED; // its machine cannot be reached
  const isCrashed = end !== null && isCrash(end);
  const word = isCrashed ? 'crashed' : end !== null ? 'ended' : status || 'connecting';
  const statusLevel = isCrashed ? 'bad' : end !== null ? 'ended' : LEVEL_OF[status] ?? 'bad';
  const isAsking = awaitsAnswer(system);
  const isFailed = statusLevel !== 'bad' && failureOf(system) !== '';
  const age = ageOf(system.unansweredSince ?? system.since);
  const holds = status === 'paused' ? holdsOf(info) : [];
  const cause = isReported ? { ...info, until: holds[0]?.['until'] } : {};
  const step = ageOf(system.unheardSince);
  const more = end !== null ? describeEnd(end) : isPlain || fault === 'denied' ? '' : system.error;
  const other = `${status}${more && `: ${more}`}`;
  const story = isReported ? describeStatus({ ...heardIn(system), since: undefined }) : other; // the age has a column
  const report = isReported ? describeStatus(heardIn(system)) : other;
  const summary = [report, isAsking ? summarizeAsks(info) : '', savedOf(system, true), unsavedOf(system, true)];
  return {
    status, fault, age, step: step && describeStep(status, step),
    error: isPlain && !isUnlinked ? '' : system.error,
    word: isAsking ? 'asking' : isFailed ? 'failed' : word,
    level: isAsking ? 'asks' : isFailed ? 'bad' : statusLevel, statusLevel,
    isControllable: CONTROLLABLE.includes(status),
    heading: word,
    when: age && (end !== null || status === 'paused' ? `${age} ago` : `for ${age}`),
    cause: isCrashed ? `: ${describeEnd(end)}` : describeAuthor(end ?? cause),
    holds: holds.slice(1).map((hold) => `and${agoOf(timeIn(hold, 'since'))}${describeAuthor(hold)}`),
    othersHold: holds.some(({ by }) => by !== BY) ? `paused${describeCause(info)}` : '',
    story: !isAsking ? story : story === 'active' ? 'asks' : `asks; ${story}`,
    summary: summary.filter((text) => text !== '').join('; '),
  };
}

/** What it reports, without the time when the program has looked for commands, unless it is in a step. */
function heardIn({ info, unheardSince }: FollowedSystem): Body {
  return unheardSince === null ? { ...info, heardAt: undefined } : info;
}

/** Whether it waits for an answer. One that does not respond cannot be answered. */
function awaitsAnswer(system: FollowedSystem): boolean {
  return questionsOf(system).length > 0 && CONTROLLABLE.includes(system.status);
}

/** The open questions, as far as is known. */
function questionsOf({ status, reply, info }: FollowedSystem): Question[] {
  return reply?.ok === true || status === NO_ANSWER ? questionsIn(info) : [];
}

// ───── What it works on ──────────────────────────────────────────────────────────────────────────────────────────

interface Work {
  canSave: boolean;
  /** The last save: `saved states/….json 3 min ago by ana`; and a later failure: `save failed 2 min ago: ENOSPC`. */
  saved: string;
  unsaved: string;
  /** What has failed, if nothing has succeeded since: `save failed: ENOSPC`. */
  failed: string;
  /** The open questions, the oldest first, with their times: `asked 3 min ago, expires in 12 min`. */
  asks: { id: string; message: string; times: string }[];
  /** How long the oldest one has been open: `3 min`. */
  askAge: string;
  /** `text`: `42 %, 3 min left`. */
  progress: { name: string; done: number; of: number; text: string } | null;
  /** What it asks, and the program's own detail, on one line. */
  detail: string;
  fields: Field[];
  /** Of all clients, and ends of questions, the latest first; without those that the status or the last save says. */
  commands: { id: string; text: string; state: string; mayWithdraw: boolean }[];
}

/** A field of the detail. Those that control-run adds come last, and are called `run.NAME` if NAME is taken. */
export interface Field {
  name: string;
  value: string | number;
  isRun?: true;
}

const MAX_LISTED = 5; // commands, and what runs, for which others may wait
const LISTED_S = 0.1; // commands of a shorter time are listed without it
const MAX_FIELDS = 64; // of the detail
const MAX_RUN_FIELDS = 16; // of these; control-run adds fewer, but any program may report a field `run`

function workOf(system: FollowedSystem): Work {
  const { info, secondsLeft } = system;
  const { detail } = info;
  const questions = questionsOf(system);
  const progress = progressOf(detail);
  const asked = awaitsAnswer(system) ? questions.map(({ message }) => message) : [];
  const texts = [...asked, describeDetail(detail, secondsLeft)];
  return {
    canSave: canSaveIn(info), saved: savedOf(system), unsaved: unsavedOf(system), failed: failureOf(system),
    asks: questions.map((question) => ({ id: question.id, message: question.message, times: timesOf(question) })),
    askAge: questions[0] === undefined ? '' : ageOf(timeIn(questions[0].entry, 'at')),
    progress: progress && { ...progress, name: excerpt(progress.name), text: describeShare(progress, secondsLeft) },
    detail: texts.filter((text) => text !== '').join('; '),
    fields: fieldsIn(detail), commands: listedOf(system),
  };
}

/** The last save; brief, only how long ago it was. */
function savedOf({ saved }: FollowedSystem, isBrief: boolean = false): string {
  if (saved === null) return '';
  const { value, at, by } = saved;
  return isBrief ? `saved${agoOf(at)}` : `${`saved ${value}`.trimEnd()}${agoOf(at)}${by && ` by ${by}`}`;
}

/** A later save that failed. */
function unsavedOf({ failedSave }: FollowedSystem, isBrief: boolean = false): string {
  const error = failedSave === null || isBrief ? '' : errorIn(failedSave);
  return failedSave === null ? '' : `save failed${agoOf(endedAt(failedSave))}${error && `: ${error}`}`;
}

/** A save that has failed, or else the latest command. An expired question is no failure. */
function failureOf({ failedSave, info }: FollowedSystem): string {
  if (failedSave !== null) return `save failed: ${errorIn(failedSave)}`;
  const latest = commandsOf(info).filter((entry) => hasEnded(entry) && !isAnswer(entry)).at(-1) ?? {};
  const isFailed = latest['state'] === 'failed' && !isRefusedSave(latest, info) && !isWithdrawn(latest);
  return isFailed ? `${excerptOf(latest['command'])} failed: ${errorIn(latest)}` : '';
}

function errorIn({ error }: Body): string {
  return excerptOf(error, MAX_VALUE_LENGTH);
}

/** If excerpts of names collide, the first counts. */
export function fieldsIn(detail: unknown): Field[] {
  if (detail === null || detail === undefined) return [];
  if (!isRecord(detail)) return [readField(['', detail])];
  const { own, run } = splitDetail(detail);
  const added = Object.entries(run).slice(0, MAX_RUN_FIELDS).map(([name, value]): Field => {
    return { ...readField([Object.hasOwn(own, name) ? `run.${name}` : name, value]), isRun: true };
  });
  const fields = [...Object.entries(own).slice(0, MAX_FIELDS - added.length).map(readField), ...added];
  return fields.filter(({ name }, index) => fields.findIndex((other) => other.name === name) === index);
}

function readField([name, value]: [name: string, value: unknown]): Field {
  const isNumber = typeof value === 'number' && Number.isFinite(value); // JSON permits 1e999
  return { name: excerpt(name), value: isNumber ? value : excerpt(textOfJson(value)) };
}

/** Whether the status or the last save says the same as a command. */
function isSaid(entry: Body, { status, since, end, saved, failedSave }: FollowedSystem): boolean {
  const { command, state } = entry;
  if (command === 'shutdown') return end !== null && state !== 'failed';
  if (command === 'save-state') return entry === failedSave || (state === 'done' && endedAt(entry) === saved?.at);
  if (state !== 'done' || GOALS.get(excerptOf(command))?.statusName !== status) return false;
  return (endedAt(entry) ?? 0) >= (since ?? Infinity) - 10; // ms: both are rounded
}

function listedOf(system: FollowedSystem): Work['commands'] {
  const { info, status } = system;
  const all = commandsOf(info).filter((entry) => !isSaid(entry, system));
  const shown = all.filter(({ state }, index) => state === 'running' || index >= all.length - MAX_LISTED).reverse();
  return shown.map((entry) => {
    const isLost = status === OFFLINE && !hasEnded(entry);
    const state = isRefusedSave(entry, info) ? 'refused' : isLost ? 'outcome unknown' : excerptOf(entry['state']);
    const age = ageOf(!isLost && !hasEnded(entry) ? null : isAnswer(entry) ? endedAt(entry) : timeIn(entry, 'at'));
    const text = `${age && `${age} ago · `}${describeCommand({ ...entry, state }, LISTED_S)}`;
    const id = excerptOf(entry['id']);
    const mayWithdraw = state === 'waiting' && isCommandId(id) && !id.includes('-i') && isCurrent(info, 27) === true;
    return { id, text, state: isAnswer(entry) ? 'answer' : state, mayWithdraw };
  });
}

// ───── All details, for a terminal ───────────────────────────────────────────────────────────────────────────────

/** Aligned lines with all that a system reports. */
export function describeInfo(system: FollowedSystem): string[] {
  const { info } = system;
  const { pid, saved, unsaved } = viewOf(system);
  const commands = commandsOf(info).map((entry) => {
    const time = isAnswer(entry) ? endedAt(entry) : timeIn(entry, 'at'); // a question has no sender
    return `${time === null ? '' : `${clockTime(new Date(time))} `}${describeCommand(entry)}`;
  });
  const questions = questionsIn(info).map((one) => `${timesOf(one, one.id)}: ${describeQuestion(one)}`);
  const port = excerptOf(info['port']) && `, port ${excerptOf(info['port'])}`;
  const rows = [
    ['name', `${excerptOf(info['name'])} (process ${pid} on ${excerptOf(info['host'])}${port})`],
    ...questions.map((text, index) => [index === 0 ? 'asks' : '', text]),
    ['status', describeStatus(heardIn(system))], // also of one that no longer responds
    ['saved', [saved.replace(/^saved ?/, ''), unsaved].filter((text) => text !== '').join('; ')],
    ['started', agoOf(timeIn(info, 'startedAt')).trim()],
    ['detail', describeDetail(info['detail'])],
    ['run', describeDetail(splitDetail(info['detail']).run)],
    ...commands.map((command, index) => [index === 0 ? 'commands' : '', command]),
    ['version', excerptOf(info['version'])],
  ] as [name: string, text: string][];
  return rows.filter(([, text]) => text !== '').map(([name, text]) => `${name.padEnd(10)}${text}`);
}
