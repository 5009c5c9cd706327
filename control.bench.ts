// What a remote control costs the program that is controlled: `npm run bench`.
//
// The file reads from the top down: what is measured, how rounds become a table, and the processes at the end. Hosts,
// floods and targets are processes of their own: this file, started again with the name of a role.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeSync } from 'node:fs';
import { createServer } from 'node:http';
import { connect } from 'node:net';
import { availableParallelism } from 'node:os';
import { createInterface } from 'node:readline';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { EXIT, parseInteger, parseOptions, run } from './bin/cli.ts';
import { DEFAULT_MAX_QUEUE_SIZE, SystemStatus, WebApiClient, WebApiServer } from './control.ts';
import type { ChildProcess } from 'node:child_process';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Readable } from 'node:stream';

const HELP = `
Usage: npm run bench -- [options]

Measures what the remote control costs the program that is controlled. Five rounds take about 75 seconds.

  --rounds N  how often each variant is measured (default 5)
  --json      print the figures of all rounds as JSON
  -h, --help  show this
  --version   show the version

A ratio is always of two figures of one process in one round. What else the machine does shows in least and most.
`;

const CONNECTIONS = 32;
const SETTLE_MS = 350; // before each window: a process starts, its code is compiled, the flood rises or ebbs away
const WINDOW_MS = 1000;
const SAMPLE_MS = 100;
const SILENCE_MS = 1000; // after which a server counts as one that does not answer
const NAME_WIDTH = 49; // characters
const CELL_WIDTH = 10;

/** One section of the output. */
interface Measurement {
  name: string;
  title: string;
  variants: readonly Variant[];
  columns: readonly Column[];
  /** What the table means, in lines. */
  explain(summaries: readonly Summary[]): Promise<string[]>;
}

/** One row of a table. */
interface Variant {
  name: string;
  /** Called once a round. */
  measure(round: number): Promise<Figures>;
}

type Figures = Record<string, number>;
type Column = readonly [heading: string, figure: string, of: keyof Extremes, format: (value: number) => string];

/** What became of one figure over all rounds. */
interface Figure extends Extremes {
  rounds: readonly number[];
}

interface Extremes {
  median: number;
  least: number;
  most: number;
}

interface Summary {
  name: string;
  figures: Record<string, Figure>;
}

// ───── Ticks under flood ─────────────────────────────────────────────────────────────────────────────────────────

const ticksUnderFlood: Measurement = {
  name: 'ticks-under-flood',
  title: `Ticks kept under flood. A host works in ticks of 1 ms of arithmetic and looks for commands after each;
${CONNECTIONS} connections ask for GET /api/status and POST /api/pause in turn, as fast as they are answered.`,
  variants: [
    { name: 'control.ts, host never yields', measure: underFlood('control.ts', 'never-yields') },
    { name: '  reference: another process is flooded', measure: underFlood('control.ts', 'never-yields', true) },
    { name: 'control.ts, host yields after each tick', measure: underFlood('control.ts', 'yields') },
    { name: '  reference: another process is flooded', measure: underFlood('control.ts', 'yields', true) },
    { name: 'node:http in-thread, host yields after each tick', measure: underFlood('node:http', 'yields') },
  ],
  columns: [
    ['ticks/s', 'quiet', 'median', formatCount],
    ['flooded', 'flooded', 'median', formatCount],
    ['kept', 'kept', 'median', formatShare],
    ['least', 'kept', 'least', formatShare],
    ['most', 'kept', 'most', formatShare],
    ['answers/s', 'answers', 'median', formatCount],
    ['503', 'refused', 'median', formatShare],
    ['µs/answer', 'lostPerAnswer', 'median', formatMicroseconds],
  ],
  async explain([deaf, deafReference, yielding, yieldingReference, inThread]) {
    return [
      'reference: the host of the row above is left alone while a bare node:http server in another process is flooded.',
      `That alone, with ${availableParallelism()} cores to share, costs ticks. Of what the reference keeps,`,
      `control.ts keeps ${relate(deaf, deafReference)} (host never yields) and ${relate(yielding, yieldingReference)} `
      + `(host yields), node:http in-thread ${relate(inThread, yieldingReference)}.`,
      'µs/answer: time of the host that is lost for each answer, which includes that sharing.',
      await describeSilence(),
    ];
  },
};

const MEASUREMENTS: readonly Measurement[] = [ticksUnderFlood];

function relate(summary: Summary | undefined, reference: Summary | undefined): string {
  return formatShare((summary?.figures['kept']?.median ?? NaN) / (reference?.figures['kept']?.median ?? NaN));
}

