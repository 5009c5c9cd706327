// Who paused a system, when and why, as saved in a file.

import { tidy } from '../shared/words/text.ts';
import type { StatusCause } from '../../control.ts';

/**
 * Checks the fields of a file that anybody may have edited. Without a time, or with one in the future, the pause
 * begins now.
 *
 * @throws {Error} If a field has the wrong type, or the time cannot be parsed.
 */
export function parseCause({ by, reason, since }: Record<string, unknown>): StatusCause {
  const now = Date.now();
  const time = since === undefined ? now : Date.parse(typeof since === 'string' ? since : '');
  if (!(time > 0)) throw new Error(`its "since" must be a time such as "${new Date(now).toISOString()}"`);
  return {
    ...parseText('by', by), ...parseText('reason', reason), since: new Date(Math.min(time, now)).toISOString(),
  };
}

function parseText(name: string, value: unknown): Record<string, string> {
  if (value === undefined) return {};
  if (typeof value !== 'string') throw new Error(`its "${name}" must be a text`);
  return { [name]: tidy(value) };
}
