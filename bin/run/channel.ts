// The channel on which a program takes the commands itself: the socket in CONTROL_FD. Both sides write lines of JSON:
//
//   program      {"status":"active"}                               from its first line on, it takes commands
//   program      {"accepts":{"evaluate":{}}}                       its own commands; replaces the previous ones
//   control-run  {"id":7,"command":"save-state","by":"ana"}        also pause, resume, shutdown; one at a time
//   program      {"done":7,"value":"ckpt/12.pt"}                   or {"failed":7,"error":"disk full"}
//   control-run  {"id":8,"command":"evaluate","arguments":{}}
//   program      {"status":"paused"}, {"detail":{"epoch":12}}      at any time
//   program      {"ask":{"id":"a1","message":"Stop?"}}           or {"withdraw":"a1"}
//   control-run  {"answer":{"id":"a1","arguments":{"approved":true}}}   or {"answer":{"id":"a1","error":"expired"}}
//
// `control-run ask` connects to the Unix socket in CONTROL_RUN_SOCKET. Each side writes one line of JSON:
//
//   control-run ask  {"message":"Deploy build 4711?","timeout":900}     a hang-up withdraws the question
//   control-run      {"arguments":{"approved":true},"by":"ana@phone"}   or {"error":"expired"}
//
// Such a question outlives pauses and saves. While one waits, the server withdraws all questions; once it has been
// taken, the question is asked anew, with the time that is left. A process that shows its frames stays connected; one
// whose launcher has closed CONTROL_FD gets a channel there, unless another one has it:
//
//   program      {"stack":{"pid":4711,"signal":63}}                 a signal for a main thread that lets no other run
//   control-run  {"look":true}
//   program      {"stack":["parse (train.py:7)", "step (train.py:8)"]}
//   program      {"channel":{"pid":4711}}
//   control-run  {"channel":"open"}                                 or {"error":"process 4712 takes the commands"}

import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { chmodSync, mkdirSync, rmSync } from 'node:fs';
import { createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  type Answer, type AskOptions, type CommandOutcome, type CommandRequest, SystemStatus, type WebApiServer,
} from '../../control.ts';
import { excerpt, excerptOf, isRecord, MAX_VALUE_LENGTH } from '../shared/text.ts';
import { followTracer } from './stack.ts';

const MAX_LINE_LENGTH: number = 65_536;
const MAX_DETAIL_BYTES = 3000; // of JSON; /api/info has room for 4096, including what control-run adds
const MAX_UNREAD_BYTES = 1_048_576; // of answers
const MAX_LINES = 1000; // then timers and commands get a turn
const TOO_LONG = 'a line longer than 64 KiB';
const TOO_LARGE = `a detail larger than ${MAX_DETAIL_BYTES} bytes`;
const STATUSES = Object.values(SystemStatus).filter((status) => status !== SystemStatus.OFFLINE);

/** The status of a program once it has done a command. */
const GOALS: ReadonlyMap<string, SystemStatus> = new Map([
  ['pause', SystemStatus.PAUSED], ['resume', SystemStatus.ACTIVE],
]);