type ServerKind = 'control.ts' | 'node:http';
type Yielding = 'yields' | 'never-yields';

/** Measures a host quiet and flooded; which of the two comes first changes from round to round. */
function underFlood(server: ServerKind, yielding: Yielding, floodsAnother: boolean = false): Variant['measure'] {
  return async (round) => {
    const host = startHost(server, yielding);
    const target = floodsAnother ? startRole('target') : host;
    const [, port] = await Promise.all([host.port, target.port]);
    const quietFirst = round % 2 === 0 ? await measureRates(host) : null;
    const flood = startRole('flood', String(port));
    const [flooded, answered] = await Promise.all([measureRates(host), measureRates(flood)]);
    await flood.end();
    const unflooded = quietFirst ?? (await measureRates(host));
    await Promise.all([host.end(), target.end()]);
    return compare(unflooded, flooded, answered);
  };
}

function compare(
  { ticks: quiet = NaN }: Figures,
  { ticks: flooded = NaN }: Figures,
  { answers = NaN, refused = NaN }: Figures,
): Figures {
  const kept = flooded / quiet;
  return { quiet, flooded, kept, answers, refused: refused / answers, lostPerAnswer: (1 - kept) / answers };
}

/** A host that never yields has no row for a server in the host's thread. This asks such a server, to tell why. */
async function describeSilence(): Promise<string> {
  const host = startHost('node:http', 'never-yields');
  const client = new WebApiClient('127.0.0.1', await host.port, { timeout: SILENCE_MS });
  const reply = await client.request('status');
  const { ticks = NaN } = await measureRates(host);
  await host.end();
  const answer = reply.ok || reply.answered ? 'it answers' : `no row, for it gave no answer within ${SILENCE_MS} ms`;
  return `node:http in-thread, host never yields: ${answer} (at ${formatCount(ticks)} ticks/s).`;
}

function startHost(server: ServerKind, yielding: Yielding): Role {
  stepsPerTick ??= calibrate();
  return startRole('host', server, yielding, String(stepsPerTick));
}

let stepsPerTick: number | undefined;

/** How many steps take a millisecond when nothing else runs. */
function calibrate(): number {
  const steps = 5_000_000;
  const durationsMs = Array.from({ length: 20 }, (_, index) => {
    const start = performance.now();
    work(steps, index);
    return performance.now() - start;
  });
  return Math.round(steps / Math.min(...durationsMs));
}

/** A tick is so many steps and not so long a time: who is held up or preempted gets through fewer of them. */
function work(steps: number, seed: number): number {
  let value = seed | 1;
  for (let step = 0; step < steps; step += 1) {
    value ^= value << 13;
    value ^= value >>> 17;
    value ^= value << 5;
  }
  return value;
}

// ───── Rounds and tables ─────────────────────────────────────────────────────────────────────────────────────────

async function main(): Promise<number> {
  const options = { rounds: { type: 'string', default: '5' }, json: { type: 'boolean', default: false } } as const;
  const parsed = parseOptions(options, HELP);
  if (parsed === null) return EXIT.DONE;
  const rounds = parseInteger('--rounds', parsed.values.rounds, 1, 1000);
  endChildrenAtExit();
  const machine = { node: process.version, cores: availableParallelism(), rounds };
  const sections: object[] = [];
  for (const measurement of MEASUREMENTS) {
    const { name, title } = measurement;
    const variants = await runRounds(measurement, rounds);
    const explanation = await measurement.explain(variants);
    sections.push({ name, variants, explanation });
    const table = formatTable(measurement, variants);
    if (!parsed.values.json) console.log(`${title}\n\n${table}\n\n${explanation.join('\n')}\n`);
  }
  if (parsed.values.json) console.log(JSON.stringify({ ...machine, measurements: sections }));
  else console.log(`Node ${machine.node}, ${machine.cores} cores; medians of ${rounds} rounds (least, most: of kept).`);
  return EXIT.DONE;
}

/** Each round measures every variant once, and starts with another one than the round before. */
async function runRounds({ name, variants }: Measurement, rounds: number): Promise<Summary[]> {
  const results = variants.map((): Figures[] => []);
  for (let round = 0; round < rounds; round += 1) {
    for (let turn = 0; turn < variants.length; turn += 1) {
      const place = (round + turn) % variants.length;
      const variant = variants[place] as Variant;
      console.error(`${name}, round ${round + 1} of ${rounds}: ${variant.name}`);
      results[place]?.push(await variant.measure(round));
    }
  }
  return variants.map((variant, place) => ({ name: variant.name, figures: summarize(results[place] ?? []) }));
}

