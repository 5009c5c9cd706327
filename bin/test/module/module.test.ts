// control.ts as a part of other programs: bundled, required, compiled, preloaded, denied, twice in one process; and the
// loop in bin/module.md.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { build } from 'esbuild';
import type { Host } from '../host.ts';
import type { BuildOptions } from 'esbuild';
import type { TestContext } from 'node:test';
import { LIMIT, clientAt, makeFolder, makeSocketPath, startServer, takeAll } from '../helpers.ts';
import { runHost, spawnHost } from '../host.ts';
import { postAll } from '../http.ts';
import { lacks } from '../needs.ts';
import { SystemStatus, WebApiServer } from '../../../control.ts';

const { ACTIVE, PAUSED, RESUMING } = SystemStatus;

const PROJECT = process.cwd();
const BUNDLE: BuildOptions = { bundle: true, platform: 'node', format: 'esm', logLevel: 'error' };

describe('The module', { ...LIMIT, concurrency: 2 }, () => {
  const builds: [name: string, options: BuildOptions][] = [
    ['with minify and keepNames', { minify: true, keepNames: true }],
    ['for es2017 with keepNames', { target: 'es2017', keepNames: true }],
  ];
  for (const [name, options] of builds) {
    it(`works in a program that esbuild bundles ${name}`, async (t) => {
      const outfile = join(makeFolder(t), 'host.mjs');
      const contents = `
        import { SystemStatus, WebApiClient, WebApiServer } from './control.ts';
        const server = new WebApiServer({ systemStatus: () => SystemStatus.PAUSED, port: 0 });
        server.runInBackground().then(async ({ port }) => {
          const client = new WebApiClient('127.0.0.1', port);
          console.log(JSON.stringify([await client.pause(), (await client.getStatus()).statusName]));
          console.log(JSON.stringify(server.receiveCommand()));
          await server.close();
        });
      `;
      await build({ ...BUNDLE, ...options, stdin: { contents, resolveDir: PROJECT }, outfile });
      await spawnHost(t, [outfile]).ends(['ok', 'paused'], 'pause');
    });
  }

  it('can be required by its package name from CommonJS', async (t) => {
    const file = join(makeFolder(t), 'host.cjs');
    writeFileSync(file, `
      const { createRequire } = require('node:module');
      const { SystemStatus, WebApiClient, WebApiServer } =
        createRequire(${JSON.stringify(join(PROJECT, 'package.json'))})('runtime-control');
      const server = new WebApiServer({ systemStatus: () => SystemStatus.PAUSED, port: 0 });
      server.runInBackground().then(async ({ port }) => {
        console.log(JSON.stringify((await new WebApiClient('127.0.0.1', port).getStatus()).statusName));
        await server.close();
      });
    `);
    const host = spawnHost(t, [file]);
    assert.deepEqual(await host.hearAll(), ['paused']);
    assert.equal((await host.ended).code, 0); // stderr may hold node's warning about require() of ESM
  });

  it('compiles in a TypeScript project that is not strict', async (t) => {
    const folder = makeFolder(t);
    cpSync('control.ts', join(folder, 'control.ts'));
    writeFileSync(join(folder, 'package.json'), '{ "type": "module" }');
    writeFileSync(join(folder, 'host.ts'), `
      import { launch } from './control.js';
      await launch({ step() {} }, { webApiAddress: null });
    `);
    writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify({
      compilerOptions: {
        target: 'es2022', module: 'nodenext', strict: false, noEmit: true, types: ['node'],
        typeRoots: [join(PROJECT, 'node_modules', '@types')],
      },
    }));
    const tsc = join('node_modules', 'typescript', 'bin', 'tsc');
    const { stdout } = await promisify(execFile)(process.execPath, [tsc, '--project', folder]).catch((error) => error);
    assert.equal(stdout, '');
  });

  it('declares and documents its public names, and no others', () => {
    const types = readFileSync(join('dist', 'control.d.ts'), 'utf8').replace(/^( *)(\/\*\* .* \*\/) /gm, '$1$2\n$1');
    const documentedAsAWhole = /^((?:export )?(?:type \w+ =|interface (?:\w+Info|\w+Outcome|\w+Address|Parameter|\w+Declaration|\w+Request|\w+Command|Control)\b)[^\n]*)\{$.*?^}>?;?$/gms;
    const lines = types.replace(documentedAsAWhole, '$1').split('\n');
    assert.match(lines[0] as string, /^\/\*! control\.ts .* MIT /);
    const exported = lines.flatMap((line) => /^export (?:declare )?\w+ (\w+)/.exec(line)?.[1] ?? []);
    assert.deepEqual([...new Set(exported)].sort(), [
      'CommandDeclaration', 'CommandInfo', 'CommandOutcome', 'CommandRequest', 'Control', 'ControlCommand',
      'DEFAULT_HOST', 'DEFAULT_MAX_QUEUE_SIZE', 'DEFAULT_PORT', 'EmptyError', 'LaunchConfig', 'Parameter',
      'RequestOptions', 'StatusCause', 'System', 'SystemCommand', 'SystemInfo', 'SystemStatus', 'VERSION', 'WaitOptions',
      'WebApiAddress', 'WebApiClient', 'WebApiClientOptions', 'WebApiReply', 'WebApiServer', 'WebApiServerOptions',
      'checkTrusted', 'isAllowedHost', 'launch',
    ]);
    const isDeclaration = /^export (?!\{)|^ {4}(?:readonly |get )*(?!constructor)\w+\??[:(]/;
    const declarations = [...lines.keys()].filter((index) => isDeclaration.test(lines[index] as string));
    assert.ok(declarations.length > 50, `${declarations.length} declarations`);
    const undocumented = declarations.filter((index) => !lines[index - 1]?.endsWith('*/'));
    assert.deepEqual(undocumented.map((index) => lines[index]), []);
    const code = lines.filter((line) => !/^ *\/?\*/.test(line));
    assert.deepEqual(code.filter((line) => /^declare (?!const COMMANDS:)|\bany\b/.test(line)), [], 'private or untyped');
  });

  it('does nothing when it is imported', async (t) => {
    const source = `
      const events = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGBREAK', 'SIGUSR2', 'exit', 'warning', 'uncaughtException'];
      console.log(JSON.stringify([events.map((name) => process.listenerCount(name)), Object.keys(globalThis)]));
    `;
    const without = spawnHost(t, ['--input-type=module', '--eval', source]);
    await runHost(t, source).ends(await without.hear());
  });

  it('starts a thread that runs no module which the program preloads', async (t) => {
    const folder = makeFolder(t);
    const [imported, required] = [join(folder, 'imported.mjs'), join(folder, 'required.cjs')];
    writeFileSync(imported, `console.log('"imported"');`);
    writeFileSync(required, `console.log('"required"');`);
    const host = runHost(t, `
      const server = new WebApiServer({ systemStatus: () => ACTIVE, port: 0 });
      await server.runInBackground();
      await server.close();
    `, ['--import', pathToFileURL(imported).href, '--require', required]);
    await host.ends('required', 'imported');
  });

  it('says why it cannot start a thread: under the permission model', async (t) => {
    const flag = process.allowedNodeEnvironmentFlags.has('--permission') ? '--permission' : '--experimental-permission';
    const host = runHost(t, `
      const server = new WebApiServer({ systemStatus: () => ACTIVE, host: '127.0.0.1', port: 0 });
      await server.runInBackground().catch(({ message, code }) => say([message, code]));
    `, [flag, '--allow-fs-read=*']);
    const [message, code] = await host.hear<[string, string]>();
    assert.match(message, /^Cannot serve at 127\.0\.0\.1:0: .*Access to this API has been restricted/);
    assert.equal(code, 'ERR_ACCESS_DENIED');
  });

  it('is independent of another copy in the same process', async (t) => {
    const { href } = pathToFileURL(join(PROJECT, 'dist', 'control.js'));
    const copy: typeof import('../../../control.ts') = await import(href);
    assert.notEqual(copy.WebApiServer, WebApiServer);
    let status = copy.SystemStatus.PAUSED; // as good as the module's own
    const { server, client } = await startServer(t, { systemStatus: () => status });
    const other = new copy.WebApiServer({ systemStatus: () => ACTIVE, port: 0 });
    t.after(() => other.close());
    const otherClient = new copy.WebApiClient('127.0.0.1', (await other.runInBackground()).port);
    await client.waitFor(copy.SystemStatus.PAUSED);
    status = RESUMING;
    await client.waitFor(copy.SystemStatus.RESUMING);
    assert.deepEqual([await client.pause(), await otherClient.resume()], ['ok', 'ok']);
    assert.deepEqual([takeAll(server), takeAll(other)], [['pause'], ['resume']]);
    await server.close();
    assert.equal(await otherClient.getStatus(), copy.SystemStatus.ACTIVE);
  });
});

describe('The loop in bin/module.md', { ...LIMIT, skip: lacks('Unix'), concurrency: 2 }, () => {
  const folder = mkdtempSync(join(tmpdir(), 'control-'));
  const bundle = join(folder, 'host.mjs');

  before(async () => {
    const manual = readFileSync('bin/module.md', 'utf8');
    const blocks = [...manual.matchAll(/^```ts\n(.*?)^```$/gms)].map(([, code = '']) => code);
    const loop = blocks.find((code) => /new WebApiServer[^]*server\.post\(/.test(code)) ?? '';
    const option = 'systemStatus: () => status';
    assert.ok(loop.includes(option) && loop.includes("'./control.mts'"), loop);
    const contents = `
      import { readSync, writeSync } from 'node:fs';
      ${loop.replace(option, `${option}, socketPath: String(process.argv[2])`).replace('control.mts', 'control.ts')}
      function say(value: string) { writeSync(1, JSON.stringify(value) + '\\n'); }
      function step() { // never yields
        say('step');
        if (readSync(0, Buffer.alloc(1)) === 0) process.exit(1);
      }
      async function save() {
        await new Promise((resolve) => setTimeout(resolve, 20));
        say('save');
      }
    `;
    await build({ ...BUNDLE, stdin: { contents, loader: 'ts', resolveDir: PROJECT }, outfile: bundle });
  });
  after(() => rmSync(folder, { recursive: true }));

  /** Runs it on a Unix socket. Each step waits for a byte on stdin. */
  async function runLoop(t: TestContext): Promise<{ host: Host; socketPath: string }> {
    const socketPath = makeSocketPath(t);
    const host = spawnHost(t, [bundle, socketPath]);
    assert.equal(await host.hear(), 'step');
    return { host, socketPath };
  }

  it('saves before the next step, and keeps a shutdown that a resume follows in the same turn', async (t) => {
    const { host, socketPath } = await runLoop(t);
    assert.deepEqual(await postAll(socketPath, ['save-state']), [200]);
    host.process.stdin?.write('.');
    assert.deepEqual([await host.hear(), await host.hear()], ['save', 'step']);
    assert.deepEqual(await postAll(socketPath, ['shutdown', 'resume']), [200, 200]);
    host.process.stdin?.write('.');
    await host.ends('save');
  });

  for (const status of [ACTIVE, PAUSED]) {
    it(`saves and ends at SIGTERM while ${status}`, async (t) => {
      const { host, socketPath } = await runLoop(t);
      if (status === PAUSED) {
        assert.deepEqual(await postAll(socketPath, ['pause']), [200]);
        host.process.stdin?.write('.');
        await clientAt(t, { host: 'localhost', port: 0, socketPath }).waitFor(PAUSED);
      }
      host.process.kill('SIGTERM');
      if (status === ACTIVE) host.process.stdin?.write('..'); // a signal may take effect after one more step
      const said = await host.hearAll();
      assert.deepEqual(said.splice(said.indexOf('save')), ['save'], 'once, and no step after it');
      assert.deepEqual(await host.ended.then(({ code, stderr }) => [code, stderr]), [0, '']);
    });
  }
});
