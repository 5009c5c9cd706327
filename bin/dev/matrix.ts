// Runs control.ts wherever it is meant to run, and shows where it works: `npm run matrix`.
//
// In each cell a small host uses the module in the way that the cell's name says. At first it computes for two seconds
// without yielding. Meanwhile it is asked how it is, paused and resumed; later it is paused, resumed and shut down
// again, all by WebApiClient. It must have found the first two commands on its queue as soon as it was done with
// computing, and end with exit code 0. Three groups are other: hosts that mount the routes yield in place of computing,
// consumers in TypeScript are only compiled, and where the module cannot work it must say why.
//
// The file reads from the top down: tools, hosts, cells, how they are run, what is printed.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFile, mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { availableParallelism, tmpdir } from 'node:os';
import { delimiter, join, resolve } from 'node:path';
import { EXIT, UsageError, parseOptions, parseText, run } from '../shared/options.ts';
import { freePort } from '../test/helpers.ts';
import { SystemStatus, VERSION, WebApiClient } from '../../control.ts';
import type { ControlCommand } from '../../control.ts';

const HELP = `
Usage: npm run matrix -- [options] [words …]

Runs control.ts in other runtimes, bundlers, test runners, processes and compilers, and shows where it works. With
words: only in the cells that have them all in "group: name". Installs tools from the npm registry for that: 2 GB in a
temporary folder. Takes about four minutes.

  --in FOLDER  install the tools in that folder, new or of an earlier run, and leave them there for the next one
  --json       print the results as JSON: group, name, passes, reason
  -h, --help   show this
  --version    show the version

Exit codes: 0 all cells pass, 1 a cell fails, 2 wrong usage.
`;

const MARK = '.control-matrix'; // a file in the folders that were made here
const LIMIT_MS = 300_000; // for an installation, a build, a host

const interruption = new AbortController(); // of everything, by a signal

// ───── Tools ─────────────────────────────────────────────────────────────────────────────────────────────────────

const NODE = `node-${process.platform}-${process.arch}`; // the package that holds nothing but the program

/** What npm installs, by the folder where it does. The cells are folders below. */
const TOOLS = {
  none: [],
  node: ['18', '20.19.0', '22.18.0', '22', '24', '26'].map((version) => `node-${version}@npm:${NODE}@${version}`),
  deno: ['deno@2'],
  bun: ['bun@1'],
  tsx: ['tsx@4'],
  bundlers: [
    'esbuild@0.28', 'rollup@4', 'rollup-plugin-esbuild@6', '@rollup/plugin-terser@1', 'webpack@5', 'webpack-cli@7',
    'ts-loader@9', 'typescript@6', 'vite@8', 'postject@1.0.0-alpha.6',
  ],
  babelJest: [
    'jest@30', 'babel-jest@30', '@babel/core@7', '@babel/preset-env@7', '@babel/preset-typescript@7', 'esbuild@0.28',
  ],
  tsJest: ['jest@30', 'ts-jest@29', 'typescript@6'],
  vitest: ['vitest@5', '@vitest/coverage-istanbul@5', '@vitest/coverage-v8@5'],
  c8: ['c8@12'],
  frameworks: ['express@5', 'express-4@npm:express@4', 'fastify@5', 'koa@3'],
  compilers: [
    ...['5.8', '5.9', '6', '7'].map((version) => `typescript-${version}@npm:typescript@${version}`), '@types/node@20',
  ],
  compiler24: ['typescript-7@npm:typescript@7', '@types/node@24'],
  compiler26: ['typescript-7@npm:typescript@7', '@types/node@26'],
} as const satisfies Record<string, readonly string[]>;

// ───── Hosts ─────────────────────────────────────────────────────────────────────────────────────────────────────

