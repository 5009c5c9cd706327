// Programs under control in processes of their own: hosts that block their thread, exit, or get signals.

import assert from 'node:assert/strict';
import { on } from 'node:events';
import { connect } from 'node:net';
import { start } from './helpers.ts';
import { END_MS, inTime } from './wait.ts';
import type { ChildProcess } from 'node:child_process';
import type { Readable } from 'node:stream';
import type { TestContext } from 'node:test';

export interface Host {
  readonly process: ChildProcess;
  /** Resolves with the next value that the host says. */
  hear<Value>(): Promise<Value>;
  /** Resolves with all further values when the host has ended. */
  hearAll(): Promise<unknown[]>;
  /** Continues a host that has called halt(). */
  release(): void;
  /** Sends a line to a host that has called obey(). */
  order(line: string): void;
  /** Resolves when the host has ended by itself, with exit code 0, an empty stderr and no further values. */
  ends(...rest: unknown[]): Promise<void>;
  ended: Promise<{ code: number | null; stderr: string }>;
}

// What the source of a host can use. Its standard output has a JSON value on each line.
const PRELUDE = `
  import { readSync, writeSync } from 'node:fs';
  import { createInterface } from 'node:readline';
  import { setTimeout as sleep } from 'node:timers/promises';
  import { EmptyError, SystemStatus, WebApiClient, WebApiServer, launch } from './dist/control.js';
  const { ACTIVE, PAUSED, SHUTTING_DOWN } = SystemStatus;
  const say = (value) => { writeSync(1, JSON.stringify(value) + '\\n'); };
  const block = (milliseconds) => { Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, milliseconds); };
  const obey = (orders) => { // each line on stdin, which does not keep the process alive
    createInterface(process.stdin).on('line', (line) => orders[line]());
    process.stdin.unref();
  };
  const halt = () => { readSync(0, Buffer.alloc(1)); }; // blocks until release()
  const place = { host: '127.0.0.1', port: 0 };
  const serve = async (options) => {
    const server = new WebApiServer({ systemStatus: () => ACTIVE, ...place, ...options });
    say((await server.runInBackground()).port);
    return server;
  };
  const launchHost = (system, config) => {
    const onListening = ({ port }) => say(port);
    return launch({ step() {}, onListening, ...system }, { webApiAddress: ['127.0.0.1', 0], ...config });
  };
`;

/**
 * Runs a program with the built control.js until it ends, or until the end of the test.
 *
 * @param prefix A command that runs it, as in a container.
 */
export function runHost(
  t: TestContext,
  source: string,
  nodeOptions: readonly string[] = [],
  prefix: readonly string[] = [],
): Host {
  const node = [process.execPath, ...nodeOptions, '--input-type=module', '--eval', PRELUDE + source];
  const [command, ...args] = [...prefix, ...node];
  return spawnHost(t, args, command);
}

/** Starts a server whose full queue of connections drops packets, as a firewall may. Returns its port. */
export async function startUnreachable(t: TestContext): Promise<number> {
  const host = runHost(t, `
    import { createServer } from 'node:net';
    const server = createServer().listen({ host: '127.0.0.1', port: 0, backlog: 1 }, () => {
      say(server.address().port);
      for (;;) block(1000); // accepts nothing
    });
  `);
  const port = await host.hear<number>();
  const isConnected = (): Promise<boolean> => new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => resolve(true)).on('error', () => {});
    t.after(() => socket.destroy());
    setTimeout(resolve, 500, false);
  });
  for (let missed = 0; missed < 3;) missed = await isConnected() ? 0 : missed + 1; // one may only be slow
  return port;
}

/** Runs a command, by default Node, with these arguments; each line of its stdout is a JSON value. */
export function spawnHost(t: TestContext, args: readonly string[], command: string = process.execPath): Host {
  const { child, ended } = start(t, command, args);
  const lines = linesOf(on(child.stdout as Readable, 'data', { close: ['end'] })); // at once, and without a limit
  const host: Host = {
    process: child,
    ended,
    async hear() {
      const { value, done } = await inTime(lines.next(), () => 'The host says nothing');
      if (done === true) throw new Error(`The host has ended: ${(await ended).stderr}`);
      return JSON.parse(value);
    },
    hearAll() {
      const rest = async (): Promise<unknown[]> => {
        const values: unknown[] = [];
        for await (const line of lines) values.push(JSON.parse(line));
        return values;
      };
      return inTime(rest(), () => 'The host does not end', END_MS);
    },
    release: () => void child.stdin?.write('.'),
    order: (line) => void child.stdin?.write(`${line}\n`),
    async ends(...rest) {
      const said = await host.hearAll();
      const { code, stderr } = await ended;
      assert.deepEqual([said, code, child.signalCode, stderr], [rest, 0, null, '']);
    },
  };
  return host;
}

/** Not by readline: since Node 24, that ends a line at U+2028 and U+2029, too, which a string in JSON may contain. */
async function* linesOf(chunks: AsyncIterable<any[]>): AsyncGenerator<string> {
  let rest = '';
  for await (const [text] of chunks) {
    const lines = `${rest}${text}`.split('\n');
    rest = lines.pop() as string;
    yield* lines;
  }
  if (rest !== '') yield rest;
}
