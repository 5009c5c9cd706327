// The command line of control-demo.

import { randomInt } from 'node:crypto';
import { parseServerOptions, SERVER_OPTIONS, TOKEN_HELP } from '../shared/access.ts';
import {
  describeOptions, parseDuration, parseInteger, parseOptions, parseText, UsageError,
} from '../shared/options.ts';
import { EPISODE_STEPS, MEAN_EPISODES } from './cartpole.ts';

const OPTIONS = {
  ...SERVER_OPTIONS,
  'no-web-api': { type: 'boolean', default: false, help: 'run without a web API' },
  until: {
    type: 'string', value: 'RETURN',
    help: `shut down once the mean return of ${MEAN_EPISODES} episodes reaches RETURN (1 to ${EPISODE_STEPS})`,
  },
  seed: { type: 'string', value: 'N', help: 'seed of the random numbers, from 0 to 4294967295 (default: random)' },
  load: {
    type: 'string', value: 'FILE',
    help: 'continue from this checkpoint; latest is the newest one in the folder of --states-dir, or a new beginning ' +
      'if it has none',
  },
  'save-every': {
    type: 'string', value: 'MINUTES',
    help: 'also save whenever the last save was MINUTES ago, while active (default: only on request and at the end)',
  },
  'states-dir': {
    type: 'string', value: 'DIR', default: './states',
    help: 'folder for checkpoints, created if it does not exist (default ./states)',
  },
  keep: {
    type: 'string', value: 'N', default: '10',
    help: 'number of checkpoints to keep there (default 10); the oldest are deleted first, but saves within a minute ' +
      'leave half of the places to older ones',
  },
} as const;

const HELP = `
Usage: control-demo [options]

Learns to balance a pole on a cart (tabular Q-learning on CartPole), in about a minute, until it is shut down. Its web
API pauses, resumes, saves and shuts it down. Ctrl-C, SIGTERM and SIGHUP also shut it down, SIGUSR2 saves. It saves a
checkpoint before it exits.

Its own commands, for control-client run, also while it is paused:
  evaluate [episodes=N]             mean return of N episodes (1 to 1000, default 100) without learning
  set learningRate=R exploration=E  both from 0 to 1; E is the share of random actions
  step                              a single step

${describeOptions(OPTIONS)}

${TOKEN_HELP}

Exit codes: 0 shut down or RETURN reached, 1 failed to run or to save the last checkpoint, 2 usage error.
`;

const MAX_SEED = 2 ** 32 - 1;
const MAX_KEPT = 1_000_000;

export interface CommandLine {
  /** Of the web API. */
  access: ReturnType<typeof parseServerOptions>;
  noWebApi: boolean;
  seed: number;
  /** The path of the checkpoint to continue from, or `latest`. */
  load: string | undefined;
  folder: string;
  keep: number;
  /** Shuts down when the mean return reaches it. */
  goal: number;
  /** Saves when the last save was this long ago. */
  saveMs: number;
}

/**
 * Returns null if it has printed the help or the version.
 *
 * @throws {UsageError} If an option is invalid.
 */
export function parseCommandLine(args?: readonly string[]): CommandLine | null {
  const parsed = parseOptions(OPTIONS, HELP, 0, args);
  if (parsed === null) return null;
  const { values } = parsed;
  const { seed, load, keep, until, 'save-every': saveEvery, 'states-dir': folder, 'no-web-api': noWebApi } = values;
  const access = parseServerOptions(values, {}, 'control-demo');
  if (seed !== undefined && load !== undefined) {
    throw new UsageError('--seed and --load are mutually exclusive: a checkpoint contains its seed');
  }
  return {
    access,
    noWebApi,
    goal: until === undefined ? Infinity : parseReturn('--until', until),
    saveMs: saveEvery === undefined ? Infinity : parseDuration('--save-every', saveEvery, 'minutes') * 60_000,
    folder: parseText('--states-dir', folder),
    keep: parseInteger('--keep', keep, 1, MAX_KEPT),
    load: load === undefined ? undefined : parseText('--load', load),
    seed: seed === undefined ? randomInt(MAX_SEED + 1) : parseInteger('--seed', seed, 0, MAX_SEED),
  };
}

function parseReturn(option: string, text: string): number {
  const value = Number(text);
  if (/^\d+(\.\d*)?$/.test(text) && value >= 1 && value <= EPISODE_STEPS) return value;
  throw new UsageError(`${option} must be a number from 1 to ${EPISODE_STEPS}, got '${text}'`);
}
