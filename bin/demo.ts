#!/usr/bin/env node
// control-demo: a program to control, and to copy from. demo/ holds its learner, checkpoints and output.

import { randomInt } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { DEFAULT_HOST, DEFAULT_PORT, launch, SystemStatus, type WebApiAddress } from '../control.ts';
import { loadCheckpoint, openFolder, saveCheckpoint } from './demo/checkpoints.ts';
import { EPISODE_STEPS, Learner, MEAN_EPISODES } from './demo/learner.ts';
import { Progress } from './demo/progress.ts';
import { describeOptions, EXIT, parseDuration, parseInteger, parseOptions, run, warn } from './shared/cli.ts';
import {
  baseUrlOf, explainPort, parseServerOptions, SERVER_ENVIRONMENT_HELP, SERVER_OPTIONS,
} from './shared/client.ts';
import { choosePlace } from './shared/folder.ts';
import { LOG_OPTIONS, LogFile } from './shared/logfile.ts';

const SLICE_STEPS = 200; // computed at once
const SLICE_MS = 10; // from one slice to the next, so that its progress can be watched
const SHARE = { type: 'number', minimum: 0, maximum: 1 } as const;

const OPTIONS = {
  ...SERVER_OPTIONS,
  name: { ...SERVER_OPTIONS.name, help: 'name of the system (default: CONTROL_NAME, or else control-demo)' },
  until: {
    type: 'string', value: 'RETURN',
    help: `shut down at this mean return, from 1 to ${EPISODE_STEPS} (default: never)`,
  },
  seed: { type: 'string', value: 'N', help: 'seed of a new learner, from 0 to 4294967295 (default: random)' },
  load: {
    type: 'string', value: 'FILE',
    help: 'continue from a checkpoint; latest: from the newest one in --states-dir, if there is one',
  },
  'save-every': {
    type: 'string', value: 'MINUTES', help: 'also save when the last save was MINUTES ago (default: never)',
  },
  'states-dir': {
    type: 'string', value: 'DIR', default: './states',
    help: 'folder for checkpoints, created if necessary (default ./states)',
  },
  keep: { type: 'string', value: 'N', default: '10', help: 'keep the newest N checkpoints (default 10)' },
  ...LOG_OPTIONS,
} as const;

const HELP = `
Usage: control-demo [options]

Learns to balance a pole on a cart (Q-learning on CartPole) in about a minute, and runs until it is shut down by a
command to its web API, Ctrl-C, SIGTERM or SIGHUP. It saves a checkpoint before it exits, on request and on SIGUSR2. Its
own commands are evaluate, set and step: control-client run describes them.

${describeOptions(OPTIONS)}

MINUTES may have a unit: 90s, 30m, 2h.

${SERVER_ENVIRONMENT_HELP}

Exit codes: 0 shut down or RETURN reached, 1 failed to run or to save the last checkpoint, 2 usage error.
`;

