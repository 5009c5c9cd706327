// control-client resume --mine: ends the pause of one sender.

import { EXIT } from '../shared/cli.ts';
import { statusNameOf } from '../shared/client.ts';
import { commandsOf, describeCause, hasEnded } from '../shared/describe.ts';
import { finish, optionsOf, refuse, type Sending } from './send.ts';
import { failure, type Outcome } from './verb.ts';
import type { Target } from '../shared/folder.ts';
import type { Body } from '../shared/text.ts';

/** Releases the pause of the sender, which resumes the system if nobody else has paused it. */
export async function resumeMine(target: Target, values: Sending): Promise<Outcome> {
  const { client } = target;
  const reply = await client.request('info');
  const refused = refuse('resume', '--mine', reply);
  if (refused !== null) return refused;
  const isPausing = commandsOf(reply.body).some((entry) => entry['command'] === 'pause' && !hasEnded(entry));
  const before = statusNameOf(reply);
  if (before === 'active' && !isPausing) return { exitCode: EXIT.DONE, text: before, json: { status: before } };
  const options = { ...optionsOf(values, target), mine: true, output: undefined };
  const resumed = await finish(client, 'resume', options);
  if (resumed.exitCode !== EXIT.DONE) return resumed;
  const latest = await client.request('info');
  if (!latest.ok) return { ...failure(latest), json: { ...resumed.json, status: undefined, error: latest.original } };
  const { value: status, body } = latest;
  const json: Body = { ...resumed.json, status, holds: body['holds'] };
  if (status !== 'paused' && status !== 'pausing') return { exitCode: EXIT.DONE, text: status, json };
  const cause = `${status}${describeCause(body)}`;
  const { released } = Object(json['value']);
  if (released === true) return { exitCode: EXIT.DONE, text: `released; still ${cause}`, json };
  const error = `not resumed: ${options.by} holds no pause; ${cause}`;
  return { exitCode: EXIT.REFUSED, json: { ...json, error }, error };
}
