// Parts of results that several tools share.

import { createHash } from 'node:crypto';
import { questionsIn } from '../shared/words/asks.ts';
import { commandsOf, hasEnded } from '../shared/words/describe.ts';
import { secondsSince } from '../shared/words/time.ts';
import { UsageError } from '../shared/line/options.ts';
import { describeUnknown, isAbsent, statusNameOf, UNKNOWN } from '../shared/reach/replies.ts';
import { excerptOf, textOfJson } from '../shared/words/text.ts';
import { cleanText } from './reported.ts';
import type { Body } from '../shared/words/text.ts';
import type { PrintableReply } from '../shared/reach/replies.ts';
import type { System } from './systems.ts';

/** Why a call has failed, with the fields that are known. */
export class CallError extends UsageError {
  readonly fields: object;

  constructor(message: string, fields: object) {
    super(message);
    this.fields = fields;
  }
}

/** The status, and the reasons not to rely on it: silence or an error. A system that is merely offline has no error. */
export function statusFields({ id, client }: System, reply: PrintableReply, maxError?: number): object {
  const status = statusNameOf(reply);
  if (!reply.ok) {
    const error = isAbsent(reply) ? undefined : cleanText(client.shorten(reply.error), maxError);
    return { system: id, status, error };
  }
  const silence = secondsSince(reply.body, 'heardAt') ?? 0;
  const error = status === UNKNOWN ? cleanText(describeUnknown(reply.original)) : undefined;
  return { system: id, status, silentSeconds: silence < 1 ? undefined : Math.round(silence), error };
}

/** Models have no clock. */
export function now(): string {
  return new Date().toISOString();
}

/**
 * A digest of what counts as a change: the process, the status, its cause, the open questions, the last command that
 * has ended and those before it that have not, and the own commands. The ETag of /api/info also changes when a command
 * arrives.
 */
export function tagOf(reply: PrintableReply | undefined): string | undefined {
  if (reply?.ok !== true) return undefined;
  const { host, pid, startedAt, status, since, by, reason, accepts } = reply.body;
  const commands = commandsOf(reply.body);
  const last = commands.map(hasEnded).lastIndexOf(true);
  const ids = commands.slice(0, last + 1).filter((entry, at) => at === last || !hasEnded(entry)).map(({ id }) => id);
  const asks = questionsIn(reply.body).map(({ id }) => id);
  const text = textOfJson([host, pid, startedAt, status, since, by, reason, accepts, ids, asks]);
  return createHash('sha256').update(text).digest('hex').slice(0, 12);
}

/** Whether no running command is about to change the status. A save pauses a system briefly. */
export function isSettled(info: Body): boolean {
  const isPassing = /^(pausing|resuming)$/.test(excerptOf(info['status']));
  const isRunning = ({ state, command }: Body): boolean => {
    return state === 'running' && /^(pause|resume|save-state)$/.test(excerptOf(command));
  };
  return !isPassing && !commandsOf(info).some(isRunning);
}
