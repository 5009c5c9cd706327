// control-client pause, resume, save-state and shutdown; lease.ts has the pauses of one sender.

import { parseDuration } from '../shared/cli.ts';
import { COMMANDS } from '../shared/commands.ts';
import { pauseFor, resumeMine } from './lease.ts';
import { checkSending, send, SENDING, withWaiting } from './send.ts';
import { type Verb, verb } from './verb.ts';

const LEASE_DAYS = 365;
const WITHIN = {
  type: 'string', value: 'SECONDS',
  parse: (option: string, text: string) => Math.ceil(parseDuration(option, text, 'seconds', 1, 'from 0') / 1000),
  help: 'after this time, such as 30s, kill the program (shutdown), or stop it in the middle of its step (pause, ' +
    'only under control-run); 0: at once',
} as const;

export const pause: Verb = verb({
  ...COMMANDS.pause,
  example: "pause --wait --reason 'GPU needed until noon'",
  options: withWaiting({
    for: {
      type: 'string', value: 'SECONDS',
      parse: (option: string, text: string) => parseDuration(option, text, 'seconds', LEASE_DAYS),
      help: 'pause: resume after this time, such as 30m, as resume --mine does',
    },
    within: WITHIN,
  }),
  take: (_, values) => checkSending('pause', values, values.for !== undefined && 'for'),
  targets: () => ({ several: 'mistake' }),
  run(task) {
    const { values, each } = task;
    return values.for === undefined ? each((target) => send(target, 'pause', values)) : pauseFor(values.for, task);
  },
});

export const resume: Verb = verb({
  ...COMMANDS.resume,
  options: withWaiting({
    mine: { type: 'boolean', help: 'resume: release only the hold of the sender (--by), and wait as --wait does' },
  }),
  take: (_, values) => checkSending('resume', values, values.mine === true && 'mine'),
  targets: () => ({ several: 'mistake' }),
  run: ({ each, values }) => each((target) => {
    return values.mine === true ? resumeMine(target, values) : send(target, 'resume', values);
  }),
});

export const saveState: Verb = verb({
  ...COMMANDS['save-state'],
  example: 'save-state --wait --timeout 300',
  options: SENDING,
  take: (_, values) => checkSending('save-state', values),
  targets: () => ({ several: 'mistake' }),
  run: ({ each, values }) => each((target) => send(target, 'save-state', values)),
});

export const shutdown: Verb = verb({
  ...COMMANDS.shutdown,
  example: 'shutdown --within 5m --wait --timeout 10m',
  options: { ...SENDING, within: WITHIN },
  take: (_, values) => checkSending('shutdown', values),
  targets: () => ({ several: 'mistake' }),
  run: ({ each, values }) => each((target) => send(target, 'shutdown', values)),
});
