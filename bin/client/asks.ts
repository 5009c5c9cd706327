// control-client asks and answer: the open questions of programs, and the answer to one of them.

import { describeParameter } from '../shared/words/accepts.ts';
import {
  asksIn, describeGiven, describeLack, describeOpen, describeTimes, questionsIn, readAnswer,
} from '../shared/words/asks.ts';
import { EXIT, UsageError } from '../shared/line/options.ts';
import { isAbsent, lacksInfo } from '../shared/reach/replies.ts';
import { inParallel } from '../shared/reach/targets.ts';
import { commandsOf, haveQuestionsChanged } from '../shared/words/describe.ts';
import { printable } from '../shared/words/text.ts';
import { failure, notSent } from './send.ts';
import type { Question } from '../shared/words/asks.ts';
import type { RequestOptions } from '../../control.ts';
import type { PrintableClient, PrintableReply } from '../shared/reach/replies.ts';
import type { Target } from '../shared/reach/targets.ts';
import type { Outcome } from './send.ts';

/** An answer as typed. */
export interface Answering {
  /** Of the question; empty for the only one that is open. */
  id: string;
  /** The arguments, or `yes` or `no`. */
  words: readonly string[];
}

/** Lists the open questions with their times, and what they take. */
export async function listAsks(client: PrintableClient): Promise<Outcome> {
  const reply = await client.request('info');
  const lack = refuseLack(reply);
  if (lack !== null) return lack;
  if (!reply.ok) return failure(reply);
  const lines = questionsIn(reply.body).flatMap((question) => {
    return [`${describeTimes(question)}: ${question.message}`, ...[...question.parameters].map(describeParameter)];
  });
  return { exitCode: EXIT.DONE, text: lines.join('\n'), json: { asks: reply.body['asks'] } };
}

/** Returns null if the system has questions, or has not responded. */
function refuseLack(reply: PrintableReply): Outcome | null {
  if (reply.ok ? asksIn(reply.body) !== null : !lacksInfo(reply)) return null;
  const error = describeLack(reply.body);
  return { exitCode: EXIT.REFUSED, json: { error }, error };
}

/**
 * Answers one question of one of the systems. Returns what to print about which of them.
 *
 * @throws {UsageError} If the answer may be meant for several questions, or is none to this one.
 * @throws {Error} If there is no such question.
 */
export async function answer(
  targets: readonly Target[],
  { id, words }: Answering,
  options: Pick<RequestOptions, 'by' | 'reason'>,
): Promise<[Target, Outcome][]> {
  const replies = new Map<Target, PrintableReply>();
  await inParallel(targets, async (target) => {
    const reply = await target.client.request('info'); // has the program note the time, which the next one reports
    replies.set(target, reply.ok && id === '' ? await target.client.request('info') : reply);
  });
  const askers = targets.map((target) => ({ target, reply: replies.get(target) as PrintableReply }));
  const failed = askers.flatMap(({ target, reply }): [Target, Outcome][] => {
    const outcome = refuseLack(reply) ?? (reply.ok ? null : notSent('answer', reply));
    return outcome === null ? [] : [[target, outcome]];
  });
  if (failed.length === targets.length) return failed;
  const open = askers.flatMap(({ target, reply: { body } }) => {
    return questionsIn(body).map((question) => ({ target, question }));
  });
  const meant = open.filter(({ question }) => id === '' || question.id === id);
  const list = describeOpen(open.map(({ target: { title }, question }) => {
    return targets.length === 1 ? question : { ...question, id: `${question.id} of ${printable(title)}` };
  }));
  if (meant.length > 1) throw new UsageError(`${id === '' ? 'the id' : 'the target'} must be given: ${list}`);
  // A system that does not respond may have the question that is meant.
  const isSure = askers.every(({ reply }) => reply.ok || isAbsent(reply) || lacksInfo(reply));
  const [only] = meant;
  if (only !== undefined && id === '' && isSure && askers.some(({ reply: { body } }) => haveQuestionsChanged(body))) {
    throw new UsageError(`the id must be given, because the questions have just changed: ${list}`);
  }
  if (only !== undefined && (id !== '' || isSure)) {
    return [[only.target, await send(only.target, only.question, readAnswer(only.question, words), options)]];
  }
  if (!isSure) return failed;
  const ended = askers.find(({ reply: { body } }) => commandsOf(body).some((entry) => entry['id'] === id));
  const target = targets.length === 1 ? targets[0] : ended?.target;
  if (id === '') throw new Error('no question is open');
  if (target === undefined) throw new Error(`there is no question ${id}: ${list}`);
  return [[target, await send(target, { id, message: '' }, {}, options)]]; // the server says how it has ended
}

async function send(
  { client }: Target,
  question: Pick<Question, 'id' | 'message'>,
  given: object,
  options: Pick<RequestOptions, 'by' | 'reason'>,
): Promise<Outcome> {
  const { id, message } = question;
  const reply = await client.request('answer', { ...options, id, arguments: given });
  if (!reply.ok) return failure(reply);
  const json = { result: reply.original, id, message, arguments: given };
  return { exitCode: EXIT.DONE, text: describeGiven(question, given), json };
}