// Valid in JavaScript and TypeScript, in modules and scripts. The beginning of a host defines start() and compute().
const MAIN = `
const { ACTIVE, PAUSED, RESUMING, SHUTTING_DOWN } = SystemStatus;

async function main() {
  let status = RESUMING;
  const server = new WebApiServer({ systemStatus: () => status, port: Number(process.env['PORT']) });
  const listener = start(server);
  await compute();
  const commands = [];
  while (server.hasCommands()) commands.push(server.receiveCommand());
  await new Promise((resolve) => setTimeout(resolve, 50)); // if start() has failed, it says so first
  if (String(commands) !== 'pause,resume') throw new Error('While it computed it got: ' + commands);
  status = ACTIVE;
  while (status !== SHUTTING_DOWN) {
    switch (await server.nextCommand()) {
      case 'pause': status = PAUSED; break;
      case 'resume': status = ACTIVE; break;
      case 'shutdown': status = SHUTTING_DOWN; break;
    }
  }
  await server.close();
  listener?.close();
}

function fail({ message }) {
  console.error(message);
  process.exit(1);
}
`;

const BACKGROUND = `
function start(server) {
  server.runInBackground().catch(fail); // not awaited: the thread starts all the same
}

function compute() {
  for (const end = performance.now() + 2000; performance.now() < end;);
}
${MAIN}`;

const importing = (from: string): string => `import { SystemStatus, WebApiServer } from '${from}';\n${BACKGROUND}`;
const requiring = (from: string): string => {
  return `const { SystemStatus, WebApiServer } = require('${from}');\n${BACKGROUND}`;
};
const RUN = 'main().catch(fail);\n';
const TEST = "test('a host under control', main, 60_000);\n";

/** A host that starts itself once more, elsewhere, and ends as that does. */
const elsewhere = (imports: string, isHere: string, start: string): string => `
${imports}
${importing(PACKAGE)}
if (${isHere}) ${start}.on('exit', (code) => (process.exitCode = code ?? 1));
else main().catch(fail).finally(() => process.disconnect?.());
`;

/** A host that has an HTTP server of its own, and so can answer only while it yields. */
const mounting = (imports: string, listen: string): string => `
import { SystemStatus, WebApiServer } from 'runtime-control';
${imports}

const port = Number(process.env.PORT);
const start = ({ handler }) => ${listen};
const compute = () => new Promise((resolve) => setTimeout(resolve, 2000));
${MAIN}
${RUN}`;

const SOURCE = './control.ts';
const PACKAGE = 'runtime-control';

// ───── Cells ─────────────────────────────────────────────────────────────────────────────────────────────────────

interface Cell {
  name: string;
  /** What is installed for it. */
  tools: keyof typeof TOOLS;
  /** The release of Node that runs it, unless it is the one that runs this. */
  node?: string;
  /** Its files, beside control.ts. */
  files: Record<string, string>;
  /** Shell commands that come before, one after the other. */
  builds?: readonly string[];
  /** The shell command that runs the host, unless building is all. */
  host?: string;
  /** What the host must say where it cannot work. */
  says?: RegExp;
}

const IMPORTED = { 'package.json': '{ "type": "module" }', 'host.ts': importing(SOURCE) + RUN };
const PACKAGED = { 'host.mjs': importing(PACKAGE) + RUN, 'host.cjs': requiring(PACKAGE) + RUN };
const DENO = 'deno run --allow-net --allow-env';

const COPIED: Cell[] = [
  ...['22.18.0', '22', '24', '26'].map((node): Cell => {
    return { name: `Node ${node}`, tools: 'node', node, files: IMPORTED, host: 'node host.ts' };
  }),
  { name: 'Deno 2, --allow-net', tools: 'deno', files: IMPORTED, host: `${DENO} host.ts` },
  { name: 'Bun 1', tools: 'bun', files: IMPORTED, host: 'bun host.ts' },
  { name: 'tsx', tools: 'tsx', files: IMPORTED, host: 'tsx host.ts' },
];

const INSTALLED: Cell[] = [
  ...['20.19.0', '22', '24', '26'].flatMap((node): Cell[] => [
    { name: `Node ${node}, import`, tools: 'node', node, files: PACKAGED, host: 'node host.mjs' },
    { name: `Node ${node}, require()`, tools: 'node', node, files: PACKAGED, host: 'node host.cjs' },
  ]),
  { name: 'Deno 2', tools: 'deno', files: PACKAGED, host: `${DENO} --allow-read host.mjs` },
  { name: 'Bun 1', tools: 'bun', files: PACKAGED, host: 'bun host.mjs' },
];

