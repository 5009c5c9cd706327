// Tab completion in the console: its own words, and the own commands of the program.

import { acceptedIn, COMPLETION_MS, completionsOf, wordsBefore } from '../shared/words/accepts.ts';
import { completeAnswer, questionsIn } from '../shared/words/asks.ts';
import { commandsFor, findCommand, wordsOf } from '../shared/words/commands.ts';
import type { PrintableClient } from '../shared/reach/replies.ts';

const WORDS = commandsFor('console').flatMap(wordsOf).filter((word) => word.length > 1);

/** The candidates for the last word of a line, and the part of it that is typed. */
export type Completions = [candidates: string[], word: string];

/** Asks the system for its own commands, but waits only briefly. */
export async function complete(client: PrintableClient, line: string): Promise<Completions> {
  const words = wordsBefore(line);
  const current = words.at(-1) ?? '';
  const own = words.length > 1 ? [] : WORDS.filter((word) => word.startsWith(current.toLowerCase()));
  const command = words.length > 1 ? findCommand('console', words[0] ?? '') : undefined;
  if (command?.name === 'run') words.shift();
  else if (command !== undefined && command.name !== 'answer') return [[], current];
  const reply = await client.request('info', { signal: AbortSignal.timeout(COMPLETION_MS) });
  if (command?.name === 'answer') {
    return [completeAnswer(reply.ok ? questionsIn(reply.body) : [], words.slice(1), true), current];
  }
  const accepts = acceptedIn(reply);
  const declared = completionsOf(accepts, words).map((word) => {
    return accepts.get(word)?.parameters.size ? `${word} ` : word;
  });
  return [[...new Set([...own, ...declared])], current];
}
