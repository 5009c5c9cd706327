// What a remote control costs the program that is controlled, beside what it could have instead: `npm run bench`.
//
// The file reads from the top down: what is measured, how rounds become tables, and the processes at the end. Hosts,
// references and the load are processes of their own: this file, started again with the name of a role. A figure and
// its reference are measured in turn, in slices of a tenth of a second where that can be: what else the machine does
// meets both.

import { transform } from 'esbuild';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, writeSync } from 'node:fs';
import { createServer } from 'node:http';
import { connect } from 'node:net';
import { availableParallelism, cpus } from 'node:os';
import { createInterface } from 'node:readline';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { gzipSync } from 'node:zlib';
import { EXIT, parseInteger, parseOptions, run } from '../shared/options.ts';
import { DEFAULT_MAX_QUEUE_SIZE, SystemStatus, WebApiServer } from '../../control.ts';
import type { ChildProcess } from 'node:child_process';
import type { OutgoingHttpHeaders, Server } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import type { Interface } from 'node:readline';

const HELP = `
Usage: npm run bench -- [options]

Measures what the remote control costs the program that is controlled, beside what it could have instead.
A round takes about 50 seconds.

  --rounds N  how often everything is measured (default 5)
  --json      print the figures of all rounds as JSON
  -h, --help  show this
  --version   show the version

Shares and differences are always of two figures of one round. What else the machine does shows in least and most.
`;

const CONNECTIONS = 32;
const SLICE_MS = 100; // of load, before another server has its turn
const SLICES = 7; // of each kind in a round
const WARM_UP_MS = 300;
const PATIENCE_MS = 1000; // after which a server counts as one that does not answer
const MAX_SIZE = 65_536; // of a queue that never fills while it is emptied
const SAMPLE_MS = 20; // from one report of a host's ticks to the next
const TICK_MS = 1; // of a host that is to lose none
const LONG_TICK_MS = 50; // of a host that is busy
const LOADS = 4; // that ask a busy host
const ASKED = 60; // times in a round, for a latency
const STARTS = 3; // of a program in a round
const CALLS = 1_000_000;
const IDLE_MS = 10_000;

const STATUS = 'GET /api/status';
const PAUSE = 'POST /api/pause';

/** One section of the output. */
interface Measurement {
  name: string;
  title: string;
  rows: readonly string[];
  columns: readonly Column[];
  /** Gives the figures of each row. Where it begins changes from round to round. */
  measure(round: number): Promise<readonly Figures[]>;
  /** What the table means, in lines. */
  explain: readonly string[];
}

type Figures = Record<string, number>;
type Column = readonly [heading: string, figure: string, format: (value: number) => string, of?: keyof Extremes];

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

// ───── Throughput ────────────────────────────────────────────────────────────────────────────────────────────────

const SERVERS = ['minimal node:http server', 'control.ts, host sleeps', 'control.ts, host polls each ms'];

const throughput: Measurement = {
  name: 'throughput',
  title: `Throughput with ${CONNECTIONS} kept connections, and latency with one; the host has nothing else to do.`,
  rows: [STATUS, PAUSE].flatMap((request) => SERVERS.map((name) => `${request}: ${name}`)),
  columns: [
    ['answers/s', 'rate', formatCount],
    ['of node:http', 'share', formatShare],
    ['least', 'share', formatShare, 'least'],
    ['most', 'share', formatShare, 'most'],
    ['p50 ms', 'p50', formatMilliseconds],
    ['p99 ms', 'p99', formatMilliseconds],
    ['503', 'refused', formatShare],
    ['load busy', 'busy', formatShare],
  ],
  async measure(round) {
    const load = startLoad();
    const lengths = (answerLengths ??= await measureLengths(load));
    const servers = [
      () => startRole('minimal', ...lengths),
      () => startHost('control.ts', 'sleeps'),
      () => startHost('control.ts', 'polls'),
    ];
    const roles = await inTurn(round, servers.map((start) => async () => { // which comes first has an advantage
      const role = start();
      await role.port;
      return role;
    }));
    const ports = await Promise.all(roles.map((role) => role.port));
    const pairs = [STATUS, PAUSE].flatMap((request) => ports.map((port) => ({ port, request })));
    for (const { port, request } of pairs) await load.flood(port, [request], CONNECTIONS, WARM_UP_MS);
    const crowded = pairs.map((): Flood[] => []);
    const alone = pairs.map((): Flood[] => []);
    for (let slice = 0; slice < SLICES; slice += 1) {
      await inTurn(round + slice, pairs.map(({ port, request }, place) => async () => {
        crowded[place]?.push(await load.flood(port, [request], CONNECTIONS, SLICE_MS));
        alone[place]?.push(await load.flood(port, [request], 1, SLICE_MS / 2));
      }));
    }
    await endAll(load, ...roles);
    const rates = crowded.map((floods) => sum(floods, 'answers') / sum(floods, 'seconds'));
    return crowded.map((floods, place) => {
      const delays = (alone[place] as Flood[]).flatMap((flood) => flood.delays);
      const [rate, reference] = [rates[place] as number, rates[place - (place % ports.length)] as number];
      return {
        rate, share: rate / reference, p50: quantile(delays, 0.5), p99: quantile(delays, 0.99),
        refused: sum(floods, 'refused') / sum(floods, 'answers'), busy: sum(floods, 'busy') / sum(floods, 'seconds'),
      };
    });
  },
  explain: [
    'minimal: does not look at the path; its answers are as long. of node:http: answers/s in relation to that server.',
    'p50, p99: with one connection. 503: the queue was full. A host sleeps in nextCommand(), where each POST wakes it,',
    'or it looks for commands with a timer. load busy: how much of a core the process took that made the load; near',
    '100 % it would be the limit, not the server.',
  ],
};

