// control-client status, info, stack and asks: what systems report.

import { EXIT, paintStatus, warn } from '../shared/cli.ts';
import { describeUnknown, statusNameOf, UNKNOWN } from '../shared/client.ts';
import { COMMANDS } from '../shared/commands.ts';
import { describeParameter, questionsIn, stackIn, timesOf } from '../shared/declared.ts';
import { seen } from '../shared/system.ts';
import { describeInfo, viewOf } from '../shared/view.ts';
import { failure, type Outcome, TIMEOUT, type Verb, verb } from './verb.ts';
import type { Target } from '../shared/folder.ts';

export const status: Verb = verb({
  ...COMMANDS.status,
  options: { timeout: TIMEOUT },
  targets: () => ({ several: 'all', none: { text: 'offline' } }),
  // Scripts compare the word on stdout, so the cause is printed only on a terminal.
  run: ({ each, values }) => each((target) => getStatus(target, process.stdout.isTTY && values.json !== true)),
});

export const info: Verb = verb({
  ...COMMANDS.info,
  options: { timeout: TIMEOUT },
  targets: () => ({ several: 'all' }),
  run: ({ each }) => each(async (target) => {
    const reply = await target.client.request('info');
    if (!reply.ok) return failure(reply);
    return { exitCode: EXIT.DONE, text: describeInfo(seen(target, reply)).join('\n'), json: reply.body };
  }),
});

export const stack: Verb = verb({
  ...COMMANDS.stack,
  options: { timeout: TIMEOUT },
  targets: () => ({ several: 'all' }),
  run: ({ each }) => each(async ({ client }) => {
    const reply = await client.request('stack');
    if (!reply.ok) return failure(reply);
    return { exitCode: EXIT.DONE, text: stackIn(reply.body).join('\n'), json: reply.body };
  }),
});

export const asks: Verb = verb({
  name: 'asks', help: 'list the open questions of the program, and what they take', example: 'asks --all',
  options: { timeout: TIMEOUT },
  targets: () => ({ several: 'all' }),
  async run({ each, values }) {
    let isAny = values.json === true;
    await each(async ({ client }) => {
      const reply = await client.request('info');
      const questions = questionsIn(reply.body);
      isAny ||= !reply.ok || questions.length > 0;
      if (!reply.ok) return failure(reply);
      const lines = questions.flatMap((question) => {
        const first = `${timesOf(question, question.id)}: ${question.message}`;
        return [first, ...[...question.parameters].map(describeParameter)];
      });
      return { exitCode: EXIT.DONE, text: lines.join('\n'), json: { asks: reply.body['asks'] } };
    });
    if (!isAny) warn('no question is open');
  },
});

async function getStatus(target: Target, isVerbose: boolean): Promise<Outcome> {
  const { client } = target;
  const reply = await client.request('status');
  const name = statusNameOf(reply);
  if (!reply.ok && reply.phase === 'answered') return failure(reply);
  if (!reply.ok) return { ...failure(reply, name), text: paintStatus(name, name) };
  if (name === UNKNOWN) {
    const error = describeUnknown(reply.original);
    return { exitCode: EXIT.REFUSED, text: paintStatus(name, name), json: { status: reply.original, error }, error };
  }
  const known = isVerbose ? await client.request('info') : null;
  const text = known?.ok === true ? viewOf(seen(target, known)).summary : name;
  return { exitCode: EXIT.DONE, text: paintStatus(text, name), json: { status: name } };
}
