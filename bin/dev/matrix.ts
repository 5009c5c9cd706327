// Tries control.ts in every environment it supports: `npm run matrix`.
//
// Each cell of the matrix runs a small host in one environment. The host computes for two seconds without yielding;
// meanwhile a WebApiClient reads its status, pauses it and resumes it. When the computation ends, both commands must be
// on the queue. Then the client pauses it, sends a command that it declares, resumes it and shuts it down; it must exit
// with code 0.
//
// Three groups differ: TypeScript programs are only compiled; where the module cannot work, the host must say why; and
// MCP clients use control-mcp.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { copyFile, mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { availableParallelism, tmpdir } from 'node:os';
import { delimiter, join, resolve } from 'node:path';
import { describeOptions, EXIT, UsageError, parseOptions, parseText, run } from '../shared/options.ts';
import { freePort } from '../test/helpers.ts';
import { SystemStatus, VERSION, WebApiClient } from '../../control.ts';
import type { ControlCommand } from '../../control.ts';

const OPTIONS = {
  in: {
    type: 'string', value: 'FOLDER',
    help: 'install into FOLDER, which is empty, new or from an earlier run, and keep it for the next run',
  },
  json: { type: 'boolean', help: 'print the results as JSON: group, name, passes, reason' },
} as const;

const HELP = `
Usage: npm run matrix -- [options] [words …]

Runs control.ts in every runtime, bundler, test runner, process and compiler it supports, and reports where it works.
Also runs control-mcp with MCP clients, which requires python3. With words, runs only the cells whose "group: name"
contains all of them. Installs the tools from the npm registry: 2 GB in a temporary folder. Takes about four minutes.

${describeOptions(OPTIONS)}

Exit codes: 0 all cells pass, 1 a cell fails, 2 wrong usage.
`;

// ───── The host ──────────────────────────────────────────────────────────────────────────────────────────────────