let answerLengths: readonly number[] | undefined;

/** How many bytes the answers of control.ts have. */
async function measureLengths(load: Load): Promise<number[]> {
  const host = startHost('control.ts', 'sleeps');
  const port = await host.port;
  const lengths = [await load.measureLength(port, STATUS), await load.measureLength(port, PAUSE)];
  await endAll(host);
  return lengths;
}

// ───── A busy host ───────────────────────────────────────────────────────────────────────────────────────────────

const BUSY_HOSTS = [
  ['control.ts, host never yields', 'control.ts', 'never-yields'],
  ['control.ts, host yields after each tick', 'control.ts', 'yields'],
  ['node:http in the host, which yields after each tick', 'node:http', 'yields'],
  ['node:http in the host, which never yields', 'node:http', 'never-yields'],
] as const;

const busyHost: Measurement = {
  name: 'busy-host',
  title: `Latency of a host that works in ticks of ${LONG_TICK_MS} ms and looks for commands after each.`,
  rows: BUSY_HOSTS.map(([name]) => name),
  columns: [
    ['GET p50 ms', 'getP50', formatMilliseconds],
    ['p99', 'getP99', formatMilliseconds],
    ['most', 'getP99', formatMilliseconds, 'most'],
    ['POST p50 ms', 'postP50', formatMilliseconds],
    ['p99', 'postP99', formatMilliseconds],
    ['most', 'postP99', formatMilliseconds, 'most'],
    ['no answer', 'unanswered', formatShare],
  ],
  measure(round) {
    return inTurn(round, BUSY_HOSTS.map(([, server, behaviour]) => async () => {
      const isHopeless = server === 'node:http' && behaviour === 'never-yields';
      const loads = Array.from({ length: LOADS }, startLoad);
      const host = startHost(server, behaviour, LONG_TICK_MS);
      const port = await host.port;
      await sleep(WARM_UP_MS);
      const answers = (await Promise.all(loads.map(async (load) => {
        const paced = await load.pace(port, [STATUS, PAUSE], isHopeless ? 4 : 2 * ASKED, LONG_TICK_MS);
        return paced.slice(2); // the first ones had to wait for the connection, too
      }))).flat();
      await endAll(host, ...loads);
      const [get, post] = [STATUS, PAUSE].map((request) => {
        return answers.filter((one) => one.request === request).map(delayOf);
      });
      return {
        getP50: quantile(get, 0.5), getP99: quantile(get, 0.99),
        postP50: quantile(post, 0.5), postP99: quantile(post, 0.99),
        unanswered: answers.filter((one) => one.answeredAt === null).length / answers.length,
      };
    }));
  },
  explain: [
    `${LOADS * (ASKED - 1)} requests of each kind a round, 0 to ${LONG_TICK_MS} ms apart, by ${LOADS} clients.`,
    'most: the highest p99 of the rounds. GET waits about 10 ms for a host that is busy, and then reports what was',
    'known last. A server in the thread of a host that never yields never answers: requests were given up after',
    `${PATIENCE_MS} ms.`,
  ],
};

// ───── Ticks under flood ─────────────────────────────────────────────────────────────────────────────────────────

const FLOODED = [
  ['control.ts, host never yields', 'control.ts', 'never-yields'],
  ['control.ts, host yields after each tick', 'control.ts', 'yields'],
  ['node:http in the host, which yields after each tick', 'node:http', 'yields'],
] as const;

const ticksUnderFlood: Measurement = {
  name: 'ticks-under-flood',
  title: `Ticks kept under flood. A host computes in ticks of ${TICK_MS} ms and looks for commands after each;
${CONNECTIONS} connections ask for ${STATUS} and ${PAUSE} in turn, as fast as they are answered.`,
  rows: FLOODED.map(([name]) => name),
  columns: [
    ['ticks/s', 'quiet', formatCount],
    ['flooded', 'flooded', formatShare],
    ['elsewhere', 'elsewhere', formatShare],
    ['kept', 'kept', formatShare],
    ['least', 'kept', formatShare, 'least'],
    ['most', 'kept', formatShare, 'most'],
    ['answers/s', 'rate', formatCount],
    ['503', 'refused', formatShare],
  ],
  measure(round) {
    return inTurn(round, FLOODED.map(([, server, behaviour]) => async () => {
      const load = startLoad();
      const host = startHost(server, behaviour, TICK_MS);
      const other = startRole('minimal', 300, 300);
      const ports = await Promise.all([host.port, other.port]);
      for (const port of ports) await load.flood(port, [STATUS, PAUSE], CONNECTIONS, WARM_UP_MS);
      const [quiet, flooded, elsewhere]: [number[], number[], number[]] = [[], [], []];
      const floods: Flood[] = [];
      for (let slice = 0; slice < SLICES; slice += 1) {
        await inTurn(round + slice, [
          async () => quiet.push(await measureTicks(host, () => sleep(2 * SLICE_MS))),
          async () => flooded.push(await measureTicks(host, async () => {
            floods.push(await load.flood(ports[0], [STATUS, PAUSE], CONNECTIONS, 2 * SLICE_MS));
          })),
          async () => elsewhere.push(await measureTicks(host, () => {
            return load.flood(ports[1], [STATUS, PAUSE], CONNECTIONS, 2 * SLICE_MS);
          })),
        ]);
      }
      await endAll(load, host, other);
      return {
        quiet: mean(quiet), flooded: mean(flooded) / mean(quiet), elsewhere: mean(elsewhere) / mean(quiet),
        kept: mean(flooded) / mean(elsewhere),
        rate: sum(floods, 'answers') / sum(floods, 'seconds'), refused: sum(floods, 'refused') / sum(floods, 'answers'),
      };
    }));
  },
  explain: [
    'ticks/s: without load. flooded: how much of that is left under flood. elsewhere: how much of it is left when a',
    'minimal node:http server in another process is flooded, for all share the cores.',
    'kept: flooded in relation to elsewhere, or what the server itself takes. That other server answers more requests,',
    'so that about 100 % is nothing, and more than that is possible.',
  ],
};