const ESBUILD = 'esbuild host.ts --bundle --platform=node --log-level=error';
const FUSE = 'NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2'; // what postject looks for, as Node's documentation says

const BUNDLED: Cell[] = [
  ...[
    ['ESM', '--format=esm --outfile=out.mjs'],
    ['CommonJS', '--format=cjs --outfile=out.cjs'],
    ['ESM, minified, keepNames', '--format=esm --minify --keep-names --outfile=out.mjs'],
    ['CommonJS, minified, keepNames', '--format=cjs --minify --keep-names --outfile=out.cjs'],
    ['ESM, es2022, keepNames', '--format=esm --target=es2022 --keep-names --outfile=out.mjs'],
    ['CommonJS, es2017, minified, keepNames',
      '--format=cjs --target=es2017 --minify --keep-names --outfile=out.cjs'],
  ].map(([what, options]): Cell => ({
    name: `esbuild: ${what}`, tools: 'bundlers', files: IMPORTED,
    builds: [`${ESBUILD} ${options}`],
    host: 'node out.*js',
  })),
  ...[['rollup', ''], ['rollup, minified by terser', 'terser()']].map(([name = '', plugin]): Cell => ({
    name,
    tools: 'bundlers',
    files: {
      ...IMPORTED,
      'rollup.config.js': `
        import terser from '@rollup/plugin-terser';
        import esbuild from 'rollup-plugin-esbuild';
        export default {
          input: 'host.ts', external: /^node:/, plugins: [esbuild(), ${plugin}],
          output: { file: 'out.js', format: 'es' },
        };`,
    },
    builds: ['rollup --config --silent'],
    host: 'node out.js',
  })),
  ...['development', 'production'].map((mode): Cell => ({
    name: `webpack, ${mode}`,
    tools: 'bundlers',
    files: {
      ...IMPORTED,
      'tsconfig.json': `{
        "compilerOptions": {
          "module": "nodenext", "target": "es2022", "types": [], "rewriteRelativeImportExtensions": true
        }
      }`,
      'webpack.config.cjs': `module.exports = {
        mode: '${mode}', entry: './host.ts', target: 'node', output: { path: __dirname, filename: 'out.cjs' },
        resolve: { extensionAlias: { '.js': ['.ts', '.js'] } },
        module: { rules: [{ test: /\\.ts$/, loader: 'ts-loader', options: { transpileOnly: true } }] },
      };`,
    },
    builds: ['webpack'],
    host: 'node out.cjs',
  })),
  {
    name: 'vite, SSR', tools: 'bundlers', files: IMPORTED,
    builds: ['vite build --ssr host.ts --outDir out --logLevel error'],
    host: 'node out/host.js',
  },
  {
    name: 'vite, library, minified',
    tools: 'bundlers',
    files: {
      ...IMPORTED,
      'host.mjs': importing('./out/library.js') + RUN,
      'vite.config.js': `export default {
        build: {
          lib: { entry: 'control.ts', formats: ['es'], fileName: 'library' }, outDir: 'out', minify: true,
          rollupOptions: { external: /^node:/ },
        },
      };`,
    },
    builds: ['vite build --logLevel error'],
    host: 'node host.mjs',
  },
  {
    name: 'bun build, minified, for Node', tools: 'bun', files: IMPORTED,
    builds: ['bun build host.ts --target=node --minify --outfile=out.mjs'],
    host: 'node out.mjs',
  },
  {
    name: 'bun build --compile', tools: 'bun', files: IMPORTED,
    builds: ['bun build host.ts --compile --minify --outfile=out'],
    host: './out',
  },
  {
    name: 'Node, single executable application',
    tools: 'bundlers',
    files: { ...IMPORTED, 'sea.json': '{ "main": "out.cjs", "output": "out.blob" }' },
    builds: [
      `${ESBUILD} --format=cjs --outfile=out.cjs`,
      'node --experimental-sea-config sea.json',
      'cp "$(command -v node)" out',
      `postject out NODE_SEA_BLOB out.blob --sentinel-fuse ${FUSE}`,
    ],
    host: './out',
  },
];

