// Systems as the tools see them, and in words.

import { SystemStatus } from '../../../control.ts';
import {
  type FailedReply, type Machine, PrintableClient, type PrintableReply, statusNameOf, UNKNOWN,
} from '../../shared/client.ts';
import { FollowedSystem } from '../../shared/system.ts';
import { type View, viewOf } from '../../shared/view.ts';
import type { Socket } from '../../shared/folder.ts';

const STATUS_NAMES = Object.values(SystemStatus).map(({ statusName }) => statusName);

/** What is known of a system besides its report. */
interface Circumstances extends Partial<Pick<FollowedSystem, 'since' | 'unansweredSince' | 'secondsLeft'>> {
  id?: string;
  machine?: Machine;
  socket?: Pick<Socket, 'name' | 'pid'>;
  /** The reports before; null if it was offline. */
  earlier?: readonly (object | null)[];
  /** The reply to the request after the report. */
  failure?: Partial<FailedReply>;
}

/** A system that has reported this; null if it has not replied yet. */
export function systemOf(info: object | null, circumstances: Circumstances = {}): FollowedSystem {
  const { id = 'x', machine, socket, earlier = [], failure, ...known } = circumstances;
  const client = new PrintableClient(undefined, undefined, {}, machine);
  const system = new FollowedSystem({ client, id, socket: socket as Socket });
  const note = (reply: object): void => system.note(statusNameOf(reply as PrintableReply), reply as PrintableReply);
  const fail = (reply: Partial<FailedReply>): void => {
    note({ ok: false, phase: 'connect', error: '', body: {}, ...reply });
  };
  const report = (body: object): void => {
    const { status = UNKNOWN } = body as { status?: unknown };
    const original = String(status);
    note({ ok: true, value: STATUS_NAMES.includes(original) ? original : UNKNOWN, original, fault: null, body });
  };
  for (const one of earlier) {
    if (one === null) fail({ fault: 'offline' });
    else report(one);
  }
  if (info !== null) report(info);
  if (failure !== undefined) fail(failure);
  for (const [name, fact] of Object.entries(known)) Object.defineProperty(system, name, { value: fact });
  return system;
}

/** The same in words. */
export function viewOfReport(info: object | null, circumstances?: Circumstances): View {
  return viewOf(systemOf(info, circumstances));
}

/** A time that stays this many minutes ago during a test, as systems report it. */
export function ago(minutes: number): string {
  return new Date(Date.now() - minutes * 60_000 - 1000).toISOString();
}
