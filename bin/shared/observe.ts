// Follows the status of a system until told to stop, whatever becomes of the system.

import { setTimeout as sleep } from 'node:timers/promises';
import { isCut, lacksInfo, statusNameOf } from './replies.ts';
import type { PrintableClient, PrintableReply } from './replies.ts';

const WAIT_S = 1;
const PAUSE_MS = 10; // between two requests
const RETRY_MS = 250; // if the system is offline, or its server cannot wait

/** What a request told. */
export interface Observation {
  status: string; // or `offline`, `no answer`, …
  reply: PrintableReply;
  isNew: boolean; // the reply may differ from the one before
}

/**
 * Yields what each request tells: as soon as something changes, and after `waitS` while the system responds. A single
 * connection that is cut tells nothing.
 *
 * @param endpoint `info` also tells why and which commands are done, unless the server reports its status only.
 * @param waitS Time limit of each request: a program that neither polls nor yields reports no change unless asked.
 */
export async function* observe(
  client: PrintableClient,
  endpoint: 'status' | 'info',
  signal: AbortSignal,
  waitS: number = WAIT_S,
): AsyncGenerator<Observation, void> {
  let asked = endpoint;
  let status = '';
  let wasCut = false;
  for (let tag: string | undefined; !signal.aborted;) {
    const reply = await client.request(asked, { tag, wait: tag === undefined ? undefined : waitS, signal });
    if (signal.aborted) return;
    if (lacksInfo(reply) && asked === 'info') {
      asked = 'status';
      continue;
    }
    const isNew = !reply.ok || tag === undefined || reply.tag !== tag; // otherwise it has no body
    if (isNew) status = statusNameOf(reply);
    if (!isCut(reply) || wasCut) yield { status, reply, isNew };
    wasCut = isCut(reply);
    tag = reply.ok ? reply.tag : undefined;
    if (!reply.ok) asked = endpoint; // whatever comes back
    await sleep(tag === undefined ? RETRY_MS : PAUSE_MS, undefined, { signal }).catch(() => {});
  }
}
