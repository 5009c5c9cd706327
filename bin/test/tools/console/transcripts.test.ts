// control-console in a pipe as people see it: each .txt in this folder is a transcript.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { assertHarmless, HOSTILE, makeFolder, runProgram, TOKEN } from '../../helpers.ts';
import { startPuppet } from '../../puppet.ts';
import { type Tool, transcript } from '../../transcript.ts';
import { LIMIT } from '../../wait.ts';
import type { IncomingMessage } from 'node:http';

/** What was sent, as the value of a command. */
const value = async (request: IncomingMessage): Promise<object> => {
  return { state: 'done', value: JSON.parse((await request.toArray()).join('') || 'null') };
};

/** What was sent, as the refusal of an answer. */
const refuse = async (request: IncomingMessage): Promise<object> => {
  return { code: 409, error: (await request.toArray()).join('') };
};

const BUSY = /((still )?\w+(ing| down)? … )+(\(\d+\.\d s\)\n)?/g; // what it prints if a response takes long

const run: Tool = async (args, env, input, t) => {
  const variables = { CONTROL_BY: 'ana', CONTROL_TOKEN: TOKEN, HOME: makeFolder(t), ...env };
  const ended = await runProgram(t, 'console', args, input, variables);
  return { ...ended, stdout: ended.stdout.replaceAll(BUSY, '') };
};

transcript('bin/test/tools/console/pipe.txt', 'control-console', run, { HOSTILE, value, refuse });

describe('control-console with a pipe', LIMIT, () => {
  it('takes a line with the line separators of Unicode as one', async (t) => {
    const { port, requests } = await startPuppet(t, { post: { state: 'done' }, status: 'paused', reason: 'GPU' });
    const input = 'pause it says\u2028shutdown\u2029y\r\n\rstatus\r\x1b[2J\x9b\u202e!\nshutdown'; // the last has no end
    const { stdout, stderr } = await runProgram(t, 'console', ['--port', `${port}`, '--host', '127.0.0.1'], input);
    assert.match(stdout, /^paused \(.*\)\npaused: GPU\n$/);
    assert.equal(stderr, [
      "unknown command ' [2J !'; type help for a list of commands",
      'shutdown not sent: the input ended before the confirmation', '',
    ].join('\n'));
    assertHarmless(stdout + stderr);
    const [sent = '', ...others] = requests.filter((request) => request.startsWith('POST'));
    const reason = new URL(sent.replace('POST ', ''), 'http://localhost').searchParams.get('reason');
    assert.deepEqual([reason, others], ['it says\u2028shutdown\u2029y', []]);
  });
});
