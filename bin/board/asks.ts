// The questions of a system, as a page shows them. Any program may have sent them, so every field may have any type and
// text.

import { describeValues, isAnswer, questionsIn } from '../shared/words/asks.ts';
import { commandsOf, hasEnded } from '../shared/words/describe.ts';
import { excerptOf } from '../shared/words/text.ts';
import { timeIn } from '../shared/words/time.ts';
import { parametersOf } from './declarations.ts';
import type { Body } from '../shared/words/text.ts';
import type { Parameter } from './declarations.ts';

const MAX_LENGTH = 16_384; // of a question as JSON: control.ts permits 4 KiB

/** An open question. Times are by the clock of the system. */
export interface Ask {
  id: string;
  message: string;
  parameters: Parameter[];
  at: number | null;
  expiresAt: number | null;
}

/** How a question has ended. */
export interface AskEnd {
  id: string;
  /** `ana@phone has answered: approved=true`, `expired`, `withdrawn`. */
  text: string;
  isAnswered: boolean;
}

/** The open questions, the oldest first. */
export function readAsks(info: Body): Ask[] {
  return questionsIn(info).map(({ id, message, parameters, entry }): Ask => {
    const [at, expiresAt] = [timeIn(entry, 'at'), timeIn(entry, 'expiresAt')];
    return { id, message, parameters: parametersOf(parameters), at, expiresAt };
  }).filter((ask) => JSON.stringify(ask).length <= MAX_LENGTH);
}

/** The ends of the latest questions. */
export function readAskEnds(info: Body): AskEnd[] {
  return commandsOf(info).filter((entry) => isAnswer(entry) && hasEnded(entry)).map((entry) => {
    const { id, by, reason, error, arguments: given, state } = entry;
    const [isAnswered, values, why] = [state === 'done', describeValues(given), excerptOf(reason)];
    const answer = `${excerptOf(by) || 'somebody'} has answered${values && `: ${values}`}${why && ` (${why})`}`;
    return { id: excerptOf(id), text: isAnswered ? answer : excerptOf(error), isAnswered };
  });
}
