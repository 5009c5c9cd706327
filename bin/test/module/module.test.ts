// control.ts as a part of other programs: bundled, imported, twice in one process; and the loop in bin/module.md.
// `npm run matrix` tries it in each runtime, bundler and compiler.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { SystemStatus, WebApiClient, WebApiServer } from '../../../control.ts';
import { build } from 'esbuild';
import { collectWarnings, makeFolder, makeSocketPath, startServer, takeAll } from '../helpers.ts';
import { runHost, spawnHost } from '../host.ts';
import { PAUSE, RESUME, SAVE, SHUTDOWN, ask } from '../http.ts';
import { lacks } from '../needs.ts';
import { LIMIT, until } from '../wait.ts';
import { clientOn, reaches } from './helpers.ts';
import type { BuildOptions } from 'esbuild';

const { ACTIVE, PAUSED, RESUMING } = SystemStatus;

const PROJECT = process.cwd();
const BUNDLE: BuildOptions = { bundle: true, platform: 'node', format: 'esm', logLevel: 'error' };

describe('The module', { ...LIMIT, concurrency: 2 }, () => {
  it('works in a program that esbuild bundles for es2017, with minify and keepNames', async (t) => {
    const outfile = join(makeFolder(t), 'host.mjs');
    const contents = `
      import { SystemStatus, WebApiClient, WebApiServer } from './control.ts';
      const server = new WebApiServer({ systemStatus: () => SystemStatus.PAUSED, port: 0 });
      server.runInBackground().then(async ({ port }) => {
        const client = new WebApiClient('127.0.0.1', port);
        console.log(JSON.stringify([await client.pause(), (await client.getStatus()).statusName]));
        console.log(JSON.stringify([server.receiveCommand(), Array.isArray((await client.request('stack')).body.stack)]));
        await server.close();
      });
    `;
    const stdin = { contents, resolveDir: PROJECT };
    await build({ ...BUNDLE, minify: true, target: 'es2017', keepNames: true, stdin, outfile });
    await spawnHost(t, [outfile]).ends(['ok', 'paused'], ['pause', true]);
  });

  it('compiles and works for es2015, without names of newer libraries', async (t) => {
    const folder = makeFolder(t);
    execFileSync(process.execPath, [
      'node_modules/typescript/bin/tsc', '--ignoreConfig', 'control.ts', '--outDir', folder, '--strict',
      '--target', 'es2015', '--lib', 'es2015', '--module', 'nodenext', '--types', 'node',
    ]);
    renameSync(join(folder, 'control.js'), join(folder, 'control.mjs'));
    const host = join(folder, 'host.mjs');
    writeFileSync(host, `
      import { SystemStatus, WebApiClient, WebApiServer } from './control.mjs';
      const server = new WebApiServer({ systemStatus: () => SystemStatus.PAUSED, port: 0 });
      const client = new WebApiClient('127.0.0.1', (await server.runInBackground()).port);
      const { stack } = (await client.request('stack')).body;
      console.log(JSON.stringify([await client.pause(), server.receiveCommand(), Array.isArray(stack)]));
      await server.close();
    `);
    await spawnHost(t, [host]).ends(['ok', 'pause', true]);
  });

  it('says what may be wrong if its thread lacks a helper of a transpiler', async (t) => {
    const path = join(makeFolder(t), 'control.mjs');
    const source = readFileSync(join('dist', 'control.js'), 'utf8');
    for (const [where, text] of [
      ['at the start', 'function linkToHost(data, report, readClock) {'],
      ['at the first connection', 'onConnection(socket, isUnix) {'],
    ] as const) {
      assert.equal(source.split(text).length, 2, text);
      writeFileSync(path, source.replace(text, `${text} _helper();`));
      const copy: typeof import('../../../control.ts') = await import(`${pathToFileURL(path).href}?${where}`);
      const warnings = collectWarnings(t);
      const server = new copy.WebApiServer({ systemStatus: () => copy.SystemStatus.ACTIVE, port: 0 });
      t.after(() => server.close());
      const message = await server.runInBackground().then(async ({ port }) => {
        const client = new WebApiClient(undefined, port);
        await until(async () => await client.pause() !== null || warnings.length > 0);
        return warnings[0];
      }, (error: Error) => error.message);
      assert.match(message ?? '', /_helper is not defined; compiled for an old target\?$/, where);
    }
  });

  it('declares and documents its public names, and no others', () => {
    const types = readFileSync(join('dist', 'control.d.ts'), 'utf8').replace(/^( *)(\/\*\* .* \*\/) /gm, '$1$2\n$1');
    // Documented as one:
    const whole = 'Parameter|Control|Answer|\\w+(?:Info|Outcome|Address|Declaration|Request|Command)';
    const members = new RegExp(`^((?:export )?(?:type \\w+ =|interface (?:${whole})\\b)[^\\n]*)\\{$.*?^}>?;?$`, 'gms');
    const lines = types.replace(members, '$1').split('\n');
    assert.match(lines[0] as string, /^\/\*! control\.ts .* MIT /);
    const exported = lines.flatMap((line) => /^export (?:declare )?\w+ (\w+)/.exec(line)?.[1] ?? []);
    assert.deepEqual([...new Set(exported)].sort(), [
      'Answer', 'AskInfo', 'AskOptions', 'CommandDeclaration', 'CommandInfo', 'CommandOutcome', 'CommandRequest',
      'Control', 'ControlCommand', 'DEFAULT_HOST', 'DEFAULT_MAX_QUEUE_SIZE', 'DEFAULT_PORT', 'EmptyError',
      'LaunchConfig', 'Parameter', 'RequestOptions', 'StatusCause', 'System', 'SystemCommand', 'SystemInfo',
      'SystemStatus', 'VERSION', 'WaitOptions', 'WebApiAddress', 'WebApiClient', 'WebApiClientOptions', 'WebApiReply',
      'WebApiServer', 'WebApiServerOptions', 'checkTrusted', 'isAllowedHost', 'launch', 'socketFolders',
    ]);
    const isDeclaration = /^export (?!\{)|^ {4}(?:readonly |get )*(?!constructor)\w+\??[:(]/;
    const declarations = [...lines.keys()].filter((index) => isDeclaration.test(lines[index] as string));
    assert.ok(declarations.length > 50, `${declarations.length} declarations`);
    const undocumented = declarations.filter((index) => !lines[index - 1]?.endsWith('*/'));
    assert.deepEqual(undocumented.map((index) => lines[index]), []);
    const code = lines.filter((line) => !/^ *\/?\*/.test(line));
    assert.deepEqual(code.filter((line) => /^declare (?!const COMMANDS:)|\bany\b/.test(line)), []); // all is typed
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
    writeFileSync(imported, `import { writeSync } from 'node:fs'; writeSync(1, '"imported"\\n');`);
    writeFileSync(required, `require('node:fs').writeSync(1, '"required"\\n');`); // console.log() of a thread is lost
    const host = runHost(t, `
      const server = new WebApiServer({ systemStatus: () => ACTIVE, port: 0 });
      await server.runInBackground();
      await server.close();
    `, ['--import', pathToFileURL(imported).href, '--require', required]);
    await host.ends('required', 'imported');
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
    await reaches(client, copy.SystemStatus.PAUSED);
    status = RESUMING;
    await reaches(client, copy.SystemStatus.RESUMING);
    assert.deepEqual([await client.pause(), await otherClient.resume()], ['ok', 'ok']);
    assert.deepEqual([takeAll(server), takeAll(other)], [['pause'], ['resume']]);
    await server.close();
    assert.equal(await otherClient.getStatus(), copy.SystemStatus.ACTIVE);
  });
});

describe('The loop in bin/module.md', { ...LIMIT, skip: lacks('Unix') }, () => {
  it('saves before the next step and at SIGTERM, and keeps a shutdown that a resume follows', async (t) => {
    const manual = readFileSync('bin/module.md', 'utf8');
    const blocks = [...manual.matchAll(/^```ts\n(.*?)^```$/gms)].map(([, code = '']) => code);
    const loop = blocks.find((code) => /new WebApiServer[^]*server\.post\(/.test(code)) ?? '';
    const option = 'systemStatus: () => status';
    assert.ok(loop.includes(option) && loop.includes("'./control.mts'"), loop);
    const contents = `
      import { readSync, writeSync } from 'node:fs';
      ${loop.replace(option, `${option}, socketPath: String(process.argv[2])`).replace('control.mts', 'control.ts')}
      function say(value: string) { writeSync(1, JSON.stringify(value) + '\\n'); }
      function step() { // never yields, and waits for a byte
        say('step');
        if (readSync(0, Buffer.alloc(1)) === 0) process.exit(1);
      }
      async function save() {
        await new Promise((resolve) => setTimeout(resolve, 20));
        say('save');
      }
    `;
    const outfile = join(makeFolder(t), 'host.mjs');
    await build({ ...BUNDLE, stdin: { contents, loader: 'ts', resolveDir: PROJECT }, outfile });
    for (const end of ['shutdown', 'SIGTERM while paused']) {
      const socketPath = makeSocketPath(t);
      const host = spawnHost(t, [outfile, socketPath]);
      const post = async (...lines: string[]): Promise<void> => {
        for (const line of lines) assert.equal((await ask(socketPath, line)).statusCode, 200);
        host.release();
      };
      assert.equal(await host.hear(), 'step');
      await post(SAVE);
      assert.deepEqual([await host.hear(), await host.hear()], ['save', 'step']);
      if (end === 'shutdown') await post(SHUTDOWN, RESUME);
      else {
        await post(PAUSE);
        await reaches(clientOn(socketPath), PAUSED);
        host.process.kill('SIGTERM');
      }
      await host.ends('save');
    }
  });
});
