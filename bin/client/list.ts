// control-client list: the targets or all live systems in a folder, and what they are doing.

import { once } from 'node:events';
import { EXIT, warn } from '../shared/line/options.ts';
import { isAbsent, statusNameOf } from '../shared/reach/replies.ts';
import { inParallel } from '../shared/reach/targets.ts';
import { excerptOf, printable, printableJson } from '../shared/words/text.ts';
import { compareRows, Fleet, Row } from './fleet.ts';
import { failure } from './send.ts';
import { fit, Screen, Table, terminalSize } from './table.ts';
import type { Folder } from '../shared/reach/folder.ts';
import type { Target } from '../shared/reach/targets.ts';

/** Prints a line for each system; on a terminal, a table. Returns the exit code. */
export async function list(targets: readonly Target[], isJson: boolean): Promise<number> {
  const rows: Row[] = [];
  let exitCode: number = EXIT.DONE;
  await inParallel(targets, async (target) => {
    const reply = await target.client.ask();
    if (isAbsent(reply) && target.socket !== undefined) return; // it has ended
    const row = new Row(target);
    row.system.note(statusNameOf(reply), reply);
    rows.push(row);
    exitCode = Math.max(exitCode, reply.ok ? EXIT.DONE : failure(reply).exitCode);
  });
  rows.sort(compareRows);
  if (isJson) rows.forEach((row) => console.log(toJson(row)));
  else if (process.stdout.isTTY && rows.length > 0) print(new Table().linesOf(rows, terminalSize().columns));
  else print(linesOf(rows));
  for (const { target, system: { error } } of rows) {
    if (error !== '') warn(`${target.title}: ${error}`);
  }
  return exitCode;
}

/** Redraws the table every second, and soon after each change, until the signal. */
export async function watchList(
  targets: readonly Target[],
  folders: readonly Folder[],
  timeoutMs: number,
  signal: AbortSignal,
): Promise<void> {
  const table = new Table();
  const screen = new Screen((width, height) => {
    const room = height - 3; // the header, an error, and the line where the terminal echoes ^C
    const isCut = fleet.rows.length > room;
    fleet.visible = fleet.rows.slice(0, isCut ? room - 1 : room);
    const lines = table.linesOf(fleet.visible, width);
    if (fleet.error !== '') lines.push(fit(fleet.error, width));
    if (isCut) lines.push(`… ${fleet.rows.length - fleet.visible.length} more: control-client top shows all`);
    return lines;
  });
  const fleet = new Fleet(signal, () => screen.refresh());
  process.stdout.write('\n'.repeat(terminalSize().rows)); // keeps the earlier output in the scrollback
  process.on('SIGCONT', screen.redraw);
  fleet.add(targets);
  for (const folder of folders) void fleet.addAll(folder, timeoutMs);
  if (!signal.aborted) await once(signal, 'abort');
  process.off('SIGCONT', screen.redraw);
  screen.close();
}

function toJson({ target, machine, name, reportedName, pid, asks, system: { status, error, info } }: Row): string {
  return printableJson({
    target: target.name, machine: machine || undefined, name: reportedName || name,
    pid: Number(pid) || undefined, port: info['port'],
    status, error: error || undefined,
    since: excerptOf(info['since']) || undefined, by: excerptOf(info['by']) || undefined,
    reason: excerptOf(info['reason']) || undefined, holds: info['holds'], asks: asks ? info['asks'] : undefined,
    detail: info['detail'] ?? undefined,
  });
}

/** For scripts: nothing is truncated. */
function linesOf(rows: readonly Row[]): string[] {
  const cells = rows.map(({ name, reportedName, pid, system: { status }, age, target }) => {
    return [reportedName || name, pid, status, age, printable(target.name ?? target.title)];
  });
  const widths = [0, 1, 2, 3].map((column) => Math.max(...cells.map((texts) => `${texts[column]}`.length)));
  const isNumber = [false, true, false, true]; // a process and an age
  return cells.map((texts) => texts.map((text, column) => {
    const width = widths[column] ?? 0;
    return isNumber[column] === true ? text.padStart(width) : text.padEnd(width);
  }).join('  '));
}

function print(lines: readonly string[]): void {
  for (const line of lines) console.log(line.trimEnd());
}
