// Makes the screenshots in bin/board/README.md: control-demo, which has run an own command, beside systems that are
// paused, in a long step, failed, ended and offline. Needs Chromium, chromedriver and pngquant. Takes two minutes,
// because the plots have to grow.

import { execFileSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { launch, WebApiClient } from '../../control.ts';
import { startBrowser } from '../test/tools/board/browser.ts';
import { freePort, makeFolder, start, startProgram } from '../test/helpers.ts';
import type { System } from '../../control.ts';
import type { TestContext } from 'node:test';

const GROW_MS = 90_000;
const DOWN_MS = 40_000; // how long two systems have been hung and offline
const COLORS = '64';
const BY = 'ana@laptop';

const [SCREENS, NAMES] = [
  { wide: [1240, 6], phone: [360, 1] }, // the width, and how many systems are visible
  { paused: 'fine-tune', hung: 'agent-loop', failed: 'crawler', ended: 'simulation', offline: 'sweep' },
] as const;

type Fate = keyof typeof NAMES;

/** Own commands of some systems. */
const COMMANDS: { [Name in Fate]?: System['commands'] } = {
  paused: {
    set: {
      description: 'Changes the learning rate.',
      parameters: { learningRate: { type: 'number', minimum: 0, maximum: 1 } },
      run: () => {},
    },
  },
  hung: {
    say: {
      description: 'Sends the agent a message before its next step.',
      parameters: { text: { type: 'string', maxLength: 2000 } },
      run: () => {},
    },
  },
};

/** What each system reports after this many steps. `noise` is from 0 to 1. */
const DETAILS: { [Name in Fate]: (steps: number, noise: number) => Record<string, number> } = {
  paused: (steps, noise) => ({
    step: steps, learningRate: 0.0003, loss: round(0.9 + 2 * Math.exp(-steps / 900) + 0.1 * noise, 4),
    'tokens per second': 1780 + Math.round(60 * noise),
  }),
  hung: (steps) => {
    const turn = Math.floor(steps / 150);
    return { turn, tokens: 1840 * turn + 95 * turn ** 2, files: Math.floor(turn / 3) };
  },
  failed: (steps, noise) => ({
    pages: 3 * steps, queue: Math.round(40 + 16 * Math.sqrt(steps) - steps / 8 + 20 * noise),
    'pages per second': round(140 + 15 * noise, 1),
  }),
  ended: (steps, noise) => ({ day: round(steps / 40, 1), temperature: round(288 + steps / 1800 + 0.4 * noise, 2) }),
  offline: (steps, noise) => {
    const trial = Math.floor(steps / 60);
    return { trial, 'best loss': round(0.31 + 0.5 / (1 + Math.floor(trial / 4)), 3), loss: round(0.6 + noise / 2, 3) };
  },
};

const [, , fate, port] = process.argv;
if (fate === undefined) await makeScreenshots();
else if (port !== undefined) await runSystem(fate as Fate, Number(port));
else throw new Error('usage: node bin/dev/run.mjs screenshots');

function round(value: number, digits: number): number {
  return Number(value.toFixed(digits));
}

/** Runs a system that reports numbers until it meets its fate. */
async function runSystem(fate: Fate, port: number): Promise<void> {
  const start = performance.now();
  let steps = 0;
  await launch({
    async step() {
      steps += 1;
      const isDue = performance.now() - start > GROW_MS - DOWN_MS;
      if (isDue && fate === 'offline') process.kill(process.pid, 'SIGKILL');
      while (isDue && fate === 'hung');
      await sleep(20);
    },
    describe: () => DETAILS[fate](steps, Math.random()),
    saveState() {
      if (fate === 'failed') throw new Error('ENOSPC: no space left on device, write');
      return `states/${NAMES[fate]}-${steps}.json`;
    },
    commands: COMMANDS[fate],
  }, { name: NAMES[fate], webApiAddress: ['localhost', port] });
}

async function makeScreenshots(): Promise<void> {
  const ends: (() => void | Promise<void>)[] = [];
  const t = { after: (end: () => void | Promise<void>) => void ends.push(end) } as TestContext;
  try {
    const demoPort = await freePort();
    startProgram(t, 'demo', ['--port', String(demoPort), '--seed', '1', '--states-dir', makeFolder(t)]);
    const clients = new Map<Fate, WebApiClient>();
    const ports = [demoPort];
    for (const fate of Object.keys(NAMES) as Fate[]) {
      const port = await freePort();
      start(t, process.execPath, [fileURLToPath(import.meta.url), fate, String(port)]);
      clients.set(fate, new WebApiClient('localhost', port));
      ports.push(port);
    }
    const targets = ports.map((port) => `localhost:${port}`);
    const board = startProgram(t, 'board', ['--listen', 'localhost:0', ...targets], { CONTROL_BY: BY });
    await board.shows(/open it/);
    const browser = await startBrowser(t, ['--hide-scrollbars']);
    await browser.open(/http:\S+/.exec(board.output())?.[0] ?? '');
    await sleep(GROW_MS);
    await browser.run('for (const row of document.querySelectorAll(".own > :first-child details")) row.open = true');
    await browser.activate(await browser.findByRole('button', 'evaluate control-demo'));
    const texts = { '1-set-learningRate': '3', '2-say-text': 'Try the smaller model first.' };
    for (const [field, text] of Object.entries(texts)) {
      await browser.click(`#field-${field}`);
      await browser.run('document.activeElement.select()');
      await browser.press(text);
    }
    await browser.activate(await browser.findByRole('button', `set ${NAMES.paused}`));
    await browser.run('document.activeElement.blur()');
    await clients.get('paused')?.request('pause', { by: BY, reason: 'GPU needed until noon' });
    await browser.activate(await browser.findByRole('button', `Shut down ${NAMES.ended}`));
    await browser.click('#confirm');
    await browser.click(await browser.findByRole('button', `Save ${NAMES.failed}`));
    await sleep(10_000);
    for (const [name, [width, count]] of Object.entries(SCREENS)) {
      await browser.resize(width, width);
      await browser.emulate({ dark: name === 'phone' });
      await browser.run('scrollTo(0, 0)');
      const bottom = await browser.run<number>(`
        const cards = [...document.querySelectorAll('article')].slice(0, arguments[0]);
        return Math.max(...cards.map((card) => card.getBoundingClientRect().bottom));
      `, count);
      await browser.resize(width, Math.ceil(bottom) + 12);
      const input = await browser.screenshot();
      writeFileSync(`bin/board/${name}.png`, execFileSync('pngquant', ['--speed', '1', COLORS, '-'], { input }));
    }
  } finally {
    for (const end of ends) await end();
  }
}
