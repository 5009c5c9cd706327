// control-client as people see it: each .txt in this folder is a transcript.

import { readdirSync } from 'node:fs';
import { HOSTILE } from '../../helpers.ts';
import { transcript } from '../../transcript.ts';
import { call } from './helpers.ts';

const FOLDER = 'bin/test/tools/client';

/** A response to a command. */
const refuse = (code: number, error: string): object => ({ code, error });

for (const name of readdirSync(FOLDER).filter((one) => one.endsWith('.txt'))) {
  transcript(`${FOLDER}/${name}`, 'control-client', call, { HOSTILE, refuse });
}
