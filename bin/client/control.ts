// control-client pause, resume, save-state and shutdown.

import { parseDuration, parseFuture, UsageError } from '../shared/cli.ts';
import { COMMANDS } from '../shared/commands.ts';
import { checkSender, checkSending, resumeMine, send, SENDING, withWaiting } from './send.ts';
import { type Verb, verb } from './verb.ts';

const HOLD_DAYS = 30;
const WITHIN = {
  type: 'string', value: 'SECONDS',
  parse: (option: string, text: string) => Math.ceil(parseDuration(option, text, 'seconds', 1, 'from 0') / 1000),
  help: 'after this time (0: at once), kill the program (shutdown), or stop it in its step (pause, only under ' +
    'control-run)',
} as const;

export const pause: Verb = verb({
  ...COMMANDS.pause,
  example: "pause --wait --reason 'GPU needed until noon'",
  options: {
    ...SENDING,
    for: {
      type: 'string', value: 'SECONDS',
      parse: (option: string, text: string) => Math.ceil(parseDuration(option, text, 'seconds', HOLD_DAYS) / 1000),
      help: 'pause: the system ends it after this time, such as 30m',
    },
    until: {
      type: 'string', value: 'TIME', parse: (option: string, text: string) => parseFuture(option, text, HOLD_DAYS),
      help: 'pause: the same at a time, 14:00 or 2026-11-23T14:00',
    },
    within: WITHIN,
  },
  take: (_, values) => {
    checkSending('pause', values);
    if (values.for !== undefined && values.until !== undefined) {
      throw new UsageError('--for and --until are mutually exclusive');
    }
    for (const option of ['for', 'until'] as const) if (values[option] !== undefined) checkSender(option, values);
    if (Number(values.within) >= Number(values.for)) throw new UsageError('--within must be shorter than --for');
  },
  targets: () => ({ several: 'mistake' }),
  run: ({ each, values }) => each((target) => {
    const { for: given, until, ...others } = values;
    // Not a time, because the clocks of two machines differ. It never ends early.
    const left = until === undefined ? given : Math.max(1, Math.ceil((until - Date.now()) / 1000));
    return send(target, 'pause', { ...others, for: left });
  }),
});

export const resume: Verb = verb({
  ...COMMANDS.resume,
  options: withWaiting({
    mine: { type: 'boolean', help: "resume: release only the sender's hold, and wait" },
  }),
  take: (_, values) => {
    checkSending('resume', values, values.mine);
    if (values.mine === true) checkSender('mine', values);
  },
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