const BABEL = `["babel-jest", {
  "presets": [["@babel/preset-env", { "targets": { "node": "20" } }], "@babel/preset-typescript"]
}]`;
const BABEL_JEST = {
  'package.json': `{ "jest": { "transform": { "\\\\.ts$": ${BABEL} } } }`,
  'host.test.ts': importing(SOURCE) + TEST,
};
const TS_JEST = {
  'package.json': '{ "jest": { "preset": "ts-jest" } }',
  'tsconfig.json': `{
    "compilerOptions": {
      "module": "commonjs", "moduleResolution": "node10", "ignoreDeprecations": "6.0", "target": "es2022",
      "isolatedModules": true, "allowImportingTsExtensions": true, "noEmit": true
    }
  }`,
  'host.test.ts': importing(SOURCE) + TEST,
};
const VITEST = {
  'package.json': '{ "type": "module" }',
  'host.test.ts': `import { test } from 'vitest';\n${importing(SOURCE)}${TEST}`,
};

const TESTED: Cell[] = [
  { name: 'jest', tools: 'babelJest', files: BABEL_JEST, host: 'jest' },
  { name: 'jest --coverage (istanbul)', tools: 'babelJest', files: BABEL_JEST, host: 'jest --coverage' },
  {
    name: 'jest --coverage (v8)', tools: 'babelJest', files: BABEL_JEST, host: 'jest --coverage --coverageProvider=v8',
  },
  { name: 'jest --coverage (istanbul), ts-jest', tools: 'tsJest', files: TS_JEST, host: 'jest --coverage' },
  ...[
    ['vitest', ''],
    ['vitest --pool=threads', '--pool=threads'],
    ['vitest --coverage (istanbul)', '--coverage.enabled --coverage.provider=istanbul'],
    ['vitest --coverage (v8)', '--coverage.enabled --coverage.provider=v8'],
  ].map(([name = '', options]): Cell => {
    return { name, tools: 'vitest', node: '24', files: VITEST, host: `vitest run ${options}` };
  }),
  { name: 'c8', tools: 'c8', files: PACKAGED, host: 'c8 --all node host.mjs' },
];

const THREAD = elsewhere(
  "import { Worker, isMainThread } from 'node:worker_threads';", 'isMainThread', 'new Worker(new URL(import.meta.url))',
);
const CLUSTER = elsewhere("import cluster from 'node:cluster';", 'cluster.isPrimary', 'cluster.fork()');
const FORK = elsewhere("import { fork } from 'node:child_process';", '!process.send', 'fork(new URL(import.meta.url))');

const PLACED: Cell[] = [
  { name: 'in a worker thread', tools: 'none', files: { 'host.mjs': THREAD }, host: 'node host.mjs' },
  { name: 'in a cluster worker', tools: 'none', files: { 'host.mjs': CLUSTER }, host: 'node host.mjs' },
  { name: 'in a child process of fork()', tools: 'none', files: { 'host.mjs': FORK }, host: 'node host.mjs' },
  ...[
    ['20.19.0', '--experimental-permission --allow-worker'],
    ['24', '--permission --allow-worker'],
    ['26', '--permission --allow-worker'],
  ].map(([node = '', flags]): Cell => ({
    name: `Node ${node}, ${flags}`, tools: 'node', node, files: PACKAGED,
    host: `node ${flags} --allow-fs-read='*' host.mjs`,
  })),
];

const HTTP = mounting("import { createServer } from 'node:http';", "createServer(handler).listen(port, 'localhost')");