function summarize(results: readonly Figures[]): Record<string, Figure> {
  const names = Object.keys(results[0] ?? {});
  return Object.fromEntries(names.map((name) => {
    const rounds = results.map((figures) => figures[name] as number);
    return [name, { median: medianOf(rounds), least: Math.min(...rounds), most: Math.max(...rounds), rounds }];
  }));
}

function medianOf(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const [below, above] = [sorted[(sorted.length - 1) >> 1], sorted[sorted.length >> 1]];
  return ((below as number) + (above as number)) / 2;
}

function formatTable({ columns }: Measurement, summaries: readonly Summary[]): string {
  const headings = ['', ...columns.map(([heading]) => heading)];
  const rows = summaries.map(({ name, figures }) => {
    return [name, ...columns.map(([, figure, of, format]) => format(figures[figure]?.[of] ?? NaN))];
  });
  const formatLine = ([name = '', ...cells]: string[]): string => {
    return name.padEnd(NAME_WIDTH) + cells.map((cell) => cell.padStart(CELL_WIDTH)).join('');
  };
  return [headings, ...rows].map(formatLine).join('\n');
}

function formatCount(value: number): string {
  return Math.round(value).toLocaleString('en-US');
}

function formatShare(value: number): string {
  return `${(100 * value).toFixed(1)} %`;
}

function formatMicroseconds(seconds: number): string {
  return (1_000_000 * seconds).toFixed(1);
}

// ───── Processes ─────────────────────────────────────────────────────────────────────────────────────────────────

/** What a role says on its stdout, a line each time: where it listens, then ten times a second what it has counted. */
type Told = { port: number } | Sample;

interface Sample {
  atMs: number; // by its own clock
  counts: Figures;
}

interface Role {
  name: string;
  port: Promise<number>;
  samples: readonly Sample[];
  end(): Promise<void>;
}

const children: Set<ChildProcess> = new Set();

function startRole(name: 'host' | 'target' | 'flood', ...args: string[]): Role {
  const program = process.argv[1] as string;
  const child = spawn(process.execPath, [program, name, ...args], { stdio: ['ignore', 'pipe', 'inherit'] });
  children.add(child);
  const gone = once(child, 'exit').finally(() => children.delete(child));
  const samples: Sample[] = [];
  const port = listenTo(child.stdout, samples);
  port.catch(() => {}); // a flood never tells one
  const end = async (): Promise<void> => {
    child.kill('SIGKILL'); // a host that never yields is deaf to all else
    await gone;
  };
  return { name, port, samples, end };
}

/** Collects the samples. Resolves with the port. */
function listenTo(stdout: Readable, samples: Sample[]): Promise<number> {
  return new Promise((resolve, reject) => {
    const lines = createInterface(stdout);
    lines.on('line', (line) => {
      const told = JSON.parse(line) as Told;
      if ('port' in told) resolve(told.port);
      else samples.push(told);
    });
    lines.on('close', () => reject(new Error('a process ended before it listened')));
  });
}

/** What a role counts, each per second, in a window that opens after a while. */
async function measureRates({ name, samples }: Role): Promise<Figures> {
  await sleep(SETTLE_MS);
  const begin = samples.length;
  await sleep(WINDOW_MS);
  const [first, last] = [samples[begin], samples.at(-1)];
  if (first === undefined || last === undefined || first === last) throw new Error(`the ${name} has stopped counting`);
  const seconds = (last.atMs - first.atMs) / 1000;
  const rate = (what: string): number => ((last.counts[what] ?? NaN) - (first.counts[what] ?? NaN)) / seconds;
  return Object.fromEntries(Object.keys(last.counts).map((what) => [what, rate(what)]));
}

/** Whatever ends this process ends the others; should it be killed, they notice: see `tell`. */
function endChildrenAtExit(): void {
  process.on('exit', () => children.forEach((child) => child.kill('SIGKILL')));
  for (const [signal, exitCode] of [['SIGHUP', 129], ['SIGINT', 130], ['SIGTERM', 143]] as const) {
    process.on(signal, () => process.exit(exitCode));
  }
}

// ───── Roles ─────────────────────────────────────────────────────────────────────────────────────────────────────

