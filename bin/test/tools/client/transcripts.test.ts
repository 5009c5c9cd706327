// control-client as people see it: each .txt in this folder is a transcript.

import { readdirSync } from 'node:fs';
import { HOSTILE } from '../../helpers.ts';
import { transcript } from '../../transcript.ts';
import { call } from './helpers.ts';
import type { IncomingMessage } from 'node:http';

const FOLDER = 'bin/test/tools/client';

/** A response that refuses a command. */
const refuse = (code: number, error: string): object => ({ code, error });

/** A response with the body of the request. */
const echo = async (request: IncomingMessage): Promise<object> => {
  return { result: (await request.toArray()).join('') || 'no body' };
};

for (const name of readdirSync(FOLDER).filter((one) => one.endsWith('.txt'))) {
  transcript(`${FOLDER}/${name}`, 'control-client', call, { HOSTILE, refuse, echo });
}