// Valid as JavaScript and TypeScript, as an ES module, as CommonJS and inside a function.
const HOST = `
const { ACTIVE, PAUSED, RESUMING, SHUTTING_DOWN } = SystemStatus;

async function main() {
  let status = RESUMING;
  const commands = { set: { parameters: { rate: { type: 'number', maximum: 1 } } } };
  const server = new WebApiServer({ systemStatus: () => status, port: Number(process.env.PORT), commands });
  server.runInBackground().catch(fail); // not awaited: the thread must start although the host does not yield
  for (const end = performance.now() + 2000; performance.now() < end;);
  const taken = [];
  while (server.hasCommands()) taken.push(server.receiveCommand());
  await new Promise((resolve) => setTimeout(resolve, 50)); // a failed start reports itself first
  if (String(taken) !== 'pause,resume') throw new Error('Expected pause,resume on the queue, got: ' + taken);
  status = ACTIVE;
  while (status !== SHUTTING_DOWN) {
    switch (await server.nextCommand()) {
      case 'pause': status = PAUSED; break;
      case 'resume': status = ACTIVE; break;
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
const RUN = 'main().catch(fail);\n';
const TEST = "test('a host under control', main, 60_000);\n";

const SOURCE = './control.ts';
const PACKAGE = 'runtime-control';

const importing = (from: string): string => `import { SystemStatus, WebApiServer } from '${from}';\n${HOST}`;
const requiring = (from: string): string => `const { SystemStatus, WebApiServer } = require('${from}');\n${HOST}`;

/** A host that starts itself again in a thread or process, and exits with its exit code. */
const nested = (imports: string, isParent: string, start: string): string => `
${imports}
${importing(PACKAGE)}
if (${isParent}) ${start}.on('exit', (code) => (process.exitCode = code ?? 1));
else main().catch(fail).finally(() => process.disconnect?.());
`;

// ───── Cells ─────────────────────────────────────────────────────────────────────────────────────────────────────

interface Cell {
  name: string;
  /** The set of tools it needs. */
  tools: keyof typeof TOOLS;
  /** The version of Node that runs it, by default the one that runs this program. */
  node?: string;
  /** Files to write next to control.ts. */
  files: Record<string, string>;
  /** Shell commands to run before the host. */
  builds?: readonly string[];
  /** Shell command that runs the host; without it the cell only builds. */
  host?: string;
  /** The reason that the host must print where it cannot work. */
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

const JAVASCRIPT: Cell[] = ['20.19.0', '26'].flatMap((node) => [
  ['control.js, import', 'module', importing('./control.js') + RUN],
  ['control.mjs, require()', 'commonjs', requiring('./control.mjs') + RUN],
  ['control.mjs, import()', 'commonjs', `import('./control.mjs').then(({ SystemStatus, WebApiServer }) => {
    ${HOST + RUN}
  });`],
].map(([name = '', type, host = '']): Cell => ({
  name: `Node ${node}, ${name}`, tools: 'node', node,
  files: { 'package.json': `{ "type": "${type}" }`, 'host.js': host },
  builds: [`cp ../../node_modules/runtime-control/dist/control.js ${name.split(',')[0]}`],
  host: 'node host.js',
})));

const INSTALLED: Cell[] = [
  ...['20.19.0', '22', '24', '26'].flatMap((node): Cell[] => [
    { name: `Node ${node}, import`, tools: 'node', node, files: PACKAGED, host: 'node host.mjs' },
    { name: `Node ${node}, require()`, tools: 'node', node, files: PACKAGED, host: 'node host.cjs' },
  ]),
  { name: 'Deno 2', tools: 'deno', files: PACKAGED, host: `${DENO} --allow-read host.mjs` },
  { name: 'Bun 1', tools: 'bun', files: PACKAGED, host: 'bun host.mjs' },
];

const ESBUILD = 'esbuild host.ts --bundle --platform=node --log-level=error';
const FUSE = 'NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2'; // from Node's documentation

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

const THREAD = nested(
  "import { Worker, isMainThread } from 'node:worker_threads';", 'isMainThread', 'new Worker(new URL(import.meta.url))',
);
const CLUSTER = nested("import cluster from 'node:cluster';", 'cluster.isPrimary', 'cluster.fork()');
const FORK = nested("import { fork } from 'node:child_process';", '!process.send', 'fork(new URL(import.meta.url))');

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

/** A TypeScript program that uses every export. */
const consuming = (from: string, isOk: string): string => `
import {
  DEFAULT_HOST, DEFAULT_MAX_QUEUE_SIZE, DEFAULT_PORT, EmptyError, SystemStatus, VERSION, WebApiClient, WebApiServer,
  isAllowedHost, launch,
} from '${from}';
import type {
  CommandDeclaration, CommandInfo, CommandOutcome, CommandRequest, Control, ControlCommand, LaunchConfig, Parameter,
  RequestOptions, System, SystemCommand, SystemInfo, WaitOptions, WebApiAddress, WebApiClientOptions, WebApiReply,
  WebApiServerOptions,
} from '${from}';

const options: WebApiServerOptions = { systemStatus: (): SystemStatus => SystemStatus.ACTIVE, port: DEFAULT_PORT };
const server: WebApiServer = new WebApiServer(options);
const address: WebApiAddress = await server.runInBackground();
const command: ControlCommand = server.hasCommands() ? server.receiveCommand() : await server.nextCommand();
const outcome: CommandOutcome = { value: server.signal.aborted ? 1 : 'path' };
server.report(outcome);
const request: CommandRequest | null = server.request;
await server.close();

const config: LaunchConfig = { webApiAddress: [DEFAULT_HOST, 0], webApiCommandQueueSize: DEFAULT_MAX_QUEUE_SIZE };
const system: System = {
  step: (control: Control): boolean => control.shutdown(),
  saveState: async (status, { by = '' }): Promise<string> => by + status,
};
await launch(system, config);

