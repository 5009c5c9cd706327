// Whether whoever answers a question without its id can know which one is open.

import { isAnswer, questionsIn } from './asks.ts';
import { commandsOf, secondsOf } from './describe.ts';
import { timeIn } from './time.ts';
import type { Body } from './text.ts';

const RECENT_MS = 3000; // in which a person may not have seen what has changed

/** Whether a question was asked or has ended a moment ago, by the clock of the system: that of the tool may differ. */
export function haveJustChanged(info: Body): boolean {
  const asked = questionsIn(info).map(({ entry }) => timeIn(entry, 'at') ?? NaN);
  const ended = commandsOf(info).filter(isAnswer).map((entry) => (timeIn(entry, 'at') ?? NaN) + 1000 * secondsOf(entry));
  const now = timeIn(info, 'heardAt') ?? NaN; // of the program's latest turn
  return [...asked, ...ended].some((time) => !(now - time >= RECENT_MS)); // an unknown time may be recent
}