/** Ticks per second of a host while something else happens. */
async function measureTicks(host: Role, act: () => Promise<unknown>): Promise<number> {
  const start = clock();
  await act();
  const end = clock();
  await sleep(2 * SAMPLE_MS); // the last report is on its way
  const samples = host.told.filter(({ at = NaN }) => at >= start && at <= end);
  const [first, last] = [samples[0], samples.at(-1)];
  if (first === undefined || last === undefined || first === last) throw new Error('a host has stopped counting');
  return (1000 * subtract(last, first, 'ticks')) / subtract(last, first, 'at');
}

// ───── Delivery ──────────────────────────────────────────────────────────────────────────────────────────────────

const delivery: Measurement = {
  name: 'delivery',
  title: 'From the sending of POST /api/pause until a host that waits for commands has got it.',
  rows: ['control.ts, nextCommand()', 'node:http in the host, a promise'],
  columns: [
    ['p50 ms', 'p50', formatMilliseconds],
    ['p99 ms', 'p99', formatMilliseconds],
    ['least p99', 'p99', formatMilliseconds, 'least'],
    ['most p99', 'p99', formatMilliseconds, 'most'],
  ],
  measure(round) {
    return inTurn(round, (['control.ts', 'node:http'] as const).map((server) => async () => {
      const load = startLoad();
      const host = startHost(server, 'reports');
      const sent = await load.pace(await host.port, [PAUSE], 6 * ASKED, 5);
      await hear(host, sent.length);
      await endAll(load, host);
      const delays = sent.map(({ sentAt }, place) => (host.told[place]?.['at'] as number) - sentAt);
      delays.splice(0, ASKED); // when it was not warm yet
      return { p50: quantile(delays, 0.5), p99: quantile(delays, 0.99) };
    }));
  },
  explain: ['The host has nothing else to do.'],
};

// ───── Calls ─────────────────────────────────────────────────────────────────────────────────────────────────────

const calls: Measurement = {
  name: 'calls',
  title: 'A call of the host, beside an array that only its own thread uses.',
  rows: ['hasCommands(), none waits', 'array.length > 0', 'receiveCommand()', 'array.shift()'],
  columns: [
    ['ns', 'nanoseconds', formatTenths],
    ['least', 'nanoseconds', formatTenths, 'least'],
    ['most', 'nanoseconds', formatTenths, 'most'],
    ['bytes', 'bytes', formatTenths],
  ],
  async measure() {
    const load = startLoad();
    const host = startRole('calls');
    const port = await host.port;
    await hear(host, 1); // it has measured what it can while its queue is empty
    let filled = 0;
    while (filled < MAX_SIZE) {
      const { answers, refused } = await load.flood(port, [PAUSE], CONNECTIONS, SLICE_MS);
      filled += answers - refused;
    }
    host.say('go');
    await hear(host, 1 + calls.rows.length);
    await endAll(load, host);
    return host.told.slice(1);
  },
  explain: ['Without the loop around it; hasCommands() calls systemStatus(). bytes: allocated by a call.'],
};

// ───── Footprint ─────────────────────────────────────────────────────────────────────────────────────────────────

const MODULE = new URL('../dist/control.js', import.meta.url); // as seen from .dev

const PROGRAMS = [
  { name: 'no server', specifier: 'node:process', program: 'tell({ port: 0 });' },
  {
    name: 'node:http',
    specifier: 'node:http',
    program: `const server = module.createServer((request, response) => {
      response.writeHead(200, { 'Content-Type': 'application/json', 'Content-Length': 19 }).end('{"status":"active"}');
    }).listen(0, '127.0.0.1', () => tell({ port: server.address().port }));`,
  },
  {
    name: 'control.ts',
    specifier: MODULE.href,
    program: `const systemStatus = () => module.SystemStatus.ACTIVE;
    const server = new module.WebApiServer({ systemStatus, host: '127.0.0.1', port: 0 });
    server.runInBackground().then(({ port }) => tell({ port }));`,
  },
] as const;