const MOUNTED: Cell[] = [
  { name: 'node:http', tools: 'none', files: { 'host.mjs': HTTP }, host: 'node host.mjs' },
  { name: 'node:http of Deno 2', tools: 'deno', files: { 'host.mjs': HTTP }, host: `${DENO} --allow-read host.mjs` },
  { name: 'node:http of Bun 1', tools: 'bun', files: { 'host.mjs': HTTP }, host: 'bun host.mjs' },
  ...[
    ['Express 5', 'express', '/api/{*path}'], ['Express 4', 'express-4', '/api/*'],
  ].map(([name = '', from, path]): Cell => ({
    name,
    tools: 'frameworks',
    files: {
      'host.mjs': mounting(`import express from '${from}';`,
        `express().use(express.json()).all('${path}', handler).listen(port, 'localhost')`),
    },
    host: 'node host.mjs',
  })),
  {
    name: 'Fastify 5',
    tools: 'frameworks',
    files: {
      'host.mjs': mounting("import fastify from 'fastify';", `{
        const app = fastify();
        app.all('/api/*', (request, reply) => {
          reply.hijack();
          handler(request.raw, reply.raw);
        });
        app.listen({ port, host: 'localhost' });
        return app;
      }`),
    },
    host: 'node host.mjs',
  },
  {
    name: 'Koa 3',
    tools: 'frameworks',
    files: {
      'host.mjs': mounting("import Koa from 'koa';", `{
        const app = new Koa();
        app.use((context) => {
          context.respond = false;
          handler(context.req, context.res);
        });
        return app.listen(port, 'localhost');
      }`),
    },
    host: 'node host.mjs',
  },
];

const consuming = (from: string): string => `
import { createServer } from 'node:http';
import {
  DEFAULT_HOST, DEFAULT_MAX_QUEUE_SIZE, DEFAULT_PORT, EmptyError, SystemStatus, VERSION, WebApiClient, WebApiServer,
  launch,
} from '${from}';
import type {
  ControlCommand, LaunchConfig, System, WaitOptions, WebApiAddress, WebApiClientOptions, WebApiReply,
  WebApiServerOptions,
} from '${from}';

const options: WebApiServerOptions = { systemStatus: (): SystemStatus => SystemStatus.ACTIVE, port: DEFAULT_PORT };
const server: WebApiServer = new WebApiServer(options);
const address: WebApiAddress = await server.runInBackground();
const command: ControlCommand = server.hasCommands() ? server.receiveCommand() : await server.nextCommand();
await server.close();

const config: LaunchConfig = { webApiAddress: [DEFAULT_HOST, 0], webApiCommandQueueSize: DEFAULT_MAX_QUEUE_SIZE };
const system: System = { step: (): number => 1, saveState: async (): Promise<void> => {} };
await launch(system, config);

const access: WebApiClientOptions = { timeout: 1000, token: undefined };
const client: WebApiClient = new WebApiClient(address.host, address.port, access);
const wait: WaitOptions = { onStatus: ({ statusName }): void => console.log(statusName) };
await client.waitFor(SystemStatus.PAUSED, wait);
const reply: WebApiReply = await client.request('pause');
createServer(new WebApiServer(options).handler);
console.log(VERSION, command, reply.ok ? reply.value : reply.error, new EmptyError().name, await client.saveState());
`;

const NO_ANY = `
import { readFileSync } from 'node:fs';
const types = readFileSync('out/control.d.ts', 'utf8').replace(/\\/\\*[^]*?\\*\\//g, '');
if (!types.includes('WebApiServer') || /\\bany\\b/.test(types)) throw new Error(types.match(/.*\\bany\\b.*/)?.[0]);
`;

/** Compiles consumers of control.ts and of the package with every flag that finds fault, for each kind of module. */
function compiling(name: string, tools: keyof typeof TOOLS, compiler: string, modules: readonly string[]): Cell {
  const libs = [['es2022'], ['es2022', 'dom', 'dom.iterable']];
  const configs = modules.flatMap((module) => libs.map((lib) => ({
    compilerOptions: {
      module, lib, moduleResolution: module === 'preserve' ? 'bundler' : undefined, target: 'es2022', types: ['node'],
      outDir: 'out', declaration: true, rewriteRelativeImportExtensions: true, skipLibCheck: false,
      strict: true, allowUnreachableCode: false, allowUnusedLabels: false, erasableSyntaxOnly: true,
      exactOptionalPropertyTypes: true, isolatedDeclarations: true, isolatedModules: true,
      noFallthroughCasesInSwitch: true, noImplicitOverride: true, noImplicitReturns: true,
      noPropertyAccessFromIndexSignature: true, noUncheckedIndexedAccess: true, noUncheckedSideEffectImports: true,
      noUnusedLocals: true, noUnusedParameters: true, verbatimModuleSyntax: true,
    },
    files: ['copied.ts', 'installed.ts'],
  })));
  const files = configs.map((config, index) => [`tsconfig.${index}.json`, JSON.stringify(config)] as const);
  return {
    name: `${name}, ${modules.join(', ')}, with and without dom`,
    tools,
    files: {
      'package.json': '{ "type": "module" }', 'no-any.js': NO_ANY, 'copied.ts': consuming(SOURCE),
      'installed.ts': consuming(PACKAGE), ...Object.fromEntries(files),
    },
    builds: files.flatMap(([file]) => [`node ../node_modules/${compiler}/bin/tsc -p ${file}`, 'node no-any.js']),
  };
}