/** The start of a line with an outcome. The rest may be too long, or not JSON: Python writes NaN. */
const OUTCOME = /^\s*\{\s*"(?:done|failed)"\s*:\s*(\d+)/;

/** The start of a question, which may be invalid in the same way. */
const QUESTION = /^\s*\{\s*"ask"\s*:\s*\{\s*"id"\s*:\s*"([^"\\]{1,100})"/;

/** A command as the program receives it, without its id. */
interface Request extends Pick<CommandRequest, 'by' | 'reason'> {
  command: string;
  /** Of an own command. */
  arguments: object | undefined;
}

export interface ChannelListener {
  /** While a pause or a resume runs, called only with the status that completes it. */
  onStatus(status: SystemStatus): void;
  onDetail(detail: object): void;
  /** Called with the declarations of the program's own commands; empty once it takes no more commands. */
  onAccepts(accepts: Record<string, unknown>): void;
  /** Called with a question, and a signal that withdraws it. */
  onAsk(fields: object, signal: AbortSignal): Promise<Reply>;
  /** Called once, for the first invalid line. */
  onInvalidLine(what: string): void;
}

export class Channel {
  /** Whether the program takes commands itself: from its first line on, until the socket closes. */
  state: 'unused' | 'open' | 'closed';
  /** At the other end; empty for CONTROL_FD, which several may have. */ readonly process: string;
  readonly socket: Socket;
  readonly #listener: ChannelListener;
  #rest = ''; // of an incomplete line
  #isTooLong = false; // that line
  #hasComplained = false;
  readonly #asked: Map<string, AbortController> = new Map(); // open questions, by their ids
  #id = 0; // of the latest command
  #running: { goal: SystemStatus | undefined; resolve(outcome: CommandOutcome): void } | null = null; // that command

  constructor(socket: Socket, listener: ChannelListener, process: string = '') {
    this.socket = socket;
    this.#listener = listener;
    this.process = process;
    this.state = process === '' ? 'unused' : 'open';
    socket.setEncoding('utf8').on('data', (text: string) => this.#read(text));
    socket.on('error', () => {}); // `close` follows
    socket.on('close', () => this.close());
    socket.unref();
  }

  /** Passes a command to the program, and returns its outcome. */
  send(request: Request): Promise<CommandOutcome> {
    this.#id += 1;
    this.socket.write(`${JSON.stringify({ id: this.#id, ...request })}\n`);
    return new Promise((resolve) => (this.#running = { goal: GOALS.get(request.command), resolve }));
  }

  /** Completes the latest command; a no-op if it is completed. A later outcome from the program is ignored. */
  settle(outcome: CommandOutcome): void {
    const running = this.#running;
    if (running === null) return;
    if (running.goal !== undefined && !('error' in outcome)) this.#listener.onStatus(running.goal);
    this.#running = null;
    running.resolve(outcome);
  }

  close(): void {
    if (this.state === 'open') {
      this.state = 'closed';
      this.#listener.onAccepts({});
    }
    this.settle({ error: new Error(this.process ? `${this.process} hung up` : 'the program closed CONTROL_FD') });
    for (const withdrawal of this.#asked.values()) withdrawal.abort();
    this.socket.destroy();
  }

  #read(text: string): void {
    const lines = (this.#rest + text).split('\n');
    this.#rest = lines.pop() as string;
    for (const line of lines) {
      if (this.#isTooLong) this.#isTooLong = false; // this is its end
      else if (line.length > MAX_LINE_LENGTH || !this.#take(line)) this.#refuse(line);
    }
    if (this.#rest.length > MAX_LINE_LENGTH) {
      if (!this.#isTooLong) this.#refuse(this.#rest);
      this.#rest = '';
      this.#isTooLong = true;
    }
    if (lines.length < MAX_LINES) return;
    this.socket.pause();
    setImmediate(() => this.socket.resume());
  }

  /** Returns false if the line is invalid; then it changes nothing. */
  #take(line: string): boolean {
    const { status, detail, accepts, done, failed, value, error, ask, withdraw } = parseLine(line);
    const known = STATUSES.find(({ statusName }) => statusName === status);
    const id = done ?? failed;
    const isValid = (status ?? detail ?? accepts ?? id ?? ask ?? withdraw) !== undefined &&
      (status === undefined || known !== undefined) &&
      (detail === undefined || (isRecord(detail) && fits(detail))) &&
      (accepts === undefined || isRecord(accepts)) &&
      (ask === undefined || (isRecord(ask) && isId(ask['id']) && !this.#asked.has(ask['id']))) &&
      (withdraw === undefined || isId(withdraw)) &&
      (id === undefined || (Number.isInteger(id) && (id as number) > 0 && (id as number) <= this.#id));
    if (!isValid) return false;
    this.state = 'open';
    if (isRecord(accepts)) this.#listener.onAccepts(accepts);
    if (isRecord(detail)) this.#listener.onDetail(detail);
    if (isRecord(ask)) void this.#ask(ask);
    if (isId(withdraw)) this.#asked.get(withdraw)?.abort(new DOMException('withdrawn', 'AbortError'));
    if (id === this.#id) { // an earlier command is completed already
      const reason = excerptOf(error, MAX_VALUE_LENGTH) || 'the program gave no reason';
      this.settle(failed === undefined ? { value: value ?? undefined } : { error: new Error(reason) });
    }
    const goal = this.#running?.goal;
    if (known !== undefined && goal === undefined) this.#listener.onStatus(known);
    else if (known !== undefined && goal === known) this.settle({});
    return true;
  }

  async #ask({ id, ...fields }: Record<string, unknown>): Promise<void> {
    const withdrawal = new AbortController();
    this.#asked.set(id as string, withdrawal);
    const reply = await this.#listener.onAsk(fields, withdrawal.signal);
    this.#asked.delete(id as string);
    this.#answer(id as string, reply);
  }

  #answer(id: string, reply: Reply): void {
    if (this.socket.writableLength > MAX_UNREAD_BYTES) return; // the program does not read them
    this.socket.write(`${JSON.stringify({ answer: { id, ...reply } })}\n`);
  }

  /** An invalid outcome fails its command, and an invalid question is answered: the program sends no other. */
  #refuse(line: string): void {
    const isOutcome = Number(OUTCOME.exec(line)?.[1]) === this.#id;
    const asked = QUESTION.exec(line)?.[1];
    if (this.#hasComplained && !isOutcome && asked === undefined) return;
    const { detail } = parseLine(line);
    const isLarge = isRecord(detail) && !fits(detail);
    const what = line.length > MAX_LINE_LENGTH ? TOO_LONG : isLarge ? TOO_LARGE : `an invalid line: ${excerpt(line)}`;
    if (isOutcome) this.settle({ error: new Error(`the program wrote ${what}`) });
    if (asked !== undefined && !this.#asked.has(asked)) this.#answer(asked, { error: `the program wrote ${what}` });
    if (!this.#hasComplained) this.#listener.onInvalidLine(what);
    this.#hasComplained = true;
  }
}

function isId(value: unknown): value is string {
  return typeof value === 'string' && value !== '' && value.length <= 100;
}

/** Measures the JSON, not the line, which may be shorter: `1e20` becomes 100000000000000000000. */
function fits(detail: object): boolean {
  try {
    return Buffer.byteLength(JSON.stringify(detail)) <= MAX_DETAIL_BYTES;
  } catch {
    return false; // nested too deeply
  }
}

/** Returns an empty object if the line is not a JSON object. */
function parseLine(line: string): Record<string, unknown> {
  if (!/^\s*\{/.test(line)) return {}; // there may be a flood of such lines, and exceptions are slow
  try {
    const value: unknown = JSON.parse(line);
    return isRecord(value) ? value : {};
  } catch {
    return {};
  }
}

// ───── Questions ─────────────────────────────────────────────────────────────────────────────────────────────────

const MAX_PATH_BYTES = 100; // of a socket; systems truncate longer ones
const MIN_SECONDS = 0.001;
const MAX_SECONDS = 24 * 86_400; // the longest that a timer of Node takes
const ENDING = 'the program is shutting down';

/** `error` is `expired`, `withdrawn`, also with a reason, `Interrupted by COMMAND`, or why the question is refused. */
type Reply = Answer | { error: string };

/** What `ask()` in control.ts takes, but with the timeout in seconds. Not checked yet. */
type Fields = { message?: string; timeout?: number | undefined } & Omit<AskOptions, 'timeout'>;

/** A question of `control-run ask`. */
interface Lasting {
  fields: Fields; // `timeout` is what was left of it at `askedAt`
  askedAt: number;
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
  #isEnding = false;
  #isPaused = false;
  look: ReturnType<typeof followTracer> = async () => []; // of the latest process that shows its frames
  /** Gives a process a channel on its socket, or returns why not. */
  connect: (socket: Socket, pid: number) => string | null = () => 'the program has not started';

  constructor(server: WebApiServer<string>) {
    this.#server = server;
  }

  /** Listens for `control-run ask`. Returns the path of the socket; undefined if there is none. */
  async listen(say: (message: string) => void): Promise<string | undefined> {
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

  /** Withdraws the questions of `control-run ask` while the program is shutting down. */
  follow(status: SystemStatus): void {
    this.#isEnding = status === SystemStatus.SHUTTING_DOWN;
    this.#isPaused = status === SystemStatus.PAUSED;
    if (this.#isEnding) this.withdraw(ENDING);
  }

  /** Asks anew what the command that has just been taken has withdrawn. */
  askAnew(): void {
    for (const one of this.#open) {
      if (one.round !== null) continue;
      const { fields, askedAt } = one;
      const seconds = (performance.now() - askedAt) / 1000;
      if (fields.timeout !== undefined) fields.timeout = Math.max(MIN_SECONDS, fields.timeout - seconds);
      void this.#ask(one);
    }
  }

  /** Withdraws the questions of `control-run ask` for good. */
  withdraw(why: string): void {
    for (const one of this.#open) this.#end(one, { error: `withdrawn: ${why}` });
  }

  #serve(socket: Socket): void {
    let line = '';
    const read = async (text: string): Promise<void> => {
      line += text;
      if (!line.includes('\n') && line.length <= MAX_LINE_LENGTH) return;
      socket.off('data', read).resume(); // notices a hang-up
      const { stack, channel, ...fields } = parseLine(line);
      if (isRecord(stack)) return void (this.look = followTracer(socket, stack));
      if (isRecord(channel)) {
        while (this.#isPaused) await sleep(100, undefined, { ref: false }); // a new process waits for the resume
        const error = this.connect(socket, Number(channel['pid']));
        return void socket.write(`${JSON.stringify(error === null ? { channel: 'open' } : { error })}\n`);
      }
      const one: Lasting = {
        fields, askedAt: 0, reply: (reply) => socket.end(`${JSON.stringify(reply)}\n`), round: null,
      };
      this.#open.add(one);
      socket.on('close', () => this.#end(one, { error: 'withdrawn' }));
      if (this.#isEnding) this.withdraw(ENDING);
      else void this.#ask(one);
    };
    socket.setEncoding('utf8').on('data', read).on('error', () => {}).unref(); // `close` follows
  }

  async #ask(one: Lasting): Promise<void> {
    one.round = new AbortController();
    one.askedAt = performance.now();
    const reply = await ask(this.#server, one.fields, one.round.signal);
    if ('error' in reply && reply.error.startsWith('Interrupted')) one.round = null;
    else this.#end(one, reply);
  }

  #end(one: Lasting, reply: Reply): void {
    if (!this.#open.delete(one)) return;
    one.round?.abort();
    one.reply(reply);
  }
}
