// control-client wait: waits for a status, or for a field of the detail; goal.ts follows the systems.

import { SystemStatus } from '../../control.ts';
import { EXIT, listOf } from '../shared/cli.ts';
import { findStatus, STATUS_WORDS, wordOf } from '../shared/commands.ts';
import { isCondition, OPERATOR, parseCondition } from '../shared/describe.ts';
import { waitFor } from './goal.ts';
import { parseChoice, TIMEOUT, type Verb, verb } from './verb.ts';

const ARGUMENT = { name: 'STATUS', values: STATUS_WORDS, other: "a quoted condition: 'loss < 0.1'" };

export const wait: Verb = verb({
  name: 'wait', argument: ARGUMENT, example: 'wait paused --timeout 60',
  help: `wait for ${listOf(STATUS_WORDS)}, or for a value: wait 'loss < 0.1'`,
  options: { timeout: { ...TIMEOUT, help: 'time limit, such as 90s or 30m (default: none)' } },
  take(words) {
    if (OPERATOR.test(words[1] ?? '')) words.unshift(words.splice(0, 3).join(' ')); // wait loss '<' 0.1
    const word = words.shift();
    if (word !== undefined && isCondition(word)) return parseCondition(word);
    return findStatus(parseChoice(ARGUMENT, word)) as SystemStatus;
  },
  targets(goal, { timeout: timeoutMs }) {
    const { statusName: text } = SystemStatus.OFFLINE;
    const isEnd = goal === SystemStatus.OFFLINE; // the system may have ended just now
    if (isEnd) return { several: 'mistake', absence: 'offline', none: { exitCode: EXIT.DONE, text } };
    const awaits = { goal: 'field' in goal ? goal.text : wordOf(`${goal}`), timeoutMs };
    return { several: 'mistake', awaits, none: { exitCode: EXIT.NOT_REACHED } };
  },
  run({ argument: goal, values: { timeout = Infinity }, waitedMs, each }) {
    const limitMs = Math.max(1, timeout - waitedMs); // opening links takes none of it
    return each((target) => waitFor(target, goal, limitMs));
  },
});