async function main(): Promise<number> {
  const parsed = parseOptions(OPTIONS, HELP);
  if (parsed === null) return EXIT.DONE;
  const { until, seed, load, 'save-every': saveEvery, 'states-dir': folder, keep, ...access } = parsed.values;
  const goal = until === undefined ? Infinity : parseInteger('--until', until, 1, EPISODE_STEPS);
  const newSeed = seed === undefined ? randomInt(2 ** 32) : parseInteger('--seed', seed, 0, 2 ** 32 - 1);
  const saveMs = saveEvery === undefined ? Infinity : parseDuration('--save-every', saveEvery, 'minutes') * 60_000;
  const keptCount = parseInteger('--keep', keep, 1, 1_000_000);
  const server = parseServerOptions(access, {}, 'control-demo');
  const log = new LogFile(access, server.name as string).open(warn);
  const { host, port, ...options } = await choosePlace(server, warn);

  openFolder(folder);
  const loaded = load === undefined ? null : loadCheckpoint(load, folder);
  if (load !== undefined && loaded === null) warn(`no checkpoint in '${folder}': starting from scratch`);
  const { learner, holds } = loaded ?? { learner: Learner.fromSeed(newSeed), holds: [] };
  let nextSlice = 0; // by performance.now()
  let nextSave = Infinity;
  let savedPath: string | null = null; // null if the last save failed
  let isStopped = false;

  const progress = new Progress();
  process.removeAllListeners('warning').on('warning', ({ message }) => progress.print(message, warn)); // no stack

  const hasReachedGoal = (): boolean => {
    const { episodes, episodeSteps } = learner.state;
    return episodeSteps === 0 && episodes >= MEAN_EPISODES && learner.meanReturn >= goal;
  };
  const show = ({ statusName }: SystemStatus): void => {
    const { episodes, steps } = learner.state;
    const mean = learner.meanReturn.toFixed(1);
    progress.show(`episode ${format(episodes)} · mean return ${mean} · step ${format(steps)} · ${statusName}`);
  };
  await launch({
    /** Computes a slice and waits for the next one. Time lost in a pause or a slow slice is not made up. */
    async step(control) {
      for (let count = 0; count < SLICE_STEPS; count += 1) {
        if (hasReachedGoal()) return control.shutdown(`mean return ${learner.meanReturn}`);
        learner.step();
      }
      const now = performance.now();
      if (progress.isDue) show(SystemStatus.ACTIVE);
      if (now >= nextSave) control.save('--save-every');
      nextSlice = Math.max(nextSlice + SLICE_MS, now);
      return sleep(nextSlice - now);
    },

    onListening(address) {
      const { seed, steps } = learner.state;
      const from = steps === 0 ? '' : `, from step ${format(steps)}`;
      const how = holds.length === 0 ? '' : ', still paused';
      progress.print(`Q-learning on CartPole, seed ${seed}${from}${how}`);
      progress.print(describeControl(address));
      nextSave = performance.now() + saveMs;
    },

    describe() {
      const { episodes: episode, steps: step, learningRate, exploration } = learner.state;
      return { episode, 'mean return': Number(learner.meanReturn.toFixed(1)), step, learningRate, exploration };
    },

    /** Also called at the start if the checkpoint was saved while paused. */
    onPaused: () => show(SystemStatus.PAUSED),
    onResumed: () => show(SystemStatus.ACTIVE),

    /** The status is the one before the save, which itself pauses an active program. */
    saveState(status, _, control) {
      nextSave = performance.now() + saveMs;
      savedPath = null;
      const checkpoint = { learner, holds: status === SystemStatus.PAUSED ? control.holds : [] };
      savedPath = saveCheckpoint(checkpoint, folder, keptCount);
      progress.print(`saved ${savedPath}`);
      return savedPath;
    },

    onShutdown() {
      isStopped = true;
      show(SystemStatus.SHUTTING_DOWN);
      const next = savedPath === null ? '' : `; continue with --load ${savedPath}`;
      progress.end(`stopped at step ${format(learner.state.steps)}${next}`);
    },

    commands: {
      evaluate: {
        description: 'Returns the mean return of episodes without learning and without random actions.',
        parameters: { episodes: { type: 'integer', minimum: 1, maximum: 1000, default: 100 } },
        run: ({ episodes }) => ({ meanReturn: Number(learner.evaluate(episodes).toFixed(1)), episodes }),
      },
      set: {
        description: 'Sets the learning rate and the share of random actions.',
        parameters: {
          learningRate: { ...SHARE, description: 'how far a step moves the value of an action' },
          exploration: { ...SHARE, description: 'the share of random actions' },
        },
        run(values) {
          Object.assign(learner.state, values);
          return values;
        },
      },
      step: {
        description: 'Runs a single step, even while paused.',
        run() {
          learner.step();
          return { step: learner.state.steps };
        },
      },
    },
  }, {
    ...options,
    log,
    webApiAddress: host === undefined || port === undefined ? undefined : [host, port],
    startPaused: holds,
  }).catch(async (error) => {
    if (!isStopped) throw await explainPort(error, host, port); // else the last save failed, as a warning has said
  });
  return savedPath === null ? EXIT.REFUSED : EXIT.DONE;
}

function describeControl(address: WebApiAddress): string {
  const url = baseUrlOf(address);
  const isDefault = address.host === DEFAULT_HOST && address.port === DEFAULT_PORT;
  const tool = process.env['npm_lifecycle_event'] === 'start' ? 'npm run console' : 'control-console';
  return `web API at ${url} · control it from another terminal: ${tool}${isDefault ? '' : ` ${url}`}`;
}

function format(count: number): string {
  return count.toLocaleString('en-US');
}

await run('control-demo', main);
