// Measures what the remote control costs its host, compared with a plain node:http server: `npm run bench`.
//
// Hosts, reference servers and the load run in processes of their own: this file, started again with a role in the
// environment. A figure and its reference are measured in alternation, where possible in slices of 100 ms, so that
// other activity on the machine affects both.

import { transform } from 'esbuild';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, writeSync } from 'node:fs';
import { createServer } from 'node:http';
import { connect } from 'node:net';
import { availableParallelism, cpus } from 'node:os';
import { createInterface } from 'node:readline';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { describeOptions, EXIT, parseInteger, parseOptions, run } from '../shared/options.ts';
import { DEFAULT_MAX_QUEUE_SIZE, SystemStatus, WebApiClient, WebApiServer, launch } from '../../control.ts';
import type { ChildProcess } from 'node:child_process';
import type { OutgoingHttpHeaders, Server } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import type { Interface } from 'node:readline';

const OPTIONS = {
  rounds: { type: 'string', default: '5', value: 'N', help: 'number of rounds (default 5)' },
  json: { type: 'boolean', default: false, help: 'print the figures of all rounds as JSON' },
} as const;

const HELP = `
Usage: npm run bench -- [options]

Measures what the remote control costs its host, compared with a plain node:http server. A round takes about two minutes.

${describeOptions(OPTIONS)}

Ratios and differences compare figures of the same round. The columns least and most show how far the rounds vary.
`;

const CONNECTIONS = 32;
const SLICE_MS = 100; // of load on one server
const SLICES = 7; // per server and round
const WARM_UP_MS = 300;
const TIMEOUT_MS = 1000; // of a request
const MAX_SIZE = 1000; // of a queue that must not fill up while the host empties it
const REPORT_MS = 20; // between two reports of a host's ticks
const TICK_MS = 1; // of a host that counts its ticks
const LONG_TICK_MS = 50; // of a host whose latency is measured
const LOADS = 4; // that send requests to a busy host
const REQUESTS = 60; // per latency and round
const STARTS = 3; // of each program in a round
const CALLS = 1_000_000;
const BATCHES = 64; // of MAX_SIZE commands, which a host receives; half of them are the warm-up
const WATCHERS = 40; // connections that wait for a change of the status
const CHANGES = 100;
const PASSES = 5; // of a loop whose steps are measured
const IDLE_MS = 10_000;
const FORKERS = 200;
const PAUSES = 100; // of each program in a round
const CHECKED_PAUSE = 10;

const STATUS = 'GET /api/status';
const PAUSE = 'POST /api/pause';
const SAVE = 'POST /api/save-state';
const WAIT = 'Prefer: wait=5\r\n';

/** One section of the output. */
interface Measurement {
  name: string;
  title: string;
  rows: readonly string[];
  columns: readonly Column[];
  /** Measures each row once. The round determines the order. */
  measure(round: number): Promise<readonly Figures[]>;
  /** Lines that explain the columns. */
  explain: readonly string[];
}

type Figures = Record<string, number>;
type Column = readonly [heading: string, figure: string, format: (value: number) => string, of?: keyof Extremes];

const LATENCY: readonly Column[] = [
  ['p50 ms', 'p50', formatMilliseconds],
  ['p99 ms', 'p99', formatMilliseconds],
  ['least p99', 'p99', formatMilliseconds, 'least'],
  ['most p99', 'p99', formatMilliseconds, 'most'],
];

/** One figure over all rounds. */
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
  title: `Throughput over ${CONNECTIONS} keep-alive connections, and latency over one. The host is idle.`,
  rows: [STATUS, PAUSE].flatMap((request) => SERVERS.map((name) => `${request}: ${name}`)),
  columns: [
    ['responses/s', 'rate', formatCount],
    ['of node:http', 'share', formatShare],
    ['least', 'share', formatShare, 'least'],
    ['most', 'share', formatShare, 'most'],
    ['p50 ms', 'p50', formatMilliseconds],
    ['p99 ms', 'p99', formatMilliseconds],
    ['503', 'refused', formatShare],
    ['load CPU', 'busy', formatShare],
  ],
  async measure(round) {
    const load = startLoad();
    const lengths = (responseLengths ??= await measureLengths(load));
    const servers = [
      () => startRole('minimal', ...lengths),
      () => startHost('control.ts', 'sleeps'),
      () => startHost('control.ts', 'polls'),
    ];
    const roles = await inTurn(round, servers.map((start) => async () => { // the first to start has an advantage
      const role = start();
      await role.port;
      return role;
    }));
    const ports = await Promise.all(roles.map((role) => role.port));
    const pairs = [STATUS, PAUSE].flatMap((request) => ports.map((port) => ({ port, request })));
    for (const { port, request } of pairs) await load.flood(port, [request], CONNECTIONS, WARM_UP_MS);
    const parallel = pairs.map((): Flood[] => []);
    const single = pairs.map((): Flood[] => []);
    for (let slice = 0; slice < SLICES; slice += 1) {
      await inTurn(round + slice, pairs.map(({ port, request }, index) => async () => {
        parallel[index]?.push(await load.flood(port, [request], CONNECTIONS, SLICE_MS));
        single[index]?.push(await load.flood(port, [request], 1, SLICE_MS / 2));
      }));
    }
    await endAll(load, ...roles);
    const rates = parallel.map((floods) => sum(floods, 'responses') / sum(floods, 'seconds'));
    return parallel.map((floods, index) => {
      const delays = (single[index] as Flood[]).flatMap((flood) => flood.delays);
      const [rate, reference] = [rates[index] as number, rates[index - (index % ports.length)] as number];
      return {
        rate, share: rate / reference, p50: quantile(delays, 0.5), p99: quantile(delays, 0.99),
        refused: sum(floods, 'refused') / sum(floods, 'responses'), busy: sum(floods, 'busy') / sum(floods, 'seconds'),
      };
    });
  },
  explain: [
    'of node:http: relative to the minimal server, which ignores the path and sends responses of the same length.',
    'p50, p99: latency over one connection. 503: the queue was full. The host sleeps in nextCommand(), where each POST',
    'wakes it up, or polls with a timer. load CPU: share of a core that the load used; near 100 % the load is the',
    'limit, not the server.',
  ],
};

