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
import { join } from 'node:path';
import { SystemStatus } from '../../control.ts';
import { excerpt, isRecord, MAX_VALUE_LENGTH } from '../shared/words/text.ts';
import type { Answer, AskOptions, WebApiServer } from '../../control.ts';
import type { Server, Socket } from 'node:net';

const MAX_LINE_LENGTH = 65_536;
const MAX_PATH_BYTES = 100; // of a socket; systems truncate longer ones
const MAX_SECONDS = 24 * 86_400; // the longest that a timer of Node takes
const MIN_SECONDS = 0.001;
const ENDING = 'the program is shutting down';
const CHANGE = new Error('its time begins to pass, or stops');

/** `error` is `expired`, `withdrawn`, also with a reason, `Interrupted by COMMAND`, or why the question is refused. */
export type Reply = Answer | { error: string };

/** A question of `control-run ask`. */
interface Lasting {
  fields: Record<string, unknown>;
  /** In seconds; undefined if it does not expire. */
  timeout: number | undefined;
  reply(reply: Reply): void;
  /** Withdraws it from the server; null while the command that has withdrawn it waits. */
  round: AbortController | null;
}

/**
 * Asks once.
 *
 * @param fields The message, and the options of `ask()` in control.ts, but the timeout in seconds.
 */
export async function ask(server: WebApiServer<string>, fields: object, signal: AbortSignal): Promise<Reply> {
  return await tryToAsk(server, fields, signal).catch((error: Error) => ({ error: describeError(error) }));
}

async function tryToAsk(server: WebApiServer<string>, fields: object, signal: AbortSignal): Promise<Answer> {
  const { message, timeout, ...options } = fields as { message?: string; timeout?: unknown };
  const isTimeout = typeof timeout === 'number' && timeout >= MIN_SECONDS && timeout <= MAX_SECONDS;
  if (timeout !== undefined && !isTimeout) {
    throw new RangeError(`timeout must be a number of seconds from ${MIN_SECONDS} to ${MAX_SECONDS}`);
  }
  const timeoutMs = isTimeout ? timeout * 1000 : undefined;
  return await server.ask(message ?? '', { ...options, timeout: timeoutMs, signal } as AskOptions);
}

function describeError({ name, message }: Error): string {
  return name === 'TimeoutError' ? 'expired' : excerpt(message, MAX_VALUE_LENGTH);
}

export class Questions {
  /** Of the socket; only this user may enter it. */
  readonly folder: string = join(tmpdir(), `control-run-${randomBytes(6).toString('hex')}`);
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
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** Adapts the questions of `control-run ask` to the status. */
  follow(status: SystemStatus): void {
    const wasActive = this.#status === SystemStatus.ACTIVE;
    this.#status = status;
    if (status === SystemStatus.SHUTTING_DOWN) this.withdraw(ENDING);
    if (wasActive === (status === SystemStatus.ACTIVE)) return;
    for (const { timeout, round } of this.#open) if (timeout !== undefined) round?.abort(CHANGE);
  }

  /** Asks anew what the command that has just been taken has withdrawn. */
  askAnew(): void {
    for (const one of this.#open) if (one.round === null) this.#ask(one);
  }

  /** Withdraws the questions of `control-run ask` for good. */
  withdraw(why: string): void {
    for (const one of this.#open) this.#end(one, { error: `withdrawn: ${why}` });
  }

  #serve(socket: Socket): void {
    let line = '';
    const reply = (reply: Reply): void => void socket.end(`${JSON.stringify(reply)}\n`);
    const read = (text: string): void => {
      line += text;
      if (!line.includes('\n') && line.length <= MAX_LINE_LENGTH) return;
      socket.off('data', read).resume(); // notices a hang-up
      const fields = parse(line);
      if (fields === null) return reply({ error: 'the question must be a line of JSON, at most 64 KiB' });
      const one: Lasting = { fields, timeout: fields['timeout'] as number | undefined, reply, round: null };
      socket.on('close', () => this.#end(one, { error: 'withdrawn' }));
      this.#open.add(one);
      if (this.#status === SystemStatus.SHUTTING_DOWN) this.withdraw(ENDING);
      else this.#ask(one);
    };
    socket.setEncoding('utf8').on('data', read).on('error', () => {}).unref(); // `close` follows
  }

  #ask(one: Lasting): void {
    const { fields, timeout } = one;
    const round = one.round = new AbortController();
    const startedAt = performance.now();
    const isTiming = timeout !== undefined && this.#status === SystemStatus.ACTIVE;
    const question = { ...fields, timeout: isTiming ? timeout : undefined };
    tryToAsk(this.#server, question, round.signal).then((answer) => this.#end(one, answer), (error: Error) => {
      if (!this.#open.has(one)) return;
      if (isTiming) one.timeout = Math.max(MIN_SECONDS, timeout - (performance.now() - startedAt) / 1000);
      if (error === CHANGE) this.#ask(one);
      else if (error.name === 'AbortError') one.round = null; // a command waits
      else this.#end(one, { error: describeError(error) });
    });
  }

  #end(one: Lasting, reply: Reply): void {
    if (!this.#open.delete(one)) return;
    one.round?.abort();
    one.reply(reply);
  }
}

/** Returns null if the text is not a line with a JSON object. */
function parse(text: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(text);
    return text.length <= MAX_LINE_LENGTH && isRecord(value) ? value : null;
  } catch {
    return null;
  }
}