const footprint: Measurement = {
  name: 'footprint',
  title: 'What a program takes that has a server and nothing else.',
  rows: PROGRAMS.map(({ name }) => name),
  columns: [
    ['memory MB', 'memory', formatTenths],
    ['added', 'added', formatTenths],
    ['start ms', 'start', formatTenths],
    ['later', 'later', formatTenths],
    ['least', 'later', formatTenths, 'least'],
    ['most', 'later', formatTenths, 'most'],
    ['import ms', 'import', formatTenths],
    ['CPU idle', 'idle', formatHundredths],
  ],
  async measure(round) {
    const starts = PROGRAMS.map((): Figures[] => []);
    for (let count = 0; count < STARTS; count += 1) {
      await inTurn(round + count, PROGRAMS.map((program, place) => async () => {
        starts[place]?.push(await measureStart(program));
      }));
    }
    const results = starts.map(mediansOf) as [Figures, Figures, Figures];
    const [nothing, reference] = results;
    return results.map((figures, place) => ({
      ...figures,
      added: subtract(figures, nothing, 'memory'),
      later: subtract(figures, reference, 'start'),
      idle: mean(idlers[place]?.told.slice(2).map(({ cpu = NaN }) => cpu) ?? []), // without the time of the start
    }));
  },
  explain: [
    'memory: resident, some time after the first answer; added: to a program without a server. start: from the',
    `start of the process to the first answer, median of ${STARTS} in a round; later: than node:http. import: of the`,
    `module alone. CPU idle: of a core, over ${IDLE_MS / 1000} s, with a server that nobody asks.`,
  ],
};

type Program = (typeof PROGRAMS)[number];

async function measureStart(program: Program): Promise<Figures> {
  const start = clock();
  const role = startProgram(program);
  const port = await role.port;
  const answer = port === 0 ? '' : await new Connection(port).hear(STATUS);
  if (answer === null) endWith('a program did not answer');
  const answered = clock();
  await sleep(WARM_UP_MS);
  role.say('memory');
  await hear(role, 2);
  await endAll(role);
  const [{ imported = NaN } = {}, { memory = NaN } = {}] = role.told;
  return port === 0 ? { memory } : { memory, start: answered - start, import: imported };
}

/** Each reports what it takes of the CPU, from the beginning to the end of the benchmark. */
let idlers: readonly Role[] = [];

/** A program has a module of its own: what this file imports would be measured, too. */
function startProgram({ specifier, program }: Program, isIdler: boolean = false): Role {
  const source = `
    const start = performance.now();
    const module = await import('${specifier}');
    const imported = performance.now() - start;
    const { writeSync } = process.getBuiltinModule('node:fs');
    const write = (told) => {
      try {
        writeSync(1, JSON.stringify(told) + '\\n');
      } catch {
        process.exit(); // nobody hears it any more
      }
    };
    const tell = ({ port }) => {
      write({ imported });
      write({ port });
    };
    ${program}
    if (${isIdler}) {
      let before = process.cpuUsage();
      setInterval(() => {
        const { user, system } = process.cpuUsage(before);
        before = process.cpuUsage();
        write({ cpu: (user + system) / 1000 / ${IDLE_MS} });
      }, ${IDLE_MS});
    }
    process.stdin.on('end', () => process.exit()).on('data', () => {
      write({ memory: process.memoryUsage.rss() / 1024 / 1024 });
    });`;
  return startProcess(['--input-type=module', '--eval', source]);
}

/** What the module weighs, in KB. */
async function measureSizes(): Promise<Figures> {
  const text = readFileSync(MODULE);
  const { code } = await transform(text, { minify: true, format: 'esm' });
  const gzipped = gzipSync(code);
  return { plain: text.length / 1000, minified: code.length / 1000, 'minified and gzipped': gzipped.length / 1000 };
}

// ───── What it comes to ──────────────────────────────────────────────────────────────────────────────────────────

const MEASUREMENTS: readonly Measurement[] = [throughput, busyHost, ticksUnderFlood, delivery, calls, footprint];

type Results = Map<Measurement, readonly Summary[]>;

/** The figures that matter to someone who chooses. */
function digest(results: Results): (readonly [what: string, ours: string, reference: string, theirs: string])[] {
  const of = (measurement: Measurement, row: number, figure: string): number => {
    return results.get(measurement)?.[row]?.figures[figure]?.median ?? NaN;
  };
  const pair = (measurement: Measurement, row: number, figures: readonly [string, string]): string => {
    return figures.map((figure) => formatMilliseconds(of(measurement, row, figure))).join(' / ');
  };
  const shares = (...rows: number[]): string => {
    return rows.map((row) => formatShare(of(throughput, row, 'share'))).join(' / ');
  };
  const [minimal, inHost, busy] = ['minimal node:http', 'node:http in the host', ['getP99', 'postP99']] as const;
  return [
    ['GET answers/s, host sleeps / polls', shares(1, 2), minimal, '100 %'],
    ['POST answers/s, host sleeps / polls', shares(4, 5), minimal, '100 %'],
    ['GET / POST p99 ms, host never yields', pair(busyHost, 0, busy), inHost, 'never answers'],
    [`GET / POST p99 ms, host yields each ${LONG_TICK_MS} ms`, pair(busyHost, 1, busy), inHost,
      pair(busyHost, 2, busy)],
    ['ticks kept under flood, host yields', formatShare(of(ticksUnderFlood, 1, 'kept')), inHost,
      formatShare(of(ticksUnderFlood, 2, 'kept'))],
    ['POST to host p50 / p99 ms', pair(delivery, 0, ['p50', 'p99']), inHost, pair(delivery, 1, ['p50', 'p99'])],
    ['hasCommands() ns', formatTenths(of(calls, 0, 'nanoseconds')), 'array.length > 0',
      formatTenths(of(calls, 1, 'nanoseconds'))],
    ['memory added MB', formatTenths(of(footprint, 2, 'added')), 'node:http', formatTenths(of(footprint, 1, 'added'))],
    ['start to first answer ms', formatTenths(of(footprint, 2, 'start')), 'node:http',
      formatTenths(of(footprint, 1, 'start'))],
    ['CPU of an idle server', formatHundredths(of(footprint, 2, 'idle')), 'node:http',
      formatHundredths(of(footprint, 1, 'idle'))],
  ];
}

