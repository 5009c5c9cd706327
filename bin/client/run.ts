// control-client run: runs an own command of the program, or lists them.

import { EXIT, suggest, UsageError } from '../shared/cli.ts';
import { COMMANDS } from '../shared/commands.ts';
import {
  acceptedBy, describeAccepts, isArgument, parseArguments, readArguments, type Typed,
} from '../shared/declared.ts';
import { checkSending, notSent, send, SENDING, type Sending } from './send.ts';
import { failure, type Outcome, type Verb, verb } from './verb.ts';
import type { Target } from '../shared/folder.ts';

/** An own command of the program, as typed. */
interface Invocation {
  name: string;
  typed: Typed;
}

export const run: Verb = verb({
  ...COMMANDS.run,
  example: 'run evaluate points=200 --wait',
  options: SENDING,
  take(words, values) {
    const [first] = words;
    const isNone = first === undefined || (/[.:/]|^\d+$/.test(first) && !isArgument(first)); // can be no command
    const option = (['wait', 'by', 'reason'] as const).find((name) => values[name] !== undefined);
    if (isNone && option === undefined) return null;
    if (isNone) throw new UsageError(`--${option} requires the name of a command; run alone lists them`);
    const [name = '', ...others] = words.splice(0, Infinity);
    words.push(...others.filter((word) => !isArgument(word)));
    const typed = parseArguments(others.filter(isArgument));
    checkSending('run', values);
    return { name, typed };
  },
  targets: (invocation) => {
    return invocation === null ? { several: 'all' } : { several: 'mistake', hint: '; arguments are name=value' };
  },
  run: ({ argument, values, each }) => each((target) => runDeclared(target, argument, values)),
});

/** @param invocation By default, lists the commands. */
async function runDeclared(target: Target, invocation: Invocation | null, values: Sending): Promise<Outcome> {
  const reply = await target.client.request('info');
  if (reply.fault === 'lacking') {
    const error = 'the server takes only pause, resume, save-state and shutdown';
    return { exitCode: EXIT.REFUSED, json: { error }, error };
  }
  if (!reply.ok) return invocation === null ? failure(reply) : notSent(invocation.name, reply);
  const accepts = acceptedBy(reply.body);
  const names = [...accepts.keys()].join(', ');
  const none = names === '' ? 'the program declares no commands' : '';
  if (invocation === null) {
    const json = { accepts: reply.body['accepts'] };
    return { exitCode: EXIT.DONE, text: describeAccepts(accepts), json, error: none };
  }
  const { name, typed } = invocation;
  const declaration = accepts.get(name);
  if (declaration === undefined) {
    const error = `${none || `the command must be one of ${names}`}, got '${name}'${suggest(name, accepts.keys())}`;
    return { exitCode: EXIT.USAGE, json: { error }, error };
  }
  return send(target, name, values, readArguments(typed, declaration));
}
