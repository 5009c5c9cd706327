// Measures what the remote control costs a program, compared with node:http: `npm run bench`.
//
// The programs run in processes of their own: this file again, with BENCH_PROGRAM set. This process sends the load.
// The machine is rarely quiet, so figures that are compared are measured in alternation, floods in slices of 100 ms.
// Ratios and differences are formed within a round.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, rmSync, writeSync } from 'node:fs';
import { createServer } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { availableParallelism, cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { launch, SystemStatus, WebApiServer } from '../../control.ts';
import { describeOptions, EXIT, parseInteger, parseOptions, run } from '../shared/cli.ts';

const OPTIONS = {
  rounds: { type: 'string', default: '3', value: 'N', help: 'number of rounds of about 90 seconds (default 3)' },
  json: { type: 'boolean', default: false, help: 'print the figures of each round as JSON' },
} as const;

const HELP = `
Usage: npm run bench -- [options]

Measures what the remote control costs a program, compared with node:http. Prints the medians of the rounds.

${describeOptions(OPTIONS)}
`;

const SLICE_MS = 100;
const [SLICES, WARM_UP_SLICES] = [20, 10]; // of a flood, per server and round; until then, both ends are compiled
const WARM_UP_MS = 300;
const LOAD_MS = 3000; // of a program whose latency is measured
const REPORT_MS = 20; // between two reports of a program that counts its steps
const WATCHERS = 40; // connections that wait for a change of status
const CHANGES = 100;
const CALLS = 10_000_000; // per pass, after as many for the warm-up
const STARTS = 5; // of each program in a round
const SETTLED_MS = 15_000; // after the start of a program, its heap has been tidied
const IDLE_MS = 10_000;

// ───── Figures ───────────────────────────────────────────────────────────────────────────────────────────────────

const [MINIMAL, OWN_THREAD] = ['a minimal node:http server', "node:http in the program's thread"];

/** What is measured, the units, and what it is compared with. */
const FIGURES = {
  throughput: ['GET, POST, and POST that wakes the program, per second over 32 connections', ['%'], MINIMAL],
  busy: ['p99 of GET and POST while the program computes and never yields', ['ms'], OWN_THREAD],
  steps: ['steps of 1 ms that the program keeps under flood by 32 connections', ['%'], OWN_THREAD],
  footprint: ['memory added, and start of the process to the first response', ['MB', 'ms'], MINIMAL],
  launch: ['step of `launch()`', ['ns'], 'a bare loop'],
  log: ['POST with the option `log`, per second over 32 connections', ['%'], 'POST without it'],
  hasCommands: ['`hasCommands()` while the queue is empty', ['ns'], '`array.length === 0`'],
  yields: ['p99 of GET and POST while the program computes and yields every 50 ms', ['ms'], OWN_THREAD],
  save: ['p50 and p99 of save-state until done; steps of 1 ms', ['ms'], `POST to ${OWN_THREAD}`],
  change: [`p50 and p99 from a change of status until ${WATCHERS} clients have it`, ['ms'], OWN_THREAD],
  idle: ['CPU of one core while idle', ['%'], MINIMAL],
} as const;

type Name = keyof typeof FIGURES;
type Figures = { [name in Name]?: readonly [controlTs: readonly number[], reference: readonly number[]] };

// ───── Measurements ──────────────────────────────────────────────────────────────────────────────────────────────

/** Floods a server without a program, a program that polls each millisecond, without and with a log, and a sleeper. */
async function throughput(round: number): Promise<Figures> {
  const [minimal, polls, logs, sleeps] = await inTurn(round, [ // the first to start has an advantage
    () => startProgram('node:http', 'sleeps'),
    () => startProgram('control.ts', 'polls'),
    () => startProgram('control.ts', 'logs'),
    () => startProgram('control.ts', 'sleeps'),
  ]);
  const [get, ourGet, post, ourPost, loggedPost, wakingPost] = await averageSlices(round, [
    () => flood(minimal, [STATUS]), () => flood(polls, [STATUS]),
    () => flood(minimal, [PAUSE]), () => flood(polls, [PAUSE]),
    () => flood(logs, [PAUSE]), () => flood(sleeps, [PAUSE]),
  ]);
  stop(minimal, polls, logs, sleeps);
  rmSync(logFolderOf(logs.process.pid), { recursive: true, force: true });
  return {
    throughput: [[100 * ourGet / get, 100 * ourPost / post, 100 * wakingPost / post], [100]],
    log: [[100 * loggedPost / ourPost], [100]],
  };
}

/** Sends requests to programs with steps of 50 ms, and commands to programs with steps of 1 ms. */
async function latency(round: number): Promise<Figures> {
  const measure = (server: Server, behavior: Behavior, stepMs: number, ...requests: string[]) => async () => {
    const program = await startProgram(server, behavior, stepMs);
    await load(program, 4, requests, WARM_UP_MS, 5);
    const delays = await load(program, 4, requests, LOAD_MS, 50);
    stop(program);
    return delays;
  };
  const [never, yields, reference, saves, commands] = await inTurn(round, [
    measure('control.ts', 'never yields', 50, STATUS, PAUSE),
    measure('control.ts', 'yields', 50, STATUS, PAUSE), measure('node:http', 'yields', 50, STATUS, PAUSE),
    measure('control.ts', 'launched', 1, SAVE), measure('node:http', 'yields', 1, PAUSE),
  ]);
  const p99s = (delays: readonly number[][]): number[] => delays.map((some) => quantile(some, 0.99));
  return {
    busy: [p99s(never), [Infinity]], // a server in the thread of such a program never responds
    yields: [p99s(yields), p99s(reference)],
    save: [quantiles(saves.flat()), quantiles(commands.flat())],
  };
}

/** Counts the steps of a program under flood, relative to a flood of another process that competes for the cores. */
async function steps(round: number): Promise<Figures> {
  const measure = (server: Server) => async () => {
    const [program, other] = [await startProgram(server, 'yields', 1), await startProgram('node:http', 'sleeps')];
    const [flooded, elsewhere] = await averageSlices(round, [
      () => stepsPerSecond(program, () => flood(program, [STATUS, PAUSE])),
      () => stepsPerSecond(program, () => flood(other, [STATUS, PAUSE])),
    ]);
    stop(program, other);
    return [100 * flooded / elsewhere];
  };
  return { steps: await inTurn(round, [measure('control.ts'), measure('node:http')]) };
}

/** Measures from a change of status, which a program publishes up to a millisecond later, until each client has it. */
async function changes(round: number): Promise<Figures> {
  const measure = (server: Server) => async () => {
    const program = await startProgram(server, 'polls');
    const [actor, ...watchers] = connectTo(program, 1 + WATCHERS) as [Exchange, ...Exchange[]];
    const delays: number[] = [];
    for (let change = 0; change < CHANGES; change += 1) {
      const [tag, command] = change % 2 === 0 ? ['active', 'pause'] : ['paused', 'resume'];
      const received = watchers.map(async (watcher) => {
        await watcher(requestOf('GET', 'status', `If-None-Match: "${tag}"`, 'Prefer: wait=5'));
        return clock();
      });
      await sleep(10 + 5 * Math.random()); // until all of them wait
      await actor(requestOf('POST', command));
      const { at } = await nthReport(program, change);
      delays.push(...(await Promise.all(received)).map((time) => time - at));
    }
    stop(program);
    return quantiles(delays.slice(delays.length / 10)); // after the warm-up
  };
  return { change: await inTurn(round, [measure('control.ts'), measure('node:http')]) };
}

/** Lets programs measure their own calls. launch() has a process to itself: a second server slows down its calls. */
async function calls(round: number): Promise<Figures> {
  const measure = (server: Server) => async () => {
    const program = await startProgram(server, 'measures calls');
    const { nanoseconds } = await nthReport(program, 0);
    stop(program);
    return nanoseconds as [number, number, number];
  };
  const [[step, loop], [commands, array, bare]] = await inTurn(round, [measure('node:http'), measure('control.ts')]);
  return { launch: [[step], [loop]], hasCommands: [[commands - bare], [array - bare]] };
}

/** Starts programs that only run a server, or nothing. */
async function footprint(round: number): Promise<Figures> {
  const start = (source: string) => async () => {
    const startedAt = clock();
    const program = await startProcess(['--input-type=module', '--eval', source]);
    if (program.port !== 0) await connectTo(program, 1)[0]?.(STATUS);
    const duration = clock() - startedAt;
    const { memory } = await nthReport(program, 0);
    return async () => {
      const [before, after] = [await nthReport(program, 1), await nthReport(program, 2)];
      stop(program);
      return [memory / 1024 / 1024, duration, 100 * (cpuMs(after) - cpuMs(before)) / IDLE_MS];
    };
  };
  const runs: (() => Promise<number[]>)[][] = [];
  while (runs.length < STARTS) runs.push(await inTurn(round + runs.length, SOURCES.map(start)));
  const figures = await Promise.all(runs.map((run) => Promise.all(run.map((finish) => finish()))));
  const median = (program: number, figure: number): number => {
    return quantile(figures.map((run) => run[program]?.[figure] as number), 0.5);
  };
  const added = (program: number): number[] => [median(program, 0) - median(2, 0), median(program, 1)];
  return { footprint: [added(0), added(1)], idle: [[median(0, 2)], [median(1, 2)]] };
}

// ───── Rounds and tables ─────────────────────────────────────────────────────────────────────────────────────────

let iterationsPerMs = 0; // of compute()

async function main(): Promise<number> {
  const parsed = parseOptions(OPTIONS, HELP);
  if (parsed === null) return EXIT.DONE;
  const count = parseInteger('--rounds', parsed.values.rounds, 1, 1000);
  for (let pass = 0; pass < 20; pass += 1) { // the first ones are slower, until compute() is optimized
    const start = cpuMs();
    compute(1e7, pass);
    iterationsPerMs = Math.max(iterationsPerMs, Math.round(1e7 / (cpuMs() - start)));
  }
  const rounds: Figures[] = [];
  while (rounds.length < count) {
    const figures: Figures = {};
    for (const measure of [throughput, latency, steps, changes, calls, footprint]) {
      console.error(`round ${rounds.length + 1} of ${count}: ${measure.name}`);
      Object.assign(figures, await measure(rounds.length));
    }
    rounds.push(figures);
  }
  const cpu = `${availableParallelism()} cores of ${cpus()[0]?.model.trim()}`;
  const machine = `Node ${process.versions.node}, ${cpu}, ${new Date().toISOString().slice(0, 10)}`;
  if (parsed.values.json) console.log(JSON.stringify({ machine, rounds }));
  else printTables(rounds, machine);
  return EXIT.DONE;
}

function printTables(rounds: readonly Figures[], machine: string): void {
  console.log(`| ${machine}; medians of ${rounds.length} rounds | control.ts | compared with |\n|---|---|---|`);
  const spreads: string[] = [];
  for (const [index, name] of (Object.keys(FIGURES) as Name[]).entries()) {
    const [what, units, reference] = FIGURES[name];
    let spread = 0;
    const [ours, theirs] = ([0, 1] as const).map((side) => rounds[0]?.[name]?.[side].map((_, place) => {
      const values = rounds.map((figures) => figures[name]?.[side][place] as number);
      const [least, median, most] = [0, 0.5, 1].map((share) => quantile(values, share)) as [number, number, number];
      if (side === 0) spread = Math.max(spread, (most - least) / median);
      const digits = median >= 30 ? 0 : median >= 1 ? 1 : 2;
      return median === Infinity ? 'no response' : `${median.toFixed(digits)} ${units[place] ?? units[0]}`;
    }).join(', '));
    if (index < 5) console.log(`| ${what} | ${ours} | ${theirs}: ${reference} |`);
    else console.log(`${index === 5 ? '\n' : ''}${what.padEnd(72)} ${ours?.padEnd(18)} ${theirs}: ${reference}`);
    spreads.push(`${name} ${(100 * spread).toFixed(0)} %`);
  }
  if (rounds.length > 1) console.log(`\nRange of the rounds, relative to the median: ${spreads.join(', ')}`);
}

function quantile(values: readonly number[], share: number): number {
  return [...values].sort((a, b) => a - b)[Math.round(share * (values.length - 1))] ?? NaN;
}

const quantiles = (values: readonly number[]): number[] => [quantile(values, 0.5), quantile(values, 0.99)];

// ───── Processes ─────────────────────────────────────────────────────────────────────────────────────────────────

/** What a program writes to stdout as lines of JSON: a time and the steps done by then, bytes, microseconds, … */
type Report = Record<'port' | 'at' | 'steps' | 'memory' | 'user' | 'system', number> & { nanoseconds: number[] };

interface Child extends Awaited<ReturnType<typeof startProcess>> {}

async function startProcess(args: readonly string[], env: NodeJS.ProcessEnv = process.env) {
  const child = spawn(process.execPath, args, { stdio: ['pipe', 'pipe', 'inherit'], env });
  child.on('exit', () => { if (!child.killed) throw new Error('a program ended unexpectedly'); });
  const reports: Report[] = [];
  const lines = createInterface(child.stdout).on('line', (line) => reports.push(JSON.parse(line)));
  await once(lines, 'line');
  const { port } = reports.shift() as Report;
  return { port, connections: [] as Exchange[], reports, lines, process: child };
}

function startProgram(server: Server, behavior: Behavior, stepMs: number = 0): Promise<Child> {
  const args = [process.argv[1] as string, server, behavior, String(stepMs * iterationsPerMs)];
  return startProcess(args, { ...process.env, BENCH_PROGRAM: '1' });
}

async function nthReport({ reports, lines }: Child, index: number): Promise<Report> {
  while (reports.length <= index) await once(lines, 'line');
  return reports[index] as Report;
}

function stop(...children: readonly Child[]): void {
  for (const child of children) child.process.kill('SIGKILL'); // a program that never yields handles no other signal
}

/** Writes synchronously, because a program may never yield. Throws when the benchmark is gone. */
function report(value: Partial<Report>): void {
  writeSync(1, `${JSON.stringify(value)}\n`);
}

const clock = (): number => Number(process.hrtime.bigint()) / 1e6; // milliseconds, the same in all processes

/** Runs the tasks one after the other, in an order that depends on the turn. Returns the results in task order. */
async function inTurn<T extends readonly (() => Promise<unknown>)[]>(turn: number, tasks: readonly [...T]) {
  const results: unknown[] = [];
  for (let count = 0; count < tasks.length; count += 1) {
    const index = (turn + (turn % 2 === 0 ? count : tasks.length - count)) % tasks.length;
    results[index] = await tasks[index]?.();
  }
  return results as { [Index in keyof T]: Awaited<ReturnType<T[Index]>> };
}

/** Runs the tasks in alternation, several times, and averages the results of each. */
async function averageSlices<T extends readonly (() => Promise<number>)[]>(round: number, tasks: readonly [...T]) {
  const totals = tasks.map(() => 0);
  for (let slice = 0; slice < WARM_UP_SLICES + SLICES; slice += 1) {
    const results: readonly number[] = await inTurn(round + slice, tasks);
    if (slice >= WARM_UP_SLICES) results.forEach((result, task) => (totals[task] = (totals[task] as number) + result));
  }
  return totals.map((total) => total / SLICES) as { [Index in keyof T]: number };
}

// ───── The load ──────────────────────────────────────────────────────────────────────────────────────────────────

function requestOf(method: string, resource: string, ...fields: readonly string[]): string {
  const lines = [`${method} /api/${resource} HTTP/1.1`, 'Host: localhost', 'Content-Length: 0', ...fields];
  return `${lines.join('\r\n')}\r\n\r\n`;
}

const STATUS = requestOf('GET', 'status');
const PAUSE = requestOf('POST', 'pause');
const SAVE = requestOf('POST', 'save-state', 'Prefer: wait=5');

/** Sends a request over a keep-alive connection. Returns whether it succeeded. */
type Exchange = (request: string) => Promise<boolean>;

/** Connects with a raw socket, which costs less than an HTTP client. */
function openConnection(port: number): Exchange {
  const socket = connect({ port, host: '127.0.0.1', noDelay: true }).setEncoding('latin1').on('error', () => {});
  let text = '';
  let receive = (_isOk: boolean): void => {};
  socket.on('data', (chunk: string) => {
    text += chunk;
    if (!text.endsWith('}')) return; // every body is a JSON object
    const isOk = text.startsWith('HTTP/1.1 200 ');
    text = '';
    receive(isOk);
  });
  return (request) => {
    socket.write(request);
    return new Promise((resolve) => (receive = resolve));
  };
}

/** Returns the connections to a program, and opens those that are missing. */
function connectTo({ port, connections }: Child, count: number): readonly Exchange[] {
  while (connections.length < count) connections.push(openConnection(port));
  return connections;
}

/** Sends requests in turn, after random pauses. Returns the milliseconds until each response, by request. */
async function load(program: Child, connections: number, requests: readonly string[], forMs: number, maxPauseMs = 0) {
  const delays = requests.map((): number[] => []);
  const end = clock() + forMs;
  await Promise.all(connectTo(program, connections).map(async (exchange, index) => {
    for (let next = index; clock() < end; next += 1) {
      if (maxPauseMs > 0) await sleep(maxPauseMs * Math.random());
      const start = clock();
      const isOk = await exchange(requests[next % requests.length] as string);
      if (isOk) delays[next % requests.length]?.push(clock() - start); // otherwise its queue was full
    }
  }));
  return delays;
}

/** Keeps a request in flight on each of 32 connections, for a slice. Returns the responses per second. */
async function flood(program: Child, requests: readonly string[]): Promise<number> {
  const start = clock();
  const delays = await load(program, 32, requests, SLICE_MS);
  return 1000 * delays.flat().length / (clock() - start);
}

/** Measures the steps per second of a program during an action, interpolated between its reports. */
async function stepsPerSecond({ reports, lines }: Child, act: () => Promise<unknown>): Promise<number> {
  const start = clock();
  await act();
  const end = clock();
  while ((reports.at(-1)?.at ?? 0) < end) await once(lines, 'line');
  const stepsAt = (time: number): number => {
    const index = reports.findIndex(({ at }) => at >= time);
    const [before, after] = [reports[index - 1], reports[index]] as [Report, Report];
    return before.steps + (after.steps - before.steps) * (time - before.at) / (after.at - before.at);
  };
  return 1000 * (stepsAt(end) - stepsAt(start)) / (end - start);
}

// ───── Programs ──────────────────────────────────────────────────────────────────────────────────────────────────

type Server = 'control.ts' | 'node:http';
type Behavior = 'polls' | 'logs' | 'sleeps' | 'yields' | 'never yields' | 'launched' | 'measures calls';

let status = SystemStatus.ACTIVE;
const logFolderOf = (pid: number | undefined): string => join(tmpdir(), `runtime-control-bench-${pid}`);

/** Runs until it is killed. */
async function runProgram(server: string, behavior: string, iterations: string): Promise<void> {
  let value = 1;
  const step = (): void => void (value = compute(Number(iterations), value));
  if (behavior === 'launched') {
    return launch({ step, saveState: () => {}, onListening: report }, { webApiAddress: ['127.0.0.1', 0] });
  }
  const source = await (server === 'control.ts' ? serveFromOwnThread(behavior === 'logs') : serveFromThisThread());
  if (behavior === 'measures calls') return measureCalls(source instanceof WebApiServer ? source : null);
  if (behavior === 'sleeps' && source instanceof WebApiServer) for (;;) handle(await source.nextCommand());
  if (behavior === 'sleeps') return;
  const handleAll = (): void => { while (source.hasCommands()) handle(source.receiveCommand()); };
  if (behavior === 'polls' || behavior === 'logs') return void setInterval(handleAll, 1);
  for (let [steps, reportAt] = [1, 0]; ; steps += 1) {
    step();
    handleAll();
    const at = clock();
    if (at >= reportAt) {
      report({ at, steps });
      reportAt = at + REPORT_MS;
    }
    if (behavior === 'yields') await nextTurn();
  }
}

function handle(command: string | undefined): void {
  const next = command === 'pause' ? SystemStatus.PAUSED : SystemStatus.ACTIVE;
  if (next === status) return;
  status = next;
  report({ at: clock() });
}

async function serveFromOwnThread(logs: boolean): Promise<WebApiServer> {
  const folder = logFolderOf(process.pid);
  if (logs) mkdirSync(folder, { mode: 0o700 });
  const log = logs ? join(folder, 'log.jsonl') : undefined;
  const server = new WebApiServer({ systemStatus: () => status, host: '127.0.0.1', port: 0, maxQueueSize: 1000, log });
  report({ port: (await server.runInBackground()).port });
  return server;
}

/** Serves the same API with as many header fields, but checks nothing. */
async function serveFromThisThread() {
  const queue: string[] = [];
  const waiting: (() => void)[] = [];
  let published = status;
  const server = createServer(({ method, url = '', headers }, response) => {
    const send = (body: string): void => void response.writeHead(200, {
      'Cache-Control': 'no-store', 'Cross-Origin-Resource-Policy': 'same-origin', ETag: '"active"',
      'X-Content-Type-Options': 'nosniff', 'Content-Type': 'application/json', 'Content-Length': body.length,
    }).end(body);
    const sendStatus = (): void => send(`{"status":"${status}"}`);
    if (method === 'POST') {
      queue.push(url.slice('/api/'.length));
      send('{"result":"ok"}');
    } else if (headers['if-none-match'] === `"${published}"`) waiting.push(sendStatus);
    else sendStatus();
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  report({ port: (server.address() as AddressInfo).port });
  return {
    hasCommands: (): boolean => {
      if (status !== published) waiting.splice(0).forEach((sendStatus) => sendStatus());
      published = status;
      return queue.length > 0;
    },
    receiveCommand: () => queue.shift(),
  };
}

/** One step. It has a fixed number of iterations, not a fixed duration: a program that is preempted completes fewer. */
function compute(iterations: number, seed: number): number {
  let value = seed;
  for (let iteration = 0; iteration < iterations; iteration += 1) value = (Math.imul(value, 31) + iteration) | 0;
  return value;
}

/** Reports the nanoseconds per step of each loop, in its fastest pass. */
async function measureCalls(server: WebApiServer<any> | null): Promise<void> {
  const [queue, end]: [string[], Error] = [[], new Error('the last step')];
  let [taken, start] = [0, 0];
  const step = (): void => {
    taken += 1;
    if (taken === CALLS) start = cpuMs(); // after the warm-up
    if (taken === 2 * CALLS) throw end;
  };
  const bare = async (): Promise<void> => { for (;;) step(); };
  const loops = server === null ? [() => launch({ step }, { webApiAddress: ['127.0.0.1', 0] }), bare] : [
    async () => { for (;;) if (!server.hasCommands()) step(); },
    async () => { for (;;) if (queue.length === 0) step(); }, bare,
  ];
  const nanoseconds = loops.map(() => Infinity);
  for (let pass = 0; pass < 3 * loops.length; pass += 1) {
    const index = pass % loops.length;
    taken = 0;
    await loops[index]?.().catch((error) => { if (error !== end) throw error; });
    nanoseconds[index] = Math.min(nanoseconds[index] ?? NaN, 1e6 * (cpuMs() - start) / CALLS);
  }
  report({ nanoseconds });
}

/** CPU time: other processes do not count. */
const cpuMs = ({ user, system }: NodeJS.CpuUsage = process.cpuUsage()): number => (user + system) / 1000;

/** Source text, because the imports of this file would add to the footprint. Its directory is .dev. */
const SOURCES = [
  ['../dist/control.js', `
    const systemStatus = () => module.SystemStatus.ACTIVE;
    const server = new module.WebApiServer({ systemStatus, host: '127.0.0.1', port: 0 });
    ready((await server.runInBackground()).port);`],
  ['node:http', `
    const server = module.createServer((request, response) => {
      response.writeHead(200, { 'Content-Type': 'application/json', 'Content-Length': 19 }).end('{"status":"active"}');
    }).listen(0, '127.0.0.1', () => ready(server.address().port));`],
  ['node:process', 'ready(0);'],
].map(([specifier = '', program]) => `
  const module = await import('${new URL(specifier, import.meta.url)}');
  const report = () => console.log(JSON.stringify({ memory: process.memoryUsage.rss(), ...process.cpuUsage() }));
  const ready = (port) => {
    console.log(JSON.stringify({ port }));
    for (const ms of ${JSON.stringify([WARM_UP_MS, SETTLED_MS, SETTLED_MS + IDLE_MS])}) setTimeout(report, ms);
  };
  process.stdin.on('end', () => process.exit()).resume();
  ${program}`);

if (process.env['BENCH_PROGRAM']) {
  process.stdin.on('end', () => process.exit()).resume(); // the benchmark is gone
  await runProgram(...process.argv.slice(2) as [string, string, string]);
} else {
  await run('bench', main);
  process.exit(); // after a failure, programs still run
}
