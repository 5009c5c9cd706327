// What Tab completes in the console: its own words, and the commands that the program declares.

import { acceptedIn, COMPLETION_MS, completionsOf, wordsBefore } from '../shared/accepts.ts';
import { commandsFor, findCommand, wordsOf } from '../shared/commands.ts';
import type { PrintableClient } from '../shared/replies.ts';

const WORDS = commandsFor('console').flatMap(wordsOf).filter((word) => word.length > 1);

/** What the last word of a line may be, and that word as far as it is typed. */
export type Completions = [candidates: string[], word: string];

/** Asks the live system, for a short time. */
export async function complete(client: PrintableClient, line: string): Promise<Completions> {
  const words = wordsBefore(line);
  const current = words.at(-1) ?? '';
  const own = words.length > 1 ? [] : WORDS.filter((word) => word.startsWith(current.toLowerCase()));
  const command = words.length > 1 ? findCommand('console', words[0] ?? '') : undefined;
  if (command?.name === 'run') words.shift();
  else if (command !== undefined) return [[], current];
  const reply = await client.request('info', { signal: AbortSignal.timeout(COMPLETION_MS) });
  const accepts = acceptedIn(reply);
  const declared = completionsOf(accepts, words).map((word) => {
    return accepts.get(word)?.parameters.size ? `${word} ` : word;
  });
  return [[...new Set([...own, ...declared])], current];
}
