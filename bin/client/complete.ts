// What Tab offers: prints a directive for the scripts of completion.ts and, after `words`, one word per line, with a
// tab and its help if it has one.
//
//   words            the lines that follow
//   files START      file names; the word begins with START, such as `--targets=`
//   hosts START      host names

import { parseArgs } from 'node:util';
import { EXIT, withCommon } from '../shared/cli.ts';
import { findCommand } from '../shared/commands.ts';
import {
  acceptedBy, completeAnswer, COMPLETION_MS, completionsOf, isArgument, isQuestionId, questionsIn, wordsBefore,
} from '../shared/declared.ts';
import { logsOfUser, nameInLogPath as nameOf } from '../shared/logs.ts';
import { completeName, select, type Sources } from '../shared/names.ts';
import { PATIENCE_MS } from '../shared/via.ts';
import { OPTIONS, takes, VERBS } from './verbs.ts';

const KNOWN = Object.fromEntries(withCommon(OPTIONS));

/** @param args The line before the cursor, and the part of its last word that the shell replaces. */
export async function complete([line = '', replaced]: readonly string[]): Promise<number> {
  const limitMs = /\s--via\b/.test(line) || process.env['CONTROL_VIA'] ? PATIENCE_MS : COMPLETION_MS;
  const limit = setTimeout(() => process.exit(EXIT.DONE), limitMs); // a DNS lookup cannot be aborted
  await printCandidates(line, replaced).catch(() => {}); // the user is still typing; the complete line reports errors
  clearTimeout(limit);
  return EXIT.DONE;
}

async function printCandidates(line: string, replaced: string | undefined): Promise<void> {
  const [, ...words] = wordsBefore(line);
  const current = words.pop() ?? '';
  const config = { options: KNOWN, strict: false, allowPositionals: true, tokens: true } as const;
  const { values, positionals, tokens } = parseArgs({ ...config, args: words });
  const last = tokens.at(-1);
  const [start = '', named = ''] = /^--([a-z-]+)=/.exec(current) ?? [];
  const isPending = last?.kind === 'option' && last.value === undefined && KNOWN[last.name]?.type === 'string';
  const option = KNOWN[isPending ? last.name : named];
  const { completion = [] } = option ?? {};
  if (typeof completion === 'string') return console.log(`${completion} ${start}`);
  console.log('words');
  const list = current.slice(0, Math.max(start.length, current.lastIndexOf(',') + 1));
  const offers = option !== undefined ? completion.map((word) => list + word)
    : current.startsWith('-') ? optionsAfter(positionals[0]) : wordsAfter(positionals, values as Sources, current);
  const kept = Math.max(0, current.length - (replaced ?? current).length); // bash replaces what follows = or :
  for await (const word of offers) if (word.startsWith(current)) console.log(word.slice(kept));
}

/** The options of a command; without one, all. */
function optionsAfter(word: string | undefined): string[] {
  const command = findCommand(VERBS, word ?? '') ?? {};
  const taken = Object.entries(KNOWN).filter(([name]) => word === undefined || takes(command, name));
  return taken.flatMap(([name, { short, help }]) => {
    return [...short === undefined ? [] : [`-${short}\t${help}`], `--${name}\t${help}`];
  });
}

/** The commands of control-client, or what follows one. */
async function* wordsAfter(
  [word, name, ...others]: string[],
  values: Sources,
  current: string,
): AsyncGenerator<string, void> {
  if (word === undefined) yield* VERBS.map((command) => `${command.name}\t${command.help}`);
  const command = findCommand(VERBS, word ?? '');
  if (command === undefined) return;
  if (name === undefined && command.argument !== undefined) yield* command.argument.values ?? [];
  else if (!command.isLocal) {
    const ended = command.name === 'log' ? logsOfUser().map(nameOf).filter((logged) => /^\w[\w.-]*$/.test(logged)) : [];
    yield* new Set([...await completeName(current, values), ...ended]);
  }
  if (command.name !== 'run' && command.name !== 'answer') return;
  const isFirst = command.name === 'run' || isQuestionId(name ?? ''); // otherwise, the first word may be a target
  const after = name === undefined || isFirst ? others : [name, ...others];
  const targetWords = after.filter((other) => !isArgument(other));
  const { targets } = await select(targetWords, { ...values, timeoutMs: COMPLETION_MS }, 'all');
  const reply = targets.length === 1 ? await targets[0]?.client.request('info') : undefined;
  const typed = [...name !== undefined && isFirst ? [name] : [], ...after.filter(isArgument), current];
  if (command.name === 'run') yield* completionsOf(acceptedBy(reply?.body ?? {}), typed);
  else if (reply?.ok === true) yield* completeAnswer(questionsIn(reply.body), typed, false);
}