let responseLengths: readonly number[] | undefined;

/** Measures how many bytes the responses of control.ts have. */
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
  title: `Latency of a host that computes in ticks of ${LONG_TICK_MS} ms and polls after each tick.`,
  rows: BUSY_HOSTS.map(([name]) => name),
  columns: [
    ['GET p50 ms', 'getP50', formatMilliseconds],
    ['p99', 'getP99', formatMilliseconds],
    ['most', 'getP99', formatMilliseconds, 'most'],
    ['POST p50 ms', 'postP50', formatMilliseconds],
    ['p99', 'postP99', formatMilliseconds],
    ['most', 'postP99', formatMilliseconds, 'most'],
    ['timeouts', 'unanswered', formatShare],
  ],
  measure(round) {
    return inTurn(round, BUSY_HOSTS.map(([, server, behaviour]) => async () => {
      const timesOut = server === 'node:http' && behaviour === 'never-yields';
      const loads = Array.from({ length: LOADS }, startLoad);
      const host = startHost(server, behaviour, LONG_TICK_MS);
      const port = await host.port;
      await sleep(WARM_UP_MS);
      const exchanges = (await Promise.all(loads.map(async (load) => {
        const paced = await load.pace(port, [STATUS, PAUSE], timesOut ? 4 : 2 * REQUESTS, LONG_TICK_MS);
        return paced.slice(2); // the first two include the time to connect
      }))).flat();
      await endAll(host, ...loads);
      const [get, post] = [STATUS, PAUSE].map((request) => {
        return exchanges.filter((one) => one.request === request).map(delayOf);
      });
      return {
        getP50: quantile(get, 0.5), getP99: quantile(get, 0.99),
        postP50: quantile(post, 0.5), postP99: quantile(post, 0.99),
        unanswered: exchanges.filter((one) => one.receivedAt === null).length / exchanges.length,
      };
    }));
  },
  explain: [
    `${LOADS * (REQUESTS - 1)} requests of each kind per round, 0 to ${LONG_TICK_MS} ms apart, from ${LOADS} clients.`,
    'most: the highest p99 of all rounds. A GET waits about 10 ms for a busy host, and then returns the last known',
    `status. A node:http server in a host that never yields never responds: requests time out after ${TIMEOUT_MS} ms.`,
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
  title: `Ticks kept under flood. The host computes in ticks of ${TICK_MS} ms and polls after each tick;
${CONNECTIONS} connections send ${STATUS} and ${PAUSE} in turn, each as soon as it has the last response.`,
  rows: FLOODED.map(([name]) => name),
  columns: [
    ['ticks/s', 'quiet', formatCount],
    ['flooded', 'flooded', formatShare],
    ['elsewhere', 'elsewhere', formatShare],
    ['kept', 'kept', formatShare],
    ['least', 'kept', formatShare, 'least'],
    ['most', 'kept', formatShare, 'most'],
    ['responses/s', 'rate', formatCount],
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
        rate: sum(floods, 'responses') / sum(floods, 'seconds'),
        refused: sum(floods, 'refused') / sum(floods, 'responses'),
      };
    }));
  },
  explain: [
    'ticks/s: without load. flooded: share of them that remains under flood. elsewhere: share that remains while a',
    'minimal node:http server in another process is flooded, because all processes compete for the cores. kept: flooded',
    'relative to elsewhere. It can exceed 100 %, because the other server handles more requests.',
  ],
};

/** Measures the ticks per second of a host during an action. */
async function measureTicks(host: Role, act: () => Promise<unknown>): Promise<number> {
  const start = clock();
  await act();
  const end = clock();
  await sleep(2 * REPORT_MS); // for the last report
  const samples = host.reports.filter(({ at = NaN }) => at >= start && at <= end);
  const [first, last] = [samples[0], samples.at(-1)];
  if (first === undefined || last === undefined || first === last) throw new Error('a host stopped counting its ticks');
  return (1000 * subtract(last, first, 'ticks')) / subtract(last, first, 'at');
}

// ───── Delivery ──────────────────────────────────────────────────────────────────────────────────────────────────

const delivery: Measurement = {
  name: 'delivery',
  title: 'Time from sending POST /api/pause until a waiting host has the command.',
  rows: ['control.ts, nextCommand()', 'node:http in the host, a promise'],
  columns: LATENCY,
  measure(round) {
    return inTurn(round, (['control.ts', 'node:http'] as const).map((server) => async () => {
      const load = startLoad();
      const host = startHost(server, 'reports');
      const sent = await load.pace(await host.port, [PAUSE], 6 * REQUESTS, 5);
      await waitForReports(host, sent.length);
      await endAll(load, host);
      const delays = sent.map(({ sentAt }, index) => (host.reports[index]?.['at'] as number) - sentAt);
      delays.splice(0, REQUESTS); // the warm-up
      return { p50: quantile(delays, 0.5), p99: quantile(delays, 0.99) };
    }));
  },
  explain: ['The host is otherwise idle.'],
};

// ───── Waiting ───────────────────────────────────────────────────────────────────────────────────────────────────

const WAITING = [
  ['change: control.ts, host polls each ms', () => measureChanges('control.ts')],
  ['change: node:http in the host', () => measureChanges('node:http')],
  [`${SAVE} until done: launch()`, () => measurePosts('control.ts', SAVE, WAIT)],
  [`${SAVE} until accepted: launch()`, () => measurePosts('control.ts', SAVE)],
  [`${PAUSE}: node:http in the host`, () => measurePosts('node:http', PAUSE)],
] as const;