const COMPILED: Cell[] = [
  ...['5.8', '5.9', '6', '7'].map((version) => {
    const modules = ['nodenext', version === '5.8' ? 'node18' : 'node20', 'preserve']; // node20 is from 5.9
    return compiling(`TypeScript ${version}`, 'compilers', `typescript-${version}`, modules);
  }),
  compiling('TypeScript 7 and @types/node 24', 'compiler24', 'typescript-7', ['nodenext']),
  compiling('TypeScript 7 and @types/node 26', 'compiler26', 'typescript-7', ['nodenext']),
];

const REFUSED: Cell[] = [
  {
    name: 'Node 18', tools: 'node', node: '18', files: PACKAGED, host: 'node host.mjs',
    says: /^WebApiServer needs Node 20\.19 or newer.*this is v18\./,
  },
  ...[['20.19.0', '--experimental-permission'], ['24', '--permission']].map(([node = '', flag]): Cell => ({
    name: `Node ${node}, ${flag}`, tools: 'node', node, files: PACKAGED,
    host: `node ${flag} --allow-fs-read='*' host.mjs`,
    says: /^Cannot serve at localhost:\d+: a thread needs --allow-worker: /,
  })),
  {
    name: 'Deno 2 without --allow-net', tools: 'deno', files: IMPORTED, host: 'deno run --allow-env host.ts',
    says: /^Cannot serve at localhost:\d+: Requires net access .*--allow-net/,
  },
  {
    name: 'jest --coverage (istanbul), comments removed', tools: 'babelJest',
    files: { ...BABEL_JEST, 'host.test.ts': importing('./bare.ts') + TEST },
    builds: ['esbuild control.ts --legal-comments=none --outfile=bare.ts'],
    host: 'jest --coverage',
    says: /^ *Cannot serve at localhost:\d+: its thread runs the source text of serve\(\), which was changed: /,
  },
];

const GROUPS: readonly [title: string, cells: readonly Cell[]][] = [
  ['control.ts copied, not built', COPIED],
  ['the package', INSTALLED],
  ['bundled', BUNDLED],
  ['under test', TESTED],
  ['elsewhere in a process', PLACED],
  ['mounted', MOUNTED],
  ['compiled with every strict flag', COMPILED],
  ['cannot work, and says why', REFUSED],
];

// ───── Running them ──────────────────────────────────────────────────────────────────────────────────────────────

interface Outcome {
  passes: boolean;
  /** How it fails; or why it cannot work, as it should say. */
  reason: string;
}

interface Result extends Outcome {
  group: string;
  name: string;
}

interface Job extends Cell {
  group: string;
}

async function main(): Promise<number> {
  const parsed = parseOptions({ in: { type: 'string' }, json: { type: 'boolean' } }, HELP, Infinity);
  if (parsed === null) return EXIT.DONE;
  const { values, positionals: words } = parsed;
  const all = GROUPS.flatMap(([group, cells]) => cells.map((cell): Job => ({ ...cell, group })));
  const jobs = all.filter(({ group, name }) => words.every((word) => `${group}: ${name}`.includes(word)));
  if (jobs.length === 0) throw new UsageError(`no cell has all of these in its line: ${words.join(' ')}`);
  for (const name of ['SIGINT', 'SIGTERM'] as const) process.on(name, () => interruption.abort(new Error(name)));
  const root = values.in === undefined ? await mkdtemp(join(tmpdir(), 'control-matrix-')) : await openFolder(values.in);
  try {
    await install(root, jobs);
    const results = await runAll(root, jobs);
    if (values.json) console.log(JSON.stringify(results, null, 2));
    else show(results);
    return results.every(({ passes }) => passes) ? EXIT.DONE : EXIT.REFUSED;
  } finally {
    if (values.in === undefined) await rm(root, { recursive: true, force: true });
  }
}