// ───── Rounds and tables ─────────────────────────────────────────────────────────────────────────────────────────

async function main(): Promise<number> {
  const options = { rounds: { type: 'string', default: '5' }, json: { type: 'boolean', default: false } } as const;
  const parsed = parseOptions(options, HELP);
  if (parsed === null) return EXIT.DONE;
  const { json } = parsed.values;
  const rounds = parseInteger('--rounds', parsed.values.rounds, 1, 1000);
  endChildrenAtExit();
  idlers = PROGRAMS.map((program) => startProgram(program, true));
  const results: Results = new Map();
  for (const measurement of MEASUREMENTS) {
    const { title, explain } = measurement;
    const summaries = await runRounds(measurement, rounds);
    results.set(measurement, summaries);
    if (!json) console.log(`${title}\n\n${formatTable(measurement, summaries)}\n\n${explain.join('\n')}\n`);
  }
  await endAll(...idlers);
  const sizes = await measureSizes();
  const machine = { node: process.version, cpu: cpus()[0]?.model ?? 'unknown', cores: availableParallelism() };
  if (json) {
    const measurements = [...results].map(([{ name }, rows]) => ({ name, rows }));
    const figures = { date: new Date().toISOString(), ...machine, rounds, measurements, sizes };
    console.log(JSON.stringify(figures, (_, value) => (value === Infinity ? 'never' : value)));
    return EXIT.DONE;
  }
  const kilobytes = Object.entries(sizes).map(([name, size]) => `${formatTenths(size)} KB ${name}`).join(', ');
  console.log(`control.js: ${kilobytes}\n`);
  console.log(`In short\n\n${formatRows([['', 'control.ts', 'compared with', ''], ...digest(results)])}`);
  console.log(`\nNode ${machine.node}, ${machine.cores} cores (${machine.cpu}); medians of ${rounds} rounds.`);
  return EXIT.DONE;
}

async function runRounds({ name, rows, measure }: Measurement, rounds: number): Promise<Summary[]> {
  const results: (readonly Figures[])[] = [];
  for (let round = 0; round < rounds; round += 1) {
    console.error(`${name}: round ${round + 1} of ${rounds}`);
    results.push(await measure(round));
  }
  return rows.map((row, place) => ({ name: row, figures: summarize(results.map((one) => one[place] as Figures)) }));
}

/** Calls the functions one after the other, in another order each time. The results are in theirs. */
async function inTurn<T>(round: number, tasks: readonly (() => Promise<T>)[]): Promise<T[]> {
  const results: T[] = [];
  for (let turn = 0; turn < tasks.length; turn += 1) {
    const step = round % 2 === 0 ? turn : tasks.length - turn;
    const place = (round + step) % tasks.length;
    results[place] = await (tasks[place] as () => Promise<T>)();
  }
  return results;
}

function summarize(results: readonly Figures[]): Record<string, Figure> {
  const names = Object.keys(results[0] ?? {});
  return Object.fromEntries(names.map((name) => {
    const rounds = results.map((figures) => figures[name] as number);
    return [name, { median: quantile(rounds, 0.5), least: Math.min(...rounds), most: Math.max(...rounds), rounds }];
  }));
}

function mediansOf(results: readonly Figures[]): Figures {
  return Object.fromEntries(Object.entries(summarize(results)).map(([name, { median }]) => [name, median]));
}

function mean(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0) / values.length;
}

function sum(floods: readonly Flood[], name: Exclude<keyof Flood, 'delays'>): number {
  return floods.reduce((total, one) => total + one[name], 0);
}

/** The value below which that share of the values lies; what has no value is the worst. */
function quantile(values: readonly number[] = [], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  const place = share * (sorted.length - 1);
  const [below = NaN, above = NaN] = [sorted[Math.floor(place)], sorted[Math.ceil(place)]];
  return below === above ? below : below + (above - below) * (place % 1);
}

function subtract(one: Figures, reference: Figures, name: string): number {
  return (one[name] ?? NaN) - (reference[name] ?? NaN);
}

function formatTable({ columns }: Measurement, summaries: readonly Summary[]): string {
  const headings = ['', ...columns.map(([heading]) => heading)];
  const rows = summaries.map(({ name, figures }) => {
    return [name, ...columns.map(([, figure, format, of = 'median']) => format(figures[figure]?.[of] ?? NaN))];
  });
  return formatRows([headings, ...rows]);
}

/** Lines with columns as wide as what is in them, the first one to the left. */
function formatRows(rows: readonly (readonly string[])[]): string {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)));
  return rows.map((row) => row.map((cell, column) => {
    const width = widths[column] as number;
    return column === 0 ? cell.padEnd(width) : cell.padStart(width + 2);
  }).join('')).join('\n');
}

function formatCount(value: number): string {
  return Math.round(value).toLocaleString('en-US');
}

function formatShare(value: number): string {
  return Number.isNaN(value) ? '–' : `${(100 * value).toFixed(1)} %`;
}

function formatHundredths(value: number): string {
  return Number.isNaN(value) ? '–' : `${(100 * value).toFixed(2)} %`;
}

function formatMilliseconds(value: number): string {
  return Number.isFinite(value) ? value.toFixed(2) : 'never';
}

