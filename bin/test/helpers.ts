// What the tests of the programs share.

import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, constants, mkdtempSync, openSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { SystemStatus, WebApiClient, WebApiServer, launch } from '../../control.ts';
import type { System, WebApiServerOptions } from '../../control.ts';
import type { ChildProcess } from 'node:child_process';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';

export interface Ended {
  code: number | null;
  stdout: string;
  stderr: string;
}

/** A program under way. */
export interface Running {
  child: ChildProcess;
  /** All that it has written so far, to stdout and stderr. */
  output(): string;
  /** Resolves when its output matches, or throws if it has not after ten seconds. */
  shows(pattern: RegExp): Promise<void>;
  ended: Promise<Ended>;
}

/** What the environment of whoever runs the tests must not change. */
const ENVIRONMENT = { NO_COLOR: '1', TERM: 'xterm', CONTROL_TOKEN: undefined, NODE_DEBUG: undefined };

/** Starts a command; it is killed at the end of the test if it still runs then. */
export function start(t: TestContext, command: string, args: readonly string[], env: NodeJS.ProcessEnv = {}): Running {
  const child = spawn(command, args, { stdio: 'pipe', env: { ...process.env, ...ENVIRONMENT, ...env } });
  t.after(() => child.kill('SIGKILL'));
  let stdout = '';
  let stderr = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text));
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text));
  child.stdin.on('error', () => {}); // a program that ends before it has read all
  const ended = new Promise<Ended>((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code) => resolve({ code, stdout, stderr }));
  });
  const output = (): string => stdout + stderr;
  const shows = (pattern: RegExp): Promise<void> => {
    return until(() => pattern.test(output()), () => `no ${pattern} in: ${JSON.stringify(output())}`);
  };
  return { child, output, shows, ended };
}

/** Starts one of the built programs. */
export function startProgram(
  t: TestContext,
  name: string,
  args: readonly string[],
  env: NodeJS.ProcessEnv = {},
): Running {
  return start(t, process.execPath, [`dist/bin/${name}.js`, ...args], env);
}

/** Runs one of the built programs to its end. */
export function runProgram(
  t: TestContext,
  name: string,
  args: readonly string[],
  input: string = '',
  env: NodeJS.ProcessEnv = {},
): Promise<Ended> {
  const { child, ended } = startProgram(t, name, args, env);
  child.stdin?.end(input);
  return ended;
}

/** Launches a system with a web API on a free port; it is shut down at the end of the test. Returns the port. */
export async function startSystem(t: TestContext, hooks: Partial<System> = {}): Promise<number> {
  let port = 0;
  let done: Promise<void> = Promise.resolve();
  await new Promise<void>((resolve, reject) => {
    const onListening: System['onListening'] = (address) => {
      port = address.port;
      resolve();
    };
    done = launch({ step: () => sleep(1), ...hooks, onListening }, { webApiAddress: ['localhost', 0] });
    done.catch(reject);
  });
  t.after(async () => {
    const client = new WebApiClient('localhost', port);
    await client.shutdown();
    await done;
    client.close();
  });
  return port;
}

/** Starts a web API on a free port whose host is the test itself; it is closed at the end of the test. */
export async function startServer(
  t: TestContext,
  options: Partial<WebApiServerOptions> = {},
): Promise<{ port: number; server: WebApiServer }> {
  const server = new WebApiServer({ systemStatus: () => SystemStatus.ACTIVE, port: 0, ...options });
  t.after(() => server.close());
  return { server, port: (await server.runInBackground()).port };
}