const waiting: Measurement = {
  name: 'waiting',
  title: `Time until ${WATCHERS} connections that wait are told of a change of the status, and latency of a command to a
host that computes in ticks of ${TICK_MS} ms.`,
  rows: WAITING.map(([name]) => name),
  columns: LATENCY,
  measure(round) {
    return inTurn(round, WAITING.map(([, measure]) => async () => {
      const delays = await measure();
      const measured = delays.slice(delays.length / 6); // without the warm-up
      return { p50: quantile(measured, 0.5), p99: quantile(measured, 0.99) };
    }));
  },
  explain: [
    'change: from the change of a variable, which the host publishes up to a millisecond later, when it next polls, to',
    'each response. until done: with Prefer: wait. until accepted: without. node:http responds between two ticks.',
  ],
};

async function measureChanges(server: ServerKind): Promise<number[]> {
  const load = startLoad();
  const host = startHost(server, 'changes');
  const told = await load.watch(await host.port, WATCHERS, CHANGES);
  await waitForReports(host, CHANGES);
  await endAll(load, host);
  const delays = told.map((at, index) => {
    const change = host.reports[Math.floor(index / WATCHERS)];
    return (at ?? Infinity) - (change?.['at'] ?? NaN);
  });
  if (!delays.every((delay) => delay >= 0)) endWith('a client was told of a change that had not happened');
  return delays;
}

async function measurePosts(server: ServerKind, request: string, fields?: string): Promise<number[]> {
  const load = startLoad();
  const host = startHost(server, server === 'control.ts' ? 'launched' : 'yields', TICK_MS);
  const sent = await load.pace(await host.port, [request], 6 * REQUESTS, 5, fields);
  await endAll(load, host);
  return sent.map(delayOf);
}

// ───── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────

const STEPS = ['synchronous', 'asynchronous'].flatMap((kind) => ['web API', 'no web API'].map((api) => [kind, api]));

const steps: Measurement = {
  name: 'steps',
  title: 'Cost of an empty step of launch(), compared with a loop that calls, or awaits, the same function.',
  rows: STEPS.map((args) => args.join(', ')),
  columns: [
    ['loop ns', 'loop', formatTenths],
    ['launch() ns', 'launch', formatTenths],
    ['added', 'added', formatTenths],
    ['least', 'added', formatTenths, 'least'],
    ['most', 'added', formatTenths, 'most'],
  ],
  measure(round) {
    return inTurn(round, STEPS.map((args) => async () => {
      const role = startRole('steps', ...args); // one process each, as the compiler sees one kind of step in a program
      await waitForReports(role, 1);
      await endAll(role);
      const [figures = {}] = role.reports;
      return { ...figures, added: (figures['launch'] ?? NaN) - (figures['loop'] ?? NaN) };
    }));
  },
  explain: [`Each round takes the fastest of ${PASSES} passes of loop and launch(), in alternation.`],
};

// ───── Calls ─────────────────────────────────────────────────────────────────────────────────────────────────────

const calls: Measurement = {
  name: 'calls',
  title: 'Cost of a call in the host, compared with an array that only its own thread uses.',
  rows: ['hasCommands(), queue empty', 'array.length > 0', 'receiveCommand()', 'array.shift()'],
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
    for (let batch = 1; batch <= BATCHES; batch += 1) {
      await waitForReports(host, batch);
      for (let filled = 0; filled < MAX_SIZE;) {
        const { responses, refused } = await load.flood(port, [PAUSE], CONNECTIONS, SLICE_MS / 2);
        filled += responses - refused;
      }
      host.send('go');
    }
    await waitForReports(host, BATCHES + calls.rows.length);
    await endAll(load, host);
    return host.reports.slice(BATCHES);
  },
  explain: ['The cost of the loop is subtracted. hasCommands() includes systemStatus(). bytes: allocated per call.'],
};

// ───── Any program under control-run ─────────────────────────────────────────────────────────────────────────────

const RUN = fileURLToPath(new URL('../dist/bin/run.js', import.meta.url)); // relative to .dev/bench.js

const TREES = [
  { name: 'one process that computes', count: 1, script: 'while :; do :; done' },
  { name: 'ten processes', count: 10, script: 'for i in 1 2 3 4 5 6 7 8 9; do while :; do :; done & done; wait' },
  {
    name: `${FORKERS} processes that fork all the time`,
    count: FORKERS,
    script: `i=0; while [ $((i += 1)) -lt ${FORKERS} ]; do while :; do (:); done & done; wait`,
  },
] as const;

const pauses: Measurement = {
  name: 'pauses',
  title: 'Time from sending POST /api/pause to control-run until all processes of its program are stopped.',
  rows: TREES.map(({ name }) => name),
  columns: LATENCY,
  measure(round) {
    return inTurn(round, TREES.map(({ count, script }) => async () => {
      const { client, end } = await startRun(['sh', '-c', script]);
      const readDetail = async (): Promise<Figures | null> => {
        await client.info(); // the detail may come too late for this response, and is in the next one
        await sleep(SLICE_MS);
        return (await client.info())?.detail as Figures | null;
      };
      while (((await readDetail())?.['processes'] ?? 0) < count) await sleep(SLICE_MS);
      const delays: number[] = [];
      while (delays.length < PAUSES) {
        await sleep(SLICE_MS);
        const start = clock();
        if (!(await client.request('pause', { wait: 30 })).ok) endWith('a pause failed');
        delays.push(clock() - start);
        if (delays.length % CHECKED_PAUSE === 0) {
          const [before, after] = [await readDetail(), await readDetail()];
          for (const figure of ['processes', 'CPU seconds']) {
            if (before?.[figure] !== after?.[figure]) endWith('a process of a paused program runs');
          }
        }
        await client.request('resume', { wait: 30 });
      }
      await end();
      return { p50: quantile(delays, 0.5), p99: quantile(delays, 0.99) };
    }));
  },
  explain: [
    `${PAUSES} pauses per round. After each ${CHECKED_PAUSE}th, the processes are checked: their CPU time must stand still.`,
  ],
};