/**
 * Makes the folder, unless an earlier run has.
 *
 * @throws {UsageError} If somebody else has, or it cannot be made.
 */
async function openFolder(path: string): Promise<string> {
  const folder = resolve(parseText('--in', path));
  try {
    await mkdir(folder, { recursive: true });
    const entries = await readdir(folder);
    if (entries.length === 0) await writeFile(join(folder, MARK), '');
    else if (!entries.includes(MARK)) throw new Error('it is not empty, and not from an earlier run');
  } catch (error) {
    throw new UsageError(`--in needs a folder of its own, got '${path}': ${(error as Error).message}`);
  }
  return folder;
}

/** Installs what these cells need, each set of tools in a folder of its own, and the package in the one around them. */
async function install(root: string, jobs: readonly Job[]): Promise<void> {
  await mkdir(join(root, 'tmp'), { recursive: true });
  progress('packing the package');
  await must(`npm pack --silent --pack-destination '${root}'`, '.');
  await npmInstall(root, [`./runtime-control-${VERSION}.tgz`]);
  const needed = jobs.flatMap(({ tools, node }) => node === undefined ? [tools] : [tools, 'node' as const]);
  for (const tools of new Set(needed)) await npmInstall(join(root, tools), TOOLS[tools]);
}

async function npmInstall(folder: string, packages: readonly string[]): Promise<void> {
  await mkdir(folder, { recursive: true });
  await writeFile(join(folder, 'package.json'), '{}');
  if (packages.length === 0) return;
  progress(`installing ${packages.join(' ')}`);
  const options = '--no-save --no-audit --no-fund --prefer-offline --loglevel=error';
  await must(`npm install ${options} ${packages.join(' ')}`, folder);
}

/** @throws {Error} If the command fails. */
async function must(command: string, folder: string): Promise<void> {
  const { code, output } = await execute(command, folder, process.env);
  if (code !== 0) throw new Error(failureOf(command, code, output));
}

/** As many at a time as there are cores, for each of them computes. */
async function runAll(root: string, jobs: readonly Job[]): Promise<Result[]> {
  const results: Result[] = [];
  const left = [...jobs.entries()];
  let done = 0;
  const work = async (): Promise<void> => {
    for (let next = left.shift(); next !== undefined; next = left.shift()) {
      const [index, job] = next;
      const { group, name } = job;
      results[index] = { group, name, ...await runCell(job, root, `cell-${index}`) };
      done += 1;
      progress(`${done} of ${jobs.length}: ${group}: ${name}`);
    }
  };
  await Promise.all(Array.from({ length: availableParallelism() }, work));
  progress('');
  return results;
}

async function runCell(cell: Cell, root: string, name: string): Promise<Outcome> {
  const tools = join(root, cell.tools);
  const folder = join(tools, name);
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder);
  await copyFile('control.ts', join(folder, 'control.ts'));
  for (const [file, text] of Object.entries(cell.files)) await writeFile(join(folder, file), text);

  const path = [join(tools, 'node_modules', '.bin'), process.env['PATH']];
  if (cell.node !== undefined) path.unshift(join(root, 'node', 'node_modules', `node-${cell.node}`, 'bin'));
  const port = await freePort('localhost');
  const env = {
    ...process.env, PATH: path.join(delimiter), PORT: String(port), CI: '1', NO_COLOR: '1',
    TMPDIR: join(root, 'tmp'), XDG_CACHE_HOME: join(root, 'tmp'), // what jest and Deno keep ends with the folder
  };
  for (const build of cell.builds ?? []) {
    const { code, output } = await execute(build, folder, env);
    if (code !== 0) return { passes: false, reason: failureOf(build, code, output) };
  }
  if (cell.host === undefined) return { passes: true, reason: '' };

  const givingUp = new AbortController();
  const ended = execute(cell.host, folder, env, givingUp.signal);
  const failure = cell.says === undefined ? await control(port, ended) : '';
  if (failure !== '') givingUp.abort();
  const { code, output } = await ended;
  const said = output.split('\n').find((line) => cell.says?.test(line));
  const passes = cell.says === undefined ? failure === '' && code === 0 : said !== undefined && code === 1;
  return { passes, reason: passes ? said?.trim() ?? '' : failure + failureOf(cell.host, code, output) };
}

