// Programs under control in processes of their own: hosts that block their thread, exit, or get signals.

import assert from 'node:assert/strict';
import { createInterface } from 'node:readline';
import { start } from './helpers.ts';
import type { ChildProcess } from 'node:child_process';
import type { Readable } from 'node:stream';
import type { TestContext } from 'node:test';

export interface Host {
  readonly process: ChildProcess;
  /** Resolves with the next value that the host says. */
  hear<Value>(): Promise<Value>;
  /** Lets a host go on that has called halt(). */
  release(): void;
  /** Resolves when the host has ended by itself with exit code 0 and without a word on stderr, and has said the rest. */
  ends(...rest: unknown[]): Promise<void>;
}

// What the source of a host can use. Its standard output has a JSON value on each line.
const PRELUDE = `
  import { readSync, writeSync } from 'node:fs';
  import { EmptyError, SystemStatus, WebApiClient, WebApiServer, launch } from './dist/control.js';
  const { ACTIVE, PAUSED, SHUTTING_DOWN } = SystemStatus;
  const say = (value) => { writeSync(1, JSON.stringify(value) + '\\n'); };
  const block = (milliseconds) => { Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, milliseconds); };
  const halt = () => { readSync(0, Buffer.alloc(1)); }; // blocks until release()
  const place = { host: '127.0.0.1', port: 0 };
  const serve = async (options) => {
    const server = new WebApiServer({ systemStatus: () => ACTIVE, ...place, ...options });
    say((await server.runInBackground()).port);
    return server;
  };
  const run = (system, config) => {
    const onListening = ({ port }) => say(port);
    return launch({ step() {}, onListening, ...system }, { webApiAddress: ['127.0.0.1', 0], ...config });
  };
`;

/** Runs a program with the built control.js until it ends, or until the end of the test. */
export function runHost(t: TestContext, source: string): Host {
  const { child, ended } = start(t, process.execPath, ['--input-type=module', '--eval', PRELUDE + source]);
  const lines = createInterface(child.stdout as Readable)[Symbol.asyncIterator]();
  return {
    process: child,
    async hear() {
      const { value, done } = await lines.next();
      if (done === true) throw new Error(`The host has ended: ${(await ended).stderr}`);
      return JSON.parse(value);
    },
    release: () => void child.stdin?.write('.'),
    async ends(...rest) {
      const said: unknown[] = [];
      for await (const line of lines) said.push(JSON.parse(line));
      const { code, stderr } = await ended;
      assert.deepEqual({ said, code, signal: child.signalCode, stderr }, { said: rest, code: 0, signal: null, stderr: '' });
    },
  };
}
