// control-client list: what the live systems of a folder are, and what they are doing.

import { basename } from 'node:path';
import { paintStatus } from '../shared/colour.ts';
import { describeDuration, secondsSince } from '../shared/describe.ts';
import { EXIT, warn } from '../shared/options.ts';
import { isAbsent, isUnanswered, statusNameOf } from '../shared/replies.ts';
import { inParallel } from '../shared/targets.ts';
import { excerptOf, printable, printableJson } from '../shared/text.ts';
import type { Target } from '../shared/targets.ts';

interface Row {
  target: string;
  name: string;
  /** Empty if the system does not tell it, and the name of its socket does not, either. */
  pid: string;
  status: string;
  /** ISO 8601; undefined if the system does not tell it. */
  since: string | undefined;
  age: string;
}

/** Prints a line for each system. */
export async function list(targets: readonly Target[], isJson: boolean): Promise<number> {
  const asked: (Row | null)[] = [];
  await inParallel([...targets.entries()], async ([index, target]) => void (asked[index] = await ask(target)));
  const rows = asked.filter((row) => row !== null);
  if (isJson) rows.forEach((row) => console.log(toJson(row)));
  else show(rows);
  return EXIT.DONE;
}

/** Returns null if the system has ended meanwhile, or cannot be asked. */
async function ask({ name: target = '', client }: Target): Promise<Row | null> {
  const reply = await client.request('info');
  if (!reply.ok && !reply.answered && !isUnanswered(reply)) {
    if (!isAbsent(reply)) warn(`${target}: ${client.shorten(reply.error)}`);
    return null;
  }
  const [, nameOfSocket = '', pidOfSocket = ''] = /^(.*?)(?:-(\d+))?\.sock$/.exec(basename(target)) ?? [];
  const info = reply.ok ? reply.body : {};
  const seconds = secondsSince(info, 'since');
  return {
    target,
    name: excerptOf(info['name']) || nameOfSocket,
    pid: excerptOf(info['pid']) || pidOfSocket,
    status: statusNameOf(reply),
    since: excerptOf(info['since']) || undefined,
    age: seconds === null ? '' : describeDuration(seconds),
  };
}

function toJson({ target, name, pid, status, since }: Row): string {
  return printableJson({ target, name, pid: Number(pid) || undefined, status, since });
}

function show(rows: readonly Row[]): void {
  const widthOf = (column: 'name' | 'pid' | 'status' | 'age'): number => {
    return Math.max(...rows.map((row) => row[column].length));
  };
  const widths = { name: widthOf('name'), pid: widthOf('pid'), status: widthOf('status'), age: widthOf('age') };
  for (const { target, name, pid, status, age } of rows) {
    const cells = [
      name.padEnd(widths.name), pid.padStart(widths.pid), paintStatus(status.padEnd(widths.status), status),
      age.padStart(widths.age), printable(target),
    ];
    console.log(cells.join('  '));
  }
}
