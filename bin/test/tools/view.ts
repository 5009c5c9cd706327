// Systems as the tools see them.

import { PrintableClient, type PrintableReply } from '../../shared/client.ts';
import { type FollowedSystem, seen } from '../../shared/system.ts';

/** A system that reports this. */
export function systemOf(info: object): FollowedSystem {
  const { status = 'unknown' } = info as { status?: string };
  const reply = { ok: true, value: status, original: status, fault: null, body: info, tag: undefined };
  return seen({ client: new PrintableClient(), id: 'x' }, reply as PrintableReply);
}