/** Becomes the role that is named on the command line, or else the program that starts the others. */
async function start(): Promise<void> {
  const [, , role, ...args] = process.argv;
  switch (role) {
    case 'host': return runHost(...args);
    case 'target': return runTarget();
    case 'flood': return runFlood(Number(args[0]));
    default: await run('control-bench', main);
  }
  if (children.size > 0) process.exit(); // those of a measurement that failed
}

/** What a host needs of either server. */
interface CommandSource {
  hasCommands(): boolean;
  receiveCommand(): unknown;
}

/** Works in ticks until it is killed. */
async function runHost(server?: string, yielding?: string, steps?: string): Promise<never> {
  const source = await (server === 'control.ts' ? serveFromOwnThread() : serveFromHostThread());
  let value = 1;
  let tellAtMs = 0;
  for (let ticks = 1; ; ticks += 1) {
    value = work(Number(steps), value);
    while (source.hasCommands()) source.receiveCommand();
    const atMs = performance.now();
    if (atMs >= tellAtMs) {
      tell({ atMs, counts: { ticks } });
      tellAtMs = atMs + SAMPLE_MS;
    }
    if (yielding === 'yields') await nextTurn();
  }
}

async function serveFromOwnThread(): Promise<CommandSource> {
  const server = new WebApiServer({ systemStatus: () => SystemStatus.ACTIVE, port: 0 });
  const { port } = await server.runInBackground();
  tell({ port });
  return server;
}

async function serveFromHostThread(): Promise<CommandSource> {
  const queue: string[] = [];
  await serve((command) => queue.length < DEFAULT_MAX_QUEUE_SIZE && queue.push(command) > 0);
  return { hasCommands: () => queue.length > 0, receiveCommand: () => queue.shift() };
}

/** Does nothing but answer. */
async function runTarget(): Promise<void> {
  await serve(() => true);
  setInterval(() => tell({ atMs: performance.now(), counts: {} }), SAMPLE_MS); // to notice when nobody reads it
}

type Enqueue = (command: string) => boolean;

/** What the flood asks for, on a bare node:http. */
async function serve(enqueue: Enqueue): Promise<void> {
  const server = createServer((request, response) => answer(request, response, enqueue));
  await once(server.listen(0, '127.0.0.1'), 'listening');
  tell({ port: (server.address() as AddressInfo).port });
}

function answer({ method, url }: IncomingMessage, response: ServerResponse, enqueue: Enqueue): void {
  const send = (statusCode: number, value: object): void => {
    const body = JSON.stringify(value);
    response.writeHead(statusCode, { 'Content-Type': 'application/json', 'Content-Length': body.length }).end(body);
  };
  if (method === 'GET' && url === '/api/status') send(200, { status: 'active' });
  else if (method !== 'POST' || url !== '/api/pause') send(404, { error: 'Invalid API endpoint' });
  else if (enqueue('pause')) send(200, { result: 'ok' });
  else send(503, { error: 'Command queue is full, try again later' });
}

/** Counts answers until it is killed. */
function runFlood(port: number): void {
  const counts = { answers: 0, refused: 0 };
  for (let index = 0; index < CONNECTIONS; index += 1) {
    keepAsking(port, index, (statusCode) => {
      counts.answers += 1;
      if (statusCode === '503') counts.refused += 1;
      else if (statusCode !== '200') throw new Error(`the flood was answered ${statusCode}`);
    });
  }
  setInterval(() => tell({ atMs: performance.now(), counts }), SAMPLE_MS);
}

/** One connection with one request under way. Half of them begin with a GET, half with a POST. */
function keepAsking(port: number, index: number, onAnswer: (statusCode: string) => void): void {
  const requests = ['GET /api/status', 'POST /api/pause'].map((line) => `${line} HTTP/1.1\r\nHost: localhost\r\n\r\n`);
  let asked = index;
  let text = '';
  const socket = connect({ port, host: '127.0.0.1', noDelay: true }).setEncoding('latin1');
  const ask = (): void => {
    socket.write(requests[asked % requests.length] as string);
    asked += 1;
  };
  socket.on('connect', ask).on('data', (chunk: string) => {
    text += chunk;
    if (!text.endsWith('}')) return; // every answer is an object, and nothing follows it
    onAnswer(text.slice('HTTP/1.1 '.length, 'HTTP/1.1 200'.length));
    text = '';
    ask();
  }).on('end', () => {
    throw new Error('a connection of the flood was ended');
  });
}

/** Writes at once, because a host never yields. A role that nobody reads any more ends. */
function tell(told: Told): void {
  try {
    writeSync(1, `${JSON.stringify(told)}\n`);
  } catch {
    process.exit();
  }
}

void start();