const burden: Measurement = {
  name: 'burden',
  title: 'Run time of a program that computes, and the CPU time of control-run beside it.',
  rows: ['alone', 'under control-run'],
  columns: [
    ['seconds', 'seconds', formatMilliseconds],
    ['added', 'added', formatHundredths],
    ['least', 'added', formatHundredths, 'least'],
    ['most', 'added', formatHundredths, 'most'],
    ['CPU', 'cpu', formatHundredths],
  ],
  async measure(round) {
    const [alone, controlled] = await inTurn(round, [false, true].map((isControlled) => async () => {
      const runs: number[] = [];
      while (runs.length < STARTS) runs.push(await measureRunTime(isControlled));
      return quantile(runs, 0.5) / 1000;
    })) as [number, number];
    return [{ seconds: alone }, { seconds: controlled, added: controlled / alone - 1, cpu: await measureIdleTime() }];
  },
  explain: [
    `seconds: median of ${STARTS} runs, as the program itself measures it. CPU: share of a core that control-run uses`,
    `over ${IDLE_MS / 1000} s without requests.`,
  ],
};

/** Returns milliseconds. */
async function measureRunTime(isControlled: boolean): Promise<number> {
  const source = `
    const start = performance.now();
    let value = 0;
    for (let index = 0; index < 1e9; index += 1) value = (value * 31 + index) | 0;
    console.log(performance.now() - start, value);`;
  const prefix = isControlled ? [RUN, '--port', '0', process.execPath] : [];
  const child = spawn(process.execPath, [...prefix, '--eval', source], { stdio: ['ignore', 'pipe', 'ignore'] });
  const [line] = await once(createInterface(child.stdout), 'line') as [string];
  await once(child, 'close');
  return Number(line.split(' ')[0]);
}

/** Returns the share of a core that control-run uses while its program sleeps. */
async function measureIdleTime(): Promise<number> {
  const { child, end } = await startRun(['sleep', '1000']);
  await sleep(WARM_UP_MS);
  const before = processorTimeOf(child);
  await sleep(IDLE_MS);
  const after = processorTimeOf(child);
  await end();
  return (after - before) / IDLE_MS;
}

/** Returns milliseconds. */
function processorTimeOf({ pid }: ChildProcess): number {
  const [user, system] = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ').slice(11, 13) ?? [];
  return 10 * (Number(user) + Number(system));
}

interface StartedRun {
  child: ChildProcess;
  client: WebApiClient;
  end(): Promise<void>;
}

/** Starts control-run with a command. */
async function startRun(command: readonly string[]): Promise<StartedRun> {
  const args = [RUN, '--host', '127.0.0.1', '--port', '0', '--grace', '1', ...command];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'ignore', 'pipe'] });
  children.add(child);
  const [banner] = await once(createInterface(child.stderr), 'line') as [string];
  const client = new WebApiClient('127.0.0.1', Number(/:(\d+)$/.exec(banner)?.[1]), { timeout: 30_000 });
  const end = async (): Promise<void> => {
    const ended = once(child, 'exit');
    child.kill();
    await ended;
    children.delete(child);
    client.close();
  };
  return { child, client, end };
}

// ───── Footprint ─────────────────────────────────────────────────────────────────────────────────────────────────

const MODULE = new URL('../dist/control.js', import.meta.url); // relative to .dev/bench.js

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
  title: 'Footprint of a program that only runs a server.',
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
      await inTurn(round + count, PROGRAMS.map((program, index) => async () => {
        starts[index]?.push(await measureStart(program));
      }));
    }
    const results = starts.map(mediansOf) as [Figures, Figures, Figures];
    const [nothing, reference] = results;
    return results.map((figures, index) => ({
      ...figures,
      added: subtract(figures, nothing, 'memory'),
      later: subtract(figures, reference, 'start'),
      idle: mean(idlePrograms[index]?.reports.slice(2).map(({ cpu = NaN }) => cpu) ?? []), // without the start
    }));
  },
  explain: [
    'memory: resident set after the first response. added: relative to a program without a server. start: from the',
    `start of the process to the first response, median of ${STARTS} per round. later: relative to node:http. import:`,
    `of the module alone. CPU idle: share of a core over ${IDLE_MS / 1000} s without requests.`,
  ],
};

type Program = (typeof PROGRAMS)[number];

async function measureStart(program: Program): Promise<Figures> {
  const start = clock();
  const role = startProgram(program);
  const port = await role.port;
  if (port !== 0 && await new Connection(port).exchange(STATUS) === null) endWith('a program did not respond');
  const responded = clock();
  await sleep(WARM_UP_MS);
  role.send('memory');
  await waitForReports(role, 2);
  await endAll(role);
  const [{ imported = NaN } = {}, { memory = NaN } = {}] = role.reports;
  return port === 0 ? { memory } : { memory, start: responded - start, import: imported };
}

/** One process per program, without requests. Each reports its CPU time throughout the benchmark. */
let idlePrograms: readonly Role[] = [];

