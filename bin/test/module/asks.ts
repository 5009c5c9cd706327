// Shared by the tests of questions: answers over several kinds of clients, and the same story from everybody.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { INFO, HOST, Connection, ask, head } from '../http.ts';
import { readLog } from './log.ts';
import type { Answer, AskInfo, CommandInfo } from '../../../control.ts';
import type { HttpResponse, Where } from '../http.ts';
import type { Line } from './log.ts';

/** What a client has sent, and its response. Without one, the connection has broken. */
export interface Attempt {
  by: string;
  reason: string;
  values: object;
  reply: { statusCode: number; body: any } | null;
}

/** A question, who has answered it, and what the program has got. */
export interface Story {
  id: string;
  attempts: Attempt[];
  got: Answer | Error;
}

/** The bytes of an answer. */
export function answerWith(id: string, values: unknown, query: Record<string, string> = {}): string {
  const json = Buffer.from(typeof values === 'string' ? values : JSON.stringify(values)).toString('latin1');
  const line = `POST /api/answer?${new URLSearchParams({ id, ...query })}`;
  return `${head(line, HOST, `Content-Length: ${json.length}`)}${json}`;
}

/** Answers on a connection of its own. */
export async function answer(
  where: Where, id: string, values: unknown, query: Record<string, string> = {},
): Promise<HttpResponse> {
  const connection = new Connection(where);
  try {
    return await connection.request(answerWith(id, values, query));
  } finally {
    connection.socket.destroy();
  }
}

/** What sends an answer, and when it has a connection already. */
export type Sender = (id: string, values: object, query: Record<string, string>) => Promise<Attempt['reply']>;

export function overConnection(connection: Connection): Sender {
  return (id, values, query) => connection.request(answerWith(id, values, query)).catch(() => null);
}

export function overFetch(port: number): Sender {
  return async (id, values, query) => {
    const url = `http://127.0.0.1:${port}/api/answer?${new URLSearchParams({ id, ...query })}`;
    const response = await fetch(url, { method: 'POST', body: JSON.stringify(values) });
    return { statusCode: response.status, body: await response.json() };
  };
}

export function overCurl(port: number): Sender {
  return async (id, values, query) => {
    const url = `http://127.0.0.1:${port}/api/answer?${new URLSearchParams({ id, ...query })}`;
    const args = ['-s', '-w', '\n%{http_code}', '-d', JSON.stringify(values), url];
    const [body = '', code] = (await promisify(execFile)('curl', args)).stdout.split('\n');
    return { statusCode: Number(code), body: JSON.parse(body) };
  };
}

/** The open questions, oldest first. */
export async function asksOf(where: Where): Promise<AskInfo[]> { return (await ask(where, INFO)).body.asks; }

/** The id of the only open question with this message. */
export async function idOf(where: Where, message: string): Promise<string> {
  const found = (await asksOf(where)).filter((one) => one.message === message);
  assert.equal(found.length, 1, message);
  return (found[0] as AskInfo).id;
}

/** What the program gets: the answer, or the reason why there is none. */
export function outcomeOf(question: Promise<Answer>): Promise<Answer | Error> {
  return question.then((value) => value, (error: Error) => error);
}

/** Busy, to the microsecond. */
export function spin(milliseconds: number): void {
  for (const end = performance.now() + milliseconds; performance.now() < end;);
}

/** Checks what all have seen of a question. Returns whether it was answered. */
export function checkStory({ id, attempts, got }: Story): boolean {
  const replies = attempts.map(({ reply }) => `${reply?.statusCode} ${reply?.body?.error ?? ''}`).join(', ');
  const winners = attempts.filter(({ reply }) => reply?.statusCode === 200);
  assert.ok(winners.length <= 1, `${id}: ${replies}`);
  const [winner] = winners;
  const isAnswered = !(got instanceof Error);
  if (winner !== undefined) {
    const { by, reason, values } = winner;
    assert.deepEqual(got, { arguments: values, by, reason }, `${id}: ${replies}`);
  } else if (isAnswered) { // a response that was lost
    const { by, reason, values } = attempts.find((one) => one.by === got.by && one.reply === null) ?? assert.fail(id);
    assert.deepEqual(got, { arguments: values, by, reason });
  }
  const ended = isAnswered ? `${got.by} has answered ${id}`
    : got.name === 'TimeoutError' ? `${id} has expired`
    : new RegExp(`^(${id} was withdrawn|a (pause|shutdown) waits)$`);
  for (const { reply } of attempts) {
    if (reply === null || reply.statusCode === 200) continue;
    if (reply.statusCode === 404) assert.match(reply.body.error, new RegExp(`^There is no question ${id}: open are `));
    else assert.equal(reply.statusCode, 409, replies);
    if (reply.statusCode === 404) continue;
    if (typeof ended === 'string') assert.equal(reply.body.error, ended);
    else assert.match(reply.body.error, ended);
  }
  return isAnswered;
}

/** Checks an entry of `commands`, or a line of the log, against what the program has got. */
export function checkEnd(entry: CommandInfo | Line | undefined, { id, got }: Story): void {
  if (entry === undefined) return assert.fail(`${id} is missing`);
  const { state, error, by, reason } = entry;
  const isAnswered = !(got instanceof Error);
  const end = isAnswered ? undefined : got.name === 'TimeoutError' ? 'expired' : 'withdrawn';
  assert.deepEqual(
    { command: entry.command, state, error, by, reason, values: entry.arguments },
    { command: 'answer', state: isAnswered ? 'done' : 'failed', error: end, by: isAnswered ? got.by : undefined,
      reason: isAnswered ? got.reason : undefined, values: isAnswered ? got.arguments : undefined },
    id,
  );
}

/** Checks that a log of a server that is closed has each question once, as it has ended. */
export function checkLog(path: string, stories: readonly Story[]): void {
  const lines = readLog(`${path}.1`, path);
  for (const story of stories) {
    const [asked, ended, ...others] = lines.filter(({ id }) => id === story.id);
    assert.deepEqual([asked?.event, ended?.event, others], ['ask', 'answer', []], story.id);
    checkEnd(ended, story);
  }
}