/** A port where nothing listens, for a server that starts later. */
export async function freePort(host: string = '127.0.0.1'): Promise<number> {
  const server = createServer().listen(0, host);
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

/** A new folder, removed at the end of the test. */
export function makeFolder(t: { after(end: () => void): void }): string {
  const folder = mkdtempSync(join(tmpdir(), 'control-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** A path for a Unix socket, in a folder that is removed at the end of the test. */
export function makeSocketPath(t: TestContext): string {
  return join(makeFolder(t), 'control.sock');
}

/** A FIFO, open for writing whether somebody reads it or not. */
export function makePipe(t: TestContext): { path: string; file: number } {
  const path = join(makeFolder(t), 'pipe');
  execFileSync('mkfifo', [path]);
  const file = openSync(path, constants.O_RDWR);
  t.after(() => closeSync(file));
  return { path, file };
}

/** Resolves when it is true, or throws if it is not after ten seconds. */
export async function until(
  isTrue: () => boolean | Promise<boolean>,
  what: () => string = () => `not in time: ${isTrue}`,
): Promise<void> {
  const limit = performance.now() + 10_000;
  while (!(await isTrue())) {
    if (performance.now() > limit) throw new Error(what());
    await sleep(20);
  }
}

/** Why tests with Unix sockets are skipped; false if there are such sockets. */
export function lacksSockets(): string | false {
  return process.platform === 'win32' && 'Windows has no sockets in its file system';
}

/** A token, and what the server says to those who lack it. */
export const TOKEN = 'a-token-for-tests-only';
export const NO_TOKEN = 'Missing or wrong token: see the option token, or CONTROL_TOKEN for the programs';

const NOWHERE = '/nowhere/control.sock'; // where no program that takes it can do any harm
const LONG_PATH = `/${'x'.repeat(94)}`;
const TOKEN_FORM = 'CONTROL_TOKEN must be a string of 16 to 1024 visible ASCII characters, got';

/** What every program refuses in the same words; no message holds the token. */
export const WRONG_ACCESS: readonly [what: string, args: string[], token: string, line: string][] = [
  ['--socket and --host', ['--socket', NOWHERE, '--host', 'localhost'], '',
    '--socket stands in place of --host and --port: give it, or them'],
  ['--socket and --port', ['--port', '80', '--socket', NOWHERE], '',
    '--socket stands in place of --host and --port: give it, or them'],
  ['no path', ['--socket'], '', '--socket needs a value; --help lists the options'],
  ['an empty path', ['--socket='], '', "--socket must be a non-empty string, got ''"],
  ['a long path', ['--socket', LONG_PATH], '',
    `--socket must be at most 94 bytes long, without NUL, got '${LONG_PATH}'`],
  ['a short token', ['--socket', NOWHERE], 'secret', `${TOKEN_FORM} 6`],
  ['a long token', ['--socket', NOWHERE], 'secret'.padEnd(1025, '.'), `${TOKEN_FORM} 1025`],
  ['a token with spaces', ['--socket', NOWHERE], 'secret in three words', `${TOKEN_FORM} other characters`],
  ['a token with a newline', ['--socket', NOWHERE], 'secret-of-a-file-with-newline\n', `${TOKEN_FORM} other characters`],
];

/** Debian's packages, by the programs that tests need. */
const PACKAGES = {
  Xvfb: 'xvfb', xdotool: 'xdotool', xterm: 'xterm', setxkbmap: 'x11-xkb-utils', mcs: 'mono-mcs', mono: 'mono-runtime',
  cc: 'gcc',
} as const;

/** Why tests with these programs are skipped; false if all are there. */
export function lacks(...programs: (keyof typeof PACKAGES)[]): string | false {
  const missing = programs.filter((name) => spawnSync('sh', ['-c', `command -v ${name}`]).status !== 0);
  return missing.length > 0 && missing.map((name) => `needs ${name}: apt-get install ${PACKAGES[name]}`).join('; ');
}

/** Why tests in a pseudo-terminal are skipped; false if script(1) is there. */
export function lacksScript(): string | false {
  const { stdout } = spawnSync('script', ['--version'], { encoding: 'utf8' });
  return !stdout?.includes('util-linux') && 'needs script of util-linux: apt-get install bsdutils';
}
