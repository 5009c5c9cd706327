// control-client answer and withdraw: answers one question of one of the systems, and takes back a command.

import { EXIT, UsageError } from '../shared/cli.ts';
import { BY } from '../shared/client.ts';
import { COMMANDS } from '../shared/commands.ts';
import {
  describeGiven, describeOpen, isArgument, isCommandId, isQuestionId, questionsIn, readAnswer,
} from '../shared/declared.ts';
import { commandsOf, haveQuestionsChanged } from '../shared/describe.ts';
import { inParallel } from '../shared/folder.ts';
import { printable } from '../shared/text.ts';
import { notSent, SENDING } from './send.ts';
import { failure, type Outcome, quote, type Verb, verb } from './verb.ts';
import type { RequestOptions } from '../../control.ts';
import type { PrintableClient } from '../shared/client.ts';

export const answer: Verb = verb({
  ...COMMANDS.answer,
  example: "answer k3f-q2 --yes --reason 'looked at them'",
  options: {
    reason: SENDING.reason, by: SENDING.by,
    yes: { type: 'boolean', help: 'answer: true for the only parameter of the question' },
    no: { type: 'boolean', help: 'answer: false for the only parameter of the question' },
  },
  take(words, { yes, no }) {
    const id = isQuestionId(words[0] ?? '') ? `${words.shift()}` : ''; // without one, the only question that is open
    const all = words.splice(0, Infinity);
    words.push(...all.filter((word) => !isArgument(word)));
    const given = all.filter(isArgument);
    const [one = '', other] = [...yes ? ['--yes'] : [], ...no ? ['--no'] : [], ...given];
    const isShort = one.startsWith('--');
    if (isShort && other !== undefined) throw new UsageError(`${one} and ${other} are mutually exclusive`);
    return { id, given: isShort ? [one.slice(2)] : given };
  },
  targets: ({ id }) => ({ several: id === '' ? 'mistake' : 'all', hint: '; an answer is --yes, --no or name=value' }),
  async run({ argument: { id, given }, values: { by = BY, reason }, targets, each }) {
    const askers = await inParallel(targets, async (target) => {
      const reply = await target.client.request('info'); // has the program note the time, which the next one reports
      return { target, reply: reply.ok && id === '' ? await target.client.request('info') : reply };
    });
    const reportFailed = (): Promise<void> => each(async (target) => {
      const { reply } = askers.find((asker) => asker.target === target) ?? {};
      return reply?.ok === false ? notSent('answer', reply) : null;
    });
    if (askers.every(({ reply }) => !reply.ok)) return reportFailed();
    const open = askers.flatMap(({ target, reply: { body } }) => {
      return questionsIn(body).map((question) => ({ target, question }));
    });
    const meant = open.filter(({ question }) => id === '' || question.id === id);
    const list = describeOpen(open.map(({ target: { title }, question }) => {
      return targets.length === 1 ? question : { ...question, id: `${question.id} of ${printable(title)}` };
    }));
    if (meant.length > 1) throw new UsageError(`${id === '' ? 'the id' : 'the target'} must be given: ${list}`);
    // A system that does not respond may have the question that is meant.
    const isSure = askers.every(({ reply }) => reply.ok || reply.fault === 'offline' || reply.fault === 'lacking');
    const [only] = meant;
    if (only !== undefined && id === '' && isSure && askers.some(({ reply: { body } }) => haveQuestionsChanged(body))) {
      throw new UsageError(`the id must be given, because the questions have just changed: ${list}`);
    }
    if (only !== undefined && (id !== '' || isSure)) {
      const { target, question } = only;
      const sent = { by, reason, id: question.id, arguments: readAnswer(question, given) };
      return each(({ client }) => sendAnswer(client, question.message, sent), [target]);
    }
    if (!isSure) return reportFailed();
    const ended = askers.find(({ reply: { body } }) => commandsOf(body).some((entry) => entry['id'] === id));
    const target = targets.length === 1 ? targets[0] : ended?.target;
    if (id === '') throw new Error('no question is open');
    if (target === undefined) throw new Error(`there is no question ${id}: ${list}`);
    const sent = { by, reason, id, arguments: {} }; // the server says how it has ended
    return each(({ client }) => sendAnswer(client, '', sent), [target]);
  },
});

export const withdraw: Verb = verb({
  ...COMMANDS.withdraw,
  example: "withdraw k3f-7 --reason 'the wrong program'",
  options: { reason: SENDING.reason, by: SENDING.by },
  take(words) {
    const id = words.shift();
    if (isCommandId(id ?? '')) return `${id}`;
    throw new UsageError(`the ID must be that of a command, such as k3f-7, got ${quote(id)}`);
  },
  targets: () => ({ several: 'all' }),
  async run({ argument: id, values: { by = BY, reason }, targets, each }) {
    const asked = await inParallel(targets, async (target) => {
      return [target, await target.client.request('withdraw', { id, by, reason })] as const;
    });
    const found = asked.filter(([, reply]) => reply.ok || reply.statusCode === 409); // they have the command
    const replies = new Map(found.length > 0 ? found : asked);
    await each(async (target) => {
      const reply = replies.get(target);
      if (reply?.ok !== true) return reply === undefined ? null : failure(reply);
      return { exitCode: EXIT.DONE, text: 'withdrawn', json: { result: reply.original, id } };
    });
  },
});

/** @param sent The id, the arguments and who sends them. */
async function sendAnswer(client: PrintableClient, message: string, sent: RequestOptions): Promise<Outcome> {
  const { id, arguments: given = {} } = sent;
  const reply = await client.request('answer', sent);
  if (!reply.ok) return failure(reply);
  const json = { result: reply.original, id, message, arguments: given };
  return { exitCode: EXIT.DONE, text: describeGiven({ message }, given), json };
}