const rate: Parameter = { type: 'number', minimum: 0, default: 0.1 };
const set: CommandDeclaration = { description: 'd', parameters: { rate } };
const steered = new WebApiServer({ systemStatus: (): SystemStatus => SystemStatus.ACTIVE, commands: { set, stop: {} } });
const taken: ControlCommand | 'set' | 'stop' = steered.receiveCommand();
// @ts-expect-error: it may be one of the declared commands
const narrow: ControlCommand = steered.receiveCommand();
steered.commands = { set, stop: {} };
await launch({
  step: (): boolean => true,
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
    // @ts-expect-error: likewise
    annotated: { parameters: { x: { type: 'integer' } }, run: ({ x }: { x: string }): string => x },
  },
});
class Steered implements System {
  step(): boolean { return true; }
  readonly commands = { set: { parameters: { x: { type: 'number' } }, run: ({ x }: { x: number }): number => x } } as const;
}
await launch(new Steered(), config);
const stop: SystemCommand<{ x: 'number' }> = { parameters: { x: { type: 'number' } }, run: ({ x }): number => x };
console.log(taken, narrow, stop);

const access: WebApiClientOptions = { timeout: 1000, token: undefined };
const client: WebApiClient = new WebApiClient(address.host, address.port, access);
const wait: WaitOptions = { onStatus: ({ statusName }): void => console.log(statusName) };
await client.waitFor(SystemStatus.PAUSED, wait);
const how: RequestOptions = { wait: 5, reason: request?.id };
const reply: WebApiReply = await client.request('pause', how);
const info: SystemInfo | null = await client.info();
const commands: CommandInfo[] = info?.commands ?? [];
console.log(VERSION, command, ${isOk} ? reply.value : reply.error, new EmptyError().name, await client.saveState());
console.log(commands.length, isAllowedHost('localhost:8391', []));
`;

const NO_ANY = `
import { readFileSync } from 'node:fs';
const types = readFileSync('out/control.d.ts', 'utf8').replace(/\\/\\*[^]*?\\*\\//g, '');
if (!types.includes('WebApiServer') || /\\bany\\b/.test(types)) throw new Error(types.match(/.*\\bany\\b.*/)?.[0]);
`;

const CHECKS = {
  strict: true, allowUnreachableCode: false, allowUnusedLabels: false, erasableSyntaxOnly: true,
  exactOptionalPropertyTypes: true, isolatedDeclarations: true, isolatedModules: true,
  noFallthroughCasesInSwitch: true, noImplicitOverride: true, noImplicitReturns: true,
  noPropertyAccessFromIndexSignature: true, noUncheckedIndexedAccess: true, noUncheckedSideEffectImports: true,
  noUnusedLocals: true, noUnusedParameters: true, verbatimModuleSyntax: true,
};

/** Compiles programs that use the copied file and the package, for each kind of module, with and without `dom`. */
function compiling(
  name: string,
  tools: keyof typeof TOOLS,
  compiler: string,
  modules: readonly string[],
  isStrict: boolean = true,
): Cell {
  const libs = [['es2022'], ['es2022', 'dom', 'dom.iterable']];
  const checks = isStrict ? CHECKS : { strict: false }; // the default from TypeScript 6 on is true
  const configs = modules.flatMap((module) => libs.map((lib) => ({
    compilerOptions: {
      module, lib, moduleResolution: module === 'preserve' ? 'bundler' : undefined, target: 'es2022', types: ['node'],
      outDir: 'out', declaration: true, rewriteRelativeImportExtensions: true, skipLibCheck: false, ...checks,
    },
    files: ['copied.ts', 'installed.ts'],
  })));
  const files = configs.map((config, index) => [`tsconfig.${index}.json`, JSON.stringify(config)] as const);
  const isOk = isStrict ? 'reply.ok' : 'reply.ok === true'; // truthiness narrows only with strictNullChecks
  return {
    name: `${name}, ${isStrict ? 'every check' : 'not strict'}, ${modules.join(', ')}`,
    tools,
    files: {
      'package.json': '{ "type": "module" }', 'no-any.js': NO_ANY, 'copied.ts': consuming(SOURCE, isOk),
      'installed.ts': consuming(PACKAGE, isOk), ...Object.fromEntries(files),
    },
    builds: files.flatMap(([file]) => [`node ../node_modules/${compiler}/bin/tsc -p ${file}`, 'node no-any.js']),
  };
}

const COMPILED: Cell[] = [
  ...['5.8', '5.9', '6', '7'].map((version) => {
    const modules = ['nodenext', version === '5.8' ? 'node18' : 'node20', 'preserve']; // 5.9 introduced node20
    return compiling(`TypeScript ${version}`, 'compilers', `typescript-${version}`, modules);
  }),
  ...['5.9', '7'].map((version) => {
    return compiling(`TypeScript ${version}`, 'compilers', `typescript-${version}`, ['nodenext'], false);
  }),
  compiling('TypeScript 7, @types/node 24', 'compiler24', 'typescript-7', ['nodenext']),
  compiling('TypeScript 7, @types/node 26', 'compiler26', 'typescript-7', ['nodenext']),
];

const REFUSED: Cell[] = [
  ...[
    ['20.19.0', '--experimental-permission', 'Access to this API has been restricted'],
    ['24', '--permission', 'Access to this API has been restricted\\. Use --allow-worker'],
  ].map(([node = '', flag, reason]): Cell => ({
    name: `Node ${node}, ${flag}`, tools: 'node', node, files: PACKAGED,
    host: `node ${flag} --allow-fs-read='*' host.mjs`,
    says: new RegExp(`^Cannot serve at localhost:\\d+: ${reason}`),
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
    says: /^ *Cannot serve at localhost:\d+: its thread failed: cov_\w+ is not defined/,
  },
];

const CLIENTS: Cell[] = [
  ['SDK 1', 'sdk1'],
  ['SDK 2, legacy', 'sdk2 legacy'],
  ['SDK 2, auto', 'sdk2 auto'],
  ['SDK 2, 2026-07-28', 'sdk2 2026-07-28'],
  ['inspector --cli, legacy', 'inspector legacy'],
  ['inspector --cli, modern', 'inspector modern'],
].map(([name = '', client]): Cell => ({
  name, tools: 'mcp', node: '24', // the inspector needs 22.19
  files: { 'client.mjs': readFileSync('bin/dev/mcp-clients.mjs', 'utf8') },
  builds: [`node client.mjs ${client}`],
}));

const GROUPS: readonly [title: string, cells: readonly Cell[]][] = [
  ['control.ts copied', COPIED],
  ['dist/control.js copied', JAVASCRIPT],
  ['the package', INSTALLED],
  ['bundled', BUNDLED],
  ['under test', TESTED],
  ['threads, processes and permissions', PLACED],
  ['only compiled', COMPILED],
  ['cannot work and says why', REFUSED],
  ['MCP clients of control-mcp', CLIENTS],
];

// ───── Tools ─────────────────────────────────────────────────────────────────────────────────────────────────────

const NODE = `node-${process.platform}-${process.arch}`; // the package that contains only the executable

/** The npm packages of each set of tools. A set is installed once, and its cells run in subfolders. */
const TOOLS = {
  none: [],
  node: ['20.19.0', '22.18.0', '22', '24', '26'].map((version) => `node-${version}@npm:${NODE}@${version}`),
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
  compilers: [
    ...['5.8', '5.9', '6', '7'].map((version) => `typescript-${version}@npm:typescript@${version}`), '@types/node@20',
  ],
  compiler24: ['typescript-7@npm:typescript@7', '@types/node@24'],
  compiler26: ['typescript-7@npm:typescript@7', '@types/node@26'],
  mcp: ['@modelcontextprotocol/sdk@1', '@modelcontextprotocol/client@2', '@modelcontextprotocol/inspector@2'],
} as const satisfies Record<string, readonly string[]>;

const MARKER = '.control-matrix'; // a file that marks the folders of earlier runs

/**
 * Creates the folder, or reuses the one of an earlier run.
 *
 * @throws {UsageError} If the folder contains anything else or cannot be created.
 */
async function openFolder(path: string): Promise<string> {
  const folder = resolve(parseText('--in', path));
  try {
    await mkdir(folder, { recursive: true });
    const entries = await readdir(folder);
    if (entries.length === 0) await writeFile(join(folder, MARKER), '');
    else if (!entries.includes(MARKER)) throw new Error('it is not empty and not from an earlier run');
  } catch (error) {
    throw new UsageError(`--in needs a folder of its own, got '${path}': ${(error as Error).message}`);
  }
  return folder;
}

/** Installs the package in the root folder, and the sets of tools that the jobs need in folders below it. */
async function install(root: string, jobs: readonly Job[]): Promise<void> {
  await mkdir(join(root, 'tmp'), { recursive: true });
  progress('packing the package');
  await executeOrThrow(`npm pack --silent --pack-destination '${root}'`, '.');
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
  await executeOrThrow(`npm install ${options} ${packages.join(' ')}`, folder);
}

/** @throws {Error} If the command fails. */
async function executeOrThrow(command: string, folder: string): Promise<void> {
  const { code, output } = await execute(command, folder, process.env);
  if (code !== 0) throw new Error(failureOf(command, code, output));
}

// ───── Running the cells ─────────────────────────────────────────────────────────────────────────────────────────

const TIME_LIMIT_MS = 300_000; // for each installation, build and host

const interruption = new AbortController();

interface Outcome {
  passes: boolean;
  /** Why the cell fails, or the reason that the host must print. */
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
  const parsed = parseOptions(OPTIONS, HELP, Infinity);
  if (parsed === null) return EXIT.DONE;
  const { values, positionals: words } = parsed;
  const all = GROUPS.flatMap(([group, cells]) => cells.map((cell): Job => ({ ...cell, group })));
  const jobs = all.filter(({ group, name }) => words.every((word) => `${group}: ${name}`.includes(word)));
  if (jobs.length === 0) throw new UsageError(`no cell contains all of these words: ${words.join(' ')}`);
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

/** Runs as many cells at once as there are cores, because each of them computes. */
async function runAll(root: string, jobs: readonly Job[]): Promise<Result[]> {
  const results: Result[] = [];
  const queue = [...jobs.entries()];
  let done = 0;
  const work = async (): Promise<void> => {
    for (let next = queue.shift(); next !== undefined; next = queue.shift()) {
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
  const port = await freePort();
  const env = {
    ...process.env, PATH: path.join(delimiter), PORT: String(port), CI: '1', NO_COLOR: '1',
    TMPDIR: join(root, 'tmp'), XDG_CACHE_HOME: join(root, 'tmp'), // the caches of jest and Deno
  };
  for (const build of cell.builds ?? []) {
    const { code, output } = await execute(build, folder, env);
    if (code !== 0) return { passes: false, reason: failureOf(build, code, output) };
  }
  if (cell.host === undefined) return { passes: true, reason: '' };

  const cancellation = new AbortController();
  const ended = execute(cell.host, folder, env, AbortSignal.any([interruption.signal, cancellation.signal]));
  const failure = cell.says === undefined ? await control(port, ended) : '';
  if (failure !== '') cancellation.abort();
  const { code, output } = await ended;
  const said = output.split('\n').find((line) => cell.says?.test(line));
  const passes = cell.says === undefined ? failure === '' && code === 0 : said !== undefined && code === 1;
  return { passes, reason: passes ? said?.trim() ?? '' : failure + failureOf(cell.host, code, output) };
}

/** Controls a host until it is told to shut down. Returns what went wrong, or an empty string. */
async function control(port: number, ended: Promise<unknown>): Promise<string> {
  const { ACTIVE, PAUSED, RESUMING } = SystemStatus;
  const hostEnd = new AbortController();
  const { signal } = hostEnd;
  ended.catch(() => {}).then(() => hostEnd.abort());
  const client = new WebApiClient('localhost', port);
  const send = async (command: ControlCommand): Promise<void> => {
    const reply = await client.request(command, { signal });
    if (!reply.ok) throw new Error(`${command}: ${reply.error}`);
  };
  try {
    await client.waitFor(RESUMING, { signal });
    await send('pause');
    await send('resume');
    const { statusName } = await client.getStatus(signal);
    if (statusName !== 'resuming') throw new Error(`the status is ${statusName} during the computation`);
    await client.waitFor(ACTIVE, { signal });
    await send('pause');
    await client.waitFor(PAUSED, { signal });
    const outcomes = await Promise.all([0.5, 5].map(async (rate) => {
      const reply = await client.request('set', { arguments: { rate }, wait: 5, signal });
      return JSON.stringify(reply.ok ? reply.body['value'] : reply.statusCode);
    }));
    if (String(outcomes) !== '{"rate":0.5},400') throw new Error(`set resulted in ${outcomes}`);
    await send('resume');
    await client.waitFor(ACTIVE, { signal });
    await send('shutdown');
    return '';
  } catch (error) {
    return `${signal.aborted ? 'the host ended before its shutdown' : (error as Error).message}; `;
  }
}

interface Ended {
  code: number | null;
  output: string;
}

/**
 * Runs a shell command. Kills it and its child processes if the signal is aborted or the time limit is reached.
 *
 * @throws {Error} If the program is interrupted.
 */
async function execute(
  command: string,
  cwd: string,
  env: NodeJS.ProcessEnv,
  signal: AbortSignal = interruption.signal,
): Promise<Ended> {
  interruption.signal.throwIfAborted();
  const child = spawn(command, { shell: true, cwd, env, stdio: ['ignore', 'pipe', 'pipe'], detached: true });
  const kill = (): void => {
    try {
      process.kill(-(child.pid as number), 'SIGKILL');
    } catch {
      // The processes are gone.
    }
  };
  const timer = setTimeout(kill, TIME_LIMIT_MS);
  signal.addEventListener('abort', kill);
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => (output += text));
  }
  const [code] = await once(child, 'close');
  clearTimeout(timer);
  signal.removeEventListener('abort', kill);
  interruption.signal.throwIfAborted();
  return { code, output };
}

/** The failure in one line, with the most likely reason from the output. */
function failureOf(command: string, code: number | null, output: string): string {
  const lines = output.split('\n').map((line) => line.trim()).filter((line) => line !== '');
  const isReason = /^\W*\w*Error\b|\berror TS\d+|^(Cannot|Expected) |^npm error (?!code|errno|syscall)/;
  const reason = lines.find((line) => isReason.test(line)) ?? lines.at(-1) ?? 'no output';
  return `${command} ${code === null ? 'was killed' : `ended with exit code ${code}`}: ${reason}`;
}

// ───── Output ────────────────────────────────────────────────────────────────────────────────────────────────────

function show(results: readonly Result[]): void {
  const width = Math.max(...results.map(({ name }) => name.length));
  let current = '';
  for (const { group, name, passes, reason } of results) {
    if (group !== current) console.log(`${current === '' ? '' : '\n'}${group}`);
    current = group;
    console.log(`  ${name.padEnd(width)}  ${passes ? reason || 'works' : `FAILS: ${reason}`}`);
  }
  const passed = results.filter(({ passes }) => passes).length;
  console.log(`\n${passed} of ${results.length} cells pass`);
}

/** Redraws one line on a terminal, and otherwise prints a line. */
function progress(text: string): void {
  if (process.stderr.isTTY) process.stderr.write(`\r\x1b[K${text.slice(0, process.stderr.columns - 1)}`);
  else if (text !== '') process.stderr.write(`${text}\n`);
}

await run('matrix', main);