/** Controls a host that computes at first, and tells it to end. Returns what goes wrong. */
async function control(port: number, ended: Promise<unknown>): Promise<string> {
  const { ACTIVE, PAUSED, RESUMING } = SystemStatus;
  const gone = new AbortController();
  const { signal } = gone;
  ended.catch(() => {}).then(() => gone.abort());
  const client = new WebApiClient('localhost', port);
  const send = async (command: ControlCommand): Promise<void> => {
    const reply = await client.request(command, signal);
    if (!reply.ok) throw new Error(`${command}: ${reply.error}`);
  };
  try {
    await client.waitFor(RESUMING, { signal });
    await send('pause');
    await send('resume');
    const { statusName } = await client.getStatus(signal);
    if (statusName !== 'resuming') throw new Error(`it is ${statusName} while it should compute`);
    await client.waitFor(ACTIVE, { signal });
    await send('pause');
    await client.waitFor(PAUSED, { signal });
    await send('resume');
    await client.waitFor(ACTIVE, { signal });
    await send('shutdown');
    return '';
  } catch (error) {
    return `${signal.aborted ? 'it was not told to end' : (error as Error).message}; `;
  } finally {
    client.close();
  }
}

interface Ended {
  code: number | null;
  output: string;
}

/**
 * Runs a shell command to its end. Kills it, and what it has started, at the signal or if it takes too long.
 *
 * @throws {Error} If all is to end.
 */
async function execute(command: string, cwd: string, env: NodeJS.ProcessEnv, signal?: AbortSignal): Promise<Ended> {
  interruption.signal.throwIfAborted();
  const child = spawn(command, { shell: true, cwd, env, stdio: ['ignore', 'pipe', 'pipe'], detached: true });
  const kill = (): void => {
    try {
      process.kill(-(child.pid as number), 'SIGKILL');
    } catch {
      // It is gone already.
    }
  };
  const timer = setTimeout(kill, LIMIT_MS);
  const signals = [interruption.signal, ...(signal === undefined ? [] : [signal])];
  for (const one of signals) one.addEventListener('abort', kill);
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => (output += text));
  }
  const [code] = await once(child, 'close');
  clearTimeout(timer);
  for (const one of signals) one.removeEventListener('abort', kill);
  interruption.signal.throwIfAborted();
  return { code, output };
}

/** In a line, with what is most likely the reason. */
function failureOf(command: string, code: number | null, output: string): string {
  const lines = output.split('\n').map((line) => line.trim()).filter((line) => line !== '');
  const telling = /^\W*\w*Error\b|^(Cannot|While) |\bneeds\b|^npm error (?!code|errno|syscall)/;
  const reason = lines.find((line) => telling.test(line)) ?? lines.at(-1);
  return `${command} ends with ${code ?? 'a signal'}: ${reason ?? 'it says nothing'}`;
}

// ───── What they print ───────────────────────────────────────────────────────────────────────────────────────────

function show(results: readonly Result[]): void {
  const width = Math.max(...results.map(({ name }) => name.length));
  let current = '';
  for (const { group, name, passes, reason } of results) {
    if (group !== current) console.log(`${current === '' ? '' : '\n'}${group}`);
    current = group;
    console.log(`  ${name.padEnd(width)}  ${passes ? reason || 'works' : `FAILS: ${reason}`}`);
  }
  const passed = results.filter(({ passes }) => passes).length;
  console.log(`\n${passed} of ${results.length} as it should be`);
}

/** One line on a terminal, drawn again and again; a line each time where it is none. */
function progress(text: string): void {
  if (process.stderr.isTTY) process.stderr.write(`\r\x1b[K${text.slice(0, process.stderr.columns - 1)}`);
  else if (text !== '') process.stderr.write(`${text}\n`);
}

await run('matrix', main);