function formatTenths(value: number): string {
  return Number.isNaN(value) ? '–' : value.toFixed(1);
}

// ───── Processes ─────────────────────────────────────────────────────────────────────────────────────────────────

/** A process. What it says on its stdout are lines: where it listens, and figures. */
interface Role {
  port: Promise<number>;
  told: readonly Figures[];
  lines: Interface;
  say(line: string): void;
  end(): Promise<void>;
}

const children: Set<ChildProcess> = new Set();

function startRole(name: RoleName, ...args: (string | number)[]): Role {
  return startProcess([process.argv[1] as string, ...args.map(String)], { BENCH_ROLE: name });
}

function startHost(server: ServerKind, behaviour: Behaviour, tickMs: number = 0): Role {
  stepsPerMs ??= calibrate();
  return startRole('host', server, behaviour, tickMs * stepsPerMs);
}

function startProcess(args: readonly string[], env: { BENCH_ROLE?: RoleName } = {}): Role {
  const stdio = ['pipe', 'pipe', 'inherit'] as const;
  const child = spawn(process.execPath, args, { stdio: [...stdio], env: { ...process.env, ...env } });
  children.add(child);
  let isWanted = true;
  const gone = once(child, 'exit').then(() => {
    children.delete(child);
    if (isWanted) endWith('a process of the benchmark ended by itself');
  });
  const told: Figures[] = [];
  const lines = createInterface(child.stdout);
  const port = new Promise<number>((resolve) => {
    lines.on('line', (line) => {
      const figures = JSON.parse(line) as Figures;
      if (figures['port'] === undefined) told.push(figures);
      else resolve(figures['port']);
    });
  });
  return {
    port,
    told,
    lines,
    say: (line) => child.stdin.write(`${line}\n`),
    end: () => {
      isWanted = false;
      child.kill('SIGKILL'); // a host that never yields is deaf to all else
      return gone;
    },
  };
}

/** Waits until a process has told so many figures. */
async function hear({ told, lines }: Role, count: number): Promise<void> {
  while (told.length < count) await once(lines, 'line');
}

async function endAll(...roles: readonly { end(): Promise<void> }[]): Promise<void> {
  await Promise.all(roles.map((role) => role.end()));
}

/** Whatever ends this process ends the others; should it be killed, they notice by their stdin, or in `tell`. */
function endChildrenAtExit(): void {
  process.on('exit', () => children.forEach((child) => child.kill('SIGKILL')));
  for (const [signal, exitCode] of [['SIGHUP', 129], ['SIGINT', 130], ['SIGTERM', 143]] as const) {
    process.on(signal, () => process.exit(exitCode));
  }
}

function endWith(message: string): never {
  console.error(`control-bench: ${message}`);
  process.exit(EXIT.REFUSED);
}

/** Milliseconds on a clock that all processes share. */
function clock(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}

let stepsPerMs: number | undefined;

/** How many steps of work() take a millisecond when nothing else runs. */
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

// ───── The load ──────────────────────────────────────────────────────────────────────────────────────────────────

/** A process that asks others. It does one thing at a time. */
interface Load {
  /** Keeps so many connections busy for a while, each with one request under way. */
  flood(port: number, requests: readonly string[], connections: number, milliseconds: number): Promise<Flood>;
  /** Sends so many requests, each at a random time after the answer to the one before. */
  pace(port: number, requests: readonly string[], count: number, maxPauseMs: number): Promise<Paced[]>;
  /** How many bytes an answer has. */
  measureLength(port: number, request: string): Promise<number>;
  end(): Promise<void>;
}

interface Flood {
  answers: number;
  refused: number; // of these, because a queue was full
  seconds: number;
  busy: number; // seconds of CPU that the load itself took
  delays: number[]; // in milliseconds, if there was one connection
}

interface Paced {
  request: string;
  sentAt: number;
  answeredAt: number | null; // null: not in time
}

const TASKS = { flood, pace, measureLength } as const;

function startLoad(): Load {
  const role = startRole('load');
  const order = async (task: keyof typeof TASKS, args: readonly unknown[]): Promise<never> => {
    role.say(JSON.stringify({ task, args }));
    const [line] = await once(role.lines, 'line');
    return JSON.parse(line) as never;
  };
  return {
    flood: (...args) => order('flood', args),
    pace: (...args) => order('pace', args),
    measureLength: (...args) => order('measureLength', args),
    end: role.end,
  };
}

function runLoad(): void {
  createInterface(process.stdin).on('line', async (line) => {
    const { task, args } = JSON.parse(line) as { task: keyof typeof TASKS; args: [never, never, never, never] };
    tell(await TASKS[task](...args));
  });
}

/** A kept connection on a raw socket, with one request under way at a time. */
class Connection {
  readonly opened: Promise<unknown>;
  isOpen = true;
  onAnswer: (answer: string) => void = () => {};
  readonly #socket: Socket;
  #isAsked = false;
  #text = '';

