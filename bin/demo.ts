#!/usr/bin/env node
// control-demo: a program to control, and to copy from. demo/search.ts is what it does, and how that is saved.

import { randomInt } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { launch, SystemStatus } from '../control.ts';
import { advance, createSearch, evaluate, listCheckpoints, loadCheckpoint, saveCheckpoint } from './demo/search.ts';
import { describeOptions, EXIT, parseDuration, parseInteger, parseOptions, run, warn } from './shared/cli.ts';
import {
  baseUrlOf, explainPort, parseServerOptions, placeOf, SERVER_ENVIRONMENT_HELP, SERVER_OPTIONS,
} from './shared/client.ts';
import { LOG_OPTIONS, LogFile } from './shared/logfile.ts';

const SLICE_STEPS = 200; // computed at once
const SLICE_MS = 10; // from one slice to the next, so that its progress can be watched
const round = (value: number): number => Number(value.toPrecision(4));
const parseLoss = (option: string, text: string): number => parseInteger(option, text, 1, 100);
const parseSeed = (option: string, text: string): number => parseInteger(option, text, 0, 2 ** 32 - 1);
const parseMinutes = (option: string, text: string): number => parseDuration(option, text, 'minutes');

const OPTIONS = {
  ...SERVER_OPTIONS,
  name: { ...SERVER_OPTIONS.name, help: 'name of the system (default: CONTROL_NAME, or control-demo)' },
  until: { type: 'string', value: 'LOSS', help: 'end at this loss, from 1 to 100 (default: never)', parse: parseLoss },
  seed: { type: 'string', value: 'N', help: 'seed, from 0 to 4294967295 (default: random)', parse: parseSeed },
  load: { type: 'string', value: 'FILE', help: 'continue from a checkpoint; latest: from the newest in --states-dir' },
  'save-every': {
    type: 'string', value: 'MINUTES', parse: parseMinutes,
    help: 'also save when the last save was MINUTES (or 90s, 2h) ago',
  },
  'states-dir': { type: 'string', value: 'DIR', default: 'states', help: 'folder for checkpoints (default states)' },
  ...LOG_OPTIONS,
} as const;

const HELP = `
Usage: control-demo [options]

Searches for the minimum of a function until it is shut down by a command to its web API, Ctrl-C, SIGTERM or SIGHUP. It
saves a checkpoint before it exits, on request and on SIGUSR2. control-client run describes its own commands.

${describeOptions(OPTIONS)}

${SERVER_ENVIRONMENT_HELP}

Exit codes: 0 shut down or LOSS reached, 1 failed to run or to save the last checkpoint, 2 usage error.
`;

async function main(): Promise<number> {
  const parsed = parseOptions(OPTIONS, HELP);
  if (parsed === null) return EXIT.DONE;
  const { until: goal = -1, load, 'save-every': saveMs = Infinity, 'states-dir': folder, ...access } = parsed.values;
  const { seed = randomInt(2 ** 32) } = access;
  const server = parseServerOptions(access, {}, 'control-demo');
  const log = new LogFile(access, server.name as string).open(warn);
  const { host, port, ...options } = placeOf(server);
  const newest = listCheckpoints(folder).at(-1); // fails if the folder is none
  const path = load === 'latest' ? newest : load;
  const { search, holds } = path === undefined ? { search: createSearch(seed), holds: [] } : loadCheckpoint(path);
  console.log(path === undefined ? `a new search, seed ${search.seed}` : `continues from ${path}`);
  let [nextSlice, nextPrint, nextSave] = [0, 0, Infinity]; // by performance.now()
  process.removeAllListeners('warning').on('warning', ({ message }) => warn(message)); // no stack
  const show = ({ statusName }: SystemStatus): void => {
    nextPrint = performance.now() + 5000;
    console.log(`step ${search.step} · loss ${search.loss.toFixed(3)} · ${statusName}`);
  };
  await launch({
    /** Computes a slice and waits for the next one. Time lost in a pause or a slow slice is not made up. */
    async step(control) {
      for (let count = 0; count < SLICE_STEPS; count += 1) {
        if (search.loss <= goal) return control.shutdown(`loss ${search.loss}`);
        advance(search);
      }
      const now = performance.now();
      if (now >= nextPrint) show(SystemStatus.ACTIVE);
      if (now >= nextSave) control.save('--save-every');
      nextSlice = Math.max(nextSlice + SLICE_MS, now);
      return sleep(nextSlice - now);
    },
    onListening(address) {
      const url = baseUrlOf(address);
      console.log(`web API at ${url} · control it from another terminal: control-console ${url}`);
      nextSave = performance.now() + saveMs;
    },
    describe: () => ({ step: search.step, loss: round(search.loss), temperature: round(search.temperature) }),
    onPaused: () => show(SystemStatus.PAUSED), // also at the start if the checkpoint was saved while paused
    onResumed: () => show(SystemStatus.ACTIVE),
    /** The status is the one before the save, which itself pauses an active program. */
    saveState(status, _, control) {
      nextSave = performance.now() + saveMs;
      const saved = saveCheckpoint(search, status === SystemStatus.PAUSED ? control.holds : [], folder);
      console.log(`saved ${saved}`);
      return saved;
    },
    onShutdown: () => show(SystemStatus.SHUTTING_DOWN),
    commands: {
      evaluate: {
        description: 'Returns the mean loss of random points around the present one.',
        parameters: { points: { type: 'integer', minimum: 1, maximum: 1000, default: 100 } },
        run: ({ points }) => ({ meanLoss: round(evaluate(search, points)), points }),
      },
      set: {
        description: 'Sets the temperature, from which it cools again.',
        parameters: { temperature: { type: 'number', minimum: 0, maximum: 100 } },
        run: (values) => Object.assign(search, values) && values,
      },
    },
  }, {
    ...options, log,
    webApiAddress: host === undefined || port === undefined ? undefined : [host, port],
    startPaused: holds,
  }).catch((error) => Promise.reject(explainPort(error, port)));
  return EXIT.DONE;
}

await run('control-demo', main);
