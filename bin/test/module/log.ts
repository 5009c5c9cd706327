// Reads the log of a server more strictly than its readers do, and compares it with what clients and hosts have seen.

import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { HOST, INFO, STATUS, Connection, ask, exchange, head } from '../http.ts';
import { until } from '../wait.ts';
import type { CommandInfo } from '../../../control.ts';
import type { HttpResponse, Where } from '../http.ts';

export interface Line {
  time: string;
  name: string;
  pid: number;
  event: string;
  [field: string]: any;
}

/** A command that a client has sent; the response is null if the connection has broken. Each has another reason. */
export interface Sent {
  reason: string;
  response: HttpResponse | null;
}

/** What a host has received, and its outcome. */
export interface Delivered {
  request: { id: string; command: string; by?: string; reason?: string; arguments: object };
  outcome: { value?: unknown; error?: string };
}

/** Returns the lines of files that may not exist, in order, and what is not a whole line. */
export function parseLog(...paths: readonly string[]): { lines: Line[]; torn: string[] } {
  const torn: string[] = [];
  const lines = paths.filter((path) => existsSync(path)).flatMap((path) => {
    const texts = readFileSync(path, 'utf8').split('\n');
    const last = texts.pop();
    if (last !== '') torn.push(String(last));
    return texts.flatMap((text) => {
      if (text === '') return [];
      let line: Line;
      try {
        line = JSON.parse(text);
      } catch {
        torn.push(text);
        return [];
      }
      assert.deepEqual(Object.keys(line).slice(0, 4), ['time', 'name', 'pid', 'event'], text);
      assert.equal(new Date(line.time).toISOString(), line.time);
      assert.ok(Buffer.byteLength(text) < 16_384, `a line has ${Buffer.byteLength(text)} bytes`);
      return [line];
    });
  });
  return { lines, torn };
}

/** Returns the lines of files that nobody writes to: each is whole. */
export function readLog(...paths: readonly string[]): Line[] {
  const { lines, torn } = parseLog(...paths);
  assert.deepEqual(torn, []);
  return lines;
}

/** Returns how many lines of these kinds there are, as in `start 1, command 10`. */
export function countEvents(lines: readonly Line[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const { event } of lines) counts[event] = (counts[event] ?? 0) + 1;
  return counts;
}

/** Returns one line for each id: the last, at the place of the first. */
export function byId(lines: readonly Line[], event: string): Map<string, Line> {
  return new Map(lines.filter((line) => line.event === event).map((line) => [line['id'], line]));
}

/**
 * Sends commands one after the other, and waits for a server that is down.
 *
 * @param requestFor Returns the request for a query with a sender and a reason.
 * @param isOver Is called with how many were accepted, and the latest of them if it was. A busy host may be too slow
 *   for some, which are refused.
 */
export async function flood(
  where: Where, by: string, requestFor: (query: string, number: number) => string,
  isOver: (accepted: number, latest?: Sent) => boolean,
): Promise<Sent[]> {
  const sent: Sent[] = [];
  let accepted = 0;
  let connection = new Connection(where);
  let latest: Sent | undefined;
  while (!isOver(accepted, latest)) {
    const reason = `${by}/${sent.length}`;
    const request = requestFor(`?by=${by}&reason=${reason}`, sent.length);
    const one = { reason, response: await connection.request(request).catch(() => null) };
    sent.push(one);
    latest = isAccepted(one) ? one : undefined;
    if (latest !== undefined) accepted += 1;
    if (one.response !== null && sent.length % 50 > 0) continue; // it keeps all that has arrived
    connection.socket.destroy();
    while (one.response === null && !isOver(accepted) && (await exchange(where, head(STATUS, HOST), 1)).length === 0);
    connection = new Connection(where);
  }
  connection.socket.destroy();
  return sent;
}

/** Resolves once the host has completed all commands. */
export async function completion(where: Where): Promise<void> {
  await until(async () => {
    const { body } = await ask(where, INFO).catch(() => ({ body: null })); // the server may be down
    return body?.commands.every(({ state }: CommandInfo) => state === 'done' || state === 'failed') === true;
  });
}

/** Returns whether a command is on the queue, or was: 200 or 202, or 500 if it has failed. */
export function isAccepted({ response }: Sent): boolean {
  return response !== null && [200, 202, 500].includes(response.statusCode);
}

/** Checks that the log has each command that was accepted, none that was refused, and that all have one outcome. */
export function checkSent(lines: readonly Line[], sent: readonly Sent[]): void {
  const [commands, outcomes] = [byId(lines, 'command'), byId(lines, 'outcome')];
  const logged = new Map([...commands.values()].map((line) => [line['reason'] as string, line]));
  assert.equal(logged.size, commands.size, 'each was sent once');
  for (const { reason, response } of sent) {
    if (response === null) continue; // it may have been accepted
    const line = logged.get(reason);
    assert.equal(line !== undefined, isAccepted({ reason, response }), `${reason}: ${response.summary}`);
    if (line === undefined) continue;
    const outcome = outcomes.get(line['id']);
    assert.ok(outcome !== undefined, `${reason} has an outcome`);
    const { id = line['id'], state, value, error } = response.body;
    assert.equal(line['id'], id);
    if (state === 'done') assert.deepEqual([outcome['state'], outcome['value']], [state, value]);
    if (response.statusCode === 500) assert.equal(error, `${line['command']} failed: ${outcome['error']}`);
  }
}

/** Checks that what was delivered is what the log has an outcome of, in the same order in each lane. */
export function checkDelivered(lines: readonly Line[], delivered: readonly Delivered[]): void {
  const [commands, outcomes] = [byId(lines, 'command'), byId(lines, 'outcome')];
  assert.deepEqual([...outcomes.keys()].sort(), delivered.map(({ request }) => request.id).sort());
  for (const { request, outcome } of delivered) {
    const { id, command, arguments: values, by, reason } = request;
    const { time, name, pid, event, ...line } = commands.get(id) ?? assert.fail(`${id} is not logged`);
    const given = Object.keys(values).length === 0 ? {} : { arguments: values };
    assert.deepEqual(line, { id, command, ...given, by, reason });
    const { state, value, error } = outcomes.get(id) as Line;
    assert.deepEqual({ state, value, error }, {
      state: outcome.error === undefined ? 'done' : 'failed', value: outcome.value, error: outcome.error,
    });
  }
  const isOwn = (command: string): boolean => command === 'note';
  for (const wanted of [true, false]) {
    const numberOf = (id: string): number => Number(id.split('-')[1]);
    const logged = [...commands.values()].filter((line) => isOwn(line['command']) === wanted && !/-i/.test(line['id']));
    const numbers = logged.map((line) => numberOf(line['id']));
    assert.ok(numbers.every((number, index) => index === 0 || number > Number(numbers[index - 1])), 'in order');
    const taken = delivered.map(({ request }) => request).filter(({ command }) => isOwn(command) === wanted);
    const ids = taken.map(({ id }) => id).filter((id) => !/-i/.test(id));
    assert.deepEqual(ids, logged.map((line) => line['id']).filter((id) => outcomes.has(id)));
  }
  const seen = new Set<string>();
  for (const { event, id } of lines) {
    if (event === 'command') seen.add(id);
    if (event === 'outcome') assert.ok(seen.has(id), `${id} has an outcome before it is accepted`);
  }
}