  constructor(port: number) {
    this.#socket = connect({ port, host: '127.0.0.1', noDelay: true }).setEncoding('latin1');
    this.opened = once(this.#socket, 'connect');
    this.#socket.on('data', (chunk: string) => {
      this.#text += chunk;
      if (!this.#text.endsWith('}')) return; // every answer is an object, and nothing follows it
      const answer = this.#text;
      this.#text = '';
      this.#isAsked = false;
      this.onAnswer(answer);
    });
    this.#socket.on('error', () => {}).on('close', () => {
      this.isOpen = false;
      if (this.#isAsked) endWith('a connection was ended under load');
    });
  }

  /** Sends `GET /api/status`, say. */
  ask(request: string): void {
    this.#isAsked = true;
    this.#socket.write(`${request} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n`);
  }

  /** Asks, and resolves with the answer, or with null if there is none in time; the connection is of no use then. */
  async hear(request: string): Promise<string | null> {
    const answer = new Promise<string>((resolve) => (this.onAnswer = resolve));
    this.ask(request);
    const isAnswered = new AbortController();
    const patience = sleep(PATIENCE_MS, null, { signal: isAnswered.signal }).catch(() => null);
    const text = await Promise.race([answer, patience]);
    isAnswered.abort();
    if (text === null) {
      this.#isAsked = false;
      this.#socket.destroy();
    }
    return text;
  }
}

const kept: Map<number, Connection[]> = new Map();

/** Some of the connections that are kept to a port, and new ones if those are not enough. */
async function connectionsTo(port: number, count: number): Promise<Connection[]> {
  const open = (kept.get(port) ?? []).filter((one) => one.isOpen);
  while (open.length < count) open.push(new Connection(port));
  kept.set(port, open);
  await Promise.all(open.map((one) => one.opened));
  return open.slice(0, count);
}

async function flood(port: number, requests: readonly string[], count: number, milliseconds: number): Promise<Flood> {
  const connections = await connectionsTo(port, count);
  const delays: number[] = [];
  let [answers, refused, open] = [0, 0, count];
  const before = process.cpuUsage();
  const start = performance.now();
  await new Promise<void>((resolve) => {
    for (const [index, connection] of connections.entries()) {
      let asked = index; // half of them begin with the first request, half with the second
      let askedAt = 0;
      const ask = (): void => {
        askedAt = performance.now();
        connection.ask(requests[asked % requests.length] as string);
        asked += 1;
      };
      connection.onAnswer = (answer) => {
        const now = performance.now();
        answers += 1;
        if (count === 1) delays.push(now - askedAt);
        if (isRefusal(answer)) refused += 1;
        if (now - start < milliseconds) return ask();
        open -= 1;
        if (open === 0) resolve();
      };
      ask();
    }
  });
  const seconds = (performance.now() - start) / 1000;
  const { user, system } = process.cpuUsage(before);
  return { answers, refused, seconds, busy: (user + system) / 1e6, delays };
}

async function pace(
  port: number,
  requests: readonly string[],
  count: number,
  maxPauseMs: number,
): Promise<Paced[]> {
  const results: Paced[] = [];
  for (let asked = 0; asked < count; asked += 1) {
    await sleep(maxPauseMs * Math.random());
    const request = requests[asked % requests.length] as string;
    const [connection] = await connectionsTo(port, 1);
    const sentAt = clock();
    const answer = await (connection as Connection).hear(request);
    if (answer !== null && isRefusal(answer)) endWith('a queue was full');
    results.push({ request, sentAt, answeredAt: answer === null ? null : clock() });
  }
  return results;
}

async function measureLength(port: number, request: string): Promise<number> {
  const [connection] = (await connectionsTo(port, 1)) as [Connection];
  return (await connection.hear(request))?.length ?? NaN;
}

/** True if a queue was full. Whatever else is not a 200 makes all figures worthless. */
function isRefusal(answer: string): boolean {
  const statusCode = answer.slice('HTTP/1.1 '.length, 'HTTP/1.1 200'.length);
  if (statusCode !== '200' && statusCode !== '503') endWith(`the load was answered ${statusCode}`);
  return statusCode === '503';
}

function delayOf({ sentAt, answeredAt }: Paced): number {
  return answeredAt === null ? Infinity : answeredAt - sentAt;
}

// ───── Roles ─────────────────────────────────────────────────────────────────────────────────────────────────────

type RoleName = 'host' | 'minimal' | 'load' | 'calls';
type ServerKind = 'control.ts' | 'node:http';
type Behaviour = 'never-yields' | 'yields' | 'sleeps' | 'polls' | 'reports';

/** Becomes the role that the environment names, or else the program that starts the others. */
async function start(): Promise<void> {
  const role = process.env['BENCH_ROLE'] as RoleName | undefined;
  const args = process.argv.slice(2);
  if (role !== undefined) process.stdin.on('end', () => process.exit()).resume(); // the one that started it is gone
  switch (role) {
    case 'host': return runHost(args[0] as ServerKind, args[1] as Behaviour, Number(args[2]));
    case 'minimal': return runMinimal(Number(args[0]), Number(args[1]));
    case 'load': return runLoad();
    case 'calls': return runCalls();
    default: await run('control-bench', main);
  }
  if (children.size > 0) process.exit(); // those of a measurement that failed
}

/** What a host needs of either server. */
interface CommandSource {
  hasCommands(): boolean;
  receiveCommand(): unknown;
  nextCommand(): Promise<unknown>;
}

/** Goes on until it is killed. */
async function runHost(server: ServerKind, behaviour: Behaviour, steps: number): Promise<void> {
  const isSlow = behaviour === 'yields' || behaviour === 'never-yields';
  const maxQueueSize = isSlow ? DEFAULT_MAX_QUEUE_SIZE : MAX_SIZE;
  const source = await (server === 'control.ts' ? serveFromOwnThread(maxQueueSize) : serveFromHostThread(maxQueueSize));
  const takeAll = (): void => {
    while (source.hasCommands()) source.receiveCommand();
  };
  switch (behaviour) {
    case 'sleeps': for (;;) await source.nextCommand();
    case 'polls': return void setInterval(takeAll, 1);
    case 'reports': for (;;) {
      await source.nextCommand();
      tell({ at: clock() });
    }
  }
  let value = 1;
  let tellAt = 0;
  for (let ticks = 1; ; ticks += 1) {
    value = work(steps, value);
    takeAll();
    const at = clock();
    if (at >= tellAt) {
      tell({ at, ticks });
      tellAt = at + SAMPLE_MS;
    }
    if (behaviour === 'yields') await nextTurn();
  }
}

