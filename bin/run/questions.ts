// Questions of the program: those on CONTROL_FD, and those of `control-run ask`, which any of its processes may run.
//
// `control-run ask` connects to the Unix socket in CONTROL_RUN_SOCKET. Each side writes one line of JSON:
//
//   control-run ask  {"message":"Deploy build 4711?","timeout":900}     a hang-up withdraws the question
//   control-run      {"arguments":{"approved":true},"by":"ana@phone"}   or {"error":"expired"}
//
// Such a question outlives pauses and saves. While one waits, the server withdraws all questions; once it has been
// taken, the question is asked anew. Its time passes only while the program is active.

import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { chmodSync, mkdirSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { SystemStatus } from '../../control.ts';
import { excerpt, MAX_VALUE_LENGTH } from '../shared/words/text.ts';
import { MAX_LINE_LENGTH, parseLine } from './channel.ts';
import type { Answer, AskOptions, WebApiServer } from '../../control.ts';
import type { Server, Socket } from 'node:net';

const MAX_PATH_BYTES = 100; // of a socket; systems truncate longer ones
const MIN_SECONDS = 0.001;
const MAX_SECONDS = 24 * 86_400; // the longest that a timer of Node takes
const CHANGE = 'its time begins to pass, or stops';
const ENDING = 'the program is shutting down';

/** `error` is `expired`, `withdrawn`, also with a reason, `Interrupted by COMMAND`, or why the question is refused. */
export type Reply = Answer | { error: string };

/** What `ask()` in control.ts takes, but with the timeout in seconds. Not checked yet. */
type Fields = { message?: string; timeout?: number | undefined } & Omit<AskOptions, 'timeout'>;

/** A question of `control-run ask`. */
interface Lasting {
  fields: Fields; // `timeout` is what is left of it
  reply(reply: Reply): void;
  /** Withdraws it from the server; null while the command that has withdrawn it waits. */
  round: AbortController | null;
}

export async function ask(server: WebApiServer<string>, fields: Fields, signal: AbortSignal): Promise<Reply> {
  const { message = '', timeout, ...options } = fields;
  try {
    if (timeout !== undefined && !(typeof timeout === 'number' && timeout >= MIN_SECONDS && timeout <= MAX_SECONDS)) {
      throw new RangeError(`timeout must be a number of seconds from ${MIN_SECONDS} to ${MAX_SECONDS}`);
    }
    return await server.ask(message, { ...options, timeout: timeout && timeout * 1000, signal });
  } catch (error) {
    const { name, message } = error as Error;
    return { error: name === 'TimeoutError' ? 'expired' : excerpt(message, MAX_VALUE_LENGTH) };
  }
}

export class Questions {
  /** Of the socket; only this user may enter it. */
  readonly folder: string = resolve(tmpdir(), `control-run-${randomBytes(6).toString('hex')}`);
  readonly #server: WebApiServer<string>;
  readonly #listener: Server = createServer((socket) => this.#serve(socket)).unref();
  readonly #open: Set<Lasting> = new Set();
  #status: SystemStatus;

  constructor(server: WebApiServer<string>, status: SystemStatus) {
    this.#server = server;
    this.#status = status;
  }

  /** Listens for `control-run ask`. Returns the path of the socket; undefined if there is none. */
  async listen(say: (message: string) => void): Promise<string | undefined> {
    if (process.platform === 'win32') return undefined;
    const path = join(this.folder, 'ask');
    try {
      if (Buffer.byteLength(path) > MAX_PATH_BYTES) throw new Error('its path is too long');
      mkdirSync(this.folder, { mode: 0o700 });
      await once(this.#listener.listen(path), 'listening');
      chmodSync(path, 0o600);
      return path;
    } catch (error) {
      say(`scripts cannot use control-run ask: cannot create the socket '${path}': ${(error as Error).message}`);
      return undefined;
    }
  }

  close(): void {
    this.withdraw('control-run has ended');
    this.#listener.close();
    try { rmSync(this.folder, { recursive: true, force: true }); } catch {} // out of reach, as when it was created
  }

  /** Adapts the questions of `control-run ask` to the status. */
  follow(status: SystemStatus): void {
    const wasActive = this.#status === SystemStatus.ACTIVE;
    this.#status = status;
    if (status === SystemStatus.SHUTTING_DOWN) this.withdraw(ENDING);
    if (wasActive === (status === SystemStatus.ACTIVE)) return;
    for (const { fields, round } of this.#open) if (fields.timeout !== undefined) round?.abort(new Error(CHANGE));
  }

  /** Asks anew what the command that has just been taken has withdrawn. */
  askAnew(): void {
    for (const one of this.#open) if (one.round === null) void this.#ask(one);
  }

  /** Withdraws the questions of `control-run ask` for good. */
  withdraw(why: string): void {
    for (const one of this.#open) this.#end(one, { error: `withdrawn: ${why}` });
  }

  #serve(socket: Socket): void {
    let line = '';
    const read = (text: string): void => {
      line += text;
      if (!line.includes('\n') && line.length <= MAX_LINE_LENGTH) return;
      socket.off('data', read).resume(); // notices a hang-up
      const one: Lasting = {
        fields: parseLine(line), reply: (reply) => socket.end(`${JSON.stringify(reply)}\n`), round: null,
      };
      this.#open.add(one);
      socket.on('close', () => this.#end(one, { error: 'withdrawn' }));
      if (this.#status === SystemStatus.SHUTTING_DOWN) this.withdraw(ENDING);
      else void this.#ask(one);
    };
    socket.setEncoding('utf8').on('data', read).on('error', () => {}).unref(); // `close` follows
  }

  async #ask(one: Lasting): Promise<void> {
    const { timeout } = one.fields;
    const isTiming = timeout !== undefined && this.#status === SystemStatus.ACTIVE;
    const startedAt = performance.now();
    one.round = new AbortController();
    const fields = { ...one.fields, timeout: isTiming ? timeout : undefined };
    const reply = await ask(this.#server, fields, one.round.signal);
    const error = 'error' in reply ? reply.error : '';
    const isInterrupted = error.startsWith('Interrupted');
    if (error !== CHANGE && !isInterrupted) return this.#end(one, reply);
    if (isTiming) one.fields.timeout = Math.max(MIN_SECONDS, timeout - (performance.now() - startedAt) / 1000);
    if (isInterrupted) one.round = null;
    else if (this.#open.has(one)) await this.#ask(one);
  }

  #end(one: Lasting, reply: Reply): void {
    if (!this.#open.delete(one)) return;
    one.round?.abort();
    one.reply(reply);
  }
}
