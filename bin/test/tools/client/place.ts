// control-client at a place: its user has only the folder of a session and, as localhost:8391, a port of 127.0.0.1.

import { AsyncLocalStorage } from 'node:async_hooks';
import fs from 'node:fs';
import { Socket } from 'node:net';
import { call } from './helpers.ts';
import { type Place, settle, TOOL_USER, variablesOf } from './systems.ts';
import type { Ended } from '../../helpers.ts';

const places = new AsyncLocalStorage<Place>();
settle(fs, Socket, TOOL_USER, () => places.getStore());

/** Runs control-client there, in the process of the test. */
export function callAt(
  folder: string,
  place: Place,
  args: readonly string[],
  env: NodeJS.ProcessEnv = {},
): Promise<Ended> {
  return places.run(place, () => call(args, { ...variablesOf(folder), ...env }));
}