async function serveFromOwnThread(maxQueueSize: number): Promise<WebApiServer> {
  const server = new WebApiServer({ systemStatus: () => SystemStatus.ACTIVE, port: 0, maxQueueSize });
  const { port } = await server.runInBackground();
  tell({ port });
  return server;
}

/** The same API without any check, in the thread of the host. */
async function serveFromHostThread(maxQueueSize: number): Promise<CommandSource> {
  const queue: string[] = [];
  let wake = (): void => {};
  const server = createServer(({ method, url }, response) => {
    const send = (statusCode: number, value: object): void => {
      const body = JSON.stringify(value);
      response.writeHead(statusCode, { 'Content-Type': 'application/json', 'Content-Length': body.length }).end(body);
    };
    if (method === 'GET' && url === '/api/status') return send(200, { status: 'active' });
    if (method !== 'POST' || url !== '/api/pause') return send(404, { error: 'Invalid API endpoint' });
    if (queue.length >= maxQueueSize) return send(503, { error: 'Command queue is full, try again later' });
    queue.push('pause');
    wake();
    send(200, { result: 'ok' });
  });
  await listen(server);
  return {
    hasCommands: () => queue.length > 0,
    receiveCommand: () => queue.shift(),
    nextCommand: async () => {
      while (queue.length === 0) await new Promise<void>((resolve) => (wake = resolve));
      return queue.shift();
    },
  };
}

/** Answers without a look at the path, in so many bytes as control.ts does. */
async function runMinimal(getLength: number, postLength: number): Promise<void> {
  const get = prepare('{"status":"active"}', getLength);
  const post = prepare('{"result":"ok"}', postLength);
  await listen(createServer(({ method }, response) => {
    const { headers, body } = method === 'GET' ? get : post;
    response.writeHead(200, headers).end(body);
  }));
}

function prepare(body: string, length: number): { headers: OutgoingHttpHeaders; body: string } {
  const headers = { 'Content-Type': 'application/json', 'Content-Length': body.length };
  const lines = [
    'HTTP/1.1 200 OK', 'Content-Type: application/json', `Content-Length: ${body.length}`, 'Padding: ',
    `Date: ${new Date().toUTCString()}`, 'Connection: keep-alive', 'Keep-Alive: timeout=5', '', body,
  ];
  return { headers: { ...headers, Padding: 'x'.repeat(length - lines.join('\r\n').length) }, body };
}

async function listen(server: Server): Promise<void> {
  await once(server.listen(0, '127.0.0.1'), 'listening');
  tell({ port: (server.address() as AddressInfo).port });
}

/** Measures the calls that find nothing, and, when it is told that its queue is full, the others. */
async function runCalls(): Promise<void> {
  const server = await serveFromOwnThread(MAX_SIZE);
  const arrays = Array.from({ length: MAX_SIZE / DEFAULT_MAX_QUEUE_SIZE }, () => {
    return Array<string>(DEFAULT_MAX_QUEUE_SIZE).fill('pause');
  });
  let array: string[] = [];
  let [has, length, loop] = [NO_CALLS, NO_CALLS, NO_CALLS];
  for (let pass = 0; pass < 2; pass += 1) { // by the second one the compiler has seen that the calls differ
    has = measureCalls(CALLS, () => server.hasCommands());
    length = measureCalls(CALLS, () => array.length > 0);
    loop = measureCalls(CALLS, () => false);
  }
  tell({ ready: 1 });
  await once(process.stdin, 'data');
  const receive = measureCalls(MAX_SIZE / 2, () => server.receiveCommand() === 'pause');
  const shift = measureCalls(MAX_SIZE / 2, () => {
    if (array.length === 0) array = arrays.pop() as string[];
    return array.shift() === 'pause';
  });
  for (const { nanoseconds, bytes } of [has, length, receive, shift]) {
    tell({ nanoseconds: nanoseconds - loop.nanoseconds, bytes });
  }
}

const NO_CALLS = { nanoseconds: 0, bytes: 0 };

/** Calls the function so often, and once more so often with an eye on time and memory. */
function measureCalls(count: number, call: () => boolean): typeof NO_CALLS {
  let yes = 0;
  for (let index = 0; index < count; index += 1) if (call()) yes += 1;
  const heapBefore = process.memoryUsage().heapUsed;
  const start = clock();
  for (let index = 0; index < count; index += 1) if (call()) yes += 1;
  const milliseconds = clock() - start;
  const bytes = process.memoryUsage().heapUsed - heapBefore;
  if (yes !== 0 && yes !== 2 * count) throw new Error('a call gave something else than the one before');
  return { nanoseconds: (1e6 * milliseconds) / count, bytes: bytes / count };
}

/** Writes at once, because a host may never yield. A role that nobody hears any more ends. */
function tell(told: unknown): void {
  try {
    writeSync(1, `${JSON.stringify(told)}\n`);
  } catch {
    process.exit();
  }
}

void start();
