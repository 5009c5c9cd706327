// Follows the status of a system until aborted, also while the system is offline.

import { setTimeout as sleep } from 'node:timers/promises';
import { isCut, lacksInfo, statusNameOf } from './replies.ts';
import type { PrintableClient, PrintableReply } from './replies.ts';

const WAIT_S = 1; // with `detail`, also the time between two queries of the detail
const PAUSE_MS = 10; // between two requests
const RETRY_MS = 250; // if the system is offline, or its server cannot wait
const LOOKUP_MS = 2000; // if its host is unknown: each attempt asks a name server

/** The result of a request. */
interface Observation {
  status: string; // or `offline`, `no answer`, …
  reply: PrintableReply;
  endpoint: 'status' | 'info'; // where the reply is from
  isNew: boolean; // the reply may differ from the one before
}

/**
 * Yields the result of each request: as soon as something changes, and after `waitS` while the system responds.
 * Ignores a single connection that breaks.
 *
 * @param query `info` also reports the cause and the commands, unless the server reports its status only. `detail` also
 *   queries the detail each second: servers do not notify clients of its changes.
 * @param waitS Time limit of each request: a program that neither polls nor yields reports changes only on request.
 */
export async function* observe(
  client: PrintableClient,
  query: 'status' | 'info' | 'detail',
  signal: AbortSignal,
  waitS: number = WAIT_S,
): AsyncGenerator<Observation, void> {
  const endpoint = query === 'status' ? 'status' : 'info';
  let current: Observation['endpoint'] = endpoint;
  let status = '';
  let wasCut = false;
  for (let tag: string | undefined; !signal.aborted;) {
    const start = performance.now();
    const reply = await client.request(current, { tag, wait: tag === undefined ? undefined : waitS, signal });
    if (signal.aborted) return;
    if (lacksInfo(reply) && current === 'info') {
      current = 'status';
      continue;
    }
    const isNew = !reply.ok || tag === undefined || reply.tag !== tag; // otherwise it has no body
    if (isNew) status = statusNameOf(reply);
    if (!isCut(reply) || wasCut) yield { status, reply, endpoint: current, isNew };
    wasCut = isCut(reply);
    const hasTag = reply.ok && reply.tag !== undefined;
    tag = hasTag && (isNew || query !== 'detail') ? reply.tag : undefined;
    if (!reply.ok) current = endpoint; // another server may take over
    const hasWaited = isNew || performance.now() - start > RETRY_MS; // unless the server has no place for that
    const retryMs = !reply.ok && ['ENOTFOUND', 'EAI_AGAIN'].includes(`${reply.code}`) ? LOOKUP_MS : RETRY_MS;
    await sleep(hasTag && hasWaited ? PAUSE_MS : retryMs, undefined, { signal }).catch(() => {});
  }
}
