// The log of a system, for the tools that show it: control-client top, control-board and control-mcp. The system may
// report any path and any host.

import { isIPv4 } from 'node:net';
import { hostname, networkInterfaces } from 'node:os';
import { excerptOf } from '../words/text.ts';
import { latestLines, logPathIn } from './logs.ts';
import type { Body } from '../words/text.ts';
import type { Line } from '../words/log.ts';
import type { PrintableClient } from './replies.ts';

const MAX_LINES = 201; // one more than a tool shows

export interface History {
  /** Where the log is if it is not here, or what is wrong with it: `logs on gpu1 to /…`. Otherwise empty. */
  note: string;
  /** The oldest first. Safe to print. */
  lines: readonly Line[];
}

const reads: Map<string, Promise<History>> = new Map(); // in progress, by the key of the client

/**
 * Returns the latest 201 lines of the log of a system if its file is on this machine. There is one read per system at a
 * time, whatever it reports: calls during a read share the result.
 *
 * @param info The latest body of its /api/info; the system may have ended.
 */
export function readHistory(client: PrintableClient, info: Body): Promise<History> {
  const { key } = client;
  const read = reads.get(key) ?? readNow(client, info).finally(() => reads.delete(key));
  reads.set(key, read);
  return read;
}

async function readNow(client: PrintableClient, info: Body): Promise<History> {
  const { path, error } = Object(info['log']) as Body;
  const [place, host, fault] = [path, info['host'], error].map((field) => excerptOf(field));
  if (!hasLog(info)) return { note: 'does not log', lines: [] };
  if (logPathIn(info) === null || !isOfThisMachine(client)) {
    return { note: `logs on ${host || 'an unknown machine'} to ${place}`, lines: [] };
  }
  const lines = await latestLines(info, MAX_LINES);
  const absence = lines.length === 0 ? `no readable entries in ${place}` : '';
  return { note: fault ? `cannot write to ${place}: ${fault}` : absence, lines };
}

/** Whether a system reports that it logs to a file. */
export function hasLog(info: Body): boolean {
  return excerptOf(Object(info['log']).path) !== '';
}

/** Whether the address is one of this machine. A system elsewhere may report the name and the files of this one. */
function isOfThisMachine({ machine, socketPath, baseUrl }: PrintableClient): boolean {
  if (machine.label !== '') return machine.connect === undefined;
  if (socketPath !== undefined) return true;
  const { hostname: host } = new URL(baseUrl);
  if (host === 'localhost' || (isIPv4(host) && host.startsWith('127.'))) return true;
  const addresses = Object.values(networkInterfaces()).flatMap((entries = []) => entries.map(({ address }) => address));
  const name = hostname().toLowerCase(); // as in a URL
  return [name, name.split('.')[0], '::1', ...addresses].includes(host.replace(/^\[(.*)\]$/, '$1'));
}