/** Starts a program as source text, because the imports of this file would add to its footprint. */
function startProgram({ specifier, program }: Program, isIdle: boolean = false): Role {
  const source = `
    const start = performance.now();
    const module = await import('${specifier}');
    const imported = performance.now() - start;
    const { writeSync } = process.getBuiltinModule('node:fs');
    const write = (report) => {
      try {
        writeSync(1, JSON.stringify(report) + '\\n');
      } catch {
        process.exit(); // the benchmark is gone
      }
    };
    const tell = ({ port }) => {
      write({ imported });
      write({ port });
    };
    ${program}
    if (${isIdle}) {
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

/** Measures the size of the module in KB. */
async function measureSizes(): Promise<Figures> {
  const text = readFileSync(MODULE);
  const { code } = await transform(text, { minify: true, format: 'esm' });
  const gzipped = gzipSync(code);
  return { plain: text.length / 1000, minified: code.length / 1000, 'minified and gzipped': gzipped.length / 1000 };
}

// ───── Summary ───────────────────────────────────────────────────────────────────────────────────────────────────

const MEASUREMENTS: readonly Measurement[] = [
  throughput, busyHost, ticksUnderFlood, delivery, waiting, steps, calls, pauses, burden, footprint,
];

type Results = Map<Measurement, readonly Summary[]>;

/** Selects the figures that matter most. */
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
  const both = (figure: string): string => [0, 2].map((row) => formatTenths(of(steps, row, figure))).join(' / ');
  const [minimal, inHost, busy] = ['minimal node:http', 'node:http in the host', ['getP99', 'postP99']] as const;
  return [
    ['GET responses/s, host sleeps / polls', shares(1, 2), minimal, '100 %'],
    ['POST responses/s, host sleeps / polls', shares(4, 5), minimal, '100 %'],
    ['GET / POST p99 ms, host never yields', pair(busyHost, 0, busy), inHost, 'never responds'],
    [`GET / POST p99 ms, host yields each ${LONG_TICK_MS} ms`, pair(busyHost, 1, busy), inHost,
      pair(busyHost, 2, busy)],
    ['ticks kept under flood, host yields', formatShare(of(ticksUnderFlood, 1, 'kept')), inHost,
      formatShare(of(ticksUnderFlood, 2, 'kept'))],
    ['POST to host p50 / p99 ms', pair(delivery, 0, ['p50', 'p99']), inHost, pair(delivery, 1, ['p50', 'p99'])],
    ['change to those who wait p50 / p99 ms', pair(waiting, 0, ['p50', 'p99']), inHost,
      pair(waiting, 1, ['p50', 'p99'])],
    ['command until done p50 / p99 ms', pair(waiting, 2, ['p50', 'p99']), inHost, pair(waiting, 4, ['p50', 'p99'])],
    ['pause of ten processes p50 / p99 ms', pair(pauses, 1, ['p50', 'p99']), 'of one', pair(pauses, 0, ['p50', 'p99'])],
    ['launch() ns per step / awaited step', both('launch'), 'bare loop', both('loop')],
    ['hasCommands() ns', formatTenths(of(calls, 0, 'nanoseconds')), 'array.length > 0',
      formatTenths(of(calls, 1, 'nanoseconds'))],
    ['memory added MB', formatTenths(of(footprint, 2, 'added')), 'node:http', formatTenths(of(footprint, 1, 'added'))],
    ['start to first response ms', formatTenths(of(footprint, 2, 'start')), 'node:http',
      formatTenths(of(footprint, 1, 'start'))],
    ['CPU of an idle server', formatHundredths(of(footprint, 2, 'idle')), 'node:http',
      formatHundredths(of(footprint, 1, 'idle'))],
  ];
}

// ───── Rounds and tables ─────────────────────────────────────────────────────────────────────────────────────────

async function main(): Promise<number> {
  const parsed = parseOptions(OPTIONS, HELP);
  if (parsed === null) return EXIT.DONE;
  const { json } = parsed.values;
  const rounds = parseInteger('--rounds', parsed.values.rounds, 1, 1000);
  endChildrenAtExit();
  idlePrograms = PROGRAMS.map((program) => startProgram(program, true));
  const results: Results = new Map();
  for (const measurement of MEASUREMENTS) {
    const { title, explain } = measurement;
    const summaries = await runRounds(measurement, rounds);
    results.set(measurement, summaries);
    if (!json) console.log(`${title}\n\n${formatTable(measurement, summaries)}\n\n${explain.join('\n')}\n`);
  }
  await endAll(...idlePrograms);
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
  console.log(`Summary\n\n${formatRows([['', 'control.ts', 'compared with', ''], ...digest(results)])}`);
  console.log(`\nNode ${machine.node}, ${machine.cores} cores (${machine.cpu}); medians of ${rounds} rounds.`);
  return EXIT.DONE;
}

async function runRounds({ name, rows, measure }: Measurement, rounds: number): Promise<Summary[]> {
  const results: (readonly Figures[])[] = [];
  for (let round = 0; round < rounds; round += 1) {
    console.error(`${name}: round ${round + 1} of ${rounds}`);
    results.push(await measure(round));
  }
  return rows.map((row, index) => ({ name: row, figures: summarize(results.map((one) => one[index] as Figures)) }));
}

/** Runs the tasks one after the other, in an order that depends on the round. Returns the results in task order. */
async function inTurn<T>(round: number, tasks: readonly (() => Promise<T>)[]): Promise<T[]> {
  const results: T[] = [];
  for (let turn = 0; turn < tasks.length; turn += 1) {
    const step = round % 2 === 0 ? turn : tasks.length - turn;
    const index = (round + step) % tasks.length;
    results[index] = await (tasks[index] as () => Promise<T>)();
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

/** Interpolates linearly between neighbours. A timeout counts as Infinity, so equal neighbours are not interpolated. */
function quantile(values: readonly number[] = [], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  const position = share * (sorted.length - 1);
  const [below = NaN, above = NaN] = [sorted[Math.floor(position)], sorted[Math.ceil(position)]];
  return below === above ? below : below + (above - below) * (position % 1);
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

/** Aligns the first column to the left and the others to the right. */
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

/** A child process. It writes its port and its reports to stdout as lines of JSON. */
interface Role {
  port: Promise<number>;
  reports: readonly Figures[];
  lines: Interface;
  send(line: string): void;
  end(): Promise<void>;
}

const children: Set<ChildProcess> = new Set();

function startRole(name: RoleName, ...args: (string | number)[]): Role {
  return startProcess([process.argv[1] as string, ...args.map(String)], { BENCH_ROLE: name });
}

function startHost(server: ServerKind, behaviour: Behaviour, tickMs: number = 0): Role {
  iterationsPerMs ??= calibrate();
  return startRole('host', server, behaviour, tickMs * iterationsPerMs);
}

function startProcess(args: readonly string[], env: { BENCH_ROLE?: RoleName } = {}): Role {
  const stdio = ['pipe', 'pipe', 'inherit'] as const;
  const child = spawn(process.execPath, args, { stdio: [...stdio], env: { ...process.env, ...env } });
  children.add(child);
  let isWanted = true;
  const gone = once(child, 'exit').then(() => {
    children.delete(child);
    if (isWanted) endWith('a child process ended unexpectedly');
  });
  const reports: Figures[] = [];
  const lines = createInterface(child.stdout);
  const port = new Promise<number>((resolve) => {
    lines.on('line', (line) => {
      const figures = JSON.parse(line) as Figures;
      if (figures['port'] === undefined) reports.push(figures);
      else resolve(figures['port']);
    });
  });
  return {
    port,
    reports,
    lines,
    send: (line) => child.stdin.write(`${line}\n`),
    end: () => {
      isWanted = false;
      child.kill('SIGKILL'); // a host that never yields handles no other signal
      return gone;
    },
  };
}

/** Waits until a process has sent at least `count` reports. */
async function waitForReports({ reports, lines }: Role, count: number): Promise<void> {
  while (reports.length < count) await once(lines, 'line');
}

async function endAll(...roles: readonly { end(): Promise<void> }[]): Promise<void> {
  await Promise.all(roles.map((role) => role.end()));
}

/** Kills the children when this process ends. If it is killed itself, they end because stdin or stdout is closed. */
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

/** Milliseconds of a clock that is the same in all processes. */
function clock(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}

let iterationsPerMs: number | undefined;

/** Measures how many iterations compute() does per millisecond when nothing else runs. */
function calibrate(): number {
  const iterations = 5_000_000;
  const durationsMs = Array.from({ length: 20 }, (_, index) => {
    const start = performance.now();
    compute(iterations, index);
    return performance.now() - start;
  });
  return Math.round(iterations / Math.min(...durationsMs));
}

/** One tick. It has a fixed number of iterations, not a fixed duration: a host that is preempted completes fewer. */
function compute(iterations: number, seed: number): number {
  let value = seed | 1;
  for (let iteration = 0; iteration < iterations; iteration += 1) {
    value ^= value << 13;
    value ^= value >>> 17;
    value ^= value << 5;
  }
  return value;
}

// ───── The load ──────────────────────────────────────────────────────────────────────────────────────────────────

/** A process that sends requests. It runs one task at a time. */
interface Load {
  /** Keeps one request in flight on each connection for a while. */
  flood(port: number, requests: readonly string[], connections: number, milliseconds: number): Promise<Flood>;
  /** Sends `count` requests, each after a random pause. */
  pace(
    port: number,
    requests: readonly string[],
    count: number,
    maxPauseMs: number,
    fields?: string,
  ): Promise<Paced[]>;
  /** Lets connections wait for each of `count` changes of the status. Returns when each was told, null at a timeout. */
  watch(port: number, connections: number, count: number): Promise<(number | null)[]>;
  /** Measures how many bytes a response has. */
  measureLength(port: number, request: string): Promise<number>;
  end(): Promise<void>;
}

interface Flood {
  responses: number;
  refused: number; // responses with status code 503
  seconds: number;
  busy: number; // seconds of CPU time used by the load
  delays: number[]; // milliseconds; empty with more than one connection
}

interface Paced {
  request: string;
  sentAt: number;
  receivedAt: number | null; // null: timeout
}

const TASKS = { flood, pace, watch, measureLength } as const;

function startLoad(): Load {
  const role = startRole('load');
  const perform = async (task: keyof typeof TASKS, args: readonly unknown[]): Promise<never> => {
    role.send(JSON.stringify({ task, args }));
    const [line] = await once(role.lines, 'line');
    return JSON.parse(line) as never;
  };
  return {
    flood: (...args) => perform('flood', args),
    pace: (...args) => perform('pace', args),
    watch: (...args) => perform('watch', args),
    measureLength: (...args) => perform('measureLength', args),
    end: role.end,
  };
}

function runLoad(): void {
  createInterface(process.stdin).on('line', async (line) => {
    const { task, args } = JSON.parse(line) as { task: keyof typeof TASKS; args: [never, never, never, never, never] };
    report(await TASKS[task](...args));
  });
}

/** A keep-alive connection on a raw socket, with one request at a time. */
class Connection {
  readonly opened: Promise<unknown>;
  isOpen = true;
  onResponse: (response: string) => void = () => {};
  readonly #socket: Socket;
  #isPending = false;
  #text = '';

  constructor(port: number) {
    this.#socket = connect({ port, host: '127.0.0.1', noDelay: true }).setEncoding('latin1');
    this.opened = once(this.#socket, 'connect');
    this.#socket.on('data', (chunk: string) => {
      this.#text += chunk;
      if (!this.#text.endsWith('}')) return; // every body is a JSON object
      const response = this.#text;
      this.#text = '';
      this.#isPending = false;
      this.onResponse(response);
    });
    this.#socket.on('error', () => {}).on('close', () => {
      this.isOpen = false;
      if (this.#isPending) endWith('a connection was closed during a request');
    });
  }

  /** Sends a request such as `GET /api/status`, with further header fields, each ending with a line break. */
  send(request: string, fields: string = ''): void {
    this.#isPending = true;
    this.#socket.write(`${request} HTTP/1.1\r\nHost: localhost\r\n${fields}Content-Length: 0\r\n\r\n`);
  }

  /** Sends a request and returns the response, or after a timeout closes the connection and returns null. */
  async exchange(request: string, fields?: string): Promise<string | null> {
    const response = new Promise<string>((resolve) => (this.onResponse = resolve));
    this.send(request, fields);
    const isDone = new AbortController();
    const timeout = sleep(TIMEOUT_MS, null, { signal: isDone.signal }).catch(() => null);
    const text = await Promise.race([response, timeout]);
    isDone.abort();
    if (text === null) {
      this.#isPending = false;
      this.#socket.destroy();
    }
    return text;
  }
}

const openConnections: Map<number, Connection[]> = new Map();

/** Returns `count` connections to a port, and opens those that are missing. */
async function connectionsTo(port: number, count: number): Promise<Connection[]> {
  const open = (openConnections.get(port) ?? []).filter((one) => one.isOpen);
  while (open.length < count) open.push(new Connection(port));
  openConnections.set(port, open);
  await Promise.all(open.map((one) => one.opened));
  return open.slice(0, count);
}

async function flood(port: number, requests: readonly string[], count: number, milliseconds: number): Promise<Flood> {
  const connections = await connectionsTo(port, count);
  const delays: number[] = [];
  let [responses, refused, active] = [0, 0, count];
  const before = process.cpuUsage();
  const start = performance.now();
  await new Promise<void>((resolve) => {
    for (const [index, connection] of connections.entries()) {
      let next = index; // so that the connections do not all start with the same request
      let sentAt = 0;
      const send = (): void => {
        sentAt = performance.now();
        connection.send(requests[next % requests.length] as string);
        next += 1;
      };
      connection.onResponse = (response) => {
        const now = performance.now();
        responses += 1;
        if (count === 1) delays.push(now - sentAt);
        if (isRefusal(response)) refused += 1;
        if (now - start < milliseconds) return send();
        active -= 1;
        if (active === 0) resolve();
      };
      send();
    }
  });
  const seconds = (performance.now() - start) / 1000;
  const { user, system } = process.cpuUsage(before);
  return { responses, refused, seconds, busy: (user + system) / 1e6, delays };
}

async function pace(
  port: number,
  requests: readonly string[],
  count: number,
  maxPauseMs: number,
  fields?: string,
): Promise<Paced[]> {
  const results: Paced[] = [];
  for (let sent = 0; sent < count; sent += 1) {
    await sleep(maxPauseMs * Math.random());
    const request = requests[sent % requests.length] as string;
    const [connection] = await connectionsTo(port, 1);
    const sentAt = clock();
    const response = await (connection as Connection).exchange(request, fields);
    if (response !== null && isRefusal(response)) endWith('a queue was full');
    results.push({ request, sentAt, receivedAt: response === null ? null : clock() });
  }
  return results;
}

async function watch(port: number, count: number, changes: number): Promise<(number | null)[]> {
  const [actor, ...watchers] = (await connectionsTo(port, 1 + count)) as [Connection, ...Connection[]];
  const results: (number | null)[] = [];
  for (let change = 0; change < changes; change += 1) {
    const [tag, command] = change % 2 === 0 ? ['active', 'pause'] : ['paused', 'resume'];
    const told = watchers.map(async (watcher) => {
      const response = await watcher.exchange(STATUS, `If-None-Match: "${tag}"\r\n${WAIT}`);
      return response === null || isRefusal(response) ? null : clock();
    });
    await sleep(10 + 5 * Math.random()); // until all of them wait
    await actor.exchange(`POST /api/${command}`);
    results.push(...await Promise.all(told));
  }
  return results;
}

async function measureLength(port: number, request: string): Promise<number> {
  const [connection] = (await connectionsTo(port, 1)) as [Connection];
  return (await connection.exchange(request))?.length ?? NaN;
}

/** True for 503. Any other error makes the figures meaningless, and ends the benchmark. */
function isRefusal(response: string): boolean {
  const statusCode = response.slice('HTTP/1.1 '.length, 'HTTP/1.1 200'.length);
  if (statusCode !== '200' && statusCode !== '503') endWith(`a server responded with status code ${statusCode}`);
  return statusCode === '503';
}

function delayOf({ sentAt, receivedAt }: Paced): number {
  return receivedAt === null ? Infinity : receivedAt - sentAt;
}

// ───── Roles ─────────────────────────────────────────────────────────────────────────────────────────────────────

type RoleName = 'host' | 'minimal' | 'load' | 'steps' | 'calls';
type ServerKind = 'control.ts' | 'node:http';
type Behaviour = 'never-yields' | 'yields' | 'sleeps' | 'polls' | 'changes' | 'launched' | 'reports';

/** Runs the role that the environment names; without one, runs the benchmark. */
async function start(): Promise<void> {
  const role = process.env['BENCH_ROLE'] as RoleName | undefined;
  const args = process.argv.slice(2);
  if (role !== undefined) process.stdin.on('end', () => process.exit()).resume(); // the benchmark is gone
  switch (role) {
    case 'host': return runHost(args[0] as ServerKind, args[1] as Behaviour, Number(args[2]));
    case 'minimal': return runMinimal(Number(args[0]), Number(args[1]));
    case 'load': return runLoad();
    case 'steps': return runSteps(args[0] === 'asynchronous', args[1] === 'no web API' ? null : ['127.0.0.1', 0]);
    case 'calls': return runCalls();
    default: await run('control-bench', main);
  }
  if (children.size > 0) process.exit(); // a failed measurement leaves children behind
}

/** What a host uses of either server. */
interface CommandSource {
  hasCommands(): boolean;
  receiveCommand(): unknown;
  nextCommand(): Promise<unknown>;
}

let status = SystemStatus.ACTIVE; // of this host

/** Runs until it is killed. */
async function runHost(server: ServerKind, behaviour: Behaviour, iterations: number): Promise<void> {
  if (behaviour === 'launched') {
    const system = { step: () => compute(iterations, 1), saveState: () => {}, onListening: report };
    return launch(system, { webApiAddress: ['127.0.0.1', 0] });
  }
  const isSlow = behaviour === 'yields' || behaviour === 'never-yields';
  const maxQueueSize = isSlow ? DEFAULT_MAX_QUEUE_SIZE : MAX_SIZE;
  const source = await (server === 'control.ts' ? serveFromOwnThread(maxQueueSize) : serveFromHostThread(maxQueueSize));
  const receiveAll = (): void => {
    while (source.hasCommands()) source.receiveCommand();
  };
  switch (behaviour) {
    case 'sleeps': for (;;) await source.nextCommand();
    case 'polls': return void setInterval(receiveAll, 1);
    case 'changes': return void setInterval(() => {
      if (!source.hasCommands()) return;
      status = source.receiveCommand() === 'pause' ? SystemStatus.PAUSED : SystemStatus.ACTIVE;
      report({ at: clock() });
    }, 1);
    case 'reports': for (;;) {
      await source.nextCommand();
      report({ at: clock() });
    }
  }
  let value = 1;
  let reportAt = 0;
  for (let ticks = 1; ; ticks += 1) {
    value = compute(iterations, value);
    receiveAll();
    const at = clock();
    if (at >= reportAt) {
      report({ at, ticks });
      reportAt = at + REPORT_MS;
    }
    if (behaviour === 'yields') await nextTurn();
  }
}

async function serveFromOwnThread(maxQueueSize: number): Promise<WebApiServer> {
  const server = new WebApiServer({ systemStatus: () => status, port: 0, maxQueueSize });
  const { port } = await server.runInBackground();
  report({ port });
  return server;
}

/** Serves the same API from the host's thread, without any checks. */
async function serveFromHostThread(maxQueueSize: number): Promise<CommandSource> {
  const queue: string[] = [];
  const watchers: (() => void)[] = [];
  let published = status;
  let wakeUp = (): void => {};
  const server = createServer(({ method, url, headers }, response) => {
    const send = (statusCode: number, value: object): void => {
      const body = JSON.stringify(value);
      response.writeHead(statusCode, { 'Content-Type': 'application/json', 'Content-Length': body.length }).end(body);
    };
    if (method === 'GET' && url === '/api/status') {
      const tell = (): void => send(200, { status: status.statusName });
      return headers['if-none-match'] === `"${published.statusName}"` ? void watchers.push(tell) : tell();
    }
    const command = method === 'POST' && /^\/api\/(pause|resume)$/.exec(url ?? '')?.[1];
    if (!command) return send(404, { error: 'Invalid API endpoint' });
    if (queue.length >= maxQueueSize) return send(503, { error: 'Command queue is full, try again later' });
    queue.push(command);
    wakeUp();
    send(200, { result: 'ok' });
  });
  await listen(server);
  return {
    hasCommands: () => {
      if (status !== published) watchers.splice(0).forEach((tell) => tell());
      published = status;
      return queue.length > 0;
    },
    receiveCommand: () => queue.shift(),
    nextCommand: async () => {
      while (queue.length === 0) await new Promise<void>((resolve) => (wakeUp = resolve));
      return queue.shift();
    },
  };
}

/** Ignores the path, and pads its responses to the given lengths. */
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
  report({ port: (server.address() as AddressInfo).port });
}

/** Measures a step in a bare loop and in launch(), in nanoseconds. Half of the steps of a pass are the warm-up. */
async function runSteps(isAsynchronous: boolean, webApiAddress: readonly [string, number] | null): Promise<void> {
  const count = isAsynchronous ? CALLS : 10 * CALLS;
  const end = new Error('The last step');
  const processorTime = (): number => { // in microseconds; other processes do not count
    const { user, system } = process.cpuUsage();
    return user + system;
  };
  let [taken, start] = [0, 0];
  const work = (): void => {
    taken += 1;
    if (taken === count) start = processorTime();
    if (taken === 2 * count) throw end;
  };
  const step = isAsynchronous ? async () => work() : work;
  const loop = async (): Promise<never> => {
    if (isAsynchronous) for (;;) await step();
    for (;;) step();
  };
  const measure = async (act: () => Promise<void>): Promise<number> => {
    taken = 0;
    await act().catch((error) => {
      if (error !== end) throw error;
    });
    return (1e3 * (processorTime() - start)) / count;
  };
  let figures = { loop: Infinity, launch: Infinity };
  for (let pass = 0; pass < PASSES; pass += 1) {
    figures = {
      loop: Math.min(figures.loop, await measure(loop)),
      launch: Math.min(figures.launch, await measure(() => launch({ step }, { webApiAddress }))),
    };
  }
  report(figures);
}

/** Measures the calls on an empty queue, and those that receive what is on the queue after each line on stdin. */
async function runCalls(): Promise<void> {
  const server = await serveFromOwnThread(MAX_SIZE);
  const shifts = (MAX_SIZE * BATCHES) / 2;
  const arrays = Array.from({ length: (2 * shifts) / DEFAULT_MAX_QUEUE_SIZE }, () => {
    return Array<string>(DEFAULT_MAX_QUEUE_SIZE).fill('pause');
  });
  let array: string[] = [];
  let [has, length, loop] = [NO_CALLS, NO_CALLS, NO_CALLS];
  for (let pass = 0; pass < 2; pass += 1) { // in the second pass the loop is compiled for different functions
    has = measureCalls(CALLS, () => server.hasCommands());
    length = measureCalls(CALLS, () => array.length > 0);
    loop = measureCalls(CALLS, () => false);
  }
  const batches: Figures[] = [];
  while (batches.length < BATCHES) {
    report({ ready: 1 });
    await once(process.stdin, 'data');
    batches.push(makeCalls(MAX_SIZE, () => server.receiveCommand() === 'pause'));
  }
  const receive = mediansOf(batches.slice(BATCHES / 2)) as typeof NO_CALLS;
  const shift = measureCalls(shifts, () => {
    if (array.length === 0) array = arrays.pop() as string[];
    return array.shift() === 'pause';
  });
  for (const { nanoseconds, bytes } of [has, length, receive, shift]) {
    report({ nanoseconds: nanoseconds - loop.nanoseconds, bytes });
  }
}

const NO_CALLS = { nanoseconds: 0, bytes: 0 };

/** Calls the function `count` times to warm up, and as many times to measure. */
function measureCalls(count: number, call: () => boolean): typeof NO_CALLS {
  makeCalls(count, call);
  return makeCalls(count, call);
}

/** Returns what each call has taken. */
function makeCalls(count: number, call: () => boolean): typeof NO_CALLS {
  let yes = 0;
  const heapBefore = process.memoryUsage().heapUsed;
  const start = clock();
  for (let index = 0; index < count; index += 1) if (call()) yes += 1;
  const milliseconds = clock() - start;
  const bytes = process.memoryUsage().heapUsed - heapBefore;
  if (yes !== 0 && yes !== count) throw new Error('not all calls returned the same');
  return { nanoseconds: (1e6 * milliseconds) / count, bytes: bytes / count };
}

/** Writes synchronously, because a host may never yield. Ends the process if the benchmark is gone. */
function report(figures: unknown): void {
  try {
    writeSync(1, `${JSON.stringify(figures)}\n`);
  } catch {
    process.exit();
  }
}

void start();
