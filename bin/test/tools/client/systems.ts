// Systems for tests of clients: web APIs with given responses or none, and a process that can be stopped.

import { once } from 'node:events';
import { mkdirSync, readFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { launchSystem, makeFolder, makeSocketPath, preload, start, startForeign } from '../../helpers.ts';
import { type Respond, startWeb, type Web } from '../../puppet.ts';
import { until } from '../../wait.ts';
import type { System } from '../../../../control.ts';
import type { LaunchedSystem } from '../../helpers.ts';
import type { ChildProcess } from 'node:child_process';
import type fs from 'node:fs';
import type { TestContext } from 'node:test';

/** Suppresses the warnings of hooks that fail on purpose. */
export function hideFailures(): void {
  const printers = process.listeners('warning');
  process.removeAllListeners('warning').on('warning', (warning) => {
    if (warning.name !== 'ControlWarning') for (const print of printers) print(warning);
  });
}

/** The folder of a session, and systems in it. */
export interface Session {
  /** With it, tools find the systems. */
  env: { CONTROL_DIR: string };
  /** Where the sockets are. */
  folder: string;
  /** Launches a system in this process. */
  launch(name: string, hooks?: Partial<System>): Promise<LaunchedSystem>;
  /** Starts a fake web API. The title is `NAME-PID`, as in the path of a socket. */
  serve(title: string, respond?: Respond): Promise<Web>;
}

/** Opens a folder, whose systems end before it is removed: their clients need the sockets. */
export function openSession(t: TestContext): Session {
  const systems: LaunchedSystem[] = [];
  t.after(() => Promise.all(systems.map(async ({ client, finished }) => {
    await client.shutdown();
    await finished;
  })));
  const root = makeFolder(t);
  const folder = join(root, 'control');
  mkdirSync(folder, { mode: 0o700 });
  const launch: Session['launch'] = async (name, hooks) => {
    const system = await launchSystem(t, hooks, { name, webApiAddress: undefined, socketPath: `${folder}/` });
    systems.push(system);
    return system;
  };
  const serve: Session['serve'] = (title, respond) => {
    return startWeb(t, respond, { socketPath: join(folder, `${title}.sock`) });
  };
  return { env: { CONTROL_DIR: folder }, folder, launch, serve };
}

// ───── This user's folder and port ───────────────────────────────────────────────────────────────────────────────

/** What is taken for localhost:8391, where a developer may have a program. */
export interface Place {
  /** The port that is taken for 8391. */
  port: number;
  /** The user who listens there, by default that of the tool; or a file with the user, once there is one. */
  owner?: number | string | undefined;
  /** Whether nobody can tell who listens at a port. */
  isHidden?: boolean;
}

/** Who has no other folders. */
export const TOOL_USER: number = 2_000_000_000 + process.pid;

/** Makes a process take a place for its own. Also runs as text elsewhere. */
export function settle(
  files: typeof fs,
  { prototype }: typeof Socket,
  user: number,
  find: () => Place | undefined,
): void {
  const { existsSync, readFileSync } = files;
  const { connect } = prototype as { connect: any };
  const { geteuid } = process;
  const hexOf = (port: number): string => `:${port.toString(16).toUpperCase().padStart(4, '0')}`;
  const ownerOf = ({ owner = user }: Place): number | string => {
    return typeof owner === 'number' ? owner : existsSync(owner) ? readFileSync(owner, 'utf8') : user;
  };
  process.geteuid = () => find() === undefined ? geteuid?.() ?? -1 : user;
  prototype.connect = function (...args: any[]) {
    const [options] = args.flat();
    const place = find();
    if (options?.port === 8391 && place !== undefined) Object.assign(options, { port: place.port, host: '127.0.0.1' });
    return connect.apply(this, args);
  };
  files.readFileSync = ((path: string, ...rest: [any]) => {
    const place = find();
    if (place === undefined || !/^\/proc\/self\/net\/tcp6?$/.test(path)) return readFileSync(path, ...rest);
    if (place.isHidden === true) throw new Error('hidden');
    const [port, end] = [hexOf(8391), hexOf(place.port)];
    const lines = String(readFileSync(path)).split('\n').map((line) => line.trim().split(/ +/));
    const present = lines.filter(([, local = '']) => !local.endsWith(port));
    return present.map(([number, local = '', ...others]) => {
      if (local.endsWith(end)) others[5] = String(ownerOf(place));
      return ['', number, local.endsWith(end) ? local.replace(end, port) : local, ...others].join(' ');
    }).join('\n');
  }) as typeof readFileSync;
}

/** The variables with which tools find nothing but what is in the folder, and at the port. */
export function variablesOf(folder: string): NodeJS.ProcessEnv {
  return { CONTROL_DIR: undefined, XDG_RUNTIME_DIR: join(folder, '..') };
}

/** The environment of a tool there: for root alone, whom it trusts. */
export function hereIs(folder: string, port: number, owner?: number | string): NodeJS.ProcessEnv {
  const place = JSON.stringify({ port, owner });
  const imports = "import fs from 'node:fs'; import { Socket } from 'node:net';";
  return { ...preload(`${imports} (${settle})(fs, Socket, ${TOOL_USER}, () => (${place}));`), ...variablesOf(folder) };
}

// ───── Systems ───────────────────────────────────────────────────────────────────────────────────────────────────

/** Starts a server that accepts connections and never responds. Returns its target. */
export async function startSilent(t: TestContext, socketPath?: string): Promise<string> {
  const { port } = await startForeign(t, () => {}, socketPath);
  return socketPath === undefined ? `127.0.0.1:${port}` : `unix:${socketPath}`;
}

/** Starts a process that hangs, with a socket whose connection queue is full. Returns the path. */
export async function startFull(t: TestContext, path: string = makeSocketPath(t)): Promise<string> {
  const hang = 'Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)';
  const listen = `require('net').createServer().listen({ path: '${path}', backlog: 1 }, () => console.log('ready'))`;
  const { shows } = start(t, process.execPath, ['--eval', `${listen}.on('listening', () => ${hang})`]);
  await shows(/ready\n/);
  for (let isFull = false; !isFull;) {
    const socket = connect(path).on('error', () => {});
    t.after(() => socket.destroy());
    isFull = await once(socket, 'connect').then(() => false, () => true);
  }
  return path;
}

/** A system in a separate process, which can be stopped. */
export interface OwnProcess {
  port: number;
  child: ChildProcess;
  stop(): Promise<void>;
}

/**
 * @param system The source text of its hooks.
 * @param env With `CONTROL_DIR`, it also has a socket, as `train`.
 */
export async function startOwnProcess(
  t: TestContext,
  system: string = '{ step: () => new Promise((end) => setTimeout(end, 1)) }',
  env: NodeJS.ProcessEnv = {},
): Promise<OwnProcess> {
  const name = env['CONTROL_DIR'] === undefined ? '' : "name: 'train'";
  const program = `
    import { launch } from ${JSON.stringify(pathToFileURL('dist/control.js'))};
    const onListening = ({ port }) => console.log('port ' + port);
    launch({ ...${system}, onListening }, { webApiAddress: ['127.0.0.1', 0], ${name} });
  `;
  const { child, shows, output } = start(t, process.execPath, ['--input-type=module', '--eval', program], env);
  await shows(/port \d+\n/);
  const stop = async (): Promise<void> => {
    child.kill('SIGSTOP');
    await until(() => / T /.test(readFileSync(`/proc/${child.pid}/stat`, 'utf8')));
  };
  return { port: Number(/\d+/.exec(output())), child, stop };
}
